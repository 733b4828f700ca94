"""Measurements of what the data does to the network: those of Mayor et al. 2025 (https://arxiv.org/abs/2506.03404,
appendix B) and the gradient noise scale of McCandlish et al. 2018 (https://arxiv.org/abs/1812.06162). docs/metrics.md
says what moves them and when to worry.

These are pure functions of a whole sample. If it is split over devices, gather it first; only `measure_update`
takes each device's part.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from common.actions import Categorical, Gaussian
from common.statistics import RunningStats, standardise

KL_SAMPLE = 8192  # the most transitions on which an update is measured
PLASTICITY_SAMPLE = 2048  # transitions on which --plasticity-every measures
GRADIENT_PARTS = 8  # the noise is estimated from the gradients of this many parts of a sample


class Sample(NamedTuple):
    """Random transitions of an update, on which it is measured, and the rest of what its loss depended on."""

    batch: Any  # [C, n, ...], of this device
    obs_stats: RunningStats
    ent_coef: jax.Array | None = None  # in a script that anneals it


def sample_size(batch_size: int, parts: int = 1, at_least: int = 0) -> int:
    """How many transitions of an update's batch_size it is measured on, a quarter within bounds: each part's share."""
    return -(-min(KL_SAMPLE, max(PLASTICITY_SAMPLE, at_least, batch_size // 4)) // parts)  # rounded up


def measure_update(
    policy: Callable[[Any, Any], Any], previous: Any, old: Any, new: Any, batch: Any, batch_size: int
) -> dict[str, jax.Array]:
    """How far an update moved the parameters and the policy, and what it gained, on a sample of its transitions.

    outer/kl is the exact KL(before || after). outer/own_gain is E[(after / before - 1) A], A standardised. Fresh gain
    is that of the update before, on these transitions, which it has not seen: what going back would lose,
    -E[(earlier / before - 1) A]. policy(parameters, batch) -> distribution; previous, old, new: parameters before the
    update before, before and after this one; batch: [C, n, ...] of this device, with action and advantage; batch_size:
    transitions of the update.
    """
    batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
    earlier, before, after = (policy(params, batch) for params in (previous, old, new))
    advantage = standardise(batch.advantage)
    log_ratio = lambda dist: dist.log_prob(batch.action) - before.log_prob(batch.action)  # noqa: E731
    gain = lambda dist: jnp.expm1(log_ratio(dist)) * advantage  # noqa: E731
    # One sum over devices: XLA:CPU lets sums that do not wait for each other meet, and then ends the process.
    values = jnp.stack([before.kl(after), gain(after), -gain(earlier), gain(earlier) ** 2])
    kl, own_gain, fresh_gain, square = jax.lax.pmean(values.mean(1), "device")
    count = float(advantage.size * jax.lax.axis_size("device"))
    error = jnp.sqrt(jnp.maximum(square - fresh_gain**2, 0) / count)
    found = {"kl": kl, "own_gain": own_gain, "fresh_gain": fresh_gain, "fresh_gain_se": error}
    return {f"outer/{name}": x for name, x in found.items()} | move_metrics(kl, old, new, batch_size)


def move_metrics(kl: jax.Array, old: Any, new: Any, batch_size: int) -> dict[str, jax.Array]:
    """Of an update from parameters `old` to `new`: transitions per nat, the norm of the step, whether it is finite."""
    update_norm = weight_norm(jax.tree.map(jnp.subtract, new, old))
    return {
        "outer/ddr": float(batch_size) / kl,  # an integer might not fit into 32 bits
        "outer/update_norm": update_norm,
        "finite": jnp.isfinite(update_norm),  # a NaN in any loss or gradient ends up in the parameters
    }


def plasticity_metrics(
    args: Any, params: Any, dist: Any, intermediates: Any, batch: Any, gradient: Callable[[Any], Any]
) -> dict[str, jax.Array]:
    """What Mayor et al. 2025, appendix B, measure, of a policy gradient on transitions of an update.

    dist, intermediates: of `params` on batch [n, ...], and what the encoders sowed; gradient(part of batch) -> that of
    the loss, aux. -> scalars.
    """
    if args.norm_adv:
        batch = batch._replace(advantage=standardise(batch.advantage))
    return {
        **layer_metrics(intermediates, args.dormant_tau),
        **gradient_metrics(lambda part: gradient(part)[0], batch),
        **policy_metrics(params, dist, dist.log_prob(batch.action) - batch.log_prob),
    }


def layer_metrics(intermediates: Mapping[str, Any], tau: float) -> dict[str, jax.Array]:
    """Ranks of the last hidden layer and dormant neurons of all layers. intermediates: what the encoders sowed. A
    critic's own encoder gets separate keys."""
    found = {}
    for name, encoder in intermediates.items():
        prefix = "plasticity/critic_" if name.startswith("critic") else "plasticity/"
        found[f"{prefix}feature_rank"], found[f"{prefix}srank"] = feature_ranks(encoder["hidden"][-1])
        found[f"{prefix}dormant_neurons"] = dormant_neurons(encoder["hidden"], tau)
    return found


def policy_metrics(
    params: Any, dist: Categorical | Gaussian, log_ratio: jax.Array | None = None
) -> dict[str, jax.Array]:
    """Weight norm, policy variance and, if log_ratio is given, the effective sample size of the importance weights
    exp(log_ratio). dist: of [n]; log_ratio: [n]."""
    found = {"plasticity/weight_norm": weight_norm(params), "plasticity/policy_variance": policy_variance(dist)}
    if log_ratio is not None:
        found["plasticity/effective_sample_size"] = effective_sample_size(log_ratio)
    return found


def gradient_metrics(gradient: Callable[[Any], Any], sample: Any, length: int = 1) -> dict[str, jax.Array]:
    """Kurtosis of the gradient, |G|^2 of the true one and the trace of one transition's covariance (McCandlish et al.
    2018, app. A.1), unbiased for independent transitions: from gradients on equal parts of a randomly ordered sample
    [n, ...], of which each row has `length` transitions."""
    n = jax.tree.leaves(sample)[0].shape[0]
    count = min(GRADIENT_PARTS, n)
    size = n // count
    parts = jax.tree.map(lambda x: x[: count * size].reshape(count, size, *x.shape[1:]), sample)
    grads = jax.lax.map(gradient, parts)
    squares = sum((g**2).reshape(count, -1).sum(1) for g in jax.tree.leaves(grads))
    whole = jax.tree.map(lambda g: g.mean(0), grads)
    # Mean squared norms of gradients over so many transitions.
    small, big, small_size, big_size = squares.mean(), weight_norm(whole) ** 2, length * size, length * count * size
    signal = (big_size * big - small_size * small) / (big_size - small_size)
    noise = (small - big) / (1 / small_size - 1 / big_size)
    return {
        "plasticity/gradient_kurtosis": gradient_kurtosis(whole),
        "plasticity/gradient_signal": signal,
        "plasticity/gradient_noise": noise,
        # The ratio of one measurement is noisy, and meaningless if the signal is lost in the noise.
        "plasticity/gradient_noise_scale": jnp.where(signal > 0, noise / signal, np.nan),
    }


def gradient_kurtosis(grads: Any, delta: float = 1e-8) -> jax.Array:
    """Kurtosis (fourth moment over squared variance) of log(|g| + delta) over all entries of a pytree, -> []: 7 for
    Gaussian entries, 3 for log-normal ones."""
    logs = jnp.concatenate([jnp.log(jnp.abs(g.ravel()) + delta) for g in jax.tree.leaves(grads)])
    centred = logs - logs.mean()
    return (centred**4).mean() / (centred**2).mean() ** 2


def feature_ranks(features: jax.Array, share: float = 0.99) -> tuple[jax.Array, jax.Array]:
    """Count the largest singular values that make up `share` of the sum of all squares (approximate rank of Yang et al.
    2019, which the paper quotes), and `share` of the sum of all values (srank of Kumar et al. 2021).

    features: [n, d], not centred -> [], [], from 0 (all are zero) to min(n, d).
    """
    values = jnp.linalg.svd(features, compute_uv=False)  # descending

    def rank(parts: jax.Array) -> jax.Array:
        total = parts.sum()
        count = (jnp.cumsum(parts) < share * total).sum() + (total > 0)
        return jnp.where(jnp.isfinite(total), count.astype(jnp.float32), jnp.nan)

    return rank(values**2), rank(values)


def dormant_neurons(layers: Sequence[jax.Array], tau: float) -> jax.Array:
    """Share of hidden units whose mean |activation| is at most tau times their layer's mean (Sokar et al. 2023, eq. 1).

    layers: [n, ..., units] each, after the activation; the units of a convolution are its channels. -> [].
    """
    activity = [jnp.abs(layer).mean(range(layer.ndim - 1)) for layer in layers]
    # A product, because 0 / 0 would make no unit dormant in an entirely dead layer.
    dormant = sum((units <= tau * units.mean()).sum() for units in activity)
    known = jnp.isfinite(sum(units.sum() for units in activity))
    return jnp.where(known, dormant / sum(units.size for units in activity), jnp.nan)


def weight_norm(params: Any) -> jax.Array:
    """l2 norm of all parameters, biases included. -> []."""
    return jnp.sqrt(sum((p**2).sum() for p in jax.tree.leaves(params)))


def effective_sample_size(log_ratio: jax.Array) -> jax.Array:
    """(sum w)^2 / (n sum w^2) of importance weights w = exp(log_ratio), in % (Martino et al. 2017). [n] -> []."""
    weights = jnp.exp(log_ratio - log_ratio.max())  # the common factor cancels; exp cannot overflow
    return 100 * weights.sum() ** 2 / (weights.size * (weights**2).sum())


def policy_variance(dist: Categorical | Gaussian) -> jax.Array:
    """Mean over actions of the variance over states of their probability (Moalla et al. 2024), or, for a Gaussian, over
    dimensions of that of the mean action. dist: of [n] -> []."""
    return (dist.probs() if isinstance(dist, Categorical) else dist.mean).var(0).mean()
