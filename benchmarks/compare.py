"""Compares a script with another program on the same work: speed, memory and compile time.

    python benchmarks/compare.py                        # ppo.py with rejax's PPO; an hour or more on two cores
    python benchmarks/compare.py --sizes 64x4 1024x16 --repetitions 1
    python benchmarks/compare.py --peer purejaxql       # pqn.py with PureJaxQL's PQN; some ten minutes

They take turns, each time in a fresh process; measure.py says how things are measured. The other program has a virtual
environment (made on first use) with the same JAX, runs its bare training iteration without evaluation and log, and uses
XLA's threads on all cores.

rejax 0.1.3 and ppo.py train CartPole-v1 and Breakout-MinAtar with 128 steps, 4 epochs and separate 64 x 64 tanh
networks. What differs is that rejax resets every environment at every step, records nothing about its updates (KL,
episode statistics), treats a truncated episode as ended, and clips gradients by element.

PureJaxQL's pqn_minatar.py and pqn.py train Breakout-MinAtar with its published settings for MinAtar: 32 steps, 2 epochs
of minibatches of 128 transitions, a convolution with 16 channels and a layer of 128, layer normalisation, and an
annealed learning rate. What differs is that it resets every environment at every step, keeps the next observation and
all values of every transition and shuffles copies of them, carries an unused BatchNorm, and measures less (no KL).
docs/pqn.md names a difference in the targets.
"""

import hashlib
import os
import signal
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import tyro

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.report import Results, describe, finish_axis, new_figure, run_worker, save_figure
from common.run.plots import COLOURS

QUANTITIES = {
    "steps_per_second": ("training speed", "environment steps per second", 1),
    "peak_bytes": ("peak memory", "peak memory above imports (MB)", 1e-6),
    "compile_s": ("compile time", "time to compile one update (s)", 1),
}
WORK = ("parameters", "gradient_steps")  # in all, and per update
# The hyperparameters of ppo.py and rejax under names that both know. total_timesteps, added below, only has to be large
# enough.
SHARED = {
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_eps": 0.2,
    "ent_coef": 0.01,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
    "learning_rate": 5e-4,
}
# The newest pqn_minatar.py (2025-03-19), at PureJaxQL's commit of 2025-11-12.
PQN_URL = "https://raw.githubusercontent.com/mttga/purejaxql/47af6d7b35c89ddfe633aaf7341bdb8964cb7cce/purejaxql/pqn_minatar.py"
PQN_SHA256 = "4c6d2789b641f50a862dce03b8b09b75b7a6a275469a1196270011d7cc12d72b"
# purejaxql/config/alg/pqn_minatar.yaml, without tests during training. Sizes and lengths are added below.
PQN = {
    "EPS_START": 1.0,
    "EPS_FINISH": 0.05,
    "EPS_DECAY": 0.1,
    "NUM_EPOCHS": 2,
    "NORM_TYPE": "layer_norm",
    "LR": 5e-4,
    "MAX_GRAD_NORM": 10,
    "LR_LINEAR_DECAY": True,
    "GAMMA": 0.99,
    "LAMBDA": 0.65,
    "TEST_DURING_TRAINING": False,
    "WANDB_MODE": "disabled",
}
OUR_PQN = {
    "network": "cnn",
    "hidden_sizes": (128,),
    "update_epochs": 2,
    "anneal_lr": True,
    "start_e": 1.0,
    "end_e": 0.05,
    "learning_rate": 5e-4,
    "max_grad_norm": 10.0,
    "gamma": 0.99,
    "q_lambda": 0.65,
}


@dataclass(frozen=True)
class Peer:
    """A program to compare with, and the work."""

    name: str
    ours: str  # our script
    algorithm: str
    epochs: int
    env_ids: tuple[str, ...]
    sizes: tuple[str, ...]
    num_steps: int
    out: Path


PEERS = {
    "rejax": Peer(
        name="rejax 0.1.3",
        ours="ppo",
        algorithm="PPO",
        epochs=4,
        env_ids=("CartPole-v1", "Breakout-MinAtar"),
        sizes=("64x4", "1024x16", "16384x256", "65536x1024"),
        num_steps=128,
        out=Path("results/compare"),
    ),
    "purejaxql": Peer(
        name="PureJaxQL",
        ours="pqn",
        algorithm="PQN",
        epochs=2,
        env_ids=("Breakout-MinAtar",),
        sizes=("128x32", "1024x256", "4096x1024"),
        num_steps=32,
        out=Path("results/compare_pqn"),
    ),
}


@dataclass(frozen=True)
class Args:
    peer: Literal["rejax", "purejaxql"] = "rejax"
    """Compare ppo.py with rejax, or pqn.py with PureJaxQL."""
    env_ids: tuple[str, ...] | None = None
    """gymnax ids (default: CartPole-v1 and Breakout-MinAtar; for purejaxql the latter)."""
    sizes: tuple[str, ...] | None = None
    """Sizes to measure, each as environments x minibatches per epoch (default: 64x4 1024x16 16384x256 65536x1024; for
    purejaxql 128x32 1024x256 4096x1024)."""
    num_steps: int | None = None
    """Steps per environment and update (default: 128; for purejaxql 32)."""
    repetitions: int = 3
    """How often each of the two is measured; ratios are taken within a repetition."""
    updates: int | None = None
    """Updates per measurement; by default as many as our script does in --seconds, and at least 2."""
    seconds: float = 10.0
    """Least time, in seconds, over which our script's updates are measured."""
    timeout: float = 1800.0
    """Seconds after which a measurement is abandoned."""
    compute_dtype: str = "float32"
    """Our script's --compute-dtype; the others have float32 only."""
    rejax_python: Path | None = None
    """Python of a virtual environment with rejax 0.1.3 and gymnax 0.0.9; by default one is made in ~/.cache."""
    purejaxql: Path | None = None
    """PureJaxQL's pqn_minatar.py, or a checkout of PureJaxQL with it; by default the file comes from GitHub."""
    out: Path | None = None
    """Results go to <out>.json and <out>.png; results of this commit found there are not measured again.
    (Default: results/compare; for purejaxql results/compare_pqn.)"""
    again: bool = False
    """Measure everything again."""

    def __post_init__(self):
        for name in ("env_ids", "sizes", "num_steps", "out"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(PEERS[self.peer], name))

    @property
    def systems(self) -> dict[str, str]:
        return {"ours": f"{PEERS[self.peer].ours}.py", self.peer: PEERS[self.peer].name}


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ppo-scaling"


def make_rejax_python() -> Path:
    """Returns the Python of a virtual environment with rejax and our JAX, to compare programs and not compilers. It has
    all that PureJaxQL's script needs."""
    folder = cache() / f"rejax-venv-jax-{version('jax')}"
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        print(f"installing rejax 0.1.3 in {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        packages = ("rejax==0.1.3", "gymnax==0.0.9", f"jax=={version('jax')}")
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        complete.touch()
    return python


def find_pqn_minatar(path: Path | None) -> Path:
    """Returns PureJaxQL's script, from `path` or from GitHub, and only the version that the settings here are for."""
    if path is not None:
        path = path / "purejaxql" / "pqn_minatar.py" if path.is_dir() else path
        content = path.read_bytes() if path.exists() else b""
    else:
        path = cache() / f"purejaxql-{PQN_SHA256[:8]}" / "pqn_minatar.py"
        try:
            content = path.read_bytes() if path.exists() else urllib.request.urlopen(PQN_URL, timeout=60).read()
        except OSError as error:
            raise SystemExit(f"{PQN_URL}: {error}; give a checkout of PureJaxQL with --purejaxql") from None
    if hashlib.sha256(content).hexdigest() != PQN_SHA256:
        raise SystemExit(f"{path} is not {PQN_URL}")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return path.resolve()


def make_settings(args: Args) -> Iterator[dict[str, Any]]:
    """Yields all points in the order in which they are measured."""
    changed = {"compute_dtype": args.compute_dtype} if args.compute_dtype != "float32" else {}
    for env_id in args.env_ids:
        for size in args.sizes:
            num_envs, num_minibatches = map(int, size.split("x"))
            for repetition in range(1, args.repetitions + 1):
                for system in args.systems:
                    yield {
                        "env_id": env_id,
                        "num_envs": num_envs,
                        "num_minibatches": num_minibatches,
                        "num_steps": args.num_steps,
                        "length": f"{args.updates} updates" if args.updates else f"{args.seconds:g} s",
                        "repetition": repetition,
                        "system": system,
                    } | changed


def make_spec(args: Args, setting: dict[str, Any], updates: int | None) -> dict[str, Any]:
    """Returns what measure.py has to do."""
    sizes = {name: setting[name] for name in ("num_envs", "num_steps", "num_minibatches")}
    total = {"total_timesteps": 10**4 * setting["num_envs"] * setting["num_steps"]}
    length = {"updates": updates, "seconds": args.seconds}
    common = {"system": setting["system"], **length}
    if setting["system"] == "purejaxql":
        its = {name.upper(): value for name, value in (sizes | total).items()}
        its |= {"ENV_NAME": setting["env_id"], "TOTAL_TIMESTEPS_DECAY": total["total_timesteps"], **PQN}
        return common | {"args": its, "file": str(find_pqn_minatar(args.purejaxql))}
    if setting["system"] == "rejax":
        network = {"hidden_layer_sizes": (64, 64), "activation": "tanh"}
        its = {"env": setting["env_id"], "num_epochs": 4, "agent_kwargs": network}
        return common | {"args": SHARED | sizes | total | its}
    its = {"env_id": setting["env_id"], "compute_dtype": args.compute_dtype}
    if args.peer == "rejax":
        network = {"network": "mlp", "hidden_sizes": (64, 64), "activation": "tanh", "shared_encoder": False}
        # What rejax does, where the defaults do something else.
        same = {"layer_norm": False, "clip_vloss": True, "anneal_lr": False, "anneal_ent": False}
        its |= SHARED | {"update_epochs": 4, **network, **same}
    else:
        its |= OUR_PQN
    return common | {"script": PEERS[args.peer].ours, "args": sizes | total | its}


def measure_all(args: Args, results: Results) -> None:
    if args.peer == "purejaxql":
        find_pqn_minatar(args.purejaxql)  # before anything is measured
    rejax_python = args.rejax_python or make_rejax_python()
    systems = args.systems
    settings, ours = list(make_settings(args)), {}
    hopeless: dict[tuple, dict[str, Any]] = {}  # what did not work once is not repeated
    for number, setting in enumerate(settings, 1):
        system = setting["system"]
        group = tuple(value for name, value in setting.items() if name != "repetition")
        result = results.get(setting)
        if result is None:
            result = hopeless.get(group)
            if result is None and system == "ours":
                result = run_worker(make_spec(args, setting, args.updates), args.timeout)
            elif result is None:
                # As many updates as ours in the same repetition.
                spec = make_spec(args, setting, args.updates or ours.get("updates"))
                result = run_worker(spec, args.timeout, rejax_python)
            results.add(setting, result)
        if "problem" in result:
            hopeless[group] = result
        ours = result if system == "ours" else ours
        if "device" in result and "device" in ours and result["device"] != ours["device"]:
            name = systems[system]
            raise SystemExit(
                f"{systems['ours']} ran on {ours['device']}, {name} on {result['device']}: see --rejax-python"
            )
        print(
            f"[{number}/{len(settings)}] {setting['env_id']}, {setting['num_envs']} environments, "
            f"repetition {setting['repetition']}, {systems[system]}: {describe(result)}",
            flush=True,
        )


def summarise(results: Results, systems: dict[str, str]) -> list[dict[str, Any]]:
    """Makes one row per setting: each side's medians, and median, least and greatest of the ratios ours / the other."""
    groups: dict[tuple, dict[int, dict[str, dict[str, Any]]]] = {}
    names = ("env_id", "num_envs", "num_minibatches", "num_steps", "length", "compute_dtype")
    for point in results.current():
        work = tuple(point.get(name) for name in names)
        groups.setdefault(work, {}).setdefault(point["repetition"], {})[point["system"]] = point
    rows, (mine, other) = [], systems
    for work, repetitions in groups.items():
        row = {name: value for name, value in zip(names, work, strict=True) if value is not None}
        for system in systems:
            points = [pair[system] for pair in repetitions.values() if system in pair]
            row[system] = next(({"problem": p["problem"]} for p in points if "problem" in p), {})
            for key in (*QUANTITIES, *WORK):
                values = [p[key] for p in points if "problem" not in p]
                row[system] |= {key: statistics.median(values)} if values else {}
        pairs = [pair for pair in repetitions.values() if len(pair) == 2]
        pairs = [pair for pair in pairs if not any("problem" in point for point in pair.values())]
        row["repetitions"] = len(pairs)
        ratios = {key: sorted(pair[mine][key] / pair[other][key] for pair in pairs) for key in QUANTITIES}
        row["ratios"] = {
            key: {"median": statistics.median(values), "min": values[0], "max": values[-1]}
            for key, values in ratios.items()
            if values
        }
        rows.append(row)
    return sorted(rows, key=lambda row: (row["env_id"], row["num_envs"], row["num_minibatches"], row["num_steps"]))


def list_problems(rows: list[dict[str, Any]], systems: dict[str, str]) -> list[str]:
    """Lists what could not be measured, and why."""
    return [
        f"{row['env_id']}, {row['num_envs']} × {row['num_minibatches']} × {row['num_steps']}: {name} {problem}"
        for row in rows
        for system, name in systems.items()
        if (problem := row[system].get("problem"))
    ]


def draw(rows: list[dict[str, Any]], args: Args, caption: str, path: Path) -> None:
    systems, (ours, other) = args.systems, args.systems.values()
    env_ids = list(dict.fromkeys(row["env_id"] for row in rows))
    title = f"{ours} and {other}: the same {PEERS[args.peer].algorithm} training"
    figure, axes = new_figure(len(QUANTITIES), len(env_ids), title)
    for line, env_id in zip(axes.T, env_ids, strict=True):
        mine = [row for row in rows if row["env_id"] == env_id]
        for axis, (key, (title, label, factor)) in zip(line, QUANTITIES.items(), strict=True):
            for (system, name), colour, marker in zip(systems.items(), COLOURS, "os", strict=False):
                points = [(row["num_envs"], row[system][key] * factor) for row in mine if key in row[system]]
                if points:
                    axis.plot(*zip(*points, strict=True), color=colour, marker=marker, label=name)
            for row in mine:
                ratio, top = row["ratios"].get(key), max((row[s].get(key, 0) for s in systems), default=0)
                missing = [name.split()[0] for system, name in systems.items() if "problem" in row[system]]
                text = f"×{ratio['median']:.2f}" if ratio else f"no\n{' '.join(missing)}" if missing else ""
                if top:
                    how = {"textcoords": "offset points", "xytext": (0, 7), "ha": "center", "fontsize": 9}
                    over_lines = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
                    axis.annotate(text, (row["num_envs"], top * factor), bbox=over_lines, **how)
            axis.set(title=f"{env_id}: {title}", xlabel="environments in parallel", ylabel=label)
            finish_axis(axis, sorted({row["num_envs"] for row in mine}), log=key == "peak_bytes")
    notes = [*list_problems(rows, systems), f"×: {ours} / {other.split()[0]}, median over repetitions. {caption}"]
    save_figure(figure, path, "\n".join(notes))


def main(args: Args) -> None:
    results = Results(args.out, args.again)
    # So that even a terminated benchmark ends its worker and draws its picture.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        measure_all(args, results)
    except KeyboardInterrupt:
        sys.exit("interrupted; the same command goes on from here")
    finally:
        results.summary = rows = summarise(results, args.systems)
        if rows:
            results.write()
            draw(rows, args, results.caption(), args.out.with_name(args.out.name + ".png"))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__.split("\n\n")[0]))
