"""Runs whose cause of standing still is built in, and healthy ones: is doctor.py right about them?

    python -m clinic.cases --first-seed 100    # the seeds on which its thresholds were chosen
    python -m clinic.cases                     # seeds 0 to 9: writes results/doctor.json
    python -m clinic.cases --sticky            # the three on games of hardly any chance, with more

Each case is one command of one script with ten seeds. A finished run is not repeated, an interrupted one resumes.
"""

import datetime
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import tyro

from benchmarks.report import git
from clinic import diagnosis
from common.run import devices
from common.run.tracking import say
from experiments import grid, results

PENDULUM = "--env-id Pendulum-v1 --num-envs 32 --num-steps 64 --minibatch-size 256 --update-epochs 8 --gamma 0.95"
PENDULUM += " --ent-coef 0"
ASTERIX = "--env-id Asterix-MinAtar --num-envs 64 --minibatch-size 256"
CARTPOLE = "--env-id CartPole-v1 --num-envs 64 --minibatch-size 512"
INVADERS = "--env-id SpaceInvaders-MinAtar --num-envs 128 --minibatch-size 512"


class Case(NamedTuple):
    """A run of ten seeds, and what doctor.py should say about it."""

    expected: str
    script: str
    flags: str


CASES = {
    "pendulum, eps 0.6": Case("step", "ppo", f"{PENDULUM} --clip-eps 0.6 --total-timesteps 2097152"),
    "pendulum, com 8": Case("step", "ppo_ewma", f"{PENDULUM} --com 8 --total-timesteps 2097152"),
    "bowl, eta 0.5": Case("step", "stochastic_opt", "--learning-rate 0.5 --num-steps 2000"),
    "deep sea": Case(
        "settled", "ppo", "--env-id DeepSea-bsuite --num-envs 64 --minibatch-size 512 --total-timesteps 1048576"
    ),
    "cartpole, finished": Case("settled", "ppo", f"{CARTPOLE} --total-timesteps 2097152"),
    "pendulum, finished": Case("no gain", "ppo_ewma", f"{PENDULUM} --com 4096 --total-timesteps 2097152"),
    "cartpole, no critic": Case("critic", "ppo", f"{CARTPOLE} --vf-coef 0 --total-timesteps 1048576"),
    "pendulum, no critic": Case("critic", "ppo", f"{PENDULUM} --vf-coef 0 --total-timesteps 2097152"),
    "asterix, dead units": Case(
        "network", "ppo", f"{ASTERIX} --activation relu --learning-rate 3e-2 --total-timesteps 1048576"
    ),
    "cartpole, dead units": Case(
        "network", "ppo", f"{CARTPOLE} --activation relu --learning-rate 1e-1 --total-timesteps 1048576"
    ),
    "asterix, rate 1e-6": Case("slow", "ppo", f"{ASTERIX} --learning-rate 1e-6 --total-timesteps 524288"),
    "cartpole, rate 3e-7": Case("slow", "ppo", f"{CARTPOLE} --learning-rate 3e-7 --total-timesteps 1048576"),
    "mountain car": Case(
        "exploration",
        "ppo",
        "--env-id MountainCar-v0 --num-envs 64 --minibatch-size 512 --ent-coef 0 --total-timesteps 1048576",
    ),
    "breakout, two games": Case(
        "no gain",
        "ppo",
        "--env-id Breakout-MinAtar --num-envs 64 --minibatch-size 256 --learning-rate 3e-4 --total-timesteps 1048576",
    ),
    "breakout, climb": Case("climbing", "ppo", "--env-id Breakout-MinAtar --total-timesteps 2097152 --log-every 1"),
    "asterix, mild": Case("climbing", "ppo", f"{ASTERIX} --learning-rate 3e-4 --total-timesteps 1048576"),
    "pendulum, com 4096": Case("climbing", "ppo_ewma", f"{PENDULUM} --com 4096 --total-timesteps 1048576"),
    "space invaders, noisy": Case("climbing", "ppo", f"{INVADERS} --learning-rate 3e-4 --total-timesteps 1048576"),
    "bowl, eta 0.001": Case("climbing", "stochastic_opt", "--learning-rate 0.001 --num-steps 500"),
    "cartpole, 8 updates": Case(
        "few updates", "ppo", "--env-id CartPole-v1 --num-envs 2048 --total-timesteps 524288 --log-every 1"
    ),
    "diverged": Case("diverged", "ppo", f"{PENDULUM} --learning-rate 1e38 --total-timesteps 131072"),
}
STICKY = " with sticky actions"
CASES |= {
    name + STICKY: Case("climbing", case.script, f"{case.flags} --sticky-actions 0.1")
    for name, case in CASES.items()
    if "--env-id Breakout-MinAtar" in case.flags or "--env-id SpaceInvaders-MinAtar" in case.flags
}
COMMON = "--no-halt-on-nan"
FINE = {"climbing", "settled", "no gain", "few updates"}  # what is no fault, or need not be one


def cell(name: str, first_seed: int) -> grid.Cell:
    """The run of a case, seeds first_seed to first_seed + 9."""
    case = CASES[name]
    no_evaluation = "" if case.script == "stochastic_opt" else "--num-eval-episodes 0"
    words = f"{case.flags} {no_evaluation} {COMMON} --seed {first_seed} --num-seeds 10".split()
    flags: dict[str, Any] = {}
    while words:
        word = words.pop(0).removeprefix("--").replace("-", "_")
        if words and not words[0].startswith("--"):
            flags[word] = words.pop(0)
        else:
            flags[word.removeprefix("no_")] = not word.startswith("no_")
    if case.script == "stochastic_opt":
        updates = int(flags["num_steps"])
    else:
        updates = int(flags["total_timesteps"]) // (int(flags.get("num_envs", 2048)) * int(flags.get("num_steps", 32)))
    flags.setdefault("log_every", max(1, updates // 200))
    return grid.named(case.script, flags, {"case": name.replace(" ", "-").replace(",", "")}, updates)


def main(
    first_seed: int = 0,
    runs_dir: Path = Path("runs/doctor"),
    jobs: int = 2,
    sticky: bool = False,
    table: bool = False,
    out: Path | None = None,
) -> None:
    """Makes the missing runs, prints what doctor.py says of each seed, and writes it as JSON.

    Args:
        first_seed: 100 for the seeds of the thresholds, 0 for those of the results.
        runs_dir: Folder for the runs.
        jobs: How many runs at once.
        sticky: The cases with sticky actions, and no others.
        table: Only judge the finished runs.
        out: The file to write (results/doctor.json or doctor_sticky.json for seeds 0 to 9, else none).
    """
    cells = {name: cell(name, first_seed) for name in CASES if name.endswith(STICKY) == sticky}
    if not table:
        failed = grid.run_missing(list(cells.values()), runs_dir, jobs, say)
        if failed:
            raise SystemExit("\n".join(failed))
    found = {name: judge(runs_dir / c.name) for name, c in cells.items() if grid.state(c, runs_dir) == "finished"}
    print("\n".join(summary(found)))
    usual = Path("results/doctor_sticky.json" if sticky else "results/doctor.json")
    out = out or (usual if first_seed == 0 and not table else None)
    if out is not None:
        rows = {
            name: {"expected": CASES[name].expected, "command": grid.paste(cells[name], runs_dir), "found": labels}
            for name, labels in found.items()
        }
        how = {
            "command": shlex.join(["python", "-m", "clinic.cases", *sys.argv[1:]]),
            "date": f"{datetime.date.today()}",
        }
        results.write(out, how | {"machine": devices.machine(), "git_commit": git("rev-parse", "HEAD"), "cases": rows})


def judge(run: Path) -> list[str]:
    """What doctor.py says of each seed."""
    return [diagnosis.diagnose(course)[0] for course in diagnosis.of_run(run)]


def summary(found: dict[str, list[str]]) -> list[str]:
    """A line per case, and the shares that are right and that are false alarms: none of FINE where one of it is due."""
    lines, right, seen, alarms, healthy = [], 0, 0, 0, 0
    for name, labels in found.items():
        expected = CASES[name].expected
        counts = ", ".join(f"{count} {label}" for label, count in Counter(labels).most_common())
        lines.append(f"{name:<24}{expected:<14}{counts}")
        right, seen = right + labels.count(expected), seen + len(labels)
        if expected in FINE:
            alarms, healthy = alarms + sum(label not in FINE for label in labels), healthy + len(labels)
    return [*lines, f"right: {right} of {seen}; false alarms: {alarms} of {healthy} seeds without a fault"]


if __name__ == "__main__":
    tyro.cli(main)
