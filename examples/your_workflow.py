"""An algorithm that does its own stepping and learns a model of the world.

It steps `context.train_environment` itself, one vector step per `collect`, and predicts the next
observation in its own hook, `update_world_model`. The YAML beside it names this class by
`_target_` and puts the two hooks into a phase.
"""

import numpy as np
import torch

from rl_lab import Action, CollectResult, Workflow


class YourWorkflow(Workflow):
    """Random actions, and a linear model of what they do."""

    def initialize(self, context):
        super().initialize(context)
        self.environment = context.train_environment
        self.current_obs = context.initial_observation  # saved: it is a plain array
        self.num_actions = context.spec.action.n
        self.rng = context.rng.numpy("your_workflow")  # saved with the run's random streams
        size = context.spec.observation.shape[0]
        self.model = torch.nn.Linear(size + self.num_actions, size)
        rate = self.config["learning_rate"]
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=rate)
        self.open_episodes = np.zeros(self.environment.num_envs)

    def act(self, obs, state, *, deterministic):
        return Action(self.rng.integers(self.num_actions, size=len(obs)))

    def collect_step(self, step, *, phase):
        action = self.act(self.current_obs, None, deterministic=False).action
        result = self.environment.step(action)
        ended = result.terminated | result.truncated
        self.open_episodes += result.reward
        metrics = {"collect/reward": result.reward.mean()}
        if ended.any():
            metrics["collect/return_mean"] = self.open_episodes[ended].mean()
        self.open_episodes[ended] = 0.0
        trajectory = {
            "obs": torch.from_numpy(self.current_obs)[None],  # [T=1, N, …]
            "action": torch.from_numpy(action)[None],
            "next_obs": torch.from_numpy(result.next_obs)[None],
        }
        self.current_obs = result.obs
        return CollectResult(len(ended), int(ended.sum()), metrics, trajectory)

    def update_world_model(self, batch, *, phase):
        one_hot = torch.nn.functional.one_hot(batch["action"], self.num_actions)
        predicted = self.model(torch.cat([batch["obs"], one_hot.float()], dim=-1))
        loss = (predicted - (batch["next_obs"] - batch["obs"])).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.detach()}
