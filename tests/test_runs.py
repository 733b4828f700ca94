"""A run on disk: resuming, failures, metrics. A toy stands for the training."""

import dataclasses
import functools
import json
import os
import resource
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
from conftest import ROOT, metrics_of, refusal, same, wait_for

from common.run import arguments, checkpoints, devices, early, folder, plots, run as runs, tracking
from common.run.arguments import Positive, RunArgs, Steps, UsageError
from common.run.checkpoints import checkpoint_updates, restore_newest
from common.run.command import SIGNALS, Diverged, main as run_main


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
    """Scores of no player at all. during(update): what happens in the evaluation."""

    def __init__(self, during=lambda update: None):
        self.asked, self.during = [], during

    def scores(self, learner, update, given_up):
        self.asked.append(update)
        self.during(update)
        return None if given_up() else {"eval/episodic_return": np.float32(update)}


def train(args, stop_after=None, player=None, signals=()):
    """The loop as the scripts write it. `stop_after` kills the process, as far as files show; signals: in update 3."""
    args = runs.begin(args, __file__)
    run = runs.Run(args, __file__)
    state = run.restore(initial_state())
    with run:
        run.evaluate_if_due(run.done, player, state)
        for update in run.updates():
            state, metrics = step(state)
            for number in signals if update == 3 else ():
                os.kill(os.getpid(), number)
            run.log(update, metrics)
            run.save_if_due(update, state)
            if update == stop_after:
                break
            run.evaluate_if_due(update, player, state)
    if stop_after is None:
        run.finish()
    return run.path, state


def run_of(args, num_updates, steps_per_update=1, **changed):
    """A run of so many updates of so many steps, whatever fits into a flag."""
    sizes = {"num_envs": min(steps_per_update, 2**31 - 1), "total_timesteps": num_updates * steps_per_update}
    run = runs.Run(dataclasses.replace(args, **sizes, **changed), __file__)
    run.steps_per_update, run.num_updates = steps_per_update, num_updates
    return run


def go(run, rows, ends=True, then=lambda update: None):
    """Log these metrics, one row per update, save, and do what comes then."""
    with run:
        for update, row in enumerate(rows, run.done + 1):
            run.log(update, row)
            run.save_if_due(update, initial_state())
            then(update)
    if ends:
        run.finish()
    return run.path


def losses(count):
    return [{"losses/x": jnp.float32(update)} for update in range(1, count + 1)]


@pytest.fixture
def args(tmp_path):
    return Args(runs_dir=str(tmp_path / "runs"))


@pytest.fixture
def heard():
    """All signals as a fresh process has them, whatever runs the tests, and so again after it."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def updates_of(path):
    return [line["update"] for line in plots.read_lines(path)]


def record_of(path, **changed):
    """args.json of a run, in which this is changed for good."""
    record = json.loads((path / "args.json").read_text()) | changed
    (path / "args.json").write_text(json.dumps(record))
    return record


def test_folder_holds_what_is_needed_to_repeat_the_run(args):
    path, _ = train(args)
    record = record_of(path)
    assert path.name.startswith("suite-Toy-v0__test_runs__1__")
    assert record["args"]["learning_rate"] == 0.1 and record["script"] == "test_runs"
    assert record["versions"]["jax"] == jax.__version__ and record["devices"]
    assert (path / "source.py").read_text() == Path(__file__).read_text()
    summary = json.loads((path / "summary.json").read_text())
    assert summary["final_return"]["mean"] == 10 and summary["global_step"] == 1000
    assert summary["checkpoint"] == str(path / "checkpoints/10")
    assert (path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert len({runs.Run(args, __file__).path for _ in range(3)}) == 3  # in the same second


def test_usage_errors_of_the_folder(args, tmp_path):
    named, outside = (dataclasses.replace(args, run_name=name) for name in ("mine", "../mine"))
    path = runs.Run(named, __file__).path
    (tmp_path / "file").write_text("")
    for function in (runs.begin, runs.Run):  # also where another one makes it in between
        said = refusal(function, named, __file__)
        assert f"--run-name mine: {path} exists" in said and f"--resume {path}" in said
        for place in ("file", "file/below", "x" * 300):
            said = refusal(function, dataclasses.replace(args, runs_dir=str(tmp_path / place)), __file__)
            assert said.startswith("--runs-dir ") and place in said and "cannot make" in said
    assert "--run-name '../mine': must be a plain folder name" in refusal(runs.begin, outside, __file__)


def test_usage_errors_of_resume(args, tmp_path):
    path, _ = train(args)

    def refused(match, script=__file__, **given):
        with pytest.raises(UsageError, match=match):
            runs.begin(Args(**given), script)

    refused("--resume .*: not the folder of a run", resume=str(tmp_path))
    refused("made by test_runs.py, this is pqn.py", resume=str(path), script="pqn.py")
    refused("with --seed, --learning-rate: .*--init-from", resume=str(path), learning_rate=0.2, seed=3)
    typed = arguments.parse(Args, "", ["--resume", str(path), "--seed", str(Args().seed)])  # at its default
    kept = record_of(path)["args"]
    record_of(path, args=kept | {"seed": 5})
    with pytest.raises(UsageError, match="with --seed: a resumed run keeps its own flags"):
        runs.begin(typed, __file__)
    record_of(path, args=kept | {"new_flag": 1})
    refused("this script has no --new-flag; it was made by test_runs.py", resume=str(path))
    record_of(path, args=kept)
    (path / "checkpoints/10").rename(path / "checkpoints/part")
    refused("there is no checkpoint", resume=str(path))
    (path / "args.json").write_text('{"args"')
    refused("not the folder of a run", resume=str(path))


@pytest.mark.parametrize("signals", ["TERM", "INT", "HUP HUP", "TERM HUP"])
def test_a_signal_saves_and_ends_with_its_code(heard, args, capfd, signals):
    """A terminal that closes sends SIGHUP twice, a logout SIGTERM and then SIGHUP: they are one wish."""
    numbers = [getattr(signal, f"SIG{name}") for name in signals.split()]
    with pytest.raises(SystemExit) as end:
        train(dataclasses.replace(args, run_name="x"), signals=numbers)
    path = Path(args.runs_dir) / "x"
    assert end.value.code == 128 + numbers[0]
    assert checkpoint_updates(path / "checkpoints") == updates_of(path)[-1:] == [3]
    assert updates_of(path) == [1, 2, 3] and plots.read_lines(path)[-1]["global_step"] == 300
    output, errors = capfd.readouterr()
    assert "stopping after this update, saving ..." in errors and "final_return" in output
    assert f"the newest checkpoint is that of update 3; to go on: python {sys.argv[0]} --resume {path}\n" in errors
    assert restore_newest(path, [3], initial_state(), "", partial=False)[0].update == 3


def test_a_second_ctrl_c_ends_a_run_at_once(heard, args, monkeypatch, capsys):
    """In the middle of an update, whatever is not saved then."""
    begun = []

    def train_interrupted(args):
        with runs.Run(args, __file__) as run:
            for update in run.updates():
                begun.append(update)
                os.kill(os.getpid(), signal.SIGINT)
                begun.append("stopping")
                os.kill(os.getpid(), signal.SIGINT)
                pytest.fail("goes on")

    monkeypatch.setattr(sys, "argv", ["toy.py", "--runs-dir", args.runs_dir])
    with pytest.raises(SystemExit) as end:
        run_main(train_interrupted, Args)
    assert end.value.code == 130 and capsys.readouterr().err.endswith("toy.py: interrupted\n")
    assert begun == [1, "stopping"]


def test_handlers_are_given_back_and_skipped_in_threads_and_under_nohup(heard, args):
    before = signal.getsignal(signal.SIGTERM)
    train(args)
    assert signal.getsignal(signal.SIGTERM) is before
    done = []
    thread = threading.Thread(target=lambda: done.append(train(args)))
    thread.start()
    thread.join()
    assert done
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with run_of(args, 1):
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


TOY = f"""
import dataclasses, sys, time
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
import test_runs
from common.run.command import main

@dataclasses.dataclass(frozen=True)
class Args(test_runs.Args):
    total_timesteps: test_runs.Steps = int(sys.argv.pop()) * 2**20
    num_envs: int = 2**20

step = test_runs.step
test_runs.step = lambda state: (time.sleep(0.01), step(state))[1]
main(test_runs.train, Args)
"""


@pytest.mark.slow
def test_one_process_at_a_time_is_at_work_on_a_run(tmp_path):
    """Its end, however violent, ends the lock."""
    (tmp_path / "toy.py").write_text(TOY)
    command = [sys.executable, "toy.py", "--runs-dir", "runs", "--run-name", "x", "--checkpoint-every", "5", "100000"]
    process, path = subprocess.Popen(command, cwd=tmp_path), tmp_path / "runs/x"
    try:
        wait_for(lambda: checkpoint_updates(path / "checkpoints") or process.poll() is not None)
        with pytest.raises(UsageError, match=f"--resume {path}: another process is at work on this run"):
            train(Args(resume=str(path)))
    finally:
        process.kill()
    process.wait()
    train(Args(resume=str(path)), stop_after=updates_of(path)[-1] + 3)


@pytest.mark.slow
@pytest.mark.parametrize("line", [
    "(RUN 2>&1; echo $? > code) | head -n 1",  # who goes away after a line
    "RUN >&- 2>&-; echo $? > code",  # at once
    "RUN > /dev/full 2> /dev/full; echo $? > code",
])  # fmt: skip
def test_a_run_outlives_its_readers(tmp_path, line):
    (tmp_path / "toy.py").write_text(TOY)
    shell = ["sh", "-c", line.replace("RUN", f"{sys.executable} toy.py --runs-dir runs --run-name x 60")]
    subprocess.run(shell, cwd=tmp_path, timeout=120, capture_output="head" in line)
    wait_for((tmp_path / "code").exists)
    assert (tmp_path / "code").read_text() == "0\n"
    assert checkpoint_updates(tmp_path / "runs/x/checkpoints") == [60]
    assert updates_of(tmp_path / "runs/x") == list(range(1, 61)) and plots.finished(tmp_path / "runs/x")


def test_a_letter_that_a_streams_encoding_lacks_is_escaped():
    speak = "import sys\nfrom common.run.tracking import guard_output\nguard_output()\n"
    speak += "for _ in range(100):\n    print('η 0.5', flush=True)\n    print('η 0.5', file=sys.stderr)"
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", speak], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == "\\u03b7 0.5\n" * 100


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


def test_flags_that_do_nothing_are_named(args, capsys):
    @dataclasses.dataclass(frozen=True)
    class WithLevels(Args):
        num_levels: int = 512

    given = dict(wandb_group="x", eval_every=3, num_eval_episodes=0, runs_dir=args.runs_dir)
    runs.begin(WithLevels(num_levels=7, **given), __file__)
    assert sorted(capsys.readouterr().err.splitlines()) == [
        "note: --eval-every has no effect with --num-eval-episodes 0",
        "note: --num-levels has no effect on suite/Toy-v0",
        "note: --wandb-group has no effect without --track",
    ]
    runs.begin(WithLevels(track=True, **given | {"num_eval_episodes": 4}), __file__)
    assert not capsys.readouterr().err


def test_what_is_another_version_is_warned_of_and_the_run_goes_on(args, capsys):
    path, _ = train(dataclasses.replace(args, checkpoint_every=4), stop_after=7)
    (path / "source.py").write_text("# as it was\n")
    record_of(path, versions=record_of(path)["versions"] | {"jax": "0.1", "gone": "3"})
    train(Args(resume=str(path)))
    here = f"jax 0.1 (here {jax.__version__}), gone 3 (here None)"
    script = f"another version of test_runs.py; its own is {path}/source.py"
    assert f"warning: {path} was started with {here}, {script}: numbers may differ\n" in capsys.readouterr().err
    assert updates_of(path)[-1] == 10 and (path / "source.py").read_text() == "# as it was\n"


@pytest.mark.parametrize("killed, asked", [(5, [5, 10]), (7, [10]), (10, [10])])
def test_an_evaluation_that_a_kill_left_undone_is_made_when_the_run_goes_on(args, killed, asked):
    """After the checkpoint of update 5 or 10 and before its evaluation, or after both of 5."""
    args = dataclasses.replace(args, eval_every=5, checkpoint_every=5, num_eval_episodes=1)
    straight, resumed = Player(), Player()
    expected, _ = train(dataclasses.replace(args, run_name="straight"), player=straight)
    path, _ = train(args, stop_after=killed, player=Player())
    train(Args(resume=str(path)), player=resumed)
    assert straight.asked == [5, 10] and resumed.asked == asked
    assert metrics_of(path) == metrics_of(expected) and plots.finished(path)


@pytest.mark.parametrize("at, every, saved", [(10, 5, 10), (5, 10, 6)])
def test_a_signal_ends_an_evaluation_that_resume_makes(heard, args, at, every, saved):
    """In the last, update 5 is not saved: it is evaluated."""
    args = dataclasses.replace(args, eval_every=5, checkpoint_every=every, num_eval_episodes=1)
    expected, _ = train(dataclasses.replace(args, run_name="straight"), player=Player())
    interrupt = lambda update: update == at and os.kill(os.getpid(), signal.SIGINT)  # noqa: E731
    with pytest.raises(SystemExit) as end:
        train(dataclasses.replace(args, run_name="x"), player=Player(interrupt))
    path = expected.with_name("x")
    assert end.value.code == 128 + signal.SIGINT
    assert plots.finished(expected) and not plots.finished(path)
    assert checkpoint_updates(path / "checkpoints")[-1] == saved == updates_of(path)[-1]
    resumed = Player()
    train(Args(resume=str(path)), player=resumed)
    assert resumed.asked == [10] and metrics_of(path) == metrics_of(expected) and plots.finished(path)


def test_a_video_that_a_signal_prevents_is_left_to_resume(heard, args):
    run = run_of(args, 1, capture_video=True)
    with run:
        run.log(1, losses(1)[0])
        run.save_if_due(1, initial_state())
        run._on_signal(signal.SIGTERM, None)
        run.film_if_asked(lambda: pytest.fail("films"))
    with pytest.raises(SystemExit):
        run.finish()
    assert not plots.finished(run.path)


def test_a_branch_begins_where_its_parent_was(args):
    parent = go(run_of(args, 4, 100, checkpoint_every=2), losses(4))
    child = run_of(args, 1, 10, init_from=f"{parent}@2")
    assert (record_of(parent)["steps_before"], child._record["steps_before"]) == (0, 200)
    checkpoints.save(child.checkpoints, 1, initial_state())
    assert runs.Run(dataclasses.replace(args, init_from=str(child.path)), __file__)._record["steps_before"] == 210
    evaluation = dataclasses.replace(args, evaluate=str(child.path), num_eval_episodes=4)
    player, state = Player(), types.SimpleNamespace()
    of = runs.Run.evaluation(evaluation, __file__, player, state, 1, child.path, child._record)
    assert (of._record["steps_before"], of.steps_per_update) == (200, 10)
    assert runs.Run.evaluation(evaluation, __file__, player, state)._record["steps_before"] == 0  # others' weights
    again = dataclasses.replace(Args(), resume=str(child.path), init_from=f"{parent}/")
    assert folder.settle(again, __file__).init_from == f"{parent}@2"
    with pytest.raises(UsageError, match="with --init-from: a resumed run keeps its own flags"):
        folder.settle(dataclasses.replace(again, init_from=str(child.path)), __file__)


def test_an_interrupt_is_one_line_wherever_it_hits(capsys, monkeypatch):
    """In JAX's callback of the garbage collector, from which Python can only print it, or in an import."""

    class Collected:
        def __del__(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "unraisablehook", early._unraisable)
    with pytest.raises(KeyboardInterrupt):
        Collected()
        time.sleep(5)
    error = ImportError("numpy failed to import")
    error.__context__ = KeyboardInterrupt()
    for kind in (error, KeyboardInterrupt()):
        early._uncaught(type(kind), kind, None)
    assert capsys.readouterr().err == "interrupted\n" * 2
    early._uncaught(ImportError, ImportError("no such module"), None)
    assert "ImportError: no such module" in capsys.readouterr().err


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
    line = refusal(train, Args(resume=str(path)))
    assert line == f"--resume {path}: cannot be written to (No space left on device)"
    assert (path / "metrics.jsonl").read_text() == lines and not (path / "metrics.jsonl.part").exists()


def test_a_deleted_folder_is_made_again_by_the_next_checkpoint(args, capsys):
    run = run_of(args, 9, checkpoint_every=3)
    go(run, losses(9), ends=False, then=lambda update: update == 4 and shutil.rmtree(run.path))
    assert capsys.readouterr().err.count("warning: cannot write") == 1
    assert checkpoint_updates(run.path / "checkpoints")[-1] == 9 and updates_of(run.path) == [5, 6, 7, 8, 9]
    assert record_of(run.path) == json.loads(json.dumps(run._record))


@pytest.fixture
def limit():
    """limit(size): no file can grow over this size. limit(): any can."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size=before[0]: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_does_not_stop_training(args, capsys, monkeypatch, limit):
    """Files cannot grow over 20 kB for a while: the checkpoint fails, the training does not."""
    monkeypatch.setattr(runs, "PAUSE", 0)
    big = {"x": jax.random.normal(jax.random.key(0), (100_000,))}
    run = run_of(args, 4, checkpoint_every=1)
    with run:
        for update, row in enumerate(losses(4), 1):
            run.log(update, row)
            limit(20_000) if update in (1, 4) else limit()
            run.save_if_due(update, big)
    limit()
    assert checkpoint_updates(run.path / "checkpoints") == [2, 3] and updates_of(run.path) == [1, 2, 3, 4]
    assert capsys.readouterr().err.count("could not be saved") == 1 + 1 + runs.RETRIES
    with pytest.raises(SystemExit) as end:
        run.finish()
    assert end.value.code == 1 and not plots.finished(run.path)  # --resume, or an experiment, makes the last checkpoint


def test_lines_that_a_full_disk_refuses_are_written_when_there_is_room(args, capsys, limit):
    run = run_of(args, 5)
    with run:
        run.write(1, {"a": 1})
        limit((run.path / "metrics.jsonl").stat().st_size + 9)
        for update in (2, 3):
            run.write(update, {"a": update})
        limit()
        assert updates_of(run.path) == [1] and (run.path / "metrics.jsonl").read_text().endswith("}\n")
        run.write(4, {"a": 4})
        assert updates_of(run.path) == [1, 2, 3, 4]
        limit(9)
        run.write(5, {"a": 5})
        limit()
    run.finish()
    assert [line["a"] for line in plots.read_lines(run.path)] == [1, 2, 3, 4, 5]
    assert capsys.readouterr().err.count("warning: cannot write") == 1


def test_the_last_checkpoint_is_tried_again_until_there_is_room(args, monkeypatch, limit):
    monkeypatch.setattr(runs.time, "sleep", lambda seconds: limit())
    run = run_of(args, 1)
    with run:
        run.log(1, losses(1)[0])
        limit(1000)
        run.save_if_due(1, initial_state())
    run.finish()
    assert checkpoint_updates(run.path / "checkpoints") == [1] and plots.finished(run.path)


def test_an_evaluation_that_fails_costs_its_scores_only(args, capsys):
    def fail(update):
        raise RuntimeError("out of memory")

    run, found = run_of(args, 3, eval_every=1, num_eval_episodes=4), []
    evaluate = lambda update: found.append(run.evaluate_if_due(update, Player(fail), None))  # noqa: E731
    go(run, losses(3), ends=False, then=evaluate)
    assert found == [{}] * 3
    with pytest.raises(SystemExit) as end:
        run.finish()
    assert end.value.code == 1 and checkpoint_updates(run.path / "checkpoints") == [3]
    assert not plots.finished(run.path)  # so that --resume makes the last one
    assert capsys.readouterr().err.count("RuntimeError: out of memory") == 3
    alone = runs.Run(dataclasses.replace(args, run_name="alone", num_eval_episodes=4), __file__, only=(2, 100, 0))
    with pytest.raises(RuntimeError, match="out of memory"), alone:
        alone.evaluate_if_due(2, Player(fail), None)


class Slow:
    """An array that is not there yet, and notes when it is fetched."""

    def __init__(self, value, fetched):
        self.value, self.fetched = value, fetched

    def is_ready(self):
        return False

    def __array__(self, dtype=None, copy=None):
        self.fetched.append(self.value)
        return np.float32(self.value)


def test_log_fetches_one_update_late_and_writes_at_once(args):
    fetched, seen = [], []
    run = run_of(args, 3, 2**31)
    with run:
        for update in (1, 2, 3):
            run.log(update, {"losses/x": Slow(update, fetched)})
            seen.append(list(dict.fromkeys(fetched)))
            assert updates_of(run.path) == seen[-1]
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
    assert tracking.pool(rows)["outer/ddr"] == pytest.approx(3 / (1 / 100 + 1 / 200))  # all transitions / all KL
    rounded = [*rows, {"outer/ddr": np.array(-1e12)}]  # a KL rounded below 0
    assert tracking.pool(rounded)["outer/ddr"] == pytest.approx(4 / (1 / 100 + 1 / 200))
    assert np.isnan(tracking.pool([{"outer/ddr": np.array(np.nan)}] * 2)["outer/ddr"])
    assert np.isinf(tracking.pool([{"outer/ddr": np.array(np.inf)}] * 2)["outer/ddr"])
    assert not np.isfinite(tracking.pool([{"losses/x": np.array(x)} for x in (np.inf, 1.0)])["losses/x"])


def test_speed_leaves_out_what_is_not_an_update(args, monkeypatch):
    clock = [0.0]

    def takes(seconds):
        clock[0] += seconds

    monkeypatch.setattr(runs, "time", types.SimpleNamespace(perf_counter=lambda: clock[0]))
    run = run_of(args, 4, 100, checkpoint_every=3, eval_every=2, num_eval_episodes=1)
    monkeypatch.setattr(checkpoints, "save", lambda *_: takes(20))
    takes(30)  # compiling
    with run:
        for update, row in enumerate(losses(4), 1):
            takes(0.5)
            run.log(update, row)
            run.save_if_due(update, None)
            run.evaluate_if_due(update, Player(lambda update: takes(10)), None)
            with run.aside():
                takes(40)  # a search for levels
                run.write(update, {"search/x": np.float32(1)})
    lines = [line for line in plots.read_lines(run.path) if "charts/SPS" in line]
    # The updates alone, without the 30, 10, 20 and 40 seconds beside them. Each is over when it is logged.
    assert [line["charts/SPS"] for line in lines] == [200] * 4


@pytest.mark.parametrize("when", ["at the save", "one update later", "at the end"])
def test_nan_is_never_saved(args, when):
    bad = {"at the save": 6, "one update later": 5, "at the end": 10}[when]
    run = run_of(args, 11, checkpoint_every=3)
    finite = [{"losses/x": jnp.float32(1), "finite": jnp.array([True, update < bad])} for update in range(1, 12)]
    with pytest.raises(Diverged) as diverged:
        go(run, finite[:bad] if when == "at the end" else finite)
    newest = 9 if when == "at the end" else 3
    assert max(checkpoint_updates(run.path / "checkpoints")) == newest
    said = str(diverged.value)
    assert said.startswith(f"update {bad}: ") and f"--init-from {run.path}@{newest}" in said
    lines = plots.read_lines(run.path)
    assert lines[-1]["update"] == bad and "finite" not in lines[-1]


def test_a_run_that_goes_on_after_nan_says_so_at_its_end(args, capsys):
    path = go(run_of(args, 3, halt_on_nan=False), [{"finite": jnp.bool_(update < 2)} for update in (1, 2, 3)])
    said = capsys.readouterr()
    assert "since update 2 parameters or losses are not finite" in said.err
    assert "not_finite_since_update  2" in said.out
    assert json.loads((path / "summary.json").read_text())["not_finite_since_update"] == 2


def test_the_first_update_that_is_not_finite_has_no_finite_ones_in_its_line(args):
    run, found = run_of(args, 20, log_every=5), [jnp.float32(1 if update < 4 else jnp.nan) for update in range(1, 21)]
    with pytest.raises(Diverged):
        go(run, [{"losses/x": loss, "finite": jnp.isfinite(loss)} for loss in found])
    before, last = plots.read_lines(run.path)
    assert (last["update"], last["losses/x"]) == (4, None) and (before["update"], before["losses/x"]) == (3, 1)


def fake_wandb(monkeypatch, init):
    module = types.ModuleType("wandb")
    module.Settings = lambda **options: options
    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)


@pytest.mark.parametrize("error", [None, RuntimeError("no\nnetwork"), SystemExit(1)])
def test_wandb_that_hangs_or_fails_stops_nothing(args, monkeypatch, capsys, error):
    over = threading.Event()

    def init(**_):
        if error:
            raise error
        over.wait()

    fake_wandb(monkeypatch, init)
    monkeypatch.setattr(tracking.Tracker.close, "__defaults__", (0.2,))
    path, _ = train(dataclasses.replace(args, track=True))
    over.set()
    assert len(plots.read_lines(path)) == 10
    assert capsys.readouterr().err.count("warning: wandb:" if error else "`wandb sync") == 1


def test_wandb_gets_every_line_in_order(args, monkeypatch):
    calls, settings = [], {}

    def init(**given):
        settings.update(given)
        log = lambda values, step: calls.append((step, values))  # noqa: E731
        return types.SimpleNamespace(log=log, finish=lambda: calls.append("finished"))

    fake_wandb(monkeypatch, init)
    groups = {"wandb_group": "seeds", "wandb_tags": ("a", "b"), "wandb_job_type": "train"}
    run = run_of(args, 2, 2**31, track=True, num_seeds=2, **groups)
    go(run, [{"charts/x": jnp.array([1.0, np.nan]), "losses/y": jnp.array([1.0, 3.0])}] * 2)
    assert [call[0] for call in calls[:2]] == [2**31, 2**32] and calls[-1] == "finished"
    values = calls[0][1]
    assert values["charts/x"] == 1 and values["seed_0/charts/x"] == 1 and "seed_1/charts/x" not in values
    assert values["losses/y"] == 2 and "seed_0/losses/y" not in values
    record, config = record_of(run.path), settings["config"]
    assert settings["id"] == record["wandb_id"] and settings["resume"] == "allow"
    assert config["learning_rate"] == 0.1 and "jax" in config["versions"] and config["script"] == "test_runs"
    assert config["command"] == record["command"] and config["git_commit"] == record["git_commit"]
    assert (settings["group"], settings["tags"], settings["job_type"]) == ("seeds", ("a", "b"), "train")
    assert settings["mode"] == "offline"


def test_wandb_offline_and_video(args, monkeypatch):
    """Without a flag WANDB_MODE says so."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = run_of(dataclasses.replace(args, wandb_mode=None), 2, 10, track=True, capture_video=True)
    with run:
        for update, row in enumerate(losses(2), 1):
            run.log(update, row)
        run.film_if_asked(lambda: {"eval/first": lambda: [np.full((16, 16, 3), 20 * i, np.uint8) for i in range(5)]})
    (gif,) = run.path.glob("videos/*.gif")
    assert gif.name == "eval-first.gif"
    (folder,) = run.path.glob("wandb/offline-run-*")
    assert folder.name.endswith(run._record["wandb_id"]) and list(folder.glob("*.wandb"))
    assert list(folder.glob("files/media/videos/**/*.gif"))


def test_gpus_are_those_that_jax_can_use(tmp_path, monkeypatch):
    there = lambda: devices.number_of_gpus(tmp_path)  # noqa: E731
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: name == "jax_cuda13_plugin" or None)
    (tmp_path / "dev").mkdir()
    for count, name in ((0, "nvidiactl"), (1, "nvidia0"), (2, "nvidia1")):
        (tmp_path / "dev" / name).touch()
        assert there() == count
    for visible, count in (("1", 1), ("GPU-8932f937,GPU-8f1c", 2), ("", 0), ("-1", 0), ("0,1,2", 2)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert there() == count
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: None)
    assert there() == 0


@pytest.mark.parametrize("flags", [None, "--xla_gpu_autotune_level=0"])
def test_xlas_flags_of_users_stay(args, monkeypatch, flags):
    monkeypatch.setattr(devices, "_make_cpu_devices", lambda count: None)
    monkeypatch.delenv("XLA_FLAGS")
    if flags:
        monkeypatch.setenv("XLA_FLAGS", flags)
    devices.start(args)
    assert os.environ["XLA_FLAGS"] == " ".join(filter(None, (flags, devices.PATIENCE)))
