"""Paper B's figures on made-up runs, in which its claims are true, the reverse of it, or nothing makes a difference."""

import functools
import importlib.util
import json
import shutil
import sys

import numpy as np
import pytest
import scipy.stats
from conftest import read, write_run

import figures
from common.run import plots
from experiments import grid, paper_b, pictures, scores, visited
from experiments.data import Data
from experiments.paper_b_runs import PRESETS
from experiments.verdicts import Check, verdict

LAPTOP = PRESETS["laptop"]
FIGURES = paper_b.FIGURES
SCALES = scores.SCALES | {
    "Breakout-MinAtar": (1.0, 21.0), "SpaceInvaders-MinAtar": (-10.0, 90.0), "Asterix-MinAtar": (0.0, 5.0),
    "Freeway-MinAtar": (2.0, 4.0),
}  # fmt: skip
VISITED = "visited-8x64.npy"
STICKY = {game: {"sticky_actions": 0.1} for game in ("Breakout-MinAtar", "SpaceInvaders-MinAtar")}  # have no chance


# Runs


@pytest.mark.parametrize("preset", PRESETS)
def test_cells_are_what_their_keys_say_and_else_the_base(preset):
    p = PRESETS[preset]
    n, k, e, rate = (p.base[name] for name in ("num_envs", "num_steps", "update_epochs", "learning_rate"))
    pqn_n, pqn_k = p.pqn["num_envs"], p.pqn["num_steps"]
    same = {"base": {}, "flat": dict(num_envs=p.flat[0], num_steps=p.flat[1])}
    varied = {
        "B1a": lambda key: same[key],
        "B1b": lambda key: dict(num_envs=key[0] * n, num_steps=key[1] * k),
        "B1c": lambda key: dict(update_epochs=key[0] * e, num_envs=key[1] * n, num_steps=key[2] * k),
        "B5": lambda key: dict(shared_encoder=key[0], num_envs=key[1] * n),
        "B6": lambda key: dict(num_envs=key[0] * pqn_n, num_steps=key[1] * pqn_k),
        "B7": lambda key: p.others_base | dict(num_envs=key[0] * n, num_steps=key[1] * k),
        "B8": lambda key: p.robots_base | dict(num_envs=key[0] * n, num_steps=key[1] * 128),
        "B11": lambda key: dict(num_envs=key[0] * n, learning_rate=key[1] * rate),
        "B12": lambda key: dict(gamma=key[0], num_envs=key[1] * n),
        "BN": lambda key: dict(num_envs=key[1] * n),
    }
    for name, of_key in varied.items():
        script, games = "pqn" if name == "B6" else "ppo", {"B7": p.others, "B8": p.robots}.get(name, p.games)
        base = p.pqn if script == "pqn" else p.base
        cells = FIGURES[name].cells(p)
        assert {game for _, game in cells} == set(games)
        for (key, game), cell in cells.items():
            flags = dict(cell.flags)
            expected = dict(total_timesteps=p.total_timesteps) | base | of_key(key)
            expected |= dict(env_id=game) | STICKY.get(game, {})
            expected = {flag: value for flag, value in expected.items() if value is not None}
            if name == "BN" and key[0] == "more" and key[1] > 1:
                expected["minibatch_size"] = n * k // expected.pop("num_minibatches")
            how = ("checkpoint_every", "keep_checkpoints", "halt_on_nan", "log_every", "plasticity_every")
            assert cell.script == script and {f: v for f, v in flags.items() if f not in how} == expected


@pytest.mark.parametrize("preset", ["laptop", "gpu"])
def test_games_without_chance_have_sticky_actions_and_the_others_have_not(preset):
    """Every run of every figure: two kinds of runs of a game would not compare."""
    p, found = PRESETS[preset], {}
    for name in FIGURES:
        for cell in FIGURES[name].cells(p).values():
            flags = dict(cell.flags)
            found.setdefault(flags["env_id"], set()).add(flags.get("sticky_actions", 0.0))
    assert found == {game: {0.1 if game in STICKY else 0.0} for game in (*p.games, *p.others, *p.robots)}


@pytest.mark.parametrize("preset", PRESETS)
def test_runs_end_with_a_line_and_a_measurement_and_have_checkpoints_all_over(preset):
    """What is visited starts from these; the others leave dozens of values in a tenth and in a half of a run."""
    for name in FIGURES:
        for cell in figures.cells_of(name, preset).values():
            flags = dict(cell.flags)
            assert cell.num_updates == flags["total_timesteps"] // (flags["num_envs"] * flags["num_steps"])
            assert flags["keep_checkpoints"] == 0 and flags["plasticity_every"] <= cell.num_updates / 64
            there = [*range(0, cell.num_updates + 1, flags["checkpoint_every"])[1:], cell.num_updates]
            chosen = visited.spread(there, cell, "run")
            assert len(set(chosen)) == 8 and chosen[-1] == cell.num_updates
            np.testing.assert_allclose(chosen, np.arange(1, 9) / 8 * cell.num_updates, rtol=0.01)
            assert flags["log_every"] <= cell.num_updates / 128
            assert (len(cell.parts) or flags["num_seeds"]) == 5


@pytest.mark.parametrize("preset", PRESETS)
def test_figures_share_their_runs(preset):
    cells = {name: FIGURES[name].cells(PRESETS[preset]) for name in FIGURES}
    assert cells["B1b"] == cells["B2"] == cells["B9"] and cells["B3"] == cells["B4"]
    c, most = PRESETS[preset].factor, PRESETS[preset].factors[-1]
    base = {"B1a": "base", "B1c": (1, 1, 1), "B5": (True, 1), "B11": (1, 1), "B12": (0.99, 1), "BN": ("larger", 1)}
    more = {"B1c": (1, c, 1), "B5": (True, c), "B11": (c, 1), "B12": (0.99, c), "BN": ("larger", c)}
    for game in PRESETS[preset].games:
        assert all(cells[name][key, game] == cells["B1b"][(1, 1), game] for name, key in base.items())
        assert all(cells[name][key, game] == cells["B1b"][(c, 1), game] for name, key in more.items())
        assert cells["BN"][("more", 1), game] == cells["BN"][("larger", 1), game]
        assert cells["B3"][("control", most), game] == cells["BN"][("more", most), game]
        assert all(cells["B3"][key, game] == cells["B1b"][key, game] for key in ((1, 1), (most, 1), (1, most)))


@pytest.mark.parametrize("preset", PRESETS)
def test_the_same_data_is_the_same_data(preset):
    p = PRESETS[preset]
    (envs, steps), base = p.flat, p.base
    assert envs * steps == base["num_envs"] * base["num_steps"] and envs > base["num_envs"]


def test_the_paper_preset_is_the_papers():
    flags = dict(FIGURES["B1a"].cells(PRESETS["paper"])["base", "envpool/Qbert-v5"].flags)
    assert (flags["num_envs"], flags["num_steps"], flags["update_epochs"], flags["num_minibatches"]) == (8, 128, 4, 4)
    assert (flags["gamma"], flags["gae_lambda"], flags["clip_eps"], flags["learning_rate"]) == (0.99, 0.95, 0.1, 2.5e-4)
    assert flags["anneal_lr"] and flags["shared_encoder"] and flags["activation"] == "relu"
    assert (flags["network"], flags["hidden_sizes"]) == ("nature", (512,))
    flags = dict(FIGURES["B7"].cells(PRESETS["paper"])[(1, 1), "envpool/StarpilotHard-v0"].flags)
    assert (flags["network"], flags["hidden_sizes"]) == ("impala", (256,)) and flags["reward_clip"] == 1
    assert (flags["learning_rate"], flags["gamma"]) == (5e-4, 0.999) and "env_kwargs" not in flags
    flags = dict(FIGURES["B1a"].cells(PRESETS["paper"])["base", "envpool/Qbert-v5"].flags)
    assert flags["total_timesteps"] == 10**8 and len(PRESETS["paper"].games) == 10


@pytest.mark.parametrize("preset", ["laptop", "gpu"])
def test_a_preset_says_how_many_games_and_the_other_suite_has_others(preset):
    p = PRESETS[preset]
    assert p.about.startswith({3: "three", 4: "four", 5: "five"}[len(p.games)] + " MinAtar games")
    assert not set(p.games) & set(p.others)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_game_has_a_scale(preset):
    for name in FIGURES:
        for cell in figures.cells_of(name, preset).values():
            assert PRESETS[preset].scale(cell) == scores.SCALES[dict(cell.flags)["env_id"]]


# Worlds: scores and measurements as functions of the flags. In the world "only", what is claimed is true only of the
# paper's minibatches, which grow, and of the base's discount factor; in "nothing", no run learns anything.


def sizes(flags):
    """log2 of how many times the base's N and K."""
    k = 128 if flags["env_id"] in LAPTOP.robots else 32
    return np.log2(flags["num_envs"] / 8), np.log2(flags["num_steps"] / k)


SIGNS = {"true": 1, "reversed": -1, "flat": 0, "only": 1, "nothing": 1}


def score(script, flags, world):
    """At the end of a run, of the second game (the first has less, the third more)."""
    (n, k), sign = sizes(flags), SIGNS[world]
    if world == "nothing":
        return 0.02
    if script == "pqn":
        return 0.4 + {"reversed": 0.1, "flat": 0.0}.get(world, 0.01) * n + 0.08 * sign * k
    e, rate = np.log2(flags["update_epochs"] / 4), np.log2(flags["learning_rate"] / 1e-3)
    gain = 0.1 + 0.02 * e + (0.05 if not flags["shared_encoder"] else 0) + (0.02 if "minibatch_size" in flags else 0)
    gain *= {0.95: 0.75, 0.99: 1.0, 0.999: 1.25}[flags["gamma"]] * (
        -1 if world == "only" and flags["gamma"] < 0.99 else 1
    )
    slope = {"reversed": 0.15, "flat": 0.0}.get(world, -0.04)
    return 0.4 + sign * (gain * n + 0.04 * k - 0.15 * e) + slope * rate


def measurements(script, flags, world):
    """Of PQN, feature rank and weight norm move as PPO's do, and the others not at all."""
    (n, k), sign = sizes(flags), -1 if world == "only" and "minibatch_size" in flags else SIGNS[world]
    more, less = 1 + sign * (0.1 * n + 0.02 * k), 1 - sign * (0.1 * n + 0.02 * k)
    others = 1.0 if script == "pqn" else less
    return {
        "feature_rank": 100 * more, "weight_norm": 30 * less, "dormant_neurons": 0.2 * others,
        "gradient_kurtosis": 10 * others, "policy_variance": 0.02 * less, "effective_sample_size": 40 * more,
    }  # fmt: skip


def lines_of(cell, world, seeds, rng):
    """40 lines. A return is what the model says in the last tenth only, a measurement in the second half only: before
    that both are as good as nothing."""
    flags, lines = dict(cell.flags), []
    low, high = SCALES[flags["env_id"]]
    place = {"Breakout-MinAtar": -1, "Asterix-MinAtar": 1}.get(flags["env_id"], 0)
    for i in range(1, 41):
        update = round(i / 40 * cell.num_updates)
        value = (score(cell.script, flags, world) if i >= 36 else 0.1) + 0.1 * place
        value = value + 0.01 * rng.standard_normal(seeds)
        line = {"update": update, "global_step": update * flags["num_envs"] * flags["num_steps"]}
        line["charts/episodic_return"] = (low + (high - low) * value).tolist()
        for name, value in measurements(cell.script, flags, world).items():
            value = (value if i >= 20 else 1.0) * (1 + 0.2 * place)
            value = value * (1 + 0.01 * rng.standard_normal(seeds))
            line[f"plasticity/{name}"] = np.asarray(value).tolist()
        lines.append(line)
    return lines


def write_measured(run, cell, world, seeds, rng):
    """As in the lines, but for the effective sample size, which has to come from there."""
    flags, found = dict(cell.flags), {}
    place = {"Breakout-MinAtar": -1, "Asterix-MinAtar": 1}.get(flags["env_id"], 0)
    for name, value in measurements(cell.script, flags, world).items():
        value = value * (1 + 0.2 * place) * (1 + 0.01 * rng.standard_normal(seeds))
        found[f"plasticity/{name}"] = value.tolist() if name != "effective_sample_size" else [100.0] * seeds
    (run / f"measured-{visited.MEASURED}.json").write_text(json.dumps(found))


def seen(flags, world, seeds, rng):
    """Observations of two dimensions among others, spread over a rectangle that grows with N, and less so with K."""
    (n, k), spread = sizes(flags), 1.0
    if world != "flat":
        spread = 0.4 + 0.3 * n + 0.05 * k if world == "true" else 1.0 - 0.3 * n - 0.05 * k
    points = np.zeros((seeds, visited.SHOWN, 4))
    points[..., 1:3] = rng.uniform(-spread, spread, (seeds, visited.SHOWN, 2)) * [20, 5]
    return points


def cells_of(*names):
    return grid.with_sources([cell for name in names or FIGURES for cell in FIGURES[name].cells(LAPTOP).values()])


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """-> the --runs-dir of a world with all runs of the laptop preset; made when asked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scores, "SCALES", SCALES)
        patch.setattr(scores, "REPETITIONS", 200)
        without_umap(patch)

        @functools.cache
        def make(world, seeds):
            top, rng = tmp_path_factory.mktemp(world), np.random.default_rng(seeds)
            with_observations, measured = ({cell.name for cell in cells_of(*n)} for n in (("B2",), ("B3", "B6")))
            for cell in cells_of():
                count = seeds if dict(cell.flags)["num_seeds"] > 1 else ()  # as a run of one seed logs numbers
                write_run(top / "laptop", cell, lines_of(cell, world, count, rng))
                if cell.name in measured:
                    write_measured(top / "laptop" / cell.name, cell, world, seeds, rng)
                if cell.name in with_observations:
                    np.save(
                        top / "laptop" / cell.name / VISITED,
                        seen(dict(cell.flags), world, seeds, rng),
                    )
            return top

        yield make


def without_umap(patch, there=None):
    found = importlib.util.find_spec
    patch.setattr(importlib.util, "find_spec", lambda name, *rest: there if name == "umap" else found(name, *rest))


@pytest.fixture(scope="module")
def shown(worlds):
    """-> what a figure shows of a world, and its checks."""

    @functools.cache
    def show(name, world, seeds):
        if seeds > 1:
            pytest.importorskip("rliable")
        return FIGURES[name].show(Data(LAPTOP, worlds(world, seeds) / "laptop"), FIGURES[name].cells(LAPTOP))

    return show


def told(checks):
    return "\n".join(map(str, checks))


@pytest.mark.parametrize("name", FIGURES)
def test_a_claim_holds_where_it_is_true(shown, name):
    _, checks = shown(name, "true", 5)
    assert verdict(checks) == "holds", told(checks)


@pytest.mark.parametrize("name", FIGURES)
def test_a_claim_does_not_hold_where_its_reverse_is_true(shown, name):
    """B12 asks whether a gain depends on the discount factor; here there is none."""
    _, checks = shown(name, "reversed", 5)
    assert verdict(checks) == ("does not hold" if name != "B12" else "not applicable here"), told(checks)


@pytest.mark.parametrize("name", ["B3", "B4", "B12"])
def test_a_claim_does_not_hold_where_it_is_true_in_one_setting_only(shown, name):
    """The control reverses what the paper's way shows, or another discount factor does."""
    _, checks = shown(name, "only", 5)
    assert verdict(checks) == "does not hold", told(checks)
    outcomes = {check.what: check.outcome for check in checks if check.outcome != "reported"}
    ours = [found for what, found in outcomes.items() if "base's minibatches" not in what and "0.95" not in what]
    assert set(ours) == {"holds"} and list(outcomes.values()).count("does not hold") == len(outcomes) - len(ours) > 0


@pytest.mark.parametrize("name", ["B6", "B11"])
def test_a_claim_of_no_difference_is_not_applicable_where_nothing_is_learned(shown, name):
    _, checks = shown(name, "nothing", 5)
    assert verdict(checks) == "not applicable here", told(checks)


@pytest.mark.parametrize("name", [name for name in FIGURES if name != "B11"])
def test_a_claim_does_not_hold_where_all_runs_are_alike(shown, name):
    """B11 alone claims of scores no more than that they are alike."""
    _, checks = shown(name, "flat", 5)
    assert verdict(checks) != "holds", told(checks)


def test_no_better_and_little_hold_where_all_runs_are_alike(shown):
    """A learning rate that is no better (B11), and a gain that is little (B6), whose measurements do not move."""
    assert verdict(shown("B11", "flat", 5)[1]) == "holds"
    learned, little, least, *moves = shown("B6", "flat", 5)[1]
    assert learned.outcome == little.outcome == least.outcome == "holds"
    assert len(moves) == 4 and {check.some for check in moves} == {2}


@pytest.mark.parametrize("name", [name for name in FIGURES if name != "B8"])
def test_one_seed_decides_nothing(shown, name):  # the seeds of B8 are a run each
    for world in ("true", "reversed"):
        _, checks = shown(name, world, 1)
        assert {check.outcome for check in checks} - {"reported"} == {"not enough data"}, told(checks)


# In the world where the claims are true: estimate, on which side, of what.
CHECKS = {
    "B1a": [(0.3 - 0.12, "above", 0)],
    "B1b": [(0.2, "above", 0), (0.08, "above", 0), (0.12, "above", 0)],
    "B1c": [(0.3, "above", 0), (0.28, "above", 0), (0.24 - 0.15, "above", -0.1)],
    "B3": [  # each of more environments as in the paper, and of the control
        check
        for check in ((np.log10(1.2), "above", 0), (-0.04, "below", 0), *[(np.log10(0.8), "below", 0)] * 2)
        for _ in range(2)
    ],
    "B4": [*[(-0.004, "below", 0)] * 2, *[(8, "above", 0)] * 2],
    "B5": [(0.1, "above", 0)],
    "B6": [
        (0.4, "above", 0.1), (0.02, "below", 0.1), (0.02, "above", -0.1), (np.log10(1.2), "above", 0),
        (0, "below", 0), (np.log10(0.8), "below", 0), (0, "below", 0),
    ],
    "B7": [(0.2, "above", 0), (0.08, "above", 0), (0.12, "above", 0)],
    "B8": [(0.3, "above", 0), (0.08, "above", 0), (0.22, "above", 0)],  # with encoders of their own
    "B11": [(0.6, "above", 0.1), (-0.04, "below", 0.1), (-0.08, "below", 0.1)],
    "B12": [(0.15, "above", 0), (0.2, "above", 0), (0.25, "above", 0)],
    "BN": [(0.2, "above", 0), (0.4, "above", 0), (0.24, None, 0), (0.48, None, 0)],
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKS)
def test_the_checks_find_what_the_model_has_put_in(shown, name):
    _, checks = shown(name, "true", 5)
    of_scores = name not in ("B3", "B4")
    expected = CHECKS[name]
    assert {check.outcome for check in checks[len(expected) :]} <= {"reported"}
    for number, (check, (estimate, side, threshold)) in enumerate(zip(checks, expected, strict=False)):
        is_score = of_scores and not (name == "B6" and number > 2)
        near = dict(abs=0.012) if is_score or estimate == 0 else dict(rel=0.05)
        assert check.estimate == pytest.approx(estimate, **near), told(checks)
        sides = {"above": (threshold, None), "below": (None, threshold), None: (None, None)}
        assert (check.above, check.below) == sides[side]
        assert check.low < check.estimate < check.high
        assert check.premise == ((name, number) in (("B6", 0), ("B11", 0), ("B12", 1)))


def test_of_b3_all_measurements_count_with_their_controls_and_longer_rollouts_are_reported(shown):
    _, checks = shown("B3", "reversed", 5)
    assert [check.outcome for check in checks] == ["does not hold"] * 8 + ["reported"] * 4
    assert all(check.what.split(", ")[1].startswith("K × 4") for check in checks[8:])


ONE, OTHER, OPEN = (0.5, 1.5), (-1.5, -0.5), (-0.5, 1.5)  # intervals: moved as PPO's, the other way, uncertain


@pytest.mark.parametrize("intervals, expected", [
    ([OPEN, OPEN, ONE, OPEN], "not enough data"), ([OPEN, ONE, ONE, OPEN], "holds"), ([ONE] * 4, "holds"),
    ([ONE, ONE, ONE, OTHER], "does not hold"), ([OPEN, OPEN, OTHER, OPEN], "does not hold"),
])  # fmt: skip
def test_of_pqn_two_measurements_have_to_move_as_ppos_and_none_the_other_way(worlds, monkeypatch, intervals, expected):
    pytest.importorskip("rliable")
    left = list(intervals)
    monkeypatch.setattr(paper_b, "moved", lambda *_: Check("x", 0.0, *left.pop(0), above=0.0))
    _, checks = FIGURES["B6"].show(Data(LAPTOP, worlds("true", 5) / "laptop"), FIGURES["B6"].cells(LAPTOP))
    assert not left and verdict(checks) == expected, told(checks)


# Pictures


def ends(lines):
    """The last estimate of each line; its interval is around it."""
    for line in lines:
        assert line.kind.startswith("interval") and line.y.shape == (len(line.x), 3)
        estimate, low, high = line.y.T
        assert (low < estimate).all() and (estimate < high).all()
    return {line.label: line.y[-1, 0] for line in lines}


CURVES = {
    "B1a": {"": {"N 8, K 32": 0.4, "N 64, K 4": 0.58}},
    "B1b": {"": {"N 8, K 32": 0.4, "N 16, K 32": 0.5, "N 32, K 32": 0.6, "N 8, K 64": 0.44, "N 8, K 128": 0.48}},
    "B1c": {
        title: {f"--update-epochs {4 * 2**e}": 0.4 - 0.15 * e + (0.1 + 0.02 * e) * n + 0.04 * k for e in range(3)}
        for title, n, k in (("N 8, K 32", 0, 0), ("N 32, K 32", 2, 0))
    },
    "B5": {"": {
        "shared encoder, N 8, K 32": 0.4, "shared encoder, N 32, K 32": 0.6,
        "separate encoder, N 8, K 32": 0.4, "separate encoder, N 32, K 32": 0.7,
    }},
    "B7": {"": {"N 8, K 32": 0.4, "N 16, K 32": 0.5, "N 32, K 32": 0.6, "N 8, K 64": 0.44, "N 8, K 128": 0.48}},
    "B11": {"": {
        "N 8, K 32, --learning-rate 0.001": 0.4, "N 32, K 32, --learning-rate 0.001": 0.6,
        "N 32, K 32, --learning-rate 0.002": 0.56, "N 32, K 32, --learning-rate 0.004": 0.52,
    }},
}  # fmt: skip


@pytest.mark.parametrize("name", CURVES)
def test_curves_are_those_of_the_runs_they_are_named_after(shown, name):
    picture, _ = shown(name, "true", 5)
    assert list(picture.panels) == list(CURVES[name])
    for title, expected in CURVES[name].items():
        lines = picture.panels[title]
        assert ends(lines) == pytest.approx(expected, abs=0.03) and len(lines) == len(expected)
        for line in lines:
            assert line.x[-1] == LAPTOP.total_timesteps and (np.diff(line.x) > 0).all()
            np.testing.assert_allclose(line.y[line.x < 0.85 * line.x[-1], 0], 0.1, atol=0.03)


@pytest.mark.parametrize("name, x, expected", [
    ("BN", [8, 16, 32, 64, 128], {
        "4 minibatches, which grow (the paper)": [0.4, 0.5, 0.6, 0.7, 0.8],
        "more minibatches of the same size": [0.4, 0.52, 0.64, 0.76, 0.88],
    }),
    ("B12", [0.95, 0.99, 0.999], {"N 8, K 32": [0.4, 0.4, 0.4], "N 32, K 32": [0.55, 0.6, 0.65]}),
])  # fmt: skip
def test_points_are_those_of_the_runs_they_are_named_after(shown, name, x, expected):
    (lines,) = shown(name, "true", 5)[0].panels.values()
    ends(lines)
    assert [line.label for line in lines] == list(expected)
    for line in lines:
        assert line.x.tolist() == x
        np.testing.assert_allclose(line.y[:, 0], expected[line.label], atol=0.015)


@pytest.mark.parametrize("name, labels", [
    ("B3", ["N 8, K 32", "N 32, K 32", "N 8, K 128", "N 32, K 32, minibatches of 64"]),
    ("B4", ["N 8, K 32", "N 32, K 32", "N 8, K 128", "N 32, K 32, minibatches of 64"]),
    ("B6", ["N 8, K 32", "N 32, K 32", "N 8, K 128"]),
])  # fmt: skip
def test_panels_are_measurements_of_the_first_game(shown, name, labels):
    picture, _ = shown(name, "true", 5)
    script = "pqn" if name == "B6" else "ppo"
    metrics = {title: key.removeprefix("plasticity/") for key, title in paper_b.METRICS.items()}
    assert len(picture.panels) == (2 if name == "B4" else 5) and picture.own_y
    assert "Shown: Breakout-MinAtar." in picture.shows
    for title, lines in picture.panels.items():
        assert [line.label for line in lines] == labels
        for line, (n, k) in zip(lines, ((8, 32), (32, 32), (8, 128), (32, 32)), strict=False):
            flags = LAPTOP.base | dict(env_id="Breakout-MinAtar", num_envs=n, num_steps=k)
            flags |= {"minibatch_size": 64} if "minibatches" in line.label else {}
            if metrics[title] == "charts/episodic_return":
                expected = 1 + 20 * (score(script, flags, "true") - 0.1)
            else:
                expected = 0.8 * measurements(script, flags, "true")[metrics[title]]
            assert line.y[-1].mean() == pytest.approx(expected, rel=0.03) and line.y.shape == (40, 5)


def test_an_interval_is_drawn_as_given():
    from matplotlib.figure import Figure

    for kind in ("interval", "interval points"):
        axes = Figure().add_subplot()
        y = np.array([[1.0, 0.5, 3.0], [2.0, 1.5, 4.0]])
        pictures._draw_line(axes, pictures.Line("x", np.array([1.0, 2.0]), y, kind), "red", False)
        line, (area,) = axes.lines[0], axes.collections
        assert line.get_ydata().tolist() == [1.0, 2.0] and line.get_marker() == ("o" if "points" in kind else "None")
        corners = {tuple(corner) for path in area.get_paths() for corner in path.vertices.tolist()}
        assert corners == {(1.0, 0.5), (1.0, 3.0), (2.0, 1.5), (2.0, 4.0)}


def test_a_few_seeds_are_drawn_each_and_many_by_their_interval():
    from matplotlib.figure import Figure

    x = np.arange(3.0)
    for seeds in (5, 6):
        y = np.arange(3 * seeds).reshape(3, seeds) ** 2.0
        axes, line = Figure().add_subplot(), pictures.Line("--com 8", x, y)
        pictures._draw_line(axes, line, "red", False)
        assert (len(axes.lines), len(axes.collections)) == ((6, 0) if seeds == 5 else (1, 1))
        middle = np.median(y, 1) if seeds == 5 else y.mean(1)
        assert axes.lines[-1].get_ydata().tolist() == middle.tolist()
        shown = pictures.described(pictures.Picture({"": [line]}, "", ""))
        assert shown.startswith("Median over seeds, and each seed" if seeds == 5 else "Mean and 95 % interval")


def test_a_logarithmic_axis_has_geometric_means():
    y = np.random.default_rng(0).lognormal(0.0, 1.0, (3, 8))
    y[2, 0] = 0.0  # a policy that no longer moves
    line = pictures.Line("--com 8", np.arange(3.0), y)
    mean, low, high = pictures.middle(line, log_y=True)
    for row, *found in zip(y[:2], mean, low, high, strict=False):
        expected = scipy.stats.t.interval(0.95, 7, np.log(row).mean(), scipy.stats.sem(np.log(row)))
        assert found == pytest.approx([scipy.stats.gmean(row), *np.exp(expected)])
    assert np.isfinite(mean).all() and 0.0 < low[2] < mean[2] < mean[1]
    assert np.allclose(pictures.middle(line, log_y=False)[0], y.mean(1))
    assert pictures.described(pictures.Picture({"": [line]}, "", "", log_y=True)).startswith("Geometric mean")
    shown = pictures.Picture({"": [line]}, "", "", log_y=True)
    assert figures.last_points(shown)[""]["--com 8"][0] == pytest.approx([mean[2], low[2], high[2]])


def test_four_panels_make_a_square():
    for panels, expected in ((2, (1, 2)), (3, (1, 3)), (4, (2, 2)), (5, (2, 3)), (6, (2, 3))):
        assert pictures._grid(pictures.Picture({str(i): [] for i in range(panels)}, "", "")) == expected
    below = pictures.Picture({str(i): [] for i in range(4)}, "", "", columns=1)
    assert pictures._grid(below) == (4, 1)


@pytest.mark.parametrize("log_x", [True, False])
def test_intervals_at_one_place_are_drawn_side_by_side(log_x):
    x, y = np.array([16.0, 64.0, 256.0]), np.ones((3, 5))
    lines = [pictures.Line(name, x, y, kind) for name, kind in (("a", "points"), ("b", "points"), ("c", "curve"))]
    a, b, c = (line.x for line in pictures._side_by_side(lines, log_x))
    assert (a < x).all() and (x < b).all() and (c == x).all()
    np.testing.assert_allclose(a * b if log_x else a + b, x * x if log_x else 2 * x)
    (alone,) = pictures._side_by_side(lines[:1], log_x)
    np.testing.assert_allclose(alone.x, x)
    nothing = [line._replace(x=x[:0], y=line.y[:0]) for line in lines]  # of runs that are not there yet
    assert [len(line.x) for line in pictures._side_by_side(nothing, log_x)] == [0, 0, 0]


def test_numbers_that_are_steps_of_one_scale_get_colours_in_order():
    found = plots.colours(["--com 4,096", "--com 8", "--com 64"])
    light = {label: sum(colour[:3]) for label, colour in found.items()}
    assert light["--com 8"] < light["--com 64"] < light["--com 4,096"]
    both = plots.colours(["N 64: 4,096", "N 16: 1,024", "N 256: 16,384"])  # two numbers that rise together
    assert list(both) == ["N 16: 1,024", "N 64: 4,096", "N 256: 16,384"] and list(both.values()) == list(found.values())
    apart = plots.colours(["N 64, K 4", "N 16, K 16", "N 8, K 32"])
    assert set(apart.values()) <= set(plots.COLOURS)
    two = plots.colours(["PPO", "PQN", "N 64, K 4"])
    assert list(two.values()) == list(plots.COLOURS[:3])


# What is visited


def share(spread):
    """Of 32 x 32 cells, by 512 points that are spread evenly over `spread` of each axis."""
    there = spread**2 * 32**2
    return there * (1 - np.exp(-visited.SHOWN / there)) / 32**2


@pytest.mark.parametrize("name", ["B2", "B9"])
def test_coverage_is_that_of_the_model(shown, name):
    _, checks = shown(name, "true", 5)
    expected = [share(1.0) - share(0.4), share(1.0) - share(0.5)]
    assert [check.estimate for check in checks] == pytest.approx(expected, abs=0.02), told(checks)
    assert all((check.above, check.below) == (0, None) for check in checks)


def test_figure_2_shows_the_plane_of_the_first_game(shown):
    picture, _ = shown("B2", "true", 5)
    titles = {title.partition(":")[0]: float(title.split()[-2]) / 100 for title in picture.panels}
    assert titles == pytest.approx(
        {"N 8, K 32": share(0.4), "N 8, K 128": share(0.5), "N 32, K 32": share(1.0)}, abs=0.02
    )
    widths = [np.ptp(line.y) * np.ptp(line.x) for (line,) in picture.panels.values()]
    assert widths[0] < widths[1] < widths[2]
    assert all(line.y.shape == (5 * visited.SHOWN, 1) and line.kind == "dots" for (line,) in picture.panels.values())
    assert "Shown: Breakout-MinAtar" in picture.shows


def test_figure_9_shows_shares_against_n_and_k(shown):
    picture, _ = shown("B9", "true", 5)
    assert list(picture.panels) == list(LAPTOP.games)
    for lines in picture.panels.values():
        assert [line.label for line in lines] == ["N × factor", "K × factor"]
        for line, spreads in zip(lines, ((0.4, 0.7, 1.0), (0.4, 0.45, 0.5)), strict=True):
            assert line.x.tolist() == [1, 2, 4] and line.y.shape == (3, 5)
            np.testing.assert_allclose(line.y.mean(1), list(map(share, spreads)), atol=0.02)


@pytest.mark.parametrize("umap", [False, True])
@pytest.mark.parametrize("name", ["B2", "B9"])
def test_the_plane_is_umaps_if_it_is_installed_and_the_picture_says_so(monkeypatch, worlds, name, umap):
    asked = []
    visited.together.cache_clear()
    without_umap(monkeypatch, "here" if umap else None)
    monkeypatch.setattr(visited, "in_a_plane", lambda x, umap: asked.append(umap) or x[:, 1:3])
    top = worlds("true", 1)
    picture, checks = FIGURES[name].show(Data(LAPTOP, top / "laptop"), FIGURES[name].cells(LAPTOP))
    assert asked == [umap] * 3 and checks[0].estimate > 0.1
    assert ("by UMAP of 512 observations" in picture.shows) == umap
    assert ("principal components in place of UMAP" in picture.shows) == (not umap)


# Drawn


def drawn(monkeypatch, tmp_path, name, folder, preset="laptop"):
    """-> caption and title of a figure, and what is written beside it."""
    said = []
    monkeypatch.setattr(pictures, "save", lambda shown, out, title, caption: said.append((caption, title)))
    figures.draw(name, figures.Args((name,), preset=preset, results_dir=str(tmp_path)), folder)
    suffix = "" if preset == "laptop" else f"_{preset}"
    return *said[0], read(tmp_path / f"fig_{name}{suffix}.json")


def middle(x):
    """Interquartile means of many tables at once, by sorting. [n, seeds, games] -> [n]."""
    ordered = np.sort(x.reshape(len(x), -1))
    cut = ordered.shape[1] // 4
    return ordered[:, cut : ordered.shape[1] - cut].mean(1)


STATISTICS = {
    "difference of interquartile means over seeds and games": lambda a, b: middle(a) - middle(b),
    "difference of means over seeds and games": lambda a, b: a.mean((1, 2)) - b.mean((1, 2)),
    "interquartile mean": middle,
    "of interquartile means: (first less second) less (third less fourth)": (
        lambda a, b, c, d: (middle(a) - middle(b)) - (middle(c) - middle(d))
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_estimate_and_interval_follow_from_what_is_stored(monkeypatch, worlds, tmp_path, name):
    """By a bootstrap of our own; the figures' has 200 draws here."""
    pytest.importorskip("rliable")
    _, _, summary = drawn(monkeypatch, tmp_path, name, worlds("true", 5) / "laptop")
    rng = np.random.default_rng(0)
    for check in summary["checks"]:
        samples = [np.array(sample, float) for sample in check["samples"]]
        assert {x.shape for x in samples} == {(5, 1 if name in ("B7", "B8") else 3)}
        how, _, interval = check["how"].partition(", ")
        assert interval == "95 % interval of a bootstrap that draws seeds anew within each game"
        resampled = [np.take_along_axis(x[None], rng.integers(len(x), size=(4000, *x.shape)), axis=1) for x in samples]
        low, high = np.percentile(STATISTICS[how](*resampled), [2.5, 97.5])
        (estimate,) = STATISTICS[how](*(x[None] for x in samples))
        assert check["estimate"] == pytest.approx(estimate, rel=1e-3, abs=1e-3 * (high - low))
        np.testing.assert_allclose([check["low"], check["high"]], [low, high], atol=0.2 * (high - low))


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("name", FIGURES)
def test_with_half_of_its_runs_a_figure_is_drawn_and_decides_nothing(monkeypatch, worlds, tmp_path, name, part):
    pytest.importorskip("rliable")
    top, cells = worlds("true", 5), cells_of(name)
    (tmp_path / "laptop").mkdir()
    for cell in cells[part::2]:
        (tmp_path / "laptop" / cell.name).symlink_to(top / "laptop" / cell.name)
    missing = sorted(cell.name for cell in cells[1 - part :: 2])
    if (name, part) in (("B1b", 0), ("B2", 0), ("B3", 1), ("BN", 1)):
        figures.draw(name, figures.Args((name,), results_dir=str(tmp_path)), tmp_path / "laptop")
        summary = read(tmp_path / f"fig_{name}.json")
        assert (tmp_path / f"fig_{name}.png").stat().st_size > 10_000
    else:
        caption, _, summary = drawn(monkeypatch, tmp_path, name, tmp_path / "laptop")
        assert f"{len(missing)} of {len(cells)} runs are not finished" in caption
    assert summary["verdict"] == "not enough data" and sorted(summary["not_finished"]) == missing
    if (name, part) != ("B7", 0):  # whose checks' few runs are all among those that are there
        assert "not enough data" in {check["outcome"] for check in summary["checks"]}


def test_of_what_has_a_run_missing_nothing_is_drawn(worlds, tmp_path):
    """A curve over fewer games would be another curve."""
    pytest.importorskip("rliable")
    top, cells = worlds("true", 5), FIGURES["B1b"].cells(LAPTOP)
    (tmp_path / "laptop").mkdir()
    for key, cell in cells.items():
        if key != ((4, 1), "Asterix-MinAtar"):
            (tmp_path / "laptop" / cell.name).symlink_to(top / "laptop" / cell.name)
    picture, checks = FIGURES["B1b"].show(Data(LAPTOP, tmp_path / "laptop"), cells)
    assert [line.label for line in picture.panels[""]] == ["N 8, K 32", "N 16, K 32", "N 8, K 64", "N 8, K 128"]
    assert [check.outcome for check in checks] == ["not enough data", "holds", "not enough data"]
    assert np.isnan(checks[0].estimate) and checks[1].estimate == pytest.approx(0.08, abs=0.012)


@pytest.mark.parametrize("name", FIGURES)
def test_a_caption_says_in_place_of_which_environments(monkeypatch, worlds, tmp_path, name):
    if name == "B8":
        pytest.importorskip("rliable")  # its seeds are a run each: there are five
    caption, title, summary = drawn(monkeypatch, tmp_path, name, worlds("true", 1) / "laptop")
    others = {"B7": ("Procgen", LAPTOP.others), "B8": ("Isaac Gym", LAPTOP.robots)}
    suite, games = others.get(name, ("Atari-10", LAPTOP.games))
    seeds, found = ("5 seeds", "holds") if name == "B8" else ("1 seed", "not enough data")
    games = [f"{game} (sticky actions 0.1)" if game in STICKY else game for game in games]
    assert caption.startswith(f"{', '.join(games)} in place of {suite}, {seeds}.") and "not enough data" not in caption
    assert ("principal components in place of UMAP, which is not installed" in caption) == (name in ("B2", "B9"))
    assert title == FIGURES[name].title and summary["paper"] == "Mayor et al. 2025"
    assert (summary["claim"], summary["verdict"]) == (FIGURES[name].claim, found)


def test_the_papers_own_environments_are_in_place_of_nothing(monkeypatch, tmp_path):
    caption, _, _ = drawn(monkeypatch, tmp_path, "B7", tmp_path / "nothing", "paper")
    assert caption.startswith("envpool/BigfishHard-v0, envpool/StarpilotHard-v0, ") and "in place" not in caption
    caption, _, _ = drawn(monkeypatch, tmp_path, "B8", tmp_path / "nothing", "paper")
    assert "envpool/Ant-v5 in place of Isaac Gym, " in caption


def test_without_rliable_a_figure_is_refused_in_one_line(monkeypatch, worlds, tmp_path):
    monkeypatch.setitem(sys.modules, "rliable", None)
    with pytest.raises(figures.UsageError, match=r"pip install -r requirements-figures\.txt$"):
        drawn(monkeypatch, tmp_path, "B1a", worlds("true", 5) / "laptop")


def test_the_other_games_have_panels_of_their_own(shown):
    for name, of in (("B10", "B3"), ("B13", "B6")):
        picture, checks = shown(name, "true", 5)
        titles = list(shown(of, "true", 5)[0].panels)
        assert list(picture.panels) == [f"{title}, {game}" for title in titles for game in ("SpaceInvaders", "Asterix")]
        assert picture.columns == 2  # a game in each
        assert "Shown: SpaceInvaders-MinAtar, Asterix-MinAtar." in picture.shows
        assert told(checks) == told(shown(of, "true", 5)[1])
        script, base = ("pqn", LAPTOP.pqn) if of == "B6" else ("ppo", LAPTOP.base)
        expected = 5 * (score(script, base | {"env_id": "Asterix-MinAtar"}, "true") + 0.1)
        last = picture.panels["episode return, Asterix"][0].y[-1]
        assert last.mean() == pytest.approx(expected, rel=0.05)


def test_one_game_of_atari_has_both_scripts(monkeypatch, tmp_path):
    cells = figures.cells_of("B1a", "atari-mini")
    assert [cell.script for cell in cells.values()] == ["ppo", "ppo", "pqn", "pqn"]
    for (key, _), cell in cells.items():
        flags = dict(cell.flags)
        assert (flags["num_envs"], flags["num_steps"]) == ((128, 8) if "flat" in key else (8, 128))
        assert len(cell.parts) == 3 and flags["network"] == "nature"
    _, _, summary = drawn(monkeypatch, tmp_path, "B1a", tmp_path / "nothing", "atari-mini")
    decides, reported = summary["checks"]
    assert reported["what"] == "PQN: " + decides["what"] and reported["outcome"] == "reported"
    assert [line.split("|")[1:4] for line in figures.tally("atari-mini", tmp_path).split("\n")[2:]] == [
        [" paper B ", " 1 ", " 1 "]
    ]


def test_the_long_preset_is_the_laptops_with_ten_times_the_steps(monkeypatch, tmp_path):
    """Other seeds, and only some of the grids' factors, so that B1c asks of E × 4 what it asks there of E × 2."""
    assert [name for name in figures.FIGURES if "long" in figures.presets_of(name)] == ["B1b", "B1c", "BN"]
    how = {"total_timesteps", "seed", "checkpoint_every", "log_every", "plasticity_every"}
    for name, kept in (("B1b", 3), ("B1c", 4), ("BN", 6)):
        short, long = (
            {key: dict(cell.flags) for key, cell in figures.cells_of(name, preset).items()}
            for preset in ("laptop", "long")
        )
        assert len(long) == 3 * kept
        for key, flags in long.items():
            assert flags["total_timesteps"] == 10 * short[key]["total_timesteps"] and flags["seed"] == 10
            assert {flag: flags[flag] for flag in flags.keys() - how} == {
                flag: short[key][flag] for flag in short[key].keys() - how
            }
    _, _, summary = drawn(monkeypatch, tmp_path, "B1c", tmp_path / "nothing", "long")
    assert [(check["what"], check["above"]) for check in summary["checks"]] == [
        ("final score, the base less E × 4", 0.0),
        ("final score at E × 4, N × 4 less the base N", 0.0),
        ("final score, E × 4 and N × 4 less the base", -0.1),
    ]
    assert {
        line.split("|")[1].strip(): line.split("|")[2:4] for line in figures.tally("long", tmp_path).split("\n")[2:]
    } == {"paper B": [" 3 ", " 3 "]}


def test_of_an_environment_on_the_host_each_seed_is_a_run_and_they_count_as_one(worlds):
    (cell, *_), folder = FIGURES["B8"].cells(LAPTOP).values(), worlds("true", 5) / "laptop"
    assert [(dict(run.flags)["seed"], dict(run.flags)["num_seeds"]) for run in cell.parts] == [(s, 1) for s in range(5)]
    assert grid.with_sources([cell]) == list(cell.parts)
    data, name = Data(LAPTOP, folder), "charts/episodic_return"
    written = [[json.loads(line)[name] for line in (folder / run.name / "metrics.jsonl").read_text().splitlines()]
               for run in cell.parts]  # fmt: skip
    np.testing.assert_allclose(data.part(cell, name, 0, 1), np.transpose(written))
    one, *others = (data.final(run) for run in cell.parts)
    np.testing.assert_array_equal(data.final(cell), np.concatenate([one, *others]))
    described = figures.describe(data, cell, folder)
    assert [word.split("--seed ")[1].split()[0] for word in described["command"].split("; ")] == list("01234")


def test_a_run_is_described_by_the_updates_in_which_an_episode_ended(worlds, tmp_path):
    (cell, *_), folder = FIGURES["B8"].cells(LAPTOP).values(), worlds("true", 5) / "laptop"
    shutil.copytree(folder, tmp_path / "laptop")
    file = tmp_path / "laptop" / cell.parts[0].name / "metrics.jsonl"
    *lines, last = map(json.loads, file.read_text().splitlines())
    file.write_text("\n".join(map(json.dumps, [*lines, last | {"charts/episodic_return": None}])) + "\n")
    before = figures.describe(Data(LAPTOP, folder), cell, folder)["final"]
    after = figures.describe(Data(LAPTOP, tmp_path / "laptop"), cell, tmp_path / "laptop")["final"]
    np.testing.assert_array_equal(after[1:], before[1:])
    kept = [line["charts/episodic_return"] for line in lines if line["update"] > 0.9 * cell.num_updates]
    assert kept and after[0] == pytest.approx(np.mean(kept)) != before[0]


def test_what_single_runs_measured_and_saw_is_put_side_by_side(worlds, tmp_path):
    (cell, *_), folder = FIGURES["B8"].cells(LAPTOP).values(), tmp_path
    for seed, run in enumerate(cell.parts):
        (folder / run.name).mkdir()
        np.save(folder / run.name / VISITED, np.full((1, 512, 3), seed))
        (folder / run.name / f"measured-{visited.MEASURED}.json").write_text(json.dumps({"x": [seed]}))
    assert visited.measurements(folder, cell)["x"].tolist() == [0, 1, 2, 3, 4]
    seen = visited.observations(folder, cell)
    assert seen.shape == (5, 512, 3) and seen[:, 0, 0].tolist() == [0, 1, 2, 3, 4]


# Seeds that fail


@pytest.fixture
def broken(worlds, tmp_path):
    """-> figure B1a after `change(line, i)` of every line i, from 1 to 40, of every run of a true world."""
    pytest.importorskip("rliable")

    def show(change):
        top, cells = worlds("true", 5), FIGURES["B1a"].cells(LAPTOP)
        for cell in cells.values():
            (tmp_path / cell.name).mkdir()
            lines = map(json.loads, (top / "laptop" / cell.name / "metrics.jsonl").read_text().splitlines())
            with open(tmp_path / cell.name / "metrics.jsonl", "w") as file:
                for i, line in enumerate(lines, 1):
                    file.write(json.dumps(change(line, i)) + "\n")
        return FIGURES["B1a"].show(Data(LAPTOP, tmp_path), cells)

    return show


def test_a_seed_without_a_score_in_the_last_tenth_decides_nothing(broken):
    def change(line, i):
        line["charts/episodic_return"][2] = None if i >= 36 else line["charts/episodic_return"][2]
        return line

    picture, (check,) = broken(change)
    assert check.outcome == "not enough data" and len(picture.panels[""]) == 2


def test_a_seed_without_any_episode_decides_nothing(broken):
    def change(line, i):
        line["charts/episodic_return"][2] = None
        return line

    _, (check,) = broken(change)
    assert check.outcome == "not enough data"


def after_divergence(line, i):
    """All seeds but one diverge half-way; what they were worth stays in the lines before."""
    line["outer/update_norm"] = [1.0] + [None if i > 20 else 1.0] * 4
    if i > 20:
        line["charts/episodic_return"][1:] = [None] * 4
    return line


def test_a_seed_that_diverged_scores_like_a_random_policy(broken):
    _, (check,) = broken(after_divergence)
    assert check.estimate == pytest.approx(0, abs=0.1) and np.isfinite(check.low)


def test_a_curve_ends_at_the_scores_of_the_checks(broken):
    picture, _ = broken(after_divergence)
    for line in picture.panels[""]:
        assert line.y[-1, 0] == pytest.approx(0, abs=0.02)  # of 15 scores, 12 are 0
