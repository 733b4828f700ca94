"""The estimate of memory before anything is compiled, against what XLA reports afterwards."""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import ppo
import ppo_rnn
from common.actions import Discrete
from common.run import memory
from common.run.arguments import UsageError

SIZES = {
    "a long rollout": {"env_id": "CartPole-v1", "num_envs": 32768, "num_steps": 128},
    "many environments": {"env_id": "CartPole-v1", "num_envs": 2**20, "num_steps": 16},
    "bits": {"env_id": "Breakout-MinAtar", "num_envs": 65536, "num_steps": 64},
    "chunks": {"env_id": "Breakout-MinAtar", "num_envs": 262144, "num_steps": 32, "num_rollout_chunks": 8},
    "one minibatch": {"env_id": "Breakout-MinAtar", "num_envs": 8192, "num_steps": 16, "num_minibatches": 1},
    "wide": {"env_id": "CartPole-v1", "num_envs": 262144, "num_steps": 16, "hidden_sizes": (256, 256)},
    "pixels": {
        **{"env_id": f"{__file__}:Frames", "network": "nature", "hidden_sizes": (512,), "shared_encoder": True},
        **{"num_envs": 128, "num_steps": 128, "minibatch_size": 512},
    },
}
MEMORY = {"env_id": "CartPole-v1", "num_envs": 32768, "num_steps": 64, "cell": "lstm", "sequence_length": 4}


class Frames:
    """The sizes of Atari."""

    obs_shape, action_space = (84, 84, 4), Discrete((6,))

    def reset(self, key):
        return jnp.int32(0), jnp.zeros(self.obs_shape, jnp.uint8)

    def step(self, key, time, action):
        obs = jnp.full(self.obs_shape, action[0], jnp.uint8)
        return time + 1, obs, jnp.float32(0), time > 99, jnp.bool_(False), jnp.bool_(False)


TREES = {  # /proc/self/cgroup, the limits in /sys/fs/cgroup, the smallest of those that count
    "none": ("", {}, math.inf),
    "version 2": (
        "0::/system/job/step",
        {"system/job/step/memory.max": "max", "system/job/memory.max": "300", "system/memory.max": "400",
         "system/job/other/memory.max": "100"},
        300,
    ),
    "version 2, no limit": ("0::/job", {"job/memory.max": "max"}, math.inf),
    "version 2, a container that sees its own group as the top": ("0::/", {"memory.max": "700"}, 700),
    "version 2, a container with the name of the group outside": ("0::/docker/abc", {"memory.max": "700"}, 700),
    "version 2, a group above the namespace": ("0::/../../job", {"memory.max": "700"}, 700),
    "version 1": (
        "5:devices:/job\n4:cpuset,memory:/slurm/job:1/step\n1:name=systemd:/",
        {"memory/slurm/job:1/step/memory.limit_in_bytes": "9223372036854771712",
         "memory/slurm/job:1/memory.limit_in_bytes": "500", "memory/memory.limit_in_bytes": "9223372036854771712",
         "devices/job/memory.limit_in_bytes": "1"},
        500,
    ),
    "both": (
        "4:memory:/a\n0::/b",
        {"memory/a/memory.limit_in_bytes": "500", "unified/b/memory.max": "100", "b/memory.max": "400"},
        400,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", TREES)
def test_the_limit_of_a_group_is_the_smallest_above_it(tmp_path, kind):
    groups, limits, smallest = TREES[kind]
    files = {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{name}": limit for name, limit in limits.items()}}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory.cgroup_limit(tmp_path) == smallest


def test_the_limit_of_the_group_is_that_of_cpu_devices(monkeypatch, tmp_path):
    assert memory.cgroup_limit(tmp_path) == math.inf  # not Linux
    monkeypatch.setattr(memory, "cgroup_limit", lambda: 12345)
    assert memory.device_bytes(jax.devices()[:1]) == 12345


@pytest.mark.parametrize(
    "script, flags", [*((ppo, flags) for flags in SIZES.values()), (ppo_rnn, MEMORY)], ids=[*SIZES, "ppo_rnn"]
)
def test_the_estimate_is_within_a_quarter_of_what_xla_needs(monkeypatch, script, flags):
    estimates, estimate = [], memory.estimate
    monkeypatch.setattr(memory, "estimate", lambda *a: estimates.append(estimate(*a)) or estimates[-1])

    class Checked(Exception):
        pass

    def stop(*_):
        raise Checked

    monkeypatch.setattr(script.arguments, "describe", stop)
    args = script.Args(**flags, num_devices=1, total_timesteps=2**31)
    with pytest.raises(Checked):
        script.train(args)
    args, _, _, init, step, _, keys = script.build(args)
    state = jax.eval_shape(init, keys)
    sizes = step.lower(state).compile().memory_analysis()
    needed = sizes.temp_size_in_bytes + sizes.argument_size_in_bytes
    assert sum(estimates[0].values()) == pytest.approx(needed, rel=0.25)


@pytest.mark.parametrize("blocks, chunks", [(1, 3), (6, 4)])
def test_the_chunks_that_would_fit_have_a_part_of_every_block(monkeypatch, blocks, chunks):
    """A third would fit. 6,144 environments are three times 2,048, but three parts of 1,024 are no whole numbers."""
    monkeypatch.setattr(memory, "device_bytes", lambda devices: 10)
    args = SimpleNamespace(num_devices=1, num_envs=6144, num_steps=1, num_minibatches=24, num_rollout_chunks=1)
    args = SimpleNamespace(**vars(args), num_blocks=blocks)
    with pytest.raises(UsageError, match=f"--num-rollout-chunks {chunks} would fit"):
        memory.fit(args, SimpleNamespace(num_envs=6144), lambda chunks: {"rollout": 30 // chunks}, "")
    args.adaptive_lr_kl = 0.016  # not in chunks
    with pytest.raises(UsageError, match="available; fewer of either"):
        memory.fit(args, SimpleNamespace(num_envs=6144), lambda chunks: {"rollout": 30 // chunks}, "")
