"""A shuffle without a sort: every index once; where single positions and pairs of them go cannot be told from chance
(of triples common/arrays.py says more). And bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from common.arrays import Bits, pack, random_permutation, unpack


def permutations(n, number, seed=0):
    """-> [number, n], of as many keys."""
    permute = jax.jit(jax.vmap(lambda key: random_permutation(key, n)(jnp.arange(n))))
    return np.asarray(permute(jax.random.split(jax.random.key(seed), number)))


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 48, 100, 1000, 1024, 1025, 65535, 65536, 3 * 2**16])
def test_every_index_once(n):
    for order in permutations(n, 3):
        np.testing.assert_array_equal(np.sort(order), np.arange(n))


@pytest.mark.parametrize("n", [2**30 + 1, 2**31 - 1, 2**31])
def test_the_last_positions_of_the_largest_sizes(n):
    positions = jnp.int32(n - 2**16) + jnp.arange(2**16, dtype=jnp.int32)
    order = np.asarray(random_permutation(jax.random.key(0), n)(positions))
    assert order.min() >= 0 and order.max() < n and len(np.unique(order)) == 2**16


def test_positions_may_be_asked_for_in_any_shape_and_part():
    key, n = jax.random.key(3), 100
    whole = random_permutation(key, n)(jnp.arange(n))
    parts = [random_permutation(key, n)(10 * i + jnp.arange(10)) for i in range(10)]
    np.testing.assert_array_equal(jnp.concatenate(parts), whole)
    np.testing.assert_array_equal(random_permutation(key, n)(jnp.arange(n).reshape(4, 25)), whole.reshape(4, 25))
    assert whole.dtype == jnp.int32


@pytest.mark.parametrize("n", [6, 8, 16, 24, 64, 100])
def test_each_position_goes_everywhere_and_neighbours_part_equally_often(n):
    """Chi-squared over 4000 keys: where a position goes, and how far apart two positions come to lie."""
    orders = permutations(n, 4000)
    tests = [stats.chisquare(np.bincount(orders[:, i], minlength=n)).pvalue for i in range(n)]
    for apart in {1, 2, n // 4, n // 2}:
        for i in (0, 1, n // 3):
            distance = (orders[:, (i + apart) % n] - orders[:, i]) % n
            tests.append(stats.chisquare(np.bincount(distance, minlength=n)[1:]).pvalue)
    assert min(tests) > 1e-3 / len(tests)


@pytest.mark.parametrize("steps, envs", [(128, 1024), (16, 8192), (100, 1000)])
def test_minibatches_are_mixed_over_time_and_environments(steps, envs):
    """Of a rollout [T, N]: the share of each time step and of each environment in a minibatch varies as if drawn
    without replacement."""
    n, size = steps * envs, 2000
    for order in permutations(n, 2):
        for minibatch in (order[:size], order[-size:]):
            for labels, number in ((minibatch // envs, steps), (minibatch % envs // (envs // 8), 8)):
                assert stats.chisquare(np.bincount(labels, minlength=number)).pvalue > 1e-4


def test_two_epochs_have_nothing_in_common():
    """The number of positions that two permutations agree on is Poisson(1); pairs in one minibatch part again."""
    n = 4096
    orders = permutations(n, 400)
    agree = (orders[1:] == orders[:-1]).sum(1)
    assert abs(agree.mean() - 1) < 0.25 and agree.max() < 9
    minibatch = orders.argsort(1) // 64  # of each index, in minibatches of 64
    together = minibatch[0][:, None] == minibatch[0][None]
    again = (minibatch[1][:, None] == minibatch[1][None])[together].sum() - n
    expected = n * 63 * 63 / (n - 1)
    assert abs(again - expected) < 6 * expected**0.5


@pytest.mark.parametrize("shape", [(8,), (10, 10, 4), (3, 3), (1,)])
def test_bits_give_back_the_booleans(shape):
    x = np.random.default_rng(0).random((6, 5, *shape)) < 0.3
    packed = jax.jit(jax.vmap(pack))(x)  # stacked, as a scan over time does
    assert isinstance(packed, Bits) and packed.data.nbytes == 30 * -(-np.prod(shape) // 8)
    np.testing.assert_array_equal(unpack(packed), x)
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[jnp.array([7, 0, 29])], packed)
    np.testing.assert_array_equal(unpack(flat), x.reshape(-1, *shape)[[7, 0, 29]])


def test_only_booleans_are_packed():
    x = jnp.arange(6.0).reshape(2, 3)
    assert pack(x) is x and unpack(x) is x
