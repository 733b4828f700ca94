"""Reads what the runs of a figure have logged, in the form that figures use."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from common.run import plots
from experiments.grid import Cell
from experiments.verdicts import Check


class Figure(NamedTuple):
    """A figure: what to run, and what to show and check."""

    title: str
    claim: str  # the paper's
    cells: Callable[[Any], dict[Any, Cell]]  # takes a preset
    show: Callable[["Data", dict[Any, Cell]], tuple[Any, list[Check]]]  # -> picture, checks
    suite: str | None = None  # the paper's environments, if not all presets have them
    lacking: bool = False  # the preset `paper` does not have them either
    repeats: str | None = None  # the figure whose claim it checks once more, on the same runs


def register(
    figures: dict[str, Figure],
    name: str,
    *,
    title: str,
    claim: str,
    cells: Callable[[Any], dict[Any, Cell]],
    suite: str | None = None,
    lacking: bool = False,
    repeats: str | None = None,
    **how: Any,
) -> Callable[[Callable], Callable]:
    """Returns a decorator that adds a figure to `figures`. It decorates the figure's `show`, which receives `how`."""

    def add(show: Callable) -> Callable:
        figures[name] = Figure(title, claim, cells, partial(show, **how), suite, lacking, repeats)
        return show

    return add


class Data:
    """What the runs have logged. A score is 0 for a random policy and 1 for the best one, with a value for each seed.
    The preset says which key is the performance, and how a run's performance is scaled."""

    def __init__(self, p: Any, folder: Path):
        self.p, self.folder = p, folder
        self._lines: dict[str, list[dict[str, Any]]] = {}

    def lines(self, run: Cell) -> list[dict[str, Any]]:
        if run.name not in self._lines:
            runs = [plots.read_lines(self.folder / part.name) for part in run.parts or (run,)]
            self._lines[run.name] = together(runs) if run.parts else runs[0]
        return self._lines[run.name]

    def part(self, run: Cell, key: str, begin: float, end: float) -> np.ndarray:
        """Returns values [T, seeds] between these fractions of the run, or [1, 1] NaN if it is not finished. If nothing
        was logged between them (evaluations are sparse), the last value before is used."""
        lines = self.lines(run)
        if not lines or lines[-1]["update"] != run.num_updates:
            return np.full((1, 1), np.nan)
        before = [line for line in lines if key in line and line["update"] / run.num_updates <= end]
        kept = [line for line in before if line["update"] / run.num_updates > begin]
        return plots.series(kept or before[-1:], key)[1]

    def curve(self, run: Cell, key: str, updates: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Returns x [T], y [T, seeds] for a plot: for training runs, a running mean over at most a thirtieth of the
        run. A run with a source begins where it left that."""
        x, y = plots.series(self.lines(run), key)
        if run.source is not None:
            x = x + run.source_update * self.p.steps_per_update
        if updates:
            last = self.lines(run)[-1:]
            x = x * (last[0]["update"] / last[0]["global_step"]) if last else x
        smooth = run.script != "stochastic_opt" and len(y) >= 64
        return x, plots.running_mean(y, len(y) // 32) if smooth else y

    def mean(self, run: Cell, begin: float, end: float, key: str | None = None) -> np.ndarray:
        """Returns the score over a part of the run, from the performance or another key on its scale. A seed that has
        diverged by then scores as a random policy."""
        values = self.part(run, key or performance(self.p, run), begin, end)
        low, high = self.p.scale(run)
        diverged = self.diverged(run, end)
        if diverged is None:
            return np.full(1, np.nan)
        means = plots.mean_and_ci(values.T)[0] if len(values) else np.nan
        return np.where(diverged, 0.0, (means - low) / (high - low))

    def diverged(self, run: Cell, end: float = 1.0) -> np.ndarray | None:
        """Returns which seeds' updates are no longer finite at this fraction of the run; None if it is not finished."""
        lines = self.lines(run)
        if not lines or lines[-1]["update"] != run.num_updates:
            return None
        key = "outer/update_norm"  # logged by training; the last line may be an evaluation
        kept = [line for line in lines if key in line and line["update"] / run.num_updates <= end] or lines[:1]
        return np.array([value is None for value in np.ravel(kept[-1].get(key, 0.0))])

    def final(self, run: Cell, key: str | None = None) -> np.ndarray:
        return self.mean(run, 0.9, 1.0, key)

    def middle(self, run: Cell, key: str | None = None) -> np.ndarray:
        return self.mean(run, 0.4, 0.5, key)

    def gain(self, run: Cell, key: str | None = None) -> np.ndarray:
        """Returns the score gained in the second half of the run."""
        return self.final(run, key) - self.middle(run, key)

    def log_mean(self, run: Cell, key: str, begin: float = 0.9, end: float = 1.0) -> np.ndarray:
        """Returns log10 of the geometric mean."""
        return plots.mean_and_ci(np.log10(self.part(run, key, begin, end)).T)[0]


def together(runs: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Makes of the lines of runs of one seed each those of one run of several seeds: a list of values for each key. A
    line has to be in all of them."""
    by_update = [{line["update"]: line for line in lines} for lines in runs]
    joined = []
    for update in sorted(set.intersection(*map(set, by_update))):
        lines = [found[update] for found in by_update]
        places = {key: lines[0][key] for key in ("update", "global_step")}
        joined.append(places | {key: [line.get(key) for line in lines] for key in lines[0].keys() - places.keys()})
    return joined


def performance(p: Any, run: Cell) -> str:
    return "charts/negative_distance" if run.script == "stochastic_opt" else p.performance


def axis(p: Any) -> str:
    return plots.AXIS_LABELS[p.performance]
