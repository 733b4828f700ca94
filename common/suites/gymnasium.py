"""Gymnasium (https://gymnasium.farama.org), `--env-id gymnasium/<id>`: whatever it can make, through its vector API.
`gymnasium/my_module:MyEnv-v0` imports my_module first, which is to register MyEnv-v0."""

import atexit
import contextlib
import difflib
import importlib
import inspect
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from common.run.arguments import UsageError
from common.run.command import SIGNALS
from common.suites.host import HostSuite
from common.suites.own import blame, importable


def env_ids() -> list[str]:
    """The ids that Gymnasium knows by itself. Some need packages of their own."""
    import gymnasium

    return [f"gymnasium/{name}" for name in gymnasium.registry]


def make(env_id: str, kwargs: dict[str, Any]) -> HostSuite:
    """Make gymnasium/<id>. kwargs are those of gymnasium.make_vec."""
    import gymnasium

    where, name = f"--env-id {env_id}", env_id.removeprefix("gymnasium/")
    module, _, registered = name.rpartition(":")
    if module:
        importable(Path.cwd())
        with blame(where, f"importing {module}", None):
            importlib.import_module(module)
    try:
        gymnasium.spec(registered)
    except gymnasium.error.Error as error:
        near = ", ".join(difflib.get_close_matches(registered, gymnasium.registry, n=2, cutoff=0.5))
        advice = f"did you mean {near}?" if near else "my_module:MyEnv-v0 imports my_module, which registers it"
        told = " ".join(str(error).split()).partition(" Did you mean")[0].rstrip(".")
        raise UsageError(f"{where}: {told}; {advice}") from None
    return HostSuite(env_id, partial(Environments, registered), kwargs)


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Processes that are started inside ignore Ctrl-C, SIGTERM and SIGHUP, which a terminal and Slurm send to the whole
    group: the run finishes its update on them, and saves. (Those of later pools inherit it from the first one's.)"""
    here = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS if here}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _close(vector: Any, workers: list[Any]) -> None:
    """Let the environments close what they have opened, such as a simulator. Workers have 5 s for it; they do not hear
    the SIGTERM with which Gymnasium and multiprocessing would end them."""
    with contextlib.suppress(Exception):
        if not workers:
            return vector.close()
        for pipe in filter(None, vector.parent_pipes):  # None: of a worker that has failed
            with contextlib.suppress(OSError):
                pipe.send(("close", None))
        until = time.monotonic() + 5
        for worker in workers:
            worker.join(max(0, until - time.monotonic()))
    for worker in workers:
        worker.kill()


class Environments:
    """A pool of Gymnasium's environments, one after the other in this process unless --env-kwargs says otherwise."""

    def __init__(self, name: str, num_envs: int, seed: int, **kwargs: Any):
        import gymnasium

        # Not reset by themselves, in which mode the last observation may be one that the reset has overwritten.
        options: dict[str, Any] = {"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}
        if kwargs.get("vectorization_mode") == "async":
            options["context"] = "forkserver"  # a fork of this process would hold its threads' locks and our signals
        options |= kwargs.get("vector_kwargs", {})
        kwargs = {"vectorization_mode": "sync"} | kwargs | {"vector_kwargs": options}
        elsewhere = kwargs["vectorization_mode"] == "async"
        with warnings.catch_warnings(), _deaf() if elsewhere else contextlib.nullcontext():
            warnings.simplefilter("ignore")  # on precision, and on newer versions
            self._envs, self._seed = gymnasium.make_vec(name, num_envs, **kwargs), seed
        # When this pool is no longer used, and before multiprocessing waits for its workers at the end.
        atexit.register(weakref.finalize(self, _close, self._envs, getattr(self._envs, "processes", [])))
        self.spaces = self._envs.single_observation_space, self._envs.single_action_space
        inner = getattr(self._envs, "envs", None)  # there are none in other processes
        self.file = inspect.getfile(type(inner[0].unwrapped)) if inner else None

    def reset(self) -> Any:
        """Environment i begins with the seed of the pool + i."""
        return self._envs.reset(seed=self._seed)[0]

    def restart(self, ids: np.ndarray) -> Any:
        mask = np.zeros(self._envs.num_envs, bool)
        mask[ids] = True
        obs = self._envs.reset(options={"reset_mask": mask})[0]
        return {name: part[ids] for name, part in obs.items()} if isinstance(obs, dict) else obs[ids]

    def step(self, actions: Any) -> tuple:
        obs, reward, terminated, truncated, _ = self._envs.step(actions)
        return obs, reward, terminated, truncated, reward, terminated | truncated
