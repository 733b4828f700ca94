"""Make, find and lock a run's folder, and record how it was made. Nothing in it is ever executed."""

import contextlib
import dataclasses
import datetime
import importlib.metadata
import itertools
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import jax

from common.run import devices, plots
from common.run.arguments import BY_HAND, UsageError, flag, given, read_record, typed
from common.run.checkpoints import checkpoint_updates, find_checkpoint
from common.run.tracking import say

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "gymnax", "kinetix-env", "envpool", "brax")
PACKAGES += ("mujoco", "mujoco-mjx", "craftax", "xminigrid", "playground", "gymnasium")
LAUNCH = ("distributed", *BY_HAND)  # how processes find each other in this launch
TRACKING = ("track", "wandb_project_name", "wandb_entity", "wandb_group", "wandb_tags", "wandb_job_type", "wandb_mode")
CODE = ("--", ":(top)", ":(top,exclude)results", ":(top,exclude)docs")  # for git: what can change a run
# What can change with --resume. With other devices the run goes on, but not bit for bit.
GIVEN_ANEW = (*TRACKING, "num_devices", *LAUNCH)
# What --evaluate never takes from the run. One device is enough, and the run's devices may not be here.
HERE = (
    *(*GIVEN_ANEW, "runs_dir", "run_name", "resume", "init_from", "evaluate"),
    *("num_eval_episodes", "eval_deterministic", "capture_video", "fresh_critic"),
)
SIZES = {  # flags of the training that have to fit together, and that an evaluation does not need
    *("num_envs", "num_steps", "total_timesteps", "minibatch_size", "num_minibatches", "sequence_length"),
    *("num_rollout_chunks", "scaling", "base_num_envs", "num_blocks", "search_batch"),
}


def settle(args: Any, script: str) -> Any:
    """The arguments of the run that --resume or --evaluate names, else `args`. Refuse what cannot start."""
    if args.resume is not None:
        return _resumed(args, Path(args.resume), Path(script).stem)
    refuse_bad_target(args)
    if getattr(args, "evaluate", None) is not None:
        return _evaluated(args, Path(script).stem)
    if getattr(args, "init_from", None) is not None:
        find_checkpoint(args.init_from)
    return args


def refuse_bad_target(args: Any) -> None:
    """Refuse a --run-name or --runs-dir with which no folder can be made."""
    place, name = Path(args.runs_dir), args.run_name
    if name is not None and (Path(name).name != name or len(os.fsencode(name)) > 255):
        where = "--runs-dir says where it goes"
        raise UsageError(f"--run-name {name!r}: must be a plain folder name of at most 255 bytes; {where}")
    if name is not None and os.path.lexists(place / name):
        raise _taken(place / name)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_make(place, error) from None
    if not os.access(place, os.W_OK):
        raise UsageError(f"--runs-dir {place}: may not be written to; name another")


def _taken(path: Path) -> UsageError:
    resume = shlex.join(["--resume", str(path)])
    return UsageError(f"--run-name {path.name}: {path} exists already; name another, or go on with it: {resume}")


def _cannot_make(place: Path, error: OSError) -> UsageError:
    return UsageError(f"--runs-dir {place}: cannot make a folder there ({error.strerror}); name another")


def _resumed(args: Any, folder: Path, script: str) -> Any:
    kind, record, where = type(args), read_record(folder, "--resume"), f"--resume {folder}"
    if record["script"] != script:
        raise UsageError(f"{where}: that run was made by {record['script']}.py, this is {script}.py")
    updates = checkpoint_updates(folder / "checkpoints")
    if not updates:
        raise UsageError(f"{where}: there is no checkpoint in it; start a new run instead")
    saved, chosen, default = _saved(kind, record, where), given(args), kind()
    chosen.pop("resume")
    if "init_from" in chosen and (saved["init_from"] or "").rpartition("@")[0] == str(Path(chosen["init_from"])):
        chosen.pop("init_from")  # RUN, of which args.json has RUN@UPDATE
    refused = [flag(n) for n, v in chosen.items() if n not in GIVEN_ANEW and v != saved.get(n, getattr(default, n))]
    if refused:
        other = f"; {shlex.join(['--init-from', str(folder)])} starts a new run with others"
        branch = other if hasattr(default, "init_from") else ""
        raise UsageError(f"{where} with {', '.join(refused)}: a resumed run keeps its own flags{branch}")
    anew = {name: value for name, value in chosen.items() if name in GIVEN_ANEW}
    if anew.get("num_devices", saved.get("num_devices")) != saved.get("num_devices"):
        saved.pop("search_batch", None)  # it follows from the number of devices
    kept = {name: value for name, value in saved.items() if name not in LAUNCH}
    args = kind(**{**kept, **anew, "resume": args.resume})
    if updates[-1] == args.num_updates and plots.finished(folder):
        print(f"{where}: finished already, {args.num_updates} of {args.num_updates} updates")
        raise SystemExit(0)
    return args


def _evaluated(args: Any, script: str) -> Any:
    kind, where = type(args), f"--evaluate {args.evaluate}"
    record = find_checkpoint(args.evaluate, "--evaluate")[1]
    saved, chosen = _saved(kind, record, where), given(args)
    saved.pop("search_batch", None)  # it follows from the number of devices
    here = {name: getattr(args, name) for name in HERE if hasattr(args, name)}
    here |= {name: value for name, value in chosen.items() if name not in SIZES}
    if chosen.get("num_devices", 1) != 1:
        raise UsageError(f"--num-devices {args.num_devices} with {where}: an evaluation takes one device")
    if unused := [flag(name) for name in chosen if name in SIZES]:
        say(f"note: {where} makes no use of {', '.join(unused)}")
    try:
        return kind(**{**saved, **here, "num_devices": 1})
    except UsageError as error:
        made = f"{where}: made by {record['script']}.py, this is {script}.py: {error}"
        raise error if record["script"] == script else UsageError(made) from None


def _saved(kind: type, record: dict[str, Any], where: str) -> dict[str, Any]:
    """The run's arguments. This script must know all of them."""
    saved = typed(kind, record["args"], where)
    unknown = saved.keys() - {field.name for field in dataclasses.fields(kind)}
    if unknown:
        made = f"it was made by {record['script']}.py at git commit {record.get('git_commit')}"
        raise UsageError(f"{where}: this script has no {', '.join(map(flag, sorted(unknown)))}; {made}")
    return saved


def make(args: Any, script: str) -> Path:
    """Make the run's folder. With several processes, the first makes it and all get its name."""
    made = devices.together(lambda: _make(args, script) if jax.process_index() == 0 else "")
    return Path(devices.share(str(made))[0])


def _make(args: Any, script: str) -> Path:
    """Without --run-name its name has the time, and -2, -3, ... if another run started in the same second."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    path = Path(args.runs_dir) / (
        args.run_name or f"{_of_environment(args.env_id)}__{Path(script).stem}__{args.seed}__{now}"
    )
    for count in itertools.count(1):
        made = path if count == 1 else path.with_name(f"{path.name}-{count}")
        try:
            made.mkdir(parents=True)
            return made
        except FileExistsError:
            if args.run_name:
                raise _taken(path) from None
        except OSError as error:
            raise _cannot_make(made, error) from None


def _of_environment(env_id: str) -> str:
    """An environment's part of a folder's name: kinetix-s, my_file-MyEnv (for any/path/my_file.py:MyEnv as well)."""
    file, own, name = env_id.rpartition(":")
    return (f"{Path(file).name.removesuffix('.py')}-{name}" if own else name).replace("/", "-")


def open_record(path: Path, args: Any, script: str, before: int | None = None) -> tuple[dict[str, Any], Any]:
    """Lock the run's folder. before: as `make_record` has it. -> the contents of its args.json, which is made for a new
    run; the lock."""
    lock = _lock(path)
    if args.resume:
        record = read_record(path, "--resume")
        warn_if_edited(path, record, args, script)
    else:
        record = make_record(args, script, before)
        try:
            write_record(path, record, args, script)
        except OSError as error:
            raise _cannot_make(path, error) from None
    say(f"run: {path}")
    return record, lock


def write_record(path: Path, record: dict[str, Any], args: Any, script: str) -> None:
    """Write args.json, and copies of what the run was made with."""
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / "args.json", record)
    for name, file in _sources(args, script).items():
        shutil.copyfile(file, path / name)


def _sources(args: Any, script: str) -> dict[str, Path]:
    """What a run keeps a copy of: the script, and the file of an environment that is the user's own."""
    from common.suites import own

    file = own.source(args.env_id)
    return {"source.py": Path(script)} | ({"environment.py": file} if file else {})


def warn_if_edited(path: Path, record: dict[str, Any], args: Any, script: str) -> None:
    """Say what has changed since a run was started: versions, its environment's file and, unless another one evaluates
    it, its script."""
    theirs, ours = record.get("versions", {}), versions()
    other = [f"{name} {theirs[name]} (here {ours.get(name)})" for name in theirs if theirs[name] != ours.get(name)]
    for name, file in _sources(args, script).items():
        if name == "source.py" and record["script"] != Path(script).stem:
            continue
        with contextlib.suppress(OSError):
            kept = (path / name).read_bytes()
            if kept and kept != file.read_bytes():  # empty where `_lock` has just made it
                other.append(f"another version of {file.name}; its own is {path / name}")
    if other:
        say(f"warning: {path} was started with {', '.join(other)}: numbers may differ")


def _lock(path: Path) -> Any:
    """Keep other processes from continuing the same run. -> an open file, which holds the lock until it is closed; None
    if the system or the file system has no locks."""
    try:
        import fcntl

        file = open(path / "source.py", "a")  # noqa: SIM115 (open as long as the run)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file
    except BlockingIOError:
        raise UsageError(f"--resume {path}: another process is at work on this run; stop it first") from None
    except (ImportError, OSError):
        return None


def versions() -> dict[str, str]:
    """Those of Python and of the packages that a run's numbers depend on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def make_record(args: Any, script: str, before: int | None = None) -> dict[str, Any]:
    """The contents of args.json. before: environment steps behind it at its start (default: as --init-from says)."""
    code = Path(script).absolute().parent
    commit = git(code, "rev-parse", "HEAD")
    return {
        "args": dataclasses.asdict(args),
        "script": Path(script).stem,
        "command": shlex.join(sys.argv),
        "versions": versions(),
        "devices": [f"{device.platform}:{device.id} {device.device_kind}" for device in jax.devices()],
        "machine": devices.machine(),
        "git_commit": commit,
        "git_dirty": bool(git(code, "status", "--porcelain", *CODE)) if commit else None,
        "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "wandb_id": uuid.uuid4().hex[:8],
        "steps_before": _steps_before(args) if before is None else before,
    }


def _steps_before(args: Any) -> int:
    """Environment steps that a branch (--init-from) has behind it at its start."""
    if getattr(args, "init_from", None) is None:
        return 0
    _, record, updates = find_checkpoint(args.init_from)
    theirs = record["args"]
    return record.get("steps_before", 0) + updates[-1] * theirs["num_envs"] * theirs["num_steps"]


def git(folder: Path, *command: str) -> str | None:
    """What git says there. None without git or a repository."""
    try:
        words = ["git", "-C", str(folder), *command]
        return subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=2, default=str) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Write so that a reader, even after a crash, sees either the old text or the new."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text)
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
