"""Settings that JAX and OpenBLAS read when they start, and a Ctrl-C that always works. Import this before JAX."""

import os
import signal
import sys
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # otherwise XLA:CPU logs a page for each program in its cache
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # otherwise its threads fight XLA's: SVDs took 400 ms instead of 1


def _unraisable(what: Any) -> None:
    """Handle errors that Python can only print, because they have no caller."""
    if what.exc_type is KeyboardInterrupt:  # in JAX's garbage-collector callback, which may run at any time
        signal.raise_signal(signal.SIGINT)
    elif str(what.exc_value) != "Event loop is closed":  # tensorstore, once for each array of a failed save
        sys.__unraisablehook__(what)


def _uncaught(kind: type, error: BaseException, trace: Any) -> None:
    """Print no traceback for a Ctrl-C: where it hit an import is of no use."""
    if kind is KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


sys.unraisablehook, sys.excepthook = _unraisable, _uncaught
