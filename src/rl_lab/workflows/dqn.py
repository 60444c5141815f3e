"""DQN: Q-learning with a network, a replay buffer and a slow target network (Mnih et al. 2015).

Reads top to bottom: config, targets and loss, workflow. Switches: double (van Hasselt et al. 2016),
dueling (Wang et al. 2016), n-step returns, prioritized replay (Schaul et al. 2016; it is the
buffer's type). Departures from the paper: Adam; gradients are clipped by their norm; an episode
that was cut short is bootstrapped from where it stopped; double is on unless switched off.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import smooth_l1_loss

from rl_lab.core.actions import random_action
from rl_lab.core.batch import (
    ACTION,
    NEXT_OBS,
    OBS,
    REWARD,
    STEPS,
    TERMINATED,
    WEIGHT,
    Action,
    Array,
    Batch,
    CollectResult,
    Metrics,
)
from rl_lab.core.distributions import masked
from rl_lab.core.errors import UserError
from rl_lab.core.optim import FlatOptimizer, scalar
from rl_lab.core.options import option
from rl_lab.core.protocols import Phase, Policy, WorkflowContext
from rl_lab.core.returns import n_step_return
from rl_lab.core.schedule import Schedule, at, extremes
from rl_lab.core.spec import Discrete
from rl_lab.core.target import Frozen, Target, network
from rl_lab.core.tree import first_leaf, map_leaves
from rl_lab.networks.fast import fast_values
from rl_lab.networks.normalizer import normalize_mode
from rl_lab.networks.q import QNetwork
from rl_lab.workflows.replay import ERROR, ReplayConfig, ReplayWorkflow

USED = (OBS, ACTION, REWARD, TERMINATED, NEXT_OBS, STEPS, WEIGHT)  # of a minibatch
EPSILON = "epsilon"


@dataclass(frozen=True, kw_only=True)
class DQNConfig(ReplayConfig):
    """Hyperparameters of DQN. Any float may be a schedule."""

    batch_size: int = option(128, "transitions of one gradient step")
    replay_ratio: float = option(0.25, "gradient steps per environment step; fractions are carried")
    train_every: int = option(4, "vector steps between updates")
    learning_rate: float = option(2.5e-4, "step size of the optimiser")
    epsilon: float = option(
        Schedule(start=1.0, end=0.05, finish=0.2), "chance of a random action; 0 in evaluations"
    )
    double: bool = option(True, "the network chooses the next action, its target judges it")
    dueling: bool = option(False, "state value and advantages as two heads")
    huber: bool = option(True, "errors beyond 1 count linearly; if not, half their square always")
    target_every: int = option(500, "gradient steps between two moves of the target network")
    target_rate: float = option(1.0, "how far it moves then: 1 copies, 0.005 follows slowly")

    def __post_init__(self) -> None:
        """Refuse values that cannot work, before anything is built."""
        super().__post_init__()
        if self.target_every < 1:
            raise ValueError(f"target_every must be at least 1, got {self.target_every}")
        for name in (EPSILON, "target_rate"):
            low, high = extremes(getattr(self, name))
            if not 0.0 <= low <= high <= 1.0:
                raise ValueError(f"{name} must be in [0, 1], got {low if low < 0 else high:g}")
        if extremes(self.target_rate)[1] == 0:
            raise ValueError("target_rate must be positive, got 0")

    def check(self, run: Any) -> list[str]:
        """Problems that only show together with the rest of the configuration."""
        problems = super().check(run)
        if run.network.shared_torso:
            problems.append("dqn has one network: network.shared_torso means nothing here")
        return problems


def chosen_value(choice: Tensor, judge: Tensor, mask: Tensor | None) -> Tensor:
    """What `judge` [B, A] says of the best legal action by `choice` [B, A].

    Double Q-learning chooses by the network and judges by its target: noise that made an action
    look good in the one is not in the other. Plain Q-learning gives the target as both.
    """
    best = (choice if mask is None else masked(choice, mask)).argmax(-1, keepdim=True)
    return judge.gather(-1, best).squeeze(-1)


def td_target(
    reward: Tensor, steps: Tensor | None, terminated: Tensor, next_value: Tensor, gamma: Tensor
) -> Tensor:
    """Rewards of the window, and what the future is worth where there is one."""
    gain, discount = n_step_return(reward, steps, gamma)
    return gain + discount * torch.where(terminated, 0.0, next_value)


def td_loss(value: Tensor, target: Tensor, weight: Tensor | None, *, huber: bool) -> Tensor:
    """Mean over the rows; importance weights shrink those that are drawn too often."""
    if huber:
        loss = smooth_l1_loss(value, target, reduction="none")
    else:
        loss = 0.5 * (value - target).square()
    return (loss if weight is None else loss * weight).mean()


def dqn_loss(
    model: QNetwork, rows: Batch, frozen: Frozen, gamma: Tensor, *, double: bool, huber: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of one minibatch; `error` is |δ| of each row, before any weight."""
    values = model(rows[OBS])
    value = values.gather(-1, rows[ACTION].unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        judge = network(frozen, model)(rows[NEXT_OBS])
        choice = model(rows[NEXT_OBS]) if double else judge
        future = chosen_value(choice, judge, model.mask(rows[NEXT_OBS]))
        target = td_target(rows[REWARD], rows.get(STEPS), rows[TERMINATED], future, gamma)
    loss = td_loss(value, target, rows.get(WEIGHT), huber=huber)
    with torch.no_grad():
        error = (target - value).abs()
        low, high = torch.aminmax(values, dim=-1)
        means = torch.stack([value, high, high - low, target, error]).mean(-1).unbind()
    names = ("q_mean", "q_max", "q_spread", "target", "td_error")
    return loss, {**dict(zip(names, means, strict=True)), ERROR: error}


def policy_entropy(epsilon: float, legal: int) -> float:
    """Of the epsilon-greedy policy where so many actions are legal, in nats. One is the best."""
    other = epsilon / legal
    chances = [1.0 - epsilon + other] + [other] * (legal - 1)
    return sum(chance * math.log(1.0 / chance) for chance in chances if chance > 0)


class DQN(ReplayWorkflow):
    """Act epsilon-greedily, learn from the buffer, and let the target network follow."""

    Config: ClassVar[type | None] = DQNConfig
    defaults: ClassVar[Mapping[str, Any]] = {
        **ReplayWorkflow.defaults,
        "network": {
            "encoder": {"type": "auto", "hidden_dims": [120, 84], "activation": "relu"},
            "critic": {"activation": "relu"},
        },
    }
    config: DQNConfig

    def initialize(self, context: WorkflowContext) -> None:
        """Build both networks, the optimiser, and the streams of random numbers."""
        super().initialize(context)
        run, config = context.config, self.config
        if not isinstance(context.spec.action, Discrete):
            kind = type(context.spec.action).__name__
            raise UserError(
                f"dqn needs Discrete actions, '{context.spec.id}' has {kind}: "
                "use ppo, or sac for a Box"
            )
        mode = normalize_mode(run.environment.normalize_obs)
        self.model = QNetwork(run.network, context.spec, mode, dueling=config.dueling)
        self.model.to(context.device)
        self.normalizes = mode == "running"
        self.target = Target(self.model)
        self.optimizer = FlatOptimizer(
            self.model,
            partial(dqn_loss, double=config.double, huber=config.huber),
            config.optimizer,
            compile=run.compute.compile == "on",
        )
        self.fast = fast_values(self.model)
        self.epsilon = at(config, 0).epsilon
        self.explore_rng = context.rng.numpy("exploration")
        self.noise_rng = context.rng.torch("exploration")

    def optimizers(self) -> dict[str, FlatOptimizer]:
        """One."""
        return {"values": self.optimizer}

    def slow(self) -> list[Tensor]:
        """The target network."""
        return [self.target.flat]

    def collect_step(self, step: int, *, phase: Phase) -> CollectResult:
        """Interact with the epsilon of this step."""
        self.epsilon = at(self.config, step).epsilon
        return super().collect_step(step, phase=phase)

    def absorb(self, trajectory: Batch) -> None:
        """Observation statistics take each fresh frame once; the target sees by the same ones."""
        if self.normalizes:
            seen = map_leaves(lambda leaf: leaf.cpu().numpy(), trajectory[OBS])
            self.model.normalizer.absorb(seen)
            self.target.copy_buffers(self.model)

    def act(self, obs: Any, state: Any, *, deterministic: bool) -> Action:
        """The best action; with a chance of epsilon any, for each environment by itself."""
        if deterministic:
            return Action(self._greedy(obs), state)
        explores = self.explore_rng.random(first_leaf(obs).shape[0]) < self.epsilon
        if not explores.any():
            return Action(self._greedy(obs), state)
        anything = random_action(self.context.spec.action, obs, self.explore_rng)
        if explores.all():
            return Action(anything, state)
        return Action(np.where(explores, anything, self._greedy(obs)), state)

    def _greedy(self, obs: Any) -> Array:
        """The best legal actions [N]."""
        if self.fast is not None:
            best: Array = self.fast(obs.numpy()).argmax(-1)
            return best
        with torch.no_grad():
            values, mask = self.model(obs), self.model.mask(obs)
            values = values if mask is None else masked(values, mask)
            return values.argmax(-1).numpy(force=True)

    def pure_policy(self) -> Policy | None:
        """What `act` does, for rollouts that are compiled whole; unless a subclass does another."""
        if type(self).act is not DQN.act or self.model.is_masked:
            return None
        weights = {**self.optimizer.tensors, EPSILON: torch.tensor(self.epsilon)}
        return Policy(self.decide, weights, self.noise)

    def noise(self, steps: int) -> Tensor:
        """For each decision a number per action, and one that says whether to explore."""
        columns = self.model.actions + 1
        size = (steps, self.context.train_environment.num_envs, columns)
        return torch.rand(size, generator=self.noise_rng)

    def decide(
        self, weights: dict[str, Tensor], obs: Any, noise: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The action that the random numbers choose. Everything it reads is an argument."""
        weights = dict(weights)
        explores = noise[..., -1] < weights.pop(EPSILON)
        best = functional_call(self.model, weights, (obs,)).argmax(-1)
        return torch.where(explores, noise[..., :-1].argmax(-1), best), {}

    def learn(self, rows: Batch, now: DQNConfig) -> Metrics:
        """One gradient step, and the target network's move if it is time."""
        compiled = self.context.config.compute.compile == "on"
        frozen: Frozen = self.target.flat if compiled else self.target.module
        device = self.context.device
        metrics = self.optimizer.step(
            {name: rows[name] for name in USED if name in rows},
            frozen,
            scalar(now.gamma, device),
            learning_rate=scalar(now.learning_rate, device),
            max_grad_norm=scalar(now.max_grad_norm, device),
        )
        if self.gradient_steps % now.target_every == 0:
            self.target.follow(self.optimizer.state.flat, now.target_rate)
        del metrics["gradient"]
        metrics |= {EPSILON: self.epsilon, "entropy": self.entropy(rows[OBS])}
        return {**metrics, "learning_rate": now.learning_rate}

    def entropy(self, obs: Any) -> float | Tensor:
        """Of the policy that acts, on average where `obs` [B, …] were seen."""
        mask, most = self.model.mask(obs), self.model.actions
        if mask is None:
            return policy_entropy(self.epsilon, most)
        by_count = [policy_entropy(self.epsilon, max(legal, 1)) for legal in range(most + 1)]
        return torch.tensor(by_count, device=mask.device)[(mask != 0).sum(-1)].mean()
