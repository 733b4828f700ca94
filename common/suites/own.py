"""A user's own environment, `--env-id my_file:MyEnv`: find it, make it, check it by its shapes alone, fill in defaults.

Whatever is wrong with it is one line (UsageError) that says where, what, and what would work.
"""

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import json
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from common.actions import Box, Discrete
from common.run.arguments import UsageError
from common.suites import gymnax
from common.suites.gymnax import Gymnax, exactly
from common.vector import Suite

SPACE = "Discrete((n,)), for several choices Discrete((n, m)), or Box(low, high) with arrays [D]"
RESET, RESULTS = "reset(key) -> state, obs", "state, obs, reward, terminated, truncated, success"
STEP, RESET_ENV = f"step(key, state, action) -> {RESULTS}", "reset_env(key, params) -> obs, state"
STEP_ENV = "step_env(key, state, action, params) -> obs, state, reward, done (or terminated, truncated), info"
# What a class has to have, and how it is called: in this project's style, and in gymnax's.
NEEDED = f"action_space = {SPACE}", RESET, STEP
REST = jax.ShapeDtypeStruct((), jnp.float32), *[jax.ShapeDtypeStruct((), jnp.bool_)] * 3  # of the results of a step
NEEDED_IN_GYMNAX = "default_params", "observation_space(params)", "action_space(params)", RESET_ENV, STEP_ENV


class Own(Suite):
    """A user's environment with defaults for what it leaves out. Types are exact: a compiled update takes back what it
    has given, so neither Python's numbers nor JAX's weak types will do."""

    def __init__(self, env: Any, space: Discrete | Box, state: Any, obs: jax.ShapeDtypeStruct):
        """state, obs: the shapes that `reset` returns."""
        self._env, self._like, self.action_space = env, (state, obs, *REST), space
        self.obs_shape, self.obs_dtype, self.can_draw = obs.shape, np.dtype(obs.dtype), hasattr(env, "frames")
        self.name = getattr(env, "name", type(env).__name__)
        self.has_success, self.num_levels = getattr(env, "has_success", False), getattr(env, "num_levels", None)

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        return exactly(tuple(self._env.reset(key)), self._like[:2])

    def reset_to(self, key: jax.Array, level: jax.Array) -> tuple[Any, jax.Array]:
        has_levels = hasattr(self._env, "reset_to")
        return exactly(tuple(self._env.reset_to(key, level)), self._like[:2]) if has_levels else self.reset(key)

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> tuple:
        """Take a step. -> state, obs, reward, terminated, truncated, success."""
        return exactly(tuple(self._env.step(key, state, action)), self._like)

    def frames(self, states: list[Any]) -> list[np.ndarray]:
        return self._env.frames(states)


def find(env_id: str) -> Path | None:
    """The file of FILE:NAME in the working directory or beside the script; None if FILE can only be a module's name."""
    name = env_id.rpartition(":")[0]
    name = Path(name if name.endswith(".py") else f"{name}.py").expanduser()
    places = (folder / name for folder in (Path.cwd(), Path(sys.argv[0]).resolve().parent))
    return next((place for place in places if place.is_file()), None)


def source(env_id: str) -> Path | None:
    """The file that an environment came from, once it has been made; None for one that is not a user's own."""
    if ":" not in env_id:
        return None
    env_id = env_id.removeprefix("gymnasium/")
    module = sys.modules.get(env_id.rpartition(":")[0])
    return find(env_id) or (Path(module.__file__) if getattr(module, "__file__", None) else None)


@functools.cache
def _load(path: Path, changed: int) -> ModuleType:
    """Run a file; once, unless it has changed: classes of another run would make states of another type."""
    importable(path.parent)
    spec = importlib.util.spec_from_file_location(f"own_{path.stem}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def importable(folder: Path) -> None:
    """Let files in this folder be imported. Last in line: a user's file must not take the place of a package."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


@contextlib.contextmanager
def blame(where: str, what: str, file: Any) -> Iterator[None]:
    """Say in one line which exception the user's code raises, and at which line of `file`, or else where."""
    try:
        yield
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((__file__, "<"))]
        frames = [f for f in frames if f.filename == str(file)] or frames
        text = str(error).partition("\n")[0][:300]
        if isinstance(error, jax.errors.TracerBoolConversionError):
            text = "`if` cannot depend on an array, jnp.where can"
        at = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        raise UsageError(f"{where}: {what} raises {type(error).__name__}: {text}{at}") from None


def parse_kwargs(env_kwargs: str | None) -> dict[str, Any]:
    """--env-kwargs as a dict."""
    try:
        kwargs, why = json.loads(env_kwargs or "{}"), ""
        json.dumps(kwargs, allow_nan=False)  # Python reads NaN, Infinity and 1e999, which would spoil the dynamics
    except (ValueError, RecursionError) as error:
        kwargs, why = None, f"is no JSON ({error}); "
    if isinstance(kwargs, dict):
        return kwargs
    such = """must be a JSON object, such as '{"size": 8}' (in a shell with the single quotes)"""
    raise UsageError(f"--env-kwargs {env_kwargs}: {why}{such}")


def optional(module: ModuleType, env_id: str, kwargs: dict[str, Any]) -> Any:
    """The environment `env_id` of an optional suite, whose module is such as common.suites.brax."""
    if not kwargs:
        return module.make(env_id, kwargs)
    where = f"--env-kwargs {json.dumps(kwargs)}"
    with blame(where, env_id, module.__file__):
        made = module.make(env_id, kwargs)
    _check(where, made, made.action_space, module.__file__)
    return made


def registered(env_id: str, kwargs: dict[str, Any]) -> Gymnax:
    """The gymnax environment `env_id` with these arguments of its class and fields of its parameters."""
    factory = type(gymnax.make(env_id).env)
    return _build(f"--env-kwargs {json.dumps(kwargs)}", env_id, factory, kwargs, inspect.getfile(factory))


def make(env_id: str, kwargs: dict[str, Any]) -> Own | Gymnax:
    """The user's environment FILE:NAME, checked. kwargs are for the class or function that NAME is."""
    where, (file, _, name), path = f"--env-id {env_id}", env_id.rpartition(":"), find(env_id)
    if not (file and name):
        raise UsageError(f"{where}: must be FILE:NAME, such as my_file:MyEnv for the class MyEnv in my_file.py")
    importable(Path.cwd())
    with blame(where, f"importing {path.name if path else file}", path):
        try:
            module = _load(path, path.stat().st_mtime_ns) if path else importlib.import_module(file)
        except ModuleNotFoundError as error:
            if path or not f"{file}.".startswith(f"{error.name}."):
                raise  # what it imports itself is missing
            nothing = f"no file {file.removesuffix('.py')}.py in {Path.cwd()} or beside the script, nor a module {file}"
            advice = "give a path, some/dir/my_file.py:MyEnv; a run keeps a copy of the file as environment.py"
            raise UsageError(f"{where}: {nothing}; {advice}") from None
    made, file = getattr(module, name, None), path or getattr(module, "__file__", None)
    if made is None:
        here = [n for n, x in vars(module).items() if callable(x) and getattr(x, "__module__", "") == module.__name__]
        raise UsageError(f"{where}: no {name} in {file}; it has {', '.join(here) or 'no class and no function'}")
    return _build(where, name, made, kwargs, file)


def _build(where: str, name: str, made: Any, kwargs: dict[str, Any], file: Any) -> Own | Gymnax:
    """The environment that `made` is, or makes from kwargs, checked. In gymnax's style some may be for its params."""
    given, takes = {}, {}
    if inspect.isclass(made) or not (hasattr(made, "step") or hasattr(made, "step_env")):
        with blame(where, f"{name}(...) with --env-kwargs '{json.dumps(kwargs)}'", file):
            takes = inspect.signature(made).parameters
            all_others = any(p.kind == p.VAR_KEYWORD for p in takes.values())
            given = {key: value for key, value in kwargs.items() if key in takes or all_others}
            made = made(**given)
    rest = {key: value for key, value in kwargs.items() if key not in given}
    with blame(where, name, file):  # attributes may be properties
        native = hasattr(made, "step_env") or hasattr(made, "reset_env")
        needed = NEEDED_IN_GYMNAX if native else NEEDED
        if missing := [call for call in needed if not hasattr(made, re.match(r"\w+", call)[0])]:
            raise UsageError(f"{where}: {name} has no {', no '.join(missing)}; docs/environments.md has whole examples")
        params = made.default_params if native else None
        fields = getattr(params, "__dataclass_fields__", ())
        if unknown := ", ".join(key for key in rest if key not in fields):
            known = ", ".join([*takes, *fields]) or "no arguments"
            raise UsageError(f"--env-kwargs {json.dumps(kwargs)}: {name} takes no {unknown}; it takes {known}")
        if rest:
            arrays = {key: jnp.asarray(value) for key, value in rest.items() if isinstance(value, list)}
            params = dataclasses.replace(params, **rest | arrays)
        space = None if native else _action_space(where, made.action_space)
    env = made
    if native:
        with blame(where, " or ".join(NEEDED_IN_GYMNAX[1:]), file):
            env = Gymnax(made, params, name)
            space = _action_space(where, env.action_space)
            # `Gymnax` would fit a state of other types in silence. Parameters are constants: they may decide on shapes.
            action = jnp.zeros(space[0].shape if isinstance(space, Box) else (), space.dtype)
            out = jax.eval_shape(lambda *x: made.step_env(*x, params), jax.random.key(0), env.state_like, action)
        _same(f"{where}: step_env's state", out[1], env.state_like, ", as in reset_env's")
        if len(out) == 5:
            _refuse_no_limit(where, name, made, params)
    state, obs = _check(where, env, space, file)
    return env if native else Own(env, space, state, obs)


def _refuse_no_limit(where: str, name: str, env: Any, params: Any) -> None:
    """Refuse a class that has its `is_truncated` from gymnax, but parameters that leave gymnax's limit of one step."""
    from gymnax.environments.environment import Environment, EnvParams  # here, since importing gymnax starts JAX

    limit, own = "max_steps_in_episode", [kind for kind in type(params).__mro__ if kind is not EnvParams]
    unset = not any(limit in vars(kind).get("__annotations__", {}) for kind in own)
    inherited = getattr(type(env), "is_truncated", None) is Environment.is_truncated
    if inherited and unset and getattr(params, limit, None) == 1:
        such = json.dumps({limit: 500})
        raise UsageError(
            f"{where}: {name} has gymnax's is_truncated and its params gymnax's {limit}, which is 1, so each episode "
            f"would end after a step; set it in the params, or with --env-kwargs '{such}'"
        )


def _check(where: str, env: Any, space: Discrete | Box, file: Any) -> tuple[Any, jax.ShapeDtypeStruct]:
    """Look at the shapes that reset, reset_to and step return. -> those of state and obs."""
    key = jax.random.key(0)
    state, obs = _shapes(where, RESET, file, env.reset, key)
    if not isinstance(obs, jax.ShapeDtypeStruct):
        raise UsageError(f"{where}: reset's obs must be one array")
    if hasattr(env, "reset_to"):
        again = _shapes(where, "reset_to(key, level) -> state, obs", file, env.reset_to, key, jnp.int32(0))
        _same(f"{where}: reset_to's (state, obs)", again, (state, obs), ", as in reset's")
    out = _shapes(where, STEP, file, env.step, key, state, jnp.zeros(len(space[0]), space.dtype))
    for name, found, like in zip(RESULTS.split(", "), out, (state, obs, *REST), strict=True):
        _same(f"{where}: step's {name}", found, like, ", as in reset's" if name in ("state", "obs") else "")
    return state, obs


def _shapes(where: str, call: str, file: Any, function: Callable, *inputs: Any) -> tuple:
    """The shapes of a function's results, of which `call` says how many there are."""
    with blame(where, call, file):
        out = jax.eval_shape(function, *inputs)
    call, _, names = call.partition(" -> ")
    count, wanted = len(out) if isinstance(out, tuple | list) else 1, names.count(",") + 1
    if count != wanted:
        raise UsageError(f"{where}: {call} returns {count} result{'s' * (count > 1)}; must be {wanted}: {names}")
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tuple(out))


def _same(what: str, found: Any, like: Any, why: str) -> None:
    """Refuse shapes that are not built as `like`, or have other sizes or types."""
    built, wanted = (str(jax.tree.structure(x))[len("PyTreeDef(") : -1][:100] for x in (found, like))
    if jax.tree.structure(found) != jax.tree.structure(like):
        raise UsageError(f"{what} is built as {built}; must be {wanted}{why} (* is an array)")
    said = lambda x: f"{x.dtype} of shape {x.shape}"  # noqa: E731
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(like), strict=True):
        if said(x) != said(y):
            raise UsageError(f"{what}{jax.tree_util.keystr(path)} is {said(x)}; must be {said(y)}{why}")


def _action_space(where: str, space: Any) -> Discrete | Box:
    """The action space as a tuple of ints, or as two float32 arrays [D]."""
    with contextlib.suppress(TypeError, ValueError):
        if isinstance(space, Discrete) and min(space.nvec) >= 1:
            return Discrete(tuple(map(int, space.nvec)))
        low, high = (np.asarray(x, np.float32) for x in space if isinstance(space, Box))
        if low.ndim == 1 and low.shape == high.shape and low.size and (low < high).all():
            return Box(low, high)
    raise UsageError(f"{where}: action_space is {' '.join(repr(space).split())[:60]}; must be {SPACE} (common.actions)")
