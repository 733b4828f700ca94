"""With a constant learning rate PPO slows down on Breakout far below its best. What makes such a run rise again?

    python benchmarks/plateaus.py     # what is missing: an hour and a half on two cores

Parents have the flags that arms.py found for 64 environments, whose results it needs, but rate and entropy bonus stay
as they are. Each branch goes on from a parent's end with one thing changed. The rules are in
experiments/PREREGISTERED.md.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import arms, learning, report
from common.run import plots
from common.run.tracking import say
from experiments import effects, grid

RUNS, OUT = Path("runs/plateaus"), Path("results/plateaus.json")
PARENT, BRANCH = 10_485_760, 4_194_304  # environment steps
SEEDS = {"Breakout-MinAtar": 6}
RETURN, EPISODES = "charts/episodic_return", "charts/num_episodes"
KEYS = {
    "kl": "outer/kl",
    "own_gain": "outer/own_gain",
    "fresh_gain": "outer/fresh_gain",
    "entropy": "losses/entropy",
}
ENVS, RATE, BONUS, EPS = {"num_envs": 8}, {"learning_rate": 1 / 4}, {"ent_coef": 1 / 4}, {"clip_eps": 1 / 4}
CHANGES = {  # what is said of a branch, and its flags: factors of the parent's, and COM in updates
    "control": ("nothing changed", {}),
    "envs": ("8 × environments", ENVS),
    "lr": ("learning rate ÷ 4", RATE),
    "bonus": ("entropy bonus ÷ 4", BONUS),
    "lr_envs": ("learning rate ÷ 4, 8 × environments", RATE | ENVS),
    "bonus_envs": ("entropy bonus ÷ 4, 8 × environments", BONUS | ENVS),
    "lr_bonus": ("learning rate and entropy bonus ÷ 4", RATE | BONUS),
    "lr_bonus_envs": ("learning rate and entropy bonus ÷ 4, 8 × environments", RATE | BONUS | ENVS),
    "eps": ("ε ÷ 4", EPS),
    "eps_bonus": ("ε and entropy bonus ÷ 4", EPS | BONUS),
    "com": ("PPO-EWMA, COM of 8 updates", {"com": 8}),
    "envs_64": ("64 × environments", {"num_envs": 64}),
    "larger": ("8 × environments, minibatches 8 × as large", ENVS | {"minibatch_size": 8}),
}
CLAIMS = {  # what is claimed to raise the return: the mean of the first branches less that of the second
    "8 × environments": (
        ("envs", "lr_envs", "bonus_envs", "lr_bonus_envs"),
        ("control", "lr", "bonus", "lr_bonus"),
    ),
    "ε ÷ 4": (("eps", "eps_bonus"), ("control", "bonus")),
    "PPO-EWMA, COM of 8 updates": (("com",), ("control",)),
    "learning rate ÷ 4": (("lr", "lr_envs", "lr_bonus", "lr_bonus_envs"), ("control", "envs", "bonus", "bonus_envs")),
    "entropy bonus ÷ 4": (("bonus", "bonus_envs", "lr_bonus", "lr_bonus_envs"), ("control", "envs", "lr", "lr_envs")),
}
LEVEL = 1 - 0.05 / len(CLAIMS)


def flags(game: str, seed: int) -> dict[str, Any]:
    """A parent's."""
    tuned = arms.Results(arms.Args()).best("small") | {"anneal_lr": False, "anneal_ent": False}
    sizes = arms.common_flags("small", arms.Args(total_timesteps=PARENT))
    return {"env_id": game, "seed": seed} | sizes | tuned | {"num_devices": 1}


def cell(game: str, seed: int, arm: str | None = None) -> grid.Cell:
    """A parent or, with the name of a change, its branch."""
    of = flags(game, seed)
    varied = {"game": game.removesuffix("-MinAtar"), "seed": seed, "arm": arm or "parent"}
    updates = PARENT // (of["num_envs"] * of["num_steps"])
    if arm is None:
        return grid.named("ppo", of, varied, updates)
    source, changed = cell(game, seed), dict(CHANGES[arm][1])
    script = "ppo_ewma" if "com" in changed else "ppo"
    of |= {"total_timesteps": BRANCH, "num_eval_episodes": 0, "checkpoint_every": 0}
    # PPO-EWMA counts its COM in gradient steps.
    per_update = of["update_epochs"] * of["num_envs"] * of["num_steps"] // of["minibatch_size"]
    of |= {"com": float(changed.pop("com") * per_update)} if "com" in changed else {}
    of |= {name: type(of[name])(of[name] * factor) for name, factor in changed.items()}
    return grid.named(script, of, varied, BRANCH // (of["num_envs"] * of["num_steps"]), source, source.num_updates)


def cells() -> dict[tuple[str, int, str], grid.Cell]:
    """All runs by game, seed and change, seed by seed."""
    every = ((game, seed) for game, seeds in SEEDS.items() for seed in range(seeds))
    return {(*of, arm or "parent"): cell(*of, arm) for of in every for arm in (None, *CHANGES)}


def told(of: grid.Cell, game: str, seed: int, arm: str) -> dict[str, Any]:
    """What is kept of a run: its curve; means over its last quarter, of the return over all episodes."""
    folder = RUNS / of.name
    lines, made = plots.read_lines(folder), json.loads((folder / "args.json").read_text())
    lines = lines[-(len(lines) // 4) :]
    keys = (*KEYS.values(), RETURN, EPISODES)
    values = {key: np.array([line.get(key) for line in lines], np.float64) for key in keys}
    ended = values[EPISODES] > 0
    return {"game": game, "seed": seed, "arm": arm, "command": " ".join(grid.command(of, RUNS))} | {
        "return": round(float(np.average(values[RETURN][ended], weights=values[EPISODES][ended])), 3),
        **{name: float(f"{np.nanmean(values[key]):.4g}") for name, key in KEYS.items()},
        "curve": [[steps, value] for steps, _, value in learning.make_curve(folder)],
        "machine": made["machine"],
    }


def effect(runs: dict[str, Any], game: str, what: str, a: tuple[str, ...], b: tuple[str, ...]) -> effects.Effect:
    """Return in the last quarter of branches a less that of b, means over each parent's branches, paired by parent."""
    of = {(run["arm"], run["seed"]): run["return"] for run in runs.values() if run["game"] == game}
    whole = [seed for seed in range(SEEDS[game]) if all((arm, seed) in of for arm in (*a, *b))]
    less = [np.mean([of[arm, seed] for arm in a]) - np.mean([of[arm, seed] for arm in b]) for seed in whole]
    return effects.difference(what, np.array(less), level=LEVEL, above=0.0 if what in CLAIMS else None)


def judged(runs: dict[str, Any], game: str) -> list[effects.Effect]:
    """The claims' effects, then each branch's on its own."""
    found = [effect(runs, game, what, *sides) for what, sides in CLAIMS.items()]
    return found + [effect(runs, game, f"{arm} less control", (arm,), ("control",)) for arm in CHANGES]


def main() -> None:
    known, of = json.loads(OUT.read_text())["runs"] if OUT.exists() else {}, cells()
    keys = {cell.name: key for key, cell in of.items()}

    def keep(cell: grid.Cell) -> None:
        known[cell.name] = told(cell, *keys[cell.name])
        report.write(OUT, report.record(runs={name: known[name] for name in keys if name in known}))

    grid.complete([*of.values()], known, RUNS, None, say, keep)
    for game in SEEDS:
        print(game, *judged(known, game), sep="\n")


if __name__ == "__main__":
    main()
