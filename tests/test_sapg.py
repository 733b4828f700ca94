"""sapg.py: with one block it is ppo.py; relabelled rows, weights and returns against loops in NumPy."""

import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import Counter, Noise, on_devices
from jax.sharding import PartitionSpec as P
from test_init_from import CARTPOLE, call
from test_ppo import SPACES, differ, leaves_close, record, same

import ppo
import sapg
from common import envs
from common.actions import Box, Discrete, Gaussian
from common.run import arguments, plots, run as runs
from common.run.arguments import UsageError, parse

FLAGS = dict(
    num_envs=12, num_steps=4, total_timesteps=48 * 3, num_minibatches=2, hidden_sizes=(8,), num_devices=1,
    learning_rate=1e-2,
)  # fmt: skip
ARGS = sapg.Args(num_blocks=3, **FLAGS)


def trained(script, toy, updates, **flags):
    """-> the last state, the metrics of each update, the last sample."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(envs, "make", lambda env_id, num_envs, *_, **__: envs.VectorEnv(toy, num_envs))
        _, _, _, init, step, measure, keys = script.build(script.Args(**FLAGS | flags))
    state, metrics = jax.jit(init)(keys), []
    for _ in range(updates):
        state, row, sample = step(state)
        metrics.append(jax.device_get(row))
    return state, metrics, jax.device_get(measure(state.learner, sample))


# One block


@pytest.mark.parametrize(
    "space, flags",
    [
        (
            "continuous",
            dict(norm_obs=True, norm_reward=True, adaptive_lr_kl=0.016, learning_rate=1e-3),
        ),
        ("continuous", dict(norm_obs=True, norm_reward=True, learning_rate=1e-3, num_rollout_chunks=2)),
        ("discrete", dict(num_devices=2, shared_encoder=True, target_kl=0.01)),
    ],
)
def test_one_block_is_ppo_to_the_last_bit(space, flags):
    toy = Noise(SPACES[space])
    expected, its_metrics, its_plasticity = trained(ppo, toy, 3, **flags)
    state, metrics, plasticity = trained(sapg, toy, 3, num_blocks=1, **flags)
    raw = lambda state: jax.tree.leaves(state._replace(key=jax.random.key_data(state.key)))  # noqa: E731
    same(raw(state), raw(expected))
    same(metrics, its_metrics)
    same(plasticity, its_plasticity)
    assert all(row["outer/kl"] > 0 for row in metrics)


# Relabelled rows


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


@pytest.mark.parametrize("follower", [0, 1])
@pytest.mark.parametrize("clip", ["one", "ratio"])
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
    """One parameter per row, whose gradient says in which minibatch the row is, and with which weight."""
    own, more, epochs = 48, 16, 2
    monkeypatch.setattr(sapg, "ADAM", record(own + more, 2 * epochs))
    args = replace(
        ARGS, num_envs=own, num_steps=1, total_timesteps=own, minibatch_size=24, num_minibatches=None,
        update_epochs=epochs, clip_vloss=False, vf_coef=1.0, max_grad_norm=1e9, ent_coef=0.0, block_ent_coef=0.0,
    )  # fmt: skip

    class PerRow:
        def apply(self, params, obs, block):
            return Gaussian(jnp.zeros((len(obs), 1)), jnp.zeros((len(obs), 1))), params[obs]

    def batch(obs):
        zeros = jnp.zeros(len(obs))
        return sapg.Batch(
            jnp.asarray(obs), zeros[:, None], jnp.full(len(obs), -0.918938), zeros, zeros, zeros - 1, zeros.astype(int),
            zeros.astype(bool), zeros,
        )  # fmt: skip

    learner = sapg.Learner(jnp.zeros(own + more), sapg.ADAM.init(jnp.zeros(own + more)), None, None)
    rows = jax.tree.map(lambda *x: jnp.concatenate(x), batch(np.arange(own)), batch(own + np.arange(more)))
    run = lambda learner: sapg.optimise(args, PerRow(), learner, rows, jax.random.key(0), 0.01)  # noqa: E731
    learner, _ = on_devices(run)(learner)
    used = np.asarray(learner.opt_state[1]).reshape(epochs, 2, own + more) * 32
    np.testing.assert_allclose(used.sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(used.sum(2), 32, rtol=1e-5)
    assert set(np.unique(used.round(4))) == {0, 1}
    assert 0 < used[0, 0, own:].sum() < more  # mixed


@pytest.mark.parametrize(
    "flags, expected",
    [
        ("--num-blocks 6 --num-envs 24576 --num-steps 8 --minibatch-size 16384", (14, 16384)),
        ("--num-blocks 6 --num-envs 24576 --num-steps 8 --minibatch-size 98304", (2, 114688)),
        ("--num-blocks 4 --num-envs 512 --num-steps 16 --minibatch-size 2048", (5, 2048)),
        ("--num-blocks 4 --num-envs 512 --num-steps 16 --minibatch-size 2048 --num-rollout-chunks 2", (2, 2560)),
        ("--num-blocks 1 --num-envs 512 --num-steps 16 --minibatch-size 2048", (4, 2048)),
    ],
)
def test_minibatches_keep_their_size_where_it_divides_the_rows(flags, expected):
    assert parse(sapg.Args, "", flags.split()).epoch == expected


# The loss


@pytest.mark.parametrize("clip, counted, bounds", [("one", False, 0.0), ("ratio", True, 0.3)])
def test_the_loss_is_the_mean_over_rows_of_numpys(clip, counted, bounds):
    rng = np.random.default_rng(1)
    size, eps = 40, 0.2
    coefs = dict(ent_coef=0.03, block_ent_coef=0.4, vf_coef=2.0, bounds_coef=bounds)
    args = replace(ARGS, clip_eps=eps, kl_of_relabelled=counted, **coefs)
    obs, action = (rng.normal(size=(size, n)).astype(np.float32) for n in (2, 1))
    relabelled = np.arange(size) >= 30
    block = np.where(relabelled, 2, np.arange(size) % 3)
    log_prob = density(action[:, 0], obs[:, 0] + block, 1 + block / 10) + 0.4 * rng.normal(size=size)
    log_center = np.where(relabelled & (clip == "ratio"), 0.5 * rng.normal(size=size), 0)
    advantage, target, value = rng.normal(size=(3, size))
    target, value = (x + 10 * block + obs[:, 1] for x in (target, value))  # near the new value, or it hides all else
    columns = (log_prob, value, advantage, target)
    batch = sapg.Batch(
        obs, action, *(x.astype(np.float32) for x in columns), block, relabelled, log_center.astype(np.float32)
    )
    policy = lambda params, obs, block: Known().apply(params, obs, block)  # noqa: E731
    loss, parts = jax.jit(lambda batch: sapg.ppo_loss(args, policy, {}, batch))(batch)
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


def with_scaled_critic(params, scale, shift):
    """The network whose values are the given one's, times `scale` plus `shift`."""
    head = params["params"]["critic"]
    head = {"kernel": scale * head["kernel"], "bias": scale * head["bias"] + shift}
    return {"params": params["params"] | {"critic": head}}


def test_normalised_values_are_the_same_values_in_other_units(monkeypatch):
    """Two runs whose critics say the same, one of them in units of deviations of 2 from 3: the inner loop gets the same
    transitions and advantages. The statistics become those of all targets, and values and targets are in units of
    these, in which the next rollout reads the network's values."""

    def record_batches(args, network, learner, batch, key, learning_rate):
        columns = {name: getattr(batch, name) for name in ("value", "target", "advantage")}
        return learner, columns | {"charts/learning_rate": learning_rate}

    monkeypatch.setattr(sapg, "optimise", record_batches)
    found = []
    for normalised in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                envs, "make", lambda env_id, num_envs, *_, **__: envs.VectorEnv(Noise(SPACES["discrete"]), num_envs)
            )
            _, _, _, init, step, _, keys = sapg.build(sapg.Args(num_blocks=3, norm_value=normalised, **FLAGS))
        state = jax.jit(init)(keys)
        params = state.learner.params
        if normalised:
            stats = sapg.statistics.RunningStats(jnp.float32(3.0), jnp.float32(4.0), jnp.float32(0.0))
            state = state._replace(learner=state.learner._replace(value_stats=stats))
        else:
            state = state._replace(learner=state.learner._replace(params=with_scaled_critic(params, 2.0, 3.0)))
        state, metrics, sample = step(state)
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


# The network and the rollout


def test_each_block_has_its_own_policy_and_only_its_own_vector_and_deviations_of_its_own():
    args = replace(ARGS, shared_encoder=True)
    network = sapg.ActorCritic(args, SPACES["continuous"])
    obs = jnp.ones((3, 3))
    params = network.init(jax.random.key(0), obs, jnp.arange(3))
    shapes = jax.tree.map(jnp.shape, params["params"])
    assert shapes["phi"] == (3, 32) and shapes["log_std"] == (3, 2)
    assert shapes["encoder"]["Dense_0"]["kernel"] == (3 + 32, 8)
    many = jax.random.normal(jax.random.key(1), (30, 32))
    initial = sapg.ActorCritic(sapg.Args(num_envs=120, num_blocks=30, num_minibatches=1), SPACES["continuous"])
    phi = initial.init(jax.random.key(0), obs, jnp.arange(3))["params"]["phi"]
    assert abs(float(phi.std()) - float(many.std())) < 0.1 and abs(float(phi.mean())) < 0.1
    params["params"]["log_std"] = jnp.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    dist, value = network.apply(params, obs, jnp.array([2, 0, 0]))
    np.testing.assert_allclose(dist.log_std, [[0.5, 0.6], [0.1, 0.2], [0.1, 0.2]], rtol=1e-6)
    assert value[0] != value[1] == value[2]

    def one(params):
        dist, value = network.apply(params, obs[:2], jnp.array([1, 1]))
        return dist.log_prob(jnp.ones((2, 2))).sum() + value.sum()

    grads = jax.grad(one)(params)["params"]
    for name in ("phi", "log_std"):
        assert (grads[name][1] != 0).all() and not grads[name][jnp.array([0, 2])].any()


@pytest.fixture(scope="module", params=[1, 2])
def played(request):
    """Rollouts of 24 Counters that end after 1 to 9 steps or are cut after 5, on one device or two."""
    args = sapg.Args(**FLAGS | dict(num_envs=24, num_steps=12, total_timesteps=24 * 12), num_blocks=3)
    env = envs.VectorEnv(Counter(ends=tuple(range(1, 10)), limit=5), 24 // request.param)

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
    return request.param, jax.device_get(on_devices(run, request.param, P(), out)(jax.random.key(3)))


def test_only_the_leaders_episodes_are_counted(played):
    devices, (t, _, sums) = played
    assert (t.block == np.tile(np.repeat(np.arange(3), 8 // devices), devices)).all()
    lengths, everyone = [], 0
    for column in range(24):
        begun = 0
        for step in range(12):
            if t.terminated[step, column] or t.truncated[step, column]:
                everyone += 1
                if t.block[0, column] == 2:
                    lengths.append(step + 1 - begun)
                begun = step + 1
    np.testing.assert_allclose(sums[:3], [len(lengths), sum(lengths), sum(lengths)])  # each step's reward is 1
    assert 0 < len(lengths) < everyone


def test_values_are_those_of_the_own_block_and_final_ones_also_the_leaders(played):
    _, (t, last_value, _) = played
    np.testing.assert_allclose(t.value, 100 * t.block + t.obs[..., 0])
    np.testing.assert_allclose(t.final_value, np.where(t.truncated, 100 * t.block + 5, 0))
    np.testing.assert_allclose(t.leader_final_value, np.where(t.truncated, 200 + 5, 0))
    assert t.truncated.any() and (last_value // 100 == t.block[0]).all()


# Devices


def test_one_and_eight_devices_learn_the_same():
    """Each device has a part of every block: the same transitions, with one device block after block."""
    space, steps, each = SPACES["continuous"], 3, 6
    args = replace(ARGS, num_envs=48, num_steps=steps, num_minibatches=1, minibatch_size=None, update_epochs=2)
    network = sapg.ActorCritic(args, space)
    rng = np.random.default_rng(2)
    obs, block = rng.normal(size=(steps + 1, 48, 3)).astype(np.float32), np.tile(np.repeat(np.arange(3), 2), 8)
    params = network.init(jax.random.key(0), obs[0], block)
    dist, value = jax.vmap(lambda obs: network.apply(params, obs, block))(obs)
    action = dist.sample(jax.random.key(1))[:-1]
    log_prob = jax.tree.map(lambda x: x[:-1], dist).log_prob(action)
    ends = rng.random((2, steps, 48)) < 0.2
    final, reward = rng.normal(size=(2, steps, 48)).astype(np.float32)
    t = sapg.Transition(
        obs[:-1], action, log_prob, value[:-1], reward, ends[0], ends[1] & ~ends[0], final, final,
        jnp.broadcast_to(jnp.asarray(block), (steps, 48)),
    )  # fmt: skip
    learner = sapg.Learner(params, sapg.ADAM.init(params), None, None)

    def run(t, last_obs, last_value):
        advantage = sapg.compute_gae(t, last_value, 0.9, 0.8)
        own = t.block, jnp.zeros(advantage.shape, bool), jnp.zeros(advantage.shape)
        batch = sapg.Batch(t.obs, t.action, t.log_prob, t.value, advantage, advantage + t.value, *own)
        batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
        relabelled = sapg.relabel(args, network, learner, t, last_obs, jnp.int32(1))
        batch = jax.tree.map(lambda *x: jnp.concatenate(x), batch, relabelled)
        new, metrics = sapg.optimise(args, network, learner, batch, jax.random.key(0), jnp.float32(0.01))
        return new.params, metrics

    order = np.argsort(block, kind="stable")
    here = jax.tree.map(lambda x: x[:, order], t), obs[-1][order], value[-1][order]
    one = on_devices(run)(*here)
    eight = on_devices(run, 8, (P(None, "device"), P("device"), P("device")))(t, obs[-1], value[-1])
    assert differ(one[0], params) and each * 8 == 48
    leaves_close(eight[0], one[0], atol=2e-5)
    leaves_close(eight[1], one[1], rtol=1e-3, atol=1e-5)


def test_whole_updates_on_eight_devices():
    """All devices draw the same follower and hold the same learner; the followers' vectors learn, too."""
    drawn, relabel = [], sapg.relabel

    def spy(args, network, behaviour, t, last_obs, follower):
        jax.debug.callback(lambda x: drawn.append(int(x)), follower)
        return relabel(args, network, behaviour, t, last_obs, follower)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sapg, "relabel", spy)
        flags = dict(num_envs=48, num_devices=8, num_blocks=3, total_timesteps=48 * 4 * 6, num_minibatches=1)
        state, metrics, _ = trained(sapg, Noise(SPACES["discrete"]), 6, **flags)
    jax.effects_barrier()
    rounds = np.reshape(drawn, (6, 8))
    assert (rounds == rounds[:, :1]).all() and set(rounds[:, 0]) == {0, 1}
    for leaf in jax.tree.leaves(state.learner):
        copies = [np.asarray(part.data) for part in leaf.addressable_shards]
        assert len(copies) == 8 and all((copy == copies[0]).all() for copy in copies)
    assert all(row["finite"] and row["sapg/approx_kl"] > 0 for row in metrics)
    assert optax.tree.norm(state.learner.params["params"]["phi"]) > 0


# Flags, and whole runs


def test_sizes_that_do_not_divide_are_one_line():
    with pytest.raises(UsageError, match=r"--num-envs 64: must be a multiple of --num-blocks .* = 6; 66 would"):
        sapg.Args(num_envs=64)
    with pytest.raises(UsageError, match=r"--num-blocks \* --num-rollout-chunks = 12; 24 would"):
        sapg.Args(num_envs=18, num_rollout_chunks=2)


def test_the_gradient_steps_that_it_says_are_those_that_adam_counts():
    """Of 3 blocks of 4 environments: with the relabelled rows 8 minibatches of 8 in place of the 6 of the flags."""
    flags = dict(num_blocks=3, num_minibatches=6, update_epochs=2)
    state, _, _ = trained(sapg, Counter(ends=tuple(range(1, 10)), limit=5), 3, **flags)
    args = sapg.Args(**FLAGS | flags)
    said = arguments.describe(args)
    assert "each 2 epochs of 8 minibatches of 8: 16 gradient steps, 48 in all" in said and "are few" not in said
    assert state.learner.opt_state.count == 48


def test_the_leader_is_evaluated(tmp_path):
    given = {}

    def player(args, suite, policy):
        given["policy"] = policy
        raise UsageError("seen")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sapg.evaluation, "Player", player)
        with pytest.raises(SystemExit):
            call(sapg, tmp_path, *CARTPOLE.replace("--num-envs 4", "--num-envs 6").split(), "--num-blocks", 3)
    args = parse(sapg.Args, "", [*CARTPOLE.replace("--num-envs 4", "--num-envs 6").split(), "--num-blocks", "3"])
    network, obs = sapg.ActorCritic(args, Discrete((2,))), jnp.ones((5, 4))
    params = network.init(jax.random.key(0), obs, jnp.zeros(5, int))
    params["params"]["actor"]["kernel"] *= 300
    stats = sapg.statistics.initial_stats((4,))
    played = given["policy"](sapg.Learner(params, None, stats, None), obs).logits
    each = [network.apply(params, sapg.statistics.normalise(obs, stats), jnp.full(5, b))[0].logits for b in range(3)]
    np.testing.assert_allclose(played, each[2], rtol=1e-5)
    assert all(abs(played - other).max() > 0.1 for other in each[:2])


def test_a_run_evaluates_the_leader_films_and_is_continued(tmp_path):
    flags = [*CARTPOLE.replace("--num-eval-episodes 0", "--num-eval-episodes 4").split(), "--num-blocks", 2]
    flags += ["--num-seeds", 2]
    first = call(sapg, tmp_path, *flags, "--total-timesteps", 96, "--capture-video", "--run-name", "first")
    assert (first.path / "videos/final_policy.gif").exists()
    lines = plots.read_lines(first.path)
    assert all("sapg/approx_kl" in line for line in lines if "losses/value_loss" in line)
    second = call(sapg, tmp_path, *flags, "--total-timesteps", 32, "--init-from", first.path, "--run-name", "second")
    assert (second.start.opt_state.count == 3 * 2 * 6).all()  # updates, epochs, minibatches
    with pytest.MonkeyPatch.context() as patch:
        flags = ("--evaluate", first.path, "--num-eval-episodes", 4, "--runs-dir", tmp_path, "--run-name", "again")
        patch.setattr(sys, "argv", ["sapg.py", *map(str, flags)])
        runs.main(sapg.train, sapg.Args)
    (again,) = plots.read_lines(tmp_path / "again")
    (told,) = (line for line in lines if "eval/episodic_return" in line)
    assert {key: again[key] for key in told if key.startswith("eval/")} == {
        key: value for key, value in told.items() if key.startswith("eval/")
    }


def test_what_the_authors_settings_need_learns_and_goes_on(tmp_path):
    """Normalised values and the bounds loss in a run; the statistics are part of what --init-from takes over."""
    flags = "--env-id MountainCarContinuous-v0 --num-envs 8 --num-blocks 2 --num-steps 4 --num-minibatches 2"
    flags = [*flags.split(), "--norm-value", "--bounds-coef", 1e-4, "--hidden-sizes", 8, "--num-eval-episodes", 0]
    first = call(sapg, tmp_path, *flags, "--total-timesteps", 96, "--run-name", "first")
    assert first.start.value_stats.count == 0
    second = call(sapg, tmp_path, *flags, "--total-timesteps", 32, "--init-from", first.path, "--run-name", "second")
    assert second.start.value_stats.count == 96


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_the_bounds_loss_is_for_actions_between_minus_one_and_one(env_id):
    with pytest.raises(UsageError, match=rf"--bounds-coef 0.0001: needs actions in \[-1, 1\]; {env_id} has others"):
        sapg.build(sapg.Args(**FLAGS, num_blocks=2, env_id=env_id, bounds_coef=1e-4))


def test_the_bounds_loss_is_not_for_actions_between_nought_and_one(monkeypatch):
    toy = Noise(Box(np.zeros(2, np.float32), np.ones(2, np.float32)))
    monkeypatch.setattr(envs, "make", lambda env_id, num_envs, *_, **__: envs.VectorEnv(toy, num_envs))
    with pytest.raises(UsageError, match=r"needs actions in \[-1, 1\]"):
        sapg.build(sapg.Args(**FLAGS, num_blocks=2, bounds_coef=1e-4))
