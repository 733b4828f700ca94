"""How well do these scripts learn? Makes the runs of the table in tasks.py, and the page about them.

    python benchmarks/learning.py                              # everything that is missing: days on two cores
    python benchmarks/learning.py --rows minatar               # a group; or rows, with * and ?
    python benchmarks/learning.py --rows breakout_ppo_2048 --seeds 0 1
    python benchmarks/learning.py --list                       # the table, with what is there
    python benchmarks/learning.py --report                     # the page and the picture, from the JSON alone
    python benchmarks/learning.py --check                      # exits with 1 if the page is not what the JSON gives

Every run is a command as a user types it, in a process of its own, with one core and `--num-devices 1`; rows about
seconds run alone, on all cores. Then `--evaluate RUN --eval-deterministic` plays its policy with the most probable
actions. A run in results/learning.json is not made again unless its command or its script's defaults have changed; one
that was broken off goes on. The JSON is written after every run; several of these programs may add to it at once.
"""

import contextlib
import fcntl
import fnmatch
import hashlib
import importlib
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import peers, report
from benchmarks.tasks import GROUPS, PEER, SAME, TABLE, Row
from common.run import arguments, plots
from common.run.arguments import UsageError
from common.run.folder import write_atomically
from experiments import effects, grid

POINTS = 40  # of a stored curve
PLAIN = ("sticky_actions", 0)  # how the policies of some rows are played
NOT_SETTINGS = {*plots.BOOKKEEPING, "eval_deterministic"}  # of which a result does not depend


@dataclass(frozen=True)
class Args:
    rows: tuple[str, ...] = ("*",)
    """Rows or groups to make, with * and ? as in file names."""
    seeds: tuple[int, ...] | None = None
    """Seeds of each run (default: 0 to 4, in a few rows 0 to 9)."""
    workers: int | None = None
    """How many runs go at once, each on its share of the cores (default: one per core)."""
    list: bool = False
    """Print the rows and how many of their runs are there."""
    report: bool = False
    """Only write the page and the picture."""
    check: bool = False
    """Only compare the page with what the JSON gives; exit with 1 if it differs."""
    again: bool = False
    """Forget the results of these rows and seeds first."""
    out: Path = Path("results/learning.json")
    """Results; the picture is beside them."""
    page: Path = Path("docs/results.md")
    """The page that is made from them."""
    runs_dir: Path = Path("runs/learning")
    """Where the runs' folders go."""


def choose(patterns: Sequence[str]) -> list[Row]:
    """The rows that any of these names or groups match."""
    for pattern in patterns:
        if not any(fnmatch.fnmatch(name, pattern) for row in TABLE.values() for name in (row.name, row.group)):
            groups = ", ".join(dict.fromkeys(row.group for row in TABLE.values()))
            raise UsageError(f"--rows {pattern}: no row or group is called that; groups are {groups}; see --list")
    fits = lambda row: any(fnmatch.fnmatch(name, p) for name in (row.name, row.group) for p in patterns)  # noqa: E731
    return [row for row in TABLE.values() if fits(row)]


@cache
def settled(script: str, flags: str) -> Any:
    """The arguments that a script makes of these flags."""
    module = importlib.import_module(script.removesuffix(".py").replace("/", "."))
    return arguments.parse(module.Args, "", shlex.split(flags))


def settings(row: Row) -> str:
    """A digest of all arguments that a result depends on, defaults too. What is off is left out: a new flag of a script
    that is off by default changes no result."""
    values = {k: v for k, v in asdict(settled(row.script, row.flags)).items() if v and k not in NOT_SETTINGS}
    return hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()[:8]


def make_cell(row: Row, seed: int) -> grid.Cell:
    """A run as experiments/grid.py makes and resumes it."""
    found: dict[str, Any] = {}
    for word in shlex.split(row.command(seed))[2:]:
        if word.startswith("--"):
            found[name := word[2:].replace("-", "_")] = ()
        else:
            found[name] += (word,)
    flags = tuple((name, value or True) for name, value in found.items())
    updates = settled(row.script, row.flags).num_updates
    return grid.Cell(row.script.removesuffix(".py"), f"{row.name}__{seed}__{settings(row)}", flags, updates)


def greedy_cell(cell: grid.Cell, runs_dir: Path, *flags: tuple[str, Any]) -> grid.Cell:
    """The run that plays its policy with the most probable actions."""
    flags = (("evaluate", str(runs_dir / cell.name)), *flags, ("eval_deterministic", True))
    return replace(cell, name=f"{cell.name}__greedy", flags=flags)


def players(row: Row, cell: grid.Cell, runs_dir: Path) -> dict[str, grid.Cell]:
    """The runs that play its policy, by what is stored of them: with the most probable actions; with sampled ones, too,
    if it is not played as it was trained."""
    if not row.plain:
        return {"greedy": greedy_cell(cell, runs_dir)}
    played = (("evaluate", str(runs_dir / cell.name)), PLAIN)
    sampled = replace(cell, name=f"{cell.name}__played", flags=played)
    return {"greedy": greedy_cell(cell, runs_dir, PLAIN), "sampled": sampled}


def read(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The stored runs, by row and command."""
    return {(run["row"], run["command"]): run for run in json.loads(path.read_text())["runs"]} if path.exists() else {}


@contextlib.contextmanager
def changing(path: Path) -> Iterator[dict[tuple[str, str], dict[str, Any]]]:
    """The stored runs, to be changed; no other process can do so meanwhile. One line per run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        runs = read(path)
        yield runs
        order = {name: i for i, name in enumerate(TABLE)}
        ordered = sorted(runs.values(), key=lambda run: (order.get(run["row"], len(order)), run["row"], run["seed"]))
        write_atomically(path, '{"runs": [\n' + ",\n".join(map(json.dumps, ordered)) + "\n]}\n")
    finally:
        os.close(lock)


def make_curve(folder: Path) -> list[list[float]]:
    """Steps, seconds and return in training (None if no episode ended) at up to POINTS times. Seconds begin with the
    first update, so without imports and compiling it; a run that was resumed has its second compiling inside."""
    lines = [line for line in plots.read_lines(folder) if line.get("charts/SPS")]
    before = lines[0]["time"] - lines[0]["global_step"] / lines[0]["charts/SPS"]
    points = []
    for part in np.array_split(np.arange(len(lines)), min(POINTS, len(lines))):
        returns = [r for i in part if (r := lines[i].get("charts/episodic_return")) is not None]
        mean = float(f"{np.mean(returns):.5g}") if returns else None
        points.append([lines[part[-1]]["global_step"], round(lines[part[-1]]["time"] - before, 2), mean])
    return points


def measured(row: Row, seed: int, folder: Path) -> dict[str, Any]:
    """What is stored of a finished run, but for what `players` play."""
    record, summary = (json.loads((folder / f"{name}.json").read_text()) for name in ("args", "summary"))
    curve = make_curve(folder)
    steps, seconds, _ = curve[-1]
    return {
        "row": row.name,
        "command": row.command(seed),
        "settings": settings(row),
        "seed": seed,
        "commit": (record.get("git_commit") or "unknown") + (" with changes" if record.get("git_dirty") else ""),
        "date": record["started"],
        "machine": record["machine"],
        "jax": record["versions"]["jax"],
        "num_envs": settled(row.script, row.flags).num_envs,
        "steps": steps,
        "sampled": None if row.plain else summary["eval/episodic_return"]["mean"],
        "greedy": None,
        "seconds": seconds,
        "compile_s": summary.get("compile_s"),
        "steps_per_second": round(steps / seconds),
        "curve": curve,
    }


def make(args: Args, rows: Sequence[Row]) -> list[str]:
    """Makes what is missing. -> what failed, a line each."""
    wanted = {make_cell(row, seed): (row, seed) for row in rows for seed in args.seeds or range(row.seeds)}
    by_name = {
        each.name: cell
        for cell, (row, _) in wanted.items()
        for each in (cell, *players(row, cell, args.runs_dir).values())
    }
    if args.again:
        with changing(args.out) as runs:
            for cell, (row, seed) in wanted.items():
                runs.pop((row.name, row.command(seed)), None)
                for each in (cell, *players(row, cell, args.runs_dir).values()):
                    shutil.rmtree(args.runs_dir / each.name, ignore_errors=True)

    def then(cell: grid.Cell) -> grid.Cell | None:
        """Stores what has just been finished. -> what is to be played next with its policy."""
        trained = by_name[cell.name]
        row, seed = wanted[trained]
        run, following = measured(row, seed, args.runs_dir / trained.name), None
        for what, player in players(row, trained, args.runs_dir).items():
            if grid.state(player, args.runs_dir) == "finished":
                summary = json.loads((args.runs_dir / player.name / "summary.json").read_text())
                run[what] = summary["eval/episodic_return"]["mean"]
            else:
                following = player
        with changing(args.out) as runs:
            runs[row.name, run["command"]] = run
        return following

    stored, failed = read(args.out), []
    for alone in (False, True):
        todo = []
        for cell, (row, seed) in wanted.items():
            run = stored.get((row.name, row.command(seed)), {})
            done = run.get("settings") == settings(row) and None not in (run["sampled"], run["greedy"])
            if row.alone == alone and not done:
                trained = grid.state(cell, args.runs_dir) == "finished"
                following = then(cell) if trained else cell
                todo += [following] if following else []
        for program in {program for cell in todo if (program := dict(cell.flags).get("program"))}:
            peers.prepare(*program)
        todo.sort(key=lambda cell: wanted[by_name[cell.name]][1])  # a first seed of all rows
        jobs = 1 if alone else args.workers or grid.cores_or_one()
        if alone:  # from here on: so that the page's seconds of compiling are those of a first run
            os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
        say = lambda text: print(text, flush=True)  # noqa: E731
        failed += grid.run_missing(todo, args.runs_dir, jobs, say, then)
    return failed


# --- the page, from the JSON alone ---


def runs_of(row: Row, stored: dict[tuple[str, str], dict[str, Any]]) -> list[dict[str, Any]]:
    """The stored runs of a row, by seed; of those with other defaults than the newest none."""
    mine = [(command, run) for (name, command), run in stored.items() if name == row.name]
    found = [run for command, run in mine if command == row.command(run["seed"]) and run["sampled"] is not None]
    newest = max(found, key=lambda run: run["date"], default={"settings": ""})
    return sorted((run for run in found if run["settings"] == newest["settings"]), key=lambda run: run["seed"])


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half the width of its 95 % t-interval (NaN of one or two values)."""
    mean, width = map(float, plots.mean_and_ci(np.array(values, np.float64)))
    return mean, width if len(values) >= effects.FEWEST else float("nan")


def until(curve: Sequence[Sequence[float]], goal: float) -> float:
    """Seconds of training until its return is `goal`, between two points of the curve; infinite if it never is."""
    before = (0.0, None)
    for _, seconds, value in curve:
        if value is not None and value >= goal:
            start = before[1]
            return seconds if start is None else float(np.interp(goal, (start, value), (before[0], seconds)))
        before = (seconds, value) if value is not None else before
    return float("inf")


def peer(row: Row) -> str:
    """Whose program a row has; empty: one of ours."""
    return peers.NAMES[settled(row.script, row.flags).program] if row.script == PEER else ""


def typed(row: Row) -> str:
    """Its command with S for the seed."""
    return row.command(0).replace("--seed 0", "--seed S")


def number(value: float, like: float | None = None) -> str:
    """A score with one digit after the point; with three if it (or `like`) is below 2, with none from 1,000."""
    size = abs(value if like is None else like)
    return f"{value:,.{3 if size < 2 else 1 if size < 1000 else 0}f}".replace("-", "−")


def verdict(apart: float, width: float) -> str:
    """In words, where a difference to a reference leaves a row."""
    if np.isnan(width):
        return "too few seeds: open"
    if apart >= 0:
        return "reached"
    return "below, within the interval" if apart + width >= 0 else "**below**"


def compare(row: Row, scores: Sequence[float], stored: dict[tuple[str, str], dict[str, Any]]) -> tuple[str, str]:
    """-> the reference and where it leaves the row, as the page says them."""
    if row.against:
        theirs = [run["sampled"] for run in runs_of(TABLE[row.against], stored)]
        if not theirs:
            return "–", ""
        effect = effects.difference("", scores, theirs)
        apart, width = effect.estimate, (effect.high - effect.low) / 2
        name = peer(TABLE[row.against]).partition("'")[0] or f"`{TABLE[row.against].script}`"
        between = f"{'+' if apart > 0 else ''}{number(apart, np.mean(theirs))}"
        between += "" if np.isnan(width) else f" ± {number(width, np.mean(theirs))}"
        return (
            f"{number(np.mean(theirs))} ({name}, {len(theirs)} seed{'s' * (len(theirs) > 1)})",
            f"{verdict(apart, width)} ({between})",
        )
    if row.reference is None:
        return "–", ""
    mean, width = interval(scores)
    return f"{number(row.reference)} ({row.source})", verdict(mean - row.reference, width)


def reached(goal: float, runs: Sequence[dict[str, Any]]) -> str:
    """After how many seconds the median run's return in training is `goal`."""
    times = [until(run["curve"], goal) for run in runs]
    middle, never = np.median(times), sum(map(np.isinf, times))
    missed = f" ({never} of {len(times)} never)" if never else ""
    return f"{goal:g}: {'–' if np.isinf(middle) else f'{middle:.0f} s'}{missed}"


def make_line(row: Row, stored: dict[tuple[str, str], dict[str, Any]], tenth: bool, goals: bool) -> str:
    """A row of a table. tenth: whether its table has that column; goals: those of seconds."""
    runs = runs_of(row, stored)
    scores = [run["sampled"] for run in runs]
    (mean, width), greedy = interval(scores), [run["greedy"] for run in runs if run["greedy"] is not None]
    script = peer(row) or f"`{row.script}`"
    spread = "" if np.isnan(width) else f" ± {number(width, mean)}"
    script += " with PureJaxRL's flags" * (SAME in row.flags)
    cells = [row.task, f"{script}, N = {runs[0]['num_envs']:,}", f"{runs[0]['steps'] / 1e6:.3g}M", str(len(runs))]
    cells.append(f"{number(mean)}{spread}")
    if tenth:
        cells.append(number(np.percentile(scores, 10)) if len(runs) >= 10 else "–")
    minutes = f"{np.median([run['seconds'] for run in runs]) / 60:.1f}"
    if row.alone:  # seconds on different machines say nothing of the programs
        minutes += f" ({', '.join(sorted({run['machine']['cpu'].split()[0].removesuffix('(R)') for run in runs}))})"
    # Seeds that share a process, and processes that share a GPU, have no time of their own.
    cells += [number(np.mean(greedy)) if greedy else "–", "GPU" if any("together" in run for run in runs) else minutes]
    if goals:
        cells += [f"{max(run['compile_s'] for run in runs):.0f}", ", ".join(reached(goal, runs) for goal in row.goals)]
    return f"| {' | '.join((*cells, *compare(row, scores, stored)))} |"


def merged(commands: Sequence[str]) -> list[str]:
    """Commands that differ only in their game of MinAtar, their script or --num-envs are one, with {all of them}."""
    for pattern in (r"(.*?)(\w+)(-MinAtar.*)", r"(python )(\w+)(\.py.*)", r"(.*--num-envs )(\d+)(.*)"):
        groups: dict[tuple[str, str], list[str]] = {}
        for command in dict.fromkeys(commands):
            before, word, after = found.groups() if (found := re.fullmatch(pattern, command)) else (command, "", "")
            groups.setdefault((before, after), []).append(word)
        commands = [a + (f"{{{','.join(of)}}}" if len(of) > 1 else of[0]) + b for (a, b), of in groups.items()]
    return list(commands)


def make_table(group: str, rows: Sequence[Row], stored: dict[tuple[str, str], dict[str, Any]]) -> str:
    """A group's part of the page: a table, and the commands."""
    goals = any(row.goals for row in rows)
    tenth = not goals and any(len(runs_of(row, stored)) >= 10 for row in rows)
    head = [
        "task",
        "script",
        "steps",
        "seeds",
        "return",
        *["10th percentile"] * tenth,
        "most probable actions",
    ]
    head += ["minutes", *["seconds of compiling", "seconds to a training return of"] * goals, "reference", ""]
    lines = [f"## {GROUPS[group][0]}", "", GROUPS[group][1], "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    lines += [make_line(row, stored, tenth, goals) for row in rows]
    commands = [typed(row).replace(SAME, "$SAME") for row in rows]
    lines += [
        "",
        "<details><summary>Commands</summary>",
        "",
        "```bash",
        *[f'SAME="{SAME}"'] * any("$SAME" in command for command in commands),
        *merged(commands),
        "```",
        "",
        "</details>",
    ]
    return "\n".join(lines)


LEAD = """# Results

Returns of trained policies, not of training: 128 episodes at the end of each run, with sampled actions unless a column
says "most probable actions" (`pqn.py` always takes the best one). A return is the mean over seeds ± half its 95 %
t-interval; some tables have the 10th percentile of ten seeds or more. Minutes are those that the median run trained,
without imports and compiling, on one core with other runs beside it unless a table says otherwise. "GPU": some or all
seeds of the row were one process with `--num-seeds`, and eight such shared an H100. On Breakout seeds vary,
[machines perhaps](scaling.md#on-a-gpu). Where a seed was run on both, the CPU's run counts.

References are other people's numbers, unless a script is named:
[discogen](https://github.com/AlexGoldie/discogen)'s PPO had 10M steps and the best of ten learning rates for each game;
[PureJaxRL](https://github.com/luchris429/purejaxrl)'s PPO, rejax's and PureJaxQL's PQN were run here. We judge sampled
actions, although published scores are of the most probable ones, which mostly score higher. "Reached": our mean is at
least the reference. "Below, within the interval": it is lower, and its interval includes the reference; **below**: it
does not. Of what is in {braces} a command takes one."""


def make_page(stored: dict[tuple[str, str], dict[str, Any]], picture: str) -> str:
    """docs/results.md. picture: its path from there."""
    known = {row.name: runs for row in TABLE.values() if (runs := runs_of(row, stored))}  # plain ones are in log.md
    used = [run for runs in known.values() for run in runs]
    parts = [LEAD]
    if used:
        machines: dict[tuple, int] = {}  # to cores: a run that has one of them sees no more
        for machine in (run["machine"] for run in used):
            key = machine["cpu"], machine["memory_gb"], *([machine["gpu"]] if "gpu" in machine else [])
            machines[key] = max(machines.get(key, 0), machine["cores"])
        sizes = sorted(machines.items())
        cores_of = lambda n: f"{n} core{'s' * (n > 1)}"  # noqa: E731
        cpus = "; ".join(", ".join((cpu, cores_of(n), f"{gb} GB", *gpu)) for (cpu, gb, *gpu), n in sizes)
        days = sorted({run["date"][:10] for run in used})
        jax = " and ".join(sorted({run["jax"] for run in used}))
        parts.append(f"{len(used)} runs, {' to '.join(days[:1] + days[1:][-1:])}, on {cpus}; JAX {jax}.")
    if any(TABLE[name].group == "headline" for name in known):
        parts.append(f"![Returns in training against steps and against seconds]({picture})")
    for group in GROUPS:
        rows = [row for row in TABLE.values() if row.group == group and row.name in known and not row.plain]
        parts += [make_table(group, rows, stored)] if rows else []
    missing = [row.name for row in TABLE.values() if row.name not in known]
    if missing:
        parts.append(
            f"{len(missing)} of {len(TABLE)} rows are not run yet; `python benchmarks/learning.py --list` names them."
        )
    made = "`python benchmarks/learning.py` makes what is missing, and this page from `results/learning.json`."
    first, *rest = ("\n\n".join([*parts, made]) + "\n").split(same := f'SAME="{SAME}"\n')
    return first + same * bool(rest) + "# $SAME is above\n".join(rest)


def on_one_grid(curves: Iterable[Sequence[Sequence[float | None]]]) -> tuple[np.ndarray, np.ndarray]:
    """Curves of steps ... and return, each as long -> steps [T], returns [T, runs]."""
    each = [np.array(curve, np.float64) for curve in curves]
    steps = np.linspace(0, each[0][-1, 0], POINTS + 1)[1:]
    values = [np.interp(steps, *curve[~np.isnan(curve[:, -1])][:, [0, -1]].T, left=np.nan) for curve in each]
    return steps, np.array(values).T


def draw(stored: dict[tuple[str, str], dict[str, Any]], path: Path) -> None:
    """Return in training of the runs that were alone on the machine, against seconds; against steps with all seeds that
    their flags have."""
    rows = [row for row in TABLE.values() if row.group == "headline" and runs_of(row, stored)]
    rows = [row for row in rows if "--num-envs" not in row.flags or SAME in row.flags]  # no other numbers
    if not rows:
        return
    tasks = list(dict.fromkeys(row.task for row in rows))
    figure, axes = report.new_figure(len(tasks), 2, "Return in training, and the steps and seconds that it took")
    colours: dict[str, str] = {}
    for row in rows:
        alone = runs_of(row, stored)
        others = [(o.flags, runs) for o in TABLE.values() if o.script == row.script and (runs := runs_of(o, stored))]
        alike = [runs for flags, runs in others if flags == row.flags or runs[0]["settings"] == alone[0]["settings"]]
        alike = max(alike, key=len)
        label = peer(row).replace("`", "") or row.script + ", PureJaxRL's flags" * (SAME in row.flags)
        colours.setdefault(label, plots.COLOURS[len(colours)])
        colour = colours[label]
        left, right = axes[tasks.index(row.task)]
        steps, returns = on_one_grid(run["curve"] for run in alike)
        middle, width = plots.mean_and_ci(returns)
        left.plot(steps / 1e6, middle, color=colour, label=f"{label}; seeds: {len(alike)}")
        if len(alike) >= plots.FEW:
            left.fill_between(steps / 1e6, middle - width, middle + width, color=colour, alpha=0.2, linewidth=0)
        cpus = ", ".join(sorted({run["machine"]["cpu"] for run in alone})).replace("(R)", "").replace(" Processor", "")
        for run in alone:
            _, seconds, values = np.array(run["curve"], np.float64).T
            right.plot(seconds, values, color=colour, alpha=0.7)
        left.set(title=row.task, ylabel="return in training")
        right.set(title=f"{row.task}, two cores ({cpus})", xscale="log")  # from one minute to twenty
    for axis, label in zip(axes.T, ("million environment steps", "seconds of training (logarithmic)"), strict=True):
        for each in axis:
            each.set(xlabel=label, ylim=(0, None))
    told = "Left: mean over seeds; from five on, 95 % t-interval. Right: each seed that ran alone; no compiling."
    report.save_figure(figure, path, told)


def list_rows(rows: Sequence[Row], stored: dict[tuple[str, str], dict[str, Any]]) -> str:
    width = max(len(row.name) for row in rows)
    return "\n".join(
        f"{row.name:<{width}}  {len(runs_of(row, stored))}/{row.seeds}  {typed(row)}"
        f"{'  (alone, on all cores)' if row.alone else ''}"
        for row in rows
    )


def main(args: Args) -> None:
    rows, failed = choose(args.rows), []
    if args.list:
        print(list_rows(rows, read(args.out)))
        return
    if not (args.report or args.check):
        try:
            failed = make(args, rows)
        except KeyboardInterrupt:
            raise SystemExit("interrupted; the same command goes on from here") from None
    stored, picture = read(args.out), args.out.with_suffix(".png")
    page = make_page(stored, os.path.relpath(picture, args.page.parent))
    if args.check:
        if not args.page.exists() or args.page.read_text() != page:
            raise SystemExit(
                f"{args.page} is not what {args.out} gives; python benchmarks/learning.py --report writes it"
            )
        return
    args.page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(args.page, page)
    draw(stored, picture)
    if failed:
        raise SystemExit("\n".join(failed))


if __name__ == "__main__":
    try:
        main(tyro.cli(Args, description=__doc__.split("\n\n")[0]))
    except UsageError as error:
        print(f"learning.py: error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
