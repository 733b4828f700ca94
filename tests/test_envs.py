"""VectorEnv, its wrappers, the gymnax adapter and evaluation, against Python and NumPy."""

from types import SimpleNamespace
from typing import NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import Bandit, Counter, Noise, Toy
from scipy.stats import binomtest, chisquare, kstest

from common import evaluation
from common.actions import Box, Categorical, Discrete
from common.envs import make, make_suite
from common.suites import brax
from common.suites.wrappers import FrameStack, Sticky, TimeLimit
from common.vector import VectorEnv, episode_sums

IDS = [name for name in gymnax.registered_envs if name != "MNISTBandit-bsuite"]  # that one downloads a data set


def play(env, num_steps, seed=0):
    """Random play. -> first obs, the states and the Steps of all steps [T, N, ...]."""

    def run(key):
        reset_key, key = jax.random.split(key)
        state, first = env.reset(reset_key)

        def step(state, key):
            action_key, key = jax.random.split(key)
            state, out = env.step(key, state, env.action_space.sample(action_key, env.num_envs))
            return state, (state, out)

        return first, *jax.lax.scan(step, state, jax.random.split(key, num_steps))[1]

    return jax.device_get(jax.jit(run)(jax.random.key(seed)))


def all_different(*ids):
    rows = np.concatenate([np.reshape(x, (-1, 2)) for x in ids])
    return len(np.unique(rows, axis=0)) == len(rows)


class Echo(Toy):
    """Observes the action that was executed and the number of the step. Terminated after 7 steps."""

    obs_shape, action_space = (2,), Discrete((5, 1000))

    def reset(self, key):
        start = jnp.array([-1, 0])
        return start, start

    def step(self, key, state, action):
        state = jnp.array([action[1], state[1] + 1])
        return state, state, jnp.float32(0), state[1] == 7, jnp.bool_(False), jnp.bool_(False)


def test_sticky_actions_repeat_the_last_executed_action():
    """Replayed in Python: each executed action is the given one or the one executed before it, never an earlier
    episode's; in a share of the steps that a binomial test does not reject; each environment by its own chance."""
    env, steps = VectorEnv(Sticky(Echo(), 0.25), 64), 100

    def run(key):
        state, _ = env.reset(key)
        # A new action in every step, so that a repeated one shows.
        given = lambda time: jnp.stack([jnp.zeros(64, int), jnp.full(64, time)], 1)  # noqa: E731
        step = lambda state, t: env.step(jax.random.fold_in(key, t), state, given(t))  # noqa: E731
        return jax.lax.scan(step, state, jnp.arange(steps))[1].final_obs

    executed, step = np.moveaxis(np.asarray(jax.jit(run)(jax.random.key(0))), -1, 0)  # [T, N]
    held, repeats = np.full(64, -1), np.zeros((steps, 64), bool)
    for t in range(steps):
        repeats[t] = executed[t] != t
        assert (executed[t][repeats[t]] == held[repeats[t]]).all()
        assert not repeats[t][step[t] == 1].any()
        held = executed[t]
    free = step > 1
    assert binomtest(int(repeats[free].sum()), int(free.sum()), 0.25).pvalue > 0.01
    assert len(np.unique(repeats.T, axis=0)) == 64


def test_a_stack_holds_the_last_observations_and_begins_anew_with_each_episode():
    """Replayed in Python, on counters whose observations tell time and episode."""
    env = VectorEnv(FrameStack(Counter(ends=(3, 5, 9), limit=6), 3), 16)
    assert env.obs_shape == (12,) and env.obs_dtype == np.uint32
    first, _, out = play(env, 40)
    last = [[row[:4]] * 3 for row in first]
    np.testing.assert_array_equal(first, [np.concatenate(rows) for rows in last])
    for t in range(40):
        for i in range(16):
            last[i] = [*last[i][1:], out.final_obs[t, i][-4:]]
            np.testing.assert_array_equal(out.final_obs[t, i], np.concatenate(last[i]))
            if out.episode.done[t, i]:
                last[i] = [out.obs[t, i][-4:]] * 3
            np.testing.assert_array_equal(out.obs[t, i], np.concatenate(last[i]))
    assert out.episode.done.sum() > 50


def test_a_time_limit_truncates_what_has_not_ended():
    env = VectorEnv(TimeLimit(Counter(ends=(3, 4, 9), limit=20), 4), 64)
    _, _, out = play(env, 40)
    done, end = out.episode.done, out.final_obs[..., 1]
    assert set(out.episode.length[done & (end == 3)]) == {3} and set(out.episode.length[done & (end > 3)]) == {4}
    np.testing.assert_array_equal(out.terminated, done & (end < 9))  # an end in the last step is an end
    np.testing.assert_array_equal(out.truncated, done & (end == 9))
    assert all(((end == e) & done).sum() > 20 for e in (3, 4, 9))


def test_clipped_rewards_are_learned_from_and_not_reported():
    """Of 0, -1 and -2; those above 0 are in test_every_script.py."""
    out, bare = (play(VectorEnv(Noise(Discrete((4,))), 8, reward_clip=clip), 14)[2] for clip in (0.5, None))
    assert {-2, -1, 0} == set(bare.reward.ravel())
    np.testing.assert_array_equal(out.reward, np.maximum(bare.reward, -0.5))
    np.testing.assert_array_equal(out.episode.total_reward, bare.episode.total_reward)


def test_step_is_replayed_in_python():
    """Ends, both observations, and every statistic of the episodes that ended. No two resets or steps have one key."""
    env = VectorEnv(Counter(ends=(2, 3, 4, 5, 8), limit=5), 24)
    first, states, out = play(env, 40)
    obs, time, episodes, both = first, np.zeros(24, int), [], 0
    for t in range(40):
        time += 1
        end = obs[:, 1]
        np.testing.assert_array_equal(out.final_obs[t, :, 0], time)
        np.testing.assert_array_equal(out.final_obs[t, :, 1:], obs[:, 1:])
        np.testing.assert_array_equal(out.terminated[t], time == end)
        np.testing.assert_array_equal(out.truncated[t], (time == 5) & (end > 5))  # terminated wins
        done = (time == end) | (time == 5)
        both += ((time == end) & (time == 5)).sum()
        np.testing.assert_array_equal(out.episode.done[t], done)
        episodes += [(length, e % 2 == 0 and e <= 5) for length, e in zip(time[done], end[done], strict=True)]
        time[done] = 0
        np.testing.assert_array_equal(out.obs[t, :, 0], time)
        np.testing.assert_array_equal(out.obs[t, ~done], out.final_obs[t, ~done])
        assert not (out.obs[t, done, 2:] == out.final_obs[t, done, 2:]).all(-1).any()
        obs = out.obs[t]
    assert both > 0 and len(episodes) > 100 and out.episode.done.sum(1).max() > env.resets_per_round
    ended = out.episode.done
    assert all_different(first[:, 2:], out.obs[ended][:, 2:], states.inner.noise[~ended])
    metrics = env.episode_metrics(jax.vmap(episode_sums)(out.episode).sum(0))
    lengths, successes = np.array(episodes).T
    expected = {"episodic_return": lengths, "episodic_length": lengths, "solve_rate": successes}
    for name, values in expected.items():
        np.testing.assert_allclose(metrics[f"charts/{name}"], values.mean(), rtol=1e-6)
    assert metrics["charts/num_episodes"] == len(episodes)
    metrics = env.episode_metrics(jnp.zeros(4))  # where none ended
    assert metrics.pop("charts/num_episodes") == 0 and len(metrics) == 3
    assert all(np.isnan(value) for value in metrics.values())


@pytest.mark.parametrize("stagger", [0, 40])
def test_staggered_environments_start_at_evenly_spread_points_of_their_episodes(stagger):
    """Episodes of 30 steps: who has played 30 has started anew, and who has played more is that much further."""
    env = VectorEnv(Counter(ends=(30,), limit=99), 20)
    state, obs = jax.jit(env.reset, static_argnums=1)(jax.random.key(0), stagger)
    played = np.floor(np.arange(20) * (stagger + 1) / 20)
    np.testing.assert_array_equal(np.sort(obs[:, 0]), np.sort(played % 30))
    np.testing.assert_array_equal(state.inner.time, obs[:, 0])
    np.testing.assert_array_equal(state.length, obs[:, 0])
    np.testing.assert_array_equal(state.total_reward, obs[:, 0])
    np.testing.assert_array_equal(state.inner.id, obs[:, 2:])
    # No step had a key that a reset had: both draw their bits in the same way.
    assert all_different(state.inner.id, *([state.inner.noise[obs[:, 0] > 0]] if stagger else []))


def test_random_actions_fill_their_space():
    """Also one without bounds, beyond 1 or -1, and with bounds that are none."""
    inf = np.inf
    bounds = [(-3, 1), (-inf, inf), (2, inf), (-inf, -3), (-3.4e38, 3.4e38)]
    played = [(-3, 1), (-1, 1), (2, 4), (-5, -3), (-1, 1)]
    chosen, drawn = (s.sample(jax.random.key(0), 3000) for s in (Discrete((2, 3)), Box(*np.float32(bounds).T)))
    for column, number in zip(chosen.T, (2, 3), strict=True):
        assert chisquare(np.bincount(column, minlength=number)).pvalue > 1e-4
    for column, (low, high) in zip(drawn.T, played, strict=True):
        assert kstest(column, "uniform", (low, high - low)).pvalue > 1e-4


def scores(suite, num_eval_episodes, given_up=lambda: False, seed=0, num_seeds=1, logits=(0.0, 0.0), greedy=False):
    """Of a policy that does not look."""
    args = SimpleNamespace(
        capture_video=False, num_seeds=num_seeds, seed=seed, eval_deterministic=greedy,
        num_eval_episodes=num_eval_episodes,
    )  # fmt: skip
    policy = lambda learner, obs: Categorical(learner + jnp.zeros((len(obs), len(logits))), (len(logits),))  # noqa: E731
    player = evaluation.Player(args, suite, policy)
    learner = jnp.array(logits)
    return player.scores(jnp.stack([learner] * num_seeds) if num_seeds > 1 else learner, 1, given_up)


@pytest.mark.parametrize("deterministic, expected", [(False, 0.02 + 0.15 + 0.5), (True, 1.0)])
def test_an_evaluation_samples_its_actions_unless_it_is_told_not_to(deterministic, expected):
    """Rewards of 0.1, 0.5 and 1 with probabilities of 0.2, 0.3 and 0.5."""
    logits = tuple(np.log([0.2, 0.3, 0.5]))
    mean = scores(Bandit(), 4000, logits=logits, greedy=deterministic)["eval/episodic_return"]
    assert abs(mean - expected) < (1e-5 if deterministic else 5 * 0.37 / 4000**0.5)


def test_each_of_several_seeds_plays_its_own_episodes_those_that_it_plays_alone():
    together = scores(Counter(tuple(range(1, 30)), 99), 8, seed=3, num_seeds=3)["eval/episodic_length"]
    alone = [float(scores(Counter(tuple(range(1, 30)), 99), 8, seed=i)["eval/episodic_length"]) for i in (3, 4, 5)]
    assert together.tolist() == alone and len(set(alone)) == 3


def test_a_film_shows_an_episode_up_to_its_last_state():
    suite = Counter((9,), limit=99, levels=(1, 3))
    suite.frames = lambda states: [int(state.time) for state in states]
    act = lambda obs, key, memory: (jnp.zeros((len(obs), 1), jnp.int32), memory)  # noqa: E731
    assert evaluation.record(suite, [0, 1], act, jax.random.key(0)) == [[0, 1], [0, 1, 2, 3]]


def test_evaluation_covers_all_levels_equally():
    """Levels of 2, 3 and 7 steps; whatever follows them, of 1 step, does not count."""
    toy = Counter(ends=(1,), limit=99, levels=(2, 3, 7))
    for number in (1, 4):
        metrics = scores(toy, number)
        np.testing.assert_allclose(metrics["eval/episodic_return"], 4, rtol=1e-6)
        np.testing.assert_allclose(metrics["eval/episodic_length"], 4, rtol=1e-6)
        np.testing.assert_allclose(metrics["eval/solve_rate"], 1 / 3, rtol=1e-6)


def test_an_episode_that_never_ends_counts_as_it_is_and_is_told(monkeypatch, capsys):
    """Half of the episodes end after 2 steps, in success; the others never do."""
    monkeypatch.setattr(evaluation, "LONGEST", 300)
    metrics = scores(Counter((2, 10**9), 10**9, levels=(2, 10**9)), 6)
    longest = 3 * evaluation.PIECE  # the first whole piece from 300 on
    assert metrics["eval/episodic_length"] == metrics["eval/episodic_return"] == (2 + longest) / 2
    assert metrics["eval/solve_rate"] == 0.5
    said = f"warning: 3 of 6 episodes of the evaluation had not ended after {longest} steps, and count as they were"
    assert said in capsys.readouterr().err
    scores(Counter((300,), 10**9), 6)
    assert not capsys.readouterr().err


def test_an_evaluation_can_be_given_up_between_its_pieces():
    asked = iter([False, False, True])
    assert scores(Counter((10**9,), 10**9), 3, given_up=lambda: next(asked)) is None
    assert not [*asked]


@pytest.mark.parametrize("env_id", IDS)
def test_gymnax_states_and_observations_keep_their_types(env_id):
    """A compiled update takes back what it has given: the same types, none of them weak."""
    env, key = make_suite(env_id, 1), jax.random.key(0)
    kinds = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), tree)  # noqa: E731
    state, obs = jax.eval_shape(env.reset, key)
    action = jax.eval_shape(lambda: env.action_space.sample(key, 1)[0])
    after, seen, *out = jax.eval_shape(env.step, key, state, action)
    assert kinds(after) == kinds(state) and not any(x.weak_type for x in jax.tree.leaves(state))
    assert [(x.shape, x.dtype) for x in (obs, seen)] == [(env.obs_shape, env.obs_dtype)] * 2
    assert [(x.shape, x.dtype) for x in out] == [((), np.float32)] + [((), bool)] * 3


def test_cartpole_moves_as_gymnax_moves_it():
    env, (native, params) = make("CartPole-v1", 1), gymnax.make("CartPole-v1")
    state, _ = env.reset(jax.random.key(3))
    theirs = jax.tree.map(lambda x: x[0], state.inner)
    step, lengths = jax.jit(env.step), []
    for t in range(60):
        action = jnp.int32(t % 3 == 0)
        state, out = step(jax.random.key(t), state, action[None, None])
        _, theirs, reward, terminated, truncated, info = native.step(jax.random.key(t), theirs, action, params)
        np.testing.assert_allclose(out.final_obs[0], info["final_observation"], rtol=1e-4, atol=1e-6)
        assert (out.reward[0], out.terminated[0], out.truncated[0]) == (reward, terminated, truncated)
        if terminated:
            lengths.append(int(out.episode.length[0]))
            theirs = jax.tree.map(lambda x: x[0], state.inner)
            assert abs(out.obs).max() <= 0.05 and (out.obs != out.final_obs).all()  # a fresh start
    assert len(lengths) > 1 and sum(lengths) <= 60


def test_pendulum_is_cut_after_200_steps_and_not_ended():
    _, _, out = play(make("Pendulum-v1", 2), 401)
    assert not out.terminated.any()
    np.testing.assert_array_equal(np.flatnonzero(out.truncated[:, 0]), [199, 399])


def test_minatar_frames_show_the_state_through_all_wrappers():
    env = make("Breakout-MinAtar", 1, sticky_actions=0.5, frame_stack=2, time_limit=9)
    state, obs = env.reset(jax.random.key(0))
    (frame,) = env.suite.frames([jax.tree.map(lambda x: x[0], state.inner)])
    assert frame.shape == (200, 200, 3) and frame.dtype == np.uint8
    background = frame[::20, ::20].astype(int).sum(-1).min()
    np.testing.assert_array_equal(frame[::20, ::20].astype(int).sum(-1) > background, obs[0].any(-1))
    assert obs.shape == (1, 10, 10, 8) and obs.dtype == env.obs_dtype == np.bool_


class Rising(NamedTuple):
    """In brax's style: a height that rises by one a step, and is no number from `top` on."""

    obs: jax.Array
    reward: jax.Array
    done: jax.Array

    def reset(self, key):
        return Rising(jnp.zeros(2), jnp.float32(0), jnp.float32(0))

    def step(self, state, action):
        height = state.obs[0] + 1
        broken = height >= 3
        obs = jnp.array([jnp.where(broken, jnp.nan, height), 7.0])
        return Rising(obs, jnp.where(broken, jnp.inf, height), jnp.float32(0))

    @property
    def action_size(self):
        return 1


def test_a_simulation_that_explodes_ends_its_episode_and_nothing_else():
    env = VectorEnv(brax.Brax(Rising(None, None, None), "rising"), 2)
    _, _, outs = play(env, 7)
    np.testing.assert_array_equal(outs.reward, np.tile([[1], [2], [0], [1], [2], [0], [1]], 2))
    np.testing.assert_array_equal(outs.terminated, np.tile([[0], [0], [1], [0], [0], [1], [0]], 2))
    np.testing.assert_array_equal(outs.final_obs[:3, 0], [[1, 7], [2, 7], [0, 7]])
    assert outs.episode.total_reward[2].tolist() == [3, 3] and not outs.truncated.any()
