"""With a constant learning rate PPO slows down on Breakout far below its best. What makes such a run rise again?

    python benchmarks/plateaus.py     # what is missing: 1 hour 50 minutes on two cores

Parents have the flags that arms.py found for 64 environments, whose results it needs, but rate and entropy bonus stay
as they are. Each branch goes on from a parent's end with one thing changed, or several. The rules are in
experiments/PREREGISTERED.md.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import arms, learning, report
from common.run import plots
from common.run.tracking import say
from experiments import effects, grid

RUNS, OUT = Path("runs/plateaus"), Path("results/plateaus.json")
GAME, SEEDS = "Breakout", 6
PARENT, BRANCH = 10_485_760, 4_194_304  # environment steps
RETURN, EPISODES = "charts/episodic_return", "charts/num_episodes"
KEYS = {
    "kl": "outer/kl",
    "clipfrac": "losses/clipfrac",
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
    "epochs": ("epochs ÷ 4", {"update_epochs": 1 / 4}),
}
CLAIMS = {  # what is claimed to raise the return: the mean of the first branches less that of the second
    "8 × environments": (("envs", "lr_envs", "bonus_envs", "lr_bonus_envs"), ("control", "lr", "bonus", "lr_bonus")),
    "ε ÷ 4": (("eps", "eps_bonus"), ("control", "bonus")),
    "PPO-EWMA, COM of 8 updates": (("com",), ("control",)),
    "learning rate ÷ 4": (("lr", "lr_envs", "lr_bonus", "lr_bonus_envs"), ("control", "envs", "bonus", "bonus_envs")),
    "entropy bonus ÷ 4": (("bonus", "bonus_envs", "lr_bonus", "lr_bonus_envs"), ("control", "envs", "lr", "lr_envs")),
}
LEVEL = 1 - 0.05 / len(CLAIMS)
PLAYED = ("parent", "control", "lr", "bonus")  # also with most probable actions
IN_PICTURE = ("lr_envs", "bonus_envs", "lr_bonus_envs", "envs_64")  # and not in the page's table
IN_COLOUR = ("envs", "lr", "lr_bonus", "bonus", "lr_bonus_envs", "eps")
DRAWN = {"control": "black"} | dict(zip(IN_COLOUR, plots.COLOURS, strict=False))


def cell(seed: int, arm: str = "parent") -> grid.Cell:
    """A parent or, with the name of a change, its branch."""
    sizes = arms.common_flags("small", arms.Args(total_timesteps=PARENT))
    constant = {"anneal_lr": False, "anneal_ent": False}
    flags = {"env_id": f"{GAME}-MinAtar", "seed": seed} | sizes | arms.Results(arms.Args()).best("small") | constant
    flags, varied = flags | {"num_devices": 1}, {"game": GAME, "seed": seed, "arm": arm}
    per_epoch = flags["num_envs"] * flags["num_steps"] // flags["minibatch_size"]
    if arm == "parent":
        return grid.named("ppo", flags, varied, PARENT // (flags["num_envs"] * flags["num_steps"]))
    source, (_, changed) = cell(seed), CHANGES[arm]
    flags |= {"total_timesteps": BRANCH, "num_eval_episodes": 0, "checkpoint_every": 0}
    if "com" in changed:  # PPO-EWMA counts it in gradient steps
        flags["com"] = float(changed["com"] * flags["update_epochs"] * per_epoch)
    flags |= {name: type(flags[name])(flags[name] * factor) for name, factor in changed.items() if name != "com"}
    updates = BRANCH // (flags["num_envs"] * flags["num_steps"])
    return grid.named("ppo_ewma" if "com" in changed else "ppo", flags, varied, updates, source, source.num_updates)


def cells() -> dict[tuple[int, str], grid.Cell]:
    """All runs by seed and change, seed by seed."""
    return {(seed, arm): cell(seed, arm) for seed in range(SEEDS) for arm in ("parent", *CHANGES)}


def told(of: grid.Cell, seed: int, arm: str) -> dict[str, Any]:
    """What is kept of a run: its curve; means over its last quarter, of the return over all episodes."""
    folder = RUNS / of.name
    lines, made = plots.read_lines(folder), json.loads((folder / "args.json").read_text())
    lines = lines[-(len(lines) // 4) :]
    keys = (*KEYS.values(), RETURN, EPISODES)
    values = {key: np.array([line.get(key) for line in lines], np.float64) for key in keys}
    ended = values[EPISODES] > 0
    return {"seed": seed, "arm": arm, "command": " ".join(grid.command(of, RUNS))} | {
        "return": round(float(np.average(values[RETURN][ended], weights=values[EPISODES][ended])), 3),
        **{name: float(f"{np.nanmean(values[key]):.4g}") for name, key in KEYS.items()},
        "curve": [[steps, value] for steps, _, value in learning.make_curve(folder)],
        "machine": made["machine"],
    }


def greedy(cell: grid.Cell) -> float:
    """Return of a run's final policy with most probable actions."""
    playing = learning.greedy_cell(cell, RUNS)
    playing = replace(playing, source=None, flags=(*playing.flags, ("num_eval_episodes", 128)))
    if failed := grid.run_missing([playing], RUNS, 1, say):
        raise SystemExit("\n".join(failed))
    summary = json.loads((RUNS / playing.name / "summary.json").read_text())
    return round(summary["eval/episodic_return"]["mean"], 3)


def effect(
    runs: dict[str, Any], what: str, a: tuple[str, ...], b: tuple[str, ...], key: str = "return"
) -> effects.Effect:
    """Return in the last quarter of branches a less that of b, means over each parent's branches, paired by parent."""
    of = {(run["arm"], run["seed"]): run[key] for run in runs.values() if key in run}
    whole = [seed for seed in range(SEEDS) if all((arm, seed) in of for arm in (*a, *b))]
    less = [np.mean([of[arm, seed] for arm in a]) - np.mean([of[arm, seed] for arm in b]) for seed in whole]
    return effects.difference(what, np.array(less), level=LEVEL, above=0.0 if what in CLAIMS else None)


def claimed(runs: dict[str, Any]) -> list[effects.Effect]:
    """The effects that the rules judge."""
    return [effect(runs, what, *sides) for what, sides in CLAIMS.items()]


def branch(runs: dict[str, Any], arm: str, key: str = "return") -> effects.Effect:
    """Return of one branch less that of the unchanged one."""
    return effect(runs, f"{CHANGES[arm][0]}, less {CHANGES['control'][0]}", (arm,), ("control",), key)


def mean_curve(runs: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Million steps [T] and the mean over runs of the return in training [T]."""
    steps, values = learning.on_one_grid(run["curve"] for run in runs)
    return steps / 1e6, values.mean(axis=1)


def draw(runs: dict[str, Any], path: Path) -> None:
    """Parents and some branches over steps; beside them what each change did."""
    figure, axes = report.new_figure(1, 2, f"{GAME}, 64 environments, constant rate: what makes it rise?")
    figure.set_size_inches(11, 4.6)
    curves, ends = axes[0]
    of = {arm: [run for run in runs.values() if run["arm"] == arm] for arm in ("parent", *CHANGES)}
    curves.plot(*mean_curve(of["parent"]), color="0.3", linewidth=2)
    for arm, colour in DRAWN.items():
        steps, values = mean_curve(of[arm])
        label = CHANGES[arm][0] if arm == "control" else ""  # the others' names are in their colours at the right
        curves.plot(PARENT / 1e6 + steps, values, color=colour, linewidth=2, label=label)
    curves.axvline(PARENT / 1e6, color="0.5", linewidth=1, linestyle=":")
    curves.set(xlabel="million environment steps", ylabel="return in training", ylim=(0, None))
    found = sorted(((branch(runs, arm), arm) for arm in CHANGES if arm != "control"), key=lambda x: x[0].estimate)
    for at, (x, arm) in enumerate(found):
        colour = DRAWN.get(arm, "0.55")
        ends.plot((x.low, x.high), (at, at), color=colour, linewidth=2)
        ends.plot(x.samples[0], [at] * len(x.samples[0]), ".", color=colour, alpha=0.5)
        ends.plot(x.estimate, at, "o", color=colour)
    ends.axvline(0, color="0.3", linewidth=1)
    ends.set_yticks(range(len(found)), [CHANGES[arm][0] for _, arm in found], fontsize=9)
    for (_, arm), label in zip(found, ends.get_yticklabels(), strict=True):
        label.set_color(DRAWN.get(arm, "0.3"))
    ends.set(xlabel="return less that of the unchanged branch")
    shown = (
        f"Left: means over {len(of['parent'])} runs. Right: last quarter of each branch, mean, 99 % interval and runs."
    )
    report.save_figure(figure, path, shown)


def main() -> None:
    known, of = json.loads(OUT.read_text())["runs"] if OUT.exists() else {}, cells()
    keys = {cell.name: key for key, cell in of.items()}

    def write() -> None:
        report.write(OUT, report.record(runs={name: known[name] for name in keys if name in known}))

    def keep(cell: grid.Cell) -> None:
        known[cell.name] = told(cell, *keys[cell.name])
        write()

    grid.complete([*of.values()], known, RUNS, None, say, keep)
    for (_, arm), cell in of.items():
        if arm in PLAYED and "greedy" not in known[cell.name]:
            known[cell.name]["greedy"] = greedy(cell)
            write()
    draw(known, OUT.with_suffix(".png"))
    print(*claimed(known), *(branch(known, arm) for arm in CHANGES if arm != "control"), sep="\n")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
