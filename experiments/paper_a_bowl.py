"""The figures of Beukman et al. 2026 (https://arxiv.org/abs/2603.06009) on the bowl, noisy gradient descent: runs,
pictures and effects. The table of figures is at the end."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from common.run import plots
from experiments.data import FINAL, GAIN, Arms, Cells, Data, Figure, Shown, called
from experiments.grid import Cell, named
from experiments.paper_a import FLAT, MARGIN, UNSMOOTHED, switched
from experiments.pictures import Line, Picture

RATES = (0.9, 0.5, 0.1, 0.01, 0.001)
PLATEAU, GOOD, SWITCH = 0.5, 0.01, 500
BOWL = SimpleNamespace(about="the bowl", performance="charts/negative_distance", scale=lambda run: (0.0, 1.0))
PRESETS = {"laptop": BOWL}  # its performance is the score


def bowl(**varied: Any) -> Cell:
    """A run of the noisy convex problem, with 20 seeds since they cost nothing."""
    flags = {"num_seeds": 20, "num_steps": 1000} | varied
    return named("stochastic_opt", flags, varied, flags["num_steps"])


def bowl_cells(p: SimpleNamespace) -> Cells:
    return {rate: bowl(learning_rate=rate) for rate in RATES}


rate_label = called("--learning-rate")


def theory(arms: Arms) -> list[Line]:
    drawn = [arms.d.curve(run, "theory/negative_distance") for run in arms.cells.values()]
    return [Line("theory", x, y, "theory") for x, y in drawn if len(x)]


def show_bowl(d: Data, cells: Cells) -> Shown:
    """The runs beside each other and beside the theory."""
    arms, small = Arms(d, cells, rate_label), RATES[-1]
    arms.effect(GAIN, PLATEAU, below=FLAT)
    arms.effect(FINAL, GOOD, PLATEAU, above=MARGIN)
    arms.effect(FINAL, GOOD, small, above=MARGIN)
    arms.effect(GAIN, small, above=FLAT)
    for rate, run in cells.items():
        off = d.final(run) / d.part(run, "theory/negative_distance", 0.9, 1.0).mean() - 1
        for side in ({"above": -0.05}, {"below": 0.05}):
            arms.add(f"final −‖x‖ over that of the theory, {rate_label(rate)}, less 1", off, **side)
    y_label = plots.AXIS_LABELS["charts/negative_distance"]
    return Picture({"": arms.curves() + theory(arms)}, "gradient steps", y_label, shows=UNSMOOTHED), arms.effects


def show_bowl_updates(d: Data, cells: Cells) -> Shown:
    """That a step on the plateau keeps its size and exceeds the distance to the optimum."""
    arms, key, run = Arms(d, cells, rate_label), "outer/update_norm", cells[PLATEAU]
    late, early = d.log_mean(run, key), d.log_mean(run, key, 0.2, 0.3)
    name = f"log10 of {key}, {rate_label(PLATEAU)}"
    arms.effect(GAIN, PLATEAU, below=FLAT)
    arms.add(f"{name}, end less first quarter", late - early, above=-FLAT)
    arms.add(f"{name}, end less first quarter", late - early, below=FLAT)
    arms.add(f"{name}, over ‖x‖ at the end", late - np.log10(-d.final(run)), above=0.0)
    y_label = plots.AXIS_LABELS[key]
    return Picture({"": arms.curves(key)}, "gradient steps", y_label, log_y=True, shows=UNSMOOTHED), arms.effects


def bowl_switch_cells(p: SimpleNamespace) -> Cells:
    rates = (PLATEAU, GOOD)
    stay = {(a, a): bowl(learning_rate=a) for a in rates}
    pairs = (rates, rates[::-1])
    return stay | {(a, b): bowl(learning_rate=a, switch_step=SWITCH, switch_learning_rate=b) for a, b in pairs}


def show_changed_rate(d: Data, cells: Cells) -> Shown:
    arms = Arms(d, cells, lambda key: rate_label(key[0]) + (f", then {key[1]:g}" if key[0] != key[1] else ""))
    switched(arms, PLATEAU, GOOD)
    y_label, lines = plots.AXIS_LABELS["charts/negative_distance"], arms.curves() + theory(arms)
    return Picture({"": lines}, "gradient steps", y_label, marks=(SWITCH,), shows=UNSMOOTHED), arms.effects


# fmt: off
FIGURES = {
    "1b": Figure("Step size on the bowl", PRESETS, bowl_cells, show_bowl,
        "The same as in PPO: too large a step ends on a plateau, too small a one does not arrive in time."),
    "2a": Figure("Step size on the bowl: size of each update", PRESETS, bowl_cells, show_bowl_updates,
        "With too large a step the updates stay large while the loss stagnates."),
    "3b": Figure("Step size on the bowl, changed half-way", PRESETS, bowl_switch_cells, show_changed_rate,
        "The same: a run ends where its present step size takes it, whatever it began with."),
}
# fmt: on
