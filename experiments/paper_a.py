"""The figures of Beukman et al. 2026 (https://arxiv.org/abs/2603.06009) on the analysis task and on the bowl: presets,
runs, pictures and effects. Those that need a GPU are in paper_a_gpu.py. The table of figures is at the end."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from common.run import plots
from experiments import effects
from experiments.data import FINAL, GAIN, MIDDLE, Arms, Cells, Data, Figure, Shown, called, matrix, parts
from experiments.effects import Effect
from experiments.grid import Cell, named
from experiments.pictures import MEAN, Line, Picture

MARGIN = 0.1  # of the way from a random policy to a good one; less does not count as a difference
FLAT = 0.05  # of that way, in the second half of a run; gaining less is a plateau
TWICE, LITTLE = np.log10(2), np.log10(1.25)
STEPS, UPDATES, DDR = "environment steps", "policy update steps", "data-to-divergence ratio (transitions per nat)"
ENVS = "parallel environments (--num-envs)"
LAST = f"{MEAN} of the last tenth of each run"
RECIPES = ("more-minibatches", "larger-minibatches", "larger-minibatches-sqrt-lr")

# Presets: every flag of a run is here or in its figure's cells


@dataclass(frozen=True)
class Preset:
    """Environment, sizes and grids. The values called weak and good are to be chosen on other seeds."""

    about: str
    performance: str  # the logged key that is plotted
    low: float  # the performance of a random policy, which is score 0
    high: float  # and of a good one, which is score 1
    base: dict[str, Any]  # flags of all runs of ppo.py and ppo_ewma.py
    total_timesteps: int
    sweep_timesteps: int  # budget of figures 4, 6 and 12, which have many cells
    epsilons: tuple[float, ...]
    good_eps: float
    learning_rates: tuple[float, ...]
    epochs: tuple[int, ...]
    epoch_epsilons: tuple[float, ...]  # from weak to strong; the last is 0
    batch_envs: tuple[int, ...]  # figure 7
    batch_updates: int
    grid_epsilons: tuple[float, ...]  # figure 12
    scaled_envs: tuple[int, ...]  # figures 9, 13 and 14; includes the base
    scaled_seeds: int
    checkpoints: int  # per run; even, since figure 3 starts from the one half-way
    weak_eps: float = 0.6
    weak_com: float = 8.0
    good_com: float = 512.0
    coms: tuple[float, ...] = (0.0, 8.0, 64.0, 512.0, 4096.0, 32768.0)
    epoch_coms: tuple[float, ...] = (8.0, 512.0, 4096.0)  # from weak to strong
    grid_coms: tuple[float, ...] = (8.0, 64.0, 512.0, 4096.0)

    def scale(self, run: Cell) -> tuple[float, float]:
        return self.low, self.high

    @property
    def axis(self) -> str:
        return plots.AXIS_LABELS[self.performance]


TABLE_2 = dict(
    env_id="kinetix/locomotion", num_envs=2048, num_steps=256, num_minibatches=32, update_epochs=8, gamma=0.995,
    gae_lambda=0.9, clip_eps=0.2, max_grad_norm=0.5, clip_vloss=True, vf_coef=0.5, ent_coef=0.01, learning_rate=3e-4,
    anneal_lr=False, anneal_ent=False, hidden_sizes=(256, 256, 256), activation="tanh", layer_norm=False, num_seeds=5,
)  # fmt: skip
PAPER = Preset(
    "Kinetix locomotion as in paper A: Table 2, 1000M steps, 5 seeds", "charts/solve_rate", low=0.0, high=1.0,
    base=TABLE_2, total_timesteps=2**30, sweep_timesteps=2**30, epsilons=(0.02, 0.1, 0.2, 0.4, 0.6), good_eps=0.2,
    learning_rates=(3e-5, 1e-4, 3e-4, 1e-3), epochs=(1, 2, 4, 8, 16), epoch_epsilons=(0.6, 0.2, 0.0),
    batch_envs=(16, 64, 256, 1024), batch_updates=2000, grid_epsilons=(0.02, 0.1, 0.2, 0.6, 1.5),
    scaled_envs=(128, 512, 2048, 8192), scaled_seeds=5, checkpoints=8,
)  # fmt: skip
GPU = replace(
    PAPER, about="Kinetix locomotion on one GPU; paper A's sizes, 134M steps, 3 seeds",
    base=TABLE_2 | dict(num_seeds=3), total_timesteps=2**27, sweep_timesteps=2**26,
)  # fmt: skip
LARGE = {"gpu": GPU, "paper": PAPER}
# docs/results.md's flags for Pendulum-v1, which reach rl-zoo's return, but with paper A's constant learning rate.
PENDULUM = Preset(
    "Pendulum-v1 on two cores; 20 minutes per figure", "charts/episodic_return", low=-1200.0, high=-150.0,
    base=dict(
        env_id="Pendulum-v1", num_envs=32, num_steps=64, minibatch_size=256, update_epochs=8, gamma=0.95,
        gae_lambda=0.95, clip_eps=0.2, clip_vloss=True, ent_coef=0.0, learning_rate=1e-3, anneal_lr=False,
        anneal_ent=False, activation="tanh", layer_norm=False, num_seeds=5, num_devices=1, num_eval_episodes=0,
    ),
    total_timesteps=2**21, sweep_timesteps=3 * 2**19, epsilons=(0.002, 0.02, 0.1, 0.2, 0.6, 1.0), good_eps=0.1,
    learning_rates=(3e-4, 1e-3, 3e-3), epochs=(1, 4, 16), epoch_epsilons=(0.6, 0.2, 0.02, 0.0), batch_envs=(8, 32, 128),
    batch_updates=512, grid_epsilons=(0.02, 0.1, 0.2, 0.6, 1.5), scaled_envs=(4, 32, 128, 512), scaled_seeds=10,
    checkpoints=2, good_com=4096.0, epoch_coms=(8.0, 4096.0, 32768.0), grid_coms=(8.0, 512.0, 4096.0),
)  # fmt: skip
PRESETS = {"laptop": PENDULUM} | LARGE


def cell(p: Preset, script: str, total: int | None = None, source: Cell | None = None, **varied: Any) -> Cell:
    """A run of the preset's base flags and `varied`, from the half-way checkpoint of `source` if given."""
    flags = p.base | {"total_timesteps": total or p.total_timesteps} | varied
    if "num_minibatches" in varied:
        flags.pop("minibatch_size", None)
    updates = flags["total_timesteps"] // (flags["num_envs"] * flags["num_steps"])
    # A run that diverges goes on, because divergence is a result as well.
    flags |= {"checkpoint_every": max(1, updates // p.checkpoints), "keep_checkpoints": 0, "halt_on_nan": False}
    flags["log_every"] = max(1, updates // 128)
    varied = {name: value for name, value in varied.items() if p.base.get(name) != value}  # equal runs get one name
    return named(script, flags, varied, updates, source, source.num_updates // 2 if source else 0)


ewma, ppo = partial(cell, script="ppo_ewma"), partial(cell, script="ppo")


def sweep(run: Any, **grids: Callable[[Preset], Sequence[Any]]) -> Callable[[Preset], Cells]:
    """Returns the cells of all combinations of several flags, with the budget of sweeps. grids: flag -> its values."""

    def cells(p: Preset) -> Cells:
        keys = itertools.product(*(values(p) for values in grids.values()))
        return {key: run(p, total=p.sweep_timesteps, **dict(zip(grids, key, strict=True))) for key in keys}

    return cells


com_label = called("--com")


# Figures 1, 2 and 5: the size of the outer step


def plateau(arms: Arms, weak: Any, good: Any) -> None:
    """Adds that `weak` learns something, then gains no more (a fall also counts), and ends below `good`."""
    arms.effect(MIDDLE, weak, above=MARGIN)
    arms.effect(GAIN, weak, below=FLAT)
    arms.effect(FINAL, good, weak, above=MARGIN)


def show_regularisation(d: Data, cells: Cells, flag: str, behind: str = MIDDLE) -> Shown:
    """By default a value is slow if it is behind in the middle of the run, even if it catches up."""
    arms, p = Arms(d, cells, called(flag)), d.p
    com, eps = (p.weak_com, p.good_com, p.coms[-1]), (p.weak_eps, p.good_eps, p.epsilons[0])
    weak, good, strong = com if flag == "--com" else eps
    plateau(arms, weak, good)
    arms.effect(behind, good, strong, above=MARGIN)
    arms.effect(GAIN, strong, above=FLAT)
    return Picture({"": arms.curves()}, STEPS, p.axis), arms.effects


def show_stays_large(d: Data, cells: Cells, key: str) -> Shown:
    """That updates stay large on the plateau, larger than with the good COM; beside the highest COM is reported."""
    arms, weak = Arms(d, cells, com_label), d.p.weak_com
    late, early = (lambda d, run: d.log_mean(run, key)), (lambda d, run: d.log_mean(run, key, 0.2, 0.3))
    plateau(arms, weak, d.p.good_com)
    arms.effect(late, weak, d.p.good_com, f"log10 of {key} at the end", above=TWICE)
    fall = arms.samples(late, weak) - arms.samples(early, weak)
    arms.add(f"log10 of {key}, {com_label(weak)}, end less first quarter", fall, above=-TWICE)
    arms.effect(late, weak, d.p.coms[-1], f"log10 of {key} at the end")
    return Picture({"": arms.curves(key)}, STEPS, plots.AXIS_LABELS[key], log_y=True), arms.effects


# Figure 3: the step size changed half-way


def switched(arms: Arms, large: float, small: float) -> None:
    """Adds that a run's present step size decides, not the one that it began with. Keys: (first, then). Runs with the
    same `first` share their past, so that their differences are taken seed by seed."""
    cured, spoilt, bad, good = (large, small), (small, large), (large, large), (small, small)
    for better, worse, changed, like in ((cured, bad, cured, good), (good, spoilt, spoilt, bad)):
        gain = arms.samples(FINAL, better) - arms.samples(FINAL, worse)
        arms.add(f"{FINAL}, {arms.label(better)} less {arms.label(worse)}", gain, above=MARGIN)
        arms.same(FINAL, changed, like, MARGIN)


def changed_com_cells(p: Preset) -> Cells:
    """Whole runs, and second halves that continue the first half of one of them."""
    coms, half = (p.weak_com, p.good_com), p.total_timesteps // 2
    whole = {com: ewma(p, com=com) for com in coms}
    return whole | {(a, b): ewma(p, total=half, source=whole[a], com=b) for a in coms for b in coms}


def show_changed_com(d: Data, cells: Cells) -> Shown:
    label = lambda key: f"--com {key[1]:g} (from {key[0]:g})" if isinstance(key, tuple) else com_label(key)  # noqa: E731
    arms, weak = Arms(d, cells, label), cells[d.p.weak_com]
    before = d.middle(weak) - d.mean(weak, 0.2, 0.25)
    arms.add(f"gain in the second quarter, {com_label(d.p.weak_com)}, before the change", before, below=FLAT)
    switched(arms, d.p.weak_com, d.p.good_com)
    half = weak.num_updates // 2 * d.p.base["num_envs"] * d.p.base["num_steps"]
    return Picture({"": arms.curves()}, STEPS, d.p.axis, marks=(half,)), arms.effects


# Figures 4 and 6: the inner loop


def score_picture(arms: Arms, x_label: str, lines: dict[str, dict[float, Any]]) -> Picture:
    """The final scores of arms, converted back to returns or solve rates. lines: by label, the arm at each x."""
    p, drawn = arms.d.p, []
    for label, keys in lines.items():
        scores = matrix([arms.samples(FINAL, key) for key in keys.values()]).T
        drawn.append(Line(label, np.array([*keys], np.float64), p.low + scores * (p.high - p.low), "points"))
    y_label = f"final {p.axis} (last tenth of the run)"
    return Picture({"": drawn}, x_label, y_label, log_x=True, shows=LAST)


def show_learning_rates(d: Data, cells: Cells) -> Shown:
    """For each learning rate the better of annealed and constant."""
    arms = Arms(d, cells, lambda k: f"--com {k[0]:g} --learning-rate {k[1]:g}" + " --anneal-lr" * k[2])
    coms, rates = parts(cells, 0), parts(cells, 1)
    better = {(com, rate): arms.best([(com, rate, a) for a in (False, True)]) for com in coms for rate in rates}
    lines = {com_label(com): {rate: better[com, rate] for rate in rates} for com in coms}
    tops = {com: arms.best([better[com, rate] for rate in rates]) for com in coms}
    arms.effect(FINAL, tops[coms[-1]], tops[coms[0]], above=MARGIN)
    for com in coms[:-1]:
        arms.not_below(tops[com], better[com, tops[coms[-1]][1]], MARGIN)
    return score_picture(arms, "Adam's learning rate (--learning-rate)", lines), arms.effects


def show_epochs(d: Data, cells: Cells, flag: str) -> Shown:
    """A panel per value, from weak to strong regularisation. The strongest ε is 0: that it learns at all, with many
    epochs, is part of the claim, so there any difference is enough."""
    arms = Arms(d, cells, called(flag, "--update-epochs"))
    (weak, *_, strong), epochs = parts(cells, 0), parts(cells, 1)
    arms.effect(FINAL, arms.best([(weak, e) for e in epochs[:-1]]), (weak, epochs[-1]), above=MARGIN)
    arms.effect(FINAL, (strong, epochs[-1]), (strong, epochs[0]), above=MARGIN if strong else 0.0)
    panels = arms.panels(called(flag), label=lambda k: f"--update-epochs {k[1]}")
    return Picture(panels, STEPS, d.p.axis), arms.effects


# Figures 7 and 8: data per update


def batch_cells(p: Preset, run: Any, **grid: Sequence[float]) -> Cells:
    """The batch varies at the base's M, so minibatches grow. Updates are equally many, so larger batches see more."""
    (name, values), steps = *grid.items(), p.base["num_steps"]
    m = p.base.get("num_minibatches") or p.base["num_envs"] * steps // p.base["minibatch_size"]
    fixed = lambda n: {"total": p.batch_updates * n * steps, "num_envs": n, "num_minibatches": m}  # noqa: E731
    return {(value, n): run(p, **fixed(n), **{name: value}) for value in values for n in p.batch_envs}


def show_batches(d: Data, cells: Cells, flag: str) -> Shown:
    """The first value of `flag` is the weak one, the second the good one."""
    arms = Arms(d, cells, called(flag, "--num-envs"))
    (weak, good, *_), (small, *_, large) = parts(cells, 0), parts(cells, 1)
    arms.effect(FINAL, (weak, large), (weak, small), above=MARGIN)
    lost = [arms.samples(FINAL, (good, n)) - arms.samples(FINAL, (weak, n)) for n in (small, large)]
    what = f"what {flag} {weak:g} loses against {good:g}, {small} environments less {large}"
    arms.add(what, *lost, above=MARGIN)
    label = lambda k: f"--num-envs {k[1]}: {k[1] * d.p.base['num_steps']:,} transitions"  # noqa: E731
    return Picture(arms.panels(called(flag), label=label, over="update"), UPDATES, d.p.axis), arms.effects


def ddr_cells(p: Preset) -> Cells:
    """All runs of figures 5, 6 and 12, which differ in step size and age, not in data per update. Those that differ in
    their length only are one: the first, which is the longest."""
    distinct: Cells = {}
    for name in ("5a", "5b", "6a", "6b", "12a"):
        for key, run in FIGURES[name].cells(p).items():
            of_length = ("total_timesteps", "log_every", "checkpoint_every")
            alike = run.script, *sorted((flag, value) for flag, value in run.flags if flag not in of_length)
            distinct.setdefault(alike, ((name, key), run))
    return dict(distinct.values())


def show_ddr(d: Data, cells: Cells) -> Shown:
    """A dot for each seed of each run: the median of its DDR and its best score, up to a budget. In the effects a
    sample is the mean of a run's seeds; the best fifth of the runs is chosen on other seeds than those compared."""
    p, budgets = d.p, [d.p.sweep_timesteps // n for n in (8, 4, 2, 1)]
    # Long runs log more rarely than short ones, so lines are averaged over as many steps in all of them.
    flags = [dict(run.flags) for run in cells.values()]
    width = max(of["log_every"] * of["num_envs"] * of["num_steps"] for of in flags)
    dots = np.array([[up_to(d, run, budget, width) for run in cells.values()] for budget in budgets])
    known = np.isfinite(dots).all((0, 2, 3))  # not of diverged ones
    dots = dots[:, known] if known.any() else dots  # [budgets, runs, seeds, 2]
    lines = [
        Line(f"up to {budget:,} steps", x.ravel(), p.low + y.reshape(-1, 1) * (p.high - p.low), "dots")
        for budget, x, y in zip(budgets, dots[..., 0], dots[..., 1], strict=True)
    ]
    ddr, score = np.log10(dots[-1, ..., 0]).mean(1), dots[-1, ..., 1]
    lowest, *inner, highest = np.array_split(np.argsort(ddr), 5)
    tested = score[:, 1::2].mean(1) if score.shape[1] > 1 else np.full(len(score), np.nan)
    best = tested[max(inner, key=lambda fifth: score[fifth, ::2].mean())]
    what = "best score, an inner fifth of the runs (by DDR) less the fifth of"
    found = [
        effects.difference(f"{what} lowest DDR", best, tested[lowest], above=MARGIN),
        effects.difference(f"{what} highest DDR", best, tested[highest], above=MARGIN),
        peak_shift(dots[0].mean(1), dots[-1].mean(1)),
    ]
    how = "Dots: best running mean of the return and median DDR of each seed"
    return Picture({"": lines}, DDR, f"best {p.axis} so far", log_x=True, shows=how), found


def peak_shift(first: np.ndarray, last: np.ndarray) -> Effect:
    """How far the DDR of the best fifth of the runs moves between two budgets, both [runs, 2] of DDR and score. The
    interval is a bootstrap over runs, the same ones at both budgets."""

    def peak(dots: np.ndarray) -> float:
        return np.log10(dots[np.argsort(dots[:, 1])[-max(1, len(dots) // 5) :], 0]).mean()

    chosen = np.random.default_rng(0).integers(len(first), size=(1000, len(first)))
    low, high = np.percentile([peak(last[i]) - peak(first[i]) for i in chosen], [2.5, 97.5])
    what = "log10 DDR of the best fifth of the runs, largest budget less smallest"
    found = float(peak(last) - peak(first)), float(low), float(high)
    return Effect(what, *found, above=0.0, samples=(first, last), how="95 % interval of a bootstrap over runs (rows)")


def up_to(d: Data, run: Cell, budget: int, width: int) -> np.ndarray:
    """Median DDR and best score (running mean) within the first `budget` steps, of what was logged averaged over
    `width` steps. -> [seeds, 2]"""
    lines = [line for line in d.lines(run) if line["global_step"] <= budget]
    ddr, score = (pooled(*plots.series(lines, key), width) for key in ("outer/ddr", d.p.performance))
    if not len(ddr) or not len(score):
        return np.full((dict(run.flags)["num_seeds"], 2), np.nan)
    score = (plots.running_mean(score, 4) - d.p.low) / (d.p.high - d.p.low)
    return np.stack([10 ** np.nanmedian(np.log10(ddr), 0), np.nanmax(score, 0)], axis=1)


def pooled(steps: np.ndarray, values: np.ndarray, width: int) -> np.ndarray:
    """Means of the values [T, seeds] over every `width` steps, ignoring NaN. -> [parts, seeds]"""
    part = np.ceil(steps / width)
    return np.array([plots.mean_and_ci(values[part == i].T)[0] for i in np.unique(part)]).reshape(-1, values.shape[1])


# Figures 9, 13 and 14: three recipes for more environments


def recipe_cells(p: Preset) -> Cells:
    """With the good epsilon, so that only the inner loop differs. At the base's N all recipes are the same run."""
    base, common = p.base["num_envs"], {"clip_eps": p.good_eps, "num_seeds": p.scaled_seeds}
    same = ppo(p, **common)
    other = lambda recipe, n: ppo(p, num_envs=n, base_num_envs=base, scaling=recipe, **common)  # noqa: E731
    return {(r, n): same if n == base else other(r, n) for r in RECIPES for n in p.scaled_envs}


def show_recipes(d: Data, cells: Cells, curves: bool) -> Shown:
    """The first recipe is nowhere clearly worse than another one, and the second is worse than the first where its
    minibatches are small. What the others differ by with more environments is reported."""
    arms = Arms(d, cells, called("--scaling", "--num-envs"))
    recipes, envs = parts(cells, 0), parts(cells, 1)
    for n in (n for n in envs if n != d.p.base["num_envs"]):
        arms.not_below(arms.best([(recipe, n) for recipe in recipes]), (recipes[0], n), MARGIN)
    arms.effect(FINAL, (recipes[0], envs[0]), (recipes[1], envs[0]), above=MARGIN)
    for n, other in itertools.product((n for n in envs if n > d.p.base["num_envs"]), recipes[1:]):
        arms.effect(FINAL, (recipes[0], n), (other, n))
    if curves:
        panels = arms.panels(called("--num-envs"), place=1, label=called("--scaling"))
        return Picture(panels, STEPS, d.p.axis), arms.effects
    lines = {f"--scaling {r}": {n: (r, n) for n in envs} for r in recipes}
    return score_picture(arms, ENVS, lines), arms.effects


def speed_cells(p: Preset) -> Cells:
    """Adds a shorter run of the base with half the epochs: what that saves is half of the time that epochs take."""
    fewer = {"clip_eps": p.good_eps, "update_epochs": p.base["update_epochs"] // 2, "num_seeds": p.scaled_seeds}
    return recipe_cells(p) | {"half": ppo(p, total=p.sweep_timesteps, **fewer)}


def show_recipe_speed(d: Data, cells: Cells) -> Shown:
    """A run's seeds share one speed, so its spread is over ten parts of it. The premise: epochs take less than half of
    the time. Of t(E) = a + bE the epochs have less than half if t(E / 2) > 3/4 t(E)."""
    label = called("--scaling", "--num-envs")
    arms = Arms(d, cells, lambda key: "half the epochs" if key == "half" else label(key))
    base = d.p.base["num_envs"]
    tenths = [(i / 10, (i + 1) / 10) for i in range(10)]

    def speed(d: Data, run: Cell) -> np.ndarray:
        return np.log10([d.p.scaled_seeds * d.part(run, "charts/SPS", *tenth).mean() for tenth in tenths])

    name = "log10 of the speed"
    arms.effect(speed, "half", (RECIPES[0], base), name, below=np.log10(4 / 3), premise=True)
    for n in (n for n in d.p.scaled_envs if n != base):
        by_speed = sorted(((r, n) for r in RECIPES), key=lambda key: arms.samples(speed, key).mean())
        arms.effect(speed, by_speed[-1], by_speed[0], name, below=LITTLE)
    x = np.array(d.p.scaled_envs, np.float64)
    of = {r: np.array([arms.samples(speed, (r, n)) for n in d.p.scaled_envs]) for r in RECIPES}
    lines = [Line(f"--scaling {r}", x, 10**speeds, "points") for r, speeds in of.items()]
    how = "One run each, all its seeds at once; mean and 95 % interval over ten parts of it"
    y_label = "steps per second, learning included"
    return Picture({"": lines}, ENVS, y_label, log_x=True, shows=how), arms.effects


# Figure 12: COM and ε


def show_trade(d: Data, cells: Cells, best_only: bool) -> Shown:
    """For each COM some epsilon makes up for it, the COM matters at a fixed epsilon, and no COM rescues too large an
    epsilon."""
    arms, coms, epsilons = Arms(d, cells, called("--com", "--clip-eps")), parts(cells, 0), parts(cells, 1)
    best, tops = arms.best(list(cells)), {com: arms.best([(com, eps) for eps in epsilons]) for com in coms}
    for com in coms:
        arms.not_below(best, tops[com], MARGIN)
    same = {com: (com, d.p.good_eps) for com in coms}
    fixed = sorted(same.values(), key=lambda key: arms.samples(FINAL, key).mean())
    arms.effect(FINAL, fixed[-1], fixed[0], above=MARGIN)
    arms.effect(FINAL, best, arms.best([(com, epsilons[-1]) for com in coms]), above=MARGIN)
    if best_only:
        lines = {"the best --clip-eps for each COM": tops, f"--clip-eps {d.p.good_eps:g}": same}
        x_label = "centre of mass of the proximal policy (--com, minibatch steps)"
        return score_picture(arms, x_label, lines), arms.effects
    lines = {com_label(com): {eps: (com, eps) for eps in epsilons} for com in coms}
    return score_picture(arms, "--clip-eps", lines), arms.effects


# The bowl, noisy gradient descent: its performance is the score

RATES = (0.9, 0.5, 0.1, 0.01, 0.001)
PLATEAU, GOOD, SWITCH = 0.5, 0.01, 500
DISTANCE, THEORY = "charts/negative_distance", "theory/negative_distance"
BOWL = {"laptop": SimpleNamespace(about="the bowl", performance=DISTANCE, scale=lambda run: (0.0, 1.0))}
rate_label = called("--learning-rate")


def bowl(**varied: Any) -> Cell:
    """A run of the noisy convex problem, with 20 seeds since they cost nothing."""
    flags = {"num_seeds": 20, "num_steps": 1000} | varied
    return named("stochastic_opt", flags, varied, flags["num_steps"])


def bowl_cells(p: SimpleNamespace) -> Cells:
    return {rate: bowl(learning_rate=rate) for rate in RATES}


def bowl_picture(arms: Arms, marks: Sequence[float] = ()) -> Picture:
    """The runs beside each other and beside the theory."""
    drawn = [arms.d.curve(run, THEORY) for run in arms.cells.values()]
    lines = arms.curves() + [Line("theory", x, y, "theory") for x, y in drawn if len(x)]
    return Picture({"": lines}, "gradient steps", plots.AXIS_LABELS[DISTANCE], marks=marks, shows=MEAN)


def show_bowl(d: Data, cells: Cells) -> Shown:
    arms, small = Arms(d, cells, rate_label), RATES[-1]
    arms.effect(GAIN, PLATEAU, below=FLAT)
    arms.effect(FINAL, GOOD, PLATEAU, above=MARGIN)
    arms.effect(FINAL, GOOD, small, above=MARGIN)
    arms.effect(GAIN, small, above=FLAT)
    for rate, run in cells.items():
        off = d.final(run) / d.part(run, THEORY, 0.9, 1.0).mean() - 1
        what = f"final −‖x‖ over that of the theory, {rate_label(rate)}, less 1"
        arms.add(what, off, above=-0.05)
        arms.add(what, off, below=0.05)
    return bowl_picture(arms), arms.effects


def show_bowl_updates(d: Data, cells: Cells) -> Shown:
    """That a step on the plateau keeps its size and exceeds the distance to the optimum."""
    arms, key, run = Arms(d, cells, rate_label), "outer/update_norm", cells[PLATEAU]
    late, early = d.log_mean(run, key), d.log_mean(run, key, 0.2, 0.3)
    name = f"log10 of {key}, {rate_label(PLATEAU)}"
    arms.effect(GAIN, PLATEAU, below=FLAT)
    arms.add(f"{name}, end less first quarter", late - early, above=-FLAT)
    arms.add(f"{name}, end less first quarter", late - early, below=FLAT)
    arms.add(f"{name}, over ‖x‖ at the end", late - np.log10(-d.final(run)), above=0.0)
    y_label = plots.AXIS_LABELS[key]
    return Picture({"": arms.curves(key)}, "gradient steps", y_label, log_y=True, shows=MEAN), arms.effects


def bowl_switch_cells(p: SimpleNamespace) -> Cells:
    stay = {(a, a): bowl(learning_rate=a) for a in (PLATEAU, GOOD)}
    pairs = ((PLATEAU, GOOD), (GOOD, PLATEAU))
    return stay | {(a, b): bowl(learning_rate=a, switch_step=SWITCH, switch_learning_rate=b) for a, b in pairs}


def show_changed_rate(d: Data, cells: Cells) -> Shown:
    arms = Arms(d, cells, lambda key: rate_label(key[0]) + (f", then {key[1]:g}" if key[0] != key[1] else ""))
    switched(arms, PLATEAU, GOOD)
    return bowl_picture(arms, marks=(SWITCH,)), arms.effects


# The figures


def com_cells(p: Preset) -> Cells:
    return {com: ewma(p, com=com) for com in p.coms}


WEAK_EARLY = "plateaus early, strong regularisation is slow."
MORE_EPOCHS = "With weak regularisation more epochs end lower; with strong, few are slow"
TOLERATE = "Large batches tolerate weak regularisation far better."
RECIPE_CLAIM = (
    "Minibatches of one size are reliable for every N; a size that follows N, at the same rate, is worse if small."
)
TRADE = "For every COM some ε does about as well as the best pair; an extreme ε never does."
pair_cells = sweep(ewma, com=lambda p: p.grid_coms, clip_eps=lambda p: p.grid_epsilons)
# fmt: off
FIGURES = {
    "1a": Figure("COM in PPO-EWMA", PRESETS, com_cells, partial(show_regularisation, flag="--com", behind=FINAL),
        "Too low a COM (too large an outer step) plateaus early and low; too high a COM learns too slowly."),
    "1b": Figure("Step size on the bowl", BOWL, bowl_cells, show_bowl,
        "The same as in PPO: too large a step ends on a plateau, too small a one does not arrive in time."),
    "2a": Figure("Step size on the bowl: size of each update", BOWL, bowl_cells, show_bowl_updates,
        "With too large a step the updates stay large while the loss stagnates."),
    "2b": Figure("COM: gradient norm", PRESETS, com_cells, partial(show_stays_large, key="outer/grad_norm"),
        "With a low COM the gradient norm stays large while the performance stagnates."),
    "2c": Figure("COM: KL of an update", PRESETS, com_cells, partial(show_stays_large, key="outer/kl"),
        "With a low COM the policy goes on moving far in every update while the performance stagnates."),
    "3a": Figure("COM, changed half-way", PRESETS, changed_com_cells, show_changed_com,
        "Raising the COM after the plateau resumes learning up to that COM's own level; lowering it falls back."),
    "3b": Figure("Step size on the bowl, changed half-way", BOWL, bowl_switch_cells, show_changed_rate,
        "The same: a run ends where its present step size takes it, whatever it began with."),
    "4": Figure("Learning rate × COM, annealed or not", PRESETS,
        sweep(
            ewma, com=lambda p: [com for com in p.grid_coms if com <= p.good_com],
            learning_rate=lambda p: p.learning_rates, anneal_lr=lambda p: (False, True),
        ), show_learning_rates,
        "No learning rate, annealed or not, rescues a low COM; about the same one is best for every COM."),
    "5a": Figure("COM", PRESETS, com_cells, partial(show_regularisation, flag="--com"),
        f"Weak regularisation (low COM) {WEAK_EARLY}"),
    "5b": Figure("ε", PRESETS, lambda p: {eps: ppo(p, clip_eps=eps) for eps in p.epsilons},
        partial(show_regularisation, flag="--clip-eps"), f"Weak regularisation (large ε) {WEAK_EARLY}"),
    "6a": Figure("Epochs × COM", PRESETS, sweep(ewma, com=lambda p: p.epoch_coms, update_epochs=lambda p: p.epochs),
        partial(show_epochs, flag="--com"), f"{MORE_EPOCHS}."),
    "6b": Figure("Epochs × ε", PRESETS,
        sweep(ppo, clip_eps=lambda p: p.epoch_epsilons, update_epochs=lambda p: p.epochs),
        partial(show_epochs, flag="--clip-eps"), f"{MORE_EPOCHS}; even ε = 0 learns with many."),
    "7a": Figure("N × COM, the same number of updates", PRESETS, lambda p: batch_cells(p, ewma, com=p.epoch_coms),
        partial(show_batches, flag="--com"), TOLERATE),
    "7b": Figure("N × ε, the same number of updates", PRESETS,
        lambda p: batch_cells(p, ppo, clip_eps=[eps for eps in p.epoch_epsilons if eps]),
        partial(show_batches, flag="--clip-eps"), TOLERATE),
    "8": Figure("Data-to-divergence ratio, all runs of 5, 6 and 12", PRESETS, ddr_cells, show_ddr,
        "Performance falls at both ends of the data-to-divergence ratio; the best one rises with the budget."),
    "9": Figure("N by three recipes: learning curves", PRESETS, recipe_cells, partial(show_recipes, curves=True),
        RECIPE_CLAIM),
    "12a": Figure("COM × ε: the best ε for each COM", PRESETS, pair_cells, partial(show_trade, best_only=True), TRADE),
    "12b": Figure("COM × ε", PRESETS, pair_cells, partial(show_trade, best_only=False), TRADE),
    "13": Figure("N by three recipes: speed", PRESETS, speed_cells, show_recipe_speed,
        "There is little difference in speed where the task is bound by sampling."),
    "14": Figure("N by three recipes", LARGE, recipe_cells, partial(show_recipes, curves=False), RECIPE_CLAIM),
}
# fmt: on
