"""Estimate what a run will hold in memory, before anything is compiled."""

import contextlib
import ctypes
import math
import os
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from common.run.arguments import UsageError, divisors
from common.run.devices import share, together

Parts = dict[str, int]  # bytes over all devices, by purpose


def tree_bytes(tree: Any) -> int:
    """Bytes of all arrays (or shapes) in a pytree."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


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
    """The memory limit of this process's container or Slurm job: the smallest of its cgroup's and those of the groups
    around it. Infinite if there is none. root: where /proc and /sys are."""
    limits, mount = [math.inf], root / "sys/fs/cgroup"
    try:
        groups = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:  # not Linux
        return math.inf
    for _, controllers, path in groups:
        if controllers == "":  # version 2
            top, name = mount, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = mount / "memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container the path may be the host's; then only the top of it is there.
        inner = top / path.lstrip("/")
        for group in (inner, *inner.parents):
            with contextlib.suppress(OSError, ValueError):  # no such group, and "max" is not a number
                limits.append(int((group / name).read_text()))
    return min(limits)


def estimate(args: Any, env: Any, state: Any, floats: int, activations: int, sample: int, chunks: int) -> Parts:
    """Peak memory of an update in this many chunks.

    state: shapes of the learner and the environments, for all seeds; floats: floats kept per transition in addition to
    observation, action and two flags; activations: floats that the networks hold at once per observation; sample:
    transitions on which an update is measured.
    """
    size, chunk = math.prod(env.obs_shape), args.num_seeds * args.num_envs // chunks
    stored = -(-size // 8) if env.obs_dtype.kind == "b" else size * env.obs_dtype.itemsize
    states = tree_bytes(state.environments)
    return {
        "learner": 4 * args.num_devices * tree_bytes(state.learner),  # old and new, and gradients
        # All states; for the current chunk also those after a step, and what the network computes from them.
        "environments": states + states // chunks + 4 * chunk * (size + activations),
        "rollout": chunk * args.num_steps * (stored + 4 * (env.action_dim + floats) + 2),
        # One minibatch as floats, and what the gradient keeps of it. If there is more, the sample as it is and as
        # floats; without a gradient a layer is not kept for long.
        "minibatch": args.num_seeds
        * max(
            4 * args.minibatch_size * (size + 2 * activations),
            min(sample, args.num_envs * args.num_steps) * (stored + 4 * size + activations),
        ),
    }


def activations(args: Any, env: Any, widest: int = 0) -> int:
    """Floats that the networks hold at once per observation: of hidden layers three times the widest one, or `widest`;
    of convolutions, sizes of an observation."""
    views = {"mlp": 0, "cnn": 9, "nature": 5, "impala": 50}[args.network]
    return (widest or 3 * max(args.hidden_sizes)) + views * math.prod(env.obs_shape)


def check(args: Any, env: Any, state: Any, floats: int, activations: int, sample: int) -> None:
    """Print what `estimate` says. Raise UsageError if the devices have less than an update or an evaluation needs. The
    arguments are those of `estimate`."""
    fit(args, env, lambda chunks: estimate(args, env, state, floats, activations, sample, chunks))
    each = tree_bytes(state.environments) // (args.num_seeds * args.num_envs)
    levels = env.suite.num_levels or 1
    episodes = levels * -(-args.num_eval_episodes // levels)
    needed = args.num_seeds * episodes * (2 * each + 4 * (math.prod(env.obs_shape) + activations))

    def play() -> None:
        free = device_bytes(jax.local_devices()[:1])
        if needed > free and args.num_eval_episodes:
            raise UsageError(
                f"--num-eval-episodes {args.num_eval_episodes}: playing {episodes} episodes at once needs "
                f"{needed / 1e9:.1f} GB of the {free / 1e9:.1f} GB available; take fewer"
            )

    together(play)


def fit(args: Any, env: Any, parts_in: Callable[[int], Parts], advice: str = "") -> None:
    """Print what a run will hold, parts_in(count of chunks). Raise UsageError if the devices of a machine have less
    than their part of it. advice: what else to lower."""
    devices = jax.devices()[: args.num_devices]
    here = [device for device in devices if device.process_index == jax.process_index()]
    # The processes of one machine share its CPU memory.
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
        sizes = f"--num-envs {args.num_envs} * --num-steps {args.num_steps}"
        whole = getattr(args, "adaptive_lr_kl", None) is not None  # which does not go together with chunks
        if env.num_envs * args.num_steps > 2**31:  # the shuffle counts in 32 bits
            more = f"use more than --num-rollout-chunks {args.num_rollout_chunks}"
            less = "take fewer, or leave out --adaptive-lr-kl and use --num-rollout-chunks"
            raise UsageError(f"{sizes}: more than 2^31 transitions per device and chunk; {less if whole else more}")
        if needed(args.num_rollout_chunks) > limit:
            blocks = getattr(args, "num_blocks", 1)  # of which each chunk has a part
            common = math.gcd(args.num_envs // blocks // len(devices), args.num_minibatches)
            fitting = [chunks for chunks in divisors(common) if needed(chunks) <= limit and not whole]
            chunks = f"--num-rollout-chunks {fitting[0]} would fit, or " if fitting else ""
            raise UsageError(
                f"{sizes}: needs {needed(args.num_rollout_chunks) / 1e9:.1f} GB of the {limit / 1e9:.1f} GB "
                f"available{each}; {chunks}fewer of either, or of --num-seeds{advice}"
            )

    together(compare)


def give_back() -> None:
    """Return to the system what glibc kept after compiling, 230 MB after ppo.py's update."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
