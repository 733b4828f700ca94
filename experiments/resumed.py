"""Does a policy whose updates gain nothing on fresh transitions go on learning with more environments?

    python -m experiments.resumed               # makes the missing runs, then results/resumed.json and resumed.png
    python -m experiments.resumed --dry-run     # prints the commands

The policies are those of 64 environments with 8 minibatches in experiments/inner.py, at the end of their runs. They
have not settled: an update gains much on its own transitions, and nothing on fresh ones. The rules are in
experiments/PREREGISTERED.md.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from common.run.tracking import say
from experiments import grid, headline, inner, results, verdicts
from experiments.entropy import BREAKOUT
from experiments.headline import HALF, SEEDS, SIZES, Curve, interval

SMALL, LARGE = SIZES[0], SIZES[-1]
PARTS = 8  # minibatches of 64 environments
SIZE = SMALL * headline.NUM_STEPS // PARTS  # of a minibatch
UNCHANGED, MORE, SMALLER = "unchanged", "4,096 environments", "ε ÷ 4"
ARMS: dict[str, tuple[int, dict[str, Any]]] = {
    UNCHANGED: (SMALL, {}),
    MORE: (LARGE, {}),
    SMALLER: (SMALL, {"clip_eps": 0.05}),
}


def branch(num_envs: int, seed: int, **changed: Any) -> grid.Cell:
    """The policy at the end of its run, which goes on for as many steps with minibatches of the same size."""
    source = inner.cell((BREAKOUT, SMALL, PARTS), seed)
    run = headline.cell(num_envs, seed, HALF, minibatch_size=SIZE, **changed)
    varied = {"resumed": f"with-{num_envs}", **changed, "seed": seed}
    return grid.named("ppo", dict(run.flags), varied, run.num_updates, source, source.num_updates)


def cells() -> dict[str, list[grid.Cell]]:
    """The branches, by arm."""
    return {name: [branch(n, seed, **flags) for seed in SEEDS] for name, (n, flags) in ARMS.items()}


def judge(branches: Mapping[str, Sequence[Curve]], sources: Sequence[Curve]) -> dict[str, Any]:
    """What the rules ask for. sources: the runs that the branches go on from."""
    ends = {name: [c.mean("returns", 0.9 * HALF, HALF) for c in of_one] for name, of_one in branches.items()}
    before = [c.mean("returns", 0.9 * HALF, HALF) for c in sources]
    checks = {
        name: verdicts.difference(
            f"return, {name} less {UNCHANGED}, seed by seed", np.subtract(ends[name], ends[UNCHANGED]), 0.0, above=0.0
        )
        for name in (MORE, SMALLER)
    }
    gains = {
        name: {of: [c.mean(of, 0.5 * HALF, HALF) for c in curves] for of in ("own", "fresh", "entropy")}
        for name, curves in {"before": sources, **branches}.items()
    }
    return {
        "outcomes": {name: check.outcome for name, check in checks.items()},
        "checks": [check._asdict() | {"outcome": check.outcome} for check in checks.values()],
        "return before, last tenth": before,
        "return, last tenth": ends,
        "mean": {name: interval(values) for name, values in ends.items()},
        "gained, seed by seed": {name: interval(list(np.subtract(ends[name], before))) for name in ends},
        "gains of an update and entropy, last half": gains,
    }


def draw(branches: Mapping[str, Sequence[Curve]], sources: Sequence[Curve], out: Path) -> None:
    """Return over steps: the runs up to the branch, and each arm from there on, a line per seed and the median."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    panel = figure.subplots()

    def line(curves: Sequence[Curve], colour: str, label: str, after: float) -> None:
        edges = np.linspace(0, HALF, 25)
        values = np.array([[c.mean("returns", a, b) for c in curves] for a, b in itertools.pairwise(edges)])
        x = (after + (edges[:-1] + edges[1:]) / 2) / 1e6
        panel.plot(x, values, color=colour, linewidth=0.6, alpha=0.4)
        panel.plot(x, np.median(values, 1), color=colour, linewidth=2, label=label)

    line(sources, "#440154", f"{SMALL} environments, {4 * PARTS} gradient steps per update", 0)
    for name, colour in ((UNCHANGED, "#888888"), (SMALLER, "#E69F00"), (MORE, "#35B779")):
        line(branches[name], colour, f"goes on: {name}", HALF)
    panel.set_ylim(0, None)
    panel.set_xlabel("million environment steps")
    panel.set_ylabel("episode return")
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(linewidth=0.5, alpha=0.35)
    panel.legend(frameon=False, fontsize=9, loc="upper left")
    figure.savefig(out, dpi=110)


def main(
    runs_dir: Path = Path("runs/headline"),
    jobs: int = 2,
    dry_run: bool = False,
    out: Path = Path("results/resumed.json"),
) -> None:
    """Makes what is missing, of the runs of experiments/inner.py too, and compares.

    Args:
        runs_dir: Folder for the runs, that of `python -m experiments.headline`.
        jobs: How many runs at once, each on its share of the cores.
        dry_run: Only print the commands that are missing.
        out: The file to write; the picture lies beside it.
    """
    runs = cells()
    if not grid.made([run for of_one in runs.values() for run in of_one], runs_dir, jobs, say, dry_run):
        return
    curves = {name: [headline.curve(runs_dir / run.name) for run in of_one] for name, of_one in runs.items()}
    sources = [headline.curve(runs_dir / run.source.name) for run in runs[UNCHANGED]]
    found = judge(curves, sources)
    print(json.dumps(results.rounded(found), indent=1))
    how = results.facts("resumed", "## Do policies on a plateau of noise go on?")
    how |= {"commands": {name: grid.paste(of_one[0], runs_dir) for name, of_one in runs.items()}}
    results.write(out, how | found)
    draw(curves, sources, out.with_suffix(".png"))


if __name__ == "__main__":
    tyro.cli(main)
