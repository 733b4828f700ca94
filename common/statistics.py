"""Means and running statistics. Moments are those of all devices: call them inside shard_map over the axis "device"."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from common.arrays import unpack


def means(values: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The mean of each array, for metrics: no gradient passes. All in one pass, which a GPU launches as one program
    rather than one per mean. [n] -> []."""
    rows = jnp.stack([jax.lax.stop_gradient(x).astype(jnp.float32) for x in values.values()])
    return dict(zip(values, rows.mean(1), strict=True))


def scan_mean(step: Callable, carry: Any, inputs: Any) -> tuple[Any, Any]:
    """jax.lax.scan that returns the means of its steps' outputs, which have to be scalars. -> carry, means.

    Within the loop they are one vector: a GPU launches one program to keep it, rather than one per scalar.
    """

    def flat_step(carry: Any, x: Any) -> tuple[Any, jax.Array]:
        nonlocal unravel
        carry, outputs = step(carry, x)
        flat, unravel = ravel_pytree(jax.tree.map(jnp.float32, outputs))
        return carry, flat

    unravel = None
    carry, outputs = jax.lax.scan(flat_step, carry, inputs)
    return carry, unravel(outputs.mean(0))


def scan_until(stop: Callable | None, step: Callable, carry: Any, inputs: Any) -> tuple[Any, Any, jax.Array]:
    """jax.lax.scan that takes no more steps after one whose outputs, which have to be scalars, make `stop` true (None:
    it takes all). -> carry, means over the steps taken, their number."""
    if stop is None:
        carry, outputs = jax.lax.scan(step, carry, inputs)
        return carry, jax.tree.map(lambda x: x.mean(0), outputs), jnp.float32(len(inputs))

    def step_unless_stopped(carry: Any, x: Any) -> tuple[Any, Any]:
        carry, stopped = carry
        skipped = jax.tree.map(lambda x: jnp.zeros(x.shape), jax.eval_shape(step, carry, x)[1])
        carry, outputs = jax.lax.cond(stopped, lambda carry, _: (carry, skipped), step, carry, x)
        return (carry, stopped | stop(outputs)), (outputs, 1.0 - stopped)

    (carry, _), (outputs, taken) = jax.lax.scan(step_unless_stopped, (carry, jnp.bool_(False)), inputs)
    return carry, jax.tree.map(lambda x: x.sum(0) / taken.sum(), outputs), taken.sum()


def moments(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and (population) variance over the first axis and over devices. [n, ...] -> [...], [...]."""
    shift, mean, var = _moments(x)
    return shift + mean, var


def _moments(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """-> shift, mean and variance of x - shift, where shift is one of x: large equal numbers leave no rounding."""
    rest = x - x[0]
    return _together(x[0], rest.mean(0), rest.var(0))


def _together(shift: jax.Array, mean: jax.Array, var: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Moments of this device's numbers -> of those of all devices, which have equally many. They meet once."""
    shift, mean, var = jax.lax.all_gather(jnp.stack([shift, mean, var]), "device", axis=1)
    means = shift - shift[0] + mean
    mean = means.mean(0)
    return shift[0], mean, (var + (means - mean) ** 2).mean(0)


def standardise(x: jax.Array) -> jax.Array:
    """Shift and scale to mean 0 and standard deviation 1 over all devices. Of numbers that are equal but for rounding,
    or of a single one, 0. [n] -> [n]."""
    shift, mean, var = _moments(x)
    std = jnp.sqrt(var)
    rounding = 2 * jnp.finfo(x.dtype).eps * jnp.abs(shift)
    return jnp.where(std <= rounding, 0.0, (x - shift - mean) / (std + 1e-8))


def explained_variance(error: jax.Array, target: jax.Array) -> jax.Array:
    """1 - Var(target - prediction) / Var(target), over all devices. NaN if all targets are equal, because there is
    nothing to explain then. error, target: [n] -> []."""
    # Not by their variance, which rounding may keep above 0.
    constant = jax.lax.pmin(target.min(), "device") == jax.lax.pmax(target.max(), "device")
    return jnp.where(constant, jnp.nan, 1 - moments(error)[1] / moments(target)[1])


class RunningStats(NamedTuple):
    """Mean and variance of everything seen so far. mean, var: [...]; count: []."""

    mean: jax.Array
    var: jax.Array
    count: jax.Array


def initial_stats(shape: tuple[int, ...]) -> RunningStats:
    """Statistics before any data: mean 0 and variance 1."""
    return RunningStats(jnp.zeros(shape), jnp.ones(shape), jnp.zeros(()))


def update_stats(stats: RunningStats, x: jax.Array) -> RunningStats:
    """Merge the moments of x [n, ...] into the running ones."""
    return merge(stats, RunningStats(*moments(x.astype(jnp.float32)), jax.lax.psum(jnp.float32(x.shape[0]), "device")))


def update_stats_by_step(stats: RunningStats, x: Any) -> RunningStats:
    """The same for observations [T, N, ...] or their bits, one step after the other: all bits of a rollout at once
    would be unpacked to 32 times as much memory. Merged as a whole: what a single step of few environments changes
    would be lost to float32 after 10^8 samples. All are taken less the first, see `_moments`."""
    shift = unpack(jax.tree.map(lambda x: x[0], x))[0].astype(jnp.float32)

    def step(own: RunningStats, x: Any) -> tuple[RunningStats, None]:
        x = unpack(x).astype(jnp.float32) - shift
        return merge(own, RunningStats(x.mean(0), x.var(0), jnp.float32(x.shape[0]))), None

    own = jax.lax.scan(step, jax.tree.map(jnp.zeros_like, stats), x)[0]
    shift, mean, var = _together(shift, own.mean, own.var)
    return merge(stats, RunningStats(shift + mean, var, jax.lax.psum(own.count, "device")))


def merge(stats: RunningStats, new: RunningStats) -> RunningStats:
    """The moments of both (Chan et al. 1979). The larger part moves by weighted differences, so float32 does not lose a
    rollout of a thousand samples after 10^9, nor what comes after nothing."""
    count = stats.count + new.count
    old_weight, weight = stats.count / count, new.count / count
    mix = lambda a, b: jnp.where(weight < 0.5, a + weight * (b - a), b + old_weight * (a - b))  # noqa: E731
    between = old_weight * weight * (new.mean - stats.mean) ** 2
    return RunningStats(mix(stats.mean, new.mean), mix(stats.var, new.var) + between, count)


def normalise(x: jax.Array, stats: RunningStats) -> jax.Array:
    """(x - mean) / std, clipped to [-10, 10]. Same shape as x."""
    return jnp.clip((x.astype(jnp.float32) - stats.mean) / jnp.sqrt(stats.var + 1e-8), -10, 10)


def normalise_rewards(t: Any, returns: jax.Array, stats: RunningStats, gamma: float) -> tuple[Any, Any, RunningStats]:
    """Divide rewards by the running standard deviation of the discounted return, and clip them to [-10, 10].

    t: transitions, whose reward, terminated and truncated are [T, N]; returns: [N], discounted, of the unfinished
    episodes. -> transitions, returns, stats.
    """

    def step(total: jax.Array, inputs: tuple) -> tuple:
        reward, done = inputs
        total = gamma * total + reward
        return jnp.where(done, 0.0, total), total

    returns, all_returns = jax.lax.scan(step, returns, (t.reward, t.terminated | t.truncated))
    stats = update_stats(stats, all_returns.reshape(-1))
    return t._replace(reward=jnp.clip(t.reward / jnp.sqrt(stats.var + 1e-8), -10, 10)), returns, stats
