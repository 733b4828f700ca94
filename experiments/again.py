"""What stayed undecided of paper A's figures on Pendulum, asked once more with as many new seeds as it needs.

    python -m experiments.again              # makes the missing runs, then results/again.json
    python -m experiments.again --dry-run    # prints the commands

The rules are in experiments/PREREGISTERED.md.
"""

import itertools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro

from common.run.tracking import say
from experiments import grid, paper_a, paper_a_runs, results, verdicts
from experiments.data import Data
from experiments.paper_a_runs import PRESETS, Cells, Preset
from experiments.verdicts import Check

FIRST_SEED = 40
LAPTOP = PRESETS["laptop"]
WITH_SEEDS = replace(
    LAPTOP,
    base=LAPTOP.base | {"seed": FIRST_SEED, "num_seeds": 35},
    epsilons=(LAPTOP.epsilons[0], LAPTOP.good_eps, LAPTOP.weak_eps),
    scaled_seeds=30,
)
PAIRS = ((512.0, 0.2), (8.0, 0.02), (64.0, 0.2), (4096.0, 0.6))  # the best ε of each COM, the best pair first
FEW = 4  # environments
OURS, LARGER = [(recipe, FEW) for recipe in paper_a_runs.RECIPES[:2]]


def cells(p: Preset = WITH_SEEDS) -> dict[str, Cells]:
    """The runs, by figure."""
    pairs, recipes = paper_a_runs.grid_cells(p), paper_a_runs.recipe_cells(p)
    return {
        "5b": paper_a_runs.eps_cells(p),
        "12": {pair: pairs[pair] for pair in PAIRS},
        "9": {key: recipes[key] for key in (OURS, LARGER)},
    }


def checks(d: Data, runs: dict[str, Cells]) -> dict[str, list[Check]]:
    """What the rules ask, by figure."""
    pairs, recipes = ({key: d.final(run) for key, run in runs[name].items()} for name in ("12", "9"))
    best, *others = PAIRS
    asked = [
        paper_a.not_below(f"final score, COM {best[0]:g} less COM {pair[0]:g}, each with its best ε", pairs, best, pair)
        for pair in others
    ]
    what = f"final score, {FEW} environments, more minibatches less larger ones"
    return {
        "5b": paper_a.show_regularisation(d, runs["5b"], "--clip-eps")[1],
        "12": list(itertools.chain(*asked)),
        "9": [verdicts.difference(what, recipes[OURS], recipes[LARGER], above=paper_a.MARGIN)],
    }


@dataclass(frozen=True)
class Args:
    runs_dir: Path = Path("runs/again")
    """Folder for the runs."""
    jobs: int = 2
    """How many runs at once, each on its share of the cores."""
    dry_run: bool = False
    """Only print the commands that are missing."""
    out: Path = Path("results/again.json")
    """The file to write."""


def main(args: Args) -> None:
    """Makes the missing runs, prints the checks, and writes them with their samples."""
    runs = cells()
    if not grid.made([run for of in runs.values() for run in of.values()], args.runs_dir, args.jobs, say, args.dry_run):
        return
    found = checks(Data(WITH_SEEDS, args.runs_dir), runs)
    for name, of in found.items():
        print(f"{name}: {verdicts.verdict(of)}", *(f"  {check}" for check in of), sep="\n")
    figures: dict[str, Any] = {
        name: {
            "verdict": verdicts.verdict(of),
            "checks": [check.stored() for check in of],
            "commands": {f"{key}": grid.paste(run, args.runs_dir) for key, run in runs[name].items()},
            "started": sorted(began(run, args.runs_dir) for run in runs[name].values()),
        }
        for name, of in found.items()
    }
    how = results.facts("again", "## What stayed undecided on Pendulum, with more seeds")
    results.write(args.out, how | {"figures": figures})


def began(run: grid.Cell, folder: Path) -> str:
    return json.loads((folder / run.name / "args.json").read_text())["started"]


if __name__ == "__main__":
    main(tyro.cli(Args))
