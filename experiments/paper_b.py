"""The figures of Mayor et al. 2025 (https://arxiv.org/abs/2506.03404): presets, runs, pictures and effects.

An arm is a run for each game. In the paper the minibatch count stays fixed, so minibatches grow with N and K.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from common.run import plots
from experiments import pictures, visited
from experiments.data import FINAL, Arms, Cells, Data, Figure, Shown, matrix
from experiments.effects import bootstrap, contrast, iqm, mean_over_games, over_games
from experiments.grid import Cell, by_seed, named
from experiments.pictures import Line, Picture
from experiments.references import REFERENCES
from experiments.visited import CHECKPOINTS, SHOWN

MORE, MOST = 2, 4  # factors of N, K and E
EPOCHS = (1, MORE, MOST)  # factors
GAMMAS = (0.95, 0.99, 0.999)
LITTLE = 0.1  # of the way from a random policy to the reference; less does not count as a difference
POINTS = 33  # times on a curve over all games; the first, step 0, is left out
STEPS, ENVS, IQM = "environment steps", "parallel environments (--num-envs)", "normalised interquartile mean return"
SHOWS = "Interquartile mean over games and seeds of the normalised return with its 95 % stratified bootstrap interval"
SMOOTHED = f"{SHOWS}, running mean over at most a thirtieth of the run"
RETURN, RANK, NORM, KURTOSIS = "charts/episodic_return", "feature_rank", "weight_norm", "gradient_kurtosis"
NETWORK = {RANK: "above", "dormant_neurons": "below", NORM: "below", KURTOSIS: "below"}  # with more environments
POLICY = {"policy_variance": "below", "effective_sample_size": "above"}
FACTORS = (RANK, NORM, KURTOSIS)  # compared as logarithms, because games differ by factors
SCRIPTS = ("ppo", "ppo_rnd")  # of figure 16
ON_HOST = "envpool/"  # prefix of environments of which a run can have one seed only

# Returns that are scores 0 (a random policy) and 1. Atari: random and human returns of Mnih et al. 2015 and Wang et
# al. 2016, with their no-op starts. Procgen, hard: table 1 of Cobbe et al. 2020. MuJoCo: a random and an expert policy
# of Fu et al. 2020. MinAtar: random play, and published PPO after 10M steps without sticky actions.
ATARI_10 = {
    "Amidar": (5.8, 1719.5), "BattleZone": (2360.0, 37187.5), "Bowling": (23.1, 160.7), "DoubleDunk": (-18.6, -16.4),
    "Frostbite": (65.2, 4334.7), "KungFuMaster": (258.5, 22736.3), "NameThisGame": (2292.3, 8049.0),
    "Phoenix": (761.4, 7242.6), "Qbert": (163.9, 13455.0), "Riverraid": (1338.5, 17118.0),
}  # fmt: skip
MUJOCO = {"HalfCheetah": (-280.2, 12135.0), "Walker2d": (1.6, 4592.3), "Ant": (-325.6, 3879.7)}
SCALES = {f"{ON_HOST}{name}-v5": scale for name, scale in (ATARI_10 | MUJOCO).items()} | {
    f"{ON_HOST}MontezumaRevenge-v5": (0.0, 4753.3),
    f"{ON_HOST}BigfishHard-v0": (0.0, 40.0),
    f"{ON_HOST}StarpilotHard-v0": (1.5, 35.0),
}
SCALES |= REFERENCES
# gymnax's Breakout has two start states and no other chance, its SpaceInvaders one and none: without sticky actions a
# policy could learn sequences by heart. Asterix spawns at random and Freeway draws its cars' speeds, so they keep 0.
STICKY = {game: {"sticky_actions": 0.1} for game in ("Breakout-MinAtar", "SpaceInvaders-MinAtar")}


@dataclass(frozen=True)
class Preset:
    """Games, sizes and grids of the runs. Variants multiply the base's N and K by factors."""

    about: str
    games: tuple[str, ...]  # the first is shown where only one can be
    base: dict[str, Any]  # flags of all runs of ppo.py
    other: dict[str, Any]  # those of pqn.py or ppo_rnd.py
    flat: tuple[int, int] = (128, 8)  # N and K with the base's count of transitions, but more environments
    total_timesteps: int = 10**8
    data_factors: tuple[int, ...] = (MORE, MOST)  # of N or K, where both are shown
    many_factors: tuple[int, ...] = (1, 2, 4, 8, 16)  # of N, where performance is plotted against it
    reuse: tuple[tuple[int, int], ...] = ((1, 1), (4, 1), (1, 4))  # factors of (N, K) at which more epochs are tried
    performance: str = RETURN
    separate: bool = False  # a run for each seed: on a CPU faster than one run of them all

    def scale(self, run: Cell) -> tuple[float, float]:
        game = dict(run.flags)["env_id"]
        return SCALES[game] if self.performance == RETURN else (0.0, 1.0)

    @property
    def minibatch(self) -> int:
        return self.base["num_envs"] * self.base["num_steps"] // self.base["num_minibatches"]


PAPER = dict(
    num_envs=8, num_steps=128, num_minibatches=4, update_epochs=4, gamma=0.99, gae_lambda=0.95, clip_eps=0.1,
    learning_rate=2.5e-4, anneal_lr=True, max_grad_norm=0.5, vf_coef=0.5, ent_coef=0.01, anneal_ent=False,
    network="nature", hidden_sizes=(512,), activation="relu", layer_norm=False, shared_encoder=True, clip_vloss=True,
    num_seeds=5, num_eval_episodes=0,
)  # fmt: skip
PQN = dict(
    num_envs=8, num_steps=128, num_minibatches=4, update_epochs=4, gamma=0.99, q_lambda=0.65, learning_rate=2.5e-4,
    anneal_lr=True, start_e=1.0, end_e=0.01, exploration_timesteps=250_000, network="nature", hidden_sizes=(512,),
    num_seeds=5, num_eval_episodes=0,
)  # fmt: skip
# As in CleanRL, whose scripts the paper uses; logged returns are the game's own.
ATARI = dict(env_kwargs='{"episodic_life": true, "reward_clip": true}')
PROCGEN = dict(reward_clip=1.0, learning_rate=5e-4, gamma=0.999, network="impala", hidden_sizes=(256,))
# The paper gives no flags for its robots. These are CleanRL's of its continuous PPO, with the base's N, K, M and E.
ROBOTS = dict(
    num_steps=128, network="mlp", hidden_sizes=(64, 64), activation="tanh", shared_encoder=False, learning_rate=3e-4,
    clip_eps=0.2, ent_coef=0.0, norm_obs=True, norm_reward=True,
)  # fmt: skip
# ppo.py's defaults, which were tuned on these games, but with the N, K and M of an update as small as paper B's, and a
# learning rate that was chosen for it (PREREGISTERED.md).
TUNED = dict(
    num_envs=16, num_steps=128, num_minibatches=4, update_epochs=3, gamma=0.995, gae_lambda=0.8, clip_eps=0.2,
    learning_rate=2e-3, anneal_lr=True, max_grad_norm=0.5, vf_coef=0.5, ent_coef=0.06, anneal_ent=True, network="mlp",
    hidden_sizes=(64, 64), activation="relu", layer_norm=True, shared_encoder=False, clip_vloss=False, num_seeds=3,
    num_devices=1, num_eval_episodes=0,
)  # fmt: skip
CNN = dict(network="cnn", hidden_sizes=(128,))
MINATAR = ("Breakout-MinAtar", "SpaceInvaders-MinAtar", "Asterix-MinAtar")
LARGE = {
    "gpu": Preset(
        "three MinAtar games (two with sticky actions) on one GPU in place of Atari-10, 100M steps, 5 seeds",
        MINATAR, PAPER | CNN, PQN | CNN,
    ),
    "paper": Preset(
        "Atari-10 of envpool as in paper B, 100M steps, 5 seeds, a run each",
        tuple(f"{ON_HOST}{name}-v5" for name in ATARI_10), PAPER | ATARI, PQN | ATARI,
    ),
}  # fmt: skip
PRESETS = {
    "laptop": Preset(
        "two MinAtar games with sticky actions on two cores in place of Atari-10, tuned flags, 10M steps, 3 seeds",
        MINATAR[:2], TUNED, {}, flat=(128, 16), total_timesteps=10 * 2**20, reuse=((1, 1), (MOST, 1)),
        data_factors=(MOST,), many_factors=(1, MOST), separate=True,
    ),
} | LARGE  # fmt: skip
OTHERS = {  # figure 7
    "gpu": replace(LARGE["gpu"], about="Freeway-MinAtar on one GPU in place of Procgen", games=("Freeway-MinAtar",)),
    "paper": replace(
        LARGE["paper"], about="two games of Procgen (the paper does not say which)", base=PAPER | PROCGEN,
        games=(f"{ON_HOST}BigfishHard-v0", f"{ON_HOST}StarpilotHard-v0"),
    ),
}  # fmt: skip
ROBOT = Preset(
    "three robots of MuJoCo in place of Isaac Gym's, 10M steps", tuple(f"{ON_HOST}{name}-v5" for name in MUJOCO),
    PAPER | ROBOTS, {}, total_timesteps=10**7,
)  # fmt: skip

# Of ppo.py and ppo_rnd.py alike, which have other defaults.
SHARED = dict(
    gamma=0.999, gae_lambda=0.95, clip_eps=0.1, clip_vloss=False, ent_coef=0.001, anneal_ent=False, update_epochs=4,
    layer_norm=False, num_seeds=5, num_eval_episodes=0,
)  # fmt: skip
DOORKEY = SHARED | dict(num_envs=512, num_steps=16, minibatch_size=4096, stagger_resets=511)
# Steps, minibatches, rate, warm-up and embedding of CleanRL's ppo_rnd_envpool.py, which the paper used; it does not say
# with which N. As in Burda et al. 2018, losing a life ends no episode and values are not clipped.
MONTEZUMA = SHARED | dict(
    num_envs=32, num_steps=128, num_minibatches=4, learning_rate=1e-4, anneal_lr=True, network="nature",
    hidden_sizes=(256, 448), activation="relu", shared_encoder=True, reward_clip=1.0, sticky_actions=0.25,
)  # fmt: skip
EXPLORATION = {
    "gpu": Preset(
        "xminigrid's DoorKey-16x16 on one GPU, 134M steps, 5 seeds", ("xminigrid/MiniGrid-DoorKey-16x16",),
        DOORKEY, DOORKEY | dict(obs_warmup_steps=16), total_timesteps=2**27, many_factors=(1, 8, 64),
        performance="charts/solve_rate",
    ),
    "paper": Preset(
        "envpool's Montezuma's Revenge and Phoenix, the rebuttal's of paper B, 210M steps, 5 seeds, a run each",
        (f"{ON_HOST}MontezumaRevenge-v5", f"{ON_HOST}Phoenix-v5"), MONTEZUMA,
        MONTEZUMA | dict(obs_warmup_steps=50 * 128, embedding_size=512), total_timesteps=200 * 2**20,
        many_factors=(1, 4, 16),
    ),
}  # fmt: skip


def arm(p: Preset, script: str = "ppo", **varied: Any) -> tuple[Cell, ...]:
    """A run for each game, of the preset's base flags and `varied`."""
    base, runs = {"total_timesteps": p.total_timesteps} | (p.base if script == "ppo" else p.other), []
    told = {name: value for name, value in varied.items() if base.get(name) != value}
    for game in p.games:
        flags = base | {"env_id": game} | varied | STICKY.get(game, {})
        if "minibatch_size" in varied:
            flags.pop("num_minibatches", None)
        updates = flags["total_timesteps"] // (flags["num_envs"] * flags["num_steps"])
        # All are kept, because what is visited is collected with policies from the whole run.
        flags |= {"checkpoint_every": max(1, updates // CHECKPOINTS), "keep_checkpoints": 0, "halt_on_nan": False}
        flags |= {"log_every": max(1, updates // 128), "plasticity_every": max(1, updates // 64)}
        make = by_seed if p.separate or game.startswith(ON_HOST) else named
        runs.append(make(script, flags, {"env_id": game} | told, updates))
    return tuple(runs)


def times(p: Preset, n: int = 1, k: int = 1) -> dict[str, Any]:
    """The base's N and K times these factors."""
    return {"num_envs": n * p.base["num_envs"], "num_steps": k * p.base["num_steps"]}


def size(p: Preset, n: int = 1, k: int = 1) -> str:
    return "N {num_envs}, K {num_steps}".format(**times(p, n, k))


def data_cells(p: Preset, script: str = "ppo", factors: Sequence[int] | None = None) -> Cells:
    """The base, more environments and longer rollouts, by factors of N and K."""
    factors = factors or p.data_factors
    keys = [(1, 1), *((n, 1) for n in factors), *((1, k) for k in factors)]
    return {nk: arm(p, script, **times(p, *nk)) for nk in keys}


def crossed(p: Preset, name: str, values: Sequence[Any]) -> Cells:
    """Values of a flag, each with the base's N and with more."""
    return {(value, n): arm(p, **{name: value}, **times(p, n)) for value in values for n in (1, MOST)}


class Games(Arms):
    """Arms over several games, compared by interquartile means of the normalised return."""

    compare = staticmethod(over_games)

    def iqm_curves(self, keys: Sequence[Any] | None = None, label: Any = None) -> list[Line]:
        """The interquartile mean over games and seeds, at common steps. No line for an arm with a missing run."""
        found = []
        for key in self.cells if keys is None else keys:
            if not all(map(self.d.finished, self.cells[key])):
                continue
            total = dict(self.cells[key][0].flags)["total_timesteps"]
            x, columns = np.linspace(0, total, POINTS)[1:], []
            for run in self.cells[key]:
                low, high = self.d.p.scale(run)
                steps, y = self.d.curve(run)
                known = [~np.isnan(seed) for seed in y.T]
                values = [np.interp(x, steps[k], seed[k]) for k, seed in zip(known, y.T, strict=True)]
                values = (np.array(values) - low) / (high - low)  # [seeds, T]
                diverged = np.stack([self.d.diverged(run, t / total) for t in x], axis=1)
                columns.append(np.where(diverged, 0.0, values))
            values = np.stack(columns, axis=1)  # [seeds, games, T]
            y = np.stack(bootstrap(lambda v: iqm(v.reshape(-1, v.shape[-1]), axis=0), values), axis=1)
            found.append(Line((label or self.label)(key), x, y, "interval"))
        return found

    def iqm_points(self, label: str, x: Sequence[float], keys: Sequence[Any]) -> Line:
        y = np.array([[float(v[0]) for v in bootstrap(iqm, self.samples(FINAL, key))] for key in keys])
        return Line(label, np.array(x, np.float64), y, "interval points")

    def moved(self, metric: str, way: str | None, key: Any, base: Any = (1, 1)) -> None:
        """Adds that a measurement is above, or below, the base's; without a way it is reported."""
        wanted = {way: 0.0} if way else {}
        name = ("log10 of " if metric in FACTORS else "") + metric.replace("_", " ")
        self.effect(partial(measured, metric=metric), key, base, name, compare=mean_over_games, **wanted)


def measured(d: Data, run: Cell, metric: str) -> np.ndarray:
    """A measurement of the final network on equally many transitions of every run, unlike its updates; of the effective
    sample size the logged mean over the last half. log10 if values differ by factors. -> [seeds]"""
    key = f"plasticity/{metric}"
    if not d.finished(run):
        return np.full(1, np.nan)
    if metric == "effective_sample_size":
        return plots.mean_and_ci(d.part(run, key, 0.5, 1.0).T)[0]
    values = visited.measurements(d.folder, run)[key]
    return np.log10(values) if metric in FACTORS else values


# More data per update


def show_same_data(d: Data, cells: Cells) -> Shown:
    arms = Games(d, cells, lambda key: size(d.p) if key == "base" else "N {}, K {}".format(*d.p.flat))
    arms.effect(FINAL, "flat", "base", above=0.0)
    return Picture({"": arms.iqm_curves()}, STEPS, IQM, shows=SMOOTHED), arms.effects


def show_more_data(d: Data, cells: Cells) -> Shown:
    arms = Games(d, cells, lambda key: size(d.p, *key))
    arms.effect(FINAL, (MOST, 1), (1, 1), above=0.0)
    arms.effect(FINAL, (1, MOST), (1, 1), above=0.0)
    arms.effect(FINAL, (MOST, 1), (1, MOST), above=0.0)
    return Picture({"": arms.iqm_curves()}, STEPS, IQM, shows=SMOOTHED), arms.effects


def show_reuse(d: Data, cells: Cells) -> Shown:
    """Keys: factors of E, N and K."""
    arms = Games(d, cells, lambda key: f"E {key[0] * d.p.base['update_epochs']}, {size(d.p, *key[1:])}")
    label = lambda key: f"E × {key[0]}"  # noqa: E731
    panels = {size(d.p, *nk): arms.iqm_curves([(e, *nk) for e in EPOCHS], label) for nk in d.p.reuse}
    arms.effect(FINAL, (1, 1, 1), (MOST, 1, 1), above=0.0)
    arms.effect(FINAL, (MOST, MOST, 1), (MOST, 1, 1), above=0.0)
    arms.effect(FINAL, (MORE, MOST, 1), (1, 1, 1), above=-LITTLE)
    return Picture(panels, STEPS, IQM, shows=SMOOTHED), arms.effects


def show_many(d: Data, cells: Cells) -> Shown:
    """The paper's way, minibatches that grow, decides; more minibatches of the same size are reported."""
    words = {"larger": "minibatches that grow (the paper)", "more": "more minibatches of the same size"}
    arms, factors = Games(d, cells, lambda key: f"N × {key[1]}, {words[key[0]]}"), d.p.many_factors
    x = [f * d.p.base["num_envs"] for f in factors]
    lines = [arms.iqm_points(label, x, [(how, f) for f in factors]) for how, label in words.items()]
    shown = dict.fromkeys((factors[len(factors) // 2], factors[-1]))
    for how, wanted in (("larger", {"above": 0.0}), ("more", {})):
        for f in shown:
            arms.effect(FINAL, (how, f), ("larger", 1), **wanted)
    for f in shown:
        arms.effect(FINAL, ("more", f), ("larger", f))
    return Picture({"": lines}, ENVS, f"final {IQM}", log_x=True, shows=SHOWS), arms.effects


# The network and the policy


def network_cells(p: Preset) -> Cells:
    """Adds, as a control, more environments with the base's minibatch size and thus its count of gradient steps."""
    control = arm(p, **times(p, MOST), minibatch_size=p.minibatch)
    return data_cells(p, factors=(MOST,)) | {("control", MOST): control}


def metric_panels(arms: Arms, metrics: Sequence[str], games: Sequence[str]) -> Picture:
    """Logged values over time, a panel for each and, of several games, for each game, side by side."""
    panels = {}
    for key, game in itertools.product(metrics, games):
        of_game = {k: runs[arms.d.p.games.index(game)] for k, runs in arms.cells.items()}
        title = key.partition("/")[2].replace("_", " ") + f", {game.removesuffix('-MinAtar')}" * (len(games) > 1)
        panels[title] = Arms(arms.d, of_game, arms.label).curves(key)
    shows = f"Shown: {', '.join(games)}. {pictures.MEAN}, running mean over at most a thirtieth of the run. As logged: "
    shows += "each line on as many transitions as its updates have, at most 2,048"
    columns = min(len(games), pictures.COLUMNS) if len(games) > 1 else pictures.COLUMNS
    return Picture(panels, STEPS, "", shows=shows, own_y=True, columns=columns)


def show_measured(d: Data, cells: Cells, claimed: dict[str, str], games: slice) -> Shown:
    """That more environments move measurements as claimed in both ways of having them: the paper's, whose minibatches
    grow, so that gradient steps get fewer, and the control, which has as many of them as the base. What only the first
    does, or both in opposite directions, is not due to the environments. Longer rollouts are reported."""
    control = f"{size(d.p, MOST)}, minibatches of {d.p.minibatch}"
    arms = Games(d, cells, lambda key: control if key[0] == "control" else size(d.p, *key))
    for metric, way in claimed.items():
        arms.moved(metric, way, (MOST, 1))
        arms.moved(metric, way, ("control", MOST))
        arms.moved(metric, None, (1, MOST))
    keys = [f"plasticity/{metric}" for metric in claimed]
    return metric_panels(arms, [*[RETURN] * (claimed is NETWORK), *keys], d.p.games[games]), arms.effects


def show_pqn(d: Data, cells: Cells, games: slice) -> Shown:
    """That the return changes little, where PQN learns at all; how the measurements move is reported."""
    arms = Games(d, cells, lambda key: size(d.p, *key))
    arms.effect(FINAL, (1, 1), above=LITTLE, premise=True)
    arms.same(FINAL, (MOST, 1), (1, 1), LITTLE)
    for metric in NETWORK:
        arms.moved(metric, None, (MOST, 1))
    keys = [RETURN, *(f"plasticity/{metric}" for metric in NETWORK)]
    return metric_panels(arms, keys, d.p.games[games]), arms.effects


def show_encoders(d: Data, cells: Cells) -> Shown:
    arms = Games(d, cells, lambda key: f"{'shared' if key[0] else 'separate'} encoder, {size(d.p, key[1])}")
    of = [arms.samples(FINAL, key) for key in ((False, MOST), (False, 1), (True, MOST), (True, 1))]
    gain = lambda a, b, x, y: (iqm(a) - iqm(b)) - (iqm(x) - iqm(y))  # noqa: E731
    what = f"gain in the final score by N × {MOST}, separate less shared encoders"
    how = "of interquartile means: (first less second) less (third less fourth)"
    arms.effects.append(contrast(what, how, gain, *of, above=0.0))
    return Picture({"": arms.iqm_curves()}, STEPS, IQM, shows=SMOOTHED), arms.effects


# The learning rate and the discount factor


def show_rates(d: Data, cells: Cells) -> Shown:
    arms = Games(d, cells, lambda key: f"{size(d.p, key[0])}, learning rate × {key[1]:g}")
    arms.effect(FINAL, (MOST, 1), above=LITTLE, premise=True)
    for r in (MOST**0.5, MOST):
        arms.effect(FINAL, (MOST, r), (MOST, 1), below=LITTLE)
    return Picture({"": arms.iqm_curves()}, STEPS, IQM, shows=SMOOTHED), arms.effects


def show_gammas(d: Data, cells: Cells) -> Shown:
    """Supposes the gain at the base's discount factor, which is figure 1b's matter."""
    arms = Games(d, cells, lambda key: f"γ {key[0]}, {size(d.p, key[1])}")
    lines = [arms.iqm_points(size(d.p, n), GAMMAS, [(g, n) for g in GAMMAS]) for n in (1, MOST)]
    for g in GAMMAS:
        arms.effect(FINAL, (g, MOST), (g, 1), above=0.0, premise=g == d.p.base["gamma"])
    return Picture({"": lines}, "discount factor (--gamma)", f"final {IQM}", shows=SHOWS), arms.effects


# What is visited


def show_visited(d: Data, cells: Cells) -> Shown:
    """The first game's map; shares of all games are compared."""
    arms, panels = Games(d, cells, lambda key: size(d.p, *key)), {}
    points, shares = visited.coverage(d, cells)
    for key in ((1, 1), (1, MOST), (MOST, 1)):
        if (key, 0) in points:
            title = f"{arms.label(key)}: a seed covers {100 * shares[key, 0].mean():.1f} %"
            panels[title] = [Line("visited", points[key, 0][:, 0], points[key, 0][:, 1:], "dots")]
    of = lambda key: matrix([shares.get((key, i), np.full(1, np.nan)) for i in range(len(d.p.games))])  # noqa: E731
    for other in ((1, 1), (1, MOST)):
        what = f"coverage, {arms.label((MOST, 1))} less {arms.label(other)}"
        arms.add(what, of((MOST, 1)), of(other), compare=mean_over_games, above=0.0)
    shows = f"Shown: {d.p.games[0]}, all seeds, by UMAP of {SHOWN} observations of each seed from all of its training"
    return Picture(panels or {"": []}, "first axis", "second axis", shows=shows), arms.effects


def second_half(d: Data, run: Cell) -> np.ndarray:
    """The score over all episodes of the second half of a run -> [seeds]"""
    if not d.finished(run):
        return np.full(1, np.nan)
    key, half, (low, high) = "charts/num_episodes", run.num_updates / 2, d.p.scale(run)
    lines = [line for line in d.lines(run) if line["update"] > half and key in line]
    count, mean = (np.array([line[k] for line in lines], np.float64) for k in (key, d.p.performance))
    with np.errstate(invalid="ignore"):
        score = (np.where(count > 0, count * mean, 0.0).sum(0) / count.sum(0) - low) / (high - low)
    return np.where(d.diverged(run), 0.0, score)


def show_exploration(d: Data, cells: Cells) -> Shown:
    """PPO without RND is drawn beside it."""
    arms = Games(d, cells, lambda key: f"{key[0]}.py, {size(d.p, key[1])}")
    for small, more in itertools.pairwise(d.p.many_factors):
        arms.effect(second_half, ("ppo_rnd", more), ("ppo_rnd", small), "score of the second half", above=0.0)
    panels = {f"{script}.py": arms.iqm_curves([k for k in cells if k[0] == script]) for script in SCRIPTS}
    return Picture(panels, STEPS, IQM, shows=SMOOTHED), arms.effects


# The figures


def reuse_cells(p: Preset) -> Cells:
    """By factors of E, N and K."""
    epochs = p.base["update_epochs"]
    return {(e, *nk): arm(p, update_epochs=e * epochs, **times(p, *nk)) for e in EPOCHS for nk in p.reuse}


def many_cells(p: Preset) -> Cells:
    """By how minibatches scale with N, and the factor of N."""
    same = lambda how, n: {"minibatch_size": p.minibatch} if how == "more" and n > 1 else {}  # noqa: E731
    keys = itertools.product(("larger", "more"), p.many_factors)
    return {(how, n): arm(p, **times(p, n), **same(how, n)) for how, n in keys}


def rate_cells(p: Preset) -> Cells:
    keys, rate = ((1, 1), (MOST, 1), (MOST, MOST**0.5), (MOST, MOST)), p.base["learning_rate"]
    return {(n, r): arm(p, **times(p, n), learning_rate=rate * r) for n, r in keys}


FIRST, REST = slice(1), slice(1, None)
BOTH = "more environments and longer rollouts both help, more environments more."
BETTER = "More environments go with a higher feature rank, fewer dormant neurons, a smaller norm, a lower kurtosis."
LITTLE_IN_PQN = "More environments do little for PQN's return."
COVER = "More environments visit more of the observations, longer rollouts do not so much."
pqn_cells = partial(data_cells, script="pqn", factors=(MOST,))
ROBOT_PRESETS = {"gpu": ROBOT, "paper": replace(ROBOT, about=f"{ROBOT.about}, as 100M", total_timesteps=10**8)}
# fmt: off
FIGURES = {
    "B1a": Figure("N against K, the same data per update", PRESETS,
        lambda p: {"base": arm(p), "flat": arm(p, num_envs=p.flat[0], num_steps=p.flat[1])}, show_same_data,
        "With as many transitions per update, more environments are better than longer rollouts."),
    "B1b": Figure("N, K", PRESETS, data_cells, show_more_data, BOTH.capitalize()),
    "B1c": Figure("E, N, K", PRESETS, reuse_cells, show_reuse, "More epochs hurt; more environments make up for it."),
    "B2": Figure("N, K: visited observations", LARGE, data_cells, show_visited, COVER),
    "B3": Figure("N: network and gradient", PRESETS, network_cells,
        partial(show_measured, claimed=NETWORK, games=FIRST), BETTER),
    "B4": Figure("N: policy variance, effective sample size", PRESETS, network_cells,
        partial(show_measured, claimed=POLICY, games=FIRST),
        "More environments go with a lower policy variance and a higher effective sample size."),
    "B5": Figure("N, shared or separate encoders", PRESETS,
        lambda p: crossed(p, "shared_encoder", (True, False)), show_encoders,
        "With encoders of their own, actor and critic gain more from more environments."),
    "B6": Figure("N, K in PQN", LARGE, pqn_cells, partial(show_pqn, games=FIRST), LITTLE_IN_PQN),
    "B7": Figure("N, K on another suite", OTHERS, data_cells, show_more_data, f"On Procgen, too, {BOTH}"),
    "B8": Figure("N, K in control of robots", ROBOT_PRESETS, data_cells, show_more_data, f"There, too, {BOTH}"),
    "B9": Figure("N, K: coverage of the observations", LARGE, data_cells, show_visited, COVER),
    "B10": Figure("N: network and gradient in the other games", LARGE, network_cells,
        partial(show_measured, claimed=NETWORK, games=REST), BETTER),
    "B11": Figure("Learning rate for more N", PRESETS, rate_cells, show_rates,
        "With more environments the same learning rate is about best; scaling it with N or its root is no better."),
    "B12": Figure("γ, N", LARGE, lambda p: crossed(p, "gamma", GAMMAS), show_gammas,
        "The gain from more environments is there for other discount factors, too."),
    "B13": Figure("N, K in PQN, the other games", LARGE, pqn_cells, partial(show_pqn, games=REST), LITTLE_IN_PQN),
    "B16": Figure("N in PPO with random network distillation, hard exploration", EXPLORATION,
        lambda p: {(script, n): arm(p, script, **times(p, n)) for script in SCRIPTS for n in p.many_factors},
        show_exploration,
        "In hard exploration with random network distillation, too, more environments help."),
    "BN": Figure("N, minibatches that grow or stay", PRESETS, many_cells, show_many,
        "At a fixed number of environment steps, the performance rises with the number of environments."),
}
# fmt: on
