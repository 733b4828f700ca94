"""Checkpoints: a folder each, with a NumPy file (.npz) of each process, whose checksums show every flipped bit. Each is
complete or absent; a damaged one is reported and the one before it is used."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from common.run import devices
from common.run.arguments import UsageError, flag, read_record, typed
from common.run.tracking import say

HINT = "; the same version of the script, with the same network and environment flags, is needed"
PART = "part"  # the name of a checkpoint that is not complete


def checkpoint_updates(folder: Path) -> list[int]:
    """The updates that have a complete checkpoint, ascending."""
    with contextlib.suppress(OSError):  # there is none, or the folder cannot be read now
        return sorted(int(name) for name in os.listdir(folder) if name.isdecimal())
    return []


def save(folder: Path, update: int, state: Any, keep: int = 0) -> None:
    """Write the checkpoint of an update; of those in the folder the newest `keep` stay (0: all). All processes call
    this, and each writes what is on its devices. Raises OSError, in all of them, if one of them cannot write."""
    part, first = folder / PART, jax.process_index() == 0

    def begin() -> None:
        shutil.rmtree(part, ignore_errors=True)  # what an interrupted save left
        part.mkdir(parents=True)

    def publish() -> None:
        os.replace(part, folder / str(update))
        for old in checkpoint_updates(folder)[:-keep] if keep else ():
            with contextlib.suppress(OSError):  # one that cannot be removed does no harm
                os.replace(folder / str(old), part)
                shutil.rmtree(part)

    for action in (begin if first else None, lambda: _write(part, state), publish if first else None):
        devices.together(action or (lambda: None), OSError)


def _write(folder: Path, state: Any) -> None:
    """Write what this process has of a state, each part of an array once over all processes."""
    index, parts = {}, {}
    for name, leaf in _named(state):
        leaf = leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)
        is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        impl = str(jax.random.key_impl(leaf)) if is_key else None
        index[name] = str(leaf.dtype), leaf.shape, impl
        for shard in (jax.random.key_data(leaf) if impl else leaf).addressable_shards:
            if shard.replica_id == 0:
                parts[f"{name}@{','.join(str(axis.start or 0) for axis in shard.index)}"] = np.asarray(shard.data)
    with open(folder / f"{jax.process_index()}-of-{jax.process_count()}.npz", "wb") as file:
        np.savez(file, index=np.array(json.dumps(index)), **parts)
        file.flush()
        os.fsync(file.fileno())


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


def newest_intact(run: Path, updates: Sequence[int], where: str) -> int:
    """The newest of these checkpoints that can be read to its end. `where` begins the error if there is none."""

    def read(path: Path) -> None:
        for file in _files(path):
            with np.load(file) as parts:
                for name in parts.files:
                    parts[name]  # this compares the checksum

    return _newest(run, updates, where, read)[1]


def _newest(run: Path, updates: Sequence[int], where: str, read: Callable[[Path], Any]) -> tuple[Any, int]:
    """What `read` makes of the newest of these checkpoints that is not damaged, and its update."""
    for update in sorted(updates, reverse=True):
        path = run / "checkpoints" / str(update)
        try:
            return read(path), update
        except UsageError:
            raise
        except Exception as error:  # whatever a damaged file makes NumPy, zipfile or json raise
            if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
                raise UsageError(f"{where}: not enough memory to read checkpoint {path}") from None
            say(f"warning: checkpoint {path} is damaged and left out: {first_line(error)}")
    raise UsageError(f"{where}: no intact checkpoint among updates {', '.join(map(str, updates))}")


def load_learner(args: Any, learner: Any, fixed: Sequence[str] = (), may_lack: str | None = None) -> tuple[Any, str]:
    """Load the learner in the checkpoint that --init-from names, "RUN" (its newest) or "RUN@update", or raise
    UsageError. -> learner, RUN@update. learner: its shapes. With shardings the result is on the devices, without in
    NumPy's arrays. fixed: the flags that cannot change; may_lack: a field that may be missing, and is None then."""
    where = f"--init-from {args.init_from}"
    folder, record, updates = find_checkpoint(args.init_from)
    theirs, ours = typed(type(args), record["args"], where), {"norm_value": False, **vars(args)}  # a flag of sapg.py
    differing = {name: theirs[name] for name in ours if name in theirs and theirs[name] != ours[name]}
    listed = {
        name: f"{flag(name)} {value}" for name, value in differing.items() if name not in ("init_from", "run_name")
    }
    _refuse_others([text for name, text in listed.items() if name in (*fixed, "norm_value")], where)
    hint = f"; flags that differ there: {', '.join(listed.values())}" if listed else ""

    def like(there: dict[str, list]) -> Any:
        lacks = may_lack and not any(name.startswith(f"learner/{may_lack}/") for name in there)
        return {"learner": learner._replace(**{may_lack: None}) if lacks else learner}

    state, update = restore_newest(folder, updates, like, where, partial=True, hint=hint)
    return state["learner"], f"{folder}@{update}"


def take_over(args: Any, learner: Any, loaded: Any, may_lack: str | None = None) -> Any:
    """Put what `load_learner` has loaded to where `learner` is, that of a new run. With --fresh-critic networks whose
    name begins with "critic" keep `learner`'s parameters. What `loaded` lacks starts as in any run: from its params."""
    if may_lack and getattr(loaded, may_lack) is None and getattr(learner, may_lack) is not None:
        # A copy, because the update takes over the memory of both.
        fresh = getattr(learner, may_lack)._replace(params=jax.tree.map(np.copy, loaded.params))
        loaded = loaded._replace(**{may_lack: fresh})
    if getattr(args, "fresh_critic", False):
        kept = {name: tree for name, tree in learner.params["params"].items() if name.startswith("critic")}
        loaded = loaded._replace(params={"params": loaded.params["params"] | kept})
    put = lambda x, new: new if isinstance(new, jax.Array) else _placed(new, x.sharding)  # noqa: E731
    return jax.tree.map(put, learner, loaded)


def load_for_evaluation(
    args: Any, learner: Any, fixed: Sequence[str], script: str
) -> tuple[Any, int, Path, dict[str, Any]]:
    """The learner in the checkpoint that --evaluate names. learner: its shapes; fixed: the flags that cannot change;
    script: this one. -> learner on one device, its updates, the run's folder and args.json."""
    folder, record, updates = find_checkpoint(args.evaluate, "--evaluate")
    where = f"--evaluate {args.evaluate}"
    theirs = typed(type(args), record["args"], where)
    _refuse_others([f"{flag(x)} {theirs[x]}" for x in fixed if x in theirs and theirs[x] != getattr(args, x)], where)
    other = f"; that run was made by {record['script']}.py, this is {script}.py" * (record["script"] != script)
    hint = other and HINT + other
    state, update = restore_newest(folder, updates, {"learner": learner}, where, partial=True, hint=hint)
    return jax.device_put(state["learner"], jax.local_devices()[0]), update, folder, record


def _refuse_others(flags: list[str], where: str) -> None:
    if flags:
        raise UsageError(f"{where}: was trained with {', '.join(flags)}, which cannot change")


def restore_newest(
    run: Path, updates: Sequence[int], like: Any, where: str, partial: bool, hint: str = ""
) -> tuple[Any, int]:
    """Restore the newest of these checkpoints that is not damaged. like: arrays or ShapeDtypeStructs, or a function of
    the checkpoint's contents that gives them; those without a sharding become NumPy's arrays; with `partial` the
    checkpoint may hold more. `where` begins an error, `hint` ends that of one which does not fit. -> state, update."""

    def read(path: Path) -> Any:
        index = _index(path)
        wanted = like(index) if callable(like) else like
        _compare(index, wanted, partial, where, hint or HINT)
        return _read(path, index, wanted)

    state, update = devices.together(lambda: _newest(run, updates, where, read))
    if len(set(found := devices.share(str(update)))) > 1:  # one may have failed to read what others could
        raise UsageError(f"{where}: the processes have read checkpoints {', '.join(found)}, must be one; try again")
    return state, update


def _compare(there: dict[str, list], like: Any, partial: bool, where: str, hint: str) -> None:
    """Refuse a checkpoint that does not hold what `like` does."""
    here = dict(_named(like))
    for name, leaf in here.items():
        if name not in there:
            raise UsageError(f"{where}: {name} is missing there{hint}")
        dtype, shape, _ = there[name]
        if (dtype, tuple(shape)) != (str(leaf.dtype), leaf.shape):
            raise UsageError(f"{where}: {name} is {dtype}{tuple(shape)} there, {leaf.dtype}{leaf.shape} here{hint}")
    if surplus := [] if partial else sorted(there.keys() - here.keys()):
        raise UsageError(f"{where}: {surplus[0]} is unknown here{hint}")


def _index(path: Path) -> dict[str, list]:
    """What a checkpoint holds: {name: [dtype, shape, implementation if it is a key]}."""
    with np.load(_files(path)[0]) as file:
        return json.loads(str(file["index"]))


def _files(path: Path) -> list[Path]:
    files = sorted(path.glob("*-of-*.npz"))
    if not files or len(files) != int(files[0].stem.rpartition("-")[2]):
        raise ValueError(f"has {len(files)} of its files (older versions of this program kept other ones)")
    return files


def _read(path: Path, index: dict[str, list], like: Any) -> Any:
    with contextlib.ExitStack() as stack:
        parts: dict[str, list] = {}
        for file in [stack.enter_context(np.load(file)) for file in _files(path)]:
            for entry in file.files:
                parts.setdefault(entry.rpartition("@")[0], []).append((file, entry))
        leaves = [_joined(leaf, index[name][2], parts.get(name, [])) for name, leaf in _named(like)]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _joined(leaf: Any, impl: str | None, parts: list[tuple[Any, str]]) -> Any:
    """An array from its parts, each with where it starts in its name. That of a key is its words, on one axis more."""
    whole, count = None, 0
    for file, entry in parts:
        part = file[entry] if impl else file[entry].view(leaf.dtype)  # NumPy keeps bfloat16 as two bytes
        if whole is None:
            whole = np.empty(leaf.shape + part.shape[leaf.ndim :], part.dtype)
        starts = [int(i) for i in entry.rpartition("@")[2].split(",") if i]
        whole[tuple(slice(i, i + n) for i, n in zip(starts, part.shape, strict=True))] = part
        count += part.size
    if whole is None or count != whole.size:
        raise ValueError("parts of an array are missing")
    whole = whole if leaf.sharding is None else _placed(whole, leaf.sharding)
    return jax.random.wrap_key_data(whole, impl=impl) if impl else whole


def _placed(array: np.ndarray, sharding: Any) -> jax.Array:
    return jax.make_array_from_callback(array.shape, sharding, lambda at: array[at])


def _named(tree: Any) -> list[tuple[str, Any]]:
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in leaves]


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
