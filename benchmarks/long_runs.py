"""Do 64 environments stand still on Breakout in runs three times as long, where 4,096 go on?

    python benchmarks/long_runs.py     # what is missing: 90 minutes on two cores

Arms and flags are those of arms.py, whose results it needs. The rules are in experiments/PREREGISTERED.md.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import arms, report
from common.run.tracking import say
from experiments import effects, grid
from experiments.paper_a import FLAT
from experiments.references import reference_score

GAME, SEEDS, ARMS = "Breakout-MinAtar", 5, ("small", "many")
ARGS = arms.Args(total_timesteps=3 * 10_485_760, out=Path("results/long_runs.json"), runs_dir=Path("runs/long_runs"))


def cells() -> list[grid.Cell]:
    """All runs, seed by seed."""
    tuned = arms.Results(arms.Args())
    return [arms.test(arm, tuned.best(arm), GAME, seed, ARGS) for seed in range(SEEDS) for arm in ARMS]


def gains(runs: Sequence[dict[str, Any]]) -> np.ndarray:
    """Scores [runs]: return in training in the last tenth less that in the last tenth before half-way."""
    found = []
    for run in runs:
        curve = np.array(run["curve"], np.float64)
        share, score = curve[:, 0] / curve[-1, 0], reference_score(GAME, curve[:, 2])
        ends = [np.nanmean(score[(end - 0.1 < share) & (share <= end)]) for end in (1.0, 0.5)]
        found.append(ends[0] - ends[1])
    return np.array(found)


def claimed(runs: dict[str, Any]) -> list[effects.Effect]:
    """The effects that the rules judge."""
    small, many = ([run for run in runs.values() if run["arm"] == arm] for arm in ARMS)
    ends = [np.array([reference_score(GAME, run["return"]) for run in of]) for of in (many, small)]
    return [
        effects.difference("gain in the second half, 64 × 32", gains(small), below=FLAT),
        effects.difference("gain in the second half, 4,096 × 32", gains(many), above=FLAT),
        effects.difference("final score, 4,096 × 32 less 64 × 32", *ends, above=0.0),
    ]


def main() -> None:
    out = ARGS.out
    runs = json.loads(out.read_text())["runs"] if out.exists() else {}

    def keep(cell: grid.Cell) -> None:
        runs[cell.name] = arms.told(cell, ARGS.runs_dir)
        report.write(out, report.record(runs=dict(sorted(runs.items()))))

    grid.complete(cells(), runs, ARGS.runs_dir, None, say, keep)
    print(*claimed(runs), sep="\n")


if __name__ == "__main__":
    main()
