"""benchmarks/arms.py: arms are searched and judged with the same effort, on other seeds, with the best flags."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("optuna")

# isort: split
import ppo
from benchmarks import arms, fresh_gain, long_runs, pages, pages_of_figures, plateaus, recipes, third_game
from experiments import effects
from experiments.references import REFERENCES

pytestmark = pytest.mark.optional


def test_the_best_trials_flags_are_judged_on_other_seeds(tmp_path, monkeypatch):
    trial = lambda score, rate: {"score": score, "flags": {"learning_rate": rate, "minibatch_size": 512}}  # noqa: E731
    trials = [trial(0.2, 1e-3), trial(None, 2e-3), trial(0.7, 3e-3), trial(0.6, 4e-3)]
    args = arms.Args(arms=("small",), trials=4, seeds=2, out=tmp_path / "arms.json", runs_dir=tmp_path)
    args.out.write_text(json.dumps({"trials": {"small": trials}}))

    def run_missing(cells, folder, jobs, say, then):
        for cell in cells:
            given = ppo.Args(**dict(cell.flags))
            assert (given.learning_rate, given.minibatch_size, given.num_envs) == (3e-3, 512, 64)
            (folder / cell.name).mkdir()
            value = 10.0 + given.seed
            found = {"updates": cell.num_updates, "wall_s": 9.6, "eval/episodic_return": {"mean": value}}
            (folder / cell.name / "summary.json").write_text(json.dumps(found))
            made = {"args": dict(cell.flags), "machine": {"cpu": "X"}, "started": "2026-01-02T03"}
            (folder / cell.name / "args.json").write_text(json.dumps(made))
            line = {"update": 1, "global_step": 2048, "time": 5.0, "charts/SPS": 1024, "charts/episodic_return": value}
            (folder / cell.name / "metrics.jsonl").write_text(json.dumps(line) + "\n")
            then(cell)

    monkeypatch.setattr(arms.grid, "run_missing", run_missing)
    arms.main(args)
    runs = json.loads(Path(args.out).read_text())["runs"].values()
    found = sorted((run["env_id"], run["seed"], run["return"], run["seconds"], run["curve"]) for run in runs)
    curve = lambda seed: [[2048, 2.0, 10.0 + seed]]  # noqa: E731
    games = sorted(arms.GAMES)
    assert {run["arm"] for run in runs} == {"small"}
    assert found == [(game, seed, 10.0 + seed, 10, curve(seed)) for game in games for seed in (0, 1)]
    assert args.out.with_suffix(".png").exists()

    found = json.loads(args.out.read_text())
    (old,) = (name for name, run in found["runs"].items() if (run["env_id"], run["seed"]) == (arms.GAMES[0], 0))
    found["runs"]["of_other_flags"] = found["runs"].pop(old) | {"return": 99.0}
    args.out.write_text(json.dumps(found))
    shutil.rmtree(tmp_path / old)
    arms.main(args)
    again = json.loads(args.out.read_text())["runs"]
    assert "of_other_flags" not in again and again[old]["return"] == 10.0


def test_a_million_transitions_per_update_are_ten_updates_with_the_flags_of_many(tmp_path):
    flags = {"learning_rate": 0.004, "minibatch_size": 2048, "update_epochs": 8}
    args = arms.Args(out=tmp_path / "arms.json")
    results = arms.Results(args)
    results.trials = {"many": [{"score": 0.5, "flags": flags}]}
    cells = {game: arms.once(flags, game, args) for game in arms.GAMES}
    assert {cell.num_updates for cell in cells.values()} == {10}
    assert (
        dict(cells[arms.GAMES[0]].flags).items() >= (flags | {"num_envs": 32_768, "num_steps": 32, "seed": 0}).items()
    )
    results.runs = {cell.name: {"arm": arms.ONCE, "env_id": game, "seed": 0} for game, cell in cells.items()}
    assert not any(of for by_game in arms.returns(vars(results)).values() for of in by_game.values())  # in no verdict
    results.drop_others(["many"])
    assert len(results.runs) == 2
    results.trials["many"][0]["flags"] = flags | {"update_epochs": 2}
    results.drop_others(["many"])
    assert not results.runs


@pytest.mark.parametrize(("low", "high", "more", "equal"), [
    (0.01, 0.3, "holds", "open"),
    (-0.02, 0.04, "refuted", "holds"),
    (0.01, 0.04, "holds, but is below 0.05", "holds"),
    (-0.3, 0.2, "open", "open"),
    (-0.05, 0.06, "open", "holds"),
    (-0.4, -0.2, "refuted", "refuted"),
    (0.2, 0.4, "holds", "refuted"),
])  # fmt: skip
def test_a_claim_is_decided_where_the_whole_interval_is(low, high, more, equal):
    assert [arms.judged(low, high, *claim[3:]) for claim in arms.CLAIMS] == [more, equal, more, more]


@pytest.mark.parametrize("missing, seen", [(0, (10, 0.9875)), (2, (8, 0.9875)), (3, (6, 0.975)), (5, (5, 0.975))])
def test_a_second_look_has_eight_seeds_of_all_arms_or_is_the_first(missing, seen):
    runs = {arm: {game: {seed: 10.0 * seed for seed in range(10)} for game in arms.GAMES} for arm in arms.ARMS}
    for seed in range(missing):
        del runs["many"][arms.GAMES[1]][seed]
    del runs["middle"][arms.GAMES[0]][3]  # the first arms' looks do not wait for it; of its own an unbroken row counts
    scores, level = arms.looked_at(runs)
    assert len(scores.pop("middle")) == 3 and {(len(of), level) for of in scores.values()} == {seen}
    ours = scores["small"][0, 0] - scores["small"][1, 0], REFERENCES[arms.GAMES[0]]
    assert ours[0] == pytest.approx(-10 / (ours[1][1] - ours[1][0]))
    a, b = np.random.default_rng(0).normal(size=(2, 10, 2))
    widths = [np.subtract(*arms.differences(a, b, level)["interquartile mean"][:0:-1]) for level in (0.9, 0.975, 0.99)]
    assert widths == sorted(widths) and widths[0] > 0


def test_who_ends_higher_is_named_where_a_claim_of_more_is_below_0(capsys):
    rng = np.random.default_rng(2)
    levels = {"small": 0.8, "many": 0.7, "long": 0.5, "middle": 0.81}
    scores = {arm: level + 0.01 * rng.normal(size=(10, 2)) for arm, level in levels.items()}
    told = [row[-1] for row in pages.claims_of_arms(scores, 0.95, [])]
    assert told[:2] == ["refuted, 64 × 32 ends higher", "refuted"]
    assert told[2:] == ["holds, but is below 0.05", "refuted, 512 × 32 ends higher"]
    base = {"clip_eps": 0.2, "gae_lambda": 0.8, "ent_coef": 0.06, "update_epochs": 3, "minibatch_size": 512}
    given = [
        {"learning_rate": 1.0, "anneal_lr": True},
        {"learning_rate": 0.1, "anneal_lr": False},
        {"learning_rate": 0.01},
    ]
    trials = [{"score": 0.8 - 0.03 * i, "flags": flags | base} for i, flags in enumerate(given)]
    pages.flags_of_arms({"trials": {"middle": trials * 4}})
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| 512 × 32"))
    assert "| 0.80 (8) | 1* (0.1–1) | True (or False) | 0.2 | 0.8 | 0.06 | 3 | 512* |" in row


def test_a_long_run_stands_still_if_its_last_tenth_is_no_higher_than_the_one_before_half_way():
    steps = np.arange(1, 41) * long_runs.STEPS / 40
    low, high = REFERENCES[long_runs.GAME]
    flat, late = np.full(40, 20.0), np.where(steps > long_runs.STEPS / 2, high, low)
    flat[[5, 30]] = 90.0  # neither before half-way nor at the end
    runs = {}
    for seed in range(3):
        for arm, values in (("small", flat), ("many", late)):
            curve = [[n, 0.0, x + seed / 99] for n, x in zip(steps, values, strict=True)]
            runs[f"{arm}{seed}"] = {"arm": arm, "seed": seed, "return": curve[-1][2], "curve": curve}
    runs["small0"]["curve"][39][2] = None  # no episode ended
    runs["small3"] = runs["small0"] | {"seed": 3, "return": 1000.0}  # a seed that the other arm lacks
    for arm in ("small", "many"):  # of another length
        curve = [[n * 10 / 3, 0.0, 99.0] for n in steps]
        runs[f"{arm}long"] = {"arm": arm, "seed": 0, "return": 999.0, "curve": curve}
    still, rising, above = long_runs.claimed(runs)
    assert abs(still.estimate) < 1e-9 and rising.estimate == pytest.approx(1.0)
    assert above.estimate == pytest.approx((high - 20) / (high - low))
    assert [x.outcome for x in (still, rising, above)] == ["holds"] * 3
    assert long_runs.claimed_later(runs) is None
    score = lambda x: (x - low) / (high - low)  # noqa: E731
    of = high + (high - low) * np.array([1.0, 1.1, 1.2])
    for seed in range(3):
        runs[f"middle{seed}"] = runs[f"many{seed}"] | {"arm": "middle", "return": of[seed]}
    later = long_runs.claimed_later(runs)
    assert later.rises.outcome == "holds" and later.verdict == "refuted, 512 × 32 ends higher"
    small, many = ([runs[f"{arm}{seed}"]["return"] for seed in range(n)] for arm, n in (("small", 4), ("many", 3)))
    assert later.many_less.estimate == pytest.approx(score(np.mean(many)) - score(of.mean()))
    assert later.less_small.estimate == pytest.approx(score(of.mean()) - score(np.mean(small)))
    assert [long_runs.stands_still(runs[name]) for name in ("small1", "many1")] == [True, False]
    rises = [[n, 0.0, 10.0 + 15 * n / steps[-1]] for n in steps]  # below the wall, but not still
    assert not long_runs.stands_still({"curve": rises})
    assert long_runs.passes([[1e6, 3.0], [2e6, None], [3e6, 32.0]], 32) == 3.0
    assert np.isinf(long_runs.passes([[1e6, 3.0]], 32))


def test_a_claim_about_slow_runs_is_judged_by_pairs_of_branches_of_one_parent():
    rng = np.random.default_rng(3)
    values = {arm: rng.normal(30.0, 5.0, 6) for arm in plateaus.CHANGES}
    runs = {f"{arm}{seed}": {"arm": arm, "seed": seed, "return": value}
            for arm, of in values.items() for seed, value in enumerate(of)}  # fmt: skip
    more, eps, _, _, _ = plateaus.claimed(runs)
    pairs = (("envs", "control"), ("lr_envs", "lr"), ("bonus_envs", "bonus"), ("lr_bonus_envs", "lr_bonus"))
    for effect, less in (
        (more, np.mean([values[a] - values[b] for a, b in pairs], axis=0)),
        (eps, (values["eps"] - values["control"] + values["eps_bonus"] - values["bonus"]) / 2),
        (plateaus.branch(runs, "envs_64"), values["envs_64"] - values["control"]),
    ):
        half = 4.032 * less.std(ddof=1) / np.sqrt(6)  # of a 99 % t-interval with five degrees of freedom
        assert effect[1:4] == pytest.approx((less.mean(), less.mean() - half, less.mean() + half), rel=1e-3)
    assert effect.outcome == "reported"
    del runs["lr0"]  # then the parent of seed 0 has no pair
    assert [len(x.samples[0]) for x in plateaus.claimed(runs)] == [5, 6, 6, 5, 5]


def test_effects_on_the_third_game_and_over_all():
    """Of one game it is Welch's interval; of three that of a sum of independent means."""
    rng, games = np.random.default_rng(1), (*arms.GAMES, arms.THIRD)
    scores = {arm: rng.normal(1.5 if arm == "small" else 1.0, 0.1, (6, 3)) for arm in ("small", "many", "long")}
    run = lambda arm, game, seed, score: {  # noqa: E731
        "arm": arm, "env_id": game, "seed": seed,
        "return": REFERENCES[game][0] + (REFERENCES[game][1] - REFERENCES[game][0]) * score,
    }  # fmt: skip
    cells = [(arm, at, seed) for arm in scores for at in range(3) for seed in range(6)]
    runs = {f"{arm}{at}{seed}": run(arm, games[at], seed, scores[arm][seed, at]) for arm, at, seed in cells}
    early = {f"small2{seed}": runs.pop(f"small2{seed}") for seed in range(arms.EARLIER)}
    third = arms.on_third(runs, early | {"other": early["small20"] | {"arm": "root", "return": 99.0}})
    found = arms.third_effects({"runs": runs}, third)
    a, b = scores["many"], scores["small"]
    welch = stats.ttest_ind(a[:, 2], b[:, 2], equal_var=False).confidence_interval(0.95)
    assert found["many", "small"][0] == pytest.approx(((a - b)[:, 2].mean(), welch.low, welch.high))
    error = np.sqrt(sum(x.var(axis=0, ddof=1).sum() / 6 for x in (a, b))) / 3
    middle, low, high = found["many", "small"][1]
    assert middle == pytest.approx((a - b).mean())
    # Degrees of freedom: 30 if all six spreads were equal, at least those of one
    assert stats.t.ppf(0.975, 30) * error < (high - low) / 2 < stats.t.ppf(0.975, 5) * error


def test_each_number_of_environments_has_the_same_sets_of_flags_but_for_minibatches():
    sets = {number: third_game.flag_sets(number) for number in third_game.NUMBERS}
    sizes = {number: sorted(of) for number, of in third_game.NUMBERS.items()}
    for alike in zip(*sets.values(), strict=True):
        assert len({tuple(sorted((k, v) for k, v in flags.items() if k != "minibatch_size")) for flags in alike}) == 1
    for alike in [*zip(*sets.values(), strict=True)][3:]:
        assert len({sizes[n].index(flags["minibatch_size"]) for n, flags in zip(sizes, alike, strict=True)}) == 1
    rates = np.log([flags["learning_rate"] / 5e-4 for flags in sets["many"][3:]]) / np.log(40)
    assert sorted((9 * rates).astype(int)) == [*range(9)]  # a Latin square
    cells = [third_game.make(number, index, 100) for number in sets for index in range(12)]
    assert {cell.num_updates * dict(cell.flags)["num_envs"] * 32 for cell in cells} == {10_485_760}
    assert len({cell.name for cell in cells}) == 36


def test_the_doctor_calls_the_slow_runs_bonus_and_rate_unusual(capsys):
    pages_of_figures.what_the_doctor_says()
    told = " ".join(capsys.readouterr().out.split())
    assert "entropy bonus at the end 0.0662 (0 there)" in told and "--no-anneal-lr (--anneal-lr there)" in told


def test_the_page_says_what_the_rules_say_of_flags_that_were_searched_there(monkeypatch, capsys):
    rng, (low, high), runs = np.random.default_rng(5), REFERENCES[arms.THIRD], {}
    run = lambda arm, seed, score: {  # noqa: E731
        "arm": arm, "seed": seed, "seconds": 120, "machine": {"cpu": "X"}, "date": "today",
        "return": low + (high - low) * (score + 0.01 * rng.normal()), "env_id": arms.THIRD,
        "curve": [[1, 30, None], [2, 60, 9.0], [3, 90, 10.0 if arm != "long" else 9.0]],
    }  # fmt: skip
    while cells := [cell for number in ("small", "many") for cell in third_game.next_cells(runs, number)]:
        for cell in cells:
            number, index, seed = (part.partition("-")[2] for part in cell.name.split("_")[1:4])
            of = run(number, int(seed), {"small": 1.5, "many": 1.3}[number] - 0.1 * (index != "4"))
            runs[cell.name] = of | {"set": int(index)}
    arms_of_others = (("small", 1.5), ("many", 0.6), ("long", 1.0), ("middle", 1.8), (arms.BORROWED, 1.0))
    known = {f"{arm}{seed}": run(arm, seed, score) for arm, score in arms_of_others for seed in range(6)}
    games = {f"{arm}{game}{seed}": run(arm, seed, 1.0) | {"env_id": game}
             for arm in arms.ARMS for game in arms.GAMES for seed in range(3)}  # fmt: skip
    found = {"third_game": {"runs": runs}, "arms": {"runs": known | games}}
    others = pages_of_figures.read
    monkeypatch.setattr(pages_of_figures, "read", lambda name: found.get(name) or others(name))
    monkeypatch.setattr(arms, "EARLIER", 0)
    pages_of_figures.third_game()
    told = " ".join(capsys.readouterr().out.split())
    flags = third_game.flag_sets("many")[4]
    assert f"rate {flags['learning_rate']:.3g}, minibatch {flags['minibatch_size']:,}, epochs" in told
    assert "searched there −0.20" in told and "first +0.70" in told and "**in part the flags were why**" in told
    assert re.search(r"512 × 32 minus 64 × 32 \+0\.(29|3\d) .*, \*\*holds\*\*\. ", told)
    assert re.search(r"flags, 4,096 × 32 minus 512 × 32 −1\.(19|2\d) \(", told)
    assert told.count("refuted, 64 × 32 ends higher") == 2 and "Twelve sets" not in told and "| 2.0 | – |" in told
    pages_of_figures.asked()
    told = " ".join(capsys.readouterr().out.split())
    row = r"Asterix\\\*, {} × 32 less 64 × 32 \| {}\d\.\d\d \([^|]+\| {}"
    assert re.search(row.format("4,096", "−", "refuted, 64 × 32 ends higher"), told)
    assert re.search(row.format("512", r"\+", "holds"), told) and "| equal within 0.1: " in told
    assert "searched there](docs/report.md#on-a-third-game): refuted, 64 × 32 ends higher." in told
    claim = third_game.claimed(runs, arms.on_third(known, {}))
    missing = {name: run for name, run in runs.items() if (run["arm"], run["seed"]) != ("many", 11)}
    assert third_game.claimed(missing, arms.on_third(known, {}))[2:] == ("open (5 of 6 seeds)",) * 2
    monkeypatch.setitem(arms.GATE, arms.THIRD, 99.0)
    assert third_game.claimed(runs, arms.on_third(known, {}))[2:] == ("no verdict, returns are too low for one",) * 2
    assert claim.gone[1] > 0 > claim.less.high


def test_the_better_of_the_two_best_sets_of_one_seed_is_judged_on_others():
    value = {(index, 100): float(index % 7) for index in range(12)} | {(6, 101): 1.0, (5, 101): 3.0}  # 7 < 8
    runs, order = {}, []
    while cells := third_game.next_cells(runs, "small"):
        order.append(sorted((dict(cell.flags)["seed"], int(cell.name.split("_")[2][4:])) for cell in cells))
        for cell in cells:
            seed, index = dict(cell.flags)["seed"], int(cell.name.split("_")[2][4:])
            runs[cell.name] = {"arm": "small", "set": index, "seed": seed, "return": value.get((index, seed), 9.0)}
    assert order == [[(100, i) for i in range(12)], [(101, 5), (101, 6)], [(seed, 5) for seed in range(6, 12)]]
    assert len(third_game.tested(runs, "small")) == 6 and len(third_game.next_cells({}, "many")) == 12


def test_how_much_of_a_difference_is_gone():
    rng, low, high = np.random.default_rng(4), *REFERENCES[arms.THIRD]
    of = rng.normal([[0.9], [1.0], [0.3], [1.1]], 0.1, (4, 6))  # many, small; before: many, small
    many, small, *before = ([{"return": low + (high - low) * x} for x in values] for values in of)
    middle, least, most = third_game.closed([many, small], before)
    assert middle == pytest.approx(of[0].mean() - of[1].mean() - of[2].mean() + of[3].mean())
    error = np.sqrt(of.var(axis=1, ddof=1).sum() / 6)
    assert stats.t.ppf(0.975, 20) * error <= (most - least) / 2 < stats.t.ppf(0.975, 5) * error
    less = lambda a: effects.difference("", low + a + of[0], low + of[1])  # noqa: E731
    assert third_game.answer(less(1.0), -1.0) == "the flags were why"
    assert third_game.answer(less(-1.0), 0.1) == "in part the flags were why"
    assert third_game.answer(less(-1.0), -0.1) == "that the flags were why is not shown"
    assert third_game.answer(less(0.1), 0.1).startswith("undecided")


def test_the_gate_fails_where_no_arm_of_all_ends_high():
    ends = {arm: {"Breakout-MinAtar": {0: 44.0, 1: 46.0}, "SpaceInvaders-MinAtar": {0: 131.0}} for arm in arms.ARMS}
    assert arms.fails_gate(ends) == ["Breakout-MinAtar"]
    ends["long"]["Breakout-MinAtar"][2] = 50.0
    assert arms.fails_gate(ends) == []
    ends = {arm: {"Breakout-MinAtar": {0: 1.0}, "SpaceInvaders-MinAtar": {}} for arm in arms.ARMS}
    assert arms.fails_gate(ends) is None  # not before all have run


def test_recipes_differ_from_the_flags_of_64_environments_in_what_is_said_of_them():
    """36 runs, of which none is the one that arms.py has; all are of as many steps."""
    cells = recipes.cells()
    assert len(cells) == 5 * 4 + 4 * 4 and len({cell.name for cell in cells}) == 36
    of = {dict(cell.flags)["env_id"][0] + cell.name.split("_")[1]: dict(cell.flags) for cell in cells}
    assert "Sarm-small" not in of
    small = of["Aarm-small"] | {"seed": None}
    changed = {
        "recipe": {"num_envs": 512},
        "larger": {"num_envs": 512, "minibatch_size": 8192},
        "root": {"num_envs": 512, "minibatch_size": 8192, "learning_rate": 0.006},
        "epoch": {"num_envs": 512, "update_epochs": 1},
    }
    assert of["Aarm-root"]["learning_rate"] == pytest.approx(8**0.5 * small["learning_rate"], rel=1e-2)
    for arm, flags in changed.items():
        assert of[f"Aarm-{arm}"] | {"seed": None} == small | flags
    assert {cell.num_updates * dict(cell.flags)["num_envs"] * 32 for cell in cells} == {10_485_760}


@pytest.mark.parametrize(("asterix", "invaders", "verdict"), [
    (0.5, 0.5, "holds"), (-0.5, -0.5, "refuted"), (0.5, -0.5, "open: the games disagree"), (0.5, 0.01, "open"),
    (0.0, 0.0, "open"),
])  # fmt: skip
def test_a_recipe_ends_higher_where_it_does_on_both_games(monkeypatch, capsys, tmp_path, asterix, invaders, verdict):
    (low, high), (least, most) = (REFERENCES[game] for game in recipes.SEEDS)
    run = lambda arm, game, seed, score, low, high: {  # noqa: E731
        "arm": arm, "env_id": game, "seed": seed, "kl": 0.002, "seconds": 90,
        "return": low + (high - low) * (score + 0.01 * seed),
        "curve": [[n, 0, low + (high - low) * (score + n / 1e3)] for n in range(100)],
    }  # fmt: skip
    scores = dict.fromkeys(recipes.RECIPES, (0.0, 0.0)) | {"small": (0.2, 0.3), "recipe": (asterix, invaders)}
    runs = {
        f"{arm}{game}{seed}": run(arm, game, seed, score, *REFERENCES[game])
        for arm, of in scores.items()
        for game, score in zip(recipes.SEEDS, of, strict=True)
        for seed in range(4)
    }
    known = {name: runs.pop(name) for name in [*runs] if name.startswith("smallSpace")}
    known["fifth"] = runs["fifth"] = run("small", "SpaceInvaders-MinAtar", 4, 100.0, least, most)  # the rules have four
    of = recipes.by_arm(runs, known | runs)
    found = recipes.less(of, "recipe", "larger").values()
    assert [x.estimate for x in found] == pytest.approx([asterix, invaders]) and recipes.LEVEL == 0.9875
    monkeypatch.setattr(arms, "GATE", dict.fromkeys(recipes.SEEDS, 3.0))
    assert recipes.judged(of, "recipe", "larger") == verdict
    if verdict == "holds":
        recipes.draw(of, tmp_path / "a.png")
        arms.GATE["Asterix-MinAtar"] = 10.0
        assert recipes.judged(of, "recipe", "larger") == "none: the gate fails on Asterix-MinAtar"
        arms.GATE["Asterix-MinAtar"] = 3.0
    found = {"recipes": {"runs": runs, "hardware": {"cpu": "X"}, "date": "2026-01-02T03"}, "arms": {"runs": known}}
    monkeypatch.setattr(pages_of_figures, "read", found.get)
    pages_of_figures.recipes()
    told = " ".join(capsys.readouterr().out.split())
    row = f"| {low + (high - low) * 0.215:.1f} ± 0.3 (4) | {least + (most - least) * 0.315:.1f} ± 3.6 (4) "
    assert f"| 64 {row}| +0.05 and +0.05 | 2.0 | 1.5 |" in told and f"**{verdict}**" in told


def test_the_gain_that_a_rise_requires():
    """Returns rise by 0.5 in an update; over 100 steps with advantages of 2 that is a gain of 0.0025."""
    rng = np.random.default_rng(0)
    line = lambda i: {  # noqa: E731
        "charts/episodic_return": 0.5 * i if i % 3 else None, "charts/episodic_length": 100, "losses/value_loss": 2.0,
        "outer/own_gain": 0.1, "outer/kl": 0.01, "outer/fresh_gain": 0.001 + 0.01 * rng.normal() if i else None,
    }  # fmt: skip
    parts = fresh_gain.in_parts([line(i) for i in range(800)], {"num_envs": 64, "num_steps": 32})
    assert [part["required"] for part in parts] == pytest.approx([0.0025] * 8, rel=1e-3)
    assert [part["transitions"] for part in parts] == pytest.approx([99 * 2048] + [100 * 2048] * 7, rel=1e-3)
    runs = {f"{arm}{seed}": {"arm": arm, "parts": parts} for arm in ("small", "many") for seed in range(4)}
    of = fresh_gain.over_seeds(runs)["many"][1]
    assert of["half"] == pytest.approx(1.96 * 0.01 / np.sqrt(400), rel=0.2)
    assert of["transitions"] == pytest.approx(400 * 2048, rel=1e-3)
    # On so many transitions half the interval is what is required.
    assert of["half"] * np.sqrt(of["transitions"] / of["would_tell"]) == pytest.approx(of["required"])
