"""experiments/exploration_rnd.py: its commands, what it reads from lines, where policies go, and its verdicts."""

import numpy as np
import pytest
from conftest import write_run

import ppo
import ppo_rnd
from common.run.arguments import parse
from experiments import exploration_rnd as experiment, grid
from experiments.data import Data
from experiments.verdicts import verdict

SCRIPTS = {"ppo": ppo, "ppo_rnd": ppo_rnd}


def test_the_six_runs_have_equal_steps_and_differ_in_the_script_and_the_environments_alone(tmp_path):
    found = {}
    for (script, size, _), run in experiment.cells(experiment.LAPTOP).items():
        words = grid.command(run, tmp_path)[2:]
        args = found[script, size] = parse(SCRIPTS[script].Args, "", words)
        assert args.num_updates == run.num_updates and args.num_updates * args.batch_size == 2**21
        assert args.num_updates % experiment.QUARTERS == 0 and args.checkpoint_every * 4 == run.num_updates
        assert run.num_updates % args.log_every == 0
    assert len(found) == 6
    sizes = {"num_envs", "num_minibatches", "checkpoint_every", "log_every", "run_name"}
    for script in SCRIPTS:
        first, *others = (vars(found[script, size]) for size in experiment.LAPTOP.sizes)
        assert all({k for k in first if first[k] != other[k]} <= sizes for other in others)
    for size in experiment.LAPTOP.sizes:
        one, other = vars(found["ppo", size]), vars(found["ppo_rnd", size])
        assert {k for k in one if one[k] != other[k]} == {"run_name", "named"}


def line(step, count, solved):
    return {"global_step": step, "charts/num_episodes": count, "charts/solve_rate": solved}


def test_shares_are_weighted_by_episodes():
    """Two seeds; of the second none ends in the third line, and none is solved before the fourth."""
    lines = [line(10, [4, 2], [0.0, 0.0]), line(20, [1, 4], [1.0, 0.0]), line(30, [3, 0], [0.0, None])]
    lines += [{"global_step": 30, "eval/solve_rate": [1.0, 1.0]}, line(40, [1, 8], [0.0, 0.25])]
    np.testing.assert_allclose(experiment.of_episodes(lines, 0, 40), [1 / 9, 2 / 14])
    np.testing.assert_allclose(experiment.of_episodes(lines, 10, 30), [1 / 4, 0])
    assert np.isnan(experiment.of_episodes(lines, 20, 30)[1])


def made_up(folder, preset, means):
    """Runs whose second half ends at means[script, size]; all before it is good, and so are lines of few episodes."""
    p, noise = experiment.PRESETS[preset], np.array([-0.02, -0.01, 0.0, 0.01, 0.02])
    for (script, size, _game), cell in experiment.cells(p).items():
        low, high = p.scale(cell)
        for index, run in enumerate(cell.parts or (cell,)):
            each = noise[index] if cell.parts else noise  # a run of one seed logs numbers
            lines = []
            end = means[script, size]
            for part, count, score in ((0.25, 1000, 1.0), (0.5, 1000, 1.0), (0.75, 1, 1.0), (1.0, 999, end)):
                logged = {experiment.COUNT: 0 * each + count, p.performance: low + (high - low) * (score + each)}
                logged = {key: value.tolist() for key, value in logged.items()} | {"outer/update_norm": 1.0}
                places = {"update": round(part * cell.num_updates), "global_step": round(part * p.total_timesteps)}
                lines.append(places | logged)
            write_run(folder, run, lines)
    return Data(p, folder)


@pytest.mark.parametrize("preset", experiment.PRESETS)
@pytest.mark.parametrize(
    "rnd, expected",
    [
        ((0.1, 0.4, 0.8), "holds"),
        ((0.1, 0.4, 0.2), "does not hold"),
        ((0.4, 0.1, 0.8), "does not hold"),
        ((0.1, 0.4, 0.4), "not enough data"),
    ],
)
def test_figure_16_asks_whether_more_environments_help_rnd(tmp_path, preset, rnd, expected):
    """Of ppo.py, which is drawn beside it, nothing is asked."""
    p = experiment.PRESETS[preset]
    means = {(script, size): value for script in SCRIPTS for size, value in zip(p.sizes, rnd, strict=True)}
    data = made_up(tmp_path, preset, means | {("ppo", p.sizes[0]): 1.0})
    picture, checks = experiment.FIGURES["B16"].show(data, experiment.cells(p))
    assert verdict(checks) == expected, "\n".join(map(str, checks))
    steps = np.diff(rnd)
    for check, step in zip(checks, [*steps] * len(p.games), strict=True):
        assert check.estimate == pytest.approx(0.999 * step, abs=1e-9)
    assert [len(lines) for lines in picture.panels.values()] == [3] * 2 * len(p.games)


def test_a_run_that_is_missing_leaves_figure_16_open(tmp_path):
    _, checks = experiment.FIGURES["B16"].show(Data(experiment.LAPTOP, tmp_path), experiment.cells(experiment.LAPTOP))
    assert verdict(checks) == "not enough data"
