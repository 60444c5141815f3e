"""A new world-model algorithm from the lab's parts: learn a model, try random plans in it.

At each step a few hundred random plans are imagined, and the first action of the best one is taken.
The model, the buffer, the account of gradient steps and exact resume are the lab's.
"""

from dataclasses import dataclass

import numpy as np
import torch

from rl_lab import Action, register_algorithm
from rl_lab.algorithms.dreamer.world_learning import WorldConfig, WorldWorkflow
from rl_lab.algorithms.dreamer.world_model import WorldModel
from rl_lab.algorithms.earning import averages
from rl_lab.core.actions import as_vector, random_action, vector_size
from rl_lab.core.batch import RESET
from rl_lab.core.optim import FlatOptimizer
from rl_lab.core.options import option
from rl_lab.core.schedule import at
from rl_lab.core.tree import picked
from rl_lab.planning.plans import imagined_return


@dataclass(frozen=True, kw_only=True)
class ShootingConfig(WorldConfig):
    """The sizes of the model, when to learn, and how to plan."""

    learning_rate: float = option(1e-3, "step size of the optimiser")
    plans: int = option(200, "random plans of a decision")
    horizon: int = option(8, "actions of a plan")


def model_loss(world, batch, start, noise):
    """What the model did not foresee of sequences [T, B, …]."""
    seen = world.learn_from(start, batch, noise)
    means = {name: each.mean() for name, each in seen.losses.items()}
    means["kl"] = world.rssm.kl(seen.posterior, seen.prior).mean()
    return sum(means.values()), means


@register_algorithm("random_shooting")
class RandomShooting(WorldWorkflow):
    """Random shooting in a learned world."""

    Config = ShootingConfig

    def initialize(self, context):
        super().initialize(context)
        self.world = WorldModel(self.config, context.spec, context.components).to(context.device)
        self.optimizer = FlatOptimizer(self.world, model_loss, self.config.optimizer)
        self.noise_rng = context.rng.torch("latents", context.device)
        self.plan_rng = context.rng.numpy("plans")

    def optimizers(self):
        return {"world model": self.optimizer}

    def initial_state(self, batch):
        action = torch.zeros(batch, vector_size(self.context.spec.action))
        return {**self.world.rssm.initial(batch), "action": action}

    @torch.no_grad()
    def act(self, obs, state, *, deterministic):
        rssm, space = self.world.rssm, self.context.spec.action
        embed = self.world.embed(obs)
        count, plans, horizon = len(embed), self.config.plans, self.config.horizon
        going_on = torch.zeros(count, dtype=torch.bool)
        belief, _ = rssm.observe(state, state["action"], embed, going_on, None)

        def step(rows, action, t):
            rows = rssm.imagine_step(rows, action, self.world.noise((len(action),), noise_rng))
            return rows, self.world.reward.mean(rssm.features(rows))

        noise_rng, plan_rng = self.noise_rng, self.plan_rng
        if deterministic:  # a function of what is seen: the same random numbers every time
            noise_rng, plan_rng = torch.Generator().manual_seed(0), np.random.default_rng(0)
        drawn = random_action(space, torch.zeros(plans * horizon, 1), plan_rng)
        candidates = as_vector(space, torch.from_numpy(drawn)).view(1, plans, horizon, -1)
        candidates = candidates.expand(count, -1, -1, -1)
        best = imagined_return(step, belief, candidates).argmax(1)
        vector = candidates[torch.arange(count), best, 0]
        action = torch.from_numpy(drawn).view(plans, horizon, *space.shape)[best, 0]
        return Action(action, {**belief, "action": vector})

    def sample(self, buffer, *, hook, phase):
        ready = buffer.ready(self.config.batch_length)
        due = self.due(phase, at(self.config, phase["step"]).replay_ratio, ready=ready)
        if due == 0:
            return None
        return buffer.sequences(self.config.batch_size, self.config.batch_length, due)

    def update_world_model(self, batch, *, phase):
        now = at(self.config, phase["step"])
        count, length, size = batch[RESET].shape
        noise = self.world.noise((count, length, size), self.noise_rng)
        start = self.world.rssm.initial(size)
        rates = self.rates(now.learning_rate, now)

        def step(index):
            metrics = self.optimizer.step(picked(batch, index), start, noise[index], **rates)
            del metrics["gradient"]
            return metrics

        steps = self.take_steps(count, step)
        self.spend(count, phase, now.replay_ratio)
        return averages(steps)
