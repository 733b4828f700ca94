"""Environments by id: of eight suites (common/suites/*.py), or a class of one's own.

    env = make("Breakout-MinAtar", num_envs=2048)
    state, obs = env.reset(key)
    state, step = env.step(key, state, action)

Everything has a leading `num_envs` axis. common/vector.py says how they are stepped.
"""

import difflib
import importlib
import json
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from common.actions import Box, Discrete
from common.run.arguments import UsageError, flag
from common.suites import gymnax, own
from common.suites.host import HostSuite, HostVectorEnv
from common.suites.wrappers import FrameStack, Sticky, TimeLimit
from common.vector import Episode, LevelEnv, Step, Suite, VectorEnv, VectorState, episode_sums

__all__ = ["Box", "Discrete", "Episode", "LevelEnv", "Step", "Suite", "VectorEnv", "VectorState"]
__all__ += ["changes", "episode_sums", "make"]

# Where --env-id looks besides in files of the user's: common/suites/<suite>.py. With an example of each.
SUITES = {
    "gymnax": "CartPole-v1",
    "kinetix": "kinetix/locomotion",
    "gymnasium": "gymnasium/CartPole-v1",
    "envpool": "envpool/Pong-v5",
    "xminigrid": "xminigrid/MiniGrid-DoorKey-8x8",
    "craftax": "craftax/Craftax-Classic-Symbolic-v1",
    "brax": "brax/ant",
    "playground": "playground/CartpoleBalance",
}
# The suites with a requirements-<suite>.txt of their own, and the packages that they import.
OPTIONAL = {suite: suite for suite in SUITES if suite not in ("gymnax", "kinetix")}
OPTIONAL["playground"] = "mujoco_playground"
HOST_SUITES = ("gymnasium", "envpool")


def changes(args: Any) -> dict[str, Any]:
    """Those of a script's arguments that change the environment, as `make` takes them."""
    return {name: getattr(args, name) for name in ("sticky_actions", "frame_stack", "time_limit", "reward_clip")}


def make(
    env_id: str,
    num_envs: int,
    num_levels: int = 512,
    env_kwargs: str | None = None,
    *,
    sticky_actions: float = 0.0,
    frame_stack: int = 1,
    time_limit: int | None = None,
    reward_clip: float | None = None,
) -> VectorEnv:
    """Make `env_id`: an id of one of the SUITES, or `my_file:MyEnv` for a class of one's own.

    num_levels: size of the fixed level set of `kinetix/locomotion`. env_kwargs: arguments of the environment, as JSON.
    The others are the scripts' flags.
    """
    theirs = {"frame_stack": (frame_stack, 1, "stack_num"), "time_limit": (time_limit, None, "max_episode_steps")}
    for name, (value, off, argument) in theirs.items():
        if on_host(env_id) and value != off:
            advice = f"most of these have an argument for it, such as --env-kwargs '{json.dumps({argument: value})}'"
            if argument == "stack_num" and env_id.startswith("gymnasium/"):
                advice = "register an environment with gymnasium.wrappers.FrameStackObservation"
            raise UsageError(f"{flag(name)} {value}: {env_id} runs on the host; {advice}")
    suite = make_suite(env_id, num_levels, env_kwargs)
    if on_host(env_id):
        suite.sticky = sticky_actions
    elif sticky_actions:
        suite = Sticky(suite, sticky_actions)
    if frame_stack > 1 and not suite.obs_shape:
        raise UsageError(f"--frame-stack {frame_stack}: observations of {env_id} are single numbers; must have an axis")
    suite = FrameStack(suite, frame_stack) if frame_stack > 1 else suite
    suite = TimeLimit(suite, time_limit) if time_limit else suite
    return copies(suite, num_envs, reward_clip=reward_clip)


def copies(suite: Suite, num_envs: int, auto_reset: bool = True, reward_clip: float | None = None) -> VectorEnv:
    """`num_envs` copies of a suite's environment, on the host if that is where the suite is."""
    kind = HostVectorEnv if isinstance(suite, HostSuite) else VectorEnv
    return kind(suite, num_envs, auto_reset, reward_clip)


def make_suite(env_id: str, num_levels: int, env_kwargs: str | None = None) -> Suite:
    """The single environment behind `env_id`, without auto-reset."""
    (suite, _, name), kwargs = env_id.partition("/"), own.parse_kwargs(env_kwargs)
    try:
        if on_host(env_id):
            return _module(suite).make(env_id, kwargs)
        if env_id in gymnax.env_ids():
            return own.registered(env_id, kwargs) if kwargs else gymnax.make(env_id)
        if ":" in env_id:
            return own.make(env_id, kwargs)
        if suite == "kinetix" and name in _module(suite).level_names():
            if kwargs:
                raise UsageError(f"--env-kwargs {env_kwargs}: {env_id} takes none; all but Kinetix's ids do")
            return _module(suite).make(name, num_levels)
        if suite in OPTIONAL and env_id in env_ids(suite):
            return own.optional(_module(suite), env_id, kwargs)
    except ModuleNotFoundError as error:
        raise UsageError(f"--env-id {env_id}: {missing(error, suite)}") from None
    except OSError as error:  # MNISTBandit-bsuite downloads its data
        raise UsageError(f"--env-id {env_id}: cannot be loaded ({error})") from None
    if env_id.endswith(".py"):
        raise UsageError(f"--env-id {env_id}: is a file; say which class in it, {env_id}:MyEnv")
    if "/" in env_id and suite not in SUITES:
        known = f"{', '.join(SUITES.values())} and my_file:MyEnv for your own"
        raise UsageError(f"--env-id {env_id}: no suite {suite!r}; there are such as {known}")
    raise UsageError(f"--env-id {env_id}: no such environment; did you mean {nearest(env_id)}?")


def check_images(args: Any, env: VectorEnv) -> None:
    """Raise UsageError if --network is made of convolutions that cannot take these observations."""
    least = {"mlp": 0, "cnn": 3, "nature": 36, "impala": 1}[args.network]
    if least and (len(env.obs_shape) != 3 or min(env.obs_shape[:2]) < least):
        needs = f"needs images of at least {least} x {least}"
        raise UsageError(f"--network {args.network}: {needs}; {args.env_id} has observations of shape {env.obs_shape}")


def on_host(env_id: str) -> bool:
    """Whether these environments run on the host, in Python or C++, and not in JAX."""
    return env_id.partition("/")[0] in HOST_SUITES


def device_limit(args: Any) -> int | None:
    """The most devices that can train on --env-id: one if it runs on the host, None if any number can."""
    if not on_host(args.env_id):
        return None
    for name, count in (("num_seeds", args.num_seeds), ("num_devices", args.num_devices)):
        if count is not None and count > 1:
            advice = "start one run per seed" if name == "num_seeds" else "leave it out"
            host = f"{args.env_id} runs on the host, which trains one seed on one device"
            raise UsageError(f"{flag(name)} {count}: {host}; {advice}")
    if args.distributed:
        raise UsageError(f"--distributed: {args.env_id} runs on the host, in one process; leave it out")
    return 1


# Names


def _module(suite: str) -> Any:
    return importlib.import_module(f"common.suites.{suite}")


def env_ids(suite: str) -> list[str]:
    """All ids of one of the SUITES. Raises ModuleNotFoundError if it is not installed."""
    return _module(suite).env_ids()


def how_to_install(suite: str) -> str:
    return f"pip install -r requirements{f'-{suite}' if suite in OPTIONAL else ''}.txt"


def missing(error: ModuleNotFoundError, suite: str) -> str:
    """What is not installed, and what would install it, for an error message."""
    return f"{error.name.partition('.')[0]} is not installed; {how_to_install(suite)}"


def nearest(env_id: str) -> str:
    """The ids that look most like `env_id`, for an error message: of its suite, or of those always installed."""
    suite = env_id.partition("/")[0]
    known = env_ids(suite) if suite in OPTIONAL else env_ids("gymnax") + env_ids("kinetix")
    lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(env_id.lower(), lower, n=4, cutoff=0.4)
    return ", ".join([lower[name] for name in close] or SUITES.values())


def listed(suites: Sequence[str]) -> str:
    """What --list-envs prints: all ids of these suites or, if none is named, a line for each suite."""
    if not suites:
        state = {s: "installed" if find_spec(OPTIONAL.get(s, s)) else how_to_install(s) for s in SUITES}
        return "\n".join(f"{suite:<11}{example:<37}{state[suite]}" for suite, example in SUITES.items())
    lines = []
    for suite in suites:
        if suite not in SUITES:
            raise UsageError(f"--list-envs {suite}: no such suite; there are {', '.join(SUITES)}")
        try:
            lines += env_ids(suite)
        except ModuleNotFoundError as error:
            raise UsageError(f"--list-envs {suite}: {missing(error, suite)}") from None
    return "\n".join(lines)
