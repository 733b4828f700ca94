"""Changes to the environment of any suite, each a suite itself."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Wrapped(NamedTuple):
    """A suite's state, and what its wrapper remembers."""

    inner: Any
    memory: Any


class Wrapper:
    """A suite whose states hold another's. Each kind has its own `step`, and `_start`, which makes of the other suite's
    state and observation at the start of an episode its own."""

    def __init__(self, suite: Any):
        self._suite = suite

    def __getattr__(self, name: str) -> Any:
        """What does not change, such as the spaces and whether it can draw."""
        return getattr(self._suite, name)

    def reset(self, key: jax.Array) -> tuple[Wrapped, jax.Array]:
        return self._start(self._suite.reset(key))

    def reset_to(self, key: jax.Array, level: jax.Array) -> tuple[Wrapped, jax.Array]:
        return self._start(self._suite.reset_to(key, level))

    def frames(self, states: list[Wrapped]) -> list[np.ndarray]:
        return self._suite.frames([state.inner for state in states])


class Sticky(Wrapper):
    """A suite whose environments execute their last action again, instead of the given one, with this probability
    (Machado et al. 2018, section 5.1). The first action of an episode is always the given one."""

    def __init__(self, suite: Any, probability: float):
        super().__init__(suite)
        self._probability = probability

    def _start(self, started: tuple[Any, jax.Array]) -> tuple[Wrapped, jax.Array]:
        inner, obs = started
        space = self._suite.action_space
        none = jnp.zeros(len(space[0]), space.dtype)
        return Wrapped(inner, (none, jnp.bool_(False))), obs  # whether there is an action in this episode

    def step(self, key: jax.Array, state: Wrapped, action: jax.Array) -> tuple:
        """Take a step. -> state, obs, reward, terminated, truncated, success."""
        step_key, sticky_key = jax.random.split(key)
        last, begun = state.memory
        repeats = begun & jax.random.bernoulli(sticky_key, self._probability)
        action = jnp.where(repeats, last, action)
        inner, *rest = self._suite.step(step_key, state.inner, action)
        return Wrapped(inner, (action, jnp.bool_(True))), *rest


class FrameStack(Wrapper):
    """A suite whose observations are the last `size` ones, oldest first along the last axis (Mnih et al. 2015). At the
    start of an episode the first one stands for those before it."""

    def __init__(self, suite: Any, size: int):
        super().__init__(suite)
        self._size, (*rest, last) = size, suite.obs_shape
        self.obs_shape = (*rest, size * last)

    def _start(self, started: tuple[Any, jax.Array]) -> tuple[Wrapped, jax.Array]:
        inner, obs = started
        stack = jnp.concatenate([obs] * self._size, axis=-1)
        return Wrapped(inner, stack), stack

    def step(self, key: jax.Array, state: Wrapped, action: jax.Array) -> tuple:
        """Take a step. -> state, obs, reward, terminated, truncated, success."""
        inner, obs, *rest = self._suite.step(key, state.inner, action)
        stack = jnp.concatenate([state.memory[..., obs.shape[-1] :], obs], axis=-1)
        return Wrapped(inner, stack), stack, *rest


class TimeLimit(Wrapper):
    """A suite whose episodes are truncated after this many steps (Pardo et al. 2018), unless they end before."""

    def __init__(self, suite: Any, limit: int):
        super().__init__(suite)
        self._limit = limit

    def _start(self, started: tuple[Any, jax.Array]) -> tuple[Wrapped, jax.Array]:
        inner, obs = started
        return Wrapped(inner, jnp.int32(0)), obs

    def step(self, key: jax.Array, state: Wrapped, action: jax.Array) -> tuple:
        """Take a step. -> state, obs, reward, terminated, truncated, success."""
        inner, obs, reward, terminated, truncated, success = self._suite.step(key, state.inner, action)
        time = state.memory + 1
        return Wrapped(inner, time), obs, reward, terminated, truncated | (time >= self._limit), success
