"""--evaluate: what a finished run's own evaluation said, without training."""

import json

import jax
import numpy as np
import pytest
import test_every_script
from conftest import ended, start

import ppo
from common import evaluation
from common.run import arguments, plots, run as runs

SCRIPTS = {name: script for name, (script, _) in test_every_script.SCRIPTS.items()}
FLAGS = (
    "--env-id CartPole-v1 --num-envs 8 --num-steps 16 --minibatch-size 64 --hidden-sizes 8 --total-timesteps 1280 "
    "--num-eval-episodes 6 --eval-every 5 --checkpoint-every 5 --norm-obs --seed 3 --plasticity-every 0"
)


def call(script, folder, *flags):
    """A script's main function with these flags; the folder of the run that it makes."""
    before = set(folder.iterdir())
    start(SCRIPTS[script], *flags, "--runs-dir", folder)
    (made,) = set(folder.iterdir()) - before
    return made


def scores(line):
    return {key: value for key, value in line.items() if key.startswith("eval/")}


@pytest.fixture(scope="module", params=[("ppo", 2), pytest.param(("ppo_rnn", 1), marks=pytest.mark.slow)])
def trained(request, tmp_path_factory):
    script, seeds = request.param
    folder = tmp_path_factory.mktemp("runs")
    return script, call(script, folder, *FLAGS.split(), "--num-seeds", seeds)


@pytest.mark.parametrize("script", SCRIPTS)
def test_what_plays_is_the_learned_policy_on_normalised_observations(monkeypatch, script):
    """Each array of the learner has numbers of its own. Of sapg.py's blocks the last one plays, the leader."""

    class Made(Exception):
        """In place of a player."""

    def player(args, suite, policy, memory=lambda number: None):
        raise Made(policy, memory(64))

    module, rng = SCRIPTS[script], np.random.default_rng(1)
    flags = FLAGS + " --num-blocks 2" * (script == "sapg")
    args, _, network, init, *_, keys = module.build(arguments.parse(module.Args, "", flags.split()))
    learner = jax.tree.map(lambda x: np.float32(rng.normal(size=x.shape)), jax.eval_shape(init, keys).learner)
    mean, std, z = learner.obs_stats.mean, abs(learner.obs_stats.var), np.float32(rng.normal(size=(64, 4)))
    learner = learner._replace(obs_stats=learner.obs_stats._replace(var=std**2))
    monkeypatch.setattr(evaluation, "Player", player)
    with pytest.raises(Made) as made:
        module.train(args)
    policy, *memory = (x for x in made.value.args if x is not None)
    dist = policy(learner, mean + std * z, *memory)
    out = network.apply(learner.params, z, *([np.full(64, 1)] if script == "sapg" else memory))
    expected = np.eye(2)[out.argmax(-1)] if script == "pqn" else jax.nn.softmax(out[0].logits)
    np.testing.assert_allclose((dist[0] if memory else dist).probs(), expected, atol=1e-3)
    assert np.ptp(expected[:, 0]) > 0.1


def test_a_checkpoint_is_evaluated_as_it_was(trained, monkeypatch):
    script, path = trained
    own = {line["update"]: scores(line) for line in plots.read_lines(path) if scores(line)}
    assert own.keys() == {5, 10} and own[5] != own[10]
    monkeypatch.setattr(runs.memory, "compile_update", lambda *_: pytest.fail("compiled an update"))
    source, video = f"{path}@5", ("--capture-video",) * (script == "ppo")
    made = call(script, path.parent, "--evaluate", source, "--num-eval-episodes", 6, *video)
    (line,) = plots.read_lines(made)
    assert (line["update"], line["global_step"], scores(line)) == (5, 128 * 5, own[5])
    assert (made / "videos/final_policy.gif").exists() == bool(video) and not (made / "checkpoints").exists()
    summary = json.loads((made / "summary.json").read_text())
    assert summary["updates"] == 5 and summary["eval/episodic_return"]["mean"] > 0
    record = json.loads((made / "args.json").read_text())["args"]
    assert record["evaluate"] == source and record["env_id"] == "CartPole-v1" and record["num_devices"] == 1


def test_flags_of_the_evaluation_are_those_of_the_command(trained, capsys):
    """Even one at its default. What it does not need is named, and that the script has changed since."""
    script, path = trained
    if script != "ppo":
        return
    default = SCRIPTS[script].Args().seed
    flags = ("--num-eval-episodes", 30, "--eval-deterministic", "--seed", default)
    source = (path / "source.py").read_text()
    (path / "source.py").write_text("# as it was\n")
    made = call(script, path.parent, "--evaluate", path, *flags, "--num-envs", 3, "--num-steps", 5)
    (path / "source.py").write_text(source)
    told = capsys.readouterr().err
    assert f"note: --evaluate {path} makes no use of --num-envs, --num-steps\n" in told
    assert f"warning: {path} was started with another version of ppo.py" in told
    record = json.loads((made / "args.json").read_text())["args"]
    assert record["num_eval_episodes"] == 30 and record["eval_deterministic"] and record["hidden_sizes"] == [8]
    assert record["seed"] == default != 3 and record["num_envs"] == 8  # nothing is trained
    (line,) = plots.read_lines(made)
    assert line["global_step"] == json.loads((made / "summary.json").read_text())["global_step"] == 1280  # the run's


def test_a_run_is_resumed_with_its_own_flags_named_again(trained, capsys):
    """What follows from them with the other defaults of the script does not count."""
    script, path = trained
    sizes = {"--num-envs": 8, "--minibatch-size": 64, "--total-timesteps": 1280}
    code, out, _ = ended(capsys, SCRIPTS[script], "--resume", path, *(word for pair in sizes.items() for word in pair))
    assert not code and "finished already, 10 of 10 updates" in out


@pytest.mark.parametrize("flags, said", [
    ("--evaluate RUN@7", "--evaluate RUN@7: its checkpoints are at updates 5, 10"),
    ("--evaluate RUN --resume RUN", "--resume RUN with --evaluate: a resumed run keeps its own flags"),
    ("--evaluate RUN --num-eval-episodes 0", "--evaluate RUN: nothing to do with --num-eval-episodes 0"),
    ("--evaluate RUN --hidden-sizes 9", "9, 2) here"),
    ("--evaluate RUN --activation tanh", "--evaluate RUN: was trained with --activation relu, which cannot change"),
    ("--evaluate RUN --no-norm-obs", "--evaluate RUN: was trained with --norm-obs True, which cannot change"),
    ("--evaluate RUN --num-devices 2", "--num-devices 2 with --evaluate RUN: an evaluation takes one device"),
    ("--evaluate RUN --run-name a/b", "--run-name 'a/b': must be a plain folder name"),
])  # fmt: skip
def test_what_cannot_be_evaluated_is_one_line(trained, capsys, flags, said):
    script, path = trained
    if script != "ppo":
        return
    words = flags.replace("RUN", str(path)).split()
    code, _, error = ended(capsys, ppo, *words, "--runs-dir", path.parent)
    assert code == 2 and error.count("\n") == 1 and said.replace("RUN", str(path)) in error


@pytest.mark.parametrize("other, said", [
    ("sapg", "made by ppo.py, this is sapg.py: --num-envs 8: must be a multiple"),
    ("ppo_ewma", "learner/proximal/params"), ("ppo_ewma", "made by ppo.py, this is ppo_ewma.py"),
])  # fmt: skip
def test_a_run_of_another_script_is_named(trained, capsys, other, said):
    script, path = trained
    if script == "ppo":
        code, _, error = ended(capsys, SCRIPTS[other], "--evaluate", path, "--runs-dir", path.parent)
        assert code == 2 and error.count("\n") == 1 and said in error
