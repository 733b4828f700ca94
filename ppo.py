"""Proximal Policy Optimisation (Schulman et al. 2017, https://arxiv.org/abs/1707.06347) for many parallel environments.

    python ppo.py                                                  # Breakout-MinAtar, 2048 environments
    python ppo.py --num-envs 65536 --total-timesteps 500000000     # 32 x the environments, the same minibatch size

The outer loop collects `num_envs * num_steps` transitions with the behaviour policy. The inner loop takes
`update_epochs * num_minibatches` Adam steps on them. Beukman et al. 2026 (https://arxiv.org/abs/2603.06009) read the
outer loop as stochastic optimisation. Its step size is how far the policy moves per update (`outer/kl`; --clip-eps and
--update-epochs set it), and its noise falls with the transitions per update. If the step is too large for the noise,
they say, the return stands still while `outer/kl` stays large: a plateau. Their recipe is more environments with
minibatches of the same size, so more of them, at the same learning rate; a larger --num-envs does that from 512 on.
docs/ppo.md has the logged keys and details, docs/results.md the returns.
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
from common.actions import Categorical, Discrete, Gaussian, bounded, k3, probability_ratio
from common.arrays import PRODUCTS, gather_rows, pack, random_permutation, random_rows, unpack
from common.metrics import PLASTICITY_SAMPLE, Sample, measure_update, plasticity_metrics, sample_size
from common.run import arguments, devices
from common.run.arguments import CriticArgs, Fraction, NonNegative, Positive, Steps
from common.run.command import main
from common.run.run import Run, begin
from common.vision import VISION

FIXED = ("norm_obs", "norm_reward", "network", "activation", "layer_norm", "shared_encoder")
ADAM = optax.scale_by_adam(eps=1e-5)  # on one vector; `optimise` applies the learning rate


@dataclass(frozen=True)
class Args(CriticArgs):  # with flags for seeds, devices, environments, logging: common/run/arguments.py
    # --- run ---
    total_timesteps: Steps = 10 * 2**20
    """Environment steps over all environments."""

    # --- environment ---
    env_id: str = "Breakout-MinAtar"
    """An id that --list-envs SUITE lists (CartPole-v1, kinetix/locomotion, brax/ant), or my_file:MyEnv."""

    # --- outer loop ---
    num_envs: Positive[int] = 2048
    """N: parallel environments over all devices. More mean less noise, but fewer updates for the same steps."""
    num_steps: Positive[int] = 32
    """K (T in shapes): steps of each environment per update."""
    gamma: Fraction = 0.995
    """Discount factor."""
    gae_lambda: Fraction = 0.8
    """Lambda of generalised advantage estimation."""
    clip_eps: NonNegative[float] = 0.2
    """Epsilon: the ratio is clipped to [1 - eps, 1 + eps]. Larger is a larger outer step."""
    update_epochs: Positive[int] = 3
    """E: passes over the data of one update."""
    target_kl: Positive[float] | None = None
    """Stop the inner loop after an epoch whose mean approximate KL exceeds this."""

    # --- inner loop ---
    minibatch_size: Positive[int] | None = None
    """Transitions per minibatch (default 2048, but at most an eighth of the update's); it sets --num-minibatches."""
    num_minibatches: Positive[int] | None = None
    """M: minibatches per epoch; --minibatch-size follows from it."""
    learning_rate: Positive[float] = 4e-3
    """Adam's learning rate."""
    anneal_lr: bool = True
    """Reduce the learning rate linearly, update by update, to 0."""
    max_grad_norm: Positive[float] = 0.5
    """Gradients are scaled down to this global norm."""
    norm_adv: bool = True
    """Normalise advantages in each (global) minibatch."""
    clip_vloss: bool = False
    """Also clip the value loss where V moved by --clip-eps, in units of the return."""
    vf_coef: NonNegative[float] = 0.5
    """Weight of the value loss."""
    ent_coef: NonNegative[float] = 0.06
    """Weight of the entropy bonus."""
    anneal_ent: bool = True
    """Reduce --ent-coef linearly, update by update, to 0."""

    # --- network ---
    network: Literal["mlp", "cnn", "nature", "impala"] = "mlp"
    """What is before the hidden layers. cnn: a 3x3 convolution with 16 channels, for image-like observations; nature,
    impala: the convolutions of Mnih et al. 2015 or the 15 of Espeholt et al. 2018, for pixels."""
    hidden_sizes: tuple[Positive[int], ...] = (64, 64)
    """Widths of the hidden layers."""
    activation: Literal["tanh", "relu", "elu"] = "relu"
    """Activation of the hidden layers."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the inputs of the hidden layers' products. All else, their sums too, is float32."""
    layer_norm: bool = True
    """Layer normalisation before each activation."""
    shared_encoder: bool = False
    """Actor and critic share their hidden layers."""

    def __post_init__(self):
        super().__post_init__()
        # From here on both the size and the number of minibatches are set, so that args.json says what ran.
        arguments.settle_minibatches(self, default_size=2048)


# Everything from here to `build` runs on one device; psum, pmean and axis_index over "device" are where devices meet.
# In shapes T is num_steps, N this device's environments, C num_rollout_chunks, D the number of action dimensions.
class Encoder(nn.Module):
    """Observations [B, ...] -> features [B, hidden_sizes[-1]]."""

    args: Args

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
        return x


class ActorCritic(nn.Module):
    """Observations [B, ...] -> action distribution, values [B]."""

    args: Args
    action_space: envs.Discrete | envs.Box

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[Categorical | Gaussian, jax.Array]:
        features = Encoder(self.args, name="encoder" if self.args.shared_encoder else "actor_encoder")(obs)
        critic_features = features if self.args.shared_encoder else Encoder(self.args, name="critic_encoder")(obs)
        value = nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0), name="critic")(critic_features)[..., 0]
        head = partial(nn.Dense, kernel_init=nn.initializers.orthogonal(0.01), name="actor")
        if isinstance(self.action_space, Discrete):
            return Categorical(head(sum(self.action_space.nvec))(features), self.action_space.nvec), value
        mean = head(len(self.action_space.low))(features)
        log_std = bounded(self.param("log_std", nn.initializers.zeros, mean.shape[-1:]), -5.0, 2.0)
        return Gaussian(mean, jnp.broadcast_to(log_std, mean.shape)), value


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
    previous: Any  # parameters before the last update, for outer/fresh_gain; NaN if there was none


class Transition(NamedTuple):
    """A chunk's rollout as collected, [T, N / C, ...]."""

    obs: Any  # booleans packed into bits
    action: jax.Array  # [T, N / C, D]
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final_value: jax.Array  # if truncated, V of the observation before the reset, else 0


class Batch(NamedTuple):
    """A chunk's rollout as the inner loop sees it, [T * N / C, ...]."""

    obs: Any
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array


def forward(args: Args, network: ActorCritic, obs_stats: statistics.RunningStats, params: Any, obs: Any, **kw) -> Any:
    """Observations [B, ...] or their bits -> action distribution, values [B]. kw are those of flax's apply."""
    obs = unpack(obs)
    return network.apply(params, statistics.normalise(obs, obs_stats) if args.norm_obs else obs, **kw)


def rollout(
    args: Args, env: envs.VectorEnv, network: ActorCritic, behaviour: Learner, chunk: Environments, key: jax.Array
) -> tuple[Environments, Transition, jax.Array, jax.Array]:
    """Play num_steps steps in a chunk of environments with the behaviour policy.

    -> chunk, transitions [T, N / C], value of the last observation [N / C], sums [4] over the episodes that ended.
    """
    apply = partial(forward, args, network, behaviour.obs_stats, behaviour.params)

    def step(carry: tuple, step_key: jax.Array) -> tuple:
        env_state, obs = carry
        action_key, env_key = jax.random.split(step_key)
        dist, value = apply(obs)
        action = dist.sample(action_key)
        env_state, out = env.step(env_key, env_state, action)
        final_value = jax.lax.cond(
            out.truncated.any(), lambda: apply(out.final_obs)[1] * out.truncated, lambda: jnp.zeros_like(value)
        )
        transition = Transition(
            pack(obs), action, dist.log_prob(action), value, out.reward, out.terminated, out.truncated, final_value
        )
        return (env_state, out.obs), (transition, envs.episode_sums(out.episode))

    keys = jax.random.split(key, args.num_steps)
    (env_state, obs), (transitions, sums) = jax.lax.scan(step, (chunk.state, chunk.obs), keys)
    chunk = chunk._replace(state=env_state, obs=obs)
    return chunk, transitions, apply(obs)[1], jax.lax.psum(sums.sum(0), "device")


def compute_gae(t: Transition, last_value: jax.Array, gamma: float, gae_lambda: float) -> jax.Array:
    """GAE (Schulman et al. 2016, eq. 16) with partial-episode bootstrapping (Pardo et al. 2018). -> [T, N / C].

    delta_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t),  A_t = delta_t + gamma lambda (1 - done_t) A_{t+1},
    where s'_t is the observation before the reset: a truncated episode still has a future.
    """

    def step(carry: tuple, inputs: tuple) -> tuple:
        advantage, next_value = carry
        reward, value, terminated, truncated, final_value = inputs
        next_value = jnp.where(truncated, final_value, next_value)
        delta = reward + gamma * (1 - terminated) * next_value - value
        advantage = delta + gamma * gae_lambda * (1 - (terminated | truncated)) * advantage
        return (advantage, value), advantage

    inputs = (t.reward, t.value, t.terminated, t.truncated, t.final_value)
    return jax.lax.scan(step, (jnp.zeros_like(last_value), last_value), inputs, reverse=True)[1]


def ppo_loss(args: Args, apply: Any, params: Any, batch: Batch, ent_coef: Any) -> tuple[jax.Array, dict]:
    """Clipped surrogate (Schulman et al. 2017, eq. 7), value and entropy terms (eq. 9). -> loss, metrics."""
    dist, value = apply(params, batch.obs)
    log_ratio = dist.log_prob(batch.action) - batch.log_prob
    ratio = probability_ratio(log_ratio)
    clipped_ratio = jnp.clip(ratio, 1 - args.clip_eps, 1 + args.clip_eps)
    policy_loss = -jnp.minimum(ratio * batch.advantage, clipped_ratio * batch.advantage)
    value_error = (value - batch.target) ** 2
    if args.clip_vloss:
        clipped_value = batch.value + jnp.clip(value - batch.value, -args.clip_eps, args.clip_eps)
        value_error = jnp.maximum(value_error, (clipped_value - batch.target) ** 2)
    value_loss, entropy = 0.5 * value_error, dist.entropy()
    loss = (policy_loss + args.vf_coef * value_loss - ent_coef * entropy).mean()
    metrics = {
        "losses/policy_loss": policy_loss,
        "losses/value_loss": value_loss,
        "losses/entropy": entropy,
        "losses/approx_kl": k3(log_ratio),
        "losses/clipfrac": jnp.abs(ratio - 1) > args.clip_eps,
    }
    return loss, statistics.means(metrics)


def optimise(
    args: Args, network: ActorCritic, learner: Learner, batch: Batch, key: Any, learning_rate: Any, ent_coef: Any
) -> tuple[Learner, dict[str, jax.Array]]:
    """The inner loop: update_epochs passes over a chunk's batch in shuffled minibatches.

    batch: [T * N / C, ...] of this device. A minibatch is the union of the devices' shares, each shuffled locally.
    """
    # Parameters as one vector: Adam and the norm are then a few programs of a GPU rather than a few per layer.
    params, unravel = ravel_pytree(learner.params)
    apply = lambda params, obs: forward(args, network, learner.obs_stats, unravel(params), obs)  # noqa: E731
    grad_fn = jax.grad(partial(ppo_loss, args, apply), has_aux=True)

    def minibatch_step(carry: tuple, inputs: tuple) -> tuple:
        (params, opt_state), (rows, advantage) = carry, inputs
        # Rows are gathered when they are used: no shuffled copy of the batch.
        minibatch = jax.tree.map(lambda x: x[rows], batch)._replace(advantage=advantage)
        grads, metrics = grad_fn(params, minibatch, ent_coef)
        grads = jax.lax.pmean(grads, "device")
        grad_norm = jnp.linalg.norm(grads)
        steps, opt_state = ADAM.update(grads * jnp.minimum(1.0, args.max_grad_norm / grad_norm), opt_state)
        return (params - learning_rate * steps, opt_state), metrics | {"outer/grad_norm": grad_norm}

    def epoch(carry: tuple, key: jax.Array) -> tuple:
        positions = jnp.arange(batch.advantage.size).reshape(args.num_minibatches // args.num_rollout_chunks, -1)
        rows = random_permutation(key, batch.advantage.size)(positions)
        advantage = batch.advantage[rows]
        if args.norm_adv:
            advantage = jax.vmap(statistics.standardise)(advantage)  # of all at once: devices meet once per epoch
        carry, metrics = statistics.scan_mean(minibatch_step, carry, (rows, advantage))
        return carry, jax.lax.pmean(metrics, "device")

    too_far = None if args.target_kl is None else lambda metrics: metrics["losses/approx_kl"] > args.target_kl
    start, keys = (params, learner.opt_state), jax.random.split(key, args.update_epochs)
    (params, opt_state), metrics, epochs = statistics.scan_until(too_far, epoch, start, keys)
    metrics["outer/epochs"] = epochs
    metrics["losses/explained_variance"] = statistics.explained_variance(batch.advantage, batch.target)
    return learner._replace(params=unravel(params), opt_state=opt_state), metrics


def measure_plasticity(args: Args, network: ActorCritic, learner: Learner, sample: Sample) -> dict[str, jax.Array]:
    """What docs/metrics.md explains, on PLASTICITY_SAMPLE transitions of an update. -> scalars."""
    apply, batch = partial(forward, args, network, sample.obs_stats), gather_rows(sample.batch, PLASTICITY_SAMPLE)
    (dist, _), sown = apply(learner.params, batch.obs, mutable="intermediates")
    grad_fn = partial(jax.grad(partial(ppo_loss, args, apply, ent_coef=sample.ent_coef), has_aux=True), learner.params)
    return plasticity_metrics(args, learner.params, dist, sown["intermediates"], batch, grad_fn)


def update(args: Args, env: envs.VectorEnv, network: ActorCritic, state: TrainState) -> tuple[TrainState, dict, Sample]:
    """One step of the outer loop, on this device's share of the environments. -> state, metrics, sample.

    Chunk by chunk: a rollout with the behaviour policy, which is the same for all of them, then the chunk's share of
    the minibatches, all epochs. A minibatch is mixed within its chunk; --norm-reward knows the chunks so far.
    """
    behaviour = state.learner
    next_key, key = jax.random.split(state.key)
    key = jax.random.fold_in(key, jax.lax.axis_index("device"))
    remaining = 1 - state.update / float(args.num_updates)
    learning_rate = jnp.float32(args.learning_rate * (remaining if args.anneal_lr else 1.0))
    ent_coef = jnp.float32(args.ent_coef * (remaining if args.anneal_ent else 1.0))
    size = sample_size(args.batch_size, args.num_rollout_chunks * jax.lax.axis_size("device"))

    def one_chunk(carry: tuple, index: jax.Array) -> tuple:
        learner, obs_stats, environments = carry
        rollout_key, shuffle_key, sample_key = jax.random.split(jax.random.fold_in(key, index), 3)
        chunk = jax.tree.map(lambda x: x[index], environments)
        chunk, t, last_value, sums = rollout(args, env, network, behaviour, chunk, rollout_key)
        if args.norm_reward:
            t, total, stats = statistics.normalise_rewards(t, chunk.discounted_return, learner.return_stats, args.gamma)
            chunk, learner = chunk._replace(discounted_return=total), learner._replace(return_stats=stats)
        advantage = compute_gae(t, last_value, args.gamma, args.gae_lambda)
        batch = Batch(t.obs, t.action, t.log_prob, t.value, advantage, target=advantage + t.value)
        batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
        learner, metrics = optimise(args, network, learner, batch, shuffle_key, learning_rate, ent_coef)
        if args.norm_obs:
            obs_stats = statistics.update_stats_by_step(obs_stats, t.obs)
        # Written in place, in the carry: as inputs and outputs of the scan all environments would exist twice.
        environments = jax.tree.map(lambda x, new: x.at[index].set(new), environments, chunk)
        carry = learner, obs_stats, environments
        return carry, (metrics, random_rows(batch, size, sample_key), sums)

    carry = behaviour, behaviour.obs_stats, state.environments
    carry, (metrics, batch, sums) = jax.lax.scan(one_chunk, carry, jnp.arange(args.num_rollout_chunks))
    learner, obs_stats, environments = carry
    sample = Sample(batch, behaviour.obs_stats, ent_coef)
    metrics = jax.tree.map(lambda x: x.mean(0), metrics)
    policy = lambda params, batch: forward(args, network, behaviour.obs_stats, params, batch.obs)[0]  # noqa: E731
    metrics |= measure_update(policy, state.previous, behaviour.params, learner.params, batch, args.batch_size)
    metrics |= env.episode_metrics(sums.sum(0)) | {"charts/learning_rate": learning_rate, "charts/ent_coef": ent_coef}
    # Not earlier: the loss has to normalise observations exactly as the behaviour policy did.
    learner = learner._replace(obs_stats=obs_stats)
    return TrainState(learner, environments, next_key, state.update + 1, behaviour.params), metrics, sample


def init_state(args: Args, env: envs.VectorEnv, network: ActorCritic, key: jax.Array) -> TrainState:
    """A fresh network, and a new episode in each of this device's environments."""
    network_key, env_key, key = jax.random.split(key, 3)
    env_keys = jax.random.split(jax.random.fold_in(env_key, jax.lax.axis_index("device")), args.num_rollout_chunks)
    state, obs = jax.lax.map(lambda key: env.reset(key, args.stagger_resets), env_keys)  # [C, N / C, ...]
    environments = Environments(state, obs, jnp.zeros(obs.shape[:2]))
    params = network.init(network_key, obs[0, :1])
    stats = statistics.initial_stats(env.obs_shape), statistics.initial_stats(())
    learner = Learner(params, ADAM.init(ravel_pytree(params)[0]), *stats)
    previous = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), params)
    return TrainState(learner, environments, key, jnp.int32(0), previous)


def build(args: Args) -> tuple:
    """Put the functions above on the devices: learner replicated, environments split, several seeds vmapped.

    -> args, env (one device's share of one chunk), network, init(keys) -> state, step(state) -> state, metrics, sample;
    measure(learner, sample) -> metrics; keys.
    """
    chunk = args.num_envs // args.num_rollout_chunks
    chosen = devices.choose_devices(args.num_devices, chunk, args.minibatch_size, at_most=envs.device_limit(args))
    env = envs.make(args.env_id, chunk // len(chosen), args.num_levels, args.env_kwargs, **envs.changes(args))
    envs.check_images(args, env)
    args = replace(args, num_devices=len(chosen))  # --resume takes as many by default
    network, on_devices = ActorCritic(args, env.action_space), devices.OnDevices(chosen, args.num_seeds)
    split = on_devices.split(1)  # [C, N / C, ...]
    layout, sampled = TrainState(P(), split, P(), P(), P()), Sample(split, P(), P())
    init = on_devices(partial(init_state, args, env, network), gives=layout)
    step = on_devices(partial(update, args, env, network), takes=(layout,), gives=(layout, P(), sampled), donate=0)
    measure = on_devices(partial(measure_plasticity, args, network), takes=(P(), sampled))
    return args, env, network, init, step, measure, on_devices.keys(args.seed)


def train(args: Args) -> Path:
    """Run one training from start (or checkpoint) to end. Returns the run's folder."""
    args, env, network, init, step, measure, keys = build(begin(args, __file__))
    policy = lambda learner, obs: forward(args, network, learner.obs_stats, learner.params, obs)[0]  # noqa: E731
    player = evaluation.Player(args, env.suite, policy)
    run, state, step = Run.start(args, __file__, player, init, step, keys, fixed=FIXED)
    with run:
        for index in run.updates():
            state, metrics, sample = step(state)
            run.record(index, state, metrics, measure, sample)
    return run.finish()


if __name__ == "__main__":
    main(train, Args)
