"""Environments that run on the host, in Python or C++, inside the compiled rollout: Gymnasium's and envpool's.

A step is an ordered callback out of the compiled program. The environments themselves are no part of its state, so they
cannot be saved, and the program has to run on one device and for one seed.
"""

import json
import logging
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from common.actions import Box, Discrete
from common.run.arguments import UsageError
from common.suites.own import blame
from common.vector import Episode, Step, Suite, VectorEnv, ages

logging.getLogger("jax._src.callback").setLevel(logging.CRITICAL)  # or a failed callback is told twice, once by us

INT32 = np.iinfo(np.int32)
Read = Callable[[Any], np.ndarray]  # a suite's observations of N environments -> [N, *obs_shape]
Write = Callable[[np.ndarray], Any]  # actions [N, D] -> what a suite takes


class Pool(Protocol):
    """Some environments of one suite. They do not begin anew by themselves."""

    spaces: tuple[Any, Any]
    """Gymnasium's spaces of an observation and of an action of one environment."""
    file: str | None
    """Where the environment's code is, if it is Python."""

    def reset(self) -> Any:
        """Start an episode in each. -> observations."""

    def restart(self, ids: np.ndarray) -> Any:
        """Start an episode in some, ids [K] ascending. -> their observations, of K."""

    def step(self, actions: Any) -> tuple:
        """-> observations, reward, terminated, truncated, score (the reward that returns are counted in), over (whether
        an episode ended that counts). All [N, ...]."""


class HostSuite(Suite):
    """What a suite on the host says of itself, read off one environment, which also plays a step to be looked at."""

    sticky = 0.0  # the probability that an environment executes its last action again instead of the given one

    def __init__(self, name: str, make: Callable[..., Pool], kwargs: dict[str, Any]):
        """make(num_envs, seed, **kwargs): the environments."""
        self.name, self._make, self._kwargs, self._file = name, make, kwargs, None
        self._where = f"--env-id {name}" + (f" --env-kwargs {json.dumps(kwargs)}" if kwargs else "")
        pool = self._pool(1, 0)
        self._file, (observations, self._actions) = pool.file, pool.spaces
        self.obs_shape, self.obs_dtype, self._read = _reader(f"{self._where}: its observations", observations)
        self.action_space, self._write = _writer(f"{self._where}: its actions", self._actions)
        self.begin(1, 0, stagger=1)  # so that what does not work is known before anything is compiled

    def _pool(self, num_envs: int, seed: int) -> Pool:
        with self._blame("making it"):
            return self._make(num_envs, seed, **self._kwargs)

    def _blame(self, what: str) -> Any:
        return blame(self._where, what, self._file)

    def begin(self, num_envs: int, seed: int, stagger: int) -> tuple[Pool, np.ndarray, np.ndarray, np.ndarray]:
        """Make environments, start them, and play 0 to `stagger` random steps in each, evenly spread.
        -> pool, obs [N, ...], lengths and total scores [N] of the running episodes."""
        self._actions.seed(seed)
        pool = self._pool(num_envs, seed)
        with self._blame("reset"):
            obs = self._read(pool.reset())
        length, total = np.zeros(num_envs, np.int32), np.zeros(num_envs, np.float32)
        # All play on, and those that are to have played k steps in the end begin anew k steps before it.
        start = stagger - ages(num_envs, stagger)
        for time in range(stagger):
            obs, *_, score, over = self._step(pool, np.stack([self._actions.sample() for _ in range(num_envs)]))
            length, total = np.where(over, 0, length + 1), np.where(over, 0, total + score)
            ids = np.flatnonzero(start == time + 1)
            if ids.size:
                obs = self._restart(pool, obs, ids)
                length[ids], total[ids] = 0, 0
        return pool, obs, np.int32(length), np.float32(total)

    def step(self, pool: Pool, action: np.ndarray) -> tuple[np.ndarray, ...]:
        """Take a step with actions [N, D], and begin anew where an episode ended. -> obs to act on next, final_obs,
        reward, terminated, truncated, score, over (as in Pool.step)."""
        return self._step(pool, self._write(action))

    def _step(self, pool: Pool, actions: Any) -> tuple[np.ndarray, ...]:
        with self._blame("step"):
            final_obs, reward, terminated, truncated, score, over = pool.step(actions)
            obs = final_obs = self._read(final_obs)
        ids = np.flatnonzero(terminated | truncated)
        if ids.size:
            obs = self._restart(pool, final_obs, ids)
        return obs, final_obs, np.float32(reward), terminated, truncated & ~terminated, np.float32(score), over

    def _restart(self, pool: Pool, obs: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """The observations, with those of a new episode where one is started."""
        obs = obs.copy()
        with self._blame("reset"):
            obs[ids] = self._read(pool.restart(ids))
        return obs


class HostState(NamedTuple):
    """What a program carries of environments on the host: which they are, and the running sums of their episodes."""

    pool: jax.Array  # [1]
    action: jax.Array  # [N, D], executed last
    begun: jax.Array  # [N], whether there is one in this episode
    length: jax.Array
    total_reward: jax.Array


class HostVectorEnv(VectorEnv):
    """`num_envs` environments of a suite on the host, with the interface of VectorEnv."""

    def __init__(self, suite: HostSuite, num_envs: int, auto_reset: bool = True, reward_clip: float | None = None):
        super().__init__(suite, num_envs, auto_reset, reward_clip)
        self._pools: list[Pool] = []
        obs = jax.ShapeDtypeStruct((num_envs, *self.obs_shape), self.obs_dtype)
        flags, counts, floats = (jax.ShapeDtypeStruct((num_envs,), kind) for kind in (bool, jnp.int32, jnp.float32))
        self._started = jax.ShapeDtypeStruct((1,), jnp.int32), obs, counts, floats
        self._stepped = obs, obs, floats, flags, flags, floats, flags

    def reset(self, key: jax.Array, stagger: int = 0) -> tuple[HostState, jax.Array]:
        """Make environments and start an episode in each. -> state, obs [N, *obs_shape]. Those that the program made
        before keep running in training, where each chunk has its own, and are gone in an evaluation.

        stagger: as in VectorEnv.
        """

        def begin(seed: jax.Array) -> tuple[np.ndarray, ...]:
            if not self.auto_reset:
                self._pools.clear()
            pool, *started = self.suite.begin(self.num_envs, int(seed), stagger)
            self._pools.append(pool)
            return np.array([len(self._pools) - 1], np.int32), *started

        seed = jax.random.randint(key, (), 0, 2**30)
        pool, obs, length, total_reward = io_callback(begin, self._started, seed, ordered=True)
        none = jnp.zeros((self.num_envs, self.action_dim), self.action_space.dtype)
        return HostState(pool, none, jnp.zeros(self.num_envs, bool), length, total_reward), obs

    def reset_to(self, key: jax.Array, levels: jax.Array) -> tuple[HostState, jax.Array]:
        """A plain reset, because there are no levels."""
        return self.reset(key)

    def step(self, key: jax.Array, state: HostState, action: jax.Array) -> tuple[HostState, Step]:
        """Step all environments and restart those whose episode ended. action: [N, D]."""
        action = self.within_bounds(action)
        if self.suite.sticky:
            repeats = state.begun & jax.random.bernoulli(key, self.suite.sticky, (self.num_envs,))
            action = jnp.where(repeats[:, None], state.action, action)

        def step(pool: jax.Array, action: jax.Array) -> tuple[np.ndarray, ...]:
            return self.suite.step(self._pools[int(pool[0])], np.asarray(action))

        out = io_callback(step, self._stepped, state.pool, action, ordered=True)
        obs, final_obs, reward, terminated, truncated, score, over = out
        length, total_reward = state.length + 1, state.total_reward + score
        episode = Episode(over, length, total_reward, jnp.zeros_like(over))
        begun = ~(terminated | truncated)
        state = HostState(state.pool, action, begun, jnp.where(over, 0, length), jnp.where(over, 0.0, total_reward))
        return state, Step(obs, self.clipped(reward), terminated, truncated, final_obs, episode)


# Spaces


def _reader(where: str, space: Any) -> tuple[tuple[int, ...], np.dtype, Read]:
    """Gymnasium's space of observations -> obs_shape, obs_dtype, how to read them."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        one_hot = np.eye(space.n, dtype=bool)
        return (int(space.n),), one_hot.dtype, lambda obs: one_hot[np.asarray(obs) - space.start]
    if isinstance(space, spaces.MultiBinary):
        return space.shape, np.dtype(bool), lambda obs: np.asarray(obs, bool)
    if isinstance(space, spaces.Dict) and all(_is_real(part) for part in space.values()):
        size = sum(int(np.prod(part.shape)) for part in space.values())
        flat = lambda x: np.asarray(x, np.float32).reshape(len(x), -1)  # noqa: E731
        return (size,), np.dtype(np.float32), lambda obs: np.concatenate([flat(obs[name]) for name in space], axis=1)
    if not isinstance(space, spaces.Box):
        kinds = "Box, Discrete, MultiBinary or a Dict of Boxes of floats"
        raise UsageError(f"{where} are {_short(space)}; must be {kinds}")
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(space.dtype))
    if dtype == np.int32 and (space.low.min() < INT32.min or space.high.max() > INT32.max):
        dtype = np.dtype(np.float32)
    pixels = dtype == np.uint8 or np.issubdtype(dtype, np.floating)
    if pixels and len(space.shape) == 4:  # pictures of several channels, one upon another
        first = space.shape[1] < min(space.shape[2:])
        order = (0, 3, 4, 1, 2) if first else (0, 2, 3, 1, 4)
        *size, stack, channels = (space.shape[axis - 1] for axis in order[1:])
        shape = *size, stack * channels
        return shape, dtype, lambda obs: np.asarray(obs, dtype).transpose(order).reshape(-1, *shape)
    if pixels and len(space.shape) == 3 and space.shape[0] < min(space.shape[1:]):
        # A stack of pictures. Channels come last here.
        return (*space.shape[1:], space.shape[0]), dtype, lambda obs: np.moveaxis(np.asarray(obs, dtype), 1, -1)
    shape = space.shape or (1,)
    return shape, dtype, lambda obs: np.asarray(obs, dtype).reshape(-1, *shape)


def _writer(where: str, space: Any) -> tuple[Discrete | Box, Write]:
    """Gymnasium's space of actions -> ours, how to write its actions."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return Discrete((int(space.n),)), lambda action: (action[:, 0] + space.start).astype(space.dtype)
    if isinstance(space, spaces.MultiDiscrete):
        to_space = lambda action: action.reshape(-1, *space.shape) + space.start  # noqa: E731
        return Discrete(tuple(map(int, space.nvec.ravel()))), lambda action: to_space(action).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        shape = space.shape
        return Discrete((2,) * int(np.prod(shape))), lambda a: a.reshape(-1, *shape).astype(space.dtype)
    if _is_real(space):
        low, high = (np.asarray(x, np.float32).ravel() for x in (space.low, space.high))
        # Clipped again: float32 may have rounded a bound of float64 outwards, and environments assert theirs.
        exact = lambda action: action.reshape(-1, *space.shape).astype(space.dtype)  # noqa: E731
        return Box(low, high), lambda action: np.clip(exact(action), space.low, space.high)
    raise UsageError(f"{where} are {_short(space)}; must be Discrete, MultiDiscrete, MultiBinary or a Box of floats")


def _is_real(space: Any) -> bool:
    return hasattr(space, "low") and np.issubdtype(space.dtype, np.floating)


def _short(space: Any) -> str:
    return " ".join(str(space).split())[:100]
