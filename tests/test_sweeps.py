"""What is sent to Weights & Biases: sweeps that the scripts accept, and a workspace of keys that they log."""

from pathlib import Path

import pytest
import yaml

import ppo
import ppo_ewma
import ppo_rnd
import ppo_rnn
import pqn
import sapg
import sfl_kinetix
import stochastic_opt
from common.run.arguments import parse

FOLDER = Path(__file__).parents[1] / "benchmarks" / "sweeps"
SCRIPTS = {s.__name__: s for s in (ppo, ppo_ewma, ppo_rnd, ppo_rnn, pqn, sapg, sfl_kinetix, stochastic_opt)}


def test_every_script_has_a_sweep():
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_a_sweep_tries_is_accepted(name):
    """As an agent calls it, --flag=value: the first values, the last, and each value with the first of the others."""
    sweep = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    assert sweep["program"] == f"{name}.py" and sweep["method"] in ("grid", "random", "bayes")
    assert sweep["command"] == ["${env}", "python", "${program}", "--track", "${args}"]
    choices = {flag: each.get("values", [each.get("value")]) for flag, each in sweep["parameters"].items()}
    assert all(value is not None for values in choices.values() for value in values)
    first, last = ({flag: values[end] for flag, values in choices.items()} for end in (0, -1))
    for flags in (first, last):
        args = parse(SCRIPTS[name].Args, "", ["--track", *(f"--{flag}={value}" for flag, value in flags.items())])
        for flag, value in flags.items():
            assert getattr(args, flag.replace("-", "_")) == value
    for flag, value in ((flag, value) for flag, values in choices.items() for value in values):
        SCRIPTS[name].Args(**{flag.replace("-", "_"): value for flag, value in (first | {flag: value}).items()})


def test_the_workspace_has_panels_over_steps_and_over_updates():
    pytest.importorskip("wandb_workspaces")
    from benchmarks.wandb_workspace import SECTIONS, workspace

    made = workspace("team", "project")
    panels = [panel for section in made.sections for panel in section.panels]
    keys = {key for keys in SECTIONS.values() for key in keys}
    assert {(panel.x, panel.y[0]) for panel in panels} == {(x, key) for x in ("global_step", "update") for key in keys}
