"""Measures how ppo.py's speed, memory, update time and compile time grow with environments and devices.

    python benchmarks/scaling.py                                     # 2^6 to 2^20 environments, 1 to 8 devices
    python benchmarks/scaling.py --num-envs 64 1024 --num-devices 1 2 --devices-num-envs 1024

Each point is measured in its own process; measure.py says how. Minibatches keep their size, which is ppo.py's recipe:
more environments mean more minibatches. On a CPU, as many devices are created as asked for; beyond the core count they
only show what dividing the work costs.
"""

import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.report import Results, describe, finish_axis, new_figure, run_worker, save_figure
from common.run.plots import COLOURS

QUANTITIES = {
    "steps_per_second": ("training speed", "environment steps per second", 1),
    "peak_bytes": ("peak memory", "peak memory above imports (MB)", 1e-6),
    "seconds": ("time of an update", "seconds per update", 1),
    "compile_s": ("compile time", "time to compile one update (s)", 1),
}

LOGARITHMIC = ("peak_bytes", "seconds")


@dataclass(frozen=True)
class Args:
    env_ids: tuple[str, ...] = ("CartPole-v1", "Breakout-MinAtar")
    """Environments, as for ppo.py."""
    num_envs: tuple[int, ...] = tuple(2**n for n in range(6, 21, 2))
    """Environment counts, each measured on all devices (on a CPU, one per core)."""
    num_devices: tuple[int, ...] = (1, 2, 4, 8)
    """Device counts, each measured with --devices-num-envs environments."""
    devices_num_envs: int = 16384
    """Environments, over all devices, at the points that vary --num-devices."""
    num_steps: int = 16
    """Steps per environment and update."""
    minibatch_size: int = 2048
    """Transitions per minibatch; if it does not divide those of an update, the next smaller size that does."""
    rollout_chunks: int | None = None
    """ppo.py's --num-rollout-chunks."""
    updates: int | None = None
    """Updates per measurement; by default as many as fill --seconds, and at least 2."""
    seconds: float = 10.0
    """Least time, in seconds, over which updates are measured."""
    timeout: float = 1800.0
    """Seconds after which a measurement is abandoned."""
    out: Path = Path("results/scaling")
    """Results go to <out>.json and <out>.png; results of this commit found there are not measured again."""
    again: bool = False
    """Measure everything again."""


def make_settings(args: Args) -> list[dict[str, Any]]:
    """Returns all points, small ones first."""
    points = [(num_envs, None) for num_envs in args.num_envs]
    points += [(args.devices_num_envs, number) for number in args.num_devices]
    length = f"{args.updates} updates" if args.updates else f"{args.seconds:g} s"
    settings = []
    for num_envs, num_devices in points:
        total = num_envs * args.num_steps
        minibatch_size = next(size for size in range(args.minibatch_size, 0, -1) if total % size == 0)
        for env_id in args.env_ids:
            settings.append(
                {
                    "env_id": env_id,
                    "num_envs": num_envs,
                    "num_steps": args.num_steps,
                    "minibatch_size": minibatch_size,
                    "num_rollout_chunks": args.rollout_chunks,
                    "num_devices": num_devices,
                    "length": length,
                }
            )
    return settings


def make_spec(args: Args, setting: dict[str, Any]) -> dict[str, Any]:
    """Returns what measure.py has to do."""
    its = {name: value for name, value in setting.items() if value is not None and name != "length"}
    its["total_timesteps"] = 10**4 * setting["num_envs"] * setting["num_steps"]  # does not end within the measurement
    return {"system": "ours", "args": its, "updates": args.updates, "seconds": args.seconds}


def measure_all(args: Args, results: Results) -> None:
    settings = make_settings(args)
    for number, setting in enumerate(settings, 1):
        result = results.get(setting)
        if result is None:
            result = run_worker(make_spec(args, setting), args.timeout, num_cpu_devices=setting["num_devices"])
            results.add(setting, result)
        devices = result.get("num_devices") or setting["num_devices"] or "all"
        print(
            f"[{number}/{len(settings)}] {setting['env_id']}, {setting['num_envs']:,} environments, "
            f"devices: {devices}; {describe(result)}",
            flush=True,
        )


def make_rows(results: Results) -> list[dict[str, Any]]:
    """Returns the points of this commit, sorted; `wanted_devices` is None where all were used."""
    rows = []
    for point in results.points:
        if point["commit"] == results.commit:
            setting, result = point["setting"], point["result"]
            row = {**setting, "wanted_devices": setting["num_devices"], **result}
            rows.append(row | {"seconds": result.get("update_s", {}).get("median")})
    return sorted(rows, key=lambda r: (r["wanted_devices"] or 0, r["env_id"], r["num_envs"], r["num_steps"]))


def draw(rows: list[dict[str, Any]], caption: str, path: Path) -> None:
    """Draws quantities against environments, on all devices (above), and against devices (below)."""
    halves = [[r for r in rows if r["wanted_devices"] is None], [r for r in rows if r["wanted_devices"]]]
    halves = [half for half in halves if any("problem" not in row for row in half)]
    if not halves:
        return
    title = "ppo.py: training against environments and devices"
    figure, axes = new_figure(len(halves) * len(QUANTITIES) // 2, 2, title)
    for line, half in zip(axes.reshape(len(halves), -1), halves, strict=True):
        over = "num_devices" if half[0]["wanted_devices"] else "num_envs"
        varying = ("num_steps", "num_rollout_chunks", "length") + (("num_envs",) if over == "num_devices" else ())
        varying = [name for name in varying if over == name or len({str(row[name]) for row in half}) > 1]
        groups: dict[str, list[dict[str, Any]]] = {}
        for row in half:
            label = ", ".join([row["env_id"], *(f"{name} {row[name]}" for name in varying)])
            groups.setdefault(label, []).extend([row] if "problem" not in row else [])
        for axis, (key, (what, label, factor)) in zip(line, QUANTITIES.items(), strict=True):
            for (name, group), colour, marker in zip(groups.items(), COLOURS, "os^vDPX*", strict=False):
                x, y = [row[over] for row in group], [row[key] * factor for row in group]
                axis.plot(x, y, color=colour, marker=marker, label=name)
            counts = ", ".join(f"{number:,}" for number in sorted({row["num_envs"] for row in half}))
            xlabel = "environments in parallel" if over == "num_envs" else f"devices ({counts} environments)"
            axis.set(title=what, xlabel=xlabel, ylabel=label)
            finish_axis(axis, sorted({row[over] for row in half if "problem" not in row}), key in LOGARITHMIC)
    save_figure(figure, path, caption)


def main(args: Args) -> None:
    results = Results(args.out, args.again)
    # So that even a terminated benchmark ends its worker and draws its picture.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        measure_all(args, results)
    except KeyboardInterrupt:
        sys.exit("interrupted; the same command goes on from here")
    finally:
        rows = make_rows(results)
        if rows:
            draw(rows, results.caption(), args.out.with_name(args.out.name + ".png"))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__.split("\n\n")[0]))
