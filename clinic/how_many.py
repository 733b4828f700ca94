"""How many environments does a run need? Single updates from a checkpoint, each judged on fresh transitions.

An update on n transitions gains |g|^2 + s^2 / n on its own data, to first order, and |g|^2 on fresh data, where g is
the gradient that the update follows and s^2 the variance of one transition's part in it. So fresh / own is n / (n + B),
B = s^2 / |g|^2: the simple noise scale of McCandlish et al. 2018 (https://arxiv.org/abs/1812.06162), but of a whole
update. In environments it is N / (N + N_c): at N_c half of an update is signal. The training does not go on.
"""

import importlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import stdtrit

from clinic import records
from common.envs import on_host
from common.run import arguments, checkpoints, devices, memory
from common.run.arguments import UsageError, flag

FLAGS = ("num_envs", "clip_eps", "update_epochs", "com", "minibatch_size", "learning_rate")
FACTORS = {"num_envs": (0.25, 1, 4, 16, 64)}
OTHER_FACTORS = (0.25, 0.5, 1, 2, 4)
SAMPLE = 2**18  # transitions on which gains are measured: of an update all, if it has no more; fresh ones as many
CHUNK = 2**21  # transitions that are collected at once


class Point(NamedTuple):
    """What single updates with one value of the flag gained: means over keys, the fresh gain with its standard error.
    Gains are in standard deviations of the advantage."""

    value: float
    num_envs: int
    transitions: int
    keys: int
    own: float
    fresh: float
    error: float
    kl: float
    seconds: float  # of one update, on this machine

    @property
    def width(self) -> float:
        """Half of the 95 % interval of the fresh gain."""
        return self.error * float(stdtrit(max(1, self.keys - 1), 0.975))

    @property
    def quotient(self) -> float:
        """How much of the update is signal."""
        return self.fresh / self.own


class Start(NamedTuple):
    """One seed of a checkpoint, as NumPy arrays. environments: [N, ...]."""

    learner: Any
    environments: Any


def measure(
    run: str, over: str, values: Sequence[float], keys: int, seed: int, say: Callable[[str], None]
) -> tuple[Any, list[Point]]:
    """Makes single updates for each value of the flag `over`, from the checkpoint RUN or RUN@UPDATE: `keys` of them,
    and up to 16 x as many where the update is smaller than the run's. -> the run's arguments, points."""
    script, args, folder, updates = find(run)
    if over not in FLAGS or not hasattr(args, over):
        known = ", ".join(flag(name)[2:] for name in FLAGS if hasattr(args, name))
        raise UsageError(f"--over {over}: must be one of {known}")
    if any(value <= 0 for value in values):
        raise UsageError(f"--values {' '.join(map(str, values))}: must be greater than 0")
    check_seed("--seed-index", seed, args, run)
    devices.start(args)
    start, update = restore(script, args, folder, updates, seed, f"--how-many {run}")
    changing = args.anneal_lr
    args = replace(records.with_rate_of(args, update), num_seeds=1, num_devices=1)
    if changing:
        say(f"updates have the learning rate that the run had reached, {args.learning_rate:.2g}")
    tried = list(values) or possible(args, over, say)
    changed = [with_value(args, over, value) for value in tried]
    args = replace(args, num_devices=most_devices([args, *changed]))
    settings = {getattr(changed, over): changed for changed in (with_value(args, over, value) for value in tried)}
    free = memory.device_bytes(jax.local_devices()[: args.num_devices])
    for value, needed in [(value, update_bytes(script, changed)) for value, changed in settings.items()]:
        if needed > free:
            why = f"an update would need {needed / 1e9:.1f} GB of the {free / 1e9:.1f} GB available"
            if values:
                raise UsageError(f"--values {value:g}: {why}")
            say(f"{flag(over)} {value:g} is left out: {why}")
            del settings[value]
    if not settings:
        raise UsageError(f"--how-many {run}: no number of environments fits; --values names smaller ones")
    points = []
    with judged_on(script, SAMPLE):
        for point in single_updates(script, args, start, settings, keys):
            points.append(point)
            gains = f"own gain {point.own:.2g}, fresh {point.fresh:.2g} ± {point.width:.2g}"
            say(f"{flag(over)} {point.value:g}: {gains}")
    return args, points


def possible(args: Any, over: str, say: Callable[[str], None]) -> list[float]:
    """The default values of a flag: multiples of the one that the policy has reached, but none that cannot be."""
    found = []
    for value in [getattr(args, over) * factor for factor in FACTORS.get(over, OTHER_FACTORS)]:
        try:
            with_value(args, over, value)
        except UsageError as error:
            say(f"left out: {error}")
        else:
            found.append(value)
    return found


def check_seed(name: str, seed: int, args: Any, run: str) -> None:
    if not 0 <= seed < args.num_seeds:
        raise UsageError(f"{name} {seed}: {run} has seeds 0 to {args.num_seeds - 1}")


def update_bytes(script: ModuleType, args: Any) -> int:
    """What an update holds, on all devices."""
    args, _, _, init, step, _, keys = script.build(args)
    return args.num_devices * sum(memory.needed(memory.compile_update(init, step, keys)[1]))


@contextmanager
def judged_on(script: ModuleType, size: int) -> Iterator[None]:
    """Inside of the block the script measures what an update gained on `size` transitions."""
    before, script.KL_SAMPLE = script.KL_SAMPLE, size
    try:
        yield
    finally:
        script.KL_SAMPLE = before


def single_updates(
    script: ModuleType, args: Any, start: Start, settings: dict[float, Any], keys: int
) -> Iterator[Point]:
    """What updates with each of the settings gain. settings: value of the flag -> arguments. -> a point for each."""
    # The script's own update, for its measurements; what it learns is thrown away.
    judge = Program(script, resized(replace(args, update_epochs=1), SAMPLE // args.num_steps))
    for value, changed in settings.items():
        program, rows = Program(script, changed), []
        for key in range(keys * min(16, max(1, round(args.batch_size / changed.batch_size)))):
            learner, own, seconds = program.update(start.learner, start.environments, key)
            # Fresh transitions from the same states, by the new policy: would they take the update back?
            _, judged, _ = judge.update(learner, start.environments, 1000 + key, previous=start.learner.params)
            gains = own["outer/own_gain"], judged["outer/fresh_gain"], judged["outer/fresh_gain_se"]
            rows.append((*gains, own["outer/kl"], seconds))
        own, fresh, errors, kl, seconds = np.array(rows, np.float64).T
        # The spread over keys holds the luck of the update and of the judge, whose transitions are not independent.
        spread = fresh.std(ddof=1) if len(rows) > 1 else 0.0
        spread = max(spread, math.sqrt((errors**2).mean()), 1e-9) / math.sqrt(len(rows))
        numbers = (own.mean(), fresh.mean(), spread, kl.mean(), np.median(seconds))
        yield Point(value, changed.num_envs, changed.batch_size, len(rows), *map(float, numbers))


def most_devices(settings: Sequence[Any]) -> int:
    """How many devices can share the environments and the minibatches of all these arguments."""
    sizes = [(args.num_envs // args.num_rollout_chunks, args.minibatch_size) for args in settings]
    common = math.gcd(*(size for pair in sizes for size in pair))
    return max(d for d in range(1, len(jax.devices()) + 1) if common % d == 0)


def find(run: str) -> tuple[ModuleType, Any, Path, list[int]]:
    """-> the script of RUN or RUN@UPDATE, its arguments, its folder, the updates to choose from."""
    folder, record, updates = checkpoints.find_checkpoint(run, "--how-many")
    if record["script"] not in records.BRANCHED:
        raise UsageError(
            f"--how-many: {run} was made by {record['script']}.py; it works for {' and '.join(records.BRANCHED)}"
        )
    script, args = importlib.import_module(record["script"]), records.arguments_of(record["script"], record["args"])
    if on_host(args.env_id):
        raise UsageError(
            f"--how-many: {args.env_id} of {run} runs on the host, and cannot be restored from a checkpoint"
        )
    return script, args, folder, updates


def restore(
    script: ModuleType, args: Any, folder: Path, updates: list[int], seed: int, where: str
) -> tuple[Start, int]:
    """The learner and the environments in the newest intact checkpoint among `updates`. -> start, its update."""
    _, _, _, init, _, _, keys = script.build(replace(args, num_devices=1))
    shapes, here = jax.eval_shape(init, keys), jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    like = {name: getattr(shapes, name) for name in ("learner", "environments")}
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), like)
    state, update = checkpoints.restore_newest(folder, updates, like, where, partial=True)
    if args.num_seeds > 1:
        state = jax.tree.map(lambda x: x[seed], state)
    environments = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), state["environments"])
    return Start(*map(jax.device_get, (state["learner"], environments))), update


def with_value(args: Any, over: str, value: float) -> Any:
    """The arguments with one flag changed; more environments mean more minibatches, of the same size."""
    if over == "num_envs":
        return resized(args, value)
    value = max(1, round(value)) if isinstance(getattr(args, over), int) else value
    return replace(args, **{over: value, "num_minibatches": None})  # their number follows from their size


def resized(args: Any, num_envs: float) -> Any:
    """The arguments with about as many environments, in parts that fit into memory."""
    each = math.lcm(args.num_devices, args.minibatch_size // math.gcd(args.minibatch_size, args.num_steps))
    num_envs = max(1, round(num_envs / each)) * each
    minibatches = num_envs * args.num_steps // args.minibatch_size
    fits = lambda c: num_envs * args.num_steps <= c * CHUNK and num_envs % (c * args.num_devices) == 0  # noqa: E731
    chunks = next((c for c in arguments.divisors(minibatches) if fits(c)), 1)
    sizes = {"num_envs": num_envs, "num_minibatches": minibatches, "num_rollout_chunks": chunks}
    return replace(args, **sizes, total_timesteps=num_envs * args.num_steps)


class Program:
    """A script's update for some arguments, as its own `build` makes it."""

    def __init__(self, script: ModuleType, args: Any):
        self.args, _, self.network, _, self._step, _, _ = script.build(args)
        self._state, self._compiled = script.TrainState, None

    def start(self, learner: Any, environments: Any, key: int, previous: Any) -> Any:
        """The state from which a learner goes on, with copies of the environments [n, ...]."""
        args, shape = self.args, (self.args.num_rollout_chunks, -1)
        there = len(jax.tree.leaves(environments)[0])
        copies = np.random.default_rng(key).permutation(max(there, args.num_envs))[: args.num_envs] % there
        spread = jax.tree.map(lambda x: x[copies].reshape(*shape, *x.shape[1:]), environments)
        # Copies: the program takes over the memory of its state, and JAX does not copy NumPy's by itself.
        state = jax.tree.map(jnp.array, self._state(learner, spread, jax.random.key(key), np.int32(0), previous))
        if self._compiled is None:
            self._compiled = self._step.lower(state).compile()
        return state

    def step(self, state: Any) -> tuple[Any, dict[str, Any], Any]:
        """One update. -> state, metrics, sample, as from the script."""
        state, metrics, sample = self._compiled(state)
        return state, jax.device_get(metrics), sample

    def update(self, learner: Any, environments: Any, key: int, previous: Any = None) -> tuple[Any, dict, float]:
        """One update from a learner. -> learner, metrics, seconds."""
        state = self.start(learner, environments, key, learner.params if previous is None else previous)
        began = time.perf_counter()
        state, metrics, _ = self.step(state)
        return state.learner, metrics, time.perf_counter() - began


def critical_size(points: Sequence[Point], draws: int = 1000) -> tuple[float, float, float, float]:
    """N_c of the law fresh = own N / (N + N_c): least squares weighted by the errors, 95 % of the fits to fresh gains
    drawn within their errors, and how probable so bad a fit is if the law holds. The errors come from a few keys each,
    so the draws have Student's t."""
    envs, own, fresh, error, keys = (
        np.array([getattr(p, n) for p in points]) for n in ("num_envs", "own", "fresh", "error", "keys")
    )
    sizes = np.append(np.geomspace(envs.min() / 100, envs.max() * 100, 400), np.inf)
    law = own * envs / (envs + sizes[:, None])
    noise = error * np.random.default_rng(0).standard_t(np.maximum(1, keys - 1), (draws, len(points)))

    def fit(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Fresh gains [..., points] -> place in `sizes` [...], misfit [...]."""
        misfits = (((y[..., None, :] - law) / error) ** 2).sum(-1)
        return misfits.argmin(-1), misfits.min(-1)

    best, misfit = fit(fresh)
    low, high = np.quantile(sizes[fit(fresh + noise)[0]], [0.025, 0.975], method="nearest")
    by_chance = fit(law[best] + noise)[1]
    return float(sizes[best]), float(low), float(high), float(np.mean(by_chance >= misfit))
