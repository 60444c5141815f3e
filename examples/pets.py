"""PETS in one local file: an ensemble learns what a step does, and CEM plans in it.

Chua et al. 2018 (arXiv:1805.12114), from parts of the lab: `networks.dynamics` for the model,
`planning` for the plans, a replay buffer for what was seen. There is no policy to learn.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from rl_lab import Action, register_algorithm
from rl_lab.algorithms.base import Algorithm
from rl_lab.algorithms.replay import (
    TransitionConfig,
    averages,
    minibatches,
    sample_minibatches,
    step_sizes,
)
from rl_lab.core.actions import RandomActions
from rl_lab.core.batch import ACTION, NEXT_OBS, OBS, REWARD
from rl_lab.core.clock import UpdateBudget
from rl_lab.core.learner import Learner, all_or_nothing
from rl_lab.core.options import option, section
from rl_lab.core.schedule import at
from rl_lab.networks.dynamics import DynamicsConfig, GaussianEnsemble, Identity, dynamics_loss
from rl_lab.planning.cem import CEMConfig, cem, planner_noise
from rl_lab.planning.plans import imagined_return, shifted


@dataclass(frozen=True, kw_only=True)
class PETSConfig(TransitionConfig):
    """Hyperparameters of PETS."""

    learning_starts: int = option(400, "environment steps of random actions before learning")
    replay_ratio: float = option(1.0, "gradient steps per environment step")
    learning_rate: float = option(1e-3, "step size of the optimizer")
    ensemble: DynamicsConfig = section(DynamicsConfig, "the models")
    planner: CEMConfig = section(CEMConfig, "the cross-entropy method")


@register_algorithm("pets")
class PETS(Algorithm):
    """Learn the dynamics, plan, act."""

    Config = PETSConfig
    learns_from = "transitions"
    unit_actions = True
    defaults: ClassVar = {"buffers": {"replay": {"type": "uniform"}}}

    def initialize(self, context):
        super().initialize(context)
        self.state_of, self.actions = Identity(context.spec.observation), context.spec.action.size
        model = GaussianEnsemble(self.config.ensemble, self.state_of.out_dim, self.actions)
        self.learner = Learner(model, dynamics_loss, self.config.optimizer)
        self.budget = UpdateBudget(self.config.learning_starts)
        self.collect_steps = self.config.train_every
        self.random_actions = RandomActions(context.spec.action, context.rng.numpy("warm_up"))
        self.plan_rng = context.rng.torch("planner")

    def collect_step(self, step, *, phase):
        warming_up = step < self.config.learning_starts
        return self.collect(self.random_actions if warming_up else self.act, phase)

    def initial_state(self, batch):
        return {"plan": torch.zeros(batch, self.config.planner.horizon, self.actions)}

    @torch.no_grad()
    def act(self, obs, state, *, deterministic):
        config, model = self.config.planner, self.learner.module
        # Decisions that are to be deterministic use the same random numbers every time.
        rng = torch.Generator().manual_seed(0) if deterministic else self.plan_rng
        rows, members = len(obs) * config.candidates, self.config.ensemble.members
        size = (config.horizon, rows, members, self.state_of.out_dim + 1)
        drawn = torch.empty(size).normal_(generator=rng)

        def step(states, action, t):  # every member imagines every candidate in its own way
            return model.imagine_step(states, action, drawn[t])

        evaluate = partial(imagined_return, step, model.every(self.state_of(obs)))
        noise = planner_noise(config, len(obs), self.actions, rng)
        plan = cem(
            evaluate, state["plan"] if config.warm_start else 0 * state["plan"], noise, config
        )
        return Action(plan.action, {"plan": shifted(plan.mean)})

    def sample(self, buffer, *, hook, phase):
        return sample_minibatches(buffer, self.budget, phase, at(self.config, phase["step"]))

    def update(self, batch, *, phase):
        now, steps = at(self.config, phase["step"]), []
        sizes = step_sizes(now.learning_rate, now.max_grad_norm, "cpu")
        with all_or_nothing("PETS update", model=self.learner, budget=self.budget):
            for rows in minibatches(batch, self.budget, phase, now.replay_ratio):
                before, after = self.state_of(rows[OBS]), self.state_of(rows[NEXT_OBS])
                seen = [before, rows[ACTION], after, rows[REWARD]]
                if self.budget.steps == 1:
                    self.learner.module.calibrate(*seen)  # the units of the first minibatch
                step = self.learner.step(*seen, **sizes)
                steps.append({**step.metrics, "loss": step.loss, "grad_norm": step.grad_norm})
        return {**averages(steps), "gradient_steps": self.budget.steps}
