"""An algorithm: the plainest policy gradient, on the network that the configuration describes."""

from dataclasses import dataclass

import torch

from rl_lab import Action, Workflow
from rl_lab.core.options import option
from rl_lab.networks.actor_critic import ActorCritic


@dataclass(frozen=True, kw_only=True)
class GradientConfig:
    """Its step size."""

    learning_rate: float = option(1e-2, "step size of the optimizer")


class Gradient(Workflow):
    """Make rewarded actions likelier."""

    Config = GradientConfig
    collect_steps = 8

    def initialize(self, context):
        super().initialize(context)
        self.model = ActorCritic(context.config.network, context.spec)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self.config.learning_rate)
        self.rng = context.rng.torch("actions")

    def initial_state(self, batch):
        return self.model.initial_state(batch)

    @torch.no_grad()
    def act(self, obs, state, *, deterministic):
        policy, state = self.model.policy_step(obs, state)
        return Action(policy.mode() if deterministic else policy.sample(self.rng), state)

    def update(self, batch, *, phase):
        policy, *_ = self.model(batch["obs"], batch["state"], batch["reset"])
        loss = -(policy.log_prob(batch["action"]) * batch["reward"]).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {
            "loss": loss.detach(),
            "diary": batch.get("count", 0),
            "reward": batch["reward"].mean(),
        }
