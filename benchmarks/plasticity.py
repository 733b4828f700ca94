"""Measures what --plasticity-every costs: the time of a measurement beside that of an update.

    python benchmarks/plasticity.py                               # writes results/plasticity.json

The reported share is of the time of a training run that measures every 10 updates, the default. Every update gathers
the sample for a measurement, whether or not one follows, so its time includes that.
"""

import importlib
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # as the scripts do, before jax is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax

from benchmarks import report
from common.run import devices

# Script and flags: the defaults, a control task's network and batch, paper B's smallest batch, a CNN.
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo.py, Breakout-MinAtar, 2048 x 32": ("ppo", {}),
    "ppo_ewma.py, Breakout-MinAtar, 2048 x 32": ("ppo_ewma", {}),
    "pqn.py, Breakout-MinAtar, 2048 x 32": (
        "pqn",
        {"num_envs": 2048, "minibatch_size": 2048, "update_epochs": 4, "network": "mlp"},
    ),
    "ppo.py, CartPole-v1, 1024 x 128": ("ppo", {"env_id": "CartPole-v1", "num_envs": 1024, "num_steps": 128}),
    "ppo.py, Breakout-MinAtar, 8 x 128, 4 minibatches": (
        "ppo",
        {"num_envs": 8, "num_steps": 128, "num_minibatches": 4},
    ),
    "ppo.py, Breakout-MinAtar, CNN, 64 x 32": ("ppo", {"network": "cnn", "num_envs": 64, "minibatch_size": 256}),
}


@dataclass(frozen=True)
class Args:
    out: Path = Path("results/plasticity.json")
    """The file to write."""
    repetitions: int = 15
    """How many times to measure; the median is reported."""


def measure(script: str, flags: dict[str, Any], repetitions: int) -> dict[str, Any]:
    module = importlib.import_module(script)
    args, _, _, init, step, measured, keys = module.build(module.Args(total_timesteps=10**12, **flags))
    state = jax.jit(init)(keys)
    step, measured, seconds = jax.jit(step, donate_argnums=0), jax.jit(measured), {"update": [], "measurement": []}
    for _ in range(repetitions + 1):
        began = time.perf_counter()
        state, _, probe = jax.block_until_ready(step(state))
        between = time.perf_counter()
        jax.block_until_ready(measured(state.learner, probe))
        seconds["update"].append(between - began)
        seconds["measurement"].append(time.perf_counter() - between)
    update, one = (statistics.median(times[1:]) for times in seconds.values())  # the first one compiles
    every = args.plasticity_every
    return {"update_s": update, "measurement_s": one, "every": every, "share": one / (every * update + one)}


def main(args: Args) -> None:
    devices.start(importlib.import_module("ppo").Args())
    settings = {}
    for name, (script, flags) in SETTINGS.items():
        found = measure(script, flags, args.repetitions)
        settings[name] = {key: float(f"{value:.3g}") for key, value in found.items()}
        print(
            f"{name:50s} update {1e3 * found['update_s']:8.1f} ms, measurement {1e3 * found['measurement_s']:6.1f} ms, "
            f"{100 * found['share']:.2f} % of the time",
            flush=True,
        )
    report.write(args.out, report.record(jax=jax.__version__, settings=settings))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__.split("\n\n")[0]))
