"""Flags that learned tasks of a run's kind (benchmarks/tasks.py), and which of a run's own lie far from all of them."""

import importlib
import json
import math
import re
import shlex
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple

from benchmarks.tasks import TABLE
from common.actions import Discrete
from common.run import arguments
from common.run.arguments import UsageError
from common.suites import gymnax
from experiments import grid

FEW_NUMBERS = 100  # observations of fewer numbers are told from images and symbols
LOOSE = 5  # times the slack for tasks of another kind
NO_BONUS = 0.002  # a smaller bonus of the entropy is as good as none
LEAST_UPDATES = 100  # a run with fewer is no example
GROUPS = ("minatar", "minatar_sticky", "classic", "control", "others")  # rows that are examples
SIZES = ("num_envs", "num_steps", "minibatch_size", "num_minibatches")
FOLLOW = {"num_minibatches", "base_num_envs", "search_batch"}  # flags whose default depends on others, which may change


class Measure(NamedTuple):
    """What is compared as a ratio. slack: the factor beyond the examples' range at which a value is far. flags: those
    that set it, which are taken over from an example."""

    of: Callable[[Any], Any]  # the value as it is shown
    slack: float
    flags: tuple[str, ...]
    scale: Callable[[Any], float | None] = lambda x: x  # before the comparison


def horizon(x: float) -> float:
    """Of a discount factor: 0.99 and 0.995 are as far apart as 0.9 and 0.95."""
    return 1 / max(1e-6, 1 - x)


AT_END = "entropy bonus at the end"  # of training
MEASURES = {
    "--learning-rate": Measure(lambda a: a.learning_rate, 3, ("learning_rate",)),
    "gradient steps per update": Measure(
        lambda a: a.update_epochs * a.num_minibatches, 4, ("update_epochs", "num_minibatches")
    ),
    "--clip-eps": Measure(lambda a: a.clip_eps, 2.5, ("clip_eps",)),
    "--ent-coef": Measure(lambda a: a.ent_coef, 6, ("ent_coef", "anneal_ent"), lambda x: max(x, NO_BONUS)),
    AT_END: Measure(
        lambda a: 0.0 if a.anneal_ent else a.ent_coef, 6, ("ent_coef", "anneal_ent"), lambda x: max(x, NO_BONUS)
    ),
    "--gamma": Measure(lambda a: a.gamma, 2, ("gamma",), horizon),
    "--gae-lambda": Measure(lambda a: a.gae_lambda, 3, ("gae_lambda",), horizon),
    "--com": Measure(lambda a: a.com, 8, ("com",)),
    "--reward-clip": Measure(lambda a: a.reward_clip, 10, ("reward_clip",), lambda x: x or 1.0),
    # These are never too many.
    "updates": Measure(lambda a: a.num_updates, 2, SIZES, lambda x: min(x, LEAST_UPDATES)),
}
CHOICES = ("activation", "layer_norm", "anneal_lr", "clip_vloss")  # far if no example has it
NORMAL = ("norm_obs", "norm_reward")  # far if no example of the same task has it
RECIPE = (  # what is taken over with all of an example; what is left makes the run what it is
    *SIZES, "gamma", "gae_lambda", "clip_eps", "com", "update_epochs", "learning_rate", "anneal_lr", "max_grad_norm",
    "norm_adv", "clip_vloss", "vf_coef", "ent_coef", "anneal_ent", "activation", "layer_norm", "norm_obs",
    "norm_reward", "reward_clip", "stagger_resets",
)  # fmt: skip


@cache
def kind(env_id: str) -> str:
    """What its observations and actions are: "continuous", "few" numbers, "many", or "" where only running what the
    run's folder names could tell."""
    if env_id in gymnax.env_ids():
        env = gymnax.make(env_id)
        if not isinstance(env.action_space, Discrete):
            return "continuous"
        return "few" if math.prod(env.obs_shape) < FEW_NUMBERS else "many"
    known = {"brax": "continuous", "playground": "continuous", "craftax": "many", "xminigrid": "many"}
    return known.get(env_id.partition("/")[0], "")


@cache
def examples(script: str) -> tuple[Any, ...]:
    """The arguments of a script's rows in the table; for ppo_ewma.py those of ppo.py's, too."""
    args, of = importlib.import_module(script).Args, {f"{script}.py", "ppo.py" if script == "ppo_ewma" else ""}
    rows = [row for row in TABLE.values() if row.group in GROUPS and row.script in of]
    found = [args(**fields_of(row.flags)) for row in rows]
    return tuple(a for a in found if a.num_updates >= LEAST_UPDATES)


def fields_of(flags: str) -> dict[str, Any]:
    """--learning-rate 1e-3 --no-anneal-lr -> learning_rate=0.001, anneal_lr=False. tyro would take seconds for all."""
    found: dict[str, Any] = {}
    for text in f" {flags}".split(" --")[1:]:
        name, *values = shlex.split(text)
        name = name.replace("-", "_")
        numbers = [json.loads(value) if re.match(r"[\d.]", value) else value for value in values]
        value = tuple(numbers) if len(numbers) > 1 else next(iter(numbers), None)
        found |= {name: value} if values else {name.removeprefix("no_"): not name.startswith("no_")}
    return found


class Alike(NamedTuple):
    """What a run is compared with, the nearest setting first. close: whether it is of the same task or kind."""

    rows: list[Any]
    close: bool


def alike(script: str, args: Any, without: str | None = None) -> Alike:
    """Examples of the same task, else of its kind, else all there are, else the script's own flags. without: an
    environment that is not to be known."""
    known = [a for a in examples(script) if a.env_id != without]
    same = [a for a in known if a.env_id == args.env_id]
    of_kind = [a for a in known if kind(a.env_id) == kind(args.env_id) != ""]
    rows = same or of_kind or known or [type(args)(env_id=args.env_id)]
    return Alike(sorted(rows, key=lambda row: apart(args, row)), bool(same or of_kind))


def measured(args: Any) -> dict[str, float]:
    """The measures that a script's arguments have."""
    having = {name: m for name, m in MEASURES.items() if all(hasattr(args, flag) for flag in m.flags)}
    return {name: value for name, m in having.items() if (value := m.scale(m.of(args))) is not None}


def apart(a: Any, b: Any) -> float:
    """How far two settings are from each other."""
    one, other = (measured(x) | {"transitions": x.batch_size} for x in (a, b))
    named = (name for name in one if name in other and name != AT_END)  # the bonus has a name of its own
    ratios = (math.log((one[name] + 1e-4) / (other[name] + 1e-4)) for name in named)
    choices = sum(getattr(a, name, None) != getattr(b, name, None) for name in (*CHOICES, *NORMAL))
    return choices + sum(min(2.0, abs(ratio)) for ratio in ratios)


def far(args: Any, like: Alike) -> dict[str, tuple[str, ...]]:
    """What of a run lies far from all examples, with its value and that of the nearest, and the flags that set it."""
    found, rows, nearest = {}, [measured(row) for row in like.rows], like.rows[0]
    for name, value in measured(args).items():
        m, others = MEASURES[name], [row.get(name, value) for row in rows]
        slack = m.slack * (1 if like.close else LOOSE)
        if m.flags not in found.values() and not min(others) / slack <= value <= max(others) * slack:
            own, there = ("none" if x is None else f"{x:g}" for x in (m.of(args), m.of(nearest)))
            found[f"{name} {own} ({there} there)"] = m.flags
    same = like.close and nearest.env_id == args.env_id
    for name in (*CHOICES * like.close, *NORMAL * same):
        if hasattr(args, name) and getattr(args, name) not in [getattr(row, name) for row in like.rows]:
            own, there = (" ".join(grid.spelled({name: getattr(a, name)})) for a in (args, nearest))
            found[f"{own} ({there} there)"] = (name,)
    return found


def changed(args: Any, changes: dict[str, Any]) -> dict[str, Any] | None:
    """A run's flags with changes, as its script takes them; None if it refuses them or nothing changes. Where sizes are
    changed, environments are fewer, or else steps are more, if there would be too few updates."""
    kind, names = type(args), args.__dataclass_fields__
    if not changes.keys() <= names.keys():
        return None
    flags = {k: v for k, v in arguments.given(args).items() if k not in FOLLOW and v is not None}
    if "exploration_timesteps" in flags and flags["exploration_timesteps"] == args.total_timesteps // 10:  # by default
        del flags["exploration_timesteps"]
    if "num_minibatches" in changes:
        flags.pop("minibatch_size", None)
    flags |= {name: getattr(args, name) for name in ("env_id",) if name in names} | changes
    while True:
        told = {k: v for k, v in flags.items() if k in ("env_id", *SIZES) or v != names[k].default}
        try:
            new = kind(**told)
        except UsageError:
            new = None
        fewer = flags.get("num_envs", 0) // 2
        if "num_envs" in changes and not fewer and new and new.num_updates < LEAST_UPDATES:
            needed = LEAST_UPDATES * changes["num_envs"] * new.num_steps
            if flags.get("total_timesteps", 0) < needed:
                flags |= {"num_envs": changes["num_envs"], "total_timesteps": needed}
                continue
        if "num_envs" not in changes or not fewer or (new and new.num_updates >= LEAST_UPDATES):
            same = new and all(getattr(new, name) == getattr(args, name) for name in (*changes, "num_updates"))
            return None if same else new and told
        flags["num_envs"] = fewer


def taken_from(row: Any, args: Any, names: Iterable[str] = RECIPE) -> dict[str, Any] | None:
    """A run's flags with those of an example, whose minibatches keep their number where there are other sizes."""
    found = {name: getattr(row, name) for name in names if hasattr(row, name) and hasattr(args, name)}
    found.pop("minibatch_size", None)
    return changed(args, found)
