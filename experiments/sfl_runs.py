"""Presets of SFL on Kinetix (Beukman et al. 2026, section 6), and each figure's runs by what varies in them.

Cells have keys (size of the levels, what varies, seed). Each seed is its own run where several at once would not fit.
"""

from dataclasses import dataclass
from typing import Any

from common.run.arguments import flag
from experiments.grid import Cell, named

LOW_RATE = 1e-5  # figure 17: a fifth of the base's


@dataclass(frozen=True)
class Preset:
    """Level sizes, environment counts, and what varies at one of these counts."""

    about: str
    base: dict[str, Any]  # flags shared by all runs
    sizes: tuple[str, ...]  # of levels, in figures 11 and 20
    ablated: tuple[str, ...]  # the sizes among these in figures 15 to 19
    envs: dict[int, dict[str, Any]]  # N from the smallest to the largest, each with the flags that go with it
    baseline: int  # the N of figures 17 to 19
    minibatches: tuple[int, int, int]  # M at the largest N: few, the M of all other figures, many
    coms: tuple[float, ...]  # figure 18
    more_candidates: int  # figure 19
    larger_buffer: int
    seeds: tuple[int, ...]  # each starts a run of base["num_seeds"] consecutive seeds
    evaluations: int  # per run

    performance = "eval/solve_rate"

    @property
    def largest(self) -> int:
        return max(self.envs)

    def scale(self, run: Cell) -> tuple[float, float]:
        """Returns 0 and 1, since a score is a solve rate."""
        return 0.0, 1.0


TABLE_2 = dict(
    num_steps=256, minibatch_size=16384, update_epochs=8, gamma=0.995, gae_lambda=0.9, clip_eps=0.2, max_grad_norm=0.5,
    clip_vloss=True, vf_coef=0.5, ent_coef=0.01, learning_rate=5e-5, num_seeds=1, learnability_steps=512,
    buffer_share=0.5, plasticity_every=0,
)  # fmt: skip
TABLE_3 = {
    2048: dict(num_candidates=12288, buffer_every=128, buffer_size=1024),
    8192: dict(num_candidates=262144, buffer_every=256, buffer_size=8192),
    65536: dict(num_candidates=262144, buffer_every=32, buffer_size=8192),
    2**20: dict(num_candidates=4194304, buffer_every=2, buffer_size=8192),
}
# The paper trains the largest N for 10^12 steps and the smallest for more than 10^10; the others are our choice.
BUDGETS = {2048: 2**35, 8192: 2**36, 65536: 2**38, 2**20: 2**40}
SMALL_TABLE = dict(num_candidates=64, buffer_size=16, total_timesteps=2**15)
PRESETS = {
    "laptop": Preset(
        about="SFL (figures 11 and 15 to 20): 33,000 steps of size S on two cores, two seeds. It shows that every "
        "figure runs; a claim needs three seeds and far more steps, and gets no verdict",
        base=TABLE_2 | dict(
            num_steps=64, minibatch_size=256, num_seeds=2, network="permutation-invariant", search_batch=64,
            eval_sizes=("s",), num_eval_levels=64, num_eval_episodes=2, num_devices=1,
        ),
        sizes=("s",), ablated=("s",),
        envs={8: SMALL_TABLE | dict(buffer_every=32), 32: SMALL_TABLE | dict(buffer_every=8)},
        baseline=8, minibatches=(2, 8, 32), coms=(64.0,), more_candidates=256, larger_buffer=64, seeds=(0,),
        evaluations=8,
    ),
    "gpu": Preset(
        about="SFL (figures 11 and 15 to 20): sizes S and M on one GPU, 537M steps, 3 seeds; fewer than the paper's "
        "plateaus take",
        base=TABLE_2 | dict(total_timesteps=2**29),
        sizes=("s", "m"), ablated=("s",),
        envs={  # from N = 8192 on, Table 3 searches every 537M steps; here it is every 67M, as at 2048
            2048: TABLE_3[2048],
            8192: dict(num_candidates=65536, buffer_every=32, buffer_size=4096),
            65536: dict(num_candidates=65536, buffer_every=4, buffer_size=4096, num_rollout_chunks=8),
        },
        baseline=8192, minibatches=(128, 1024, 4096), coms=(4096.0,), more_candidates=262144, larger_buffer=16384,
        seeds=(0, 1, 2), evaluations=16,
    ),
    "paper": Preset(
        about="SFL (figures 11 and 15 to 20): Tables 2 and 3 of paper A, sizes S, M and L, 3·10^10 to 10^12 steps, "
        "3 seeds; the largest wants a cluster (docs/scaling.md)",
        base=TABLE_2, sizes=("s", "m", "l"), ablated=("s", "m", "l"),
        envs={n: table | dict(total_timesteps=BUDGETS[n]) for n, table in TABLE_3.items()},
        baseline=8192, minibatches=(32, 1024, 8192), coms=(2048.0, 8192.0), more_candidates=4194304,
        larger_buffer=65536, seeds=(0, 1, 2), evaluations=16,
    ),
}  # fmt: skip

Cells = dict[Any, Cell]


def cell(p: Preset, size: str, seed: int, num_envs: int, **varied: Any) -> Cell:
    """Makes a run with this many environments and `varied`."""
    told = {"env_id": f"kinetix/{size}", "num_envs": num_envs}
    flags = p.base | told | p.envs[num_envs] | varied | {"seed": seed}
    if "num_minibatches" in varied:
        flags.pop("minibatch_size")
    num_updates = flags["total_timesteps"] // (num_envs * flags["num_steps"])
    every = max(1, num_updates // p.evaluations)
    # A run that diverges goes on, because divergence is a result as well.
    flags |= {"checkpoint_every": every, "keep_checkpoints": 1, "halt_on_nan": False}
    flags |= {"log_every": max(1, num_updates // 128), "eval_every": every}
    told |= {name: value for name, value in varied.items() if p.base.get(name) != value}
    return named("sfl_kinetix", flags, told | {"seed": seed}, num_updates)


def for_seeds(p: Preset, sizes: tuple[str, ...], variants: dict[Any, dict[str, Any]]) -> Cells:
    return {
        (size, key, seed): cell(p, size, seed, **flags)
        for size in sizes
        for key, flags in variants.items()
        for seed in p.seeds
    }


def with_minibatches(p: Preset, number: int) -> dict[str, Any]:
    """Returns flags for M minibatches at the largest N. Adam's rate scales with the root of their size (appendix D)."""
    size = p.largest * p.base["num_steps"] // number
    rate = p.base["learning_rate"] * (size / p.base["minibatch_size"]) ** 0.5
    return {"num_envs": p.largest, "num_minibatches": number, "learning_rate": float(f"{rate:.3g}")}


def of_envs(p: Preset, number: int) -> dict[str, Any]:
    """Returns flags for N environments in all figures: the paper's recipe, except at the largest N."""
    return with_minibatches(p, p.minibatches[1]) if number == p.largest else {"num_envs": number}


def env_cells(p: Preset) -> Cells:
    return for_seeds(p, p.sizes, {n: of_envs(p, n) for n in p.envs})


def minibatch_cells(p: Preset) -> Cells:
    return for_seeds(p, p.ablated, {m: with_minibatches(p, m) for m in p.minibatches})


def against_the_largest(p: Preset, *changes: dict[str, Any]) -> Cells:
    """Returns the baseline, the baseline with each of these changes, and the largest N, keyed by their flags."""
    variants = {words({"num_envs": n}): of_envs(p, n) for n in (p.baseline, p.largest)}
    first, last = variants.items()
    changed = {words(change): of_envs(p, p.baseline) | change for change in changes}
    return for_seeds(p, p.ablated, dict([first, *changed.items(), last]))


def words(flags: dict[str, Any]) -> str:
    return " ".join(
        f"{flag(n)} {value:g}" if isinstance(value, float) else f"{flag(n)} {value}" for n, value in flags.items()
    )


def rate_cells(p: Preset) -> Cells:
    return against_the_largest(p, {"learning_rate": LOW_RATE})


def com_cells(p: Preset) -> Cells:
    return against_the_largest(p, *({"com": com} for com in p.coms))


def filter_cells(p: Preset) -> Cells:
    more = {"num_candidates": p.more_candidates}
    return against_the_largest(p, more, more | {"buffer_size": p.larger_buffer})
