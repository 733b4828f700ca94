"""Draws experiments: panels of curves, points or dots over seeds. What they show is the caption; what
they mean is for the page that shows them."""

import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from common.run import plots
from common.run.plots import mean_and_ci

COLUMNS = 3  # panels in a row: more would not be legible on a page
SMALLEST = 1e-6  # on a logarithmic axis; what is below is float32's rounding
MEAN = "Mean and 95 % interval over seeds"


class Line(NamedTuple):
    """A line of a panel: y [T, seeds] over x [T], of which the mean is shown with its 95 % interval (of the logarithms
    on a logarithmic axis); dots show each value. For both interval kinds y [T, 3] is estimate, low and high."""

    label: str
    x: np.ndarray
    y: np.ndarray
    kind: Literal["curve", "points", "dots", "theory", "interval", "interval points"] = "curve"


class Picture(NamedTuple):
    """A picture to draw: panels by title, in rows of so many columns, with shared axes."""

    panels: dict[str, Sequence[Line]]
    x_label: str
    y_label: str
    log_x: bool = False
    log_y: bool = False
    marks: Sequence[float] = ()  # vertical lines
    own_y: bool = False  # each panel has its own y axis, named by its title
    shows: str = f"{MEAN}, running mean over at most a thirtieth of the run"
    columns: int = COLUMNS


def save(what: Picture, out: Path | str, title: str, caption: str) -> None:
    """Draws `what` into the picture file `out`."""
    import matplotlib
    from matplotlib.figure import Figure

    style = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True}
    with matplotlib.rc_context(style):
        panels = len(what.panels)
        columns = 2 if (panels, what.columns) == (4, COLUMNS) else min(panels, what.columns)
        width = 8.2 if columns == 1 else 3.6 * columns  # of one panel, 3 are for the legend at its right
        text = textwrap.fill(caption, int(width * 14))
        height = 4.6 if panels == 1 else 2.0 + 2.9 * -(-panels // columns)
        figure = Figure(figsize=(width, height + 0.19 * text.count("\n")), layout="constrained")
        _draw_panels(figure, what, columns)
        _draw_title(figure, textwrap.fill(title, int(width * 9)), columns)
        # parse_math: a run's name may have $ signs.
        figure.supxlabel(text, fontsize=9, color="#444444", x=0.01, ha="left", parse_math=False)
        figure.savefig(out, dpi=110)


def forest(figures: dict[str, dict[str, Any]], out: Path | str) -> None:
    """Draws the effects of figures, {name: its summary}, each with its interval over where the claim wants it, if any
    effect has an interval."""
    from matplotlib.figure import Figure

    rows = []  # top to bottom: figure, what, the entries that it has (two where a claim wants it between two bounds)
    for name, summary in figures.items():
        of: dict[str, list[dict[str, Any]]] = {}
        for effect in summary["effects"]:
            if effect["low"] is not None and effect["outcome"] != "reported":
                of.setdefault(effect["what"], []).append(effect)
        rows += [(name, what, sides) for what, sides in of.items()]
    if not rows:
        return
    figure = Figure(figsize=(9, 1.3 + 0.26 * len(rows)), layout="constrained")
    axes, left, right = figure.add_subplot(), [], []
    low, high = min(s[0]["low"] for *_, s in rows) - 0.1, max(s[0]["high"] for *_, s in rows) + 0.1
    for y, (name, what, sides) in enumerate(rows):
        above = max([low, *(s["above"] for s in sides if s["above"] is not None)])
        below = min([high, *(s["below"] for s in sides if s["below"] is not None)])
        axes.fill_betweenx((y - 0.45, y + 0.45), above, below, color=plots.COLOURS[2], alpha=0.18, linewidth=0)
        outcome = next((s["outcome"] for s in sides if s["outcome"] != "holds"), "holds")
        colour = {"holds": plots.COLOURS[2], "does not hold": plots.COLOURS[1]}.get(outcome, "#555555")
        axes.plot([sides[0]["low"], sides[0]["high"]], [y, y], color=colour, linewidth=2)
        axes.plot(sides[0]["estimate"], y, "o", color=colour, markersize=5)
        first = y == 0 or rows[y - 1][0] != name
        left.append(textwrap.fill(f"{name}: {what}" if first else what, 70, break_on_hyphens=False))
        right.append(outcome)
        if first and y:
            axes.axhline(y - 0.5, color="#888888", linewidth=0.5)
    axes.axvline(0, color="0.3", linewidth=1)
    axes.set_yticks(range(len(rows)), left, fontsize=8)
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlim=(low, high), xlabel="score; decades where it says log10")
    axes.secondary_yaxis("right").set_yticks(range(len(rows)), right, fontsize=8)
    told = "Effects by figure, with their 95 % intervals; green: where the paper's claim wants them"
    figure.suptitle(told, fontsize=12, x=0.01, ha="left")
    figure.savefig(out, dpi=110)


def described(what: Picture) -> str:
    """What its lines show."""
    return what.shows.replace(MEAN, "Geometric " + MEAN.lower()) if what.log_y else what.shows


def _draw_panels(figure: Any, picture: Picture, columns: int) -> None:
    from matplotlib.ticker import EngFormatter, NullLocator

    every = [line for lines in picture.panels.values() for line in lines]
    colours = plots.colours(list(dict.fromkeys(line.label for line in every if line.kind != "theory")))
    axes = None
    for index, (title, lines) in enumerate(picture.panels.items()):
        shared = {"sharex": axes, "sharey": None if picture.own_y else axes}
        axes = figure.add_subplot(-(-len(picture.panels) // columns), columns, index + 1, **shared)
        for line in lines:
            _draw_line(axes, line, colours.get(line.label, "black"), picture.log_y)
        axes.set_title(textwrap.fill(title, 34), fontsize=11)
        axes.set_xlabel(picture.x_label if index + columns >= len(picture.panels) else "")
        axes.set_ylabel(picture.y_label if index % columns == 0 else "")
        # With nothing to draw yet, a logarithmic axis has no limits.
        logarithmic = picture.log_x and any(np.any(line.x > 0) for line in lines)
        if logarithmic:
            axes.set_xscale("log")
        if lines and all(line.kind.endswith("points") for line in lines):
            ticks = sorted({x for line in lines for x in line.x})
            axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
            axes.xaxis.set_minor_locator(NullLocator())
        elif not logarithmic:
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        if picture.log_y:
            axes.set_yscale("log")
            axes.set_ylim(bottom=max(axes.get_ylim()[0], SMALLEST))
        for mark in picture.marks:
            axes.axvline(mark, color="#888888", linewidth=1, linestyle=":")
        axes.grid(linewidth=0.5, alpha=0.35)


def _draw_title(figure: Any, title: str, columns: int) -> None:
    """And the legend: at the right of one panel, else below the title, whose place it then takes."""
    entries = [axes.get_legend_handles_labels() for axes in figure.axes]
    named = {text: handle for handles, texts in entries for handle, text in zip(handles, texts, strict=True)}
    legend = partial(figure.legend, named.values(), named.keys(), frameon=False, fontsize=10)
    if columns > 1 and len(named) > 1:
        shown = legend(title=title, title_fontsize=12, alignment="left", loc="outside upper left", ncols=columns)
        shown.get_title().set_parse_math(False)
        return
    if columns == 1:
        legend(loc="outside right center")
    figure.suptitle(title, fontsize=12, x=0.01, ha="left", parse_math=False)


def _draw_line(axes: Any, line: Line, colour: Any, log_y: bool) -> None:
    """Draws the mean over seeds with its 95 % interval, the geometric one on a logarithmic axis."""
    if line.kind == "dots":
        x = np.broadcast_to(line.x[:, None] if line.x.ndim == 1 else line.x, line.y.shape)
        axes.scatter(x, line.y, s=12, color=colour, alpha=0.35, linewidths=0, label=line.label)
        return
    if line.kind.startswith("interval"):
        mean, low, high = line.y.T
    else:
        mean, width = mean_and_ci(np.log10(np.maximum(line.y, SMALLEST)) if log_y else line.y)
        mean, low, high = (10**x if log_y else x for x in (mean, mean - width, mean + width))
    if line.kind == "theory":
        axes.plot(line.x, mean, color="black", linewidth=1, linestyle="--", label=line.label)
    elif line.kind.endswith("points"):
        width = np.maximum([mean - low, high - mean], 0) if line.y.shape[1] > 1 else None
        axes.errorbar(line.x, mean, width, color=colour, linewidth=1.7, marker="o", capsize=3, label=line.label)
    else:
        axes.plot(line.x, mean, color=colour, linewidth=1.7, label=line.label)
        axes.fill_between(line.x, low, high, color=colour, alpha=0.18, linewidth=0)
