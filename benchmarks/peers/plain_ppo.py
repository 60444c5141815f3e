"""PPO in one plain loop: a contestant that needs nothing but torch and Gymnasium.

Written as most single-file implementations are: a loop over time, `torch.distributions`, autograd
and `torch.optim.Adam` with its defaults, one tensor per quantity. None of our own parts are used,
and it is not meant to be fast: it is the yardstick of what a straightforward loop costs.
"""

from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from benchmarks.peers.settings import EPISODES, JUDGED, Clock, Job, Settings, Timed


def layer(inputs: int, outputs: int, gain: float) -> nn.Linear:
    """A linear layer with orthogonal weights."""
    made = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


def network(inputs: int, hidden: int, outputs: int, gain: float) -> nn.Sequential:
    """Two hidden layers of tanh."""
    root = 2**0.5
    return nn.Sequential(
        layer(inputs, hidden, root),
        nn.Tanh(),
        layer(hidden, hidden, root),
        nn.Tanh(),
        layer(hidden, outputs, gain),
    )


class Agent(nn.Module):
    """Actor and critic, for one discrete choice or a vector of numbers."""

    def __init__(self, envs: SyncVectorEnv, hidden: int) -> None:
        super().__init__()
        space: Any = envs.single_action_space
        inputs = int(np.prod(envs.single_observation_space.shape or (1,)))
        self.discrete = isinstance(space, gym.spaces.Discrete)
        outputs = int(space.n) if self.discrete else int(np.prod(space.shape))
        self.actor = network(inputs, hidden, outputs, 0.01)
        self.critic = network(inputs, hidden, 1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(outputs))

    def policy(self, obs: Tensor) -> Distribution:
        """The distribution over actions."""
        out = self.actor(obs)
        if self.discrete:
            return Categorical(logits=out)
        return Independent(Normal(out, self.log_std.exp()), 1)

    def value(self, obs: Tensor) -> Tensor:
        """What is still to come."""
        return self.critic(obs).squeeze(-1)


def train(job: Job) -> Timed:
    """The whole training."""
    torch.manual_seed(job.seed)
    clock, values = Clock(job), job.values
    envs = SyncVectorEnv(
        [lambda: gym.make(job.env) for _ in range(values.num_envs)],
        autoreset_mode=AutoresetMode.SAME_STEP,  # every row is a transition
    )
    agent = Agent(envs, values.hidden)
    optimizer = torch.optim.Adam(agent.parameters(), lr=values.learning_rate, eps=1e-5)
    returns: deque[float] = deque(maxlen=EPISODES)
    running = np.zeros(values.num_envs)
    obs = torch.as_tensor(envs.reset(seed=job.seed)[0], dtype=torch.float32)
    for rollout in range(job.rollouts):
        left = 1.0 - rollout / job.rollouts if values.decay else 1.0
        optimizer.param_groups[0]["lr"] = values.learning_rate * left
        seen: dict[str, list[Tensor]] = {name: [] for name in ROWS}
        for _ in range(values.rollout_steps):
            with torch.no_grad():
                policy, value = agent.policy(obs), agent.value(obs)
                action = policy.sample()
                log_prob = policy.log_prob(action)
            played = envs.step(legal(envs, action))
            following, raw_reward, terminated, truncated, info = played
            done = terminated | truncated
            running += raw_reward
            returns.extend(running[done].tolist())
            running[done] = 0.0
            reward = torch.as_tensor(raw_reward, dtype=torch.float32)
            if truncated.any():  # the future exists: its value belongs to the return
                last = np.stack([info["final_obs"][i] for i in np.flatnonzero(truncated)])
                with torch.no_grad():
                    reward[truncated] += values.gamma * agent.value(torch.as_tensor(last).float())
            row = (obs, action, log_prob, value, reward, torch.as_tensor(done).float())
            for name, each in zip(ROWS, row, strict=True):
                seen[name].append(each)
            obs = torch.as_tensor(following, dtype=torch.float32)
        rows = {name: torch.stack(each) for name, each in seen.items()}  # [T, N, …]
        with torch.no_grad():
            advantage = advantages(rows, agent.value(obs), values)
        rows |= {"advantage": advantage, "return": advantage + rows["value"]}
        flat = {name: each.flatten(0, 1) for name, each in rows.items()}
        learn(agent, optimizer, flat, values, values.clip_range * left)
        clock.rollout_done(returns)
        if clock.reached(lambda: evaluate(agent, job)):
            break
    envs.close()
    return clock.result(returns)


ROWS = ("obs", "action", "log_prob", "value", "reward", "done")


def legal(envs: SyncVectorEnv, action: Tensor) -> Any:
    """What an environment is given: within its bounds, where it has some."""
    space: Any = envs.single_action_space
    if isinstance(space, gym.spaces.Discrete):
        return action.numpy()
    return np.clip(action.numpy(), space.low, space.high)


@torch.no_grad()
def evaluate(agent: Agent, job: Job) -> float:
    """The mean return of one episode in each of some environments, without chance."""
    envs = SyncVectorEnv([lambda: gym.make(job.env) for _ in range(JUDGED)])
    total, alive = np.zeros(JUDGED), np.ones(JUDGED, bool)
    obs = envs.reset(seed=job.seed + 1)[0]
    while alive.any():
        out = agent.actor(torch.as_tensor(obs, dtype=torch.float32))
        action = out.argmax(-1) if agent.discrete else out
        obs, reward, terminated, truncated, _ = envs.step(legal(envs, action))
        total += np.where(alive, reward, 0.0)
        alive &= ~(terminated | truncated)
    envs.close()
    return float(total.mean())


def advantages(rows: dict[str, Tensor], last_value: Tensor, values: Settings) -> Tensor:
    """GAE, backwards through the rollout."""
    found = torch.zeros_like(rows["reward"])
    carried = torch.zeros_like(last_value)
    following = last_value
    for t in reversed(range(len(found))):
        going_on = 1.0 - rows["done"][t]
        delta = rows["reward"][t] + values.gamma * following * going_on - rows["value"][t]
        carried = delta + values.gamma * values.gae_lambda * going_on * carried
        found[t] = carried
        following = rows["value"][t]
    return found


def learn(
    agent: Agent,
    optimizer: torch.optim.Optimizer,
    rows: dict[str, Tensor],
    values: Settings,
    clip: float,
) -> None:
    """Epochs of shuffled minibatches."""
    for _ in range(values.epochs):
        for index in torch.randperm(len(rows["reward"])).split(values.batch_size):
            batch = {name: each[index] for name, each in rows.items()}
            policy = agent.policy(batch["obs"])
            ratio = (policy.log_prob(batch["action"]) - batch["log_prob"]).exp()
            advantage = batch["advantage"]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            limited = ratio.clamp(1 - clip, 1 + clip)
            policy_loss = -torch.min(ratio * advantage, limited * advantage).mean()
            value_loss = 0.5 * (agent.value(batch["obs"]) - batch["return"]).pow(2).mean()
            loss = policy_loss + values.value_coefficient * value_loss
            loss = loss - values.entropy_coefficient * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), values.max_grad_norm)
            optimizer.step()
