"""Settings that JAX and OpenBLAS read when they start, and a Ctrl-C that always works. Import this before JAX."""

import os
import signal
import sys
import threading
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # otherwise XLA:CPU logs a page for each program in its cache
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # otherwise its threads fight XLA's: SVDs took 400 ms instead of 1


def _unraisable(what: Any) -> None:
    """Repeat a Ctrl-C that hit JAX's garbage-collector callback: without a caller Python can only print it. A moment
    later, because what is raised in here is only printed, too."""
    if what.exc_type is KeyboardInterrupt:
        threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGINT]).start()
    else:
        sys.__unraisablehook__(what)


def _uncaught(kind: type, error: BaseException, trace: Any) -> None:
    """Print no traceback for a Ctrl-C: where it hit an import is of no use. Some modules raise ImportError for it."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    if cause is not None:
        print("interrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


sys.unraisablehook, sys.excepthook = _unraisable, _uncaught
