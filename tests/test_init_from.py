"""--init-from within and between scripts, and what --resume keeps: the proximal policy, and all on other devices."""

import re
import shutil
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from conftest import ROOT, differ, leaves_close, metrics_of, reusing, same, start

import ppo
import ppo_ewma
from common.run import checkpoints, run as runs
from common.run.arguments import read_record

SMALL = (  # 6 updates of 8 minibatches each
    "--env-id CartPole-v1 --num-envs 4 --num-steps 8 --minibatch-size 8 --update-epochs 2 --hidden-sizes 8 "
    "--num-devices 1 --num-eval-episodes 0 --norm-obs --norm-reward "
    "--total-timesteps 192 --checkpoint-every 2 --keep-checkpoints 0"
)
FLAGS = [*SMALL.split(), "--learning-rate", 0.01, "--no-clip-vloss"]


class Started(Exception):
    """In place of the first update."""


class Outcome(NamedTuple):
    path: Any
    start: Any  # the learner before the first update
    like: Any  # structure, shapes and shardings of the state


def call(script, folder, *flags, stop=False):
    """ppo.py or ppo_ewma.py with these flags, in this process, to its end or up to its first update."""
    found, restore = {}, runs.Run.restore

    def spy(run, state):
        state, found["path"] = restore(run, state), run.path
        found["start"] = jax.tree.map(np.array, jax.device_get(state.learner))
        found["like"] = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
        if stop:
            raise Started
        return state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs.Run, "restore", spy)
        reusing(patch, script)
        try:
            start(script, *flags, "--runs-dir", folder)
        except Started:
            assert stop
    return Outcome(**found)


def learner_at(outcome, update):
    """What was learned after so many updates."""
    like = {"learner": outcome.like.learner}
    saved, _ = checkpoints.restore_newest(outcome.path, [update], like, "", partial=True)
    return jax.tree.map(np.array, jax.device_get(saved["learner"]))


def killed_run(straight, folder, after):
    """The run in `straight` as if it had been killed after so many updates: without what later ones left."""
    shutil.copytree(straight, folder)
    for checkpoint in (folder / "checkpoints").iterdir():
        if int(checkpoint.name) > after:
            shutil.rmtree(checkpoint)
    (folder / "summary.json").unlink()
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:after]))
    return folder


def resumed(script, straight, folder, after, *flags):
    """That run, resumed with these flags."""
    killed_run(straight, folder, after)
    with pytest.MonkeyPatch.context() as patch:
        reusing(patch, script)
        start(script, "--resume", folder, *flags)
    return folder


@pytest.fixture(scope="module")
def of_ppo(tmp_path_factory):
    return call(ppo, tmp_path_factory.mktemp("ppo"), *FLAGS)


@pytest.fixture(scope="module")
def of_ewma(tmp_path_factory):
    return call(ppo_ewma, tmp_path_factory.mktemp("ewma"), *FLAGS, "--com", 4)


def shared(learner):
    """What both scripts learn."""
    return learner.params, learner.opt_state, learner.obs_stats, learner.return_stats


@pytest.mark.slow
def test_the_proximal_policy_is_taken_over_and_a_new_com_is_that_of_the_new_run(of_ewma, tmp_path):
    """With nothing learned, the proximal policy comes nearer by a factor of 9/10 in each of 16 minibatches."""
    flags = [*FLAGS, "--com", 9, "--init-from", f"{of_ewma.path}@4", "--learning-rate", 1e-30]
    run = call(ppo_ewma, tmp_path, *flags)
    old, new = run.start, learner_at(run, 2)
    same(old, learner_at(of_ewma, 4))
    assert differ(old.proximal.params, old.params) and differ(old, learner_at(of_ewma, 2))
    assert old.proximal.weight == pytest.approx(sum(0.8**k for k in range(33)), rel=1e-5)
    same(new.params, old.params)
    away = lambda learner: jax.tree.map(lambda x, y: x - y, learner.proximal.params, old.params)  # noqa: E731
    leaves_close(away(new), jax.tree.map(lambda x: x * 0.9**16, away(old)), rtol=1e-3, atol=1e-6)
    expected = old.proximal.weight * 0.9**16 + sum(0.9**k for k in range(16))
    assert new.proximal.weight == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_from_a_run_of_ppo_the_proximal_policy_starts_as_the_policy(of_ppo, tmp_path):
    """And it does train: the two must not share their memory, which each update is given to write in."""
    run = call(ppo_ewma, tmp_path, *FLAGS, "--com", 4, "--init-from", of_ppo.path)
    same(shared(run.start), shared(learner_at(of_ppo, 6)))
    same(run.start.proximal.params, run.start.params)
    assert run.start.proximal.weight == 1
    trained = learner_at(run, 2)
    assert differ(trained.params, run.start.params) and differ(trained.proximal.params, trained.params)
    assert trained.proximal.weight == pytest.approx(sum(0.8**k for k in range(17)), rel=1e-5)


def test_ppo_goes_on_from_a_run_of_ppo_ewma(of_ewma, tmp_path):
    run = call(ppo, tmp_path, *FLAGS, "--init-from", of_ewma.path)
    saved = learner_at(of_ewma, 6)
    same(shared(run.start), shared(saved))
    assert not hasattr(run.start, "proximal")
    trained = learner_at(run, 2)
    assert differ(trained.params, saved.params) and trained.opt_state.count == saved.opt_state.count + 16


def test_the_pages_lines_load_a_policy(of_ppo, capsys):
    page = (ROOT / "docs/ppo.md").read_text()
    (code,) = [text for text in re.findall(r"```python\n(.+?)```", page, re.S) if "load_learner" in text]
    exec(code.replace('"runs/mine"', repr(str(of_ppo.path)), 1), {})
    actions, values = capsys.readouterr().out.rsplit("[", 1)
    assert len(values.strip(" ]\n").split()) == 8 and actions.count("[") == 9


def test_a_branch_from_a_damaged_checkpoint_says_where_it_began(of_ewma, tmp_path):
    parent = shutil.copytree(of_ewma.path, tmp_path / "parent")
    (parent / "checkpoints/6/0-of-1.npz").unlink()
    run = call(ppo, tmp_path, *FLAGS, "--init-from", parent, stop=True)
    same(shared(run.start), shared(learner_at(of_ewma, 4)))
    record = read_record(run.path, "")
    assert (record["args"]["init_from"], record["steps_before"]) == (f"{parent}@4", 4 * 4 * 8)


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_devices(monkeypatch, tmp_path):
    """From the very state that four devices had after update 4, each with one environment, now on two with two each."""
    straight = call(ppo, tmp_path / "straight", *FLAGS, "--num-devices", 4)
    like = {"environments": straight.like.environments}
    saved = checkpoints.restore_newest(straight.path, [4], like, "", partial=True)[0]["environments"]
    started, restore = [], runs.Run.restore

    def spy(run, state):
        state = restore(run, state)
        started.append((jax.device_get(state.environments), state.environments.obs.sharding))
        return state

    monkeypatch.setattr(runs.Run, "restore", spy)
    found = resumed(ppo, straight.path, tmp_path / "resumed", 4, "--num-devices", "2")
    ((taken, layout),) = started
    same(taken, jax.device_get(saved))
    assert len(layout.device_set) == 2 and layout.shard_shape((1, 4, 4)) == (1, 2, 4)
    assert metrics_of(found)[:4] == metrics_of(straight.path)[:4]
    assert [row["update"] for row in metrics_of(found)] == [1, 2, 3, 4, 5, 6]


def test_a_fresh_critic_is_that_of_a_new_run_and_all_else_is_taken_over(of_ppo, tmp_path):
    flags = (*FLAGS, "--run-name")
    new, taken = call(ppo, tmp_path, *flags, "new", stop=True).start, learner_at(of_ppo, 6)
    mixed = call(ppo, tmp_path, *flags, "mixed", "--init-from", of_ppo.path, "--fresh-critic", stop=True).start
    params, critic = [learner.params["params"] for learner in (new, taken, mixed)], {"critic", "critic_encoder"}
    assert {name for name in params[0] if name.startswith("critic")} == critic and len(params[0]) > len(critic)
    for name in params[2]:
        one, other = (params[0], params[1]) if name in critic else (params[1], params[0])
        same(params[2][name], one[name])
        assert differ(params[2][name], other[name])
    same(mixed.opt_state, taken.opt_state)
    same(mixed.obs_stats, taken.obs_stats)
