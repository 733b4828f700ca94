"""Presets for Mayor et al. 2025 (https://arxiv.org/abs/2506.03404), and each figure's runs by what varies in them.

Cells have keys (what varies, game). In the paper the minibatch count stays fixed, so minibatches grow with N and K.
"""

from dataclasses import dataclass, replace
from typing import Any

from experiments import scores
from experiments.grid import Cell, by_seed, named

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
    robots: tuple[str, ...]
    robots_base: dict[str, Any]
    with_pqn: bool = False  # figure 1a also has PQN

    performance = "charts/episodic_return"

    def scale(self, run: Cell) -> tuple[float, float]:
        flags = dict(run.flags)
        return scores.scale(flags["env_id"], flags.get("sticky_actions", 0.0))


Cells = dict[Any, Cell]

PAPER = dict(
    num_envs=8, num_steps=128, num_minibatches=4, update_epochs=4, gamma=0.99, gae_lambda=0.95, clip_eps=0.1,
    learning_rate=2.5e-4, anneal_lr=True, max_grad_norm=0.5, vf_coef=0.5, ent_coef=0.01, network="nature",
    hidden_sizes=(512,), activation="relu", shared_encoder=True, num_seeds=5, num_eval_episodes=0,
)  # fmt: skip
PAPER_PQN = dict(
    num_envs=8, num_steps=128, num_minibatches=4, update_epochs=4, gamma=0.99, q_lambda=0.65, learning_rate=2.5e-4,
    anneal_lr=True, start_e=1.0, end_e=0.01, exploration_timesteps=250_000, network="nature", hidden_sizes=(512,),
    num_seeds=5, num_eval_episodes=0,
)  # fmt: skip
# As in CleanRL, whose scripts the paper uses; logged returns are the game's own.
ATARI = dict(env_kwargs='{"episodic_life": true, "reward_clip": true}')
PROCGEN = dict(env_kwargs=None, reward_clip=1.0, learning_rate=5e-4, gamma=0.999, network="impala", hidden_sizes=(256,))
# The paper gives no flags for its robots. These are CleanRL's of its continuous PPO, with the base's N, K, M and E.
ROBOTS = dict(
    num_steps=128, network="mlp", hidden_sizes=(64, 64), activation="tanh", shared_encoder=False, learning_rate=3e-4,
    clip_eps=0.2, ent_coef=0.0, norm_obs=True, norm_reward=True, env_kwargs=None,
)  # fmt: skip
SMALL = dict(num_steps=32, network="mlp", hidden_sizes=(128,), learning_rate=1e-3, num_devices=1)
MINATAR = dict(network="cnn", hidden_sizes=(128,))
FEW = dict(num_seeds=3, num_devices=1)
ON_HOST = "envpool/"  # prefix of environments of which a run can have one seed only
GRID = dict(factor=4, factors=(2, 4), many_factors=(1, 2, 4, 8, 16), gammas=(0.95, 0.99, 0.999))
PRESETS = {
    "laptop": Preset(
        about="three MinAtar games (two with sticky actions) on two cores in place of Atari-10, 1M steps, 5 seeds",
        games=("Breakout-MinAtar", "SpaceInvaders-MinAtar", "Asterix-MinAtar"), total_timesteps=2**20, flat=(64, 4),
        base=PAPER | SMALL, pqn=PAPER_PQN | SMALL | dict(exploration_timesteps=2**17), **GRID,
        others=("Freeway-MinAtar",), others_base={}, reuse=((1, 1), (4, 1)),
        robots=(f"{ON_HOST}HalfCheetah-v5",), robots_base=ROBOTS | dict(total_timesteps=2**19, learning_rate=1e-3),
    ),
    "gpu": Preset(
        about="three MinAtar games (two with sticky actions) on one GPU in place of Atari-10, 100M steps, 5 seeds",
        games=("Breakout-MinAtar", "SpaceInvaders-MinAtar", "Asterix-MinAtar"), total_timesteps=10**8, flat=(128, 8),
        base=PAPER | MINATAR, pqn=PAPER_PQN | MINATAR, **GRID,
        others=("Freeway-MinAtar",), others_base={}, reuse=((1, 1), (4, 1), (1, 4)),
        robots=tuple(f"{ON_HOST}{name}-v5" for name in scores.MUJOCO), robots_base=ROBOTS | dict(total_timesteps=10**7),
    ),
    "paper": Preset(
        about="Atari-10 and Procgen of envpool as in paper B, 100M steps, 5 seeds, a run each",
        games=tuple(f"{ON_HOST}{name}-v5" for name in ATARI_10), total_timesteps=10**8, flat=(128, 8),
        base=PAPER | ATARI, pqn=PAPER_PQN | ATARI, **GRID,
        others=tuple(f"{ON_HOST}{name}Hard-v0" for name in scores.PROCGEN), others_base=PROCGEN,
        reuse=((1, 1), (4, 1), (1, 4)),
        robots=tuple(f"{ON_HOST}{name}-v5" for name in scores.MUJOCO), robots_base=ROBOTS,
    ),
}  # fmt: skip
ATARI_MINI = Preset(
    about="figure B1a on Atari's Breakout, for PPO and PQN, 98,304 steps, 3 seeds, an hour on two cores; it shows that "
    "Atari works, and no more",
    games=(f"{ON_HOST}Breakout-v5",), total_timesteps=96 * 1024, flat=(128, 8), with_pqn=True,
    base=PAPER | ATARI | FEW, pqn=PAPER_PQN | ATARI | FEW | dict(exploration_timesteps=10_000), **GRID,
    others=(f"{ON_HOST}BigfishHard-v0",), others_base=PROCGEN, reuse=((1, 1), (4, 1)),
    robots=(f"{ON_HOST}HalfCheetah-v5",), robots_base=ROBOTS,
)  # fmt: skip
LONG = replace(
    PRESETS["laptop"], total_timesteps=10 * 2**20, base=PRESETS["laptop"].base | dict(seed=10), factors=(4,),
    many_factors=(1, 4, 16),
    about="figures B1b, B1c and BN with ten times the steps of laptop and less of its grids, 5 other seeds",
)  # fmt: skip
OF_SOME = {"atari-mini": (ATARI_MINI, ("B1a",)), "long": (LONG, ("B1b", "B1c", "BN"))}  # with the figures that have it


def presets_of(figure: str) -> dict[str, Preset]:
    """By name: those of all figures, then those of some."""
    return PRESETS | {name: preset for name, (preset, figures) in OF_SOME.items() if figure in figures}


def cell(p: Preset, script: str, game: str, **varied: Any) -> Cell:
    """Makes a run of the preset's base flags and `varied`."""
    base = {"total_timesteps": p.total_timesteps} | (p.base if script == "ppo" else p.pqn)
    base |= p.others_base if game in p.others else p.robots_base if game in p.robots else {}
    flags = base | {"env_id": game} | varied
    if game in scores.STICKY:
        flags["sticky_actions"] = scores.STICKY[game]
    if "minibatch_size" in varied:
        flags.pop("num_minibatches")
    num_updates = flags["total_timesteps"] // (flags["num_envs"] * flags["num_steps"])
    # All are kept, because what is visited is collected with policies from the whole run.
    flags |= {"checkpoint_every": max(1, num_updates // CHECKPOINTS), "keep_checkpoints": 0, "halt_on_nan": False}
    flags |= {"log_every": max(1, num_updates // 128), "plasticity_every": max(1, num_updates // 64)}
    flags = {name: value for name, value in flags.items() if value is not None}
    varied = {"env_id": game} | {name: value for name, value in varied.items() if base.get(name) != value}
    return (by_seed if game.startswith(ON_HOST) else named)(script, flags, varied, num_updates)


def for_games(p: Preset, variants: dict[Any, dict[str, Any]], script: str = "ppo") -> Cells:
    return {(key, game): cell(p, script, game, **flags) for key, flags in variants.items() for game in p.games}


def other_cells(p: Preset) -> Cells:
    variants = sizes(p.base, p.factors)
    return {(k, env): cell(p, "ppo", env, **flags) for k, flags in variants.items() for env in p.others}


def robot_cells(p: Preset) -> Cells:
    variants = sizes(p.base | p.robots_base, p.factors)
    return {(k, env): cell(p, "ppo", env, **flags) for k, flags in variants.items() for env in p.robots}


def sizes(base: dict[str, Any], factors: tuple[int, ...]) -> dict[Any, dict[str, Any]]:
    """Returns the base, more environments and longer rollouts, by (factor of N, factor of K)."""
    more = {(f, 1): {"num_envs": f * base["num_envs"]} for f in factors}
    longer = {(1, f): {"num_steps": f * base["num_steps"]} for f in factors}
    return {(1, 1): {}} | more | longer


def same_data_cells(p: Preset) -> Cells:
    """Returns runs by their sizes; those of PQN, if the preset has them, by the name of the script, too."""
    envs, steps = p.flat
    variants = {"base": {}, "flat": {"num_envs": envs, "num_steps": steps}}
    pqn = {("pqn", key): flags for key, flags in variants.items() if p.with_pqn}
    return for_games(p, variants) | for_games(p, pqn, "pqn")


def more_data_cells(p: Preset) -> Cells:
    return for_games(p, sizes(p.base, p.factors))


def network_cells(p: Preset) -> Cells:
    """Adds, as a control, more environments with the base's minibatch size and thus its count of gradient steps over
    the whole run."""
    most = p.factors[-1]
    control = {"num_envs": most * p.base["num_envs"], "minibatch_size": minibatch(p)}
    return for_games(p, sizes(p.base, (most,)) | {("control", most): control})


def minibatch(p: Preset) -> int:
    return p.base["num_envs"] * p.base["num_steps"] // p.base["num_minibatches"]


def reuse_cells(p: Preset) -> Cells:
    """Returns runs by (factor of E, factor of N, factor of K)."""
    epochs = {f: {"update_epochs": f * p.base["update_epochs"]} if f > 1 else {} for f in (1, *p.factors)}
    tried = {size: flags for size, flags in sizes(p.base, (p.factor,)).items() if size in p.reuse}
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
    return for_games(p, sizes(p.pqn, (p.factor,)), "pqn")


def rate_cells(p: Preset) -> Cells:
    """Returns runs by (factor of N, factor of the learning rate: 1, the root of N's or N's)."""
    rate, envs, c = p.base["learning_rate"], p.base["num_envs"], p.factor
    grown = {(c, r): {"num_envs": c * envs, "learning_rate": rate * r} for r in (1, c**0.5, c)}
    return for_games(p, {(1, 1): {}} | grown)


def gamma_cells(p: Preset) -> Cells:
    """Returns runs by (discount factor, factor of N)."""
    envs = {1: {}, p.factor: {"num_envs": p.factor * p.base["num_envs"]}}
    return for_games(p, {(g, f): flags | {"gamma": g} for g in p.gammas for f, flags in envs.items()})
