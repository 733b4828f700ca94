"""Is a policy that already stands still freed by what would have kept it from standing still?

    python -m experiments.stuck               # makes the missing runs, then results/stuck.json and stuck.png
    python -m experiments.stuck --dry-run     # prints the commands

The policies are those of 64 environments in experiments/headline.py, at half of their run, where all five stand still.
Then the entropy bonus once more, on ten other seeds. The rules are in experiments/PREREGISTERED.md.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from experiments import entropy, grid, headline, results, verdicts
from experiments.headline import ABOVE, HALF, SEEDS, SIZES, STEPS, Curve, interval

SMALL, LARGE = SIZES[0], SIZES[-1]
ARMS: dict[str, tuple[int, dict[str, Any], str]] = {  # environments, flags, the headline's runs that began with them
    "entropy bonus × 5": (SMALL, {"ent_coef": 0.05}, "entropy"),
    "entropy bonus × 25": (SMALL, {"ent_coef": 0.25}, "entropy"),
    "entropy bonus × 5, 4,096 environments": (LARGE, {"ent_coef": 0.05}, f"entropy, {LARGE}"),
    "inner loop for 64": (SMALL, {"minibatch_size": 256, "learning_rate": 3e-4}, "tuned"),
    "ε ÷ 4": (SMALL, {"clip_eps": 0.05}, "eps"),
}
BONUS, BONUS_LARGE = "entropy bonus × 5", "entropy bonus × 5, 4,096 environments"
UNCHANGED, LONG = "unchanged", "rollouts 64 × as long"
AGAIN = range(5, 15)  # seeds of the second experiment


def branch(num_envs: int, seed: int, **changed: Any) -> grid.Cell:
    """The policy of 64 environments at half of its run, which goes on for as many steps with these flags."""
    source, run = headline.cell(SMALL, seed), headline.cell(num_envs, seed, HALF, **changed)
    varied = {"stuck": f"to-{num_envs}", **changed, "seed": seed}
    return grid.named("ppo", dict(run.flags), varied, run.num_updates, source, source.num_updates // 2)


def cells() -> dict[str, list[grid.Cell]]:
    """The branches, by arm."""
    return {name: [branch(n, seed, **flags) for seed in SEEDS] for name, (n, flags, _) in ARMS.items()}


def again() -> dict[str, list[grid.Cell]]:
    """The runs of the second experiment: unchanged, which are also the sources, and with the bonus."""
    with_bonus = [branch(SMALL, seed, **ARMS[BONUS][1]) for seed in AGAIN]
    return {UNCHANGED: [headline.cell(SMALL, seed) for seed in AGAIN], BONUS: with_bonus}


def paired(ends: dict[str, list[float]], arm: str, other: str, above: float) -> verdicts.Check:
    """Checks a difference that is taken seed by seed, because both arms begin with the same policy."""
    gained = np.subtract(ends[arm], ends[other])
    return verdicts.difference(f"return, {arm} less {other}, seed by seed", gained, 0.0, above=above)


def judge(branches: dict[str, list[Curve]], before: dict[str, list[Curve]]) -> dict[str, Any]:
    """What the rules ask for. branches: of each arm; before: the headline's runs, by its names."""
    ends = {UNCHANGED: [c.mean("returns", STEPS - 0.1 * HALF, STEPS) for c in before[f"{SMALL}"]]}
    ends |= {name: [c.mean("returns", 0.9 * HALF, HALF) for c in curves] for name, curves in branches.items()}
    halfway = lambda name: np.mean([c.mean("returns", 0.9 * HALF, HALF) for c in before[name]])  # noqa: E731
    checks = []
    for name, (_, _, from_the_start) in ARMS.items():
        bar = 0.5 * float(halfway(from_the_start) - halfway(f"{SMALL}"))
        checks.append(paired(ends, name, UNCHANGED, bar))
    checks.append(paired(ends, BONUS_LARGE, BONUS, 0.0))
    kept = {UNCHANGED: [c.mean("entropy", STEPS - 0.1 * HALF, STEPS) for c in before[f"{SMALL}"]]}
    kept |= {name: [c.mean("entropy", 0.9 * HALF, HALF) for c in curves] for name, curves in branches.items()}
    return {
        "checks": [check.stored() for check in checks],
        "return, last tenth": ends,
        "mean": {name: interval(values) for name, values in ends.items()},
        f"seeds above {ABOVE:g}": {name: sum(x > ABOVE for x in values) for name, values in ends.items()},
        "entropy, last tenth": kept,
        "first million steps above it": {UNCHANGED: [left(c, HALF) for c in before[f"{SMALL}"]]}
        | {name: [left(c, 0.0) for c in curves] for name, curves in branches.items()},
    }


def judge_again(unchanged: list[Curve], branches: list[Curve]) -> dict[str, Any]:
    """What the rules of the second experiment ask for, of the seeds that are stuck at half."""
    halfway = [c.mean("returns", 0.9 * HALF, HALF) for c in unchanged]
    stuck = [i for i, value in enumerate(halfway) if value <= ABOVE]
    ends = {
        UNCHANGED: [unchanged[i].mean("returns", STEPS - 0.1 * HALF, STEPS) for i in stuck],
        BONUS: [branches[i].mean("returns", 0.9 * HALF, HALF) for i in stuck],
    }
    above = {name: sum(x > ABOVE for x in values) for name, values in ends.items()}
    check = paired(ends, BONUS, UNCHANGED, 0.0)
    holds = check.low > 0 and above[BONUS] >= 0.8 * len(stuck)
    refuted = check.high < 0 or above[BONUS] < 0.5 * len(stuck)
    return {
        "seeds that are stuck": [AGAIN[i] for i in stuck],
        "return at half, each seed": halfway,
        "return, last tenth, of those that are stuck": ends,
        f"of these above {ABOVE:g}": above,
        "first million steps above it, after half": {
            UNCHANGED: [left(unchanged[i], HALF) for i in stuck],
            BONUS: [left(branches[i], 0.0) for i in stuck],
        },
        "check": check._asdict(),
        "the bonus frees": "holds" if holds else "does not hold" if refuted else "not enough data",
    }


def left(curve: Curve, start: float) -> int | None:
    """In which million steps after `start` the mean return is above ABOVE for the first time; None if it never is."""
    millions = range(int((curve.steps[-1] - start) // 1e6))
    mean = lambda m: curve.mean("returns", start + m * 1e6, start + (m + 1) * 1e6)  # noqa: E731
    return next((m + 1 for m in millions if mean(m) > ABOVE), None)


def draw(branches: dict[str, list[Curve]], before: dict[str, list[Curve]], out: Path) -> None:
    """Return over steps from the start, against the entropy, and from the plateau on: a line per seed, over steps also
    medians."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.5, 4.6), layout="constrained")
    start, plane, plateau = figure.subplots(1, 3, sharey=True)
    sizes = dict(zip(map(str, SIZES), colormaps["viridis"]([0.0, 0.45, 0.8]), strict=True))

    def line(panel: Any, curves: list[Curve], colour: Any, label: str, style: str = "-", after: float = 0.0) -> None:
        """Means over 48ths of the headline's steps."""
        last = curves[0].steps[-1]
        headline.course(panel, curves, last, round(48 * last / STEPS), colour, label, style, after)

    shown = {size: (f"{int(size):,} environments", colour, "-") for size, colour in sizes.items()}
    shown |= {LONG: (f"{SMALL}, {LONG}", "#0072B2", "--"), "entropy": (f"{SMALL}, {BONUS}", "#E69F00", "--")}
    for name, (label, colour, style) in shown.items():
        line(start, before[name], colour, label, style)
        for curve in before[name]:
            returns, kept = entropy.windows(curve, STEPS)
            plane.plot(kept, returns, style, color=colour, linewidth=0.8, alpha=0.8)
    line(plateau, before[f"{SMALL}"], sizes[f"{SMALL}"], UNCHANGED)
    line(plateau, before["branch"], sizes[f"{LARGE}"], "4,096 environments", after=HALF)
    styles = ("#E69F00", "#D55E00", "#56B4E9", "#CC79A7", "#888888")
    for (name, curves), colour in zip(branches.items(), styles, strict=True):
        line(plateau, curves, colour, name, "--" if name == BONUS_LARGE else "-", after=HALF)
    plateau.set_xlim(left=0.9 * HALF / 1e6)
    plane.invert_xaxis()
    titles = (
        "from the start",
        "from the start: certain policies at the right",
        "policies of 64 environments, from half on",
    )
    for panel, title in zip((start, plane, plateau), titles, strict=True):
        x_label = ("entropy of the policy (nats)",) if panel is plane else ()
        headline.tidy(panel, title, *x_label)
    start.set_ylabel("episode return")
    start.set_ylim(0, 36)
    for panel in (start, plateau):
        panel.legend(frameon=False, fontsize=8.5, loc="upper left")
    figure.savefig(out, dpi=110)


def main(args: headline.Args) -> None:
    """Makes what is missing, of the headline's runs too, and compares."""
    runs, needed = cells(), headline.cells()
    before = {name: needed[name] for name in (*map(str, SIZES), "branch", *sorted({x for *_, x in ARMS.values()}))}
    before[LONG] = [entropy.cell((entropy.BREAKOUT, SMALL, entropy.LONGER[-1]), seed) for seed in SEEDS]
    second = again()
    if not headline.made(args, *(of_one for found in (runs, before, second) for of_one in found.values())):
        return
    branches, earlier, later = (headline.curves(args, found) for found in (runs, before, second))
    found = judge(branches, earlier) | {"again, on other seeds": judge_again(*later.values())}
    print(json.dumps(results.rounded(found), indent=1))
    how = results.facts("stuck", "## The headline, continued: is a stuck", "## A stuck policy and the entropy bonus")
    draw(branches, earlier, headline.write(args, "stuck", how, runs, found))


if __name__ == "__main__":
    main(tyro.cli(headline.Args))
