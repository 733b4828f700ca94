"""tune.py on a script whose best flags are known, and once on ppo.py."""

import dataclasses
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("optuna")

# isort: split
import optuna
from conftest import ROOT, refusal, starts, wait_for
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

import tune
from common.run import plots
from tuning import report, trials

pytestmark = pytest.mark.optional


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    shutil.copy(ROOT / "tests" / "fake.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trials, "POLL", 0.02)


def run(*words, trials=4, envs=("CartPole-v1",), **flags):
    """A study of the fake script, in this process. -> it."""
    args = tune.Args("fake.py", env_id=envs, trials=trials, study="s", **flags)
    tune.tune(args, list(words))
    return study(args)


def study(args=None):
    return tune.open_study(args or tune.Args(), "s")


def test_a_study_begins_with_the_defaults_and_finds_better_flags(capsys):
    found = run("--update-epochs", "2", envs=("CartPole-v1", "Pendulum-v1"), trials=8, seed=107, num_seeds=2)
    assert [t.state for t in found.trials] == [TrialState.COMPLETE] * 8
    first = found.trials[0]
    # By hand: at 1e-3 without annealing both environments have 1 - 0.5^2.
    assert first.params["learning_rate"] == 1e-3 and first.params["anneal_lr"] is False
    assert first.params["hidden_sizes"] == "64x64" and "update_epochs" not in first.params
    assert first.value == pytest.approx(0.75, abs=1e-6)
    assert found.best_value >= 0.75
    words = starts()[0]
    for part in (["--env-id", "CartPole-v1"], ["--seed", "107"], ["--num-seeds", "2"], ["--update-epochs", "2"]):
        assert any(words[i : i + 2] == part for i in range(len(words)))
    said = capsys.readouterr().out
    best = found.best_trial
    lr = f"{best.params['learning_rate']:.3g}"
    assert f"python fake.py --env-id CartPole-v1 --total-timesteps 2000 --update-epochs 2 --learning-rate {lr}" in said
    assert "defaults" in said and "# likewise --env-id Pendulum-v1" in said and "seeds 107 to 108" in said
    assert Path("runs/tune/s/slices.png").stat().st_size > 10_000


def test_the_same_command_goes_on_and_repeats_nothing(capsys):
    run(trials=2)
    assert len(starts()) == 2
    found = run(trials=3)
    assert len(starts()) == 3 and len({tuple(words) for words in starts()}) == 3
    capsys.readouterr()
    run(trials=3)
    assert len(starts()) == 3 and len(found.trials) == 3
    shown = capsys.readouterr().out
    tune.tune(tune.Args(from_="s"), [])
    assert capsys.readouterr().out == shown and "3 trials (3 complete)" in shown
    assert len(starts()) == 3


def test_a_study_of_something_else_is_refused():
    run(trials=1)
    for flags, said in (
        ({"seed": 101}, "--study s: was made with another --seed (100)"),
        ({"envs": ("Pendulum-v1",)}, "--study s: was made with another --env-id (CartPole-v1)"),
        ({"search": ("update_epochs=2,4",)}, "has searched update_epochs=1,2,4,8; give --study another name"),
    ):
        assert said in refusal(run, trials=1, **flags)
    assert len(run(trials=2, search=("learning_rate=1e-5:1:log",)).trials) == 2  # ranges may change


def test_a_trial_that_diverges_has_failed_and_the_others_go_on(capsys):
    study().enqueue_trial({"learning_rate": 0.005})  # chance might try none above
    found = run("--break-above", "0.002", trials=8, search=("learning_rate=1e-4:1e-2:log",))
    states = {t.params["learning_rate"] > 0.002: t.state for t in found.trials}
    assert states == {True: TrialState.FAIL, False: TrialState.COMPLETE}
    failed = next(t for t in found.trials if t.state == TrialState.FAIL)
    assert failed.user_attrs["failed"] == "exit code 1: fake.py: not finite"
    assert "8 trials (" in capsys.readouterr().out


@pytest.mark.parametrize("text", [
    "{", '{"eval/x": {"mean": null}}', '{"eval/x": 3}', '{"eval/x": {"mean": 1}, "not_finite_since_update": 7}',
])  # fmt: skip
def test_a_run_without_a_score_has_failed(text):
    Path("summary.json").write_text(text)
    with pytest.raises(trials.Failed):
        trials.outcome(Path(), "eval/x")


def test_a_metric_that_no_run_has_ends_the_study():
    assert "--metric eval/solve_rate: " in (said := refusal(run, trials=3, metric="eval/solve_rate"))
    assert "/summary.json has eval/episodic_return" in said and len(starts()) == 1


def after_good_trials(rate, seconds, defaults=False, **flags):
    """-> what becomes of a trial after four others that had a score of 1.2 from the first rung on."""
    space, good = {"learning_rate": FloatDistribution(1e-9, 1e-1, log=True)}, dict.fromkeys(range(1, 20), 1.2)
    for _ in range(4):
        params, attrs = {"learning_rate": 0.003}, {"values": {"CartPole-v1": 600.0}}
        parts = {"params": params, "distributions": space, "user_attrs": attrs, "intermediate_values": good}
        study().add_trial(optuna.trial.create_trial(value=1.2, **parts))
    study().enqueue_trial({"learning_rate": rate}, user_attrs={"defaults": ["learning_rate"]} if defaults else {})
    search, only = ("learning_rate=1e-9:1e-1:log",), ("learning_rate",)
    return run("--seconds", seconds, trials=5, search=search, only=only, **flags).trials[4]


def test_pruning_stops_a_bad_run_with_sigterm(monkeypatch):
    monkeypatch.setattr(tune, "STARTUP", 3)
    trial = after_good_trials(1e-8, "12")
    folder = Path("runs/tune/s/trial-0004_CartPole-v1")
    assert trial.state == TrialState.PRUNED and max(trial.intermediate_values) >= trials.RUNGS // 4
    assert list((folder / "checkpoints").iterdir()) and not plots.finished(folder)


@pytest.mark.parametrize("startup, flags", [(3, {"pruner": "none"}), (5, {}), (3, {"defaults": True})])
def test_no_other_run_is_pruned(startup, flags, monkeypatch):
    monkeypatch.setattr(tune, "STARTUP", startup)
    trial = after_good_trials(1e-8, "0.8", **flags)
    assert trial.state == TrialState.COMPLETE and bool(trial.intermediate_values) == (flags.get("pruner") != "none")


def test_what_pruners_see_rises_with_each_environment():
    found = run("--seconds", "0.8", trials=1, envs=("CartPole-v1", "Pendulum-v1"))
    seen = found.trials[0].intermediate_values
    expected = {step: 0.75 / 2 if step <= trials.RUNGS else 0.75 for step in seen}
    assert seen == pytest.approx(expected) and len(set(expected.values())) == 2


def started(*words):
    return subprocess.Popen(
        [sys.executable, str(ROOT / "tune.py"), "fake.py", "--env-id", "CartPole-v1", "--study", "s", *words],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_signal_stops_the_runs_and_the_study_goes_on_with_them():
    words = ["--seconds", "3", "--workers", "2", "--trials", "3"]
    process = started(*words)
    wait_for(lambda: len([*Path().glob("runs/tune/s/trial-*/metrics.jsonl")]) == 2)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "the same command goes on" in said and "Traceback" not in said
    for trial in (0, 1):
        assert list(Path().glob(f"runs/tune/s/trial-000{trial}*/checkpoints/*"))
    assert report.counting(study()) == [] and len(starts()) == 2
    run(*words[:2], trials=3, workers=2)
    assert sum("--resume" in words for words in starts()) == 2 and len(starts()) == 5
    done = report.counting(study())
    assert [t.state for t in done] == [TrialState.COMPLETE] * 3
    assert sum("defaults" in t.user_attrs for t in done) == 1


def test_trials_of_a_killed_study_are_taken_up_again():
    process = started("--seconds", "2", "--trials", "2")
    wait_for(lambda: [*Path().glob("runs/tune/s/trial-0000*/metrics.jsonl")])
    process.kill()
    process.wait()
    (log,) = Path().glob("runs/tune/s/trial-0000*.log")
    assert trials.grid.locked(log)  # by the run, which goes on, from its start: before it has a folder
    assert [t.state for t in study().trials] == [TrialState.RUNNING]
    assert report.report(study(), Path("s")) == "study s: 1 trials (1 running); none has a score"
    done = report.counting(run("--seconds", "2", trials=2))
    assert [t.state for t in done] == [TrialState.COMPLETE] * 2


def test_what_the_script_refuses_is_no_trial(monkeypatch):
    monkeypatch.setattr(trials, "REFUSALS", 20)
    found = run("--strict", trials=6, search=("anneal_lr=true,false", "update_epochs=4,8"))
    refused = [t for t in found.trials if "refused" in t.user_attrs]
    assert len(found.trials) - len(refused) == 6 == len(starts())
    assert all(t.params["anneal_lr"] and t.params["update_epochs"] == 8 for t in refused)
    args = tune.Args("fake.py", env_id=("CartPole-v1",), study="t", search=("anneal_lr=true",), only=("anneal_lr",))
    line = refusal(tune.tune, args, ["--update-epochs", "8", "--strict"])
    assert "fake.py refuses 20 combinations in a row: --strict: not --anneal-lr" in line
    assert len(starts()) == 7  # and the defaults, without --anneal-lr


def test_bad_flags_that_only_a_run_finds_end_the_study_at_once():
    assert refusal(run, "--refuse", trials=4) == "--refuse: as you wish"
    assert len(starts()) == 1


def test_a_budget_in_seconds_becomes_whole_updates_at_the_measured_speed():
    found = run(trials=1, budget_seconds=3.0)
    # 1234 steps per second for 3 s are 37.02 updates of 10 environments x 10 steps.
    steps = 10 * found.trials[0].params.get("num_steps", 10)
    assert found.trials[0].user_attrs["steps"] == {"CartPole-v1": 3702 // steps * steps}
    probe, real = starts()
    assert probe[probe.index("--total-timesteps") + 1] == str(4 * steps) and "_probe" in " ".join(probe)
    assert real[real.index("--total-timesteps") + 1] == str(3702 // steps * steps)


def test_workers_share_the_cores_and_the_gpus(monkeypatch):
    monkeypatch.setattr(trials.devices, "number_of_gpus", lambda: 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 6, 7}, raising=False)
    assert trials.shares(1, {}) == [trials.Share(set(), {}, [])]
    one = ["--num-devices", "1"]
    assert [(s.cores, s.words) for s in trials.shares(4, {})] == [({core}, one) for core in (3, 5, 6, 7)]
    assert [(s.cores, s.words) for s in trials.shares(2, {})] == [({3, 6}, []), ({5, 7}, [])]
    assert [(s.cores, s.words) for s in trials.shares(5, {})] == [(set(), one)] * 5
    assert trials.shares(5, {"num_devices": 2})[0].words == []
    monkeypatch.setattr(trials.devices, "number_of_gpus", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert [s.environ for s in trials.shares(2, {})] == [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in ("4", "6")]
    third = trials.shares(3, {})[2].environ
    assert third == {"CUDA_VISIBLE_DEVICES": "4", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.45"}


def test_a_slurm_array_holds_workers_of_one_study(capsys):
    args = tune.Args(
        "fake.py", env_id=("CartPole-v1",), trials=2, workers=3, launch="slurm", search=("num_steps=5,10",)
    )
    tune.tune(args, ["--update-epochs", "2"])
    script = Path(capsys.readouterr().out.split()[1])
    text = script.read_text()
    assert "#SBATCH --array=1-3\n" in text and not Path("starts").exists()
    subprocess.run(["bash", script], check=True, capture_output=True)
    assert len(starts()) == 2 and all("--update-epochs 2" in shlex.join(words) for words in starts())
    assert "--workers 1" in text and f"--study {script.parent.name}" in text


def settle(*words):
    own, passed = tune.split(["fake.py", "--env-id", "CartPole-v1", *words])
    return tune.settle(tune.arguments.parse(tune.Args, "", own), passed)


def test_what_is_searched_is_the_table_without_what_is_fixed():
    task = settle()
    table = [name for name in tune.SPACE if name in {f.name for f in dataclasses.fields(task.kind)}]
    assert list(task.space) == table and "learning_rate" in table and "clip_eps" not in table
    assert "learning_rate" not in settle("--learning-rate", "1e-3").space
    assert list(settle("--only", "anneal-lr", "learning_rate").space) == ["learning_rate", "anneal_lr"]
    space = settle("--search", "update_epochs=1:9", "learning_rate=1e-3,2e-3", "seconds=0:0.5").space
    assert space["update_epochs"] == IntDistribution(1, 9) and space["seconds"] == FloatDistribution(0, 0.5)
    assert space["learning_rate"] == CategoricalDistribution((1e-3, 2e-3)) and set(table) < set(space)
    for name, choices in ((name, getattr(kind, "choices", ())) for name, kind in task.space.items()):
        numbers = [float(str(choice).split("x")[0]) for choice in choices if str(choice)[0].isdigit()]
        assert numbers == sorted(numbers), name  # or an edge would not be one
    with_log = settle("--search", "learning_rate=1e-5:1:log").space["learning_rate"]
    assert with_log == FloatDistribution(1e-5, 1, log=True)
    widths = settle("--search", "hidden_sizes=32,64x32").space
    assert report.as_flags({"hidden_sizes": "64x32"}, widths) == {"hidden_sizes": (64, 32)}
    assert report.as_flags({"learning_rate": 0.00123456}, {"learning_rate": with_log}) == {"learning_rate": 0.00123}
    near = {"gamma": FloatDistribution(0.99, 0.99965)}
    assert report.as_flags({"gamma": 0.999612}, near) == {"gamma": 0.999612}  # three digits of the distance from 1
    assert (
        report.as_flags({"gamma": 0.9999}, near) == {"gamma": 0.99965} and report.rounded(0.95, near["gamma"]) == 0.99
    )


def test_defaults_outside_of_the_space_are_left_to_the_script():
    found = run(trials=3, search=("learning_rate=2e-3:1e-2:log",), only=("learning_rate", "anneal_lr"))
    assert found.trials[0].params == {"anneal_lr": False} and "--learning-rate" not in starts()[0]


BAD = {
    "nope.py --env-id CartPole-v1": "nope.py: no such script; ppo.py, ppo_ewma.py and pqn.py are some",
    "fake.py --env-id CartPole-v1 --learning-rat 3": "unknown: --learning-rat, 3; did you mean --learning-rate?",
    "fake.py --env-id CartPole-v1 --resume x": "--resume: leave it out; tune.py starts and names the runs",
    "fake.py --env-id CartPole-v1 --search clip_eps=0:1": "--search clip_eps=0:1: fake.py has no --clip-eps",
    "fake.py --env-id CartPole-v1 --search learning_rate=2:1": "--search learning_rate=2:1: must be low:high or low",
    "fake.py --env-id CartPole-v1 --search learning_rate=0:1": "--search --learning-rate 0.0: must be",
    "fake.py --env-id CartPole-v1 --search anneal_lr=1,0": "--search anneal_lr=1,0: must be true,false",
    "fake.py --env-id CartPole-v1 --search update_epochs=1.5,2": "--search update_epochs=1.5,2: must be ints",
    "fake.py --env-id CartPole-v1 --search hidden_sizes=64x,8": "--search --hidden-sizes 64x: must be several values",
    "fake.py --env-id CartPole-v1 --seconds 1 --search seconds=1:2": "--search seconds=1:2: --seconds is set as well",
    "fake.py --env-id CartPole-v1 --only clip_eps": "--only clip_eps: is not searched; learning_rate, ",
    "fake.py --env-id CartPole-v1 --num-eval-episodes 0": "--num-eval-episodes 0: --metric eval/episodic_return needs",
    "fake.py --env-id CartPole-v1 --total-timesteps 9 --budget-seconds 3": "--budget-seconds 3 with --total-timesteps",
    "fake.py --env-id CartPole-v1 --metric return": "--metric return: must be a key of summary.json with a mean, such",
    "fake.py --env-id CartPole-v1 --study a/b": "--study a/b: must be the name of a folder in --runs-dir runs/tune",
    "fake.py --env-id CartPole-v1 --runs-dir fake.py": "cannot be opened in fake.py/",
    "fake.py --env-id CartPole-v1 --storage nosuch://x": "cannot be opened in nosuch://x (",
    "--from nope": "--from nope: there is no runs/tune/nope/journal.log",
    f"{ROOT}/stochastic_opt.py --env-id CartPole-v1": "stochastic_opt.py: cannot be tuned; it has no Args with --env",
    f"{ROOT}/ppo.py --env-id CartPol-v1": "--env-id CartPol-v1: no such environment; did you mean CartPole-v1",
}


@pytest.mark.parametrize("command, said", BAD.items())
def test_bad_input_is_refused_in_one_line(command, said):
    own, passed = tune.split(command.split())
    assert said in refusal(lambda: tune.tune(tune.arguments.parse(tune.Args, "", own), passed))
    assert not Path("starts").exists()


def test_without_optuna_it_says_how_to_install_it():
    hidden = "import importlib.util as u, runpy, sys; f = u.find_spec; sys.argv = ['tune.py']; sys.path[0] = '.'; "
    hidden += "u.find_spec = lambda n, *a: None if n == 'optuna' else f(n, *a); runpy.run_path('tune.py', run_name='m')"
    done = subprocess.run([sys.executable, "-c", hidden], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "tune.py: error: optuna is not installed; pip install -r requirements-tune.txt\n"


def test_ppo_is_tuned_as_a_user_would_start_it():
    words = "--env-id CartPole-v1 --trials 1 --workers 2 --total-timesteps 256 --num-envs 8 --num-eval-episodes 4"
    words += " --hidden-sizes 8 --search num_steps=16,32 minibatch_size=32,64 --study s"
    command = [sys.executable, str(ROOT / "tune.py"), str(ROOT / "ppo.py"), *words.split()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "1 trials (1 complete)" in done.stdout and "[1/1] trial" in done.stderr
    for path in Path("runs/tune/s").glob("trial-000?_CartPole-v1"):
        args = json.loads((path / "args.json").read_text())["args"]
        assert (args["seed"], args["num_devices"], args["hidden_sizes"]) == (100, 1, [8])
        assert args["num_steps"] in (16, 32) and args["minibatch_size"] in (32, 64)
        assert list((path / "checkpoints").iterdir())
    found = study().trials[0]
    summary = json.loads(Path("runs/tune/s/trial-0000_CartPole-v1/summary.json").read_text())
    assert found.value == pytest.approx((summary["eval/episodic_return"]["mean"] - 22.4) / (500 - 22.4))
