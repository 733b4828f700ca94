"""Measures what --compute-dtype bfloat16 does to the return: five seeds, three environments, both formats.

    python benchmarks/compute_dtype.py        # ten minutes on two cores; finished runs are not repeated

Writes results/compute_dtype.json, which docs/ppo.md shows.
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import tyro

ROOT = Path(__file__).absolute().parents[1]
sys.path.insert(0, str(ROOT))

from common.run import devices, plots  # noqa: E402 (found by the line above)

TASKS = {
    "CartPole-v1": "--num-envs 64 --num-steps 128 --minibatch-size 1024 --anneal-lr --total-timesteps 1000000",
    "Breakout-MinAtar": "--total-timesteps 4194304",
    "Asterix-MinAtar": "--total-timesteps 4194304",
}


def main(runs_dir: Path = Path("runs/compute_dtype")) -> None:
    """Runs what is missing and writes results/compute_dtype.json.

    Args:
        runs_dir: Folder for the runs.
    """
    found = {}
    for task, flags in TASKS.items():
        for compute_dtype in ("float32", "bfloat16"):
            path = runs_dir / f"{task}-{compute_dtype}"
            words = (
                f"ppo.py --env-id {task} {flags} --num-seeds 5 --plasticity-every 0 --compute-dtype {compute_dtype} "
            )
            words = ["python", *f"{words} --runs-dir {runs_dir} --run-name {path.name}".split()]
            if not plots.finished(path):
                print(shlex.join(words), flush=True)
                subprocess.run(["rm", "-rf", str(path)], check=True)
                subprocess.run([sys.executable, *words[1:]], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            summary = plots.summarize(path)
            row = {key: summary.get(key) for key in ("final_return", "eval_return", "final_kl", "steps_per_second")}
            lines = [line for line in plots.read_lines(path) if "eval/episodic_return" in line]
            row |= {"evaluations": lines[-1]["eval/episodic_return"], "command": shlex.join(words)}
            row["commit"] = json.loads((path / "args.json").read_text())["git_commit"]
            found.setdefault(task, {})[compute_dtype] = row
            print(task, compute_dtype, summary["final_return"], row["evaluations"], row["steps_per_second"], flush=True)
    out = {"machine": devices.machine(), "runs": found}
    (ROOT / "results" / "compute_dtype.json").write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    tyro.cli(main)
