"""Which devices a run uses, and what it holds in their memory."""

import os
from typing import Any

import jax

from common.arguments import UsageError


def one_device_per_core() -> None:
    """Makes one XLA device of each CPU core; has no effect on accelerators. Call before JAX does anything else.

    One CPU device runs most of an update on one core; two devices on two cores made 1.8 x the steps per second.
    """
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))


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
        raise UsageError(f"--num-devices {wanted}: this machine has {len(devices)}")
    if any(size % wanted for size in sizes):
        raise UsageError(f"--num-devices {wanted} does not divide --num-envs and --minibatch-size ({sizes})")
    return devices[:wanted]


def tree_bytes(tree: Any) -> int:
    """Bytes of all arrays (or shapes) in a pytree."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def device_bytes(devices: list[jax.Device]) -> int:
    """Memory that the devices together may use; for CPU devices what the machine has free."""
    stats = devices[0].memory_stats() if devices[0].platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] * len(devices)
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_memory(devices: list[jax.Device], remedy: str, **parts: int) -> None:
    """Prints what a run holds, in bytes part by part; raises UsageError with `remedy` where the devices have less."""
    total, limit = sum(parts.values()), device_bytes(devices)
    listed = ", ".join(f"{name} {size / 1e9:.2f} GB" for name, size in parts.items())
    print(f"memory: {listed}; {limit / 1e9:.1f} GB available on {len(devices)} {devices[0].platform} device(s)")
    if total > limit:
        raise UsageError(f"this run holds {total / 1e9:.1f} GB, but {limit / 1e9:.1f} GB are available; {remedy}")
