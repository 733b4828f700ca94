"""Beukman et al. 2026 (https://arxiv.org/abs/2603.06009): the runs of each figure, by what varies in them."""

from typing import Any

from experiments.grid import Cell
from experiments.presets import Preset, bowl, cell

RECIPES = ("more-minibatches", "larger-minibatches", "larger-minibatches-sqrt-lr")
BOWL_RATES = (0.9, 0.5, 0.1, 0.01, 0.001)
BOWL_PLATEAU, BOWL_GOOD = 0.5, 0.01
BOWL_CHANGED, BOWL_SWITCH = (0.5, 0.01), 500

Cells = dict[Any, Cell]


def com_cells(p: Preset) -> Cells:
    return {com: cell(p, "ppo_ewma", com=com) for com in p.coms}


def eps_cells(p: Preset) -> Cells:
    return {eps: cell(p, "ppo", clip_eps=eps) for eps in p.epsilons}


def changed_com_cells(p: Preset) -> Cells:
    """Whole runs, and second halves that start from the first half of one of them."""
    coms = (p.weak_com, p.good_com)
    whole = {com: cell(p, "ppo_ewma", com=com) for com in coms}
    half = p.total_timesteps // 2
    changed = {(a, b): cell(p, "ppo_ewma", half, source=whole[a], com=b) for a in coms for b in coms}
    return whole | changed


def learning_rate_cells(p: Preset) -> Cells:
    return {
        (com, rate, anneal): cell(p, "ppo_ewma", p.sweep_timesteps, com=com, learning_rate=rate, anneal_lr=anneal)
        for com in (p.weak_com, *(c for c in p.coms if p.weak_com < c <= p.good_com))
        for rate in p.learning_rates
        for anneal in (False, True)
    }


def com_epoch_cells(p: Preset) -> Cells:
    return {
        (com, epochs): cell(p, "ppo_ewma", p.sweep_timesteps, com=com, update_epochs=epochs)
        for com in p.epoch_coms
        for epochs in p.epochs
    }


def eps_epoch_cells(p: Preset) -> Cells:
    return {
        (eps, epochs): cell(p, "ppo", p.sweep_timesteps, clip_eps=eps, update_epochs=epochs)
        for eps in p.epoch_epsilons
        for epochs in p.epochs
    }


def batch_cells(p: Preset, script: str, name: str, values: tuple[float, ...]) -> Cells:
    """M as in the base: the minibatch grows with the batch. As many updates for all, so more data for larger ones."""
    minibatches = p.base.get("num_minibatches") or p.steps_per_update // p.base["minibatch_size"]
    return {
        (value, envs): cell(
            p, script, p.batch_updates * envs * p.base["num_steps"], num_envs=envs, num_minibatches=minibatches,
            **{name: value},
        )
        for value in values
        for envs in p.batch_envs
    }  # fmt: skip


def com_batch_cells(p: Preset) -> Cells:
    return batch_cells(p, "ppo_ewma", "com", p.epoch_coms)


def eps_batch_cells(p: Preset) -> Cells:
    return batch_cells(p, "ppo", "clip_eps", tuple(eps for eps in p.epoch_epsilons if eps))


def grid_cells(p: Preset) -> Cells:
    return {
        (com, eps): cell(p, "ppo_ewma", p.sweep_timesteps, com=com, clip_eps=eps)
        for com in p.grid_coms
        for eps in p.grid_epsilons
    }


def recipe_cells(p: Preset) -> Cells:
    """With the good epsilon: what differs shall be the inner loop. At the base all recipes are the same run."""
    base, common = p.base["num_envs"], {"clip_eps": p.good_eps, "num_seeds": p.scaled_seeds}
    scaled = {
        (recipe, envs): cell(p, "ppo", num_envs=envs, base_num_envs=base, scaling=recipe, **common)
        for recipe in RECIPES
        for envs in p.scaled_envs
        if envs != base
    }
    same = cell(p, "ppo", **common)
    return {(recipe, envs): scaled.get((recipe, envs), same) for recipe in RECIPES for envs in p.scaled_envs}


def ddr_cells(p: Preset) -> Cells:
    """All runs of figures 5, 6 and 12, which differ in step size and age, not in data per update."""
    grids = {
        "COM": com_cells,
        "ε": eps_cells,
        "COM × E": com_epoch_cells,
        "ε × E": eps_epoch_cells,
        "COM × ε": grid_cells,
    }
    return {(kind, key): run for kind, cells in grids.items() for key, run in cells(p).items()}


def bowl_cells(p: Preset) -> Cells:
    return {rate: bowl(learning_rate=rate) for rate in BOWL_RATES}


def bowl_switch_cells(p: Preset) -> Cells:
    stay = {(a, a): bowl(learning_rate=a) for a in BOWL_CHANGED}
    changed = [BOWL_CHANGED, BOWL_CHANGED[::-1]]
    return stay | {(a, b): bowl(learning_rate=a, switch_step=BOWL_SWITCH, switch_learning_rate=b) for a, b in changed}
