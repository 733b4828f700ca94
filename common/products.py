"""Matrix products in bfloat16."""

from typing import Any

import jax
import jax.numpy as jnp


@jax.custom_vjp
def _product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return _forward(x, kernel)[0]


def _dot(a: jax.Array, b: jax.Array, axes: tuple[int, int]) -> jax.Array:
    return jax.lax.dot_general(a, b, (((axes[0],), (axes[1],)), ((), ())), preferred_element_type=jnp.float32)


def _forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    rounded = x.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16)
    return _dot(*rounded, (1, 0)), rounded


def _backward(rounded: tuple[jax.Array, jax.Array], slope: jax.Array) -> tuple[jax.Array, jax.Array]:
    (x, kernel), slope = rounded, slope.astype(jnp.bfloat16)
    return _dot(slope, kernel, (1, 1)), _dot(x, slope, (0, 0))


_product.defvjp(_forward, _backward)


def bfloat16_dot_general(x: jax.Array, kernel: jax.Array, dimension_numbers: Any, **_: Any) -> jax.Array:
    """flax's dot_general of a Dense layer, [..., i] x [i, o] -> [..., o]: factors, and those of both gradients, rounded
    to bfloat16; sums in float32."""
    assert dimension_numbers == (((x.ndim - 1,), (0,)), ((), ())), dimension_numbers
    return _product(x.reshape(-1, x.shape[-1]), kernel).reshape(*x.shape[:-1], kernel.shape[-1])


PRODUCTS = {"float32": None, "bfloat16": bfloat16_dot_general}  # what flax's Dense takes as dot_general
