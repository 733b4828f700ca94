"""Arithmetic that a network's update needs and JAX lacks or does slowly: booleans in bits, a shuffle without a sort,
samples over devices, products and convolutions in bfloat16."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

ROUNDS = 8  # with 5, pairs of neighbours are still distinguishable from chance at n = 16


@struct.dataclass
class Bits:
    """Booleans [..., *shape] as uint8 [..., ceil(size / 8)]; a pytree whose single leaf can be indexed and stacked."""

    data: jax.Array
    shape: tuple[int, ...] = struct.field(pytree_node=False)


def pack(tree: Any) -> Any:
    """Pack booleans [B, *shape] -> Bits, in an array or a whole pytree. All else stays the same."""
    packed = lambda x: Bits(jnp.packbits(x.reshape(x.shape[0], -1), axis=-1), x.shape[1:])  # noqa: E731
    return jax.tree.map(lambda x: packed(x) if x.dtype == bool else x, tree)


def unpack(tree: Any) -> Any:
    """The inverse of `pack`."""

    def leaf(x: Any) -> jax.Array:
        if not isinstance(x, Bits):
            return x
        flat = jnp.unpackbits(x.data, axis=-1, count=int(np.prod(x.shape)))
        return flat.reshape(*flat.shape[:-1], *x.shape).astype(bool)

    return jax.tree.map(leaf, tree, is_leaf=lambda x: isinstance(x, Bits))


def random_permutation(key: jax.Array, n: int) -> Callable[[jax.Array], jax.Array]:
    """A random permutation of 0 .. n - 1, as a function from positions of any shape to indices (both int32).

    `jax.random.permutation` sorts all n numbers and keeps them, which took a quarter of an update of CartPole-v1 on a
    CPU. This one mixes each position by itself. On k bits, x -> odd * x + c (mod 2^k) and x -> x ^ (x >> s) are both
    invertible, so their composition hits every number once. The first carries low bits upwards, the second high bits
    downwards; random odd factors and summands make every round different. If n is not a power of two, positions that
    land at n or beyond are mixed again until they land below it, which still hits every number below n once.

    It does not draw from all n! permutations, but tests cannot tell where single numbers and pairs of neighbours land
    from chance. They can for triples of neighbours up to n = 16 (chi^2 / df 1.48 at 16); no minibatch is so small.
    """
    assert 0 < n <= 2**31, n
    bits = max(1, (n - 1).bit_length())
    mask, shift = jnp.uint32(2**bits - 1), (bits + 1) // 2
    words = jax.random.bits(key, (ROUNDS, 2))

    def mix(x: jax.Array) -> jax.Array:
        for factor, summand in words:
            x = ((factor | 1) * x + summand) & mask
            x ^= x >> shift
        return x

    def permute(positions: jax.Array) -> jax.Array:
        x = mix(positions.astype(jnp.uint32))
        if n < 2**bits:
            x = jax.lax.while_loop(lambda x: (x >= n).any(), lambda x: jnp.where(x >= n, mix(x), x), x)
        return x.astype(jnp.int32)

    return permute


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


def _dot(a: jax.Array, b: jax.Array, axes: tuple[int, int]) -> jax.Array:
    return jax.lax.dot_general(a, b, (((axes[0],), (axes[1],)), ((), ())), preferred_element_type=jnp.float32)


def _rounding(forward: Callable, backward: Callable, keep: Callable = lambda x: x) -> Callable:
    """A product (dtype, x, y) whose factors, and those of both gradients, are rounded to dtype; sums are in float32.

    forward(x, y) -> product; backward(x, y, its gradient) -> gradients; keep: of what is rounded.
    """

    @partial(jax.custom_vjp, nondiff_argnums=(0,))
    def product(dtype: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return rounded(dtype, x, y)[0]

    def rounded(dtype: Any, x: jax.Array, y: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        factors = keep((x.astype(dtype), y.astype(dtype)))
        return forward(*factors), factors

    product.defvjp(rounded, lambda dtype, factors, slope: backward(*factors, keep(slope.astype(dtype))))
    return product


_product = _rounding(
    lambda x, y: _dot(x, y, (1, 0)), lambda x, y, slope: (_dot(slope, y, (1, 1)), _dot(x, slope, (0, 0)))
)


def bfloat16_dot_general(x: jax.Array, kernel: jax.Array, dimension_numbers: Any, **_: Any) -> jax.Array:
    """flax's dot_general of a Dense layer, [..., i] x [i, o] -> [..., o], with factors in bfloat16."""
    assert dimension_numbers == (((x.ndim - 1,), (0,)), ((), ())), dimension_numbers
    return _product(jnp.bfloat16, x.reshape(-1, x.shape[-1]), kernel).reshape(*x.shape[:-1], kernel.shape[-1])


PRODUCTS = {"float32": None, "bfloat16": bfloat16_dot_general}  # what flax's Dense takes as dot_general

# (dtype, kernel [i, o], x [i, n]) -> [o, n]: a layer whose batch comes last. XLA:CPU is twice as fast at bfloat16 with
# a copy of the kernel, which is small, as with a transposed factor. Factors are computed before the products: XLA:GPU
# would make a kernel's gradient and what it is made of one program, and refuses some ("contracting dimension is too
# fragmented").
product_of_columns = _rounding(
    lambda kernel, x: _dot(jax.lax.optimization_barrier(kernel.T), x, (1, 0)),
    lambda kernel, x, slope: (_dot(x, slope, (1, 1)), _dot(kernel, slope, (1, 0))),
    keep=jax.lax.optimization_barrier,
)


# In a loop XLA:CPU computes the gradients of lax.conv_general_dilated without matrix products: a Nature CNN learnt 50
# times as slowly.
def _convolve(x: jax.Array, kernel: jax.Array, axes: tuple[str, str, str] = ("NHWC", "HWIO", "NHWC")) -> jax.Array:
    """Without stride and padding. x [B, H, W, I], kernel [h, w, I, O] -> [B, H - h + 1, W - w + 1, O]."""
    return jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "VALID", dimension_numbers=axes, preferred_element_type=jnp.float32
    )


def _convolve_backward(x: jax.Array, kernel: jax.Array, slope: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The gradient of x is a convolution, too: of the padded slope with the kernel turned round."""
    height, width = kernel.shape[:2]
    padding = ((0, 0), (height - 1, height - 1), (width - 1, width - 1), (0, 0))
    x_slope = _convolve(jnp.pad(slope, padding), kernel[::-1, ::-1].swapaxes(2, 3))

    def on_cpus(x: jax.Array, slope: jax.Array) -> jax.Array:
        """The gradient of the kernel in the one layout that XLA:CPU computes by matrix products."""
        return _convolve(x.transpose(3, 1, 2, 0), slope.transpose(1, 2, 0, 3)).transpose(1, 2, 0, 3)

    batch_last = partial(_convolve, axes=("CHWN", "IHWO", "HWNC"))
    return x_slope, jax.lax.platform_dependent(x, slope, cpu=on_cpus, default=batch_last)


_conv = _rounding(_convolve, _convolve_backward)


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
    return _conv(dtype, _blocks(x[:, : seen[0], : seen[1]], stride), kernel)


# By --compute-dtype, what flax's Conv takes as conv_general_dilated.
CONVOLUTIONS = {name: partial(_convolution, jnp.dtype(name)) for name in ("float32", "bfloat16")}
