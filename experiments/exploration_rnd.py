"""Figure 16 of Mayor et al. 2025: do more environments help PPO with random network distillation?

On a laptop and a GPU: a key, a locked door and a goal in a small world, made anew for each episode. It needs
requirements-xminigrid.txt.
"""

import itertools
import json
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from experiments import grid, paper_b, scores
from experiments.data import Data, Figure, axis, register
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


def of_episodes(lines: list[dict[str, Any]], begin: float, end: float, key: str = SOLVED) -> np.ndarray:
    """The mean over all episodes ending between these steps; of SOLVED, the share that reaches the goal. -> [seeds],
    NaN if none ends."""
    kept = [line for line in lines if begin < line["global_step"] <= end and COUNT in line]
    count, mean = (np.array([line[name] for line in kept], np.float64) for name in (COUNT, key))
    with np.errstate(invalid="ignore"):
        return np.where(count > 0, count * mean, 0.0).sum(0) / count.sum(0)


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
