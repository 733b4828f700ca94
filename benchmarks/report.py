"""What the benchmarks share: measurements in processes of their own, what peers need, results and pictures."""

import datetime
import hashlib
import json
import math
import os
import re
import shlex
import subprocess
import sys
import textwrap
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks import measure
from common.run import devices
from common.run.folder import git, write_atomically

TIMEOUT = 1800  # seconds, after which a measurement is abandoned
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ppo-scaling"


def make_python(name: str, *packages: str) -> Path:
    """Returns the Python of a virtual environment with these packages, which the first call makes in ~/.cache."""
    folder = CACHE / name
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        print(f"making {folder}: {' '.join(packages)}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True, cwd=measure.ROOT)
        complete.touch()
    return python


def download(url: str, sha256: str) -> Path:
    """Returns this version of a file, which is kept in ~/.cache."""
    path = CACHE / sha256[:8] / Path(url).name
    try:
        content = path.read_bytes() if path.exists() else urllib.request.urlopen(url, timeout=60).read()
    except OSError as error:
        raise SystemExit(f"{url}: {error}; without network, put the file at {path}") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise SystemExit(f"{path} is not {url}")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return path


def run_worker(
    spec: dict[str, Any], python: str | Path = sys.executable, num_cpu_devices: int | None = None
) -> dict[str, Any]:
    """Makes one measurement in a fresh process. If it cannot be made, the result's `problem` says why."""
    environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false", "TF_CPP_MIN_LOG_LEVEL": "3"}
    if num_cpu_devices is not None:
        environment["JAX_NUM_CPU_DEVICES"] = str(num_cpu_devices)
    command = [str(python), measure.__file__, json.dumps(spec)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT, env=environment, cwd=measure.ROOT
        )
    except subprocess.TimeoutExpired:
        return {"problem": f"took more than {TIMEOUT} s"}
    if done.returncode == -9:
        return {"problem": "killed, as Linux does when memory runs out"}
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        # Not simply the last line, because JAX ends its tracebacks with a remark.
        errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
        return {"problem": f"failed: {(errors or lines)[-1]}"}
    return json.loads(done.stdout.splitlines()[-1])


def describe(result: dict[str, Any]) -> str:
    if "problem" in result:
        return result["problem"]
    return (
        f"{result['steps_per_second']:,.0f} steps/s, {result['peak_bytes'] / 1e6:,.0f} MB, "
        f"compiled in {result['compile_s']:.1f} s, {result['updates']} updates"
    )


def record(**found: Any) -> dict[str, Any]:
    """Results with what made them: command, time, commit and machine."""
    changes = " with changes" * bool(git(measure.ROOT, "status", "--porcelain", "--", "*.py"))
    return {
        "command": shlex.join(["python", *sys.argv]),
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "commit": (git(measure.ROOT, "rev-parse", "HEAD") or "") + changes,
        "hardware": devices.machine(),
    } | found


def write(out: Path, value: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, json.dumps(value, indent=1) + "\n")


def caption(points: list[dict[str, Any]]) -> str:
    """A line to put below a picture: where, when and with what these were measured."""
    results, made = [point["result"] for point in points], record()
    gpus = "; ".join(sorted({x["device"] for x in results if "device" in x and "CPU" not in x["device"]}))
    jax = " and ".join(dict.fromkeys(x["versions"]["jax"] for x in results if "versions" in x))
    machine = made["hardware"]
    where = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB"
    where = f"{gpus} ({where})" if gpus else where
    return f"{where}; JAX {jax or '?'}; commit {made['commit'][:7] + made['commit'][40:]}; {made['date'][:10]}"


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
