"""The analogy itself: noisy gradient descent on a convex bowl (Beukman et al. 2026, figures 1b, 2a and 3b).

    python stochastic_opt.py --learning-rate 0.5                       # a plateau: the step is too large for the noise
    python stochastic_opt.py --learning-rate 0.5 --switch-step 500 --switch-learning-rate 0.01         # and its cure

Minimises f(x) = x^T x, x in R^d, d = 50, by x <- x - eta (2 x + xi), xi ~ N(0, sigma^2 I), sigma = 3 / sqrt(d)
(https://arxiv.org/abs/2603.06009, appendix A). The learning rate eta stands for the size of PPO's outer step, the noise
for that of a rollout. The theory, for plain gradient descent: a = 1 - 2 eta shrinks the mean, and each step adds noise:

    x_t ~ N(a^t x_0, s_t^2 I),   s_{t+1}^2 = a^2 s_t^2 + eta^2 sigma^2,   for |a| < 1, that is eta < 1,
    s_t^2 = s^2 (1 - a^(2t)),    s^2 = eta^2 sigma^2 / (1 - a^2) = sigma^2 eta / (4 (1 - eta)).

So ||x|| falls until it is s chi_d, where E chi_d = sqrt(2) Gamma((d + 1) / 2) / Gamma(d / 2), about sqrt(d). The
plateau, 1.5 sqrt(eta / (1 - eta)) here, grows with the step and with the noise, and no number of steps lowers it. On
it the gradient 2 x + xi has variance 4 s^2 + sigma^2 = sigma^2 / (1 - eta) per coordinate, so its norm stays at
sigma E chi_d / sqrt(1 - eta), and that of an update at eta times as much. Updates go on, progress does not.

An update x_t -> x_{t+1} gains <g_t, x_t - x_{t+1}> as its own sample g_t of the gradient sees it, and
<g_{t+1}, x_t - x_{t+1}> as the next, fresh one does. On the plateau they are eta sigma^2 d / (1 - eta) and -eta times
that, without noise 4 eta ||x_t||^2 and 1 - 2 eta times that: how much of an update is signal can be measured.
docs/stochastic_opt.md has the pictures.
"""

import common.run.early  # noqa: F401 (before JAX)

# isort: split
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.special import hyp1f1, poch

from common.run import memory, plots
from common.run.arguments import Fraction, LogArgs, NonNegative, Positive, UsageError, below
from common.run.command import main
from common.run.run import Run, begin

BLOCK = 1024  # steps whose theory is computed together


@dataclass(frozen=True)
class Args(LogArgs):
    # --- run ---
    seed: NonNegative[int] = 0
    """Seed of the noise. --num-seeds S: seed, seed + 1, ..."""
    num_seeds: Positive[int] = 5
    """Run this many seeds at once (vmap); every metric has one value per seed."""
    num_steps: Positive[int] = 1000
    """Gradient steps."""

    # --- problem ---
    dimension: Positive[int] = 50
    """d: dimension of x."""
    noise: NonNegative[float] = 3.0
    """Noise of the gradient: standard deviation noise / sqrt(dimension) per coordinate, so about its norm."""
    initial_distance: NonNegative[float] = 5.0
    """||x_0||."""

    # --- optimiser ---
    learning_rate: Positive[float] = 0.1
    """eta: plain gradient descent converges below 1."""
    switch_step: NonNegative[int] | None = None
    """From this step on the learning rate is --switch-learning-rate."""
    switch_learning_rate: Positive[float] | None = None
    """See --switch-step."""
    anneal_lr: bool = False
    """Reduce the learning rate linearly to 0."""
    optimizer: Literal["sgd", "momentum", "adam"] = "sgd"
    """sgd: plain gradient descent, the only one with a prediction."""
    momentum: Fraction = 0.9
    """Of --optimizer momentum (heavy ball)."""

    def __post_init__(self):
        super().__post_init__()
        below(self, self.num_steps, "switch_step")
        if "momentum" in self.named and self.optimizer != "momentum":
            raise UsageError(f"--momentum {self.momentum}: has no effect without --optimizer momentum")
        if (self.switch_step is None) != (self.switch_learning_rate is None):
            given, missing = "step", "learning-rate"
            if self.switch_step is None:
                given, missing = missing, given
            value = getattr(self, f"switch_{given}".replace("-", "_"))
            raise UsageError(f"--switch-{given} {value}: needs --switch-{missing} as well")

    @property
    def env_id(self) -> str:
        return "bowl"

    @property
    def batch_size(self) -> int:
        return 1

    @property
    def num_updates(self) -> int:
        return self.num_steps


class TrainState(NamedTuple):
    """Everything that a run needs to continue as if it had never stopped; one for each seed."""

    x: jax.Array  # [d]
    opt_state: Any
    key: jax.Array
    step: jax.Array  # [], steps done
    previous: jax.Array  # [d], x before the last step, NaN if there was none


def make_optimizer(args: Args) -> optax.GradientTransformation:
    """Gradients to steps, before the learning rate."""
    kinds = {"sgd": optax.identity(), "momentum": optax.trace(args.momentum), "adam": optax.scale_by_adam()}
    return kinds[args.optimizer]


def init_state(args: Args, key: jax.Array) -> TrainState:
    """x_0 = initial_distance / sqrt(d) in every coordinate."""
    x = jnp.full(args.dimension, args.initial_distance / np.sqrt(args.dimension), jnp.float32)
    return TrainState(x, make_optimizer(args).init(x), key, jnp.int32(0), jnp.full_like(x, jnp.nan))


def update(args: Args, state: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
    """One noisy gradient step. -> state, metrics."""
    key, noise_key = jax.random.split(state.key)
    noise = args.noise / np.sqrt(args.dimension) * jax.random.normal(noise_key, state.x.shape)
    grad = 2 * state.x + noise
    learning_rate = jnp.float32(args.learning_rate)
    if args.switch_step is not None:
        learning_rate = jnp.where(state.step < args.switch_step, learning_rate, args.switch_learning_rate)
    if args.anneal_lr:
        learning_rate *= 1 - state.step / args.num_steps
    direction, opt_state = make_optimizer(args).update(grad, state.opt_state)
    x = state.x - learning_rate * direction
    distance = jnp.linalg.norm(x)
    metrics = {
        "charts/negative_distance": -distance,
        "charts/learning_rate": learning_rate,
        "outer/own_gain": grad @ (state.x - x),
        "outer/fresh_gain": grad @ (state.previous - state.x),
        "outer/update_norm": learning_rate * jnp.linalg.norm(direction),
        "outer/grad_norm": jnp.linalg.norm(grad),
        "finite": jnp.isfinite(distance),
    }
    return TrainState(x, opt_state, key, state.step + 1, state.x), metrics


def has_theory(args: Args) -> bool:
    """Whether the module's formulas say where this run goes."""
    rates = [args.learning_rate] + ([] if args.switch_learning_rate is None else [args.switch_learning_rate])
    return args.optimizer == "sgd" and not args.anneal_lr and max(rates) < 1


def predict_distance(args: Args, steps: np.ndarray) -> np.ndarray:
    """E ||x_t|| of plain gradient descent after `steps` steps, [T] -> [T].

    x_t ~ N(m, v I) gives sqrt(v) E chi_d 1F1(-1/2; d/2; -||m||^2 / (2 v)), the mean of the noncentral chi distribution.
    """
    switch = np.inf if args.switch_step is None else args.switch_step
    mean, variance = np.float64(args.initial_distance), np.float64(0)
    phases = [(args.learning_rate, np.minimum(steps, switch))]
    if args.switch_step is not None:
        phases.append((args.switch_learning_rate, np.maximum(steps - switch, 0)))
    for eta, count in phases:
        shrunk = (1 - 2 * eta) ** np.asarray(count, np.float64)
        limit = args.noise**2 / args.dimension * eta / (4 * (1 - eta))
        mean, variance = mean * shrunk, variance * shrunk**2 + limit * (1 - shrunk**2)
    variance = np.maximum(variance, 1e-9 * mean**2 + np.finfo(np.float64).tiny)  # where it is 0, ||m|| comes out
    ratio, d = mean**2 / (2 * variance), args.dimension
    exact = np.sqrt(variance) * chi_mean(d) * hyp1f1(-0.5, d / 2, -ratio)
    # From about 100 dimensions on SciPy's 1F1 overflows at some ratios. There ||x||^2 hardly varies, and the root's
    # expansion around its mean has a relative error below 1e-5.
    square, its_variance = mean**2 + d * variance, variance * (2 * d * variance + 4 * mean**2)
    smallness = its_variance / (8 * np.maximum(square**2, np.finfo(np.float64).tiny))  # 0 where all is 0
    return np.where(np.isfinite(exact), exact, np.sqrt(square) * (1 - smallness))


def predict_soon(args: Args, step: int) -> float:
    """`predict_distance` after `step` steps; computed for a thousand steps at a time, since one takes as long."""
    return _predict_block(args, step // BLOCK)[step % BLOCK]


@lru_cache(maxsize=1)
def _predict_block(args: Args, block: int) -> np.ndarray:
    return predict_distance(args, block * BLOCK + np.arange(BLOCK))


def chi_mean(dimension: int) -> float:
    """E chi_d = sqrt(2) Gamma((d + 1) / 2) / Gamma(d / 2)."""
    return float(np.sqrt(2) * poch(dimension / 2, 0.5))


def predict_plateau(args: Args) -> dict[str, float]:
    """Where plain gradient descent ends: -||x||, norms and gains of its steps (after the switch, if there is one)."""
    eta = args.learning_rate if args.switch_learning_rate is None else args.switch_learning_rate
    grad_norm = args.noise / np.sqrt(args.dimension * (1 - eta)) * chi_mean(args.dimension)
    own_gain = eta * args.noise**2 / (1 - eta)
    return {
        "charts/negative_distance": -grad_norm * np.sqrt(eta) / 2,
        "outer/grad_norm": grad_norm,
        "outer/update_norm": eta * grad_norm,
        "outer/own_gain": own_gain,
        "outer/fresh_gain": -eta * own_gain,
    }


def report(args: Args, path: Path) -> None:
    """Prints the predicted plateau beside the mean over the last tenth of the run, of what is after the switch."""
    if not has_theory(args):
        print("theory: none for this optimiser, schedule or learning rate (plain gradient descent diverges from 1 on)")
        return
    lines = plots.read_lines(path)
    begins = args.log_every + (args.switch_step or 0)  # a line is the mean of so many steps
    lines = [line for line in lines[-max(1, len(lines) // 10) :] if line["update"] >= begins] or lines[-1:]
    for key, predicted in predict_plateau(args).items():
        _, values = plots.series(lines, key)
        mean, width = plots.mean_and_ci(values.mean(0))
        interval = "" if np.isnan(width) else f" ± {width:.2g}"
        print(f"{plots.AXIS_LABELS[key]}: plateau of the theory {predicted:.4g}, simulated {mean:.4g}{interval}")
    expected = plots.series(lines, "theory/negative_distance")[1].mean()
    plateau = predict_plateau(args)["charts/negative_distance"]
    if abs(expected - plateau) > 0.05 * abs(plateau) + 1e-6:
        print(f"not there yet: for these last steps the theory expects {expected:.4g}")


def train(args: Args) -> Path:
    """Run the descent from start (or checkpoint) to end. Returns the run's folder."""
    args = begin(args, __file__)
    needed = 32 * args.num_seeds * args.dimension
    if needed > (free := memory.device_bytes(jax.devices()[:1])):
        raise UsageError(f"--dimension {args.dimension}: needs {needed / 1e9:.1f} of the {free / 1e9:.1f} GB available")
    keys = jax.vmap(jax.random.key)(args.seed + jnp.arange(args.num_seeds))
    state = jax.jit(jax.vmap(lambda key: init_state(args, key)))(keys)
    run = Run(args, __file__)
    state = run.restore(state)
    step = jax.jit(jax.vmap(lambda state: update(args, state)), donate_argnums=0).lower(state).compile()
    with run:
        for index in run.updates():
            state, metrics = step(state)
            if has_theory(args):
                metrics["theory/negative_distance"] = -predict_soon(args, index)
            run.record(index, state, metrics)
    run.finish()
    report(args, run.path)
    return run.path


if __name__ == "__main__":
    main(train, Args)
