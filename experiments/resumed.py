"""Does a policy whose updates gain nothing on fresh transitions go on learning with more environments?

    python -m experiments.resumed               # makes the missing runs, then results/resumed.json and resumed.png
    python -m experiments.resumed --dry-run     # prints the commands

The policies are those of 64 environments in experiments/inner.py, at the end of their runs: with 64 minibatches on
Asterix, with 8 on Breakout. They have not settled: an update gains much on its own transitions, and nothing on fresh
ones. The rules are in experiments/PREREGISTERED.md.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from experiments import grid, headline, inner, results, verdicts
from experiments.entropy import BREAKOUT
from experiments.headline import HALF, SEEDS, SIZES, Curve, interval
from experiments.inner import ASTERIX

SMALL, LARGE = SIZES[0], SIZES[-1]
UNCHANGED, MORE, SMALLER = "unchanged", "4,096 environments", "ε ÷ 4"
PARTS = {ASTERIX: 64, BREAKOUT: 8}  # minibatches of the policies
STEPS = {ASTERIX: 2**22, BREAKOUT: HALF}  # for which they go on
# On Asterix, 4,096 environments keep the number of gradient steps per update; on Breakout the size of minibatches.
GROWN = {ASTERIX: {"num_minibatches": 64}, BREAKOUT: {"minibatch_size": 256}}

Key = tuple[str, str]  # game, arm


def branch(game: str, arm: str, seed: int) -> grid.Cell:
    """The policy at the end of its run, which goes on."""
    source = inner.cell((game, SMALL, PARTS[game]), seed)
    kept = {name: value for name, value in source.flags if name in ("env_id", "sticky_actions", "num_minibatches")}
    num_envs, changed = (LARGE, dict(GROWN[game])) if arm == MORE else (SMALL, {})
    changed |= {"clip_eps": 0.05} if arm == SMALLER else {}
    if "minibatch_size" in changed:
        kept.pop("num_minibatches")
    updates = STEPS[game] // (num_envs * headline.NUM_STEPS)
    flags = kept | {"num_envs": num_envs, "total_timesteps": STEPS[game], "seed": seed, "num_eval_episodes": 0}
    flags |= {"log_every": max(1, updates // 384)} | changed
    varied = {"resumed": game, "envs": num_envs, **changed, "seed": seed}
    return grid.named("ppo", flags, varied, updates, source, source.num_updates)


def cells() -> dict[Key, list[grid.Cell]]:
    """The branches, by game and arm."""
    arms = (UNCHANGED, MORE, SMALLER)
    return {(game, arm): [branch(game, arm, seed) for seed in SEEDS] for game in PARTS for arm in arms}


def judge(branches: Mapping[Key, Sequence[Curve]], sources: Mapping[str, Sequence[Curve]]) -> dict[str, Any]:
    """What the rules ask for. sources: the runs that the branches go on from, by game."""
    told: dict[str, Any] = {}
    for game, before in sources.items():
        curves = {arm: of_one for (of, arm), of_one in branches.items() if of == game}
        ends = {arm: [c.mean("returns", 0.9 * STEPS[game], STEPS[game]) for c in of] for arm, of in curves.items()}
        start = [c.mean("returns", 0.9 * c.steps[-1], c.steps[-1]) for c in before]
        checks = [
            verdicts.difference(
                f"return, {arm} less {UNCHANGED}, seed by seed", np.subtract(ends[arm], ends[UNCHANGED]), 0.0, above=0.0
            )
            for arm in (MORE, SMALLER)
        ]
        told[game] = {
            "checks": [check.stored() for check in checks],
            "return before, last tenth": start,
            "return, last tenth": ends,
            "mean": {"before": interval(start)} | {arm: interval(values) for arm, values in ends.items()},
            "of an update before, last tenth": {
                of: [c.mean(of, 0.9 * c.steps[-1], c.steps[-1]) for c in before] for of in ("own", "fresh", "entropy")
            },
        }
    return told


def draw(branches: Mapping[Key, Sequence[Curve]], sources: Mapping[str, Sequence[Curve]], out: Path) -> None:
    """Return over steps: the runs up to the branch, and each arm from there on, a line per seed and the median."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.9), layout="constrained")
    panels = figure.subplots(1, len(sources))
    for panel, (game, before) in zip(panels, sources.items(), strict=True):
        start = before[0].steps[-1]
        headline.course(panel, before, start, 24, "#440154", f"{SMALL} environments")
        for arm, colour in ((UNCHANGED, "#888888"), (SMALLER, "#E69F00"), (MORE, "#35B779")):
            curves = branches[game, arm]
            headline.course(panel, curves, curves[0].steps[-1], 24, colour, f"goes on: {arm}", after=start)
        headline.tidy(panel, f"{game}: learned with {SMALL} environments, {4 * PARTS[game]} gradient steps per update")
        panel.set_ylim(0, None)
    panels[0].set_ylabel("episode return")
    panels[0].legend(frameon=False, fontsize=9, loc="upper left")
    figure.savefig(out, dpi=110)


def main(args: headline.Args) -> None:
    """Makes what is missing, of the runs of experiments/inner.py too, and compares."""
    runs = cells()
    if not headline.made(args, *runs.values()):
        return
    curves = headline.curves(args, runs)
    sources = headline.curves(args, {game: [run.source for run in runs[game, UNCHANGED]] for game in PARTS})
    found = judge(curves, sources)
    print(json.dumps(results.rounded(found), indent=1))
    how = results.facts("resumed", "## Do policies on a plateau of noise go on?")
    kinds = {", ".join(key): of_one for key, of_one in runs.items()}
    draw(curves, sources, headline.write(args, "resumed", how, kinds, found))


if __name__ == "__main__":
    main(tyro.cli(headline.Args))
