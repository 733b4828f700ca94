"""Counts of launches, on a program that XLA made for an H100 and whose kernels were counted by hand."""

from pathlib import Path

import pytest

from benchmarks import gpu_compile

# def epoch(w, x):               # x: [3, 128, 64], w: [64, 32]
#     def step(w, row):
#         y = jnp.tanh(row @ w)
#         return w - 0.1 * row.T @ y, None
#     return jax.lax.scan(step, w, x)[0]
# def rollout(w, x, n):
#     return jax.lax.while_loop(lambda c: c[1].sum() < n, lambda c: (c[0] + 1, c[1] * 2), (0, x[0, 0]))[1]
TEXT = (Path(__file__).parent / "tiny_update.hlo").read_text()


@pytest.fixture(scope="module")
def tree():
    return gpu_compile.loops(gpu_compile.Program(TEXT), gpu_compile.Assumed())


def test_kernels_are_counted_by_loop_and_kind(tree):
    assert tree.kernels == {"copy": 2, "elementwise": 1}
    epoch, rollout = tree.parts
    assert (epoch.name, epoch.turns) == ("epoch", 3)
    assert epoch.kernels == {"product": 2, "elementwise": 3}  # row of x, w @, @ y, subtract, counter
    assert (rollout.name, rollout.turns, rollout.kernels.total()) == ("rollout", None, 1)
    # The condition, a sum and a comparison, is looked at before and after the one turn that is counted.
    assert tree.total().launches == 3 + 3 * 5 + 1 + 2 * 2
    assert tree.total().waits == 2


def test_flops_and_bytes_of_a_loop(tree):
    products, rest = 2 * (2 * 128 * 64 * 32), 128 * 64 + 128 * 32 + 64 * 32 + 1  # 0.1 * row, tanh, subtract, counter
    assert tree.parts[0].flops == products + rest
    row, weights, out = 4 * 128 * 64, 4 * 64 * 32, 4 * 128 * 32
    # Of x only one row is read. Each product reads two matrices and writes one.
    touched = 2 * row + 4 + (row + weights + out) + (row + out + weights) + 3 * weights + 2 * 4
    assert tree.parts[0].bytes == touched


def test_a_report_is_per_minibatch_and_per_step_of_the_environment():
    info = {"command": "ppo.py", "target": "an H100", "compile_s": 1.0, "xla_flags": "", "memory_mb": {}}
    found = gpu_compile.report(gpu_compile.Program(TEXT), info, gpu_compile.Assumed())
    assert (found["per_minibatch"], found["per_environment_step"]) == (5, 1 + 2 * 2)
    assert found["launch_bound_ms"] == pytest.approx(23 * 2.5e-3, abs=0.05)


def test_a_branch_counts_as_the_longer_one():
    kernels = gpu_compile.Counter
    branches = [gpu_compile.Loop("branch", 1, kernels(a=n), 0, 0, 0.0, []) for n in (5, 1)]
    choice = gpu_compile.Loop("rollout", 1, kernels(), 0, 0, 0.0, branches, looks=1)
    steps = gpu_compile.Loop("rollout", 32, kernels(a=2), 0, 0, 0.0, [choice])
    assert steps.total()[::4] == (32 * 7, 32)
