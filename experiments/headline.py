"""The headline: does PPO stand still with few environments and go on with many, on a game of chance?

    python -m experiments.headline              # makes the missing runs, then results/headline.json and headline.png
    python -m experiments.headline --dry-run    # prints the commands

Hypotheses, statistics and margins are in experiments/PREREGISTERED.md. All runs are `python ppo.py` with its defaults
on Breakout-MinAtar with sticky actions, except for what ARMS says.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tyro

from common.run import plots
from common.run.tracking import say
from experiments import grid, results, verdicts
from experiments.diagnosis import RETURN

SIZES = (64, 512, 4096)  # environments
SEEDS = range(5)
STEPS = 3 * 2**23  # 25,165,824; a multiple of every size's transitions per update
HALF = STEPS // 2
NUM_STEPS = 32
MINIBATCH = 2048
Key = TypeVar("Key")  # by which an experiment names its runs
ABOVE = 7.0  # a return that no run on the plateau has
ARMS = {  # of the smallest size, for half of the steps
    "entropy": ("ppo", {"ent_coef": 0.05}),
    "tuned": ("ppo", {"minibatch_size": 256, "learning_rate": 3e-4}),
    "eps": ("ppo", {"clip_eps": 0.05}),
    "com": ("ppo_ewma", {"com": 32.0}),  # 16 x what PPO's own proximal policy, the behaviour policy, is behind
}


def cell(num_envs: int, seed: int, steps: int = STEPS, script: str = "ppo", **changed: Any) -> grid.Cell:
    """One run of one seed, with minibatches of MINIBATCH unless `changed` says otherwise."""
    updates = steps // (num_envs * changed.get("num_steps", NUM_STEPS))
    flags = {"env_id": "Breakout-MinAtar", "sticky_actions": 0.1, "num_envs": num_envs, "total_timesteps": steps}
    flags |= {
        "seed": seed,
        "num_eval_episodes": 0,
        "log_every": max(1, updates // 384),
        "checkpoint_every": updates // 2,
    }
    flags |= inner_loop(changed) | changed
    return grid.named(script, flags, {"envs": num_envs, **changed, "seed": seed}, updates)


def inner_loop(changed: dict[str, Any]) -> dict[str, int]:
    """The size of minibatches, if `changed` gives neither it nor their number."""
    return {} if changed.keys() & {"minibatch_size", "num_minibatches"} else {"minibatch_size": MINIBATCH}


def branch(seed: int) -> grid.Cell:
    """The smallest size's policy at half of its run, which goes on with the largest size."""
    small, large = cell(SIZES[0], seed), cell(SIZES[-1], seed, HALF)
    flags = {name: value for name, value in large.flags if name != "env_id"} | {"env_id": "Breakout-MinAtar"}
    return grid.named(
        "ppo", flags, {"branch": "to-the-largest", "seed": seed}, large.num_updates, small, small.num_updates // 2
    )


def cells() -> dict[str, list[grid.Cell]]:
    """All runs, by what they are."""
    found = {f"{size}": [cell(size, seed) for seed in SEEDS] for size in SIZES}
    for name, (script, changed) in ARMS.items():
        found[name] = [cell(SIZES[0], seed, HALF, script, **changed) for seed in SEEDS]
    found |= {f"entropy, {n}": [cell(n, seed, HALF, **ARMS["entropy"][1]) for seed in SEEDS] for n in SIZES[1:]}
    return found | {"branch": [branch(seed) for seed in SEEDS]}


class Curve(NamedTuple):
    """Each [lines]."""

    steps: np.ndarray
    returns: np.ndarray
    own: np.ndarray
    fresh: np.ndarray
    entropy: np.ndarray
    clipfrac: np.ndarray | None = None  # the share of an update's samples that are beyond the clip range
    weight_norm: np.ndarray | None = None  # measured in some lines
    kl: np.ndarray | None = None  # of an update

    def mean(self, key: str, start: float, end: float) -> float:
        """Mean over the lines whose step is in (start, end]; lines without a value are left out."""
        values = getattr(self, key)[(self.steps > start) & (self.steps <= end)]
        return float(np.nanmean(values))

    def first_above(self) -> int | None:
        """The first million steps, from 1 on, whose mean return is above ABOVE; None if there is none."""
        millions = range(int(self.steps[-1] // 1e6))
        return next((m + 1 for m in millions if self.mean("returns", m * 1e6, (m + 1) * 1e6) > ABOVE), None)


def curve(run: Path) -> Curve:
    """The lines of training of a run of one seed; what a line lacks is NaN, such as the first update's fresh gain."""
    lines = [line for line in plots.read_lines(run) if "outer/own_gain" in line]
    keys = ("global_step", RETURN, "outer/own_gain", "outer/fresh_gain", "losses/entropy")
    keys += ("losses/clipfrac", "plasticity/weight_norm", "outer/kl")
    return Curve(*np.array([[line.get(key) for line in lines] for key in keys], np.float64))


class Interval(NamedTuple):
    """A mean and its 95 % t-interval over seeds."""

    mean: float
    low: float
    high: float


def interval(values: list[float]) -> Interval:
    """The mean alone where a seed has no value: those that are left are no sample."""
    if not np.isfinite(values).all():
        return Interval(float(np.nanmean(values)), np.nan, np.nan)
    mean, width = plots.mean_and_ci(np.asarray(values, float))
    return Interval(*map(float, (mean, mean - width, mean + width)))


def difference(a: list[float], b: list[float]) -> Interval:
    """Mean of a minus mean of b, with Welch's interval."""
    found = verdicts.difference("", a, b)
    return Interval(*map(float, (found.estimate, found.low, found.high)))


NAMES = tuple(map(str, SIZES))  # of the runs of the three sizes
SMALL, MIDDLE, LARGE = NAMES
BONUS = {SMALL: "entropy", MIDDLE: f"entropy, {MIDDLE}", LARGE: f"entropy, {LARGE}"}  # runs with five times the bonus


def judge(curves: dict[str, list[Curve]]) -> dict[str, Any]:
    """Everything that the preregistration asks for: samples per seed, intervals and verdicts."""
    each = lambda name, key, start, end: [c.mean(key, start, end) for c in curves[name]]  # noqa: E731
    late = {n: each(n, "returns", 0.9 * STEPS, STEPS) for n in NAMES}
    at_half = [*NAMES, *ARMS, BONUS[MIDDLE], BONUS[LARGE]]
    halfway = {name: each(name, "returns", 0.9 * HALF, HALF) for name in at_half}
    third = {n: each(n, "returns", 0.5 * STEPS, 0.75 * STEPS) for n in NAMES}
    fourth = {n: each(n, "returns", 0.75 * STEPS, STEPS) for n in NAMES}
    grown = {n: [b / a - 1 for a, b in zip(third[n], fourth[n], strict=True)] for n in NAMES}
    branched = each("branch", "returns", 0.9 * HALF, HALF)
    half_of_the_gap = 0.5 * float(np.mean(halfway[LARGE]) - np.mean(halfway[SMALL]))
    arms = {name: difference(halfway[name], halfway[SMALL]) for name in ARMS}
    windows = {"1M to 2M": (1e6, 2e6), "last half": (HALF, STEPS)}
    gains = {
        n: {f"{key}, {when}": each(n, key, *window) for when, window in windows.items() for key in ("own", "fresh")}
        for n in NAMES
    }
    checks = checks_of(late, grown, branched, arms, half_of_the_gap)
    return {
        "return, last tenth": late,
        "return, last tenth of the first half": halfway,
        "return, third quarter": third,
        "return, last quarter": fourth,
        "growth from third to last quarter": {n: interval(grown[n]) for n in NAMES},
        "branch, last tenth": branched,
        "arm minus the smallest, at half": arms,
        "half of the gap": half_of_the_gap,
        "largest minus middle": difference(late[LARGE], late[MIDDLE]),
        "entropy, last half": {n: each(n, "entropy", HALF, STEPS) for n in NAMES},
        "with five times the entropy bonus, at half, less the smallest": {
            n: difference(halfway[BONUS[n]], halfway["entropy"]) for n in (MIDDLE, LARGE)
        },
        "of the bonus, at half": {n: difference(halfway[BONUS[n]], halfway[n]) for n in NAMES},
        "gains": gains,
        # These two were not asked before.
        f"first million steps above {ABOVE}, of each seed": {n: [c.first_above() for c in curves[n]] for n in NAMES},
        "medians of the fresh gain's lines, last half": {
            n: [float(np.nanmedian(c.fresh[c.steps > HALF])) for c in curves[n]] for n in NAMES
        },
        "predicted to stand still, of each seed": {n: [x <= 0 for x in gains[n]["fresh, 1M to 2M"]] for n in NAMES},
        "stands still, of each seed": {n: [bool(abs(x) <= 0.05) for x in grown[n]] for n in NAMES},
        "checks": checks,
        "predictions of the fresh gain": predictions_of(arms, gains),
        "confirmed": all(checks.values()),
    }


def checks_of(late: dict, grown: dict, branched: list, arms: dict, half_of_the_gap: float) -> dict[str, bool]:
    """The conditions of a confirmation, as experiments/PREREGISTERED.md numbers them; the third and fifth have two."""
    ends = [np.mean(late[n]) for n in NAMES]
    found = {
        "the smallest stands still": abs(np.mean(grown[SMALL])) <= 0.05,
        "the largest goes on": interval(grown[LARGE]).low > 0,
        "the order is monotone": ends == sorted(ends),
        "the largest is 10 % ahead of the middle": difference(late[LARGE], late[MIDDLE]).low > 0.1 * ends[1],
        "the branch reaches 80 % of the largest": np.mean(branched) >= 0.8 * ends[2],
        "entropy does not rescue": arms["entropy"].low <= half_of_the_gap,
        "an inner loop for its size does not rescue": arms["tuned"].low <= half_of_the_gap,
    }
    return {name: bool(holds) for name, holds in found.items()}


def predictions_of(arms: dict, gains: dict) -> dict[str, bool]:
    """What was predicted besides."""
    fresh = {n: interval(gains[n]["fresh, last half"]) for n in (SMALL, LARGE)}
    return {
        "a smaller epsilon lifts": arms["eps"].low > 0,
        "a larger centre of mass lifts": arms["com"].low > 0,
        "fresh gain of the smallest, last half, is 0 within its interval": fresh[SMALL].low <= 0,
        "fresh gain of the largest, last half, is above 0": fresh[LARGE].low > 0,
    }


def draw(curves: dict[str, list[Curve]], out: Path) -> None:
    """Return, fresh gain, and the return of the arms over environment steps: a thin line per seed, and medians."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    axes = figure.subplots(1, 3)
    axes[2].sharey(axes[0])
    windows = np.linspace(0, STEPS, 49)
    x = (windows[:-1] + windows[1:]) / 2e6

    def line(panel: Any, of: str, key: str, colour: Any, label: str, style: str = "-", start: float = 0) -> None:
        """Means per window, up to the run's end. start: the steps at which it begins."""
        rows = [(a - start, b - start) for a, b in itertools.pairwise(windows)]
        mean = lambda c, a, b: c.mean(key, a, b) if a >= 0 and b <= c.steps[-1] else np.nan  # noqa: E731
        values = np.array([[mean(c, a, b) for c in curves[of]] for a, b in rows])
        panel.plot(x, values, color=colour, linewidth=0.6, alpha=0.5)
        panel.plot(x, np.median(values, 1), style, color=colour, linewidth=2, label=label)

    for size, colour in zip(SIZES, colormaps["viridis"]([0.0, 0.45, 0.8]), strict=True):
        line(axes[0], f"{size}", "returns", colour, f"{size:,} environments")
        line(axes[1], f"{size}", "fresh", colour, f"{size:,} environments")
        line(axes[2], BONUS[f"{size}"], "returns", colour, f"{size:,}, entropy bonus × 5")
    line(axes[0], "branch", "returns", "#D55E00", "64, then 4,096 from half on", ":", HALF)
    for arm, colour, label in (
        ("tuned", "#56B4E9", "inner loop for 64"),
        ("eps", "#E69F00", "ε ÷ 4"),
        ("com", "#888888", "COM 32"),
    ):
        line(axes[2], arm, "returns", colour, f"64, {label}", "--")
    titles = (
        "episode return",
        "gain on fresh transitions (linear within ± 0.001)",
        "episode return, for half of the steps",
    )
    for panel, title in zip(axes, titles, strict=True):
        tidy(panel, title)
    axes[1].set_yscale("symlog", linthresh=1e-3)
    axes[0].set_ylim(0, 42)
    for panel in (axes[0], axes[2]):
        panel.legend(frameon=False, fontsize=9, loc="upper left")
    figure.savefig(out, dpi=110)


def course(
    panel: Any, curves: Sequence[Curve], end: float, parts: int, colour: Any, label: str | None, style: str = "-",
    after: float = 0.0,
) -> None:  # fmt: skip
    """Draws returns over steps, means over so many parts of the steps up to `end`: seeds thin, their median thick.
    after: the steps at which the run began."""
    edges = np.linspace(0, end, parts + 1)
    values = np.array([[c.mean("returns", a, b) for c in curves] for a, b in itertools.pairwise(edges)])
    x = (after + (edges[:-1] + edges[1:]) / 2) / 1e6
    panel.plot(x, values, style, color=colour, linewidth=0.6, alpha=0.4)
    panel.plot(x, np.median(values, 1), style, color=colour, linewidth=2, label=label)


def tidy(panel: Any, title: str, x_label: str = "million environment steps") -> None:
    panel.set_title(title, fontsize=11)
    panel.set_xlabel(x_label)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(linewidth=0.5, alpha=0.35)


@dataclass(frozen=True)
class Args:
    """Of this experiment, and of those that go on from its runs."""

    runs_dir: Path = Path("runs/headline")
    """Folder for the runs, which these experiments share."""
    jobs: int = 2
    """How many runs at once, each on its share of the cores."""
    dry_run: bool = False
    """Only print the commands that are missing."""
    out: Path | None = None
    """The file to write (default results/EXPERIMENT.json); its picture, if there is one, lies beside it."""


def made(args: Args, *runs: Sequence[grid.Cell]) -> bool:
    """Makes the missing runs, or prints their commands. -> whether all are finished."""
    return grid.made(list(itertools.chain(*runs)), args.runs_dir, args.jobs, say, args.dry_run)


def curves(args: Args, runs: Mapping[Key, Sequence[grid.Cell]]) -> dict[Key, list[Curve]]:
    return {key: [curve(args.runs_dir / run.name) for run in of_one] for key, of_one in runs.items()}


def write(args: Args, name: str, how: dict[str, Any], runs: Mapping[str, Sequence[grid.Cell]], found: Any) -> Path:
    """Writes what was found, how, and a command of each kind of runs. -> the picture's file."""
    out = args.out or Path("results", f"{name}.json")
    commands = {kind: grid.paste(of_one[0], args.runs_dir) for kind, of_one in runs.items()}
    results.write(out, how | {"commands": commands} | found)
    return out.with_suffix(".png")


def main(args: Args) -> None:
    """Makes the missing runs, prints the checks, and writes samples, intervals and a picture."""
    runs = cells()
    if not made(args, *runs.values()):
        return
    of_runs = curves(args, runs)
    found = judge(of_runs)
    asked = {key: found[key] for key in ("checks", "predictions of the fresh gain", "confirmed")}
    print(json.dumps(results.rounded(asked), indent=1))
    how = results.facts("headline", "## The headline: Breakout", "## The headline, continued: is it more")
    draw(of_runs, write(args, "headline", how, runs, found))


if __name__ == "__main__":
    main(tyro.cli(Args))
