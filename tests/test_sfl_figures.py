"""Paper A's figures of SFL on made-up runs, in which its claims are true, the reverse of it, or nothing matters."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
from conftest import read, write_run

import figures
import sfl_kinetix
from experiments import grid, sfl
from experiments.data import Data
from experiments.sfl_runs import PRESETS
from experiments.verdicts import verdict

FIGURES = sfl.FIGURES
GPU = PRESETS["gpu"]


def cells_of(preset, *names):
    return grid.with_sources([c for n in names or FIGURES for c in FIGURES[n].cells(PRESETS[preset]).values()])


def args_of(cell):
    return sfl_kinetix.Args(**dict(cell.flags))


# Runs


@pytest.mark.parametrize("preset", PRESETS)
def test_the_script_accepts_the_flags(preset):
    for cell in cells_of(preset):
        args = args_of(cell)
        assert cell.script == "sfl_kinetix" and args.num_updates == cell.num_updates
        assert args.num_updates * args.batch_size == args.total_timesteps
        for num_devices in (1,) if preset == "laptop" else (1, 8, 128):
            if args.minibatch_size % num_devices == 0:
                assert sfl_kinetix.settle_search(args, num_devices).search_batch <= args.num_candidates


@pytest.mark.parametrize("preset, least", [("laptop", 8), ("gpu", 16), ("paper", 16)])
def test_every_tenth_and_the_middle_of_a_run_are_evaluated(preset, least):
    for cell in cells_of(preset):
        args = args_of(cell)
        at = [update / args.num_updates for update in range(args.eval_every, args.num_updates + 1, args.eval_every)]
        assert len(at) == least and at[-1] == 1.0 and 0.5 in at and args.num_eval_episodes > 0
        assert args.num_updates // args.log_every >= 16 and args.checkpoint_every == args.eval_every


def test_the_paper_preset_is_tables_2_and_3():
    cells = FIGURES["11"].cells(PRESETS["paper"])
    assert {key[0] for key in cells} == set("sml") and {key[2] for key in cells} == {0, 1, 2}
    table_3 = {2048: (12288, 128, 1024), 8192: (2**18, 256, 8192), 65536: (2**18, 32, 8192), 2**20: (2**22, 2, 8192)}
    # At 1M appendix D has sixteen times the minibatch, and with it four times the learning rate.
    inner = {2048: (32, 16384, 5e-5), 8192: (128, 16384, 5e-5), 65536: (1024, 16384, 5e-5), 2**20: (1024, 2**18, 2e-4)}
    assert {key[1] for key in cells} == set(table_3)
    for (size, n, seed), cell in cells.items():
        a = args_of(cell)
        assert (a.env_id, a.num_envs, a.seed, a.num_seeds) == (f"kinetix/{size}", n, seed, 1)
        assert (a.num_candidates, a.buffer_every, a.buffer_size) == table_3[n]
        assert (a.num_minibatches, a.minibatch_size, a.learning_rate) == inner[n]
        assert (a.gamma, a.gae_lambda, a.num_steps, a.update_epochs, a.clip_eps) == (0.995, 0.9, 256, 8, 0.2)
        assert (a.max_grad_norm, a.clip_vloss, a.vf_coef, a.ent_coef) == (0.5, True, 0.5, 0.01)
        assert (a.learnability_steps, a.buffer_share, a.com, a.anneal_lr) == (512, 0.5, None, False)
        assert (a.network, a.num_eval_levels, a.eval_sizes) == ("transformer", 512, ("s", "m", "l"))
        assert a.total_timesteps > 10**10 and (n < 2**20 or a.total_timesteps > 10**12)


def test_the_learning_rate_goes_with_the_root_of_the_minibatch():
    rates = {}
    for (_, number, _), cell in FIGURES["15"].cells(PRESETS["paper"]).items():
        args = args_of(cell)
        assert (args.num_envs, args.num_minibatches) == (2**20, number)
        rates[number] = args.learning_rate
    assert rates == {32: 0.00113, 1024: 0.0002, 8192: 7.07e-05}  # 5e-5 by the roots of 512, 16 and 2
    assert {args_of(c).learning_rate for c in FIGURES["15"].cells(GPU).values()} == {1.41e-4, 5e-5, 2.5e-5}


@pytest.mark.parametrize(
    "name, changes",
    [
        ("17", [dict(learning_rate=1e-5)]),
        ("18", [dict(com=2048.0), dict(com=8192.0)]),
        ("19", [dict(num_candidates=2**22), dict(num_candidates=2**22, buffer_size=65536)]),
    ],
)
def test_an_ablation_is_the_baseline_but_for_a_flag(name, changes):
    cells = FIGURES[name].cells(PRESETS["paper"])
    base, largest = (FIGURES["11"].cells(PRESETS["paper"])["m", n, 1] for n in (8192, 2**20))
    first, *changed, last = [cell for (size, _, seed), cell in cells.items() if (size, seed) == ("m", 1)]
    assert (first, last) == (base, largest)
    assert [dict(cell.flags) for cell in changed] == [dict(base.flags) | change for change in changes]
    assert len(cells) == 9 * (2 + len(changes))


@pytest.mark.parametrize("preset", PRESETS)
def test_figures_share_their_runs(preset):
    p, cells = PRESETS[preset], {name: FIGURES[name].cells(PRESETS[preset]) for name in FIGURES}
    assert cells["11"] == cells["20"] and cells["15"] == cells["16a"] == cells["16b"]
    for size in p.ablated:
        for seed in p.seeds:
            largest = cells["11"][size, p.largest, seed]
            assert cells["15"][size, p.minibatches[1], seed] == largest
            for name in ("17", "18", "19"):
                of = [cell for key, cell in cells[name].items() if key[0] == size and key[2] == seed]
                assert of[0] == cells["11"][size, p.baseline, seed] and of[-1] == largest


def test_the_laptop_is_not_asked_for_much():
    cells = cells_of("laptop")
    assert len(cells) == 8
    for args in map(args_of, cells):
        assert args.total_timesteps <= 40_000 and args.num_seeds == 2 and args.network == "permutation-invariant"
        assert (args.env_id, args.eval_sizes, args.num_eval_levels) == ("kinetix/s", ("s",), 64)
        searches = args.num_updates / args.buffer_every
        assert searches == 2 and searches * args.num_candidates <= 512


# Worlds: what a run is in the figures, and its solve rates in the middle and at the end

ROLES = ("smallest", "baseline", "largest", "few", "many", "rate", "com", "levels", "buffer")
WORLDS = {
    "true": dict(
        smallest=(0.4, 0.38), baseline=(0.45, 0.46), largest=(0.5, 0.6), few=(0.3, 0.35), many=(0.55, 0.61),
        rate=(0.3, 0.4), com=(0.5, 0.56), levels=(0.45, 0.44), buffer=(0.47, 0.47),
    ),
    "reversed": dict(
        smallest=(0.5, 0.6), baseline=(0.4, 0.5), largest=(0.45, 0.35), few=(0.5, 0.6), many=(0.4, 0.6),
        rate=(0.5, 0.5), com=(0.4, 0.4), levels=(0.4, 0.6), buffer=(0.4, 0.6),
    ),
    "flat": dict.fromkeys(ROLES, (0.5, 0.5)),
}  # fmt: skip
SPEEDS = {
    "true": dict(few=2400, largest=1800, many=600),
    "reversed": dict(few=600, largest=1000, many=2400),
    "flat": {},
}


def role(p, flags):
    largest = flags["num_envs"] == p.largest
    if largest:
        return {p.minibatches[0]: "few", p.minibatches[2]: "many"}.get(flags["num_minibatches"], "largest")
    if flags["learning_rate"] < p.base["learning_rate"]:
        return "rate"
    if "com" in flags:
        return "com"
    if flags["num_candidates"] == p.more_candidates:
        return "buffer" if flags["buffer_size"] == p.larger_buffer else "levels"
    return "baseline" if flags["num_envs"] == p.baseline else "smallest"


def lines_of(p, cell, world, seeds, rng):
    """Lines of training, and of evaluations, which alone have what counts: nothing is learned before a quarter of the
    run. Size M solves four fifths of what S does, of hand-designed levels half is solved; a later seed is slower."""
    flags = dict(cell.flags)
    what = role(p, flags)
    middle, final = WORLDS[world][what]
    per_update = flags["num_envs"] * flags["num_steps"]
    speed = SPEEDS[world].get(what, 1000)
    noise = lambda scale: scale * rng.standard_normal(seeds)  # noqa: E731
    lines = []
    for update in range(1, cell.num_updates + 1):
        t, steps = update / cell.num_updates, update * per_update
        line = {"update": update, "global_step": steps, "time": steps / speed * (1 + 0.01 * flags["seed"])}
        if update % flags["log_every"] == 0:
            training = {"charts/SPS": int(speed * 100 * (1 + 0.01 * rng.standard_normal()))}
            training |= {"outer/update_norm": [1.0] * seeds, "charts/solve_rate": [0.9] * seeds}
            lines.append(line | training)
        if update % flags["eval_every"] == 0:
            value = 0.2 if t <= 0.25 else middle if t <= 0.5 else (middle + final) / 2 if t <= 0.9 else final
            value *= {"kinetix/s": 1.0, "kinetix/m": 0.8}[flags["env_id"]]
            values = {"eval/solve_rate": value + noise(0.002), sfl.HAND_DESIGNED: value / 2 + noise(0.005)}
            lines.append(line | {key: x.tolist() for key, x in values.items()})
    return lines


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """-> the --runs-dir of a world with all runs of a preset, of so many seeds each; made when asked for."""

    @functools.cache
    def make(world, preset="gpu", seeds=1):
        top, rng = tmp_path_factory.mktemp(world), np.random.default_rng(seeds)
        for cell in cells_of(preset):
            write_run(top / preset, cell, lines_of(PRESETS[preset], cell, world, seeds, rng))
        return top

    return make


@pytest.fixture(scope="module")
def shown(worlds):
    @functools.cache
    def show(name, world, preset="gpu", seeds=1):
        p = PRESETS[preset]
        return FIGURES[name].show(Data(p, worlds(world, preset, seeds) / preset), FIGURES[name].cells(p))

    return show


def told(checks):
    return "\n".join(map(str, checks))


@pytest.mark.parametrize("name", FIGURES)
def test_a_claim_holds_where_it_is_true(shown, name):
    _, checks = shown(name, "true")
    assert verdict(checks) == "holds", told(checks)


@pytest.mark.parametrize("name", FIGURES)
def test_a_claim_does_not_hold_where_its_reverse_is_true(shown, name):
    _, checks = shown(name, "reversed")
    assert verdict(checks) == "does not hold", told(checks)


@pytest.mark.parametrize("name", FIGURES)
def test_a_claim_does_not_hold_where_all_runs_are_alike(shown, name):
    _, checks = shown(name, "flat")
    assert verdict(checks) != "holds", told(checks)


@pytest.mark.parametrize("seeds, decides", [(1, False), (2, False), (3, True)])
@pytest.mark.parametrize("name", [name for name in FIGURES if name != "16a"])
def test_less_than_three_seeds_decide_nothing(shown, name, seeds, decides):
    """Nor could they in either world, were the runs on a laptop long enough."""
    outcomes = {"true": "holds", "reversed": "does not hold"}
    for world, outcome in outcomes.items():
        _, checks = shown(name, world, "laptop", seeds)
        assert verdict(checks) == (outcome if decides else "not enough data"), told(checks)
        if not decides:
            assert {check.outcome for check in checks} == {"not enough data"}


def test_a_run_of_several_seeds_has_one_speed(shown):
    """That of all its seeds together, of which charts/SPS is half."""
    picture, checks = shown("16a", "true", "laptop", 2)
    assert verdict(checks) == "not enough data"
    (line,) = picture.panels[""]
    np.testing.assert_allclose(line.y, 2 * np.array([[240_000], [180_000], [60_000]]), rtol=0.01)


def test_equal_seeds_by_chance_decide_nothing(tmp_path):
    """Two seeds each with the same solve rate leave intervals without width."""
    for number, cell in enumerate(cells_of("laptop")):
        lines = [{"update": cell.num_updates, "global_step": 1, "time": 1.0, "eval/solve_rate": [0.1 * number] * 2}]
        write_run(tmp_path, cell, lines)
    for name in ("11", "17", "19"):
        _, checks = FIGURES[name].show(Data(PRESETS["laptop"], tmp_path), FIGURES[name].cells(PRESETS["laptop"]))
        assert {check.outcome for check in checks} == {"not enough data"}


# In the world where the claims are true, for size S: estimate, on which side, of what.
CHECKS = {
    "11": [(0.6 - 0.38, "above", 0), (-0.02, "below", 0.02), (0.1, "above", 0)],
    "15": [(0.25, "above", 0.05), (0.05, "above", 0), (0.01, "below", 0.05)],
    # When the run of few minibatches is over, the middle one is at 3/4, that of many at 1/4.
    "16b": [(0.55 - 0.35, "above", 0), (0.55 - 0.2, "above", 0)],
    "17": [(0.01, "below", 0.02), (0.1 - 0.01, "above", 0), (0.2, "above", 0)],
    "18": [(0.01, "below", 0.02), (0.06 - 0.01, "above", 0), (0.1, "above", 0)],
    "19": [
        (0.01, "below", 0.02), (-0.01, "below", 0.02), (0.0, "below", 0.02), (0.14, "above", 0), (0.16, "above", 0),
        (0.13, "above", 0),
    ],
    "20": [(0.11, "above", 0)],
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKS)
def test_the_checks_find_what_the_model_has_put_in(shown, name):
    _, checks = shown(name, "true")
    expected = [("size S", *check) for check in CHECKS[name]]
    if name in ("11", "20"):
        expected += [("size M", 0.8 * estimate, side, threshold) for estimate, side, threshold in CHECKS[name]]
    assert len(checks) == len(expected)
    for check, (size, estimate, side, threshold) in zip(checks, expected, strict=True):
        assert check.what.startswith(f"{size}: ") and check.estimate == pytest.approx(estimate, abs=0.012)
        assert (check.above, check.below) == {"above": (threshold, None), "below": (None, threshold)}[side]
        assert check.low < check.estimate < check.high


def test_speeds_are_compared_as_factors(shown):
    shown, checks = shown("16a", "true")
    much, little = checks
    assert much.estimate == pytest.approx(np.log10(3), abs=0.005) and much.above == pytest.approx(np.log10(1.25))
    assert little.estimate == pytest.approx(np.log10(4 / 3), abs=0.005) and little.outcome == "reported"
    (line,) = shown.panels[""]
    assert line.x.tolist() == [128, 1024, 4096] and line.y.shape == (3, 3) and line.kind == "points"


def test_that_fewer_are_enough_is_checked_where_the_paper_says_so():
    """Size S, where there are more environments than those that are enough."""
    for preset, expected in (("paper", 1), ("gpu", 0), ("laptop", 0)):
        p = PRESETS[preset]
        picture, checks = FIGURES["11"].show(Data(p, Path("nowhere")), FIGURES["11"].cells(p))
        assert picture.log_x == (preset == "paper")  # budgets that differ by factors
        what = [c.what for c in checks if c.below == 0.05]
        assert len(what) == expected and all(
            w == "size S: final solve rate, 1048576 environments less 65536" for w in what
        )


def test_a_seed_that_diverged_solves_nothing(worlds, tmp_path):
    cell = FIGURES["11"].cells(GPU)["s", 65536, 0]
    lines = lines_of(GPU, cell, "true", 1, np.random.default_rng(0))
    data = Data(GPU, worlds("true") / "gpu")
    assert data.final(cell)[0] > 0.5
    for line in lines[len(lines) // 2 :]:
        if "outer/update_norm" in line:
            line["outer/update_norm"] = [None]
    write_run(tmp_path, cell, lines)
    assert Data(GPU, tmp_path).final(cell).tolist() == [0.0] and Data(GPU, tmp_path).middle(cell)[0] > 0.4


# Pictures


def test_a_line_is_all_seeds_at_the_evaluations(shown):
    picture, _ = shown("11", "true")
    assert list(picture.panels) == ["size S", "size M"] and not picture.log_x
    for lines in picture.panels.values():
        assert [line.label for line in lines] == [f"--num-envs {n}" for n in (2048, 8192, 65536)]
        for line in lines:
            assert line.y.shape == (16, 3)
            np.testing.assert_array_equal(line.x, np.arange(1, 17) * 2**29 / 16)
    labels = {n: [line.label for line in shown(n, "true")[0].panels["size S"]] for n in ("15", "17", "18", "19")}
    largest = "--num-envs 65536"
    assert labels == {
        "15": ["--num-minibatches 128", "--num-minibatches 1024", "--num-minibatches 4096"],
        "17": ["--num-envs 8192", "--learning-rate 1e-05", largest],
        "18": ["--num-envs 8192", "--com 4096", largest],
        "19": [
            "--num-envs 8192", "--num-candidates 262144", "--num-candidates 262144 --buffer-size 16384", largest,
        ],
    }  # fmt: skip


def test_hand_designed_levels_are_drawn_in_figure_20(shown):
    ends = [line.y[-1].mean() for line in shown("20", "true")[0].panels["size S"]]
    np.testing.assert_allclose(ends, [0.19, 0.23, 0.3], atol=0.01)


def test_a_seed_that_is_behind_does_not_hide_the_others():
    x, y = np.arange(3.0), np.ones((3, 1))
    (line,) = sfl.joined("a", [(x[:1], y[:1]), (x, y), (x[:0], np.zeros((0, 1)))])
    np.testing.assert_array_equal(line.x, x)
    np.testing.assert_array_equal(line.y, [[1, 1], [np.nan, 1], [np.nan, 1]])
    assert sfl.joined("a", [(x[:0], np.zeros((0, 1)))]) == []


def test_runs_of_different_speed_have_a_common_clock():
    """One evaluated after 10 and 30 s, one of two seeds after 20 and 40 s, all straight lines: 20 to 30 s."""
    first = np.array([10.0, 30.0]), np.array([[0.1], [0.3]])
    second = np.array([20.0, 40.0]), np.array([[0.2, 0.0], [0.4, 1.0]])
    (line,) = sfl.common_clock("a", [first, second, (np.zeros(0), np.zeros((0, 1)))])
    np.testing.assert_allclose(line.x, [20, 30])
    np.testing.assert_allclose(line.y, [[0.2, 0.2, 0.0], [0.3, 0.3, 0.5]])
    np.testing.assert_allclose(sfl.at(np.array([5.0, 35.0, 50.0]), second), [[0.2, 0.0], [0.35, 0.75], [0.4, 1.0]])


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("name", FIGURES)
def test_with_half_of_its_runs_a_figure_is_drawn_and_decides_nothing(monkeypatch, worlds, tmp_path, name, part):
    cells = cells_of("gpu", name)
    for cell in cells[part::2]:
        (tmp_path / "gpu").mkdir(exist_ok=True)
        (tmp_path / "gpu" / cell.name).symlink_to(worlds("true") / "gpu" / cell.name)
    figures.draw(name, figures.Args((name,), "gpu", results_dir=str(tmp_path)), tmp_path / "gpu")
    summary = read(tmp_path / f"fig_{name}_gpu.json")
    assert summary["verdict"] == "not enough data"
    assert sorted(summary["not_finished"]) == sorted(c.name for c in cells[1 - part :: 2])
    assert (tmp_path / f"fig_{name}_gpu.png").stat().st_size > 10_000


def test_an_unfinished_run_is_drawn_as_far_as_it_has_come(worlds, tmp_path):
    cells = FIGURES["16b"].cells(GPU)
    for cell in cells.values():
        lines = [json.loads(x) for x in (worlds("true") / "gpu" / cell.name / "metrics.jsonl").read_text().splitlines()]
        unfinished = cell.name == cells["s", 1024, 1].name
        write_run(tmp_path, cell, lines[: len(lines) // 2] if unfinished else lines)
    picture, checks = FIGURES["16b"].show(Data(GPU, tmp_path), cells)
    few, middle, _ = picture.panels["size S"]
    assert middle.y.shape == (16, 3) and middle.x[-1] < few.x[-1]
    assert verdict(checks) == "not enough data"


def test_seeds_are_counted_over_runs(monkeypatch, worlds, tmp_path):
    captions = []
    monkeypatch.setattr(figures.pictures, "save", lambda shown, out, title, caption: captions.append(caption))
    for name, preset, seeds in (("17", "gpu", 1), ("17", "laptop", 2)):
        args = figures.Args((name,), preset, results_dir=str(tmp_path))
        figures.draw(name, args, worlds("true", preset, seeds) / preset)
    assert captions[0].startswith("kinetix/s, 3 seeds.") and captions[1].startswith("kinetix/s, 2 seeds.")
