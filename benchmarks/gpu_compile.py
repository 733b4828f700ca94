"""Compiles one update of a script for a GPU, on a machine that needs none, and counts what the GPU would launch.

    python benchmarks/gpu_compile.py -- ppo.py --num-envs 65536
    python benchmarks/gpu_compile.py --table          # results/gpu_compile.json: all scripts

Launches and memory are those of the program that XLA makes; a kernel that XLA would choose by trying it on the device
(a matrix product) may be another there. Times are estimates from the assumptions in `Assumed`, which every report
names. The first call makes its own environment with JAX's CUDA wheels (6 GB) in ~/.cache/ppo-scaling.
"""

import dataclasses
import json
import math
import os
import re
import shlex
import subprocess
import sys
import venv
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).absolute().parents[1]
TARGETS = Path(__file__).parent / "gpus"
BYTES = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "f16": 2, "bf16": 2, "s32": 4, "u32": 4, "f32": 4}
BYTES |= {"s64": 8, "u64": 8, "f64": 8, "c64": 8}
NOTHING = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "optimization-barrier"}
ARITHMETIC = {"add", "subtract", "multiply", "divide", "maximum", "minimum", "exponential", "tanh", "log", "power"}
ARITHMETIC |= {"sqrt", "rsqrt", "negate", "abs", "select", "compare", "and", "or", "xor", "not", "clamp"}
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


@dataclasses.dataclass(frozen=True)
class Assumed:
    """What the estimated times rest on."""

    launch_us: float = 2.5  # from the end of one small kernel to the start of the next
    terabytes_per_second: float = 3.0
    teraflops: float = 60.0  # float32 as TensorFloat-32 where XLA may; far from the peak, as small products are


@dataclasses.dataclass
class Instruction:
    """One line of an optimised HLO program."""

    name: str
    type: str
    op: str
    operands: list[str]
    rest: str  # attributes and metadata
    is_root: bool

    def attribute(self, pattern: str) -> str | None:
        found = re.search(pattern, self.rest)
        return found and found[1]

    @property
    def size(self) -> int:
        return sum(BYTES[kind] * count for kind, count in shapes(self.type))

    @property
    def elements(self) -> int:
        return sum(count for _, count in shapes(self.type))


def shapes(text: str) -> list[tuple[str, int]]:
    """Element type and number of elements of each array in a type."""
    found = re.findall(r"\b(\w+)\[([\d,]*)\]", text)
    return [(kind, math.prod(int(n) for n in dims.split(",") if n)) for kind, dims in found if kind in BYTES]


def closing(text: str, start: int) -> int:
    """Position after the bracket that closes the one at `start`."""
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] in "({") - (text[position] in ")}")
        if depth == 0:
            return position + 1
    raise ValueError(f"unbalanced: {text[start : start + 80]}")


class Program:
    """An optimised HLO program, parsed: its computations, and the functions of our code that its lines come from."""

    def __init__(self, text: str):
        self.computations: dict[str, list[Instruction]] = {}
        self.entry = ""
        self._frames = _read_frames(text)
        body: list[Instruction] | None = None
        for line in re.sub(r"/\*.*?\*/", "", text).splitlines():
            header = re.match(r"(ENTRY )?%([\w.\-]+) \(.*\{\s*$", line)
            if header:
                body = self.computations[header[2]] = []
                self.entry = header[2] if header[1] else self.entry
            elif line.startswith("}"):
                body = None
            elif body is not None and " = " in line:
                body.append(_read_instruction(line))
        self._flops: dict[str, int] = {}

    def function(self, instruction: Instruction) -> str:
        """The innermost function of this repository that an instruction comes from, without its outer ones."""
        frame = instruction.attribute(r"stack_frame_id=(\d+)")
        for name in self._frames(int(frame)) if frame else ():
            # What wraps a loop for its caller is not what a reader looks for.
            if name.split(".")[-1] not in ("scan_mean", "<lambda>", "<module>"):
                return name.split(".")[-1]
        return "?"

    def flops(self, computation: str) -> int:
        """Floating-point operations of a fused computation, roughly: one per element of an arithmetic result."""
        if computation not in self._flops:
            by_name = {x.name: x for x in self.computations[computation]}
            total = 0
            for x in by_name.values():
                if x.op == "dot":
                    total += product_flops(x, by_name)
                elif x.op == "fusion":
                    total += self.flops(x.attribute(r"calls=%([\w.\-]+)"))
                elif x.op in ARITHMETIC:
                    total += x.elements
                elif x.op == "reduce":
                    total += sum(by_name[name].elements for name in x.operands[: len(x.operands) // 2])
            self._flops[computation] = total
        return self._flops[computation]

    def traffic(self, x: Instruction, by_name: dict[str, Instruction]) -> int:
        """Bytes that a kernel reads and writes. Of what it only indexes into, only the rows that it touches."""
        if x.op == "dynamic-update-slice":
            return 2 * by_name[x.operands[1]].size
        if x.op != "fusion":
            return x.size + (x.size if x.op == "dynamic-slice" else sum(by_name[n].size for n in x.operands))
        inner = {y.name: y for y in self.computations[x.attribute(r"calls=%([\w.\-]+)")]}
        users = defaultdict(list)
        for y in inner.values():
            for place, name in enumerate(y.operands):
                users[name].append((y, place))

        def read(y: Instruction) -> int:
            total = 0
            for user, place in users[y.name]:
                if user.op in ("bitcast", "reshape", "copy", "transpose"):
                    total += read(user)
                elif user.op in ("dynamic-slice", "gather", "slice") and place == 0:
                    total += user.size
                elif not (user.op in ("dynamic-update-slice", "scatter") and place == 0):
                    return y.size
            return min(total, y.size)

        def written(y: Instruction) -> int:
            while y.op in ("bitcast", "reshape"):
                y = inner[y.operands[0]]
            if y.op == "tuple":
                return sum(written(inner[name]) for name in y.operands)
            if y.op == "dynamic-update-slice":
                return inner[y.operands[1]].size
            return inner[y.operands[-1]].size if y.op == "scatter" else y.size

        root = next(y for y in inner.values() if y.is_root)
        return sum(read(y) for y in inner.values() if y.op == "parameter") + written(root)


def _read_instruction(line: str) -> Instruction:
    head, text = re.match(r"\s*((?:ROOT )?%[\w.\-]+) = (.*)", line).groups()
    end = closing(text, 0) if text[0] == "(" else text.index(" ")
    kind, text = text[:end], text[end:].lstrip()
    op = re.match(r"[\w\-]+", text)[0]
    end = closing(text, len(op))
    operands = re.findall(r"%([\w.\-]+)", text[len(op) : end])
    return Instruction(head.split("%")[1], kind, op, operands, text[end:], head.startswith("ROOT"))


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


def product_flops(x: Instruction, by_name: dict[str, Instruction]) -> int:
    """2 x elements of the result x length of the sums."""
    left = re.search(r"\[([\d,]*)\]", by_name[x.operands[0]].type)[1].split(",")
    axes = x.attribute(r"lhs_contracting_dims=\{([\d,]*)\}").split(",")
    return 2 * x.elements * math.prod(int(left[int(axis)]) for axis in axes if axis)


def kind(program: Program, x: Instruction) -> str:
    """What a kernel does, in one word."""
    if x.op != "fusion":
        return "product" if x.op in ("dot", "custom-call") else "copy" if x.op.startswith("copy") else x.op
    ops = {y.op for y in program.computations[x.attribute(r"calls=%([\w.\-]+)")]}
    for op, word in (("dot", "product"), ("fusion", "product"), ("scatter", "scatter"), ("reduce", "reduction")):
        if op in ops:
            return word
    return "update in place" if "dynamic-update-slice" in ops else "elementwise"


@dataclasses.dataclass
class Loop:
    """A loop, a branch or the program itself. Counts are those of one turn without the loops inside it."""

    name: str  # the function it is in
    turns: int | None  # None: until a condition, for which the host waits; it is counted as one turn
    kernels: Counter
    bytes: int
    flops: int
    seconds: float  # of arithmetic and memory alone
    parts: list["Loop"]
    looks: int = 0  # times that the host waits for a condition
    condition: int = 0  # kernels of the condition

    def total(self) -> "Total":
        """All its turns, with what is inside, of branches the longest."""
        inner = [part.total() for part in self.parts if part.name != "branch"]
        branches = [part.total() for part in self.parts if part.name == "branch"]
        inner += [max(branches)] if branches else []
        here = [self.kernels.total(), self.bytes, self.flops, self.seconds, 0]
        turns = self.turns or 1
        launches, *rest, waits = (turns * sum(column) for column in zip(here, *inner, strict=True))
        return Total(launches + self.looks * self.condition, *rest, waits + self.looks)


class Total(NamedTuple):
    """Of all turns of a loop."""

    launches: int
    bytes: int
    flops: int
    seconds: float  # of arithmetic and memory alone
    waits: int  # of the host for the device


def loops(program: Program, assumed: Assumed) -> Loop:
    """The program as a tree of loops."""

    def walk(computation: str, name: str, turns: int | None) -> Loop:
        by_name = {x.name: x for x in program.computations[computation]}
        here = Loop(name, turns, Counter(), 0, 0, 0.0, [])
        for x in by_name.values():
            if x.op == "while":
                count = x.attribute(r'known_trip_count":\{"n":"(\d+)"')
                inner = walk(x.attribute(r"body=%([\w.\-]+)"), program.function(x), int(count) if count else None)
                if not count:
                    condition = walk(x.attribute(r"condition=%([\w.\-]+)"), "condition", 1)
                    inner.looks, inner.condition = 2, condition.kernels.total()  # before and after its one turn
                here.parts.append(inner)
            elif x.op == "conditional":
                names = re.findall(r"(?:true|false)_computation=%([\w.\-]+)", x.rest)
                names = names or re.findall(r"%([\w.\-]+)", x.attribute(r"branch_computations=\{([^}]*)\}"))
                branches = [walk(n, "branch", 1) for n in names]
                here.parts.append(Loop(program.function(x), 1, Counter(), 0, 0, 0.0, branches, looks=1))
            elif x.op == "call":
                here.parts.append(walk(x.attribute(r"to_apply=%([\w.\-]+)"), "call", 1))
            elif x.op not in NOTHING:
                fused = x.attribute(r"calls=%([\w.\-]+)") if x.op == "fusion" else None
                flops = program.flops(fused) if fused else product_flops(x, by_name) if x.op == "dot" else 0
                size = program.traffic(x, by_name)
                here.kernels[kind(program, x)] += 1
                here.bytes, here.flops = here.bytes + size, here.flops + flops
                here.seconds += max(size / assumed.terabytes_per_second, flops / assumed.teraflops) / 1e12
        return here

    return walk(program.entry, "update", 1)


def find(loop: Loop, name: str) -> Loop | None:
    """The loop of this name with the most launches."""
    found = [x for x in walk_loops(loop) if x.name == name]
    return max(found, key=lambda x: x.total().launches, default=None)


def walk_loops(loop: Loop) -> list[Loop]:
    return [loop] + [x for part in loop.parts for x in walk_loops(part)]


def graphs(loop: Loop, enabled: bool) -> str:
    """Which part of a loop XLA turns into CUDA graphs: runs of kernels; whole loops only if it may (`enabled`)."""
    inside = [part for part in loop.parts if part.name != "call"]
    if enabled or not inside:
        return "one graph" if loop.kernels.total() >= 5 or inside else "none"
    return f"graphs between {len(inside)} inner loops or branches"


def report(program: Program, info: dict, assumed: Assumed) -> dict:
    """The numbers of one compiled update."""
    top = loops(program, assumed)
    total = top.total()
    minibatch, step = find(top, "epoch"), find(top, "rollout")
    whole = any(word in info["xla_flags"] for word in ("WHILE", "CONDITIONAL"))
    per_turn = lambda loop: loop and round(loop.total().launches / (loop.turns or 1))  # noqa: E731
    rows = [
        {"loop": x.name, "turns": x.turns, "launches": x.kernels.total(), "kinds": dict(x.kernels.most_common())}
        | {"megabytes": round(x.bytes / 1e6, 2), "gigaflops": round(x.flops / 1e9, 3), "graphs": graphs(x, whole)}
        for x in walk_loops(top)
        if x.kernels.total()
    ]
    return info | {
        "per_minibatch": per_turn(minibatch),
        "per_environment_step": per_turn(step),
        "per_update": total.launches,
        "host_waits": 0 if whole else total.waits,
        "launch_bound_ms": round(total.launches * assumed.launch_us / 1e3, 1),
        "arithmetic_ms": round(total.seconds * 1e3, 2),
        "gigabytes": round(total.bytes / 1e9, 2),
        "gigaflops": round(total.flops / 1e9, 1),
        "loops": rows,
        "assumed": dataclasses.asdict(assumed),
    }


def show(found: dict) -> str:
    a, memory = found["assumed"], found["memory_mb"]
    lines = [
        f"{found['command']}   for one {found['target']}, compiled in {found['compile_s']:.0f} s",
        f"launches: {found['per_minibatch']} per minibatch, {found['per_environment_step']} per environment step, "
        f"{found['per_update']:,} per update; the host waits {found['host_waits']} times per update",
        f"time per update: {found['launch_bound_ms']} ms if bound by launches ({a['launch_us']} us each), "
        f"{found['arithmetic_ms']} ms by arithmetic and memory ({found['gigaflops']} GFLOP at {a['teraflops']} "
        f"TFLOP/s, {found['gigabytes']} GB at {a['terabytes_per_second']} TB/s)",
        f"memory: {memory['arguments']} MB state, {memory['temporary']} MB for the update",
    ]
    for row in found["loops"]:
        kinds = ", ".join(f"{count} {name}" for name, count in row["kinds"].items())
        turns = "x ?" if row["turns"] is None else f"x {row['turns']}"
        lines.append(f"  {row['loop']:<16} {turns:<7} {row['launches']:>4} launches ({kinds}); {row['graphs']}")
    return "\n".join(lines)


def environment() -> Path:
    """Python of an environment that has JAX with CUDA, in the version that requirements.txt allows here."""
    from importlib.metadata import version

    jax = version("jax")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ppo-scaling"
    place = Path(os.environ.get("GPU_COMPILE_VENV") or cache / f"gpu-compile-jax-{jax}")
    python = place / "bin" / "python"
    if not (place / "ready").exists() and "GPU_COMPILE_VENV" not in os.environ:
        print(f"making {place}: JAX with CUDA and the scripts' packages, 6 GB, once", file=sys.stderr)
        venv.create(place, with_pip=True, clear=True)
        packages = ["-r", str(ROOT / "requirements.txt"), f"jax[cuda12]=={jax}"]
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
        (place / "ready").touch()
    return python


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


def compile_update(command: list[str], target: str, xla_flags: str, root: Path = ROOT) -> tuple[str, dict]:
    """-> optimised HLO, {compile_s, target, memory_mb} of a script's update. command: script and its flags."""
    import tempfile

    name, *flags = command
    env = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "PYTHONWARNINGS": "ignore"}
    # Level 0: tuning would try kernels on a device.
    env |= {"XLA_FLAGS": f"--xla_gpu_autotune_level=0 {xla_flags}", "TF_CPP_MIN_LOG_LEVEL": "3"}
    env |= {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    with tempfile.TemporaryDirectory() as folder:
        spec = {"root": str(root), "script": Path(name).stem, "flags": flags, "out": f"{folder}/out.json"}
        spec["target"] = (TARGETS / f"{target}.txt").read_text()
        done = subprocess.run([environment(), "-c", COMPILE, json.dumps(spec)], env=env, cwd=folder)
        if done.returncode:
            raise SystemExit(f"{shlex.join(command)}: was not compiled")
        text, info = json.loads(Path(spec["out"]).read_text())
    return text, info | {"command": shlex.join(command), "xla_flags": xla_flags}


def main() -> None:
    import argparse

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="h100", choices=sorted(x.stem for x in TARGETS.glob("*.txt")))
    parser.add_argument("--xla-flags", default="", help="further flags of XLA")
    parser.add_argument("--hlo", type=Path, help="also write the optimised program here")
    parser.add_argument("--repository", type=Path, default=ROOT, help="another checkout, to compare with")
    parser.add_argument("--table", action="store_true", help="compile all that results/gpu_compile.json lists")
    parser.add_argument("command", nargs="*", metavar="script and flags", help="after --")
    args = parser.parse_args()
    if args.table == bool(args.command):
        parser.error("give either --table or, after --, a script and its flags")

    def measure(command: list[str]) -> dict:
        text, info = compile_update(command, args.gpu, args.xla_flags, args.repository.absolute())
        if args.hlo:
            args.hlo.write_text(text)
        return report(Program(text), info, Assumed())

    if args.command:
        print(show(measure(args.command)))
        return
    rows = {}
    for name, command in TABLE.items():
        rows[name] = measure(shlex.split(command))
        print(show(rows[name]), flush=True)
    command = shlex.join(["python", "benchmarks/gpu_compile.py", *sys.argv[1:]])
    (ROOT / "results" / "gpu_compile.json").write_text(json.dumps({"made_by": command, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
