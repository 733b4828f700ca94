"""Turns runs into pictures and checks of the figures in Beukman et al. 2026 (https://arxiv.org/abs/2603.06009)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from common.run import plots
from experiments import paper_a_runs
from experiments.data import Data, Figure, axis, performance, register
from experiments.grid import Cell
from experiments.paper_a_runs import BOWL_CHANGED, BOWL_GOOD, BOWL_PLATEAU, BOWL_RATES, BOWL_SWITCH, Cells, Preset
from experiments.pictures import HeatMap, Line, Picture
from experiments.verdicts import Check, difference, within

CITATION = "Beukman et al. 2026"
MARGIN = 0.1  # of the way from a random policy to the best one; less does not count as a difference
FLAT = 0.05  # of that way, in the second half of a run; gaining less is a plateau
TWICE = np.log10(2)
ENVS = "parallel environments (--num-envs)"
LITTLE = np.log10(1.25)
UNSMOOTHED, FINAL = (
    "Mean and 95 % interval over seeds",
    "Mean and 95 % interval over seeds of the last tenth of each run",
)
STEPS, UPDATES, DDR = "environment steps", "policy update steps", "data-to-divergence ratio (transitions per nat)"

Shown = tuple[Picture | HeatMap, list[Check]]
FIGURES: dict[str, Figure] = {}
figure = partial(register, FIGURES)


def curves(d: Data, cells: Cells, label: Callable[[Any], str], key: str | None = None, **how: Any) -> list[Line]:
    drawn = [Line(label(k), *d.curve(run, key or performance(d.p, run), **how)) for k, run in cells.items()]
    return [line for line in drawn if len(line.x)]


# The figures: each function turns runs into a picture and the checks of its claim.


@figure(
    "1a",
    title="Outer step size in PPO-EWMA",
    claim="Too low a COM (too large an outer step) plateaus early and low; too high a COM learns too slowly.",
    cells=paper_a_runs.com_cells,
)
def show_step_size(d: Data, cells: Cells) -> Shown:
    """Compares the scores at the end of the budget."""
    good, strong = cells[d.p.good_com], cells[d.p.coms[-1]]
    checks = [
        *plateau_checks(d, cells, "--com", d.p.weak_com, d.p.good_com),
        difference("final score, the good COM less the highest", d.final(good), d.final(strong), above=MARGIN),
        difference("gain in the second half, the highest COM", d.gain(strong), 0.0, above=FLAT),
    ]
    return Picture({"": curves(d, cells, lambda com: f"--com {com:g}")}, STEPS, axis(d.p)), checks


def plateau_checks(d: Data, cells: Cells, flag: str, weak: float, good: float) -> list[Check]:
    """Checks that `weak` learns something, then gains no more (a fall also counts), and ends below `good`."""
    run = cells[weak]
    return [
        difference(f"score in the middle of the run, {flag} {weak:g}", d.middle(run), 0.0, above=MARGIN),
        difference(f"gain in the second half, {flag} {weak:g}", d.gain(run), 0.0, below=FLAT),
        difference(f"final score, {flag} {good:g} less {weak:g}", d.final(cells[good]), d.final(run), above=MARGIN),
    ]


@figure(
    "5a",
    title="Regularisation by COM",
    claim="Weak regularisation (low COM) plateaus early, strong regularisation is slow.",
    cells=paper_a_runs.com_cells,
    repeats="1a",
    flag="--com",
)
@figure(
    "5b",
    title="Regularisation by ε",
    claim="Weak regularisation (large ε) plateaus early, strong regularisation is slow.",
    cells=paper_a_runs.eps_cells,
    flag="--clip-eps",
)
def show_regularisation(d: Data, cells: Cells, flag: str) -> Shown:
    """Counts a value as slow if it is behind in the middle of the run, even if it catches up."""
    weak, good, strong = {
        "--com": (d.p.weak_com, d.p.good_com, d.p.coms[-1]),
        "--clip-eps": (d.p.weak_eps, d.p.good_eps, d.p.epsilons[0]),
    }[flag]
    what = f"score in the middle of the run, {flag} {good:g} less {strong:g}"
    checks = [
        *plateau_checks(d, cells, flag, weak, good),
        difference(what, d.middle(cells[good]), d.middle(cells[strong]), above=MARGIN),
        difference(f"gain in the second half, {flag} {strong:g}", d.gain(cells[strong]), 0.0, above=FLAT),
    ]
    return Picture({"": curves(d, cells, lambda value: f"{flag} {value:g}")}, STEPS, axis(d.p)), checks


@figure(
    "2b",
    title="Gradient norm, PPO-EWMA",
    claim="With a low COM the gradient norm stays large while the performance stagnates.",
    cells=paper_a_runs.com_cells,
    key="outer/grad_norm",
)
@figure(
    "2c",
    title="KL of an update, PPO-EWMA",
    claim="With a low COM the policy goes on moving far in every update while the performance stagnates.",
    cells=paper_a_runs.com_cells,
    repeats="2b",
    key="outer/kl",
)
def show_stays_large(d: Data, cells: Cells, key: str) -> Shown:
    """Checks that updates stay large on the plateau, larger than with the good COM. How they compare with the highest
    COM, with which the policy still climbs, is reported."""
    weak, good, strong = d.p.weak_com, d.p.good_com, d.p.coms[-1]
    late, early = (d.log_mean(cells[weak], key, *part) for part in ((), (0.2, 0.3)))
    arrived, climbing = (d.log_mean(cells[com], key) for com in (good, strong))
    checks = [
        *plateau_checks(d, cells, "--com", weak, good),
        difference(f"log10 of {key} at the end, --com {weak:g} less {good:g}", late, arrived, above=TWICE),
        difference(f"log10 of {key}, --com {weak:g}, end less first quarter", late - early, 0.0, above=-TWICE),
        difference(f"log10 of {key} at the end, --com {weak:g} less {strong:g}", late, climbing),
    ]
    lines = curves(d, cells, lambda com: f"--com {com:g}", key)
    return Picture({"": lines}, STEPS, plots.AXIS_LABELS[key], log_y=True), checks


@figure(
    "2a",
    title="Size of each update, noisy gradient descent",
    claim="With too large a step the updates stay large while the loss stagnates.",
    cells=paper_a_runs.bowl_cells,
    repeats="1b",
)
def show_bowl_updates(d: Data, cells: Cells) -> Shown:
    """Checks that a step on the plateau keeps its size and exceeds the distance to the optimum."""
    key, run = "outer/update_norm", cells[BOWL_PLATEAU]
    late, early = d.log_mean(run, key), d.log_mean(run, key, 0.2, 0.3)
    distance = np.log10(-d.final(run))
    checks = [
        difference(f"gain in the second half, rate {BOWL_PLATEAU}", d.gain(run), 0.0, below=FLAT),
        *within(f"log10 of {key}, rate {BOWL_PLATEAU}, end less first quarter", late - early, 0.0, FLAT),
        difference(f"log10 of {key} over ‖x‖ at the end, rate {BOWL_PLATEAU}", late - distance, 0.0, above=0.0),
    ]
    lines = curves(d, cells, lambda rate: f"--learning-rate {rate:g}", key)
    return Picture({"": lines}, "gradient steps", plots.AXIS_LABELS[key], log_y=True, shows=UNSMOOTHED), checks


@figure(
    "1b",
    title="Step size in noisy gradient descent on a convex bowl",
    claim=(
        "The same as in PPO: too large a step ends on a plateau, too small a one does not arrive within the budget."
    ),
    cells=paper_a_runs.bowl_cells,
)
def show_bowl(d: Data, cells: Cells) -> Shown:
    """Compares the runs with each other and with the theory."""
    good, low = d.final(cells[BOWL_GOOD]), d.final(cells[BOWL_RATES[-1]])
    checks = [
        difference(f"gain in the second half, rate {BOWL_PLATEAU}", d.gain(cells[BOWL_PLATEAU]), 0.0, below=FLAT),
        difference(
            f"final −‖x‖, rate {BOWL_GOOD} less {BOWL_PLATEAU}", good, d.final(cells[BOWL_PLATEAU]), above=MARGIN
        ),
        difference(f"final −‖x‖, rate {BOWL_GOOD} less {BOWL_RATES[-1]}", good, low, above=MARGIN),
        difference(f"gain in the second half, rate {BOWL_RATES[-1]}", d.gain(cells[BOWL_RATES[-1]]), 0.0, above=FLAT),
    ]
    for rate, run in cells.items():
        predicted = d.part(run, "theory/negative_distance", 0.9, 1.0).mean()
        checks += within(
            f"final −‖x‖ over that of the theory, rate {rate}, less 1", d.final(run) / predicted - 1, 0.0, 0.05
        )
    lines = curves(d, cells, lambda rate: f"--learning-rate {rate:g}") + theory(d, cells)
    y_label = plots.AXIS_LABELS["charts/negative_distance"]
    return Picture({"": lines}, "gradient steps", y_label, shows=UNSMOOTHED), checks


def theory(d: Data, cells: Cells) -> list[Line]:
    drawn = [d.curve(run, "theory/negative_distance") for run in cells.values()]
    return [Line("theory", x, y, "theory") for x, y in drawn if len(x)]


def switched(d: Data, ends: dict[tuple[float, float], Cell], flag: str, large: float, small: float) -> list[Check]:
    """Checks, for figures 3a and 3b, that a run's present step size decides, not the one that it began with.

    `ends`: (first, then) -> the run that ends with `then`. Runs with the same `first` share their past, so their
    differences are taken seed by seed."""
    final = {key: d.final(run) for key, run in ends.items()}
    cured, spoilt, plateau, good = (final[k] for k in ((large, small), (small, large), (large, large), (small, small)))
    return [
        difference(
            f"final score, {flag} {large:g} then {small:g}, less {large:g} kept", cured - plateau, 0.0, above=MARGIN
        ),
        *within(f"final score, {flag} {large:g} then {small:g}, less {small:g} kept", cured, good, MARGIN),
        difference(
            f"final score, {flag} {small:g} kept, less {small:g} then {large:g}", good - spoilt, 0.0, above=MARGIN
        ),
        *within(f"final score, {flag} {small:g} then {large:g}, less {large:g} kept", spoilt, plateau, MARGIN),
    ]


@figure(
    "3a",
    title="COM changed half-way, PPO-EWMA",
    claim=(
        "Raising the COM after the plateau resumes learning up to that COM's own level; lowering it falls "
        "back to the plateau."
    ),
    cells=paper_a_runs.changed_com_cells,
)
def show_changed_com(d: Data, cells: Cells) -> Shown:
    whole = {com: run for com, run in cells.items() if not isinstance(com, tuple)}
    changed = {key: run for key, run in cells.items() if isinstance(key, tuple)}
    lines = curves(d, whole, lambda com: f"--com {com:g}")
    lines += curves(d, changed, lambda key: f"--com {key[1]:g} (from {key[0]:g})")
    weak = whole[d.p.weak_com]
    before = d.middle(weak) - d.mean(weak, 0.2, 0.25)
    checks = [
        difference(f"gain in the second quarter, --com {d.p.weak_com:g}, before the change", before, 0.0, below=FLAT),
        *switched(d, changed, "--com", d.p.weak_com, d.p.good_com),
    ]
    half = weak.num_updates // 2 * d.p.steps_per_update
    return Picture({"": lines}, STEPS, axis(d.p), marks=(half,)), checks


@figure(
    "3b",
    title="Learning rate changed half-way, noisy gradient descent",
    claim="The same: a run ends where its present step size takes it, whatever it began with.",
    cells=paper_a_runs.bowl_switch_cells,
)
def show_changed_rate(d: Data, cells: Cells) -> Shown:
    lines = curves(d, cells, lambda key: f"{key[0]:g}" if key[0] == key[1] else f"{key[0]:g}, then {key[1]:g}")
    lines = [line._replace(label=f"--learning-rate {line.label}") for line in lines] + theory(d, cells)
    y_label = plots.AXIS_LABELS["charts/negative_distance"]
    picture = Picture({"": lines}, "gradient steps", y_label, marks=(BOWL_SWITCH,), shows=UNSMOOTHED)
    return picture, switched(d, cells, "rate", *BOWL_CHANGED)


def top(scores: dict[Any, np.ndarray]) -> Any:
    """Returns the key with the highest mean."""
    return max(scores, key=lambda key: np.nan_to_num(scores[key].mean(), nan=-np.inf))


@figure(
    "4",
    title="Inner learning rate against COM",
    claim="No learning rate, annealed or not, rescues a low COM; about the same one is best for every COM.",
    cells=paper_a_runs.learning_rate_cells,
)
def show_learning_rates(d: Data, cells: Cells) -> Shown:
    """Uses the better of annealed and constant for each learning rate."""
    final = {key: d.final(run) for key, run in cells.items()}
    coms, rates = parts(cells, 0), parts(cells, 1)
    scores = {(c, r): final[top({(c, r, a): final[c, r, a] for a in (False, True)})] for c in coms for r in rates}
    lines = [score_line(d, f"--com {com:g}", rates, [scores[com, r] for r in rates]) for com in coms]
    tops = {com: top({(com, r): scores[com, r] for r in rates}) for com in coms}
    weak, good = coms[0], coms[-1]
    what = f"best final score over all learning rates, --com {good:g} less {weak:g}"
    checks = [difference(what, scores[tops[good]], scores[tops[weak]], above=MARGIN)]
    common = tops[good][1]
    for com in coms[:-1]:
        what = f"final score, --com {com:g}: its best learning rate less {common:g}, the best one of --com {good:g}"
        checks += not_below(what, scores, tops[com], (com, common))
    return Picture(
        {"": lines}, "Adam's learning rate (--learning-rate)", score_axis(d.p), log_x=True, shows=FINAL
    ), checks


def parts(cells: Cells, place: int) -> list[Any]:
    """Returns the distinct values at this place of the keys."""
    return list(dict.fromkeys(key[place] for key in cells))


def not_below(what: str, scores: dict[Any, np.ndarray], best: Any, key: Any) -> list[Check]:
    """Checks that `key` is not clearly below `best`, unless it is the best one itself."""
    return [] if key == best else [difference(what, scores[best], scores[key], below=MARGIN)]


def score_line(d: Data, label: str, x: list[float], scores: list[np.ndarray]) -> Line:
    """Makes a line of final scores, converted back to returns or solve rates."""
    seeds = max(len(s) for s in scores)
    y = np.array([np.pad(s, (0, seeds - len(s)), constant_values=np.nan) for s in scores])
    return Line(label, np.array(x, np.float64), d.p.low + y * (d.p.high - d.p.low), "points")


def score_axis(p: Preset) -> str:
    return f"final {axis(p)} (last tenth of the run)"


@figure(
    "6a",
    title="Epochs and COM",
    claim="With weak regularisation more epochs end lower; with strong, few epochs are slow.",
    cells=paper_a_runs.com_epoch_cells,
    flag="--com",
)
@figure(
    "6b",
    title="Epochs and ε",
    claim="With weak regularisation more epochs end lower; with strong, few are slow; even ε = 0 learns with many.",
    cells=paper_a_runs.eps_epoch_cells,
    flag="--clip-eps",
)
def show_epochs(d: Data, cells: Cells, flag: str) -> Shown:
    """Draws a panel per value, from weak to strong regularisation. The strongest epsilon is 0; that it learns at all,
    with many epochs, is part of the claim, so there less is enough."""
    values, epochs = parts(cells, 0), parts(cells, 1)
    panels = {
        f"{flag} {value:g}": curves(d, {e: cells[value, e] for e in epochs}, lambda e: f"--update-epochs {e}")
        for value in values
    }
    weak, strong, few, many = values[0], values[-1], epochs[0], epochs[-1]
    final = {key: d.final(run) for key, run in cells.items()}
    fewer = final[top({(weak, e): final[weak, e] for e in epochs[:-1]})]
    what = f"final score, {flag} {weak:g}, the best of fewer epochs less {many}"
    slow = f"final score, {flag} {strong:g}, {many} epochs less {few}"
    checks = [
        difference(what, fewer, final[weak, many], above=MARGIN),
        difference(slow, final[strong, many], final[strong, few], above=MARGIN if strong else d.p.unclipped_gain),
    ]
    return Picture(panels, STEPS, axis(d.p)), checks


@figure(
    "7a",
    title="Batch size and COM, the same number of updates",
    claim="Large batches tolerate weak regularisation (low COM) far better.",
    cells=paper_a_runs.com_batch_cells,
    flag="--com",
)
@figure(
    "7b",
    title="Batch size and ε, the same number of updates",
    claim="Large batches tolerate weak regularisation (large ε) far better.",
    cells=paper_a_runs.eps_batch_cells,
    flag="--clip-eps",
)
def show_batches(d: Data, cells: Cells, flag: str) -> Shown:
    """Compares batch sizes. The first value of `flag` is the weak one, the second the good one."""
    values, envs = parts(cells, 0), parts(cells, 1)
    size = d.p.base["num_steps"]
    panels = {
        f"{flag} {value:g}": curves(
            d, {n: cells[value, n] for n in envs}, lambda n: f"--num-envs {n}: {n * size:,} transitions", updates=True
        )
        for value in values
    }
    final = {key: d.final(run) for key, run in cells.items()}
    (weak, good), small, large = values[:2], envs[0], envs[-1]
    lost = {n: final[good, n] - final[weak, n] for n in (small, large)}
    more = f"final score, {flag} {weak:g}, {large} environments less {small}"
    checks = [
        difference(more, final[weak, large], final[weak, small], above=MARGIN),
        difference(
            f"what {flag} {weak:g} loses against {good:g}, {small} environments less {large}",
            lost[small], lost[large], above=MARGIN,
        ),
    ]  # fmt: skip
    return Picture(panels, UPDATES, axis(d.p)), checks


@figure(
    "8",
    title="Best return against the data-to-divergence ratio",
    claim="Performance falls at both ends; the best ratio rises with the budget.",
    cells=paper_a_runs.ddr_cells,
)
def show_ddr(d: Data, cells: Cells) -> Shown:
    """Draws a dot for each seed of each run: the median of its DDR and its best score, up to a budget; and the medians
    and quartiles of eight equally large groups of dots.

    In the checks, a sample is the mean of a run's seeds; the best fifth of the runs is chosen on other seeds than those
    that are compared."""
    budgets = [d.p.sweep_timesteps // n for n in (8, 4, 2, 1)]
    # Long runs log more rarely than short ones, so lines are averaged over as many steps in all of them.
    width = max(dict(run.flags)["log_every"] for run in cells.values()) * d.p.steps_per_update
    dots = {budget: np.stack([up_to(d, run, budget, width) for run in cells.values()]) for budget in budgets}
    known = np.all([np.isfinite(xy[..., :2]).all((1, 2)) for xy in dots.values()], axis=0)  # not of diverged ones
    dots = {budget: xy[known] if known.any() else xy for budget, xy in dots.items()}  # [runs, seeds, 3]
    scale = d.p.high - d.p.low
    lines = [
        Line(f"up to {budget:,} steps", xy[..., 0].ravel(), d.p.low + xy[..., 1].reshape(-1, 1) * scale, "dots")
        for budget, xy in dots.items()
    ]
    lines += [Line(line.label, *grouped(line.x, line.y[:, 0]), "interval points") for line in lines]
    ddr, score = np.log10(dots[budgets[-1]][..., 0]).mean(1), dots[budgets[-1]][..., 1]
    fifths = np.array_split(np.argsort(ddr), 5)
    chosen, tested = (
        score[:, ::2].mean(1),
        score[:, 1::2].mean(1) if score.shape[1] > 1 else np.full(len(score), np.nan),
    )
    inner = max(fifths[1:4], key=lambda fifth: chosen[fifth].mean())
    what = "best score, an inner fifth of the runs (by DDR) less the fifth of"
    checks = [
        difference(f"{what} lowest DDR", tested[inner], tested[fifths[0]], above=MARGIN),
        difference(f"{what} highest DDR", tested[inner], tested[fifths[-1]], above=MARGIN),
        peak_shift(dots[budgets[0]].mean(1), dots[budgets[-1]].mean(1)),
        collapse(dots[budgets[-1]].mean(1)),
    ]
    how = "Dots: best running mean of the return and median DDR of each seed. Lines: medians and quartiles"
    how += " of each eighth of the dots, by ratio"
    return Picture({"": lines}, DDR, f"best {axis(d.p)} so far", log_x=True, shows=how), checks


def grouped(x: np.ndarray, y: np.ndarray, groups: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Cuts dots [n] into equal groups by x. -> medians of x [groups], medians and quartiles of y [groups, 3]."""
    known = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    parts = [i for i in np.array_split(known[np.argsort(x[known])], groups) if len(i)]
    quartiles = [np.quantile(y[i], [0.5, 0.25, 0.75]) for i in parts]
    return np.array([np.median(x[i]) for i in parts]), np.array(quartiles).reshape(-1, 3)


def collapse(dots: np.ndarray) -> Check:
    """Reports whether fresh / own gain says more than the DDR about how well a run does: the share of the variance of
    the best scores that lies between fifths of the runs by one, less the same by the other. dots: [runs, 3], as from
    `up_to`. The interval is a bootstrap over runs."""

    def more(dots: np.ndarray) -> float:
        ddr, score, quotient = dots.T
        within = [sum(score[i].var() * i.size for i in np.array_split(np.argsort(x), 5)) for x in (quotient, ddr)]
        return (within[1] - within[0]) / (score.var() * score.size)

    what = "variance of the best score between fifths by fresh / own gain, less by DDR"
    dots = dots[np.isfinite(dots).all(1)]
    if len(dots) < 10:
        return Check(what, np.nan, np.nan, np.nan)
    how = "share of the variance of the scores (second column) between fifths of the runs (rows) by the third column, "
    how += "less the same by the first; 95 % interval of a bootstrap over runs"
    chosen = np.random.default_rng(0).integers(len(dots), size=(1000, len(dots)))
    low, high = np.percentile([more(dots[i]) for i in chosen], [2.5, 97.5])
    return Check(what, more(dots), low, high, samples=(dots,), how=how)


def peak_shift(first: np.ndarray, last: np.ndarray) -> Check:
    """Checks how far the DDR of the best fifth of the runs moves between two budgets, both [runs, 3], as from `up_to`.
    The interval is a bootstrap over runs, the same ones at both budgets."""

    def peak(dots: np.ndarray) -> float:
        return np.log10(dots[np.argsort(dots[:, 1])[-max(1, len(dots) // 5) :], 0]).mean()

    chosen = np.random.default_rng(0).integers(len(first), size=(1000, len(first)))
    low, high = np.percentile([peak(last[i]) - peak(first[i]) for i in chosen], [2.5, 97.5])
    what = "log10 DDR of the best fifth of the runs, largest budget less smallest"
    how = "mean log10 of the DDR (first column) of the fifth with the best scores (second), last sample less first; "
    how += "95 % interval of a bootstrap over runs (rows)"
    found = float(peak(last) - peak(first)), float(low), float(high)
    return Check(what, *found, above=0.0, samples=(first, last), how=how)


def up_to(d: Data, run: Cell, budget: int, width: int) -> np.ndarray:
    """Returns [seeds, 3]: median DDR, best score (running mean), and the sum of the gains on fresh transitions over
    that of the updates' own gains, within the first `budget` steps. What was logged is averaged over `width` steps."""
    lines = [line for line in d.lines(run) if line["global_step"] <= budget]
    ddr, score, fresh, own = (
        pooled(*plots.series(lines, key), width)
        for key in ("outer/ddr", d.p.performance, "outer/fresh_gain", "outer/own_gain")
    )
    seeds = dict(run.flags)["num_seeds"]
    if not len(ddr) or not len(score):
        return np.full((seeds, 3), np.nan)
    # Runs that were made before the gains were logged have none.
    quotient = np.nansum(fresh, 0) / np.nansum(own, 0) if len(fresh) else np.full(seeds, np.nan)
    score = (plots.running_mean(score, 4) - d.p.low) / (d.p.high - d.p.low)
    return np.stack([10 ** np.nanmedian(np.log10(ddr), 0), np.nanmax(score, 0), quotient], axis=1)


def pooled(steps: np.ndarray, values: np.ndarray, width: int) -> np.ndarray:
    """Means of the values [T, seeds] over every `width` steps, ignoring NaN. -> [parts, seeds]"""
    part = np.ceil(steps / width)
    return np.array([plots.mean_and_ci(values[part == i].T)[0] for i in np.unique(part)]).reshape(-1, values.shape[1])


def recipe_checks(d: Data, cells: Cells) -> list[Check]:
    """Checks, for figures 9 and 14, that the first recipe is nowhere clearly worse than another one, and that the
    second is worse than the first where its minibatches are small."""
    recipes, envs = parts(cells, 0), parts(cells, 1)
    final = {key: d.final(run) for key, run in cells.items()}
    ours, larger = recipes[:2]
    checks = []
    for n in (n for n in envs if n != d.p.base["num_envs"]):
        best = top({(recipe, n): final[recipe, n] for recipe in recipes})
        checks += not_below(f"final score, {n} environments, {best[0]} less {ours}", final, best, (ours, n))
    what = f"final score, {envs[0]} environments, {ours} less {larger}"
    return [*checks, difference(what, final[ours, envs[0]], final[larger, envs[0]], above=MARGIN)]


@figure(
    "9",
    title="Three recipes for more environments, learning curves",
    claim=(
        "More minibatches of the same size work reliably; larger minibatches at the same learning rate are "
        "clearly worse where minibatches are small."
    ),
    cells=paper_a_runs.recipe_cells,
)
def show_recipes(d: Data, cells: Cells) -> Shown:
    recipes, envs = parts(cells, 0), parts(cells, 1)
    panels = {
        f"--num-envs {n}": curves(d, {recipe: cells[recipe, n] for recipe in recipes}, lambda r: f"--scaling {r}")
        for n in envs
    }
    return Picture(panels, STEPS, axis(d.p)), recipe_checks(d, cells)


@figure(
    "14",
    title="Three recipes for more environments",
    claim=(
        "More minibatches of the same size work reliably; larger minibatches at the same learning rate are "
        "clearly worse where minibatches are small."
    ),
    cells=paper_a_runs.recipe_cells,
    repeats="9",
)
def show_recipes_by_envs(d: Data, cells: Cells) -> Shown:
    recipes, envs = parts(cells, 0), parts(cells, 1)
    lines = [score_line(d, f"--scaling {r}", envs, [d.final(cells[r, n]) for n in envs]) for r in recipes]
    picture = Picture({"": lines}, ENVS, score_axis(d.p), log_x=True, shows=FINAL)
    return picture, recipe_checks(d, cells)


@figure(
    "13",
    title="Speed of the three recipes",
    claim="There is little difference in speed where the task is bound by sampling.",
    cells=paper_a_runs.speed_cells,
)
def show_recipe_speed(d: Data, cells: Cells) -> Shown:
    """Compares speeds. A run's seeds share one, so its spread is over ten parts of the run, not over seeds.

    The premise: sampling, or whatever else is not an epoch, takes more than half of an update's time. Of t(E) = a + bE
    the epochs have less than half if t(E / 2) > 3/4 t(E)."""
    tenths = [(i / 10, (i + 1) / 10) for i in range(10)]
    speeds = {
        key: d.p.scaled_seeds * np.array([d.part(run, "charts/SPS", *tenth).mean() for tenth in tenths])
        for key, run in cells.items()
    }
    half = np.log10(speeds.pop("half the epochs"))
    cells = {key: cells[key] for key in speeds}
    recipes, envs = parts(cells, 0), parts(cells, 1)
    x = np.array(envs, np.float64)
    lines = [Line(f"--scaling {r}", x, np.array([speeds[r, n] for n in envs]), "points") for r in recipes]
    what, base = "log10 of the speed with half the epochs over that with all", d.p.base["num_envs"]
    epochs = difference(what, half, np.log10(speeds[recipes[0], base]), below=np.log10(4 / 3))
    checks = [epochs._replace(premise=True)]
    for n in (n for n in envs if n != base):
        logs = {recipe: np.log10(speeds[recipe, n]) for recipe in recipes}
        fast, slow = (f(logs, key=lambda recipe: logs[recipe].mean()) for f in (max, min))
        what = f"log10 of the speed, {n} environments, {fast} over {slow}"
        checks.append(difference(what, logs[fast], logs[slow], below=LITTLE))
    label = "steps per second, learning included"
    limits = (0.0, 1.1 * float(np.nanmax([line.y for line in lines], initial=1.0)))
    how = "One run each, all its seeds at once; mean and 95 % interval over ten parts of it"
    return Picture({"": lines}, ENVS, label, log_x=True, y_limits=limits, shows=how), checks


def trade_checks(d: Data, cells: Cells) -> list[Check]:
    """Checks, for figures 12a and 12b, that for each COM some epsilon makes up for it, that the COM matters at a fixed
    epsilon, and that no COM rescues too large an epsilon."""
    coms, epsilons = parts(cells, 0), parts(cells, 1)
    final = {key: d.final(run) for key, run in cells.items()}
    best = top(final)
    checks = []
    for com in coms:
        mine = top({(com, eps): final[com, eps] for eps in epsilons})
        checks += not_below(f"final score, best of all less best of --com {com:g}", final, best, mine)
    fixed = {(com, d.p.good_eps): final[com, d.p.good_eps] for com in coms}
    worst = min(fixed, key=lambda key: fixed[key].mean())
    extreme = top({(com, epsilons[-1]): final[com, epsilons[-1]] for com in coms})
    what = f"final score, --clip-eps {d.p.good_eps:g}, best COM less worst"
    lost = f"final score, best of all less best of --clip-eps {epsilons[-1]:g}"
    return [
        *checks,
        difference(what, fixed[top(fixed)], fixed[worst], above=MARGIN),
        difference(lost, final[best], final[extreme], above=MARGIN),
    ]


@figure(
    "12a",
    title="The best ε for each COM",
    claim="For every COM some ε does about as well as the best pair; an extreme ε never does.",
    cells=paper_a_runs.grid_cells,
)
def show_best_eps(d: Data, cells: Cells) -> Shown:
    coms, epsilons = parts(cells, 0), parts(cells, 1)
    final = {key: d.final(run) for key, run in cells.items()}
    tops = [final[top({(com, eps): final[com, eps] for eps in epsilons})] for com in coms]
    lines = [
        score_line(d, "the best --clip-eps for each COM", coms, tops),
        score_line(d, f"--clip-eps {d.p.good_eps:g}", coms, [final[com, d.p.good_eps] for com in coms]),
    ]
    x_label = "centre of mass of the proximal policy (--com, minibatch steps)"
    return Picture({"": lines}, x_label, score_axis(d.p), log_x=True, shows=FINAL), trade_checks(d, cells)


@figure(
    "12b",
    title="COM and ε",
    claim="For every COM some ε does about as well as the best pair; an extreme ε never does.",
    cells=paper_a_runs.grid_cells,
    repeats="12a",
)
def show_heat_map(d: Data, cells: Cells) -> Shown:
    coms, epsilons = parts(cells, 0), parts(cells, 1)
    scale = d.p.high - d.p.low
    values = np.array([[d.p.low + scale * d.final(cells[com, eps]).mean() for eps in epsilons] for com in coms])
    names = [f"{com:g}" for com in coms], [f"{eps:g}" for eps in epsilons]
    return HeatMap(values, *names, "--clip-eps", "--com", score_axis(d.p)), trade_checks(d, cells)
