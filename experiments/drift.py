"""Does a policy get anywhere, and does what its updates promise come true? Going on from a checkpoint, unchanged.

    python -m experiments.drift runs/mine@6144 --updates 512 --seeds 0       # prints two lines per seed

D_m is the mean KL(pi_{t-m} || pi_t) on the same observations. A policy that goes steadily one way makes it grow as m^2,
a random walk as m, one that circles not at all (for SGD: Pesme, Dieuleveut and Flammarion 2020, arXiv 2007.00534). What
the updates promise is the sum of their gains on fresh transitions, in units of the return.
"""

import itertools
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import tyro
from scipy.special import stdtrit
from tyro.conf import Positional

from common.run import devices
from common.run.arguments import UsageError
from common.run.tracking import say
from experiments import how_many, records, results
from experiments.headline import Interval, interval

BLOCKS = 8  # of a window, whose means give the return's slope and its error
ENDS = 8  # policies pi_t at which D_m is measured, over the window's last half
OBSERVATIONS = 4096


class Window(NamedTuple):
    """What one seed did over `updates` updates: values per update [updates]; params: before the first and after each
    update; obs: observations of the last update, with the statistics that normalise them."""

    returns: np.ndarray
    promised: np.ndarray  # by the fresh gain: episode length x gain x standard deviation of the advantages
    params: list[Any]
    obs: Any
    obs_stats: Any


def go_on(run: str, seed: int, updates: int) -> tuple[Any, Any, Window]:
    """Train `updates` updates from the checkpoint RUN or RUN@UPDATE. -> script, network, what happened."""
    script, args, folder, found = how_many.find(run)
    how_many.check_seed("--seeds", seed, args, run)
    devices.start(args)
    start, update = how_many.restore(script, args, folder, found, seed, run)
    one = {"num_seeds": 1, "num_devices": 1, "total_timesteps": updates * args.batch_size}
    program = how_many.Program(script, replace(records.with_rate_of(args, update, start.learning_rate), **one))
    state = program.start(start.learner, start.environments, seed, start.learner.params)
    params, rows = [jax.device_get(state.learner.params)], []
    for _ in range(updates):
        state, metrics, sample = program.step(state)
        spread = float(sample.batch.advantage.std())
        names = ("charts/episodic_return", "charts/episodic_length", "outer/fresh_gain")
        score, length, gain = (float(metrics[name]) for name in names)
        rows.append((score, length, spread, gain))
        params.append(jax.device_get(state.learner.params))
    returns, lengths, spreads, gains = np.array(rows).T
    # The gain that an update's successor measures is the update's own; the first one has none.
    gains = np.append(gains[1:], np.nan)
    obs = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:OBSERVATIONS], sample.batch.obs)
    promised = np.nanmean(lengths) * gains * spreads
    return program.args, (script, program.network), Window(returns, promised, params, obs, sample.obs_stats)


def distances(args: Any, policy: Any, window: Window) -> dict[int, float]:
    """m -> D_m, for powers of two up to half of the window, a mean over ENDS policies."""
    script, network = policy
    dist = partial(script.forward, args, network, window.obs_stats)
    kl = jax.jit(lambda old, new: dist(old, window.obs)[0].kl(dist(new, window.obs)[0]).mean())
    updates = len(window.params) - 1
    ends = np.linspace(updates - updates // 2, updates, ENDS).astype(int)
    sizes = [2**i for i in range((updates // 2).bit_length())]
    return {m: float(np.mean([kl(window.params[t - m], window.params[t]) for t in ends])) for m in sizes}


def exponent(found: dict[int, float]) -> float:
    """How D_m grows with m over its last factor of four: 2 is steady progress, 1 a random walk, 0 circling."""
    sizes = sorted(found)
    return float(np.log(found[sizes[-1]] / found[sizes[-3]]) / np.log(sizes[-1] / sizes[-3]))


def change(values: np.ndarray) -> Interval:
    """What the values rise by over the window: a straight line through BLOCKS means of equally long blocks."""
    means = np.array([np.nanmean(block) for block in np.array_split(values, BLOCKS)])
    x = (np.arange(BLOCKS) - (BLOCKS - 1) / 2) / BLOCKS
    slope = (x @ means) / (x @ x)
    residual = means - means.mean() - slope * x
    error = np.sqrt(residual @ residual / (BLOCKS - 2) / (x @ x))
    width = float(stdtrit(BLOCKS - 2, 0.975) * error)
    return Interval(float(slope), float(slope) - width, float(slope) + width)


def judge(windows: dict[str, Any]) -> dict[str, Any]:
    """The statistics of experiments/PREREGISTERED.md over windows, which climb if their rise is surely above 0."""
    climbing = [x for x in windows.values() if x["rise"]["low"] > 0]
    standing = [x for x in windows.values() if not x["rise"]["low"] > 0]
    ratios = [x["rise"]["mean"] / x["promised"]["mean"] for x in climbing]
    return {
        "climbing windows": len(climbing),
        "of them with an exponent above 1": sum(x["exponent"] > 1 for x in climbing),
        "standing windows": len(standing),
        "of them with an exponent of at most 1": sum(x["exponent"] <= 1 for x in standing),
        "rise / promised, median of the climbing ones": float(np.median(ratios)) if ratios else None,
    }


def main(
    runs: Positional[tuple[str, ...]], updates: int = 256, seeds: tuple[int, ...] = (0,), out: Path | None = None
) -> None:
    """Goes on from checkpoints and prints how far the policies got, and how much of what was promised came true.

    Args:
        runs: RUN or RUN@UPDATE, of ppo.py or ppo_ewma.py.
        updates: Length of the window, a power of two.
        seeds: Which seeds of a run of several.
        out: A JSON file, to which the results are added.
    """
    if updates < 8:
        raise UsageError(f"--updates {updates}: must be at least 8")
    before = json.loads(out.read_text()) if out and out.exists() else {"commands": [], "results": {}}
    found_so_far = before["results"]
    for run, seed in itertools.product(runs, seeds):
        args, policy, window = go_on(run, seed, updates)
        found, rise = distances(args, policy, window), change(window.returns)
        # Per update, so that the first one's missing gain is as large as the mean of the others.
        promised = Interval(*(updates * value for value in interval(window.promised[:-1])))
        say(
            f"{run}, seed {seed}: return {np.nanmean(window.returns):.3g}, rises by {rise.mean:.3g} ({rise.low:.3g} to "
            f"{rise.high:.3g}), promised {promised.mean:.3g} ({promised.low:.3g} to {promised.high:.3g}); "
            f"D_m grows as m^{exponent(found):.2f}"
        )
        found_so_far[f"{Path(run).name}, seed {seed}"] = {
            "num_envs": args.num_envs,
            "updates": updates,
            "return": float(np.nanmean(window.returns)),
            "rise": rise._asdict(),
            "promised": promised._asdict(),
            "exponent": exponent(found),
            "D_m": found,
        }
        if out:
            how = results.facts("drift", "## Two more statistics of a standstill")
            how["commands"] = [*before["commands"], how.pop("command")]
            results.write(out, how | {"judged": judge(found_so_far), "results": found_so_far})


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except UsageError as error:
        print(f"drift: error: {error}", file=sys.stderr)
        sys.exit(2)
