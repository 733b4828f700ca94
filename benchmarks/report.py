"""Starts measure.py, stores its results and draws them, for compare.py and scaling.py."""

import datetime
import json
import math
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from benchmarks import measure
from common.run import devices

FAILED = "failed: "  # marks a problem that may be gone the next time


def run_worker(
    spec: dict[str, Any], timeout: float, python: str | Path = sys.executable, num_cpu_devices: int | None = None
) -> dict[str, Any]:
    """Makes one measurement in a fresh process. If it cannot be made, the result's `problem` says why."""
    environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false", "TF_CPP_MIN_LOG_LEVEL": "3"}
    if num_cpu_devices is not None:
        environment["JAX_NUM_CPU_DEVICES"] = str(num_cpu_devices)
    command = [str(python), measure.__file__, json.dumps(spec)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, env=environment, cwd=measure.ROOT
        )
    except subprocess.TimeoutExpired:
        return {"problem": f"took more than {timeout:.0f} s"}
    if done.returncode == -9:
        return {"problem": "killed, as Linux does when memory runs out"}
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        # Not simply the last line, because JAX ends its tracebacks with a remark.
        errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
        return {"problem": FAILED + (errors or lines)[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def describe(result: dict[str, Any]) -> str:
    if "problem" in result:
        return result["problem"]
    return (
        f"{result['steps_per_second']:,.0f} steps/s, {result['peak_bytes'] / 1e6:,.0f} MB, "
        f"compiled in {result['compile_s']:.1f} s, {result['updates']} updates"
    )


def git(*command: str) -> str:
    """Returns git's output, which is empty without git or a repository."""
    try:
        done = subprocess.run(["git", "-C", str(measure.ROOT), *command], capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip()


class Results:
    """The measurements in <out>.json, which is written after each one. Those of another commit are not used, but stay
    in the file until the same setting is measured again."""

    def __init__(self, out: Path, again: bool):
        self.path = out.with_name(out.name + ".json")
        self.again = again
        self.commit = git("rev-parse", "HEAD") or "unknown"
        # Only changes of code count: a new table or text in the repository makes no result outdated.
        self.commit += " with changes" if git("status", "--porcelain", "--", "*.py") else ""
        self.points: list[dict[str, Any]] = []
        self.devices = devices.machine()
        self.summary: list[dict[str, Any]] = []
        if self.path.exists():
            record = json.loads(self.path.read_text())
            if record.get("devices") != self.devices:
                elsewhere = f"name another file, as in --out runs/{out.name}"
                raise SystemExit(f"--out {out}: {self.path} was measured on another machine; {elsewhere}")
            self.points = record["points"]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.measured: list[dict[str, Any]] = []  # by this process

    def get(self, setting: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the result of a point measured earlier, unless it has to be measured again."""
        done = self.measured if self.again else self.points
        found = (p["result"] for p in done if p["setting"] == setting and p["commit"] == self.commit)
        return next((result for result in found if not result.get("problem", "").startswith(FAILED)), None)

    def add(self, setting: dict[str, Any], result: dict[str, Any]) -> None:
        self.points = [p for p in self.points if p["setting"] != setting]
        self.points.append({"setting": setting, "commit": self.commit, "date": now(), "result": result})
        self.measured.append(self.points[-1])
        self.write()

    def current(self) -> list[dict[str, Any]]:
        return [{**p["setting"], **p["result"]} for p in self.points if p["commit"] == self.commit]

    def write(self) -> None:
        record = {
            "command": shlex.join(["python", *sys.argv]),
            "date": now(),
            "commit": self.commit,
            "devices": self.devices,
            "summary": self.summary,
            "points": self.points,
        }
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(record, indent=1) + "\n")
        os.replace(part, self.path)

    def caption(self) -> str:
        """Returns a line to put below a table or picture: where, when and with what."""
        points = self.current()
        devices = "; ".join(sorted({p["device"] for p in points if "device" in p and "CPU" not in p["device"]}))
        jax = " and ".join(dict.fromkeys(p["versions"]["jax"] for p in points if "versions" in p))
        where = f"{self.devices['cpu']}, {self.devices['cores']} cores, {self.devices['memory_gb']} GB"
        where = f"{devices} ({where})" if devices else where
        return f"{where}; JAX {jax or '?'}; commit {self.commit[:7] + self.commit[40:]}; {now()[:10]}"


def now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def new_figure(rows: int, columns: int, title: str) -> tuple[Any, Any]:
    """Makes a figure with rows x columns axes. -> figure, axes [rows, columns]."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * columns, 3.0 * rows + 0.5), layout="constrained")
    figure.suptitle(title, fontsize=13)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.grid(linewidth=0.5, alpha=0.35)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def finish_axis(axis: Any, ticks: list[int], log: bool) -> None:
    """Puts plain numbers on both axes: `ticks` below; on the left whole decades (`log`), or all from 0."""
    from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks], rotation=30 if max(ticks) > 100 else 0)
    axis.xaxis.set_minor_locator(NullLocator())
    axis.margins(x=0.12, y=0.15)
    if log:
        axis.set_yscale("log")
        low, high = axis.get_ylim()
        axis.set_ylim(10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high)))
        axis.yaxis.set_minor_formatter(NullFormatter())
    else:
        axis.set_ylim(0, 1.12 * axis.get_ylim()[1])  # room for remarks above the points
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.10g}"))


def save_figure(figure: Any, path: Path, caption: str) -> None:
    for axis in figure.axes:
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False, fontsize=9)
    figure.supxlabel(textwrap.fill(caption, int(13 * figure.get_figwidth())), fontsize=9, color="0.35")
    figure.savefig(path, dpi=150)
