"""The gain of an update on fresh transitions, where it is known: a bandit's fresh gain is what its reward gained."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import Bandit

import ppo
import ppo_ewma
from common import envs

FLAGS = {"num_steps": 8, "minibatch_size": 256, "hidden_sizes": (8,), "num_devices": 1, "num_eval_episodes": 0}
SCRIPTS = {"ppo": (ppo, {}), "ppo_ewma": (ppo_ewma, {"com": 8.0})}


class Unrewarded(Bandit):
    """Rewards that have nothing to do with the action."""

    def step(self, key, state, action):
        state, obs, _, *ends = super().step(key, state, action)
        return state, obs, jax.random.normal(key), *ends


def updates(script, toy, number, **flags):
    """-> the probabilities of the actions after 0, 1, ... updates, and the metrics of each update."""
    module, own = SCRIPTS[script]
    args = module.Args(**FLAGS | own | flags | {"total_timesteps": number * 8 * flags["num_envs"]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(envs, "make", lambda env_id, num_envs, *_, **__: envs.VectorEnv(toy, num_envs))
        args, _, network, init, step, _, keys = module.build(args)
    policy = jax.jit(lambda params: jax.nn.softmax(network.apply(params, jnp.ones((1, 1)))[0].logits[0]))
    state, step = jax.jit(init)(keys), jax.jit(step)
    probabilities, rows = [policy(state.learner.params)], []
    for _ in range(number):
        state, metrics, _ = step(state)
        probabilities.append(policy(state.learner.params))
        rows.append(jax.device_get(metrics))
    return np.asarray(probabilities, np.float64), rows


@pytest.mark.parametrize("script", SCRIPTS)
def test_fresh_gain_is_what_the_reward_gained(script):
    """Going back loses sum_a (pi_t - pi_(t-1)) r(a), here in units of the rewards' standard deviation under pi_t. One
    step per episode: the advantage is the reward less a constant."""
    p, rows = updates(script, Bandit(), 6, num_envs=4096, minibatch_size=4096, learning_rate=5e-3, update_epochs=1)
    rewards = np.array(Bandit.rewards)
    gained = np.diff(p @ rewards)
    spread = np.sqrt(p @ rewards**2 - (p @ rewards) ** 2)
    assert np.isnan(rows[0]["outer/fresh_gain"]) and np.isfinite(rows[0]["outer/own_gain"])
    for n in range(1, 6):
        error = rows[n]["outer/fresh_gain_se"]
        assert gained[n - 1] > 20 * error * spread[n]  # or this would be a test of noise
        np.testing.assert_allclose(rows[n]["outer/fresh_gain"], gained[n - 1] / spread[n], atol=4 * error)
        # With so many transitions an update hardly fits noise: seen from its start, it gained as much.
        np.testing.assert_allclose(rows[n]["outer/own_gain"], gained[n] / spread[n], atol=6 * error)


@pytest.mark.parametrize("script", SCRIPTS)
def test_on_noise_an_update_gains_on_its_own_transitions_only(script):
    _, rows = updates(script, Unrewarded(), 60, num_envs=64, minibatch_size=64, learning_rate=1e-2, ent_coef=0.0)
    own, fresh = (np.array([row[f"outer/{name}_gain"] for row in rows[1:]]) for name in ("own", "fresh"))
    errors = np.array([row["outer/fresh_gain_se"] for row in rows[1:]])
    error = np.sqrt((errors**2).sum()) / len(errors)
    assert own.mean() > 5 * error and abs(fresh.mean()) < 4 * error
    assert 0.5 < fresh.std() / np.sqrt((errors**2).mean()) < 2  # the error is that of the numbers
