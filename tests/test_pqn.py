"""pqn.py against forward views, counts and known answers. What it shares with ppo.py to the letter is tested there."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import Aim, Counter, Training, TwoStates, build, on_devices, refusal
from test_ppo import every_pattern_of_ends, learned, mean_of_n_step_returns

import pqn

ARGS = pqn.Args(
    num_envs=8, num_steps=8, total_timesteps=64 * 4, minibatch_size=16, hidden_sizes=(8,), num_devices=1,
    learning_rate=1e-2,
)  # fmt: skip


@pytest.mark.parametrize("q_lambda", [0.0, 0.65, 1.0])
def test_targets_are_the_forward_view_for_every_pattern_of_ends(q_lambda):
    t, last = every_pattern_of_ends(pqn.Transition)
    targets = jax.jit(pqn.compute_targets)(t, last, 0.9, q_lambda)
    np.testing.assert_allclose(targets, mean_of_n_step_returns(t, last, 0.9, q_lambda) + t.value, rtol=1e-5, atol=1e-5)


def test_epsilon_greedy_takes_every_action_as_often_as_it_should():
    q = jnp.tile(jnp.array([0.1, 3.0, -1.0, 2.9]), (40_000, 1))
    actions = pqn.epsilon_greedy(q, jnp.float32(0.2)).sample(jax.random.key(0))[:, 0]
    counts = np.bincount(actions, minlength=4) / 40_000
    np.testing.assert_allclose(counts, [0.05, 0.85, 0.05, 0.05], atol=0.005)


def test_epsilon_falls_in_environment_steps():
    args = replace(ARGS, start_e=1.0, end_e=0.1, exploration_timesteps=64 * 3, total_timesteps=64 * 10)
    found = [float(pqn.exploration(args, jnp.int32(n))) for n in (0, 1, 2, 3, 9)]
    np.testing.assert_allclose(found, [1.0, 0.7, 0.4, 0.1, 0.1], rtol=1e-6)
    twice = replace(args, num_envs=16, minibatch_size=None, num_minibatches=None)
    np.testing.assert_allclose(pqn.exploration(twice, jnp.int32(1)), 0.4, rtol=1e-6)
    assert pqn.Args(total_timesteps=2**22).exploration_timesteps == 2**22 // 10
    for few in (0, 1, 64):  # without any exploration also in update 0
        args = replace(ARGS, start_e=1.0, end_e=0.1, exploration_timesteps=few)
        found = [float(pqn.exploration(args, jnp.int32(update))) for update in range(3)]
        np.testing.assert_allclose(found, [1.0 if few else 0.1, 0.1, 0.1], rtol=1e-6)


def test_the_rollout_explores_as_much_as_it_says():
    """Two actions and epsilon 1: half of the actions are the worse one; epsilon 0: none."""
    args = replace(ARGS, num_envs=512, minibatch_size=None, num_minibatches=None, total_timesteps=512 * 8)
    training = Training(pqn, Counter(ends=(50, 60), limit=70), args)
    env, network, state = training.env, training.network, training.init(training.keys)
    environments = jax.tree.map(lambda x: x[0], state.environments)

    @on_devices
    def run(epsilon):
        return pqn.rollout(args, env, network, state.learner, epsilon, environments, jax.random.key(1))

    q_of = jax.jit(jax.vmap(partial(network.apply, state.learner.params)))
    for epsilon, share in ((1.0, 0.5), (0.2, 0.1), (0.0, 0.0)):
        _, t, *_ = run(jnp.float32(epsilon))
        q = np.asarray(q_of(t.obs))
        best = q.argmax(-1)
        worse = (np.asarray(t.action[..., 0]) != best).mean()
        assert worse == pytest.approx(share, abs=0.03)
        np.testing.assert_allclose(t.value, q.max(-1), rtol=1e-4)


def test_loss_by_hand():
    def q_of(params, obs):
        return params * jnp.array([[1.0, 2.0], [3.0, 5.0]])

    batch = pqn.Batch(None, jnp.array([[1], [0]]), jnp.array([1.0, 5.0]))
    (loss, parts), grad = jax.value_and_grad(pqn.q_loss, argnums=1, has_aux=True)(q_of, jnp.float32(1), batch)
    assert loss == parts["losses/td_loss"] == 0.5 * (1 + 4) / 2
    assert parts["losses/q_values"] == 2.5
    assert grad == ((2 - 1) * 2 + (3 - 5) * 3) / 2


def test_kl_and_switched_by_hand():
    """Two actions, epsilon 0.2: the best one has 0.9. In one of two states another action becomes the best."""
    args = replace(ARGS, norm_obs=False)
    tables = jnp.array([[[1.0, 0.0], [0.0, 1.0]], [[2.0, 1.0], [1.0, 0.5]]])
    old, new = (pqn.Learner(q, None, None, None) for q in tables)
    obs, network = jnp.array([0, 1]), SimpleNamespace(apply=lambda params, obs: params[obs])

    @on_devices
    def run(epsilon):
        sample = pqn.Sample(pqn.Batch(obs[None], None, None), None)
        return pqn.measure_update(args, network, old, new, epsilon, sample)

    metrics = run(jnp.float32(0.2))
    assert metrics["outer/switched"] == 0.5
    assert metrics["outer/kl"] == pytest.approx(0.5 * 0.8 * np.log(9), rel=1e-5)
    assert metrics["outer/ddr"] == pytest.approx(64 / (0.4 * np.log(9)), rel=1e-5)
    assert metrics["outer/update_norm"] == pytest.approx(np.sqrt(1 + 1 + 1 + 0.25))
    assert np.isfinite(run(jnp.float32(0.0))["outer/kl"])


def test_learns_the_values_of_two_states_beyond_the_time_limit():
    """Values 5 and -0.5 + 0.8 * 5; the worse action of each state, then the best ones: 0 + 0.8 * 3.5, 0.8 * 3.5."""
    args = replace(ARGS, q_lambda=0.0, end_e=0.3, num_rollout_chunks=4)
    q = learned(pqn, TwoStates(), np.eye(2), args)
    np.testing.assert_allclose(q, [[0.8 * 3.5, 3.5], [5.0, 0.8 * 3.5]], atol=0.2)


def test_actions_that_are_no_single_choice_are_refused():
    assert "PQN needs one discrete action" in refusal(build, pqn, Aim(), ARGS)
