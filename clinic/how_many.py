"""How many environments does a run need? Single updates from a checkpoint, each judged on fresh transitions.

To first order an update on n transitions gains |g|^2 + s^2 / n on its own data and |g|^2 on fresh data, where g is the
gradient that it follows and s^2 the variance of one transition's part in it: fresh / own is the share of signal
(McCandlish et al. 2018, https://arxiv.org/abs/1812.06162, have this of a gradient). The training does not go on.
"""

import importlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from clinic import records
from common import metrics
from common.envs import on_host
from common.run import arguments, checkpoints, devices, memory
from common.run.arguments import UsageError

FACTORS = (0.25, 1, 4, 16, 64)  # of the run's environments
KEYS = 4  # updates per number of environments
SAMPLE = 2**18  # transitions on which gains are measured: of an update all, if it has no more; fresh ones as many
CHUNK = 2**21  # transitions that are collected at once
Say = Callable[[str], None]


class Point(NamedTuple):
    """What single updates with so many environments gained, on average, in standard deviations of the advantage."""

    num_envs: int
    transitions: int
    own: float
    fresh: float
    width: float  # half of the 95 % interval of the fresh gain
    kl: float
    seconds: float  # of one update, on this machine

    @property
    def signal(self) -> float:
        """How much of the update is signal."""
        return self.fresh / self.own


def measure(run: str, values: Sequence[int], say: Say) -> list[Point]:
    """Makes single updates for each number of environments, from the checkpoint RUN or RUN@UPDATE: KEYS of them, and up
    to 16 x as many where the update is smaller than the run's. Of a run of several seeds it measures the first."""
    folder, record, updates = checkpoints.find_checkpoint(run, "--how-many")
    args, script = records.branched(record, f"--how-many: {run}"), importlib.import_module(record["script"])
    if on_host(args.env_id):
        raise UsageError(
            f"--how-many: {args.env_id} of {run} runs on the host, and cannot be restored from a checkpoint"
        )
    if any(value <= 0 for value in values):
        raise UsageError(f"--values {' '.join(map(str, values))}: must be greater than 0")
    devices.start(args)
    learner, environments, update = restore(script, args, folder, updates, f"--how-many {run}")
    left = 1 - update / args.num_updates or 1.0  # of what falls to 0; at the end of a run as at its start
    rate, bonus = args.learning_rate * (left if args.anneal_lr else 1), args.ent_coef * (left if args.anneal_ent else 1)
    args = replace(args, num_seeds=1, num_devices=1, learning_rate=rate, ent_coef=bonus)
    settings = [resized(args, value) for value in values or [factor * args.num_envs for factor in FACTORS]]
    points: list[Point] = []
    before = metrics.KL_SAMPLE, metrics.PLASTICITY_SAMPLE
    metrics.KL_SAMPLE = metrics.PLASTICITY_SAMPLE = SAMPLE  # on so many transitions the script measures its updates
    try:
        # The script's own update, for its measurements; what it learns is thrown away.
        judge = Program(script, resized(replace(args, update_epochs=1), SAMPLE // args.num_steps))
        for changed in {changed.num_envs: changed for changed in settings}.values():
            program, free = Program(script, changed), memory.device_bytes(jax.local_devices()[:1])
            if program.bytes > free:
                need = f"an update would need {program.bytes / 1e9:.1f} GB of the {free / 1e9:.1f} GB available"
                say(f"{changed.num_envs:,} environments are left out: {need}")
                continue
            count = KEYS * min(16, max(1, round(args.batch_size / changed.batch_size)))
            points.append(p := single_updates(program, judge, learner, environments, count))
            say(f"{p.num_envs:,} environments: own gain {p.own:.2g}, fresh {p.fresh:.2g} ± {p.width:.2g}")
    finally:
        metrics.KL_SAMPLE, metrics.PLASTICITY_SAMPLE = before
    if not points:
        raise UsageError(f"--how-many {run}: no number of environments fits; --values names smaller ones")
    return points


def restore(script: ModuleType, args: Any, folder: Any, updates: list[int], where: str) -> tuple[Any, Any, int]:
    """The newest intact checkpoint among `updates`, as NumPy arrays, of its first seed. -> learner, environments, its
    update."""
    _, _, _, init, _, _, keys = script.build(replace(args, num_devices=1))
    shapes, here = jax.eval_shape(init, keys), jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    like = {name: getattr(shapes, name) for name in ("learner", "environments")}
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), like)
    state, update = checkpoints.restore_newest(folder, updates, like, where, partial=True)
    if args.num_seeds > 1:
        state = jax.tree.map(lambda x: x[0], state)
    environments = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), state["environments"])
    return *jax.device_get((state["learner"], environments)), update


def resized(args: Any, num_envs: float) -> Any:
    """The arguments with about as many environments, in parts that fit into memory."""
    each = args.minibatch_size // math.gcd(args.minibatch_size, args.num_steps)
    num_envs = max(1, round(num_envs / each)) * each
    minibatches = num_envs * args.num_steps // args.minibatch_size
    fits = lambda c: num_envs * args.num_steps <= c * CHUNK and num_envs % c == 0  # noqa: E731
    chunks = next((c for c in arguments.divisors(minibatches) if fits(c)), 1)
    sizes = {"num_envs": num_envs, "num_minibatches": minibatches, "num_rollout_chunks": chunks}
    return replace(args, **sizes, total_timesteps=num_envs * args.num_steps)


class Program:
    """A script's update for some arguments, as its own `build` makes it."""

    def __init__(self, script: ModuleType, args: Any):
        self.args, _, _, init, step, _, keys = script.build(args)
        self._state, self._step = script.TrainState, memory.compile_update(init, step, keys)[1]
        self.bytes = sum(memory.needed(self._step))

    def update(self, learner: Any, environments: Any, key: int, previous: Any = None) -> tuple[Any, dict, float]:
        """One update from a learner, in copies of the environments [n, ...]. -> learner, metrics, seconds."""
        args, shape = self.args, (self.args.num_rollout_chunks, -1)
        there = len(jax.tree.leaves(environments)[0])
        copies = np.random.default_rng(key).permutation(max(there, args.num_envs))[: args.num_envs] % there
        spread = jax.tree.map(lambda x: x[copies].reshape(*shape, *x.shape[1:]), environments)
        previous = learner.params if previous is None else previous
        # Copies: the program takes over the memory of its state, and JAX does not copy NumPy's by itself.
        state = jax.tree.map(jnp.array, self._state(learner, spread, jax.random.key(key), np.int32(0), previous))
        state = jax.device_put(state, self._step.input_shardings[0][0])
        began = time.perf_counter()
        state, found, _ = self._step(state)
        found = jax.device_get(found)
        return state.learner, found, time.perf_counter() - began


def single_updates(program: Program, judge: Program, learner: Any, environments: Any, count: int) -> Point:
    from scipy import stats

    rows = []
    for key in range(count):
        new, own, seconds = program.update(learner, environments, key)
        # Fresh transitions from the same states, by the new policy: would they take the update back?
        _, judged, _ = judge.update(new, environments, 1000 + key, previous=learner.params)
        gains = own["outer/own_gain"], judged["outer/fresh_gain"], judged["outer/fresh_gain_se"]
        rows.append((*gains, own["outer/kl"], seconds))
    own, fresh, errors, kl, seconds = np.array(rows, np.float64).T
    # The spread over keys holds the luck of the update and of the judge, whose transitions are not independent.
    error = max(fresh.std(ddof=1), math.sqrt((errors**2).mean()), 1e-9) / math.sqrt(count)
    found = own.mean(), fresh.mean(), stats.t.ppf(0.975, count - 1) * error, kl.mean(), np.median(seconds)
    return Point(program.args.num_envs, program.args.batch_size, *map(float, found))
