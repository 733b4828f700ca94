"""The Kinetix adapter: its level sets, and what ends an episode and why."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import same

from common.suites import kinetix

pytest.importorskip("kinetix")
pytestmark = pytest.mark.slow

BODY = 4  # the first polygon after the four walls: the green one in every locomotion level
GOAL = 0  # the blue circle
NOTHING = jnp.zeros(6, jnp.int32)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def env(cache):
    return kinetix.make("locomotion", num_levels=4)


@pytest.fixture(scope="module")
def reset_to(env):
    return jax.jit(env.reset_to)


@pytest.fixture(scope="module")
def step(env):
    return jax.jit(lambda state: env.step(jax.random.key(0), state, NOTHING))


@pytest.fixture(scope="module")
def start(env, reset_to):
    """The start of a level whose floor is not red, so that doing nothing ends in a time-out."""
    index = int(np.argmin(env.levels.polygon_shape_roles[:, 0]))
    assert env.levels.polygon_shape_roles[index, 0] == 0
    return reset_to(jax.random.key(0), index)[0]


def move(state, where):
    """The state with the green body at `where` [2]."""
    return state.replace(polygon=state.polygon.replace(position=state.polygon.position.at[BODY].set(where)))


def test_level_set_is_fixed(env, tmp_path, monkeypatch):
    same(env.levels, kinetix.make("locomotion", num_levels=4).levels)  # from the cache
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    more = kinetix.make("locomotion", num_levels=5).levels  # sampled anew
    same(env.levels, jax.tree.map(lambda x: x[:4], more))
    assert len(np.unique(more.circle.position[:, GOAL, 0])) == 5


def test_cache(env, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    built = []
    levels = lambda: kinetix._cached("x", env.static_params, 4, lambda: built.append(True) or env.levels)  # noqa: E731
    same(levels(), env.levels)
    same(levels(), env.levels)
    assert len(built) == 1
    (file,) = tmp_path.rglob("*.npz")
    whole = file.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], whole[:5000] + b"????" + whole[5004:]):
        file.write_bytes(damaged)
        same(levels(), env.levels)
    assert len(built) == 4 and file.read_bytes() == whole
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))  # a file where the folder should be: works, uncached
    same(levels(), env.levels)


def test_reset(env, reset_to):
    for index in (0, 3, 6):
        state, obs = reset_to(jax.random.key(index), index)
        same(state, jax.tree.map(lambda x, i=index % 4: x[i], env.levels))
        assert obs.shape == env.obs_shape == (515,) and obs.dtype == env.obs_dtype
    states, _ = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 64))
    goals, all_goals = (np.unique(x.circle.position[:, GOAL, 0]) for x in (states, env.levels))
    np.testing.assert_array_equal(goals, all_goals)


def test_time_out(step, start):
    for timestep, truncated in ((254, False), (255, True), (256, True)):
        _, _, reward, terminated, is_truncated, success = step(start.replace(timestep=jnp.int32(timestep)))
        assert (bool(terminated), bool(is_truncated), bool(success)) == (False, truncated, False)
        assert reward == 0  # no distance to compare with yet


@pytest.mark.parametrize("timestep", [0, 255])
def test_green_on_blue_green_on_red_and_nan_end_the_episode(step, start, timestep):
    """As a success, a failure, or neither, and what is no number stays inside."""
    on_blue = move(start, start.circle.position[GOAL]).replace(timestep=jnp.int32(timestep))
    on_red = on_blue.replace(circle_shape_roles=on_blue.circle_shape_roles.at[GOAL].set(3))
    nowhere, broken = move(start, jnp.nan), on_blue.replace(gravity=on_blue.gravity * jnp.nan)
    for state, paid in ((on_blue, 1), (on_red, -1), (nowhere, 0), (broken, 0)):
        _, obs, reward, terminated, truncated, success = step(state)
        assert (bool(terminated), bool(truncated), bool(success)) == (True, False, paid == 1)
        assert reward == paid and np.isfinite(obs).all()


def test_dense_reward_pays_for_approaching(step, start):
    def distance(state):
        return jnp.linalg.norm(state.polygon.position[BODY] - state.circle.position[GOAL])

    before, _, first, *_ = step(start)
    after, _, second, *_ = step(before)
    assert first == 0 and second != 0
    np.testing.assert_allclose(second, 0.2 * (distance(before) - distance(after)), atol=1e-6)


def test_frames(env, start):
    broken = move(start, jnp.nan)
    pictures = env.frames([start, move(start, start.circle.position[GOAL]), broken])
    assert [(p.shape, p.dtype) for p in pictures] == [((250, 250, 3), np.uint8)] * 3
    assert pictures[0].std() > 0 and (pictures[0] != pictures[1]).any()


def test_random_levels(cache):
    """The evaluation level follows from the index alone, and a step gives back the types that a reset gives."""
    env = kinetix.make("s")
    assert env.num_levels is None and env.obs_shape == (140,)
    reset_to = jax.jit(env.reset_to)
    one, again, other = (reset_to(jax.random.key(key), index)[1] for key, index in ((0, 3), (1, 3), (0, 4)))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
    state, obs = jax.eval_shape(env.reset, jax.random.key(0))
    after = jax.eval_shape(env.step, jax.random.key(0), state, NOTHING)
    for x, y in zip(jax.tree.leaves((state, obs)), jax.tree.leaves(after[:2]), strict=True):
        assert (x.shape, x.dtype, x.weak_type) == (y.shape, y.dtype, y.weak_type)
    assert [(x.shape, x.dtype) for x in after[2:]] == [((), np.float32)] + [((), bool)] * 3


def test_hand_designed_levels(cache):
    names = kinetix.level_names()
    assert {"locomotion", "s", "m", "l", "s/h0_weak_thrust", "h0_weak_thrust"} <= set(names)
    assert len(names) == len(set(names)) == 4 + 74 + 72
    env = kinetix.make("h0_weak_thrust")
    assert (env.name, env.num_levels, env.obs_shape) == ("h0_weak_thrust", 1, (140,))
    assert env.action_space.nvec == (3, 3, 3, 3, 2, 2)
    assert env.levels.thruster.active.sum() == 1
    for unknown in ("h1_car_left", "xl", "h0_weak_thrust.json", ""):  # the first exists in two sizes
        with pytest.raises(KeyError):
            kinetix.make(unknown)


def test_without_kinetix(monkeypatch):
    monkeypatch.setitem(sys.modules, "kinetix", None)
    assert kinetix.level_names() == ["locomotion", "s", "m", "l"]
    with pytest.raises(ModuleNotFoundError) as error:
        kinetix.make("h0_weak_thrust")
    assert error.value.name == "kinetix"


def test_packed_levels_are_the_levels(cache):
    """Bit for bit, in all leaves; what is left out is what no sampled level has otherwise."""
    env = kinetix.make_entities("s")
    levels = jax.jit(jax.vmap(env.sample))(jax.random.split(jax.random.key(3), 256))
    packed = jax.jit(jax.vmap(env.pack))(levels)
    assert packed.shape == (256, env.level_bytes) and packed.dtype == np.uint8
    whole = sum(x.nbytes for x in jax.tree.leaves(levels)) // 256
    assert env.level_bytes < 0.35 * whole
    back = jax.jit(jax.vmap(env.unpack))(packed)
    for (path, old), new in zip(jax.tree_util.tree_flatten_with_path(levels)[0], jax.tree.leaves(back), strict=True):
        np.testing.assert_array_equal(old, new, err_msg=jax.tree_util.keystr(path))
        assert old.dtype == new.dtype
    assert len(np.unique(packed, axis=0)) == 256


def test_evaluation_levels_are_fixed_and_named(cache, monkeypatch):
    sampled = []

    def sample(self, key, num):
        sampled.append(num)
        return jax.tree.map(lambda x: jnp.stack([x] * num), self.empty_level)

    monkeypatch.setattr(kinetix.Kinetix, "sample_filtered", sample)
    env, names = kinetix.make_evaluation("s", 70)
    assert len(names) == env.num_levels == 80 and names[0] == "h0_weak_thrust" and names[10] == "random_0"
    assert env.levels.thruster.active[0].sum() == 1 and not env.levels.thruster.active[10:].any()
    assert sampled == [kinetix.SAMPLE_BATCH]  # traced once, for two batches
    again, _ = kinetix.make_evaluation("s", 70)
    same(env.levels, again.levels)
    assert len(sampled) == 1
