"""Runs whose cause of standing still is built in, and healthy ones: is doctor.py right about them?

    python -m experiments.doctor_cases --first-seed 100    # the seeds on which its thresholds were chosen
    python -m experiments.doctor_cases                     # seeds 0 to 9: writes results/doctor.json

Each case is one command of one script with ten seeds. A finished run is not repeated, an interrupted one resumes.
"""

from pathlib import Path
from typing import NamedTuple

import tyro

from common.run.tracking import say
from experiments import grid

PENDULUM = "--env-id Pendulum-v1 --num-envs 32 --num-steps 64 --minibatch-size 256 --update-epochs 8 --gamma 0.95"
PENDULUM += " --ent-coef 0"
ASTERIX = "--env-id Asterix-MinAtar --num-envs 64 --minibatch-size 256"


class Case(NamedTuple):
    """A run of ten seeds, and what doctor.py should say about it."""

    expected: str
    script: str
    flags: str


CASES = {
    "pendulum, eps 0.6": Case("noise", "ppo", f"{PENDULUM} --clip-eps 0.6 --total-timesteps 2097152"),
    "pendulum, com 8": Case("noise", "ppo_ewma", f"{PENDULUM} --com 8 --total-timesteps 2097152"),
    "asterix, hot": Case("noise", "ppo", f"{ASTERIX} --update-epochs 8 --learning-rate 1e-3 --total-timesteps 6291456"),
    "deep sea": Case(
        "settled", "ppo", "--env-id DeepSea-bsuite --num-envs 64 --minibatch-size 512 --total-timesteps 1048576"
    ),
    "cartpole, finished": Case(
        "settled", "ppo", "--env-id CartPole-v1 --num-envs 64 --minibatch-size 512 --total-timesteps 2097152"
    ),
    "pendulum, finished": Case("settled", "ppo_ewma", f"{PENDULUM} --com 4096 --total-timesteps 4194304"),
    "cartpole, no critic": Case(
        "critic", "ppo", "--env-id CartPole-v1 --num-envs 64 --minibatch-size 512 --vf-coef 0 --total-timesteps 1048576"
    ),
    "pendulum, no critic": Case("critic", "ppo", f"{PENDULUM} --vf-coef 0 --total-timesteps 2097152"),
    "asterix, no critic": Case("critic", "ppo", f"{ASTERIX} --vf-coef 0 --total-timesteps 2097152"),
    "asterix, dead units": Case(
        "network", "ppo", f"{ASTERIX} --activation relu --learning-rate 3e-2 --total-timesteps 2097152"
    ),
    "cartpole, dead units": Case(
        "network",
        "ppo",
        "--env-id CartPole-v1 --num-envs 64 --minibatch-size 512 --activation relu --learning-rate 1e-1 --total-timesteps 1048576",
    ),
    "asterix, rate 1e-6": Case("slow", "ppo", f"{ASTERIX} --learning-rate 1e-6 --total-timesteps 2097152"),
    "cartpole, rate 3e-7": Case(
        "slow",
        "ppo",
        "--env-id CartPole-v1 --num-envs 64 --minibatch-size 512 --learning-rate 3e-7 --total-timesteps 1048576",
    ),
    "mountain car": Case(
        "exploration",
        "ppo",
        "--env-id MountainCar-v0 --num-envs 64 --minibatch-size 512 --ent-coef 0 --total-timesteps 1048576",
    ),
    "breakout, two games": Case(
        "data",
        "ppo",
        "--env-id Breakout-MinAtar --num-envs 64 --minibatch-size 256 --learning-rate 3e-4 --total-timesteps 3145728",
    ),
    "breakout, climb": Case("climbing", "ppo", "--env-id Breakout-MinAtar --total-timesteps 2097152 --log-every 1"),
    "asterix, mild": Case("climbing", "ppo", f"{ASTERIX} --learning-rate 3e-4 --total-timesteps 2097152"),
    "pendulum, com 4096": Case("climbing", "ppo_ewma", f"{PENDULUM} --com 4096 --total-timesteps 1048576"),
    "acrobot, noisy climb": Case(
        "climbing",
        "ppo",
        "--env-id SpaceInvaders-MinAtar --num-envs 128 --minibatch-size 512 --learning-rate 3e-4 --total-timesteps 2097152",
    ),
    "cartpole, 8 updates": Case(
        "few updates", "ppo", "--env-id CartPole-v1 --num-envs 2048 --total-timesteps 524288 --log-every 1"
    ),
    "diverged": Case("diverged", "ppo", f"{PENDULUM} --learning-rate 1e18 --total-timesteps 131072"),
}
COMMON = "--num-eval-episodes 0 --no-halt-on-nan"


def cell(name: str, first_seed: int) -> grid.Cell:
    """The run of a case, seeds first_seed to first_seed + 9."""
    case = CASES[name]
    words = f"{case.flags} {COMMON} --seed {first_seed} --num-seeds 10".split()
    flags = {}
    while words:
        word = words.pop(0).removeprefix("--")
        value = words.pop(0) if words and not words[0].startswith("--") else not word.startswith("no-")
        flags[word.removeprefix("no-").replace("-", "_") if isinstance(value, bool) else word.replace("-", "_")] = value
    number = int(flags["total_timesteps"]) // (int(flags.get("num_envs", 2048)) * int(flags.get("num_steps", 32)))
    if "log_every" not in flags:
        flags["log_every"] = max(1, number // 200)
    return grid.named(case.script, flags, {"case": name.replace(" ", "-").replace(",", "")}, number)


def main(
    first_seed: int = 0, runs_dir: Path = Path("runs/doctor"), only: tuple[str, ...] = tuple(CASES), jobs: int = 2
):
    cells = [cell(name, first_seed) for name in only]
    failed = grid.run_missing(cells, runs_dir, jobs, say)
    print("\n".join(failed))


if __name__ == "__main__":
    tyro.cli(main)
