"""common/metrics.py against closed forms, sums by hand, NumPy and SciPy. How the scripts use it: test_plasticity.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from common import metrics
from common.actions import Categorical, Gaussian
from common.metrics import layer_metrics, policy_variance

# Each as one program: dozens of small ones take longer to compile.
feature_ranks, dormant_neurons = jax.jit(metrics.feature_ranks), jax.jit(metrics.dormant_neurons)
gradient_kurtosis, effective_sample_size = jax.jit(metrics.gradient_kurtosis), jax.jit(metrics.effective_sample_size)
gradient_metrics = jax.jit(metrics.gradient_metrics, static_argnums=0)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("values, rank, srank", [
    ([98, 1.1, 0.9], 1, 2),  # of the values 98 %, 99.1 %
    ([98, 0.9, 0.8, 0.3], 1, 3),  # 98 %, 98.9 %, 99.7 %
    ([99.1, 0.9], 1, 1),
    ([98.9, 1.1], 1, 2),
    ([50, 30, 19.1, 0.9], 3, 3),
    ([50, 30, 18.9, 1.1], 3, 4),
    ([9.9, 1], 2, 2),  # of the squares the first has 98.99 %, of the values 90.8 %
    ([10, 1], 1, 2),  # of the squares the first has 99.01 %
    ([5, 0, 0], 1, 1),
])  # fmt: skip
def test_ranks_are_where_99_percent_of_squares_and_of_values_are_reached(values, rank, srank, scale):
    """In any order, whatever the scale."""
    assert feature_ranks(jnp.diag(jnp.array(values[::-1], jnp.float32) * scale)) == (rank, srank)


def test_ranks_of_what_is_not_general():
    """Nothing, numbers that are none, and features that are not centred."""
    assert feature_ranks(jnp.zeros((6, 4))) == (0, 0)
    for number in (jnp.nan, jnp.inf):
        assert np.isnan(feature_ranks(jnp.ones((6, 4)).at[2, 1].set(number))).all()
    assert feature_ranks(jnp.full((6, 4), 3.0)) == (1, 1)


def test_small_singular_values_count_as_they_are():
    """1 and 150 times s = 0.0001: 99 % of 1.015 are 1.00485, so 1 + 48.5 s, which makes 1 + 49 values. The roots of the
    eigenvalues of F'F in float32, where s^2 is lost, say something else."""
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.normal(size=(n, 151)))[0] for n in (200, 151))
    features = jnp.array(left * ([1.0] + [1e-4] * 150) @ right.T, jnp.float32)
    squares = np.linalg.eigvalsh(np.asarray(features.T @ features))[::-1]
    roots = np.sqrt(np.maximum(squares, 0)).cumsum()
    assert abs((roots < 0.99 * roots[-1]).sum() + 1 - 50) > 10
    assert feature_ranks(features)[1] == 50


ONE_DEAD = np.ones((3, 4, 5, 6)) * ([1, 1, 0] + [1] * 3)
ONE_DEAD[:, 0, 0] = 0  # a place where nothing happens is no unit


@pytest.mark.parametrize("layers, tau, share", [
    ([np.ones((5, 8)) * ([1, 0] + [1] * 4 + [0, 1])], 0.025, 2 / 8),
    # A unit that is active once: mean 1 / 4, the other's 1, their layer's 5 / 8.
    *(([[[1, 0], [1, 1], [1, 0], [1, 0]]], tau, share) for tau, share in ((0.39, 0), (0.41, 0.5), (1.61, 1))),
    ([ONE_DEAD], 0.025, 1 / 6),  # the units of a convolution are its channels
    # 3 of 4, 1 of 12: a quarter of 16, though the mean of the shares is 0.42.
    ([np.ones((5, 4)) * [0, 0, 0, 1], np.ones((5, 2, 2, 12)) * ([0] + [1] * 11)], 0.025, 4 / 16),
    ([np.full((5, 4), 0.01), np.ones((5, 4))], 0.025, 0),  # each unit is compared with its own layer
    # Means 1 and 3, the layer's 2: at the threshold is dormant.
    *(([[[1, 3], [1, 3]]], tau, share) for tau, share in ((0.5, 0.5), (0.4999, 0), (1.5, 1))),
    ([[[0, 3]]], 0.0, 0.5),
    ([np.zeros((5, 4)), np.ones((5, 12))], 0.025, 4 / 16),
    # Activity is a magnitude: signs that cancel over the sample, and a unit that is always negative.
    ([[[1, -0.9, 0], [-1, -0.9, 0]]], 0.025, 1 / 3),
])  # fmt: skip
def test_dormant_neurons_by_hand(layers, tau, share):
    assert dormant_neurons([jnp.array(layer, jnp.float32) for layer in layers], tau) == pytest.approx(share)


def test_an_entry_of_zero_counts_as_delta():
    """Logarithms -2, -1, 0, 0 (times log 10^4), less their mean -5/4, -1/4, 3/4, 3/4: m2 = 11/16, m4 = 197/256."""
    g = jnp.array([0.0, -1e-4, 1.0, -1.0])
    assert gradient_kurtosis(g) == pytest.approx(197 / 256 / (11 / 16) ** 2, rel=1e-3)
    smaller = scipy.stats.kurtosis([-3, -1, 0, 0], fisher=False)
    assert gradient_kurtosis(g, delta=1e-12) == pytest.approx(smaller, rel=1e-3)


def test_effective_sample_size_by_hand():
    assert effective_sample_size(jnp.zeros(7)) == pytest.approx(100)
    assert effective_sample_size(jnp.zeros(8).at[3].set(60.0)) == pytest.approx(100 / 8)
    assert effective_sample_size(jnp.zeros(8).at[::2].set(-jnp.inf)) == pytest.approx(50)
    for offset in (0, -1000, 1000):  # a common factor of the weights cancels
        log_ratio = jnp.log(jnp.array([1.0, 2.0, 3.0])) + offset
        assert effective_sample_size(log_ratio) == pytest.approx(100 * 36 / (3 * 14), rel=1e-3)


GAUSSIAN = jnp.array([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]])


@pytest.mark.parametrize("dist, variance", [
    # However unequal its actions are, a policy that does not look has none.
    (Categorical(jnp.tile(jnp.array([0.0, 5.0, -2.0]), (6, 1)), (3,)), 0),
    (Gaussian(jnp.tile(jnp.array([1.0, -7.0]), (6, 1)), jnp.zeros((6, 2))), 0),
    # A choice between two of three actions: of each of the two 1 / 4, of the third none.
    (Categorical(jnp.log(jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]] * 4)), (3,)), 1 / 6),
    # The first of two options changes from 0.2 to 0.6, variance 0.04 of both; of three options none changes.
    (Categorical(jnp.log(jnp.array([[0.2, 0.8, 0.1, 0.2, 0.7], [0.6, 0.4, 0.1, 0.2, 0.7]])), (2, 3)), 0.08 / 5),
    # (4 + 0 + 4) / 3 and 0; how much it explores does not matter.
    (Gaussian(GAUSSIAN, GAUSSIAN - 1), 4 / 3),
])  # fmt: skip
def test_policy_variance_by_hand(dist, variance):
    assert policy_variance(dist) == pytest.approx(variance, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("rows, length, noise, signal", [
    # The sample variance is 7, and the square of the mean is 9, of which 7 / 3 are noise.
    ([1, 2, 6], 1, 7, 9 - 7 / 3),
    ([1, 2, 6], 3, 3 * 7, 9 - 7 / 3),  # a row of three transitions has a third of the noise of one
    # Eight parts, and a rest that is left out: pairs of means 1 ... 8, whose variance 6 is half a transition's.
    ([x for i in range(1, 9) for x in (i + 0.5, i - 0.5)] + [1e6] * 3, 1, 2 * 6, 4.5**2 - 6 / 8),
    ([1, -1] * 4, 1, 8 / 7, -1 / 7),  # without a signal there is no scale
])  # fmt: skip
def test_noise_and_signal_of_the_gradient_by_hand(rows, length, noise, signal):
    gradient = lambda part: part.mean(0)  # noqa: E731 (of a loss that is linear in its parameters)
    found = gradient_metrics(gradient, jnp.array(rows, jnp.float32)[:, None], length)
    assert found["plasticity/gradient_noise"] == pytest.approx(noise)
    assert found["plasticity/gradient_signal"] == pytest.approx(signal)
    scale = noise / signal if signal > 0 else np.nan
    assert found["plasticity/gradient_noise_scale"] == pytest.approx(scale, nan_ok=True)


def test_the_critic_has_keys_of_its_own():
    """The rank is that of the last layer; of its units as many as are missing are dead."""

    def encoder(*ranks):
        return {"hidden": tuple(jnp.tile(jnp.eye(4) * (jnp.arange(4) < rank), (3, 1)) for rank in ranks)}

    found = layer_metrics({"critic_encoder": encoder(1, 2), "actor_encoder": encoder(4, 3)}, 0.025)
    expected = {"feature_rank": 3, "srank": 3, "dormant_neurons": 1 / 8}
    expected |= {"critic_feature_rank": 2, "critic_srank": 2, "critic_dormant_neurons": 5 / 8}
    assert found == {f"plasticity/{name}": value for name, value in expected.items()}
