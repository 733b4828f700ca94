"""What to try with a run: changes to its flags, in the order in which to try them.

First what lies far from flags that learned such tasks (usual.py), then what the log suggests, then all flags of the
nearest such task, and the learning rate up and down. benchmarks/cures.py counts how many sick runs that heals.
"""

import json
import math
import shlex
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from clinic import diagnosis, records, usual
from clinic.diagnosis import Found, Numbers
from experiments import grid
from experiments.references import REFERENCES, reference_score

MANY = 3  # so many flags far from all examples: rather all of an example
NEAR = 0.8  # of a published return: nothing is wrong
LOW = 0.5  # of it: a run that stands still has missed something
SHORT = 0.1  # of an example's steps
FAST_KL = 0.06  # nats; by fit to runs whose rate was 10, 30 and 300 times too small
HEALED = 0.8  # of the healthy runs' score (benchmarks/cures.py)
SHOWN = 3  # what is worth trying before an experiment
LEAVE = "nothing: its flags are usual for such a task, and its log has no sign of a fault"
SHORT_RUN = "nothing: its flags are usual for such a task, and it is too short to tell; give it more --total-timesteps"
FEW_LINES = "nothing: its flags are usual for such a task; more lines with a return (a smaller --log-every) would tell"
SET = "nothing: its flags are usual for such a task, and have what its log suggests already"
CHANGED = ("env_kwargs", "time_limit")  # flags with which no published return is known
ENDED = ("diverged", "fell")  # not well, however high the return
CURES = Path(__file__).parents[1] / "results/cures.json"


class Advice(NamedTuple):
    """One thing to try. kind: as results/cures.json counts what it healed; flags: of the command, if it is one."""

    kind: str  # flags, unlike (flags of other tasks), log, steps, example, rate, nothing, or "" if it is not counted
    why: str
    script: str = ""
    flags: dict[str, Any] | None = None

    def __str__(self) -> str:
        """A line that can be pasted."""
        if self.flags is None:
            return self.why
        return f"{shlex.join(['python', f'{self.script}.py', *grid.spelled(self.flags)])}   # {self.why}"


def by_the_log(label: str, n: Numbers, args: Any = None) -> list[tuple[str, dict[str, Any]]]:
    """What a log suggests by itself, whosever it is: in words, and as changes to the flags of `args`."""
    now = lambda name, usual: getattr(args, name, None) or usual  # noqa: E731
    scaled = lambda x, name="learning_rate", usual=1.0: {name: float(f"{x * now(name, usual):.2g}")}  # noqa: E731
    normal = "observations and rewards of size 1", {"norm_obs": True, "norm_reward": True}
    lower = "a third of the learning rate", scaled(1 / 3)
    # The KL of an update goes with the square of the rate, until the clip and Adam's noise end that.
    factor = float(f"{np.clip(math.sqrt(FAST_KL / n.most_kl), 3, 1000):.1g}") if n.most_kl > 0 else 1000.0
    wider = {"com": 64.0} if now("com", 0.0) > 64 else {"clip_eps": max(0.2, now("clip_eps", 0.2))}
    return {
        "diverged": [("a tenth of the learning rate", scaled(0.1))],
        "slow": [(f"{factor:g} times the learning rate", scaled(factor))],
        "clipped": [("ε 0.2 and, with PPO-EWMA, a COM of 64", wider)],
        "random": [("a tenth of the entropy bonus", scaled(0.1, "ent_coef", 0.0)), lower],
        "exploration": [normal, ("a larger entropy bonus", scaled(5, "ent_coef", 0.002))],
        "critic": [normal],
        "step": [("a tenth of the learning rate", scaled(0.1))],
        "fell": [lower],
    }.get(label, [])


def advise(found: Found, script: str, args: Any, without: str | None = None) -> list[Advice]:
    """What to try with a run, as commands from scratch. without: an environment of which nothing is known."""
    env_id, level = args.env_id, found.level
    known = env_id in REFERENCES and env_id != without and not any(getattr(args, x, None) for x in CHANGED)
    score = reference_score(env_id, level) if known else np.nan
    if score >= NEAR and found.label not in ENDED:
        return [Advice("nothing", f"nothing: {level:.4g} is near the best published return, or above it")]
    tries: list[Advice] = []

    def add(kind: str, why: str, flags: dict[str, Any] | None) -> None:
        if flags is not None and not any(_alike(flags, other.flags or {}) for other in tries):
            tries.append(Advice(kind, why, script, flags))

    like = usual.alike(script, args, without)
    odd, nearest = usual.far(args, like), like.rows[0]
    if odd:
        own = not like.close and nearest.env_id == env_id  # no task of this script is known
        of = "the script's defaults" if own else f"what learned {'such' if like.close else 'other'} tasks"
        kind, what = "flags" if like.close else "unlike", f"far from {of}: {', '.join(odd)}"
        if len(odd) < MANY:
            add(kind, what, usual.taken_from(nearest, args, [name for flags in odd.values() for name in flags]))
        else:
            everything = "all by default" if own else f"all as for {nearest.env_id}"
            add(kind, f"{what}; so {everything}", usual.taken_from(nearest, args))
    by_log = by_the_log(found.label, found.numbers, args)
    for why, changes in by_log:
        add("log", why, usual.changed(args, changes))
    if like.close and args.total_timesteps < SHORT * nearest.total_timesteps:
        longer = {"total_timesteps": nearest.total_timesteps}
        add("steps", "as many steps as it took to learn such a task", usual.changed(args, longer))
    if not tries and found.label in ("settled", "no gain") and score < LOW and not getattr(args, "sticky_actions", 0):
        low = f"{level:.4g} is far below the published {REFERENCES[env_id][1]:g}, but no flag is unusual: other seeds"
        add("nothing", low, usual.changed(args, {"seed": args.seed + 1000, "num_seeds": 4}))
    if not tries:
        short = SHORT_RUN if args.num_updates < diagnosis.MIN_UPDATES else FEW_LINES
        tries.append(Advice("nothing", short if found.label == "few updates" else SET if by_log else LEAVE))
    for row in like.rows * like.close:
        add("example", f"all as for {row.env_id}", usual.taken_from(row, args))
    for word, factor in (("three times", 3), ("a third of", 1 / 3)):
        rate = float(f"{factor * args.learning_rate:.3g}")
        add("rate", f"{word} the learning rate", usual.changed(args, {"learning_rate": rate}))
    return tries


def _alike(flags: dict[str, Any], others: dict[str, Any]) -> bool:
    """Whether two commands differ by no more than the rounding of a learning rate."""
    rate, other = (x.get("learning_rate", 0.0) for x in (flags, others))
    return (
        flags.keys() == others.keys()
        and others | {"learning_rate": rate} == flags | {"learning_rate": rate}
        and math.isclose(rate, other, rel_tol=0.05)
    )


def what_to_try(
    found: Found, source: str, script: str | None, saved: dict, updates: float, saves: bool
) -> list[Advice]:
    """What to try, in order: in words for a script that is not of this project, whose flags are not known. updates:
    how many the run has made; saves: whether it has a checkpoint."""
    if script not in records.KNOWN:
        return [Advice("", why) for why, _ in by_the_log(found.label, found.numbers)]
    args = records.arguments_of(script, saved)
    if "env_id" not in args.__dataclass_fields__:  # the bowl has no tasks to compare with
        changes = by_the_log(found.label, found.numbers, args)
        tries = [Advice("log", why, script, usual.changed(args, change)) for why, change in changes]
        return [advice for advice in tries if advice.flags is not None]
    tries = advise(found, script, args)[:SHOWN]
    if updates < args.num_updates and tries[0].kind == "nothing" and found.label not in ENDED:
        resume = f", or python {script}.py --resume {shlex.quote(source)}" if saves else ""
        return [Advice("", f"let it go on{resume}   # it is at update {updates:.0f} of {args.num_updates}")]
    if script in records.BRANCHED:
        doctor = f"python doctor.py {shlex.quote(source)} --intervene{'' if saves else ' --fresh'}"
        tries.append(Advice("", f"{doctor}   # tries such changes beside a control"))
    return tries


def at_a_glance(run: Path, script: str, args: Any) -> str | None:
    """One line about a run in progress that looks sick, or has flags that are far from usual; None if it climbs, or is
    of a script that is not compared."""
    if script not in records.BRANCHED:
        return None
    found = diagnosis.diagnose_all(diagnosis.of_run(run))
    if found.label == "climbing":
        return None
    first = advise(found, script, args)[0]
    command = shlex.join(["python", "doctor.py", str(run)])
    return f"the doctor: {first.why} ({command})" if first.kind in ("flags", "unlike", "log") else None


@cache
def healed(kind: str) -> tuple[int, int]:
    """Of how many sick runs in results/cures.json advice of this kind came first, and how many of them it healed from
    scratch. -> healed, runs."""
    try:
        cases = json.loads(CURES.read_text())["cases"]
    except (OSError, ValueError, KeyError):
        return 0, 0
    first = [case["doctor"][0] for case in cases if case["advice"] == kind and case.get("doctor")]
    return sum(share is not None and share >= HEALED for share in first), len(first)
