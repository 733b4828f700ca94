"""Branches of a run, each with a change: which of them lifts the return above the unchanged one?"""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from clinic import records
from clinic.diagnosis import RETURN
from common.run import plots
from experiments import effects, grid
from experiments.pictures import Line, Picture

# Flags of a run that a branch does not take over: how it was started, watched and stored.
NOT_TAKEN = {
    *records.STARTED,
    *("seed", "num_seeds", "total_timesteps", "runs_dir", "checkpoint_every", "keep_checkpoints"),
    *("log_every", "eval_every", "num_eval_episodes", "capture_video", "plasticity_every"),
    *("base_num_envs", "num_minibatches"),  # they follow from the number of environments and the minibatch's size
}
QUIET = {"num_eval_episodes": 0, "plasticity_every": 0, "checkpoint_every": 0, "halt_on_nan": False}


class Lever(NamedTuple):
    """One change to a run. flags: those that differ; script: that of the run unless named."""

    what: str
    flags: dict[str, Any]
    script: str | None = None


def levers_of(args: Any) -> dict[str, Lever]:
    """The levers that this run has, the control first."""
    # PPO's own proximal policy, the behaviour policy, is on average half an update of gradient steps behind.
    com = getattr(args, "com", 0.0) or args.update_epochs * args.num_minibatches / 2
    epochs = max(1, args.update_epochs // 4)
    bonus = "5 x the entropy bonus" if args.ent_coef else "an entropy bonus"
    found = {
        "control": Lever("nothing changed", {}),
        "envs": Lever("8 x the environments, more minibatches", {"num_envs": 8 * args.num_envs}),
        "minibatch": Lever("8 x larger minibatches", {"minibatch_size": 8 * args.minibatch_size}),
        "lr": Lever("a quarter of the learning rate", {"learning_rate": args.learning_rate / 4}),
        "lr_up": Lever("4 x the learning rate", {"learning_rate": 4 * args.learning_rate}),
        "epochs": Lever(f"{epochs} of {args.update_epochs} epochs", {"update_epochs": epochs}),
        "eps": Lever("a quarter of epsilon", {"clip_eps": args.clip_eps / 4}),
        "com": Lever("16 x the centre of mass", {"com": float(16 * com)}, "ppo_ewma"),
        "entropy": Lever(bonus, {"ent_coef": 5 * args.ent_coef or 0.01}),
        "entropy_down": Lever("a fifth of the entropy bonus", {"ent_coef": args.ent_coef / 5}),
        "lr_entropy_down": Lever(
            "a quarter of the learning rate and of the bonus",
            {"learning_rate": args.learning_rate / 4, "ent_coef": args.ent_coef / 4},
        ),
    }
    if args.update_epochs == 1:
        del found["epochs"]
    if not args.ent_coef:
        del found["entropy_down"], found["lr_entropy_down"]
    if args.batch_size % (8 * args.minibatch_size * args.num_rollout_chunks):
        del found["minibatch"]
    return found


def cells_of(
    run: str, script: str, args: Any, levers: dict[str, Lever], budget: int, seeds: Sequence[int], fresh: bool
) -> dict[tuple[str, int], grid.Cell]:
    """The branches, by lever and seed. A run of several seeds is branched as a whole, each seed from its own state."""
    together, default = args.num_seeds > 1, type(args)()
    base = {f.name: getattr(args, f.name) for f in fields(args) if f.name not in NOT_TAKEN}
    base = {name: value for name, value in base.items() if value != getattr(default, name)} | QUIET
    base |= {"minibatch_size": args.minibatch_size, "num_envs": args.num_envs}
    cells = {}
    for name, lever in levers.items():
        for seed in [args.seed] if together else seeds:
            flags = base | lever.flags
            updates = max(1, budget // (flags["num_envs"] * args.num_steps))
            flags |= {"total_timesteps": updates * flags["num_envs"] * args.num_steps, "seed": seed}
            flags |= {"num_seeds": args.num_seeds, "log_every": max(1, updates // 100)}
            # The branches lie in the run's folder, so its name is enough: its path may be spelled in several ways.
            told = {} if fresh else {"init_from": Path(run).name}
            cell = grid.named(lever.script or script, flags | told, {"lever": name, "seed": seed}, updates)
            cells[name, seed] = replace(cell, flags=tuple((flags | ({} if fresh else {"init_from": run})).items()))
    return cells


def curves(folder: Path, cells: dict[tuple[str, int], grid.Cell]) -> Picture:
    """The return of the finished branches over their steps, by lever."""
    found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for (name, _), cell in cells.items():
        if grid.state(cell, folder) == "finished":
            found.setdefault(name, []).append(plots.series(plots.read_lines(folder / cell.name), RETURN))
    lines = []
    for name, several in found.items():
        length = min(len(steps) for steps, _ in several)
        together = np.concatenate([returns[:length] for _, returns in several], axis=1)
        lines.append(Line(name, several[0][0][:length], plots.running_mean(together, max(1, length // 20))))
    return Picture({"": lines}, "environment steps of the branch", "episode return")


def outcomes(folder: Path, cells: dict[tuple[str, int], grid.Cell]) -> dict[str, tuple[np.ndarray, effects.Effect]]:
    """What each lever did: the mean return over the last quarter of its branches [seeds], and the effect, which is the
    difference from the control's, seed by seed. All levers' intervals together hold with 95 % (Bonferroni)."""
    ends: dict[str, list[np.ndarray]] = {}
    for (name, _), cell in cells.items():
        lines = plots.read_lines(folder / cell.name) if grid.state(cell, folder) == "finished" else []
        _, returns = plots.series(lines, RETURN)
        # A line in which no episode of a seed ended has no return of it.
        ends.setdefault(name, []).append(plots.mean_and_ci(returns[-max(1, len(returns) // 4) :].T)[0])
    found = {name: np.concatenate(values) for name, values in ends.items()}
    level = 1 - 0.05 / max(1, len(found) - 1)
    return {name: (x, effects.difference(name, x - found["control"], level=level)) for name, x in found.items()}
