"""Which observations a policy visits at the end of its run: in a plane, by UMAP, and how much of it (Mayor et al. 2025,
appendix B.7)."""

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from common import metrics
from common.arguments import typed
from experiments.data import Data
from experiments.grid import Cell

NUMBER = 512  # observations of each seed: as many of every run, or more data would cover more by itself
GRID = 32  # cells along each axis


class Coverage(NamedTuple):
    points: dict[Any, np.ndarray]  # by (what varies, game): [seeds * NUMBER, 2]
    shares: dict[Any, np.ndarray]  # of the cells that there are: [seeds]
    how: str


def coverage(d: Data, cells: dict[Any, Cell], games: Sequence[str]) -> Coverage:
    """All runs of a game in one plane, cut into one grid."""
    umap = importlib.util.find_spec("umap") is not None
    points, shares = {}, {}
    for game in games:
        runs = {key: run for key, run in cells.items() if key[1] == game and d.diverged(run) is not None}
        seen = {key: observations(d.folder / run.name) for key, run in runs.items()}  # [seeds, NUMBER, features]
        if not seen:
            continue
        together = np.concatenate([x.reshape(-1, x.shape[-1]) for x in seen.values()]).astype(np.float32)
        plane = in_a_plane(together, umap)
        low, high = plane.min(0), plane.max(0)
        cell = np.minimum((plane - low) / np.where(high > low, high - low, 1) * GRID, GRID - 1).astype(int)
        begin = 0
        for key, x in seen.items():
            own = slice(begin, begin + x.shape[0] * x.shape[1])
            points[key] = plane[own]
            each = cell[own].reshape(x.shape[0], x.shape[1], 2)
            shares[key] = np.array([len(np.unique(seed, axis=0)) / GRID**2 for seed in each])
            begin = own.stop
    method = "UMAP" if umap else "principal components in place of UMAP, which is not installed"
    return Coverage(points, shares, f"by {method} of {NUMBER} observations of each seed at the end of its run")


def in_a_plane(x: np.ndarray, umap: bool) -> np.ndarray:
    """[n, features] -> [n, 2]."""
    if not umap:
        return np.asarray(metrics.pca(x))
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from umap import UMAP

        return UMAP(random_state=0).fit_transform(x)


def observations(run: Path) -> np.ndarray:
    """NUMBER observations of each seed, which the final policy visits from where the run ended. -> [seeds, NUMBER,
    features]; kept in the run's folder."""
    file = run / f"visited-{NUMBER}.npy"
    if not file.exists():
        seen = collect(run)
        part = file.with_suffix(".part")
        with open(part, "wb") as out:
            np.save(out, seen)
        part.replace(file)
    return np.load(file)


def collect(run: Path) -> np.ndarray:
    """Goes on with the run at a learning rate of almost nothing, and takes what its updates would measure on."""
    import jax

    import ppo
    from common import bits, checkpoints

    record = json.loads((run / "args.json").read_text())
    args = ppo.Args(**(typed(ppo.Args, record["args"]) | {"learning_rate": 1e-30, "update_epochs": 1}))
    args, _, _, init, step, _, keys = ppo.build(args)
    state = checkpoints.load(str(run), jax.jit(init)(keys))
    step, seen, number = jax.jit(step, donate_argnums=0), [], 0
    while number < NUMBER:
        state, _, (_, probe) = step(state)
        obs = jax.vmap(bits.unpack)(probe.obs) if args.num_seeds > 1 else bits.unpack(probe.obs)[None]
        seen.append(np.asarray(obs.reshape(*obs.shape[:2], -1)))
        number += seen[-1].shape[1]
    return np.concatenate(seen, axis=1)[:, :NUMBER]
