"""PQN (Gallici et al. 2024, https://arxiv.org/abs/2407.04811): Q-learning for many parallel environments.

    python pqn.py                                                  # Breakout-MinAtar, 2048 environments
    python pqn.py --env-id CartPole-v1 --num-envs 32 --num-steps 64 --minibatch-size 128 --q-lambda 0.95

Neither replay buffer nor target network: the outer loop collects `num_envs * num_steps` transitions with an
epsilon-greedy policy, and the inner loop regresses Q on their lambda-returns, in `update_epochs * num_minibatches`
steps. Layer normalisation is what keeps that stable. The loop is that of ppo.py, and so are its measurements
(`outer/kl` is that of the epsilon-greedy policies): Mayor et al. 2025 (https://arxiv.org/abs/2506.03404) compare the
two over environments and rollout lengths. Where this differs from the authors' code, and why, is in docs/pqn.md, with
the logged keys. CartPole-v1 500 ± 0 after 1M steps (5 seeds, two CPU cores; the command is in docs/pqn.md).
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
from common.actions import Categorical, Discrete
from common.arguments import RunArgs
from common.metrics import coverage_pca, gradient_metrics, layer_metrics, policy_variance, weight_norm
from common.shuffle import random_permutation

PROBE = 2048  # so many transitions of an update are what --plasticity-every measures on (or one per device and chunk)
KL_SAMPLE = 16384  # so many transitions of an update measure its exact KL (but an environment per device and chunk)
SAME = ("norm_obs", "norm_reward", "network", "activation", "layer_norm")  # what --init-from cannot change
RADAM = optax.scale_by_radam()  # the learning rate is applied where it is known, per update


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
    q_lambda: float = 0.65
    """Lambda of the returns that Q is regressed on; 0: one step, 1: Monte Carlo up to the end of the rollout."""
    start_e: float = 1.0
    """Epsilon of the epsilon-greedy policy at the start, ..."""
    end_e: float = 0.05
    """... at the end of --exploration-timesteps, ..."""
    exploration_timesteps: int | None = None
    """... over which it falls linearly: environment steps over all environments (default: a tenth of the budget)."""
    update_epochs: int = 4
    """E: passes over the data of one update."""
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
    learning_rate: float = 5e-4
    """RAdam's learning rate."""
    anneal_lr: bool = False
    """Reduce the learning rate linearly, update by update, to 0."""
    max_grad_norm: float = 10.0
    """Gradients are scaled down to this global norm."""

    # --- network ---
    network: Literal["mlp", "cnn"] = "mlp"
    """cnn: a 3x3 convolution with 16 channels before the hidden layers, for image-like observations."""
    hidden_sizes: tuple[int, ...] = (128, 128)
    """Widths of the hidden layers."""
    activation: Literal["tanh", "relu"] = "relu"
    """Activation of the hidden layers."""
    layer_norm: bool = True
    """Layer normalisation before each activation."""

    def __post_init__(self):
        super().__post_init__()
        arguments.positive(
            self, "num_seeds", "total_timesteps", "num_levels", "num_envs", "num_steps", "update_epochs",
            "base_num_envs", "minibatch_size", "num_minibatches", "learning_rate", "max_grad_norm", "hidden_sizes",
            "num_rollout_chunks",
        )  # fmt: skip
        arguments.non_negative(self, "seed", "stagger_resets", "exploration_timesteps")
        arguments.fraction(self, "gamma", "q_lambda", "start_e", "end_e")
        arguments.below(self, 2**31 - self.num_seeds, "seed")
        # Minibatch size and number stand for each other from here on, so that args.json says what ran.
        arguments.settle_minibatches(self, default_size=2048)

        if self.exploration_timesteps is None:
            object.__setattr__(self, "exploration_timesteps", self.total_timesteps // 10)

    @property
    def batch_size(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def num_updates(self) -> int:
        return self.total_timesteps // self.batch_size


# From here to `build` all is the program of one device; psum, pmean and axis_index over "device" are where they meet.
# In shapes T is num_steps, N this device's environments, C num_rollout_chunks, D the number of action dimensions.
class QNetwork(nn.Module):
    """Observations [B, ...] -> Q [B, A]."""

    args: Args
    num_actions: int

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        activation = {"tanh": nn.tanh, "relu": nn.relu}[self.args.activation]
        init = nn.initializers.orthogonal(np.sqrt(2))
        normalise = nn.LayerNorm if self.args.layer_norm else lambda: lambda x: x
        x = obs.astype(jnp.float32)
        if self.args.network == "cnn":
            # A 3x3 convolution as nine shifted views and one product: in this loop 6 x faster than nn.Conv on a CPU.
            height, width = x.shape[1] - 2, x.shape[2] - 2
            views = [x[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
            x = activation(normalise()(nn.Dense(16, kernel_init=init, name="conv")(jnp.concatenate(views, axis=-1))))
            self.sow("intermediates", "hidden", x)
        x = x.reshape(x.shape[0], -1)
        for size in self.args.hidden_sizes:
            x = activation(normalise()(nn.Dense(size, kernel_init=init)(x)))
            self.sow("intermediates", "hidden", x)
        return nn.Dense(self.num_actions, kernel_init=nn.initializers.orthogonal(1.0), name="q")(x)


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
    action: jax.Array  # [T, N / C, 1]
    value: jax.Array  # max_a Q of the observation
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final_value: jax.Array  # max_a Q of the observation before the reset where truncated, else 0


class Batch(NamedTuple):
    """A chunk's rollout as the inner loop sees it, [T * N / C, ...]."""

    obs: Any
    action: jax.Array
    target: jax.Array


class Probe(NamedTuple):
    """What `plasticity` measures on: random transitions of an update [n, ...], and how their observations were seen."""

    obs_stats: statistics.RunningStats
    batch: Batch


def forward(args: Args, network: QNetwork, obs_stats: statistics.RunningStats, params: Any, obs: Any, **kw) -> Any:
    """Observations [B, ...] or their bits -> Q [B, A]. kw are those of flax's apply."""
    obs = bits.unpack(obs)
    return network.apply(params, statistics.normalise(obs, obs_stats) if args.norm_obs else obs, **kw)


def epsilon_greedy(q: jax.Array, epsilon: jax.Array) -> Categorical:
    """Q [..., A] -> with probability epsilon a uniform action, else the best one."""
    number = q.shape[-1]
    probs = epsilon / number + (1 - epsilon) * jax.nn.one_hot(q.argmax(-1), number)
    return Categorical(jnp.log(probs), (number,))


def exploration(args: Args, update: jax.Array) -> jax.Array:
    """Epsilon of an update: linear in environment steps from start_e to end_e, then constant."""
    done = jnp.minimum(1.0, update * float(args.batch_size) / max(1.0, float(args.exploration_timesteps)))
    return args.start_e + done * (args.end_e - args.start_e)


def rollout(
    args: Args,
    env: envs.VectorEnv,
    network: QNetwork,
    behaviour: Learner,
    epsilon: jax.Array,
    environments: Environments,
    key: jax.Array,
) -> tuple:
    """num_steps steps of a chunk of environments with the epsilon-greedy policy.

    -> state, obs, transitions [T, N / C], last value [N / C], sample (observations and Q of n environments
    [T, n, ...], for the KL), sums [4] over the episodes that ended.
    """
    q_of = partial(forward, args, network, behaviour.obs_stats, behaviour.params)
    num_parts = args.num_rollout_chunks * jax.lax.axis_size("device")
    num_measured = max(1, min(env.num_envs, KL_SAMPLE // (args.num_steps * num_parts)))

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
        seen = bits.pack(obs)
        transition = Transition(seen, action, value, out.reward, out.terminated, out.truncated, final_value)
        # Spread over the environments: neighbours may be equally far in their episodes (--stagger-resets).
        sample = jax.tree.map(lambda x: x[:: env.num_envs // num_measured][:num_measured], (seen, q))
        return (env_state, out.obs), (transition, sample, envs.episode_sums(out.episode))

    (env_state, obs), (transitions, sample, sums) = jax.lax.scan(
        step, (environments.state, environments.obs), jax.random.split(key, args.num_steps)
    )
    return env_state, obs, transitions, q_of(obs).max(-1), sample, jax.lax.psum(sums.sum(0), "device")


def compute_targets(transitions: Transition, last_value: jax.Array, gamma: float, q_lambda: float) -> jax.Array:
    """Lambda-returns of the greedy policy (Gallici et al. 2024, section 4; Peng's Q(lambda)). -> [T, N].

    G_t = r_t + gamma (1 - terminated_t) ((1 - lambda) V(s'_t) + lambda G_{t+1}), V = max_a Q, and G_T = V(s_T). Where
    an episode was truncated, s'_t is the observation before the reset, and V(s'_t) stands for the rest of it.
    """
    t = transitions

    def step(carry: tuple, inputs: tuple) -> tuple:
        next_target, next_value = carry
        reward, value, terminated, truncated, final_value = inputs
        future = jnp.where(truncated, final_value, (1 - q_lambda) * next_value + q_lambda * next_target)
        target = reward + gamma * (1 - terminated) * future
        return (target, value), target

    inputs = (t.reward, t.value, t.terminated, t.truncated, t.final_value)
    return jax.lax.scan(step, (last_value, last_value), inputs, reverse=True)[1]


def q_loss(q_of: Any, params: Any, batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Half the mean squared error of Q(s, a) (Gallici et al. 2024, algorithm 1). -> loss, its parts."""
    q = jnp.take_along_axis(q_of(params, batch.obs), batch.action, axis=-1)[..., 0]
    loss = 0.5 * ((q - batch.target) ** 2).mean()
    return loss, {"losses/td_loss": loss, "losses/q_values": q.mean()}


def optimise(
    args: Args, network: QNetwork, learner: Learner, batch: Batch, key: jax.Array, learning_rate: jax.Array
) -> tuple[Learner, dict[str, jax.Array]]:
    """The inner loop: update_epochs passes over a chunk's batch in shuffled minibatches.

    batch: [T * N / C, ...] of this device. A minibatch is the union of the devices' shares, each shuffled locally.
    """
    q_of = partial(forward, args, network, learner.obs_stats)
    grad_fn = jax.value_and_grad(partial(q_loss, q_of), has_aux=True)

    num_minibatches = args.num_minibatches // args.num_rollout_chunks
    size = batch.target.size // num_minibatches

    def minibatch_step(permutation: Any, carry: tuple, number: jax.Array) -> tuple:
        params, opt_state = carry
        # Gathered when used, by indices computed when used: neither a shuffled copy of the batch nor a sort.
        indices = permutation(number * size + jnp.arange(size))
        minibatch = jax.tree.map(lambda x: x[indices], batch)
        (_, parts), grads = grad_fn(params, minibatch)
        grads, parts = jax.lax.pmean((grads, parts), "device")
        grad_norm = optax.tree.norm(grads)
        scale = jnp.minimum(1.0, args.max_grad_norm / grad_norm)
        steps, opt_state = RADAM.update(jax.tree.map(lambda g: g * scale, grads), opt_state)
        params = jax.tree.map(lambda p, step: p - learning_rate * step, params, steps)
        return (params, opt_state), parts | {"outer/grad_norm": grad_norm}

    def epoch(carry: tuple, key: jax.Array) -> tuple:
        permutation = random_permutation(key, batch.target.size)
        carry, parts = jax.lax.scan(partial(minibatch_step, permutation), carry, jnp.arange(num_minibatches))
        return carry, jax.tree.map(jnp.mean, parts)

    start, keys = (learner.params, learner.opt_state), jax.random.split(key, args.update_epochs)
    (params, opt_state), parts = jax.lax.scan(epoch, start, keys)
    return learner._replace(params=params, opt_state=opt_state), jax.tree.map(jnp.mean, parts)


def measure(
    args: Args, network: QNetwork, old: Learner, new: Learner, epsilon: jax.Array, obs: Any, old_q: jax.Array
) -> dict:
    """How far the update moved, on a sample of its observations and their Q before it, [n, ...]."""
    q = forward(args, network, old.obs_stats, new.params, obs)
    # A policy that never explores has no finite KL to another one.
    before, after = (epsilon_greedy(x, jnp.maximum(epsilon, 0.01)) for x in (old_q, q))
    kl = jax.lax.pmean(before.kl(after).mean(), "device")
    switched = jax.lax.pmean((old_q.argmax(-1) != q.argmax(-1)).mean(), "device")
    update_norm = optax.tree.norm(jax.tree.map(jnp.subtract, new.params, old.params))
    return {
        "outer/kl": kl,
        "outer/switched": switched,
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


def plasticity(args: Args, network: QNetwork, learner: Learner, probe: Probe) -> dict[str, jax.Array]:
    """The measurements of Mayor et al. 2025, appendix B, after an update, on a sample of it. -> scalars."""
    q_of, batch = partial(forward, args, network, probe.obs_stats), probe.batch
    q, sown = q_of(learner.params, batch.obs, mutable="intermediates")
    grad_fn = jax.grad(partial(q_loss, q_of), has_aux=True)
    return {
        **layer_metrics({"q": sown["intermediates"]}, args.dormant_tau),
        **gradient_metrics(lambda part: grad_fn(learner.params, part)[0], batch),
        "plasticity/weight_norm": weight_norm(learner.params),
        "plasticity/policy_variance": policy_variance(epsilon_greedy(q, 0.0)),
        "plasticity/coverage_pca": coverage_pca(bits.unpack(batch.obs)),
    }


def update(args: Args, env: envs.VectorEnv, network: QNetwork, state: TrainState) -> tuple[TrainState, dict, Probe]:
    """One step of the outer loop, on this device's share of the environments. -> state, metrics, probe.

    Chunk by chunk: a rollout with the behaviour policy, which is the same for all of them, then the chunk's share of
    the minibatches, all epochs. A minibatch is mixed within its chunk; --norm-reward knows the chunks so far.
    """
    behaviour = state.learner
    next_key, key, mix_key = jax.random.split(state.key, 3)
    key = jax.random.fold_in(key, jax.lax.axis_index("device"))
    remaining = 1 - state.update / args.num_updates if args.anneal_lr else 1.0
    learning_rate = jnp.float32(args.learning_rate * remaining)
    epsilon = exploration(args, state.update)

    def one_chunk(carry: tuple, number: jax.Array) -> tuple:
        learner, obs_stats, environments = carry
        rollout_key, shuffle_key, probe_key = jax.random.split(jax.random.fold_in(key, number), 3)
        chunk = jax.tree.map(lambda x: x[number], environments)
        env_state, obs, t, last_value, sample, sums = rollout(
            args, env, network, behaviour, epsilon, chunk, rollout_key
        )
        returns = chunk.discounted_return
        if args.norm_reward:
            rewards, returns, stats = statistics.normalise_rewards(t, returns, learner.return_stats, args.gamma)
            t, learner = t._replace(reward=rewards), learner._replace(return_stats=stats)
        batch = Batch(t.obs, t.action, compute_targets(t, last_value, args.gamma, args.q_lambda))
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
    metrics |= measure(args, network, behaviour, learner, epsilon, *sample)
    metrics |= env.episode_metrics(sums.sum(0)) | {"charts/learning_rate": learning_rate, "charts/epsilon": epsilon}
    # Only now: the loss above has to see observations exactly as the behaviour policy saw them.
    learner = learner._replace(obs_stats=obs_stats)
    # Whole on every device, for measurements that are no means over devices, and no longer in the order of devices.
    probe = jax.lax.all_gather(probe, "device", tiled=True)
    number = probe.target.size
    mixed = random_permutation(mix_key, max(1, number))(jnp.arange(number))
    probe = Probe(behaviour.obs_stats, jax.tree.map(lambda x: x[mixed], probe))
    return TrainState(learner, environments, next_key, state.update + 1), metrics, probe


def init_state(args: Args, env: envs.VectorEnv, network: QNetwork, key: jax.Array) -> TrainState:
    """A fresh network, and an episode begun in each of this device's environments."""
    network_key, env_key, key = jax.random.split(key, 3)
    env_keys = jax.random.split(jax.random.fold_in(env_key, jax.lax.axis_index("device")), args.num_rollout_chunks)
    state, obs = jax.lax.map(lambda key: env.reset(key, args.stagger_resets), env_keys)  # [C, N / C, ...]
    environments = Environments(state, obs, jnp.zeros(obs.shape[:2]))
    params = network.init(network_key, obs[0, :1])
    learner = Learner(params, RADAM.init(params), statistics.initial_stats(env.obs_shape), statistics.initial_stats(()))
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
    if not isinstance(env.action_space, Discrete) or len(env.action_space.nvec) > 1:
        raise arguments.UsageError(f"--env-id {args.env_id}: PQN needs one discrete action; ppo.py has other actions")
    args = replace(args, num_devices=len(devices))  # --resume has to use as many
    network = QNetwork(args, env.action_space.nvec[0])
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
    # Floats: value, reward, final_value, target. Activations: 3 x the widest layer; a CNN's views.
    activations = 3 * max(args.hidden_sizes) + (9 * int(np.prod(env.obs_shape)) if args.network == "cnn" else 0)
    hardware.check_memory(args, env, jax.eval_shape(init, keys), floats=4, activations=activations)
    print(arguments.describe(args))

    def policy(learner: Learner, obs: jax.Array) -> Categorical:
        return epsilon_greedy(forward(args, network, learner.obs_stats, learner.params, obs), 0.0)

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
