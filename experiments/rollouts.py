"""Environments or rollouts, for a hundred million steps.

    python -m experiments.rollouts              # makes the missing runs, then results/rollouts.json and rollouts.png
    python -m experiments.rollouts --dry-run    # prints the commands

In experiments/longer.py 4,096 environments end higher than 64, but their updates also have 64 times the transitions.
Here 64 environments have as many, by rollouts that are 64 times as long. The rules are in experiments/PREREGISTERED.md.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tyro

from experiments import grid, headline, longer, results, verdicts
from experiments.headline import Curve, interval
from experiments.longer import LARGE, MINIBATCHES, SEEDS, SMALL, STEPS

LONG = headline.NUM_STEPS * LARGE // SMALL  # steps per rollout of 64 environments, with as many transitions as of 4,096
MANY, ROLLOUTS, FEW = f"{LARGE} × {headline.NUM_STEPS}", f"{SMALL} × {LONG}", f"{SMALL} × {headline.NUM_STEPS}"
AHEAD = 1 + longer.AHEAD
LINES = {  # label, colour, style
    MANY: (f"{LARGE:,} environments × {headline.NUM_STEPS} steps", 0.8, "-"),
    ROLLOUTS: (f"{SMALL} environments × {LONG:,} steps", 0.0, "--"),
    FEW: (f"{SMALL} environments × {headline.NUM_STEPS} steps", 0.0, "-"),
}


def cells() -> dict[str, list[grid.Cell]]:
    """All runs, by environments × steps per rollout. Those with short rollouts are those of experiments/longer.py."""
    before, flags = longer.cells(), {"num_steps": LONG, "num_minibatches": MINIBATCHES[LARGE]}
    return {
        MANY: before[LARGE],
        ROLLOUTS: [headline.cell(SMALL, seed, STEPS, **flags) for seed in SEEDS],
        FEW: before[SMALL],
    }


def judge(curves: Mapping[str, Sequence[Curve]]) -> dict[str, Any]:
    """What the rules ask for, and the curves that the picture shows."""

    def each(key: str, start: float, end: float) -> dict[str, np.ndarray]:
        return {name: np.array([c.mean(key, start * STEPS, end * STEPS) for c in of]) for name, of in curves.items()}

    late, third, fourth = each("returns", 0.9, 1), each("returns", 0.5, 0.75), each("returns", 0.75, 1)
    checks = {
        "with as many transitions per update more environments end higher": verdicts.difference(
            f"return, {MANY} less {ROLLOUTS}", late[MANY], late[ROLLOUTS], above=0.0
        ),
        "longer rollouts end 10 % above short ones": verdicts.difference(
            f"return, {ROLLOUTS} less {AHEAD:g} × that of {FEW}", late[ROLLOUTS], AHEAD * late[FEW], above=0.0
        ),
    }
    windows = {"1M to 2M": (1e6 / STEPS, 2e6 / STEPS), "last half": (0.5, 1)}
    return {
        "outcomes": {claim: check.outcome for claim, check in checks.items()},
        "checks": {claim: check.stored() for claim, check in checks.items()},
        "return, last tenth": late,
        "mean": {name: interval([*values]) for name, values in late.items()},
        "growth from third to last quarter": {name: interval([*(fourth[name] / third[name] - 1)]) for name in curves},
        "entropy, last half": each("entropy", 0.5, 1),
        "gains": {f"{key}, {when}": each(key, *of) for when, of in windows.items() for key in ("own", "fresh")},
        f"first million steps above {headline.ABOVE}": {n: [c.first_above() for c in of] for n, of in curves.items()},
        "curves": {
            key: {name: [longer.means(c, key) for c in of] for name, of in curves.items()} for key in longer.DRAWN
        },
    }


def main(args: headline.Args) -> None:
    """Makes the missing runs, prints the outcomes, and writes samples, intervals, curves and a picture."""
    runs = cells()
    if not headline.made(args, *runs.values()):
        return
    found = judge(headline.curves(args, runs))
    print(json.dumps(found["outcomes"], indent=1))
    how = results.facts("rollouts", "## Environments or rollouts, for a hundred million steps")
    how |= {"runs": longer.origins(args.runs_dir, runs[ROLLOUTS])}
    longer.draw(found["curves"], LINES, headline.write(args, "rollouts", how, runs, found))


if __name__ == "__main__":
    main(tyro.cli(headline.Args))
