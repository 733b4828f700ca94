"""Effects: differences between arms with their 95 % intervals, and where a claim says that they lie."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

Outcome = Literal["holds", "does not hold", "open", "not applicable", "reported"]
FEWEST = 3  # seeds: two would often agree by chance, and an interval without width would decide
REPETITIONS = 2000  # of the bootstrap
WELCH = "difference of means, Welch's 95 % interval"
BOOTSTRAP = "95 % interval of a bootstrap that draws seeds anew within each game"


class Effect(NamedTuple):
    """An estimate with its 95 % interval, and where the claim says that it lies."""

    what: str
    estimate: float
    low: float
    high: float
    above: float | None = None  # the whole interval has to lie above this ...
    below: float | None = None  # ... or below this; with neither, it is only reported
    samples: tuple[Any, ...] = ()  # what is compared: arrays [seeds, ...] or a number
    how: str = ""  # how estimate and interval come from the samples
    premise: bool = False  # it is no part of the claim, but the claim supposes it

    @property
    def outcome(self) -> Outcome:
        """What the interval says: decided only if all of it is on one side."""
        if self.above is None and self.below is None:
            return "reported"
        if not np.isfinite([self.low, self.high]).all():
            return "open"
        if self.above is not None:
            return "holds" if self.low > self.above else "does not hold" if self.high < self.above else "open"
        return "holds" if self.high < self.below else "does not hold" if self.low > self.below else "open"

    def __str__(self) -> str:
        interval = f"{self.low:.3g} to {self.high:.3g}" if np.isfinite(self.low) else "no interval"
        value = f"{self.what}: {self.estimate:.3g} ({interval})"
        if self.outcome == "reported":
            return value
        wanted = f"> {self.above:g}" if self.above is not None else f"< {self.below:g}"
        return f"{value}, {'supposed' if self.premise else 'claimed'} {wanted}: {self.outcome}"


def verdict(effects: Sequence[Effect]) -> Outcome:
    """Combines effects: the claim holds if all of them do, and does not hold if one does not. If a premise does not
    hold, the claim is not applicable; while one is open, so is the claim."""
    premises = {effect.outcome for effect in effects if effect.premise}
    outcomes = {effect.outcome for effect in effects if not effect.premise} - {"reported"}
    if "does not hold" in premises:
        return "not applicable"
    if "open" in premises or not outcomes:
        return "open"
    return "does not hold" if "does not hold" in outcomes else "open" if "open" in outcomes else "holds"


def difference(what: str, a: np.ndarray, b: np.ndarray | float = 0.0, level: float = 0.95, **wanted: Any) -> Effect:
    """The mean of a minus that of b, samples over seeds, with Welch's interval; b may be a constant."""
    from scipy import stats

    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    estimate = float(a.mean() - b.mean())
    low = high = np.nan
    if min(x.size for x in (a, b) if x.ndim) >= FEWEST:
        if max(a.std(), b.std()) == 0:
            low = high = estimate
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # nearly equal values
                test = stats.ttest_ind(a, b, equal_var=False) if b.ndim else stats.ttest_1samp(a - b, 0.0)
            low, high = map(float, test.confidence_interval(level))
    return Effect(what, estimate, low, high, samples=(a, b), how=WELCH, **wanted)


def bootstrap(
    statistic: Callable[..., np.ndarray], *scores: np.ndarray, level: float = 0.95, repetitions: int = REPETITIONS
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Computes a statistic of one or more score matrices [seeds, games, ...] and its interval, by resampling seeds
    within each game (Agarwal et al. 2021). -> estimate, low, high, of the statistic's shape. Not finite if a score is
    missing."""
    estimate, rng = np.atleast_1d(statistic(*scores)), np.random.default_rng(0)
    if not all(np.isfinite(x).all() for x in scores) or min(len(x) for x in scores) < FEWEST:
        return estimate, *np.full((2, *estimate.shape), np.nan)
    draw = lambda x: x[rng.integers(len(x), size=x.shape[:2]), np.arange(x.shape[1])]  # noqa: E731
    found = [np.atleast_1d(statistic(*map(draw, scores))) for _ in range(repetitions)]
    return estimate, *np.quantile(found, [(1 - level) / 2, (1 + level) / 2], axis=0)


def iqm(scores: np.ndarray, axis: int | None = None) -> np.ndarray:
    """The interquartile mean: without the lowest and the highest quarter. As SciPy's trim_mean, but ten times as fast:
    a bootstrap takes thousands."""
    ordered = np.moveaxis(np.sort(scores, axis=axis), -1 if axis is None else axis, 0)
    cut = len(ordered) // 4
    return ordered[cut : len(ordered) - cut].mean(0)


def contrast(what: str, how: str, statistic: Callable[..., float], *scores: np.ndarray, **wanted: Any) -> Effect:
    """A statistic of several score matrices [seeds, games]; `how` names it."""
    found = (float(x[0]) for x in bootstrap(statistic, *scores))
    return Effect(what, *found, samples=scores, how=f"{how}, {BOOTSTRAP}", **wanted)


def over_games(what: str, a: np.ndarray, b: np.ndarray | None = None, statistic: Any = iqm, **wanted: Any) -> Effect:
    """The interquartile mean of a minus that of b, matrices [seeds, games]; without b, that of a."""
    how = "difference of interquartile means" if statistic is iqm else "difference of means"
    less = (lambda x: statistic(x)) if b is None else (lambda x, y: statistic(x) - statistic(y))
    return contrast(what, f"{how} over seeds and games", less, *([a] if b is None else [a, b]), **wanted)


mean_over_games = partial(over_games, statistic=np.mean)  # for values without a common scale
