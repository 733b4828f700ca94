"""Can a run find its outer step by itself? A controller of PPO-EWMA's centre of mass beside what people use today.

    python -m experiments.controllers --tasks pendulum            # seeds 0 to 9, results/controllers.json
    python -m experiments.controllers --first-seed 100 --num-seeds 5 --tasks pendulum      # tuning

Every method is ppo_ewma.py's own update, in which a rule sets learning rate, epsilon and COM anew before each update.
Rules that need to know the budget (annealing) are run once per budget; the others are read on the way.
"""

import copy
import hashlib
import itertools
import multiprocessing
import os
import sys
import types
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax.sharding import PartitionSpec as P

from common.run import devices
from common.run.arguments import parse
from common.run.tracking import say
from experiments import results
from experiments.headline import difference, interval

PENDULUM = (
    "--env-id Pendulum-v1 --num-envs 32 --num-steps 64 --minibatch-size 256 --update-epochs 8 --learning-rate 1e-3"
)
STICKY = "--env-id Breakout-MinAtar --sticky-actions 0.1"
SHARE = "auto's share of the best fixed, above random"
START = 64.0  # ppo_ewma.py's default COM, at which every rule but the fixed ones begins


class Task(NamedTuple):
    """Flags of ppo_ewma.py, the budgets at which runs are compared, a random policy's return, the fixed COMs, and
    whether the other rules are run too."""

    flags: str
    budgets: tuple[int, ...]
    random: float
    coms: tuple[float, ...]
    others: bool = False


TASKS = {
    "pendulum": Task(
        f"{PENDULUM} --gamma 0.95 --ent-coef 0", (2**18, 2**19, 2**20), -1200.0, (8.0, 64.0, 512.0, 4096.0), others=True
    ),
    "breakout": Task(f"{STICKY} --num-envs 256 --minibatch-size 2048", (2**19, 2**20, 2**21), 0.5, (8.0, 64.0, 512.0)),
    "asterix": Task(
        "--env-id Asterix-MinAtar --num-envs 64 --minibatch-size 256 --update-epochs 8",
        *((2**18, 2**19, 2**20), 0.5, (8.0, 64.0, 512.0)),
    ),
    "breakout, healthy": Task(STICKY, (2**19, 2**20, 2**21), 0.5, (64.0,)),
    "space invaders, healthy": Task(
        "--env-id SpaceInvaders-MinAtar --sticky-actions 0.1 --num-envs 128 --minibatch-size 512 --learning-rate 3e-4",
        *((2**18, 2**19, 2**20), 2.0, (64.0,)),
    ),
}


class Values(NamedTuple):
    """What a rule sets: [] each."""

    learning_rate: Any
    clip_eps: Any
    com: Any


class Window(NamedTuple):
    """What the controller remembers: COM, updates left to pause, and sums over the updates of its window."""

    com: jax.Array
    pause: jax.Array
    updates: jax.Array  # in the window so far
    gains: jax.Array  # sums of 1, fresh gain, its square, own gain
    course: jax.Array  # sums of 1, x, y, x^2, x y, y^2, of the updates x in which an episode ended, with return y


class Auto(NamedTuple):
    """COM grows by `factor` when, over `window` updates, the mean gain on fresh transitions is not above 0 (by `sure`
    standard errors), nor the return's slope (by `climb` standard errors). It shrinks when fresh transitions confirm
    more than the share `signal` of the own gain. After either it pauses for `rest` COM."""

    window: int = 32
    factor: float = 2.0
    sure: float = 1.0
    climb: float = 1.0
    signal: float = 0.3
    rest: float = 2.0

    def start(self, com: float) -> Window:
        return Window(jnp.float32(com), jnp.int32(0), jnp.int32(0), jnp.zeros(4), jnp.zeros(6))

    def decide(self, state: Window, args: Any, metrics: dict[str, jax.Array]) -> Window:
        """The state after an update."""
        fresh, own, y = (metrics[key] for key in ("outer/fresh_gain", "outer/own_gain", "charts/episodic_return"))
        x, counts = state.updates.astype(jnp.float32), state.pause == 0
        add = lambda sums, seen, row: sums + jnp.where(seen & counts, jnp.stack(row), 0)  # noqa: E731
        one = jnp.ones(())
        gains = add(state.gains, jnp.isfinite(fresh), [one, fresh, fresh**2, own])
        course = add(state.course, jnp.isfinite(y), [one, x, y, x * x, x * y, y * y])
        updates = state.updates + counts
        full = updates == self.window
        stuck = full & self.is_stuck(gains, course)
        timid = full & ~stuck & (gains[1] > self.signal * gains[3])
        com = jnp.where(stuck, state.com * self.factor, jnp.where(timid, state.com / self.factor, state.com))
        rest = jnp.ceil(self.rest * com / (args.update_epochs * args.num_minibatches)).astype(jnp.int32)
        pause = jnp.where(stuck | timid, rest, jnp.maximum(state.pause - 1, 0))
        return Window(com, pause, jnp.where(full, 0, updates), jnp.where(full, 0, gains), jnp.where(full, 0, course))

    def is_stuck(self, gains: jax.Array, course: jax.Array) -> jax.Array:
        n, fresh, square, _ = gains
        mean, error = fresh / n, jnp.sqrt(jnp.maximum(square / n - (fresh / n) ** 2, 0) / (n - 1))
        n, x, y, xx, xy, yy = course
        spread = xx - x * x / n
        slope = (xy - x * y / n) / spread
        residual = jnp.maximum(yy - y * y / n - slope**2 * spread, 0)
        slope_error = jnp.sqrt(residual / (n - 2) / spread)
        enough = n >= 4  # returns for a slope
        return enough & (mean <= self.sure * error) & (slope <= self.climb * slope_error)


def methods(task: Task) -> dict[str, tuple]:
    """name -> (kind, setting, budgets at which it has to be run)."""
    longest = task.budgets[-1:]
    found: dict[str, tuple] = {f"fixed COM {com:g}": ("fixed", com, longest) for com in task.coms}
    if task.others:
        found |= {
            "annealed learning rate": ("anneal lr", START, task.budgets),
            "annealed epsilon": ("anneal eps", START, task.budgets),
            "annealed COM": ("anneal com", (START, task.coms[-1]), task.budgets),
            "KL-adaptive learning rate, 0.01": ("kl", (START, 0.01), longest),
            "KL-adaptive learning rate, 0.03": ("kl", (START, 0.03), longest),
        }
    return found | {"auto": ("auto", (START, Auto()), longest)}


def traceable_script() -> types.ModuleType:
    """ppo_ewma.py as a module whose epsilon may be an array of JAX."""
    source = Path("ppo_ewma.py").read_text()
    old = "np.log(max(1 - args.clip_eps, np.finfo(np.float32).tiny)), np.log1p(args.clip_eps)"
    new = "jnp.log(jnp.maximum(1 - args.clip_eps, np.finfo(np.float32).tiny)), jnp.log1p(args.clip_eps)"
    assert source.count(old) == 1
    module = types.ModuleType("ppo_ewma_controlled")
    module.__file__ = str(Path("ppo_ewma.py").resolve())
    sys.modules[module.__name__] = module
    exec(compile(source.replace(old, new), "ppo_ewma.py", "exec"), module.__dict__)
    return module


def with_values(args: Any, values: Values) -> Any:
    """The arguments with values that are known only when the update runs."""
    traced = copy.copy(args)
    for name, value in values._asdict().items():
        object.__setattr__(traced, name, value)
    return traced


def rule(kind: str, setting: Any, args: Any) -> tuple[Any, Any]:
    """-> the rule's first state; function of (state, update) -> Values; function of (state, metrics) -> state."""
    rate, eps = args.learning_rate, args.clip_eps
    left = lambda update: 1 - update / args.num_updates  # noqa: E731
    keep = lambda state, metrics: state  # noqa: E731
    if kind == "fixed":
        return (), lambda state, update: Values(rate, eps, setting), keep
    if kind == "anneal lr":
        return (), lambda state, update: Values(rate * left(update), eps, setting), keep
    if kind == "anneal eps":
        return (), lambda state, update: Values(rate, eps * left(update), setting), keep
    if kind == "anneal com":
        first, last = setting
        return (), lambda state, update: Values(rate, eps, first * (last / first) ** (1 - left(update))), keep
    if kind == "kl":  # rsl_rl's rule, once per update instead of once per minibatch
        com, target = setting

        def adapt(now: jax.Array, metrics: dict[str, jax.Array]) -> jax.Array:
            kl = metrics["outer/kl"]
            now = jnp.where(kl > 2 * target, now / 1.5, jnp.where(kl < target / 2, now * 1.5, now))
            return jnp.clip(now, 1e-5, 1e-2)

        return jnp.float32(rate), lambda state, update: Values(state, eps, com), adapt
    com, auto = setting
    return (
        auto.start(com),
        lambda state, update: Values(rate, eps, state.com),
        lambda state, metrics: auto.decide(state, args, metrics),
    )


def train(flags: str, steps: int, kind: str, setting: Any, first_seed: int, num_seeds: int) -> dict[str, np.ndarray]:
    """Trains all seeds at once. -> by name [updates, seeds]: returns, gains, KL, rate, epsilon, COM."""
    script = traceable_script()
    words = f"{flags} --total-timesteps {steps} --seed {first_seed} --num-seeds {num_seeds} --num-devices 1".split()
    args = parse(script.Args, "", words)
    args, env, network, init, _, _, keys = script.build(args)
    first, choose, after = rule(kind, setting, args)
    on_devices = devices.OnDevices(devices.choose_devices(1), num_seeds)
    split = on_devices.split(1)
    layout = script.TrainState(P(), split, P(), P(), P())

    def update(state: Any, control: Any) -> tuple:
        values = Values(*(jnp.float32(x) for x in choose(control, state.update)))
        state, metrics, _ = script.update(with_values(args, values), env, network, state)
        kept = {"return": metrics["charts/episodic_return"], "fresh": metrics["outer/fresh_gain"]}
        kept |= {"own": metrics["outer/own_gain"], "kl": metrics["outer/kl"], **values._asdict()}
        return state, after(control, metrics), kept

    step = on_devices(update, takes=(layout, P()), gives=(layout, P(), P()), donate=0)
    state = init(keys)
    control = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_seeds, *jnp.shape(x))), first)
    rows = []
    for _ in range(args.num_updates):
        state, control, row = step(state, control)
        rows.append(row)
    rows = jax.device_get(rows)
    return {name: np.stack([np.asarray(row[name]) for row in rows]) for name in rows[0]}


def job(folder: Path, name: str, words: tuple) -> Path:
    """One training of all seeds, kept as NAME.npz. Finished ones are not repeated."""
    file = folder / f"{name}.npz"
    if not file.exists():
        found = train(*words)
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".tmp.npz")
        np.savez_compressed(unfinished, **found)
        unfinished.rename(file)
    return file


def on_one_core(cores: Any) -> None:
    os.sched_setaffinity(0, {cores.get()})


def scores(rows: Any, share: float) -> list[float]:
    """Per seed: mean return over the last tenth of the updates up to this share of the run."""
    end = round(len(rows["return"]) * share)
    return np.nanmean(rows["return"][int(0.9 * end) : end], axis=0).tolist()


def judge(task: Task, found: dict[str, dict[int, Any]]) -> dict[str, Any]:
    """Per budget: every method with its interval, and `auto` beside the fixed COM that is best at that budget."""
    result = {}
    for budget in task.budgets:
        per_seed = {}
        for name, runs in found.items():
            length = min(steps for steps in runs if steps >= budget)
            per_seed[name] = scores(runs[length], budget / length)
        best = max((name for name in per_seed if name.startswith("fixed")), key=lambda name: np.mean(per_seed[name]))
        share = (np.mean(per_seed["auto"]) - task.random) / (np.mean(per_seed[best]) - task.random)
        result[f"{budget}"] = {
            "per seed": per_seed,
            "intervals": {name: interval(values) for name, values in per_seed.items()},
            "best fixed": best,
            "auto minus best fixed": difference(per_seed["auto"], per_seed[best]),
            SHARE: float(share),
            "within 5 %": bool(share >= 0.95),
        }
    return result


def main(
    tasks: tuple[Literal["pendulum", "breakout", "asterix", "breakout, healthy", "space invaders, healthy"], ...] = (
        *TASKS,
    ),
    first_seed: int = 0,
    num_seeds: int = 10,
    runs_dir: Path = Path("runs/controllers"),
    jobs: int = 2,
    out: Path | None = None,
) -> None:
    """Makes what is missing and prints every method's return at every budget.

    Args:
        tasks: Names of TASKS.
        first_seed: 100 for tuning, 0 for the results.
        num_seeds: Seeds, all in one program.
        runs_dir: Folder for the curves.
        jobs: How many trainings at once, one core each.
        out: The file to write (results/controllers.json for seed 0, else none).
    """
    wanted = {}
    for task in tasks:
        for name, (kind, setting, budgets) in methods(TASKS[task]).items():
            for steps in budgets:
                words = TASKS[task].flags, steps, kind, setting, first_seed, num_seeds
                digest = hashlib.sha256(repr(words).encode()).hexdigest()[:8]  # so that nothing old is taken for new
                wanted[task, name, steps] = f"{task} {name} {steps} {digest}".replace(" ", "_"), words
    context = multiprocessing.get_context("spawn")
    cores = context.Queue()
    for core in itertools.islice(itertools.cycle(sorted(os.sched_getaffinity(0))), jobs):
        cores.put(core)
    files = {}
    with ProcessPoolExecutor(jobs, context, on_one_core, (cores,)) as pool:
        waiting = {key: pool.submit(job, runs_dir, *what) for key, what in wanted.items()}
        for number, (key, future) in enumerate(waiting.items(), 1):
            files[key] = future.result()
            say(f"[{number}/{len(waiting)}] {', '.join(map(str, key))}")
    judged = {}
    for task in tasks:
        found: dict[str, dict[int, Any]] = {}
        for (of, name, steps), file in files.items():
            if of == task:
                found.setdefault(name, {})[steps] = np.load(file)
        judged[task] = judge(TASKS[task], found)
        for budget, at in judged[task].items():
            say(f"{task}, {int(budget):,} steps; auto has {at[SHARE]:.2f} of {at['best fixed']}")
            for name, (mean, low, high) in at["intervals"].items():
                say(f"  {name:<34}{mean:10.4g} ({low:.4g} to {high:.4g})")
    out = out or (Path("results/controllers.json") if first_seed == 0 else None)
    if out is not None:
        how = results.facts("controllers", "## A controller of the outer step") | {"auto": Auto()._asdict()}
        results.write(out, how | {"tasks": judged})


if __name__ == "__main__":
    tyro.cli(main)
