"""65,536 environments beside 4,096, for 67 million steps.

    python -m experiments.wider              # makes what is missing, then results/wider.json and wider.png
    python -m experiments.wider --dry-run    # prints the commands

With so many environments a run is not much longer than an episode, and returns in training are those of old policies.
So policies are evaluated. The rules are in experiments/PREREGISTERED.md.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from experiments import grid, headline, longer, results, rollouts, verdicts
from experiments.headline import Curve, interval
from experiments.rollouts import MANY

SEEDS = range(30, 35)  # which no other experiment on Breakout has
STEPS = 2**26  # 67,108,864
ENVS, NUM_STEPS = 65536, 4  # as in the last command of README's Quick start
FEWER = ENVS * NUM_STEPS // headline.NUM_STEPS  # environments with as many transitions per update, by longer rollouts
MOST, SAME = f"{ENVS} × {NUM_STEPS}", f"{FEWER} × {headline.NUM_STEPS}"
EPISODES = 1024
LINES = {
    MOST: (f"{ENVS:,} environments × {NUM_STEPS} steps", 1.0, "-"),
    SAME: (f"{FEWER:,} environments × {headline.NUM_STEPS} steps", 0.9, "--"),
    MANY: rollouts.LINES[MANY],
}
Returns = Mapping[str, Mapping[str, np.ndarray]]  # of the policies "half" way and at the "end", by kind of run: [seeds]


def cells() -> dict[str, list[grid.Cell]]:
    """All runs, by environments × steps per rollout. Of SAME, which no hypothesis is about, two."""
    return {
        MOST: [headline.cell(ENVS, seed, STEPS, num_steps=NUM_STEPS) for seed in SEEDS],
        MANY: [headline.cell(longer.LARGE, seed, STEPS) for seed in SEEDS],
        SAME: [headline.cell(FEWER, seed, STEPS) for seed in SEEDS[:2]],
    }


def evaluation(run: grid.Cell, update: int, folder: Path) -> grid.Cell:
    """The run that plays EPISODES with the policy that a run had after an update."""
    flags = {"evaluate": f"{folder / run.name}@{update}", "num_eval_episodes": EPISODES}
    return grid.Cell("ppo", f"played_{EPISODES}_{run.name}_{update}", tuple(flags.items()), update)


def evaluations(runs: Mapping[str, Sequence[grid.Cell]], folder: Path) -> dict[str, dict[str, list[grid.Cell]]]:
    return {
        name: {
            "half": [evaluation(run, run.num_updates // 2, folder) for run in of_one],
            "end": [evaluation(run, run.num_updates, folder) for run in of_one],
        }
        for name, of_one in runs.items()
    }


def mean_return(run: grid.Cell, folder: Path) -> float:
    return json.loads((folder / run.name / "summary.json").read_text())["eval/episodic_return"]["mean"]


def judge(curves: Mapping[str, Sequence[Curve]], returns: Returns) -> dict[str, Any]:
    """What the rules ask for, and the curves that the picture shows."""

    def each(key: str, start: float, end: float) -> dict[str, np.ndarray]:
        return {name: np.array([c.mean(key, start * STEPS, end * STEPS) for c in of]) for name, of in curves.items()}

    grown = {name: of["end"] - of["half"] for name, of in returns.items()}
    checks = {
        "65,536 environments end higher than 4,096": verdicts.difference(
            f"return, {MOST} less {MANY}", returns[MOST]["end"], returns[MANY]["end"], above=0.0
        ),
        "they go on": verdicts.difference(f"return, {MOST}, end less half", grown[MOST], 0.0, above=0.0),
    }
    halfway = verdicts.difference(f"return, {MANY} less {MOST}, half", returns[MANY]["half"], returns[MOST]["half"])
    return {
        "outcomes": {claim: check.outcome for claim, check in checks.items()},
        "checks": {claim: check.stored() for claim, check in checks.items()},
        "return of the policy": returns,
        "mean": {when: {name: interval([*of[when]]) for name, of in returns.items()} for when in ("half", "end")},
        "end less half": {name: interval([*of]) for name, of in grown.items()},
        halfway.what: halfway[1:4],
        "return in training, last tenth": each("returns", 0.9, 1),
        "entropy, last half": each("entropy", 0.5, 1),
        "gains": {f"{key}, last half": each(key, 0.5, 1) for key in ("own", "fresh")},
        "curves": {
            key: {name: [longer.means(c, key, STEPS) for c in of] for name, of in curves.items()}
            for key in longer.DRAWN
        },
    }


def main(args: headline.Args) -> None:
    """Makes what is missing, prints the outcomes, and writes samples, intervals, curves and a picture."""
    runs = cells()
    played = evaluations(runs, args.runs_dir)
    there = headline.made(args, *zip(runs[MOST], runs[MANY], strict=True), runs[SAME])  # in pairs
    if not headline.made(args, *(of_one for when in played.values() for of_one in when.values())) or not there:
        return
    returns = {
        name: {when: np.array([mean_return(one, args.runs_dir) for one in of_one]) for when, of_one in of.items()}
        for name, of in played.items()
    }
    found = judge(headline.curves(args, runs), returns)
    print(json.dumps(found["outcomes"], indent=1))
    how = results.facts("wider", "## 65,536 environments")
    how |= {"runs": longer.origins(args.runs_dir, *runs.values())}
    out = headline.write(args, "wider", how, runs, found)
    policies = {name: [(0.5 * STEPS, of["half"]), (STEPS, of["end"])] for name, of in returns.items()}
    longer.draw(found["curves"], LINES, out, policies, STEPS)


if __name__ == "__main__":
    main(tyro.cli(headline.Args))
