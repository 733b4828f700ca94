"""What ppo_rnd.py adds to ppo.py: which observation is rewarded and learned from, the intrinsic reward's scale, returns
that no episode ends, and that the predictor leaves the policy alone.

Where the two algorithms coincide, ppo.py, which has tests of its own, is the answer.
"""

import json
from dataclasses import asdict, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import Counter, Noise, on_devices
from jax.sharding import PartitionSpec as P
from test_init_from import CARTPOLE, call, learner_at, lines_of, resumed
from test_ppo import SPACES, differ, drawn, leaves_close, losses_by_loop, mean_of_n_step_returns, same

import ppo
import ppo_rnd
from common import envs, statistics
from common.actions import Categorical, Discrete

ARGS = ppo_rnd.Args(
    num_envs=8, num_steps=8, total_timesteps=64 * 4, minibatch_size=16, hidden_sizes=(8,), num_devices=1,
    learning_rate=1e-2, embedding_size=4, obs_warmup_steps=0,
)  # fmt: skip
NOISE = Noise(Discrete((3,)))


class Training:
    """A script on a toy, update by update."""

    def __init__(self, toy, args, script=ppo_rnd):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(envs, "make", lambda env_id, num_envs, *_, **__: envs.VectorEnv(toy, num_envs))
            self.args, self.env, self.network, init, step, _, self.keys = script.build(args)
        self.init, self.step = jax.jit(init), jax.jit(step)

    def run(self, num_updates):
        """-> the states after 0, 1, ... updates, the metrics of each update."""
        states, metrics = [self.init(self.keys)], []
        for _ in range(num_updates):
            state, row, _ = self.step(states[-1])
            states.append(state)
            metrics.append(jax.device_get(row))
        return states, metrics


class Recorded:
    """Two updates of two chunks on Noise, whose episodes end at about every fifth step in either way: what each chunk's
    rollout gave and what the inner loop got, in order."""

    def __init__(self, change=lambda state: state, **flags):
        self.rollouts, self.batches, rollout, optimise = [], [], ppo_rnd.rollout, ppo_rnd.optimise

        def write(into, value):
            jax.debug.callback(lambda x: into.append(jax.tree.map(np.asarray, x)), value, ordered=True)

        def spy_rollout(*given):
            out = rollout(*given)
            write(self.rollouts, (out[1], out[2]))
            return out

        def spy_optimise(args, network, learner, batch, *given):
            write(self.batches, batch)
            return optimise(args, network, learner, batch, *given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ppo_rnd, "rollout", spy_rollout)
            patch.setattr(ppo_rnd, "optimise", spy_optimise)
            self.args = replace(ARGS, num_rollout_chunks=2, num_minibatches=4, minibatch_size=None, **flags)
            training = Training(NOISE, self.args)
            self.states = [change(training.init(training.keys))]
            for _ in range(2):
                self.states.append(training.step(self.states[-1])[0])
            jax.effects_barrier()
        assert len(self.rollouts) == len(self.batches) == 4


@pytest.fixture(scope="module")
def recorded():
    return Recorded()


# The intrinsic reward


def discounted(rewards, gamma):
    """The discounted sum of the rewards [T] so far, at each time."""
    return [sum(gamma ** (t - s) * rewards[s] for s in range(t + 1)) for t in range(len(rewards))]


def normalised_rewards(recorded):
    """Each chunk's rollouts' novelty [T, N], divided by the standard deviation of all returns so far. -> that, and the
    returns at the end [chunk][n]."""
    streams, returns, found, ends = [[[] for _ in range(4)] for _ in range(2)], [], [], [[0] * 4 for _ in range(2)]
    for i, (t, _) in enumerate(recorded.rollouts):
        chunk = i % 2
        for n in range(4):
            streams[chunk][n] += list(t.novelty[:, n].astype(np.float64))
            course = discounted(streams[chunk][n], recorded.args.int_gamma)
            returns += course[-8:]
            ends[chunk][n] = course[-1]
        found.append(t.novelty / np.std(returns))
    return found, ends


def test_intrinsic_rewards_are_divided_by_the_std_of_their_discounted_sums_over_time(recorded):
    """By a double loop over the time of each environment, from the run's first step and over the ends of episodes.
    Chunks and updates go on with the returns and the statistics."""
    assert all((t.terminated | t.truncated).any() for t, _ in recorded.rollouts)
    expected, ends = normalised_rewards(recorded)
    assert max(reward.max() for reward in expected) < 10
    np.testing.assert_allclose(recorded.states[-1].environments.int_return, ends, rtol=1e-4)
    for (t, last_value), batch, reward in zip(recorded.rollouts, recorded.batches, expected, strict=True):
        endless = np.zeros_like(t.terminated)
        stream = t._replace(reward=reward, value=t.value[..., 1], terminated=endless, truncated=endless)
        advantage = mean_of_n_step_returns(stream, last_value[:, 1], 0.99, 0.95)
        np.testing.assert_allclose(batch.target[:, 1].reshape(8, 4), advantage + t.value[..., 1], rtol=1e-3, atol=1e-4)


def test_the_two_advantages_end_with_the_episode_or_do_not_and_are_added_with_their_weights(recorded):
    rewards, _ = normalised_rewards(recorded)
    for (t, last_value), batch, reward in zip(recorded.rollouts, recorded.batches, rewards, strict=True):
        endless = np.zeros_like(t.terminated)
        stream = t._replace(reward=reward, value=t.value[..., 1], terminated=endless, truncated=endless)
        intrinsic = mean_of_n_step_returns(stream, last_value[:, 1], 0.99, 0.95)
        ends = t._replace(value=t.value[..., 0], final_value=t.final_value[..., 0])
        extrinsic = mean_of_n_step_returns(ends, last_value[:, 0], 0.999, 0.95)
        np.testing.assert_allclose(batch.advantage.reshape(8, 4), 2 * extrinsic + intrinsic, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(batch.target[:, 0].reshape(8, 4), extrinsic + t.value[..., 0], rtol=1e-3, atol=1e-3)


def test_a_constant_extrinsic_critic_does_not_move_the_intrinsic_targets(recorded):
    """The first update's rollouts are the same; the critic says 7 more everywhere."""

    def raised(state):
        params = jax.tree.map(lambda x: x, state.learner.params)
        params["params"]["critic"]["bias"] += 7.0
        return state._replace(learner=state.learner._replace(params=params))

    other = Recorded(raised)
    for before, after in zip(recorded.batches[:1], other.batches[:1], strict=True):
        np.testing.assert_array_equal(after.next_obs, before.next_obs)
        np.testing.assert_allclose(after.value - before.value, np.tile(np.float32([7, 0]), (32, 1)), atol=1e-5)
        np.testing.assert_array_equal(after.target[:, 1], before.target[:, 1])
        assert abs(after.target[:, 0] - before.target[:, 0]).max() > 1


@pytest.mark.parametrize("chunks", [1, 2])
def test_the_observation_that_an_action_led_to_is_rewarded_and_learned_from(monkeypatch, chunks):
    """Counters show their time and their id. The error of the stub tells which observation it is of. Where an episode
    ends, it is the observation before the reset."""
    learned, rolled, rollout = [], [], ppo_rnd.rollout

    def spy(*given):
        out = rollout(*given)
        jax.debug.callback(lambda *x: rolled.append(jax.tree.map(np.asarray, x)), out[1].obs, out[1].novelty)
        return out

    def stub(args, rnd, predictor, obs):
        if obs.shape[0] == args.minibatch_size:  # in the loss; a step has fewer
            jax.debug.callback(lambda obs: learned.append(np.asarray(obs)), obs)
        return 1000.0 * obs[:, 2].astype(jnp.float32) % 65536 + obs[:, 0]

    monkeypatch.setattr(ppo_rnd, "prediction_error", stub)
    monkeypatch.setattr(ppo_rnd, "rollout", spy)
    args = replace(ARGS, num_rollout_chunks=chunks, update_epochs=1, update_proportion=1.0)
    Training(Counter(ends=(2, 3, 4, 5), limit=4), args).run(1)
    jax.effects_barrier()
    obs = np.concatenate([x for x, _ in rolled], axis=1).reshape(-1, 4)
    novelty = np.concatenate([x for _, x in rolled], axis=1).reshape(-1)
    time, end = obs[:, 0] + 1, obs[:, 1]
    assert ((time == end) | (time == 4)).sum() > 8  # ends of episodes
    expected = np.concatenate([time[:, None], obs[:, 1:]], axis=1).astype(np.uint32)
    np.testing.assert_allclose(novelty, 1000.0 * expected[:, 2].astype(np.float32) % 65536 + time)
    assert sorted(map(tuple, np.concatenate(learned))) == sorted(map(tuple, expected))


@pytest.mark.parametrize("share, rows", [(0.25, 4), (1.0, 16), (0.0, 1)])
def test_the_predictor_learns_from_its_share_of_each_minibatch(monkeypatch, share, rows):
    """Other rows in each epoch: minibatches are shuffled."""
    seen, error = [], ppo_rnd.prediction_error

    def spy(args, rnd, predictor, obs):
        jax.debug.callback(lambda obs: seen.append(np.asarray(obs)), obs, ordered=True)
        return error(args, rnd, predictor, obs)

    batch, learner, network = inputs(ARGS)
    monkeypatch.setattr(ppo_rnd, "prediction_error", spy)
    optimise(ARGS, network, learner, batch, update_proportion=share)
    jax.effects_barrier()
    assert [len(obs) for obs in seen] == [rows] * 4 * 4
    epochs = [{tuple(row) for obs in seen[i : i + 4] for row in obs} for i in range(0, 16, 4)]
    assert all(len(epoch) == 4 * rows for epoch in epochs) and (share == 1.0 or epochs[0] != epochs[1])
    assert set.union(*epochs) <= {tuple(row) for row in np.asarray(batch.next_obs)}


@pytest.mark.parametrize("clip_vloss", [True, False])
def test_the_loss_is_the_mean_over_transitions_of_numpys_with_both_critics(clip_vloss):
    args = replace(ARGS, clip_eps=0.2, clip_vloss=clip_vloss, vf_coef=0.7, ent_coef=0.3)
    transitions = drawn(critics=2)
    logits, log_prob, action, advantage, value, old_value, target = transitions
    batch = ppo_rnd.Batch(None, None, action[:, None], log_prob, old_value, advantage, target)
    loss, parts = ppo_rnd.ppo_loss(args, lambda *_: (Categorical(logits, (2,)), value), {}, batch)
    expected, expected_parts, (of_intrinsic,) = losses_by_loop(args, *transitions)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    leaves_close(parts, expected_parts | {"rnd/value_loss": of_intrinsic}, rtol=1e-4)
    assert 0.2 < parts["losses/clipfrac"] < 0.8


# The predictor


def inputs(args, size=64, next_obs=None):
    """-> a batch of whatever, a fresh learner, the network."""
    rng, network = np.random.default_rng(0), ppo_rnd.ActorCritic(args, SPACES["discrete"])
    obs, other = rng.normal(size=(2, size, 3)).astype(np.float32)
    params = network.init(jax.random.key(0), obs)
    dist, value = network.apply(params, obs)
    action = dist.sample(jax.random.key(1))
    advantage, error = rng.normal(1, 2, (2, size)).astype(np.float32)
    next_obs = other if next_obs is None else next_obs
    log_prob = dist.log_prob(action) + 0.1 * error
    batch = ppo_rnd.Batch(obs, next_obs, action, log_prob, value, advantage, value + error[:, None])
    parts = (ppo_rnd.Embedding(args), ppo_rnd.Embedding(args, extra_layers=2))
    networks = (part.init(jax.random.key(i), other) for i, part in enumerate(parts))
    rnd = ppo_rnd.Distillation(*networks, statistics.initial_stats((3,)), statistics.initial_stats(()))
    opt_state = ppo_rnd.ADAM.init((params, rnd.predictor))
    return batch, ppo_rnd.Learner(params, opt_state, rnd, None, None), network


def optimise(args, network, learner, batch, number=1, **flags):
    args = replace(args, **flags)
    run = lambda learner, batch: ppo_rnd.optimise(args, network, learner, batch, jax.random.key(0), 0.01)  # noqa: E731
    return on_devices(run, number, (P(), P("device")))(learner, batch)


def test_the_error_falls_where_the_predictor_has_been_and_not_elsewhere():
    rng = np.random.default_rng(1)
    here, there = (np.float32(place) + 0.2 * rng.normal(size=(64, 3)).astype(np.float32) for place in (-1.5, 1.5))
    batch, learner, network = inputs(ARGS, next_obs=here)
    args = replace(ARGS, update_epochs=50, update_proportion=1.0)
    after, metrics = optimise(args, network, learner, batch)
    error = lambda obs, learner: ppo_rnd.prediction_error(  # noqa: E731
        ARGS, learner.rnd, learner.rnd.predictor, obs
    ).mean()
    assert error(here, after) < 0.02 * error(here, learner) and error(there, after) > 0.5 * error(there, learner)
    assert error(here, after) < metrics["rnd/loss"] < error(here, learner)
    same(after.rnd.target, learner.rnd.target)


def test_observations_are_normalised_by_their_own_statistics_and_clipped_at_5():
    _, learner, _ = inputs(ARGS)
    mean, std = np.float32([3, -2, 50]), np.float32([2, 0.5, 30])
    stats = statistics.RunningStats(mean, std**2, np.float32(10))
    shifted = learner.rnd._replace(obs_stats=stats)
    error = lambda rnd, obs: ppo_rnd.prediction_error(  # noqa: E731
        ARGS, rnd, rnd.predictor, np.asarray(obs, np.float32)
    )
    z = np.random.default_rng(0).normal(size=(9, 3))
    np.testing.assert_allclose(error(shifted, mean + std * z), error(learner.rnd, z), rtol=1e-3)
    at, beyond, inside = (error(shifted, mean + std * np.full((1, 3), z)) for z in (5.0, 9.0, 4.5))
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
    (states, metrics), (expected, expected_metrics) = Training(NOISE, args).run(3), Training(NOISE, theirs, ppo).run(3)
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
    other = Training(NOISE, replace(args, int_coef=1.0)).run(3)[0][-1].learner  # and with weight it is another one
    assert differ(other.params, ours.params)


# Devices, seeds, runs


def test_one_and_eight_devices_take_the_same_steps(monkeypatch):
    """The global minibatches hold the same transitions, and the predictor learns from all of them."""
    monkeypatch.setattr(ppo_rnd, "random_permutation", lambda key, size: lambda positions: positions)
    batch, learner, network = inputs(ARGS)
    flags = {"update_proportion": 1.0, "update_epochs": 2}
    # Device d's m-th share is part of the m-th minibatch: on one device these shares have to follow each other.
    shares = np.arange(64).reshape(8, 4, -1).swapaxes(0, 1).reshape(-1)
    one = optimise(ARGS, network, learner, jax.tree.map(lambda x: x[shares], batch), **flags)
    eight = optimise(ARGS, network, learner, batch, 8, **flags)
    assert differ(one[0].rnd.predictor, learner.rnd.predictor)
    leaves_close(eight[0], one[0], atol=1e-5)
    leaves_close(eight[1], one[1], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("devices, chunks", [(1, 2), (8, 1)])
def test_random_play_before_training_gives_the_first_statistics(devices, chunks):
    """Counters of 50 steps have then shown the times 1 to 5, and go on from there."""
    args = replace(
        ARGS, obs_warmup_steps=5, num_devices=devices, num_rollout_chunks=chunks, num_envs=16, norm_obs=True,
        minibatch_size=32, learning_rate=1e-30,
    )  # fmt: skip
    training = Training(Counter(ends=(50,), limit=60), args)
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


@pytest.mark.parametrize("value", [0.0, jnp.nan])
def test_a_predictor_that_is_not_finite_is_noticed_in_its_own_update(monkeypatch, value):
    optimise = ppo_rnd.optimise

    def changed(*args):
        learner, metrics = optimise(*args)
        predictor = jax.tree.map(lambda x: x.at[(0,) * x.ndim].set(value), learner.rnd.predictor)
        return learner._replace(rnd=learner.rnd._replace(predictor=predictor)), metrics

    monkeypatch.setattr(ppo_rnd, "optimise", changed)
    training = Training(NOISE, ARGS)
    state, metrics, _ = training.step(training.init(training.keys))
    assert bool(metrics["finite"]) == np.isfinite(value)
    assert np.isfinite(metrics["outer/update_norm"]) and state.update == 1


def test_eight_devices_keep_one_learner():
    args = replace(ARGS, num_devices=8, norm_obs=True, norm_reward=True, obs_warmup_steps=3)
    states, metrics = Training(NOISE, args).run(2)
    for leaf in jax.tree.leaves(states[-1].learner):
        copies = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        assert len(copies) == 8
        for copy in copies[1:]:
            np.testing.assert_array_equal(copy, copies[0])
    assert all(np.isfinite(value) for value in metrics[1].values())


FLAGS = (
    "--hidden-sizes 8 --embedding-size 4 --obs-warmup-steps 3 --num-rollout-chunks 2 --num-seeds 2 "
    "--total-timesteps 192 --checkpoint-every 2 --keep-checkpoints 0 --plasticity-every 3"
)  # 6 updates


def test_a_killed_run_goes_on_bit_for_bit_and_another_one_starts_from_it(tmp_path):
    """As if it had been killed after update 3: its last checkpoint is that of update 2."""
    flags = [*CARTPOLE.split(), *FLAGS.split()]
    straight = call(ppo_rnd, tmp_path / "straight", *flags)
    killed = resumed(ppo_rnd, straight.path, tmp_path / "killed", after=3)
    same(learner_at(straight._replace(path=killed), 6), learner_at(straight, 6))
    assert lines_of(killed) == lines_of(straight.path)
    assert [row["update"] for row in lines_of(killed)] == [1, 2, 3, 4, 5, 6]
    assert json.loads((killed / "summary.json").read_text())["updates"] == 6
    start = call(ppo_rnd, tmp_path / "next", *flags, "--init-from", f"{killed}@4", stop=True).start
    same(start, learner_at(straight, 4))
    assert differ(start.rnd.predictor, learner_at(straight, 2).rnd.predictor)
