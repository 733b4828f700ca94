"""Figure 10 of Beukman et al. 2026 (https://arxiv.org/abs/2603.06009): PPO and SAPG on dexterous hands with minibatches
of 4 N transitions, which Singla et al. 2024 (https://arxiv.org/abs/2407.20230) use, and of a fixed size. Its presets,
runs, picture and checks; the laptop has a toy in place of the hands."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from experiments import paper_a
from experiments.data import Data, Figure, axis, register
from experiments.grid import Cell, named
from experiments.pictures import Line, Picture
from experiments.sfl import compare, over_seeds
from experiments.verdicts import Check

CITATION = paper_a.CITATION
MARGIN = 0.1  # of the way from standing still to the goal; less does not count as a difference
FIXED, GROWING = "fixed", "4 N"

Cells = dict[tuple[str, int, str, int], Cell]  # script, environments, how minibatches are sized, first seed
FIGURES: dict[str, Figure] = {}


@dataclass(frozen=True)
class Preset:
    """Environment and sizes. Where 4 N is the fixed size, both are one run."""

    about: str
    performance: str  # the logged key that is plotted
    low: float  # the performance that is score 0
    high: float  # and score 1
    base: dict[str, Any]  # flags shared by all runs
    sapg: dict[str, Any]  # those that only sapg.py has
    envs: tuple[int, ...]
    size: int  # of minibatches, where it is fixed
    total_timesteps: int
    seeds: tuple[int, ...]  # each starts a run of base["num_seeds"] consecutive seeds

    def scale(self, run: Cell) -> tuple[float, float]:
        return self.low, self.high


# Table 4 of paper A. Singla et al. also normalise values and have a bounds loss, which only sapg.py can: for a fair
# comparison neither script does here.
TABLE_4 = dict(
    gamma=0.99, gae_lambda=0.95, learning_rate=5e-4, adaptive_lr_kl=0.016, max_grad_norm=1.0, ent_coef=0.0, vf_coef=4.0,
    norm_obs=True, norm_reward=True, num_steps=8, update_epochs=5, activation="elu", shared_encoder=True,
)  # fmt: skip
SHADOW = TABLE_4 | dict(
    env_id="envpool/HandManipulateBlockDense-v1", clip_eps=0.1, hidden_sizes=(512, 512, 256, 128), num_seeds=1,
    num_eval_episodes=0,
)  # fmt: skip
PRESETS = {
    "laptop": Preset(
        about="MountainCarContinuous-v0 on two cores; minutes per run",
        performance="eval/episodic_return", low=0.0, high=95.0,
        base=TABLE_4 | dict(
            env_id="MountainCarContinuous-v0", num_steps=16, gamma=0.997, update_epochs=8, learning_rate=3e-4,
            clip_eps=0.2, hidden_sizes=(32, 32), num_seeds=5, num_devices=1, num_eval_episodes=64,
        ),
        sapg=dict(num_blocks=4, block_ent_coef=0.1), envs=(512, 4096, 16384), size=2048,
        total_timesteps=2**22, seeds=(0,),
    ),
    "gpu": Preset(
        about="envpool's Shadow hand with a block, 6,144 environments, 201M steps, 3 seeds",
        performance="charts/episodic_return", low=-300.0, high=0.0, base=SHADOW,
        sapg=dict(num_blocks=6, block_ent_coef=0.005), envs=(6144,), size=4096, total_timesteps=201_326_592,
        seeds=(0, 1, 2),
    ),
    "paper": Preset(
        about="envpool's Shadow hand in place of Isaac Gym's; 24,576 environments, 10,000M steps, 5 seeds",
        performance="charts/episodic_return", low=-300.0, high=0.0, base=SHADOW,
        sapg=dict(num_blocks=6, block_ent_coef=0.005), envs=(24576,), size=16384, total_timesteps=10_000_000_000,
        seeds=(0, 1, 2, 3, 4),
    ),
}  # fmt: skip


def cell(p: Preset, script: str, envs: int, size: int, seed: int) -> Cell:
    varied = {"num_envs": envs, "minibatch_size": size} | ({"seed": seed} if len(p.seeds) > 1 else {})
    flags = p.base | {"total_timesteps": p.total_timesteps} | varied | (p.sapg if script == "sapg" else {})
    updates = p.total_timesteps // (envs * p.base["num_steps"])
    every = {"eval_every": updates // 32, "checkpoint_every": updates // 8, "log_every": updates // 128}
    # A run that diverges goes on, because divergence is a result as well.
    flags |= {name: max(1, value) for name, value in every.items()} | {"halt_on_nan": False}
    return named(script, flags, varied, updates)


def cells(p: Preset) -> Cells:
    sizes = {FIXED: lambda envs: p.size, GROWING: lambda envs: 4 * envs}
    return {
        (script, envs, how, seed): cell(p, script, envs, size(envs), seed)
        for script in ("ppo", "sapg")
        for envs in p.envs
        for how, size in sizes.items()
        for seed in p.seeds
    }


@partial(
    register,
    FIGURES,
    "10",
    title="PPO and SAPG with minibatches of 4 N and of a fixed size",
    claim="With minibatches of a fixed size PPO and SAPG are both better, and the gap between them is smaller.",
    cells=cells,
    suite="Isaac Gym's hands",
)()
def show_minibatches(d: Data, cells: Cells) -> tuple[Picture, list[Check]]:
    """Joins the seeds of all N at which the sizes differ. Compares the mean score over the whole run, that is over the
    budget: a run on the toy stands still or reaches the goal, sooner or later."""
    of = lambda *key: [run for found, run in cells.items() if found[:3] == key]  # noqa: E731
    large = [envs for envs in d.p.envs if 4 * envs != d.p.size]
    whole = lambda run: d.mean(run, 0.0, 1.0)  # noqa: E731
    mean = {
        (script, how): np.concatenate([over_seeds(whole, of(script, envs, how)) for envs in large])
        for script in ("ppo", "sapg")
        for how in (FIXED, GROWING)
    }
    gaps = {how: mean["sapg", how] - mean["ppo", how] for how in (FIXED, GROWING)}
    checks = [
        compare(f"mean score, {script}, fixed less 4 N", mean[script, FIXED], mean[script, GROWING], above=MARGIN)
        for script in ("ppo", "sapg")
    ]
    checks.append(compare("mean score, sapg less ppo, at 4 N less fixed", gaps[GROWING], gaps[FIXED], above=0.0))
    checks += [compare(f"mean score, sapg less ppo, {how}", gap, 0.0) for how, gap in gaps.items()]
    for script in ("ppo", "sapg"):
        for envs in large:
            for what, statistic in (("mean", whole), ("final", d.final)):
                sizes = (over_seeds(statistic, of(script, envs, how)) for how in (FIXED, GROWING))
                checks.append(compare(f"{what} score, {script}, {envs} environments, fixed less 4 N", *sizes))
    names = {FIXED: f"minibatches of {d.p.size:,}", GROWING: "of 4 × environments"}
    panels = {
        f"{script}.py": [
            mean_line(d, name, [over_seeds(whole, of(script, envs, how)) for envs in d.p.envs])
            for how, name in names.items()
        ]
        for script in ("ppo", "sapg")
    }
    shows = "Of the mean over the whole run, the mean over seeds and its 95 % bootstrap interval"
    return Picture(panels, paper_a.ENVS, f"mean {axis(d.p)}", log_x=True, shows=shows), checks


def mean_line(d: Data, label: str, scores: list[np.ndarray]) -> Line:
    """Mean and percentile bootstrap interval over seeds for each N, as returns. A t-interval would go beyond what is
    possible, because a seed solves the toy or does not."""
    from scipy.stats import bootstrap

    points = []
    for values in scores:
        several = len(values) > 1 and np.ptp(values) > 0
        interval = bootstrap((values,), np.mean, method="percentile", rng=0).confidence_interval if several else None
        points.append([np.mean(values), *(interval or (np.nan, np.nan))])
    y = d.p.low + np.array(points) * (d.p.high - d.p.low)
    return Line(label, np.array(d.p.envs, np.float64), y, "interval points")
