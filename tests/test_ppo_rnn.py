"""What ppo_rnn.py adds to ppo.py: states that are carried, stored and zeroed where an episode begins, and sequences.

The answers are those of a loop in NumPy over environments and steps, which finds the beginnings of episodes in the
observations, and of environments whose every observation says where it belongs.
"""

from collections import namedtuple
from dataclasses import replace
from fnmatch import fnmatch

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import Noise, Toy, Training, build, differ, on_devices, refusal, same

import ppo_rnn
from common import envs, evaluation
from common.actions import Discrete
from common.run import plots

pytestmark = pytest.mark.slow  # to compile
STEPS, ENVS = 12, 16  # of the rollouts that are compared with NumPy
ARGS = ppo_rnn.Args(
    num_envs=8, num_steps=STEPS, total_timesteps=96 * 4, minibatch_size=48, hidden_sizes=(5,), cell_size=4,
    num_devices=1, learning_rate=1e-2, activation="tanh", layer_norm=False,
)  # fmt: skip


def having(**flags):
    """ARGS with these flags, and with what follows from them."""
    return replace(ARGS, **{"num_minibatches": None, "sequence_length": None} | flags)


class Odd(Toy):
    """Episodes of 1, 3, 5 or 7 steps: terminated if `mark` is positive, else truncated. Observes its time, its mark
    and its length, so that an observation tells what comes after it."""

    obs_shape, action_space = (3,), Discrete((3,))

    def reset(self, key):
        mark_key, end_key = jax.random.split(key)
        end = jax.random.choice(end_key, jnp.array([1, 3, 5, 7]))
        state = jnp.int32(0), jax.random.uniform(mark_key, minval=-1.0), end
        return state, self.observe(state)

    def observe(self, state):
        time, mark, end = state
        return jnp.stack([time / 4, mark, end / 4])

    def step(self, key, state, action):
        time, mark, end = state
        state, ended = (time + 1, mark, end), time + 1 == end
        return state, self.observe(state), mark, ended & (mark > 0), ended & (mark <= 0), jnp.bool_(False)


def opinionated(params):
    """With heads and biases that matter: the policy's starts at nearly 0, and biases at 0."""
    params["params"]["actor"]["kernel"] *= 100.0
    keys = iter(jax.random.split(jax.random.key(7), 99))
    return jax.tree.map(lambda x: x + 0.3 * jax.random.normal(next(keys), x.shape) if x.ndim == 1 else x, params)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru(p, h, x):
    """Cho et al. 2014, with the reset gate after the product, as in cuDNN."""
    gate = lambda name: x @ p[f"i{name}"]["kernel"] + p[f"i{name}"]["bias"]  # noqa: E731
    r, z = (sigmoid(gate(name) + h @ p[f"h{name}"]["kernel"]) for name in "rz")
    n = np.tanh(gate("n") + r * (h @ p["hn"]["kernel"] + p["hn"]["bias"]))
    h = (1 - z) * n + z * h
    return h, h


def lstm(p, state, x):
    """Hochreiter & Schmidhuber 1997, with a forget gate."""
    c, h = state
    i, f, g, o = (x @ p[f"i{name}"]["kernel"] + h @ p[f"h{name}"]["kernel"] + p[f"h{name}"]["bias"] for name in "ifgo")
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    return (c, h), h


class Slow:
    """One environment's policy, a step at a time."""

    def __init__(self, args, params):
        self.params = jax.tree.map(lambda x: np.asarray(x, np.float64), params["params"])
        self.names = ["recurrent"] * 2 if args.shared_encoder else ["actor_recurrent", "critic_recurrent"]
        self.cell, zeros = (gru, np.zeros(4)) if args.cell == "gru" else (lstm, (np.zeros(4), np.zeros(4)))
        self.zeros = {name: zeros for name in self.names}
        self.state = self.zeros

    def see(self, obs):
        """-> log-probabilities [3], value, the state after it."""
        after, outputs = {}, {}
        for name in dict.fromkeys(self.names):
            p = self.params[name]
            x = np.tanh(obs @ p["encoder"]["Dense_0"]["kernel"] + p["encoder"]["Dense_0"]["bias"])
            after[name], outputs[name] = self.cell(p["cell"], self.state[name], x)
        heads = [
            outputs[name] @ self.params[head]["kernel"] + self.params[head]["bias"]
            for name, head in zip(self.names, ("actor", "critic"), strict=True)
        ]
        return heads[0] - np.log(np.exp(heads[0]).sum()), heads[1][0], after

    def flat(self):
        """The state as the script stores it: the cells' arrays one after the other."""
        return np.concatenate([np.ravel(self.state[name]) for name in dict.fromkeys(self.names)])


def by_steps(args, params, rollouts):
    """What each transition of consecutive rollouts [T, N, ...] should have had: log_prob, value, final_value and the
    state before it; and the value of the last observation after each rollout."""
    obs = np.concatenate([*(t.obs for _, t, *_ in rollouts), rollouts[-1][0].obs[None]]).astype(np.float64)
    action = np.concatenate([np.asarray(t.action)[..., 0] for _, t, *_ in rollouts])
    found = {name: np.zeros(action.shape) for name in ("log_prob", "value", "final_value")}
    states = np.zeros((*action.shape, Slow(args, params).flat().size))
    after = np.zeros((len(rollouts), ENVS))
    for n in range(ENVS):
        slow = Slow(args, params)
        for t in range(len(obs)):
            time, mark, end = obs[t, n]
            if time == 0:
                slow.state = slow.zeros
            log_probs, value, state = slow.see(obs[t, n])
            if t > 0 and t % STEPS == 0:
                after[t // STEPS - 1, n] = value
            if t == len(obs) - 1:
                break
            states[t, n] = slow.flat()
            found["log_prob"][t, n], found["value"][t, n] = log_probs[action[t, n]], value
            slow.state = state
            if round(4 * time) + 1 == round(4 * end) and mark <= 0:
                found["final_value"][t, n] = slow.see(np.array([time + 0.25, mark, end]))[1]
    return found, states, after


@pytest.fixture(scope="module", params=[("gru", False, 3), ("gru", True, 12), ("lstm", False, 4)])
def played(request):
    """Two rollouts, one after the other, of Odd; all sequences in a random order; what the network makes of them."""
    cell, shared, length = request.param
    args = having(cell=cell, shared_encoder=shared, sequence_length=length)
    env, network = envs.VectorEnv(Odd(), ENVS), ppo_rnn.ActorCritic(args, Odd.action_space)

    def run(key):
        env_state, obs = env.reset(key)
        cells = ppo_rnn.initial_cells(args, ENVS)
        params = opinionated(network.init(key, obs, cells))
        learner = ppo_rnn.Learner(params, None, None, None)
        chunk, rollouts = ppo_rnn.Environments(env_state, obs, cells, None), []
        for i in range(2):
            rollouts.append(ppo_rnn.rollout(args, env, network, learner, chunk, jax.random.fold_in(key, i)))
            chunk = rollouts[-1][0]
        _, t, states, *_ = rollouts[1]
        cells = ppo_rnn.Cells(states, t.reset)
        batch = ppo_rnn.Batch(t.obs, t.action, t.log_prob, t.value, t.reward, t.final_value, cells)
        batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
        order = jax.random.permutation(key, ENVS * STEPS // length)
        minibatch = ppo_rnn.take(args, batch, order)
        dist, value, _ = ppo_rnn.forward(args, network, None, params, minibatch.obs, minibatch.cells)
        return params, rollouts, minibatch, dist.log_prob(minibatch.action), value

    return args, *jax.device_get(on_devices(run)(jax.random.key(10)))


def test_rollouts_are_those_of_numpy_step_by_step(played):
    """Log-probabilities, values, those of final and of last observations, resets, and the states that are stored."""
    args, params, rollouts, *_ = played
    found, states, after = by_steps(args, params, rollouts)
    ts = [t for _, t, *_ in rollouts]
    reset = np.concatenate([t.reset for t in ts])
    assert reset.any(1).all() and not reset[1:].all(1).any()  # in each step somewhere, and nowhere everywhere
    np.testing.assert_array_equal(reset, np.concatenate([t.obs for t in ts])[..., 0] == 0)
    for name, expected in found.items():
        assert abs(expected).max() > 0.1
        np.testing.assert_allclose(np.concatenate([getattr(t, name) for t in ts]), expected, atol=2e-5)
    np.testing.assert_allclose([last for *_, last, _ in rollouts], after, atol=2e-5)
    first = np.arange(0, 2 * STEPS, args.sequence_length)
    stored = np.concatenate([np.concatenate(jax.tree.leaves(s), -1) for _, _, s, *_ in rollouts])  # [T / L, N, cells]
    carried = ~reset[first]
    assert abs(states[first][carried]).max() > 0.1
    np.testing.assert_allclose(stored[carried], states[first][carried], atol=2e-5)


def test_sequences_from_stored_states_repeat_the_rollout(played):
    """Every ratio is 1 to float accuracy, with resets at every place of a sequence, whatever the sequences' order."""
    args, _, rollouts, minibatch, log_prob, value = played
    assert minibatch.cells.reset.reshape(-1, args.sequence_length).any(0).all()
    np.testing.assert_allclose(np.exp(log_prob - minibatch.log_prob), 1, atol=3e-6)
    np.testing.assert_allclose(value, minibatch.value, atol=3e-6)
    assert differ(minibatch.log_prob, rollouts[1][1].log_prob.ravel())  # shuffled
    same(np.sort(minibatch.log_prob), np.sort(rollouts[1][1].log_prob.ravel()))


def test_nothing_passes_the_border_of_an_episode():
    """A step depends on those steps that no reset is between, and on no others: neither in its value nor in a gradient,
    for all patterns of resets of 5 steps. On the state before the sequence too, up to the first reset."""
    args = having(cell="lstm")
    network, length = ppo_rnn.ActorCritic(args, Discrete((3,))), 5
    obs = jax.random.normal(jax.random.key(1), (length, 3))
    state = jax.tree.map(lambda x: x[:1] + 0.5, ppo_rnn.initial_cells(args, 1).state)
    patterns = np.array(np.meshgrid(*[[False, True]] * length)).reshape(length, -1).T
    params = opinionated(jax.jit(network.init)(jax.random.key(0), obs, ppo_rnn.Cells(state, jnp.ones(length, bool))))

    def outputs(obs, state, reset):
        dist, value, _ = network.apply(params, obs, ppo_rnn.Cells(state, reset))
        return dist.logits[:, 0] + value

    jacobian = jax.jit(jax.vmap(jax.jacrev(outputs, (0, 1)), (None, None, 0)))
    to_obs, to_state = jacobian(obs, state, patterns)
    changed = obs[None] + jnp.eye(length + 1)[:, :length, None]  # one step's observation at a time, and none
    moved = np.asarray(jax.jit(jax.vmap(jax.vmap(outputs, (0, None, None)), (None, None, 0)))(changed, state, patterns))
    for i, reset in enumerate(patterns):
        for step in range(length):
            linked = [at <= step and not reset[at + 1 : step + 1].any() for at in range(length)]
            np.testing.assert_array_equal(np.asarray(to_obs[i, step] != 0).any(-1), linked)
            np.testing.assert_array_equal(moved[i, :length, step] != moved[i, length, step], linked)
            begins = not reset[: step + 1].any()
            assert all((np.asarray(x[i, step]) != 0).any() == begins for x in jax.tree.leaves(to_state))


@pytest.fixture(scope="module")
def frozen():
    """Nothing is learned, on observations that are normalised by statistics that change."""
    args = having(sequence_length=3, minibatch_size=12, num_rollout_chunks=2, norm_obs=True, learning_rate=1e-30)
    return Training(ppo_rnn, Noise(Discrete((3,))), args)


def with_opinions(state):
    params = opinionated(jax.tree.map(jnp.copy, state.learner.params))
    params["params"]["actor"]["kernel"] *= 5.0
    return state._replace(learner=state.learner._replace(params=params))


def test_an_update_without_learning_leaves_every_ratio_at_1(frozen):
    """For three updates: states go on from rollout to rollout, and the loss sees what the behaviour policy saw."""
    states, metrics, _ = frozen.run(3, change=with_opinions)
    for row in metrics:
        assert abs(row["losses/approx_kl"]) < 1e-6 and row["losses/clipfrac"] == 0 and abs(row["outer/kl"]) < 1e-6
        assert row["losses/entropy"] < 0.95  # far from log 3, so that other states would have other ratios
    last = states[-1].environments
    assert last.cells.reset.any() and not last.cells.reset.all()
    assert all((np.asarray(x) != 0).all() for x in jax.tree.leaves(last.cells.state))


def test_gradients_are_compared_between_sequences_that_are_longer_than_the_sample(monkeypatch, frozen):
    """Of one sequence alone there is no noise."""
    monkeypatch.setattr(ppo_rnn, "PLASTICITY_SAMPLE", 2)
    states, _, samples = frozen.run(1)
    measured = frozen.measured(states[-1].learner, samples[-1])
    assert measured["plasticity/gradient_noise"] > 0 and np.isfinite(measured["plasticity/gradient_signal"])


class Recall(Toy):
    """Shows a bit in the first of three steps; only the last action, which has to name it, counts."""

    obs_shape = (2,)

    def reset(self, key):
        bit = jax.random.bernoulli(key).astype(jnp.int32)
        return (jnp.int32(0), bit), self.observe(jnp.int32(0), bit)

    def observe(self, time, bit):
        return jnp.stack([jnp.where(time == 0, 2.0 * bit - 1, 0.0), time / 2])

    def step(self, key, state, action):
        time, bit = state
        right = jnp.where(action[0] == bit, 1.0, -1.0)
        reward, time = jnp.where(time == 2, right, 0.0), time + 1
        return (time, bit), self.observe(time, bit), reward, time == 3, jnp.bool_(False), jnp.bool_(False)


class TwoLives:
    """A game of two lives of two steps, as Atari's with episodic_life: training takes a life for an episode."""

    num_envs = 1

    def step(self, key, state, action):
        time, total = state[0] + 1, state[1] + action[:, 0]
        lost, over, no = (time % 2 == 0)[None], (time == 4)[None], jnp.zeros(1, bool)
        episode = envs.Episode(over, jnp.int32([4]), total, no)
        return (time, total), envs.Step(jnp.zeros((1, 1)), total, lost, no, jnp.zeros((1, 1)), episode)


def test_a_memory_ends_with_a_life_in_an_evaluation_as_in_training():
    """The action is for how many steps the policy remembers: 0, 1, 0, 1."""

    def act(obs, key, memory):
        count = jnp.where(memory.reset, 0.0, memory.bit + 1)
        return count[:, None], memory._replace(bit=count)

    nothing = envs.Episode(*(jnp.zeros(1, dtype) for dtype in (bool, jnp.int32, jnp.float32, bool)))
    Seen = namedtuple("Seen", "bit reset")
    memory, start = Seen(jnp.zeros(1), jnp.ones(1, bool)), (jnp.int32(0), jnp.zeros(1))
    game = evaluation.Game(jax.random.key(0), jnp.int32(0), start, jnp.zeros((1, 1)), memory, nothing)
    assert evaluation.go_on(TwoLives(), act, game, 10).first.total_reward == 2


def test_learns_what_only_a_memory_can_know(monkeypatch, tmp_path):
    """In training and, with the policy that the script hands to it, in the evaluation."""
    args = having(
        num_envs=32, num_steps=16, sequence_length=8, minibatch_size=128, shared_encoder=True,
        total_timesteps=512 * 60, gamma=0.9, hidden_sizes=(8,), cell_size=8, ent_coef=0.0, anneal_lr=True,
        num_eval_episodes=128, eval_deterministic=True, plasticity_every=0, runs_dir=str(tmp_path),
    )  # fmt: skip
    monkeypatch.setattr(envs, "make", lambda env_id, num_envs, *_, **__: envs.VectorEnv(Recall(), num_envs))
    lines = plots.read_lines(ppo_rnn.train(args))
    keys = "charts/episodic_return", "eval/episodic_return"
    returns, evaluated = ([line[key] for line in lines if key in line] for key in keys)
    assert returns[-1] > 0.95 and evaluated == [1]


@pytest.mark.parametrize("flags, said", [
    (dict(sequence_length=5), "--sequence-length 5: * --num-steps 12 and --minibatch-size 48; 4 or 6 would*"),
    (dict(minibatch_size=8), "--sequence-length 12: * --num-steps 12 and --minibatch-size 8; 4 would*"),
    (dict(num_devices=8), "--num-devices 8: * --num-envs / * and --minibatch-size / --sequence-length, 8 and 4*"),
])  # fmt: skip
def test_what_cannot_work_is_one_line(flags, said):
    assert fnmatch(refusal(lambda: build(ppo_rnn, Odd(), having(**flags))), said)
