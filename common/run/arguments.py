"""The flags with which every script keeps its runs, bounds that a field declares in its type, and one-line errors."""

import contextlib
import dataclasses
import fractions
import functools
import inspect
import io
import itertools
import json
import math
import re
import sys
import textwrap
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict


class UsageError(ValueError):
    """Bad input, as one line that names the flag, the value and what would work."""


# Numbers on the devices have 32 bits. Counts of environment steps stay on the host and may exceed them.
Number = TypeVar("Number")
Positive = Annotated[Number, Field(gt=0, lt=2**31)]
NonNegative = Annotated[Number, Field(ge=0, lt=2**31)]
Fraction = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
Steps = Annotated[int, Field(gt=0)]
NoSteps = Annotated[int, Field(ge=0)]
BY_HAND = ("coordinator_address", "num_processes", "process_id")  # how processes find each other without a cluster
LEAST = 8  # minibatches by default: with fewer, few environments did worse
FEW_STEPS = 16  # gradient steps per update; with 4 policies got stuck that did not with 32


@dataclass(frozen=True, kw_only=True)
class LogArgs:
    """Flags that say how a run is kept."""

    # --- keeping the run ---
    runs_dir: str = "runs"
    """Folder that holds the run folders."""
    run_name: str | None = None
    """Name of the run's folder (default: env__script__seed__time)."""
    resume: str | None = None
    """Continue the run in this folder bit for bit, with its own flags."""
    checkpoint_every: NonNegative[int] = 0
    """Save a checkpoint every this many updates, and always at the end and when stopped. 0: only then."""
    keep_checkpoints: NonNegative[int] = 3
    """Keep this many of the newest checkpoints. 0: keep all."""
    log_every: Positive[int] = 1
    """Updates per line of metrics.jsonl. A line is the mean over its updates. A checkpoint ends one, too."""
    halt_on_nan: bool = True
    """Stop when a loss or a parameter is no longer finite."""

    # --- wandb ---
    track: bool = False
    """Also log to Weights & Biases (wandb)."""
    wandb_project_name: str = "ppo-scaling"
    """Name of the wandb project."""
    wandb_entity: str | None = None
    """Name of the wandb entity (team)."""
    wandb_group: str | None = None
    """Group of the wandb run: runs that belong together, such as the seeds of one setting."""
    wandb_tags: tuple[str, ...] = ()
    """Tags of the wandb run."""
    wandb_job_type: str | None = None
    """Job type of the wandb run, such as train or eval."""
    wandb_mode: Literal["online", "offline"] | None = None
    """Whether wandb is online or offline, which needs no account (default: as WANDB_MODE says, else online)."""

    named = frozenset()  # the fields that the user chose; `parse` takes them from the command line

    def __post_init__(self):
        # Before anything is filled in: what follows from a choice is not a choice.
        chosen = (field.name for field in dataclasses.fields(self) if getattr(self, field.name) != field.default)
        object.__setattr__(self, "named", frozenset(chosen))
        check(self)


@dataclass(frozen=True, kw_only=True)
class RunArgs(LogArgs):
    """Flags that say what training starts from, how it is evaluated, split and what it runs on. The script adds those
    of the training itself, among them num_envs, num_steps, total_timesteps, minibatch_size and learning_rate."""

    # --- run ---
    seed: NonNegative[int] = 0
    """Seed of all randomness. Equal results need equal --num-devices. --num-seeds S takes seed, seed + 1, ..."""
    num_seeds: Positive[int] = 1
    """Train this many seeds at once (vmap). Every metric then has one value per seed."""

    # --- scale ---
    num_rollout_chunks: Positive[int] = 1
    """C: go through the environments in C parts, one after the other. The rollout then needs 1/C of the memory."""
    scaling: Literal["more-minibatches", "larger-minibatches", "larger-minibatches-sqrt-lr"] | None = None
    """Take the inner-loop flags as meant for --base-num-envs environments, and scale them to --num-envs."""
    base_num_envs: Positive[int] = 2048
    """Number of environments that --scaling starts from."""

    # --- start ---
    init_from: str | None = None
    """Start a new run, with its own flags, from the learned state of RUN or RUN@UPDATE."""
    evaluate: str | None = None
    """Evaluate RUN or RUN@UPDATE with that run's flags. Nothing is trained."""

    # --- evaluation ---
    eval_every: NonNegative[int] = 0
    """Evaluate every this many updates. 0: only at the end."""
    num_eval_episodes: NonNegative[int] = 128
    """Episodes per evaluation (at least one per level if the set of levels is fixed). 0: no evaluation."""
    eval_deterministic: bool = False
    """In evaluations, take the most likely action instead of sampling."""
    capture_video: bool = False
    """Save a gif of one episode of the final policy."""

    # --- measurements ---
    plasticity_every: NonNegative[int] = 10
    """Measure network, gradient and policy (plasticity/...) every this many updates and at the last. 0: never."""
    dormant_tau: NonNegative[float] = 0.025
    """A unit is dormant if its mean activity is at most this share of its layer's mean."""

    # --- devices ---
    num_devices: Positive[int] | None = None
    """Train on this many devices (default: all, or as many as divide a chunk's environments and --minibatch-size)."""
    distributed: bool = False
    """Train with several processes, one per machine or GPU, all started alike. Detects Slurm, Open MPI and GKE."""
    coordinator_address: str | None = None
    """HOST:PORT at which the first process listens, if no cluster is detected."""
    num_processes: Positive[int] | None = None
    """Total count of processes, if no cluster is detected."""
    process_id: NonNegative[int] | None = None
    """Index of this process, from 0, if no cluster is detected."""
    list_envs: tuple[str, ...] | None = None
    """List the suites of environments or, if some are named, the ids in them that --env-id takes, and exit."""

    def __post_init__(self):
        super().__post_init__()
        given = [name for name in BY_HAND if getattr(self, name) is not None]
        if given and not self.distributed:
            raise UsageError(f"{flag(given[0])} {getattr(self, given[0])}: needs --distributed as well")
        if self.num_processes is not None:
            below(self, self.num_processes, "process_id")
        if self.coordinator_address is not None and not re.fullmatch(r".+:\d+", self.coordinator_address):
            raise UsageError(f"--coordinator-address {self.coordinator_address}: must be HOST:PORT")
        for name in ("init_from", "distributed"):
            if self.evaluate is not None and getattr(self, name):
                raise UsageError(f"{flag(name)} with --evaluate {self.evaluate}: give one of the two")

    @property
    def batch_size(self) -> int:
        """Environment steps per update."""
        return self.num_envs * self.num_steps

    @property
    def num_updates(self) -> int:
        """Updates in the whole run."""
        return self.total_timesteps // self.batch_size


@dataclass(frozen=True, kw_only=True)
class EnvArgs(RunArgs):
    """Flags that change the environment."""

    # --- environment ---
    env_kwargs: str | None = None
    """Arguments of the environment, but not of kinetix/..., in JSON: '{"size": 8}'."""
    num_levels: Positive[int] = 512
    """Size of kinetix/locomotion's fixed set of levels."""
    sticky_actions: Fraction = 0.0
    """Probability that an environment repeats its last action instead of taking the new one (usual: 0.1 or 0.25)."""
    frame_stack: Annotated[int, Field(gt=0, le=1024)] = 1
    """How many of the last observations the policy sees, side by side along the last axis."""
    time_limit: Positive[int] | None = None
    """Truncate episodes after this many steps; what would have come is estimated by the value."""
    reward_clip: Positive[float] | None = None
    """Train on rewards within plus and minus this; logged returns are the environment's."""
    norm_obs: bool = False
    """Normalise observations by their running mean and standard deviation."""
    norm_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""
    stagger_resets: NonNegative[int] = 0
    """Before training, play 0 to this many random steps in each environment, so that episodes are not in step."""


@dataclass(frozen=True, kw_only=True)
class CriticArgs(EnvArgs):
    """The flag of scripts whose critic is apart from the policy."""

    # --- start ---
    fresh_critic: bool = False
    """With --init-from: take over all but the critic's parameters, which begin anew (Adam's moments stay)."""

    def __post_init__(self):
        super().__post_init__()
        if self.fresh_critic and self.init_from is None:
            raise UsageError("--fresh-critic: needs --init-from RUN as well")


def flag(name: str) -> str:
    """The command-line spelling of a field: num_envs -> --num-envs."""
    return "--" + name.replace("_", "-")


@functools.cache
def _checker(kind: type) -> TypeAdapter:
    """What checks the fields of a dataclass, as a dict. Several bounded values have to be one at least."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for name, hint in hints.items():
        if typing.get_origin(hint) is tuple and Annotated in map(typing.get_origin, typing.get_args(hint)):
            hints[name] = Annotated[hint, Field(min_length=1)]
    fields = with_config(ConfigDict(strict=True, allow_inf_nan=False, str_min_length=1, extra="allow"))
    return TypeAdapter(fields(TypedDict("Fields", hints, total=False)))


def check(args: Any) -> None:
    """Check every field against its type and the bound in it, raising UsageError."""
    _checked(_checker(type(args)).validate_python, vars(args))


def _checked(validate: Callable[[Any], dict[str, Any]], values: Any) -> dict[str, Any]:
    told = {"too_short": "must have at least one value", "tuple_type": "must be several values"}
    told["string_too_short"] = "is empty (a shell variable that is not set?)"
    try:
        return validate(values)
    except ValidationError as errors:
        error = errors.errors()[0]
        said = told.get(error["type"]) or error["msg"].replace("Input should be", "must be").replace("'", "")
        raise UsageError(f"{flag(error['loc'][0])} {error['input'] or repr(error['input'])}: {said}") from None


def below(args: Any, limit: int, *names: str) -> None:
    """Check that each named field is less than `limit`, or None."""
    for name in names:
        value = getattr(args, name)
        if value is not None and value >= limit:
            raise UsageError(f"{flag(name)} {value}: must be less than {limit}")


SOURCE = re.compile(r'^    (?:# --- ([^\n]+) ---|(\w+): [^\n]*(?:\n    """(.*?)""")?)$', re.M | re.S)


def sections(kind: type) -> dict[str, dict[str, str]]:
    """The docstrings of an arguments dataclass, in the groups of its source ("# --- outer loop ---") with the script's
    own groups first: {group: {field: docstring}}."""
    found: dict[str, dict[str, str]] = {}
    seen: set[str] = set()
    for cls in filter(dataclasses.is_dataclass, kind.__mro__):
        group = ""
        for title, name, text in SOURCE.findall(textwrap.dedent(inspect.getsource(cls))):
            group = title or group
            if name and name not in seen:
                found.setdefault(group, {})[name] = inspect.cleandoc(text)
                seen.add(name)
    return found


def parse(kind: type, description: str, words: list[str] | None = None) -> Any:
    """Parse the command line (or `words`) into a `kind`. --help lists its fields in the groups of the source. What tyro
    refuses becomes a one-line UsageError."""
    import tyro

    hints = typing.get_type_hints(kind, include_extras=True)
    default = {field.name: field.default for field in dataclasses.fields(kind)}
    groups = []
    for title, fields in sections(kind).items():
        shown = [
            (name, Annotated[hints[name], tyro.conf.arg(help=text, metavar=_metavar(hints[name]))], default[name])
            for name, text in fields.items()
        ]
        group = dataclasses.make_dataclass("Group", shown)
        named = Annotated[group, tyro.conf.arg(name=title)]
        groups.append((f"group{len(groups)}", named, dataclasses.field(default_factory=group)))
    grouped = tyro.conf.OmitArgPrefixes[dataclasses.make_dataclass("Args", groups)]
    said, words = io.StringIO(), sys.argv[1:] if words is None else words
    try:
        with contextlib.redirect_stderr(said):
            parsed = tyro.cli(grouped, description=description, args=words)
    except SystemExit as end:
        if not end.code:
            raise  # --help
        raise UsageError(_one_line(said.getvalue())) from None
    values = {name: value for group in vars(parsed).values() for name, value in vars(group).items()}
    names = {word.split("=")[0][2:].replace("-", "_") for word in words if word.startswith("--")}
    chosen = frozenset(name for name in values if names & {name, f"no_{name}"})
    if values.get("resume") or values.get("evaluate"):
        # The other flags are checked together with those of the run that it names (folder.settle).
        early = ("resume", "evaluate", "init_from", "distributed", *BY_HAND)
        args = kind(**{name: values[name] for name in chosen if name in early})
        for name in chosen:
            object.__setattr__(args, name, values[name])
        check(args)
    else:
        args = kind(**values)
    object.__setattr__(args, "named", chosen)
    return args


def given(args: Any) -> dict[str, Any]:
    """The fields that the user chose: those named on the command line, even with their defaults; without a command
    line, those passed with something else than their defaults. Not what __post_init__ filled in."""
    return {field.name: getattr(args, field.name) for field in dataclasses.fields(args) if field.name in args.named}


def _metavar(hint: Any) -> str | None:
    """INT rather than tyro's {None}|INT for what may be None; else tyro's own."""
    if type(None) not in typing.get_args(hint):
        return None
    kind = typing.get_args(hint)[0]
    kind = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    parts = typing.get_args(kind)
    if typing.get_origin(kind) is Literal:
        return "{" + ",".join(parts) + "}"
    return f"[{parts[0].__name__.upper()} ...]" if parts else kind.__name__.upper()


def _one_line(box: str) -> str:
    """Reduce tyro's box of several lines (title, message, rules, advice) to one line."""
    lines = [line.strip("│╭╮╰╯─ ") for line in box.splitlines()]
    told = itertools.dropwhile(lambda line: not line.strip("-"), lines[1:])
    message = " ".join(itertools.takewhile(lambda line: line.strip("-"), told)).removeprefix("Error parsing ")
    message = message.replace("Unrecognized options:", "unknown:").rstrip(".")
    near = [word for line in lines for word in re.findall(r"^(--[a-z][\w-]*)", line)]
    advice = f"did you mean {' or '.join(dict.fromkeys(near))}?" if near and "unknown:" in message else "see --help"
    return f"{message}; {advice}"


def read_record(folder: Path, by: str) -> dict[str, Any]:
    """Read a run's args.json; `by` is the command-line flag that named it."""
    try:
        record = json.loads((folder / "args.json").read_text())
    except (OSError, ValueError, RecursionError):
        record = None
    sound = isinstance(record, dict) and isinstance(record.get("args"), dict) and isinstance(record.get("script"), str)
    if not sound:
        raise UsageError(f"{by} {folder}: not the folder of a run (no args.json that can be read)")
    return record


def typed(kind: type, values: dict[str, Any], where: str) -> dict[str, Any]:
    """Check arguments read from JSON, and turn lists back into tuples. `where` begins the error message."""
    try:
        return _checked(_checker(kind).validate_json, json.dumps(values))
    except UsageError as error:
        raise UsageError(f"{where}: args.json is damaged ({error})") from None


def divisors(total: int) -> list[int]:
    """The divisors of `total`, ascending; if it is huge, those found quickly, including 1 and `total`."""
    small = [n for n in range(1, min(math.isqrt(total), 10**6) + 1) if total % n == 0]
    return sorted({*small, *(total // n for n in small)})


def nearest_divisors(value: int, total: int) -> str:
    """The divisors of `total` just below and above `value`, for an error message."""
    known = divisors(total)
    lower = max(n for n in known if n <= max(1, value))
    upper = min((n for n in known if n >= value), default=lower)
    return " or ".join(str(n) for n in sorted({lower, upper}))


def settle_minibatches(args: Any, default_size: int, whole: int = 1) -> None:
    """Fill in minibatch_size and num_minibatches; refuse update sizes that do not fit together.

    Either one fixes the other. If neither is given, the size stays (or is somewhat smaller, to divide the transitions)
    and the count grows with them, as the scaling recipe requires; but there are at least LEAST minibatches (fewer if
    these do not divide the transitions into multiples of `whole`).
    """
    num_envs = args.base_num_envs if args.scaling else args.num_envs
    transitions, size, count = num_envs * args.num_steps, args.minibatch_size, args.num_minibatches
    if size and count and size * count != transitions:
        raise UsageError(
            f"--minibatch-size {size} * --num-minibatches {count} = {size * count}, but an update has {transitions} "
            "transitions (--num-envs * --num-steps); give one of the two"
        )
    if size is None and count is None:
        most = min(default_size, transitions // LEAST)
        # For sizes that are no multiples of `whole` the caller has the better error.
        counts = divisors(transitions if transitions % whole else transitions // whole)
        counts = [c for c in counts if transitions // c > 1] or [1]
        count = next((c for c in counts if c * most >= transitions), counts[-1])
        if whole == 1 and 2 * transitions < most * count:  # far smaller ones nobody has asked for
            size, count = most, None
    for name, part in (("--minibatch-size", size), ("--num-minibatches", count)):
        if part and transitions % part:
            nearest = nearest_divisors(part, transitions)
            said = f"does not divide the {transitions} transitions of an update; {nearest} would"
            raise UsageError(f"{name} {part}: {said}")
    count = count or transitions // size
    if count == transitions and getattr(args, "norm_adv", False) and not args.scaling:
        raise UsageError(
            f"--num-minibatches {count}: of 1 transition each, whose advantage --norm-adv would make 0; take fewer of "
            "them, or --no-norm-adv"
        )
    object.__setattr__(args, "minibatch_size", transitions // count)
    object.__setattr__(args, "num_minibatches", count)
    chunks, common = args.num_rollout_chunks, math.gcd(num_envs, count)
    if common % chunks and not args.scaling:
        raise UsageError(
            f"--num-rollout-chunks {chunks}: does not divide --num-envs {num_envs} and --num-minibatches {count}; "
            f"{nearest_divisors(chunks, common)} would"
        )
    if args.num_updates == 0:
        raise UsageError(
            f"--total-timesteps {args.total_timesteps} is less than one update of --num-envs {args.num_envs} * "
            f"--num-steps {args.num_steps} = {args.batch_size} steps"
        )


def apply_scaling(args: Any) -> Any:
    """Apply --scaling: the three recipes of Beukman et al. 2026, Figure 9, from one base configuration."""
    if args.scaling is None:
        if "base_num_envs" in args.named and not (args.resume or args.evaluate):
            raise UsageError(f"--base-num-envs {args.base_num_envs}: needs --scaling RECIPE as well")
        return args
    factor = fractions.Fraction(args.num_envs, args.base_num_envs)  # exact: 48000 * 1.1 is no integer in floats
    size = args.minibatch_size if args.scaling == "more-minibatches" else args.minibatch_size * factor
    rate = args.learning_rate * (factor**0.5 if args.scaling == "larger-minibatches-sqrt-lr" else 1)
    if size.denominator > 1 or args.batch_size % size:
        raise UsageError(
            f"--scaling {args.scaling} --base-num-envs {args.base_num_envs}: minibatches of {float(size):g} would not "
            f"divide the {args.batch_size} transitions of --num-envs {args.num_envs}; take a divisor of it as the base"
        )
    print(f"scaling {args.scaling} from {args.base_num_envs} environments: learning rate {rate:.3g}")
    scaled = dict(scaling=None, minibatch_size=int(size), num_minibatches=None, learning_rate=rate)
    return dataclasses.replace(args, **scaled)


def describe(args: Any) -> str:
    """Describe what a run will do. args.epoch, if there is one: minibatches of a chunk's epoch, and their size."""
    count, size = getattr(args, "epoch", (args.num_minibatches // args.num_rollout_chunks, args.minibatch_size))
    count *= args.num_rollout_chunks
    inner = args.update_epochs * count
    said = (
        f"{args.num_updates} updates of {args.num_envs} x {args.num_steps} = {args.batch_size} transitions, each "
        f"{args.update_epochs} epochs of {count} minibatches of {size}: {inner:,} gradient steps, "
        f"{args.num_updates * inner:,} in all"
    )
    if args.num_updates < 100:
        advice = "lower --num-envs or --num-steps, or raise --total-timesteps"
        said += f"\nnote: only {args.num_updates} updates, each of which moves the policy a little; {advice}"
    if inner < FEW_STEPS and hasattr(args, "clip_eps"):
        said += f"\nnote: {inner} gradient steps per update are few; --num-minibatches makes more"
    return said
