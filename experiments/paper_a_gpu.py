"""The figures of Beukman et al. 2026 (https://arxiv.org/abs/2603.06009) that need a GPU: SFL on Kinetix (section 6 and
appendices D to F) and the robot hands (figure 10). Each seed is a run of its own, because several would not fit."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from common.run import plots
from common.run.arguments import flag
from experiments import paper_a
from experiments.data import FINAL, GAIN, MIDDLE, Arms, Cells, Data, Figure, Shown, called, matrix, parts
from experiments.grid import Cell, by_seed
from experiments.paper_a import LITTLE, STEPS
from experiments.pictures import MEAN, Line, Picture

MARGIN, FLAT = 0.05, 0.02  # of solve rate: a difference that counts, and a gain that is a plateau
ENOUGH = {"s": 65536}  # environments, by size of levels
HAND_DESIGNED = "eval/hand_designed/solve_rate"
LOW_RATE = 1e-5  # figure 17: a fifth of the base's

# SFL


@dataclass(frozen=True)
class Preset:
    """Level sizes, environment counts, and what varies at one of these counts."""

    about: str
    base: dict[str, Any]  # flags of all runs
    sizes: tuple[str, ...]  # of levels, in figures 11 and 20
    ablated: tuple[str, ...]  # the sizes among these in figures 15 to 19
    envs: dict[int, dict[str, Any]]  # N from the smallest to the largest, each with the flags that go with it
    minibatches: tuple[int, int, int]  # M at the largest N: few, the M of all other figures, many
    coms: tuple[float, ...]  # figure 18
    more_candidates: int  # figure 19
    larger_buffer: int
    baseline: int = 8192  # the N of figures 17 to 19
    evaluations: int = 16  # per run

    performance = "eval/solve_rate"

    @property
    def largest(self) -> int:
        return max(self.envs)

    def scale(self, run: Cell) -> tuple[float, float]:
        return 0.0, 1.0  # a score is a solve rate


TABLE_2 = dict(
    num_steps=256, minibatch_size=16384, update_epochs=8, gamma=0.995, gae_lambda=0.9, clip_eps=0.2, max_grad_norm=0.5,
    clip_vloss=True, vf_coef=0.5, ent_coef=0.01, learning_rate=5e-5, anneal_lr=False, num_seeds=3,
    learnability_steps=512, buffer_share=0.5, plasticity_every=0,
)  # fmt: skip
# Table 3, with budgets: the paper trains the largest N for 10^12 steps and the smallest for more than 10^10; the others
# are our choice.
TABLE_3 = {
    2048: dict(num_candidates=12288, buffer_every=128, buffer_size=1024, total_timesteps=2**35),
    8192: dict(num_candidates=262144, buffer_every=256, buffer_size=8192, total_timesteps=2**36),
    65536: dict(num_candidates=262144, buffer_every=32, buffer_size=8192, total_timesteps=2**38),
    2**20: dict(num_candidates=4194304, buffer_every=2, buffer_size=8192, total_timesteps=2**40),
}
SHORT = {"total_timesteps": 2**29}
PRESETS = {
    "gpu": Preset(
        about="SFL: sizes S and M on one GPU, 537M steps, 3 seeds; fewer than the paper's plateaus take",
        base=TABLE_2, sizes=("s", "m"), ablated=("s",),
        envs={  # from N = 8192 on, Table 3 searches every 537M steps; here it is every 67M, as at 2048
            2048: TABLE_3[2048] | SHORT,
            8192: dict(num_candidates=65536, buffer_every=32, buffer_size=4096) | SHORT,
            65536: dict(num_candidates=65536, buffer_every=4, buffer_size=4096, num_rollout_chunks=8) | SHORT,
        },
        minibatches=(128, 1024, 4096), coms=(4096.0,), more_candidates=262144, larger_buffer=16384,
    ),
    "paper": Preset(
        about="SFL: Tables 2 and 3 of paper A, sizes S, M and L, 3·10^10 to 10^12 steps, 3 seeds; the largest wants a "
        "cluster (docs/scaling.md)",
        base=TABLE_2, sizes=("s", "m", "l"), ablated=("s", "m", "l"), envs=TABLE_3, minibatches=(32, 1024, 8192),
        coms=(2048.0, 8192.0), more_candidates=4194304, larger_buffer=65536,
    ),
}  # fmt: skip


def cell(p: Preset, size: str, num_envs: int, **varied: Any) -> Cell:
    """The runs of all seeds with this many environments and `varied`."""
    told = {"env_id": f"kinetix/{size}", "num_envs": num_envs}
    flags = p.base | told | p.envs[num_envs] | varied
    if "num_minibatches" in varied:
        flags.pop("minibatch_size")
    updates = flags["total_timesteps"] // (num_envs * flags["num_steps"])
    every = max(1, updates // p.evaluations)
    # A run that diverges goes on, because divergence is a result as well.
    flags |= {"checkpoint_every": every, "keep_checkpoints": 1, "halt_on_nan": False}
    flags |= {"log_every": max(1, updates // 128), "eval_every": every}
    told |= {name: value for name, value in varied.items() if p.base.get(name) != value}
    return by_seed("sfl_kinetix", flags, told, updates)


def with_minibatches(p: Preset, number: int) -> dict[str, Any]:
    """M minibatches at the largest N. Adam's rate scales with the root of their size (appendix D)."""
    size = p.largest * p.base["num_steps"] // number
    rate = p.base["learning_rate"] * (size / p.base["minibatch_size"]) ** 0.5
    return {"num_envs": p.largest, "num_minibatches": number, "learning_rate": float(f"{rate:.3g}")}


def of_envs(p: Preset, number: int) -> dict[str, Any]:
    """N environments: the paper's recipe, except at the largest N."""
    return with_minibatches(p, p.minibatches[1]) if number == p.largest else {"num_envs": number}


def env_cells(p: Preset) -> Cells:
    return {(size, n): cell(p, size, **of_envs(p, n)) for size in p.sizes for n in p.envs}


def minibatch_cells(p: Preset) -> Cells:
    return {(size, m): cell(p, size, **with_minibatches(p, m)) for size in p.ablated for m in p.minibatches}


def ablation(p: Preset, *changes: dict[str, Any]) -> Cells:
    """The baseline, the baseline with each of these changes, and the largest N, by their flags."""
    base = of_envs(p, p.baseline)
    variants = {words({"num_envs": p.baseline}): base} | {words(change): base | change for change in changes}
    variants[words({"num_envs": p.largest})] = of_envs(p, p.largest)
    return {(size, key): cell(p, size, **flags) for size in p.ablated for key, flags in variants.items()}


def filter_cells(p: Preset) -> Cells:
    more = {"num_candidates": p.more_candidates}
    return ablation(p, more, more | {"buffer_size": p.larger_buffer})


def words(flags: dict[str, Any]) -> str:
    return called(*map(flag, flags))(tuple(flags.values()))


def size_title(size: str) -> str:
    return f"size {size.upper()}"


def sized(what: Callable[[Any], str] = str) -> Callable[[tuple[str, Any]], str]:
    return lambda key: f"{size_title(key[0])}, {what(key[1])}"


def show_sizes(
    d: Data, cells: Cells, add: Callable, label: Any = None, x_label: str = STEPS, key: str | None = None, **how: Any
) -> Shown:
    """Curves with a panel for each size, and the effects that `add` makes of each size's arms. Steps are logarithmic if
    budgets differ, which they do by factors."""
    arms = Arms(d, cells, label or sized())
    for size in parts(cells, 0):
        add(arms, [(size, what) for what in parts(cells, 1)])
    log_x = len({dict(run.flags)["total_timesteps"] for run in cells.values()}) > 1
    panels, y_label = arms.panels(size_title, key=key, **how), plots.AXIS_LABELS[key or d.p.performance]
    return Picture(panels, x_label, y_label, log_x=log_x, shows=MEAN), arms.effects


def more_envs(arms: Arms, keys: list[Any]) -> None:
    small, *_, large = keys
    enough = small[0], ENOUGH.get(small[0])
    arms.effect(FINAL, large, small, above=0.0)
    arms.effect(GAIN, small, below=FLAT)
    arms.effect(GAIN, large, above=0.0)
    if enough in keys[:-1]:
        arms.effect(FINAL, large, enough, below=MARGIN)


def hand_designed(arms: Arms, keys: list[Any]) -> None:
    """The order only: noise hides whether a curve stands still."""
    final = partial(Data.final, key=HAND_DESIGNED)
    arms.effect(final, keys[-1], keys[0], "final solve rate on hand-designed levels", above=0.0)


def minibatches(arms: Arms, keys: list[Any]) -> None:
    few, middle, many = keys
    arms.effect(FINAL, middle, few, above=MARGIN)
    arms.effect(MIDDLE, many, middle, above=0.0)
    arms.effect(FINAL, many, middle, below=MARGIN)


def clock(arms: Arms, keys: list[Any]) -> None:
    """Compares runs when the first one is over: later, a slow run would be ahead because it was given more time."""
    timed = [arms.d.curve(arms.cells[key], over="time") for key in keys]
    known = all(arms.d.finished(arms.cells[key]) for key in keys)
    end = min(x[-1] for x, _ in timed) if known else np.nan
    few, middle, many = ([np.interp(end, x, seed) if known else np.nan for seed in y.T] for x, y in timed)
    for key, other in ((keys[0], few), (keys[2], many)):
        what = f"solve rate when the first run is over, {arms.label(keys[1])} less {arms.label(key)}"
        arms.add(what, middle, other, above=0.0)


def avoided(arms: Arms, keys: list[Any], last: bool) -> None:
    """The baseline stands still; the change goes on, and ends above it or, if not `last`, behind the largest N."""
    baseline, *_, changed, largest = keys
    arms.effect(GAIN, baseline, below=FLAT)
    arms.effect(GAIN, changed, baseline, above=0.0)
    arms.effect(FINAL, *((changed, baseline) if last else (largest, changed)), above=0.0)


def useless(arms: Arms, keys: list[Any]) -> None:
    *alike, largest = keys
    for key in alike:
        arms.effect(GAIN, key, below=FLAT)
        arms.effect(FINAL, largest, key, above=0.0)


def speed(d: Data, run: Cell) -> np.ndarray:
    """log10 of the median steps per second of each seed's run."""
    return np.log10(np.median(d.part(run, "charts/SPS", 0.0, 1.0), axis=0))


def show_speed(d: Data, cells: Cells) -> Shown:
    arms, numbers, lines = Arms(d, cells, by_minibatches), parts(cells, 1), []
    for size in parts(cells, 0):
        few, middle, many = keys = [(size, m) for m in numbers]
        arms.effect(speed, middle, many, "log10 of the speed", above=LITTLE)
        arms.effect(speed, few, middle, "log10 of the speed")
        y = 10 ** matrix([arms.samples(speed, key) for key in keys]).T
        lines.append(Line(size_title(size), np.array(numbers, np.float64), y, "points"))
    how = "Each value is the median of a run; mean and 95 % interval over runs"
    x_label, y_label = "minibatches per epoch (--num-minibatches)", "steps per second, learning included"
    return Picture({"": lines}, x_label, y_label, log_x=True, shows=how), arms.effects


# The robot hands

FIXED, GROWING = "minibatches of a fixed size", "of 4 N"
BLOCKS = {"PPO": dict(num_blocks=1), "SAPG": dict(num_blocks=6, block_ent_coef=0.005)}  # of one block it is PPO
# Table 4 of paper A. Singla et al. also normalise values and have a bounds loss.
SHADOW = dict(
    env_id="envpool/HandManipulateBlockDense-v1", gamma=0.99, gae_lambda=0.95, learning_rate=5e-4, anneal_lr=False,
    adaptive_lr_kl=0.016, clip_eps=0.1, clip_vloss=True, max_grad_norm=1.0, ent_coef=0.0, vf_coef=4.0, norm_obs=True,
    norm_reward=True, num_steps=8, update_epochs=5, activation="elu", layer_norm=False, shared_encoder=True,
    hidden_sizes=(512, 512, 256, 128), num_eval_episodes=0,
)  # fmt: skip


def hands(about: str, size: int, **sizes: int) -> SimpleNamespace:
    """A preset for envpool's Shadow hand; `size` is that of minibatches, where it is fixed."""
    scale = lambda run: (-300.0, 0.0)  # noqa: E731
    return SimpleNamespace(about=about, performance="charts/episodic_return", scale=scale, size=size, sizes=sizes)


HANDS = {
    "gpu": hands("envpool's Shadow hand with a block, 201M steps, 3 seeds", 4096,
        num_envs=6144, total_timesteps=3 * 2**26, num_seeds=3),
    "paper": hands("envpool's Shadow hand in place of Isaac Gym's, 10,000M steps, 5 seeds", 16384,
        num_envs=24576, total_timesteps=10**10, num_seeds=5),
}  # fmt: skip


def hand_cells(p: SimpleNamespace) -> Cells:
    updates = p.sizes["total_timesteps"] // (p.sizes["num_envs"] * SHADOW["num_steps"])
    every = {"eval_every": updates // 32, "checkpoint_every": updates // 8, "log_every": updates // 128}

    def runs(who: str, minibatch_size: int) -> Cell:
        varied = BLOCKS[who] | {"minibatch_size": minibatch_size}
        return by_seed("sapg", SHADOW | p.sizes | every | varied | {"halt_on_nan": False}, varied, updates)

    how = {FIXED: p.size, GROWING: 4 * p.sizes["num_envs"]}
    return {(who, name): runs(who, size) for who in BLOCKS for name, size in how.items()}


def show_hands(d: Data, cells: Cells) -> Shown:
    arms, mean = Arms(d, cells, ", ".join), lambda d, run: d.mean(run, 0.0, 1.0)
    for who in BLOCKS:
        arms.effect(mean, (who, FIXED), (who, GROWING), "mean score", above=paper_a.MARGIN)
    of = {key: arms.samples(mean, key) for key in cells}
    gaps = [of["SAPG", how] - of["PPO", how] for how in (GROWING, FIXED)]
    arms.add(f"mean score, SAPG less PPO, minibatches {GROWING} less {FIXED}", *gaps, above=0.0)
    return Picture({"": arms.curves()}, STEPS, plots.AXIS_LABELS[d.p.performance]), arms.effects


# The figures

by_envs, by_minibatches = sized(called("--num-envs")), sized(called("--num-minibatches"))
show_clock = partial(show_sizes, add=clock, label=by_minibatches, x_label="seconds since the start", over="time")
show_hand_designed = partial(show_sizes, add=hand_designed, label=by_envs, key=HAND_DESIGNED)
# fmt: off
FIGURES = {
    "10": Figure("PPO and SAPG: minibatches of 4 N or of a fixed size", HANDS, hand_cells, show_hands,
        "With minibatches of a fixed size PPO and SAPG are both better, and the gap between them is smaller."),
    "11": Figure("SFL: N", PRESETS, env_cells, partial(show_sizes, add=more_envs, label=by_envs),
        "Few environments plateau early, many go on improving; on size S 65,536 are enough."),
    "15": Figure("SFL: M at the largest N", PRESETS, minibatch_cells,
        partial(show_sizes, add=minibatches, label=by_minibatches),
        "Few, larger minibatches are far worse; many are more sample efficient, with about the same end."),
    "16a": Figure("SFL: M, speed", PRESETS, minibatch_cells, show_speed, "Many minibatches are much slower."),
    "16b": Figure("SFL: M, against the clock", PRESETS, minibatch_cells, show_clock,
        "In the same time a middle number of minibatches gets farthest."),
    "17": Figure("SFL: learning rate", PRESETS, lambda p: ablation(p, {"learning_rate": LOW_RATE}),
        partial(show_sizes, add=partial(avoided, last=False)),
        "A lower learning rate avoids the plateau, too, but takes too long."),
    "18": Figure("SFL: COM", PRESETS, lambda p: ablation(p, {"com": p.coms[0]}, {"com": p.coms[-1]}),
        partial(show_sizes, add=partial(avoided, last=True)),
        "With a large COM the plateau is later and higher."),
    "19": Figure("SFL: candidates, buffer", PRESETS, filter_cells, partial(show_sizes, add=useless),
        "Neither more candidates nor these and a larger buffer prevent the plateau; more environments do."),
    "20": Figure("SFL: N, on hand-designed levels", PRESETS, env_cells, show_hand_designed,
        "The same order as on random levels: more environments end higher."),
}
# fmt: on
