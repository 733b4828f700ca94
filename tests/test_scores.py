"""Scores over several games, against answers by hand, rliable, and a bootstrap of our own; and their command."""

import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import tyro
from conftest import Toy, read, write_run

import ppo
from common import envs
from common.run.arguments import UsageError
from experiments import reference_scores, scores
from experiments.grid import Cell

ROOT = Path(__file__).parents[1]

SKEWED = np.random.default_rng(0).exponential(1.0, (5, 3)) * [1, 3, 10]
OTHER = np.random.default_rng(1).exponential(1.5, (7, 3)) * [1, 3, 10]  # of more seeds


@pytest.fixture
def rliable():
    pytest.importorskip("rliable")
    np.random.seed(0)  # rliable draws from the global generator where it has several matrices


# Interquartile means


def test_the_interquartile_mean_leaves_out_the_lowest_and_the_highest_quarter():
    values = np.array([[90, 1, 2], [-50, 4, 3], [5, 6, 7], [8, 1000, 0]], np.float64)  # of 12 three at each end
    assert scores.aggregate(values) == np.mean([2, 3, 4, 5, 6, 7])
    assert scores.aggregate(np.arange(15.0) ** 2) == np.mean(np.arange(3, 12) ** 2)  # 15 / 4, rounded down


def test_the_interquartile_mean_is_rliables(rliable):
    from rliable import metrics

    assert scores.aggregate(SKEWED) == pytest.approx(metrics.aggregate_iqm(SKEWED))
    assert scores.iqm(SKEWED)[0] == pytest.approx(metrics.aggregate_iqm(SKEWED))


def test_games_and_seeds_are_one_sample():
    """Not the mean of the games' means: a game that is out of the common run does not count."""
    values = np.tile([0.0, 1.0, 2.0, 1000.0], (5, 1))
    assert scores.aggregate(values) == pytest.approx(1.5)


def test_a_missing_score_leaves_no_interquartile_mean():
    missing = SKEWED.copy()
    missing[2, 1] = np.nan
    assert np.isnan(scores.iqm(missing)).all()


# Intervals


def own_interval(statistic, *matrices, repetitions=8000):
    """Seeds drawn anew within each game, and in each matrix by itself."""
    rng, found = np.random.default_rng(0), []
    for _ in range(repetitions):
        drawn = [np.stack([rng.choice(game, len(game)) for game in x.T], axis=1) for x in matrices]
        found.append(statistic(*drawn))
    return np.percentile(found, [2.5, 97.5])


def middle(x):
    ordered = np.sort(x.ravel())
    cut = len(ordered) // 4
    return ordered[cut : len(ordered) - cut].mean()


def test_an_interval_is_that_of_our_own_bootstrap(rliable):
    low, high = own_interval(middle, SKEWED)
    found = scores.iqm(SKEWED)
    np.testing.assert_allclose(found, [middle(SKEWED), low, high], atol=0.06 * (high - low))


def test_the_interval_of_a_difference_is_that_of_our_own_bootstrap(rliable):
    def less(x, y):
        return middle(x) - middle(y)

    low, high = own_interval(less, SKEWED, OTHER)
    found = scores.better("x", SKEWED, OTHER, above=0.0)
    np.testing.assert_allclose(found[1:4], [less(SKEWED, OTHER), low, high], atol=0.06 * (high - low))


def test_the_interval_of_a_difference_of_means_is_that_of_our_own_bootstrap(rliable):
    def less(x, y):
        return x.mean() - y.mean()

    low, high = own_interval(less, SKEWED, OTHER)
    found = scores.higher("x", SKEWED, OTHER, above=0.0)
    np.testing.assert_allclose(found[1:4], [less(SKEWED, OTHER), low, high], atol=0.06 * (high - low))


def test_seeds_of_one_number_are_no_pairs(rliable):
    """Equal matrices: drawn together they would always differ by 0."""
    check = scores.higher("x", SKEWED, SKEWED, above=0.0)
    assert check.low < -0.5 and check.high > 0.5


def test_seeds_are_drawn_within_games(rliable):
    """Games differ and seeds agree: drawn over everything, there would be an interval."""
    agree = np.tile([0.0, 1.0, 5.0, 9.0], (5, 1))
    assert scores.iqm(agree) == (3.0, 3.0, 3.0)
    assert scores.better("x", agree + 2, agree, above=0.0)[1:4] == (2.0, 2.0, 2.0)


def test_an_interval_over_time_is_one_for_each_time(rliable):
    values = np.stack([SKEWED, 2 * SKEWED, SKEWED + 7], axis=-1)
    found = scores.bootstrap(lambda x: scores.aggregate(x.reshape(-1, x.shape[-1]), axis=0), values)
    estimate, low, high = scores.iqm(SKEWED)
    for ours, one in zip(found, (estimate, low, high), strict=True):
        assert ours.shape == (3,)
        np.testing.assert_allclose(ours, [one, 2 * one, one + 7], atol=0.2 * (high - low))


@pytest.mark.parametrize("matrices", [(SKEWED,), (SKEWED, OTHER)], ids=["one", "several"])
def test_an_interval_is_the_same_every_time(rliable, monkeypatch, matrices):
    monkeypatch.setattr(scores, "REPETITIONS", 200)
    (_, *first), (_, *second) = (scores.bootstrap(lambda *x: sum(map(np.mean, x)), *matrices) for _ in range(2))
    assert first == second


def test_an_interval_comes_without_warnings(rliable, monkeypatch, recwarn):
    monkeypatch.setattr(scores, "REPETITIONS", 20)
    scores.iqm(SKEWED)
    assert not recwarn.list


# Checks


def test_known_differences(rliable):
    a, b = np.array([[1.0, 10.0], [3.0, 10.0]]), np.array([[0.0, 4.0], [0.0, 4.0]])
    assert scores.better("x", a, b, above=0.0).estimate == pytest.approx(6.5 - 2.0)
    assert scores.higher("x", a, b, above=0.0).estimate == pytest.approx(6.0 - 2.0)
    check = scores.contrast("x", lambda x, y: x.max() - 3 * y.max(), b, a, how="maxima", below=-20.0)
    assert check[:6] == ("x", -26.0, -26.0, -26.0, None, -20.0) and check.outcome == "holds"
    assert check.samples == (b, a) and check.how.startswith("maxima, 95 % interval") and not check.premise


def test_what_runs_have_learned_is_a_premise(rliable):
    check = scores.learned("x", SKEWED, 0.1)
    assert check.premise and check.estimate == scores.iqm(SKEWED)[0] and (check.above, check.below) == (0.1, None)


@pytest.mark.parametrize("check", [scores.better, scores.higher])
def test_a_difference_is_decided_by_its_sign_and_threshold(rliable, monkeypatch, check):
    monkeypatch.setattr(scores, "REPETITIONS", 200)
    low = np.random.default_rng(0).normal([0.0, 0.5, 1.0], 0.01, (5, 3))
    for a, b, sign in ((low + 0.2, low, 1), (low, low + 0.2, -1)):
        outcomes = [check("x", a, b, **{side: sign * 0.15}).outcome for side in ("above", "below")]
        assert outcomes == ["holds", "does not hold"][::sign]
    assert check("x", low + 0.2, low, above=0.2).outcome == check("x", low, low, above=0.0).outcome == "not enough data"


MISSING = SKEWED.copy()
MISSING[0, 0] = np.nan


@pytest.mark.parametrize("check", [scores.better, scores.higher])
@pytest.mark.parametrize(
    "a, b", [(MISSING, OTHER), (OTHER, MISSING), (SKEWED[:1], OTHER), (OTHER, SKEWED[:1]), (SKEWED[:1], OTHER[:1])]
)
def test_one_seed_or_a_missing_score_decides_nothing(check, a, b):
    for side in ("above", "below"):
        assert check("x", a + 100, b, **{side: 0.0}).outcome == "not enough data"


def test_one_seed_has_a_score_and_no_interval():
    assert scores.iqm(np.array([[1.0, 2.0, 3.0, 10.0]])) == pytest.approx((2.5, np.nan, np.nan), nan_ok=True)


# Scales, and what has to be installed


def test_a_scale_is_that_of_its_game(monkeypatch):
    monkeypatch.setattr(scores, "SCALES", {"One": (1.0, 2.0), "Two": (3.0, 4.0)})
    assert scores.scale("Two") == (3.0, 4.0)
    with pytest.raises(UsageError, match=r"Three: no scale.*One, Two") as error:
        scores.scale("Three")
    assert "\n" not in str(error.value)


def test_a_scale_is_for_the_game_with_its_sticky_actions(monkeypatch):
    """With others it is another game, whose returns are lower."""
    monkeypatch.setattr(scores, "SCALES", {"One": (1.0, 2.0), "Two": (3.0, 4.0)})
    monkeypatch.setattr(scores, "STICKY", {"Two": 0.1})
    assert scores.scale("One", 0.0) == (1.0, 2.0) and scores.scale("Two", 0.1) == (3.0, 4.0)
    for name, sticky, known in (("One", 0.1, "0"), ("Two", 0.0, "0.1"), ("Two", 0.25, "0.1")):
        with pytest.raises(UsageError, match=f"^{name} with --sticky-actions {sticky:g}: its scale is for {known}, "):
            scores.scale(name, sticky)


def test_the_scales_of_minatar_are_the_measured_ones():
    measured = read(ROOT / "results" / "minatar_scores.json")
    assert set(measured["games"]) == set(reference_scores.GAMES) and measured["random_episodes"] == 4096
    for game, found in measured["games"].items():
        returns = found["reference_returns"]
        assert scores.scale(game, found["sticky_actions"]) == (
            found["random"]["mean"], pytest.approx(np.mean(returns), rel=1e-3),
        )  # fmt: skip
        assert found["sticky_actions"] == scores.STICKY.get(game, 0.0)
        assert found["reference_seeds"] == list(range(100, 110))
        assert len(returns) == 10
        width = np.diff(scipy.stats.t.interval(0.95, 9, scale=scipy.stats.sem(returns)))[0] / 2
        assert found["reference"]["ci95"] == pytest.approx(width, rel=0.06)  # of two digits
        words = shlex.split(found["command"])
        args = tyro.cli(ppo.Args, args=words[2:])
        assert words[:2] == ["python", "ppo.py"] and args.env_id == game
        assert (args.sticky_actions, args.seed, args.num_seeds) == (scores.STICKY.get(game, 0.0), 100, 10)
        assert args.total_timesteps == 4194304 and args.learning_rate == ppo.Args().learning_rate


def test_random_returns_are_those_of_a_uniform_policy(monkeypatch):
    """Of an episode of three steps, in which action 1 pays 1 and the last action is repeated half of the time: 1.5 on
    average whatever is repeated, but with a variance of 1.375 in place of 0.75."""

    class Pays(Toy):
        name = "pays"

        def reset(self, key):
            return jnp.int32(0), jnp.zeros(1)

        def step(self, key, time, action):
            reward = (action[0] == 1).astype(jnp.float32)
            return time + 1, jnp.zeros(1), reward, time == 2, jnp.bool_(False), jnp.bool_(False)

    monkeypatch.setattr(envs, "make_suite", lambda *_: Pays())
    for sticky, variance in (({}, 0.75), ({"pays": 0.5}, 1.375)):
        monkeypatch.setattr(reference_scores, "STICKY", sticky)
        returns = np.asarray(reference_scores.random_returns("pays", episodes=4096))
        assert returns.shape == (4096,) and set(returns.tolist()) == {0.0, 1.0, 2.0, 3.0}
        assert returns.mean() == pytest.approx(1.5, abs=0.08) and returns.var() == pytest.approx(variance, abs=0.09)


def test_reference_scores_are_read_from_the_runs_and_written(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(reference_scores, "random_returns", lambda game: np.array([1.0, 3.0]))
    monkeypatch.setattr(reference_scores.grid, "run_missing", lambda runs, *_: [])
    for game in reference_scores.GAMES:
        run = reference_scores.cell(game)
        lines = [
            {"update": i, "global_step": i, "charts/episodic_return": [float(s + (i > 18)) for s in range(10)]}
            for i in range(1, 21)
        ]
        write_run(tmp_path / "runs", run, lines)
        record = tmp_path / "runs" / run.name / "args.json"
        record.write_text(json.dumps(json.loads(record.read_text()) | {"git_dirty": False}))
    out = tmp_path / "found.json"
    reference_scores.main(tmp_path / "runs", out=out)
    found = read(out)["games"]
    assert list(found) == list(reference_scores.GAMES) and "Freeway-MinAtar: 2 to 5.5" in capsys.readouterr().out
    for game in found.values():
        assert game["reference_returns"] == [s + 1 for s in range(10)] and game["reference"]["mean"] == 5.5
        assert game["random"] == {"mean": 2.0, "ci95": 13.0}  # t of one degree of freedom: 12.7
    reference_scores.main(tmp_path / "runs", table=True, out=tmp_path / "other.json")
    assert not (tmp_path / "other.json").exists()
    monkeypatch.setattr(reference_scores.grid, "state", lambda *_: "missing")
    with pytest.raises(SystemExit, match="4 of 4 runs are not finished"):
        reference_scores.main(tmp_path / "runs", table=True)


def test_the_scales_of_atari_and_procgen_are_the_published_ones():
    assert scores.scale("envpool/Qbert-v5") == (163.9, 13455.0)
    assert scores.scale("envpool/DoubleDunk-v5") == (-18.6, -16.4)
    assert scores.scale("envpool/StarpilotHard-v0") == (1.5, 35.0)
    assert all(low < high for low, high in scores.SCALES.values())


def test_without_rliable_an_interval_is_refused_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "rliable", None)
    for ask in (lambda: scores.iqm(SKEWED), lambda: scores.better("x", SKEWED, OTHER, above=0.0)):
        with pytest.raises(UsageError, match=r"need rliable; pip install -r requirements-figures\.txt$") as error:
            ask()
        assert "\n" not in str(error.value)
    assert np.isfinite(scores.iqm(SKEWED[:1])[0])  # what has no interval does not need it


# The command


class Runs:
    """Folders of made-up runs, and what the command says of them."""

    def __init__(self, folder, capsys):
        self.folder, self.capsys, self.made = folder, capsys, []

    def add(self, env_id, finals, script="ppo", **flags):
        """A run with these returns of its seeds, one alone or several, in the last two of its twenty lines."""
        args = {"env_id": env_id, "num_steps": 32, "seed": 0, "learning_rate": 0.1, "log_every": 1} | flags
        cell = Cell(script, f"run{len(self.made)}", tuple(args.items()), 20)
        shift = np.array([[-1.0]] * 18 + [[0.5], [-0.5]])
        values = np.where(shift == -1, -999.0, np.atleast_1d(np.array(finals, np.float64)) + shift).tolist()
        values = [row if isinstance(finals, list) else row[0] for row in values]
        write_run(self.folder, cell, [
            {"update": i, "global_step": 9 * i, "charts/episodic_return": None if finals is None else value}
            for i, value in enumerate(values, 1)
        ])  # fmt: skip
        self.made.append(self.folder / cell.name)
        return self.made[-1]

    def table(self, *folders):
        tyro.cli(scores.main, args=list(map(str, folders or self.made)))
        return self.capsys.readouterr().out.splitlines()

    def refusal(self, *folders):
        with pytest.raises(UsageError) as error:
            tyro.cli(scores.main, args=list(map(str, folders or self.made)))
        assert "\n" not in str(error.value) and not self.capsys.readouterr().out
        return str(error.value)


@pytest.fixture
def made(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(scores, "SCALES", {"Small": (1.0, 2.0), "Large": (-100.0, 100.0)})
    monkeypatch.setattr(scores, "REPETITIONS", 200)
    return Runs(tmp_path, capsys)


def test_a_row_for_each_setting_with_its_games_on_their_scales(made, rliable):
    made.add("Small", [1.25, 1.25])  # 0.25
    made.add("Large", [50.0, 50.0], num_steps=8)  # 0.75
    made.add("Large", [0.0, 0.0])  # 0.5
    made.add("Small", [2.0, 2.0], num_steps=8)  # 1
    assert made.table() == [
        "num_steps = 32  0.375 (95 % CI 0.375 to 0.375), 2 games, 2 seeds",
        "num_steps = 8   0.875 (95 % CI 0.875 to 0.875), 2 games, 2 seeds",
    ]


def test_a_row_has_the_interval_of_its_seeds(made, rliable):
    small, large = [1.0, 1.5, 1.7, 1.1], [0.0, 10.0, 50.0, -30.0]
    made.add("Small", small)
    made.add("Large", large)
    expected = scores.iqm(np.stack([np.array(small) - 1, (np.array(large) + 100) / 200], axis=1))
    np.random.seed(0)
    (row,) = made.table()
    numbers = re.fullmatch(r"  (.*) \(95 % CI (.*) to (.*)\), 2 games, 4 seeds", row).groups()
    np.testing.assert_allclose(list(map(float, numbers)), expected, atol=0.001)


def test_runs_that_differ_in_seed_are_seeds_of_one_row(made, rliable):
    for seed, value in enumerate((1.2, 1.4, 1.6)):
        made.add("Small", value, seed=seed)
        made.add("Large", 40.0 * seed, seed=seed, run_name="mine")
    (row,) = made.table()
    assert row.startswith("  0.550 (95 % CI ") and row.endswith("), 2 games, 3 seeds")


def test_games_whose_scales_have_other_sticky_actions_are_one_row(made, rliable, monkeypatch):
    monkeypatch.setattr(scores, "STICKY", {"Large": 0.1})
    made.add("Small", [1.5, 1.5])
    made.add("Large", [0.0, 0.0], sticky_actions=0.1)
    (row,) = made.table()
    assert row.startswith("  0.500 ") and row.endswith(", 2 games, 2 seeds")


def test_seeds_run_together_and_one_by_one_are_one_row(made, rliable):
    made.add("Small", [1.5, 1.5], num_seeds=2)
    for seed in (0, 1):
        made.add("Large", 0.0, seed=seed, num_seeds=1)
    (row,) = made.table()
    assert row.endswith("0.500 (95 % CI 0.500 to 0.500), 2 games, 2 seeds")


def test_scripts_and_several_flags_make_rows(made, rliable):
    made.add("Small", [1.0, 1.0])
    made.add("Small", [1.5, 1.5], script="pqn", learning_rate=0.2)
    rows = made.table()
    assert [row.partition("  ")[0] for row in rows] == [
        "script = ppo, learning_rate = 0.1",
        "script = pqn, learning_rate = 0.2",
    ]


def test_one_seed_has_a_row_without_interval(made):
    made.add("Small", 1.5)
    made.add("Large", 40.0)
    assert made.table() == ["  0.600 (no interval), 2 games, 1 seed"]


def test_a_seed_without_episodes_is_not_passed_over(made):
    made.add("Small", [1.5, 1.5, None])
    assert made.table() == ["  nan (no interval), 1 game, 3 seeds"]


def test_an_unequal_number_of_seeds_is_refused(made):
    made.add("Small", [1.0, 2.0])
    made.add("Large", [1.0, 2.0, 3.0])
    assert "different number of seeds for each game (Small: 2, Large: 3)" in made.refusal()


def test_a_run_without_the_scales_sticky_actions_is_refused(made, monkeypatch):
    monkeypatch.setattr(scores, "STICKY", {"Large": 0.1})
    made.add("Large", [1.0, 2.0])
    assert made.refusal().startswith("Large with --sticky-actions 0: its scale is for 0.1")


def test_an_unknown_game_is_refused(made):
    made.add("Small", [1.0, 2.0])
    made.add("Chess", [1.0, 2.0])
    assert made.refusal().startswith("Chess: no scale")


def test_a_folder_that_is_no_run_is_refused(made, tmp_path):
    good, broken = made.add("Small", [1.0, 2.0]), made.add("Small", [1.0, 2.0])
    (broken / "args.json").write_text("{")
    for folder in (tmp_path / "nothing", tmp_path, broken):
        assert made.refusal(good, folder).startswith(f"{folder}: not the folder of a run")


def test_a_run_without_episodes_is_refused(made):
    folder = made.add("Small", None)
    assert made.refusal() == f"{folder}: no episode has ended in it"


def test_a_run_without_a_game_is_refused(made):
    folder = made.add("Small", [1.0, 2.0], script="stochastic_opt")
    record = json.loads((folder / "args.json").read_text())
    del record["args"]["env_id"]
    (folder / "args.json").write_text(json.dumps(record))
    assert str(folder) in made.refusal()


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_as_a_command_a_refusal_is_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "argv", ["scores", str(tmp_path)])
    with pytest.raises(SystemExit) as exit:
        runpy.run_module("experiments.scores", run_name="__main__")
    assert exit.value.code == 2
    assert capsys.readouterr().err == f"scores: error: {tmp_path}: not the folder of a run (it has no args.json)\n"
