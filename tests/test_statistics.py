"""Means of many scalars at once."""

import jax
import jax.numpy as jnp
import numpy as np

from common import statistics


def test_means_are_numpys_and_pass_no_gradient():
    rng = np.random.default_rng(0)
    values = {"b": rng.normal(size=37).astype(np.float32), "a": rng.uniform(size=37) < 0.3}
    found = statistics.means({name: jnp.asarray(value) for name, value in values.items()})
    assert found.keys() == values.keys()
    for name, value in values.items():
        np.testing.assert_allclose(found[name], value.mean(), rtol=1e-6)
    # An overflow in a metric would otherwise make the gradient of everything else 0 * inf.
    grad = jax.grad(lambda x: x.sum() + statistics.means({"a": jnp.exp(x), "b": x})["b"])(jnp.array([1e3, 1.0]))
    np.testing.assert_array_equal(grad, [1.0, 1.0])


def test_scan_mean_is_a_loop():
    inputs = {"x": jnp.arange(5.0), "y": jnp.arange(10.0).reshape(5, 2)}

    def step(carry, row):
        total = carry + row["x"] + row["y"].sum()
        return total, {"total": total, "parts": {"large": total > 10, "first": row["y"][0]}}

    carry, means = statistics.scan_mean(step, jnp.float32(1), inputs)
    totals, total = [], 1.0
    for x in range(5):
        total += x + 2 * x + 2 * x + 1
        totals.append(total)
    assert carry == total
    np.testing.assert_allclose(means["total"], np.mean(totals))
    np.testing.assert_allclose(means["parts"]["large"], np.mean([t > 10 for t in totals]))
    np.testing.assert_allclose(means["parts"]["first"], 4.0)
