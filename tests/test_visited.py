"""What a policy visits: the observations of real, small runs, and the share of the plane that made-up ones cover."""

import json
import shutil
import sys

import numpy as np
import pytest
from conftest import refusal, write_run
from test_every_script import Clock

import ppo
from common import envs
from common.actions import Discrete
from experiments import visited
from experiments.data import Data
from experiments.grid import Cell

UPDATES, STEPS, ENVS = 48, 8, 4
EACH = 5  # observations of each of the eight policies


class Right(Clock):
    """Pays 1 for action 1."""

    action_space = Discrete((2,))

    def step(self, key, state, action):
        state, obs, _, *ends = super().step(key, state, action)
        return state, obs, state[1], *ends


@pytest.mark.slow
def test_observations_are_those_of_policies_from_the_whole_run(monkeypatch, tmp_path):
    """Each goes on from where it was saved: the time says from which, and the last action how good it is."""
    monkeypatch.setattr(envs, "make", lambda env_id, num_envs, *_, **__: envs.VectorEnv(Right(), num_envs))
    monkeypatch.setattr(visited, "SHOWN", 40)
    monkeypatch.setattr(visited, "MEASURED", 64)  # of 32 in each update
    args = ppo.Args(
        total_timesteps=UPDATES * STEPS * ENVS, num_envs=ENVS, num_steps=STEPS, num_minibatches=2, learning_rate=0.0015,
        hidden_sizes=(8,), num_seeds=2, num_devices=1, num_eval_episodes=0, gamma=0.0, ent_coef=0.0,
        anneal_lr=True, norm_obs=True, plasticity_every=0, runs_dir=str(tmp_path), run_name="run", keep_checkpoints=0,
        checkpoint_every=6,
    )  # fmt: skip
    run, cell = ppo.train(args), Cell("ppo", "run", (), UPDATES)
    build, built = ppo.build, []
    monkeypatch.setattr(ppo, "build", lambda args: built.append(args) or build(args))
    seen = visited.observations(tmp_path, cell)
    assert seen.shape == (2, 40, 3)
    assert built[0].learning_rate < 1e-20  # lost beside any parameter in float32: the policy stays
    for seed in seen:
        time, last, own = seed.T
        assert len(np.unique(own)) == ENVS and len(np.unique(seed, axis=0)) == 40  # each once
        since = time.reshape(8, EACH) // STEPS - np.arange(6, 54, 6)[:, None]  # updates since the checkpoint
        assert set(since.ravel()) == {0, 1}  # from both updates that were played
        assert last[-2 * EACH :].mean() > 0.85 > last[: 2 * EACH].mean()  # of a new network: 0.5
    assert not set(seen[0, :, 2]) & set(seen[1, :, 2])
    with monkeypatch.context() as patch:
        patch.setattr(visited.Policies, "play", lambda *_: pytest.fail("collected again"))
        np.testing.assert_array_equal(visited.observations(tmp_path, cell), seen)
    assert {file.name for file in run.glob("visited*")} == {"visited-8x5.npy"}
    # Only the grid says which script a run is of: what its folder names is not run.
    (tmp_path / "planted.py").write_text("raise SystemExit('it was imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    file = run / "args.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"script": "planted"}))
    played = []
    play = visited.Policies.play
    monkeypatch.setattr(visited.Policies, "play", lambda self, *how: played.append(how) or play(self, *how))
    found = visited.measurements(tmp_path, cell)
    assert played == [(UPDATES, 32 * 64)]  # the final network
    assert found["plasticity/effective_sample_size"] == pytest.approx([100] * 2, abs=0.01)  # nothing moved
    assert found["plasticity/feature_rank"].shape == (2,) and found["plasticity/weight_norm"].min() > 1
    assert "planted" not in sys.modules
    shutil.rmtree(run / "checkpoints")
    (run / "measured-64-of-2048.json").unlink()
    assert "run: has no checkpoint to measure" in refusal(visited.measurements, tmp_path, cell)


def test_the_policies_are_evenly_spread():
    there, chosen = [11, 12, 23, 36, 50, 60, 72, 83, 88, 96], [12, 23, 36, 50, 60, 72, 83, 96]
    assert visited.spread(there, Cell("ppo", "run", (), 96), "run r") == chosen


@pytest.mark.parametrize("there", [[96], [48, 96], [12, 24, 36, 48, 60, 84, 96]])
def test_a_run_without_policies_from_all_of_it_is_refused_in_one_line(there):
    line = refusal(visited.spread, there, Cell("ppo", "run", (), 96), "run r")
    assert line.startswith("run r: needs checkpoints spread over its 96 updates; there are ") and line.endswith("96")


def test_coverage_is_the_share_of_cells_of_one_grid_for_all_runs_of_a_game(tmp_path, monkeypatch):
    def make(name, points):
        """A cell with these observations [seeds, n, 2] of its run, whose plane they are, as they are."""
        cell = Cell("ppo", name, (("num_seeds", len(points)),), 4)
        write_run(tmp_path, cell, [{"update": 4, "global_step": 32}])
        np.save(tmp_path / name / "visited-8x64.npy", np.array(points, np.float64))
        return cell

    monkeypatch.setattr(visited, "in_a_plane", lambda x: x)
    data, corners = Data(None, tmp_path), [[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]]
    small = make("small", [[[0.5, 0.5], [0.51, 0.51], [0.5, 0.6]], [[0.5, 0.5]] * 3])
    large = make("large", [corners, [[0.0, 0.0]] * 4])
    other = make("other", [[[0.0, 0.0], [100.0, 100.0], [200.0, 200.0]]])
    points, shares = visited.coverage(data, {"small": (small, other), "large": (large, other)})
    assert {key: (share * 32**2).tolist() for key, share in shares.items()} == {
        ("small", 0): [2, 1], ("large", 0): [4, 1], ("small", 1): [3], ("large", 1): [3],
    }  # fmt: skip
    assert points["large", 0].tolist() == [*corners, *[[0.0, 0.0]] * 4]
    assert points["small", 0].shape == (6, 2)
