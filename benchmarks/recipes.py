"""Paper A's recipe on MinAtar: with 8 × the environments, minibatches of the same size, larger ones, or larger ones
with a larger learning rate?

    python benchmarks/recipes.py     # what is missing: two hours on two cores

Flags are those that arms.py found for 64 × 32. The rules are in experiments/PREREGISTERED.md.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import arms, report
from common.run.tracking import say
from experiments import grid

SEEDS = {"Asterix-MinAtar": 5, "SpaceInvaders-MinAtar": 4}
MINIBATCHES = {"minibatch_size": 8 * 1024}
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {  # the page's words, and what differs from the flags of 64 × 32
    "small": ("64 environments", {}),
    "recipe": ("512, minibatches of the same size", {"num_envs": 512}),
    "larger": ("512, minibatches 8 × as large", {"num_envs": 512} | MINIBATCHES),
    "root": (
        "512, minibatches 8 × as large, learning rate × √8",
        {"num_envs": 512, "learning_rate": 0.006} | MINIBATCHES,
    ),
}
CLAIMS = (("recipe", "larger"), ("recipe", "root"))  # of each: the first ends higher, on both games
LEVEL = 1 - 0.05 / (len(CLAIMS) * len(SEEDS))
KNOWN = {("small", "SpaceInvaders-MinAtar")}  # runs of arms.py
ARGS = arms.Args(out=Path("results/recipes.json"), runs_dir=Path("runs/recipes"))


def cells() -> list[grid.Cell]:
    """All runs, seed by seed."""
    best = arms.Results(arms.Args()).best("small")
    return [
        arms.test("small", best | changed, game, seed, ARGS, called=name)
        for seed in range(max(SEEDS.values()))
        for name, (_, changed) in RECIPES.items()
        for game, seeds in SEEDS.items()
        if seed < seeds and (name, game) not in KNOWN
    ]


def main() -> None:
    runs = json.loads(ARGS.out.read_text())["runs"] if ARGS.out.exists() else {}

    def keep(cell: grid.Cell) -> None:
        runs[cell.name] = arms.told(cell, ARGS.runs_dir)
        report.write(ARGS.out, report.record(runs=dict(sorted(runs.items()))))

    grid.complete(cells(), runs, ARGS.runs_dir, None, say, keep)


if __name__ == "__main__":
    main()
