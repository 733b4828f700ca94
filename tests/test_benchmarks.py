"""The benchmarks run. What they measure is for a quiet machine."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import compare, report

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_worker_measures_an_update():
    sizes = {"num_envs": 16, "num_minibatches": 2, "num_steps": 8, "update_epochs": 3, "total_timesteps": 10**6}
    sizes |= {"env_id": "CartPole-v1", "hidden_sizes": [8], "plasticity_every": 0}
    spec = json.dumps({"system": "ours", "script": "pqn", "args": sizes, "updates": 3, "seconds": 0})
    done = subprocess.run([sys.executable, ROOT / "benchmarks/measure.py", spec], capture_output=True, text=True)
    measured = json.loads(done.stdout.splitlines()[-1])
    assert measured["updates"] == 3 and measured["steps_per_second"] > 0 and measured["peak_bytes"] > 0
    assert measured["gradient_steps"] == 6 and measured["parameters"] > 0


def test_only_the_wanted_version_of_a_file_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "CACHE", tmp_path)
    file = tmp_path / "ppo.py"
    file.write_text("print('hello')")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert report.download(file.as_uri(), digest).read_text() == "print('hello')"
    with pytest.raises(SystemExit, match=r"ppo.py is not file:"):
        report.download(file.as_uri(), "0" * 64)
    file.unlink()
    assert report.download(file.as_uri(), digest).exists()  # kept
    with pytest.raises(SystemExit, match="without network, put the file at "):
        report.download(file.as_uri(), "0" * 64)


def test_a_comparison_is_of_pairs_and_of_what_worked():
    """Ratios within a repetition; what failed is told once."""
    sizes, points = {"env_id": "a", "num_envs": 8, "num_minibatches": 2, "num_steps": 4}, []
    for number, (ours, theirs) in enumerate([(2.0, 1.0), (9.0, 3.0), (4.0, None)]):
        for system, value in (("ours", ours), ("rejax", theirs)):
            quantities = dict.fromkeys((*compare.QUANTITIES, *compare.WORK), value)
            result = quantities if value else {"problem": "does not fit"}
            points.append({"setting": sizes | {"repetition": number, "system": system}, "result": result})
    (row,) = compare.summarise(points)
    assert row["ratios"]["peak_bytes"] == {"median": 2.5, "min": 2, "max": 3} and row["repetitions"] == 2
    assert row["ours"]["compile_s"] == 4 and row["rejax"]["compile_s"] == 2
    assert row["rejax"]["problem"] == "does not fit"
