"""Does experiments/drift.py measure what it says? Against closed forms, a peer's line fit and the script's own KL."""

import json

import jax
import numpy as np
import pytest
from scipy.special import log_softmax
from scipy.stats import linregress

import ppo
from common import bits
from common.run.arguments import UsageError, parse
from experiments import drift, how_many


def test_a_window_goes_on_adapting_its_learning_rate(tmp_path, monkeypatch):
    """Steps this small leave the KL below half of the target, so each of the two epochs multiplies the rate by 1.5."""
    flags = "--num-envs 16 --num-steps 32 --minibatch-size 128 --hidden-sizes 8 --num-devices 1 --num-eval-episodes 0"
    flags += f" --update-epochs 2 --learning-rate 1e-5 --adaptive-lr-kl 1 --total-timesteps 512 --runs-dir {tmp_path}"
    ppo.train(parse(ppo.Args, "", [*flags.split(), "--run-name", "run"]))
    rates, step = [], how_many.Program.step
    monkeypatch.setattr(
        how_many.Program, "step", lambda self, state: (rates.append(float(state.learning_rate)), step(self, state))[1]
    )
    drift.go_on(f"{tmp_path}/run", 0, 3)
    assert rates == pytest.approx([1e-5 * 1.5**n for n in (2, 4, 6)])
    with pytest.raises(UsageError, match="--seeds 1: "):
        drift.go_on(f"{tmp_path}/run", 1, 8)
    with pytest.raises(UsageError, match="--updates 4: must be at least 8"):
        drift.main((f"{tmp_path}/run",), updates=4)


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_the_exponent_of_a_power_law_is_its_power(power):
    assert drift.exponent({m: 3.0 * m**power for m in (1, 2, 4, 8, 16)}) == pytest.approx(power)


def test_the_rise_is_that_of_a_straight_line_through_the_block_means():
    values = np.arange(64) * 0.5 + np.random.default_rng(0).normal(size=64)
    values[5] = np.nan  # an update in which no episode ended
    blocks = np.nanmean(values.reshape(8, 8), axis=1)
    fit = linregress(np.arange(8), blocks)
    found = drift.change(values)
    assert found.mean == pytest.approx(8 * fit.slope)
    assert (found.high - found.mean) == pytest.approx(8 * 2.4469 * fit.stderr, rel=1e-3)  # t, six degrees of freedom


def test_windows_are_judged_by_what_was_preregistered():
    window = lambda low, rise, promised, power: {  # noqa: E731
        "rise": {"mean": rise, "low": low, "high": 9.0}, "promised": {"mean": promised}, "exponent": power
    }  # fmt: skip
    rows = (0.1, 1.0, 2.0, 1.5), (0.2, 3.0, 1.0, 0.5), (0.1, 2.0, 2.0, 1.0), (0.0, 1.0, 1.0, 1.0), (-1.0, 0, 1.0, 2.0)
    found = drift.judge({str(i): window(*row) for i, row in enumerate(rows)})
    assert list(found.values()) == [3, 1, 2, 1, 1.0]


def test_a_window_goes_on_from_the_checkpoint_and_measures_the_kl_of_its_policies(tmp_path, monkeypatch):
    flags = "--num-envs 16 --num-steps 32 --minibatch-size 128 --hidden-sizes 8 --num-devices 1 --num-eval-episodes 0"
    flags += f" --total-timesteps 2048 --checkpoint-every 2 --runs-dir {tmp_path} --run-name run"
    ppo.train(parse(ppo.Args, "", flags.split()))
    args, (script, network), window = drift.go_on(f"{tmp_path}/run@2", 0, 8)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["update"] == 4 and len(window.returns) == 8 and len(window.params) == 9  # the run is as it was
    assert np.isfinite(window.promised[:-1]).all() and np.isnan(window.promised[-1])
    dists = [network.apply(params, bits.unpack(window.obs))[0] for params in window.params]
    log_p = [log_softmax(np.asarray(dist.logits, np.float64), axis=-1) for dist in dists]
    kl = lambda old, new: np.mean(np.sum(np.exp(log_p[old]) * (log_p[old] - log_p[new]), -1))  # noqa: E731
    ends = [4, 4, 5, 5, 6, 6, 7, 8]
    expected = {m: np.mean([kl(t - m, t) for t in ends]) for m in (1, 2, 4)}
    assert drift.distances(args, (script, network), window) == pytest.approx(expected, rel=1e-3)
    again = drift.go_on(f"{tmp_path}/run@2", 0, 8)[2]
    assert jax.tree.all(jax.tree.map(np.array_equal, again.params, window.params))
    monkeypatch.setattr("sys.argv", ["drift", "a run"])
    drift.main((f"{tmp_path}/run@2",), updates=8, out=tmp_path / "drift.json")
    drift.main((f"{tmp_path}/run@4",), updates=8, out=tmp_path / "drift.json")
    assert list(json.loads((tmp_path / "drift.json").read_text())["results"]) == ["run@2, seed 0", "run@4, seed 0"]
