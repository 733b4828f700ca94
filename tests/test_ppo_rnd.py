"""What ppo_rnd.py adds to ppo.py: which observation is rewarded and learned from, the intrinsic reward's scale, returns
that no episode ends, and that the predictor leaves the policy alone.

Where the two algorithms coincide, ppo.py, which has tests of its own, is the answer.
"""

from dataclasses import asdict, replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import Counter, Noise, Training, differ, leaves_close, on_devices, refusal, same, watched
from jax.flatten_util import ravel_pytree
from test_ppo import mean_of_n_step_returns

import ppo
import ppo_rnd
from common import statistics
from common.actions import Discrete

pytestmark = pytest.mark.slow  # to compile
ARGS = ppo_rnd.Args(
    num_envs=8, num_steps=8, total_timesteps=64 * 4, minibatch_size=16, hidden_sizes=(8,), num_devices=1,
    learning_rate=1e-2, embedding_size=4, obs_warmup_steps=0, activation="tanh", layer_norm=False,
)  # fmt: skip
NOISE = Noise(Discrete((3,)))


def discounted(rewards, gamma):
    """The discounted sum of the rewards [T] so far, at each time."""
    return [sum(gamma ** (t - s) * rewards[s] for s in range(t + 1)) for t in range(len(rewards))]


def normalised_rewards(rollouts):
    """-> each rollout's novelty [T, N] over the deviation of all returns so far, the returns at the end [chunk][n]."""
    streams, returns, found, ends = [[[] for _ in range(4)] for _ in range(2)], [], [], [[0] * 4 for _ in range(2)]
    for i, (t, _) in enumerate(rollouts):
        chunk = i % 2
        for n in range(4):
            streams[chunk][n] += list(t.novelty[:, n].astype(np.float64))
            course = discounted(streams[chunk][n], ARGS.int_gamma)
            returns += course[-8:]
            ends[chunk][n] = course[-1]
        found.append(t.novelty / np.std(returns))
    return found, ends


def test_two_rewards_have_advantages_of_their_own_which_are_added_with_their_weights(monkeypatch):
    """Intrinsic rewards are divided by the deviation of their discounted sums, in a double loop over time from the
    first step: over episodes, chunks and updates. So go their returns; the extrinsic ones end with the episode."""
    args = replace(ARGS, num_rollout_chunks=2, num_minibatches=4, minibatch_size=None)
    rollouts = watched(monkeypatch, ppo_rnd, "rollout", lambda out, *_: out[1:3])  # of each chunk
    batches = watched(monkeypatch, ppo_rnd, "optimise", lambda _, *given: given[3])
    states, *_ = Training(ppo_rnd, NOISE, args).run(2)
    jax.effects_barrier()
    assert len(rollouts) == len(batches) == 4
    assert all((t.terminated | t.truncated).any() for t, _ in rollouts)
    rewards, ends = normalised_rewards(rollouts)
    assert max(reward.max() for reward in rewards) < 10
    np.testing.assert_allclose(states[-1].environments.int_return, ends, rtol=1e-4)
    for (t, last_value), batch, reward in zip(rollouts, batches, rewards, strict=True):
        endless = np.zeros_like(t.terminated)
        stream = t._replace(reward=reward, value=t.value[..., 1], terminated=endless, truncated=endless)
        intrinsic = mean_of_n_step_returns(stream, last_value[:, 1], 0.99, 0.95)
        extrinsic = t._replace(value=t.value[..., 0], final_value=t.final_value[..., 0])
        extrinsic = mean_of_n_step_returns(extrinsic, last_value[:, 0], 0.999, 0.95)
        close = lambda x, y, atol: np.testing.assert_allclose(x.reshape(8, 4), y, rtol=1e-3, atol=atol)  # noqa: E731
        close(batch.target[:, 1], intrinsic + t.value[..., 1], 1e-4)
        close(batch.target[:, 0], extrinsic + t.value[..., 0], 1e-3)
        close(batch.advantage, 2 * extrinsic + intrinsic, 1e-3)


def test_the_observation_that_an_action_led_to_is_rewarded_and_learned_from(monkeypatch):
    """The error of the stub tells which observation of a Counter it is of. At an end it is that before the reset."""
    learned, rolled = [], watched(monkeypatch, ppo_rnd, "rollout", lambda out, *_: (out[1].obs, out[1].novelty))

    def stub(args, rnd, predictor, obs):
        if obs.shape[0] == args.minibatch_size:  # in the loss; a step has fewer
            jax.debug.callback(lambda obs: learned.append(np.asarray(obs)), obs)
        return 1000.0 * obs[:, 2].astype(jnp.float32) % 65536 + obs[:, 0]

    monkeypatch.setattr(ppo_rnd, "prediction_error", stub)
    args = replace(ARGS, num_rollout_chunks=2, update_epochs=1, update_proportion=1.0)
    Training(ppo_rnd, Counter(ends=(2, 3, 4, 5), limit=4), args).run(1)
    jax.effects_barrier()
    obs = np.concatenate([x for x, _ in rolled], axis=1).reshape(-1, 4)
    novelty = np.concatenate([x for _, x in rolled], axis=1).reshape(-1)
    time, end = obs[:, 0] + 1, obs[:, 1]
    assert ((time == end) | (time == 4)).sum() > 8  # ends of episodes
    expected = np.concatenate([time[:, None], obs[:, 1:]], axis=1).astype(np.uint32)
    np.testing.assert_allclose(novelty, 1000.0 * expected[:, 2].astype(np.float32) % 65536 + time)
    assert sorted(map(tuple, np.concatenate(learned))) == sorted(map(tuple, expected))


@pytest.mark.parametrize("share, rows", [(0.25, 4), (0.0, 1)])
def test_the_predictor_learns_from_its_share_of_each_minibatch(monkeypatch, share, rows):
    """Other rows in each epoch: minibatches are shuffled."""
    batch, learner, network = inputs()
    seen = watched(monkeypatch, ppo_rnd, "prediction_error", lambda _, *given: given[3])
    optimise(replace(ARGS, update_proportion=share, update_epochs=4), network, learner, batch)
    jax.effects_barrier()
    assert [len(obs) for obs in seen] == [rows] * 4 * 4
    epochs = [{tuple(row) for obs in seen[i : i + 4] for row in obs} for i in range(0, 16, 4)]
    assert all(len(epoch) == 4 * rows for epoch in epochs) and epochs[0] != epochs[1]
    assert set.union(*epochs) <= {tuple(row) for row in np.asarray(batch.next_obs)}


@cache
def inputs():
    """-> a batch of whatever, a fresh learner, the network."""
    rng, network = np.random.default_rng(0), ppo_rnd.ActorCritic(ARGS, Discrete((3,)))
    obs, other = rng.normal(size=(2, 64, 3)).astype(np.float32)
    params = jax.jit(network.init)(jax.random.key(0), obs)
    dist, value = network.apply(params, obs)
    action = dist.sample(jax.random.key(1))
    advantage, error = rng.normal(1, 2, (2, 64)).astype(np.float32)
    log_prob = dist.log_prob(action) + 0.1 * error
    batch = ppo_rnd.Batch(obs, other, action, log_prob, value, advantage, value + error[:, None])
    parts = (ppo_rnd.Embedding(ARGS), ppo_rnd.Embedding(ARGS, extra_layers=2))
    networks = (jax.jit(part.init)(jax.random.key(i), other) for i, part in enumerate(parts))
    rnd = ppo_rnd.Distillation(*networks, statistics.initial_stats((3,)), statistics.initial_stats(()))
    opt_state = ppo_rnd.ADAM.init(ravel_pytree((params, rnd.predictor))[0])
    return batch, ppo_rnd.Learner(params, opt_state, rnd, None, None), network


def optimise(args, network, learner, batch):
    rest = jax.random.key(0), 0.01, args.ent_coef
    run = lambda learner, batch: ppo_rnd.optimise(args, network, learner, batch, *rest)  # noqa: E731
    return on_devices(run)(learner, batch)


def error_of(rnd, obs):
    return ppo_rnd.prediction_error(ARGS, rnd, rnd.predictor, np.asarray(obs, np.float32))


def test_the_error_falls_where_the_predictor_has_been_and_not_elsewhere():
    rng = np.random.default_rng(1)
    here, there = (np.float32(place) + 0.2 * rng.normal(size=(64, 3)).astype(np.float32) for place in (-1.5, 1.5))
    batch, learner, network = inputs()
    batch = batch._replace(next_obs=here)
    args = replace(ARGS, update_epochs=50, update_proportion=1.0)
    after, metrics = optimise(args, network, learner, batch)
    error = lambda obs, learner: error_of(learner.rnd, obs).mean()  # noqa: E731
    assert error(here, after) < 0.02 * error(here, learner) and error(there, after) > 0.5 * error(there, learner)
    assert error(here, after) < metrics["rnd/loss"] < error(here, learner)
    same(after.rnd.target, learner.rnd.target)


def test_observations_are_normalised_by_their_own_statistics_and_clipped_at_5():
    _, learner, _ = inputs()
    mean, std = np.float32([3, -2, 50]), np.float32([2, 0.5, 30])
    stats = statistics.RunningStats(mean, std**2, np.float32(10))
    shifted = learner.rnd._replace(obs_stats=stats)
    z = np.random.default_rng(0).normal(size=(9, 3))
    np.testing.assert_allclose(error_of(shifted, mean + std * z), error_of(learner.rnd, z), rtol=1e-3)
    at, beyond, inside = (error_of(shifted, mean + std * np.full((1, 3), z)) for z in (5.0, 9.0, 4.5))
    np.testing.assert_allclose(at, beyond, rtol=1e-4)
    assert abs(at - inside) > 1e-3 * at


def test_the_predictor_and_the_intrinsic_reward_leave_the_policy_to_ppo():
    """With no weight on the intrinsic advantage, and critics that stay as they were made: the same policy as ppo.py's
    after three updates, though the predictor has learned. The gradients' norm is above its bound."""
    flags = dict(vf_coef=0.0, gamma=0.9, norm_obs=True, norm_reward=True, num_rollout_chunks=2, max_grad_norm=0.01)
    args = replace(ARGS, int_coef=0.0, ext_coef=1.0, **flags)
    own = set(asdict(args)) - set(asdict(ppo.Args()))
    theirs = ppo.Args(**{name: value for name, value in asdict(args).items() if name not in own})
    assert own == {"int_gamma", "ext_coef", "int_coef", "update_proportion", "embedding_size", "obs_warmup_steps"}
    states, metrics, _ = Training(ppo_rnd, NOISE, args).run(3)
    expected, expected_metrics, _ = Training(ppo, NOISE, theirs).run(3)
    assert min(row["outer/grad_norm"] for row in metrics) > 0.01
    ours = states[-1].learner
    params = {"params": {k: v for k, v in ours.params["params"].items() if k != "critic_int"}}
    leaves_close(params, expected[-1].learner.params, rtol=1e-4, atol=1e-6)
    leaves_close(ours.obs_stats, expected[-1].learner.obs_stats, rtol=1e-5)
    leaves_close(ours.return_stats, expected[-1].learner.return_stats, rtol=1e-5)
    for key in ("outer/kl", "outer/own_gain", "losses/entropy", "losses/policy_loss", "charts/num_episodes"):
        np.testing.assert_allclose([row[key] for row in metrics], [row[key] for row in expected_metrics], rtol=1e-3)
    assert differ(ours.params, states[0].learner.params)
    assert differ(ours.rnd.predictor, states[0].learner.rnd.predictor)
    same(ours.rnd.target, states[0].learner.rnd.target)


def test_an_intrinsic_return_that_never_ends_is_refused():
    assert "--int-gamma 1.0: must be less than 1" in refusal(ppo_rnd.Args, int_gamma=1.0)


def test_random_play_before_training_gives_the_first_statistics():
    """Counters of 50 steps have then shown the times 1 to 5, and go on from there."""
    args = replace(
        ARGS, obs_warmup_steps=5, num_devices=2, num_rollout_chunks=2, num_envs=16, norm_obs=True,
        minibatch_size=32, learning_rate=1e-30,
    )  # fmt: skip
    training = Training(ppo_rnd, Counter(ends=(50,), limit=60), args)
    state = training.init(training.keys)
    stats = state.learner.rnd.obs_stats
    assert stats.count == 5 * 16 and (state.environments.obs[..., 0] == 5).all()
    np.testing.assert_allclose(stats.mean[:2], [3, 50], rtol=1e-5)
    np.testing.assert_allclose(stats.var[:2], [2, 0], atol=1e-4)
    assert state.learner.obs_stats.count == 0 and len(np.unique(state.environments.obs[..., 2])) == 16
    learner = training.step(state)[0].learner
    assert learner.rnd.obs_stats.count == 13 * 16 and learner.rnd.return_stats.count == 8 * 16
    np.testing.assert_allclose(learner.rnd.obs_stats.mean[0], 7, rtol=1e-5)  # of the times 1 to 13
    np.testing.assert_allclose(learner.obs_stats.mean[0], 8.5, rtol=1e-5)  # what was acted on: the times 5 to 12


def test_a_predictor_that_is_not_finite_is_noticed_in_its_own_update(monkeypatch):
    optimise = ppo_rnd.optimise

    def broken(*args):
        learner, metrics = optimise(*args)
        predictor = jax.tree.map(lambda x: x.at[(0,) * x.ndim].set(jnp.nan), learner.rnd.predictor)
        return learner._replace(rnd=learner.rnd._replace(predictor=predictor)), metrics

    monkeypatch.setattr(ppo_rnd, "optimise", broken)
    _, (metrics,), _ = Training(ppo_rnd, NOISE, ARGS).run(1)
    assert not metrics["finite"] and np.isfinite(metrics["outer/update_norm"])
