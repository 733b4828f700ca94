"""Does PPO end higher with more environments, if each number of environments has the flags that are best for it?

    python benchmarks/arms.py                            # what is missing of all: ten hours on two cores
    python benchmarks/arms.py --stages tune --arms many  # only the search for the flags of one arm
    python benchmarks/arms.py --list                     # the commands

An arm is a way to gather the data of an update. Each has as many trials of tune.py, one set of flags for all games, and
is then judged on other seeds. The rules are in experiments/PREREGISTERED.md.
"""

import itertools
import json
import math
import shlex
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ppo
from benchmarks import learning, report
from common.run import arguments, plots
from common.run.tracking import say
from experiments import effects, grid
from experiments.references import REFERENCES, reference_score

ARMS = {  # N, K, and the sizes of minibatches that are searched
    "small": (64, 32, "128,256,512,1024"),
    "many": (4096, 32, "1024,2048,4096,8192,16384"),
    "long": (64, 2048, "1024,2048,4096,8192,16384"),
    "middle": (512, 32, "512,1024,2048,4096,8192"),
}
LATER = "middle"  # judged when the others were known
ONCE, MILLION = "once", 32_768  # many's flags with so many environments, ten updates: one run on each of GAMES
GAMES = ("Breakout-MinAtar", "SpaceInvaders-MinAtar")  # searched, and judged by CLAIMS
THIRD = "Asterix-MinAtar"  # judged later, with the flags that were searched on the others
PAIRS = (("many", "small"), ("many", "long"), ("small", "long"))  # compared there; the first is claimed as in CLAIMS
BORROWED = "borrowed"  # an arm there: many with the flags of long
THIRD_SEEDS, EARLIER = 6, 4  # how many seeds there, and how many of "small" recipes.py had made
SEARCHED = {
    "learning_rate": "5e-4:2e-2:log",
    "anneal_lr": "true,false",
    "clip_eps": "0.05:0.5:log",
    "gae_lambda": "0.5:0.97",
    "ent_coef": "3e-3:0.15:log",
    "update_epochs": "1,2,3,4,8",
}
NEAR = 0.05  # trials whose score is so close to the best are told, too
GATE = {"Breakout-MinAtar": 45, "SpaceInvaders-MinAtar": 130, "Asterix-MinAtar": 19.8}  # pgx's PPO less 10 %
LEVEL, LEAST, DRAWS = 0.9875, 8, 20_000  # of CLAIMS' intervals; from so many seeds on; draws of their bootstrap
FIRST_LEVEL, FIRST = 0.975, 6  # of a first look, at so many seeds, with effects.REPETITIONS draws
CLAIMS = (  # a less b, what is claimed of it, and where its interval has to lie: above, below, refuted where
    ("many", "small", "more environments end higher", (0.0, np.inf), (-np.inf, 0.05)),
    ("many", "long", "equal within 0.1", (-0.1, 0.1), None),
    ("middle", "small", "more environments end higher", (0.0, np.inf), (-np.inf, 0.05)),
    ("many", "middle", "more environments end higher", (0.0, np.inf), (-np.inf, 0.05)),
)


@dataclass(frozen=True)
class Args:
    stages: tuple[str, ...] = ("tune", "test")
    """tune: search for each arm's flags. test: train with them on new seeds."""
    arms: tuple[str, ...] = tuple(ARMS)
    """Only these arms."""
    trials: int = 12
    """Trials for each arm."""
    tune_seed: int = 100
    """Seed of the trials."""
    seeds: int = 10
    """Test with the seeds 0, 1, ... (on the third game at most six)"""
    total_timesteps: int = 10_485_760
    """Environment steps of each run."""
    workers: int | None = None
    """How many runs go at once, each on its share of the cores (default: one per core)."""
    list: bool = False
    """Only print the commands."""
    out: Path = Path("results/arms.json")
    """Results."""
    runs_dir: Path = Path("runs/arms")
    """Where the runs' folders go."""


def common_flags(arm: str, args: Args) -> dict[str, Any]:
    """What is the same in trials and tests."""
    num_envs, num_steps, _ = ARMS[arm]
    sizes = {"num_envs": num_envs, "num_steps": num_steps, "total_timesteps": args.total_timesteps}
    return {**sizes, "sticky_actions": 0.1, "plasticity_every": 0}


def tuning(arm: str, args: Args) -> list[str]:
    """The command that searches for an arm's flags."""
    search = [f"{name}={text}" for name, text in (SEARCHED | {"minibatch_size": ARMS[arm][2]}).items()]
    asked = {"env_id": GAMES, "trials": args.trials, "workers": args.workers or grid.cores_or_one()}
    asked |= {"seed": args.tune_seed, "study": arm, "runs_dir": str(args.runs_dir)}
    words = ["--only", *SEARCHED, "minibatch_size", "--search", *search]
    return ["python", "tune.py", "ppo.py", *grid.spelled(asked | common_flags(arm, args)), *words]


def test(arm: str, flags: dict[str, Any], env_id: str, seed: int, args: Args, called: str = "") -> grid.Cell:
    """A run that counts, on one core as the trials. called: what it is called in place of its arm's name."""
    flags = {"env_id": env_id, "seed": seed} | common_flags(arm, args) | flags | {"num_devices": 1}
    varied = {"arm": called or arm, "env": env_id, "seed": seed}
    return grid.named("ppo", flags, varied, arguments.apply_scaling(ppo.Args(**flags)).num_updates)


def once(flags: dict[str, Any], env_id: str, args: Args) -> grid.Cell:
    """The run with most environments."""
    return test("many", flags | {"num_envs": MILLION}, env_id, 0, args, ONCE)


class Results:
    """What is known, in a file that is written after each run."""

    def __init__(self, args: Args):
        self.args = args
        known = json.loads(args.out.read_text()) if args.out.exists() else {}
        self.trials: dict[str, list[dict[str, Any]]] = known.get("trials", {})
        self.runs: dict[str, dict[str, Any]] = known.get("runs", {})

    def write(self) -> None:
        report.write(self.args.out, report.record(trials=self.trials, runs=dict(sorted(self.runs.items()))))

    def take_trials(self, arm: str) -> None:
        """Take over what the study of an arm has found so far."""
        import tune  # here, since the pages read this file's arms without optuna
        from tuning.report import as_flags, counting

        asked = tune.Args(runs_dir=str(self.args.runs_dir))
        trials = counting(tune.open_study(asked, arm, make=False))
        self.trials[arm] = [
            {"score": t.value, "returns": t.user_attrs.get("values"), "state": t.state.name.lower()}
            | {"flags": as_flags(t.params, t.distributions)}
            for t in trials
            if t.state.is_finished()
        ]
        self.write()

    def best(self, arm: str) -> dict[str, Any]:
        """The flags of an arm's best trial."""
        return ranked(self.trials[arm])[0]["flags"]

    def drop_others(self, arms: list[str]) -> None:
        """Forget these arms' runs with other flags than those that they have now."""

        def now(run: dict[str, Any]) -> str:
            if run["arm"] == ONCE:
                return once(self.best("many"), run["env_id"], self.args).name
            if run["arm"] == BORROWED:
                return test("many", self.best("long"), run["env_id"], run["seed"], self.args, BORROWED).name
            return test(run["arm"], self.best(run["arm"]), run["env_id"], run["seed"], self.args).name

        asked = {*arms, *[ONCE] * ("many" in arms), *[BORROWED] * ({"many", "long"} <= {*arms})}
        self.runs = {name: run for name, run in self.runs.items() if run["arm"] not in asked or name == now(run)}

    def keep(self, cell: grid.Cell) -> None:
        """Take what is told of a finished run."""
        self.runs[cell.name] = told(cell, self.args.runs_dir)
        self.write()


def ranked(trials: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The trials that were not stopped early, best first."""
    ended = [trial for trial in trials if trial["score"] is not None and trial.get("state") != "pruned"]
    return sorted(ended, key=lambda trial: -trial["score"])


def told(cell: grid.Cell, runs_dir: Path) -> dict[str, Any]:
    """What is kept of a finished run: its final policy's return, its time and its curve."""
    folder = runs_dir / cell.name
    summary, made = (json.loads((folder / f"{name}.json").read_text()) for name in ("summary", "args"))
    flags, arm = made["args"], cell.name.split("_")[1].removeprefix("arm-")
    return {"arm": arm, "env_id": flags["env_id"], "seed": flags["seed"]} | {
        "return": summary.get("eval/episodic_return", {}).get("mean"),
        "seconds": round(summary["wall_s"]),
        "machine": made["machine"],
        "date": made["started"][:10],
        "curve": learning.make_curve(folder),
    }


def returns(found: dict[str, Any], key: str = "return") -> dict[str, dict[str, dict[int, Any]]]:
    """{arm: {game: {seed: return}}}, or another entry of the runs."""
    of: dict[str, dict[str, dict[int, Any]]] = {arm: {game: {} for game in GAMES} for arm in ARMS}
    for run in found["runs"].values():
        if run["env_id"] in GAMES and run["arm"] in of:
            of[run["arm"]][run["env_id"]][run["seed"]] = run[key]
    return of


def on_third(runs: dict[str, dict[str, Any]], earlier: dict[str, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """{arm: its runs of the third game}, of the seeds that all its arms have. earlier: runs of recipes.py."""
    known = [run for run in earlier.values() if run["seed"] < EARLIER]
    of = {
        arm: {run["seed"]: run for run in (*known, *runs.values()) if (run["arm"], run["env_id"]) == (arm, THIRD)}
        for arm in ARMS
        if arm != LATER
    }
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in of.values())))
    return {arm: [by_seed[seed] for seed in seeds] for arm, by_seed in of.items()}


def looked_at(runs: dict[str, dict[str, dict[int, float]]]) -> tuple[dict[str, np.ndarray], float]:
    """What the rules judge: all seeds that each of the first arms has on each game or, while these are few, the first
    look's; of the later arm its own, 0, 1, ... without a gap. -> {arm: scores [seeds, games]}, level of intervals."""
    of_arm = {arm: set.intersection(*(set(values) for values in by_game.values())) for arm, by_game in runs.items()}
    seeds = sorted(set.intersection(*(of for arm, of in of_arm.items() if arm != LATER)))
    seeds, level = (seeds, LEVEL) if len(seeds) >= LEAST else (seeds[:FIRST], FIRST_LEVEL)
    taken = dict.fromkeys(runs, seeds) | {LATER: [*itertools.takewhile(of_arm[LATER].__contains__, itertools.count())]}
    found = {arm: [[reference_score(game, by_game[game][seed]) for game in GAMES] for seed in taken[arm]]
             for arm, by_game in runs.items()}  # fmt: skip
    return {arm: np.array(of).reshape(-1, len(GAMES)) for arm, of in found.items()}, level


def differences(
    a: np.ndarray, b: np.ndarray, level: float = LEVEL, draws: int = DRAWS
) -> dict[str, tuple[float, float, float]]:
    """Estimate and interval of a less b, scores [seeds, games]: of interquartile means, by bootstrap, which the rules
    judge; of means over seeds and of each game, by Welch. A bootstrap of few seeds is too narrow; Welch's is not."""
    less = lambda x, y: effects.iqm(x) - effects.iqm(y)  # noqa: E731
    found = {
        "interquartile mean": tuple(float(x[0]) for x in effects.bootstrap(less, a, b, level=level, repetitions=draws))
    }
    pairs = {"mean": (a.mean(axis=1), b.mean(axis=1))} | {game: (a[:, i], b[:, i]) for i, game in enumerate(GAMES)}
    for name, (x, y) in pairs.items():
        effect = effects.difference(name, x, y, level=level)
        found[name] = effect.estimate, effect.low, effect.high
    return found


def over_games(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float, float]:
    """The mean over games of mean(a) - mean(b), scores of each game's seeds, and its 95 % interval with the degrees of
    freedom of Welch and Satterthwaite."""
    from scipy import stats

    pairs = list(pairs)
    spread = np.array([[x.var(ddof=1) / len(x), len(x) - 1] for pair in pairs for x in pair])
    freedom = spread[:, 0].sum() ** 2 / (spread[:, 0] ** 2 / spread[:, 1]).sum()
    half = stats.t.ppf(0.975, freedom) * np.sqrt(spread[:, 0].sum()) / len(pairs)
    middle = np.mean([a.mean() - b.mean() for a, b in pairs])
    return float(middle), float(middle - half), float(middle + half)


def of_later(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The later arm's runs of the third game."""
    return [run for run in found["runs"].values() if (run["arm"], run["env_id"]) == (LATER, THIRD)]


def later_on_third(
    found: dict[str, Any], third: dict[str, list[dict[str, Any]]]
) -> tuple[effects.Effect, str, effects.Effect]:
    """What the rules ask of the later arm on the third game: its scores less those of small, the verdict, and those of
    many less its own. third: what on_third gives."""
    score = lambda runs: np.array([reference_score(THIRD, run["return"]) for run in runs])  # noqa: E731
    later, small, many = map(score, (of_later(found), third["small"], third["many"]))
    less = effects.difference("", later, small)
    return less, of_more(less.low, less.high, "small"), effects.difference("", many, later)


def third_effects(
    found: dict[str, Any], third: dict[str, list[dict[str, Any]]]
) -> dict[tuple[str, str], list[tuple[float, float, float]]]:
    """{(a, b): the score of a less that of b on the third game, and the mean of that over all games}, with their 95 %
    intervals. third: what on_third gives."""
    ends, scores = returns(found), {}
    for arm, runs in third.items():
        values = {game: [x for seed, x in ends[arm][game].items() if seed < FIRST] for game in GAMES}
        values[THIRD] = [run["return"] for run in runs]
        scores[arm] = [np.array([reference_score(game, x) for x in of]) for game, of in values.items()]
    pairs = {pair: list(zip(*(scores[arm] for arm in pair), strict=True)) for pair in PAIRS}
    return {pair: [over_games(games[-1:]), over_games(games)] for pair, games in pairs.items()}


def fails_gate(found: dict[str, dict[str, dict[int, float]]]) -> list[str] | None:
    """The games on which no arm ends high enough for the experiment to say anything. None: an arm is still to run that
    might."""
    ends = {game: [np.mean([*arm[game].values()]) for arm in found.values() if arm[game]] for game in GAMES}
    failed = [game for game in GAMES if max(ends[game], default=0) <= GATE[game]]
    return failed if not failed or all(len(of) == len(found) for of in ends.values()) else None


def judged(low: float, high: float, claimed: tuple[float, float], refuted: tuple[float, float] | None) -> str:
    """What the rules say of an interval: a claim holds or is refuted where the whole interval is.

    refuted: where the interval of a refuted claim lies; None: anywhere outside of what is claimed."""
    inside = lambda bounds: bounds[0] < low and high < bounds[1]  # noqa: E731
    outside = high < claimed[0] or low > claimed[1] if refuted is None else inside(refuted)
    if inside(claimed):
        return f"holds, but is below {refuted[1]:g}" if outside else "holds"
    return "refuted" if outside else "open"


def named(arm: str) -> str:
    return "{:,} × {:,}".format(*ARMS[arm][:2])


def told_of(verdict: str, high: float, b: str, claimed: tuple[float, float]) -> str:
    """A verdict, with who ends higher if a claim that another does is refuted by an interval below 0."""
    return f"{verdict}, {named(b)} ends higher" if verdict == "refuted" and claimed[0] == 0 > high else verdict


def of_more(low: float, high: float, b: str) -> str:
    """What the rules say of the claim that more environments than those of arm b end higher."""
    claimed, refuted = CLAIMS[0][3:]
    return told_of(judged(low, high, claimed, refuted), high, b, claimed)


def at_edge(arm: str, flags: dict[str, Any]) -> set[str]:
    """The flags that are in the last tenth of their searched range, or its last choice, at either end."""
    found = set()
    for name, text in (SEARCHED | {"minibatch_size": ARMS[arm][2]}).items():
        low, _, rest = text.partition(":")
        if rest:
            high, _, scale = rest.partition(":")
            low, value, high = (math.log(float(x)) if scale else float(x) for x in (low, flags[name], high))
            share = (value - low) / (high - low)
            found |= {name} if not 0.1 <= share <= 0.9 else set()
        elif "true" not in text and str(flags[name]) in (text.split(",")[0], text.split(",")[-1]):
            found.add(name)
    return found


def draw(found: dict[str, Any], path: Path) -> None:
    """Each game's returns in training, and all differences of scores."""
    curves, (scores, level) = returns(found, "curve"), looked_at(returns(found))
    figure, axes = report.new_figure(1, len(GAMES) + 1, "Arms with the flags that a search of their own found")
    for axis, game in zip(axes[0], GAMES, strict=False):
        for colour, arm in zip(plots.COLOURS, ARMS, strict=False):
            if len(curves[arm][game]) >= effects.FEWEST:
                steps, values = learning.on_one_grid(curves[arm][game].values())
                middle, width = plots.mean_and_ci(values)
                axis.plot(steps / 1e6, middle, color=colour, label=f"{named(arm)}; seeds: {values.shape[1]}")
                axis.fill_between(steps / 1e6, middle - width, middle + width, color=colour, alpha=0.2, linewidth=0)
        for value, what in zip(REFERENCES[game], ("random", "published"), strict=True):
            axis.axhline(value, color="0.5", linestyle=":", linewidth=1)
            place = dict(xycoords=("axes fraction", "data"), va="bottom", ha="center")
            axis.annotate(what, (0.65, value), **place, fontsize=8, color="0.4")
        axis.set(title=game, xlabel="million environment steps", ylabel="return in training", ylim=(0, None))
    labels, axis = [], axes[0, -1]
    for colour, (a, b, *_) in zip(plots.COLOURS, CLAIMS, strict=False):
        of = scores[a], scores[b]
        enough = min(map(len, of)) >= effects.FEWEST
        for what, (middle, low, high) in (differences(*of, level) if enough else {}).items():
            axis.plot((low, high), (-len(labels),) * 2, color=colour, linewidth=2)
            axis.plot(middle, -len(labels), "o", color=colour)
            pair = f"{named(a)} less {named(b)}: " if what == "interquartile mean" else ""
            labels.append(pair + what.removesuffix("-MinAtar"))
    axis.axvline(0, color="0.3", linewidth=1)
    axis.set_yticks(-np.arange(len(labels)), labels, fontsize=9)
    axis.set(title=f"Differences, {100 * level:.4g} % intervals", xlabel="score: 1 is published, 0 random")
    told = "Mean over seeds of returns in training, 95 % t-interval. Differences: final policies, evaluated."
    report.save_figure(figure, path, f"{told} Published: discogen's PPO, without sticky actions.")


def main(args: Args) -> None:
    results = Results(args)
    if args.list:
        print(*(shlex.join(tuning(arm, args)) for arm in args.arms), sep="\n")
    for arm in args.arms if "tune" in args.stages and not args.list else ():
        if len(results.trials.get(arm, [])) < args.trials:
            subprocess.run([sys.executable, *tuning(arm, args)[1:]], check=True)
            results.take_trials(arm)
    tuned = [arm for arm in args.arms if len(results.trials.get(arm, [])) >= args.trials]
    cells = [
        test(arm, results.best(arm), game, seed, args)
        for seed in range(args.seeds)
        for arm in tuned
        for game in (*GAMES, THIRD)
        if game != THIRD or (EARLIER if arm == "small" else 0) <= seed < THIRD_SEEDS
    ]
    if "many" in tuned:
        cells += [once(results.best("many"), game, args) for game in GAMES]
    if {"many", "long"} <= {*tuned}:  # added afterwards: is it the flags?
        cells += [test("many", results.best("long"), THIRD, seed, args, BORROWED) for seed in range(min(4, args.seeds))]
    if args.list:
        print(*(shlex.join(grid.command(cell, args.runs_dir)) for cell in cells), sep="\n")
        return
    if "test" in args.stages:
        results.drop_others(tuned)
        grid.complete(cells, results.runs, args.runs_dir, args.workers, say, results.keep)
    if results.runs:
        draw(vars(results), args.out.with_suffix(".png"))


if __name__ == "__main__":
    main(tyro.cli(Args))
