"""Does random network distillation find a reward that PPO does not find, and do more environments help it to?

    python -m experiments.exploration_rnd           # makes the missing runs, then results/exploration_rnd.json
    python -m experiments.exploration_rnd --dry-run # prints the missing commands
    python figures.py B16                           # figure 16 of paper B, from the same runs

On a laptop: a key, a locked door and a goal in a small world, made anew for each episode, which ends after 100 steps.
Random play reached the goal in one of 6,144 of them. The rules are in experiments/PREREGISTERED.md. It needs
requirements-xminigrid.txt.
"""

import importlib
import itertools
import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from common import envs
from common.run import plots
from common.run.arguments import read_record, typed
from common.run.checkpoints import restore_newest
from common.run.tracking import say
from experiments import grid, paper_b, results, scores
from experiments.data import Data, Figure, axis, register
from experiments.headline import interval
from experiments.paper_b_runs import ON_HOST
from experiments.pictures import Line, Picture
from experiments.verdicts import Check, difference

CITATION = paper_b.CITATION
SCRIPTS = ("ppo", "ppo_rnd")
LIMIT = 100  # steps of an episode on a laptop
MARGIN = 0.1  # of the share of episodes that reach the goal
QUARTERS = 4  # the policies after each quarter of a run are played to see where they go
EPISODES = 128  # with each of them and each seed
SHARE, FIELDS = "episodes solved, second half", "fields of an episode"  # what is judged
SOLVED, RETURN, COUNT = "charts/solve_rate", "charts/episodic_return", "charts/num_episodes"

Cells = dict[tuple[str, int, str], grid.Cell]  # script, environments, game
FIGURES: dict[str, Figure] = {}


@dataclass(frozen=True)
class Preset:
    """Games and sizes. All runs have equal steps, and but for RND equal flags."""

    about: str
    games: tuple[str, ...]
    sizes: tuple[int, ...]  # environments
    total_timesteps: int  # of each seed
    base: dict[str, Any]  # flags shared by all runs
    rnd: dict[str, Any]  # those that only ppo_rnd.py has
    performance: str = SOLVED

    def scale(self, run: grid.Cell) -> tuple[float, float]:
        return scores.SCALES[dict(run.flags)["env_id"]] if self.performance == RETURN else (0.0, 1.0)


# Where ppo.py's defaults are others than ppo_rnd.py's, it takes those of ppo_rnd.py.
SHARED = {"gamma": 0.999, "clip_eps": 0.1, "clip_vloss": False, "ent_coef": 0.001}
DOORKEY = dict(num_steps=16, seed=0, num_seeds=5, num_eval_episodes=0, plasticity_every=0, keep_checkpoints=0)
PRESETS = {
    "laptop": Preset(
        about="xminigrid's DoorKey-8x8 on two cores, 2.1M steps, 5 seeds",
        games=("xminigrid/MiniGrid-DoorKey-8x8",), sizes=(64, 512, 4096), total_timesteps=2**21,
        base=DOORKEY | dict(
            env_kwargs=json.dumps({"max_steps": LIMIT}), minibatch_size=1024, stagger_resets=LIMIT - 1, num_devices=1,
        ),
        rnd=dict(obs_warmup_steps=16),
    ),
    "gpu": Preset(
        about="xminigrid's DoorKey-16x16 on one GPU, 134M steps, 5 seeds",
        games=("xminigrid/MiniGrid-DoorKey-16x16",), sizes=(512, 4096, 32768), total_timesteps=2**27,
        base=DOORKEY | dict(minibatch_size=4096, stagger_resets=511), rnd=dict(obs_warmup_steps=16),
    ),
    # Steps, minibatches, learning rate, warm-up and embedding of CleanRL's ppo_rnd_envpool.py, which the paper used; it
    # does not say with which N. As in Burda et al. 2018, losing a life ends no episode and values are not clipped.
    "paper": Preset(
        about="envpool's Montezuma's Revenge and Phoenix, the rebuttal's of paper B, 210M steps, 5 seeds, a run each",
        games=("envpool/MontezumaRevenge-v5", "envpool/Phoenix-v5"), sizes=(32, 128, 512), total_timesteps=200 * 2**20,
        base=dict(
            num_steps=128, num_minibatches=4, learning_rate=1e-4, anneal_lr=True, network="nature",
            hidden_sizes=(256, 448), activation="relu", shared_encoder=True, reward_clip=1.0, sticky_actions=0.25,
            seed=0, num_seeds=5, num_eval_episodes=0, plasticity_every=0,
        ),
        rnd=dict(obs_warmup_steps=50 * 128, embedding_size=512), performance=RETURN,
    ),
}  # fmt: skip
LAPTOP = PRESETS["laptop"]


def cell(p: Preset, script: str, num_envs: int, game: str) -> grid.Cell:
    """The run of all seeds of a script in so many environments; where a run can have one seed only, a run of each."""
    updates = p.total_timesteps // (num_envs * p.base["num_steps"])
    flags = {"env_id": game, "num_envs": num_envs, "total_timesteps": p.total_timesteps} | p.base
    flags |= {"log_every": max(1, updates // 256), "checkpoint_every": updates // QUARTERS}
    flags |= SHARED if script == "ppo" else p.rnd
    varied = ({"env_id": game} if len(p.games) > 1 else {}) | {"envs": num_envs, "seed": p.base["seed"]}
    return (grid.by_seed if game.startswith(ON_HOST) else grid.named)(script, flags, varied, updates)


def cells(p: Preset) -> Cells:
    return {
        (script, size, game): cell(p, script, size, game) for script in SCRIPTS for size in p.sizes for game in p.games
    }


# What a run has logged


def of_episodes(lines: list[dict[str, Any]], begin: float, end: float, key: str = SOLVED) -> np.ndarray:
    """The mean over all episodes ending between these steps; of SOLVED, the share that reaches the goal. -> [seeds],
    NaN if none ends."""
    kept = [line for line in lines if begin < line["global_step"] <= end and COUNT in line]
    count, mean = (np.array([line[name] for line in kept], np.float64) for name in (COUNT, key))
    with np.errstate(invalid="ignore"):
        return np.where(count > 0, count * mean, 0.0).sum(0) / count.sum(0)


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


def helps(what: str, p: Preset, values: dict[tuple[int, str], np.ndarray]) -> list[Check]:
    """Whether more environments help: each size against the next smaller one, in each game. values [seeds]."""
    return [
        difference(
            f"{what}, {large} less {small}" + f", {game}" * (len(p.games) > 1),
            values[large, game], values[small, game], above=0,
        )
        for game, (small, large) in itertools.product(p.games, itertools.pairwise(p.sizes))
    ]  # fmt: skip


@partial(
    register,
    FIGURES,
    "B16",
    title="Hard exploration with random network distillation",
    claim="In hard exploration with random network distillation, too, more environments help.",
    cells=cells,
    suite="Montezuma's Revenge and Phoenix",
)()
def show_exploration(d: Data, cells: Cells) -> tuple[Picture, list[Check]]:
    """PPO without RND is drawn beside it."""

    def score(run: grid.Cell) -> np.ndarray:
        if (diverged := d.diverged(run)) is None:
            return np.full(1, np.nan)
        low, high = d.p.scale(run)
        mean = of_episodes(d.lines(run), 0.5 * d.p.total_timesteps, d.p.total_timesteps, d.p.performance)
        return np.where(diverged, 0.0, (mean - low) / (high - low))

    values = {(size, game): score(run) for (script, size, game), run in cells.items() if script == "ppo_rnd"}
    panels: dict[str, list[Line]] = {}
    for (script, size, game), run in cells.items():
        name = f"{script}.py" + f", {game}" * (len(d.p.games) > 1)
        line = Line(f"{size:,} environments", *d.curve(run, d.p.performance))
        panels.setdefault(name, []).extend([line] if len(line.x) else [])
    return Picture(panels, "environment steps", axis(d.p)), helps("ppo_rnd.py: score of the second half", d.p, values)


def judge(runs: dict[tuple[str, int], dict[str, Any]]) -> dict[str, list[Check]]:
    """The checks of each claim, as experiments/PREREGISTERED.md has them. runs: by script and size, samples [seeds]."""
    of = lambda script, size, key: np.array(runs[script, size][key], np.float64)  # noqa: E731
    checks: dict[str, list[Check]] = {}
    for size in LAPTOP.sizes:
        both = [of(script, size, SHARE) for script in ("ppo_rnd", "ppo")]
        checks[f"RND solves more, {size}"] = [difference(f"{SHARE}, RND less PPO", *both, above=MARGIN)]
        both = [of(script, size, FIELDS) for script in ("ppo_rnd", "ppo")]
        checks[f"RND goes to more fields, {size}"] = [difference(f"{FIELDS}, RND less PPO", *both, above=0)]
    of_sizes = {(size, game): of("ppo_rnd", size, SHARE) for size in LAPTOP.sizes for game in LAPTOP.games}
    for (small, large), check in zip(itertools.pairwise(LAPTOP.sizes), helps(SHARE, LAPTOP, of_sizes), strict=True):
        checks[f"more environments help RND, {small} to {large}"] = [check]
    return checks


def main(
    runs_dir: Path = Path("runs/figures/laptop"),
    jobs: int = 1,
    seed: int = 0,
    dry_run: bool = False,
    out: Path = Path("results/exploration_rnd.json"),
) -> None:
    """Makes what is missing and compares the two scripts.

    Args:
        runs_dir: Folder for the runs, which figure B16 shares.
        jobs: How many runs at once, each on its share of the cores.
        seed: The first of five. The rules are for 0.
        dry_run: Only print the commands.
        out: The file to write.
    """
    p = replace(LAPTOP, base=LAPTOP.base | {"seed": seed})
    runs = {(script, size): run for (script, size, _), run in cells(p).items()}
    if not grid.made(list(runs.values()), runs_dir, jobs, say, dry_run):
        return
    found: dict[tuple[str, int], dict[str, Any]] = {}
    steps = p.total_timesteps
    for key, run in runs.items():
        lines, where = plots.read_lines(runs_dir / run.name), places(runs_dir, run)
        row: dict[str, Any] = {"command": grid.paste(run, runs_dir)}
        row[SHARE] = of_episodes(lines, 0.5 * steps, steps)
        row["episodes solved, last tenth"] = of_episodes(lines, 0.9 * steps, steps)
        row["first steps with a solved episode"] = first_steps(lines)
        row[FIELDS] = where["fields"].mean(0)
        row |= {f"{name}, after each quarter": values.tolist() for name, values in where.items()}
        row |= {f"{name}, mean and interval": interval(list(row[name])) for name in (SHARE, FIELDS)}
        found[key] = row
    checks = judge(found)
    for name, of_claim in checks.items():
        print(name, *map(str, of_claim), sep="\n  ")
    told = {name: [check.stored() for check in of] for name, of in checks.items()}
    of_runs = {f"{script}, {size} environments": row for (script, size), row in found.items()}
    how = results.facts("exploration_rnd", "## Hard exploration: PPO against RND")
    results.write(out, how | {"checks": told, "runs": of_runs})


if __name__ == "__main__":
    tyro.cli(main)
