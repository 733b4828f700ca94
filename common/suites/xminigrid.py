"""The MiniGrid tasks of XLand-MiniGrid (https://github.com/dunnolab/xland-minigrid): grid worlds in which an agent sees
the fields before it. XLand's own ids are left out: their worlds have no goal without a benchmark of rules, which would
have to be downloaded.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from common.actions import Discrete
from common.suites.gymnax import exactly
from common.vector import Suite

PREFIX = "xminigrid/"


def env_ids() -> list[str]:
    """All ids that `make` takes."""
    import xminigrid

    return [f"{PREFIX}{name}" for name in xminigrid.registered_environments() if name.startswith("MiniGrid-")]


def make(env_id: str, kwargs: dict[str, Any]) -> "XMiniGrid":
    """Make one of `env_ids`."""
    import xminigrid

    return XMiniGrid(*xminigrid.make(env_id.removeprefix(PREFIX), **kwargs), env_id)


class XMiniGrid(Suite):
    """One environment with its parameters. The suite observes numbers of tiles and of colours, which have no order that
    a network could use; here each tile and each colour has a plane of its own."""

    has_success = can_draw = True

    def __init__(self, env: Any, params: Any, name: str):
        from xminigrid.core.constants import NUM_COLORS, NUM_TILES
        from xminigrid.types import TimeStep

        self.env, self.params, self.name = env, params, name
        self._kinds, self._time_step = (NUM_TILES, NUM_COLORS), TimeStep
        self._like = jax.eval_shape(lambda key: env.reset(params, key), jax.random.key(0)).state
        self.obs_shape, self.obs_dtype = (params.view_size, params.view_size, sum(self._kinds)), np.dtype(bool)
        self.action_space = Discrete((env.num_actions(params),))

    def _observe(self, seen: jax.Array) -> jax.Array:
        """Tiles and colours uint8 [H, W, 2] -> bool [H, W, tiles + colours]."""
        planes = [seen[..., i, None] == jnp.arange(kinds, dtype=seen.dtype) for i, kinds in enumerate(self._kinds)]
        return jnp.concatenate(planes, axis=-1)

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        begin = self.env.reset(self.params, key)
        return exactly(begin.state, self._like), self._observe(begin.observation)

    def _at(self, state: Any) -> Any:
        """What the suite's functions take; they look at the state alone."""
        return self._time_step(state=state, step_type=None, reward=None, discount=None, observation=None)

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> tuple:
        """Take a step. -> state, obs, reward, terminated, truncated, success."""
        after = self.env.step(self.params, self._at(state), action[0])
        terminated = after.last() & (after.discount == 0)  # so the suite tells an end from the time limit
        reward = jnp.asarray(after.reward, jnp.float32)
        success = reward > 0  # in Memory the wrong choice ends an episode, too
        obs, truncated = self._observe(after.observation), after.last() & ~terminated
        return exactly(after.state, self._like), obs, reward, terminated, truncated, success

    def frames(self, states: list[Any]) -> list[np.ndarray]:
        """The whole world, and what the agent sees in a lighter shade."""
        return [self.env.render(self.params, self._at(state)) for state in states]
