"""Compares what the two estimators of learnability select, by fresh rollouts of the same policy.

    python benchmarks/estimators.py runs/NAME           # a quarter of an hour; writes results/estimators.json

Each estimator keeps the best of the same random levels. The kept levels, and as many random ones, are then played again
for many episodes each, which shows their p and p (1 - p) without the luck that selection rewards. Intervals are 95 %
t-intervals over levels. `window` plays --learnability-steps 512 on a level, `episodes` as many episodes as given.
"""

import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro
from tyro.conf import Positional

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # as the scripts do, before jax is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P

import sfl_kinetix
from benchmarks import report
from common.run import checkpoints, devices
from common.run.plots import mean_and_ci

ESTIMATORS = {
    "window, 512 steps": {"learnability_estimator": "window"},
    "2 episodes": {"learnability_estimator": "episodes", "learnability_episodes": 2},
    "4 episodes": {"learnability_estimator": "episodes", "learnability_episodes": 4},
}


@dataclass(frozen=True)
class Args:
    run: Positional[str]
    """Run of sfl_kinetix.py whose policy plays, as RUN or RUN@UPDATE."""
    candidates: int = 1024
    """Random levels to choose from."""
    keep: int = 64
    """How many of them each estimator keeps."""
    episodes: int = 64
    """Fresh episodes on each level kept."""
    batch: int = 256
    """Levels played at a time."""
    out: Path = Path("results/estimators.json")
    """The file to write."""


def main(given: Args) -> None:
    folder, record, updates = checkpoints.find_checkpoint(given.run, "RUN")
    base = sfl_kinetix.Args(
        env_id=record["args"]["env_id"], network=record["args"]["network"], num_devices=1, buffer_size=given.keep,
        search_batch=given.batch, num_candidates=given.candidates, num_envs=2 * given.batch, num_steps=1,
    )  # fmt: skip
    devices.start(base)
    args, env, network, programs, keys = sfl_kinetix.build(base)
    params = programs.init(keys).learner.params
    like = {"learner": {"params": params}}
    params = checkpoints.restore_newest(folder, updates, like, f"RUN {given.run}", partial=True)[0]["learner"]["params"]
    mesh = Mesh(np.array(jax.devices()[:1]), ("device",))

    def make_scorer(args: Any) -> Any:
        def score(levels: jax.Array, key: jax.Array) -> tuple:
            return sfl_kinetix.play_levels(args, env, network, params, levels, key)

        return jax.jit(jax.shard_map(score, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False))

    # A stream that no run has: its own candidates would be levels on which it may have been trained.
    stream = [programs.sample(keys, sfl_kinetix.CANDIDATES - 1, i)[0] for i in range(given.candidates // given.batch)]
    levels, chosen, found = jnp.concatenate(stream), {}, {}
    for name, flags in ESTIMATORS.items():
        args = replace(base, **flags)
        score, parts = make_scorer(args), []
        jax.block_until_ready(score(stream[0], jax.random.key(99)))  # compiles
        began = time.perf_counter()
        for i, batch in enumerate(stream):
            rate, value = sfl_kinetix.learnability(args, *score(batch, jax.random.key(i)))
            parts.append(np.where(np.isfinite(rate), value + sfl_kinetix.TIE_BREAK * np.asarray(rate), -np.inf))
        values = np.concatenate(parts)
        chosen[name] = np.argsort(-values)[: given.keep]
        found[name] = {"seconds": time.perf_counter() - began, "estimate": float(values[chosen[name]].mean())}
        print(name, found[name], flush=True)
    chosen["random levels"] = np.arange(given.keep)
    found["random levels"] = {}

    fresh = replace(base, learnability_estimator="episodes", learnability_episodes=2)
    score, per_call = make_scorer(fresh), given.batch // given.keep
    for name, which in chosen.items():
        batch, successes, episodes = jnp.tile(levels[which], (per_call, 1)), 0, 0
        for i in range(-(-given.episodes // (2 * per_call))):
            won, ended = score(batch, jax.random.key(10_000 + i))
            successes = successes + np.asarray(won).reshape(per_call, -1).sum(0)
            episodes = episodes + np.asarray(ended).reshape(per_call, -1).sum(0)
        rate, value = sfl_kinetix.learnability(fresh, successes, episodes)
        mean, width = mean_and_ci(np.asarray(value))
        found[name] |= {
            "learnability": float(mean), "ci95": float(width), "success_rate": float(np.mean(rate)),
            "steady": float(np.mean((rate == 0) | (rate == 1))), "episodes": int(episodes[0]),
        }  # fmt: skip
        print(name, found[name], flush=True)
    run = {"command": record["command"], "update": updates[-1], "git_commit": record["git_commit"]}
    sizes = {"candidates": given.candidates, "kept": given.keep}
    report.write(given.out, report.record(jax=jax.__version__, run=run, found=found, **sizes))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__.split("\n\n")[0]))
