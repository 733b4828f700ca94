"""Runs what is missing from a grid of runs, several at a time, or writes it as Slurm arrays."""

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from common.run import devices
from common.run.arguments import UsageError, flag
from common.run.checkpoints import checkpoint_updates

ROOT = Path(__file__).parents[1]
Say = Callable[[str], None]
POLL = 0.1  # seconds between two looks at the runs


@dataclass(frozen=True)
class Cell:
    """One run, which is one command of one script. Its name identifies its flags. Or, with parts, several runs that
    differ only in their seed, of a script that can have only one at a time."""

    script: str
    name: str
    flags: tuple[tuple[str, Any], ...]
    num_updates: int
    source: "Cell | None" = None  # the run from whose checkpoint this one starts
    source_update: int = 0
    parts: "tuple[Cell, ...]" = ()  # then this cell is no command of its own

    @property
    def depth(self) -> int:
        """How many runs have to finish before this one, one after another."""
        return 0 if self.source is None else 1 + self.source.depth


Then = Callable[[Cell], Cell | None]  # what follows a finished run


def named(
    script: str, flags: dict[str, Any], varied: dict[str, Any], updates: int, source: Cell | None = None, at: int = 0
) -> Cell:
    """Makes a cell, whose name tells a reader what varies and whose hash covers everything else."""
    digest = hashlib.sha256(repr((sorted(flags.items()), source and source.name, at)).encode()).hexdigest()[:8]
    told = [f"{name}-{value}".replace("/", "-") for name, value in varied.items()]
    words = [script, *told, *(["continued"] if source else []), digest]
    return Cell(script, "_".join(words), tuple(flags.items()), updates, source, at)


def by_seed(script: str, flags: dict[str, Any], varied: dict[str, Any], updates: int) -> Cell:
    """Makes a cell with a run for each of the flags' seeds."""
    parts = tuple(
        named(script, flags | {"seed": seed, "num_seeds": 1}, varied | {"seed": seed}, updates)
        for seed in range(flags["num_seeds"])
    )
    return replace(named(script, flags, varied, updates), parts=parts)


def state(cell: Cell, folder: Path) -> Literal["finished", "interrupted", "missing"]:
    run = folder / cell.name
    try:
        if json.loads((run / "summary.json").read_text())["updates"] == cell.num_updates:
            return "finished"
    except (OSError, ValueError, KeyError):
        pass
    return "interrupted" if checkpoint_updates(run / "checkpoints") else "missing"


def command(cell: Cell, folder: Path) -> list[str]:
    """Returns the command line that runs or resumes the cell."""
    script, run = f"{cell.script}.py", folder / cell.name
    if state(cell, folder) == "interrupted":
        return ["python", script, "--resume", str(run)]
    words = ["python", script, *spelled(dict(cell.flags))]
    if cell.source is not None:
        words += ["--init-from", f"{folder / cell.source.name}@{cell.source_update}"]
    return [*words, "--runs-dir", str(folder), "--run-name", cell.name]


def spelled(flags: dict[str, Any]) -> list[str]:
    """Returns flags as words of a command line."""
    words = []
    for name, value in flags.items():
        if isinstance(value, bool):
            words.append(flag(name) if value else "--no-" + flag(name)[2:])
        else:
            words += [flag(name), *map(str, value if isinstance(value, tuple) else (value,))]
    return words


def with_sources(cells: Sequence[Cell]) -> list[Cell]:
    """Returns the runs of these cells and those that they start from, each once, sources first."""
    found: dict[str, Cell] = {}
    for cell in cells:
        line = [cell]
        while line[0].source is not None:
            line.insert(0, line[0].source)
        found |= {run.name: run for step in line for run in step.parts or (step,)}
    return sorted(found.values(), key=lambda cell: cell.depth)


def complete(
    cells: Sequence[Cell], known: dict[str, Any], folder: Path, jobs: int | None, say: Say, keep: Then
) -> None:
    """Run the cells that `known` has not by their names; keep(cell) is called for each that is finished, also for those
    that were before. SystemExit if one fails. jobs: None is one for each core."""
    for cell in cells:
        if cell.name not in known and state(cell, folder) == "finished":
            keep(cell)
    left = [cell for cell in cells if cell.name not in known]
    if failed := run_missing(left, folder, jobs or cores_or_one(), say, keep):
        raise SystemExit("\n".join(f"failed: {line}" for line in failed))


def run_missing(cells: Sequence[Cell], folder: Path, jobs: int, say: Say, then: Then = lambda cell: None) -> list[str]:
    """Runs the unfinished cells, `jobs` at a time, each with its share of the cores. A run's output goes to NAME.log
    beside its folder. What starts from a run that is in progress, here or in another process, waits for it. Ctrl-C or
    SIGTERM makes all of them save and stop. `then` is called with each cell as soon as it is finished, and may give one
    to run next. -> what failed, a line each."""
    waiting = [cell for cell in with_sources(cells) if state(cell, folder) != "finished"]
    running: dict[str, tuple[Cell, subprocess.Popen, set[int], float]] = {}
    total, began, failed = len(waiting), time.perf_counter(), []
    free = shares(min(jobs, total))

    def tell(what: str, left: bool = False) -> None:
        ended = total - len(waiting) - len(running)
        minutes = (time.perf_counter() - began) / 60 / max(1, ended) * (total - ended)
        say(f"[{ended}/{total}] {what}" + f"; about {minutes:.0f} min left" * left)

    def choose() -> Cell | None:
        """Takes the next cell that need not wait; gives up what starts from a run that has failed."""
        for cell in list(waiting):
            source = cell.source
            # Before its state: it may end in between.
            going = source and (source in waiting or source.name in running or alive(folder / source.name))
            ready = not source or state(source, folder) == "finished"
            if going and not ready:
                continue
            waiting.remove(cell)
            if ready:
                return cell
            failed.append(f"{cell.name}: not started, {source.name} is not finished")
        return None

    with signals_caught() as caught:
        try:
            while (waiting or running) and not caught:
                while free and not caught and (cell := choose()):
                    try:
                        process = _start(cell, folder, free[0])
                    except OSError as error:
                        failed.append(f"{cell.name}: {error}")
                        continue
                    if process is not None:
                        running[cell.name] = cell, process, free.pop(0), time.perf_counter()
                    elif state(cell, folder) == "finished":
                        waiting[:0] = filter(None, [then(cell)])
                    else:
                        tell(f"{cell.name}: left out, another process is running it")
                for cell, process, share, started in list(running.values()):
                    if process.poll() is None:
                        continue
                    del running[cell.name]
                    free.append(share)
                    if process.returncode:
                        said = (folder / f"{cell.name}.log").read_text(errors="replace").strip() or "it said nothing"
                        failed.append(f"{cell.name}: exit code {process.returncode}: {said.splitlines()[-1]}")
                        tell(f"failed: {failed[-1]}")
                    else:
                        waiting[:0] = filter(None, [then(cell)])
                        tell(f"{cell.name}: {time.perf_counter() - started:.0f} s", left=True)
                time.sleep(POLL)
        finally:  # of a signal, or an error here
            for _, process, *_ in running.values():
                process.terminate()
            for _, process, *_ in running.values():
                process.wait()
    if caught:
        raise KeyboardInterrupt
    return failed


@contextlib.contextmanager
def signals_caught() -> Iterator[list[int]]:
    """Inside, Ctrl-C, SIGTERM and SIGHUP are only noted, in this list: the runs are in groups of their own, and would
    go on without anybody to wait for them. After it SIGHUP is ignored: a terminal that closes sends it twice."""
    caught: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:  # as SIGHUP under nohup
            signal.signal(number, lambda number, frame: caught.append(number))
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if caught and number == signal.SIGHUP else handler)


def cores() -> list[int]:
    """Those of this process."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count()))


def cores_or_one() -> int:
    """How many runs go at once: one per core; one where JAX is going to use a GPU, which they would share."""
    return 1 if devices.number_of_gpus() else len(cores())


def shares(jobs: int) -> list[set[int]]:
    """Deals out this process's cores to the jobs: two processes with one core each do more than one with two."""
    return [set(cores()[job::jobs]) or set(cores()) for job in range(jobs)]


def _start(cell: Cell, folder: Path, cores: set[int]) -> subprocess.Popen | None:
    """Starts a run. -> its process, or None if another one is running it or has finished it. The lock is the open log,
    which the run inherits and holds until it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{cell.name}.log", "a") as log:
        if not lock(log) or state(cell, folder) == "finished" or locked(folder / cell.name / "source.py"):
            return None
        words = command(cell, folder)
        if state(cell, folder) == "missing":
            shutil.rmtree(folder / cell.name, ignore_errors=True)  # stopped before its first checkpoint
        return launch(words, log, cores)


def launch(words: list[str], log: Any, cores: set[int], **environ: str) -> subprocess.Popen:
    """Starts a command, python SCRIPT ..., whose output goes to the open file `log`."""
    log.write(shlex.join(words) + "\n")
    log.flush()
    script = words[1] if Path(words[1]).is_file() else str(ROOT / words[1])
    # In its own group, which a terminal's Ctrl-C does not reach: the SIGTERM that follows would be the run's second
    # signal, at which it exits without saving.
    how = {"stdout": log, "stderr": log, "stdin": subprocess.DEVNULL, "process_group": 0}
    process = subprocess.Popen([sys.executable, script, *words[2:]], env=os.environ | environ, **how)
    if cores and hasattr(os, "sched_setaffinity"):  # long before it starts threads, which inherit this
        os.sched_setaffinity(process.pid, cores)
    return process


def alive(run: Path) -> bool:
    """Whether a process is at work on a run, however it was started: it holds the lock of the run's source.py. Or a
    runner has just started one, which has inherited the lock of the log."""
    return locked(run.with_name(f"{run.name}.log")) or locked(run / "source.py")


def lock(file: Any) -> bool:
    """Takes the lock of an open file, if no other process has it. Where there are no locks, it always succeeds."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def locked(path: Path) -> bool:
    try:
        with open(path, "r+b") as file:
            return not lock(file)
    except OSError:  # there is none
        return False


def write_slurm(cells: Sequence[Cell], folder: Path, name: str) -> list[str]:
    """Writes an sbatch array of the unfinished runs for each depth. -> the commands that submit them."""
    missing = [cell for cell in with_sources(cells) if state(cell, folder) != "finished"]
    submit = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for depth, cells_of_depth in itertools.groupby(missing, lambda cell: cell.depth):
            stage = list(cells_of_depth)
            for cell in stage:
                if state(cell, folder) == "missing" and not alive(folder / cell.name):
                    shutil.rmtree(folder / cell.name, ignore_errors=True)  # stopped before its first checkpoint
            script = folder / f"{name}-{depth}.sbatch"
            # The commands are in the script, of which Slurm takes a copy: what is written later does not change a job.
            commands = "".join(shlex.join([sys.executable, *command(cell, folder)[1:]]) + "\n" for cell in stage)
            pick = f"$(sed -n \"${{SLURM_ARRAY_TASK_ID}}p\" <<'RUNS'\n{commands}RUNS\n)"
            script.write_text(sbatch(name, len(stage), folder / f"{name}-%A_%a.out", f'eval "{pick}"'))
            # afterany: if a source has failed, the other runs go on.
            after = f" --dependency=afterany:$job{depth - 1}" if submit else ""
            submit.append(f"job{depth}=$(sbatch --parsable{after} {shlex.quote(str(script))})")
    except OSError as error:
        raise UsageError(f"{folder}: cannot write there ({error.strerror})") from None
    return submit


def sbatch(name: str, tasks: int, output: Path, words: str, *options: str) -> str:
    """A script of an array of jobs with a GPU each."""
    name = name.replace(" ", "-")
    options = (f"--job-name={name}", f"--array=1-{tasks}", "--gpus=1", "--cpus-per-task=4", "--time=24:00:00", *options)
    lines = [f"#SBATCH {option}" for option in (*options, f"--output={shlex.quote(str(output))}")]
    return "\n".join(["#!/bin/bash", *lines, f"cd {shlex.quote(str(Path.cwd()))}", words, ""])
