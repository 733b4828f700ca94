"""What to try with a run that stands still, as commands that work when pasted."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clinic import records
from clinic.diagnosis import MIN_LINES, MIN_UPDATES, Course, Numbers
from common.envs import on_host
from common.run import arguments
from common.run.arguments import UsageError
from experiments import grid

SMALLEST_MINIBATCH = 32  # transitions; smaller ones were not tried
MANY_STEPS, SMALL_MINIBATCH = 8 * arguments.FEW_STEPS, 64  # with both an update fits its own transitions
GONE_ENTROPY = 0.3  # of that in the first lines
FAR = 30  # times the script's own learning rate, or that part of it, is a cause in itself
FOLLOW = {"num_minibatches", "base_num_envs", "search_batch"}  # flags whose default depends on others, which may change


class Changed:
    """A run's command with changes, as lists of one line; of none if the script lacks a flag or refuses the values, or
    nothing changes."""

    def __init__(self, source: str, script: str, saved: dict, resumable: bool):
        self.source, self.script, self.resumable = source, script, resumable
        self.args = records.arguments_of(script, saved)

    def value(self, name: str, other: float = 0.0) -> Any:
        return getattr(self.args, name, None) or other

    def again(self, why: str, **changes: Any) -> list[str]:
        fields = self.args.__dataclass_fields__
        if not changes.keys() <= fields.keys() or all(getattr(self.args, k) == v for k, v in changes.items()):
            return []
        tenth = self.value("exploration_timesteps") == self.value("total_timesteps") // 10
        follow = {*FOLLOW, *["exploration_timesteps"] * tenth}
        values = {name: getattr(self.args, name) for name in fields if name not in follow} | changes
        default = type(self.args)(**{"env_id": values["env_id"]} if "env_id" in fields else {})
        always = {"env_id", "minibatch_size", "sequence_length", *changes}
        named = {k: v for k, v in values.items() if v is not None and (k in always or v != getattr(default, k))}
        try:
            type(self.args)(**named)
        except UsageError:
            return []
        return [f"{shlex.join(['python', f'{self.script}.py', *grid.spelled(named)])}   # {why}"]

    def from_checkpoint(self, why: str, **changes: Any) -> list[str]:
        """From scratch if there is none."""
        if not self.resumable:
            return self.again(f"from scratch{why}", **changes)
        return self.again(f"from the checkpoint{why}", init_from=self.source, **changes)

    def rate(self, factor: float, why: str = "from scratch") -> list[str]:
        """With another learning rate, and another KL if that sets the rate."""
        names = ("learning_rate", "adaptive_lr_kl") if self.value("adaptive_lr_kl") else ("learning_rate",)
        return self.again(why, **{name: float(f"{getattr(self.args, name) * factor:.6g}") for name in names})

    def usual_rate(self) -> list[str]:
        """With the script's own learning rate, if the run's is far from it."""
        usual = type(self.args)().learning_rate
        times = self.args.learning_rate / usual
        if self.value("adaptive_lr_kl") or 1 / FAR < times < FAR:
            return []
        far = f"{times:.3g} x" if times > 1 else f"1 / {1 / times:.3g} of"
        return self.again(f"from scratch: the learning rate is {far} the script's own", learning_rate=usual)

    def smaller_step(self, why: str = "from scratch: a smaller outer step") -> list[str]:
        """Where the script has no outer step, a smaller learning rate."""
        com = getattr(self.args, "com", None)  # of 0 no ratio is ever clipped; the default is 64
        change = {"clip_eps": self.value("clip_eps") / 4} if com is None else {"com": 16 * com or 64.0}
        return self.again(why, **change) or self.rate(0.1, why)


def what_to_try(
    label: str, source: str, script: str | None, saved: dict, checkpoints: Sequence[int] = (1,),
    course: Course | None = None, n: Numbers | None = None,
) -> list[str]:  # fmt: skip
    """What to try, in order, as commands that work when pasted, each with where it has to start. Nothing for a script
    that is not of this project: a fork may have other flags. checkpoints: their updates; course, n: of a seed that has
    the label."""
    if script not in records.KNOWN or label == "climbing":
        return []
    run = Changed(source, script, saved, bool(checkpoints))
    value, again = run.value, run.again
    test, count = measured(run, checkpoints)
    bonus = 5 * value("ent_coef", 0.002)
    revived = run.from_checkpoint("; it may take millions of steps", ent_coef=bonus)
    finer, coarser = gradient_steps(run)
    more = {name: 8 * value(name, 1) for name in ("num_envs", "total_timesteps")}
    envs = again("from scratch, as many updates", **more)
    before = "from scratch, or with --init-from from a checkpoint before that" if run.resumable else "from scratch"
    gone = n is not None and 0 <= n.entropy < GONE_ENTROPY * n.first_entropy
    unmoved = n is not None and n.unmoved  # it has not settled, but its step may be tiny
    critic = run.from_checkpoint("; trains the values more", vf_coef=0.5) * (value("vf_coef") < 0.5)
    if value("vf_coef"):  # else nothing else helps
        critic += again("from scratch: targets of size 1", norm_reward=True)
        critic += again("from scratch: lets the values move", clip_vloss=False)
    tries = {
        "step": [*run.smaller_step(), *count, *envs, *test],
        "no gain": [*count, *coarser, *revived * gone, *run.smaller_step(), *envs, *test],
        "settled": [*run.rate(10, "from scratch: the entropy is as at the start") * unmoved, *revived, *finer, *envs],
        "exploration": [*envs, *again("from scratch", ent_coef=bonus)],
        "slow": [*run.rate(10, "from scratch; then 10 x again"), *test],
        "critic": [*critic, *test],
        "network": [*run.rate(0.1, "from scratch: dead units stay dead"), *again("from scratch", layer_norm=True)],
        "few updates": longer(run, course),
        "diverged": run.rate(0.1, before),
        "fell": [*run.smaller_step(before), *test],
    }
    found = [*run.usual_rate(), *tries.get(label, test)]
    if label == "settled":
        found.insert(0, "nothing, if this return is the best that there is")
    distinct: dict[str, str] = {}  # two reasons may advise the same
    for text in found:
        distinct.setdefault(text.partition("   #")[0], text)
    return list(distinct.values())


def measured(run: Changed, checkpoints: Sequence[int]) -> tuple[list[str], list[str]]:
    """The doctor's own measurements. -> --intervene and --how-many, as lists of one line or none."""
    a = run.args
    if run.script not in records.BRANCHED:
        return [], []
    # At the end of --anneal-lr no learning rate is left, and nothing could move.
    moving = [update for update in checkpoints if not a.anneal_lr or update <= 0.9 * a.num_updates]
    older = f"@{moving[-1]}" if moving and moving[-1] < checkpoints[-1] else ""
    doctor = f"python doctor.py {shlex.quote(run.source)}"
    test = f"{doctor}{older} --intervene   # tests such changes from the checkpoint, beside a control"
    if not moving or (a.keep_checkpoints and grid.alive(Path(run.source))):
        test = f"{doctor} --intervene --fresh   # tests such changes from scratch, beside a control"
    count = f"{doctor}{older} --how-many   # with how many environments it would gain"
    # A quarter of the run has to hold an update of 8 x the environments.
    return [test] * (a.num_updates >= 32), [count] * (bool(moving) and not on_host(a.env_id))


def longer(run: Changed, course: Course | None) -> list[str]:
    """What a run needs whose log is too short to judge."""
    a = run.args
    total = "total_timesteps" if hasattr(a, "total_timesteps") else "num_steps"
    if a.num_updates >= MIN_UPDATES and a.num_updates // a.log_every < MIN_LINES:
        return run.again("from scratch, with a line for each update", log_every=1)
    if course is not None and course.num_updates < a.num_updates and a.num_updates >= MIN_UPDATES:
        at = f"at update {course.num_updates:.0f} of {a.num_updates}"
        if grid.alive(Path(run.source)):
            return [f"let it go on: it is {at}"]
        if run.resumable:
            return [f"python {run.script}.py --resume {shlex.quote(run.source)}   # it stopped {at}"]
    return run.again("ten times as long, from scratch", log_every=1, **{total: 10 * getattr(a, total)})


def gradient_steps(run: Changed) -> tuple[list[str], list[str]]:
    """Smaller minibatches, if an update has few gradient steps; larger ones, if it has many in small minibatches."""
    steps, size = run.value("update_epochs", 1) * run.value("num_minibatches", 1), run.value("minibatch_size")
    if run.script not in records.BRANCHED:
        return [], []
    if steps < arguments.FEW_STEPS and size >= 8 * SMALLEST_MINIBATCH:
        return run.again(f"from scratch: {steps} gradient steps per update are few", minibatch_size=size // 8), []
    if steps >= MANY_STEPS and size <= SMALL_MINIBATCH:
        why = f"from scratch: {steps} gradient steps on {run.args.batch_size:,} transitions are many"
        return [], run.again(why, minibatch_size=8 * size) + run.rate(0.1, "from scratch: smaller steps")
    return [], []
