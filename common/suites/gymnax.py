"""gymnax (https://github.com/RobertTLange/gymnax) as one environment without auto-reset. Needs gymnax >= 1.0.1.

Takes its registered environments and a user's own of the same style (common/suites/own.py).
"""

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from common.actions import Box, Discrete
from common.vector import Suite

CLASSIC_CONTROL = ("Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")


def env_ids() -> list[str]:
    """All ids that gymnax knows."""
    import gymnax

    return list(gymnax.registered_envs)


def make(env_id: str) -> "Gymnax":
    """Make a registered environment."""
    import gymnax

    return Gymnax(*gymnax.make(env_id), env_id)


def exactly(tree: Any, like: Any) -> Any:
    """Arrays of the types and shapes of `like`. A compiled update would not accept weak types instead."""
    return jax.tree.map(lambda x, like: jnp.asarray(x, like.dtype).reshape(like.shape), tree, like)


class Gymnax(Suite):
    """One environment in gymnax's style, with its parameters. Shapes are those of a single environment."""

    def __init__(self, env: Any, params: Any, name: str):
        """name: the id of a registered environment; a class of the user's has a name that is none."""
        self.env, self.params, self.name = env, params, name
        # MinAtar's observations are ones and zeros; bools take a quarter of the memory of float32.
        self.binary = name.endswith("-MinAtar")
        self.can_draw = self.binary or name in CLASSIC_CONTROL or hasattr(env, "frames")
        self.num_symbols, actions = getattr(env.observation_space(params), "n", None), env.action_space(params)
        if hasattr(actions, "n"):
            self.action_space = Discrete((int(actions.n),))
        else:
            low, high = (np.broadcast_to(np.asarray(x, np.float32), actions.shape) for x in (actions.low, actions.high))
            self.action_space = Box(low, high)
        obs, self.state_like = jax.eval_shape(lambda key: env.reset_env(key, params), jax.random.key(0))
        obs = jax.eval_shape(self._observe, obs)
        self.obs_shape, self.obs_dtype = obs.shape, np.dtype(obs.dtype)

    def _observe(self, obs: jax.Array) -> jax.Array:
        if self.num_symbols is not None:
            return jax.nn.one_hot(obs, self.num_symbols)
        return obs > 0.5 if self.binary else jnp.asarray(obs)

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        obs, state = self.env.reset_env(key, self.params)
        return exactly(state, self.state_like), self._observe(obs)

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> tuple:
        """Take a step. -> state, obs, reward, terminated, truncated, success."""
        native = action if isinstance(self.action_space, Box) else action[0]
        obs, state, reward, terminated, *truncated, _ = self.env.step_env(key, state, native, self.params)
        if truncated:  # a sixth result; gymnax 1.0 returns five, and says separately whether the time is over
            (truncated,) = truncated
        else:
            timed = hasattr(self.env, "is_truncated")
            truncated = self.env.is_truncated(state, self.params) if timed else jnp.bool_(False)
        reward = jnp.asarray(reward, jnp.float32)
        return exactly(state, self.state_like), self._observe(obs), reward, terminated, truncated, jnp.bool_(False)

    def frames(self, states: list[Any]) -> list[np.ndarray]:
        """Pictures of an episode: a user's own, MinAtar's channels in colours, or Gymnasium's of classic control."""
        if hasattr(self.env, "frames"):
            return self.env.frames(states)
        if self.binary:
            return self._minatar_frames(states)
        for driver in ("SDL_AUDIODRIVER", "SDL_VIDEODRIVER"):
            os.environ.setdefault(driver, "dummy")  # otherwise pygame complains if there is no sound or screen
        import gymnasium
        from gymnax.visualize.vis_gym import get_gym_state, set_gym_params

        renderer = gymnasium.make(self.name, render_mode="rgb_array")
        renderer.reset()
        set_gym_params(renderer.unwrapped, self.name, self.params)
        pictures = []
        for state in states:
            renderer.unwrapped.state = get_gym_state(state, self.name)
            if self.name == "Pendulum-v1":
                renderer.unwrapped.last_u = float(state.last_u)
            pictures.append(renderer.render())
        renderer.close()
        return pictures

    def _minatar_frames(self, states: list[Any]) -> list[np.ndarray]:
        import matplotlib

        observe = jax.jit(lambda state: self.env.observe(jax.random.key(0), state, None, self.params))
        colours = matplotlib.colormaps["turbo"](np.linspace(0.1, 0.95, self.obs_shape[-1]))[:, :3]
        pictures = []
        for state in states:
            obs = np.asarray(observe(state)) > 0.5
            top_channel = obs.shape[-1] - 1 - obs[..., ::-1].argmax(-1)  # if channels overlap, the last one shows
            picture = np.where(obs.any(-1)[..., None], colours[top_channel], 0.08)
            pictures.append(np.kron((255 * picture).astype(np.uint8), np.ones((20, 20, 1), np.uint8)))
        return pictures
