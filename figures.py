"""Runs what the figures of both papers need, draws them, and says how large the claimed effects are.

    python figures.py --list                               # lists the figures, what they need and what exists
    python figures.py 5a                                   # runs what is missing, writes results/fig_5a.png and .json
    python figures.py 5a --dry-run                         # only prints the commands
    python figures.py B1a B3                               # figures 1a and 3 of paper B
    python figures.py 1a 3a 5a --preset paper --launch slurm

Figures of Beukman et al. 2026 (paper A) keep their numbers; those of Mayor et al. 2025 (paper B) have a B in front.
Each is a table of runs in experiments/ (a run is one command of one script), a picture of them, and effects with their
95 % intervals over seeds. The claim holds if all its effects do. A finished run is never repeated; an interrupted one
resumes from its checkpoint. See docs/figures.md.
"""

import datetime
import json
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from common.run import arguments, plots
from common.run.arguments import UsageError
from common.run.command import main as run_main
from common.run.folder import git, write_atomically
from common.run.tracking import say
from experiments import effects, grid, paper_a, paper_a_gpu, paper_b, pictures, visited
from experiments.data import Cells, Data, each

ROOT, RULES = Path(__file__).resolve().parent, "experiments/PREREGISTERED.md"
ALL = paper_a.FIGURES | paper_a_gpu.FIGURES | paper_b.FIGURES
# Those of paper A first, then by number; BN last.
FIGURES = {n: ALL[n] for n in sorted(ALL, key=lambda n: (n[0] == "B", int(re.sub(r"\D", "", n) or 99), n))}


@dataclass(frozen=True)
class Args:
    figures: Positional[tuple[str, ...]] = ()
    """Figures by number (B1a is figure 1a of paper B), or all."""
    preset: Literal["laptop", "gpu", "paper"] = "laptop"
    """Choice of environment, sizes and grids; --list describes each."""
    list_: Annotated[bool, arg(name="list")] = False
    """List the figures, their scripts and which results exist."""
    dry_run: bool = False
    """Print the commands of the missing runs and do nothing else."""
    launch: Literal["here", "slurm", "none"] = "here"
    """slurm: write sbatch arrays of the missing runs and print how to submit them; none: draw from finished runs."""
    jobs: arguments.Positive[int] | None = None
    """How many runs go at once, each on its share of the cores (default: one per core, one if there is a GPU)."""
    runs_dir: str = "runs/figures"
    """Folder for the runs, with a subfolder for each preset."""
    results_dir: str = "results"
    """Folder for pictures and effects."""

    def __post_init__(self):
        arguments.check(self)
        unknown = [name for name in self.figures if name not in (*FIGURES, "all")]
        if unknown:
            raise UsageError(f"figure {unknown[0]}: there are {', '.join(FIGURES)}, and all")
        if not self.figures and not self.list_:
            raise UsageError("no figure given: name some, such as 5a, or all; --list lists them")
        for name in set(self.figures) - {"all"}:
            if self.preset not in FIGURES[name].presets and not self.list_:
                known = ", ".join(FIGURES[name].presets)
                raise UsageError(f"--preset {self.preset}: figure {name} does not have it; it has {known}")

    @property
    def names(self) -> list[str]:
        if "all" in self.figures or not self.figures:  # except figures that this preset does not have
            return [name for name in FIGURES if self.list_ or self.preset in FIGURES[name].presets]
        return list(dict.fromkeys(self.figures))

    def again(self, *flags: str) -> list[str]:
        """The command line that makes these figures, with `flags` added."""
        folders = {n: getattr(self, n) for n in ("runs_dir", "results_dir") if getattr(self, n) != getattr(Args, n)}
        return ["python", "figures.py", *self.names, "--preset", self.preset, *grid.spelled(folders), *flags]

    def output(self, name: str) -> Path:
        """The picture of a figure."""
        return Path(self.results_dir) / f"fig_{name}{'' if self.preset == 'laptop' else f'_{self.preset}'}.png"


def cells_of(name: str, preset: str) -> Cells:
    return FIGURES[name].cells(FIGURES[name].presets[preset])


def main(args: Args) -> None:
    folder = Path(args.runs_dir) / args.preset
    if args.list_:
        return list_figures(args)
    cells = grid.with_sources([cell for name in args.names for cell in each(cells_of(name, args.preset))])
    missing = [cell for cell in cells if grid.state(cell, folder) != "finished"]
    if args.dry_run:
        for cell in missing:
            print(shlex.join(grid.command(cell, folder)))
        return say(f"{len(missing)} of {len(cells)} runs are missing")
    if args.launch == "slurm" and missing:
        print("\n".join(grid.write_slurm(missing, folder, f"fig-{'-'.join(args.names)}"[:60])))
        draws = shlex.join(args.again("--launch", "none"))
        return say(f"these commands submit {len(missing)} runs; {draws} draws then")
    if args.launch == "none" and len(missing) == len(cells):
        none = f"none of the {len(cells)} runs is finished in {folder}"
        raise UsageError(f"--launch none: {none}; leave it out to run them")
    try:  # this and the next fail now, not after hours of runs
        Path(args.results_dir).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--results-dir {args.results_dir}: cannot write there ({error.strerror})") from None
    if {"B2", "B9"} & {*args.names}:
        visited.umap()
    failed = []
    if missing and args.launch == "here":
        say(f"{len(missing)} of {len(cells)} runs are missing; their output goes to {folder}/*.log")
        failed = grid.run_missing(missing, folder, args.jobs or grid.cores_or_one(), say)
    for name in args.names:
        try:
            draw(name, args, folder)
        except OSError as error:  # such as a full disk
            failed.append(f"figure {name}: cannot be drawn ({error})")
    try:
        draw_effects(args)
    except OSError as error:
        failed.append(f"the picture of effects: cannot be drawn ({error})")
    if failed:
        raise SystemExit("\n".join(f"figures.py: failed: {line}" for line in failed))
    return None


def draw(name: str, args: Args, folder: Path) -> None:
    """Draws a figure from the finished runs, and writes and prints its effects."""
    figure, cells = FIGURES[name], cells_of(name, args.preset)
    data = Data(figure.presets[args.preset], folder)
    shown, found = figure.show(data, cells)
    needed = each(cells)
    runs = grid.with_sources(needed)  # each once, even if it has several roles
    unfinished = [cell.name for cell in runs if grid.state(cell, folder) != "finished"]
    outcome = "open" if unfinished else effects.verdict(found)  # a missing run may be the best one
    diverged = sum(int(data.diverged(cell).sum()) for cell in needed if data.finished(cell))
    flags = [dict(cell.flags) for cell in needed]
    where = ", ".join(dict.fromkeys(of.get("env_id", "the bowl") for of in flags))
    caption = (
        f"{where}, {max(len(data.final(cell)) for cell in needed)} seeds."
        + f" {len(unfinished)} of {len(runs)} runs are not finished." * bool(unfinished)
        + f" {diverged} seeds diverged, and score as random policies." * bool(diverged)
        + f" {pictures.described(shown)}."
        + " COM: centre of mass of the proximal policy." * any("com" in of for of in flags)
    )
    out = args.output(name)
    pictures.save(shown, out, figure.title, caption)
    summary = {
        "figure": name,
        "paper": "Mayor et al. 2025" if name.startswith("B") else "Beukman et al. 2026",
        "title": figure.title,
        "preset": args.preset,
        "command": shlex.join(replace(args, figures=(name,)).again()),
        "claim": figure.claim,
        "effects": [effect._asdict() | {"outcome": effect.outcome} for effect in found],
        "verdict": outcome,
        "commit of experiments/PREREGISTERED.md": git(ROOT, "log", "-1", "--format=%H", "--", RULES),
        "not_finished": unfinished,
        "drawn": datetime.date.today().isoformat(),
        "runs": {cell.name: describe(data, cell, folder) for cell in runs},
    }
    write(out.with_suffix(".json"), summary)
    print(f"figure {name}: {figure.claim}")
    print("\n".join([*(f"  {effect}" for effect in found), f"  {outcome} ({out})"]))


def draw_effects(args: Args) -> None:
    """Draws the effects of all figures there are of these figures' presets, a picture for each environment."""
    for preset in {id(p): p for p in (FIGURES[name].presets[args.preset] for name in args.names)}.values():
        alike = [n for n, figure in FIGURES.items() if figure.presets.get(args.preset) is preset]
        there = [path for n in alike if (path := args.output(n).with_suffix(".json")).exists()]
        if env_id := getattr(preset, "base", {}).get("env_id"):
            out = args.output(alike[0]).name.replace(f"fig_{alike[0]}", f"effects_{env_id.replace('/', '_')}")
            found = (json.loads(path.read_text()) for path in there)
            pictures.forest({summary["figure"]: summary for summary in found}, Path(args.results_dir) / out)


def describe(data: Data, cell: grid.Cell, folder: Path) -> dict[str, Any]:
    """A run's command, hardware and results."""
    try:
        record = json.loads((folder / cell.name / "args.json").read_text())
    except (OSError, ValueError):
        return {}
    x, y = data.curve(cell)
    mean, width = plots.mean_and_ci(y)
    thin = slice(None, None, max(1, len(x) // 32))
    return {
        "command": f"python {record['command']}",
        "jax": record["versions"].get("jax"),
        **{key: record.get(key) for key in ("git_commit", "git_dirty", "started", "machine", "devices")},
        "measure": data.p.performance,
        "final": plots.mean_and_ci(data.part(cell, data.p.performance, 0.9, 1.0).T)[0],  # not each update ends episodes
        "curve": {"step": x[thin], "mean": mean[thin], "ci95": width[thin]},
    }


def write(out: Path, value: dict[str, Any]) -> None:
    """Writes JSON with six digits, null for what is not finite, and each list of numbers on one line."""
    text = json.dumps(value, default=lambda array: array.tolist())
    value = json.loads(text, parse_float=lambda x: float(f"{float(x):.6g}"), parse_constant=lambda _: None)
    one_line = lambda numbers: f"[{', '.join(numbers[0][1:-1].replace(',', ' ').split())}]"  # noqa: E731
    text = re.sub(r'\[\n[^][{}"]*\]', one_line, json.dumps(value, indent=1))
    write_atomically(out, text + "\n")


def list_figures(args: Args) -> None:
    for preset in dict.fromkeys(f"{n}: {p.about}" for name in args.names for n, p in FIGURES[name].presets.items()):
        print(f"preset {preset}")
    for name in args.names:
        there = []
        for preset in FIGURES[name].presets:
            cells = grid.with_sources(each(cells_of(name, preset)))
            done = sum(grid.state(cell, Path(args.runs_dir) / preset) == "finished" for cell in cells)
            out = replace(args, figures=(), preset=preset).output(name)
            try:
                found = f", {out}: {json.loads(out.with_suffix('.json').read_text())['verdict']}"
            except (OSError, ValueError, KeyError):
                found = ""
            there.append(f"{preset} {done}/{len(cells)} runs{found}")
        scripts = " ".join(sorted({f"{cell.script}.py" for cell in cells}))
        print(f"{name:>4}  {FIGURES[name].title} ({scripts})\n      {FIGURES[name].claim}\n      {'; '.join(there)}")


if __name__ == "__main__":
    run_main(main, Args)
