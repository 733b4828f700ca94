"""benchmarks/cures.py: the sick runs are what they are called, treatments are commands, and the page counts them."""

import json
import shlex

import pytest

from benchmarks import pages

optuna = pytest.importorskip("optuna")
pytestmark = pytest.mark.optional


@pytest.fixture(scope="module")
def cures():
    from benchmarks import cures

    return cures


def test_each_sick_run_differs_from_the_healthy_one_in_its_change(cures):
    cases = list(cures.candidates(tuple(cures.TASKS), 7))
    assert len({case.name for case in cases}) == len({case.cell.name for case in cases}) == len(cases) > 100
    for case in cases:
        well, sick = vars(cures.base(case.task)), vars(case.args)
        follows = {"named", "seed", "minibatch_size", "num_minibatches", *cures.QUIET}
        changed = {name for name in sick if name not in follows and sick[name] != well.get(name)}
        if case.change != "the script's own flags":
            assert len(changed) <= 3 and sick["seed"] == 7, (case.name, changed)
        assert all(sick[name] == well[name] for name in cures.FIXED), case.name
    rates = {case.change: case.args.learning_rate for case in cases if case.task == "CartPole"}
    assert rates["learning rate × 10"] == 1e-2 and rates["learning rate ÷ 10"] == 1e-4 and rates["γ 0.8"] == 1e-3


def sick_log(folder, cell):
    """The log of a run whose policy does not move."""
    (folder / cell.name).mkdir()
    line = {"charts/episodic_return": 20.0, "outer/kl": 1e-7, "losses/entropy": 0.69}
    lines = [json.dumps({"update": i, "global_step": 8192 * i} | line) for i in range(1, 123)]
    (folder / cell.name / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def test_treatments_are_commands_with_the_runs_seed_and_steps(cures, tmp_path):
    case = next(case for case in cures.candidates(("CartPole",), 7) if case.change == "learning rate ÷ 300")
    sick_log(tmp_path, case.cell)
    plan = cures.treatments(case, tmp_path)
    assert list(plan) == list(cures.COLUMNS) == list(pages.TREATMENTS)
    import ppo

    rate = {name: [ppo.Args(**dict(cell.flags)).learning_rate for cell in cells] for name, cells in plan.items()}
    assert rate["doctor"][0] == rate["checkpoint"][0] == 1e-3 and len(rate["doctor"]) == len(rate["tune"]) == 3
    assert rate["rate"] == [1e-5, 1.11e-6] and rate["log"] == [2.7e-3] and rate["tune"][0] == ppo.Args().learning_rate
    assert plan["checkpoint"][0].source == case.cell and plan["doctor"][0].source is None
    for cells in plan.values():
        for cell in cells:
            words = shlex.join(cures.grid.command(cell, tmp_path))
            assert "--seed 7 " in words and "--total-timesteps 1000000 " in words and "--num-envs" in words
