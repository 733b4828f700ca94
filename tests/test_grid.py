"""Grids of runs: each is run once, goes on where it was broken off, and what fails does not take others with it."""

import functools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest
from conftest import ROOT, starts, wait_for

from experiments import grid
from experiments.grid import Cell

RUNS = Path("runs")


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    """The fake script is in the current folder, its runs in `runs`."""
    shutil.copy(ROOT / "tests" / "fake.py", tmp_path)
    monkeypatch.chdir(tmp_path)


def cell(name, source=None, **flags):
    flags = {"updates": 10, **flags}
    return Cell("fake", name, tuple(flags.items()), 10, source, 5 if source else 0)


def run(*cells, jobs=2):
    said = []
    return grid.run_missing(cells, RUNS, jobs, said.append), said


def started():
    """The names of the runs that were started, in order; a resumed one with a +."""
    name_of = lambda words: words[words.index("--run-name") + 1]  # noqa: E731
    return [Path(words[1]).name + "+" if words[0] == "--resume" else name_of(words) for words in starts()]


def broken_off(name, *updates):
    """A run without summary, with these checkpoints."""
    (RUNS / name / "checkpoints").mkdir(parents=True)
    (RUNS / name / "args.json").write_text(json.dumps({"--updates": "10"}))
    for update in updates:
        (RUNS / name / "checkpoints" / str(update)).mkdir()


def test_a_missing_run_is_run_once(monkeypatch, tmp_path):
    """Also from another folder than that of the scripts."""
    monkeypatch.setattr(grid, "ROOT", tmp_path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert grid.state(cell("a"), RUNS) == "missing"
    failed, said = run(cell("a"))
    assert failed == [] and started() == ["a"] and grid.state(cell("a"), RUNS) == "finished"
    assert len(said) == 1 and said[0].startswith("[1/1] a: ")
    failed, said = run(cell("a"), cell("b"))
    assert failed == [] and started() == ["a", "b"] and "[1/1] b: " in said[0]


def test_an_interrupted_run_goes_on_with_its_own_flags():
    broken_off("a", 5)
    for summary in ('{"updates": 4}', "{}", '{"upda'):
        (RUNS / "a/summary.json").write_text(summary)
        assert grid.state(cell("a"), RUNS) == "interrupted"
    (RUNS / "a/source.py").write_text("")  # which nobody is at work on
    assert run(cell("a", lr=0.1))[0] == []
    assert starts() == [["--resume", "runs/a"]] and grid.state(cell("a"), RUNS) == "finished"


def test_a_run_without_a_whole_checkpoint_is_started_afresh():
    broken_off("a")
    (RUNS / "a/checkpoints/part").mkdir()
    assert grid.state(cell("a"), RUNS) == "missing"
    assert run(cell("a"))[0] == []
    assert started() == ["a"] and {p.name for p in (RUNS / "a/checkpoints").iterdir()} == {"10"}


def test_a_failing_run_is_reported_and_the_others_still_run():
    failed, said = run(cell("a"), cell("bad", fail=1), cell("c"), cell("d"), jobs=1)
    assert failed == ["bad: exit code 1: fake.py: not finite"]
    command = "python fake.py --updates 10 --fail 1 --runs-dir runs --run-name bad"
    assert Path("runs/bad.log").read_text() == f"{command}\na page\nof its log\nfake.py: not finite\n"
    assert started() == ["a", "bad", "c", "d"]
    assert [grid.state(cell(name), RUNS) for name in ("a", "c", "d")] == ["finished"] * 3
    assert [line.split()[0] for line in said] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    assert "failed: bad: exit code 1" in said[1]


def test_what_starts_from_a_failed_run_is_not_started_and_says_so():
    bad, good = cell("bad", fail=1), cell("good")
    failed, _ = run(cell("after-bad", bad), cell("after-good", good))
    assert failed == ["bad: exit code 1: fake.py: not finite", "after-bad: not started, bad is not finished"]
    assert sorted(started()) == ["after-good", "bad", "good"]


def test_sources_run_first_and_once():
    first = cell("first", seconds=0.3)
    second = cell("second", first)
    cells = [cell("third", second), cell("x", first), cell("y", first), first]
    assert [c.depth for c in (first, second, cells[0])] == [0, 1, 2]
    assert [c.name for c in grid.with_sources(cells)] == ["first", "second", "x", "y", "third"]
    assert run(*cells)[0] == []
    names = started()
    assert names[0] == "first" and sorted(names) == ["first", "second", "third", "x", "y"]
    assert names.index("second") < names.index("third")
    (words,) = [w for w in starts() if "third" in w]
    assert words[words.index("--init-from") + 1] == "runs/second@5"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes are bound to cores on Linux only")
def test_each_job_keeps_to_its_cores_and_leaves_ours_as_they_were(recwarn):
    mine = os.sched_getaffinity(0)
    jax.devices()  # from here on JAX warns of a fork that runs Python in the child: it may deadlock
    run(*(cell(name, seconds=0.5) for name in "ab"), jobs=2)
    kept = sorted(json.loads(path.read_text()) for path in RUNS.glob("*/cores.json"))
    assert kept == sorted(sorted(share) for share in grid.shares(2))
    assert os.sched_getaffinity(0) == mine
    assert not [warning for warning in recwarn if "fork" in str(warning.message)]


def test_what_starts_from_a_run_that_another_process_makes_waits_for_it():
    source = cell("source", seconds=2)
    RUNS.mkdir()
    other = subprocess.Popen([sys.executable, *grid.command(source, RUNS)[1:]])
    wait_for(starts)
    failed, said = run(cell("after", source), cell("other"), cell("after-other", cell("other")))
    assert any("source: left out, another process is running it" in line for line in said)
    assert failed == [] and started() == ["source", "other", "after-other", "after"]  # meanwhile it does the rest
    assert other.wait() == 0 and grid.state(cell("after"), RUNS) == "finished"


def test_a_run_that_another_runner_has_finished_meanwhile_is_not_repeated():
    def finish_b(line):
        if "a: " in line:
            broken_off("b", 10)
            (RUNS / "b/summary.json").write_text('{"updates": 10}')

    assert grid.run_missing([cell("a"), cell("b"), cell("c")], RUNS, 1, finish_b) == []
    assert started() == ["a", "c"]


@pytest.mark.parametrize("number, whole_group", [
    (signal.SIGINT, True),  # as on a terminal
    pytest.param(signal.SIGTERM, False, marks=pytest.mark.slow),
    pytest.param(signal.SIGHUP, 2, marks=pytest.mark.slow),  # a closed terminal and its shell
])  # fmt: skip
def test_a_signal_ends_the_runs_and_they_save(number, whole_group):
    """A terminal sends Ctrl-C to the runs, too, and SIGHUP twice; a second one would kill who is about to save."""
    code = "from pathlib import Path; from experiments import grid; from experiments.grid import Cell\n"
    code += "flags = (('updates', 10), ('seconds', 60))\n"
    code += "grid.run_missing([Cell('fake', n, flags, 10) for n in 'abc'], Path('runs'), 2, print)"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    heard = functools.partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)  # also where tests run under nohup
    flags = dict(env=env, start_new_session=True, stderr=subprocess.PIPE, preexec_fn=heard)
    runner = subprocess.Popen([sys.executable, "-c", code], **flags)
    try:
        wait_for(lambda: len(starts()) == 2)
        began = time.time()
        (os.killpg if whole_group else os.kill)(runner.pid, number)
        if whole_group == 2:
            time.sleep(0.1)
            os.killpg(runner.pid, number)
        _, error = runner.communicate(timeout=20)
    finally:
        runner.kill()
    assert time.time() - began < 10 and b"KeyboardInterrupt" in error and runner.returncode != 0
    assert sorted(started()) == ["a", "b"]
    assert [grid.state(cell(name), RUNS) for name in "abc"] == ["interrupted", "interrupted", "missing"]
    assert json.loads(Path("runs/a/summary.json").read_text())["updates"] < 10  # it got to its end


def tasks(script):
    """The commands of an array, from its script."""
    return script.partition("<<'RUNS'\n")[2].partition("\nRUNS\n")[0].splitlines()


def test_slurm_gets_one_array_for_each_depth():
    first, second = cell("first"), cell("second")
    after = [cell(name, first, lr=rate) for name, rate in (("x", 0.1), ("y", 0.2), ("z", 0.3))]
    assert grid.write_slurm([*after, second], RUNS, "fig-1a") == [
        "job0=$(sbatch --parsable runs/fig-1a-0.sbatch)",
        "job1=$(sbatch --parsable --dependency=afterany:$job0 runs/fig-1a-1.sbatch)",
    ]
    assert {p.name for p in RUNS.iterdir()} == {"fig-1a-0.sbatch", "fig-1a-1.sbatch"}
    for depth, cells in enumerate([[first, second], after]):
        script = Path(f"runs/fig-1a-{depth}.sbatch").read_text()
        expected = [[sys.executable, *grid.command(c, RUNS)[1:]] for c in cells]
        assert [shlex.split(line) for line in tasks(script)] == expected
        assert script.startswith("#!/bin/bash\n") and f"#SBATCH --array=1-{len(cells)}\n" in script
        assert re.search(r"^#SBATCH --output=runs/fig-1a-%A_%a.out$", script, re.M)


def test_slurm_gets_only_what_is_missing():
    first = cell("first")
    run(first)
    broken_off("x", 5)
    (line,) = grid.write_slurm([cell("x", first), cell("y", first)], RUNS, "fig-1a")
    assert line == "job1=$(sbatch --parsable runs/fig-1a-1.sbatch)"
    lines = tasks(Path("runs/fig-1a-1.sbatch").read_text())
    assert lines[0] == f"{sys.executable} fake.py --resume runs/x"
    assert len(lines) == 2 and "--init-from runs/first@5" in lines[1]
    assert not Path("runs/fig-1a-0.sbatch").exists()


def test_each_task_of_the_array_runs_its_own_command(monkeypatch, tmp_path):
    """Also with a path that the shell would take apart, if a run was broken off before its first checkpoint, and if the
    array is written anew after Slurm has taken its copy of the script."""
    monkeypatch.setattr(sys.modules[__name__], "RUNS", Path("runs of $(mine)"))
    broken_off("a")
    grid.write_slurm([cell("a", note="it's"), cell("b", note="two words"), cell("c")], RUNS, "fig-1a")
    copy = shutil.copy("runs of $(mine)/fig-1a-0.sbatch", tmp_path / "slurm_script")
    grid.write_slurm([cell("c")], RUNS, "fig-1a")
    for task, name in (("2", "b"), ("1", "a")):
        subprocess.run(["bash", copy], env={**os.environ, "SLURM_ARRAY_TASK_ID": task}, check=True, cwd=tmp_path)
        assert started()[-1] == name
    assert starts()[0][2:4] == ["--note", "two words"] and starts()[1][2:4] == ["--note", "it's"]
    assert [grid.state(cell(name), RUNS) for name in "abc"] == ["finished", "finished", "missing"]


def test_what_follows_a_finished_run_is_made_next_on_the_same_cores():
    told = []

    def then(done):
        told.append((done.name, grid.state(done, RUNS)))
        return None if done.name.endswith("+") else cell(f"{done.name}+")

    assert grid.run_missing([cell("a"), cell("b")], RUNS, 1, print, then) == []
    assert started() == ["a", "a+", "b", "b+"]
    assert told == [(name, "finished") for name in started()]
    (failed,) = grid.run_missing([cell("c", fail=True)], RUNS, 1, print, then)
    assert failed.startswith("c: exit code 1") and len(told) == 4
