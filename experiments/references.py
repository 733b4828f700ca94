"""Returns between which a score is counted: 0 is a random policy, 1 a published one."""

from typing import NamedTuple


class Reference(NamedTuple):
    """Mean episode returns of an environment without any changes, such as sticky actions."""

    random: float  # all actions equally likely: measured here, 4,096 episodes
    published: float
    source: str


# PPO after 10M steps of gymnax, best of ten learning rates per game (mean of 8 seeds).
DISCOGEN = "github.com/AlexGoldie/discogen, utils/baseline_scores.yaml"
# Tuned PPO of the RL Zoo.
ZOO = "github.com/DLR-RM/rl-baselines3-zoo, benchmark.md"

REFERENCES = {
    "Breakout-MinAtar": Reference(0.405, 69.9, DISCOGEN),
    "Asterix-MinAtar": Reference(0.501, 17.0, DISCOGEN),
    "SpaceInvaders-MinAtar": Reference(4.15, 180.9, DISCOGEN),
    "Freeway-MinAtar": Reference(0.417, 61.8, DISCOGEN),
    "CartPole-v1": Reference(22.4, 500.0, ZOO),
    "Acrobot-v1": Reference(-499.0, -73.5, ZOO),
    "MountainCar-v0": Reference(-200.0, -110.0, ZOO),
    "Pendulum-v1": Reference(-1227.0, -172.0, ZOO),
    "MountainCarContinuous-v0": Reference(-33.1, 90.0, ZOO),
}


def reference_score(env_id: str, total_reward: float) -> float:
    """A mean episode return on the scale from random (0) to published (1); as it is if there is no reference."""
    if env_id not in REFERENCES:
        return total_reward
    low, high, _ = REFERENCES[env_id]
    return (total_reward - low) / (high - low)
