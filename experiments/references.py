"""Returns between which a score is counted: 0 is a random policy, 1 a published one."""

# Mean episode returns without any changes, such as sticky actions, of a random policy (measured here, 4,096 episodes)
# and of a published one. MinAtar: PPO after 10M steps of gymnax, best of ten learning rates per game, mean of 8 seeds
# (github.com/AlexGoldie/discogen, utils/baseline_scores.yaml). The others: the RL Zoo's tuned PPO
# (github.com/DLR-RM/rl-baselines3-zoo, benchmark.md).
REFERENCES = {
    "Breakout-MinAtar": (0.405, 69.9),
    "Asterix-MinAtar": (0.501, 17.0),
    "SpaceInvaders-MinAtar": (4.15, 180.9),
    "Freeway-MinAtar": (0.417, 61.8),
    "CartPole-v1": (22.4, 500.0),
    "Acrobot-v1": (-499.0, -73.5),
    "MountainCar-v0": (-200.0, -110.0),
    "Pendulum-v1": (-1227.0, -172.0),
    "MountainCarContinuous-v0": (-33.1, 90.0),
}


def reference_score(env_id: str, total_reward: float) -> float:
    """A mean episode return on the scale from random (0) to published (1); as it is if there is no reference."""
    low, high = REFERENCES.get(env_id, (0.0, 1.0))
    return (total_reward - low) / (high - low)
