"""A run on disk: resuming, checkpoints, metrics, failures. A toy stands for the training."""

import dataclasses
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from jax.sharding import NamedSharding, PartitionSpec

from common.run import arguments, devices, early, plots, run as runs, tracking
from common.run.arguments import Positive, RunArgs, Steps, UsageError, read_record
from common.run.checkpoints import (
    Checkpoints,
    check_learner,
    checkpoint_updates,
    find_checkpoint,
    load_learner,
    restore_newest,
)


@dataclasses.dataclass(frozen=True)
class Args(RunArgs):
    env_id: str = "suite/Toy-v0"
    seed: int = 1
    num_seeds: int = 1
    total_timesteps: Steps = 1000
    num_envs: int = 100
    num_steps: int = 1
    hidden_sizes: tuple[int, ...] = (8, 8)
    learning_rate: Positive[float] = 0.1
    wandb_mode: Literal["online", "offline"] | None = "offline"
    num_eval_episodes: int = 0
    keep_checkpoints: int = 0


class State(NamedTuple):
    params: dict
    key: jax.Array
    update: jax.Array


def initial_state(size=4):
    return State({"actor": [{"kernel": jnp.zeros((size, 3))}]}, jax.random.key(7), jnp.int32(0))


@functools.partial(jax.jit, donate_argnums=0)
def step(state):
    key, noise = jax.random.split(state.key)
    params = jax.tree.map(lambda x: x + jax.random.normal(noise, x.shape), state.params)
    update = state.update + 1
    metrics = {
        "charts/episodic_return": update.astype(jnp.float32),
        "charts/num_episodes": update,
        "losses/noise": params["actor"][0]["kernel"].sum(),
        "finite": jnp.bool_(True),
    }
    return State(params, key, update), metrics


class Player:
    """Scores of no player at all. signal_at: an update in whose evaluation there is a signal."""

    def __init__(self, signal_at=None):
        self.asked, self.signal_at = [], signal_at

    def scores(self, learner, update, given_up):
        self.asked.append(update)
        if update == self.signal_at:
            os.kill(os.getpid(), signal.SIGINT)
        return None if given_up() else {"eval/episodic_return": np.float32(update)}


def train(args, stop_after=None, player=None):
    """The loop as the scripts write it. `stop_after` kills the process, as far as the files show."""
    args = runs.begin(args, __file__)
    run = runs.Run(args, __file__)
    state = run.restore(initial_state())
    with run:
        run.evaluate_if_due(run.done, player, state)
        for update in run.updates():
            state, metrics = step(state)
            run.log(update, metrics)
            run.save_if_due(update, state)
            if update == stop_after:
                break
            run.evaluate_if_due(update, player, state)
    if stop_after is None:
        run.finish()
    return run.path, state


def run_of(args, num_updates, steps_per_update=1, **changed):
    """A run of so many updates of so many steps."""
    sizes = {"num_envs": 1, "num_steps": 1, "total_timesteps": num_updates * steps_per_update}
    sizes["num_envs" if steps_per_update < 2**31 else "num_steps"] = min(steps_per_update, 2**31 - 1)
    return Sized(dataclasses.replace(args, **sizes, **changed), steps_per_update, num_updates)


class Sized(runs.Run):
    """Of any number of steps per update, whatever fits into a flag."""

    def __init__(self, args, steps_per_update, num_updates):
        super().__init__(args, __file__)
        self.steps_per_update, self.num_updates = steps_per_update, num_updates


def loaded(path, like, update=None):
    updates = checkpoint_updates(path / "checkpoints") if update is None else [update]
    return restore_newest(path, updates, like, "", partial=True)[0]


class Bare(NamedTuple):
    """Without fields."""


@struct.dataclass
class Empty:
    """Without fields."""


def test_a_state_with_empty_parts_is_restored(tmp_path):
    """As environments have them: MJX has arrays of size 0, xminigrid a dataclass without fields. Orbax by itself cannot
    save the one and cannot restore the other."""
    parts = [Empty(), (Empty(), jnp.ones(2)), None, (None, None), (), {}, Bare(), jnp.zeros((2, 0), int)]
    state = {"x": jnp.arange(3), "parts": parts, "y": jnp.arange(4.0)}
    saved = Checkpoints(tmp_path / "checkpoints", 1)
    saved.save(1, state)
    saved.wait()
    back = restore_newest(tmp_path, [1], jax.tree.map(jnp.zeros_like, state), "", partial=False)[0]
    assert jax.tree.structure(back) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, back, state)
    assert [x.dtype for x in jax.tree.leaves(back)] == [x.dtype for x in jax.tree.leaves(state)]


@pytest.fixture
def args(tmp_path):
    return Args(runs_dir=str(tmp_path / "runs"))


def same(a, b):
    bits = lambda x: jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x  # noqa: E731
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(bits(x), bits(y)), a, b)


def metrics_of(path):
    return [{k: v for k, v in line.items() if k not in ("time", "charts/SPS")} for line in plots.read_lines(path)]


# The folder and the arguments


def test_folder_holds_what_is_needed_to_repeat_the_run(args):
    path, _ = train(args)
    record = json.loads((path / "args.json").read_text())
    assert path.name.startswith("suite-Toy-v0__test_runs__1__")
    assert record["args"]["learning_rate"] == 0.1 and record["script"] == "test_runs"
    assert record["versions"]["jax"] == jax.__version__ and record["devices"]
    assert (path / "source.py").read_text() == Path(__file__).read_text()
    summary = json.loads((path / "summary.json").read_text())
    assert summary["final_return"]["mean"] == 10 and summary["global_step"] == 1000
    assert summary["checkpoint"] == str(path / "checkpoints/10")
    assert (path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_two_runs_in_the_same_second_do_not_clash(args):
    assert len({runs.Run(args, __file__).path for _ in range(3)}) == 3


def test_usage_errors_of_the_folder(args, tmp_path):
    named = dataclasses.replace(args, run_name="mine")
    path = runs.Run(named, __file__).path
    (path / "checkpoints/1").mkdir()
    for refuse in (runs.begin, runs.Run):  # also where another one makes it in between
        with pytest.raises(UsageError, match=rf"--run-name mine: {path} exists.*--resume {path}"):
            refuse(named, __file__)
    for name in ("../mine", "x" * 300, "ä" * 150):
        with pytest.raises(UsageError, match=rf"--run-name '{re.escape(name)}': must be a plain"):
            runs.begin(dataclasses.replace(args, run_name=name), __file__)
    (tmp_path / "file").write_text("")
    for folder in ("file", "file/below"):
        with pytest.raises(UsageError, match=r"--runs-dir .*file.*cannot make"):
            runs.Run(dataclasses.replace(args, runs_dir=str(tmp_path / folder)), __file__)


def test_a_full_disk_at_a_resume_is_one_line_and_loses_nothing(args, monkeypatch):
    path, _ = train(dataclasses.replace(args, checkpoint_every=5), stop_after=7)
    lines = (path / "metrics.jsonl").read_text() + '{"update": 1000, "global_step": 9, "time": 1}\n'
    (path / "metrics.jsonl").write_text(lines)
    real = Path.write_text

    def full(file, text, *a, **kw):
        if file.name == "metrics.jsonl.part":
            real(file, text[:9])
            raise OSError(28, "No space left on device")
        return real(file, text, *a, **kw)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UsageError, match=rf"--resume {path}: cannot be written to \(No space left on device\)"):
        train(Args(resume=str(path)))
    assert (path / "metrics.jsonl").read_text() == lines and not (path / "metrics.jsonl.part").exists()


def test_resume_takes_the_arguments_of_the_run(args):
    path, _ = train(dataclasses.replace(args, hidden_sizes=(3, 5), checkpoint_every=5), stop_after=5)
    resumed = runs.begin(Args(resume=str(path), track=True), __file__)
    assert resumed.hidden_sizes == (3, 5) and resumed.checkpoint_every == 5
    assert resumed.track and resumed.resume == str(path)
    assert runs.begin(args, __file__) is args


def record_of(path):
    return json.loads((path / "args.json").read_text())


def test_usage_errors_of_resume(args, tmp_path):
    path, _ = train(args)

    def refused(match, script=__file__, **given):
        with pytest.raises(UsageError, match=match):
            runs.begin(Args(**given), script)

    refused("--resume .*: not the folder of a run", resume=str(tmp_path))
    refused("made by test_runs.py, this is pqn.py", resume=str(path), script="pqn.py")
    refused("with --seed, --learning-rate: .*--init-from", resume=str(path), learning_rate=0.2, seed=3)
    typed = arguments.parse(Args, "", ["--resume", str(path), "--seed", str(Args().seed)])  # at its default
    other = dataclasses.replace(args, seed=5)
    (path / "args.json").write_text(json.dumps({**record_of(path), "args": dataclasses.asdict(other)}))
    with pytest.raises(UsageError, match="with --seed: a resumed run keeps its own flags"):
        runs.begin(typed, __file__)
    record = record_of(path)
    (path / "args.json").write_text(json.dumps({**record, "args": {**record["args"], "new_flag": 1}}))
    refused("this script has no --new-flag; it was made by test_runs.py", resume=str(path))
    (path / "args.json").write_text(json.dumps(record))
    (path / "checkpoints/10").rename(path / "checkpoints/10.orbax-checkpoint-tmp")
    refused("there is no checkpoint", resume=str(path))
    (path / "args.json").write_text('{"args"')
    refused("not the folder of a run", resume=str(path))


TOY = f"""
import dataclasses, sys, time
sys.path[:0] = [{str(Path(__file__).parents[1])!r}, {str(Path(__file__).parent)!r}]
import test_runs
from common.run import run as runs

@dataclasses.dataclass(frozen=True)
class Args(test_runs.Args):
    total_timesteps: test_runs.Steps = 100_000 * 2**20
    num_envs: int = 2**20

def slow_train(args):
    args = runs.begin(args, __file__)
    run = runs.Run(args, __file__)
    state = run.restore(test_runs.initial_state())
    with run:
        for update in run.updates():
            state, metrics = test_runs.step(state)
            run.log(update, metrics)
            time.sleep(0.01)
            run.save_if_due(update, state)
    run.finish()

def diverge(args):
    raise runs.Diverged(17, runs.Path("runs/x/checkpoints/10"), "--init-from")

if __name__ == "__main__":
    runs.main(diverge if "--seed=17" in sys.argv else slow_train, Args)
"""


@pytest.fixture
def toy(tmp_path):
    (tmp_path / "toy.py").write_text(TOY)

    started = []

    def start(*flags):
        command = [sys.executable, "toy.py", "--runs-dir", "runs", *flags]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        heard = functools.partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)  # also where tests run under nohup
        started.append(subprocess.Popen(command, cwd=tmp_path, text=True, preexec_fn=heard, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--learning-rate=-1"], 2, "toy.py: error: --learning-rate -1.0: must be a finite number greater than 0\n"),
        (["--resume=no"], 2, "toy.py: error: --resume no: not the folder of a run (no args.json that can be read)\n"),
        (["--seed=17"], 1, "toy.py: " + str(runs.Diverged(17, Path("runs/x/checkpoints/10"), True)) + "\n"),
    ],
)
def test_main_says_one_line(toy, flags, code, said):
    process = toy(*flags)
    _, errors = process.communicate(timeout=60)
    assert (errors, process.returncode) == (said, code)


@pytest.mark.parametrize(
    "number, then",
    [(signal.SIGTERM, None), (signal.SIGINT, None), (signal.SIGHUP, signal.SIGHUP), (signal.SIGTERM, signal.SIGHUP)],
)
def test_signal_saves_and_ends_with_its_code(toy, tmp_path, number, then):
    """A terminal that closes sends SIGHUP twice, a logout SIGTERM and then SIGHUP: they are one wish."""
    process = toy("--run-name", "x")
    metrics = tmp_path / "runs/x/metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") > 3):
        time.sleep(0.05)
    process.send_signal(number)
    if then:
        time.sleep(0.02)
        process.send_signal(then)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    (update,) = checkpoint_updates(tmp_path / "runs/x/checkpoints")
    lines = plots.read_lines(tmp_path / "runs/x")
    assert [line["update"] for line in lines] == list(range(1, update + 1))
    assert lines[-1]["global_step"] == update * 2**20
    assert "stopping after this update, saving ..." in errors
    newest = f"the newest checkpoint is that of update {update}"
    assert f"stopped; {newest}; to go on: python toy.py --resume runs/x" in errors
    assert "final_return" in output
    assert loaded(tmp_path / "runs/x", initial_state()).update == update


def test_a_second_ctrl_c_ends_a_run_at_once(args, monkeypatch, capsys):
    """In the middle of an update, whatever is not saved then."""
    begun = []

    def interrupted(args):
        with runs.Run(args, __file__) as run:
            for update in run.updates():
                begun.append(update)
                os.kill(os.getpid(), signal.SIGINT)
                begun.append("stopping")
                os.kill(os.getpid(), signal.SIGINT)
                begun.append("never")

    before = {number: signal.getsignal(number) for number in runs.SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever runs the tests
    monkeypatch.setattr(sys, "argv", ["toy.py", "--runs-dir", args.runs_dir])
    try:
        with pytest.raises(SystemExit) as end:
            runs.main(interrupted, Args)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert begun == [1, "stopping"] and end.value.code == 130
    assert capsys.readouterr().err.endswith("toy.py: interrupted\n")


def test_handlers_are_given_back_and_skipped_in_threads(args):
    before = signal.getsignal(signal.SIGTERM)
    train(args)
    assert signal.getsignal(signal.SIGTERM) is before
    done = []
    thread = threading.Thread(target=lambda: done.append(train(args)))
    thread.start()
    thread.join()
    assert done


# Checkpoints


def test_resumed_run_equals_a_straight_one(args, capsys):
    straight, state = train(args)
    broken, _ = train(dataclasses.replace(args, checkpoint_every=4), stop_after=7)
    with open(broken / "metrics.jsonl", "a") as file:
        file.write('{"update": 8, "glob')
    resumed, resumed_state = train(Args(resume=str(broken)))
    assert resumed == broken
    same(state, resumed_state)
    assert metrics_of(straight) == metrics_of(broken)
    times = [line["time"] for line in plots.read_lines(broken)]
    assert times == sorted(times)
    with pytest.raises(SystemExit) as end:  # nothing left to do
        train(Args(resume=str(broken)))
    assert not end.value.code and "finished already, 10 of 10 updates" in capsys.readouterr().out
    assert json.loads((broken / "summary.json").read_text())["updates"] == 10


def test_a_script_that_was_edited_since_is_warned_of_and_the_run_goes_on(args, capsys):
    paths = [train(dataclasses.replace(args, checkpoint_every=4), stop_after=7)[0] for _ in range(3)]
    same, edited, missing = (path / "source.py" for path in paths)
    edited.write_text("# as it was\n")
    missing.unlink()
    for path in paths:
        capsys.readouterr()
        assert runs.begin(Args(resume=str(path)), __file__).resume and train(Args(resume=str(path)))[0] == path
        warnings = [line for line in capsys.readouterr().err.splitlines() if "version" in line]
        said = f"warning: {path} was started with another version of test_runs.py; its own is {path}/source.py"
        assert warnings == ([said] if path == edited.parent else [])
        assert metrics_of(path)[-1]["update"] == 10
    assert edited.read_text() == "# as it was\n" and same.read_text() == Path(__file__).read_text()


@pytest.mark.parametrize("killed, asked", [(5, [5, 10]), (7, [10]), (10, [10])])
def test_an_evaluation_that_a_kill_left_undone_is_made_when_the_run_goes_on(args, killed, asked):
    """After the checkpoint of update 5 or 10 and before its evaluation, or after both of 5."""
    args = dataclasses.replace(args, eval_every=5, checkpoint_every=5, num_eval_episodes=1)
    straight, broken, resumed = Player(), Player(), Player()
    expected, _ = train(dataclasses.replace(args, run_name="straight"), player=straight)
    path, _ = train(args, stop_after=killed, player=broken)
    train(Args(resume=str(path)), player=resumed)
    assert straight.asked == [5, 10] and resumed.asked == asked
    assert metrics_of(path) == metrics_of(expected)
    assert (path / "summary.json").exists()


@pytest.mark.parametrize(
    "at, every, saved, lacking",
    [(10, 5, 10, [10]), (5, 5, 5, [5, 10]), (5, 10, 6, [10])],  # in the last, update 5 is not saved: it is evaluated
)
def test_a_signal_ends_an_evaluation_that_resume_makes(args, at, every, saved, lacking, capsys):
    args = dataclasses.replace(args, eval_every=5, checkpoint_every=every, num_eval_episodes=1)
    expected, _ = train(dataclasses.replace(args, run_name="straight"), player=Player())
    with pytest.raises(SystemExit) as end:
        train(dataclasses.replace(args, run_name="x"), player=Player(signal_at=at))
    assert end.value.code == 128 + signal.SIGINT
    path = expected.with_name("x")
    assert plots.finished(expected) and not plots.finished(path) and not plots.finished(path / "nowhere")
    assert checkpoint_updates(path / "checkpoints")[-1] == saved and plots.read_lines(path)[-1]["update"] == saved
    assert f"to go on: python {sys.argv[0]} --resume {path}" in capsys.readouterr().err
    resumed = Player()
    train(Args(resume=str(path)), player=resumed)
    assert resumed.asked == lacking and metrics_of(path) == metrics_of(expected)
    assert json.loads((path / "summary.json").read_text())["updates"] == 10


@dataclasses.dataclass(frozen=True)
class Limited(Args):
    time_limit: int | None = None


def test_a_run_in_which_no_episode_ends_says_so(args, capsys):
    said = "note: no episode ended in training, so there is no return"
    limited = Limited(runs_dir=args.runs_dir)
    told = {"charts/episodic_return": (args, ""), "losses/x": (args, said), "losses/y": (limited, said)}
    for key, (given, note) in told.items():
        run = run_of(given, 2)
        with run:
            for update in run.updates():
                run.log(update, {key: jnp.float32(update)})
        run.finish()
        notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: no")]
        assert notes == ([note + "; --time-limit truncates episodes" * (given is limited)] if note else [])


def test_with_nothing_left_to_do_nothing_is_compiled(args):
    run = run_of(args, 3)
    run.done = run._first = 3
    assert run.compile("not a function") == "not a function"


def test_one_process_at_a_time_is_at_work_on_a_run(toy, tmp_path):
    """The first one may be the run itself, or have resumed it; its end, however violent, ends the lock."""
    first = toy("--run-name", "x", "--checkpoint-every", "5")
    checkpoints = tmp_path / "runs/x/checkpoints"
    for number in (signal.SIGTERM, signal.SIGKILL):
        seen = set(checkpoint_updates(checkpoints))
        while first.poll() is None and not set(checkpoint_updates(checkpoints)) - seen:
            time.sleep(0.05)
        second = toy("--resume", "runs/x")
        _, errors = second.communicate(timeout=60)
        assert second.returncode == 2 and errors.count("\n") == 1
        assert "error: --resume runs/x: another process is at work on this run" in errors
        first.send_signal(number)
        first.communicate(timeout=60)
        first = toy("--resume", "runs/x", "--checkpoint-every", "5")


def test_a_deleted_folder_is_made_again_with_a_warning(args, capsys):
    run = run_of(args, 9, checkpoint_every=3)
    with run:
        for update in run.updates():
            run.log(update, {"losses/x": jnp.float32(update)})
            run.save_if_due(update, initial_state())
            if update == 4:
                run.checkpoints.wait()
                shutil.rmtree(run.path)
    said = capsys.readouterr().err
    assert said.count("warning: ") == 1 and f"{run.path} has been deleted; it is made again" in said
    assert checkpoint_updates(run.path / "checkpoints")[-1] == 9
    assert [line["update"] for line in plots.read_lines(run.path)][-4:] == [6, 7, 8, 9]
    run.finish()
    assert json.loads((run.path / "args.json").read_text()) == json.loads(json.dumps(run._record))


class GoneAway:
    """Readers of stdout and stderr that go away, by what a shell does to a process."""

    after_a_line = "(python toy.py --runs-dir runs --run-name x 2>&1; echo $? > code) | head -n 1"
    at_once = "python toy.py --runs-dir runs --run-name x >&- 2>&-; echo $? > code"
    full = "python toy.py --runs-dir runs --run-name x > /dev/full 2> /dev/full; echo $? > code"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["after_a_line", "at_once", "full"])
def test_a_run_outlives_its_readers(tmp_path, how):
    short = TOY.replace("100_000 * 2**20", "60 * 2**20")
    (tmp_path / "toy.py").write_text(short)
    line = getattr(GoneAway, how).replace("python", sys.executable)
    subprocess.run(["sh", "-c", line], cwd=tmp_path, timeout=120, capture_output=how == "after_a_line")
    deadline = time.monotonic() + 60
    while not (tmp_path / "code").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert (tmp_path / "code").read_text() == "0\n"
    assert checkpoint_updates(tmp_path / "runs/x/checkpoints") == [60]
    assert [line["update"] for line in plots.read_lines(tmp_path / "runs/x")] == list(range(1, 61))
    assert (tmp_path / "runs/x/summary.json").exists()


SPEAK = """
import os, sys
from common.run.tracking import guard_output
guard_output()
if sys.argv[1:]:  # the reader goes away
    os.close(1)
before = len(os.listdir("/proc/self/fd"))
for _ in range(100):
    print("η 0.5", flush=True)
    print("η 0.5", file=sys.stderr)
os.write(2, f"{len(os.listdir('/proc/self/fd')) - before}".encode())
"""


@pytest.mark.parametrize("gone", [(), ("gone",)], ids=["here", "gone"])
def test_what_a_stream_cannot_encode_is_escaped_and_no_descriptor_is_lost(gone):
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", SPEAK, *gone], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == ("" if gone else "\\u03b7 0.5\n" * 100)
    assert done.stderr == "\\u03b7 0.5\n" * 100 + ("1" if gone else "0")


def test_sighup_under_nohup_changes_nothing(args, monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with run_of(args, 1):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_interrupt_that_python_can_only_print_is_raised_again(capsys):
    """As it is in JAX's callback of the garbage collector. What tensorstore says of a closed loop is dropped."""
    what = lambda error: types.SimpleNamespace(exc_type=type(error), exc_value=error)  # noqa: E731
    with pytest.raises(KeyboardInterrupt):
        early._unraisable(what(KeyboardInterrupt()))
    early._unraisable(what(RuntimeError("Event loop is closed")))
    assert capsys.readouterr().err == ""


def damage_by_truncating(checkpoint):
    for file in checkpoint.glob("**/d/*"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def damage_by_deleting(checkpoint):
    for file in checkpoint.glob("**/d/*"):
        file.unlink()


def damage_by_emptying(checkpoint):
    for file in checkpoint.glob("**/*"):
        if file.is_file():
            file.write_bytes(b"")


@pytest.mark.parametrize("damage", [damage_by_truncating, damage_by_deleting, damage_by_emptying])
def test_damaged_checkpoint_is_named_and_the_one_before_used(args, damage, capsys):
    straight, state = train(args)
    path, _ = train(dataclasses.replace(args, checkpoint_every=3), stop_after=6)
    damage(path / "checkpoints/6")
    _, resumed_state = train(Args(resume=str(path)))
    assert f"checkpoint {path / 'checkpoints/6'} is damaged" in capsys.readouterr().err
    same(state, resumed_state)
    assert metrics_of(straight) == metrics_of(path)
    assert checkpoint_updates(path / "checkpoints") == [3, 6, 9, 10]
    assert loaded(path, initial_state(), 6).update == 6  # saved anew


def test_a_checkpoint_may_be_damaged_twice(args):
    path, _ = train(dataclasses.replace(args, checkpoint_every=3), stop_after=6)
    for _ in range(2):
        damage_by_emptying(path / "checkpoints/6")
        train(Args(resume=str(path)), stop_after=6)
        assert checkpoint_updates(path / "checkpoints") == [3, 6]
    assert loaded(path, initial_state(), 6).update == 6


def test_no_intact_checkpoint(args):
    path, _ = train(args)
    damage_by_truncating(path / "checkpoints/10")
    (path / "summary.json").unlink()
    with pytest.raises(UsageError, match=r"--resume .* no intact checkpoint among updates 10"):
        train(Args(resume=str(path)))


def test_keep_checkpoints(args):
    path, _ = train(dataclasses.replace(args, checkpoint_every=2, keep_checkpoints=2))
    assert checkpoint_updates(path / "checkpoints") == [8, 10]


def test_donated_buffers_do_not_reach_a_checkpoint(tmp_path):
    """The buffers are overwritten while orbax still writes: what it writes must be what was there."""
    increment = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    checkpoints = Checkpoints(tmp_path / "run/checkpoints", 0)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/args.json").write_text('{"args": {}, "script": "x"}')
    state, value = increment({"big": jnp.zeros(4_000_000), "small": jnp.zeros(8, jnp.int32)}), 1
    saved = {}
    for update in range(1, 5):
        checkpoints.save(update, state)
        saved[update] = value
        for _ in range(5):
            state, value = increment(state), value + 1
    checkpoints.wait()
    for update, wanted in saved.items():
        restored = loaded(tmp_path / "run", state, update)
        assert all((np.asarray(leaf) == wanted).all() for leaf in jax.tree.leaves(restored))


SHARDED = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parents[1])!r}, {str(Path(__file__).parent)!r}]
import test_runs
test_runs.check_sharded_round_trip(sys.argv[1])
"""


def check_sharded_round_trip(folder):
    mesh = jax.make_mesh((4,), ("device",))
    split, whole = NamedSharding(mesh, PartitionSpec("device")), NamedSharding(mesh, PartitionSpec())
    state = {
        "keys": jax.device_put(jax.random.split(jax.random.key(3), 8), split),
        "key": jax.device_put(jax.random.key(4, impl="rbg"), whole),
        "env": jax.device_put(jnp.arange(16.0).reshape(8, 2), split),
        "nothing": (None, ()),
        "flags": jnp.array([True, False]),
    }
    run = runs.Run(Args(runs_dir=folder), __file__)
    run.checkpoints.save(1, state)
    run.checkpoints.wait()
    like = jax.tree.map(lambda x: jax.device_put(jnp.zeros_like(x), x.sharding), {**state, "key": None, "keys": None})
    like["key"], like["keys"] = (jax.device_put(state[k], state[k].sharding) for k in ("key", "keys"))
    restored = loaded(run.path, like)
    same(state, restored)
    assert jax.tree.all(jax.tree.map(lambda x, y: x.sharding == y.sharding and x.dtype == y.dtype, state, restored))


def test_gpus_are_those_that_jax_can_use(tmp_path, monkeypatch):
    there = lambda: devices.number_of_gpus(tmp_path)  # noqa: E731
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: name == "jax_cuda13_plugin" or None)
    assert there() == 0
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    (tmp_path / "dev/nvidiactl").touch()
    assert there() == 1
    (tmp_path / "dev/nvidia1").touch()
    assert there() == 2
    for visible, count in (("1", 1), ("GPU-8932f937,GPU-8f1c", 2), ("", 0), ("-1", 0), ("0,1,2", 2)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert there() == count
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert there() == 0
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: None)
    assert there() == 0


@pytest.mark.parametrize("gpus", [0, 2])
def test_loops_become_cuda_graphs_on_one_gpu_only(args, monkeypatch, gpus):
    monkeypatch.setattr(devices, "number_of_gpus", lambda: gpus)
    monkeypatch.setattr(devices, "_make_cpu_devices", lambda count: None)
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.delenv("XLA_FLAGS")
    devices.start(args)
    assert "graph" not in devices.os.environ["XLA_FLAGS"]


@pytest.mark.parametrize("of_the_user", [None, "--xla_gpu_autotune_level=0"])
def test_xla_flags_of_the_user_are_left_alone(args, monkeypatch, capsys, of_the_user):
    monkeypatch.setattr(devices, "number_of_gpus", lambda: 1)
    monkeypatch.setattr(devices, "_make_cpu_devices", lambda count: None)
    monkeypatch.setenv("XLA_FLAGS", of_the_user or "")
    if of_the_user is None:
        monkeypatch.delenv("XLA_FLAGS")
    devices.start(args)
    patience = "=".join(map(str, devices.PATIENCE))
    assert devices.os.environ["XLA_FLAGS"] == f"{of_the_user or devices.GRAPHS} {patience}"
    assert ("CUDA graph" in capsys.readouterr().err) == (of_the_user is None)


def test_typed_keys_and_shardings_round_trip(tmp_path):
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    command = [sys.executable, "-c", SHARDED, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Learner(NamedTuple):
    params: dict
    proximal: dict | None = None


class Learning(NamedTuple):
    learner: Learner


def test_load_learner_and_its_usage_errors(args):
    run = run_of(args, 2, checkpoint_every=1, learning_rate=0.5)
    learners = [Learner({"kernel": jnp.full((4, 3), float(i))}) for i in range(3)]
    with run:
        for update in (1, 2):
            run.log(update, {"losses/x": jnp.float32(1)})
            run.save_if_due(update, Learning(learners[update]))
    like, path = learners[0], run.path
    for source, learner in ((str(path), learners[2]), (f"{path}@1", learners[1])):
        check_learner(Args(init_from=source), jax.eval_shape(lambda: like), ("hidden_sizes",))
        same(load_learner(Args(init_from=source), like), learner)

    def refused(source, match, like=like, **flags):
        """From shapes alone, so before anything is compiled."""
        with pytest.raises(UsageError, match=match):
            check_learner(Args(init_from=source, **flags), jax.eval_shape(lambda: like), ("hidden_sizes",))

    refused("nowhere", "--init-from nowhere: not the folder of a run")
    refused(f"{path}@5", "--init-from .*@5: its checkpoints are at updates 1, 2")
    refused(str(path), "was trained with --hidden-sizes .*, which cannot change", hidden_sizes=(3,))
    shapes = r"learner/params/kernel is \(4, 3\) there, \(5, 3\) here; flags that differ: .*--learning-rate 0.5 there"
    refused(str(path), shapes, Learner({"kernel": jnp.zeros((5, 3))}))
    refused(str(path), "extra is missing there", Learner({"extra": jnp.zeros(3)}))
    refused(str(path), "learner/params is kept by layers there, .*earlier version.*commit[)]$", Learner(jnp.zeros(12)))
    refused(str(path), "kernel is float32 there, int32 here", Learner({"kernel": jnp.zeros((4, 3), jnp.int32)}))
    both = Learner(like.params, proximal=Learner({"kernel": jnp.zeros((4, 3))}))
    refused(str(path), "learner/proximal/params/kernel is missing there", both)
    check_learner(Args(init_from=str(path)), jax.eval_shape(lambda: both), (), may_lack="proximal")
    lacking = load_learner(Args(init_from=str(path)), both, may_lack="proximal")
    assert (lacking.params["kernel"] == 2).all()
    same(lacking.proximal.params, lacking.params)
    damage_by_deleting(path / "checkpoints/1")
    refused(f"{path}@1", "no intact checkpoint among updates 1")


def test_a_full_disk_does_not_stop_training(args, capsys, caplog, monkeypatch):
    """Files cannot grow over 20 kB for a while: the checkpoint fails, the training does not."""
    import resource

    monkeypatch.setattr(runs, "PAUSE", 0)
    big = {"x": jax.random.normal(jax.random.key(0), (100_000,))}
    run = run_of(args, 4, checkpoint_every=1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with run:
            for update in (1, 2, 3, 4):
                full = update in (1, 4)
                run.log(update, {"losses/x": jnp.float32(update)})
                resource.setrlimit(resource.RLIMIT_FSIZE, (20_000 if full else limits[0], limits[1]))
                run.save_if_due(update, big)
                while update < 4 and run.checkpoints._manager.is_saving_in_progress():
                    time.sleep(0.01)  # the first one fails in the background, for the next save to find
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert checkpoint_updates(run.path / "checkpoints") == [2, 3]
    assert len(plots.read_lines(run.path)) == 4
    said = capsys.readouterr().err
    assert said.count("warning: ") == 2 and "Traceback" not in said + caplog.text
    assert "warning: the checkpoint before 2 could not be saved" in said
    assert "warning: checkpoint 4 could not be saved" in said
    with pytest.raises(SystemExit) as end:
        run.finish()
    assert end.value.code == 1
    assert not plots.finished(run.path)  # --resume, or an experiment, makes the last checkpoint


def saved(args, num_updates):
    """The folder of a run with a checkpoint of each update."""
    run = run_of(args, num_updates, checkpoint_every=1)
    with run:
        for update in run.updates():
            run.save_if_due(update, initial_state())
    run.finish()
    return run.path


def test_the_last_checkpoint_is_tried_again_until_there_is_room(args, capsys, monkeypatch):
    pauses, save = [], Checkpoints.save

    def full(self, update, state):
        if len(pauses) < 3:
            raise ValueError("No space left on device")
        save(self, update, state)

    monkeypatch.setattr(Checkpoints, "save", full)
    monkeypatch.setattr(runs, "_pause", pauses.append)
    run = run_of(args, 2)
    with run:
        for update in run.updates():
            run.log(update, {"losses/x": jnp.float32(update)})
            run.save_if_due(update, initial_state())
    run.finish()
    assert pauses == [60, 60, 60] and checkpoint_updates(run.path / "checkpoints") == [2] and plots.finished(run.path)
    said = capsys.readouterr().err
    assert said.count("warning: ") == 1 and "No space left on device); trying again every 60 s, 10 times" in said


def test_a_stop_gives_up_no_evaluation_whose_checkpoint_failed_in_the_background(args, monkeypatch):
    run = run_of(args, 9, checkpoint_every=2, eval_every=2, num_eval_episodes=4)
    failing = [ValueError("No space left on device")]
    with run:
        for update in run.updates():
            run.save_if_due(update, initial_state())
            if update == 2:
                monkeypatch.setattr(run.checkpoints, "wait", lambda: failing and (_ for _ in ()).throw(failing.pop()))
            assert update % 2 or run.evaluate_if_due(update, Player(signal_at=2), None)
            monkeypatch.undo()
    assert checkpoint_updates(run.path / "checkpoints")[-1] == 3


class Failing:
    def scores(self, learner, update, given_up):
        raise RuntimeError("out of memory")


def test_an_evaluation_that_fails_costs_its_scores_only(args, capsys):
    run = run_of(args, 3, eval_every=1, num_eval_episodes=4)
    with run:
        for update in run.updates():
            run.log(update, {"losses/x": jnp.float32(update)})
            run.save_if_due(update, initial_state())
            assert run.evaluate_if_due(update, Failing(), None) == {}
    with pytest.raises(SystemExit) as end:
        run.finish()
    assert end.value.code == 1 and checkpoint_updates(run.path / "checkpoints") == [3]
    assert not plots.finished(run.path)  # so that --resume makes the last one
    said = capsys.readouterr().err
    assert said.count("warning: the evaluation after update 1 failed; the run goes on: Traceback") == 1
    assert said.count("warning: the evaluation after update 3 failed; --resume makes it again: Traceback") == 1
    assert said.count("RuntimeError: out of memory") == 2
    alone = runs.Run(dataclasses.replace(args, run_name="alone", num_eval_episodes=4), __file__, only=(2, 100))
    with pytest.raises(RuntimeError, match="out of memory"), alone:
        alone.evaluate_if_due(2, Failing(), None)


def test_a_video_that_a_signal_prevents_is_left_to_resume(args):
    for num_updates in (1, 2):
        run = run_of(dataclasses.replace(args, run_name=f"{num_updates}"), num_updates, capture_video=True)
        with run:
            run.log(1, {"losses/x": jnp.float32(1)})
            run.save_if_due(1, initial_state())
            run._take()
            run._on_signal(signal.SIGTERM, None)
            run.film_if_asked(lambda: pytest.fail("films"))
        with pytest.raises(SystemExit):
            run.finish()
        assert (run.path / "summary.json").exists() == (num_updates == 2)  # one stopped half-way is not finished anyhow


def test_a_folder_out_of_reach_is_not_one_that_was_deleted(args, capsys, monkeypatch):
    run = run_of(args, 2)
    with run:
        monkeypatch.setattr(Path, "stat", lambda *a, **k: (_ for _ in ()).throw(OSError(107, "not connected")))
        assert not run._is_gone()
        monkeypatch.undo()
        assert not run._is_gone()
        shutil.rmtree(run.path)
        assert run._is_gone()


def test_a_folder_of_checkpoints_that_cannot_be_read_is_one_line(args, capsys, monkeypatch):
    def unreadable(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", unreadable)
    with pytest.raises(UsageError, match=r"checkpoints: cannot be read \(Permission denied\)"):
        checkpoint_updates(Path("runs/x/checkpoints"))
    assert Checkpoints(Path("runs/x/checkpoints"), 0).newest() is None
    assert "warning: runs/x/checkpoints: cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("RESOURCE_EXHAUSTED: Out of memory")])
def test_a_checkpoint_for_which_memory_is_lacking_is_not_called_damaged(error, args, capsys, monkeypatch):
    path = saved(args, 2)
    monkeypatch.setattr("common.run.checkpoints._restore", lambda *_: (_ for _ in ()).throw(error))
    with pytest.raises(UsageError, match=r"--resume x: not enough memory to read checkpoint .*/checkpoints/2"):
        restore_newest(path, [1, 2], initial_state(), "--resume x", partial=False)
    assert "damaged" not in capsys.readouterr().err


def test_a_folder_whose_name_ends_like_a_checkpoint_is_found(args):
    path = saved(args, 2)
    assert find_checkpoint(f"{path}@1") == (path, read_record(path, ""), [1])
    other = path.rename(path.with_name("x@1"))
    assert find_checkpoint(str(other))[::2] == (other, [1, 2]) and find_checkpoint(f"{other}@2")[::2] == (other, [2])


def test_processes_that_have_read_different_checkpoints_stop(args, monkeypatch):
    path = saved(args, 2)
    monkeypatch.setattr(devices, "share", lambda text: [text, text and "1"])
    with pytest.raises(UsageError, match="--resume x: the processes have read checkpoints 2, 1, must be one"):
        restore_newest(path, [1, 2], initial_state(), "--resume x", partial=False)


def test_resume_says_which_packages_are_others(args, capsys):
    path = saved(args, 1)
    record = json.loads((path / "args.json").read_text())
    record["versions"] |= {"jax": "0.1", "gone": "3"}
    (path / "args.json").write_text(json.dumps(record))
    capsys.readouterr()
    runs.Run(dataclasses.replace(args, resume=str(path)), __file__)._lock.close()
    expected = f"was started with jax 0.1, gone 3; here are jax {jax.__version__}, gone missing: numbers may differ"
    assert expected in capsys.readouterr().err


def test_a_full_disk_costs_the_line_that_it_cut_off_and_no_other(args, capsys):
    """Lines longer than a file's buffer are cut off in the middle."""
    import resource

    run, long = run_of(args, 5, num_seeds=1000), jnp.arange(1000) / 7
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with run:
            for update in range(1, 6):
                full = update == 3
                run._drain()
                size = (run.path / "metrics.jsonl").stat().st_size if full else 0
                resource.setrlimit(resource.RLIMIT_FSIZE, (size + 9_000 if full else limits[0], limits[1]))
                run.log(update, {"losses/x": long})
                run._drain()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [line["update"] for line in plots.read_lines(run.path)] == [1, 2, 4, 5]
    assert (run.path / "metrics.jsonl").read_bytes().count(b"\n") == 5
    assert "cannot write" in capsys.readouterr().err


def test_a_metrics_file_that_cannot_be_written_warns_once(args, capsys):
    run = run_of(args, 3)
    (run.path / "metrics.jsonl").symlink_to("/dev/full")
    with run:
        for update in (1, 2, 3):
            run.log(update, {"losses/x": jnp.float32(1)})
    assert capsys.readouterr().err.count("cannot write") == 1


# Metrics


class Slow:
    """An array that is not there yet, and notes when it is fetched."""

    def __init__(self, value, fetched):
        self.value, self.fetched = value, fetched

    def is_ready(self):
        return False

    def __array__(self, dtype=None, copy=None):
        self.fetched.append(self.value)
        return np.float32(self.value)


def test_log_fetches_one_update_late(args):
    fetched, seen = [], []
    run = run_of(args, 3, 2**31)
    with run:
        for update in (1, 2, 3):
            run.log(update, {"losses/x": Slow(update, fetched)})
            seen.append(list(dict.fromkeys(fetched)))
    assert seen == [[], [1], [1, 2]]
    lines = plots.read_lines(run.path)
    assert [line["losses/x"] for line in lines] == [1, 2, 3]
    assert [line["global_step"] for line in lines] == [2**31, 2**32, 3 * 2**31]


def test_log_every_pools_by_hand_computed_values(args):
    nan = np.nan
    returns = [[1.0, 5.0], [nan, 7.0], [4.0, nan], [8.0, 2.0], [6.0, nan]]
    episodes = [[1, 2], [0, 2], [3, 0], [1, 1], [2, 0]]
    losses = [[1.0, nan], [2.0, nan], [6.0, nan], [np.inf, 1.0], [3.0, nan]]
    run = run_of(args, 5, 10, log_every=3, num_seeds=2)
    with run:
        for i in range(5):
            rows = {"charts/episodic_return": returns[i], "charts/num_episodes": episodes[i], "losses/x": losses[i]}
            rows |= {"charts/new_solve_rate": returns[i], "charts/new_num_episodes": episodes[i]}
            run.log(i + 1, {key: jnp.array(value) for key, value in rows.items()})
            if i == 1:
                with run.aside():
                    run.write(2, {"eval/episodic_return": jnp.float32(9)})
    evaluation, first, last = metrics_of(run.path)
    assert evaluation == {"update": 2, "global_step": 20, "eval/episodic_return": 9}
    # (1·1 + 4·3) / 4 and (5·2 + 7·2) / 4; (1 + 2 + 6) / 3
    wanted = {"charts/episodic_return": [3.25, 6.0], "charts/num_episodes": [4, 4], "losses/x": [3.0, None]}
    wanted |= {"charts/new_solve_rate": [3.25, 6.0], "charts/new_num_episodes": [4, 4]}
    assert first == {"update": 3, "global_step": 30, **wanted}
    wanted = {"charts/episodic_return": [20 / 3, 2.0], "charts/num_episodes": [3, 1], "losses/x": [None, 1.0]}
    wanted |= {"charts/new_solve_rate": [20 / 3, 2.0], "charts/new_num_episodes": [3, 1]}
    assert last == {"update": 5, "global_step": 50, **wanted}
    assert "NaN" not in (run.path / "metrics.jsonl").read_text()


def test_an_update_that_moved_nothing_does_not_erase_the_others_ratio():
    rows = [{"outer/ddr": np.array(x)} for x in (np.inf, 100.0, 200.0)]
    assert tracking.pool(rows) == {"outer/ddr": 150.0}
    assert tracking.pool([*rows, {"outer/ddr": np.array(-1e12)}]) == {"outer/ddr": 150.0}  # a KL rounded below 0
    assert not np.isfinite(tracking.pool([{"losses/x": np.array(x)} for x in (np.inf, 1.0)])["losses/x"])


def test_a_negative_ratio_of_an_older_run_is_none():
    """A seed's, or a whole line's. Other keys keep theirs."""
    lines = [
        {"global_step": i, "outer/ddr": x, "outer/own_gain": x} for i, x in enumerate(([1.0, -1e12], [-2.0, None]))
    ]
    steps, values = plots.series(lines, "outer/ddr")
    assert steps.tolist() == [0]
    np.testing.assert_array_equal(values, [[1.0, np.nan]])
    np.testing.assert_array_equal(plots.series(lines, "outer/own_gain")[1], [[1.0, -1e12], [-2.0, np.nan]])


def test_final_numbers_are_those_of_the_last_tenth(tmp_path):
    """The ratio is known of the second line alone, the return of every other one."""
    rows = [{"outer/kl": 0.0, "outer/ddr": 5.0 if i == 1 else None} for i in range(40)]
    rows = [row | {"charts/episodic_return": float(i) if i % 2 else None} for i, row in enumerate(rows)]
    text = [json.dumps({"update": i + 1, "global_step": 10 * (i + 1), **row}) for i, row in enumerate(rows)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(text))
    summary = plots.summarize(tmp_path)
    assert summary["final_kl"] == {"mean": 0.0} and "final_ddr" not in summary
    assert summary["final_return"] == {"mean": 38.0}


def test_lines_reach_the_file_at_once(args):
    run = run_of(args, 9)
    with run:
        run.log(1, {"losses/x": jnp.float32(1)})
        run.log(2, {"losses/x": jnp.float32(2)})
        assert [line["update"] for line in plots.read_lines(run.path)] == [1, 2]


def test_speed_leaves_out_evaluation_and_checkpoints(args, monkeypatch):
    clock = [0.0]

    def takes(seconds):
        clock[0] += seconds

    class Slowly:
        def scores(self, learner, update, given_up):
            takes(10)
            return {"eval/x": np.float32(0)}

    monkeypatch.setattr(runs, "time", types.SimpleNamespace(perf_counter=lambda: clock[0]))
    run = run_of(args, 4, 100, checkpoint_every=3, eval_every=2, num_eval_episodes=1)
    monkeypatch.setattr(run.checkpoints, "save", lambda update, state: takes(20))
    takes(30)  # compiling
    with run:
        for update in range(1, 5):
            takes(0.5)
            run.log(update, {"losses/x": jnp.float32(1)})
            run.save_if_due(update, None)
            run.evaluate_if_due(update, Slowly(), None)
    lines = [line for line in plots.read_lines(run.path) if "charts/SPS" in line]
    # The updates alone, without the 30, 10 and 20 seconds beside them. Each is over when it is logged.
    assert [line["charts/SPS"] for line in lines] == [200] * 4


def test_speed_leaves_out_what_is_done_aside(args, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(runs, "time", types.SimpleNamespace(perf_counter=lambda: clock[0]))
    run = run_of(args, 2, 100)
    with run:
        for update in (1, 2):
            clock[0] += 0.5
            run.log(update, {"losses/x": jnp.float32(1)})
            with run.aside():
                clock[0] += 40  # a search for levels
                run.write(update, {"search/x": np.float32(1)})
    lines = plots.read_lines(run.path)
    assert [line.get("charts/SPS") for line in lines] == [200, None, 200, None]


def test_the_time_of_a_measurement_is_in_no_line(args, monkeypatch):
    """On a device of which only the dispatch is immediate: an update's line is written when the next one runs."""
    clock, idle_from = [0.0], [0.0]

    def dispatch(seconds):
        idle_from[0] = max(idle_from[0], clock[0]) + seconds
        end = idle_from[0]
        return types.SimpleNamespace(end=end, is_ready=lambda: clock[0] >= end)

    def fetch(row):
        clock[0] = max(clock[0], row["ready"].end)
        return {"losses/x": np.float32(1)}

    def wait(row):
        fetch(row)
        return row

    run = run_of(args, 6, 100, plasticity_every=3)
    monkeypatch.setattr(runs, "time", types.SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(runs.jax, "device_get", fetch)
    monkeypatch.setattr(runs.jax, "block_until_ready", wait)
    run._clock = 0.0
    with run:
        for update in run.updates():
            ready = dispatch(1)
            run.log(update, run.measure_if_due(update, {"ready": ready}, lambda: {"ready": dispatch(9)}))
            assert run.done == (update if update % 3 == 0 else update - 1)
    assert [line["charts/SPS"] for line in plots.read_lines(run.path)] == [100] * 6


@pytest.mark.parametrize("when", ["at the save", "one update later", "at the end"])
def test_nan_is_never_saved(args, when):
    bad = {"at the save": 6, "one update later": 5, "at the end": 10}[when]
    run = run_of(args, 11, checkpoint_every=3)
    with pytest.raises(runs.Diverged) as diverged, run:
        for update in range(1, bad + 1 if when == "at the end" else 12):
            run.log(update, {"losses/x": jnp.float32(1), "finite": jnp.array([True, update < bad])})
            run.save_if_due(update, initial_state())
    newest = 9 if when == "at the end" else 3
    assert max(checkpoint_updates(run.path / "checkpoints")) == newest
    said = str(diverged.value)
    assert said.startswith(f"update {bad}: ") and f"--init-from {run.path}@{newest}" in said
    lines = plots.read_lines(run.path)
    assert lines[-1]["update"] == bad and "finite" not in lines[-1]


def test_a_run_that_goes_on_after_nan_says_so_at_its_end(args, capsys):
    run = run_of(args, 3, halt_on_nan=False, num_seeds=2)
    with run:
        for update in (1, 2, 3):
            run.log(update, {"losses/x": jnp.float32(1), "finite": jnp.array([True, update < 2])})
    run.finish()
    said = capsys.readouterr()
    assert "since update 2 parameters or losses are not finite" in said.err
    assert "not_finite_since_update  2" in said.out
    assert json.loads((run.path / "summary.json").read_text())["not_finite_since_update"] == 2


@pytest.mark.parametrize("bad", [4, 5, 6])
def test_the_first_update_that_is_not_finite_has_no_finite_ones_in_its_line(args, bad):
    run = run_of(args, 20, log_every=5)
    with pytest.raises(runs.Diverged), run:
        for update in run.updates():
            loss = jnp.float32(1 if update < bad else jnp.nan)
            run.log(update, {"losses/x": loss, "finite": jnp.isfinite(loss)})
    *before, last = plots.read_lines(run.path)
    assert last["update"] == bad and last["losses/x"] is None
    assert before[-1]["update"] == bad - 1 and all(line["losses/x"] == 1 for line in before)


@pytest.mark.parametrize("bad, since", [(2, 2), (5, 6)])
def test_since_when_a_run_is_not_finite_is_known_after_resume(args, bad, since):
    """Killed after update 5, it goes on from that of 4; what happened after that is gone."""
    run = run_of(args, 8, halt_on_nan=False, checkpoint_every=4)
    with run:
        for update in range(1, 6):
            run.log(update, {"finite": jnp.bool_(update < bad)})
            run.save_if_due(update, initial_state())
    again = Sized(dataclasses.replace(run.args, resume=str(run.path)), 1, 8)
    again.restore(initial_state())
    with again:
        for update in range(5, 9):
            again.log(update, {"finite": jnp.bool_(update < max(bad, since))})
    again.finish()
    assert json.loads((run.path / "summary.json").read_text())["not_finite_since_update"] == since


# wandb


def fake_wandb(monkeypatch, init):
    module = types.ModuleType("wandb")
    module.Settings = lambda **options: options
    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)


def test_wandb_that_hangs_does_not_block(args, monkeypatch, capsys):
    fake_wandb(monkeypatch, lambda **_: time.sleep(60))
    monkeypatch.setattr(tracking.Tracker.close, "__defaults__", (0.2,))
    start = time.perf_counter()
    path, _ = train(dataclasses.replace(args, track=True))
    assert time.perf_counter() - start < 20
    assert len(plots.read_lines(path)) == 10
    assert "`wandb sync" in capsys.readouterr().err


@pytest.mark.parametrize("error", [RuntimeError("no\nnetwork"), SystemExit(1)])
def test_wandb_that_fails_warns_once(args, monkeypatch, capsys, error):
    def init(**_):
        raise error

    fake_wandb(monkeypatch, init)
    path, _ = train(dataclasses.replace(args, track=True))
    assert len(plots.read_lines(path)) == 10
    assert capsys.readouterr().err.count("warning: wandb:") == 1


def test_wandb_gets_every_line_in_order(args, monkeypatch):
    calls, settings = [], {}

    def init(**given):
        settings.update(given)
        log = lambda values, step: calls.append((step, values))  # noqa: E731
        return types.SimpleNamespace(log=log, finish=lambda: calls.append("finished"))

    fake_wandb(monkeypatch, init)
    groups = {"wandb_group": "seeds", "wandb_tags": ("a", "b"), "wandb_job_type": "train"}
    run = run_of(args, 2, 2**31, track=True, num_seeds=2, **groups)
    with run:
        for update in (1, 2):
            run.log(update, {"charts/x": jnp.array([1.0, np.nan]), "losses/y": jnp.array([1.0, 3.0])})
    assert [call[0] for call in calls[:2]] == [2**31, 2**32] and calls[-1] == "finished"
    values = calls[0][1]
    assert values["charts/x"] == 1 and values["seed_0/charts/x"] == 1 and "seed_1/charts/x" not in values
    assert values["losses/y"] == 2 and "seed_0/losses/y" not in values
    record = json.loads((run.path / "args.json").read_text())
    assert settings["id"] == record["wandb_id"] and settings["resume"] == "allow"
    config = settings["config"]
    assert config["learning_rate"] == 0.1 and "jax" in config["versions"] and config["script"] == "test_runs"
    assert config["command"] == record["command"] and config["git_commit"] == record["git_commit"]
    assert (settings["group"], settings["tags"], settings["job_type"]) == ("seeds", ("a", "b"), "train")
    assert settings["mode"] == "offline"


def test_wandb_offline_and_video(args, monkeypatch):
    """Without a flag WANDB_MODE says so."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    args = dataclasses.replace(args, wandb_mode=RunArgs().wandb_mode)
    run = run_of(args, 2, 10, track=True, capture_video=True)
    with run:
        for update in (1, 2):
            run.log(update, {"losses/x": jnp.float32(update)})
        run.film_if_asked(lambda: {"eval/first": lambda: [np.full((16, 16, 3), 20 * i, np.uint8) for i in range(5)]})
    (gif,) = run.path.glob("videos/*.gif")
    assert gif.name == "eval-first.gif"
    (folder,) = run.path.glob("wandb/offline-run-*")
    assert folder.name.endswith(run._record["wandb_id"]) and list(folder.glob("*.wandb"))
    assert list(folder.glob("files/media/videos/**/*.gif"))


# Pictures and numbers


def make_run(folder, name, seeds=3, **changed):
    """A finished run with made-up metrics."""
    path = folder / name
    path.mkdir(parents=True)
    given = dataclasses.asdict(Args(num_seeds=seeds, run_name=name, **changed))
    (path / "args.json").write_text(json.dumps({"args": given, "script": "ppo"}))
    noise = np.random.default_rng(len(name))
    with open(path / "metrics.jsonl", "w") as file:
        for update in range(1, 201):
            level = 100 * (1 - np.exp(-update / (60 * given["learning_rate"] / 0.1)))
            values = [None if update < 3 else x for x in level + noise.normal(0, 6, seeds)]
            line = {"update": update, "global_step": update * 65536, "time": update, "charts/SPS": 10**6}
            line |= {"charts/episodic_return": values, "outer/kl": list(0.01 + 0.002 * noise.random(seeds))}
            file.write(json.dumps({**line, "outer/grad_norm": list(0.5 + 0.1 * noise.random(seeds))}) + "\n")
    return path


def test_a_title_says_what_is_drawn_of_how_many_seeds():
    record = {"args": {"env_id": "Toy-v0"}, "script": "ppo"}

    def title(*counts):
        lines = [[{"global_step": 1, "charts/episodic_return": [1.0] * count}] for count in counts]
        return plots._title([record], lines)

    assert title(1) == title(2, 3) == "ppo on Toy-v0"
    assert title(5) == "ppo on Toy-v0, median and each of 5 seeds"
    assert title(6) == "ppo on Toy-v0, mean and 95 % interval of 6 seeds"


def drawn(key, *values):
    """The axes on which two lines with these values, one per seed, have been drawn."""
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    lines = [{"global_step": step, key: list(values), "eval/episodic_return": list(values)} for step in (1, 2)]
    plots._draw_run(axes, lines, key, 0, 1, "black", "x")
    return axes


def test_an_interval_of_a_kl_is_never_below_0():
    """The mean of 0.001, 0.01 and 0.1 is 0.01 on a logarithmic axis. A KL of 0 has no place there."""
    for values in ([1e-3, 0.01, 0.1] * 2, [1e-3, 0.0, 0.01, 0.1] * 2):
        axes = drawn("outer/kl", *values)
        (mean,), (band,) = axes.lines, axes.collections
        np.testing.assert_allclose(mean.get_ydata(), 0.01)
        assert 0 < band.get_paths()[0].vertices[:, 1].min() < 0.01


@pytest.mark.parametrize(
    "key,values,median",
    [
        ("charts/episodic_return", [5.0, 1.0, 30.0], 5.0),
        ("charts/episodic_return", [5.0, None, 1.0, 30.0], 5.0),
        ("outer/kl", [1e-3, 0.1], 0.01),  # half-way on a logarithmic axis
        ("outer/kl", [1e-3, 0.0, 0.1], 0.01),
        ("charts/episodic_return", [7.0], 7.0),
    ],
)
def test_of_few_seeds_each_is_drawn_and_their_median(key, values, median):
    axes = drawn(key, *values)
    evaluations = sum(line.get_marker() == "o" for line in axes.lines)
    *seeds, middle = (line.get_ydata()[0] for line in axes.lines if line.get_marker() != "o")
    assert not axes.collections and middle == pytest.approx(median)
    positive = [value or np.nan for value in values]
    assert seeds == pytest.approx(positive if len(values) > 1 else [], nan_ok=True)
    assert evaluations == (len(values) if key == "charts/episodic_return" else 0)


def test_draw_makes_a_picture(tmp_path):
    paths = [make_run(tmp_path, "a", hidden_sizes=(64, 64)), make_run(tmp_path, "bb", learning_rate=0.05, seed=2)]
    records = [json.loads((path / "args.json").read_text()) for path in paths]
    assert plots.labels(records, paths) == ["hidden_sizes = [64, 64]", "hidden_sizes = [8, 8]"]
    assert plots.labels([records[0]] * 2, paths) == ["a", "bb"]
    assert plots.labels([records[0]] * 2, ["x/a", "y/a"]) == ["x/a", "y/a"]
    other = {**records[0], "args": {**records[0]["args"], "learning_rate": 0.3, "seed": 5}}
    three = plots.labels([*records, other], [*paths, "c"])
    assert three == [f"learning_rate = {rate}" for rate in (0.1, 0.05, 0.3)]
    command = [sys.executable, "-m", "common.run.plots", *map(str, paths), "--out", str(tmp_path / "both.png")]
    subprocess.run([*command, "--title", "Two runs"], check=True, cwd=Path(__file__).parents[1])
    import matplotlib.image

    height, width, _ = matplotlib.image.imread(tmp_path / "both.png").shape
    assert width > 1.5 * height > 600
    plots.draw(paths[:1], tmp_path / "one.png", keys=["charts/SPS"])
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "args.json").write_text((paths[0] / "args.json").read_text())
    plots.draw([empty], tmp_path / "empty.png")


def test_lines_that_are_none_are_left_out(tmp_path):
    path = make_run(tmp_path, "a", seeds=2)
    whole = plots.read_lines(path)
    odd = ['{"update": "x", "global_step": 5}', '{"update": 7}', "[1]", "null", '{"update": 3, "glo', "\x00"]
    odd += [
        '{"update": 8, "global_step": 8, "charts/episodic_return": "high", "outer/kl": {"a": 1}, "charts/SPS": true}'
    ]
    odd += ['{"update": 9, "global_step": 9, "charts/episodic_return": [1.0, 2.0, 3.0]}']
    text = (path / "metrics.jsonl").read_text().splitlines()
    (path / "metrics.jsonl").write_text("\n".join([*text[:50], *odd, *text[50:]]) + "\n")
    lines = plots.read_lines(path)
    assert (
        len(lines) == len(whole) + 2
        and [line for line in lines if line["update"] not in (8, 9)] == whole[:7] + whole[9:]
    )
    steps, values = plots.series(lines, "charts/episodic_return")
    assert values.shape == (198, 2) and 9 not in steps
    assert plots.draw([path], tmp_path / "a.png") and plots.summarize(path)["final_kl"]["mean"] > 0


def test_the_table_reads_a_plateau(tmp_path):
    """Beside the return, of the last tenth: KL, data per divergence, entropy, explained variance."""
    path = make_run(tmp_path, "a", seeds=2)
    lines = plots.read_lines(path)
    keys = {"outer/kl": "kl", "outer/ddr": "ddr", "losses/entropy": "entropy"}
    keys["losses/explained_variance"] = "explained_variance"
    for i, line in enumerate(lines):
        line |= {key: [float(i), float(i + 2)] for key in keys}
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = plots.table(plots.summarize(path))
    for name in keys.values():  # lines 180 to 199: the mean of both seeds is 190.5
        assert re.search(rf"^final_{name} +190.5 ± ", text, re.M), text


def test_a_branch_begins_where_its_parent_was(args, tmp_path):
    run = run_of(args, 4, 100, checkpoint_every=2)
    with run:
        for update in run.updates():
            run.log(update, {"losses/x": jnp.float32(update)})
            run.save_if_due(update, initial_state())
    child = run_of(args, 1, 10, init_from=f"{run.path}@2")
    assert (run._record["steps_before"], child._record["steps_before"]) == (0, 200)
    child.checkpoints.save(1, initial_state())
    child.checkpoints.wait()
    assert runs.Run(dataclasses.replace(args, init_from=str(child.path)), __file__)._record["steps_before"] == 210


def plot(*flags):
    command = [sys.executable, "-m", "common.run.plots", *map(str, flags)]
    return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])


def test_plots_draws_what_it_is_asked_for_and_answers_what_it_cannot_in_one_line(tmp_path):
    run, out = make_run(tmp_path, "a"), tmp_path / "out.png"
    done = plot(run, "--keys", "charts/SPS", "outer/kl", "--out", out)
    assert done.returncode == 0 and out.exists() and done.stdout == f"{out}\n"
    for flags, said in (
        ([run, "--out", tmp_path / "no/out.png"], f"there is no folder {tmp_path / 'no'}"),
        ([run, "--out", tmp_path / "out.what"], "cannot be written"),
        ([run, "--keys", "outer/kk"], "--keys outer/kk: none of the runs has it; they have charts/SPS"),
        ([tmp_path], "not the folder of a run"),
        ([], "no run given"),
    ):
        done = plot(*flags)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and said in done.stderr, done.stderr


def test_summary_numbers(tmp_path):
    values = np.array([[1.0, 2.0, 4.0], [np.nan, 5.0, np.nan]])
    mean, width = plots.mean_and_ci(values)
    np.testing.assert_allclose(mean, [7 / 3, 5])
    # t(0.975, 2 degrees) = 4.3027; standard deviation 1.5275
    np.testing.assert_allclose(width, [4.3027 * 1.5275 / 3**0.5, np.nan], rtol=1e-4)
    summary = plots.summarize(make_run(tmp_path, "a"))
    assert 85 < summary["final_return"]["mean"] < 105 and len(summary["final_return"]["seeds"]) == 3
    assert summary["final_return"]["ci95"] > 0 and summary["steps_per_second"] == 10**6
    np.testing.assert_allclose(plots.running_mean(np.array([[1.0], [np.nan], [3.0], [5.0]]), 3)[:, 0], [1, 2, 4, 4])


def test_compilation_cache_honours_the_user(monkeypatch):
    before = jax.config.jax_compilation_cache_dir
    try:
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/mine")
        devices.enable_compilation_cache()
        assert jax.config.jax_compilation_cache_dir == before
        monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
        monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
        devices.enable_compilation_cache()
        assert jax.config.jax_compilation_cache_dir == "/xdg/ppo-scaling/jax"
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
