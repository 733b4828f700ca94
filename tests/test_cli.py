"""The command line of ppo.py: bad input is one line, and a killed run continues bit for bit."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnax  # noqa: F401  (before jax.jit is taken away)
import pytest
from conftest import reusing
from test_runs import metrics_of, same

import ppo
from common.run import checkpoints
from common.run.arguments import typed
from common.run.command import main as run_main

ROOT = Path(__file__).parents[1]


def command(*flags):
    return [sys.executable, str(ROOT / "ppo.py"), *map(str, flags)]


def call(monkeypatch, *flags):
    """ppo.py with these flags, in this process."""
    monkeypatch.setattr(sys, "argv", ["ppo.py", *map(str, flags)])
    run_main(ppo.train, ppo.Args)


# Bad input


@pytest.mark.parametrize(
    "flags, said",
    [
        ("--num-minibatches 7", ["--num-minibatches 7", "4 or 8", "65536"]),
        ("--minibatch-size 3000", ["--minibatch-size 3000", "2048 or 4096"]),
        ("--learning-rate nan", ["--learning-rate nan"]),
        ("--frame-stack 1025", ["--frame-stack 1025", "less than or equal to 1024"]),
        ("--total-timesteps 10", ["--total-timesteps 10", "--num-envs 2048", "65536"]),
        ("--env-id Braekout-MinAtar", ["--env-id Braekout-MinAtar", "Breakout-MinAtar"]),
        ("--env-id kinetix/locomotoin", ["--env-id kinetix/locomotoin", "kinetix/locomotion"]),
        ("--num-devices 99", ["--num-devices 99", "there are 8"]),
        ("--num-devices 3", ["--num-devices 3", "--num-envs"]),
        ("--num-processes 2", ["--num-processes 2", "needs --distributed"]),
        ("--distributed --coordinator-address a:1 --num-processes 2 --process-id 2", ["--process-id 2", "less than 2"]),
        ("--distributed --coordinator-address a --num-processes 2 --process-id 1", ["address a: must be HOST:PORT"]),
        ("--network cnn --env-id CartPole-v1", ["--network cnn", "CartPole-v1", "(4,)"]),
        ("--capture-video --env-id Catch-bsuite", ["--capture-video", "Catch-bsuite"]),
        (
            "--env-id CartPole-v1 --num-envs 8388608 --num-steps 512 --num-devices 1 --total-timesteps 4294967296",
            ["2^31", "--num-rollout-chunks"],
        ),
        ("--num-rollout-chunks 3", ["--num-rollout-chunks 3", "--num-envs 2048", "--num-minibatches 32", "2 or 4"]),
        ("--init-from /nowhere", ["--init-from /nowhere"]),
        ("--resume OTHER", ["--resume", "other", "sac.py", "ppo.py"]),
        ("--resume EMPTY", ["--resume", "empty", "no checkpoint"]),
        ("--init-from EMPTY@3", ["--init-from", "empty@3", "no checkpoint"]),
        ("--run-name empty", ["--run-name empty", "exists already"]),
        ("--runs-dir empty/args.json/x", ["--runs-dir", "cannot make a folder there (Not a directory)"]),
    ],
)
def test_bad_input_is_answered_in_one_line_before_anything_compiles(
    monkeypatch, capsys, tmp_path, nothing_compiles, flags, said
):
    for name, script in (("other", "sac"), ("empty", "ppo")):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        (tmp_path / name / "args.json").write_text(json.dumps({"args": {}, "script": script}))
    (tmp_path / "other/checkpoints/1").mkdir()
    flags = flags.replace("OTHER", str(tmp_path / "other")).replace("EMPTY", str(tmp_path / "empty"))

    with pytest.raises(SystemExit) as exit:
        call(monkeypatch, "--runs-dir", tmp_path, *flags.replace("empty/", f"{tmp_path}/empty/").split())
    (line,) = capsys.readouterr().err.splitlines()
    assert exit.value.code == 2 and line.startswith("ppo.py: error: ")
    assert all(part in line for part in said), line
    assert {folder.name for folder in tmp_path.iterdir()} == {"other", "empty"}


# Runs that stop and go on

SMALL = (
    "--env-id CartPole-v1 --num-envs 4 --num-steps 8 --minibatch-size 16 --update-epochs 2 --hidden-sizes 8 "
    "--num-eval-episodes 0 --checkpoint-every 10 --norm-obs --norm-reward --num-rollout-chunks 2 "
    "--stagger-resets 9 --total-timesteps 3840 --num-devices 1"
)
UPDATES = 120


def state_of(path):
    """All that the newest checkpoint of a run holds."""
    args = ppo.Args(**typed(ppo.Args, json.loads((path / "args.json").read_text())["args"], ""))
    _, _, _, init, _, _, keys = ppo.build(args)
    updates = checkpoints.checkpoint_updates(path / "checkpoints")
    return checkpoints.restore_newest(path, updates, init(keys), "", partial=False)[0]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run from start to end, keeping all its checkpoints."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        reusing(patch, ppo)
        call(patch, *SMALL.split(), "--runs-dir", folder, "--run-name", "straight", "--keep-checkpoints", 0)
    return folder / "straight"


@pytest.mark.slow
def test_a_killed_run_continues_bit_for_bit(straight, monkeypatch, capsys):
    path = straight.parent / "killed"
    flags = [*SMALL.split(), "--runs-dir", straight.parent, "--run-name", path.name]
    process = subprocess.Popen(command(*flags), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not checkpoints.checkpoint_updates(path / "checkpoints"):
        time.sleep(0.01)
    time.sleep(random.uniform(0, 0.2))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL  # not a run that had ended by itself
    reusing(monkeypatch, ppo)
    call(monkeypatch, "--resume", path)
    assert "resuming after update" in capsys.readouterr().err
    ours, theirs = state_of(path), state_of(straight)
    assert ours.update == UPDATES
    same(ours, theirs)
    assert metrics_of(path) == metrics_of(straight)
    assert [row["update"] for row in metrics_of(path)] == list(range(1, UPDATES + 1))
