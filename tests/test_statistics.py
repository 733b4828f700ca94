"""Means and running statistics, against NumPy in float64."""

from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import on_devices
from jax.sharding import PartitionSpec as P

from common import statistics
from common.arrays import pack


def test_means_are_numpys_and_pass_no_gradient():
    rng = np.random.default_rng(0)
    values = {"b": rng.normal(size=37).astype(np.float32), "a": rng.uniform(size=37) < 0.3}
    found = statistics.means({name: jnp.asarray(value) for name, value in values.items()})
    assert found.keys() == values.keys()
    for name, value in values.items():
        np.testing.assert_allclose(found[name], value.mean(), rtol=1e-6)
    # An overflow in a metric would otherwise make the gradient of everything else 0 * inf.
    grad = jax.grad(lambda x: x.sum() + statistics.means({"a": jnp.exp(x), "b": x})["b"])(jnp.array([1e3, 1.0]))
    np.testing.assert_array_equal(grad, [1.0, 1.0])


def test_statistics_of_bits_are_those_of_zeros_and_ones():
    obs = np.random.default_rng(0).uniform(size=(7, 6, 13)) < 0.3
    update = lambda obs: statistics.update_stats_by_step(statistics.initial_stats((13,)), pack(obs))  # noqa: E731
    found, seen = on_devices(update, 2, P(None, "device"))(obs), obs.reshape(-1, 13)
    assert found.count == len(seen)
    np.testing.assert_allclose(found.mean, seen.mean(0), atol=1e-6)
    np.testing.assert_allclose(found.var, seen.var(0), atol=1e-6)


def both_ways(x):
    """Statistics after the rollouts x [R, T, N, ...]: step by step, and all of a rollout at once."""
    stats = [statistics.initial_stats(x.shape[3:])] * 2
    for rollout in x:
        stats[0] = statistics.update_stats_by_step(stats[0], rollout)
        stats[1] = statistics.update_stats(stats[1], rollout.reshape(-1, *rollout.shape[2:]))
    return stats


def test_a_constant_observation_is_normalised_to_0():
    constants = np.array([1234.567, -2.7, 1 / 3, 1e6 / 7, 0.0, 1.0], np.float32)
    x = np.broadcast_to(constants, (3, 7, 15, 6))
    for stats in on_devices(both_ways, 3, P(None, None, "device"))(x):
        np.testing.assert_array_equal(stats.mean, constants)
        np.testing.assert_array_equal(stats.var, 0)
        np.testing.assert_array_equal(statistics.normalise(x[0], stats), 0)


@pytest.mark.parametrize("number", [1, 4])
def test_a_small_spread_around_a_large_mean_is_that_of_float64(number):
    """The mean to float32's last digits, the variance to 1e-4, or to a percent where the spread is ten such digits."""
    mean, std = np.array([0, 1e4, -1e4, 1e6, 1e-3]), np.array([1e-4, 1e-2, 1, 1e3, 1e-3])
    x = np.random.default_rng(0).normal(mean, std, (4, 16, 64, 5)).astype(np.float32)
    x[0, 0, 0, 4] = 100.0  # the first of all is no good guess
    exact = x.reshape(-1, 5).astype(np.float64)
    for stats in on_devices(both_ways, number, P(None, None, "device"))(x):
        assert stats.count == len(exact)
        normal = np.clip((x[0] - exact.mean(0)) / exact.std(0), -10, 10)
        np.testing.assert_allclose(statistics.normalise(x[0], stats)[..., 2:], normal[..., 2:], atol=5e-3)
        digit = np.spacing(np.abs(exact.mean(0)).astype(np.float32))
        # conftest.py's flags add 1,024 numbers one after another, which costs a digit after a bad guess.
        small = np.array([1e-5, 1e-5, 1e-5, 1e-5, 1e-4]) * exact.std(0)
        assert (np.abs(stats.mean - exact.mean(0)) <= np.maximum(2 * digit, small)).all()
        assert (np.abs(stats.var / exact.var(0) - 1) <= [1e-4, 1e-2, 1e-4, 1e-4, 1e-4]).all()


@pytest.mark.parametrize("way", [statistics.update_stats, statistics.update_stats_by_step])
def test_statistics_still_move_after_a_billion_samples(way):
    """One step of 8 environments changes them by less than float32 can tell, a rollout of 1,024 steps by more."""
    rng, update = np.random.default_rng(0), on_devices(way)
    stats = statistics.RunningStats(jnp.float32(3), jnp.float32(4), jnp.float32(1e9))
    count, first, second = 1e9, 3.0, 13.0
    for _ in range(100):
        x = rng.normal(7, 3, (8192,) if way is statistics.update_stats else (1024, 8)).astype(np.float32)
        stats = update(stats, x)
        data, total = x.astype(np.float64), count + x.size
        first, second = (first * count + data.sum()) / total, (second * count + (data**2).sum()) / total
        count = total
    assert first - 3 > 0.003 and second - first**2 - 4 > 0.015
    np.testing.assert_allclose(stats.mean - 3, first - 3, rtol=1e-2)
    np.testing.assert_allclose(stats.var - 4, second - first**2 - 4, rtol=1e-2)
    np.testing.assert_allclose(stats.count, count, rtol=1e-6)


def test_normalised_rewards_equal_a_numpy_loop():
    rng, gamma, steps, number = np.random.default_rng(0), 0.9, 12, 4
    returns, stats, seen = jnp.zeros(number), statistics.initial_stats(()), []
    running, Rewarded = np.zeros(number), namedtuple("Rewarded", "reward terminated truncated")
    for _ in range(3):  # the episodes run on from one rollout to the next
        rewards, done = rng.normal(2, 5, (steps, number)).astype(np.float32), rng.random((steps, number)) < 0.2
        rewards[0, 0] = 1e4
        for t in range(steps):
            running = gamma * running + rewards[t]
            seen.append(running.copy())
            running[done[t]] = 0
        expected = np.clip(rewards / np.std(seen), -10, 10)
        transitions = Rewarded(rewards, done & (running > 0), done & (running <= 0))  # ended in either way
        normalise = on_devices(statistics.normalise_rewards, 1, (P(), P(), P(), None))
        normalised, returns, stats = normalise(transitions, returns, stats, gamma)
        np.testing.assert_allclose(normalised.reward, expected, rtol=1e-4)
        np.testing.assert_array_equal(normalised.terminated, transitions.terminated)
        np.testing.assert_allclose(returns, running, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bound, taken", [(None, 5), (2.5, 3), (4.5, 5)])
def test_a_scan_stops_after_the_step_that_says_so(bound, taken):
    """Sums of 1, 2, ... in a loop; the means are over the steps that were taken. scan_mean takes all."""

    def step(total, x):
        return total + x, {"x": x, "total": total}

    stop = None if bound is None else lambda outputs: outputs["x"] > bound
    run = jax.jit(lambda x: statistics.scan_until(stop, step, jnp.float32(0), x))
    total, means, count = run(jnp.arange(1.0, 6.0))
    xs = list(range(1, taken + 1))
    assert (total, count) == (sum(xs), taken)
    assert means == {"x": np.mean(xs), "total": np.mean([sum(xs[:i]) for i in range(taken)])}
    if bound is None:
        assert statistics.scan_mean(step, jnp.float32(0), jnp.arange(1.0, 6.0)) == (total, means)
