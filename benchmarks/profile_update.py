"""Shows what an update of ppo.py spends its time on; each part is compiled and timed alone.

    python benchmarks/profile_update.py                           # 16384 x 128 transitions, 256 minibatches
    python benchmarks/profile_update.py --env-ids CartPole-v1 --num-envs 1024 --num-minibatches 16

"matrix products alone" is a lower bound on the gradient's time: the products of its layers with nothing in between.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tyro

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P

import ppo
from common.arrays import pack, unpack
from common.run import devices


@dataclass(frozen=True)
class Args:
    env_ids: tuple[str, ...] = ("CartPole-v1", "Breakout-MinAtar")
    """Environments, as for ppo.py."""
    num_envs: int = 16384
    """Environments, over all devices."""
    num_minibatches: int = 256
    """Minibatches per epoch."""
    num_steps: int = 128
    """Steps per environment and update."""
    repetitions: int = 2
    """How many times to time a part; the fastest is reported."""


def profile(args: Args, env_id: str) -> dict[str, float]:
    """Returns the seconds of each part in one update."""
    sizes = {"num_envs": args.num_envs, "num_steps": args.num_steps, "num_minibatches": args.num_minibatches}
    flags = ppo.Args(env_id=env_id, total_timesteps=10**12, **sizes)
    flags, env, network, init, _, _, keys = ppo.build(flags)
    mesh = Mesh(np.array(jax.devices()[: flags.num_devices]), ("device",))
    split, columns = P("device"), P(None, "device")
    state_layout = ppo.TrainState(learner=P(), environments=columns, key=P(), update=P(), previous=P())
    seconds = {}

    def timed(name: str, function: Callable, in_specs: Any, out_specs: Any, *inputs: Any) -> Any:
        on_devices = jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
        compiled, times = jax.jit(on_devices).lower(*inputs).compile(), []
        for _ in range(args.repetitions):
            began = time.perf_counter()
            outputs = jax.block_until_ready(compiled(*inputs))
            times.append(time.perf_counter() - began)
        seconds[name] = min(times)
        return outputs

    def rollout(state: ppo.TrainState) -> tuple:
        key = jax.random.fold_in(state.key, jax.lax.axis_index("device"))
        chunk = jax.tree.map(lambda x: x[0], state.environments)
        return ppo.rollout(flags, env, network, state.learner, chunk, key)[1:3]

    def steps_alone(state: ppo.TrainState) -> jax.Array:
        def step(env_state: Any, key: jax.Array) -> tuple:
            env_state, out = env.step(key, env_state, env.action_space.sample(key, env.num_envs))
            return env_state, (pack(out.obs), out.reward)

        env_state = jax.tree.map(lambda x: x[0], state.environments.state)
        return jax.lax.scan(step, env_state, jax.random.split(state.key, args.num_steps))[1]

    def gae(transitions: ppo.Transition, last_value: jax.Array) -> ppo.Batch:
        t, advantage = transitions, ppo.compute_gae(transitions, last_value, flags.gamma, flags.gae_lambda)
        batch = ppo.Batch(t.obs, t.action, t.log_prob, t.value, advantage, advantage + t.value)
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)

    def inner_loop(learner: ppo.Learner, batch: ppo.Batch, key: jax.Array) -> ppo.Learner:
        return ppo.optimise(flags, network, learner, batch, key, jnp.float32(1e-3))[0]

    number = flags.update_epochs * flags.num_minibatches

    def repeat(gradient: Callable, params: Any, batch: ppo.Batch) -> Any:
        """Takes as many gradients as an update does, all on one prepared minibatch; each moves the parameters."""
        size = flags.minibatch_size // flags.num_devices
        ready = jax.tree.map(lambda x: x[:size], batch)
        ready = ready._replace(obs=unpack(ready.obs))

        def step(params: Any, _: Any) -> tuple:
            return jax.tree.map(lambda p, g: p - 1e-6 * g, params, gradient(params, ready)), None

        return jax.lax.scan(step, params, None, length=number)[0]

    def loss(params: Any, batch: ppo.Batch) -> jax.Array:
        policy = partial(ppo.forward, flags, network, None)
        return ppo.ppo_loss(flags, policy, params, batch)[0]

    def products(params: Any, batch: ppo.Batch) -> jax.Array:
        total = 0.0
        for encoder in ("actor_encoder", "critic_encoder"):
            x = batch.obs.reshape(len(batch.obs), -1).astype(jnp.float32)
            for layer in params["params"][encoder].values():
                x = x @ layer["kernel"] if "kernel" in layer else x  # layer normalisation has none
            total += (x**2).mean()
        return total

    state = jax.jit(init)(keys)
    transitions, last_value = timed("rollout", rollout, (state_layout,), (columns, split), state)
    timed("  environment steps alone", steps_alone, (state_layout,), columns, state)
    batch = timed("GAE", gae, (columns, split), split, transitions, last_value)
    del transitions
    timed("inner loop", inner_loop, (P(), split, P()), P(), state.learner, batch, state.key)
    for name, function in (("  gradients alone", loss), ("    matrix products alone", products)):
        timed(name, partial(repeat, jax.grad(function)), (P(), split), P(), state.learner.params, batch)
    return seconds


def main(args: Args) -> None:
    devices.start(ppo.Args())
    for env_id in args.env_ids:
        seconds = profile(args, env_id)
        total = sum(value for name, value in seconds.items() if not name.startswith(" "))
        print(f"{env_id}, {args.num_envs} x {args.num_steps}, {args.num_minibatches} minibatches: {total:.2f} s")
        for name, value in seconds.items():
            print(f"{name:28s} {value:7.2f} s  {100 * value / total:5.1f} %", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__.split("\n\n")[0]))
