"""Do 64 environments stand still on Breakout in runs three and ten times as long, where 4,096 go on? And what frees the
runs that do?

    python benchmarks/long_runs.py     # what is missing: five hours on two cores; goes on where it stopped

Arms and flags are those of arms.py, whose results it needs. The rules are in experiments/PREREGISTERED.md.
"""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

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

GAME, ARMS = "Breakout-MinAtar", ("small", "many")  # 64 and 4,096 environments; 512 came later
STEPS, LONGEST = 3 * 10_485_760, 10 * 10_485_760
SEEDS = {STEPS: 5, LONGEST: 3}
PGX = tasks.GAMES["Breakout"][1]  # also with sticky actions
BRICKS, WALL = 30, 32  # in Breakout's first wall; a return beyond it
LEVERS, BUDGET = ("control", "envs", "eps", "lr", "entropy"), 4 * 2**20
ARGS = arms.Args(out=Path("results/long_runs.json"), runs_dir=Path("runs/long_runs"))


def cells(names: Sequence[str] = ARMS, steps: int = STEPS) -> list[grid.Cell]:
    """These arms' runs of so many steps, seed by seed."""
    tuned, args = arms.Results(arms.Args()), dataclasses.replace(ARGS, total_timesteps=steps)
    return [arms.test(arm, tuned.best(arm), GAME, seed, args) for seed in range(SEEDS[steps]) for arm in names]


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


def by_arm(runs: dict[str, Any], names: Sequence[str] = ARMS, steps: int = STEPS) -> dict[str, list[dict[str, Any]]]:
    """Each arm's runs of so many steps, of the seeds that all of these arms have."""
    long = [run for run in runs.values() if run["curve"][-1][0] == steps]
    of = {arm: {run["seed"]: run for run in long if run["arm"] == arm} for arm in names}
    seeds = sorted(set.intersection(*(set(found) for found in of.values())))
    return {arm: [found[seed] for seed in seeds] for arm, found in of.items()}


def scores(runs: Sequence[dict[str, Any]]) -> np.ndarray:
    """Of final policies: 0 is a random policy's, 1 a published one's."""
    return np.array([reference_score(GAME, run["return"]) for run in runs])


def claimed(runs: dict[str, Any]) -> list[effects.Effect]:
    """The effects that the rules judge."""
    small, many = by_arm(runs).values()
    return [
        effects.difference("gain in the second half, 64 × 32", gains(small), below=FLAT),
        effects.difference("gain in the second half, 4,096 × 32", gains(many), above=FLAT),
        effects.difference("final score, 4,096 × 32 less 64 × 32", scores(many), scores(small), above=0.0),
    ]


def judged(runs: dict[str, dict[str, Any]]) -> str:
    """What the rules say of all claims together."""
    ends = [np.mean([run["return"] for run in of]) for of in by_arm(runs).values()]
    passes_gate = max(ends) > arms.GATE[GAME]
    return effects.verdict(claimed(runs)) if passes_gate else "no verdict, returns are too low for one"


class Later(NamedTuple):
    """What the rules ask of 512 environments in runs of 31.5M steps."""

    rises: effects.Effect
    many_less: effects.Effect
    verdict: str  # of many_less
    less_small: effects.Effect  # reported


def claimed_later(runs: dict[str, Any]) -> Later | None:
    """None while there are too few seeds."""
    small, many, later = (by_arm(runs, [arm])[arm] for arm in (*ARMS, arms.LATER))
    if len(later) < effects.FEWEST:
        return None
    less = effects.difference("4,096 × 32 less 512 × 32", scores(many), scores(later))
    return Later(
        effects.difference("gain in the second half, 512 × 32", gains(later), above=FLAT),
        less,
        arms.of_more(less.low, less.high, arms.LATER),
        effects.difference("512 × 32 less 64 × 32", scores(later), scores(small)),
    )


def stands_still(run: dict[str, Any]) -> bool:
    """Whether a run is below the first wall in the last tenth of its training, and no longer rises."""
    curve = np.array(run["curve"], np.float64)
    last = np.nanmean(curve[curve[:, 0] > 0.9 * curve[-1, 0], 2])
    return bool(last < BRICKS and gains([run])[0] < FLAT)


def draw(runs: dict[str, Any], path: Path) -> None:
    """Each run's return in training, and final returns beside those of shorter runs."""
    short, ticks = arms.returns(json.loads(arms.Args().out.read_text())), {}
    order = sorted((*ARMS, arms.LATER), key=lambda arm: arms.ARMS[arm][0])
    long = {steps: {arm: by_arm(runs, [arm], steps)[arm] for arm in order} for steps in SEEDS}
    long = {steps: of for steps, of in long.items() if any(of.values())}
    figure, axes = report.new_figure(1, len(long) + 1, "Breakout with sticky actions: long runs")
    *panels, ends = axes[0]
    final = {steps: {arm: [run["return"] for run in of[arm]] for arm in order} for steps, of in long.items()}
    final = {arms.Args.total_timesteps: {arm: [*short[arm][GAME].values()] for arm in order}} | final
    colours = {arm: plots.COLOURS[at] for at, arm in enumerate(arms.ARMS)}
    for axis, (steps, of) in zip(panels, long.items(), strict=True):
        for arm, found in of.items():
            for number, run in enumerate(found):
                curve = np.array(run["curve"], np.float64)
                label = "" if number else arms.named(arm)
                axis.plot(curve[:, 0] / 1e6, curve[:, 2], color=colours[arm], linewidth=1.2, label=label)
        for value, what in ((BRICKS, f"first wall: {BRICKS} bricks"), (PGX, "pgx's PPO, 20M steps")):
            axis.axhline(value, color="0.5", linestyle=":", linewidth=1)
            place = dict(xycoords=("axes fraction", "data"), ha="right", va="bottom")
            axis.annotate(what, (0.98, value), **place, fontsize=8)
        axis.set(title=f"{steps / 1e6:.1f}M steps", xlabel="million environment steps", ylabel="return in training")
    for group, (steps, of) in enumerate(final.items()):
        for at, (arm, values) in enumerate(of.items()):
            ends.plot([4 * group + at] * len(values), values, "o", color=colours[arm], alpha=0.6)
        ticks[4 * group + 1] = f"{steps / 1e6:.1f}M"
    ends.set(title="final policies", xlabel="environment steps of a run")
    ends.set_xticks([*ticks], [*ticks.values()])
    for axis in axes[0]:
        axis.set_ylim(0, max(axis.get_ylim()[1] for axis in axes[0]))
    told = "One line or dot per seed. The arms differ in their flags, too: each has those of its search."
    report.save_figure(figure, path, told)


def main() -> None:
    out = ARGS.out
    found = json.loads(out.read_text()) if out.exists() else {}
    runs, branches = found.get("runs", {}), found.get("freed", {})

    def write() -> None:
        report.write(out, report.record(runs=dict(sorted(runs.items())), freed=branches))

    def keep(cell: grid.Cell) -> None:
        runs[cell.name] = arms.told(cell, ARGS.runs_dir)
        write()

    asked = [*cells(), *cells([arms.LATER]), *cells(steps=LONGEST)]
    grid.complete(asked, runs, ARGS.runs_dir, None, say, keep)
    for name, run in sorted(runs.items()):
        stays = run in by_arm(runs)["small"] and passes(run["curve"], WALL) == np.inf
        if stays and name not in branches:
            branches[name] = freed(ARGS.runs_dir / name)
            write()
    draw(runs, out.with_suffix(".png"))
    print(*claimed(runs), *(claimed_later(runs) or ()), sep="\n")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
