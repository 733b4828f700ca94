"""Kinetix (https://github.com/FLAIROx/Kinetix), 2D rigid-body control, as a single environment without auto-reset.

Green must touch blue and must not touch red. Needs kinetix-env >= 3. Functions import it, because that takes 10 s.
"""

import copy
import difflib
import logging
import os
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable
from functools import cached_property, partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from common.actions import Discrete
from common.run.arguments import UsageError

logging.getLogger("absl").setLevel(logging.ERROR)  # otherwise Kinetix's imports warn about what it does not use

SIZES = ("s", "m", "l")
# Enough for every locomotion level, at half the cost of size l. One circle, one joint and the thruster stay empty in
# all of them, but Kinetix's sampler fails with a single circle.
LOCOMOTION_SIZES = {"num_polygons": 10, "num_circles": 2, "num_joints": 6, "num_thrusters": 1}
# What Kinetix trains and evaluates with (its configs/env/*.yaml). EnvParams and StaticEnvParams default to 0.1 and 1.
DENSE_REWARD_SCALE = 0.2
FRAME_SKIP = 2
# Only evaluation uses this seed, so the seed of a run never leads to training on the evaluation levels.
EVALUATION_SEED = 1_000_003
# Kinetix's defaults: sample twice as many levels and keep those that doing nothing for 64 steps does not solve.
NO_OP_FILTER = {"filter_levels": True, "level_filter_sample_ratio": 2, "level_filter_n_steps": 64}
SAMPLE_BATCH = 64  # evaluation levels are sampled in batches, so that a smaller set is the start of a larger one
# Fields that Kinetix's sampler leaves as in an empty level (tests compare thousands), and one derived from the rest.
SAME_IN_ALL_LEVELS = {
    *("acc_rr_manifolds", "acc_cr_manifolds", "acc_cc_manifolds", "acc_impulse", "acc_r_impulse", "velocity"),
    *("angular_velocity", "friction", "restitution", "collision_mode", "gravity", "motor_auto", "polygon_highlighted"),
    *("circle_highlighted", "polygon_densities", "circle_densities", "timestep", "last_distance"),
}
DERIVED = "collision_matrix"


def env_ids() -> list[str]:
    """All ids. A hand-designed level is listed with its size and, if that is unambiguous, also without it."""
    return [f"kinetix/{name}" for name in level_names()]


def level_names() -> list[str]:
    """All names that `make` takes: the ids without their prefix."""
    files = _level_files()
    short = Counter(file.partition("/")[2] for file in files)
    return ["locomotion", *SIZES, *files, *(name for name, count in short.items() if count == 1)]


def _level_files() -> list[str]:
    spec = find_spec("kinetix")  # finds the package without importing it
    if spec is None:
        return []
    folder = Path(spec.submodule_search_locations[0]) / "levels"
    return sorted(file.relative_to(folder).with_suffix("").as_posix() for file in folder.glob("*/*.json"))


def make(name: str, num_levels: int = 512) -> "Kinetix":
    """Make `locomotion` (`num_levels` fixed levels), `s`, `m`, `l` (a random level at each reset), or a named level.

    Raises KeyError for any other name.
    """
    import kinetix  # noqa: F401  (reports its absence before anything else; the package itself is empty)

    if name == "locomotion":
        return _make_locomotion(num_levels)
    if name in SIZES:  # unfiltered, as in Kinetix's own ppo.py: some of these levels solve themselves, some cannot be
        return _make_random(name)
    if name not in level_names():
        raise KeyError(name)
    from kinetix.util.saving import load_evaluation_levels

    file = next(file for file in _level_files() if name in (file, file.partition("/")[2]))
    static_params = _static_params(file.partition("/")[0])
    levels = _cached(file, static_params, 1, lambda: load_evaluation_levels([file], static_params)[0])
    return Kinetix(name, static_params, levels=levels)


def _make_locomotion(num_levels: int) -> "Kinetix":
    from kinetix.environment.env_state import EnvParams, StaticEnvParams
    from kinetix.environment.ued.locomotion_distribution import make_reset_fn_custom_distribution

    static_params = StaticEnvParams(**LOCOMOTION_SIZES, frame_skip=FRAME_SKIP)

    def sample() -> Any:
        sample_level = make_reset_fn_custom_distribution("locomotion", EnvParams(), static_params, fn_kwargs={})
        # One key per index: level i is the same in a set of 4 and in one of 512. The generator is fixed, because
        # the level set must not depend on the one that a run chooses.
        key = jax.random.key(0, impl="threefry2x32")
        return jax.jit(jax.vmap(lambda i: sample_level(jax.random.fold_in(key, i))))(jnp.arange(num_levels))

    return Kinetix("locomotion", static_params, levels=_cached("locomotion", static_params, num_levels, sample))


def _static_params(size: str) -> Any:
    from kinetix.environment.utils import static_env_params_from_size

    return static_env_params_from_size(size).replace(frame_skip=FRAME_SKIP)


def _make_random(size: str, entities: bool = False) -> "Kinetix":
    from kinetix.environment.env_state import EnvParams
    from kinetix.environment.ued.ued import make_reset_fn_sample_kinetix_level

    static_params = _static_params(size)
    sample = make_reset_fn_sample_kinetix_level(EnvParams(), static_params)
    return Kinetix(size, static_params, sample=sample, entities=entities)


def check_level_names(names: tuple[str, ...], sizes: tuple[str, ...], flag: str) -> None:
    """Raise UsageError unless all are hand-designed levels of these sizes (s/h0_weak_thrust)."""
    known = [file for file in _level_files() if file.partition("/")[0] in sizes]
    for name in names:
        if known and name not in known:
            near = ", ".join(difflib.get_close_matches(name, known, n=3, cutoff=0.3) or known[:3])
            raise UsageError(f"{flag} {name}: no hand-designed level of size {', '.join(sizes)}; such as {near}")


def make_entities(size: str) -> "Kinetix":
    """Make size s, m or l with entity observations, to be started on levels from `sample_filtered`."""
    if find_spec("kinetix") is None:
        raise UsageError("kinetix is not installed; pip install -r requirements.txt")
    return _make_random(size, entities=True)


def _cpu() -> jax.Device:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        named = f"JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')}"
        advice = f"set {named},cpu, or take --num-eval-episodes 0 and no --capture-video"
        raise UsageError(f"{named}: evaluation levels are made on the CPU; {advice}") from None


def make_evaluation(size: str, num_random: int) -> tuple["Kinetix", list[str]]:
    """Make the levels for comparing agents: the hand-designed ones of a size, then `num_random` filtered random ones,
    the same in every run. -> environment with entity observations, the levels' names (h0_weak_thrust, random_0)."""
    from kinetix.util.saving import load_evaluation_levels

    suite = make_entities(size)
    files = [file for file in _level_files() if file.startswith(f"{size}/")]
    load = lambda: load_evaluation_levels(files, suite.static_params)[0]  # noqa: E731

    def sample() -> Any:
        batch = jax.jit(partial(suite.sample_filtered, num=SAMPLE_BATCH))
        # The filter plays the levels: a GPU's rounding might make it choose others.
        with jax.default_device(_cpu()):
            key = jax.random.key(EVALUATION_SEED, impl="threefry2x32")
            keys = [jax.random.fold_in(key, i) for i in range(-(-num_random // SAMPLE_BATCH))]
            batches = [jax.device_get(batch(key)) for key in keys]
        return jax.tree.map(lambda *parts: np.concatenate(parts)[:num_random], *batches)

    sets = [_cached(f"hand-designed-{size}", suite.static_params, len(files), load)]
    if num_random:
        sets.append(_cached(f"random-{size}", suite.static_params, num_random, sample))
    levels = jax.tree.map(lambda *parts: np.concatenate(parts), *sets)
    names = [file.partition("/")[2] for file in files] + [f"random_{i}" for i in range(num_random)]
    return suite.on(levels), names


def make_network(suite: "Kinetix", model: dict[str, Any]) -> Any:
    """Make Kinetix's own network over the suite's entities, with options from its configs/model."""
    from flax.serialization import to_state_dict
    from kinetix.environment.spaces import ActionType, ObservationType
    from kinetix.models import make_network_from_config

    config = model | {
        "action_type": ActionType.MULTI_DISCRETE,
        "observation_type": ObservationType.SYMBOLIC_ENTITY,
        "static_env_params": to_state_dict(suite.static_params),
    }
    return make_network_from_config(suite.env, suite.params, config, {})  # the last argument defaults to a shared dict


def is_published(folder: str) -> bool:
    """Whether this is a checkpoint in the format that Kinetix's authors publish."""
    return all((Path(folder) / name).is_file() for name in ("params.safetensors", "config.json"))


def load_published(folder: str) -> tuple[Any, dict[str, Any]]:
    """Read a published checkpoint. -> parameters, options of `make_network`."""
    from kinetix.util.saving import load_pretrained_checkpoint

    try:
        params, config = load_pretrained_checkpoint(folder)
        model = config["model"]
    except Exception as error:  # from json or safetensors, or a missing key
        raise UsageError(f"--evaluate {folder}: cannot be read ({error!r})") from None
    if model.get("recurrent_model"):
        raise UsageError(f"--evaluate {folder}: a recurrent network; these are feed-forward")
    return params, model


class Kinetix:
    """One Kinetix environment, with flat symbolic observations or entities. Shapes are those of a single environment.

    Actions are int32 [6]: four groups of motors (off, forward, backward), two groups of thrusters (off, on).
    """

    has_success = True
    can_draw = True

    def __init__(self, name: str, static_params: Any, levels: Any = None, sample: Any = None, entities: bool = False):
        """Start on `levels` (an EnvState of numpy arrays [L, ...]) or on what `sample` (key -> EnvState) draws."""
        from kinetix.environment.env import make_kinetix_env
        from kinetix.environment.env_state import EnvParams
        from kinetix.environment.spaces import ActionType, ObservationType

        self.name, self.static_params, self.levels, self.sample = name, static_params, levels, sample
        self.num_levels = None if levels is None else len(levels.timestep)
        self.max_steps = EnvParams().max_timesteps
        # Kinetix's `done` does not tell a time-out from an end. Here `step` keeps the time limit instead, so `done` is
        # true only for green on blue, green on red and NaN.
        no_limit = int(np.iinfo(np.int32).max)
        self.params = EnvParams(max_timesteps=no_limit, dense_reward_scale=DENSE_REWARD_SCALE)
        kind = ObservationType.SYMBOLIC_ENTITY if entities else ObservationType.SYMBOLIC_FLAT
        self.env = make_kinetix_env(ActionType.MULTI_DISCRETE, kind, None, self.params, static_params, auto_reset=False)
        # Entities are a pytree of arrays, see `start`.
        self.obs_shape = None if entities else self.env.observation_space(self.params).shape
        self.obs_dtype = None if entities else np.dtype(np.float32)
        sizes = self.env.action_space(self.params).number_of_dims_per_distribution
        self.action_space = Discrete(tuple(map(int, sizes)))

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        """Start on one of the levels, or on a new random one. -> state, obs [O]."""
        if self.levels is None:
            return self.start(self.sample(key))
        return self.start(self._level(jax.random.randint(key, (), 0, self.num_levels)))

    def reset_to(self, key: jax.Array, index: jax.Array) -> tuple[Any, jax.Array]:
        """Start on level `index`, the same one for every `key`. -> state, obs [O]."""
        if self.levels is None:
            level_key = jax.random.key(EVALUATION_SEED, impl="threefry2x32")
            return self.start(self.sample(jax.random.fold_in(level_key, index)))
        return self.start(self._level(index % self.num_levels))

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> tuple:
        """Step without auto-reset. action: int32 [6]. -> state, obs [O], reward, terminated, truncated, success."""
        obs, state, reward, terminated, info = self.env.step_env(key, state, action, self.params)
        # The simulation can blow up. Kinetix then ends the episode and keeps NaN out of the observation. An event seen
        # during the explosion proves nothing, so it earns no reward and is no success.
        broken = jnp.stack([jnp.isnan(x).any() for x in jax.tree.leaves(state)]).any()
        reward = jnp.where(broken, 0.0, reward)
        truncated = (state.timestep >= self.max_steps) & ~terminated
        return state, obs, reward, terminated, truncated, info["GoalR"] & ~broken

    def frames(self, states: list[Any]) -> list[np.ndarray]:
        """Pictures of an episode's states, each [250, 250, 3] uint8."""
        pictures = [np.asarray(self._render(state)) for state in states]
        return [picture.transpose(1, 0, 2)[::-1].astype(np.uint8) for picture in pictures]

    @cached_property
    def _render(self) -> Callable:
        from kinetix.render.renderer_pixels import make_render_pixels

        return jax.jit(make_render_pixels(self.params, self.static_params.replace(downscale=2)))

    def _level(self, index: jax.Array) -> Any:
        return jax.tree.map(lambda x: jnp.asarray(x)[index], self.levels)

    def start(self, level: Any) -> tuple[Any, jax.Array]:
        """Start on this level, an EnvState. -> state, obs: [O], or Kinetix's EntityObservation."""
        # Kinetix's samplers return weakly typed scalars but its step does not, and loops need one type.
        state = jax.tree.map(lambda x: jnp.asarray(x, x.dtype), level)
        return state, self.env.get_obs(state)

    def on(self, levels: Any) -> "Kinetix":
        """The same environment on a fixed set of levels, an EnvState of numpy arrays [L, ...]."""
        other = copy.copy(self)
        other.levels, other.num_levels = levels, len(levels.timestep)
        return other

    def sample_filtered(self, key: jax.Array, num: int) -> Any:
        """Random levels [num] from Kinetix's sampler with its no-op filter, as an EnvState."""
        from kinetix.environment.ued.ued import make_vmapped_filtered_level_sampler as make_sampler

        config = NO_OP_FILTER | {"env_size_name": self.name}
        return make_sampler(self.sample, self.params, self.static_params, config, self.env)(key, num)

    def pack(self, level: Any) -> jax.Array:
        """Pack a level of Kinetix's sampler into the fewest bytes that `unpack` can restore it from, uint8 [bytes]."""
        return jnp.concatenate([_to_bytes(x) for x, kept in self._leaves(level) if kept])

    def unpack(self, data: jax.Array) -> Any:
        """The inverse of `pack`. -> EnvState."""
        from jax2d.engine import calculate_collision_matrix

        found, place = [], 0
        for leaf, kept in self._leaves(self.empty_level):
            size = jax.eval_shape(_to_bytes, leaf).size if kept else 0
            found.append(_from_bytes(data[place : place + size], leaf) if kept else leaf)
            place += size
        level = jax.tree.unflatten(jax.tree.structure(self.empty_level), found)
        return level.replace(collision_matrix=calculate_collision_matrix(self.static_params, level.joint))

    def _leaves(self, level: Any) -> list[tuple[Any, bool]]:
        """The leaves of an EnvState, each with whether `pack` stores it."""
        left_out = SAME_IN_ALL_LEVELS | {DERIVED}
        paths = jax.tree_util.tree_flatten_with_path(level)[0]
        return [(leaf, not {key.name for key in path} & left_out) for path, leaf in paths]

    @cached_property
    def level_bytes(self) -> int:
        """Bytes that `pack` needs for a level."""
        return jax.eval_shape(self.pack, self.empty_level).size

    @cached_property
    def empty_level(self) -> Any:
        """A level with nothing but its floor and walls, as numpy arrays."""
        from kinetix.environment.utils import create_empty_env

        with jax.ensure_compile_time_eval():
            return jax.tree.map(np.asarray, create_empty_env(self.static_params))


def _to_bytes(x: jax.Array) -> jax.Array:
    """A bit per boolean, a byte per integer (role, index, binding: all below 256), 4 per float."""
    if x.dtype == bool:
        return jnp.packbits(x.ravel())
    if x.dtype.kind == "i":
        return x.ravel().astype(jnp.uint8)
    return jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint8).ravel()


def _from_bytes(data: jax.Array, like: Any) -> jax.Array:
    if like.dtype == bool:
        return jnp.unpackbits(data, count=like.size).astype(bool).reshape(like.shape)
    if like.dtype.kind == "i":
        return data.astype(like.dtype).reshape(like.shape)
    return jax.lax.bitcast_convert_type(data.reshape(-1, 4), jnp.float32).reshape(like.shape)


def _cached(name: str, static_params: Any, num_levels: int, build: Callable[[], Any]) -> Any:
    """The levels that `build` makes, an EnvState of numpy arrays [num_levels, ...]; from disk if made before.

    Sampling takes a long compilation, and loading a hand-designed level a second.
    """
    from kinetix.environment.utils import create_empty_env

    sizes = [getattr(static_params, size) for size in LOCOMOTION_SIZES]
    versions = [f"{package}-{metadata.version(package)}" for package in ("kinetix-env", "jax")]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "kinetix-levels"
    path = folder / ("_".join(map(str, [name.replace("/", "-"), num_levels, *sizes, *versions])) + ".npz")
    leaves, structure = jax.tree.flatten(jax.eval_shape(partial(create_empty_env, static_params)))
    expected = [((num_levels, *leaf.shape), leaf.dtype) for leaf in leaves]
    try:
        with np.load(path) as file:
            arrays = [file[f"arr_{i}"] for i in range(len(leaves))]
        if [(array.shape, array.dtype) for array in arrays] == expected:
            return jax.tree.unflatten(structure, arrays)
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile):
        pass  # missing or damaged: make it again
    levels = jax.device_get(build())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:  # renamed when complete: others see all or nothing
            np.savez(Path(scratch) / path.name, *jax.tree.leaves(levels))
            os.replace(Path(scratch) / path.name, path)
    except OSError:
        pass  # cannot write there: make it again next time
    return levels
