"""What a training run reports: metrics pooled into lines, progress on the terminal, wandb."""

import contextlib
import os
import queue
import re
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

# Means over all episodes or those of one kind: charts/solve_rate, charts/fresh_solve_rate, ...
PER_EPISODE = re.compile("charts/(.+_)?(episodic_.+|solve_rate)")


class Outliving:
    """stdout or stderr that outlives its reader (a `tee` that dies, a closed terminal, a full disk): what cannot be
    written is lost."""

    def __init__(self, stream: Any):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):  # ValueError: it is closed
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def guard_output() -> None:
    """Let the program outlive the readers of stdout and stderr."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or open(os.devnull, "w")  # noqa: SIM115 (closed when Python started)
        if not isinstance(stream, Outliving):
            with contextlib.suppress(AttributeError):  # not a stream of Python's own
                stream.reconfigure(errors="backslashreplace")  # where the encoding is ASCII, η would raise
            setattr(sys, name, Outliving(stream))


def say(message: str) -> None:
    """Print a line on stderr without breaking the progress bar."""
    tqdm.write(message, file=sys.stderr)


def pool(rows: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Average the metrics of several updates, ignoring NaN. Means over episodes are weighted by the count of episodes,
    which itself is summed. outer/ddr is that of all updates together: transitions / KL, where a KL may be 0."""
    pooled = {}
    for key in dict.fromkeys(key for row in rows for key in row):
        having = [row for row in rows if key in row]
        values = np.stack([row[key] for row in having])
        if len(having) == 1:
            pooled[key] = values[0]
        elif key.endswith("num_episodes"):
            pooled[key] = values.sum(0)
        else:
            of_episodes = PER_EPISODE.fullmatch(key)
            count = f"charts/{of_episodes[1] or ''}num_episodes" if of_episodes else None
            weights = np.stack([row.get(count, np.ones_like(row[key])) for row in having]).astype(np.float64)
            weights[np.isnan(values)] = 0.0
            power, total = -1.0 if key == "outer/ddr" else 1.0, weights.sum(0)
            with np.errstate(divide="ignore"):
                values = np.where(weights > 0, values, 1.0).astype(np.float64) ** power
                pooled[key] = np.where(total > 0, (values * weights).sum(0) / np.where(total > 0, total, 1.0), np.nan)
                pooled[key] **= power
    return pooled


def plain(value: Any) -> Any:
    """Make numbers and (nested) lists of them valid JSON: NaN and infinity become null."""
    value = np.asarray(value).tolist()
    if isinstance(value, list):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


class Tracker:
    """A run of wandb's that cannot stop or slow the training if wandb fails or hangs: everything that touches it,
    including its import, happens in one daemon thread that reads a queue. record: the run's args.json."""

    def __init__(self, args: Any, record: dict[str, Any], path: Path):
        settings = {name: getattr(args, f"wandb_{name}") for name in ("entity", "group", "tags", "job_type", "mode")}
        settings |= {"project": args.wandb_project_name, "dir": str(path), "id": record["wandb_id"], "name": path.name}
        settings["config"] = {**record["args"], **{k: v for k, v in record.items() if k != "args"}}
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, args=(settings,), daemon=True)
        self._thread.start()

    def send(self, item: dict[str, Any] | tuple[str, Path]) -> None:
        """Send a line of metrics.jsonl, whose global_step is the step, or a video (key, file) at the step before it."""
        if self._thread.is_alive():
            self._queue.put(item)

    def close(self, timeout: float = 30.0) -> None:
        """Finish the wandb run, waiting at most `timeout` seconds for it."""
        self._queue.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():
            # wandb would wait for itself again, without limit, when the interpreter exits. Its teardown cancels that
            # first, so begin it here, in a thread that may be left behind.
            waiting = threading.Thread(target=getattr(sys.modules.get("wandb"), "teardown", lambda: None), daemon=True)
            waiting.start()
            waiting.join(1.0)
            say(f"wandb did not finish within {timeout:g} s and is left behind; `wandb sync` sends what is in the run")

    def _work(self, settings: dict[str, Any]) -> None:
        try:
            import wandb

            # console="off": wandb's capture of the terminal garbles the progress bar.
            options = wandb.Settings(init_timeout=60, console="off", silent=True)
            run, step = wandb.init(**settings, resume="allow", settings=options), 0
            while (item := self._queue.get()) is not None:
                if isinstance(item, dict):
                    step = item["global_step"]
                    run.log(flatten(item), step=step)
                else:
                    run.log({item[0]: wandb.Video(str(item[1]), format="gif")}, step=step)
            run.finish()
        except (Exception, SystemExit) as error:  # some failures make wandb call sys.exit
            said = " ".join(str(error).split())[:300] or type(error).__name__
            say(f"warning: wandb: {said}; the run goes on without it")


def flatten(line: dict[str, Any]) -> dict[str, float]:
    """Convert a line of metrics.jsonl for wandb: the mean over seeds under the key itself, each seed's value of charts/
    keys under seed_<i>/, and no nulls."""
    flat = {}
    for key, value in line.items():
        values = np.array(value, np.float64).ravel()  # None becomes NaN
        if key.startswith("charts/") and isinstance(value, list):
            flat |= {f"seed_{i}/{key}": v for i, v in enumerate(values)}
        flat[key] = np.nanmean(values) if np.any(~np.isnan(values)) else np.nan
    return {key: float(value) for key, value in flat.items() if not np.isnan(value)}
