"""envpool (https://github.com/sail-sg/envpool), `--env-id envpool/<id>`: Atari, Procgen, MuJoCo, MiniGrid and others in
C++, stepped by several threads."""

import contextlib
import ctypes
import difflib
import importlib.util
import re
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from common.run.arguments import UsageError
from common.suites.host import HostSuite

# Where max_episode_steps cuts no episode. What ends after so many steps then counts as truncated, and not as an end.
NO_LIMIT = re.compile("highway|jumanji/(?!.*Sokoban)|pgx|procgen|toy_text.*/(Catch|CliffWalking|Blackjack)")


def env_ids() -> list[str]:
    """All ids that `make` takes."""
    _load_qt()
    import envpool

    return [f"envpool/{name}" for name in envpool.list_all_envs()]


def make(env_id: str, kwargs: dict[str, Any]) -> HostSuite:
    """Make envpool/<id>. kwargs are those of envpool.make, such as frame_skip."""
    name, known = env_id.removeprefix("envpool/"), [known.removeprefix("envpool/") for known in env_ids()]
    if name not in known:
        near = ", ".join(difflib.get_close_matches(name, known, n=4, cutoff=0.4)) or "Pong-v5, HalfCheetah-v5"
        raise UsageError(f"--env-id {env_id}: envpool has no {name}; did you mean {near}?")
    return HostSuite(env_id, partial(Environments, name), kwargs)


def _load_qt() -> None:
    """Load PyQt5-Qt5's libraries, if they are there, in the order in which they need each other: Procgen draws with
    them, and envpool looks for them when it is imported."""
    spec = importlib.util.find_spec("PyQt5")
    folder = Path(spec.submodule_search_locations[0], "Qt5", "lib") if spec else Path()
    for name in ("icudata", "icuuc", "icui18n", "Qt5Core", "Qt5Gui"):
        for file in folder.glob(f"lib{name}.so.*"):
            with contextlib.suppress(OSError):  # no libGL or glib on this machine: only Procgen needs them
                ctypes.CDLL(str(file), ctypes.RTLD_GLOBAL)


class Environments:
    """A pool of envpool's environments, stepped all at once."""

    file = None

    def __init__(self, name: str, num_envs: int, seed: int, **kwargs: Any):
        import envpool
        from envpool.registration import registry

        sizes, family = {"num_envs": num_envs, "batch_size": num_envs}, registry.specs[name][0]
        if "max_episode_steps" in kwargs and NO_LIMIT.search(f"{family}/{name}"):
            raise UsageError(f"--env-id envpool/{name}: max_episode_steps cuts none of its episodes; leave it out")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on the precision of bounds
            self._envs = envpool.make(name, env_type="gymnasium", seed=seed, **sizes, **kwargs)
            self.spaces = self._envs.observation_space, self._envs.action_space
        self._ended = np.zeros(num_envs, bool)
        self._is_minigrid, self._is_atari = (family == f"envpool.{suite}" for suite in ("minigrid", "atari"))
        # With a dict such as of MuJoCo Playground's hands the rest of it is for a critic that knows more.
        self._has_more = "privileged_state" in getattr(self.spaces[0], "spaces", {})
        if self._is_minigrid:
            view = self.spaces[0]["image"]
            self.spaces = type(view)(0, 127, view.shape, np.int8), self.spaces[1]
        elif self._has_more:
            self.spaces = self.spaces[0]["state"], self.spaces[1]

    def _view(self, obs: Any) -> Any:
        """Of MiniGrid what the agent sees: symbols, hence not uint8, by which the networks know pixels."""
        if self._is_minigrid:
            return obs["image"].astype(np.int8)
        return obs["state"] if self._has_more else obs

    def reset(self) -> Any:
        return self._view(self._envs.reset()[0])

    def restart(self, ids: np.ndarray) -> Any:
        ids, ended = ids.astype(np.int32), self._ended[ids].all()
        self._ended[ids] = False
        # After an end a step takes no action and starts the next episode: with episodic_life, the next life of the same
        # game. `reset` would always start another game.
        nothing = np.zeros((len(ids), *self.spaces[1].shape), self.spaces[1].dtype)
        return self._view(self._envs.step(nothing, ids)[0] if ended else self._envs.reset(ids)[0])

    def step(self, actions: Any) -> tuple:
        obs, reward, terminated, truncated, info = self._envs.step(actions)
        self._ended = terminated | truncated
        score, over = reward, terminated
        if self._is_atari:  # the game's own, whatever reward_clip and episodic_life make of them
            score, over = info["reward"], info["terminated"] != 0
        return self._view(obs), reward, terminated, truncated, score, over | truncated
