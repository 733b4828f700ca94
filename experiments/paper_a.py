"""Beukman et al. 2026 (https://arxiv.org/abs/2603.06009): from the runs of each figure to its picture and checks."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from common import plots
from experiments.data import Data, axis, performance
from experiments.grid import Cell
from experiments.paper_a_runs import (
    BOWL_CHANGED,
    BOWL_GOOD,
    BOWL_PLATEAU,
    BOWL_RATES,
    Cells,
    bowl_cells,
    bowl_switch_cells,
    changed_com_cells,
    com_batch_cells,
    com_cells,
    com_epoch_cells,
    ddr_cells,
    eps_batch_cells,
    eps_cells,
    eps_epoch_cells,
    grid_cells,
    learning_rate_cells,
    recipe_cells,
)
from experiments.pictures import HeatMap, Line, Picture
from experiments.presets import Preset
from experiments.verdicts import Check, difference, within

MARGIN = 0.1  # of the way from a random policy to the best one: less is no difference
FLAT = 0.05  # of that way in the second half of a run: less is a plateau
TWICE = np.log10(2)
STEPS, UPDATES, DDR = "environment steps", "policy update steps", "data-to-divergence ratio (transitions per nat)"

Shown = tuple[Picture | HeatMap, list[Check]]


def curves(d: Data, cells: Cells, label: Callable[[Any], str], key: str | None = None, **how: Any) -> list[Line]:
    drawn = [Line(label(k), *d.curve(run, key or performance(d.p, run), **how)) for k, run in cells.items()]
    return [line for line in drawn if len(line.x)]


def number(value: float) -> str:
    return f"{value:g}"


# The figures: from the runs to a picture and the checks of its claim.


def show_step_size(d: Data, cells: Cells) -> Shown:
    """Figure 1a: what is left at the end of the budget."""
    good, strong = cells[d.p.good_com], cells[d.p.coms[-1]]
    checks = [
        *plateau_checks(d, cells, "--com", d.p.weak_com, d.p.good_com),
        difference("final score, the good COM less the highest", d.final(good), d.final(strong), above=MARGIN),
        difference("gain in the second half, the highest COM", d.gain(strong), 0.0, above=FLAT),
    ]
    return Picture({"": curves(d, cells, lambda com: f"--com {number(com)}")}, STEPS, axis(d.p)), checks


def plateau_checks(d: Data, cells: Cells, flag: str, weak: float, good: float) -> list[Check]:
    better = f"final score, {flag} {number(good)} less {number(weak)}"
    return [
        difference(better, d.final(cells[good]), d.final(cells[weak]), above=MARGIN),
        difference(f"gain in the second half, {flag} {number(weak)}", d.gain(cells[weak]), 0.0, below=FLAT),
    ]


def regularisation(d: Data, cells: Cells, flag: str, weak: float, good: float, strong: float) -> Shown:
    """Figures 5a, 5b. Slow is what is behind in the middle of the run, even if it arrives."""
    what = f"score in the middle of the run, {flag} {number(good)} less {number(strong)}"
    checks = [
        *plateau_checks(d, cells, flag, weak, good),
        difference(what, d.middle(cells[good]), d.middle(cells[strong]), above=MARGIN),
        difference(f"gain in the second half, {flag} {number(strong)}", d.gain(cells[strong]), 0.0, above=FLAT),
    ]
    return Picture({"": curves(d, cells, lambda value: f"{flag} {number(value)}")}, STEPS, axis(d.p)), checks


def show_com(d: Data, cells: Cells) -> Shown:
    return regularisation(d, cells, "--com", d.p.weak_com, d.p.good_com, d.p.coms[-1])


def show_eps(d: Data, cells: Cells) -> Shown:
    return regularisation(d, cells, "--clip-eps", d.p.weak_eps, d.p.good_eps, d.p.epsilons[0])


def stays_large(d: Data, cells: Cells, flag: str, key: str, weak: float, good: float) -> Shown:
    """Figures 2a to 2c: on the plateau the updates go on."""
    lines = curves(d, cells, lambda value: f"{flag} {number(value)}", key)
    late, early = d.log_mean(cells[weak], key), d.log_mean(cells[weak], key, 0.2, 0.3)
    calm = d.log_mean(cells[good], key)
    checks = [
        difference(f"gain in the second half, {flag} {weak:g}", d.gain(cells[weak]), 0.0, below=FLAT),
        difference(f"log10 of {key} at the end, {flag} {weak:g} less {good:g}", late, calm, above=TWICE),
        difference(f"log10 of {key}, {flag} {weak:g}, end less first quarter", late, early, above=-TWICE),
    ]
    steps = "gradient steps" if flag == "--learning-rate" else STEPS
    return Picture({"": lines}, steps, plots.AXIS_LABELS[key], log_y=True), checks


def show_grad_norm(d: Data, cells: Cells) -> Shown:
    return stays_large(d, cells, "--com", "outer/grad_norm", d.p.weak_com, d.p.good_com)


def show_kl(d: Data, cells: Cells) -> Shown:
    return stays_large(d, cells, "--com", "outer/kl", d.p.weak_com, d.p.good_com)


def show_bowl_updates(d: Data, cells: Cells) -> Shown:
    return stays_large(d, cells, "--learning-rate", "outer/update_norm", BOWL_PLATEAU, BOWL_GOOD)


def show_bowl(d: Data, cells: Cells) -> Shown:
    """Figure 1b, with the theory beside it."""
    lines = curves(d, cells, lambda rate: f"--learning-rate {rate:g}")
    lines += theory(d, cells)
    high, good, low = (d.final(cells[rate]) for rate in (BOWL_PLATEAU, BOWL_GOOD, BOWL_RATES[-1]))
    checks = [
        difference(f"final −‖x‖, rate {BOWL_GOOD} less {BOWL_PLATEAU}", good, high, above=MARGIN),
        difference(f"gain in the second half, rate {BOWL_PLATEAU}", d.gain(cells[BOWL_PLATEAU]), 0.0, below=FLAT),
        difference(f"final −‖x‖, rate {BOWL_GOOD} less {BOWL_RATES[-1]}", good, low, above=MARGIN),
        difference(f"gain in the second half, rate {BOWL_RATES[-1]}", d.gain(cells[BOWL_RATES[-1]]), 0.0, above=FLAT),
    ]
    for rate, run in cells.items():
        predicted = d.part(run, "theory/negative_distance", 0.9, 1.0).mean()
        checks += within(f"final −‖x‖ over that of the theory, rate {rate}", d.final(run) / predicted, 1.0, 0.05)
    return Picture({"": lines}, "gradient steps", plots.AXIS_LABELS["charts/negative_distance"]), checks


def theory(d: Data, cells: Cells) -> list[Line]:
    drawn = [d.curve(run, "theory/negative_distance") for run in cells.values()]
    return [Line("theory", x, y, "theory") for x, y in drawn if len(x)]


def switched(d: Data, ends: dict[tuple[float, float], Cell], flag: str, large: float, small: float) -> list[Check]:
    """Figures 3a and 3b: what counts is the step size that a run has now, not the one that it began with.

    `ends`: (first, then) -> the run that ends with `then`."""
    final = {key: d.final(run) for key, run in ends.items()}
    cured, spoilt, plateau, good = (final[k] for k in ((large, small), (small, large), (large, large), (small, small)))
    return [
        difference(f"final score, {flag} {large:g} then {small:g}, less {large:g} kept", cured, plateau, above=MARGIN),
        *within(f"final score, {flag} {large:g} then {small:g}, less {small:g} kept", cured, good, MARGIN),
        difference(f"final score, {flag} {small:g} kept, less {small:g} then {large:g}", good, spoilt, above=MARGIN),
        *within(f"final score, {flag} {small:g} then {large:g}, less {large:g} kept", spoilt, plateau, MARGIN),
    ]


def show_changed_com(d: Data, cells: Cells) -> Shown:
    whole = {com: run for com, run in cells.items() if not isinstance(com, tuple)}
    changed = {key: run for key, run in cells.items() if isinstance(key, tuple)}
    lines = curves(d, whole, lambda com: f"--com {number(com)}")
    lines += curves(d, changed, lambda key: f"--com {number(key[1])} (from {number(key[0])})")
    checks = switched(d, changed, "--com", d.p.weak_com, d.p.good_com)
    half = d.p.total_timesteps // d.p.steps_per_update // 2 * d.p.steps_per_update
    return Picture({"": lines}, STEPS, axis(d.p), marks=(half,)), checks


def show_changed_rate(d: Data, cells: Cells) -> Shown:
    lines = curves(d, cells, lambda key: f"{key[0]:g}" if key[0] == key[1] else f"{key[0]:g}, then {key[1]:g}")
    lines = [line._replace(label=f"--learning-rate {line.label}") for line in lines] + theory(d, cells)
    checks = switched(d, cells, "rate", *BOWL_CHANGED)
    return Picture({"": lines}, "gradient steps", plots.AXIS_LABELS["charts/negative_distance"], marks=(500,)), checks


def best(d: Data, runs: list[Cell]) -> np.ndarray:
    """Final scores of the run with the best mean."""
    return max((d.final(run) for run in runs), key=lambda scores: np.nan_to_num(scores.mean(), nan=-np.inf))


def show_learning_rates(d: Data, cells: Cells) -> Shown:
    """Figure 4: the better of annealed and not, for each learning rate."""
    scores = {(c, r): best(d, [cells[c, r, False], cells[c, r, True]]) for c, r, _ in cells}
    coms, rates = (list(dict.fromkeys(key[i] for key in scores)) for i in (0, 1))
    lines = [score_line(d, f"--com {number(com)}", rates, [scores[com, r] for r in rates]) for com in coms]
    tops = {com: max((scores[com, r] for r in rates), key=np.mean) for com in coms}
    weak, good = coms[0], coms[-1]
    common = max(rates, key=lambda rate: scores[good, rate].mean())
    what = f"best score over all learning rates, --com {good:g} less {weak:g}"
    checks = [difference(what, tops[good], tops[weak], above=MARGIN)]
    for com in coms[:-1]:
        what = f"--com {com:g}: best score less that at {common:g}, the best rate of --com {good:g}"
        checks.append(difference(what, tops[com], scores[com, common], below=MARGIN))
    return Picture({"": lines}, "Adam's learning rate (--learning-rate)", score_axis(d.p), log_x=True), checks


def score_line(d: Data, label: str, x: list[float], scores: list[np.ndarray]) -> Line:
    """Final scores as what they are made of: returns or solve rates."""
    seeds = max(len(s) for s in scores)
    y = np.array([np.pad(s, (0, seeds - len(s)), constant_values=np.nan) for s in scores])
    return Line(label, np.array(x, np.float64), d.p.low + y * (d.p.high - d.p.low), "points")


def score_axis(p: Preset) -> str:
    return f"final {axis(p)} (last tenth of the run)"


def epochs(d: Data, cells: Cells, flag: str, weak: float, strong: float) -> Shown:
    """Figures 6a, 6b."""
    values, numbers = (list(dict.fromkeys(key[i] for key in cells)) for i in (0, 1))
    panels = {
        f"{flag} {number(value)}": curves(d, {e: cells[value, e] for e in numbers}, lambda e: f"--update-epochs {e}")
        for value in values
    }
    few, many = numbers[0], numbers[-1]
    final = {key: d.final(run) for key, run in cells.items()}
    fewer = max((final[weak, e] for e in numbers[:-1]), key=np.mean)
    what = f"final score, {flag} {number(weak)}, the best of fewer epochs less {many}"
    slow = f"final score, {flag} {number(strong)}, {many} epochs less {few}"
    checks = [
        difference(what, fewer, final[weak, many], above=MARGIN),
        difference(slow, final[strong, many], final[strong, few], above=MARGIN),
    ]
    return Picture(panels, STEPS, axis(d.p)), checks


def show_com_epochs(d: Data, cells: Cells) -> Shown:
    return epochs(d, cells, "--com", d.p.epoch_coms[0], d.p.epoch_coms[-1])


def show_eps_epochs(d: Data, cells: Cells) -> Shown:
    """The strongest is epsilon = 0: that it learns at all, with many epochs, is a part of the claim."""
    return epochs(d, cells, "--clip-eps", d.p.epoch_epsilons[0], d.p.epoch_epsilons[-1])


def batches(d: Data, cells: Cells, flag: str) -> Shown:
    """Figures 7a, 7b: the first value is the weak one, the second the good one."""
    values, envs = (list(dict.fromkeys(key[i] for key in cells)) for i in (0, 1))
    size = d.p.base["num_steps"]
    panels = {
        f"{flag} {number(value)}": curves(
            d, {n: cells[value, n] for n in envs}, lambda n: f"--num-envs {n}: {n * size:,} transitions", updates=True
        )
        for value in values
    }
    final = {key: d.final(run) for key, run in cells.items()}
    (weak, good), small, large = values[:2], envs[0], envs[-1]
    lost = {n: final[good, n] - final[weak, n] for n in (small, large)}
    checks = [
        difference(
            f"final score, {flag} {weak:g}, {large} environments less {small}",
            final[weak, large],
            final[weak, small],
            above=MARGIN,
        ),
        difference(
            f"what {flag} {weak:g} loses against {good:g}, {small} environments less {large}",
            lost[small],
            lost[large],
            above=MARGIN,
        ),
    ]
    return Picture(panels, UPDATES, axis(d.p)), checks


def show_com_batches(d: Data, cells: Cells) -> Shown:
    return batches(d, cells, "--com")


def show_eps_batches(d: Data, cells: Cells) -> Shown:
    return batches(d, cells, "--clip-eps")


def show_ddr(d: Data, cells: Cells) -> Shown:
    """Figure 8. A dot is one seed of one run: the median of its DDR and its best score, up to a budget."""
    budgets = [d.p.sweep_timesteps // n for n in (8, 4, 2, 1)]
    dots = {budget: np.concatenate([up_to(d, run, budget) for run in cells.values()]) for budget in budgets}
    scale = d.p.high - d.p.low
    lines = [
        Line(f"up to {budget:,} steps", xy[:, 0], d.p.low + xy[:, 1:] * scale, "dots") for budget, xy in dots.items()
    ]
    checks, tops = [], {}
    for budget, xy in dots.items():
        x, y = xy[np.isfinite(xy).all(1)].T
        order, fifth = np.argsort(x), max(2, len(x) // 5)
        tops[budget] = np.log10(x[np.argsort(y)[-fifth:]])
        middle = y[np.argsort(y)[-fifth:]]
        if budget == budgets[-1]:
            checks += [
                difference(
                    "best score, the best fifth of the runs less the fifth of lowest DDR",
                    middle,
                    y[order[:fifth]],
                    above=MARGIN,
                ),
                difference(
                    "best score, the best fifth of the runs less the fifth of highest DDR",
                    middle,
                    y[order[-fifth:]],
                    above=MARGIN,
                ),
            ]
    what = "log10 DDR of the best fifth of the runs, largest budget less smallest"
    checks.append(difference(what, tops[budgets[-1]], tops[budgets[0]], above=0.0))
    return Picture({"": lines}, DDR, f"best {axis(d.p)} so far", log_x=True), checks


def up_to(d: Data, run: Cell, budget: int) -> np.ndarray:
    """[seeds, 2]: median DDR, best score (running mean) within the first `budget` steps."""
    lines = [line for line in d.lines(run) if line["global_step"] <= budget]
    _, ddr = plots.series(lines, "outer/ddr")
    _, score = plots.series(lines, d.p.performance)
    if not len(ddr) or not len(score):
        return np.full((1, 2), np.nan)
    score = (plots.running_mean(score, 4) - d.p.low) / (d.p.high - d.p.low)
    return np.stack([10 ** np.nanmedian(np.log10(ddr), 0), np.nanmax(score, 0)], axis=1)


def recipe_parts(cells: Cells) -> tuple[list[str], list[int]]:
    recipes, envs = (list(dict.fromkeys(key[i] for key in cells)) for i in (0, 1))
    return recipes, envs


def recipe_checks(d: Data, cells: Cells) -> list[Check]:
    """Figures 9 and 14: the first recipe is never clearly worse, the second is where its minibatches are small."""
    recipes, envs = recipe_parts(cells)
    final = {key: d.final(run) for key, run in cells.items()}
    ours, larger = recipes[:2]
    checks = []
    for n in (n for n in envs if n != d.p.base["num_envs"]):
        other = max((final[recipe, n] for recipe in recipes[1:]), key=np.mean)
        what = f"final score, {n} environments, the best other recipe less {ours}"
        checks.append(difference(what, other, final[ours, n], below=MARGIN))
    what = f"final score, {envs[0]} environments, {ours} less {larger}"
    return [*checks, difference(what, final[ours, envs[0]], final[larger, envs[0]], above=MARGIN)]


def show_recipes(d: Data, cells: Cells) -> Shown:
    recipes, envs = recipe_parts(cells)
    panels = {
        f"--num-envs {n}": curves(d, {recipe: cells[recipe, n] for recipe in recipes}, lambda r: f"--scaling {r}")
        for n in envs
    }
    return Picture(panels, STEPS, axis(d.p)), recipe_checks(d, cells)


def show_recipes_by_envs(d: Data, cells: Cells) -> Shown:
    recipes, envs = recipe_parts(cells)
    lines = [score_line(d, f"--scaling {r}", envs, [d.final(cells[r, n]) for n in envs]) for r in recipes]
    picture = Picture({"": lines}, "parallel environments (--num-envs)", score_axis(d.p), log_x=True)
    return picture, recipe_checks(d, cells)


def show_recipe_speed(d: Data, cells: Cells) -> Shown:
    """Figure 13. A run has one speed: its spread is that over ten parts of the run, not over seeds."""
    recipes, envs = recipe_parts(cells)
    seeds = d.p.base["num_seeds"]
    tenths = [(i / 10, (i + 1) / 10) for i in range(10)]
    speeds = {
        key: seeds * np.array([d.part(run, "charts/SPS", *tenth).mean() for tenth in tenths])
        for key, run in cells.items()
    }
    lines = [
        Line(f"--scaling {recipe}", np.array(envs, np.float64), np.array([speeds[recipe, n] for n in envs]), "points")
        for recipe in recipes
    ]
    checks = []
    for n in (n for n in envs if n != d.p.base["num_envs"]):
        logs = [np.log10(speeds[recipe, n]) for recipe in recipes]
        slow, fast = min(logs, key=np.mean), max(logs, key=np.mean)
        checks.append(
            difference(f"log10 of the speed of the fastest over the slowest, {n} environments", fast, slow, below=TWICE)
        )
    label = "environment steps per second, learning included, all seeds"
    return Picture({"": lines}, "parallel environments (--num-envs)", label, log_x=True, log_y=True), checks


def trade_checks(d: Data, cells: Cells) -> list[Check]:
    """Figures 12a and 12b: for each COM an epsilon makes up for it; with one epsilon for all the COM matters; too large
    an epsilon is lost."""
    coms, epsilons = (list(dict.fromkeys(key[i] for key in cells)) for i in (0, 1))
    final = {key: d.final(run) for key, run in cells.items()}
    tops = {com: max((final[com, eps] for eps in epsilons), key=np.mean) for com in coms}
    top = max(tops.values(), key=np.mean)
    checks = [
        difference(f"best final score of all, less the best of --com {com:g}", top, tops[com], below=MARGIN)
        for com in coms
    ]
    fixed = [final[com, d.p.good_eps] for com in coms]
    what = f"final score, --clip-eps {d.p.good_eps:g}, best COM less worst"
    checks.append(difference(what, max(fixed, key=np.mean), min(fixed, key=np.mean), above=MARGIN))
    extreme = max((final[com, epsilons[-1]] for com in coms), key=np.mean)
    return [
        *checks,
        difference(
            f"best final score of all, less the best of --clip-eps {epsilons[-1]:g}", top, extreme, above=MARGIN
        ),
    ]


def show_best_eps(d: Data, cells: Cells) -> Shown:
    coms, epsilons = (list(dict.fromkeys(key[i] for key in cells)) for i in (0, 1))
    final = {key: d.final(run) for key, run in cells.items()}
    tops = [max((final[com, eps] for eps in epsilons), key=np.mean) for com in coms]
    lines = [
        score_line(d, "the best --clip-eps for each COM", coms, tops),
        score_line(d, f"--clip-eps {d.p.good_eps:g}", coms, [final[com, d.p.good_eps] for com in coms]),
    ]
    x_label = "centre of mass of the proximal policy (--com, minibatch steps)"
    return Picture({"": lines}, x_label, score_axis(d.p), log_x=True), trade_checks(d, cells)


def show_heat_map(d: Data, cells: Cells) -> Shown:
    coms, epsilons = (list(dict.fromkeys(key[i] for key in cells)) for i in (0, 1))
    scale = d.p.high - d.p.low
    values = np.array([[d.p.low + scale * d.final(cells[com, eps]).mean() for eps in epsilons] for com in coms])
    names = [number(com) for com in coms], [number(eps) for eps in epsilons]
    return HeatMap(values, *names, "--clip-eps", "--com", score_axis(d.p)), trade_checks(d, cells)


class Figure(NamedTuple):
    title: str
    claim: str  # the paper's
    cells: Callable[[Preset], Cells]
    show: Callable[[Data, Cells], Shown]


FIGURES = {
    "1a": Figure(
        "Outer step size in PPO-EWMA",
        "Too low a COM (too large an outer step) plateaus early and low; too high a COM learns too slowly.",
        com_cells, show_step_size,
    ),
    "1b": Figure(
        "Step size in noisy gradient descent on a convex bowl",
        "The same as in PPO: too large a step ends on a plateau, too small a one does not arrive within the budget.",
        bowl_cells, show_bowl,
    ),
    "2a": Figure(
        "Size of each update, noisy gradient descent",
        "With too large a step the updates stay large while the loss stagnates.",
        bowl_cells, show_bowl_updates,
    ),
    "2b": Figure(
        "Gradient norm, PPO-EWMA", "With a low COM the gradient norm stays large while the performance stagnates.",
        com_cells, show_grad_norm,
    ),
    "2c": Figure(
        "KL of an update, PPO-EWMA",
        "With a low COM the policy goes on moving far in every update while the performance stagnates.",
        com_cells, show_kl,
    ),
    "3a": Figure(
        "COM changed half-way, PPO-EWMA",
        "Raising the COM after the plateau resumes learning up to that COM's own level; lowering it falls back to the "
        "plateau.",
        changed_com_cells, show_changed_com,
    ),
    "3b": Figure(
        "Learning rate changed half-way, noisy gradient descent",
        "The same: a run ends where its present step size takes it, whatever it began with.",
        bowl_switch_cells, show_changed_rate,
    ),
    "4": Figure(
        "Inner learning rate against COM",
        "No learning rate, annealed or not, rescues a low COM; about the same one is best for every COM.",
        learning_rate_cells, show_learning_rates,
    ),
    "5a": Figure(
        "Regularisation by COM", "Weak regularisation (low COM) plateaus early, strong regularisation is slow.",
        com_cells, show_com,
    ),
    "5b": Figure(
        "Regularisation by ε", "Weak regularisation (large ε) plateaus early, strong regularisation is slow.",
        eps_cells, show_eps,
    ),
    "6a": Figure(
        "Epochs and COM", "With weak regularisation more epochs end lower; with strong, few epochs are slow.",
        com_epoch_cells, show_com_epochs,
    ),
    "6b": Figure(
        "Epochs and ε",
        "With weak regularisation more epochs end lower; with strong, few are slow; even ε = 0 learns with many.",
        eps_epoch_cells, show_eps_epochs,
    ),
    "7a": Figure(
        "Batch size and COM, the same number of updates",
        "Large batches stand weak regularisation (low COM) far better.", com_batch_cells, show_com_batches,
    ),
    "7b": Figure(
        "Batch size and ε, the same number of updates",
        "Large batches stand weak regularisation (large ε) far better.", eps_batch_cells, show_eps_batches,
    ),
    "8": Figure(
        "Data-to-divergence ratio", "Performance falls at both ends; the best ratio rises with the budget.",
        ddr_cells, show_ddr,
    ),
    "9": Figure(
        "Three recipes for more environments, learning curves",
        "More minibatches of the same size work reliably; larger minibatches at the same learning rate are clearly "
        "worse where minibatches are small.",
        recipe_cells, show_recipes,
    ),
    "12a": Figure(
        "The best ε for each COM", "An ε makes up for the COM, and a COM for ε, but for extreme values of ε.",
        grid_cells, show_best_eps,
    ),
    "12b": Figure(
        "COM and ε", "An ε makes up for the COM, and a COM for ε, but for extreme values of ε.",
        grid_cells, show_heat_map,
    ),
    "13": Figure(
        "Speed of the three recipes", "There is little difference in speed where the task is bound by sampling.",
        recipe_cells, show_recipe_speed,
    ),
    "14": Figure(
        "Three recipes for more environments",
        "More minibatches of the same size work reliably; larger minibatches at the same learning rate are clearly "
        "worse where minibatches are small.",
        recipe_cells, show_recipes_by_envs,
    ),
}  # fmt: skip
