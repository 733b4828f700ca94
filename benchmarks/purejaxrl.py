"""Trains with PureJaxRL's own ppo.py, unchanged, and evaluates what it has learned with this project's code.

    python benchmarks/purejaxrl.py --env-id Breakout-MinAtar --total-timesteps 10485760 --seed 0

Its flags are those of its notebook for MinAtar. It runs with gymnax 0.0.9 and our JAX in the virtual environment that
compare.py makes; two rules of SpaceInvaders are those of gymnax 1.0.1. Its files come from GitHub on first use, and
are kept in ~/.cache. A run is a folder, as our scripts make it: metrics.jsonl (returns in training), params.npz (the
learned parameters) and summary.json. The policy then plays gymnax 1.0.1, as our evaluations do: both programs' policies
are judged by the same code on the same environment.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

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


def train(spec: dict[str, Any]) -> None:
    """Train in the virtual environment of PureJaxRL, where nothing of this project can be imported."""
    # wrappers.py imports these for environments that are not used here.
    for name in ("brax", "brax.envs", "brax.envs.wrappers", "brax.envs.wrappers.training", "navix"):
        sys.modules[name] = ModuleType(name)
    sys.modules["brax"].envs = sys.modules["brax.envs"]
    sys.modules["brax.envs.wrappers.training"].EpisodeWrapper = None
    sys.modules["brax.envs.wrappers.training"].AutoResetWrapper = None
    sys.path[:0] = spec["source"]
    import jax
    import numpy as np

    import ppo

    config = spec["config"]
    correct_space_invaders()
    began = time.perf_counter()
    run = jax.jit(ppo.make_train(config)).lower(jax.random.PRNGKey(spec["seed"])).compile()
    compile_s = time.perf_counter() - began
    began = time.perf_counter()
    out = jax.block_until_ready(run(jax.random.PRNGKey(spec["seed"])))
    seconds = time.perf_counter() - began

    params = out["runner_state"][0].params["params"]
    arrays = {f"{layer}/{name}": np.asarray(x) for layer, leaves in params.items() for name, x in leaves.items()}
    np.savez(Path(spec["run"]) / "params.npz", **arrays)
    ended, returns = (np.asarray(out["metrics"][name]) for name in ("returned_episode", "returned_episode_returns"))
    updates, steps = len(ended), config["NUM_ENVS"] * config["NUM_STEPS"]  # ended: [updates, K, N]
    with open(Path(spec["run"]) / "metrics.jsonl", "w") as file:
        for part in np.array_split(np.arange(updates), min(LINES, updates)):
            done, last = ended[part], int(part[-1]) + 1
            line = {"update": last, "global_step": last * steps, "time": round(compile_s + seconds * last / updates, 3)}
            line |= {"charts/SPS": int(updates * steps / seconds)}  # one program: no time of a part is known
            line |= {"charts/episodic_return": float(returns[part][done].mean()) if done.any() else None}
            # As PureJaxRL itself draws it: each environment's last return, averaged over environments.
            line |= {"charts/last_return_per_environment": float(returns[part].mean())}
            file.write(json.dumps(line) + "\n")
    notes = {"compile_s": round(compile_s, 1), "train_s": round(seconds, 1), "steps_per_second": line["charts/SPS"]}
    notes |= {"final_return": line["charts/episodic_return"], "global_step": line["global_step"]}
    notes |= {"final_return_per_environment": line["charts/last_return_per_environment"]}
    (Path(spec["run"]) / "notes.json").write_text(json.dumps(notes))


def prepare() -> tuple[Path, list[str]]:
    """Makes what training needs. -> the Python of its virtual environment; the folders of PureJaxRL's files, of no
    other version than the one that the flags here are for."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.compare import make_rejax_python
    from benchmarks.report import download

    return make_rejax_python(), [str(download(URL + name, sha256).parent) for name, sha256 in SHA256.items()]


def make_policy(run: Path, env_id: str) -> tuple[Any, Callable[..., Any]]:
    """-> the environment, one of its kind; the policy in params.npz: anything, obs [N, ...] -> distribution."""
    import jax
    import numpy as np

    from common import envs
    from common.actions import Categorical

    with np.load(run / "params.npz") as file:
        params = {name: file[name].astype(np.float32) for name in file}
    suite = envs.make(env_id, 1).suite

    def policy(_: Any, obs: jax.Array) -> Categorical:
        """Its ActorCritic's actor: Dense_0, Dense_1 and Dense_2."""
        x = obs.reshape(len(obs), -1).astype(np.float32)
        for layer in ("Dense_0", "Dense_1"):
            x = jax.nn.relu(x @ params[f"{layer}/kernel"] + params[f"{layer}/bias"])
        return Categorical(x @ params["Dense_2/kernel"] + params["Dense_2/bias"], suite.action_space.nvec)

    return suite, policy


def play(run: Path, args: Any) -> float:
    """Plays the policy in params.npz. args: our Args of an evaluation. -> mean return of its episodes."""
    import jax.numpy as jnp

    from common import evaluation

    player = evaluation.Player(args, *make_policy(run, args.env_id))
    return float(player.scores(jnp.float32(0), 0)["eval/episodic_return"])


@dataclass(frozen=True)
class Args:
    """Train with PureJaxRL's ppo.py and its notebook's flags, then play the policy here."""

    env_id: str = "Breakout-MinAtar"
    """One of gymnax's MinAtar games."""
    total_timesteps: int = 10_485_760
    """Environment steps over all 64 environments."""
    seed: int = 0
    """Of PureJaxRL's key, and of the evaluation."""
    num_eval_episodes: int = 128
    """Episodes of an evaluation."""
    eval_deterministic: bool = False
    """Take the most likely action instead of sampling."""
    evaluate: Path | None = None
    """Play the policy of this run. Nothing is trained."""
    runs_dir: Path = Path("runs/learning")
    """Where the run's folder goes."""
    run_name: str | None = None
    """Name of the folder (default: made from the other flags)."""

    @property
    def num_updates(self) -> int:
        return self.total_timesteps // (NOTEBOOK["NUM_ENVS"] * NOTEBOOK["NUM_STEPS"])


def main(args: Args) -> None:
    python, source = prepare()
    from common.run import devices, folder
    from ppo import Args as Ours

    how = "evaluation" if args.evaluate else "purejaxrl"
    run = args.runs_dir / (args.run_name or f"{args.env_id}__{how}__{args.seed}__{args.total_timesteps}")
    run.mkdir(parents=True, exist_ok=True)
    trained = args.evaluate or run
    if args.evaluate is None:
        config = NOTEBOOK | {"ENV_NAME": args.env_id, "TOTAL_TIMESTEPS": args.total_timesteps}
        spec = {"source": source, "run": str(run.resolve()), "seed": args.seed, "config": config}
        done = subprocess.run([python, Path(__file__).resolve(), "--train", json.dumps(spec)])
        if done.returncode:
            raise SystemExit(f"{run}: PureJaxRL ended with exit code {done.returncode}")
        notes = json.loads((run / "notes.json").read_text())
    else:
        record = json.loads((trained / "args.json").read_text())["args"]
        args = replace(args, **{name: record[name] for name in ("env_id", "total_timesteps", "seed")})
        notes = {}
    episodes = {"num_eval_episodes": args.num_eval_episodes, "eval_deterministic": args.eval_deterministic}
    ours = Ours(env_id=args.env_id, seed=args.seed, **episodes)
    devices.start(ours)
    score = play(trained, ours)
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
