"""What to try with a run that stands still, as commands that work when pasted."""

import shlex
from typing import Any

from clinic import records
from common.envs import on_host
from common.run import arguments
from common.run.arguments import UsageError, flag
from experiments import grid

FAR = 30  # times the script's own learning rate, or that part of it, is a cause in itself
FOLLOW = {"num_minibatches", "base_num_envs", "search_batch"}  # flags whose default depends on others, which may change


class Changed:
    """A run's command, to be started anew with changes: lists of one line; of none if the script lacks a flag or
    refuses the values, or nothing changes."""

    def __init__(self, script: str, saved: dict):
        self.script, self.args = script, records.arguments_of(script, saved)

    def flags(self, why: str, **changes: Any) -> list[str]:
        known, now = self.args.__dataclass_fields__, arguments.given(self.args)
        if not changes.keys() <= known.keys() or all(getattr(self.args, k) == v for k, v in changes.items()):
            return []
        always = {"env_id": self.args.env_id} if "env_id" in known else {}
        kept = {name: value for name, value in now.items() if name not in FOLLOW and value is not None}
        named = always | kept | changes
        try:
            type(self.args)(**named)
        except UsageError:
            return []
        return [f"{shlex.join(['python', f'{self.script}.py', *grid.spelled(named)])}   # {why}"]

    def times(self, factor: float, *names: str, **others: Any) -> list[str]:
        """With these flags multiplied."""
        before = {name: getattr(self.args, name, None) for name in names}
        if None in before.values():
            return []
        after = {n: int(v * factor) if isinstance(v, int) else float(f"{v * factor:.6g}") for n, v in before.items()}
        return self.flags(f"{' and '.join(map(flag, names))} × {factor:g}", **after, **others)


def what_to_try(label: str, source: str, script: str | None, saved: dict, updates: float, saves: bool) -> list[str]:
    """What to try, in order. Nothing for a script that is not of this project: a fork may have other flags. updates:
    how many the run has made; saves: whether it has a checkpoint."""
    if script not in records.KNOWN or label == "climbing":
        return []
    run = Changed(script, saved)
    args, times = run.args, run.times
    doctor, branched = f"python doctor.py {shlex.quote(source)}", script in records.BRANCHED
    test = [f"{doctor} --intervene{'' if saves else ' --fresh'}   # tests such changes beside a control"] * branched
    measurable = branched and saves and not on_host(args.env_id)
    count = [f"{doctor} --how-many   # with how many environments it would gain"] * measurable
    smaller = times(16, "com") or times(0.25, "clip_eps") or times(0.1, "learning_rate")
    envs = times(8, "num_envs", "total_timesteps")
    bonus = run.flags("a larger entropy bonus", ent_coef=5 * getattr(args, "ent_coef", 0.0) or 0.01)
    if updates < args.num_updates:
        resume = f"python {script}.py --resume {shlex.quote(source)}"
        longer = [f"let it go on, or {resume}   # it is at update {updates:.0f} of {args.num_updates}"]
    else:
        longer = times(10, "total_timesteps", log_every=1) or times(10, "num_steps")
    tries = {
        "step": [*smaller, *count, *envs, *test],
        "no gain": [*count, *smaller, *envs, *test],
        "settled": ["nothing, if this return is the best that there is", *bonus, *envs],
        "exploration": [*envs, *bonus],
        "slow": [*times(10, "learning_rate"), *test],
        "critic": [*run.flags("targets of size 1", norm_reward=True), *run.flags("more", vf_coef=0.5), *test],
        "few updates": longer,
        "diverged": times(0.1, "learning_rate"),
        "fell": [*smaller, *test],
    }
    usual = type(args)().learning_rate
    far = not 1 / FAR < args.learning_rate / usual < FAR
    first = run.flags("the learning rate is far from the script's own", learning_rate=usual) * far
    return [*first, *tries.get(label, test)]
