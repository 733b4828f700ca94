"""The tasks on which learning.py says how well these scripts learn: commands, and scores to compare with."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

PEER = "benchmarks/peers.py"  # other programs; their flags are in that file


@dataclass(frozen=True)
class Row:
    """A line of the page: runs of one command that differ in their seeds."""

    name: str
    group: str
    task: str
    script: str
    flags: str  # as typed, but for the seed
    reference: float | None = None  # a score to compare with,
    source: str = ""  # and whose it is
    against: str = ""  # or another row to compare with
    goals: tuple[float, ...] = ()  # the page says after how many seconds the return in training is each
    seeds: int = 5
    alone: bool = False  # on all cores
    plain: bool = False  # its policies, trained with sticky actions, are played without

    def command(self, seed: int) -> str:
        """What a user types. It identifies a run."""
        core = "" if self.alone or self.script == PEER else "--num-devices 1"
        return " ".join(filter(None, ("python", self.script, self.flags, f"--seed {seed}", core)))


STEPS = 10_485_760
DISCOGEN, PGX, ZOO = "discogen's PPO", "pgx's PPO, 20M steps", "rl-zoo's PPO"
GROUPS = {  # what the page says of each
    "headline": (
        "Seconds until a score",
        "Each run was alone on all cores. Seconds are those of training; on top come imports and compiling, of which "
        "the table has the longest (about 2 s where JAX's cache has our program). Compare runs on one CPU. The other "
        "programs train in one call, so their seconds are taken to pass evenly. Three seeds mislead (two more of ours "
        "with PureJaxRL's flags ended at 57 and 52 on such a CPU): compare minutes. rejax (one seed ended at 0.5) has "
        "these flags, but clips by element, with Adam's epsilon 1e-8 and flax's initialisation. PureJaxQL has its own "
        "settings for MinAtar, which `pqn.py` has by default, but for [a few "
        "things](pqn.md#deviations-from-the-authors-code); in training 5 % of its actions are random.",
    ),
    "same_flags": (
        "The same flags as PureJaxRL",
        "PureJaxRL's own `ppo.py` and ours, with all flags of its notebook for MinAtar. Both programs' policies are "
        "evaluated by our code in gymnax 1.0.1. PureJaxRL trains in gymnax 0.0.9, where a time limit counts as an end, "
        "but with the two rules of SpaceInvaders that 1.0.1 has mended.",
    ),
    "minatar": (
        "MinAtar",
        "gymnax's games, in which no action is repeated by chance.",
    ),
    "minatar_sticky": (
        "MinAtar with sticky actions",
        "With probability 0.1 the last action is repeated. The references are read off curves.",
    ),
    "classic": ("Classic control", "gymnax's tasks."),
    "control": ("Continuous control", "Tasks of brax. The references had five times the steps."),
    "others": (
        "Other environments",
        "The reference of Craftax-Classic had ten times the steps. LunarLander needs "
        '`pip install "gymnasium[box2d]==1.3.0"`.',
    ),
    "memory": ("Beside ppo.py", "Other scripts, and `ppo.py` with the same flags."),
}

# What is usual where observations are a few numbers and a step is dear: small rates, tanh, long returns.
TANH = "--learning-rate 1e-3 --activation tanh --no-layer-norm --clip-vloss --update-epochs 4 --no-anneal-ent"
# Task: score, whose it is, flags of ppo.py.
CLASSIC = {
    "CartPole": (
        500,
        ZOO,
        f"--env-id CartPole-v1 --num-envs 64 --num-steps 128 --minibatch-size 1024 {TANH} --gamma 0.99 "
        "--gae-lambda 0.95 --ent-coef 0.01 --total-timesteps 1000000",
    ),
    "Acrobot": (
        -73.5,
        ZOO,
        f"--env-id Acrobot-v1 --num-envs 16 --num-steps 256 --minibatch-size 128 {TANH} --gamma 0.99 --gae-lambda 0.94 "
        "--ent-coef 0 --norm-obs --norm-reward --total-timesteps 1000000",
    ),
    "MountainCar": (
        -110,
        ZOO,
        f"--env-id MountainCar-v0 --num-envs 64 --num-steps 64 --minibatch-size 512 {TANH} --gamma 0.99 "
        "--gae-lambda 0.98 --ent-coef 0.01 --norm-obs --norm-reward --total-timesteps 2000000",
    ),
    "Pendulum": (
        -172,
        ZOO,
        "--env-id Pendulum-v1 --num-envs 32 --num-steps 64 --update-epochs 8 --minibatch-size 256 --learning-rate 1e-3 "
        "--activation tanh --no-layer-norm --clip-vloss --gamma 0.95 --gae-lambda 0.95 --ent-coef 0 --no-anneal-ent "
        "--clip-eps 0.1 --total-timesteps 3000000",
    ),
    "MountainCarContinuous": (
        90,
        ZOO,
        f"--env-id MountainCarContinuous-v0 --num-envs 64 --num-steps 64 --minibatch-size 512 {TANH} --gamma 0.99 "
        "--gae-lambda 0.95 --ent-coef 0.01 --norm-obs --norm-reward --total-timesteps 2000000",
    ),
}
BRAX = (
    f"--num-envs 512 --num-steps 16 --minibatch-size 1024 {TANH} --gamma 0.97 --gae-lambda 0.95 --norm-obs "
    "--norm-reward --ent-coef 0 --total-timesteps 10000000"
)
CONTROL = {
    "HalfCheetah": (5049, f"{DISCOGEN}, 50M steps", f"--env-id brax/halfcheetah {BRAX}"),
    "Ant": (7091, f"{DISCOGEN}, 50M steps", f"--env-id brax/ant {BRAX}"),
    "Hopper": (2504, f"{DISCOGEN}, 50M steps", f"--env-id brax/hopper {BRAX}"),
    "CartpoleSwingup": (
        None,
        "",
        f"--env-id playground/CartpoleSwingup --num-envs 256 --minibatch-size 1024 --stagger-resets 1000 {TANH} "
        "--gamma 0.99 --gae-lambda 0.95 --norm-obs --ent-coef 0 --total-timesteps 5000000",
    ),
}
OTHERS = {
    "Craftax-Classic": (
        16.9,
        "published PPO, 100M steps",
        "--env-id craftax/Craftax-Classic-Symbolic-v1 --num-envs 256 --minibatch-size 1024 --total-timesteps 10000000",
    ),
    "LunarLander": (
        200,
        "what counts as solved",
        "--env-id gymnasium/LunarLander-v3 --num-envs 64 --num-steps 128 --minibatch-size 256 --learning-rate 1e-3 "
        "--activation tanh --no-layer-norm --no-clip-vloss --no-anneal-ent --update-epochs 4 --gamma 0.999 "
        "--gae-lambda 0.98 --ent-coef 0.01 --norm-reward --total-timesteps 2000000",
    ),
}
# What ppo_rnd.py has by default, for the ppo.py beside it.
OF_RND = "--gamma 0.999 --gae-lambda 0.95 --clip-eps 0.1 --ent-coef 0.001 --no-anneal-ent"
# Task: the script beside ppo.py, flags of both.
PAIRS = {
    "MemoryChain": (
        "ppo_rnn.py",
        f"--env-id MemoryChain-bsuite --env-kwargs '{{\"memory_length\": 20}}' --num-envs 128 --num-steps 64 "
        f"--minibatch-size 1024 {TANH} --gamma 0.99 --gae-lambda 0.95 --ent-coef 0.01 --total-timesteps 262144",
    ),
    "CartPole without velocities": (
        "ppo_rnn.py",
        f"--env-id benchmarks/masked_cartpole.py:Masked --num-envs 64 --num-steps 128 --minibatch-size 1024 {TANH} "
        "--gamma 0.99 --gae-lambda 0.95 --ent-coef 0.01 --total-timesteps 1000000",
    ),
    "DeepSea, 20 × 20": (
        "ppo_rnd.py",
        "--env-id DeepSea-bsuite --env-kwargs '{\"size\": 20}' --num-envs 64 --minibatch-size 512 "
        "--total-timesteps 2097152",
    ),
    "DoorKey-8x8": (
        "ppo_rnd.py",
        "--env-id xminigrid/MiniGrid-DoorKey-8x8 --env-kwargs '{\"max_steps\": 100}' --num-envs 512 --num-steps 16 "
        "--minibatch-size 1024 --total-timesteps 4194304",
    ),
    "Breakout, 3,072 environments": ("sapg.py", f"--num-envs 3072 --total-timesteps {STEPS}"),
}
# Game: scores of discogen and pgx.
GAMES = {"Breakout": (69.9, 50), "Asterix": (17.0, 22), "SpaceInvaders": (180.9, 144), "Freeway": (61.8, 63.5)}
GOALS = {"Breakout": (40, 70), "SpaceInvaders": (150,)}
# The flags of PureJaxRL's notebook for MinAtar, with all that might have another default here one day.
SAME = (
    "--num-envs 64 --num-steps 128 --num-minibatches 8 --update-epochs 4 --learning-rate 5e-3 --anneal-lr "
    "--activation relu --no-layer-norm --network mlp --hidden-sizes 64 64 --gamma 0.99 --gae-lambda 0.95 "
    "--clip-eps 0.2 --clip-vloss --ent-coef 0.01 --no-anneal-ent --vf-coef 0.5 --max-grad-norm 0.5"
)


def short(task: str) -> str:
    """A task's part of a row's name."""
    return task.partition(",")[0].lower().replace("-", "_").replace(" ", "_")


def headline() -> Iterator[Row]:
    for game, goals in GOALS.items():
        alone = {"group": "headline", "task": game, "goals": goals, "seeds": 3, "alone": True}
        ours = {"script": "ppo.py", "reference": GAMES[game][0], "source": DISCOGEN} | alone
        if game == "Breakout":  # the default
            yield Row("headline_2048", flags="", **ours)
            yield from (Row(f"headline_{n}", flags=f"--num-envs {n}", **ours) for n in (64, 512, 8192))
        else:
            yield Row(f"headline_{game.lower()}", flags=f"--env-id {game}-MinAtar", **ours)
        name, flags = f"seconds_{game.lower()}", f"--env-id {game}-MinAtar --total-timesteps {STEPS}"
        yield Row(f"{name}_peer", script=PEER, flags=f"--program purejaxrl {flags}", **alone)
        yield Row(f"{name}_ours", script="ppo.py", flags=f"{flags} {SAME}", **alone)
        yield Row(f"{name}_rejax", script=PEER, flags=f"--program rejax {flags}", **alone)
        yield Row(f"{name}_pqn", script="pqn.py", flags=flags, **alone)
        yield Row(f"{name}_purejaxql", script=PEER, flags=f"--program purejaxql {flags}", **alone)


def beside_purejaxrl() -> Iterator[Row]:
    for game in GOALS:
        for label, steps in (("4M", 4_194_304), ("10M", STEPS)):
            where, name = f"--env-id {game}-MinAtar --total-timesteps {steps}", f"same_flags_{game.lower()}_{label}"
            yield Row(f"{name}_peer", "same_flags", game, PEER, f"--program purejaxrl {where}", seeds=10)
            yield Row(f"{name}_ours", "same_flags", game, "ppo.py", f"{where} {SAME}", against=f"{name}_peer", seeds=10)


def on_minatar() -> Iterator[Row]:
    for index, (suffix, sticky) in enumerate((("", ""), ("_sticky", " --sticky-actions 0.1"))):
        for game, scores in GAMES.items():
            flags = f"--env-id {game}-MinAtar --total-timesteps {STEPS}{sticky}"
            rest = {"group": f"minatar{suffix}", "task": game}
            rest |= {"reference": scores[index], "source": (DISCOGEN, PGX)[index]}
            numbers = (2048,) if sticky else (64, 2048) if game == "Freeway" else (64, 512, 2048, 8192)
            for number in numbers:  # 2048 is the default
                more = "" if number == 2048 else f" --num-envs {number}"
                yield Row(f"{game.lower()}{suffix}_ppo_{number}", script="ppo.py", flags=flags + more, **rest)
            if not sticky and game != "Freeway":
                chance: dict[str, Any] = {"flags": f"{flags} --sticky-actions 0.1", "plain": True}
                chance["seeds"] = 10 if game == "Breakout" else 3
                yield Row(f"{game.lower()}_chance", script="ppo.py", **chance, **rest)
            for script in () if sticky or game == "Freeway" else ("ppo_ewma", "pqn"):
                yield Row(f"{game.lower()}_{script}", script=f"{script}.py", flags=flags, **rest)


def million() -> Iterator[Row]:
    """Ten updates of CartPole, twelve of Breakout."""
    flags, score, source = "--env-id CartPole-v1 --num-envs 1048576 --num-steps 16", *CLASSIC["CartPole"][:2]
    flags += f" --total-timesteps {10 * 16 * 2**20}"
    yield Row("cartpole_ppo_1048576", "classic", "CartPole", "ppo.py", flags, score, source, seeds=1, alone=True)
    flags, score = f"--num-envs 1048576 --num-steps 16 --total-timesteps {12 * 16 * 2**20}", GAMES["Breakout"][0]
    yield Row("breakout_ppo_1048576", "minatar", "Breakout", "ppo.py", flags, score, DISCOGEN, seeds=1, alone=True)


def plain() -> Iterator[Row]:
    for group, tasks in {"classic": CLASSIC, "control": CONTROL, "others": OTHERS}.items():
        for task, (score, source, flags) in tasks.items():
            yield Row(short(task), group, task, "ppo.py", flags, score, source)


def pairs() -> Iterator[Row]:
    for task, (script, flags) in PAIRS.items():
        name, kind = short(task), script.removesuffix(".py")
        same = f"{flags} {OF_RND}" if kind == "ppo_rnd" else flags
        yield Row(f"{name}_beside_{kind}", "memory", task, "ppo.py", same)
        yield Row(f"{name}_{kind}", "memory", task, script, flags, against=f"{name}_beside_{kind}")


TABLE = {row.name: row for row in (*headline(), *beside_purejaxrl(), *on_minatar(), *plain(), *million(), *pairs())}
