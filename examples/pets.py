"""PETS in one local file: an ensemble learns what a step does, and CEM plans in it.

Chua et al. 2018 (arXiv:1805.12114), from parts of the lab: `networks.dynamics` for the model,
`planning` for the plans, a replay buffer for what was seen. There is no policy to learn.
"""

from dataclasses import dataclass
from functools import partial

import torch

from rl_lab import Action, register_algorithm
from rl_lab.algorithms.replay import ReplayConfig, ReplayWorkflow
from rl_lab.core.batch import ACTION, NEXT_OBS, OBS, REWARD
from rl_lab.core.optim import FlatOptimizer, scalar
from rl_lab.core.options import option, section
from rl_lab.networks.dynamics import DynamicsConfig, GaussianEnsemble, Identity, dynamics_loss
from rl_lab.planning.cem import CEMConfig, cem, planner_noise
from rl_lab.planning.plans import imagined_return, shifted


@dataclass(frozen=True, kw_only=True)
class PETSConfig(ReplayConfig):
    """Hyperparameters of PETS."""

    learning_starts: int = option(400, "environment steps of random actions before learning")
    replay_ratio: float = option(1.0, "gradient steps per environment step")
    learning_rate: float = option(1e-3, "step size of the optimiser")
    ensemble: DynamicsConfig = section(DynamicsConfig, "the models")
    planner: CEMConfig = section(CEMConfig, "the cross-entropy method")


@register_algorithm("pets")
class PETS(ReplayWorkflow):
    """Learn the dynamics, plan, act."""

    Config = PETSConfig
    unit_actions = True

    def initialize(self, context):
        super().initialize(context)
        self.state_of, self.actions = Identity(context.spec.observation), context.spec.action.size
        self.model = GaussianEnsemble(self.config.ensemble, self.state_of.out_dim, self.actions)
        self.optimizer = FlatOptimizer(self.model, dynamics_loss, self.config.optimizer)
        self.plan_rng = context.rng.torch("planner")

    def initial_state(self, batch):
        return {"plan": torch.zeros(batch, self.config.planner.horizon, self.actions)}

    @torch.no_grad()
    def act(self, obs, state, *, deterministic):
        config = self.config.planner
        # Decisions that are to be deterministic use the same random numbers every time.
        rng = torch.Generator().manual_seed(0) if deterministic else self.plan_rng
        rows, members = len(obs) * config.candidates, self.config.ensemble.members
        size = (config.horizon, rows, members, self.state_of.out_dim + 1)
        drawn = torch.empty(size).normal_(generator=rng)

        def step(states, action, t):  # every member imagines every candidate in its own way
            return self.model.imagine_step(states, action, drawn[t])

        evaluate = partial(imagined_return, step, self.model.every(self.state_of(obs)))
        noise = planner_noise(config, len(obs), self.actions, rng)
        plan = cem(
            evaluate, state["plan"] if config.warm_start else 0 * state["plan"], noise, config
        )
        return Action(plan.action, {"plan": shifted(plan.mean)})

    def learn(self, rows, now):
        seen = [self.state_of(rows[OBS]), rows[ACTION], self.state_of(rows[NEXT_OBS]), rows[REWARD]]
        if self.gradient_steps == 1:
            self.model.calibrate(*seen)  # the units of the first minibatch
        metrics = self.optimizer.step(
            *seen,
            learning_rate=scalar(now.learning_rate, "cpu"),
            max_grad_norm=scalar(now.max_grad_norm, "cpu"),
        )
        del metrics["gradient"]
        return metrics

    def optimizers(self):
        return {"model": self.optimizer}
