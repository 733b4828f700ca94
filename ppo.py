"""Proximal Policy Optimisation (Schulman et al. 2017, https://arxiv.org/abs/1707.06347) for many parallel environments.

    python ppo.py                                                  # Breakout-MinAtar, 2048 environments
    python ppo.py --num-envs 65536 --total-timesteps 500000000     # 32 x the environments, minibatches as they were

The outer loop collects `num_envs * num_steps` transitions with the behaviour policy; the inner loop takes
`update_epochs * num_minibatches` Adam steps on them. Beukman et al. 2026 (https://arxiv.org/abs/2603.06009) read the
outer loop as stochastic optimisation: its step size is how far the policy moves per update (`outer/kl`; set by
--clip-eps and --update-epochs), its noise falls with the transitions per update. A step too large for the noise is a
plateau: the return stands still while `outer/kl` stays large. Their cure is the default here: with more environments,
minibatch size and learning rate stay, and minibatches get more. docs/ppo.md explains all logged keys and details.
CartPole-v1 500 ± 0 after 1M steps, Pendulum-v1 -174 ± 3 after 3M (mean and 95 % CI of 5 seeds, two CPU cores).
"""

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # else XLA:CPU logs a page per program found in its cache
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # else its threads and XLA's fight: SVDs took 400 ms instead of 1

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec as P

from common import arguments, bits, checkpoints, envs, evaluation, hardware, runs, statistics
from common.actions import Categorical, Discrete, Gaussian
from common.arguments import RunArgs
from common.metrics import (
    coverage_pca,
    effective_sample_size,
    gradient_metrics,
    layer_metrics,
    policy_variance,
    weight_norm,
)
from common.shuffle import random_permutation

PROBE = 2048  # so many transitions of an update are what --plasticity-every measures on (or one per device and chunk)
KL_SAMPLE = 16384  # so many transitions of an update measure its exact KL (but an environment per device and chunk)
SAME = ("norm_obs", "norm_reward", "network", "activation", "shared_encoder")  # what --init-from cannot change
ADAM = optax.scale_by_adam(eps=1e-5)  # the learning rate is applied where it is known, per update


@dataclass(frozen=True)
class Args(RunArgs):
    # --- run ---
    seed: int = 0
    """Seed of everything random; equal results need equal --num-devices. --num-seeds S: seed, seed + 1, ..."""
    num_seeds: int = 1
    """Train this many seeds at once (vmap); every metric then has one value per seed."""
    total_timesteps: int = 2**24
    """Environment steps over all environments."""

    # --- environment ---
    env_id: str = "Breakout-MinAtar"
    """A gymnax id, kinetix/locomotion, kinetix/s, kinetix/m, kinetix/l or kinetix/<hand-designed level>."""
    num_levels: int = 512
    """Size of kinetix/locomotion's fixed set of levels."""
    norm_obs: bool = False
    """Normalise observations by their running mean and standard deviation."""
    norm_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""

    # --- outer loop ---
    num_envs: int = 2048
    """N: parallel environments, over all devices. Raising it (and --total-timesteps) alone is the paper's recipe."""
    num_steps: int = 32
    """K, in shapes T: steps per environment and update."""
    gamma: float = 0.99
    """Discount factor."""
    gae_lambda: float = 0.95
    """Lambda of generalised advantage estimation."""
    clip_eps: float = 0.2
    """Epsilon: the ratio is clipped to [1 - eps, 1 + eps]; the outer step size grows with it."""
    update_epochs: int = 4
    """E: passes over the data of one update."""
    target_kl: float | None = None
    """Stop the inner loop after an epoch whose mean approximate KL exceeds this."""
    scaling: Literal["more-minibatches", "larger-minibatches", "larger-minibatches-sqrt-lr"] | None = None
    """Read the inner-loop flags as those of --base-num-envs environments and scale them to --num-envs."""
    base_num_envs: int = 2048
    """The number of environments that --scaling starts from."""
    num_rollout_chunks: int = 1
    """C: walk over the environments in C parts, one after the other, with 1/C of the rollout's memory each."""
    stagger_resets: int = 0
    """Environments play 0 to this many random steps before training, so that they are at different points."""

    # --- inner loop ---
    minibatch_size: int | None = None
    """Transitions per minibatch (default 2048); --num-minibatches follows from it."""
    num_minibatches: int | None = None
    """M: minibatches per epoch; --minibatch-size follows from it."""
    learning_rate: float = 1e-3
    """Adam's learning rate."""
    anneal_lr: bool = False
    """Reduce the learning rate linearly, update by update, to 0."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this global norm."""
    norm_adv: bool = True
    """Normalise advantages in each (global) minibatch."""
    clip_vloss: bool = True
    """Clip the value loss, too: V moves by --clip-eps at most, in units of the return."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    ent_coef: float = 0.01
    """Weight of the entropy bonus."""

    # --- network ---
    network: Literal["mlp", "cnn"] = "mlp"
    """cnn: a 3x3 convolution with 16 channels before the hidden layers, for image-like observations."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation of the hidden layers."""
    shared_encoder: bool = False
    """Actor and critic share their hidden layers."""

    def __post_init__(self):
        super().__post_init__()
        arguments.positive(
            self, "num_seeds", "total_timesteps", "num_levels", "num_envs", "num_steps", "update_epochs",
            "base_num_envs", "minibatch_size", "num_minibatches", "learning_rate", "max_grad_norm", "hidden_sizes",
            "num_rollout_chunks", "target_kl",
        )  # fmt: skip
        arguments.non_negative(self, "seed", "stagger_resets", "clip_eps", "vf_coef", "ent_coef")
        arguments.fraction(self, "gamma", "gae_lambda")
        arguments.below(self, 2**31 - self.num_seeds, "seed")
        # Minibatch size and number stand for each other from here on, so that args.json says what ran.
        arguments.settle_minibatches(self, default_size=2048)

    @property
    def batch_size(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def num_updates(self) -> int:
        return self.total_timesteps // self.batch_size


# From here to `build` all is the program of one device; psum, pmean and axis_index over "device" are where they meet.
# In shapes T is num_steps, N this device's environments, C num_rollout_chunks, D the number of action dimensions.
class Encoder(nn.Module):
    """Observations [B, ...] -> features [B, hidden_sizes[-1]]."""

    args: Args

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        activation = {"tanh": nn.tanh, "relu": nn.relu}[self.args.activation]
        init = nn.initializers.orthogonal(np.sqrt(2))
        x = obs.astype(jnp.float32)
        if self.args.network == "cnn":
            # A 3x3 convolution as nine shifted views and one product: in this loop 6 x faster than nn.Conv on a CPU.
            height, width = x.shape[1] - 2, x.shape[2] - 2
            views = [x[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
            x = activation(nn.Dense(16, kernel_init=init, name="conv")(jnp.concatenate(views, axis=-1)))
            self.sow("intermediates", "hidden", x)
        x = x.reshape(x.shape[0], -1)
        for size in self.args.hidden_sizes:
            x = activation(nn.Dense(size, kernel_init=init)(x))
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
        log_std = self.param("log_std", nn.initializers.zeros, mean.shape[-1:])
        # Bounded, or the ratio overflows before anything else; gradients pass the bound, or it would be a trap.
        log_std += jax.lax.stop_gradient(jnp.clip(log_std, -5.0, 2.0) - log_std)
        return Gaussian(mean, jnp.broadcast_to(log_std, mean.shape)), value


class Learner(NamedTuple):
    """What is learned: all that --init-from takes over. Equal on all devices."""

    params: Any
    opt_state: Any
    obs_stats: statistics.RunningStats
    return_stats: statistics.RunningStats


class Environments(NamedTuple):
    """Of one chunk [N / C, ...], or of all [C, N / C, ...]; split over devices."""

    state: Any
    obs: jax.Array  # what to act on next
    discounted_return: jax.Array  # of the running episodes (for --norm-reward)


class TrainState(NamedTuple):
    """Everything that a run needs to go on as if it had never stopped."""

    learner: Learner
    environments: Environments
    key: jax.Array
    update: jax.Array  # [], updates done


class Transition(NamedTuple):
    """A chunk's rollout as collected, [T, N / C, ...]."""

    obs: Any  # booleans packed into bits
    action: jax.Array  # [T, N / C, D]
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final_value: jax.Array  # V of the observation before the reset where truncated, else 0


class Batch(NamedTuple):
    """A chunk's rollout as the inner loop sees it, [T * N / C, ...]."""

    obs: Any
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array


class Probe(NamedTuple):
    """What `plasticity` measures on: random transitions of an update [n, ...], and how their observations were seen."""

    obs_stats: statistics.RunningStats
    batch: Batch


def forward(args: Args, network: ActorCritic, obs_stats: statistics.RunningStats, params: Any, obs: Any, **kw) -> Any:
    """Observations [B, ...] or their bits -> action distribution, values [B]. kw are those of flax's apply."""
    obs = bits.unpack(obs)
    return network.apply(params, statistics.normalise(obs, obs_stats) if args.norm_obs else obs, **kw)


def rollout(
    args: Args,
    env: envs.VectorEnv,
    network: ActorCritic,
    behaviour: Learner,
    environments: Environments,
    key: jax.Array,
) -> tuple:
    """num_steps steps of a chunk of environments with the behaviour policy.

    -> state, obs, transitions [T, N / C], last value [N / C], sample (observations and action distributions of n
    environments [T, n, ...], for the exact KL), sums [4] over the episodes that ended.
    """
    policy = partial(forward, args, network, behaviour.obs_stats, behaviour.params)
    num_parts = args.num_rollout_chunks * jax.lax.axis_size("device")
    num_measured = max(1, min(env.num_envs, KL_SAMPLE // (args.num_steps * num_parts)))

    def step(carry: tuple, step_key: jax.Array) -> tuple:
        env_state, obs = carry
        action_key, env_key = jax.random.split(step_key)
        dist, value = policy(obs)
        action = dist.sample(action_key)
        env_state, out = env.step(env_key, env_state, action)
        final_value = jax.lax.cond(
            out.truncated.any(), lambda: policy(out.final_obs)[1] * out.truncated, lambda: jnp.zeros_like(value)
        )
        seen = bits.pack(obs)
        transition = Transition(
            seen, action, dist.log_prob(action), value, out.reward, out.terminated, out.truncated, final_value
        )
        # Spread over the environments: neighbours may be equally far in their episodes (--stagger-resets).
        sample = jax.tree.map(lambda x: x[:: env.num_envs // num_measured][:num_measured], (seen, dist))
        return (env_state, out.obs), (transition, sample, envs.episode_sums(out.episode))

    (env_state, obs), (transitions, sample, sums) = jax.lax.scan(
        step, (environments.state, environments.obs), jax.random.split(key, args.num_steps)
    )
    return env_state, obs, transitions, policy(obs)[1], sample, jax.lax.psum(sums.sum(0), "device")


def compute_gae(transitions: Transition, last_value: jax.Array, gamma: float, gae_lambda: float) -> jax.Array:
    """GAE (Schulman et al. 2016, eq. 16) with partial-episode bootstrapping (Pardo et al. 2018). -> [T, N].

    delta_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t),  A_t = delta_t + gamma lambda (1 - done_t) A_{t+1},
    where s'_t is the observation before the reset: a truncated episode still has a future.
    """
    t = transitions

    def step(carry: tuple, inputs: tuple) -> tuple:
        advantage, next_value = carry
        reward, value, terminated, truncated, final_value = inputs
        next_value = jnp.where(truncated, final_value, next_value)
        delta = reward + gamma * (1 - terminated) * next_value - value
        advantage = delta + gamma * gae_lambda * (1 - (terminated | truncated)) * advantage
        return (advantage, value), advantage

    inputs = (t.reward, t.value, t.terminated, t.truncated, t.final_value)
    return jax.lax.scan(step, (jnp.zeros_like(last_value), last_value), inputs, reverse=True)[1]


def ppo_loss(args: Args, policy: Any, params: Any, batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Clipped surrogate (Schulman et al. 2017, eq. 7), value and entropy terms (eq. 9). -> loss, its parts."""
    dist, value = policy(params, batch.obs)
    log_ratio = dist.log_prob(batch.action) - batch.log_prob
    ratio = jnp.exp(log_ratio)
    clipped_ratio = jnp.clip(ratio, 1 - args.clip_eps, 1 + args.clip_eps)
    policy_loss = -jnp.minimum(ratio * batch.advantage, clipped_ratio * batch.advantage).mean()
    value_error = (value - batch.target) ** 2
    if args.clip_vloss:
        clipped_value = batch.value + jnp.clip(value - batch.value, -args.clip_eps, args.clip_eps)
        value_error = jnp.maximum(value_error, (clipped_value - batch.target) ** 2)
    value_loss = 0.5 * value_error.mean()
    entropy = dist.entropy().mean()
    loss = policy_loss + args.vf_coef * value_loss - args.ent_coef * entropy
    return loss, {
        "losses/policy_loss": policy_loss,
        "losses/value_loss": value_loss,
        "losses/entropy": entropy,
        "losses/approx_kl": (ratio - 1 - log_ratio).mean(),  # the estimator k3 of Schulman 2020, never negative
        "losses/clipfrac": (jnp.abs(ratio - 1) > args.clip_eps).mean(),
    }


def optimise(
    args: Args, network: ActorCritic, learner: Learner, batch: Batch, key: jax.Array, learning_rate: jax.Array
) -> tuple[Learner, dict[str, jax.Array]]:
    """The inner loop: update_epochs passes over a chunk's batch in shuffled minibatches.

    batch: [T * N / C, ...] of this device. A minibatch is the union of the devices' shares, each shuffled locally.
    """
    policy = partial(forward, args, network, learner.obs_stats)
    grad_fn = jax.value_and_grad(partial(ppo_loss, args, policy), has_aux=True)

    num_minibatches = args.num_minibatches // args.num_rollout_chunks
    size = batch.advantage.size // num_minibatches

    def minibatch_step(permutation: Any, carry: tuple, number: jax.Array) -> tuple:
        params, opt_state = carry
        # Gathered when used, by indices computed when used: neither a shuffled copy of the batch nor a sort.
        indices = permutation(number * size + jnp.arange(size))
        minibatch = jax.tree.map(lambda x: x[indices], batch)
        if args.norm_adv:
            minibatch = minibatch._replace(advantage=statistics.standardise(minibatch.advantage))
        (_, parts), grads = grad_fn(params, minibatch)
        grads, parts = jax.lax.pmean((grads, parts), "device")
        grad_norm = optax.tree.norm(grads)
        scale = jnp.minimum(1.0, args.max_grad_norm / grad_norm)
        steps, opt_state = ADAM.update(jax.tree.map(lambda g: g * scale, grads), opt_state)
        params = jax.tree.map(lambda p, step: p - learning_rate * step, params, steps)
        return (params, opt_state), parts | {"outer/grad_norm": grad_norm}

    def epoch(carry: tuple, key: jax.Array) -> tuple:
        permutation = random_permutation(key, batch.advantage.size)
        carry, parts = jax.lax.scan(partial(minibatch_step, permutation), carry, jnp.arange(num_minibatches))
        return carry, jax.tree.map(jnp.mean, parts) | {"outer/epochs": jnp.ones(())}

    def epoch_unless_stopped(carry: tuple, key: jax.Array) -> tuple:
        learned, stopped = carry
        skipped = jax.tree.map(lambda x: jnp.zeros(x.shape), jax.eval_shape(epoch, learned, key)[1])
        learned, parts = jax.lax.cond(stopped, lambda learned, _: (learned, skipped), epoch, learned, key)
        return (learned, stopped | (parts["losses/approx_kl"] > args.target_kl)), parts

    start, keys = (learner.params, learner.opt_state), jax.random.split(key, args.update_epochs)
    if args.target_kl is None:
        (params, opt_state), parts = jax.lax.scan(epoch, start, keys)
    else:
        ((params, opt_state), _), parts = jax.lax.scan(epoch_unless_stopped, (start, jnp.bool_(False)), keys)
    epochs = parts.pop("outer/epochs").sum()
    metrics = jax.tree.map(lambda x: x.sum() / epochs, parts) | {"outer/epochs": epochs}
    metrics["losses/explained_variance"] = statistics.explained_variance(batch.advantage, batch.target)
    return learner._replace(params=params, opt_state=opt_state), metrics


def measure(args: Args, network: ActorCritic, old: Learner, new: Learner, obs: Any, old_dist: Any) -> dict:
    """How far the update moved, on a sample of its observations and their action distributions before it, [n, ...]."""
    dist, _ = forward(args, network, old.obs_stats, new.params, obs)
    kl = jax.lax.pmean(old_dist.kl(dist).mean(), "device")
    update_norm = optax.tree.norm(jax.tree.map(jnp.subtract, new.params, old.params))
    return {
        "outer/kl": kl,
        "outer/ddr": float(args.batch_size) / kl,  # as an integer it need not fit into 32 bits
        "outer/update_norm": update_norm,
        "finite": jnp.isfinite(update_norm),  # one NaN anywhere in a loss or gradient ends up in the parameters
    }


def take_probe(args: Args, batch: Batch, key: jax.Array) -> Batch:
    """A chunk's and device's share of the probe: random rows of [T * N / C, ...] -> [PROBE / (C * devices), ...]."""
    size, num_parts = batch.target.size, args.num_rollout_chunks * jax.lax.axis_size("device")
    share = min(size, max(1, PROBE // num_parts)) if args.plasticity_every else 0
    indices = random_permutation(key, size)(jnp.arange(share))
    return jax.tree.map(lambda x: x[indices], batch)


def plasticity(args: Args, network: ActorCritic, learner: Learner, probe: Probe) -> dict[str, jax.Array]:
    """The measurements of Mayor et al. 2025, appendix B, after an update, on a sample of it. -> scalars."""
    policy, batch = partial(forward, args, network, probe.obs_stats), probe.batch
    (dist, _), sown = policy(learner.params, batch.obs, mutable="intermediates")
    if args.norm_adv:
        batch = batch._replace(advantage=statistics.standardise(batch.advantage))
    grad_fn = jax.grad(partial(ppo_loss, args, policy), has_aux=True)
    return {
        **layer_metrics(sown["intermediates"], args.dormant_tau),
        **gradient_metrics(lambda part: grad_fn(learner.params, part)[0], batch),
        "plasticity/weight_norm": weight_norm(learner.params),
        "plasticity/effective_sample_size": effective_sample_size(dist.log_prob(batch.action) - batch.log_prob),
        "plasticity/policy_variance": policy_variance(dist),
        "plasticity/coverage_pca": coverage_pca(bits.unpack(batch.obs)),
    }


def update(args: Args, env: envs.VectorEnv, network: ActorCritic, state: TrainState) -> tuple[TrainState, dict, Probe]:
    """One step of the outer loop, on this device's share of the environments. -> state, metrics, probe.

    Chunk by chunk: a rollout with the behaviour policy, which is the same for all of them, then the chunk's share of
    the minibatches, all epochs. A minibatch is mixed within its chunk; --norm-reward knows the chunks so far.
    """
    behaviour = state.learner
    next_key, key, mix_key = jax.random.split(state.key, 3)
    key = jax.random.fold_in(key, jax.lax.axis_index("device"))
    remaining = 1 - state.update / args.num_updates if args.anneal_lr else 1.0
    learning_rate = jnp.float32(args.learning_rate * remaining)

    def one_chunk(carry: tuple, number: jax.Array) -> tuple:
        learner, obs_stats, environments = carry
        rollout_key, shuffle_key, probe_key = jax.random.split(jax.random.fold_in(key, number), 3)
        chunk = jax.tree.map(lambda x: x[number], environments)
        env_state, obs, t, last_value, sample, sums = rollout(args, env, network, behaviour, chunk, rollout_key)
        returns = chunk.discounted_return
        if args.norm_reward:
            rewards, returns, stats = statistics.normalise_rewards(t, returns, learner.return_stats, args.gamma)
            t, learner = t._replace(reward=rewards), learner._replace(return_stats=stats)
        advantage = compute_gae(t, last_value, args.gamma, args.gae_lambda)
        batch = Batch(t.obs, t.action, t.log_prob, t.value, advantage, target=advantage + t.value)
        batch, sample = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (batch, sample))
        learner, metrics = optimise(args, network, learner, batch, shuffle_key, learning_rate)
        probe = take_probe(args, batch, probe_key)
        if args.norm_obs:
            obs_stats = statistics.update_stats(obs_stats, bits.unpack(batch.obs))
        chunk = Environments(env_state, obs, returns)
        # In the carry, written in place: as inputs and outputs of the scan all environments would exist twice.
        environments = jax.tree.map(lambda x, new: x.at[number].set(new), environments, chunk)
        return (learner, obs_stats, environments), (metrics, sample, probe, sums)

    (learner, obs_stats, environments), (metrics, sample, probe, sums) = jax.lax.scan(
        one_chunk, (behaviour, behaviour.obs_stats, state.environments), jnp.arange(args.num_rollout_chunks)
    )
    metrics = jax.tree.map(lambda x: x.mean(0), metrics)
    sample, probe = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (sample, probe))
    metrics |= measure(args, network, behaviour, learner, *sample)
    metrics |= env.episode_metrics(sums.sum(0)) | {"charts/learning_rate": learning_rate}
    # Only now: the loss above has to see observations exactly as the behaviour policy saw them.
    learner = learner._replace(obs_stats=obs_stats)
    # Whole on every device, for measurements that are no means over devices, and no longer in the order of devices.
    probe = jax.lax.all_gather(probe, "device", tiled=True)
    number = probe.target.size
    mixed = random_permutation(mix_key, max(1, number))(jnp.arange(number))
    probe = Probe(behaviour.obs_stats, jax.tree.map(lambda x: x[mixed], probe))
    return TrainState(learner, environments, next_key, state.update + 1), metrics, probe


def init_state(args: Args, env: envs.VectorEnv, network: ActorCritic, key: jax.Array) -> TrainState:
    """A fresh network, and an episode begun in each of this device's environments."""
    network_key, env_key, key = jax.random.split(key, 3)
    env_keys = jax.random.split(jax.random.fold_in(env_key, jax.lax.axis_index("device")), args.num_rollout_chunks)
    state, obs = jax.lax.map(lambda key: env.reset(key, args.stagger_resets), env_keys)  # [C, N / C, ...]
    environments = Environments(state, obs, jnp.zeros(obs.shape[:2]))
    params = network.init(network_key, obs[0, :1])
    learner = Learner(params, ADAM.init(params), statistics.initial_stats(env.obs_shape), statistics.initial_stats(()))
    return TrainState(learner, environments, key, jnp.int32(0))


def build(args: Args) -> tuple:
    """Puts `init_state` and `update` on the devices: learner replicated, environments split, several seeds vmapped.

    -> args, env (one device's share of one chunk), network, init(keys) -> state, step(state) -> state, metrics, probe;
    measured(learner, probe) -> metrics; keys.
    """
    chunk = args.num_envs // args.num_rollout_chunks
    devices = hardware.choose_devices(args.num_devices, chunk, args.minibatch_size)
    env = envs.make(args.env_id, chunk // len(devices), args.num_levels)
    if args.network == "cnn" and len(env.obs_shape) != 3:
        raise arguments.UsageError(f"--network cnn: {args.env_id} has observations of shape {env.obs_shape}; use mlp")
    args = replace(args, num_devices=len(devices))  # --resume has to use as many
    network = ActorCritic(args, env.action_space)
    mesh, many = Mesh(np.array(devices), ("device",)), args.num_seeds > 1
    over_seeds = jax.vmap if many else lambda function: function
    split = P(None, None, "device") if many else P(None, "device")
    layout = TrainState(learner=P(), environments=split, key=P(), update=P())
    on_devices = partial(jax.shard_map, mesh=mesh, check_vma=False)
    init = on_devices(over_seeds(partial(init_state, args, env, network)), in_specs=P(), out_specs=layout)
    step = on_devices(over_seeds(partial(update, args, env, network)), in_specs=(layout,), out_specs=(layout, P(), P()))
    measured = on_devices(over_seeds(partial(plasticity, args, network)), in_specs=P(), out_specs=P())
    keys = jax.vmap(jax.random.key)(args.seed + jnp.arange(args.num_seeds))
    keys = hardware.replicate(keys if many else keys[0], mesh)
    return args, env, network, init, step, measured, keys


def train(args: Args) -> Path:
    """Runs one training from start (or checkpoint) to end; returns the run's folder."""
    hardware.start(args)
    args, env, network, init, step, measured, keys = build(arguments.apply_scaling(runs.open_args(args, __file__)))
    # Floats: log_prob, value, reward, final_value, advantage, target. Activations: 3 x the widest layer; a CNN's views.
    activations = 3 * max(args.hidden_sizes) + (9 * int(np.prod(env.obs_shape)) if args.network == "cnn" else 0)
    hardware.check_memory(args, env, jax.eval_shape(init, keys), floats=6, activations=activations)
    print(arguments.describe(args))

    def policy(learner: Learner, obs: jax.Array) -> Categorical | Gaussian:
        return forward(args, network, learner.obs_stats, learner.params, obs)[0]

    player = evaluation.Player(args, env.suite, policy)
    state = jax.jit(init)(keys)
    if args.init_from and not args.resume:
        state = state._replace(**checkpoints.load(args.init_from, {"learner": state.learner}, args, SAME))
    run = runs.Run(args, __file__, num_updates=args.num_updates, steps_per_update=args.batch_size)
    state, start = run.restore(state)

    compiled_update, measured = run.compile(jax.jit(step, donate_argnums=0), state), jax.jit(measured)
    with run:
        for number in range(start + 1, args.num_updates + 1):
            state, metrics, probe = compiled_update(state)
            if run.plasticity_due(number):
                metrics |= measured(state.learner, probe)
            run.log(number, metrics)
            if run.should_stop or run.checkpoint_due(number):
                run.save(number, state)
            if run.eval_due(number):
                run.log_now(number, player.scores, state.learner, number)
            if run.should_stop:
                break
        if args.capture_video and not run.should_stop:
            run.video("final_policy", lambda: player.video(state.learner))
    run.finish()
    return run.path


if __name__ == "__main__":
    runs.main(train, Args)
