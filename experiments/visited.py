"""Measures the network, and maps the observations, on what a finished run's policies meet (Mayor et al. 2025, appendix
B). Every run gives equally many transitions, because the measurements depend on their count. The network is that of the
end, the observations are of the whole training."""

import functools
import importlib
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from common import arrays, envs
from common.run.arguments import UsageError, read_record, typed
from common.run.checkpoints import checkpoint_updates, restore_newest
from common.run.folder import write_atomically
from experiments.data import Data
from experiments.grid import Cell

CHECKPOINTS = 8  # of each run, evenly spread; the last is its end
MEASURED = 2048  # transitions per seed that are collected with a policy; the measurements are made on them
SPREAD = 32  # measured is one of so many transitions: neighbours are alike, and few environments have more of them
SHOWN = 512  # observations per seed on the map, equally many from each policy
GRID = 32  # cells along each axis


def coverage(d: Data, cells: dict[Any, tuple[Cell, ...]]) -> tuple[dict[Any, np.ndarray], ...]:
    """Maps all finished runs of a game into one plane, cut into one grid. -> by (key, number of the game): the points,
    [seeds * SHOWN, 2], and the visited share of all cells, [seeds]"""
    points, shares = {}, {}
    for game in range(len(next(iter(cells.values())))):
        runs = {key: arm[game] for key, arm in cells.items() if d.finished(arm[game])}
        planes = together(d.folder, tuple(dict.fromkeys(runs.values()))) if runs else {}
        for key, run in runs.items():
            plane, cell = planes[run.name]
            points[key, game] = plane.reshape(-1, 2)
            shares[key, game] = np.array([len(np.unique(seed, axis=0)) / GRID**2 for seed in cell])
    return points, shares


@functools.cache
def together(folder: Path, runs: tuple[Cell, ...]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Maps observations of several runs into one plane. -> by name: points and their cells, [seeds, SHOWN, 2] each."""
    seen = [observations(folder, run) for run in runs]  # [seeds, SHOWN, features]
    plane = in_a_plane(np.concatenate([x.reshape(-1, x.shape[-1]) for x in seen]).astype(np.float32))
    low, high = plane.min(0), plane.max(0)
    cell = np.minimum((plane - low) / np.where(high > low, high - low, 1) * GRID, GRID - 1).astype(int)
    ends = np.cumsum([len(x) * x.shape[1] for x in seen])[:-1]
    parts = zip(runs, seen, np.split(plane, ends), np.split(cell, ends), strict=True)
    return {run.name: tuple(y.reshape(*x.shape[:2], 2) for y in of) for run, x, *of in parts}


def umap() -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):
            return importlib.import_module("umap")
    except ImportError:
        raise UsageError("maps of observations need umap; pip install -r requirements-figures.txt") from None


def in_a_plane(x: np.ndarray) -> np.ndarray:
    """Projects x into a plane. [n, features] -> [n, 2]."""
    with warnings.catch_warnings(action="ignore"):
        return umap().UMAP(random_state=0).fit_transform(x)


def observations(folder: Path, run: Cell) -> np.ndarray:
    """Returns SHOWN observations of each seed of a finished run, equally many from each of CHECKPOINTS policies that
    are spread over its training. Collects them at the first call. [seeds, SHOWN, features]."""
    if run.parts:
        return np.concatenate([observations(folder, part) for part in run.parts])
    file = folder / run.name / f"visited-{CHECKPOINTS}x{SHOWN // CHECKPOINTS}.npy"
    if not file.exists():
        policies, seen = Policies(folder, run), []
        for update in spread(policies.updates, run, policies.where):
            batch = policies.play(update, MEASURED)[1].batch
            obs = jax.vmap(arrays.unpack)(batch.obs) if policies.axis else arrays.unpack(batch.obs)[None]
            seen.append(np.asarray(obs[:, : SHOWN // CHECKPOINTS]))
        found = np.concatenate(seen, axis=1)
        np.save(part := file.with_suffix(".part.npy"), found.reshape(*found.shape[:2], -1))
        part.replace(file)
    return np.load(file)


def spread(updates: Sequence[int], run: Cell, where: str) -> list[int]:
    """Returns the checkpoints nearest to the ends of CHECKPOINTS equal parts of the run."""
    ends = [part * run.num_updates / CHECKPOINTS for part in range(1, CHECKPOINTS + 1)]
    chosen = [min(updates, key=lambda update: abs(update - end)) for end in ends]
    if max(abs(update - end) for update, end in zip(chosen, ends, strict=True)) > ends[0] / 2:
        there = ", ".join(map(str, updates))
        raise UsageError(f"{where}: needs checkpoints spread over its {run.num_updates} updates; there are {there}")
    return chosen


def measurements(folder: Path, run: Cell) -> dict[str, np.ndarray]:
    """Returns `plasticity/...` of a finished run's final network on MEASURED transitions, [seeds] each."""
    if run.parts:
        found = [measurements(folder, part) for part in run.parts]
        return {key: np.concatenate([one[key] for one in found]) for key in found[0]}
    file = folder / run.name / f"measured-{MEASURED}-of-{SPREAD * MEASURED}.json"
    if not file.exists():
        policies = Policies(folder, run)
        state, sample = policies.play(policies.updates[-1], SPREAD * MEASURED)
        sample = sample._replace(batch=jax.tree.map(lambda x: np.expand_dims(x, policies.axis), sample.batch))
        values = jax.device_get(policies.measure(state.learner, sample))
        text = json.dumps({key: np.atleast_1d(value).astype(float).tolist() for key, value in values.items()})
        write_atomically(file, text)
    return {key: np.array(values, np.float64) for key, values in json.loads(file.read_text()).items()}


class Policies:
    """The policies in a run's checkpoints. The grid names the script: nothing in a run's folder is ever executed."""

    def __init__(self, folder: Path, run: Cell):
        self.path, self.where = folder / run.name, f"run {folder / run.name}"
        script = importlib.import_module(run.script)
        frozen = {"learning_rate": 1e-30, "update_epochs": 1, "plasticity_every": 1}
        saved = typed(script.Args, read_record(self.path, "run")["args"], self.where)
        args, _, _, init, self._step, self.measure, keys = script.build(script.Args(**(saved | frozen)))
        self._like = init(keys)
        self._on_host = envs.on_host(args.env_id)
        self.axis = int(args.num_seeds > 1)  # of the transitions
        self.updates = checkpoint_updates(self.path / "checkpoints")
        if not self.updates:
            raise UsageError(f"{self.where}: has no checkpoint to measure")

    def play(self, update: int, played: int) -> tuple[Any, Any]:
        """Continues the run from a checkpoint at a learning rate of almost nothing. -> state, and as `sample.batch`
        MEASURED random ones of the next `played` transitions or more, [(seeds,) MEASURED, ...] of all chunks and
        devices. Games on the host cannot be restored: there they begin anew, and a later policy goes on with those of
        the one before."""
        state, _ = restore_newest(self.path, [update], self._like, self.where, partial=False)
        if self._on_host:
            state = state._replace(environments=jax.tree.map(jnp.copy, self._like.environments))
        learner = jax.device_get(state.learner)  # the statistics of --norm-obs would move with what is played
        samples, count, axis = [], 0, self.axis
        of_all_devices = lambda x: x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])  # noqa: E731
        while count < played:
            state, _, sample = self._step(state)
            state = state._replace(learner=jax.device_put(learner, jax.tree.map(lambda x: x.sharding, state.learner)))
            rows = jax.tree.map(of_all_devices, jax.device_get(sample.batch))
            samples.append(rows)
            count += rows.target.shape[axis]
        if self._on_host:
            self._like = self._like._replace(environments=jax.tree.map(jnp.copy, state.environments))
        order = np.random.default_rng(0).permutation(count)[:MEASURED]  # from all updates alike
        batch = jax.tree.map(lambda *x: np.concatenate(x, axis).take(order, axis), *samples)
        return state, sample._replace(batch=batch)
