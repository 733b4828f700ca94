"""experiments/exploration_rnd.py: its commands, what it reads from lines, where policies go, and its verdicts."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import Toy, write_run

import ppo
import ppo_rnd
from common import envs
from common.actions import Categorical, Discrete
from common.run.arguments import parse
from experiments import exploration_rnd as experiment, grid
from experiments.data import Data
from experiments.verdicts import verdict

SCRIPTS = {"ppo": ppo, "ppo_rnd": ppo_rnd}


def test_the_six_runs_have_equal_steps_and_differ_in_the_script_and_the_environments_alone(tmp_path):
    found = {}
    for (script, size, _), run in experiment.cells(experiment.LAPTOP).items():
        words = grid.command(run, tmp_path)[2:]
        args = found[script, size] = parse(SCRIPTS[script].Args, "", words)
        assert args.num_updates == run.num_updates and args.num_updates * args.batch_size == 2**21
        assert args.num_updates % experiment.QUARTERS == 0 and args.checkpoint_every * 4 == run.num_updates
        assert run.num_updates % args.log_every == 0
    assert len(found) == 6
    sizes = {"num_envs", "num_minibatches", "checkpoint_every", "log_every", "run_name"}
    for script in SCRIPTS:
        first, *others = (vars(found[script, size]) for size in experiment.LAPTOP.sizes)
        assert all({k for k in first if first[k] != other[k]} <= sizes for other in others)
    for size in experiment.LAPTOP.sizes:
        one, other = vars(found["ppo", size]), vars(found["ppo_rnd", size])
        assert {k for k in one if one[k] != other[k]} == {"run_name", "named"}


def line(step, count, solved):
    return {"global_step": step, "charts/num_episodes": count, "charts/solve_rate": solved}


def test_shares_are_weighted_by_episodes_and_the_first_solved_one_is_found():
    """Two seeds; of the second none ends in the third line, and none is solved before the fourth."""
    lines = [line(10, [4, 2], [0.0, 0.0]), line(20, [1, 4], [1.0, 0.0]), line(30, [3, 0], [0.0, None])]
    lines += [{"global_step": 30, "eval/solve_rate": [1.0, 1.0]}, line(40, [1, 8], [0.0, 0.25])]
    np.testing.assert_allclose(experiment.of_episodes(lines, 0, 40), [1 / 9, 2 / 14])
    np.testing.assert_allclose(experiment.of_episodes(lines, 10, 30), [1 / 4, 0])
    assert np.isnan(experiment.of_episodes(lines, 20, 30)[1])
    assert experiment.first_steps(lines) == [20, 40]
    assert experiment.first_steps(lines[:3]) == [20, None]


class Agent(NamedTuple):
    position: jax.Array


class Corridor(NamedTuple):
    agent: Agent
    grid: jax.Array
    time: jax.Array


class Corridors(Toy):
    """Action 1 goes one field to the right, from 0 to 6; at 5 the goal is reached and the episode ends."""

    has_success = True

    def reset(self, key):
        return Corridor(Agent(jnp.zeros(2, jnp.int32)), jnp.zeros((2, 7)), jnp.int32(0)), jnp.zeros(1)

    def step(self, key, state, action):
        place = state.agent.position.at[1].add(action[0])
        state = Corridor(Agent(place), state.grid, state.time + 1)
        return state, place[1:].astype(jnp.float32), jnp.float32(0), place[1] == 5, jnp.bool_(False), place[1] == 5


@pytest.mark.parametrize("stop, fields, first, goal", [(2, 3, 1, 0), (9, 6, 1, 1), (0, 1, 0, 0)])
def test_an_episode_counts_its_different_fields_and_what_it_has_reached_until_it_ends(
    monkeypatch, stop, fields, first, goal
):
    """The policy goes on until `stop`. Without a new episode the agent would walk on beyond the goal."""
    monkeypatch.setattr(experiment, "LIMIT", 12)
    reached = lambda inner: jnp.stack([inner.agent.position[:, 1] >= 1, inner.agent.position[:, 1] >= 6])  # noqa: E731
    monkeypatch.setattr(experiment, "stages", reached)
    env = envs.VectorEnv(Corridors(), 3, auto_reset=False)

    def policy(obs):
        return Categorical(jnp.where(obs < stop, jnp.array([-50.0, 50.0]), jnp.array([50.0, -50.0])), (2,))

    assert env.action_space == Discrete((2,))
    found = jax.jit(lambda key: experiment.walked(env, policy, key))(jax.random.key(0))
    assert found == {"fields": fields, "key": first, "door": 0, "goal": goal}


def test_a_verdict_needs_the_margin_and_five_seeds_that_agree():
    def outcomes(rnd, ppo):
        rows = {"ppo_rnd": rnd, "ppo": ppo}
        keys = (experiment.SHARE, experiment.FIELDS)
        runs = {
            (script, size): dict.fromkeys(keys, rows[script]) for script in SCRIPTS for size in experiment.LAPTOP.sizes
        }
        return [check.outcome for checks in experiment.judge(runs).values() for check in checks]

    nothing = [0.0, 0.01, 0.0, 0.0, 0.02]
    assert outcomes([0.8, 0.9, 0.7, 0.8, 0.9], nothing)[:2] == ["holds", "holds"]
    assert outcomes([0.05, 0.06, 0.05, 0.05, 0.06], nothing)[:2] == ["does not hold", "holds"]
    assert outcomes([0.9, 0.0, 0.0, 0.8, 0.0], nothing)[:2] == ["not enough data"] * 2
    assert outcomes(nothing, nothing)[-2:] == ["not enough data"] * 2  # more environments against fewer


def made_up(folder, preset, means):
    """Runs whose second half ends at means[script, size]; all before it is good, and so are lines of few episodes."""
    p, noise = experiment.PRESETS[preset], np.array([-0.02, -0.01, 0.0, 0.01, 0.02])
    for (script, size, _game), cell in experiment.cells(p).items():
        low, high = p.scale(cell)
        for index, run in enumerate(cell.parts or (cell,)):
            each = noise[index] if cell.parts else noise  # a run of one seed logs numbers
            lines = []
            end = means[script, size]
            for part, count, score in ((0.25, 1000, 1.0), (0.5, 1000, 1.0), (0.75, 1, 1.0), (1.0, 999, end)):
                logged = {experiment.COUNT: 0 * each + count, p.performance: low + (high - low) * (score + each)}
                logged = {key: value.tolist() for key, value in logged.items()} | {"outer/update_norm": 1.0}
                places = {"update": round(part * cell.num_updates), "global_step": round(part * p.total_timesteps)}
                lines.append(places | logged)
            write_run(folder, run, lines)
    return Data(p, folder)


@pytest.mark.parametrize("preset", experiment.PRESETS)
@pytest.mark.parametrize(
    "rnd, expected",
    [
        ((0.1, 0.4, 0.8), "holds"),
        ((0.1, 0.4, 0.2), "does not hold"),
        ((0.4, 0.1, 0.8), "does not hold"),
        ((0.1, 0.4, 0.4), "not enough data"),
    ],
)
def test_figure_16_asks_whether_more_environments_help_rnd(tmp_path, preset, rnd, expected):
    """Of ppo.py, which is drawn beside it, nothing is asked."""
    p = experiment.PRESETS[preset]
    means = {(script, size): value for script in SCRIPTS for size, value in zip(p.sizes, rnd, strict=True)}
    data = made_up(tmp_path, preset, means | {("ppo", p.sizes[0]): 1.0})
    picture, checks = experiment.FIGURES["B16"].show(data, experiment.cells(p))
    assert verdict(checks) == expected, "\n".join(map(str, checks))
    steps = np.diff(rnd)
    for check, step in zip(checks, [*steps] * len(p.games), strict=True):
        assert check.estimate == pytest.approx(0.999 * step, abs=1e-9)
    assert [len(lines) for lines in picture.panels.values()] == [3] * 2 * len(p.games)


def test_a_run_that_is_missing_leaves_figure_16_open(tmp_path):
    _, checks = experiment.FIGURES["B16"].show(Data(experiment.LAPTOP, tmp_path), experiment.cells(experiment.LAPTOP))
    assert verdict(checks) == "not enough data"
