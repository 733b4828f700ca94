"""The search for learnable levels and the training on them, on levels whose answers are known; then on Kinetix."""

import json
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from coins import Coins, ToyNetwork, coins, install
from conftest import differ, gains, leaves_close, metrics_of, on_devices, refusal, same
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec as P

import ppo
import ppo_ewma
import sfl_kinetix
from common import envs
from common.actions import Categorical
from common.arrays import unpack
from common.run import arguments, folder, plots, run as runs
from common.suites import kinetix
from common.suites.kinetix_levels import LevelPlayer
from common.suites.kinetix_network import MODELS, ActorCritic, load_published
from sfl_kinetix import Args, Learner, Levels


def pack(levels):
    return jax.vmap(Coins().pack)(levels)


NET = ToyNetwork()
PARAMS = NET.init(jax.random.key(0))
ARGS = Args(
    num_envs=8, num_steps=8, total_timesteps=64 * 6, minibatch_size=16, num_candidates=32, search_batch=16,
    buffer_size=8, buffer_every=2, learnability_steps=9, num_devices=1, num_eval_episodes=0, plasticity_every=2,
    learning_rate=1e-2,
)  # fmt: skip


@pytest.fixture
def toy(monkeypatch, tmp_path):
    """sfl_kinetix on coins; runs go to a folder of the test's own."""
    install(monkeypatch.setattr)
    return replace(ARGS, runs_dir=str(tmp_path))


def built(**flags):
    """sfl_kinetix.build on coins."""
    with pytest.MonkeyPatch.context() as patch:
        install(patch.setattr)
        return sfl_kinetix.build(replace(ARGS, **flags))


def env_of(n):
    return envs.LevelEnv(Coins(), n)


def holding(state, levels):
    """The state with these eight levels in its buffer, on the devices on which it was: else it is compiled anew."""
    where = jax.tree.map(lambda x: x.sharding, state.buffer)
    return state._replace(buffer=jax.device_put(Levels(pack(levels), jnp.ones(8), jnp.zeros(8)), where))


@pytest.mark.parametrize("estimator, factor", [("window", 1.0), ("episodes", 4 / 3)])
def test_learnability_by_hand(estimator, factor):
    args = Args(learnability_estimator=estimator)
    rate, value = sfl_kinetix.learnability(args, jnp.array([0, 1, 2, 4, 0]), jnp.array([4, 4, 4, 4, 0]))
    np.testing.assert_allclose(rate, [0, 0.25, 0.5, 1, np.nan])
    np.testing.assert_allclose(value, factor * np.array([0, 3 / 16, 4 / 16, 0, np.nan]), rtol=1e-6)


def test_only_the_first_episodes_count_where_their_number_is_fixed():
    fixed, levels = Args(learnability_estimator="episodes", learnability_episodes=3), coins([1.0, 0.0], 5.0, 7.0)
    for args, expected in ((fixed, [[3, 0], [3, 3]]), (Args(learnability_steps=21), [[4, 0], [4, 3]])):
        run = lambda *x, args=args: sfl_kinetix.play_levels(args, env_of(1), NET, PARAMS, *x)  # noqa: E731
        np.testing.assert_array_equal(on_devices(run)(pack(levels), jax.random.key(0)), expected)


def test_a_tally_is_of_the_known_levels_and_has_every_rate_in_one_bin():
    rates = jnp.array([0.0, 0.04, 0.06, 0.5, 0.94, 0.96, 1.0, 1.0, jnp.nan, 0.5])
    known = jnp.isfinite(rates).at[9].set(False)
    found = {name: x[0] for name, x in sfl_kinetix.tally(rates, 2 * rates, known).items()}
    assert (found.pop("levels"), found.pop("success_rate"), found.pop("learnability")) == pytest.approx((8, 4.5, 9))
    assert list(found) == [f"rate_0.{i}" for i in range(10)] + ["rate_1.0"]
    assert list(found.values()) == [2, 1, 0, 0, 0, 1, 0, 0, 0, 1, 3]


@pytest.mark.parametrize("number, chunks, part", [(1, 1, 1), (8, 2, 2)])
def test_a_search_over_devices_keeps_what_a_sort_of_all_candidates_would(number, chunks, part):
    """Levels that end after 2 steps if solved, else after 4: the window's p is then known from the level's outcomes.
    Here they are certain (p is 0 or 1), or never end; the rest is in the order of the tie-break."""
    n = 2 * chunks * number * 4
    args = replace(ARGS, num_candidates=n, buffer_size=n // part, num_rollout_chunks=chunks, learnability_steps=8)
    rng = np.random.default_rng(2)
    p = rng.integers(0, 2, n).astype(float)
    slow = np.where(rng.random(n) < 0.4, 100, 4.0)  # too long for the window: no episode ends, unless solved
    levels = coins(p=p, quick=2.0, slow=slow, number=np.arange(n))
    batches = pack(levels).reshape(2, chunks, -1, 16)

    def run(batches, key):
        nothing = sfl_kinetix.tally(*jnp.zeros((3, 1), bool))
        found = sfl_kinetix.Found(sfl_kinetix.no_levels(args, env_of(1)), nothing)
        learner = Learner(PARAMS, None, None)
        for i in range(2):
            found = sfl_kinetix.score_levels(args, env_of(1), NET, found, learner, batches[i], key, i)
        return sfl_kinetix.gather_levels(args, found)

    best, metrics = jax.device_get(on_devices(run, number, (P(None, None, "device"), P()))(batches, jax.random.key(0)))
    known = (p == 1) | (slow == 4)
    expected = np.where(known, 0.001 * p, -np.inf)
    np.testing.assert_allclose(best.score, np.sort(expected)[::-1][: n // part], rtol=1e-6)
    numbers = np.asarray(jax.vmap(Coins().unpack)(best.data).number)[best.score > -np.inf].astype(int)
    assert len(set(numbers)) == len(numbers) == metrics["buffer/levels"] and known[numbers].all()
    np.testing.assert_array_equal(p[numbers], best.success_rate[: len(numbers)])
    assert metrics["search/levels"] == known.sum()
    np.testing.assert_allclose(metrics["search/success_rate"], p[known].mean(), rtol=1e-6)
    shares = [[metrics[f"{name}/rate_{rate / 10:.1f}"] for rate in range(11)] for name in ("search", "buffer")]
    solved = np.array([p[known].mean(), p[numbers].mean()])
    np.testing.assert_allclose(shares, np.stack([1 - solved, *np.zeros((9, 2)), solved], 1), atol=1e-6)
    assert metrics["buffer/learnability"] < 1e-6 and abs(metrics["buffer/learnability_min"]) < 1e-6


def test_draws_are_of_the_filled_part_of_the_buffer_and_alike():
    score = jnp.where(jnp.arange(8) < 5, 1.0, -jnp.inf)
    buffer = Levels(jnp.arange(8, dtype=jnp.uint8)[:, None], score, jnp.zeros(8))
    fresh = jnp.array([[100], [101], [102]], jnp.uint8)
    drawn = np.asarray(sfl_kinetix.draw_levels(buffer, fresh, 10_000, jax.random.key(0)))[:, 0]
    np.testing.assert_array_equal(drawn[-3:], [100, 101, 102])
    np.testing.assert_allclose(np.bincount(drawn[:-3], minlength=8) / 10_000, [0.2] * 5 + [0] * 3, atol=0.02)


def test_an_environment_keeps_its_level():
    env = env_of(3)
    levels = coins(p=[1.0, 0.0, 0.5], quick=[2.0, 2.0, 5.0], slow=[9.0, 3.0, 5.0], number=[7, 8, 9])
    state, _ = env.start(levels)
    step = jax.jit(env.step)
    ended = []
    for time in range(12):
        state, out = step(jax.random.key(time), state, jnp.zeros((3, 1), jnp.int32))
        np.testing.assert_array_equal(out.obs["number"][:, 0], [7, 8, 9])
        np.testing.assert_array_equal(state.inner.state.time == 0, out.episode.done)
        final_time = np.where(out.episode.done, [2, 3, 5], state.inner.state.time)
        # Of the new episode's first state, not of the old one's last.
        np.testing.assert_array_equal(out.obs["late"][:, 0], state.inner.state.time > 3)
        np.testing.assert_array_equal(out.final_obs["late"][:, 0], final_time > 3)
        ended.append(out.episode)
    ended = jax.tree.map(lambda *x: np.stack(x), *ended)
    np.testing.assert_array_equal(ended.done, [[t % 2 == 1, t % 3 == 2, t % 5 == 4] for t in range(12)])
    np.testing.assert_array_equal(ended.success[:, :2], [[t % 2 == 1, False] for t in range(12)])
    np.testing.assert_array_equal(ended.length[ended.done[:, 1], 1], 3)


class CutShort(Coins):
    """Observes its time, is never solved, and is cut after three steps."""

    def observe(self, state):
        return {"time": state.time}

    def step(self, key, state, action):
        state = state._replace(time=state.time + 1)
        no = jnp.bool_(False)
        return state, self.observe(state), jnp.float32(0), no, state.time >= 3, no


def test_what_comes_after_a_cut_or_the_last_step_has_its_own_value():
    """The value is the observed time: before a cut it is 2, of what the cut hides 3, after it 0."""
    env, args = envs.LevelEnv(CutShort(), 4), replace(ARGS, num_envs=4, num_minibatches=None)
    logits = jnp.zeros((4, 2))
    network = SimpleNamespace(apply=lambda params, obs: (Categorical(logits, (2,)), obs["time"]))
    run = lambda levels, key: sfl_kinetix.rollout(args, env, network, {}, levels, key)  # noqa: E731
    t, last_value, _ = on_devices(run)(pack(coins(p=np.zeros(4))), jax.random.key(0))
    time = np.tile(np.array([0, 1, 2, 0, 1, 2, 0, 1])[:, None], 4)
    np.testing.assert_array_equal(t.value, time)
    np.testing.assert_array_equal(t.final_value, np.where(time == 2, 3, 0))
    np.testing.assert_array_equal(last_value, np.full(4, 2))


@pytest.mark.parametrize("share, number, chunks", [pytest.param(0.25, 2, 2, marks=pytest.mark.slow), (1.0, 8, 1)])
def test_rho_of_the_environments_are_on_levels_of_the_buffer_and_no_fresh_level_comes_twice(share, number, chunks):
    """The levels that an update sees, by the numbers in its observations, of which the sample has all."""
    n = 32
    args, env, _, programs, keys = built(
        num_envs=n, num_steps=4, minibatch_size=32, num_minibatches=None, buffer_share=share, num_devices=number,
        num_rollout_chunks=chunks, search_batch=None, num_candidates=1280, total_timesteps=n * 400,
    )  # fmt: skip
    state = holding(programs.init(keys), coins(p=np.full(8, 0.5), number=-np.arange(1, 9)))
    num_known = round(share * env.num_envs) * number * chunks
    num_fresh = n - num_known
    fresh, all_seen = programs.sample(keys, sfl_kinetix.FRESH, 0), []
    assert fresh.shape == (chunks, args.search_batch // chunks, 16)
    turns = args.search_batch // num_fresh if num_fresh else 3
    assert num_fresh == 0 or args.search_batch == turns * num_fresh >= 256
    for _ in range(turns):
        state, metrics, sample = programs.update(state, fresh)
        seen = np.asarray(sample.obs["number"]).ravel()
        numbers, counts = np.unique(seen[seen > 0], return_counts=True)
        assert (seen < 0).sum() == 4 * num_known and set(seen[seen < 0]) <= set(range(-8, 0))
        assert len(numbers) == num_fresh and (counts == 4).all()
        all_seen += list(numbers)
        assert np.isnan(metrics["charts/buffer_solve_rate"]) or share > 0
    numbers = np.asarray(jax.vmap(Coins().unpack)(fresh.reshape(-1, 16)).number)
    assert sorted(all_seen) == (sorted(numbers) if num_fresh else [])


@pytest.mark.parametrize("com", [None, 4.0])
def test_the_inner_loop_is_that_of_ppo(com):
    """And with --com that of ppo_ewma.py: the same steps from the same parameters, batch and key."""
    size, theirs, network = 64, ppo if com is None else ppo_ewma, NET
    flags = dict(
        num_envs=16, num_steps=4, minibatch_size=16, update_epochs=3, clip_eps=0.2, ent_coef=0.01, vf_coef=0.5,
        clip_vloss=True, max_grad_norm=0.5, num_devices=1, total_timesteps=64,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    number, noise = jnp.asarray(rng.uniform(0, 1e7, (size, 1)), jnp.float32), rng.normal(size=(3, size))
    obs = {"number": number, "late": jnp.zeros((size, 1), bool)}
    action, nothing = jnp.asarray(rng.integers(0, 2, (size, 1))), jnp.zeros(())
    dist, value = network.apply(PARAMS, obs)
    advantage, shift, error = map(jnp.float32, noise)
    batch = sfl_kinetix.Batch(obs, action, dist.log_prob(action) + 0.1 * shift, value, advantage, value + error)

    def run(script, learner, **flags_of_its_own):
        args = script.Args(**flags, **flags_of_its_own)
        annealed = (0.01,) if script is sfl_kinetix else (0.01, args.ent_coef)
        step = lambda learner: script.optimise(args, network, learner, batch, jax.random.key(3), *annealed)  # noqa: E731
        return on_devices(step)(learner)[0]

    opt_state, extra = sfl_kinetix.ADAM.init(ravel_pytree(PARAMS)[0]), {} if com is None else {"com": com}
    proximal = None if com is None else sfl_kinetix.Proximal(PARAMS, jnp.ones(()))
    mine = run(sfl_kinetix, Learner(PARAMS, opt_state, proximal), num_candidates=32, buffer_size=8, **extra)
    averaged = [] if com is None else [ppo_ewma.Proximal(PARAMS, jnp.ones(()))]
    peer = run(theirs, theirs.Learner(PARAMS, opt_state, *averaged, nothing, nothing), **extra)
    moved = jax.tree.map(lambda x, y: float(jnp.abs(x - y).max()), mine.params, PARAMS)
    assert max(jax.tree.leaves(moved)) > 1e-2
    compared = [(x.params, *(() if com is None else x.proximal)) for x in (mine, peer)]
    leaves_close(*compared, rtol=1e-5, atol=1e-7)


def test_an_update_learns_what_it_says_at_the_rate_that_it_says():
    """With a discount of 0 targets are rewards, 0 or 1. KL and gains in NumPy. The learning rate falls to 0."""
    flags = dict(gamma=0.0, gae_lambda=0.9, anneal_lr=True, learning_rate=0.1, num_envs=32, buffer_share=0.0)
    flags |= dict(search_batch=None, num_minibatches=None, total_timesteps=32 * 8 * 4)
    _, _, network, programs, keys = built(**flags)
    state, fresh, rows, params = programs.init(keys), programs.sample(keys, sfl_kinetix.FRESH, 0), [], []
    for _ in range(4):
        params.append(jax.tree.map(np.asarray, state.learner.params))
        state, metrics, sample = programs.update(state, fresh)
        rows.append(jax.device_get(metrics))
    np.testing.assert_allclose([row["charts/learning_rate"] for row in rows], [0.1, 0.075, 0.05, 0.025], rtol=1e-6)
    batch = jax.tree.map(lambda x: np.asarray(x)[0], sample)
    assert set(batch.target.round(5)) == {0, 1} and np.isnan(rows[0]["outer/fresh_gain"])
    obs, action = jax.device_get(unpack(batch.obs)), batch.action[:, 0]

    def policy(params):
        logits = np.asarray(network.apply(params, obs)[0].logits, np.float64)
        return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)

    earlier, before, after = map(policy, (*params[2:], state.learner.params))
    kl, own, fresh = gains(earlier, before, after, action, batch.advantage)
    own, fresh = own.mean(), fresh.mean()
    assert min(kl, abs(own), abs(fresh)) > 1e-6
    np.testing.assert_allclose(rows[3]["outer/kl"], kl, rtol=1e-2)
    np.testing.assert_allclose(rows[3]["outer/ddr"], 256 / kl, rtol=1e-2)
    np.testing.assert_allclose([rows[3]["outer/own_gain"], rows[3]["outer/fresh_gain"]], [own, fresh], rtol=1e-2)


def test_solve_rates_are_told_apart_by_where_a_level_is_from():
    flags = dict(num_envs=16, num_steps=32, num_minibatches=None, total_timesteps=512)
    args, _, _, programs, keys = built(**flags)
    state = holding(programs.init(keys), coins(p=np.ones(8), quick=2.0))
    fresh = jnp.broadcast_to(pack(coins(p=[0.0], slow=4.0)), (1, args.search_batch, 16))
    _, metrics, _ = programs.update(state, fresh)
    assert metrics["charts/buffer_solve_rate"] == 1 and metrics["charts/fresh_solve_rate"] == 0
    counts = [metrics[f"charts/{kind}num_episodes"] for kind in ("", "buffer_", "fresh_")]
    assert counts[0] == counts[1] + counts[2] and counts[1] != counts[2]
    assert metrics["charts/num_episodes"] == 8 * 16 + 8 * 8
    np.testing.assert_allclose(metrics["charts/solve_rate"], 2 / 3, rtol=1e-6)


def test_table_3_fits_and_candidates_are_rounded_up_to_whole_batches():
    for num_envs, share, asked, number, chunks, batch, candidates in (
        (2048, 0.5, 12288, 1, 1, 1024, 12288),
        (2**20, 0.5, 2**22, 128, 1, 2**19, 2**22),
        (65536, 0.5, 262144, 8, 8, 32768, 262144),
        (2048, 0.0, 100, 1, 1, 2048, 2048),
        (2048, 0.3, 3000, 1, 1, 1434, 4302),
    ):
        sizes = dict(num_envs=num_envs, num_candidates=asked, buffer_share=share, num_rollout_chunks=chunks)
        args = Args(**sizes, total_timesteps=2**40)
        settled = sfl_kinetix.settle_search(args, number)
        assert (settled.search_batch, settled.num_candidates, settled.num_devices) == (batch, candidates, number)
        assert args.num_minibatches == num_envs // 64 and args.minibatch_size == 16384


def watched(put, **spies):
    """Puts functions in the place of the programs of these names; each is given the program and its inputs."""
    build = sfl_kinetix.build

    def building(args):
        args, env, network, programs, keys = build(args)
        new = {name: partial(spy, getattr(programs, name)) for name, spy in spies.items()}
        return args, env, network, SimpleNamespace(**vars(programs) | new), keys

    put(sfl_kinetix, "build", building)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run from start to end with all that there is; candidates: of all searches, batch by batch; learners: after so
    many updates."""
    candidates, learners, evaluate_if_due = [], {}, runs.Run.evaluate_if_due
    args = replace(
        ARGS, com=4.0, checkpoint_every=1, keep_checkpoints=0, eval_every=2, num_eval_episodes=3, eval_sizes=("s",),
        capture_video=True, video_buffer_levels=2, runs_dir=str(tmp_path_factory.mktemp("runs")), run_name="straight",
    )  # fmt: skip

    def score(program, found, learner, levels, *rest):
        candidates.append(np.asarray(levels).reshape(-1, 16))
        return program(found, learner, levels, *rest)

    def evaluate(run, update, player, learner):
        learners[update] = jax.tree.map(np.array, jax.device_get(learner))
        return evaluate_if_due(run, update, player, learner)

    with pytest.MonkeyPatch.context() as patch:
        install(patch.setattr)
        watched(patch.setattr, score=score)
        patch.setattr(runs.Run, "evaluate_if_due", evaluate)
        path = sfl_kinetix.train(args)
    return SimpleNamespace(args=args, path=path, candidates=candidates, learners=learners)


def test_searches_come_every_t_updates_and_look_at_candidates_of_their_own(straight):
    lines = plots.read_lines(straight.path)
    searches = [line for line in lines if "search/seconds" in line]
    assert [line["update"] for line in searches] == [1, 3, 5]
    assert [line["update"] for line in lines if "outer/kl" in line] == [1, 2, 3, 4, 5, 6]
    assert all(line["search/levels"] == 32 for line in searches)
    assert len(np.unique(np.concatenate(straight.candidates), axis=0)) == 3 * 32


@pytest.mark.parametrize("num_envs, share, chunks, number", [
    (32, 0.5, 1, 8), (8, 0.5, 1, 4), (8, 0.25, 1, 2), (8, 0.5, 2, 2), (8, 0.0, 1, 8),
])  # fmt: skip
def test_as_many_devices_as_have_both_kinds_of_levels(num_envs, share, chunks, number):
    new = dict(num_devices=None, num_envs=num_envs, buffer_share=share, num_rollout_chunks=chunks)
    args, env, *_ = built(search_batch=None, num_minibatches=None, **new)
    assert args.num_devices == number == num_envs // chunks // env.num_envs
    assert share == 0 or 0 < args.from_buffer(env.num_envs) < env.num_envs


@pytest.mark.slow
def test_a_signal_stops_a_search_between_two_batches(toy, monkeypatch, straight):
    """The checkpoint is that of the update before, and the resumed run is the straight one."""
    scored = []

    def score(program, *inputs):
        scored.append(True)
        if len(scored) == 3:  # the first of the two batches before update 3
            os.kill(os.getpid(), signal.SIGTERM)
        return program(*inputs)

    with monkeypatch.context() as patch, pytest.raises(SystemExit) as stopped:
        watched(patch.setattr, score=score)
        sfl_kinetix.train(replace(straight.args, runs_dir=toy.runs_dir, run_name="broken", checkpoint_every=0))
    broken = Path(toy.runs_dir) / "broken"
    assert stopped.value.code == 128 + signal.SIGTERM and len(scored) == 3
    assert [folder.name for folder in (broken / "checkpoints").iterdir()] == ["2"]
    sfl_kinetix.train(Args(resume=str(broken)))
    assert metrics_of(broken) == metrics_of(straight.path)


def start_of(args):
    """The learner that a run with --init-from begins with."""
    found, begun, restore = [], RuntimeError(), runs.Run.restore

    def spy(run, state):
        found.append(jax.tree.map(np.array, jax.device_get(restore(run, state).learner)))
        raise begun

    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError) as raised:
        patch.setattr(runs.Run, "restore", spy)
        sfl_kinetix.train(args)
    assert raised.value is begun
    return found[0]


@pytest.mark.slow
def test_a_branch_begins_with_all_that_its_parent_had_learned(toy, straight):
    """After update 4 of 6, though its seed is another one. Without --com the proximal policy is left behind."""
    branch, kept = replace(toy, seed=1, init_from=f"{straight.path}@4"), straight.learners
    start = start_of(replace(branch, com=4.0))
    same(start, kept[4])
    for part in ("params", "opt_state", "proximal"):
        assert all(differ(getattr(kept[4], part), getattr(kept[update], part)) for update in (0, 6))
    assert differ(start.params, start.proximal.params)
    plain = start_of(branch)
    same((plain.params, plain.opt_state), (start.params, start.opt_state))
    assert plain.proximal is None


@pytest.mark.slow
def test_without_a_buffer_nothing_is_searched_and_with_com_its_policy_is_the_first_proximal_one(toy, capsys):
    flags = dict(buffer_share=0.0, search_batch=None, total_timesteps=64 * 2, plasticity_every=0)
    run = sfl_kinetix.train(replace(toy, **flags))
    lines, said = plots.read_lines(run), capsys.readouterr().out
    assert "note: --buffer-share 0: nothing is searched for; without effect: --num-candidates, " in said
    assert not any(key.startswith(("search", "buffer")) for line in lines for key in line)
    assert lines[-1]["update"] == 2 and lines[-1]["charts/buffer_solve_rate"] is None
    start = start_of(replace(toy, com=2.0, init_from=str(run)))
    same(start.proximal, sfl_kinetix.Proximal(start.params, np.float32(1)))


def test_without_a_cpu_backend_the_evaluation_says_so(monkeypatch):
    def no_such(backend):
        raise RuntimeError(f"Unknown backend {backend}")

    monkeypatch.setattr(jax, "local_devices", no_such)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    assert "set JAX_PLATFORMS=cuda,cpu" in refusal(kinetix._cpu)


@pytest.mark.parametrize("flags, said", [
    (dict(num_envs=1, num_steps=64), "--buffer-share 0.5: of 1 environments per device and chunk it is"),
    (dict(evaluate="x", init_from="y"), "--init-from with --evaluate x"),
    (dict(search_batch=6), "--search-batch 6: must be a multiple of the 4 fresh levels of an update; 8 would do"),
    (dict(learnability_steps=1), "--learnability-steps 1"),
    (dict(video_levels=("s/h0_weak_trust",), capture_video=True), "such as s/h0_weak_thrust"),
    (dict(video_levels=("m/arm_up",), eval_sizes=("s",), capture_video=True), "--video-levels m/arm_up"),
    (dict(video_levels=("m/arm_up",)), "--video-levels m/arm_up: has no effect without --capture-video"),
    (dict(max_importance_ratio=2.0), "--max-importance-ratio 2.0: has no effect without --com"),
    (dict(compute_dtype="bfloat16", network="permutation-invariant"), "has no effect without --network transformer"),
    (dict(learnability_estimator="episodes"), "has no effect without --learnability-estimator window"),
])  # fmt: skip
def test_usage_errors(toy, flags, said):
    assert said in refusal(lambda: sfl_kinetix.train(replace(toy, **flags)))


def test_a_search_of_the_run_need_not_fit_the_devices_of_what_goes_on(monkeypatch):
    """30 % of 2,048 environments are 614 on one device, 4 x 154 on four: 1,434 or 1,432 fresh levels in an update."""
    saved = dict(num_envs=2048, buffer_share=0.3, search_batch=1432, num_devices=4)
    record = {"script": "sfl_kinetix", "args": saved}
    monkeypatch.setattr(folder, "find_checkpoint", lambda *_: (None, record, [1]))
    found = folder._evaluated(Args(evaluate="runs/x"), "sfl_kinetix")
    assert found.num_devices == 1 and found.search_batch is None
    assert sfl_kinetix.settle_search(found, 1).search_batch


def test_level_player_by_hand(monkeypatch):
    """Levels that are always or never solved, after 2 steps or 5."""
    suite = Coins(jax.device_get(coins(p=[1.0, 0.0, 1.0], quick=[2.0, 2.0, 4.0], slow=5.0)))
    other = Coins(jax.device_get(coins(p=[0.5], quick=2.0, slow=5.0)))
    sets = {"s": (suite, ["easy", "hard", "random_0"]), "m": (other, ["coin"])}
    monkeypatch.setattr(kinetix, "make_evaluation", lambda size, number: sets[size])
    args = Args(eval_sizes=tuple(sets), total_timesteps=1 << 20, num_eval_episodes=400)
    player = LevelPlayer(args, Coins(), lambda learner, obs: NET.apply(learner.params, obs)[0])
    scores = player.scores(Learner(PARAMS, None, None), 3)
    expected = {
        "eval/solve_rate": 1, "eval/episodic_length": 4, "eval/random/solve_rate": 1,
        "eval/random_s/episodic_return": 1,
        "eval/hand_designed_s/solve_rate": 0.5, "eval/hand_designed_s/episodic_length": 3.5,
        "levels/s/easy/solve_rate": 1, "levels/s/easy/episodic_length": 2, "levels/s/hard/solve_rate": 0,
        "levels/s/hard/episodic_length": 5,
    }  # fmt: skip
    for key, value in expected.items():
        assert scores[key] == value, key
    np.testing.assert_allclose(scores["levels/m/coin/solve_rate"], 0.5, atol=0.08)
    np.testing.assert_allclose(scores["eval/hand_designed/solve_rate"], (1 + scores["levels/m/coin/solve_rate"]) / 3)
    table = player.table(scores)
    assert [line.split()[0] for line in table.splitlines()] == ["level", "m/coin", "s/easy", "s/hard"]
    assert table.splitlines()[3].split()[1:] == ["0.00", "0.00", "5.0"]


def test_a_run_is_evaluated_and_filmed_without_training(toy, capsys, straight):
    films = {"buffer-0.gif", "buffer-1.gif", "s-h0_weak_thrust.gif"}
    assert {f.name for f in (straight.path / "videos").iterdir()} == films
    last = plots.read_lines(straight.path)[-1]
    assert last["eval/solve_rate"] == 0 and last["levels/s/h0_weak_thrust/solve_rate"] == 1
    flags = dict(num_eval_episodes=3, eval_sizes=("s",), capture_video=True, video_buffer_levels=2)
    path = sfl_kinetix.train(replace(toy, evaluate=f"{straight.path}@6", **flags))
    (line,) = plots.read_lines(path)
    assert line["update"] == 6 and line["global_step"] == 64 * 6
    assert {k: v for k, v in line.items() if "/" in k} == {k: v for k, v in last.items() if "/" in k}
    assert (path / "videos" / "s-h0_weak_thrust.gif").exists() and not (path / "curve.png").exists()
    assert json.loads((path / "summary.json").read_text())["eval/solve_rate"]["mean"] == 0
    assert "s/h0_weak_thrust    1.00    1.00     2.0" in capsys.readouterr().out


@pytest.mark.slow
def test_the_fast_transformer_computes_what_kinetix_modules_do():
    """Outputs and gradients, with and without absent shapes, joints and thrusters; in bfloat16 roughly."""
    pytest.importorskip("kinetix")
    suite = kinetix.make_entities("m")
    networks = [ActorCritic(suite, MODELS["transformer"], dtype) for dtype in ("float32", "float32", "bfloat16")]
    networks[0]._fast = None  # Kinetix's own modules
    params = jax.tree.map(lambda x: x + 0.02, networks[0].init(jax.random.key(0)))
    _, example = suite.start(suite.empty_level)

    def random_entities(x, key):
        if x.dtype == bool:
            return jax.random.bernoulli(key, 0.7, (6, *x.shape))
        if x.dtype == jnp.int32:  # of shapes, of which there are as many as rows of the attention mask
            return jax.random.randint(key, (6, *x.shape), 0, example.attention_mask.shape[-1])
        return jax.random.uniform(key, (6, *x.shape))

    leaves, tree = jax.tree.flatten(example)
    obs = jax.tree.unflatten(tree, map(random_entities, leaves, jax.random.split(jax.random.key(1), len(leaves))))

    def loss(params, network):
        dist, value = network.apply(params, obs)
        return dist.entropy().sum() + value.sum(), (dist.probs(), value)

    grad = jax.jit(jax.grad(loss, has_aux=True), static_argnums=1)
    (slope, out), fast, rough = [jax.tree.map(np.asarray, grad(params, network)) for network in networks]
    largest = max(np.abs(x).max() for x in jax.tree.leaves(slope))
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5 * largest)
    jax.tree.map(close, fast[0], slope)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), fast[1], out)
    assert all(x.dtype == np.float32 for x in jax.tree.leaves(rough))
    assert 1e-5 < np.abs(rough[1][1] - out[1]).max() < 0.03 * np.abs(out[1]).max()


def test_others_weights_are_evaluated_without_the_folder_of_a_run(monkeypatch, tmp_path):
    class Player:
        scores = staticmethod(lambda params, update, given_up: {"eval/s/solve_rate": np.float32(params)})
        table = staticmethod(lambda scores: "")

    monkeypatch.setattr(sfl_kinetix, "load_published", lambda args: (SimpleNamespace(suite=None), 0.25))
    monkeypatch.setattr(sfl_kinetix, "LevelPlayer", lambda *_: Player)
    args = Args(evaluate=str(tmp_path / "weights"), runs_dir=str(tmp_path / "runs"))
    made = sfl_kinetix.evaluate_published(args)
    assert metrics_of(made)[0]["eval/s/solve_rate"] == 0.25
    assert json.loads((made / "summary.json").read_text())["updates"] == 0


@pytest.mark.slow
def test_a_published_checkpoint_is_the_network_that_was_saved(tmp_path):
    """As Kinetix's authors save it, with other options than ours; its outputs by Kinetix's own distribution."""
    pytest.importorskip("kinetix")
    from kinetix.util.saving import save_pretrained_checkpoint

    kinetix_env = kinetix.make_entities("s")
    model = MODELS["permutation-invariant"] | {"actor_depth": 2, "critic_width": 32, "activation": "relu"}
    network = ActorCritic(kinetix_env, model)
    params = network.init(jax.random.key(1))
    params = jax.tree.map(lambda x: x + 0.1, params)
    save_pretrained_checkpoint(params, {"model": model, "notes": "toy"}, tmp_path)
    assert kinetix.is_published(str(tmp_path)) and not kinetix.is_published(str(tmp_path / "no"))
    loaded, options = kinetix.load_published(str(tmp_path))
    same(loaded, params)
    _, obs = kinetix_env.start(kinetix_env.empty_level)
    obs = jax.tree.map(lambda x: jnp.stack([x, x]), obs)
    dist, value = ActorCritic(kinetix_env, options).apply(loaded, obs)
    inputs = jax.tree.map(lambda x: x[None], obs), jnp.zeros((1, 2), bool)
    _, theirs, their_value = kinetix.make_network(kinetix_env, model).apply(params, None, inputs)
    actions = jnp.array([[0, 1, 2, 0, 1, 0], [2, 2, 1, 1, 0, 1]])
    np.testing.assert_allclose(dist.log_prob(actions), theirs.log_prob(actions[None])[0], rtol=1e-6)
    np.testing.assert_allclose(dist.entropy(), theirs.entropy()[0], rtol=1e-6)
    np.testing.assert_allclose(value, their_value[0], rtol=1e-6)
    evaluate = lambda *more: arguments.parse(Args, "", ["--evaluate", str(tmp_path), *more])  # noqa: E731
    again, loaded = load_published(evaluate())
    same(loaded, params)
    same(again.apply(loaded, obs)[1], value)
    assert "--resume runs/x: not the folder" in refusal(sfl_kinetix.train, evaluate("--resume", "runs/x"))
    line = refusal(load_published, evaluate("--network", "permutation-invariant", "--num-seeds", "2"))
    assert "with --network, --num-seeds: a published checkpoint has one net" in line
    for config, said in (("{}", "cannot be read"), ('{"model": {"actor_depth": "x"}}', "describes no network")):
        (tmp_path / "config.json").write_text(config)
        assert said in refusal(load_published, evaluate())


@pytest.mark.slow
def test_a_run_on_kinetix(tmp_path):
    """From the search to the evaluation, on eight devices."""
    pytest.importorskip("kinetix")
    args = Args(
        network="permutation-invariant", num_envs=16, num_steps=8, num_minibatches=2, update_epochs=1, search_batch=16,
        num_candidates=16, buffer_size=4, buffer_every=2, learnability_steps=64, total_timesteps=128 * 2,
        plasticity_every=1, eval_sizes=("s",), num_eval_levels=0, num_eval_episodes=1, runs_dir=str(tmp_path),
        run_name="run",
    )  # fmt: skip
    run = sfl_kinetix.train(args)
    search, first, second, evaluated = plots.read_lines(run)
    assert search["buffer/levels"] > 0 and search["search/levels"] <= 16
    assert 0 < first["outer/kl"] < 1 and second["plasticity/feature_rank"] > 1
    assert len([key for key in evaluated if key.startswith("levels/s/")]) == 3 * 10
    assert (run / "success_rates.png").exists()
