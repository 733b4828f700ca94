"""Tells you when a run stopped improving, the likely cause, and what to try; and tries it.

    python doctor.py runs/NAME                     # the diagnosis, in ten lines and a picture
    python doctor.py runs/NAME --intervene         # branches from its newest checkpoint: which change lifts the return?
    python doctor.py runs/NAME --how-many          # how many environments an update needs from here on
    python doctor.py progress.csv                  # a log of Stable-Baselines3, CleanRL or rsl_rl, or its folder

It compares the run's flags with those that learned such tasks (benchmarks/tasks.py) and looks for signs of a fault in
its log. How many sick runs its first advice heals is measured (benchmarks/cures.py); --intervene is an experiment, with
a control and paired seeds. Its rules are in clinic/. See docs/doctor.md.
"""

import common.run.early  # noqa: F401 (before JAX)

# isort: split
import shlex
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from tqdm import tqdm
from tyro.conf import Positional

from clinic import advice, diagnosis, how_many, levers, records
from clinic.diagnosis import Course, Found, Numbers, Trend
from common.run import arguments, checkpoints, plots
from common.run.arguments import Positive, UsageError
from common.run.command import main as run_main
from common.run.tracking import say
from experiments import grid, pictures
from experiments.effects import Effect
from experiments.pictures import Line, Picture

INTERVENE = ("levers", "fresh", "budget", "seeds", "jobs", "dry_run")  # flags of --intervene alone


@dataclass(frozen=True)
class Args:
    runs: Positional[tuple[str, ...]] = ()
    """A run's folder, RUN@UPDATE for its state then (with --intervene and --how-many), or another trainer's log."""

    # --- intervene ---
    intervene: bool = False
    """Branch the run with one change at a time, and compare the branches with an unchanged one."""
    levers: tuple[str, ...] = ()
    """Only these: envs, minibatch, lr, lr_up, epochs, eps, com, entropy, entropy_down, lr_entropy_down (default: all it
    can have)."""
    fresh: bool = False
    """Start the branches from scratch instead of from the run's checkpoint, of which none is needed then."""
    budget: Positive[int] | None = None
    """Environment steps of a branch (default: a quarter of the run's, at least ten of the largest updates)."""
    seeds: Positive[int] = 5
    """Branches per lever. A run of several seeds is branched as a whole instead, each seed from its own state."""
    jobs: Positive[int] | None = None
    """How many branches run at once (default: one per core, one if there is a GPU)."""
    dry_run: bool = False
    """Only print the commands of the branches, to run them elsewhere; what is finished is not run again."""

    # --- how many ---
    how_many: bool = False
    """Make single updates with other numbers of environments and judge them on fresh transitions."""
    values: tuple[int, ...] = ()
    """Numbers of environments (default: a quarter to 64 x the run's)."""

    def __post_init__(self):
        arguments.check(self)
        if len(self.runs) != 1:
            raise UsageError("no run given: python doctor.py runs/NAME" if not self.runs else "give one run at a time")
        if self.intervene and self.how_many:
            raise UsageError("--how-many with --intervene: give one of the two")
        for mode, names in (("intervene", INTERVENE), ("how_many", ("values",))):
            default = {field.name: field.default for field in fields(self)}
            if idle := [name for name in names if getattr(self, name) != default[name] and not getattr(self, mode)]:
                raise UsageError(f"{arguments.flag(idle[0])}: needs {arguments.flag(mode)} as well")


CAUSES = {  # what each label means; clinic/advice.py has what to try
    "step": "the outer step is too large: fresh transitions would take back much of each update",
    "no gain": "updates gain next to nothing on fresh transitions: too large a step for its noise, or all is gained",
    "settled": "the policy has settled: finished, or exploration is gone. Updates gain nothing even on their own data",
    "exploration": "it never met a difference: every episode returned the same",
    "slow": "the step is too small: no update moved the policy much",
    "clipped": "the step is too small: the clip holds the policy",
    "random": "the policy stays as random as at the start",
    "critic": "the critic predicts next to nothing, so advantages are mostly noise",
    "few updates": "too few updates, or lines of the log, to tell",
    "diverged": "losses or parameters are no longer finite",
    "climbing": "nothing is wrong: it climbs",
    "fell": "it lost much of what it had: no plateau but a collapse",
    "unclear": "no trend can be told from its noise",
    "unknown": "none of the known causes stands out",
}
STATES = {"still": "stands still", "climbing": "climbs", "fell": "fell", "unclear": "shows no clear trend"}


def main(args: Args) -> None:
    """What is in a log or in args.json may be absurd, such as an integer of 400 digits: that is one line, too."""
    source, absurd = args.runs[0], (OverflowError, RecursionError)
    try:
        if args.intervene:
            intervene(args, source)
        elif args.how_many:
            count_environments(args, source)
        else:
            absurd += OSError, TypeError, ValueError
            examine(args, source)
    except UsageError:
        raise
    except absurd as error:
        raise UsageError(f"{source}: holds what no run writes ({str(error).partition(chr(10))[0][:200]})") from None


def examine(args: Args, source: str) -> None:
    """Prints the diagnosis, and draws the curves that it is made from."""
    script, saved, folder = None, {}, Path(source)
    if source.lower().endswith(".csv"):
        courses = diagnosis.of_csv(folder)
    elif diagnosis.events_of(folder):
        courses = diagnosis.of_tensorboard(folder)
    else:
        if not (folder / "args.json").exists() and (logs := diagnosis.logs_near(source)):
            raise UsageError(f"{source}: no log itself; give {' or '.join(map(str, logs[:3]))}")
        record = arguments.read_record(folder, "doctor.py")
        script, saved = record["script"], record["args"]
        courses = diagnosis.of_run(folder)
    found = diagnosis.diagnose_all(courses)
    saves = bool(checkpoints.checkpoint_updates(folder / "checkpoints"))
    tries = advice.what_to_try(found, source, script, saved, courses[0].num_updates, saves)
    print("\n".join(report(source, script, saved, courses, found, tries)))
    # Beside TensorBoard's files nothing may be called like them: it would take the picture for the next one.
    name = "doctor.png" if folder.is_dir() or diagnosis.events_of(folder) else f"{folder.stem}.doctor.png"
    out = (folder if folder.is_dir() else folder.parent) / name
    draw(curves(courses, found.seeds), out, source)


def draw(picture: Picture, out: Path, title: str) -> None:
    try:
        pictures.save(picture, out, title, pictures.described(picture))
    except OSError as error:
        return say(f"warning: {out}: cannot be written ({error.strerror or error})")
    return print(f"picture: {out}")


def report(
    source: str, script: str | None, saved: dict, courses: list[Course], found: Found, tries: list[advice.Advice]
) -> list[str]:
    """The diagnosis in about ten lines, of the seeds that have the label."""
    course, seeds = courses[0], len(courses)
    about = f"{script}.py on {saved.get('env_id', 'a bowl')}, " if script else ""
    updates = f", {course.num_updates:,.0f} updates" if np.isfinite(course.num_updates) else ""
    lines = [f"{source}: {about}{seeds} seed{'s' * (seeds > 1)}, {engineering(course.steps[-1])} steps{updates}"]
    label, of_label = found.label, [(t, n) for name, t, n in found.seeds if name == found.label]
    state = Counter(t.state for t, _ in of_label).most_common(1)[0][0]
    alike = [t for t, _ in of_label if t.state == state]
    if state in STATES:
        _, since, level, change, error, _, best = (
            np.mean(x) if i else x for i, x in enumerate(zip(*alike, strict=True))
        )
        error /= np.sqrt(len(alike))
        since = f" since {engineering(course.steps[int(since)])} steps" * (state == "still")
        over = "since then" if since else "since its best" if state == "fell" else "over the last half"
        of = f" ({len(alike)} of {seeds} seeds)" * (len(alike) < seeds)
        interval = f"{change:+.3g} ({change - error:+.3g} to {change + error:+.3g})"
        lines.append(f"{STATES[state]}{since}{of}: return {level:.4g}, {over} {interval}; best {best:.4g}")
    others = Counter(name for name, _, _ in found.seeds if name != label)
    more = "; other seeds: " + ", ".join(f"{c} {name}" for name, c in others.items()) if others else ""
    first = tries[0] if tries else advice.Advice("", "nothing")
    flags = f"{first.why}; its log: " * (first.kind in ("flags", "unlike"))
    far = label == "step" and not np.isfinite(found.numbers.own)
    cause = "the step is too large: updates move the policy by more than a nat" if far else CAUSES[label]
    lines.append(f"likely: {flags}{cause}" + f" ({len(of_label)} of {seeds} seeds{more})" * (seeds > 1))
    lines.append(f"  seen: {evidence(found.numbers, len(of_label))}")
    healed, runs = advice.healed(first.kind) if script in records.BRANCHED else (0, 0)
    sure = f"; such a first advice healed {healed} of {runs} sick runs" * bool(runs and first.flags)
    shown = [first._replace(why="usual flags"), *tries[1:]] if flags else tries
    return lines + [f"try, in this order{sure}:"] * bool(tries) + [f"  {i}. {x}" for i, x in enumerate(shown, 1)]


def engineering(number: float) -> str:
    """1234567 -> 1.23M."""
    size, letter = next(((s, x) for s, x in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if abs(number) >= s), (1, ""))
    return f"{number / size:.3g}{letter}"


def evidence(n: Numbers, seeds: int) -> str:
    """The numbers that the cause was told from: means over these seeds; what the log lacks is left out."""
    error = f" ± {n.fresh_error / np.sqrt(seeds):.2g}" if np.isfinite(n.fresh_error) else ""
    share = f" ({100 * n.fresh / n.own:.0f} %)" if n.own > 0 else ""
    fresh = f", {n.fresh:.2g}{error} on fresh ones{share}" if np.isfinite(n.fresh) else ""
    said = {
        f"an update gains {n.own:.2g} on its own transitions{fresh}": n.own,
        f"KL of an update {n.kl:.2g}, at most {n.most_kl:.2g}": n.kl,
        f"entropy {n.entropy:.3g}, {n.first_entropy:.3g} at the start": n.entropy,
        f"explained variance {n.explained_variance:.2f}": n.explained_variance,
    }
    told = np.isfinite(n.own) or n.most_kl > diagnosis.REPLACED
    without = [] if told else ["no gains in this log, so a step too large for its noise cannot be told"]
    return "; ".join([text for text, value in said.items() if np.isfinite(value)] + without)


def curves(courses: list[Course], seeds: list[tuple[str, Trend, Numbers]]) -> Picture:
    """Return, gains, KL and entropy of each seed, and where it began to stand still."""
    panels = {
        "episode return": {"": "charts/episodic_return"},
        "gain of an update": {"own": "outer/own_gain", "fresh": "outer/fresh_gain"},
        "KL of an update (nats)": {"": "outer/kl"},
        "entropy (nats)": {"": "losses/entropy"},
    }
    steps, width = courses[0].steps, max(1, len(courses[0].steps) // 40)
    of = lambda key: plots.running_mean(np.stack([course[key] for course in courses], axis=1), width)  # noqa: E731
    lines = {title: [Line(name, steps, of(key)) for name, key in keys.items()] for title, keys in panels.items()}
    marks = [course.steps[t.since] for course, (_, t, _) in zip(courses, seeds, strict=True) if t.state == "still"]
    shows = f"{pictures.MEAN}, running mean over a fortieth of the run; dotted: since when the return stands still"
    return Picture(lines, "environment steps", "", own_y=True, marks=marks, columns=2, shows=shows)


def intervene(args: Args, source: str) -> None:
    """Runs the branches, and prints which lever lifts the return above the control."""
    source = source if Path(source).name else str(Path.cwd())  # "." has no name to call branches by
    if args.fresh:  # no checkpoint is needed
        run, found, record = source, Path(source), arguments.read_record(Path(source), "--intervene")
    else:
        found, record, updates = checkpoints.find_checkpoint(source, "--intervene")
    saved = records.branched(record, f"--intervene: {source}")
    if not args.fresh:
        run = f"{found}@{checkpoints.newest_intact(found, updates, f'--intervene {source}')}"
    known = levers.levers_of(saved)
    if unknown := [name for name in args.levers if name not in known]:
        raise UsageError(f"--levers {unknown[0]}: for this run there are {', '.join(list(known)[1:])}")
    chosen = {name: lever for name, lever in known.items() if name in {"control", *(args.levers or known)}}
    most = max(lever.flags.get("num_envs", saved.num_envs) for lever in chosen.values()) * saved.num_steps
    budget = args.budget or max(saved.total_timesteps // 4, 10 * most)
    if budget < most:
        raise UsageError(f"--budget {budget}: the largest update here has {most} steps; take ten of them, {10 * most}")
    if args.budget and budget % most:
        say(f"note: --budget {budget} is {budget - budget % most} for whole updates of all branches")
    budget -= budget % most
    folder = found / "doctor"
    cells = levers.cells_of(run, record["script"], saved, chosen, budget, range(args.seeds), args.fresh)
    missing = [cell for cell in cells.values() if grid.state(cell, folder) != "finished"]
    if missing and not args.fresh and grid.alive(found):
        raise UsageError(f"--intervene {source}: the run is in progress; wait for its end, or take --fresh")
    if args.dry_run:
        return print("\n".join(shlex.join(grid.command(cell, folder)) for cell in missing))
    if missing:
        steps = sum(dict(cell.flags)["total_timesteps"] for cell in missing)
        cost = f"they cost as much as {steps / saved.total_timesteps:.2g} such runs, and their output"
        say(f"{len(missing)} of {len(cells)} branches are missing; {cost} goes to {folder}/*.log")
    with tqdm(total=len(cells), initial=len(cells) - len(missing), unit=" branches") as bar:
        jobs = args.jobs or grid.cores_or_one()
        failed = grid.run_missing(missing, folder, jobs, say, lambda _: bar.update() and None)
    start = "from scratch" if args.fresh else f"from {run}"
    falls = " or ".join(arguments.flag(name) for name in ("anneal_lr", "anneal_ent") if getattr(saved, name))
    anew = f"; what {falls} lets fall begins anew in all of them" * bool(falls and not args.fresh)
    print(f"branches of {engineering(budget)} steps {start}{anew}; return over their last quarter:")
    for name, outcome in levers.outcomes(folder, cells).items():
        print(f"  {name:<16}{compared(*outcome):<52} {chosen[name].what}")
    draw(levers.curves(folder, cells), found / "doctor-branches.png", f"{run}: branches with a change each")
    if failed:
        raise SystemExit("\n".join(f"doctor.py: failed: {line}" for line in failed))
    return None


def compared(returns: np.ndarray, effect: Effect) -> str:
    """The return of a lever's branches, and what it is beside the control's."""
    ended = np.isfinite(returns)
    if not ended.all():
        return f"{'-':>10}  {ended.sum()} of {len(ended)} seeds have a return"
    shown = f"{returns.mean():>10.4g}"
    if effect.what == "control":
        return shown
    if not np.isfinite(effect.low):
        return f"{shown}  {effect.estimate:+9.3g} (an interval needs 3 seeds)"
    found = "lifts" if effect.low > 0 else "lowers" if effect.high < 0 else "undecided"
    return f"{shown}  {effect.estimate:+9.3g} ({effect.low:+.3g} to {effect.high:+.3g}) {found}"


def count_environments(args: Args, source: str) -> None:
    """Prints the gain of an update over its number of environments, and what to choose."""
    points = how_many.measure(source, args.values, say)
    print(f"single updates from {source}, judged on fresh transitions of the new policy (± 95 %):")
    print("  environments  own gain         fresh gain fresh/own per M steps    per s       KL")
    for p in points:
        fresh = f"{p.fresh:.2g} ± {p.width:.1g}"
        per_step, per_second = 1e6 * p.fresh / p.transitions, p.fresh / p.seconds
        share = f"{p.signal:>9.2f} {per_step:>11.4f} {per_second:>8.4f}"
        share = share if p.fresh > p.width else f"{'–':>9} {'–':>11} {'–':>8}"  # of what may be nothing
        gains = f"{p.own:>9.2g} {fresh:>18} {share} {p.kl:>8.2g}"
        print(f"{p.num_envs:>14,} {gains}")
    print(recommendation(points))


def recommendation(points: list[how_many.Point]) -> str:
    """What the measurement says to somebody who has to choose a number."""
    sure = [p.num_envs for p in points if p.fresh > p.width]
    if not sure:
        return "at no size can a gain on fresh transitions be told from 0: a smaller step, or nothing is left to gain"
    half = [p.num_envs for p in points if p.fresh > p.width and p.signal >= 0.5]
    signal = f"from {min(half):,} environments" if half else "with more environments than were tried"
    return f"half of an update is signal {signal}; the smallest size with a sure gain: {min(sure):,} environments"


if __name__ == "__main__":
    run_main(main, Args)
