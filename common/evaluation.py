"""Play episodes with a fixed policy, for scores and pictures."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from common.envs import copies
from common.run.arguments import UsageError
from common.run.tracking import say
from common.vector import Episode, VectorEnv, where

LONGEST = 2**17  # steps after which an episode of an evaluation counts as it is; Craftax's own limit is 100,000
MAX_FRAMES = 1000  # of a recorded episode
PIECE = 128  # steps of an evaluation between which it can be given up

# obs [N, ...], key, memory -> actions [N, D], memory. None is the memory of a policy without one.
Act = Callable[[Any, jax.Array, Any], tuple[jax.Array, Any]]


class Game(NamedTuple):
    """One episode in each of N environments."""

    key: jax.Array
    time: jax.Array  # [], steps taken
    env_state: Any
    obs: jax.Array
    memory: Any
    first: Episode  # [N], the episodes so far


def start(env: VectorEnv, levels: Any, key: jax.Array, memory: Any = None) -> Game:
    """Start an episode on each of these levels [N], if the suite has any. memory: before the first step."""
    key, reset_key = jax.random.split(key)
    env_state, obs = env.reset_to(reset_key, jnp.asarray(levels))
    nothing = Episode(*(jnp.zeros(env.num_envs, dtype) for dtype in (bool, jnp.int32, jnp.float32, bool)))
    return Game(key, jnp.int32(0), env_state, obs, memory, nothing)


def step(env: VectorEnv, act: Act, game: Game) -> Game:
    """Take a step in every environment. Only its first episode counts."""
    key, action_key, env_key = jax.random.split(game.key, 3)
    action, memory = act(game.obs, action_key, game.memory)
    env_state, out = env.step(env_key, game.env_state, action)
    if memory is not None:  # it ends with what training takes for an episode, such as a life
        memory = memory._replace(reset=out.terminated | out.truncated)
    first = where(game.first.done, game.first, out.episode)
    return Game(key, game.time + 1, env_state, out.obs, memory, first)


def go_on(env: VectorEnv, act: Act, game: Game, until: int | jax.Array) -> Game:
    """Take steps up to this one, or until all first episodes have ended.

    Taking the episodes that end within some time would over-represent short ones.
    """
    running = lambda game: ~game.first.done.all() & (game.time < until)  # noqa: E731
    return jax.lax.while_loop(running, partial(step, env, act), game)


def play(suite: Any, num_episodes: int, act: Act, key: jax.Array) -> Episode:
    """Play `num_episodes` episodes, each in its own environment and on its own level, for LONGEST steps at most.
    -> their statistics [num_episodes]."""
    env = copies(suite, num_episodes, auto_reset=False)
    return go_on(env, act, start(env, np.arange(num_episodes), key), LONGEST).first


class Player:
    """Scores and videos of a learner. policy(learner, obs [N, ...]) -> distribution over actions. With `memory`, a
    function from N to what a policy remembers before the first step, policy(learner, obs, memory) -> distribution,
    memory. A memory has a field `reset` [N]: whether an episode begins at the observation.

    Plays on one device, because all devices would play the same episodes.
    """

    def __init__(self, args: Any, suite: Any, policy: Callable[..., Any], memory: Callable[[int], Any] | None = None):
        if args.capture_video and not suite.can_draw:
            works = "MinAtar, classic control, Kinetix, xminigrid, Craftax and your own class with frames(states) work"
            raise UsageError(f"--capture-video: cannot draw {suite.name}; {works}")
        self._args, self._suite, self._policy, self._many = args, suite, policy, args.num_seeds > 1
        self._memory = memory or (lambda num: None)
        # Training splits this key, and split(key, n)[i] is fold_in(key, i): take an index that no split reaches.
        keys = [jax.random.fold_in(jax.random.key(args.seed + i), 2**31 - 1) for i in range(args.num_seeds)]
        self._key = jnp.stack(keys) if self._many else keys[0]  # each seed plays as it would by itself
        num_levels = suite.num_levels or max(1, args.num_eval_episodes)
        # Each level is played equally often.
        levels = np.tile(np.arange(num_levels), -(-args.num_eval_episodes // num_levels))
        env = copies(suite, len(levels), auto_reset=False)

        def started(learner: Any, key: jax.Array, update: jax.Array) -> Game:
            return start(env, levels, jax.random.fold_in(key, update), self._memory(len(levels)))

        def gone_on(learner: Any, game: Game, until: jax.Array) -> Game:
            return go_on(env, partial(self._act, learner), game, until)

        self._start, self._go_on = self._jit(started), self._jit(gone_on, donate=1)

    def _jit(self, function: Callable[..., Any], donate: int | None = None) -> Callable[..., Any]:
        """Jit a function of a learner, what belongs to its seed and a number, for all seeds. donate: an argument to
        reuse."""
        return jax.jit(jax.vmap(function, (0, 0, None)) if self._many else function, donate_argnums=donate)

    def _act(self, learner: Any, obs: jax.Array, key: jax.Array, memory: Any) -> tuple[jax.Array, Any]:
        """An Act: the most probable action with --eval-deterministic, else a sampled one."""
        if memory is None:
            dist = self._policy(learner, obs)
        else:
            dist, memory = self._policy(learner, obs, memory)
        return dist.mode() if self._args.eval_deterministic else dist.sample(key), memory

    def scores(
        self, learner: Any, update: int, given_up: Callable[[], bool] = lambda: False
    ) -> dict[str, jax.Array] | None:
        """Means over --num-eval-episodes episodes after this update, as eval/...; one value per seed if there are
        several. None if it is given up. An episode that has not ended after LONGEST steps counts as it is then."""
        learner = on_one_device(learner)
        # Put on the learner's device, as the next game is: JAX compiles _go_on again for arrays that are on none.
        key = jax.device_put(self._key, jax.tree.leaves(learner)[0].sharding)
        game = self._start(learner, key, update)
        for until in range(PIECE, LONGEST + PIECE, PIECE):
            game = self._go_on(learner, game, until)
            if (running := int((~game.first.done).sum())) == 0:
                break
            if given_up():
                return None
        if running:
            what = f"{running} of {game.first.done.size} episodes of the evaluation had not ended after {until:,} steps"
            say(f"warning: {what}, and count as they were then; --time-limit (on the host --env-kwargs) limits them")
        first = game.first
        means = {"eval/episodic_return": first.total_reward.mean(-1), "eval/episodic_length": first.length.mean(-1)}
        return means | ({"eval/solve_rate": first.success.mean(-1)} if self._suite.has_success else {})

    def film(self, state: Any) -> dict[str, Callable[[], list[np.ndarray]]]:
        """One episode of the (first) state.learner. -> {name: function that makes its pictures [H, W, 3] uint8}."""
        return {"final_policy": lambda: record(self._suite, [0], *self._first(state.learner), self._memory(1))[0]}

    def _one(self, tree: Any) -> Any:
        tree = on_one_device(tree)
        return jax.tree.map(lambda x: x[0], tree) if self._many else tree

    def _first(self, learner: Any) -> tuple[Act, jax.Array]:
        """How the (first) learner acts, and its key."""
        return partial(self._act, self._one(learner)), self._key[0] if self._many else self._key

    def table(self, scores: dict[str, np.ndarray]) -> str:
        """Text to print in addition to the summary: none."""
        return ""


def on_one_device(tree: Any) -> Any:
    """This process's first copy of arrays that are equal on all devices."""
    return jax.tree.map(lambda x: x.addressable_data(0), tree)


def record(suite: Any, levels: Sequence[int], act: Act, key: jax.Array, memory: Any = None) -> list[list[np.ndarray]]:
    """Pictures [H, W, 3] uint8 of the start of an episode on each of these levels. memory: as in `start`."""
    env = copies(suite, len(levels), auto_reset=False)
    game, go = jax.jit(partial(start, env, levels))(key, memory), jax.jit(partial(step, env, act))
    states: list[list[Any]] = [[] for _ in levels]
    shown = np.arange(len(levels))  # those whose episode had not ended before the last step
    while len(shown):
        now = jax.device_get(game.env_state.inner)
        for i in shown:
            states[i].append(jax.tree.map(lambda x, i=i: x[i], now))
        shown = np.flatnonzero(~np.asarray(game.first.done)) if game.time < MAX_FRAMES else []
        game = go(game)
    return [suite.frames(each) for each in states]
