"""Which devices a run uses, and what it holds in their memory."""

import contextlib
import math
import os
import re
from pathlib import Path
from typing import Any

import jax

from common.arguments import UsageError


def one_device_per_core() -> None:
    """Makes one XLA device of each CPU core; has no effect on accelerators, nor once JAX has started.

    One CPU device runs most of an update on one core; two devices on two cores made 1.8 x the steps per second.
    """
    if "JAX_NUM_CPU_DEVICES" in os.environ or "host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", cores)


def choose_devices(wanted: int | None, *sizes: int) -> list[jax.Device]:
    """`wanted` devices, by default all; each of `sizes` has to divide by their number.

    Left to choose, takes the largest number that does; raises UsageError where `wanted` does not.
    """
    devices = jax.devices()
    if wanted is None:
        number = next(n for n in range(len(devices), 0, -1) if all(size % n == 0 for size in sizes))
        if number < len(devices):
            print(f"using {number} of {len(devices)} devices: more would not divide {' and '.join(map(str, sizes))}")
        return devices[:number]
    if wanted > len(devices):
        raise UsageError(f"--num-devices {wanted}: this machine has {len(devices)}; give --num-devices {len(devices)}")
    if any(size % wanted for size in sizes):
        text = " and ".join(map(str, sizes))
        raise UsageError(f"--num-devices {wanted}: does not divide --num-envs and --minibatch-size, {text}")
    return devices[:wanted]


def tree_bytes(tree: Any) -> int:
    """Bytes of all arrays (or shapes) in a pytree."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def device_bytes(devices: list[jax.Device]) -> int:
    """Memory that the devices together may use; for CPU devices what the machine has free."""
    stats = devices[0].memory_stats() if devices[0].platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] * len(devices)
    try:
        return int(re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())[1]) * 1024
    except (OSError, TypeError):  # not Linux: all of it
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def estimate_memory(
    args: Any, env: Any, learner: Any, environments: Any, floats: int, activations: int
) -> dict[str, int]:
    """Bytes that an update holds at its largest, over all devices.

    learner, environments: pytrees or their shapes, all seeds; floats: numbers kept per transition, beside the
    observation, the action and two flags; activations: numbers that the networks keep per observation.
    """
    size = math.prod(env.obs_shape)
    stored = -(-size // 8) if env.obs_dtype == bool else size * env.obs_dtype.itemsize
    chunk = args.num_seeds * args.num_envs // args.num_rollout_chunks
    of_all = tree_bytes(environments)
    return {
        "learner": 4 * tree_bytes(learner),  # with gradients, and old and new
        # All of them; of the chunk at work the states before and after a step, and what the networks make of them.
        "environments": of_all + 2 * of_all // args.num_rollout_chunks + 4 * chunk * (size + activations),
        "rollout": chunk * args.num_steps * (stored + 4 * (env.action_dim + floats) + 2),
    }


def check_memory(args: Any, env: Any, *sizes: Any, **more: int) -> None:
    """Prints what a run will hold (see `estimate_memory`); raises UsageError where the devices have less."""
    devices = jax.devices()[: args.num_devices]
    parts, limit = estimate_memory(args, env, *sizes, **more), device_bytes(devices)
    total = sum(parts.values())
    listed = ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in parts.items())
    print(f"memory: {listed}; {limit / 1e9:.1f} GB available on {len(devices)} {devices[0].platform} device(s)")
    if total > limit:
        chunks = 2 ** math.ceil(math.log2(args.num_rollout_chunks * parts["rollout"] / max(limit / 2, 1)))
        raise UsageError(
            f"--num-envs {args.num_envs} * --num-steps {args.num_steps}: needs {total / 1e9:.1f} GB of the "
            f"{limit / 1e9:.1f} GB available; --num-rollout-chunks {chunks}, or fewer of either, or of --num-seeds, would fit"
        )
