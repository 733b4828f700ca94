"""Environments of Gymnasium's whose every value is known, as a user would have them in a file."""

import os
import tempfile
import time

import gymnasium
import numpy as np
from gymnasium import spaces


class Counting(gymnasium.Env):
    """Observes [a number drawn from the seed, episode, time], always in the same array, as fast environments do.
    Episode e ends at time ends[e % len(ends)], and is cut at `limit`. Its reward is 10 e + the time after the step."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = spaces.Discrete(3, start=5)

    def __init__(self, ends=(3, 5, 2, 4), limit=4, fail_at=None):
        self.ends, self.limit, self.fail_at = ends, limit, fail_at
        self.obs, self.log, self.resets = np.array([0.0, -1.0, 0.0]), [], 0

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.obs[0] = self.obs[0] if seed is None else self.np_random.integers(10**6)
        self.obs[1:] = self.obs[1] + 1, 0
        self.resets += 1
        return self.obs, {}

    def step(self, action):
        self.log.append((*self.obs[1:].astype(int), int(action)))
        if len(self.log) == self.fail_at:
            raise ValueError("the cable is\nout")
        self.obs[2] += 1
        episode, time = self.obs[1:].astype(int)
        ended = bool(time == self.ends[episode % len(self.ends)])
        return self.obs, 10.0 * episode + time, ended, bool(time >= self.limit), {}


class Pixels(gymnasium.Env):
    """A stack of two pictures of 36 x 40 pixels, of which one is lit, and the action has to say which. 6 steps."""

    observation_space = spaces.Box(0, 255, (2, 36, 40), np.uint8)
    action_space = spaces.Discrete(2)

    def observe(self):
        self.lit = self.np_random.integers(2)
        obs = np.zeros((2, 36, 40), np.uint8)
        obs[self.lit, 1:9, 2:7] = 200
        return obs

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.observe(), {}

    def step(self, action):
        reward, self.time = float(action == self.lit), self.time + 1
        return self.observe(), reward, False, self.time == 6, {}


class Spaces(gymnasium.Env):
    """With whatever spaces."""

    def __init__(self, observations="real", actions="real"):
        kinds = {
            "real": spaces.Box(-1, 1, (2, 2), np.float64),
            "scalar": spaces.Box(-1, 1, (), np.float32),
            "bytes": spaces.Box(0, 9, (2,), np.uint8),
            "one of": spaces.Discrete(3, start=-1),
            "many": spaces.MultiDiscrete([2, 3], start=[1, 0]),
            "bits": spaces.MultiBinary(3),
            "dict": spaces.Dict(b=spaces.Box(-1, 1, (2,), np.float64), a=spaces.Box(-1, 1, (1, 2), np.float32)),
            "text": spaces.Text(5),
        }
        self.observation_space, self.action_space = kinds[observations], kinds[actions]
        self.seen = []

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.obs = self.observation_space.sample()
        return self.obs, {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.seen.append(action)
        return self.obs, 0.0, False, False, {}


class Opened(Counting):
    """Opens something, which only it can close: a file in a folder of its own for each."""

    def __init__(self, folder):
        super().__init__()
        handle, self.file = tempfile.mkstemp(dir=folder)
        os.close(handle)

    def close(self):
        time.sleep(0.2)
        os.remove(self.file)


for kind in (Counting, Pixels, Spaces, Opened):
    gymnasium.register(f"{kind.__name__}-v0", kind)
