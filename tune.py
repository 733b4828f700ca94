"""Finds flags for a script and its environments with Optuna (https://arxiv.org/abs/1907.10902).

    python tune.py ppo.py --env-id Breakout-MinAtar Asterix-MinAtar --trials 64 --total-timesteps 4194304 --workers 2
    python tune.py ppo.py --env-id CartPole-v1 --search learning_rate=1e-4:1e-2:log minibatch_size=256,512,1024
    python tune.py --from ppo-CartPole-v1-1f0c2a9e                     # prints a study's results again

A trial is one run of the script per environment, as a user would start it. Its score is the mean over environments of
the return of the evaluated policy at the end, where a random policy is 0 and a published one 1 (common/references.py).
The same command goes on where a study was stopped, also at once on several machines. See docs/tune.md.
"""

import contextlib
import hashlib
import importlib.util
import json
import math
import os
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import typing
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from tyro.conf import Positional, arg

from common import envs
from common.references import REFERENCES, score
from common.run import arguments, devices, plots
from common.run.arguments import NonNegative, Positive, Steps, UsageError, flag
from common.run.checkpoints import checkpoint_updates
from common.run.run import main as run_main
from common.run.tracking import say
from experiments import grid

try:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.trial import TrialState
except ModuleNotFoundError:
    print("tune.py: error: optuna is not installed; pip install -r requirements-tune.txt", file=sys.stderr)
    raise SystemExit(2) from None

# What is searched by default, if the script has the flag: low:high, low:high:log, or choices. Widths: 64x64.
SPACE = {
    "learning_rate": "1e-4:1e-2:log",
    "anneal_lr": "true,false",
    "num_steps": "16,32,64,128",
    "minibatch_size": "512,1024,2048,4096,8192",  # with num_steps and update_epochs: gradient steps per update
    "update_epochs": "1,2,4,8",
    "gamma": "0.97,0.98,0.99,0.995,0.999",
    "gae_lambda": "0.5:0.99",
    "q_lambda": "0.3:0.99",
    "clip_eps": "0.05:0.5:log",
    "com": "4:1024:log",
    "ent_coef": "1e-4:0.1:log",
    "clip_vloss": "true,false",
    "max_grad_norm": "0.1:10:log",
    "activation": "tanh,relu",
    "layer_norm": "true,false",
    "hidden_sizes": "64x64,128x128,256x256",
}
OWN = ("run_name", "resume", "evaluate", "list_envs", "distributed")  # flags of a script that a trial cannot have
RUNGS = 20  # points of a run at which pruning looks at it
POLL, GRACE = 1.0, 120.0  # seconds between two looks at a run, and for it to save when it is told to stop
REJECTIONS = 200  # combinations in a row that the script refuses, after which the space is to blame


@dataclass(frozen=True)
class Args:
    script: Positional[str | None] = None
    """The script, such as ppo.py. Flags that are not listed here are passed on to it, and fix what they name."""

    # --- what is tuned ---
    env_id: tuple[str, ...] = ()
    """One environment or several, over which the score is a mean."""
    total_timesteps: Steps | None = None
    """Environment steps of each run (default: the script's)."""
    seed: NonNegative[int] = 100
    """The runs' seed; those below 100 are left to judge what was found."""
    num_seeds: Positive[int] = 1
    """Train this many seeds at once in each run; the score is their mean."""
    metric: str = "eval/episodic_return"
    """What a run is judged by: a number of its summary.json."""

    # --- search ---
    trials: Positive[int] = 64
    """Trials of the study in all, those of earlier starts and other machines included."""
    search: tuple[str, ...] = ()
    """Ranges that replace or add to those of the table: name=low:high, name=low:high:log, name=a,b,c."""
    only: tuple[str, ...] = ()
    """Search only these flags; the others keep the script's defaults."""
    workers: Positive[int] = 1
    """Trials at once, each on its share of the CPU cores, or of the GPUs."""

    # --- study ---
    study: str | None = None
    """Name of the study (default: made from the script, the environments and the flags)."""
    storage: str | None = None
    """A URL of a database that Optuna knows, such as postgresql://... (default: journal.log in the study's folder)."""
    runs_dir: str = "runs/tune"
    """Folder that holds a folder for each study."""
    from_: Annotated[str | None, arg(name="from")] = None
    """Print the results of this study again, and run nothing."""

    def __post_init__(self):
        arguments.check(self)


class Failed(Exception):
    """A run that gave no score."""


class Stopped(Exception):
    """A run that was stopped together with this program."""


@dataclass(frozen=True)
class Task:
    """A study's runs: of which script, with which flags, over which space."""

    args: Args
    kind: type  # the script's own Args
    words: tuple[str, ...]  # flags of the user for the script
    given: dict[str, Any]  # the same, as fields of `kind`
    space: dict[str, BaseDistribution]
    folder: Path

    def flags(self, params: dict[str, Any]) -> dict[str, Any]:
        """A trial's parameters as the script gets them: three digits, widths as a tuple."""
        return {name: as_flag(self.kind, name, value) for name, value in params.items()}

    def check(self, params: dict[str, Any]) -> Any:
        """-> the script's Args for these parameters. Raises its UsageError."""
        return self.kind(**{**self.given, **self.flags(params)})

    def command(self, env_id: str, params: dict[str, Any], *more: str) -> list[str]:
        steps = ["--total-timesteps", str(self.args.total_timesteps)] if self.args.total_timesteps else []
        words = ["--env-id", env_id, *steps, *self.words, *grid.spelled(self.flags(params))]
        return ["python", self.args.script, *words, *more]

    def defaults(self) -> dict[str, Any]:
        """The parameters with which the script runs by itself, as far as they are in the space."""
        args, found = self.check({}), {}
        for name, distribution in self.space.items():
            value = getattr(args, name)
            value = "x".join(map(str, value)) if isinstance(value, tuple) else value
            if value is not None and holds(distribution, value):
                found[name] = value
        return found


def hint_of(kind: type, name: str) -> Any:
    """The type of a field, without its bound and without None."""
    hint = typing.get_type_hints(kind)[name]
    kinds = [part for part in typing.get_args(hint) if part is not type(None)]
    return kinds[0] if len(kinds) < len(typing.get_args(hint)) and len(kinds) == 1 else hint


def as_flag(kind: type, name: str, value: Any) -> Any:
    if typing.get_origin(hint_of(kind, name)) is tuple:
        return tuple(map(int, str(value).split("x")))
    return float(f"{value:.3g}") if isinstance(value, float) else value


def holds(distribution: BaseDistribution, value: Any) -> bool:
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    return distribution.low <= value <= distribution.high


def parse_range(kind: type, name: str, text: str) -> BaseDistribution:
    """A range (low:high or low:high:log) or choices (a,b,c) of a field of the script's Args."""
    hint, where = hint_of(kind, name), f"--search {name}={text}"
    number = {int: int, float: float}.get(hint)
    if ":" in text:
        low, high, *scale = text.split(":")
        try:
            low, high = number(low), number(high)
        except (TypeError, ValueError):
            wanted = "low:high or low:high:log" if number else "choices, a,b,c"
            raise UsageError(f"{where}: must be {wanted}") from None
        if not low < high or scale not in ([], ["log"]) or (scale and low <= 0):
            raise UsageError(f"{where}: must be low:high or low:high:log, with low < high (and 0 < low for log)")
        made = IntDistribution if number is int else FloatDistribution
        return made(low, high, log=bool(scale))
    convert = {bool: lambda word: {"true": True, "false": False}[word]}.get(hint) or number or str
    try:
        choices = [convert(word) for word in text.split(",")]
    except (KeyError, ValueError):
        wanted = {bool: "true,false", int: "integers", float: "numbers"}[hint]
        raise UsageError(f"{where}: must be {wanted}, or a range low:high") from None
    return CategoricalDistribution(list(dict.fromkeys(choices)))


def parse_space(kind: type, args: Args, given: dict[str, Any]) -> dict[str, BaseDistribution]:
    """The table, without what the script does not have and what the user has fixed, and then --search and --only."""
    known = {field.name for field in fields(kind)}
    fixed = set(given) | ({"minibatch_size"} if "num_minibatches" in given else set())
    texts = {name: text for name, text in SPACE.items() if name in known and name not in fixed}
    for entry in args.search:
        name, equals, text = entry.partition("=")
        name = name.removeprefix("--").replace("-", "_")
        if not equals or not text:
            raise UsageError(f"--search {entry}: must be name=low:high, name=low:high:log or name=a,b,c")
        if name not in known:
            raise UsageError(f"--search {entry}: {args.script} has no {flag(name)}")
        if name in given:
            raise UsageError(f"--search {entry}: {flag(name)} is given as well; leave out one of the two")
        texts[name] = text
        if name == "num_minibatches":
            texts.pop("minibatch_size", None)
    only = [name.removeprefix("--").replace("-", "_") for name in args.only]
    for name in only:
        if name not in texts:
            raise UsageError(f"--only {name}: is not searched; there are {', '.join(texts)}, and those of --search")
    space = {name: parse_range(kind, name, text) for name, text in texts.items() if not only or name in only}
    if not space:
        raise UsageError("--search: nothing is left to search")
    return space


def load(script: str) -> type:
    """The Args of a script."""
    if not Path(script).is_file():
        raise UsageError(f"{script}: no such script; ppo.py, ppo_ewma.py and pqn.py are some")
    spec = importlib.util.spec_from_file_location(f"tuned_{Path(script).stem}", script)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(script).absolute().parent))
    spec.loader.exec_module(module)
    needed = {"env_id", "seed", "num_seeds", "total_timesteps"}
    if not needed <= {field.name for field in fields(getattr(module, "Args", UsageError))}:
        raise UsageError(f"{script}: cannot be tuned; it has no Args with {', '.join(sorted(map(flag, needed)))}")
    return module.Args


def settle(args: Args, words: Sequence[str]) -> Task:
    """Check everything that can be checked before the first run."""
    if args.script is None or not args.env_id:
        raise UsageError("name a script and its environments: python tune.py ppo.py --env-id Breakout-MinAtar")
    kind = load(args.script)
    steps = ["--total-timesteps", str(args.total_timesteps)] if args.total_timesteps else []
    for env_id in args.env_id:
        told = ["--env-id", env_id, "--seed", str(args.seed), "--num-seeds", str(args.num_seeds), *steps]
        parsed = arguments.parse(kind, "", [*told, *words])
        envs.make(env_id, 1, env_kwargs=parsed.env_kwargs) if hasattr(parsed, "env_kwargs") else None
    given = arguments.given(parsed)
    if owned := [name for name in OWN if name in given]:
        raise UsageError(f"{flag(owned[0])}: is not for trials; leave it out")
    mine = {"env_id", "seed", "num_seeds", "total_timesteps"}
    space = parse_space(kind, args, {name: value for name, value in given.items() if name not in mine})
    setup = [args.script, args.env_id, args.total_timesteps, args.seed, args.num_seeds, args.metric, list(words)]
    digest = hashlib.sha256(json.dumps(setup).encode()).hexdigest()[:8]
    names = "-".join(Path(env_id).name.replace(":", "-") for env_id in args.env_id)
    name = args.study or f"{Path(args.script).stem}-{names}"[:80] + f"-{digest}"
    return Task(args, kind, tuple(words), given, space, Path(args.runs_dir) / name)


def open_study(folder: Path, storage: str | None) -> optuna.Study:
    if storage is None:
        folder.mkdir(parents=True, exist_ok=True)
        backend = optuna.storages.journal.JournalFileBackend(str(folder / "journal.log"))
        storage = optuna.storages.JournalStorage(backend)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=10, n_warmup_steps=RUNGS // 4)
    return optuna.create_study(
        storage=storage,
        study_name=folder.name,
        direction="maximize",
        sampler=optuna.samplers.TPESampler(),
        pruner=pruner,
        load_if_exists=True,
    )


def counted(trial: optuna.trial.FrozenTrial) -> bool:
    """Whether a trial counts against --trials: it has ended, or is running, and was not in vain."""
    return trial.state != TrialState.WAITING and not trial.user_attrs.get("in_vain")


class Worker:
    """Runs trials one after the other, on its own cores."""

    asking = threading.Lock()  # one at a time, so that they do not start one trial too many

    def __init__(self, task: Task, study: optuna.Study, cores: set[int], stopping: threading.Event):
        self.task, self.study, self.cores, self.stopping = task, study, cores, stopping

    def work(self) -> None:
        while (trial := self.ask()) is not None:
            began = trial.user_attrs.get("runs", trial.number)  # the trial that began these runs
            try:
                values = self.play(trial, began)
                self.study.tell(trial, float(np.mean([score(e, values[e]) for e in values])))
            except optuna.TrialPruned:
                self.study.tell(trial, state=TrialState.PRUNED)
            except Failed as error:
                trial.set_user_attr("failed", str(error))
                self.study.tell(trial, state=TrialState.FAIL)
            except Stopped:
                put_back(self.study, trial, began)
                return
            say(line(self.task, self.study, trial.number))

    def ask(self) -> optuna.Trial | None:
        """The next trial that the script accepts; None if there are enough, or all are to stop."""
        why = ""
        with self.asking:
            for _ in range(REJECTIONS):
                if self.stopping.is_set() or sum(map(counted, self.study.get_trials())) >= self.task.args.trials:
                    return None
                trial = self.study.ask()
                trial.set_user_attr("owner", [socket.gethostname(), os.getpid()])
                # The defaults are one trial; some of them may be outside of the space.
                names = trial.user_attrs.get("defaults", list(self.task.space))
                params = {name: suggest(trial, name, self.task.space[name]) for name in names}
                try:
                    self.task.check(params)
                    return trial
                except UsageError as error:
                    why = str(error)
                    trial.set_user_attr("failed", why)
                    trial.set_user_attr("in_vain", True)
                    self.study.tell(trial, state=TrialState.FAIL)
        raise UsageError(f"--search: the script refuses all of {REJECTIONS} combinations, the last with: {why}")

    def play(self, trial: optuna.Trial, began: int) -> dict[str, float]:
        """Run the script in each environment. -> their values of --metric."""
        values: dict[str, float] = {}
        for index, env_id in enumerate(self.task.args.env_id):
            run = self.task.folder / f"trial-{began:04d}_{env_id.replace('/', '-').replace(':', '-')}"
            before = sum(score(e, values[e]) for e in values)
            self.run(trial, env_id, run, index, before)
            values[env_id] = outcome(run, self.task.args.metric)
            trial.set_user_attr("values", values)
        return values

    def run(self, trial: optuna.Trial, env_id: str, run: Path, index: int, before: float) -> None:
        """Begin, continue or adopt a run, and look at it until it ends."""
        while grid.alive(run) and not self.stopping.wait(POLL):
            pass  # of a tune.py that was killed, while the run was not
        if plots.finished(run):
            return
        process = self.start(self.command(trial, env_id, run), run)
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL)
                if self.stopping.is_set():
                    raise Stopped
                self.look(trial, env_id, run, index, before)
        finally:
            end(process)
        if self.stopping.is_set():
            raise Stopped
        if process.returncode:
            raise Failed(f"exit code {process.returncode}: {last_line(run.with_suffix('.log'))}")

    def command(self, trial: optuna.Trial, env_id: str, run: Path) -> list[str]:
        one = ["--num-devices", "1"] if len(self.cores) == 1 and "num_devices" not in self.task.given else []
        if checkpoint_updates(run / "checkpoints"):
            return ["python", self.task.args.script, "--resume", str(run), *one]
        shutil.rmtree(run, ignore_errors=True)  # stopped before its first checkpoint
        seeds = ["--seed", str(self.task.args.seed), "--num-seeds", str(self.task.args.num_seeds)]
        place = ["--runs-dir", str(run.parent), "--run-name", run.name]
        return self.task.command(env_id, trial.params, *seeds, *one, *place)

    def start(self, words: list[str], run: Path) -> subprocess.Popen:
        with open(run.with_suffix(".log"), "a") as log:
            log.write(shlex.join(words) + "\n")
            log.flush()
            with grid.bound(self.cores):
                # In its own group, which a terminal's Ctrl-C does not reach: it would be the first of two signals.
                words = [sys.executable, *words[1:]]
                return subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, process_group=0)

    def look(self, trial: optuna.Trial, env_id: str, run: Path, index: int, before: float) -> None:
        """Report the training return at each rung that the run has reached. Raises TrialPruned."""
        known = {name.replace("eval/", "charts/") for name in [self.task.args.metric]}
        total = self.task.check(trial.params).total_timesteps
        steps, values = plots.series(plots.read_lines(run), known.pop())
        reported = self.study._storage.get_trial(trial._trial_id).intermediate_values
        for rung in range(1, RUNGS + 1):
            reached = np.flatnonzero(steps >= rung / RUNGS * total)
            if not len(reached) or index * RUNGS + rung in reported:
                continue
            now = score(env_id, float(np.nanmean(values[reached[0]])))
            trial.report((before + now) / len(self.task.args.env_id), index * RUNGS + rung)
            if trial.should_prune():
                raise optuna.TrialPruned


def suggest(trial: optuna.Trial, name: str, distribution: BaseDistribution) -> Any:
    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(name, distribution.choices)
    kind = trial.suggest_int if isinstance(distribution, IntDistribution) else trial.suggest_float
    return kind(name, distribution.low, distribution.high, log=distribution.log)


def put_back(study: optuna.Study, trial: Any, began: int) -> None:
    """Close a trial that was interrupted, and queue another one that goes on with its runs."""
    attrs = {name: value for name, value in trial.user_attrs.items() if name == "defaults"}
    study.enqueue_trial(trial.params, user_attrs={**attrs, "runs": began})
    study._storage.set_trial_user_attr(trial._trial_id, "in_vain", True)
    study.tell(trial.number, state=TrialState.FAIL)


def put_back_abandoned(study: optuna.Study) -> None:
    """The same for trials of a tune.py on this machine that was killed."""
    for trial in study.get_trials(states=(TrialState.RUNNING,)):
        host, process = trial.user_attrs.get("owner", (None, 0))
        if host == socket.gethostname() and not Path(f"/proc/{process}").exists():
            put_back(study, trial, trial.user_attrs.get("runs", trial.number))


def outcome(run: Path, metric: str) -> float:
    """What a finished run is judged by. Raises Failed."""
    try:
        summary = json.loads((run / "summary.json").read_text())
        found = summary[metric]["mean"]
    except (OSError, ValueError, KeyError):
        raise Failed(f"no {metric} in {run}/summary.json") from None
    if found is None or not math.isfinite(found) or summary.get("not_finite_since_update"):
        raise Failed("diverged")
    return found


def end(process: subprocess.Popen) -> None:
    """Tell a run to save and stop, and wait for it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def ranked(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    return sorted(study.get_trials(states=(TrialState.COMPLETE,)), key=lambda trial: -trial.value)


def words_of(task: Task, params: dict[str, Any]) -> str:
    return shlex.join(grid.spelled(task.flags(params)))


def line(task: Task, study: optuna.Study, number: int) -> str:
    """One line on a trial that has ended."""
    trials, best = study.get_trials(), ranked(study)
    trial = trials[number]
    said = {TrialState.COMPLETE: f"{trial.value or 0:.3f}", TrialState.PRUNED: "pruned"}.get(trial.state, "failed")
    said += f" ({trial.user_attrs['failed']})" if "failed" in trial.user_attrs else ""
    said += f", best {best[0].value:.3f} (trial {best[0].number})" if best else ""
    done = sum(map(counted, trials)) - sum(t.state == TrialState.RUNNING for t in trials)
    return f"[{done}/{task.args.trials}] trial {number}: {said}: {words_of(task, trial.params)}"


def report(task: Task, study: optuna.Study) -> str:
    """The best commands to copy, beside the script's defaults."""
    best = ranked(study)
    lines = [f"{len(best)} of {len(study.trials)} trials have a score; the best:"]
    chosen = best[:3] + [trial for trial in best[3:] if "defaults" in trial.user_attrs]
    for trial in chosen:
        returns = ", ".join(f"{env_id} {value:.4g}" for env_id, value in trial.user_attrs["values"].items())
        name = "the defaults" if "defaults" in trial.user_attrs else f"trial {trial.number}"
        lines += ["", f"{trial.value:.3f}  {name} ({returns})"]
        lines += [shlex.join(task.command(task.args.env_id[0], trial.params))]
    return "\n".join(lines)


def tune(args: Args, words: Sequence[str]) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    task = settle(args, words)
    study = open_study(task.folder, args.storage)
    put_back_abandoned(study)
    if not study.get_trials():
        defaults = task.defaults()
        study.enqueue_trial(defaults, user_attrs={"defaults": list(defaults)})
    without = [env_id for env_id in args.env_id if env_id not in REFERENCES]
    if without and len(args.env_id) > 1:
        say(f"note: {', '.join(without)} have no reference scores: their raw returns are averaged with the others")
    say(f"study {task.folder}: {args.trials} trials over {', '.join(task.space)}")
    stopping = threading.Event()
    shares = grid.shares(args.workers)
    if args.workers > grid.cores() or devices.number_of_gpus():
        shares = [set()] * args.workers
    with ThreadPoolExecutor(args.workers) as pool:
        try:
            with grid.signals_interrupt():
                futures = [pool.submit(Worker(task, study, share, stopping).work) for share in shares]
                for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                    future.result()
        finally:
            stopping.set()
    print(report(task, study))


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Deals out a command line: -> words for this program, words for the script. A flag takes what follows along."""
    mine = {flag(field.name.rstrip("_")) for field in fields(Args)} | {"--help", "-h"}
    own, passed = [], []
    target = own
    for word in words:
        if word.startswith("-") and not word[1:2].isdigit():
            target = own if word.split("=")[0].replace("_", "-") in mine else passed
        target.append(word)
    return own, passed


if __name__ == "__main__":
    sys.argv[1:], passed = split(sys.argv[1:])
    run_main(lambda args: tune(args, passed), Args)
