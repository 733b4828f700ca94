"""benchmarks/arms.py: arms are searched and judged with the same effort, on other seeds, with the best flags."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("optuna")

# isort: split
import ppo
import tune
from common.run import arguments

pytestmark = pytest.mark.optional


@pytest.fixture
def arms():
    from benchmarks import arms

    return arms


def test_arms_differ_in_how_data_are_gathered_and_in_nothing_else(arms):
    asked = []
    for arm in arms.ARMS:
        own, passed = tune.split(arms.tuning(arm, arms.Args(workers=2))[2:])
        task = tune.settle(arguments.parse(tune.Args, "", own), passed)
        assert sorted(task.space) == sorted([*arms.SEARCHED, "minibatch_size"])
        N, K, _ = arms.ARMS[arm]
        assert (task.given.pop("num_envs"), task.given.pop("num_steps")) == (N, K)
        assert max(task.space.pop("minibatch_size").choices) <= N * K
        asked.append((task.given, task.space, replace(task.args, study=None, search=())))
    assert asked[0] == asked[1] == asked[2] and asked[0][2].seed == 100 and len(asked[0][2].env_id) == 2


def test_the_best_trials_flags_are_judged_on_other_seeds(arms, tmp_path, monkeypatch):
    trial = lambda score, rate: {"score": score, "flags": {"learning_rate": rate, "minibatch_size": 512}}  # noqa: E731
    trials = [trial(0.2, 1e-3), trial(None, 2e-3), trial(0.7, 3e-3), trial(0.6, 4e-3)]
    args = arms.Args(arms=("small",), trials=4, seeds=2, out=tmp_path / "arms.json", runs_dir=tmp_path)
    args.out.write_text(json.dumps({"trials": {"small": trials}}))

    def run_missing(cells, folder, jobs, say, then):
        for cell in cells:
            given = ppo.Args(**dict(cell.flags))
            assert (given.learning_rate, given.minibatch_size, given.num_envs) == (3e-3, 512, 64)
            (folder / cell.name).mkdir()
            found = {"updates": cell.num_updates, "wall_s": 9.6, "eval/episodic_return": {"mean": 10.0 + given.seed}}
            (folder / cell.name / "summary.json").write_text(json.dumps(found))
            then(cell)

    monkeypatch.setattr(arms.grid, "run_missing", run_missing)
    arms.main(args)
    runs = json.loads(Path(args.out).read_text())["runs"].values()
    found = sorted((run["env_id"], run["seed"], run["return"], run["seconds"], run["arm"]) for run in runs)
    assert found == [(game, seed, 10.0 + seed, 10, "small") for game in sorted(arms.GAMES) for seed in (0, 1)]
