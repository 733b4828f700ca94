"""Brax (https://github.com/google/brax): rigid bodies with continuous actions from -1 to 1."""

import contextlib
import io
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from common.actions import Box
from common.suites.gymnax import exactly
from common.suites.wrappers import TimeLimit
from common.vector import Suite

PREFIX = "brax/"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the news that brax is no longer developed, and that there are packages it could use."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def env_ids() -> list[str]:
    """All ids that `make` takes: brax's, but for the one that it tests itself with."""
    with quiet():
        from brax.envs import _envs
    return [f"{PREFIX}{name}" for name in _envs if name != "fast"]


def make(env_id: str, kwargs: dict[str, Any]) -> TimeLimit:
    """Make one of `env_ids`."""
    import mujoco
    from brax import envs

    mujoco.set_mju_user_warning(lambda text: None)  # or halfcheetah would leave a MUJOCO_LOG.TXT in the user's folder
    name = env_id.removeprefix(PREFIX)
    backend = "generalized" if name == "swimmer" else "spring"  # its only one
    kwargs = {"backend": backend, "episode_length": 1000, **kwargs}
    episode_length = kwargs.pop("episode_length")
    with quiet():
        return TimeLimit(Brax(envs.get_environment(name, **kwargs), env_id), episode_length)


class Brax(Suite):
    """One environment in brax's style. Brax's own wrappers would begin all episodes of an environment in the same
    state. Without a display, brax cannot draw, only write a page of HTML."""

    def __init__(self, env: Any, name: str, action_repeat: int = 1):
        self.env, self.name, self.action_repeat = env, name, action_repeat
        self._like = jax.eval_shape(env.reset, jax.random.key(0))
        obs = self._observe(self._like)
        self.obs_shape, self.obs_dtype = obs.shape, np.dtype(obs.dtype)
        bound = np.ones(env.action_size, np.float32)
        self.action_space = Box(-bound, bound)

    def _observe(self, state: Any) -> jax.Array:
        """What the policy sees. Where there is a dict, the rest of it is for a critic that knows more."""
        return state.obs["state"] if isinstance(state.obs, dict) else state.obs

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        state = exactly(self.env.reset(key), self._like)
        return state, self._observe(state)

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> tuple:
        """Take a step. -> state, obs, reward, terminated, truncated, success."""

        def once(state: Any, _: None) -> tuple[Any, jax.Array]:
            state = jax.tree.map(lambda x: x, state)  # brax writes into the dicts of the state that it is given
            state = exactly(self.env.step(state, action), self._like)
            return state, state.reward

        # As in brax's wrapper: an episode that ends between repetitions is played to the last of them.
        state, rewards = jax.lax.scan(once, state, length=self.action_repeat)
        obs, reward = self._observe(state), rewards.sum(0)
        # A simulation that explodes ends the episode. One NaN would end the whole run.
        exploded = ~(jnp.isfinite(reward) & jnp.isfinite(obs).all())
        obs, reward = jnp.where(jnp.isfinite(obs), obs, 0), jnp.where(exploded, 0.0, reward)
        return state, obs, reward, (state.done > 0) | exploded, jnp.bool_(False), jnp.bool_(False)
