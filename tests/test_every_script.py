"""What each script does with flags that all of them have, on toys whose answers are known. What the scripts share is
shared by copying: a line that is right in ppo.py may be wrong in another one. Three trainings of each script serve for
most of it, each with many flags at once."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special
from conftest import Noise, Toy, Training, differ, gains, leaves_close, metrics_of, one_learner, same, watched
from test_init_from import SMALL, call, learner_at, resumed

import ppo
import ppo_ewma
import ppo_rnd
import ppo_rnn
import pqn
import sapg
import sfl_kinetix
from common.actions import Categorical, Discrete

SCRIPTS = {
    "ppo": (ppo, {}),
    "ppo_ewma": (ppo_ewma, {"com": 8.0}),
    "ppo_rnn": (ppo_rnn, {"sequence_length": 3}),
    "ppo_rnd": (ppo_rnd, {"obs_warmup_steps": 3}),  # random steps that all environments take first
    "sapg": (sapg, {"num_blocks": 1}),
    "pqn": (pqn, {}),
}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("ppo_rnn", "ppo_rnd", "sapg")]  # to compile
# The rollout and the update of ppo_ewma.py are those of ppo.py to the letter (test_scripts.py).
OWN_UPDATE = ["ppo", "pqn", *SLOW]
LOSSES = SCRIPTS | {"ppo_rnn": (ppo_rnn, {})}
LOSSES |= {"sfl_kinetix": (sfl_kinetix, {}), "sfl_kinetix, com": (sfl_kinetix, {"com": 8.0})}
del LOSSES["pqn"]
FLAGS = dict(num_envs=16, num_steps=6, hidden_sizes=(8,), num_devices=1, num_eval_episodes=0)


class Clock(Toy):
    """Tells the time, the last executed action and a number of the episode's own. Pays 7 a step, for `end` steps."""

    obs_shape = (3,)
    action_space = Discrete((5,))

    def __init__(self, end=None):
        self.end = end

    def reset(self, key):
        state = jnp.array([0.0, 0.0, 1.0]) * jax.random.uniform(key)
        return state, state

    def step(self, key, state, action):
        state = jnp.stack([state[0] + 1, action[0].astype(jnp.float32), state[2]])
        terminated = jnp.bool_(False) if self.end is None else state[0] >= self.end
        return state, state, jnp.float32(7), terminated, jnp.bool_(False), jnp.bool_(False)


class Drifting(Noise):
    """Observations whose mean and deviation grow with time, so that statistics of one update are not the next one's."""

    def step(self, key, time, action):
        time, obs, *rest = super().step(key, time, action)
        return time, obs * (1 + time / 4), *rest


class Course:
    """Updates of a script on a toy: the training, states, metrics, samples, and in order what the loss was given."""

    def __init__(self, name, updates, toy, watch=True, **flags):
        self.name, (self.script, own) = name, SCRIPTS[name]
        flags = FLAGS | own | flags
        flags |= dict(total_timesteps=updates * flags["num_envs"] * flags["num_steps"])
        which, no_bonus = ("q_loss", (0.0,)) if name == "pqn" else ("ppo_loss", ())
        with pytest.MonkeyPatch.context() as patch:
            seen = watched(patch, self.script, which, lambda _, *given: (*given, *no_bonus)[-2:]) if watch else []
            self.training = Training(self.script, toy, self.script.Args(**flags))
            self.states, self.metrics, self.samples = self.training.run(updates)
            jax.effects_barrier()
        self.minibatches, self.ent_coefs = [batch for batch, _ in seen], [ent_coef for _, ent_coef in seen]
        self.obs = [sample.batch.obs for sample in self.samples]  # all that was seen: the sample is larger than that

    def targets(self, update):
        """Those of the rewards: ppo_rnd.py has others, of what is new."""
        target = self.samples[update].batch.target
        return target[..., 0] if self.name == "ppo_rnd" else target

    def gradient_steps(self):
        opt_state = jax.tree.leaves(self.states[-1].learner.opt_state)
        (count,) = {int(x) for x in opt_state if x.dtype == jnp.int32 and x.ndim == 0}
        return count


def for_values(name, value):
    """The lambda of the targets."""
    return {"q_lambda" if name == "pqn" else "gae_lambda": value}


@pytest.fixture(scope="module", params=OWN_UPDATE)
def clock(request):
    """All that changes the environment, on two devices in two chunks. With a discount of 0, so that a target is the
    reward as it is learned from. Two epochs too many are asked for."""
    stop = {} if request.param == "pqn" else {"target_kl": 1e-9}
    flags = dict(time_limit=3, frame_stack=2, reward_clip=0.5, sticky_actions=1.0, stagger_resets=2, norm_obs=True)
    sizes = dict(num_devices=2, num_rollout_chunks=2, num_minibatches=4, update_epochs=3)
    more = dict(gamma=0.0, **for_values(request.param, 0.0), **stop)
    return Course(request.param, 2, Clock(), watch=False, **flags, **sizes, **more)


def test_flags_of_the_environment_reach_it(clock):
    for row in clock.metrics:
        assert row["charts/episodic_length"] == 3 and row["charts/episodic_return"] == 21
        assert row["charts/num_episodes"] == 2 * 16  # of all devices and chunks
    np.testing.assert_allclose(clock.targets(0), 0.5, atol=1e-5)
    assert clock.training.env.obs_shape == (6,)
    earlier, later = np.split(clock.obs[0].reshape(-1, 6), 2, axis=1)
    both = later[:, 0] == 2  # two actions were executed: the first one, and again the first one
    assert both.sum() >= 16 and len(set(later[both, 1])) > 1
    np.testing.assert_array_equal(earlier[both, 1], later[both, 1])


def test_resets_are_staggered_and_all_environments_play_episodes_of_their_own(clock):
    begun = np.asarray(clock.states[0].environments.obs)[..., 3].ravel()
    assert sorted(begun) == sorted(4 * [0, 0, 1, 2])  # of each device's part of a chunk
    for state in clock.states:
        assert np.unique(np.asarray(state.environments.obs)[..., 5]).size == 16


def test_two_devices_keep_one_learner_with_statistics_of_all_that_was_acted_on(clock):
    one_learner(clock.states[-1].learner, 2)
    for done in (1, 2):
        found, seen = clock.states[done].learner.obs_stats, np.concatenate(clock.obs[:done]).reshape(-1, 6)
        assert found.count == len(seen) == done * 96
        np.testing.assert_allclose(found.mean, seen.mean(0, np.float64), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found.var, seen.var(0, np.float64), rtol=1e-3, atol=1e-6)


def test_the_inner_loop_stops_after_an_epoch_that_moved_too_far(clock):
    """It would have three. pqn.py has no such flag."""
    epochs = 3 if clock.name == "pqn" else 1
    assert clock.gradient_steps() == 2 * 4 * epochs
    assert [row.get("outer/epochs", 3) for row in clock.metrics] == [epochs] * 2


@pytest.fixture(scope="module", params=OWN_UPDATE)
def descent(request):
    """Plain gradient descent in Adam's place, with gradients cut to norm 1e-3. Episodes of three steps."""
    script, free = SCRIPTS[request.param][0], {} if request.param == "pqn" else {"norm_adv": False}
    flags = dict(num_minibatches=1, update_epochs=1, learning_rate=0.1, max_grad_norm=1e-3, anneal_lr=True, **free)
    if request.param != "pqn":
        flags |= dict(anneal_ent=True, ent_coef=0.06)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script, "RADAM" if request.param == "pqn" else "ADAM", optax.identity())
        more = dict(gamma=0.5, norm_reward=True, **for_values(request.param, 1.0))
        return Course(request.param, 4, Clock(end=3), **flags, **more)


def test_targets_are_discounted_returns_in_units_of_the_returns(descent):
    """Returns to the end of the episode (lambda 1) at a discount of 1/2: 7/4, 3/2 and 1 of a reward, over the standard
    deviation of the discounted sums so far of it: 1, 3/2 and 7/4."""
    time = descent.obs[0][..., 0].astype(int)
    expected = np.array([7 / 4, 3 / 2, 1]) / np.std([1, 3 / 2, 7 / 4])
    assert set(time.ravel()) == {0, 1, 2}
    np.testing.assert_allclose(descent.targets(0), expected[time], rtol=1e-3)


def test_the_learning_rate_and_the_entropy_bonus_fall_by_the_update(descent):
    rows, expected = descent.metrics, [0.1, 0.075, 0.05, 0.025]
    np.testing.assert_allclose([row["charts/learning_rate"] for row in rows], expected, rtol=1e-6)
    assert min(row["outer/grad_norm"] for row in rows) > 1e-3
    way = np.array([row["outer/update_norm"] for row in rows])
    np.testing.assert_allclose(way, np.multiply(expected, 1e-3), rtol=2e-3)
    if descent.name != "pqn":
        for found in (descent.ent_coefs, [row["charts/ent_coef"] for row in rows]):
            np.testing.assert_allclose(found, [0.06, 0.045, 0.03, 0.015], rtol=1e-6)


def test_without_norm_adv_advantages_are_what_they_are(descent):
    if descent.name != "pqn":
        for minibatch, sample in zip(descent.minibatches, descent.samples, strict=True):
            same(np.sort(minibatch.advantage), np.sort(sample.batch.advantage.ravel()))


@pytest.fixture(scope="module", params=[*OWN_UPDATE, "ppo_ewma"])
def noise(request):
    """The inner loop and what is measured, with more minibatches than environments."""
    sizes = dict(num_envs=4, num_steps=24, num_rollout_chunks=2, num_minibatches=8, update_epochs=2)
    free = {} if request.param == "pqn" else {"ent_coef": 0.0}
    flags = dict(norm_obs=True, norm_reward=True, learning_rate=1e-2, anneal_lr=False)
    return Course(request.param, 3, Drifting(Discrete((3,))), **sizes, **flags, **free)


def test_each_epoch_of_a_chunk_uses_every_transition_once_in_another_order(noise):
    """A chunk has all its epochs before the next one."""
    assert noise.gradient_steps() == len(noise.minibatches) == 3 * 2 * 2 * 4
    epochs = np.array([minibatch.obs[:, 0] for minibatch in noise.minibatches]).reshape(3, 2, 2, 4, 12)
    for update, chunks in enumerate(epochs):
        for chunk, orders in enumerate(chunks):
            seen = np.sort(noise.obs[update][chunk, :, 0])
            assert np.unique(seen).size == 48
            for order in orders:
                same(np.sort(order.ravel()), seen)
            assert set(orders[0, 0]) != set(orders[1, 0])  # shuffled anew
    assert noise.states[-1].learner.return_stats.count == 3 * 96
    np.testing.assert_allclose([row["charts/learning_rate"] for row in noise.metrics], 1e-2)


def test_each_minibatch_has_standardised_advantages(noise):
    for minibatch in noise.minibatches if noise.name != "pqn" else ():
        assert abs(minibatch.advantage.mean()) < 1e-4 and abs(minibatch.advantage.std() - 1) < 1e-3


def test_an_update_moves_as_far_and_gains_as_much_as_it_says(noise):
    """KL and gains in NumPy, from the parameters before the update before, before and after, on what the behaviour
    policy saw. The third update is the first whose observations have statistics of two updates."""
    if noise.name == "pqn":
        return
    batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), noise.samples[2].batch)
    learners, metrics = [state.learner for state in noise.states], noise.metrics[2]
    mean, var, _ = learners[2].obs_stats
    seen = jnp.clip((batch.obs - mean) / np.sqrt(np.asarray(var) + 1e-8), -10, 10)
    inputs = {"ppo_rnn": lambda: (batch.cells,), "sapg": lambda: (jnp.zeros(len(seen), int),)}.get(noise.name, tuple)()
    action = batch.action[:, 0]

    def policy(learner):
        logits = np.asarray(noise.training.network.apply(learner.params, seen, *inputs)[0].logits, np.float64)
        return scipy.special.softmax(logits, -1)

    earlier, before, after = (policy(learner) for learner in learners[1:])
    np.testing.assert_allclose(batch.log_prob, np.log(before[np.arange(len(action)), action]), atol=1e-5)
    kl, own, fresh = gains(earlier, before, after, action, batch.advantage)
    assert min(kl, abs(own.mean()), abs(fresh.mean())) > 1e-4
    assert abs((after * np.log(after / before)).sum(-1).mean() / kl - 1) > 0.01
    np.testing.assert_allclose(metrics["outer/kl"], kl, rtol=1e-3)
    np.testing.assert_allclose(metrics["outer/ddr"], 96 / kl, rtol=1e-3)
    np.testing.assert_allclose(metrics["outer/own_gain"], own.mean(), rtol=2e-3)
    np.testing.assert_allclose(metrics["outer/fresh_gain"], fresh.mean(), rtol=2e-3)
    assert np.isnan(noise.metrics[0]["outer/fresh_gain"])  # of the update before the first


def drawn(critics, size=40):
    """Transitions of two actions, of which some are clipped: logits [n, 2], log-probabilities then, actions,
    advantages [n]; new values, old ones and targets [n, critics]."""
    rng = np.random.default_rng(4)
    logits, action, advantage = rng.normal(size=(size, 2)), rng.integers(0, 2, size), rng.normal(size=size)
    log_prob = np.log(scipy.special.softmax(logits, 1))[np.arange(size), action] + 0.3 * rng.normal(size=size)
    columns = logits, log_prob, action, advantage, *0.4 * rng.normal(size=(3, size, critics))
    return [x if x.dtype == int else x.astype(np.float32) for x in columns]


def losses_by_loop(args, logits, log_prob, action, advantage, value, old_value, target):
    """The loss of what was `drawn`, transition by transition, and its parts."""
    eps, rows = args.clip_eps, []
    for i, taken in enumerate(action):
        probs = np.exp(logits[i].astype(float)) / np.exp(logits[i].astype(float)).sum()
        ratio = probs[taken] / np.exp(log_prob[i])
        within = min(max(ratio, 1 - eps), 1 + eps)
        policy_loss, entropy, errors = -min(ratio * advantage[i], within * advantage[i]), 0.0, []
        for p in probs:
            entropy -= p * np.log(p)
        for new, old, wanted in zip(value[i], old_value[i], target[i], strict=True):
            near = old + min(max(new - old, -eps), eps)
            far = max(abs(new - wanted), abs(near - wanted)) if args.clip_vloss else abs(new - wanted)
            errors.append(0.5 * far**2)
        loss = policy_loss + args.vf_coef * sum(errors) - args.ent_coef * entropy
        rows.append([loss, policy_loss, entropy, ratio - 1 - np.log(ratio), within != ratio, *errors])
    names = ("policy_loss", "entropy", "approx_kl", "clipfrac", "value_loss")
    names = [*(f"losses/{name}" for name in names), "rnd/value_loss"][: len(rows[0]) - 1]
    loss, *parts = np.mean(rows, 0)
    return loss, dict(zip(names, parts, strict=True))


@pytest.mark.parametrize("clip_vloss", [True, False])
@pytest.mark.parametrize("name, critics", [("ppo", 1), ("ppo_rnn", 1), ("ppo_rnd", 2)])
def test_the_loss_is_the_mean_over_transitions_of_numpys(name, critics, clip_vloss):
    script, transitions = SCRIPTS[name][0], drawn(critics)
    args = script.Args(clip_eps=0.2, clip_vloss=clip_vloss, vf_coef=0.7, ent_coef=0.3, num_devices=1)
    logits, log_prob, action, advantage, value, old_value, target = transitions
    value, old_value, target = (x if critics == 2 else x[:, 0] for x in (value, old_value, target))
    known = dict(action=action[:, None], log_prob=log_prob, value=old_value, advantage=advantage, target=target)
    batch = script.Batch(**dict.fromkeys(script.Batch._fields) | known)
    policy = lambda *_: (Categorical(logits, (2,)), value, None)[: 3 if name == "ppo_rnn" else 2]  # noqa: E731
    loss, parts = script.ppo_loss(args, policy, {}, batch, 0.15)
    expected, expected_parts = losses_by_loop(replace(args, ent_coef=0.15), *transitions)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    leaves_close(parts, expected_parts, rtol=1e-4)
    assert 0.2 < parts["losses/clipfrac"] < 0.8


@pytest.mark.parametrize("name", ["ppo", "sapg"])
def test_layers_are_normalised_before_the_activation_and_measured_after_it(name):
    """Relu of the units less their mean, over their deviation, which flax takes with 1e-6 under the root."""
    script, _ = SCRIPTS[name]
    args = script.Args(layer_norm=True, activation="relu", hidden_sizes=(7, 5), num_devices=1)
    assert "layer_norm" in script.FIXED
    encoder, obs = script.Encoder(args), np.random.default_rng(0).normal(3, 5, (11, 4)).astype(np.float32)
    params = encoder.init(jax.random.key(0), obs)
    features, sown = encoder.apply(params, obs, mutable="intermediates")
    x, layers = obs.astype(np.float64), []
    for i in range(2):
        x = x @ np.asarray(params["params"][f"Dense_{i}"]["kernel"], np.float64)
        x = np.maximum((x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-6), 0)
        layers.append(x)
    leaves_close([*sown["intermediates"]["hidden"], features], [*layers, x], atol=1e-5)


def surrogates(name, now, advantage, factor=0.0, **flags):
    """The policy's term of the loss of single transitions, and its slopes in `now`, their log-probabilities [n], where
    0 is that under the policy that acted. factor: the logarithm of what ppo_ewma.py weighs the loss with, under its
    proximal policy, and of what sapg.py clips around."""
    script, own = LOSSES[name]
    args = script.Args(**own, **flags, clip_eps=0.2, ent_coef=0.0, vf_coef=0.0, num_devices=1)
    zeros = jnp.zeros((1, 2) if name == "ppo_rnd" else 1)

    class Known(Categorical):
        def log_prob(self, action):
            return self.logits[..., 0]

    def policy(log_prob, *_):
        return (Known(jnp.full((1, 1), log_prob), (1,)), zeros, None)[: 3 if name == "ppo_rnn" else 2]

    def loss(now, advantage, factor):
        proximals = {"ppo_ewma": (factor,), "sfl_kinetix, com": (factor,), "sfl_kinetix": (None,)}.get(name, ())
        known = dict(log_prob=jnp.zeros(1), advantage=advantage[None], log_center=factor[None])
        fields = {field: known.get(field, zeros) for field in script.Batch._fields}
        batch = script.Batch(**fields)
        annealed = () if script is sfl_kinetix else (0.0,)
        return script.ppo_loss(args, policy, now, *proximals, batch, *annealed)[0]

    inputs = np.broadcast_arrays(*(np.float32(x) for x in (now, advantage, factor)))
    return np.asarray(jax.jit(jax.vmap(jax.value_and_grad(loss)))(*inputs))


@pytest.mark.parametrize("name", LOSSES)
def test_the_policys_loss_is_clipped_where_that_makes_it_worse_and_finite_beyond_float32(monkeypatch, name):
    """A ratio that is ordinary gives the same bits as the plain exponential."""
    ratio, advantage, loss, moves = np.transpose([
        (1.5, 1, -1.2, 0), (1.1, 1, -1.1, 1), (0.5, 1, -0.5, 1), (1.5, -1, 1.5, 1), (0.9, -1, 0.9, 1),
        (0.5, -1, 0.8, 0), (1.5, 2, -2.4, 0), (0.5, -3, 2.4, 0),
    ])  # fmt: skip
    huge, ordinary = [88.0, 89.0, 100.0, 1000.0], [-1e3, -30.0, -0.1, 0.0, 0.1, 1.0, 30.0, 79.0]
    now = [*np.log(ratio), *huge, *huge, *ordinary, *ordinary]
    inputs = now, [*advantage, *4 * [2], *4 * [-2], *8 * [2], *8 * [-2]]
    by_hand, up, down, usual = np.split(surrogates(name, *inputs), [8, 12, 16], axis=1)
    np.testing.assert_allclose(by_hand, [loss, loss * moves], rtol=1e-5)
    np.testing.assert_allclose(up, [[-2.4] * 4, [0.0] * 4], rtol=1e-6)
    assert (down > 1e30).all() and np.isfinite(down).all()  # downhill it becomes less likely
    monkeypatch.setattr(LOSSES[name][0], "probability_ratio", jnp.exp)
    np.testing.assert_array_equal(usual, surrogates(name, *inputs)[:, 16:])


@pytest.mark.parametrize("name", ["sapg", "ppo_ewma"])
def test_an_importance_weight_beyond_float32_has_finite_gradients(name):
    """That of relabelled rows in sapg.py, around which it clips, and that of the proximal policy in ppo_ewma.py."""
    weight = np.repeat([30.0, 79.0, 100.0, 1000.0], 4)
    now, advantage = np.tile([0.1, 0.1, 500.0, 500.0], 4) + weight, np.tile([2.0, -2.0], 8)
    found = surrogates(name, now, advantage, weight).reshape(2, 4, 4)  # loss and slope, weight, case
    assert np.isfinite(found).all()
    inside = np.exp(np.minimum(now.reshape(4, 4)[:, :2], 80)) * [-2.0, 2.0]
    np.testing.assert_allclose(found[..., :2], [inside, inside], rtol=1e-4)
    np.testing.assert_allclose(found[:, 0, 2], [-2.4 * np.exp(30), 0], rtol=1e-4)
    if name == "ppo_ewma":  # one of e^-100 takes away a ratio to the proximal policy; a bound takes away one of e^100
        assert np.isfinite(surrogates(name, [0, 0], [1, -1], -100)).all()
        for bound in (2.0, 1e6):
            _, slopes = surrogates(name, [100, 100], [1, -1], 100, max_importance_ratio=bound)
            np.testing.assert_allclose(slopes, [-bound, bound], rtol=1e-4)


RUNS = {  # that of ppo.py: test_fork.py
    "ppo_ewma": "--com 4",
    "ppo_rnn": "--sequence-length 4 --cell lstm --cell-size 4",
    "ppo_rnd": "--embedding-size 4 --obs-warmup-steps 3 --num-rollout-chunks 2 --num-seeds 2",
    "sapg": "--num-blocks 2 --norm-value --adaptive-lr-kl 1000 --learning-rate 1e-5",
    "pqn": "",
}


@pytest.mark.parametrize("name", ["pqn", "ppo_ewma", *SLOW])
def test_a_killed_run_goes_on_bit_for_bit(tmp_path, name):
    """As if it had been killed after update 3: its last checkpoint is that of update 2. All that is logged is what a
    run without a kill has logged, so the states of cells and the learning rate, too, were kept."""
    script, flags = SCRIPTS[name][0], [*SMALL.split(), "--time-limit", 20, "--plasticity-every", 0, *RUNS[name].split()]
    straight = call(script, tmp_path / "straight", *flags)
    killed = resumed(script, straight.path, tmp_path / "killed", after=3)
    assert metrics_of(killed) == metrics_of(straight.path)
    assert [row["update"] for row in metrics_of(killed)] == [1, 2, 3, 4, 5, 6]
    last = learner_at(straight, 6)
    same(learner_at(straight._replace(path=killed), 6), last)
    if name == "ppo_ewma":  # the proximal policy was kept, too
        assert differ(last.proximal, learner_at(straight, 2).proximal)
    if name == "sapg":  # two epochs in each update
        rates = [row["charts/learning_rate"] for row in metrics_of(killed)]
        np.testing.assert_allclose(rates, 1e-5 * 1.5 ** np.arange(2, 13, 2), rtol=1e-5)
