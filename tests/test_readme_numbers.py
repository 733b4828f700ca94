"""Every sentence with a number of the README and of docs/findings.md: either it is made here from results/, or it is
listed as one that is not, with the reason: a setting, a name, a number that results/ does not have. Some of other pages
are here, too."""

import datetime
import itertools
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import ppo
from benchmarks import report
from common.run import arguments
from experiments import advice, headline, results, usual as inner_loops
from experiments.paper_a_runs import PRESETS
from figures import tally as tally_of

ROOT = Path(__file__).parents[1]
PAGES = {name: (ROOT / name).read_text() for name in ("README.md", "docs/findings.md")}
BOTH = "\n\n".join(PAGES.values())


class Headline(str):
    """A claim of docs/headline.md."""

    page = "docs/headline.md"


class Figures(str):
    """A claim of docs/figures.md."""

    page = "docs/figures.md"


def read(name):
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def check(figure, what):
    (found,) = [c for c in read(figure)["checks"] if c["what"] == what][:1]
    return found["estimate"], found["low"], found["high"]


def last(figure, panel, line, at=0):
    return read(figure)["drawn_last"][panel][line][at]


def percent(exponent):
    """By how many percent a quantity changed whose log10 changed by this much."""
    return 100 * (10**exponent - 1)


def first_runs():
    runs = read("first_runs")["runs"]
    plain, many, short = (run["eval/episodic_return"] for run in runs.values())
    seconds = [run["seconds, whole command"] for run in runs.values()]
    yield f"this took {seconds[0]:.0f} s, compiling included, and reached a return of {plain:.0f}"
    (again,) = (value for key, value in read("first_runs").items() if key.startswith("again"))
    ends = [run["eval/episodic_return"] for run in again.values()]
    (third,) = (value["python ppo.py"] for key, value in read("first_runs").items() if key.startswith("once more"))
    last_end, last_seconds = third["eval/episodic_return"], third["seconds, whole command"]
    yield f"on two other machines {ends[0]:.0f} and {last_end:.0f}, there in {last_seconds:.0f} s)"
    updates = [run["updates"] for run in runs.values()]
    assert updates[1] == 8
    yield f"the run took {seconds[1]:.0f} s and reached {many:.1f} (one seed; on another machine {ends[1]:.1f})."
    yield f"The second, with shorter rollouts, makes {updates[2]} updates of the same budget"
    yield f"and reached {short:.1f} ({ends[2]:.1f})."


def judged(name):
    """-> what each seed of the doctor's cases was expected to be called and was, and those without a fault."""
    cases = read(name)["cases"]
    labels = [(case["expected"], label) for case in cases.values() for label in case["found"]]
    healthy = [
        (case["expected"], label)
        for name, case in cases.items()
        if case["expected"] in ("climbing", "settled", "few updates") or name == "pendulum, finished"
        for label in case["found"]
    ]
    return labels, healthy


def doctor():
    fine = {"climbing", "settled", "no gain", "few updates"}
    yield f"| fewer than {arguments.FEW_STEPS} |"
    few = f"{advice.MANY_STEPS} or more, in minibatches of {advice.SMALL_MINIBATCH} transitions or fewer"
    yield f"| {few} |"
    said, own = (re.search(r"stands still since 15.*?dormant units", page, re.S)[0] for page in (
        PAGES["README.md"], (ROOT / "docs" / "doctor.md").read_text()
    ))  # fmt: skip
    assert said == own
    yield f"a plateau on Breakout-MinAtar has {re.search(r'KL of an update ([0-9.]+);', said)[1]}"
    again, well = judged("doctor_again")
    assert [label for _, label in well if label not in fine] == ["step"] and len(again) == 210
    right = sum(expected == label for expected, label in again)
    yield f"Made again on another machine, with one rule more: {right}, and a fault in one of the {len(well)}"
    labels, healthy = judged("doctor")
    assert all(label in fine for _, label in healthy)
    right = sum(expected == label for expected, label in labels)
    yield f"Of {len(labels)} runs with a built-in cause, or healthy, it names {right} rightly"
    yield f"Of {len(labels)} runs with a built-in cause, or healthy, the doctor names {right} rightly"
    yield f"names no fault in the {len(healthy)} that are healthy, finished or too short to judge"
    assert {(e, x) for e, x in healthy if x == "no gain"} == {("no gain", "no gain")}
    assert sum(label == "no gain" for _, label in healthy) == 10  # all finished, on Pendulum-v1
    yield "ten of the 90 are finished and are called `no gain`, which here counts as no fault"
    chance, _ = judged("doctor_sticky")
    share = f"{sum(expected == label for expected, label in chance)} of {len(chance)}"
    assert Counter(chance) == {("climbing", "climbing"): 20, ("climbing", "no gain"): 10}
    yield f"with {share} right where {0.8 * len(chance):.0f} were asked, because ten runs"
    yield f"its rule failed: {share} runs are called what was expected, where {0.8 * len(chance):.0f} were asked"
    (climb,) = [x for name, x in read("doctor_how_many")["results"].items() if "breakout-climb" in name]
    shares = {point["num_envs"]: point["quotient"] for point in climb["points"]}
    yield f"{100 * shares[2048]:.0f} % at 2,048 environments, {100 * shares[32768]:.0f} % at 32,768"
    yield "N / (N + {:,.0f})".format(round(climb["critical"][0], -2))


def inner():
    """Environments and gradient steps."""
    found, late = read("inner"), read("headline")["return, last tenth"]
    name = lambda game, n, m: f"{game}, {n} environments, {m} minibatch{'es' * (m > 1)}"  # noqa: E731
    of = lambda key, n, m, game="Breakout": found[key][name(game, n, m)]  # noqa: E731
    ends, kept = "return, last tenth", "entropy when the return first reaches the level"
    gains, weights = "gains of an update, last tenth: own, fresh", "weight norm, last tenth"
    sizes = (64, 512, 4096)
    for n in sizes:
        cells = [f"{spread(of(ends, n, m), 1)}; {np.mean(of(kept, n, m)):.2f}" for m in (1, 8, 64)]
        yield f"| {n:,} | {' | '.join(cells)} |"
    mean = lambda key, m: [np.mean(of(key, n, m)) for n in sizes]  # noqa: E731
    for row, n in enumerate(sizes):
        yield f"| {n:,} | {' | '.join(f'{mean(ends, m)[row]:.1f}' for m in (1, 8, 64))} |"
    told = f"{mean(ends, 8)[0]:.1f} in place of {mean(ends, 1)[0]:.1f}."
    yield f"start again with 32 (64 environments: `--minibatch-size 256`): on Breakout {told}"
    assert all(4.9 < x < 6 for x in mean(ends, 1)) and mean(ends, 64)[0] < 0.7 * mean(ends, 64)[2]
    one = mean(ends, 1)
    assert (
        max(one[:2]) - 0.1 < 5.7 < min(one[:2]) + 0.1 and min(of("growth from third to last quarter", 4096, 1)) > 0.07
    )
    yield f"On Breakout runs with 64 and 512 environments pause near 5.7; with 4,096 they come to {one[2]:.1f}"
    every = found["return of runs with one minibatch after all steps, last tenth"]
    after = [np.mean(every[name("Breakout", n, 1)]) for n in sizes]
    assert abs(after[0] - np.mean(late["64"])) < 0.01
    yield "after 25M steps 512 and 4,096 are still on it ({:.1f} and {:.1f};".format(*after[1:])
    others = {
        (game, n, m): stats.ttest_ind(of(ends, n, m, game), of(ends, 64, m, game), equal_var=False)
        for game in ("Breakout", "SpaceInvaders", "Asterix")
        for n in (512, 4096)
        for m in (1, 8, 64)
        if name(game, n, m) in found[ends]
    }
    lower = [test for (_, _, m), test in others.items() if m < 64]
    assert all(test.statistic > 0 and test.pvalue < 0.05 for (_, _, m), test in others.items() if m == 64)
    assert len(others) == 10 and len(lower) == 6 and all(test.statistic < 0 for test in lower)
    assert sum(test.pvalue < 0.05 for test in lower) == 4
    most, half = of(ends, 4096, 64), of(ends, 512, 64)
    low, high = stats.ttest_ind(most, half, equal_var=False).confidence_interval()
    told = f"{np.mean(most) - np.mean(half):.1f}, {low:.1f} to {high:.1f}"
    yield Headline(minus(f"(and 4,096 are not shown to end higher than 512 there: {told})"))
    plateau, again = read("stuck"), read("stuck")["again, on other seeds"]
    later = plateau["return, last tenth"]["unchanged"]
    later = later + again["return, last tenth, of those that are stuck"]["unchanged"]
    assert sum(x > 7 for x in again["return at half, each seed"]) == 1  # has left before
    assert len(later) == 14
    assert 1 + sum(x > 7 for x in later) == 10
    yield "of fifteen seeds with 64 environments ten have left it after 25M"
    low, high = ((min(mean(kept, m)), max(mean(kept, m))) for m in (1, 64))
    yield f"entropy is {low[0]:.2f} to {low[1]:.2f} nats; with 256 gradient steps it is {high[0]:.2f} to {high[1]:.2f}"
    kept_by = f"{low[0]:.2f} to {low[1]:.2f} nats; with 256 gradient steps, by smaller minibatches, it is"
    yield f"entropy is {kept_by} {high[0]:.2f} to {high[1]:.2f}"
    stays = [
        nats
        for arm in ("unchanged", "inner loop for 64", "ε ÷ 4")
        for nats, end in zip(plateau["entropy, last tenth"][arm], plateau["return, last tenth"][arm], strict=True)
        if end < 7
    ]
    uncertain = f"{min(stays):.2f} to {max(stays):.2f} nats, where a random policy has {np.log(3):.2f}"
    yield f"hardly any entropy left ({uncertain}): the first plateau"
    yield f"(on this plateau {uncertain}; a solved task"
    games = ("Breakout", "SpaceInvaders", "Asterix")
    own = {n: [np.mean(of(gains, n, 64, game)[0]) for game in games] for n in (64, 4096)}
    fresh = [np.mean(of(gains, 64, 64, game)[1]) for game in games]
    assert all(abs(x) < 0.01 * y for x, y in zip(fresh, own[64], strict=True))
    low, high = min(own[64]), max(own[64])
    yield Headline(
        f"Their updates gain {low:.2f} to {high:.2f} on their own transitions and nothing measurable on fresh"
    )
    better = [np.mean(of(ends, 64, 1, game)) for game in games]
    middle = read("minibatches")
    rows = {game: [of(ends, 64, 1, game), middle[ends].get(game), of(ends, 64, 64, game)] for game in games}
    rows["Breakout"][1] = of(ends, 64, 8)
    for (game, row), bold, steps in zip(rows.items(), (0, 2, 2), ("12.6M steps", "8.4M", "8.4M"), strict=True):
        cells = [spread(x, int(game != "SpaceInvaders")) for x in [*row, of(ends, 4096, 64, game)]]
        mean_, _, rest = cells[bold].partition(" ")
        cells[bold] = f"**{mean_}** {rest}"
        yield f"| {game}, {steps} | {' | '.join(cells)} |"
    few = [np.mean(of(ends, 64, 1, game)) for game in games[1:]]
    many = [np.mean(of(ends, 4096, 64, game)) for game in games[1:]]
    yield "which end at {:.0f} and {:.1f} where 4,096 with 256 have {:.0f} and {:.1f}".format(*few, *many)
    asterix = np.mean(middle[ends]["Asterix"]), np.mean(of(ends, 64, 64, "Asterix"))
    yield "start again with 32 gradient steps (on Asterix {:.1f} in place of {:.1f})".format(*asterix)
    yield "start again with 32: on Asterix {:.1f} in place of {:.1f}.".format(*asterix)
    yield f"Or with 4,096 `--num-envs` and as many minibatches as before: {many[1]:.1f}."
    half = [np.mean(middle["gains of an update, last tenth: own"][game]) for game in games[1:]]
    told = "gain {:.2f} and {:.2f} on the transitions that they train on".format(*own[64][1:])
    yield told + "; those of 64 environments with 32"
    yield "which end far higher, gain {:.2f} and {:.2f}; those of 4,096".format(*half)
    yield f"environments gain {own[4096][1]:.2f}."
    assert f"{own[4096][1]:.2f}" == f"{own[4096][2]:.2f}"
    unsure = []
    for game in games[1:]:
        some = read("entropy")[ends][f"{game}, 512 × 32"]
        unsure.append(stats.ttest_ind(some, middle[ends][game], equal_var=False).pvalue)
        low, high = stats.ttest_ind(some, middle[ends][game], equal_var=False).confidence_interval()
        assert low < 0 < high
        yield Headline(minus(f"{np.mean(some) - np.mean(middle[ends][game]):.1f}, {low:.1f} to {high:.1f}"))
    lost = np.mean(middle[kept]["Asterix"]), np.mean(of(kept, 64, 1, "Asterix"))
    yield "(64 environments: {:.2f} in place of {:.2f})".format(*lost)
    less = {key: middle["checks"][f"{key}"] for key in middle["checks"]}
    few_space, many_space, few_asterix, many_asterix = less.values()
    assert list(less) == [f"{game}, return, 8 less {m} minibatches" for game in games[1:] for m in (1, 64)]
    assert {few_space["outcome"], few_asterix["outcome"]} == {"not enough data"} and middle["the default changes"]
    text = f"{few_space['estimate']:.1f} more ({few_space['low']:.1f} to {few_space['high']:.1f}) and "
    other = f"{-few_asterix['estimate']:.1f} less ({few_asterix['low']:.1f} to {few_asterix['high']:.1f})"
    yield Headline(minus(text + other))
    assert -few_asterix["low"] / better[2] == pytest.approx(0.5, abs=0.05)
    high = f"They end {many_space['estimate']:.0f} ({many_space['low']:.0f} to {many_space['high']:.0f}) and "
    yield Headline(
        f"{high}{many_asterix['estimate']:.1f} ({many_asterix['low']:.1f} to {many_asterix['high']:.1f}) above 256"
    )
    norms = [np.mean(of(weights, 64, 64, game)) / np.mean(of(weights, 4096, 64, game)) for game in games]
    assert min(norms) > 4 and max(norms) < 5.5  # 4 to 5 times
    steps = [c["estimate"] for c in found["checks"]["more gradient steps keep more entropy"][:6]]
    yield f"eight times as many keep {min(steps):.2f} to {max(steps):.2f} nats more entropy at a return of 5"
    more = [c["estimate"] for c in found["checks"]["more environments do not"][:3]]
    yield "64 times the environments {:.2f}, {:.2f} and {:.2f}, with 4, 32 and 256".format(*more)
    assert found["outcomes"]["more gradient steps keep more entropy"] == "not enough data"
    assert found["outcomes"]["more environments do not"] == "does not hold"
    claim = found["checks"]["more gradient steps keep more entropy"]
    assert [c["outcome"] for c in claim] == ["holds"] * 7 + ["not enough data"]
    space, asterix = claim[6:]
    yield Headline(f"so does SpaceInvaders ({space['estimate']:.2f}, {space['low']:.2f} to {space['high']:.2f})")
    yield Headline(minus(f"Asterix is open ({asterix['estimate']:.2f}, {asterix['low']:.2f} to {asterix['high']:.2f})"))
    last = found["checks"]["more environments do not"][4]
    yield f"512 keep {last['estimate']:.2f} ({last['low']:.2f} to {last['high']:.2f}) more than 64 with 4"
    slow, higher = found["checks"]["with as many gradient steps more environments still end higher"]
    yield Headline(f"with 256 they do, by {higher['estimate']:.1f} ({higher['low']:.1f} to {higher['high']:.1f})")
    yield Headline(f"with 32 they end {-slow['estimate']:.1f} ({-slow['high']:.1f} to {-slow['low']:.1f}) lower")
    long = [np.mean(read("entropy")[ends][f"Breakout, 64 × {steps}"]) for steps in (256, 2048)]
    yield "go along the diagonal, too, and end at {:.1f} and {:.1f}".format(*long)
    diagonal = {game: [np.mean(read("entropy")[ends][f"{game}, {n} × 32"]) for n in sizes] for game in games}
    yield "higher throughout on Breakout**: 64, 512 and 4,096 at {:.1f}, {:.1f} and {:.1f}".format(
        *diagonal["Breakout"]
    )
    space, asterix = diagonal["SpaceInvaders"], diagonal["Asterix"]
    yield "has {:.0f}, {:.0f} and {:.0f}, on Asterix ".format(*space) + "{:.1f}, {:.1f} and {:.1f}".format(*asterix)
    equal = [(of(ends, 512, 64), of(ends, 64, 8)), (of(ends, 4096, 8), of(ends, 512, 1))]  # gradient steps in all
    equal += [(of(ends, b, y), of(ends, a, x)) for a, x, b, y in ((64, 1, 512, 8), (512, 8, 4096, 64))]
    assert all(stats.ttest_ind(more, fewer, equal_var=False).confidence_interval().low > 0 for more, fewer in equal)
    pvalues = sorted([*(test.pvalue for test in lower), *unsure])
    assert len(pvalues) == 8 and [p * (8 - i) < 0.05 for i, p in enumerate(pvalues[:2])] == [True, False]  # Holm's
    rolled = read("entropy")[ends]["Breakout, 64 × 2048"]
    low, high = stats.ttest_ind(rolled, of(ends, 64, 64), equal_var=False).confidence_interval()
    yield Headline(
        f"end {np.mean(rolled) - np.mean(of(ends, 64, 64)):.1f} ({low:.1f} to {high:.1f}) higher (looked at afterwards)"
    )
    gentle = found["of Asterix with a learning rate of 1e-4"]["return, last tenth"]
    (check,) = found["checks"]["the plateau of Asterix is mostly that of the learning rate"]
    assert check["outcome"] == "not enough data"
    yield f"a tenth of the learning rate 64 environments on Asterix end at {np.mean(gentle):.1f}."
    yield Headline(f"with a tenth of it they end at {spread(gentle, 1)}, which")
    yield f"with a tenth of the `--learning-rate` ({np.mean(gentle):.1f})"
    yield f"with a tenth of the `--learning-rate`: {np.mean(gentle):.1f} |"
    told = f"is {check['estimate']:.1f} ({check['low']:.1f} to {check['high']:.1f}) more"
    yield Headline(f"{told}; {check['above']:.1f} was asked")
    freed = found["of stuck policies with 64 minibatches"]
    above = sum(x > 7 for x in freed["return, last tenth"])
    start = spread(of(ends, 64, 64), 1)
    row = "256 gradient steps: `--minibatch-size 32`"
    yield f"| {row} | {start} | {spread(freed['return, last tenth'], 1)} | {above} |"
    yield f"| 32 gradient steps, the default: `--minibatch-size 256` | {spread(of(ends, 64, 8), 1)} | not tried | |"
    assert max(freed["first million steps above 7"]) == 2 and above == 5
    with_bonus, unchanged = (sum(x > 7 for x in plateau["return, last tenth"][arm]) for arm in
                             ("entropy bonus × 5", "unchanged"))  # fmt: skip
    assert (with_bonus, unchanged) == (5, 2)
    yield "or with 256 gradient steps: with either all five policies left the plateau, but two also left unchanged |"
    (check,) = found["checks"]["more gradient steps free a stuck policy"]
    assert check["outcome"] == "not enough data"
    asked = "{estimate:.1f}{}, {low:.1f} to {high:.1f}, where {above:.1f} was".format
    bonus, *_, loop, eps, _ = read("stuck")["checks"]
    yield minus(f"({asked(' above unchanged', **check)} asked; {asked('', **bonus)})")
    assert (loop["outcome"], eps["outcome"]) == ("does not hold", "does not hold")  # they do not free


def clip():
    """32 gradient steps without PPO's clip."""
    found = read("clip")
    kept = {arm: np.mean(of) for arm, of in found["entropy when the return first reaches the level"].items()}
    assert found["checks"]["the clip keeps the entropy"]["outcome"] == "holds"
    assert found["seeds that reach the level"] == {"clipped": 5, "unclipped": 3}
    small, large = (np.mean(found["kl, last tenth"][arm]) for arm in ("clipped", "unclipped"))
    assert large > 10 * small
    there = [x for x in found["entropy when the return first reaches the level"]["unclipped"] if x > 1e-3]
    assert len(there) == 3
    told = f"{np.mean(there):.2f} in place of {kept['clipped']:.2f}"
    yield f"32 gradient steps leave {told} in the three policies of five that get to a return of 5"


def resumed():
    """Policies on the second plateau that go on."""
    found = read("resumed")
    more, smaller = found["Asterix"]["checks"]
    assert (more["outcome"], smaller["outcome"]) == ("holds", "not enough data")
    many, old = (found["Asterix"]["mean"][arm][0] for arm in ("4,096 environments", "before"))
    yield f"From the checkpoint more environments bring little: on Asterix from {old:.2f} to {many:.2f}."
    above = f"{more['estimate']:.2f} ({more['low']:.2f} to {more['high']:.2f}) above unchanged ones"
    start = np.mean(read("inner")["return, last tenth"]["Asterix, 4096 environments, 64 minibatches"])
    on, whole = (int(re.search(r"--total-timesteps (\d+)", command)[1]) for command in (
        next(iter(found["commands"].values())), read("inner")["commands"]["Asterix, 4096 environments, 64 minibatches"]
    ))  # fmt: skip
    assert whole == 2 * on
    yield f"on Asterix, 4,096 environments end {above}, at {many:.2f}; from the start they reach {start:.1f} in twice"
    yield f"end {more['estimate']:.2f} ({more['low']:.2f} to {more['high']:.2f}) above unchanged ones"
    yield minus(f"({smaller['estimate']:.2f}, {smaller['low']:.2f} to {smaller['high']:.2f})")
    both = found["Breakout"]["checks"]
    assert [check["outcome"] for check in both] == ["not enough data"] * 2
    yield minus("({})".format("; ".join(f"{c['estimate']:.1f}, {c['low']:.1f} to {c['high']:.1f}" for c in both)))
    high = sorted(found["Breakout"]["return, last tenth"]["4,096 environments"])[-2:]
    yield Headline("With 4,096 environments two seeds go to {:.0f} and {:.0f}".format(*high))


def stuck():
    """What frees from the start, and what on the plateau."""
    found, before = read("stuck"), read("headline")
    start, late = before["return, last tenth of the first half"], before["return, last tenth"]
    after = found["return, last tenth"] | {"4,096 environments": before["branch, last tenth"]}
    bonus, loop = "entropy bonus × 5", "inner loop for 64"
    rows = {
        "unchanged": ("64", "unchanged"),
        f"{bonus}: `--ent-coef 0.05`": ("entropy", bonus),
        "4,096 environments, minibatches of 2,048": ("4096", "4,096 environments"),
        "bonus × 5 and 4,096 environments": ("entropy, 4096", f"{bonus}, 4,096 environments"),
        "32 gradient steps, a third of the learning rate": ("tuned", loop),
        "a quarter of the clip range: `--clip-eps 0.05`": ("eps", "ε ÷ 4"),
    }
    for row, (early, end) in rows.items():
        above = sum(x > 7 for x in after[end])
        yield f"| {row} | {spread(start[early], 1)} | {spread(after[end], 1)} | {above} |"
    assert [sum(x > 7 for x in after[end]) for _, end in rows.values()] == [2, 5, 0, 4, 1, 0]
    share = 100 * np.mean(after["4,096 environments"]) / np.mean(late["4096"])
    low, high = stats.ttest_ind(start["eps"], start["64"], equal_var=False).confidence_interval()
    more = np.mean(start["eps"]) - np.mean(start["64"])
    yield minus(
        f"a quarter of the clip range, which ends {more:.1f} above the unchanged runs ({low:.1f} to {high:.1f})"
    )
    yield f"those that go on with 4,096 do not reach 80 % of what 4,096 have ({share:.0f} %)"
    yield f"that get 4,096 environments should reach 80 % of what 4,096 have, but reach {share:.0f} %"
    failed = ["the smallest stands still", "the branch reaches 80 % of the largest", "entropy does not rescue"]
    assert [what for what in before["checks"] if not before["checks"][what]] == failed
    more, long = after["entropy bonus × 25"], read("entropy")["return, last tenth"]["Breakout, 64 × 2048"]
    yield f"| entropy bonus × 25 | not tried | {spread(more, 1)} | {sum(x > 7 for x in more)} |"
    yield f"| rollouts 64 times as long: `--num-steps 2048` | {spread(long, 1)} | not tried | |"
    yield f"| PPO-EWMA, `--com 32` | {spread(start['com'], 1)} | not tried | |"
    low, high = stats.ttest_ind(long, after[bonus], equal_var=False).confidence_interval()
    yield Headline(f"end {np.mean(long) - np.mean(after[bonus]):.1f} ({low:.1f} to {high:.1f}) above the")
    again = found["again, on other seeds"]
    check, above = again["check"], again["of these above 7"]
    assert again["the bonus frees"] == "holds" and (above[bonus], above["unchanged"]) == (9, 7)
    yield f"they end {check['estimate']:.1f} ({check['low']:.1f} to {check['high']:.1f}) higher"
    first = found["first million steps above it"]
    yield f"and after {min(first[bonus]) - 1}M to {max(first[bonus]) - 1}M with five times the bonus"
    late_ones = sorted(x - 1 for x in before["first million steps above 7.0, of each seed"]["64"] if x)
    yield "leave the first plateau later, after {}M and {}M steps".format(*late_ones)
    assert sum(x < 7 for x in start["tuned"]) == 1
    yield "32 gradient steps left one of five policies on the first plateau"
    updates = [headline.HALF // (n * headline.NUM_STEPS) for n in (4096, 64)]
    yield "4,096 environments have time for {} updates only, 64 for {:,}".format(*updates)
    yield f"4,096 environments freed none within {updates[0]} updates"
    yield f"4,096 environments freed no policy from the first plateau within {updates[0]} updates"
    assert sum(x < 7 for x in after["unchanged"]) == 3  # those that the doctor calls settled
    continued = np.mean(read("resumed")["Breakout"]["return, last tenth"]["unchanged"])
    yield f"{np.mean(start['512']):.1f} in as many environment steps, and {np.mean(late['512']):.1f} in 25M"
    yield (
        f"With 25M, 64 environments reach {continued:.1f} with 32 gradient steps (restarted half-way), and "
        f"{np.mean(late['64']):.1f} with 4"
    )
    assert all(interval(before["gains"][n]["fresh, last half"])[1] <= 0 for n in late)  # also of those that climb


def hundred_million():
    found = read("longer")
    few, many = (found["return, last tenth"][n] for n in ("64", "4096"))
    mean, low, high = (100 * x for x in found["growth from third to last quarter"]["64"])
    yield f"64 environments with 32 gradient steps end at {spread(few, 1)}, 4,096 with 256 at {spread(many, 1)}"
    yield f"they grow by {mean:.0f} % ({low:.0f} to {high:.0f}) from the third to the last quarter"
    assert found["outcomes"]["4,096 environments end 10 % above 64"] == "holds"
    assert found["hypothesis"] == found["outcomes"]["64 environments stand still"] == "does not hold"
    check = found["checks"]["4,096 environments end 10 % above 64"][0]
    low, high = stats.ttest_ind(many, few, equal_var=False).confidence_interval()
    yield Headline(minus(f"they end {np.mean(many) - np.mean(few):.1f} ({low:.1f} to {high:.1f}) above"))
    yield Headline(f"{check['above']:.1f} was asked")


def pauses():
    """Runs that stand for a while, and how growth depends on the length of the windows."""
    returns = {n: np.array(of) for n, of in read("longer")["curves"]["returns"].items()}
    windows = returns["64"].reshape(5, 16, 4).mean(2)  # of 6.3M steps, as a quarter of 25M
    mean, low, high = (100 * x for x in interval((windows[:, 9:] / windows[:, 8:-1] - 1).mean(1)))
    yield f"Over 6.3M, as long as a quarter of the first runs, they grow by {mean:.1f} % ({low:.1f} to {high:.1f})"
    (growth,) = read("longer")["checks"]["4,096 environments grow more"]
    assert growth["outcome"] == "not enough data"
    points = (100 * growth[key] for key in ("estimate", "low", "high"))
    yield minus("by {:.0f} percentage points ({:.0f} to {:.0f})".format(*points))
    million = (np.arange(64) + 1) * 100.663296 / 64  # at the end of a part of the steps
    part = lambda n, seed, start, end: returns[n][seed][(million > start + 1.5) & (million <= end)]  # noqa: E731
    stands, after = part("4096", 0, 8, 84), part("4096", 0, 84, 101)
    assert stands.min() > 20 and stands.max() < 28 < after.min()
    yield "one seed of 4,096 stays between 20 and 28 from the 9th to the 84th million steps"
    slow = np.array([part("64", seed, 7, 27) for seed in (2, 3)])
    assert slow.min() > 14 and slow.max() < 16.5 and len(slow[0]) == 12
    yield "two of 64 near 15 from the 8th to the 27th"
    first = read("headline")["first million steps above 7.0, of each seed"]["512"]
    late = sorted(x for x in first if x > 2)
    assert (len(late), late[0], late[-1]) == (4, 6, 14)
    yield "four of five seeds first passed a return of 7 in their 6th to 14th million steps"
    ends = [np.mean(read("fig_6b_breakout")["runs"][f"(0.1, {epochs})"]["final"]) for epochs in (1, 4)]
    yield "after a million steps (mean returns {:.1f} and {:.1f})".format(*ends)
    weights = {name: np.mean(run["return"]) for name, run in read("exploration")["runs"].items()}
    yield "from a return of {:.1f} to {:.1f}".format(weights["com 512"], weights["com 512, bonus 0.05"])


def rollouts():
    """A hundred million steps: 64 environments with long rollouts beside 4,096."""
    found = read("rollouts")
    many, long, few = (np.array(found["return, last tenth"][name]) for name in ("4096 × 32", "64 × 2048", "64 × 32"))
    assert list(found["outcomes"].values()) == ["not enough data", "holds"]
    assert [found["return, last tenth"][name] for name in ("4096 × 32", "64 × 32")] == [
        read("longer")["return, last tenth"][n] for n in ("4096", "64")
    ]
    yield f"64 environments end those 100M steps at {spread(long, 1)}"
    low, high = stats.ttest_ind(many, long, equal_var=False).confidence_interval()
    gap = minus(f"{np.mean(many) - np.mean(long):.1f}")
    yield minus(f"(4,096 environments less 64: {gap}, {low:.1f} to {high:.1f})")
    yield Headline(minus(f"**undecided**: {gap} ({low:.1f} to {high:.1f})"))
    low, high = stats.ttest_ind(long, 1.1 * few, equal_var=False).confidence_interval()
    yield Headline(f"**holds**: by {np.mean(long) - 1.1 * np.mean(few):.1f} ({low:.1f} to {high:.1f}) more than 10 %")
    yield f"2,048 steps end at {np.mean(long):.0f}, and 4,096 with 32 steps at {np.mean(many):.0f}"
    yield f"64 with 32 steps and 32 gradient steps end at {np.mean(few):.0f}"


def wider():
    """65,536 environments with rollouts of 4 steps."""
    found = read("wider")
    policies, gains = found["return of the policy"], found["gains"]
    assert list(found["outcomes"].values()) == ["does not hold", "holds"]
    told = lambda x, digits: spread(x, digits) if len(x) > 2 else f"{np.mean(x):.{digits}f}"  # noqa: E731
    for name, (n, steps) in {"65536 × 4": (65536, 4), "8192 × 32": (8192, 32), "4096 × 32": (4096, 32)}.items():
        half, end = (np.array(policies[name][when]) for when in ("half", "end"))
        cells = [f"{n:,} × {steps}", f"{n * steps:,}", f"{4 * n * steps // 2048}", f"{2**26 // (n * steps)}"]
        cells += [told(half, 1), told(end, 1), ", ".join(f"{x:.1f}" for x in end), told(end - half, 1)]
        cells += [f"{np.mean(found['entropy, last half'][name]):.2f}"]
        cells += [f"{np.mean(gains['own, last half'][name]):.3f}", told(gains["fresh, last half"][name], 5)]
        yield Headline(f"| {' | '.join(cells)} |")
    most, many = (np.array(policies[name]["end"]) for name in ("65536 × 4", "4096 × 32"))
    low, high = stats.ttest_ind(most, many, equal_var=False).confidence_interval()
    yield Headline(minus(f"**refuted**: {np.mean(most) - np.mean(many):.1f} ({low:.1f} to {high:.1f})"))
    yield Headline(f"**holds**: {spread(most - policies['65536 × 4']['half'], 1)}")
    half = np.mean(policies["4096 × 32"]["half"])
    yield Headline(f"are about where 4,096 are half-way: {np.mean(most):.1f} and {half:.1f} (not asked)")
    args = ppo.Args()
    beyond = (args.gamma * args.gae_lambda) ** 4
    yield Headline(f"by γλ = {args.gamma * args.gae_lambda:.2f} that is {100 * beyond:.0f} % of GAE's weights")
    ends = f"end at {spread(most, 1)}, those of 4,096 with rollouts of 32 steps at {spread(many, 1)}"
    yield Headline(ends)
    yield f"the policies {ends}"
    same = np.mean(policies["8192 × 32"]["end"])
    yield f"8,192 with rollouts of 32 steps, whose updates are as large, have {same:.0f}"
    yield Headline("end at {:.1f} and {:.1f}, about where 4,096 do".format(*policies["8192 × 32"]["end"]))
    yield f"({np.mean(most):.0f} after 67M with sticky actions, where 4,096 × 32 have {np.mean(many):.0f})."


def control_tasks():
    """README's two rules in continuous control."""
    found = read("control")
    ends, policies = found["return, last tenth"], found["return of the policy at the end"]
    names = {"playground/CartpoleSwingup": "CartpoleSwingup", "playground/ReacherHard": "ReacherHard"}
    names["brax/halfcheetah"] = "HalfCheetah"
    whole = lambda values: minus(  # noqa: E731
        "{:,.0f} ({:,.0f} to {:,.0f})".format(*interval(values))
    )
    arms = ("64 environments, 4 gradient steps", "64 environments, 32", "64 environments, 256")
    arms += ("512 environments, 256", "64 environments, 256, learning rate ÷ 10")
    few, some, many, more, slow = arms
    for task, name in names.items():
        for arm in arms:
            grown = 100 * np.array(found["growth from third to last quarter"][task][arm])
            of = {key: values[task][arm] for key, values in found["of an update, last tenth"].items()}
            cells = [name, arm.replace("4 gradient steps", "4"), whole(ends[task][arm]), whole(policies[task][arm])]
            cells += [whole(grown).replace(" (", " % ("), f"{np.mean(of['entropy']):.2f}", f"{np.mean(of['kl']):.3f}"]
            cells += [f"{np.mean(of['own']):.3f}", spread(of["fresh"], 4)]
            yield Headline(minus(f"| {' | '.join(cells)} |"))

    def less(task, a, b, returns=ends):
        a, b = (np.array(returns[task][arm]) for arm in (a, b))
        low, high = stats.ttest_ind(a, b, equal_var=False).confidence_interval()
        return minus(f"{a.mean() - b.mean():,.0f} ({low:,.0f} to {high:,.0f})")

    words = {"holds": "holds", "does not hold": "refuted", "not enough data": "undecided"}
    compared = ((some, few, ends), (some, many, ends), (more, many, policies), (slow, many, ends))
    for (a, b, returns), outcomes in zip(compared, found["outcomes"].values(), strict=False):
        cells = [f"{less(task, a, b, returns)}, {words[outcomes[task]]}" for task in names]
        yield Headline(f"| **{words[outcomes['on all']]}** | {' | '.join(cells)} |")
    still = found["outcomes"]["64 environments with 256 stand still"]
    assert set(still.values()) == {"not enough data"}
    cheetah, reacher = "brax/halfcheetah", "playground/ReacherHard"
    assert [of[cheetah] for of in found["outcomes"].values()] == ["holds"] * 3 + ["not enough data"] * 2
    assert [of[reacher] for of in found["outcomes"].values()][::3] == ["holds", "does not hold"]
    mean = lambda task, arm, returns=ends: f"{np.mean(returns[task][arm]):,.0f}"  # noqa: E731
    ends_at = [mean(cheetah, arm) for arm in (some, few, many)]
    yield "64 environments 32 gradient steps end at {}, 4 at {} and 256 at {}".format(*ends_at)
    yield f"with 512 environments 256 end at {mean(cheetah, more)} and still rise"
    yield f"HalfCheetah by {less(cheetah, some, few)} and on ReacherHard by {less(reacher, some, few)}"
    yield f"on HalfCheetah, by {less(cheetah, some, many)}"
    yield f"the policies of 512 environments are better by {less(cheetah, more, many, policies)}"
    yield f"ended {less(reacher, many, slow)} lower on ReacherHard"
    labels = read("control_doctor")["label of each seed"]
    words = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five"}
    count = lambda arm, label: words[labels[cheetah][arm].count(label)]  # noqa: E731
    yield Headline(f"64 environments {count(many, 'no gain')} `no gain` (the step")
    yield Headline(f"and {count(many, 'fell')} `fell`; with 512 environments or a tenth of the learning rate")
    assert count(more, "climbing") == count(slow, "climbing") == "five"
    yield Headline(f"five `climbing` each; with 4 gradient steps {count(few, 'climbing')}")
    yield Headline(f"which end highest, it calls {count(some, 'no gain')} `no gain`")
    others = [label for task in names if task != cheetah for of in labels[task].values() for label in of]
    assert others.count("no gain") > 0.6 * len(others)
    curves = {arm: np.array(found["curves"][cheetah][arm], float) for arm in (many, more)}
    when = lambda values: values.size - np.argmax(values[::-1] == np.nanmax(values))  # noqa: E731
    smooth = {
        arm: [np.convolve(np.nan_to_num(row), np.ones(6) / 6, "valid") for row in of] for arm, of in curves.items()
    }
    peaks = [(when(row) + 2.5) / 64 * 2**21 / 1e6 for row in smooth[many]]
    assert all(when(row) < row.size - 5 for row in smooth[many]) and all(
        when(row) > row.size - 3 for row in smooth[more]
    )
    yield Headline(
        f"all five seeds end below what they had reached before, after {min(peaks):.1f}M to {max(peaks):.1f}M"
    )
    cartpole = [np.array(row, float) for of in found["curves"]["playground/CartpoleSwingup"].values() for row in of]
    assert min(np.nanmax(row) for row in cartpole) > 780
    fall = sum(np.nanmin(row[np.argmax(row > 780) :]) < 700 for row in cartpole)
    yield Headline(f"gets above 780 at some time, and {fall} of the {len(cartpole)} fall below 700 after that")
    yield Headline(
        "Random actions have {:.0f}, {:.0f} and −{:.0f}.".format(*np.abs([*found["return of random actions"].values()]))
    )
    kl = {arm: np.mean(found["of an update, last tenth"]["kl"][cheetah][arm]) for arm in arms}
    own = np.mean(found["of an update, last tenth"]["own"][cheetah][many])
    yield Headline(f"moves the policy by {kl[many]:.2f} nats, gains {own:.2f} on its own")
    yield Headline(f"(KL {kl[more]:.2f} and {kl[slow]:.2f} in place of {kl[many]:.2f} on HalfCheetah)")
    yield Headline(f"one of five seeds stays at {min(ends[cheetah][some]):,.0f}")
    assert max(ends[reacher], key=lambda arm: np.mean(ends[reacher][arm])) == more
    ends_of_more, last = ends[reacher][more], policies[reacher][many]
    yield Headline(f"all five seeds within {min(ends_of_more):.0f} and {max(ends_of_more):.0f}")
    yield Headline(f"the last policies of 64, between {min(last):.0f} and {max(last):.0f}")
    yield Headline(
        f"On HalfCheetah it ends {less(cheetah, slow, many).partition(' ')[0]} higher, which is within the error"
    )


def usual():
    """The inner loop of Stable-Baselines3 on Asterix."""
    found = read("usual")
    many, few = found["return, last tenth"].values()
    assert list(found["outcomes"].values()) == ["not enough data"] * 2
    low, high = stats.ttest_ind(few, many, equal_var=False).confidence_interval()
    higher = minus(f"{np.mean(few) - np.mean(many):.1f} ({low:.1f} to {high:.1f})")
    yield f"on Asterix these end at {spread(many, 1)}, 32 gradient steps at that rate"
    flags = next(dict(cell.flags) for cells in inner_loops.cells().values() for cell in cells)
    steps, size = flags["update_epochs"] * flags["num_minibatches"], 64 * 32 // flags["num_minibatches"]
    yield f"what is usual elsewhere, {steps} gradient steps in minibatches of {size} at"
    yield f"at {spread(few, 1)}, {higher} higher"
    yield Headline(f"**undecided**: {higher}")
    mean, low, high = (100 * x for x in interval(next(iter(found["growth from third to last quarter"].values()))))
    yield Headline(minus(f"**undecided**: {mean:.0f} % ({low:.0f} to {high:.0f})"))


def without_chance():
    """Breakout without sticky actions: 64 environments with 32 gradient steps, 512 with 256."""
    runs = read("plateau")["runs"]
    few, many = (np.array(runs[name]["return, last tenth"]) for name in ("plateau", "cure"))
    assert (np.sum(few < 7.2), np.sum(many < 7.2)) == (8, 3)
    yield "now and then the last action is executed again) eight of ten"
    yield "without sticky actions (`python ppo.py` has none) eight of ten"
    yield Headline(f"end at {spread(few, 1)[:-1]}; 95 % interval of ten seeds, last tenth)")
    low, high = stats.ttest_ind(many, few, equal_var=False).confidence_interval()
    yield Headline(f"end at {spread(many, 1)}, {np.mean(many) - np.mean(few):.1f} ({low:.1f} to {high:.1f}) above")
    mean = lambda name, key, when="1M to 4M steps": runs[name]["means"][key][when]  # noqa: E731
    yield Headline(f"they move by {mean('plateau', 'outer/kl'):.4f} nats per update")
    yield Headline(f"as while the return rose ({mean('plateau', 'outer/kl', '0 to 0.3M steps'):.4f})")
    yield Headline(f"`outer/ddr` is {mean('cure', 'outer/ddr') / mean('plateau', 'outer/ddr'):.1f} times as high")
    fresh = [spread(runs[name]["outer/fresh_gain, after 1M steps, each seed"], 5) for name in ("plateau", "cure")]
    yield Headline(f"after the first million steps {fresh[0]}, 2 % of what")
    yield Headline(f"of 512 environments {fresh[1]}, 4 %")


def spread(values, digits):
    """Mean and 95 % t-interval, by SciPy."""
    low, high = stats.ttest_1samp(values, 0).confidence_interval()
    return minus(f"{np.mean(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})")


def interval(values):
    low, high = stats.ttest_1samp(values, 0).confidence_interval()
    return np.mean(values), low, high


def minus(text):
    return text.replace("-", "−")


def breakout():
    runs = {name: run["final"] for name, run in read("fig_1a_breakout")["runs"].items()}
    weak, good, strong = (runs[f"{com}.0"] for com in (8, 512, 4096))
    further = 10 ** check("fig_2c_breakout", "log10 of outer/kl at the end, --com 8 less 512")[0]
    yield f"`--com 8` has a return of {spread(weak, 1)} and moves the policy {further:.1f} × as far"
    yield f"`--com 512`, which has {spread(good, 1)}; `--com 4096` has {np.mean(strong):.1f} and rises"
    ends = [np.mean(read("fig_5b_breakout")["runs"][eps]["final"]) for eps in ("0.002", "0.02", "0.6")]
    default = np.mean(read("fig_5b_breakout")["runs"]["0.2"]["final"])
    yield f"64 environments reach {default:.1f} in 2.1M steps with PPO's default ε"
    yield "0.002, 0.02 and 0.6 end at {:.1f}, {:.1f} and {:.1f}".format(*ends)
    pairs = {name: np.mean(run["final"]) for name, run in read("fig_12b_breakout")["runs"].items()}
    values, steps = ("0.02", "0.1", "0.2", "0.6"), ("8", "64", "512", "4096")
    best = [max(values, key=lambda eps: pairs[f"({com}.0, {eps})"]) for com in steps]
    assert tuple(best) == values
    yield Figures(f"the best ε rises with the COM, as in the paper: {', '.join(best)} for COM {', '.join(steps)}")
    recipe = [read("fig_9_breakout")["runs"][f"('more-minibatches', {n})"]["final"] for n in (16, 64, 256)]
    yield "16, 64 and 256 environments end 2.1M steps at {:.1f}, {:.1f} and {:.1f}".format(*map(np.mean, recipe))
    low, high = stats.ttest_ind(recipe[2], recipe[0], equal_var=False).confidence_interval()
    yield Figures(f"256 end {np.mean(recipe[2]) - np.mean(recipe[0]):.1f} ({low:.1f} to {high:.1f}) above 16")
    estimate, low, high = check(
        "fig_8_breakout", "log10 DDR of the best fifth of the runs, largest budget less smallest"
    )
    (shift,) = [c for c in read("fig_8_breakout")["checks"] if c["what"].startswith("log10 DDR")]
    runs_by_budget = [np.array(dots) for dots in shift["samples"]]
    best = [dots[np.argsort(-dots[:, 1])[: len(dots) // 5], 0] for dots in runs_by_budget]
    first, last = (round(10 ** np.log10(ratios).mean() / 1000) for ratios in best)
    shown = [10**x for x in check("fig_8", "log10 DDR of the best fifth of the runs, largest budget less smallest")]
    yield "On Pendulum-v1 that is not shown ({:.1f} ×, {:.1f} to {:.1f})".format(*shown)
    yield f"in {len(runs_by_budget[0])} runs on Breakout with sticky actions, which differ in COM"
    steps = " to ".join(f"{PRESETS['breakout'].sweep_timesteps // n:,}" for n in (8, 1))
    yield (
        f"from {steps} environment steps the ratio of the best fifth of the runs rises from {first},000 to {last},000 "
        f"transitions per nat ({10**estimate:.1f} ×, {10**low:.1f} to {10**high:.1f}"
    )
    for figure, sizes, digits in (("fig_7a", (8, 32, 128), 0), ("fig_7a_breakout", (16, 64, 256), 1)):
        batch = {name: np.mean(run["final"]) for name, run in read(figure)["runs"].items()}
        weak_, good_ = ([f"{batch[f'({com}, {n})']:.{digits}f}" for n in sizes] for com in (8.0, 512.0))
        among = "{}, {} and {}".format
        weak_, good_ = minus(among(*weak_)), minus(among(*good_))
        if figure == "fig_7a":
            yield f"`--com 8` ends at {weak_} with {among(*sizes)} environments, `--com 512` at {good_}"
        else:
            yield Figures(f"{among(*sizes)} environments end at {weak_}")
            yield Figures(f"with COM 512 at {good_.rpartition(' ')[0]}")
    slow = [np.mean(read("fig_7a_breakout")["runs"][f"(4096.0, {n})"]["final"]) for n in (16, 64, 256)]
    yield Figures("the smallest step (COM 4096: {:.1f}, {:.1f} and {:.1f})".format(*slow))
    assert (read("fig_7a")["verdict"], read("fig_7a_breakout")["verdict"]) == ("holds", "does not hold")
    changed = {name: np.mean(run["final"]) for name, run in read("fig_3a_breakout")["runs"].items()}
    raised, kept, lowered = (changed[f"({a}.0, {b}.0)"] for a, b in ((8, 512), (512, 512), (512, 8)))
    stayed = changed["(8.0, 8.0)"]
    yield f"at {raised:.1f}, where `--com 512` throughout has {kept:.1f}, and `--com 8` kept has {stayed:.1f}"
    lost = np.array(check("fig_3a_breakout", "final score, --com 512 kept, less 512 then 8"))
    lost *= PRESETS["breakout"].high - PRESETS["breakout"].low
    yield (
        "And one that goes from 512 to 8 loses {:.1f} ({:.1f} to {:.1f}), and is still at ".format(*lost)
        + f"{lowered:.1f}"
    )
    (apart,) = [c for c in read("fig_2c")["checks"] if c["what"].endswith("--com 8 less 512")]
    kls = 10 ** np.array(apart["samples"][0])
    yield f"has about {stats.gmean(kls):.0f} ({kls.min():.0f} to {kls.max():.0f} over ten seeds)"
    at_half, lost_later = (
        check("fig_2c", what)[0]
        for what in ("score in the middle of the run, --com 8", "gain in the second half, --com 8")
    )
    assert -lost_later / at_half == pytest.approx(1 / 3, abs=0.02)
    settled = {name: np.mean(run["final"]) for name, run in read("fig_1a")["runs"].items()}
    yield Figures(f"the KL of an update with COM 8 is {10 ** apart['estimate']:.0f} × that with COM 512")
    yield Figures(minus(f"COM 8 ends at {settled['8.0']:.0f}"))
    yield Figures(minus(f"COM 512 at {settled['512.0']:.0f}"))
    clipped = [f"{np.mean(read('fig_7b')['runs'][f'(0.6, {n})']['final']):.0f}" for n in (8, 32, 128)]
    yield Figures(minus("ε = 0.6 ends low with every batch, at {}, {} and {}".format(*clipped)))
    ends = [np.mean(read("fig_14")["runs"][f"('more-minibatches', {n})"]["final"]) for n in (4, 32, 128, 512)]
    yield Figures(minus("environments end at {:.0f}, {:.0f}, {:.0f} and {:.0f}".format(*ends)))
    ends = {name: np.array(run["final"]) for name, run in read("fig_3a")["runs"].items()}
    raised, good = ends["(8.0, 512.0)"], ends["(512.0, 512.0)"]
    yield Figures(minus(f"end anywhere between {raised.max():.0f} and {raised.min():.0f}"))
    yield Figures(minus(f"512 kept ends at {good.mean():.0f}, because two of its ten collapse"))
    assert (good < -1000).sum() == 2 and raised.size == 10
    _, low, high = check("fig_3a", "final score, --com 8 then 512, less 8 kept")
    assert low < 0 < high  # not shown to help, on Pendulum-v1
    mean = {name: f"{np.mean(run['return']):.1f}" for name, run in read("exploration")["runs"].items()}
    bonus = lambda step: mean[f"{step}, bonus 0.05"]  # noqa: E731
    yield f"ends at {bonus('clip_eps 0.6')}, as high as 0.1 does ({bonus('clip_eps 0.1')})"
    entropy = np.mean(read("exploration")["runs"]["com 8, bonus 0.05"]["entropy"])
    yield Figures(f"though its entropy is then {entropy:.1f}")
    yield f"without it they have {mean['clip_eps 0.6']} and {mean['clip_eps 0.1']}"
    for name in ("com 8, bonus 0.05", "com 512, bonus 0.05"):
        yield Figures(f"{spread(read('exploration')['runs'][name]['return'], 1)} |")
    plain = np.mean(read("headline")["return, last tenth"]["64"])
    four = f"with 4 gradient steps per update they reach {plain:.1f} in 25M"
    yield f"and {mean['com 512']} with `--com 512`; {four}"
    decisive = [c["outcome"] for c in read("exploration")["checks"] if c["above"] is not None]
    assert decisive == ["not enough data", "does not hold"]  # COM, epsilon
    assert sum(x > 7 for x in weak) == 3 and read("fig_1a_breakout")["verdict"] == "does not hold"


def paper_b():
    base, many = (last("fig_BN", "", "4 minibatches, which grow (the paper)", i)[0] for i in (0, 4))
    yield f"from {base:.2f} to {many:.2f}"
    estimate, low, high = check("fig_BN", "final score, N × 16, larger minibatches, less the base")
    yield f"(by {-estimate:.2f}; {-high:.2f} to {-low:.2f})"
    yield f"*rises* to {last('fig_BN', '', 'more minibatches of the same size', 4)[0]:.2f}"
    estimate, low, high = check("fig_BN", "final score, N × 16, more minibatches, less the base")
    yield f"(by {estimate:.2f}; {low:.2f} to {high:.2f})"
    assert read("fig_B11")["verdict"] == "not enough data"
    same_rate, faster = (interquartile_mean(found["samples"][0]) for found in read("fig_B11")["checks"][::2])
    yield f"reach {same_rate:.2f} at the same rate, {faster:.2f} at four times the rate"
    estimate, low, high = check("fig_B1a", "final score, N 64, K 4 less N 8, K 32")
    (found,) = read("fig_B1a")["checks"]
    short, long = map(interquartile_mean, found["samples"])
    yield f"They score {short:.2f} against {long:.2f}, {estimate:.2f} more ({low:.2f} to {high:.2f})"
    many, few = (np.mean(sample, axis=0) for sample in found["samples"])  # by games, of which the last is Asterix
    yield f"Asterix ({many[2]:.2f} against {few[2]:.2f})"
    yield f"SpaceInvaders has {many[1]:.2f} against {few[1]:.2f}, Breakout {many[0]:.2f} against {few[0]:.2f}"
    less = "{:.2f} ({:.2f} to {:.2f})".format
    steps, envs, both = (
        check("fig_B1b_long", f"final score, {what}")
        for what in ("K × 4 less the base", "N × 4 less the base", "N × 4 less K × 4")
    )
    yield minus(f"longer rollouts by {less(*steps)}, more environments by {less(*envs)}")
    yield minus("longer rollouts ({:.2f}, {:.2f} to {:.2f})".format(*both))
    assert read("fig_B1b_long")["verdict"] == "not enough data"
    (long,) = {next(iter(run["command"].split("--total-timesteps ")[1:])).split()[0]
               for run in read("fig_B1b_long")["runs"].values()}  # fmt: skip
    yield f"After {int(long) / 1e6:.1f}M steps four times the data per update"
    for what in ("N × 4 less the base", "K × 4 less the base"):
        more, base = map(np.array, samples(f"final score, {what}", "fig_B1b_long"))
        lows = [stats.ttest_ind(more[:, i], base[:, i], equal_var=False).confidence_interval().low for i in (0, 1)]
        assert lows[0] < 0 < lows[1]  # Breakout, SpaceInvaders
    large, some, most = (
        check("fig_BN_long", f"final score, {what} minibatches, less the base")
        for what in ("N × 16, larger", "N × 4, more", "N × 16, more")
    )
    yield minus(f"with 128 environments by {less(*large)}")
    assert read("fig_BN_long")["verdict"] == "not enough data"
    more, base = map(np.array, samples("final score, N × 16, larger minibatches, less the base", "fig_BN_long"))
    low, high = stats.ttest_ind(more[:, 0], base[:, 0], equal_var=False).confidence_interval()
    assert high < 0
    fall = (base - more)[:, 0].mean()
    yield f"on Breakout these 128 end lower, by {fall:.2f} ({-high:.2f} to {-low:.2f})"
    found = {}
    for what in ("N × 4", "K × 4"):
        more, base = map(np.array, samples(f"final score, {what} less the base", "fig_B1b_long"))
        for i, game in enumerate(("Breakout", "SpaceInvaders", "Asterix")):
            low, high = stats.ttest_ind(more[:, i], base[:, i], equal_var=False).confidence_interval()
            found[what, game] = minus(f"{(more - base)[:, i].mean():.2f}, {low:.2f} to {high:.2f}")
    space = [found[what, "SpaceInvaders"] for what in ("N × 4", "K × 4")]
    yield Figures("both are surely above the base (N × 4 by {}; K × 4 by {})".format(*space))
    yield Figures(f"on Asterix K × 4 ({found['K × 4', 'Asterix']})")
    yield Figures(f"on Breakout neither ({found['N × 4', 'Breakout']}; {found['K × 4', 'Breakout']})")
    yield minus(f"with 32 and 128 environments by {less(*some)} and {less(*most)}")
    yield from more_epochs()
    estimate, low, high = check("fig_B1b", "final score, N × 4 less K × 4")
    yield minus(f"32 × 32 against 8 × 128, it is not seen ({estimate:.2f}, {low:.2f} to {high:.2f})")
    same = "N × 4 with the base's minibatches less it, mean over games"
    grown = "N × 4 less the base, mean over games"
    low, estimate, high = sorted(map(percent, check("fig_B3", f"log10 of feature rank, {same}")))
    yield f"the last layer uses) is {estimate:.0f} % higher ({low:.0f} to {high:.0f})"
    low, estimate, high = sorted(-100 * x for x in check("fig_B3", f"dormant neurons (share), {same}"))
    yield f"{estimate:.1f} points fewer units are dormant, hardly ever active ({low:.1f} to {high:.1f})"
    low, estimate, high = sorted(-percent(x) for x in check("fig_B3", f"log10 of weight norm, {same}"))
    yield f"the weight norm is {estimate:.0f} % smaller ({low:.0f} to {high:.0f})"
    low, estimate, high = sorted(-percent(x) for x in check("fig_B3", f"log10 of gradient kurtosis, {same}"))
    yield f"(how heavy-tailed its entries are) is {estimate:.0f} % lower ({low:.0f} to {high:.0f})"
    low, estimate, high = sorted(-percent(x) for x in check("fig_B3", f"log10 of feature rank, {grown}"))
    yield f"the rank is {estimate:.0f} % *lower* ({low:.0f} to {high:.0f})"
    low, estimate, high = sorted(-percent(x) for x in check("fig_B3", f"log10 of weight norm, {grown}"))
    yield f"the norm {estimate:.0f} % smaller ({low:.0f} to {high:.0f})"
    outcomes = {found["what"]: found["outcome"] for found in read("fig_B3")["checks"]}
    assert outcomes[f"log10 of gradient kurtosis, {grown}"] == "not enough data"
    moved = lambda what, of: np.subtract(*(np.mean(x, axis=0) for x in samples(f"log10 of {what}, {of}")))  # noqa: E731
    assert (moved("feature rank", same) > 0).all()  # in every game
    assert (np.sign(moved("gradient kurtosis", grown)) == [-1, 1, 1]).all()
    assert (
        check("fig_B4", f"effective sample size (%), {same}")[2]
        < 0
        < check("fig_B4", f"effective sample size (%), {grown}")[1]
    )


def more_epochs():
    less = "{:.2f} ({:.2f} to {:.2f})".format
    asked = (
        "final score, the base less E × 4",
        "final score at E × 4, N × 4 less the base N",
        "final score, E × 4 and N × 4 less the base",
    )
    hurt, more, above = (less(*check("fig_B1c_long", what)) for what in asked)
    assert read("fig_B1c_long")["verdict"] == "holds" and read("fig_B1c")["verdict"] == "not enough data"
    yield f"With 8 × 32 16 epochs end {hurt} below 4"
    yield f"with 16 epochs 32 × 32 end {more} above 8 × 32, and {above} above 8 × 32 with 4"
    yield Figures(f"16 epochs in place of 4, ends {hurt} below the base")
    yield Figures(f"N × 4 ends {more} above the base's N, and {above} above the base itself")
    of = [tuple(map(np.array, samples(what, "fig_B1c_long"))) for what in asked[:2]]
    (base, epochs), (both, again) = of
    assert (epochs == again).all() and both[:, 0].mean() < base[:, 0].mean()
    said = {}
    for i, game in enumerate(("Breakout", "SpaceInvaders", "Asterix")):
        yield Figures("| {} | {:.2f} | {:.2f} | {:.2f} |".format(game, *(x[:, i].mean() for x in (base, epochs, both))))
        for name, (a, b) in zip(("loss", "gain"), of, strict=True):
            low, high = stats.ttest_ind(a[:, i], b[:, i], equal_var=False).confidence_interval()
            said[name, game] = minus(f"{(a - b)[:, i].mean():.2f}, {low:.2f} to {high:.2f}")
            assert (low > 0) == ((name, game) not in (("loss", "Asterix"), ("gain", "Breakout")))
    yield f"on Breakout 32 environments are not shown to help ({said['gain', 'Breakout']})"
    yield Figures(f"is sure on Breakout ({said['loss', 'Breakout']})")
    yield Figures(f"just so on SpaceInvaders ({said['loss', 'SpaceInvaders']})")
    yield Figures(f"the base's seeds differ most ({said['loss', 'Asterix']})")
    yield Figures(f"is sure on SpaceInvaders ({said['gain', 'SpaceInvaders']}) and Asterix ({said['gain', 'Asterix']})")


def samples(what, figure="fig_B3"):
    (found,) = [c["samples"] for c in read(figure)["checks"] if c["what"] == what]
    return found


def interquartile_mean(values):
    return stats.trim_mean(np.ravel(values), 0.25)


def tally():
    files = (ROOT / "results").glob("fig_*.json")
    figures = [json.loads(file.read_text()) for file in files]
    found = {figure["figure"]: figure["verdict"] for figure in figures if figure["preset"] == "laptop"}
    paper_a = {name: verdict for name, verdict in found.items() if name[0] != "B"}
    levels_ = {name for name in paper_a if re.match("11|15|16|17|18|19|20", name)}
    numbers = Counter(verdict for name, verdict in paper_a.items() if name not in levels_ | {"10"})
    yield f"`figures.py` reproduces {len(paper_a)} figures of paper A"
    yield (
        f"Of the {sum(numbers.values())} figures on Pendulum-v1 and the bowl, the claims of {numbers['holds']} hold, "
        f"none is refuted, {numbers['not enough data']} are undecided, and "
        f"{numbers['not applicable here']} is not applicable"
    )
    assert numbers["does not hold"] == 0
    assert paper_a["10"] == "does not hold"
    yield "Figure 10 has a toy in place of its robot hands, on which its claim does not hold"
    yield f"The remaining {len(levels_)} figures, of SFL on Kinetix"
    holds = {name for name, verdict in paper_a.items() if verdict == "holds"}
    assert holds == {"1a", "2b", "2c", "5a"} | {"1b", "2a", "3b"} | {"6a"} | {"6b"} | {"7a"}
    sets = "four figures share one on Pendulum-v1, and three the bowl's"
    (row,) = [line for line in tally_of("laptop", ROOT / "results").splitlines() if "gradient descent" in line]
    claims, yes, no, none, open_, not_run, _, with_one = row.split("|")[3:-1]
    assert (int(no), int(not_run)) == (0, 0)
    told = f"{yes.strip()} of {claims.strip()} claims hold, on {with_one.strip()} sets of runs"
    yield f"On Pendulum-v1 and the bowl {told}"
    yield f"{open_.strip()} are undecided, and {none.strip()} is not applicable; of three of the undecided"
    yield f"(The {len(holds)} that hold rest on {row.split('|')[-2].strip()} sets of runs: {sets}, which had no rules.)"
    chance = {figure["figure"] for figure in figures if figure["preset"] == "breakout"}
    (row,) = [line for line in tally_of("breakout", ROOT / "results").splitlines() if "gradient descent" in line]
    _, _, claims, yes, no, _, open_, not_run, *_ = (int(x) if x.strip().isdigit() else 0 for x in row.split("|")[1:-1])
    assert yes == 0 and claims - not_run == no + open_
    yield f"{len(chance)} of them were made as well, which check {no + open_}"
    yield f"claims: none holds, {no} do not, and {open_} are undecided"
    yield f"On Breakout none of {no + open_} holds, {no} do not, and {open_} are undecided."
    repeats = {"B9", "B10", "B13"}  # of B2, B3 and B6
    numbers = Counter(verdict for name, verdict in found.items() if name[0] == "B" and name not in repeats)
    yield (
        f"Of its {sum(numbers.values())} claims {numbers['holds']} holds here, {numbers['does not hold']} do not, "
        f"{numbers['not enough data']} are undecided, and {numbers['not applicable here']} is not applicable"
    )


def again():
    """What stayed undecided on Pendulum, with more seeds."""
    found = {name: figure["checks"] for name, figure in read("again")["figures"].items()}
    yield "Five of these 9 figures, three claims, were asked once more, of 30 or 35 new seeds: 5b does not hold"
    assert {name: [c["outcome"] for c in of if c["outcome"] != "holds"] for name, of in found.items()} == {
        "5b": ["does not hold"], "12": ["not enough data"], "9": ["not enough data"]
    }  # fmt: skip
    by_hand = {}
    for name, of in found.items():
        for c in of:
            a, b = c["samples"]
            low, high = (
                stats.ttest_ind(a, b, equal_var=False).confidence_interval()
                if np.ndim(b)
                else stats.ttest_1samp(a, b).confidence_interval()
            )
            assert len(a) == (30 if name == "9" else 35)
            by_hand[c["what"]] = minus(f"{np.mean(a) - np.mean(b):.2f} ({low:.2f} to {high:.2f})")
    middle, second, apart, *_ = (by_hand[c["what"]] for c in found["5b"])
    yield Figures(f"it gains {second} of the way in the second half")
    good, slow = (np.mean(x) for x in found["5b"][3]["samples"])
    yield Figures(f"({middle.replace(' (', ', ')[:-1]}; 0.1 was asked), though less than ε = 0.1 ({good:.2f}) and ε")
    yield Figures(f"ε = 0.002 ({slow:.2f}), and it ends {apart} below ε = 0.1")
    low_, some, high_ = (by_hand[c["what"]] for c in found["12"])
    yield Figures(f"COM 8 and 64 end {low_} and {some} below COM 512")
    yield Figures(f"COM 4096 with ε = 0.6 ends {high_} below: lower")
    (larger,) = (by_hand[c["what"]] for c in found["9"])
    yield Figures(f"with 4 environments larger minibatches end {larger} lower: lower")
    before = samples("final score, 4 environments, more-minibatches less larger-minibatches", "fig_9")
    more, fewer = (np.concatenate(x) for x in zip(found["9"][0]["samples"], before, strict=True))
    low, high = stats.ttest_ind(more, fewer, equal_var=False).confidence_interval()
    assert len(more) == 50
    yield Figures(f"have {np.mean(more) - np.mean(fewer):.2f}, {low:.2f} to {high:.2f})")
    pair, best = (np.array(read("fig_12b")["runs"][f"({com}, 0.2)"]["final"]) for com in ("4096.0", "512.0"))
    scale = PRESETS["laptop"].high - PRESETS["laptop"].low
    assert stats.ttest_ind(best, pair, equal_var=False).confidence_interval().high < 0.1 * scale


def levels():
    found = read("estimators")["found"]
    for name in ("window, 512 steps", "random levels", "2 episodes"):
        yield f"{found[name]['learnability']:.3f} ± {found[name]['ci95']:.3f}"
    yield f"of {read('estimators')['candidates']:,} levels, the {read('estimators')['kept']} best"
    peaks = read("search")["peak_bytes"]
    assert max(peaks.values()) / min(peaks.values()) < 1.005
    yield "no more memory for 4,096 candidates than for 256 (within half a percent)"


def random_policies():
    games = read("minatar_scores")["games"]
    means = [games[f"{game}-MinAtar"]["random"]["mean"] for game in ("Breakout", "SpaceInvaders", "Asterix")]
    yield "random policies have {:.1f}, {:.1f} and {:.1f} (Breakout, SpaceInvaders, Asterix)".format(*means)
    text = " ".join((ROOT / "docs" / "gallery.md").read_text().split())
    assert "return of {:.1f} on Breakout, {:.1f} on SpaceInvaders and {:.1f} on Asterix".format(*means) in text
    most = [read(name)["return, last tenth"] for name in ("longer", "rollouts")]
    highest = max(value for of in most for seeds in of.values() for value in seeds)
    assert f"reached here on Breakout is {highest:.0f}, after a hundred million steps" in text


def million():
    points = {
        (point["setting"]["env_id"], point["setting"]["num_envs"]): point["result"]
        for point in read("scaling")["points"]
        if point["setting"]["num_rollout_chunks"] is None
    }
    cartpole, few = points["CartPole-v1", 2**20], points["CartPole-v1", 1024]
    speed = lambda result: f"{round(result['steps_per_second'], -3):,.0f}"  # noqa: E731
    yield f"takes {cartpole['peak_bytes'] / 1e9:.1f} GB and makes {speed(cartpole)} steps per second"
    yield f"(1,024 environments with the same flags: {round(few['steps_per_second'], -2):,.0f})"
    breakout = points["Breakout-MinAtar", 2**20]
    yield f"take {breakout['peak_bytes'] / 1e9:.1f} GB and make {speed(breakout)} steps per second"


def flags():
    runs = read("flags")["runs"]["Asterix-MinAtar"]
    names = ("gae-lambda 0.5", "base", "minibatch-size 128", "update-epochs 8")
    short, base, small, often = (runs[name]["final_return"]["mean"] for name in names)
    yield f"256 gradient steps in minibatches of 128 ended at {small:.1f}"
    yield f"in minibatches of 512, 128 steps ended at {often:.1f} and 64 at {base:.1f}"
    yield f"`--gae-lambda 0.5` brought {short:.1f} in place of {base:.1f}"


def speed():
    rows = read("compare")["summary"]
    ratios = [row["ratios"]["steps_per_second"]["median"] for row in rows]
    yield f"{min(ratios):.1f} to {max(ratios):.1f} × as fast"
    (memory,) = [
        row["ratios"]["peak_bytes"]["median"]
        for row in rows
        if (row["env_id"], row["num_envs"]) == ("Breakout-MinAtar", 16384)
    ]
    yield f"{100 * memory:.0f} % of rejax's memory"
    others = [row["ratios"]["peak_bytes"]["median"] for row in rows if row["ratios"]["peak_bytes"]["median"] != memory]
    yield f"elsewhere {min(others):.1f} to {max(others):.1f} times as much"
    compile_ = [row["ratios"]["compile_s"]["median"] for row in rows]
    yield f"it takes {min(compile_):.1f} to {max(compile_):.0f} × as long to compile"


CLAIMS = [
    text
    for source in (
        first_runs,
        hundred_million,
        pauses,
        rollouts,
        wider,
        control_tasks,
        usual,
        without_chance,
        inner,
        clip,
        resumed,
        stuck,
        doctor,
        tally,
        again,
        million,
        random_policies,
        breakout,
        paper_b,
        levels,
        flags,
        speed,
    )
    for text in source()
]


def prose(text):
    """A page's sentences, without commands, tables, headings and addresses."""
    text = re.sub(r"```.*?```", "\n\n", text, flags=re.S)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    for block in re.split(r"\n\s*\n|\n(?=- )", text):
        if block.strip() and block.strip()[0] not in "#|!":
            yield from re.split(r"(?<=[.!?]\)) |(?<=[.!?]) (?=[A-Z*`\[(])", " ".join(block.split()))


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_the_results_say_is_on_the_page(claim):
    page = (ROOT / claim.page).read_text() if hasattr(claim, "page") else BOTH
    assert claim in " ".join(page.split())


# What sentences with numbers say that is not computed above.
NOT_COMPUTED = {
    # Said again in words; the numbers are computed elsewhere on the page.
    "goes on when it gets 4,096": "experiments/PREREGISTERED.md",
    "transitions is not above 0": "experiments/PREREGISTERED.md",
    "64 environments do not stand still (two of five seeds leave)": "computed in stuck()",
    "The fresh gain is 0 within its error": "computed in stuck()",
    "With 4 per update more environments do not help": "computed in inner()",
    "64 environments with rollouts 64 times as long have": "2,048 / 32",
    "per update as 4,096, and end within the error of these, after 12.6M steps and after 100M": "rollouts()",
    "Brackets are 95 % intervals": "docs/headline.md",
    "only with 256 gradient steps per update are more environments shown to end higher than 64": "inner()",
    "five times the entropy bonus or 256 gradient steps freed all five policies": "stuck(), inner()",
    "on Breakout-MinAtar with `--sticky-actions 0.1` after 12.6M environment steps": "HALF",
    "9 with 14, and 12a with 12b, stay open": "computed in again()",
    "One rollout is now 2 million transitions": "65,536 x 32",
    "64 environments end far below 4,096": "computed in inner()",
    "On SpaceInvaders and Asterix they also end far below 64 with fewer": "computed in inner()",
    "after 100M steps, 64 environments with rollouts of": "experiments/rollouts.py",
    "64 environments should stand still, but two of five seeds leave": "computed in stuck()",
    "(epochs × minibatches; here 4)": "FEW",
    "many gradient steps on few transitions** (here 256)": "MINIBATCHES",
    "Without either, minibatches have 2,048 transitions": "arguments.settle_minibatches",
    "the last in minibatches of 32: the limits 16, 128 and 64 are guesses": "the two rules",
    "with what is usual elsewhere, 320 gradient steps in minibatches of 64": "experiments/usual.py",
    "Of a run of the first panel, continued to 25M steps": "the headline's budget",
    "(0 is a random policy, 1 a longer run of `ppo.py`)": "experiments/scores.py",
    "At 3·10⁻⁴,": "the learning rate of experiments/usual.py and of headline.ARMS",
    "Two of the five runs with 64 environments": "computed in stuck()",
    "- **65,536 environments** with rollouts of 4 steps, so that 67M steps make 256": "experiments/wider.py",
    "updates, are far behind 4,096 on Breakout": "computed in wider()",
    "- **65,536 environments with rollouts of 4 steps fall behind**: after 67M": "computed in wider()",
    # The size of an experiment, experiments/inner.py if nothing else is said.
    "so a minibatch has 2,048 transitions on the diagonal, and 32 to 131,072 elsewhere": "MINIBATCH, SIZES",
    "64 environments with rollouts of 256 or 2,048 steps": "experiments/entropy.py",
    "all five policies leave within 2M steps with 256 gradient steps": "computed in inner()",
    "Return after 12.6M steps, and entropy when the return first reaches 5": "HALF, LEVELS",
    "At the end of 2.1M steps": "experiments/paper_a_runs.py",
    "with sticky actions, 64 environments, five seeds": "experiments/paper_a_runs.py",
    "64 environments × 4 steps beat 8 × 32": "experiments/paper_b_runs.py",
    "nominally of 95 %": "docs/figures.md",
    "an interval that really covered 95 % would about include 0": "docs/figures.md",
    "three of them (figures B1b, BN and B12": "their checks",
    "from 8 to 128 environments": "experiments/paper_b_runs.py",
    "32 environments with minibatches four times as large": "experiments/paper_b_runs.py",
    "a random policy has 0 and ten seeds of a longer run of `ppo.py` have 1": "experiments/scores.py",
    "a fresh gain near 0 alone is no plateau": "docs/doctor.md",
    "when the return first reaches 5, its": "LEVELS",
    "minibatches of 32 transitions is open": "64 x 32 / 64",
    "Of the first five seeds each with 64, 512 and 4,096 environments": "doctor.py, of experiments/headline.py",
    "the doctor calls thirteen a standstill (3, 5 and 5)": "doctor.py, of experiments/headline.py",
    "Of fifteen runs with 64 environments and 256 gradient steps": "doctor.py, of the runs of experiments/inner.py",
    "With 4,096 environments, or rollouts of 2,048 steps, there are 256": "4 x 64 x 2,048 / 2,048",
    "512 environments with 32 gradient steps reach": "4 x 512 x 32 / 2,048",
    "A third of the learning rate with 32 gradient steps": "experiments/headline.py",
    "With 4 or 32 none of eight comparisons": "computed in inner()",
    "end *above* 8 × 32": "experiments/paper_b_runs.py",
    "with ten million B1b and BN are undecided, and B1c holds": "computed in paper_b()",
    "(by the rule of figure B11 undecided; 8 environments were not tried at these rates)": "a figure",
    # Defaults and arithmetic.
    "in 2,048 parallel environments": "the default of --num-envs",
    "32 times the environments and 32 times the minibatches": "65,536 / 2,048",
    "is only 8 of them": "2^24 / 2^21",
    "in 128 new episodes": "the default of --num-eval-episodes",
    "p (1 − p)": "a formula",
    "At 16,384 environments of Breakout-MinAtar": "results/compare.json",
    "the 64 that": "--keep of benchmarks/estimators.py",
    # Names, versions, dates.
    "Python 3.11, 3.12 or 3.13": "requirements.txt",
    "Installing took 40 s": "a clean clone, 2026-11-21",
    "Beukman et al. 2026, [Preventing Learning Stagnation in PPO by Scaling to 1 Million": "a title",
    "Mayor et al. 2025": "a paper",
    "Stable-Baselines3": "a name",
    "Pendulum-v1": "a name",
    "Measured on 2026-11-21": "a date",
    "brought 1.07 to 1.13 × on Breakout-MinAtar, 1.10 to 1.47 × on CartPole-v1": "docs/log.md",
    # The first screen and what to do.
    "with 256, because 32 was not tried there": "experiments/stuck.py, experiments/inner.py",
    "16 and 128, lie somewhere between": "the two rules above",
    "With 8 and 32 gradient steps and": "8 minibatches x 1 and 4 epochs",
    "With 512 environments and 32 gradient steps": "4 x 512 x 32 / 2,048",
    "Dashed, on SpaceInvaders and Asterix: 64 environments with 4 gradient steps": "FEW",
    "*Fewer than 16 gradient steps": "arguments.FEW_STEPS",
    "start again with at least 32 gradient steps": "MINIBATCHES",
    "or with 256 gradient steps, and two of them without any change": "computed in inner()",
    "*128 gradient steps or more, in minibatches of 64 transitions or fewer:*": "experiments/advice.py",
    "with 8 to 128 gradient steps (`--com 8`) or with 8 and 32": "figures 6a, 6b: 8 minibatches x 1, 4, 16 epochs",
    "Of runs with 32 gradient steps that got stuck": "docs/doctor.md",
    "with 64 gradient steps too large an outer step pauses near 6": "docs/figures.md",
    "that with 32 and with 256 they still end higher on Breakout, is refuted": "computed in inner()",
    "(Three of the 7 are weak": "docs/figures.md",
    "(The best ε, 0.02, was not tried": "experiments/exploration.py",
    "(with ε 0.1, on another machine)": "docs/figures.md",
    "with its sums in another order it reached 39": "that run was not kept",
    "4, 32 and 256 gradient steps were compared": "MINIBATCHES",
    "a learning rate of 10⁻³": "the default",
    "**After 100M steps**": "experiments/longer.py",
    "So 4,096 end more than 10 % higher, as claimed": "computed in hundred_million()",
    "But 64 do not stand still (growth within 5 %)": "experiments/longer.py",
    "(A quarter is 25M steps here": "100.7M / 4",
    "both with 256 gradient steps per update": "experiments/rollouts.py",
    "with rollouts of 2,048 steps, which give an update as many transitions": "experiments/rollouts.py",
    "as 4,096 environments have": "experiments/rollouts.py",
    "by the rule more than 10 % above those with short rollouts": "computed in rollouts()",
    "That 4,096 grow more is undecided": "computed in pauses()",
    "With what is usual elsewhere, 320 gradient steps in minibatches of 64 at 3·10⁻⁴": "experiments/usual.py",
    "on Asterix with 256 environments": "docs/flags.md",
    "On Asterix with 256 environments": "docs/flags.md",
    "when most of the 1.10 nats were gone": "the doctor's output",
    "Advice 3 is": "the lines above",
    "and 4 gradient steps per update": "FEW",
    "4, 32 and 256 gradient steps per update are 1, 8 and 64 minibatches": "MINIBATCHES",
    "All these runs have rollouts of 32 steps": "experiments/inner.py",
    "means of five seeds with 95 % intervals": "experiments/inner.py",
    "they have made an eighth and a 64th as many gradient steps as 64": "64 / 512, 64 / 4,096",
    "with 32 gradient steps**, 64 environments are on no game shown to be worse than with 4": "computed in inner()",
    "far better than with 256 on SpaceInvaders": "computed in inner()",
    "`--sticky-actions 0.1 --num-envs 64 --minibatch-size 2048`: 4 gradient steps": "FEW",
    "4,096 environments with minibatches of 2,048": "experiments/resumed.py",
    "the policies that went on, with 32 gradient steps": "experiments/resumed.py",
    "are shown to end higher than 64 only with 256 gradient steps**": "computed in inner()",
    "Between `--com 8` and 512 it is undecided": "computed in breakout()",
    "with 64 environments 32 gradient steps end at": "experiments/control.py",
    "On ReacherHard only 32 in place of 4": "computed in control_tasks()",
    "on two of three tasks: 32 gradient steps end higher than 4 on": "computed in control_tasks()",
    "32 end higher than 256 in minibatches of 32": "computed in control_tasks()",
    "with it 256 gradient steps": "experiments/control.py",
    "There, with 256,": "experiments/control.py",
}


def test_every_number_is_accounted_for():
    """What is left of a sentence, or of a table's row but its head, without the claims and the fragments above has no
    digit, but in `code`."""
    plain = lambda text: re.sub(r"\]\([^)]*\)", "]", text)  # noqa: E731
    known = sorted([plain(claim) for claim in CLAIMS if type(claim) is str] + list(NOT_COMPUTED), key=len, reverse=True)
    left = []
    for sentence in prose(BOTH):
        rest = sentence
        for fragment in known:
            rest = rest.replace(fragment, "")
        if re.search(r"\d", re.sub(r"`[^`]*`", "", rest)):
            left.append(rest)
    for row, below in itertools.pairwise(BOTH.splitlines()):
        rest = plain(row) if row.startswith("|") and not below.startswith("|---") else ""
        for claim in known:
            rest = rest.replace(claim, "")
        left += [rest] * bool(re.search(r"\d", re.sub(r"`[^`]*`", "", rest)))
    assert left == []
    everything = " ".join(prose(BOTH))
    assert [fragment for fragment in NOT_COMPUTED if fragment not in everything] == []  # outdated entries


def test_every_row_with_intervals_is_computed():
    rows = [line for line in BOTH.splitlines() if line.startswith("|") and re.search(r"\d \(\S*\d to \S*\d\)", line)]
    assert len(rows) > 15 and [row for row in rows if row not in CLAIMS] == []


def test_rules_are_older_than_the_runs_that_they_are_for():
    """By git, and by the clock of the runs where results/ has it."""
    lines = report.git("log", "--format=%H %ct").splitlines()
    written = {commit: int(seconds) for commit, seconds in (line.split() for line in lines)}
    if len(written) < 100:
        pytest.skip("git does not have the whole history here")
    noise = "## Do policies on a plateau of noise go on?"  # Asterix was added to it in a second commit
    (asked,) = results.committed(noise, until="1986ea6")["rules were committed in"].values()
    assert [commit[:7] for commit in asked] == ["d31c800", "5e00a6c"]  # of some twenty that changed other sections
    compared = 0
    for file in (ROOT / "results").glob("*.json"):
        found = json.loads(file.read_text())
        if "rules were committed in" not in found:
            continue
        runs = found.get("runs", {})
        started = [run["started"] for run in runs.values() if "started" in run] if "figure" in found else []
        started += runs.get("started", []) if file.stem in ("longer", "rollouts", "wider", "control") else []
        started += [when for figure in found.get("figures", {}).values() for when in figure["started"]]
        for heading, commits in found["rules were committed in"].items():
            assert commits and set(commits) <= set(written), (file.name, heading)
            rule = commits[file.stem == "wider"]  # its second version is that of its runs; others had additions only
            for when in started:
                assert written[rule] < datetime.datetime.fromisoformat(when).timestamp(), (file.name, heading)
                compared += 1
    assert compared > 300


def test_every_fence_is_a_line_of_its_own():
    """A paragraph that is wrapped anew must not take in a command."""
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        fences = [line for line in page.read_text().splitlines() if "```" in line]
        assert len(fences) % 2 == 0 and [line for line in fences if not re.fullmatch(r" *```\w*", line)] == [], page


def test_the_gallery_shows_every_picture():
    shown = re.findall(r"\]\(\.\./results/([^)]+\.png)\)", (ROOT / "docs" / "gallery.md").read_text())
    assert sorted(shown) == sorted(path.name for path in (ROOT / "results").glob("*.png"))  # each once
