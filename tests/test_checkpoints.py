"""Checkpoints: what is saved comes back to the bit, is complete or absent, and is never taken when it is damaged."""

import dataclasses
import os
from collections import namedtuple
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest
from conftest import metrics_of, refusal, same
from flax import struct
from jax.sharding import NamedSharding, PartitionSpec
from test_runs import Args, initial_state, train

from common.run import checkpoints, devices
from common.run.arguments import UsageError
from common.run.checkpoints import checkpoint_updates, find_checkpoint, load_learner, restore_newest, save, take_over


@pytest.fixture
def args(tmp_path):
    return Args(runs_dir=str(tmp_path / "runs"))


@struct.dataclass
class Empty:
    """Without fields."""


def test_all_kinds_of_arrays_come_back_to_where_they_were(tmp_path):
    """And empty parts, as environments have them: MJX has arrays of size 0, xminigrid a dataclass without fields."""
    mesh = jax.make_mesh((4,), ("device",), devices=jax.devices()[:4])
    split, whole = NamedSharding(mesh, PartitionSpec(None, "device")), NamedSharding(mesh, PartitionSpec())
    Bare = namedtuple("Bare", "")
    state = {
        "keys": jax.device_put(jax.random.split(jax.random.key(3), (2, 8)), split),
        "key": jax.device_put(jax.random.key(4, impl="rbg"), whole),
        "env": jax.device_put(jnp.arange(32.0).reshape(2, 8, 2), split),
        "flags": jnp.array([True, False]),
        "half": jnp.array([1.5, -2.5], jnp.bfloat16),
        "parts": [Empty(), (Empty(), jnp.ones(2)), None, (None, None), (), {}, Bare(), jnp.zeros((2, 0), int)],
    }
    save(tmp_path / "checkpoints", 1, state)
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
    back = restore_newest(tmp_path, [1], like, "", partial=False)[0]
    assert jax.tree.structure(back) == jax.tree.structure(state)
    same(state, back)
    assert jax.tree.all(jax.tree.map(lambda x, y: x.sharding == y.sharding and x.dtype == y.dtype, state, back))
    assert jax.random.key_impl(back["key"]) == "rbg"


@pytest.mark.parametrize("damage", [lambda f: f.write_bytes(f.read_bytes()[: f.stat().st_size // 2]), Path.unlink])
def test_damaged_checkpoint_is_named_and_the_one_before_used(args, damage, capsys):
    """However often."""
    straight, state = train(args)
    path, _ = train(dataclasses.replace(args, checkpoint_every=3), stop_after=6)
    for stop_after in (6, None):
        damage(path / "checkpoints/6/0-of-1.npz")
        _, resumed_state = train(Args(resume=str(path)), stop_after)
        assert f"checkpoint {path / 'checkpoints/6'} is damaged" in capsys.readouterr().err
    same(state, resumed_state)
    assert metrics_of(straight) == metrics_of(path)
    assert checkpoint_updates(path / "checkpoints") == [3, 6, 9, 10]
    damage(path / "checkpoints/10/0-of-1.npz")
    line = refusal(restore_newest, path, [10], initial_state(), "--resume x", partial=False)
    assert "--resume x: no intact checkpoint among updates 10" in line


def test_no_flipped_bit_goes_unnoticed(tmp_path):
    """Whatever is read is what was written; most flips make it unreadable."""
    state = {"a": jnp.arange(5.0), "keys": jax.random.split(jax.random.key(0), 3), "n": jnp.int32(7)}
    save(tmp_path / "checkpoints", 1, state)
    (file,) = (tmp_path / "checkpoints/1").iterdir()
    intact, unnoticed = file.read_bytes(), 0
    same(restore_newest(tmp_path, [1], state, "", partial=False)[0], state)
    for at in range(0, len(intact), 3):
        flipped = bytearray(intact)
        flipped[at] ^= 1 << (at % 8)
        file.write_bytes(flipped)
        try:
            same(restore_newest(tmp_path, [1], state, "", partial=False)[0], state)
            unnoticed += 1  # it was of no consequence, such as in the date of a file
        except UsageError as error:
            assert "no intact checkpoint" in str(error)
    assert unnoticed < 0.5 * len(range(0, len(intact), 3))


def test_a_checkpoint_is_complete_or_absent(tmp_path, monkeypatch):
    """A process may be killed at any time. Of a full disk: test_runs.py."""
    folder, state = tmp_path / "checkpoints", {"x": jnp.zeros(3)}
    save(folder, 1, state)

    def killed(*_):
        raise KeyboardInterrupt

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(os, name, killed)
            save(folder, 2, state)
        assert checkpoint_updates(folder) == [1] and (folder / "part").exists()
    for update in (2, 3, 4):
        save(folder, update, state, keep=2)
    assert checkpoint_updates(folder) == [3, 4] and len(list(folder.iterdir())) == 2


def test_memory_that_is_lacking_and_processes_that_have_read_others_are_no_damage(tmp_path, capsys, monkeypatch):
    save(tmp_path / "checkpoints", 2, initial_state())
    again = lambda: restore_newest(tmp_path, [2], initial_state(), "--resume x", partial=False)  # noqa: E731
    for error in (MemoryError(), RuntimeError("RESOURCE_EXHAUSTED: Out of memory")):
        with monkeypatch.context() as patch:
            patch.setattr(checkpoints, "_read", lambda *_, error=error: (_ for _ in ()).throw(error))
            assert f"--resume x: not enough memory to read checkpoint {tmp_path}/checkpoints/2" in refusal(again)
    assert "damaged" not in capsys.readouterr().err
    monkeypatch.setattr(devices, "share", lambda text: [text, text and "1"])
    assert "--resume x: the processes have read checkpoints 2, 1, must be one" in refusal(again)


def test_a_folder_whose_name_ends_like_a_checkpoint_is_found(args):
    path, _ = train(dataclasses.replace(args, checkpoint_every=1), stop_after=2)
    other = path.rename(path.with_name("x@1"))
    assert find_checkpoint(str(other))[::2] == (other, [1, 2]) and find_checkpoint(f"{other}@2")[::2] == (other, [2])


class Learner(NamedTuple):
    params: dict
    proximal: dict | None = None


def test_load_learner_and_its_usage_errors(args):
    path, _ = train(dataclasses.replace(args, learning_rate=0.5), stop_after=1)
    Learning = namedtuple("Learning", "learner")
    learners = [Learner({"kernel": jnp.full((4, 3), float(i))}) for i in range(3)]
    for update in (1, 2):
        save(path / "checkpoints", update, Learning(learners[update]))
    like = learners[0]
    shapes = lambda tree: jax.eval_shape(lambda: tree)  # noqa: E731 (so before anything is compiled)
    for source, learner in ((str(path), learners[2]), (f"{path}@1", learners[1])):
        same(load_learner(Args(init_from=source), shapes(like), ("hidden_sizes",))[0], learner)
        same(load_learner(Args(init_from=source), like)[0], learner)

    def refused(source, match, like=like, **flags):
        with pytest.raises(UsageError, match=match):
            load_learner(Args(init_from=source, **flags), shapes(like), ("hidden_sizes",))

    refused("nowhere", "--init-from nowhere: not the folder of a run")
    refused(f"{path}@5", "--init-from .*@5: its checkpoints are at updates 1, 2")
    refused(str(path), "was trained with --hidden-sizes .*, which cannot change", hidden_sizes=(3,))
    said = r"kernel is float32\(4, 3\) there, float32\(5, 3\) here; flags that differ there: .*--learning-rate 0.5"
    refused(str(path), said, Learner({"kernel": jnp.zeros((5, 3))}))
    refused(str(path), "extra is missing there", Learner({"extra": jnp.zeros(3)}))
    refused(str(path), "kernel is float32.* there, int32.* here", Learner({"kernel": jnp.zeros((4, 3), jnp.int32)}))
    both = Learner(like.params, proximal=Learner({"kernel": jnp.zeros((4, 3))}))
    refused(str(path), "learner/proximal/params/kernel is missing there", both)
    loaded, source = load_learner(Args(init_from=str(path)), shapes(both), may_lack="proximal")
    assert loaded.proximal is None and source == f"{path}@2"
    lacking = take_over(Args(), both, loaded, may_lack="proximal")
    assert (lacking.params["kernel"] == 2).all() and lacking.params["kernel"] is not lacking.proximal.params["kernel"]
    same(lacking.proximal.params, lacking.params)
    (file,) = (path / "checkpoints/1").iterdir()
    file.rename(file.with_name("0-of-2.npz"))  # the part of another process is missing
    refused(f"{path}@1", "no intact checkpoint among updates 1")
