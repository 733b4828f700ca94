"""Do 64 environments stand still on Breakout in runs three times as long, where 4,096 go on? And what frees the runs
that do?

    python benchmarks/long_runs.py     # what is missing: two hours on two cores

Arms and flags are those of arms.py, whose results it needs. The rules are in experiments/PREREGISTERED.md.
"""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import arms, report, tasks
from clinic import levers, records
from common.run import checkpoints, plots
from common.run.tracking import say
from experiments import effects, grid
from experiments.paper_a import FLAT
from experiments.references import reference_score

GAME, SEEDS, ARMS = "Breakout-MinAtar", 5, ("small", "many")
PGX = tasks.GAMES["Breakout"][1]  # also with sticky actions
WALL = 32  # a return beyond Breakout's first wall of 30 bricks
LEVERS, BUDGET = ("control", "envs", "eps", "lr", "entropy"), 4 * 2**20
ARGS = arms.Args(total_timesteps=3 * 10_485_760, out=Path("results/long_runs.json"), runs_dir=Path("runs/long_runs"))
LONGEST, LONGEST_SEEDS = dataclasses.replace(ARGS, total_timesteps=10 * 10_485_760), 3


def cells() -> list[grid.Cell]:
    """All runs, seed by seed."""
    tuned = arms.Results(arms.Args())
    runs = [(arm, seed, ARGS) for seed in range(SEEDS) for arm in (*ARMS, arms.LATER)]
    runs += [(arm, seed, LONGEST) for seed in range(LONGEST_SEEDS) for arm in ARMS]
    return [arms.test(arm, tuned.best(arm), GAME, seed, args) for arm, seed, args in runs]


def gains(runs: Sequence[dict[str, Any]], game: str = GAME) -> np.ndarray:
    """Scores [runs]: return in training in the last tenth less that in the last tenth before half-way."""
    found = []
    for run in runs:
        curve = np.array(run["curve"], np.float64)
        share, score = curve[:, 0] / curve[-1, 0], reference_score(game, curve[:, 2])
        ends = [np.nanmean(score[(end - 0.1 < share) & (share <= end)]) for end in (1.0, 0.5)]
        found.append(ends[0] - ends[1])
    return np.array(found)


def passes(curve: Sequence[Sequence[float | None]], goal: float) -> float:
    """After how many million steps a curve of steps ... and return is first at a goal; infinite if it never is."""
    return next((of[0] / 1e6 for of in curve if (of[-1] or 0) >= goal), np.inf)


def freed(run: Path) -> dict[str, Any]:
    """What `doctor.py RUN --intervene --levers envs eps lr entropy --budget 4194304 --seeds 3` does, in numbers."""
    _, record, updates = checkpoints.find_checkpoint(str(run))
    args = records.branched(record, str(run))
    chosen = {name: lever for name, lever in levers.levers_of(args).items() if name in LEVERS}
    branches = levers.cells_of(f"{run}@{updates[-1]}", "ppo", args, chosen, BUDGET, range(3), fresh=False)
    if failed := grid.run_missing([*branches.values()], run / "doctor", grid.cores_or_one(), say):
        raise SystemExit("\n".join(failed))
    told = {}
    for name, (returns, effect) in levers.outcomes(run / "doctor", branches).items():
        less = [round(x, 2) for x in (effect.estimate, effect.low, effect.high)]
        told[name] = {"what": chosen[name].what, "returns": np.round(returns, 2).tolist(), "less": less}
    return told


def by_arm(runs: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Each arm's runs, of the seeds that all arms have."""
    of = {arm: {run["seed"]: run for run in runs.values() if run["arm"] == arm} for arm in ARMS}
    seeds = sorted(set.intersection(*(set(found) for found in of.values())))
    return {arm: [found[seed] for seed in seeds] for arm, found in of.items()}


def claimed(runs: dict[str, Any]) -> list[effects.Effect]:
    """The effects that the rules judge."""
    small, many = by_arm(runs).values()
    ends = [np.array([reference_score(GAME, run["return"]) for run in of]) for of in (many, small)]
    return [
        effects.difference("gain in the second half, 64 × 32", gains(small), below=FLAT),
        effects.difference("gain in the second half, 4,096 × 32", gains(many), above=FLAT),
        effects.difference("final score, 4,096 × 32 less 64 × 32", *ends, above=0.0),
    ]


def judged(runs: dict[str, dict[str, Any]]) -> str:
    """What the rules say of all claims together."""
    ends = [np.mean([run["return"] for run in of]) for of in by_arm(runs).values()]
    passes_gate = max(ends) > arms.GATE[GAME]
    return effects.verdict(claimed(runs)) if passes_gate else "no verdict, returns are too low for one"


def draw(runs: dict[str, Any], path: Path) -> None:
    """Each run's return in training, and final returns beside those of the shorter runs."""
    shorter, ticks = arms.returns(json.loads(arms.Args().out.read_text())), {}
    figure, axes = report.new_figure(1, 2, "Breakout with sticky actions: runs of 31.5M steps, and of 10.5M")
    curves, ends = axes[0]
    for at, (arm, of) in enumerate(by_arm(runs).items()):
        colour, name = plots.COLOURS[at], "{:,} × {:,}".format(*arms.ARMS[arm][:2])
        for number, run in enumerate(of):
            curve = np.array(run["curve"], np.float64)
            curves.plot(curve[:, 0] / 1e6, curve[:, 2], color=colour, linewidth=1.2, label="" if number else name)
        for x, steps, values in (
            (at, "10.5M", shorter[arm][GAME].values()),
            (at + 2, "31.5M", [run["return"] for run in of]),
        ):
            ends.plot([x] * len(values), [*values], "o", color=colour, alpha=0.6)
            ticks[x] = f"{name}\n{steps} steps"
    for value, what in ((30, "first wall: 30 bricks"), (PGX, "pgx's PPO, 20M steps")):
        curves.axhline(value, color="0.5", linestyle=":", linewidth=1)
        curves.annotate(what, (0.98, value), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8)
    curves.set(title="in training", xlabel="million environment steps", ylabel="return", ylim=(0, None))
    ends.set(title="final policies", ylim=(0, None), xlim=(-0.5, len(ticks) - 0.5))
    ends.set_xticks([*ticks], [*ticks.values()], fontsize=8)
    report.save_figure(
        figure, path, "One line or dot per seed. The arms differ in their flags, too: each has those of its search."
    )


def main() -> None:
    out = ARGS.out
    found = json.loads(out.read_text()) if out.exists() else {}
    runs, branches = found.get("runs", {}), found.get("freed", {})

    def write() -> None:
        report.write(out, report.record(runs=dict(sorted(runs.items())), freed=branches))

    def keep(cell: grid.Cell) -> None:
        runs[cell.name] = arms.told(cell, ARGS.runs_dir)
        write()

    grid.complete(cells(), runs, ARGS.runs_dir, None, say, keep)
    for name in sorted(n for n, run in runs.items() if run["arm"] == "small" and passes(run["curve"], WALL) == np.inf):
        if name not in branches:
            branches[name] = freed(ARGS.runs_dir / name)
            write()
    draw(runs, out.with_suffix(".png"))
    print(*claimed(runs), sep="\n")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
