"""How results are written: what made them, and numbers with few digits."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from common.run import folder


def write(out: Path, value: dict[str, Any]) -> None:
    """Writes JSON, with each list of numbers on one line."""
    text = json.dumps(rounded(value), indent=1)
    text = re.sub(r'\[\n[^][{}"]*\]', lambda found: f"[{', '.join(found[0][1:-1].replace(',', ' ').split())}]", text)
    folder.write_atomically(out, text + "\n")


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
