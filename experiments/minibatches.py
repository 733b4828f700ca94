"""Do few environments want more than 4 gradient steps per update on other games than Breakout?

    python -m experiments.minibatches               # makes the missing runs, then results/minibatches.json
    python -m experiments.minibatches --dry-run     # prints the commands

experiments/inner.py has 64 environments with 1 and with 64 minibatches on three games, and with 8 on Breakout. Here are
those with 8 on the other two, beside the stored results of that experiment. The rules are in
experiments/PREREGISTERED.md.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tyro

from benchmarks.measure import ROOT
from experiments import entropy, grid, headline, inner, results, verdicts
from experiments.entropy import BREAKOUT, LEVELS
from experiments.headline import SEEDS, Curve
from experiments.inner import FEW, MANY, SMALL, SOME

GAMES = tuple(game for game in LEVELS if game != BREAKOUT)
STORED = ROOT / "results" / "inner.json"
ENDS = "return, last tenth"


def cells() -> dict[str, list[grid.Cell]]:
    """The runs, by game."""
    return {game: [inner.cell((game, SMALL, SOME), seed) for seed in SEEDS] for game in GAMES}


def judge(curves: Mapping[str, list[Curve]], stored: Mapping[str, list[float]]) -> dict[str, Any]:
    """What the rules ask for. stored: returns at the end of the runs of experiments/inner.py, of each seed."""
    checks, ends = {}, {}
    for game, of_one in curves.items():
        last = entropy.STEPS[game]
        ends[game] = [c.mean("returns", 0.9 * last, last) for c in of_one]
        for parts, above in ((FEW, 0.0), (MANY, None)):
            other = np.array(stored[inner.spelled((game, SMALL, parts))])
            what = f"{game}, return, {SOME} less {parts} minibatches"
            found = verdicts.difference(what, np.array(ends[game]), other, above=above)
            checks[what] = found.stored()
    outcomes = [check["outcome"] for check in checks.values() if check["above"] is not None]

    def each(what: Callable[[Curve, float, float], Any]) -> dict[str, list[Any]]:
        return {game: [what(c, LEVELS[game], entropy.STEPS[game]) for c in of] for game, of in curves.items()}

    late = lambda of: each(lambda c, _, last: c.mean(of, 0.9 * last, last))  # noqa: E731
    return {
        "checks": checks,
        "8 minibatches are better than 1": verdicts.together(outcomes),
        "the default changes": "does not hold" not in outcomes,
        "entropy when the return first reaches the level": each(entropy.entropy_at),
        "share of samples beyond the clip range until then": each(inner.clipped),
        "gains of an update, last tenth: own": late("own"),
        "gains of an update, last tenth: fresh": late("fresh"),
        ENDS: ends,
    }


def main(args: headline.Args) -> None:
    """Makes what is missing and compares."""
    runs = cells()
    if not headline.made(args, *runs.values()):
        return
    found = judge(headline.curves(args, runs), json.loads(STORED.read_text())[ENDS])
    print(json.dumps(results.rounded(found), indent=1))
    how = results.facts("minibatches", "## More gradient steps for few environments, on other games")
    headline.write(args, "minibatches", how, runs, found)


if __name__ == "__main__":
    main(tyro.cli(headline.Args))
