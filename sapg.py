"""SAPG, Split and Aggregate Policy Gradients (Singla et al. 2024, https://arxiv.org/abs/2407.20230), a fork of ppo.py.

    python sapg.py --num-envs 3072 --num-blocks 6 --block-ent-coef 0.005     # the default: 6 blocks of 512 environments

The environments are --num-blocks equal blocks with a policy each. Policies share all weights, but each has a learned
vector phi beside the observation, its own standard deviations and its own entropy bonus. The last is the leader's; the
others, the followers, explore. PPO trains each on its own transitions, and the leader, with importance weights, also on
those of one follower, drawn anew for each update. Returns, evaluations and videos are the leader's. Beukman et al. 2026
(https://arxiv.org/abs/2603.06009, figure 10) find PPO closer to it with small minibatches. See docs/sapg.md.
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
from common.run.arguments import CriticArgs, Fraction, NonNegative, Positive, Steps, UsageError
from common.run.command import main
from common.run.run import Run, begin
from common.vision import VISION

LEAST_RATE, MOST_RATE = 1e-6, 1e-2  # of --adaptive-lr-kl, those of rl_games
PHI_SIZE = 32  # of what tells the blocks' policies apart
FIXED = ("norm_obs", "norm_reward", "norm_value", "network", "activation", "layer_norm", "shared_encoder")
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
    num_blocks: Positive[int] = 6
    """B: parts of the environments, each with its own policy. The last one is the leader's. With 1, this is PPO."""
    num_envs: Positive[int] = 3072
    """N: parallel environments over all devices. More mean less noise, but fewer updates for the same steps."""
    num_steps: Positive[int] = 32
    """K (T in shapes): steps of each environment per update."""
    gamma: Fraction = 0.995
    """Discount factor."""
    gae_lambda: Fraction = 0.8
    """Lambda of generalised advantage estimation."""
    clip_eps: NonNegative[float] = 0.2
    """Epsilon: the ratio is clipped to [1 - eps, 1 + eps]. Larger is a larger outer step."""
    off_policy_clip: Literal["one", "ratio"] = "one"
    """Around what the ratio of relabelled rows is clipped: 1 (the authors' code) or leader / follower (their paper)."""
    update_epochs: Positive[int] = 3
    """E: passes over the data of one update."""
    target_kl: Positive[float] | None = None
    """Stop the inner loop after an epoch whose mean approximate KL exceeds this."""
    base_num_envs: Positive[int] = 3072
    """Number of environments that --scaling starts from."""

    # --- inner loop ---
    minibatch_size: Positive[int] | None = None
    """Transitions per minibatch (default 2048, but at most an eighth of the update's); it sets --num-minibatches."""
    num_minibatches: Positive[int] | None = None
    """M: minibatches per epoch of the environments' own transitions, without the leader's others."""
    learning_rate: Positive[float] = 4e-3
    """Adam's learning rate."""
    anneal_lr: bool = True
    """Reduce the learning rate linearly, update by update, to 0."""
    adaptive_lr_kl: Positive[float] | None = None
    """After each epoch, divide the learning rate by 1.5 if the epoch's mean approximate KL was above twice this, and
    multiply it by 1.5 if it was below half of this, in place of --anneal-lr. Not with --num-rollout-chunks."""
    kl_of_relabelled: bool = False
    """Count relabelled rows, too, in the KL that --adaptive-lr-kl and --target-kl see, as the authors' code does."""
    max_grad_norm: Positive[float] = 0.5
    """Gradients are scaled down to this global norm."""
    norm_adv: bool = True
    """Normalise advantages in each (global) minibatch."""
    clip_vloss: bool = False
    """Also clip the value loss where V moved by --clip-eps, in units of the return."""
    norm_value: bool = False
    """Learn values in units of the running standard deviation of their targets, from their mean. --clip-vloss, too."""
    vf_coef: NonNegative[float] = 0.5
    """Weight of the value loss."""
    ent_coef: NonNegative[float] = 0.06
    """Weight of the entropy bonus, in all blocks."""
    anneal_ent: bool = True
    """Reduce --ent-coef linearly, update by update, to 0."""
    block_ent_coef: NonNegative[float] = 0.005
    """More of it for the followers: half of this for the first one, from there linearly down to 0 for the leader."""
    bounds_coef: NonNegative[float] = 0.0
    """Weight of the bounds loss: squares of what means of actions are beyond plus and minus 1.1."""

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
        if self.adaptive_lr_kl is not None:
            given = f"--adaptive-lr-kl {self.adaptive_lr_kl}"
            object.__setattr__(self, "anneal_lr", False)
            if self.num_rollout_chunks > 1:
                why = "the KL of a later chunk includes that of the earlier ones, so the learning rate would run away"
                chunks = f"--num-rollout-chunks {self.num_rollout_chunks}"
                raise UsageError(f"{given} with {chunks}: {why}; give one of the two")
            if not LEAST_RATE <= self.learning_rate <= MOST_RATE:
                bounds = f"must be between {LEAST_RATE:g} and {MOST_RATE:g}"
                raise UsageError(f"--learning-rate {self.learning_rate:g} with {given}: {bounds}, where it is kept")
        parts = self.num_blocks * self.num_rollout_chunks
        if self.num_envs % parts:
            product, above = f"--num-blocks * --num-rollout-chunks = {parts}", (self.num_envs // parts + 1) * parts
            raise UsageError(f"--num-envs {self.num_envs}: must be a multiple of {product}; {above} would be")
        # From here on both the size and the number of minibatches are set, so that args.json says what ran.
        arguments.settle_minibatches(self, default_size=2048)

    @property
    def leader(self) -> int:
        """The index of the leader's block."""
        return self.num_blocks - 1

    @property
    def epoch(self) -> tuple[int, int]:
        """Minibatches of an epoch of a chunk, and their rows on all devices: --minibatch-size or, where that does not
        divide the chunk's transitions and those of one block again, the next larger number that does."""
        transitions = self.batch_size // self.num_rollout_chunks
        rows = transitions + (transitions // self.num_blocks if self.leader else 0)
        count = next(n for n in range(rows // self.minibatch_size, 0, -1) if rows % n == 0)
        return count, rows // count


# Everything from here to `build` runs on one device; psum, pmean and axis_index over "device" are where devices meet.
# In shapes T is num_steps, N this device's environments, C num_rollout_chunks, D the number of action dimensions, B
# num_blocks.
class Encoder(nn.Module):
    """Observations [n, ...], phi of their blocks [n, PHI_SIZE] (or nothing) -> features [n, hidden_sizes[-1]]."""

    args: Args

    @nn.compact
    def __call__(self, obs: jax.Array, *phi: jax.Array) -> jax.Array:
        activation = {"tanh": nn.tanh, "relu": nn.relu, "elu": nn.elu}[self.args.activation]
        init, product = nn.initializers.orthogonal(np.sqrt(2)), PRODUCTS[self.args.compute_dtype]
        dense = partial(nn.Dense, kernel_init=init, dot_general=product)
        if self.args.layer_norm:
            activation = lambda x, plain=activation: plain(nn.LayerNorm()(x))  # noqa: E731
        x = obs.astype(jnp.float32) / (255 if obs.dtype == jnp.uint8 else 1)  # bytes are pixels
        if self.args.network in VISION:
            sow = partial(self.sow, "intermediates", "hidden")
            x = VISION[self.args.network](x, activation, self.args.compute_dtype, sow)
        x = jnp.concatenate([x.reshape(x.shape[0], -1), *phi], axis=1)
        for size in self.args.hidden_sizes:
            x = activation(dense(size)(x))
            self.sow("intermediates", "hidden", x)
        return x


class ActorCritic(nn.Module):
    """Observations [n, ...], their blocks int32 [n] -> action distribution, values [n]."""

    args: Args
    action_space: envs.Discrete | envs.Box

    @nn.compact
    def __call__(self, obs: jax.Array, block: jax.Array) -> tuple[Categorical | Gaussian, jax.Array]:
        blocks = self.args.num_blocks
        inputs = [obs]
        if blocks > 1:
            # A product, not an index, whose gradient would be a scatter; in full precision.
            of_block = partial(jnp.matmul, jax.nn.one_hot(block, blocks), precision="highest")
            inputs.append(of_block(self.param("phi", nn.initializers.normal(1.0), (blocks, PHI_SIZE))))
        features = Encoder(self.args, name="encoder" if self.args.shared_encoder else "actor_encoder")(*inputs)
        critic_features = features if self.args.shared_encoder else Encoder(self.args, name="critic_encoder")(*inputs)
        value = nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0), name="critic")(critic_features)[..., 0]
        head = partial(nn.Dense, kernel_init=nn.initializers.orthogonal(0.01), name="actor")
        if isinstance(self.action_space, Discrete):
            return Categorical(head(sum(self.action_space.nvec))(features), self.action_space.nvec), value
        mean = head(len(self.action_space.low))(features)
        shape = mean.shape[-1:] if blocks == 1 else (blocks, mean.shape[-1])
        log_std = bounded(self.param("log_std", nn.initializers.zeros, shape), -5.0, 2.0)
        return Gaussian(mean, jnp.broadcast_to(log_std if blocks == 1 else of_block(log_std), mean.shape)), value


class Learner(NamedTuple):
    """What is learned, and what --init-from takes over. Equal on all devices."""

    params: Any
    opt_state: Any
    obs_stats: statistics.RunningStats
    return_stats: statistics.RunningStats
    value_stats: statistics.RunningStats | None = None  # of the values' targets, if --norm-value


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
    learning_rate: Any = None  # [], of the next epoch, if --adaptive-lr-kl changes it


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
    leader_final_value: jax.Array  # the same by the leader
    block: jax.Array


class Batch(NamedTuple):
    """A chunk's rollout as the inner loop sees it, [T * N / C, ...], or its relabelled rows, [T * N / (C B), ...]."""

    obs: Any
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array
    block: jax.Array  # whose policy learns from it
    relabelled: jax.Array  # whether another one's acted
    log_center: jax.Array  # the logarithm of what the ratio is clipped around


def forward(
    args: Args, network: ActorCritic, obs_stats: statistics.RunningStats, params: Any, obs: Any, block: Any, **kw
) -> Any:
    """Observations [n, ...] or their bits, blocks [n] or [] -> action distribution, values [n]. kw are those of flax's
    apply."""
    obs = unpack(obs)
    inputs = statistics.normalise(obs, obs_stats) if args.norm_obs else obs, jnp.broadcast_to(block, obs.shape[:1])
    return network.apply(params, *inputs, **kw)


def dist_and_value(args: Args, network: ActorCritic, by: Learner, obs: Any, block: Any) -> tuple[Any, jax.Array]:
    """`forward` of a learner, with values in units of the return also if --norm-value."""
    dist, value = forward(args, network, by.obs_stats, by.params, obs, block)
    return dist, value * jnp.sqrt(by.value_stats.var + 1e-8) + by.value_stats.mean if args.norm_value else value


def rollout(
    args: Args, env: envs.VectorEnv, network: ActorCritic, behaviour: Learner, chunk: Environments, key: jax.Array
) -> tuple[Environments, Transition, jax.Array, jax.Array]:
    """Play num_steps steps in a chunk of environments with the behaviour policies, whose blocks lie side by side.

    -> chunk, transitions [T, N / C], value of the last observation [N / C], sums [4] over the leader's ended episodes.
    """
    block = jnp.arange(env.num_envs) // (env.num_envs // args.num_blocks)
    apply = partial(dist_and_value, args, network, behaviour)

    def step(carry: tuple, step_key: jax.Array) -> tuple:
        env_state, obs = carry
        action_key, env_key = jax.random.split(step_key)
        dist, value = apply(obs, block)
        action = dist.sample(action_key)
        env_state, out = env.step(env_key, env_state, action)
        final_value = lambda block: jax.lax.cond(  # noqa: E731
            out.truncated.any(), lambda: apply(out.final_obs, block)[1] * out.truncated, lambda: jnp.zeros_like(value)
        )
        transition = Transition(
            *(pack(obs), action, dist.log_prob(action), value, out.reward, out.terminated, out.truncated),
            *(final_value(block), final_value(args.leader), block),
        )
        leaders = out.episode._replace(done=out.episode.done & (block == args.leader))
        return (env_state, out.obs), (transition, envs.episode_sums(leaders))

    keys = jax.random.split(key, args.num_steps)
    (env_state, obs), (transitions, sums) = jax.lax.scan(step, (chunk.state, chunk.obs), keys)
    chunk = chunk._replace(state=env_state, obs=obs)
    return chunk, transitions, apply(obs, block)[1], jax.lax.psum(sums.sum(0), "device")


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


def relabel(args: Args, network: ActorCritic, by: Learner, t: Transition, last_obs: Any, follower: Any) -> Batch:
    """A follower's rollout, t [T, N / C] and then last_obs, as the leader's (Singla et al. 2024). Targets
    are of one step, r + gamma (1 - terminated) V(s'); log_prob is that of who acted. -> [T * N / (C B), ...]."""
    size = t.value.shape[1] // args.num_blocks
    part = partial(jax.lax.dynamic_slice_in_dim, start_index=follower * size, slice_size=size)
    t, last_obs = jax.tree.map(partial(part, axis=1), t), part(last_obs, axis=0)

    def leader(inputs: tuple) -> tuple[jax.Array, jax.Array]:
        dist, value = dist_and_value(args, network, by, inputs[0], args.leader)
        return dist.log_prob(inputs[1]), value

    log_prob, value = jax.lax.map(leader, (t.obs, t.action))  # step by step: all at once would need more memory
    next_value = jnp.concatenate([value[1:], leader((last_obs, t.action[-1]))[1][None]])
    target = t.reward + args.gamma * (1 - t.terminated) * jnp.where(t.truncated, t.leader_final_value, next_value)
    log_center = log_prob - t.log_prob if args.off_policy_clip == "ratio" else jnp.zeros_like(value)
    block, relabelled = jnp.full(value.shape, args.leader), jnp.ones(value.shape, bool)
    batch = Batch(t.obs, t.action, t.log_prob, value, target - value, target, block, relabelled, log_center)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)


def ppo_loss(args: Args, apply: Any, params: Any, batch: Batch, ent_coef: Any) -> tuple[jax.Array, dict]:
    """Clipped surrogate (Schulman et al. 2017, eq. 7; Singla et al. 2024), value, entropy (eq. 9). -> loss, metrics."""
    dist, value = apply(params, batch.obs, batch.block)
    log_ratio = dist.log_prob(batch.action) - batch.log_prob
    ratio, center = probability_ratio(log_ratio), probability_ratio(batch.log_center)
    clipped_ratio = jnp.clip(ratio, center * (1 - args.clip_eps), center * (1 + args.clip_eps))
    policy_loss = -jnp.minimum(ratio * batch.advantage, clipped_ratio * batch.advantage)
    value_error = (value - batch.target) ** 2
    if args.clip_vloss:
        clipped_value = batch.value + jnp.clip(value - batch.value, -args.clip_eps, args.clip_eps)
        value_error = jnp.maximum(value_error, (clipped_value - batch.target) ** 2)
    value_loss, entropy = 0.5 * value_error, dist.entropy()
    explored = 0.5 * args.block_ent_coef * (1 - batch.block / args.leader) if args.leader else 0.0
    loss = policy_loss + args.vf_coef * value_loss - (ent_coef + explored) * entropy
    if args.bounds_coef:
        loss += args.bounds_coef * (jnp.maximum(jnp.abs(dist.mean) - 1.1, 0) ** 2).sum(-1)
    metrics = {
        "losses/policy_loss": policy_loss,
        "losses/value_loss": value_loss,
        "losses/entropy": entropy,
        "losses/approx_kl": k3(log_ratio),
        "losses/clipfrac": jnp.abs(jnp.exp(log_ratio - batch.log_center) - 1) > args.clip_eps,
    }
    if args.leader:
        kl, clipped = metrics["losses/approx_kl"], metrics["losses/clipfrac"]
        # The mean over some of an epoch's rows is that over all, with the others 0, by their share.
        for name, mask, share in (("losses", ~batch.relabelled, args.num_blocks), ("sapg", batch.relabelled, 1)):
            weight = mask * (args.num_blocks + 1) / share
            metrics |= {f"{name}/approx_kl": jnp.where(mask, weight * kl, 0), f"{name}/clipfrac": weight * clipped}
        metrics["losses/approx_kl"] = kl if args.kl_of_relabelled else metrics["losses/approx_kl"]
    return loss.mean(), statistics.means(metrics)


def adapt_learning_rate(args: Args, learning_rate: jax.Array, kl: jax.Array) -> jax.Array:
    """--adaptive-lr-kl, with the factors and bounds of rl_games: the rate after an epoch of this mean KL. [] each."""
    if args.adaptive_lr_kl is None:
        return learning_rate
    lower, higher = jnp.maximum(learning_rate / 1.5, LEAST_RATE), jnp.minimum(learning_rate * 1.5, MOST_RATE)
    small = kl < 0.5 * args.adaptive_lr_kl
    return jnp.where(kl > 2 * args.adaptive_lr_kl, lower, jnp.where(small, higher, learning_rate))


def optimise(
    args: Args, network: ActorCritic, learner: Learner, batch: Batch, key: Any, learning_rate: Any, ent_coef: Any
) -> tuple[Learner, dict[str, jax.Array]]:
    """The inner loop: update_epochs passes over a chunk's batch in shuffled minibatches.

    -> learner, metrics; the learning rate after it is among them.

    batch: [T * N / C, ...] of this device, if B > 1 (1 + 1 / B) times as many. A minibatch is the union of the devices'
    shares, each shuffled locally.
    """
    # Parameters as one vector: Adam and the norm are then a few programs of a GPU rather than a few per layer.
    params, unravel = ravel_pytree(learner.params)
    apply = lambda params, *inputs: forward(args, network, learner.obs_stats, unravel(params), *inputs)  # noqa: E731
    grad_fn = jax.grad(partial(ppo_loss, args, apply), has_aux=True)

    def minibatch_step(learning_rate: jax.Array, carry: tuple, inputs: tuple) -> tuple:
        (params, opt_state), (rows, advantage) = carry, inputs
        # Rows are gathered when they are used: no shuffled copy of the batch.
        minibatch = jax.tree.map(lambda x: x[rows], batch)._replace(advantage=advantage)
        grads, metrics = grad_fn(params, minibatch, ent_coef)
        grads = jax.lax.pmean(grads, "device")
        grad_norm = jnp.linalg.norm(grads)
        steps, opt_state = ADAM.update(grads * jnp.minimum(1.0, args.max_grad_norm / grad_norm), opt_state)
        return (params - learning_rate * steps, opt_state), metrics | {"outer/grad_norm": grad_norm}

    def epoch(carry: tuple, key: jax.Array) -> tuple:
        learned, learning_rate = carry
        positions = jnp.arange(batch.advantage.size).reshape(args.epoch[0], -1)
        rows = random_permutation(key, batch.advantage.size)(positions)
        advantage = batch.advantage[rows]
        if args.norm_adv:
            advantage = jax.vmap(statistics.standardise)(advantage)  # of all at once: devices meet once per epoch
        learned, metrics = statistics.scan_mean(partial(minibatch_step, learning_rate), learned, (rows, advantage))
        metrics = jax.lax.pmean(metrics, "device")
        return (learned, adapt_learning_rate(args, learning_rate, metrics["losses/approx_kl"])), metrics

    too_far = None if args.target_kl is None else lambda metrics: metrics["losses/approx_kl"] > args.target_kl
    start, keys = ((params, learner.opt_state), learning_rate), jax.random.split(key, args.update_epochs)
    ((params, opt_state), learning_rate), metrics, epochs = statistics.scan_until(too_far, epoch, start, keys)
    metrics |= {"outer/epochs": epochs, "charts/learning_rate": learning_rate}
    return learner._replace(params=unravel(params), opt_state=opt_state), metrics


def measure_plasticity(args: Args, network: ActorCritic, learner: Learner, sample: Sample) -> dict[str, jax.Array]:
    """What docs/metrics.md explains, on PLASTICITY_SAMPLE transitions of an update. -> scalars."""
    apply, batch = partial(forward, args, network, sample.obs_stats), gather_rows(sample.batch, PLASTICITY_SAMPLE)
    (dist, _), sown = apply(learner.params, batch.obs, batch.block, mutable="intermediates")
    grad_fn = partial(jax.grad(partial(ppo_loss, args, apply, ent_coef=sample.ent_coef), has_aux=True), learner.params)
    return plasticity_metrics(args, learner.params, dist, sown["intermediates"], batch, grad_fn)


def update(args: Args, env: envs.VectorEnv, network: ActorCritic, state: TrainState) -> tuple[TrainState, dict, Sample]:
    """One step of the outer loop, on this device's share of the environments. -> state, metrics, sample.

    Chunk by chunk: a rollout with the behaviour policy, which is the same for all of them, then the chunk's share of
    the minibatches, all epochs. A minibatch is mixed within its chunk; --norm-reward knows the chunks so far. All
    chunks and devices, which have equal parts of every block, relabel the same follower.
    """
    behaviour = state.learner
    next_key, key = jax.random.split(state.key)
    follower = jax.random.randint(jax.random.fold_in(key, 2**31 - 1), (), 0, max(args.leader, 1))
    key = jax.random.fold_in(key, jax.lax.axis_index("device"))
    remaining = 1 - state.update / float(args.num_updates)
    learning_rate = jnp.float32(args.learning_rate * (remaining if args.anneal_lr else 1.0))
    ent_coef = jnp.float32(args.ent_coef * (remaining if args.anneal_ent else 1.0))
    if state.learning_rate is not None:  # --adaptive-lr-kl has changed it
        learning_rate = state.learning_rate
    size = sample_size(args.batch_size, args.num_rollout_chunks * jax.lax.axis_size("device"))

    def one_chunk(carry: tuple, index: jax.Array) -> tuple:
        learner, learning_rate, obs_stats, environments = carry
        rollout_key, shuffle_key, sample_key = jax.random.split(jax.random.fold_in(key, index), 3)
        chunk = jax.tree.map(lambda x: x[index], environments)
        chunk, t, last_value, sums = rollout(args, env, network, behaviour, chunk, rollout_key)
        if args.norm_reward:
            t, total, stats = statistics.normalise_rewards(t, chunk.discounted_return, learner.return_stats, args.gamma)
            chunk, learner = chunk._replace(discounted_return=total), learner._replace(return_stats=stats)
        advantage = compute_gae(t, last_value, args.gamma, args.gae_lambda)
        own = t.block, jnp.zeros(advantage.shape, bool), jnp.zeros(advantage.shape)
        batch = Batch(t.obs, t.action, t.log_prob, t.value, advantage, advantage + t.value, *own)
        batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
        batches = [batch, *([relabel(args, network, behaviour, t, chunk.obs, follower)] if args.leader else [])]
        if args.norm_value:
            learner = learner._replace(value_stats=statistics.update_stats(learner.value_stats, batch.target))
            units = partial(statistics.normalise, stats=learner.value_stats)  # those of the next rollout's values
            batches = [x._replace(value=units(x.value), target=units(x.target)) for x in batches]
        rows = jax.tree.map(lambda *x: jnp.concatenate(x), *batches)
        learner, metrics = optimise(args, network, learner, rows, shuffle_key, learning_rate, ent_coef)
        metrics["losses/explained_variance"] = statistics.explained_variance(batch.advantage, batch.target)
        if args.norm_obs:
            obs_stats = statistics.update_stats_by_step(obs_stats, t.obs)
        # Written in place, in the carry: as inputs and outputs of the scan all environments would exist twice.
        environments = jax.tree.map(lambda x, new: x.at[index].set(new), environments, chunk)
        carry = learner, metrics.pop("charts/learning_rate"), obs_stats, environments
        return carry, (metrics, random_rows(batches[0], size, sample_key), sums)

    carry = behaviour, learning_rate, behaviour.obs_stats, state.environments
    carry, (metrics, batch, sums) = jax.lax.scan(one_chunk, carry, jnp.arange(args.num_rollout_chunks))
    learner, learning_rate, obs_stats, environments = carry
    sample = Sample(batch, behaviour.obs_stats, ent_coef)
    metrics = jax.tree.map(lambda x: x.mean(0), metrics)
    policy = lambda params, batch: forward(args, network, behaviour.obs_stats, params, batch.obs, batch.block)[0]  # noqa: E731
    metrics |= measure_update(policy, state.previous, behaviour.params, learner.params, batch, args.batch_size)
    metrics |= env.episode_metrics(sums.sum(0)) | {"charts/learning_rate": learning_rate, "charts/ent_coef": ent_coef}
    # Not earlier: the loss has to normalise observations exactly as the behaviour policy did.
    learner = learner._replace(obs_stats=obs_stats)
    adapted = None if state.learning_rate is None else learning_rate
    return TrainState(learner, environments, next_key, state.update + 1, behaviour.params, adapted), metrics, sample


def init_state(args: Args, env: envs.VectorEnv, network: ActorCritic, key: jax.Array) -> TrainState:
    """A fresh network, and a new episode in each of this device's environments."""
    network_key, env_key, key = jax.random.split(key, 3)
    env_keys = jax.random.split(jax.random.fold_in(env_key, jax.lax.axis_index("device")), args.num_rollout_chunks)
    state, obs = jax.lax.map(lambda key: env.reset(key, args.stagger_resets), env_keys)  # [C, N / C, ...]
    environments = Environments(state, obs, jnp.zeros(obs.shape[:2]))
    params = network.init(network_key, obs[0, :1], jnp.zeros(1, jnp.int32))
    stats = statistics.initial_stats(env.obs_shape), statistics.initial_stats(())
    stats = *stats, statistics.initial_stats(()) if args.norm_value else None
    learner = Learner(params, ADAM.init(ravel_pytree(params)[0]), *stats)
    previous = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), params)
    learning_rate = None if args.adaptive_lr_kl is None else jnp.float32(args.learning_rate)
    return TrainState(learner, environments, key, jnp.int32(0), previous, learning_rate)


def build(args: Args) -> tuple:
    """Put the functions above on the devices: learner replicated, environments split, several seeds vmapped.

    -> args, env (one device's share of one chunk), network, init(keys) -> state, step(state) -> state, metrics, sample;
    measure(learner, sample) -> metrics; keys.
    """
    chunk = args.num_envs // args.num_rollout_chunks
    sizes = chunk // args.num_blocks, args.epoch[1]  # each device has a part of every block
    what = "--num-envs / --num-rollout-chunks / --num-blocks and the size of minibatches"
    chosen = devices.choose_devices(args.num_devices, *sizes, at_most=envs.device_limit(args), what=what)
    env = envs.make(args.env_id, chunk // len(chosen), args.num_levels, args.env_kwargs, **envs.changes(args))
    envs.check_images(args, env)
    if args.bounds_coef and not all(np.all(x == y) for x, y in zip(env.action_space, (-1, 1), strict=False)):
        raise UsageError(f"--bounds-coef {args.bounds_coef}: needs actions in [-1, 1]; {args.env_id} has others")
    args = replace(args, num_devices=len(chosen))  # --resume takes as many by default
    network, on_devices = ActorCritic(args, env.action_space), devices.OnDevices(chosen, args.num_seeds)
    split = on_devices.split(1)  # [C, N / C, ...]
    layout, sampled = TrainState(P(), split, P(), P(), P(), P()), Sample(split, P(), P())
    init = on_devices(partial(init_state, args, env, network), gives=layout)
    step = on_devices(partial(update, args, env, network), takes=(layout,), gives=(layout, P(), sampled), donate=0)
    measure = on_devices(partial(measure_plasticity, args, network), takes=(P(), sampled))
    return args, env, network, init, step, measure, on_devices.keys(args.seed)


def train(args: Args) -> Path:
    """Run one training from start (or checkpoint) to end. Returns the run's folder."""
    args, env, network, init, step, measure, keys = build(begin(args, __file__))
    policy = lambda learner, obs: dist_and_value(args, network, learner, obs, args.leader)[0]  # noqa: E731
    player = evaluation.Player(args, env.suite, policy)
    if args.leader and not args.evaluate:
        print("minibatches have the relabelled transitions, too")
    run, state, step = Run.start(args, __file__, player, init, step, keys, fixed=FIXED)
    with run:
        for index in run.updates():
            state, metrics, sample = step(state)
            run.record(index, state, metrics, measure, sample)
    return run.finish()


if __name__ == "__main__":
    main(train, Args)
