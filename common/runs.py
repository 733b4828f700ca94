"""A run: its arguments, metrics, checkpoints, progress and end. Knows nothing of any algorithm.

    def train(args):
        args = open_args(args, __file__)
        run = Run(args, __file__, num_updates, steps_per_update)
        state, start = run.restore(state)
        with run:
            for update in range(start + 1, num_updates + 1):
                state, metrics = step(state)
                run.log(update, metrics)
                if run.should_stop or run.checkpoint_due(update):
                    run.save(update, state)
                if run.should_stop:
                    break
        run.finish()
        return run.path

A run is a folder: args.json, metrics.jsonl, checkpoints/, source.py, at the end summary.json and curve.png; where there
are any, videos/ and histograms.jsonl.
"""

import contextlib
import dataclasses
import datetime
import functools
import importlib.metadata
import json
import os
import platform
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np
import tyro
from tqdm import tqdm

from common import hardware
from common.arguments import BY_HAND, UsageError, flag, read_record, typed
from common.checkpoints import Checkpoints, checkpoint_updates, find_checkpoint, first_line, restore_newest
from common.tracking import Progress, Tracker, plain, pool, say

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "gymnax", "kinetix-env", "envpool", "brax")
LAUNCH = ("distributed", *BY_HAND)  # how the processes of this start find each other
# What --resume lets one change. With other devices it goes on, but not bit for bit.
GIVEN_ANEW = ("track", "wandb_project_name", "wandb_entity", "wandb_mode", "num_devices", *LAUNCH)


class Diverged(RuntimeError):
    """The loss or a parameter is no longer finite."""

    def __init__(self, update: int, checkpoint: Path | None):
        advice = "no checkpoint was saved before it (--checkpoint-every N saves every N updates)"
        if checkpoint is not None:
            source = f"{checkpoint.parent.parent}@{checkpoint.name}"
            again = f"start again from it with --init-from {source} and a smaller --learning-rate"
            advice = f"last good checkpoint: {checkpoint} ({again})"
        super().__init__(f"update {update}: loss or parameters are no longer finite; {advice}")


def main(train: Callable[[Any], Any], args_class: type) -> None:
    """Runs a script: parses the command line into `args_class` and calls `train`. What the user can mend is one line on
    stderr, not a traceback: exit code 2 for bad input, 1 for divergence, 128 + n after signal n."""
    script = Path(sys.argv[0]).name
    try:
        # tyro frames the ValueErrors of a class in a box of its own; those of a partial it leaves to us.
        about = sys.modules[train.__module__].__doc__ or ""
        train(tyro.cli(functools.partial(args_class), description=about.split("\n\n")[0]))
    except UsageError as error:
        _exit(f"{script}: error: {error}", 2)
    except Diverged as error:
        _exit(f"{script}: {error}", 1)
    except KeyboardInterrupt:
        _exit(f"{script}: interrupted", 128 + signal.SIGINT, alone=True)
    except Exception:
        if not jax.distributed.is_initialized():
            raise
        _exit(traceback.format_exc(), 1, alone=True)


def _exit(message: str, code: int, alone: bool = False) -> NoReturn:
    """`alone`: the other processes do not know of it. An orderly exit would wait minutes for them, as they for us."""
    print(message, file=sys.stderr, flush=True)
    if alone and jax.distributed.is_initialized():
        os._exit(code)
    raise SystemExit(code)


def open_args(args: Any, script: str) -> Any:
    """With --resume the arguments of that run, else `args`. `script` is the calling script's __file__."""
    return hardware.together(lambda: _open_args(args, script))


def _open_args(args: Any, script: str) -> Any:
    if not args.resume:
        taken = Path(args.runs_dir) / (args.run_name or "")
        if args.run_name and taken.exists():
            _refuse_taken(taken)
        if getattr(args, "init_from", None):
            find_checkpoint(args.init_from)
        return args
    folder, kind, script = Path(args.resume), type(args), Path(script).stem
    record = read_record(folder, "--resume")
    if record["script"] != script:
        raise UsageError(f"--resume {folder}: that run was made by {record['script']}.py, this is {script}.py")
    if not checkpoint_updates(folder / "checkpoints"):
        raise UsageError(f"--resume {folder}: there is no checkpoint in it; start a new run instead")
    # Compared with a default instance, not with the fields' defaults: __post_init__ may have filled some in.
    default, saved = vars(kind()), typed(kind, record["args"])
    unknown = saved.keys() - default.keys()
    if unknown:
        flags = ", ".join(map(flag, sorted(unknown)))
        raise UsageError(
            f"--resume {folder}: this {script}.py has no {flags}; check out git commit {record.get('git_commit')}"
        )
    given = {name: value for name, value in vars(args).items() if value != default[name] and name != "resume"}
    refused = [flag(n) for n, v in given.items() if n not in GIVEN_ANEW and v != saved.get(n, default[n])]
    if refused:
        advice = f"--init-from {folder} starts a new run with others"
        raise UsageError(f"--resume {folder} with {', '.join(refused)}: a resumed run keeps its own flags; {advice}")
    anew = {name: value for name, value in given.items() if name in GIVEN_ANEW}
    saved = {name: value for name, value in saved.items() if name not in LAUNCH}
    return kind(**{**saved, **anew, "resume": args.resume})


def _new_folder(args: Any, script: str) -> Path:
    """Makes the run's folder. With several processes the first one does, and all get its name."""
    name = args.run_name
    if name is None:
        now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        name = f"{args.env_id.replace('/', '-')}__{Path(script).stem}__{args.seed}__{now}"
    elif Path(name).name != name:
        raise UsageError(f"--run-name {name!r}: must be a plain folder name; --runs-dir says where it goes")
    path = Path(args.runs_dir) / name

    def make() -> Path:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            made = _make_unique(path, fixed=args.run_name is not None)
            (made / "checkpoints").mkdir()
            return made
        except OSError as error:
            raise UsageError(
                f"--runs-dir {args.runs_dir}: cannot make {path} ({error.strerror}); name another"
            ) from None

    made = hardware.together(lambda: make() if jax.process_index() == 0 else path)
    return Path(hardware.share(str(made))[0])


def _refuse_taken(path: Path) -> NoReturn:
    advice = f"choose another name, or continue that run with --resume {path}"
    raise UsageError(f"--run-name {path.name}: {path} exists already; {advice}") from None


def _make_unique(path: Path, fixed: bool) -> Path:
    """Makes the folder `path`, or path-2, path-3, ... if another run had the same second."""
    number, candidate = 1, path
    while True:
        try:
            candidate.mkdir()
            return candidate
        except FileExistsError:
            if fixed:
                _refuse_taken(path)
            number += 1
            candidate = path.with_name(f"{path.name}-{number}")


def _make_record(args: Any, script: str) -> dict[str, Any]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    commit = _git(script, "rev-parse", "HEAD")
    return {
        "args": dataclasses.asdict(args),
        "script": Path(script).stem,
        "command": shlex.join(sys.argv),
        "versions": versions,
        "devices": [f"{device.platform}:{device.id} {device.device_kind}" for device in jax.devices()],
        "machine": hardware.machine(),
        "git_commit": commit,
        "git_dirty": bool(_git(script, "status", "--porcelain")) if commit else None,
        "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "wandb_id": uuid.uuid4().hex[:8],
        "notes": {},
    }


def _git(script: str, *command: str) -> str | None:
    try:
        folder = str(Path(script).absolute().parent)
        done = subprocess.run(["git", "-C", folder, *command], capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _write_json(path: Path, value: Any) -> None:
    _write_atomically(path, json.dumps(value, indent=2, default=str) + "\n")


def _write_atomically(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    os.replace(part, path)


class Run:
    """One training run. A context manager around the training loop: inside it SIGTERM and Ctrl-C make `log` set
    `should_stop`, a second one goes through as usual. start: the updates done before it, where it does none itself."""

    def __init__(self, args: Any, script: str, num_updates: int, steps_per_update: int, start: int = 0):
        self.args = args
        self.num_updates = num_updates
        self.steps_per_update = steps_per_update
        self.should_stop = False
        self.is_main = jax.process_index() == 0  # alone writes everything but the checkpoints
        self.path = Path(args.resume) if args.resume else _new_folder(args, script)
        self.checkpoints = Checkpoints(self.path / "checkpoints", args.keep_checkpoints)
        self._script = script
        self._signal: int | None = None
        self._old_handlers: dict[int, Any] = {}
        self._warned: set[str] = set()
        self._failed = False
        self._tracker: Tracker | None = None
        self._file: Any = None
        self._start_update = self._updates_done = start
        self._pending: tuple[int, dict[str, jax.Array]] | None = None  # dispatched, not fetched
        self._rows: list[dict[str, np.ndarray]] = []  # fetched, not written
        self._busy = 0.0  # seconds that the updates in _rows took
        self._offset, self._born = 0.0, time.perf_counter()
        self._clock = self._born
        self._shown: dict[str, float] = {}
        hardware.together(self._open_record if self.is_main else lambda: None)

    def _open_record(self) -> None:
        if self.args.resume:
            self.record = read_record(self.path, "--resume")
        else:
            self.record = _make_record(self.args, self._script)
            try:
                _write_json(self.path / "args.json", self.record)
                shutil.copyfile(self._script, self.path / "source.py")
            except OSError as error:
                raise UsageError(f"--runs-dir {self.args.runs_dir}: cannot write there ({error.strerror})") from None
        say(f"run: {self.path}")

    def note(self, key: str, value: Any) -> None:
        """Records a fact about the run (compile_s, ...) in args.json and in the summary."""
        if self.is_main:
            self.record.setdefault("notes", {})[key] = value
            self._guard("args.json", lambda: _write_json(self.path / "args.json", self.record))

    def restore(self, state: Any) -> tuple[Any, int]:
        """With --resume the state in the newest intact checkpoint and its update, else (state, 0)."""
        if not self.args.resume:
            return state, 0
        updates = checkpoint_updates(self.checkpoints.folder)
        state, update = restore_newest(self.path, updates, state, f"--resume {self.path}", partial=False)
        self._start_update = self._updates_done = update
        if self.is_main:
            for damaged in (self.checkpoints.folder / str(u) for u in updates if u > update):
                damaged.rename(damaged.with_suffix(".damaged"))  # else it would be in the way of the next save
            self._drop_lines_after(update)
            say(f"resuming after update {update} of {self.num_updates}")
        return state, update

    def _drop_lines_after(self, update: int) -> None:
        from common.plots import read_lines

        for name in ("metrics.jsonl", "histograms.jsonl"):
            kept = [line for line in read_lines(self.path, name) if line["update"] <= update]
            self._offset = max([self._offset, *(line.get("time", 0.0) for line in kept)])
            if (self.path / name).exists():
                _write_atomically(self.path / name, "".join(json.dumps(line) + "\n" for line in kept))

    def __enter__(self) -> "Run":
        args = self.args
        if self.is_main and args.track:
            settings = {"project": args.wandb_project_name, "entity": args.wandb_entity, "mode": args.wandb_mode}
            config = {**self.record["args"], "versions": self.record["versions"]}
            names = {"dir": str(self.path), "id": self.record["wandb_id"], "name": self.path.name}
            self._tracker = Tracker({**settings, **names, "config": config})
        # With several processes JAX has its own SIGTERM handler, by which all agree where to stop (see `log`).
        if threading.current_thread() is threading.main_thread() and jax.process_count() == 1:
            self._old_handlers = {n: signal.signal(n, self._on_signal) for n in (signal.SIGINT, signal.SIGTERM)}
        steps = self.steps_per_update
        self._progress = Progress(self.num_updates * steps, self._start_update * steps, self.is_main)
        self._clock = time.perf_counter()
        return self

    def _on_signal(self, number: int, frame: Any) -> None:
        self._signal = number
        self._restore_handlers()
        # Not `say`: the signal may have come in the middle of another print.
        os.write(2, b"\nstopping after this update, saving ...\n")

    def _restore_handlers(self) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        self._old_handlers = {}

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if error is None:
                self._drain()
            else:
                self._write_rows()
        finally:
            self._close()

    def _close(self) -> None:
        self.checkpoints.newest()
        self._progress.close()
        self._restore_handlers()
        if self._file is not None:
            self._guard("metrics.jsonl", self._file.close)
        if self._tracker is not None:
            self._tracker.close()
        if self.should_stop and self.is_main:
            also = ["--distributed"] if jax.process_count() > 1 else []
            command = shlex.join(["python", sys.argv[0], "--resume", str(self.path), *also])
            say(f"stopped after update {self._updates_done}; to go on: {command}")

    def log(self, update: int, metrics: dict[str, jax.Array]) -> None:
        """Takes the metrics of the update just dispatched, [] or [num_seeds] each, and writes those of the update
        before: the device always has work, and never more than two updates of it. The entry `finite` is not written;
        Diverged is raised where it is False."""
        pending, self._pending = self._pending, (update, metrics)
        self._take(pending)
        if jax.process_count() > 1:
            from jax.experimental import multihost_utils

            if multihost_utils.reached_preemption_sync_point(update):
                self._signal = signal.SIGTERM
        # Changes only here, so that between two calls the script saves if and only if it stops.
        self.should_stop = self._signal is not None

    def log_now(self, update: int, compute: Callable[..., dict[str, jax.Array]], *args: Any) -> None:
        """Writes the metrics compute(*args), an evaluation, as a line of its own; charts/SPS leaves its time out. Only
        the first process computes them: it must be a matter of its own devices."""
        pending, self._pending = self._pending, None
        self._take(pending)
        if self.is_main:
            self._write(update, jax.device_get(compute(*args)))
        self._clock = time.perf_counter()

    def _take(self, pending: tuple[int, dict[str, jax.Array]] | None) -> None:
        """Waits for an update, keeps its metrics and writes them when a line is due."""
        if pending is None:
            return
        update, row = pending[0], jax.device_get(pending[1])
        now = time.perf_counter()
        self._busy, self._clock = self._busy + now - self._clock, now
        finite = bool(np.all(row.pop("finite", True)))
        self._rows.append(row)
        self._updates_done = update
        if update % self.args.log_every == 0 or update == self.num_updates or not finite:
            self._write_rows()
        self._show(update, row)
        if not finite and self.args.halt_on_nan:
            self._write_rows()
            raise Diverged(update, self.checkpoints.newest())

    def _drain(self) -> None:
        """Everything that was logged is written."""
        pending, self._pending = self._pending, None
        self._take(pending)
        self._write_rows()

    def _write_rows(self) -> None:
        if self._rows:
            speed = len(self._rows) * self.steps_per_update / max(self._busy, 1e-9)
            self._write(self._updates_done, {"charts/SPS": int(speed), **pool(self._rows)})
            self._rows, self._busy = [], 0.0

    def _write(self, update: int, metrics: dict[str, Any]) -> None:
        if not self.is_main:
            return
        seconds = round(self._offset + time.perf_counter() - self._born, 3)
        line = {"update": update, "global_step": update * self.steps_per_update, "time": seconds}
        line |= {key: plain(value) for key, value in metrics.items()}
        self._guard("metrics.jsonl", lambda: self._append(line))
        if self._tracker is not None:
            self._tracker.log(line)

    def _append(self, line: dict[str, Any]) -> None:
        if self._file is None:
            self._file = open(self.path / "metrics.jsonl", "ab")  # noqa: SIM115 (open as long as the run)
        self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def _guard(self, what: str, write: Callable[[], Any]) -> bool:
        """A full disk costs a line or a picture, not what was learned: warns once and goes on."""
        try:
            write()
            return True
        except OSError as error:
            self._warn(what, f"cannot write {self.path / what} ({error.strerror or error})")
            return False

    def _warn(self, topic: str, message: str) -> None:
        """Once for each topic."""
        if topic not in self._warned:
            say(f"warning: {message}")
        self._warned.add(topic)

    def _show(self, update: int, row: dict[str, np.ndarray]) -> None:
        for name, key in (("return", "charts/episodic_return"), ("solved", "charts/solve_rate")):
            values = np.ravel(row.get(key, np.nan))
            if np.any(np.isfinite(values)):
                self._shown[name] = float(np.mean(values[np.isfinite(values)]))
        shown = ", ".join(f"{name}={value:.4g}" for name, value in self._shown.items())
        self._progress.advance(update * self.steps_per_update, shown)

    def checkpoint_due(self, update: int) -> bool:
        """Every --checkpoint-every updates, and at the last one."""
        every = self.args.checkpoint_every
        return update == self.num_updates or (every > 0 and update % every == 0)

    def save(self, update: int, state: Any) -> None:
        """Saves a checkpoint, after making sure that this update's metrics are finite. Call it before the next update
        is dispatched. At the end of the run it waits until the checkpoint is complete."""
        self._drain()
        last = self.should_stop or update == self.num_updates
        try:
            self.checkpoints.wait()
        except Exception as error:  # a full disk is a ValueError of tensorstore
            self._warn("checkpoints", f"the checkpoint before {update} could not be saved ({first_line(error)})")
        try:
            self.checkpoints.save(update, state)
            if last:
                self.checkpoints.wait()
        except Exception as error:
            self._failed = last
            message = f"checkpoint {update} could not be saved ({first_line(error)})"
            self._warn("last checkpoint" if last else "checkpoints", message)
        self._clock = time.perf_counter()

    def eval_due(self, update: int) -> bool:
        """Every --eval-every updates, and at the last one; never without --num-eval-episodes."""
        every = self.args.eval_every
        due = update == self.num_updates or (every > 0 and update % every == 0)
        return due and self.args.num_eval_episodes > 0

    def plasticity_due(self, update: int) -> bool:
        """Every --plasticity-every updates, and at the last one; never if that is 0."""
        every = self.args.plasticity_every
        return every > 0 and (update % every == 0 or update == self.num_updates)

    def compile(self, function: Any, *args: Any) -> Any:
        """Compiles a jitted function for these arguments; records how long it took."""
        if self.is_main:
            say("compiling ...")
        began = time.perf_counter()
        compiled = function.lower(*args).compile()
        hardware.give_back_memory()
        self.note("compile_s", round(time.perf_counter() - began, 1))
        return compiled

    def histogram(self, update: int, name: str, counts: Sequence[float], edges: Sequence[float]) -> None:
        """Writes a line of histograms.jsonl, and sends the histogram to wandb. counts: [n] or [num_seeds, n]; edges:
        [n + 1]."""
        if not self.is_main:
            return
        counts, edges = np.asarray(counts), np.asarray(edges)
        line = {"update": update, "name": name, "edges": plain(edges), "counts": plain(counts)}

        def append() -> None:
            with open(self.path / "histograms.jsonl", "a") as file:
                file.write(json.dumps(line) + "\n")

        self._guard("histograms.jsonl", append)
        if self._tracker is not None:
            self._tracker.histogram(name, counts.reshape(-1, counts.shape[-1]).sum(0), edges)

    def video(self, name: str, record: Callable[[], Sequence[np.ndarray]], fps: int = 20) -> None:
        """Writes the frames that `record` returns, uint8 [H, W, 3] each, as videos/<name>.gif, and sends them to wandb.
        A renderer that fails costs the video, not the run."""
        if not self.is_main:
            return
        import imageio.v3

        file = self.path / "videos" / f"{name.replace('/', '-')}.gif"
        try:
            frames = np.stack(record())
            file.parent.mkdir(exist_ok=True)
            imageio.v3.imwrite(file, frames, duration=1000 / fps, loop=0)
        except Exception as error:
            self._warn("video", f"no video {file} ({first_line(error)})")
            return
        if self._tracker is not None:
            self._tracker.video(f"videos/{name}", file)

    @property
    def interrupted(self) -> bool:
        """Whether a signal has asked this process to stop. With several processes `log` says when all do."""
        return self._signal is not None and jax.process_count() == 1

    def stop(self, update: int, state: Any) -> None:
        """Stops after this update because of a signal, outside of `log`. The update may have its checkpoint already."""
        self.should_stop = True
        with contextlib.suppress(Exception):  # of that checkpoint; then it is not there
            self.checkpoints.wait()
        if update not in checkpoint_updates(self.checkpoints.folder):
            self.save(update, state)

    def wait(self) -> None:
        """Waits for the update that was logged last, so that the time of what comes next is not counted as its own."""
        pending, self._pending = self._pending, None
        self._take(pending)

    def finish(self) -> None:
        """Prints the summary and saves it with curve.png. Ends the process with 128 + n if signal n stopped the run,
        with 1 if its last checkpoint could not be saved."""
        if self.is_main:
            from common import plots

            summary = {**self._facts(), **plots.summarize(self.path), **self._resources()}
            self._guard("summary.json", lambda: _write_json(self.path / "summary.json", summary))
            self._guard("curve.png", lambda: plots.draw([self.path], self.path / "curve.png"))
            self._guard("success_rates.png", lambda: plots.draw_histograms(self.path, self.path / "success_rates.png"))
            tqdm.write(plots.table(summary))
        if self._signal is not None or self._failed:
            raise SystemExit(1 if self._failed else 128 + self._signal)

    def _facts(self) -> dict[str, Any]:
        newest = self.checkpoints.newest()
        return {
            "run": str(self.path),
            "checkpoint": str(newest) if newest else None,
            "env_id": self.args.env_id,
            "updates": self._updates_done,
            "num_updates": self.num_updates,
            "global_step": self._updates_done * self.steps_per_update,
        }

    def _resources(self) -> dict[str, Any]:
        unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
        stats = [device.memory_stats() or {} for device in jax.local_devices()]
        peaks = [stat["peak_bytes_in_use"] for stat in stats if "peak_bytes_in_use" in stat]
        return {
            "wall_s": round(self._offset + time.perf_counter() - self._born, 1),
            **self.record.get("notes", {}),
            "peak_process_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
            "peak_device_bytes": max(peaks) if peaks else None,
        }
