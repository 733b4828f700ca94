"""Matrix products in bfloat16."""

from functools import partial
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


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def product_of_columns(dtype: Any, kernel: jax.Array, x: jax.Array) -> jax.Array:
    """A layer whose batch comes last: kernel [i, o], x [i, n] -> [o, n]. Factors, and those of both gradients, rounded
    to dtype; sums in float32."""
    return _columns_forward(dtype, kernel, x)[0]


def _columns_forward(dtype: Any, kernel: jax.Array, x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    # Computed before the products: XLA:GPU would make a kernel's gradient and what it is made of one program, and
    # refuses some of these ("contracting dimension is too fragmented").
    rounded = kernel, x = jax.lax.optimization_barrier((kernel.astype(dtype), x.astype(dtype)))
    # XLA:CPU is twice as fast at bfloat16 with a copy of the kernel, which is small, as with a transposed factor.
    return _dot(jax.lax.optimization_barrier(kernel.T), x, (1, 0)), rounded


def _columns_backward(dtype: Any, rounded: tuple[jax.Array, jax.Array], slope: jax.Array) -> tuple[jax.Array, ...]:
    (kernel, x), slope = rounded, jax.lax.optimization_barrier(slope.astype(dtype))
    return _dot(x, slope, (1, 1)), _dot(kernel, slope, (1, 0))


product_of_columns.defvjp(_columns_forward, _columns_backward)
