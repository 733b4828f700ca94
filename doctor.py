"""Tells you when a run stopped improving, the likely cause, and what to try; and tries it.

    python doctor.py runs/NAME                     # the diagnosis, in ten lines and a picture
    python doctor.py runs/NAME --intervene         # branches from its newest checkpoint: which change lifts the return?
    python doctor.py runs/NAME --how-many          # how many environments an update needs from here on
    python doctor.py progress.csv                  # a log of CleanRL, Stable-Baselines3 or rsl_rl; --columns for others

The diagnosis rests on one measurement that other tools do not have: how much of what an update gains on its own
transitions it also gains on fresh ones (outer/own_gain, outer/fresh_gain). It is a rule of thumb; --intervene is an
experiment, with a control and paired seeds. Its rules are in clinic/. See docs/doctor.md.
"""

import common.run.early  # noqa: F401 (before JAX)

# isort: split
import json
import re
import sys
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tyro.conf import Positional

from clinic import advice, diagnosis, how_many, levers, records
from clinic.diagnosis import Course, Numbers, Trend
from common.run import arguments, checkpoints, plots
from common.run.arguments import Fraction, Positive, UsageError, flag
from common.run.run import main as run_main
from common.run.tracking import say
from experiments import grid

OF_MODE = {  # flags that mean something with another one only
    "intervene": ("levers", "fresh", "budget", "seeds", "jobs", "launch", "dry_run", "only"),
    "how_many": ("over", "values", "keys", "half", "seed_index"),
}


@dataclass(frozen=True)
class Args:
    runs: Positional[tuple[str, ...]] = ()
    """A run's folder, RUN@UPDATE for its state then (with --intervene and --how-many), or another trainer's CSV."""
    columns: tuple[str, ...] = ()
    """Columns of a CSV, as KEY=NAME with this project's keys: charts/episodic_return=my_return global_step=my_step."""
    json: bool = False
    """Print the findings as JSON instead of text."""
    out: str | None = None
    """Picture of the diagnosis (default: doctor.png in the run's folder, NAME.doctor.png beside NAME.csv)."""

    # --- intervene ---
    intervene: bool = False
    """Branch the run with one thing changed at a time, and compare the branches with an unchanged one."""
    levers: tuple[str, ...] = ()
    """Only these changes: envs, minibatch, eps, com, lr, epochs, entropy, critic (default: all that the script has)."""
    fresh: bool = False
    """Start the branches from scratch instead of from the run's checkpoint, of which none is needed then."""
    budget: Positive[int] | None = None
    """Environment steps of a branch (default: a quarter of the run's)."""
    seeds: Positive[int] = 5
    """Branches per lever. A run of several seeds is branched as a whole instead, each seed from its own state."""
    jobs: Positive[int] | None = None
    """How many branches run at once (default: one per core, one if there is a GPU)."""
    launch: Literal["here", "slurm", "none"] = "here"
    """slurm: write sbatch arrays and print how to submit them; none: compare the finished branches."""
    dry_run: bool = False
    """Only print the commands of the branches."""
    only: str | None = None
    """Make only this branch and compare nothing (for the arrays of --launch slurm)."""

    # --- how many ---
    how_many: bool = False
    """Make single updates with other numbers of environments and judge them on fresh transitions."""
    over: str = "num_envs"
    """The flag to vary: num-envs, clip-eps, update-epochs, com, minibatch-size or learning-rate."""
    values: tuple[float, ...] = ()
    """Its values (default: a quarter to 64 x the run's environments, a quarter to 4 x of others)."""
    keys: Positive[int] = 4
    """Updates per value; smaller updates than the run's get up to 16 x as many."""
    half: Fraction = 0.5
    """The share of an update that should be signal."""
    seed_index: arguments.NonNegative[int] = 0
    """Which seed of a run of several."""

    def __post_init__(self):
        arguments.check(self)
        if len(self.runs) != 1:
            raise UsageError("no run given: python doctor.py runs/NAME" if not self.runs else "give one run at a time")
        if self.intervene and self.how_many:
            raise UsageError("--how-many with --intervene: give one of the two")
        for mode, names in OF_MODE.items():
            for field in (field for field in fields(self) if field.name in names and not getattr(self, mode)):
                if getattr(self, field.name) != field.default:
                    value = " ".join(map(str, np.ravel(getattr(self, field.name))))
                    raise UsageError(f"{flag(field.name)} {value}: has no effect without {flag(mode)}")
        if self.out is not None and (self.intervene or self.how_many):
            mode = "--intervene" if self.intervene else "--how-many"
            raise UsageError(f"--out {self.out}: is the picture of the diagnosis, which {mode} does not draw")
        if self.columns and not self.runs[0].endswith(".csv"):
            raise UsageError(f"--columns {self.columns[0]}: is for a .csv file; {self.runs[0]} is none")
        if not 0 < self.half < 1:
            raise UsageError(f"--half {self.half}: must be between 0 and 1")
        object.__setattr__(self, "over", self.over.lstrip("-").replace("-", "_"))


# What each label means. clinic/advice.py has what to try.
CAUSES = {
    "step": "the outer step is too large: fresh transitions would take back much of each update",
    "no gain": "updates go on and gain next to nothing on fresh transitions: the step is too large for its noise, or "
    "nothing is left to gain",
    "settled": "the policy has settled: finished, or exploration is gone. Updates gain nothing even on their own data",
    "exploration": "it never met a difference: every episode returned the same",
    "slow": "the step is too small: the policy has hardly moved since the start",
    "critic": "the critic predicts next to nothing, so advantages are mostly noise",
    "network": "most units of the network are dead",
    "few updates": "too few updates, or lines of the log, to tell",
    "diverged": "losses or parameters are no longer finite",
    "climbing": "nothing is wrong: it climbs",
    "fell": "it lost much of what it had: no plateau but a collapse",
    "unclear": "no trend can be told from its noise",
    "unknown": "none of the known causes stands out",
}
STATES = {"still": "stands still", "climbing": "climbs", "fell": "fell", "unclear": "shows no clear trend"}


def main(args: Args) -> None:
    source = args.runs[0]
    if args.intervene:
        return intervene(args, source)
    if args.how_many:
        return count_environments(args, source)
    if not source.endswith(".csv") and Path(source).is_file():
        raise UsageError(f"{source}: is neither a run's folder nor a .csv file")
    columns = dict(column.partition("=")[::2] for column in args.columns)
    if not all(name and column for name, column in columns.items()):
        raise UsageError(f"--columns {' '.join(args.columns)}: must be KEY=NAME, such as global_step=timesteps")
    script, saved, folder = None, {}, Path(source)
    if source.endswith(".csv"):
        courses = diagnosis.of_csv(folder, columns)
    else:
        record = arguments.read_record(folder, "doctor.py")
        script, courses = record["script"], diagnosis.of_run(folder)
        saved = record["args"] if isinstance(record["args"], dict) else {}
    found = [diagnosis.diagnose(course) for course in courses]
    labels = Counter(label for label, _, _ in found)
    # One seed that diverges stops a run (--halt-on-nan), however well the others did.
    label = "diverged" if "diverged" in labels else labels.most_common(1)[0][0]
    if args.json:
        seeds = [{"label": label, **t._asdict(), **n._asdict()} for label, t, n in found]
        print(json.dumps({"run": source, "label": label, "seeds": plain(seeds)}, indent=1))
    else:
        print("\n".join(report(source, script, saved, courses, found, label)))
    out = Path(args.out or (folder.with_suffix(".doctor.png") if script is None else folder / "doctor.png"))
    out = out if out.suffix else out.with_name(out.name + ".png")
    try:
        draw(source, courses, found, out)
    except (OSError, ValueError) as error:  # ValueError: an unknown kind of picture
        said = f"{out}: cannot be drawn ({getattr(error, 'strerror', None) or error})"
        if args.out is not None:
            raise UsageError(f"--out {said}") from None
        return say(f"warning: {said}")
    if not args.json:
        print(f"picture: {out}")
    return None


def plain(value: Any) -> Any:
    """NaN and infinity as null, for JSON."""
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


Found = list[tuple[str, Trend, Numbers]]


def report(source: str, script: str | None, saved: dict, courses: list[Course], found: Found, label: str) -> list[str]:
    """The diagnosis in about ten lines."""
    steps, seeds = courses[0].steps[-1], len(courses)
    about = f"{script}.py on {saved.get('env_id', 'a bowl')}, " if script else ""
    updates = f", {courses[0].num_updates:,.0f} updates" if np.isfinite(courses[0].num_updates) else ""
    lines = [f"{source}: {about}{seeds} seed{'s' * (seeds > 1)}, {engineering(steps)} steps{updates}"]
    of_label = [(t, n) for name, t, n in found if name == label]
    others = Counter(name for name, _, _ in found if name != label)
    state = Counter(t.state for t, _ in of_label).most_common(1)[0][0]
    alike = [t for t, _ in of_label if t.state == state]
    t = Trend(state, *mean([t[1:] for t in alike]))
    t = t._replace(since=int(np.median([t.since for t in alike])), error=of_a_mean([t.error for t in alike]))
    n = Numbers(*mean([n for _, n in of_label]))
    n = n._replace(fresh_error=of_a_mean([n.fresh_error for _, n in of_label]))
    if t.state in STATES:
        since = f" since {engineering(courses[0].steps[int(t.since)])} steps" if t.state == "still" else ""
        change = f"{t.change:+.3g} ({t.change - t.error:+.3g} to {t.change + t.error:+.3g})"
        over = "since then" if since else "since its best" if t.state == "fell" else "over the last half"
        of = f" ({len(alike)} of {seeds} seeds)" * (len(alike) < seeds)
        lines.append(f"{STATES[t.state]}{since}{of}: return {t.level:.4g}, {over} {change}; best {t.best:.4g}")
    more = "; other seeds: " + ", ".join(f"{c} {name}" for name, c in others.items()) if others else ""
    share = f" ({len(of_label)} of {seeds} seeds{more})" if seeds > 1 else ""
    lines.append(f"likely: {CAUSES[label]}{share}")
    lines += ["  " + line for line in evidence(n, label)]
    there = checkpoints.checkpoint_updates(Path(source) / "checkpoints")
    course = next(course for course, (name, _, _) in zip(courses, found, strict=True) if name == label)
    tries = advice.what_to_try(label, source, script, saved, there, course, n)
    return lines + (["try, in this order:"] if tries else []) + [f"  {i}. {text}" for i, text in enumerate(tries, 1)]


def mean(rows: list) -> list[float]:
    """Column means, ignoring NaN."""
    columns = np.array(rows, np.float64).T
    return [float(np.nanmean(column)) if np.isfinite(column).any() else np.nan for column in columns]


def of_a_mean(errors: list[float]) -> float:
    """The error of the mean of independent numbers with these errors."""
    known = np.array(errors)[np.isfinite(errors)]
    return float(np.sqrt((known**2).sum()) / len(known)) if len(known) else np.nan


def engineering(number: float) -> str:
    """1234567 -> 1.23M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def evidence(n: Numbers, label: str) -> list[str]:
    """The numbers for the cause, then those that rule out others."""
    share = f" ({100 * n.fresh / n.own:.0f} %)" if n.own > 0 else ""
    error = f" ± {n.fresh_error:.2g}" if np.isfinite(n.fresh_error) else ""  # one value has none
    fresh = f", {n.fresh:.2g}{error} on fresh ones{share}" if np.isfinite(n.fresh) else ""
    gain = "no outer/own_gain in this log, so that a step too large for its noise cannot be told from other causes"
    if np.isfinite(n.own) or label in ("climbing", "diverged", "few updates"):
        gain = f"an update gains {n.own:.2g} on its own transitions{fresh}" if np.isfinite(n.own) else ""
    said = {
        "gain": gain,
        "kl": f"KL of an update {n.kl:.2g}",
        "entropy": f"entropy {n.entropy:.3g}, {n.first_entropy:.3g} at the start",
        "critic": f"explained variance {n.explained_variance:.2f}",
        "network": f"dormant units {100 * n.dormant:.0f} %",
    }
    values = {"kl": n.kl, "entropy": n.entropy, "critic": n.explained_variance, "network": n.dormant}
    said = {key: text for key, text in said.items() if text and np.isfinite(values.get(key, 0.0))}
    first = {"slow": "kl", "settled": "gain", "critic": "critic", "network": "network"}.get(label, "gain")
    own = [first, *(["entropy"] if label in ("settled", "slow") else ["kl"] if label in ("step", "no gain") else [])]
    own = [key for key in own if key in said]
    rest = [said[key] for key in said if key not in own]
    lines = {"for it": [said[key] for key in own], "beside it": rest}
    return [f"{title}: {'; '.join(texts)}" for title, texts in lines.items() if texts]


def draw(source: str, courses: list[Course], found: Found, out: Path) -> None:
    """Return, gains and KL of each seed, and where it began to stand still."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    panels = {
        "charts/episodic_return": "episode return",
        "gains": "gain of an update: own (dashed), fresh",
        "outer/kl": "KL of an update (nats)",
        "losses/entropy": "entropy (nats)",
    }
    figure = Figure(figsize=(10, 5.6), layout="constrained")
    for axes, (key, title) in zip(figure.subplots(2, 2).flat, panels.items(), strict=True):
        for i, (course, (_, t, _)) in enumerate(zip(courses, found, strict=True)):
            colour = plots.COLOURS[i % len(plots.COLOURS)]
            width = max(1, len(course.steps) // 40)
            keys = {"outer/own_gain": "--", "outer/fresh_gain": "-"} if key == "gains" else {key: "-"}
            for name, style in keys.items():
                if np.isfinite(course[name]).any():
                    smooth = plots.running_mean(course[name][:, None], width)[:, 0]
                    axes.plot(course.steps, smooth, style, color=colour, linewidth=1)
            if t.state == "still" and key == "charts/episodic_return":
                axes.axvline(course.steps[t.since], color=colour, linewidth=0.8, linestyle=":")
        if key == "gains":
            axes.axhline(0.0, color="black", linewidth=0.8)
        axes.set_title(title, fontsize=10)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(linewidth=0.5, alpha=0.35)
    figure.supxlabel("environment steps (running means; dotted: since when the return stands still)", fontsize=9)
    figure.suptitle(source, fontsize=10, parse_math=False)  # a name may have $ signs
    figure.savefig(out, dpi=120)


def intervene(args: Args, source: str) -> None:
    """Runs the branches, prints which lever lifts the return above the control, and draws them."""
    if args.fresh:
        run = source if Path(source, "args.json").exists() else re.sub(r"@\d+$", "", source)  # no checkpoint is needed
        found = Path(run)
        record = arguments.read_record(found, "--intervene")
    else:
        found, record, updates = checkpoints.find_checkpoint(source, "--intervene")
        update = checkpoints.newest_readable(found, updates) or updates[-1]
        run = f"{found}@{update}"
    script = record["script"]
    if script not in records.BRANCHED:
        raise UsageError(f"--intervene: {source} was made by {script}.py; it is for {' and '.join(records.BRANCHED)}")
    saved = records.arguments_of(script, record["args"])
    if saved.anneal_lr and not args.fresh:
        saved = records.with_rate_of(saved, update)
        say(f"branches keep the learning rate that the run had reached, {saved.learning_rate:.2g}")
    known = levers.levers_of(saved, args.fresh)
    unknown = [name for name in args.levers if name not in known]
    if unknown:
        raise UsageError(f"--levers {unknown[0]}: for this run there are {', '.join(list(known)[1:])}")
    wanted = {"control", *(args.levers or known)}
    chosen = {name: lever for name, lever in known.items() if name in wanted}
    budget = args.budget or saved.total_timesteps // 4
    most = max(lever.flags.get("num_envs", saved.num_envs) for lever in chosen.values()) * saved.num_steps
    if budget < most:
        raise UsageError(f"--budget {budget}: the largest update here has {most} steps; take ten of them, {10 * most}")
    folder = found / "doctor"
    cells = levers.cells_of(run, script, saved, chosen, budget, range(args.seeds), args.fresh)
    missing = [cell for cell in cells.values() if grid.state(cell, folder) != "finished"]
    if args.only is not None:
        if args.only not in [cell.name for cell in cells.values()]:
            raise UsageError(f"--only {args.only}: no branch of {run} with these flags; --dry-run names them")
        missing = [cell for cell in missing if cell.name == args.only]
    if missing and args.launch != "none" and not args.fresh and saved.keep_checkpoints and grid.alive(found):
        raise UsageError(
            f"--intervene {source}: the run is in progress, and deletes checkpoint {update} when it has "
            f"{saved.keep_checkpoints} newer ones (--keep-checkpoints); wait for its end, or take --fresh"
        )
    if args.dry_run:
        return print("\n".join(grid.paste(cell, folder) for cell in missing))
    if args.launch == "slurm" and missing:
        task = [sys.executable, str(Path(__file__).absolute()), run, *again(args)]
        return print("\n".join(grid.write_slurm(missing, folder, "doctor", lambda cell: [*task, "--only", cell.name])))
    failed = []
    if missing and args.launch == "here":
        say(f"{len(missing)} of {len(cells)} branches are missing; their output goes to {folder}/*.log")
        failed = grid.run_missing(missing, folder, args.jobs or grid.cores_or_one(), say)
    if args.only is None:
        compare(args, run, folder, cells, chosen, budget)
    if failed:
        raise SystemExit("\n".join(f"doctor.py: failed: {line}" for line in failed))
    return None


def again(args: Args) -> list[str]:
    """The flags with which `intervene` has the same branches."""
    taken = {name: getattr(args, name) for name in ("intervene", "levers", "fresh", "budget", "seeds")}
    return grid.spelled({name: value for name, value in taken.items() if value != getattr(Args, name)})


def compare(args: Args, run: str, folder: Path, cells: dict, chosen: dict[str, levers.Lever], budget: int) -> None:
    """Prints what each lever did to the return, beside the control, and draws it."""
    found = levers.outcomes(folder, cells)
    if args.json:
        rows = [o._asdict() | {"returns": o.returns.tolist(), "found": o.found} for o in found]
        print(json.dumps({"run": run, "fresh": args.fresh, "budget": budget, "levers": plain(rows)}, indent=1))
    else:
        start = "from scratch" if args.fresh else f"from {run}"
        print(f"branches of {engineering(budget)} steps {start}; return over their last quarter:")
        for o in found:
            shown = f"{np.nanmean(o.returns):10.4g}" if np.isfinite(o.returns).any() else "         -"
            against = f"{o.difference:+9.3g} ± {o.width:<8.3g} {o.found}" if np.isfinite(o.width) else ""
            if o.lever != "control" and not against:
                of = f"{np.isfinite(o.returns).sum()} of {len(o.returns)} seeds" if len(o.returns) > 1 else "one seed"
                against = f"{o.difference:+9.3g} ({of})" if np.isfinite(o.difference) else "not finished"
            print(f"  {o.lever:<10}{shown}  {against:<32} {chosen[o.lever].what}")
    out = folder.parent / ("levers_from_scratch.png" if args.fresh else "levers.png")
    try:
        draw_levers(run, folder, cells, chosen, out)
    except OSError as error:
        say(f"warning: cannot write {out} ({error.strerror or error})")


def draw_levers(run: str, folder: Path, cells: dict, chosen: dict[str, levers.Lever], out: Path) -> None:
    """The mean return of each lever's branches over their steps, and the control in black in every panel."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    curves: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name in chosen:
        own = [levers.curve(folder, c) for (lever, _), c in cells.items() if lever == name]
        own = [(x, y) for x, y in own if len(x)]
        if own:
            length = min(len(x) for x, _ in own)
            curves[name] = own[0][0][:length], np.concatenate([y[:length] for _, y in own], axis=1)
    others = [name for name in curves if name != "control"]
    if "control" not in curves or not others:
        return
    columns = min(4, len(others))
    figure = Figure(figsize=(2.9 * columns, 2.4 * -(-len(others) // columns)), layout="constrained")
    panels = figure.subplots(-(-len(others) // columns), columns, squeeze=False, sharey=True).flat
    for axes in panels:
        axes.set_visible(False)
    for axes, name in zip(figure.axes, others, strict=False):
        axes.set_visible(True)
        for lever, colour in (("control", "black"), (name, plots.COLOURS[0])):
            x, y = curves[lever]
            axes.plot(x, y, color=colour, linewidth=0.5, alpha=0.35)
            axes.plot(x, np.nanmean(y, axis=1), color=colour, linewidth=1.6)
        axes.set_title(chosen[name].what, fontsize=8)
        axes.tick_params(labelsize=7)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(linewidth=0.5, alpha=0.35)
    after = f" after {run}" if "@" in run else ""  # else the branches are from scratch
    figure.supxlabel(f"environment steps{after}; black: nothing changed", fontsize=8, parse_math=False)
    figure.supylabel("episode return", fontsize=8)
    figure.savefig(out, dpi=120)
    say(f"picture: {out}")


def count_environments(args: Args, source: str) -> None:
    """Prints the gain of an update over its number of environments, the critical number, and what to choose."""
    saved, points = how_many.measure(source, args.over, args.values, args.keys, args.seed_index, say)
    fit = how_many.critical_size(points) if args.over == "num_envs" else None
    if args.json:
        rows = [p._asdict() | {"quotient": p.quotient} for p in points]
        return print(json.dumps(plain({"run": source, "over": args.over, "points": rows, "critical": fit}), indent=1))
    print(f"single updates from {source}, judged on fresh transitions of the new policy (± 95 %):")
    titles = f"{'own gain':>9} {'fresh gain':>18} {'fresh/own':>9} {'per M steps':>11} {'per s':>8} {'KL':>8}"
    print(f"{flag(args.over)[2:]:>14} {titles}")
    for p in points:
        fresh = f"{p.fresh:.2g} ± {p.width:.1g}"
        print(
            f"{p.value:>14g} {p.own:>9.2g} {fresh:>18} {p.quotient:>9.2f} {1e6 * p.fresh / p.transitions:>11.4f} "
            f"{p.fresh / p.seconds:>8.4f} {p.kl:>8.2g}"
        )
    if fit is not None:
        print("\n".join(recommendation(saved, points, fit, args.half)))
    return None


def recommendation(saved: Any, points: list[how_many.Point], fit: tuple[float, ...], half: float) -> list[str]:
    """What the measurement says to somebody with a budget of samples, or of time."""
    size, low, high, probability = fit
    sure = [p for p in points if p.fresh > p.width]
    if not sure:
        return ["at no size can a gain on fresh transitions be told from 0: a smaller step, or nothing is left to gain"]
    least, most = min(p.num_envs for p in points), max(p.num_envs for p in points)
    smallest = min(p.num_envs for p in sure)
    said = [f"the smallest size with a sure gain: {smallest:,} environments"]
    if probability < 0.01:
        said.append("fresh / own does not follow N / (N + N_c) here: no critical number")
    elif not least <= size <= most:
        said.append(f"half of an update is signal at {'more' if size > most else 'fewer'} environments than were tried")
    else:
        about = lambda n: f"{float(f'{n:.2g}'):,.0f}"  # noqa: E731
        said.append(f"half of an update is signal at N_c = {about(size)} environments ({about(low)} to {about(high)})")
        said += [f"a share of {half:g} is at {about(size * half / (1 - half))}"] * (half != 0.5)
    here = min(points, key=lambda p: abs(p.num_envs - saved.num_envs))
    if here not in sure:
        said.append(f"at {here.num_envs:,} no gain can be told from 0: take more environments, or a smaller step")
    by_sample = max(sure, key=lambda p: p.fresh / p.transitions).num_envs
    by_time = max(sure, key=lambda p: p.fresh / p.seconds).num_envs
    return [*said, f"most gain per environment step: {by_sample:,}; per second here: {by_time:,}"]


if __name__ == "__main__":
    run_main(main, Args)
