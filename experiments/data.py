"""Figures, what their runs have logged, and the effects between their arms."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from common.run import plots
from experiments import effects
from experiments.effects import Effect
from experiments.grid import Cell
from experiments.pictures import Line, Picture

Runs = Cell | tuple[Cell, ...]  # an arm: one run of some seeds, or one for each game
Cells = dict[Any, Runs]
Shown = tuple[Picture, list[Effect]]


class Figure(NamedTuple):
    """A figure: what varies, what to run and to show, and the paper's claim."""

    title: str
    presets: dict[str, Any]  # by name: the tables that `cells` takes
    cells: Callable[[Any], Cells]
    show: Callable[["Data", Cells], Shown]
    claim: str


class Data:
    """What the runs have logged. A score is 0 for a random policy and 1 for a good one, with a value for each seed. The
    preset says which key is the performance, and which performances of a run are scores 0 and 1."""

    def __init__(self, p: Any, folder: Path):
        self.p, self.folder = p, folder
        self._lines: dict[str, list[dict[str, Any]]] = {}

    def lines(self, run: Cell) -> list[dict[str, Any]]:
        if run.name not in self._lines:
            runs = [plots.read_lines(self.folder / part.name) for part in run.parts or (run,)]
            self._lines[run.name] = together(runs) if run.parts else runs[0]
        return self._lines[run.name]

    def finished(self, run: Cell) -> bool:
        lines = self.lines(run)
        return bool(lines) and lines[-1]["update"] == run.num_updates

    def part(self, run: Cell, key: str, begin: float, end: float) -> np.ndarray:
        """Values [T, seeds] between these fractions of the run, or [1, 1] NaN if it is not finished. If nothing was
        logged between them (evaluations are sparse), the last value before is used."""
        if not self.finished(run):
            return np.full((1, 1), np.nan)
        before = [line for line in self.lines(run) if key in line and line["update"] / run.num_updates <= end]
        kept = [line for line in before if line["update"] / run.num_updates > begin]
        return plots.series(kept or before[-1:], key)[1]

    def curve(self, run: Cell, key: str | None = None, over: str = "global_step") -> tuple[np.ndarray, np.ndarray]:
        """x [T], y [T, seeds] for a plot, over steps, updates or time (the mean over seeds): for training runs, a
        running mean over at most a thirtieth of the run. A run with a source begins where it left that."""
        lines = [line | {"global_step": np.mean(line[over])} for line in self.lines(run)]
        x, y = plots.series(lines, key or self.p.performance)
        if run.source is not None:
            flags = dict(run.source.flags)
            x = x + run.source_update * flags["num_envs"] * flags["num_steps"]
        smooth = run.script != "stochastic_opt" and len(y) >= 64
        return x, plots.running_mean(y, len(y) // 32) if smooth else y

    def mean(self, run: Cell, begin: float, end: float, key: str | None = None) -> np.ndarray:
        """The score over a part of the run -> [seeds]. A seed that has diverged by then scores as a random policy."""
        if not self.finished(run):
            return np.full(1, np.nan)
        low, high = self.p.scale(run)
        means = plots.mean_and_ci(self.part(run, key or self.p.performance, begin, end).T)[0]
        return np.where(self.diverged(run, end), 0.0, (means - low) / (high - low))

    def diverged(self, run: Cell, end: float = 1.0) -> np.ndarray:
        """Which seeds' updates are no longer finite at this fraction of the run. -> bool [seeds]"""
        key, lines = "outer/update_norm", self.lines(run)  # logged by training; the last line may be an evaluation
        kept = [line for line in lines if key in line and line["update"] / run.num_updates <= end] or lines[:1]
        return np.array([value is None for value in np.ravel(kept[-1].get(key, 0.0))]) if kept else np.zeros(1, bool)

    def final(self, run: Cell, key: str | None = None) -> np.ndarray:
        return self.mean(run, 0.9, 1.0, key)

    def middle(self, run: Cell, key: str | None = None) -> np.ndarray:
        return self.mean(run, 0.4, 0.5, key)

    def gain(self, run: Cell, key: str | None = None) -> np.ndarray:
        return self.final(run, key) - self.middle(run, key)

    def log_mean(self, run: Cell, key: str, begin: float = 0.9, end: float = 1.0) -> np.ndarray:
        """log10 of the geometric mean -> [seeds]"""
        return plots.mean_and_ci(np.log10(self.part(run, key, begin, end)).T)[0]


FINAL, MIDDLE, GAIN = "final score", "score in the middle of the run", "gain in the second half"
STATISTICS = {FINAL: Data.final, MIDDLE: Data.middle, GAIN: Data.gain}


class Arms:
    """The arms of a figure, and the effects between them, which are named after what the arms are called."""

    compare = staticmethod(effects.difference)

    def __init__(self, d: Data, cells: Cells, label: Callable[[Any], str]):
        self.d, self.cells, self.label = d, cells, label
        self.effects: list[Effect] = []

    def samples(self, statistic: str | Callable, key: Any) -> np.ndarray:
        """A statistic of an arm: [seeds], of several games [seeds, games]; NaN where a run is missing."""
        of = STATISTICS[statistic] if isinstance(statistic, str) else statistic
        runs = self.cells[key]
        return of(self.d, runs) if isinstance(runs, Cell) else matrix([of(self.d, run) for run in runs])

    def effect(self, statistic: str | Callable, a: Any, b: Any = None, name: str = "", **wanted: Any) -> None:
        """Adds a statistic of arm a less that of arm b, if there is one. A function as a statistic needs a name."""
        what = f"{name or statistic}, {self.label(a)}" + (f" less {self.label(b)}" if b is not None else "")
        samples = [self.samples(statistic, key) for key in (a, b) if key is not None]
        self.add(what, *samples, **wanted)

    def add(self, what: str, *samples: Any, compare: Any = None, **wanted: Any) -> None:
        """Adds an effect between samples."""
        self.effects.append((compare or self.compare)(what, *samples, **wanted))

    def same(self, statistic: str, a: Any, b: Any, margin: float) -> None:
        """Adds that two arms are equal up to `margin`, an effect for each side."""
        self.effect(statistic, a, b, above=-margin)
        self.effect(statistic, a, b, below=margin)

    def best(self, keys: Sequence[Any]) -> Any:
        """The arm with the highest final score."""
        return max(keys, key=lambda key: np.nan_to_num(self.samples(FINAL, key).mean(), nan=-np.inf))

    def not_below(self, best: Any, key: Any, margin: float) -> None:
        """Adds that `key` is not clearly below `best`, unless it is the best one itself."""
        if key != best:
            self.effect(FINAL, best, key, below=margin)

    def curves(self, key: str | None = None, keys: Sequence[Any] | None = None, label: Any = None, **how: Any) -> list:
        """A line for each arm that has logged something."""
        found = [(k, self.d.curve(self.cells[k], key, **how)) for k in (self.cells if keys is None else keys)]
        return [Line((label or self.label)(k), x, y) for k, (x, y) in found if len(x)]

    def panels(self, title: Callable[[Any], str], place: int = 0, **how: Any) -> dict[str, list[Line]]:
        """A panel for each value at this place of the keys."""
        of = {value: [k for k in self.cells if k[place] == value] for value in parts(self.cells, place)}
        return {title(value): self.curves(keys=keys, **how) for value, keys in of.items()}


def called(*flags: str) -> Callable[[Any], str]:
    """Names an arm by its key, which is the value of one flag or those of several."""

    def label(key: Any) -> str:
        values = key if isinstance(key, tuple) else (key,)
        named = zip(flags, values, strict=False)  # further values are not told
        return " ".join(f"{flag} {value:g}" if isinstance(value, float) else f"{flag} {value}" for flag, value in named)

    return label


def matrix(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Joins samples of games -> [seeds, games]; a column of fewer seeds than others is NaN."""
    seeds = max(map(len, columns))
    return np.stack([c if len(c) == seeds else np.full(seeds, np.nan) for c in columns], axis=1)


def parts(cells: Cells, place: int) -> list[Any]:
    """The distinct values at this place of the keys."""
    return list(dict.fromkeys(key[place] for key in cells))


def each(cells: Cells) -> list[Cell]:
    """All runs, with their parts as one."""
    return [run for runs in cells.values() for run in ((runs,) if isinstance(runs, Cell) else runs)]


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
