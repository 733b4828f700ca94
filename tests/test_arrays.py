"""common/arrays.py and the networks of convolutions, against NumPy in float64: a shuffle without a sort, samples, bits,
products and convolutions in bfloat16 (rounded by ml_dtypes)."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from conftest import on_devices
from jax.sharding import PartitionSpec as P
from scipy import stats

import ppo
import pqn
from common.actions import Discrete
from common.arrays import (
    CONVOLUTIONS,
    Bits,
    bfloat16_dot_general,
    gather_rows,
    pack,
    product_of_columns,
    random_permutation,
    random_rows,
    unpack,
)


def permutations(n, number, seed=0):
    """-> [number, n], of as many keys."""
    permute = jax.jit(jax.vmap(lambda key: random_permutation(key, n)(jnp.arange(n))))
    return np.asarray(permute(jax.random.split(jax.random.key(seed), number)))


@pytest.mark.parametrize("n", [1, 2, 3, 8, 100, 1024, 1025, 65535])
def test_every_index_once(n):
    for order in permutations(n, 3):
        np.testing.assert_array_equal(np.sort(order), np.arange(n))


@pytest.mark.parametrize("n", [2**30 + 1, 2**31])
def test_the_last_positions_of_the_largest_sizes(n):
    positions = jnp.int32(n - 2**16) + jnp.arange(2**16, dtype=jnp.int32)
    order = np.asarray(random_permutation(jax.random.key(0), n)(positions))
    assert order.min() >= 0 and order.max() < n and len(np.unique(order)) == 2**16


@pytest.mark.parametrize("n", [6, 16, 24, 100])
def test_each_position_goes_everywhere_and_neighbours_part_equally_often(n):
    """Chi-squared over 4000 keys: where a position goes, and how far apart two positions come to lie."""
    orders = permutations(n, 4000)
    tests = [stats.chisquare(np.bincount(orders[:, i], minlength=n)).pvalue for i in range(n)]
    for apart in {1, 2, n // 4, n // 2}:
        for i in (0, 1, n // 3):
            distance = (orders[:, (i + apart) % n] - orders[:, i]) % n
            tests.append(stats.chisquare(np.bincount(distance, minlength=n)[1:]).pvalue)
    assert min(tests) > 1e-3 / len(tests)


@pytest.mark.parametrize("shape", [(8,), (10, 10, 4), (3, 3), (1,)])
def test_bits_give_back_the_booleans(shape):
    x = np.random.default_rng(0).random((6, 5, *shape)) < 0.3
    packed = jax.jit(jax.vmap(pack))(x)  # stacked, as a scan over time does
    assert isinstance(packed, Bits) and packed.data.nbytes == 30 * -(-np.prod(shape) // 8)
    np.testing.assert_array_equal(unpack(packed), x)
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[jnp.array([7, 0, 29])], packed)
    np.testing.assert_array_equal(unpack(flat), x.reshape(-1, *shape)[[7, 0, 29]])
    numbers = jnp.arange(6.0)
    assert pack(numbers) is numbers and unpack(numbers) is numbers


@pytest.mark.parametrize("size, n", [(5, 9), (100, 9), (7, 8)])
def test_rows_are_different_whole_and_in_random_order(size, n):
    tree = {"a": jnp.arange(n), "b": 10 * jnp.arange(n)[:, None] + jnp.arange(2)}
    take = jax.jit(lambda key: random_rows(tree, size, key))
    seen = [take(key) for key in jax.random.split(jax.random.key(0), 20)]
    for rows in seen:
        assert len(set(rows["a"].tolist())) == len(rows["a"]) == min(size, n)
        np.testing.assert_array_equal(rows["b"], 10 * rows["a"][:, None] + np.arange(2))
    assert len({tuple(rows["a"].tolist()) for rows in seen}) > 5


@pytest.mark.parametrize("size", [24, 10])
def test_rows_of_all_chunks_and_devices_are_taken_in_turn(size):
    """Chunk c of device d has the rows 100 c + 10 d + 0, 1, 2, 3."""
    rows = np.array([[100 * c + 10 * d + i for d in range(3) for i in range(4)] for c in range(2)])
    found = on_devices(partial(gather_rows, size=size), 3, P(None, "device"))({"x": rows})["x"]
    expected = [100 * c + 10 * d + i for i in range(4) for c in range(2) for d in range(3)]
    np.testing.assert_array_equal(found, expected[:size])
    for shard in found.addressable_shards:
        np.testing.assert_array_equal(shard.data, found)


def rounded(x):
    return np.asarray(x).astype(ml_dtypes.bfloat16).astype(np.float64)


@pytest.fixture(scope="module")
def factors():
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(np.float32) for shape in ((2, 300, 50), (50, 40), (2, 300, 40))]


def product(x, kernel):
    return bfloat16_dot_general(x, kernel, (((x.ndim - 1,), (0,)), ((), ())), precision=None)


def test_factors_are_rounded_and_sums_are_not(factors):
    x, kernel, _ = factors
    found = product(x, kernel)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, rounded(x) @ rounded(kernel), rtol=1e-5, atol=1e-5)
    assert np.abs(found - x @ kernel).max() > 1e-3  # float32 would not pass
    # A sum of 4096 ones in bfloat16 would stop at 256.
    assert product(jnp.ones((1, 4096)), jnp.ones((4096, 1)))[0, 0] == 4096


def test_gradients_are_products_of_rounded_factors(factors):
    x, kernel, slope = factors
    by_x, by_kernel = jax.vjp(product, x, kernel)[1](slope)
    assert by_x.dtype == by_kernel.dtype == jnp.float32
    np.testing.assert_allclose(by_x, rounded(slope) @ rounded(kernel).T, rtol=1e-4, atol=1e-4)
    expected = np.einsum("abi,abo->io", rounded(x), rounded(slope))
    np.testing.assert_allclose(by_kernel, expected, rtol=1e-4, atol=1e-3)


def test_a_product_of_columns_is_the_transposed_product(factors):
    x, kernel, slope = factors[0].reshape(-1, 50), factors[1], factors[2].reshape(-1, 40)
    for dtype, form in ((jnp.bfloat16, rounded), (jnp.float32, lambda x: x.astype(np.float64))):
        found, gradient = jax.vjp(lambda *each: product_of_columns(dtype, *each), kernel, x.T)  # noqa: B023
        by_kernel, by_x = gradient(slope.T)
        assert found.dtype == by_kernel.dtype == by_x.dtype == jnp.float32
        np.testing.assert_allclose(found, (form(x) @ form(kernel)).T, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(by_kernel, form(x).T @ form(slope), rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(by_x, (form(slope) @ form(kernel).T).T, rtol=1e-4, atol=1e-4)


def test_networks_have_float32_parameters_and_results_near_those_of_float32():
    obs = np.random.default_rng(0).uniform(size=(64, 10, 10, 4)) < 0.2
    results = {}
    for compute_dtype in ("float32", "bfloat16"):
        net = ppo.ActorCritic(ppo.Args(compute_dtype=compute_dtype, network="cnn"), Discrete((3,)))
        params = jax.jit(net.init)(jax.random.key(0), obs)
        assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("float32")}
        results[compute_dtype] = jax.jit(net.apply)(params, obs)[1]
    exact, rough = results.values()
    assert rough.dtype == jnp.float32
    assert 1e-5 < np.abs(exact - rough).max() < 0.02 * np.abs(exact).max()


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
@pytest.mark.parametrize("shape, kernel_shape, stride, padding", [
    ((2, 12, 13, 2), (8, 8, 2, 3), 4, 0),  # of an observation; three kernels of nature's network, and impala's
    ((1, 9, 8, 3), (4, 4, 3, 2), 2, 0),
    ((3, 5, 4, 2), (3, 3, 2, 4), 1, 0),
    ((2, 4, 5, 3), (3, 3, 3, 2), 1, 1),
])  # fmt: skip
def test_a_convolution_and_its_gradients_are_the_sums_they_stand_for(shape, kernel_shape, stride, padding, dtype):
    as_given = lambda x: np.asarray(jnp.asarray(x, dtype).astype(jnp.float32))  # noqa: E731
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=shape), rng.normal(size=kernel_shape)
    how = dict(use_bias=False, conv_general_dilated=CONVOLUTIONS[dtype])
    conv = nn.Conv(kernel_shape[-1], kernel_shape[:2], stride, padding, **how)

    def run(x, kernel):
        return conv.apply({"params": {"kernel": kernel}}, x)

    given = jnp.asarray(x, jnp.float32), jnp.asarray(kernel, jnp.float32)
    slope = rng.normal(size=jax.eval_shape(run, *given).shape).astype(np.float32)
    expected = written_out(*map(as_given, (x, kernel)), stride, padding, as_given(slope))
    out, back = jax.jit(lambda slope, *given: (run(*given), jax.vjp(run, *given)[1](slope)))(slope, *given)
    for ours, theirs in zip((out, *back), expected, strict=True):
        assert ours.dtype == jnp.float32
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def network_of(script, name, **given):
    args = script.Args(network=name, layer_norm=False, **given)  # which would hide the scale
    return pqn.QNetwork(args, 6) if script is pqn else script.ActorCritic(args, Discrete((6,)))


@pytest.mark.parametrize("script, name", [(pqn, "mlp"), (ppo, "cnn")])
def test_bytes_are_pixels_from_0_to_1(script, name):
    network, obs = network_of(script, name), np.random.default_rng(0).integers(0, 256, (2, 36, 38, 3), np.uint8)
    params = jax.jit(network.init)(jax.random.key(0), obs)
    first = jax.jit(lambda obs: jax.tree.leaves(network.apply(params, obs)))
    scaled = (obs / 255).astype(np.float32)
    for ours, theirs, raw in zip(first(obs), first(scaled), first(obs.astype(np.float32)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
        assert not np.allclose(ours, raw, atol=1e-3)


@pytest.mark.parametrize("script", [ppo, pqn])
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
