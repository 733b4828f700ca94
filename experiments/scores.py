"""Scores runs over several games (0 is a random policy, 1 a human on Atari or a reference agent on MinAtar), with their
interquartile mean and its 95 % stratified bootstrap interval (Agarwal et al. 2021, through rliable).

    python -m experiments.scores runs/*            # any runs of any games, grouped by the flags in which they differ
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tyro
from tyro.conf import Positional

from common.run import plots
from common.run.arguments import UsageError
from experiments.verdicts import Check

REPETITIONS = 2000  # of the bootstrap
IQMS, MEANS = "difference of interquartile means over seeds and games", "difference of means over seeds and games"
INTERVAL = "95 % interval of a bootstrap that draws seeds anew within each game"
# The returns that score 0 (a random policy) and 1.
# Atari: random and human returns of Mnih et al. 2015 and Wang et al. 2016, with their no-op starts.
ATARI = {
    "Amidar": (5.8, 1719.5), "BattleZone": (2360.0, 37187.5), "Bowling": (23.1, 160.7), "Breakout": (1.7, 30.5),
    "DoubleDunk": (-18.6, -16.4), "Frostbite": (65.2, 4334.7), "KungFuMaster": (258.5, 22736.3),
    "NameThisGame": (2292.3, 8049.0), "Phoenix": (761.4, 7242.6), "Qbert": (163.9, 13455.0),
    "Riverraid": (1338.5, 17118.0), "MontezumaRevenge": (0.0, 4753.3),
}  # fmt: skip
# gymnax's Breakout has two start states and no other chance, its SpaceInvaders one and none: without sticky actions a
# policy could learn sequences by heart. MinAtar's own probability is 0.1. Asterix spawns at random and Freeway draws
# its cars' speeds, so they keep 0.
STICKY = {"Breakout-MinAtar": 0.1, "SpaceInvaders-MinAtar": 0.1}
# MinAtar has no human scores. 0 is a random policy, 1 what `ppo.py` reaches in 4,194,304 steps on average over ten
# seeds, both with STICKY's sticky actions: experiments/reference_scores.py has measured them.
MEASURED = Path(__file__).parents[1] / "results" / "minatar_scores.json"
MINATAR = {
    game: (found["random"]["mean"], found["reference"]["mean"])
    for game, found in (json.loads(MEASURED.read_text())["games"] if MEASURED.exists() else {}).items()
}
# Procgen, hard: the ranges in table 1 of Cobbe et al. 2020. Paper B does not say which two games it used.
PROCGEN = {"Bigfish": (0.0, 40.0), "Starpilot": (1.5, 35.0)}
# A random and an expert policy of Fu et al. 2020 (D4RL), of MuJoCo's tasks of version 2.
MUJOCO = {"HalfCheetah": (-280.2, 12135.0), "Walker2d": (1.6, 4592.3), "Ant": (-325.6, 3879.7)}
SCALES = {f"envpool/{game}Hard-v0": scale for game, scale in PROCGEN.items()}
SCALES |= {f"envpool/{task}-v5": scale for task, scale in MUJOCO.items()}
SCALES |= {f"envpool/{game}-v5": scale for game, scale in ATARI.items()}
SCALES |= MINATAR


def scale(env_id: str, sticky_actions: float = 0.0) -> tuple[float, float]:
    """Returns the episode returns that are scores 0 and 1 in this environment."""
    if env_id not in SCALES:
        raise UsageError(f"{env_id}: no scale for its returns in experiments/scores.py; there are {', '.join(SCALES)}")
    if sticky_actions != (known := STICKY.get(env_id, 0.0)):
        raise UsageError(f"{env_id} with --sticky-actions {sticky_actions:g}: its scale is for {known:g}, another game")
    return SCALES[env_id]


def aggregate(scores: np.ndarray, axis: int | None = None) -> np.ndarray:
    """Returns the interquartile mean: the mean without the lowest and the highest quarter."""
    from scipy.stats import trim_mean

    return trim_mean(scores, 0.25, axis=axis)


def bootstrap(statistic: Callable[..., np.ndarray], *scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Computes a statistic of one or more score matrices [seeds, games, ...] and its 95 % interval, by resampling seeds
    within each game. -> estimate, low, high, of the statistic's shape. Not finite if a score is missing."""
    estimate = np.atleast_1d(statistic(*scores))
    if not all(np.isfinite(x).all() for x in scores) or min(len(x) for x in scores) < 2:
        return estimate, *np.full((2, *estimate.shape), np.nan)
    library, before = rliable(), np.random.get_state()
    np.random.seed(0)  # rliable draws from the global generator, even if given a random_state
    try:
        _, interval = library.get_interval_estimates(
            {"x": scores[0] if len(scores) == 1 else scores}, lambda *x: np.atleast_1d(statistic(*x)), reps=REPETITIONS
        )
    finally:
        np.random.set_state(before)
    return estimate, *interval["x"]


def rliable():
    try:
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from rliable import library
    except ImportError:
        raise UsageError("intervals over games need rliable; pip install -r requirements-figures.txt") from None
    return library


def iqm(scores: np.ndarray) -> tuple[float, float, float]:
    """Returns the interquartile mean over seeds and games, and both ends of its interval. scores: [seeds, games]."""
    return tuple(float(x[0]) for x in bootstrap(aggregate, scores))


def contrast(
    what: str, statistic: Callable[..., float], *scores: np.ndarray, how: str, above: float | None = None,
    below: float | None = None,
) -> Check:  # fmt: skip
    """Checks a statistic of several score matrices [seeds, games]; `how` names it."""
    found = (float(x[0]) for x in bootstrap(statistic, *scores))
    return Check(what, *found, above, below, scores, f"{how}, {INTERVAL}")


def better(what: str, a: np.ndarray, b: np.ndarray, above: float | None = None, below: float | None = None) -> Check:
    """Checks the interquartile mean of a minus that of b."""
    statistic = lambda x, y: aggregate(x) - aggregate(y)  # noqa: E731
    return contrast(what, statistic, a, b, how=IQMS, above=above, below=below)


def higher(what: str, a: np.ndarray, b: np.ndarray, above: float | None = None, below: float | None = None) -> Check:
    """Checks the mean of a minus that of b, for values without a common scale."""
    return contrast(what, lambda x, y: x.mean() - y.mean(), a, b, how=MEANS, above=above, below=below)


def learned(what: str, scores: np.ndarray, above: float) -> Check:
    """Checks, as a premise, that an interquartile mean is above this: of runs that learn nothing, all are alike."""
    return contrast(what, aggregate, scores, how="interquartile mean", above=above)._replace(premise=True)


def main(runs: Positional[tuple[Path, ...]]) -> None:
    """Prints the interquartile mean scores of any runs.

    Args:
        runs: Folders of runs; those that differ only in game and seed share a row.
    """
    records, groups, runs = [], {}, tuple(dict.fromkeys(run.resolve() for run in runs))
    for run in runs:
        try:
            records.append(json.loads((run / "args.json").read_text()))
        except (OSError, ValueError):
            raise UsageError(f"{run}: not the folder of a run (it has no args.json)") from None
        if "env_id" not in records[-1]["args"]:
            raise UsageError(f"{run}: a run of {records[-1]['script']}.py has no game")
    for run, record, label in zip(runs, records, group_labels(records), strict=True):
        game = record["args"]["env_id"]
        low, high = scale(game, record["args"].get("sticky_actions", 0.0))
        values = plots.summarize(run).get("final_return")
        if values is None:
            raise UsageError(f"{run}: no episode has ended in it")
        final = np.array(values.get("seeds", [values["mean"]]), np.float64)
        groups.setdefault(label, {}).setdefault(game, []).extend((final - low) / (high - low))
    width = max(map(len, groups), default=0)
    for label, games in groups.items():
        seeds = {len(values) for values in games.values()}
        if len(seeds) > 1:
            counts = ", ".join(f"{game}: {len(values)}" for game, values in games.items())
            raise UsageError(f"{label or 'the runs'}: a different number of seeds for each game ({counts})")
        mean, low, high = iqm(np.array(list(games.values())).T)
        text = f"{mean:.3f} (95 % CI {low:.3f} to {high:.3f})" if np.isfinite(low) else f"{mean:.3f} (no interval)"
        number = seeds.pop()
        counts = f"{len(games)} game{'s' * (len(games) > 1)}, {number} seed{'s' * (number > 1)}"
        print(f"{label:<{width}}  {text}, {counts}")


def group_labels(records: Sequence[dict]) -> list[str]:
    """Labels each run with the flags in which the runs differ, apart from seeds and games. Sticky actions belong to the
    game (`scale` refuses others)."""
    flags = [{"script": record["script"], **record["args"]} for record in records]
    same = {*plots.BOOKKEEPING, "env_id", "sticky_actions", "num_seeds"}
    names = [name for name in dict.fromkeys(n for f in flags for n in f) if name not in same]
    differing = [name for name in names if any(f.get(name) != flags[0].get(name) for f in flags)]
    return [", ".join(f"{name} = {f.get(name)}" for name in differing) for f in flags]


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except UsageError as error:
        print(f"scores: error: {error}", file=sys.stderr)
        sys.exit(2)
