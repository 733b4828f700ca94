"""Compares a script with another program on the same work: speed, memory and compile time.

    python benchmarks/compare.py                        # ppo.py with rejax's PPO; an hour or more on two cores
    python benchmarks/compare.py --sizes 64x4 1024x16 --repetitions 1
    python benchmarks/compare.py --peer purejaxql       # pqn.py with PureJaxQL's PQN; some ten minutes

They take turns, each time in a fresh process; measure.py says how things are measured. The other program has a virtual
environment (made on first use) with the same JAX, runs its bare training iteration without evaluation and log, and uses
XLA's threads on all cores.

rejax 0.1.3 and ppo.py train CartPole-v1 and Breakout-MinAtar with 128 steps, 4 epochs and separate 64 x 64 tanh
networks. What differs is that rejax resets every environment at every step, records nothing about its updates (KL,
episode statistics), treats a truncated episode as ended, clips gradients by element, and does not give back to the
system what glibc kept after compiling, as ppo.py does (230 MB).

PureJaxQL's pqn_minatar.py and pqn.py train Breakout-MinAtar with its published settings for MinAtar: 32 steps, 2 epochs
of minibatches of 128 transitions, a convolution with 16 channels and a layer of 128, layer normalisation, and an
annealed learning rate. What differs is that it resets every environment at every step, keeps the next observation and
all values of every transition and shuffles copies of them, carries an unused BatchNorm, and measures less (no KL).
docs/pqn.md names a difference in the targets.
"""

import itertools
import statistics
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import tyro

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
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
    env_ids: tuple[str, ...]
    sizes: tuple[str, ...]
    num_steps: int
    out: Path


PEERS = {
    "rejax": Peer(
        name="rejax 0.1.3",
        ours="ppo",
        algorithm="PPO",
        env_ids=("CartPole-v1", "Breakout-MinAtar"),
        sizes=("64x4", "1024x16", "16384x256", "65536x1024"),
        num_steps=128,
        out=Path("results/compare"),
    ),
    "purejaxql": Peer(
        name="PureJaxQL",
        ours="pqn",
        algorithm="PQN",
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
    repetitions: int = 3
    """How often each of the two is measured; ratios are taken within a repetition."""
    seconds: float = 10.0
    """Least time, in seconds, over which our updates are measured, and at least two of them; the peer makes as many."""
    compute_dtype: str = "float32"
    """Our script's --compute-dtype; the others have float32 only."""
    out: Path | None = None
    """Results go to <out>.json and <out>.png (default: results/compare; for purejaxql results/compare_pqn)."""

    def __post_init__(self):
        for name in ("env_ids", "sizes", "out"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(PEERS[self.peer], name))

    @property
    def systems(self) -> dict[str, str]:
        return {"ours": f"{PEERS[self.peer].ours}.py", self.peer: PEERS[self.peer].name}


def make_rejax_python() -> Path:
    """Returns the Python of a virtual environment with rejax and our JAX, to compare programs and not compilers. It has
    all that the scripts of PureJaxQL and PureJaxRL need."""
    jax = version("jax")
    return report.make_python(f"rejax-venv-jax-{jax}", "rejax==0.1.3", "gymnax==0.0.9", f"jax=={jax}")


def make_spec(args: Args, system: str, env_id: str, sizes: dict[str, int], updates: int | None) -> dict[str, Any]:
    """Returns what measure.py has to do."""
    total = {"total_timesteps": 10**4 * sizes["num_envs"] * sizes["num_steps"]}
    common = {"system": system, "updates": updates, "seconds": args.seconds}
    if system == "purejaxql":
        its = {name.upper(): value for name, value in (sizes | total).items()}
        its |= {"ENV_NAME": env_id, "TOTAL_TIMESTEPS_DECAY": total["total_timesteps"], **PQN}
        return common | {"args": its, "file": str(report.download(PQN_URL, PQN_SHA256))}
    if system == "rejax":
        network = {"hidden_layer_sizes": (64, 64), "activation": "tanh"}
        return common | {"args": SHARED | sizes | total | {"env": env_id, "num_epochs": 4, "agent_kwargs": network}}
    its = {"env_id": env_id, "compute_dtype": args.compute_dtype}
    if args.peer == "rejax":
        network = {"network": "mlp", "hidden_sizes": (64, 64), "activation": "tanh", "shared_encoder": False}
        # What rejax does, where the defaults do something else.
        same = {"layer_norm": False, "clip_vloss": True, "anneal_lr": False, "anneal_ent": False}
        its |= SHARED | {"update_epochs": 4, **network, **same}
    else:
        its |= OUR_PQN
    return common | {"script": PEERS[args.peer].ours, "args": sizes | total | its}


def measure_all(args: Args) -> list[dict[str, Any]]:
    """-> points, each a setting and its result. What did not work once is not repeated."""
    points, python = [], make_rejax_python()
    for env_id, size in itertools.product(args.env_ids, args.sizes):
        sizes = dict(zip(("num_envs", "num_minibatches"), map(int, size.split("x")), strict=True))
        sizes["num_steps"] = PEERS[args.peer].num_steps
        for repetition in range(1, args.repetitions + 1):
            found: dict[str, dict[str, Any]] = {}
            for system, name in args.systems.items():
                spec = make_spec(args, system, env_id, sizes, found.get("ours", {}).get("updates"))
                found[system] = report.run_worker(spec, sys.executable if system == "ours" else python)
                setting = {"env_id": env_id, **sizes, "repetition": repetition, "system": system}
                points.append({"setting": setting, "result": found[system]})
                print(
                    f"{env_id}, {size}, repetition {repetition}, {name}: {report.describe(found[system])}", flush=True
                )
            report.write(args.out.with_suffix(".json"), report.record(summary=summarise(points), points=points))
            if any("problem" in result for result in found.values()):
                break
            if len({result["device"] for result in found.values()}) > 1:
                raise SystemExit(f"{' and '.join(args.systems.values())} ran on different devices")
    return points


def summarise(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Makes one row per setting: each side's medians, and median, least and greatest of the ratios ours / the other."""
    groups: dict[tuple, dict[str, list[dict[str, Any]]]] = {}
    names = ("env_id", "num_envs", "num_minibatches", "num_steps")
    for point in points:
        work = tuple(point["setting"][name] for name in names)
        groups.setdefault(work, {}).setdefault(point["setting"]["system"], []).append(point["result"])
    rows = []
    for work, sides in groups.items():
        row: dict[str, Any] = dict(zip(names, work, strict=True)) | {"ratios": {}}
        for system, results in sides.items():
            failed = [{"problem": result["problem"]} for result in results if "problem" in result]
            medians = {
                key: statistics.median(values)
                for key in (*QUANTITIES, *WORK)
                if (values := [result[key] for result in results if "problem" not in result])
            }
            row[system] = (failed or [{}])[0] | medians
        pairs = [pair for pair in zip(*sides.values(), strict=False) if not any("problem" in x for x in pair)]
        row["repetitions"] = len(pairs)
        for key in QUANTITIES if pairs else ():
            values = [ours[key] / theirs[key] for ours, theirs in pairs]
            row["ratios"][key] = {"median": statistics.median(values), "min": min(values), "max": max(values)}
        rows.append(row)
    return rows


def draw(points: list[dict[str, Any]], args: Args, path: Path) -> None:
    rows, systems, (ours, other) = summarise(points), args.systems, args.systems.values()
    env_ids = list(dict.fromkeys(row["env_id"] for row in rows))
    title = f"{ours} and {other}: the same {PEERS[args.peer].algorithm} training"
    figure, axes = report.new_figure(len(QUANTITIES), len(env_ids), title)
    notes = []
    for line, env_id in zip(axes.T, env_ids, strict=True):
        mine = [row for row in rows if row["env_id"] == env_id]
        for row, (system, name) in itertools.product(mine, systems.items()):
            if "problem" in row[system]:
                notes.append(f"{env_id}, {row['num_envs']} × {row['num_minibatches']}: {name} {row[system]['problem']}")
        for axis, (key, (title, label, factor)) in zip(line, QUANTITIES.items(), strict=True):
            for (system, name), colour, marker in zip(systems.items(), COLOURS, "os", strict=False):
                shown = [(row["num_envs"], row[system][key] * factor) for row in mine if key in row[system]]
                if shown:
                    axis.plot(*zip(*shown, strict=True), color=colour, marker=marker, label=name)
            for row in mine:
                if ratio := row["ratios"].get(key):
                    top = max(row[system][key] for system in systems) * factor
                    how = {"textcoords": "offset points", "xytext": (0, 7), "ha": "center", "fontsize": 9}
                    over_lines = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
                    axis.annotate(f"×{ratio['median']:.2f}", (row["num_envs"], top), bbox=over_lines, **how)
            axis.set(title=f"{env_id}: {title}", xlabel="environments in parallel", ylabel=label)
            report.finish_axis(axis, sorted({row["num_envs"] for row in mine}), log=key == "peak_bytes")
    notes.append(f"×: {ours} / {other.split()[0]}, median over repetitions. {report.caption(points)}")
    report.save_figure(figure, path, "\n".join(notes))


def main(args: Args) -> None:
    draw(measure_all(args), args, args.out.with_suffix(".png"))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__.split("\n\n")[0]))
