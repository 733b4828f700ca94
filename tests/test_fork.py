"""A user's copy of a script keeps its promises: SCRIPT=my_ppo pytest tests/test_fork.py. And docs/fork.md is true."""

import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
import time

import pytest
from conftest import ROOT, ended, metrics_of, one_learner

from common.run import checkpoints
from common.run.arguments import parse, sections

# For a user's own copy, and for CI.
pytestmark = [] if "SCRIPT" in os.environ else [pytest.mark.slow]
SCRIPT = os.environ.get("SCRIPT", "ppo").removesuffix(".py")
TINY = "--env-id CartPole-v1 --num-envs 4 --num-steps 8 --minibatch-size 16 --total-timesteps"
EIGHT = "--xla_force_host_platform_device_count=8"  # of conftest's flags, whose others make compiling faster
ONE_DEVICE = {**os.environ, "XLA_FLAGS": os.environ["XLA_FLAGS"].replace(EIGHT, f"{EIGHT[:-1]}1")}
ONE_DEVICE["PYTHONPATH"] = str(ROOT)
UPDATES = 60


def run(folder, *flags, script=ROOT / f"{SCRIPT}.py", **how):
    """The script in a process of its own. -> the finished process."""
    how = {"env": ONE_DEVICE, "cwd": folder, "capture_output": True, "text": True} | how
    return subprocess.run([sys.executable, str(script), *map(str, flags)], **how)


def tiny(updates, *more, episodes=0):
    return [*TINY.split(), 32 * updates, "--num-eval-episodes", episodes, *more]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run from start to end."""
    folder = tmp_path_factory.mktemp("fork")
    kept = "--checkpoint-every", 10, "--keep-checkpoints", 0
    done = run(folder, *tiny(UPDATES, "--run-name", "straight", *kept, episodes=4))
    assert done.returncode == 0, done.stderr
    return folder / "runs" / "straight"


@pytest.fixture(scope="module")
def module():
    spec = importlib.util.spec_from_file_location(SCRIPT, ROOT / f"{SCRIPT}.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:  # other files' tests have imported a ppo of their own
        patch.setitem(sys.modules, SCRIPT, module)
        spec.loader.exec_module(module)
        yield module


def test_help_names_every_flag(module, capsys):
    _, text, _ = ended(capsys, module, "--help")
    for name in (name for group in sections(module.Args).values() for name in group):
        assert f"--{name.replace('_', '-')}" in text


def test_a_tiny_training_leaves_a_whole_run(straight):
    names = {"args.json", "metrics.jsonl", "source.py", "summary.json", "curve.png", "checkpoints"}
    assert names <= {path.name for path in straight.iterdir()}
    assert (straight / "source.py").read_text() == (ROOT / f"{SCRIPT}.py").read_text()
    lines = metrics_of(straight)
    assert [line["update"] for line in lines] == [*range(1, UPDATES + 1), UPDATES]
    assert "eval/episodic_return" in lines[-1] and "outer/kl" in lines[0]
    assert json.loads((straight / "args.json").read_text())["script"] == SCRIPT


def test_a_killed_run_goes_on_bit_for_bit(straight):
    """All that is logged is what a run without a kill has logged."""
    folder = straight.parents[1]
    flags = tiny(UPDATES, "--run-name", "killed", "--checkpoint-every", 10, "--keep-checkpoints", 0, episodes=4)
    command = [sys.executable, str(ROOT / f"{SCRIPT}.py"), *map(str, flags)]
    killed = subprocess.Popen(command, env=ONE_DEVICE, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while killed.poll() is None and not checkpoints.checkpoint_updates(folder / "runs/killed/checkpoints"):
        time.sleep(0.01)
    time.sleep(random.uniform(0, 0.1))
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL  # not a run that had ended by itself
    done = run(folder, "--resume", "runs/killed")
    assert done.returncode == 0, done.stderr
    assert metrics_of(folder / "runs/killed") == metrics_of(straight)


def test_two_devices_keep_one_learner(module, tmp_path):
    """Whoever forgets to average something over devices has two, soon."""
    args = parse(module.Args, "", [*map(str, tiny(3)), "--num-devices", "2", "--runs-dir", str(tmp_path)])
    _, _, _, init, step, _, keys = module.build(args)
    state = init(keys)
    for _ in range(3):
        state, metrics, _ = step(state)
    one_learner((state.learner, metrics), 2)


def test_a_new_run_starts_from_a_checkpoint(straight):
    done = run(straight.parents[1], *tiny(1, "--init-from", f"{straight}@10", "--run-name", "branch"))
    assert done.returncode == 0, done.stderr
    record = json.loads((straight.with_name("branch") / "args.json").read_text())
    assert record["steps_before"] == 320 and len(metrics_of(straight.with_name("branch"))) == 1


def test_a_run_is_evaluated(straight):
    done = run(straight.parents[1], "--evaluate", straight, "--num-eval-episodes", 4, "--run-name", "evaluated")
    assert done.returncode == 0, done.stderr
    (line,) = metrics_of(straight.with_name("evaluated"))
    assert line == metrics_of(straight)[-1]


EXAMPLES = re.findall(r"### (.+?)\n.*?```diff\n(.+?)```", (ROOT / "docs/fork.md").read_text(), re.S)
assert [re.split(r"\W+", title)[1] for title, _ in EXAMPLES] == ["loss", "network", "metric", "optimiser"]


def edited(diff):
    """ppo.py with a diff of docs/fork.md, each part of which has to fit at exactly one place."""
    text = (ROOT / "ppo.py").read_text()
    for part in re.split(r"^@@\n", diff, flags=re.M)[1:]:
        rows = part.splitlines()
        old, new = ("\n".join(row[1:] for row in rows if row[0] in kept) for kept in (" -", " +"))
        assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in ppo.py"
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("title, diff", EXAMPLES, ids=[title for title, _ in EXAMPLES])
def test_an_example_of_the_page_runs(tmp_path, title, diff):
    (tmp_path / "my_ppo.py").write_text(edited(diff))
    flags = tiny(2, "--run-name", "run", "--hidden-sizes", 8, "--plasticity-every", 0)
    done = run(tmp_path, *flags, script=tmp_path / "my_ppo.py")
    assert done.returncode == 0, done.stderr
    line = metrics_of(tmp_path / "runs/run")[1]
    if "metric" in title:
        assert line["losses/advantage_std"] > 0
    if "loss" in title:
        refused = run(tmp_path, "--kl-coef", -1, script=tmp_path / "my_ppo.py")
        assert refused.returncode == 2 and "--kl-coef -1.0: must be" in refused.stderr


def test_jax_that_was_started_too_early_is_said_in_one_line(tmp_path):
    """By what a fork imports at its top."""
    text = (ROOT / "ppo.py").read_text().replace("import optax\n", "import optax\n\njax.devices()\n", 1)
    (tmp_path / "my_ppo.py").write_text(text)
    environment = {k: v for k, v in ONE_DEVICE.items() if k != "JAX_NUM_CPU_DEVICES"}
    environment["XLA_FLAGS"] = os.environ["XLA_FLAGS"].replace(EIGHT, "")
    done = run(tmp_path, *tiny(1, "--plasticity-every", 0), script="my_ppo.py", env=environment)
    assert done.returncode == 0, done.stderr
    if len(os.sched_getaffinity(0)) > 1:
        assert done.stderr.count("note: one CPU device for ") == 1
