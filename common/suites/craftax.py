"""Craftax and Craftax-Classic (https://github.com/MichaelTMatthews/Craftax) with symbolic observations."""

import contextlib
import importlib
import io
from typing import Any

import jax
import numpy as np

from common.suites.gymnax import Gymnax

PREFIX = "craftax/"
GAMES = {"Craftax-Classic-Symbolic-v1": "craftax_classic", "Craftax-Symbolic-v1": "craftax"}
NEVER = np.iinfo(np.int32).max
BLOCK = 16  # pixels of a block: a picture is 144 pixels wide


def env_ids() -> list[str]:
    """All ids that `make` takes."""
    import craftax  # noqa: F401 (reports its absence)

    return [f"{PREFIX}{name}" for name in GAMES]


def make(env_id: str, kwargs: dict[str, Any]) -> Gymnax:
    """Make one of `env_ids`. kwargs are parameters, and those that decide on shapes."""
    from craftax.craftax_env import make_craftax_env_from_name

    name = env_id.removeprefix(PREFIX)
    # Not the one with auto-reset, which makes a new world in every step.
    env = make_craftax_env_from_name(name, auto_reset=False)
    fields = env.static_env_params.__dataclass_fields__
    shapes = {key: tuple(x) if isinstance(x, list) else x for key, x in kwargs.items() if key in fields}
    params = env.default_params.replace(**{key: x for key, x in kwargs.items() if key not in fields})
    return Gymnax(Game(type(env)(env.static_env_params.replace(**shapes)), GAMES[name]), params, env_id)


class Game:
    """A game in gymnax's style. Craftax itself does not tell the time limit from the other ends."""

    def __init__(self, env: Any, package: str):
        self._env, self._package = env, package
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.reset_env = env.reset_env

    def step_env(self, key: jax.Array, state: Any, action: jax.Array, params: Any) -> tuple:
        """Take a step. -> obs, state, reward, terminated, info."""
        obs, state, reward, _, info = self._env.step_env(key, state, action, params)
        return obs, state, reward, self._env.is_terminal(state, params.replace(max_timesteps=NEVER)), info

    def is_truncated(self, state: Any, params: Any) -> jax.Array:
        return state.timestep >= params.max_timesteps

    def frames(self, states: list[Any]) -> list[np.ndarray]:
        """What a player sees, with the inventory below. The first time, craftax takes a minute for its textures."""
        renderer = importlib.import_module(f"craftax.{self._package}.renderer")
        with contextlib.redirect_stdout(io.StringIO()):  # it tells about its cache
            draw = jax.jit(renderer.make_craftax_pixel_renderer(BLOCK))
        return [np.asarray(draw(state)).clip(0, 255).astype(np.uint8) for state in states]
