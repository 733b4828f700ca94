"""Playing episodes with a fixed policy: scores and pictures."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from common import envs

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


def record_video(suite: Any, act: Act, key: jax.Array, max_frames: int = 1000) -> list[np.ndarray]:
    """Pictures [H, W, 3] uint8 of one episode."""
    env = envs.VectorEnv(suite, 1, auto_reset=False)
    env_state, obs = jax.jit(env.reset)(key)

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
