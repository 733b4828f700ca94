"""Eight fake CPU devices, a compilation cache that survives, and toy environments whose answers are known."""

import json
import os
import shlex
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

# Before jax starts; subprocesses inherit them. Programs that run for milliseconds are not worth LLVM's optimisation,
# and with XLA's fusion emitters they would take three times as long to compile.
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8 "
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1 "
    "--xla_disable_hlo_passes=tree_reduction_rewriter"
).strip()
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
os.environ.setdefault("MPLBACKEND", "agg")

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec as P

from common import envs
from common.actions import Box, Categorical, Discrete
from common.run import devices, memory, plots
from common.run.arguments import UsageError
from common.run.command import main as run_main
from experiments import grid

# A job in the background, such as CI under nohup, ignores Ctrl-C, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
devices.enable_compilation_cache()

ROOT = Path(__file__).parents[1]
WHOLE = P()


def on_devices(function: Any, number: int = 1, in_specs: Any = WHOLE, out_specs: Any = WHOLE) -> Any:
    """`function` as the scripts run it: compiled, inside a shard_map over `number` devices."""
    mesh = Mesh(np.array(jax.devices()[:number]), ("device",))
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False))


def pytest_collection_modifyitems(items):
    """What compiles for minutes first, so that none of it is alone at the end."""
    first = ("test_sfl_kinetix", "test_kinetix", "test_fork", "test_suites", "test_distributed", "test_every_script")
    items.sort(key=lambda item: item.path.stem not in first)


def same(a, b):
    """Equal to the bit, random keys too."""
    is_key = lambda x: isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    a, b = (jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, tree) for tree in (a, b))
    jax.tree.map(np.testing.assert_array_equal, a, b)


def leaves_close(a, b, **tolerance):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), a, b)


def gains(earlier, before, after, action, advantage):
    """What an update did, from its policy's probabilities [n, actions] before the update before it, before it and after
    it: KL, own and fresh gains [n]."""
    advantage, taken = np.asarray(advantage, np.float64), lambda p: p[np.arange(len(action)), action]
    advantage = (advantage - advantage.mean()) / advantage.std()
    own, lost = ((taken(p) / taken(before) - 1) * advantage for p in (after, earlier))
    return (before * np.log(before / after)).sum(-1).mean(), own, -lost


def differ(a, b):
    return any((np.asarray(x) != np.asarray(y)).any() for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))


def one_learner(learner, number):
    """So many devices hold it, and the same."""
    for leaf in jax.tree.leaves(learner):
        copies = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        assert len(copies) == number
        same(copies[1:], copies[:1] * (number - 1))


def build(script, toy, args):
    """script.build on a toy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(envs, "make_suite", lambda *_: toy)
        return script.build(args)


BUILT: dict = {}  # what `reusing` keeps: by script and arguments what it built, by its functions their programs
# Flags that are no part of a program.
PLACES = dict(resume=None, run_name=None, runs_dir="runs", init_from=None, fresh_critic=False, plasticity_every=10)


def reusing(patch, script):
    """A script that starts again with the same flags has what it built and compiled before."""
    build, compile_update = script.build, memory.compile_update

    def built(args):
        places = {name: value for name, value in PLACES.items() if hasattr(args, name)}
        key = script.__name__, replace(args, **places)
        if key not in BUILT:
            BUILT[key] = build(args)
        used, *rest = BUILT[key]
        return replace(used, **{name: getattr(args, name) for name in places}), *rest

    def compiled(*functions_and_inputs):
        key = tuple(map(id, functions_and_inputs[:2]))
        if key not in BUILT:
            BUILT[key] = compile_update(*functions_and_inputs)
        return BUILT[key]

    patch.setattr(script, "build", built)
    patch.setattr(memory, "compile_update", compiled)


def start(script, *flags):
    """A script's main function with these flags, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [f"{script.__name__}.py", *map(str, flags)])
        run_main(getattr(script, "train", None) or script.main, script.Args)


def ended(capsys, script, *flags):
    """-> the exit code of a script with these flags, what it said on stdout, on stderr."""
    code = 0
    try:
        start(script, *flags)
    except SystemExit as end:
        code = end.code
    return code, *capsys.readouterr()


def refusal(function, *given, **flags):
    """The one line with which this is refused."""
    with pytest.raises(UsageError) as error:
        function(*given, **flags)
    assert "\n" not in str(error.value)
    return str(error.value)


def watched(patch, module, name, pick):
    """Watches a function within compiled programs on one device. -> what pick(result, *inputs) is, in order."""
    seen, function = [], getattr(module, name)

    def spy(*given):
        out = function(*given)
        jax.debug.callback(lambda x: seen.append(jax.tree.map(np.asarray, x)), pick(out, *given), ordered=True)
        return out

    patch.setattr(module, name, spy)
    return seen


class Training:
    """A script on a toy, update by update. A state can be used again."""

    def __init__(self, script, toy, args):
        self.args, self.env, self.network, init, step, self.measured, self.keys = build(script, toy, args)
        self.init, self.step = jax.jit(init), jax.jit(step)

    def run(self, num_updates, keys=None, change=lambda state: state):
        """-> the states after 0, 1, ... updates, the metrics and the sample of each update."""
        states, metrics, samples = [change(self.init(self.keys if keys is None else keys))], [], []
        for _ in range(num_updates):
            state, row, sample = self.step(states[-1])
            states.append(state)
            metrics.append(jax.device_get(row))
            samples.append(jax.device_get(sample))
        return states, metrics, samples


class Toy:
    """What a suite has to offer, with nothing special."""

    obs_shape: tuple[int, ...] = (1,)
    obs_dtype = np.dtype(np.float32)
    action_space: Discrete | Box = Discrete((2,))
    has_success = False
    num_levels: int | None = None
    can_draw = False

    def reset_to(self, key, level):
        return self.reset(key)


class Count(NamedTuple):
    time: jax.Array
    end: jax.Array
    id: jax.Array
    noise: jax.Array


class Counter(Toy):
    """Counts its steps: terminated when `time` is `end` (random), truncated when it is `limit`, both where they are
    equal. Reward 1. Success: the end was reached and is even. Every reset and every step draws 64 bits that tell
    which key it had. Level i ends after levels[i] steps, what comes after it as any other episode."""

    obs_shape = (4,)  # time, end, id
    obs_dtype = np.dtype(np.uint32)
    has_success = True

    def __init__(self, ends: tuple[int, ...], limit: int, levels: tuple[int, ...] | None = None):
        self.ends, self.limit, self.levels = jnp.array(ends, jnp.uint32), limit, levels
        self.num_levels = levels and len(levels)

    def reset(self, key):
        bits = jax.random.bits(key, (2,))
        return self._start(bits, self.ends[bits[0] % self.ends.size])

    def reset_to(self, key, level):
        if self.levels is None:
            return self.reset(key)
        return self._start(jax.random.bits(key, (2,)), jnp.array(self.levels, jnp.uint32)[level])

    def _start(self, bits, end):
        state = Count(jnp.uint32(0), end, bits, jnp.zeros_like(bits))
        return state, self.observe(state)

    def observe(self, state):
        return jnp.concatenate([jnp.stack([state.time, state.end]), state.id])

    def step(self, key, state, action):
        state = state._replace(time=state.time + 1, noise=jax.random.bits(key, (2,)))
        terminated = state.time >= state.end
        truncated = state.time >= self.limit
        success = terminated & (state.end % 2 == 0)
        return state, self.observe(state), jnp.float32(1), terminated, truncated, success


class Noise(Toy):
    """Random observations far from mean 0 and variance 1; an episode ends at about every fifth step, in either way."""

    obs_shape = (3,)

    def __init__(self, action_space: Discrete | Box):
        self.action_space = action_space

    def reset(self, key):
        return jnp.int32(0), self._observe(key)

    def _observe(self, key):
        return 3 + jnp.array([0.1, 5.0, 50.0]) * jax.random.normal(key, (3,))

    def step(self, key, time, action):
        end_key, obs_key = jax.random.split(key)
        ends = jax.random.bernoulli(end_key, 0.1, (2,))
        return time + 1, self._observe(obs_key), -jnp.abs(action[0] - 1.0), ends[0], ends[1], jnp.bool_(False)


class Bandit(Toy):
    """One step per episode, one of three rewards."""

    action_space = Discrete((3,))
    rewards = (0.1, 0.5, 1.0)

    def reset(self, key):
        return jnp.int32(0), jnp.ones(1)

    def step(self, key, state, action):
        reward = jnp.array(self.rewards)[action[0]]
        return state, jnp.ones(1), reward, jnp.bool_(True), jnp.bool_(False), jnp.bool_(False)


class Aim(Bandit):
    """One step per episode, reward -(a - 0.5)^2."""

    action_space = Box(np.array([-1], np.float32), np.array([1], np.float32))

    def step(self, key, state, action):
        return state, jnp.ones(1), -((action[0] - 0.5) ** 2), jnp.bool_(True), jnp.bool_(False), jnp.bool_(False)


class TwoStates(Toy):
    """Action 1 goes to the other state. Staying in state 1 pays 1, going there costs 0.5, all else pays 0. It never
    terminates, and is cut after 5 steps: the best policy has V(1) = 1 / (1 - gamma), V(0) = -0.5 + gamma V(1)."""

    obs_shape = (2,)

    def reset(self, key):
        where = jax.random.bernoulli(key).astype(jnp.int32)
        return (where, jnp.int32(0)), jax.nn.one_hot(where, 2)

    def step(self, key, state, action):
        (where, time), moves = state, action[0] == 1
        reward = jnp.where(moves, jnp.where(where == 0, -0.5, 0.0), where.astype(jnp.float32))
        where, time = jnp.where(moves, 1 - where, where), time + 1
        return (where, time), jax.nn.one_hot(where, 2), reward, jnp.bool_(False), time >= 5, jnp.bool_(False)


class Stub:
    """A network whose values are `value(obs)`, and whose policy is uniform over two actions."""

    def __init__(self, value: Any):
        self.value = value

    def apply(self, params, obs):
        return Categorical(jnp.zeros((obs.shape[0], 2)), (2,)), self.value(params, obs)


def write_run(folder, cell, lines, updates=None):
    """The finished run of a cell, with these lines of metrics."""
    path = folder / cell.name
    path.mkdir(parents=True)
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    record = {
        "command": shlex.join(grid.command(cell, folder)[1:]), "git_commit": "abc", "started": "2026-01-01",
        "machine": {"cpu": "a toaster"}, "devices": ["cpu:0 cpu"], "versions": {"jax": "1.2.3"},
        "script": cell.script, "args": dict(cell.flags),
    }  # fmt: skip
    (path / "args.json").write_text(json.dumps(record))
    (path / "summary.json").write_text(json.dumps({"updates": updates or cell.num_updates}))


def metrics_of(path):
    """The lines of a run, without how long they took."""
    clock = ("time", "charts/SPS", "search/seconds", "search/SPS")
    return [{k: v for k, v in line.items() if k not in clock} for line in plots.read_lines(path)]


def starts():
    """The flags of each start of an imitated script, in order."""
    return [shlex.split(line) for line in Path("starts").read_text().splitlines()] if Path("starts").exists() else []


def wait_for(happened, seconds=60):
    end = time.time() + seconds
    while not happened() and time.time() < end:
        time.sleep(0.01)
    assert happened()


def read(path):
    """JSON, of which NaN is no part."""

    def refuse(constant):
        raise AssertionError(f"{constant} in {path}")

    return json.loads(path.read_text(), parse_constant=refuse)


@pytest.fixture
def nothing_compiles(monkeypatch):
    """Programs can be asked for their shapes, and not be compiled or run."""

    def compiled(*_, **__):
        raise AssertionError("compiled something")

    put_on_devices = devices.OnDevices.__call__

    def only_shapes(*args, **kw):
        program = put_on_devices(*args, **kw)
        traced = lambda x: isinstance(x, jax.core.Tracer)  # noqa: E731
        return lambda *x: program(*x) if all(map(traced, jax.tree.leaves(x))) else compiled()

    monkeypatch.setattr(jax.stages.Lowered, "compile", compiled)
    monkeypatch.setattr(devices.OnDevices, "__call__", only_shapes)
