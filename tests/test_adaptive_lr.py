"""--adaptive-lr-kl of sapg.py, against a replay epoch by epoch."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import on_devices
from test_init_from import CARTPOLE, call, learner_at, resumed
from test_ppo import SPACES, leaves_close, random_batch, same

import sapg
from common.run import checkpoints, plots
from common.run.arguments import UsageError

TOY = dict(
    num_blocks=1, num_envs=8, num_steps=8, num_minibatches=1, hidden_sizes=(8,), total_timesteps=64 * 4, ent_coef=0.0
)


class OneBlock:
    """sapg.py's network, of which test_ppo.py's helpers know no blocks."""

    def __init__(self, network):
        self.network, self.init = network, lambda key, obs: network.init(key, obs, jnp.zeros(len(obs), int))

    def apply(self, params, obs, block=0, **kw):
        return self.network.apply(params, obs, block, **kw)


def epochs():
    """-> function(learner, learning rate) -> learner, metrics of optimise() on one batch, and the first learner."""
    args = sapg.Args(**TOY, num_devices=1)
    network = OneBlock(sapg.ActorCritic(args, SPACES["continuous"]))
    params, batch, dist = random_batch(args, network, 64, SPACES["continuous"])
    batch = jax.tree.map(jnp.asarray, batch._replace(log_prob=dist.log_prob(batch.action)))
    zeros = jnp.zeros(64)
    batch = sapg.Batch(*batch, zeros.astype(int), zeros.astype(bool), zeros)
    learner = sapg.Learner(params, sapg.ADAM.init(params), None, None)

    def run(learner, rate, **flags):
        changed = replace(args, **flags)
        optimise = lambda learner, rate: sapg.optimise(  # noqa: E731
            changed, network, learner, batch, jax.random.key(0), rate
        )
        return on_devices(optimise)(learner, jnp.float32(rate))

    return run, learner


def test_the_learning_rate_follows_the_kl_of_each_epoch():
    """Single epochs of one minibatch, in which the order of transitions does not matter, with the rate set by hand."""
    threshold, number, start = 2e-3, 8, 3e-3
    run, learner = epochs()
    whole, metrics = run(learner, start, update_epochs=number, adaptive_lr_kl=threshold)
    rate, moves, by_hand = start, [], learner
    for _ in range(number):
        by_hand, one = run(by_hand, rate, update_epochs=1)
        assert one["charts/learning_rate"] == np.float32(rate)  # without the flag it stays
        kl = float(one["losses/approx_kl"])
        moves.append(-1 if kl > 2 * threshold else 1 if kl < threshold / 2 else 0)
        rate = min(rate * 1.5 ** moves[-1], 1e-2)
    assert set(moves) == {-1, 0, 1}  # all three happen
    np.testing.assert_allclose(metrics["charts/learning_rate"], rate, rtol=1e-5)
    leaves_close(whole.params, by_hand.params, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "kl, factor", [(0.0, 1.5), (0.0079, 1.5), (0.0081, 1), (0.031, 1), (0.033, 1 / 1.5), (np.inf, 1 / 1.5), (np.nan, 1)]
)
def test_it_changes_beyond_half_and_twice_the_threshold(kl, factor):
    args = sapg.Args(adaptive_lr_kl=0.016)
    new = sapg.adapt_learning_rate(args, jnp.float32(1e-3), jnp.float32(kl))
    np.testing.assert_allclose(new, 1e-3 * factor, rtol=1e-6)


def test_the_learning_rate_stays_within_bounds():
    run, learner = epochs()
    _, metrics = run(learner, 9e-3, update_epochs=2, adaptive_lr_kl=1e9)
    assert metrics["charts/learning_rate"] == np.float32(1e-2)
    moved = learner._replace(params=jax.tree.map(lambda x: x + 1, learner.params))  # far from who acted
    _, metrics = run(moved, 1.2e-6, update_epochs=2, adaptive_lr_kl=1e-9)
    assert metrics["charts/learning_rate"] == np.float32(1e-6)


def test_epochs_that_were_stopped_do_not_change_it():
    run, learner = epochs()
    _, metrics = run(learner, 1e-3, update_epochs=6, adaptive_lr_kl=1e-8, target_kl=1e-9)
    # The first epoch's KL is 0, the second's is above both.
    assert metrics["outer/epochs"] == 2
    np.testing.assert_allclose(metrics["charts/learning_rate"], 1e-3, rtol=1e-6)


def test_a_resumed_run_goes_on_at_its_learning_rate_bit_for_bit(tmp_path):
    """As if it had been killed after update 2 of 4."""
    flags = CARTPOLE.replace("--learning-rate 0.01", "--learning-rate 1e-5 --adaptive-lr-kl 1000").split()
    flags += ["--num-blocks", 2, "--checkpoint-every", 2, "--keep-checkpoints", 0]
    straight = call(sapg, tmp_path, *flags, "--total-timesteps", 128, "--run-name", "straight")
    rate = {update: rates_at(straight, update) for update in (2, 4)}
    for update in (2, 4):  # two epochs each
        np.testing.assert_allclose(rate[update], 1e-5 * 1.5 ** (2 * update), rtol=1e-5)
    assert rate[4] == np.float32(plots.read_lines(straight.path)[-1]["charts/learning_rate"])
    killed = straight._replace(path=resumed(sapg, straight.path, tmp_path / "killed", after=2))
    assert rates_at(killed, 4) == rate[4]
    same(learner_at(killed, 4), learner_at(straight, 4))


def rates_at(outcome, update):
    like = {"learning_rate": outcome.like.learning_rate}
    return np.asarray(checkpoints.restore_newest(outcome.path, [update], like, "", partial=True)[0]["learning_rate"])


def test_it_is_not_annealed_as_well():
    assert sapg.Args().anneal_lr and not sapg.Args(adaptive_lr_kl=0.016).anneal_lr


def test_it_is_refused_in_chunks():
    """Of 16 chunks of 4 epochs the rate would be adapted 64 times in an update, most often to what others had moved."""
    said = r"^--adaptive-lr-kl 0.016 with --num-rollout-chunks 16: the KL of a later chunk .*; give one of the two$"
    with pytest.raises(UsageError, match=said):
        sapg.Args(adaptive_lr_kl=0.016, num_rollout_chunks=16)
