"""Playing episodes with a fixed policy: scores and pictures."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from common import envs
from common.arguments import UsageError

Act = Callable[[jax.Array, jax.Array], jax.Array]  # obs [N, ...], key -> actions [N, D]


def evaluate(suite: Any, num_episodes: int, act: Act, key: jax.Array) -> dict[str, jax.Array]:
    """Means over `num_episodes` episodes; where the suite has a fixed set of levels, over all of them equally often.

    One episode in each environment: of as many as fit into some time, short ones would be over-represented.
    """
    num_levels = suite.num_levels or 1
    env = envs.VectorEnv(suite, num_levels * -(-num_episodes // num_levels), auto_reset=False)
    key, reset_key = jax.random.split(key)
    env_state, obs = env.reset_to(reset_key, jnp.arange(env.num_envs))
    nothing = envs.Episode(*(jnp.zeros(env.num_envs, dtype) for dtype in (bool, jnp.int32, jnp.float32, bool)))

    def step(carry: tuple) -> tuple:
        key, env_state, obs, first = carry
        key, action_key, env_key = jax.random.split(key, 3)
        env_state, out = env.step(env_key, env_state, act(obs, action_key))
        return key, env_state, out.obs, envs.where(first.done, first, out.episode)

    *_, first = jax.lax.while_loop(lambda carry: ~carry[-1].done.all(), step, (key, env_state, obs, nothing))
    metrics = {"eval/episodic_return": first.total_reward.mean(), "eval/episodic_length": first.length.mean()}
    return metrics | ({"eval/solve_rate": first.success.mean()} if env.has_success else {})


class Player:
    """Scores and videos of a learner. policy(learner, obs [N, ...]) -> distribution of actions.

    Plays on one device: all of them would play the same episodes.
    """

    def __init__(self, args: Any, suite: Any, policy: Callable[[Any, jax.Array], Any]):
        if args.capture_video and not suite.can_draw:
            raise UsageError(f"--capture-video: cannot draw {suite.name}; MinAtar, classic control, Kinetix work")
        self._suite, self._many = suite, args.num_seeds > 1
        # A number that no split reaches: split(key, n)[i] is fold_in(key, i), and training splits this key.
        self._key = jax.random.fold_in(jax.random.key(args.seed), 2**31 - 1)

        def act(learner: Any, obs: jax.Array, key: jax.Array) -> jax.Array:
            dist = policy(learner, obs)
            return dist.mode() if args.eval_deterministic else dist.sample(key)

        def scores(learner: Any, key: jax.Array) -> dict[str, jax.Array]:
            return evaluate(suite, args.num_eval_episodes, partial(act, learner), key)

        self._act, self._scores = act, jax.jit(jax.vmap(scores, (0, None)) if self._many else scores)

    def scores(self, learner: Any, update: int) -> dict[str, jax.Array]:
        """`evaluate` after this update; one value per seed where there are several."""
        return self._scores(_on_one_device(learner), jax.random.fold_in(self._key, update))

    def video(self, learner: Any) -> list[np.ndarray]:
        """`record_video` of the (first) learner."""
        learner = _on_one_device(learner)
        learner = jax.tree.map(lambda x: x[0], learner) if self._many else learner
        return record_video(self._suite, partial(self._act, learner), self._key)


def _on_one_device(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.addressable_data(0), tree)


def record_video(suite: Any, act: Act, key: jax.Array, max_frames: int = 1000) -> list[np.ndarray]:
    """Pictures [H, W, 3] uint8 of one episode."""
    env = envs.VectorEnv(suite, 1, auto_reset=False)
    key, reset_key = jax.random.split(key)
    env_state, obs = jax.jit(env.reset)(reset_key)

    @jax.jit
    def step(env_state: Any, obs: jax.Array, key: jax.Array) -> tuple:
        key, action_key, env_key = jax.random.split(key, 3)
        env_state, out = env.step(env_key, env_state, act(obs, action_key))
        return env_state, out.obs, key, out.episode.done[0]

    states, done = [], False
    while not done and len(states) < max_frames:
        states.append(jax.tree.map(lambda x: np.asarray(x[0]), env_state.inner))
        env_state, obs, key, done = step(env_state, obs, key)
    return env.frames(states)
