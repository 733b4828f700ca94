"""Flags: bounds beside their fields, one line for what is wrong, help in groups."""

import importlib
import json
from dataclasses import dataclass, fields
from typing import Literal

import gymnax  # noqa: F401  (before jax.jit is taken away)
import numpy as np
import pytest
from conftest import ended, refusal

import ppo
import ppo_rnn
import pqn
from common import envs
from common.run import arguments, checkpoints
from common.run.arguments import Fraction, LogArgs, NonNegative, Positive, Steps, parse, sections, typed

NAMES = ("ppo", "ppo_ewma", "ppo_rnd", "ppo_rnn", "pqn", "sfl_kinetix", "stochastic_opt")
SCRIPTS = [importlib.import_module(name) for name in NAMES]


@dataclass(frozen=True)
class Forked(LogArgs):
    """What a forker may write."""

    # --- mine ---
    temperature: Positive[float] = 1.0
    """Of the policy."""
    depth: NonNegative[int] | None = None
    """Of the tree."""
    share: Fraction = 0.5
    widths: tuple[Positive[int], ...] = (8, 8)
    """Of the layers."""
    kind: Literal["a", "b"] | None = None
    """Which."""
    budget: Steps = 10**12
    names: tuple[str, ...] = ()


@pytest.mark.parametrize("flags, said", [
    ({"temperature": 0.0}, "--temperature 0.0: must be greater than 0"),
    ({"temperature": np.inf}, "--temperature inf: must be a finite number"),
    ({"temperature": True}, "--temperature True: must be a valid number"),
    ({"depth": -1}, "--depth -1: must be greater than or equal to 0"),
    ({"depth": 2**31}, "--depth 2147483648: must be less than 2147483648"),
    ({"share": 1.1}, "--share 1.1: must be less than or equal to 1"),
    ({"widths": (8, 0)}, "--widths 0: must be greater than 0"),
    ({"widths": ()}, "--widths (): must have at least one value"),
    ({"widths": 8}, "--widths 8: must be several values"),
    ({"kind": "c"}, "--kind c: must be a or b"),
    ({"budget": 0}, "--budget 0: must be greater than 0"),
    ({"run_name": ""}, "--run-name '': is empty (a shell variable that is not set?)"),
    ({"halt_on_nan": 1}, "--halt-on-nan 1: must be a valid boolean"),
])  # fmt: skip
def test_a_flag_is_checked_by_its_annotation(flags, said):
    assert refusal(Forked, **flags) == said


@pytest.mark.parametrize("words, said", [
    ("--temperature 0", "--temperature 0.0: must be"),
    ("--temperatur 1", "unknown: --temperatur, 1; did you mean --temperature"),
    ("--temperature x", "--temperature: could not convert string to float: 'x'"),
    ("--kind c", "--kind"),
    ("nonsense", "unknown: nonsense"),
    ("--halt-on-nan 3", "unknown: 3"),
])  # fmt: skip
def test_what_cannot_be_parsed_is_one_line(words, said, capsys):
    line = refusal(parse, Forked, "", words.split())
    assert said in line and not set("│╭╰─") & set(line)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_every_flag_of_a_script_is_in_a_group_and_explained(script, capsys):
    groups = sections(script.Args)
    found = {name: text for group in groups.values() for name, text in group.items()}
    assert found.keys() == {field.name for field in fields(script.Args)} and "" not in groups
    assert all(text.endswith((".", ")")) or text.endswith("...") for text in found.values()), found
    code, text, _ = ended(capsys, script, "--help")
    assert all(f"--{name.replace('_', '-')}" in text for name in found) and not code and "{None}" not in text


def test_every_number_of_a_training_script_has_a_bound_or_is_free_on_purpose():
    """Tyro alone takes -4 for anything."""
    for script in SCRIPTS:
        for name, value in vars(script.Args()).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                assert f"--{name.replace('_', '-')} -" in refusal(script.Args, **{name: type(value)(-3)})


def test_damaged_arguments_are_named():
    line = refusal(typed, ppo.Args, {"gamma": "x"}, "here")
    assert line.startswith("here: args.json is damaged (") and "--gamma x: must be" in line


def test_a_huge_prime_is_no_reason_to_wait():
    line = refusal(ppo.Args, num_envs=2**31 - 1, total_timesteps=2**60)
    assert "--minibatch-size 2048: does not divide " in line and "; 32 or 2147483647 would" in line


def test_a_base_needs_a_recipe_and_half_a_transition_is_no_minibatch():
    args = ppo.Args(num_envs=2048, base_num_envs=256)
    assert "--base-num-envs 256: needs --scaling RECIPE as well" in refusal(arguments.apply_scaling, args)
    scaled = arguments.apply_scaling(ppo.Args(num_envs=2048, base_num_envs=256, scaling="more-minibatches"))
    assert (scaled.scaling, scaled.num_minibatches) == (None, 64)
    sizes = dict(base_num_envs=4, num_envs=6, num_steps=1, minibatch_size=1, total_timesteps=600)
    quarter = ppo.Args(**sizes, scaling="larger-minibatches")  # of 6 transitions
    assert "minibatches of 1.5 would not divide the 6 transitions" in refusal(arguments.apply_scaling, quarter)


@pytest.mark.parametrize(
    "scaling, size", [("more-minibatches", 48000), ("larger-minibatches", 52800), ("larger-minibatches-sqrt-lr", 52800)]
)
def test_scaling_is_exact(scaling, size):
    """In floats, 48000 * (1650 / 1500) is not 52800. Of both 528,000 is a multiple."""
    sizes = dict(base_num_envs=1500, num_envs=1650, minibatch_size=48000, num_steps=320, total_timesteps=10**8)
    args = arguments.apply_scaling(ppo.Args(**sizes, scaling=scaling))
    assert (args.minibatch_size, args.num_minibatches) == (size, 528000 // size)
    rate = 1.1**0.5 if scaling == "larger-minibatches-sqrt-lr" else 1
    assert args.learning_rate == pytest.approx(rate * ppo.Args().learning_rate)


@pytest.mark.parametrize("script, words, chosen", [
    (ppo, "--minibatch-size 4096", {"minibatch_size": 4096}),
    (ppo, "--num-minibatches 32", {"num_minibatches": 32}),  # the default that follows from --minibatch-size
    (ppo, "--num-envs=1024 --no-norm-adv --gamma 0.99", {"num_envs": 1024, "norm_adv": False, "gamma": 0.99}),
    (pqn, "--total-timesteps 1000000", {"total_timesteps": 1000000}),
    (pqn, "--exploration-timesteps 5", {"exploration_timesteps": 5}),
])  # fmt: skip
def test_what_follows_from_a_choice_is_not_a_choice(script, words, chosen):
    assert arguments.given(parse(script.Args, "", words.split())) == chosen
    default = {field.name: field.default for field in fields(script.Args)}
    without = {name: value for name, value in chosen.items() if value != default[name]}
    assert arguments.given(script.Args(**chosen)) == without


@pytest.mark.parametrize("num_envs, num_steps, size, count", [
    *((64, 32, 256, 8), (512, 32, 2048, 8), (2048, 32, 2048, 32), (300, 32, 1200, 8), (7, 1, 7, 1), (33, 1, 3, 11)),
    *((1000, 32, 2000, 16), (10000, 32, 2000, 160), (1001, 32, 2002, 16), (65535, 32, 2040, 1028)),
])  # fmt: skip
def test_by_default_there_are_eight_minibatches_at_least_if_they_can_be(num_envs, num_steps, size, count):
    args = ppo.Args(num_envs=num_envs, num_steps=num_steps)
    assert (args.minibatch_size, args.num_minibatches) == (size, count)


@pytest.mark.parametrize("num_envs, num_steps, size, count", [
    (64, 32, 256, 8), (4, 32, 32, 4), (3, 5, 5, 3), (12, 128, 128, 12), (8, 4096, 4096, 8), (12, 2049, 2049, 12),
])  # fmt: skip
def test_by_default_minibatches_are_whole_sequences(num_envs, num_steps, size, count):
    args = ppo_rnn.Args(num_envs=num_envs, num_steps=num_steps)
    assert (args.minibatch_size, args.num_minibatches, args.sequence_length) == (size, count, num_steps)


def test_environments_are_listed(capsys):
    """Without a name a line for each suite, with names all of their ids."""
    code, suites, _ = ended(capsys, pqn, "--list-envs")
    rows = [line.split() for line in suites.splitlines()]
    assert code == 0 and [row[:2] for row in rows] == [list(pair) for pair in envs.SUITES.items()]
    assert rows[0][-1] == rows[1][-1] == "installed"
    code, ids, _ = ended(capsys, ppo, "--list-envs", "gymnax", "kinetix")
    assert code == 0 and {"CartPole-v1", "Breakout-MinAtar", "kinetix/locomotion", "kinetix/s"} <= set(ids.split())
    assert ended(capsys, ppo, "--list-envs", "gym") == (
        2, "", f"ppo.py: error: --list-envs gym: no such suite; there are {', '.join(envs.SUITES)}\n"
    )  # fmt: skip


@pytest.mark.parametrize("flags, said", [
    ("--num-minibatches 7", ["--num-minibatches 7", "4 or 8", "65536"]),
    ("--minibatch-size 3000", ["--minibatch-size 3000", "2048 or 4096"]),
    ("--learning-rate nan", ["--learning-rate nan"]),
    ("--frame-stack 1025", ["--frame-stack 1025", "less than or equal to 1024"]),
    ("--total-timesteps 10", ["--total-timesteps 10", "--num-envs 2048", "65536"]),
    ("--env-id Braekout-MinAtar", ["--env-id Braekout-MinAtar", "Breakout-MinAtar"]),
    ("--env-id kinetix/locomotoin", ["--env-id kinetix/locomotoin", "kinetix/locomotion"]),
    ("--num-devices 99", ["--num-devices 99", "there are 8"]),
    ("--num-devices 3", ["--num-devices 3", "--num-envs"]),
    ("--num-processes 2", ["--num-processes 2", "needs --distributed"]),
    ("--distributed --coordinator-address a:1 --num-processes 2 --process-id 2", ["--process-id 2", "less than 2"]),
    ("--distributed --coordinator-address a --num-processes 2 --process-id 1", ["address a: must be HOST:PORT"]),
    ("--network cnn --env-id CartPole-v1", ["--network cnn", "CartPole-v1", "(4,)"]),
    ("--capture-video --env-id Catch-bsuite", ["--capture-video", "Catch-bsuite"]),
    ("--env-id CartPole-v1 --num-envs 8388608 --num-steps 512 --num-devices 1 --total-timesteps 4294967296",
     ["2^31", "--num-rollout-chunks"]),
    ("--num-rollout-chunks 3", ["--num-rollout-chunks 3", "--num-envs 2048", "--num-minibatches 32", "2 or 4"]),
    ("--fresh-critic", ["--fresh-critic: needs --init-from"]),
    ("--resume OTHER", ["--resume", "other", "sac.py", "ppo.py"]),
    ("--init-from OTHER", ["--init-from", "other: learner/params/params/actor/bias is missing there"]),
    ("--init-from NORMS", ["norms: was trained with --norm-value True, --norm-obs True, which cannot change"]),
    ("--run-name other", ["--run-name other", "exists already"]),
])  # fmt: skip
def test_bad_input_is_answered_in_one_line_before_anything_compiles(capsys, tmp_path, nothing_compiles, flags, said):
    norms = {"norm_obs": True, "norm_value": True}
    for name, script, kept in (("other", "sac", {}), ("norms", "sapg", norms)):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        (tmp_path / name / "args.json").write_text(json.dumps({"args": kept, "script": script}))
        flags = flags.replace(name.upper(), str(tmp_path / name))
    checkpoints.save(tmp_path / "other/checkpoints", 1, {"learner": {"another": np.zeros(3, np.float32)}})
    (tmp_path / "norms/checkpoints/1").mkdir()
    code, _, said_of_it = ended(capsys, ppo, "--runs-dir", tmp_path, *flags.split())
    (line,) = said_of_it.splitlines()
    assert code == 2 and line.startswith("ppo.py: error: ")
    assert all(part in line for part in said), line
    assert {folder.name for folder in tmp_path.iterdir()} == {"other", "norms"}
