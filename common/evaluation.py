"""Play episodes with a fixed policy, for scores and pictures."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from common import envs
from common.run.arguments import UsageError

# obs [N, ...], key -> actions [N, D]; of a policy with a memory: obs, key, memory -> actions, memory
Act = Callable[..., Any]


def play(suite: Any, num_episodes: int, act: Act, key: jax.Array, memory: Any = None) -> envs.Episode:
    """Play `num_episodes` episodes, each in its own environment. -> their statistics [num_episodes].

    Taking the episodes that end within some time would over-represent short ones. If the suite has a fixed set of
    levels, episode i is played on level i % num_levels. memory: of an `act` that has one, before the first step.
    """
    env = envs.copies(suite, num_episodes, auto_reset=False)
    key, reset_key = jax.random.split(key)
    env_state, obs = env.reset_to(reset_key, jnp.arange(env.num_envs))
    nothing = envs.Episode(*(jnp.zeros(env.num_envs, dtype) for dtype in (bool, jnp.int32, jnp.float32, bool)))

    def step(carry: tuple) -> tuple:
        key, env_state, obs, memory, first = carry
        key, action_key, env_key = jax.random.split(key, 3)
        action, memory = _act(act, obs, action_key, memory)
        env_state, out = env.step(env_key, env_state, action)
        return key, env_state, out.obs, memory, envs.where(first.done, first, out.episode)

    return jax.lax.while_loop(lambda carry: ~carry[-1].done.all(), step, (key, env_state, obs, memory, nothing))[-1]


def _act(act: Act, obs: jax.Array, key: jax.Array, memory: Any) -> tuple[jax.Array, Any]:
    """-> actions, memory; None stays None."""
    return (act(obs, key), None) if memory is None else act(obs, key, memory)


class Player:
    """Scores and videos of a learner. policy(learner, obs [N, ...]) -> distribution over actions. With `memory`, a
    function from N to what a policy remembers before the first step, policy(learner, obs, memory) -> distribution,
    memory.

    Plays on one device, because all devices would play the same episodes.
    """

    def __init__(self, args: Any, suite: Any, policy: Callable[..., Any], memory: Callable[[int], Any] | None = None):
        if args.capture_video and not suite.can_draw:
            works = "MinAtar, classic control, Kinetix, xminigrid, Craftax and your own class with frames(states) work"
            raise UsageError(f"--capture-video: cannot draw {suite.name}; {works}")
        self._args, self._suite, self._policy, self._many = args, suite, policy, args.num_seeds > 1
        self._memory = memory or (lambda num: None)
        # Training splits this key, and split(key, n)[i] is fold_in(key, i): take an index that no split reaches.
        self._key = jax.random.fold_in(jax.random.key(args.seed), 2**31 - 1)
        self._scores = self._jit(self._evaluate)

    def _jit(self, function: Callable[[Any, jax.Array], Any]) -> Callable[[Any, jax.Array], Any]:
        """Jit a function of a learner and a key, for all seeds."""
        return jax.jit(jax.vmap(function, (0, None)) if self._many else function)

    def _act(self, learner: Any, obs: jax.Array, key: jax.Array, *memory: Any) -> Any:
        """The most probable action with --eval-deterministic, else a sampled one. obs [N, ...] -> [N, D], as an Act."""
        dist, *memory = self._policy(learner, obs, *memory) if memory else (self._policy(learner, obs),)
        action = dist.mode() if self._args.eval_deterministic else dist.sample(key)
        return (action, *memory) if memory else action

    def _evaluate(self, learner: Any, key: jax.Array) -> dict[str, jax.Array]:
        """Means over --num-eval-episodes episodes, rounded up to play each of a fixed set of levels equally often."""
        num_levels = self._suite.num_levels or 1
        num_episodes = num_levels * -(-self._args.num_eval_episodes // num_levels)
        first = play(self._suite, num_episodes, partial(self._act, learner), key, self._memory(num_episodes))
        metrics = {"eval/episodic_return": first.total_reward.mean(), "eval/episodic_length": first.length.mean()}
        return metrics | ({"eval/solve_rate": first.success.mean()} if self._suite.has_success else {})

    def scores(self, learner: Any, update: int) -> dict[str, jax.Array]:
        """Means over episodes after this update, as eval/...; one value per seed if there are several."""
        return self._scores(on_one_device(learner), jax.random.fold_in(self._key, update))

    def film(self, learner: Any) -> dict[str, Callable[[], list[np.ndarray]]]:
        """One episode of the (first) learner. -> {name: function that makes its pictures [H, W, 3] uint8}."""

        def pictures() -> list[np.ndarray]:
            return record(self._suite, [None], partial(self._act, self._one(learner)), self._key, self._memory(1))[0]

        return {"final_policy": pictures}

    def _one(self, learner: Any) -> Any:
        learner = on_one_device(learner)
        return jax.tree.map(lambda x: x[0], learner) if self._many else learner

    def table(self, scores: dict[str, np.ndarray]) -> str:
        """Text to print in addition to the summary: none."""
        return ""


def on_one_device(tree: Any) -> Any:
    """This process's first copy of arrays that are equal on all devices."""
    return jax.tree.map(lambda x: x.addressable_data(0), tree)


def record(
    suite: Any, levels: Sequence[int | None], act: Act, key: jax.Array, memory: Any = None
) -> list[list[np.ndarray]]:
    """Pictures [H, W, 3] uint8 of an episode on each of these levels; [None] is an episode as in training. memory: of
    an `act` that has one."""
    env = envs.copies(suite, len(levels), auto_reset=False)
    key, reset_key = jax.random.split(key)
    reset = jax.jit(env.reset) if None in levels else partial(jax.jit(env.reset_to), levels=jnp.array(levels))
    return _record(env, reset(reset_key), act, key, memory, max_frames=1000)


def _record(
    env: envs.VectorEnv, started: tuple, act: Act, key: jax.Array, memory: Any, max_frames: int
) -> list[list[np.ndarray]]:
    """Pictures of the first episode in each environment."""

    @jax.jit
    def step(env_state: Any, obs: jax.Array, key: jax.Array, memory: Any) -> tuple:
        key, action_key, env_key = jax.random.split(key, 3)
        action, memory = _act(act, obs, action_key, memory)
        env_state, out = env.step(env_key, env_state, action)
        return env_state, out.obs, key, memory, out.episode.done

    (env_state, obs), running = started, np.ones(env.num_envs, bool)
    states: list[list[Any]] = [[] for _ in running]
    while running.any() and len(states[int(running.argmax())]) < max_frames:
        now = jax.device_get(env_state.inner)
        for i in np.flatnonzero(running):
            states[i].append(jax.tree.map(lambda x, i=i: x[i], now))
        env_state, obs, key, memory, done = step(env_state, obs, key, memory)
        running &= ~np.asarray(done)
    return [env.frames(each) for each in states]
