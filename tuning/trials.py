"""The trials of a study: each is a run of the script in every environment."""

import contextlib
import json
import math
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import TrialState

from common.run import devices, plots
from common.run.arguments import UsageError
from common.run.checkpoints import checkpoint_updates
from common.run.tracking import say
from experiments import grid
from experiments.references import reference_score
from tuning.report import as_flags, command, counting, progress

RUNGS = 20  # points of a run at which --pruner looks at it
PROBE = 4  # updates that measure the speed for --budget-seconds
POLL = 1.0  # seconds between two looks at a run
REFUSALS = 200  # combinations in a row that the script refuses, after which the space is to blame


class Failed(Exception):
    """A run that gave no score."""


class Stopped(Exception):
    """This program is to stop, and its runs with it."""


@dataclass(frozen=True)
class Task:
    """What is tuned: a script with the user's flags, over a space."""

    args: Any  # tune.py's
    kind: type  # the script's own Args
    words: list[str]  # the user's flags for the script
    given: dict[str, Any]  # the same, as fields of `kind`
    space: dict[str, BaseDistribution]
    name: str

    @property
    def folder(self) -> Path:
        return Path(self.args.runs_dir) / self.name

    @property
    def setup(self) -> dict[str, Any]:
        """What has to be the same in all trials of a study."""
        names = ("script", "env_id", "total_timesteps", "budget_seconds", "seed", "num_seeds", "metric")
        own = json.loads(json.dumps({name: getattr(self.args, name) for name in names}))
        return own | {"flags": self.words}

    def check(self, params: dict[str, Any]) -> Any:
        """-> the script's Args for these parameters. Raises its UsageError."""
        return self.kind(**{**self.given, **as_flags(params, self.space)})

    def defaults(self) -> dict[str, Any]:
        """The parameters with which the script runs by itself, as far as they are in the space."""
        args, found = self.check({}), {}
        for name, distribution in self.space.items():
            value = getattr(args, name)
            value = "x".join(map(str, value)) if isinstance(value, tuple) else value
            choices = getattr(distribution, "choices", None)
            if value is not None and (value in choices if choices else distribution.low <= value <= distribution.high):
                found[name] = value
        return found


def put_back(study: optuna.Study, trial: Any) -> None:
    """Close a trial that was interrupted, and queue another one that goes on with its runs."""
    kept = {name: trial.user_attrs[name] for name in ("defaults", "steps") if name in trial.user_attrs}
    runs = trial.user_attrs.get("runs", trial.number)
    study.enqueue_trial(trial.params, user_attrs={**kept, "runs": runs, "instead_of": trial.number})
    study.tell(trial.number, state=TrialState.FAIL)


@dataclass(frozen=True)
class Share:
    """What of the machine a worker's runs have."""

    cores: set[int]
    environ: dict[str, str]
    words: list[str]


def shares(workers: int, given: dict[str, Any]) -> list[Share]:
    """Deal out GPUs or, if there are enough of them, CPU cores."""
    gpus = devices.number_of_gpus()
    if workers == 1:
        return [Share(set(), {}, [])]
    if gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")
        part = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / math.ceil(workers / gpus):.2f}"} if workers > gpus else {}
        return [Share(set(), {"CUDA_VISIBLE_DEVICES": visible[i % gpus], **part}, []) for i in range(workers)]
    cores = grid.shares(workers) if workers <= len(grid.cores()) else [set()] * workers
    return [Share(c, {}, ["--num-devices", "1"] if len(c) < 2 and "num_devices" not in given else []) for c in cores]


class Worker:
    """Makes trials one after the other, on its share of the machine."""

    asking = threading.Lock()  # one at a time, or they would begin a trial too many

    def __init__(self, task: Task, study: optuna.Study, share: Share, stopping: threading.Event):
        self.task, self.study, self.share, self.stopping = task, study, share, stopping

    def work(self) -> None:
        while (trial := self.ask()) is not None:
            try:
                values = self.play(trial)
                self.study.tell(trial, float(np.mean([reference_score(env_id, values[env_id]) for env_id in values])))
            except optuna.TrialPruned:
                self.study.tell(trial, state=TrialState.PRUNED)
            except Failed as error:
                trial.set_user_attr("failed", str(error))
                self.study.tell(trial, state=TrialState.FAIL)
            except Stopped:
                return put_back(self.study, trial)
            except BaseException:
                self.stopping.set()
                put_back(self.study, trial)
                raise
            say(progress(self.study, trial.number, self.task.args.trials))

    def ask(self) -> optuna.Trial | None:
        """The next trial that the script accepts; None if there are enough, or all are to stop."""
        why = None
        with self.asking:
            for _ in range(REFUSALS):
                if self.stopping.is_set() or len(counting(self.study)) >= self.task.args.trials:
                    return None
                trial = self.study.ask()
                trial.set_user_attr("owner", [socket.gethostname(), os.getpid()])
                # Of the defaults some may be outside of the space.
                space, names = self.task.space, trial.user_attrs.get("defaults", self.task.space)
                params = {name: suggest(trial, name, space[name]) for name in space if name in names}
                try:
                    self.task.check(params)
                    return trial
                except UsageError as error:
                    why = error
                    trial.set_user_attr("refused", str(error))
                    self.study.tell(trial, state=TrialState.FAIL)
        raise UsageError(f"--search: {self.task.args.script} refuses {REFUSALS} combinations in a row: {why}")

    def play(self, trial: optuna.Trial) -> dict[str, float]:
        """Run the script in each environment. -> their values of --metric."""
        values: dict[str, float] = {}
        first = trial.user_attrs.get("runs", trial.number)  # the trial that began these runs
        for env_id in self.task.args.env_id:
            run = self.task.folder / f"trial-{first:04d}_{re.sub(r'[^A-Za-z0-9_.-]', '-', env_id)}"
            steps = trial.user_attrs.get("steps", {})
            if env_id not in steps:
                steps = steps | {env_id: self.steps(trial, env_id, run)}
                trial.set_user_attr("steps", steps)
            self.run(trial, run, self.begin(trial, env_id, steps[env_id], run), steps[env_id], values)
            values[env_id] = outcome(run, self.task.args.metric)
            trial.set_user_attr("values", values)
        return values

    def steps(self, trial: optuna.Trial, env_id: str, run: Path) -> int:
        """How many environment steps a run has. With --budget-seconds a few updates show the speed of its flags."""
        args, seconds = self.task.check(trial.params), self.task.args.budget_seconds
        if seconds is None:
            return args.total_timesteps
        probe = run.with_name(f"{run.name}_probe")
        total = PROBE * args.batch_size
        self.run(trial, probe, [*self.begin(trial, env_id, total, probe), "--num-eval-episodes", "0"], total)
        speed = json.loads((probe / "summary.json").read_text())["steps_per_second"]
        shutil.rmtree(probe)
        return max(1, int(speed * seconds / args.batch_size)) * args.batch_size

    def begin(self, trial: optuna.Trial, env_id: str, steps: int, run: Path) -> list[str]:
        seeds = {"seed": self.task.args.seed, "num_seeds": self.task.args.num_seeds}
        place = {"runs_dir": str(run.parent), "run_name": run.name}
        return [*command(self.task.setup, env_id, steps, trial), *grid.spelled(seeds | place), *self.share.words]

    def run(self, trial: optuna.Trial, run: Path, words: list[str], steps: int, before: dict | None = None) -> None:
        """Begin or continue a run, and look at it until it ends."""
        while grid.alive(run) and not self.stopping.is_set():
            time.sleep(POLL)  # of a tune.py that was killed, while the run was not
        if self.stopping.is_set():
            raise Stopped
        if plots.finished(run):
            return
        if checkpoint_updates(run / "checkpoints"):
            words = ["python", self.task.args.script, "--resume", str(run), *self.share.words]
        else:
            shutil.rmtree(run, ignore_errors=True)  # stopped before its first checkpoint
        pause, seen = POLL, set()
        with open(log_of(run), "a") as log:
            grid.lock(log)  # the run inherits it, so that it is seen to be alive before it has made its folder
            process = grid.launch(words, log, self.share.cores, **self.share.environ)
        try:
            while process.poll() is None and not self.stopping.is_set():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(pause)
                began = time.thread_time()
                if before is not None and process.poll() is None and self.task.args.pruner != "none":
                    self.look(trial, run, steps, before, seen)
                pause = max(POLL, 50 * (time.thread_time() - began))  # long runs have long files
        finally:
            process.terminate()  # if it still runs, it saves
            process.wait()
        if self.stopping.is_set():
            raise Stopped
        said = log_of(run).read_text(errors="replace").strip().splitlines()[-1]
        if process.returncode == 2 and "defaults" in trial.user_attrs:  # so it would refuse all
            raise UsageError(said.partition("error: ")[2] or said)
        if process.returncode:
            raise Failed(f"exit code {process.returncode}: {said}")

    def look(self, trial: optuna.Trial, run: Path, steps: int, before: dict[str, float], seen: set[int]) -> None:
        """Report the training return at each rung that the run has reached. Raises TrialPruned.

        What is reported is the sum of scores so far, over the number of environments: pruners compare the best that a
        trial has reported, and this rises from environment to environment."""
        env_ids = self.task.args.env_id
        at, values = plots.series(plots.read_lines(run), self.task.args.metric.replace("eval/", "charts/"))
        for rung in sorted(set(range(1, RUNGS)) - seen):
            reached = np.flatnonzero(at >= rung / RUNGS * steps)
            if len(reached):
                seen.add(rung)
                now = reference_score(env_ids[len(before)], float(np.nanmean(values[reached[0]])))
                total = now + sum(reference_score(env_id, value) for env_id, value in before.items())
                trial.report(total / len(env_ids), len(before) * RUNGS + rung)
                if "defaults" not in trial.user_attrs and trial.should_prune():
                    raise optuna.TrialPruned


def suggest(trial: optuna.Trial, name: str, distribution: BaseDistribution) -> Any:
    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(name, distribution.choices)
    kind = trial.suggest_int if isinstance(distribution, IntDistribution) else trial.suggest_float
    return kind(name, distribution.low, distribution.high, log=distribution.log)


def log_of(run: Path) -> Path:
    return run.with_name(f"{run.name}.log")


def outcome(run: Path, metric: str) -> float:
    """What a finished run is judged by. Raises Failed, or UsageError where no run would have it."""
    summary: dict[str, Any] = {metric: None}
    try:
        summary = dict(json.loads((run / "summary.json").read_text()))
        found = summary.get(metric, {})["mean"]
    except (OSError, ValueError, KeyError, TypeError):
        if metric.startswith("eval/") and metric not in summary and not summary.get("not_finite_since_update"):
            has = ", ".join(name for name, value in summary.items() if isinstance(value, dict) and "mean" in value)
            raise UsageError(f"--metric {metric}: {run}/summary.json has {has or 'no key with a mean'}") from None
        raise Failed(f"no {metric} in {run}/summary.json") from None
    if found is None or not math.isfinite(found) or summary.get("not_finite_since_update"):
        raise Failed("diverged")
    return found
