"""DQN in one plain loop: a contestant that needs nothing but torch and Gymnasium.

Written as most single-file implementations are: one environment, one array per quantity in the
buffer, autograd and `torch.optim.Adam`. None of our own parts are used, and it is not meant to be
fast: it is the yardstick of what a straightforward loop costs.
"""

from collections import deque
from copy import deepcopy

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

from benchmarks.peers.settings import EPISODES, Clock, Job, ReplaySettings, Timed


def network(inputs: int, hidden: tuple[int, int], actions: int) -> nn.Sequential:
    """Two hidden layers of ReLU."""
    return nn.Sequential(
        nn.Linear(inputs, hidden[0]),
        nn.ReLU(),
        nn.Linear(hidden[0], hidden[1]),
        nn.ReLU(),
        nn.Linear(hidden[1], actions),
    )


class Memory:
    """The newest transitions, in a ring."""

    def __init__(self, capacity: int, inputs: int, rng: np.random.Generator) -> None:
        self.obs = np.zeros((capacity, inputs), np.float32)
        self.next_obs = np.zeros((capacity, inputs), np.float32)
        self.action = np.zeros(capacity, np.int64)
        self.reward = np.zeros(capacity, np.float32)
        self.terminated = np.zeros(capacity, np.float32)
        self.count = 0
        self.rng = rng

    def add(
        self, obs: np.ndarray, action: int, reward: float, terminated: bool, next_obs: np.ndarray
    ) -> None:
        """One transition."""
        row = self.count % len(self.action)
        self.obs[row], self.next_obs[row] = obs, next_obs
        self.action[row], self.reward[row], self.terminated[row] = action, reward, terminated
        self.count += 1

    def sample(self, size: int) -> tuple[Tensor, ...]:
        """Some of them."""
        index = self.rng.integers(0, min(self.count, len(self.action)), size=size)
        rows = (self.obs, self.action, self.reward, self.terminated, self.next_obs)
        return tuple(torch.as_tensor(each[index]) for each in rows)


def train(job: Job) -> Timed:
    """The whole training."""
    torch.manual_seed(job.seed)
    rng = np.random.default_rng(job.seed)
    clock, values = Clock(job), job.values
    assert isinstance(values, ReplaySettings)
    env = gym.make(job.env)
    inputs, actions = int(np.prod(env.observation_space.shape or ())), int(env.action_space.n)  # type: ignore[attr-defined]
    online = network(inputs, values.hidden, actions)
    target = deepcopy(online)
    optimizer = torch.optim.Adam(online.parameters(), lr=values.learning_rate)
    memory = Memory(values.capacity, inputs, rng)
    returns: deque[float] = deque(maxlen=EPISODES)
    running, learned = 0.0, 0
    obs, _ = env.reset(seed=job.seed)
    for step in range(1, job.steps + 1):
        share = min(step / (values.explored * job.steps), 1.0)
        if rng.random() < 1.0 + share * (values.epsilon - 1.0) or step <= values.learning_starts:
            action = int(rng.integers(actions))
        else:
            with torch.no_grad():
                action = int(online(torch.as_tensor(obs)).argmax())
        next_obs, reward, terminated, truncated, _ = env.step(action)
        memory.add(obs, action, float(reward), terminated, next_obs)
        running += float(reward)
        obs = next_obs
        if terminated or truncated:
            returns.append(running)
            running, (obs, _) = 0.0, env.reset()
        if step % values.train_every:
            continue
        if step > values.learning_starts:
            for _ in range(values.gradient_steps):
                learn(online, target, optimizer, memory.sample(values.batch_size), values.gamma)
                learned += 1
                if learned % values.target_every == 0:
                    target.load_state_dict(online.state_dict())
        clock.rollout_done(returns)
    env.close()
    return clock.result(returns)


def learn(
    online: nn.Module,
    target: nn.Module,
    optimizer: torch.optim.Optimizer,
    rows: tuple[Tensor, ...],
    gamma: float,
) -> None:
    """One gradient step towards r + γ max Q'."""
    obs, action, reward, terminated, next_obs = rows
    with torch.no_grad():
        goal = reward + gamma * (1 - terminated) * target(next_obs).amax(1)
    loss = smooth_l1_loss(online(obs).gather(1, action.unsqueeze(1)).squeeze(1), goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
