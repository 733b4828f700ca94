"""Finds flags for a script and its environments with Optuna (https://arxiv.org/abs/1907.10902).

    python tune.py ppo.py --env-id Breakout-MinAtar Asterix-MinAtar --trials 64 --total-timesteps 4194304 --workers 2
    python tune.py ppo.py --env-id CartPole-v1 --budget-seconds 30 --only learning_rate num_steps
    python tune.py --from ppo-CartPole-v1-1f0c2a9e                     # shows a study's results again

A trial is one run of the script per environment, as a user would start it. Its score is the mean over environments of
the return of the evaluated policy at the end: 0 for a random policy, 1 for a published one (experiments/references.py).
The same command goes on where a study was stopped, and several machines can share a study. See docs/tune.md.
"""

import common.run.early  # noqa: F401 (before JAX)
import tuning  # noqa: F401 (says how Optuna is installed)

# isort: split
import copy
import hashlib
import importlib.util
import json
import math
import os
import re
import shlex
import socket
import sys
import threading
import typing
import warnings
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState
from tyro.conf import Positional, arg

from common import envs
from common.run import arguments, plots
from common.run.arguments import NonNegative, Positive, Steps, UsageError, flag
from common.run.checkpoints import first_line
from common.run.command import main as run_main
from common.run.tracking import say
from experiments import grid
from experiments.references import REFERENCES
from tuning.report import as_flags, counting, show, spelled
from tuning.trials import RUNGS, Task, Worker, put_back, shares

# What is searched, if the script has the flag: low:high, low:high:log, or choices in ascending order. Widths: 64x64.
SPACE = {
    "learning_rate": "1e-4:1e-2:log",
    "anneal_lr": "true,false",
    "anneal_ent": "true,false",
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
DIFFERENT = {
    "pqn": {"minibatch_size": "64,128,256,512,1024"},
    "sfl_kinetix": {"learning_rate": "1e-5:1e-3:log", "num_steps": "64,128,256,512"},
}
STARTUP = 10  # trials with a score before the median of them prunes
OWN = ("run_name", "resume", "evaluate", "list_envs", "distributed")  # a script's flags that trials cannot have


@dataclass(frozen=True)
class Args:
    script: Positional[str | None] = None
    """The script, such as ppo.py. Flags that are not listed here are passed on to it, and fix what they name."""

    # --- what is tuned ---
    env_id: tuple[str, ...] = ()
    """One environment or several; the score is the mean over them."""
    total_timesteps: Steps | None = None
    """Environment steps of each run (default: the script's)."""
    budget_seconds: Positive[float] | None = None
    """In place of --total-timesteps: as many steps as each run makes in so many seconds of training."""
    seed: NonNegative[int] = 100
    """Seed of the runs. Those below 100 are left to judge what was found."""
    num_seeds: Positive[int] = 1
    """Train this many seeds at once in each run; the score is the mean over them."""
    metric: str = "eval/episodic_return"
    """What a run is judged by, in its summary.json."""

    # --- search ---
    trials: Positive[int] = 64
    """Trials of the study in all, with those of earlier starts and of other machines."""
    search: tuple[str, ...] = ()
    """Add to the table of what is searched, or replace in it: name=low:high, name=low:high:log, name=a,b,c."""
    only: tuple[str, ...] = ()
    """Search only these flags; the others keep the script's defaults."""
    pruner: Literal["median", "none"] = "median"
    """Stop trials early whose training return is below the median of the others."""
    workers: Positive[int] = 1
    """Trials at once, each on its share of the CPU cores or GPUs; with --launch slurm jobs of one trial at a time."""
    launch: Literal["here", "slurm"] = "here"
    """slurm: write an sbatch array of workers, and print how to submit it."""

    # --- study ---
    study: str | None = None
    """Name of the study (default: the script, the environments and a hash of the flags)."""
    storage: str | None = None
    """URL of a database for Optuna, postgresql://... (default: the file journal.log in the study's folder)."""
    runs_dir: str = "runs/tune"
    """Folder that holds a folder for each study."""
    from_: Annotated[str | None, arg(name="from")] = None
    """Show the results of this study again, and run nothing."""

    def __post_init__(self):
        arguments.check(self)
        if self.total_timesteps and self.budget_seconds:
            raise UsageError(f"--budget-seconds {self.budget_seconds:g} with --total-timesteps: give one of the two")
        for given, name in ((self.study, "study"), (self.from_, "from")):
            if given is not None and Path(given).name != given:
                raise UsageError(f"--{name} {given}: must be the name of a folder in --runs-dir {self.runs_dir}")


# The space: the table, what the script has, what the user fixes and searches.
def parse_range(kind: type, name: str, text: str) -> BaseDistribution:
    """A range (low:high or low:high:log) or choices (a,b,c) of a field of the script's Args."""
    hint, where = typing.get_type_hints(kind)[name], f"--search {name}={text}"
    kinds = {hint, *typing.get_args(hint)} & {int, float, bool}  # of int | None: int
    number = {int: int, float: float}.get(kinds.pop() if len(kinds) == 1 and "tuple" not in str(hint) else None)
    if ":" in text:
        low, high, *scale = text.split(":")
        try:
            low, high = number(low), number(high)
        except (TypeError, ValueError):
            wanted = f"low:high or low:high:log, in {number.__name__}s" if number else "choices, a,b,c"
            raise UsageError(f"{where}: must be {wanted}") from None
        if not low < high < math.inf or scale not in ([], ["log"]) or (scale and low <= 0):
            raise UsageError(f"{where}: must be low:high or low:high:log, with low < high (and 0 < low for log)")
        return (IntDistribution if number is int else FloatDistribution)(low, high, log=bool(scale))
    convert = (lambda word: {"true": True, "false": False}[word]) if hint is bool else number or str
    try:
        return CategoricalDistribution(list(dict.fromkeys(map(convert, text.split(",")))))
    except (KeyError, ValueError):
        wanted = "true,false" if hint is bool else f"{number.__name__}s, a,b,c, or a range, low:high"
        raise UsageError(f"{where}: must be {wanted}") from None


def parse_space(task: Task) -> dict[str, BaseDistribution]:
    """The table, without what the script does not have and what the user has fixed; then --search and --only."""
    args, known = task.args, {field.name for field in fields(task.kind)}
    fixed = set(task.given) | ({"minibatch_size"} if "num_minibatches" in task.given else set())
    table = SPACE | DIFFERENT.get(Path(args.script).stem, {})
    texts = {name: text for name, text in table.items() if name in known and name not in fixed}
    for entry in args.search:
        name, _, text = entry.partition("=")
        name = name.removeprefix("--").replace("-", "_")
        if not text:
            raise UsageError(f"--search {entry}: must be name=low:high, name=low:high:log or name=a,b,c")
        if name not in known:
            raise UsageError(f"--search {entry}: {args.script} has no {flag(name)}")
        if name in task.given:
            raise UsageError(f"--search {entry}: {flag(name)} is set as well; leave out one of the two")
        texts[name] = text
        if name == "num_minibatches":
            texts.pop("minibatch_size", None)
    only = [name.removeprefix("--").replace("-", "_") for name in args.only] or list(texts)
    for name in set(only) - set(texts):
        raise UsageError(f"--only {name}: is not searched; {', '.join(texts)} are, and what --search adds")
    space = {name: parse_range(task.kind, name, text) for name, text in texts.items() if name in only}
    if not space:
        raise UsageError("--search: nothing is left to search; give name=low:high or name=a,b,c")
    check_values(task, space)
    return space


def check_values(task: Task, space: dict[str, BaseDistribution]) -> None:
    """Refuse values that the script refuses whatever the other parameters are."""
    for name, distribution in space.items():
        for value in getattr(distribution, "choices", None) or (distribution.low, distribution.high):
            trial = copy.copy(task.kind(**task.given))
            object.__setattr__(trial, name, as_flags({name: value}, space)[name])
            try:
                arguments.check(trial)
            except UsageError as error:
                raise UsageError(f"--search {error}") from None


def load(script: str) -> type:
    """-> the Args of a script."""
    if not Path(script).is_file():
        raise UsageError(f"{script}: no such script; ppo.py, ppo_ewma.py and pqn.py are some")
    spec = importlib.util.spec_from_file_location(f"tuned_{Path(script).stem}", script)
    if spec is None:
        raise UsageError(f"{script}: is no Python script")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    needed = {"env_id", "seed", "num_seeds", "total_timesteps"}
    if not needed <= getattr(getattr(module, "Args", None), "__dataclass_fields__", {}).keys():
        raise UsageError(f"{script}: cannot be tuned; it has no Args with {', '.join(map(flag, sorted(needed)))}")
    return module.Args


def settle(args: Args, words: list[str]) -> Task:
    """Check all that can be checked before the first run."""
    if args.script is None or not args.env_id:
        raise UsageError("name a script and its environments: python tune.py ppo.py --env-id Breakout-MinAtar")
    kind = load(args.script)
    mine = {"seed": args.seed, "num_seeds": args.num_seeds, "total_timesteps": args.total_timesteps}
    mine = grid.spelled({name: value for name, value in mine.items() if value is not None})
    for env_id in args.env_id:
        parsed = arguments.parse(kind, "", ["--env-id", env_id, *mine, *words])
        if hasattr(parsed, "num_levels"):
            envs.make(env_id, 1, 1, parsed.env_kwargs)
    given = arguments.given(parsed)
    if refused := [name for name in OWN if name in given]:
        raise UsageError(f"{flag(refused[0])}: leave it out; tune.py starts and names the runs")
    finals = {f"final_{name}" for name in (*plots.PERFORMANCE, *plots.DIAGNOSIS)}
    if not args.metric.startswith("eval/") and args.metric not in finals:
        known = "eval/episodic_return, eval/solve_rate or final_return"
        raise UsageError(f"--metric {args.metric}: must be a key of summary.json with a mean, such as {known}")
    if args.metric.startswith("eval/") and getattr(parsed, "num_eval_episodes", 1) == 0:
        raise UsageError(f"--num-eval-episodes 0: --metric {args.metric} needs an evaluation")
    task = Task(args, kind, words, given, {}, args.study or "")
    task = replace(task, space=parse_space(task))
    digest = hashlib.sha256(json.dumps([x for x in task.setup.values() if x is not None]).encode()).hexdigest()[:8]
    parts = [Path(args.script).stem, *(Path(env_id).name.replace(":", "-") for env_id in args.env_id)]
    return replace(task, name=args.study or f"{'-'.join(parts)[:80]}-{digest}")


def open_study(args: Args, name: str, make: bool = True) -> optuna.Study:
    folder = Path(args.runs_dir) / name
    pruner = optuna.pruners.NopPruner()
    if args.pruner == "median":
        pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=RUNGS // 4)
    how = {"sampler": optuna.samplers.TPESampler(), "pruner": pruner, "study_name": name}
    if not make and args.storage is None and not (folder / "journal.log").exists():
        raise UsageError(f"--from {name}: there is no {folder}/journal.log")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        storage: Any = args.storage
        if storage is None:
            backend = optuna.storages.journal.JournalFileBackend(str(folder / "journal.log"))
            storage = optuna.storages.JournalStorage(backend)
        if not make:
            return optuna.load_study(storage=storage, **how)
        return optuna.create_study(storage=storage, direction="maximize", load_if_exists=True, **how)
    except Exception as error:  # of the file system, of SQLAlchemy, of a missing driver, of Optuna
        raise UsageError(f"study {name}: cannot be opened in {args.storage or folder} ({first_line(error)})") from None


def begin_study(task: Task) -> optuna.Study:
    """Open the study, or refuse one that is of something else. Its first trial are the script's defaults."""
    study = open_study(task.args, task.name)
    before = study.user_attrs.get("setup", task.setup)
    for name in (name for name in before if before[name] != task.setup[name]):
        old = " ".join(map(str, before[name] if isinstance(before[name], list) else [before[name]]))
        what = {"flags": "command line for the script", "script": "script"}.get(name) or flag(name)
        raise UsageError(f"--study {task.name}: was made with another {what} ({old}); name another study")
    for trial in study.get_trials():
        for name, old in trial.distributions.items():
            new = task.space.get(name, old)
            if type(new) is not type(old) or getattr(new, "choices", 0) != getattr(old, "choices", 0):
                raise UsageError(f"study {task.name}: has searched {spelled(name, old)}; give --study another name")
    if "setup" not in study.user_attrs:
        study.set_user_attr("setup", task.setup)
    if not study.get_trials():
        defaults = task.defaults()
        study.enqueue_trial(defaults, user_attrs={"defaults": list(defaults)})
    for trial in study.get_trials(states=(TrialState.RUNNING,)):  # of a tune.py on this machine that was killed?
        host, process = trial.user_attrs.get("owner", (None, None))
        if host == socket.gethostname():
            try:
                os.kill(process, 0)
            except ProcessLookupError:
                put_back(study, trial)
            except PermissionError:
                pass
    return study


# The program.
def write_slurm(task: Task) -> Path:
    """An sbatch array in which each job is a worker of the study."""
    args = {field.name: getattr(task.args, field.name) for field in fields(Args)}
    chosen = {field.name: args[field.name] for field in fields(Args) if args[field.name] != field.default}
    chosen |= {"study": task.name, "workers": 1, "launch": "here"}
    words = [task.args.script, *grid.spelled({n: v for n, v in chosen.items() if n != "script"}), *task.words]
    script, output = task.folder / "workers.sbatch", task.folder / "worker-%A_%a.out"
    run = f"exec {shlex.join([sys.executable, os.path.relpath(__file__), *words])}"
    script.write_text(grid.sbatch(task.name, task.args.workers, output, run, "--signal=B:TERM@180"))
    return script


def tune(args: Args, words: list[str]) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    if args.from_ is not None:
        return show(open_study(args, args.from_, make=False), Path(args.runs_dir) / args.from_)
    jax.config.update("jax_platforms", "cpu")  # this process leaves the GPUs to the runs
    task = settle(args, words)
    study = begin_study(task)
    without = [env_id for env_id in args.env_id if env_id not in REFERENCES]
    if without:
        mixed = ", averaged with the scores of the others" if len(args.env_id) > 1 else ""
        say(f"note: no reference scores for {', '.join(without)}: the score is the raw return{mixed}")
    if args.launch == "slurm":
        return print(f"sbatch {shlex.quote(str(write_slurm(task)))}")
    say(f"study {task.folder}: {len(counting(study))} of {args.trials} trials; over {', '.join(task.space)}")
    stopping = threading.Event()
    with grid.signals_caught() as caught, ThreadPoolExecutor(args.workers) as pool:
        going = {pool.submit(Worker(task, study, share, stopping).work) for share in shares(args.workers, task.given)}
        try:
            while going and not caught:
                done, going = wait(going, 0.2, FIRST_EXCEPTION)
                for work in done:
                    work.result()
        finally:
            stopping.set()
        if caught:
            say("stopping: the runs save first; the same command goes on")
    if caught:
        raise KeyboardInterrupt
    return show(study, task.folder)


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Deal out a command line: -> words for this program, words for the script. A flag takes what follows along."""
    mine = {flag(field.name.rstrip("_")) for field in fields(Args)} | {"--help", "-h"}
    own, passed = [], []
    target = own
    for word in words:
        if re.match(r"--?[a-zA-Z]", word):
            target = own if word.split("=")[0].replace("_", "-") in mine else passed
        target.append(word)
    return own, passed


if __name__ == "__main__":
    sys.argv[1:], passed = split(sys.argv[1:])
    run_main(lambda args: tune(args, passed), Args)
