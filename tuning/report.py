"""What a study found: its trials side by side, the commands of the best, a picture, where to search on."""

import math
import re
import shlex
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState

from common.run.arguments import UsageError, flag
from experiments import grid


def as_flags(params: dict[str, Any], space: dict[str, BaseDistribution]) -> dict[str, Any]:
    """A trial's parameters as the script gets them: numbers of a range with three digits (just below 1 those of the
    distance from it), widths as a tuple."""
    flags = {n: rounded(v, space[n]) if isinstance(space[n], FloatDistribution) else v for n, v in params.items()}
    widths = {n: v for n, v in flags.items() if isinstance(v, str) and re.fullmatch(r"\d+(x\d+)*", v)}
    return flags | {name: tuple(map(int, value.split("x"))) for name, value in widths.items()}


def rounded(value: float, space: FloatDistribution) -> float:
    short = round(1 - float(f"{1 - value:.3g}"), 12) if 0.9 < value < 1 else float(f"{value:.3g}")
    return min(max(short, space.low), space.high)


def counting(study: optuna.Study) -> list[FrozenTrial]:
    """The trials that have ended or are running, without those that were put back or refused."""
    trials = study.get_trials()
    gone = {trial.user_attrs.get("instead_of") for trial in trials}
    gone |= {trial.number for trial in trials if "refused" in trial.user_attrs or "in_vain" in trial.user_attrs}
    return [trial for trial in trials if trial.state != TrialState.WAITING and trial.number not in gone]


def ranked(study: optuna.Study) -> list[FrozenTrial]:
    return sorted(study.get_trials(states=(TrialState.COMPLETE,)), key=lambda trial: -trial.value)


def command(setup: dict[str, Any], env_id: str, steps: int, trial: Any) -> list[str]:
    words = ["python", setup["script"], "--env-id", env_id, "--total-timesteps", str(steps), *setup["flags"]]
    return [*words, *grid.spelled(as_flags(trial.params, trial.distributions))]


def progress(study: optuna.Study, number: int, trials: int) -> str:
    """One line on a trial that has ended."""
    trial, best = study.get_trials()[number], ranked(study)
    said = f"{trial.value:.3f}" if trial.state == TrialState.COMPLETE else trial.state.name.lower()
    said = said.replace("fail", f"failed ({trial.user_attrs.get('failed')})")
    said += f", best {best[0].value:.3f} (trial {best[0].number})" if best else ""
    done = sum(trial.state.is_finished() for trial in counting(study))
    flags = shlex.join(grid.spelled(as_flags(trial.params, trial.distributions)))
    return f"[{done}/{trials}] trial {number}: {said}: {flags}"


def spelled(name: str, distribution: BaseDistribution) -> str:
    """A range or choices as --search takes them."""
    if isinstance(distribution, CategoricalDistribution):
        return f"{name}=" + ",".join(str(choice).lower() for choice in distribution.choices)
    return f"{name}={distribution.low:g}:{distribution.high:g}" + ":log" * distribution.log


def edge(name: str, value: Any, space: BaseDistribution) -> str | None:
    """A line if the value is at the edge of what was searched: in the outer twentieth of a range, or the first or last
    of some numbers."""
    if isinstance(space, CategoricalDistribution):
        numbers = len(space.choices) > 2 and all(re.match(r"\d", str(choice)) for choice in space.choices)
        at_edge = numbers and value != 1 and value in (space.choices[0], space.choices[-1])
    else:
        scale = math.log if space.log else float
        share = (scale(value) - scale(space.low)) / (scale(space.high) - scale(space.low))
        at_edge = not 0.05 < share < 0.95
    shown = rounded(value, space) if isinstance(space, FloatDistribution) else value
    return f"{flag(name)} {shown} is at the edge of {spelled(name, space)}: search wider" if at_edge else None


def table(trials: Sequence[FrozenTrial]) -> str:
    """The trials side by side."""
    columns = []
    for trial in trials:
        head = ["defaults" if "defaults" in trial.user_attrs else f"trial {trial.number}", f"{trial.value:.3f}"]
        flags = as_flags(trial.params, trial.distributions)
        values = {name: " ".join(map(str, np.ravel(value))) for name, value in flags.items()}
        columns.append(dict(zip(("", "score"), head, strict=True)) | trial.user_attrs["values"] | values)
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [[name, *(column.get(name, "-") for column in columns)] for name in names]
    texts = [[cell if isinstance(cell, str) else f"{cell:.4g}" for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return "\n".join("  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in texts)


def report(study: optuna.Study, folder: Path) -> str:
    """The best trials side by side with the script's defaults, their commands, and where to search on."""
    setup, best, trials = study.user_attrs["setup"], ranked(study), counting(study)
    states = Counter(trial.state.name.lower() for trial in trials)
    many = f"study {folder.name}: {len(trials)} trials ({', '.join(f'{n} {state}' for state, n in states.items())})"
    if not best:
        reasons = [trial.user_attrs["failed"] for trial in trials if "failed" in trial.user_attrs]
        return f"{many}; none has a score" + (f": {reasons[-1]}" if reasons else "")
    defaults = [trial for trial in best if "defaults" in trial.user_attrs]
    lines = [many, "", table([*best[:6], *(trial for trial in defaults if trial not in best[:6])]), ""]
    env_id, *others = setup["env_id"]
    for place, trial in enumerate(best[:3], 1):
        steps = trial.user_attrs.get("steps", {})  # with a budget in seconds each environment has its own
        shown = setup["env_id"] if len({*steps.values()}) > 1 else [env_id]
        commands = (command(setup, name, steps.get(name, setup["total_timesteps"]), trial) for name in shown)
        lines += [f"# {place}: {trial.value:.3f}", *map(shlex.join, commands)]
    lines += [f"# likewise --env-id {other}" for other in others if len(shown) == 1] + [""]
    if not defaults:
        lines.append("note: the script's defaults have no score to compare with")
    elif defaults[0] is best[0]:
        lines.append("note: no trial was better than the script's defaults")
    last = setup["seed"] + setup["num_seeds"] - 1
    seeds = f"seed {last}" if setup["num_seeds"] == 1 else f"seeds {setup['seed']} to {last}"
    lines.append(
        f"note: the best of many looks better than it is on {seeds}; judge it on others: --seed 0 --num-seeds 5"
    )
    lines += filter(None, (edge(name, value, best[0].distributions[name]) for name, value in best[0].params.items()))
    return "\n".join(lines)


def draw(study: optuna.Study, out: Path) -> bool:
    """The score of each trial against the six most important flags."""
    import matplotlib

    if len(trials := ranked(study)) < 4:
        return False
    matplotlib.use("agg")
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    with warnings.catch_warnings(action="ignore"):  # of few trials, and of what is experimental in Optuna
        important = optuna.importance.get_param_importances(study, evaluator=evaluator, params=list(trials[0].params))
        names = list(important)[:6]
        axes = np.ravel(optuna.visualization.matplotlib.plot_slice(study, params=names, target_name="score"))
    for axis, name in zip(axes, names, strict=True):
        axis.set_title(f"importance {important[name]:.0%}")
    axes[0].figure.suptitle(out.parent.name)
    axes[0].figure.savefig(out, dpi=100, bbox_inches="tight")
    return True


def show(study: optuna.Study, folder: Path) -> None:
    if "setup" not in study.user_attrs:
        raise UsageError(f"study {folder.name}: was not made by tune.py")
    print(report(study, folder))
    if draw(study, folder / "slices.png"):
        print(f"picture: {folder / 'slices.png'}")
