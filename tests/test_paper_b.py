"""Paper B's figures, and those of paper A that need a GPU, on made-up runs: in one world the claims are true, in
another one all runs are alike."""

import functools
from pathlib import Path

import numpy as np
import pytest

import figures
from experiments import effects, paper_a_gpu, paper_b, pictures, visited
from experiments.data import Data, each, together
from experiments.effects import verdict

NOISE = np.array([-0.02, -0.01, 0.0, 0.01, 0.02])
PRESET = {name: "laptop" if "laptop" in figure.presets else "gpu" for name, figure in figures.FIGURES.items()}
OF_B = [name for name in paper_b.FIGURES if name not in ("B2", "B9")]


@pytest.fixture(autouse=True)
def few_repetitions(monkeypatch):
    monkeypatch.setattr(effects, "REPETITIONS", 200)


def base_of(cell):
    """The base's flags of the cell's figure."""
    flags = dict(cell.flags)
    if flags["env_id"].startswith("xmini"):
        return paper_b.DOORKEY
    if cell.script == "pqn":
        return paper_b.PQN
    if "norm_obs" in flags:
        return paper_b.PAPER | paper_b.ROBOTS
    return paper_b.PAPER | (paper_b.TUNED if flags.get("num_devices") else {})


def more_envs(cell):
    """As a power of two."""
    return np.log2(dict(cell.flags)["num_envs"] / base_of(cell)["num_envs"])


def score_of(cell, world):
    """With more environments it rises, with longer rollouts less so; with more epochs or a larger rate it falls."""
    flags, base, envs = dict(cell.flags), base_of(cell), more_envs(cell)
    if world == "flat" or cell.script == "pqn":
        return 0.5
    factor = lambda name: np.log2(flags.get(name, 1.0) / base.get(name, flags.get(name, 1.0)))  # noqa: E731
    score = 0.3 + 0.1 * envs + 0.04 * factor("num_steps") * (envs == 0) - 0.05 * factor("update_epochs")
    score -= 0 if flags.get("shared_encoder", True) or "norm_obs" in flags else 0.1 - 0.1 * envs
    return score - 0.02 * factor("learning_rate") * (envs > 0)


def metric_of(metric, cell, world):
    """A measurement: more environments move it as the paper says."""
    envs = more_envs(cell)
    way = {"above": 1, "below": -1}[(paper_b.NETWORK | paper_b.POLICY)[metric]]
    return 10.0 + way * envs * (world == "true")


def lines_of(p, cell, world, seeds):
    """40 lines of a run: its score is reached in the middle."""
    low, high = p.scale(cell)
    for i in range(1, 41):
        t, update = i / 40, round(i / 40 * cell.num_updates)
        score = score_of(cell, world) * min(1, 2 * t) + NOISE[seeds]
        flags = dict(cell.flags)
        line = {"update": update, "global_step": update * flags["num_envs"] * flags["num_steps"]}
        line |= {p.performance: (low + (high - low) * score).tolist(), "charts/num_episodes": [10] * len(NOISE[seeds])}
        line["outer/update_norm"] = [1.0] * len(NOISE[seeds])
        for metric in (*paper_b.NETWORK, *paper_b.POLICY):
            line[f"plasticity/{metric}"] = (metric_of(metric, cell, world) + NOISE[seeds]).tolist()
        yield line


@functools.cache
def world_of(name, world):
    """-> what all runs of a figure have logged in a world; of runs of one seed each, a key has no list of values."""
    p = figures.FIGURES[name].presets[PRESET[name]]
    data, of = Data(p, Path("/nowhere")), sfl_lines if name in paper_a_gpu.FIGURES else lines_of
    for run in {cell.name: cell for cell in each(figures.cells_of(name, PRESET[name]))}.values():
        parts = [list(of(p, run, world, slice(seed, seed + 1))) for seed in range(len(run.parts))]
        one = lambda x: x[0] if isinstance(x, list) else x  # noqa: E731
        parts = [[{k: one(v) for k, v in line.items()} for line in lines] for lines in parts]
        data._lines[run.name] = together(parts) if parts else list(of(p, run, world, slice(None)))
    return data


def measure(monkeypatch, world):
    """Measurements of finished runs are those of the model."""
    every = (*paper_b.NETWORK, "policy_variance")
    found = lambda folder, run: {f"plasticity/{m}": metric_of(m, run, world) + NOISE for m in every}  # noqa: E731
    monkeypatch.setattr(visited, "measurements", found)


def judged(name, world):
    data = world_of(name, world)
    shown, found = figures.FIGURES[name].show(data, figures.cells_of(name, PRESET[name]))
    return shown, found, "\n".join(map(str, found))


@pytest.mark.parametrize("name", OF_B)
def test_a_claim_holds_where_it_is_true_and_not_where_all_runs_are_alike(name, tmp_path, monkeypatch):
    """Claims that there is no difference hold there, too; what supposes a gain is not applicable or open."""
    measure(monkeypatch, "true")
    shown, found, text = judged(name, "true")
    assert verdict(found) == "holds", text
    assert all(lines for lines in shown.panels.values())
    if name in ("B1c", "B3", "BN"):  # intervals, panels with axes of their own, points with intervals
        pictures.save(shown, tmp_path / "a.png", "title", pictures.described(shown))
    measure(monkeypatch, "flat")
    _, found, text = judged(name, "flat")
    assert verdict(found) == ("holds" if name in ("B6", "B13", "B11") else "open"), text


@pytest.mark.parametrize("preset", ["laptop", "gpu", "paper"])
def test_every_game_has_a_scale_and_every_run_checkpoints_all_over(preset):
    """What is visited starts from these."""
    for name in (name for name, figure in paper_b.FIGURES.items() if preset in figure.presets):
        p = paper_b.FIGURES[name].presets[preset]
        for cell in each(figures.cells_of(name, preset)):
            low, high = p.scale(cell)
            assert low < high
            every = dict(cell.flags)["checkpoint_every"]
            there = [*range(0, cell.num_updates + 1, every)[1:], cell.num_updates]
            assert len(set(visited.spread(there, cell, "run"))) == 8


def test_coverage_is_compared_over_games(monkeypatch, tmp_path):
    """More environments visit more cells of the plane, longer rollouts as many as the base."""

    def seen(folder, run):
        flags = dict(run.flags)
        spots = 16 * flags["num_envs"] // 8
        return np.stack([np.arange(512) % spots, np.arange(512) % 7], axis=1)[None].repeat(3, 0).astype(float)

    monkeypatch.setattr(visited, "observations", seen)
    monkeypatch.setattr(visited, "in_a_plane", lambda x: x)
    monkeypatch.setattr(Data, "finished", lambda *_: True)
    cells, p = figures.cells_of("B2", "gpu"), paper_b.LARGE["gpu"]
    shown, found = figures.FIGURES["B2"].show(Data(p, tmp_path), cells)
    assert verdict(found) == "holds" and len(shown.panels) == 3, "\n".join(map(str, found))


def sfl_lines(p, cell, world, seeds):
    """Few environments stand still from the middle on, many climb; large minibatches end low."""
    flags = dict(cell.flags)
    last = getattr(p, "largest", 0)
    for i in range(1, 41):
        t, update = i / 40, round(i / 40 * cell.num_updates)
        line = {"update": update, "global_step": update * flags["num_envs"] * flags["num_steps"]}
        score, speed = min(2.5 * t, 1) * 0.3, 1000.0
        if cell.script != "sfl_kinetix":
            one, fixed = flags["num_blocks"] == 1, flags["minibatch_size"] == p.size
            score = (0.2 if one else 0.5) + (0.45 if one else 0.3) * fixed
        elif flags.get("num_minibatches", 0) in p.minibatches and flags["num_envs"] == last:
            few, middle, many = p.minibatches
            score = {few: 0.2 * t, middle: 0.6 * t**1.2, many: 0.6 * t}[flags["num_minibatches"]]
            speed = {few: 1100.0, middle: 1000.0, many: 300.0}[flags["num_minibatches"]]
        elif flags.get("com") or flags["learning_rate"] == paper_a_gpu.LOW_RATE:
            score = 0.4 * t + 0.02 * bool(flags.get("com"))
        elif flags["num_envs"] == 65536:
            score = 0.59 * t
        score, speed = (0.3, 1000.0) if world == "flat" else (score, speed)
        noise = NOISE[seeds] / 10
        low, high = p.scale(cell)
        line |= {p.performance: (low + (high - low) * (score + noise)).tolist(), "time": update / speed * 1000}
        line |= {paper_a_gpu.HAND_DESIGNED: (score + noise).tolist(), "charts/SPS": (speed + 100 * noise).tolist()}
        yield line | {"outer/update_norm": [1.0] * len(noise)}


@pytest.mark.parametrize("name", paper_a_gpu.FIGURES)
def test_a_claim_that_needs_a_gpu_holds_where_it_is_true_and_not_where_all_runs_are_alike(name):
    shown, found, text = judged(name, "true")
    assert verdict(found) == "holds" and all(shown.panels.values()), text
    _, found, text = judged(name, "flat")
    assert verdict(found) != "holds", text
