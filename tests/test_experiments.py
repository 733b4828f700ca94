"""experiments/headline.py and experiments/controllers.py: curves whose answer is known, and the harness beside the
script that it drives."""

import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import ppo
import ppo_ewma
from benchmarks.measure import ROOT
from common.run import plots
from common.run.arguments import parse
from experiments import (
    again,
    clip,
    control,
    controllers,
    entropy,
    exploration,
    grid,
    headline,
    inner,
    longer,
    minibatches,
    paper_a_runs,
    resumed,
    rollouts,
    stuck,
    usual,
    verdicts,
    wider,
)

# The headline


def curves(**change):
    """Curves by which everything holds that the preregistration asks for, except for the changed ones. A curve is its
    level at half of the steps and the growth after it."""
    levels = {
        "64": (6, 0),
        "512": (8, 2),
        "4096": (12, 8),
        "entropy": (6, 0),
        "tuned": (6, 0),
        "eps": (8, 0),
        "com": (8, 0),
    }
    levels |= {"branch": (18, 0), "entropy, 512": (9, 0), "entropy, 4096": (15, 0)} | change
    result = {}
    for name, (level, growth) in levels.items():
        end = headline.STEPS if name in ("64", "512", "4096") else headline.HALF
        steps = np.linspace(0, end, 401)[1:]
        rise = np.minimum(steps / headline.HALF, 1) * level if end == headline.STEPS else np.full(400, float(level))
        returns = rise + growth * np.maximum(steps / headline.HALF - 1, 0)
        fresh = np.full(400, 0.0 if name == "64" else 0.004)
        result[name] = [
            headline.Curve(steps, returns + 0.05 * s, np.full(400, 0.01), fresh + 1e-4 * (s - 2), fresh)
            for s in range(5)
        ]
    return result


def test_what_the_preregistration_asks_for_is_confirmed():
    found = headline.judge(curves())
    assert all(found["checks"].values()) and found["confirmed"]
    assert all(found["predictions of the fresh gain"].values())
    assert found["stands still, of each seed"]["64"] == [True] * 5
    assert found["predicted to stand still, of each seed"]["64"] == [True, True, True, False, False]
    assert found["stands still, of each seed"]["4096"] == [False] * 5
    more = found["with five times the entropy bonus, at half, less the smallest"]
    assert (more["512"].mean, more["4096"].mean) == pytest.approx((3, 9))
    late = np.array(found["return, last tenth"]["4096"])
    assert late == pytest.approx(12 + 8 * 0.9 + 0.05 * np.arange(5), abs=0.1)


def test_the_picture_is_drawn(tmp_path):
    headline.draw(curves(), tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "change, check",
    [
        ({"64": (6, 2)}, "the smallest stands still"),
        ({"4096": (20, 0)}, "the largest goes on"),
        ({"512": (25, 8)}, "the order is monotone"),
        ({"512": (18, 1)}, "the largest is 10 % ahead of the middle"),
        ({"branch": (15, 0)}, "the branch reaches 80 % of the largest"),
        ({"entropy": (10, 0)}, "entropy does not rescue"),
        ({"tuned": (10, 0)}, "an inner loop for its size does not rescue"),
    ],
)
def test_each_check_can_fail(change, check):
    found = headline.judge(curves(**change))
    assert not found["checks"][check] and not found["confirmed"]


# Policies that are stuck


def flat(level, steps=headline.HALF):
    """Of seed s a return of level + s / 10, and an entropy of 0.2."""
    x = np.linspace(0, steps, 401)[1:]
    return [headline.Curve(x, np.full(400, level + 0.1 * s), x, x, np.full(400, 0.2)) for s in range(5)]


def stuck_ones(**levels):
    """Unchanged 6; from the start the bonus has 16 (12 more environments: 18), the inner loop 14, epsilon 8."""
    before = {"64": flat(6, headline.STEPS), "entropy": flat(16), "entropy, 4096": flat(18), "tuned": flat(14)}
    before |= {"eps": flat(8), "512": flat(18, headline.STEPS), "4096": flat(24, headline.STEPS), "branch": flat(6)}
    before[stuck.LONG] = flat(22)
    return {name: flat(levels.get(name, 6)) for name in stuck.ARMS}, before


def test_an_arm_frees_if_it_brings_more_than_half_of_what_it_brings_from_the_start(tmp_path):
    few, many, loop = "entropy bonus × 5", "entropy bonus × 5, 4,096 environments", "inner loop for 64"
    branches, before = stuck_ones(**{few: 12, many: 11, loop: 9.9, "ε ÷ 4": 7.1})
    found = stuck.judge(branches, before)
    assert [round(check["above"], 9) for check in found["checks"]] == [5, 5, 6, 4, 1, 0]  # half of 10, 10, 12, 8, 2
    assert [check["outcome"] for check in found["checks"]] == [
        "holds", "does not hold", "does not hold", "does not hold", "holds", "does not hold",
    ]  # fmt: skip
    assert [check["estimate"] for check in found["checks"]] == pytest.approx([6, 0, 5, 3.9, 1.1, -1])
    assert found["seeds above 7"] == {"unchanged": 0, few: 5, "entropy bonus × 25": 0, many: 5, loop: 5, "ε ÷ 4": 5}
    assert found["entropy, last tenth"][few] == pytest.approx([0.2] * 5)
    assert found["first million steps above it"][few] == [1] * 5
    assert found["first million steps above it"]["unchanged"] == [None] * 5
    stuck.draw(branches, before, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 10_000


def test_stuck_policies_start_where_the_headline_was_at_half():
    for (_, of_one), (num_envs, changed, _) in zip(stuck.cells().items(), stuck.ARMS.values(), strict=True):
        for seed, run in enumerate(of_one):
            assert run.source == headline.cell(64, seed) and run.source_update * 64 * 32 == headline.HALF
            flags = dict(run.flags)
            assert flags["total_timesteps"] == headline.HALF and flags["num_envs"] == num_envs
            assert flags.items() >= changed.items() and flags["seed"] == seed


@pytest.mark.parametrize(
    "unchanged, bonus, outcome",
    [
        ([6.0] * 7, [9, 10, 11, 9, 10, 11, 6.5], "holds"),  # six of seven leave
        ([6.0] * 7, [9, 10, 11, 9, 10, 6.5, 6.5], "not enough data"),  # five of seven are fewer than four fifths
        ([6.0] * 7, [9, 10, 11, 6.5, 6.5, 6.6, 6.4], "does not hold"),  # three are fewer than half
        (
            [6, 6, 6, 6, 40, 40, 6],
            [9, 10, 11, 9, 10, 11, 9],
            "not enough data",
        ),  # all leave, but those that left are higher
        ([20.0] * 7, [9, 10, 11, 9, 10, 11, 9], "does not hold"),
    ],
)
def test_the_bonus_frees_other_seeds_if_it_lifts_and_most_leave(unchanged, bonus, outcome):
    """Of ten seeds, of which those that are not stuck at half would spoil it."""
    steps = np.linspace(0, headline.STEPS, 801)[1:]
    curve = lambda x, returns: headline.Curve(x, returns, x, x, x)  # noqa: E731
    early = steps <= headline.HALF
    before = [curve(steps, np.where(early, 5.0, end)) for end in unchanged]
    after = [curve(steps[early], np.full(early.sum(), end)) for end in bonus]
    free, spoiled = curve(steps, np.where(early, 20.0, 90.0)), curve(steps[early], np.full(early.sum(), -50.0))
    for place in (2, 3, 9):
        before.insert(place, free)
        after.insert(place, spoiled)
    found = stuck.judge_again(before, after)
    assert found["seeds that are stuck"] == [5, 6, 9, 10, 11, 12, 13]
    assert found["return, last tenth, of those that are stuck"] == {"unchanged": unchanged, "entropy bonus × 5": bonus}
    assert found["the bonus frees"] == outcome


def test_when_a_policy_leaves():
    steps = np.linspace(0, 10e6, 1001)[1:]
    curve = headline.Curve(steps, np.where(steps > 6.4e6, 10.0, 5.0), steps, steps, steps)
    assert (stuck.left(curve, 0.0), stuck.left(curve, 3e6), stuck.left(curve, 8e6)) == (7, 4, 1)
    assert stuck.left(curve._replace(returns=np.full(1000, 7.0)), 0.0) is None


# Entropy at a level of the return


def falling(entropies, end, reach=0.5):
    """Of seed s a return that reaches 10 at so much of the run and goes on rising, and an entropy that falls from
    1 + s / 100 to 0 over the run, times `entropies`."""
    x = np.linspace(0, end, 1025)[1:]
    return [headline.Curve(x, 10 / reach * x / end, x, x, entropies * (1 + s / 100) * (1 - x / end)) for s in range(5)]


def test_entropy_is_that_of_the_first_window_that_reaches_the_level():
    (curve, *_) = falling(1.0, 64 * entropy.WINDOW)
    # Return 20 t: 4 at t = 12.8 / 64, in a window whose mean is 3.9. The next one is around t = 13.5 / 64.
    assert entropy.entropy_at(curve, 4.0, 64 * entropy.WINDOW) == pytest.approx(1 - 13.5 / 64, abs=1 / 1024)
    assert np.isnan(entropy.entropy_at(curve, 4.0, 12 * entropy.WINDOW))
    assert np.isnan(entropy.entropy_at(curve, 21.0, 64 * entropy.WINDOW))


@pytest.mark.parametrize(
    "changed, kind, outcomes",
    [
        ({}, "more environments", ["reported"] * 2 + ["holds"] * 4),
        ({}, "more data of 64 environments", ["holds"] * 2),
        (
            {("Asterix", 512, 32): 0.05},
            "more environments",
            ["reported"] * 2 + ["holds"] * 2 + ["does not hold", "holds"],
        ),
        ({("Breakout", 64, 256): 0.1}, "more data of 64 environments", ["not enough data", "holds"]),
        ({("Breakout", 64, 2048): 0.05}, "return with more data of 64 environments", ["not enough data"]),
        ({}, "more environments with as much data", ["reported"] * 2),
    ],
)
def test_what_few_environments_lose(changed, kind, outcomes, tmp_path):
    kept = {64: 0.1, 512: 0.4, 4096: 0.8}
    curves = {
        key: falling(changed.get(key, kept[key[1] * key[2] // 32]), entropy.STEPS[key[0]], reach=0.1)
        for key in entropy.cells()
    }
    curves = {key: [c._replace(returns=5 * c.returns) for c in of_one] for key, of_one in curves.items()}
    found = entropy.judge(curves)
    assert [check["outcome"] for check in found["checks"][kind]] == outcomes
    entropy.draw(curves, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 10_000


def test_rollouts_of_64_environments_are_as_large_as_those_of_more():
    runs = {(key[1], key[2]): dict(run.flags) for key, (run, *_) in entropy.cells().items() if key[0] == "Breakout"}
    assert set(runs) == {(64, 32), (512, 32), (4096, 32), (64, 256), (64, 2048)}
    for num_steps, num_envs in ((256, 512), (2048, 4096)):
        assert runs[64, num_steps]["num_steps"] * 64 == num_envs * 32
        same = ("env_id", "sticky_actions", "seed")
        assert all(runs[64, num_steps][flag] == runs[num_envs, 32][flag] for flag in same)


# Environments or gradient steps


def kept_and_reached(entropies, level, end):
    """Of seed s a return that soon reaches level + s / 10, and an entropy that stays; a tenth of it is clipped."""
    x = np.linspace(0, end, 1025)[1:]
    return [
        headline.Curve(x, np.minimum(1, 10 * x / end) * (level + s / 10), x, x, *np.full((3, 1024), part * entropies))
        for s, part in zip(range(5), (0.98, 0.99, 1.0, 1.01, 1.02), strict=True)
    ]


def both(entropies, levels):
    """The runs of experiments/inner.py; entropies and levels by (environments, minibatches)."""
    cells = {key: run for key, (run, *_) in inner.cells().items()}
    steps = {key: dict(run.flags)["total_timesteps"] for key, run in cells.items()}
    return {key: kept_and_reached(entropies(*key[1:]), levels(*key[1:]), steps[key]) for key in cells}


BY_STEPS, BY_ENVS = (lambda n, m: {1: 0.1, 8: 0.4, 64: 0.8}[m]), (lambda n, m: {64: 0.1, 512: 0.4, 4096: 0.8}[n])
LEVEL_BY_STEPS, LEVEL_BY_ENVS = (lambda n, m: 26 if m == 1 else 36), (lambda n, m: {64: 26, 512: 30, 4096: 36}[n])
CLAIMS = (
    "more gradient steps keep more entropy", "more environments do not",
    "64 environments with more gradient steps end higher",
    "with as many gradient steps more environments still end higher", "more gradient steps free a stuck policy",
)  # fmt: skip


@pytest.mark.parametrize(
    "entropies, levels, freed, outcomes",
    [
        (BY_STEPS, LEVEL_BY_STEPS, 33, ["holds", "holds", "holds", "not enough data", "holds"]),
        (BY_STEPS, LEVEL_BY_STEPS, 30, ["holds", "holds", "holds", "not enough data", "does not hold"]),  # 4 of 10
        (BY_ENVS, LEVEL_BY_ENVS, 26, ["not enough data", "does not hold", "not enough data", "holds"]),
        (
            lambda *size: BY_STEPS(*size) + BY_ENVS(*size) / 8,
            lambda *size: 2 * LEVEL_BY_STEPS(*size) + LEVEL_BY_ENVS(*size),
            90, ["holds", "holds", "holds", "holds"],
        ),
    ],
)  # fmt: skip
def test_whether_environments_or_gradient_steps_keep_entropy(entropies, levels, freed, outcomes, tmp_path):
    curves = both(entropies, levels)
    found = inner.judge(curves, flat(freed), flat(30, entropy.STEPS["Asterix"]))
    assert [found["outcomes"][claim] for claim in CLAIMS][: len(outcomes)] == outcomes
    assert len(found["checks"]["more gradient steps keep more entropy"]) == 3 * 2 + 2
    bars = [check["below"] for check in found["checks"]["more environments do not"]]
    assert bars == pytest.approx([0.25 * (entropies(4096, 64) - entropies(64, 1))] * 5)
    kept = found["entropy when the return first reaches the level"]["Breakout, 512 environments, 8 minibatches"]
    assert np.mean(kept) == pytest.approx(entropies(512, 8))
    clipped = found["share of samples beyond the clip range until then"]["Breakout, 512 environments, 8 minibatches"]
    assert clipped == pytest.approx(kept)
    few, many = levels(64, 64), levels(4096, 64)
    (rate,) = found["checks"]["the plateau of Asterix is mostly that of the learning rate"]
    assert rate["above"] == pytest.approx((many - few) / 2) and rate["estimate"] == pytest.approx(30 - few)
    inner.draw(curves, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 10_000


def test_all_environments_and_minibatches_are_there_and_else_the_headlines():
    found = {key: [dict(run.flags) for run in of_one] for key, of_one in inner.cells().items()}
    sizes = set(itertools.product((64, 512, 4096), (1, 8, 64)))
    assert {key[1:] for key in found if key[0] == "Breakout"} == sizes
    for (game, num_envs, parts), of_one in found.items():
        assert [flags["seed"] for flags in of_one] == [0, 1, 2, 3, 4]
        for flags in of_one:
            args = ppo.Args(**flags)
            assert (args.env_id, args.num_envs, args.num_minibatches) == (f"{game}-MinAtar", num_envs, parts)
            assert args.num_steps == 32 and args.update_epochs == 4 and args.learning_rate == 1e-3
            assert args.sticky_actions == (0.0 if game == "Asterix" else 0.1)
            assert args.total_timesteps >= entropy.STEPS[game]
    for run in inner.slower():
        flags = dict(run.flags)
        usual = dict(inner.cell(("Asterix", 64, 64), flags["seed"]).flags)
        assert flags == usual | {"learning_rate": 1e-4}
    for size, parts in ((64, 1), (512, 8), (4096, 64)):
        assert inner.cell(("Breakout", size, parts), 3) == headline.cell(size, 3)
        assert inner.cell(("Asterix", size, parts), 3) == entropy.cell(("Asterix", size, 32), 3)


@pytest.mark.parametrize(
    "more, smaller, outcomes",
    [(12, 4, ["holds", "does not hold"]), (4, 12, ["does not hold", "holds"]), (6, 6, ["not enough data"] * 2)],
)
def test_a_resumed_policy_is_compared_with_the_same_seed_unchanged(more, smaller, outcomes, tmp_path):
    """Seeds differ by more than arms where both are 6."""
    spread = [c._replace(returns=c.returns + (-1) ** s * 0.5) for s, c in enumerate(flat(smaller))]
    arms = {
        resumed.UNCHANGED: flat(6),
        resumed.MORE: spread if more == smaller else flat(more),
        resumed.SMALLER: spread,
    }
    branches = {(game, arm): curves for game in resumed.PARTS for arm, curves in arms.items()}
    sources = dict.fromkeys(resumed.PARTS, flat(5))
    for found in resumed.judge(branches, sources).values():
        assert [check["outcome"] for check in found["checks"]] == outcomes
        assert found["mean"]["before"][0] == pytest.approx(5.2) and found["mean"][resumed.UNCHANGED][
            0
        ] == pytest.approx(6.2)
        assert found["of an update before, last tenth"]["entropy"] == pytest.approx([0.2] * 5)
    resumed.draw(branches, sources, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 10_000


def test_resumed_policies_start_where_their_runs_end():
    for (game, arm), of_one in resumed.cells().items():
        parts = {"Asterix": 64, "Breakout": 8}[game]
        for seed, run in enumerate(of_one):
            assert run.source == inner.cell((game, 64, parts), seed) and run.source_update == run.source.num_updates
            args, source = ppo.Args(**dict(run.flags)), ppo.Args(**dict(run.source.flags))
            assert args.env_id == source.env_id == f"{game}-MinAtar" and args.seed == seed
            assert args.sticky_actions == source.sticky_actions and args.num_envs == (
                4096 if arm == resumed.MORE else 64
            )
            assert args.clip_eps == (0.05 if arm == resumed.SMALLER else source.clip_eps)
            if game == "Asterix" or arm != resumed.MORE:
                assert args.num_minibatches == source.num_minibatches == parts
            if game == "Breakout":
                assert args.minibatch_size == source.minibatch_size == 256


def test_intervals_are_those_of_scipy():
    a, b = [1.0, 2.0, 4.0, 8.0], [0.5, 0.4, 0.6]
    ours, theirs = headline.interval(a), stats.ttest_1samp(a, 0).confidence_interval()
    assert ours == pytest.approx((np.mean(a), theirs.low, theirs.high))
    theirs = stats.ttest_ind(a, b, equal_var=False).confidence_interval()
    assert headline.difference(a, b) == pytest.approx((np.mean(a) - np.mean(b), theirs.low, theirs.high))


def test_a_line_without_a_value_leaves_the_others_in_step(tmp_path):
    lines = [
        {
            "update": 1,
            "global_step": 10,
            "charts/episodic_return": None,
            "outer/own_gain": 0.1,
            "outer/fresh_gain": None,
        },
        {"update": 1, "global_step": 10, "eval/episodic_return": 3.0},
        {"update": 2, "global_step": 20, "charts/episodic_return": 5.0, "outer/own_gain": 0.2, "outer/fresh_gain": 0.3},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = headline.curve(tmp_path)
    assert found.steps.tolist() == [10, 20] and found.own.tolist() == [0.1, 0.2]
    assert (found.mean("returns", 0, 20), found.mean("fresh", 10, 20), found.mean("own", 0, 20)) == pytest.approx(
        (5, 0.3, 0.15)
    )


def test_the_branch_starts_at_half_of_its_source_and_ends_where_the_others_do():
    branch = headline.branch(3)
    flags = dict(branch.flags)
    assert branch.source == headline.cell(64, 3) and flags["num_envs"] == 4096 and flags["seed"] == 3
    assert branch.source_update * 64 * 32 == headline.HALF and branch.source_update * 2 == branch.source.num_updates
    assert branch.num_updates * 4096 * 32 + headline.HALF == headline.STEPS
    assert len({run.name for runs in headline.cells().values() for run in runs}) == 50


# Controllers


def drive(auto, rows, com=8.0):
    """COM after each update, whose returns, fresh and own gains are `rows`."""
    args, state, found = SimpleNamespace(update_epochs=1, num_minibatches=8), auto.start(com), []
    for episodic_return, fresh, own in rows:
        metrics = {"charts/episodic_return": episodic_return, "outer/fresh_gain": fresh, "outer/own_gain": own}
        state = auto.decide(state, args, {key: jnp.float32(value) for key, value in metrics.items()})
        found.append(float(state.com))
    return found


def test_com_grows_where_nothing_is_gained_and_the_return_stands_still():
    rng = np.random.default_rng(0)
    auto = controllers.Auto(window=8, factor=2.0, rest=2.0)
    still = [(5 + 0.1 * (-1) ** t, 1e-4 * (-1) ** t, 0.01) for t in range(30)]
    # 8 updates of a window, 2 x 16 / 8 = 4 of a pause; 8 and 2 x 32 / 8 = 8; 2 of a window.
    assert drive(auto, still) == [8] * 7 + [16] * 12 + [32] * 11
    climbing = [(float(t), 1e-4 * rng.normal(), 0.01) for t in range(30)]
    assert drive(auto, climbing) == [8] * 30
    gaining = [(5 + 0.1 * (-1) ** t, 0.005 + 1e-4 * rng.normal(), 0.01) for t in range(30)]
    assert drive(auto, gaining) == [8] * 7 + [4] * 9 + [2] * 9 + [1] * 5
    assert drive(auto._replace(signal=0.6), gaining) == [8] * 30
    unknown = [(np.nan, -0.01, 0.01)] * 30  # no episode has ended: nothing is known of the return
    assert drive(auto, unknown) == [8] * 30


def test_the_harness_with_fixed_values_is_the_script(monkeypatch):
    """The same seeds through ppo_ewma.py's own step: equal up to the rounding of two logarithms."""
    flags = "--env-id Pendulum-v1 --num-envs 8 --num-steps 200 --minibatch-size 400 --hidden-sizes 8 --update-epochs 2"
    found = controllers.train(flags, 4800, "fixed", 16.0, 3, 2)
    words = f"{flags} --total-timesteps 4800 --seed 3 --num-seeds 2 --num-devices 1 --com 16".split()
    _, _, _, init, step, _, keys = ppo_ewma.build(parse(ppo_ewma.Args, "", words))
    state = init(keys)
    for row in range(3):
        state, metrics, _ = step(state)
        for name, key in (("return", "charts/episodic_return"), ("own", "outer/own_gain"), ("kl", "outer/kl")):
            np.testing.assert_allclose(found[name][row], metrics[key], rtol=2e-3, atol=1e-6)
    annealed = controllers.train(flags, 4800, "anneal eps", 16.0, 3, 2)
    np.testing.assert_allclose(annealed["clip_eps"], 0.2 * np.array([[1, 1], [2 / 3] * 2, [1 / 3] * 2]), rtol=1e-6)
    assert not np.allclose(annealed["kl"][2], found["kl"][2], rtol=1e-3)


def test_rates_follow_the_kl_and_the_budget():
    args = replace(parse(ppo_ewma.Args, "", []), learning_rate=1e-3)
    rate, choose, after = controllers.rule("kl", (8.0, 0.01), args)
    for kl, factor in ((0.021, 1 / 1.5), (0.019, 1), (0.006, 1), (0.004, 1.5)):
        assert float(after(rate, {"outer/kl": jnp.float32(kl)})) == pytest.approx(1e-3 * factor)
    assert choose(rate, 0).com == 8.0
    _, choose, _ = controllers.rule("anneal com", (8.0, 512.0), args)
    assert [float(choose((), args.num_updates * x).com) for x in (0, 0.5, 1)] == pytest.approx([8, 64, 512])
    _, choose, _ = controllers.rule("anneal lr", 8.0, args)
    assert float(choose((), args.num_updates / 4).learning_rate) == pytest.approx(0.75e-3)


def test_a_controller_is_compared_with_the_best_fixed_com_at_the_shortest_run_that_has_the_budget():
    """Returns rise by 1 per update from 0, but for those of COM 64 in the long run, which stay at 10."""
    x = np.arange(100.0)[:, None] + np.arange(3)
    runs = {"fixed COM 8": {100: {"return": x / 2}, 400: {"return": x / 4}}}
    runs["fixed COM 64"] = {100: {"return": x}, 400: {"return": 0 * x + 10}}
    runs["auto"] = {100: {"return": 0.9 * x}, 400: {"return": x}}
    found = controllers.judge(controllers.Task("", (50, 100, 200), -1.0, (8.0, 64.0)), runs)
    assert [found[budget]["best fixed"] for budget in ("50", "100", "200")] == [
        "fixed COM 64",
        "fixed COM 64",
        "fixed COM 8",
    ]
    # The last tenth of the first half of 100 updates: 45 to 49, of 200 of 400 steps likewise.
    assert found["50"]["per seed"]["fixed COM 64"] == pytest.approx([47, 48, 49])
    assert found["100"]["per seed"]["auto"] == pytest.approx([0.9 * 94.5, 0.9 * 95.5, 0.9 * 96.5])
    assert found["200"]["per seed"]["auto"] == pytest.approx([47, 48, 49])
    assert found["50"][controllers.SHARE] == pytest.approx((0.9 * 48 + 1) / (48 + 1))
    assert [found[budget]["within 5 %"] for budget in ("50", "100", "200")] == [False, False, True]
    near = {"fixed COM 8": {100: {"return": x}}, "auto": {100: {"return": 0.9496 * x}}}
    assert controllers.judge(controllers.Task("", (100,), -1.0, (8.0,)), near)["100"]["within 5 %"]  # from -1
    near["auto"] = {100: {"return": 0.949 * x}}
    assert not controllers.judge(controllers.Task("", (100,), -1.0, (8.0,)), near)["100"]["within 5 %"]


def test_the_runs_with_more_bonus_are_otherwise_those_of_the_figures():
    runs, a = exploration.cells(), paper_a_runs
    assert runs["com", 8.0, False] == a.com_cells(a.PRESETS["breakout"])[8.0]
    assert runs["clip_eps", 0.1, False] == a.eps_cells(a.PRESETS["breakout"])[0.1]
    for (name, value, bonus), run in runs.items():
        flags = dict(run.flags)
        assert flags[name] == value and flags.get("ent_coef") == (0.05 if bonus else None)
        assert flags | {"ent_coef": 0.05} == dict(runs[name, value, True].flags)
    assert ppo.Args().ent_coef == ppo_ewma.Args().ent_coef == 0.01


@pytest.mark.parametrize(
    "experiment", [headline, entropy, stuck, inner, resumed, minibatches, clip, longer, rollouts, usual]
)
def test_an_experiment_writes_what_it_found_how_and_most_a_picture(experiment, monkeypatch, tmp_path):
    name = experiment.__name__.removeprefix("experiments.")
    monkeypatch.setattr(headline, "made", lambda *_: True)
    x = np.linspace(0, longer.STEPS if experiment in (longer, rollouts) else headline.STEPS, 1025)[1:]
    of_any = headline.Curve(x, 100 * x / x[-1], *np.full((6, 1024), 0.5))
    monkeypatch.setattr(headline, "curve", lambda run: of_any)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    experiment.main(headline.Args())
    experiment.main(headline.Args(out=tmp_path / "other.json"))
    if experiment not in (minibatches, clip, usual):
        assert (tmp_path / f"results/{name}.png").stat().st_size > 10_000 and (tmp_path / "other.png").exists()
    written, stored = (
        json.loads((folder / f"{name}.json").read_text()) for folder in (tmp_path / "results", ROOT / "results")
    )
    assert written.keys() == stored.keys() and written["commands"].keys() == stored["commands"].keys()
    run = next(iter(written["commands"].values()))
    assert run.startswith("python ppo.py --env-id") and "--runs-dir runs/headline" in run
    # Returns rise by 100 over 25.2M steps, so the last tenth says how many steps a run was taken to have.
    ends = written.get("return, last tenth") or {g: written[g]["return, last tenth"] for g in ("Breakout", "Asterix")}
    whole = ("headline", "longer", "rollouts")  # whose last tenth is that of all these steps
    short = {"resumed": 4.2}.get(name, 8.4)  # million steps of what is not on Breakout
    for of, found in ends.items():
        steps = (
            25.2 if name in whole else short if name == "usual" or of.startswith(("SpaceInvaders", "Asterix")) else 12.6
        )
        for arm, seeds in found.items() if isinstance(found, dict) else [(of, found)]:
            late = 97.5 if (name, arm) == ("stuck", "unchanged") else 95 * steps / 25.2  # it began at the half
            assert seeds == pytest.approx([late] * len(seeds), abs=0.1)


def test_an_experiment_says_what_it_would_run(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    entropy.main(headline.Args(dry_run=True))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == sum(map(len, entropy.cells().values())) and all("python ppo.py" in line for line in lines)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "levels, outcome, changes",
    [((110, 9), "holds", True), ((110, 7), "not enough data", True), ((80, 9), "does not hold", False)],
)
def test_eight_minibatches_are_compared_with_one_on_the_other_games(levels, outcome, changes):
    """One: 95 and 7, of seed s a tenth of it more."""
    curves = {game: flat(level, entropy.STEPS[game]) for game, level in zip(minibatches.GAMES, levels, strict=True)}
    curves = {game: [c._replace(clipfrac=0.1 + 0 * c.steps) for c in of_one] for game, of_one in curves.items()}
    one = {"SpaceInvaders": 95, "Asterix": 7}
    stored = {
        inner.spelled((game, 64, parts)): [level + 0.1 * s for s in range(5)]
        for game, level in one.items()
        for parts in (1, 64)
    }
    found = minibatches.judge(curves, stored)
    assert found["8 minibatches are better than 1"] == outcome and found["the default changes"] == changes
    assert np.allclose(found["share of samples beyond the clip range until then"]["SpaceInvaders"], 0.1)
    check = found["checks"]["SpaceInvaders, return, 8 less 64 minibatches"]
    assert check["estimate"] == pytest.approx(levels[0] - 95) and check["outcome"] == "reported"


def test_eight_minibatches_are_else_as_one_and_sixty_four():
    for game, of_one in minibatches.cells().items():
        for seed, run in enumerate(of_one):
            flags, other = dict(run.flags), dict(inner.cell((game, 64, 64), seed).flags)
            assert flags == other | {"num_minibatches": 8}


def test_unclipped_runs_differ_by_the_clip_only():
    of = {arm: [dict(run.flags) for run in runs] for arm, runs in clip.cells().items()}
    assert [flags["seed"] for flags in of["clipped"]] == [0, 1, 2, 3, 4]
    assert [flags | {"clip_eps": 1e6} for flags in of["clipped"]] == of["unclipped"]
    usual = [dict(inner.cell(("Breakout", 64, 8), seed).flags) for seed in range(5)]
    assert of["clipped"] == [flags | {"clip_vloss": False} for flags in usual]


@pytest.mark.parametrize(
    "kept, level, outcomes, reached",
    [(0.1, 6, ["holds", "holds"], 5), (0.1, 12, ["holds", "does not hold"], 5), (0.3, 6, ["does not hold", "holds"], 5),
     (0.1, 3, ["holds", "holds"], 0)],
)  # fmt: skip
def test_runs_without_the_clip_are_judged(kept, level, outcomes, reached):
    """Clipped: an entropy of 0.3 and a return of 12. With both clips 0.1 and 0.2, so that the bar is 0.05."""
    runs = {"clipped": flat(12, headline.HALF), "unclipped": flat(level, headline.HALF)}
    entropies = {"clipped": 0.3, "unclipped": kept}
    curves = {
        arm: [
            c._replace(entropy=entropies[arm] + 0.001 * seed + 0 * c.steps, kl=c.steps, weight_norm=c.steps)
            for seed, c in enumerate(of_one)
        ]
        for arm, of_one in runs.items()
    }
    names = [inner.spelled(("Breakout", 64, m)) for m in (1, 8)]
    found = clip.judge(
        curves, {what: dict(zip(names, ([0.1] * 5, [0.2] * 5), strict=True)) for what in (clip.ENTROPY, clip.ENDS)}
    )
    assert [check["outcome"] for check in found["checks"].values()] == [*outcomes, "reported"]
    assert found["seeds that reach the level"] == {"clipped": 5, "unclipped": reached}
    assert found["checks"]["the clip keeps the entropy"]["above"] == pytest.approx(0.05)
    assert found["entropy when the return first reaches the level"]["unclipped"] == pytest.approx(
        [kept + 0.001 * s for s in range(5)]
    )


# A hundred million steps


def long_runs(**growth):
    """Seed s of 64 and 4,096 environments ends its first half at 10 and 20, and then grows by 0 and 30 % of that, or by
    what growth says. Only the latter gain on fresh transitions, 0.004; on their own all gain 0.01."""
    steps = np.linspace(0, longer.STEPS, 1025)[1:]
    runs = {}
    for n, level, more in ((64, 10, 0.0), (4096, 20, 0.3)):
        late = np.maximum(2 * steps / longer.STEPS - 1, 0)
        rise = np.minimum(2 * steps / longer.STEPS, 1) * level
        fresh = np.full(1024, 0.0 if n == 64 else 0.004)
        runs[n] = [
            headline.Curve(
                steps, rise * (1 + (growth.get(f"n{n}", more) + 0.001 * s) * late), 0 * fresh + 0.01, fresh, fresh
            )
            for s in range(5)
        ]
    return runs


@pytest.mark.parametrize(
    "growth, outcomes",
    [
        ({}, ["holds", "holds", "holds"]),
        ({"n64": 0.2}, ["does not hold", "holds", "holds"]),
        ({"n64": -0.3}, ["does not hold", "holds", "holds"]),
        ({"n4096": 0.0}, ["holds", "not enough data", "holds"]),
        ({"n4096": -0.1}, ["holds", "does not hold", "holds"]),
        ({"n64": 1.8}, ["does not hold", "does not hold", "does not hold"]),
        ({"n64": 1.5}, ["does not hold", "does not hold", "does not hold"]),  # 4,096 end 8 % higher
    ],
)
def test_a_hundred_million_steps_are_judged(growth, outcomes):
    found = longer.judge(long_runs(**growth))
    assert list(found["outcomes"].values()) == outcomes
    refuted, held = "does not hold" in outcomes, outcomes == ["holds"] * 3
    assert found["hypothesis"] == ("does not hold" if refuted else "holds" if held else "not enough data")


def windows(third, fourth, late, s=0.0):
    """Returns in these parts of the steps, from .5 to .75 to .9 to the end, and 99 before, which must not count."""
    x = np.linspace(0, 100_663_296, 4001)[1:]
    part = x / x[-1]
    returns = np.select([part <= 0.5, part <= 0.75, part <= 0.9], [99.0, third, fourth * (1 + s)], late * (1 + s))
    return headline.Curve(x, returns, x, x, x)


@pytest.mark.parametrize(
    "small, large, outcomes",
    [
        # The last quarter is (.15 x the fourth + .1 x the last) / .25.
        ((10, 10.4, 10.4), (10, 11, 11.9), ["holds", "holds", "holds"]),
        ((10, 10.6, 10.6), (10, 12, 12), ["does not hold", "holds", "holds"]),
        ((10, 9.6, 9.6), (10, 9.7, 10.9), ["holds", "holds", "holds"]),
        ((10, 9.4, 9.4), (10, 9.7, 10.9), ["does not hold", "holds", "holds"]),
        ((10, 8, 13), (10, 10.1, 14.2), ["holds", "holds", "does not hold"]),
        ((10, 8, 13), (10, 10.1, 14.4), ["holds", "holds", "holds"]),
        ((10, 10.4, 10.4), (10, 10.3, 11.5), ["holds", "holds", "holds"]),
        ((10, 10.4, 10.4), (10, 9.5, 11.5), ["holds", "does not hold", "holds"]),
    ],
)
def test_a_hundred_million_steps_are_judged_by_their_windows_and_margins(small, large, outcomes):
    spread = 0.0002 * np.arange(-2, 3)
    found = longer.judge({64: [windows(*small, s) for s in spread], 4096: [windows(*large, s) for s in spread]})
    assert list(found["outcomes"].values()) == outcomes
    assert found["mean"][64].mean == pytest.approx(small[2], rel=1e-3)
    estimate, low, high = found["return, 4096 environments less 1.1 × that of 64"]
    ours = stats.ttest_ind(found["return, last tenth"][4096], 1.1 * found["return, last tenth"][64], equal_var=False)
    interval = ours.confidence_interval(0.95)
    assert (low, high) == pytest.approx((interval.low, interval.high)) and estimate == pytest.approx((low + high) / 2)


@pytest.mark.parametrize(
    "many, long, few, outcomes",
    [
        (50, 48, 30, ["holds", "holds"]),
        (48, 50, 30, ["does not hold", "holds"]),
        (48, 48, 30, ["not enough data", "holds"]),
        (50, 33.2, 30, ["holds", "holds"]),
        (50, 33, 30, ["holds", "not enough data"]),
        (50, 32.8, 30, ["holds", "does not hold"]),
    ],
)
def test_environments_and_rollouts_are_judged_by_the_last_tenth_and_a_tenth_more(many, long, few, outcomes):
    levels = {"4096 × 32": many, "64 × 2048": long, "64 × 32": few}
    spread = 0.0002 * np.arange(-2, 3)
    found = rollouts.judge({name: [windows(10, 10, level, s) for s in spread] for name, level in levels.items()})
    assert list(found["outcomes"].values()) == outcomes
    assert [found["mean"][name].mean for name in levels] == pytest.approx([many, long, few], rel=1e-3)


def test_rollouts_have_the_transitions_and_minibatches_of_many_environments():
    many, long, few = rollouts.cells().values()
    for seed, a, b, c in zip((20, 21, 22, 23, 24), many, long, few, strict=True):
        flags = [{"num_steps": 32} | dict(cell.flags) for cell in (a, b, c)]
        assert [(f["num_envs"], f["num_steps"], f["num_minibatches"]) for f in flags] == [
            (4096, 32, 64), (64, 2048, 64), (64, 32, 8)
        ]  # fmt: skip
        for f, cell in zip(flags, (a, b, c), strict=True):
            assert f["total_timesteps"] == f["num_envs"] * f["num_steps"] * cell.num_updates == 100_663_296
            assert (f["seed"], f["env_id"], f["sticky_actions"]) == (seed, "Breakout-MinAtar", 0.1)
        one, other = ({k: v for k, v in f.items() if k not in ("num_envs", "num_steps")} for f in flags[:2])
        assert one | {"log_every": 0} == other | {"log_every": 0}
    assert [many, few] == [longer.cells()[4096], longer.cells()[64]]


@pytest.mark.parametrize(
    "end, growth, outcomes",
    [
        (3.0, 0.0, ["holds", "holds"]),
        (3.0, 0.045, ["holds", "holds"]),
        (3.0, 0.055, ["holds", "does not hold"]),
        (3.0, -0.055, ["holds", "does not hold"]),
        (6.1, 0.0, ["does not hold", "holds"]),
        (6.0, 0.0, ["not enough data", "holds"]),
    ],
)
def test_the_usual_inner_loop_is_judged(end, growth, outcomes):
    """Beside runs that end at 6."""
    spread, x = 0.0002 * np.arange(-2, 3), np.linspace(0, usual.LAST, 4001)[1:]
    part = x / usual.LAST

    def run(level, grown, s):
        late = level * (1 + s)
        third = (0.15 * 9 + 0.1 * late) / 0.25 / (1 + grown)  # of the last quarter .15 has 9, .1 the last tenth's level
        returns = np.select([part <= 0.5, part <= 0.75, part <= 0.9], [99.0, third, 9.0], late)
        return headline.Curve(x, returns, x, x, x, x, x, x)

    arms = {usual.USUAL: (end, growth), usual.DEFAULT: (6.0, 0.3)}
    found = usual.judge({arm: [run(*how, s) for s in spread] for arm, how in arms.items()})
    assert list(found["outcomes"].values()) == outcomes
    assert found["mean"][usual.USUAL].mean == pytest.approx(end, rel=1e-3)


def test_the_usual_inner_loop_has_320_gradient_steps_in_minibatches_of_64():
    for runs, size, steps in zip(usual.cells().values(), (64, 256), (320, 32), strict=True):
        for seed, run in zip((20, 21, 22, 23, 24), runs, strict=True):
            args = ppo.Args(**dict(run.flags))
            assert (args.minibatch_size, args.update_epochs * args.num_minibatches) == (size, steps)
            assert (args.env_id, args.seed, args.learning_rate) == ("Asterix-MinAtar", seed, 3e-4)
            assert run.num_updates * 2048 == args.total_timesteps == 8_388_608


def test_what_is_not_known_of_every_seed_has_no_interval():
    assert np.isfinite(headline.interval([1.0, 2.0, 3.0])).all()
    mean, low, high = headline.interval([1.0, 2.0, np.nan])
    assert mean == 1.5 and np.isnan([low, high]).all()


def test_a_hundred_million_steps_have_the_minibatches_of_the_defaults():
    for n, runs in longer.cells().items():
        for seed, run in zip((20, 21, 22, 23, 24), runs, strict=True):
            flags = dict(run.flags)
            args = ppo.Args(**{name: value for name, value in flags.items() if name != "num_minibatches"})
            assert args.num_minibatches == flags["num_minibatches"] and args.seed == seed and args.num_envs == n
            assert args.num_envs * args.num_steps * run.num_updates == args.total_timesteps == 100_663_296
            changed = {name for name in flags if getattr(ppo.Args(), name) != flags[name]}
            settings = {"sticky_actions", "num_envs", "num_minibatches", "total_timesteps", "seed"}
            assert changed <= settings | {"num_eval_episodes", "log_every", "checkpoint_every"}


def test_curves_of_a_hundred_million_steps_are_kept_and_drawn(monkeypatch, tmp_path):
    monkeypatch.setattr(headline, "made", lambda *_: True)
    monkeypatch.setattr(headline, "curve", lambda run: long_runs()[64][0])
    longer.main(headline.Args(out=tmp_path / "x.json"))
    kept = json.loads((tmp_path / "x.json").read_text())["curves"]
    assert kept["returns"]["4096"][4] == pytest.approx([min(2 * (i + 0.5) / 64, 1) * 10 for i in range(64)], abs=0.02)
    longer.draw(kept, {"64": ("few", 0.0, "-"), "4096": ("many", 0.8, "--")}, tmp_path / "again.png")
    assert all((tmp_path / name).stat().st_size > 10_000 for name in ("x.png", "again.png"))


# 65,536 environments


@pytest.mark.parametrize(
    "half, end, many, outcomes",
    [
        (20, 30, 29.9, ["holds", "holds"]),
        (20, 30, 30.1, ["does not hold", "holds"]),
        (20, 30, 30, ["not enough data", "holds"]),
        (29.9, 30, 29, ["holds", "holds"]),
        (30.1, 30, 29, ["holds", "does not hold"]),
    ],
)
def test_65536_environments_are_judged_by_their_policies(half, end, many, outcomes):
    """Returns in training are 99 throughout and must not count. The policies of each seed gain the same, though where
    the ends are equal seeds differ by more than that: only seed by seed it is seen that they go on."""
    x = np.linspace(0, wider.STEPS, 257)[1:]
    runs = [headline.Curve(x, 99 + 0 * x, x, x, x)] * 5
    spread, seeds = 0.001 * np.arange(-2, 3), 30 * np.arange(-2, 3) * (end == many)
    returns = {
        wider.MOST: {"half": half + spread + seeds, "end": end + 2 * spread + seeds},
        wider.MANY: {"half": many - 5 + spread, "end": many + spread},
    }
    found = wider.judge({name: runs for name in returns}, returns)
    assert list(found["outcomes"].values()) == outcomes
    for name, when, mean in (
        (wider.MOST, "half", half), (wider.MOST, "end", end), (wider.MANY, "half", many - 5), (wider.MANY, "end", many),
    ):  # fmt: skip
        assert found["mean"][when][name].mean == pytest.approx(mean)
    assert found["end less half"][wider.MANY].mean == pytest.approx(5)
    gap = stats.ttest_ind(returns[wider.MANY]["half"], returns[wider.MOST]["half"], equal_var=False)
    low, high = gap.confidence_interval()
    assert found["return, 4096 × 32 less 65536 × 4, half"] == pytest.approx((many - 5 - half, low, high))


def test_65536_environments_differ_from_4096_by_the_rollout_alone(tmp_path):
    most, many, same = wider.cells().values()
    for seed, a, b in zip((30, 31, 32, 33, 34), most, many, strict=True):
        args = [ppo.Args(**dict(run.flags)) for run in (a, b)]
        assert [(x.num_envs, x.num_steps, x.num_minibatches) for x in args] == [(65536, 4, 128), (4096, 32, 64)]
        for x, run in zip(args, (a, b), strict=True):
            assert x.num_envs * x.num_steps * run.num_updates == x.total_timesteps == 2**26
            assert (x.minibatch_size, x.seed, x.sticky_actions) == (2048, seed, 0.1)
            assert run.num_updates % 2 == 0 and run.num_updates // 2 == x.checkpoint_every
        assert len({x.num_updates * x.update_epochs * x.num_minibatches for x in args}) == 1
    for a, b in zip(most[:2], same, strict=True):
        one, other = (ppo.Args(**dict(run.flags)) for run in (a, b))
        assert replace(one, num_envs=8192, num_steps=32) == other and a.num_updates == b.num_updates
    played = wider.evaluations(wider.cells(), tmp_path)[wider.MOST]
    half, end = (grid.command(played[when][0], tmp_path) for when in ("half", "end"))
    assert half[2:4] == ["--evaluate", f"{tmp_path / most[0].name}@128"] and f"{tmp_path / most[0].name}@256" in end
    assert half[4:6] == ["--num-eval-episodes", "1024"]


def test_the_policies_of_65536_environments_are_kept_and_drawn(monkeypatch, tmp_path):
    """From summaries as runs write them. Each curve is another multiple of the share of the steps."""
    monkeypatch.setattr(headline, "made", lambda *_: True)
    part = np.linspace(0, 1, 1025)[1:]
    returns, own, fresh, entropy = (times * part for times in (1, 2, 3, 4))
    of_any = headline.Curve(part * wider.STEPS, returns, own, fresh, entropy)
    monkeypatch.setattr(headline, "curve", lambda run: of_any)
    runs = wider.cells()
    for of in wider.evaluations(runs, tmp_path).values():
        for cell in [*of["half"], *of["end"]]:
            (tmp_path / cell.name).mkdir()
            line = {"update": cell.num_updates, "global_step": 0, "eval/episodic_return": [float(cell.num_updates)]}
            (tmp_path / cell.name / "metrics.jsonl").write_text(json.dumps(line) + "\n")
            (tmp_path / cell.name / "summary.json").write_text(json.dumps(plots.summarize(tmp_path / cell.name)))
    drawn = {}
    monkeypatch.setattr(longer, "draw", lambda *of: drawn.update(zip(("curves", "lines", "out", "dots", "steps"), of)))  # noqa: B905
    wider.main(headline.Args(runs_dir=tmp_path, out=tmp_path / "x.json"))
    kept = json.loads((tmp_path / "x.json").read_text())
    assert kept["return of the policy"] == {
        wider.MOST: {"half": [128.0] * 5, "end": [256.0] * 5},
        wider.MANY: {"half": [256.0] * 5, "end": [512.0] * 5},
        wider.SAME: {"half": [128.0] * 2, "end": [256.0] * 2},
    }
    for key, share, times in (
        ("return in training, last tenth", 0.95, 1),
        ("entropy, last half", 0.75, 4),
        ("own, last half", 0.75, 2),
        ("fresh, last half", 0.75, 3),
    ):
        values = kept["gains"][key] if key in kept["gains"] else kept[key]
        assert values[wider.MOST] == values[wider.MANY] == pytest.approx([times * share] * 5, abs=0.005)
        assert values[wider.SAME] == values[wider.MOST][:2]
    assert kept["curves"]["returns"][wider.MANY][0][-1] == pytest.approx(63.5 / 64, abs=0.005)
    (commits,) = kept["rules were committed in"].values()
    assert commits and kept["runs"] == {"started": [], "commits": []}
    assert drawn["steps"] == 2**26 and drawn["lines"].keys() == runs.keys() and drawn["out"] == tmp_path / "x.png"
    for name, first in ((wider.MOST, 128), (wider.MANY, 256)):
        (half, at_half), (end, at_end) = drawn["dots"][name]
        assert (half, end) == (2**25, 2**26) and (at_half == first).all() and (at_end == 2 * first).all()


def test_a_picture_of_runs_has_their_steps_and_the_policies(monkeypatch, tmp_path):
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    curves = {key: {"a": np.ones((5, longer.PARTS))} for key in longer.DRAWN}
    longer.draw(curves, {"a": ("some", 0.0, "-")}, tmp_path / "x.png", {"a": [(2**26, np.arange(5.0))]}, 2**26)
    axes = figures[0].axes[0]
    assert max(line.get_xdata().max() for line in axes.lines if len(line.get_xdata()) == longer.PARTS) < 67.2
    (dots,) = [line for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata())]
    assert dots.get_xdata() == pytest.approx([67.108864] * 5) and list(dots.get_ydata()) == [0, 1, 2, 3, 4]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["some", "policies, in new episodes"]


def test_an_evaluation_of_other_episodes_is_another_run(monkeypatch, tmp_path):
    names = lambda: [c.name for of in wider.evaluations(wider.cells(), tmp_path).values() for c in of["end"]]  # noqa: E731
    before = names()
    monkeypatch.setattr(wider, "EPISODES", 512)
    assert not {*before} & {*names()} and len({*before}) == 12
    assert f"--num-envs {wider.ENVS} --num-steps {wider.NUM_STEPS}" in (ROOT / "README.md").read_text()


# README's two rules in continuous control

CONTROL = dict(zip(control.ARMS, (100.0, 200.0, 50.0, 150.0, 120.0), strict=True))  # the ends of runs that obey them


def control_runs(growth=0.0, **ends):
    """Runs of all tasks that end at these levels. Those of MANY grew by so much before, the others by 0.3."""
    levels, spread = CONTROL | ends, 1e-4 * np.arange(-2, 3)
    x = np.linspace(0, 1, 4001)[1:]

    def run(level, steps, grown, s):
        late = level * (1 + s)
        fourth = (0.15 * 9 + 0.1 * late) / 0.25  # 9, and the level in the last tenth
        returns = np.select([x <= 0.5, x <= 0.75, x <= 0.9], [99.0, fourth / (1 + grown), 9.0], late)
        return headline.Curve(x * steps, returns, 2 * x, 3 * x, 4 * x, kl=5 * x)

    return {
        task: {
            arm: [run(level, steps, growth if arm == control.MANY else 0.3, s) for s in spread]
            for arm, level in levels.items()
        }
        for task, steps in control.STEPS.items()
    }


@pytest.mark.parametrize(
    "changed, outcomes",
    [
        ({}, ["holds", "holds", "holds", "holds", "holds"]),
        ({control.SOME: 99.0}, ["does not hold", "holds", "holds", "holds", "holds"]),
        ({control.SOME: 100.0}, ["not enough data", "holds", "holds", "holds", "holds"]),
        ({control.MANY: 201.0}, ["holds", "does not hold", "holds", "does not hold", "holds"]),
        ({control.MORE: 1.0}, ["holds", "holds", "holds", "holds", "holds"]),  # only its policies count
        ({control.SLOW: 49.0}, ["holds", "holds", "holds", "does not hold", "holds"]),
        ({"growth": 0.045}, ["holds", "holds", "holds", "holds", "holds"]),
        ({"growth": 0.055}, ["holds", "holds", "holds", "holds", "does not hold"]),
        ({"growth": -0.055}, ["holds", "holds", "holds", "holds", "does not hold"]),
    ],
)
def test_the_rules_are_judged_in_continuous_control(changed, outcomes):
    spread = 0.01 * np.arange(-2, 3)
    policies = {task: {arm: 80.0 + (arm == control.MORE) + spread for arm in control.ARMS} for task in control.STEPS}
    found = control.judge(control_runs(**changed), policies)
    for task in ("on all", *control.STEPS):
        assert [of[task] for of in found["outcomes"].values()] == outcomes
    for task in control.STEPS:
        assert found["of an update, last tenth"]["kl"][task][control.FEW] == pytest.approx([4.75] * 5, abs=0.01)
        assert found["mean"]["return of the policy at the end"][task][control.MORE].mean == pytest.approx(81)
        ends = found["mean"]["return, last tenth"][task]
        assert ends[control.MORE].mean == pytest.approx((CONTROL | changed)[control.MORE], rel=1e-3)


def test_more_environments_are_judged_by_their_policies_in_continuous_control():
    policies = {task: {arm: np.array([7.0, 8, 9, 8, 8]) for arm in control.ARMS} for task in control.STEPS}
    task = "brax/halfcheetah"
    policies[task][control.MORE] = np.array([3.0, 5, 4, 4, 5])
    found = control.judge(control_runs(), policies)
    claim = "with 256, more environments end higher"
    assert list(found["outcomes"][claim].values()) == [
        "does not hold",
        "not enough data",
        "not enough data",
        "does not hold",
    ]
    (check,) = found["checks"][claim][task]
    gap = stats.ttest_ind(policies[task][control.MORE], policies[task][control.MANY], equal_var=False)
    assert (check["low"], check["high"]) == pytest.approx(tuple(gap.confidence_interval()))


def test_the_arms_of_continuous_control_are_those_of_the_rules():
    wanted = [(64, 2048, 4, 1e-3), (64, 256, 32, 1e-3), (64, 32, 256, 1e-3), (512, 256, 256, 1e-3), (64, 32, 256, 1e-4)]
    for task, arms in control.cells().items():
        for (envs, size, steps, rate), runs in zip(wanted, arms.values(), strict=True):
            for seed, run in zip((20, 21, 22, 23, 24), runs, strict=True):
                args = ppo.Args(**dict(run.flags))
                assert (args.num_envs, args.minibatch_size, args.learning_rate) == (envs, size, rate)
                assert args.update_epochs * args.num_minibatches == steps and args.seed == seed and args.env_id == task
                assert args.num_envs * args.num_steps * run.num_updates == args.total_timesteps == control.STEPS[task]
                assert (args.norm_obs, args.norm_reward, args.ent_coef, args.stagger_resets) == (True, True, 0.0, 1000)


def test_the_runs_of_continuous_control_are_kept_and_drawn(monkeypatch, tmp_path):
    """From summaries as runs write them."""
    from matplotlib.figure import Figure

    figures, random = [], {task: float(i) for i, task in enumerate(control.STEPS)}
    monkeypatch.setattr(headline, "made", lambda *_: True)
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    monkeypatch.setattr(control, "random_returns", lambda task, episodes: np.full(episodes, random[task]))
    of_runs = control_runs()
    for arms in control.cells().values():
        for arm, cells in arms.items():
            for cell in cells:
                (tmp_path / cell.name).mkdir()
                line = {"update": cell.num_updates, "global_step": 0, "eval/episodic_return": [CONTROL[arm]]}
                (tmp_path / cell.name / "metrics.jsonl").write_text(json.dumps(line) + "\n")
                (tmp_path / cell.name / "summary.json").write_text(json.dumps(plots.summarize(tmp_path / cell.name)))
    monkeypatch.setattr(
        headline, "curves", lambda args, runs: next(of_runs[t] for t, of in control.cells().items() if of == runs)
    )
    control.main(headline.Args(runs_dir=tmp_path, out=tmp_path / "x.json"))
    kept = json.loads((tmp_path / "x.json").read_text())
    assert kept["return of random actions"] == random and len(kept["commands"]) == 15
    (commits,) = kept["rules were committed in"].values()
    assert commits
    for panel, task in zip(figures[0].axes, control.STEPS, strict=True):
        assert kept["return of the policy at the end"][task] == {arm: [end] * 5 for arm, end in CONTROL.items()}
        lines = {line.get_label(): line.get_ydata() for line in panel.lines}
        assert all(lines[arm][-1] == pytest.approx(end, rel=1e-3) for arm, end in CONTROL.items())
        assert list(lines[f"policy of {control.MORE}"]) == [CONTROL[control.MORE]] * 5
        assert lines["random actions"][0] == random[task]


# What stayed undecided on Pendulum


def test_what_stayed_undecided_is_asked_of_new_seeds_alone():
    runs, before = again.cells(), paper_a_runs.PRESETS["laptop"]
    for name, cells, count in (("5b", "eps_cells", 35), ("12", "grid_cells", 35), ("9", "recipe_cells", 30)):
        earlier = getattr(paper_a_runs, cells)(before)
        for key, run in runs[name].items():
            flags, old = dict(run.flags), dict(earlier[key].flags)
            assert (flags.pop("seed"), flags.pop("num_seeds")) == (40, count)
            assert old.pop("seed") + old.pop("num_seeds") <= 40 and flags == old
    assert {dict(run.flags)["num_envs"] for run in runs["9"].values()} == {4}


@pytest.mark.parametrize(
    "changed, verdicts",
    [
        ({}, ["holds"] * 3),
        ({"gain, 5b, 0.6": 0.06}, ["does not hold", "holds", "holds"]),
        ({"gain, 5b, 0.6": 0.04}, ["holds"] * 3),
        ({"final, 5b, 0.6": 0.91}, ["does not hold", "holds", "holds"]),
        ({"final, 12, (8.0, 0.02)": 0.81}, ["holds", "does not hold", "holds"]),
        ({"final, 12, (8.0, 0.02)": 0.83}, ["holds"] * 3),
        ({"final, 9, larger-minibatches": 0.81}, ["holds", "holds", "does not hold"]),
        ({"final, 9, larger-minibatches": 0.79}, ["holds"] * 3),
    ],
)
def test_what_stayed_undecided_is_judged_by_the_margins_of_its_figure(changed, verdicts):
    """Scores whose seeds differ by thousandths. The bar is 0.1 for levels, 0.05 for gains in the second half."""
    scores = {
        "final, 5b, 0.1": 1.0, "final, 5b, 0.6": 0.6, "middle, 5b, 0.6": 0.6, "gain, 5b, 0.6": 0.0,
        "middle, 5b, 0.1": 0.9, "middle, 5b, 0.002": 0.3, "gain, 5b, 0.002": 0.5,
        "final, 12, (512.0, 0.2)": 0.92, "final, 12, (8.0, 0.02)": 0.9, "final, 12, (64.0, 0.2)": 0.93,
        "final, 12, (4096.0, 0.6)": 0.9, "final, 9, more-minibatches": 0.9, "final, 9, larger-minibatches": 0.7,
    } | changed  # fmt: skip
    runs = again.cells()
    names = {
        run.name: f"{figure}, {key[0] if figure == '9' else key}"
        for figure in runs
        for key, run in runs[figure].items()
    }
    of = lambda what: lambda run: scores[f"{what}, {names[run.name]}"] + 0.0001 * np.arange(-17, 18)  # noqa: E731
    data = SimpleNamespace(p=again.WITH_SEEDS, **{what: of(what) for what in ("final", "middle", "gain")})
    data.curve = lambda *_, **__: (np.arange(2.0), np.zeros((2, 35)))
    found = again.checks(data, runs)
    assert [again.verdicts.verdict(found[name]) for name in ("5b", "12", "9")] == verdicts
    assert [len(found[name]) for name in ("5b", "12", "9")] == [5, 3, 1]


def test_what_was_asked_again_is_kept_with_the_start_of_its_runs(monkeypatch, tmp_path):
    monkeypatch.setattr(again.grid, "made", lambda *_: True)
    monkeypatch.setattr(
        again, "checks", lambda data, runs: {name: [verdicts.difference(name, X5, 0.0, 0.5)] for name in runs}
    )
    for of in again.cells().values():
        for run in of.values():
            (tmp_path / run.name).mkdir(exist_ok=True)
            (tmp_path / run.name / "args.json").write_text(json.dumps({"started": run.name}))
    again.main(again.Args(runs_dir=tmp_path, out=tmp_path / "x.json"))
    kept = json.loads((tmp_path / "x.json").read_text())
    (commits,) = kept["rules were committed in"].values()
    assert commits and kept["figures"].keys() == {"5b", "12", "9"}
    for name, figure in kept["figures"].items():
        assert figure["started"] == sorted(run.name for run in again.cells()[name].values())
        assert figure["verdict"] == figure["checks"][0]["outcome"] == "holds"
        assert figure["checks"][0]["samples"] == [[1.0, 1.1, 1.2, 1.3, 1.4], 0.0]


X5 = np.array([1.0, 1.1, 1.2, 1.3, 1.4])
