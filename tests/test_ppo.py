"""The algorithm, function by function, against NumPy and known answers; then whole updates, and learning.

Nothing here repeats the formula that it tests: it counts, adds up n-step returns, samples, or knows the answer.
"""

from dataclasses import replace
from decimal import Decimal, localcontext

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special
from conftest import Aim, Bandit, Counter, Noise, Stub, TwoStates, on_devices
from jax.sharding import PartitionSpec as P

import ppo
import ppo_rnn
from common import envs, metrics as measures
from common.actions import Box, Categorical, Discrete, Gaussian, bounded, k3
from common.arrays import unpack
from common.run.arguments import UsageError, apply_scaling, parse as parse_flags
from common.statistics import explained_variance, standardise

ARGS = ppo.Args(
    num_envs=8, num_steps=8, total_timesteps=64 * 4, minibatch_size=16, hidden_sizes=(8,), num_devices=1,
    learning_rate=1e-2,
)  # fmt: skip
NARROW = Box(np.full(2, -0.01, np.float32), np.full(2, 0.01, np.float32))
SPACES = {"discrete": Discrete((3,)), "multi-discrete": Discrete((2, 3, 2)), "continuous": NARROW}


def leaves_close(a, b, **tolerance):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), a, b)


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def differ(a, b):
    return any((np.asarray(x) != np.asarray(y)).any() for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))


class Training:
    """ppo.py on a toy, update by update."""

    def __init__(self, toy, args):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(envs, "make", lambda env_id, num_envs, *_, **__: envs.VectorEnv(toy, num_envs))
            self.args, self.env, self.network, init, step, self.measured, self.keys = ppo.build(args)
        self.init, self.step = jax.jit(init), jax.jit(step)

    def run(self, num_updates, keys=None):
        """-> the states after 0, 1, ... updates, the metrics of each update."""
        states, metrics = [self.init(self.keys if keys is None else keys)], []
        for _ in range(num_updates):
            state, row, _ = self.step(states[-1])
            states.append(state)
            metrics.append(jax.device_get(row))
        return states, metrics


# Generalised advantage estimation


def random_transitions(steps=7, number=64):
    """Both kinds of end at random, at the first and the last step too. Values and rewards without any pattern."""
    rng = np.random.default_rng(0)
    terminated = rng.random((steps, number)) < 0.2
    truncated = (rng.random((steps, number)) < 0.25) & ~terminated
    assert all(x[t].any() for x in (terminated, truncated) for t in (0, steps - 1))
    reward, value, final = rng.normal(size=(3, steps, number))
    nothing = np.zeros((steps, number))
    t = ppo.Transition(nothing, nothing, nothing, value, reward, terminated, truncated, final * truncated)
    return jax.tree.map(lambda x: x if x.dtype == bool else x.astype(np.float32), t), rng.normal(size=number)


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


@pytest.fixture(scope="module")
def gae():
    return jax.jit(ppo.compute_gae)


@pytest.mark.parametrize("gamma, lam", [(0.9, 0.65), (0.99, 0.95), (1.0, 0.5), (0.9, 0.0), (0.9, 1.0)])
def test_gae_is_the_weighted_mean_of_n_step_returns(gae, gamma, lam):
    t, last_value = random_transitions()
    np.testing.assert_allclose(
        gae(t, last_value, gamma, lam), mean_of_n_step_returns(t, last_value, gamma, lam), rtol=1e-4, atol=1e-5
    )


def test_the_value_of_a_reset_observation_does_not_reach_the_targets_before_it(gae):
    t, last_value = random_transitions()
    done = t.terminated | t.truncated
    value, garbage_last = t.value.copy(), np.where(done[-1], 1e3, last_value)
    value[1:][done[:-1]] = 1e3
    clean, garbage = gae(t, last_value, 0.9, 0.8), gae(t._replace(value=value), garbage_last, 0.9, 0.8)
    np.testing.assert_allclose(garbage + value, clean + t.value, atol=1e-3)  # targets
    other = value == t.value
    np.testing.assert_array_equal(garbage[other], clean[other])


GAMMA = 0.9
NOBODY = ppo.Learner({}, None, None, None)
COUNTED = replace(ARGS, num_envs=32, num_steps=24, minibatch_size=None, num_minibatches=1, total_timesteps=768)


def value_of_count(_, obs):
    """Of a Counter without its time limit: 1 + gamma + ... until `end`; garbage after a terminal step."""
    left = obs[:, 1].astype(jnp.float32) - obs[:, 0]
    return jnp.where(left > 0, (1 - GAMMA**left) / (1 - GAMMA), 1e3)


@pytest.fixture(scope="module")
def counted():
    """A rollout of Counters that end after 1 to 9 steps, with a time limit of 5."""
    env, args = envs.VectorEnv(Counter(ends=tuple(range(1, 10)), limit=5), 32), COUNTED

    def run(key):
        env_state, obs = env.reset(key)
        environments = ppo.Environments(env_state, obs, None)
        rollout = ppo.rollout(args, env, Stub(value_of_count), NOBODY, environments, jax.random.fold_in(key, 1))
        return rollout, ppo.compute_gae(rollout[1], rollout[2], GAMMA, 0.7)

    return jax.device_get(on_devices(run)(jax.random.key(0)))


def test_true_values_leave_no_advantage_whatever_ends_an_episode(counted):
    """Only if a truncated episode goes on with V of its last observation, and a terminated one with 0."""
    (_, t, *_), advantage = counted
    time, end = t.obs[..., 0] + 1, t.obs[..., 1]
    assert ((time == 5) & (end == 5)).any() and t.truncated.any() and t.terminated.any()
    np.testing.assert_allclose(advantage, 0, atol=1e-4)


def test_final_value_is_that_of_the_observation_before_the_reset(counted):
    (chunk, t, last_value, _), _ = counted
    time, end = t.obs[..., 0] + 1, t.obs[..., 1].astype(float)
    truncated = (time == 5) & (end > 5)
    np.testing.assert_array_equal(t.truncated, truncated)
    np.testing.assert_array_equal(t.terminated, time == end)
    np.testing.assert_allclose(t.final_value, np.where(truncated, (1 - GAMMA ** (end - 5)) / (1 - GAMMA), 0), rtol=1e-5)
    np.testing.assert_allclose(last_value, value_of_count(None, chunk.obs), rtol=1e-6)


def test_rollout_hands_on_what_it_saw(counted):
    """Observations follow each other in their own dtype, and the sums count the episodes."""
    (chunk, t, _, sums), _ = counted
    assert t.obs.dtype == np.uint32
    done = t.terminated | t.truncated
    following = np.concatenate([t.obs[1:], chunk.obs[None]])
    np.testing.assert_array_equal(following[~done], (t.obs + np.array([1, 0, 0, 0], np.uint32))[~done])
    assert (following[done][:, 0] == 0).all()
    length = t.obs[..., 0][done] + 1.0
    success = (t.terminated & (t.obs[..., 1] % 2 == 0))[done]
    np.testing.assert_allclose(sums, [done.sum(), length.sum(), length.sum(), success.sum()])
    np.testing.assert_allclose(t.log_prob, np.log(0.5), rtol=1e-6)


# The loss


def loss_of(args, prob, old_prob, advantage, value, old_value, target):
    """ppo_loss of transitions whose action 0 has probability `prob` now and `old_prob` when it was taken."""
    prob, old_prob, advantage, value, old_value, target = (
        jnp.asarray(x, jnp.float32) for x in (prob, old_prob, advantage, value, old_value, target)
    )

    def policy(params, obs):
        return Categorical(jnp.log(jnp.stack([params, 1 - params], -1)), (2,)), value

    batch = ppo.Batch(
        jnp.zeros((prob.size, 1)), jnp.zeros((prob.size, 1), int), jnp.log(old_prob), old_value, advantage, target
    )
    (loss, parts), grads = jax.value_and_grad(lambda p: ppo.ppo_loss(args, policy, p, batch), has_aux=True)(prob)
    return float(loss), {name.partition("/")[2]: float(x) for name, x in parts.items()}, grads


@pytest.mark.parametrize(
    "ratio, advantage, expected, moves",
    [(1.5, 1, -1.2, False), (1.1, 1, -1.1, True), (0.5, 1, -0.5, True), (1.5, -1, 1.5, True), (0.9, -1, 0.9, True),
     (0.5, -1, 0.8, False), (1.5, 2, -2.4, False), (0.5, -3, 2.4, False)],
)  # fmt: skip
def test_policy_loss_is_clipped_only_where_that_makes_it_worse(ratio, advantage, expected, moves):
    args = replace(ARGS, ent_coef=0.0)
    _, parts, grads = loss_of(args, [0.4 * ratio], [0.4], [advantage], [0.0], [0.0], [0.0])
    assert parts["policy_loss"] == pytest.approx(expected, rel=1e-5)
    assert parts["clipfrac"] == (ratio not in (0.9, 1.1))
    assert grads[0] == pytest.approx(-advantage / 0.4 if moves else 0.0, rel=1e-4)


@pytest.mark.parametrize(
    "value, clipped, unclipped",
    [(1.1, 0.81, 0.81), (1.5, 0.64, 0.25), (0.5, 2.25, 2.25), (2.5, 0.64, 0.25), (3.5, 2.25, 2.25), (0.9, 1.21, 1.21)],
)
def test_value_loss_by_hand_on_both_sides_of_the_clip(value, clipped, unclipped):
    """Old value 1, target 2, epsilon 0.2."""
    for clip_vloss, expected in ((True, clipped), (False, unclipped)):
        _, parts, _ = loss_of(replace(ARGS, clip_vloss=clip_vloss), [0.4], [0.4], [0.0], [value], [1.0], [2.0])
        assert parts["value_loss"] == pytest.approx(0.5 * expected, rel=1e-5)


def test_loss_is_the_weighted_sum_of_its_parts_by_hand():
    args = replace(ARGS, vf_coef=0.25, ent_coef=0.1, clip_vloss=False)
    loss, parts, _ = loss_of(args, [0.5, 0.2], [0.4, 0.4], [2.0, -1.0], [1.0, 0.0], [0.0, 0.0], [0.0, 3.0])
    policy_loss = (-2.4 + 0.8) / 2  # ratios 1.25 and 0.5, both clipped
    value_loss = 0.5 * (1 + 9) / 2
    entropy = (np.log(2) - 0.2 * np.log(0.2) - 0.8 * np.log(0.8)) / 2
    assert parts["policy_loss"] == pytest.approx(policy_loss, rel=1e-5)
    assert parts["value_loss"] == pytest.approx(value_loss, rel=1e-5)
    assert parts["entropy"] == pytest.approx(entropy, rel=1e-5)
    assert parts["approx_kl"] == pytest.approx((0.25 - np.log(1.25) - 0.5 - np.log(0.5)) / 2, rel=1e-4)
    assert loss == pytest.approx(policy_loss + 0.25 * value_loss - 0.1 * entropy, rel=1e-5)


def drawn(critics, size=40):
    """Transitions of two actions, of which some are clipped: logits [n, 2], log-probabilities then, actions,
    advantages [n]; new values, old ones and targets [n, critics]."""
    rng = np.random.default_rng(4)
    logits, action, advantage = rng.normal(size=(size, 2)), rng.integers(0, 2, size), rng.normal(size=size)
    log_prob = np.log(scipy.special.softmax(logits, 1))[np.arange(size), action] + 0.3 * rng.normal(size=size)
    columns = logits, log_prob, action, advantage, *0.4 * rng.normal(size=(3, size, critics))
    return [x if x.dtype == int else x.astype(np.float32) for x in columns]


def losses_by_loop(args, logits, log_prob, action, advantage, value, old_value, target):
    """The loss of what was `drawn`, transition by transition, and its parts, those of each critic last."""
    eps, rows = args.clip_eps, []
    for i, taken in enumerate(action):
        probs = np.exp(logits[i].astype(float)) / np.exp(logits[i].astype(float)).sum()
        ratio = probs[taken] / np.exp(log_prob[i])
        within = min(max(ratio, 1 - eps), 1 + eps)
        policy_loss, entropy, errors = -min(ratio * advantage[i], within * advantage[i]), 0.0, []
        for p in probs:
            entropy -= p * np.log(p)
        for new, old, wanted in zip(value[i], old_value[i], target[i], strict=True):
            near = old + min(max(new - old, -eps), eps)
            far = max(abs(new - wanted), abs(near - wanted)) if args.clip_vloss else abs(new - wanted)
            errors.append(0.5 * far**2)
        loss = policy_loss + args.vf_coef * sum(errors) - args.ent_coef * entropy
        rows.append([loss, policy_loss, entropy, ratio - 1 - np.log(ratio), within != ratio, *errors])
    names = ("policy_loss", "entropy", "approx_kl", "clipfrac", "value_loss")
    loss, *parts = np.mean(rows, 0)
    return loss, {f"losses/{name}": part for name, part in zip(names, parts, strict=False)}, parts[len(names) :]


def test_advantages_are_normalised_over_the_minibatch_of_all_devices():
    x = np.random.default_rng(0).normal(5, 3, 32).astype(np.float32)
    for number in (1, 4):
        normal = on_devices(standardise, number, P("device"), P("device"))(x)
        np.testing.assert_allclose(normal, (x - x.mean()) / x.std(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("value", [-2.7, 1 / 3, 0.0, 3.0, 1234.567, 1e9])
def test_equal_advantages_push_nowhere(value, number):
    """In any number, and also if they are equal but for their last bit."""
    normal = on_devices(standardise, number, P("device"), P("device"))
    for size in (1, 7, 2048):
        x = np.full(number * size, value, np.float32)
        np.testing.assert_array_equal(normal(x), 0)
        x[::3], x[1::3] = np.nextafter(x[::3], np.float32(np.inf)), np.nextafter(x[1::3], np.float32(-np.inf))
        np.testing.assert_allclose(normal(x), 0, atol=1e-6)


@pytest.mark.parametrize("number", [1, 4])
@pytest.mark.parametrize("mean, std", [(0, 1e-5), (1e3, 1e-2), (-1e3, 1e-2), (1e-3, 1e-3), (1e6, 1e3), (0, 1e6)])
def test_advantages_are_standardised_to_the_last_digits_whatever_their_mean(mean, std, number):
    x = np.random.default_rng(0).normal(mean, std, 1024).astype(np.float32)
    exact = x.astype(np.float64)
    exact = (exact - exact.mean()) / (exact.std() + 1e-8)
    normal = on_devices(standardise, number, P("device"), P("device"))(x)
    np.testing.assert_allclose(normal, exact, rtol=1e-5, atol=2e-6)


def test_a_diverged_advantage_is_not_hidden():
    for lost in (np.nan, np.inf):
        assert np.isnan(on_devices(standardise)(jnp.array([3.0, lost, 3.0]))).any()


# Distributions


def random_pair(kind):
    rng = np.random.default_rng(1)
    if kind == "gaussian":
        return [Gaussian(*(jnp.array(rng.normal(0, 0.5, (2, 3)), jnp.float32))) for _ in range(2)]
    nvec = (4,) if kind == "discrete" else (2, 3, 4)
    return [Categorical(jnp.array(rng.normal(size=sum(nvec)), jnp.float32), nvec) for _ in range(2)]


@pytest.mark.parametrize("kind", ["discrete", "multi-discrete", "gaussian"])
def test_kl_and_entropy_agree_with_samples(kind):
    """Actions of p: mean of log p - log q is KL(p || q), the mean of -log p the entropy."""
    p, q = random_pair(kind)
    actions = jax.vmap(p.sample)(jax.random.split(jax.random.key(0), 2**15))
    log_p, log_q = (np.asarray(jax.vmap(dist.log_prob)(actions), np.float64) for dist in (p, q))
    for exact, samples in ((p.kl(q), log_p - log_q), (p.entropy(), -log_p)):
        assert abs(exact - samples.mean()) < 5 * samples.std() / 2**7.5
    assert p.kl(q) > 0.1 and abs(p.kl(q) - q.kl(p)) > 0.01 and abs(p.kl(p)) < 1e-6


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


@pytest.mark.parametrize("step", [1e-7, 1e-6, 1e-5, 1e-4, 1e-2, 1.0, 10.0, 100.0])
@pytest.mark.parametrize(
    "kind, scale", [("discrete", 0.01), ("discrete", 20.0), ("multi-discrete", 1.0), ("gaussian", 1.0)]
)
def test_kl_is_exact_for_the_smallest_step_and_for_a_large_one(kind, scale, step):
    """From 1e-15 to 100 and more. A Gaussian moves its mean, its deviation, or both."""
    rng = np.random.default_rng(0)
    shapes = {"discrete": (1, 5), "multi-discrete": (3, 2), "gaussian": (2, 3)}
    old = scale * rng.normal(size=(12, *shapes[kind]))
    moved = min(step, 3.0 if kind == "gaussian" else step) * rng.normal(size=old.shape)
    if kind == "gaussian":
        moved[0::3, 0] = moved[1::3, 1] = 0
    old, new = (x.astype(np.float32) for x in (old, old + moved))
    if kind == "gaussian":
        kl = jax.jit(lambda a, b: Gaussian(a[:, 0], a[:, 1]).kl(Gaussian(b[:, 0], b[:, 1])))(old, new)
    else:
        nvec = (old.shape[2],) * old.shape[1]
        kl = jax.jit(lambda a, b: Categorical(a, nvec).kl(Categorical(b, nvec)))(
            old.reshape(12, -1), new.reshape(12, -1)
        )
    wanted = [float(decimal_kl(kind, *pair)) for pair in zip(old, new, strict=True)]
    assert (kl >= 0).all() and max(wanted) > 0
    np.testing.assert_allclose(kl, wanted, rtol=2e-4, atol=1e-19)


def test_k3_is_exact_for_small_ratios_and_large_ones():
    x = np.concatenate([sign * np.geomspace(1e-18, 80, 999) for sign in (1, -1)]).astype(np.float32)
    with localcontext(prec=50):
        wanted = [float(Decimal(float(v)).exp() - 1 - Decimal(float(v))) for v in x]
    np.testing.assert_allclose(jax.jit(k3)(x), wanted, rtol=1e-5)
    assert k3(0.0) == 0
    slope = jax.jit(jax.vmap(jax.grad(k3)))(x)
    np.testing.assert_allclose(slope, np.expm1(x.astype(np.float64)), rtol=1e-5)


@pytest.mark.parametrize("kind", ["discrete", "multi-discrete"])
def test_categorical_equals_the_enumeration_of_all_joint_actions(kind):
    p, q = random_pair(kind)
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


@pytest.mark.parametrize("slope, end", [(1.0, -5.0), (-1.0, 2.0), (0.0, 0.3)])
def test_a_bounded_log_std_stops_at_its_bound_and_comes_back(slope, end):
    """Gradient descent on slope x first, then on (x - 0.5)²."""
    descend = jax.jit(lambda x, loss_slope: x - 0.1 * jax.grad(lambda x: loss_slope * bounded(x, -5.0, 2.0))(x))
    x = jnp.float32(0.3)
    for _ in range(100):
        x = descend(x, slope)
    assert float(x) == pytest.approx(end, abs=0.11) and float(bounded(x, -5.0, 2.0)) == pytest.approx(end)
    for _ in range(100):
        x = x - 0.1 * jax.grad(lambda x: (bounded(x, -5.0, 2.0) - 0.5) ** 2)(x)
    assert float(x) == pytest.approx(0.5, abs=1e-3)


# The inner loop


def linear(params, obs):
    return obs @ params


def value_batch(obs, target):
    """A batch whose only gradient is that of the value loss."""
    zeros = jnp.zeros(len(obs))
    log_prob = jnp.full(len(obs), np.log(0.5))
    return ppo.Batch(jnp.asarray(obs), jnp.zeros((len(obs), 1), int), log_prob, zeros, zeros, jnp.asarray(target))


def optimise(args, network, params, batch, number=1, opt_state=None, learning_rate=0.01):
    learner = ppo.Learner(params, ppo.ADAM.init(params) if opt_state is None else opt_state, None, None)
    run = lambda learner, batch: ppo.optimise(args, network, learner, batch, jax.random.key(0), learning_rate)  # noqa: E731
    return on_devices(run, number, (P(), P("device")))(learner, batch)


@pytest.mark.parametrize("max_grad_norm", [100.0, 1e-4])
def test_inner_steps_are_those_of_a_numpy_adam_with_a_clipped_global_norm(max_grad_norm):
    """Gradients of about 1e-5, where Adam's epsilon of 1e-5 matters."""
    rng = np.random.default_rng(0)
    obs, target = (rng.normal(size=shape).astype(np.float32) for shape in ((16, 3), (16,)))
    scale = 1e-5 if max_grad_norm > 1 else 1.0
    args = replace(
        ARGS, num_minibatches=1, minibatch_size=None, update_epochs=3, clip_vloss=False, vf_coef=scale,
        max_grad_norm=max_grad_norm,
    )  # fmt: skip
    learner, metrics = optimise(args, Stub(linear), jnp.zeros(3), value_batch(obs, target))
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


def record(size, steps):
    """In Adam's place: moves nothing and writes down every gradient that it gets."""
    init = lambda params: (jnp.int32(0), jnp.zeros((steps, size)))  # noqa: E731

    def update(grads, state, params=None):
        return jnp.zeros(size), (state[0] + 1, state[1].at[state[0]].set(grads))

    return optax.GradientTransformation(init, update)


def test_each_epoch_uses_every_transition_exactly_once(monkeypatch):
    """One parameter per transition, whose gradient says whether its transition is in the minibatch."""
    size, epochs, number = 48, 3, 6
    monkeypatch.setattr(ppo, "ADAM", record(size, epochs * number))
    args = replace(
        ARGS, num_envs=size, num_steps=1, minibatch_size=size // number, num_minibatches=None, update_epochs=epochs,
        vf_coef=1.0, clip_vloss=False, max_grad_norm=1e9, ent_coef=0.0,
    )  # fmt: skip
    network = Stub(lambda params, obs: params[obs])
    learner, _ = optimise(args, network, jnp.zeros(size), value_batch(np.arange(size), np.full(size, -float(number))))
    used = np.asarray(learner.opt_state[1]) * size / number**2
    used = used.reshape(epochs, number, size)
    np.testing.assert_allclose(used.sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(used.sum(2), size // number, rtol=1e-5)
    assert set(np.unique(used.round(4))) == {0, 1}
    orders = {tuple(np.flatnonzero(minibatch)) for epoch in used for minibatch in epoch}
    assert len(orders) == epochs * number  # shuffled anew in each epoch
    assert tuple(range(size // number)) not in orders


def random_batch(args, network, size, space):
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(size, 3)).astype(np.float32)
    params = network.init(jax.random.key(0), obs)
    dist, value = network.apply(params, obs)
    action = dist.sample(jax.random.key(1))
    advantage, error = rng.normal(1, 2, (2, size)).astype(np.float32)
    return params, ppo.Batch(obs, action, dist.log_prob(action) + 0.1 * error, value, advantage, value + error), dist


@pytest.mark.parametrize("number_of_minibatches", [1, 4])
def test_one_and_eight_devices_take_the_same_steps(monkeypatch, number_of_minibatches):
    """The global minibatches hold the same transitions, so parameters and metrics agree."""
    monkeypatch.setattr(ppo, "random_permutation", lambda key, size: lambda positions: positions)
    size, space = 64, NARROW
    args = replace(ARGS, num_minibatches=number_of_minibatches, minibatch_size=None, update_epochs=2)
    network = ppo.ActorCritic(args, space)
    params, batch, _ = random_batch(args, network, size, space)
    learner = ppo.Learner(params, ppo.ADAM.init(params), None, None)

    def run(learner, batch):
        new, metrics = ppo.optimise(args, network, learner, batch, jax.random.key(0), jnp.float32(0.01))
        return new.params, metrics | measured(args, network, learner.params, learner, new, sample_of(batch))

    # Device d's m-th share is part of the m-th minibatch: on one device these shares have to follow each other.
    shares = np.arange(size).reshape(8, number_of_minibatches, -1).swapaxes(0, 1).reshape(-1)
    one = on_devices(run)(learner, jax.tree.map(lambda x: x[shares], batch))
    eight = on_devices(run, 8, (P(), P("device")))(learner, batch)
    assert differ(one[0], params)
    leaves_close(eight[0], one[0], atol=1e-5)
    leaves_close(eight[1], one[1], rtol=1e-3, atol=1e-5)


def test_target_kl_stops_after_the_epoch_that_exceeds_it():
    args = replace(ARGS, learning_rate=0.03)
    network = ppo.ActorCritic(args, SPACES["discrete"])
    params, batch, _ = random_batch(args, network, 64, None)
    run = lambda **flags: optimise(replace(args, **flags), network, params, batch, learning_rate=0.03)  # noqa: E731
    full, one_epoch = run(), run(update_epochs=1)
    stopped, untouched = run(target_kl=1e-9), run(target_kl=1e9)
    assert (one_epoch[1]["outer/epochs"], stopped[1]["outer/epochs"], untouched[1]["outer/epochs"]) == (1, 1, 4)
    leaves_close(stopped, one_epoch, rtol=1e-5, atol=1e-7)
    leaves_close(untouched, full, rtol=1e-5, atol=1e-7)
    assert differ(full[0].params, one_epoch[0].params)


# What is measured


def sample_of(batch):
    """A batch [n, ...] as the sample of an update of one chunk."""
    return measures.Sample(jax.tree.map(lambda x: x[None], batch), None)


def measured(args, network, previous, old, new, sample):
    """What an update from learner `old` to `new` measures."""
    policy = lambda params, batch: network.apply(params, batch.obs)[0]  # noqa: E731
    return measures.measure_update(policy, previous, old.params, new.params, sample.batch, args.batch_size)


def observed(obs, action=None, advantage=None):
    nothing = jnp.zeros(len(obs))
    action = jnp.zeros((len(obs), 1), jnp.int32) if action is None else action
    advantage = nothing if advantage is None else advantage
    return sample_of(ppo.Batch(jnp.asarray(obs), action, nothing, nothing, advantage, nothing))


@pytest.mark.parametrize("number", [1, 8])
def test_measures_by_hand(number):
    """Norms, the exact KL over all actions, and the gains with their error, in NumPy."""
    args = replace(ARGS, num_envs=8, num_steps=3, minibatch_size=None, num_minibatches=1)
    network, rng = ppo.ActorCritic(args, Discrete((2, 3))), np.random.default_rng(0)
    obs = rng.normal(size=(24, 3)).astype(np.float32)
    action = rng.integers([2, 3], size=(24, 2)).astype(np.int32)
    advantage = (5 + 3 * rng.normal(size=24)).astype(np.float32)
    trees = [jax.tree.map(lambda x: 2 * x, network.init(jax.random.key(seed), obs)) for seed in (0, 1, 2)]
    for params, scale in zip(trees, (30.0, 50.0, 40.0), strict=True):  # the policy head starts at nearly 0
        params["params"]["actor"]["kernel"] *= scale
    old, new, previous = trees
    learners = [ppo.Learner(params, None, None, None) for params in (old, new)]

    def run(sample):
        return measured(args, network, previous, *learners, sample)

    def probabilities(params):
        parts = np.split(np.asarray(network.apply(params, obs)[0].logits, np.float64), [2], axis=-1)
        return [np.exp(part) / np.exp(part).sum(-1, keepdims=True) for part in parts]

    def ratios(params):
        """pi / pi_old of the actions taken."""
        each = [part[np.arange(24), action.T[i]] for i, part in enumerate(probabilities(params))]
        return each[0] * each[1]

    exact_kl = sum((p * np.log(p / q)).sum(-1).mean() for p, q in zip(*map(probabilities, (old, new)), strict=True))
    scaled = (advantage - advantage.mean()) / advantage.std()
    own, lost = ((ratios(params) / ratios(old) - 1) * scaled for params in (new, previous))
    metrics = on_devices(run, number, P(None, "device"))(observed(obs, action, advantage))
    assert exact_kl > 0.01 and abs(own.mean()) > 0.01 and abs(lost.mean()) > 0.01
    np.testing.assert_allclose(metrics["outer/kl"], exact_kl, rtol=1e-3)
    np.testing.assert_allclose(metrics["outer/ddr"], 24 / exact_kl, rtol=1e-3)
    np.testing.assert_allclose(metrics["outer/own_gain"], own.mean(), rtol=1e-3)
    np.testing.assert_allclose(metrics["outer/fresh_gain"], -lost.mean(), rtol=1e-3)
    np.testing.assert_allclose(metrics["outer/fresh_gain_se"], lost.std() / np.sqrt(24), rtol=1e-3)
    difference = np.concatenate([np.ravel(x - y) for x, y in zip(*map(jax.tree.leaves, (old, new)), strict=True)])
    np.testing.assert_allclose(metrics["outer/update_norm"], np.linalg.norm(difference), rtol=1e-5)
    assert metrics["finite"]


def test_explained_variance_by_hand_over_devices():
    """Targets 0, 1, 2, 3 predicted as 0, 1, 2, 5: errors of variance 3/4, targets of variance 5/4."""
    error, target = np.array([0.0, 0.0, 0.0, -2.0], np.float32), np.arange(4, dtype=np.float32)
    for number in (1, 2):
        explained = on_devices(explained_variance, number, P("device"))(error, target)
        np.testing.assert_allclose(explained, 1 - 0.75 / 1.25, rtol=1e-5)


@pytest.mark.parametrize("target", [0.0, 0.1, -3e7])  # the mean of equal numbers need not be that number
@pytest.mark.parametrize("error", [[0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 2.0]])
def test_of_constant_targets_nothing_is_explained(target, error):
    for number in (1, 2):
        inputs = np.tile(np.float32(error), 257)[:1026], np.full(1026, target, np.float32)
        assert np.isnan(on_devices(explained_variance, number, P("device"))(*inputs))


def test_targets_that_differ_between_devices_only_are_not_constant():
    """Each device has equal ones."""
    error, target = np.float32([0, 0, 1, 1]), np.float32([0, 0, 2, 2])
    np.testing.assert_allclose(on_devices(explained_variance, 2, P("device"))(error, target), 0.75, rtol=1e-5)


def test_a_parameter_that_is_not_finite_is_reported():
    args = ARGS
    network = ppo.ActorCritic(args, Discrete((2,)))
    obs = jnp.ones((4, 3))
    params = network.init(jax.random.key(0), obs)
    broken = jax.tree.map(lambda x: x.at[..., 0].set(jnp.nan), params)
    old, new = (ppo.Learner(x, None, None, None) for x in (params, broken))
    run = lambda new: measured(args, network, params, old, new, observed(obs))  # noqa: E731
    assert not on_devices(run)(new)["finite"] and on_devices(run)(old)["finite"]


# Whole updates


@pytest.mark.parametrize("kind", SPACES)
def test_the_loss_sees_each_transition_exactly_as_the_behaviour_policy_did(kind):
    """With one minibatch the first one is the only one: its ratio is 1. Observations are normalised and far from
    mean 0, continuous actions far outside their bounds."""
    args = replace(ARGS, minibatch_size=None, num_minibatches=1, update_epochs=1, norm_obs=True, total_timesteps=64 * 5)
    training = Training(Noise(SPACES[kind]), args)
    states, metrics = training.run(4)
    for row in metrics:
        assert abs(row["losses/approx_kl"]) < 1e-7 and row["losses/clipfrac"] == 0
        assert row["outer/kl"] > 1e-7  # it does learn
    assert states[-1].learner.obs_stats.count == 4 * 64 and states[-1].learner.obs_stats.var[2] > 1000
    assert 1 < states[-1].learner.obs_stats.mean[0] < 5

    def run(learner, environments):
        return ppo.rollout(args, training.env, training.network, learner, environments, jax.random.key(0))[1]

    chunk = jax.tree.map(lambda x: x[0], states[-1].environments)
    t = jax.device_get(on_devices(run)(states[-1].learner, chunk))
    stats = states[-1].learner.obs_stats
    normal = np.clip((t.obs - stats.mean) / np.sqrt(stats.var), -10, 10)
    dist = training.network.apply(states[-1].learner.params, jnp.array(normal.reshape(64, 3)))[0]
    action = t.action.reshape(64, -1)
    if kind == "continuous":
        assert (abs(action) > 0.01).mean() > 0.9  # stored as drawn; only the environment clips
        std = np.exp(dist.log_std)
        expected = (-0.5 * ((action - dist.mean) / std) ** 2 - np.log(std * np.sqrt(2 * np.pi))).sum(-1)
    else:
        parts = np.split(np.asarray(dist.logits), np.cumsum(dist.nvec)[:-1], -1)
        expected = sum(
            part[np.arange(64), a] - np.log(np.exp(part).sum(-1)) for part, a in zip(parts, action.T, strict=True)
        )
    np.testing.assert_allclose(t.log_prob.reshape(64), expected, atol=1e-4)


@pytest.mark.parametrize("anneal", [True, False])
def test_learning_rate_falls_by_the_update_and_moves_the_parameters(monkeypatch, anneal):
    """Plain gradient descent in Adam's place, and gradients cut to norm 1e-3: each update's way is rate * 1e-3."""
    monkeypatch.setattr(ppo, "ADAM", optax.identity())
    args = replace(
        ARGS, anneal_lr=anneal, max_grad_norm=1e-3, minibatch_size=None, num_minibatches=1, update_epochs=1,
        learning_rate=0.1,
    )  # fmt: skip
    _, metrics = Training(Bandit(), args).run(4)
    expected = [0.1, 0.075, 0.05, 0.025] if anneal else [0.1] * 4
    np.testing.assert_allclose([row["charts/learning_rate"] for row in metrics], expected, rtol=1e-6)
    assert min(row["outer/grad_norm"] for row in metrics) > 1e-3
    np.testing.assert_allclose([row["outer/update_norm"] for row in metrics], np.multiply(expected, 1e-3), rtol=2e-3)


@pytest.fixture(scope="module")
def noise():
    return Training(Noise(Discrete((3,))), ARGS)


def test_seeds_repeat_and_differ(noise):
    (start, first), (_, again) = noise.run(3), noise.run(3)
    same(first, again)
    other_start, other = noise.run(3, jax.random.key(1))
    seen = np.concatenate([state.environments.obs[0, :, 1] for state in start])
    assert len(np.unique(seen)) == len(seen)  # each update draws anew
    a, b = start[0], other_start[0]
    assert differ(jax.random.key_data(a.key), jax.random.key_data(b.key))
    assert (a.environments.obs != b.environments.obs).all() and differ(a.learner.params, b.learner.params)
    assert all(a["losses/policy_loss"] != b["losses/policy_loss"] for a, b in zip(first, other, strict=True))


def test_two_seeds_at_once_are_the_two_runs(noise):
    both = Training(Noise(Discrete((3,))), replace(ARGS, num_seeds=2, seed=5)).run(3)
    for i in range(2):
        states, metrics = noise.run(3, jax.random.key(5 + i))
        leaves_close(jax.tree.map(lambda x, i=i: x[i], both[0][-1].learner), states[-1].learner, rtol=1e-3, atol=1e-4)
        leaves_close(jax.tree.map(lambda x, i=i: x[i], both[1]), metrics, rtol=1e-2, atol=1e-4)


def test_eight_devices_play_different_episodes_and_keep_one_learner():
    training = Training(Noise(Discrete((3,))), replace(ARGS, num_devices=8, norm_obs=True, norm_reward=True))
    states, metrics = training.run(2)
    for leaf in jax.tree.leaves(states[-1].learner):
        copies = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        assert len(copies) == 8
        for copy in copies[1:]:
            np.testing.assert_array_equal(copy, copies[0])
    for obs in (np.asarray(state.environments.obs[0]) for state in states):
        assert obs.shape == (8, 3) and len(np.unique(obs[:, 1])) == 8
    learner = states[-1].learner
    assert learner.obs_stats.count == learner.return_stats.count == 2 * 64
    unknown = {"outer/fresh_gain", "outer/fresh_gain_se"}  # of the update before the first
    assert {key for key, value in metrics[0].items() if not np.isfinite(value)} == unknown
    assert all(np.isfinite(value) for value in metrics[1].values())


class Recorded:
    """ppo.py on Counters; what each minibatch of `num_updates` updates held, in order."""

    def __init__(self, monkeypatch, num_updates, **flags):
        batches, loss = [], ppo.ppo_loss

        def spy(args, policy, params, batch):
            jax.debug.callback(lambda batch: batches.append(jax.tree.map(np.asarray, batch)), batch, ordered=True)
            return loss(args, policy, params, batch)

        monkeypatch.setattr(ppo, "ppo_loss", spy)
        # Observations and values are of the size of an id, 2^32: what is learned from them does not matter here.
        args = replace(ARGS, num_envs=16, num_minibatches=8, minibatch_size=None, **flags)
        training = Training(Counter(ends=(50, 60), limit=70), args)
        self.states, self.metrics = training.run(num_updates)
        jax.effects_barrier()
        self.args, self.training, self.batches = args, training, batches
        self.obs = np.concatenate([batch.obs for batch in batches])


@pytest.mark.parametrize("chunks", [1, 4])
def test_one_epoch_uses_every_transition_of_one_behaviour_policy_exactly_once(monkeypatch, chunks):
    """Episodes of 50 steps and more: in two updates of 8 steps each of the 16 environments shows its times 0 to 15,
    once. The stored log-probabilities are those of the parameters before the update, though each minibatch before has
    moved them."""
    run = Recorded(monkeypatch, 2, update_epochs=1, num_rollout_chunks=chunks)
    assert len(run.batches) == 16
    seen = {tuple(row) for row in run.obs}
    assert len(seen) == len(run.obs) == 2 * 16 * 8
    starts = {row[1:] for row in seen if row[0] == 0}
    assert len(starts) == 16 and seen == {(time, *start) for start in starts for time in range(16)}
    for update in range(2):
        params, batches = run.states[update].learner.params, run.batches[8 * update : 8 * (update + 1)]
        assert differ(params, run.states[update + 1].learner.params)
        for batch in batches:
            assert set(batch.obs[:, 0]) <= set(range(8 * update, 8 * (update + 1)))
            dist, value = run.training.network.apply(params, jnp.array(batch.obs))
            np.testing.assert_allclose(batch.log_prob, dist.log_prob(jnp.array(batch.action)), atol=1e-5)
            np.testing.assert_allclose(batch.value, value, rtol=1e-5)


def test_a_chunk_has_all_its_epochs_before_the_next_one(monkeypatch):
    run = Recorded(monkeypatch, 1, update_epochs=3, num_rollout_chunks=4)
    ids = [{tuple(row) for row in batch.obs[:, 1:]} for batch in run.batches]
    assert len(ids) == 3 * 8
    chunks = [set.union(*ids[i : i + 6]) for i in range(0, 24, 6)]  # 3 epochs of 2 minibatches each
    assert [len(chunk) for chunk in chunks] == [4] * 4 and len(set.union(*chunks)) == 16
    counts = {row: [tuple(other) for other in run.obs].count(row) for row in {tuple(row) for row in run.obs}}
    assert set(counts.values()) == {3} and len(counts) == 16 * 8


def test_chunks_report_what_one_rollout_reports():
    """Without learning, on episodes of 5 steps: the same episodes, the same rewards, the same running statistics."""
    rows = []
    for chunks in (1, 2, 4):
        args = replace(
            ARGS, num_envs=8, num_steps=10, num_minibatches=4, minibatch_size=None, learning_rate=1e-30,
            num_rollout_chunks=chunks, norm_obs=True, norm_reward=True, num_devices=2, total_timesteps=80 * 4,
        )  # fmt: skip
        states, metrics = Training(Counter(ends=(5,), limit=9), args).run(2)
        environments = states[-1].environments
        assert environments.obs.shape == (chunks, 8 // chunks, 4) and (environments.obs[..., 0] == 0).all()
        learner = states[-1].learner
        assert learner.obs_stats.count == learner.return_stats.count == 160
        np.testing.assert_allclose(learner.obs_stats.mean[0], 2, rtol=1e-5)  # of the times 0 to 4
        np.testing.assert_allclose(learner.obs_stats.var[0], 2, rtol=1e-4)
        rows.append((metrics[-1]["charts/num_episodes"], metrics[-1]["charts/episodic_length"], learner.return_stats))
    assert rows[0][:2] == (16, 5)
    for row in rows[1:]:
        leaves_close(row, rows[0], rtol=1e-4)


def test_kl_is_that_of_the_policies_before_and_after_the_update():
    """A bandit has one observation, so the policies before and after can simply be compared."""
    training = Training(Bandit(), ARGS)
    states, metrics = training.run(3)
    for old, new, row in zip(states, states[1:], metrics, strict=False):
        p, q = (
            np.asarray(jax.nn.softmax(training.network.apply(s.learner.params, jnp.ones((1, 1)))[0].logits), np.float64)
            for s in (old, new)
        )
        np.testing.assert_allclose(row["outer/kl"], (p * np.log(p / q)).sum(), rtol=1e-2)
        np.testing.assert_allclose(row["outer/ddr"], 64 / row["outer/kl"], rtol=1e-5)
        assert row["charts/num_episodes"] == 64 and row["charts/episodic_length"] == 1
        assert new.update == old.update + 1


@pytest.mark.parametrize("chunks, devices, rows", [(1, 1, 24), (2, 1, 12), (2, 2, 6), (16, 2, 1)])
def test_the_sample_has_as_many_rows_of_each_chunk_and_device(monkeypatch, chunks, devices, rows):
    """24 in all, but at least one of each. Noise draws every observation anew."""
    monkeypatch.setattr(ppo, "KL_SAMPLE", 24)
    args = replace(
        ARGS, num_envs=32, num_rollout_chunks=chunks, num_devices=devices, num_minibatches=16, minibatch_size=None,
        total_timesteps=256 * 4,
    )  # fmt: skip
    training = Training(Noise(Discrete((3,))), args)
    sample = training.step(training.init(training.keys))[2]
    obs = np.asarray(sample.batch.obs)
    assert obs.shape == (chunks, rows * devices, 3) and len(np.unique(obs[..., 1])) == chunks * rows * devices


@pytest.mark.parametrize("chunks", [1, 2])
def test_before_anything_is_learned_the_kl_is_0(chunks):
    """Also where observations are normalised, by statistics that the update changes."""
    args = replace(
        ARGS, num_envs=8 * chunks, num_rollout_chunks=chunks, num_minibatches=4, minibatch_size=None,
        learning_rate=1e-30, norm_obs=True,
    )  # fmt: skip
    training = Training(Noise(Discrete((3,))), args)
    state = training.init(training.keys)
    state.learner.params["params"]["actor"]["kernel"] *= 300  # the policy head starts at nearly 0
    for _ in range(2):
        state, metrics, _ = training.step(state)
        assert abs(metrics["outer/kl"]) < 1e-6 and 0 < metrics["losses/entropy"] < 1


def test_chunks_differ_in_their_keys_and_share_their_observation_statistics():
    """Nothing is learned, so the ratio stays 1 if the loss normalises as the rollout did, in every chunk. Noise draws
    its observations from the keys of the steps."""
    args = replace(
        ARGS, num_envs=16, num_rollout_chunks=4, num_minibatches=4, minibatch_size=None, learning_rate=1e-30,
        norm_obs=True, total_timesteps=128 * 4,
    )  # fmt: skip
    training = Training(Noise(Discrete((3,))), args)
    state = training.init(training.keys)
    state.learner.params["params"]["actor"]["kernel"] *= 300  # the policy head starts at nearly 0
    for update in range(1, 4):
        state, metrics, _ = training.step(state)
        assert abs(metrics["losses/approx_kl"]) < 1e-6 and metrics["losses/clipfrac"] == 0
        assert state.learner.obs_stats.count == 128 * update
        assert len(np.unique(state.environments.obs[..., 0])) == 16


def test_sizes_beyond_32_bits_can_be_measured():
    args = replace(
        ARGS, num_envs=2**22, num_steps=2**10, minibatch_size=2**20, num_minibatches=None, total_timesteps=2**32
    )
    network = ppo.ActorCritic(args, Discrete((2,)))
    obs = jnp.ones((4, 3))
    params = network.init(jax.random.key(0), obs)
    learner = ppo.Learner(params, None, None, None)
    run = on_devices(lambda learner: measured(args, network, params, learner, learner, observed(obs))["outer/ddr"])
    assert jax.eval_shape(run, learner).shape == ()


def test_more_minibatches_than_environments():
    args = replace(ARGS, num_envs=64, num_steps=128, num_minibatches=128, minibatch_size=None, total_timesteps=64 * 128)
    states, metrics = Training(Bandit(), args).run(1)
    assert args.minibatch_size == 64 and states[1].learner.opt_state.count == 4 * 128
    assert metrics[0]["finite"] and metrics[0]["outer/update_norm"] > 0


class Shown(Noise):
    """As Noise, with observations of 11 booleans."""

    obs_shape, obs_dtype = (11,), np.dtype(bool)

    def _observe(self, key):
        return jax.random.bernoulli(key, 0.3, (11,))


def test_booleans_are_kept_as_bits_and_seen_as_they_were():
    args = replace(ARGS, minibatch_size=None, num_minibatches=1, update_epochs=1, total_timesteps=64 * 5)
    training = Training(Shown(Discrete((3,))), args)
    states, metrics = training.run(3)
    assert all(abs(row["losses/approx_kl"]) < 1e-7 and row["outer/kl"] > 1e-7 for row in metrics)

    def run(learner, environments):
        return ppo.rollout(args, training.env, training.network, learner, environments, jax.random.key(0))[1]

    chunk = jax.tree.map(lambda x: x[0], states[-1].environments)
    t = on_devices(run)(states[-1].learner, chunk)
    assert t.obs.data.shape == (8, 8, 2) and t.obs.data.dtype == jnp.uint8
    obs = np.asarray(unpack(t.obs))
    assert obs.shape == (8, 8, 11) and 0.2 < obs.mean() < 0.4
    value = training.network.apply(states[-1].learner.params, jnp.array(obs.reshape(64, 11), jnp.float32))[1]
    np.testing.assert_allclose(t.value.reshape(64), value, rtol=1e-4, atol=1e-6)


# Flags


def parse(*flags):
    return apply_scaling(parse_flags(ppo.Args, "", ["--total-timesteps", str(2**28), *flags]))


@pytest.mark.parametrize(
    "flags, number, size, rate",
    [
        ("", 32, 2048, 1e-3),
        ("--num-envs 65536 --num-minibatches 1024", 1024, 2048, 1e-3),
        ("--num-envs 65536", 1024, 2048, 1e-3),
        ("--num-envs 8192 --num-minibatches 32", 32, 8192, 1e-3),
        ("--num-envs 8192 --scaling more-minibatches", 128, 2048, 1e-3),
        ("--num-envs 8192 --scaling larger-minibatches", 32, 8192, 1e-3),
        ("--num-envs 8192 --scaling larger-minibatches-sqrt-lr", 32, 8192, 2e-3),
        ("--num-envs 512 --scaling larger-minibatches-sqrt-lr", 32, 512, 5e-4),
        ("--num-envs 1024 --base-num-envs 256 --num-minibatches 4 --scaling more-minibatches", 16, 2048, 1e-3),
        ("--num-envs 1024 --base-num-envs 256 --num-minibatches 4 --scaling larger-minibatches", 4, 8192, 1e-3),
    ],
)
def test_minibatches_and_learning_rate_follow_from_the_flags(flags, number, size, rate):
    args = parse(*flags.split())
    assert (args.num_minibatches, args.minibatch_size) == (number, size) and args.scaling is None
    assert args.learning_rate == pytest.approx(rate, rel=1e-9)


def test_a_default_minibatch_has_two_transitions_at_least():
    """Of one, --norm-adv would make the advantage 0."""
    assert ppo.Args(num_envs=1, num_steps=8).minibatch_size == 2
    for flags in ({"minibatch_size": 1}, {"num_minibatches": 8}):
        with pytest.raises(UsageError, match="--num-minibatches 8: of 1 transition each"):
            ppo.Args(num_envs=1, num_steps=8, **flags)
        assert ppo.Args(num_envs=1, num_steps=8, norm_adv=False, **flags).minibatch_size == 1


def test_default_minibatches_of_sequences_divide_the_update():
    for steps, envs_ in ((48, 2048), (48, 64), (96, 1000), (17, 4096)):
        args = ppo_rnn.Args(num_steps=steps, num_envs=envs_)
        assert args.minibatch_size % steps == 0 and steps * envs_ % args.minibatch_size == 0
        assert args.minibatch_size <= 2048 and args.num_minibatches >= 8


def test_single_numbers_cannot_be_stacked(monkeypatch):
    class Scalar(Noise):
        obs_shape = ()

    monkeypatch.setattr(envs, "make_suite", lambda *_: Scalar(Discrete((2,))))
    with pytest.raises(UsageError, match="--frame-stack 3: observations of mine are single numbers"):
        envs.make("mine", 4, frame_stack=3)


# Learning

EASY = replace(
    ARGS, num_envs=32, num_steps=16, minibatch_size=128, num_minibatches=None, total_timesteps=512 * 100, gamma=0.8,
    ent_coef=0.0, clip_vloss=False, anneal_lr=True, hidden_sizes=(16,),
)  # fmt: skip


def learned(toy, observations, **flags):
    """-> the policy and the values of these observations after 100 updates."""
    training = Training(toy, replace(EASY, **flags))
    state = training.init(training.keys)
    for _ in range(100):
        state, *_ = training.step(state)
    return training.network.apply(state.learner.params, jnp.array(observations))


def test_learns_the_best_arm_and_its_reward():
    dist, value = learned(Bandit(), [[1.0]])
    assert dist.mode() == 2 and jax.nn.softmax(dist.logits)[0, 2] > 0.98
    np.testing.assert_allclose(value, 1.0, atol=0.03)


def test_learns_the_best_policy_of_two_states_and_its_values_beyond_the_time_limit():
    """Episodes are cut after 5 steps, but the values are those of going on for ever: 5 and -0.5 + 0.8 * 5."""
    dist, value = learned(TwoStates(), np.eye(2))
    np.testing.assert_array_equal(dist.mode()[:, 0], [1, 0])
    np.testing.assert_allclose(value, [3.5, 5.0], atol=0.15)


def test_learns_to_aim():
    dist, value = learned(Aim(), [[1.0]])
    np.testing.assert_allclose(dist.mean, 0.5, atol=0.05)
    assert jnp.exp(dist.log_std) < 0.5 and -0.25 < value < 0
