"""What frees runs on Pendulum that stand still? Branches from half-way on, made after figure 3a and without rules.

python benchmarks/branches.py     # needs the runs of `python figures.py 1a 3a`, makes those that are missing
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from experiments import grid
from experiments.data import Data
from experiments.paper_a import PENDULUM as p, ewma

RUNS, OUT = Path("runs/figures/laptop"), Path("results/branches.json")
KEYS = {"return": p.performance, "kl": "outer/kl", "proximal_kl": "ewma/kl", "entropy": "losses/entropy"}
LOWER = {"learning_rate": p.base["learning_rate"] / 10}
BRANCHES = {  # the COM of the first half, and what is changed then
    "COM 8": (8.0, {}),
    "COM 8, then 4,096": (8.0, {"com": 4096.0}),
    "COM 8, then 4,096 and `--max-importance-ratio 2`": (8.0, {"com": 4096.0, "max_importance_ratio": 2.0}),
    "COM 8, then a tenth of the learning rate": (8.0, LOWER),
    "COM 64": (64.0, {}),
    "COM 64, then 4,096": (64.0, {"com": 4096.0}),
    "COM 64, then a tenth of the learning rate": (64.0, LOWER),
}


def cells() -> dict[str, grid.Cell]:
    """The branch of each name, all of the second half of a run of figure 1a."""
    half = p.total_timesteps // 2
    return {
        name: ewma(p, total=half, source=ewma(p, com=com), **{"com": com} | changed)
        for name, (com, changed) in BRANCHES.items()
    }


def main() -> None:
    failed = grid.run_missing([*cells().values()], RUNS, grid.cores_or_one(), print)
    if failed:
        raise SystemExit("\n".join(failed))
    data, found = Data(p, RUNS), {}
    for name, cell in cells().items():
        ends = {key: np.round(data.part(cell, logged, 0.9, 1.0).mean(0), 4).tolist() for key, logged in KEYS.items()}
        found[name] = {"command": " ".join(grid.command(cell, RUNS)), "last_tenth": ends}
    report.write(OUT, report.record(branches=found))


if __name__ == "__main__":
    main()
