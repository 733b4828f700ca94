"""One interface to all environments: batched, pure, auto-resetting, with episode statistics.

    env = make("Breakout-MinAtar", num_envs=2048)
    state, obs = env.reset(key)
    state, step = env.step(key, state, action)

Everything has a leading `num_envs` axis. A suite (common/suites/*.py) provides a single environment without
auto-reset, as the protocol `Suite` says; what all suites need is implemented here. Environments that are not written in
JAX have a VectorEnv of their own (common/suites/host.py).
"""

import difflib
import importlib
import json
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from common.actions import Box, Discrete
from common.run.arguments import UsageError, flag
from common.suites import gymnax as gymnax_suite, own
from common.suites.wrappers import FrameStack, Sticky, TimeLimit

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


class Suite(Protocol):
    """A single environment, without auto-reset, as pure JAX functions: no leading axis, no side effects. `state` is any
    pytree of arrays, whose structure, shapes and types are the same after `reset` and after every `step`.

    A user's own class (--env-id my_file:MyEnv) may leave out all but obs_shape, action_space, reset and step.
    """

    name: str
    obs_shape: tuple[int, ...]
    obs_dtype: np.dtype
    action_space: Discrete | Box
    has_success: bool
    """Whether `success` means anything; it is then logged as charts/solve_rate."""
    num_levels: int | None
    """Size of a fixed set of levels, all of which an evaluation plays; None if there is none."""
    can_draw: bool
    """Whether there are `frames`."""

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        """Start an episode. -> state, obs [*obs_shape] of obs_dtype."""

    def reset_to(self, key: jax.Array, level: jax.Array) -> tuple[Any, jax.Array]:
        """Start an episode of an evaluation, on level int32 [] < num_levels if there are levels. -> as `reset`."""

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


def episode_sums(episode: Episode) -> jax.Array:
    """Count of the episodes that ended, and sums of their rewards, lengths and successes, [4]. Sums can be added over
    steps and devices; means of means would count placeholders."""
    values = (jnp.ones_like(episode.length), episode.total_reward, episode.length, episode.success)
    return jnp.where(episode.done, jnp.stack([value.astype(jnp.float32) for value in values]), 0).sum(1)


class VectorState(NamedTuple):
    """State of all environments, with the running sums of their episodes."""

    inner: Any
    length: jax.Array
    total_reward: jax.Array


def ages(num_envs: int, stagger: int) -> np.ndarray:
    """How many random steps each environment plays before training, [N]: 0 to `stagger`, evenly spread. The same holds
    about for any part of them that lie side by side, such as the blocks of sapg.py."""
    place = np.arange(num_envs) * (5**0.5 - 1) / 2 % 1  # by the golden section, what is near in index is far in place
    rank = np.argsort(np.argsort(place))
    return rank * (stagger + 1) // num_envs  # in NumPy, with 64 bits


def where(mask: jax.Array, yes: Any, no: Any) -> Any:
    """Per-environment choice between two pytrees. mask: [N], leaves: [N, ...]."""
    return jax.tree.map(lambda a, b: jnp.where(mask.reshape(mask.shape + (1,) * (b.ndim - 1)), a, b), yes, no)


class VectorEnv:
    """`num_envs` copies of one suite's environment. Without `auto_reset`, no episode follows one that has ended.
    Evaluation, which plays one episode in each environment, then makes (and compiles) no states that nobody needs.
    reward_clip: rewards to learn from lie within plus and minus this; the statistics are of the rewards themselves."""

    def __init__(self, suite: Suite, num_envs: int, auto_reset: bool = True, reward_clip: float | None = None):
        self.suite = suite
        self.reward_clip = reward_clip
        self.auto_reset = auto_reset
        self.num_envs = num_envs
        self.obs_shape, self.obs_dtype = suite.obs_shape, suite.obs_dtype
        self.action_space = suite.action_space
        self.action_dim = len(suite.action_space[0])
        self.has_success = suite.has_success
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
        if isinstance(self.action_space, Box):
            action = jnp.clip(action, self.action_space.low, self.action_space.high)
        step_keys = jax.random.split(step_key, self.num_envs)
        inner, final_obs, reward, terminated, truncated, success = jax.vmap(self.suite.step)(
            step_keys, state.inner, action
        )
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

    def clipped(self, reward: jax.Array) -> jax.Array:
        """The rewards [N] as they are learned from."""
        return reward if self.reward_clip is None else jnp.clip(reward, -self.reward_clip, self.reward_clip)

    def _restart(self, key: jax.Array, done: jax.Array, inner: Any, obs: jax.Array) -> tuple[Any, jax.Array]:
        """Give every finished environment its own fresh state: the k-th of them takes the k-th fresh state.

        Rounds of `resets_per_round` states are made until all are served, so no state is used twice or missing.
        """
        size, total = self.resets_per_round, done.sum()
        rank = jnp.cumsum(done) - 1

        def one_round(carry: tuple) -> tuple:
            start, inner, obs = carry
            keys = jax.random.split(jax.random.fold_in(key, start), size)
            fresh = jax.vmap(self.suite.reset)(keys)
            slot = rank - start
            taken = jax.tree.map(lambda x: x[jnp.clip(slot, 0, size - 1)], fresh)
            inner, obs = where(done & (slot >= 0) & (slot < size), taken, (inner, obs))
            return start + size, inner, obs

        _, inner, obs = jax.lax.while_loop(lambda carry: carry[0] < total, one_round, (jnp.int32(0), inner, obs))
        return inner, obs

    def episode_metrics(self, sums: jax.Array) -> dict[str, jax.Array]:
        """Means over episodes, from a total of `episode_sums` [4]; NaN if no episode ended."""
        count, (total_reward, length, successes) = sums[0], sums[1:] / sums[0]
        metrics = {"episodic_return": total_reward, "episodic_length": length, "num_episodes": count}
        metrics |= {"solve_rate": successes} if self.has_success else {}
        return {f"charts/{name}": value for name, value in metrics.items()}

    def frames(self, states: list[Any]) -> list[np.ndarray]:
        """Pictures [H, W, 3] uint8 of one environment's states (`VectorState.inner` without its leading axis)."""
        return self.suite.frames(states)


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
    if on_host(env_id):
        if frame_stack > 1:
            theirs = json.dumps({"stack_num": frame_stack})
            advice = f"envpool's Atari has --env-kwargs '{theirs}', Gymnasium FrameStackObservation"
            raise UsageError(f"--frame-stack {frame_stack}: {env_id} runs on the host; {advice}")
        if time_limit is not None:
            advice = f"most of these take --env-kwargs '{json.dumps({'max_episode_steps': time_limit})}'"
            raise UsageError(f"--time-limit {time_limit}: {env_id} runs on the host; {advice}")
        suite = _make_host_suite(env_id, sticky_actions, own.parse_kwargs(env_kwargs))
        return copies(suite, num_envs, reward_clip=reward_clip)
    suite = make_suite(env_id, num_levels, env_kwargs)
    suite = Sticky(suite, sticky_actions) if sticky_actions else suite
    if frame_stack > 1 and not suite.obs_shape:
        raise UsageError(f"--frame-stack {frame_stack}: observations of {env_id} are single numbers; must have an axis")
    suite = FrameStack(suite, frame_stack) if frame_stack > 1 else suite
    suite = TimeLimit(suite, time_limit) if time_limit else suite
    return copies(suite, num_envs, reward_clip=reward_clip)


def check_images(args: Any, env: VectorEnv) -> None:
    """Raise UsageError if --network is made of convolutions that cannot take these observations."""
    least = {"mlp": 0, "cnn": 3, "nature": 36, "impala": 1}[args.network]
    if least and (len(env.obs_shape) != 3 or min(env.obs_shape[:2]) < least):
        needs = f"needs images of at least {least} x {least}"
        raise UsageError(f"--network {args.network}: {needs}; {args.env_id} has observations of shape {env.obs_shape}")


def copies(suite: Any, num_envs: int, auto_reset: bool = True, reward_clip: float | None = None) -> VectorEnv:
    """`num_envs` copies of a suite's environment, on the host if that is where the suite is."""
    from common.suites.host import HostSuite, HostVectorEnv  # which needs the classes above

    kind = HostVectorEnv if isinstance(suite, HostSuite) else VectorEnv
    return kind(suite, num_envs, auto_reset, reward_clip)


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
            raise UsageError(f"{flag(name)} {count}: {args.env_id} runs on the host, for one of them; {advice}")
    if args.distributed:
        raise UsageError(f"--distributed: {args.env_id} runs on the host, of one process; leave it out")
    return 1


def _make_host_suite(env_id: str, sticky_actions: float, kwargs: dict[str, Any]) -> Any:
    kind = env_id.partition("/")[0]
    try:
        return importlib.import_module(f"common.suites.{kind}").make(env_id, kwargs, sticky_actions)
    except ModuleNotFoundError as error:
        raise UsageError(f"--env-id {env_id}: {missing(error, kind)}") from None


def make_suite(env_id: str, num_levels: int, env_kwargs: str | None = None) -> Suite:
    """The single environment behind `env_id`, without auto-reset."""
    suite, _, name = env_id.partition("/")
    kwargs = own.parse_kwargs(env_kwargs)
    try:
        if env_id in gymnax_suite.env_ids():
            return own.registered(env_id, kwargs) if kwargs else gymnax_suite.make(env_id)
        if ":" in env_id:
            return own.make(env_id, kwargs)
        if suite == "kinetix":
            from common.suites import kinetix

            if name in kinetix.level_names():
                if kwargs:
                    raise UsageError(f"--env-kwargs {env_kwargs}: {env_id} takes none; all but Kinetix's ids do")
                return kinetix.make(name, num_levels)
        if suite in OPTIONAL and env_id in env_ids(suite):
            return own.optional(importlib.import_module(f"common.suites.{suite}"), env_id, kwargs)
    except ModuleNotFoundError as error:
        raise UsageError(f"--env-id {env_id}: {missing(error, suite)}") from None
    except OSError as error:  # MNISTBandit-bsuite downloads its data
        raise UsageError(f"--env-id {env_id}: cannot be loaded ({error})") from None
    if env_id.endswith(".py"):
        raise UsageError(f"--env-id {env_id}: is a file; say which class in it, {env_id}:MyEnv")
    if "/" in env_id and suite not in SUITES:
        known = ", ".join(f"{prefix}/..." for prefix in SUITES if prefix != "gymnax")
        known = f"gymnax's ids (CartPole-v1), {known} and my_file:MyEnv for your own"
        raise UsageError(f"--env-id {env_id}: no suite {suite!r}; there are {known}")
    raise UsageError(f"--env-id {env_id}: no such environment; did you mean {nearest(env_id)}?")


def env_ids(suite: str) -> list[str]:
    """All ids of one of the SUITES. Raises ModuleNotFoundError if it is not installed."""
    return importlib.import_module(f"common.suites.{suite}").env_ids()


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
    unknown = [suite for suite in suites if suite not in SUITES]
    if unknown:
        raise UsageError(f"--list-envs {unknown[0]}: no such suite; there are {', '.join(SUITES)}")
    if not suites:
        state = {s: "installed" if find_spec(OPTIONAL.get(s, s)) else how_to_install(s) for s in SUITES}
        return "\n".join(f"{suite:<11}{example:<37}{state[suite]}" for suite, example in SUITES.items())
    lines = []
    for suite in suites:
        try:
            lines += env_ids(suite)
        except ModuleNotFoundError as error:
            raise UsageError(f"--list-envs {suite}: {missing(error, suite)}") from None
    return "\n".join(lines)
