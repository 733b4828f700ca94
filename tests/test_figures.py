"""Figures and their effects, on made-up runs whose answer is known; the command line. tests/test_grid.py has what makes
the runs, tests/test_paper_b.py the figures of paper B and those that need a GPU."""

import functools
import importlib
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from conftest import ended, read, start, write_run
from test_grid import tasks

import figures
from common.run import arguments
from experiments import effects, grid, paper_a, pictures
from experiments.data import Data, each
from experiments.effects import Effect, bootstrap, difference, over_games, verdict
from experiments.grid import Cell
from experiments.paper_a import PRESETS

NAMES = ("ppo", "ppo_ewma", "ppo_rnd", "sapg", "pqn", "sfl_kinetix", "stochastic_opt")
SCRIPTS = {name: importlib.import_module(name) for name in NAMES}
LAPTOP = PRESETS["laptop"]
FIGURES = paper_a.FIGURES
HAVE = [(name, preset) for name, figure in figures.FIGURES.items() for preset in figure.presets]


def test_the_interval_of_a_difference_is_welchs_and_against_a_known_number_students():
    a, b = np.random.default_rng(0).normal([[1.0], [0.2]], [[0.5], [2.0]], (2, 5))
    b = np.append(b, 0.3)  # unequal sizes, too
    theirs = scipy.stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    np.testing.assert_allclose(difference("x", a, b)[1:4], [a.mean() - b.mean(), *theirs], rtol=1e-9)
    theirs = scipy.stats.ttest_1samp(a, 0.3).confidence_interval(0.95)
    np.testing.assert_allclose(difference("x", a, 0.3)[2:4], np.array(theirs) - 0.3, rtol=1e-9)
    assert difference("x", np.ones(5), np.zeros(5))[1:4] == (1, 1, 1)  # equal values


@pytest.mark.parametrize("low, high, at", [(0.51, 0.9, "above"), (0.1, 0.49, "below"), (0.5, 0.6, ""), (0.4, 0.5, "")])
def test_an_interval_decides_only_where_all_of_it_is_on_one_side(low, high, at):
    for side in ("above", "below"):
        expected = {side: "holds", "": "open"}.get(at, "does not hold")
        assert Effect("x", (low + high) / 2, low, high, **{side: 0.5}).outcome == expected


@pytest.mark.parametrize("a, b", [([1, 1.1], [0.0] * 5), ([1.0] * 5, [0.0]), ([1.0, 1.0], 0.0), ([1, np.nan, 1], 0.0)])
def test_two_seeds_or_a_missing_value_leave_it_open(a, b):
    for side in ("above", "below"):
        effect = difference("x", np.array(a), np.array(b), **{side: 0.5})
        assert effect.outcome == "open" and str(effect).endswith(": open")


YES, NO, OPEN = (Effect("x", e, low, high, above=0.0) for e, low, high in ((2, 1, 3), (-2, -3, -1), (0, -1, 1)))
TOLD = Effect("x", -2, -3, -1)
GIVEN, FALSE, UNSURE = (effect._replace(premise=True) for effect in (YES, NO, OPEN))


@pytest.mark.parametrize("found, expected", [
    ([YES, YES, TOLD], "holds"), ([YES, NO], "does not hold"), ([OPEN, NO], "does not hold"), ([YES, OPEN], "open"),
    ([], "open"), ([TOLD], "open"), ([GIVEN, YES], "holds"), ([GIVEN, NO], "does not hold"),
    ([FALSE, YES], "not applicable"), ([FALSE, NO], "not applicable"), ([FALSE], "not applicable"),
    ([UNSURE, YES], "open"), ([UNSURE, NO], "open"),
])  # fmt: skip
def test_a_claim_holds_if_all_its_effects_do_and_its_premise(found, expected):
    assert verdict(found) == verdict(found[::-1]) == expected


def test_the_interval_over_games_is_that_of_seeds_drawn_anew_within_each_game():
    rng = np.random.default_rng(0)
    a, b = rng.normal([[0.6, 0.9, 0.3]], 0.2, (5, 3)), rng.normal([[0.4, 0.2, 0.3]], 0.2, (5, 3))
    found = over_games("x", a, b, above=0.0)
    iqm = lambda x, axis=None: scipy.stats.trim_mean(x, 0.25, axis=axis)  # noqa: E731
    some = np.arange(18.0).reshape(9, 2) ** 2
    for axis in (None, 0, 1):
        np.testing.assert_allclose(effects.iqm(some, axis), iqm(some, axis))
    draw = lambda x: np.stack([rng.choice(game, 5) for game in x.T], axis=1)  # noqa: E731
    drawn = [iqm(draw(a)) - iqm(draw(b)) for _ in range(5000)]
    ours = np.percentile(drawn, [2.5, 97.5])
    assert found.estimate == pytest.approx(iqm(a) - iqm(b)) and found.samples[0] is a
    np.testing.assert_allclose([found.low, found.high], ours, atol=0.03)
    half = bootstrap(lambda x, y: iqm(x) - iqm(y), a, b, level=0.5)
    np.testing.assert_allclose(np.ravel(half[1:]), np.percentile(drawn, [25, 75]), atol=0.03)
    assert over_games("x", a, b, above=0.0)[1:4] == found[1:4]
    assert over_games("x", a[:2], b, above=0.0).outcome == "open"
    assert over_games("x", np.where(a == a[0, 0], np.nan, a), b, above=0.0).outcome == "open"


def args_of(cell):
    """What its script makes of the cell's flags."""
    return SCRIPTS[cell.script].Args(**dict(cell.flags))


@pytest.mark.parametrize(("name", "preset"), HAVE)
def test_the_scripts_accept_the_commands(name, preset):
    cells = grid.with_sources(each(figures.cells_of(name, preset)))
    for cell in cells:
        args = args_of(cell)
        assert args.num_updates == cell.num_updates > 0
        falls = getattr(args, "anneal_ent", False) and args.ent_coef  # in neither paper, but by ppo.py's defaults
        assert not falls or (name.startswith("B") and preset == "laptop")
        if cell.script != "stochastic_opt":
            scaled = arguments.apply_scaling(args)
            assert scaled.num_minibatches * scaled.minibatch_size == args.num_envs * args.num_steps
        if cell.source is not None:
            before, update = args_of(cell.source), cell.source_update
            assert 0 < update < before.num_updates and before.keep_checkpoints == 0
            assert update % before.checkpoint_every == 0 and update + args.num_updates == before.num_updates
    if preset != next(iter(figures.FIGURES[name].presets)):
        return  # to parse a command line takes longer than all of the above
    words = grid.command(cells[-1], Path("/nowhere"))
    args = arguments.parse(SCRIPTS[cells[-1].script].Args, "", words[2:])
    source = cells[-1].source and f"/nowhere/{cells[-1].source.name}@{cells[-1].source_update}"
    said = {"runs_dir": "/nowhere", "run_name": cells[-1].name} | ({"init_from": source} if source else {})
    assert words[1] == f"{cells[-1].script}.py" and args == replace(args_of(cells[-1]), **said)


@pytest.mark.parametrize("preset", ["laptop", "gpu", "paper"])
def test_a_name_stands_for_one_command_and_one_folder(preset):
    commands, names = {}, {}
    for name in (name for name, of in HAVE if of == preset):
        for cell in grid.with_sources(each(figures.cells_of(name, preset))):
            words = cell.script, tuple(sorted(map(repr, cell.flags))), cell.source and cell.source.name
            assert commands.setdefault(cell.name, words) == words and names.setdefault(words, cell.name) == cell.name
            assert Path(cell.name).name == cell.name and len(cell.name) < 200
    assert len(names) > 60


def small_run(folder, values, source=None, updates=None, key="charts/episodic_return", seeds=2, norms=(), name="a"):
    """A run of 20 updates of 2048 steps with a line for each value."""
    cell = Cell("ppo", name, (("num_seeds", seeds),), updates or 20, source, 10 if source else 0)
    lines = [{"update": i, "global_step": 2048 * i, key: v} for i, v in enumerate(values, 1)]
    for line, norm in zip(lines, norms, strict=False):
        line["outer/update_norm"] = norm
    write_run(folder, cell, lines)
    return cell, Data(LAPTOP, folder)


def test_a_score_is_0_for_a_random_policy_and_1_for_the_best(tmp_path):
    """Returns of -1200 and -150. Lines 19 and 20 are the last tenth, 9 and 10 the one before the middle."""
    values = [[-675.0, -1200.0]] * 18 + [[-150.0, -1200.0], [-150.0, -675.0]]
    values[8:10] = [[-1200.0, -150.0], [-675.0, -150.0]]
    cell, data = small_run(tmp_path, values)
    np.testing.assert_array_equal(data.part(cell, "charts/episodic_return", 0.9, 1.0), values[18:])
    np.testing.assert_allclose(data.final(cell), [1.0, 0.25])
    np.testing.assert_allclose(data.gain(cell), [1.0 - 0.25, 0.25 - 1.0])
    cell, data = small_run(tmp_path, [-675.0] * 2, updates=2, seeds=1, name="one seed, one line in the last tenth")
    np.testing.assert_allclose(data.final(cell), [0.5])
    lines = [[-150.0, -150.0]] * 19 + [[-150.0, None]]  # no episode ended, but the seed is well
    cell, data = small_run(tmp_path, lines, norms=[[1.0, 1.0]] * 20, name="a gap")
    np.testing.assert_array_equal(data.final(cell), [1.0, 1.0])


@pytest.mark.parametrize("norm, scores", [([1.0, None], [1.0, 0.0]), ([None, None], [0.0, 0.0])])
def test_a_seed_that_diverged_is_a_random_policy(tmp_path, norm, scores):
    returns = [None if x is None else -150.0 for x in norm]
    cell, data = small_run(tmp_path, [[-150.0] * 2] * 12 + [returns] * 8, norms=[[1.0] * 2] * 12 + [norm] * 8)
    np.testing.assert_array_equal(data.final(cell), scores)
    np.testing.assert_array_equal(data.diverged(cell), [x is None for x in norm])


def sparse_run(folder, evaluations, norms=()):
    """20 lines of training, and one more at each of these updates, with an evaluation of two seeds."""
    cell, lines = Cell("ppo", "sparse", (), 20), []
    for i in range(1, 21):
        norm = dict(norms).get(i, 1.0)
        lines.append({"update": i, "global_step": i, "outer/kl": float(i), "outer/update_norm": [1.0, norm]})
        if i in evaluations:
            lines.append({"update": i, "global_step": i, "eval/x": evaluations[i]})
    write_run(folder, cell, lines)
    return cell, Data(LAPTOP, folder)


def test_between_evaluations_the_last_one_counts(tmp_path):
    """Not a later one, and of what is logged in every line none but those of the part."""
    cell, data = sparse_run(tmp_path, {4: [0.1, 0.2], 8: [0.3, 0.4], 16: [0.5, 0.6]})
    part = lambda *ends: data.part(cell, "eval/x", *ends).tolist()  # noqa: E731
    assert part(0.4, 0.5) == [[0.3, 0.4]] and part(0.9, 1.0) == [[0.5, 0.6]]
    assert part(0.1, 0.4) == [[0.1, 0.2], [0.3, 0.4]] and part(0.7, 0.8) == [[0.5, 0.6]]
    assert data.part(cell, "eval/x", 0.0, 0.1).shape == (0, 1)
    assert data.part(cell, "outer/kl", 0.4, 0.5).tolist() == [[9.0], [10.0]]
    np.testing.assert_allclose(data.middle(cell, "eval/x"), (np.array([0.3, 0.4]) + 1200) / 1050)


def test_a_seed_diverged_is_known_though_the_last_line_is_an_evaluation(tmp_path):
    cell, data = sparse_run(tmp_path, {10: [0.1, 0.2], 20: [0.1, 0.2]}, {i: None for i in range(10, 21)})
    assert data.diverged(cell).tolist() == data.diverged(cell, 0.5).tolist() == [False, True]
    assert data.diverged(cell, 0.45).tolist() == [False, False]
    assert data.final(cell, "eval/x")[1] == 0.0 and data.final(cell, "eval/x")[0] > 1.0


def test_unfinished_and_missing_runs_have_no_score(tmp_path):
    missing = Cell("ppo", "missing", (), 20)
    unfinished, data = small_run(tmp_path, [[-150.0, -150.0]] * 19)
    for cell in (missing, unfinished):
        for value in (data.final(cell), data.gain(cell), data.log_mean(cell, "outer/kl")):
            assert value.shape == (1,) and np.isnan(value).all()
    assert len(data.curve(missing, "outer/kl")[0]) == 0 and len(data.curve(unfinished, "charts/episodic_return")[0])


def test_a_continued_run_is_drawn_after_its_source(tmp_path):
    source = Cell("ppo", "source", (("num_envs", 32), ("num_steps", 64)), 20)
    cell, data = small_run(tmp_path, [None, 2.0, 3.0], source, updates=3)
    assert data.curve(cell, "charts/episodic_return")[0].tolist() == [12 * 2048, 13 * 2048]
    cell, data = small_run(tmp_path, [None, 2.0, 3.0], updates=3, name="b")
    assert data.curve(cell, "charts/episodic_return", over="update")[0].tolist() == [2, 3]


def bowl_lines(flags, t, world):
    """Where claims are true: distances that fall exponentially to a plateau; a switch half-way starts a new fall."""
    plateau = lambda rate: 1.5 * np.sqrt(rate / (1 - rate))  # noqa: E731
    rate, now, begun, from_ = flags["learning_rate"], flags["learning_rate"], 0.0, 5.0
    if "switch_learning_rate" in flags and t > 0.5:
        now, begun, from_ = flags["switch_learning_rate"], 0.5, plateau(rate)
    distance = plateau(now) + (from_ - plateau(now)) * np.exp(-2 * now * 1000 * (t - begun))
    if world == "flat":
        now, distance = 0.1, 1.0
    return -distance, {"outer/update_norm": 4 * now, "theory/negative_distance": -distance}


def level(flags, t):
    """Weak regularisation stands still early, strong is slow: score at time t, and log10 of the DDR."""
    com, eps, envs = flags.get("com"), flags.get("clip_eps", 0.2), flags["num_envs"]
    sweep = flags["total_timesteps"] == LAPTOP.sweep_timesteps and flags["update_epochs"] == 8
    if com is not None and sweep and flags["learning_rate"] == 1e-3 and not flags["anneal_lr"]:
        # Figure 12: each COM has its own best epsilon.
        miss = np.log10(eps / {8: 0.02, 512: 0.2, 4096: 0.6}[com])
        score = 0.2 if eps == 1.5 else 0.9 - 0.25 * abs(miss)
        return score * min(1, t / 0.6), 2 + t - miss
    if (com is None and eps >= 0.6) or (com is not None and com <= 8):
        score = {1: 0.7, 4: 0.5, 8: 0.4, 16: 0.2}[flags["update_epochs"]]
        score += {8: -0.3, 128: 0.3}.get(envs, 0) if "num_minibatches" in flags else 0
        score -= 0.05 * abs(np.log10(flags["learning_rate"] / 1e-3))
        return score * min(1, t / 0.1), 1.0
    if (com is None and eps < 0.1) or (com is not None and com > 4096):
        return {1: 0.1, 4: 0.3, 8: 0.5, 16: 0.7}[flags["update_epochs"]] * t, 4.0
    score = 0.9 - 0.3 * abs(np.log10(flags["learning_rate"] / 1e-3))
    score -= 0.2 if flags.get("scaling", "more-minibatches") != "more-minibatches" else 0
    score -= 0.4 if flags.get("scaling") == "larger-minibatches" and envs == 4 else 0
    return score * min(1, t / 0.6), 2 + t


def model_lines(cell, world, seeds, rng):
    """40 lines of a run. world: true; flat: all runs are alike, but for the speed, which the recipe decides."""
    flags, lines = dict(cell.flags) | ({"anneal_lr": True} if cell.source else {}), []
    per_update = 1 if cell.script == "stochastic_opt" else flags["num_envs"] * flags["num_steps"]
    noisy = lambda x: (x * (1 + 0.01 * rng.standard_normal(seeds))).tolist()  # noqa: E731
    for i in range(1, 41):
        t = i / 40
        update = round(t * cell.num_updates)
        line = {"update": update, "global_step": update * per_update}
        if cell.script == "stochastic_opt":
            value, others = bowl_lines(flags, t, world)
            line |= {"charts/negative_distance": noisy(value)} | {k: [v] * seeds for k, v in others.items()}
        else:
            score, ddr = level(flags, 1.0 if cell.source else t)
            weak = flags.get("com", 512) <= 8
            shrunk = 1.0 if weak else 0.05
            speed = 1000.0
            if world == "flat":
                score, ddr, shrunk = 0.5, 2.0, 1.0
                speed = 100.0 if flags.get("scaling") == "more-minibatches" else 1000.0
            line["charts/episodic_return"] = (-1200 + 1050 * (score + 0.01 * rng.standard_normal(seeds))).tolist()
            line |= {"outer/grad_norm": noisy(shrunk), "outer/kl": noisy(shrunk), "outer/ddr": noisy(10.0**ddr)}
            line["charts/SPS"] = int(speed * (1 + 0.01 * rng.standard_normal()))
        lines.append(line)
    return lines


AT_HOME = [name for name in FIGURES if "laptop" in FIGURES[name].presets]


def laptop_cells(*names):
    return grid.with_sources([c for n in names or AT_HOME for c in each(figures.cells_of(n, "laptop"))])


@functools.cache
def world_of(world, seeds):
    """-> what all runs of the laptop preset have logged in a world, by name."""
    rng = np.random.default_rng(seeds)
    return {cell.name: model_lines(cell, world, seeds, rng) for cell in laptop_cells()}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """-> a --runs-dir with the runs of figures 1a, 1b and 5a where they are true."""
    top = tmp_path_factory.mktemp("runs")
    for cell in laptop_cells("1a", "1b", "5a"):
        write_run(top / "laptop", cell, world_of("true", 10)[cell.name])
    return top


@pytest.mark.parametrize("name", AT_HOME)
def test_a_claim_holds_where_it_is_true_and_does_not_where_all_runs_are_alike(name):
    for world, outcome in (("true", "holds"), ("flat", "does not hold")):
        data = Data(FIGURES[name].presets["laptop"], Path("/nowhere"))
        data._lines = world_of(world, 10)
        shown, checks = FIGURES[name].show(data, FIGURES[name].cells(data.p))
        assert shown and checks and verdict(checks) == outcome, "\n".join(map(str, checks))


@pytest.mark.parametrize("name", AT_HOME)
def test_without_runs_a_figure_is_open(name, tmp_path):
    p = FIGURES[name].presets["laptop"]
    shown, found = FIGURES[name].show(Data(p, tmp_path / "runs"), FIGURES[name].cells(p))
    assert verdict(found) == "open"
    if name in ("1a", "4", "8"):  # curves, points, dots
        pictures.save(shown, tmp_path / "a.png", "title", pictures.described(shown))
        assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def no_runs(monkeypatch):
    monkeypatch.setattr(grid, "_start", lambda *_: pytest.fail("started a run"))


def test_a_figure_is_drawn_with_all_that_its_verdict_rests_on(written, tmp_path, capsys, no_runs):
    start(figures, "5a", "1b", "--runs-dir", written, "--results-dir", tmp_path / "new")
    out = capsys.readouterr().out
    pages = [f"fig_{name}.{kind}" for name in ("5a", "1b") for kind in ("png", "json")]
    assert {p.name for p in (tmp_path / "new").iterdir()} == {*pages, "effects_Pendulum-v1.png"}
    for name in ("5a", "1b"):
        summary = read(tmp_path / f"new/fig_{name}.json")
        assert (summary["verdict"], summary["not_finished"]) == ("holds", [])
        assert summary["command"].startswith(f"python figures.py {name} --preset laptop --runs-dir ")
        assert f"  holds ({tmp_path}/new/fig_{name}.png)" in out
        assert (tmp_path / f"new/fig_{name}.png").read_bytes().startswith(b"\x89PNG")
    summary = read(tmp_path / "new/fig_5a.json")
    assert len(summary["effects"]) == 5
    assert {effect["outcome"] for effect in summary["effects"]} == {"holds"}
    assert all(effect["low"] <= effect["estimate"] <= effect["high"] for effect in summary["effects"])
    assert summary["effects"][2]["what"] == "final score, --com 4096 less --com 8"
    assert summary["effects"][2]["above"] == 0.1 and abs(summary["effects"][2]["estimate"] - 0.5) < 0.02
    (run,) = [run for run in summary["runs"].values() if "--com 4096.0" in run["command"]]
    assert run["machine"] == {"cpu": "a toaster"} and (run["git_commit"], run["jax"]) == ("abc", "1.2.3")
    assert len(run["final"]) == 10 and abs(np.mean(run["final"]) - (-1200 + 1050 * 0.9)) < 10
    assert len(run["curve"]["step"]) == len(run["curve"]["ci95"]) == 40


def test_what_fails_is_told_after_what_can_be_drawn_is_drawn(monkeypatch, tmp_path, no_runs, capsys):
    monkeypatch.setattr(grid, "run_missing", lambda cells, folder, jobs, say: ["a: exit code 1: no memory"])
    (tmp_path / "fig_1b.png").mkdir()
    places = "--runs-dir", tmp_path / "none", "--results-dir", tmp_path
    code, out, _ = ended(capsys, figures, "1b", "3b", *places)
    why = f"[Errno 21] Is a directory: '{tmp_path / 'fig_1b.png'}'"
    failed = f"figures.py: failed: a: exit code 1: no memory\nfigures.py: failed: figure 1b: cannot be drawn ({why})"
    assert code == failed and read(tmp_path / "fig_3b.json")["verdict"] == "open" and "  open (" in out


@pytest.mark.parametrize("flags, said", [
    ("5", "5a"),
    ("1a 14b", "figure 14b"),
    ("", "--list"),
    ("11", "--preset laptop: figure 11 does not have it; it has gpu, paper"),
    ("3b --results-dir /proc/none", "--results-dir /proc/none: cannot write there (No such file or directory)"),
])  # fmt: skip
def test_bad_input_is_one_line(capsys, no_runs, flags, said):
    code, _, err = ended(capsys, figures, *flags.split())
    (line,) = err.splitlines()
    assert code == 2 and line.startswith("figures.py: error: ") and said in line


def test_a_dry_run_prints_the_command_of_each_missing_run(capsys, tmp_path, written, no_runs):
    cells = laptop_cells("3a", "1a")
    (tmp_path / "laptop").mkdir()
    (tmp_path / "laptop" / cells[0].name).symlink_to(written / "laptop" / cells[0].name)
    start(figures, "3a", "1a", "--dry-run", "--runs-dir", tmp_path, "--results-dir", tmp_path)
    out, err = capsys.readouterr()
    missing = [c for c in cells if c.name != cells[0].name]
    assert sorted(out.splitlines()) == sorted(shlex.join(grid.command(c, tmp_path / "laptop")) for c in missing)
    assert len(missing) == 9 and "9 of 10 runs are missing" in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["laptop"]


def test_no_picture_is_drawn_of_nothing(capsys, tmp_path, no_runs):
    flags = "5a", "--launch", "none", "--runs-dir", tmp_path, "--results-dir", tmp_path
    assert ended(capsys, figures, *flags)[0] == 2 and not any(tmp_path.glob("fig*"))


def test_the_slurm_arrays_hold_the_commands_of_the_runs(tmp_path, no_runs, capsys):
    start(figures, "1a", "3a", "--preset", "paper", "--launch", "slurm", "--runs-dir", tmp_path)
    cells = grid.with_sources([c for f in ("1a", "3a") for c in each(FIGURES[f].cells(PRESETS["paper"]))])
    lines = [line for n in (0, 1) for line in tasks((tmp_path / f"paper/fig-1a-3a-{n}.sbatch").read_text())]
    assert [shlex.split(x)[1:] for x in lines] == [grid.command(cell, tmp_path / "paper")[1:] for cell in cells]
    assert "1a 3a --preset paper" in capsys.readouterr().err


def test_all_means_every_figure_of_the_preset():
    assert {*figures.Args(("5a", "all"), preset="gpu").names} == {*figures.FIGURES} - {"1b", "2a", "3b"}
    assert figures.Args(("3a", "5a", "3a")).names == ["3a", "5a"]
