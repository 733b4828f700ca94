"""Measures the network, and maps the observations, on what a finished run's policy meets (Mayor et al. 2025, appendix
B). Every run gives equally many transitions, because the measurements depend on their count."""

import functools
import importlib
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from common import metrics
from common.run.arguments import read_record, typed
from experiments.data import Data
from experiments.grid import Cell

MEASURED = 2048  # transitions per seed for the measurements
SHOWN = 512  # how many of their observations the map shows
GRID = 32  # cells along each axis


class Coverage(NamedTuple):
    points: dict[Any, np.ndarray]  # by (what varies, game): [seeds * SHOWN, 2]
    shares: dict[Any, np.ndarray]  # visited share of all cells: [seeds]
    how: str


def coverage(d: Data, cells: dict[Any, Cell], games: Sequence[str]) -> Coverage:
    """Maps all runs of a game into one plane, cut into one grid."""
    umap = importlib.util.find_spec("umap") is not None
    points, shares = {}, {}
    for game in games:
        runs = {key: run for key, run in cells.items() if key[1] == game and d.diverged(run) is not None}
        planes = together(d.folder, tuple(dict.fromkeys(runs.values())), umap) if runs else {}
        for key, run in runs.items():
            plane, cell = planes[run.name]
            points[key] = plane.reshape(-1, 2)
            shares[key] = np.array([len(np.unique(seed, axis=0)) / GRID**2 for seed in cell])
    method = "UMAP" if umap else "principal components in place of UMAP, which is not installed"
    return Coverage(points, shares, f"by {method} of {SHOWN} observations of each seed's final policy")


@functools.cache
def together(folder: Path, runs: tuple[Cell, ...], umap: bool) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Maps observations of several runs into one plane. -> by name: points and their cells, [seeds, SHOWN, 2] each."""
    seen = [observations(folder, run) for run in runs]  # [seeds, SHOWN, features]
    plane = in_a_plane(np.concatenate([x.reshape(-1, x.shape[-1]) for x in seen]).astype(np.float32), umap)
    low, high = plane.min(0), plane.max(0)
    cell = np.minimum((plane - low) / np.where(high > low, high - low, 1) * GRID, GRID - 1).astype(int)
    found, begin = {}, 0
    for run, x in zip(runs, seen, strict=True):
        own = slice(begin, begin + x.shape[0] * x.shape[1])
        found[run.name] = tuple(y[own].reshape(*x.shape[:2], 2) for y in (plane, cell))
        begin = own.stop
    return found


def in_a_plane(x: np.ndarray, umap: bool) -> np.ndarray:
    """Projects x into a plane. [n, features] -> [n, 2]."""
    if not umap:
        return np.asarray(metrics.pca(x))
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from umap import UMAP

        return UMAP(random_state=0).fit_transform(x)


def observations(folder: Path, run: Cell) -> np.ndarray:
    """Returns SHOWN observations of each seed of a finished run, [seeds, SHOWN, features]."""
    file = folder / run.name / f"visited-{SHOWN}.npy"
    if not file.exists():
        collect(folder, run)
    return np.load(file)


def measurements(folder: Path, run: Cell) -> dict[str, np.ndarray]:
    """Returns `plasticity/...` of a finished run on MEASURED transitions, [seeds] each."""
    file = folder / run.name / f"measured-{MEASURED}.json"
    if not file.exists():
        collect(folder, run)
    return {key: np.array(values, np.float64) for key, values in json.loads(file.read_text()).items()}


def collect(folder: Path, run: Cell) -> None:
    """Continues the run at a learning rate of almost nothing, and saves observations from what updates measure on, and
    the measurements, in its folder. The grid names the script: nothing in a run's folder is ever executed."""
    import jax

    from common import bits
    from common.run.checkpoints import checkpoint_updates, restore_newest

    path = folder / run.name
    script = importlib.import_module(run.script)
    frozen = {"learning_rate": 1e-30, "update_epochs": 1, "plasticity_every": 1}
    saved = typed(script.Args, read_record(path, "run")["args"], f"run {path}")
    args, _, _, init, step, measure, keys = script.build(script.Args(**(saved | frozen)))
    updates = checkpoint_updates(path / "checkpoints")
    state, _ = restore_newest(path, updates, init(keys), f"run {path}", partial=False)
    samples, count, axis = [], 0, int(args.num_seeds > 1)
    while count < MEASURED:
        state, _, sample = step(state)
        rows = jax.tree.map(
            lambda x: x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :]), jax.device_get(sample.batch)
        )
        samples.append(rows)  # [(seeds,) n, ...] of all chunks and devices
        count += rows.target.shape[axis]
    order = np.random.default_rng(0).permutation(count)[:MEASURED]  # from all updates alike
    whole = jax.tree.map(lambda *x: np.concatenate(x, axis).take(order, axis), *samples)
    sample = sample._replace(batch=jax.tree.map(lambda x: np.expand_dims(x, axis), whole))
    values = jax.device_get(measure(state.learner, sample))
    obs = jax.vmap(bits.unpack)(whole.obs) if axis else bits.unpack(whole.obs)[None]
    seen = np.asarray(obs[:, :SHOWN].reshape(obs.shape[0], SHOWN, -1))
    write(path / f"visited-{SHOWN}.npy", lambda file: np.save(file, seen))
    text = json.dumps({key: np.atleast_1d(value).astype(float).tolist() for key, value in values.items()})
    write(path / f"measured-{MEASURED}.json", lambda file: file.write(text.encode()))


def write(path: Path, fill: Any) -> None:
    part = path.with_suffix(".part")
    with open(part, "wb") as file:
        fill(file)
    part.replace(path)
