"""Booleans packed eight to a byte, so that a rollout of MinAtar's observations takes an eighth of the memory."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct


@struct.dataclass
class Bits:
    """Booleans [..., *shape] as uint8 [..., ceil(size / 8)]; a pytree whose single leaf can be indexed and stacked."""

    data: jax.Array
    shape: tuple[int, ...] = struct.field(pytree_node=False)


def pack(tree: Any) -> Any:
    """Pack booleans [B, *shape] -> Bits, in an array or a whole pytree. All else stays the same."""

    def leaf(x: jax.Array) -> Any:
        if x.dtype != bool:
            return x
        return Bits(jnp.packbits(x.reshape(x.shape[0], -1), axis=-1), x.shape[1:])

    return jax.tree.map(leaf, tree)


def unpack(tree: Any) -> Any:
    """The inverse of `pack`."""

    def leaf(x: Any) -> jax.Array:
        if not isinstance(x, Bits):
            return x
        flat = jnp.unpackbits(x.data, axis=-1, count=int(np.prod(x.shape)))
        return flat.reshape(*flat.shape[:-1], *x.shape).astype(bool)

    return jax.tree.map(leaf, tree, is_leaf=lambda x: isinstance(x, Bits))
