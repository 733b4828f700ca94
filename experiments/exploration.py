"""Is the plateau of too large an outer step only lost exploration? The weak and the good step with more entropy bonus.

    python -m experiments.exploration           # makes the missing runs, then results/exploration.json

The runs are those of figures 1a and 5b with --preset breakout, and the same with five times the entropy bonus. The rule
is in experiments/PREREGISTERED.md.
"""

from pathlib import Path
from typing import Any, Literal

import tyro

from common.run.tracking import say
from experiments import grid, results
from experiments.data import Data
from experiments.paper_a import MARGIN
from experiments.paper_a_runs import PRESETS, cell
from experiments.verdicts import difference

BONUS = 0.05  # ppo.py's default is 0.01
PRESET = PRESETS["breakout"]
STEPS = {
    "com": ("ppo_ewma", PRESET.weak_com, PRESET.good_com),
    "clip_eps": ("ppo", PRESET.weak_eps, PRESET.good_eps),
}


def cells() -> dict[tuple[str, float, bool], grid.Cell]:
    """The runs, by flag, its value, and whether they have the larger bonus."""
    return {
        (name, value, bonus): cell(PRESET, script, **{name: value}, **({"ent_coef": BONUS} if bonus else {}))
        for name, (script, *values) in STEPS.items()
        for value in values
        for bonus in (False, True)
    }


def main(
    steps: tuple[Literal["com", "clip_eps"], ...] = ("com", "clip_eps"),
    runs_dir: Path = Path("runs/figures/breakout"),
    jobs: int = 2,
    out: Path = Path("results/exploration.json"),
) -> None:
    """Makes what is missing and compares the weak with the good step, with and without the larger bonus.

    Args:
        steps: What sets the step.
        runs_dir: Folder for the runs, that of `figures.py --preset breakout`.
        jobs: How many runs at once, each on its share of the cores.
        out: The file to write.
    """
    runs = {key: run for key, run in cells().items() if key[0] in steps}
    grid.made(list(runs.values()), runs_dir, jobs, say, dry_run=False)
    data, found = Data(PRESET, runs_dir), {}
    span = PRESET.high - PRESET.low
    for (name, value, bonus), run in runs.items():
        entropy = data.part(run, "losses/entropy", 0.9, 1.0).mean(0)
        row = {"command": grid.paste(run, runs_dir), "return": (PRESET.low + span * data.final(run)).tolist()}
        found[f"{name} {value:g}" + f", bonus {BONUS}" * bonus] = row | {"entropy": entropy.tolist()}
    checks: list[Any] = []
    for name in steps:
        _, weak, good = STEPS[name]
        for bonus in (True, False):
            what = f"final score{f', bonus {BONUS}' * bonus}, {name} {good:g} less {weak:g}"
            ends = (data.final(runs[name, value, bonus]) for value in (good, weak))
            checks.append(difference(what, *ends, above=MARGIN if bonus else None))
        what = f"final score, {name} {weak:g}, bonus {BONUS} less the default"
        ends = (data.final(runs[name, weak, bonus]) for bonus in (True, False))
        checks.append(difference(what, *ends))
    print("\n".join(map(str, checks)))
    told = [check.stored() for check in checks]
    how = results.facts("exploration", "## Is the plateau of too large a step")
    results.write(out, how | {"checks": told, "runs": found})


if __name__ == "__main__":
    tyro.cli(main)
