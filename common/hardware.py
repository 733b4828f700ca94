"""Which processes and devices a run uses, and what it holds in their memory."""

import contextlib
import ctypes
import dataclasses
import hashlib
import math
import os
import platform
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from common import bits
from common.arguments import UsageError


def start(args: Any) -> None:
    """Opens the compilation cache, makes the CPU devices and, with --distributed, meets the other processes. To be
    called before anything else of JAX; from then on `jax.devices()` are those of all processes."""
    enable_compilation_cache()
    if "JAX_NUM_CPU_DEVICES" not in os.environ and "host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        # One CPU device runs what is no matrix product on one core: two devices made 1.1 x the steps on CartPole-v1.
        with contextlib.suppress(RuntimeError):  # JAX has started already, in a test
            jax.config.update("jax_num_cpu_devices", _cores(args.distributed))
    if args.distributed:
        _meet(args)


def enable_compilation_cache() -> None:
    """Keeps compiled programs on disk, so that the second start of the same command compiles nothing."""
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(base / "ppo-scaling" / "jax"))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)


def _cores(distributed: bool) -> int:
    """The CPU cores for this process. One that was started by hand cannot know that it shares its machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if not distributed:
        return cores
    env = os.environ
    if "SLURM_CPUS_PER_TASK" in env:
        return min(cores, int(env["SLURM_CPUS_PER_TASK"]))
    if cores < os.cpu_count():  # bound to its own cores by the launcher
        return cores
    processes = env.get("OMPI_COMM_WORLD_LOCAL_SIZE") or env.get("SLURM_STEP_TASKS_PER_NODE", "1")  # "2" or "2(x3),1"
    return max(1, cores // int(re.match(r"\d+", processes)[0]))


def _meet(args: Any) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(args.coordinator_address, args.num_processes, args.process_id)
    except ValueError:
        raise UsageError(
            "--distributed: neither Slurm nor Open MPI nor GKE is here; give --coordinator-address HOST:PORT, "
            "--num-processes and --process-id"
        ) from None
    if jax.process_index() > 0:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (one process tells what all do)
    numbers = [sum(d.process_index == p for d in jax.devices()) for p in range(jax.process_count())]
    if len(set(numbers)) > 1:
        text = ", ".join(map(str, numbers))
        raise UsageError(f"--distributed: the processes have {text} devices, must be equal (see JAX_NUM_CPU_DEVICES)")
    # Other flags are another program, and two programs wait for each other forever.
    flags = repr(dataclasses.replace(args, process_id=None, num_processes=None, coordinator_address=None))
    if len(set(share(hashlib.sha256(flags.encode()).hexdigest()))) > 1:
        raise UsageError("--distributed: the processes were started with different flags")


def machine() -> dict[str, Any]:
    """What a measurement was made on: CPU, the cores that this process may use, memory."""
    try:
        cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())[1]
    except (OSError, TypeError):
        cpu = platform.processor() or platform.machine()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": cpu, "cores": cores, "memory_gb": round(memory / 1e9)}


def share(text: str) -> list[str]:
    """What each process says here, in their order; at most 4096 bytes each. All have to call it."""
    if jax.process_count() == 1:
        return [text]
    from jax.experimental import multihost_utils

    mine = np.frombuffer(text.encode()[:4096].ljust(4096, b"\0"), np.uint8)
    rows = multihost_utils.process_allgather(mine)
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in np.asarray(rows)]


def together(action: Callable[[], Any]) -> Any:
    """action() in each process. A UsageError in one is raised in all: the others would wait for it forever."""
    result, problem = None, ""
    try:
        result = action()
    except UsageError as error:
        problem = str(error)
    problems = [text for text in share(problem) if text]
    if problems:
        raise UsageError(problems[0])
    return result


def choose_devices(wanted: int | None, *sizes: int, at_most: int | None = None) -> list[jax.Device]:
    """`wanted` devices, by default all or `at_most`; each of `sizes` has to divide by their number.

    Left to choose, takes the largest number that does; raises UsageError where `wanted` does not.
    """
    devices = jax.devices()
    if jax.process_count() > 1:
        text = f"all {len(devices)} devices of the {jax.process_count()} processes are used"
        if wanted not in (None, len(devices)):
            raise UsageError(f"--num-devices {wanted}: {text}; give --num-devices {len(devices)}")
        if any(size % len(devices) for size in sizes):
            sizes = " and ".join(map(str, sizes))
            what = "--num-envs / --num-rollout-chunks and --minibatch-size"
            raise UsageError(f"--distributed: {text}, which does not divide {what}, {sizes}")
        return devices
    if wanted is None:
        most = min(len(devices), at_most or len(devices))
        number = next(n for n in range(most, 0, -1) if all(size % n == 0 for size in sizes))
        if number < len(devices):
            why = f"more would not divide {' and '.join(map(str, sizes))}"
            why += f", or are more than {most}" if most < len(devices) else ""
            print(f"using {number} of {len(devices)} devices: {why}")
        return devices[:number]
    if wanted > len(devices):
        raise UsageError(f"--num-devices {wanted}: this machine has {len(devices)}; give --num-devices {len(devices)}")
    if any(size % wanted for size in sizes):
        text = " and ".join(map(str, sizes))
        what = "--num-envs / --num-rollout-chunks and --minibatch-size"
        raise UsageError(f"--num-devices {wanted}: does not divide {what}, {text}")
    return devices[:wanted]


def replicate(keys: jax.Array, mesh: Mesh) -> jax.Array:
    """Random keys, which all processes have made alike, on every device of the mesh."""
    # By way of their words: JAX puts no typed key on the devices of other processes.
    words = jax.device_put(np.asarray(jax.random.key_data(keys)), NamedSharding(mesh, PartitionSpec()))
    return jax.random.wrap_key_data(words, impl=jax.random.key_impl(keys))


def tree_bytes(tree: Any) -> int:
    """Bytes of all arrays (or shapes) in a pytree."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def device_bytes(devices: list[jax.Device]) -> int:
    """Memory that these devices of this machine together may use; for CPU devices what the machine has free."""
    stats = devices[0].memory_stats() if devices[0].platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] * len(devices)
    try:
        free = int(re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())[1]) * 1024
    except (OSError, TypeError):  # not Linux: all of it
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # "max" is no number
        free = min(free, int(Path("/sys/fs/cgroup/memory.max").read_text()))  # of a container or a Slurm job
    return free


def estimate_memory(args: Any, env: Any, state: Any, floats: int, activations: int, chunks: int) -> dict[str, int]:
    """Bytes that an update in so many chunks holds at its largest, over all devices.

    state: shapes of the learner and the environments, all seeds; floats: numbers kept per transition, beside the
    observation, the action and two flags; activations: numbers that the networks hold at a time per observation.
    """
    size, chunk = math.prod(env.obs_shape), args.num_seeds * args.num_envs // chunks
    stored = -(-size // 8) if env.obs_dtype.kind == "b" else size * env.obs_dtype.itemsize
    states = tree_bytes(state.environments)
    return {
        "learner": 4 * args.num_devices * tree_bytes(state.learner),  # with gradients, and old and new
        # All of them, and of the chunk at work the states after a step and what the network makes of them.
        "environments": states + states // chunks + 4 * chunk * (size + activations),
        "rollout": chunk * args.num_steps * (stored + 4 * (env.action_dim + floats) + 2),
        # One as floats, and what is kept of it for the gradient.
        "minibatch": 4 * args.num_seeds * args.minibatch_size * (size + 2 * activations),
    }


def estimate_levels_memory(args: Any, env: Any, state: Any, floats: tuple[int, int], chunks: int) -> dict[str, int]:
    """As `estimate_memory`, of environments that begin anew in each update (envs.LevelEnv, sfl_kinetix.py), and of the
    search for their levels. state: shapes of the learner and the buffer, all seeds; floats: numbers that the network
    holds at a time per observation, when acting and for a gradient."""
    level, obs = jax.eval_shape(env.suite.start, env.suite.empty_level)
    packed = jax.eval_shape(bits.pack, jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), obs))
    level_bytes = env.suite.level_bytes
    numbers, copies = sum(x.size for x in jax.tree.leaves(obs)), 1
    if args.learnability_estimator == "episodes":
        copies = args.learnability_episodes
    playing = args.num_seeds * max(args.num_envs, max(2, copies) * args.search_batch) // chunks  # the filter doubles it
    rollout = args.num_seeds * args.num_envs // chunks * args.num_steps
    return {
        "learner": 4 * args.num_devices * tree_bytes(state.learner),
        # 11 buffers: the old one, the new one, what the device has found, and rows and their sum as int32.
        "levels": args.num_devices * 11 * tree_bytes(state.buffer)
        + 2 * args.num_seeds * args.search_batch * level_bytes,
        "environments": playing * (3 * tree_bytes(level) + 2 * tree_bytes(obs) + 4 * floats[0]),
        "rollout": rollout * (tree_bytes(packed) + 4 * (env.action_dim + 6) + 2),
        "minibatch": 4 * args.num_seeds * args.minibatch_size * (numbers + floats[1]),
    }


def give_back_memory() -> None:
    """Returns to the system what compiling has left with glibc, 230 MB after ppo.py's update."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def check_memory(args: Any, env: Any, state: Any, floats: int, activations: int) -> None:
    """`fit` with what `estimate_memory` says."""
    fit(args, env, lambda chunks: estimate_memory(args, env, state, floats, activations, chunks))


def fit(args: Any, env: Any, parts_in: Callable[[int], dict[str, int]]) -> None:
    """Prints what a run will hold, parts_in(chunks) bytes over all devices; raises UsageError where the devices of a
    machine have less than their part of it."""
    devices = jax.devices()[: args.num_devices]
    here = [device for device in devices if device.process_index == jax.process_index()]
    # CPU memory is shared by the processes of one machine.
    node = platform.node()
    sharing = share(node).count(node) if here[0].platform == "cpu" else 1
    limit = device_bytes(here) // sharing
    parts = parts_in(args.num_rollout_chunks)
    listed = ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in parts.items())
    each = f" in each of {jax.process_count()} processes" if jax.process_count() > 1 else ""
    print(f"memory: {listed}; {limit / 1e9:.1f} GB available on {len(here)} {here[0].platform} device(s){each}")

    def needed(chunks: int) -> int:
        return sum(parts_in(chunks).values()) // jax.process_count()

    def compare() -> None:
        if env.num_envs * args.num_steps > 2**31:  # the shuffle counts in 32 bits
            raise UsageError(
                f"--num-envs {args.num_envs} * --num-steps {args.num_steps}: more than 2^31 transitions per device and "
                f"chunk; use more than --num-rollout-chunks {args.num_rollout_chunks}"
            )
        if needed(args.num_rollout_chunks) > limit:
            common = math.gcd(args.num_envs // len(devices), args.num_minibatches)
            fitting = [c for c in range(1, common + 1) if common % c == 0 and needed(c) <= limit]
            chunks = f"--num-rollout-chunks {fitting[0]} would fit, or " if fitting else ""
            searches = getattr(args, "search_batch", None)
            search = f", or less than --search-batch {searches}" if searches else ""
            raise UsageError(
                f"--num-envs {args.num_envs} * --num-steps {args.num_steps}: needs "
                f"{needed(args.num_rollout_chunks) / 1e9:.1f} GB of the {limit / 1e9:.1f} GB available{each}; "
                f"{chunks}fewer of either, or of --num-seeds{search}"
            )

    together(compare)
