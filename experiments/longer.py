"""Few environments and many, for a hundred million steps.

    python -m experiments.longer              # makes the missing runs, then results/longer.json and longer.png
    python -m experiments.longer --dry-run    # prints the commands

The runs of experiments/headline.py have a quarter of these steps, and 64 environments have 4 gradient steps per update
there. Here each size has what was best for it in experiments/inner.py, which is also what `ppo.py` gives it by default.
The rules are in experiments/PREREGISTERED.md.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from experiments import grid, headline, results, verdicts
from experiments.headline import Curve, interval

SEEDS = range(20, 25)  # which no other experiment on Breakout has
STEPS = 4 * headline.STEPS  # 100,663,296
MINIBATCHES = {64: 8, 4096: 64}  # of 256 and 2,048 transitions, by environments
SMALL, LARGE = MINIBATCHES
STILL = 0.05  # growth from the third to the last quarter, up to which a run stands still
AHEAD = 0.1  # of the small size's level
PARTS = 64  # of the steps, over which the stored curves are means
DRAWN = ("returns", "own", "fresh", "entropy")


def cells() -> dict[int, list[grid.Cell]]:
    """All runs, by size."""
    return {
        n: [headline.cell(n, seed, STEPS, num_minibatches=parts) for seed in SEEDS] for n, parts in MINIBATCHES.items()
    }


def judge(curves: Mapping[int, Sequence[Curve]]) -> dict[str, Any]:
    """What the rules ask for, and the curves that the picture shows."""

    def each(key: str, start: float, end: float) -> dict[int, np.ndarray]:
        return {n: np.array([c.mean(key, start * STEPS, end * STEPS) for c in curves[n]]) for n in MINIBATCHES}

    late, third, fourth = each("returns", 0.9, 1), each("returns", 0.5, 0.75), each("returns", 0.75, 1)
    grown = {n: fourth[n] / third[n] - 1 for n in MINIBATCHES}
    of = "growth from the third to the last quarter"
    checks = {
        "64 environments stand still": verdicts.within(f"{of}, {SMALL} environments", grown[SMALL], 0.0, STILL),
        "4,096 environments grow more": [
            verdicts.difference(f"{of}, {LARGE} less {SMALL} environments", grown[LARGE], grown[SMALL], above=0.0)
        ],
        "4,096 environments end 10 % above 64": [
            verdicts.difference(
                f"return, {LARGE} less {SMALL} environments", late[LARGE], late[SMALL],
                above=AHEAD * float(late[SMALL].mean()),
            )
        ],
    }  # fmt: skip
    # The bar of the third claim has an error of its own.
    bar = f"return, {LARGE} environments less {1 + AHEAD:g} × that of {SMALL}"
    windows = {"1M to 2M": (1e6 / STEPS, 2e6 / STEPS), "last half": (0.5, 1)}
    return {
        "hypothesis": verdicts.verdict([check for of in checks.values() for check in of]),
        "outcomes": {claim: verdicts.verdict(of) for claim, of in checks.items()},
        "checks": {claim: [check.stored() for check in of] for claim, of in checks.items()},
        bar: verdicts.difference(bar, late[LARGE], (1 + AHEAD) * late[SMALL])[1:4],
        "return, last tenth": late,
        "mean": {n: interval([*late[n]]) for n in MINIBATCHES},
        "growth from third to last quarter": {n: interval([*grown[n]]) for n in MINIBATCHES},
        "entropy, last half": each("entropy", 0.5, 1),
        "gains": {f"{key}, {when}": each(key, *of) for when, of in windows.items() for key in ("own", "fresh")},
        f"first million steps above {headline.ABOVE}": {n: [c.first_above() for c in curves[n]] for n in MINIBATCHES},
        "curves": {key: {n: [means(c, key) for c in curves[n]] for n in MINIBATCHES} for key in DRAWN},
    }


def origins(folder: Path, *runs: Sequence[grid.Cell]) -> dict[str, list[str]]:
    """When the runs were started, the first and the last of them, and of which commits they are."""
    saved = [folder / run.name / "args.json" for run in itertools.chain(*runs)]
    said = [json.loads(file.read_text()) for file in saved if file.exists()]
    started = sorted(one["started"] for one in said)
    return {"started": started[:1] + started[1:][-1:], "commits": sorted({one["git_commit"] for one in said})}


def means(curve: Curve, key: str, steps: int = STEPS) -> list[float]:
    """Over each of PARTS equal parts of the steps."""
    edges = np.linspace(0, steps, PARTS + 1)
    return [curve.mean(key, a, b) for a, b in itertools.pairwise(edges)]


def draw(
    drawn: Mapping[str, Mapping[Any, Sequence[Sequence[float]]]],
    lines: Mapping[Any, tuple[str, float, str]],
    out: Path,
    evaluated: Mapping[Any, Sequence[tuple[float, np.ndarray]]] | None = None,
    steps: int = STEPS,
) -> None:
    """Return, fresh gain, and the share of an update's own gain that fresh transitions confirm, over environment
    steps: a thin line per seed, their median thick. drawn: the stored curves, of runs of so many steps. lines: of each
    kind of runs its label, place in the colour map and style. evaluated: of each kind the returns of policies [seeds]
    after so many steps."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure
    from matplotlib.patheffects import Normal, Stroke

    figure = Figure(figsize=(12, 4), layout="constrained")
    panels = figure.subplots(1, 3)
    dark_edge = [Stroke(linewidth=3, foreground="#777777"), Normal()]  # for yellow, which is weak on white
    x = (np.arange(PARTS) + 0.5) * steps / PARTS / 1e6
    for name, (label, place, style) in lines.items():
        returns, own, fresh = (np.array(drawn[key][name]) for key in ("returns", "own", "fresh"))
        colour = colormaps["viridis"](place)
        for panel, values in zip(panels, (returns, fresh, fresh / own), strict=True):
            panel.plot(x, values.T, style, color=colour, linewidth=0.6, alpha=0.4)
            edge = dark_edge if place > 0.85 else None
            panel.plot(x, np.median(values, 0), style, color=colour, linewidth=2, label=label, path_effects=edge)
        for after, values in (evaluated or {}).get(name, ()):
            panels[0].plot(
                np.full(len(values), after / 1e6), values, "o", color=colour, markersize=4, markeredgecolor="#777777"
            )
    if evaluated:
        panels[0].plot([], [], "o", color="grey", markersize=4, label="policies, in new episodes")
    titles = (
        "episode return, Breakout",
        "gain on fresh transitions (linear within ± 0.001)",
        "fresh gain / gain on its own transitions",
    )
    for panel, title in zip(panels, titles, strict=True):
        headline.tidy(panel, title)
    panels[0].set_ylim(0, 1.2 * panels[0].get_ylim()[1])  # room for the legend
    panels[1].set_yscale("symlog", linthresh=1e-3)
    panels[0].legend(frameon=False, fontsize=9, loc="upper left")
    figure.savefig(out, dpi=110)


def main(args: headline.Args) -> None:
    """Makes the missing runs, prints the outcomes, and writes samples, intervals, curves and a picture."""
    runs = cells()
    if not headline.made(args, *runs.values()):
        return
    found = judge(headline.curves(args, runs))
    print(json.dumps({"hypothesis": found["hypothesis"]} | found["outcomes"], indent=1))
    how = results.facts("longer", "## A hundred million steps") | {"runs": origins(args.runs_dir, *runs.values())}
    lines = {n: (f"{n:,} environments", place, "-") for n, place in zip(MINIBATCHES, (0.0, 0.8), strict=True)}
    draw(found["curves"], lines, headline.write(args, "longer", how, {str(n): of for n, of in runs.items()}, found))


if __name__ == "__main__":
    main(tyro.cli(headline.Args))
