"""Sticky actions (Machado et al. 2018, section 5.1) for any suite: chance for games that have none of their own."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from common.actions import Box


class Held(NamedTuple):
    """A suite's state, and the action [D] that was executed last; `begun`: whether there is one in this episode."""

    inner: Any
    action: jax.Array
    begun: jax.Array


class Sticky:
    """A suite whose environments execute their last action again, instead of the given one, with this probability.
    The first action of an episode is always the given one."""

    def __init__(self, suite: Any, probability: float):
        self._suite, self._probability = suite, probability

    def __getattr__(self, name: str) -> Any:
        """What does not change, such as the spaces and whether it can draw."""
        return getattr(self._suite, name)

    def _start(self, started: tuple[Any, jax.Array]) -> tuple[Held, jax.Array]:
        inner, obs = started
        space = self._suite.action_space
        none = jnp.zeros(len(space[0]), jnp.float32 if isinstance(space, Box) else jnp.int32)
        return Held(inner, none, jnp.bool_(False)), obs

    def reset(self, key: jax.Array) -> tuple[Held, jax.Array]:
        return self._start(self._suite.reset(key))

    def reset_to(self, key: jax.Array, level: jax.Array) -> tuple[Held, jax.Array]:
        return self._start(self._suite.reset_to(key, level))

    def step(self, key: jax.Array, state: Held, action: jax.Array) -> tuple:
        """Take a step. -> state, obs, reward, terminated, truncated, success."""
        step_key, sticky_key = jax.random.split(key)
        repeats = state.begun & jax.random.bernoulli(sticky_key, self._probability)
        action = jnp.where(repeats, state.action, action)
        inner, *rest = self._suite.step(step_key, state.inner, action)
        return Held(inner, action, jnp.bool_(True)), *rest

    def frames(self, states: list[Held]) -> list[np.ndarray]:
        return self._suite.frames([state.inner for state in states])
