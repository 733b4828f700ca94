"""Random rows of a chunk, and how those of all chunks and devices are put together."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import on_devices
from jax.sharding import PartitionSpec as P
from scipy.stats import chisquare

from common.arrays import gather_rows, random_rows


@pytest.mark.parametrize("size, n", [(1, 9), (5, 9), (9, 9), (100, 9), (7, 8)])
def test_rows_are_different_whole_and_in_random_order(size, n):
    tree = {"a": jnp.arange(n), "b": 10 * jnp.arange(n)[:, None] + jnp.arange(2)}
    seen = [jax.jit(lambda key: random_rows(tree, size, key))(jax.random.key(seed)) for seed in range(20)]
    for rows in seen:
        assert len(set(rows["a"].tolist())) == len(rows["a"]) == min(size, n)
        np.testing.assert_array_equal(rows["b"], 10 * rows["a"][:, None] + np.arange(2))
    assert len({tuple(rows["a"].tolist()) for rows in seen}) > 5


def test_every_row_is_as_likely():
    keys = jax.random.split(jax.random.key(0), 6000)
    rows = jax.jit(jax.vmap(lambda key: random_rows(jnp.arange(24), 3, key)))(keys)
    assert chisquare(np.bincount(rows.ravel(), minlength=24)).pvalue > 1e-3


@pytest.mark.parametrize("size", [24, 10, 1])
def test_rows_of_all_chunks_and_devices_are_taken_in_turn(size):
    """Chunk c of device d has the rows 100 c + 10 d + 0, 1, 2, 3."""
    rows = np.array([[100 * c + 10 * d + i for d in range(3) for i in range(4)] for c in range(2)])
    found = on_devices(partial(gather_rows, size=size), 3, P(None, "device"))({"x": rows})["x"]
    expected = [100 * c + 10 * d + i for i in range(4) for c in range(2) for d in range(3)]
    np.testing.assert_array_equal(found, expected[:size])
    for shard in found.addressable_shards:
        np.testing.assert_array_equal(shard.data, found)
