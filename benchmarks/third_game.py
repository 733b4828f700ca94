"""Does PPO end higher with more environments on Asterix, if each number of them has flags that were searched there?

    python benchmarks/third_game.py                    # 64 and 4,096: what is missing, two hours on two cores
    python benchmarks/third_game.py --numbers middle   # 512

Every number of environments is tried with the same twelve sets of flags, but for the size of minibatches. The rules are
in experiments/PREREGISTERED.md.
"""

import json
import sys
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import tyro
from scipy.stats import qmc

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ppo
from benchmarks import arms, report
from common.run import arguments
from common.run.tracking import say
from experiments import effects, grid
from experiments.references import reference_score

NUMBERS = {  # sizes of minibatches: from a sixteenth of an update (many: 1/64, the default) to half of it
    "small": (128, 256, 512, 1024),
    "many": (2048, 8192, 16384, 65536),
    "middle": (1024, 2048, 4096, 8192),
}
DRAWN = 9  # sets of flags
SETS = 3 + DRAWN
TRIED, AGAIN, TESTED = 100, 101, range(6, 12)  # seeds: of all sets; of the best two; of the better one of these
ARGS = arms.Args(out=Path("results/third_game.json"), runs_dir=Path("runs/third_game"))


def flag_sets(number: str) -> list[dict[str, Any]]:
    """The defaults, the flags that arms.py found for 64 x 32 on other games with minibatches of a half and an eighth of
    an update, and a Latin square of its ranges, annealed; the same for each number but for minibatches."""
    (num_envs, num_steps, _), sizes = arms.ARMS[number], NUMBERS[number]
    args, known = ppo.Args(num_envs=num_envs, num_steps=num_steps), arms.Results(arms.Args()).best("small")
    defaults = {name: getattr(args, name) for name in known}
    given = [defaults, *(known | {"minibatch_size": num_envs * num_steps // part} for part in (2, 8))]
    searched = {name: text for name, text in arms.SEARCHED.items() if name != "anneal_lr"}
    searched["minibatch_size"] = ",".join(map(str, sizes))
    square = qmc.LatinHypercube(len(searched), rng=TRIED).random(DRAWN)
    return given + [
        {"anneal_lr": True} | {name: at(share, text) for share, (name, text) in zip(row, searched.items(), strict=True)}
        for row in square
    ]


def at(share: float, text: str) -> float | int:
    """The value at this share of low:high, low:high:log or a,b,c."""
    if ":" not in text:
        choices = text.split(",")
        return int(choices[int(share * len(choices))])
    low, high, *log = text.split(":")
    low, high = float(low), float(high)
    return float(f"{low * (high / low) ** share if log else low + (high - low) * share:.3g}")


def make(number: str, index: int, seed: int) -> grid.Cell:
    """A run with one of the sets."""
    flags = {"env_id": arms.THIRD, "seed": seed, **arms.common_flags(number, ARGS), "num_devices": 1}
    flags |= flag_sets(number)[index]
    varied = {"arm": number, "set": index, "seed": seed}
    return grid.named("ppo", flags, varied, arguments.apply_scaling(ppo.Args(**flags)).num_updates)


def told(cell: grid.Cell) -> dict[str, Any]:
    """What is kept of a finished run."""
    index = int(cell.name.split("_")[2].removeprefix("set-"))
    return arms.told(cell, ARGS.runs_dir) | {"set": index}


def ends(runs: dict[str, Any], number: str) -> dict[tuple[int, int], float]:
    """{(set, seed): return}."""
    return {(run["set"], run["seed"]): run["return"] for run in runs.values() if run["arm"] == number}


def best(runs: dict[str, Any], number: str) -> list[int]:
    """The sets in play: all at first; the best two of seed 100; the better one of these by the mean of both seeds."""
    of, sets = ends(runs, number), range(SETS)
    if any((index, TRIED) not in of for index in sets):
        return list(sets)
    two = sorted(sets, key=lambda index: -of[index, TRIED])[:2]
    if any((index, AGAIN) not in of for index in two):
        return two
    return [max(two, key=lambda index: of[index, TRIED] + of[index, AGAIN])]


def next_cells(runs: dict[str, Any], number: str) -> list[grid.Cell]:
    """What is to be run next."""
    sets = best(runs, number)
    seeds = {1: TESTED, 2: (AGAIN,)}.get(len(sets), (TRIED,))
    return [make(number, index, seed) for seed in seeds for index in sets if (index, seed) not in ends(runs, number)]


def tested(runs: dict[str, Any], number: str) -> list[dict[str, Any]]:
    """The runs that count."""
    return [run for run in runs.values() if run["arm"] == number and run["seed"] in TESTED]


def scores(runs: list[dict[str, Any]]) -> np.ndarray:
    """0 is a random policy's, 1 a published one's."""
    return np.array([reference_score(arms.THIRD, run["return"]) for run in runs])


def closed(own: list[list[dict[str, Any]]], borrowed: list[list[dict[str, Any]]]) -> tuple[float, float, float]:
    """How much of the difference between two numbers of environments is gone with flags of their own: the difference
    now less that with flags from other games, and its 95 % interval. Each: runs of the one, of the other."""
    pairs = [tuple(map(scores, own)), tuple(map(scores, reversed(borrowed)))]
    middle, low, high = (2 * x for x in arms.over_games(pairs))  # of both pairs' mean
    return middle, low, high


def answer(less: effects.Effect, low: float) -> str:
    """What the rules say. less: scores of many less those of small. low: the lower end of what is closed."""
    if less.low > 0:
        return "the flags were why"
    if less.high < 0:
        return "in part the flags were why" if low > 0 else "that the flags were why is not shown"
    return "undecided between the two, which is not that they are equal"


class Claim(NamedTuple):
    """Scores of many less those of small; what of the difference is gone; and what the rules say of both."""

    less: effects.Effect
    gone: tuple[float, float, float]
    verdict: str
    answer: str


def claimed(runs: dict[str, Any], borrowed: dict[str, list[dict[str, Any]]]) -> Claim:
    """borrowed: {arm: runs} of arms.py, with flags from other games."""
    own = [tested(runs, number) for number in ("many", "small")]
    less = effects.difference("many less small", *map(scores, own))
    gone = closed(own, [borrowed["many"], borrowed["small"]])
    verdict, said = arms.of_more(less.low, less.high, "small"), answer(less, gone[1])
    if min(map(len, own)) < len(TESTED):
        verdict = said = f"open ({min(map(len, own))} of {len(TESTED)} seeds)"
    if not passes_gate(own):
        verdict = said = "no verdict, returns are too low for one"
    return Claim(less, gone, verdict, said)


def passes_gate(own: list[list[dict[str, Any]]]) -> bool:
    """Whether many or small end high enough for the experiment to say anything."""
    return max(np.mean([run["return"] for run in of]) for of in own) > arms.GATE[arms.THIRD]


def main(numbers: tuple[Literal["small", "many", "middle"], ...] = ("small", "many")) -> None:
    runs = json.loads(ARGS.out.read_text())["runs"] if ARGS.out.exists() else {}

    def keep(cell: grid.Cell) -> None:
        runs[cell.name] = told(cell)
        report.write(ARGS.out, report.record(runs=dict(sorted(runs.items()))))

    while cells := [cell for number in numbers for cell in next_cells(runs, number)]:
        cells.sort(key=lambda cell: dict(cell.flags)["seed"])  # so that no number has more seeds than the others
        grid.complete(cells, runs, ARGS.runs_dir, None, say, keep)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
