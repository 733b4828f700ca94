"""Figure 10: its runs, and its verdict on runs whose scores are made up."""

from itertools import product

import numpy as np
import pytest
from conftest import read, write_run

import figures
import sapg
from common.run.arguments import parse
from experiments import grid, hands
from experiments.data import Data
from experiments.verdicts import verdict

LAPTOP = hands.PRESETS["laptop"]


def write(folder, scores, seeds=5, noise=0.01):
    """Runs whose score is scores[script, how]; with the fixed size where both sizes are the same."""
    rng, written = np.random.default_rng(0), set()
    for (script, _, how, _), cell in hands.cells(LAPTOP).items():
        if cell.name not in written:
            written.add(cell.name)
            value = LAPTOP.high * (scores[script, how] + noise * rng.standard_normal((32, seeds)))
            steps = np.linspace(0, cell.num_updates, 33)[1:].round().astype(int)
            lines = [
                {"update": int(update), "global_step": int(update), LAPTOP.performance: row.tolist()}
                for update, row in zip(steps, value, strict=True)
            ]
            write_run(folder, cell, lines)
    return Data(LAPTOP, folder)


def scores(*values):
    return dict(zip(product(("ppo", "sapg"), (hands.FIXED, hands.GROWING)), values, strict=True))


@pytest.mark.parametrize(
    "values, seeds, expected",
    [
        ((0.8, 0.2, 0.9, 0.6), 5, "holds"),
        ((0.8, 0.2, 0.9, 0.6), 1, "not enough data"),
        ((0.8, 0.2, 0.6, 0.6), 5, "does not hold"),  # SAPG gains nothing
        ((0.2, 0.2, 0.9, 0.6), 5, "does not hold"),  # PPO gains nothing
        ((0.5, 0.2, 0.9, 0.4), 5, "does not hold"),  # the gap grows
        ((0.2, 0.8, 0.6, 0.9), 5, "does not hold"),
    ],
)
def test_the_verdict_is_that_of_the_scores(tmp_path, values, seeds, expected):
    data = write(tmp_path, scores(*values), seeds)
    picture, checks = hands.FIGURES["10"].show(data, hands.cells(LAPTOP))
    assert verdict(checks) == expected, "\n".join(map(str, checks))
    assert [len(lines) for lines in picture.panels.values()] == [2, 2]


def test_scores_are_of_all_n_at_which_the_sizes_differ(tmp_path):
    data = write(tmp_path, scores(0.8, 0.2, 0.9, 0.6), noise=0.0)
    _, checks = hands.FIGURES["10"].show(data, hands.cells(LAPTOP))
    np.testing.assert_allclose([check.estimate for check in checks], [0.6, 0.3, 0.3, 0.1, 0.4, *[0.6] * 4, *[0.3] * 4])
    assert all(len(check.samples[0]) == 10 for check in checks[:3])


def test_it_is_drawn(tmp_path):
    write(tmp_path / "laptop", scores(0.8, 0.2, 0.9, 0.6))
    figures.draw("10", figures.Args(("10",), results_dir=str(tmp_path)), tmp_path / "laptop")
    assert read(tmp_path / "fig_10.json")["verdict"] == "holds"
    assert (tmp_path / "fig_10.png").stat().st_size > 10_000


def test_runs_of_equal_sizes_are_one_run():
    names = [cell.name for cell in hands.cells(LAPTOP).values()]
    assert (len(names), len(set(names))) == (12, 10)


def test_the_paper_preset_has_singlas_and_the_fixed_size():
    found = {}
    for (script, _, how, seed), cell in hands.cells(hands.PRESETS["paper"]).items():
        if script == "sapg" and not seed:
            words = grid.command(cell, tmp := figures.Path("/nowhere"))[2:]
            assert str(tmp) in " ".join(words)
            found[how] = parse(sapg.Args, "", words)
    assert {how: (args.minibatch_size, args.epoch) for how, args in found.items()} == {
        "fixed": (16384, (14, 16384)), "4 N": (98304, (2, 114688)),
    }  # fmt: skip
    args = found["fixed"]
    assert (args.num_envs, args.num_blocks, args.num_steps, args.update_epochs, args.clip_eps) == (24576, 6, 8, 5, 0.1)
    assert (args.vf_coef, args.max_grad_norm, args.adaptive_lr_kl, args.learning_rate) == (4, 1, 0.016, 5e-4)
