"""DQN with every switch against exact action values, in worlds small enough for a table."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from space_envs import World

GAMMA = 0.9
WALK, FORK = 10, 11  # states


class Walk(World):
    """Left or right between two ends: 1 at the right one, which ends it; crumbs at the left one."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Discrete(WALK)
        self.action_space = gym.spaces.Discrete(2)
        self.place = 0

    def first(self) -> tuple[Any, dict[str, Any]]:
        self.place = int(self.np_random.integers(WALK - 1))
        return self.place, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place, reward, ended = walked(self.place, int(action))
        return self.place, reward, ended, False, {}


def walked(place: int, action: int) -> tuple[int, float, bool]:
    if action == 0:
        return max(place - 1, 0), 0.05 if place == 0 else 0.0, False
    return place + 1, float(place == WALK - 2), place == WALK - 2


class Fork(World):
    """One choice between two roads of five steps. Later actions change nothing, so that windows of
    several steps tell the truth whoever has acted."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Discrete(FORK)
        self.action_space = gym.spaces.Discrete(2)
        self.place = 0

    def first(self) -> tuple[Any, dict[str, Any]]:
        self.place = 0
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place, reward, ended = forked(self.place, int(action))
        return self.place, reward, ended, False, {}


def forked(place: int, action: int) -> tuple[int, float, bool]:
    if place == 0:
        return (1, 0.5, False) if action == 0 else (6, -0.5, False)
    last = place in (5, 10)
    reward = 0.1 * place if place <= 5 else 1.0 - 0.3 * last
    return place if last else place + 1, reward, last


for entry in (Walk, Fork):
    if f"{entry.__name__}-v0" not in gym.registry:
        gym.register(f"{entry.__name__}-v0", entry_point=entry, max_episode_steps=25)


def exact(states: int, dynamics: Any) -> np.ndarray:
    """Q* by iteration."""
    values = np.zeros((states, 2))
    for _ in range(300):
        for state in range(states):
            for action in range(2):
                following, reward, ended = dynamics(state, action)
                future = 0.0 if ended else values[min(following, states - 1)].max()
                values[state, action] = reward + GAMMA * future
    return values


TABLE = [
    "environment.num_envs=4",
    "network.encoder.hidden_dims=[]",
    "training.total_timesteps=3000",
    "algorithm.learning_starts=200",
    "algorithm.batch_size=64",
    "algorithm.train_every=4",
    "algorithm.replay_ratio=0.5",
    f"algorithm.gamma={GAMMA}",
    "algorithm.epsilon=1",
    "algorithm.learning_rate=lin_3e-2",
    "algorithm.target_every=30",
]
PRIORITIZED = "buffers.replay.type=prioritized"
ALL = ["algorithm.dueling=true", "algorithm.n_step=3", PRIORITIZED]
C51 = ["algorithm.distribution=c51", "algorithm.atoms=21", "algorithm.value_range=[-1, 5]"]
QUANTILE = ["algorithm.distribution=quantile", "algorithm.quantiles=11"]
NOISY = ["algorithm.noisy=true"]
VARIANTS = {
    "all": ("Fork", ALL),
    "plain": ("Walk", ["algorithm.double=false"]),
    "double": ("Walk", []),
    "dueling": ("Walk", ["algorithm.dueling=true"]),
    "soft": ("Walk", ["algorithm.target_every=1", "algorithm.target_rate=0.02"]),
    "mse": ("Walk", ["algorithm.huber=false"]),
    "n_step": ("Fork", ["algorithm.n_step=3"]),
    "prioritized": ("Walk", [PRIORITIZED]),
    "c51": ("Walk", C51),
    "c51 all": ("Fork", [*C51, *ALL]),
    "quantile": ("Walk", QUANTILE),
    "quantile all": ("Fork", [*QUANTILE, *ALL]),
    "noisy": ("Walk", NOISY),
    "noisy all": ("Fork", [*NOISY, *C51, *ALL]),
}
OFTEN = ("all", "quantile all", "noisy all")  # the last one is of c51
MARKED = [
    pytest.param(name, marks=[] if name in OFTEN else [pytest.mark.slow]) for name in VARIANTS
]


@pytest.mark.parametrize("name", MARKED)
def test_it_finds_the_exact_action_values(tiny, name):
    world, overrides = VARIANTS[name]
    orchestrator = tiny(f"test_dqn_chain:{world}-v0:dqn_defaults", *TABLE, *overrides)
    while (action := orchestrator.scheduler.next_action()) is not None:
        orchestrator.execute(action)
    states, dynamics = (WALK - 1, walked) if world == "Walk" else (FORK, forked)
    with torch.no_grad():
        found = orchestrator.workflow.model(torch.arange(states)).numpy()
    assert np.abs(found - exact(states, dynamics)).max() < 0.05
