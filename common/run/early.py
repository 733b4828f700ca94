"""To be imported before JAX: what it and OpenBLAS read when they start, and a Ctrl-C that always counts."""

import os
import signal
import sys
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # else XLA:CPU logs a page per program found in its cache
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # else its threads and XLA's fight: SVDs took 400 ms instead of 1


def _unraisable(what: Any) -> None:
    """Errors that Python can only print, since nothing has called what fails."""
    if what.exc_type is KeyboardInterrupt:  # in JAX's callback of the garbage collector, which runs at any time
        signal.raise_signal(signal.SIGINT)
    elif str(what.exc_value) != "Event loop is closed":  # tensorstore, once for each array of a save that has failed
        sys.__unraisablehook__(what)


def _uncaught(kind: type, error: BaseException, trace: Any) -> None:
    """Nothing to learn from where an import was when it was interrupted."""
    if kind is KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


sys.unraisablehook, sys.excepthook = _unraisable, _uncaught
