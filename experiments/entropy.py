"""What do few environments lose? The policy's entropy at the time when the return first reaches a level.

    python -m experiments.entropy               # makes the missing runs, then results/entropy.json and entropy.png
    python -m experiments.entropy --dry-run     # prints the commands

Three sizes on three games, all `python ppo.py` with its defaults, and with sticky actions where a game has no other
chance. On Breakout they are those of experiments/headline.py, and there are rollouts as large as theirs from 64
environments. The rules are in experiments/PREREGISTERED.md.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from experiments import grid, headline, results, verdicts
from experiments.headline import HALF, SEEDS, SIZES, Curve

BREAKOUT = "Breakout"
LEVELS = {BREAKOUT: 5.0, "SpaceInvaders": 24.0, "Asterix": 1.4}  # returns: below the plateau; a quarter of score 1
STEPS = {BREAKOUT: HALF, "SpaceInvaders": 2**23, "Asterix": 2**23}  # up to which runs are compared
WINDOW = 2**17  # environment steps over which return and entropy are averaged: a rollout of the largest size
SHORT, *LONGER = headline.NUM_STEPS, 256, 2048  # steps per rollout; the longer ones make rollouts as large as SIZES'

Key = tuple[str, int, int]  # game, environments, steps per rollout


def cell(key: Key, seed: int, **changed: Any) -> grid.Cell:
    """One run of one seed."""
    game, num_envs, num_steps = key
    if (game, num_steps) == (BREAKOUT, SHORT):
        return headline.cell(num_envs, seed, **changed)
    flags: dict[str, Any] = {"env_id": f"{game}-MinAtar", "sticky_actions": 0.0 if game == "Asterix" else 0.1}
    flags |= {"num_envs": num_envs, "num_steps": num_steps, "total_timesteps": STEPS[game], "seed": seed}
    flags |= {"num_eval_episodes": 0, "log_every": max(1, WINDOW // (2 * num_envs * num_steps))}
    varied = {"entropy": game, "envs": num_envs, "steps": num_steps, **changed, "seed": seed}
    flags |= headline.inner_loop(changed) | changed
    return grid.named("ppo", flags, varied, STEPS[game] // (num_envs * num_steps))


def cells() -> dict[Key, list[grid.Cell]]:
    """All runs, by game, environments and steps per rollout."""
    keys = [(game, num_envs, SHORT) for game in LEVELS for num_envs in SIZES]
    keys += [(BREAKOUT, SIZES[0], num_steps) for num_steps in LONGER]
    return {key: [cell(key, seed) for seed in SEEDS] for key in keys}


def windows(curve: Curve, end: float) -> tuple[np.ndarray, np.ndarray]:
    """Return and entropy, each the mean over the lines of a window. -> [windows that have a line]"""
    index = np.ceil(curve.steps / WINDOW)
    used = [index == i for i in np.unique(index[curve.steps <= end])]
    pick = lambda values: np.array([np.nanmean(values[lines]) for lines in used])  # noqa: E731
    return pick(curve.returns), pick(curve.entropy)


def entropy_at(curve: Curve, level: float, end: float) -> float:
    """Of the first window whose return is at least the level; NaN if there is none."""
    returns, entropy = windows(curve, end)
    reached = np.flatnonzero(returns >= level)
    return float(entropy[reached[0]]) if reached.size else np.nan


def judge(curves: Mapping[Key, Sequence[Curve]]) -> dict[str, Any]:
    """What the rules ask for."""
    found = {key: [entropy_at(c, LEVELS[key[0]], STEPS[key[0]]) for c in of_one] for key, of_one in curves.items()}
    ends = {
        key: [c.mean("returns", 0.9 * STEPS[key[0]], STEPS[key[0]]) for c in of_one] for key, of_one in curves.items()
    }
    small = SIZES[0]
    sizes = [
        # On Breakout it had been seen before the rule.
        less("entropy", found, (game, more, SHORT), (game, fewer, SHORT), None if game == BREAKOUT else 0.0)
        for game in LEVELS
        for fewer, more in itertools.pairwise(SIZES)
    ]
    rollouts = [(BREAKOUT, small, num_steps) for num_steps in (SHORT, *LONGER)]
    data = [less("entropy", found, b, a, 0.0) for a, b in itertools.pairwise(rollouts)]
    as_large = [((BREAKOUT, n, SHORT), key) for n, key in zip(SIZES[1:], rollouts[1:], strict=True)]
    envs = [less("entropy", found, many, few, None) for many, few in as_large]
    gain = [less("return", ends, rollouts[-1], rollouts[0], 0.0)]
    reported = [less("return", ends, many, few, None) for many, few in as_large]
    name = lambda keyed: {spelled(key): value for key, value in keyed.items()}  # noqa: E731
    return {
        "levels": LEVELS,
        "checks": {
            kind: [check.stored() for check in checks]
            for kind, checks in {
                "more environments": sizes,
                "more data of 64 environments": data,
                "more environments with as much data": envs,
                "return with more data of 64 environments": gain,
                "return with more environments with as much data": reported,
            }.items()
        },
        "entropy when the return first reaches the level": name(found),
        "return, last tenth": name(ends),
    }


def spelled(key: Key) -> str:
    game, num_envs, num_steps = key
    return f"{game}, {num_envs} × {num_steps}"


def less(what: str, values: Mapping[Key, list[float]], a: Key, b: Key, above: float | None) -> verdicts.Check:
    return verdicts.difference(
        f"{what}, {spelled(a)} less {spelled(b)}", np.asarray(values[a]), np.asarray(values[b]), above=above
    )


def draw(curves: Mapping[Key, Sequence[Curve]], out: Path) -> None:
    """Return against entropy, a panel for each game: every run's path, from much entropy at the left to little."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    panels = figure.subplots(1, len(LEVELS))
    colours = dict(zip(SIZES, colormaps["viridis"]([0.0, 0.45, 0.8]), strict=True))
    for panel, (game, level) in zip(panels, LEVELS.items(), strict=True):
        for key, of_one in curves.items():
            if key[0] != game:
                continue
            style, colour = ("-", colours[key[1]]) if key[2] == SHORT else ("--", ["#56B4E9", "#0072B2"][key[2] > 256])
            for seed, curve in enumerate(of_one):
                returns, entropy = windows(curve, STEPS[game])
                label = f"{key[1]:,} environments × {key[2]:,} steps" if seed == 0 else None
                panel.plot(entropy, returns, style, color=colour, linewidth=0.8, alpha=0.8, label=label)
        panel.axhline(level, color="#888888", linewidth=1, linestyle=":")
        headline.tidy(panel, game, "entropy of the policy (nats)")
        panel.invert_xaxis()
        panel.set_ylim(bottom=0)
    panels[0].set_ylim(top=1.4 * panels[0].get_ylim()[1])  # room for the legend
    panels[0].set_ylabel("episode return")
    panels[0].legend(frameon=False, fontsize=8, loc="upper left")
    figure.savefig(out, dpi=110)


def main(args: headline.Args) -> None:
    """Makes what is missing, of the headline's runs too, and compares."""
    runs = cells()
    if not headline.made(args, *runs.values()):
        return
    curves = headline.curves(args, runs)
    found = judge(curves)
    print(json.dumps(results.rounded(found), indent=1))
    how = results.facts("entropy", "## What few environments lose")
    kinds = {spelled(key): of_one for key, of_one in runs.items()}
    draw(curves, headline.write(args, "entropy", how, kinds, found))


if __name__ == "__main__":
    main(tyro.cli(headline.Args))
