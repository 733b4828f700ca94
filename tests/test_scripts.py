"""The training scripts share no code with each other: what they have in common is the same to the letter."""

import ast
from itertools import combinations
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = {path.stem: ast.parse(path.read_text()) for path in sorted(ROOT.glob("*.py"))}

# Definitions of the same name that may differ, by the pair of scripts.
PROXIMAL = "carries the proximal policy"
OTHER_PROBLEM = "a bowl in place of environments"
Q = "Q-learning in place of a policy and its values"
Q_DIFFERENT = {
    **dict.fromkeys(
        ("SAME", "Transition", "Batch", "Args.__post_init__", "Args.learning_rate", "Args.max_grad_norm"), Q
    ),
    **dict.fromkeys(("Args.hidden_sizes", "Args.activation", "forward", "rollout", "optimise", "measure", "update"), Q),
    **dict.fromkeys(("init_state", "build", "train", "plasticity"), Q),
}
TABLES = "the defaults of Beukman et al. 2026, tables 2 and 3"
LEVELS = "environments begin anew in each update, on levels of their own; observations are not normalised"
SFL_DIFFERENT = {
    **dict.fromkeys(("Args.total_timesteps", "Args.num_steps", "Args.gamma", "Args.update_epochs"), TABLES),
    **dict.fromkeys(("Args.minibatch_size", "Args.learning_rate"), TABLES),
    **dict.fromkeys(("Args.env_id", "Args.network", "SAME"), "Kinetix's random levels and networks alone"),
    **dict.fromkeys(("Learner", "TrainState", "forward", "rollout", "measure", "plasticity", "update"), LEVELS),
    **dict.fromkeys(("init_state", "build"), LEVELS),
    "Args.__post_init__": "checks its own flags, too",
    "optimise": "no statistics of observations; the proximal policy may be the behaviour policy",
    "train": "searches for levels, evaluates on several sets of them, or only evaluates",
}
PPO_SFL_DIFFERENT = SFL_DIFFERENT | {
    "Args.gae_lambda": TABLES,
    "Args.clip_eps": "names either policy that it is near",
    "ppo_loss": "with --com as in ppo_ewma.py, without as in ppo.py",
}
DIFFERENT = {
    ("ppo", "sfl_kinetix"): PPO_SFL_DIFFERENT,
    ("ppo_ewma", "sfl_kinetix"): PPO_SFL_DIFFERENT | {"Args.com": "None, the default, is PPO"},
    ("pqn", "sfl_kinetix"): SFL_DIFFERENT
    | {"Args.max_grad_norm": Q, "Batch": Q, "Transition": Q, "optimise": Q, "measure": Q},
    ("ppo", "ppo_ewma"): {
        "Learner": PROXIMAL,
        "ppo_loss": "the decoupled objective",
        "optimise": PROXIMAL,
        "init_state": PROXIMAL,
        "plasticity": PROXIMAL,
        "train": "--init-from takes a run of ppo.py, too",
        "Args.clip_eps": "another policy to be near",
        "Args.__post_init__": "checks its own flags, too",
    },
    ("ppo", "pqn"): Q_DIFFERENT,
    ("ppo_ewma", "pqn"): Q_DIFFERENT | {"Learner": PROXIMAL},
    **{
        (script, "stochastic_opt"): {
            "TrainState": OTHER_PROBLEM,
            "update": OTHER_PROBLEM,
            "init_state": OTHER_PROBLEM,
            "train": OTHER_PROBLEM,
            "Args.seed": "there are no devices to name",
            "Args.num_seeds": "five make a confidence interval, and they are cheap",
            "Args.num_steps": "gradient steps, not steps of an environment",
            "Args.learning_rate": "of gradient descent, not of Adam",
            "Args.anneal_lr": "step by step",
            "Args.env_id": "a name, not a flag",
            "Args.__post_init__": "checks its own flags",
        }
        for script in ("ppo", "ppo_ewma", "pqn", "sfl_kinetix")
    },
}
TRAINING = [name for name, tree in SCRIPTS.items() if any(getattr(node, "name", "") == "train" for node in tree.body)]
PAIRS = list(combinations(TRAINING, 2))


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
    assert set(DIFFERENT) <= set(PAIRS)


def test_most_of_ppo_is_found_in_ppo_ewma():
    """So that the comparison above is of something."""
    ours, theirs = (definitions(SCRIPTS[name]) for name in ("ppo", "ppo_ewma"))
    assert ours.keys() <= theirs.keys() and len(ours) > 50
    assert {"Encoder", "rollout", "compute_gae", "measure", "build", "ADAM", "SAME", "Args.gamma"} <= ours.keys()


def test_a_difference_of_any_kind_is_seen():
    text = 'X = 1\nclass Args:\n    a: int = 0\n    """A."""\n    b: int = 1\ndef f(x):\n    """F."""\n    return x\n'
    for old, new, name in (
        ("return x", "return -x", "f"),
        ('"""F."""', '"""G."""', "f"),
        ("X = 1", "X = 2", "X"),
        ("a: int = 0", "a: float = 0", "Args.a"),
        ("a: int = 0", "a: int = 1", "Args.a"),
        ('"""A."""', '"""B."""', "Args.a"),
    ):
        assert unequal(ast.parse(text), ast.parse(text.replace(old, new))) == {name}
    assert unequal(ast.parse(text), ast.parse(text.replace("return x", "return x  # so far"))) == set()


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_imports_another(name):
    assert "common" in imported(SCRIPTS[name]) and not imported(SCRIPTS[name]) & SCRIPTS.keys()


@pytest.mark.parametrize("path", sorted((ROOT / "common").rglob("*.py")), ids=lambda path: path.stem)
def test_common_knows_no_algorithm(path):
    """It imports no script, and what makes an algorithm is defined in the scripts alone."""
    tree = ast.parse(path.read_text())
    assert not imported(tree) & (SCRIPTS.keys() | {"optax"})
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not names & {"compute_gae", "ppo_loss", "optimise", "value_and_grad", "grad", "clip_eps", "gae_lambda"}
