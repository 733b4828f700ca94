"""Trains with another program's own code, and evaluates what it has learned with this project's code.

    python benchmarks/peers.py --program purejaxrl --env-id Breakout-MinAtar --total-timesteps 10485760 --seed 0

purejaxrl: PureJaxRL's ppo.py with the flags of its notebook for MinAtar. rejax: its PPO with these flags, as far as it
has them. purejaxql: PureJaxQL's pqn_minatar.py with its settings for MinAtar. They run with gymnax 0.0.9 and our JAX in
the virtual environment that compare.py makes; two rules of SpaceInvaders are those of gymnax 1.0.1. The scripts come
from GitHub on first use, and are kept in ~/.cache. A run is a folder, as our scripts make it: metrics.jsonl (returns in
training), params.npz (the learned parameters) and summary.json. The policy then plays gymnax 1.0.1, as our evaluations
do: all policies are judged by the same code on the same environment.
"""

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
URL = "https://raw.githubusercontent.com/luchris429/purejaxrl/31756b197773a52db763fdbe6d635e4b46522a73/purejaxrl/"
SHA256 = {
    "ppo.py": "6650c9f8943ed67e8d287d0dd1536e49d8f603e04550cdc506727e46b34024fd",
    "wrappers.py": "b2dafeafdf83755336d2455955b868bf1d7cb02eeddd81c1591714886651900f",
}
# examples/brax_minatar.ipynb at that commit. The environment and the length are added below.
NOTEBOOK = {
    "LR": 5e-3,
    "NUM_ENVS": 64,
    "NUM_STEPS": 128,
    "UPDATE_EPOCHS": 4,
    "NUM_MINIBATCHES": 8,
    "GAMMA": 0.99,
    "GAE_LAMBDA": 0.95,
    "CLIP_EPS": 0.2,
    "ENT_COEF": 0.01,
    "VF_COEF": 0.5,
    "MAX_GRAD_NORM": 0.5,
    "ACTIVATION": "relu",
    "ANNEAL_LR": True,
}
NAMES = {"purejaxrl": "PureJaxRL's `ppo.py`", "rejax": "rejax's PPO", "purejaxql": "PureJaxQL's `pqn_minatar.py`"}
SIZES = {"purejaxrl": (64, 128), "rejax": (64, 128), "purejaxql": (128, 32)}  # N, K
LINES = 160  # of metrics.jsonl, at most


def correct_space_invaders() -> None:
    """Give gymnax 0.0.9's SpaceInvaders the two rules that gymnax 1.0.1 has mended: the first wave has 24 aliens like
    all others, not 28, and a bullet hits the player where the step ends, not where it began. The game has hardly any
    chance, so that a policy which learned one version scores 10 in the other."""
    import gymnax.environments.minatar.space_invaders as game
    import jax.numpy as jnp

    reset, step_agent = game.MinSpaceInvaders.reset_env, game.step_agent

    def reset_env(self: Any, key: Any, params: Any) -> tuple[Any, Any]:
        _, state = reset(self, key, params)
        state = state.replace(alien_map=jnp.zeros((10, 10)).at[0:4, 2:8].set(1))
        return self.get_obs(state), state

    def step(action: Any, state: Any, params: Any) -> Any:
        after = step_agent(action, state, params)
        return after.replace(terminal=jnp.logical_or(state.terminal, after.e_bullet_map[9, after.pos]))

    game.MinSpaceInvaders.reset_env, game.step_agent = reset_env, step


# Each of the next three: what has to be made -> a function of a key that trains, and one that finds in what it returns
# the parameters, and sums and counts of returns, both [any number of equal parts of the training].
def load_purejaxrl(spec: dict[str, Any]) -> tuple[Callable, Callable]:
    # wrappers.py imports these for environments that are not used here.
    for name in ("brax", "brax.envs", "brax.envs.wrappers", "brax.envs.wrappers.training", "navix"):
        sys.modules[name] = ModuleType(name)
    sys.modules["brax"].envs = sys.modules["brax.envs"]
    sys.modules["brax.envs.wrappers.training"].EpisodeWrapper = None
    sys.modules["brax.envs.wrappers.training"].AutoResetWrapper = None
    sys.path[:0] = [str(Path(file).parent) for file in spec["files"]]
    import ppo

    def found(out: dict[str, Any]) -> tuple:
        ended, returns = (out["metrics"][name] for name in ("returned_episode", "returned_episode_returns"))
        sums = (returns * ended).sum(axis=(1, 2))  # [updates, K, N]
        return out["runner_state"][0].params["params"], sums, ended.sum(axis=(1, 2))

    config = NOTEBOOK | {"ENV_NAME": spec["env_id"], "TOTAL_TIMESTEPS": spec["total_timesteps"]}
    return ppo.make_train(config), found


def load_rejax(spec: dict[str, Any]) -> tuple[Callable, Callable]:
    import gymnax
    import jax.numpy as jnp
    import optax
    from gymnax.wrappers.purerl import LogWrapper
    from rejax import PPO

    class Log(LogWrapper):
        """Its state also has the sum and the count of all returns so far."""

        def __deepcopy__(self, _: Any) -> Any:
            return self  # rejax copies its arguments, in which gymnax's wrapper would never end

        def reset(self, key: Any, params: Any = None) -> tuple:
            obs, log = super().reset(key, params)
            return obs, (log, jnp.float32(0), jnp.int32(0))

        def step(self, key: Any, state: Any, action: Any, params: Any = None) -> tuple:
            log, total, count = state
            obs, log, reward, done, info = super().step(key, log, action, params)
            return obs, (log, total + done * log.returned_episode_returns, count + done), reward, done, info

    env, env_params = gymnax.make(spec["env_id"])
    same = ("num_envs", "num_steps", "num_minibatches", "gamma", "gae_lambda", "clip_eps", "ent_coef", "vf_coef")
    batch_size = NOTEBOOK["NUM_ENVS"] * NOTEBOOK["NUM_STEPS"]
    updates = spec["total_timesteps"] // batch_size
    between = next(n for n in range(updates // LINES, updates + 1) if n and updates % n == 0)  # two evaluations
    steps = updates * NOTEBOOK["UPDATE_EPOCHS"] * NOTEBOOK["NUM_MINIBATCHES"]
    algorithm = PPO.create(
        env=Log(env),
        env_params=env_params,
        learning_rate=optax.linear_schedule(NOTEBOOK["LR"], 0.0, steps),
        agent_kwargs={"activation": "relu", "hidden_layer_sizes": (64, 64)},
        num_epochs=NOTEBOOK["UPDATE_EPOCHS"],
        total_timesteps=updates * batch_size,
        eval_freq=between * batch_size,
        skip_initial_evaluation=True,
        **{name: NOTEBOOK[name.upper()] for name in (*same, "max_grad_norm")},
    )
    # In place of an evaluation, which would take time.
    algorithm = algorithm.replace(eval_callback=lambda _, state, __: [x.sum() for x in state.env_state[1:]])

    def found(out: tuple) -> tuple:
        state, so_far = out
        return state.actor_ts.params["params"], *(jnp.diff(x, prepend=0) for x in so_far)

    return algorithm.train, found


def load_purejaxql(spec: dict[str, Any]) -> tuple[Callable, Callable]:
    for name in ("hydra", "omegaconf", "wandb"):  # for its command line and its log, neither of which is used here
        sys.modules[name] = mock.MagicMock()
    found = importlib.util.spec_from_file_location("pqn_minatar", spec["files"][0])
    found.loader.exec_module(script := importlib.util.module_from_spec(found))

    class Log(script.LogWrapper):
        """It logs only means over environments; this adds returns that count where an episode has ended."""

        def step(self, key: Any, state: Any, action: Any, params: Any = None) -> tuple:
            obs, state, reward, done, info = super().step(key, state, action, params)
            return obs, state, reward, done, info | {"ended": done * state.returned_episode_returns}

    script.LogWrapper = Log
    sizes = dict(zip(("NUM_ENVS", "NUM_STEPS"), SIZES["purejaxql"], strict=True)) | {"NUM_MINIBATCHES": 32}
    steps = {name: spec["total_timesteps"] for name in ("TOTAL_TIMESTEPS", "TOTAL_TIMESTEPS_DECAY")}
    train = script.make_train(spec["settings"] | sizes | steps | {"ENV_NAME": spec["env_id"]})

    def learned(out: dict[str, Any]) -> tuple:
        return out["runner_state"][0].params, out["metrics"]["ended"], out["metrics"]["returned_episode"]

    import jax

    return lambda key: train(jax.random.split(key, 1)[0]), learned


def train(spec: dict[str, Any]) -> None:
    """Train in the virtual environment of the other program, where nothing of this project can be imported."""
    load = {"purejaxrl": load_purejaxrl, "rejax": load_rejax, "purejaxql": load_purejaxql}[spec["program"]]
    train, found = load(spec)
    import jax
    import numpy as np

    correct_space_invaders()
    key = jax.random.PRNGKey(spec["seed"])
    began = time.perf_counter()
    run = jax.jit(train).lower(key).compile()
    compile_s = time.perf_counter() - began
    began = time.perf_counter()
    out = jax.block_until_ready(run(key))
    seconds = time.perf_counter() - began

    params, sums, counts = jax.device_get(found(out))
    arrays = {"/".join(k.key for k in path): x for path, x in jax.tree_util.tree_leaves_with_path(params)}
    np.savez(Path(spec["run"]) / "params.npz", **arrays)
    parts = len(sums)
    with open(Path(spec["run"]) / "metrics.jsonl", "w") as file:
        for part in np.array_split(np.arange(parts), min(LINES, parts)):
            share = (int(part[-1]) + 1) / parts
            line = {"update": round(share * spec["updates"]), "global_step": round(share * spec["total_timesteps"])}
            line |= {"time": round(compile_s + seconds * share, 3)}  # one program: no time of a part is known
            line |= {"charts/SPS": int(spec["total_timesteps"] / seconds)}
            ended = counts[part].sum()
            line |= {"charts/episodic_return": float(sums[part].sum() / ended) if ended else None}
            file.write(json.dumps(line) + "\n")
    notes = {"compile_s": round(compile_s, 1), "train_s": round(seconds, 1), "steps_per_second": line["charts/SPS"]}
    notes |= {"final_return": line["charts/episodic_return"], "global_step": line["global_step"]}
    (Path(spec["run"]) / "notes.json").write_text(json.dumps(notes))


def prepare(program: str) -> tuple[Path, dict[str, Any]]:
    """Makes what training needs. -> the Python of its virtual environment; the program's files, of no other version
    than the one that the flags here are for, and its settings."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.compare import PQN, PQN_SHA256, PQN_URL, make_rejax_python
    from benchmarks.report import download

    wanted = {"purejaxrl": {URL + name: sha256 for name, sha256 in SHA256.items()}, "purejaxql": {PQN_URL: PQN_SHA256}}
    files = [str(download(url, sha256)) for url, sha256 in wanted.get(program, {}).items()]
    return make_rejax_python(), {"files": files, "settings": PQN}


def make_policy(run: Path, env_id: str, program: str) -> tuple[Any, Callable[..., Any]]:
    """-> the environment, one of its kind; the policy in params.npz: anything, obs [N, ...] -> distribution."""
    import jax
    import numpy as np

    from common import envs
    from common.actions import Categorical

    with np.load(run / "params.npz") as file:
        params = {name: file[name].astype(np.float32) for name in file}
    suite = envs.make(env_id, 1).suite
    dense = lambda x, layer: x @ params[f"{layer}/kernel"] + params[f"{layer}/bias"]  # noqa: E731

    def perceptron(obs: jax.Array) -> jax.Array:
        """The actor of PureJaxRL's ActorCritic, or rejax's DiscretePolicy. -> logits."""
        layers = ("Dense_0", "Dense_1", "Dense_2")
        if program == "rejax":
            layers = ("features/Dense_0", "features/Dense_1", "action_logits")
        x = obs.reshape(len(obs), -1).astype(np.float32)
        for layer in layers[:2]:
            x = jax.nn.relu(dense(x, layer))
        return dense(x, layers[2])

    def convolution(obs: jax.Array) -> jax.Array:
        """PureJaxQL's QNetwork. -> logits that leave no action but the best."""

        def normalised(x: jax.Array, layer: str) -> jax.Array:
            x = (x - x.mean(-1, keepdims=True)) / (x.var(-1, keepdims=True) + 1e-6) ** 0.5
            return jax.nn.relu(x * params[f"{layer}/scale"] + params[f"{layer}/bias"])

        kernel, order = params["CNN_0/Conv_0/kernel"], ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(obs.astype(np.float32) / 255, kernel, (1, 1), "VALID", dimension_numbers=order)
        x = normalised(x + params["CNN_0/Conv_0/bias"], "CNN_0/LayerNorm_0").reshape(len(obs), -1)
        q = dense(normalised(dense(x, "CNN_0/Dense_0"), "CNN_0/LayerNorm_1"), "Dense_0")
        return 1e9 * jax.nn.one_hot(q.argmax(-1), q.shape[-1])

    logits = convolution if program == "purejaxql" else perceptron
    return suite, lambda _, obs: Categorical(logits(obs), suite.action_space.nvec)


def play(run: Path, args: Any, program: str) -> float:
    """Plays the policy in params.npz. args: our Args of an evaluation. -> mean return of its episodes."""
    import jax.numpy as jnp

    from common import evaluation

    player = evaluation.Player(args, *make_policy(run, args.env_id, program))
    return float(player.scores(jnp.float32(0), 0)["eval/episodic_return"])


@dataclass(frozen=True)
class Args:
    """Train with another program's own code and flags, then play the policy here."""

    program: Literal["purejaxrl", "rejax", "purejaxql"] = "purejaxrl"
    """Whose code."""
    env_id: str = "Breakout-MinAtar"
    """One of gymnax's MinAtar games."""
    total_timesteps: int = 10_485_760
    """Environment steps over all environments."""
    seed: int = 0
    """Of the program's key, and of the evaluation."""
    num_eval_episodes: int = 128
    """Episodes of an evaluation."""
    eval_deterministic: bool = False
    """Take the most likely action instead of sampling (PureJaxQL's policy always takes the best)."""
    evaluate: Path | None = None
    """Play the policy of this run. Nothing is trained."""
    runs_dir: Path = Path("runs/learning")
    """Where the run's folder goes."""
    run_name: str | None = None
    """Name of the folder (default: made from the other flags)."""

    @property
    def num_envs(self) -> int:
        return SIZES[self.program][0]

    @property
    def num_updates(self) -> int:
        return self.total_timesteps // (self.num_envs * SIZES[self.program][1])


def main(args: Args) -> None:
    if args.evaluate is None:
        python, needed = prepare(args.program)
    sys.path.insert(0, str(ROOT))
    from common.run import devices, folder
    from ppo import Args as Ours

    how = "evaluation" if args.evaluate else args.program
    run = args.runs_dir / (args.run_name or f"{args.env_id}__{how}__{args.seed}__{args.total_timesteps}")
    run.mkdir(parents=True, exist_ok=True)
    trained = args.evaluate or run
    if args.evaluate is None:
        spec = {name: getattr(args, name) for name in ("program", "env_id", "total_timesteps", "seed")}
        spec |= {"run": str(run.resolve()), "updates": args.num_updates, **needed}
        done = subprocess.run([python, Path(__file__).resolve(), "--train", json.dumps(spec)])
        if done.returncode:
            raise SystemExit(f"{run}: {args.program} ended with exit code {done.returncode}")
        notes = json.loads((run / "notes.json").read_text())
    else:
        record = json.loads((trained / "args.json").read_text())["args"]
        args = replace(args, **{name: record[name] for name in ("program", "env_id", "total_timesteps", "seed")})
        notes = {}
    episodes = {"num_eval_episodes": args.num_eval_episodes, "eval_deterministic": args.eval_deterministic}
    ours = Ours(env_id=args.env_id, seed=args.seed, **episodes)
    devices.start(ours)
    score = play(trained, ours, args.program)
    record = folder.make_record(args, __file__)
    folder.write_json(run / "args.json", record)
    summary = {"env_id": args.env_id, "updates": args.num_updates, "num_updates": args.num_updates, **notes}
    folder.write_json(run / "summary.json", summary | {"eval/episodic_return": {"mean": score}})
    print(f"{run}: {score:.1f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(json.loads(sys.argv[2]))
    else:
        import tyro

        main(tyro.cli(Args))
