"""Compares ppo.py with rejax 0.1.3's PPO on the same work: speed, memory and compile time.

    python benchmarks/compare.py                                     # everything; an hour or more on two cores
    python benchmarks/compare.py --sizes 64x4 1024x16 --repetitions 1

Both train CartPole-v1 and Breakout-MinAtar with 128 steps, 4 epochs and separate 64 x 64 tanh networks. They take
turns, each time in a fresh process; measure.py says how things are measured. rejax has a virtual environment (made on
first use) with the same JAX, runs its bare training iteration without evaluation, and uses XLA's threads on all cores.
What differs is that rejax resets every environment at every step, records nothing about its updates (KL, episode
statistics), treats a truncated episode as ended, and clips gradients by element.
"""

import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tyro

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.report import Results, describe, finish_axis, new_figure, run_worker, save_figure
from common.run.plots import COLOURS

SYSTEMS = {"ours": "ppo.py", "rejax": "rejax 0.1.3"}
QUANTITIES = {
    "steps_per_second": ("training speed", "environment steps per second", 1),
    "peak_bytes": ("peak memory", "peak memory above imports (MB)", 1e-6),
    "compile_s": ("compile time", "time to compile one update (s)", 1),
}
# Under names that both know. total_timesteps, added below, only has to be large enough.
SHARED = {
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_eps": 0.2,
    "ent_coef": 0.01,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
    "learning_rate": 5e-4,
}


@dataclass(frozen=True)
class Args:
    env_ids: tuple[str, ...] = ("CartPole-v1", "Breakout-MinAtar")
    """gymnax ids."""
    sizes: tuple[str, ...] = ("64x4", "1024x16", "16384x256", "65536x1024")
    """Sizes to measure, each as environments x minibatches per epoch."""
    num_steps: int = 128
    """Steps per environment and update."""
    repetitions: int = 3
    """How often each of the two is measured; ratios are taken within a repetition."""
    updates: int | None = None
    """Updates per measurement; by default as many as ppo.py does in --seconds, and at least 2."""
    seconds: float = 10.0
    """Least time, in seconds, over which ppo.py's updates are measured."""
    timeout: float = 1800.0
    """Seconds after which a measurement is abandoned."""
    compute_dtype: str = "float32"
    """ppo.py's --compute-dtype; rejax has float32 only."""
    rejax_python: Path | None = None
    """Python of a virtual environment with rejax 0.1.3 and gymnax 0.0.9; by default one is made in ~/.cache."""
    rejax_devices: int = 1
    """Devices to spread rejax's environments over (on a CPU, this many are created); 1 is rejax unchanged."""
    out: Path = Path("results/compare")
    """Results go to <out>.json, <out>.md and <out>.png; results of this commit found there are not measured again."""
    again: bool = False
    """Measure everything again."""


def make_rejax_python() -> Path:
    """Returns the Python of a virtual environment with rejax and our JAX, to compare programs and not compilers."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "ppo-scaling" / f"rejax-venv-jax-{version('jax')}"
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        print(f"installing rejax 0.1.3 in {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        packages = ("rejax==0.1.3", "gymnax==0.0.9", f"jax=={version('jax')}")
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        complete.touch()
    return python


def make_settings(args: Args) -> Iterator[dict[str, Any]]:
    """Yields all points in the order in which they are measured."""
    changed = {"rejax_devices": args.rejax_devices} if args.rejax_devices > 1 else {}
    changed |= {"compute_dtype": args.compute_dtype} if args.compute_dtype != "float32" else {}
    for env_id in args.env_ids:
        for size in args.sizes:
            num_envs, num_minibatches = map(int, size.split("x"))
            for repetition in range(1, args.repetitions + 1):
                for system in SYSTEMS:
                    yield {
                        "env_id": env_id,
                        "num_envs": num_envs,
                        "num_minibatches": num_minibatches,
                        "num_steps": args.num_steps,
                        "length": f"{args.updates} updates" if args.updates else f"{args.seconds:g} s",
                        "repetition": repetition,
                        "system": system,
                    } | changed


def make_spec(args: Args, setting: dict[str, Any], updates: int | None) -> dict[str, Any]:
    """Returns what measure.py has to do."""
    sizes = {name: setting[name] for name in ("num_envs", "num_steps", "num_minibatches")}
    total = {"total_timesteps": 10**4 * setting["num_envs"] * setting["num_steps"]}
    if setting["system"] == "ours":
        network = {"network": "mlp", "hidden_sizes": (64, 64), "activation": "tanh", "shared_encoder": False}
        network["compute_dtype"] = args.compute_dtype
        its = {"env_id": setting["env_id"], "update_epochs": 4, **network}
    else:
        network = {"hidden_layer_sizes": (64, 64), "activation": "tanh"}
        its = {"env": setting["env_id"], "num_epochs": 4, "agent_kwargs": network}
    length = {"updates": updates, "seconds": args.seconds}
    return {"system": setting["system"], "devices": args.rejax_devices, "args": SHARED | sizes | total | its, **length}


def measure_all(args: Args, results: Results) -> None:
    rejax_python = args.rejax_python or make_rejax_python()
    settings, ours = list(make_settings(args)), {}
    hopeless: dict[tuple, dict[str, Any]] = {}  # what did not work once is not repeated
    for number, setting in enumerate(settings, 1):
        system = setting["system"]
        group = tuple(value for name, value in setting.items() if name != "repetition")
        result = results.get(setting)
        if result is None:
            result = hopeless.get(group)
            if result is None and system == "ours":
                result = run_worker(make_spec(args, setting, args.updates), args.timeout)
            elif result is None:
                # As many updates as ours in the same repetition.
                spec = make_spec(args, setting, args.updates or ours.get("updates"))
                devices = args.rejax_devices if args.rejax_devices > 1 else None
                result = run_worker(spec, args.timeout, rejax_python, devices)
            results.add(setting, result)
        if "problem" in result:
            hopeless[group] = result
        ours = result if system == "ours" else ours
        if "device" in result and "device" in ours and result["device"] != ours["device"]:
            raise SystemExit(f"ppo.py ran on {ours['device']}, rejax on {result['device']}: see --rejax-python")
        print(
            f"[{number}/{len(settings)}] {setting['env_id']}, {setting['num_envs']} environments, "
            f"repetition {setting['repetition']}, {SYSTEMS[system]}: {describe(result)}",
            flush=True,
        )


def summarise(results: Results) -> list[dict[str, Any]]:
    """Makes one row per setting: each side's medians, and median, least and greatest of the ratios ours / rejax."""
    groups: dict[tuple, dict[int, dict[str, dict[str, Any]]]] = {}
    names = ("env_id", "num_envs", "num_minibatches", "num_steps", "length", "rejax_devices", "compute_dtype")
    for point in results.current():
        work = tuple(point.get(name) for name in names)
        groups.setdefault(work, {}).setdefault(point["repetition"], {})[point["system"]] = point
    rows = []
    for work, repetitions in groups.items():
        row = {name: value for name, value in zip(names, work, strict=True) if value is not None}
        for system in SYSTEMS:
            points = [pair[system] for pair in repetitions.values() if system in pair]
            row[system] = next(({"problem": p["problem"]} for p in points if "problem" in p), {})
            for key in QUANTITIES:
                values = [p[key] for p in points if "problem" not in p]
                row[system] |= {key: statistics.median(values)} if values else {}
        pairs = [pair for pair in repetitions.values() if len(pair) == 2]
        pairs = [pair for pair in pairs if not any("problem" in point for point in pair.values())]
        row["repetitions"] = len(pairs)
        ratios = {key: sorted(pair["ours"][key] / pair["rejax"][key] for pair in pairs) for key in QUANTITIES}
        row["ratios"] = {
            key: {"median": statistics.median(values), "min": values[0], "max": values[-1]}
            for key, values in ratios.items()
            if values
        }
        rows.append(row)
    return sorted(rows, key=lambda row: (row["env_id"], row["num_envs"], row["num_minibatches"], row["num_steps"]))


def list_problems(rows: list[dict[str, Any]]) -> list[str]:
    """Lists what could not be measured, and why."""
    return [
        f"{row['env_id']}, {row['num_envs']} × {row['num_minibatches']} × {row['num_steps']}: {name} {problem}"
        for row in rows
        for system, name in SYSTEMS.items()
        if (problem := row[system].get("problem"))
    ]


def make_table(rows: list[dict[str, Any]], caption: str) -> str:
    columns = [f"{text} {unit}" for text, unit in (("steps/s", ""), ("memory", "(MB)"), ("compile", "(s)"))]
    heads = [f"{column.strip()}: {name}" for column in columns for name in ("ppo.py", "rejax", "ratio")]
    lines = ["| environment | environments × minibatches × steps | " + " | ".join(heads) + " |", "|---" * 11 + "|"]
    problems = [f"- {line}" for line in list_problems(rows)]
    for row in rows:
        work = f"{row['num_envs']} × {row['num_minibatches']} × {row['num_steps']}"
        work += f" (rejax on {row['rejax_devices']} devices)" if "rejax_devices" in row else ""
        cells = []
        for key, (_, _, factor) in QUANTITIES.items():
            for system in SYSTEMS:
                value = row[system].get(key)
                digits = 1 if key == "compile_s" else 0
                cells.append("—" if value is None else f"{value * factor:,.{digits}f}")
            ratio = row["ratios"].get(key)
            cells.append(f"**{ratio['median']:.2f}** ({ratio['min']:.2f}–{ratio['max']:.2f})" if ratio else "—")
        lines.append(f"| {row['env_id']} | {work} | " + " | ".join(cells) + " |")
    text = (
        "Medians over the repetitions; ratio: ppo.py / rejax within a repetition, median (least–greatest). "
        f"Memory: the process's peak above what its imports hold. {caption}."
    )
    return "\n".join([*lines, "", *problems, *([""] if problems else []), text, ""])


def draw(rows: list[dict[str, Any]], caption: str, path: Path) -> None:
    env_ids = list(dict.fromkeys(row["env_id"] for row in rows))
    figure, axes = new_figure(len(env_ids), len(QUANTITIES), "ppo.py and rejax 0.1.3: the same PPO training")
    for line, env_id in zip(axes, env_ids, strict=True):
        mine = [row for row in rows if row["env_id"] == env_id]
        for axis, (key, (title, label, factor)) in zip(line, QUANTITIES.items(), strict=True):
            for (system, name), colour, marker in zip(SYSTEMS.items(), COLOURS, "os", strict=False):
                points = [(row["num_envs"], row[system][key] * factor) for row in mine if key in row[system]]
                if points:
                    axis.plot(*zip(*points, strict=True), color=colour, marker=marker, label=name)
            for row in mine:
                ratio, top = row["ratios"].get(key), max((row[s].get(key, 0) for s in SYSTEMS), default=0)
                missing = [name.split()[0] for system, name in SYSTEMS.items() if "problem" in row[system]]
                text = f"×{ratio['median']:.2f}" if ratio else f"no\n{' '.join(missing)}" if missing else ""
                if top:
                    where = {"textcoords": "offset points", "xytext": (0, 7), "ha": "center"}
                    axis.annotate(text, (row["num_envs"], top * factor), fontsize=8, **where)
            axis.set(title=f"{env_id}: {title}", xlabel="environments in parallel", ylabel=label)
            finish_axis(axis, sorted({row["num_envs"] for row in mine}), log=key == "peak_bytes")
    notes = [*list_problems(rows), f"×: ppo.py / rejax, median over repetitions. {caption}"]
    save_figure(figure, path, "\n".join(notes))


def main(args: Args) -> None:
    results = Results(args.out, args.again)
    # So that even a terminated benchmark ends its worker and writes its table.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        measure_all(args, results)
    except KeyboardInterrupt:
        sys.exit("interrupted; the same command goes on from here")
    finally:
        results.summary = rows = summarise(results)
        if rows:
            results.write()
            table = make_table(rows, results.caption())
            args.out.with_name(args.out.name + ".md").write_text(table)
            draw(rows, results.caption(), args.out.with_name(args.out.name + ".png"))
            print(f"\n{table}")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__.split("\n\n")[0]))
