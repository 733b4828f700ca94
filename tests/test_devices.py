"""One device and eight take the same steps, in every script: the global minibatches hold the same transitions."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ROOT, Noise, Training, differ, leaves_close, on_devices
from jax.sharding import PartitionSpec as P
from test_every_script import OWN_UPDATE, SCRIPTS

from common.actions import Discrete

ROWS, MINIBATCHES = 64, 4
OWN = {"ppo_rnn": {"sequence_length": 1}, "ppo_rnd": {"update_proportion": 1.0}, "sapg": {"num_blocks": 3}}
OWN["sapg"] |= {"num_envs": 48, "num_minibatches": 3, "total_timesteps": 48}  # with the relabelled ones as many rows


def rows_of(script, args):
    """A batch of whatever, [ROWS, ...]. A single step is a sequence, with the state of its cells."""
    rng = np.random.default_rng(0)
    critics = (2,) if script.__name__ == "ppo_rnd" else ()
    number = lambda *shape: rng.normal(size=(ROWS, *shape)).astype(np.float32)  # noqa: E731
    known = dict(
        obs=number(3), next_obs=number(3), action=rng.integers(3, size=(ROWS, 1)), log_prob=0.3 * number() - np.log(3),
        value=number(*critics), target=number(*critics), advantage=1 + 2 * number(), block=np.arange(ROWS) % 3,
        relabelled=rng.random(ROWS) < 0.3, log_center=0.1 * number(),
    )  # fmt: skip
    if script.__name__ == "ppo_rnn":
        state = jax.tree.map(lambda x: number(x.shape[-1]), script.initial_cells(args, ROWS).state)
        known["cells"] = script.Cells(state, rng.random(ROWS) < 0.3)
    return script.Batch(**{name: known[name] for name in script.Batch._fields})


@pytest.mark.parametrize("name", [*OWN_UPDATE, "ppo_ewma"])
def test_one_and_eight_devices_take_the_same_steps(monkeypatch, name):
    """Also where a predictor learns, and from relabelled rows."""
    script, flags = SCRIPTS[name]
    monkeypatch.setattr(script, "random_permutation", lambda key, size: lambda positions: positions)
    sizes = dict(num_envs=ROWS, num_steps=1, num_minibatches=MINIBATCHES, update_epochs=2, total_timesteps=ROWS)
    args = script.Args(**sizes | flags | OWN.get(name, {}), hidden_sizes=(8,), num_devices=1)
    training, batch = Training(script, Noise(Discrete((3,))), args), rows_of(script, args)
    learner = jax.device_get(training.init(training.keys).learner)

    def run(learner, batch):
        annealed = [jnp.float32(0.01)] * (1 if name in ("pqn", "sfl_kinetix") else 2)
        return script.optimise(args, training.network, learner, batch, jax.random.key(0), *annealed)

    # Device d's m-th share is part of the m-th minibatch: on one device these shares have to follow each other.
    shares = np.arange(ROWS).reshape(8, MINIBATCHES, -1).swapaxes(0, 1).reshape(-1)
    one = on_devices(run)(learner, jax.tree.map(lambda x: x[shares], batch))
    eight = on_devices(run, 8, (P(), P("device")))(learner, batch)
    assert differ(one[0].params, learner.params)
    leaves_close(eight[0], one[0], rtol=1e-4, atol=2e-5)
    both = ({k: v for k, v in metrics.items() if "/max_" not in k} for _, metrics in (eight, one))  # those of a share
    leaves_close(*both, rtol=1e-3, atol=1e-5)


def test_importing_the_scripts_starts_no_jax():
    """Or there would be one CPU device, whatever the number of cores."""
    code = f"import {', '.join(SCRIPTS)}; from jax._src import xla_bridge; print(list(xla_bridge._backends))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
