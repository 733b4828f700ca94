"""Reads a run's curves and says whether it climbs, stands still, fell or diverged, and the likely cause.

Everything is judged seed by seed. Thresholds are module constants; they were chosen on seeds 100 to 109 of
clinic/cases.py, and judged on its seeds 0 to 9.
"""

import csv
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from common.run import plots
from common.run.arguments import UsageError

BLOCKS = 20  # a curve is judged by the means of so many equal parts
STILL = 0.1  # a change of less than this share of all that the run ever gained is none
SURE_CLIMB = 0.25  # a rise over the last half, with its interval, of more than this share of it is beyond doubt
FELL = 0.3  # a loss of more than this share of it is a fall
MIN_UPDATES, MIN_LINES = 30, 15

# What other trainers call the same thing, by the name that it has here. SB3 logs the negative entropy.
STEP, RETURN = "global_step", "charts/episodic_return"
FOREIGN = {
    "CleanRL": {RETURN: "charts/episodic_return", STEP: "global_step", "outer/kl": "losses/approx_kl"},
    "Stable-Baselines3": {
        RETURN: "rollout/ep_rew_mean",
        STEP: "time/total_timesteps",
        "outer/kl": "train/approx_kl",
        "-losses/entropy": "train/entropy_loss",
        "losses/explained_variance": "train/explained_variance",
    },
    "rsl_rl": {RETURN: "Train/mean_reward", STEP: "Step", "losses/entropy": "Loss/entropy"},
}


FINITE = ("losses/policy_loss", "losses/td_loss", "outer/update_norm")  # None in the last line: not finite
READ = (  # keys; all else in a log is not looked at
    *(STEP, RETURN, "outer/own_gain", "outer/fresh_gain", "outer/kl", "losses/entropy", "losses/explained_variance"),
    *("plasticity/dormant_neurons", *FINITE),
)


class Course(NamedTuple):
    """The curves of one seed. values: key -> [T], NaN where a line lacks it."""

    steps: np.ndarray
    values: dict[str, np.ndarray]
    num_updates: float

    def __getitem__(self, key: str) -> np.ndarray:
        return self.values.get(key, np.full(len(self.steps), np.nan))


class Trend(NamedTuple):
    """How the return of a seed went. since: index of the line from which on it stands still (0 if it does not)."""

    state: str  # climbing, still, fell, diverged, few updates, unclear
    since: int
    level: float  # mean return from there on, or of the last quarter
    change: float  # over that time, by a straight line ...
    error: float  # ... and half of its 95 % interval
    gained: float  # what the run has gained in all, from its first block (if it came back, its lowest) to its best
    best: float


def of_run(folder: Path) -> list[Course]:
    """The courses of a run's seeds, from its metrics.jsonl."""
    # Evaluations, and searches for levels, have lines of their own.
    apart = lambda line: any(key.startswith(("eval/", "search/")) for key in line)  # noqa: E731
    lines = [line for line in plots.read_lines(folder) if not apart(line)]
    if not lines:
        raise UsageError(f"{folder}: no line of training in its metrics.jsonl")
    seeds = max(len(value) if isinstance(value, list) else 1 for line in lines for value in line.values())
    keys = dict.fromkeys(key for line in lines for key in line)
    table = {key: np.full((len(lines), seeds), np.nan) for key in keys}
    for i, line in enumerate(lines):
        for key, value in line.items():
            try:
                value = np.array(value, np.float64)  # None becomes NaN
            except ValueError:  # a ragged list, as in a damaged line
                continue
            if value.size in (1, seeds) and value.ndim < 2:
                table[key][i] = value
    if RETURN not in table:
        found = next((key for key in plots.PERFORMANCE.values() if key in table), None)
        if found is None:
            raise UsageError(f"{folder}: no line of its metrics.jsonl has {RETURN}")
        table[RETURN] = table[found]
    return [
        Course(table[STEP][:, s], {k: v[:, s] for k, v in table.items()}, lines[-1]["update"]) for s in range(seeds)
    ]


def of_csv(file: Path, columns: dict[str, str]) -> list[Course]:
    """The course in another trainer's CSV. columns: key here -> name there; without it, known names are tried."""
    for key, name in columns.items():
        if key not in READ:
            raise UsageError(f"--columns {key}={name}: {key} is not read; there are {', '.join(READ)}")
    try:
        with open(file, newline="", encoding="utf-8-sig", errors="replace") as text:
            rows = list(csv.DictReader(text, restkey="more columns than titles"))
    except (OSError, csv.Error) as error:
        raise UsageError(f"{file}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    there = [name for name in rows[0] if name] if rows else []
    known = next((names for names in FOREIGN.values() if {names[RETURN], names[STEP]} <= set(there)), {})
    names = {name.lstrip("-"): name for name in known}
    chosen = {name: known[spelled] for name, spelled in names.items()} | columns
    for name in (STEP, RETURN):
        if chosen.get(name) not in there:
            said = f"no column {chosen[name]}" if name in chosen else f"which column is {name}?"
            hint = f"it has {', '.join(there[:12])}{', ...' * (len(there) > 12)}" if there else "it has no rows"
            raise UsageError(f"{file}: {said} --columns {name}=NAME says so; {hint}")

    lost = [f"{key}={name}" for key, name in columns.items() if name not in there]
    if lost:
        raise UsageError(f"--columns {lost[0]}: {file} has {', '.join(there[:12])}{', ...' * (len(there) > 12)}")

    def number(text: Any, key: str = "") -> float:
        try:
            value = float(text)
        except (TypeError, ValueError):
            return np.nan
        # Infinity tells a loss that is no longer finite from an empty cell, which is NaN.
        return value if np.isfinite(value) else np.inf if key in FINITE else np.nan

    values = {k: np.array([number(row.get(name), k) for row in rows]) for k, name in chosen.items() if name in there}
    for name, spelled in names.items():
        if spelled.startswith("-") and name in values and name not in columns:
            values[name] = -values[name]
    values |= {name: np.array([number(row.get(name), name) for row in rows]) for name in there if name not in values}
    values = {key: value for key, value in values.items() if key not in FINITE or not np.isnan(value).all()}
    kept = np.isfinite(values[RETURN]) & np.isfinite(values[STEP])
    if not kept.any():
        raise UsageError(f"{file}: no row with numbers in both {chosen[STEP]} and {chosen[RETURN]}")
    # Other trainers write losses and returns in lines of their own: each return gets the values before it.
    order = np.argsort(values[STEP], kind="stable")
    values = {key: value[order] for key, value in values.items()}
    values = {key: value if key in (STEP, RETURN) else carried(value) for key, value in values.items()}
    values = {key: value[kept[order]] for key, value in values.items()}
    return [Course(values[STEP], values, np.inf)]


def carried(values: np.ndarray) -> np.ndarray:
    """The last known value up to each place; before the first, the first."""
    known = np.flatnonzero(~np.isnan(values))
    if not len(known):
        return values
    return values[known[np.maximum(np.searchsorted(known, np.arange(len(values)), side="right") - 1, 0)]]


def blocks_of(values: np.ndarray, number: int = BLOCKS) -> np.ndarray:
    """Means of equal parts, ignoring NaN. [T] -> [number]."""
    parts = np.array_split(values, number)
    return np.array([np.nanmean(part) if np.isfinite(part).any() else np.nan for part in parts])


def line_through(values: np.ndarray) -> tuple[float, float]:
    """The change of a straight line through the values from its first to its last, and half of its 95 % interval."""
    from scipy.special import stdtrit

    n = len(values)
    x = np.arange(n) - (n - 1) / 2
    slope = x @ values / (x @ x)
    residual = values - values.mean() - slope * x
    error = np.sqrt(residual @ residual / (n - 2) / (x @ x))
    return slope * (n - 1), float(stdtrit(n - 2, 0.975)) * error * (n - 1)


def trend(course: Course) -> Trend:
    """How the return went, and since when it stands still if it does."""
    known = np.isfinite(course[RETURN])
    returns = course[RETURN][known]
    nothing = Trend("few updates", 0, float(returns.mean()) if len(returns) else np.nan, *[np.nan] * 4)
    if any(not np.isfinite(course[key][-1]) for key in FINITE if key in course.values):
        return nothing._replace(state="diverged")
    if course.num_updates < MIN_UPDATES or len(returns) < MIN_LINES:
        return nothing
    blocks = blocks_of(returns, min(BLOCKS, len(returns) // 3))
    n = len(blocks)
    rolling = np.convolve(blocks, np.ones(3) / 3, mode="valid")
    # Second differences, so that a climb is no noise; its median, so that a jump is none either.
    noise = np.median(np.abs(np.diff(blocks, 2))) / 0.6745 / np.sqrt(6)
    gained = rolling.max() - blocks[0]
    scale = max(gained, 4 * noise, 0.02 * np.abs(blocks).max(), 1e-9)
    # A run that began where it stands has gained nothing that a change could be compared with.
    wide = max(scale, 0.5 * np.abs(blocks[-n // 4 :].mean()), np.inf if gained < 5 * noise else 0)
    change, error = line_through(blocks[-max(5, n // 2) :])
    result = Trend("unclear", 0, float(blocks[-n // 4 :].mean()), change, error, gained, rolling.max())
    lost = rolling.max() - rolling[-1]
    if lost > FELL * scale and lost > 4 * noise and gained > 4 * noise:
        return result._replace(state="fell", change=-lost, error=2 * noise)
    if gained < 5 * noise:  # it never got above its start, but may have fallen from there, or fallen and come back
        change, error = line_through(blocks)
        if change + error < -scale:
            return result._replace(state="fell", change=-lost, error=2 * noise)
        if result.change - result.error > scale:
            return result._replace(state="climbing", gained=float(np.ptp(rolling)))
    for size in range(n, max(5, n // 4) - 1, -1):
        change, error = line_through(blocks[-size:])
        none = change - error <= 0 or change + error < STILL * scale
        if none and change + error < STILL * wide and change - error > -2 * STILL * wide:
            at = len(returns) - sum(len(part) for part in np.array_split(returns, n)[-size:])
            level = float(blocks[-size:].mean())
            return result._replace(
                state="still", since=int(np.flatnonzero(known)[at]), level=level, change=change, error=error
            )
    return result._replace(state="climbing") if result.change - result.error > 0 else result


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Mean, and its standard error from the means of up to ten blocks, whose lines need not be independent."""
    values = values[np.isfinite(values)]
    if len(values) < 2:
        return (float(values.mean()) if len(values) else np.nan), np.nan
    parts = blocks_of(values, min(10, len(values)))
    return float(values.mean()), float(parts.std(ddof=1) / np.sqrt(len(parts)))


class Numbers(NamedTuple):
    """What decides on the cause: means from `Trend.since` on, or over the last half of the run."""

    own: float  # gain of an update on its own transitions
    fresh: float  # ... and on fresh ones,
    fresh_error: float  # with twice its standard error
    kl: float
    entropy: float  # of the last fifth of the run
    first_entropy: float  # of the first lines
    explained_variance: float
    best_explained_variance: float  # of the run's blocks
    dormant: float
    spread: float  # of the returns: standard deviation over lines, of the whole run


def numbers(course: Course, t: Trend) -> Numbers:
    half = len(course.steps) // 2
    start = t.since if t.state == "still" else half
    late = lambda key: mean_and_error(course[key][start:])[0]  # noqa: E731
    fresh, error = mean_and_error(course["outer/fresh_gain"][start:])
    first = course["losses/entropy"][np.isfinite(course["losses/entropy"])][:3]
    returns = course[RETURN][np.isfinite(course[RETURN])]
    explained = course["losses/explained_variance"]
    explained = explained[np.isfinite(explained)]
    return Numbers(
        late("outer/own_gain"),
        fresh,
        2 * error,
        late("outer/kl"),
        mean_and_error(course["losses/entropy"][-max(1, len(course.steps) // 5) :])[0],
        float(first.mean()) if len(first) else np.nan,
        late("losses/explained_variance"),
        float(np.nanmax(blocks_of(explained, min(BLOCKS, len(explained))))) if len(explained) else np.nan,
        late("plasticity/dormant_neurons"),
        float(returns.std()) if len(returns) else np.nan,
    )


# Thresholds of the causes.
NO_SPREAD = 1e-6  # returns that differ by less than this share of their size never differed
DORMANT = 0.5  # share of dormant units
TINY_KL, LOST_ENTROPY = 1e-5, 0.05  # a policy that has hardly moved
SETTLED_GAIN = 0.004  # an update that does nothing even on its own data
TAKEN_BACK, NEXT_TO_NOTHING = -0.1, 0.1  # fresh / own
REPLACED = 1.0  # KL of an update after which little is left of the policy
NO_CRITIC = 0.2  # explained variance, never more: where a task is finished it may be anything


def diagnose(course: Course) -> tuple[str, Trend, Numbers]:
    """The first cause that fits, or the state if that is no standstill, or "unknown". -> label, trend, numbers."""
    t = trend(course)
    n = numbers(course, t)
    if t.state in ("diverged", "few updates"):
        return t.state, t, n
    # Where fresh transitions would take back much of an update, a wild curve that happens to rise is no climb. A sure
    # one is: PPO-EWMA with a large centre of mass pulls each update back to its proximal policy, and climbs.
    takes_back = n.fresh + n.fresh_error / 2 < 0 and n.fresh < TAKEN_BACK * n.own
    replaces = n.kl > REPLACED and n.fresh - n.fresh_error <= 0
    thrashes = n.own > SETTLED_GAIN and (takes_back or replaces)
    if t.state == "climbing" and (not thrashes or t.change - t.error > SURE_CLIMB * t.gained):
        return "climbing", t, n
    label = t.state if t.state in ("fell", "unclear") else "unknown"
    # The most certain first.
    if n.spread <= NO_SPREAD * abs(t.level):
        label = "exploration"
    elif n.dormant > DORMANT:
        label = "network"
    elif n.kl < TINY_KL and n.first_entropy - n.entropy < LOST_ENTROPY * abs(n.first_entropy):  # it may be negative
        label = "slow"
    elif n.best_explained_variance < NO_CRITIC:
        label = "critic"
    elif thrashes:
        label = "step"
    elif n.own < SETTLED_GAIN:
        label = "settled"
    elif t.state != "fell" and (n.fresh - n.fresh_error <= 0 or n.fresh < NEXT_TO_NOTHING * n.own):
        label = "no gain"
    return label, t, n
