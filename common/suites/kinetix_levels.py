"""Evaluation on Kinetix's levels: scores by set and by level, and gifs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import jax
import numpy as np
from tqdm import tqdm

from common.evaluation import Player, on_one_device, play, record
from common.run.arguments import NonNegative, RunArgs
from common.run.tracking import say
from common.suites import kinetix

QUANTITIES = ("solve_rate", "episodic_return", "episodic_length")


@dataclass(frozen=True, kw_only=True)
class LevelArgs(RunArgs):
    """Flags that say how an agent is evaluated on Kinetix's levels."""

    # --- evaluation ---
    num_eval_episodes: NonNegative[int] = 5
    """Attempts at each evaluation level. 0: no evaluation."""
    num_eval_levels: NonNegative[int] = 512
    """Random evaluation levels per size, the same in every run, in addition to the hand-designed ones (74 in all)."""
    eval_sizes: tuple[Literal["s", "m", "l"], ...] = ("s", "m", "l")
    """Sizes of the evaluation levels."""
    capture_video: bool = False
    """Save gifs of the final policy on --video-levels and on the most learnable levels of the buffer."""
    video_levels: tuple[str, ...] = ()
    """Hand-designed levels to film, such as s/h0_weak_thrust (default: one of each of --eval-sizes)."""
    video_buffer_levels: NonNegative[int] = 3
    """Film this many levels of the buffer."""

    def __post_init__(self):
        super().__post_init__()
        kinetix.check_level_names(self.video_levels, self.eval_sizes, "--video-levels")

    @property
    def size(self) -> str:
        """Size of the training levels."""
        return self.env_id.removeprefix("kinetix/")


class LevelPlayer(Player):
    """A Player on the random and the hand-designed levels of --eval-sizes, in the first process only."""

    def __init__(self, args: Any, suite: Any, policy: Callable[[Any, jax.Array], Any]):
        super().__init__(args, suite, policy)
        needed = (args.num_eval_episodes or args.capture_video) and jax.process_index() == 0
        sizes = args.eval_sizes if needed else ()
        if sizes:
            say(f"loading evaluation levels of size {', '.join(sizes)} (minutes the first time, as is playing them)")
        # Suite and level names by group. Levels named random_... get scores of their own.
        self.sets = {size: kinetix.make_evaluation(size, args.num_eval_levels) for size in sizes}
        self._main = f"eval/random_{args.size}/"
        self._group_scores = {
            group: self._jit(partial(self._attempts, levels)) for group, (levels, _) in self.sets.items()
        }

    def _attempts(self, suite: Any, learner: Any, key: jax.Array, update: jax.Array) -> dict[str, jax.Array]:
        """Means over --num-eval-episodes attempts at each level of a suite, [levels] each."""
        key = jax.random.fold_in(key, update)
        attempt = partial(play, suite, suite.num_levels, partial(self._act, learner))
        # One attempt after another, each on all levels: more attempts do not need more memory.
        first = jax.lax.map(attempt, jax.random.split(key, self._args.num_eval_episodes))
        found = zip(QUANTITIES, (first.success, first.total_reward, first.length), strict=True)
        return {name: x.mean(0) for name, x in found}

    def scores(
        self, learner: Any, update: int, given_up: Callable[[], bool] = lambda: False
    ) -> dict[str, np.ndarray] | None:
        """Means over attempts and levels, each [] or [num_seeds]. By group: eval/random_s/solve_rate, ...,
        eval/hand_designed_s/...; over all groups: eval/random/..., eval/hand_designed/...; by hand-designed level:
        levels/s/<name>/solve_rate, ...; for random levels of the training size also eval/solve_rate, .... None if it is
        given up."""
        learner = on_one_device(learner)
        values: dict[str, list[np.ndarray]] = {}
        found: dict[str, np.ndarray] = {}
        for group, (_, names) in tqdm(self.sets.items(), "evaluating", leave=False, disable=None):
            if given_up():
                return None
            for quantity, per_level in jax.device_get(self._group_scores[group](learner, self._key, update)).items():
                for name, value in zip(names, np.moveaxis(per_level, -1, 0), strict=True):
                    kind = "random" if name.startswith("random_") else "hand_designed"
                    for key_ in (f"eval/{kind}/{quantity}", f"eval/{kind}_{group}/{quantity}"):
                        values.setdefault(key_, []).append(value)
                    if kind == "hand_designed":
                        found[f"levels/{group}/{name}/{quantity}"] = value
        means = {key: np.mean(many, axis=0) for key, many in sorted(values.items())}
        main = {f"eval/{key.removeprefix(self._main)}": x for key, x in means.items() if key.startswith(self._main)}
        return main | means | found

    def film(self, state: Any) -> dict[str, Callable[[], list[np.ndarray]]]:
        """One episode of the (first) state.learner on each of --video-levels, or on the first hand-designed level of
        each group, and on each of the first --video-buffer-levels filled places of state.buffer, if there is one."""
        wanted, films, learner, buffer = self._args.video_levels, {}, state.learner, getattr(state, "buffer", None)
        for group, (suite, names) in self.sets.items():
            chosen = [name for name in wanted if name.startswith(f"{group}/")] if wanted else [f"{group}/{names[0]}"]
            films |= self._films(learner, suite, {name: names.index(name.partition("/")[2]) for name in chosen})
        if buffer is not None:
            buffer = jax.device_get(self._one(buffer))
            best = buffer.data[np.isfinite(buffer.score)][: self._args.video_buffer_levels]
            if len(best):
                levels = self._suite.on(jax.device_get(jax.vmap(self._suite.unpack)(best)))
                films |= self._films(learner, levels, {f"buffer-{i}": i for i in range(len(best))})
        return films

    def _films(self, learner: Any, suite: Any, levels: dict[str, int]) -> dict[str, Callable[[], list[np.ndarray]]]:
        # All are recorded when Run asks for the first, because there a failure costs no more than the gifs.
        films = cache(lambda: record(suite, list(levels.values()), *self._first(learner)))
        return {name: lambda i=i: films()[i] for i, name in enumerate(levels)}

    def table(self, scores: dict[str, np.ndarray]) -> str:
        """One line per hand-designed level, with means over seeds."""
        levels = sorted({key.rpartition("/")[0] for key in scores if key.startswith("levels/")})
        width = max(map(len, levels), default=0) - len("levels/")
        lines = [f"{'level':<{width}}  solved  return  length"] if levels else []
        for level in levels:
            solved, reward, length = (np.mean(scores[f"{level}/{x}"]) for x in QUANTITIES)
            lines.append(f"{level.removeprefix('levels/'):<{width}}  {solved:6.2f}  {reward:6.2f}  {length:6.1f}")
        return "".join(line + "\n" for line in lines)
