"""Compare what a compiled update needs with the memory of the devices, before a state is made."""

import contextlib
import ctypes
import math
import os
import platform
import re
from pathlib import Path
from typing import Any

import jax

from common.run.arguments import UsageError, divisors
from common.run.devices import share, together


def device_bytes(devices: list[jax.Device]) -> int:
    """Memory that these devices of this machine may use together; for CPU devices, what the machine has free."""
    stats = devices[0].memory_stats() if devices[0].platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] * len(devices)
    try:
        free = int(re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())[1]) * 1024
    except (OSError, TypeError):  # not Linux: take all of it
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(free, cgroup_limit())


def cgroup_limit(root: Path = Path("/")) -> float:
    """The memory that is free in this process's container or Slurm job: the least in its cgroup (version 2) and the
    groups around it, where what files are cached in counts as free. Infinite if there is no limit. root: where /proc
    and /sys are."""
    limits = [math.inf]
    with contextlib.suppress(OSError):  # not Linux
        # In a container the path may be the host's; then only the top of it is there.
        group = Path((root / "proc/self/cgroup").read_text().strip().rpartition("::/")[2])
        for folder in (group, *group.parents):
            place = root / "sys/fs/cgroup" / folder
            with contextlib.suppress(OSError, ValueError):  # no such group, and "max" is not a number
                limits.append(int((place / "memory.max").read_text()))
                used = int((place / "memory.current").read_text())
                of = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
                free = sum(int(of.get(x, 0)) for x in ("inactive_file", "active_file", "slab_reclaimable"))
                limits[-1] -= max(0, used - free)
    return min(limits)


def compile_update(init: Any, step: Any, keys: jax.Array, *more: Any) -> tuple[Any, Any, Any]:
    """Compile init(keys) -> state and step(state, *more), both jitted, without making a state. -> both, and the state's
    shapes with their shardings."""
    shapes = jax.eval_shape(init, keys)
    init = init.lower(keys).compile()
    of = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)  # noqa: E731
    like = jax.tree.map(of, shapes, init.output_shardings)
    step = step.lower(like, *more).compile()
    give_back()
    return init, step, like


def give_back() -> None:
    """Return to the system what glibc kept after compiling, 230 MB after ppo.py's update."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def needed(program: Any) -> tuple[int, int]:
    """Bytes per device of what a compiled program takes and gives, and of what it holds besides while it runs."""
    sizes = program.memory_analysis()
    given = sizes.argument_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    return given, sizes.temp_size_in_bytes


def check_counts(args: Any) -> None:
    """Refuse more transitions than the shuffle can count in 32 bits; those that sapg.py relabels count again."""
    chunk = math.prod(getattr(args, "epoch", (1, args.batch_size // args.num_rollout_chunks)))
    if chunk > 2**31 * args.num_devices:
        sizes = f"--num-envs {args.num_envs} * --num-steps {args.num_steps}"
        more = f"use more than --num-rollout-chunks {args.num_rollout_chunks}"
        raise UsageError(f"{sizes}: more than 2^31 transitions per device and chunk; {more}")


def check(args: Any, step: Any) -> None:
    """Print what a compiled update needs. Raise UsageError if the devices of a machine have less than their part."""
    here = [device for device in jax.devices()[: args.num_devices] if device.process_index == jax.process_index()]
    node = platform.node()  # the processes of one machine share its CPU memory
    sharing = share(node).count(node) if here[0].platform == "cpu" else 1
    limit, (state, work) = device_bytes(here) // sharing, (size * len(here) for size in needed(step))
    available = f"{limit / 1e9:.1f} GB available on {len(here)} {here[0].platform} device(s)"
    print(f"memory: state {state / 1e6:,.0f} MB, an update {work / 1e6:,.0f} MB more; {available}")

    def compare() -> None:
        if state + work <= limit:
            return
        # About what an update needs in more chunks, each of which has a part of every block.
        blocks, chunks = getattr(args, "num_blocks", 1), args.num_rollout_chunks
        common = math.gcd(args.num_envs // blocks // args.num_devices, args.num_minibatches)
        fitting = [count for count in divisors(common) if state + work * chunks // count <= limit]
        advice = f"--num-rollout-chunks {fitting[0]} should fit, or " if fitting else ""
        sizes = f"--num-envs {args.num_envs} * --num-steps {args.num_steps}"
        has = f"needs {(state + work) / 1e9:.1f} GB, {available}"
        raise UsageError(f"{sizes}: {has}; {advice}take fewer of either, or of --num-seeds")

    together(compare)
