"""A toy suite of levels for sfl_kinetix.py, with success rates and lengths that are known. Computes nothing when
imported, so that processes can meet first."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import sfl_kinetix
from common.actions import Categorical, Discrete


class Coin(NamedTuple):
    """A level: after `quick` steps it is solved with probability p, else it goes on until it fails after `slow`."""

    p: jax.Array
    quick: jax.Array
    slow: jax.Array
    number: jax.Array
    time: jax.Array


class Coins:
    """What Kinetix offers to sfl_kinetix.py, with levels whose success rates and lengths are known."""

    name, max_steps, num_levels = "coins", 256, None
    action_space = Discrete((2,))
    obs_shape = obs_dtype = None
    has_success = can_draw = True
    level_bytes = 16

    def __init__(self, levels=None):
        self.levels, self.num_levels = levels, levels and len(levels.p)

    @property
    def empty_level(self):
        return Coin(*np.zeros(5, np.float32))

    def start(self, level):
        return level, self.observe(level)

    def reset_to(self, key, index):
        return self.start(jax.tree.map(lambda x: jnp.asarray(x)[index % self.num_levels], self.levels))

    def observe(self, state):
        return {"number": state.number[None], "late": state.time[None] > 3}

    def step(self, key, state, action):
        state = state._replace(time=state.time + 1)
        success = (state.time == state.quick) & (jax.random.uniform(key) < state.p)
        terminated = success | (state.time >= state.slow)
        return state, self.observe(state), success.astype(jnp.float32), terminated, state.time >= 256, success

    def sample_filtered(self, key, num):
        numbers = jax.random.randint(key, (num,), 1, 1 << 20).astype(jnp.float32)
        return coins(p=jax.random.uniform(key, (num,)), quick=2.0, slow=3.0, number=numbers)

    def pack(self, level):
        return jax.lax.bitcast_convert_type(jnp.stack(level[:4]), jnp.uint8).ravel()

    def unpack(self, data):
        return Coin(*jax.lax.bitcast_convert_type(data.reshape(4, 4), jnp.float32), jnp.float32(0))

    def on(self, levels):
        return Coins(levels)

    def frames(self, states):
        return [np.zeros((4, 4, 3), np.uint8) for _ in states]


def coins(p, quick=30.0, slow=256.0, number=0.0):
    """Levels [n]; what is given once is the same in all."""
    n = max(np.size(x) for x in (p, quick, slow, number))
    return Coin(*(jnp.broadcast_to(jnp.float32(x), (n,)) for x in (p, quick, slow, number, 0.0)))


class Net(nn.Module):
    @nn.compact
    def __call__(self, obs):
        x = nn.tanh(nn.Dense(4)(obs["number"] / 1e6))
        self.sow("intermediates", "hidden", x)
        return nn.Dense(2)(x), nn.Dense(1)(x)[..., 0]


class ToyNetwork:
    """In place of Kinetix's."""

    def __init__(self, suite=None, model=None, compute_dtype=None):
        self.net = Net()

    def init(self, key):
        return {"params": self.net.init(key, {"number": jnp.zeros((1, 1))})["params"]}

    def apply(self, params, obs):
        logits, value = self.net.apply(params, obs)
        return Categorical(logits, (2,)), value

    def hidden(self, params, obs):
        _, sown = self.net.apply(params, obs, mutable="intermediates")
        return {"actor": sown["intermediates"], "critic": sown["intermediates"]}


def install(put=setattr):
    """Coins in the place of Kinetix, with one level that is always solved and one that never is to evaluate on."""

    def make_evaluation(size, num):
        return Coins(jax.device_get(coins(p=[1.0, 0.0], quick=2.0, slow=4.0))), ["h0_weak_thrust", "random_0"]

    put(sfl_kinetix.kinetix, "make_entities", lambda size: Coins())
    put(sfl_kinetix.kinetix, "make_evaluation", make_evaluation)
    put(sfl_kinetix, "ActorCritic", ToyNetwork)
