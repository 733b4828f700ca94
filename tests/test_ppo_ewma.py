"""What ppo_ewma.py adds to ppo.py: the decoupled loss by hand, and the proximal policy as an explicit average.

Where the two algorithms coincide, ppo.py, which has tests of its own, is the answer.
"""

from dataclasses import asdict, replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import Bandit, Training, differ, leaves_close, on_devices, same, watched
from jax.flatten_util import ravel_pytree
from test_ppo import NARROW

import ppo
import ppo_ewma
from common.actions import Categorical

ARGS = ppo_ewma.Args(
    num_envs=8, num_steps=8, total_timesteps=64 * 4, minibatch_size=16, hidden_sizes=(8,), num_devices=1,
    learning_rate=1e-2, com=4.0, clip_vloss=False,
)  # fmt: skip


def loss_of(args, now, proximal, acted, advantage):
    """ppo_loss of transitions whose action 0 has these probabilities under the three policies."""
    now, proximal, acted, advantage = (jnp.asarray(x, jnp.float32) for x in (now, proximal, acted, advantage))

    def policy(params, obs):
        return Categorical(jnp.log(jnp.stack([params, 1 - params], -1)), (2,)), jnp.zeros(now.size)

    zeros = jnp.zeros(now.size)
    batch = ppo_ewma.Batch(zeros[:, None], jnp.zeros((now.size, 1), int), jnp.log(acted), zeros, advantage, zeros)
    loss = lambda p: ppo_ewma.ppo_loss(args, policy, p, proximal, batch, args.ent_coef)  # noqa: E731
    (loss, parts), grads = jax.value_and_grad(loss, has_aux=True)(now)
    return float(loss), {name: float(x) for name, x in parts.items()}, grads


@pytest.mark.parametrize("bound", [None, 1.5])
def test_policy_loss_is_clipped_around_the_proximal_policy_and_weighted_for_the_behaviour_policy(bound):
    """The bound is on the weight alone: of pi / pi_behaviour more than that may be left."""
    by_hand = {  # probabilities acted with, under the proximal policy and now; advantage, loss, slope
        None: [
            # pi_prox / pi_behaviour = 1/2
            (0.4, 0.2, 0.3, 1, -0.6, 0),  # clipped, though the behaviour policy was even likelier to do it
            (0.4, 0.2, 0.22, 1, -0.55, -2.5),
            (0.4, 0.2, 0.3, -1, 0.75, 2.5),
            (0.4, 0.2, 0.1, -1, 0.4, 0),
            # pi_prox / pi_behaviour = 2
            (0.2, 0.4, 0.44, 1, -2.2, -5),  # not clipped, at 2.2 times the behaviour policy
            (0.2, 0.4, 0.6, 2, -4.8, 0),
            (0.2, 0.4, 0.2, -3, 4.8, 0),  # clipped, though it is the behaviour policy
        ],
        1.5: [
            (0.2, 0.4, 0.44, 1, -1.65, -3.75),  # weight 2 becomes 1.5, ratio 1.1
            (0.2, 0.4, 0.6, 1, -1.8, 0),
            (0.2, 0.4, 0.6, -1, 2.25, 3.75),
            (0.2, 0.28, 0.28, 1, -1.4, -5),  # weight 1.4 stays
            (0.2, 0.1, 0.11, 1, -0.55, -5),
        ],
    }[bound]
    acted, proximal, now, advantage, losses, slopes = np.transpose(by_hand)
    args = replace(ARGS, vf_coef=0.0, ent_coef=0.0, max_importance_ratio=bound)
    loss, parts, grads = loss_of(args, now, proximal, acted, advantage)
    assert loss == parts["losses/policy_loss"] == pytest.approx(losses.mean(), rel=1e-5)
    np.testing.assert_allclose(len(by_hand) * grads, slopes, rtol=1e-4)
    assert parts["losses/clipfrac"] == pytest.approx((abs(now / proximal - 1) > 0.2).mean())
    assert parts["ewma/boundfrac"] == pytest.approx(3 / 5 if bound else 0)


def test_metrics_by_hand():
    """Two transitions: pi_prox / pi_behaviour is 2 and 1/4, pi / pi_prox is 3/2 and 3."""
    args = replace(ARGS, max_importance_ratio=1.5, vf_coef=0.25, ent_coef=0.1)
    now, proximal, acted = [0.6, 0.3], [0.4, 0.1], [0.2, 0.4]
    loss, parts, _ = loss_of(args, now, proximal, acted, [1.0, -1.0])
    kl = [a * np.log(a / b) + (1 - a) * np.log((1 - a) / (1 - b)) for a, b in zip(proximal, now, strict=True)]
    entropy = [-p * np.log(p) - (1 - p) * np.log(1 - p) for p in now]
    expected = {
        "ewma/kl": np.mean(kl),
        "ewma/behaviour_kl": (2 - 1 - np.log(2) + 0.25 - 1 - np.log(0.25)) / 2,
        "ewma/max_ratio": 3,
        "ewma/max_behaviour_ratio": 2,
        "ewma/boundfrac": 0.5,
        "losses/approx_kl": (3 - 1 - np.log(3) + 0.75 - 1 - np.log(0.75)) / 2,  # pi / pi_behaviour, as in ppo.py
        "losses/clipfrac": 1,
        "losses/policy_loss": (-1.5 * 1.2 + 0.25 * 3) / 2,
        "losses/entropy": np.mean(entropy),
        "losses/value_loss": 0,
    }
    assert parts.keys() == expected.keys()
    for name, value in expected.items():
        assert parts[name] == pytest.approx(value, rel=1e-5), name
    assert loss == pytest.approx(expected["losses/policy_loss"] - 0.1 * np.mean(entropy), rel=1e-5)


def test_a_frozen_proximal_policy_makes_it_ppo(monkeypatch):
    """Three epochs of four minibatches, with steps large enough to be clipped: the same parameters, metrics too."""
    args = replace(ARGS, update_epochs=3, num_minibatches=4, minibatch_size=None, clip_vloss=True)
    network, rng = ppo_ewma.ActorCritic(args, NARROW), np.random.default_rng(0)
    obs = rng.normal(size=(64, 3)).astype(np.float32)
    params = jax.jit(network.init)(jax.random.key(0), obs)
    dist, value = network.apply(params, obs)
    action, (advantage, error) = dist.sample(jax.random.key(1)), rng.normal(1, 2, (2, 64)).astype(np.float32)
    batch = ppo_ewma.Batch(obs, action, dist.log_prob(action), value, advantage, value + error)
    monkeypatch.setattr(ppo_ewma, "update_proximal", lambda args, proximal, params: proximal)
    vector, _ = ravel_pytree(params)
    learner = ppo_ewma.Learner(params, ppo_ewma.ADAM.init(vector), ppo_ewma.Proximal(params, jnp.ones(())), None, None)
    rest = jax.random.key(0), 0.1, args.ent_coef
    run = lambda learner, batch: ppo_ewma.optimise(args, network, learner, batch, *rest)  # noqa: E731
    frozen, metrics = on_devices(run)(learner, batch)
    learner = ppo.Learner(params, ppo.ADAM.init(vector), None, None)
    own = {"com", "ewma_debias", "max_importance_ratio"}
    theirs = ppo.Args(**{name: value for name, value in asdict(args).items() if name not in own})
    run = lambda learner, batch: ppo.optimise(theirs, network, learner, batch, *rest)  # noqa: E731
    expected, expected_metrics = on_devices(run)(learner, batch)
    assert expected_metrics["losses/clipfrac"] > 0.1
    leaves_close(frozen.params, expected.params, rtol=1e-5, atol=1e-5)
    leaves_close({name: metrics[name] for name in expected_metrics}, expected_metrics, rtol=1e-3, atol=1e-4)
    same(frozen.proximal.params, params)


def average(history, com, debias):
    """The weighted average of all parameters so far, theta_0 first, in float64."""
    beta, last = com / (1 + com), len(history) - 1
    total, weights = np.zeros_like(np.asarray(history[0], np.float64)), 0.0
    for k, theta in enumerate(history):
        weight = beta ** (last - k)
        if not debias:
            weight *= 1.0 if k == 0 else 1 - beta
        total, weights = total + weight * np.asarray(theta, np.float64), weights + weight
    assert debias or abs(weights - 1) < 1e-9
    return total / weights


def prescribed(steps):
    """In Adam's place: takes these steps, a number each, with all parameters."""

    def update(grads, count, params=None):
        return jax.tree.map(lambda g: jnp.full_like(g, jnp.asarray(steps, jnp.float32)[count]), grads), count + 1

    return optax.GradientTransformation(lambda params: jnp.int32(0), update)


def test_each_minibatch_sees_the_average_of_the_parameters_before_it(monkeypatch):
    """With the real Adam, over two updates: what the loss was given, written down minibatch by minibatch."""
    flat = lambda x: ravel_pytree(x)[0]  # noqa: E731
    given = watched(monkeypatch, ppo_ewma, "ppo_loss", lambda _, args, policy, *inputs: inputs[:2])
    states, *_ = Training(ppo_ewma, Bandit(), replace(ARGS, update_epochs=2)).run(2)
    jax.effects_barrier()
    assert len(given) == 2 * 2 * 4
    seen = [[flat(params), flat(proximal)] for params, proximal in given]
    history = [params for params, _ in seen]
    for n, (_, proximal) in enumerate(seen):
        np.testing.assert_allclose(proximal, average(history[: n + 1], 4.0, False), rtol=1e-4, atol=1e-6)
    assert max(abs(history[8] - seen[8][1])) > 1e-3  # not reset to the policy where the second update begins
    newest, proximal = (flat(x) for x in (states[2].learner.params, states[2].learner.proximal.params))
    np.testing.assert_allclose(proximal, average([*history, newest], 4.0, False), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("com, debias", [(4.0, True), (6.5, False), (0.0, False)])
def test_the_average_goes_on_over_updates_and_chunks_and_for_each_seed(monkeypatch, com, debias):
    steps = np.random.default_rng(0).normal(size=16)
    monkeypatch.setattr(ppo_ewma, "ADAM", prescribed(steps))
    flags = dict(num_seeds=2, num_rollout_chunks=2, com=com, ewma_debias=debias)
    args = replace(ARGS, update_epochs=2, learning_rate=0.1, anneal_lr=False, **flags)
    states, *_ = Training(ppo_ewma, Bandit(), args).run(2)
    moved = np.concatenate([[0.0], -0.1 * np.cumsum(steps)])
    for number, state in ((0, states[0]), (8, states[1]), (16, states[2])):
        learner = state.learner
        averaged = average(moved[: number + 1], com, debias)
        for delta, tree in ((moved[number], learner.params), (averaged, learner.proximal.params)):
            expected = jax.tree.map(lambda x, delta=delta: np.asarray(x, np.float64) + delta, states[0].learner.params)
            leaves_close(tree, expected, rtol=1e-4, atol=1e-5)
        weight = sum((com / (1 + com)) ** k for k in range(number + 1))
        np.testing.assert_allclose(learner.proximal.weight, [weight, weight], rtol=1e-5)
    assert differ(*(jax.tree.map(lambda x, i=i: x[i], states[2].learner.proximal.params) for i in range(2)))
