"""The summary and the picture of a run, or of several.

    python -m common.run.plots runs/A runs/B --out picture.png
    python -m common.run.plots runs/A runs/B --keys charts/episodic_return plasticity/feature_rank --out picture.png

draws several runs in one picture, labelled by the flags in which they differ. A run that was branched off another one
(--init-from) starts at the step where it left that one.
"""

import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tyro.conf import Positional

from common.run.arguments import LogArgs, UsageError, read_record
from common.run.tracking import say

PERFORMANCE = {
    "return": "charts/episodic_return",
    "solve_rate": "charts/solve_rate",
    "negative_distance": "charts/negative_distance",
}
# These tell a plateau from a slow climb, also in a run's final table.
DIAGNOSIS = {
    "kl": "outer/kl",
    "ddr": "outer/ddr",
    "own_gain": "outer/own_gain",
    "fresh_gain": "outer/fresh_gain",
    "entropy": "losses/entropy",
    "explained_variance": "losses/explained_variance",
}
# What is drawn by default, beside the performance: the first three that the runs have.
PANELS = ("outer/kl", "outer/ddr", "losses/entropy", "outer/update_norm", "outer/grad_norm")
AXIS_LABELS = {
    "charts/episodic_return": "episode return",
    "charts/episodic_length": "episode length (steps)",
    "charts/solve_rate": "solve rate",
    "charts/negative_distance": "−‖x‖ (negative distance from the optimum)",
    "charts/SPS": "environment steps per second",
    "eval/episodic_return": "episode return, evaluation",
    "eval/solve_rate": "solve rate, evaluation",
    "eval/hand_designed/solve_rate": "solve rate, hand-designed levels",
    "losses/entropy": "entropy of the policy (nats)",
    "outer/kl": "KL of an update (nats)",
    "outer/ddr": "data-to-divergence ratio (transitions per nat)",
    "outer/grad_norm": "gradient norm (before any clipping)",
    "outer/update_norm": "norm of an update",
    "outer/own_gain": "gain of an update on its own transitions",
    "outer/fresh_gain": "gain of an update on fresh transitions",
}
LOGARITHMIC = ("outer/kl", "outer/ddr")
# Okabe and Ito's colours, which colour-blind readers can tell apart; black and yellow last.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#F0E442")
PARTS = 50  # of a run, over each of which a running mean goes
FEW = 5  # seeds of which an interval says little
LONGEST_LABEL = 60  # characters
FORMATS = (".png", ".pdf", ".svg")
# Flags that say how a run was made, not what it is.
BOOKKEEPING = {
    *(*LogArgs.__dataclass_fields__, "seed", "evaluate", "list_envs", "capture_video", "num_devices", "eval_every"),
    *("num_eval_episodes", "num_eval_levels", "eval_sizes", "video_levels", "video_buffer_levels"),
    *("plasticity_every", "dormant_tau"),
}


def read_lines(run: Path | str) -> list[dict[str, Any]]:
    """Read the lines of a run's metrics.jsonl, but those that are not complete: a process was killed while writing."""
    lines, path = [], Path(run) / "metrics.jsonl"
    with contextlib.suppress(FileNotFoundError, IsADirectoryError), open(path, errors="replace") as file:
        for text in file:
            with contextlib.suppress(ValueError, RecursionError):
                lines.append(json.loads(text))
    return [line for line in lines if isinstance(line, dict) and _is_sound(line)]


def _is_sound(line: dict[str, Any]) -> bool:
    counted = all(isinstance(line.get(name), int) for name in ("update", "global_step"))
    counted &= isinstance(line.get("time", 0), int | float)
    return counted and not any(isinstance(value, str | dict) for value in line.values())


def _has_value(value: Any) -> bool:
    """Whether it is a number, or a list in which there is one."""
    return any(v is not None for v in np.ravel(value))


def series(lines: list[dict[str, Any]], key: str) -> tuple[np.ndarray, np.ndarray]:
    """The values of `key` by step. -> steps [T], values [T, seeds]; lines without any value are left out."""
    kept = [line for line in lines if _has_value(line.get(key))]
    steps = np.array([line["global_step"] for line in kept], np.float64)
    values = np.array([np.ravel(line[key]) for line in kept], np.float64) if kept else np.empty((0, 1))  # None: NaN
    return steps, values


def mean_and_ci(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and half width of its 95 % t-interval over the last axis, ignoring NaN. The width of one value is NaN."""
    from scipy.special import stdtrit

    count = np.sum(~np.isnan(values), axis=-1)
    mean = np.nansum(values, axis=-1) / np.maximum(count, 1)
    squares = np.nansum((values - mean[..., None]) ** 2, axis=-1)
    freedom = np.maximum(count - 1, 1)
    width = stdtrit(freedom, 0.975) * np.sqrt(squares / freedom / np.maximum(count, 1))
    return np.where(count > 0, mean, np.nan), np.where(count > 1, width, np.nan)


def finished(run: Path) -> bool:
    """Whether the run has come to its end. One that a signal stopped has a summary as well."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # none, or one that is damaged
        summary = json.loads((run / "summary.json").read_text())
        return summary["updates"] == summary["num_updates"]
    return False


def summarize(run: Path | str) -> dict[str, Any]:
    """The numbers to report for a run. final_... is the mean over the last 10 % of the lines (of a return or solve
    rate: of those in which an episode ended; of outer/ddr: the harmonic mean). With several seeds, `ci95` is the half
    width of the t-interval over them."""
    lines = read_lines(run)
    summary: dict[str, Any] = {}
    for name, key in {**PERFORMANCE, **DIAGNOSIS}.items():
        having = [line for line in lines if key in line and (name not in PERFORMANCE or _has_value(line[key]))]
        _, values = series(having, key)
        _, tail = series(having[-max(1, len(having) // 10) :], key)
        if len(tail) == 0:
            continue
        power = -1.0 if name == "ddr" else 1.0  # of all their transitions and KL, which may be almost 0 in some
        summary[f"final_{name}"] = _interval(mean_and_ci(tail.T**power)[0] ** power)
        if name in PERFORMANCE:
            summary[f"best_{name}"] = float(mean_and_ci(values)[0].max())
    evaluated = {key: line[key] for line in lines for key in line if key.startswith("eval/")}  # the last one wins
    for key, value in evaluated.items():
        summary[key] = _interval(np.atleast_1d(np.array(value, np.float64)))
    speeds = [line["charts/SPS"] for line in lines if line.get("charts/SPS")]
    summary["steps_per_second"] = int(np.median(speeds)) if speeds else None
    return summary


def _interval(per_seed: np.ndarray) -> dict[str, Any]:
    mean, width = (None if np.isnan(x) else float(x) for x in mean_and_ci(per_seed))
    seeds = [None if np.isnan(x) else float(x) for x in per_seed]
    return {"mean": mean} if len(seeds) == 1 else {"mean": mean, "ci95": width, "seeds": seeds}


def table(summary: dict[str, Any]) -> str:
    """Format a summary as aligned text."""

    def text(key: str, value: Any) -> str:
        if isinstance(value, dict):
            width = value.get("ci95")
            known = [seed for seed in value.get("seeds", ()) if seed is not None]
            seeds = f" ± {width:.3g} (95 % CI, {len(known)} seeds)" if width is not None else ""
            return "-" if value["mean"] is None else f"{value['mean']:.4g}{seeds}"
        if key.endswith("_bytes"):
            return f"{value / 2**20:,.0f} MiB"
        if isinstance(value, float):
            return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
        return _short(value)

    rows = {key.removesuffix("_bytes"): text(key, value) for key, value in summary.items() if value is not None}
    width = max(map(len, rows))
    return "\n".join(f"{key:<{width}}  {value}" for key, value in rows.items())


def labels(records: list[dict[str, Any]], runs: Sequence[Path | str]) -> list[str]:
    """Label each run with the flags in which they differ or, if these are many or none, with its folder. `records` are
    the runs' args.json."""
    flags = [{"script": record["script"], **record["args"]} for record in records]
    names = [name for name in dict.fromkeys(n for f in flags for n in f) if name not in BOOKKEEPING]
    differing = [name for name in names if any(f.get(name) != flags[0].get(name) for f in flags)]
    found = [", ".join(f"{name} = {_short(f.get(name))}" for name in differing) for f in flags]
    if len(set(found)) == len(found) and max(map(len, found)) <= LONGEST_LABEL:
        return found
    return list(map(str, runs))


def _short(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def draw(runs: Sequence[Path | str], out: Path | str, keys: Sequence[str] = ()) -> bool:
    """Draw `keys` of the runs against environment steps into the picture file `out`: one panel per key, and for each
    run the median and thin lines of up to FEW seeds, of more the mean with the 95 % interval shaded. Return False and
    make no picture if there is nothing to draw."""
    from matplotlib.figure import Figure  # without pyplot, no backend is chosen for the process

    lines = [read_lines(run) for run in runs]
    records = [read_record(Path(run), "run") for run in runs]
    keys = [key for key in keys or default_keys(lines) if _has(lines, key)]
    if not keys:
        return False
    names = labels(records, runs) if len(runs) > 1 else [""]
    by_name = colours(names)
    columns = len(keys) if len(keys) < 4 else -(-len(keys) // 2)
    rows = -(-len(keys) // columns)
    figure = Figure(figsize=(5 * columns, 3.6 * rows + 0.4), layout="constrained")
    for place, key in enumerate(keys, 1):
        axes, smoothed = figure.add_subplot(rows, columns, place), False
        for record, own, name in zip(records, lines, names, strict=True):
            steps, values = series(own, key)
            steps += record.get("steps_before") or 0  # a branch begins where it left its parent
            # Each by its own length: of runs with more environments it is shorter, and so is that of evaluations.
            width = max(1, len(values) // PARTS)
            smoothed |= width > 1
            _draw_run(axes, steps, running_mean(values, width), by_name[name], name)
        running = "\n(running means over 2 % of a run)" if smoothed else ""
        axes.set(xlabel="steps (of each seed)", ylabel=AXIS_LABELS.get(key, key) + running)
        axes.grid(linewidth=0.5, alpha=0.35)
        axes.spines[["top", "right"]].set_visible(False)
        if key in LOGARITHMIC and axes.dataLim.minposy < np.inf:
            axes.set_yscale("log")
    if len(runs) > 1:
        panels = (zip(*axes.get_legend_handles_labels(), strict=True) for axes in figure.axes)
        shown = {name: line for panel in panels for line, name in panel}  # a run need not be in all of them
        figure.legend(shown.values(), shown.keys(), loc="outside lower center", frameon=False)
    about = [{"script": record["script"], "env_id": record["args"].get("env_id")} for record in records]
    parts = [", ".join(dict.fromkeys(filter(None, (each[part] for each in about)))) for part in ("script", "env_id")]
    figure.suptitle(" on ".join(filter(None, parts)), fontsize=12, parse_math=False)
    figure.savefig(out, dpi=150)
    return True


def colours(names: Sequence[str]) -> dict[str, Any]:
    """A colour for each name. If they differ in numbers only, which rise together, they are steps of one scale."""
    from matplotlib import colormaps

    number = r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?"
    values = {name: [float(x.replace(",", "")) for x in re.findall(number, name)] for name in names}
    ordered = sorted(names, key=lambda name: values[name])
    same = len({re.sub(number, "#", name) for name in names}) == 1 and len(names) > 2
    rising = same and all(list(column) == sorted(column) for column in zip(*(values[x] for x in ordered), strict=True))
    if not rising or not values[names[0]]:
        return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    return {name: colormaps["viridis"](0.9 * i / (len(ordered) - 1)) for i, name in enumerate(ordered)}


def _has(lines: list[list[dict[str, Any]]], key: str) -> bool:
    return any(len(series(own, key)[0]) for own in lines)


def default_keys(lines: list[list[dict[str, Any]]]) -> list[str]:
    """The solve rate, of runs without one the return or distance, and three of PANELS that these runs' lines have."""
    performance, left = [], lines
    for key in reversed(PERFORMANCE.values()):
        if _has(left, key):
            performance.append(key)
            left = [own for own in left if not _has([own], key)]
    return performance + [key for key in PANELS if _has(lines, key)][:3]


def _draw_run(axes: Any, steps: np.ndarray, values: np.ndarray, colour: Any, label: str) -> None:
    """Draw a run's line. values: [T, seeds]."""
    if not len(steps):
        return
    if values.shape[1] > FEW:
        middle, width = mean_and_ci(values)
        axes.fill_between(steps, middle - width, middle + width, color=colour, alpha=0.18, linewidth=0)
    else:
        middle = np.ma.median(np.ma.masked_invalid(values), axis=1).filled(np.nan)
        axes.plot(steps, values, color=colour, linewidth=0.7, alpha=0.4)
    axes.plot(steps, middle, color=colour, linewidth=1.7, label=label, marker="o" if len(steps) == 1 else None)


def running_mean(values: np.ndarray, width: int) -> np.ndarray:
    """Mean over `width` rows around each row (fewer at the ends), ignoring NaN. values: [T, seeds]."""
    from scipy.ndimage import uniform_filter1d

    known = ~np.isnan(values)
    share = uniform_filter1d(known.astype(np.float64), width, axis=0, mode="constant")
    total = uniform_filter1d(np.where(known, values, 0.0), width, axis=0, mode="constant")
    return np.where(share > 0.5 / width, total / np.maximum(share, 0.5 / width), np.nan)


@dataclass(frozen=True)
class Args:
    # --- picture ---
    runs: Positional[tuple[Path, ...]] = ()
    """Folders of the runs."""
    out: Path = Path("curves.png")
    """The picture to write (.png, .pdf or .svg)."""
    keys: tuple[str, ...] = ()
    """Keys of metrics.jsonl, one panel each (default: return, KL, data-to-divergence ratio, entropy)."""


def main(args: Args) -> None:
    """Draw several runs in one picture."""
    if not args.runs:
        raise UsageError("no run given: name the folders of some, such as runs/A runs/B")
    if args.out.suffix not in FORMATS:
        raise UsageError(f"--out {args.out}: cannot be written; its name must end in {', '.join(FORMATS)}")
    lines = [read_lines(run) for run in args.runs if read_record(run, "run")]
    known = sorted({name for own in lines for line in own for name in line} - {"update", "global_step", "time"})
    try:
        for key in args.keys or default_keys(lines)[:1] or ["charts/episodic_return"]:
            if not _has(lines, key):
                having = ", ".join(known) or "no line at all"
                raise UsageError(f"--keys {key}: none of the runs has it; they have {having}")
        draw(args.runs, args.out, args.keys)
        for run, own in zip(args.runs, lines, strict=True):
            if not any(_has([own], key) for key in args.keys or default_keys(lines)):
                say(f"note: {run} has none of the values that are drawn")
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(f"--out {args.out}: cannot be written ({str(error).splitlines()[0]})") from None
    except (ArithmeticError, TypeError, ValueError) as error:
        said = (str(error).splitlines() or [""])[0][:200]
        raise UsageError(f"run {' '.join(map(str, args.runs))}: holds what no run writes ({said})") from None
    print(args.out)


if __name__ == "__main__":
    from common.run import command

    command.main(main, Args)
