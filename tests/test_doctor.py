"""doctor.py: curves whose cause is built in, logs of other trainers, branches, and the gain of single updates."""

import dataclasses
import fcntl
import json
import re
import shlex
import types
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from conftest import Bandit, ended, refusal, start

import doctor
import ppo
import ppo_ewma
import ppo_rnn
import pqn
import sfl_kinetix
import stochastic_opt
from benchmarks import tasks
from clinic import advice, diagnosis, how_many, levers, records, usual
from common import envs
from common.run import checkpoints
from common.run.arguments import flag, parse
from experiments import effects

LINES = 200
X = np.linspace(0, 1, LINES)
HEALTHY = {
    "outer/own_gain": 0.02, "outer/fresh_gain": 0.01, "outer/kl": 0.01, "losses/entropy": (1.1, 0.8),
    "losses/explained_variance": 0.8, "losses/policy_loss": 0.0,
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


@pytest.mark.parametrize("seed", range(3))
def test_states_of_curves(seed):
    state = lambda returns, **kw: diagnosis.trend(course(returns, seed=seed, **kw)).state  # noqa: E731
    assert state(np.zeros(LINES)) == "still"  # it never rose
    assert state(500 * np.minimum(5 * X, 1), noise=0.0) == "still"  # at the best that there is, without any noise
    assert state(10 * X, updates=99) == "few updates" and state(10 * X, updates=100) == "climbing"
    assert state(10 * X[:10]) == "few updates"


def test_a_run_that_never_got_above_its_start_may_have_fallen_or_come_back():
    """As runs that begin from a checkpoint. Small changes of large returns are none."""
    trend = lambda returns, noise: diagnosis.trend(course(returns, noise))  # noqa: E731
    fell = trend(500 - 480 * X, 0.1)
    assert fell.state == "fell" and fell.change == pytest.approx(-480 * 17 / 20, abs=3)  # from three blocks to three
    back = trend(2 + 8 * np.abs(2 * X - 1), 0.02)
    assert back.state == "climbing" and back.change - back.error > 5
    assert [trend(500 + rise * X, 0.1).state for rise in (-5, 0, 0.1)] == ["still"] * 3


@pytest.mark.parametrize("since", [0.3, 0.5, 0.7])
def test_since_when_it_stands_still(since):
    c = course(np.minimum(X / since, 1) * 10)
    t = diagnosis.trend(c)
    assert t.state == "still" and abs(c.steps[t.since] / c.steps[-1] - since) < 0.1
    assert t.level == pytest.approx(10, abs=0.3) and t.best == pytest.approx(10, abs=0.3)
    assert abs(t.change) < 0.5 and 0 < t.error < 0.5


@pytest.mark.parametrize("label, returns, noise, values", [
    ("climbing", 10 * X, 0.3, {}),
    # A sure rise is one, whatever its updates look like; one that noise might have made is not.
    ("climbing", 10 * X, 0.3, {"outer__own_gain": 0.2, "outer__fresh_gain": -0.06}),
    ("step", RISE + 0.6 * X, 0.3, {"outer__own_gain": 0.2, "outer__fresh_gain": -0.06}),
    # On either side of each threshold.
    ("step", RISE, 0.3, {"outer__own_gain": 0.1, "outer__fresh_gain": -0.013}),
    ("no gain", RISE, 0.3, {"outer__own_gain": 0.1, "outer__fresh_gain": -0.008}),
    ("no gain", RISE, 0.3, {"outer__own_gain": 0.1, "outer__fresh_gain": 0.008}),
    ("unknown", RISE, 0.3, {"outer__own_gain": 0.1, "outer__fresh_gain": 0.013}),
    ("settled", RISE, 0.3, {"outer__own_gain": 0.0035, "outer__fresh_gain": 0.0}),
    ("no gain", RISE, 0.3, {"outer__own_gain": 0.0045, "outer__fresh_gain": 0.0}),
    ("critic", RISE, 0.3, {"losses__explained_variance": 0.15}),
    ("unknown", RISE, 0.3, {"losses__explained_variance": 0.25}),
    ("step", RISE, 0.3, {"outer__kl": 5.0, "outer__own_gain": np.nan, "outer__fresh_gain": np.nan}),  # others' logs
    ("unknown", RISE, 0.3, dict.fromkeys(("outer__own_gain", "outer__fresh_gain"), np.nan)
     | {"outer__kl": 5.0, "losses__td_loss": 1.0}),  # PQN
    ("step", np.zeros(LINES), 2.0, {"outer__own_gain": 0.2, "outer__fresh_gain": -0.06, "outer__kl": 12.0}),
    ("exploration", np.full(LINES, -200.0), 0.0, {}),
    # What moves the policy by less than every healthy run does, at most ...
    ("slow", np.zeros(LINES), 0.3, {"outer__kl": 1.8e-3, "outer__own_gain": 1e-4}),
    ("unknown", RISE, 0.3, {"outer__kl": (2.5e-3, 1e-8)}),
    ("slow", 10 * X, 0.3, {"outer__kl": 1.8e-4}),
    ("climbing", 10 * X, 0.3, {"outer__kl": 2.2e-4}),
    # ... whether it is the rate or the clip that holds it, or the bonus.
    ("clipped", RISE, 0.3, {"outer__kl": 1e-4, "losses__clipfrac": 0.2}),
    ("slow", RISE, 0.3, {"outer__kl": 1e-4, "losses__clipfrac": 0.12}),
    ("random", RISE, 0.0, {"losses__entropy": (1.0, 0.999), "outer__own_gain": 1e-4}),
    # The entropy of a Gaussian policy may be negative, and rise.
    ("unknown", RISE, 0.3, {"losses__entropy": -0.3 - 0.7 * np.exp(-100 * X)}),
    ("step", RISE, 0.3, {"losses__entropy": (1.4, -2.0), "outer__own_gain": 0.1, "outer__fresh_gain": -0.02}),
    ("slow", 0 * X, 0.3, {"losses__entropy": (-1.50, -1.51), "outer__kl": 1e-6}),
    ("slow", np.zeros(9), 0.3, {"outer__kl": 1.5e-7, "updates": 9}),  # so few updates that nothing could come of them
    ("fell", np.where(X < 0.8, 20 * X, 2), 0.3, {}),
])  # fmt: skip
def test_causes(label, returns, noise, values):
    assert [diagnosis.diagnose(course(returns, noise, seed, **values))[0] for seed in range(3)] == [label] * 3


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


@pytest.fixture
def undrawn(monkeypatch):
    """Pictures take most of the time."""
    monkeypatch.setattr(doctor.pictures, "save", lambda *_: None)


def call(capsys, *words):
    return ended(capsys, doctor, *words)


def test_the_report_of_a_run(tmp_path, capsys):
    run = write_run(tmp_path / "a$b^$", course(RISE, outer__fresh_gain=-0.0005))  # of which matplotlib makes nothing
    code, out, _ = call(capsys, run)
    assert code == 0 and len(out.splitlines()) <= 14 and (run / "doctor.png").stat().st_size > 10_000
    assert "stands still since" in out and "next to nothing on fresh transitions" in out and "0.02 on its own" in out
    (run / "doctor.png").unlink()
    (run / "doctor.png").mkdir()
    code, out, err = call(capsys, run)
    assert code == 0 and "doctor.png: cannot be written (Is a directory)" in err and err.count("\n") == 1


def test_a_report_of_seeds_that_differ_is_of_those_that_agree(tmp_path, capsys, undrawn):
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


@pytest.mark.parametrize("header, row, said", [
    ("global_step,charts/episodic_return,losses/approx_kl", "{step},{ret},0.01", "KL of an update 0.01"),
    ("time/total_timesteps,rollout/ep_rew_mean,train/entropy_loss", "{step},{ret},-{entropy}", "entropy 0.7"),
    ("Step,Train/mean_reward", "{step},{ret}", "best"),
], ids=["CleanRL", "Stable-Baselines3", "rsl_rl"])  # fmt: skip
def test_logs_of_other_trainers(tmp_path, capsys, undrawn, header, row, said):
    of = lambda i, value: row.format(step=2048 * i, ret=value, entropy=0.7 + 0.7 / (1 + i))  # noqa: E731
    rows = [of(i, value) for i, value in enumerate(np.minimum(20 * X, 10))]
    rows.insert(5, of(0.5, ""))  # a line without a return
    file = tmp_path / "progress.csv"
    file.write_text("\n".join([header, *rows]) + "\n")
    code, out, _ = call(capsys, file)
    assert code == 0 and "stands still since " in out and "no gains in this log" in out and "nan" not in out
    assert said in out and "try, " not in out  # the flags of others are not known


def test_a_log_whose_losses_and_returns_are_in_lines_of_their_own(tmp_path, capsys, undrawn):
    """As CleanRL's wide export, and not in order."""
    rows = []
    for i, value in enumerate(10 * X):
        rows += [f"{2048 * i},{value + 0.01 * (i % 3)},,", f"{2048 * i + 1},,0.01,{0.8 - 0.001 * i}"]
    file = tmp_path / "wide.csv"
    titles = "global_step,charts/episodic_return,losses/policy_loss,losses/entropy"
    file.write_text("\ufeff" + "\n".join([titles, *reversed(rows)]) + "\n")
    code, out, _ = call(capsys, file)
    assert code == 0 and "408k steps" in out and "it climbs" in out and "entropy 0.6" in out


def test_two_trainings_in_one_log_are_no_curve(tmp_path, capsys, undrawn):
    """As Stable-Baselines3 leaves them where learn() is called twice."""
    rows = [f"{2048 * i},{value}" for values in (10 * X, np.full(100, 10.0)) for i, value in enumerate(values, 1)]
    file = tmp_path / "progress.csv"
    file.write_text("\n".join(["time/total_timesteps,rollout/ep_rew_mean", *rows]) + "\n")
    code, _, err = call(capsys, file)
    assert code == 2 and "time/total_timesteps falls from 409600 to 2048 and rises again" in err


@pytest.mark.parametrize("last, label", [("nan", "diverged"), ("inf", "diverged"), ("", "climbing")])
def test_a_loss_of_nan_is_told_from_an_empty_cell(tmp_path, last, label):
    rows = [f"{2048 * i},{value + 0.01 * (i % 3)},0.1," for i, value in enumerate(10 * X)]
    rows.append(f"{2048 * len(rows)},10,{last},")
    file = tmp_path / "log.csv"
    titles = "global_step,charts/episodic_return,losses/policy_loss,outer/update_norm"  # of which nothing is known
    file.write_text("\n".join([titles, *rows]) + "\n")
    (course,) = diagnosis.of_csv(file)
    assert diagnosis.diagnose(course)[0] == label


def test_nan_in_a_loss_of_stable_baselines3_is_a_divergence(tmp_path):
    rows = [f"{2048 * i},{value},{'nan' if i > 150 else 0.1}" for i, value in enumerate(10 * X)]
    file = tmp_path / "progress.csv"
    titles = "time/total_timesteps,rollout/ep_rew_mean,train/policy_gradient_loss"
    file.write_text("\n".join([titles, *rows]) + "\n")
    assert diagnosis.diagnose(diagnosis.of_csv(file)[0])[0] == "diverged"


@pytest.mark.optional
def test_a_folder_for_tensorboard_is_read_as_its_writer_left_it(tmp_path, capsys, undrawn):
    """As CleanRL writes it, by TensorBoard's own writer; returns and losses in records of their own."""
    pytest.importorskip("tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(tmp_path / "run"))
    for i, value in enumerate(10 * X):
        for tag, number in (("charts/episodic_return", value + 0.01 * (i % 3)), ("losses/approx_kl", 0.01)):
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=number)])
            writer.add_event(Event(step=2048 * i, wall_time=i, summary=summary))
    writer.close()
    (file,) = (tmp_path / "run").iterdir()
    for source in (tmp_path / "run", file):
        code, out, _ = call(capsys, source)
        assert code == 0 and "408k steps" in out and "it climbs" in out and "KL of an update 0.01" in out
    assert out.endswith(
        f"picture: {tmp_path}/run/doctor.png\n"
    )  # a name that TensorBoard does not take for its next file


@pytest.mark.slow
def test_a_run_that_looks_sick_says_so_once(tmp_path, capsys):
    """After a quarter of its updates, in one line that names the flag."""
    flags = "--env-id CartPole-v1 --num-envs 8 --num-steps 16 --total-timesteps 8192 --hidden-sizes 8 --num-devices 1"
    flags += " --plasticity-every 0 --num-eval-episodes 0 --runs-dir"
    for rate, said in (("1e-6", True), ("1e-3", False)):
        words = [*flags.split(), str(tmp_path), "--run-name", rate, "--learning-rate", rate]
        words += shlex.split("--activation tanh --no-layer-norm --clip-vloss --ent-coef 0.01 --gae-lambda 0.95")
        start(ppo, *words)
        lines = [line for line in capsys.readouterr().err.splitlines() if "the doctor: " in line]
        assert len(lines) == said and all("--learning-rate 1e-06 (0.001 there)" in line for line in lines), lines


def found(label="unknown", level=-1e9, **numbers):
    """A diagnosis with this label."""
    n = diagnosis.numbers(course(RISE), diagnosis.trend(course(RISE)))._replace(**numbers)
    return diagnosis.Found(label, level, n, [])


def tries(label, script=ppo, level=-1e9, updates=np.inf, saves=True, numbers=None, **saved):
    return advice.what_to_try(found(label, level, **numbers or {}), "runs/x", script.__name__, saved, updates, saves)


def first(label="unknown", script=ppo, **saved):
    """The arguments of the first command, and what is said of it."""
    advised = tries(label, script, **saved)[0]
    return (script.Args(**advised.flags) if advised.flags else None), advised


@pytest.mark.parametrize("script", [ppo, ppo_ewma, ppo_rnn, pqn, sfl_kinetix, stochastic_opt])
def test_every_command_that_it_advises_is_understood(script):
    bowl, kinetix = script is stochastic_opt, script is sfl_kinetix
    saved = {"seed": 3} | ({} if bowl or kinetix else {"env_id": "CartPole-v1", "num_envs": 64, "hidden_sizes": [32]})
    lines = {label: tries(label, script, run_name="x", **saved) for label in doctor.CAUSES}
    assert all(lines[label] for label in ("slow", "diverged"))
    for line in sorted({str(x).partition("   #")[0] for told in lines.values() for x in told if "python" in str(x)}):
        _, file, *words = shlex.split(line)
        args = parse({f"{m.__name__}.py": m.Args for m in (doctor, script)}[file], "", words)
        if file != "doctor.py":
            assert args.seed in (3, 1003) and args.run_name is None
            assert bowl or kinetix or (args.env_id == "CartPole-v1" and args.hidden_sizes == (32,))


@pytest.mark.parametrize("sizes", [{}, {"num_envs": 64}, {"num_envs": 512, "sticky_actions": 0.1}])
@pytest.mark.parametrize("wrong", [
    {"learning_rate": 1e-5}, {"learning_rate": 0.1}, {"clip_eps": 1.0}, {"clip_eps": 0.01}, {"gamma": 0.8},
    {"gamma": 1.0, "gae_lambda": 1.0}, {"ent_coef": 0.0}, {"ent_coef": 1.0}, {"clip_vloss": True},
    {"reward_clip": 0.001}, {"activation": "tanh", "layer_norm": False}, {"norm_obs": True},
])  # fmt: skip
def test_what_is_far_from_what_learns_is_put_back_first(wrong, sizes):
    args, advised = first(**sizes, **wrong)
    right = ppo.Args(**sizes)
    assert advised.kind == "flags"
    for name in (*wrong, "num_envs", "sticky_actions"):
        assert getattr(args, name) == getattr(right, name)
    for name in wrong:
        assert flag(name) in advised.why or flag(name)[2:] in advised.why


def test_a_bonus_that_does_not_fall_is_far_from_those_that_end_at_nothing():
    args, advised = first(anneal_ent=False, ent_coef=0.0662)
    assert advised.kind == "flags" and "entropy bonus at the end 0.0662 (0 there)" in advised.why and args.anneal_ent
    assert first("climbing", anneal_ent=False, ent_coef=0.01)[1].kind == "nothing"
    assert first(ent_coef=1.0)[1].why.count("(") == 1  # told once


def test_other_parts_that_are_put_back():
    assert first(script=ppo_ewma, com=4.0)[0].com == first(script=ppo_ewma, com=32768.0)[0].com == 64
    steps = lambda a: a.update_epochs * a.num_minibatches  # noqa: E731
    few, many = first(update_epochs=2, num_minibatches=2)[0], first(update_epochs=8, num_minibatches=128)[0]
    assert steps(few) == steps(many) == steps(ppo.Args())
    longer = first(num_envs=32768)[0]  # ten updates
    assert longer.num_updates >= 100 and longer.total_timesteps == ppo.Args().total_timesteps
    more = first(num_envs=8, total_timesteps=2048)[0]  # where no number of environments leaves as many
    assert more.num_updates >= 100 and more.num_envs > 1 and more.total_timesteps > 2048
    everything, advised = first(env_id="CartPole-v1", total_timesteps=10**6)  # with the script's own flags
    assert "so all as for CartPole-v1" in advised.why and everything.activation == "tanh"


def test_usual_flags_are_left_alone_unless_the_log_has_a_sign():
    for flags in (*(row[2] for row in tasks.CLASSIC.values()), "", "--num-envs 512", "--env-id craftax/X"):
        for label in ("climbing", "settled", "no gain", "unclear"):
            assert first(label, **usual.fields_of(flags))[1].kind == "nothing"
    again, advised = first("no gain", level=22.7)  # Breakout's first wall
    assert (again.seed, again.num_seeds) == (1000, 4) and advised.why.startswith("22.7 is far below the published 69.9")
    assert first("no gain", level=40.0)[1].why == first("climbing", level=22.7)[1].why == advice.LEAVE
    assert "more --total-timesteps" in first("few updates", script=ppo_rnn, num_envs=4096, total_timesteps=10**7)[1].why
    assert "--log-every" in first("few updates")[1].why
    assert first("exploration")[0].norm_obs and first("critic")[0].norm_reward
    assert first("random")[0].ent_coef == 0.006 and first("clipped")[1].why == advice.SET  # 0.2 already
    rates = {label: first(label)[0].learning_rate for label in ("diverged", "step", "fell")}
    assert rates == {"diverged": 4e-4, "step": 4e-4, "fell": 1.3e-3}
    # The KL goes with the square of the rate: from 6e-6 to 6e-2.
    assert first("slow", numbers={"most_kl": 6e-6})[0].learning_rate == 0.4
    assert first("slow", numbers={"most_kl": 0.0})[0].learning_rate == 4
    assert first("settled", learning_rate=1e-6, level=75.0)[1].why.startswith("nothing: 75 is near the best")
    assert first("settled", learning_rate=1e-6, level=5.0)[1].kind == "flags"


def test_what_is_near_the_best_return_may_still_have_broken(monkeypatch):
    for label in ("fell", "diverged"):
        assert first(label, level=75.0)[1].kind == "log"
    monkeypatch.setattr(advice, "advise", lambda *_: [advice.Advice("nothing", advice.LEAVE)])
    for label, going_on in (("fell", False), ("diverged", False), ("climbing", True)):
        assert any("--resume" in str(x) for x in tries(label, updates=3)) == going_on


def test_no_return_is_published_for_an_environment_that_was_changed():
    assert first("settled", level=75.0, time_limit=100)[1].why == advice.LEAVE
    assert first("settled", level=5.0, env_kwargs='{"use_minimal_action_set": false}')[1].why == advice.LEAVE
    assert first("settled", level=5.0, sticky_actions=0.1)[1].why == advice.LEAVE


def test_advice_that_differs_by_rounding_is_given_once():
    """A third of the learning rate is what the log suggests, to two digits, and the last thing to try, to three."""
    told = advice.advise(found("fell"), "ppo", ppo.Args())
    assert [x.flags.get("learning_rate") for x in told if x.kind in ("log", "rate")] == [1.3e-3, 1.2e-2]


def test_an_environment_of_which_nothing_is_known_is_compared_with_all_others():
    own = {"env_id": "my_file:MyEnv"}
    for rate, kind in ((1e-5, "unlike"), (3e-4, "nothing"), (1e-2, "nothing"), (0.3, "unlike")):
        assert first(learning_rate=rate, **own)[1].kind == kind
    assert "other tasks" in first(learning_rate=1e-5, **own)[1].why
    assert usual.kind("my_file:MyEnv") == ""
    short = {"total_timesteps": 300_000, "num_envs": 64}
    for env_id, measured in (("Asterix-MinAtar", True), ("my_file:MyEnv", False)):
        assert any("learn such a task" in x.why for x in tries("unknown", env_id=env_id, **short)) == measured
    assert "far from the script's defaults: " in first(script=ppo_rnn, learning_rate=1e-5, **own)[1].why


@pytest.mark.parametrize("script, env_id, rate, kind, measured", [
    ("ppo", "CartPole-v1", 1e-6, "flags", True),
    ("ppo", "my_file:MyEnv", 1e-6, "unlike", False),
    ("ppo_ewma", "my_file:MyEnv", 1e-3, "log", True),
    ("ppo_rnn", "my_file:MyEnv", 4e-3, "log", False),
])  # fmt: skip
def test_how_many_runs_an_advice_healed_is_said_only_where_it_was_measured(script, env_id, rate, kind, measured):
    saved = {"env_id": env_id, "learning_rate": rate}
    courses = [course(0 * X, outer__kl=1e-6)]
    diagnosed = diagnosis.diagnose_all(courses)
    told = advice.what_to_try(diagnosed, "runs/x", script, saved, np.inf, True)
    said = "\n".join(doctor.report("runs/x", script, saved, courses, diagnosed, told))
    assert told[0].kind == kind and ("first advice healed" in said) == measured


def test_the_length_of_exploration_follows_the_steps():
    saved = lambda **kw: dataclasses.asdict(pqn.Args(env_id="Breakout-MinAtar", total_timesteps=500_000, **kw))  # noqa: E731
    of, longer = lambda **kw: records.arguments_of("pqn", saved(**kw)), {"total_timesteps": 10**7}
    assert pqn.Args(**usual.changed(of(), longer)).exploration_timesteps == 10**6
    assert pqn.Args(**usual.changed(of(exploration_timesteps=9), longer)).exploration_timesteps == 9


def test_the_environment_that_is_left_out_is_not_known():
    args = ppo.Args(env_id="Pendulum-v1", norm_obs=True)
    assert {row.env_id for row in usual.alike("ppo", args).rows} == {"Pendulum-v1"}
    rows = usual.alike("ppo", args, without="Pendulum-v1").rows
    assert "Pendulum-v1" not in {row.env_id for row in rows}
    assert {usual.kind(row.env_id) for row in rows} == {"continuous"}
    near = ppo.Args(env_id="Breakout-MinAtar")
    assert advice.advise(found("settled", 75.0), "ppo", near, without="Breakout-MinAtar")[0].why == advice.LEAVE


def test_a_script_of_somebody_else_gets_words():
    told = advice.what_to_try(found("slow", most_kl=6e-4), "runs/x", "my_ppo", {}, 10, True)
    assert [str(x) for x in told] == ["10 times the learning rate"]


def test_experiments_are_advised_where_they_can_be_made():
    doctors = lambda **kw: [str(x).split()[3:5] for x in tries("no gain", **kw) if "doctor.py" in str(x)]  # noqa: E731
    assert doctors() == [["--intervene", "#"]] and doctors(saves=False) == [["--intervene", "--fresh"]]
    assert doctors(script=pqn) == []


def test_a_run_that_is_not_finished_may_go_on():
    (line,) = tries("few updates", updates=10)
    assert "python ppo.py --resume runs/x   # it is at update 10 of 160" in str(line)
    assert first("few updates", total_timesteps=655360, num_envs=64)[0].total_timesteps == 10 * 2**20


def test_bad_input_is_one_line(tmp_path, capsys, undrawn):
    short = write_run(tmp_path / "short", course(RISE[:1]))
    nothing = write_run(tmp_path / "nothing", course(RISE[:0]))
    broken = write_run(tmp_path / "broken", course(RISE))
    text = '{"update": 1, "global_step": 64, "charts/episodic_return": null}\nnonsense\n'
    (broken / "metrics.jsonl").write_text(text)
    foreign, blank = tmp_path / "a.csv", tmp_path / "b.csv"
    foreign.write_text("step,score\n1,2\n")
    blank.write_text("")
    (tmp_path / "logs/PPO_1").mkdir(parents=True)
    (tmp_path / "logs/PPO_1/progress.csv").touch()
    for words, said in (
        ([], "no run given"),
        ([tmp_path / "nowhere"], "not the folder of a run"),
        ([nothing], "no line of training"),
        ([tmp_path / "no.csv"], "cannot be read"),
        ([foreign], "which column is global_step?"),
        ([blank], "it has no rows"),
        ([short, "--intervene"], "it has no checkpoint"),
        ([short, "--how-many"], "it has no checkpoint"),
        ([short, "--how-many", "--intervene"], "give one of the two"),
        ([short, foreign], "one run at a time"),
        ([tmp_path / "logs"], f"no log itself; give {tmp_path}/logs/PPO_1/progress.csv"),
        ([f"{short}@7"], f"no log itself; give {short}"),
        ([short, "--levers", "lr"], "--levers: needs --intervene as well"),
        ([short, "--intervene", "--values", "3"], "--values: needs --how-many as well"),
    ):
        code, _, err = call(capsys, *words)
        assert code == 2 and said in err and len(err.strip().splitlines()) == 1, (words, err)
    for run in (short, broken):
        code, out, _ = call(capsys, run)
        assert code == 0 and "too few updates, or lines of the log, to tell" in out


@pytest.mark.parametrize("changed", [
    {"charts/episodic_return": 10**400},  # an integer that no float is
    {"charts/episodic_return": 1e308},  # a float whose square is infinite
    {"charts/episodic_return": 1.0, "global_step": 10**400},
    {"charts/episodic_return": 1.0, "losses/policy_loss": -1e308},
], ids=["integer", "float", "step", "loss"])  # fmt: skip
def test_an_absurd_line_is_named(tmp_path, capsys, undrawn, changed):
    run = write_run(tmp_path / "run", course(RISE))
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"update": 201, "global_step": 500000} | changed) + "\n")
    code, out, err = call(capsys, run)
    assert code == 2 and not out and err.startswith(f"doctor.py: error: {run}: ") and err.count("\n") == 1, err


def test_a_record_or_a_log_that_is_absurd_is_one_line(tmp_path, capsys, undrawn):
    run = write_run(tmp_path / "run", course(RISE))
    (run / "checkpoints/7").mkdir(parents=True)
    args = [f'{{"env_id": {"[" * 1000 + "]" * 1000}}}', f'{{"gamma": {"1" * 5000}}}', f'{{"num_envs": {10**400}}}', "7"]
    records = [*(f'{{"script": "ppo", "args": {text}}}' for text in args), '{"script": ["ppo"], "args": {}}']
    for record in records:
        (run / "args.json").write_text(record)
        for mode in ((), ("--intervene",), ("--intervene", "--fresh", "--dry-run"), ("--how-many",)):
            code, out, err = call(capsys, run, *mode)
            assert code == 2 and not out and err.count("\n") == 1, (record[:50], err)
            assert str(run) in err or "args.json is damaged" in err
    (tmp_path / "log.csv").mkdir()
    (tmp_path / "large.csv").write_text("global_step,charts/episodic_return\n" + "1,1e308\n" * 50)
    for log in (tmp_path / "log.csv", tmp_path / "large.csv"):
        code, out, err = call(capsys, log)
        assert code == 2 and not out and err.count("\n") == 1 and str(log) in err


def test_what_a_measurement_recommends():
    points = [
        how_many.Point(envs_, 32 * envs_, 0.02, fresh, 0.001, 0.01, seconds)
        for envs_, fresh, seconds in ((256, -0.001, 1.0), (1024, 0.008, 1.0), (4096, 0.012, 9.0))
    ]
    said = doctor.recommendation(points)
    assert said.startswith("half of an update is signal from 4,096 environments; ")
    assert said.endswith("sure gain: 1,024 environments")
    assert "with more environments than were tried" in doctor.recommendation(points[:2])
    assert "can a gain on fresh transitions be told from 0" in doctor.recommendation(points[:1])
    points[0] = points[0]._replace(own=-0.001, fresh=-0.002)  # a loss over a loss is no signal
    assert doctor.recommendation(points) == said


@pytest.mark.slow
def test_single_updates_keep_what_they_gain(tmp_path, monkeypatch):
    """On a bandit: from the same checkpoint, larger updates keep more of what they gain; nothing is trained further."""
    monkeypatch.setattr(envs, "make", lambda env_id, num_envs, *_, **__: envs.VectorEnv(Bandit(), num_envs))
    monkeypatch.setattr(how_many, "SAMPLE", 2**13)
    flags = "--num-envs 16 --num-steps 8 --minibatch-size 128 --hidden-sizes 8 --num-devices 1 --num-eval-episodes 0"
    flags += " --total-timesteps 512 --learning-rate 0.0005 --num-seeds 2 --update-epochs 4 --com 32 --anneal-lr"
    start(ppo_ewma, *flags.split(), "--runs-dir", tmp_path, "--run-name", "run")
    run, said = str(tmp_path / "run"), []
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    monkeypatch.setattr(how_many, "FACTORS", (0.25, 1, 16))
    monkeypatch.setattr(how_many, "KEYS", 2)
    points = how_many.measure(run, [], said.append)
    assert [p.num_envs for p in points] == [16, 256]  # a minibatch cannot be larger than the update
    assert all(p.width > 0 and p.seconds > 0 for p in points)
    assert [p.signal for p in points] == pytest.approx([1] * 2, abs=0.15)  # small steps, and little noise
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before
    assert "--values 4 -1: must be greater than 0" in refusal(how_many.measure, run, [4, -1], print)
    # Programs that need a byte for each environment.
    program = lambda _, args: types.SimpleNamespace(args=args, bytes=args.num_envs)  # noqa: E731
    monkeypatch.setattr(how_many, "Program", program)
    monkeypatch.setattr(how_many, "single_updates", lambda program, *_: points[0])
    monkeypatch.setattr(how_many.memory, "device_bytes", lambda _: 100)
    assert how_many.measure(run, [], said.append) == points[:1]
    assert "256 environments are left out: an update would need" in said[-1]
    assert f"--how-many {run}: no number of environments fits" in refusal(how_many.measure, run, [128], said.append)


@pytest.mark.parametrize("script, env_id, said", [
    ("ppo", "gymnasium/CartPole-v1", "runs/x runs on the host"), ("pqn", "CartPole-v1", "runs/x was made by pqn.py"),
])  # fmt: skip
def test_runs_that_cannot_be_measured_are_refused(script, env_id, said, monkeypatch):
    record = {"script": script, "args": {"env_id": env_id}}
    monkeypatch.setattr(checkpoints, "find_checkpoint", lambda *_: (Path("runs/x"), record, [1]))
    assert said in refusal(how_many.measure, "runs/x", [], print)


@pytest.mark.parametrize("update, anneal, left", [(3, True, 0.25), (4, True, 1.0), (3, False, 1.0)])
def test_single_updates_have_the_rate_and_the_bonus_of_their_checkpoint(update, anneal, left, monkeypatch):
    """Of a run that has ended, whose rate has fallen to 0, those of its start."""
    saved = {"num_envs": 8, "num_steps": 8, "total_timesteps": 256, "anneal_lr": anneal, "anneal_ent": anneal}
    monkeypatch.setattr(
        checkpoints, "find_checkpoint", lambda *_: (Path("x"), {"script": "ppo", "args": saved}, [update])
    )
    monkeypatch.setattr(how_many, "restore", lambda *_: (None, None, update))
    monkeypatch.setattr(how_many, "Program", lambda _, args: types.SimpleNamespace(args=args, bytes=1))
    seen = []
    monkeypatch.setattr(
        how_many, "single_updates", lambda program, *_: seen.append(program.args) or how_many.Point(*[8.0] * 7)
    )
    how_many.measure("x", [], lambda _: None)
    assert {(args.learning_rate, args.ent_coef) for args in seen} == {(4e-3 * left, 0.06 * left)}


def test_more_environments_are_split_so_that_they_fit():
    args = ppo.Args(num_envs=2048, num_steps=128, minibatch_size=2048, num_devices=1)
    more = how_many.resized(args, 2**18)
    assert (more.num_envs, more.minibatch_size) == (2**18, 2048) and more.num_rollout_chunks == 2**18 * 128 // 2**21
    assert how_many.resized(args, 3).num_envs == 16  # a minibatch


def test_each_lever_changes_what_it_names():
    args = ppo.Args(
        num_envs=64, minibatch_size=256, learning_rate=3e-4, env_id="CartPole-v1", gamma=0.9, norm_obs=True,
        hidden_sizes=(32,), ent_coef=0.0,
    )  # fmt: skip
    known = levers.levers_of(args)
    assert list(known) == ["control", "envs", "minibatch", "lr", "lr_up", "epochs", "eps", "com", "entropy"]
    assert "epochs" not in levers.levers_of(ppo.Args(update_epochs=1))
    down = levers.levers_of(ppo.Args(ent_coef=0.05, learning_rate=0.004))
    assert down["entropy_down"].flags == {"ent_coef": pytest.approx(0.01)}
    assert down["lr_entropy_down"].flags == {"ent_coef": 0.0125, "learning_rate": 0.001}
    cells = levers.cells_of("runs/x@7", "ppo", args, known, 10 * 8 * args.batch_size, (0, 1), False)
    assert len({cell.name for cell in cells.values()}) == len(cells) == 2 * len(known)
    kinds = {"ppo": ppo.Args, "ppo_ewma": ppo_ewma.Args}
    branches = {key: kinds[cell.script](**dict(cell.flags)) for key, cell in cells.items()}
    follows = {"named", "total_timesteps", "run_name", "seed", "log_every", "num_minibatches"}
    for (name, seed), branch in branches.items():
        control = vars(branches["control", seed])
        assert (branch.seed, branch.init_from) == (seed, "runs/x@7")
        assert branch.num_updates == cells[name, seed].num_updates == (10 if name == "envs" else 80)
        changed = {key for key in control if getattr(branch, key) != control[key]} - follows
        assert changed == set(known[name].flags) - {"com"}
        taken = control.keys() - levers.NOT_TAKEN - {"halt_on_nan", "named"}
        assert {key: control[key] for key in taken} == {key: getattr(args, key) for key in taken}
    # However the path of the run is spelled, its branches are found again; those of another checkpoint are others.
    names = lambda run: {c.name for c in levers.cells_of(run, "ppo", args, known, 10, (0, 1), False).values()}  # noqa: E731
    assert names("runs/x@7") == names("/somewhere/runs/x@7") and not names("runs/x@7") & names("runs/x@8")


def test_outcomes_are_differences_seed_by_seed(tmp_path):
    """Seeds differ by 10, the lever adds 1: unpaired nobody would see it. Both intervals hold together."""
    args = ppo.Args(num_envs=64, minibatch_size=256)
    known = {name: lever for name, lever in levers.levers_of(args).items() if name in ("control", "eps", "lr")}
    cells = levers.cells_of("runs/x@7", "ppo", args, known, 20 * args.batch_size, range(4), True)
    rng = np.random.default_rng(0)
    for (name, seed), cell in cells.items():
        if (name, seed) == ("lr", 3):
            continue  # not finished
        level = 10 * seed + (name == "eps") + 0.1 * rng.normal()
        write_run(tmp_path / cell.name, course(np.where(X < 0.75, 0, level), noise=0))
        (tmp_path / cell.name / "summary.json").write_text(json.dumps({"updates": cell.num_updates}))
    found = levers.outcomes(tmp_path, cells)
    returns, effect = found["eps"]
    assert effect.estimate == pytest.approx(1, abs=0.3) and "lifts" in doctor.compared(returns, effect)
    expected = scipy.stats.ttest_rel(returns, found["control"][0]).confidence_interval(1 - 0.05 / 2)
    np.testing.assert_allclose([effect.low, effect.high], expected)
    assert "3 of 4 seeds have a return" in doctor.compared(*found["lr"])
    told = doctor.compared(np.array([5.0]), effects.difference("eps", np.array([2.0])))
    assert told.split(maxsplit=2) == ["5", "+2", "(an interval needs 3 seeds)"]


def test_branches_from_scratch_need_no_checkpoint_and_others_wait_for_the_end_of_the_run(tmp_path, monkeypatch, capsys):
    run = write_run(tmp_path / "run", course(RISE))
    words = ("--intervene", "--levers", "eps", "--dry-run")
    assert "it has no checkpoint" in call(capsys, run, *words)[2]
    code, out, _ = call(capsys, run, *words, "--fresh")
    assert code == 0 and len(out.splitlines()) == 10 and "--init-from" not in out
    largest = 8 * 64 * 32
    words_of_all = ("--intervene", "--levers", "envs", "--dry-run", "--fresh", "--budget", 3 * largest + 5000)
    steps = {*re.findall(r"--total-timesteps (\d+)", call(capsys, run, *words_of_all)[1])}
    assert steps == {str(3 * largest)}  # whole updates of the largest branch for all
    code, _, err = call(capsys, tmp_path, *words, "--fresh")
    assert code == 2 and "not the folder of a run" in err
    for update in (6, 7):
        checkpoints.save(run / "checkpoints", update, {"x": np.zeros(9)})
    (run / "checkpoints/7/0-of-1.npz").write_bytes(b"damaged")
    (run / "source.py").touch()
    with open(run / "source.py") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _, err = call(capsys, run, *words)
        assert code == 2 and f"--intervene {run}: the run is in progress; wait for its end" in err
        assert call(capsys, run, *words, "--fresh")[0] == 0
    code, out, err = call(capsys, run, *words)
    assert code == 0 and f"--init-from {run}@6 " in out and "checkpoints/7 is damaged and left out" in err
    monkeypatch.chdir(run)
    assert call(capsys, ".", *words)[1] == out


@pytest.mark.slow
def test_an_intervention_from_start_to_end(tmp_path, capsys):
    flags = "--env-id CartPole-v1 --num-envs 8 --num-steps 16 --minibatch-size 64 --total-timesteps 4096 --run-name run"
    start(ppo, *flags.split(), "--num-devices", 1, "--num-eval-episodes", 0, "--runs-dir", tmp_path)
    capsys.readouterr()
    words = (tmp_path / "run", "--intervene", "--levers", "eps", "--seeds", 1, "--budget", 1280)
    code, out, _ = call(capsys, *words)
    assert code == 0 and out.count("\n  ") == 2
    again = call(capsys, *words)
    assert again[1] == out  # nothing is run twice
    assert (tmp_path / "run/doctor-branches.png").stat().st_size > 10_000
    assert call(capsys, tmp_path / "run", "--intervene", "--levers", "nonsense")[0] == 2
    assert call(capsys, tmp_path / "run", "--intervene", "--budget", 1)[0] == 2
