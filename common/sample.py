"""Random samples of an update's transitions, from all chunks and devices."""

from typing import Any

import jax
import jax.numpy as jnp

from common.shuffle import random_permutation


def random_rows(tree: Any, size: int, key: jax.Array) -> Any:
    """`size` different rows of a pytree [n, ...] in random order, or all n if n is smaller. -> [size, ...]."""
    n = jax.tree.leaves(tree)[0].shape[0]
    indices = random_permutation(key, n)(jnp.arange(min(size, n)))
    return jax.tree.map(lambda x: x[indices], tree)


def gather_rows(tree: Any, size: int) -> Any:
    """The first `size` rows, taken in turn from all chunks and devices. Each device has samples [C, n, ...] of its C
    chunks. -> [size, ...], equal on all devices. Call it inside `jax.shard_map` over the axis "device"."""

    def leaf(x: jax.Array) -> jax.Array:
        x = jax.lax.all_gather(x, "device", axis=2)  # [C, n, devices, ...]
        return jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[3:])[:size]

    return jax.tree.map(leaf, tree)
