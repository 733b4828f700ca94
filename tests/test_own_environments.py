"""--env-id my_file:MyEnv: environments of both styles are played, and what is wrong with one is one line."""

import json
import re
import sys
from textwrap import dedent

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ROOT, ended, refusal, start

import ppo
from common import envs
from common.run import arguments, checkpoints, plots, run as runs
from common.suites import own

SMALL = "--num-envs 32 --num-steps 8 --minibatch-size 64 --hidden-sizes 8 --num-devices 1 --num-eval-episodes 32 "
SMALL += "--plasticity-every 0 --eval-deterministic --total-timesteps"

# The last of `size` places is the goal, which pays 1; each step costs 0.1. The shortest way takes size - 1 steps.
WALK = """
import jax
import jax.numpy as jnp
from common.actions import Box, Discrete

class Walk:
    action_space = Discrete((2,))

    def reset(self, key):
        return {"place": 0, "time": 0}, jax.nn.one_hot(0, 4)

    def step(self, key, state, action):
        place = jnp.clip(state["place"] + 2 * action[0] - 1, 0, 3)
        state = {"place": place, "time": state["time"] + 1}
        return state, jax.nn.one_hot(place, 4), (place == 3) - 0.1, place == 3, state["time"] == 20, False
"""
NATIVE = """
import jax.numpy as jnp
from flax import struct
from gymnax.environments import spaces

@struct.dataclass
class Params:
    size: int = 4

class Walk:
    default_params = Params()

    def observation_space(self, params):
        return spaces.Discrete(params.size)

    def action_space(self, params):
        return spaces.Discrete(2)

    def reset_env(self, key, params):
        return jnp.int32(0), {"place": 0, "time": 0}

    def step_env(self, key, state, action, params):
        place = jnp.clip(state["place"] + 2 * action - 1, 0, params.size - 1)
        state, done = {"place": place, "time": state["time"] + 1}, place == params.size - 1
        return place, state, done - 0.1, done, {}

    def is_truncated(self, state, params):
        return state["time"] >= 20
"""
INHERITS = """
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces

@struct.dataclass
class State:
    time: int

@struct.dataclass
class Params(environment.EnvParams):
    size: int = 4

class Walk(environment.Environment):
    default_params = Params()

    def observation_space(self, params):
        return spaces.Box(0, 9, (1,))

    def action_space(self, params):
        return spaces.Discrete(2)

    def reset_env(self, key, params):
        return jnp.zeros(1), State(jnp.int32(0))

    def step_env(self, key, state, action, params):
        state = State(state.time + 1)
        return jnp.ones(1), state, 1.0, jnp.bool_(False), {}
"""
SIX = NATIVE.replace("done, {}", 'done, state["time"] >= 20, {}').partition("    def is_truncated")[0]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["ppo.py"])
    return tmp_path


def test_all_styles_play_the_same(here):
    """Two environments are truncated after 20 steps against the wall, two terminated after 3 steps to the goal."""
    played = []
    for i, code in enumerate((WALK, NATIVE, SIX)):
        (here / f"file{i}.py").write_text(code)
        env = envs.make(f"file{i}:Walk", 4)
        actions = jnp.tile(jnp.array([[0], [0], [1], [1]]), (45, 1, 1))
        step = lambda state, inputs, env=env: env.step(inputs[0], state, inputs[1])  # noqa: E731
        keys = jax.random.split(jax.random.key(1), 45)
        state, obs = env.reset(jax.random.key(0))
        played.append((obs, jax.lax.scan(step, state, (keys, actions))[1]))
    for other in played[1:]:
        jax.tree.map(np.testing.assert_array_equal, played[0], other)
    out = played[0][1]
    assert np.flatnonzero(out.truncated[:, 0]).tolist() == [19, 39] and not out.terminated[:, :2].any()
    assert np.flatnonzero(out.terminated[:, 3]).tolist() == list(range(2, 45, 3)) and not out.truncated[:, 2:].any()


LEVELS = WALK + dedent("""
    class Levels(Walk):
        name, num_levels, has_success = "Mine", 3, True
        def reset_to(self, key, level):
            return {"place": level, "time": 0}, jax.nn.one_hot(level, 4)
        def frames(self, states):
            return ["picture"] * len(states)
    class Aim(Walk):
        action_space = Box([-1, -2], [1, 2.5])
        def step(self, key, state, action):
            return state, jax.nn.one_hot(0, 4), -action.sum(), True, False, False
    class Two(Walk):
        action_space = Discrete([2, 3])
    """)


def test_what_is_left_out_is_filled_in_and_what_is_there_is_used(here):
    (here / "my_file.py").write_text(LEVELS)
    suite, key = envs.make("my_file:Walk", 1).suite, jax.random.key(0)
    assert (suite.name, suite.has_success, suite.num_levels, suite.can_draw) == ("Walk", False, None, False)
    assert (suite.obs_shape, suite.obs_dtype) == ((4,), np.dtype("float32"))
    names = {name for name in vars(envs.Suite) if not name.startswith("_")} | set(envs.Suite.__annotations__)
    assert all(hasattr(suite, name) for name in names) and len(names) == 11
    state, obs = suite.reset_to(key, jnp.int32(0))
    out = jax.eval_shape(suite.step, key, state, jnp.zeros(1, int))
    assert not any(x.weak_type for x in jax.tree.leaves((state, obs, out)))
    assert [x.dtype.name for x in out[2:]] == ["float32", "bool", "bool", "bool"]
    env = envs.make("my_file:Levels", 3, sticky_actions=0.5)
    suite = env.suite
    assert (suite.name, suite.has_success, suite.num_levels, suite.can_draw) == ("Mine", True, 3, True)
    np.testing.assert_array_equal(env.reset_to(key, jnp.arange(3))[1], np.eye(4)[:3])
    state = env.reset(key)[0].inner
    assert suite.frames([state, state]) == ["picture"] * 2


def test_continuous_actions_and_several_choices(here):
    (here / "my_file.py").write_text(LEVELS)
    aim = envs.make("my_file:Aim", 2, sticky_actions=1.0)
    assert aim.action_space.low.dtype == np.float32
    out = aim.step(jax.random.key(0), aim.reset(jax.random.key(0))[0], jnp.array([[9.0, 9.0], [-9.0, 0.5]]))[1]
    np.testing.assert_allclose(out.reward, [-3.5, 0.5])
    assert envs.make("my_file:Two", 2).action_space == envs.Discrete((2, 3))


def test_a_file_is_found_in_every_way(here, monkeypatch):
    (here / "some/dir").mkdir(parents=True)
    (here / "beside").mkdir()
    for place in ("some/dir/my_file.py", "beside/other.py", "some/__init__.py", "some/mine.py"):
        (here / place).write_text(WALK)
    (here / "some/mine.py").write_text("from .dir.my_file import Walk as Relative")
    monkeypatch.setattr(sys, "argv", [str(here / "beside/ppo.py")])
    found = ["some/dir/my_file.py:Walk", f"{here}/some/dir/my_file.py:Walk", "some/dir/my_file:Walk", "other:Walk"]
    for env_id in [*found, "some.mine:Relative", "conftest:TwoStates"]:
        env = envs.make(env_id, 1)
        assert env.suite.name in ("Walk", "TwoStates") and own.source(env_id).is_file(), env_id
    assert own.source("CartPole-v1") is None


def test_a_file_is_run_once_and_again_when_it_has_changed(here, capsys):
    """States of the same class, so that one build can go on from another's; and a notebook sees what was edited."""
    for said in ("run", "run again"):
        (here / "my_file.py").write_text(WALK + f'print("{said}")\n')
        envs.make("my_file:Walk", 1)
        envs.make("my_file:Walk", 1)
        assert capsys.readouterr().out == f"{said}\n"


def test_a_file_imports_its_neighbours_and_hides_no_package(here, monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    (here / "dir").mkdir()
    (here / "dir/neighbour.py").write_text(WALK)
    (here / "dir/colorsys.py").write_text("raise RuntimeError")
    (here / "dir/my_file.py").write_text("import colorsys\nfrom neighbour import Walk\n")
    assert envs.make("dir/my_file.py:Walk", 1).suite.name == "Walk"


ARGUMENTS = WALK + NATIVE.replace("class Walk", "class Native") + """
class Sized(Walk):
    def __init__(self, size, goal=1.0):
        self.size, self.goal = size, goal

def make_walk(size=3):
    return Sized(size)

def anything(**kwargs):
    return Sized(**kwargs)

WALK = Walk()
"""  # fmt: skip


def test_arguments_reach_the_class_the_function_the_params_and_gymnax(here):
    (here / "my_file.py").write_text(ARGUMENTS)
    make = lambda env_id, kwargs: envs.make(env_id, 1, env_kwargs=kwargs).suite  # noqa: E731
    inner = make("my_file:Sized", '{"size": 8, "goal": 0.5}')._env
    assert (inner.size, inner.goal) == (8, 0.5)
    assert make("my_file:make_walk", None)._env.size == 3
    assert make("my_file:make_walk", '{"size": 8}')._env.size == 8
    assert make("my_file:anything", '{"size": 8}')._env.size == 8
    assert make("my_file:WALK", "{}").name == "Walk"
    native = make("my_file:Native", '{"size": 6}')
    assert native.params.size == 6 and native.obs_shape == (6,)
    cartpole = make("CartPole-v1", '{"max_steps_in_episode": 20, "gravity": 5.0}')
    assert (cartpole.params.max_steps_in_episode, cartpole.params.gravity) == (20, 5.0)
    assert cartpole.can_draw and cartpole.name == "CartPole-v1"
    catch = make("Catch-bsuite", '{"rows": 8, "columns": 3}')
    assert catch.obs_shape == (8, 3)


@pytest.mark.parametrize("env_id, kwargs, said", [
    ("CartPole-v1", "{size: 8}", ["--env-kwargs {size: 8}: is no JSON", "(Expecting", """'{"size": 8}'"""]),
    ("CartPole-v1", "[8]", ["--env-kwargs [8]: must be a JSON object"]),
    ("Pendulum-v1", '{"max_speed": NaN}', ["--env-kwargs", "not JSON compliant"]),
    ("Pendulum-v1", '{"x": ' + "[" * 9999 + "]" * 9999 + "}", ["--env-kwargs", "is no JSON", "recursion"]),
    ("CartPole-v1", '{"size": 8}', ["takes no size; it takes max_steps_in_episode, gravity"]),
    ("CartPole-v1", '{"gravity": "x"}', ["--env-kwargs", "step_env", "raises TypeError", "cartpole.py:"]),
    ("Catch-bsuite", '{"row": 8}', ["takes no row; it takes rows, columns"]),
    ("kinetix/s", '{"size": 8}', ["--env-kwargs", "kinetix/s takes none"]),
    ("my_file:Walk", '{"size": 8}', ["--env-kwargs", "Walk takes no size; it takes no arguments"]),
    ("my_file:Sized", None, ["--env-id my_file:Sized: Sized(...) with --env-kwargs '{}' raises", "'size'"]),
    ("my_file:Native", '{"sizes": 8}', ["Native takes no sizes; it takes size"]),
    ("my_file:anything", '{"nothing": 8}', ["anything(...) with", "raises TypeError", "my_file.py:"]),
    ("nothing:Walk", None, ["no file nothing.py in", "or beside the script, nor a module nothing; give a path"]),
    ("json.nothing:Walk", None, ["nor a module json.nothing"]),
    ("json:Walk", None, ["no Walk in", "json/__init__.py; it has", "dumps"]),
    ("my_file:", None, ["must be FILE:NAME, such as my_file:MyEnv"]),
    ("my_file.py", None, ["is a file; say which class in it, my_file.py:MyEnv"]),
    ("foo/Bar", None, ["no suite 'foo'; there are such as CartPole-v1, kinetix/locomotion, ", " and my_file:MyEnv"]),
])  # fmt: skip
def test_bad_arguments_and_what_is_not_found_are_one_line(here, env_id, kwargs, said):
    (here / "my_file.py").write_text(ARGUMENTS)
    line = refusal(envs.make, env_id, 1, env_kwargs=kwargs)
    assert line.startswith((f"--env-id {env_id}: ", "--env-kwargs ")), line
    assert all(part in line for part in said), line


@pytest.mark.slow
def test_arguments_and_file_survive_resume_and_evaluate(here, monkeypatch, capsys):
    """Two updates, stopped after one; and a file that has been edited or lost since."""
    (here / "my_file.py").write_text(ARGUMENTS)
    chosen = ["--env-id", "my_file:Native", "--env-kwargs", '{"size": 6}']
    flags = [*chosen, *SMALL.split(), 512, "--run-name", "one", "--checkpoint-every", 1]
    stop = runs.Run.save_if_due

    def stopped(self, update, state):
        stop(self, update, state)
        if update == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runs.Run, "save_if_due", stopped)
        assert ended(capsys, ppo, *flags)[0] == 130
    assert json.loads((here / "runs/one/args.json").read_text())["args"]["env_kwargs"] == '{"size": 6}'
    assert (here / "runs/one/environment.py").read_text() == ARGUMENTS
    (here / "my_file.py").write_text(ARGUMENTS + "# edited\n")
    *_, said = ended(capsys, ppo, "--resume", "runs/one")
    assert "another version of my_file.py; its own is runs/one/environment.py" in said
    assert checkpoints.checkpoint_updates(here / "runs/one/checkpoints")[-1] == 2
    again = ["--eval-deterministic", "--num-eval-episodes", 32]
    start(ppo, "--evaluate", "runs/one", "--run-name", "evaluated", *again)
    saved = json.loads((here / "runs/evaluated/args.json").read_text())["args"]
    assert (saved["env_id"], saved["env_kwargs"]) == ("my_file:Native", '{"size": 6}')
    evaluated, trained = (plots.read_lines(here / "runs" / name)[-1] for name in ("evaluated", "one"))
    assert evaluated == trained | {"time": evaluated["time"]}
    (here / "my_file.py").unlink()
    assert "no file my_file.py" in ended(capsys, ppo, "--evaluate", "runs/one", "--run-name", "lost")[2]


def changed(old, new, code=WALK):
    assert code.count(old) == 1, old
    return code.replace(old, new)


RESET = 'return {"place": 0, "time": 0}, jax.nn.one_hot(0, 4)'
STATE = 'state = {"place": place, "time": state["time"] + 1}'
WITHOUT = {part: re.sub(rf"    def {part}\(.*?\n(?=\n|$)", "", WALK, flags=re.S) for part in ("reset", "step")}
LINE = 1 + WALK[: WALK.index("def step")].count("\n")


@pytest.mark.parametrize("code, said", [
    (WITHOUT["step"], ["Walk has no step(key, state, action) -> state, obs, reward,", "docs/environments.md"]),
    (WITHOUT["reset"], ["Walk has no reset(key) -> state, obs"]),
    (changed("    action_space = Discrete((2,))", ""), ["no action_space = Discrete"]),
    (changed(RESET, RESET + ", {}"), ["reset(key) returns 3 results; must be 2: state, obs"]),
    (changed(RESET, 'return jax.nn.one_hot(0, 4), {"place": 0}'), ["reset's obs must be one array"]),
    (changed("one_hot(place, 4)", "one_hot(place, 5)"), ["step's obs is float32 of shape (5,)", "reset's"]),
    (changed('"place": place,', '"place": place[None],'), ["state['place'] is int32 of shape (1,); must be"]),
    (changed('+ 1}', '+ 1, "x": 0}'), ["step's state is built as {'place': *", "must be {'place': *, 'time': *}"]),
    (changed("(place == 3) - 0.1", "place"), ["step's reward is int32 of shape (); must be float32 of shape ()"]),
    (changed("place == 3, state", "1.0, state"), ["step's terminated is float32 of shape (); must be bool of"]),
    (changed("Discrete((2,))", "Discrete(2)"), ["action_space is Discrete(nvec=2); must be Discrete((n,))"]),
    (changed("Discrete((2,))", "Box(-1, 1)"), ["action_space is Box(low=-1, high=1)", "high) with arrays"]),
    (changed(STATE, f"if action[0] > 0: {STATE}"), ["TracerBool", "jnp.where can", f":{LINE + 2})"]),
    (changed(STATE, "1 / 0"), ["step(key, state, action) ->", "raises ZeroDivision", f"my_file.py:{LINE + 2})"]),
    (WALK + "\n    def reset_to(self, key, level):\n        return {}, jax.nn.one_hot(0, 4)\n",
     ["reset_to's (state, obs) is built as ({}, *); must be"]),
    ("def Walk(): pass", ["Walk has no action_space"]),
    ("x = 1\nimport nothing_of_this_name", ["importing my_file.py raises ModuleNotFoundError", "my_file.py:2)"]),
    ("x = 1\n\nclass Walk\n", ["importing my_file.py raises SyntaxError: expected ':' (my_file.py, line 3)"]),
    ("class Wlak: pass\ndef make(): pass\nx = 1", ["no Walk in", "my_file.py; it has Wlak, make"]),
    # gymnax's style
    (INHERITS, ["gymnax's is_truncated", "max_steps_in_episode, which is 1", """'{"max_steps_in_episode": 500}'"""]),
    (changed("default_params =", "params =", NATIVE), ["Walk has no default_params"]),
    (changed("def step_env", "def step", NATIVE), ["Walk has no step_env(key, state, action, params) ->"]),
    (changed("return jnp.int32(0), ", "return 0, 0, ", NATIVE), ["info raises ValueError: too"]),
    (changed("place, state, done - 0.1", "0, place, 0.0", NATIVE), ["step_env's state is built as *; must be {"]),
    (changed('+ 1}, place', '+ 1.0}, place', NATIVE), ["step_env's state['time'] is float32", "as in reset_env's"]),
    (changed("spaces.Discrete(2)", "2", NATIVE), ["action_space(params) or", "AttributeError: 'int'"]),
])  # fmt: skip
def test_what_is_wrong_with_an_environment_is_one_line(here, code, said):
    (here / "my_file.py").write_text(code)
    line = refusal(envs.make, "my_file:Walk", 1)
    assert line.startswith("--env-id my_file:Walk: ") and all(part in line for part in said), line


def test_without_a_limit_nothing_is_truncated(here):
    (here / "my_file.py").write_text(NATIVE.partition("    def is_truncated")[0])
    env = envs.make("my_file:Walk", 1)
    state, _ = env.reset(jax.random.key(0))
    for _ in range(21):
        state, out = env.step(jax.random.key(1), state, jnp.zeros((1, 1), jnp.int32))
        assert not out.truncated[0]


def test_a_limit_that_is_inherited_from_gymnax_holds_where_it_is_set(here):
    (here / "my_file.py").write_text(INHERITS)
    (here / "set.py").write_text(INHERITS.replace("size: int = 4", "max_steps_in_episode: int = 1"))
    for env_id, kwargs, limit in (("my_file:Walk", '{"max_steps_in_episode": 3}', 3), ("set:Walk", None, 1)):
        env = envs.make(env_id, 1, env_kwargs=kwargs)
        state, _ = env.reset(jax.random.key(0))
        ends = []
        for _ in range(4):
            state, out = env.step(jax.random.key(1), state, jnp.zeros((1, 1), jnp.int32))
            ends.append(bool(out.truncated[0]))
        assert ends == [(time + 1) % limit == 0 for time in range(4)]


def test_the_page_is_true(here):
    """docs/environments.md: its files are whole, its commands work, and it quotes errors as they are."""
    page = (ROOT / "docs/environments.md").read_text()
    (grid,) = re.findall(r"```python\n(.+?)```", page, re.S)
    said = re.findall(r"^ppo.py: error: (.+)$", page, re.M)
    (here / "my_file.py").write_text(grid)
    gone = ", terminated, truncated, success"
    (here / "five.py").write_text(grid.replace("reward" + gone, "reward, terminated, truncated"))
    (here / "time.py").write_text(grid.replace('["time"] + 1', '["time"] + 1.0'))
    tries = [("five:Grid", None), ("time:Grid", None), ("my_file:Gird", None), ("my_file:Grid", '{"sizes": 8}')]
    for (env_id, kwargs), quoted in zip(tries, said, strict=True):
        line = refusal(envs.make, env_id, 1, env_kwargs=kwargs)
        line = line.replace(env_id.partition(":")[0] + ":", "my_file:", 1) if not kwargs else line
        assert line.replace(str(here), "/home/me") == quoted
    commands = re.findall(r"^python ppo.py (.+)$", page, re.M)
    others = "|".join(["--list-envs", *(f"{suite}/" for suite in envs.OPTIONAL)])  # those are in test_suites.py
    commands = [command for command in commands if not re.search(others, command)]
    assert len(commands) == 4
    for command in commands:
        args = arguments.parse(ppo.Args, "", [word.strip("'") for word in re.findall(r"'.+?'|\S+", command)])
        envs.make(args.env_id, 1, env_kwargs=args.env_kwargs)
    frame = envs.make("my_file:Grid", 1).suite.frames([{"goal": np.array([0, 1]), "place": np.array([2, 2])}])[0]
    assert frame.shape == (160, 160, 3) and frame[0, 20].tolist() == [0, 200, 0] and frame[40, 40].min() == 255
