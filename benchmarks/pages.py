"""The tables and numbers of README.md and docs/, from results/*.json and the code.

    cog -P -r -I benchmarks README.md docs/*.md            # writes them between their markers
    cog -P --check -I benchmarks README.md docs/*.md       # exits with 1 if a page is not up to date

A page calls a function of this file in a comment, and what it prints stands below until the end marker. To change a
number, measure it anew: nothing between the markers is typed.
"""

import json
import sys
import textwrap
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ppo
from benchmarks import arms as study, long_runs as lasting, tasks
from benchmarks.arms import ARMS, CLAIMS, GAMES, named
from benchmarks.learning import read as read_runs, runs_of
from clinic.advice import HEALED
from common.run import plots
from experiments import effects

ROOT = Path(__file__).resolve().parents[1]
MEASURES = {"steps_per_second": "steps per second", "peak_bytes": "peak memory", "compile_s": "time to compile"}

TREATMENTS = {  # columns of results/cures.json
    "doctor": "the doctor",
    "checkpoint": "the doctor's first advice, from the checkpoint",
    "log": "what the log alone suggests",
    "rate": "learning rate × 3, then ÷ 3",
    "tune": "three trials of `tune.py`",
    "random": "a random lever",
}


def read(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    shown = ["| " + " | ".join(map(str, line)) + " |" for line in (head, *rows)]
    print("\n".join([shown[0], "|---" * len(head) + "|", *shown[1:]]).replace("|  |", "| |").replace("|  |", "| |"))


def signed(estimate: float, low: float, high: float, digits: int = 0) -> str:
    """An effect with its interval."""
    return f"{estimate:+,.{digits}f} ({low:+,.{digits}f} to {high:+,.{digits}f})".replace("-", "−")


def measured(found: dict[str, Any], more: str = "") -> None:
    """A line below a table: where and when it was measured."""
    machine = found["hardware"] if "hardware" in found else found["devices"]
    cores = "one core" if machine["cores"] == 1 else f"{machine['cores']} cores"
    print(f"\nMeasured on {cores} ({machine['cpu']}), no GPU, {found['date'][:10]}{more}.")


@cache
def learned() -> dict[str, list[dict[str, Any]]]:
    """The runs of results/learning.json by row, those with the newest flags of each."""
    stored = read_runs(ROOT / "results/learning.json")
    return {name: runs_of(row, stored) for name, row in tasks.TABLE.items()}


def learning() -> None:
    """The picture of `python benchmarks/learning.py`, and three of its returns beside published ones."""
    peers = "PureJaxRL's PPO, rejax's, PureJaxQL's PQN"
    print(f"![Return in training of ppo.py, pqn.py (which explores), {peers}](results/learning.png)\n")
    for game in ("Breakout", "SpaceInvaders", "Asterix"):
        row = tasks.TABLE[f"{game.lower()}_ppo_2048"]
        found, theirs = learned()[row.name], f"{row.source}: {row.reference:.0f}"
        ends, how = of_defaults(game), f"{len(found)} seeds"
        if game == "Breakout":
            minutes = np.median([run["seconds"] for run in learned()["headline_2048"]]) / 60
            places = ", ".join(f"{np.mean(x):.0f} {where}" for where, x in by_place().items())
            how = f"{len(ends)} runs, {minutes:.1f} minutes on two cores; [{places}](docs/results.md#minatar); "
            how += f"[{sum(ends < lasting.WALL)} end below 32](docs/log.md#2026-11-29-breakouts-slow-seeds)"
            theirs = theirs.replace("discogen", "[discogen](https://github.com/AlexGoldie/discogen)")
        elif on_gpu := sum("together" in run for run in found):
            how += f", {on_gpu} of them on an H100"
        below = "below " * bool(ends.mean() + plots.mean_and_ci(ends)[1] < row.reference)
        greedy = f", {np.mean([run['greedy'] for run in found]):.0f} with most probable actions" * (game != "Breakout")
        print(f"- **{game}**: {said(ends)} after {found[0]['steps'] / 1e6:.1f}M steps{greedy} ({below}{theirs}); {how}")


def said(values: Sequence[float] | np.ndarray) -> str:
    """Mean and half its 95 % interval."""
    return "{:.0f} ± {:.0f}".format(*plots.mean_and_ci(np.array(values)))


def by_place() -> dict[str, np.ndarray]:
    """{place: returns of the defaults on Breakout there}; a third of the H100's runs had full float32."""
    one, two = ([run["sampled"] for run in learned()[row]] for row in ("breakout_ppo_2048", "headline_2048"))
    gpu = [value for call in read("gpu")["ten_seeds"]["calls"] for value in call["sampled"]]
    return {"on one core": np.array(one), "on two": np.array(two), "on an H100": np.array(gpu)}


def of_defaults(game: str) -> np.ndarray:
    """Returns of the defaults; on Breakout, where they vary most, of all runs."""
    one = np.array([run["sampled"] for run in learned()[f"{game.lower()}_ppo_2048"]])
    return np.concatenate([*by_place().values()]) if game == "Breakout" else one


def chance() -> None:
    """Training with sticky actions for games that have none."""
    rows = []
    for game in ("Breakout", "SpaceInvaders", "Asterix"):
        plain, runs = of_defaults(game), learned()[f"{game.lower()}_chance"]
        trained = np.array([run["sampled"] for run in runs])
        less = effects.difference(game, trained, plain, level=0.975, above=0.0 if game != "Asterix" else None)
        verdict = {"does not hold": "refuted"}.get(less.outcome, less.outcome)
        row = [game, *(f"{said(x)} ({len(x)})" for x in (plain, trained)), signed(*less[1:4]), verdict]
        row += [f"{x.std(ddof=1):.0f}, {x.min():.0f}" for x in (plain, trained)]
        rows.append([*row, f"{np.mean([run['greedy'] for run in runs]):.0f}"])
    head = ["", "trained as played", "with sticky actions", "difference (97.5 %)", "claimed above 0"]
    table([*head, "deviation, worst as played", "with sticky actions", "its most probable actions"], rows)
    alike = [x for brand, x in by_brand("Breakout").items() if brand == runs[0]["machine"]["cpu"]]
    same = f"; the defaults on such a core {said(alike[0])} ({len(alike[0])})" if alike else ""
    print(f"\nTrained with sticky actions on one core each ({runs[0]['machine']['cpu']}){same}.")


def by_brand(game: str) -> dict[str, np.ndarray]:
    """{CPU: returns of the defaults there}."""
    runs = [run for run in learned()[f"{game.lower()}_ppo_2048"] if "together" not in run]
    brands = sorted({run["machine"]["cpu"] for run in runs})
    return {brand: np.array([run["sampled"] for run in runs if run["machine"]["cpu"] == brand]) for brand in brands}


def by_number() -> None:
    """Returns by the number of environments, with the same flags."""
    games, rows = [*tasks.GAMES][:3], []
    for number in (64, 512, 2048, 8192):
        cells = []
        for game in games:
            names = [f"{game.lower()}_ppo_{number}", *[f"headline_{number}"] * (game == "Breakout")]
            found = [run for name in names for run in learned()[name]]
            ends = of_defaults(game) if number == ppo.Args.num_envs else [run["sampled"] for run in found]
            gpu = ", GPU" * (len(ends) > len(found) or any("together" in run for run in found))
            cells.append(f"{said(ends)} ({len(ends)}{gpu})")
        rows.append([f"{number:,}", f"{tasks.STEPS // (number * ppo.Args.num_steps):,}", *cells])
    table(["environments", "updates", *games], rows)


def arms() -> None:
    """What benchmarks/arms.py found: each arm's flags, its returns, and the claims."""
    found = read("arms")
    runs = study.returns(found)
    (scores, level), failed = study.looked_at(runs), study.fails_gate(runs)
    claims = claims_of_arms(scores, level, failed)
    flags_of_arms(found)
    rows = []
    for arm, by_game in sorted(runs.items(), key=lambda item: ARMS[item[0]][1::-1]):
        values = [np.array(list(by_game[game].values())) for game in GAMES]
        returns = ("{:.0f} ± {:.0f} ({})".format(*plots.mean_and_ci(x), len(x)) if len(x) else "–" for x in values)
        of_seed = scores[arm].mean(axis=1)
        of = (effects.iqm(scores[arm]), of_seed.mean(), of_seed.std(ddof=1)) if len(of_seed) > 1 else ()
        rows.append([named(arm), *returns, *([f"{x:.2f}" for x in of] or ["–"] * 3)])
    games = [game.removesuffix("-MinAtar") for game in GAMES]
    table(["N × K", *games, "score (interquartile mean)", "mean", "standard deviation over seeds"], rows)
    print("\nReturns: mean ± half the 95 % interval (seeds).", end=" ")
    gate = "waits for an arm" if failed is None else f"fails on {', '.join(failed)}" if failed else "is passed"
    print(f"The gate {gate}.\n")
    table(["", "score, difference", "claim", "interquartile mean", "mean", *games, "verdict"], claims)
    text = f"{100 * level:.4g} % intervals. The interquartile mean's, a bootstrap, decides; the others are Welch's. "
    text += f"After the first {study.FIRST} seeds ({100 * study.FIRST_LEVEL:.4g} %): "
    looked = [first_look(scores, number) for number, pair in enumerate(CLAIMS) if study.LATER not in pair]
    text += f"{'; '.join(looked)}. "
    text += where([run for run in found["runs"].values() if run["env_id"] in GAMES])
    print("\n" + textwrap.fill(text, 118, break_on_hyphens=False))


def first_look(scores: dict[str, np.ndarray], number: int) -> str:
    """What the rules said of a claim after the first seeds, and the means of the later ones alone."""
    a, b, _, *margin = CLAIMS[number]
    first = (scores[arm][: study.FIRST] for arm in (a, b))
    early = study.differences(*first, study.FIRST_LEVEL, effects.REPETITIONS)["interquartile mean"]
    text = f"claim {number + 1} {signed(*early, digits=2)}, {study.judged(*early[1:], *margin)}"
    later = [scores[arm][study.FIRST :].mean(axis=1) for arm in (a, b)]
    if min(map(len, later)) < effects.FEWEST:
        return text
    less = effects.difference("", *later)
    return f"{text}, the later ones alone {signed(*less[1:4], digits=2)} (means, 95 %)"


def where(runs: Sequence[dict[str, Any]]) -> str:
    """The machines of runs, and when they were made."""
    cpus, days = (sorted(found) for found in ({run["machine"]["cpu"] for run in runs}, {run["date"] for run in runs}))
    return f"One core each ({', '.join(cpus)}), {' to '.join(dict.fromkeys((days[0], days[-1])))}."


def claims_of_arms(scores: dict[str, np.ndarray], level: float, failed: list[str] | None) -> list[list[Any]]:
    """The rows of the claims. scores, level: what is looked at; failed: games on which the gate fails."""
    claims, wanted = [], study.Args.seeds
    for number, (a, b, claim, *margin) in enumerate(CLAIMS, 1):
        what, seeds = f"{named(a)} minus {named(b)}", min(len(scores[a]), len(scores[b]))
        if seeds < effects.FEWEST:
            claims.append([number, what, claim, *["–"] * (2 + len(GAMES)), "not run"])
            continue
        of = study.differences(scores[a], scores[b], level)
        _, low, high = of["interquartile mean"]
        verdict = study.judged(low, high, *margin) if seeds >= study.FIRST else "open"
        verdict = study.told_of(verdict, high, b, margin[0])
        verdict += f" ({seeds} of {wanted} seeds)" * (seeds < wanted)
        verdict = f"none: the gate fails on {', '.join(failed)}" if failed else verdict
        claims.append([number, what, claim, *(signed(*x, digits=2) for x in of.values()), verdict])
    return claims


def flags_of_arms(found: dict[str, Any]) -> None:
    """The best trial of each arm, and how far each flag goes among those that are nearly as good."""
    names, rows = list(next(iter(found["trials"].values()))[0]["flags"]), []
    for arm in sorted(ARMS, key=lambda arm: ARMS[arm][1::-1]):
        trials = found["trials"].get(arm, [])
        pruned = sum(trial.get("state") == "pruned" for trial in trials)
        row = [named(arm), f"{len(trials)} of {study.Args.trials}" + f" ({pruned} stopped early)" * bool(pruned)]
        if len(trials) >= study.Args.trials:
            best, *others = study.ranked(trials)
            near = [best, *(trial for trial in others if trial["score"] >= best["score"] - study.NEAR)]
            edges = study.at_edge(arm, best["flags"])
            row += [f"{best['score']:.2f} ({len(near)})"]
            for name in names:
                values = sorted(trial["flags"][name] for trial in near)
                low, value, high = (f"{x:.2g}" if isinstance(x, float) else str(x)
                                    for x in (values[0], best["flags"][name], values[-1]))  # fmt: skip
                also = f" (or {not best['flags'][name]})" if isinstance(values[0], bool) else f" ({low}–{high})"
                row.append(value + "*" * (name in edges) + also * (low != high))
        rows.append(row + ["–"] * (3 + len(names) - len(row)))
    near = f"best trial (as good within {study.NEAR:g})"
    table(["N × K", "trials", near, *(f"`--{name.replace('_', '-')}`" for name in names)], rows)
    print("\n\\* the first or last choice, or the outer tenth of its range. In brackets: of trials nearly as good.\n")


def long_runs() -> None:
    """What runs three and ten times as long show of 64, 512 and 4,096 environments."""
    found = read("long_runs")
    listed = lambda values: ", ".join(f"{x:.0f}" for x in values) or "–"  # noqa: E731
    gained = lambda of: ", ".join(f"{x:+.2f}" for x in lasting.gains(of)).replace("-", "−") or "–"  # noqa: E731
    rows = []
    for steps in lasting.SEEDS:
        for arm in sorted((*lasting.ARMS, study.LATER), key=lambda arm: ARMS[arm][0]):
            of = lasting.by_arm(found["runs"], [arm], steps)[arm]
            waits = (lasting.passes(run["curve"], lasting.WALL) for run in of)
            row = [named(arm), f"{steps / 1e6:.1f}M", listed(run["return"] for run in of)]
            row += [", ".join("never" if np.isinf(x) else f"{x:.0f}" for x in waits), gained(of)]
            rows += [[*row, f"{sum(map(lasting.stands_still, of))} of {len(of)}"]] if of else []
    head = ["N × K", "steps", "final returns", "pass 32 after (million steps)", "gains (score)", "stand still"]
    table(head, rows)
    text = "One number per seed, of new runs, not continued ones. A gain is the score in training in the last tenth "
    text += "less that in the tenth before half-way; without 0.05 of it, and below "
    text += f"{lasting.BRICKS}, a run stands still."
    print("\n" + textwrap.fill(text, 118, break_on_hyphens=False) + "\n")
    bound = lambda x: f"above {x.above:g}" if x.above is not None else f"below {x.below:g}"  # noqa: E731
    told = lambda x: f"{x.what} {signed(x.estimate, x.low, x.high, 2)}"  # noqa: E731
    judged = "; ".join(f"{told(x)}, claimed {bound(x)}: {x.outcome}" for x in lasting.claimed(found["runs"]))
    text = f"31.5M steps, scores, mean (95 %): {judged}. Together: **{lasting.judged(found['runs'])}**. "
    if later := lasting.claimed_later(found["runs"]):
        text += f"Later: {told(later.rises)}, claimed {bound(later.rises)}: **{later.rises.outcome}**; final score, "
        text += f"{told(later.many_less)}, claimed above 0: **{later.verdict}**; reported: {told(later.less_small)}. "
    longest = len([run for run in found["runs"].values() if run["curve"][-1][0] == lasting.LONGEST])
    text += f"Of 104.9M steps ({longest} of 6 runs) there is no verdict. "
    text += f"One core each ({found['hardware']['cpu']}), until {found['date'][:10]}."
    print(textwrap.fill(text, 118, break_on_hyphens=False))


def freed() -> None:
    """Branches from long runs that stand below the wall."""
    found = read("long_runs")
    for name, levers in found.get("freed", {}).items():
        told = []
        for lever, of in levers.items():
            what = of["what"] if lever != "control" else "nothing else changed"
            told.append(f"{what.replace(' x ', ' × ')} {', '.join(f'{x:.0f}' for x in of['returns'])}")
        seed = f"seed {found['runs'][name]['seed']} of {named(found['runs'][name]['arm'])}"
        text = f"From the end of {seed}, return in the last quarter: {'; '.join(told)}."
        print(textwrap.fill(text, 118, break_on_hyphens=False))


def pilots() -> None:
    """The runs of 10M steps with which the defaults were chosen, by the flags that they change."""
    default, numbers = vars(ppo.Args()), ["num_envs", "num_steps", "update_epochs", "minibatch_size", "learning_rate"]
    numbers += ["gae_lambda", "gamma", "ent_coef"]
    said = {"clip_vloss": "--clip-vloss", "layer_norm": "--no-layer-norm", "anneal_ent": "--no-anneal-ent"}
    grouped: dict[str, dict[str, list[float]]] = {}
    for run in read("pilots")["runs"]:
        x = {"anneal_ent": False} | run["settings"]
        flags = [f"--{name.replace('_', '-')} {x[name]}" for name in numbers if x[name] != default[name]]
        flags += [flag for name, flag in said.items() if x[name] != default[name]]
        if run["steps"] > 10**7:
            grouped.setdefault(" ".join(flags), {}).setdefault(run["game"], []).append(run["return"])
    several = lambda x: f"{np.mean(x):.0f} ± {np.std(x, ddof=1):.0f} ({len(x)})"  # noqa: E731
    shown = lambda x: several(x) if len(x) > 3 else ", ".join(f"{value:.0f}" for value in x)  # noqa: E731
    games = ("Breakout", "Asterix", "SpaceInvaders", "Freeway")
    rows = [
        [f"`{flags}`" if flags else "the defaults", *(shown(returns.get(game, [])) for game in games)]
        for flags, returns in sorted(grouped.items(), key=lambda item: -np.mean(item[1].get("Breakout", [0])))
        if sum(map(len, returns.values())) > 2
    ]
    table(["", *games], rows)
    print("\nReturn of the evaluated policy after 10.5M steps: one number per seed (100, 101, …), or mean ± standard")
    print("deviation (seeds). [pilots.json](../results/pilots.json) also has settings with one or two runs.")


def gpu(brief: bool = False) -> None:
    """A run with 65,536 environments on a GPU, and whether GPU and CPU end alike. brief: only a sentence."""
    found = read("gpu")
    run, small = found["learning"], found["small"]["steps_per_second"]
    if brief:
        print(f"[On one H100](docs/scaling.md#on-a-gpu) 65,536 environments reach {run['return']:.0f} on", end=" ")
        print(f"Breakout in {run['curve'][-1][1]:.0f} seconds, {run['curve'][-1][0] / 1e6:.0f}M steps (one seed).")
        return
    table(
        ["million steps", *(f"{steps / 1e6:.0f}" for steps, _, _ in run["curve"])],
        [
            ["seconds", *(f"{seconds:.0f}" for _, seconds, _ in run["curve"])],
            ["return in training", *(f"{value:.0f}" for _, _, value in run["curve"])],
        ],
    )
    print(f"\n`{run['command']}` on one {found['gpu']}, {run['date']}, JAX {found['jax']}, one seed. The final")
    print(f"policy's return is {run['return']:.0f}; compiling took {run['compile_s']:.0f} s more.", end=" ")
    name = lambda how: "without, as now" if how == "XLA_FLAGS=" else how  # noqa: E731
    rates = " and ".join(f"{rate / 1e6:.1f}M ({name(how)})" for how, rate in small.items())
    print(f"With 2,048 environments `ppo.py` made {rates} steps per second: {found['small']['note']}.\n")

    on_cpu = lambda game: np.concatenate([*by_brand(game).values()])  # noqa: E731
    ten, rows = found["ten_seeds"], []
    cpu = on_cpu("Breakout")

    def welch(x: Sequence[float], y: np.ndarray) -> str:
        effect = effects.difference("", np.array(x), y)
        return signed(effect.estimate, effect.low, effect.high)

    for call in ten["calls"]:
        speed = f"{call['steps_per_second'] / 1e6:.1f}M" if "steps_per_second" in call else "–"
        seconds = f"{call['seconds']:.0f}" if "seconds" in call else "–"
        worst = f"{min(call['sampled']):.0f}"
        row = [f"H100, {'as typed' if call['how'] == 'as typed' else 'full float32'}, {call['date']}"]
        rows.append([*row, said(call["sampled"]), worst, welch(call["sampled"], cpu), speed, seconds])
    for brand, ended in by_brand("Breakout").items():
        rows.append([f"{brand}, a process for each seed", said(ended), f"{ended.min():.0f}", "", "", ""])
    less = "less the CPUs' (Welch, 95 %)"
    table(["Breakout, ten seeds each", "return", "worst", less, "steps per second, all seeds", "seconds"], rows)
    again = (f"{game} {welch(x, on_cpu(game))}" for game, x in found["repeated"].items())
    typed = [x for call in ten["calls"] if call["how"] == "as typed" for x in call["sampled"]]
    print(
        f"\nThe {len(typed)} as typed, less the CPUs': {welch(typed, cpu)}. JAX was {found['jax']} there, 0.9.0 here."
    )
    print(f"Five seeds of two other games, less the CPUs': {', '.join(again)}. [Commands](../results/gpu.json).")


def million() -> None:
    """Speed and memory by the number of environments."""
    found = read("scaling")
    points = {}
    for point in found["points"]:
        setting = point["setting"]
        if setting["num_devices"] is None:
            points[setting["env_id"], setting["num_envs"]] = point["result"]
    sizes = [1024, 65536, 1048576]
    rows, memory = [], []
    for env_id in ("CartPole-v1", "Breakout-MinAtar"):
        of = [points[env_id, size] for size in sizes]
        rows.append([f"{env_id}, steps per second", *(f"{x['steps_per_second']:,.0f}" for x in of)])
        memory.append(f"{of[-1]['peak_bytes'] / 1e9:.1f}")
    table(["environments", *(f"{size:,}" for size in sizes)], rows)
    (cartpole,), (breakout,) = (learned()[f"{game}_ppo_1048576"] for game in ("cartpole", "breakout"))
    machine = found["hardware"]
    text = (
        f"On {machine['cores']} cores ({machine['cpu']}), no GPU, {found['date'][:10]}, 16 steps per update, else the "
    )
    text += f"defaults of commit {found['commit'][:7]}; a million need {' and '.join(memory)} GB. On an Intel Xeon the "
    text += (
        f"command's ten updates ended at {cartpole['sampled']:.0f} of 500 (one seed, {cartpole['seconds'] / 60:.0f} "
    )
    text += f"minutes), twelve of Breakout at {breakout['sampled']:.0f} ({breakout['seconds'] / 60:.0f} minutes)."
    print("\n" + textwrap.fill(text, 118, break_on_hyphens=False))


def beside_rejax() -> None:
    """Speed beside rejax, of updates and of whole trainings."""
    ratios = [x["ratios"]["steps_per_second"]["median"] for x in read("compare")["summary"] if x.get("ratios")]
    seconds = lambda row: np.median([run["seconds"] for run in learned()[row]])  # noqa: E731
    whole = [
        seconds(f"seconds_{game}_rejax") / seconds(f"seconds_{game}_ours") for game in ("breakout", "spaceinvaders")
    ]
    print(f"On two cores `ppo.py` makes [{min(ratios):.1f} to {max(ratios):.1f} × rejax's steps per", end=" ")
    print("second](docs/scaling.md#compared-with-rejax) (least\nwith few environments; in", end=" ")
    print(f"[whole trainings](docs/results.md#seconds-until-a-score) with 64 {min(whole):.1f} to {max(whole):.1f} ×).")


def compare() -> None:
    """ppo.py over rejax."""
    found, half = read("compare"), read("compare_bfloat16")
    ratios = {(x["env_id"], x["num_envs"]): x["ratios"] for x in found["summary"] if x.get("ratios")}
    bfloat16 = {(x["env_id"], x["num_envs"]): x["ratios"] for x in half["summary"]}
    sizes = sorted({size for _, size in ratios})

    def row(env_id: str, key: str, of: dict, label: str) -> list[str]:
        return [label, *(f"{of[env_id, n][key]['median']:.2f} ×" if (env_id, n) in of else "–" for n in sizes)]

    rows = [
        row(env_id, key, ratios, f"{env_id}, {name}")
        for env_id in ("CartPole-v1", "Breakout-MinAtar")
        for key, name in MEASURES.items()
    ]
    rows.append(row("Breakout-MinAtar", "steps_per_second", bfloat16, "Breakout-MinAtar, bfloat16, steps per second"))
    table(["ppo.py / rejax, environments", *(f"{size:,}" for size in sizes)], rows)
    measured(found)


def pqn_speed() -> None:
    """pqn.py over PureJaxQL."""
    found = read("compare_pqn")
    shown = lambda x: f"{x['median']:.2f} ({x['min']:.2f}–{x['max']:.2f})"  # noqa: E731
    rows = [[name, *(shown(x["ratios"][key]) for x in found["summary"])] for key, name in MEASURES.items()]
    title = f"pqn.py / PureJaxQL, median of {found['summary'][0]['repetitions']} (least–greatest)"
    table([title, *(f"{x['num_envs']:,} environments" for x in found["summary"])], rows)
    measured(found)


def plasticity() -> None:
    """What a measurement of the network costs."""
    found = read("plasticity")
    shares = {name: x["share"] for name, x in found["settings"].items()}
    print(
        f"{100 * next(iter(shares.values())):.1f} % with the defaults, and {100 * max(shares.values()):.1f} % of",
        end=" ",
    )
    print(f"`{max(shares, key=shares.get)}` ([all](../results/plasticity.json)).")
    measured(found)


def search() -> None:
    """SFL beside Kinetix's own functions."""
    both = [read("search"), read("search_bfloat16")]
    training, playing = ([x[key] for x in both] for key in ("training", "search"))
    speeds = (f"{t['ours']['steps_per_second']:,.0f}; {t['peer']['steps_per_second']:,.0f}" for t in training)
    table(
        ["", "float32", "`--compute-dtype bfloat16`"],
        [
            ["training, steps per second; Kinetix's", *speeds],
            ["ratio", *(f"**{t['ratio']:.2f}**" for t in training)],
            ["playing candidates, steps per second", *(f"{s['scoring_steps_per_second']:,.0f}" for s in playing)],
            ["ratio to Kinetix's rollout", *(f"{s['ratio']:.2f}" for s in playing)],
        ],
    )
    measured(both[0])


def bowl() -> None:
    """Where gradient descent on the bowl ends, beside the theory."""
    rows = []
    for run in read("fig_1b")["runs"].values():
        rate = run["command"].partition("--learning-rate ")[2].split()[0]
        mean, width = plots.mean_and_ci(np.array(run["final"]))
        rows.append([f"`--learning-rate {rate}`", f"{mean:.3f} ({mean - width:.3f} to {mean + width:.3f})"])
    table(["step size", "−‖x‖ in the last tenth: mean and 95 % interval"], rows)
    print(f"\nFigures 1b, 2a, 3b: {', '.join(read(f'fig_{name}')['verdict'] for name in ('1b', '2a', '3b'))}.")


def cures(brief: bool = False) -> None:
    """Shares of sick runs that each treatment healed, and of healthy runs left alone. brief: only a sentence."""

    found = read("cures")
    sick, well = ([case for case in found["cases"] if ("change" in case) == x] for x in (True, False))
    alone = [case["advice"] == "nothing" for case in well]
    of_task = np.array([case["task"] for case in sick]) == np.array(sorted({case["task"] for case in sick}))[:, None]
    draws = np.random.default_rng(0).integers(len(of_task), size=(10_000, len(of_task)))

    done = {name: title for name, title in TREATMENTS.items() if all(name in case for case in sick)}

    def healed(column: str, tries: int) -> np.ndarray:
        return np.array([any(x is not None and x >= HEALED for x in case[column][:tries]) for case in sick], float)

    def interval(values: np.ndarray) -> tuple[float, float, float]:
        """Percent, and their interval over tasks: cases of one task are much alike."""
        sums, counts = of_task @ values, of_task.sum(1)
        low, high = np.quantile(sums[draws].sum(1) / counts[draws].sum(1), (0.025, 0.975))
        return 100 * values.mean(), 100 * low, 100 * high

    def share(column: str, tries: int) -> str:
        return "{:.0f} % ({:.0f} to {:.0f})".format(*interval(healed(column, tries)))

    def less(column: str, tries: int) -> str:
        return signed(*interval(healed("doctor", tries) - healed(column, tries)))

    of_seed = {case["task"]: case["share"] for case in reversed(well)}  # the first, which has the sick runs' seed
    again = sum(case["doctor"][0] == of_seed[case["task"]] for case in sick)
    if brief:
        runs = lambda column, tries: int(healed(column, tries).sum())  # noqa: E731
        minatar = np.array([case["task"].partition(",")[0] in tasks.GAMES for case in sick])
        text = f"Of {len(sick)} runs with wrong flags [its first advice healed](docs/doctor.md#does-it-help) "
        text += f"{runs('doctor', 1)}, in {again} cases by giving back the healthy flags exactly; three trials of "
        text += f"`tune.py` {runs('tune', 3)}, one random lever {runs('random', 1)}. It left {sum(alone)} of "
        text += f"{len(alone)} healthy runs alone. For a task unlike those that it knows expect at most what the log "
        text += f"alone healed: {runs('log', 1)} of the {len(sick)}, {healed('log', 1)[minatar].sum():.0f} of "
        text += f"{minatar.sum()} on MinAtar. Other trainers' logs are untested."
        print(textwrap.fill(text, 118, break_on_hyphens=False))
        return
    rows = []
    for column, name in done.items():
        several = max(len(case[column]) for case in sick)
        rows.append([name, share(column, 1), less(column, 1) if column != "doctor" else ""])
        rows[-1] += [share(column, 3), less(column, 3)] if several > 1 else ["", ""]
    rows[0][-1] = ""
    table(
        ["healed of " + f"{len(sick)} sick runs", "by the first", "doctor − this", "by up to three", "doctor − this"],
        rows,
    )
    if missing := [title for name, title in TREATMENTS.items() if name not in done]:
        print(f"\nNot run yet: {'; '.join(missing)}.")
    print(f"\nOf {len(alone)} healthy runs the doctor left {sum(alone)} alone. Each case has one seed;", end=" ")
    print(f"in {again} of them the first advice is the healthy run itself.")
    measured(found, "; intervals of 95 %, of a bootstrap that draws tasks (the rules' own, of cases, are narrower)")
