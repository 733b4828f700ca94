"""Runs what the figures of both papers need, draws them, and gives a verdict on each figure's claim.

    python figures.py --list                               # lists the figures, what they need and what exists
    python figures.py 5a                                   # runs what is missing, writes results/fig_5a.png and .json
    python figures.py 5a --dry-run                         # only prints the commands
    python figures.py B1a B3                               # figures 1a and 3 of paper B
    python figures.py 1a 3a 5a --preset paper --launch slurm
    python figures.py --tally                              # counts the claims that hold

Figures of Beukman et al. 2026 (paper A) keep their numbers; those of Mayor et al. 2025 (paper B) have a B in front.
experiments/ defines each figure: a grid of runs (each is one command of one script), a picture of them, and checks of
the claim, which compare statistics and their 95 % intervals over seeds with thresholds. The claim holds if all checks
hold; it is not applicable if what it supposes is not so in the preset. A finished run is never repeated; an interrupted
one resumes from its checkpoint. See docs/figures.md.
"""

import datetime
import difflib
import json
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from tyro.conf import Positional, arg

from common.run import arguments, plots
from common.run.arguments import UsageError, flag
from common.run.run import main as run_main
from common.run.tracking import say
from experiments import (
    exploration_rnd,
    grid,
    hands,
    paper_a,
    paper_a_runs,
    paper_b,
    paper_b_runs,
    pictures,
    results,
    scores,
    sfl,
    sfl_runs,
)
from experiments.data import Data, performance
from experiments.verdicts import OUTCOMES, Outcome, together, verdict

PRESETS = {  # sfl and hands are in paper A, exploration_rnd in paper B
    paper_a: paper_a_runs.PRESETS,
    sfl: sfl_runs.PRESETS,
    hands: hands.PRESETS,
    paper_b: paper_b_runs.PRESETS,
    exploration_rnd: exploration_rnd.PRESETS,
}
PAPERS = {name: paper for paper in PRESETS for name in paper.FIGURES}
ON_CPUS = ("laptop", "breakout", "atari-mini", "long")  # presets
POOLED = "8"  # a figure of the runs of others
PARTS = {
    paper_a: "paper A, PPO and gradient descent",
    sfl: "paper A, SFL",
    hands: "paper A, SAPG",
    paper_b: "paper B",
    exploration_rnd: "paper B, RND",
}


def in_order(name: str) -> tuple:
    """Returns a sort key: figures of paper A before those of paper B, then by number."""
    number = re.match(r"\d*", name.removeprefix("B"))[0]
    return name.startswith("B"), int(number or 99), name


FIGURES = {name: PAPERS[name].FIGURES[name] for name in sorted(PAPERS, key=in_order)}


def presets_of(name: str) -> dict[str, Any]:
    return paper_b_runs.presets_of(name) if PAPERS[name] is paper_b else PRESETS[PAPERS[name]]


@dataclass(frozen=True)
class Args:
    figures: Positional[tuple[str, ...]] = ()
    """Figures by number (B1a is figure 1a of paper B), or all."""
    preset: Literal["laptop", "long", "breakout", "atari-mini", "gpu", "paper"] = "laptop"
    """Choice of environment, sizes and grids; --list describes each."""
    list_: Annotated[bool, arg(name="list")] = False
    """List the figures, their scripts and which results exist."""
    tally: bool = False
    """Count the claims by verdict, as in the results folder, and do nothing else."""
    dry_run: bool = False
    """Print the commands of the missing runs and do nothing else."""
    launch: Literal["here", "slurm", "none"] = "here"
    """slurm: write sbatch arrays of the missing runs and print how to submit them; none: draw from finished runs."""
    only: str | None = None
    """Run only this one of the missing runs and draw nothing (for the arrays of --launch slurm)."""
    jobs: arguments.Positive[int] | None = None
    """How many runs go at once, each on its share of the cores; by default one per core on a laptop, else 1."""
    runs_dir: str = "runs/figures"
    """Folder for the runs, with a subfolder for each preset."""
    results_dir: str = "results"
    """Folder for pictures and verdicts."""

    def __post_init__(self):
        arguments.check(self)
        unknown = [name for name in self.figures if name not in (*FIGURES, "all")]
        if unknown:
            close = difflib.get_close_matches(unknown[0], FIGURES, n=3, cutoff=0.3)
            near = f"; do you mean {' or '.join(close)}?" if close else ""
            raise UsageError(f"figure {unknown[0]}: there are {', '.join(FIGURES)}, and all{near}")
        if not self.figures and not self.list_ and not self.tally:
            raise UsageError("no figure given: name some, such as 5a, or all; --list lists them")
        for name in set(self.figures) - {"all"}:
            if self.preset not in presets_of(name):
                known = ", ".join(presets_of(name))
                raise UsageError(f"--preset {self.preset}: figure {name} does not have it; it has {known}")
        if (self.jobs or 1) > 1 and self.preset not in ON_CPUS:
            raise UsageError(
                f"--jobs {self.jobs}: runs of preset {self.preset} would share a GPU; start the same command once for "
                "each GPU, with CUDA_VISIBLE_DEVICES=0, 1, ...: they share the runs out; or use --launch slurm"
            )

    @property
    def names(self) -> list[str]:
        if self.list_ and not self.figures:
            return list(FIGURES)
        if "all" in self.figures:  # except figures that this preset does not have
            return [name for name in FIGURES if self.list_ or self.preset in presets_of(name)]
        return list(dict.fromkeys(self.figures))

    def again(self, *flags: str) -> list[str]:
        """Returns the command line that makes these figures, with `flags` added."""
        words = ["python", "figures.py", *self.names, "--preset", self.preset]
        default = Args(("all",))
        for name in ("runs_dir", "results_dir"):
            if getattr(self, name) != getattr(default, name):
                words += [flag(name), getattr(self, name)]
        return [*words, *flags]


def main(args: Args) -> None:
    # Printed commands are for this folder, but folders that the user names are relative to the user's own.
    root = Path(__file__).absolute().parent
    folders = {n: Path(getattr(args, n)).absolute() for n in ("runs_dir", "results_dir")}
    for name, folder in folders.items():
        in_the_way = next((path for path in (folder, *folder.parents) if path.exists() and not path.is_dir()), None)
        if in_the_way is not None:
            raise UsageError(f"{flag(name)} {getattr(args, name)}: {in_the_way} is a file")
    inside = {n: str(f.relative_to(root) if f.is_relative_to(root) else f) for n, f in folders.items()}
    args = replace(args, **inside)
    os.chdir(root)
    folder = Path(args.runs_dir) / args.preset
    if args.list_:
        return list_figures(args)
    if args.tally:
        return print(tally(args.preset, Path(args.results_dir)))
    cells = grid.with_sources([cell for name in args.names for cell in cells_of(name, args.preset).values()])
    missing = [cell for cell in cells if grid.state(cell, folder) != "finished"]
    if args.only is not None:
        if args.only not in [cell.name for cell in cells]:
            raise UsageError(f"--only {args.only}: no run of figure {', '.join(args.names)}; --dry-run names them")
        missing = [cell for cell in missing if cell.name == args.only]
    if args.dry_run:
        for cell in missing:
            print(grid.paste(cell, folder))
        return say(f"{len(missing)} of {len(cells)} runs are missing")
    if args.only is None:
        check_writable(Path(args.results_dir))  # this and the next fail now, not after hours of runs
    if args.only is None and args.launch != "slurm" and any(PAPERS[name] is paper_b for name in args.names):
        scores.rliable()
    if args.launch == "slurm" and missing:
        name = f"fig-{'-'.join(args.names)}"[:60]
        run = lambda cell: [sys.executable, *args.again("--only", cell.name)[1:]]  # noqa: E731
        print("\n".join(grid.write_slurm(missing, folder, name, run)))
        return say(
            f"these commands submit {len(missing)} runs; {shlex.join(args.again('--launch', 'none'))} draws then"
        )
    failed = []
    if missing and args.launch == "here":
        say(f"{len(missing)} of {len(cells)} runs are missing; their output goes to {folder}/*.log")
        failed = grid.run_missing(missing, folder, args.jobs or default_jobs(args.preset), say)
    if args.only is None:
        for name in args.names:
            try:
                draw(name, args, folder)
            except OSError as error:  # such as a full disk
                failed.append(f"figure {name}: cannot be drawn ({error})")
    if failed:
        raise SystemExit("\n".join(f"figures.py: failed: {line}" for line in failed))
    return None


def check_writable(folder: Path) -> None:
    """Makes the folder for pictures and verdicts, or refuses it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        why = None if os.access(folder, os.W_OK) else "no permission"
    except OSError as error:
        why = error.strerror
    if why is not None:
        raise UsageError(f"--results-dir {folder}: cannot write there ({why})")


def cells_of(name: str, preset: str) -> dict[Any, grid.Cell]:
    return FIGURES[name].cells(presets_of(name)[preset])


def rules_of(name: str, preset: str) -> str:
    """Returns the heading of the rules that are fixed before a figure's runs."""
    return f"## Figures of paper {'B' if name.startswith('B') else 'A'}, preset {preset}"


def default_jobs(preset: str) -> int:
    return grid.cores() if preset in ON_CPUS else 1


def output(name: str, args: Args) -> Path:
    suffix = "" if args.preset == "laptop" else f"_{args.preset}"
    return Path(args.results_dir) / f"fig_{name}{suffix}"


def draw(name: str, args: Args, folder: Path) -> None:
    """Draws a figure from the finished runs, and writes and prints its verdict."""
    figure, paper, cells = FIGURES[name], PAPERS[name], cells_of(name, args.preset)
    preset = presets_of(name)[args.preset]
    data = Data(preset, folder)
    shown, checks = figure.show(data, cells)
    needed = grid.with_sources(list(cells.values()))  # each run once, even if it has several roles
    unfinished = [cell.name for cell in needed if grid.state(cell, folder) != "finished"]
    found = "not enough data" if unfinished else verdict(checks)  # a missing run may be the best one
    bowl = all(cell.script == "stochastic_opt" for cell in needed)
    where = "A convex bowl" if bowl else ", ".join(dict.fromkeys(environment(dict(cell.flags)) for cell in needed))
    stand_in = figure.suite and (figure.lacking or args.preset != "paper")
    where += f" in place of {figure.suite}" if stand_in else ""
    seeds = max(len(data.final(cell)) for cell in needed)  # in one run; some figures have a run per seed
    seeds *= len({dict(cell.flags).get("seed") for cell in needed})
    diverged = sum(int(np.sum(data.diverged(cell))) for cell in needed if data.diverged(cell) is not None)
    gone = "count as random policies" if figure.suite else "count as random policies at the end"
    gone = "count as a solve rate of 0 at the end" if paper is sfl else gone
    caption = (
        f"{where}, {seeds} seed{'s' * (seeds != 1)}."
        + f" {len(unfinished)} of {len(needed)} runs are not finished." * bool(unfinished)
        + f" {diverged} seeds diverged, and {gone}." * bool(diverged)
        + f" {pictures.described(shown)}."
        + " COM: centre of mass of the proximal policy." * any("com" in dict(cell.flags) for cell in needed)
    )
    out = output(name, args)
    out.parent.mkdir(parents=True, exist_ok=True)
    pictures.save(shown, out.with_name(out.name + ".png"), figure.title, caption)
    summary = {
        "figure": name,
        "paper": paper.CITATION,
        "title": figure.title,
        "preset": args.preset,
        "command": shlex.join(replace(args, figures=(name,)).again()),
        "claim": figure.claim,
        "verdict": found,
        **results.committed(rules_of(name, args.preset)),
        "checks": [check.stored() for check in checks],
        "not_finished": unfinished,
        "drawn": datetime.date.today().isoformat(),
        "drawn_last": last_points(shown),
        "runs": {str(key): describe(data, cell, folder) for key, cell in cells.items()},
    }
    results.write(out.with_name(out.name + ".json"), summary)
    print(f"figure {name}: {found} ({out}.png)")
    for check in checks:
        print(f"  {check}")


def environment(flags: dict[str, Any]) -> str:
    sticky = flags.get("sticky_actions", 0.0)
    return flags["env_id"] + f" (sticky actions {sticky:g})" * bool(sticky)


def last_points(shown: Any) -> dict[str, Any]:
    """Returns mean and interval at the end of each line of the picture; for points, at all of them. On a logarithmic
    axis they are geometric."""
    found: dict[str, Any] = {}
    for panel, lines in getattr(shown, "panels", {}).items():
        for line in (line for line in lines if line.kind != "dots"):
            rows = np.transpose(pictures.middle(line, shown.log_y))
            found.setdefault(panel, {})[line.label] = rows if line.kind.endswith("points") else rows[-1:]
    return found


def describe(data: Data, cell: grid.Cell, folder: Path) -> dict[str, Any]:
    """Returns a run's command, hardware and results."""
    runs = cell.parts or (cell,)
    try:
        records = [json.loads((folder / run.name / "args.json").read_text()) for run in runs]
    except (OSError, ValueError):
        return {"run": cell.name}
    record = records[0]
    key = performance(data.p, cell)
    x, y = data.curve(cell, key)
    mean, width = plots.mean_and_ci(y)
    thin = slice(None, None, max(1, len(x) // 32))
    return {
        "command": "; ".join(shlex.join(["python", *shlex.split(record["command"])]) for record in records),
        "git_commit": record["git_commit"],
        "git_dirty": record.get("git_dirty"),
        "started": record["started"],
        "machine": record["machine"],
        "devices": record["devices"],
        "jax": record["versions"].get("jax"),
        "measure": key,
        "final": plots.mean_and_ci(data.part(cell, key, 0.9, 1.0).T)[0],  # in some updates no episode ends
        "curve": {"step": x[thin], "mean": mean[thin], "ci95": width[thin]},
    }


def tally(preset: str, folder: Path) -> str:
    """Returns a table of how many claims have which verdict. Figures that check the same claim on the same runs count
    once, by what their checks say together. Figures that share a run are one set."""
    verdicts = (*OUTCOMES, "not run")
    head = ["", "figures", "claims", *verdicts, "sets of runs", "sets with a claim that holds"]
    rows = [f"| {' | '.join(head)} |".replace("|  |", "| |"), "|---" * len(head) + "|"]
    for paper, label in PARTS.items():
        figures = {name: figure for name, figure in paper.FIGURES.items() if preset in presets_of(name)}
        if not figures:
            continue
        claims: dict[str, list[Outcome]] = {}
        for name, figure in figures.items():
            claims.setdefault(figure.repeats or name, []).extend(filter(None, [verdict_of(name, preset, folder)]))
        found = {name: together(outcomes) if outcomes else "not run" for name, outcomes in claims.items()}
        counts, sets = Counter(found.values()), sets_of_runs(list(figures), preset)
        hold = sum(any(found.get(name) == "holds" for name in names) for names in sets)
        cells = [label, len(figures), len(claims), *(counts[outcome] for outcome in verdicts), len(sets), hold]
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows)


def sets_of_runs(names: Sequence[str], preset: str) -> list[set[str]]:
    """Returns the figures in sets, of which no two share a run; without figure 8, whose runs are those of others."""
    found: list[tuple[set[str], set[str]]] = []  # figures, and the names of their runs
    for name in names:
        if name == POOLED:
            continue
        figures, runs = {name}, {cell.name for cell in grid.with_sources(list(cells_of(name, preset).values()))}
        for other in [one for one in found if one[1] & runs]:
            found.remove(other)
            figures, runs = figures | other[0], runs | other[1]
        found.append((figures, runs))
    return [figures for figures, _ in found]


def verdict_of(name: str, preset: str, folder: Path) -> Outcome | None:
    """Reads a figure's verdict, if it has been drawn."""
    path = output(name, Args((name,), preset=preset, results_dir=str(folder)))
    try:
        return json.loads(path.with_name(path.name + ".json").read_text())["verdict"]
    except (OSError, ValueError, KeyError):
        return None


def list_figures(args: Args) -> None:
    for citation in dict.fromkeys(PAPERS[name].CITATION for name in args.names):
        names = [name for name in args.names if citation == PAPERS[name].CITATION]
        print(citation)
        for paper in dict.fromkeys(PAPERS[name] for name in names):
            presets = {k: v for name in names if PAPERS[name] is paper for k, v in presets_of(name).items()}
            for preset_name, preset in presets.items():
                print(f"preset {preset_name}: {preset.about}")
        print()
        for name in names:
            there = []
            for preset_name in presets_of(name):
                cells = grid.with_sources(list(cells_of(name, preset_name).values()))
                done = sum(grid.state(cell, Path(args.runs_dir) / preset_name) == "finished" for cell in cells)
                there.append(f"{preset_name} {done}/{len(cells)} runs{result(name, preset_name, args)}")
            scripts = " ".join(sorted({f"{cell.script}.py" for cell in cells_of(name, "laptop").values()}))
            print(f"{name:>4}  {FIGURES[name].title} ({scripts})\n      {'; '.join(there)}")
        print()


def result(name: str, preset: str, args: Args) -> str:
    found = verdict_of(name, preset, Path(args.results_dir))
    return f", {output(name, replace(args, preset=preset))}.png: {found}" if found else ""


if __name__ == "__main__":
    run_main(main, Args)
