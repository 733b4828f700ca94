"""How many sick runs does the doctor's first advice heal?

    python benchmarks/cures.py                                            # what is missing: some hours on two cores
    python benchmarks/cures.py --seeds 100 --out runs/cures/100.json      # another seed, to build the doctor with
    python benchmarks/cures.py --list                                     # the sick runs' commands

A run is made sick by a change to flags that learn (SICK). Then it is treated with what the doctor advises, from whose
knowledge the task is left out, and with what three rivals would try. Each treatment is a command that a user could
paste, with the sick run's seed. The rules are in experiments/PREREGISTERED.md.
"""

import importlib
import itertools
import json
import random
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import optuna
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tune
from benchmarks import report
from benchmarks.tasks import CLASSIC
from clinic import advice, diagnosis, levers, usual
from common.run import arguments
from common.run.arguments import UsageError
from common.run.tracking import say
from experiments import grid
from experiments.references import reference_score
from tuning.report import as_flags
from tuning.trials import Task

MINATAR = "--num-envs 128 --total-timesteps 1048576 --env-id"
STICKY = "--sticky-actions 0.1"
TASKS = {  # flags of ppo.py with which it learns
    "CartPole": CLASSIC["CartPole"][2],
    "Acrobot": CLASSIC["Acrobot"][2],
    "MountainCar": CLASSIC["MountainCar"][2],
    "Pendulum": f"{CLASSIC['Pendulum'][2]} --total-timesteps 1500000",
    "MountainCarContinuous": f"{CLASSIC['MountainCarContinuous'][2]} --total-timesteps 500000",
    "Breakout": f"{MINATAR} Breakout-MinAtar",
    "SpaceInvaders": f"{MINATAR} SpaceInvaders-MinAtar",
    "Freeway": f"{MINATAR} Freeway-MinAtar",
    "Breakout, sticky": f"{MINATAR} Breakout-MinAtar {STICKY}",
    "SpaceInvaders, sticky": f"{MINATAR} SpaceInvaders-MinAtar {STICKY}",
}
DEAR = [name for name, flags in TASKS.items() if "MinAtar" in flags]  # these share the changes among them
FIXED = ("env_id", "total_timesteps", "sticky_actions")  # what no change takes away
QUIET = {"num_devices": 1, "halt_on_nan": False, "plasticity_every": 0}
HEALTHY_SEEDS, TRIES = 3, 3
COLUMNS = ("doctor", "checkpoint", "log", "rate", "tune", "random")


def times(factor: float, name: str, **others: Any) -> Callable[[Any], dict[str, Any]]:
    return lambda a: {name: type(getattr(a, name))(float(f"{factor * getattr(a, name):.6g}")), **others}


# How a run is made sick: changes to its flags; None where that is no change.
SICK: dict[str, Callable[[Any], dict[str, Any] | None]] = {
    "learning rate × 10": times(10, "learning_rate"),
    "learning rate ÷ 10": times(0.1, "learning_rate"),
    "4 gradient steps": lambda a: {"update_epochs": 2, "num_minibatches": 2},
    "ε 1": lambda a: {"clip_eps": 1.0},
    "bonus × 30": lambda a: {"ent_coef": 30 * a.ent_coef or 0.3},
    "γ 0.8": lambda a: {"gamma": 0.8},
    "learning rate × 30": times(30, "learning_rate"),
    "learning rate ÷ 30": times(1 / 30, "learning_rate"),
    "1,024 gradient steps": lambda a: {"update_epochs": 8, "num_minibatches": 128},
    "ε 0.01": lambda a: {"clip_eps": 0.01},
    "no bonus": lambda a: {"ent_coef": 0.0} if a.ent_coef else None,
    "γ and λ 1": lambda a: {"gamma": 1.0, "gae_lambda": 1.0},
    "learning rate ÷ 300": times(1 / 300, "learning_rate"),
    "few updates": times(16, "num_envs"),
    "rewards of 0.001": lambda a: {"reward_clip": 0.001, "norm_reward": False},
    "COM 4": lambda a: {"script": "ppo_ewma", "com": 4.0},
    "COM 32,768": lambda a: {"script": "ppo_ewma", "com": 32768.0},
    "tanh, no annealing": lambda a: (
        {"activation": "tanh", "layer_norm": False, "anneal_lr": False} if a.activation == "relu" else None
    ),
    "clipped values": lambda a: (
        {"clip_vloss": True, "norm_reward": False} if a.norm_reward or not a.clip_vloss else None
    ),
    "nothing normalised": lambda a: {"norm_obs": False, "norm_reward": False} if a.norm_obs or a.norm_reward else None,
    "the script's own flags": lambda a: {"only": FIXED} if a.activation == "tanh" else None,
    "learning rate ÷ 10, bonus × 30": times(0.1, "learning_rate", ent_coef=0.3),
    "learning rate × 10, ε 1": times(10, "learning_rate", clip_eps=1.0),
}


@dataclass(frozen=True)
class Args:
    seeds: tuple[int, ...] = (0,)
    """Seeds of the sick runs; healthy ones have the first and the next two."""
    tasks: tuple[str, ...] = tuple(TASKS)
    """Only these tasks."""
    columns: tuple[str, ...] = COLUMNS
    """Only these treatments; none: only the sick and the healthy runs."""
    list: bool = False
    """Only print the commands of the runs that should be sick."""
    workers: int | None = None
    """How many runs go at once, each on its share of the cores (default: one per core)."""
    out: Path = Path("results/cures.json")
    """Results."""
    runs_dir: Path = Path("runs/cures")
    """Where the runs' folders go."""


@dataclass(frozen=True)
class Case:
    """A run that should be sick."""

    task: str
    change: str
    cell: grid.Cell

    @property
    def args(self) -> Any:
        return importlib.import_module(self.cell.script).Args(**dict(self.cell.flags))

    @property
    def name(self) -> str:
        return f"{self.task}, seed {self.args.seed}: {self.change}"


@cache
def base(task: str) -> Any:
    """The arguments of ppo.py for a task."""
    import ppo

    return arguments.parse(ppo.Args, "", shlex.split(TASKS[task]))


def make_cell(of: str, script: str, flags: dict[str, Any], source: grid.Cell | None = None) -> grid.Cell:
    """A run with these flags, which may go on from what another one has learned."""
    flags = flags | QUIET
    args = importlib.import_module(script).Args(**flags)
    varied = {"of": of, "env": args.env_id, "seed": args.seed}
    return grid.named(script, flags, varied, args.num_updates, source, source.num_updates if source else 0)


def healthy(task: str, seed: int) -> grid.Cell:
    return make_cell("healthy", "ppo", arguments.given(base(task)) | {"seed": seed})


def candidates(tasks: tuple[str, ...], seed: int) -> Iterator[Case]:
    """The runs that should be sick. script: of another script; only: of the task's flags it keeps only these."""
    for task in tasks:
        for number, (name, change) in enumerate(SICK.items()):
            if task in DEAR and number % len(DEAR) != DEAR.index(task):
                continue
            if (changes := change(base(task))) is None:
                continue
            script, only = changes.pop("script", "ppo"), changes.pop("only", None)
            flags = {k: v for k, v in arguments.given(base(task)).items() if only is None or k in only}
            if "num_minibatches" in changes:
                flags.pop("minibatch_size", None)
            yield Case(task, name, make_cell(f"sick-{number}", script, flags | changes | {"seed": seed}))


def advised(cell: grid.Cell, folder: Path) -> tuple[diagnosis.Found, list[advice.Advice]]:
    """What the doctor says of a run, without knowing its environment."""
    found = diagnosis.diagnose_all(diagnosis.of_run(folder / cell.name))
    args = importlib.import_module(cell.script).Args(**dict(cell.flags))
    return found, advice.advise(found, cell.script, args, without=args.env_id)


def treatment(case: Case, of: str, script: str, flags: dict[str, Any] | None, start: bool = False) -> grid.Cell | None:
    """A run with flags that somebody advises. None if there is none, or the script refuses them."""
    try:
        return flags and make_cell(of, script, flags | {"seed": case.args.seed}, case.cell if start else None)
    except UsageError:
        return None


def treatments(case: Case, folder: Path) -> dict[str, list[grid.Cell | None]]:
    """What each column would run, in order, until one heals. None: it has no command, which heals nothing."""
    a, script, own = case.args, case.cell.script, dict(case.cell.flags)
    found, tries = advised(case.cell, folder)
    tries = (tries + [advice.Advice("nothing", "")] * TRIES)[:TRIES]
    of_doctor = [treatment(case, "doctor", script, x.flags) for x in tries]
    # What is learned cannot be taken over by another network.
    same = importlib.import_module(script).FIXED
    first = importlib.import_module(script).Args(**tries[0].flags) if tries[0].flags else None
    can_go_on = first and all(getattr(first, name) == getattr(a, name) for name in same)
    suggested = [usual.changed(a, change) for _, change in advice.by_the_log(found.label, found.numbers, a)]
    rates = [usual.changed(a, {"learning_rate": float(f"{factor * a.learning_rate:.3g}")}) for factor in (3, 1 / 3)]
    later = ("entropy_down", "lr_entropy_down")  # levers that the doctor did not have when this was run
    choice = random.Random(case.name).choice(
        [lever for name, lever in levers.levers_of(a).items() if name not in ("control", *later)]
    )
    own_size = {"minibatch_size": a.minibatch_size}
    lever = {k: v for k, v in own.items() if k != "num_minibatches"} | own_size | choice.flags
    return {
        "doctor": of_doctor,
        "checkpoint": [treatment(case, "checkpoint", script, tries[0].flags, start=True) if can_go_on else None],
        "log": [treatment(case, "log", script, flags) for flags in suggested[:1] or [None]],
        "rate": [treatment(case, "rate", script, flags) for flags in rates],
        "tune": trials(case, own),
        "random": [treatment(case, "random", choice.script or script, lever)],
    }


def trials(case: Case, own: dict[str, Any]) -> list[grid.Cell]:
    """The first trials of tune.py, which searches its own table and keeps the run's other flags: the script's defaults,
    then by chance."""
    given = {k: v for k, v in own.items() if k not in tune.SPACE and k != "num_minibatches"}
    asked = tune.Args(script=f"{case.cell.script}.py", env_id=(case.args.env_id,))
    task = Task(asked, type(case.args), [], given, {}, "")
    task = replace(task, space=tune.parse_space(task))
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=case.args.seed))
    found: list[grid.Cell] = []
    params = task.defaults()
    while len(found) < TRIES:
        cell = treatment(case, "tune", case.cell.script, given | as_flags(params, task.space))
        found += [cell] if cell else []  # tune.py, too, asks again if the script refuses
        params = study.ask(task.space).params
    return found


class Results:
    """What is known, in a file that is written after each run."""

    def __init__(self, args: Args):
        self.args, self.folder = args, args.runs_dir
        known = json.loads(args.out.read_text()) if args.out.exists() else {}
        self.runs: dict[str, float | None] = known.get("runs", {})
        self.cases: list[dict[str, Any]] = known.get("cases", [])

    def write(self) -> None:
        report.write(self.args.out, report.record(runs=dict(sorted(self.runs.items())), cases=self.cases))

    def keep(self, cell: grid.Cell) -> None:
        """Take the return of a finished run's final policy: None if it is not finite."""
        summary = json.loads((self.folder / cell.name / "summary.json").read_text())
        self.runs[cell.name] = summary.get("eval/episodic_return", {}).get("mean")
        self.write()

    def score(self, cell: grid.Cell, env_id: str) -> float:
        """From a random policy's return, which is that of a run that diverged, to a published one."""
        value = self.runs[cell.name]
        return 0.0 if value is None else reference_score(env_id, value)

    def run(self, cells: list[grid.Cell]) -> None:
        grid.complete(cells, self.runs, self.folder, self.args.workers, say, self.keep)


def main(args: Args) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    results = Results(args)
    cases = [case for seed in args.seeds for case in candidates(args.tasks, seed)]
    controls = {task: [healthy(task, args.seeds[0] + i) for i in range(HEALTHY_SEEDS)] for task in args.tasks}
    everything = [*itertools.chain(*controls.values()), *(case.cell for case in cases)]
    if args.list:
        for case in cases:
            print(case.name, shlex.join(grid.command(case.cell, args.runs_dir)), sep=": ")
        return
    results.run(everything)
    # The doctor reads their logs, which may have been left on another machine.
    again = [cell for cell in everything if grid.state(cell, args.runs_dir) != "finished"]
    grid.run_missing(again, args.runs_dir, args.workers or grid.cores_or_one(), say)

    score = lambda cell, task: results.score(cell, base(task).env_id)  # noqa: E731
    well = {task: sum(score(cell, task) for cell in cells) / len(cells) for task, cells in controls.items()}
    share = lambda cell, task: score(cell, task) / well[task]  # noqa: E731
    sick = [case for case in cases if share(case.cell, case.task) < advice.HEALED]
    plans = {case: treatments(case, args.runs_dir) for case in sick}

    def outcome(case: Case, cells: list[grid.Cell | None]) -> tuple[list[float | None], grid.Cell | None]:
        """The shares until one heals, and the next run that is needed."""
        shares: list[float | None] = []
        for cell in cells:
            if cell and cell.name not in results.runs:
                return shares, cell
            shares.append(cell and share(cell, case.task))
            if cell and shares[-1] >= advice.HEALED:
                break
        return shares, None

    for _ in range(TRIES):
        steps = [outcome(case, plan[name]) for case, plan in plans.items() for name in plan if name in args.columns]
        results.run([cell for _, cell in steps if cell])

    told_of = {case["run"]: case for case in results.cases}
    for task, cells in controls.items():
        for cell in cells:
            found, tries = advised(cell, args.runs_dir)
            told = {"task": task, "run": cell.name, "share": share(cell, task)}
            told_of[cell.name] = told | {"label": found.label, "advice": tries[0].kind}
    for case, plan in plans.items():
        found, tries = advised(case.cell, args.runs_dir)
        told = {"task": case.task, "change": case.change, "run": case.cell.name, "share": share(case.cell, case.task)}
        told |= {"label": found.label, "advice": tries[0].kind, "why": tries[0].why}
        ended = {name: outcome(case, cells) for name, cells in plan.items()}
        told_of[case.cell.name] = told | {name: shares for name, (shares, missing) in ended.items() if not missing}
    results.cases = list(told_of.values())
    for case in results.cases:
        print(*(f"{value:.2f}" if isinstance(value, float) else value for value in case.values()), sep=" | ")
    results.write()


if __name__ == "__main__":
    main(tyro.cli(Args))
