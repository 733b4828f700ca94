"""Shows what an update of ppo.py spends its time on, from the bare environments outwards. Takes the flags of ppo.py.

    python benchmarks/environments.py --env-id craftax/Craftax-Classic-Symbolic-v1 --num-envs 256 --stagger-resets 300
    python benchmarks/environments.py --env-id envpool/Pong-v5 --network nature --num-envs 128 --minibatch-size 512

Each part contains those above it; all are on one device. Without --stagger-resets no episode of a long game would end
in the few steps that are timed. CPU seconds count all cores, and other work on the machine changes them less.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P

import ppo
from common.run import arguments, devices

REPETITIONS = 3  # of a part; the fastest is reported


def envpool(name: str, num_envs: int, num_steps: int) -> Callable[[], Any]:
    """A function that takes random steps in envpool's own environments."""
    import envpool

    pool = envpool.make(name, env_type="gymnasium", num_envs=num_envs, seed=0)
    pool.reset()

    def play() -> None:
        for _ in range(num_steps):
            pool.step(np.stack([pool.action_space.sample() for _ in range(num_envs)]))

    return play


def parts(args: ppo.Args) -> dict[str, Callable[[], Any]]:
    """What is timed, each a function without arguments."""
    args, env, network, init, step, _, keys = ppo.build(replace(args, num_devices=1, num_rollout_chunks=1))
    mesh = Mesh(np.array(jax.devices()[:1]), ("device",))

    def steps(state: ppo.TrainState) -> Any:
        def one(env_state: Any, key: jax.Array) -> tuple:
            env_state, out = env.step(key, env_state, env.action_space.sample(key, env.num_envs))
            return env_state, (out.obs, out.reward)

        env_state = jax.tree.map(lambda x: x[0], state.environments.state)
        return jax.lax.scan(one, env_state, jax.random.split(state.key, args.num_steps))[1]

    def rollout(state: ppo.TrainState) -> Any:
        chunk = jax.tree.map(lambda x: x[0], state.environments)
        return ppo.rollout(args, env, network, state.learner, chunk, state.key)[1:3]

    state = init(keys)
    on_device = partial(jax.shard_map, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    compiled = {name: jax.jit(on_device(f)).lower(state).compile() for name, f in (("s", steps), ("r", rollout))}
    # Not donated, so that it can be repeated.
    update = jax.jit(lambda state: step(state)[0].learner.params).lower(state).compile()
    suite, _, name = args.env_id.rpartition("/")
    own = (
        {"envpool's own loop, random actions": envpool(name, env.num_envs, args.num_steps)}
        if suite == "envpool"
        else {}
    )
    return own | {
        "random actions here": lambda: compiled["s"](state),
        "and a network that acts": lambda: compiled["r"](state),
        f"and learns, {args.update_epochs} epochs": lambda: update(state),
    }


def main(args: ppo.Args) -> None:
    devices.start(args)
    taken = args.num_envs * args.num_steps
    for name, function in parts(args).items():
        walls, cpus = [], []
        for _ in range(REPETITIONS + 1):
            wall, cpu = time.perf_counter(), time.process_time()
            jax.block_until_ready(function())
            walls.append(time.perf_counter() - wall)
            cpus.append(time.process_time() - cpu)
        speeds = [taken / min(times[1:]) for times in (walls, cpus)]
        print(f"{name:40s} {speeds[0]:10,.0f} steps/s {speeds[1]:10,.0f} steps per CPU second", flush=True)


if __name__ == "__main__":
    main(arguments.parse(ppo.Args, __doc__.split("\n\n")[0]))
