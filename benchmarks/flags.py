"""Measures the flags that decide results, one at a time: final return, KL of an update and entropy for each value.

    python benchmarks/flags.py                # two hours on two cores; finished runs are not repeated
    python benchmarks/flags.py --tasks Pendulum-v1 --table

Writes results/flags.json, which docs/flags.md shows. Each row is a run of five seeds with one flag changed; the row
`base` has none changed.
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
    "Asterix-MinAtar": "--num-envs 256 --minibatch-size 512 --total-timesteps 4194304",
    "Pendulum-v1": "--num-envs 32 --num-steps 64 --minibatch-size 256 --update-epochs 8 --gamma 0.95 --ent-coef 0 "
    "--total-timesteps 2097152",
}
COMMON = "--num-seeds 5 --num-eval-episodes 0 --plasticity-every 0 --log-every 8 --no-halt-on-nan"
VALUES = {
    "num-envs": {"Asterix-MinAtar": (64, 1024), "Pendulum-v1": (8, 128)},
    "num-steps": {"Asterix-MinAtar": (8, 128), "Pendulum-v1": (16, 256)},
    "minibatch-size": {"Asterix-MinAtar": (128, 2048), "Pendulum-v1": (64, 1024)},
    "update-epochs": {"Asterix-MinAtar": (1, 8), "Pendulum-v1": (1, 16)},
    "clip-eps": (0.05, 0.4),
    "learning-rate": (3e-4, 3e-3),
    "gae-lambda": (0.5, 1.0),
    "num-rollout-chunks": (4,),
}
SWITCHES = ("norm-obs", "norm-reward", "no-norm-adv", "no-clip-vloss")
COMS = (16, 256)  # of ppo_ewma.py


def grid(task: str) -> dict[str, tuple[str, str]]:
    """Returns the runs of a task: name -> script, its changed flags."""
    runs = {"base": ("ppo", "")}
    base = f"{TASKS[task]} "
    for flag, values in VALUES.items():
        for value in values[task] if isinstance(values, dict) else values:
            if f"--{flag} {value} " not in base:
                runs[f"{flag} {value}"] = ("ppo", f"--{flag} {value}")
    runs |= {switch: ("ppo", f"--{switch}") for switch in SWITCHES}
    return runs | {f"com {com}": ("ppo_ewma", f"--com {com}") for com in COMS}


def command(task: str, name: str, folder: Path) -> list[str]:
    script, changed = grid(task)[name]
    flags = f"--env-id {task} {TASKS[task]} {COMMON} {changed} --runs-dir {folder} --run-name".split()
    return ["python", f"{script}.py", *flags, f"{task}-{name}".replace(" ", "-")]


def main(tasks: tuple[str, ...] = tuple(TASKS), runs_dir: Path = Path("runs/flags"), table: bool = False) -> None:
    """Runs what is missing and writes results/flags.json.

    Args:
        tasks: Environments to run.
        runs_dir: Folder for the runs.
        table: Only print the results of finished runs.
    """
    found = {}
    for task in tasks:
        for name in grid(task):
            words = command(task, name, runs_dir)
            path = runs_dir / words[-1]
            if not plots.finished(path):
                if table:
                    continue
                print(shlex.join(words), flush=True)
                subprocess.run(["rm", "-rf", str(path)], check=True)
                subprocess.run([sys.executable, *words[1:]], cwd=ROOT, check=True, stderr=subprocess.DEVNULL)
            record = json.loads((path / "args.json").read_text())
            summary = plots.summarize(path)
            keys = ("final_return", "best_return", "final_kl", "final_entropy", "final_explained_variance")
            row = {key: summary.get(key) for key in (*keys, "steps_per_second")}
            row |= {"command": shlex.join(words), "commit": record["git_commit"], "started": record["started"]}
            found.setdefault(task, {})[name] = row
            value = summary["final_return"]
            print(f"{task:<16} {name:<22} {value['mean']:9.2f} ± {value['ci95']:.2f}", flush=True)
    if not table:
        out = {"machine": devices.machine(), "runs": found}
        (ROOT / "results" / "flags.json").write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    tyro.cli(main)
