"""Counts of launches, on a program that XLA made for an H100 and whose kernels were counted by hand."""

from pathlib import Path

from benchmarks import gpu_compile

# def epoch(w, x):               # x: [3, 128, 64], w: [64, 32]
#     def step(w, row):
#         y = jnp.tanh(row @ w)
#         return w - 0.1 * row.T @ y, None
#     return jax.lax.scan(step, w, x)[0]
# def rollout(w, x, n):
#     return jax.lax.while_loop(lambda c: c[1].sum() < n, lambda c: (c[0] + 1, c[1] * 2), (0, x[0, 0]))[1]
TEXT = (Path(__file__).parent / "tiny_update.hlo").read_text()


def test_kernels_are_counted_by_loop_and_kind():
    tree = gpu_compile.loops(gpu_compile.Program(TEXT))
    assert tree.kernels == {"copy": 2, "elementwise": 1}
    epoch, rollout = tree.parts
    assert (epoch.name, epoch.turns) == ("epoch", 3)
    assert epoch.kernels == {"product": 2, "elementwise": 3}  # row of x, w @, @ y, subtract, counter
    assert (rollout.name, rollout.turns, rollout.kernels.total()) == ("rollout", None, 1)
    # The condition, a sum and a comparison, is looked at before and after the one turn that is counted.
    found = gpu_compile.report(gpu_compile.Program(TEXT), {"target": "an H100"})
    assert found["per_update"] == 3 + 3 * 5 + 1 + 2 * 2 and found["launch_bound_ms"] == 0.1
    assert (found["per_minibatch"], found["per_environment_step"]) == (5, 1 + 2 * 2)


def test_a_branch_counts_as_the_longer_one():
    kernels = gpu_compile.Counter
    branches = [gpu_compile.Loop("branch", 1, kernels(a=n), []) for n in (5, 1)]
    choice = gpu_compile.Loop("rollout", 1, kernels(), branches)
    assert gpu_compile.Loop("rollout", 32, kernels(a=2), [choice]).launches() == 32 * 7
