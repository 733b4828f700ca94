"""What the runs of a figure have logged, as the figures use it."""

from pathlib import Path
from typing import Any

import numpy as np

from common import plots
from experiments.grid import Cell
from experiments.presets import Preset


class Data:
    """What the runs have logged. Scores: 0 for a random policy, 1 for the best one, a value for each seed."""

    def __init__(self, p: Preset, folder: Path):
        self.p, self.folder = p, folder
        self._lines: dict[str, list[dict[str, Any]]] = {}

    def lines(self, run: Cell) -> list[dict[str, Any]]:
        if run.name not in self._lines:
            self._lines[run.name] = plots.read_lines(self.folder / run.name)
        return self._lines[run.name]

    def part(self, run: Cell, key: str, begin: float, end: float) -> np.ndarray:
        """Values [T, seeds] of the part of the run between these fractions of it; [1, 1] NaN where nothing is there."""
        lines = self.lines(run)
        kept = [line for line in lines if begin < line["update"] / run.num_updates <= end]
        _, values = plots.series(kept or lines[-1:], key)
        return values if len(values) and lines[-1]["update"] == run.num_updates else np.full((1, 1), np.nan)

    def curve(self, run: Cell, key: str, updates: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """x [T], y [T, seeds] for a plot: of training runs a running mean over a thirtieth of the run. A run that was
        continued begins where its source was left."""
        x, y = plots.series(self.lines(run), key)
        if run.source is not None:
            x = x + run.source_update * self.p.steps_per_update
        if updates:
            last = self.lines(run)[-1:]
            x = x * (last[0]["update"] / last[0]["global_step"]) if last else x
        smooth = run.script != "stochastic_opt" and len(y) >= 64
        return x, plots.running_mean(y, len(y) // 32) if smooth else y

    def mean(self, run: Cell, begin: float, end: float) -> np.ndarray:
        """Score over a part of the run. A seed that diverged is as good as a random policy."""
        key = performance(self.p, run)
        values = self.part(run, key, begin, end)
        lines = self.lines(run)
        if np.isnan(values).all():  # a finished run without a value: every seed has diverged
            finished = bool(lines) and lines[-1]["update"] == run.num_updates
            return np.zeros(dict(run.flags)["num_seeds"]) if finished else values[0]
        low, high = (0.0, 1.0) if run.script == "stochastic_opt" else (self.p.low, self.p.high)
        known = np.where(np.isnan(values), low, values)
        return (known.mean(0) - low) / (high - low)

    def final(self, run: Cell) -> np.ndarray:
        return self.mean(run, 0.9, 1.0)

    def middle(self, run: Cell) -> np.ndarray:
        return self.mean(run, 0.4, 0.5)

    def gain(self, run: Cell) -> np.ndarray:
        """In the second half of the run."""
        return self.final(run) - self.middle(run)

    def log_mean(self, run: Cell, key: str, begin: float = 0.9, end: float = 1.0) -> np.ndarray:
        """log10 of the geometric mean."""
        return np.log10(self.part(run, key, begin, end)).mean(0)


def performance(p: Preset, run: Cell) -> str:
    return "charts/negative_distance" if run.script == "stochastic_opt" else p.performance


def axis(p: Preset) -> str:
    return plots.AXIS_LABELS[p.performance]
