"""How well do these scripts learn? Makes the runs of the table below, and the page about them.

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
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import purejaxrl
from common.run import arguments, plots
from common.run.arguments import UsageError
from common.run.folder import write_atomically
from experiments import grid

PEER = "benchmarks/purejaxrl.py"
POINTS = 40  # of a stored curve
NOT_SETTINGS = {*plots.BOOKKEEPING, "eval_deterministic", "purejaxrl"}  # of which a result does not depend


@dataclass(frozen=True)
class Row:
    """A line of the page: runs of one command that differ in their seeds."""

    name: str
    group: str
    task: str
    script: str
    flags: str  # as typed, but for the seed
    reference: float | None = None  # a score to compare with,
    source: str = ""  # and whose it is
    against: str = ""  # or another row to compare with
    goal: float | None = None  # the page says after how many seconds the return in training is this
    seeds: int = 5
    alone: bool = False  # on all cores

    def command(self, seed: int) -> str:
        """What a user types. It identifies a run."""
        core = "" if self.alone or self.script == PEER else f"--num-devices {1}"
        return " ".join(filter(None, ("python", self.script, self.flags, f"--seed {seed}", core)))


GROUPS = {
    "same_flags": "The same flags as PureJaxRL's ppo.py",
}
STEPS = 10_485_760
# Those of PureJaxRL's notebook for MinAtar (purejaxrl.py), with all that might be another default here one day.
SAME = (
    "--num-envs 64 --num-steps 128 --num-minibatches 8 --update-epochs 4 --learning-rate 5e-3 --anneal-lr "
    "--activation relu --network mlp --hidden-sizes 64 64 --gamma 0.99 --gae-lambda 0.95 --clip-eps 0.2 "
    "--ent-coef 0.01 --vf-coef 0.5 --max-grad-norm 0.5"
)


def same_flags() -> Iterator[Row]:
    for game in ("Breakout", "SpaceInvaders"):
        for label, steps in (("4M", 4_194_304), ("10M", STEPS)):
            where, name = f"--env-id {game}-MinAtar --total-timesteps {steps}", f"same_flags_{game.lower()}_{label}"
            yield Row(f"{name}_peer", "same_flags", game, PEER, where, seeds=10)
            yield Row(f"{name}_ours", "same_flags", game, "ppo.py", f"{where} {SAME}", against=f"{name}_peer", seeds=10)


TABLE = {row.name: row for row in (*same_flags(),)}


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
    purejaxrl: Path | None = None
    """A checkout of PureJaxRL (default: from GitHub). Once is enough."""
    out: Path = Path("results/learning.json")
    """Results; the picture is beside them."""
    page: Path = Path("docs/results.md")
    """The page that is made from them."""
    runs_dir: Path = Path("runs/learning")
    """Where the runs' folders go."""


# --- runs ---


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
    """A digest of all arguments that a result depends on, defaults too."""
    values = {k: v for k, v in asdict(settled(row.script, row.flags)).items() if k not in NOT_SETTINGS}
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


def greedy_cell(cell: grid.Cell, runs_dir: Path) -> grid.Cell:
    """The run that plays its policy with the most probable actions."""
    flags = (("evaluate", str(runs_dir / cell.name)), ("eval_deterministic", True))
    return replace(cell, name=f"{cell.name}__greedy", flags=flags)


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The stored runs, by command."""
    return {run["command"]: run for run in json.loads(path.read_text())["runs"]} if path.exists() else {}


@contextlib.contextmanager
def changing(path: Path) -> Iterator[dict[str, dict[str, Any]]]:
    """The stored runs, to be changed; no other process can do so meanwhile. One line per run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        runs = read(path)
        yield runs
        order = {name: i for i, name in enumerate(TABLE)}
        ordered = sorted(runs.values(), key=lambda run: (order.get(run["row"], len(order)), run["row"], run["seed"]))
        write_atomically(path, '{"runs": [\n' + ",\n".join(map(json.dumps, ordered)) + "\n]}\n")


def curve(folder: Path) -> list[list[float]]:
    """Steps, seconds and return in training at up to POINTS times. Seconds are without imports and compiling."""
    lines = [line for line in plots.read_lines(folder) if line.get("charts/SPS")]
    before = lines[0]["time"] - lines[0]["global_step"] / lines[0]["charts/SPS"]
    points = []
    for part in np.array_split(np.arange(len(lines)), min(POINTS, len(lines))):
        returns = [r for i in part if (r := lines[i].get("charts/episodic_return")) is not None]
        if returns:
            last = lines[part[-1]]
            points.append([last["global_step"], round(last["time"] - before, 2), float(f"{np.mean(returns):.5g}")])
    return points


def measured(row: Row, seed: int, folder: Path) -> dict[str, Any]:
    """What is stored of a run."""
    record, summary = (json.loads((folder / f"{name}.json").read_text()) for name in ("args", "summary"))
    lines = [line for line in plots.read_lines(folder) if line.get("charts/SPS")]
    points = curve(folder)
    dirty = " with changes" if record.get("git_dirty") else ""
    steps = lines[-1]["global_step"]
    seconds = lines[-1]["time"] - (lines[0]["time"] - lines[0]["global_step"] / lines[0]["charts/SPS"])
    return {
        "row": row.name,
        "command": row.command(seed),
        "settings": settings(row),
        "seed": seed,
        "commit": (record.get("git_commit") or "unknown") + dirty,
        "date": record["started"][:10],
        "machine": record["machine"],
        "jax": record["versions"]["jax"],
        "num_envs": record["args"].get("num_envs", purejaxrl.NOTEBOOK["NUM_ENVS"]),
        "steps": steps,
        "sampled": summary["eval/episodic_return"]["mean"],
        "greedy": None,
        "seconds": round(seconds, 1),
        "compile_s": summary.get("compile_s"),
        "steps_per_second": round(steps / seconds),
        "curve": points,
    }


def make(args: Args, rows: Sequence[Row]) -> list[str]:
    """Makes what is missing. -> what failed, a line each."""
    wanted = {make_cell(row, seed): (row, seed) for row in rows for seed in args.seeds or range(row.seeds)}
    by_name = {cell.name: cell for cell in wanted}
    if args.again:
        with changing(args.out) as runs:
            for cell, (row, seed) in wanted.items():
                runs.pop(row.command(seed), None)
                for each in (cell, greedy_cell(cell, args.runs_dir)):
                    shutil.rmtree(args.runs_dir / each.name, ignore_errors=True)

    def then(cell: grid.Cell) -> grid.Cell | None:
        """Stores what has just been finished. -> its policy's greedy evaluation, if that is missing."""
        trained = by_name[cell.name.removesuffix("__greedy")]
        row, seed = wanted[trained]
        greedy = greedy_cell(trained, args.runs_dir)
        run = measured(row, seed, args.runs_dir / trained.name)
        if grid.state(greedy, args.runs_dir) == "finished":
            summary = json.loads((args.runs_dir / greedy.name / "summary.json").read_text())
            run["greedy"] = summary["eval/episodic_return"]["mean"]
        with changing(args.out) as runs:
            runs[run["command"]] = run
        return greedy if run["greedy"] is None else None

    stored, failed = read(args.out), []
    for alone in (False, True):
        todo = []
        for cell, (row, seed) in wanted.items():
            run = stored.get(row.command(seed), {})
            done = run.get("settings") == settings(row) and run["greedy"] is not None
            if row.alone == alone and not done:
                trained = grid.state(cell, args.runs_dir) == "finished"
                following = then(cell) if trained else cell
                todo += [following] if following else []
        if any(cell.script == PEER.removesuffix(".py") for cell in todo):
            purejaxrl.prepare(args.purejaxrl)
        todo.sort(key=lambda cell: wanted[by_name[cell.name.removesuffix("__greedy")]][1])  # a first seed of all rows
        jobs = 1 if alone else args.workers or grid.cores_or_one()
        say = lambda text: print(text, flush=True)  # noqa: E731
        failed += grid.run_missing(todo, args.runs_dir, jobs, say, then)
    return failed


def main(args: Args) -> None:
    rows = choose(args.rows)
    failed = make(args, rows)
    if failed:
        raise SystemExit("\n".join(failed))


if __name__ == "__main__":
    try:
        main(tyro.cli(Args, description=__doc__.split("\n\n")[0]))
    except UsageError as error:
        print(f"learning.py: error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
