"""What ppo.py and pqn.py measure with common/metrics.py, and on what: test_metrics.py has the numbers. The others' code
is the same to the letter, but for the proximal policy of ppo_ewma.py."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from conftest import Toy, on_devices, reusing
from jax.sharding import PartitionSpec as P

import ppo
import pqn
from common import envs, metrics, statistics
from common.arrays import gather_rows, pack
from common.run import checkpoints, plots

FLAGS = {
    "num_envs": 32, "num_steps": 8, "total_timesteps": 256 * 5, "num_minibatches": 4, "num_rollout_chunks": 2,
    "hidden_sizes": (8, 6), "learning_rate": 1e-2, "gamma": 0.9, "update_epochs": 2,
}  # fmt: skip
LEFT = np.float32(0.6)  # of the entropy coefficient in the third of five updates
MEASURED = {"gradient_kurtosis", "gradient_signal", "gradient_noise", "gradient_noise_scale", "weight_norm"}
MEASURED |= {"policy_variance", "feature_rank", "srank", "dormant_neurons"}
OF_A_POLICY = {"effective_sample_size", "critic_feature_rank", "critic_srank", "critic_dormant_neurons"}


class Walk(Toy):
    """Time goes on, for ever, in a place of its own, which is rewarded, and so is the action. Observations tell all."""

    obs_shape = (3,)

    def reset(self, key):
        place = jax.random.uniform(key, (2,), minval=-1)
        return (jnp.int32(0), place), self._observe(0, place)

    def _observe(self, time, place):
        return jnp.append(place, time / 16.0)

    def step(self, key, state, action):
        time, place = state
        reward, never = place[0] + action[0], jnp.bool_(False)
        return (time + 1, place), self._observe(time + 1, place), reward, never, never, never


def built(script, **flags):
    """One step of temporal difference: the targets follow from two observations. With tau 100 all are dormant."""
    chosen = {"dormant_tau": 100.0} | ({"q_lambda": 0.0} if script is pqn else {"gae_lambda": 0.0})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(envs, "make", lambda env_id, num_envs, *_, **__: envs.VectorEnv(Walk(), num_envs))
        args, _, network, init, step, measure, keys = script.build(script.Args(**FLAGS | chosen | flags))
    step = jax.jit(step)  # within another jit the state is not donated: it is looked at again
    return SimpleNamespace(script=script, args=args, network=network, init=init, step=step, measure=measure, keys=keys)


@pytest.fixture(scope="module", params=(ppo, pqn))
def trained(request):
    """Three updates on 8 devices, samples of 64 transitions: all states and samples, and the rows that are measured."""
    script = request.param
    training = built(script, num_devices=8)
    training.states, training.samples, training.rows = [training.init(training.keys)], [], []
    gather = on_devices(partial(gather_rows, size=64), 8, P(None, "device"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "KL_SAMPLE", 64)
        for _ in range(3):
            state, _, sample = training.step(training.states[-1])
            training.states.append(state)
            training.samples.append(sample)
            training.rows.append(gather(sample.batch))
    training.values = jax.device_get(training.measure(training.states[-1].learner, training.samples[-1]))
    return training


def test_all_is_measured_and_dormant_tau_is_handed_on(trained):
    names = MEASURED | (set() if trained.script is pqn else OF_A_POLICY)
    assert trained.values.keys() == {f"plasticity/{name}" for name in names}
    shares = [value for key, value in trained.values.items() if key.endswith("dormant_neurons")]
    assert shares == [1] * (1 if trained.script is pqn else 2)


def test_effective_sample_size_is_100_until_the_policy_moves(trained):
    if trained.script is pqn:
        pytest.skip("its behaviour is another policy than the one that it learns")
    measured = [trained.measure(state.learner, trained.samples[-1]) for state in trained.states[-2:]]
    sizes = [values["plasticity/effective_sample_size"] for values in measured]
    assert sizes[0] == pytest.approx(100, abs=1e-3) and sizes[1] < 99.99


@pytest.mark.slow
def test_normalised_observations_are_measured_as_the_loss_saw_them():
    """A step of 1e-30 moves nothing, while the statistics move a lot."""
    training = built(ppo, num_devices=1, norm_obs=True, learning_rate=1e-30)
    state = training.init(training.keys)
    params = jax.tree.map(lambda x: 100 * x, state.learner.params)
    state = state._replace(learner=state.learner._replace(params=params))
    for _ in range(2):
        state, _, sample = training.step(state)
        size = training.measure(state.learner, sample)["plasticity/effective_sample_size"]
        assert size == pytest.approx(100, abs=1e-3)


def test_gradients_are_those_of_the_loss_on_the_sample(trained):
    """Of the whole sample, with advantages standardised over it, the kurtosis; of its eighths the sample covariance."""
    learner, rows = jax.device_get((trained.states[-1].learner, trained.rows[-1]))  # as one device would have them
    if trained.script is not pqn:
        advantage = np.asarray(rows.advantage, np.float64)
        rows = rows._replace(advantage=((advantage - advantage.mean()) / advantage.std()).astype(np.float32))
    forward = partial(trained.script.forward, trained.args, trained.network, learner.obs_stats)
    ent_coef = 0.0 if trained.script is pqn else LEFT * trained.args.ent_coef
    loss = partial(ppo.ppo_loss, trained.args, forward, ent_coef=ent_coef)
    loss = partial(pqn.q_loss, forward) if trained.script is pqn else loss
    gradient = jax.jit(lambda part: jax.grad(loss, has_aux=True)(learner.params, part)[0])
    flat = lambda grads: np.concatenate([np.ravel(g) for g in jax.tree.leaves(grads)]).astype(np.float64)  # noqa: E731
    whole = flat(gradient(rows))
    kurtosis = scipy.stats.kurtosis(np.log(np.abs(whole) + 1e-8), fisher=False)
    assert trained.values["plasticity/gradient_kurtosis"] == pytest.approx(kurtosis, rel=1e-2)
    eighths = np.stack([flat(gradient(jax.tree.map(lambda x, i=i: x[8 * i : 8 * i + 8], rows))) for i in range(8)])
    np.testing.assert_allclose(eighths.mean(0), whole, atol=1e-5)
    between = eighths.var(0, ddof=1).sum()
    assert trained.values["plasticity/gradient_noise"] == pytest.approx(8 * between, rel=1e-2)
    assert trained.values["plasticity/gradient_signal"] == pytest.approx((whole**2).sum() - between / 8, rel=1e-2)


@pytest.mark.parametrize("script", [ppo, pqn])
def test_a_dead_unit_is_one_of_its_own_encoder(script):
    """Of 16 + 8 + 6 units one has no weights and a bias of -1; a layer of each encoder in turn."""
    args = script.Args(**FLAGS, network="cnn", activation="relu", layer_norm=False, dormant_tau=0.0)
    rng, stats = np.random.default_rng(0), statistics.initial_stats((6, 5, 2))
    obs, action = jnp.array(rng.random((64, 6, 5, 2)) < 0.5), jnp.array(rng.integers(0, 2, (64, 1)))
    numbers = jnp.array(rng.normal(size=(len(script.Batch._fields) - 2, 64)), jnp.float32)
    network = pqn.QNetwork(args, 2) if script is pqn else ppo.ActorCritic(args, envs.Discrete((2,)))
    # No unit is dead by chance: of what is not negative the sum is not either.
    params = jax.tree.map(jnp.abs, jax.jit(network.init)(jax.random.key(1), obs))["params"]
    measure = on_devices(partial(script.measure_plasticity, args, network))
    rows = jax.tree.map(lambda x: x[None], script.Batch(pack(obs), action, *numbers))  # of one chunk
    sample = script.Sample(rows, stats, None if script is pqn else LEFT)

    def shares(params):
        """Of the critic's encoder, if there is one, and of the other."""
        known = {"params": {"params": params}, "obs_stats": stats}
        found = measure(script.Learner(**dict.fromkeys(script.Learner._fields) | known), sample)
        return [float(found[key]) for key in sorted(found) if key.endswith("dormant_neurons")]

    encoders = [None] if script is pqn else ["critic_encoder", "actor_encoder"]
    assert shares(params) == [0] * len(encoders)
    for i, encoder in enumerate(encoders):
        own = params[encoder] if encoder else params
        for name in ("conv", "Dense_0", "Dense_1"):
            dead = {key: x.at[..., 2].set(-1.0 if key == "bias" else 0.0) for key, x in own[name].items()}
            changed = {encoder: own | {name: dead}} if encoder else {name: dead}
            assert shares(params | changed) == pytest.approx([(j == i) / 30 for j in range(len(encoders))])


@pytest.mark.slow
def test_measuring_is_done_when_due_for_every_seed_and_changes_nothing_of_what_is_learned(tmp_path, monkeypatch):
    """Five updates of two seeds, measured never, and every 2 and at the end."""
    flags = FLAGS | {
        "num_envs": 8, "num_steps": 4, "total_timesteps": 32 * 5, "num_minibatches": 2, "num_devices": 1,
        "num_seeds": 2, "num_eval_episodes": 0, "runs_dir": str(tmp_path),
    }  # fmt: skip
    monkeypatch.setattr(envs, "make", lambda env_id, num_envs, *_, **__: envs.VectorEnv(Walk(), num_envs))
    reusing(monkeypatch, ppo)
    _, _, _, init, _, _, keys = ppo.build(ppo.Args(**flags))
    like, ends = init(keys), []
    for every, due in ((0, []), (2, [2, 4, 5])):
        path = ppo.train(ppo.Args(**flags, plasticity_every=every))
        ends.append(checkpoints.restore_newest(path, [5], like, "", partial=False)[0].learner)
        lines = plots.read_lines(path)
        assert [line["update"] for line in lines] == [1, 2, 3, 4, 5]
        found = {line["update"]: {k: x for k, x in line.items() if k.startswith("plasticity/")} for line in lines}
        assert [update for update, values in found.items() if values] == due
        for update in due:
            assert found[update].keys() == {f"plasticity/{name}" for name in MEASURED | OF_A_POLICY}
            assert all(len(value) == 2 for value in found[update].values())
            assert len(set(found[update]["plasticity/weight_norm"])) == 2
    jax.tree.map(np.testing.assert_array_equal, *ends)
    norms = [np.sqrt(sum((x[seed] ** 2).sum() for x in jax.tree.leaves(ends[1].params))) for seed in range(2)]
    np.testing.assert_allclose(found[5]["plasticity/weight_norm"], norms, rtol=1e-5)
