"""The optional suites step as they do by themselves.

Each test is skipped where its suite is not installed (requirements-<suite>.txt).
"""

import functools
import importlib
import json
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ROOT, refusal, same

import ppo
from common import envs
from common.run import arguments

pytestmark = pytest.mark.optional
# A small environment of each suite, with a time limit of 6 steps.
SHORT = {
    "xminigrid": ("xminigrid/MiniGrid-DoorKey-8x8", '{"max_steps": 6}'),
    "craftax": ("craftax/Craftax-Classic-Symbolic-v1", '{"max_timesteps": 6, "map_size": [24, 24]}'),
    "brax": ("brax/inverted_pendulum", '{"episode_length": 6}'),
    "playground": ("playground/CartpoleBalance", '{"episode_length": 6}'),
}
LIMIT = 6


def needs(suite):
    """The suite's package; without it the test is skipped."""
    return pytest.importorskip(envs.OPTIONAL[suite], reason=f"pip install -r requirements-{suite}.txt")


@functools.cache
def short(suite, num_envs=4, **changed):
    """The small environment of an installed suite."""
    needs(suite)
    env_id, kwargs = SHORT[suite]
    return envs.make(env_id, num_envs, env_kwargs=json.dumps(json.loads(kwargs) | changed))


def keys(number, seed=0):
    return jax.random.split(jax.random.key(seed), number)


def error_of(env_id, **kw):
    return refusal(envs.make, env_id, 1, **kw)


def beside(suite, env):
    """-> a function of keys and an action for each, which is repeated: the first observations of the suite and of the
    bare `env`, and the steps of both, each from the same state, of which XLA then compiles most only once."""

    def both(key, action):
        state, first = suite.reset(key)

        def step(state, _):
            after, *out = suite.step(key, state, action)
            return after, (out, env.step(state.inner, action))

        return first, env.reset(key).obs, *jax.lax.scan(step, state, length=2 * LIMIT)[1]

    return lambda *given: jax.device_get(jax.jit(jax.vmap(both))(*given))


def test_xminigrid_steps_as_by_itself():
    """In 256 episodes of random play: states, what the planes show, rewards, and ends of both kinds."""
    xminigrid = needs("xminigrid")
    limit, number = 60, 256
    env, params = xminigrid.make("MiniGrid-DoorKey-5x5", max_steps=limit)
    suite = envs.make("xminigrid/MiniGrid-DoorKey-5x5", 1, env_kwargs=f'{{"max_steps": {limit}}}').suite
    actions = jax.random.randint(jax.random.key(1), (limit, number, 1), 0, 6)

    def theirs(start, actions):
        first = jax.vmap(lambda key: env.reset(params, key))(start)
        step = jax.vmap(lambda now, action: env.step(params, now, action[0]))
        return first.observation, jax.lax.scan(lambda now, action: (step(now, action),) * 2, first, actions)[1]

    def ours(start, actions):
        state, first = jax.vmap(suite.reset)(start)

        def step(state, action):
            state, *out = jax.vmap(suite.step)(start, state, action)
            return state, (state, *out)

        return first, jax.lax.scan(step, state, actions)[1]

    first, after = jax.device_get(jax.jit(theirs)(keys(number), actions))
    seen, (state, obs, reward, terminated, truncated, success) = jax.device_get(jax.jit(ours)(keys(number), actions))
    same(state, after.state)
    for planes, numbers in ((seen, first), (obs, after.observation)):
        assert planes.dtype == bool and (planes[..., :13].sum(-1) == 1).all() and (planes[..., 13:].sum(-1) == 1).all()
        np.testing.assert_array_equal(planes[..., :13].argmax(-1), numbers[..., 0])
        np.testing.assert_array_equal(planes[..., 13:].argmax(-1), numbers[..., 1])
    np.testing.assert_array_equal(reward, after.reward)
    reached, time = after.reward > 0, np.arange(1, limit + 1)[:, None]
    np.testing.assert_array_equal(terminated, reached)
    np.testing.assert_array_equal(success, reached)
    np.testing.assert_array_equal(truncated, (time == limit) & ~reached)
    assert reached.any() and truncated.any()


def test_craftax_steps_as_by_itself():
    """With the same keys: states, observations, rewards; it ends where Craftax says so, by a time-out at the limit."""
    needs("craftax")
    from craftax.craftax_classic.envs.craftax_state import StaticEnvParams
    from craftax.craftax_classic.envs.craftax_symbolic_env import CraftaxClassicSymbolicEnvNoAutoReset as Theirs

    limit, number = 12, 16
    suite = short("craftax", max_timesteps=limit).suite
    env = Theirs(StaticEnvParams(map_size=(24, 24)))
    params = env.default_params.replace(max_timesteps=limit)
    reset = jax.jit(jax.vmap(lambda key: (suite.reset(key), env.reset_env(key, params))))
    step = jax.jit(jax.vmap(lambda k, s, a: (suite.step(k, s, a), env.step_env(k, s, a[0], params))))
    ((state, obs), (first, theirs)) = reset(keys(number))
    np.testing.assert_array_equal(obs, first)
    # Half of the players are about to die, two of them in the last step.
    health = jnp.where(jnp.arange(number) < 8, 9, -90)
    start = jnp.where(jnp.arange(number) % 8 < 2, limit - 1, 0)
    same(state, theirs)
    state = state.replace(player_health=health, timestep=start)
    ended = np.zeros((2, number), int)
    for time in range(1, limit + 1):
        action = jax.random.randint(jax.random.key(time), (number, 1), 0, 17)
        out, their = step(keys(number, time), state, action)
        (state, obs, reward, terminated, truncated, success), (seen, theirs, paid, done, _) = out, their
        same(state, theirs)
        np.testing.assert_array_equal(obs, seen)
        np.testing.assert_array_equal(reward, paid)
        np.testing.assert_array_equal(terminated | truncated, done)
        np.testing.assert_array_equal(terminated, np.asarray(theirs.player_health) <= 0)
        np.testing.assert_array_equal(truncated, np.asarray(theirs.timestep) >= limit)
        assert not success.any()
        ended += np.stack([terminated & ~truncated, truncated & ~terminated])
    assert (ended[0, 10:] > 0).all() and (ended[1, :8] > 0).all() and obs.shape[1:] == (1345,)


def test_brax_steps_as_by_itself():
    """Without any wrapper, with the steps counted here: what falls is terminated, what stands at the end truncated."""
    needs("brax")
    from brax.envs.inverted_pendulum import InvertedPendulum

    limit, number = 2 * LIMIT, 8
    suite = short("brax", episode_length=limit, backend="spring").suite
    env = InvertedPendulum(backend="spring")
    # Half of the poles are pushed over, one of them so gently that it falls late.
    push = jnp.array([0, 0, 0, 0, 1, 1, 0.5, 0.3])[:, None]
    seen, first, (obs, reward, terminated, truncated, success), after = beside(suite, env)(keys(number), push)
    np.testing.assert_allclose(seen, first, rtol=1e-6)
    np.testing.assert_allclose(obs, after.obs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(reward, after.reward, rtol=1e-4)
    fallen = after.done > 0
    np.testing.assert_array_equal(terminated, fallen)
    np.testing.assert_array_equal(truncated, np.broadcast_to(np.arange(1, limit + 1) >= limit, fallen.shape))
    assert not success.any() and fallen[4:].any(1).all() and truncated[:4, -1].all()


def test_brax_backends_are_chosen():
    needs("brax")
    pendulum, limb = short("brax"), envs.make("brax/swimmer", 1)
    assert (pendulum.suite.env.backend, limb.suite.env.backend) == ("spring", "generalized")
    assert short("brax", backend="positional").suite.env.backend == "positional"
    assert pendulum.action_space.high.tolist() == [1] and limb.action_space.low.tolist() == [-1, -1]
    line = error_of("brax/ant", env_kwargs='{"backend": "bullet"}')
    assert "brax/ant raises ValueError: backend should be in" in line and "'spring'" in line


def test_an_action_is_repeated_and_its_rewards_are_added():
    """As tasks of playground ask for. A step of brax's "fast" pays the time so far."""
    needs("brax")
    from brax import envs as brax_envs

    from common.suites.brax import Brax

    once, thrice = (Brax(brax_envs.get_environment("fast"), "fast", repeat) for repeat in (1, 3))
    key, action = jax.random.key(0), jnp.zeros(thrice.action_space.low.shape)
    state, (other, _) = thrice.reset(key)[0], once.reset(key)
    for _ in range(3):
        rewards = []
        for _ in range(3):
            other, obs, reward, *_ = once.step(key, other, action)
            rewards.append(float(reward))
        state, seen, total, terminated, _, _ = thrice.step(key, state, action)
        np.testing.assert_allclose(total, sum(rewards), rtol=1e-6)
        np.testing.assert_array_equal(seen, obs)
        assert not terminated


def test_playground_steps_as_by_itself():
    """With the time limit counted here; nothing else ends."""
    needs("playground")
    from mujoco_playground import registry

    number = 4
    suite = short("playground").suite
    env = registry.load("CartpoleBalance", config_overrides={"impl": "jax"})
    push = jnp.linspace(-1, 1, number)[:, None]
    *_, (obs, reward, terminated, truncated, _), after = beside(suite, env)(keys(number), push)
    np.testing.assert_allclose(obs, after.obs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(reward, after.reward, rtol=1e-4)
    assert not terminated.any() and not after.done.any() and len(np.unique(reward[:, -1])) == number
    np.testing.assert_array_equal(truncated[0], np.arange(1, 2 * LIMIT + 1) >= LIMIT)


def test_playground_that_cannot_download_its_models_is_one_line(monkeypatch):
    needs("playground")
    from mujoco_playground import registry

    def load(*args, **kw):
        raise subprocess.CalledProcessError(128, ["git", "clone"])

    monkeypatch.setattr(registry, "load", load)
    for kwargs in (None, '{"ctrl_dt": 0.05}'):
        line = error_of("playground/LeapCubeReorient", env_kwargs=kwargs)
        assert line.startswith("--env-id playground/LeapCubeReorient: its models could not be downloaded from https://")


def test_pictures():
    """Of a state in the form in which an evaluation keeps it."""
    env = short("xminigrid", 2)
    state, _ = jax.jit(env.reset)(jax.random.key(0))
    one, other = (jax.device_get(jax.tree.map(lambda x, i=i: x[i], state.inner)) for i in range(2))
    pictures = env.suite.frames([one, other, one])
    assert env.suite.can_draw and pictures[0].dtype == np.uint8 and pictures[0].ndim == 3
    assert pictures[0].shape[-1] == 3 and len(np.unique(pictures[0])) > 3
    assert (pictures[0] == pictures[2]).all() and (pictures[0] != pictures[1]).any()


@pytest.mark.parametrize("suite", SHORT)
def test_an_unknown_id_is_answered_with_near_ones_and_a_wrong_argument_in_one_line(suite):
    needs(suite)
    env_id, kwargs = SHORT[suite]
    line = error_of(env_id[:-1])
    assert line.startswith(f"--env-id {env_id[:-1]}: no such environment; did you mean ") and env_id in line
    assert all(near.startswith(f"{suite}/") for near in line.partition("did you mean ")[2].rstrip("?").split(", "))
    limit = next(iter(json.loads(kwargs)))
    for name, value in (("limit", 6), (limit, "six")):
        wrong = json.dumps({name: value})
        line = error_of(env_id, env_kwargs=wrong)
        assert line.startswith(f"--env-kwargs {wrong}: ") and " raises " in line and name in line


@pytest.mark.parametrize("suite", envs.OPTIONAL)
def test_a_suite_that_is_not_installed_is_one_line(suite, monkeypatch):
    package, env_id = envs.OPTIONAL[suite], envs.SUITES[suite]
    for module in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    missing = f"{package} is not installed; pip install -r requirements-{suite}.txt"
    assert error_of(env_id) == f"--env-id {env_id}: {missing}"
    assert error_of(f"{suite}/nothing", env_kwargs="{}") == f"--env-id {suite}/nothing: {missing}"
    assert refusal(envs.listed, [suite]) == f"--list-envs {suite}: {missing}"
    assert suite in error_of("foo/Bar") and suite in error_of(f"{suite}s/Bar")
    assert f"{env_id:<37}pip install -r requirements-{suite}.txt\n" in envs.listed([]) + "\n"
    assert (ROOT / f"requirements-{suite}.txt").is_file()


@pytest.mark.parametrize("suite", envs.OPTIONAL)
def test_ids_are_listed(suite):
    needs(suite)
    ids = envs.listed([suite]).splitlines()
    assert envs.SUITES[suite] in ids and len(ids) == len(set(ids)) and all(x.startswith(f"{suite}/") for x in ids)
    assert f"{envs.SUITES[suite]:<37}installed\n" in envs.listed([]) + "\n"


@pytest.mark.slow
def test_no_suite_is_imported_for_another():
    code = "import sys; from common import envs; envs.make('CartPole-v1', 1); envs.listed([])\n"
    others = {"kinetix", *envs.OPTIONAL.values()} - {"gymnasium"}  # which gymnax imports
    code += f"print({others} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


def test_the_commands_of_the_page_are_right():
    """For the suites that are installed: their flags are known, and their environments can be made."""
    page = (ROOT / "docs/environments.md").read_text()
    commands = [line for line in re.findall(r"^python ppo\.py (.+)$", page, re.M) if re.search("|".join(SHORT), line)]
    commands = [line for line in commands if "--list-envs" not in line]
    assert len(commands) >= len(SHORT)
    for command in commands:
        args = arguments.parse(ppo.Args, "", [word.strip("'") for word in re.findall(r"'.+?'|\S+", command)])
        if importlib.util.find_spec(envs.OPTIONAL[args.env_id.partition("/")[0]]):
            envs.make(args.env_id, 1, env_kwargs=args.env_kwargs)
