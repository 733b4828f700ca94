"""doctor.py: curves whose cause is built in, logs of other trainers, branches, and the gain of single updates."""

import fcntl
import json
import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from conftest import Bandit
from test_grid import tasks

import doctor
import ppo
import ppo_ewma
import ppo_rnn
import pqn
import sapg
import stochastic_opt
from clinic import advice, cases, diagnosis, how_many, levers, records
from common import envs
from common.run import checkpoints
from common.run.arguments import UsageError, parse
from common.run.run import main as run_main
from experiments import grid

LINES = 200
X = np.linspace(0, 1, LINES)
HEALTHY = {
    "outer/own_gain": 0.02, "outer/fresh_gain": 0.01, "outer/kl": 0.01, "losses/entropy": 0.8,
    "losses/explained_variance": 0.8, "plasticity/dormant_neurons": 0.05, "losses/policy_loss": 0.0,
}  # fmt: skip


def course(returns, noise=0.3, seed=0, updates=400, **values):
    """A course of these returns and of HEALTHY's values, or others: a number, a curve, or a pair of first and last."""
    rng = np.random.default_rng(seed)
    table = {diagnosis.STEP: np.arange(1, len(returns) + 1) * 2048.0}
    table[diagnosis.RETURN] = np.asarray(returns) + noise * rng.normal(size=len(returns))
    for key, value in (HEALTHY | {key.replace("__", "/"): value for key, value in values.items()}).items():
        value = np.linspace(*value, len(returns)) if isinstance(value, tuple) else value
        table[key] = value * (1 + 0.05 * rng.normal(size=len(returns)))
    return diagnosis.Course(table[diagnosis.STEP], table, updates)


RISE = 10 * (1 - np.exp(-5 * X))  # to a plateau at 10


# The curve


@pytest.mark.parametrize("seed", range(5))
def test_states_of_curves(seed):
    state = lambda returns, **kw: diagnosis.trend(course(returns, seed=seed, **kw)).state  # noqa: E731
    assert state(10 * X) == "climbing"
    assert state(3 * X, noise=0.5) == "climbing"
    assert state(np.minimum(20 * X, 10)) == "still"
    assert state(np.zeros(LINES)) == "still"  # it never rose
    assert state(np.where(X < 0.8, 20 * X, 2)) == "fell"
    assert state(10 * X, updates=12) == "few updates"
    assert state(10 * X[:10]) == "few updates"


@pytest.mark.parametrize("seed", range(3))
def test_a_run_that_never_got_above_its_start_may_have_fallen_or_come_back(seed):
    """As runs that begin from a checkpoint. Small changes of large returns are none."""
    trend = lambda returns, noise: diagnosis.trend(course(returns, noise, seed))  # noqa: E731
    fell = trend(500 - 480 * X, 0.1)
    assert fell.state == "fell" and fell.change == pytest.approx(-480 * 17 / 20, abs=3)  # from three blocks to three
    back = trend(2 + 8 * np.abs(2 * X - 1), 0.02)
    assert back.state == "climbing" and back.change - back.error > 5
    assert [trend(500 + rise * X, 0.1).state for rise in (-5, 0, 0.1)] == ["still"] * 3


@pytest.mark.parametrize("since", [0.3, 0.5, 0.7])
@pytest.mark.parametrize("seed", range(3))
def test_since_when_it_stands_still(since, seed):
    c = course(np.minimum(X / since, 1) * 10, seed=seed)
    t = diagnosis.trend(c)
    assert t.state == "still" and abs(c.steps[t.since] / c.steps[-1] - since) < 0.1
    assert t.level == pytest.approx(10, abs=0.3) and t.best == pytest.approx(10, abs=0.3)
    assert abs(t.change) < 0.5 and 0 < t.error < 0.5


def test_the_interval_of_a_straight_line():
    """Against its known change, over many draws: 95 % of the intervals contain it."""
    rng, hits = np.random.default_rng(0), 0
    for _ in range(1000):
        change, width = diagnosis.line_through(3 * np.linspace(0, 1, 12) + rng.normal(size=12))
        hits += abs(change - 3) < width
    assert 930 < hits < 970


def test_a_loss_that_is_not_finite_means_diverged():
    c = course(RISE)
    c.values["losses/policy_loss"][-3:] = np.nan
    assert diagnosis.diagnose(c)[0] == "diverged"


# The cause


@pytest.mark.parametrize(
    "label, returns, noise, values",
    [
        ("climbing", 10 * X, 0.3, {}),
        # A sure rise is one, whatever its updates look like; one that noise might have made is not.
        ("climbing", 10 * X, 0.3, {"outer__own_gain": 0.2, "outer__fresh_gain": -0.06}),
        ("step", RISE + 0.6 * X, 0.3, {"outer__own_gain": 0.2, "outer__fresh_gain": -0.06}),
        ("no gain", RISE, 0.3, {"outer__fresh_gain": -0.0005}),
        # On either side of each threshold.
        ("step", RISE, 0.3, {"outer__own_gain": 0.1, "outer__fresh_gain": -0.013}),
        ("no gain", RISE, 0.3, {"outer__own_gain": 0.1, "outer__fresh_gain": -0.008}),
        ("no gain", RISE, 0.3, {"outer__own_gain": 0.1, "outer__fresh_gain": 0.008}),
        ("unknown", RISE, 0.3, {"outer__own_gain": 0.1, "outer__fresh_gain": 0.013}),
        ("settled", RISE, 0.3, {"outer__own_gain": 0.0035, "outer__fresh_gain": 0.0}),
        ("no gain", RISE, 0.3, {"outer__own_gain": 0.0045, "outer__fresh_gain": 0.0}),
        ("critic", RISE, 0.3, {"losses__explained_variance": 0.15}),
        ("unknown", RISE, 0.3, {"losses__explained_variance": 0.25}),
        ("network", RISE, 0.3, {"plasticity__dormant_neurons": 0.55}),
        ("unknown", RISE, 0.3, {"plasticity__dormant_neurons": 0.45}),
        ("step", np.zeros(LINES), 2.0, {"outer__own_gain": 0.2, "outer__fresh_gain": -0.06, "outer__kl": 12.0}),
        ("settled", RISE, 0.01, {"outer__own_gain": 0.001, "outer__fresh_gain": 0.0}),
        ("exploration", np.full(LINES, -200.0), 0.0, {}),
        ("slow", np.zeros(LINES), 0.3, {"outer__kl": 1e-7, "losses__entropy": 1.09, "outer__own_gain": 1e-4}),
        ("critic", RISE, 0.3, {"losses__explained_variance": 0.02}),
        ("network", RISE, 0.3, {"plasticity__dormant_neurons": (0.1, 0.95)}),
        ("unknown", RISE, 0.3, {}),
        ("fell", np.where(X < 0.8, 20 * X, 2), 0.3, {}),
    ],
)  # fmt: skip
def test_causes(label, returns, noise, values):
    assert [diagnosis.diagnose(course(returns, noise, seed, **values))[0] for seed in range(3)] == [label] * 3


def test_a_gaussian_policy_may_have_a_negative_entropy():
    values = {"losses__entropy": (1.4, -2.0), "outer__own_gain": 0.1, "outer__fresh_gain": -0.02}
    assert diagnosis.diagnose(course(RISE, **values))[0] == "step"
    flat = course(0 * X, losses__entropy=(-1.50, -1.51), outer__kl=1e-6)
    assert diagnosis.diagnose(flat)[0] == "slow"


def test_one_value_has_no_error():
    c = course(RISE, updates=2)
    c.values["outer/fresh_gain"][:] = np.nan
    c.values["outer/fresh_gain"][-1] = 0.01
    label, _, n = diagnosis.diagnose(c)
    (first, *_) = doctor.evidence(n, label)
    assert "nan" not in first and "0.01 on fresh ones" in first


# Runs and logs


def write_run(folder, c, **saved):
    """A run's folder with this course, as ppo.py would have left it."""
    args = {"env_id": "Breakout-MinAtar", "num_envs": 64, "minibatch_size": 256, "total_timesteps": 409600} | saved
    folder.mkdir(parents=True)
    (folder / "args.json").write_text(json.dumps({"script": "ppo", "args": args}))
    plain = lambda x: None if np.isnan(x) else float(x)  # noqa: E731
    with open(folder / "metrics.jsonl", "w") as file:
        for i, step in enumerate(c.steps):
            line = {"update": i + 1, "global_step": int(step)}
            file.write(json.dumps(line | {k: plain(v[i]) for k, v in c.values.items() if k != diagnosis.STEP}) + "\n")
    return folder


def call(capsys, *words):
    """python doctor.py ... in this process. -> its exit code, stdout, stderr."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["doctor.py", *map(str, words)])
        code = 0
        try:
            run_main(doctor.main, doctor.Args)
        except SystemExit as end:
            code = end.code
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_report_of_a_run(tmp_path, capsys):
    run = write_run(tmp_path / "run", course(RISE, outer__fresh_gain=-0.0005))
    code, out, _ = call(capsys, run)
    assert code == 0 and len(out.splitlines()) <= 14 and (run / "doctor.png").stat().st_size > 10_000
    assert "stands still since" in out and "next to nothing on fresh transitions" in out and "0.02 on its own" in out
    found = json.loads(call(capsys, run, "--json")[1])
    assert found["label"] == "no gain" and found["seeds"][0]["state"] == "still"


@pytest.mark.parametrize("label", doctor.CAUSES)
@pytest.mark.parametrize("script", [ppo, ppo_ewma])
def test_every_command_that_it_advises_is_understood(label, script):
    saved = {"env_id": "CartPole-v1", "num_envs": 64, "minibatch_size": 256, "vf_coef": 0.0, "activation": "relu"}
    saved |= {"run_name": "x", "num_minibatches": 8, "hidden_sizes": [32, 32], "norm_obs": True, "seed": 3}
    tries = advice.what_to_try(label, "runs/x", script.__name__, saved)
    assert tries or label == "climbing"
    commands = [shlex.split(text.partition("   #")[0]) for text in tries if text.startswith("python")]
    assert commands or label == "climbing"
    for _, file, *words in commands:
        args = parse({f"{m.__name__}.py": m.Args for m in (doctor, ppo, ppo_ewma)}[file], "", words)
        if file != "doctor.py":
            assert args.env_id == "CartPole-v1" and args.hidden_sizes == (32, 32) and args.norm_obs and args.seed == 3
            assert args.run_name is None and args.num_envs in (64, 512)


@pytest.mark.parametrize(
    "steps, minibatch, advised", [(32, 2048, 256), (32, 1024, 128), (32, 512, None), (31, 31, None)]
)
def test_few_gradient_steps_per_update_are_told_to_a_settled_policy(steps, minibatch, advised):
    """With four epochs: 4 and 8 gradient steps are few, 16 are not; one of 31 is small enough."""
    saved = {"env_id": "CartPole-v1", "num_envs": 64 if steps == 32 else 1, "num_steps": steps, "update_epochs": 4}
    tries = advice.what_to_try("settled", "runs/x", "ppo", saved | {"minibatch_size": minibatch})
    told = [text for text in tries if "gradient steps per update are few" in text]
    assert len(told) == (advised is not None)
    assert all(f"--minibatch-size {advised}" in text for text in told)
    # from the checkpoint, 256 gradient steps: minibatches of 1/64 for 4 steps, of 1/32 for 8
    freed = [text for text in tries if "--init-from" in text and "--ent-coef" not in text]
    assert len(freed) == len(told) and all("--minibatch-size 32 " in text for text in freed)


@pytest.mark.parametrize(
    "envs_, minibatch, advised",
    [(64, 32, 256), (64, 64, 512), (64, 128, None), (4096, 128, None), (8, 8, 64), (4, 8, None)],
)
def test_many_gradient_steps_on_few_transitions_are_told_to_an_update_without_gain(envs_, minibatch, advised):
    """With four epochs of 32 steps: minibatches of at most 64 are small, 128 gradient steps and more are many."""
    saved = {"env_id": "CartPole-v1", "num_envs": envs_, "num_steps": 32, "update_epochs": 4}
    tries = advice.what_to_try("no gain", "runs/x", "ppo", saved | {"minibatch_size": minibatch})
    told = [text for text in tries if "transitions are many" in text]
    assert len(told) == (advised is not None)
    assert all(f"--minibatch-size {advised}" in text for text in told)
    (more,) = [text for text in tries if f"--num-envs {8 * envs_} " in text]  # as many gradient steps, if they are many
    assert f"--minibatch-size {advised or minibatch} " in more
    assert any("--learning-rate" in text for text in tries) == (advised is not None)


def test_no_smaller_minibatches_are_advised_than_were_tried():
    saved = {"env_id": "CartPole-v1", "num_envs": 8, "num_steps": 32, "minibatch_size": 128, "update_epochs": 1}
    tries = advice.what_to_try("settled", "runs/x", "ppo", saved)  # an eighth would have 16 transitions, 256 steps one
    _, bonus, finer, envs_ = tries
    assert "--minibatch-size 32 " in finer and all("--minibatch-size 128 " in text for text in (bonus, envs_))
    saved = {"env_id": "CartPole-v1", "num_envs": 3 * 2**9, "num_steps": 32, "num_minibatches": 3, "update_epochs": 1}
    _, _, freed, *_ = advice.what_to_try("settled", "runs/x", "ppo", saved)  # 3 minibatches of 16,384
    assert "--minibatch-size 256 " in freed and "192 gradient steps" in freed  # 64 parts; 85 do not divide it


def commands(label, script, **saved):
    tries = advice.what_to_try(label, "runs/x", script.__name__, {"env_id": "CartPole-v1", "num_envs": 64} | saved)
    return [shlex.split(text.partition("   #")[0]) for text in tries if text.startswith("python")]


def test_what_needs_a_checkpoint_is_advised_only_if_there_is_one(tmp_path, capsys):
    saved = {"env_id": "CartPole-v1", "num_envs": 64, "minibatch_size": 2048, "update_epochs": 4, "ent_coef": 0.01}
    for label in ("settled", "no gain", "unclear"):
        resumable, fresh = (" ".join(advice.what_to_try(label, "runs/x", "ppo", saved, has)) for has in ([1], []))
        needs = ("--init-from", "--intervene  ", "--how-many")
        assert any(flag in resumable for flag in needs) and not any(flag in fresh for flag in needs)
    for label, flag in (("settled", "--ent-coef 0.05"), ("settled", "--minibatch-size 32 "), ("critic", "CartPole")):
        tries = advice.what_to_try(label, "runs/x", "ppo", saved | {"vf_coef": 0.0}, [])
        assert any(flag in text and "from scratch" in text for text in tries)
    assert not any("--vf-coef 0.0" in text for text in tries)  # nothing else helps a critic that is not trained
    run = write_run(tmp_path / "run", course(RISE, outer__own_gain=0.0, outer__fresh_gain=0.0))
    _, without, _ = call(capsys, run)
    (run / "checkpoints" / "400").mkdir(parents=True)
    _, with_one, _ = call(capsys, run)
    assert "the policy has settled" in without and "--init-from" not in without
    assert f"--init-from {run}" in with_one


def test_single_updates_are_not_advised_for_environments_on_the_host():
    assert next("--how-many" in words for words in commands("no gain", ppo))
    assert not any("--how-many" in words for words in commands("no gain", ppo, env_id="gymnasium/CartPole-v1"))


def test_branches_are_advised_if_a_quarter_of_the_run_holds_an_update_of_theirs():
    found = {
        updates: any("--intervene" in words for words in commands("unclear", ppo, total_timesteps=2048 * updates))
        for updates in (31, 32)
    }
    assert found == {31: False, 32: True}


def test_measurements_that_cannot_move_anything_are_not_advised():
    """At the end of --anneal-lr no learning rate is left; without a checkpoint the branches start from scratch."""

    def told(anneal_lr, *checkpoints):  # of 100 updates
        saved = {"env_id": "CartPole-v1", "num_envs": 64, "total_timesteps": 204800, "anneal_lr": anneal_lr}
        tries = advice.what_to_try("no gain", "runs/x", "ppo", saved, checkpoints)
        return [text.partition("   #")[0].split()[2:] for text in tries if text.startswith("python doctor.py")]

    assert told(False, 50, 100) == [["runs/x", "--how-many"], ["runs/x", "--intervene"]]
    assert told(True, 50, 80) == [["runs/x", "--how-many"], ["runs/x", "--intervene"]]
    assert told(True, 50, 90, 100) == [["runs/x@90", "--how-many"], ["runs/x@90", "--intervene"]]
    assert told(True, 91, 100) == told(True) == [["runs/x", "--intervene", "--fresh"]]


@pytest.mark.parametrize(
    "saved, updates, checkpoints, alive, advised",
    [
        ({"total_timesteps": 2048 * 20}, 20, [20], False, "--total-timesteps 409600"),  # 20 updates are few
        ({}, 20, [20], True, "let it go on: it is at update 20 of 200"),
        ({}, 20, [20], False, "python ppo.py --resume "),
        ({}, 20, [], False, "--checkpoint-every 20 "),
        ({"log_every": 20}, 200, [200], False, "from scratch, with a line for each update"),
        ({"log_every": 20}, 20, [20], True, "from scratch, with a line for each update"),  # it will not be enough
    ],
)
def test_what_a_log_that_is_too_short_needs(tmp_path, monkeypatch, capsys, saved, updates, checkpoints, alive, advised):
    run = write_run(tmp_path / "run", course(10 * X[:updates]), **saved)
    if "log_every" in saved:
        lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
        (run / "metrics.jsonl").write_text("".join(lines[19::20]))
    for update in checkpoints:
        (run / "checkpoints" / str(update)).mkdir(parents=True)
    monkeypatch.setattr(grid, "alive", lambda folder: alive and folder == run)
    code, out, _ = call(capsys, run)
    assert code == 0 and "too few updates" in out
    (line,) = [line for line in out.splitlines() if line.startswith("  1. ")]
    assert advised in line.replace("   #", " ") and "  2. " not in out


@pytest.mark.parametrize("ended", [0, 4])
def test_a_run_in_which_hardly_an_episode_ended_is_told_so(tmp_path, capsys, ended):
    """In none of 200 updates of 32 steps, or in four, as where all environments reach a limit of 1,600 together."""
    c = course(10 * X)
    c.values[diagnosis.RETURN][[i for i in range(LINES) if not ended or (i + 1) % 50]] = np.nan
    _, out, _ = call(capsys, write_run(tmp_path / "run", c))
    tries = out.partition("try, in this order:\n")[2].splitlines()[:-1]
    assert all(f"episodes ended in {ended} lines only" in line for line in tries[:-1])
    assert ["--stagger-resets 1600" in line for line in tries] == [True, False, False][-2 - bool(ended) :]
    assert "--time-limit 213 " in tries[-2] and "--total-timesteps 4096000" in tries[-1]


def test_a_policy_that_has_hardly_moved_may_need_a_larger_step():
    moved, unmoved = (diagnosis.diagnose(course(RISE, losses__entropy=e))[2] for e in ((1.0, 0.2), (1.0, 0.98)))
    for n, told in ((None, False), (moved, False), (unmoved, True)):
        saved = {"env_id": "CartPole-v1", "learning_rate": 1e-3}
        first, *more = advice.what_to_try("settled", "runs/x", "ppo", saved, [1], None, n)
        assert first.startswith("nothing, if") and ("--learning-rate 0.01" in more[0]) == told


@pytest.mark.parametrize("start, now, told", [(1.1, 0.31, True), (1.1, 0.35, False), (1.1, -0.1, False)])
def test_an_entropy_bonus_is_advised_where_nothing_is_gained_and_the_entropy_is_gone(start, now, told):
    n = diagnosis.diagnose(course(RISE))[2]._replace(first_entropy=start, entropy=now)
    saved = {"env_id": "CartPole-v1", "ent_coef": 0.01}
    tries = advice.what_to_try("no gain", "runs/x", "ppo", saved, [1], None, n)
    bonus = [i for i, line in enumerate(tries) if "--ent-coef 0.05" in line and "--init-from runs/x" in line]
    (step,) = (i for i, line in enumerate(tries) if "--clip-eps" in line)
    assert bonus == [step - 1] * told


def test_no_advice_is_the_runs_own_command_and_none_is_given_twice():
    for label, saved in (("critic", {"norm_reward": True}), ("fell", {"clip_eps": 0.0}), ("critic", {})):
        args = ppo.Args(env_id="CartPole-v1", num_envs=64, **saved)
        assert advice.command("ppo", args, {}) not in commands(label, ppo, **saved)
    assert any("--norm-reward" in words for words in commands("critic", ppo))
    found = commands("no gain", ppo, clip_eps=0.0, minibatch_size=32)
    assert len({tuple(words) for words in found}) == len(found) and sum("--learning-rate" in x for x in found) == 1


def test_where_the_kl_sets_the_learning_rate_another_kl_is_advised():
    for label, factor in (("diverged", 0.1), ("slow", 10.0)):
        first, *_ = commands(label, sapg, num_blocks=4, adaptive_lr_kl=0.01)
        args = parse(sapg.Args, "", first[2:])
        assert args.adaptive_lr_kl == pytest.approx(0.01 * factor)
        assert args.learning_rate == pytest.approx(sapg.Args().learning_rate * factor)


def test_larger_minibatches_are_advised_if_there_are_enough_for_the_chunks():
    saved = {"env_id": "CartPole-v1", "num_envs": 64, "num_steps": 32, "minibatch_size": 64, "update_epochs": 4}
    for chunks, larger in ((8, 0), (4, 1)):
        tries = advice.what_to_try("no gain", "runs/x", "ppo", saved | {"num_rollout_chunks": chunks})
        more = [text for text in tries if "--minibatch-size 512" in text and "--num-envs 512" in text]
        assert len(more) == 1  # as many gradient steps with 8 x the environments, in any case
        assert sum("--minibatch-size 512" in text for text in tries) == 1 + larger


CSV = {
    "CleanRL": ("global_step,charts/episodic_return,losses/approx_kl", "{step},{ret},0.01"),
    "Stable-Baselines3": ("time/total_timesteps,rollout/ep_rew_mean,train/entropy_loss", "{step},{ret},-0.7"),
    "rsl_rl": ("Step,Train/mean_reward", "{step},{ret}"),
    "other": ("t,score", "{step},{ret}"),
}


@pytest.mark.parametrize("kind", CSV)
def test_logs_of_other_trainers(tmp_path, capsys, kind):
    header, row = CSV[kind]
    rows = [row.format(step=2048 * i, ret=value) for i, value in enumerate(np.minimum(20 * X, 10))]
    rows.insert(5, row.replace("{ret}", "").format(step=1))  # a line without a return
    file = tmp_path / "progress.csv"
    file.write_text("\n".join([header, *rows]) + "\n")
    columns = ["--columns", "global_step=t", "charts/episodic_return=score"] if kind == "other" else []
    code, out, _ = call(capsys, file, *columns)
    assert code == 0 and "stands still since " in out and "no outer/own_gain in this log" in out
    assert file.with_suffix(".doctor.png").exists()
    if kind == "Stable-Baselines3":
        assert "entropy 0.7" in out


def test_a_log_whose_losses_and_returns_are_in_lines_of_their_own(tmp_path, capsys):
    """As CleanRL's wide export, and not in order."""
    rows = []
    for i, value in enumerate(10 * X):
        rows += [f"{2048 * i},{value + 0.01 * (i % 3)},,", f"{2048 * i + 1},,0.01,{0.8 - 0.001 * i}"]
    file = tmp_path / "wide.csv"
    titles = "global_step,charts/episodic_return,losses/policy_loss,losses/entropy"
    file.write_text("\ufeff" + "\n".join([titles, *reversed(rows)]) + "\n")
    code, out, _ = call(capsys, file)
    assert code == 0 and "408k steps" in out and "it climbs" in out and "entropy 0.6" in out


@pytest.mark.parametrize(
    "last, label", [("nan", "diverged"), ("inf", "diverged"), ("0.1", "climbing"), ("", "climbing")]
)
def test_a_loss_of_nan_is_told_from_an_empty_cell(tmp_path, last, label):
    rows = [f"{2048 * i},{value + 0.01 * (i % 3)},0.1," for i, value in enumerate(10 * X)]
    rows.append(f"{2048 * len(rows)},10,{last},")
    file = tmp_path / "log.csv"
    titles = "global_step,charts/episodic_return,losses/policy_loss,outer/update_norm"  # of which nothing is known
    file.write_text("\n".join([titles, *rows]) + "\n")
    (course,) = diagnosis.of_csv(file, {})
    assert diagnosis.diagnose(course)[0] == label


def test_what_is_not_known_is_no_evidence(tmp_path, capsys):
    """A log without gains, and the first line of a run, which has no fresh gain."""
    file = tmp_path / "short.csv"
    file.write_text("global_step,charts/episodic_return\n1,2\n")
    code, out, _ = call(capsys, file)
    assert code == 0 and "nan" not in out
    numbers = diagnosis.diagnose(course(RISE))[1:][1]
    (line, *_) = doctor.evidence(numbers._replace(own=0.5, fresh=np.nan), "unknown")
    assert "an update gains 0.5 on its own transitions" in line and "nan" not in line


def test_a_picture_without_a_suffix_is_a_png(tmp_path, capsys):
    run = write_run(tmp_path / "run", course(RISE))
    code, out, _ = call(capsys, run, "--out", tmp_path / "picture")
    assert code == 0 and (tmp_path / "picture.png").exists() and f"picture: {tmp_path / 'picture.png'}" in out


def test_a_log_whose_name_has_dollar_signs_is_drawn(tmp_path, capsys):
    file = tmp_path / "a$b^$.csv"
    file.write_text("global_step,charts/episodic_return\n1,2\n")
    assert call(capsys, file)[0] == 0 and (tmp_path / "a$b^$.doctor.png").exists()


@pytest.mark.parametrize("name", ["run", "log.csv"])
def test_a_report_whose_picture_cannot_be_written_is_printed_all_the_same(tmp_path, capsys, name):
    if name == "run":
        write_run(tmp_path / name, course(RISE))
        (tmp_path / name / "doctor.png").mkdir()
    else:
        (tmp_path / name).write_text("global_step,charts/episodic_return\n1,2\n")
        (tmp_path / "log.doctor.png").mkdir()
    code, out, err = call(capsys, tmp_path / name)
    assert code == 0 and "likely: " in out and "picture: " not in out
    assert "doctor.png: cannot be drawn (Is a directory)" in err and len(err.strip().splitlines()) == 1
    (tmp_path / "there.png").mkdir()
    code, _, err = call(capsys, tmp_path / name, "--out", tmp_path / "there.png")
    assert code == 2 and "there.png: cannot be drawn (Is a directory)" in err


def test_the_line_of_a_search_is_none_of_training(tmp_path):
    run = write_run(tmp_path / "run", course(RISE, losses__policy_loss=0.1))
    before = diagnosis.of_run(run)
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"update": 401, "global_step": 409600, "search/learnability": 0.2}\n')
    (old,), (new,) = before, diagnosis.of_run(run)
    assert len(new.steps) == len(old.steps) and diagnosis.trend(new) == diagnosis.trend(old)


@pytest.mark.parametrize("com, advised, lever", [(0.0, 64.0, 16 * 16.0), (2.0, 32.0, 32.0)])
def test_a_centre_of_mass_of_nought_is_raised_too(com, advised, lever):
    """With COM 0 the clip does nothing; 16 gradient steps is how far PPO's own proximal policy is behind here."""
    saved = {"env_id": "CartPole-v1", "num_envs": 64, "minibatch_size": 256, "update_epochs": 4, "com": com}
    first = advice.what_to_try("step", "runs/x", "ppo_ewma", saved)[0].partition("   #")[0]
    assert parse(ppo_ewma.Args, "", shlex.split(first)[2:]).com == advised
    known = levers.levers_of(ppo_ewma.Args(**saved), fresh=True)
    assert known["com"].flags == {"com": lever}


@pytest.mark.parametrize("label", ["few updates", "no gain", "fell"])
def test_flags_that_follow_from_others_are_not_repeated(label):
    """A tenth of the steps for exploration, and as many levels in a batch of a search as divide an update's."""
    saved = asdict(pqn.Args(num_envs=64, minibatch_size=256, total_timesteps=1_024_000))
    for text in advice.what_to_try(label, "runs/x", "pqn", saved):
        if text.startswith("python pqn.py"):
            args = parse(pqn.Args, "", shlex.split(text.partition("   #")[0])[2:])
            assert args.exploration_timesteps == args.total_timesteps // 10
    saved = asdict(ppo_rnn.Args(num_steps=128, sequence_length=32))
    for text in advice.what_to_try(label, "runs/x", "ppo_rnn", saved):
        if text.startswith("python ppo_rnn.py"):
            assert parse(ppo_rnn.Args, "", shlex.split(text.partition("   #")[0])[2:]).sequence_length == 32
    saved = {"search_batch": 1024, "num_envs": 2048}
    for text in advice.what_to_try(label, "runs/x", "sfl_kinetix", saved):
        assert "--search-batch" not in text


def test_a_report_of_seeds_that_differ_is_of_those_that_agree(tmp_path, capsys):
    """Two seeds stand still since half of the run, the third climbs to the end."""
    seeds = [course(np.minimum(20 * X, 10), seed=s, outer__fresh_gain=0.0) for s in (0, 1)] + [course(10 * X)]
    run = write_run(tmp_path / "run", seeds[0], num_seeds=3)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for i, line in enumerate(lines):
        line |= {key: [float(c.values[key][i]) for c in seeds] for key in seeds[0].values if key != diagnosis.STEP}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, out, _ = call(capsys, run)
    assert "stands still since 1" in out and "(2 of 3 seeds): return " in out
    assert "other seeds: 1 climbing" in out
    # A seed that diverges has stopped them all, if --halt-on-nan is on.
    lines[-1]["losses/policy_loss"][2] = None
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, out, _ = call(capsys, run)
    assert "no longer finite (1 of 3 seeds; other seeds: 2 no gain)" in out and "--learning-rate" in out


def test_bad_input_is_one_line(tmp_path, capsys):
    empty = tmp_path / "empty"
    empty.mkdir()
    short = write_run(tmp_path / "short", course(RISE[:1]))
    nothing = write_run(tmp_path / "nothing", course(RISE[:0]))
    broken = write_run(tmp_path / "broken", course(RISE))
    (broken / "metrics.jsonl").write_text(
        '{"update": 1, "global_step": 64, "charts/episodic_return": null}\nnonsense\n'
    )
    foreign, blank = tmp_path / "a.csv", tmp_path / "b.csv"
    foreign.write_text("step,score\n1,2\n")
    typo = tmp_path / "c.csv"
    typo.write_text("global_step,charts/episodic_return,entropy\n1,2,3\n")
    blank.write_text("")
    for words, said in (
        ([], "no run given"),
        ([tmp_path / "nowhere"], "not the folder of a run"),
        ([empty], "not the folder of a run"),
        ([nothing], "no line of training"),
        ([tmp_path / "no.csv"], "cannot be read"),
        ([foreign], "which column is global_step?"),
        ([foreign, "--columns", "global_step=x", "charts/episodic_return=score"], "no column x"),
        ([foreign, "--columns", "global_step"], "must be KEY=NAME"),
        ([blank], "it has no rows"),
        ([short, "--intervene"], "it has no checkpoint"),
        ([short, "--how-many"], "it has no checkpoint"),
        ([short, "--how-many", "--intervene"], "give one of the two"),
        ([short, "--how-many", "--half", "1"], "between 0 and 1"),
        ([short, "--how-many", "--out", "a.png"], "--out a.png: is the picture of the diagnosis, which --how-many"),
        ([short, "--budget", "100"], "--budget 100: has no effect without --intervene"),
        ([short, "--intervene", "--over", "com"], "--over com: has no effect without --how-many"),
        ([short, "--columns", "a=b"], "--columns a=b: is for a .csv file"),
        ([typo, "--columns", "losses/entropy=entorpy"], "--columns losses/entropy=entorpy: "),
        ([foreign, "--columns", "global_step=step", "return=score"], "--columns return=score: return is not read; "),
        ([typo, "--columns", "losses/entrpy=entropy"], "is not read; there are global_step, charts/episodic_return, "),
        ([short, foreign], "one run at a time"),
    ):
        code, _, err = call(capsys, *words)
        assert code == 2 and said in err and len(err.strip().splitlines()) == 1, (words, err)
    for run in (short, broken):
        code, out, _ = call(capsys, run)
        assert code == 0 and "too few updates, or lines of the log, to tell" in out


# How many environments


def test_the_critical_size_is_found_again():
    rng = np.random.default_rng(0)
    points = []
    for envs_, own in ((256, 0.03), (1024, 0.02), (4096, 0.015), (16384, 0.012)):
        fresh = own * envs_ / (envs_ + 3000)
        points.append(how_many.Point(envs_, envs_, 32 * envs_, 4, own, fresh + 2e-4 * rng.normal(), 2e-4, 0.01, 1.0))
    size, low, high, probability = how_many.critical_size(points)
    assert probability > 0.01
    assert size == pytest.approx(3000, rel=0.15) and low < 3000 < high and high < 1.5 * low
    assert how_many.critical_size([p._replace(fresh=-0.01) for p in points])[0] == np.inf
    said = lambda points: " ".join(doctor.recommendation(ppo.Args(), points, how_many.critical_size(points), 0.5))  # noqa: E731
    assert "N_c = 3," in said(points) or "N_c = 2," in said(points)
    none = [p._replace(fresh=1e-5 * (-1) ** i) for i, p in enumerate(points)]
    assert "can a gain on fresh transitions be told from 0" in said(none) and "N_c" not in said(none)
    # Small updates lose, a large one gains: no law, but a size.
    turning = [p._replace(fresh=fresh) for p, fresh in zip(points, (-0.05, -0.02, -0.004, 0.004), strict=True)]
    assert "does not follow" in said(turning) and "sure gain: 16,384" in said(turning)
    signal = [p._replace(fresh=p.own) for p in points]
    assert "at fewer environments than were tried" in said(signal)


def test_the_law_is_seldom_denied_where_it_holds_though_the_errors_come_from_few_keys():
    rng, keys, critical = np.random.default_rng(0), (16, 4, 4, 4, 4), 5000
    sizes = 512 * 4 ** np.arange(5)
    own = np.array([0.014, 0.010, 0.0084, 0.0082, 0.0102])
    found = []
    for _ in range(100):
        gains = [
            mean + 2.5e-4 * np.sqrt(k) * rng.normal(size=k)
            for mean, k in zip(own * sizes / (sizes + critical), keys, strict=True)
        ]
        # As in how_many.single_updates: no error is below that of the judge alone.
        errors = [max(x.std(ddof=1) / np.sqrt(len(x)), 1.25e-4) for x in gains]
        found.append(
            how_many.critical_size(
                [
                    how_many.Point(n, n, 32 * n, k, o, x.mean(), error, 0.01, 1.0)
                    for n, k, o, x, error in zip(sizes, keys, own, gains, errors, strict=True)
                ],
                draws=200,
            )
        )
    assert np.mean([probability < 0.01 for *_, probability in found]) <= 0.02
    assert np.mean([low <= critical <= high for _, low, high, _ in found]) >= 0.9


@pytest.mark.parametrize("script", ["ppo", "ppo_ewma"])
def test_single_updates_keep_what_they_gain(tmp_path, monkeypatch, script):
    """On a bandit: from the same checkpoint, larger updates keep more of what they gain; nothing is trained further."""
    monkeypatch.setattr(envs, "make", lambda env_id, num_envs, *_, **__: envs.VectorEnv(Bandit(), num_envs))
    monkeypatch.setattr(how_many, "SAMPLE", 2**13)
    module = {"ppo": ppo, "ppo_ewma": ppo_ewma}[script]
    flags = "--num-envs 16 --num-steps 8 --minibatch-size 128 --hidden-sizes 8 --num-devices 1 --num-eval-episodes 0"
    flags += (
        f" --total-timesteps 512 --learning-rate 0.0005 --num-seeds 2 --anneal-lr --runs-dir {tmp_path} --run-name run"
    )
    module.train(parse(module.Args, "", flags.split()))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    said = []
    args, points = how_many.measure(str(tmp_path / "run"), "num_envs", [], 2, 1, said.append)
    assert said[0] == "updates have the learning rate that the run had reached, 0.00013"
    assert [p.num_envs for p in points] == [16, 64, 256, 1024]  # a minibatch cannot be larger than the update
    assert [p.keys for p in points] == [2] * 4 and all(p.error > 0 and p.seconds > 0 for p in points)
    assert [p.quotient for p in points] == pytest.approx([1] * 4, abs=0.15)  # small steps, and little noise
    assert args.learning_rate == pytest.approx(0.0005 / 4)  # the last of 4 updates had it
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before
    for over in ("nonsense", "seed", "batch_size", "hidden_sizes"):
        with pytest.raises(UsageError, match=f"--over {over}: must be one of num-envs"):
            how_many.measure(str(tmp_path / "run"), over, [], 1, 0, print)
    with pytest.raises(UsageError, match="--values 4 -1: must be greater than 0"):
        how_many.measure(str(tmp_path / "run"), "num_envs", [4, -1], 1, 0, print)
    with pytest.raises(UsageError, match="--seed-index 2"):
        how_many.measure(str(tmp_path / "run"), "num_envs", [], 1, 2, print)
    monkeypatch.setattr(how_many.memory, "device_bytes", lambda devices: how_many.update_bytes(module, args))
    with pytest.raises(UsageError, match="--values 4096: an update would need"):
        how_many.measure(str(tmp_path / "run"), "num_envs", [16, 4096], 1, 0, print)
    monkeypatch.setattr(how_many.memory, "device_bytes", lambda _: 1)
    with pytest.raises(UsageError, match=r"--how-many .*run: no number of environments fits"):
        how_many.measure(str(tmp_path / "run"), "num_envs", [], 1, 0, lambda text: None)
    monkeypatch.setattr(how_many.memory, "device_bytes", lambda devices: how_many.update_bytes(module, args))
    said = []
    points = how_many.measure(str(tmp_path / "run"), "num_envs", [], 1, 0, said.append)[1]
    assert [p.num_envs for p in points] == [16] and "--num-envs 1024 is left out: an update would need" in said[-2]


@pytest.mark.parametrize("update, rate", [(0, 1.0), (4, 0.6), (9, 0.1), (10, 0.1)])
def test_a_program_that_goes_on_keeps_the_rate_that_was_reached(update, rate):
    """After the last update it is that of the last one."""
    args = ppo.Args(num_envs=8, num_steps=8, total_timesteps=640, anneal_lr=True, learning_rate=1.0)
    found = records.with_rate_of(args, update)
    assert found.learning_rate == pytest.approx(rate) and not found.anneal_lr
    assert records.with_rate_of(replace(args, anneal_lr=False), update).learning_rate == 1.0


def test_single_updates_use_as_many_devices_as_share_them(monkeypatch):
    args = [ppo.Args(num_envs=n, minibatch_size=2048) for n in (64, 2048)]
    for there, used in ((1, 1), (3, 2), (6, 4), (14, 8)):
        monkeypatch.setattr(how_many.jax, "devices", lambda there=there: [None] * there)
        assert how_many.most_devices(args) == used
    assert how_many.most_devices([ppo.Args(num_envs=96, minibatch_size=96)]) == 12


def test_environments_on_the_host_are_refused(monkeypatch):
    record = {"script": "ppo", "args": {"env_id": "gymnasium/CartPole-v1"}}
    monkeypatch.setattr(how_many.checkpoints, "find_checkpoint", lambda *_: (None, record, [1]))
    with pytest.raises(UsageError, match="--how-many: gymnasium/CartPole-v1 of runs/x runs on the host"):
        how_many.find("runs/x")


def test_values_that_nobody_asked_for_are_left_out_if_they_cannot_be(capsys):
    """An update of 2,048 transitions: minibatches of a quarter and half of it, or all, but not of two or four times."""
    args, said = ppo.Args(num_envs=64, num_steps=32, minibatch_size=2048), []
    assert how_many.possible(args, "minibatch_size", said.append) == [512, 1024, 2048]
    assert [line.split(":")[0] for line in said] == ["left out"] * 2 and "--minibatch-size 4096" in said[0]
    assert how_many.possible(replace(args, learning_rate=0.25), "learning_rate", said.append)[0] == 0.0625


def test_more_environments_are_split_so_that_they_fit():
    args = ppo.Args(num_envs=2048, num_steps=128, minibatch_size=2048, num_devices=1)
    assert how_many.with_value(args, "num_envs", 2**18).num_rollout_chunks > 1


@pytest.mark.parametrize("over", ["clip_eps", "update_epochs", "learning_rate", "minibatch_size", "num_envs"])
def test_one_flag_is_changed_and_the_rest_fits(over):
    args = ppo.Args(num_envs=64, num_steps=32, minibatch_size=512, update_epochs=4, num_devices=2)
    for factor in (0.5, 1, 2):
        value = getattr(args, over) * factor
        changed = how_many.with_value(args, over, value)
        assert getattr(changed, over) == pytest.approx(value)
        assert changed.minibatch_size * changed.num_minibatches == changed.batch_size
        assert over in ("minibatch_size",) or changed.minibatch_size == 512


# Branches


def test_each_lever_changes_one_thing_and_its_command_is_understood(tmp_path):
    args = ppo.Args(
        num_envs=64, minibatch_size=256, learning_rate=3e-4, env_id="CartPole-v1", gamma=0.9, norm_obs=True,
        hidden_sizes=(32,), ent_coef=0.0,
    )  # fmt: skip
    known = levers.levers_of(args, fresh=False)
    expected = {"control", "envs", "minibatch", "lr", "epochs", "eps", "com", "entropy", "critic"}
    assert known.keys() == expected
    assert "critic" not in levers.levers_of(args, fresh=True)
    cells = levers.cells_of("runs/x@7", "ppo", args, known, 10 * 8 * args.batch_size, (0, 1), False)
    assert len(cells) == 2 * len(expected) and len({cell.name for cell in cells.values()}) == len(cells)
    control = None
    for (name, seed), cell in cells.items():
        module = {"ppo": ppo, "ppo_ewma": ppo_ewma}[cell.script]
        branch = parse(module.Args, "", grid.command(cell, tmp_path)[2:])
        assert branch.seed == seed and branch.init_from == "runs/x@7" and branch.learning_rate in (3e-4, 3e-4 / 4)
        assert branch.num_updates == cell.num_updates == (10 if name == "envs" else 80)
        ours = {k: v for k, v in vars(branch).items() if k in vars(args)}
        if name == "control":
            control = ours
            assert all(
                ours[key] == getattr(args, key) for key in ours.keys() - levers.NOT_TAKEN - {"halt_on_nan", "named"}
            )
        named = {"named", "total_timesteps", "run_name", "seed", "log_every", "num_minibatches"}
        changed = {key for key in ours if ours[key] != control[key]} - named
        assert changed == set(known[name].flags) - {"com"}
    # However the path of the run is spelled, its branches are found again; those of another checkpoint are others.
    names = lambda run: {c.name for c in levers.cells_of(run, "ppo", args, known, 10, (0, 1), False).values()}  # noqa: E731
    assert names("runs/x@7") == names("/somewhere/runs/x@7") and not names("runs/x@7") & names("runs/x@8")


def test_what_the_doctor_says_of_the_cases_is_counted(monkeypatch):
    known = {"up": cases.Case("climbing", "ppo", ""), "far": cases.Case("step", "ppo", "")}
    monkeypatch.setattr(cases, "CASES", known)
    found = {"up": ["climbing"] * 7 + ["settled", "settled", "step"], "far": ["step", "no gain"]}
    *lines, last = cases.summary(found)
    assert last == "right: 8 of 12; false alarms: 1 of 10 seeds without a fault"
    assert lines[1].split() == ["far", "step", "1", "step,", "1", "no", "gain"]


def test_outcomes_are_differences_seed_by_seed(tmp_path):
    """Seeds differ by 10, the lever adds 1: unpaired nobody would see it."""
    args = ppo.Args(num_envs=64, minibatch_size=256)
    known = {name: lever for name, lever in levers.levers_of(args, True).items() if name in ("control", "eps", "lr")}
    cells = levers.cells_of("runs/x@7", "ppo", args, known, 20 * args.batch_size, range(4), True)
    rng = np.random.default_rng(0)
    for (name, seed), cell in cells.items():
        if (name, seed) == ("lr", 3):
            continue  # not finished
        level = 10 * seed + (name == "eps") + 0.1 * rng.normal()
        write_run(tmp_path / cell.name, course(np.where(X < 0.75, 0, level), noise=0))
        (tmp_path / cell.name / "summary.json").write_text(json.dumps({"updates": cell.num_updates}))
    found = {o.lever: o for o in levers.outcomes(tmp_path, cells)}
    assert found["eps"].difference == pytest.approx(1, abs=0.3) and found["eps"].found == "lifts"
    assert found["lr"].found == "undecided" and np.isnan(found["lr"].returns[3])
    assert np.isnan(found["control"].width) and np.isnan(found["lr"].width)


def test_a_lever_that_loses_seeds_is_not_said_to_lift_the_others():
    difference, width = levers.paired(np.array([4.0, 5, 4, np.nan]), {"control": np.array([0.1, 0.2, 0, 0])}, "lr")
    assert difference == pytest.approx(12.7 / 3) and np.isnan(width)


def test_the_intervals_of_all_levers_hold_together():
    """Student's paired intervals at 1 - 0.05 / 8, by SciPy; where no lever does anything, about one comparison of
    twenty finds something, not one of three."""
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(400):
        per_seed = {name: rng.normal(size=5) for name in ("control", *"abcdefgh")}
        found = {name: levers.paired(values, per_seed, name) for name, values in per_seed.items()}
        wrong += any(abs(difference) > width for difference, width in found.values())
    assert wrong < 0.09 * 400
    expected = scipy.stats.ttest_rel(per_seed["a"], per_seed["control"]).confidence_interval(1 - 0.05 / 8)
    np.testing.assert_allclose([found["a"][0] - found["a"][1], found["a"][0] + found["a"][1]], expected)


def test_the_error_of_single_updates_is_a_95_percent_interval():
    point = how_many.Point(64.0, 64, 64 * 32, 4, 0.1, 0.02, 0.005, 0.01, 1.0)
    low, high = scipy.stats.t.interval(0.95, 3, loc=0.02, scale=0.005)
    np.testing.assert_allclose([point.fresh - point.width, point.fresh + point.width], [low, high])


def test_a_slurm_task_makes_one_branch_of_the_same_intervention(tmp_path, monkeypatch, capsys):
    """Through the doctor, which locks a branch, removes what is left of one that was killed, and resumes."""
    run = write_run(tmp_path / "run", course(RISE))
    (run / "args.json").write_text(json.dumps({"script": "ppo", "args": asdict(ppo.Args(num_envs=64))}))
    (run / "checkpoints/7").mkdir(parents=True)
    monkeypatch.setattr(checkpoints, "checkpoint_updates", lambda folder: [7])
    words = (run, "--intervene", "--levers", "eps", "lr", "--budget", 10**6, "--seeds", 2)
    code, out, _ = call(capsys, *words, "--launch", "slurm")
    assert code == 0 and out == f"job0=$(sbatch --parsable {run}/doctor/doctor-0.sbatch)\n"
    lines = tasks((run / "doctor/doctor-0.sbatch").read_text())
    made = []
    monkeypatch.setattr(grid, "run_missing", lambda cells, *_: made.extend(cells) or [])
    for line in lines:
        python, script, *task = shlex.split(line)
        assert (python, Path(script)) == (sys.executable, Path(doctor.__file__))
        assert call(capsys, *task)[:2] == (0, "")  # it compares nothing
        assert made[-1].name == task[-1] and f"{run}@7" in task
    _, out, _ = call(capsys, *words, "--dry-run")
    assert len(made) == 6 and [line.split()[-1] for line in out.splitlines()] == [cell.name for cell in made]
    code, _, err = call(capsys, *words, "--only", "nonsense")
    assert code == 2 and "--only nonsense: no branch of" in err


def test_branches_of_a_run_in_progress_need_a_checkpoint_that_stays(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(checkpoints, "checkpoint_updates", lambda folder: [7])
    words = ("--intervene", "--levers", "eps", "--dry-run")
    for name, keep in (("some", 3), ("all", 0)):
        run = write_run(tmp_path / name, course(RISE), keep_checkpoints=keep)
        (run / "source.py").touch()
        with open(run / "source.py") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            code, _, err = call(capsys, run, *words)
            assert code == (2 if keep else 0)
            said = f"--intervene {run}: the run is in progress, and deletes checkpoint 7 when it has 3 newer ones"
            assert (said in err) == bool(keep) and err.count("error") == bool(keep)
            assert call(capsys, run, *words, "--fresh")[0] == 0
        assert call(capsys, run, *words)[0] == 0


def test_branches_from_scratch_need_no_checkpoint(tmp_path, capsys):
    run = write_run(tmp_path / "run", course(RISE))
    words = ("--intervene", "--levers", "eps", "--dry-run")
    assert "it has no checkpoint" in call(capsys, run, *words)[2]
    code, out, _ = call(capsys, run, *words, "--fresh")
    assert code == 0 and len(out.splitlines()) == 10 and "--init-from" not in out
    assert call(capsys, f"{run}@7", *words, "--fresh")[1] == out
    code, _, err = call(capsys, tmp_path, *words, "--fresh")
    assert code == 2 and "not the folder of a run" in err


@pytest.mark.slow
def test_an_intervention_from_start_to_end(tmp_path, capsys):
    flags = (
        "--env-id CartPole-v1 --num-envs 8 --num-steps 16 --minibatch-size 64 --total-timesteps 4096 --num-devices 1"
    )
    ppo.train(parse(ppo.Args, "", f"{flags} --num-eval-episodes 0 --runs-dir {tmp_path} --run-name run".split()))
    capsys.readouterr()
    words = (tmp_path / "run", "--intervene", "--levers", "eps", "critic", "--seeds", 2, "--budget", 1280)
    code, out, _ = call(capsys, *words)
    assert code == 0 and out.count("\n  ") == 3 and (tmp_path / "run" / "levers.png").exists()
    again = call(capsys, *words)
    assert again[1] == out  # nothing is run twice
    assert call(capsys, tmp_path / "run", "--intervene", "--levers", "nonsense")[0] == 2
    assert call(capsys, tmp_path / "run", "--intervene", "--budget", 1)[0] == 2


def test_cases_are_commands_that_their_scripts_understand(tmp_path):
    for name in cases.CASES:
        cell = cases.cell(name, 100)
        module = {"ppo": ppo, "ppo_ewma": ppo_ewma, "stochastic_opt": stochastic_opt}[cell.script]
        args = parse(module.Args, "", grid.command(cell, tmp_path)[2:])
        assert args.num_updates == cell.num_updates and args.seed == 100 and args.num_seeds == 10


def test_cases_with_sticky_actions_are_those_on_games_without_chance():
    sticky = [name for name in cases.CASES if name.endswith(cases.STICKY)]
    plain = [name.removesuffix(cases.STICKY) for name in sticky]
    assert plain == ["breakout, two games", "breakout, climb", "space invaders, noisy"]
    for name, case in zip(sticky, plain, strict=True):
        flags, other = (dict(cases.cell(x, 0).flags) for x in (name, case))
        assert flags == other | {"sticky_actions": "0.1"} and cases.CASES[name].expected == "climbing"


def test_cases_with_sticky_actions_are_judged_by_themselves(monkeypatch, tmp_path):
    made = []
    monkeypatch.setattr(cases.grid, "run_missing", lambda cells, *_: made.extend(c.name for c in cells))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    for sticky, count, file in ((True, 3, "doctor_sticky.json"), (False, 21, "doctor.json")):
        made.clear()
        cases.main(first_seed=100, runs_dir=tmp_path, sticky=sticky)
        assert not (tmp_path / "results" / file).exists()
        made.clear()
        cases.main(runs_dir=tmp_path, sticky=sticky)
        assert len(made) == count and all(("sticky" in name) == sticky for name in made)
        assert json.loads((tmp_path / "results" / file).read_text())["cases"] == {}
