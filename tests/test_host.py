"""Environments on the host, --env-id gymnasium/... and envpool/...: a transition is never lost, doubled or wrong."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ROOT, metrics_of, refusal, wait_for

import ppo
from common import envs, evaluation
from common.run import arguments, devices, run as runs
from common.suites import host

pytest.importorskip("gymnasium")
COUNTING = "gymnasium/counting:Counting-v0"
SMALL = dict(num_envs=6, num_steps=8, minibatch_size=12, hidden_sizes=(8,), num_eval_episodes=4, plasticity_every=0)


def play(env, actions, stagger=0, key=0):
    """Take these actions [T, N, D] in one compiled program. -> what reset and what the steps returned, last state."""

    def step(state, inputs):
        state, out = env.step(*inputs[:1], state, inputs[1])
        return state, out

    @jax.jit
    def program(key):
        state, obs = env.reset(key, stagger)
        last, outs = jax.lax.scan(step, state, (jax.random.split(key, len(actions)), actions))
        return (state, obs), outs, last

    return jax.device_get(program(jax.random.key(key)))


def inner(env, pool=0):
    """The environments themselves."""
    return [each.unwrapped for each in env._pools[pool]._envs.envs]


def test_every_transition_of_a_counter_is_known():
    ends, limit, steps, num = (3, 5, 2, 4), 4, 23, 3
    env = envs.make(COUNTING, num)
    actions = np.random.default_rng(0).integers(0, 3, (steps, num, 1), np.int32)
    (_, obs), outs, last = play(env, jnp.array(actions))
    assert env.obs_dtype == np.float32 and obs.dtype == np.float32 and len(set(obs[:, 0])) == num
    for i, one in enumerate(inner(env)):
        episode, time, total, log = 0, 0, 0.0, []
        assert tuple(obs[i, 1:]) == (0, 0)
        for t in range(steps):
            log.append((episode, time, 5 + actions[t, i, 0]))
            time, total = time + 1, total + 10 * episode + time + 1
            assert outs.reward[t, i] == 10 * episode + time
            assert tuple(outs.final_obs[t, i]) == (obs[i, 0], episode, time)
            ended = time == ends[episode % 4]
            assert outs.terminated[t, i] == ended and outs.truncated[t, i] == (time >= limit and not ended)
            assert outs.episode.done[t, i] == (ended or time >= limit)
            if ended or time >= limit:
                assert (outs.episode.length[t, i], outs.episode.total_reward[t, i]) == (time, total)
                episode, time, total = episode + 1, 0, 0.0
            assert tuple(outs.obs[t, i]) == (obs[i, 0], episode, time)
        assert one.log == log and one.resets == episode + 1
        assert (last.length[i], last.total_reward[i]) == (time, total)


def test_rewards_are_clipped_and_returns_are_not():
    """Of episode 0 the rewards are 1 and 2, the later ones' are 11 or more."""
    env = envs.make(COUNTING, 3, reward_clip=1.5)
    _, outs, _ = play(env, jnp.zeros((12, 3, 1), jnp.int32))
    episode, time = outs.final_obs[..., 1], outs.final_obs[..., 2]
    np.testing.assert_array_equal(outs.reward, np.where((episode == 0) & (time == 1), 1, 1.5))
    done = outs.episode.done
    assert done.sum() >= 9
    np.testing.assert_array_equal(outs.episode.total_reward[done], (10 * episode * time + time * (time + 1) / 2)[done])


def test_staggered_environments_have_played_0_to_all_steps():
    env = envs.make(COUNTING, 5, env_kwargs='{"ends": [99], "limit": 99}')
    (state, obs), outs, _ = play(env, jnp.zeros((2, 5, 1), jnp.int32), stagger=8)
    assert list(state.length) == list(obs[:, 2]) and sorted(state.length) == [0, 1, 3, 5, 7]
    for i, episode in enumerate(obs[:, 1].astype(int)):
        assert state.total_reward[i] == sum(10 * episode + time for time in range(1, state.length[i] + 1))
        assert list(outs.obs[:, i, 2]) == [state.length[i] + 1, state.length[i] + 2]


def test_sticky_actions_repeat_what_was_executed_and_begin_anew_with_an_episode():
    env = envs.make(COUNTING, 4, sticky_actions=1.0)
    play(env, jnp.array(np.random.default_rng(1).integers(0, 3, (30, 4, 1)), jnp.int32))
    for one in inner(env):
        first = {episode: action for episode, time, action in one.log if time == 0}
        assert len(set(first.values())) > 1 and all(action == first[episode] for episode, _, action in one.log)
    env = envs.make(COUNTING, 4, sticky_actions=0.25, env_kwargs='{"ends": [9999], "limit": 9999}')
    given = np.random.default_rng(1).integers(0, 3, (500, 4, 1))
    play(env, jnp.array(given, jnp.int32))
    done = np.array([[action - 5 for _, _, action in one.log] for one in inner(env)])
    assert (done == given[..., 0].T).mean() == pytest.approx(1 - 0.25 * 2 / 3, abs=0.04)


@pytest.mark.parametrize("observed, done, shape, dtype, actions", [
    ("real", "real", (2, 2), np.float32, 4),
    ("scalar", "one of", (1,), np.float32, (3,)),
    ("bytes", "many", (2,), np.uint8, (2, 3)),
    ("one of", "bits", (3,), np.bool_, (2, 2, 2)),
    ("bits", "scalar", (3,), np.bool_, 1),
    ("dict", "real", (4,), np.float32, 4),
])  # fmt: skip
def test_spaces_are_translated(observed, done, shape, dtype, actions):
    kwargs = {"observations": observed, "actions": done}
    env = envs.make("gymnasium/counting:Spaces-v0", 2, env_kwargs=json.dumps(kwargs))
    assert (env.obs_shape, env.obs_dtype) == (shape, dtype)
    chosen = np.asarray(env.action_space.sample(jax.random.key(1), 2))
    if isinstance(actions, tuple):
        assert env.action_space == envs.Discrete(actions)
    else:
        assert len(env.action_space.low) == actions and set(env.action_space.high) == {1}
        chosen = 3 * chosen  # out of bounds
    (_, obs), _, _ = play(env, jnp.array(chosen)[None])
    for i, one in enumerate(inner(env)):
        seen = one.obs
        if observed == "dict":
            seen = np.concatenate([seen["b"], seen["a"].ravel()])
        elif observed == "one of":
            seen = np.arange(3) - 1 == seen
        np.testing.assert_allclose(obs[i], np.reshape(seen, shape), rtol=1e-6)
        taken = np.ravel(one.seen[-1] - np.array({"one of": -1, "many": [1, 0]}.get(done, 0)))
        np.testing.assert_allclose(taken, chosen[i] if isinstance(actions, tuple) else np.clip(chosen[i], -1, 1))


def test_an_action_at_a_bound_that_float32_rounds_outwards_is_in_the_space():
    from gymnasium import spaces

    space = spaces.Box(-0.1, 0.1, (2,), np.float64)
    ours, write = host._writer("actions", space)
    action = np.stack([ours.high, ours.low])
    assert not space.contains(action[0].astype(np.float64)) and all(map(space.contains, write(action)))


def test_pixels_have_their_channels_last_and_stay_bytes():
    env = envs.make("gymnasium/counting:Pixels-v0", 2)
    assert env.obs_shape == (36, 40, 2) and env.obs_dtype == np.uint8
    _, outs, _ = play(env, jnp.zeros((5, 2, 1), jnp.int32))
    lit = [one.lit for one in inner(env)]
    for obs, channel in zip(outs.obs[-1], lit, strict=True):
        assert (obs[1:9, 2:7, channel] == 200).all() and obs.sum() == 200 * 40


def test_boxes_that_are_no_plain_floats_or_bytes():
    from gymnasium import spaces

    def read(space, obs):
        shape, dtype, how = host._reader("observations", space)
        found = how(obs[None])[0]
        assert found.shape == shape and found.dtype == dtype
        return found

    rng = np.random.default_rng(0)
    stack = rng.integers(0, 256, (4, 8, 9, 3), np.uint8)  # colour pictures, as gymnasium.wrappers.FrameStackObservation
    assert read(spaces.Box(0, 255, stack.shape, np.uint8), stack)[5, 6].tolist() == stack[:, 5, 6].ravel().tolist()
    turned = stack.transpose(0, 3, 1, 2)  # with their channels first
    assert read(spaces.Box(0, 255, turned.shape, np.uint8), turned)[5, 6].tolist() == stack[:, 5, 6].ravel().tolist()
    first = rng.random((3, 8, 9), np.float32)
    np.testing.assert_array_equal(read(spaces.Box(0, 1, first.shape), first)[5, 6], first[:, 5, 6])
    big = np.array([2**33, 5])
    assert read(spaces.Box(0, 2**40, (2,), np.int64), big).tolist() == [2.0**33, 5.0]
    assert read(spaces.Box(-9, 9, (2,), np.int64), big * 0 - 3).tolist() == [-3, -3]


def test_an_evaluation_plays_one_episode_in_each_of_its_own_environments():
    env = envs.make(COUNTING, 2)
    play(env, jnp.zeros((3, 2, 1), jnp.int32))
    before = [list(one.log) for one in inner(env)]
    act = lambda obs, key, memory: (jnp.zeros((len(obs), 1), jnp.int32), memory)  # noqa: E731
    first = jax.jit(lambda key: evaluation.play(env.suite, 5, act, key))(jax.random.key(0))
    assert first.length.tolist() == [3] * 5 and first.total_reward.tolist() == [1 + 2 + 3] * 5
    assert [one.log for one in inner(env)] == before
    again = envs.copies(env.suite, 5, auto_reset=False)
    for key in range(2):
        play(again, jnp.zeros((1, 5, 1), jnp.int32), key=key)
    assert len(again._pools) == 1


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_and_each_chunk_has_its_own_environments():
    args = ppo.Args(**SMALL, env_id=COUNTING, total_timesteps=2 * 48, num_rollout_chunks=2)
    _, env, _, init, step, _, _ = ppo.build(args)
    ends = []
    for i, seed in enumerate((0, 0, 1)):
        state = init(devices.OnDevices(jax.devices()[:1], 1).keys(seed))
        assert state.environments.state.pool.tolist() == [[2 * i], [2 * i + 1]]
        assert len({float(x) for x in state.environments.obs[..., 0].ravel()}) == 6
        for _ in range(2):
            state, metrics, _ = step(state)
        assert np.isfinite(metrics["outer/kl"])
        which = state.environments.state._replace(pool=0)
        ends.append(jax.device_get((state.learner, state.environments._replace(state=which), metrics)))
        logs = [one.log for pool in (2 * i, 2 * i + 1) for one in inner(env, pool)]
        times = [(episode, time) for episode, time, _ in logs[0]]
        assert len(times) == 16 and all([log[:2] for log in one] == times for one in logs)
    jax.tree.map(np.testing.assert_array_equal, ends[0], ends[1])
    assert any((a != b).any() for a, b in zip(*map(jax.tree.leaves, (ends[0], ends[2])), strict=True))


@pytest.mark.slow
def test_a_resumed_run_says_that_its_episodes_begin_anew_and_keeps_all_else(tmp_path, capsys):
    args = ppo.Args(
        **SMALL, env_id="gymnasium/CartPole-v1", total_timesteps=4 * 48, checkpoint_every=2, runs_dir=str(tmp_path)
    )
    path = ppo.train(args)
    whole = metrics_of(path)
    shutil.rmtree(path / "checkpoints/4")
    _, _, _, init, _, _, keys = ppo.build(args)
    fresh = init(keys)
    state = runs.Run(runs.begin(ppo.Args(resume=str(path)), ppo.__file__), ppo.__file__)
    restored = state.restore(jax.tree.map(lambda x: x, fresh))
    state._lock.close()
    assert int(restored.update) == 2 and state._newest().name == "2"
    jax.tree.map(np.testing.assert_array_equal, restored.environments, fresh.environments)
    assert not np.array_equal(jax.random.key_data(restored.key), jax.random.key_data(fresh.key))
    before = jax.tree.leaves(restored.learner.params)[0]
    assert not np.array_equal(before, jax.tree.leaves(fresh.learner.params)[0])
    capsys.readouterr()
    assert ppo.train(ppo.Args(resume=str(path))) == path
    said = [line for line in capsys.readouterr().err.splitlines() if "resuming" in line]
    why = "all episodes begin anew, because gymnasium/CartPole-v1 cannot be saved"
    assert said == [f"resuming after update 2 of 4; {why}"]
    assert metrics_of(path)[:2] == whole[:2] and [line["update"] for line in metrics_of(path)] == [1, 2, 3, 4, 4]


@pytest.mark.slow
def test_an_environment_that_raises_ends_the_run_in_one_line_and_loses_nothing(tmp_path):
    words = "--num-envs 6 --num-steps 8 --minibatch-size 12 --hidden-sizes 8 --total-timesteps 480 --checkpoint-every 2"
    command = [sys.executable, str(ROOT / "ppo.py"), "--env-id", COUNTING, "--env-kwargs", '{"fail_at": 39}']
    command += [*words.split(), "--runs-dir", str(tmp_path), "--run-name", "broken", "--plasticity-every", "0"]
    done = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True)
    err = done.stderr.strip().splitlines()
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    where = f'ppo.py: --env-id {COUNTING} --env-kwargs {{"fail_at": 39}}: step raises ValueError: the cable is ('
    assert err[-1].startswith(where) and "counting.py:" in err[-1]
    assert "the newest checkpoint is that of update 4; to go on: python" in err[-2]
    assert [line["update"] for line in metrics_of(tmp_path / "broken")] == [1, 2, 3, 4]
    assert (tmp_path / "broken/environment.py").read_text() == (ROOT / "tests/counting.py").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_environments_are_closed_when_they_are_no_longer_used_and_at_the_end(tmp_path, mode):
    kwargs = json.dumps({"folder": str(tmp_path), "vectorization_mode": mode})
    code = f"""
import counting, jax, os
from common import envs
env = envs.make("gymnasium/counting:Opened-v0", 3, env_kwargs={kwargs!r})
after_the_trial = len(os.listdir({str(tmp_path)!r}))
env.auto_reset = False  # as in an evaluation, whose environments are gone when the next one begins
for key in (0, 1):
    jax.block_until_ready(jax.jit(env.reset)(jax.random.key(key)))
print(after_the_trial, len(os.listdir({str(tmp_path)!r})))
"""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    how = dict(env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120)
    done = subprocess.run([sys.executable, "-c", code], **how)
    assert (done.returncode, done.stdout) == (0, "0 3\n"), done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_signal_to_the_whole_group_is_not_heard_by_workers_and_the_run_saves(tmp_path):
    """As from a terminal, or Slurm: they would die in the middle of the update."""
    words = "--env-id gymnasium/CartPole-v1 --num-envs 3 --num-steps 8 --minibatch-size 12 --hidden-sizes 8 "
    words += "--total-timesteps 24000000 --plasticity-every 0 --num-eval-episodes 0 --run-name x --runs-dir"
    command = [sys.executable, str(ROOT / "ppo.py"), *words.split(), str(tmp_path)]
    command += ["--env-kwargs", '{"vectorization_mode": "async"}']
    how = dict(start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process = subprocess.Popen(command, **how)
    try:
        wait_for(lambda: (tmp_path / "x/metrics.jsonl").exists() or process.poll() is not None, 120)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGINT and "Traceback" not in errors, errors
        (update,) = (int(path.name) for path in (tmp_path / "x/checkpoints").iterdir())
        assert [line["update"] for line in metrics_of(tmp_path / "x")] == list(range(1, update + 1))
        with pytest.raises(ProcessLookupError):  # soon nobody is left
            for _ in range(200):
                os.killpg(process.pid, 0)
                time.sleep(0.05)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("env_id, given, said", [
    ("CartPole-v7", dict(), "version `v7` .* did you mean CartPole-v1, CartPole-v0"),
    ("nowhere:Some-v0", dict(), "importing nowhere raises ModuleNotFoundError"),
    ("counting:Spaces-v0", dict(env_kwargs='{"actions": "text"}'), r"its actions are Text\(.*; must be Disc"),
    ("Pendulum-v1", dict(env_kwargs='{"gravity": 3}'), '"gravity": 3}: making it raises Type'),
    ("Blackjack-v1", dict(), r"its observations are Tuple\(.*; must be Box"),
    ("CartPole-v1", dict(num_seeds=2), "--num-seeds 2: gymnasium/CartPole-v1 runs on the host, .* one run per seed"),
    ("Acrobot-v1", dict(num_devices=2), "--num-devices 2: gymnasium/Acrobot-v1 runs on the host"),
    ("Taxi-v3", dict(time_limit=9), """--time-limit 9: .* such as --env-kwargs '{"max_episode_steps": 9}'"""),
    ("CartPole-v1", dict(frame_stack=2), "--frame-stack 2: .* with gymnasium.wrappers.FrameStackObservation"),
    ("counting:Counting-v0", dict(env_kwargs='{"fail_at": 1}'), r"step raises ValueError: the cable .*ing.py:\d+\)"),
    ("MountainCar-v0", dict(network="nature"), "--network nature: needs images of at least 36 x 36; .*(2,)"),
])  # fmt: skip
def test_what_cannot_run_is_one_line_before_anything_is_compiled(env_id, given, said):
    args = {**SMALL, **given, "env_id": f"gymnasium/{env_id}"}
    assert re.search(said, refusal(lambda: ppo.build(ppo.Args(**args))))


def test_the_page_is_true(tmp_path, monkeypatch):
    """docs/host.md: its module works, and its commands are accepted."""
    page = (ROOT / "docs/host.md").read_text()
    (module,) = re.findall(r"```python\n(.+?)```", page, re.S)
    (tmp_path / "my_module.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    commands = re.findall(r"^python ppo.py (.+)$", page, re.M)
    args = [arguments.parse(ppo.Args, "", shlex.split(command)) for command in commands]
    assert {each.env_id.partition("/")[0] for each in args} == {"gymnasium", "envpool"}
    (own,) = [each for each in args if "my_module" in each.env_id]
    env = envs.make(own.env_id, 2, env_kwargs=own.env_kwargs)
    (_, _), outs, _ = play(env, jnp.zeros((51, 2, 1), jnp.int32))
    assert inner(env)[0].size == 6 and outs.truncated.any() and outs.episode.length.max() == 50


def bare(name, actions, seed, **kwargs):
    """What the environments do in envpool's own loop, where the step after an end starts an episode and takes no
    action: each [T, N, ...] by name, and obs, what each action was taken on."""
    import envpool

    steps, num = actions.shape
    pool = envpool.make(name, env_type="gymnasium", num_envs=num, seed=seed, **kwargs)
    obs, _ = pool.reset()
    keys = ("obs", "final_obs", "reward", "terminated", "truncated", "lives")
    found = {key: [[] for _ in range(num)] for key in keys}
    ended = np.zeros(num, bool)
    while min(map(len, found["reward"])) < steps:
        taken = np.array([len(rewards) for rewards in found["reward"]])
        chosen = actions[np.minimum(taken, steps - 1), np.arange(num)]
        before, (obs, reward, terminated, truncated, info) = obs, pool.step(chosen)
        for i in np.flatnonzero(~ended & (taken < steps)):
            values = (before[i], obs[i], reward[i], terminated[i], truncated[i], info.get("lives", np.zeros(num))[i])
            for key, value in zip(found, values, strict=True):
                found[key][i].append(value)
        ended = ~ended & (terminated | truncated)
    return {key: np.array([rows[:steps] for rows in found[key]]).swapaxes(0, 1) for key in found}


@pytest.mark.optional
@pytest.mark.parametrize("name, kwargs", [
    ("CartPole-v1", dict(max_episode_steps=25)), ("Breakout-v5", dict(episodic_life=True, reward_clip=True)),
])  # fmt: skip
def test_envpool_plays_as_in_its_own_loop(monkeypatch, name, kwargs):
    pytest.importorskip("envpool")
    env = envs.make(f"envpool/{name}", 3, env_kwargs=json.dumps(kwargs))
    seeds, make = [], env.suite._make
    monkeypatch.setattr(env.suite, "_make", lambda num, seed, **kwargs: seeds.append(seed) or make(num, seed, **kwargs))
    actions = np.random.default_rng(0).integers(0, env.action_space.nvec[0], (300, 3), np.int32)
    (_, obs), outs, _ = play(env, jnp.array(actions)[..., None])
    theirs = bare(name, actions, seeds[0], **kwargs)
    if name == "Breakout-v5":
        theirs |= {key: np.moveaxis(theirs[key], 2, -1) for key in ("obs", "final_obs")}
    np.testing.assert_array_equal(np.concatenate([obs[None], outs.obs[:-1]]), theirs["obs"])
    for key in ("final_obs", "reward", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(outs, key), theirs[key], err_msg=key)
    ends = theirs["terminated"] | theirs["truncated"]
    assert ends.sum() > 8
    if name == "CartPole-v1":
        assert theirs["truncated"].any() and (outs.episode.done == ends).all()
    else:  # an episode is a life, and what is counted is the game
        assert (outs.episode.done == (ends & (theirs["lives"] == 0))).all() and outs.episode.done.any()


@pytest.mark.optional
@pytest.mark.parametrize("name, seen", [
    ("MiniGrid-Empty-5x5-v0", ((7, 7, 3), np.int8)),  # symbols and no pixels
    ("LeapCubeReorient-v1", ((57,), np.float32)),  # without what is for the critic alone
])  # fmt: skip
def test_the_policy_sees_its_part_of_a_dict(name, seen):
    pytest.importorskip("envpool")
    env = envs.make(f"envpool/{name}", 1)
    assert (env.obs_shape, env.obs_dtype) == seen


CUTS_NOTHING = "max_episode_steps cuts none of its episodes; leave it out"  # every later end would be a truncation


@pytest.mark.optional
@pytest.mark.parametrize("name, kwargs, said", [
    ("Pnog-v5", "{}", "envpool has no Pnog-v5; did you mean Pong-v5"),
    ("CartPole-v1", '{"batch_size": 1}', '--env-kwargs {"batch_size": 1}: making it raises TypeError: .*batch_size'),
    ("StarpilotEasy-v0", '{"max_episode_steps": 5}', f"envpool/StarpilotEasy-v0: {CUTS_NOTHING}"),
    ("tabular/CliffWalking-v0", '{"max_episode_steps": 5}', f"envpool/tabular/CliffWalking-v0: {CUTS_NOTHING}"),
])  # fmt: skip
def test_what_envpool_cannot_do_is_one_line(name, kwargs, said):
    pytest.importorskip("envpool")
    assert re.search(said, refusal(envs.make, f"envpool/{name}", 2, env_kwargs=kwargs))


@pytest.mark.optional
@pytest.mark.parametrize("name", ["FrozenLake-v1", "MiniGrid-Empty-5x5-v0", "Pendulum-v1"])
def test_a_limit_that_is_not_refused_cuts(name):
    pytest.importorskip("envpool")
    env = envs.make(f"envpool/{name}", 2, env_kwargs='{"max_episode_steps": 4}')
    _, outs, _ = play(env, jnp.zeros((8, 2, env.action_dim), jnp.int32 if name[0] != "P" else jnp.float32))
    assert outs.truncated[3].all() and not outs.terminated[3].any()
    assert (outs.episode.length[outs.episode.done] <= 4).all()
