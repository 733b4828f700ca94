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
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from common.actions import Box, Discrete
from common.run.arguments import UsageError
from common.run.checkpoints import first_line
from common.suites.gymnax import Gymnax, exactly

PAGE = "docs/environments.md has whole examples"
RESULTS = ("state", "obs", "reward", "terminated", "truncated", "success")
SIX = f"6: {', '.join(RESULTS)}"
NATIVE = "5: obs, state, reward, done, info; or 6: obs, state, reward, terminated, truncated, info"
# What a class has to have, and how it is called.
NEEDED = {
    "obs_shape": "obs_shape = (n,)",
    "action_space": "action_space = Discrete((n,)) or Box(low, high)",
    "reset": "reset(key) -> state, obs",
    "step": f"step(key, state, action) -> {', '.join(RESULTS)}",
}
NEEDED_IN_GYMNAX = {
    "default_params": "default_params",
    "observation_space": "observation_space(params)",
    "action_space": "action_space(params)",
    "reset_env": "reset_env(key, params) -> obs, state",
    "step_env": "step_env(key, state, action, params) -> obs, state, reward, done, info",
}


class Own:
    """A user's environment with defaults for what it leaves out. Types are exact: a compiled update takes back what it
    has given, so neither Python's numbers nor JAX's weak types will do."""

    def __init__(self, env: Any, state: Any, obs: jax.ShapeDtypeStruct, space: Discrete | Box):
        """state, obs: the shapes that `reset` returns."""
        self._env, self._like = env, (state, obs)
        self.obs_shape, self.obs_dtype, self.action_space = obs.shape, np.dtype(obs.dtype), space
        self.name = getattr(env, "name", type(env).__name__)
        self.has_success = bool(getattr(env, "has_success", False))
        self.num_levels = getattr(env, "num_levels", None)
        self.can_draw = bool(getattr(env, "can_draw", hasattr(env, "frames")))

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        return exactly(tuple(self._env.reset(key)), self._like)

    def reset_to(self, key: jax.Array, level: jax.Array) -> tuple[Any, jax.Array]:
        if not hasattr(self._env, "reset_to"):
            return self.reset(key)
        return exactly(tuple(self._env.reset_to(key, level)), self._like)

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> tuple:
        """Take a step. -> state, obs, reward, terminated, truncated, success."""
        state, obs, reward, *ends = self._env.step(key, state, action)
        return *exactly((state, obs), self._like), jnp.asarray(reward, jnp.float32), *(jnp.asarray(x) for x in ends)

    def frames(self, states: list[Any]) -> list[np.ndarray]:
        return self._env.frames(states)


# Find


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


def _import(name: str) -> ModuleType | None:
    """Import a module; None if there is none of this name."""
    if not all(part.isidentifier() for part in name.split(".")):
        return None
    importable(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # what it imports itself is missing
        return None


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
        frames = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
        frames = [f for f in frames if f[0] != __file__ and not f[0].startswith("<")]
        place, text = [f for f in frames if f[0] == str(file)] or frames, first_line(error)
        if isinstance(error, SyntaxError):
            place, text = [(error.filename, error.lineno)], error.msg
        elif isinstance(error, jax.errors.TracerBoolConversionError):
            text = "`if` cannot depend on an array, jnp.where can"
        at = f" ({place[-1][0]}:{place[-1][1]})" if place else ""
        raise UsageError(f"{where}: {what} raises {type(error).__name__}: {text}{at}") from None


# Make


def parse_kwargs(env_kwargs: str | None) -> dict[str, Any]:
    """--env-kwargs as a dict."""
    if env_kwargs is None:
        return {}
    where, such = f"--env-kwargs {env_kwargs}", """such as '{"size": 8}' (in a shell with the single quotes)"""
    try:
        kwargs = json.loads(env_kwargs)
    except ValueError as error:
        raise UsageError(f"{where}: is no JSON ({first_line(error)}); must be an object, {such}") from None
    if not isinstance(kwargs, dict):
        raise UsageError(f"{where}: must be a JSON object, {such}")
    return kwargs


def optional(module: ModuleType, env_id: str, kwargs: dict[str, Any]) -> Any:
    """The environment `env_id` of an optional suite with these arguments. module: the suite's, such as
    common.suites.brax."""
    if not kwargs:
        return module.make(env_id, kwargs)
    where = f"--env-kwargs {json.dumps(kwargs)}"
    _refuse_unknown(where, env_id, kwargs, module.arguments(env_id))
    with blame(where, env_id, module.__file__):
        made = module.make(env_id, kwargs)
    _checked(where, made, module.__file__, made.action_space)
    return made


def registered(env_id: str, kwargs: dict[str, Any]) -> Gymnax:
    """The gymnax environment `env_id` with these arguments of its class and fields of its parameters."""
    import gymnax

    where, default = f"--env-kwargs {json.dumps(kwargs)}", gymnax.make(env_id)[0]
    chosen, rest = _split(type(default), kwargs)
    with blame(where, env_id, inspect.getfile(type(default))):
        env, params = gymnax.make(env_id, **chosen)
    params = _with_fields(where, env_id, type(env), params, rest)
    return _gymnax(where, env, params, inspect.getfile(type(env)), env_id)


def make(env_id: str, kwargs: dict[str, Any]) -> Own | Gymnax:
    """The user's environment FILE:NAME, checked. kwargs are for the class or function that NAME is."""
    where, (file, _, name) = f"--env-id {env_id}", env_id.rpartition(":")
    if not (file and name):
        raise UsageError(f"{where}: must be FILE:NAME, such as my_file:MyEnv for the class MyEnv in my_file.py")
    path = find(env_id)
    with blame(where, f"importing {path.name if path else file}", path):
        module = _load(path, path.stat().st_mtime_ns) if path else _import(file)
    if module is None:
        missing = file if file.endswith(".py") else f"{file}.py"
        other = f", nor is there a module {file}" if "/" not in file and missing != file else ""
        advice = "give a path, some/dir/my_file.py:MyEnv; a run keeps a copy of the file as environment.py"
        raise UsageError(f"{where}: no file {missing} in {Path.cwd()} or beside the script{other}; {advice}")
    made, file = getattr(module, name, None), path or getattr(module, "__file__", None)
    if made is None:
        here = [n for n, x in vars(module).items() if callable(x) and getattr(x, "__module__", "") == module.__name__]
        raise UsageError(f"{where}: no {name} in {file}; it has {', '.join(here) or 'no class and no function'}")
    rest = kwargs
    if inspect.isclass(made) or not any(hasattr(made, style) for style in ("step", "step_env", "reset", "reset_env")):
        if not callable(made):
            kinds = "a class, a function that makes an environment, or an environment"
            raise UsageError(f"{where}: {name} is {_a(made)}; must be {kinds}")
        chosen, rest = _split(made, kwargs)
        needed = [p for p, v in parameters(made).items() if v.default is v.empty and p not in chosen]
        if needed:
            such = ", ".join(f'"{p}": ...' for p in needed)
            raise UsageError(f"{where}: {name} needs {', '.join(needed)}; add --env-kwargs '{{{such}}}'")
        factory, made = made, None
        with blame(where, f"{name}({', '.join(f'{k}={v!r}' for k, v in chosen.items())})", file):
            made = factory(**chosen)
    else:
        factory = None
    said = f"--env-kwargs {json.dumps(kwargs)}"
    with blame(where, name, file):  # attributes may be properties
        native = hasattr(made, "step_env") or hasattr(made, "reset_env")
        missing = [text for n, text in (NEEDED_IN_GYMNAX if native else NEEDED).items() if not hasattr(made, n)]
    if missing:
        kind = name if inspect.isclass(factory) else _a(made)
        raise UsageError(f"{where}: {kind} has no {', no '.join(missing)}; {PAGE}")
    if native:
        with blame(where, "default_params", file):
            params = made.default_params
        return _gymnax(where, made, _with_fields(said, name, factory, params, rest), file)
    _with_fields(said, name, factory, None, rest)
    return _own(where, made, file)


def parameters(factory: Any) -> dict[str, inspect.Parameter]:
    """The keyword arguments that a class or function takes, without **kwargs."""
    try:
        found = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # not callable, or not written in Python
        return {}
    return {name: p for name, p in found.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}


def _split(factory: Any, kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments that `factory` takes, and the others."""
    with contextlib.suppress(TypeError, ValueError):
        if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(factory).parameters.values()):
            return kwargs, {}
    names = parameters(factory)
    return {k: v for k, v in kwargs.items() if k in names}, {k: v for k, v in kwargs.items() if k not in names}


def _refuse_unknown(where: str, name: str, kwargs: dict[str, Any], takes: Sequence[str]) -> None:
    unknown = [key for key in kwargs if key not in takes]
    if unknown:
        known = ", ".join(dict.fromkeys(takes)) or "no arguments"
        raise UsageError(f"{where}: {name} takes no {', '.join(unknown)}; it takes {known}")


def _with_fields(where: str, name: str, factory: Any, params: Any, kwargs: dict[str, Any]) -> Any:
    """gymnax's parameters with some fields replaced. Refuse what is no field."""
    if not kwargs:
        return params
    fields = [f.name for f in dataclasses.fields(params)] if dataclasses.is_dataclass(params) else []
    fields = fields or list(getattr(params, "_fields", ()))
    _refuse_unknown(where, name, kwargs, [*parameters(factory), *fields])
    with blame(where, name, None):  # lists of no numbers, and what the parameters' class refuses
        kwargs = {key: jnp.asarray(value) if isinstance(value, list) else value for key, value in kwargs.items()}
        return dataclasses.replace(params, **kwargs) if dataclasses.is_dataclass(params) else params._replace(**kwargs)


# Check


def _own(where: str, env: Any, file: Any) -> Own:
    """Check an environment in this project's own protocol (common/envs.py, Suite)."""
    space = _action_space(where, env, file)
    state, obs = _checked(where, env, file, space)
    levels = getattr(env, "num_levels", None)
    if levels is not None and not (isinstance(levels, int) and levels > 0 and hasattr(env, "reset_to")):
        needed = "must be None, or an integer greater than 0 together with reset_to(key, level)"
        raise UsageError(f"{where}: num_levels is {levels!r}; {needed}")
    if getattr(env, "can_draw", False) and not hasattr(env, "frames"):
        raise UsageError(f"{where}: can_draw is True, and there is no frames(states); add it, or leave can_draw out")
    return Own(env, state, obs, space)


def _gymnax(where: str, env: Any, params: Any, file: Any, name: str | None = None) -> Gymnax:
    """Check an environment in gymnax's style. What `Gymnax` would make fit in silence is looked at here."""
    with blame(where, "observation_space(params)", file):
        declared = getattr(env.observation_space(params), "shape", None)
    with blame(where, "action_space(params)", file):
        space = env.action_space(params)
    if not (hasattr(space, "n") or hasattr(space, "low")):
        wanted = "must be Discrete(n) or Box(low, high, shape) of gymnax.environments.spaces"
        raise UsageError(f"{where}: action_space(params) is {_a(space)}; {wanted}")
    # Not as arguments of eval_shape: parameters are constants, so shapes may depend on them.
    reset, step = (lambda key: env.reset_env(key, params)), (lambda *x: env.step_env(*x, params))
    obs, state = _pair(where, "reset_env(key, params)", "obs, state", file, reset, jax.random.key(0))
    if declared is not None and getattr(obs, "shape", None) != tuple(declared):
        raise UsageError(
            f"{where}: reset_env's obs is {_said(obs)}, but observation_space(params) has shape {tuple(declared)}"
        )
    call = "step_env(key, state, action, params)"
    with blame(where, call, file):
        action = jax.eval_shape(space.sample, jax.random.key(0))
        out = jax.eval_shape(step, jax.random.key(0), state, action)
    if not isinstance(out, tuple | list) or len(out) not in (5, 6):
        raise UsageError(f"{where}: {call} returns {_count(out)}; must be {NATIVE}")
    _same_state(where, state, out[1], "step_env")
    with blame(where, "its spaces", file):
        suite = Gymnax(env, params, name or type(env).__name__)
    _action_space(where, suite, file)
    _checked(where, suite, file, suite.action_space)
    return suite


def _checked(where: str, env: Any, file: Any, space: Discrete | Box) -> tuple[Any, jax.ShapeDtypeStruct]:
    """Look at the shapes that reset, reset_to and step return. -> those of state and obs."""
    key = jax.random.key(0)
    state, obs = _pair(where, "reset(key)", "state, obs", file, env.reset, key)
    _check_obs(where, env, obs)
    strong = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
    if hasattr(env, "reset_to"):
        level = jax.ShapeDtypeStruct((), jnp.int32)
        begun = _pair(where, "reset_to(key, level)", "state, obs", file, env.reset_to, key, level)
        _same_state(where, state, begun[0], "reset_to")
        _same_obs(where, obs, begun[1], "reset_to")
    action = jax.ShapeDtypeStruct((len(space[0]),), jnp.float32 if isinstance(space, Box) else jnp.int32)
    call = "step(key, state, action)"
    with blame(where, call, file):
        out = jax.eval_shape(env.step, key, strong, action)
    if not isinstance(out, tuple | list) or len(out) != len(RESULTS):
        raise UsageError(f"{where}: {call} returns {_count(out)}; must be {SIX}")
    after, seen, reward, *ends = out
    _same_state(where, state, after, "step")
    _same_obs(where, obs, seen, "step")
    if not _is_scalar(reward, jnp.floating):
        raise UsageError(f"{where}: step's reward is {_said(reward)}; must be one float, such as jnp.float32(1)")
    for name, end in zip(RESULTS[3:], ends, strict=True):
        if not _is_scalar(end, jnp.bool_):
            raise UsageError(f"{where}: step's {name} is {_said(end)}; must be one bool, such as jnp.bool_(False)")
    return strong, obs


def _pair(where: str, call: str, wanted: str, file: Any, function: Callable, *inputs: Any) -> tuple[Any, Any]:
    """The shapes of the two results of a function."""
    with blame(where, call, file):
        out = jax.eval_shape(function, *inputs)
    if not isinstance(out, tuple | list) or len(out) != 2:
        raise UsageError(f"{where}: {call} returns {_count(out)}; must be 2: {wanted}")
    return out[0], out[1]


def _action_space(where: str, env: Any, file: Any) -> Discrete | Box:
    """The action space as a tuple of ints, or as two float32 arrays [D]."""
    with blame(where, "action_space", file):
        space = env.action_space
    wanted = "must be Discrete((n,)), for several choices Discrete((n, m)), or Box(low, high) with arrays [D]"
    wrong = UsageError(f"{where}: action_space is {_a(space)}; {wanted} (common.actions)")
    if isinstance(space, Discrete):
        if not isinstance(space.nvec, tuple | list) or not all(isinstance(n, int | np.integer) for n in space.nvec):
            raise wrong
        if not space.nvec or min(space.nvec) < 1:
            raise wrong
        return Discrete(tuple(map(int, space.nvec)))
    if not isinstance(space, Box):
        raise wrong
    try:
        low, high = (np.asarray(x, np.float32) for x in space)
    except (TypeError, ValueError):
        raise wrong from None
    if low.ndim != 1 or low.shape != high.shape or not low.size or not (low < high).all():
        raise wrong
    return Box(low, high)


def _check_obs(where: str, env: Any, obs: Any) -> None:
    """Compare what reset returns with obs_shape and, if there is one, obs_dtype."""
    if not isinstance(obs, jax.ShapeDtypeStruct):
        raise UsageError(f"{where}: reset's obs is {_said(obs)}; must be one array (reset(key) -> state, obs)")
    shape, dtype = env.obs_shape, getattr(env, "obs_dtype", obs.dtype)
    if not isinstance(shape, tuple | list) or tuple(shape) != obs.shape:
        raise UsageError(f"{where}: reset's obs is {_said(obs)}, but obs_shape is {shape!r}; must be {obs.shape}")
    try:
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    except TypeError:
        dtype = None
    if dtype != obs.dtype:
        said = f"obs_dtype is {env.obs_dtype!r}"
        raise UsageError(f"{where}: reset's obs is {_said(obs)}, but {said}; change one, or leave obs_dtype out")


def _same_state(where: str, before: Any, after: Any, function: str) -> None:
    """Refuse a state that is not built as the one of reset is."""
    if jax.tree.structure(before) != jax.tree.structure(after):
        was, now = (jax.tree.structure(x) for x in (before, after))
        such = "must have the same structure as reset's"
        raise UsageError(f"{where}: {function} changes the state from {_short(was)} to {_short(now)}; {such}")
    for (path, old), new in zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            change = f"state{jax.tree_util.keystr(path)} from {_said(old)} to {_said(new)}"
            raise UsageError(f"{where}: {function} changes {change}; must stay the same")


def _same_obs(where: str, before: Any, after: Any, function: str) -> None:
    if _said(before) != _said(after):
        other = f"reset's is {_said(before)}"
        raise UsageError(f"{where}: {function}'s obs is {_said(after)}, but {other}; must be the same")


def _is_scalar(x: Any, kind: Any) -> bool:
    return isinstance(x, jax.ShapeDtypeStruct) and x.shape == () and jnp.issubdtype(x.dtype, kind)


def _said(x: Any) -> str:
    """float32 of shape (10,), or a dict."""
    return f"{x.dtype} of shape {x.shape}" if isinstance(x, jax.ShapeDtypeStruct) else _a(x)


def _a(x: Any) -> str:
    """A value in a few words: the short ones themselves, of others the type."""
    text = repr(x)
    return text if len(text) <= 60 and "\n" not in text and " at 0x" not in text else f"a {type(x).__name__}"


def _short(structure: Any) -> str:
    text = " ".join(str(structure).removeprefix("PyTreeDef(").removesuffix(")").split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def _count(out: Any) -> str:
    return f"{len(out)} results" if isinstance(out, tuple | list) else "a single result"
