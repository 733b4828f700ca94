"""Trains rejax 0.1.3's PPO on a gymnax environment, to compare returns at equal hyperparameters.

rejax wants gymnax 0.0.9, so it needs its own virtual environment:

    python -m venv .venv-rejax && .venv-rejax/bin/pip install rejax==0.1.3 gymnax==0.0.9
    .venv-rejax/bin/python benchmarks/rejax_ppo.py Breakout-MinAtar 0 1 2 3 4

Prints one line per seed: the mean return of 128 episodes, with sampled actions, at the end of training.
"""

import sys
import time

import jax
from rejax import PPO

HYPERPARAMETERS = {
    "total_timesteps": 10_010_624,  # 1222 updates
    "num_envs": 256,
    "num_steps": 32,
    "num_minibatches": 8,
    "num_epochs": 4,
    "learning_rate": 5e-4,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_eps": 0.2,
    "ent_coef": 0.01,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
    "agent_kwargs": {"activation": "tanh", "hidden_layer_sizes": (64, 64)},
}


def main(env_id: str, seeds: list[int]) -> None:
    algorithm = PPO.create(env=env_id, eval_freq=HYPERPARAMETERS["total_timesteps"], **HYPERPARAMETERS)
    algorithm = algorithm.replace(skip_initial_evaluation=True)
    train = jax.jit(algorithm.train)
    for seed in seeds:
        began = time.time()
        _, (_, returns) = train(jax.random.PRNGKey(seed))
        print(f"seed {seed}: return {float(returns[-1].mean()):.2f}, {time.time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], [int(seed) for seed in sys.argv[2:]])
