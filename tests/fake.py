"""Imitates a training script: its folder and lock, its refusal of a folder that exists, its log and summary, and what a
signal does to it. Its best learning rate is 10^-2.5, and annealing adds 0.3 to the score."""

import fcntl
import json
import math
import os
import shlex
import signal
import sys
import time
from pathlib import Path

if __name__ != "__main__":  # importing takes longer than a run
    from dataclasses import dataclass

    from common.run.arguments import Positive, RunArgs, Steps, UsageError

    @dataclass(frozen=True)
    class Args(RunArgs):
        env_id: str = "CartPole-v1"
        seed: int = 0
        num_seeds: Positive[int] = 1
        total_timesteps: Steps = 2000
        num_envs: Positive[int] = 10
        num_steps: Positive[int] = 10
        learning_rate: Positive[float] = 1e-3
        anneal_lr: bool = False
        update_epochs: Positive[int] = 4
        hidden_sizes: tuple[Positive[int], ...] = (64, 64)
        seconds: float = 0.0
        break_above: float = 1.0
        refuse: bool = False
        strict: bool = False

        def __post_init__(self):
            super().__post_init__()
            if self.strict and self.anneal_lr and self.update_epochs == 8:
                raise UsageError("--strict: not --anneal-lr with --update-epochs 8")


def read(words):
    """The words of a command line -> {flag: its value, the first of several; "" if it has none}."""
    return {word: (*words[i:], "")[1] for i, word in enumerate(words) if word.startswith("--")}


def main():
    words, caught = read(sys.argv[1:]), []

    def stop(number, frame):  # the first signal is a wish, the second goes through
        caught.append(number)
        for other in (signal.SIGINT, signal.SIGTERM):
            signal.signal(other, signal.SIG_DFL)

    run = Path(words.get("--resume") or Path(words["--runs-dir"]) / words["--run-name"])
    if "--resume" not in words:
        (run / "checkpoints").mkdir(parents=True)
        (run / "args.json").write_text(json.dumps(words))
    lock = open(run / "source.py", "a")  # noqa: SIM115 (until the end)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    with open("starts", "a") as file:  # from here on it can be looked at, and stopped
        file.write(shlex.join(sys.argv[1:]) + "\n")
    words = json.loads((run / "args.json").read_text())
    if "--refuse" in words:
        print("fake.py: error: --refuse: as you wish", file=sys.stderr)
        sys.exit(2)
    if hasattr(os, "sched_getaffinity"):
        (run / "cores.json").write_text(json.dumps(sorted(os.sched_getaffinity(0))))
    rate, total = float(words.get("--learning-rate", 1)), int(words.get("--total-timesteps", 2000))
    if "--fail" in words or rate > float(words.get("--break-above", 1)):
        sys.exit("a page\nof its log\nfake.py: not finite")
    low, high = {"CartPole-v1": (22.4, 500), "Pendulum-v1": (-1227, -172)}.get(words.get("--env-id"), (0, 1))
    value = low + (high - low) * (1 - (math.log10(rate) + 2.5) ** 2 + 0.3 * ("--anneal-lr" in words))
    updates, began, seconds = int(words.get("--updates", 20)), time.time(), float(words.get("--seconds", 0))
    with open(run / "metrics.jsonl", "a") as file:
        for update in range(1, updates + 1):
            line = {"update": update, "global_step": total * update // updates, "charts/episodic_return": value}
            file.write(json.dumps(line) + "\n")
            file.flush()
            while time.time() < began + seconds * update / updates and not caught:
                time.sleep(0.01)
            if caught:
                time.sleep(0.4)
                break
    (run / "checkpoints" / str(update)).mkdir(exist_ok=True)
    found = {"updates": update, "num_updates": updates, "eval/episodic_return": {"mean": value}}
    (run / "summary.json").write_text(json.dumps(found | {"steps_per_second": 1234}))
    sys.exit(128 + caught[0] if caught else 0)


if __name__ == "__main__":
    main()
