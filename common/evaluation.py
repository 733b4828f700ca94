"""Playing episodes with a fixed policy: scores and pictures."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from common import envs
from common.arguments import UsageError

QUANTITIES = ("solve_rate", "episodic_return", "episodic_length")
Act = Callable[[jax.Array, jax.Array], jax.Array]  # obs [N, ...], key -> actions [N, D]


def play(suite: Any, num_episodes: int, act: Act, key: jax.Array) -> envs.Episode:
    """`num_episodes` episodes, each in an environment of its own. -> their statistics [num_episodes].

    Of as many as fit into some time, short ones would be over-represented. Where the suite has a fixed set of levels,
    episode i is played on level i % num_levels.
    """
    env = envs.VectorEnv(suite, num_episodes, auto_reset=False)
    key, reset_key = jax.random.split(key)
    env_state, obs = env.reset_to(reset_key, jnp.arange(env.num_envs))
    nothing = envs.Episode(*(jnp.zeros(env.num_envs, dtype) for dtype in (bool, jnp.int32, jnp.float32, bool)))

    def step(carry: tuple) -> tuple:
        key, env_state, obs, first = carry
        key, action_key, env_key = jax.random.split(key, 3)
        env_state, out = env.step(env_key, env_state, act(obs, action_key))
        return key, env_state, out.obs, envs.where(first.done, first, out.episode)

    return jax.lax.while_loop(lambda carry: ~carry[-1].done.all(), step, (key, env_state, obs, nothing))[-1]


def evaluate(suite: Any, num_episodes: int, act: Act, key: jax.Array) -> dict[str, jax.Array]:
    """Means over `num_episodes` episodes; where the suite has a fixed set of levels, over all of them equally often."""
    num_levels = suite.num_levels or 1
    first = play(suite, num_levels * -(-num_episodes // num_levels), act, key)
    metrics = {"eval/episodic_return": first.total_reward.mean(), "eval/episodic_length": first.length.mean()}
    return metrics | ({"eval/solve_rate": first.success.mean()} if suite.has_success else {})


def evaluation_key(args: Any) -> jax.Array:
    """A number that no split reaches: split(key, n)[i] is fold_in(key, i), and training splits this key."""
    return jax.random.fold_in(jax.random.key(args.seed), 2**31 - 1)


def act(args: Any, policy: Callable[[Any, jax.Array], Any], learner: Any, obs: jax.Array, key: jax.Array) -> jax.Array:
    """The most probable action or one at random, as --eval-deterministic says. obs [N, ...] -> [N, D]."""
    dist = policy(learner, obs)
    return dist.mode() if args.eval_deterministic else dist.sample(key)


class Player:
    """Scores and videos of a learner. policy(learner, obs [N, ...]) -> distribution of actions.

    Plays on one device: all of them would play the same episodes.
    """

    def __init__(self, args: Any, suite: Any, policy: Callable[[Any, jax.Array], Any]):
        if args.capture_video and not suite.can_draw:
            raise UsageError(f"--capture-video: cannot draw {suite.name}; MinAtar, classic control, Kinetix work")
        self._suite, self._many = suite, args.num_seeds > 1
        self._key, self._act = evaluation_key(args), partial(act, args, policy)

        def scores(learner: Any, key: jax.Array) -> dict[str, jax.Array]:
            return evaluate(suite, args.num_eval_episodes, partial(self._act, learner), key)

        self._scores = jax.jit(jax.vmap(scores, (0, None)) if self._many else scores)

    def scores(self, learner: Any, update: int) -> dict[str, jax.Array]:
        """`evaluate` after this update; one value per seed where there are several."""
        return self._scores(on_one_device(learner), jax.random.fold_in(self._key, update))

    def video(self, learner: Any) -> list[np.ndarray]:
        """`record_video` of the (first) learner."""
        learner = on_one_device(learner)
        learner = jax.tree.map(lambda x: x[0], learner) if self._many else learner
        return record_video(self._suite, partial(self._act, learner), self._key)


class LevelPlayer:
    """As Player, on sets of levels that agents are compared on. sets: suite and names of its levels, by group; those
    named random_... make a group of their own."""

    def __init__(self, args: Any, sets: dict[str, tuple[Any, list[str]]], policy: Callable[[Any, jax.Array], Any]):
        self.sets, self._main, self._many = sets, f"eval/random_{args.size}/", args.num_seeds > 1
        self._key, self._act = evaluation_key(args), partial(act, args, policy)

        def scores(suite: Any, learner: Any, key: jax.Array) -> dict[str, jax.Array]:
            attempt = partial(play, suite, suite.num_levels, partial(self._act, learner))
            # One after the other, each on all levels: memory does not follow their number.
            first = jax.lax.map(attempt, jax.random.split(key, args.num_eval_episodes))
            found = zip(QUANTITIES, (first.success, first.total_reward, first.length), strict=True)
            return {name: x.mean(0) for name, x in found}

        over_seeds = partial(jax.vmap, in_axes=(0, None)) if self._many else lambda function: function
        self._scores = {group: jax.jit(over_seeds(partial(scores, suite))) for group, (suite, _) in sets.items()}

    def scores(self, learner: Any, update: int) -> dict[str, np.ndarray]:
        """Means over attempts and levels: eval/random_s/solve_rate, ..., eval/hand_designed_s/..., over all groups of a
        kind eval/random/..., eval/hand_designed/..., of each hand-designed level levels/s/<name>/solve_rate, ...;
        random levels of the training's size also as eval/solve_rate, .... Each [] or [num_seeds]."""
        learner, key = on_one_device(learner), jax.random.fold_in(self._key, update)
        values: dict[str, list[np.ndarray]] = {}
        found: dict[str, np.ndarray] = {}
        # Compiling takes a minute per group, playing some seconds.
        for group, (_, names) in tqdm(self.sets.items(), "evaluating", leave=False, disable=None):
            for quantity, per_level in jax.device_get(self._scores[group](learner, key)).items():
                for name, value in zip(names, np.moveaxis(per_level, -1, 0), strict=True):
                    kind = "random" if name.startswith("random_") else "hand_designed"
                    for key_ in (f"eval/{kind}/{quantity}", f"eval/{kind}_{group}/{quantity}"):
                        values.setdefault(key_, []).append(value)
                    if kind == "hand_designed":
                        found[f"levels/{group}/{name}/{quantity}"] = value
        means = {key: np.mean(many, axis=0) for key, many in sorted(values.items())}
        main = {f"eval/{key.removeprefix(self._main)}": x for key, x in means.items() if key.startswith(self._main)}
        return main | means | found

    def film(self, run: Any, learner: Any, wanted: Sequence[str]) -> None:
        """Saves gifs of an episode on each of the hand-designed levels `wanted`, or on the first of each group."""
        for group, (suite, names) in self.sets.items():
            chosen = [name for name in wanted if name.startswith(f"{group}/")] if wanted else [f"{group}/{names[0]}"]
            self.film_on(run, learner, suite, {name: names.index(name.partition("/")[2]) for name in chosen})

    def film_packed(self, run: Any, learner: Any, suite: Any, buffer: Any, number: int) -> None:
        """Saves gifs of an episode on the first levels of the (first seed's) buffer, as far as it is filled."""
        buffer = jax.device_get(on_one_device(buffer))
        buffer = jax.tree.map(lambda x: x[0], buffer) if self._many else buffer
        best = buffer.data[np.isfinite(buffer.score)][:number]
        if len(best):
            levels = suite.on(jax.device_get(jax.vmap(suite.unpack)(best)))
            self.film_on(run, learner, levels, {f"buffer-{i}": i for i in range(len(best))})

    def film_on(self, run: Any, learner: Any, suite: Any, levels: dict[str, int]) -> None:
        """Saves gifs of an episode of the (first) learner on levels of a suite, by name."""
        learner = on_one_device(learner)
        learner = jax.tree.map(lambda x: x[0], learner) if self._many else learner
        # All together when the first is needed, where `video` sees to it that a failure costs no more than the gifs.
        films = cache(lambda: record_levels(suite, list(levels.values()), partial(self._act, learner), self._key))
        for i, name in enumerate(levels):
            run.video(name, lambda i=i: films()[i])


def level_table(scores: dict[str, np.ndarray]) -> str:
    """The hand-designed levels of `LevelPlayer.scores`, a line each; means over seeds."""
    levels = sorted({key.rpartition("/")[0] for key in scores if key.startswith("levels/")})
    width = max(map(len, levels), default=0) - len("levels/")
    lines = [f"{'level':<{width}}  solved  return  length"]
    for level in levels:
        solved, reward, length = (np.mean(scores[f"{level}/{x}"]) for x in QUANTITIES)
        lines.append(f"{level.removeprefix('levels/'):<{width}}  {solved:6.2f}  {reward:6.2f}  {length:6.1f}")
    return "\n".join(lines)


def on_one_device(tree: Any) -> Any:
    """What is equal on all devices, as this process's first one has it."""
    return jax.tree.map(lambda x: x.addressable_data(0), tree)


def record_video(suite: Any, act: Act, key: jax.Array, max_frames: int = 1000) -> list[np.ndarray]:
    """Pictures [H, W, 3] uint8 of one episode."""
    env = envs.VectorEnv(suite, 1, auto_reset=False)
    key, reset_key = jax.random.split(key)
    return _record(env, jax.jit(env.reset)(reset_key), act, key, max_frames)[0]


def record_levels(suite: Any, levels: Sequence[int], act: Act, key: jax.Array) -> list[list[np.ndarray]]:
    """As record_video, an episode on each of these levels."""
    env = envs.VectorEnv(suite, len(levels), auto_reset=False)
    key, reset_key = jax.random.split(key)
    return _record(env, jax.jit(env.reset_to)(reset_key, jnp.array(levels)), act, key, max_frames=1000)


def _record(env: envs.VectorEnv, started: tuple, act: Act, key: jax.Array, max_frames: int) -> list[list[np.ndarray]]:
    """Pictures of the first episode in each environment."""

    @jax.jit
    def step(env_state: Any, obs: jax.Array, key: jax.Array) -> tuple:
        key, action_key, env_key = jax.random.split(key, 3)
        env_state, out = env.step(env_key, env_state, act(obs, action_key))
        return env_state, out.obs, key, out.episode.done

    (env_state, obs), running = started, np.ones(env.num_envs, bool)
    states: list[list[Any]] = [[] for _ in running]
    while running.any() and len(states[int(running.argmax())]) < max_frames:
        now = jax.device_get(env_state.inner)
        for i in np.flatnonzero(running):
            states[i].append(jax.tree.map(lambda x, i=i: x[i], now))
        env_state, obs, key, done = step(env_state, obs, key)
        running &= ~np.asarray(done)
    return [env.frames(each) for each in states]
