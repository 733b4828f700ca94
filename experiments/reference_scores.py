"""Measures the returns that are scores 0 and 1 on MinAtar: a random policy's, and what `python ppo.py` reaches.

    python -m experiments.reference_scores              # makes the missing runs, then results/minatar_scores.json
    python -m experiments.reference_scores --table      # only reads the finished runs, and writes nothing

Both are of the environments that paper B's figures use, with their sticky actions. experiments/scores.py reads the
file.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from common import envs, evaluation
from common.run import plots
from common.run.tracking import say
from experiments import grid, results
from experiments.scores import STICKY

GAMES = ("Asterix-MinAtar", "Breakout-MinAtar", "Freeway-MinAtar", "SpaceInvaders-MinAtar")
STEPS = 2**22
SEEDS = range(100, 110)  # the figures use seeds from 0 on
EPISODES = 4096
CHANGED = {"Freeway-MinAtar": {"num_envs": 256}}  # its episodes of 2,500 steps would end only once with 2,048


def cell(game: str) -> grid.Cell:
    """The run of all seeds, of ppo.py with its defaults but for CHANGED."""
    flags = {"env_id": game, "sticky_actions": STICKY.get(game, 0.0), "num_envs": 2048} | CHANGED.get(game, {})
    updates = STEPS // (flags["num_envs"] * 32)
    flags |= {"num_steps": 32, "total_timesteps": STEPS, "seed": SEEDS[0], "num_seeds": len(SEEDS), "num_devices": 1}
    flags |= {"num_eval_episodes": 0, "checkpoint_every": max(1, updates // 2)}
    return grid.named("ppo", flags, {"reference": game}, updates)


def random_returns(game: str, episodes: int = EPISODES) -> jax.Array:
    """Plays episodes with actions that are all equally likely, each in its own environment. -> returns [episodes]."""
    suite = envs.make(game, 1, sticky_actions=STICKY.get(game, 0.0)).suite
    act = lambda obs, key: suite.action_space.sample(key, obs.shape[0])  # noqa: E731
    return jax.jit(lambda key: evaluation.play(suite, episodes, act, key).total_reward)(jax.random.key(SEEDS[0]))


def reference_returns(run: Path) -> list[float]:
    """Reads the mean return over the last tenth of a run's lines. -> of each seed."""
    return plots.summarize(run)["final_return"]["seeds"]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean and half of its 95 % interval."""
    mean, width = plots.mean_and_ci(np.asarray(values, np.float64))
    return {"mean": float(f"{mean:.4g}"), "ci95": float(f"{width:.2g}")}


def measured(game: str, folder: Path) -> dict[str, Any]:
    run = cell(game)
    record = json.loads((folder / run.name / "args.json").read_text())
    returns = reference_returns(folder / run.name)
    return {
        "sticky_actions": STICKY.get(game, 0.0),
        "random": spread(random_returns(game)),
        "reference": spread(returns),
        "reference_seeds": list(SEEDS),
        "reference_returns": [round(x, 3) for x in returns],
        "command": grid.paste(run, folder),
        "git_commit": record["git_commit"],
        "git_dirty": record.get("git_dirty"),
        "started": record["started"],
    }


def main(
    runs_dir: Path = Path("runs/reference"),
    jobs: int = 1,
    table: bool = False,
    out: Path = Path("results/minatar_scores.json"),
) -> None:
    """Makes the missing runs, plays the random episodes, prints the scales and writes them.

    Args:
        runs_dir: Folder for the runs.
        jobs: How many runs at once, each on its share of the cores.
        table: Only read the finished runs, and write nothing.
        out: The file to write.
    """
    runs = [cell(game) for game in GAMES]
    failed = [] if table else grid.run_missing(runs, runs_dir, jobs, say)
    lacking = [run.name for run in runs if grid.state(run, runs_dir) != "finished"]
    if failed or lacking:
        raise SystemExit("\n".join([*failed, f"{len(lacking)} of {len(runs)} runs are not finished"]))
    games = {game: measured(game, runs_dir) for game in GAMES}
    for game, found in games.items():
        print(f"{game}: {found['random']['mean']:g} to {found['reference']['mean']:g} (± {found['reference']['ci95']})")
    if not table:
        how = results.facts("experiments.reference_scores") | {"random_episodes": EPISODES}
        results.write(out, how | {"games": games})


if __name__ == "__main__":
    tyro.cli(main)
