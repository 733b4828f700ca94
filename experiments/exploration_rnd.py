"""Does random network distillation find a reward that PPO does not find, and do more environments help it to?

    python -m experiments.exploration_rnd           # makes the missing runs, then results/exploration_rnd.json
    python -m experiments.exploration_rnd --dry-run # prints the six commands

A key, a locked door and a goal in a small world, made anew for each episode, which ends after 100 steps: random play
reached the goal in one of 6,144 of them. The rules are in experiments/PREREGISTERED.md. It needs
requirements-xminigrid.txt.
"""

import datetime
import importlib
import itertools
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from benchmarks.report import git
from common import envs
from common.run import devices, plots
from common.run.arguments import read_record, typed
from common.run.checkpoints import restore_newest
from common.run.tracking import say
from experiments import grid
from experiments.headline import interval
from experiments.verdicts import Check, difference
from figures import compact, rounded

SIZES = (64, 512, 4096)  # environments
SCRIPTS = ("ppo", "ppo_rnd")
SEEDS = 5
STEPS = 2**21  # of each seed, the same for all
NUM_STEPS = 16
LIMIT = 100  # steps of an episode
MARGIN = 0.1  # of the share of episodes that reach the goal
QUARTERS = 4  # the policies after each quarter of a run are played to see where they go
EPISODES = 128  # with each of them and each seed
SHARE, FIELDS = "episodes solved, second half", "fields of an episode"  # what is judged
SOLVED, COUNT = "charts/solve_rate", "charts/num_episodes"
# Where ppo.py's defaults are others than ppo_rnd.py's, it takes those of ppo_rnd.py.
SHARED = {"gamma": 0.999, "clip_eps": 0.1, "clip_vloss": False, "ent_coef": 0.001}


def cell(script: str, num_envs: int, seed: int = 0, **changed: Any) -> grid.Cell:
    """The run of SEEDS seeds of a script in so many environments."""
    steps = changed.get("total_timesteps", STEPS)
    updates = steps // (num_envs * NUM_STEPS)
    flags = {"env_id": "xminigrid/MiniGrid-DoorKey-8x8", "env_kwargs": json.dumps({"max_steps": LIMIT})}
    flags |= {"num_envs": num_envs, "num_steps": NUM_STEPS, "total_timesteps": steps, "minibatch_size": 1024}
    flags |= {"stagger_resets": LIMIT - 1, "seed": seed, "num_seeds": SEEDS, "num_eval_episodes": 0}
    flags |= {"plasticity_every": 0, "log_every": max(1, updates // 256), "keep_checkpoints": 0}
    flags |= {"checkpoint_every": updates // QUARTERS, "num_devices": 1}
    flags |= SHARED if script == "ppo" else {"obs_warmup_steps": 16}
    return grid.named(script, flags | changed, {"envs": num_envs, "seed": seed}, updates)


def cells(seed: int) -> dict[tuple[str, int], grid.Cell]:
    """The six runs, by script and number of environments."""
    return {(script, size): cell(script, size, seed) for script in SCRIPTS for size in SIZES}


# What a run has logged


def shares(lines: list[dict[str, Any]], begin: float, end: float) -> np.ndarray:
    """The share of all episodes ending between these steps that reach the goal. -> [seeds], NaN if none ends."""
    kept = [line for line in lines if begin < line["global_step"] <= end and COUNT in line]
    count, share = (np.array([line[key] for line in kept], np.float64) for key in (COUNT, SOLVED))
    with np.errstate(invalid="ignore"):
        return np.where(count > 0, count * share, 0.0).sum(0) / count.sum(0)


def first_steps(lines: list[dict[str, Any]]) -> list[int | None]:
    """Steps until the line with the first episode that reached the goal, for each seed; None if there is none."""
    solved = np.array([line[SOLVED] for line in lines if COUNT in line], np.float64) > 0  # NaN is not
    steps = [line["global_step"] for line in lines if COUNT in line]
    return [steps[int(seed.argmax())] if seed.any() else None for seed in solved.T]


# Where its policies go


def stages(inner: Any) -> jax.Array:
    """Whether the agents hold a key, and whether a door is open. inner: the suite's states -> bool [2, N]."""
    from xminigrid.core.constants import Tiles

    opened = (inner.grid[..., 0] == Tiles.DOOR_OPEN).any((1, 2))
    return jnp.stack([inner.agent.pocket[..., 0] == Tiles.KEY, opened])


def walked(env: envs.VectorEnv, policy: Any, key: jax.Array) -> dict[str, jax.Array]:
    """Play one episode in each environment. policy(obs) -> distribution. -> means over episodes: different fields that
    the agent stands on, and the shares of those in which it takes the key, opens the door and reaches the goal."""
    reset_key, key = jax.random.split(key)
    state, obs = env.reset(reset_key)
    every = jnp.arange(env.num_envs)

    def stood(seen: jax.Array, inner: Any, playing: jax.Array) -> jax.Array:
        return seen.at[every, inner.agent.position[:, 0], inner.agent.position[:, 1]].max(playing)

    def step(carry: tuple, key: jax.Array) -> tuple:
        state, obs, seen, reached, playing = carry
        action_key, step_key = jax.random.split(key)
        state, out = env.step(step_key, state, policy(obs).sample(action_key))
        now = jnp.concatenate([stages(state.inner), out.episode.success[None]])
        carry = (
            state,
            out.obs,
            stood(seen, state.inner, playing),
            reached | (now & playing),
            playing & ~out.episode.done,
        )
        return carry, None

    playing = jnp.ones(env.num_envs, bool)
    seen = stood(jnp.zeros((env.num_envs, *state.inner.grid.shape[1:3]), bool), state.inner, playing)
    start = state, obs, seen, jnp.zeros((3, env.num_envs), bool), playing
    _, _, seen, reached, _ = jax.lax.scan(step, start, jax.random.split(key, LIMIT))[0]
    return dict(zip(("fields", "key", "door", "goal"), (seen.sum((1, 2)).mean(), *reached.mean(1)), strict=True))


def places(folder: Path, run: grid.Cell) -> dict[str, np.ndarray]:
    """`walked` by the policies after each quarter of a finished run. -> [quarters, seeds] each."""
    script, path = importlib.import_module(run.script), folder / run.name
    args = script.Args(**typed(script.Args, read_record(path, "run")["args"], f"run {path}"))
    args, env, network, init, _, _, keys = script.build(args)
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    shapes = jax.eval_shape(init, keys).learner._replace(opt_state=None)
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), shapes)
    env = envs.copies(env.suite, EPISODES, auto_reset=False)

    def play(learner: Any, key: jax.Array) -> dict[str, jax.Array]:
        return walked(env, lambda obs: script.forward(args, network, learner.obs_stats, learner.params, obs)[0], key)

    play, found = jax.jit(jax.vmap(play)), []
    for quarter in range(1, QUARTERS + 1):
        update = quarter * run.num_updates // QUARTERS
        state, _ = restore_newest(path, [update], {"learner": like}, f"run {path}", partial=True)
        played = jax.random.split(jax.random.key(quarter), args.num_seeds)
        found.append(jax.device_get(play(state["learner"], played)))
    return {name: np.stack([row[name] for row in found]) for name in found[0]}


def judge(runs: dict[tuple[str, int], dict[str, Any]]) -> dict[str, list[Check]]:
    """The checks of each claim, as experiments/PREREGISTERED.md has them. runs: by script and size, samples [seeds]."""
    of = lambda script, size, key: np.array(runs[script, size][key], np.float64)  # noqa: E731
    checks: dict[str, list[Check]] = {}
    for size in SIZES:
        both = [of(script, size, SHARE) for script in ("ppo_rnd", "ppo")]
        checks[f"RND solves more, {size}"] = [difference(f"{SHARE}, RND less PPO", *both, above=MARGIN)]
        both = [of(script, size, FIELDS) for script in ("ppo_rnd", "ppo")]
        checks[f"RND goes to more fields, {size}"] = [difference(f"{FIELDS}, RND less PPO", *both, above=0)]
    for small, large in itertools.pairwise(SIZES):
        both = [of("ppo_rnd", size, SHARE) for size in (large, small)]
        name = f"more environments help RND, {small} to {large}"
        checks[name] = [difference(f"{SHARE}, {large} less {small}", *both, above=0)]
    return checks


def main(
    runs_dir: Path = Path("runs/exploration_rnd"),
    jobs: int = 1,
    seed: int = 0,
    dry_run: bool = False,
    out: Path = Path("results/exploration_rnd.json"),
) -> None:
    """Makes what is missing and compares the two scripts.

    Args:
        runs_dir: Folder for the runs.
        jobs: How many runs at once, each on its share of the cores.
        seed: The first of five. The rules are for 0.
        dry_run: Only print the commands.
        out: The file to write.
    """
    runs = cells(seed)
    if dry_run:
        print("\n".join(grid.paste(run, runs_dir) for run in runs.values()))
        return
    if failed := grid.run_missing(list(runs.values()), runs_dir, jobs, say):
        raise SystemExit("\n".join(failed))
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for key, run in runs.items():
        lines, where = plots.read_lines(runs_dir / run.name), places(runs_dir, run)
        row: dict[str, Any] = {"command": grid.paste(run, runs_dir)}
        row[SHARE] = shares(lines, 0.5 * STEPS, STEPS)
        row["episodes solved, last tenth"] = shares(lines, 0.9 * STEPS, STEPS)
        row["first steps with a solved episode"] = first_steps(lines)
        row[FIELDS] = where["fields"].mean(0)
        row |= {f"{name}, after each quarter": values.tolist() for name, values in where.items()}
        row |= {f"{name}, mean and interval": interval(list(row[name])) for name in (SHARE, FIELDS)}
        found[key] = row
    checks = judge(found)
    for name, of_claim in checks.items():
        print(name, *map(str, of_claim), sep="\n  ")
    facts = {"command": shlex.join(["python", "-m", "experiments.exploration_rnd", *sys.argv[1:]])}
    facts |= {"date": f"{datetime.date.today()}", "machine": devices.machine(), "git_commit": git("rev-parse", "HEAD")}
    told = {name: [check._asdict() | {"outcome": check.outcome} for check in of] for name, of in checks.items()}
    results = {f"{script}, {size} environments": row for (script, size), row in found.items()}
    out.write_text(compact(json.dumps(rounded(facts | {"checks": told, "runs": results}), indent=1)) + "\n")


if __name__ == "__main__":
    tyro.cli(main)
