"""The training scripts share no code with each other: what they have in common is the same to the letter."""

import ast
import importlib.util
import types
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Not what a user has copied from them.
NAMES = ("ppo", "ppo_ewma", "ppo_rnd", "ppo_rnn", "sapg", "pqn", "sfl_kinetix", "stochastic_opt", "figures")
SCRIPTS = {name: ast.parse((ROOT / f"{name}.py").read_text()) for name in NAMES}


def because(reason, names):
    """Definitions of the same name that may differ, and why."""
    return dict.fromkeys(names.split(), reason)


PROXIMAL, Q = "carries the proximal policy", "Q-learning in place of a policy and its values"
TABLES = "the defaults of Beukman et al. 2026, tables 2 and 3"
LEVELS = "environments begin anew in each update, on levels of their own; observations are not normalised"
Q_DIFFERENT = because(
    Q,
    "SAME Transition Batch TrainState forward rollout optimise measure_plasticity update init_state build train "
    "Args.__post_init__ Args.learning_rate Args.max_grad_norm Args.hidden_sizes Args.gamma Args.update_epochs "
    "Args.network Args.num_envs Args.minibatch_size",
)
SFL_DIFFERENT = {
    **because(TABLES, "Args.total_timesteps Args.num_steps Args.gamma Args.update_epochs Args.minibatch_size"),
    **because(TABLES, "Args.learning_rate"),
    **because("Kinetix's random levels and networks alone", "Args.env_id Args.network SAME"),
    **because(LEVELS, "Learner TrainState forward rollout update init_state build measure_plasticity"),
    **because("another size of minibatches", "Args.__post_init__"),
    **because("no statistics of observations; the proximal policy may be the behaviour policy", "optimise"),
    **because("searches for levels, evaluates on several sets of them, or only evaluates", "train"),
}
PPO_SFL_DIFFERENT = {name: why for name, why in SFL_DIFFERENT.items() if name != "Args.gamma"} | {
    **because(TABLES, "Args.ent_coef Args.clip_vloss Args.anneal_lr Args.gae_lambda"),
    **because("names either policy that it is near", "Args.clip_eps"),
    **because("with --com as in ppo_ewma.py, without as in ppo.py", "ppo_loss"),
}
BLOCKS = "policies of several blocks, of which the leader also learns from another one"
SAPG_DIFFERENT = {
    **because(BLOCKS, "Args.__post_init__ Args.num_envs Args.ent_coef Encoder ActorCritic Transition Batch forward"),
    **because(BLOCKS, "rollout ppo_loss optimise measure_plasticity update init_state build train"),
    **because("--norm-value", "Learner SAME"),
    **because("--adaptive-lr-kl", "TrainState"),
}
TWO_REWARDS = "two rewards, two values, and a predictor that learns what has been seen"
RND_DIFFERENT = {
    **because(TWO_REWARDS, "Learner Environments Transition Batch ActorCritic forward rollout ppo_loss optimise"),
    **because(TWO_REWARDS, "update init_state"),
    **because("the defaults of Burda et al. 2018", "Args.gamma Args.gae_lambda Args.clip_eps Args.ent_coef"),
    **because("the defaults of Burda et al. 2018", "Args.anneal_ent"),
}
MEMORY = "cells with states, which each environment keeps and each sequence starts from"
RNN_DIFFERENT = {
    **because(MEMORY, "ActorCritic forward Environments Transition Batch rollout ppo_loss update init_state train"),
    **because("of whole sequences", "optimise measure_plasticity build Args.__post_init__"),
}
BOWL = {
    **because("a bowl in place of environments", "TrainState update init_state train"),
    **because("gradient steps, not steps of an environment", "Args.num_steps"),
    **because("of gradient descent, not of Adam", "Args.learning_rate"),
    **because("step by step", "Args.anneal_lr"),
    **because("a name, not a flag", "Args.env_id"),
    **because("checks its own flags", "Args.__post_init__"),
}
DIFFERENT = {
    ("ppo", "ppo_rnn"): RNN_DIFFERENT,
    ("ppo", "ppo_rnd"): RND_DIFFERENT,
    ("ppo", "sapg"): SAPG_DIFFERENT,
    ("ppo", "sfl_kinetix"): PPO_SFL_DIFFERENT,
    ("ppo_ewma", "sfl_kinetix"): PPO_SFL_DIFFERENT | because("None, the default, is PPO", "Args.com"),
    ("pqn", "sfl_kinetix"): SFL_DIFFERENT
    | because(Q, "Args.max_grad_norm Args.num_envs Args.anneal_lr Batch Transition optimise"),
    ("ppo", "ppo_ewma"): {
        **because(PROXIMAL, "Learner optimise init_state measure_plasticity"),
        **because("the decoupled objective", "ppo_loss"),
        **because("--init-from takes a run of ppo.py, too", "train"),
        **because("another policy to be near", "Args.clip_eps"),
    },
    ("ppo", "pqn"): Q_DIFFERENT,
    ("ppo_ewma", "pqn"): Q_DIFFERENT | because(PROXIMAL, "Learner"),
    **{(script, "stochastic_opt"): BOWL for script in ("ppo", "ppo_ewma", "pqn", "sfl_kinetix")},
}
TRAINING = [name for name, tree in SCRIPTS.items() if any(getattr(node, "name", "") == "train" for node in tree.body)]
# Of ppo.py, and compared with it alone: what is as in ppo.py is the same in all of them.
FORKS = ("ppo_rnd", "ppo_rnn", "sapg")
PAIRS = [pair for pair in combinations(TRAINING, 2) if "ppo" in pair or not set(pair) & set(FORKS)]


def definitions(tree):
    """Name -> what stands there, for functions, classes, constants and the fields of Args with their docstrings."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Args":
            found |= {f"Args.{name}": text for name, text in fields(node).items()}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = ast.dump(node)
        elif isinstance(node, ast.Assign):
            found[ast.unparse(node.targets[0])] = ast.dump(node)
    return found


def fields(args):
    """Annotation, default and docstring of each field; methods as they are."""
    found = {}
    for node, following in zip(args.body, [*args.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign):
            documented = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            found[node.target.id] = ast.dump(node) + (following.value.value if documented else "")
        elif isinstance(node, ast.FunctionDef):
            found[node.name] = ast.dump(node)
    return found


def unequal(one, other):
    """The names that both have, and do not mean the same by."""
    ours, theirs = definitions(one), definitions(other)
    return {name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name]}


def imported(tree):
    """The top-level names of all modules that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names


@pytest.mark.parametrize("one, other", PAIRS)
def test_what_two_scripts_share_is_the_same_to_the_letter_unless_listed(one, other):
    """A listed difference that is none any more is as wrong as one that is not listed."""
    assert unequal(SCRIPTS[one], SCRIPTS[other]) == set(DIFFERENT.get((one, other), {}))


def test_only_scripts_that_exist_are_listed():
    assert set(DIFFERENT) <= set(PAIRS) and {"rollout", "ADAM", "Args.gamma"} <= definitions(SCRIPTS["ppo"]).keys()


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_imports_another(name):
    assert "common" in imported(SCRIPTS[name]) and not imported(SCRIPTS[name]) & SCRIPTS.keys()


@pytest.mark.parametrize("path", sorted((ROOT / "common").rglob("*.py")), ids=lambda path: path.stem)
def test_common_knows_no_algorithm(path):
    """It imports no script, and what makes an algorithm is defined in the scripts alone."""
    tree = ast.parse(path.read_text())
    assert not imported(tree) & (SCRIPTS.keys() | {"optax"})
    algorithm = "compute_gae ppo_loss optimise value_and_grad grad clip_eps gae_lambda"
    assert not (words(tree).keys() | defined(tree).keys()) & set(algorithm.split())


def words(tree):
    """The names that a piece of code uses, and how often."""
    nodes = list(ast.walk(tree))
    used = Counter(node.id for node in nodes if isinstance(node, ast.Name))
    used.update(node.attr for node in nodes if isinstance(node, ast.Attribute))
    used.update(alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names)
    return used


def defined(tree):
    """Name -> definition, of functions, classes and their methods. A class with bases may be called by those."""
    found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in [node for node in found.values() if isinstance(node, ast.ClassDef)]:
        found |= {method.name: method for method in node.body if isinstance(method, ast.FunctionDef)}
    return {name: node for name, node in found.items() if not name.startswith("_")}


def for_one_script(modules, scripts):
    """What is defined in these modules and used by a single script and by nothing else."""
    found = []
    by_script, by_module = ({name: words(tree) for name, tree in trees.items()} for trees in (scripts, modules))
    for path, tree in modules.items():
        for name, node in defined(tree).items():
            users = [script for script, used in by_script.items() if name in used]
            inside = sum(name in used for other, used in by_module.items() if other != path)
            rest = by_module[path][name] - words(node)[name]
            if len(users) == 1 and not inside and not rest:
                found.append(f"{path}: {name} is there for {users[0]} alone")
    return found


ADAPTERS = ("LevelEnv",)  # adapters of suites and wrappers of environments may be


def test_nothing_in_common_exists_for_one_script():
    paths = [path for path in (ROOT / "common").rglob("*.py") if "suites" not in path.parts]
    modules = {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}
    wrappers = {name for tree in modules.values() for name in defined(tree) if name in ADAPTERS}
    assert wrappers == set(ADAPTERS)
    found = for_one_script(modules, SCRIPTS)
    tuning = set().union(*(words(ast.parse(path.read_text())) for path in (ROOT / "tuning").glob("*.py")))
    assert [line for line in found if line.split()[1] not in {*ADAPTERS, *tuning}] == []


OURS = ("common", "experiments", "benchmarks", "clinic", "tuning", *NAMES)


def test_what_files_use_of_our_modules_is_there():
    """Where a file says `from common.run import memory`, memory.x exists: also in what no test runs, the benchmarks."""
    folders = (ROOT / name for name in OURS[:3])
    for path in [*ROOT.glob("*.py"), *(path for folder in folders for path in folder.rglob("*.py"))]:
        nodes, modules = list(ast.walk(ast.parse(path.read_text()))), {}
        for node in (node for node in nodes if isinstance(node, ast.ImportFrom)):
            package = (node.module or "").split(".")[0]
            if package not in OURS or (package == "tuning" and importlib.util.find_spec("optuna") is None):
                continue
            for name in node.names:
                found = getattr(importlib.import_module(node.module), name.name, None)
                found = found or importlib.import_module(f"{node.module}.{name.name}")
                if isinstance(found, types.ModuleType):
                    modules[name.asname or name.name] = found
        for node in (node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
            module = modules.get(node.value.id)
            assert module is None or hasattr(module, node.attr), f"{path.name}: {node.value.id}.{node.attr}"
