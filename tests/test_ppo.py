"""The algorithm, function by function, against NumPy and known answers; then whole updates, and learning.

Nothing here repeats the formula that it tests: it counts, adds up n-step returns, samples, or knows the answer. What
all scripts have to do is in test_every_script.py.
"""

from dataclasses import replace
from decimal import Decimal, localcontext
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from conftest import Aim, Bandit, Counter, Noise, Stub, Training, TwoStates, gains, leaves_close, on_devices, refusal
from jax.sharding import PartitionSpec as P

import ppo
from common import envs, metrics as measures
from common.actions import Box, Categorical, Discrete, Gaussian, bounded, k3
from common.arrays import unpack
from common.statistics import explained_variance, standardise

ARGS = ppo.Args(
    num_envs=8, num_steps=8, total_timesteps=64 * 4, minibatch_size=16, hidden_sizes=(8,), num_devices=1,
    learning_rate=1e-2,
)  # fmt: skip
GAMMA = 0.9
NARROW = Box(np.full(2, -0.01, np.float32), np.full(2, 0.01, np.float32))


def having(**flags):
    """ARGS with these flags, and with what follows from them."""
    return replace(ARGS, **{"minibatch_size": None, "num_minibatches": None} | flags)


def mean_of_n_step_returns(t, last_value, gamma, lam):
    """Forward view: (1 - lam) sum_n lam^(n-1) G_n, the last one taking the remaining weight, minus V(s_t)."""
    steps, number = t.reward.shape
    result = np.zeros((steps, number))
    for i in range(number):
        for start in range(steps):
            n_step, rewards = [], 0.0
            for step in range(start, steps):
                rewards += gamma ** (step - start) * t.reward[step, i]
                following = t.value[step + 1, i] if step + 1 < steps else last_value[i]
                if t.truncated[step, i]:
                    following = t.final_value[step, i]
                if t.terminated[step, i]:
                    following = 0.0
                n_step.append(rewards + gamma ** (step - start + 1) * following)
                if t.terminated[step, i] or t.truncated[step, i]:
                    break
            weights = [(1 - lam) * lam**n for n in range(len(n_step))]
            weights[-1] = lam ** (len(n_step) - 1)
            result[start, i] = np.dot(weights, n_step) - t.value[start, i]
    return result


def every_pattern_of_ends(kind):
    """Each of five steps goes on, terminates, is truncated, or both: 4^5 environments. Values and rewards without any
    pattern. -> transitions, values of the last observations."""
    patterns = np.array(list(product(range(4), repeat=5))).T  # [T, N]
    terminated, truncated = patterns % 2 == 1, patterns >= 2
    reward, value, final, last = np.random.default_rng(0).normal(size=(4, *patterns.shape)).astype(np.float32)
    known = dict(value=value, reward=reward, terminated=terminated, truncated=truncated, final_value=final * truncated)
    return kind(**dict.fromkeys(kind._fields) | known), last[0]


def test_gae_is_the_weighted_mean_of_n_step_returns():
    t, last_value = every_pattern_of_ends(ppo.Transition)
    for gamma, lam in ((0.9, 0.65), (1.0, 0.5), (0.9, 0.0), (0.9, 1.0)):
        expected = mean_of_n_step_returns(t, last_value, gamma, lam)
        np.testing.assert_allclose(jax.jit(ppo.compute_gae)(t, last_value, gamma, lam), expected, rtol=1e-4, atol=1e-5)


def value_of_count(_, obs):
    """Of a Counter without its time limit: 1 + gamma + ... until `end`; garbage after a terminal step."""
    left = obs[:, 1].astype(jnp.float32) - obs[:, 0]
    return jnp.where(left > 0, (1 - GAMMA**left) / (1 - GAMMA), 1e3)


def test_a_rollout_of_counters_hands_on_what_was_seen_and_true_values_leave_no_advantage():
    """Counters end after 1 to 9 steps, with a time limit of 5. There is no advantage only if a truncated episode goes
    on with V of its last observation, and a terminated one with 0; and the sums count the episodes."""
    env = envs.VectorEnv(Counter(ends=tuple(range(1, 10)), limit=5), 32)
    args = having(num_envs=32, num_steps=24, total_timesteps=768)

    def run(key):
        env_state, obs = env.reset(key)
        environments, nobody = ppo.Environments(env_state, obs, None), ppo.Learner({}, None, None, None)
        rollout = ppo.rollout(args, env, Stub(value_of_count), nobody, environments, jax.random.fold_in(key, 1))
        return rollout, ppo.compute_gae(rollout[1], rollout[2], GAMMA, 0.7)

    (chunk, t, last_value, sums), advantage = jax.device_get(on_devices(run)(jax.random.key(0)))
    time, end = t.obs[..., 0] + 1, t.obs[..., 1].astype(float)
    truncated = (time == 5) & (end > 5)
    assert ((time == 5) & (end == 5)).any() and truncated.any() and t.terminated.any()
    np.testing.assert_allclose(advantage, 0, atol=1e-4)
    np.testing.assert_array_equal(t.truncated, truncated)
    np.testing.assert_array_equal(t.terminated, time == end)
    np.testing.assert_allclose(t.final_value, np.where(truncated, (1 - GAMMA ** (end - 5)) / (1 - GAMMA), 0), rtol=1e-5)
    np.testing.assert_allclose(last_value, value_of_count(None, chunk.obs), rtol=1e-6)
    assert t.obs.dtype == np.uint32
    done, following = t.terminated | t.truncated, np.concatenate([t.obs[1:], chunk.obs[None]])
    np.testing.assert_array_equal(following[~done], (t.obs + np.array([1, 0, 0, 0], np.uint32))[~done])
    assert (following[done][:, 0] == 0).all()
    length, success = t.obs[..., 0][done] + 1.0, (t.terminated & (end % 2 == 0))[done]
    np.testing.assert_allclose(sums, [done.sum(), length.sum(), length.sum(), success.sum()])
    np.testing.assert_allclose(t.log_prob, np.log(0.5), rtol=1e-6)


@pytest.mark.parametrize("number", [1, 4])
def test_advantages_are_standardised_over_devices_to_the_last_digits_whatever_their_mean(number):
    normal, rng = on_devices(standardise, number, P("device"), P("device")), np.random.default_rng(0)
    for mean, std in [(5, 3), (0, 1e-5), (1e3, 1e-2), (-1e3, 1e-2), (1e-3, 1e-3), (1e6, 1e3), (0, 1e6)]:
        x = rng.normal(mean, std, 1024).astype(np.float32)
        exact = x.astype(np.float64)
        exact = (exact - exact.mean()) / (exact.std() + 1e-8)
        np.testing.assert_allclose(normal(x), exact, rtol=1e-5, atol=2e-6)
    for lost in (np.nan, np.inf):  # a diverged one is not hidden
        assert np.isnan(normal(np.where(np.arange(1024) == 3, np.float32(lost), x))).any()


@pytest.mark.parametrize("number, size", [(1, 1), (1, 2048), (3, 1), (3, 7)])
def test_equal_advantages_push_nowhere(number, size):
    """Also if they are equal but for their last bit."""
    normal = on_devices(standardise, number, P("device"), P("device"))
    for value in (-2.7, 1 / 3, 0.0, 3.0, 1234.567, 1e9):
        x = np.full(number * size, value, np.float32)
        np.testing.assert_array_equal(normal(x), 0)
        x[::3], x[1::3] = np.nextafter(x[::3], np.float32(np.inf)), np.nextafter(x[1::3], np.float32(-np.inf))
        np.testing.assert_allclose(normal(x), 0, atol=1e-6)


def decimal_kl(kind, p, q):
    """KL(p || q) with 50 digits. p, q: what the float32 parameters of two distributions are."""
    with localcontext(prec=50):
        p, q = ([[Decimal(float(x)) for x in part] for part in dist] for dist in (p, q))
        if kind == "gaussian":
            rows = zip(*p, *q, strict=True)
            return sum(((2 * s - 2 * t).exp() + ((m - n) / t.exp()) ** 2 - 1) / 2 + t - s for m, s, n, t in rows)
        total = Decimal(0)
        for a, b in zip(p, q, strict=True):
            a, b = ([x - sum(y.exp() for y in part).ln() for x in part] for part in (a, b))
            total += sum(x.exp() * (x - y) for x, y in zip(a, b, strict=True))
        return total


@pytest.mark.parametrize("kind, scale", [("discrete", 0.01), ("discrete", 20.0), ("several", 1.0), ("gaussian", 1.0)])
def test_kl_is_exact_for_the_smallest_step_and_for_a_large_one(kind, scale):
    """From 1e-15 to 100 and more. A Gaussian moves its mean, its deviation, or both."""
    rng, shape = np.random.default_rng(0), {"discrete": (1, 5), "several": (3, 2), "gaussian": (2, 3)}[kind]
    flat = lambda x: x.reshape(len(x), -1)  # noqa: E731
    if kind == "gaussian":
        kl = jax.jit(lambda a, b: Gaussian(a[:, 0], a[:, 1]).kl(Gaussian(b[:, 0], b[:, 1])))
    else:
        dist = lambda x: Categorical(flat(x), (shape[1],) * shape[0])  # noqa: E731
        kl = jax.jit(lambda a, b: dist(a).kl(dist(b)))
    for step in (1e-7, 1e-6, 1e-5, 1e-4, 1e-2, 1.0, 10.0, 100.0):
        old = scale * rng.normal(size=(12, *shape))
        moved = min(step, 3.0 if kind == "gaussian" else step) * rng.normal(size=old.shape)
        if kind == "gaussian":
            moved[0::3, 0] = moved[1::3, 1] = 0
        old, new = (x.astype(np.float32) for x in (old, old + moved))
        wanted = [float(decimal_kl(kind, *pair)) for pair in zip(old, new, strict=True)]
        assert (kl(old, new) >= 0).all() and max(wanted) > 0
        np.testing.assert_allclose(kl(old, new), wanted, rtol=2e-4, atol=1e-19)


def test_k3_is_exact_for_small_ratios_and_large_ones():
    x = np.concatenate([sign * np.geomspace(1e-18, 80, 999) for sign in (1, -1)]).astype(np.float32)
    with localcontext(prec=50):
        wanted = [float(Decimal(float(v)).exp() - 1 - Decimal(float(v))) for v in x]
    np.testing.assert_allclose(jax.jit(k3)(x), wanted, rtol=1e-5)
    assert k3(0.0) == 0
    slope = jax.jit(jax.vmap(jax.grad(k3)))(x)
    np.testing.assert_allclose(slope, np.expm1(x.astype(np.float64)), rtol=1e-5)


@pytest.mark.parametrize("nvec", [(4,), (2, 3, 4)])
def test_categorical_equals_the_enumeration_of_all_joint_actions(nvec):
    rng = np.random.default_rng(1)
    p, q = (Categorical(jnp.array(rng.normal(size=sum(nvec)), jnp.float32), nvec) for _ in range(2))
    actions = np.stack(np.meshgrid(*map(np.arange, p.nvec), indexing="ij"), -1).reshape(-1, len(p.nvec))

    def table(dist):
        """The probability of every joint action, by softmax and products."""
        parts = np.split(np.exp(np.asarray(dist.logits, np.float64)), np.cumsum(p.nvec)[:-1])
        return np.array([np.prod([part[i] / part.sum() for part, i in zip(parts, a, strict=True)]) for a in actions])

    a, b = table(p), table(q)
    np.testing.assert_allclose(jnp.exp(jax.vmap(p.log_prob)(jnp.array(actions))), a, rtol=1e-5)
    np.testing.assert_allclose(p.entropy(), -(a * np.log(a)).sum(), rtol=1e-5)
    np.testing.assert_allclose(p.kl(q), (a * np.log(a / b)).sum(), rtol=1e-4)
    np.testing.assert_array_equal(p.mode(), actions[a.argmax()])
    drawn = np.asarray(jax.vmap(p.sample)(jax.random.split(jax.random.key(0), 2**14)))
    frequency = (drawn[:, None] == actions).all(-1).mean(0)
    assert (abs(frequency - a) < 5 * np.sqrt(a / 2**14)).all()


def test_gaussian_density_integrates_to_one_and_its_samples_have_its_moments():
    dist = Gaussian(jnp.array([0.7]), jnp.array([-0.5]))
    x = jnp.linspace(-6, 7, 4001)
    density = np.exp(np.asarray(jax.vmap(dist.log_prob)(x[:, None]), np.float64))
    assert np.trapezoid(density, x) == pytest.approx(1, abs=1e-4)
    samples = np.asarray(jax.vmap(dist.sample)(jax.random.split(jax.random.key(0), 2**14)))
    assert samples.mean() == pytest.approx(0.7, abs=0.03) == np.trapezoid(density * x, x)
    assert samples.std() == pytest.approx(np.exp(-0.5), abs=0.02)
    assert dist.mode() == pytest.approx(0.7)
    assert dist.entropy() == pytest.approx(np.trapezoid(-density * np.log(density), x), abs=1e-4)


def test_a_bounded_log_std_stops_at_its_bound_and_comes_back():
    """Gradient descent on slope x first, then on (x - 0.5)²."""

    def loss(x, slope, back):
        x = bounded(x, -5.0, 2.0)
        return slope * x + back * (x - 0.5) ** 2

    step = jax.jit(lambda x, slope, back: x - 0.1 * jax.grad(loss)(x, slope, back))
    for slope, end in ((1.0, -5.0), (-1.0, 2.0), (0.0, 0.3)):
        x = jnp.float32(0.3)
        for _ in range(100):
            x = step(x, slope, 0.0)
        assert float(x) == pytest.approx(end, abs=0.11) and float(bounded(x, -5.0, 2.0)) == pytest.approx(end)
        for _ in range(100):
            x = step(x, 0.0, 1.0)
        assert float(x) == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("max_grad_norm", [100.0, 1e-4])
def test_inner_steps_are_those_of_a_numpy_adam_with_a_clipped_global_norm(max_grad_norm):
    """Gradients, of the value loss alone, of about 1e-5, where Adam's epsilon of 1e-5 matters."""
    rng = np.random.default_rng(0)
    obs, target = (rng.normal(size=shape).astype(np.float32) for shape in ((16, 3), (16,)))
    scale = 1e-5 if max_grad_norm > 1 else 1.0
    args = having(num_minibatches=1, update_epochs=3, clip_vloss=False, vf_coef=scale, max_grad_norm=max_grad_norm)
    zeros, network = jnp.zeros(16), Stub(lambda params, obs: obs @ params)
    columns = jnp.zeros((16, 1), int), jnp.full(16, np.log(0.5)), zeros, zeros, jnp.asarray(target)
    batch = ppo.Batch(jnp.asarray(obs), *columns)
    learner = ppo.Learner(jnp.zeros(3), ppo.ADAM.init(jnp.zeros(3)), None, None)
    run = lambda learner: ppo.optimise(args, network, learner, batch, jax.random.key(0), 0.01, 0.0)  # noqa: E731
    learner, metrics = on_devices(run)(learner)
    params, first, second, norms = np.zeros(3), np.zeros(3), np.zeros(3), []
    for step in range(1, 4):
        grad = scale * obs.T.astype(np.float64) @ (obs @ params - target) / 16
        norms.append(np.linalg.norm(grad))
        grad = grad * min(1, max_grad_norm / norms[-1])
        assert np.linalg.norm(grad) <= max_grad_norm * 1.0001
        first, second = 0.9 * first + 0.1 * grad, 0.999 * second + 0.001 * grad**2
        params = params - 0.01 * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-5)
    np.testing.assert_allclose(learner.params, params, rtol=1e-4)
    np.testing.assert_allclose(metrics["outer/grad_norm"], np.mean(norms), rtol=1e-5)  # before the clip


def test_measures_by_hand_on_eight_devices():
    """Norms, the exact KL over all actions, and the gains with their error, in NumPy."""
    rng = np.random.default_rng(0)
    previous, old, new = rng.normal(size=(3, 3, 2)).astype(np.float32)  # logits are obs @ these
    obs, action = rng.normal(size=(24, 3)).astype(np.float32), rng.integers(2, size=24)
    advantage = (5 + 3 * rng.normal(size=24)).astype(np.float32)
    policy, nothing = lambda params, batch: Categorical(batch.obs @ params, (2,)), np.zeros(24)
    batch = jax.tree.map(lambda x: x[None], ppo.Batch(obs, action[:, None], nothing, nothing, advantage, nothing))
    run = lambda batch: measures.measure_update(policy, previous, old, new, batch, 24)  # noqa: E731
    metrics = on_devices(run, 8, P(None, "device"))(batch)
    probs = (scipy.special.softmax(obs.astype(float) @ params, -1) for params in (previous, old, new))
    exact_kl, own, fresh = gains(*probs, action, advantage)
    expected = dict(kl=exact_kl, ddr=24 / exact_kl, own_gain=own.mean(), fresh_gain=fresh.mean())
    expected |= dict(fresh_gain_se=fresh.std() / np.sqrt(24), update_norm=np.linalg.norm(new - old))
    for name, value in expected.items():
        assert abs(value) > 0.01
        np.testing.assert_allclose(metrics[f"outer/{name}"], value, rtol=1e-3, err_msg=name)
    assert metrics["finite"]
    new[0, 0] = np.nan
    assert not measures.move_metrics(jnp.float32(1), old, new, 24)["finite"]


@pytest.mark.parametrize("number", [1, 2])
def test_explained_variance_by_hand_over_devices(number):
    """Targets 0, 1, 2, 3 predicted as 0, 1, 2, 5: errors of variance 3/4, targets of variance 5/4. Of constant targets
    nothing is explained; those that differ only between devices are not constant."""
    explained = on_devices(explained_variance, number, P("device"))
    for error, target, expected in (
        ([0, 0, 0, -2], [0, 1, 2, 3], 1 - 0.75 / 1.25),
        ([0, 0, 1, 1], [0, 0, 2, 2], 0.75),
        ([0, 0, 0, 0], [0, 0, 0, 0], np.nan),
    ):
        np.testing.assert_allclose(explained(np.float32(error), np.float32(target)), expected, rtol=1e-5)
    for target in (0.1, -3e7):  # the mean of equal numbers need not be that number
        inputs = np.tile(np.float32([0, 1, 0, 2]), 257)[:1026], np.full(1026, target, np.float32)
        assert np.isnan(explained(*inputs))


class Shown(Noise):
    """As Noise, with observations of 11 booleans."""

    obs_shape, obs_dtype = (11,), np.dtype(bool)

    def _observe(self, key):
        return jax.random.bernoulli(key, 0.3, (11,))


@pytest.mark.parametrize("toy", [Shown(Discrete((2, 3, 2))), Noise(NARROW)], ids=["discrete", "continuous"])
def test_the_loss_sees_each_transition_exactly_as_the_behaviour_policy_did(toy):
    """With one minibatch the first one is the only one: its ratio is 1. Observations are normalised and far from
    mean 0, or booleans, which are kept as bits; continuous actions are far outside their bounds."""
    norm = isinstance(toy.action_space, Box)
    args = having(num_minibatches=1, update_epochs=1, norm_obs=norm, total_timesteps=64 * 5)
    training = Training(ppo, toy, args)
    states, metrics, _ = training.run(4)
    for row in metrics:
        assert abs(row["losses/approx_kl"]) < 1e-7 and row["losses/clipfrac"] == 0
        assert row["outer/kl"] > 1e-7  # it does learn

    def run(learner, environments):
        return ppo.rollout(args, training.env, training.network, learner, environments, jax.random.key(0))[1]

    chunk = jax.tree.map(lambda x: x[0], states[-1].environments)
    t = jax.device_get(on_devices(run)(states[-1].learner, chunk))
    stats, obs = states[-1].learner.obs_stats, np.asarray(unpack(t.obs)).reshape(64, -1)
    if norm:
        obs = np.clip((obs - stats.mean) / np.sqrt(stats.var), -10, 10)
    else:
        assert t.obs.data.shape == (8, 8, 2) and t.obs.data.dtype == jnp.uint8 and 0.2 < obs.mean() < 0.4
    dist, value = training.network.apply(states[-1].learner.params, jnp.array(obs, jnp.float32))
    np.testing.assert_allclose(t.value.reshape(64), value, rtol=1e-4, atol=1e-4)
    action = t.action.reshape(64, -1)
    if norm:
        assert (abs(action) > 0.01).mean() > 0.9  # stored as drawn; only the environment clips
        expected = scipy.stats.norm.logpdf(action, dist.mean, np.exp(dist.log_std)).sum(-1)
    else:
        each = zip(np.split(np.asarray(dist.logits), [2, 5], -1), action.T, strict=True)
        expected = sum(scipy.special.log_softmax(logits, -1)[np.arange(64), a] for logits, a in each)
    np.testing.assert_allclose(t.log_prob.reshape(64), expected, atol=1e-4)


@pytest.mark.slow
def test_two_seeds_at_once_are_the_two_runs():
    one = Training(ppo, Noise(Discrete((3,))), ARGS)
    both = Training(ppo, Noise(Discrete((3,))), replace(ARGS, num_seeds=2, seed=5)).run(3)
    assert all((x[0] != x[1]).any() for x in (both[0][0].environments.obs, both[1][0]["losses/policy_loss"]))
    for i in range(2):
        states, metrics, _ = one.run(3, jax.random.key(5 + i))
        leaves_close(jax.tree.map(lambda x, i=i: x[i], both[0][-1].learner), states[-1].learner, rtol=1e-3, atol=1e-4)
        leaves_close(jax.tree.map(lambda x, i=i: x[i], both[1]), metrics, rtol=1e-2, atol=1e-4)


@pytest.mark.slow
def test_chunks_differ_in_their_keys_and_share_their_observation_statistics():
    """Nothing is learned, so the ratio stays 1 if the loss normalises as the rollout did, in every chunk, by statistics
    that the update changes. Noise draws its observations from the keys of the steps."""
    args = having(
        num_envs=16, num_rollout_chunks=4, num_minibatches=4, learning_rate=1e-30, norm_obs=True,
        total_timesteps=128 * 4,
    )  # fmt: skip
    training = Training(ppo, Noise(Discrete((3,))), args)
    state = training.init(training.keys)
    state.learner.params["params"]["actor"]["kernel"] *= 300  # the policy head starts at nearly 0
    for _ in range(3):
        state, metrics, _ = training.step(state)
        assert abs(metrics["losses/approx_kl"]) < 1e-6 and metrics["losses/clipfrac"] == 0
        assert abs(metrics["outer/kl"]) < 1e-6 and 0 < metrics["losses/entropy"] < 1


def test_sizes_beyond_32_bits_can_be_measured():
    sizes = dict(num_envs=2**22, num_steps=2**10, minibatch_size=2**20, total_timesteps=2**32)
    args = having(**sizes, num_rollout_chunks=4)
    training = Training(ppo, Bandit(), args)
    jax.eval_shape(training.step, jax.eval_shape(training.init, training.keys))


class Unrewarded(Bandit):
    """Rewards that have nothing to do with the action."""

    def step(self, key, state, action):
        state, obs, _, *ends = super().step(key, state, action)
        return state, obs, jax.random.normal(key), *ends


def test_on_noise_an_update_gains_on_its_own_transitions_only():
    flags = dict(num_envs=64, minibatch_size=64, ent_coef=0.0, total_timesteps=60 * 8 * 64)
    rows = Training(ppo, Unrewarded(), having(**flags)).run(60)[1][1:]
    names = ("own_gain", "fresh_gain", "fresh_gain_se")
    own, fresh, errors = (np.array([row[f"outer/{name}"] for row in rows]) for name in names)
    error = np.sqrt((errors**2).sum()) / len(errors)
    assert own.mean() > 5 * error and abs(fresh.mean()) < 4 * error
    assert 0.5 < fresh.std() / np.sqrt((errors**2).mean()) < 2  # the error is that of the numbers


def test_a_default_minibatch_has_two_transitions_at_least():
    """Of one, --norm-adv would make the advantage 0."""
    assert ppo.Args(num_envs=1, num_steps=8).minibatch_size == 2
    for flags in ({"minibatch_size": 1}, {"num_minibatches": 8}):
        assert "--num-minibatches 8: of 1 transition each" in refusal(ppo.Args, num_envs=1, num_steps=8, **flags)
        assert ppo.Args(num_envs=1, num_steps=8, norm_adv=False, **flags).minibatch_size == 1


def test_single_numbers_cannot_be_stacked(monkeypatch):
    class Scalar(Noise):
        obs_shape = ()

    monkeypatch.setattr(envs, "make_suite", lambda *_: Scalar(Discrete((2,))))
    assert "--frame-stack 3: observations of mine are single numbers" in refusal(envs.make, "mine", 4, frame_stack=3)


def learned(script, toy, observations, args):
    """What the network gives for these observations after 100 updates: in PPO the policy and the values."""
    sizes = dict(num_envs=32, num_steps=16, minibatch_size=128, num_minibatches=None, hidden_sizes=(16,))
    args = replace(args, **sizes, total_timesteps=512 * 100, gamma=0.8, anneal_lr=True)
    training = Training(script, toy, args)
    states, *_ = training.run(100)
    return training.network.apply(states[-1].learner.params, jnp.array(observations))


def test_learns_the_best_policy_of_two_states_and_its_values_beyond_the_time_limit():
    """Episodes are cut after 5 steps, but the values are those of going on for ever: 5 and -0.5 + 0.8 * 5."""
    dist, value = learned(ppo, TwoStates(), np.eye(2), replace(ARGS, ent_coef=0.0))
    np.testing.assert_array_equal(dist.mode()[:, 0], [1, 0])
    np.testing.assert_allclose(value, [3.5, 5.0], atol=0.15)


@pytest.mark.slow
def test_learns_to_aim():
    dist, value = learned(ppo, Aim(), [[1.0]], replace(ARGS, ent_coef=0.0))
    np.testing.assert_allclose(dist.mean, 0.5, atol=0.05)
    assert jnp.exp(dist.log_std) < 0.5 and -0.25 < value < 0
