"""Paper A's recipe on MinAtar: with 8 × the environments, minibatches of the same size, larger ones, or larger ones
with a larger learning rate? And, added afterwards, with fewer epochs?

    python benchmarks/recipes.py     # what is missing: two hours on two cores

Flags are those that arms.py found for 64 × 32. The rules are in experiments/PREREGISTERED.md.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import arms, learning, report
from common.run import plots
from common.run.tracking import say
from experiments import effects, grid
from experiments.references import reference_score

SEEDS = {"Asterix-MinAtar": 4, "SpaceInvaders-MinAtar": 4}
MINIBATCHES = {"minibatch_size": 8 * 1024}
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {  # the page's words, and what differs from the flags of 64
    "small": ("64", {}),
    "recipe": ("512: the recipe", {"num_envs": 512}),
    "larger": ("512: minibatches × 8", {"num_envs": 512} | MINIBATCHES),
    "root": (
        "512: minibatches × 8, rate × √8",
        {"num_envs": 512, "learning_rate": 0.006} | MINIBATCHES,
    ),
    "epoch": ("512: the recipe with 1 epoch", {"num_envs": 512, "update_epochs": 1}),
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


def told(cell: grid.Cell) -> dict[str, Any]:
    """What is kept of a finished run; kl: mean of outer/kl over its last quarter."""
    lines = plots.read_lines(ARGS.runs_dir / cell.name)
    kl = np.array([line.get("outer/kl") for line in lines[-(len(lines) // 4) :]], np.float64)
    return arms.told(cell, ARGS.runs_dir) | {"kl": float(f"{np.nanmean(kl):.3g}")}


def by_arm(runs: dict[str, Any], of_arms: dict[str, Any]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """{(arm, game): runs}, with those that arms.py made; of each game the seeds that the rules name."""
    known = [run for run in of_arms.values() if (run["arm"], run["env_id"]) in KNOWN]
    both = [run for run in (*known, *runs.values()) if run["seed"] < SEEDS[run["env_id"]]]
    return {
        (arm, game): [run for run in both if (run["arm"], run["env_id"]) == (arm, game)]
        for arm in RECIPES
        for game in SEEDS
    }


def fails_gate(of: dict[tuple[str, str], list[dict[str, Any]]]) -> list[str]:
    """The games on which no arm ends high enough for the experiment to say anything."""
    ends = {key: np.mean([run["return"] for run in runs]) for key, runs in of.items()}
    return [game for game in SEEDS if max(ends[arm, game] for arm in RECIPES) <= arms.GATE[game]]


def less(of: dict[tuple[str, str], list[dict[str, Any]]], a: str, b: str) -> dict[str, effects.Effect]:
    """{game: final scores of arm a less those of arm b}."""
    ends = {key: np.array([reference_score(run["env_id"], run["return"]) for run in runs]) for key, runs in of.items()}
    return {game: effects.difference(f"{a} less {b}", ends[a, game], ends[b, game], level=LEVEL) for game in SEEDS}


def judged(of: dict[tuple[str, str], list[dict[str, Any]]], a: str, b: str) -> str:
    """What the rules say of the claim that arm a ends higher than arm b."""
    if failed := fails_gate(of):
        return f"none: the gate fails on {' and '.join(failed)}"
    found = less(of, a, b).values()
    above, below = [x.low > 0 for x in found], [x.high < 0 for x in found]
    if any(above) and any(below):
        return "open: the games disagree"
    return "holds" if all(above) else "refuted" if all(below) else "open"


def draw(of: dict[tuple[str, str], list[dict[str, Any]]], path: Path) -> None:
    """Each game's returns in training."""
    figure, axes = report.new_figure(1, len(SEEDS), "8 × the environments with the flags of 64")
    for axis, game in zip(axes[0], SEEDS, strict=True):
        for colour, (arm, (what, _)) in zip(plots.COLOURS, RECIPES.items(), strict=False):
            steps, values = learning.on_one_grid(run["curve"] for run in of[arm, game])
            middle, width = plots.mean_and_ci(values)
            axis.plot(steps / 1e6, middle, color=colour, label=what)
            axis.fill_between(steps / 1e6, middle - width, middle + width, color=colour, alpha=0.2, linewidth=0)
        axis.set(title=game, xlabel="million environment steps", ylabel="return in training", ylim=(0, None))
    report.save_figure(
        figure,
        path,
        "The recipe: minibatches and learning rate as with 64. Mean over seeds, 95 % t-interval. Sticky actions.",
    )


def main() -> None:
    runs = json.loads(ARGS.out.read_text())["runs"] if ARGS.out.exists() else {}

    def keep(cell: grid.Cell) -> None:
        runs[cell.name] = told(cell)
        report.write(ARGS.out, report.record(runs=dict(sorted(runs.items()))))

    grid.complete(cells(), runs, ARGS.runs_dir, None, say, keep)
    of = by_arm(runs, json.loads(arms.Args().out.read_text())["runs"])
    draw(of, ARGS.out.with_suffix(".png"))
    for claim in CLAIMS:
        print(*less(of, *claim).values(), judged(of, *claim), sep="\n")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
