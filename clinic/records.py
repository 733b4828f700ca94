"""The arguments of runs that exist, for programs that go on from them."""

import importlib
from typing import Any

from common.run import arguments
from common.run.arguments import UsageError
from common.run.folder import TRACKING

BRANCHED = ("ppo", "ppo_ewma")  # scripts whose runs doctor.py can branch and measure
KNOWN = (*BRANCHED, "ppo_rnn", "ppo_rnd", "sapg", "pqn", "sfl_kinetix", "stochastic_opt")
STARTED = (
    *("run_name", "resume", "init_from", "evaluate", "num_devices", "fresh_critic", "distributed", "scaling"),
    *(*TRACKING, *arguments.BY_HAND),
)


def arguments_of(script: str, saved: Any) -> Any:
    """The arguments in a run's args.json, without how that run was started, watched and spread over processes."""
    if script not in KNOWN:
        raise UsageError(f"the run was made by {script}.py; known are {', '.join(f'{name}.py' for name in KNOWN)}")
    kind = importlib.import_module(script).Args
    default, fields = kind(), kind.__dataclass_fields__
    known = {name: value for name, value in arguments.typed(kind, saved, f"{script}.py").items() if name in fields}
    return kind(**known | {name: getattr(default, name) for name in STARTED if name in fields})


def branched(record: dict[str, Any], run: str) -> Any:
    """The arguments of a run that doctor.py can branch and measure. run: how it was named, for the error message."""
    if record["script"] not in BRANCHED:
        raise UsageError(f"{run} was made by {record['script']}.py; it works for {' and '.join(BRANCHED)}")
    return arguments_of(record["script"], record["args"])
