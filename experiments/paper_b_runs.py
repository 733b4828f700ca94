"""Presets for Mayor et al. 2025 (https://arxiv.org/abs/2506.03404), and each figure's runs by what varies in them.

Cells have keys (what varies, game). In the paper the minibatch count stays fixed, so minibatches grow with N and K.
"""

from dataclasses import dataclass
from typing import Any

from experiments import scores
from experiments.grid import Cell, named

ATARI_10 = (
    "Amidar", "BattleZone", "Bowling", "DoubleDunk", "Frostbite", "KungFuMaster", "NameThisGame", "Phoenix", "Qbert",
    "Riverraid",
)  # fmt: skip
CHECKPOINTS = 8  # of each run, evenly spread; the last is its end


@dataclass(frozen=True)
class Preset:
    """Games, sizes and grids of the runs. Variants multiply the base's N and K by factors."""

    about: str
    games: tuple[str, ...]  # the first is shown where only one can be
    base: dict[str, Any]  # flags shared by all runs of ppo.py
    pqn: dict[str, Any]  # those of pqn.py
    total_timesteps: int
    factor: int  # of N and K, where one step up is enough
    factors: tuple[int, ...]
    many_factors: tuple[int, ...]  # of N, where performance is plotted against it
    reuse: tuple[tuple[int, int], ...]  # factors of (N, K) at which more epochs are tried
    flat: tuple[int, int]  # N and K with the base's count of transitions, but more environments and fewer steps
    gammas: tuple[float, ...]
    others: tuple[str, ...]  # the environments of another suite
    others_base: dict[str, Any]
    missing: str | None = None  # why its runs cannot be started, if they cannot

    performance = "charts/episodic_return"

    def scale(self, run: Cell) -> tuple[float, float]:
        flags = dict(run.flags)
        return scores.scale(flags["env_id"], flags.get("sticky_actions", 0.0))


Cells = dict[Any, Cell]

PAPER = dict(
    num_envs=8, num_steps=128, num_minibatches=4, update_epochs=4, gamma=0.99, gae_lambda=0.95, clip_eps=0.1,
    learning_rate=2.5e-4, anneal_lr=True, max_grad_norm=0.5, vf_coef=0.5, ent_coef=0.01, network="cnn",
    hidden_sizes=(512,), activation="relu", shared_encoder=True, num_seeds=5, num_eval_episodes=0,
)  # fmt: skip
PAPER_PQN = dict(
    num_envs=8, num_steps=128, num_minibatches=4, update_epochs=4, gamma=0.99, q_lambda=0.65, learning_rate=2.5e-4,
    anneal_lr=True, start_e=1.0, end_e=0.01, exploration_timesteps=250_000, network="cnn", hidden_sizes=(512,),
    num_seeds=5, num_eval_episodes=0,
)  # fmt: skip
PROCGEN = dict(learning_rate=5e-4, gamma=0.999, hidden_sizes=(256,))  # the paper also has a deeper network than ppo.py
SMALL = dict(num_steps=32, network="mlp", hidden_sizes=(128,), learning_rate=1e-3, num_devices=1)
GRID = dict(factor=4, factors=(2, 4), many_factors=(1, 2, 4, 8, 16), gammas=(0.95, 0.99, 0.999))
PRESETS = {
    "laptop": Preset(
        about="three MinAtar games (two with sticky actions) on two cores in place of Atari-10, 1M steps, 5 seeds",
        games=("Breakout-MinAtar", "SpaceInvaders-MinAtar", "Asterix-MinAtar"), total_timesteps=2**20, flat=(64, 4),
        base=PAPER | SMALL, pqn=PAPER_PQN | SMALL | dict(exploration_timesteps=2**17), **GRID,
        others=("Freeway-MinAtar",), others_base={}, reuse=((1, 1), (4, 1)),
    ),
    "gpu": Preset(
        about="three MinAtar games (two with sticky actions) on one GPU in place of Atari-10, 100M steps, 5 seeds",
        games=("Breakout-MinAtar", "SpaceInvaders-MinAtar", "Asterix-MinAtar"), total_timesteps=10**8, flat=(128, 8),
        base=PAPER | dict(hidden_sizes=(128,)), pqn=PAPER_PQN | dict(hidden_sizes=(128,)), **GRID,
        others=("Freeway-MinAtar",), others_base={}, reuse=((1, 1), (4, 1), (1, 4)),
    ),
    "paper": Preset(
        about="Atari-10 and Procgen as in paper B, 100M steps, 5 seeds; --dry-run prints the commands, but the scripts "
        "have no adapter for these environments",
        games=tuple(f"envpool/{name}-v5" for name in ATARI_10), total_timesteps=10**8, flat=(128, 8),
        base=PAPER, pqn=PAPER_PQN, **GRID,
        others=tuple(f"envpool/{name}Hard-v0" for name in scores.PROCGEN), others_base=PROCGEN,
        reuse=((1, 1), (4, 1), (1, 4)),
        missing="the scripts have no adapter for Atari and Procgen; --dry-run prints the commands, --preset laptop or "
        "gpu plays MinAtar",
    ),
}  # fmt: skip


def cell(p: Preset, script: str, game: str, **varied: Any) -> Cell:
    """Makes a run of the preset's base flags and `varied`."""
    base = p.base if script == "ppo" else p.pqn
    flags = base | {"env_id": game, "total_timesteps": p.total_timesteps} | varied
    if game in scores.STICKY:
        flags["sticky_actions"] = scores.STICKY[game]
    if "minibatch_size" in varied:
        flags.pop("num_minibatches")
    num_updates = p.total_timesteps // (flags["num_envs"] * flags["num_steps"])
    # All are kept, because what is visited is collected with policies from the whole run.
    flags |= {"checkpoint_every": max(1, num_updates // CHECKPOINTS), "keep_checkpoints": 0, "halt_on_nan": False}
    flags |= {"log_every": max(1, num_updates // 128), "plasticity_every": max(1, num_updates // 64)}
    varied = {"env_id": game} | {name: value for name, value in varied.items() if base.get(name) != value}
    return named(script, flags, varied, num_updates)


def for_games(p: Preset, variants: dict[Any, dict[str, Any]], script: str = "ppo") -> Cells:
    return {(key, game): cell(p, script, game, **flags) for key, flags in variants.items() for game in p.games}


def other_cells(p: Preset) -> Cells:
    variants = sizes(p, p.factors)
    return {
        (k, env): cell(p, "ppo", env, **p.others_base, **flags) for k, flags in variants.items() for env in p.others
    }


def sizes(p: Preset, factors: tuple[int, ...], script: str = "ppo") -> dict[Any, dict[str, Any]]:
    """Returns the base, more environments and longer rollouts, by (factor of N, factor of K)."""
    base = p.base if script == "ppo" else p.pqn
    more = {(f, 1): {"num_envs": f * base["num_envs"]} for f in factors}
    longer = {(1, f): {"num_steps": f * base["num_steps"]} for f in factors}
    return {(1, 1): {}} | more | longer


def same_data_cells(p: Preset) -> Cells:
    envs, steps = p.flat
    return for_games(p, {"base": {}, "flat": {"num_envs": envs, "num_steps": steps}})


def more_data_cells(p: Preset) -> Cells:
    return for_games(p, sizes(p, p.factors))


def network_cells(p: Preset) -> Cells:
    """Adds, as a control, more environments with the base's minibatch size and thus its count of gradient steps over
    the whole run."""
    most = p.factors[-1]
    control = {"num_envs": most * p.base["num_envs"], "minibatch_size": minibatch(p)}
    return for_games(p, sizes(p, (most,)) | {("control", most): control})


def minibatch(p: Preset) -> int:
    return p.base["num_envs"] * p.base["num_steps"] // p.base["num_minibatches"]


def reuse_cells(p: Preset) -> Cells:
    """Returns runs by (factor of E, factor of N, factor of K)."""
    epochs = {f: {"update_epochs": f * p.base["update_epochs"]} if f > 1 else {} for f in (1, *p.factors)}
    tried = {size: flags for size, flags in sizes(p, (p.factor,)).items() if size in p.reuse}
    variants = {(e, *size): more | flags for e, more in epochs.items() for size, flags in tried.items()}
    return for_games(p, variants)


def many_cells(p: Preset) -> Cells:
    """Returns runs by (how minibatches scale with N, factor of N)."""
    envs = {f: {"num_envs": f * p.base["num_envs"]} if f > 1 else {} for f in p.many_factors}
    larger = {("larger", f): flags for f, flags in envs.items()}
    more = {("more", f): flags | ({"minibatch_size": minibatch(p)} if f > 1 else {}) for f, flags in envs.items()}
    return for_games(p, larger | more)


def encoder_cells(p: Preset) -> Cells:
    """Returns runs by (shared encoder, factor of N)."""
    envs = {1: {}, p.factor: {"num_envs": p.factor * p.base["num_envs"]}}
    return for_games(
        p, {(shared, f): flags | {"shared_encoder": shared} for shared in (True, False) for f, flags in envs.items()}
    )


def pqn_cells(p: Preset) -> Cells:
    return for_games(p, sizes(p, (p.factor,), "pqn"), "pqn")


def rate_cells(p: Preset) -> Cells:
    """Returns runs by (factor of N, factor of the learning rate: 1, the root of N's or N's)."""
    rate, envs, c = p.base["learning_rate"], p.base["num_envs"], p.factor
    grown = {(c, r): {"num_envs": c * envs, "learning_rate": rate * r} for r in (1, c**0.5, c)}
    return for_games(p, {(1, 1): {}} | grown)


def gamma_cells(p: Preset) -> Cells:
    """Returns runs by (discount factor, factor of N)."""
    envs = {1: {}, p.factor: {"num_envs": p.factor * p.base["num_envs"]}}
    return for_games(p, {(g, f): flags | {"gamma": g} for g in p.gammas for f, flags in envs.items()})
