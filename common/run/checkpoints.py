"""Checkpoints (orbax). Each is complete or absent; a damaged one is reported and the one before it is used."""

import functools
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from common.run import devices
from common.run.arguments import UsageError, flag, read_record, typed
from common.run.tracking import say

SAME_FLAGS = "; the same network and environment flags are needed"


def checkpoint_updates(folder: Path) -> list[int]:
    """The updates that have a complete checkpoint, ascending. Orbax writes each under another name, then renames."""
    try:
        return sorted(int(name) for name in os.listdir(folder) if name.isdecimal())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UsageError(f"{folder}: cannot be read ({error.strerror})") from None


@functools.cache
def _orbax() -> Any:
    """Import orbax on first use, and silence its log, which repeats our one-line messages with tracebacks."""
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    import orbax.checkpoint

    return orbax.checkpoint


class Checkpoints:
    """The checkpoints of one run, named by their update, and saved in the background."""

    def __init__(self, folder: Path, keep: int):
        self.folder = folder
        self._keep = keep
        self._manager: Any = None

    def save(self, update: int, state: Any) -> None:
        """Start to save `state`; raise what went wrong now or in the save before. The state may be donated once this
        returns: orbax holds host copies or, on CPU, views, and XLA donates no buffer that has a view."""
        ocp = _orbax()
        if self._manager is None:
            # This also removes what an interrupted save left.
            options = ocp.CheckpointManagerOptions(max_to_keep=self._keep or None, cleanup_tmp_directories=True)
            self._manager = ocp.CheckpointManager(self.folder.absolute(), options=options)
        self._try(lambda: self._manager.save(update, args=ocp.args.StandardSave(_stored(state)), force=True))

    def wait(self) -> None:
        """Wait until what was saved is on disk; raise what went wrong."""
        if self._manager is not None:
            self._try(self._manager.wait_until_finished)

    def _try(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except Exception:
            self._manager = None  # a new one starts clean
            raise

    def newest(self) -> Path | None:
        """The newest complete checkpoint, after waiting for the save in progress."""
        try:
            self.wait()
        except Exception as error:
            say(f"warning: the last checkpoint could not be saved: {first_line(error)}")
        updates = self._there()
        return self.folder / str(updates[-1]) if updates else None

    def has(self, update: int) -> bool:
        """Whether there is a complete checkpoint of this update."""
        return update in self._there()

    def _there(self) -> list[int]:
        try:
            return checkpoint_updates(self.folder)
        except UsageError as error:
            say(f"warning: {error}")
            return []


def find_checkpoint(source: str, by: str = "--init-from") -> tuple[Path, dict[str, Any], list[int]]:
    """Find what the flag `by` names, "RUN" or "RUN@update". -> folder, args.json, the updates to choose from."""
    folder, at, wanted = source.rpartition("@")
    if not (at and wanted.isdecimal()) or os.path.exists(Path(source) / "args.json"):
        folder, wanted = source, ""
    record = read_record(Path(folder), by)
    updates = checkpoint_updates(Path(folder) / "checkpoints")
    if not updates or (wanted and int(wanted) not in updates):
        there = f"its checkpoints are at updates {', '.join(map(str, updates))}" if updates else "it has no checkpoint"
        raise UsageError(f"{by} {source}: {there}")
    return Path(folder), record, [int(wanted)] if wanted else updates


def check_learner(args: Any, learner: Any, same: Sequence[str], may_lack: str | None = None) -> None:
    """Refuse an --init-from whose learner `load_learner` could not take over. learner: its shapes; same: the flags that
    cannot change; may_lack: a field that may be missing."""
    if not args.init_from or args.resume:
        return
    where = f"--init-from {args.init_from}"
    folder, record, updates = find_checkpoint(args.init_from)
    theirs = typed(type(args), record["args"], where)
    known = [name for name in vars(args) if name in theirs and name not in ("init_from", "run_name")]
    differing = [name for name in known if theirs[name] != getattr(args, name)]
    listed = ", ".join(f"{flag(name)} {theirs[name]}" for name in differing if name in same)
    if listed:
        raise UsageError(f"{where}: was trained with {listed}, which cannot change")
    if (
        record["args"].get("norm_value")
        and not hasattr(args, "norm_value")
        and not getattr(args, "fresh_critic", False)
    ):
        other = ", or --fresh-critic" if hasattr(args, "fresh_critic") else ""
        raise UsageError(f"{where}: was trained with --norm-value, in whose units its values are; take sapg.py{other}")
    hint = "; flags that differ: " + ", ".join(f"{flag(n)} {theirs[n]} there" for n in differing) if differing else ""
    update = newest_readable(folder, updates)
    if update is None:
        raise UsageError(f"{where}: no intact checkpoint among updates {', '.join(map(str, updates))}")
    like = _without(folder, update, learner, may_lack)
    problem = _mismatch(folder / "checkpoints" / str(update), {"learner": like}, partial=True, hint=hint or SAME_FLAGS)
    if problem:
        raise UsageError(f"{where}: {problem}")


def load_learner(args: Any, learner: Any, *, may_lack: str | None = None) -> Any:
    """Load the learner in the checkpoint that --init-from names, "RUN" (its newest) or "RUN@update". `learner` gives
    structure, shapes and shardings, which `check_learner` has compared. With --fresh-critic networks whose name begins
    with "critic" keep `learner`'s parameters. may_lack: a field whose own params, if it is missing, are as at the start
    of any run those of the learner."""
    folder, _, updates = find_checkpoint(args.init_from)
    like = _without(folder, newest_readable(folder, updates), learner, may_lack)
    where = f"--init-from {args.init_from}"
    loaded = restore_newest(folder, updates, {"learner": like}, where, partial=True)[0]["learner"]
    if getattr(args, "fresh_critic", False):
        kept = {name: tree for name, tree in learner.params["params"].items() if name.startswith("critic")}
        loaded = loaded._replace(params={"params": loaded.params["params"] | kept})
    fresh = may_lack and getattr(learner, may_lack)
    if fresh is not None and getattr(loaded, may_lack) is None:
        # A copy, because the update takes over the memory of both.
        fresh = fresh._replace(params=jax.tree.map(jnp.copy, loaded.params))
        loaded = loaded._replace(**{may_lack: fresh})
    return loaded


def load_for_evaluation(args: Any, learner: Any) -> tuple[Any, int, int]:
    """The learner in the checkpoint that --evaluate names. learner: its shapes. -> learner on one device, updates and
    environment steps per update behind it."""
    folder, record, updates = find_checkpoint(args.evaluate, "--evaluate")
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), learner)
    state, update = restore_newest(folder, updates, {"learner": like}, f"--evaluate {args.evaluate}", partial=True)
    return state["learner"], update, record["args"]["num_envs"] * record["args"]["num_steps"]


def _without(folder: Path, update: int | None, learner: Any, field: str | None) -> Any:
    """`learner` with None for a field that the checkpoint lacks."""
    if field is None or update is None:
        return learner
    entries = _entries(folder / "checkpoints" / str(update))
    there = any(entry.startswith(f"learner/{field}/") for entry, _ in entries)
    return learner if there else learner._replace(**{field: None})


def newest_readable(run: Path, updates: Sequence[int]) -> int | None:
    """The newest of these checkpoints whose list of contents is not damaged; its data may be."""
    for update in sorted(updates, reverse=True):
        try:
            _entries(run / "checkpoints" / str(update))
            return update
        except Exception:  # whatever a damaged file makes orbax or json raise; `restore_newest` reports it
            continue
    return None


def restore_newest(
    run: Path, updates: Sequence[int], like: Any, where: str, partial: bool, hint: str = ""
) -> tuple[Any, int]:
    """Restore the newest of these checkpoints that is not damaged. `where` begins an error, `hint` ends that of a
    checkpoint which does not fit. -> state, update."""
    state, update = devices.together(lambda: _newest_intact(run, updates, like, where, partial, hint or SAME_FLAGS))
    if len(set(found := devices.share(str(update)))) > 1:  # one may have failed to read what others could
        raise UsageError(f"{where}: the processes have read checkpoints {', '.join(found)}, must be one; try again")
    return state, update


def _newest_intact(
    run: Path, updates: Sequence[int], like: Any, where: str, partial: bool, hint: str
) -> tuple[Any, int]:
    for update in sorted(updates, reverse=True):
        path = run / "checkpoints" / str(update)
        try:
            problem = _mismatch(path, like, partial, hint)
            state = None if problem else _restore(path, like)
        except Exception as error:  # whatever a damaged file makes orbax, tensorstore or json raise
            if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
                raise UsageError(f"{where}: not enough memory to read checkpoint {path}") from None
            say(f"warning: checkpoint {path} is damaged and left out: {first_line(error)}")
            continue
        if problem:
            raise UsageError(f"{where}: {problem}")
        return state, update
    raise UsageError(f"{where}: no intact checkpoint among updates {', '.join(map(str, updates))}")


def _mismatch(path: Path, like: Any, partial: bool, hint: str) -> str | None:
    """The first entry in which the checkpoint and `like` differ. By itself, orbax would cast dtypes silently."""
    there = {name: (leaf.shape, leaf.dtype) for name, leaf in _entries(path) if hasattr(leaf, "shape")}
    here = {name: _stored_shape(leaf) for name, leaf in _named(_stored(like))}
    for name, (shape, dtype) in here.items():
        if any(other.startswith(f"{name}/") for other in there):
            return f"{name} is kept by layers there, as an earlier version of the script did (args.json has its commit)"
        if name not in there:
            return f"{name} is missing there{hint}"
        if tuple(there[name][0]) != shape:
            return f"{name} is {tuple(there[name][0])} there, {shape} here{hint}"
        if there[name][1] != dtype:
            return f"{name} is {there[name][1]} there, {dtype} here{hint}"
    surplus = [] if partial else sorted(there.keys() - here.keys())
    return f"{surplus[0]} is unknown here{hint}" if surplus else None


def _entries(path: Path) -> list[tuple[str, Any]]:
    """Names and shapes of what a checkpoint holds."""
    return _named(_orbax().StandardCheckpointer().metadata((path / "default").absolute()).item_metadata.tree)


def _named(tree: Any) -> list[tuple[str, Any]]:
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: hasattr(x, "shape"))[0]
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in leaves]


def _stored_shape(leaf: Any) -> tuple[tuple[int, ...], Any]:
    """Shape and dtype on disk: typed keys are raw words."""
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.eval_shape(jax.random.key_data, leaf)
    return leaf.shape, leaf.dtype


def _stored(tree: Any) -> Any:
    """What of a tree is stored: all but what holds nothing, at which orbax fails. Some environments' states have arrays
    of size 0, or dataclasses without fields."""

    def holds_nothing(x: Any) -> bool:
        structure = jax.tree.structure(x)
        return structure.num_nodes == 1 and (structure.num_leaves == 0 or x.size == 0)

    return jax.tree.map(lambda x: None if holds_nothing(x) else x, tree, is_leaf=holds_nothing)


def _restore(path: Path, like: Any) -> Any:
    ocp = _orbax()
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), _stored(like))
    how = ocp.checkpoint_utils.construct_restore_args(abstract)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        options = ocp.args.PyTreeRestore(item=abstract, restore_args=how, partial_restore=True)
        restored = iter(jax.tree.leaves(checkpointer.restore((path / "default").absolute(), args=options)))
    return jax.tree.map(lambda x: next(restored) if x.size else jnp.zeros(x.shape, x.dtype, device=x.sharding), like)


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
