"""Measures how ppo.py's speed, memory, update time and compile time grow with environments and devices.

    python benchmarks/scaling.py                                     # 2^6 to 2^20 environments, 1 to 8 devices
    python benchmarks/scaling.py --num-envs 64 1024 --num-devices 1 2 --devices-num-envs 1024

Each point is measured in its own process; measure.py says how. Minibatches keep their size, which is ppo.py's recipe:
more environments mean more minibatches. On a CPU, as many devices are created as asked for; beyond the core count they
only show what dividing the work costs.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from common.run.plots import COLOURS

QUANTITIES = {
    "steps_per_second": ("training speed", "environment steps per second", 1),
    "peak_bytes": ("peak memory", "peak memory above imports (MB)", 1e-6),
    "update_s": ("time of an update", "seconds per update", 1),
    "compile_s": ("compile time", "time to compile one update (s)", 1),
}
LOGARITHMIC = ("peak_bytes", "update_s")


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
    seconds: float = 10.0
    """Least time, in seconds, over which updates are measured, and at least two of them."""
    out: Path = Path("results/scaling")
    """Results go to <out>.json and <out>.png."""


def make_settings(args: Args) -> list[dict[str, Any]]:
    """Returns all points, small ones first; num_devices is None where all are used."""
    points = [(num_envs, None) for num_envs in args.num_envs]
    points += [(args.devices_num_envs, number) for number in args.num_devices]
    settings = []
    for num_envs, num_devices in points:
        total = num_envs * args.num_steps
        size = next(size for size in range(args.minibatch_size, 0, -1) if total % size == 0)
        sizes = {"num_envs": num_envs, "num_steps": args.num_steps, "minibatch_size": size, "num_devices": num_devices}
        settings += [{"env_id": env_id, **sizes} for env_id in args.env_ids]
    return settings


def draw(points: list[dict[str, Any]], path: Path) -> None:
    """Draws quantities against environments, on all devices (above), and against devices (below)."""
    figure, axes = report.new_figure(4, 2, "ppo.py: training against environments and devices")
    measured = [point for point in points if "problem" not in point["result"]]
    for over, half in zip(("num_envs", "num_devices"), axes.reshape(2, 4), strict=True):
        of_half = [p for p in measured if (p["setting"]["num_devices"] is None) == (over == "num_envs")]
        rows = [p["setting"] | p["result"] | {"update_s": p["result"]["update_s"]["median"]} for p in of_half]
        counts = ", ".join(f"{number:,}" for number in sorted({row["num_envs"] for row in rows}))
        x_label = "environments in parallel" if over == "num_envs" else f"devices ({counts} environments)"
        for axis, (key, (title, y_label, factor)) in zip(half, QUANTITIES.items(), strict=True):
            for env_id, colour, marker in zip(
                dict.fromkeys(row["env_id"] for row in rows), COLOURS, "os^vDPX*", strict=False
            ):
                of = sorted((row[over], row[key] * factor) for row in rows if row["env_id"] == env_id)
                axis.plot(*zip(*of, strict=True), color=colour, marker=marker, label=env_id)
            axis.set(title=title, xlabel=x_label, ylabel=y_label)
            if rows:
                report.finish_axis(axis, sorted({row[over] for row in rows}), key in LOGARITHMIC)
    report.save_figure(figure, path, report.caption(points))


def main(args: Args) -> None:
    points, settings = [], make_settings(args)
    for number, setting in enumerate(settings, 1):
        its = {name: value for name, value in setting.items() if value is not None}
        its["total_timesteps"] = 10**4 * setting["num_envs"] * setting["num_steps"]  # more than it will take
        spec = {"system": "ours", "args": its, "seconds": args.seconds}
        result = report.run_worker(spec, num_cpu_devices=setting["num_devices"])
        points.append({"setting": setting, "result": result})
        report.write(args.out.with_suffix(".json"), report.record(points=points))
        print(f"[{number}/{len(settings)}] {setting}: {report.describe(result)}", flush=True)
    draw(points, args.out.with_suffix(".png"))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__.split("\n\n")[0]))
