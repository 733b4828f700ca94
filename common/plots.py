"""What a run left behind: its numbers and its picture.

    python -m common.plots runs/A runs/B --out picture.png

draws several runs in one picture, labelled by the flags in which they differ.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tyro.conf import Positional

# What is drawn unless asked otherwise; those that the runs do not have are left out.
PERFORMANCE = {
    "return": "charts/episodic_return",
    "solve_rate": "charts/solve_rate",
    "negative_distance": "charts/negative_distance",
}
PANELS = ("charts/solve_rate", "charts/episodic_return", "charts/negative_distance", "outer/kl", "outer/grad_norm")
AXIS_LABELS = {
    "charts/episodic_return": "episode return",
    "charts/episodic_length": "episode length (steps)",
    "charts/solve_rate": "solve rate",
    "charts/negative_distance": "−‖x‖ (negative distance from the optimum)",
    "charts/SPS": "environment steps per second",
    "eval/solve_rate": "solve rate, evaluation",
    "eval/hand_designed/solve_rate": "solve rate, hand-designed levels",
    "outer/kl": "KL of an update (nats)",
    "outer/grad_norm": "gradient norm (before any clipping)",
    "outer/update_norm": "norm of an update",
}
# Okabe and Ito's colours, which colour-blind readers can tell apart; black and yellow last.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#F0E442")
# Flags that say how a run was made, not what it is.
BOOKKEEPING = {
    *("seed", "run_name", "runs_dir", "resume", "track", "wandb_project_name", "wandb_entity", "wandb_mode"),
    *("checkpoint_every", "keep_checkpoints", "log_every", "eval_every"),
    *("num_eval_episodes", "num_eval_levels", "eval_sizes", "video_levels", "video_buffer_levels"),
    *("plasticity_every", "dormant_tau"),
}


def read_lines(run: Path | str, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl (or another file). A half-written one (the process was killed) is left out."""
    lines = []
    try:
        with open(Path(run) / name, encoding="utf-8", errors="replace") as file:
            for text in file:
                try:
                    line = json.loads(text)
                except json.JSONDecodeError:
                    continue
                if isinstance(line, dict) and "update" in line:
                    lines.append(line)
    except FileNotFoundError:
        pass
    return lines


def series(lines: list[dict[str, Any]], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Where and what `key` was. -> steps [T], values [T, seeds]; lines without any value are left out."""
    kept = [line for line in lines if not all(v is None for v in np.ravel(line.get(key)))]
    steps = np.array([line["global_step"] for line in kept], np.float64)
    values = np.array([np.atleast_1d(np.array(line[key], np.float64)) for line in kept])  # None becomes NaN
    return steps, values.reshape(len(kept), values.shape[1] if kept else 1)


def mean_and_ci(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and half width of its 95 % t-interval over the last axis, leaving out NaN. The width of one value is NaN."""
    from scipy.special import stdtrit

    count = np.sum(~np.isnan(values), axis=-1)
    mean = np.nansum(values, axis=-1) / np.maximum(count, 1)
    squares = np.nansum((values - mean[..., None]) ** 2, axis=-1)
    freedom = np.maximum(count - 1, 1)
    width = stdtrit(freedom, 0.975) * np.sqrt(squares / freedom / np.maximum(count, 1))
    return np.where(count > 0, mean, np.nan), np.where(count > 1, width, np.nan)


def summarize(run: Path | str) -> dict[str, Any]:
    """The numbers to report of a run. Returns and solve rates are means over the last 10 % of the lines that have
    episodes; with several seeds `ci95` is the half width of the t-interval over seeds."""
    lines = read_lines(run)
    summary: dict[str, Any] = {}
    for name, key in PERFORMANCE.items():
        _, values = series(lines, key)
        if len(values) == 0:
            continue
        tail = values[-max(1, len(values) // 10) :]
        summary[f"final_{name}"] = _interval(mean_and_ci(tail.T)[0])
        summary[f"best_{name}"] = float(mean_and_ci(values)[0].max())
    evaluated = {key: line[key] for line in lines for key in line if key.startswith("eval/")}  # the last one stays
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
    """A summary as aligned text."""

    def text(key: str, value: Any) -> str:
        if isinstance(value, dict):
            width = value.get("ci95")
            seeds = f" ± {width:.3g} (95 % CI, {len(value['seeds'])} seeds)" if width is not None else ""
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
    """One label for each run: the flags in which they differ, else what still tells them apart. `records` are the
    runs' args.json."""
    flags = [{"script": record["script"], **record["args"]} for record in records]
    names = [name for name in dict.fromkeys(n for f in flags for n in f) if name not in BOOKKEEPING]
    differing = [name for name in names if any(f.get(name) != flags[0].get(name) for f in flags)]
    found = [", ".join(f"{name} = {_short(f.get(name))}" for name in differing) for f in flags]
    if len(set(found)) < len(found):
        found = [f"{text}, seed = {f.get('seed')}".lstrip(", ") for text, f in zip(found, flags, strict=True)]
    if len(set(found)) < len(found):
        found = [Path(run).name for run in runs]
    return found


def _short(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def draw(
    runs: Sequence[Path | str],
    out: Path | str,
    keys: Sequence[str] | None = None,
    title: str | None = None,
    smooth: int | None = None,
) -> bool:
    """Draws `keys` of the runs against environment steps into the picture file `out`: one panel for each key, one line
    for each run, the mean over its seeds with the 95 % interval shaded. `smooth` is the number of lines in the running
    mean; None chooses about a fiftieth of the run. False, and no picture, where there is nothing to draw."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    lines = [read_lines(run) for run in runs]
    records = [json.loads((Path(run) / "args.json").read_text()) for run in runs]
    names = labels(records, runs) if len(runs) > 1 else [""]
    keys = keys or _panels(lines)
    if not keys:
        return False
    smooth = smooth or max(1, max(map(len, lines)) // 50)
    style = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True}
    # A Figure of its own, without pyplot: no backend is chosen for the process and nothing stays in memory.
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(5.4 * max(1, len(keys)), 4.0), layout="constrained")
        for column, key in enumerate(keys):
            axes = figure.add_subplot(1, len(keys), column + 1)
            for index, run_lines in enumerate(lines):
                _draw_line(axes, *series(run_lines, key), smooth, COLOURS[index % len(COLOURS)], names[index])
            axes.set_xlabel("environment steps" + (" (per seed)" if records[0]["args"].get("num_seeds", 1) > 1 else ""))
            running = f"\n(running mean of {smooth} lines)" if smooth > 1 else ""
            axes.set_ylabel(AXIS_LABELS.get(key, key) + running)
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            axes.grid(linewidth=0.5, alpha=0.35)
            axes.margins(x=0.02)
            if key == "charts/solve_rate":
                axes.set_ylim(-0.02, 1.02)
        if len(runs) > 1 and keys:
            handles, texts = figure.axes[0].get_legend_handles_labels()
            columns = max(1, int(13 * figure.get_figwidth()) // (max(map(len, texts)) + 6))
            figure.legend(handles, texts, loc="outside lower center", ncols=columns, frameon=False)
        figure.get_layout_engine().set(wspace=0.06)
        figure.suptitle(title or _title(records, lines), fontsize=12)
        figure.savefig(out, dpi=150)
    return True


def draw_histograms(run: Path | str, out: Path | str) -> None:
    """Draws histograms.jsonl of a run into the picture file `out`: a panel for each name, a column for each update, its
    shares (of all seeds together) as shades. Nothing where there is no such file."""
    lines = read_lines(run, "histograms.jsonl")
    if not lines:
        return
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(line["name"] for line in lines))
    figure = Figure(figsize=(5.4 * len(names), 4.0), layout="constrained")
    for column, name in enumerate(names):
        mine = [line for line in lines if line["name"] == name]
        counts = np.array([np.atleast_2d(np.array(line["counts"], np.float64)).sum(0) for line in mine])
        shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
        axes = figure.add_subplot(1, len(names), column + 1)
        edges = np.arange(len(mine) + 1) - 0.5
        mesh = axes.pcolormesh(edges, mine[0]["edges"], shares.T, cmap="viridis", vmin=0, vmax=1)
        ticks = np.unique(np.linspace(0, len(mine) - 1, 6).astype(int))
        axes.set_xticks(ticks, [str(mine[i]["update"]) for i in ticks])
        axes.set_xlabel("before update")
        axes.set_ylabel(name.replace("/", ": ").replace("_", " "))
        figure.colorbar(mesh, ax=axes, label="share")
    figure.savefig(out, dpi=150)


def _panels(lines: list[list[dict[str, Any]]]) -> list[str]:
    found = [key for key in PANELS if any(len(series(run_lines, key)[0]) for run_lines in lines)]
    if "charts/solve_rate" in found and "charts/episodic_return" in found:
        found.remove("charts/episodic_return")
    return found


def _draw_line(axes: Any, steps: np.ndarray, values: np.ndarray, smooth: int, colour: str, label: str) -> None:
    if len(steps) == 0:
        return
    mean, width = mean_and_ci(running_mean(values, smooth))
    if smooth > 1 and values.shape[1] == 1:
        axes.plot(steps, values[:, 0], color=colour, linewidth=0.7, alpha=0.25)
    axes.plot(steps, mean, color=colour, linewidth=1.7, label=label, marker="o" if len(steps) == 1 else None)
    if values.shape[1] > 1:
        axes.fill_between(steps, mean - width, mean + width, color=colour, alpha=0.18, linewidth=0)


def running_mean(values: np.ndarray, width: int) -> np.ndarray:
    """Mean over `width` rows around each row (fewer at the ends), leaving out NaN. values: [T, seeds]."""
    kernel = np.ones(min(width, len(values)))
    known = ~np.isnan(values)

    def total(x: np.ndarray) -> np.ndarray:
        return np.stack([np.convolve(column, kernel, mode="same") for column in x.T], axis=1)

    count = total(known.astype(np.float64))
    return np.where(count > 0, total(np.where(known, values, 0.0)) / np.maximum(count, 1), np.nan)


def _title(records: list[dict[str, Any]], lines: list[list[dict[str, Any]]]) -> str:
    envs = list(dict.fromkeys(str(record["args"].get("env_id")) for record in records))
    scripts = list(dict.fromkeys(record["script"] for record in records))
    text = f"{', '.join(scripts)} on {', '.join(envs)}"
    seeds = {series(run_lines, "charts/episodic_return")[1].shape[1] for run_lines in lines}
    return f"{text}, mean and 95 % interval of {seeds.pop()} seeds" if len(seeds) == 1 and max(seeds) > 1 else text


def main(runs: Positional[tuple[Path, ...]], out: Path, title: str | None = None, smooth: int | None = None) -> None:
    """Draws several runs in one picture.

    Args:
        runs: Folders of the runs.
        out: The picture to write (.png, .pdf or .svg).
        title: Title of the picture.
        smooth: Lines in the running mean (default: about a fiftieth of the run).
    """
    for run in runs:
        if not (run / "args.json").is_file():
            raise SystemExit(f"{run}: not the folder of a run (it has no args.json)")
    if not draw(runs, out, title=title, smooth=smooth):
        raise SystemExit(f"{', '.join(map(str, runs))}: nothing to draw; none of their updates is on record")


if __name__ == "__main__":
    import tyro

    tyro.cli(main)
