"""How results are written: what made them, and numbers with few digits."""

import datetime
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import git
from common.run import devices, folder

RULES = "experiments/PREREGISTERED.md"


def facts(module: str, *headings: str) -> dict[str, Any]:
    """How a result was made. module: as in `python -m`; headings: of its rules in RULES."""
    command = shlex.join(["python", "-m", module, *sys.argv[1:]])
    where = {"machine": devices.machine(), "git_commit": git("rev-parse", "HEAD")}
    return {"command": command, "date": f"{datetime.date.today()}"} | where | committed(*headings)


def committed(*headings: str, until: str = "HEAD") -> dict[str, Any]:
    """The commits that wrote or changed these sections of RULES, the oldest first."""

    def sections(commit: str) -> list[list[str]]:
        parts = [f"## {part}" for part in git("show", f"{commit}:{RULES}").split("\n## ")]
        return [next((part.split() for part in parts if part.startswith(heading)), []) for heading in headings]

    found: dict[str, list[str]] = {heading: [] for heading in headings}
    for commit in git("log", "--reverse", "--no-merges", "--format=%H", until, "--", RULES).split():
        for heading, old, new in zip(headings, sections(f"{commit}^"), sections(commit), strict=True):
            found[heading] += [commit] * (old != new)
    return {"rules were committed in": found}


def write(out: Path, value: dict[str, Any]) -> None:
    folder.write_atomically(out, compact(json.dumps(rounded(value), indent=1)) + "\n")


def rounded(value: Any, digits: int = 4) -> Any:
    """Prepares a value for JSON: rounds to so many digits and turns what is not finite into null. Samples keep two
    more, so that what is computed from them is right to four."""
    if isinstance(value, dict):
        return {str(k): rounded(v, 6 if k == "samples" else digits) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(v, digits) for v in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return rounded(value.tolist(), digits)
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if np.isfinite(value) else None
    return value


def compact(text: str) -> str:
    """Puts each list of numbers in indented JSON on one line."""
    return re.sub(r'\[\n[^][{}"]*\]', lambda found: f"[{', '.join(found[0][1:-1].replace(',', ' ').split())}]", text)
