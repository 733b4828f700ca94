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


def test_the_page_counts_cases(monkeypatch, capsys):
    """Four sick runs, of which the first advice heals two and the second another one; two of three left alone."""
    shares = ([0.9], [0.8], [0.1, 1.0], [0.79, None, 0.7])
    sick = [{"task": "A", "change": "x", "advice": "flags", "doctor": (x + [None] * 3)[:3]} for x in shares]
    for case in sick:
        case |= {"checkpoint": [None], "log": [0.9], "rate": [0.0, 0.9], "tune": [0.0] * 3, "random": [0.5]}
    healthy = [{"task": "A", "advice": kind} for kind in ("nothing", "nothing", "flags")]
    machine = {"cores": 2, "cpu": "abacus"}
    found = {"cases": [*healthy, *sick], "hardware": machine, "date": "2026-11-27T10:00:00"}
    monkeypatch.setattr(pages, "read", lambda name: found)
    pages.cures()
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| the doctor | 50 % (15 to 85) | | 75 % (30 to 95) |")  # Wilson's intervals
    assert lines[5].startswith(
        "| learning rate × 3, then ÷ 3 | 0 % (0 to 49) | +50 (+0 to +100) | 100 % (51 to 100) | −25"
    )
    assert "Of 3 healthy runs the doctor left 67 % (21 to 94) alone." in lines
    pages.cures(brief=True)
    assert "Of 4 runs with wrong flags" in capsys.readouterr().out
