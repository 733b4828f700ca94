"""Is it PPO's clip by which more gradient steps keep more entropy?

    python -m experiments.clip               # makes the missing runs, then results/clip.json
    python -m experiments.clip --dry-run     # prints the commands

experiments/inner.py has 64 environments with 4 and with 32 gradient steps per update. Here are runs with 32, with the
policy's clip and without it; the value is clipped in neither. The rules are in experiments/PREREGISTERED.md.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tyro

from benchmarks.measure import ROOT
from experiments import entropy, grid, headline, inner, results, verdicts
from experiments.entropy import BREAKOUT, LEVELS, SHORT
from experiments.headline import ABOVE, HALF, SEEDS, Curve
from experiments.inner import FEW, SMALL, SOME

STORED = ROOT / "results" / "inner.json"
CLIPPED, UNCLIPPED = "clipped", "unclipped"
ARMS = {CLIPPED: {"clip_vloss": False}, UNCLIPPED: {"clip_vloss": False, "clip_eps": 1e6}}
ENTROPY, ENDS = "entropy when the return first reaches the level", "return, last tenth"


def cells() -> dict[str, list[grid.Cell]]:
    """The runs, by arm."""
    key = (BREAKOUT, SMALL, SHORT)
    make = lambda seed, flags: entropy.cell(key, seed, steps=HALF, num_minibatches=SOME, **flags)  # noqa: E731
    return {arm: [make(seed, flags) for seed in SEEDS] for arm, flags in ARMS.items()}


def late(curve: Curve, key: str) -> float:
    """The mean over the last tenth."""
    return curve.mean(key, 0.9 * HALF, HALF)


def judge(curves: Mapping[str, Sequence[Curve]], stored: Mapping[str, Mapping[str, list[float]]]) -> dict[str, Any]:
    """What the rules ask for. stored: what experiments/inner.py found."""
    spelled = {m: inner.spelled((BREAKOUT, SMALL, m)) for m in (FEW, SOME)}
    before = {what: {m: stored[what][name] for m, name in spelled.items()} for what in (ENTROPY, ENDS)}
    reached = {arm: [entropy.entropy_at(c, LEVELS[BREAKOUT], HALF) for c in of] for arm, of in curves.items()}
    kept = {
        arm: [late(c, "entropy") if np.isnan(at) else at for c, at in zip(curves[arm], of_arm, strict=True)]
        for arm, of_arm in reached.items()
    }
    ends = {arm: [late(c, "returns") for c in of] for arm, of in curves.items()}
    bar = 0.5 * float(np.mean(before[ENTROPY][SOME]) - np.mean(before[ENTROPY][FEW]))
    pair = lambda values: (np.array(values[CLIPPED]), np.array(values[UNCLIPPED]))  # noqa: E731
    checks = {
        "the clip keeps the entropy": verdicts.difference("entropy, clipped less unclipped", *pair(kept), above=bar),
        "without it 32 gradient steps end on the first plateau": verdicts.difference(
            "return, unclipped", np.array(ends[UNCLIPPED]), 0.0, below=ABOVE
        ),
        "reported: return": verdicts.difference("return, clipped less unclipped", *pair(ends)),
    }
    others = ("own", "fresh", "kl", "weight_norm")
    return {
        "checks": {claim: check.stored() for claim, check in checks.items()},
        ENTROPY: kept,
        "seeds that reach the level": {arm: int(np.isfinite(of_arm).sum()) for arm, of_arm in reached.items()},
        ENDS: ends,
        **{f"{key}, last tenth": {arm: [late(c, key) for c in of] for arm, of in curves.items()} for key in others},
        "with both clips, by minibatches": before,
    }


def main(args: headline.Args) -> None:
    """Makes what is missing and compares."""
    runs = cells()
    if not headline.made(args, *runs.values()):
        return
    found = judge(headline.curves(args, runs), json.loads(STORED.read_text()))
    print(json.dumps(results.rounded(found), indent=1))
    headline.write(args, "clip", results.facts("clip", "## Is it the clip?"), runs, found)


if __name__ == "__main__":
    main(tyro.cli(headline.Args))
