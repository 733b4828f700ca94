"""stochastic_opt.py: steps against NumPy, the closed forms against simulations, and the command line."""

import json
import re
from dataclasses import replace

import jax
import numpy as np
import pytest
from conftest import ended, metrics_of, start
from test_init_from import killed_run

import stochastic_opt

ARGS = stochastic_opt.Args(dimension=5, num_steps=10, num_seeds=1)


def course(args, keys):
    """-> states and metrics of all steps, [seeds, steps, ...]."""

    def one(key):
        step = lambda state, _: (lambda new, metrics: (new, (new, metrics)))(*stochastic_opt.update(args, state))  # noqa: E731
        return jax.lax.scan(step, stochastic_opt.init_state(args, key), length=args.num_steps)[1]

    return jax.device_get(jax.jit(jax.vmap(one))(keys))


def keys_of(number):
    return jax.vmap(jax.random.key)(np.arange(number))


@pytest.mark.parametrize("flags", [
    {"learning_rate": 0.5, "noise": 6.0},
    {"learning_rate": 0.3, "noise": 0.0},
    {"learning_rate": 0.9, "initial_distance": 0.0},
    {"learning_rate": 0.6, "switch_step": 7, "switch_learning_rate": 0.02},
])  # fmt: skip
def test_the_predicted_distance_is_the_mean_of_4000_simulations(flags):
    args, rng = replace(ARGS, **flags), np.random.default_rng(0)
    diverging = {"learning_rate": 1.0} if args.switch_step is None else {"switch_learning_rate": 1.5}
    assert stochastic_opt.has_theory(args) and not stochastic_opt.has_theory(replace(args, **diverging))
    x = np.full((4000, 5), args.initial_distance / np.sqrt(5))
    steps, simulated = np.arange(21), [np.linalg.norm(x, axis=1)]
    for step in range(20):
        late = args.switch_step is not None and step >= args.switch_step
        gradient = 2 * x + rng.normal(0, args.noise / np.sqrt(5), x.shape)
        x = x - (args.switch_learning_rate if late else args.learning_rate) * gradient
        simulated.append(np.linalg.norm(x, axis=1))
    predicted = stochastic_opt.predict_distance(args, steps)
    assert predicted[0] == pytest.approx(args.initial_distance, abs=1e-6)
    for step in (1, 2, 5, 7, 8, 12, 20):
        error = simulated[step].std() / np.sqrt(4000)
        assert abs(predicted[step] - simulated[step].mean()) <= 4 * error + 1e-6 * predicted[step], step
        assert error < 0.02 * predicted[step]  # else the line above says little


def test_the_theory_is_finite_in_a_thousand_dimensions_too():
    """Against samples of a noncentral chi-squared variable, along the fall. 1F1 alone is infinite at some ratios."""
    args = stochastic_opt.Args(dimension=1000, learning_rate=0.01)
    steps, rng = np.array([1, 50, 170, 200, 240, 1000]), np.random.default_rng(0)
    for step, found in zip(steps, stochastic_opt.predict_distance(args, steps), strict=True):
        shrunk, limit = 0.98**step, args.noise**2 / 1000 * 0.01 / (4 * 0.99)
        variance = limit * (1 - shrunk**2)
        squares = variance * rng.noncentral_chisquare(1000, (args.initial_distance * shrunk) ** 2 / variance, 10**6)
        np.testing.assert_allclose(found, np.sqrt(squares).mean(), rtol=1e-4)


@pytest.mark.parametrize("eta", [0.05, 0.9])
def test_the_predicted_plateau_is_that_of_the_script_itself(eta):
    """64 seeds, the second half of 400 steps; also where a switch leads to the same learning rate."""
    args = replace(ARGS, learning_rate=eta, num_steps=400, dimension=10)
    _, metrics = course(args, keys_of(64))
    predicted = stochastic_opt.predict_plateau(args)
    norms = {"charts/negative_distance", "outer/grad_norm", "outer/update_norm"}
    assert predicted.keys() == norms | {"outer/own_gain", "outer/fresh_gain"}
    for name, value in predicted.items():
        values = metrics[name][:, 200:].mean(1)
        error = 0 if name in norms else 5 * values.std() / 8  # a gain varies by more than its mean if steps are small
        assert values.mean() == pytest.approx(value, rel=0.03, abs=float(error)), name
    late = stochastic_opt.predict_distance(args, np.array([400]))
    assert late == pytest.approx(-predicted["charts/negative_distance"], rel=1e-6)
    switched = replace(args, learning_rate=0.2, switch_step=9, switch_learning_rate=eta)
    assert stochastic_opt.predict_plateau(switched) == predicted


def test_without_noise_fresh_gain_is_what_a_step_is_worth():
    """f falls by 4 eta (1 - eta) ||x||^2, which lies half-way between the gains as seen from either end of the step."""
    eta = 0.4
    args = replace(ARGS, learning_rate=eta, num_steps=5, noise=0.0)
    _, metrics = course(args, keys_of(1))
    f = np.concatenate([[args.initial_distance**2], metrics["charts/negative_distance"][0] ** 2])
    own, fresh = metrics["outer/own_gain"][0], metrics["outer/fresh_gain"][0]
    assert np.isnan(fresh[0])
    np.testing.assert_allclose((own[:-1] + fresh[1:]) / 2, -np.diff(f)[:-1], rtol=1e-4)
    np.testing.assert_allclose(fresh[1:] / own[:-1], 1 - 2 * eta, rtol=1e-4)


@pytest.mark.parametrize("flags, rates", [
    ({"switch_step": 8, "switch_learning_rate": 0.2, "anneal_lr": True},
     [0.1, 0.09, 0.08, 0.07, 0.06, 0.05, 0.04, 0.03, 0.04, 0.02]),
    ({"optimizer": "momentum", "momentum": 0.8, "switch_step": 0, "switch_learning_rate": 0.02}, [0.02] * 10),
    ({"optimizer": "adam"}, [0.1] * 10),
])  # fmt: skip
def test_steps_without_noise_are_those_of_numpy(flags, rates):
    args = replace(ARGS, noise=0.0, **flags)
    assert not stochastic_opt.has_theory(args)
    states, metrics = course(args, keys_of(1))
    x, trace, first, second = np.full(5, np.sqrt(5)), 0.0, 0.0, 0.0
    np.testing.assert_allclose(metrics["charts/learning_rate"][0], rates, rtol=1e-5)
    for i, rate in enumerate(rates):
        gradient = direction = 2 * x
        if args.optimizer == "momentum":
            direction = trace = gradient + 0.8 * trace
        if args.optimizer == "adam":
            first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
            direction = first / (1 - 0.9 ** (i + 1)) / (np.sqrt(second / (1 - 0.999 ** (i + 1))) + 1e-8)
        x = x - rate * direction
        np.testing.assert_allclose(states.x[0, i], x, rtol=1e-4, atol=1e-6)
        expected = [np.linalg.norm(gradient), rate * np.linalg.norm(direction), -np.linalg.norm(x)]
        names = ["outer/grad_norm", "outer/update_norm", "charts/negative_distance"]
        np.testing.assert_allclose([metrics[name][0, i] for name in names], expected, rtol=1e-4)
        assert states.step[0, i] == i + 1 and metrics["finite"][0, i]


@pytest.mark.parametrize("flags, said", [
    ("--dimension 2000000000", "--dimension 2000000000: needs "),
    ("--switch-step 3", "--switch-step 3: needs --switch-learning-rate"),
    ("--switch-learning-rate 0.1", "--switch-learning-rate 0.1: needs --switch-step"),
    ("--momentum 0.5", "--momentum 0.5: has no effect without --optimizer momentum"),
])  # fmt: skip
def test_bad_input_is_answered_in_one_line(capsys, tmp_path, flags, said):
    code, _, err = ended(capsys, stochastic_opt, *flags.split(), "--runs-dir", tmp_path)
    (line,) = err.splitlines()
    assert code == 2 and line.startswith(f"stochastic_opt.py: error: {said}")
    assert not list(tmp_path.iterdir())


def test_the_last_tenth_begins_with_the_switch_at_the_earliest(capsys, tmp_path):
    """And what of it the theory expects is said where that is not the plateau."""
    flags = "--num-steps 60 --dimension 4 --num-seeds 3 --switch-step 58 --switch-learning-rate 0.9 --run-name x"
    start(stochastic_opt, *flags.split(), "--runs-dir", tmp_path)
    told, after = capsys.readouterr().out, metrics_of(tmp_path / "x")[58:]
    simulated = np.mean([line["charts/negative_distance"] for line in after])
    assert re.search(rf"from the optimum\): plateau of the theory \S+, simulated {simulated:.4g} ±", told)
    expected = np.mean([line["theory/negative_distance"] for line in after])
    assert len(after) == 2 and f"not there yet: for these last steps the theory expects {expected:.4g}\n" in told


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run from start to end."""
    flags, folder = "--num-steps 30 --dimension 4 --num-seeds 3 --seed 7", tmp_path_factory.mktemp("runs")
    kept = "--checkpoint-every", 10, "--keep-checkpoints", 0
    start(stochastic_opt, *flags.split(), *kept, "--runs-dir", folder, "--run-name", "straight")
    return folder / "straight"


def test_a_run_leaves_its_course_beside_that_of_the_theory(straight):
    lines = metrics_of(straight)
    assert [line["update"] for line in lines] == list(range(1, 31))
    theory = stochastic_opt.predict_distance(replace(ARGS, dimension=4), np.arange(31))
    np.testing.assert_allclose([line["theory/negative_distance"] for line in lines], -theory[1:], rtol=1e-9)
    _, metrics = course(replace(ARGS, dimension=4, num_steps=30), jax.vmap(jax.random.key)(np.arange(7, 10)))
    for name in ("charts/negative_distance", "outer/grad_norm", "outer/update_norm"):
        written = np.array([line[name] for line in lines])
        assert written.shape == (30, 3)
        np.testing.assert_allclose(written, metrics[name].T, rtol=1e-4)
    assert (straight / "curve.png").exists()
    summary = json.loads((straight / "summary.json").read_text())
    assert (summary["updates"], summary["env_id"]) == (30, "bowl")


def test_a_run_that_was_half_done_goes_on_bit_for_bit(straight):
    half = killed_run(straight, straight.parent / "half", after=14)
    start(stochastic_opt, "--resume", half)
    assert metrics_of(half) == metrics_of(straight)
    assert (half / "summary.json").exists() and (half / "checkpoints/30").exists()
