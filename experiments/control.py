"""Do README's two rules hold in continuous control?

    python -m experiments.control               # makes the missing runs, then results/control.json and control.png
    python -m experiments.control --dry-run     # prints the commands

They come from games: fewer than 16 gradient steps per update are too few, and 128 and more in minibatches of 64 or
fewer are too many, unless there are more environments or the learning rate is smaller. It needs brax and MuJoCo
Playground (requirements-brax.txt, requirements-playground.txt). The rules are in experiments/PREREGISTERED.md.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from experiments import grid, headline, longer, results, verdicts, wider
from experiments.headline import Curve, interval
from experiments.longer import SEEDS, STILL
from experiments.reference_scores import random_returns

STEPS = {"playground/CartpoleSwingup": 2**22, "playground/ReacherHard": 2**22, "brax/halfcheetah": 2**21}
FLAGS = {"norm_obs": True, "norm_reward": True, "ent_coef": 0.0, "stagger_resets": 1000}  # usual for such tasks
EPISODES = 256
FEW, SOME, MANY, MORE, SLOW = ARMS = (
    "64 environments, 4 gradient steps",
    "64 environments, 32",
    "64 environments, 256",
    "512 environments, 256",
    "64 environments, 256, learning rate ÷ 10",
)
CHANGED = {
    FEW: {"num_envs": 64, "num_minibatches": 1},
    SOME: {"num_envs": 64, "num_minibatches": 8},
    MANY: {"num_envs": 64, "num_minibatches": 64},
    MORE: {"num_envs": 512, "num_minibatches": 64},
    SLOW: {"num_envs": 64, "num_minibatches": 64, "learning_rate": 1e-4},
}
CLAIMS = {  # what ends higher than what
    "32 gradient steps end higher than 4": (SOME, FEW),
    "32 end higher than 256 in minibatches of 32": (SOME, MANY),
    "with 256, more environments end higher": (MORE, MANY),
    "with 256, a tenth of the learning rate ends higher": (SLOW, MANY),
}
Samples = Mapping[str, Mapping[str, np.ndarray]]  # by task and arm: [seeds]


def cell(task: str, arm: str, seed: int) -> grid.Cell:
    """One run of one seed."""
    changed, steps = CHANGED[arm], STEPS[task]
    updates = steps // (changed["num_envs"] * headline.NUM_STEPS)
    flags = {"env_id": task, "total_timesteps": steps, "seed": seed} | FLAGS | changed
    flags |= {"num_eval_episodes": EPISODES, "log_every": max(1, updates // 256)}
    return grid.named("ppo", flags, {"control": task, **changed, "seed": seed}, updates)


def cells() -> dict[str, dict[str, list[grid.Cell]]]:
    """All runs, by task and arm."""
    return {task: {arm: [cell(task, arm, seed) for seed in SEEDS] for arm in ARMS} for task in STEPS}


def judge(curves: Mapping[str, Mapping[str, Sequence[Curve]]], policies: Samples) -> dict[str, Any]:
    """What the rules ask for, and the curves that the picture shows. policies: returns of those after the last
    update."""

    def each(key: str, start: float, end: float) -> Samples:
        return {
            task: {
                arm: np.array([c.mean(key, start * STEPS[task], end * STEPS[task]) for c in of])
                for arm, of in arms.items()
            }
            for task, arms in curves.items()
        }

    ends, third, fourth = each("returns", 0.9, 1), each("returns", 0.5, 0.75), each("returns", 0.75, 1)
    grown = {task: {arm: fourth[task][arm] / third[task][arm] - 1 for arm in of} for task, of in ends.items()}
    checks = {
        claim: {
            task: [verdicts.difference(f"return, {a} less {b}", values[a], values[b], above=0.0)]
            # An episode of more environments began more steps ago: their returns in training lag behind.
            for task, values in (policies if MORE in (a, b) else ends).items()
        }
        for claim, (a, b) in CLAIMS.items()
    }
    checks["64 environments with 256 stand still"] = {
        task: verdicts.within("growth from the third to the last quarter", of[MANY], 0.0, STILL)
        for task, of in grown.items()
    }
    outcomes = {claim: {task: verdicts.verdict(of) for task, of in tasks.items()} for claim, tasks in checks.items()}
    return {
        "outcomes": {claim: {"on all": verdicts.together([*of.values()])} | of for claim, of in outcomes.items()},
        "checks": {
            claim: {task: [one.stored() for one in of] for task, of in tasks.items()} for claim, tasks in checks.items()
        },
        "return, last tenth": ends,
        "return of the policy at the end": policies,
        "mean": {
            what: {task: {arm: interval([*values]) for arm, values in of.items()} for task, of in returns.items()}
            for what, returns in (("return, last tenth", ends), ("return of the policy at the end", policies))
        },
        "growth from third to last quarter": grown,
        "of an update, last tenth": {key: each(key, 0.9, 1) for key in ("own", "fresh", "entropy", "kl")},
        "curves": {
            task: {arm: [longer.means(c, "returns", STEPS[task]) for c in of] for arm, of in arms.items()}
            for task, arms in curves.items()
        },
    }


def draw(
    drawn: Mapping[str, Mapping[str, Sequence[Sequence[float]]]],
    policies: Samples,
    random: Mapping[str, float],
    out: Path,
) -> None:
    """Returns in training over environment steps, a panel for each task: a thin line per seed, their median thick.
    Dots are the policies at the end, of the two arms whose policies are compared."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.4), layout="constrained")
    panels = figure.subplots(1, len(STEPS))
    # The other pictures' colours of viridis are for numbers of environments; these are for gradient steps.
    looks = {FEW: (0.0, "-"), SOME: (0.4, "-"), MANY: (0.75, "-"), MORE: (0.75, "--"), SLOW: (0.75, ":")}
    for panel, (task, of) in zip(panels, drawn.items(), strict=True):
        x = (np.arange(longer.PARTS) + 0.5) * STEPS[task] / longer.PARTS / 1e6
        for arm, (place, style) in looks.items():
            values, colour = np.array(of[arm], np.float64), colormaps["plasma"](place)
            panel.plot(x, values.T, style, color=colour, linewidth=0.5, alpha=0.3)
            panel.plot(x, np.median(values, 0), style, color=colour, linewidth=2, label=arm)
        for arm, fill in ((MANY, "full"), (MORE, "none")):
            at = np.full(len(policies[task][arm]), STEPS[task] / 1e6)
            colour = colormaps["plasma"](looks[arm][0])
            panel.plot(
                at, policies[task][arm], "o", color=colour, markersize=5, fillstyle=fill, label=f"policy of {arm}"
            )
        panel.axhline(random[task], color="grey", linewidth=1, label="random actions")
        headline.tidy(panel, f"episode return, {task.partition('/')[2]}")
    figure.legend(
        *panels[0].get_legend_handles_labels(), frameon=False, fontsize=9, loc="outside lower center", ncols=3
    )
    figure.savefig(out, dpi=110)


def main(args: headline.Args) -> None:
    """Makes what is missing, prints the outcomes, and writes samples, intervals, curves and a picture."""
    runs = cells()
    flat = {f"{task}, {arm}": of for task, arms in runs.items() for arm, of in arms.items()}
    if not headline.made(args, *flat.values()):
        return
    policies = {
        task: {arm: np.array([wider.mean_return(one, args.runs_dir) for one in of]) for arm, of in arms.items()}
        for task, arms in runs.items()
    }
    found = judge({task: headline.curves(args, arms) for task, arms in runs.items()}, policies)
    print(json.dumps(found["outcomes"], indent=1))
    found["return of random actions"] = {task: float(random_returns(task, EPISODES).mean()) for task in STEPS}
    how = results.facts("control", "## README's two rules in continuous control")
    how |= {"runs": longer.origins(args.runs_dir, *flat.values())}
    draw(
        found["curves"], policies, found["return of random actions"], headline.write(args, "control", how, flat, found)
    )


if __name__ == "__main__":
    main(tyro.cli(headline.Args))
