"""How environments are stepped: many at once, as pure functions, with auto-reset and statistics of episodes.

A suite (common/suites/*.py) provides a single environment without auto-reset, as the protocol `Suite` says; what all of
them need is here. Those that are not written in JAX have a VectorEnv of their own (common/suites/host.py).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from common.actions import Box, Discrete


class Suite:
    """A single environment, without auto-reset, as pure JAX functions: no leading axis, no side effects. `state` is any
    pytree of arrays, whose structure, shapes and types are the same after `reset` and after every `step`.

    A user's own class (--env-id my_file:MyEnv) need not inherit from it, and may leave out what has a default, and what
    `reset` tells: obs_shape and obs_dtype.
    """

    name: str
    obs_shape: tuple[int, ...]
    obs_dtype: np.dtype
    action_space: Discrete | Box
    has_success: bool = False  # whether `success` means anything; it is then logged as charts/solve_rate
    num_levels: int | None = None  # size of a fixed set of levels, all of which an evaluation plays, if there is one
    can_draw: bool = False  # whether there are `frames`

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        """Start an episode. -> state, obs [*obs_shape] of obs_dtype."""

    def reset_to(self, key: jax.Array, level: jax.Array) -> tuple[Any, jax.Array]:
        """Start an episode of an evaluation, on level int32 [] < num_levels if there are levels. -> as `reset`."""
        return self.reset(key)

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> tuple:
        """Take a step with action [D], int32 for Discrete, float32 within the bounds for Box.

        -> state, obs [*obs_shape], reward float32 [], terminated bool [] (nothing comes after this), truncated bool []
        (cut here, as by a time limit: the value of obs is bootstrapped), success bool [] (counts at the end only).
        """

    def frames(self, states: list[Any]) -> list[np.ndarray]:
        """Pictures [H, W, 3] uint8 of these states of one episode, as NumPy arrays."""


class Episode(NamedTuple):
    """Statistics of the episodes that ended in this step, meaningful only where `done`. All [num_envs]."""

    done: jax.Array
    length: jax.Array
    total_reward: jax.Array
    success: jax.Array


class Step(NamedTuple):
    """One step of all environments. `obs` is what to act on next (after auto-reset). `final_obs` is the observation
    before the reset, whose value bootstraps a truncated episode. `terminated` and `truncated` exclude each other."""

    obs: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final_obs: jax.Array
    episode: Episode


class VectorState(NamedTuple):
    """State of all environments, with the running sums of their episodes."""

    inner: Any
    length: jax.Array
    total_reward: jax.Array


def episode_sums(episode: Episode) -> jax.Array:
    """Count of the episodes that ended, and sums of their rewards, lengths and successes, [4]. Sums can be added over
    steps and devices; means of means would count placeholders."""
    values = (jnp.ones_like(episode.length), episode.total_reward, episode.length, episode.success)
    return jnp.where(episode.done, jnp.stack([value.astype(jnp.float32) for value in values]), 0).sum(1)


def ages(num_envs: int, stagger: int) -> np.ndarray:
    """How many random steps each environment plays before training, [N]: 0 to `stagger`, evenly spread. The same holds
    about for any part of them that lie side by side, such as the blocks of sapg.py."""
    place = np.arange(num_envs) * (5**0.5 - 1) / 2 % 1  # by the golden section, what is near in index is far in place
    return np.argsort(np.argsort(place)) * (stagger + 1) // num_envs  # in NumPy, with 64 bits


def where(mask: jax.Array, yes: Any, no: Any) -> Any:
    """Per-environment choice between two pytrees. mask: [N], leaves: [N, ...]."""
    return jax.tree.map(lambda a, b: jnp.where(mask.reshape(mask.shape + (1,) * (b.ndim - 1)), a, b), yes, no)


class VectorEnv:
    """`num_envs` copies of one suite's environment. Without `auto_reset`, no episode follows one that has ended.
    Evaluation, which plays one episode in each environment, then makes (and compiles) no states that nobody needs.
    reward_clip: rewards to learn from lie within plus and minus this; the statistics are of the rewards themselves."""

    def __init__(self, suite: Suite, num_envs: int, auto_reset: bool = True, reward_clip: float | None = None):
        self.suite, self.num_envs, self.auto_reset, self.reward_clip = suite, num_envs, auto_reset, reward_clip
        self.obs_shape, self.obs_dtype, self.has_success = suite.obs_shape, suite.obs_dtype, suite.has_success
        self.action_space, self.action_dim = suite.action_space, len(suite.action_space[0])
        # Episodes rarely end together, so a step makes this many fresh states at a time, and only as often as needed.
        # In most suites, resetting every environment at every step would cost more than the step itself.
        self.resets_per_round = min(num_envs, max(8, num_envs // 16))

    def reset(self, key: jax.Array, stagger: int = 0) -> tuple[VectorState, jax.Array]:
        """Start an episode in each environment. -> state, obs [N, *obs_shape].

        stagger: first play 0 to `stagger` random steps, evenly spread over the environments, so that they are at
        different points of their episodes (Bharthulwar et al. 2025). The steps count as part of the episode.
        """
        inner, obs = jax.vmap(self.suite.reset)(jax.random.split(key, self.num_envs))
        started = self._start(inner), obs
        if not stagger:
            return started
        age = ages(self.num_envs, stagger)

        def step(time: jax.Array, started: tuple) -> tuple:
            # Indices beyond those of the reset keys: split(key, n)[i] is fold_in(key, i).
            action_key, step_key = jax.random.split(jax.random.fold_in(key, self.num_envs + time))
            action = self.action_space.sample(action_key, self.num_envs)
            state, out = self.step(step_key, started[0], action)
            return where(time < age, (state, out.obs), started)

        return jax.lax.fori_loop(0, stagger, step, started)

    def reset_to(self, key: jax.Array, levels: jax.Array) -> tuple[VectorState, jax.Array]:
        """Like `reset`, with environment i on level `levels[i]` of the suite's evaluation set (if it has levels)."""
        inner, obs = jax.vmap(self.suite.reset_to)(jax.random.split(key, self.num_envs), levels)
        return self._start(inner), obs

    def _start(self, inner: Any) -> VectorState:
        return VectorState(inner, jnp.zeros(self.num_envs, jnp.int32), jnp.zeros(self.num_envs, jnp.float32))

    def step(self, key: jax.Array, state: VectorState, action: jax.Array) -> tuple[VectorState, Step]:
        """Step all environments and restart those whose episode ended. action: [N, D]."""
        step_key, reset_key = jax.random.split(key)
        action = self.within_bounds(action)
        stepped = jax.vmap(self.suite.step)(jax.random.split(step_key, self.num_envs), state.inner, action)
        inner, final_obs, reward, terminated, truncated, success = stepped
        truncated = truncated & ~terminated  # a goal reached in the last allowed step is an end, not a time-out
        done = terminated | truncated
        length, total_reward = state.length + 1, state.total_reward + reward
        reward = self.clipped(reward)
        obs = final_obs
        if self.auto_reset:
            inner, obs = self._restart(reset_key, done, inner, final_obs)
        episode = Episode(done, length, total_reward, success & done)
        state = VectorState(inner, jnp.where(done, 0, length), jnp.where(done, 0.0, total_reward))
        return state, Step(obs, reward, terminated, truncated, final_obs, episode)

    def within_bounds(self, action: jax.Array) -> jax.Array:
        """The actions [N, D] as they are executed."""
        return jnp.clip(action, *self.action_space) if isinstance(self.action_space, Box) else action

    def clipped(self, reward: jax.Array) -> jax.Array:
        """The rewards [N] as they are learned from."""
        return reward if self.reward_clip is None else jnp.clip(reward, -self.reward_clip, self.reward_clip)

    def _restart(self, key: jax.Array, done: jax.Array, inner: Any, obs: jax.Array) -> tuple[Any, jax.Array]:
        """Give every finished environment its own fresh state: the k-th of them takes the k-th fresh state.

        Rounds of `resets_per_round` states are made until all are served, so no state is used twice or missing.
        """
        size, total, rank = self.resets_per_round, done.sum(), jnp.cumsum(done) - 1

        def one_round(carry: tuple) -> tuple:
            start, inner, obs = carry
            fresh = jax.vmap(self.suite.reset)(jax.random.split(jax.random.fold_in(key, start), size))
            slot = rank - start
            taken = jax.tree.map(lambda x: x[jnp.clip(slot, 0, size - 1)], fresh)
            inner, obs = where(done & (slot >= 0) & (slot < size), taken, (inner, obs))
            return start + size, inner, obs

        return jax.lax.while_loop(lambda carry: carry[0] < total, one_round, (jnp.int32(0), inner, obs))[1:]

    def episode_metrics(self, sums: jax.Array) -> dict[str, jax.Array]:
        """Means over episodes, from a total of `episode_sums` [4]; NaN if no episode ended."""
        count, (total_reward, length, successes) = sums[0], sums[1:] / sums[0]
        metrics = {"episodic_return": total_reward, "episodic_length": length, "num_episodes": count}
        metrics |= {"solve_rate": successes} if self.has_success else {}
        return {f"charts/{name}": value for name, value in metrics.items()}


class OnLevel(NamedTuple):
    """An environment, and the level to which it returns after each episode. `state` is the suite's."""

    state: Any
    begin: Any
    begin_obs: Any


class LevelEnv(VectorEnv):
    """Copies of one suite's environment, each with its own level for all of its episodes. A level is a state of the
    suite to start from, such as Kinetix's."""

    def __init__(self, suite: Any, num_envs: int):
        super().__init__(suite, num_envs, auto_reset=False)

    def start(self, levels: Any) -> tuple[VectorState, Any]:
        """Start an episode on each of the levels [N, ...]. -> state, obs [N, ...]."""
        inner, obs = jax.vmap(self.suite.start)(levels)
        return self._start(OnLevel(inner, inner, obs)), obs

    def step(self, key: jax.Array, state: VectorState, action: jax.Array) -> tuple[VectorState, Step]:
        """Like VectorEnv.step, but finished environments restart on their own level."""
        level = state.inner
        after, out = super().step(key, state._replace(inner=level.state), action)
        inner, obs = where(out.episode.done, (level.begin, level.begin_obs), (after.inner, out.final_obs))
        return after._replace(inner=level._replace(state=inner)), out._replace(obs=obs)
