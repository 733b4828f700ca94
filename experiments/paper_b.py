"""Turns runs into pictures and checks of the figures in Mayor et al. 2025 (https://arxiv.org/abs/2506.03404)."""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from common.run import plots
from experiments import pictures, scores, visited
from experiments.data import Data, Figure, register
from experiments.paper_b_runs import (
    Cells,
    Preset,
    encoder_cells,
    gamma_cells,
    many_cells,
    minibatch,
    more_data_cells,
    network_cells,
    other_cells,
    pqn_cells,
    rate_cells,
    reuse_cells,
    robot_cells,
    same_data_cells,
)
from experiments.pictures import Line, Picture
from experiments.verdicts import Check

CITATION = "Mayor et al. 2025"
LITTLE = 0.1  # of the way from a random policy to the reference; less does not count as a difference
POINTS = 33  # times on a curve over all games; the first, step 0, is left out
STEPS, ENVS, IQM = "environment steps", "parallel environments (--num-envs)", "normalised interquartile mean return"
SHOWS = "Interquartile mean over games and seeds of the normalised return with its 95 % stratified bootstrap interval"
SMOOTHED = f"{SHOWS}, running mean over at most a thirtieth of the run"
METRICS = {
    "charts/episodic_return": "episode return",
    "plasticity/feature_rank": "feature rank",
    "plasticity/dormant_neurons": "dormant neurons (share)",
    "plasticity/weight_norm": "weight norm",
    "plasticity/gradient_kurtosis": "gradient kurtosis",
    "plasticity/policy_variance": "policy variance",
    "plasticity/effective_sample_size": "effective sample size (%)",
}
NETWORK = {  # the measurements of figures 3 and 6, and which way more environments move them
    "plasticity/feature_rank": "higher",
    "plasticity/dormant_neurons": "lower",
    "plasticity/weight_norm": "lower",
    "plasticity/gradient_kurtosis": "lower",
}
POLICY = {"plasticity/policy_variance": "lower", "plasticity/effective_sample_size": "higher"}  # of figure 4

FACTORS = ("plasticity/feature_rank", "plasticity/weight_norm", "plasticity/gradient_kurtosis")

Shown = tuple[Picture, list[Check]]
FIGURES: dict[str, Figure] = {}
figure = partial(register, FIGURES, suite="Atari-10")


def by_game(cells: Cells, key: Any) -> dict[str, Any]:
    return {game: run for (k, game), run in cells.items() if k == key}


def keys(cells: Cells) -> list[Any]:
    return list(dict.fromkeys(key for key, _ in cells))


def final(d: Data, cells: Cells, key: Any) -> np.ndarray:
    """Collects the normalised returns of the last tenth of the runs. -> [seeds, games], NaN where a run is missing."""
    return matrix([d.final(run) for run in by_game(cells, key).values()])


def matrix(columns: Sequence[np.ndarray]) -> np.ndarray:
    seeds = max(map(len, columns))
    return np.stack([c if len(c) == seeds else np.full(seeds, np.nan) for c in columns], axis=1)


def measured(d: Data, cells: Cells, key: Any, metric: str) -> np.ndarray:
    """Returns a measurement of the final network on equally many transitions of every run, unlike its updates. For the
    effective sample size, it is the logged mean over the last half. log10 if values differ by factors.
    -> [seeds, games]."""
    columns = []
    for run in by_game(cells, key).values():
        if d.diverged(run) is None:
            columns.append(np.full(1, np.nan))
        elif metric == "plasticity/effective_sample_size":
            columns.append(plots.mean_and_ci(d.part(run, metric, 0.5, 1.0).T)[0])
        else:
            columns.append(visited.measurements(d.folder, run)[metric])
    values = matrix(columns)
    return np.log10(values) if metric in FACTORS else values


def iqm_curve(d: Data, cells: Cells, key: Any, label: str) -> list[Line]:
    """Draws the interquartile mean over games and seeds, at common steps. No line if a run is missing."""
    runs = by_game(cells, key).values()
    if any(d.diverged(run) is None for run in runs):
        return []
    total = dict(next(iter(runs)).flags)["total_timesteps"]
    x = np.linspace(0, total, POINTS)[1:]
    columns = []
    for run in runs:
        low, high = d.p.scale(run)
        steps, y = d.curve(run, d.p.performance)
        at = [resampled(x, steps, seed) for seed in y.T]
        values = (np.array(at) - low) / (high - low)  # [seeds, T]
        diverged = np.stack([d.diverged(run, t / total) for t in x], axis=1)
        columns.append(np.where(diverged, 0.0, values))
    values = np.stack(columns, axis=1)  # [seeds, games, T]
    estimate, low, high = scores.bootstrap(over_time, values)
    return [Line(label, x, np.stack([estimate, low, high], axis=1), "interval")]


def resampled(x: np.ndarray, steps: np.ndarray, y: np.ndarray) -> np.ndarray:
    known = ~np.isnan(y)
    return np.interp(x, steps[known], y[known]) if known.any() else np.full(len(x), np.nan)


def over_time(values: np.ndarray) -> np.ndarray:
    """Aggregates over seeds and games. [seeds, games, T] -> [T]."""
    return scores.aggregate(values.reshape(-1, values.shape[-1]), axis=0)


def iqm_curves(d: Data, cells: Cells, names: dict[Any, str], palette: Sequence[str] = ()) -> Picture:
    lines = [line for key, label in names.items() for line in iqm_curve(d, cells, key, label)]
    return Picture({"": lines}, STEPS, IQM, shows=SMOOTHED, palette=palette)


def iqm_points(d: Data, cells: Cells, label: str, x: Sequence[float], names: Sequence[Any]) -> Line:
    found = np.array([scores.iqm(final(d, cells, key)) for key in names])
    return Line(label, np.array(x, np.float64), found, "interval points")


def size(p: Preset, n: float = 1, k: float = 1, script: str = "ppo") -> str:
    base = p.base if script == "ppo" else p.pqn
    return f"N {round(n * base['num_envs'])}, K {round(k * base['num_steps'])}"


# The figures: each function turns runs into a picture and the checks of its claim.


@figure(
    "B1a",
    title="The same data from more environments or longer rollouts",
    claim="With as many transitions per update, more environments are better than longer rollouts.",
    cells=same_data_cells,
)
def show_same_data(d: Data, cells: Cells) -> Shown:
    (envs, steps), base = d.p.flat, (d.p.base["num_envs"], d.p.base["num_steps"])
    names = {"base": f"N {base[0]}, K {base[1]}", "flat": f"N {envs}, K {steps}"}
    what = f"final score, {names['flat']} less {names['base']}"
    checks = [scores.better(what, final(d, cells, "flat"), final(d, cells, "base"), above=0.0)]
    if d.p.with_pqn:
        names |= {("pqn", key): f"PQN, {label}" for key, label in names.items()}
        found = (final(d, cells, ("pqn", key)) for key in ("flat", "base"))
        checks += [scores.better(f"PQN: {what}", *found)]
    return iqm_curves(d, cells, names), checks


@figure(
    "B1b",
    title="More data per update",
    claim="More environments and longer rollouts both help, more environments more.",
    cells=more_data_cells,
)
@figure(
    "B7",
    title="More data per update on another suite",
    claim="On Procgen, too, more environments and longer rollouts both help, more environments more.",
    cells=other_cells,
    suite="Procgen",
)
@figure(
    "B8",
    title="More data per update in control of robots",
    claim="In control of robots, too, more environments and longer rollouts both help, more environments more.",
    cells=robot_cells,
    suite="Isaac Gym",
    lacking=True,
)
def show_more_data(d: Data, cells: Cells) -> Shown:
    flags = {key: dict(run.flags) for (key, _), run in cells.items()}
    names = {key: f"N {of['num_envs']}, K {of['num_steps']}" for key, of in flags.items()}
    most = d.p.factors[-1]
    envs, steps, base = (final(d, cells, key) for key in ((most, 1), (1, most), (1, 1)))
    checks = [
        scores.better(f"final score, N × {most} less the base", envs, base, above=0.0),
        scores.better(f"final score, K × {most} less the base", steps, base, above=0.0),
        scores.better(f"final score, N × {most} less K × {most}", envs, steps, above=0.0),
    ]
    palette = [
        size(d.p, n, k) for n, k in ((1, 1), (2, 1), (4, 1), (1, 2), (1, 4))
    ]  # some presets lack the second and fourth
    return iqm_curves(d, cells, names, palette), checks


@figure(
    "B1c",
    title="More epochs",
    claim="More epochs hurt; more environments make up for it.",
    cells=reuse_cells,
)
def show_reuse(d: Data, cells: Cells) -> Shown:
    epochs, base = (1, *d.p.factors), d.p.base["update_epochs"]
    panels = {}
    for n, k in d.p.reuse:
        lines = [line for e in epochs for line in iqm_curve(d, cells, (e, n, k), f"--update-epochs {e * base}")]
        panels[size(d.p, n, k)] = lines
    few, most, c = epochs[1], epochs[-1], d.p.factor
    plain = final(d, cells, (1, 1, 1))
    checks = [
        scores.better(f"final score, the base less E × {most}", plain, final(d, cells, (most, 1, 1)), above=0.0),
        scores.better(
            f"final score at E × {most}, N × {c} less the base N",
            final(d, cells, (most, c, 1)), final(d, cells, (most, 1, 1)), above=0.0,
        ),
        scores.better(
            f"final score, E × {few} and N × {c} less the base", final(d, cells, (few, c, 1)), plain, above=-LITTLE
        ),
    ]  # fmt: skip
    return Picture(panels, STEPS, IQM, shows=SMOOTHED), checks


def metric_panels(
    d: Data, cells: Cells, names: dict[Any, str], metrics: Sequence[str], games: Sequence[str]
) -> Picture:
    """Draws measurements over time, a panel for each and, of several games, for each game, side by side."""
    panels = {}
    for metric, game in itertools.product(metrics, games):
        lines = [Line(label, *d.curve(cells[key, game], metric)) for key, label in names.items()]
        title = METRICS[metric] + f", {game.removesuffix('-MinAtar')}" * (len(games) > 1)
        panels[title] = [line for line in lines if len(line.x)]
    shows = "Mean and 95 % interval over seeds, running mean over at most a thirtieth of the run"
    shows = f"Shown: {', '.join(games)}. {shows}"
    shows += ". As logged: each line on as many transitions as its updates have, at most 2,048"
    columns = min(len(games), pictures.COLUMNS) if len(games) > 1 else pictures.COLUMNS
    return Picture(panels, STEPS, "", shows=shows, own_y=True, columns=columns)


def moved(d: Data, cells: Cells, metric: str, way: str, what: str, key: Any) -> Check:
    """Checks that a measurement is higher, or lower, than the base's."""
    return compared(d, cells, metric, what, key, (1, 1), **({"above": 0.0} if way == "higher" else {"below": 0.0}))


def compared(d: Data, cells: Cells, metric: str, what: str, one: Any, other: Any, **wanted: float) -> Check:
    name = f"log10 of {METRICS[metric]}" if metric in FACTORS else METRICS[metric]
    values = (measured(d, cells, key, metric) for key in (one, other))
    return scores.higher(f"{name}, {what}, mean over games", *values, **wanted)


def moved_by_envs(d: Data, cells: Cells, metrics: dict[str, str]) -> list[Check]:
    """Checks that more environments move measurements as claimed in both ways of having them: the paper's, whose
    minibatches grow, so that gradient steps get fewer, and the control, which has as many of them as the base. What
    only the first does, or both in opposite directions, is not due to the environments. Longer rollouts are reported.
    """
    most = d.p.factors[-1]
    ways = {
        f"N × {most} less the base": (most, 1),
        f"N × {most} with the base's minibatches less it": ("control", most),
    }
    checks = [moved(d, cells, m, way, what, key) for m, way in metrics.items() for what, key in ways.items()]
    return checks + [compared(d, cells, m, f"K × {most} less the base", (1, most), (1, 1)) for m in metrics]


def network_lines(p: Preset) -> dict[Any, str]:
    """Labels the base, more environments, longer rollouts, and more environments without fewer gradient steps."""
    most = p.factors[-1]
    names = {key: size(p, *key) for key in ((1, 1), (most, 1), (1, most))}
    return names | {("control", most): f"{size(p, most)}, minibatches of {minibatch(p)}"}


def of_network(name: str, **how: Any) -> Any:
    """Returns a decorator for figure 3, which shows one game, and figure 10, the same of the others."""
    return figure(
        name,
        claim=(
            "More environments go with a higher feature rank, fewer dormant neurons, a smaller weight norm and a "
            "lower gradient kurtosis."
        ),
        cells=network_cells,
        **how,
    )


@of_network("B3", title="Network and gradient", games=slice(1))
@of_network("B10", title="Network and gradient in the other games", games=slice(1, None), repeats="B3")
def show_network(d: Data, cells: Cells, games: slice) -> Shown:
    picture = metric_panels(d, cells, network_lines(d.p), [d.p.performance, *NETWORK], d.p.games[games])
    return picture, moved_by_envs(d, cells, NETWORK)


@figure(
    "B4",
    title="Policy variance and effective sample size",
    claim="More environments go with a lower policy variance and a higher effective sample size.",
    cells=network_cells,
)
def show_policy(d: Data, cells: Cells) -> Shown:
    picture = metric_panels(d, cells, network_lines(d.p), list(POLICY), d.p.games[:1])
    return picture, moved_by_envs(d, cells, POLICY)


@figure(
    "B5",
    title="Shared and separate encoders",
    claim="With encoders of their own, actor and critic gain more from more environments.",
    cells=encoder_cells,
)
def show_encoders(d: Data, cells: Cells) -> Shown:
    c = d.p.factor
    words = {True: "shared", False: "separate"}
    names = {(s, f): f"{words[s]} encoder, {size(d.p, f)}" for s in words for f in (1, c)}

    def gain(separate: Any, separate_base: Any, shared: Any, shared_base: Any) -> float:
        iqm = scores.aggregate
        return (iqm(separate) - iqm(separate_base)) - (iqm(shared) - iqm(shared_base))

    what = f"gain in the final score by N × {c}, separate less shared encoders"
    order = ((False, c), (False, 1), (True, c), (True, 1))
    matrices = (final(d, cells, key) for key in order)
    how = "of interquartile means: (first less second) less (third less fourth)"
    check = scores.contrast(what, gain, *matrices, how=how, above=0.0)
    return iqm_curves(d, cells, names), [check]


def of_pqn(name: str, **how: Any) -> Any:
    """Returns a decorator for figure 6, which shows one game, and figure 13, the same of the others."""
    claim = "More environments do little for PQN's return, and move some of the measurements as they move PPO's."
    return figure(name, claim=claim, cells=pqn_cells, **how)


@of_pqn("B6", title="PQN", games=slice(1))
@of_pqn("B13", title="PQN in the other games", games=slice(1, None), repeats="B6")
def show_pqn(d: Data, cells: Cells, games: slice) -> Shown:
    """Checks that the return changes little, and that two or more of four measurements move as PPO's do and none the
    other way: one often moves by chance, and the paper tells of improvements only."""
    c = d.p.factor
    names = {key: size(d.p, *key, script="pqn") for key in keys(cells)}
    envs, base = final(d, cells, (c, 1)), final(d, cells, (1, 1))
    what = f"N × {c} less the base"
    moves = [moved(d, cells, metric, way, what, (c, 1))._replace(some=2) for metric, way in NETWORK.items()]
    checks = [
        scores.learned("final score, the base", base, LITTLE),
        scores.better(f"final score, {what}", envs, base, below=LITTLE),
        scores.better(f"final score, {what}", envs, base, above=-LITTLE),
        *moves,
    ]
    return metric_panels(d, cells, names, [d.p.performance, *NETWORK], d.p.games[games]), checks


@figure(
    "B11",
    title="Learning rate for more environments",
    claim=(
        "With more environments the same learning rate is about best; scaling it with N or with its root is no better."
    ),
    cells=rate_cells,
)
def show_rates(d: Data, cells: Cells) -> Shown:
    c = d.p.factor
    rate = d.p.base["learning_rate"]
    names = {(n, r): f"{size(d.p, n)}, --learning-rate {rate * r:g}" for n, r in keys(cells)}
    same = final(d, cells, (c, 1))
    checks = [scores.learned(f"final score at N × {c}, the same learning rate", same, LITTLE)]
    checks += [
        scores.better(
            f"final score at N × {c}, learning rate × {r:g} less the same", final(d, cells, (c, r)), same, below=LITTLE
        )
        for r in (c**0.5, c)
    ]
    return iqm_curves(d, cells, names), checks


@figure(
    "B12",
    title="Discount factor",
    claim="The gain from more environments is there for other discount factors, too.",
    cells=gamma_cells,
)
def show_gammas(d: Data, cells: Cells) -> Shown:
    """Supposes the gain at the base's discount factor, which is figure 1b's matter."""
    c = d.p.factor
    lines = [iqm_points(d, cells, size(d.p, f), d.p.gammas, [(g, f) for g in d.p.gammas]) for f in (1, c)]
    checks = [
        scores.better(f"final score at γ {g}, N × {c} less the base N", many, few, above=0.0)._replace(
            premise=g == d.p.base["gamma"]
        )
        for g in d.p.gammas
        for many, few in [(final(d, cells, (g, c)), final(d, cells, (g, 1)))]
    ]
    return Picture({"": lines}, "discount factor (--gamma)", f"final {IQM}", shows=SHOWS), checks


@figure(
    "BN",
    title="Performance against the number of environments",
    claim="At a fixed number of environment steps, the performance rises with the number of environments.",
    cells=many_cells,
)
def show_many(d: Data, cells: Cells) -> Shown:
    """Plots performance against N at a fixed count of environment steps."""
    factors = d.p.many_factors
    x = [f * d.p.base["num_envs"] for f in factors]
    words = {
        "larger": f"{d.p.base['num_minibatches']} minibatches, which grow (the paper)",
        "more": "more minibatches of the same size",
    }
    lines = [iqm_points(d, cells, label, x, [(how, f) for f in factors]) for how, label in words.items()]
    base, half, most = final(d, cells, ("larger", 1)), factors[len(factors) // 2], factors[-1]
    checks = [  # the paper's way decides
        scores.better(f"final score, N × {f}, {how} minibatches, less the base", final(d, cells, (how, f)), base, above)
        for how, above in (("larger", 0.0), ("more", None))
        for f in (half, most)
    ]
    return Picture({"": lines}, ENVS, f"final {IQM}", log_x=True, shows=SHOWS), checks


@figure(
    "B2",
    title="Visited observations",
    claim="More environments visit more of the observations, longer rollouts do not so much.",
    cells=more_data_cells,
)
def show_visited(d: Data, cells: Cells) -> Shown:
    """Shows which observations different N and K lead to, all in one plane."""
    game, most = d.p.games[0], d.p.factors[-1]
    shown = ((1, 1), (1, most), (most, 1))
    found = visited.coverage(d, cells, d.p.games)
    panels = {}
    for key in shown:
        points, share = found.points.get((key, game)), found.shares.get((key, game))
        if points is not None:
            title = f"{size(d.p, *key)}: a seed covers {100 * share.mean():.1f} %"
            panels[title] = [Line("visited", points[:, 0], points[:, 1:], "dots")]
    shows = f"Shown: {game}, all seeds, {found.how}"
    picture = Picture(panels or {"": []}, "first axis", "second axis", shows=shows)
    return picture, coverage_checks(d, cells, found)


@figure(
    "B9",
    title="Coverage of the observations",
    claim="The more environments, the more of the observations are visited.",
    cells=more_data_cells,
    repeats="B2",
)
def show_coverage(d: Data, cells: Cells) -> Shown:
    """Plots the share of visited cells against N and K."""
    found = visited.coverage(d, cells, d.p.games)
    factors = (1, *d.p.factors)
    panels = {}
    for game in d.p.games:
        lines = []
        for label, order in (("N × factor", [(f, 1) for f in factors]), ("K × factor", [(1, f) for f in factors])):
            y = [found.shares.get((key, game)) for key in order]
            if all(share is not None for share in y):
                lines.append(Line(label, np.array(factors, np.float64), np.array(y), "points"))
        panels[game] = lines
    shows = f"Mean and 95 % interval over seeds, {found.how}"
    picture = Picture(panels, "factor", "share of cells visited", log_x=True, shows=shows)
    return picture, coverage_checks(d, cells, found)


def coverage_checks(d: Data, cells: Cells, found: visited.Coverage) -> list[Check]:
    most = d.p.factors[-1]
    envs, steps, base = (
        matrix([found.shares.get((key, game), np.full(1, np.nan)) for game in d.p.games])
        for key in ((most, 1), (1, most), (1, 1))
    )
    return [
        scores.higher(f"coverage, N × {most} less the base, mean over games", envs, base, above=0.0),
        scores.higher(f"coverage, N × {most} less K × {most}, mean over games", envs, steps, above=0.0),
    ]
