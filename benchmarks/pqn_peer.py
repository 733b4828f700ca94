"""Compares pqn.py with PureJaxQL's pqn_minatar.py on the same work: training steps per second, both in turns.

    git clone https://github.com/mttga/purejaxql /tmp/purejaxql
    python benchmarks/pqn_peer.py --peer /tmp/purejaxql/purejaxql/pqn_minatar.py      # ten minutes on two cores

Same environment, network (3x3 convolution of 16 channels, 128 units, layer normalisation), sizes, epochs and optimiser,
those of the peer's config/alg/pqn_minatar.yaml. The peer runs unchanged, in this virtual environment, without its
evaluation and wandb. Each of the two is timed over whole updates after compiling; the peer, which is one program for a
whole training, by the difference of two lengths. Writes results/pqn_peer.json.
"""

import argparse
import datetime
import importlib.util
import json
import statistics
import sys
import time
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import common.run.early  # noqa: E402, F401, I001 (before JAX)

import jax  # noqa: E402

import pqn  # noqa: E402
from benchmarks.report import git  # noqa: E402
from common.run import devices  # noqa: E402

SIZES = {"num_envs": 128, "num_steps": 32, "num_minibatches": 32, "update_epochs": 2}


def ours(env_id: str, updates: int, num_devices: int | None):
    """-> function that trains for `updates` and returns its seconds."""
    args = pqn.Args(
        env_id=env_id, total_timesteps=10**7, network="cnn", hidden_sizes=(128,), num_devices=num_devices,
        start_e=1.0, end_e=0.05, learning_rate=5e-4, anneal_lr=True, max_grad_norm=10.0, q_lambda=0.65, **SIZES,
    )  # fmt: skip
    args, _, _, init, step, _, keys = pqn.build(args)
    state = {"now": init(keys)}

    def run() -> float:
        began = time.perf_counter()
        for _ in range(updates):
            state["now"], metrics, _ = step(state["now"])
        jax.block_until_ready(metrics)
        return time.perf_counter() - began

    run()
    return run


def peer(path: Path, env_id: str, updates: int):
    """The same for PureJaxQL's make_train(config)(key)."""
    for name in ("hydra", "omegaconf", "wandb"):  # it imports them for its command line
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules["omegaconf"].OmegaConf = sys.modules["hydra"].main = lambda **_: lambda function: function
    spec = importlib.util.spec_from_file_location("peer", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def program(count: int):
        config = {
            "NUM_ENVS": 128, "NUM_STEPS": 32, "NUM_MINIBATCHES": 32, "NUM_EPOCHS": 2, "EPS_START": 1.0,
            "EPS_FINISH": 0.05, "EPS_DECAY": 0.1, "NORM_TYPE": "layer_norm", "LR": 5e-4, "MAX_GRAD_NORM": 10,
            "LR_LINEAR_DECAY": True, "GAMMA": 0.99, "LAMBDA": 0.65, "ENV_NAME": env_id, "WANDB_MODE": "disabled",
            "TOTAL_TIMESTEPS": count * 128 * 32, "TOTAL_TIMESTEPS_DECAY": 10**7, "TEST_DURING_TRAINING": False,
        }  # fmt: skip
        keys = jax.random.split(jax.random.key(0), 1)
        return jax.jit(module.make_train(config)).lower(keys).compile(), keys

    (short, keys), (long, _) = program(2), program(2 + updates)

    def run() -> float:
        seconds = []
        for compiled in (short, long):
            began = time.perf_counter()
            jax.block_until_ready(compiled(keys))
            seconds.append(time.perf_counter() - began)
        return seconds[1] - seconds[0]

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True)
    parser.add_argument("--env-ids", nargs="+", default=["Breakout-MinAtar", "Asterix-MinAtar"])
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()
    devices.start(pqn.Args())
    rows = {}
    for env_id in args.env_ids:
        systems = {"pqn.py": ours(env_id, args.updates, None), "PureJaxQL": peer(args.peer, env_id, args.updates)}
        seconds = {name: [] for name in systems}
        for _ in range(args.repetitions):
            for name, run in systems.items():
                seconds[name].append(run())
        steps = args.updates * SIZES["num_envs"] * SIZES["num_steps"]
        ratios = [b / a for a, b in zip(*seconds.values(), strict=True)]
        row = {name: round(steps / statistics.median(values)) for name, values in seconds.items()}
        rows[env_id] = row | {"ratio": round(statistics.median(ratios), 2), "least": min(ratios), "most": max(ratios)}
        print(env_id, rows[env_id], flush=True)
    out = {"rows": rows, "machine": devices.machine(), "jax": jax.__version__, "command": " ".join(sys.argv)}
    out |= {"commit": git("rev-parse", "HEAD"), "date": str(datetime.date.today())}
    (ROOT / "results" / "pqn_peer.json").write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
