"""The smallest algorithm: a class with `act` and `update`, registered under a name.

REINFORCE with a linear policy. Everything else (the loop, evaluation, checkpoints, exact resume)
comes from the lab: weights and optimizer are saved because they have a `state_dict`.
"""

import torch
from torch.distributions import Categorical

from rl_lab import Action, Algorithm, register_algorithm


@register_algorithm("my_algorithm")
class MyAlgorithm(Algorithm):
    """REINFORCE with a linear policy."""

    collect_steps = 64  # vector steps per collect call

    def initialize(self, context):
        super().initialize(context)
        inputs, actions = context.spec.observation.shape[0], context.spec.action.n
        self.policy = torch.nn.Linear(inputs, actions)
        rate = self.config.get("learning_rate", 0.02)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=rate)

    def act(self, obs, state, *, deterministic):
        logits = self.policy(obs).detach()
        action = logits.argmax(-1) if deterministic else Categorical(logits=logits).sample()
        return Action(action)

    def update(self, batch, *, phase):
        ended = batch["terminated"] | batch["truncated"]
        total, returns = torch.zeros(ended.shape[1]), []
        for reward, end in zip(batch["reward"].flip(0), ended.flip(0), strict=True):
            total = reward + self.config.get("gamma", 0.98) * total * ~end
            returns.insert(0, total)
        returns = torch.stack(returns)
        advantage = (returns - returns.mean()) / (returns.std() + 1e-8)
        log_prob = Categorical(logits=self.policy(batch["obs"])).log_prob(batch["action"])
        loss = -(log_prob * advantage).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.detach()}
