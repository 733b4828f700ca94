"""The benchmarks run. What they measure is for a quiet machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import ppo
from benchmarks import environments, report

ROOT = Path(__file__).parents[1]


def test_a_worker_measures_an_update():
    sizes = {"num_envs": 16, "num_minibatches": 2, "num_steps": 8, "update_epochs": 3, "total_timesteps": 10**6}
    spec = json.dumps({"system": "ours", "script": "pqn", "args": sizes, "updates": 3, "seconds": 0})
    done = subprocess.run([sys.executable, ROOT / "benchmarks/measure.py", spec], capture_output=True, text=True)
    measured = json.loads(done.stdout.splitlines()[-1])
    assert measured["updates"] == 3 and measured["steps_per_second"] > 0 and measured["peak_bytes"] > 0
    assert measured["gradient_steps"] == 6 and measured["parameters"] > 0


@pytest.mark.slow
def test_the_parts_of_an_environment_are_timed(capsys):
    environments.main(ppo.Args(env_id="CartPole-v1", num_envs=8, num_steps=4, minibatch_size=16, hidden_sizes=(8,)))
    lines = capsys.readouterr().out.splitlines()
    speeds = [line.split(" steps")[0].split()[-1] for line in lines]
    assert len(lines) == 3 and all(int(speed.replace(",", "")) > 0 for speed in speeds)


def test_measurements_of_another_machine_are_kept_from_being_mixed_with_ours(tmp_path):
    out = tmp_path / "new" / "speed"
    report.Results(out, again=False).add({"num_envs": 8}, {"steps_per_second": 5})
    mine = report.Results(out, again=False)
    assert mine.get({"num_envs": 8}) == {"steps_per_second": 5} and mine.get({"num_envs": 16}) is None
    written = json.loads(out.with_suffix(".json").read_text())
    for theirs in (written | {"devices": {"cpu": "another"}}, {k: v for k, v in written.items() if k != "devices"}):
        out.with_suffix(".json").write_text(json.dumps(theirs))
        with pytest.raises(SystemExit, match="measured on another machine; name another file, as in --out runs/speed"):
            report.Results(out, again=False)


def test_the_workspace_has_panels_over_steps_and_over_updates():
    pytest.importorskip("wandb_workspaces")
    from benchmarks.wandb_workspace import SECTIONS, workspace

    made = workspace("team", "project")
    panels = [panel for section in made.sections for panel in section.panels]
    keys = {key for keys in SECTIONS.values() for key in keys}
    assert {(panel.x, panel.y[0]) for panel in panels} == {(x, key) for x in ("global_step", "update") for key in keys}
