"""What to try with a run that stands still, as commands that work when pasted."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clinic import records
from clinic.diagnosis import LOST_ENTROPY, MIN_LINES, MIN_UPDATES, RETURN, Course, Numbers
from common.envs import on_host
from common.run import arguments
from experiments import grid

SMALLEST_MINIBATCH = 32  # transitions; smaller ones were not tried
MANY_STEPS, SMALL_MINIBATCH = 8 * arguments.FEW_STEPS, 64  # with both an update fits its own transitions
GONE_ENTROPY = 0.3  # of that in the first lines


class Changed:
    """A run's command with changes, as lists of one line or, if the script lacks a flag or nothing changes, of none."""

    def __init__(self, source: str, script: str, saved: dict, resumable: bool):
        self.source, self.script, self.resumable = source, script, resumable
        self.args = records.arguments_of(script, saved)

    def value(self, name: str, other: float = 0.0) -> Any:
        return getattr(self.args, name, None) or other

    def again(self, why: str, **changes: Any) -> list[str]:
        known = all(name in self.args.__dataclass_fields__ for name in changes)
        if not known or all(getattr(self.args, name) == to for name, to in changes.items()):
            return []
        return [f"{shlex.join(command(self.script, self.args, changes))}   # {why}"]

    def from_checkpoint(self, why: str, **changes: Any) -> list[str]:
        """From scratch if there is none."""
        if not self.resumable:
            return self.again(f"from scratch{why}", **changes)
        return self.again(f"from the checkpoint{why}", init_from=self.source, **changes)

    def rate(self, factor: float, why: str = "from scratch") -> list[str]:
        """With another learning rate, and another KL if that sets the rate."""
        names = ("learning_rate", "adaptive_lr_kl") if self.value("adaptive_lr_kl") else ("learning_rate",)
        return self.again(why, **{name: float(f"{getattr(self.args, name) * factor:.6g}") for name in names})

    def smaller_step(self, why: str = "from scratch") -> list[str]:
        """A smaller outer step; where the script has none, a smaller learning rate."""
        com = getattr(self.args, "com", None)  # of 0 no ratio is ever clipped; the default is 64
        change = {"clip_eps": self.value("clip_eps") / 4} if com is None else {"com": 16 * com or 64.0}
        return self.again("a smaller outer step, from scratch", **change) or self.rate(0.1, why)


def what_to_try(
    label: str,
    source: str,
    script: str | None,
    saved: dict,
    checkpoints: Sequence[int] = (1,),
    course: Course | None = None,
    n: Numbers | None = None,
) -> list[str]:
    """What to try, in order, as commands that work when pasted, each with where it has to start. Nothing for a script
    that is not of this project: a fork may have other flags. checkpoints: their updates; course, n: of a seed that has
    the label."""
    if script not in records.KNOWN or label == "climbing":
        return []
    run = Changed(source, script, saved, bool(checkpoints))
    a, value, again, resumable = run.args, run.value, run.again, run.resumable
    # At the end of --anneal-lr no learning rate is left, and nothing could move.
    moving = [update for update in checkpoints if not a.anneal_lr or update <= 0.9 * a.num_updates]
    older = f"@{moving[-1]}" if moving and moving[-1] < checkpoints[-1] else ""
    doctor, branched = f"python doctor.py {shlex.quote(source)}", script in records.BRANCHED
    test = [f"{doctor}{older} --intervene   # tests such changes from the checkpoint, beside a control"]
    if not moving or (a.keep_checkpoints and grid.alive(Path(source))):
        test = [f"{doctor} --intervene --fresh   # tests such changes from scratch, beside a control"]
    test *= branched and a.num_updates >= 32  # a quarter of the run holds an update of 8 x the environments
    count = [f"{doctor}{older} --how-many   # with how many environments it would gain"]
    count *= branched and bool(moving) and not on_host(a.env_id)
    bonus = 5 * value("ent_coef", 0.002)
    revived = run.from_checkpoint("; it may take millions of steps", ent_coef=bonus)
    finer, (coarser, envs) = more_gradient_steps(run), fewer_gradient_steps(run)
    before = "from scratch, or with --init-from from a checkpoint before that"
    before = before if hasattr(a, "init_from") and resumable else "from scratch"
    weight = run.from_checkpoint("; trains the values more", vf_coef=0.5) if getattr(a, "vf_coef", 1.0) < 0.5 else []
    critic = again("from scratch: targets of size 1", norm_reward=True)
    critic += again("from scratch: lets the values move", clip_vloss=False) if value("clip_vloss") else []
    critic *= getattr(a, "vf_coef", 1.0) > 0  # else nothing else helps
    # The policy is as at the start: it has not settled, but its step may be tiny.
    unmoved = n is not None and abs(n.first_entropy - n.entropy) < LOST_ENTROPY * abs(n.first_entropy)
    larger = run.rate(10.0, "from scratch, if the step is too small: the entropy is as at the start") * unmoved
    gone = n is not None and 0 <= n.entropy < GONE_ENTROPY * n.first_entropy
    tanh = again("from scratch", activation="tanh") if value("activation") == "relu" else []
    tries = {
        "step": [*run.smaller_step(), *count, *envs, *test],
        "no gain": [*count, *coarser, *revived * gone, *run.smaller_step(), *envs, *test],
        "settled": ["nothing, if this return is the best that there is", *larger, *revived, *finer, *envs],
        "exploration": [*envs, *again("from scratch", ent_coef=bonus)],
        "slow": [*run.rate(10.0, "from scratch; then 10 x again"), *test],
        "critic": [*weight, *critic, *test],
        "network": [*run.rate(0.1, "from scratch: dead units stay dead"), *tanh],
        "few updates": longer(run, course),
        "diverged": run.rate(0.1, before),
        "fell": [*run.smaller_step(before), *test],
    }
    distinct: dict[str, str] = {}  # two reasons may advise the same
    for text in tries.get(label, test):
        distinct.setdefault(text.partition("   #")[0], text)
    return list(distinct.values())


def longer(run: Changed, course: Course | None) -> list[str]:
    """What a run needs whose log is too short to judge."""
    a = run.args
    total = "total_timesteps" if hasattr(a, "total_timesteps") else "num_steps"
    ten_times = run.again("ten times as long, from scratch", log_every=1, **{total: 10 * getattr(a, total)})
    if course is None or a.num_updates < MIN_UPDATES:
        return ten_times
    if a.num_updates // a.log_every < MIN_LINES:
        return run.again("from scratch, with a line for each update", log_every=1)
    if course.num_updates < MIN_UPDATES or len(course.steps) < MIN_LINES:  # it is not finished
        at = f"at update {course.num_updates} of {a.num_updates}"
        if grid.alive(Path(run.source)):
            return [f"let it go on: it is {at}"]
        if run.resumable:
            return [f"python {run.script}.py --resume {shlex.quote(run.source)}   # it stopped {at}"]
        why = f"from scratch: it stopped {at}, before its first checkpoint"
        return run.again(why, checkpoint_every=max(1, a.num_updates // 10))
    # There are lines enough, but in most of them no episode ended.
    lines, steps = int(np.isfinite(course[RETURN]).sum()), int(course.num_updates) * a.num_steps
    apart = limited = []
    if lines and not run.value("stagger_resets"):
        apart = run.again(f"from scratch: episodes ended in {lines} lines only", stagger_resets=steps // lines)
    if not on_host(a.env_id):
        why = f"from scratch: episodes ended in {lines} lines only; this truncates them"
        limited = run.again(why, time_limit=max(1, steps // (2 * MIN_LINES)))
    return [*apart, *limited, *ten_times]


def gradient_steps(run: Changed) -> int:
    """Of an update."""
    return run.value("update_epochs", 1) * run.value("num_minibatches", 1)


def more_gradient_steps(run: Changed) -> list[str]:
    """Smaller minibatches, if an update has few gradient steps."""
    steps, size = gradient_steps(run), run.value("minibatch_size", 1)
    if steps >= arguments.FEW_STEPS or run.script not in records.BRANCHED:
        return []

    def parts(most: int) -> int:
        """Into how many minibatches one can be cut, at most."""
        fits = (n for n in range(1, most + 1) if size % n == 0 and size // n >= SMALLEST_MINIBATCH)
        return max(fits, default=1)

    finer = run.again(f"from scratch: {steps} gradient steps per update are few", minibatch_size=size // parts(8))
    most = parts(256 // steps)
    if most > parts(8):
        finer = run.from_checkpoint(f"; {most * steps} gradient steps per update", minibatch_size=size // most) + finer
    return finer


def fewer_gradient_steps(run: Changed) -> tuple[list[str], list[str]]:
    """Larger minibatches and a smaller learning rate, if an update has many gradient steps in small minibatches, and
    more environments, which then keep the number of minibatches. -> these two lists."""
    steps, size = gradient_steps(run), run.value("minibatch_size", 1)
    more = {name: 8 * run.value(name, 1) for name in ("num_envs", "total_timesteps")}
    if steps < MANY_STEPS or run.value("minibatch_size", 2 * SMALL_MINIBATCH) > SMALL_MINIBATCH:
        return [], run.again("from scratch, as many updates", **more)
    coarser = []
    if run.args.num_minibatches % (8 * run.value("num_rollout_chunks", 1)) == 0:
        transitions = f"{run.value('batch_size', 1):,} transitions"
        coarser = run.again(f"from scratch: {steps} gradient steps on {transitions} are many", minibatch_size=8 * size)
    coarser += run.rate(0.1, "from scratch: smaller steps")
    told = "from scratch, as many updates of as many gradient steps"
    return coarser, run.again(told, minibatch_size=8 * size, **more)


def command(script: str, args: Any, changes: dict[str, Any]) -> list[str]:
    """The command line of these arguments with some changed: what differs from the defaults, the environment, and
    sizes whose default depends on other sizes."""
    fields = args.__dataclass_fields__
    derived = {"num_minibatches", "base_num_envs", "search_batch"}  # from flags that may change
    if "exploration_timesteps" in fields and args.exploration_timesteps == args.total_timesteps // 10:
        derived.add("exploration_timesteps")
    values = {name: getattr(args, name) for name in fields if name not in derived} | changes
    default = type(args)(**{"env_id": args.env_id} if "env_id" in fields else {})
    always = ("env_id", "minibatch_size", "sequence_length")
    named = {k: v for k, v in values.items() if v is not None and (k in always or v != getattr(default, k))}
    return ["python", f"{script}.py", *grid.spelled(named)]
