"""Action spaces and the distributions over them."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct


class Discrete(NamedTuple):
    """One or more categorical choices; actions are int32 [D] with 0 <= action[d] < nvec[d]."""

    nvec: tuple[int, ...]
    dtype = jnp.int32

    def sample(self, key: jax.Array, num: int) -> jax.Array:
        """Actions [num, D], all equally likely."""
        return jax.random.randint(key, (num, len(self.nvec)), 0, jnp.array(self.nvec))


class Box(NamedTuple):
    """Continuous actions, float32 [D]; the environment clips them to [low, high], each float32 [D]."""

    low: np.ndarray
    high: np.ndarray
    dtype = jnp.float32

    def sample(self, key: jax.Array, num: int) -> jax.Array:
        """Actions [num, D], uniform between the bounds. One that is infinite, or beyond a million, is taken to be two
        from the other; of two they are -1 and 1."""
        low = np.where(np.abs(self.low) <= 1e6, self.low, np.where(np.abs(self.high) <= 1e6, self.high - 2, -1))
        high = np.where(np.abs(self.high) <= 1e6, self.high, low + 2)
        return jax.random.uniform(key, (num, len(low)), minval=low, maxval=high)


def probability_ratio(log_ratio: jax.Array) -> jax.Array:
    """exp(log_ratio), but beyond e^80 the value and slope that it has there: an infinite ratio has a gradient of NaN,
    even where a clipped one takes its place (0 * inf). Any shape."""
    return jnp.exp(log_ratio - jax.lax.stop_gradient(jnp.maximum(log_ratio - 80, 0)))


def k3(log_ratio: jax.Array) -> jax.Array:
    """exp(x) - 1 - x, never negative: the KL's estimator k3 of Schulman 2020, whose mean over p is KL(p || q) if x is
    log q - log p. Below 0.1 by its series, because the difference would be lost to rounding. Any shape."""
    x = jnp.clip(log_ratio, -0.1, 0.1)
    series = x**2 / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6))))
    return jnp.where(x == log_ratio, series, jnp.expm1(log_ratio) - log_ratio)


@struct.dataclass
class Categorical:
    """Independent categorical choices, one per action dimension. logits: [..., sum(nvec)]; actions: [..., D]. To mask
    an action set its logit to -1e9: with -inf entropy and KL are NaN."""

    logits: jax.Array
    nvec: tuple[int, ...] = struct.field(pytree_node=False)

    def _logits(self) -> list[jax.Array]:
        return jnp.split(self.logits, np.cumsum(self.nvec)[:-1], axis=-1)

    def _log_probs(self) -> list[jax.Array]:
        return [jax.nn.log_softmax(part) for part in self._logits()]

    def probs(self) -> jax.Array:
        """Probabilities of the options, dimension after dimension, [..., sum(nvec)]."""
        return jnp.exp(jnp.concatenate(self._log_probs(), axis=-1))

    def sample(self, key: jax.Array) -> jax.Array:
        parts = zip(jax.random.split(key, len(self.nvec)), self._log_probs(), strict=True)
        return jnp.stack([jax.random.categorical(*part) for part in parts], axis=-1)

    def mode(self) -> jax.Array:
        return jnp.stack([part.argmax(-1) for part in self._log_probs()], axis=-1)

    def log_prob(self, action: jax.Array) -> jax.Array:
        # A comparison, not an index, whose gradient would be a scatter: slow on a CPU and one more program of a GPU.
        pick = lambda d, x: jnp.where(action[..., d, None] == jnp.arange(x.shape[-1]), x, 0.0).sum(-1)  # noqa: E731
        return sum([pick(d, x) for d, x in enumerate(self._log_probs())])

    def entropy(self) -> jax.Array:
        return sum(-(jnp.exp(part) * part).sum(-1) for part in self._log_probs())

    def kl(self, other: "Categorical") -> jax.Array:
        """KL(self || other), exact. Never negative, and right for the smallest steps."""
        total = 0.0
        for log_p, old, new in zip(self._log_probs(), self._logits(), other._logits(), strict=True):
            # With x = log q - log p up to a constant, such that its mean over p is 0, the KL is the logarithm of the
            # mean of exp(x), which is 1 + that of k3(x). The mean of log p - log q would lose small steps to rounding.
            p, x = jnp.exp(log_p), new - old
            x = x - (p * x).sum(-1, keepdims=True)
            terms = jnp.where(x < 1, p * k3(jnp.minimum(x, 1)), jnp.exp(log_p + x) - p * (1 + x))
            excess = terms.sum(-1)
            total += jnp.where(excess < 1, jnp.log1p(excess), jax.nn.logsumexp(log_p + x, axis=-1))
        return total


@struct.dataclass
class Gaussian:
    """Diagonal Gaussian. mean, log_std: [..., D]; actions: [..., D], unbounded (the environment clips them)."""

    mean: jax.Array
    log_std: jax.Array

    def sample(self, key: jax.Array) -> jax.Array:
        return self.mean + jnp.exp(self.log_std) * jax.random.normal(key, self.mean.shape)

    def mode(self) -> jax.Array:
        return self.mean

    def log_prob(self, action: jax.Array) -> jax.Array:
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return (-0.5 * z**2 - self.log_std - 0.5 * jnp.log(2 * jnp.pi)).sum(-1)

    def entropy(self) -> jax.Array:
        return (self.log_std + 0.5 * jnp.log(2 * jnp.pi * jnp.e)).sum(-1)

    def kl(self, other: "Gaussian") -> jax.Array:
        """KL(self || other), exact. Never negative, and right for the smallest steps."""
        distance = ((self.mean - other.mean) * jnp.exp(-other.log_std)) ** 2
        return 0.5 * (k3(2 * (self.log_std - other.log_std)) + distance).sum(-1)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def bounded(x: jax.Array, low: float, high: float) -> jax.Array:
    """clip(x, low, high) for a parameter. At a bound, only gradients that lead back inside pass. With the gradients of
    clip the parameter would never come back; with all of them it would move on outwards, to no effect."""
    return jnp.clip(x, low, high)


def _bounded_backward(low: float, high: float, x: jax.Array, slope: jax.Array) -> tuple[jax.Array]:
    # A descent step moves against the gradient.
    outwards = ((x <= low) & (slope > 0)) | ((x >= high) & (slope < 0))
    return (jnp.where(outwards, 0.0, slope),)


bounded.defvjp(lambda x, low, high: (jnp.clip(x, low, high), x), _bounded_backward)
