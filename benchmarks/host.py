"""Shows what an update of ppo.py on an environment of envpool spends its time on, from the bare environments outwards.

    python benchmarks/host.py                        # Pong, 128 environments, Nature CNN: three minutes on two cores
    python benchmarks/host.py --env-id envpool/HalfCheetah-v5 --network mlp --hidden-sizes 64 64

Each part contains those above it. CPU seconds count both cores, and other work on the machine changes them less.
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
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P

import ppo
from common.run import devices


@dataclass(frozen=True)
class Args:
    env_id: str = "envpool/Pong-v5"
    """An environment of envpool."""
    network: str = "nature"
    """As for ppo.py."""
    hidden_sizes: tuple[int, ...] = (512,)
    """As for ppo.py."""
    num_envs: int = 128
    """Environments."""
    num_steps: int = 32
    """Steps per environment and update."""
    repetitions: int = 3
    """How many times to time a part; the fastest is reported."""


def bare(args: Args) -> Callable[[], Any]:
    """A function that takes num_steps random steps in envpool's own environments."""
    import envpool

    name = args.env_id.removeprefix("envpool/")
    pool = envpool.make(name, env_type="gymnasium", num_envs=args.num_envs, seed=0)
    pool.reset()
    space = pool.action_space

    def play() -> None:
        for _ in range(args.num_steps):
            pool.step(np.stack([space.sample() for _ in range(args.num_envs)]))

    return play


def parts(args: Args) -> dict[str, Callable[[], Any]]:
    """What is timed, each a function without arguments."""
    sizes = {"num_envs": args.num_envs, "num_steps": args.num_steps, "minibatch_size": 512}
    network = {"network": args.network, "hidden_sizes": args.hidden_sizes, "activation": "relu", "shared_encoder": True}
    flags = ppo.Args(env_id=args.env_id, total_timesteps=10**9, **sizes, **network)
    flags, env, network, init, step, _, keys = ppo.build(flags)
    mesh = Mesh(np.array(jax.devices()[:1]), ("device",))

    def steps(state: ppo.TrainState) -> Any:
        def one(env_state: Any, key: jax.Array) -> tuple:
            env_state, out = env.step(key, env_state, env.action_space.sample(key, env.num_envs))
            return env_state, (out.obs, out.reward)

        env_state = jax.tree.map(lambda x: x[0], state.environments.state)
        return jax.lax.scan(one, env_state, jax.random.split(state.key, args.num_steps))[1]

    def rollout(state: ppo.TrainState) -> Any:
        chunk = jax.tree.map(lambda x: x[0], state.environments)
        return ppo.rollout(flags, env, network, state.learner, chunk, state.key)[1:3]

    state = init(keys)
    on_device = partial(jax.shard_map, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    compiled = {name: jax.jit(on_device(f)).lower(state).compile() for name, f in (("s", steps), ("r", rollout))}
    # Not donated, so that it can be repeated.
    update = jax.jit(lambda state: step(state)[0].learner.params).lower(state).compile()
    return {
        "envpool's own loop": bare(args),
        "its steps inside a compiled program": lambda: compiled["s"](state),
        "and a network that acts": lambda: compiled["r"](state),
        f"and learns, {flags.update_epochs} epochs": lambda: update(state),
    }


def main(args: Args) -> None:
    devices.start(ppo.Args())
    taken = args.num_envs * args.num_steps
    for name, function in parts(args).items():
        walls, cpus = [], []
        for _ in range(args.repetitions + 1):
            wall, cpu = time.perf_counter(), time.process_time()
            jax.block_until_ready(function())
            walls.append(time.perf_counter() - wall)
            cpus.append(time.process_time() - cpu)
        speeds = [taken / min(times[1:]) for times in (walls, cpus)]
        print(f"{name:40s} {speeds[0]:10,.0f} steps/s {speeds[1]:10,.0f} steps per CPU second", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__.split("\n\n")[0]))
