"""A script as a command: one line for what the user can fix, and exit codes."""

import os
import re
import shlex
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import jax

from common.run.arguments import UsageError, parse
from common.run.tracking import guard_output

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Diverged(RuntimeError):
    """The loss or a parameter is no longer finite."""

    def __init__(self, update: int, checkpoint: Path | None, can_branch: bool):
        advice = "no checkpoint was saved before it (--checkpoint-every N saves every N updates)"
        if checkpoint is not None:
            source = f"{checkpoint.parent.parent}@{checkpoint.name}"
            again = f" (start again from it with --init-from {shlex.quote(source)} and a smaller --learning-rate)"
            advice = f"last good checkpoint: {checkpoint}{again if can_branch else ''}"
        super().__init__(f"update {update}: loss or parameters are no longer finite; {advice}")


def main(train: Callable[[Any], Any], args_class: type) -> None:
    """Run a script: parse the command line into `args_class` and call `train`. What the user can fix is one line on
    stderr, not a traceback. The exit code is 2 for bad input, 1 for divergence and for an environment on the host that
    raises, 128 + n after signal n."""
    script = Path(sys.argv[0]).name
    guard_output()
    try:
        about = sys.modules[train.__module__].__doc__ or ""
        args = parse(args_class, about.split("\n\n")[0])
        if getattr(args, "list_envs", None) is not None:
            from common import envs

            print(envs.listed(args.list_envs))
        else:
            train(args)
    except UsageError as error:
        _exit(f"{script}: error: {error}", 2)
    except Diverged as error:
        _exit(f"{script}: {error}", 1)
    except KeyboardInterrupt:
        _exit(f"{script}: interrupted", 128 + signal.SIGINT, alone=True)
    except Exception as error:
        if raised := raised_on_host(error):
            _exit(f"{script}: {raised}", 1)
        if not jax.distributed.is_initialized():
            raise
        _exit(traceback.format_exc(), 1, alone=True)


def raised_on_host(error: BaseException) -> str | None:
    """What an environment on the host has raised (common/suites/host.py). In JAX's own error it is a line of text."""
    found = re.search(r"UsageError: (.+)", str(error)) if isinstance(error, jax.errors.JaxRuntimeError) else None
    return found and found[1]


def _exit(message: str, code: int, alone: bool = False) -> NoReturn:
    """Exit with a message. alone: other processes do not know; in an orderly exit both sides would wait for minutes."""
    print(message, file=sys.stderr, flush=True)
    if alone and jax.distributed.is_initialized():
        os._exit(code)
    raise SystemExit(code)
