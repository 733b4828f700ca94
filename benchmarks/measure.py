"""What compare.py and scaling.py share: one measurement in a process of its own, and the files that results go to.

Run as a program it is that process. It then needs JAX and what it measures, nothing else:

    python benchmarks/measure.py '{"system": "ours", "args": {"num_envs": 64}, "updates": 5}'

Speed: environment steps of training (acting and learning) per second, from the median time of an update, each waited
for; the first one is left out where there are three or more. Memory on a CPU: the process's peak less what it held
after its imports; on an accelerator: the allocator's peak, all devices together. Compile time: tracing and compiling
one update, no cache.
"""

import datetime
import json
import os
import platform
import re
import resource
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "gymnax", "rejax")
FAILED = "failed: "
# Of the free memory; XLA's figure leaves out what the process needs for itself.
USABLE = 0.95
OF_ENVIRONMENTS = ("env_state", "last_obs", "last_done")  # in rejax's state


# In the worker


def proc_bytes(path: str, name: str) -> int | None:
    """A line such as `VmRSS:   1234 kB` of a file in /proc; None where there is no such file."""
    try:
        return int(re.search(rf"{name}:\s+(\d+) kB", Path(path).read_text())[1]) * 1024
    except (OSError, TypeError):
        return None


def peak_bytes() -> int:
    # Not ru_maxrss where VmHWM is known: Linux hands the parent's peak down to a new process in ru_maxrss.
    unit = 1 if sys.platform == "darwin" else 1024
    return proc_bytes("/proc/self/status", "VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def load_ours() -> Callable[[dict[str, Any]], tuple]:
    sys.path.insert(0, str(ROOT))
    import gymnax  # noqa: F401 - ppo.py imports it when it needs it, but rejax at once
    import jax

    import ppo
    from common import hardware

    def build(spec: dict[str, Any]) -> tuple:
        args = ppo.Args(**{name: tuple(v) if isinstance(v, list) else v for name, v in spec["args"].items()})
        if hasattr(hardware, "start"):
            hardware.start(args)
        else:
            hardware.one_device_per_core()
        args, _, _, init, step, keys = ppo.build(args)
        return step, jax.jit(init)(keys), args.batch_size, args.num_devices

    return build


def load_rejax() -> Callable[[dict[str, Any]], tuple]:
    from functools import partial

    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from rejax import PPO

    def build(spec: dict[str, Any]) -> tuple:
        algorithm = PPO.create(**spec["args"])
        state = jax.jit(algorithm.init_state)(jax.random.PRNGKey(0))
        devices, keep = jax.devices()[: spec["devices"]], lambda state: state
        if len(devices) > 1:
            # rejax leaves devices to its user; XLA then divides the program as the environments are divided.
            mesh = Mesh(np.array(devices), ("device",))
            split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("device",), ()))
            layout = jax.tree.map(lambda _: whole, state).replace(
                **{name: jax.tree.map(lambda _: split, getattr(state, name)) for name in OF_ENVIRONMENTS}
            )
            state = jax.device_put(state, layout)
            keep = partial(jax.lax.with_sharding_constraint, shardings=layout)
        batch_size = spec["args"]["num_envs"] * spec["args"]["num_steps"]
        # What algorithm.train does between two evaluations, once.
        return lambda state: (keep(algorithm.train_iteration(state)), {}), state, batch_size, len(devices)

    return build


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    build = {"ours": load_ours, "rejax": load_rejax}[spec["system"]]()
    bare = proc_bytes("/proc/self/status", "VmRSS") or peak_bytes()
    free = proc_bytes("/proc/meminfo", "MemAvailable") or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    import jax

    step, state, batch_size, num_devices = build(spec)
    devices = jax.devices()[:num_devices]
    on_cpu = devices[0].platform == "cpu"
    began = time.perf_counter()
    compiled = jax.jit(step, donate_argnums=0).lower(state).compile()
    compile_s = time.perf_counter() - began
    sizes = compiled.memory_analysis()
    program = sizes.temp_size_in_bytes + sizes.argument_size_in_bytes
    program = (program + sizes.output_size_in_bytes - sizes.alias_size_in_bytes) * num_devices
    result = {
        "compile_s": compile_s,
        "program_bytes": program,
        "num_devices": num_devices,
        "device": platform.machine() + " CPU" if on_cpu else devices[0].device_kind,
        "versions": versions(),
    }
    if not on_cpu:
        free = devices[0].memory_stats()["bytes_limit"] * num_devices
    if program > USABLE * free:
        return result | {"problem": f"does not fit: needs {program / 1e9:.1f} GB of {free / 1e9:.1f} GB free"}
    seconds, wanted = [], spec.get("updates")
    while len(seconds) < (wanted or 2) or (wanted is None and sum(seconds) < spec["seconds"]):
        began = time.perf_counter()
        state, _ = jax.block_until_ready(compiled(state))
        seconds.append(time.perf_counter() - began)
    counted = seconds[1:] if len(seconds) > 2 else seconds
    median = statistics.median(counted)
    peak = peak_bytes() - bare if on_cpu else sum(d.memory_stats()["peak_bytes_in_use"] for d in devices)
    return result | {
        "steps_per_second": batch_size / median,
        "update_s": {"median": median, "min": min(counted), "max": max(counted), "first": seconds[0]},
        "updates": len(seconds),
        "peak_bytes": peak,
        "bare_bytes": bare,
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


# In the process that asks for measurements


def run_worker(
    spec: dict[str, Any], timeout: float, python: str | Path = sys.executable, num_cpu_devices: int | None = None
) -> dict[str, Any]:
    """One measurement in a fresh process; what keeps it from being made is told in the result's `problem`."""
    environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false", "TF_CPP_MIN_LOG_LEVEL": "3"}
    if num_cpu_devices is not None:
        environment["JAX_NUM_CPU_DEVICES"] = str(num_cpu_devices)
    command = [str(python), __file__, json.dumps(spec)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment, cwd=ROOT)
    except subprocess.TimeoutExpired:
        return {"problem": f"took more than {timeout:.0f} s"}
    if done.returncode == -9:
        return {"problem": "killed, as Linux does when memory runs out"}
    lines = (done.stderr if done.returncode else done.stdout).strip().splitlines() or ["no output"]
    if done.returncode:
        return {
            "problem": FAILED + next((x for x in reversed(lines) if re.match(r"[\w.]+(Error|Exception)", x)), lines[-1])
        }
    return json.loads(lines[-1])


def describe(result: dict[str, Any]) -> str:
    if "problem" in result:
        return result["problem"]
    return (
        f"{result['steps_per_second']:,.0f} steps/s, {result['peak_bytes'] / 1e6:,.0f} MB, "
        f"compiled in {result['compile_s']:.1f} s, {result['updates']} updates"
    )


def git(*command: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *command], capture_output=True, text=True)
    return done.stdout.strip()


def machine() -> dict[str, Any]:
    try:
        cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())[1]
    except (OSError, TypeError):
        cpu = platform.processor() or platform.machine()
    memory = proc_bytes("/proc/meminfo", "MemTotal") or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": cpu, "cores": cores, "memory_gb": round(memory / 1e9, 1)}


class Results:
    """The measurements of <out>.json, written after each one. Those of another commit stay in the file until the same
    is measured again, but count for nothing."""

    def __init__(self, out: Path, again: bool):
        self.path = out.with_name(out.name + ".json")
        self.again = again
        # Only what is measured: a new table or text in the repository does not make a result outdated.
        self.commit = git("rev-parse", "HEAD") + (" with changes" if git("status", "--porcelain", "--", "*.py") else "")
        self.points: list[dict[str, Any]] = []
        self.hardware = machine()
        self.summary: list[dict[str, Any]] = []
        if self.path.exists():
            record = json.loads(self.path.read_text())
            if record["hardware"] != self.hardware:
                raise SystemExit(f"{self.path} was measured on another machine; name another file with --out")
            self.points = record["points"]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.measured: list[dict[str, Any]] = []  # by this process

    def get(self, setting: dict[str, Any]) -> dict[str, Any] | None:
        """The result of a point measured earlier, unless it has to be measured again."""
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
            "hardware": self.hardware,
            "summary": self.summary,
            "points": self.points,
        }
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(record, indent=1) + "\n")
        os.replace(part, self.path)

    def caption(self) -> str:
        """One line for below a table or picture: where, when and with what."""
        points = self.current()
        devices = "; ".join(sorted({p["device"] for p in points if "device" in p and "CPU" not in p["device"]}))
        jax = " and ".join(dict.fromkeys(p["versions"]["jax"] for p in points if "versions" in p))
        where = f"{self.hardware['cpu']}, {self.hardware['cores']} cores, {self.hardware['memory_gb']:.0f} GB"
        where = f"{devices} ({where})" if devices else where
        return f"{where}; JAX {jax}; commit {self.commit[:7]}{self.commit[40:]}; {now()[:10]}"


def now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def new_figure(rows: int, columns: int, title: str) -> tuple[Any, Any]:
    """A figure with rows x columns axes. -> figure, axes [rows, columns]."""
    from matplotlib.figure import Figure  # here, not above: the worker may have no matplotlib

    figure = Figure(figsize=(4.6 * columns, 3.6 * rows + 0.5), layout="constrained")
    figure.suptitle(title, fontsize=13)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.grid(linewidth=0.5, alpha=0.35)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save_figure(figure: Any, path: Path, caption: str) -> None:
    for axis in figure.axes:
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False, fontsize=9)
    figure.supxlabel(caption, fontsize=8, color="0.35")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
