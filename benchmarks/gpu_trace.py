"""Counts the kernels that a device really launches in one update, to hold against gpu_compile.py.

python benchmarks/gpu_trace.py --out results/gpu_trace.json -- ppo.py --num-envs 65536
"""

import argparse
import importlib
import json
import os
import shlex
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import common.run.early  # noqa: F401, I001 (before JAX)

import jax

from common.run import arguments, devices


def traced(step, state, folder: str) -> float:
    """Seconds of one update, of which the profile is in `folder` afterwards."""
    with jax.profiler.trace(folder):
        began = time.perf_counter()
        jax.block_until_ready(step(state))
        return time.perf_counter() - began


def kernels(folder: str) -> tuple[Counter, float]:
    """How often each kernel ran on the first GPU, and the seconds that they ran for. Copies are kernels, too."""
    (file,) = Path(folder).rglob("*.xplane.pb")
    names, nanoseconds = Counter(), 0.0
    for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
        if plane.name == "/device:GPU:0":
            for line in plane.lines:
                if line.name.startswith("Stream"):
                    for event in line.events:
                        names[event.name] += 1
                        nanoseconds += event.duration_ns
    return names, nanoseconds / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="a JSON file; an entry is added to it")
    parser.add_argument("command", nargs="+", metavar="script and flags", help="after --")
    given = parser.parse_args()
    name, *flags = given.command
    script = importlib.import_module(Path(name).stem)
    args = arguments.parse(script.Args, "", flags)
    devices.start(args)
    args, _, _, init, step, _, keys = script.build(arguments.apply_scaling(args))
    state = init(keys)
    for _ in range(2):  # compiles, and warms up
        state, *_ = step(state)
    began = time.perf_counter()
    state, *_ = jax.block_until_ready(step(state))
    seconds = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        while_traced = traced(step, state, folder)
        names, busy = kernels(folder)
    found = {
        "command": shlex.join(given.command),
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "seconds": seconds,
        "seconds_while_traced": while_traced,
        "kernels": names.total(),
        "seconds_in_kernels": busy,
        "most_frequent": dict(names.most_common(30)),
    }
    print(
        f"{found['command']}: {found['kernels']:,} kernels, {seconds * 1e3:.1f} ms per update, {busy * 1e3:.1f} in them"
    )
    rows = json.loads(given.out.read_text()) if given.out.exists() else []
    given.out.write_text(json.dumps([*rows, found], indent=1) + "\n")


if __name__ == "__main__":
    main()
