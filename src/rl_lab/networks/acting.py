"""How an actor-critic network acts: in numpy for small networks, in torch, or compiled whole."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rl_lab.core.batch import LOG_PROB, PROBABILITIES, Action, Metrics, Obs
from rl_lab.core.distributions import Categorical, MultiCategorical
from rl_lab.core.protocols import Policy
from rl_lab.core.seeding import Streams
from rl_lab.core.spec import Box
from rl_lab.networks.actor_critic import ActorCritic
from rl_lab.networks.numpy_policy import FastPolicy, fast_policy


@dataclass(frozen=True)
class ActingPolicy:
    """Samples actions from the policy of `model`. Make it after the learner, which moves weights.

    The numpy forward shares the memory of the weights and is several times as fast for a few
    environments; None where the network has parts that only torch can run.
    """

    model: ActorCritic
    numpy: FastPolicy | None
    numpy_rng: np.random.Generator
    rng: torch.Generator

    @classmethod
    def of(cls, model: ActorCritic, rng: Streams, device: str) -> "ActingPolicy":
        """The fastest way to act with this network, and its streams of random numbers."""
        return cls(model, fast_policy(model), rng.numpy("actions"), rng.torch("actions", device))

    def act(self, obs: Obs, state: Any, *, deterministic: bool) -> Action:
        """Sample, or take the mode; memories move one step on. `obs` may be numpy or torch."""
        if self.numpy is not None:
            generator = None if deterministic else self.numpy_rng
            action, log_prob = self.numpy(np.asarray(obs), generator)
            return Action(action, state, {LOG_PROB: log_prob})
        with torch.no_grad():
            policy, state = self.model.policy_step(obs, state)
            sampled = policy.mode() if deterministic else policy.sample(self.rng)
            return Action(sampled, state, {LOG_PROB: policy.log_prob(sampled)})

    def greedy(self, obs: Obs, state: Any) -> Action:
        """The mode, by operations on tensors alone: it can be traced."""
        policy, state = self.model.policy_step(obs, state)
        mode = policy.mode()
        extras = {LOG_PROB: policy.log_prob(mode)}
        if isinstance(policy, Categorical | MultiCategorical):
            extras[PROBABILITIES] = policy.probabilities()
        return Action(mode, state, extras)

    def pure(self, num_envs: int) -> Policy | None:
        """The same as a pure function, for rollouts that are compiled whole; None with a memory."""
        return self.model.pure_policy(num_envs, self.rng)

    @torch.no_grad()
    def log_std(self) -> Metrics:
        """Mean, smallest and largest log standard deviation of a Gaussian policy."""
        if not isinstance(self.model.actor.action, Box):
            return {}
        log_std = self.model.actor.log_std
        low, high = log_std.aminmax()
        return {"log_std": log_std.mean(), "log_std_min": low, "log_std_max": high}
