"""Environment, sizes and grids of the figures, for a laptop, a GPU and as in the paper; and how a run is named."""

import hashlib
from dataclasses import dataclass
from typing import Any

from experiments.grid import Cell


@dataclass(frozen=True)
class Preset:
    """Environment, sizes and grids. The values called weak, good and strong were chosen on other seeds."""

    about: str
    performance: str  # the logged key that is plotted
    low: float  # what a random policy gets of it: score 0 of the checks
    high: float  # what the best one gets: score 1
    base: dict[str, Any]  # flags of all runs of ppo.py and ppo_ewma.py
    total_timesteps: int
    sweep_timesteps: int  # budget of the figures with many cells: 4, 6, 12
    coms: tuple[float, ...]
    weak_com: float
    good_com: float
    epsilons: tuple[float, ...]
    weak_eps: float
    good_eps: float
    learning_rates: tuple[float, ...]
    epochs: tuple[int, ...]
    epoch_coms: tuple[float, ...]  # from weak to strong
    epoch_epsilons: tuple[float, ...]  # from weak to strong, at last 0
    batch_envs: tuple[int, ...]  # figure 7
    batch_updates: int
    grid_coms: tuple[float, ...]  # figure 12
    grid_epsilons: tuple[float, ...]
    scaled_envs: tuple[int, ...]  # figures 9, 13 and 14, the base among them
    scaled_seeds: int
    checkpoints: int  # in a run, an even number: figure 3 starts from the one half-way
    missing: str | None = None  # why its runs cannot be started, if they cannot

    @property
    def steps_per_update(self) -> int:
        return self.base["num_envs"] * self.base["num_steps"]

    def scale(self, run: Cell) -> tuple[float, float]:
        """The performance that is score 0 and score 1; of a bowl, performance is the score."""
        return (0.0, 1.0) if run.script == "stochastic_opt" else (self.low, self.high)


TABLE_2 = dict(
    env_id="kinetix/locomotion", num_envs=2048, num_steps=256, num_minibatches=32, update_epochs=8, gamma=0.995,
    gae_lambda=0.9, clip_eps=0.2, max_grad_norm=0.5, clip_vloss=True, vf_coef=0.5, ent_coef=0.01, learning_rate=3e-4,
    hidden_sizes=(256, 256, 256), num_seeds=5,
)  # fmt: skip
KINETIX = dict(
    performance="charts/solve_rate", low=0.0, high=1.0, coms=(0.0, 8.0, 64.0, 512.0, 4096.0, 32768.0), weak_com=8.0,
    good_com=512.0, epsilons=(0.02, 0.1, 0.2, 0.4, 0.6), weak_eps=0.6, good_eps=0.2,
    learning_rates=(3e-5, 1e-4, 3e-4, 1e-3), epochs=(1, 2, 4, 8, 16), epoch_coms=(8.0, 512.0, 4096.0),
    epoch_epsilons=(0.6, 0.2, 0.0), batch_envs=(16, 64, 256, 1024), batch_updates=2000,
    grid_coms=(8.0, 64.0, 512.0, 4096.0), grid_epsilons=(0.02, 0.1, 0.2, 0.6, 1.5),
    scaled_envs=(128, 512, 2048, 8192), scaled_seeds=5, checkpoints=8,
)  # fmt: skip
PRESETS = {
    "laptop": Preset(
        about="Pendulum-v1 on two cores; minutes per figure",
        performance="charts/episodic_return", low=-1200.0, high=-150.0,
        base=dict(
            env_id="Pendulum-v1", num_envs=32, num_steps=64, minibatch_size=256, update_epochs=8, gamma=0.95,
            learning_rate=1e-3, ent_coef=0.0, num_seeds=5, num_devices=1, num_eval_episodes=0,
        ),
        total_timesteps=2**21, sweep_timesteps=2**20,
        coms=(0.0, 8.0, 64.0, 512.0, 4096.0, 32768.0), weak_com=8.0, good_com=512.0,
        epsilons=(0.002, 0.02, 0.1, 0.2, 0.6, 1.0), weak_eps=0.6, good_eps=0.1,
        learning_rates=(1e-4, 3e-4, 1e-3, 3e-3), epochs=(1, 4, 16), epoch_coms=(8.0, 512.0, 4096.0),
        epoch_epsilons=(0.6, 0.2, 0.02, 0.0), batch_envs=(8, 32, 128), batch_updates=512,
        grid_coms=(8.0, 64.0, 512.0, 4096.0), grid_epsilons=(0.02, 0.1, 0.2, 0.6, 1.5),
        scaled_envs=(4, 32, 128, 512), scaled_seeds=10, checkpoints=2,
    ),
    "gpu": Preset(
        about="Kinetix locomotion on one GPU; paper A's sizes, 100M steps, 3 seeds",
        base=TABLE_2 | dict(num_seeds=3), total_timesteps=2**27, sweep_timesteps=2**26, **KINETIX,
    ),
    "paper": Preset(
        about="Kinetix locomotion as in paper A: Table 2, 1000M steps, 5 seeds",
        base=TABLE_2, total_timesteps=2**30, sweep_timesteps=2**30, **KINETIX,
    ),
}  # fmt: skip


def cell(p: Preset, script: str, total: int | None = None, source: Cell | None = None, **varied: Any) -> Cell:
    """A run of the preset's base with other flags; `source`: from its checkpoint half-way."""
    flags = p.base | {"total_timesteps": total or p.total_timesteps} | varied
    if "num_minibatches" in varied:
        flags.pop("minibatch_size", None)
    num_updates = flags["total_timesteps"] // (flags["num_envs"] * flags["num_steps"])
    # What diverges goes on, as a result of its own.
    flags |= {"checkpoint_every": max(1, num_updates // p.checkpoints), "keep_checkpoints": 0, "halt_on_nan": False}
    flags["log_every"] = max(1, num_updates // 128)
    varied = {name: value for name, value in varied.items() if p.base.get(name) != value}  # one name for one run
    return named(script, flags, varied, num_updates, source, source.num_updates // 2 if source else 0)


def bowl(**varied: Any) -> Cell:
    """A run of the noisy convex problem: 20 seeds cost nothing."""
    flags = {"num_seeds": 20, "num_steps": 1000} | varied
    return named("stochastic_opt", flags, varied, flags["num_steps"])


def named(
    script: str, flags: dict[str, Any], varied: dict[str, Any], updates: int, source: Cell | None = None, at: int = 0
) -> Cell:
    """The name tells a reader what varies, and by its hash all else."""
    items = tuple(flags.items())
    digest = hashlib.sha256(repr((sorted(items), source and source.name, at)).encode()).hexdigest()[:8]
    words = [
        script,
        *(f"{name}-{value}".replace("/", "-") for name, value in varied.items()),
        *(["continued"] if source else []),
        digest,
    ]
    return Cell(script, "_".join(words), items, updates, source, at)
