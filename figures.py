"""Every figure of the paper: the runs that it needs, its picture, and a verdict on its claim.

    python figures.py --list                               # the figures, what they need, what is there
    python figures.py 5a                                   # runs what is missing, writes results/fig_5a.png and .json
    python figures.py 5a --dry-run                         # only prints the commands
    python figures.py 1a 3a 5a --preset paper --launch slurm

A figure is a grid of runs, each one command of one script, a picture of them, and checks of the claim: statistics with
a 95 % interval over seeds and thresholds written down in experiments/, before the runs. It holds if all checks do. A
finished run is never repeated, a broken one goes on from its checkpoint. docs/figures.md explains presets and checks.
"""

import datetime
import difflib
import json
import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from tyro.conf import Positional, arg

from common import arguments, plots, runs
from common.arguments import UsageError
from common.tracking import say
from experiments import grid, paper_a, pictures
from experiments.data import Data, performance
from experiments.presets import PRESETS
from experiments.verdicts import verdict

FIGURES = paper_a.FIGURES


@dataclass(frozen=True)
class Args:
    figures: Positional[tuple[str, ...]] = ()
    """Numbers of figures, or all."""
    preset: Literal["laptop", "gpu", "paper"] = "laptop"
    """Environment, sizes and grids; --list says more."""
    list_: Annotated[bool, arg(name="list")] = False
    """List the figures, their scripts and which results exist."""
    dry_run: bool = False
    """Print the commands of the runs that are missing, and do nothing."""
    launch: Literal["here", "slurm"] = "here"
    """slurm: write sbatch arrays of what is missing instead of running it, and print how to submit them."""
    jobs: int | None = None
    """Runs at a time; by default one for each core of a CPU with the laptop preset, else 1."""
    runs_dir: str = "runs/figures"
    """Where the runs go, in a folder for each preset."""
    results_dir: str = "results"
    """Where pictures and verdicts go."""

    def __post_init__(self):
        arguments.positive(self, "jobs")
        unknown = [name for name in self.figures if name not in (*FIGURES, "all")]
        if unknown:
            close = difflib.get_close_matches(unknown[0], FIGURES, n=3, cutoff=0.3)
            near = f"; do you mean {' or '.join(close)}?" if close else ""
            raise UsageError(f"figure {unknown[0]}: there are {', '.join(FIGURES)}, and all{near}")
        if not self.figures and not self.list_:
            raise UsageError("no figure given: name some, such as 5a, or all; --list lists them")

    @property
    def names(self) -> list[str]:
        return list(FIGURES) if "all" in self.figures else list(dict.fromkeys(self.figures))


def main(args: Args) -> None:
    # The commands that are printed are those of this folder.
    os.chdir(Path(__file__).absolute().parent)
    preset, folder = PRESETS[args.preset], Path(args.runs_dir) / args.preset
    if args.list_:
        return list_figures(args)
    cells = grid.with_sources([cell for name in args.names for cell in FIGURES[name].cells(preset).values()])
    missing = [cell for cell in cells if grid.state(cell, folder) != "finished"]
    if args.dry_run:
        print("\n".join(shlex.join(grid.command(cell, folder)) for cell in missing))
        say(f"{len(missing)} of {len(cells)} runs are missing")
        return None
    if args.launch == "slurm" and missing:
        print("\n".join(grid.write_slurm(cells, folder, f"fig-{'-'.join(args.names)}"[:60])))
        say(f"these commands submit {len(missing)} runs; then `python figures.py {' '.join(args.names)}` draws")
        return None
    failed = []
    if missing:
        say(f"{len(missing)} of {len(cells)} runs are missing; their output goes to {folder}/*.log")
        jobs = args.jobs or (os.cpu_count() if args.preset == "laptop" else 1)
        failed = grid.run_missing(cells, folder, jobs, say)
    for name in args.names:
        draw(name, args, folder)
    if failed:
        raise SystemExit("\n".join(f"figures.py: failed: {line}" for line in failed))
    return None


def output(name: str, args: Args) -> Path:
    suffix = "" if args.preset == "laptop" else f"_{args.preset}"
    return Path(args.results_dir) / f"fig_{name}{suffix}"


def draw(name: str, args: Args, folder: Path) -> None:
    """Draws the figure from the runs that are there, and says what they say."""
    figure, preset = FIGURES[name], PRESETS[args.preset]
    cells = figure.cells(preset)
    data = Data(preset, folder)
    shown, checks = figure.show(data, cells)
    needed = grid.with_sources(list(cells.values()))  # each run once, whatever it stands for in the figure
    unfinished = [cell.name for cell in needed if grid.state(cell, folder) != "finished"]
    found = "not enough data" if unfinished else verdict(checks)  # a best run may be among those
    env_id = "a convex bowl" if all(c.script == "stochastic_opt" for c in cells.values()) else preset.base["env_id"]
    part = f" {len(unfinished)} of {len(needed)} runs are not finished." if unfinished else ""
    seeds = {len(data.final(cell)) for cell in cells.values()}
    caption = f"Claim: {figure.claim} Here: {found}.{part} Mean and 95 % interval of {max(seeds)} seeds on {env_id}."
    out = output(name, args)
    out.parent.mkdir(parents=True, exist_ok=True)
    pictures.save(shown, out.with_name(out.name + ".png"), f"Figure {name}: {figure.title}", caption)
    summary = {
        "figure": name,
        "title": figure.title,
        "preset": args.preset,
        "command": shlex.join(["python", "figures.py", name, *(["--preset", args.preset] * (args.preset != "laptop"))]),
        "claim": figure.claim,
        "verdict": found,
        "checks": [check._asdict() | {"outcome": check.outcome} for check in checks],
        "not_finished": unfinished,
        "drawn": datetime.date.today().isoformat(),
        "runs": {str(key): describe(data, cell, folder) for key, cell in cells.items()},
    }
    out.with_name(out.name + ".json").write_text(json.dumps(rounded(summary), indent=1) + "\n")
    print(f"figure {name}: {found} ({out}.png)")
    for check in checks:
        print(f"  {check}")


def describe(data: Data, cell: grid.Cell, folder: Path) -> dict[str, Any]:
    """A run's command, hardware and numbers."""
    try:
        record = json.loads((folder / cell.name / "args.json").read_text())
    except (OSError, ValueError):
        return {"run": cell.name}
    key = performance(data.p, cell)
    x, y = data.curve(cell, key)
    mean, width = plots.mean_and_ci(y)
    thin = slice(None, None, max(1, len(x) // 32))
    return {
        "command": shlex.join(["python", *shlex.split(record["command"])]),
        "git_commit": record["git_commit"],
        "started": record["started"],
        "machine": record["machine"],
        "devices": record["devices"],
        "jax": record["versions"].get("jax"),
        "final": data.part(cell, key, 0.9, 1.0).mean(0),
        "curve": {"step": x[thin], "mean": mean[thin], "ci95": width[thin]},
    }


def rounded(value: Any) -> Any:
    """For JSON: four digits are enough, and NaN is null."""
    if isinstance(value, dict):
        return {str(k): rounded(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(v) for v in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return rounded(value.tolist())
    if isinstance(value, float):
        return float(f"{value:.4g}") if np.isfinite(value) else None
    return value


def list_figures(args: Args) -> None:
    for name, preset in PRESETS.items():
        print(f"preset {name}: {preset.about}")
    print()
    for name, figure in FIGURES.items():
        there = []
        for preset_name, preset in PRESETS.items():
            cells = grid.with_sources(list(figure.cells(preset).values()))
            done = sum(grid.state(cell, Path(args.runs_dir) / preset_name) == "finished" for cell in cells)
            there.append(f"{preset_name} {done}/{len(cells)} runs{result(name, preset_name, args)}")
        scripts = " ".join(sorted({f"{cell.script}.py" for cell in figure.cells(PRESETS["laptop"]).values()}))
        print(f"{name:>4}  {figure.title} ({scripts})\n      {'; '.join(there)}")


def result(name: str, preset: str, args: Args) -> str:
    out = output(name, replace(args, preset=preset))
    try:
        found = json.loads(out.with_name(out.name + ".json").read_text())["verdict"]
    except (OSError, ValueError, KeyError):
        return ""
    return f", {out}.png: {found}"


if __name__ == "__main__":
    runs.main(main, Args)
