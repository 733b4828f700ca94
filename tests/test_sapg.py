"""sapg.py: with one block it is ppo.py; relabelled rows, weights and returns against loops in NumPy."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import Counter, Noise, Training, build, differ, on_devices, one_learner, refusal, same, watched
from jax.sharding import PartitionSpec as P
from test_ppo import NARROW

import ppo
import sapg
from common import envs
from common.actions import Box, Discrete, Gaussian
from common.run import arguments, memory
from common.run.arguments import parse

pytestmark = pytest.mark.slow  # to compile
FLAGS = dict(
    num_envs=12, num_steps=4, total_timesteps=48 * 3, num_minibatches=2, hidden_sizes=(8,), num_devices=1,
    learning_rate=1e-2,
)  # fmt: skip
ARGS = sapg.Args(num_blocks=3, **FLAGS)


def test_one_block_is_ppo_to_the_last_bit():
    found = []
    flags = dict(norm_obs=True, norm_reward=True, num_rollout_chunks=2, num_devices=2, target_kl=0.02)
    for script, own in ((ppo, {}), (sapg, {"num_blocks": 1})):
        training = Training(script, Noise(NARROW), script.Args(**FLAGS | flags | own))
        states, metrics, _ = training.run(3)
        raw = states[-1]._replace(key=jax.random.key_data(states[-1].key))
        found.append((jax.tree.leaves(raw), metrics))
    same(*found)
    assert all(row["outer/kl"] > 0 for row in found[0][1])


class Known:
    """A Gaussian whose mean is obs[0] + block, with standard deviation 1 + block / 10, and value 10 block + obs[1]."""

    def apply(self, params, obs, block):
        scale = jnp.log(1 + block / 10)
        return Gaussian(obs[:, :1] + block[:, None], scale[:, None]), 10.0 * block + obs[:, 1]


def density(action, mean, scale):
    return -0.5 * ((action - mean) / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)


def random_rollout(steps=5, number=12):
    """-> transitions [T, N] of three blocks, observations after them, V of final observations by the leader."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(steps + 1, number, 2)).astype(np.float32)
    action = rng.normal(size=(steps, number, 1)).astype(np.float32)
    block = np.tile(np.arange(number) // (number // 3), (steps, 1))
    log_prob = density(action[..., 0], obs[:-1, :, 0] + block, 1 + block / 10)
    terminated = rng.random((steps, number)) < 0.2
    truncated = (rng.random((steps, number)) < 0.3) & ~terminated
    reward, final, leader_final = rng.normal(size=(3, steps, number))
    value = 10.0 * block + obs[:-1, :, 1]
    t = sapg.Transition(
        obs[:-1], action, log_prob, value, reward, terminated, truncated, final * truncated, leader_final * truncated,
        block,
    )  # fmt: skip
    to32 = lambda x: x.astype(np.float32) if x.dtype == np.float64 else x  # noqa: E731
    return jax.tree.map(to32, t), obs[-1]


@pytest.mark.parametrize("follower, clip", [(0, "one"), (1, "ratio")])
def test_a_followers_transitions_are_relabelled_as_the_leaders(follower, clip):
    t, last_obs = random_rollout()
    args = replace(ARGS, gamma=0.9, off_policy_clip=clip)
    learner = sapg.Learner({}, None, None, None)
    run = lambda t, last_obs: sapg.relabel(args, Known(), learner, t, last_obs, jnp.int32(follower))  # noqa: E731
    batch = jax.device_get(jax.jit(run)(t, last_obs))
    assert batch.value.shape == (5 * 4,) and batch.obs.shape == (20, 2)
    leader_value = lambda obs: 20 + obs[1]  # noqa: E731
    row = 0
    for step in range(5):
        for column in range(4 * follower, 4 * follower + 4):
            obs, action = t.obs[step, column], t.action[step, column, 0]
            following = t.obs[step + 1, column] if step < 4 else last_obs[column]
            future = 0.9 * leader_value(following)
            if t.truncated[step, column]:
                future = 0.9 * t.leader_final_value[step, column]
            if t.terminated[step, column]:
                future = 0.0
            target = t.reward[step, column] + future
            follows = density(action, obs[0] + follower, 1 + follower / 10)
            leads = density(action, obs[0] + 2, 1.2)
            np.testing.assert_array_equal(batch.obs[row], obs)
            np.testing.assert_array_equal(batch.action[row], [action])
            np.testing.assert_allclose(batch.target[row], target, rtol=1e-5)
            np.testing.assert_allclose(batch.value[row], leader_value(obs), rtol=1e-6)
            np.testing.assert_allclose(batch.advantage[row], target - leader_value(obs), rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(batch.log_prob[row], follows, rtol=1e-5)
            np.testing.assert_allclose(batch.log_center[row], leads - follows if clip == "ratio" else 0, atol=1e-5)
            assert batch.block[row] == 2 and batch.relabelled[row]
            row += 1


def test_every_row_counts_once_in_an_epoch_whether_relabelled_or_not(monkeypatch):
    """Of an update: 12 * 4 rows, and 16 again as the leader's."""
    seen = watched(monkeypatch, sapg, "ppo_loss", lambda _, *given: (given[3].obs, given[3].relabelled))
    args = replace(ARGS, minibatch_size=24, num_minibatches=None, update_epochs=2)
    _, _, (sample,) = Training(sapg, Noise(Discrete((3,))), args).run(1)
    jax.effects_barrier()
    own = np.asarray(sample.batch.obs).reshape(-1, 3)
    epochs = seen[:2], seen[2:]  # of two minibatches each
    first, second = ([np.concatenate(x) for x in zip(*epoch, strict=True)] for epoch in epochs)
    assert [len(obs) for obs, _ in seen] == [32] * 4 and differ(first, second)
    for obs, relabelled in (first, second):
        same(np.sort(obs[~relabelled], axis=0), np.sort(own, axis=0))
        assert relabelled.sum() == 16 == len(np.unique(obs[relabelled], axis=0))
        assert 0 < relabelled[:32].sum() < 16  # mixed


@pytest.mark.parametrize("flags, expected", [
    ("--num-blocks 6 --num-envs 24576 --num-steps 8 --minibatch-size 98304", (2, 114688)),
    ("--num-blocks 4 --num-envs 512 --num-steps 16 --minibatch-size 2048", (5, 2048)),
    ("--num-blocks 4 --num-envs 512 --num-steps 16 --minibatch-size 2048 --num-rollout-chunks 2", (2, 2560)),
    ("--num-blocks 1 --num-envs 512 --num-steps 16 --minibatch-size 2048", (4, 2048)),
])  # fmt: skip
def test_minibatches_keep_their_size_where_it_divides_the_rows(flags, expected):
    assert parse(sapg.Args, "", flags.split()).epoch == expected


@pytest.mark.parametrize("clip, counted, bounds", [("one", False, 0.0), ("ratio", True, 0.3)])
def test_the_loss_is_the_mean_over_rows_of_numpys(clip, counted, bounds):
    rng = np.random.default_rng(1)
    size, eps = 40, 0.2
    coefs = dict(clip_vloss=True, ent_coef=9.0, block_ent_coef=0.4, vf_coef=2.0, bounds_coef=bounds)
    args = replace(ARGS, clip_eps=eps, kl_of_relabelled=counted, **coefs)
    obs, action = (rng.normal(size=(size, n)).astype(np.float32) for n in (2, 1))
    relabelled = np.arange(size) >= 30
    block = np.where(relabelled, 2, np.arange(size) % 3)
    log_prob = density(action[:, 0], obs[:, 0] + block, 1 + block / 10) + 0.4 * rng.normal(size=size)
    log_center = np.where(relabelled & (clip == "ratio"), 0.5 * rng.normal(size=size), 0)
    advantage, target, value = rng.normal(size=(3, size))
    target, value = (x + 10 * block + obs[:, 1] for x in (target, value))  # near the new value, or it hides all else
    columns = (log_prob, value, advantage, target)
    *columns, center = (x.astype(np.float32) for x in (*columns, log_center))
    batch = sapg.Batch(obs, action, *columns, block, relabelled, center)
    policy = lambda params, obs, block: Known().apply(params, obs, block)  # noqa: E731
    loss, parts = jax.jit(lambda batch: sapg.ppo_loss(args, policy, {}, batch, 0.03))(batch)
    total, kls, clipped = 0.0, {False: [], True: []}, {False: [], True: []}
    for i in range(size):
        scale = 1 + block[i] / 10
        ratio = np.exp(density(action[i, 0], obs[i, 0] + block[i], scale) - log_prob[i])
        middle = np.exp(log_center[i])
        within = min(max(ratio, middle * (1 - eps)), middle * (1 + eps))
        new = 10.0 * block[i] + obs[i, 1]
        near = value[i] + min(max(new - value[i], -eps), eps)
        bonus = 0.03 + {0: 0.2, 1: 0.1, 2: 0.0}[block[i]]
        total -= min(ratio * advantage[i], within * advantage[i])
        total += 2.0 * 0.5 * max((new - target[i]) ** 2, (near - target[i]) ** 2)
        total -= bonus * (np.log(scale) + 0.5 * np.log(2 * np.pi * np.e))
        mean = obs[i, 0] + block[i]
        total += bounds * (max(mean - 1.1, 0) + max(-1.1 - mean, 0)) ** 2
        kls[relabelled[i]].append(ratio - 1 - np.log(ratio))
        clipped[relabelled[i]].append(within != ratio)
    np.testing.assert_allclose(loss, total / size, rtol=2e-5)
    # 30 rows and 10 relabelled ones, as of three blocks: the shares in an epoch are those of this minibatch.
    own = kls[False] + kls[True] if counted else kls[False]
    np.testing.assert_allclose(parts["losses/approx_kl"], np.mean(own), rtol=1e-4)
    np.testing.assert_allclose(parts["sapg/approx_kl"], np.mean(kls[True]), rtol=1e-4)
    np.testing.assert_allclose(parts["losses/clipfrac"], np.mean(clipped[False]), rtol=1e-5)
    np.testing.assert_allclose(parts["sapg/clipfrac"], np.mean(clipped[True]), rtol=1e-5)
    assert 0 < np.mean(clipped[False]) < 1 and 0 < np.mean(clipped[True]) < 1


def test_normalised_values_are_the_same_values_in_other_units(monkeypatch):
    """Two critics say the same, one in units of deviations of 2 from 3: the inner loop gets the same advantages. The
    statistics become those of all targets, in units of which values and targets are."""

    def record_batches(args, network, learner, batch, key, learning_rate, ent_coef):
        columns = {name: getattr(batch, name) for name in ("value", "target", "advantage")}
        return learner, columns | {"charts/learning_rate": learning_rate}

    monkeypatch.setattr(sapg, "optimise", record_batches)
    found = []
    for normalised in (False, True):

        def start(state, normalised=normalised):
            stats = sapg.statistics.RunningStats(jnp.float32(3.0), jnp.float32(4.0), jnp.float32(0.0))
            params = state.learner.params["params"]
            head = {"kernel": 2 * params["critic"]["kernel"], "bias": 2 * params["critic"]["bias"] + 3}
            change = {"value_stats": stats} if normalised else {"params": {"params": params | {"critic": head}}}
            return state._replace(learner=state.learner._replace(**change))

        args = sapg.Args(num_blocks=3, norm_value=normalised, **FLAGS)
        (_, state), (metrics,), (sample,) = Training(sapg, Noise(Discrete((3,))), args).run(1, change=start)
        found.append((state, metrics, sample))
    (plain, expected, raw), (state, metrics, sample) = found
    assert plain.learner.value_stats is None
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)  # noqa: E731
    targets = np.asarray(expected["target"])[: 12 * 4]  # without the relabelled rows
    assert np.std(targets) > 0.1
    close(state.learner.value_stats, [targets.mean(), targets.var(), 48])
    units = lambda x: (np.asarray(x) - targets.mean()) / targets.std()  # noqa: E731
    close(metrics["value"], units(expected["value"]))
    close(metrics["target"], units(expected["target"]))
    close(metrics["advantage"], expected["advantage"])
    close(metrics["losses/explained_variance"], expected["losses/explained_variance"])
    close(sample.batch.target, units(raw.batch.target))


def test_each_block_has_its_own_policy_and_only_its_own_vector_and_deviations_of_its_own():
    args = replace(ARGS, shared_encoder=True)
    network = sapg.ActorCritic(args, NARROW)
    obs = jnp.ones((3, 3))
    params = jax.jit(network.init)(jax.random.key(0), obs, jnp.arange(3))
    shapes = jax.tree.map(jnp.shape, params["params"])
    assert shapes["phi"] == (3, 32) and shapes["log_std"] == (3, 2)
    assert shapes["encoder"]["Dense_0"]["kernel"] == (3 + 32, 8)
    phi = params["params"]["phi"]  # 96 standard normal numbers
    assert abs(phi.std() - 1) < 0.25 and abs(phi.mean()) < 0.35
    params["params"]["log_std"] = jnp.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    dist, value = jax.jit(network.apply)(params, obs, jnp.array([2, 0, 0]))
    np.testing.assert_allclose(dist.log_std, [[0.5, 0.6], [0.1, 0.2], [0.1, 0.2]], rtol=1e-6)
    assert value[0] != value[1] == value[2]

    def one(params):
        dist, value = network.apply(params, obs[:2], jnp.array([1, 1]))
        return dist.log_prob(jnp.ones((2, 2))).sum() + value.sum()

    grads = jax.jit(jax.grad(one))(params)["params"]
    for name in ("phi", "log_std"):
        assert (grads[name][1] != 0).all() and not grads[name][jnp.array([0, 2])].any()


def test_a_rollout_counts_the_leaders_episodes_and_values_with_the_own_block_and_the_leaders():
    """24 Counters that end after 1 to 9 steps or are cut after 5, on two devices."""
    args = sapg.Args(**FLAGS | dict(num_envs=24, num_steps=12, total_timesteps=24 * 12), num_blocks=3)
    env = envs.VectorEnv(Counter(ends=tuple(range(1, 10)), limit=5), 12)

    class Blocks:
        def apply(self, params, obs, block):
            ahead = obs[:, 0].astype(jnp.float32)
            return Gaussian(jnp.zeros((len(obs), 2)), jnp.zeros((len(obs), 2))), 100.0 * block + ahead

    def run(key):
        state, obs = env.reset(jax.random.fold_in(key, jax.lax.axis_index("device")))
        chunk = sapg.Environments(state, obs, jnp.zeros(env.num_envs))
        _, t, last_value, sums = sapg.rollout(args, env, Blocks(), sapg.Learner({}, None, None, None), chunk, key)
        return t, last_value, sums

    out = P(None, "device"), P("device"), P()
    t, last_value, sums = jax.device_get(on_devices(run, 2, P(), out)(jax.random.key(3)))
    assert (t.block == np.tile(np.repeat(np.arange(3), 4), 2)).all()
    ended = t.terminated | t.truncated
    lengths = (t.obs[..., 0] + 1)[ended & (t.block == 2)]
    np.testing.assert_allclose(sums[:3], [len(lengths), lengths.sum(), lengths.sum()])  # each step's reward is 1
    assert 0 < len(lengths) < ended.sum() and t.truncated.any()
    np.testing.assert_allclose(t.value, 100 * t.block + t.obs[..., 0])
    np.testing.assert_allclose(t.final_value, np.where(t.truncated, 100 * t.block + 5, 0))
    np.testing.assert_allclose(t.leader_final_value, np.where(t.truncated, 200 + 5, 0))
    assert (last_value // 100 == t.block[0]).all()


def test_whole_updates_on_eight_devices():
    """All devices draw the same follower and hold the same learner; the followers' vectors learn, too. Adam counts the
    gradient steps that are announced: with the relabelled rows 8 minibatches in place of the 6 of the flags."""
    drawn, relabel = [], sapg.relabel

    def spy(args, network, behaviour, t, last_obs, follower):
        jax.debug.callback(lambda x: drawn.append(int(x)), follower)
        return relabel(args, network, behaviour, t, last_obs, follower)

    flags = dict(num_envs=48, num_devices=8, total_timesteps=48 * 4 * 6, num_minibatches=6, update_epochs=2)
    args = sapg.Args(num_blocks=3, **FLAGS | flags)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sapg, "relabel", spy)
        states, metrics, _ = Training(sapg, Noise(Discrete((3,))), args).run(6)
    jax.effects_barrier()
    rounds, learner = np.reshape(drawn, (6, 8)), states[-1].learner
    assert (rounds == rounds[:, :1]).all() and set(rounds[:, 0]) == {0, 1}
    one_learner(learner, 8)
    assert all(row["finite"] and row["sapg/approx_kl"] > 0 for row in metrics)
    assert differ(learner.params["params"]["phi"][:2], states[0].learner.params["params"]["phi"][:2])
    said = arguments.describe(args)
    assert "each 2 epochs of 8 minibatches of 32: 16 gradient steps, 96 in all" in said and "are few" not in said
    assert learner.opt_state.count == 96


def test_what_cannot_work_is_one_line():
    for flags, said in (
        (dict(num_envs=64), r"--num-envs 64: must be a multiple of --num-blocks .* = 6; 66 would"),
        (dict(num_envs=18, num_rollout_chunks=2), r"--num-blocks \* --num-rollout-chunks = 12; 24 would"),
        # Of 16 chunks of 4 epochs the rate would be adapted 64 times, most often to what others had moved.
        (dict(adaptive_lr_kl=0.016, num_rollout_chunks=16), "--num-rollout-chunks 16: the KL of a later chunk"),
        (dict(adaptive_lr_kl=0.016, learning_rate=0.02), "--learning-rate 0.02 with --adaptive-lr-kl 0.016: must be "),
    ):
        assert re.search(said, refusal(sapg.Args, **flags))
    many = sapg.Args(num_envs=6 * 2**18, num_steps=1200, total_timesteps=2**32, num_devices=1)  # 1.9e9, and a sixth
    assert "more than 2^31 transitions" in refusal(memory.check_counts, many)
    low, high = np.zeros(2, np.float32), np.ones(2, np.float32)
    args = sapg.Args(**FLAGS, num_blocks=2, bounds_coef=1e-4)
    build(sapg, Noise(Box(-high, high)), args)
    for space in (Discrete((2,)), Box(-2 * high, 2 * high), Box(low, high)):
        assert "--bounds-coef 0.0001: needs actions in [-1, 1]; " in refusal(build, sapg, Noise(space), args)


def test_each_epoch_has_the_learning_rate_that_the_one_before_gave(monkeypatch):
    """Here twice its own. Gradient descent with gradients cut to norm 0.01, which hardly turn: the update is as long as
    the sum of the rates says. An epoch that --target-kl leaves out changes nothing; in the first one the KL is 0."""
    monkeypatch.setattr(sapg, "ADAM", optax.identity())
    monkeypatch.setattr(sapg, "adapt_learning_rate", lambda args, rate, kl: 2 * rate)
    flags = dict(num_minibatches=1, update_epochs=3, max_grad_norm=1e-2, adaptive_lr_kl=1.0, target_kl=1e-11)
    training = Training(sapg, Noise(Discrete((3,))), sapg.Args(num_blocks=1, **FLAGS | flags))
    _, rows, _ = training.run(2)
    for update, row in enumerate(rows):
        rate = 1e-2 * 4**update
        np.testing.assert_allclose(row["charts/learning_rate"], rate * 4, rtol=1e-6)
        np.testing.assert_allclose(row["outer/update_norm"], rate * 3 * 1e-2, rtol=1e-2)


def test_the_learning_rate_changes_beyond_half_and_twice_the_threshold_within_bounds():
    args = sapg.Args(adaptive_lr_kl=0.016)
    assert sapg.Args().anneal_lr and not args.anneal_lr
    for rate, kl, expected in (
        *((1e-3, kl, 1.5e-3) for kl in (0.0, 0.0079)),
        *((1e-3, kl, 1e-3) for kl in (0.0081, 0.031, np.nan)),
        *((1e-3, kl, 1e-3 / 1.5) for kl in (0.033, np.inf)),
        (9e-3, 0.0, 1e-2),
        (1.2e-6, 1.0, 1e-6),
    ):
        new = sapg.adapt_learning_rate(args, jnp.float32(rate), jnp.float32(kl))
        np.testing.assert_allclose(new, expected, rtol=1e-6)
