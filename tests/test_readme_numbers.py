"""Every sentence of the README with a number: either it is made here from results/, or it is listed as one that is
not a result of ours, with the reason."""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


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
    yield f"the run took {seconds[1]:.0f} s and reached {many:.1f}"
    updates = [run["updates"] for run in runs.values()]
    assert updates[1] == 8
    yield f"the same budget makes {updates[2]} updates and reached {short:.1f}"


def doctor():
    cases = read("doctor")["cases"]
    labels = [(case["expected"], label) for case in cases.values() for label in case["found"]]
    healthy = [
        (case["expected"], label)
        for name, case in cases.items()
        if case["expected"] in ("climbing", "settled", "few updates") or name == "pendulum, finished"
        for label in case["found"]
    ]
    fine = {"climbing", "settled", "no gain", "few updates"}
    assert all(label in fine for _, label in healthy)
    right = sum(expected == label for expected, label in labels)
    yield f"Of {len(labels)} runs with a built-in cause, or healthy, it names {right} rightly"
    yield f"names no fault in the {len(healthy)} that are healthy or finished"
    (climb,) = [x for name, x in read("doctor_how_many")["results"].items() if "breakout-climb" in name]
    shares = {point["num_envs"]: point["quotient"] for point in climb["points"]}
    yield f"{100 * shares[2048]:.0f} % at 2,048 environments, {100 * shares[32768]:.0f} % at 32,768"
    yield f"N / (N + {climb['critical'][0]:,.0f})"


def headline():
    found, at_level = read("headline"), read("entropy")["entropy when the return first reaches the level"]
    late, half = found["return, last tenth"], found["return, last tenth of the first half"]
    ends = read("entropy")["return, last tenth"]
    for n in (64, 512, 4096):
        kept = spread(at_level[f"Breakout, {n} × 32"], 2)
        yield f"| {n:,} × 32 | {spread(half[str(n)], 1)} | {spread(late[str(n)], 1)} | {kept} |"
    for steps in (256, 2048):
        run = f"Breakout, 64 × {steps}"
        yield f"| 64 × {steps:,} | {spread(ends[run], 1)} | | {spread(at_level[run], 2)} |"
    few, many = (at_level[f"Breakout, {n} × 32"] for n in (64, 4096))
    yield f"have {min(few):.2f} to {max(few):.2f} nats of it left, those of 4,096 {min(many):.2f} to {max(many):.2f}"
    long = np.mean(ends["Breakout, 64 × 2048"])
    yield f"it is at {np.mean(half['4096']):.0f} half-way and ends at {np.mean(late['4096']):.0f}"
    yield f"64 environments whose rollouts are 64 times as long are at {long:.0f} half-way"
    yield f"a random policy has {np.log(3):.2f}"  # three actions
    still = [x for x, stands in zip(late["64"], found["stands still, of each seed"]["64"], strict=True) if stands]
    assert len(still) == 3 and max(still) < 7
    yield f"512 environments end at {np.mean(late['512']):.1f}, and 64 at {np.mean(late['64']):.1f}"
    growth = [100 * x for x in found["growth from third to last quarter"]["4096"]]
    yield "they grow by only {:.0f} % ({:.0f} to {:.0f}) in their last quarter".format(*growth)
    assert all(low <= 0 for _, low, _ in (interval(found["gains"][n]["fresh, last half"]) for n in late))


def entropy():
    found = read("entropy")
    kept, ends = found["entropy when the return first reaches the level"], found["return, last tenth"]
    at = lambda game: [f"{np.mean(kept[f'{game}, {n} × 32']):.2f}" for n in (64, 512, 4096)]  # noqa: E731
    yield "have {}, {} and {} nats left, and {}, {} and {}".format(*at("SpaceInvaders"), *at("Asterix"))
    outcomes = {kind: [check["outcome"] for check in checks] for kind, checks in found["checks"].items()}
    for kind in ("more environments", "more data of 64 environments", "return with more data of 64 environments"):
        assert set(outcomes[kind]) == {"holds"}
    told = [
        [-c["estimate"], -c["high"], -c["low"]]
        for c in found["checks"]["return with more environments with as much data"]
    ]
    shown = "({:.1f}, {:.1f} to {:.1f}, and {:.1f}, {:.1f} to {:.1f}, in favour of the long rollouts)"
    yield minus(shown.format(*told[1], *told[0]))
    few, many = (spread(ends[f"SpaceInvaders, {n} × 32"], 0) for n in (64, 4096))
    yield f"64 environments have a return of {few}, 4,096 have {many}"
    few, many = (spread(ends[f"Asterix, {n} × 32"], 1) for n in (64, 4096))
    yield f"On Asterix they have {few} and {many}"


def stuck():
    """What frees from the start, and what on the plateau."""
    found, before = read("stuck"), read("headline")
    start = before["return, last tenth of the first half"]
    branch = before["branch, last tenth"]
    after = found["return, last tenth"] | {"4,096 environments": branch}
    bonus, loop = "entropy bonus × 5", "inner loop for 64"
    rows = {
        "unchanged": ("64", "unchanged"),
        bonus: ("entropy", bonus),
        "4,096 environments": ("4096", "4,096 environments"),
        "bonus × 5 and 4,096 environments": ("entropy, 4096", f"{bonus}, 4,096 environments"),
        f"{loop}: minibatches of 256, learning rate 3·10⁻⁴": ("tuned", loop),
        "a quarter of the clip range: `--clip-eps 0.05`": ("eps", "ε ÷ 4"),
    }
    for row, (early, late) in rows.items():
        above = sum(x > 7 for x in after[late])
        yield f"| {row} | {spread(start[early], 1)} | {spread(after[late], 1)} | {above} |"
    assert [sum(x > 7 for x in after[late]) for _, late in rows.values()] == [2, 5, 0, 4, 1, 0]
    assert [check["outcome"] for check in found["checks"]][3:5] == ["does not hold"] * 2  # the inner loop, epsilon
    more, long = after["entropy bonus × 25"], read("entropy")["return, last tenth"]["Breakout, 64 × 2048"]
    yield f"| entropy bonus × 25 | not tried | {spread(more, 1)} | {sum(x > 7 for x in more)} |"
    yield f"| rollouts 64 times as long: `--num-steps 2048` | {spread(long, 1)} | not tried | |"
    better = [np.mean(x) - np.mean(after[bonus]) for x in (start["4096"], long)]
    assert min(better) > 5.5 and max(better) < 7.5
    again = found["again, on other seeds"]
    halfway = start["64"] + again["return at half, each seed"]
    at_the_end = after["unchanged"] + again["return, last tenth, of those that are stuck"]["unchanged"]
    check, above = again["check"], again["of these above 7"]
    assert again["the bonus frees"] == "holds" and (above[bonus], above["unchanged"]) == (9, 7)
    yield f"{check['estimate']:.1f} ({check['low']:.1f} to {check['high']:.1f}) above"
    assert max(start["64"]) < 7 and sum(x < 7 for x in after["unchanged"]) == 3 and len(halfway) == 15
    yield f"(of fifteen seeds {sum(x <= 7 for x in halfway)} and {sum(x <= 7 for x in at_the_end)})"
    first = found["first million steps above it"]
    assert (min(first[bonus]), max(first[bonus])) == (3, 10)  # after 2M to 9M steps


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
    changed = {name: np.mean(run["final"]) for name, run in read("fig_3a_breakout")["runs"].items()}
    raised, kept, lowered = (changed[f"({a}.0, {b}.0)"] for a, b in ((8, 512), (512, 512), (512, 8)))
    stayed = changed["(8.0, 8.0)"]
    yield f"at {raised:.1f}, where `--com 512` throughout has {kept:.1f}, and `--com 8` kept has {stayed:.1f}"
    yield f"goes from 512 to 8 does not fall back: {lowered:.1f}"
    estimate, low, _ = check("fig_3a", "final score, --com 8 then 512, less 512 kept")
    assert estimate < -0.5 and low < 0  # far below, on Pendulum-v1
    mean = {name: f"{np.mean(run['return']):.1f}" for name, run in read("exploration")["runs"].items()}
    bonus = lambda step: mean[f"{step}, bonus 0.05"]  # noqa: E731
    yield f"ends at {bonus('clip_eps 0.6')}, as high as 0.1 does ({bonus('clip_eps 0.1')})"
    (entropy,) = [
        round(np.mean(x["entropy"]), 1) for n, x in read("exploration")["runs"].items() if n == "com 8, bonus 0.05"
    ]
    yield f"though its entropy is then {entropy}"
    yield f"without it they have {mean['clip_eps 0.6']} and {mean['clip_eps 0.1']}"
    yield f"`--com 8` is not lifted ({bonus('com 8')})"
    yield f"surely ahead ({bonus('com 512')}), because it falls: neither reaches the {mean['com 512']} of 512 without"
    plain = np.mean(read("headline")["return, last tenth"]["64"])
    yield f"and {mean['com 512']} with `--com 512`; the defaults reach {plain:.1f} in 25M (above)"
    runs_half = [f"{np.mean(weak):.1f}", mean["com 512"]]
    yield f"without that they have the {runs_half[1]} and {runs_half[0]} above"
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
    same_rate, faster = (interquartile_mean(found["samples"][0]) for found in read("fig_B11")["checks"][::2])
    yield f"reach {same_rate:.2f} at the same rate, {faster:.2f} at four times the rate"
    estimate, low, high = check("fig_B1a", "final score, N 64, K 4 less N 8, K 32")
    (found,) = read("fig_B1a")["checks"]
    short, long = map(interquartile_mean, found["samples"])
    yield f"They score {short:.2f} against {long:.2f}, {estimate:.2f} more ({low:.2f} to {high:.2f})"
    many, few = (np.mean(sample, axis=0) for sample in found["samples"])  # by games, of which the last is Asterix
    yield f"Asterix ({many[2]:.2f} against {few[2]:.2f})"
    yield f"on Breakout there is no difference ({many[0]:.2f} against {few[0]:.2f})"
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
        f"those of {numbers['does not hold']} do not, and for {numbers['not enough data']} the five or ten seeds"
    )
    assert paper_a["10"] == "does not hold"
    yield "Figure 10 has a toy in place of its robot hands, on which its claim does not hold"
    yield f"The other {len(levels_)} figures, of SFL on Kinetix"
    holds = {name for name, verdict in paper_a.items() if verdict == "holds"}
    assert holds == {"1a", "2b", "2c", "5a"} | {"1b", "2a", "3b"} | {"6a"}
    yield f"(The {len(holds)} rest on 3 sets of runs: four figures share one on Pendulum-v1, and three the bowl's.)"
    repeats = {"B9", "B10", "B13"}  # of B2, B3 and B6
    numbers = Counter(verdict for name, verdict in found.items() if name[0] == "B" and name not in repeats)
    yield (
        f"Of its {sum(numbers.values())} claims {numbers['holds']} holds here, {numbers['does not hold']} do not, "
        f"{numbers['not enough data']} are undecided, and {numbers['not applicable here']} is not applicable"
    )


def levels():
    found = read("estimators")["found"]
    for name in ("window, 512 steps", "random levels", "2 episodes"):
        yield f"{found[name]['learnability']:.3f} ± {found[name]['ci95']:.3f}"
    yield f"Of {read('estimators')['candidates']:,} levels, the {read('estimators')['kept']} best"
    peaks = read("search")["peak_bytes"]
    assert max(peaks.values()) / min(peaks.values()) < 1.005
    yield "no more memory for 4,096 candidates than for 256 (within half a percent)"


def million():
    points = {
        (point["setting"]["env_id"], point["setting"]["num_envs"]): point["result"]
        for point in read("scaling")["points"]
        if point["setting"]["num_rollout_chunks"] is None
    }
    cartpole, few = points["CartPole-v1", 2**20], points["CartPole-v1", 1024]
    speed = lambda result: f"{round(result['steps_per_second'], -3):,.0f}"  # noqa: E731
    yield f"takes {cartpole['peak_bytes'] / 1e9:.1f} GB and makes {speed(cartpole)} steps per second"
    yield f"1,024 environments make {round(few['steps_per_second'], -2):,.0f}"
    breakout = points["Breakout-MinAtar", 2**20]
    yield f"take {breakout['peak_bytes'] / 1e9:.1f} GB and make {speed(breakout)} steps per second"


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


CLAIMS = [
    text
    for source in (first_runs, headline, entropy, stuck, doctor, tally, million, breakout, paper_b, levels, speed)
    for text in source()
]


def prose(text):
    """The README's sentences, without commands, tables, headings and addresses."""
    text = re.sub(r"```.*?```", "\n\n", text, flags=re.S)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    for block in re.split(r"\n\s*\n|\n(?=- )", text):
        if block.strip() and block.strip()[0] not in "#|!":
            yield from re.split(r"(?<=[.!?]\)) |(?<=[.!?]) (?=[A-Z*`\[(])", " ".join(block.split()))


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_the_results_say_is_in_the_readme(claim):
    assert claim in " ".join(README.split()), claim


# What sentences with numbers say that is not computed above.
NOT_COMPUTED = {
    # Said again in words; the numbers are computed elsewhere on the page.
    "With 4,096, the same minibatch size": "below",
    "ends at 24": "below",
    "Of one of the runs above with 64 environments": "what follows is the doctor's output",
    "creeps up by 0.2 in 20M steps": "the doctor's picture of this run",
    "after 25M steps": "the headline's budget",
    "above, 0.0032 is that of a plateau": "the doctor's output above",
    "one on Pendulum-v1 has 16": "results/fig_2c.png",
    "goes on when it gets 4,096": "experiments/PREREGISTERED.md",
    "With 64, all five seeds are near a return of 6 half-way, after 12.6M steps, and three still after 25M": "stuck()",
    "that gain is 0 within its error also for sizes that climb": "computed in headline()",
    "4,096 environments flatten, too, at four times the plateau": "results/headline.json",
    "on fresh transitions is not above 0": "experiments/PREREGISTERED.md",
    "Right: five policies of 64 environments, changed half-way": "experiments/stuck.py",
    "after 2M to 9M steps": "computed in stuck()",
    "0.01 to 0.05) all five do": "experiments/stuck.py",
    "With 4,096 environments, with a quarter of the clip range (ε ÷ 4)": "computed in stuck()",
    "inner loop for 64": "a name",
    "the entropy at 5 does not say who gets stuck: with 0.3 to 0.4 nats": "experiments/PREREGISTERED.md",
    "a centre of mass of 32": "the same",
    "512 environments go on after up to 14M steps": "docs/headline.md",
    "and 64 with the bonus within 4M": "docs/headline.md",
    "for the same 12.6M steps": "experiments/headline.py",
    "end 6 to 7 above stuck policies": "computed in stuck()",
    # The size of an experiment.
    "with settings that were made for 2,048 environments": "the default of --num-envs",
    "When the return first reaches 5, policies of 64": "the same",
    "64, 512 and 4,096 environments": "the same",
    "64 environments with rollouts that are 8 or 64 times as long keep as much entropy as 512 and 4,096": "the same",
    "After 8.4M steps of SpaceInvaders": "the same",
    "Means over five seeds; brackets are 95 % intervals": "experiments/headline.py",
    "minibatches of 2,048, learning rate 10⁻³": "defaults of ppo.py",
    "At the end of 2.1M steps": "experiments/paper_a_runs.py",
    "with sticky actions, 64 environments, five seeds": "the same",
    "(The best ε, 0.02, was not tried": "experiments/exploration.py",
    "from 8 to 512 after a million steps ended far below one that had 512": "figure 3a",
    "64 environments × 4 steps beat 8 × 32": "experiments/paper_b_runs.py",
    "nominally of 95 %": "docs/figures.md",
    "with PPO's default ε": "computed in breakout()",
    "from 8 to 128 environments": "the same",
    "32 environments with minibatches four times as large": "the same",
    "a random policy has 0 and ten seeds of a longer run of `ppo.py` have 1": "experiments/scores.py",
    # Read from the pictures' data, not computed here.
    "the day before, sums in another order led the same seed to 39": "that run was not kept",
    # Defaults and arithmetic.
    "in 2,048 parallel environments": "the default of --num-envs",
    "32 times the environments and 32 times the minibatches": "65,536 / 2,048",
    "one rollout is now 2 million transitions": "65,536 x 32",
    "is only 8 of them": "2^24 / 2^21",
    "in 128 new episodes": "the default of --num-eval-episodes",
    "A fresh gain near 0 alone is no plateau": "docs/doctor.md",
    "p (1 − p)": "a formula",
    "At 16,384 environments of Breakout-MinAtar": "results/compare.json",
    "The 64 that": "--keep of benchmarks/estimators.py",
    # Names, versions, dates.
    "You need Python 3.11, 3.12 or 3.13": "requirements.txt",
    "Installing took 40 s": "a clean clone, 2026-11-21",
    "Beukman et al. 2026, [Preventing Learning Stagnation in PPO by Scaling to 1 Million": "a title",
    "Mayor et al. 2025": "a paper",
    "Stable-Baselines3": "a name",
    "Pendulum-v1": "a name",
    "Measured on 2026-11-21": "a date",
}


def test_every_number_is_accounted_for():
    """What is left of a sentence without the claims and the fragments above has no digit, but in `code`."""
    plain = lambda text: re.sub(r"\]\([^)]*\)", "]", text)  # noqa: E731
    known = sorted([plain(claim) for claim in CLAIMS] + list(NOT_COMPUTED), key=len, reverse=True)
    left = []
    for sentence in prose(README):
        rest = sentence
        for fragment in known:
            rest = rest.replace(fragment, "")
        if re.search(r"\d", re.sub(r"`[^`]*`", "", rest)):
            left.append(rest)
    assert left == []
    everything = " ".join(prose(README))
    assert [fragment for fragment in NOT_COMPUTED if fragment not in everything] == []  # outdated entries


def test_the_gallery_shows_every_picture():
    shown = re.findall(r"\]\(\.\./results/([^)]+\.png)\)", (ROOT / "docs" / "gallery.md").read_text())
    assert sorted(shown) == sorted(path.name for path in (ROOT / "results").glob("*.png"))  # each once
