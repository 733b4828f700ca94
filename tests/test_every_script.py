"""What each script does with flags that all of them have, on toys whose answers are known. What the scripts share is
shared by copying: a line that is right in ppo.py may be wrong in another one."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import Bandit, Noise, Toy

import ppo
import ppo_ewma
import ppo_rnd
import ppo_rnn
import pqn
import sapg
import sfl_kinetix
from common import envs
from common.actions import Categorical, Discrete

SCRIPTS = {
    "ppo": (ppo, {}),
    "ppo_ewma": (ppo_ewma, {"com": 8.0}),
    "ppo_rnn": (ppo_rnn, {"sequence_length": 3}),
    "ppo_rnd": (ppo_rnd, {"obs_warmup_steps": 3}),  # random steps that all environments take first
    "sapg": (sapg, {"num_blocks": 1}),
    "pqn": (pqn, {}),
}
PPOS = [name for name in SCRIPTS if name != "pqn"]
LOSSES = SCRIPTS | {"ppo_rnn": (ppo_rnn, {})}
LOSSES |= {"sfl_kinetix": (sfl_kinetix, {}), "sfl_kinetix, com": (sfl_kinetix, {"com": 8.0})}
del LOSSES["pqn"]
FLAGS = dict(num_envs=8, num_steps=6, num_minibatches=4, hidden_sizes=(8,), num_devices=1, num_eval_episodes=0)
every_script = pytest.mark.parametrize("name", SCRIPTS)


class Clock(Toy):
    """Tells the time and the last executed action, and pays 7 a step. It ends after `end` steps, or never."""

    obs_shape = (2,)
    action_space = Discrete((5,))

    def __init__(self, end=None):
        self.end = end

    def reset(self, key):
        return jnp.zeros(2), jnp.zeros(2)

    def step(self, key, state, action):
        state = jnp.stack([state[0] + 1, action[0].astype(jnp.float32)])
        terminated = jnp.bool_(False) if self.end is None else state[0] >= self.end
        return state, state, jnp.float32(7), terminated, jnp.bool_(False), jnp.bool_(False)


def built(name, toy, **flags):
    """-> the script, its arguments, environment, init and step."""
    script, own = SCRIPTS[name]
    flags = FLAGS | own | flags
    args = script.Args(**{"total_timesteps": 4 * flags["num_envs"] * flags["num_steps"]} | flags)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(envs, "make_suite", lambda *_: toy)
        args, env, _, init, step, _, keys = script.build(args)
    return script, args, env, jax.jit(init)(keys), jax.jit(step)


def targets_of(name, sample):
    """Those of the rewards: ppo_rnd.py has others, of what is new."""
    return np.asarray(sample.batch.target)[..., 0] if name == "ppo_rnd" else np.asarray(sample.batch.target)


@every_script
def test_flags_of_the_environment_reach_it_and_minibatches_are_as_many_as_asked_for(name):
    """A discount of 0, so that a target is the reward as it is learned from. Two chunks share the minibatches."""
    kind = "q_lambda" if name == "pqn" else "gae_lambda"
    flags = dict(time_limit=3, frame_stack=2, reward_clip=0.5, sticky_actions=1.0, gamma=0.0, num_rollout_chunks=2)
    _, _, env, state, step = built(name, Clock(), **flags, **{kind: 0.0}, update_epochs=3)
    state, metrics, sample = step(state)
    assert metrics["charts/episodic_length"] == 3 and metrics["charts/episodic_return"] == 21
    np.testing.assert_allclose(targets_of(name, sample), 0.5, atol=1e-5)
    assert env.obs_shape == (4,)
    earlier, later = np.split(np.asarray(sample.batch.obs).reshape(-1, 4), 2, axis=1)
    both = later[:, 0] == 2  # two actions were executed: the first one, and again the first one
    assert both.sum() >= 8 and len(set(later[both, 1])) > 1
    np.testing.assert_array_equal(earlier[both, 1], later[both, 1])
    (count,) = {int(x) for x in jax.tree.leaves(state.learner.opt_state) if x.dtype == jnp.int32 and x.ndim == 0}
    assert count == 3 * 4


@every_script
def test_resets_are_staggered(name):
    _, _, _, state, _ = built(name, Clock(), stagger_resets=3)
    begun = np.array([0, 0, 1, 1, 2, 2, 3, 3]) + (3 if name == "ppo_rnd" else 0)
    assert sorted(np.asarray(state.environments.state.inner)[0, :, 0].tolist()) == begun.tolist()


@every_script
def test_targets_are_discounted_returns_in_units_of_the_returns_and_minibatches_are_shuffled(monkeypatch, name):
    """Episodes of three steps, returns to their end (lambda 1) at a discount of 1/2: 7/4, 3/2 and 1 of a reward, over
    the standard deviation of the discounted sums so far of it: 1, 3/2 and 7/4."""
    flags = dict(gamma=0.5, norm_reward=True, **{"q_lambda" if name == "pqn" else "gae_lambda": 1.0})
    script, _, _, state, step = built(name, Clock(end=3), **flags)
    after, _, sample = step(state)
    time = np.asarray(sample.batch.obs)[..., 0].astype(int)
    expected = np.array([7 / 4, 3 / 2, 1]) / np.std([1, 3 / 2, 7 / 4])
    assert set(time.ravel()) == {0, 1, 2}
    np.testing.assert_allclose(targets_of(name, sample), expected[time], rtol=1e-3)
    monkeypatch.setattr(script, "random_permutation", lambda key, size: lambda positions: positions)
    _, _, _, state, in_order = built(name, Clock(end=3), **flags)
    leaves = [
        np.concatenate([x.ravel() for x in jax.tree.leaves(s.learner.params)]) for s in (after, in_order(state)[0])
    ]
    assert np.abs(leaves[0] - leaves[1]).max() > 1e-6


@pytest.mark.parametrize("anneal", [True, False])
@every_script
def test_the_learning_rate_falls_by_the_update(monkeypatch, name, anneal):
    """Plain gradient descent in Adam's place, and gradients cut to norm 1e-3: each update's way is rate * 1e-3. (In
    ppo_rnd.py a part of it is the predictor's, whose way is not counted.)"""
    script = SCRIPTS[name][0]
    monkeypatch.setattr(script, "RADAM" if name == "pqn" else "ADAM", optax.identity())
    flags = dict(num_minibatches=1, update_epochs=1, learning_rate=0.1, max_grad_norm=1e-3, anneal_lr=anneal)
    _, _, _, state, step = built(name, Bandit(), **flags)
    rows = []
    for _ in range(4):
        state, metrics, _ = step(state)
        rows.append(jax.device_get(metrics))
    expected = [0.1, 0.075, 0.05, 0.025] if anneal else [0.1] * 4
    np.testing.assert_allclose([row["charts/learning_rate"] for row in rows], expected, rtol=1e-6)
    assert min(row["outer/grad_norm"] for row in rows) > 1e-3
    way = np.array([row["outer/update_norm"] for row in rows])
    np.testing.assert_allclose(way, np.multiply(expected, 1e-3), rtol=0.3 if name == "ppo_rnd" else 2e-3)


class Drifting(Noise):
    """Observations whose mean and deviation grow with time, so that statistics of one update are not the next one's."""

    def step(self, key, time, action):
        time, obs, *rest = super().step(key, time, action)
        return time, obs * (1 + time / 4), *rest


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "pqn"])
def test_an_update_moves_as_far_and_gains_as_much_as_it_says(name):
    """KL and gains in NumPy, from the parameters before the update before, before and after, on what the behaviour
    policy saw. The third update is the first whose observations have statistics of two updates."""
    script = SCRIPTS[name][0]
    flags = dict(num_envs=16, norm_obs=True, learning_rate=3e-2, ent_coef=0.0)
    _, args, _, state, step = built(name, Drifting(Discrete((3,))), **flags)
    network = script.ActorCritic(args, Discrete((3,)))
    learners = [state.learner]
    for _ in range(3):
        state, metrics, sample = step(state)
        learners.append(state.learner)
    batch = jax.tree.map(lambda x: x[0], sample.batch)
    mean, var, _ = learners[2].obs_stats
    seen = jnp.clip((batch.obs - mean) / np.sqrt(np.asarray(var) + 1e-8), -10, 10)
    inputs = {"ppo_rnn": lambda: (batch.cells,), "sapg": lambda: (jnp.zeros(len(seen), int),)}.get(name, tuple)()
    action = np.asarray(batch.action)[:, 0]

    def policy(learner):
        logits = np.asarray(network.apply(learner.params, seen, *inputs)[0].logits, np.float64)
        return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)

    earlier, before, after = (policy(learner) for learner in learners[1:])
    taken = lambda p: p[np.arange(len(action)), action]  # noqa: E731
    advantage = np.asarray(batch.advantage, np.float64)
    advantage = (advantage - advantage.mean()) / advantage.std()
    own, lost = (((taken(p) / taken(before) - 1) * advantage).mean() for p in (after, earlier))
    kl = (before * np.log(before / after)).sum(-1).mean()
    assert min(kl, abs(own), abs(lost)) > 1e-4 and abs((after * np.log(after / before)).sum(-1).mean() / kl - 1) > 0.01
    np.testing.assert_allclose(metrics["outer/kl"], kl, rtol=1e-3)
    np.testing.assert_allclose(metrics["outer/ddr"], 16 * 6 / kl, rtol=1e-3)
    np.testing.assert_allclose([metrics["outer/own_gain"], metrics["outer/fresh_gain"]], [own, -lost], rtol=2e-3)


@every_script
def test_statistics_of_observations_are_those_of_all_that_was_acted_on(name):
    """The clock's times, over both updates; what ppo_rnd.py saw before, in its warm-up, is known to its predictor."""
    _, _, _, state, step = built(name, Clock(), norm_obs=True)
    for done in (1, 2):
        state, *_ = step(state)
        found = state.learner.obs_stats
        times = np.arange(6 * done) + (3 if name == "ppo_rnd" else 0)
        np.testing.assert_allclose(
            [found.count, found.mean[0], found.var[0]], [48 * done, times.mean(), times.var()], rtol=1e-3
        )


class Tickets(Clock):
    """Tells the time and a number drawn at the start of the episode, which lasts three steps."""

    def reset(self, key):
        state = jnp.stack([0.0, jax.random.uniform(key)])
        return state, state

    def step(self, key, state, action):
        state = state.at[0].add(1)
        return state, state, jnp.float32(7), state[0] >= 3, jnp.bool_(False), jnp.bool_(False)


@every_script
def test_eight_devices_count_all_episodes_and_play_different_ones(name):
    _, _, _, state, step = built(name, Tickets(), num_envs=16, num_devices=8)
    after, metrics, _ = step(state)
    assert metrics["charts/num_episodes"] == 16 * 2
    for there in (state, after):
        assert len(np.unique(np.asarray(there.environments.obs)[0, :, 1])) == 16


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("name", PPOS)
def test_each_minibatch_has_standardised_advantages_or_those_that_there_are(monkeypatch, name, norm):
    seen, script = [], SCRIPTS[name][0]
    loss = script.ppo_loss

    def spy(*inputs):
        jax.debug.callback(lambda advantage: seen.append(np.asarray(advantage)), inputs[-1].advantage)
        return loss(*inputs)

    monkeypatch.setattr(script, "ppo_loss", spy)
    *_, state, step = built(name, Clock(), norm_adv=norm, update_epochs=1, num_minibatches=2)
    jax.block_until_ready(step(state))
    jax.effects_barrier()
    minibatches = [advantage for advantage in seen if advantage.size == 24]
    assert len(minibatches) == 2
    for advantage in minibatches:
        if norm:
            assert abs(advantage.mean()) < 1e-4 and abs(advantage.std() - 1) < 1e-3
        else:
            assert advantage.mean() > 1


@pytest.mark.parametrize("name", PPOS)
def test_the_inner_loop_stops_after_an_epoch_that_moved_too_far(name):
    flags = dict(target_kl=1e-9, update_epochs=4, learning_rate=3e-2)
    *_, state, step = built(name, Noise(Discrete((3,))), **flags)
    assert step(state)[1]["outer/epochs"] == 1


def surrogates(name, now, acted, advantage, proximal=0.0, **columns):
    """The policy's term of the loss of single transitions, and its slopes in `now`, their log-probabilities [n]; acted,
    proximal: those under the behaviour policy and, where there is one, the proximal policy. advantage: [n]."""
    script, own = LOSSES[name]
    args = script.Args(**own, clip_eps=0.2, ent_coef=0.0, vf_coef=0.0, num_devices=1)
    proximals = {"ppo_ewma": (proximal,), "sfl_kinetix, com": (proximal,), "sfl_kinetix": (None,)}.get(name, ())
    zeros = jnp.zeros((1, 2) if name == "ppo_rnd" else 1)

    class Known(Categorical):
        def log_prob(self, action):
            return self.logits[..., 0]

    def policy(log_prob, *_):
        return (Known(jnp.full((1, 1), log_prob), (1,)), zeros, None)[: 3 if name == "ppo_rnn" else 2]

    def loss(now, advantage):
        known = {"log_prob": acted, "advantage": advantage} | columns
        known = {field: jnp.full(1, x, jnp.float32) for field, x in known.items()}
        batch = script.Batch(**dict.fromkeys(script.Batch._fields, zeros) | known)
        return script.ppo_loss(args, policy, now, *proximals, batch)[0]

    now, advantage = (jnp.asarray(x, jnp.float32) for x in (now, advantage))
    return np.asarray(jax.jit(jax.vmap(jax.value_and_grad(loss)))(now, advantage))


@pytest.mark.parametrize("name", LOSSES)
def test_a_ratio_beyond_float32_is_clipped_and_is_finite_where_it_is_not_clipped(monkeypatch, name):
    """An ordinary ratio gives the same bits as the plain exponential."""
    huge = [88.0, 89.0, 100.0, 1000.0]
    np.testing.assert_allclose(surrogates(name, huge, 0.0, [2.0] * 4), [[-2.4] * 4, [0.0] * 4], rtol=1e-6)
    found = surrogates(name, huge, 0.0, [-2.0] * 4)
    assert (found > 1e30).all() and np.isfinite(found).all()  # downhill it becomes less likely
    ordinary = [-1e3, -30.0, -0.1, 0.0, 0.1, 1.0, 30.0, 79.0] * 2, 0.0, [2.0] * 8 + [-2.0] * 8
    bounded = surrogates(name, *ordinary)
    monkeypatch.setattr(LOSSES[name][0], "probability_ratio", jnp.exp)
    np.testing.assert_array_equal(bounded, surrogates(name, *ordinary))


@pytest.mark.parametrize("log_weight", [30.0, 79.0, 100.0, 1000.0])
@pytest.mark.parametrize("name, factor", [("sapg", "log_center"), ("ppo_ewma", "proximal")])
def test_an_importance_weight_beyond_float32_has_finite_gradients(name, factor, log_weight):
    """That of relabelled rows in sapg.py, around which it clips, and that of the proximal policy in ppo_ewma.py."""
    now, advantage = np.array([0.1, 0.1, 500.0, 500.0]) + log_weight, [2.0, -2.0, 2.0, -2.0]
    found = surrogates(name, now, 0.0, advantage, **{factor: log_weight})
    assert np.isfinite(found).all()
    inside = np.exp(min(now[0], 80)) * np.array([-2.0, 2.0])
    np.testing.assert_allclose(found[:, :2], [inside, inside], rtol=1e-4)
    if log_weight < 79:
        np.testing.assert_allclose(found[:, 2], [-2.4 * np.exp(log_weight), 0], rtol=1e-4)


@pytest.mark.parametrize("name", PPOS)
def test_layers_are_normalised_before_the_activation_and_measured_after_it(name):
    """Relu of the units less their mean, over their deviation, which flax takes with 1e-6 under the root."""
    script, _ = SCRIPTS[name]
    args = script.Args(layer_norm=True, activation="relu", hidden_sizes=(7, 5), num_devices=1)
    assert "layer_norm" in script.SAME and not script.Args().layer_norm
    encoder, obs = script.Encoder(args), np.random.default_rng(0).normal(3, 5, (11, 4)).astype(np.float32)
    params = encoder.init(jax.random.key(0), obs)
    features, sown = encoder.apply(params, obs, mutable="intermediates")
    x, layers = obs.astype(np.float64), []
    for i in range(2):
        x = x @ np.asarray(params["params"][f"Dense_{i}"]["kernel"], np.float64)
        x = np.maximum((x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-6), 0)
        layers.append(x)
    for found, wanted in zip([*sown["intermediates"]["hidden"], features], [*layers, x], strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)
