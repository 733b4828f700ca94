"""The flags that every script has for keeping its runs, and checks that answer a bad value with one line."""

import dataclasses
import json
import math
import re
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


class UsageError(ValueError):
    """Bad input: one line that names the flag, the value and what would work."""


BY_HAND = ("coordinator_address", "num_processes", "process_id")  # how processes find each other without a cluster


@dataclass(frozen=True, kw_only=True)
class LogArgs:
    """How a run is kept."""

    checkpoint_every: int = 0
    """Save a checkpoint every so many updates, and always at the end; 0: only at the end and when stopped."""
    keep_checkpoints: int = 3
    """How many checkpoints to keep, newest first; 0: all."""
    resume: str | None = None
    """Continue this run (a folder) bit for bit, with its own flags."""
    runs_dir: str = "runs"
    """Where run folders go."""
    run_name: str | None = None
    """Name of the run's folder; by default env__script__seed__time."""
    log_every: int = 1
    """Updates per line of metrics.jsonl; a line is the mean over its updates."""
    halt_on_nan: bool = True
    """Stop when a loss or parameter is no longer finite."""
    track: bool = False
    """Log to Weights & Biases too."""
    wandb_project_name: str = "ppo-scaling"
    """Project on Weights & Biases."""
    wandb_entity: str | None = None
    """Entity (team) on Weights & Biases."""
    wandb_mode: Literal["online", "offline"] = "online"
    """offline needs no account and no network."""

    def __post_init__(self):
        positive(self, "log_every")
        non_negative(self, "checkpoint_every", "keep_checkpoints")


@dataclass(frozen=True, kw_only=True)
class RunArgs(LogArgs):
    """What it starts from, how it is evaluated and on what it runs; what it does is in the script."""

    init_from: str | None = None
    """Start a new run from the learned state of RUN or RUN@UPDATE, with other flags."""
    eval_every: int = 0
    """Evaluate every so many updates; 0: only at the end."""
    num_eval_episodes: int = 128
    """Episodes per evaluation (at least one per level, where there is a fixed set of levels); 0: no evaluation."""
    eval_deterministic: bool = False
    """Evaluate the most likely action instead of sampling."""
    plasticity_every: int = 10
    """Measure network, gradient and policy (plasticity/...) every so many updates, and at the last one; 0: never."""
    dormant_tau: float = 0.025
    """A unit is dormant whose mean activity is at most this share of its layer's."""
    capture_video: bool = False
    """Save a gif of one episode of the final policy."""
    num_devices: int | None = None
    """Devices to train on; by default all."""
    distributed: bool = False
    """Train with several processes, started alike, one per machine or GPU; finds Slurm, Open MPI and GKE by itself."""
    coordinator_address: str | None = None
    """HOST:PORT at which the first process listens, where no cluster is found."""
    num_processes: int | None = None
    """How many processes there are, where no cluster is found."""
    process_id: int | None = None
    """Which of them this one is, from 0, where no cluster is found."""

    def __post_init__(self):
        super().__post_init__()
        positive(self, "num_devices", "num_processes")
        non_negative(self, "eval_every", "num_eval_episodes", "plasticity_every", "dormant_tau", "process_id")
        given = [name for name in BY_HAND if getattr(self, name) is not None]
        if given and not self.distributed:
            raise UsageError(f"{flag(given[0])} {getattr(self, given[0])}: needs --distributed, too")
        if given and len(given) < len(BY_HAND):
            missing = ", ".join(flag(name) for name in BY_HAND if name not in given)
            raise UsageError(f"{flag(given[0])} {getattr(self, given[0])}: needs {missing}, too")
        if given:
            below(self, self.num_processes, "process_id")
            if not re.fullmatch(r".+:\d+", self.coordinator_address):
                raise UsageError(f"--coordinator-address {self.coordinator_address}: must be HOST:PORT")


def flag(name: str) -> str:
    """The command-line spelling of a field: num_envs -> --num-envs."""
    return "--" + name.replace("_", "-")


def positive(args: Any, *names: str) -> None:
    """Each named field is a finite number > 0 (or None, where the field allows it)."""
    _check(args, names, lambda x: x > 0, "a number greater than 0")


def non_negative(args: Any, *names: str) -> None:
    """Each named field is a finite number >= 0 (or None)."""
    _check(args, names, lambda x: x >= 0, "0 or more")


def fraction(args: Any, *names: str) -> None:
    """Each named field lies in [0, 1] (or is None)."""
    _check(args, names, lambda x: 0 <= x <= 1, "a number from 0 to 1")


def below(args: Any, limit: int, *names: str) -> None:
    """Each named field is less than `limit`."""
    _check(args, names, lambda x: x < limit, f"less than {limit}")


def _check(args: Any, names: tuple[str, ...], good: Any, wanted: str) -> None:
    for name in names:
        values = getattr(args, name)
        for value in values if isinstance(values, tuple) else (values,):
            if value is not None and not (math.isfinite(value) and good(value)):
                raise UsageError(f"{flag(name)} {value}: must be {wanted}")


def _nearest_divisors(value: int, total: int) -> str:
    """The divisors of `total` just below and above `value`, for an error message."""
    lower = next(n for n in range(min(value, total), 0, -1) if total % n == 0)
    upper = next((n for n in range(value, total + 1) if total % n == 0), lower)
    return " or ".join(str(n) for n in sorted({lower, upper}))


def _divides_transitions(name: str, size: int, transitions: int) -> None:
    if transitions % size:
        nearest = _nearest_divisors(size, transitions)
        raise UsageError(f"{name} {size}: does not divide the {transitions} transitions of an update; {nearest} would")


def _chunks_divide(chunks: int, num_envs: int, num_minibatches: int) -> None:
    common = math.gcd(num_envs, num_minibatches)
    if common % chunks:
        raise UsageError(
            f"--num-rollout-chunks {chunks}: does not divide --num-envs {num_envs} and --num-minibatches "
            f"{num_minibatches}; {_nearest_divisors(chunks, common)} would"
        )


def settle_minibatches(args: Any, default_size: int) -> None:
    """Fills in minibatch_size and num_minibatches; refuses sizes of an update that do not fit each other.

    What is given fixes the rest. With nothing given the size stays and the number grows with the transitions, as the
    scaling recipe wants it.
    """
    num_envs = args.base_num_envs if args.scaling else args.num_envs
    transitions, size, number = num_envs * args.num_steps, args.minibatch_size, args.num_minibatches
    if size and number and size * number != transitions:
        raise UsageError(
            f"--minibatch-size {size} * --num-minibatches {number} = {size * number}, but an update has {transitions} "
            "transitions (--num-envs * --num-steps); give one of the two"
        )
    if number is None:
        size = size or min(default_size, transitions)
        _divides_transitions("--minibatch-size", size, transitions)
        number = transitions // size
    _divides_transitions("--num-minibatches", number, transitions)
    object.__setattr__(args, "minibatch_size", transitions // number)
    object.__setattr__(args, "num_minibatches", number)
    if not args.scaling:
        _chunks_divide(args.num_rollout_chunks, num_envs, number)
    if args.num_updates == 0:
        raise UsageError(
            f"--total-timesteps {args.total_timesteps} is less than one update of --num-envs {args.num_envs} * "
            f"--num-steps {args.num_steps} = {args.batch_size} steps"
        )


def settle_search(args: Any, num_devices: int) -> Any:
    """Fills in num_devices and search_batch, and fits num_candidates to it; refuses what does not fit."""
    parts = args.num_rollout_chunks * num_devices
    each = args.num_envs // parts
    known = args.from_buffer(each)
    if 0 < args.buffer_share < 1 and known in (0, each):
        raise UsageError(
            f"--buffer-share {args.buffer_share}: of {each} environments on each device and in each chunk it is "
            f"{known}; take more --num-envs, fewer --num-devices or --num-rollout-chunks, or 0 or 1"
        )
    unit = parts * ((each - known) or each)
    batch = args.search_batch or unit * -(-256 // unit)
    if batch % unit:
        near = " or ".join(str(n) for n in (batch // unit * unit, -(-batch // unit) * unit) if n)
        raise UsageError(
            f"--search-batch {batch}: must be a multiple of the {unit} fresh levels of an update; {near} would do"
        )
    candidates = -(-args.num_candidates // batch) * batch
    if args.buffer_share and (candidates, parts * known) != (args.num_candidates, args.buffer_share * args.num_envs):
        print(f"search: {candidates} candidates in batches of {batch}; {parts * known} on the buffer's levels")
    return dataclasses.replace(args, num_devices=num_devices, search_batch=batch, num_candidates=candidates)


def apply_scaling(args: Any) -> Any:
    """--scaling: the three recipes of Beukman et al. 2026, Figure 9, from one base configuration."""
    if args.scaling is None:
        return args
    factor = args.num_envs / args.base_num_envs
    size = args.minibatch_size if args.scaling == "more-minibatches" else round(args.minibatch_size * factor)
    rate = args.learning_rate * (factor**0.5 if args.scaling == "larger-minibatches-sqrt-lr" else 1)
    print(f"scaling {args.scaling} from {args.base_num_envs} environments: learning rate {rate:.3g}")
    return dataclasses.replace(args, scaling=None, minibatch_size=size, num_minibatches=None, learning_rate=rate)


def describe(args: Any) -> str:
    """What a run will do, in a line."""
    return (
        f"{args.num_updates} updates of {args.num_envs} x {args.num_steps} = {args.num_envs * args.num_steps} "
        f"transitions; each {args.update_epochs} epochs of {args.num_minibatches} minibatches of {args.minibatch_size}"
    )


def read_record(folder: Path, flag: str) -> dict[str, Any]:
    """args.json of a run; `flag` is the command-line flag that named it."""
    try:
        record = json.loads((folder / "args.json").read_text())
    except (OSError, ValueError):
        record = None
    if not isinstance(record, dict) or not {"args", "script"} <= record.keys():
        raise UsageError(f"{flag} {folder}: not the folder of a run (no args.json that can be read)")
    return record


def typed(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no tuples: lists become tuples again, unless the field is a list."""
    hints = typing.get_type_hints(kind)

    def restore(value: Any) -> Any:
        return tuple(map(restore, value)) if isinstance(value, list) else value

    return {n: v if typing.get_origin(hints.get(n)) is list else restore(v) for n, v in values.items()}
