"""Presets for Beukman et al. 2026 (https://arxiv.org/abs/2603.06009), and each figure's runs by what varies in them."""

from dataclasses import dataclass
from typing import Any

from experiments.grid import Cell, named

RECIPES = ("more-minibatches", "larger-minibatches", "larger-minibatches-sqrt-lr")
BOWL_RATES = (0.9, 0.5, 0.1, 0.01, 0.001)
BOWL_PLATEAU, BOWL_GOOD = 0.5, 0.01
BOWL_CHANGED, BOWL_SWITCH = (0.5, 0.01), 500
CLIP_EPS = 0.2  # the scripts' default
OF_LENGTH = ("total_timesteps", "log_every", "checkpoint_every")  # flags that follow from a run's length

Cells = dict[Any, Cell]


@dataclass(frozen=True)
class Preset:
    """Environment, sizes and grids. The values called weak, good and strong were chosen on other seeds."""

    about: str
    performance: str  # the logged key that is plotted
    low: float  # the performance of a random policy, which is score 0 in the checks
    high: float  # that of the best policy, which is score 1
    base: dict[str, Any]  # flags shared by all runs of ppo.py and ppo_ewma.py
    total_timesteps: int
    sweep_timesteps: int  # budget of figures 4, 6 and 12, which have many cells
    coms: tuple[float, ...]
    weak_com: float
    good_com: float
    epsilons: tuple[float, ...]
    weak_eps: float
    good_eps: float
    learning_rates: tuple[float, ...]
    epochs: tuple[int, ...]
    epoch_coms: tuple[float, ...]  # from weak to strong
    epoch_epsilons: tuple[float, ...]  # from weak to strong; the last is 0
    batch_envs: tuple[int, ...]  # figure 7
    batch_updates: int
    grid_coms: tuple[float, ...]  # figure 12
    grid_epsilons: tuple[float, ...]
    scaled_envs: tuple[int, ...]  # figures 9, 13 and 14; includes the base
    scaled_seeds: int
    checkpoints: int  # per run; even, since figure 3 starts from the one half-way
    unclipped_gain: float = 0.0  # figure 6b: by more than this many epochs have to beat few where ε is 0

    @property
    def steps_per_update(self) -> int:
        return self.base["num_envs"] * self.base["num_steps"]

    def scale(self, run: Cell) -> tuple[float, float]:
        """Returns the performances that are scores 0 and 1; on the bowl, performance is the score."""
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
            learning_rate=1e-3, ent_coef=0.0, seed=10, num_seeds=10, num_devices=1, num_eval_episodes=0,
        ),
        total_timesteps=2**21, sweep_timesteps=2**20,
        coms=(0.0, 8.0, 64.0, 512.0, 4096.0, 32768.0), weak_com=8.0, good_com=512.0,
        epsilons=(0.002, 0.02, 0.1, 0.2, 0.6, 1.0), weak_eps=0.6, good_eps=0.1,
        learning_rates=(1e-4, 3e-4, 1e-3, 3e-3), epochs=(1, 4, 16), epoch_coms=(8.0, 512.0, 4096.0),
        epoch_epsilons=(0.6, 0.2, 0.02, 0.0), batch_envs=(8, 32, 128), batch_updates=512,
        grid_coms=(8.0, 64.0, 512.0, 4096.0), grid_epsilons=(0.02, 0.1, 0.2, 0.6, 1.5),
        scaled_envs=(4, 32, 128, 512), scaled_seeds=20, checkpoints=2,
    ),
    "breakout": Preset(
        about="Breakout-MinAtar with sticky actions on two cores; ten minutes per figure",
        performance="charts/episodic_return", low=0.4, high=20.0,
        base=dict(
            env_id="Breakout-MinAtar", sticky_actions=0.1, num_envs=64, num_steps=64, minibatch_size=512,
            update_epochs=8, learning_rate=1e-3, num_seeds=5, num_devices=1, num_eval_episodes=0,
        ),
        total_timesteps=2**21, sweep_timesteps=2**20,
        coms=(0.0, 8.0, 64.0, 512.0, 4096.0, 32768.0), weak_com=8.0, good_com=512.0,
        epsilons=(0.002, 0.02, 0.1, 0.2, 0.6, 1.0), weak_eps=0.6, good_eps=0.1,
        learning_rates=(3e-4, 1e-3, 3e-3), epochs=(1, 4, 16), epoch_coms=(8.0, 512.0, 4096.0),
        epoch_epsilons=(0.6, 0.1, 0.0), batch_envs=(16, 64, 256), batch_updates=256,
        grid_coms=(8.0, 64.0, 512.0, 4096.0), grid_epsilons=(0.02, 0.1, 0.2, 0.6),
        scaled_envs=(16, 64, 256), scaled_seeds=5, checkpoints=2, unclipped_gain=0.1,
    ),
    "gpu": Preset(
        about="Kinetix locomotion on one GPU; paper A's sizes, 134M steps, 3 seeds",
        base=TABLE_2 | dict(num_seeds=3), total_timesteps=2**27, sweep_timesteps=2**26, **KINETIX,
    ),
    "paper": Preset(
        about="Kinetix locomotion as in paper A: Table 2, 1000M steps, 5 seeds",
        base=TABLE_2, total_timesteps=2**30, sweep_timesteps=2**30, **KINETIX,
    ),
}  # fmt: skip


def cell(p: Preset, script: str, total: int | None = None, source: Cell | None = None, **varied: Any) -> Cell:
    """Makes a run of the preset's base flags and `varied`, from the half-way checkpoint of `source` if given."""
    flags = p.base | {"total_timesteps": total or p.total_timesteps} | varied
    if "num_minibatches" in varied:
        flags.pop("minibatch_size", None)
    num_updates = flags["total_timesteps"] // (flags["num_envs"] * flags["num_steps"])
    # A run that diverges goes on, because divergence is a result as well.
    flags |= {"checkpoint_every": max(1, num_updates // p.checkpoints), "keep_checkpoints": 0, "halt_on_nan": False}
    flags["log_every"] = max(1, num_updates // 128)
    varied = {name: value for name, value in varied.items() if p.base.get(name) != value}  # equal runs get one name
    return named(script, flags, varied, num_updates, source, source.num_updates // 2 if source else 0)


def bowl(**varied: Any) -> Cell:
    """Makes a run of the noisy convex problem, with 20 seeds since they cost nothing."""
    flags = {"num_seeds": 20, "num_steps": 1000} | varied
    return named("stochastic_opt", flags, varied, flags["num_steps"])


def com_cells(p: Preset) -> Cells:
    return {com: cell(p, "ppo_ewma", com=com) for com in p.coms}


def eps_cells(p: Preset) -> Cells:
    return {eps: cell(p, "ppo", clip_eps=eps) for eps in p.epsilons}


def changed_com_cells(p: Preset) -> Cells:
    """Returns whole runs, and second halves that continue the first half of one of them."""
    coms = (p.weak_com, p.good_com)
    whole = {com: cell(p, "ppo_ewma", com=com) for com in coms}
    half = p.total_timesteps // 2
    changed = {(a, b): cell(p, "ppo_ewma", half, source=whole[a], com=b) for a in coms for b in coms}
    return whole | changed


def learning_rate_cells(p: Preset) -> Cells:
    return {
        (com, rate, anneal): cell(p, "ppo_ewma", p.sweep_timesteps, com=com, learning_rate=rate, anneal_lr=anneal)
        for com in (p.weak_com, *(c for c in p.coms if p.weak_com < c <= p.good_com))
        for rate in p.learning_rates
        for anneal in (False, True)
    }


def com_epoch_cells(p: Preset) -> Cells:
    return {
        (com, epochs): cell(p, "ppo_ewma", p.sweep_timesteps, com=com, update_epochs=epochs)
        for com in p.epoch_coms
        for epochs in p.epochs
    }


def eps_epoch_cells(p: Preset) -> Cells:
    return {
        (eps, epochs): cell(p, "ppo", p.sweep_timesteps, clip_eps=eps, update_epochs=epochs)
        for eps in p.epoch_epsilons
        for epochs in p.epochs
    }


def batch_cells(p: Preset, script: str, name: str, values: tuple[float, ...]) -> Cells:
    """Varies the batch at the base's M, so minibatches grow. Updates are equally many, so larger batches see more."""
    minibatches = p.base.get("num_minibatches") or p.steps_per_update // p.base["minibatch_size"]
    return {
        (value, envs): cell(
            p, script, p.batch_updates * envs * p.base["num_steps"], num_envs=envs, num_minibatches=minibatches,
            **{name: value},
        )
        for value in values
        for envs in p.batch_envs
    }  # fmt: skip


def com_batch_cells(p: Preset) -> Cells:
    return batch_cells(p, "ppo_ewma", "com", p.epoch_coms)


def eps_batch_cells(p: Preset) -> Cells:
    return batch_cells(p, "ppo", "clip_eps", tuple(eps for eps in p.epoch_epsilons if eps))


def grid_cells(p: Preset) -> Cells:
    return {
        (com, eps): cell(p, "ppo_ewma", p.sweep_timesteps, com=com, clip_eps=eps)
        for com in p.grid_coms
        for eps in p.grid_epsilons
    }


def recipe_cells(p: Preset) -> Cells:
    """Uses the good epsilon, so that only the inner loop differs. At the base's N all recipes are the same run."""
    base, common = p.base["num_envs"], {"clip_eps": p.good_eps, "num_seeds": p.scaled_seeds}
    scaled = {
        (recipe, envs): cell(p, "ppo", num_envs=envs, base_num_envs=base, scaling=recipe, **common)
        for recipe in RECIPES
        for envs in p.scaled_envs
        if envs != base
    }
    same = cell(p, "ppo", **common)
    return {(recipe, envs): scaled.get((recipe, envs), same) for recipe in RECIPES for envs in p.scaled_envs}


def speed_cells(p: Preset) -> Cells:
    """Adds a shorter run of the base with half the epochs: what that saves is half of the time that epochs take."""
    fewer = {"clip_eps": p.good_eps, "update_epochs": p.base["update_epochs"] // 2, "num_seeds": p.scaled_seeds}
    return recipe_cells(p) | {"half the epochs": cell(p, "ppo", p.sweep_timesteps, **fewer)}


def ddr_cells(p: Preset) -> Cells:
    """Returns all runs of figures 5, 6 and 12, which differ in step size and age, not in data per update. Those that
    differ in their length only are one: the first, which is the longest."""
    grids = {
        "COM": com_cells,
        "ε": eps_cells,
        "COM × E": com_epoch_cells,
        "ε × E": eps_epoch_cells,
        "COM × ε": grid_cells,
    }
    distinct: Cells = {}
    for kind, cells in grids.items():
        for key, run in cells(p).items():
            flags = {"clip_eps": CLIP_EPS} | dict(run.flags)
            alike = run.script, *sorted((name, value) for name, value in flags.items() if name not in OF_LENGTH)
            distinct.setdefault(alike, ((kind, key), run))
    return dict(distinct.values())


def bowl_cells(p: Preset) -> Cells:
    return {rate: bowl(learning_rate=rate) for rate in BOWL_RATES}


def bowl_switch_cells(p: Preset) -> Cells:
    stay = {(a, a): bowl(learning_rate=a) for a in BOWL_CHANGED}
    changed = [BOWL_CHANGED, BOWL_CHANGED[::-1]]
    return stay | {(a, b): bowl(learning_rate=a, switch_step=BOWL_SWITCH, switch_learning_rate=b) for a, b in changed}
