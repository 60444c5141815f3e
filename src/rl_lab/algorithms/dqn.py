"""DQN: Q-learning with a network, a replay buffer and a slow target network (Mnih et al. 2015).

Reads top to bottom: config, targets and loss, workflow. Switches: double (van Hasselt et al. 2016),
dueling (Wang et al. 2016), n-step returns, prioritized replay (Schaul et al. 2016; it is the
buffer's type), distributions of returns (C51: Bellemare et al. 2017; QR-DQN: Dabney et al. 2018),
noisy layers that explore by themselves (Fortunato et al. 2018). Departures from the paper: Adam;
gradients are clipped by their norm; an episode that was cut short is bootstrapped from where it
stopped; double is on unless switched off.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import one_hot, smooth_l1_loss

from rl_lab.algorithms.earning import require_chances, require_positive
from rl_lab.algorithms.greedy import (
    EPSILON,
    FADING,
    absorb_frames,
    chosen_value,
    greedy_entropy,
)
from rl_lab.algorithms.replay import ERROR, ReplayConfig, ReplayWorkflow
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
from rl_lab.core.schedule import at
from rl_lab.core.spec import Discrete
from rl_lab.core.target import Frozen, Target, network
from rl_lab.core.tree import first_leaf, map_leaves
from rl_lab.core.value_distributions import (
    ValueDistribution,
    categorical_loss,
    of_action,
    project,
    quantile_huber,
)
from rl_lab.networks.normalizer import normalize_mode
from rl_lab.networks.numpy_policy import fast_values
from rl_lab.networks.q_network import QNetwork

USED = (OBS, ACTION, REWARD, TERMINATED, NEXT_OBS, STEPS, WEIGHT)  # of a minibatch
MAX_OUT_OF_RANGE = 0.05  # share of c51's target probability beyond its atoms; more is reported
VOTERS, ASKED = 16, 32  # noisy networks, and rows of a batch, that tell how random the policy is


@dataclass(frozen=True, kw_only=True)
class DQNConfig(ReplayConfig):
    """Hyperparameters of DQN. Any float may be a schedule."""

    batch_size: int = option(128, "transitions of one gradient step")
    replay_ratio: float = option(0.25, "gradient steps per environment step; fractions are carried")
    train_every: int = option(4, "vector steps between updates")
    learning_rate: float = option(2.5e-4, "step size of the optimiser")
    epsilon: Literal["auto"] | float = option(
        "auto",
        "chance of a random action, 0 in evaluations; auto: from 1 to 0.05 in the first fifth of "
        "the run, or 0 if `noisy`",
    )
    double: bool = option(True, "the network chooses the next action, its target judges it")
    dueling: bool = option(False, "state value and advantages as two heads")
    huber: bool = option(True, "errors beyond 1 count linearly; if not, half their square always")
    distribution: ValueDistribution = option(
        "none", "of returns: none (only their mean), c51 (fixed atoms) or quantile (QR-DQN)"
    )
    atoms: int = option(51, "c51: values that a return may have, equally far from each other")
    value_range: list[float] = option(
        [-10.0, 10.0], "c51: the first atom and the last one", fixed=True
    )
    quantiles: int = option(50, "quantile: how many; 200 in the paper, for Atari")
    noisy: bool = option(False, "layers of the heads have learned noise, which explores")
    target_every: int = option(500, "gradient steps between two moves of the target network")
    target_rate: float = option(1.0, "how far it moves then: 1 copies, 0.005 follows slowly")

    def __post_init__(self) -> None:
        """Refuse values that cannot work, before anything is built."""
        super().__post_init__()
        if self.epsilon == "auto":  # decided here, so that a saved configuration says it
            object.__setattr__(self, EPSILON, 0.0 if self.noisy else FADING)
        for name, least in (("target_every", 1), ("atoms", 2), ("quantiles", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        ends = self.value_range
        if len(ends) != 2 or not -math.inf < ends[0] < ends[1] < math.inf:
            raise ValueError(f"value_range must be [low, high] with low < high, got {ends}")
        if self.distribution != "none" and not self.huber:
            raise ValueError("huber must be true with a distribution, which has a loss of its own")
        require_chances(self, EPSILON, "target_rate")
        require_positive(self, "target_rate")

    @property
    def count(self) -> int:
        """Numbers that the network says of each action."""
        return {"none": 1, "c51": self.atoms, "quantile": self.quantiles}[self.distribution]

    def check(self, run: Any) -> list[str]:
        """Problems that only show together with the rest of the configuration."""
        problems = super().check(run)
        if run.network.shared_torso:
            problems.append("dqn has one network: network.shared_torso means nothing here")
        return problems

    def gradient_steps(self, run: Any) -> float:
        """What compiling has to repay: a distribution gains three times as much by it."""
        return super().gradient_steps(run) * (1 if self.distribution == "none" else 3)


def td_target(
    reward: Tensor, steps: Tensor | None, terminated: Tensor, next_value: Tensor, gamma: Tensor
) -> Tensor:
    """Rewards of the window, and what the future is worth where there is one.

    `next_value` is [B], or [K, B] where the future is K numbers.
    """
    gain, discount = n_step_return(reward, steps, gamma)
    return gain + discount * torch.where(terminated, 0.0, next_value)


def td_loss(value: Tensor, target: Tensor, weight: Tensor | None, *, huber: bool) -> Tensor:
    """Mean over the rows of how far values are from their targets."""
    if huber:
        return weighed_mean(smooth_l1_loss(value, target, reduction="none"), weight)
    return weighed_mean(0.5 * (value - target).square(), weight)


def weighed_mean(loss: Tensor, weight: Tensor | None) -> Tensor:
    """Over the rows [B]; importance weights shrink those that are drawn too often."""
    return (loss if weight is None else loss * weight).mean()


def distribution_loss(
    model: QNetwork, taken: Tensor, future: Tensor, rows: Batch, gamma: Tensor
) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Loss, priority and mean target of each row [B], from raw outputs [B, K] now and after it.

    A target is the distribution of the next action, moved and shrunk as a single value would be.
    Priorities are what is minimised: the divergence from the target for c51 (Rainbow: the loss
    without the target's own entropy), the loss itself for quantiles.
    """
    window = rows[REWARD], rows.get(STEPS), rows[TERMINATED]
    if model.distribution == "quantile":
        goal = td_target(*window, future.T, gamma).T
        loss = quantile_huber(taken, goal)
        return loss, loss.detach(), goal.mean(-1), {}
    atoms, chances = model.atoms(taken), future.softmax(-1)
    places = td_target(*window, atoms.unsqueeze(-1), gamma).T
    goal = project(chances, places, atoms)
    loss, divergence = categorical_loss(taken, goal)
    outside = torch.where((places < atoms[0]) | (places > atoms[-1]), chances, 0.0).sum(-1)
    return loss, divergence, goal @ atoms, {"out_of_range": outside.mean()}


def dqn_loss(
    model: QNetwork,
    rows: Batch,
    frozen: Frozen,
    gamma: Tensor,
    noise: Tensor | None = None,
    *,
    double: bool,
    huber: bool,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of one minibatch; `error` is |δ| of each row, before any weight, or what a
    distribution has instead. `noise` [3, …] is for the network now, as it chooses, its target.
    """
    own, choosing, judging = (None, None, None) if noise is None else noise.unbind()
    outputs = model(rows[OBS], own, raw=True)
    taken = of_action(outputs, rows[ACTION])
    with torch.no_grad():
        judge = network(frozen, model)(rows[NEXT_OBS], judging, raw=True)
        choice = model(rows[NEXT_OBS], choosing) if double else model.expected(judge)
        future = chosen_value(choice, judge, model.mask(rows[NEXT_OBS]))
    extra: dict[str, Tensor] = {}
    if model.distribution == "none":
        with torch.no_grad():
            target = td_target(rows[REWARD], rows.get(STEPS), rows[TERMINATED], future, gamma)
            error = (target - taken).abs()
        loss = td_loss(taken, target, rows.get(WEIGHT), huber=huber)
    else:
        each, error, target, extra = distribution_loss(model, taken, future, rows, gamma)
        loss = weighed_mean(each, rows.get(WEIGHT))
    with torch.no_grad():
        values = model.expected(outputs)
        value = taken if values is outputs else of_action(values, rows[ACTION])
        low, high = torch.aminmax(values, dim=-1)
        distance = (target - value).abs()
        means = torch.stack([value, high, high - low, target, distance]).mean(-1).unbind()
        if (scale := model.noise_scale()) is not None:
            extra["noise_scale"] = scale
    names = ("q_mean", "q_max", "q_spread", "target", "td_error")
    return loss, {**dict(zip(names, means, strict=True)), **extra, ERROR: error}


def voted_entropy(votes: Tensor, epsilon: float, legal: Tensor) -> Tensor:
    """Of a policy that takes the action of one voter, or with a chance of epsilon any, in nats.

    `votes` [V, B] are the actions of V noisy networks, `legal` [B, A] what is allowed.
    """
    share = one_hot(votes, legal.shape[-1]).float().mean(0)
    chances = (1 - epsilon) * share + epsilon * legal / legal.sum(-1, keepdim=True).clamp(min=1)
    return -torch.xlogy(chances, chances).sum(-1).mean()


class DQN(ReplayWorkflow):
    """Deep Q-network: off-policy, value-based; double, dueling, C51, QR and noisy variants."""

    actions: ClassVar[str] = "discrete"

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
        self.model = QNetwork(
            run.network,
            context.spec,
            mode,
            dueling=config.dueling,
            noisy=config.noisy,
            distribution=config.distribution,
            count=config.count,
            value_range=config.value_range,
        )
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
        self.epsilon = cast(float, at(config, 0).epsilon)
        self.explore_rng = context.rng.numpy("exploration")
        self.noise_rng = context.rng.torch("exploration")
        self.learning_noise_rng = context.rng.torch("learning_noise")

    def optimizers(self) -> dict[str, FlatOptimizer]:
        """One."""
        return {"values": self.optimizer}

    def slow(self) -> list[Tensor]:
        """The target network."""
        return [self.target.flat]

    def collect_step(self, step: int, *, phase: Phase) -> CollectResult:
        """Interact with the epsilon of this step."""
        self.epsilon = cast(float, at(self.config, step).epsilon)
        return super().collect_step(step, phase=phase)

    def absorb(self, trajectory: Batch) -> None:
        """Observation statistics take each fresh frame once; the target sees by the same ones."""
        if self.normalizes:
            absorb_frames(self.model, self.target, trajectory[OBS])

    def act(self, obs: Any, state: Any, *, deterministic: bool) -> Action:
        """The best action; with a chance of epsilon any, for each environment by itself.

        Noisy layers have fresh noise in every environment and at every step, or none if this is
        deterministic.
        """
        if deterministic:
            return Action(self._greedy(obs), state)
        count = first_leaf(obs).shape[0]
        explores = self.explore_rng.random(count) < self.epsilon
        noise = self.model.draw_noise((count,), self.noise_rng)
        if not explores.any():
            return Action(self._greedy(obs, noise), state)
        anything = random_action(self.context.spec.action, obs, self.explore_rng)
        if explores.all():
            return Action(anything, state)
        return Action(np.where(explores, anything, self._greedy(obs, noise)), state)

    def _greedy(self, obs: Any, noise: Tensor | None = None) -> Array:
        """The best legal actions [N]."""
        if self.fast is not None:
            best: Array = self.fast(obs.numpy()).argmax(-1)
            return best
        with torch.no_grad():
            values, mask = self.model(obs, noise), self.model.mask(obs)
            values = values if mask is None else masked(values, mask)
            return values.argmax(-1).numpy(force=True)

    def pure_policy(self) -> Policy | None:
        """What `act` does, for rollouts that are compiled whole; unless a subclass does another."""
        if type(self).act is not DQN.act or self.model.is_masked:
            return None
        weights = {**self.optimizer.tensors, EPSILON: torch.tensor(self.epsilon)}
        return Policy(self.decide, weights, self.noise)

    def noise(self, steps: int) -> Tensor:
        """For each decision a number per action, one that says whether to explore, and noise."""
        size = (steps, self.context.train_environment.num_envs)
        drawn = torch.rand((*size, self.model.actions + 1), generator=self.noise_rng)
        noise = self.model.draw_noise(size, self.noise_rng)
        return drawn if noise is None else torch.cat([drawn, noise], -1)

    def decide(
        self, weights: dict[str, Tensor], obs: Any, noise: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The action that the random numbers choose. Everything it reads is an argument."""
        weights, actions = dict(weights), self.model.actions
        explores = noise[..., actions] < weights.pop(EPSILON)
        inputs = (obs, noise[..., actions + 1 :]) if self.config.noisy else (obs,)
        best = functional_call(self.model, weights, inputs).argmax(-1)
        return torch.where(explores, noise[..., :actions].argmax(-1), best), {}

    def warnings(self, row: Mapping[str, float]) -> list[str]:
        """Of c51: a range of atoms that is too narrow for the returns."""
        if row.get("train/out_of_range", 0.0) <= MAX_OUT_OF_RANGE:
            return []
        low, high = self.config.value_range
        return [
            f"more than {MAX_OUT_OF_RANGE:.0%} of c51's targets lie outside of "
            f"algorithm.value_range, {low:g} to {high:g}, and count as its ends: make it wider, or "
            "scale the rewards"
        ]

    def learn(self, rows: Batch, now: DQNConfig) -> Metrics:
        """One gradient step, and the target network's move if it is time."""
        compiled = self.context.config.compute.compile == "on"
        frozen: Frozen = self.target.flat if compiled else self.target.module
        noise = self.model.draw_noise((3,), self.learning_noise_rng)
        last = () if noise is None else (noise,)
        step = self.optimizer.on(*last, **self.rates(now.learning_rate, now))
        used = {name: rows[name] for name in USED if name in rows}
        metrics = step(used, frozen, scalar(now.gamma, self.context.device))
        if self.gradient_steps % now.target_every == 0:
            self.target.follow(self.optimizer.state.flat, now.target_rate)
        del metrics["gradient"]
        metrics |= {EPSILON: self.epsilon, "learning_rate": now.learning_rate}
        if not now.noisy:
            mask = self.model.mask(rows[OBS])
            metrics["entropy"] = greedy_entropy(self.epsilon, self.model.actions, mask)
        return metrics

    def update(self, batch: Batch, *, phase: Phase) -> Metrics:
        """The gradient steps; then noisy layers are asked how random they make the policy."""
        metrics = super().update(batch, phase=phase)
        if self.config.noisy:
            obs = map_leaves(lambda leaf: leaf[-1, :ASKED], batch[OBS])
            noise = self.model.draw_noise((VOTERS, len(first_leaf(obs))), self.learning_noise_rng)
            with torch.no_grad():
                values, mask = self.model(obs, noise), self.model.mask(obs)
            legal = torch.ones_like(values[0]) if mask is None else (mask != 0).float()
            votes = masked(values, legal).argmax(-1)
            metrics["entropy"] = voted_entropy(votes, self.epsilon, legal)
        return metrics
