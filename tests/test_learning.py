"""The table of results: every row can be run, runs are made once, and the page says what the JSON says."""

from dataclasses import replace
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import pytest
from conftest import ROOT, starts

from benchmarks import learning, peers, tasks
from benchmarks.learning import Args
from benchmarks.tasks import Row

# Imitates a training script: its flags, its folder, and what it does with --resume and --evaluate.
STUB = """
import json, shlex, sys
from dataclasses import dataclass
from pathlib import Path

@dataclass(frozen=True)
class Args:
    env_id: str = "good"
    speed: int = 2
    seed: int = 0
    num_devices: int = 0
    num_updates, num_envs = 4, 8

def write(name, value):
    (run / name).write_text(json.dumps(value))

if __name__ == "__main__":
    with open("starts", "a") as file:
        file.write(shlex.join(sys.argv[1:]) + "\\\\n")
    words = [word for word in sys.argv[1:] if word != "--eval-deterministic"]
    words = dict(zip(words[::2], words[1::2]))
    run = Path(words.get("--resume") or Path(words["--runs-dir"]) / words["--run-name"])
    if "--resume" not in words:
        run.mkdir()
        machine = {"cpu": "abacus", "cores": 1, "memory_gb": 3}
        record = {"args": {}, "git_commit": "0123456789" * 4, "git_dirty": False, "machine": machine}
        write("args.json", record | {"started": "2026-11-25T10:00:00+00:00", "versions": {"jax": "9"}, "words": words})
        (run / "checkpoints" / "2").mkdir(parents=True)
    words = json.loads((run / "args.json").read_text())["words"]
    lines = [{"update": i, "global_step": 100 * i, "charts/SPS": 200, "time": 7 + i / 2} for i in range(1, 5)]
    for line in lines:
        line["charts/episodic_return"] = None if line["update"] == 1 else 10 * line["update"]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\\\\n" for line in lines))
    score = 50 if "--evaluate" in words else 40 + int(words["--seed"])
    write("summary.json", {"updates": 4, "compile_s": 6.5, "eval/episodic_return": {"mean": score}})
""".replace("\\\\", "\\")


@pytest.fixture
def stub(monkeypatch, tmp_path):
    """A table of rows of an imitated script. -> the flags of each start so far."""
    (tmp_path / "stub.py").write_text(STUB)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    learning.settled.cache_clear()
    good = Row("good", "classic", "Walk", "stub.py", "--env-id good --speed 3", 41.5, "a book", goals=(25,), seeds=2)
    alone = Row("alone", "headline", "Stand", "stub.py", "", seeds=1, alone=True)
    monkeypatch.setattr(learning, "TABLE", {row.name: row for row in (good, alone)})
    return starts


@pytest.mark.slow
def test_every_row_is_a_command_that_its_script_takes():
    """Parsing takes long: once for each script and choice of flags."""
    flags_of = lambda row: [word for word in row.flags.split() if word.startswith("--")]  # noqa: E731
    for row in {(row.script, *flags_of(row)): row for row in tasks.TABLE.values()}.values():
        cell = learning.make_cell(row, 7)
        assert cell.num_updates > 0 and dict(cell.flags)["seed"] == ("7",), row.name
    for row in tasks.TABLE.values():
        assert (ROOT / row.script).is_file() and row.group in tasks.GROUPS
        assert not row.against or row.against in tasks.TABLE
    assert len({(r.command(0), r.alone, r.plain) for r in tasks.TABLE.values()}) == len(tasks.TABLE)


def test_ours_beside_purejaxrl_has_all_settings_of_its_notebook():
    args, theirs = learning.settled("ppo.py", tasks.SAME), peers.NOTEBOOK
    same = {name: theirs[name.upper()] for name in ("num_envs", "num_steps", "update_epochs", "num_minibatches")}
    same |= {"gamma": 0.99, "gae_lambda": 0.95, "clip_eps": 0.2, "ent_coef": 0.01, "vf_coef": 0.5, "max_grad_norm": 0.5}
    same |= {"learning_rate": theirs["LR"], "activation": theirs["ACTIVATION"], "anneal_lr": theirs["ANNEAL_LR"]}
    same |= {"hidden_sizes": (64, 64), "network": "mlp", "shared_encoder": False, "clip_vloss": True, "norm_adv": True}
    same |= {"norm_obs": False, "norm_reward": False, "target_kl": None, "layer_norm": False}
    assert {name: getattr(args, name) for name in same} == same
    assert {name: theirs[name.upper()] for name in same if name.upper() in theirs}.items() <= same.items()


class CNN(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.LayerNorm()(nn.Conv(16, (3, 3), padding="VALID")(x)))
        return nn.relu(nn.LayerNorm()(nn.Dense(128)(x.reshape(len(x), -1))))


class MLP(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(64)(x.reshape(len(x), -1)))
        return nn.relu(nn.Dense(64)(x))


class Theirs(nn.Module):
    """A peer's layers with its names. -> logits or Q."""

    program: str

    @nn.compact
    def __call__(self, x):
        if self.program == "purejaxql":
            return nn.Dense(3)(CNN(name="CNN_0")(x / 255))
        return nn.Dense(3, name="action_logits")(MLP(name="features")(x))


@pytest.mark.parametrize("program", ["rejax", "purejaxql"])
def test_a_peers_policy_is_played_with_its_own_network(tmp_path, program):
    draw, obs = np.random.default_rng(0), 255 * jax.random.uniform(jax.random.key(1), (64, 10, 10, 4))
    net = Theirs(program)
    params = jax.tree.map(lambda x: x + draw.normal(scale=0.1, size=x.shape), net.init(jax.random.key(0), obs))
    paths = jax.tree_util.tree_leaves_with_path(params["params"])
    np.savez(tmp_path / "params.npz", **{"/".join(k.key for k in path): x for path, x in paths})
    _, policy = peers.make_policy(tmp_path, "Breakout-MinAtar", program)
    wanted, found = net.apply(params, obs), policy(None, obs)
    best = np.argmax(wanted, axis=-1)
    assert len(set(best.tolist())) > 1
    np.testing.assert_array_equal(found.mode()[..., 0], best)
    if program == "purejaxql":  # whatever is drawn is the best
        np.testing.assert_array_equal(found.sample(jax.random.key(0))[..., 0], best)
    else:
        np.testing.assert_allclose(found.logits, wanted, rtol=1e-4, atol=1e-2)


def test_runs_are_made_once_and_stored_with_both_evaluations(stub):
    args = Args(rows=("good",), workers=2)
    assert learning.make(args, learning.choose(args.rows)) == []
    runs = learning.read(args.out)
    assert sorted(run["sampled"] for run in runs.values()) == [40, 41]
    assert all(run["greedy"] == 50 and run["num_envs"] == 8 and run["steps"] == 400 for run in runs.values())
    one = runs["good", "python stub.py --env-id good --speed 3 --seed 0 --num-devices 1"]
    # The first update ended at 7.5 s and took half a second.
    assert one["curve"] == [[100, 0.5, None], [200, 1, 20], [300, 1.5, 30], [400, 2, 40]]
    assert one["seconds"] == 2 and one["steps_per_second"] == 200 and one["compile_s"] == 6.5
    assert len(stub()) == 4  # two trainings, two evaluations
    assert learning.make(args, learning.choose(args.rows)) == [] and len(stub()) == 4
    learning.make(replace(args, seeds=(0, 5)), learning.choose(args.rows))
    assert len(stub()) == 6 and stub()[4][5] == "5"
    learning.make(replace(args, seeds=(5,), again=True), learning.choose(args.rows))
    assert len(stub()) == 8 and len(learning.read(args.out)) == 3


def test_policies_are_played_otherwise_than_trained_where_the_row_says_so(stub):
    row, args = replace(learning.TABLE["good"], plain=True), Args(rows=("good",), seeds=(0,))
    learning.TABLE["good"] = row
    assert learning.make(args, [row]) == [] == learning.make(args, [row])
    (run,) = learning.read(args.out).values()
    assert (run["sampled"], run["greedy"]) == (50, 50)
    greedy, played = sorted(words[2:] for words in stub()[1:])
    assert played[:2] == ["--sticky-actions", "0"] and greedy[:3] == [*played[:2], "--eval-deterministic"]
    stored = {(row.name, run["command"]): run}
    assert learning.runs_of(row, stored) and "stub.py" not in learning.make_page(stored, "")  # docs/log.md has them
    assert learning.runs_of(row, {(row.name, run["command"]): run | {"sampled": None}}) == []


def test_what_is_lost_from_the_json_is_read_from_the_folders(stub):
    args = Args(rows=("good",), seeds=(0,))
    learning.make(args, learning.choose(args.rows))
    before = learning.read(args.out)
    args.out.unlink()
    learning.make(args, learning.choose(args.rows))
    assert learning.read(args.out) == before and len(stub()) == 2


def test_another_default_makes_a_run_anew_and_the_page_does_not_mix_them(stub):
    args, row = Args(rows=("alone",)), learning.TABLE["alone"]
    learning.make(args, [row])
    old = learning.settings(row)
    learning.settled.cache_clear()
    Path("stub.py").write_text(STUB.replace("speed: int = 2", "speed: int = 4"))
    __import__("sys").modules.pop("stub")
    learning.make(args, [row])
    (run,) = learning.read(args.out).values()
    assert len(stub()) == 4 and run["settings"] == learning.settings(row) != old
    older = run | {"seed": 1, "command": row.command(1), "settings": old, "date": "2026-11-24T10:00:00+00:00"}
    stored = {(each["row"], each["command"]): each for each in (run, older)}
    assert len(stored) == 2 and learning.runs_of(row, stored) == [run]


def test_rows_about_seconds_come_last_and_with_all_devices(stub):
    learning.make(Args(), learning.choose(["good", "alone"]))
    trained = [words for words in stub() if "--evaluate" not in words]
    assert ["--num-devices" in words for words in trained] == [True, True, False]


def test_the_page_is_written_and_checked(stub, capsys):
    args = Args(rows=("good", "alone"))
    learning.main(args)
    assert "| 40.5 | 50.0 | 0.0 | 6 | 25: 1 s | 41.5 (a book) | too few seeds: open |" in args.page.read_text()
    assert args.out.with_suffix(".png").stat().st_size > 10_000
    learning.main(replace(args, check=True))
    args.page.write_text(args.page.read_text().replace("40.5", "45.5", 1))
    with pytest.raises(SystemExit, match=r"is not what .*learning.json gives; .* --report writes it"):
        learning.main(replace(args, check=True))
    learning.main(replace(args, report=True))
    learning.main(replace(args, check=True))
    assert len(stub()) == 6
    learning.main(replace(args, list=True))
    assert "good   2/2  python stub.py --env-id good --speed 3 --seed S" in capsys.readouterr().out
