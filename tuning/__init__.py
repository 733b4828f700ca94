"""Parts of tune.py: trials (the runs) and report (what was found)."""

import importlib.util
import sys

if importlib.util.find_spec("optuna") is None:
    print("tune.py: error: optuna is not installed; pip install -r requirements-tune.txt", file=sys.stderr)
    raise SystemExit(2)
