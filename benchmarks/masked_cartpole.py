"""CartPole-v1 without velocities, which a policy then has to remember: --env-id benchmarks/masked_cartpole.py:Masked"""

import jax
import jax.numpy as jnp
from gymnax.environments import spaces
from gymnax.environments.classic_control.cartpole import CartPole


class Masked(CartPole):
    """gymnax's CartPole-v1; observations are the cart's position and the pole's angle, float32 [2]."""

    def get_obs(self, state, params=None, key=None) -> jax.Array:
        return jnp.array([state.x, state.theta])

    def observation_space(self, params) -> spaces.Box:
        high = jnp.array([2 * params.x_threshold, 2 * params.theta_threshold_radians])
        return spaces.Box(-high, high, (2,), jnp.float32)
