"""Convolutions as flax's Conv takes them, with gradients that are fast on CPUs too: in a loop XLA:CPU computes those of
lax.conv_general_dilated without matrix products, and a Nature CNN then learns 50 times as slowly."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp


def _convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Without stride and padding. x [B, H, W, I], kernel [h, w, I, O] -> [B, H - h + 1, W - w + 1, O]."""
    dimensions = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "VALID", dimension_numbers=dimensions, preferred_element_type=jnp.float32
    )


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rounded(dtype: Any, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """`_convolve` with factors, and those of both gradients, rounded to dtype; sums in float32."""
    return _forward(dtype, x, kernel)[0]


def _forward(dtype: Any, x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    rounded = x.astype(dtype), kernel.astype(dtype)
    return _convolve(*rounded), rounded


def _backward(dtype: Any, rounded: tuple[jax.Array, jax.Array], slope: jax.Array) -> tuple[jax.Array, jax.Array]:
    (x, kernel), slope = rounded, slope.astype(dtype)
    height, width = kernel.shape[:2]
    # The gradient of x is a convolution, too: of the padded slope with the kernel turned round.
    padding = ((0, 0), (height - 1, height - 1), (width - 1, width - 1), (0, 0))
    x_slope = _convolve(jnp.pad(slope, padding), kernel[::-1, ::-1].swapaxes(2, 3))

    def on_cpus(x: jax.Array, slope: jax.Array) -> jax.Array:
        """The gradient of the kernel in the one layout that XLA:CPU computes by matrix products."""
        return _convolve(x.transpose(3, 1, 2, 0), slope.transpose(1, 2, 0, 3)).transpose(1, 2, 0, 3)

    def convolution(x: jax.Array, slope: jax.Array) -> jax.Array:
        batch_last = ("CHWN", "IHWO", "HWNC")
        return jax.lax.conv_general_dilated(
            x, slope, (1, 1), "VALID", dimension_numbers=batch_last, preferred_element_type=jnp.float32
        )

    return x_slope, jax.lax.platform_dependent(x, slope, cpu=on_cpus, default=convolution)


_rounded.defvjp(_forward, _backward)


def _blocks(x: jax.Array, size: int) -> jax.Array:
    """Move each size x size block of pixels into the channels. [B, H, W, C] -> [B, H / size, W / size, size^2 C]."""
    batch, height, width, channels = x.shape
    x = x.reshape(batch, height // size, size, width // size, size, channels)
    return x.swapaxes(2, 3).reshape(batch, height // size, width // size, -1)


def _convolution(
    dtype: Any, x: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: Sequence[tuple[int, int]], **_: Any
) -> jax.Array:
    """The conv_general_dilated of flax: x [B, H, W, I], kernel [h, w, I, O] -> [B, H', W', O]. The stride has to divide
    h and w. Blocks of pixels become channels, after which there is no stride, and the gradients are products."""
    stride, (height, width) = strides[0], kernel.shape[:2]
    assert set(strides) == {stride} and height % stride == width % stride == 0, (strides, kernel.shape)
    x = jnp.pad(x, ((0, 0), *padding, (0, 0)))
    seen = [(have - size) // stride * stride + size for have, size in zip(x.shape[1:3], (height, width), strict=True)]
    kernel = jnp.moveaxis(_blocks(jnp.moveaxis(kernel, -1, 0), stride), 0, -1)
    return _rounded(dtype, _blocks(x[:, : seen[0], : seen[1]], stride), kernel)


# By --compute-dtype, what flax's Conv takes as conv_general_dilated.
CONVOLUTIONS = {name: partial(_convolution, jnp.dtype(name)) for name in ("float32", "bfloat16")}
