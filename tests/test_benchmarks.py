"""The benchmarks run. What they measure is for a quiet machine."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.mark.slow
def test_a_worker_measures_an_update():
    sizes = {"num_envs": 16, "num_minibatches": 2, "num_steps": 8, "update_epochs": 3, "total_timesteps": 10**6}
    sizes |= {"env_id": "CartPole-v1", "hidden_sizes": [8], "plasticity_every": 0}
    spec = json.dumps({"system": "ours", "script": "pqn", "args": sizes, "updates": 3, "seconds": 0})
    done = subprocess.run([sys.executable, ROOT / "benchmarks/measure.py", spec], capture_output=True, text=True)
    measured = json.loads(done.stdout.splitlines()[-1])
    assert measured["updates"] == 3 and measured["steps_per_second"] > 0 and measured["peak_bytes"] > 0
    assert measured["gradient_steps"] == 6 and measured["parameters"] > 0
