"""A run from beginning to end, independent of the algorithm; `train` of a script shows how it is used.

A run is a folder: args.json, metrics.jsonl, checkpoints/, source.py, environment.py if it is the user's own, at the end
summary.json and curve.png, and videos/ if there are any.
"""

import contextlib
import dataclasses
import errno
import json
import os
import resource
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from common import envs
from common.run import checkpoints, devices, folder, memory, plots
from common.run.arguments import UsageError, apply_scaling, describe, flag
from common.run.checkpoints import checkpoint_updates, first_line
from common.run.command import SIGNALS, Diverged, raised_on_host
from common.run.tracking import Tracker, plain, pool, say

LOOK, LOOK_FROM = 0.25, 10  # after so much of a run, and so many updates, the doctor looks at it
RETRIES, PAUSE = 10, 60  # the last checkpoint is tried so often again, after so many seconds each


def begin(args: Any, script: str) -> Any:
    """Start JAX's devices. -> the arguments of the run that --resume or --evaluate names, else `args`, with --scaling
    applied. `script` is the calling script's __file__."""
    devices.start(args)
    args = devices.together(lambda: folder.settle(args, script))
    idle = {} if args.track else {name: "without --track" for name in args.named if name.startswith("wandb_")}
    if "num_levels" in args.named and args.env_id != "kinetix/locomotion":
        idle["num_levels"] = f"on {args.env_id}"
    if "eval_every" in args.named and not args.num_eval_episodes and not args.evaluate:
        idle["eval_every"] = "with --num-eval-episodes 0"
    for name, why in idle.items():
        say(f"note: {flag(name)} has no effect {why}")
    return apply_scaling(args) if hasattr(args, "scaling") else args


class Run:
    """One training run, and a context manager around its loop. Inside it, SIGTERM, SIGHUP and Ctrl-C end the loop after
    the current update; a second one acts as usual. player: plays evaluations and videos (see common/evaluation.py).
    only: no training, just an evaluation after so many updates of so many steps, which began after so many steps."""

    @classmethod
    def start(
        cls,
        args: Any,
        script: str,
        player: Any,
        init: Any,
        step: Any,
        keys: jax.Array,
        *more: Callable[[], Any],
        fixed: Sequence[str] = (),
        may_lack: str | None = None,
    ) -> tuple["Run", Any, Any]:
        """Start a run, or go on with the one that --resume names. -> run, state, step compiled for it.

        init(keys) -> state with a field `learner`, step(state, ...): jitted. more: make its other arguments, once
        nothing is refused any more. fixed, may_lack: as `load_learner` has them. With --evaluate the run has no updates
        to do, and the state is the learner alone.
        """
        shapes = jax.eval_shape(init, keys)
        if args.evaluate:
            learner = shapes.learner._replace(opt_state=None)
            learner, *of = checkpoints.load_for_evaluation(args, learner, fixed, Path(script).stem)
            run = cls.evaluation(args, script, player, learner, *of)
            return run, run._state, step
        loaded = None
        if args.init_from and not args.resume:
            loaded, source = checkpoints.load_learner(args, shapes.learner, fixed, may_lack)
        memory.check_counts(args)
        print(describe(args))
        if jax.process_index() == 0:
            say("compiling ...")
        began, run = time.perf_counter(), cls(args, script, player) if args.resume else None
        init, step, like = memory.compile_update(init, step, keys, *(make() for make in more))
        seconds = round(time.perf_counter() - began, 1)
        memory.check(args, step)
        # With a new state beside the one that it reads, --resume would need twice the memory.
        state = like if args.resume and not envs.on_host(args.env_id) else init(keys)
        if loaded is not None:
            state = state._replace(learner=checkpoints.take_over(args, state.learner, loaded, may_lack))
            args = dataclasses.replace(args, init_from=source)  # args.json names what was read: the newest intact one
        run = run or cls(args, script, player)
        run._state = state = run.restore(state)
        run.compile_s = seconds
        return run, state, step

    @classmethod
    def evaluation(
        cls,
        args: Any,
        script: str,
        player: Any,
        learner: Any,
        update: int = 0,
        trained: Path | None = None,
        record: dict[str, Any] | None = None,
    ) -> "Run":
        """A run that trains nothing and evaluates a learner as it was after `update` updates. trained, record: the
        folder of the run that has trained it and its args.json, if that is known."""
        if not args.num_eval_episodes and not args.capture_video:
            where = f"--evaluate {args.evaluate}"
            raise UsageError(f"{where}: nothing to do with --num-eval-episodes 0 and without --capture-video")
        if record is None:
            run = cls(args, script, player, only=(update, 0, 0))
        else:
            folder.warn_if_edited(trained, record, args, script)
            steps = record["args"]["num_envs"] * record["args"]["num_steps"]
            run = cls(args, script, player, only=(update, steps, record.get("steps_before", 0)))
        run._state = SimpleNamespace(learner=learner)
        print(f"evaluating {args.evaluate} as it was after update {update}")
        return run

    def __init__(self, args: Any, script: str, player: Any = None, only: tuple[int, int, int] | None = None):
        self.args, self._player, self._only, self._state = args, player, only is not None, None
        self.num_updates, self.steps_per_update, before = only or (args.num_updates, args.batch_size, None)
        self.is_main = jax.process_index() == 0  # it alone writes all but the checkpoints
        self.path = Path(args.resume) if args.resume else folder.make(args, script)
        self.checkpoints = self.path / "checkpoints"
        self._first = self.done = self._saved = self.num_updates if only else 0  # last updates: restored, done, saved
        self._evaluated: set[int] = set()
        self._signal: int | None = None
        self._stopping = False  # by a signal
        self._incomplete = False  # whether the end lacks something that --resume makes
        self._not_finite: int | None = None  # the first update after which a parameter was no longer finite
        self._old_handlers: dict[int, Any] = {}
        self._warned: set[str] = set()
        self._tracker: Tracker | None = None
        self._pending: tuple[int, dict[str, jax.Array]] | None = None  # dispatched but not fetched
        self._rows: list[dict[str, np.ndarray]] = []  # fetched but not written
        self._unwritten: list[bytes] = []  # lines that metrics.jsonl lacks
        self._busy = 0.0  # seconds that the updates in _rows took
        self._offset, self._clock = 0.0, time.perf_counter()
        self._born, self._shown = self._clock, {}
        self.compile_s: float | None = None  # seconds that compiling the update took, here and now
        self._script = script
        opened = lambda: folder.open_record(self.path, args, script, before) if self.is_main else (None, None)  # noqa: E731
        self._record, self._lock = devices.together(opened)

    def restore(self, state: Any) -> Any:
        """The state in the newest intact checkpoint if --resume is given, else `state`. Environments on the host are
        no part of a checkpoint: theirs are the new episodes of `state`."""
        if not self.args.resume:
            return state
        updates = checkpoint_updates(self.checkpoints)
        restored, update = checkpoints.restore_newest(self.path, updates, state, f"--resume {self.path}", partial=False)
        note = ""
        if envs.on_host(self.args.env_id):
            restored = restored._replace(environments=state.environments)
            note = f"; all episodes begin anew, because {self.args.env_id} cannot be saved"
        self._first = self.done = self._saved = update
        devices.together(lambda: self._go_back_to(update, updates) if self.is_main else None)
        if self.is_main:
            say(f"resuming after update {update} of {self.num_updates}{note}")
        return restored

    def _go_back_to(self, update: int, updates: Sequence[int]) -> None:
        """Remove what the run has of later updates: it is made again."""
        kept = [line for line in plots.read_lines(self.path) if line["update"] <= update]
        self._offset = max([0.0, *(line.get("time", 0.0) for line in kept)])
        self._evaluated = {line["update"] for line in kept if any(key.startswith("eval/") for key in line)}
        try:
            for damaged in (self.checkpoints / str(u) for u in updates if u > update):
                damaged.rename(f"{damaged}.damaged-{time.time_ns()}")  # or it would block the next save
            folder.write_atomically(self.path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in kept))
        except OSError as error:
            raise UsageError(f"--resume {self.path}: cannot be written to ({error.strerror})") from None

    def __enter__(self) -> "Run":
        if self.is_main and self.args.track:
            self._tracker = Tracker(self.args, self._record, self.path)
        # With several processes, JAX's own SIGTERM handler makes all agree on where to stop (see `log`).
        if threading.current_thread() is threading.main_thread() and jax.process_count() == 1:
            # Ignored signals (SIGHUP under nohup) stay ignored.
            heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
            self._old_handlers = {number: signal.signal(number, self._on_signal) for number in heard}
        total, initial = (updates * self.steps_per_update for updates in (self.num_updates, self._first))
        pause = 0.1 if sys.stderr.isatty() else 10  # seconds between two states of the bar
        self._bar = tqdm(
            total=total, initial=initial, unit=" steps", unit_scale=True, dynamic_ncols=True, disable=not self.is_main,
            miniters=1, mininterval=pause,
        )  # fmt: skip
        self._clock = time.perf_counter()
        return self

    def _on_signal(self, number: int, frame: Any) -> None:
        self._signal = number
        self._restore_handlers()
        if hasattr(signal, "SIGHUP"):  # a terminal that closes sends it twice: its shell does, and the kernel
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        # Not `say`: the signal may have interrupted another print. The terminal may be gone.
        with contextlib.suppress(OSError):
            os.write(2, b"\nstopping after this update, saving ...\n")

    def _restore_handlers(self) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        self._old_handlers = {}

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        broken = error is not None and raised_on_host(error) is not None
        try:
            # The pending update may be the one that raised.
            with contextlib.suppress(jax.errors.JaxRuntimeError) if broken else contextlib.nullcontext():
                if error is None or broken:
                    self._take()
            self._write_rows()
        finally:
            self._bar.close()
            self._restore_handlers()
            if self._tracker is not None:
                self._tracker.close()
            if self._lock is not None:
                self._lock.close()
            if self.is_main and (self._signal is not None or broken):
                say(self._how_to_go_on())

    def _how_to_go_on(self) -> str:
        if not (newest := self._newest()):
            return "stopped before the first checkpoint: there is nothing to go on from"
        command = ["python", sys.argv[0], "--resume", str(self.path), *["--distributed"] * (jax.process_count() > 1)]
        return f"stopped; the newest checkpoint is that of update {newest.name}; to go on: {shlex.join(command)}"

    def _newest(self) -> Path | None:
        updates = checkpoint_updates(self.checkpoints)
        return self.checkpoints / str(updates[-1]) if updates else None

    def updates(self) -> Iterator[int]:
        """The updates to do, up to the last one or a stop. Before them comes an evaluation if a kill came between a
        checkpoint and its own, after them the video."""
        if self._player is not None:
            scores = self.evaluate_if_due(self.done, self._player, self._state.learner)
            if self._only:
                print(self._player.table(scores), end="")
        for update in range(self._first + 1, self.num_updates + 1):
            if self._stopping:
                break
            yield update
        if self._player is not None:
            self.film_if_asked(lambda: self._player.film(self._state))

    def record(
        self, update: int, state: Any, metrics: dict, measure: Callable | None = None, sample: Any = None
    ) -> None:
        """Keep an update, just dispatched: its state, and its metrics, [] or [num_seeds] each. As they are due, measure
        its sample by measure(learner, sample) every --plasticity-every updates, write, save a checkpoint, evaluate."""
        self._state, every = state, self.args.plasticity_every if measure else 0
        if every and (update % every == 0 or update == self.num_updates):
            metrics = self._measured(metrics, measure, state.learner, sample)
        self.log(update, metrics)
        self.save_if_due(update, state)
        if self._player is not None:
            self.evaluate_if_due(update, self._player, state.learner)
        if self.is_main and update == int(LOOK * self.num_updates) >= LOOK_FROM:
            with self.aside():
                self._look()

    def _look(self) -> None:
        """Say once if the run looks sick, as doctor.py would. What it cannot read costs no run."""
        from clinic import advice  # not before: the doctor reads runs

        with contextlib.suppress(Exception):
            if said := advice.at_a_glance(self.path, Path(self._script).stem, self.args):
                say(said)

    def log(self, update: int, metrics: dict[str, jax.Array]) -> None:
        """Take the metrics of the update just dispatched, [] or [num_seeds] each, and write those of the update before:
        the device always has work, but never more than two updates. One that is over already is written, too: the
        dispatch has waited for it, as with environments on the host. `finite` is not written; if it is False,
        --halt-on-nan raises Diverged. In lines of several updates, charts/episodic_... and charts/..._episodic_... are
        weighted by the charts/num_episodes and charts/..._num_episodes over which they are means."""
        alone = jax.process_count() == 1  # several have to notice a divergence at the same update
        over = alone and all(getattr(value, "is_ready", lambda: True)() for value in metrics.values())
        self._take(following=(update, metrics))
        if over:
            self._take()
        if not alone:
            from jax.experimental import multihost_utils

            if multihost_utils.reached_preemption_sync_point(update):
                self._signal = signal.SIGTERM

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Context for work that is not training. It begins when the update before is over, and charts/SPS leaves out
        its time."""
        self._take()
        yield
        self._clock = time.perf_counter()

    def write(self, update: int, metrics: dict[str, Any]) -> None:
        """Write a separate line to metrics.jsonl, in addition to those of `log`."""
        if not self.is_main:
            return
        seconds = round(self._offset + time.perf_counter() - self._born, 3)
        line = {"update": update, "global_step": update * self.steps_per_update, "time": seconds}
        line |= {key: plain(value) for key, value in metrics.items()}
        self._unwritten.append(f"{json.dumps(line, allow_nan=False)}\n".encode())
        self.guard("metrics.jsonl", self._append)
        if self._tracker is not None:
            self._tracker.send(line)

    def _append(self) -> None:
        """Append the lines that metrics.jsonl lacks: those that a full disk refuses wait for the next one."""
        with open(self.path / "metrics.jsonl", "ab", buffering=0) as file:
            while self._unwritten:
                size = file.tell()
                if file.write(self._unwritten[0]) < len(self._unwritten[0]):
                    file.truncate(size)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._unwritten.pop(0)

    def _take(self, following: tuple[int, dict[str, jax.Array]] | None = None) -> None:
        """Wait for the pending update, keep its metrics and write them when due. `following` is pending from now on."""
        pending, self._pending = self._pending, following
        if pending is None:
            return
        update, row = pending[0], jax.device_get(pending[1])
        now = time.perf_counter()
        finite = bool(np.all(row.pop("finite", True)))
        if not finite and self._not_finite is None:
            self._write_rows()  # so that the numbers before do not hide it
        self._busy, self._clock = self._busy + now - self._clock, now
        self._rows.append(row)
        self.done = update
        if update % self.args.log_every == 0 or update == self.num_updates or not finite:
            self._write_rows()
        self._show(update, row)
        if not finite:
            self._not_finite = self._not_finite or update
            if self.args.halt_on_nan:
                raise Diverged(update, self._newest(), hasattr(self.args, "init_from"))

    def _write_rows(self) -> None:
        if self._rows:
            speed = len(self._rows) * self.steps_per_update / max(self._busy, 1e-9)
            self.write(self.done, {"charts/SPS": int(speed), **pool(self._rows)})
            self._rows, self._busy = [], 0.0

    def guard(self, what: str, write: Callable[[], Any]) -> None:
        """Write, in the first process, or warn once and go on: a full disk may cost a line or a picture, not what was
        learned."""
        try:
            if self.is_main:
                write()
        except OSError as error:
            if what not in self._warned:
                say(f"warning: cannot write {self.path / what} ({error.strerror or error})")
            self._warned.add(what)

    def _show(self, update: int, row: dict[str, np.ndarray]) -> None:
        for name, key in (("return", "charts/episodic_return"), ("solved", "charts/solve_rate")):
            values = np.ravel(row.get(key, np.nan))
            if np.any(np.isfinite(values)):
                self._shown[name] = float(np.mean(values[np.isfinite(values)]))
        shown = ", ".join(f"{name}={value:.4g}" for name, value in self._shown.items())
        self._bar.set_postfix_str(shown, refresh=False)
        self._bar.update(update * self.steps_per_update - self._bar.n)

    @property
    def interrupted(self) -> bool:
        """Whether a signal has asked this process to stop. With several processes, `log` finds out when all do."""
        return self._signal is not None

    def save_if_due(self, update: int, state: Any) -> None:
        """Save a checkpoint every --checkpoint-every updates, at the last one and at a stop, which it decides. It makes
        sure that this update's metrics are finite, so call it before the next update is dispatched."""
        self._stopping = self.interrupted
        last = self._stopping or update == self.num_updates
        every = self.args.checkpoint_every
        if update == self._saved or not (last or (every > 0 and update % every == 0)):
            return
        # No other one follows the last. Whoever stops a run may not wait, and several processes would have to agree.
        patient = last and not self._stopping and jax.process_count() == 1
        with self.aside():
            self._write_rows()
            for left in range(RETRIES * patient, -1, -1):
                try:
                    self.guard("args.json", self._make_again_if_deleted)
                    checkpoints.save(self.checkpoints, update, state, self.args.keep_checkpoints)
                    self._saved = update
                    break
                except OSError as error:
                    say(f"warning: checkpoint {update} could not be saved ({first_line(error)}); {left} more tries")
                if left and not self.interrupted:
                    time.sleep(PAUSE)
            self._incomplete |= last and self._saved != update

    def _make_again_if_deleted(self) -> None:
        if not (self.path / "args.json").exists():
            self.path.mkdir(parents=True, exist_ok=True)
            folder.write_record(self.path, self._record, self.args, self._script)

    def evaluate_if_due(self, update: int, player: Any, learner: Any) -> dict[str, np.ndarray]:
        """Write player.scores(learner, update) every --eval-every updates after update 0 and at the last one, unless
        done before a restart. Only the first process plays, so `scores` must use its devices only. A signal ends an
        evaluation if the update is saved, because then --resume makes it. One that fails costs its scores, not the
        training; if it is the last one, --resume makes it, too."""
        every = self.args.eval_every
        due = update == self.num_updates or (every > 0 and update > 0 and update % every == 0)
        if not due or not self.args.num_eval_episodes or update in self._evaluated:
            return {}
        with self.aside():
            given_up = lambda: self.interrupted and self._saved == update  # noqa: E731
            try:
                scores = jax.device_get(player.scores(learner, update, given_up)) if self.is_main else {}
            except Exception as error:
                if self._only:
                    raise
                scores = {}
                self._incomplete |= update == self.num_updates
                say(f"warning: no evaluation after update {update}: {raised_on_host(error) or traceback.format_exc()}")
        self._stopping |= given_up()
        self._incomplete |= scores is None
        if scores:
            self.write(update, scores)
        return scores or {}

    def film_if_asked(self, film: Callable[[], dict[str, Callable[[], Sequence[np.ndarray]]]]) -> None:
        """With --capture-video, save film()'s gifs, frames uint8 [H, W, 3] by name, at the end of a run that was not
        stopped. If it was, --resume makes them. A renderer that fails costs the video, not the run."""
        if not self.args.capture_video or not self.is_main:
            return
        if self.interrupted:
            self._incomplete = True
            return
        import imageio.v3

        for name, record in film().items():
            file = self.path / "videos" / f"{name.replace('/', '-')}.gif"
            try:
                frames = np.stack(record())
                file.parent.mkdir(exist_ok=True)
                imageio.v3.imwrite(file, frames, duration=50, loop=0)  # ms per frame
            except Exception as error:
                say(f"warning: no video {file} ({first_line(error)})")
            else:
                if self._tracker is not None:
                    self._tracker.send((f"videos/{name}", file))

    def _measured(self, metrics: dict[str, jax.Array], measure: Callable, *inputs: Any) -> dict[str, jax.Array]:
        """Add measure(*inputs) to the metrics of the update just dispatched. charts/SPS leaves out its time."""
        self._take()
        # Wait for the update, and then for the measurement: two programs at once on several CPU devices could wait for
        # each other forever.
        metrics = jax.block_until_ready(metrics)
        self._busy += time.perf_counter() - self._clock
        measured = jax.block_until_ready(measure(*inputs))
        self._clock = time.perf_counter()
        return metrics | measured

    def finish(self) -> Path:
        """Print the summary, and save it and curve.png. End the process with 128 + n if signal n stopped the run, else
        with 1 if its last checkpoint or evaluation failed. -> the run's folder."""
        if self.is_main:
            self.guard("metrics.jsonl", self._append)
            summary = self._summary()
            # With a summary the run would be finished, and --resume, or what starts from its end, would go wrong.
            if not self._incomplete:
                self.guard("summary.json", lambda: folder.write_json(self.path / "summary.json", summary))
            self.guard("curve.png", lambda: plots.draw([self.path], self.path / "curve.png"))
            tqdm.write(plots.table(summary))
            if summary["steps_per_second"] and hasattr(self.args, "time_limit") and "final_return" not in summary:
                say(
                    "note: no episode ended in training, so there is no return: too few steps, or none ends "
                    "(--time-limit, on the host --env-kwargs, truncates them)"
                )
            if self._not_finite:
                say(f"warning: since update {self._not_finite} parameters or losses are not finite")
        devices.wait_for_all()  # for the first one, which has evaluated and filmed alone
        if self._signal is not None or self._incomplete:
            raise SystemExit(1 if self._signal is None else 128 + self._signal)
        return self.path

    def _summary(self) -> dict[str, Any]:
        newest, unit = self._newest(), 1 if sys.platform == "darwin" else 1024  # bytes per unit of ru_maxrss
        stats = [device.memory_stats() or {} for device in jax.local_devices()]
        return {
            "run": str(self.path),
            "checkpoint": str(newest) if newest else None,
            "env_id": self.args.env_id,
            "updates": self.done,
            "num_updates": self.num_updates,
            "global_step": self.done * self.steps_per_update,
            "not_finite_since_update": self._not_finite,
            **plots.summarize(self.path),
            "wall_s": round(self._offset + time.perf_counter() - self._born, 1),
            "compile_s": self.compile_s,
            "peak_process_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
            "peak_device_bytes": max((stat.get("peak_bytes_in_use", 0) for stat in stats), default=0) or None,
        }
