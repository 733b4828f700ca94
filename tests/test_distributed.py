"""Two processes with one CPU device each, as on two machines: one run, one policy, stopped and resumed together."""

import json
import os
import re
import signal
import socket
import subprocess
import sys

import coins
import jax
import numpy as np
import pytest
from conftest import ROOT, metrics_of, start, wait_for

import ppo
import sfl_kinetix
from common.run import checkpoints, devices
from common.run.arguments import typed

SMALL = (
    "--env-id CartPole-v1 --num-envs 4 --num-steps 8 --minibatch-size 16 --update-epochs 2 --hidden-sizes 8 "
    "--norm-obs --norm-reward --num-rollout-chunks 2 --num-eval-episodes 2 --checkpoint-every 60 "
    "--total-timesteps 3840"
)
FLAGS = SMALL.split()
UPDATES = 120  # too long to be over when JAX notices a signal
TIMEOUT = 240  # seconds for two processes
# What launchers and the eight fake devices of these tests leave behind.
FOREIGN = re.compile("SLURM_|OMPI_|KUBERNETES_|JAX_(COORDINATOR|LOCAL|PROCESS)")
ENV = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)} | {
    "JAX_NUM_CPU_DEVICES": "1",
    "XLA_FLAGS": os.environ["XLA_FLAGS"].replace("--xla_force_host_platform_device_count=8", ""),
}
PATH = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'tests')!r}]"
SCRIPT = f"""{PATH}
import ppo
from common.run.command import main
main(ppo.train, ppo.Args)
"""
# Only meets, and makes a folder.
MEET = f"""{PATH}
import test_runs
from common.run import run as runs
from common.run.command import main
main(lambda args: runs.Run(runs.begin(args, "toy.py"), test_runs.__file__), test_runs.Args)
"""
SFL_SCRIPT = f"""{PATH}
import coins, sfl_kinetix
from common.run.command import main
coins.install()
main(sfl_kinetix.train, sfl_kinetix.Args)
"""
SFL = (
    "--num-envs 16 --num-steps 8 --minibatch-size 32 --num-rollout-chunks 2 --total-timesteps 768 --num-candidates 64 "
    "--search-batch 32 --buffer-size 8 --buffer-every 2 --learnability-steps 9 --num-eval-episodes 3 --eval-sizes s "
    "--checkpoint-every 3 --keep-checkpoints 0 --plasticity-every 2 --learning-rate 0.01 --com 4 --num-seeds 2"
)
SFL_FLAGS = SFL.split()


def pair(*flags, script=SCRIPT, own=((), ()), cpus=(1, 1)):
    """Two processes at a free port. own: flags that one of them has; cpus: how many devices each has."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    where = f"--distributed --coordinator-address localhost:{port} --num-processes 2 --process-id"
    command = [sys.executable, "-c", script, *map(str, flags), *where.split()]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [
        subprocess.Popen([*command, str(i), *own[i]], env=ENV | {"JAX_NUM_CPU_DEVICES": str(cpus[i])}, **pipes)
        for i in range(2)
    ]


def outcome(processes):
    """-> exit codes, what was said on stdout and on stderr. None of them outlives this."""
    try:
        said = [process.communicate(timeout=TIMEOUT) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], *zip(*said, strict=True)


def state_of(path, update=UPDATES):
    """All that a checkpoint of a run holds, as numbers."""
    args = ppo.Args(**typed(ppo.Args, json.loads((path / "args.json").read_text())["args"], ""))
    _, _, _, init, _, _, keys = ppo.build(args)
    state, _ = checkpoints.restore_newest(path, [update], init(keys), "", partial=False)
    return state._replace(key=jax.random.key_data(state.key))


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run of two processes from start to end."""
    folder = tmp_path_factory.mktemp("runs")
    codes, said, errors = outcome(pair(*FLAGS, "--runs-dir", folder, "--run-name", "straight"))
    assert codes == [0, 0], errors
    assert "final_return" in said[0] and "memory:" not in said[1] and "final_return" not in said[1]
    assert f"run: {folder / 'straight'}\n" in errors[0] and errors[1] == ""
    assert [path for path in folder.iterdir() if path.is_dir()] == [folder / "straight"]
    assert json.loads((folder / "straight/args.json").read_text())["args"]["num_devices"] == 2
    return folder / "straight"


@pytest.mark.slow
def test_two_processes_learn_what_one_learns_on_two_devices(straight, tmp_path):
    start(ppo, *FLAGS, "--num-devices", 2, "--runs-dir", tmp_path)
    (path,) = tmp_path.iterdir()
    for update in (60, 120):
        jax.tree.map(np.testing.assert_array_equal, state_of(straight, update), state_of(path, update))
    assert metrics_of(path) == metrics_of(straight)


@pytest.mark.slow
def test_sigterm_to_one_stops_both_and_they_go_on_bit_for_bit(straight):
    path = straight.parent / "stopped"
    processes = pair(*FLAGS, "--runs-dir", path.parent, "--run-name", path.name)
    wait_for(lambda: (path / "args.json").exists() or processes[1].poll() is not None, TIMEOUT)
    processes[1].send_signal(signal.SIGTERM)
    codes, _, errors = outcome(processes)
    assert codes == [143, 143], errors
    stopped = checkpoints.checkpoint_updates(path / "checkpoints")[-1]
    assert stopped < UPDATES and f"checkpoint is that of update {stopped}; to go on: " in errors[0]
    assert f"--resume {path} --distributed" in errors[0]

    codes, _, errors = outcome(pair("--resume", path))
    assert codes == [0, 0] and f"resuming after update {stopped} of {UPDATES}" in errors[0], errors
    jax.tree.map(np.testing.assert_array_equal, state_of(path), state_of(straight))
    assert metrics_of(path) == metrics_of(straight)


@pytest.mark.slow
def test_a_search_in_two_processes_finds_what_one_finds_on_two_devices(monkeypatch, tmp_path):
    """And the training, evaluation, and a resumed run that go with it."""
    two, one = tmp_path / "two", tmp_path / "one"
    codes, _, errors = outcome(pair(*SFL_FLAGS, "--runs-dir", tmp_path, "--run-name", "two", script=SFL_SCRIPT))
    assert codes == [0, 0] and errors[1] == "", errors
    coins.install(monkeypatch.setattr)
    start(sfl_kinetix, *SFL_FLAGS, "--num-devices", 2, "--runs-dir", tmp_path, "--run-name", "one")
    lines = metrics_of(two)
    assert [line["update"] for line in lines if "search/learnability" in line] == [1, 3, 5]
    assert lines[-1]["levels/s/h0_weak_thrust/solve_rate"] == [1, 1]
    assert lines[-1]["eval/random/solve_rate"] == [0, 0]
    assert lines == metrics_of(one)

    (two / "checkpoints" / "6").rename(tmp_path / "gone")
    codes, _, errors = outcome(pair("--resume", two, script=SFL_SCRIPT))
    assert codes == [0, 0] and "resuming after update 3 of 6" in errors[0], errors
    assert metrics_of(two) == lines


@pytest.mark.slow
@pytest.mark.parametrize("differing, said", [
    ({"own": (["--seed", "1"], ["--seed", "2"])}, "the processes were started with different flags"),
    ({"cpus": (1, 2)}, "the processes have 1, 2 devices, must be equal (see JAX_NUM_CPU_DEVICES)"),
    ({}, "exists already"),
])  # fmt: skip
def test_bad_input_and_processes_that_differ_end_both(tmp_path, differing, said):
    """Before a folder is made. They would wait for each other forever."""
    if not differing:
        (tmp_path / "runs/x").mkdir(parents=True)
    codes, _, errors = outcome(pair("--runs-dir", tmp_path / "runs", "--run-name", "x", script=MEET, **differing))
    assert codes == [2, 2], errors
    assert all(error.count("\n") == 1 and said in error for error in errors)
    assert not differing or not (tmp_path / "runs").exists()


def test_a_process_counts_the_cores_that_it_is_bound_to(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    for there, cores in ((None, 8), ("3", 3), ("9", 8)):
        monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
        if there:
            monkeypatch.setenv("SLURM_CPUS_PER_TASK", there)
        assert devices._cores() == cores


@pytest.mark.slow
def test_no_cluster_is_answered_in_one_line():
    command = [sys.executable, "-c", MEET, "--distributed"]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
    assert all(flag in done.stderr for flag in ("--coordinator-address", "--num-processes", "--process-id"))
