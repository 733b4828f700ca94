"""Products in bfloat16, against NumPy in float64 with factors rounded by ml_dtypes."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import ppo
import pqn
from common.actions import Discrete
from common.arrays import bfloat16_dot_general, product_of_columns


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


@pytest.mark.parametrize("script", [ppo, pqn], ids=["ppo", "pqn"])
@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_networks_have_float32_parameters_and_results_near_those_of_float32(script, network):
    obs = np.random.default_rng(0).uniform(size=(64, 10, 10, 4)) < 0.2
    results = {}
    for compute_dtype in ("float32", "bfloat16"):
        args = script.Args(compute_dtype=compute_dtype, network=network)
        net = ppo.ActorCritic(args, Discrete((3,))) if script is ppo else pqn.QNetwork(args, 3)
        params = net.init(jax.random.key(0), obs)
        assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("float32")}
        results[compute_dtype] = net.apply(params, obs)[1] if script is ppo else net.apply(params, obs)
    exact, rough = results.values()
    assert rough.dtype == jnp.float32
    assert 1e-5 < np.abs(exact - rough).max() < 0.02 * np.abs(exact).max()
