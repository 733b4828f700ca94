"""Compiles one update of a script for an H100, on a machine that has none, and counts what the GPU would launch.

    python benchmarks/gpu_compile.py -- ppo.py --num-envs 65536
    python benchmarks/gpu_compile.py --table          # results/gpu_compile.json: all scripts

Launches and memory are those of the program that XLA makes; a kernel that XLA would choose by trying it on the device
(a matrix product) may be another there. The first call makes its own environment with JAX's CUDA wheels (6 GB) in
~/.cache/ppo-scaling. XLA_FLAGS are those of the environment variable.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.measure import ROOT
from benchmarks.report import make_python

LAUNCH_US = 2.5  # assumed: from the end of one small kernel to the start of the next
NOTHING = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "optimization-barrier"}
TABLE = {
    "Breakout 2048 x 32, M = 32": "ppo.py",
    "Breakout 65536 x 32, M = 1024": "ppo.py --num-envs 65536",
    "Breakout 1048576 x 32, M = 16384": "ppo.py --num-envs 1048576 --total-timesteps 100000000",
    "Breakout 2048 x 32, 8 seeds": "ppo.py --num-seeds 8",
    "Breakout 2048 x 32, M = 4": "ppo.py --minibatch-size 16384",
    "Breakout 2048 x 32, PPO-EWMA": "ppo_ewma.py --com 32",
    "Breakout 2048 x 32, PQN": "pqn.py --num-envs 2048 --minibatch-size 2048 --update-epochs 4 --network mlp",
    "CartPole 2048 x 32": "ppo.py --env-id CartPole-v1",
    "Kinetix locomotion 2048 x 32": "ppo.py --env-id kinetix/locomotion",
    "SFL, Kinetix s, 256 x 256": "sfl_kinetix.py --num-envs 256 --num-steps 256",
}


class Instruction(NamedTuple):
    """One line of an optimised HLO program."""

    op: str
    rest: str  # operands, attributes and metadata

    def attribute(self, pattern: str) -> str | None:
        found = re.search(pattern, self.rest)
        return found and found[1]


class Program:
    """An optimised HLO program, parsed: its computations, and the functions of our code that its lines come from."""

    def __init__(self, text: str):
        self.computations: dict[str, list[Instruction]] = {}
        self.entry = ""
        self._frames = _read_frames(text)
        for line in re.sub(r"/\*.*?\*/", "", text).splitlines():
            if header := re.match(r"(ENTRY )?%([\w.\-]+) \(.*\{\s*$", line):
                body = self.computations[header[2]] = []
                self.entry = header[2] if header[1] else self.entry
            elif found := re.match(r"\s+(?:ROOT )?%[\w.\-]+ = .*? ([a-z][a-z\-]*)(\(.*)", line):
                body.append(Instruction(*found.groups()))

    def function(self, instruction: Instruction) -> str:
        """The innermost function of this repository that an instruction comes from, without its outer ones."""
        frame = instruction.attribute(r"stack_frame_id=(\d+)")
        for name in self._frames(int(frame)) if frame else ():
            # What wraps a loop for its caller is not what a reader looks for.
            if name.split(".")[-1] not in ("scan_mean", "<lambda>", "<module>"):
                return name.split(".")[-1]
        return "?"

    def kind(self, x: Instruction) -> str:
        """What a kernel does, in one word."""
        if x.op != "fusion":
            return "product" if x.op in ("dot", "custom-call") else "copy" if x.op.startswith("copy") else x.op
        ops = {y.op for y in self.computations[x.attribute(r"calls=%([\w.\-]+)")]}
        for op, word in (("dot", "product"), ("fusion", "product"), ("scatter", "scatter"), ("reduce", "reduction")):
            if op in ops:
                return word
        return "update in place" if "dynamic-update-slice" in ops else "elementwise"


def _read_frames(text: str) -> Callable[[int], Iterator[str]]:
    """-> function: stack frame -> names of the scripts' and common's functions, innermost first."""

    def section(name: str) -> dict[int, str]:
        found = re.search(rf"^{name}\n(.*?)\n\n", text, flags=re.M | re.S)
        rows = [row.split(" ", 1) for row in found[1].splitlines()] if found else []
        return {int(number): row for number, row in rows}

    def field(row: str, name: str) -> int:
        return int(re.search(rf"{name}=(\d+)", row)[1])

    files, functions, places, frames = map(section, ("FileNames", "FunctionNames", "FileLocations", "StackFrames"))
    ours = {number for number, name in files.items() if "/site-packages/" not in name}

    def names(frame: int) -> Iterator[str]:
        while frame in frames:
            place = places[field(frames[frame], "file_location_id")]
            if field(place, "file_name_id") in ours:
                yield functions[field(place, "function_name_id")].strip('"')
            frame = field(frames[frame], "parent_frame_id") - 1  # 1: none

    return names


@dataclass
class Loop:
    """A loop, a branch or the program itself, with the kernels of one turn outside of the loops inside it."""

    name: str  # the function it is in
    turns: int | None  # None: until a condition; it is counted as one turn
    kernels: Counter
    parts: list["Loop"]

    def launches(self) -> int:
        """Of all its turns, with what is inside, of branches the longest."""
        inner = [part.launches() for part in self.parts if part.name != "branch"]
        longest = max((part.launches() for part in self.parts if part.name == "branch"), default=0)
        return (self.turns or 1) * (self.kernels.total() + sum(inner) + longest)

    def within(self) -> list["Loop"]:
        """Itself and all loops inside."""
        return [self] + [loop for part in self.parts for loop in part.within()]

    def per_turn(self, name: str) -> int | None:
        """Launches of a turn of the loop of this name that has the most."""
        found = max((x for x in self.within() if x.name == name), key=Loop.launches, default=None)
        return found and found.launches() // (found.turns or 1)


def loops(program: Program) -> Loop:
    """The program as a tree of loops."""

    def walk(computation: str, name: str, turns: int | None) -> Loop:
        here = Loop(name, turns, Counter(), [])
        for x in program.computations[computation]:
            if x.op == "while":
                count = x.attribute(r'known_trip_count":\{"n":"(\d+)"')
                inner = walk(x.attribute(r"body=%([\w.\-]+)"), program.function(x), int(count) if count else None)
                if not count:  # the condition is looked at before and after the one turn
                    inner.parts.append(walk(x.attribute(r"condition=%([\w.\-]+)"), "condition", 2))
                here.parts.append(inner)
            elif x.op == "conditional":
                names = re.findall(r"(?:true|false)_computation=%([\w.\-]+)", x.rest)
                names = names or re.findall(r"%([\w.\-]+)", x.attribute(r"branch_computations=\{([^}]*)\}"))
                here.parts.append(Loop(program.function(x), 1, Counter(), [walk(n, "branch", 1) for n in names]))
            elif x.op == "call":
                here.parts.append(walk(x.attribute(r"to_apply=%([\w.\-]+)"), "call", 1))
            elif x.op not in NOTHING:
                here.kernels[program.kind(x)] += 1
        return here

    return walk(program.entry, "update", 1)


def report(program: Program, info: dict[str, Any]) -> dict[str, Any]:
    """The numbers of one compiled update."""
    top = loops(program)
    return info | {
        "per_minibatch": top.per_turn("epoch"),
        "per_environment_step": top.per_turn("rollout"),
        "per_update": top.launches(),
        "launch_bound_ms": round(top.launches() * LAUNCH_US / 1e3, 1),
        "loops": [
            {"loop": x.name, "turns": x.turns, "launches": x.kernels.total(), "kinds": dict(x.kernels.most_common())}
            for x in top.within()
            if x.kernels
        ],
    }


def show(found: dict[str, Any]) -> str:
    memory = found["memory_mb"]
    lines = [
        f"{found['command']}   for one {found['target']}, compiled in {found['compile_s']:.0f} s",
        f"launches: {found['per_minibatch']} per minibatch, {found['per_environment_step']} per environment step, "
        f"{found['per_update']:,} per update, which take {found['launch_bound_ms']} ms at {LAUNCH_US} us each",
        f"memory: {memory['arguments']} MB state, {memory['temporary']} MB for the update",
    ]
    for row in found["loops"]:
        kinds = ", ".join(f"{count} {name}" for name, count in row["kinds"].items())
        lines.append(f"  {row['loop']:<16} x {row['turns'] or '?':<7} {row['launches']:>4} launches ({kinds})")
    return "\n".join(lines)


# What runs in that environment: compile the update of one script, and write the program and what XLA says of it.
COMPILE = """
import importlib, json, sys, time
spec = json.loads(sys.argv[1])
sys.path.insert(0, spec["root"])
import jax, numpy as np
from jax.experimental import topologies
topology = topologies.get_topology_desc(platform="cuda", target_config=spec["target"], topology="1x1x1")
from common.run import arguments, devices
devices.choose_devices = lambda *sizes, **limits: list(topology.devices)
def keys(self, seed):  # only their shapes: there is no device to put them on
    seeds = jax.numpy.arange(self._num_seeds)
    return jax.eval_shape(lambda: jax.vmap(jax.random.key)(seeds) if len(seeds) > 1 else jax.random.key(seed))
devices.OnDevices.keys = keys
script = importlib.import_module(spec["script"])
args = arguments.apply_scaling(arguments.parse(script.Args, "", spec["flags"]))
began = time.perf_counter()
if spec["script"] == "sfl_kinetix":
    args, env, network, programs, keys = script.build(args)
    inputs = jax.eval_shape(programs.init, keys), jax.eval_shape(lambda k: programs.sample(k, script.FRESH, 0), keys)
    update = programs.update
else:
    args, env, network, init, update, measure, keys = script.build(args)
    inputs = (jax.eval_shape(init, keys),)
compiled = update.lower(*inputs).compile()
memory = compiled.memory_analysis()
info = {"compile_s": round(time.perf_counter() - began, 1), "target": topology.devices[0].device_kind}
info["memory_mb"] = {"arguments": round(memory.argument_size_in_bytes / 1e6, 1)}
info["memory_mb"]["temporary"] = round(memory.temp_size_in_bytes / 1e6, 1)
open(spec["out"], "w").write(json.dumps([compiled.as_text(), info]))
"""


def compile_update(command: list[str]) -> tuple[str, dict[str, Any]]:
    """-> optimised HLO, {compile_s, target, memory_mb, ...} of a script's update. command: script and its flags."""
    python = make_python(
        f"gpu-compile-jax-{version('jax')}", "-r", "requirements.txt", f"jax[cuda12]=={version('jax')}"
    )
    # Level 0: tuning would try kernels on a device.
    flags = f"--xla_gpu_autotune_level=0 {os.environ.get('XLA_FLAGS', '')}"
    env = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "PYTHONWARNINGS": "ignore"}
    env |= {"XLA_FLAGS": flags, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    with tempfile.TemporaryDirectory() as folder:
        spec = {"root": str(ROOT), "script": Path(command[0]).stem, "flags": command[1:], "out": f"{folder}/out.json"}
        spec["target"] = (ROOT / "benchmarks" / "gpus" / "h100.txt").read_text()
        done = subprocess.run([python, "-c", COMPILE, json.dumps(spec)], env=env, cwd=folder)
        if done.returncode:
            raise SystemExit(f"{shlex.join(command)}: was not compiled")
        text, info = json.loads(Path(spec["out"]).read_text())
    return text, info | {"command": shlex.join(command), "xla_flags": os.environ.get("XLA_FLAGS", "")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hlo", type=Path, help="also write the optimised program here")
    parser.add_argument("--table", action="store_true", help="compile all that results/gpu_compile.json lists")
    parser.add_argument("command", nargs="*", metavar="script and flags", help="after --")
    args = parser.parse_args()
    if args.table == bool(args.command):
        parser.error("give either --table or, after --, a script and its flags")
    rows = {}
    for name, command in TABLE.items() if args.table else [("", shlex.join(args.command))]:
        text, info = compile_update(shlex.split(command))
        if args.hlo:
            args.hlo.write_text(text)
        rows[name] = report(Program(text), info)
        print(show(rows[name]), flush=True)
    if args.table:
        made = {"made_by": shlex.join(["python", "benchmarks/gpu_compile.py", *sys.argv[1:]]), "rows": rows}
        (ROOT / "results" / "gpu_compile.json").write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
