"""Decides whether claims hold, by comparing 95 % intervals over seeds with thresholds."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

Outcome = Literal["holds", "does not hold", "not applicable here", "not enough data", "reported"]
OUTCOMES = ("holds", "does not hold", "not applicable here", "not enough data")  # those of a claim
WELCH = "difference of means, Welch's 95 % interval"


class Check(NamedTuple):
    """A statement to test on the data: an estimate with its 95 % interval, and where that has to lie."""

    what: str
    estimate: float
    low: float
    high: float
    above: float | None = None  # the interval has to lie above this ...
    below: float | None = None  # ... or below this; with neither, it is only reported
    samples: tuple[Any, ...] = ()  # what is compared: arrays [seeds, ...] or a number
    how: str = ""  # how estimate and interval come from the samples
    premise: bool = False  # it is no part of the claim, but the claim supposes it
    some: int | None = None  # of all checks that have it, so many have to hold, and the others not to be refuted

    @property
    def outcome(self) -> Outcome:
        """Tells whether the check holds; decided only if the whole interval is on one side."""
        if self.above is None and self.below is None:
            return "reported"
        if not np.isfinite([self.low, self.high]).all():
            return "not enough data"
        if self.above is not None:
            return (
                "holds" if self.low > self.above else "does not hold" if self.high < self.above else "not enough data"
            )
        return "holds" if self.high < self.below else "does not hold" if self.low > self.below else "not enough data"

    def stored(self) -> dict[str, Any]:
        """Everything about the check, for a result's file."""
        return self._asdict() | {"outcome": self.outcome}

    def __str__(self) -> str:
        interval = f"{self.low:.3g} to {self.high:.3g}" if np.isfinite(self.low) else "no interval"
        value = f"{self.estimate:.3g} ({interval})"
        if self.outcome == "reported":
            return f"{self.what}: {value}"
        wanted = f"> {self.above:g}" if self.above is not None else f"< {self.below:g}"
        asked = "supposed" if self.premise else "wanted" if self.some is None else f"wanted of {self.some}"
        return f"{self.what}: {value}, {asked} {wanted}: {self.outcome}"


def difference(
    what: str, a: np.ndarray, b: np.ndarray | float, above: float | None = None, below: float | None = None
) -> Check:
    """Checks the mean of a minus that of b, samples over seeds, by Welch's interval; b may be a constant."""
    from scipy.special import stdtrit

    a, b = (np.asarray(x, np.float64) for x in (a, b))
    parts = [(x.var(ddof=1) / x.size, x.size - 1) for x in (a, b) if x.ndim and x.size > 1]
    estimate = float(a.mean() - b.mean())
    if len(parts) < sum(x.ndim for x in (a, b)):  # a single seed has no spread
        return Check(what, estimate, np.nan, np.nan, above, below, (a, b), WELCH)
    variance = sum(v for v, _ in parts)
    freedom = variance**2 / sum(v**2 / n for v, n in parts) if variance > 0 else 1.0
    width = float(stdtrit(freedom, 0.975) * np.sqrt(variance))
    return Check(what, estimate, estimate - width, estimate + width, above, below, (a, b), WELCH)


def within(what: str, a: np.ndarray, b: np.ndarray | float, margin: float) -> list[Check]:
    """Checks that the means are equal up to `margin`, by two checks, one for each side."""
    return [difference(what, a, b, above=-margin), difference(what, a, b, below=margin)]


def verdict(checks: Sequence[Check]) -> Outcome:
    """Combines checks: the claim holds if all of them do, and does not hold if one does not. If a premise does not
    hold, the claim is not applicable; while one is uncertain, nothing is known."""
    premises = [check.outcome for check in checks if check.premise]
    if "does not hold" in premises:
        return "not applicable here"
    if premises != ["holds"] * len(premises):
        return "not enough data"
    outcomes = [check.outcome for check in checks if check.outcome != "reported" and check.some is None]
    several = [check for check in checks if check.some is not None]
    return together([*outcomes, enough_of(several)] if several else outcomes)


def together(outcomes: Sequence[Outcome]) -> Outcome:
    """Combines outcomes of what has to hold all at once."""
    for decisive in ("not applicable here", "does not hold"):
        if decisive in outcomes:
            return decisive
    return "holds" if outcomes and set(outcomes) == {"holds"} else "not enough data"


def enough_of(checks: Sequence[Check]) -> Outcome:
    """Combines checks of which `some` have to hold. One that is refuted counts against them all."""
    outcomes = [check.outcome for check in checks]
    if "does not hold" in outcomes:
        return "does not hold"
    return "holds" if outcomes.count("holds") >= checks[0].some else "not enough data"
