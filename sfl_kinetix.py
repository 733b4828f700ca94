"""SFL (Rutherford et al. 2024, https://arxiv.org/abs/2408.15099) on Kinetix: PPO on levels of high learnability.

    python sfl_kinetix.py                                                   # size S, 2048 environments
    python sfl_kinetix.py --num-envs 65536 --num-candidates 262144 --buffer-size 8192 --buffer-every 32
    python sfl_kinetix.py --evaluate runs/NAME                              # or RUN@UPDATE, or a published checkpoint

A level's learnability is p (1 - p), where p is the policy's success rate on it. Every --buffer-every updates the policy
plays --learnability-steps on each of --num-candidates random levels, and the best --buffer-size of them stay. Each
update starts N environments on new levels: a share --buffer-share of them from this buffer, the others fresh random
ones. An environment keeps its level for the whole update. Beukman et al. 2026 (https://arxiv.org/abs/2603.06009,
section 6; tables 2 and 3 are the defaults here) use this to show that N decides for how long learning continues. --com
turns PPO into PPO-EWMA. The network is Kinetix's own. docs/sfl_kinetix.md explains the logged keys.
"""

import common.run.early  # noqa: F401 (before JAX)

# isort: split
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec as P
from pydantic import Field
from tqdm import tqdm

from common import envs, statistics
from common.actions import Categorical, k3, probability_ratio
from common.arrays import gather_rows, pack, random_permutation, random_rows, unpack
from common.metrics import PLASTICITY_SAMPLE, measure_update, plasticity_metrics, sample_size
from common.run import arguments, devices, folder
from common.run.arguments import Fraction, NonNegative, Positive, Steps, UsageError
from common.run.command import main
from common.run.plots import read_lines
from common.run.run import Run, begin
from common.suites import kinetix
from common.suites.kinetix_levels import LevelArgs, LevelPlayer
from common.suites.kinetix_network import MODELS, ActorCritic, load_published

FIXED = ("network",)
ADAM = optax.scale_by_adam(eps=1e-5)  # on one vector; `optimise` applies the learning rate
FRESH, CANDIDATES = 2**31 - 2, 2**31 - 3  # streams of random levels; numbers that no split of the same key reaches
OF_SEARCH = (
    *("num_candidates", "buffer_size", "buffer_every", "video_buffer_levels"),
    *("learnability_estimator", "learnability_steps", "learnability_episodes"),
)
TIE_BREAK = 0.001  # times p, added to p (1 - p)
AtLeastTwo = Annotated[int, Field(gt=1, lt=2**31)]
RATES = np.arange(11) / 10  # centres of the bins of success rates


@dataclass(frozen=True)
class Args(LevelArgs):  # with flags for seeds, devices, environments, logging: common/run/arguments.py
    # --- run ---
    total_timesteps: Steps = 2**30
    """Environment steps over all environments, without those of the search for levels."""

    # --- environment ---
    env_id: Literal["kinetix/s", "kinetix/m", "kinetix/l"] = "kinetix/s"
    """Random Kinetix levels of this size."""
    num_candidates: Positive[int] = 12288
    """Levels that a search looks through; rounded up to whole batches."""
    search_batch: Positive[int] | None = None
    """Levels sampled and scored at a time; sets a search's memory. Default: the fresh levels of an update, or their
    smallest multiple that is at least 256."""
    buffer_size: Positive[int] = 1024
    """Levels that a search keeps."""
    buffer_every: Positive[int] = 128
    """Updates between two searches."""
    buffer_share: Fraction = 0.5
    """Rho: share of environments on levels of the buffer. 0: all are fresh, none are searched for."""
    learnability_estimator: Literal["window", "episodes"] = "window"
    """window: p (1 - p) from the episodes that end within --learnability-steps, as in the papers; biased low if these
    are few. episodes: from --learnability-episodes on each level, corrected for their number, unbiased."""
    learnability_steps: Positive[int] = 512
    """Steps on each candidate (window)."""
    learnability_episodes: AtLeastTwo = 4
    """Episodes on each candidate, side by side (episodes). One tells nothing of p (1 - p)."""

    # --- outer loop ---
    num_envs: Positive[int] = 2048
    """N: parallel environments over all devices. More mean less noise, but fewer updates for the same steps."""
    num_steps: Positive[int] = 256
    """K (T in shapes): steps of each environment per update. Episodes end within 256; with fewer, long ones are cut."""
    gamma: Fraction = 0.995
    """Discount factor."""
    gae_lambda: Fraction = 0.9
    """Lambda of generalised advantage estimation."""
    clip_eps: NonNegative[float] = 0.2
    """Epsilon: the ratio to the behaviour policy (with --com to the proximal one) is clipped to [1 - eps, 1 + eps]."""
    com: NonNegative[float] | None = None
    """PPO-EWMA: centre of mass of the proximal policy's average, its age in minibatch steps. None: PPO."""
    ewma_debias: bool = False
    """Normalise the average by its weights so far (Hilton et al.) instead of starting with COM + 1 times theta_0."""
    max_importance_ratio: Positive[float] | None = None
    """Bound pi_prox / pi_behaviour, which multiplies the objective, by this."""
    update_epochs: Positive[int] = 8
    """E: passes over the data of one update."""
    target_kl: Positive[float] | None = None
    """Stop the inner loop after an epoch whose mean approximate KL exceeds this."""

    # --- inner loop ---
    minibatch_size: Positive[int] | None = None
    """Transitions per minibatch (default 16384, but at most an eighth of the update's); it sets --num-minibatches."""
    num_minibatches: Positive[int] | None = None
    """M: minibatches per epoch; --minibatch-size follows from it."""
    learning_rate: Positive[float] = 5e-5
    """Adam's learning rate."""
    anneal_lr: bool = False
    """Reduce the learning rate linearly, update by update, to 0."""
    max_grad_norm: Positive[float] = 0.5
    """Gradients are scaled down to this global norm."""
    norm_adv: bool = True
    """Normalise advantages in each (global) minibatch."""
    clip_vloss: bool = True
    """Also clip the value loss where V moved by --clip-eps, in units of the return."""
    vf_coef: NonNegative[float] = 0.5
    """Weight of the value loss."""
    ent_coef: NonNegative[float] = 0.01
    """Weight of the entropy bonus."""

    # --- network ---
    network: Literal["transformer", "permutation-invariant"] = "transformer"
    """Kinetix's network over entities: 786k parameters, or 222k without attention."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the inputs of the hidden layers' products. All else, their sums too, is float32."""

    def __post_init__(self):
        super().__post_init__()
        # From here on both the size and the number of minibatches are set, so that args.json says what ran.
        arguments.settle_minibatches(self, default_size=16384)
        # Not for --resume and --evaluate: the flags of the run, which may have these, come later.
        if self.resume is None and self.evaluate is None:
            self._refuse_idle_flags()

    def _refuse_idle_flags(self) -> None:
        """Refuse what would have no effect with the other flags."""
        needs = {
            "ewma_debias": (self.com is not None, "--com"),
            "max_importance_ratio": (self.com is not None, "--com"),
            "compute_dtype": (self.network == "transformer", "--network transformer"),
            "learnability_steps": (self.learnability_estimator == "window", "--learnability-estimator window"),
            "learnability_episodes": (self.learnability_estimator == "episodes", "--learnability-estimator episodes"),
            "video_levels": (self.capture_video, "--capture-video"),
            "video_buffer_levels": (self.capture_video, "--capture-video"),
        }
        for name, (there, needed) in needs.items():
            if name in self.named and not there:
                value = " ".join(map(str, np.ravel(getattr(self, name))))
                raise UsageError(f"{arguments.flag(name)} {value}: has no effect without {needed}")

    def from_buffer(self, num_envs: int) -> int:
        """How many of a chunk's environments on a device are on levels of the buffer."""
        return round(self.buffer_share * num_envs)


# Everything from here to `build` runs on one device; psum, pmean and axis_index over "device" are where devices meet.
# In shapes T is num_steps, N this device's environments, C num_rollout_chunks, D the number of action dimensions, F the
# fresh levels of a chunk, B those sampled at a time, L the buffer's. A level is an array of bytes.
class Proximal(NamedTuple):
    """What the policy is clipped against: the moving average of the parameters."""

    params: Any
    weight: jax.Array  # [], sum of the weights of all parameters so far, the newest having 1 (for --ewma-debias)


class Learner(NamedTuple):
    """What is learned, and what --init-from takes over. Equal on all devices."""

    params: Any
    opt_state: Any
    proximal: Proximal | None  # None: PPO


class Levels(NamedTuple):
    """Levels; in the buffer [L] best first, and from the first score of -inf on there are none."""

    data: jax.Array  # uint8 [L, bytes], see Kinetix.pack
    score: jax.Array  # [L]
    success_rate: jax.Array  # [L], when they were scored


class Found(NamedTuple):
    """What a search has found so far, on one device."""

    best: Levels
    tally: dict[str, jax.Array]  # [1] each, of the candidates on which an episode ended


class TrainState(NamedTuple):
    """Everything that a run needs to continue as if it had never stopped."""

    learner: Learner
    buffer: Levels
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


def forward(args: Args, network: ActorCritic, params: Any, obs: Any) -> tuple[Categorical, jax.Array]:
    """Entities [n, ...] or their bits -> action distribution, values [n]."""
    return network.apply(params, unpack(obs))


def draw_levels(buffer: Levels, fresh: jax.Array, num_known: int, key: jax.Array) -> jax.Array:
    """The levels of an update's environments: `num_known` of the buffer, each equally likely, then the fresh ones,
    uint8 [F, bytes]. -> uint8 [num_known + F, bytes]."""
    there = (buffer.score > -jnp.inf).sum()
    return jnp.concatenate([buffer.data[jax.random.randint(key, (num_known,), 0, jnp.maximum(there, 1))], fresh])


def rollout(
    args: Args, env: envs.LevelEnv, network: ActorCritic, params: Any, levels: jax.Array, key: jax.Array
) -> tuple[Transition, jax.Array, jax.Array]:
    """Play num_steps steps in a chunk of environments with the behaviour policy, each from the start of its level.

    levels [N / C, bytes] -> transitions [T, N / C], value of the last observation [N / C], sums [2, 4] over the
    episodes that ended on levels of the buffer and on fresh ones.
    """
    apply = partial(forward, args, network, params)
    from_buffer = jnp.arange(env.num_envs) < args.from_buffer(env.num_envs)

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
        ended = [out.episode._replace(done=out.episode.done & of) for of in (from_buffer, ~from_buffer)]
        return (env_state, out.obs), (transition, jnp.stack([envs.episode_sums(each) for each in ended]))

    started, keys = env.start(jax.vmap(env.suite.unpack)(levels)), jax.random.split(key, args.num_steps)
    (_, obs), (transitions, sums) = jax.lax.scan(step, started, keys)
    return transitions, apply(obs)[1], jax.lax.psum(sums.sum(0), "device")


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


def update_proximal(args: Args, proximal: Proximal, params: Any) -> Proximal:
    """theta_prox <- beta theta_prox + (1 - beta) theta, beta = COM / (1 + COM) (Beukman et al. 2026, section 2.2). With
    --ewma-debias the mean of all theta so far, weighted by beta^age (Hilton et al. 2022): it forgets theta_0."""
    weight = args.com / (1 + args.com) * proximal.weight + 1
    new_weight = 1 / weight if args.ewma_debias else 1 / (1 + args.com)  # of theta; the weight tends to 1 + COM
    return Proximal(jax.tree.map(lambda old, new: old + new_weight * (new - old), proximal.params, params), weight)


def ppo_loss(args: Args, apply: Any, params: Any, proximal: Any, batch: Batch) -> tuple[jax.Array, dict]:
    """Decoupled clipped surrogate (Hilton et al. 2022; Beukman et al. 2026, eq. 4), value and entropy terms.

    pi_prox / pi_behaviour min(r A, clip(r, 1 - eps, 1 + eps) A) with r = pi / pi_prox, which is PPO's where proximal is
    None: pi_prox is pi_behaviour then. -> loss, metrics.
    """
    dist, value = apply(params, batch.obs)
    proximal_dist = None if proximal is None else apply(proximal, batch.obs)[0]
    proximal_log_prob = batch.log_prob if proximal is None else proximal_dist.log_prob(batch.action)
    log_ratio = dist.log_prob(batch.action) - proximal_log_prob
    log_weight = proximal_log_prob - batch.log_prob
    bound = np.inf if args.max_importance_ratio is None else np.log(args.max_importance_ratio)
    log_bounds = np.log(max(1 - args.clip_eps, np.finfo(np.float32).tiny)), np.log1p(args.clip_eps)
    # pi_prox / pi_behaviour times r: of two factors one may overflow where the product does not.
    weighted = lambda log_r: probability_ratio(jnp.minimum(log_weight, bound) + log_r)  # noqa: E731
    clipped = weighted(jnp.clip(log_ratio, *log_bounds))
    policy_loss = -jnp.minimum(weighted(log_ratio) * batch.advantage, clipped * batch.advantage)
    value_error = (value - batch.target) ** 2
    if args.clip_vloss:
        clipped_value = batch.value + jnp.clip(value - batch.value, -args.clip_eps, args.clip_eps)
        value_error = jnp.maximum(value_error, (clipped_value - batch.target) ** 2)
    value_loss, entropy = 0.5 * value_error, dist.entropy()
    loss = (policy_loss + args.vf_coef * value_loss - args.ent_coef * entropy).mean()
    metrics = {
        "losses/policy_loss": policy_loss,
        "losses/value_loss": value_loss,
        "losses/entropy": entropy,
        "losses/approx_kl": k3(log_weight + log_ratio),
        "losses/clipfrac": jnp.abs(jnp.exp(log_ratio) - 1) > args.clip_eps,
    }
    if proximal is None:
        return loss, statistics.means(metrics)
    metrics |= {
        "ewma/kl": proximal_dist.kl(dist),
        "ewma/behaviour_kl": k3(log_weight),
        "ewma/boundfrac": log_weight > bound,
    }
    largest = {"ewma/max_ratio": jnp.exp(log_ratio).max(), "ewma/max_behaviour_ratio": jnp.exp(log_weight).max()}
    return loss, statistics.means(metrics) | largest


def optimise(
    args: Args, network: ActorCritic, learner: Learner, batch: Batch, key: jax.Array, learning_rate: jax.Array
) -> tuple[Learner, dict[str, jax.Array]]:
    """The inner loop: update_epochs passes over a chunk's batch in shuffled minibatches.

    batch: [T * N / C, ...] of this device. A minibatch is the union of the devices' shares, each shuffled locally.
    """
    # Parameters as one vector: Adam and the norm are then a few programs of a GPU rather than a few per layer.
    params, unravel = ravel_pytree(learner.params)
    apply = lambda params, obs: forward(args, network, unravel(params), obs)  # noqa: E731
    grad_fn = jax.grad(partial(ppo_loss, args, apply), has_aux=True)

    def minibatch_step(carry: tuple, inputs: tuple) -> tuple:
        (params, opt_state, proximal), (rows, advantage) = carry, inputs
        # Rows are gathered when they are used: no shuffled copy of the batch.
        minibatch = jax.tree.map(lambda x: x[rows], batch)._replace(advantage=advantage)
        grads, metrics = grad_fn(params, None if proximal is None else proximal.params, minibatch)
        grads = jax.lax.pmean(grads, "device")
        grad_norm = jnp.linalg.norm(grads)
        steps, opt_state = ADAM.update(grads * jnp.minimum(1.0, args.max_grad_norm / grad_norm), opt_state)
        params = params - learning_rate * steps
        proximal = None if proximal is None else update_proximal(args, proximal, params)
        return (params, opt_state, proximal), metrics | {"outer/grad_norm": grad_norm}

    def epoch(carry: tuple, key: jax.Array) -> tuple:
        positions = jnp.arange(batch.advantage.size).reshape(args.num_minibatches // args.num_rollout_chunks, -1)
        rows = random_permutation(key, batch.advantage.size)(positions)
        advantage = batch.advantage[rows]
        if args.norm_adv:
            advantage = jax.vmap(statistics.standardise)(advantage)  # of all at once: devices meet once per epoch
        carry, metrics = statistics.scan_mean(minibatch_step, carry, (rows, advantage))
        return carry, jax.lax.pmean(metrics, "device")

    proximal = learner.proximal
    if proximal is not None:
        proximal = proximal._replace(params=ravel_pytree(proximal.params)[0])
    too_far = None if args.target_kl is None else lambda metrics: metrics["losses/approx_kl"] > args.target_kl
    start, keys = (params, learner.opt_state, proximal), jax.random.split(key, args.update_epochs)
    (params, opt_state, proximal), metrics, epochs = statistics.scan_until(too_far, epoch, start, keys)
    metrics["outer/epochs"] = epochs
    metrics["losses/explained_variance"] = statistics.explained_variance(batch.advantage, batch.target)
    proximal = None if proximal is None else proximal._replace(params=unravel(proximal.params))
    return learner._replace(params=unravel(params), opt_state=opt_state, proximal=proximal), metrics


def measure_plasticity(args: Args, network: ActorCritic, learner: Learner, batch: Batch) -> dict[str, jax.Array]:
    """What docs/metrics.md explains, on PLASTICITY_SAMPLE transitions of an update. -> scalars."""
    apply, batch = partial(forward, args, network), gather_rows(batch, PLASTICITY_SAMPLE)
    dist, _ = apply(learner.params, batch.obs)
    hidden = network.hidden(learner.params, unpack(batch.obs))
    proximal = None if learner.proximal is None else learner.proximal.params
    gradient = partial(jax.grad(partial(ppo_loss, args, apply), has_aux=True), learner.params, proximal)
    return plasticity_metrics(args, learner.params, dist, hidden, batch, gradient)


def update(
    args: Args, env: envs.LevelEnv, network: ActorCritic, state: TrainState, fresh: jax.Array
) -> tuple[TrainState, dict, Batch]:
    """One step of the outer loop, on this device's share of the environments. -> state, metrics, sample [C, n, ...].

    Chunk by chunk: a rollout with the behaviour policy, which is the same for all of them, then the chunk's share of
    the minibatches, all epochs. A minibatch is mixed within its chunk. fresh: uint8 [C, B, bytes], the random levels of
    this and perhaps the next updates.
    """
    behaviour = state.learner
    next_key, key = jax.random.split(state.key)
    key = jax.random.fold_in(key, jax.lax.axis_index("device"))
    remaining = 1 - state.update / float(args.num_updates) if args.anneal_lr else 1.0
    learning_rate = jnp.float32(args.learning_rate * remaining)
    size = sample_size(args.batch_size, args.num_rollout_chunks * jax.lax.axis_size("device"))
    num_known = args.from_buffer(env.num_envs)
    num_fresh = env.num_envs - num_known
    turn = state.update % max(1, fresh.shape[1] // max(1, num_fresh))

    def one_chunk(learner: Learner, index: jax.Array) -> tuple:
        rollout_key, shuffle_key, sample_key, level_key = jax.random.split(jax.random.fold_in(key, index), 4)
        mine = jax.lax.dynamic_slice_in_dim(fresh[index], turn * num_fresh, num_fresh)
        levels = draw_levels(state.buffer, mine, num_known, level_key)
        t, last_value, sums = rollout(args, env, network, behaviour.params, levels, rollout_key)
        advantage = compute_gae(t, last_value, args.gamma, args.gae_lambda)
        batch = Batch(t.obs, t.action, t.log_prob, t.value, advantage, target=advantage + t.value)
        batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
        learner, metrics = optimise(args, network, learner, batch, shuffle_key, learning_rate)
        return learner, (metrics, random_rows(batch, size, sample_key), sums)

    learner, (metrics, batch, sums) = jax.lax.scan(one_chunk, behaviour, jnp.arange(args.num_rollout_chunks))
    metrics = jax.tree.map(lambda x: x.mean(0), metrics)
    policy = lambda params, batch: forward(args, network, params, batch.obs)[0]  # noqa: E731
    metrics |= measure_update(policy, state.previous, behaviour.params, learner.params, batch, args.batch_size)
    sums = sums.sum(0)  # [2, 4]: levels of the buffer, fresh ones
    metrics |= env.episode_metrics(sums.sum(0)) | {"charts/learning_rate": learning_rate}
    for kind, own in zip(("buffer", "fresh"), sums, strict=True):
        metrics |= {f"charts/{kind}_num_episodes": own[0], f"charts/{kind}_solve_rate": own[3] / own[0]}
    return TrainState(learner, state.buffer, next_key, state.update + 1, behaviour.params), metrics, batch


def sample_levels(args: Args, env: envs.LevelEnv, key: jax.Array, stream: jax.Array, index: jax.Array) -> jax.Array:
    """Batch `index` of a stream of random levels, by Kinetix's sampler with its no-op filter: this device's share of
    search_batch. -> uint8 [C, B, bytes]."""
    key = jax.random.fold_in(jax.random.fold_in(key, stream), index)
    keys = jax.random.split(jax.random.fold_in(key, jax.lax.axis_index("device")), args.num_rollout_chunks)
    size = args.search_batch // (args.num_rollout_chunks * jax.lax.axis_size("device"))
    return jax.lax.map(lambda key: jax.vmap(env.suite.pack)(env.suite.sample_filtered(key, size)), keys)


def play_levels(
    args: Args, env: envs.LevelEnv, network: ActorCritic, params: Any, levels: jax.Array, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Play each level [B, bytes] for learnability_steps, or for learnability_episodes side by side.

    -> how many of its episodes succeeded [B], how many ended [B].
    """
    window = args.learnability_estimator == "window"
    copies = 1 if window else args.learnability_episodes
    num_steps = args.learnability_steps if window else env.suite.max_steps  # by then every episode has ended
    env = envs.LevelEnv(env.suite, len(levels) * copies)
    levels = jax.tree.map(lambda x: jnp.repeat(x, copies, axis=0), jax.vmap(env.suite.unpack)(levels))

    def step(carry: tuple, key: jax.Array) -> tuple:
        env_state, obs, successes, episodes = carry
        action_key, env_key = jax.random.split(key)
        dist, _ = forward(args, network, params, obs)
        env_state, out = env.step(env_key, env_state, dist.sample(action_key))
        counted = out.episode.done & (window or episodes == 0)  # of each copy the first episode only
        return (env_state, out.obs, successes + (counted & out.episode.success), episodes + counted), None

    nothing = jnp.zeros(env.num_envs, jnp.int32)
    carry = (*env.start(levels), nothing, nothing)
    (_, _, successes, episodes), _ = jax.lax.scan(step, carry, jax.random.split(key, num_steps))
    return successes.reshape(-1, copies).sum(1), episodes.reshape(-1, copies).sum(1)


def learnability(args: Args, successes: jax.Array, episodes: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Estimates of p and p (1 - p), NaN where no episode ended. [B], [B] -> [B], [B].

    window: the plug-in estimate, from as many episodes as fitted. episodes: their number n is fixed, so that
    E[n / (n - 1) p^ (1 - p^)] = p (1 - p).
    """
    rate = successes / episodes
    plug_in = rate * (1 - rate)
    return rate, plug_in if args.learnability_estimator == "window" else plug_in * episodes / (episodes - 1)


def keep_best(kept: Levels, new: Levels) -> Levels:
    """The best L of [L] and [B] levels, best first; of equal ones those of `kept`."""
    both = jax.tree.map(lambda *parts: jnp.concatenate(parts), kept, new)
    _, index = jax.lax.top_k(both.score, len(kept.score))
    return jax.tree.map(lambda x: x[index], both)


def tally(rate: jax.Array, value: jax.Array, known: jax.Array) -> dict[str, jax.Array]:
    """Sums over the known ones of n levels: their number, p, p (1 - p), and how many have their p in which bin. [1]."""
    bins = {f"rate_{center:.1f}": jnp.round(10 * rate) == i for i, center in enumerate(RATES)}
    sums = {"levels": 1.0, "success_rate": rate, "learnability": value, **bins}
    return {name: jnp.where(known, x, 0.0).sum(keepdims=True) for name, x in sums.items()}


def no_levels(args: Args, env: envs.LevelEnv) -> Levels:
    """An empty buffer."""
    data = jnp.zeros((args.buffer_size, env.suite.level_bytes), jnp.uint8)
    return Levels(data, jnp.full(args.buffer_size, -jnp.inf, jnp.float32), jnp.zeros(args.buffer_size))


def score_levels(
    args: Args, env: Any, network: ActorCritic, found: Found, learner: Learner, levels: Any, key: Any, index: Any
) -> Found:
    """Add batch `index` of the candidates, uint8 [C, B, bytes] on this device, to what was found before."""
    key = jax.random.fold_in(jax.random.fold_in(key, CANDIDATES), index)
    keys = jax.random.split(jax.random.fold_in(key, jax.lax.axis_index("device")), args.num_rollout_chunks)

    def one_chunk(found: Found, inputs: tuple) -> tuple[Found, None]:
        levels, key = inputs
        rate, value = learnability(args, *play_levels(args, env, network, learner.params, levels, key))
        known = jnp.isfinite(rate)
        # Kinetix's tie-break: of levels that teach nothing, rather those that are solved. NaN would win any sort.
        score = jnp.where(known, value + TIE_BREAK * rate, -jnp.inf)
        best = keep_best(found.best, Levels(levels, score, jnp.where(known, rate, 0.0)))
        return Found(best, jax.tree.map(jnp.add, found.tally, tally(rate, value, known))), None

    return jax.lax.scan(one_chunk, found, (levels, keys))[0]


def gather_levels(args: Args, found: Found) -> tuple[Levels, dict[str, jax.Array]]:
    """The best levels over all devices, on every device; means over them and over all candidates."""
    scores = jax.lax.all_gather(found.best.score, "device", tiled=True)
    score, index = jax.lax.top_k(scores, args.buffer_size)
    device, row = index // args.buffer_size, index % args.buffer_size
    mine = device == jax.lax.axis_index("device")
    # Each has its own rows and zeros for the others': no device ever holds the levels of all.
    data = jnp.where(mine[:, None], found.best.data[row], 0).astype(jnp.int32)
    data, rate = jax.lax.psum((data, jnp.where(mine, found.best.success_rate[row], 0.0)), "device")
    value, there = score - TIE_BREAK * rate, score > -jnp.inf
    kept, metrics = tally(rate, value, there), {"buffer/learnability_min": jnp.where(there, value, jnp.inf).min()}
    for name, sums in (("search", jax.lax.psum(found.tally, "device")), ("buffer", kept)):
        count = sums.pop("levels")[0]
        metrics |= {f"{name}/levels": count, **{f"{name}/{key}": x[0] / count for key, x in sums.items()}}
    return Levels(data.astype(jnp.uint8), score, rate), metrics


def init_state(args: Args, env: envs.LevelEnv, network: ActorCritic, key: jax.Array) -> TrainState:
    """A fresh network and an empty buffer."""
    network_key, key = jax.random.split(key)
    params = network.init(network_key)
    proximal = None if args.com is None else Proximal(params, jnp.ones(()))
    learner = Learner(params, ADAM.init(ravel_pytree(params)[0]), proximal)
    previous = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), params)
    return TrainState(learner, no_levels(args, env), key, jnp.int32(0), previous)


def settle_search(args: Args, num_devices: int) -> Args:
    """Fill in num_devices and search_batch, round num_candidates up to whole batches; refuse what does not fit."""
    parts = args.num_rollout_chunks * num_devices
    each = args.num_envs // parts
    known = args.from_buffer(each)
    if 0 < args.buffer_share < 1 and known in (0, each):
        where = f"--buffer-share {args.buffer_share}: of {each} environments per device and chunk it is {known}"
        raise UsageError(f"{where}; take more --num-envs, fewer --num-devices or --num-rollout-chunks, or 0 or 1")
    unit = parts * ((each - known) or each)
    batch = args.search_batch or unit * -(-256 // unit)
    if batch % unit:
        near = f"{-(-batch // unit) * unit} would do"
        raise UsageError(f"--search-batch {batch}: must be a multiple of the {unit} fresh levels of an update; {near}")
    candidates = -(-args.num_candidates // batch) * batch
    idle = [arguments.flag(name) for name in OF_SEARCH if name in args.named and not args.buffer_share]
    if idle:  # no error: a sweep may vary both
        print(f"note: --buffer-share 0: nothing is searched for; without effect: {', '.join(idle)}")
    if args.buffer_share and args.buffer_size >= candidates:
        print(f"note: --buffer-size {args.buffer_size}: holds all {candidates} candidates, so a search chooses nothing")
    if args.buffer_share and (candidates, parts * known) != (args.num_candidates, args.buffer_share * args.num_envs):
        print(f"search: {candidates} candidates in batches of {batch}; {parts * known} on the buffer's levels")
    return replace(args, num_devices=num_devices, search_batch=batch, num_candidates=candidates)


def build(args: Args) -> tuple:
    """Put the functions above on the devices: learner and buffer replicated, environments and candidates split,
    several seeds vmapped. -> args, env (one device's share of one chunk), network, programs, keys."""
    chunk = args.num_envs // args.num_rollout_chunks
    rarer = min(args.buffer_share, 1 - args.buffer_share)
    most = chunk // (int(0.5 / rarer) + 1) or 1 if rarer else None  # on more devices one kind of levels would lack
    chosen = devices.choose_devices(args.num_devices, chunk, args.minibatch_size, at_most=most)
    args = settle_search(args, len(chosen))  # --resume takes as many by default
    suite = kinetix.make_entities(args.size)
    env = envs.LevelEnv(suite, chunk // len(chosen))
    network = ActorCritic(suite, MODELS[args.network], args.compute_dtype)
    on_devices = devices.OnDevices(chosen, args.num_seeds)
    rows, chunks = on_devices.split(0), on_devices.split(1)
    nothing = lambda _: Found(no_levels(args, env), tally(*jnp.zeros((2, 1)), jnp.zeros(1, bool)))  # noqa: E731
    score = partial(score_levels, args, env, network)
    programs = SimpleNamespace(
        init=on_devices(partial(init_state, args, env, network)),  # keys -> state
        # state, fresh levels -> state, metrics, sample
        update=on_devices(partial(update, args, env, network), (P(), chunks), (P(), P(), chunks), donate=0),
        measure=on_devices(partial(measure_plasticity, args, network), (P(), chunks)),  # learner, sample -> metrics
        # keys, stream, index -> levels
        sample=on_devices(partial(sample_levels, args, env), gives=chunks, over_seeds=(0, None, None)),
        begin=on_devices(nothing, gives=rows),  # keys -> found, nothing so far
        # found, learner, levels, keys, index of the batch -> found
        score=on_devices(score, (rows, P(), chunks, P(), P()), rows, over_seeds=(0, 0, 0, 0, None), donate=0),
        gather=on_devices(partial(gather_levels, args), (rows,)),  # found -> buffer, metrics
    )
    return args, env, network, programs, on_devices.keys(args.seed)


def search(args: Args, env: envs.LevelEnv, programs: Any, run: Run, state: TrainState, index: int, keys: Any) -> Levels:
    """The buffer from update `index` on: samples and scores batch after batch of candidates, keeping the best, unless a
    signal stops it."""
    began, batches = time.perf_counter(), args.num_candidates // args.search_batch
    found, first = programs.begin(keys), (index - 1) // args.buffer_every * batches
    for i in tqdm(range(first, first + batches), "searching", leave=False, disable=None if run.is_main else True):
        if run.interrupted:
            return state.buffer
        levels = programs.sample(keys, CANDIDATES, i)
        # Waited for: a queue of batches would hold the levels of all of them.
        found = jax.block_until_ready(programs.score(found, state.learner, levels, state.key, i))
    buffer, metrics = programs.gather(found)
    metrics = jax.device_get(metrics)
    if not np.all(metrics["buffer/levels"]):
        where = f"--learnability-steps {args.learnability_steps}: on none of {args.num_candidates} levels"
        raise UsageError(f"{where} did an episode end; an episode has at most {env.suite.max_steps} steps")
    window = args.learnability_estimator == "window"
    steps = args.learnability_steps if window else args.learnability_episodes * env.suite.max_steps
    seconds = time.perf_counter() - began
    metrics |= {"search/seconds": seconds, "search/SPS": args.num_seeds * args.num_candidates * steps / seconds}
    run.write(index, metrics)
    return buffer


def draw_success_rates(path: Path, buffer_every: int) -> None:
    """success_rates.png of a run: of each search's candidates, and of the buffer's levels, the share at each p."""
    from matplotlib.figure import Figure

    lines = [line for line in read_lines(path) if "search/rate_0.0" in line]
    if not lines:
        return
    figure = Figure(figsize=(11, 4), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("search", "buffer"), strict=True):
        shares = [[np.mean(line[f"{name}/rate_{rate:.1f}"]) for line in lines] for rate in RATES]
        shown = axes.imshow(shares, vmin=0, vmax=1, origin="lower", aspect="auto", extent=(0, len(lines), -0.05, 1.05))
        axes.set(xlabel=f"searches (one every {buffer_every} updates)", ylabel=f"{name}: success rate p")
    figure.colorbar(shown, ax=figure.axes, label="share of levels")
    figure.savefig(path / "success_rates.png", dpi=150)


def evaluate_published(args: Args) -> Path:
    """--evaluate of a folder in the format of Kinetix's published checkpoints. Returns the folder with the scores."""
    folder.refuse_bad_target(args)
    devices.start(args)
    network, params = load_published(args)
    player = LevelPlayer(args, network.suite, lambda params, obs: forward(args, network, params, obs)[0])
    run = Run.evaluation(args, __file__, player, params)
    with run:
        list(run.updates())  # there are none: it only evaluates
    return run.finish()


def train(args: Args) -> Path:
    """Run one training from start (or checkpoint) to end. Returns the run's folder."""
    if args.evaluate and args.resume is None and kinetix.is_published(args.evaluate):
        return evaluate_published(args)
    args, env, network, programs, keys = build(begin(args, __file__))
    player = LevelPlayer(args, env.suite, lambda learner, obs: forward(args, network, learner.params, obs)[0])
    num_fresh = (env.num_envs - args.from_buffer(env.num_envs)) * (args.num_envs // env.num_envs)
    turns = args.search_batch // num_fresh if num_fresh else args.num_updates  # updates that one batch has levels for
    fresh_levels = lambda index: programs.sample(keys, FRESH, (index - 1) // turns)  # noqa: E731
    compiled = programs.init, programs.update, keys, partial(fresh_levels, 1)
    run, state, step = Run.start(args, __file__, player, *compiled, fixed=FIXED, may_lack="proximal")
    fresh = None
    with run:
        for index in run.updates():
            if args.buffer_share and (index - 1) % args.buffer_every == 0:
                with run.aside():
                    state = state._replace(buffer=search(args, env, programs, run, state, index, keys))
                if run.interrupted:  # it searches again when it is resumed
                    run.save_if_due(index - 1, state)
                    break
            if fresh is None or (index - 1) % turns == 0:
                fresh = fresh_levels(index)
            state, metrics, sample = step(state, fresh)
            run.record(index, state, metrics, programs.measure, sample)
    run.guard("success_rates.png", lambda: draw_success_rates(run.path, args.buffer_every))
    return run.finish()


if __name__ == "__main__":
    main(train, Args)
