"""The estimate of memory before anything is compiled, against what XLA reports afterwards."""

import jax
import pytest

import ppo
from common.run import memory

SIZES = {
    "a long rollout": {"env_id": "CartPole-v1", "num_envs": 32768, "num_steps": 128},
    "many environments": {"env_id": "CartPole-v1", "num_envs": 2**20, "num_steps": 16},
    "bits": {"env_id": "Breakout-MinAtar", "num_envs": 65536, "num_steps": 64},
    "chunks": {"env_id": "Breakout-MinAtar", "num_envs": 262144, "num_steps": 32, "num_rollout_chunks": 8},
    "one minibatch": {"env_id": "Breakout-MinAtar", "num_envs": 8192, "num_steps": 16, "num_minibatches": 1},
    "wide": {"env_id": "CartPole-v1", "num_envs": 262144, "num_steps": 16, "hidden_sizes": (256, 256)},
}


@pytest.mark.parametrize("kind", SIZES)
def test_the_estimate_is_within_a_quarter_of_what_xla_needs(monkeypatch, kind):
    estimates, estimate = [], memory.estimate
    monkeypatch.setattr(memory, "estimate", lambda *a: estimates.append(estimate(*a)) or estimates[-1])

    class Checked(Exception):
        pass

    def stop(*_):
        raise Checked

    monkeypatch.setattr(ppo.arguments, "describe", stop)
    args = ppo.Args(**SIZES[kind], num_devices=1, total_timesteps=2**31)
    with pytest.raises(Checked):
        ppo.train(args)
    args, _, _, init, step, _, keys = ppo.build(args)
    state = jax.eval_shape(init, keys)
    sizes = step.lower(state).compile().memory_analysis()
    needed = sizes.temp_size_in_bytes + sizes.argument_size_in_bytes
    assert sum(estimates[0].values()) == pytest.approx(needed, rel=0.25)
