"""Every sentence of the README with a number: either it is made here from results/, or it is listed as one that is
not a result of ours, with the reason."""

import json
import re
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
    found = read("headline")
    late, half = found["return, last tenth"], found["return, last tenth of the first half"]
    gains = found["gains"]
    for n in ("64", "512", "4096"):
        mean = np.mean(gains[n]["own, 1M to 2M"])
        yield f"| {int(n):,} | {spread(late[n], 1)} | {spread(gains[n]['fresh, 1M to 2M'], 5)} | {mean:.4f} |"
    yield f"4,096 end {between(found['largest minus middle'])} above 512"
    yield f"64 environments reach {np.mean(half['entropy']):.1f} in half of the steps"
    more = between(found["arm minus the smallest, at half"]["entropy"])
    yield f"they had {np.mean(half['64']):.1f} without it ({more} more"


def spread(values, digits):
    """Mean and 95 % t-interval, by SciPy."""
    low, high = stats.ttest_1samp(values, 0).confidence_interval()
    return minus(f"{np.mean(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})")


def between(estimate_low_high, digits=1):
    estimate, low, high = estimate_low_high
    return minus(f"{estimate:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})")


def minus(text):
    return text.replace("-", "−")


def pendulum():
    runs = read("fig_1a")["runs"]
    assert runs  # the sentence about them is checked by its page's figures
    estimate, low, high = check("fig_3a", "final score, --com 8 then 512, less 512 kept")
    yield f"{-estimate:.2f} lower ({-high:.2f} to {-low:.2f})"


def paper_b():
    base, many = (last("fig_BN", "", "4 minibatches, which grow (the paper)", i)[0] for i in (0, 4))
    yield f"from {base:.2f} to {many:.2f}"
    estimate, low, high = check("fig_BN", "final score, N × 16, larger minibatches, less the base")
    yield f"(by {-estimate:.2f}; {-high:.2f} to {-low:.2f})"
    yield f"*rises* to {last('fig_BN', '', 'more minibatches of the same size', 4)[0]:.2f}"
    estimate, low, high = check("fig_BN", "final score, N × 16, more minibatches, less the base")
    yield f"(by {estimate:.2f}; {low:.2f} to {high:.2f})"
    estimate, low, high = check("fig_B1a", "final score, N 64, K 4 less N 8, K 32")
    short, long = last("fig_B1a", "", "N 64, K 4")[0], last("fig_B1a", "", "N 8, K 32")[0]
    assert (f"{short:.3f}", f"{long:.4f}") == ("0.775", "0.5855")  # last points; the scores are of the last tenth
    yield f"{estimate:.2f} more ({low:.2f} to {high:.2f})"
    same = check("fig_B3", "log10 of weight norm, N × 4 with the base's minibatches less it, mean over games")[0]
    grown = check("fig_B3", "log10 of weight norm, N × 4 less the base, mean over games")[0]
    yield f"the weight norm falls by only {-percent(same):.0f} %, not {-percent(grown):.0f} %"
    what = "log10 of gradient kurtosis, N × 4 less the base, mean over games"
    estimate, low, high = map(percent, check("fig_B3", what))
    yield f"undecided in PPO ({-estimate:.0f} % lower; {-low:.0f} % lower to {high:.0f} % higher)"
    estimate, low, high = map(percent, check("fig_B6", what))
    yield f"real in PQN ({-estimate:.0f} % lower; {-high:.0f} to {-low:.0f})"


def levels():
    found = read("estimators")["found"]
    for name in ("window, 512 steps", "random levels", "2 episodes"):
        yield f"{found[name]['learnability']:.3f} ± {found[name]['ci95']:.3f}"
    yield f"Of {read('estimators')['candidates']:,} levels, the {read('estimators')['kept']} best"
    peaks = read("search")["peak_bytes"]
    assert max(peaks.values()) / min(peaks.values()) < 1.005
    yield "no more memory for 4,096 candidates than for 256 (within half a percent)"


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


CLAIMS = [text for source in (headline, doctor, pendulum, paper_b, levels, speed) for text in source()]


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
NOT_COMPUTED = {}


def test_every_sentence_with_a_number_is_accounted_for():
    plain = lambda text: re.sub(r"\]\([^)]*\)", "]", text)  # noqa: E731
    known = [plain(claim) for claim in CLAIMS] + list(NOT_COMPUTED)
    numbered = [x for x in prose(README) if re.search(r"\d", re.sub(r"`[^`]*`", "", x))]
    assert [x for x in numbered if not any(fragment in x for fragment in known)] == []
    everything = " ".join(prose(README))
    assert [fragment for fragment in NOT_COMPUTED if fragment not in everything] == []  # outdated entries


def test_the_gallery_shows_every_picture():
    shown = re.findall(r"\]\(\.\./results/([^)]+\.png)\)", (ROOT / "docs" / "gallery.md").read_text())
    assert sorted(shown) == sorted(path.name for path in (ROOT / "results").glob("*.png"))  # each once
