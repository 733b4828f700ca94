"""The training scripts share no code with each other: what they have in common is the same to the letter."""

import ast
import importlib.util
import types
from itertools import combinations

import pytest
from conftest import ROOT

# Not what a user has copied from them.
NAMES = ("ppo", "ppo_ewma", "ppo_rnd", "ppo_rnn", "sapg", "pqn", "sfl_kinetix", "stochastic_opt", "figures")
SCRIPTS = {name: ast.parse((ROOT / f"{name}.py").read_text()) for name in NAMES}


# Definitions of the same name that may differ between two scripts, and why.

# Q-learning in place of a policy and its values.
PQN = (
    "FIXED Transition Batch TrainState forward rollout optimise measure_plasticity update init_state "
    "build train Args.__post_init__ Args.learning_rate Args.max_grad_norm Args.hidden_sizes Args.gamma "
    "Args.update_epochs Args.network Args.num_envs Args.minibatch_size"
)
# The defaults of Beukman et al. 2026, tables 2 and 3; Kinetix's random levels and networks alone; environments begin
# anew in each update, on levels of their own; observations are not normalised; the proximal policy may be the
# behaviour policy; it searches for levels, evaluates on several sets of them, or only evaluates.
SFL = (
    "FIXED Learner TrainState forward rollout optimise measure_plasticity update init_state build train "
    "Args.__post_init__ Args.env_id Args.network Args.total_timesteps Args.num_steps Args.update_epochs "
    "Args.minibatch_size Args.learning_rate"
)
# More of its defaults, and that it clips around either policy.
SFL_PPO = SFL + " ppo_loss Args.ent_coef Args.clip_vloss Args.anneal_lr Args.gae_lambda Args.clip_eps"
# A bowl in place of environments: gradient steps, not steps of an environment, each with its learning rate.
BOWL = (
    "TrainState update init_state train Args.__post_init__ Args.num_steps Args.learning_rate Args.anneal_lr Args.env_id"
)
DIFFERENT = {
    # Cells with states, which each environment keeps and each sequence starts from; minibatches of whole sequences.
    ("ppo", "ppo_rnn"): "ActorCritic forward Environments Transition Batch rollout ppo_loss update init_state train "
    "optimise measure_plasticity build Args.__post_init__",
    # Two rewards, two values, and a predictor that learns what has been seen; the defaults of Burda et al. 2018.
    ("ppo", "ppo_rnd"): "Learner Environments Transition Batch ActorCritic forward rollout ppo_loss optimise update "
    "init_state Args.gamma Args.gae_lambda Args.clip_eps Args.ent_coef Args.anneal_ent",
    # Policies of several blocks, of which the leader also learns from another one; --norm-value and --adaptive-lr-kl.
    ("ppo", "sapg"): "FIXED Learner TrainState Encoder ActorCritic Transition Batch forward rollout "
    "ppo_loss optimise measure_plasticity update init_state build train Args.__post_init__ Args.num_envs Args.ent_coef "
    "Args.num_minibatches",
    ("ppo", "sfl_kinetix"): SFL_PPO,
    ("ppo_ewma", "sfl_kinetix"): SFL_PPO + " Args.com",  # None, the default, is PPO
    ("pqn", "sfl_kinetix"): SFL + " Args.gamma Args.max_grad_norm Args.num_envs Args.anneal_lr Batch Transition",
    # Carries the proximal policy, under the decoupled objective; --init-from takes a run of ppo.py, too.
    ("ppo", "ppo_ewma"): "Learner optimise init_state measure_plasticity ppo_loss train Args.clip_eps",
    ("ppo", "pqn"): PQN,
    ("ppo_ewma", "pqn"): PQN + " Learner",
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
    ours, theirs = definitions(SCRIPTS[one]), definitions(SCRIPTS[other])
    unequal = {name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name]}
    assert unequal == set(DIFFERENT.get((one, other), "").split())


def test_only_scripts_that_exist_are_listed():
    assert set(DIFFERENT) <= set(PAIRS) and {"rollout", "ADAM", "Args.gamma"} <= definitions(SCRIPTS["ppo"]).keys()


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_imports_another(name):
    assert "common" in imported(SCRIPTS[name]) and not imported(SCRIPTS[name]) & SCRIPTS.keys()


@pytest.mark.parametrize("path", sorted((ROOT / "common").rglob("*.py")), ids=lambda path: path.stem)
def test_common_knows_no_algorithm(path):
    """It imports no script and no optimiser."""
    assert not imported(ast.parse(path.read_text())) & (SCRIPTS.keys() | {"optax"})


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
