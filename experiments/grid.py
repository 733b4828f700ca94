"""Runs what is missing from a grid of runs, several at a time, or writes it as Slurm arrays."""

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from common.run import devices
from common.run.arguments import UsageError, flag
from common.run.checkpoints import checkpoint_updates

ROOT = Path(__file__).parents[1]
State = Literal["finished", "interrupted", "missing"]
Say = Callable[[str], None]
POLL = 1.0  # seconds between two looks at a run that another process makes


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
    items = tuple(flags.items())
    digest = hashlib.sha256(repr((sorted(items), source and source.name, at)).encode()).hexdigest()[:8]
    words = [
        script,
        *(f"{name}-{value}".replace("/", "-") for name, value in varied.items()),
        *(["continued"] if source else []),
        digest,
    ]
    return Cell(script, "_".join(words), items, updates, source, at)


def by_seed(script: str, flags: dict[str, Any], varied: dict[str, Any], updates: int) -> Cell:
    """Makes a cell with a run for each of the flags' seeds."""
    first, count = flags.get("seed", 0), flags["num_seeds"]
    runs = tuple(
        named(script, flags | one, varied | {"seed": one["seed"]}, updates)
        for one in ({"seed": seed, "num_seeds": 1} for seed in range(first, first + count))
    )
    return replace(named(script, flags, varied, updates), parts=runs)


def state(cell: Cell, folder: Path) -> State:
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


def paste(cell: Cell, folder: Path) -> str:
    """Returns the command as a shell line. It first removes what a run left that stopped before its first checkpoint,
    which would be in its way. Of a run that another process is at work on it is a comment."""
    if alive(folder / cell.name):
        return f"# another process is at work on {folder / cell.name}"
    remains = state(cell, folder) == "missing" and (folder / cell.name).exists()
    return (f"rm -r {shlex.quote(str(folder / cell.name))} && " if remains else "") + shlex.join(command(cell, folder))


def with_sources(cells: Sequence[Cell]) -> list[Cell]:
    """Returns the runs of these cells and those that they start from, each once, sources first."""
    found: dict[str, Cell] = {}

    def add(cell: Cell) -> None:
        if cell.source is not None:
            add(cell.source)
        for run in cell.parts or (cell,):
            found.setdefault(run.name, run)

    for cell in cells:
        add(cell)
    return sorted(found.values(), key=lambda cell: cell.depth)


def run_missing(cells: Sequence[Cell], folder: Path, jobs: int, say: Say, then: Then = lambda cell: None) -> list[str]:
    """Runs the unfinished cells, `jobs` at a time, each with its share of the cores. A run's output goes to NAME.log
    beside its folder. What starts from a run that is in progress, here or in another process, waits for it. Ctrl-C or
    SIGTERM makes all of them save and stop. `then` is called with each cell as soon as it is finished, and may give one
    to run next on the same cores. -> what failed, a line each."""
    waiting = [cell for cell in with_sources(cells) if state(cell, folder) != "finished"]
    total, done, began, failed = len(waiting), 0, time.perf_counter(), []
    mine, told = {cell.name for cell in waiting}, set()  # names: to be run or running here; of runs that are waited for
    processes: list[subprocess.Popen] = []
    choosing, stopping = threading.Lock(), threading.Event()

    def choose() -> Cell | None:
        """The next cell whose source is finished; None if there is none left."""
        while not stopping.is_set():
            with choosing:
                for cell in list(waiting):
                    source = cell.source
                    # Before its state: a source may be finished in between.
                    here = source is not None and source.name in mine
                    elsewhere = source is not None and not here and _busy(source, folder)
                    if source is None or state(source, folder) == "finished":
                        waiting.remove(cell)
                        return cell
                    if elsewhere and source.name not in told:
                        say(f"waiting for {source.name}, which another process is running")
                        told.add(source.name)
                    elif not here and not elsewhere:
                        waiting.remove(cell)
                        mine.discard(cell.name)
                        failed.append(f"{cell.name}: not started, {source.name} is not finished")
                if not waiting:
                    return None
            stopping.wait(POLL)
        return None

    def work(cores: set[int]) -> None:
        nonlocal done
        following: Cell | None = None
        while cell := following or choose():
            start, following = time.perf_counter(), None
            try:
                with choosing:  # or a run that has just begun might not be told to stop
                    if stopping.is_set():
                        return
                    process = _start(cell, folder, cores)
                    processes.extend([process] if process else [])
                code = process.wait() if process else None
            except (OSError, UsageError) as error:
                failed.append(f"{cell.name}: {error}")
                continue
            finally:
                mine.discard(cell.name)
            finished = code == 0 or (process is None and state(cell, folder) == "finished")
            following = then(cell) if finished else None
            done += following is None
            if code == 0:
                left = (time.perf_counter() - began) / max(1, done) * (total - done)
                seconds = time.perf_counter() - start
                say(f"[{done}/{total}] {cell.name}: {seconds:.0f} s; about {left / 60:.0f} min left")
            elif process is None and not finished:
                say(f"[{done}/{total}] {cell.name}: left out, another process is running it")
            elif process is not None and not stopping.is_set():
                failed.append(f"{cell.name}: exit code {code}: {_last_line(folder / f'{cell.name}.log')}")
                say(f"[{done}/{total}] failed: {failed[-1]}")

    threads = [threading.Thread(target=work, args=(cores,)) for cores in shares(min(jobs, total))]
    try:
        for thread in threads:
            thread.start()
        with signals_interrupt():
            for thread in threads:
                thread.join()
    except KeyboardInterrupt:
        with choosing:
            stopping.set()
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for thread in threads:
            thread.join()
        raise
    return failed


@contextlib.contextmanager
def signals_interrupt() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP are a KeyboardInterrupt, as Ctrl-C is: the runs are in groups of their own, and would
    go on without anybody to wait for them. After it SIGHUP is ignored: a terminal that closes sends it twice."""

    def interrupt(number: int, frame: Any) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        raise KeyboardInterrupt

    here = threading.current_thread() is threading.main_thread()
    # Ignored signals (SIGHUP under nohup) stay ignored.
    heard = [n for n in (signal.SIGTERM, signal.SIGHUP) if here and signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is interrupt:
                signal.signal(number, handler)


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
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        except OSError:
            pass  # a file system without locks
        if state(cell, folder) == "finished" or alive(folder / cell.name):
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
    with bound(cores):
        return subprocess.Popen([sys.executable, script, *words[2:]], env=os.environ | environ, **how)


@contextlib.contextmanager
def bound(cores: set[int]) -> Iterator[None]:
    """Inside, this thread keeps to these cores, and so do the processes that it starts. (With `preexec_fn` a process
    could deadlock once JAX has started its threads.)"""
    if not cores or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cores)
        yield
    finally:
        os.sched_setaffinity(0, before)


def alive(run: Path) -> bool:
    """Whether a process is at work on a run, however it was started: it holds the lock of the run's source.py."""
    return _locked(run / "source.py")


def _busy(cell: Cell, folder: Path) -> bool:
    """Whether a process is at work on a cell, or a runner has just started one."""
    # The log first: what a runner has started is not asked for its own lock, which it may be about to take.
    return _locked(folder / f"{cell.name}.log") or alive(folder / cell.name)


def _locked(path: Path) -> bool:
    try:
        with open(path, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is none, or no locks
        return False
    return False


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def write_slurm(cells: Sequence[Cell], folder: Path, name: str) -> list[str]:
    """Writes an sbatch array of the unfinished runs for each depth. -> the commands that submit them."""
    missing = [cell for cell in with_sources(cells) if state(cell, folder) != "finished"]
    submit = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for depth in sorted({cell.depth for cell in missing}):
            stage = [cell for cell in missing if cell.depth == depth]
            for run in (folder / cell.name for cell in stage if state(cell, folder) == "missing"):
                if not alive(run):
                    shutil.rmtree(run, ignore_errors=True)  # stopped before its first checkpoint
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
    options = (f"--job-name={name}", f"--array=1-{tasks}", "--gpus=1", "--cpus-per-task=4", "--time=24:00:00", *options)
    lines = [f"#SBATCH {option}" for option in (*options, f"--output={shlex.quote(str(output))}")]
    return "\n".join(["#!/bin/bash", *lines, f"cd {shlex.quote(str(Path.cwd()))}", words, ""])
