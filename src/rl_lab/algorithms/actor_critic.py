"""What algorithms with a policy and a value network share: how the policy acts."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch

from rl_lab.algorithms.base import Optimized, Roles, Workflow
from rl_lab.core.batch import LOG_PROB, Action, Array, Metrics
from rl_lab.core.errors import NonFiniteError
from rl_lab.core.protocols import Policy, WorkflowContext
from rl_lab.core.spec import Box
from rl_lab.core.tree import map_leaves
from rl_lab.networks.actor_critic import ActorCritic
from rl_lab.networks.normalizer import normalize_mode
from rl_lab.networks.numpy_policy import fast_policy


class ActorCriticWorkflow(Workflow):
    """Acts by `self.model`. A subclass adds its optimisers, then calls `bind_policy`."""

    roles: ClassVar[Roles] = {}
    optimized: ClassVar[Optimized] = ()

    def initialize(self, context: WorkflowContext) -> None:
        """Build the network."""
        super().initialize(context)
        run = context.config
        mode = normalize_mode(run.environment.normalize_obs)
        self.model = ActorCritic(run.network, context.spec, mode).to(context.device)

    def bind_policy(self) -> None:
        """The policy's numpy twin, on the memory that an optimiser gave the weights; its dice."""
        self.fast = fast_policy(self.model)
        self.action_rng = self.context.rng.torch("actions", self.context.device)
        self.fast_rng = self.context.rng.numpy("actions")

    def act(self, obs: Any, state: Any, *, deterministic: bool) -> Action:
        """Sample, or take the mode; memories move one step on."""
        if self.fast is not None:
            action, log_prob = self.fast(obs.numpy(), None if deterministic else self.fast_rng)
            return Action(action, state, {LOG_PROB: log_prob})
        with torch.no_grad():
            policy, state = self.model.policy_step(obs, state)
            sampled = policy.mode() if deterministic else policy.sample(self.action_rng)
            return Action(sampled, state, {LOG_PROB: policy.log_prob(sampled)})

    @contextmanager
    def statistics_of(self, obs: Any) -> Iterator[bool]:
        """Take a rollout's frames [T, N, …] into the observation statistics, after its update.

        The very first rollout is taken before: raw frames may be of any size. True then: the actor
        has not seen it through these numbers. On a bad number they are as they were before.
        """
        normalizer, frames = self.model.normalizer, map_leaves(to_numpy, obs)
        if not (first := normalizer.is_empty):
            yield first
            normalizer.update_statistics(frames)
            return
        normalizer.update_statistics(frames)
        try:
            yield first
        except NonFiniteError:
            normalizer.clear()
            raise

    @torch.no_grad()
    def deviations(self) -> Metrics:
        """How wide a Gaussian policy is now: mean, smallest and largest log deviation."""
        if not isinstance(self.model.actor.action, Box):
            return {}
        log_std = self.model.actor.log_std
        low, high = log_std.aminmax()
        return {"log_std": log_std.mean(), "log_std_min": low, "log_std_max": high}

    def pure_policy(self) -> Policy | None:
        """What `act` does, for rollouts that are compiled whole; unless a subclass does another."""
        if type(self).act is not ActorCriticWorkflow.act:
            return None
        return self.model.pure_policy(self.context.train_environment.num_envs, self.action_rng)

    def initial_state(self, batch: int) -> Any:
        """The memories' own."""
        return self.model.initial_state(batch)


def to_numpy(leaf: torch.Tensor) -> Array:
    """A tensor of any device as an array."""
    return leaf.cpu().numpy()
