"""Convolutions for images, to be called inside the `__call__` of a flax module, which then has their parameters."""

from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from common.arrays import CONVOLUTIONS, PRODUCTS

Layer = Callable[[jax.Array], jax.Array]


def cnn(x: jax.Array, activation: Layer, compute_dtype: str, sow: Callable) -> jax.Array:
    """The 3x3 convolution with 16 channels of Young and Tian 2019, for MinAtar. As `nature`, for at least 3 x 3."""
    # As nine shifted views and one product: in the inner loop 6 x faster than nn.Conv on a CPU.
    height, width = x.shape[1] - 2, x.shape[2] - 2
    views = [x[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    init, product = nn.initializers.orthogonal(np.sqrt(2)), PRODUCTS[compute_dtype]
    x = activation(nn.Dense(16, kernel_init=init, dot_general=product, name="conv")(jnp.concatenate(views, axis=-1)))
    sow(x)
    return x


def nature(x: jax.Array, activation: Layer, compute_dtype: str, sow: Callable) -> jax.Array:
    """The three convolutions of Mnih et al. 2015. x: images [B, H, W, C] of at least 36 x 36; sow: takes each hidden
    layer, after the activation. -> [B, ...]."""
    init = nn.initializers.orthogonal(np.sqrt(2))
    for channels, size, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
        conv = partial(nn.Conv, conv_general_dilated=CONVOLUTIONS[compute_dtype], padding=0, kernel_init=init)
        x = activation(conv(channels, (size, size), stride)(x))
        sow(x)
    return x


def impala(x: jax.Array, activation: Layer, compute_dtype: str, sow: Callable) -> jax.Array:
    """The 15 convolutions of Espeholt et al. 2018, in residual blocks. As `nature`, for images of any size."""
    # From flax's initial weights: with larger ones the residual sums grow.
    conv = partial(nn.Conv, kernel_size=(3, 3), padding=1, conv_general_dilated=CONVOLUTIONS[compute_dtype])
    for channels in (16, 32, 32):
        x = nn.max_pool(conv(channels)(x), (3, 3), (2, 2), "SAME")
        for _ in range(2):
            y = activation(conv(channels)(activation(x)))
            sow(y)
            x = x + conv(channels)(y)
    return activation(x)


VISION = {"cnn": cnn, "nature": nature, "impala": impala}  # by --network
