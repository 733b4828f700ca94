"""Reads a run's curves and says whether it climbs, stands still, fell or diverged, and the likely cause.

Everything is judged seed by seed, by the thresholds below: rules of thumb.
"""

import csv
import itertools
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from common.run import plots
from common.run.arguments import UsageError

STEP, RETURN = "global_step", "charts/episodic_return"
FINITE = ("losses/policy_loss", "losses/td_loss", "outer/update_norm")  # None in the last line: not finite
READ = (  # keys; all else in a log is not looked at
    *(STEP, RETURN, "outer/own_gain", "outer/fresh_gain", "outer/kl", "losses/clipfrac", "losses/entropy"),
    *("losses/explained_variance", *FINITE),
)
# What CleanRL, Stable-Baselines3 (which logs the negative entropy) and rsl_rl call the same thing.
ALIASES = {
    RETURN: ("rollout/ep_rew_mean", "Train/mean_reward"),
    STEP: ("time/total_timesteps", "Step"),
    "outer/kl": ("losses/approx_kl", "train/approx_kl"),
    "losses/policy_loss": ("train/policy_gradient_loss", "train/policy_loss", "Loss/surrogate"),
    "losses/clipfrac": ("train/clip_fraction",),
    "losses/entropy": ("train/entropy_loss", "Loss/entropy"),
    "losses/explained_variance": ("train/explained_variance",),
}
NEGATIVE = ("train/entropy_loss",)
EVENTS = "events.out.tfevents.*"
LARGEST = 1e39  # beyond all of float32

# Thresholds of the curve.
BLOCKS = 20  # a curve is judged by the means of so many equal parts
STILL = 0.1  # a change of less than this share of all that the run ever gained is none
SURE_CLIMB = 0.25  # a rise over the last half, with its interval, of more than this share of it is beyond doubt
FELL = 0.3  # a loss of more than this share of it is a fall
MIN_UPDATES, MIN_LINES = 100, 15
# Thresholds of the causes.
NO_SPREAD = 1e-6  # returns that differ by less than this share of their size never differed
SLOW_KL = 2e-3  # nats, which at least one block of every healthy run's updates moves the policy by (3e-3 to 4e-2)
MUCH_CLIPPED = 0.15  # of the ratios; with so small a KL it is the clip that holds the policy
AS_RANDOM = 0.95  # of the first entropy
SETTLED_GAIN = 0.004  # an update that does nothing even on its own data
TAKEN_BACK, NEXT_TO_NOTHING = -0.1, 0.1  # fresh / own
REPLACED = 1.0  # KL of an update after which little is left of the policy; the most of healthy runs is 0.04
NO_CRITIC = 0.2  # explained variance, never more: where a task is finished it may be anything


class Course(NamedTuple):
    """The curves of one seed. values: key -> [T], NaN where a line lacks it."""

    steps: np.ndarray
    values: dict[str, np.ndarray]
    num_updates: float

    def __getitem__(self, key: str) -> np.ndarray:
        return self.values.get(key, np.full(len(self.steps), np.nan))

    def known(self, key: str) -> np.ndarray:
        return self[key][np.isfinite(self[key])]


class Trend(NamedTuple):
    """How the return of a seed went. since: index of the line from which on it stands still (0 if it does not)."""

    state: str  # climbing, still, fell, diverged, few updates, unclear
    since: int
    level: float  # mean return from there on, or of the last quarter
    change: float  # over that time, by a straight line ...
    error: float  # ... and half of its 95 % interval
    gained: float  # what the run has gained in all, from its first block (if it came back, its lowest) to its best
    best: float


class Numbers(NamedTuple):
    """What decides on the cause: means from `Trend.since` on, or over the last half of the run."""

    own: float  # gain of an update on its own transitions
    fresh: float  # ... and on fresh ones,
    fresh_error: float  # with twice its standard error
    kl: float
    most_kl: float  # of the run's blocks
    most_clipped: float  # share of the ratios that are clipped, of the run's blocks
    entropy: float  # of the last fifth of the run
    least_entropy: float  # of the run's blocks
    first_entropy: float  # of the first lines
    explained_variance: float
    best_explained_variance: float  # of the run's blocks
    spread: float  # of the returns: standard deviation over lines, of the whole run


def of_run(folder: Path) -> list[Course]:
    """The courses of a run's seeds, from its metrics.jsonl."""
    # Evaluations, and searches for levels, have lines of their own.
    apart = lambda line: any(key.startswith(("eval/", "search/")) for key in line)  # noqa: E731
    lines = [line for line in plots.read_lines(folder) if not apart(line)]
    if not lines:
        raise UsageError(f"{folder}: no line of training in its metrics.jsonl")
    performance = next((key for key in plots.PERFORMANCE.values() if any(key in line for line in lines)), None)
    if performance is None:
        raise UsageError(f"{folder}: no line of its metrics.jsonl has {RETURN}")
    there = {key: performance if key == RETURN else key for key in READ}
    rows = {k: [np.ravel(line.get(name)).astype(np.float64) for line in lines] for k, name in there.items()}
    seeds = max(row.size for column in rows.values() for row in column)
    # One value is that of all seeds; with any other number of them the line is damaged. None has become NaN.
    fitting = lambda row: np.broadcast_to(row if row.size in (1, seeds) else np.nan, seeds)  # noqa: E731
    table = {key: np.array([fitting(row) for row in column]) for key, column in rows.items()}
    known = {key: column for key, column in table.items() if any(there[key] in line for line in lines)}
    updates = float(lines[-1]["update"])
    refuse_absurd(folder, known | {"update": np.array([updates])})
    return [Course(table[STEP][:, s], {k: v[:, s] for k, v in known.items()}, updates) for s in range(seeds)]


def refuse_absurd(source: Path, table: dict[str, np.ndarray]) -> None:
    """Of numbers that no device can have computed, means and squares would not be finite."""
    for key, values in table.items():
        if len(beyond := values[np.isfinite(values) & (np.abs(values) > LARGEST)]):
            raise UsageError(f"{source}: {key} is {beyond[0]:.3g}; no run writes numbers beyond {LARGEST:.0e}")


def of_csv(file: Path) -> list[Course]:
    """The course in another trainer's CSV."""
    try:
        with open(file, newline="", encoding="utf-8-sig", errors="replace") as text:
            rows = list(csv.DictReader(text))
    except (OSError, csv.Error) as error:
        raise UsageError(f"{file}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    return of_rows(file, rows)


def events_of(path: Path) -> list[Path]:
    """TensorBoard's files: the path itself, or those in it."""
    files = sorted(path.glob(EVENTS)) if path.is_dir() else [path]
    return [file for file in files if file.match(EVENTS) and file.is_file()]


def logs_near(source: str) -> list[Path]:
    """What somebody may have meant who names a folder of logs, or a checkpoint."""
    folder, (run, _, update) = Path(source), source.rpartition("@")
    parents = [Path(run)] if update.isdecimal() else list(folder.parents[:2]) if folder.name.isdecimal() else []
    runs = [parent for parent in parents if (parent / "args.json").exists()]
    below = [path for kind in ("*.csv", "*/progress.csv", "*/args.json", f"*/{EVENTS}") for path in folder.glob(kind)]
    return runs + sorted({path if path.suffix == ".csv" else path.parent for path in below})


def of_tensorboard(path: Path) -> list[Course]:
    """The course in what CleanRL, Stable-Baselines3 and rsl_rl write for TensorBoard."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise UsageError(f"{path}: is read by TensorBoard; pip install tensorboard") from None
    log = EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()
    tags = [tag for tag in log.Tags()["scalars"] if tag in READ or tag in itertools.chain(*ALIASES.values())]
    rows = [{STEP: event.step, tag: event.value} for tag in tags for event in log.Scalars(tag)]
    return of_rows(path, [dict.fromkeys((STEP, *tags), "") | row for row in rows])


def of_rows(file: Path, rows: list[dict[str, Any]]) -> list[Course]:
    """The course in rows whose columns have the names of READ or ALIASES."""
    there = [name for name in rows[0] if name] if rows else []
    found = {key: next((name for name in (key, *ALIASES.get(key, ())) if name in there), None) for key in READ}
    names = {key: name for key, name in found.items() if name}
    for key in (STEP, RETURN):
        if key not in names:
            has = f"it has {', '.join(there[:12])}{', ...' * (len(there) > 12)}" if there else "it has no rows"
            raise UsageError(f"{file}: which column is {key}? Name one of them so; {has}")
    sign = lambda key: -1 if names[key] in NEGATIVE else 1  # noqa: E731
    values = {k: sign(k) * np.array([number(row[name], k in FINITE) for row in rows]) for k, name in names.items()}
    refuse_absurd(file, values)
    kept = np.isfinite(values[RETURN]) & np.isfinite(values[STEP])
    if not kept.any():
        raise UsageError(f"{file}: no row with numbers in both {names[STEP]} and {names[RETURN]}")
    steps = values[STEP][kept]
    back = np.flatnonzero(steps < np.maximum.accumulate(steps) / 2)
    if len(back) and (np.diff(steps[back[0] :]) > 0).any():  # as where Stable-Baselines3 learns twice with one logger
        falls = f"{names[STEP]} falls from {steps[: back[0]].max():.0f} to {steps[back[0]]:.0f} and rises again"
        raise UsageError(f"{file}: {falls}; there are two trainings in it, give the lines of one")
    # Other trainers write losses and returns in lines of their own: each return gets the values before it.
    order = np.argsort(values[STEP], kind="stable")
    values = {k: v[order] if k in (STEP, RETURN) else carried(v[order]) for k, v in values.items()}
    values = {k: v[kept[order]] for k, v in values.items() if k not in FINITE or not np.isnan(v).all()}
    return [Course(values[STEP], values, np.inf)]


def number(text: Any, infinite: bool) -> float:
    """NaN if it is none. infinite: what is not finite is infinity, and so not taken for an empty cell."""
    try:
        value = float(text)
    except (TypeError, ValueError):
        return np.nan
    return value if np.isfinite(value) else np.inf if infinite else np.nan


def carried(values: np.ndarray) -> np.ndarray:
    """The last known value up to each place; before the first, the first."""
    known = np.flatnonzero(~np.isnan(values))
    if not len(known):
        return values
    return values[known[np.maximum(np.searchsorted(known, np.arange(len(values)), side="right") - 1, 0)]]


def blocks_of(values: np.ndarray, number: int) -> np.ndarray:
    """Means of equal parts. [T] -> [number]."""
    return np.array([mean(part) for part in np.array_split(values, number)])


def line_through(values: np.ndarray) -> tuple[float, float]:
    """The change of a straight line through the values from its first to its last, and half of its 95 % interval."""
    from scipy import stats

    n = len(values)
    if np.ptp(values) == 0:  # a return that cannot be higher; scipy's interval would be NaN
        return 0.0, 0.0
    line = stats.linregress(np.arange(n), values)
    return line.slope * (n - 1), float(stats.t.ppf(0.975, n - 2)) * line.stderr * (n - 1)


def trend(course: Course) -> Trend:
    """How the return went, and since when it stands still if it does."""
    returns = course.known(RETURN)
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
    fell = result._replace(state="fell", change=-lost, error=2 * noise)
    if lost > FELL * scale and lost > 4 * noise and gained > 4 * noise:
        return fell
    if gained < 5 * noise:  # it never got above its start, but may have fallen from there, or fallen and come back
        if sum(line_through(blocks)) < -scale:
            return fell
        if change - error > scale:
            return result._replace(state="climbing", gained=float(np.ptp(rolling)))
    for size in range(n, max(5, n // 4) - 1, -1):
        change, error = line_through(blocks[-size:])
        none = change - error <= 0 or change + error < STILL * scale
        if none and change + error < STILL * wide and change - error > -2 * STILL * wide:
            at = len(returns) - sum(len(part) for part in np.array_split(returns, n)[-size:])
            since = int(np.flatnonzero(np.isfinite(course[RETURN]))[at])
            level = float(blocks[-size:].mean())
            return result._replace(state="still", since=since, level=level, change=change, error=error)
    return result._replace(state="climbing") if result.change - result.error > 0 else result


def mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else np.nan


def numbers(course: Course, t: Trend) -> Numbers:
    lines = len(course.steps)
    start = t.since if t.state == "still" else lines // 2
    late = lambda key: mean(course[key][start:])  # noqa: E731
    blocks = lambda x: blocks_of(x, min(BLOCKS, len(x))) if len(x) else [np.nan]  # noqa: E731
    extreme = lambda key, of: of(blocks(course.known(key)))  # noqa: E731
    fresh = course["outer/fresh_gain"][start:]
    # The error is from the means of up to ten blocks, because lines need not be independent.
    parts = blocks_of(fresh[np.isfinite(fresh)], min(10, max(1, np.isfinite(fresh).sum())))
    return Numbers(
        own=late("outer/own_gain"),
        fresh=mean(fresh),
        fresh_error=2 * float(parts.std(ddof=1) / np.sqrt(len(parts))) if len(parts) > 1 else np.nan,
        kl=late("outer/kl"),
        most_kl=extreme("outer/kl", np.max),
        most_clipped=extreme("losses/clipfrac", np.max),
        entropy=mean(course["losses/entropy"][-max(1, lines // 5) :]),
        first_entropy=mean(course.known("losses/entropy")[:3]),
        least_entropy=extreme("losses/entropy", np.min),
        explained_variance=late("losses/explained_variance"),
        best_explained_variance=extreme("losses/explained_variance", np.max),
        spread=float(np.std(course.known(RETURN))) if len(course.known(RETURN)) else np.nan,
    )


def diagnose(course: Course) -> tuple[str, Trend, Numbers]:
    """The first cause that fits, or the state if that is no standstill, or "unknown". -> label, trend, numbers."""
    t = trend(course)
    n = numbers(course, t)
    if t.state == "diverged":
        return t.state, t, n
    # What climbs, or has only begun, has to be ten times slower for that.
    if n.most_kl < SLOW_KL * (0.1 if t.state in ("climbing", "few updates") else 1):
        return "clipped" if n.most_clipped > MUCH_CLIPPED else "slow", t, n
    if t.state == "few updates":
        return t.state, t, n
    # Where fresh transitions would take back much of an update, a wild curve that happens to rise is no climb. A sure
    # one is: PPO-EWMA with a large centre of mass pulls each update back to its proximal policy, and climbs.
    takes_back = n.fresh + n.fresh_error / 2 < 0 and n.fresh < TAKEN_BACK * n.own
    # Others' logs have no gains; nor has PQN's, whose policy of ε moves far where Q hardly does.
    replaces = n.most_kl > REPLACED and not (n.fresh - n.fresh_error > 0 or "losses/td_loss" in course.values)
    thrashes = (n.own > SETTLED_GAIN and takes_back) or replaces
    if t.state == "climbing" and (not thrashes or t.change - t.error > SURE_CLIMB * t.gained):
        return "climbing", t, n
    gains_nothing = n.fresh - n.fresh_error <= 0 or n.fresh < NEXT_TO_NOTHING * n.own
    causes = {  # the most certain first
        "exploration": n.spread <= NO_SPREAD * abs(t.level),
        "random": n.least_entropy > AS_RANDOM * n.first_entropy > 0,
        "critic": n.best_explained_variance < NO_CRITIC,
        "step": thrashes,
        "settled": n.own < SETTLED_GAIN,
        "no gain": gains_nothing and t.state != "fell",
    }
    label = t.state if t.state in ("fell", "unclear") else "unknown"
    return next((cause for cause, fits in causes.items() if fits), label), t, n


class Found(NamedTuple):
    """What several seeds have: the most common label, unless one diverged, which stops a run (--halt-on-nan)."""

    label: str
    level: float  # return and numbers: means over the seeds with the label
    numbers: Numbers
    seeds: list[tuple[str, Trend, Numbers]]


def diagnose_all(courses: list[Course]) -> Found:
    seeds = [diagnose(course) for course in courses]
    labels = Counter(label for label, _, _ in seeds)
    label = "diverged" if "diverged" in labels else labels.most_common(1)[0][0]
    of_label = [(t.level, *n) for name, t, n in seeds if name == label]
    level, *means = map(mean, np.array(of_label).T)
    return Found(label, level, Numbers(*means), seeds)
