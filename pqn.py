"""PQN (Gallici et al. 2024, https://arxiv.org/abs/2407.04811): Q-learning for many parallel environments.

    python pqn.py                                                  # Breakout-MinAtar, 128 environments
    python pqn.py --env-id CartPole-v1 --num-envs 32 --num-steps 64 --minibatch-size 128 --q-lambda 0.95

There is no replay buffer and no target network. The outer loop collects `num_envs * num_steps` transitions with an
epsilon-greedy policy; the inner loop regresses Q on their lambda-returns in `update_epochs * num_minibatches` steps.
Layer normalisation keeps this stable. The loop and its measurements are those of ppo.py (`outer/kl` is that of the
epsilon-greedy policies): Mayor et al. 2025 (https://arxiv.org/abs/2506.03404) compare the two over environments and
rollout lengths. docs/pqn.md lists the logged keys and what differs from the authors' code.
"""

import common.run.early  # noqa: F401 (before JAX)

# isort: split
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec as P

from common import envs, evaluation, statistics
from common.actions import Categorical, Discrete
from common.arrays import PRODUCTS, gather_rows, pack, random_permutation, random_rows, unpack
from common.metrics import (
    PLASTICITY_SAMPLE,
    Sample,
    gradient_metrics,
    layer_metrics,
    move_metrics,
    policy_metrics,
    sample_size,
)
from common.run import arguments, devices
from common.run.arguments import EnvArgs, Fraction, NoSteps, Positive, Steps, UsageError
from common.run.command import main
from common.run.run import Run, begin
from common.vision import VISION

FIXED = ("norm_obs", "norm_reward", "network", "activation", "layer_norm")
RADAM = optax.scale_by_radam()  # on one vector; `optimise` applies the learning rate


@dataclass(frozen=True)
class Args(EnvArgs):  # with flags for seeds, devices, environments, logging: common/run/arguments.py
    # --- run ---
    total_timesteps: Steps = 10 * 2**20
    """Environment steps over all environments."""

    # --- environment ---
    env_id: str = "Breakout-MinAtar"
    """An id that --list-envs SUITE lists (CartPole-v1, kinetix/locomotion, brax/ant), or my_file:MyEnv."""

    # --- outer loop ---
    num_envs: Positive[int] = 128
    """N: parallel environments over all devices. More mean less noise, but fewer updates for the same steps."""
    num_steps: Positive[int] = 32
    """K (T in shapes): steps of each environment per update."""
    gamma: Fraction = 0.99
    """Discount factor."""
    q_lambda: Fraction = 0.65
    """Lambda of the returns that Q is regressed on; 0: one step, 1: Monte Carlo up to the end of the rollout."""
    start_e: Fraction = 1.0
    """Epsilon of the epsilon-greedy policy at the start, ..."""
    end_e: Fraction = 0.05
    """... at the end of --exploration-timesteps, ..."""
    exploration_timesteps: NoSteps | None = None
    """... over which it falls linearly: environment steps over all environments (default: a tenth of the budget)."""
    update_epochs: Positive[int] = 2
    """E: passes over the data of one update."""
    base_num_envs: Positive[int] = 128
    """Number of environments that --scaling starts from."""

    # --- inner loop ---
    minibatch_size: Positive[int] | None = None
    """Transitions per minibatch (default 128, but at most an eighth of the update's); it sets --num-minibatches."""
    num_minibatches: Positive[int] | None = None
    """M: minibatches per epoch; --minibatch-size follows from it."""
    learning_rate: Positive[float] = 5e-4
    """RAdam's learning rate."""
    anneal_lr: bool = True
    """Reduce the learning rate linearly, update by update, to 0."""
    max_grad_norm: Positive[float] = 10.0
    """Gradients are scaled down to this global norm."""

    # --- network ---
    network: Literal["mlp", "cnn", "nature", "impala"] | None = None
    """What is before the hidden layers. cnn: a 3x3 convolution with 16 channels, for image-like observations; nature,
    impala: the convolutions of Mnih et al. 2015 or the 15 of Espeholt et al. 2018, for pixels. Default: cnn for images
    whose shorter side is 3 to 35, nature from 36 on, mlp for anything else."""
    hidden_sizes: tuple[Positive[int], ...] = (128, 128)
    """Widths of the hidden layers."""
    activation: Literal["tanh", "relu", "elu"] = "relu"
    """Activation of the hidden layers."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the inputs of the hidden layers' products. All else, their sums too, is float32."""
    layer_norm: bool = True
    """Layer normalisation before each activation."""

    def __post_init__(self):
        super().__post_init__()
        # From here on both the size and the number of minibatches are set, so that args.json says what ran.
        arguments.settle_minibatches(self, default_size=128)
        if self.exploration_timesteps is None:
            object.__setattr__(self, "exploration_timesteps", self.total_timesteps // 10)


# Everything from here to `build` runs on one device; psum, pmean and axis_index over "device" are where devices meet.
# In shapes T is num_steps, N this device's environments, C num_rollout_chunks, A the number of actions.
class QNetwork(nn.Module):
    """Observations [B, ...] -> Q [B, A]."""

    args: Args
    num_actions: int

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        activation = {"tanh": nn.tanh, "relu": nn.relu, "elu": nn.elu}[self.args.activation]
        init, product = nn.initializers.orthogonal(np.sqrt(2)), PRODUCTS[self.args.compute_dtype]
        dense = partial(nn.Dense, kernel_init=init, dot_general=product)
        if self.args.layer_norm:
            activation = lambda x, plain=activation: plain(nn.LayerNorm()(x))  # noqa: E731
        x = obs.astype(jnp.float32) / (255 if obs.dtype == jnp.uint8 else 1)  # bytes are pixels
        if self.args.network in VISION:
            sow = partial(self.sow, "intermediates", "hidden")
            x = VISION[self.args.network](x, activation, self.args.compute_dtype, sow)
        x = x.reshape(x.shape[0], -1)
        for size in self.args.hidden_sizes:
            x = activation(dense(size)(x))
            self.sow("intermediates", "hidden", x)
        return nn.Dense(self.num_actions, kernel_init=nn.initializers.orthogonal(1.0), name="q")(x)


class Learner(NamedTuple):
    """What is learned, and what --init-from takes over. Equal on all devices."""

    params: Any
    opt_state: Any
    obs_stats: statistics.RunningStats
    return_stats: statistics.RunningStats


class Environments(NamedTuple):
    """The environments of one chunk [N / C, ...] or of all chunks [C, N / C, ...]. Split over devices."""

    state: Any
    obs: jax.Array  # what to act on next
    discounted_return: jax.Array  # of the running episodes (for --norm-reward)


class TrainState(NamedTuple):
    """Everything that a run needs to continue as if it had never stopped."""

    learner: Learner
    environments: Environments
    key: jax.Array
    update: jax.Array  # [], updates done


class Transition(NamedTuple):
    """A chunk's rollout as collected, [T, N / C, ...]."""

    obs: Any  # booleans packed into bits
    action: jax.Array  # [T, N / C, 1]
    value: jax.Array  # max_a Q of the observation
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final_value: jax.Array  # if truncated, max_a Q of the observation before the reset, else 0


class Batch(NamedTuple):
    """A chunk's rollout as the inner loop sees it, [T * N / C, ...]."""

    obs: Any
    action: jax.Array
    target: jax.Array


def forward(args: Args, network: QNetwork, obs_stats: statistics.RunningStats, params: Any, obs: Any, **kw) -> Any:
    """Observations [B, ...] or their bits -> Q [B, A]. kw are those of flax's apply."""
    obs = unpack(obs)
    return network.apply(params, statistics.normalise(obs, obs_stats) if args.norm_obs else obs, **kw)


def epsilon_greedy(q: jax.Array, epsilon: jax.Array) -> Categorical:
    """Q [..., A] -> with probability epsilon a uniform action, else the best one."""
    count = q.shape[-1]
    probs = epsilon / count + (1 - epsilon) * jax.nn.one_hot(q.argmax(-1), count)
    return Categorical(jnp.log(probs), (count,))


def exploration(args: Args, update: jax.Array) -> jax.Array:
    """Epsilon of an update: linear in environment steps from start_e to end_e, then constant."""
    if args.exploration_timesteps == 0:
        return jnp.float32(args.end_e)
    done = jnp.minimum(1.0, update * float(args.batch_size) / float(args.exploration_timesteps))
    return args.start_e + done * (args.end_e - args.start_e)


def rollout(
    args: Args, env: envs.VectorEnv, network: QNetwork, behaviour: Learner, epsilon: Any, chunk: Environments, key: Any
) -> tuple[Environments, Transition, jax.Array, jax.Array]:
    """Play num_steps steps in a chunk of environments with the epsilon-greedy policy.

    -> chunk, transitions [T, N / C], value of the last observation [N / C], sums [4] over the episodes that ended.
    """
    q_of = partial(forward, args, network, behaviour.obs_stats, behaviour.params)

    def step(carry: tuple, step_key: jax.Array) -> tuple:
        env_state, obs = carry
        action_key, env_key = jax.random.split(step_key)
        q = q_of(obs)
        value = q.max(-1)
        action = epsilon_greedy(q, epsilon).sample(action_key)
        env_state, out = env.step(env_key, env_state, action)
        final_value = jax.lax.cond(
            out.truncated.any(), lambda: q_of(out.final_obs).max(-1) * out.truncated, lambda: jnp.zeros_like(value)
        )
        transition = Transition(pack(obs), action, value, out.reward, out.terminated, out.truncated, final_value)
        return (env_state, out.obs), (transition, envs.episode_sums(out.episode))

    keys = jax.random.split(key, args.num_steps)
    (env_state, obs), (transitions, sums) = jax.lax.scan(step, (chunk.state, chunk.obs), keys)
    chunk = chunk._replace(state=env_state, obs=obs)
    return chunk, transitions, q_of(obs).max(-1), jax.lax.psum(sums.sum(0), "device")


def compute_targets(t: Transition, last_value: jax.Array, gamma: float, q_lambda: float) -> jax.Array:
    """Lambda-returns of max_a Q, not cut at exploring actions (Gallici et al. 2024; Peng's Q(lambda)). -> [T, N / C].

    G_t = r_t + gamma (1 - terminated_t) ((1 - lambda) V(s'_t) + lambda G_{t+1}), V = max_a Q, and G_T = V(s_T). Where
    an episode was truncated, s'_t is the observation before the reset, and V(s'_t) stands for the rest of it.
    """

    def step(carry: tuple, inputs: tuple) -> tuple:
        next_target, next_value = carry
        reward, value, terminated, truncated, final_value = inputs
        future = jnp.where(truncated, final_value, (1 - q_lambda) * next_value + q_lambda * next_target)
        target = reward + gamma * (1 - terminated) * future
        return (target, value), target

    inputs = (t.reward, t.value, t.terminated, t.truncated, t.final_value)
    return jax.lax.scan(step, (last_value, last_value), inputs, reverse=True)[1]


def q_loss(q_of: Any, params: Any, batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Half the mean squared error of Q(s, a) (Gallici et al. 2024, algorithm 1). -> loss, metrics."""
    q = q_of(params, batch.obs)
    q = jnp.where(batch.action == jnp.arange(q.shape[-1]), q, 0.0).sum(-1)
    td_loss = 0.5 * (q - batch.target) ** 2
    return td_loss.mean(), statistics.means({"losses/td_loss": td_loss, "losses/q_values": q})


def optimise(
    args: Args, network: QNetwork, learner: Learner, batch: Batch, key: jax.Array, learning_rate: jax.Array
) -> tuple[Learner, dict[str, jax.Array]]:
    """The inner loop: update_epochs passes over a chunk's batch in shuffled minibatches.

    batch: [T * N / C, ...] of this device. A minibatch is the union of the devices' shares, each shuffled locally.
    """
    # Parameters as one vector: RAdam and the norm are then a few programs of a GPU rather than a few per layer.
    params, unravel = ravel_pytree(learner.params)
    q_of = lambda params, obs: forward(args, network, learner.obs_stats, unravel(params), obs)  # noqa: E731
    grad_fn = jax.grad(partial(q_loss, q_of), has_aux=True)

    def minibatch_step(carry: tuple, rows: jax.Array) -> tuple:
        params, opt_state = carry
        # Rows are gathered when they are used: no shuffled copy of the batch.
        minibatch = jax.tree.map(lambda x: x[rows], batch)
        grads, metrics = grad_fn(params, minibatch)
        grads = jax.lax.pmean(grads, "device")
        grad_norm = jnp.linalg.norm(grads)
        steps, opt_state = RADAM.update(grads * jnp.minimum(1.0, args.max_grad_norm / grad_norm), opt_state)
        return (params - learning_rate * steps, opt_state), metrics | {"outer/grad_norm": grad_norm}

    def epoch(carry: tuple, key: jax.Array) -> tuple:
        positions = jnp.arange(batch.target.size).reshape(args.num_minibatches // args.num_rollout_chunks, -1)
        rows = random_permutation(key, batch.target.size)(positions)
        carry, metrics = statistics.scan_mean(minibatch_step, carry, rows)
        return carry, jax.lax.pmean(metrics, "device")

    start, keys = (params, learner.opt_state), jax.random.split(key, args.update_epochs)
    (params, opt_state), metrics = jax.lax.scan(epoch, start, keys)
    return learner._replace(params=unravel(params), opt_state=opt_state), jax.tree.map(jnp.mean, metrics)


def measure_update(
    args: Args, network: QNetwork, old: Learner, new: Learner, epsilon: jax.Array, sample: Sample
) -> dict:
    """How far the update moved the parameters and the policy, on a sample of its transitions."""
    q_of = partial(forward, args, network, sample.obs_stats)
    batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), sample.batch)
    old_q, q = (q_of(params, batch.obs) for params in (old.params, new.params))
    # A policy that never explores has no finite KL to another one.
    before, after = (epsilon_greedy(x, jnp.maximum(epsilon, 0.01)) for x in (old_q, q))
    switched = old_q.argmax(-1) != q.argmax(-1)
    kl, switched = jax.lax.pmean(jnp.stack([before.kl(after).mean(), switched.mean()]), "device")
    moved = move_metrics(kl, old.params, new.params, args.batch_size)
    return moved | {"outer/kl": kl, "outer/switched": switched}


def measure_plasticity(args: Args, network: QNetwork, learner: Learner, sample: Sample) -> dict[str, jax.Array]:
    """What docs/metrics.md explains, on PLASTICITY_SAMPLE transitions of an update. -> scalars."""
    q_of, batch = partial(forward, args, network, sample.obs_stats), gather_rows(sample.batch, PLASTICITY_SAMPLE)
    q, sown = q_of(learner.params, batch.obs, mutable="intermediates")
    grad_fn = jax.grad(partial(q_loss, q_of), has_aux=True)
    return {
        **layer_metrics({"q": sown["intermediates"]}, args.dormant_tau),
        **gradient_metrics(lambda part: grad_fn(learner.params, part)[0], batch),
        **policy_metrics(learner.params, epsilon_greedy(q, 0.0)),
    }


def update(args: Args, env: envs.VectorEnv, network: QNetwork, state: TrainState) -> tuple[TrainState, dict, Sample]:
    """One step of the outer loop, on this device's share of the environments. -> state, metrics, sample.

    Chunk by chunk: a rollout with the behaviour policy, which is the same for all of them, then the chunk's share of
    the minibatches, all epochs. A minibatch is mixed within its chunk; --norm-reward knows the chunks so far.
    """
    behaviour = state.learner
    next_key, key = jax.random.split(state.key)
    key = jax.random.fold_in(key, jax.lax.axis_index("device"))
    remaining = 1 - state.update / float(args.num_updates) if args.anneal_lr else 1.0
    learning_rate = jnp.float32(args.learning_rate * remaining)
    epsilon = exploration(args, state.update)
    size = sample_size(args.batch_size, args.num_rollout_chunks * jax.lax.axis_size("device"))

    def one_chunk(carry: tuple, index: jax.Array) -> tuple:
        learner, obs_stats, environments = carry
        rollout_key, shuffle_key, sample_key = jax.random.split(jax.random.fold_in(key, index), 3)
        chunk = jax.tree.map(lambda x: x[index], environments)
        chunk, t, last_value, sums = rollout(args, env, network, behaviour, epsilon, chunk, rollout_key)
        if args.norm_reward:
            t, total, stats = statistics.normalise_rewards(t, chunk.discounted_return, learner.return_stats, args.gamma)
            chunk, learner = chunk._replace(discounted_return=total), learner._replace(return_stats=stats)
        batch = Batch(t.obs, t.action, compute_targets(t, last_value, args.gamma, args.q_lambda))
        batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
        learner, metrics = optimise(args, network, learner, batch, shuffle_key, learning_rate)
        if args.norm_obs:
            obs_stats = statistics.update_stats_by_step(obs_stats, t.obs)
        # Written in place, in the carry: as inputs and outputs of the scan all environments would exist twice.
        environments = jax.tree.map(lambda x, new: x.at[index].set(new), environments, chunk)
        carry = learner, obs_stats, environments
        return carry, (metrics, random_rows(batch, size, sample_key), sums)

    carry = behaviour, behaviour.obs_stats, state.environments
    carry, (metrics, batch, sums) = jax.lax.scan(one_chunk, carry, jnp.arange(args.num_rollout_chunks))
    learner, obs_stats, environments = carry
    sample = Sample(batch, behaviour.obs_stats)
    metrics = jax.tree.map(lambda x: x.mean(0), metrics)
    metrics |= measure_update(args, network, behaviour, learner, epsilon, sample)
    metrics |= env.episode_metrics(sums.sum(0)) | {"charts/learning_rate": learning_rate, "charts/epsilon": epsilon}
    # Not earlier: the loss has to normalise observations exactly as the behaviour policy did.
    learner = learner._replace(obs_stats=obs_stats)
    return TrainState(learner, environments, next_key, state.update + 1), metrics, sample


def init_state(args: Args, env: envs.VectorEnv, network: QNetwork, key: jax.Array) -> TrainState:
    """A fresh network, and a new episode in each of this device's environments."""
    network_key, env_key, key = jax.random.split(key, 3)
    env_keys = jax.random.split(jax.random.fold_in(env_key, jax.lax.axis_index("device")), args.num_rollout_chunks)
    state, obs = jax.lax.map(lambda key: env.reset(key, args.stagger_resets), env_keys)  # [C, N / C, ...]
    environments = Environments(state, obs, jnp.zeros(obs.shape[:2]))
    params = network.init(network_key, obs[0, :1])
    stats = statistics.initial_stats(env.obs_shape), statistics.initial_stats(())
    learner = Learner(params, RADAM.init(ravel_pytree(params)[0]), *stats)
    return TrainState(learner, environments, key, jnp.int32(0))


def build(args: Args) -> tuple:
    """Put the functions above on the devices: learner replicated, environments split, several seeds vmapped.

    -> args, env (one device's share of one chunk), network, init(keys) -> state, step(state) -> state, metrics, sample;
    measure(learner, sample) -> metrics; keys.
    """
    chunk = args.num_envs // args.num_rollout_chunks
    chosen = devices.choose_devices(args.num_devices, chunk, args.minibatch_size, at_most=envs.device_limit(args))
    env = envs.make(args.env_id, chunk // len(chosen), args.num_levels, args.env_kwargs, **envs.changes(args))
    if not isinstance(env.action_space, Discrete) or len(env.action_space.nvec) > 1:
        raise UsageError(f"--env-id {args.env_id}: PQN needs one discrete action; ppo.py has other actions")
    if args.network is None:
        side = min(env.obs_shape[:2]) if len(env.obs_shape) == 3 else 0
        args = replace(args, network="nature" if side >= 36 else "cnn" if side >= 3 else "mlp")
    envs.check_images(args, env)
    args = replace(args, num_devices=len(chosen))  # --resume takes as many by default
    network, on_devices = QNetwork(args, env.action_space.nvec[0]), devices.OnDevices(chosen, args.num_seeds)
    split = on_devices.split(1)  # [C, N / C, ...]
    layout, sampled = TrainState(P(), split, P(), P()), Sample(split, P())
    init = on_devices(partial(init_state, args, env, network), gives=layout)
    step = on_devices(partial(update, args, env, network), takes=(layout,), gives=(layout, P(), sampled), donate=0)
    measure = on_devices(partial(measure_plasticity, args, network), takes=(P(), sampled))
    return args, env, network, init, step, measure, on_devices.keys(args.seed)


def train(args: Args) -> Path:
    """Run one training from start (or checkpoint) to end. Returns the run's folder."""
    args, env, network, init, step, measure, keys = build(begin(args, __file__))
    q_of = partial(forward, args, network)
    policy = lambda learner, obs: epsilon_greedy(q_of(learner.obs_stats, learner.params, obs), 0.0)  # noqa: E731
    player = evaluation.Player(args, env.suite, policy)
    run, state, step = Run.start(args, __file__, player, init, step, keys, fixed=FIXED)
    with run:
        for index in run.updates():
            state, metrics, sample = step(state)
            run.record(index, state, metrics, measure, sample)
    return run.finish()


if __name__ == "__main__":
    main(train, Args)
