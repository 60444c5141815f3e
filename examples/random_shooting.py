"""A new world-model algorithm from the lab's parts: learn a model, try random plans in it.

At each step a few hundred random plans are imagined, and the first action of the best one is taken.
The model, the buffer, the update budget and exact resume are the lab's.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from rl_lab import Action, register_algorithm
from rl_lab.algorithms.base import Algorithm
from rl_lab.algorithms.dreamer.open_loop import (
    LatentImagination,
    newest_episode_pictures,
    predict,
)
from rl_lab.algorithms.dreamer.world_config import WorldConfig
from rl_lab.algorithms.dreamer.world_model import WORLD_PARTS, WorldModel
from rl_lab.algorithms.replay import averages, minibatches, sample_windows, step_sizes
from rl_lab.core.actions import RandomActions, random_action
from rl_lab.core.batch import RESET
from rl_lab.core.clock import UpdateBudget
from rl_lab.core.learner import Learner, all_or_nothing
from rl_lab.core.options import option
from rl_lab.core.schedule import at
from rl_lab.networks.mlp import as_vector, vector_size
from rl_lab.planning.plans import imagined_return


@dataclass(frozen=True, kw_only=True)
class ShootingConfig(WorldConfig):
    """The sizes of the model, when to learn, and how to plan."""

    learning_rate: float = option(1e-3, "step size of the optimizer")
    plans: int = option(200, "random plans of a decision")
    horizon: int = option(8, "actions of a plan")


def model_loss(world, batch, start, noise):
    """Prediction losses and KL of sequences [T, B, …]."""
    seen = world.prediction_losses(start, batch, noise)
    means = {name: each.mean() for name, each in seen.losses.items()}
    means["kl"] = world.rssm.kl(seen.posterior, seen.prior).mean()
    return sum(means.values()), means, {}


@register_algorithm("random_shooting")
class RandomShooting(Algorithm):
    """Random shooting in a learned world model."""

    Config = ShootingConfig
    uses_network = False
    roles = WORLD_PARTS
    learns_from = "sequences"
    unit_actions = True
    defaults: ClassVar = {"buffers": {"replay": {"type": "sequence"}}}

    def initialize(self, context):
        super().initialize(context)
        config = self.config
        world = WorldModel(config, context.spec, context.components).to(context.device)
        self.learner = Learner(world, model_loss, config.optimizer)
        self.budget = UpdateBudget(config.learning_starts)
        self.collect_steps = config.train_every
        self.random_actions = RandomActions(context.spec.action, context.rng.numpy("warm_up"))
        self.noise_rng = context.rng.torch("latents", context.device)
        self.plan_rng = context.rng.numpy("plans")

    @property
    def world(self):
        return self.learner.module

    def collect_step(self, step, *, phase):
        policy = self.random_actions if step < self.config.learning_starts else self.act
        return self.collect(policy, phase)

    def initial_state(self, batch):
        action = torch.zeros(batch, vector_size(self.context.spec.action))
        return {**self.world.rssm.initial(batch), "action": action}

    @torch.no_grad()
    def act(self, obs, state, *, deterministic):
        rssm, space = self.world.rssm, self.context.spec.action
        embed = self.world.embed(obs)
        count, plans, horizon = len(embed), self.config.plans, self.config.horizon
        no_reset = torch.zeros(count, dtype=torch.bool)
        belief, _ = rssm.observe(state, state["action"], embed, no_reset, None)

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
        now = at(self.config, phase["step"])
        sizes = {"batch_size": now.batch_size, "batch_length": now.batch_length}
        return sample_windows(buffer, self.budget, phase, now.replay_ratio, **sizes)

    def update_world_model(self, batch, *, phase):
        now, steps = at(self.config, phase["step"]), []
        sizes = step_sizes(now.learning_rate, now.max_grad_norm, self.context.device)
        with all_or_nothing("update", world_model=self.learner, budget=self.budget):
            for rows in minibatches(batch, self.budget, phase, now.replay_ratio):
                length, size = rows[RESET].shape
                noise = self.world.noise((length, size), self.noise_rng)
                step = self.learner.step(rows, self.world.rssm.initial(size), noise, **sizes)
                steps.append({**step.metrics, "loss": step.loss, "grad_norm": step.grad_norm})
        return averages(steps)

    @property
    def imagination(self):
        return LatentImagination(self.world, self.config.predicts_ends)

    def imagine(self, *, horizon, **options):
        return predict(self.imagination, None, self.context, horizon, **options)

    def pictures(self, paths):
        return newest_episode_pictures(self, self.world.spaces, steps=15)
