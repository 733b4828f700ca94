"""The tables of the papers' figures in README.md and docs/report.md, from results/fig_*.json; see pages.py."""

import re
import sys
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import figures
import ppo
from benchmarks import (
    arms as study,
    fresh_gain as instrument,
    long_runs as lasting,
    plateaus as slow,
    recipes as moulds,
    third_game as searched,
)
from benchmarks.arms import GAMES, named
from benchmarks.pages import ROOT, claims_of_arms, read, said, signed, table, where
from clinic import usual
from common.run import plots
from experiments import effects, grid, paper_a as source, paper_b as minatar
from experiments.references import reference_score

PAIR = study.PAIRS[0]  # many, small


def paper_a() -> None:
    """The figures of paper A on Pendulum that were run: verdicts."""
    drawn = {}
    for name, figure in figures.FIGURES.items():
        if figure.presets.get("laptop") is source.PENDULUM and (ROOT / "results" / f"fig_{name}.json").exists():
            drawn[name] = read(f"fig_{name}")
    runs = [run for found in drawn.values() for run in found["runs"].values()]
    seeds = " or ".join(map(str, sorted({len(run["final"]) for run in runs})))
    machines = ", ".join(sorted({run["machine"]["cpu"] for run in runs}))
    said = lambda verdict: ", ".join(name for name, found in drawn.items() if found["verdict"] == verdict)  # noqa: E731
    text = f"Claims (`python figures.py --list` has them) that hold: figures {said('holds')}; that does not: "
    text += f"{said('does not hold')}; open: {said('open')}. {seeds} seeds; one core ({machines}), "
    print(textwrap.fill(f"{text}{drawn['1a']['drawn']}.", 118, break_on_hyphens=False))


def paper_b() -> None:
    """The figures of paper B on MinAtar that were run: which arms pass the gate, differences, verdicts."""
    names = [n for n, f in figures.FIGURES.items() if f.presets.get("laptop") is minatar.PRESETS["laptop"]]
    drawn = {name: read(f"fig_{name}") for name in names if (ROOT / "results" / f"fig_{name}.json").exists()}
    runs = {name: run for found in drawn.values() for name, run in found["runs"].items()}
    arms: dict[tuple[int, ...], dict[str, list[float]]] = {}
    for run in runs.values():
        of = dict(pairwise(run["command"].split()))
        n, k = int(of["--num-envs"]), int(of["--num-steps"])
        batch = int(of.get("--minibatch-size") or n * k // int(of["--num-minibatches"]))
        arms.setdefault((n, k, batch), {}).setdefault(of["--env-id"], []).extend(run["final"])
    print("Returns in the last tenth of training are above the gate", end=" ")
    for game, end in zip(GAMES, ("; ", ".\n\n"), strict=True):
        passed = [
            f"{n} × {k} (minibatches of {m:,})"
            for (n, k, m), of in arms.items()
            if np.mean(of[game]) > study.GATE[game]
        ]
        which = "all" if len(passed) == len(arms) else ", ".join(passed) or "none, so nothing is said"
        print(f"on {game.removesuffix('-MinAtar')} ({study.GATE[game]}) {which}", end=end)
    differences_of_b(drawn)
    measurements_of_b(drawn)
    machines = ", ".join(sorted({run["machine"]["cpu"] for run in runs.values()}))
    verdicts = ", ".join(f"{name} **{found['verdict']}**" for name, found in drawn.items())
    print(f"\nVerdicts: {verdicts}. One core ({machines}), {max(found['drawn'] for found in drawn.values())}.")


def differences_of_b(drawn: dict[str, Any]) -> None:
    """Scores; what two figures have counts once."""
    base, rows = minatar.PRESETS["laptop"].base, []
    for name, effect in ((n, e) for n in ("B1a", "B1b", "BN") if n in drawn for e in drawn[n]["effects"]):
        if name == "BN" and effect["outcome"] != "reported":
            continue
        size = lambda m: f"{int(m[1]) * base['num_envs']} × {base['num_steps']}{', ' + m[2] if m[1] != '1' else ''}"  # noqa: E731
        what = re.sub(r"N (\d+), K (\d+)", r"\1 × \2", effect["what"].partition(", ")[2].replace("less", "minus"))
        what = re.sub(r"N × (\d+), ([^(]*?)(?: \(the paper\))?(?= minus|$)", size, what)
        of = study.differences(*map(np.array, effect["samples"]), 0.95, effects.REPETITIONS)
        rows.append([name, what, *(signed(*x, digits=2) for x in of.values()), effect["outcome"]])
    games = [game.removesuffix("-MinAtar") for game in GAMES]
    table(["", "score, difference", "interquartile mean", "mean", *games, "claimed above 0"], rows)
    print("\n95 % intervals: of the first a bootstrap, which decides; the others are Welch's.\n")


def measurements_of_b(drawn: dict[str, Any]) -> None:
    """What more data moved in the final network."""
    found = [effect for name in ("B3", "B4") if name in drawn for effect in drawn[name]["effects"]]
    rows = []
    for three in (found[i : i + 3] for i in range(0, len(found), 3)):  # as show_measured adds them
        name = three[0]["what"].partition(",")[0]
        log = name.startswith("log10 of ")
        tell = factor if log else lambda *x: signed(*x, digits=3)
        (more, base), _, (longer, _) = (list(map(np.array, e["samples"])) for e in three)
        last = effects.mean_over_games("", more, longer)
        of = [[np.nan if e[k] is None else e[k] for k in ("estimate", "low", "high")] for e in three]
        way, mean = "higher" if three[0]["above"] is not None else "lower", float(base.mean())
        rows.append([name.removeprefix("log10 of "), way, f"{10**mean if log else mean:.3g}",
                     *(tell(*x) for x in of), tell(last.estimate, last.low, last.high)])  # fmt: skip
    base, k = minatar.PRESETS["laptop"].base, minatar.MOST
    more, longer = f"{k * base['num_envs']} × {base['num_steps']}", f"{base['num_envs']} × {k * base['num_steps']}"
    head = ["measurement", "with more N, paper B", f"{base['num_envs']} × {base['num_steps']}", more]
    table([*head, f"{more}, more minibatches", longer, f"{more} minus {longer}"], rows)


def factor(estimate: float, low: float, high: float) -> str:
    """An effect on log10, as a factor."""
    return "× {:.2f} ({:.2f} to {:.2f})".format(*(10**x for x in (estimate, low, high)))


def plateaus() -> None:
    """What makes slow runs at a constant rate rise."""
    found = read("plateaus")
    runs, claims = found["runs"], slow.claimed(found["runs"])
    of = {arm: [run for run in runs.values() if run["arm"] == arm] for arm in ("parent", *slow.CHANGES)}
    interval = lambda x, digits=0: signed(x.estimate, x.low, x.high, digits)  # noqa: E731
    mean = lambda arm, key: float(np.mean([run[key] for run in of[arm]]))  # noqa: E731
    premise = mean("parent", "return") < study.GATE[GAMES[0]]
    text = f"The premise, parents below {study.GATE[GAMES[0]]}, {'holds' if premise else 'fails'}. "
    text += "Return less that without the change (99 %), where a change was made to several branches their mean, and "
    text += "whether it raises it: "
    text += "; ".join(f"{x.what} {interval(x, 1)}, **{x.outcome}**" for x in claims) + "."
    print(textwrap.fill(text, 118, break_on_hyphens=False))
    rows = []
    for arm in ("parent", *(arm for arm in slow.CHANGES if arm not in slow.IN_PICTURE)):
        what = "*parents*" if arm == "parent" else slow.CHANGES[arm][0]
        less = "" if arm in ("parent", "control") else interval(slow.branch(runs, arm))
        gains = " and ".join(f"{round(1000 * mean(arm, key), 1) + 0.0:.1f}" for key in ("own_gain", "fresh_gain"))
        clipped, kl = f"{100 * mean(arm, 'clipfrac'):.1f}", f"{1000 * mean(arm, 'kl'):.1f}"
        rows.append([what, f"{mean(arm, 'return'):.0f}", less, kl, gains.replace("-", "−"), clipped])
        rows[-1].append(f"{mean(arm, 'entropy'):.2f}")
    print()
    head = ["last quarter of", "return", "less the unchanged branch (99 %)", "`outer/kl` · 10³"]
    table([*head, "gain on own, fresh transitions · 10³", "clipped, %", "entropy"], rows)
    ends = lambda arm: ", ".join(f"{run['return']:.0f}" for run in sorted(of[arm], key=lambda run: run["seed"]))  # noqa: E731
    text = f"Parents, seed by seed: {ends('parent')}; learning rate ÷ 4: {ends('lr')}. With most probable actions "
    text += f"parents are at {mean('parent', 'greedy'):.0f}, unchanged branches at {mean('control', 'greedy'):.0f}; "
    played = (("learning rate ÷ 4", "lr"), ("entropy bonus ÷ 4", "bonus"))
    text += " and ".join(f"{what} adds {interval(slow.branch(runs, arm, 'greedy'))}" for what, arm in played)
    gained = slow.effect(runs, "", ("control",), ("parent",))
    text += f". Without a change the return rises by {interval(gained, 1)}. At bonus ÷ 4, 8 × environments add "
    text += interval(slow.effect(runs, "", ("bonus_envs",), ("bonus",)), 1)
    text += f" and ε ÷ 4 {interval(slow.effect(runs, '', ('eps_bonus',), ('bonus',)), 1)}. "
    text += f"One core each ({found['hardware']['cpu']}), {found['date'][:10]}."
    print("\n" + textwrap.fill(text, 118, break_on_hyphens=False))


def where_both_fall() -> np.ndarray:
    """Returns in the last quarter of training with the slow runs' flags, but for a rate and a bonus that fall to 0."""
    falling = [run for run in read("arms")["runs"].values() if (run["arm"], run["env_id"]) == ("small", GAMES[0])]
    return np.array([np.nanmean([point[2] for point in run["curve"][-len(run["curve"]) // 4 :]]) for run in falling])


def recipes() -> None:
    """Paper A's recipe on two games, beside larger minibatches."""
    found = read("recipes")
    of = moulds.by_arm(found["runs"], read("arms")["runs"])
    short = {game: game.removesuffix("-MinAtar") for game in moulds.SEEDS}
    other = {"larger": "minibatches 8 × as large", "root": "these and √8 × the rate", "small": "64 environments"}

    def less(a: str, b: str) -> str:
        effects = moulds.less(of, a, b).items()
        told = (f"{short[game]} {signed(x.estimate, x.low, x.high, 2)}" for game, x in effects)
        return f"with {other[b]}: {', '.join(told)}"

    told = "; ".join(f"{less(*claim)}, **{moulds.judged(of, *claim)}**" for claim in moulds.CLAIMS)
    told = f"({100 * moulds.LEVEL:.4g} %) less that of 512 {told}"
    rows, timed = [], next(iter(short))  # the game of which all arms ran on one machine
    for arm, (what, _) in moulds.RECIPES.items():
        ends = (np.array([run["return"] for run in of[arm, game]]) for game in short)
        gains = " and ".join(f"{lasting.gains(of[arm, game], game).mean():+.2f}" for game in short).replace("-", "−")
        kl, seconds = ([run[key] for run in of[arm, timed]] for key in ("kl", "seconds"))
        row = [*("{:.1f} ± {:.1f} ({})".format(*plots.mean_and_ci(x), len(x)) for x in ends), gains]
        rows.append([what, *row, f"{1000 * np.mean(kl):.1f}", f"{np.median(seconds) / 60:.1f}"])
    head = [f"{what}, {short[timed]}" for what in ("`outer/kl` · 10³", "minutes")]
    table(["environments", *short.values(), "gain in the second half (score)", *head], rows)
    text = f"Returns: mean ± half the 95 % interval (seeds). The recipe's score {told}. Reported: less that "
    text += f"{less('recipe', 'small')}. The last row was added afterwards. One core each "
    text += f"({found['hardware']['cpu']}; 64 environments on SpaceInvaders: another machine), {found['date'][:10]}."
    print("\n" + textwrap.fill(text, 118, break_on_hyphens=False))


def fresh_gain() -> None:
    """What the log's fresh gains could tell of runs that rise."""
    found, rows = read("fresh_gain"), []
    two, times, shares = lambda x: f"{float(f'{x:.2g}'):,.10g}".replace("-", "−"), [], []
    for arm, eighths in instrument.over_seeds(found["runs"]).items():
        ratios = [of["half"] / of["required"] for of in eighths]
        times.append(f"{two(min(ratios))} to {two(max(ratios))} times")
        first, *later = (100 * (of["fresh"] + of["half"]) / of["own"] for of in eighths)
        shares.append(f"{two(first)} % in the first eighth and {two(max(later))} % later")
        for at in (0, 7):
            of = eighths[at]
            gains = {name: two(1e6 * of[name]) for name in ("required", "fresh", "half", "own")}
            row = [f"{study.ARMS[arm][0]:,} × {study.ARMS[arm][1]}", at + 1, f"{of['return']:.0f}", two(of["rise"])]
            row += [gains["required"], f"{gains['fresh']} ± {gains['half']}", gains["own"]]
            rows.append([*row, *(two(of[name] / 1e6) for name in ("transitions", "would_tell"))])
    head = ["N × K", "eighth", "return", "rise in an update", "gain required · 10⁶", "on fresh transitions · 10⁶"]
    table([*head, "on its own · 10⁶", "transitions, millions", "that would tell, millions"], rows)
    text = f"± is half the 95 % interval, from the spread over updates. It is {times[0]} what is required with 64 "
    text += f"environments, {times[1]} with 4,096. Of an update's own gain there can be on fresh transitions, with 64 "
    text += f"environments, at most {shares[0]}, with 4,096 {shares[1]}."
    print("\n" + textwrap.fill(text, 118, break_on_hyphens=False))


def third_game() -> None:
    """The arms on a third game, with flags that were searched on the others and with flags that were searched there."""
    found, runs = read("arms"), read("third_game")["runs"]
    third = study.on_third(found["runs"], read("recipes")["runs"])
    borrowed, claim = study.third_effects(found, third), searched.claimed(runs, third)
    own = {number: searched.tested(runs, number) for number in searched.NUMBERS if searched.tested(runs, number)}
    lines = [(named(arm), "of the other games" if arm != "long" else "the defaults'", of) for arm, of in third.items()]
    of_later = study.of_later(found)
    lines.insert(1, (named(study.LATER), "of the other games", of_later))
    afterwards = [run for run in found["runs"].values() if run["arm"] == study.BORROWED]
    lines += [(named("many"), "the defaults' (afterwards)", afterwards)] if afterwards else []
    for number, of in own.items():
        (best,) = searched.best(runs, number)
        x = searched.flag_sets(number)[best]
        flags = f"searched there: rate {x['learning_rate']:.3g}, minibatch {x['minibatch_size']:,}, epochs "
        flags += f"{x['update_epochs']}, λ {x['gae_lambda']:.2f}, ε {x['clip_eps']:.2f}, entropy {x['ent_coef']:.3g}"
        lines.append((named(number), flags, of))
    rows = []
    for name, flags, of in lines:
        timed = [run for run in of if of is not third["small"] or run["seed"] >= study.EARLIER]  # on one machine
        until = np.median([next((s for _, s, value in run["curve"] if (value or 0) >= 10), np.inf) for run in timed])
        mean, half = plots.mean_and_ci(np.array([run["return"] for run in of]))
        minutes = f"{np.median([run['seconds'] for run in timed]) / 60:.1f}"
        minutes += f" ({len(timed)} runs)" * (len(timed) < len(of))
        row = [name, flags, f"{mean:.1f} ± {half:.1f} ({len(of)})", minutes]
        rows.append([*row, "–" if np.isinf(until) else f"{until / 60:.1f}"])
    table(["N × K", "flags", "Asterix", "minutes", "minutes until 10 in training"], rows)
    many_less_small = f"{named('many')} minus {named('small')}"
    verdict = borrowed_verdict(found, third)
    text = f"Scores, {many_less_small}, 95 %: with the other games' flags {signed(*borrowed[PAIR][0], 2)}, "
    text += f"**{verdict}**; with flags searched there {signed(*claim.less[1:4], 2)}, **{claim.verdict}**; the second "
    text += f"less the first {signed(*claim.gone, 2)}: **{claim.answer}**. "
    less, verdict, of_many = study.later_on_third(found, third)
    text += f"With the other games' flags {named(study.LATER)} minus {named('small')} {signed(*less[1:4], 2)}, "
    text += f"**{verdict}**. "
    gates = searched.passes_gate([own["many"], own["small"]]), searched.passes_gate([own["many"]])
    if gates == (True, False):
        text += f"Twelve sets of flags had none with which {named('many')} reach pgx's PPO. "
    others = [f"{named(a)} minus {named(b)} {signed(*borrowed[a, b][0], 2)}" for a, b in study.PAIRS[1:]]
    same = effects.difference("", *(searched.scores(of) for of in (afterwards, third["long"])))
    others.append(f"with the defaults' flags, {named('many')} minus {named('long')} {signed(*same[1:4], 2)}")
    if "middle" in own:
        scores = {number: searched.scores(of) for number, of in own.items()}
        less = {number: effects.difference("", scores["middle"], scores[number]) for number in ("small", "many")}
        others += [f"searched there, {named('middle')} minus {named(n)} {signed(*x[1:4], 2)}" for n, x in less.items()]
    others.append(f"with the other games' flags, {named('many')} minus {named(study.LATER)} {signed(*of_many[1:4], 2)}")
    both = moulds.by_arm(read("recipes")["runs"], found["runs"])
    same, larger = (np.mean([run["return"] for run in both[arm, study.THIRD]]) for arm in ("recipe", "larger"))
    others.append(f"512 × 32 with the flags of {named('small')} {same:.1f}, with minibatches × 8 {larger:.1f}")
    three = [f"{named(a)} minus {named(b)} {signed(*borrowed[a, b][1], 2)}" for a, b in study.PAIRS]
    text += f"Without a verdict: {'; '.join(others)}; over the three games, with the other games' flags (thought of "
    text += f"when two were known), {'; '.join(three)}. Rank correlation of the "
    ends, sets = {number: searched.ends(runs, number) for number in own}, range(searched.SETS)
    tried = {number: [ends[number][index, searched.TRIED] for index in sets] for number in own}
    rank = stats.spearmanr(tried["small"], tried["many"]).statistic
    text += f"twelve sets' returns with both numbers, seed 100: {rank:.2f}. ".replace("-", "−")
    text += where([run for of in own.values() for run in of])
    print("\n" + textwrap.fill(text, 118, break_on_hyphens=False))


def later_arm() -> None:
    """What the rules want told of the arm of 512 environments: the means' verdicts, what its search added to the flags
    of another, and the minutes of all arms on one kind of machine."""
    found, game = read("arms"), study.GAMES[1]
    scores, level = study.looked_at(study.returns(found))
    if len(later := scores[study.LATER]) < effects.FEWEST:
        return
    by_mean = []
    for number, (a, b, _, *margin) in enumerate(study.CLAIMS, 1):
        if study.LATER in (a, b):
            _, low, high = study.differences(scores[a], scores[b], level)["mean"]
            verdict = study.told_of(study.judged(low, high, *margin), high, b, margin[0])
            by_mean.append(f"claim {number} {verdict}")
    theirs = [x for x in read("recipes")["runs"].values() if (x["arm"], x["env_id"]) == ("larger", game)]
    less = effects.difference("", later[:, 1], np.array([reference_score(game, x["return"]) for x in theirs]))
    text = f"By the means' intervals: {', '.join(by_mean)}. {named(study.LATER)} less 512 × 32 with the flags of "
    text += "64 × 32 and minibatches 8 × as large, "
    text += f"{game.removesuffix('-MinAtar')} (95 %): {signed(*less[1:4], 2)}. "
    minutes = []
    order = sorted(study.ARMS, key=lambda arm: study.ARMS[arm][1::-1])
    for arm in order:
        runs = [run for run in found["runs"].values() if run["arm"] == arm and "Intel" in run["machine"]["cpu"]]
        if not runs:
            continue
        took = [np.median([run["seconds"] for run in runs if run["env_id"] == game]) / 60 for game in study.GAMES]
        minutes.append(f"{named(arm)} {took[0]:.1f} and {took[1]:.1f}")
    text += f"Minutes of a run on one core of an Intel Xeon, another busy (medians): {'; '.join(minutes)}. "
    lowest = (f"{named(arm)} {min(study.returns(found)[arm][study.GAMES[0]].values()):.0f}" for arm in order)
    num_envs, num_steps, _ = study.ARMS[study.LATER]
    flags = {"num_envs": num_envs, "num_steps": num_steps} | study.ranked(found["trials"][study.LATER])[0]["flags"]
    text += f"Lowest seed on Breakout: {', '.join(lowest)}. Flags of {named(study.LATER)}: "
    text += f"`{' '.join(grid.spelled(flags))}`. "
    most = {run["env_id"]: run["return"] for run in found["runs"].values() if run["arm"] == study.ONCE}
    if len(most) == len(study.GAMES):
        text += f"{study.MILLION:,} × 32, ten updates with the flags of {named('many')}, one seed: "
        ends = (f"{game.removesuffix('-MinAtar')} {most[game]:.0f}" for game in study.GAMES)
        text += f"{', '.join(ends)}."
    print(textwrap.fill(text, 118, break_on_hyphens=False))


def what_the_doctor_says() -> None:
    """What doctor.py calls unusual in the slow runs, and where they end without it."""
    made = ppo.Args(**dict(slow.cell(0).flags))
    odd = usual.far(made, usual.alike("ppo", made))
    ends = where_both_fall()
    slowly = [run["return"] for run in read("plateaus")["runs"].values() if run["arm"] == "parent"]
    text = f"`doctor.py` calls unusual in all six: {', '.join(odd)} (the bonus only since these runs); in its first "
    text += f"command both fall. With a rate and a bonus that fall, {len(ends)} runs of as many steps were at "
    text += f"{said(ends)} in the last quarter, {sum(ends < lasting.WALL)} of them below {lasting.WALL}; the six at "
    text += f"{said(slowly)}."
    print(textwrap.fill(text, 118, break_on_hyphens=False))


def asked() -> None:
    """What was asked of the number of environments: each pair of arms with its difference and the answer."""
    found = read("arms")
    runs, third = study.returns(found), study.on_third(found["runs"], read("recipes")["runs"])
    scores, level = study.looked_at(runs)
    rows = []
    claims = claims_of_arms(scores, level, study.fails_gate(runs))
    for (a, b, claim, *_), row in zip(study.CLAIMS, claims, strict=True):
        first = claim + ": " if claim.startswith("equal") else "by 0.05: " * (row[-1] == "refuted")
        rows.append([f"{named(a)} less {named(b)}", row[3], first + row[-1]])
    less, verdict, _ = study.later_on_third(found, third)
    rows.append([f"Asterix\\*, {named(study.LATER)} less {named('small')}", signed(*less[1:4], 2), verdict])
    (borrowed, _), own = study.third_effects(found, third)[PAIR], searched.claimed(read("third_game")["runs"], third)
    rows.append([f"Asterix\\*, {named('many')} less {named('small')}", signed(*borrowed, 2)])
    rows[-1].append(borrowed_verdict(found, third))
    table(["", "difference of scores", "more environments end higher?"], rows)
    text = "A score is 0 for a random policy and 1 for a published one. On Breakout and SpaceInvaders together "
    text += f"interquartile means of ten seeds, {100 * level:.4g} %, on Asterix means of six, 95 %. \\* With the flags "
    text += "of the other games, which did not transfer; with flags [searched there](docs/report.md#on-a-third-game): "
    text += f"{own.verdict}. "
    long = read("long_runs")["runs"]
    of = {arm: lasting.by_arm(long, [arm])[arm] for arm in ("middle", "many", "small")}
    ends = (f"{named(arm)} at {said([run['return'] for run in runs])}" for arm, runs in of.items())
    text += "[Three times as long](docs/report.md#runs-three-and-ten-times-as-long) on Breakout, five runs each ended, "
    text += f"{', '.join(ends)}; {sum(map(lasting.stands_still, of['small']))} of those of 64 stands still, of the "
    text += f"others {sum(map(lasting.stands_still, of['middle'] + of['many'])) or 'none'}. More: [paper A's "
    text += "recipe](docs/report.md#paper-as-recipe-on-minatar), [is it the "
    text += "noise?](docs/report.md#what-fresh-gains-can-tell)"
    print("\n" + textwrap.fill(text, 118, break_on_hyphens=False, break_long_words=False))


def borrowed_verdict(found: dict[str, Any], third: dict[str, list[dict[str, Any]]]) -> str:
    """What the rules say of more environments on the third game, with flags of the other games."""
    (_, low, high), _ = study.third_effects(found, third)[PAIR]
    return study.of_more(low, high, "small")
