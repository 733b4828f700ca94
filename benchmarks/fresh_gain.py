"""What can a log's fresh gains tell? In eighths of the runs of long_runs.py: the gain of an update that the observed
rise of the return requires, what was measured, and how precisely.

    python benchmarks/fresh_gain.py     # from the folders of long_runs.py's runs, in seconds

An update that gains g standard deviations s of the advantage raises the return by g s L, to first order, where L is
the length of an episode (Kakade and Langford 2002). The log has no s, but the value loss, half of the mean square of
target less value, which is the advantage's, but falls while the update learns: in short checks its s was 0.9 to 1.3
times the advantage's with 64 x 32, and 0.7 times with 4,096 x 32.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import long_runs, report
from common.metrics import sample_size
from common.run import plots

PARTS = 8
OUT = Path("results/fresh_gain.json")


def in_parts(lines: list[dict[str, Any]], args: Any) -> list[dict[str, float]]:
    """Of each eighth of a run's lines, one per update: means, and what the rise of its return requires."""
    column = lambda key: np.array([line.get(key) for line in lines], np.float64)  # noqa: E731
    keys = {"return": "charts/episodic_return", "length": "charts/episodic_length", "loss": "losses/value_loss"}
    keys |= {"own": "outer/own_gain", "fresh": "outer/fresh_gain", "kl": "outer/kl"}
    table = {name: column(key) for name, key in keys.items()}
    sample = sample_size(args["num_envs"] * args["num_steps"])
    found = []
    for part in np.array_split(np.arange(len(lines)), PARTS):
        of = {name: float(np.nanmean(values[part])) for name, values in table.items()}
        there = part[np.isfinite(table["return"][part])]
        fresh = table["fresh"][part][np.isfinite(table["fresh"][part])]
        rise = float(np.polyfit(there, table["return"][there], 1)[0])  # per update
        of |= {"rise": rise, "required": rise / (of["length"] * np.sqrt(2 * of["loss"]))}
        of |= {"error": float(fresh.std(ddof=1) / np.sqrt(len(fresh))), "transitions": len(fresh) * sample}
        found.append({name: float(f"{x:.4g}") for name, x in of.items()})
    return found


def over_seeds(runs: dict[str, Any]) -> dict[str, list[dict[str, float]]]:
    """{arm: eighths}: means over seeds. half: half of the 95 % interval of the mean fresh gain, from the spread over
    updates; would_tell: the transitions on which it would be as small as the gain that is required."""
    told: dict[str, list[dict[str, float]]] = {}
    for arm in long_runs.ARMS:
        parts = [run["parts"] for run in runs.values() if run["arm"] == arm]
        for eighth in zip(*parts, strict=True):
            of = {name: float(np.mean([x[name] for x in eighth])) for name in eighth[0]}
            of["half"] = 1.96 * float(np.sqrt(np.sum([x["error"] ** 2 for x in eighth]))) / len(eighth)
            of["transitions"] *= len(eighth)
            of["would_tell"] = of["transitions"] * (of["half"] / of["required"]) ** 2
            told.setdefault(arm, []).append(of)
    return told


def main() -> None:
    runs = {}
    for cell in long_runs.cells():  # 64 and 4,096 environments, 31.5M steps
        folder, flags = long_runs.ARGS.runs_dir / cell.name, dict(cell.flags)
        if not (folder / "metrics.jsonl").exists():
            raise SystemExit(f"{folder} is not there; python benchmarks/long_runs.py makes it")
        arm = cell.name.split("_")[1].removeprefix("arm-")
        runs[cell.name] = {"arm": arm, "seed": flags["seed"], "parts": in_parts(plots.read_lines(folder), flags)}
    report.write(OUT, report.record(runs=runs))
    for arm, eighths in over_seeds(runs).items():
        print(arm, *({k: float(f"{x:.3g}") for k, x in of.items()} for of in eighths), sep="\n")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
