"""Choose the processes and devices of a run, and put the functions of one device on all of them."""

import dataclasses
import hashlib
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from common.run.arguments import UsageError
from common.run.tracking import say

WHOLE = P()  # equal on all devices
# XLA ends a process if a CPU device has waited 40 s for another, which can happen on a busy machine.
PATIENCE = "--xla_cpu_collective_call_terminate_timeout_seconds=3600"


def start(args: Any) -> None:
    """Open the compilation cache, make the CPU devices and, with --distributed, connect to the other processes. Call
    this before anything else in JAX; afterwards `jax.devices()` are those of all processes."""
    enable_compilation_cache()
    distributed = getattr(args, "distributed", False)
    flags = os.environ.get("XLA_FLAGS", "")
    if PATIENCE.partition("=")[0] not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {PATIENCE}".strip()
    if "JAX_NUM_CPU_DEVICES" not in os.environ and "host_platform_device_count" not in flags:
        _make_cpu_devices(_cores())
    if distributed:
        _meet(args)


def number_of_gpus(root: Path = Path("/")) -> int:
    """How many NVIDIA GPUs JAX is going to use. JAX cannot be asked: that would start it, here and now."""
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin")
    asked = os.environ.get("JAX_PLATFORMS", "") in ("", "cuda", "gpu", "cuda,cpu")
    if not asked or not any(map(importlib.util.find_spec, plugins)):
        return 0
    there, visible = len(list(root.glob("dev/nvidia[0-9]*"))), os.environ.get("CUDA_VISIBLE_DEVICES")
    return there if visible is None else min(there, sum(x.strip() not in ("", "-1") for x in visible.split(",")))


def _make_cpu_devices(count: int) -> None:
    # A CPU device uses one core for all but matrix products: two devices made 1.1 x the steps on CartPole-v1.
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:  # JAX has already made its devices
        if jax.devices()[0].platform == "cpu" and jax.device_count() < count:
            say(
                f"note: one CPU device for {count} cores, since something has started JAX before the script did (a "
                f"module imported at its top?); import it later, or set JAX_NUM_CPU_DEVICES={count}"
            )


def enable_compilation_cache() -> None:
    """Keep on disk what takes at least 1 s to compile, so that the same command compiles it only once."""
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(base / "ppo-scaling" / "jax"))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)


def _cores() -> int:
    """Count the CPU cores for this process: those that it is bound to or, if fewer, those of its Slurm task."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(bound, int(os.environ.get("SLURM_CPUS_PER_TASK", bound)))


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
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (one process speaks for all)
    counts = [sum(d.process_index == p for d in jax.devices()) for p in range(jax.process_count())]
    if len(set(counts)) > 1:
        text = ", ".join(map(str, counts))
        raise UsageError(f"--distributed: the processes have {text} devices, must be equal (see JAX_NUM_CPU_DEVICES)")
    # Different flags mean different programs, which would wait for each other forever.
    flags = repr(dataclasses.replace(args, process_id=None, num_processes=None, coordinator_address=None))
    if len(set(share(hashlib.sha256(flags.encode()).hexdigest()))) > 1:
        raise UsageError("--distributed: the processes were started with different flags")


def machine() -> dict[str, Any]:
    """The machine of a measurement: CPU, the cores that this process may use, memory."""
    try:
        cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())[1]
    except (OSError, TypeError):
        cpu = platform.processor() or platform.machine()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"cpu": cpu, "cores": _cores(), "memory_gb": round(memory / 1e9)}


def wait_for_all() -> None:
    """Wait until all processes are here, a day at most. At its exit JAX waits for five minutes only."""
    if jax.process_count() > 1:
        from jax._src import distributed  # as jax.experimental.array_serialization does: there is no public barrier

        distributed.global_state.client.wait_at_barrier("end of the run", 24 * 3600 * 1000)


def share(text: str) -> list[str]:
    """Collect a text of at most 4096 bytes from each process, in order. All must call this."""
    if jax.process_count() == 1:
        return [text]
    from jax.experimental import multihost_utils

    mine = np.frombuffer(text.encode()[:4096].ljust(4096, b"\0"), np.uint8)
    rows = multihost_utils.process_allgather(mine)
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in np.asarray(rows)]


def together(action: Callable[[], Any], kind: type[Exception] = UsageError) -> Any:
    """Run action() in each process. An error of this kind in one is raised in all: the others would wait for it
    forever."""
    result, problem = None, ""
    try:
        result = action()
    except kind as error:
        problem = str(error) or kind.__name__
    if problems := [text for text in share(problem) if text]:
        raise kind(problems[0])
    return result


def choose_devices(
    wanted: int | None,
    *sizes: int,
    at_most: int | None = None,
    what: str = "--num-envs / --num-rollout-chunks and --minibatch-size",
) -> list[jax.Device]:
    """Choose `wanted` devices, by default the largest count up to `at_most` that divides each of `sizes`, named in
    `what`. Raise UsageError if `wanted` does not. Several processes use all of theirs."""
    devices, text = jax.devices(), " and ".join(map(str, sizes))
    if wanted is None and jax.process_count() > 1:
        wanted = len(devices)
    if wanted is None:
        most = min(len(devices), at_most or len(devices))
        wanted = next(n for n in range(most, 0, -1) if all(size % n == 0 for size in sizes))
        if wanted < len(devices):
            why = f"more would not divide {text}" if wanted < most else f"{most} is the most here"
            print(f"using {wanted} of {len(devices)} devices: {why}")
    if wanted > len(devices) or (wanted < len(devices) and jax.process_count() > 1):
        raise UsageError(f"--num-devices {wanted}: there are {len(devices)}; give --num-devices {len(devices)}")
    if any(size % wanted for size in sizes):
        raise UsageError(f"--num-devices {wanted}: does not divide {what}, {text}")
    return devices[:wanted]


class OnDevices:
    """Run the program of one device on all `devices`, and that of one seed for all seeds.

        on_devices = OnDevices(devices, args.num_seeds)
        step = on_devices(update, takes=(layout,), gives=(layout, P()), donate=0)

    takes, gives: how arguments and results are laid out: P() for those equal on all devices, split(axis) for those
    divided along an axis. Inside, psum, pmean and axis_index over "device" are where devices meet.
    """

    def __init__(self, devices: list[jax.Device], num_seeds: int):
        self._mesh = Mesh(np.array(devices), ("device",))
        self._num_seeds = num_seeds

    def split(self, axis: int) -> P:
        """Layout divided over devices along `axis` of the shape in one seed's program."""
        return P(*[None] * (axis + (self._num_seeds > 1)), "device")

    def __call__(
        self, function: Callable, takes: Any = WHOLE, gives: Any = WHOLE, over_seeds: Any = 0, donate: Any = ()
    ) -> Callable:
        """Jit it. over_seeds: vmap's in_axes, None for arguments that all seeds share; donate: arguments to donate."""
        if self._num_seeds > 1:
            function = jax.vmap(function, in_axes=over_seeds)
        mapped = jax.shard_map(function, mesh=self._mesh, in_specs=takes, out_specs=gives, check_vma=False)
        return jax.jit(mapped, donate_argnums=donate)

    def keys(self, seed: int) -> jax.Array:
        """Random keys of the seeds from `seed` on, [num_seeds] or, for one seed, []; equal on all devices."""
        keys = jax.vmap(jax.random.key)(seed + jnp.arange(self._num_seeds))
        keys = keys if self._num_seeds > 1 else keys[0]
        # As raw words, because JAX puts no typed key on the devices of other processes.
        words = jax.device_put(np.asarray(jax.random.key_data(keys)), NamedSharding(self._mesh, P()))
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(keys))
