"""Do 320 gradient steps per update in minibatches of 64, which are usual for robots, stand still on Asterix?

    python -m experiments.usual               # makes the missing runs, then results/usual.json
    python -m experiments.usual --dry-run     # prints the commands

In experiments/inner.py 64 environments with 256 gradient steps in minibatches of 32 stand still there, with a learning
rate of 10^-3. Here is the inner loop of Stable-Baselines3: ten epochs of 32 minibatches of 64, with 3·10^-4. The rules
are in experiments/PREREGISTERED.md.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tyro

from experiments import entropy, grid, headline, inner, results, verdicts
from experiments.headline import Curve, interval
from experiments.longer import SEEDS, STILL

LAST = entropy.STEPS[inner.ASTERIX]
RATE = {"learning_rate": 3e-4}
USUAL, DEFAULT = "10 epochs of 32 minibatches", "4 epochs of 8 minibatches"
ARMS = {USUAL: {"num_minibatches": 32, "update_epochs": 10}, DEFAULT: {"num_minibatches": 8}}


def cells() -> dict[str, list[grid.Cell]]:
    """The runs, by arm."""
    key = (inner.ASTERIX, inner.SMALL, entropy.SHORT)
    return {arm: [entropy.cell(key, seed, **RATE, **flags) for seed in SEEDS] for arm, flags in ARMS.items()}


def judge(curves: Mapping[str, Sequence[Curve]]) -> dict[str, Any]:
    """What the rules ask for."""

    def each(key: str, start: float, end: float) -> dict[str, np.ndarray]:
        return {arm: np.array([c.mean(key, start * LAST, end * LAST) for c in of]) for arm, of in curves.items()}

    late, third, fourth = each("returns", 0.9, 1), each("returns", 0.5, 0.75), each("returns", 0.75, 1)
    grown = {arm: fourth[arm] / third[arm] - 1 for arm in curves}
    checks = {
        "fewer and larger minibatches end higher": [
            verdicts.difference(f"return, {DEFAULT} less {USUAL}", late[DEFAULT], late[USUAL], above=0.0)
        ],
        "the usual ones stand still": verdicts.within(
            "growth from the third to the last quarter", grown[USUAL], 0, STILL
        ),
    }
    return {
        "outcomes": {claim: verdicts.verdict(of) for claim, of in checks.items()},
        "checks": {claim: [one.stored() for one in of] for claim, of in checks.items()},
        "return, last tenth": late,
        "mean": {arm: interval([*values]) for arm, values in late.items()},
        "growth from third to last quarter": grown,
        "of an update, last tenth": {key: each(key, 0.9, 1) for key in ("own", "fresh", "entropy", "kl")},
    }


def main(args: headline.Args) -> None:
    """Makes what is missing and compares."""
    runs = cells()
    if not headline.made(args, *runs.values()):
        return
    found = judge(headline.curves(args, runs))
    print(json.dumps(results.rounded(found["outcomes"]), indent=1))
    headline.write(args, "usual", results.facts("usual", "## The usual inner loop"), runs, found)


if __name__ == "__main__":
    main(tyro.cli(headline.Args))
