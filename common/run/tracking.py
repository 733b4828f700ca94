"""What a training run reports: metrics pooled into lines, progress on the terminal, wandb."""

import contextlib
import math
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

# Means over all episodes or those of one kind: charts/solve_rate, charts/fresh_solve_rate, ...
PER_EPISODE = re.compile("charts/(.+_)?(episodic_.+|solve_rate)")
# An hour of lines at ten per second: outlasts a slow start of wandb, and leaks nothing if it never starts.
QUEUE_SIZE = 36_000


class GuardedStream:
    """stdout or stderr, whose reader may go away (a `tee` that dies, a closed terminal, a full disk). From then on all
    output is lost, but the program goes on."""

    def __init__(self, stream: Any):
        self._stream = stream

    def write(self, text: str) -> int:
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, action: Any) -> None:
        try:
            action()
        except (OSError, ValueError):  # ValueError: the stream is closed
            # Redirect the descriptor: XLA also writes there, and Python flushes it again at exit.
            with contextlib.suppress(OSError, ValueError):
                there, nothing = self._stream.fileno(), os.open(os.devnull, os.O_WRONLY)
                os.dup2(nothing, there)
                if nothing != there:  # the same if it was closed: the next file opened gets its number
                    os.close(nothing)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def guard_output() -> None:
    """Make sure that writing to stdout and stderr never fails."""
    for descriptor, name in enumerate(("stdout", "stderr"), 1):
        stream = getattr(sys, name)
        if stream is None:  # the descriptor was closed when Python started; the next file opened would get its number
            stream = open(os.devnull, "w")  # noqa: SIM115 (stays open)
            with contextlib.suppress(OSError):
                if not _is_open(descriptor):
                    os.dup2(stream.fileno(), descriptor)
        with contextlib.suppress(AttributeError, OSError, ValueError):  # a stream of another kind, or a closed one
            if stream.errors == "strict":  # where the encoding is ASCII, η would raise
                stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, GuardedStream(stream))


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
        return True
    except OSError:
        return False


def say(message: str) -> None:
    """Print a line on stderr without breaking the progress bar."""
    tqdm.write(message, file=sys.stderr)


def pool(rows: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Average the metrics of several updates, ignoring NaN. Means over episodes are weighted by the count of episodes,
    which itself is summed."""
    pooled = {}
    for key in dict.fromkeys(key for row in rows for key in row):
        having = [row for row in rows if key in row]
        of_episodes = PER_EPISODE.fullmatch(key)
        if len(having) == 1 and not of_episodes:
            pooled[key] = having[0][key]
            continue
        values = np.stack([row[key] for row in having])
        if key.endswith("num_episodes"):
            pooled[key] = values.sum(0)
            continue
        values = values.astype(np.float64)
        weights = np.ones_like(values)
        count = of_episodes and f"charts/{of_episodes[1] or ''}num_episodes"
        if count and all(count in row for row in having):
            weights = np.stack([row[count] for row in having]).astype(np.float64)
        weights = np.where(np.isnan(values), 0.0, weights)
        if key == "outer/ddr":  # infinite where an update did not move the policy; never negative but for rounding
            weights = np.where(np.isinf(values) | (values <= 0), 0.0, weights)
        total = weights.sum(0)
        summed = (np.where(weights > 0, values, 0.0) * weights).sum(0)
        pooled[key] = np.where(total > 0, summed / np.where(total > 0, total, 1.0), np.nan)
    return pooled


def plain(value: Any) -> Any:
    """Make numbers and (nested) lists of them valid JSON: NaN and infinity become null."""
    value = np.asarray(value).tolist()
    if isinstance(value, list):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


class Progress:
    """A bar on a terminal; elsewhere, as in a log file, a line every ten seconds."""

    def __init__(self, total: int, initial: int, visible: bool):
        on_terminal = sys.stderr.isatty()
        bar_format = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} steps [{elapsed}<{remaining}, {rate_fmt}{postfix}]"
        self._bar = tqdm(
            total=total, initial=initial, unit=" steps", unit_scale=True, dynamic_ncols=True, bar_format=bar_format,
            disable=not (visible and on_terminal),
        )  # fmt: skip
        self._lines = visible and not on_terminal
        self._total, self._first, self._start = total, initial, time.perf_counter()
        self._last = self._start

    def advance(self, step: int, shown: str) -> None:
        """Move to environment step `step`, and print `shown` with it."""
        if not self._bar.disable:
            self._bar.set_postfix_str(shown, refresh=False)
            self._bar.update(step - self._bar.n)
        now = time.perf_counter()
        if self._lines and now - self._last >= 10:
            self._last = now
            rate = (step - self._first) / (now - self._start)
            steps, total, speed = (tqdm.format_sizeof(x) for x in (step, self._total, rate))
            left = tqdm.format_interval((self._total - step) / max(rate, 1e-9))
            say(f"{100 * step // self._total:3d} %  {steps}/{total} steps, {speed} steps/s, {left} left, {shown}")

    def close(self) -> None:
        self._bar.close()


class Tracker:
    """A wandb run that cannot stop or slow the training if wandb fails or hangs: everything that touches wandb,
    including its import, happens in one daemon thread that reads a queue. `settings` are keyword arguments of
    wandb.init."""

    def __init__(self, settings: dict[str, Any], init_timeout: float = 60.0):
        self._settings = settings
        self._init_timeout = init_timeout
        self._queue: queue.Queue = queue.Queue(QUEUE_SIZE)
        self._dead = False
        self._thread = threading.Thread(target=self._work, name="wandb", daemon=True)
        self._thread.start()

    def log(self, line: dict[str, Any]) -> None:
        """Send one line of metrics.jsonl; its global_step is the step."""
        self._put(("log", line))

    def video(self, key: str, file: Path) -> None:
        """Send a video file, at the step of the line before it."""
        self._put(("video", key, file))

    def close(self, timeout: float = 30.0) -> None:
        """Finish the wandb run, waiting at most `timeout` seconds for it."""
        self._put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._dead = True
            # wandb would wait for itself again, without limit, when the interpreter exits. Its teardown cancels that
            # first, so begin it here, in a thread that may be left behind.
            teardown = getattr(sys.modules.get("wandb"), "teardown", None)
            if teardown is not None:
                waiting = threading.Thread(target=teardown, daemon=True)
                waiting.start()
                waiting.join(1.0)
            folder = Path(self._settings["dir"]) / "wandb" / f"*run-*-{self._settings['id']}"
            say(f"wandb did not finish within {timeout:g} s and is left behind; `wandb sync {folder}` sends the rest")

    def _put(self, item: Any) -> None:
        if self._dead:
            return
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            self._fail("it does not keep up")

    def _fail(self, reason: object) -> None:
        if not self._dead:
            self._dead = True
            text = " ".join(str(reason).split())
            say(f"warning: wandb: {text[:300]}; the run goes on without it")

    def _work(self) -> None:
        try:
            import wandb

            # console="off": wandb's capture of the terminal garbles the progress bar.
            options = wandb.Settings(init_timeout=self._init_timeout, console="off", silent=True)
            run = wandb.init(**self._settings, resume="allow", settings=options)
            step = 0
            while (item := self._queue.get()) is not None and not self._dead:
                if item[0] == "log":
                    step = item[1]["global_step"]
                    run.log(flatten(item[1]), step=step)
                else:
                    run.log({item[1]: wandb.Video(str(item[2]), format="gif")}, step=step)
            run.finish()
        except (Exception, SystemExit) as error:  # some failures make wandb call sys.exit
            self._fail(error or type(error).__name__)


def flatten(line: dict[str, Any]) -> dict[str, float]:
    """Convert a line of metrics.jsonl for wandb: the mean over seeds under the key itself, each seed's value of charts/
    keys under seed_<i>/, and no nulls."""
    flat = {}
    for key, value in line.items():
        if isinstance(value, list):
            known = [v for v in value if v is not None]
            flat[key] = math.fsum(known) / len(known) if known else None
            if key.startswith("charts/"):
                flat |= {f"seed_{i}/{key}": v for i, v in enumerate(value)}
        else:
            flat[key] = value
    return {key: value for key, value in flat.items() if value is not None}
