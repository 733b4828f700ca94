"""Networks for pixels: convolutions and their gradients against sums written out, and the shapes of the papers."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ppo
import ppo_ewma
import pqn
import sapg
from common.actions import Discrete
from common.arrays import CONVOLUTIONS

SHAPES = {  # observation, kernel, stride, padding
    "nature's first": ((2, 12, 13, 2), (8, 8, 2, 3), 4, 0),
    "nature's second": ((1, 9, 8, 3), (4, 4, 3, 2), 2, 0),
    "nature's third": ((3, 5, 4, 2), (3, 3, 2, 4), 1, 0),
    "impala's": ((2, 4, 5, 3), (3, 3, 3, 2), 1, 1),
}


def written_out(x, kernel, stride, padding, slope):
    """In float64: the convolution, and the gradients of its product with `slope`."""
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0))).astype(np.float64)
    x_slope, kernel_slope, out = np.zeros(x.shape), np.zeros(kernel.shape), np.zeros(slope.shape)
    size = kernel.shape[0]
    for b, i, j, o in np.ndindex(slope.shape):
        window = np.s_[b, i * stride : i * stride + size, j * stride : j * stride + size]
        out[b, i, j, o] = (x[window] * kernel[..., o]).sum()
        x_slope[window] += slope[b, i, j, o] * kernel[..., o]
        kernel_slope[..., o] += slope[b, i, j, o] * x[window]
    inside = slice(padding, -padding or None)
    return out, x_slope[:, inside, inside], kernel_slope


@pytest.mark.parametrize("dtype", CONVOLUTIONS)
@pytest.mark.parametrize("which", SHAPES)
def test_a_convolution_and_its_gradients_are_the_sums_they_stand_for(which, dtype):
    shape, kernel_shape, stride, padding = SHAPES[which]
    rounded = lambda x: np.asarray(jnp.asarray(x, dtype).astype(jnp.float32))  # noqa: E731
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=shape), rng.normal(size=kernel_shape)
    conv = nn.Conv(
        kernel_shape[-1], kernel_shape[:2], stride, padding, use_bias=False, conv_general_dilated=CONVOLUTIONS[dtype]
    )

    def run(x, kernel):
        return conv.apply({"params": {"kernel": kernel}}, x)

    given = jnp.asarray(x, jnp.float32), jnp.asarray(kernel, jnp.float32)
    out, back = jax.vjp(run, *given)
    slope = rng.normal(size=out.shape)
    expected = written_out(*map(rounded, (x, kernel)), stride, padding, rounded(slope))
    for ours, theirs in zip((out, *back(jnp.asarray(slope, jnp.float32))), expected, strict=True):
        assert ours.dtype == jnp.float32
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def network_of(script, name, **given):
    args = script.Args(network=name, layer_norm=False, **given)  # which would hide the scale
    return pqn.QNetwork(args, 6) if script is pqn else script.ActorCritic(args, Discrete((6,)))


@pytest.mark.parametrize("script", [ppo, ppo_ewma, pqn])
@pytest.mark.parametrize("name", ["mlp", "cnn", "nature", "impala"])
def test_bytes_are_pixels_from_0_to_1(script, name):
    network, obs = network_of(script, name), np.random.default_rng(0).integers(0, 256, (2, 36, 38, 3), np.uint8)
    params = jax.jit(network.init)(jax.random.key(0), obs)
    first = jax.jit(lambda obs: jax.tree.leaves(network.apply(params, obs)))
    scaled = (obs / 255).astype(np.float32)
    for ours, theirs, raw in zip(first(obs), first(scaled), first(obs.astype(np.float32)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
        assert not np.allclose(ours, raw, atol=1e-3)


@pytest.mark.parametrize("script", [ppo, sapg, pqn])
def test_nine_shifted_views_are_a_convolution(script):
    """On an image that is no square."""
    rng = np.random.default_rng(0)
    args = script.Args(network="cnn", activation="tanh", layer_norm=False, hidden_sizes=(2,))
    encoder = network_of(pqn, "cnn", activation="tanh", hidden_sizes=(2,)) if script is pqn else script.Encoder(args)
    obs = rng.normal(size=(2, 5, 7, 3))
    params = jax.tree.map(lambda x: rng.normal(size=x.shape), encoder.init(jax.random.key(0), obs))
    _, sown = encoder.apply(params, obs, mutable="intermediates")
    layer = params["params"]["conv"]
    expected, *_ = written_out(obs, layer["kernel"].reshape(3, 3, 3, 16), 1, 0, np.zeros((2, 3, 5, 16)))
    found = sown["intermediates"]["hidden"][0]
    np.testing.assert_allclose(found, np.tanh(expected + layer["bias"]), atol=1e-4)


def test_the_networks_have_the_sizes_of_the_papers():
    """Mnih et al. 2015: 1,684,128 parameters before the output, 3136 features into its hidden layer. Espeholt et al.
    2018, their figure 3: 15 convolutions, 11 x 11 x 32 features."""
    for name, units, features, count, convs in (("nature", 512, 3136, 1684128, 3), ("impala", 256, 3872, 1089232, 15)):
        network = network_of(ppo, name, hidden_sizes=(units,), shared_encoder=True)
        obs = jax.ShapeDtypeStruct((1, 84, 84, 4), jnp.uint8)
        encoder = jax.eval_shape(network.init, jax.random.key(0), obs)["params"]["encoder"]
        kernels = [layer["kernel"].shape for layer in encoder.values()]
        assert encoder["Dense_0"]["kernel"].shape == (features, units)
        assert sum(len(shape) == 4 for shape in kernels) == convs
        assert sum(x.size for x in jax.tree.leaves(encoder)) == count
