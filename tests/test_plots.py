"""The numbers and the picture of a run, from made-up metrics."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import matplotlib.figure
import matplotlib.image
import numpy as np
import pytest
from conftest import ROOT
from test_runs import Args

from common.run import plots


def make_run(folder, name, seeds=3, **changed):
    """A finished run with made-up metrics."""
    path = folder / name
    path.mkdir(parents=True)
    given = dataclasses.asdict(Args(num_seeds=seeds, run_name=name, **changed))
    (path / "args.json").write_text(json.dumps({"args": given, "script": "ppo"}))
    noise = np.random.default_rng(len(name))
    with open(path / "metrics.jsonl", "w") as file:
        for update in range(1, 201):
            level = 100 * (1 - np.exp(-update / (60 * given["learning_rate"] / 0.1)))
            values = [None if update < 3 else x for x in level + noise.normal(0, 6, seeds)]
            line = {"update": update, "global_step": update * 65536, "time": update, "charts/SPS": 10**6}
            line |= {"charts/episodic_return": values, "outer/kl": list(0.01 + 0.002 * noise.random(seeds))}
            file.write(json.dumps({**line, "outer/grad_norm": list(0.5 + 0.1 * noise.random(seeds))}) + "\n")
    return path


def test_runs_are_labelled_by_the_flags_in_which_they_differ(tmp_path):
    paths = [make_run(tmp_path, "a", hidden_sizes=(64, 64)), make_run(tmp_path, "bb", learning_rate=0.05)]
    records = [json.loads((path / "args.json").read_text()) for path in paths]
    assert plots.labels(records, paths) == [
        "hidden_sizes = [64, 64], learning_rate = 0.1", "hidden_sizes = [8, 8], learning_rate = 0.05"
    ]  # fmt: skip
    assert plots.labels([records[0]] * 2, ["x/a", "y/a"]) == ["x/a", "y/a"]


def test_odd_lines_are_left_out(tmp_path):
    path = make_run(tmp_path, "a", seeds=2)
    whole = plots.read_lines(path)
    text = (path / "metrics.jsonl").read_text().splitlines()
    kl = '{"update": 7, "global_step": 3, "outer/kl": '
    odd = ['{"update": 7}', '{"update": "x", "global_step": 3}', '{"update": 7, "global_step": 3, "time": null}']
    odd += ["[1]", "null", '{"update": 3, "glo', "\x00", f'{kl}"x"}}']
    odd += [f"{kl}{'1' * 5000}}}", f"{kl}{'[' * 10**5 + ']' * 10**5}}}"]  # more digits than Python reads, and deeper
    (path / "metrics.jsonl").write_text("\n".join([*text[:50], *odd, *text[50:]]) + "\n")
    assert plots.read_lines(path) == whole
    assert plots.draw([path], tmp_path / "a.png") and plots.summarize(path)["final_kl"]["mean"] > 0


@pytest.mark.slow
def test_plots_draws_what_it_is_asked_for_and_answers_what_it_cannot_in_one_line(tmp_path):
    """The commands are in a process of their own but once in this one."""
    runs = [str(make_run(tmp_path, "a")), str(make_run(tmp_path, "bb", learning_rate=0.05))]
    out, absurd = tmp_path / "out.png", [str(make_run(tmp_path, "absurd"))]
    with open(Path(absurd[0]) / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"update": 201, "global_step": 10**400, "charts/episodic_return": [1.0] * 3}) + "\n")
    command = [sys.executable, "-m", "common.run.plots", *runs, "--keys", "charts/SPS", "outer/kl", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and done.stdout == f"{out}\n", done.stderr
    height, width, _ = matplotlib.image.imread(out).shape
    assert width > 1.5 * height > 600
    for flags, said in (
        ((runs[:1], tmp_path / "no/out.png"), "--out .*/no/out.png: cannot be written .*No such file"),
        ((runs[:1], tmp_path / "out.what"), "--out .*/out.what: cannot be written"),
        ((runs[:1], out, ("outer/kk",)), "--keys outer/kk: none of the runs has it; they have charts/SPS"),
        (([str(tmp_path)],), "not the folder of a run"),
        (([],), "no run given"),
        ((absurd,), f"run {absurd[0]}: holds what no run writes .*too large"),
    ):
        with pytest.raises(plots.UsageError, match=said):
            plots.main(plots.Args(tuple(map(Path, flags[0])), *flags[1:]))


def test_each_run_is_smoothed_by_its_own_length_and_named_below(tmp_path, monkeypatch):
    """Also one that has nothing in the first panel; of one without solve rates the return is drawn."""
    rise, drawn, real = {"long": np.arange(500.0), "short": np.arange(40.0)}, {}, plots._draw_run
    for name, key in (("long", "charts/episodic_return"), ("short", "charts/solve_rate")):
        path = make_run(tmp_path, name, learning_rate=len(name) / 100)
        lines = [{"update": i + 1, "global_step": i, key: x, "outer/kl": x} for i, x in enumerate(rise[name])]
        rare = [{"update": i, "global_step": i, "eval/episodic_return": float(i)} for i in range(0, len(lines), 50)]
        (path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines + rare)))

    def draw(axes, steps, values, colour, name):
        drawn.setdefault((axes.get_subplotspec().num1, name), values[:, 0])
        real(axes, steps, values, colour, name)

    monkeypatch.setattr(plots, "_draw_run", draw)
    legend = matplotlib.figure.Figure.legend
    keep = lambda *given, **flags: drawn.update(legend=legend(*given, **flags))  # noqa: E731
    monkeypatch.setattr(matplotlib.figure.Figure, "legend", keep)
    runs = [tmp_path / name for name in rise]
    keys = plots.default_keys([plots.read_lines(run) for run in runs])
    assert keys[:2] == ["charts/solve_rate", "charts/episodic_return"]
    plots.draw(runs, tmp_path / "x.png", ("charts/solve_rate", "outer/kl", "eval/episodic_return"))
    long, short = (f"learning_rate = {len(name) / 100}" for name in rise)
    assert sorted(text.get_text() for text in drawn["legend"].get_texts()) == sorted([long, short])
    panels = drawn["legend"].figure.axes
    assert ["running means" in axes.get_ylabel() for axes in panels] == [False, True, False]
    np.testing.assert_array_equal(drawn[1, short], rise["short"])
    assert (drawn[1, long][250], drawn[1, long][0]) == (249.5, 2)  # over 10 lines, at the start over 5
    np.testing.assert_array_equal(drawn[2, long], np.arange(0, 500, 50))


def test_summary_numbers(tmp_path):
    values = np.array([[1.0, 2.0, 4.0], [np.nan, 5.0, np.nan]])
    mean, width = plots.mean_and_ci(values)
    np.testing.assert_allclose(mean, [7 / 3, 5])
    # t(0.975, 2 degrees) = 4.3027; standard deviation 1.5275
    np.testing.assert_allclose(width, [4.3027 * 1.5275 / 3**0.5, np.nan], rtol=1e-4)
    summary = plots.summarize(make_run(tmp_path, "a"))
    assert 85 < summary["final_return"]["mean"] < 105 and len(summary["final_return"]["seeds"]) == 3
    assert "1.5 ± 6.35 (95 % CI, 2 seeds)" in plots.table({"x": plots._interval(np.array([1.0, 2.0, np.nan]))})
    assert summary["final_return"]["ci95"] > 0 and summary["steps_per_second"] == 10**6
    np.testing.assert_allclose(plots.running_mean(np.array([[1.0], [np.nan], [3.0], [5.0]]), 3)[:, 0], [1, 2, 4, 4])
    np.testing.assert_array_equal(plots.running_mean(np.array([[1.0], [np.nan], [3.0]]), 1)[:, 0], [1, np.nan, 3])


def test_final_numbers_are_those_of_the_last_tenth(tmp_path):
    """The ratio is known of the second line alone, the return of every other one."""
    rows = [{"outer/kl": 0.0, "outer/ddr": 5.0 if i == 1 else None} for i in range(40)]
    rows = [row | {"charts/episodic_return": float(i) if i % 2 else None} for i, row in enumerate(rows)]
    text = [json.dumps({"update": i + 1, "global_step": 10 * (i + 1), **row}) for i, row in enumerate(rows)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(text))
    summary = plots.summarize(tmp_path)
    assert summary["final_kl"] == {"mean": 0.0} and "final_ddr" not in summary
    assert summary["final_return"] == {"mean": 38.0}
    for row, ratio in zip(rows[-4:], (None, 100.0, 1e12, 300.0), strict=True):  # where one hardly moved the policy
        row["outer/ddr"] = ratio
    text = [json.dumps({"update": i + 1, "global_step": 10 * (i + 1), **row}) for i, row in enumerate(rows)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(text))
    assert plots.summarize(tmp_path)["final_ddr"]["mean"] == pytest.approx(3 / (1 / 100 + 1 / 300))
