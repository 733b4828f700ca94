"""Is it the environments that keep a policy from a plateau, or the gradient steps of an update?

    python -m experiments.inner               # makes the missing runs, then results/inner.json and inner.png
    python -m experiments.inner --dry-run     # prints the commands

With minibatches of one size, as in experiments/headline.py, more environments also mean more gradient steps between two
rollouts. Here both vary: 64, 512 and 4,096 environments, each with 1, 8 and 64 minibatches, and all else the same. The
rules are in experiments/PREREGISTERED.md.
"""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from experiments import entropy, grid, headline, results, stuck, verdicts
from experiments.entropy import BREAKOUT, LEVELS, SHORT
from experiments.headline import HALF, SEEDS, SIZES, STEPS, Curve

MINIBATCHES = (1, 8, 64)  # of an epoch; there are four epochs
PARTS = dict(zip(SIZES, MINIBATCHES, strict=True))  # those with minibatches of 2,048: the headline's
SMALL, MIDDLE, LARGE = SIZES
FEW, SOME, MANY = MINIBATCHES
ASTERIX = "Asterix"
SHARE = 0.25  # of what LARGE with MANY keep beyond SMALL with FEW
OTHERS = ((SMALL, FEW), (SMALL, MANY), (MIDDLE, FEW), (LARGE, MANY))  # on the other games

Key = tuple[str, int, int]  # game, environments, minibatches


def cell(key: Key, seed: int) -> grid.Cell:
    """One run of one seed. Runs on Breakout with one minibatch are as long as the headline's, because with many
    environments they are slow; the others have half of its steps."""
    game, num_envs, parts = key
    if PARTS[num_envs] == parts:
        return entropy.cell((game, num_envs, SHORT), seed)
    length = {"steps": STEPS if parts == FEW else HALF} if game == BREAKOUT else {}
    return entropy.cell((game, num_envs, SHORT), seed, **length, num_minibatches=parts)


def cells() -> dict[Key, list[grid.Cell]]:
    """All runs, by game, environments and minibatches."""
    keys = [(BREAKOUT, *sizes) for sizes in itertools.product(SIZES, MINIBATCHES)]
    keys += [(game, *sizes) for game in LEVELS if game != BREAKOUT for sizes in OTHERS]
    return {key: [cell(key, seed) for seed in SEEDS] for key in keys}


def slower() -> list[grid.Cell]:
    """The runs of Asterix with the smallest minibatches and a tenth of the learning rate."""
    flags = {"num_minibatches": MANY, "learning_rate": 1e-4}
    return [entropy.cell((ASTERIX, SMALL, SHORT), seed, **flags) for seed in SEEDS]


def end(key: Key) -> float:
    """Up to which step a run counts."""
    return STEPS if key[0] == BREAKOUT and key[2] == FEW else entropy.STEPS[key[0]]


def clipped(curve: Curve, level: float, last: float) -> float:
    """The share of samples beyond the clip range, the mean over the run until the return first reaches the level; NaN
    if it does not."""
    returns, _ = entropy.windows(curve, last)
    reached = np.flatnonzero(returns >= level)
    return curve.mean("clipfrac", 0, (reached[0] + 1) * entropy.WINDOW) if reached.size else np.nan


def less(what: str, values: Mapping[Key, list[float]], a: Key, b: Key, **wanted: float) -> verdicts.Check:
    name = f"{what}, {spelled(a)} less {spelled(b)}"
    return verdicts.difference(name, np.asarray(values[a]), np.asarray(values[b]), **wanted)


def of_entropy(kept: Mapping[Key, list[float]]) -> dict[str, list[verdicts.Check]]:
    """The checks of the first two claims. kept: the entropy at the level, of each seed."""
    gap = {game: np.mean(kept[game, LARGE, MANY]) - np.mean(kept[game, SMALL, FEW]) for game in LEVELS}
    more_steps = [
        less("entropy", kept, (BREAKOUT, n, more), (BREAKOUT, n, fewer), above=0.0)
        for n in SIZES
        for fewer, more in itertools.pairwise(MINIBATCHES)
    ]
    more_envs = [
        less("entropy", kept, (BREAKOUT, LARGE, m), (BREAKOUT, SMALL, m), below=SHARE * gap[BREAKOUT])
        for m in MINIBATCHES
    ]
    for game in LEVELS:
        if game != BREAKOUT:
            more_steps.append(less("entropy", kept, (game, SMALL, MANY), (game, SMALL, FEW), above=0.0))
            below = SHARE * gap[game]
            more_envs.append(less("entropy", kept, (game, MIDDLE, FEW), (game, SMALL, FEW), below=below))
    return {"more gradient steps keep more entropy": more_steps, "more environments do not": more_envs}


def of_returns(
    ends: Mapping[Key, list[float]], unchanged: list[float], freed: list[float], gentle: list[float]
) -> dict[str, list[verdicts.Check]]:
    """The checks of the other claims. ends: returns of each seed; the others: those of stuck policies that go on
    unchanged or with MANY minibatches, and of `slower`."""
    higher = [less("return", ends, (BREAKOUT, SMALL, m), (BREAKOUT, SMALL, FEW), above=0.0) for m in (SOME, MANY)]
    still = [less("return", ends, (BREAKOUT, LARGE, m), (BREAKOUT, SMALL, m), above=0.0) for m in (SOME, MANY)]
    bar = 0.5 * float(np.mean(ends[BREAKOUT, SMALL, MANY]) - np.mean(ends[BREAKOUT, SMALL, FEW]))
    usual = np.array(ends[ASTERIX, SMALL, MANY])
    half = 0.5 * float(np.mean(ends[ASTERIX, LARGE, MANY]) - usual.mean())
    free = verdicts.difference("return, seed by seed", np.subtract(freed, unchanged), 0.0, above=bar)
    rate = verdicts.difference("return, 1e-4 less 1e-3", np.array(gentle), usual, above=half)
    return {
        "64 environments with more gradient steps end higher": higher,
        "with as many gradient steps more environments still end higher": still,
        "more gradient steps free a stuck policy": [free],
        "the plateau of Asterix is mostly that of the learning rate": [rate],
    }


def judge(curves: Mapping[Key, Sequence[Curve]], branches: Sequence[Curve], gentle: Sequence[Curve]) -> dict[str, Any]:
    """What the rules ask for. branches: the stuck policies that go on with MANY minibatches; gentle: `slower`."""

    def each(what: Callable[[Curve, float], Any]) -> dict[str, list[Any]]:
        return {spelled(key): [what(c, entropy.STEPS[key[0]]) for c in of] for key, of in curves.items()}

    late = lambda of: lambda c, last: c.mean(of, 0.9 * last, last)  # noqa: E731
    kept = {key: [entropy.entropy_at(c, LEVELS[key[0]], end(key)) for c in of_one] for key, of_one in curves.items()}
    ends = {key: [late("returns")(c, entropy.STEPS[key[0]]) for c in of_one] for key, of_one in curves.items()}
    last = entropy.STEPS[ASTERIX]
    unchanged = [c.mean("returns", STEPS - 0.1 * HALF, STEPS) for c in curves[BREAKOUT, SMALL, FEW]]
    freed = [late("returns")(c, HALF) for c in branches]
    gained = [late("returns")(c, last) for c in gentle]
    checks = of_entropy(kept) | of_returns(ends, unchanged, freed, gained)
    own, fresh = each(late("own")), each(late("fresh"))
    quarter = lambda c, last, q: c.mean("returns", (q - 1) * last / 4, q * last / 4)  # noqa: E731
    return {
        "levels": LEVELS,
        "outcomes": {claim: verdicts.together([check.outcome for check in of]) for claim, of in checks.items()},
        "checks": {claim: [check.stored() for check in of] for claim, of in checks.items()},
        "entropy when the return first reaches the level": {spelled(key): values for key, values in kept.items()},
        "share of samples beyond the clip range until then": {
            spelled(key): [clipped(c, LEVELS[key[0]], end(key)) for c in of_one] for key, of_one in curves.items()
        },
        "return, last tenth": {spelled(key): values for key, values in ends.items()},
        "weight norm, last tenth": each(late("weight_norm")),
        "growth from third to last quarter": each(lambda c, last: quarter(c, last, 4) / quarter(c, last, 3) - 1),
        "gains of an update, last tenth: own, fresh": {key: [own[key], fresh[key]] for key in own},
        "return of runs with one minibatch after all steps, last tenth": {
            spelled((BREAKOUT, n, FEW)): [late("returns")(c, STEPS) for c in curves[BREAKOUT, n, FEW]] for n in SIZES
        },
        "of stuck policies with 64 minibatches": {
            "return, last tenth": freed,
            "first million steps above 7": [stuck.left(c, 0.0) for c in branches],
        },
        "of Asterix with a learning rate of 1e-4": {
            "return, last tenth": gained,
            "return, quarters": [[quarter(c, last, q) for c in gentle] for q in (1, 2, 3, 4)],
            "gains of an update, last tenth: own, fresh": [
                [late(of)(c, last) for c in gentle] for of in ("own", "fresh")
            ],
        },
    }


def spelled(key: Key) -> str:
    game, num_envs, parts = key
    return f"{game}, {num_envs} environments, {parts} minibatch{'es' * (parts > 1)}"


def draw(curves: Mapping[Key, Sequence[Curve]], out: Path) -> None:
    """Return over steps: Breakout with few gradient steps per update, then all three games with many. On the other
    games few are dashed. Thick lines are medians."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.5, 3.9), layout="constrained")
    panels = figure.subplots(1, 1 + len(LEVELS))
    colours = dict(zip(SIZES, colormaps["viridis"]([0.0, 0.45, 0.8]), strict=True))
    few, many = (4 * parts for parts in (FEW, MANY))  # gradient steps: there are four epochs
    shown = [(BREAKOUT, FEW), *((game, MANY) for game in LEVELS)]

    def line(panel: Any, key: Key, style: str, label: str) -> None:
        headline.course(panel, curves[key], entropy.STEPS[key[0]], 48, colours[key[1]], label, style)

    for panel, (game, parts) in zip(panels, shown, strict=True):
        for num_envs in SIZES if game == BREAKOUT else (SMALL, LARGE):
            line(panel, (game, num_envs, parts), "-", f"{num_envs:,} environments")
        if game != BREAKOUT:
            line(panel, (game, SMALL, FEW), "--", f"{SMALL}, {few} gradient steps")
        headline.tidy(panel, f"{game}, {few if parts == FEW else many} gradient steps")
        panel.set_ylim(0, 35 if game == BREAKOUT else None)
    panels[0].set_ylabel("episode return")
    for panel in (panels[0], panels[-1]):
        panel.legend(frameon=False, fontsize=9, loc="upper left")
    panels[-1].set_ylim(top=1.3 * panels[-1].get_ylim()[1])  # room for the legend
    figure.savefig(out, dpi=110)


def main(args: headline.Args) -> None:
    """Makes what is missing, of the runs of the other experiments too, and compares."""
    runs, freed = cells(), [stuck.branch(SMALL, seed, num_minibatches=MANY) for seed in SEEDS]
    gentle = slower()
    if not headline.made(args, *runs.values(), freed, gentle):
        return
    curves = headline.curves(args, runs)
    found = judge(curves, *headline.curves(args, {"freed": freed, "gentle": gentle}).values())
    print(json.dumps(results.rounded(found["outcomes"]), indent=1))
    how = results.facts("inner", "## Environments or gradient steps?", "## Is it the learning rate?")
    kinds = {spelled(key): of_one for key, of_one in runs.items()}
    kinds |= {"stuck policies with 64 minibatches": freed, "Asterix with a learning rate of 1e-4": gentle}
    draw(curves, headline.write(args, "inner", how, kinds, found))


if __name__ == "__main__":
    main(tyro.cli(headline.Args))
