"""Turns runs of SFL on Kinetix into pictures and checks of the figures in Beukman et al. 2026
(https://arxiv.org/abs/2603.06009), section 6 and appendices D to F. A score is a solve rate."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from common.run import plots
from experiments import paper_a
from experiments.data import Data, Figure, axis, register
from experiments.grid import Cell
from experiments.pictures import Line, Picture
from experiments.sfl_runs import Cells, com_cells, env_cells, filter_cells, minibatch_cells, rate_cells
from experiments.verdicts import Check, difference

CITATION = paper_a.CITATION
MARGIN = 0.05  # of solve rate; less does not count as a difference
FLAT = 0.02  # of solve rate, in the second half of a run; gaining less is a plateau
SEEDS = 3  # as in the paper; two would often agree by chance, and their interval without width would decide
RATES = (-0.02, 1.02)  # axis limits of a share
ENOUGH = {"s": 65536}  # environments, by size of levels
HAND_DESIGNED = "eval/hand_designed/solve_rate"
MINIBATCHES = "minibatches per epoch (--num-minibatches)"

Shown = tuple[Picture, list[Check]]
FIGURES: dict[str, Figure] = {}
figure = partial(register, FIGURES)


def parts(cells: Cells, place: int) -> list[Any]:
    """Returns the distinct values at this place of the keys: sizes, what varies, seeds."""
    return list(dict.fromkeys(key[place] for key in cells))


def of(cells: Cells, size: str, what: Any) -> list[Cell]:
    """Returns the runs of all seeds."""
    return [run for key, run in cells.items() if key[:2] == (size, what)]


def over_seeds(statistic: Callable[[Cell], np.ndarray], runs: Sequence[Cell]) -> np.ndarray:
    """Joins a statistic [seeds of a run] of all runs. -> [seeds]."""
    return np.concatenate([statistic(run) for run in runs])


def compare(what: str, a: np.ndarray, b: np.ndarray | float, **wanted: float) -> Check:
    """Calls `difference`, but decides nothing with fewer than SEEDS seeds."""
    check = difference(what, a, b, **wanted)
    few = min(np.size(x) for x in (a, b) if np.ndim(x)) < SEEDS
    return check._replace(low=np.nan, high=np.nan, how=f"no interval below {SEEDS} samples") if few else check


def joined(label: str, drawn: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Line]:
    """Joins runs that differ only in seed into one line: x [T], y [T, seeds] of each. Unfinished ones end earlier."""
    x = max((x for x, _ in drawn), key=len)
    pad = lambda y: np.pad(y, ((0, len(x) - len(y)), (0, 0)), constant_values=np.nan)  # noqa: E731
    return [Line(label, x, np.concatenate([pad(y) for _, y in drawn if len(y)], axis=1))] if len(x) else []


def learning_curves(d: Data, cells: Cells, label: Callable[[Any], str], key: str | None = None) -> Picture:
    """Draws a panel for each size. Steps are logarithmic if budgets differ, which they do by factors."""
    key, panels = key or d.p.performance, {}
    for size in parts(cells, 0):
        drawn = {what: [d.curve(run, key) for run in of(cells, size, what)] for what in parts(cells, 1)}
        panels[panel(size)] = [line for what, runs in drawn.items() for line in joined(label(what), runs)]
    log_x = len({dict(run.flags)["total_timesteps"] for run in cells.values()}) > 1
    return Picture(panels, paper_a.STEPS, plots.AXIS_LABELS[key], log_x=log_x, y_limits=RATES, shows=paper_a.UNSMOOTHED)


def panel(size: str) -> str:
    return f"size {size.upper()}"


def envs_label(envs: int) -> str:
    return f"--num-envs {envs}"


def minibatches_label(minibatches: int) -> str:
    return f"--num-minibatches {minibatches}"


@figure(
    "11",
    title="SFL on Kinetix, parallel environments",
    claim="Few environments plateau early, many go on improving; on size S 65,536 are enough.",
    cells=env_cells,
)
def show_envs(d: Data, cells: Cells) -> Shown:
    envs, checks = parts(cells, 1), []
    small, large = envs[0], envs[-1]
    for size in parts(cells, 0):
        final = {n: over_seeds(d.final, of(cells, size, n)) for n in envs}
        gain = {n: over_seeds(d.gain, of(cells, size, n)) for n in envs}
        checks += [
            compare(f"{panel(size)}: final solve rate, {large} environments less {small}", final[large], final[small],
                    above=0.0),
            compare(f"{panel(size)}: gain in the second half, {small} environments", gain[small], 0.0, below=FLAT),
            compare(f"{panel(size)}: gain in the second half, {large} environments", gain[large], 0.0, above=0.0),
        ]  # fmt: skip
        enough = ENOUGH.get(size)
        if enough in envs and enough != large:
            what = f"{panel(size)}: final solve rate, {large} environments less {enough}"
            checks.append(compare(what, final[large], final[enough], below=MARGIN))
    return learning_curves(d, cells, envs_label), checks


@figure(
    "20",
    title="SFL on Kinetix, hand-designed levels",
    claim="The same order as on random levels: more environments end higher.",
    cells=env_cells,
)
def show_hand_designed(d: Data, cells: Cells) -> Shown:
    """Checks the order only: noise hides whether a curve stands still."""
    envs, checks = parts(cells, 1), []
    small, large = envs[0], envs[-1]
    for size in parts(cells, 0):
        final = {n: over_seeds(lambda run: d.final(run, HAND_DESIGNED), of(cells, size, n)) for n in (small, large)}
        what = f"{panel(size)}: final solve rate on hand-designed levels, {large} environments less {small}"
        checks.append(compare(what, final[large], final[small], above=0.0))
    return learning_curves(d, cells, envs_label, HAND_DESIGNED), checks


@figure(
    "15",
    title="SFL on Kinetix, minibatches per epoch at the largest N",
    claim=(
        "Few minibatches (larger ones, the learning rate scaled by the root) are far worse; many are a little more "
        "sample efficient, with about the same end."
    ),
    cells=minibatch_cells,
)
def show_minibatches(d: Data, cells: Cells) -> Shown:
    few, middle, many = parts(cells, 1)
    checks = []
    for size in parts(cells, 0):
        final = {m: over_seeds(d.final, of(cells, size, m)) for m in (few, middle, many)}
        half = {m: over_seeds(d.middle, of(cells, size, m)) for m in (middle, many)}
        checks += [
            compare(f"{panel(size)}: final solve rate, {middle} minibatches less {few}", final[middle], final[few],
                    above=MARGIN),
            compare(f"{panel(size)}: solve rate in the middle of the run, {many} minibatches less {middle}",
                    half[many], half[middle], above=0.0),
            compare(f"{panel(size)}: final solve rate, {many} minibatches less {middle}", final[many], final[middle],
                    below=MARGIN),
        ]  # fmt: skip
    return learning_curves(d, cells, minibatches_label), checks


def speed(d: Data, run: Cell) -> np.ndarray:
    """Returns the median steps per second of a run, over all its seeds: a run has one speed. -> [1]."""
    return dict(run.flags)["num_seeds"] * np.median(d.part(run, "charts/SPS", 0.0, 1.0), axis=0)


@figure(
    "16a",
    title="SFL on Kinetix, speed by minibatches per epoch",
    claim="Many minibatches are much slower.",
    cells=minibatch_cells,
)
def show_speed(d: Data, cells: Cells) -> Shown:
    """Compares speeds; intervals are over runs."""
    numbers, checks, lines = parts(cells, 1), [], []
    few, middle, many = numbers
    for size in parts(cells, 0):
        speeds = {m: over_seeds(lambda run: speed(d, run), of(cells, size, m)) for m in numbers}
        lines.append(Line(panel(size), np.array(numbers, np.float64), np.stack([*speeds.values()]), "points"))
        logs = {m: np.log10(speeds[m]) for m in numbers}
        what = f"{panel(size)}: log10 of the speed, {{}} minibatches over {{}}"
        checks += [
            compare(what.format(middle, many), logs[middle], logs[many], above=paper_a.LITTLE),
            compare(what.format(few, middle), logs[few], logs[middle]),
        ]
    label = "steps per second, learning included"
    limits = (0.0, 1.1 * float(np.nan_to_num([line.y for line in lines]).max(initial=1.0)))
    how = "Each value is the median of a run; mean and 95 % interval over runs"
    return Picture({"": lines}, MINIBATCHES, label, log_x=True, y_limits=limits, shows=how), checks


def timed(d: Data, run: Cell) -> tuple[np.ndarray, np.ndarray]:
    """Returns the performance by seconds since the start, including compilation and searches. -> [T], [T, seeds]."""
    return plots.series([line | {"global_step": line["time"]} for line in d.lines(run)], d.p.performance)


def at(seconds: np.ndarray, curve: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Interpolates a curve at times [n]; earlier ones get its first value, which favours slow runs. -> [n, seeds]."""
    x, y = curve
    return np.stack([np.interp(seconds, x, seed) for seed in y.T], axis=1)


@figure(
    "16b",
    title="SFL on Kinetix, minibatches per epoch against the clock",
    claim="In the same time a middle number of minibatches gets farthest.",
    cells=minibatch_cells,
)
def show_clock(d: Data, cells: Cells) -> Shown:
    """Compares runs when the first one is over: later, a slow run would be ahead because it was given more time."""
    few, middle, many = parts(cells, 1)
    panels: dict[str, list[Line]] = {}
    checks = []
    for size in parts(cells, 0):
        runs = {m: of(cells, size, m) for m in (few, middle, many)}
        curves = {m: [timed(d, run) for run in runs[m]] for m in runs}
        panels[panel(size)] = [line for m in runs for line in common_clock(minibatches_label(m), curves[m])]
        end, then = np.full(1, np.nan), dict.fromkeys(runs, np.full(1, np.nan))
        if all(d.diverged(run) is not None for m in runs for run in runs[m]):  # all are finished
            end = np.array([min(x[-1] for m in runs for x, _ in curves[m])])
            then = {m: np.concatenate([at(end, curve)[0] for curve in curves[m]]) for m in runs}
        what = f"{panel(size)}: solve rate when the first run is over ({end[0]:.0f} s), {middle} minibatches less"
        checks += [
            compare(f"{what} {few}", then[middle], then[few], above=0.0),
            compare(f"{what} {many}", then[middle], then[many], above=0.0),
        ]
    return Picture(panels, "seconds since the start", axis(d.p), y_limits=RATES, shows=paper_a.UNSMOOTHED), checks


def common_clock(label: str, runs: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Line]:
    """Joins runs, each evaluated at its own times, into one line, from where all have begun to where one ends."""
    runs = [(x, y) for x, y in runs if len(x)]
    if not runs:
        return []
    seconds = np.linspace(max(x[0] for x, _ in runs), min(x[-1] for x, _ in runs), max(len(x) for x, _ in runs))
    return [Line(label, seconds, np.concatenate([at(seconds, curve) for curve in runs], axis=1))]


def plateau(d: Data, cells: Cells, size: str, what: str) -> Check:
    """Checks that it gains nothing in the second half; a fall also counts."""
    gain = over_seeds(d.gain, of(cells, size, what))
    return compare(f"{panel(size)}: gain in the second half, {what}", gain, 0.0, below=FLAT)


def ahead(d: Data, cells: Cells, size: str, first: str, second: str, gain: bool = False) -> Check:
    """Checks that the first ends higher than the second or, with `gain`, gains more in the second half."""
    a, b = (over_seeds(d.gain if gain else d.final, of(cells, size, what)) for what in (first, second))
    kind = "gain in the second half" if gain else "final solve rate"
    return compare(f"{panel(size)}: {kind}, {first} less {second}", a, b, above=0.0)


@figure(
    "17",
    title="SFL on Kinetix, learning rate",
    claim="A lower learning rate avoids the plateau, too, but takes too long.",
    cells=rate_cells,
)
def show_rates(d: Data, cells: Cells) -> Shown:
    """Counts a learning rate as too slow if it ends behind the largest N."""
    baseline, lower, largest = parts(cells, 1)
    checks = []
    for size in parts(cells, 0):
        checks += [
            plateau(d, cells, size, baseline),
            ahead(d, cells, size, lower, baseline, gain=True),
            ahead(d, cells, size, largest, lower),
        ]
    return learning_curves(d, cells, str), checks


@figure(
    "18",
    title="SFL on Kinetix, PPO-EWMA",
    claim="With a large COM the plateau is later and higher.",
    cells=com_cells,
)
def show_coms(d: Data, cells: Cells) -> Shown:
    """Checks the largest COM only."""
    baseline, *_, com, _ = parts(cells, 1)
    checks = []
    for size in parts(cells, 0):
        checks += [
            plateau(d, cells, size, baseline),
            ahead(d, cells, size, com, baseline, gain=True),
            ahead(d, cells, size, com, baseline),
        ]
    return learning_curves(d, cells, str), checks


@figure(
    "19",
    title="SFL on Kinetix, more levels to choose from",
    claim="Neither more candidates nor these and a larger buffer prevent the plateau; more environments do.",
    cells=filter_cells,
)
def show_filters(d: Data, cells: Cells) -> Shown:
    *alike, largest = parts(cells, 1)
    checks = []
    for size in parts(cells, 0):
        checks += [plateau(d, cells, size, what) for what in alike]
        checks += [ahead(d, cells, size, largest, what) for what in alike]
    return learning_curves(d, cells, str), checks
