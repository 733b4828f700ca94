"""experiments/exploration_rnd.py: its commands, what it reads from lines, where policies go, and its verdicts."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import Toy

import ppo
import ppo_rnd
from common import envs
from common.actions import Categorical, Discrete
from common.run.arguments import parse
from experiments import exploration_rnd as experiment, grid

SCRIPTS = {"ppo": ppo, "ppo_rnd": ppo_rnd}


def test_the_six_runs_have_equal_steps_and_differ_in_the_script_and_the_environments_alone(tmp_path):
    found = {}
    for (script, size), run in experiment.cells(0).items():
        words = grid.command(run, tmp_path)[2:]
        args = found[script, size] = parse(SCRIPTS[script].Args, "", words)
        assert args.num_updates == run.num_updates and args.num_updates * args.batch_size == 2**21
        assert args.num_updates % experiment.QUARTERS == 0 and args.checkpoint_every * 4 == run.num_updates
        assert run.num_updates % args.log_every == 0
    assert len(found) == 6
    sizes = {"num_envs", "num_minibatches", "checkpoint_every", "log_every", "run_name"}
    for script in SCRIPTS:
        first, *others = (vars(found[script, size]) for size in experiment.SIZES)
        assert all({k for k in first if first[k] != other[k]} <= sizes for other in others)
    for size in experiment.SIZES:
        one, other = vars(found["ppo", size]), vars(found["ppo_rnd", size])
        assert {k for k in one if one[k] != other[k]} == {"run_name", "named"}


def line(step, count, solved):
    return {"global_step": step, "charts/num_episodes": count, "charts/solve_rate": solved}


def test_shares_are_weighted_by_episodes_and_the_first_solved_one_is_found():
    """Two seeds; of the second none ends in the third line, and none is solved before the fourth."""
    lines = [line(10, [4, 2], [0.0, 0.0]), line(20, [1, 4], [1.0, 0.0]), line(30, [3, 0], [0.0, None])]
    lines += [{"global_step": 30, "eval/solve_rate": [1.0, 1.0]}, line(40, [1, 8], [0.0, 0.25])]
    np.testing.assert_allclose(experiment.shares(lines, 0, 40), [1 / 9, 2 / 14])
    np.testing.assert_allclose(experiment.shares(lines, 10, 30), [1 / 4, 0])
    assert np.isnan(experiment.shares(lines, 20, 30)[1])
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
        runs = {(script, size): dict.fromkeys(keys, rows[script]) for script in SCRIPTS for size in experiment.SIZES}
        return [check.outcome for checks in experiment.judge(runs).values() for check in checks]

    nothing = [0.0, 0.01, 0.0, 0.0, 0.02]
    assert outcomes([0.8, 0.9, 0.7, 0.8, 0.9], nothing)[:2] == ["holds", "holds"]
    assert outcomes([0.05, 0.06, 0.05, 0.05, 0.06], nothing)[:2] == ["does not hold", "holds"]
    assert outcomes([0.9, 0.0, 0.0, 0.8, 0.0], nothing)[:2] == ["not enough data"] * 2
    assert outcomes(nothing, nothing)[-2:] == ["not enough data"] * 2  # more environments against fewer
