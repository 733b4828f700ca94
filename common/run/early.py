"""Settings that JAX and OpenBLAS read when they start, and a Ctrl-C that always works. Import this before JAX."""

import os
import signal
import sys
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # otherwise XLA:CPU logs a page for each program in its cache
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # otherwise its threads fight XLA's: SVDs took 400 ms instead of 1


def _unraisable(what: Any) -> None:
    """Raise again a Ctrl-C that hit JAX's garbage-collector callback: without a caller Python can only print it."""
    if what.exc_type is KeyboardInterrupt:
        signal.raise_signal(signal.SIGINT)
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
