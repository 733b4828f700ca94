"""Makes one measurement in its own process, for compare.py and scaling.py. Needs only JAX and what it measures.

    python benchmarks/measure.py '{"system": "ours", "args": {"num_envs": 64}, "updates": 5}'

Speed is environment steps of training (acting and learning) per second, from the median time of an update. Each update
is waited for; the first is left out if there are three or more. Memory on a CPU is the process's peak minus what it
held after its imports. Compiling takes some 300 MB, which hides a small program; `program_bytes` is XLA's own figure.
On an accelerator, memory is the allocator's peak, summed over devices. Compile time is that of tracing and compiling
one update, uncached. The parameters and the gradient steps taken tell whether two programs did the same work.
"""

import importlib.util
import json
import os
import platform
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "gymnax", "rejax")
# Share of the free memory, since XLA's figure leaves out what the process needs for itself.
USABLE = 0.95


def proc_bytes(path: str, name: str) -> int | None:
    """Reads a line such as `VmRSS:   1234 kB` of a file in /proc; None if there is no such file."""
    try:
        return int(re.search(rf"{name}:\s+(\d+) kB", Path(path).read_text())[1]) * 1024
    except (OSError, TypeError):
        return None


def peak_bytes() -> int:
    # Prefers VmHWM, because Linux hands the parent's peak down to a new process in ru_maxrss.
    unit = 1 if sys.platform == "darwin" else 1024
    return proc_bytes("/proc/self/status", "VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


# Each gives two functions: one builds the update and its first state, the other finds the parameters and the number of
# gradient steps in a state.
def load_ours(spec: dict[str, Any]) -> tuple[Callable, Callable]:
    sys.path.insert(0, str(ROOT))
    import jax
    import optax

    from common.run import devices

    script = importlib.import_module(spec.get("script", "ppo"))
    unknown = spec["args"].keys() - script.Args.__dataclass_fields__.keys()
    if unknown:
        flags = ", ".join("--" + name.replace("_", "-") for name in sorted(unknown))
        sys.exit(f"{script.__name__}.py has no {flags}")
    args = script.Args(**{name: tuple(v) if isinstance(v, list) else v for name, v in spec["args"].items()})
    devices.start(args)
    # Our scripts import gymnax only to make an environment, the others at once. It starts JAX, so the line above comes
    # first.
    import gymnax  # noqa: F401

    def build() -> tuple:
        built, _, _, init, step, _, keys = script.build(args)
        return step, jax.jit(init)(keys), built.batch_size, built.num_devices

    def learned(state: Any) -> tuple:
        return state.learner.params, optax.tree.get(state.learner.opt_state, "count")

    return build, learned


def load_rejax(spec: dict[str, Any]) -> tuple[Callable, Callable]:
    import jax
    from rejax import PPO

    def build() -> tuple:
        algorithm = PPO.create(**spec["args"])
        state = jax.jit(algorithm.init_state)(jax.random.PRNGKey(0))
        batch_size = spec["args"]["num_envs"] * spec["args"]["num_steps"]
        # One iteration of what algorithm.train does between two evaluations.
        return lambda state: (algorithm.train_iteration(state), {}), state, batch_size, 1

    return build, lambda state: ((state.actor_ts.params, state.critic_ts.params), state.actor_ts.step)


def load_purejaxql(spec: dict[str, Any]) -> tuple[Callable, Callable]:
    for name in ("hydra", "omegaconf", "wandb"):  # for its command line and its log, neither of which is used here
        sys.modules[name] = mock.MagicMock()
    import jax

    found = importlib.util.spec_from_file_location("pqn_minatar", spec["file"])
    found.loader.exec_module(script := importlib.util.module_from_spec(found))

    def build() -> tuple:
        scan, updates = jax.lax.scan, []

        def without_updates(body: Callable, init: Any, *args, **kw) -> tuple:
            if getattr(body, "__name__", "") != "_update_step":
                return scan(body, init, *args, **kw)
            updates.append(body)
            return init, None

        # Its training is one function that scans over updates. Without that scan it returns the state before the first.
        with mock.patch.object(jax.lax, "scan", without_updates):
            state = jax.jit(script.make_train(spec["args"]))(jax.random.PRNGKey(0))["runner_state"]
        step = lambda state: updates[0](state, None)  # noqa: E731
        state = jax.tree.map(lambda x, y: x.astype(y.dtype), state, jax.eval_shape(step, state)[0])  # as a scan does
        return step, state, spec["args"]["NUM_ENVS"] * spec["args"]["NUM_STEPS"], 1

    return build, lambda state: (state[0].params, state[0].grad_steps)


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    load = {"ours": load_ours, "rejax": load_rejax, "purejaxql": load_purejaxql}[spec["system"]]
    build, learned = load(spec)
    bare = proc_bytes("/proc/self/status", "VmRSS") or peak_bytes()
    free = proc_bytes("/proc/meminfo", "MemAvailable") or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    import jax

    step, state, batch_size, num_devices = build()
    devices = jax.devices()[:num_devices]
    on_cpu = devices[0].platform == "cpu"
    began = time.perf_counter()
    compiled = jax.jit(step, donate_argnums=0).lower(state).compile()
    compile_s = time.perf_counter() - began
    if spec["system"] == "ours":
        from common.run import memory

        memory.give_back()  # as a run of our scripts does
    sizes = compiled.memory_analysis()
    program = sizes.temp_size_in_bytes + sizes.argument_size_in_bytes
    program = (program + sizes.output_size_in_bytes - sizes.alias_size_in_bytes) * num_devices
    result = {
        "compile_s": compile_s,
        "program_bytes": program,
        "num_devices": num_devices,
        "device": platform.machine() + " CPU" if on_cpu else devices[0].device_kind,
        "versions": versions(),
    }
    if not on_cpu:
        free = devices[0].memory_stats()["bytes_limit"] * num_devices
    if program > USABLE * free:
        return result | {"problem": f"does not fit: needs {program / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"}
    seconds, wanted = [], spec.get("updates")
    while len(seconds) < (wanted or 2) or (wanted is None and sum(seconds) < spec["seconds"]):
        began = time.perf_counter()
        state, *_ = jax.block_until_ready(compiled(state))
        seconds.append(time.perf_counter() - began)
    counted = seconds[1:] if len(seconds) > 2 else seconds
    median = statistics.median(counted)
    peak = peak_bytes() - bare if on_cpu else sum(d.memory_stats()["peak_bytes_in_use"] for d in devices)
    params, gradient_steps = learned(state)
    return result | {
        "parameters": sum(x.size for x in jax.tree.leaves(params)),
        "gradient_steps": int(gradient_steps) / len(seconds),
        "steps_per_second": batch_size / median,
        "update_s": {"median": median, "min": min(counted), "max": max(counted), "first": seconds[0]},
        "updates": len(seconds),
        "peak_bytes": peak,
        "bare_bytes": bare,
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
