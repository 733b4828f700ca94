"""MuJoCo Playground (https://github.com/google-deepmind/mujoco_playground): the control suite and robots, in MJX."""

import contextlib
import io
import subprocess
from typing import Any

from common.run.arguments import UsageError
from common.run.tracking import say
from common.suites.brax import Brax, quiet
from common.suites.wrappers import TimeLimit

PREFIX = "playground/"
MODELS = "https://github.com/google-deepmind/mujoco_menagerie"


def _registry() -> Any:
    with quiet():
        from mujoco_playground import registry
    return registry


def env_ids() -> list[str]:
    """All ids that `make` takes."""
    return [f"{PREFIX}{name}" for name in _registry().ALL_ENVS]


def make(env_id: str, kwargs: dict[str, Any]) -> TimeLimit:
    """Make one of `env_ids`. kwargs: of its configuration, "group.name" in a group. Those that are no part of the
    control suite download their models the first time."""
    name = env_id.removeprefix(PREFIX)
    config = _registry().get_default_config(name)
    config.impl = "jax"  # not warp, which needs an NVIDIA GPU
    config.lock().update_from_flattened_dict(kwargs)
    from mujoco_playground._src import mjx_env

    if name not in _registry().dm_control_suite.ALL_ENVS and not mjx_env.MENAGERIE_PATH.exists():
        say(f"{env_id}: downloading the models of all robots from {MODELS}, once")
    try:
        with quiet(), contextlib.redirect_stderr(io.StringIO()):
            env = _registry().load(name, config=config)
    except subprocess.CalledProcessError:
        others = f"the control suite, such as {PREFIX}CartpoleBalance, needs none"
        raise UsageError(f"--env-id {env_id}: its models could not be downloaded from {MODELS}; {others}") from None
    return TimeLimit(Brax(env, env_id, config.action_repeat), -(-config.episode_length // config.action_repeat))
