"""Compares the speed of sfl_kinetix.py with that of Kinetix's own functions.

    python benchmarks/search.py                        # writes results/search.json; a quarter of an hour on two cores
    taskset -c 0 python benchmarks/search.py --out one_core.json

For training, one update (rollout and inner loop) of each is timed in turn, on levels of the same kind. The peer uses
kinetix-env's kinetix.util.learning (sample_trajectories_rnn, compute_gae, update_actor_critic_rnn), the same network
and sizes, and XLA's threads on all cores; ours has an XLA device for each core. Neither samples levels; what that costs
per update is reported separately. For the search, the sampling and scoring of candidates and the peer's rollouts of
the same size are timed.
"""

import os
import statistics
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tyro

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # as the scripts do, before jax is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import numpy as np

import sfl_kinetix
from benchmarks import report
from common.run import devices


@dataclass(frozen=True)
class Args:
    num_envs: int = 64
    """Parallel environments."""
    num_steps: int = 64
    """Steps per environment and update; the speed hardly depends on it."""
    minibatch_size: int = 512
    """Transitions per minibatch."""
    network: str = "transformer"
    """Kinetix's transformer or permutation-invariant network."""
    compute_dtype: str = "float32"
    """sfl_kinetix.py's --compute-dtype; Kinetix has float32 only."""
    repetitions: int = 3
    """How many times to measure; the median is reported."""
    out: Path = Path("results/search.json")
    """The file to write."""


def timed(function: Any) -> tuple[Any, float]:
    began = time.perf_counter()
    result = jax.block_until_ready(function())
    return result, time.perf_counter() - began


def make_peer(args: Any, env: Any, network: Any, params: Any) -> tuple[Any, Any]:
    """Builds the peer from Kinetix's functions. -> functions (level states, key) of an update and search rollouts."""
    import optax
    from flax.training.train_state import TrainState
    from kinetix.environment.env import make_kinetix_env
    from kinetix.environment.env_state import EnvParams
    from kinetix.environment.spaces import ActionType, ObservationType
    from kinetix.util import learning

    jax.tree.tree_map = jax.tree.map  # update_actor_critic_rnn calls it by a name that JAX does not have
    suite, module = env.suite, network._module
    kinds = ActionType.MULTI_DISCRETE, ObservationType.SYMBOLIC_ENTITY
    env_params = EnvParams(dense_reward_scale=suite.params.dense_reward_scale)
    kinetix_env = make_kinetix_env(*kinds, lambda key: None, env_params, suite.static_params)
    optimiser = optax.chain(optax.clip_by_global_norm(args.max_grad_norm), optax.adam(args.learning_rate, eps=1e-5))
    start = TrainState.create(apply_fn=module.apply, params=params, tx=optimiser)

    @jax.jit
    def peer(levels: Any, key: jax.Array) -> Any:
        obs = jax.vmap(suite.env.get_obs)(levels)
        carry = jnp.zeros((args.num_envs, 1))  # for recurrent networks; this one has no carry
        (key, state, _, _, _, last_value), traj = learning.sample_trajectories_rnn(
            key, kinetix_env, env_params, start, carry, obs, levels, args.num_envs, args.num_steps
        )
        seen, actions, rewards, dones, log_probs, values, _ = traj
        advantages, targets = learning.compute_gae(args.gamma, args.gae_lambda, last_value, values, rewards, dones)
        batch = seen, actions, dones, log_probs, values, targets, advantages
        sizes = args.num_envs, args.num_steps, args.num_minibatches, args.update_epochs
        return learning.update_actor_critic_rnn(
            key, state, carry, batch, *sizes, args.clip_eps, args.ent_coef, args.vf_coef
        )[0][1].params

    @jax.jit
    def score(levels: Any, key: jax.Array) -> Any:
        obs, num_envs = jax.vmap(suite.env.get_obs)(levels), len(levels.timestep)
        carry, steps = jnp.zeros((num_envs, 1)), args.learnability_steps
        _, traj = learning.sample_trajectories_rnn(
            key, kinetix_env, env_params, start, carry, obs, levels, num_envs, steps
        )
        return traj[3], traj[6]["GoalR"]

    return peer, score


def main(given: Args) -> None:
    flags = dict(num_envs=given.num_envs, num_steps=given.num_steps, minibatch_size=given.minibatch_size)
    found = dict(num_candidates=128, search_batch=128, buffer_size=128, buffer_share=0.5, learnability_steps=256)
    flags |= {"compute_dtype": given.compute_dtype} if given.compute_dtype != "float32" else {}
    args = sfl_kinetix.Args(network=given.network, total_timesteps=10**12, plasticity_every=0, **flags, **found)
    devices.start(args)
    args, env, network, programs, keys = sfl_kinetix.build(args)
    state = programs.init(keys)

    def search_batch(state: Any, found: Any, number: int) -> tuple[Any, float, float]:
        levels, sampling = timed(lambda: programs.sample(keys, sfl_kinetix.CANDIDATES, number))
        found, scoring = timed(lambda: programs.score(found, state.learner, levels, state.key, number))
        return found, sampling, scoring

    sizes = flags | {"size": "s", "network": given.network, "update_epochs": args.update_epochs}
    record = report.record(jax=jax.__version__, sizes=sizes)
    best = programs.begin(keys)
    times = []
    for number in range(given.repetitions + 1):  # the first one compiles
        best, *seconds = search_batch(state, best, number)
        times.append(seconds)
    sampling, scoring = (statistics.median(t[i] for t in times[1:]) for i in range(2))
    num_levels, steps = args.search_batch, args.search_batch * args.learnability_steps
    record["search"] = {
        "levels": num_levels,
        "steps_on_each": args.learnability_steps,
        "sampling_s": sampling,
        "scoring_s": scoring,
        "scoring_steps_per_second": steps / scoring,
        "steps_per_second": steps / (sampling + scoring),
    }

    fresh = programs.sample(keys, sfl_kinetix.FRESH, 0)
    buffer, _ = programs.gather(best)
    state = state._replace(buffer=buffer)
    packed = sfl_kinetix.draw_levels(buffer, fresh[0, : given.num_envs // 2], given.num_envs // 2, keys)
    params = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), state.learner.params)  # on one device
    peer, peer_score = make_peer(args, env, network, params)
    start = jax.jit(lambda packed: jax.vmap(env.suite.start)(jax.vmap(env.suite.unpack)(packed))[0])
    levels, candidates = start(np.asarray(packed)), start(np.asarray(fresh).reshape(-1, env.suite.level_bytes))
    times = [timed(partial(peer_score, candidates, jax.random.key(i)))[1] for i in range(given.repetitions + 1)]
    record["search"]["peer_scoring_s"] = statistics.median(times[1:])
    record["search"]["ratio"] = statistics.median(times[1:]) / scoring
    print(record["search"], flush=True)
    seconds: dict[str, list[float]] = {"ours": [], "peer": []}
    for i in range(given.repetitions + 1):
        (state, _, _), ours = timed(partial(programs.update, state, fresh))
        _, theirs = timed(partial(peer, levels, jax.random.key(i)))
        seconds["ours"].append(ours)
        seconds["peer"].append(theirs)
    transitions = args.batch_size
    record["training"] = {
        name: {"update_s": statistics.median(each[1:]), "steps_per_second": transitions / statistics.median(each[1:])}
        for name, each in seconds.items()
    }
    record["training"]["ratio"] = statistics.median(
        p / o for p, o in zip(seconds["peer"][1:], seconds["ours"][1:], strict=True)
    )
    record["training"]["fresh_levels_s"] = sampling * given.num_envs / 2 / num_levels
    print(record["training"], flush=True)

    report.write(given.out, record)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__.split("\n\n")[0]))
