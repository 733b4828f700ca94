"""What an update needs, as XLA reports it, against what the machine has."""

import math

import jax
import pytest

import sapg
from common.run import memory
from common.run.arguments import UsageError


@pytest.mark.parametrize("groups, limits, smallest", [
    ("", {}, math.inf),
    ("0::/job/step", {"job/step": "max", "job": "300", "": "400", "job/other": "100"}, 300),
    ("0::/", {"": "700"}, 700),  # a container that sees its own group as the top
    ("0::/docker/abc", {"": "700"}, 700),  # a container with the name of the group outside
    ("5:devices:/job\n1:name=systemd:/", {}, math.inf),  # version 1, which is left out
])  # fmt: skip
def test_the_limit_of_a_group_is_the_smallest_above_it(tmp_path, groups, limits, smallest):
    """The group in /proc/self/cgroup, the limits in /sys/fs/cgroup, the smallest of those that count."""
    files = {f"sys/fs/cgroup/{name}/memory.max": limit for name, limit in limits.items()}
    files["proc/self/cgroup"] = groups
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory.cgroup_limit(tmp_path) == smallest
    if smallest < math.inf:  # of which something is in use; what files are cached in can be had
        place = next((tmp_path / name).parent for name, text in files.items() if text == str(smallest))
        (place / "memory.current").write_text("250\n")
        (place / "memory.stat").write_text(
            "anon 100\nfile 150\ninactive_file 90\nactive_file 20\nslab_reclaimable 10\n"
        )
        assert memory.cgroup_limit(tmp_path) == smallest - 130


def test_the_limit_of_the_group_is_that_of_cpu_devices(monkeypatch, tmp_path):
    assert memory.cgroup_limit(tmp_path) == math.inf  # not Linux
    monkeypatch.setattr(memory, "cgroup_limit", lambda: 12345)
    assert memory.device_bytes(jax.devices()[:1]) == 12345


@pytest.mark.slow
def test_what_does_not_fit_is_refused_before_there_is_a_run(monkeypatch, tmp_path):
    """The chunks that it names have a part of every block."""
    sizes = dict(num_envs=768, num_steps=4, minibatch_size=None, num_minibatches=48, total_timesteps=3072)
    more = dict(num_devices=1, hidden_sizes=(8,), layer_norm=False, num_eval_episodes=0, runs_dir=str(tmp_path))
    args = sapg.Args(env_id="CartPole-v1", **sizes, **more)
    *_, init, step, _, keys = sapg.build(args)
    state, work = memory.needed(memory.compile_update(init, step, keys)[1])
    assert state > 768 * 4 * 4 and work > 768 * 4 * 10
    monkeypatch.setattr(memory, "device_bytes", lambda devices: state + 0.6 * work)
    said = r"--num-envs 768 \* --num-steps 4: needs .* available .*; --num-rollout-chunks 2 should fit, or take fewer"
    with pytest.raises(UsageError, match=said):
        sapg.train(args)
    assert not list(tmp_path.iterdir())
