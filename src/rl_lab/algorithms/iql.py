"""IQL: implicit Q-learning (Kostrikov et al. 2021, arXiv:2110.06169).

Reads top to bottom: config, value network, losses, algorithm. Offline, with Box or Discrete
actions. No loss asks for the value of an action that is not in the data: V is an upper expectile of
Q over the actions of the data, Q learns from V, and the policy imitates actions by how much better
than V they are. Departures from the paper: gradients are clipped, at a norm that only outliers
reach; the policy's step size follows its cosine within each offline phase, and is constant online.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from rl_lab.algorithms.base import Algorithm, LearnsFrom, Optimized, Roles
from rl_lab.algorithms.offline import (
    PHASES,
    OfflineConfig,
    OfflinePolicy,
    bounded_sample,
    offline_defaults,
    taken_q,
    weighted_regression,
)
from rl_lab.algorithms.replay import (
    ERROR,
    averages,
    minibatches,
    normalize_by_dataset,
    sample_minibatches,
    step_metrics,
    step_sizes,
    track_online,
    update_priorities,
)
from rl_lab.algorithms.sac import USED, critic_loss
from rl_lab.core.actions import RandomActions
from rl_lab.core.batch import (
    ACTION,
    NEXT_OBS,
    OBS,
    REWARD,
    STEPS,
    TERMINATED,
    WEIGHT,
    Action,
    Batch,
    CollectResult,
    Metrics,
    Obs,
)
from rl_lab.core.clock import UpdateBudget
from rl_lab.core.distributions import action_noise, described
from rl_lab.core.learner import Learner, all_or_nothing, scalar
from rl_lab.core.options import option
from rl_lab.core.protocols import AlgorithmContext, Buffer, Phase
from rl_lab.core.returns import td_target
from rl_lab.core.schedule import at
from rl_lab.core.schema import NetworkConfig, RunConfig
from rl_lab.core.spec import EnvSpec
from rl_lab.core.tree import first_leaf
from rl_lab.networks.encoder import make_encoder
from rl_lab.networks.ensemble import QEnsemble, in_place
from rl_lab.networks.normalizer import make_normalizer, normalize_mode
from rl_lab.networks.q_network import q_head

CRITICS = 2
ADVANTAGE = "advantage"


@dataclass(frozen=True, kw_only=True)
class IQLConfig(OfflineConfig):
    """Hyperparameters of IQL. Any float may be a schedule."""

    expectile: float = option(
        0.7,
        "which expectile of Q the value is (tau): 0.5 is the mean, towards 1 the best action",
        above=0,
        below=1,
    )
    beta: float = option(
        3.0,
        "how much the policy prefers actions of a large advantage (inverse temperature); 0: none",
        low=0,
    )
    max_weight: float = option(100.0, "largest weight of an action", above=0)
    actor_schedule: Literal["cosine", "constant"] = option(
        "cosine", "the policy's step size within an offline phase: falling to 0, or constant"
    )

    def check(self, run: RunConfig) -> list[str]:
        """Problems that only show together with the rest of the configuration."""
        problems = super().check(run)
        if run.network.shared_torso:
            problems.append("iql shares nothing: network.shared_torso means nothing here")
        return problems

    def gradient_steps(self, run: RunConfig) -> float:
        """What compiling has to repay: steps of value, policy and critics."""
        return 2 * super().gradient_steps(run)


class StateValue(nn.Module):
    """Observation to V(s)."""

    def __init__(self, config: NetworkConfig, spec: EnvSpec) -> None:
        super().__init__()
        self.encoder = make_encoder(config.encoder, spec.observation)
        width: Any = self.encoder.out_dim
        self.head = in_place(q_head(config.critic, width, 1))

    def forward(self, obs: Obs) -> Tensor:
        """[B, …] to [B]."""
        value: Tensor = self.head(self.encoder(obs)).squeeze(-1)
        return value


def expectile_loss(error: Tensor, expectile: Tensor) -> Tensor:
    """|τ − 1(u < 0)| u² of errors u [B] (eq. 4): its minimum is the τ-expectile."""
    weight = torch.where(error > 0, expectile, 1.0 - expectile)
    return weight * error.square()


def value_loss(
    value: nn.Module, obs: Obs, action: Tensor, target_critic: QEnsemble, expectile: Tensor
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """V towards an expectile of the smaller target critic (eq. 5); `aux` has advantages [B]."""
    with torch.no_grad():
        q = taken_q(target_critic, obs, action).amin(0)
    predicted = value(obs)
    advantage = q - predicted
    metrics = {"value_mean": predicted.detach().mean()}
    aux = {ADVANTAGE: advantage.detach()}
    return expectile_loss(advantage, expectile).mean(), metrics, aux


def q_loss(
    critic: QEnsemble, rows: Batch, value: nn.Module, gamma: Tensor, reward_scale: Tensor
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Half the squared error of both critics from r + γ V(s') (eq. 6); `aux` has |δ| [B].

    Nothing follows a termination; a truncation only hides what does.
    """
    with torch.no_grad():
        reward, next_value = reward_scale * rows[REWARD], value(rows[NEXT_OBS])
        target = td_target(reward, rows.get(STEPS), rows[TERMINATED], next_value, gamma)
    loss, metrics, aux = critic_loss(critic, rows[OBS], rows[ACTION], target, rows.get(WEIGHT))
    return loss, {**metrics, "target": target.mean()}, aux


def policy_loss(
    policy: OfflinePolicy,
    obs: Obs,
    action: Tensor,
    advantage: Tensor,
    beta: Tensor,
    max_weight: Tensor,
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Advantage-weighted regression (eq. 7)."""
    loss, metrics = weighted_regression(policy(obs), action, advantage, beta, max_weight)
    return loss, metrics, {}


class IQL(Algorithm):
    """Implicit Q-learning: offline, never asks for the value of an action outside of the data."""

    Config: ClassVar[type | None] = IQLConfig
    learns_from: ClassVar[LearnsFrom] = "transitions"
    unit_actions: ClassVar[bool] = True
    roles: ClassVar[Roles] = {}
    optimized: ClassVar[Optimized] = ()
    phases: ClassVar[list[dict[str, Any]]] = PHASES
    defaults: ClassVar[Mapping[str, Any]] = offline_defaults()
    config: IQLConfig

    def initialize(self, context: AlgorithmContext) -> None:
        """Build policy, value and critics, and bind the streams of random numbers."""
        super().initialize(context)
        run, spec, config, device = context.config, context.spec, self.config, context.device
        mode = normalize_mode(run.environment.normalize_obs)
        self.normalizer = make_normalizer(mode, spec.observation).to(device)
        normalize_by_dataset(self.normalizer, context)
        policy = OfflinePolicy(run.network, spec, "iql").to(device)
        critic = QEnsemble(run.network, spec, CRITICS).to(device)
        value = StateValue(run.network, spec).to(device)
        rule, compiled = config.optimizer, run.compute.compile == "on"
        self.value = Learner(value, value_loss, rule, compile=compiled)
        self.critic = Learner(critic, q_loss, rule, compile=compiled, target=True)
        self.policy = Learner(policy, policy_loss, rule, compile=compiled)
        self.budget = UpdateBudget(config.learning_starts)
        self.collect_steps = config.train_every
        self.random_actions = RandomActions(spec.action, context.rng.numpy("warm_up"))
        self.action_rng = context.rng.torch("actions", device)

    def collect_step(self, step: int, *, phase: Phase) -> CollectResult:
        """Random actions until `learning_starts`, then samples of the policy."""
        warming_up = step < self.config.learning_starts
        return self.collect(self.random_actions if warming_up else self.act, phase)

    @torch.no_grad()
    def act(self, obs: Obs, state: object, *, deterministic: bool) -> Action:
        """Sample, or take the mean or the most likely action."""
        policy = self.policy.module(self.normalizer(obs))
        if deterministic:
            return Action(policy.mode(), state)
        noise = action_noise(self.context.spec.action, [len(first_leaf(obs))], self.action_rng)
        return Action(bounded_sample(policy, noise), state)

    def greedy(self, obs: Any, state: Any) -> Action:
        """The mean or the most likely action, by operations on tensors alone."""
        return Action(self.policy.module(self.normalizer(obs)).mode(), state)

    def describe(self, obs: Any, state: Any) -> Mapping[str, Tensor]:
        """The distribution over actions, and V(s)."""
        obs = self.normalizer(obs)
        return {**described(self.policy.module(obs)), "value": self.value.module(obs)}

    def track_statistics(self, trajectory: Batch) -> None:
        """Count new frames in the observation statistics, unless they are those of a dataset."""
        track_online(self.normalizer, trajectory, self.context)

    def sample(self, buffer: Buffer, *, hook: str, phase: Phase) -> Batch | None:
        """Minibatches [K, B, …] for all gradient steps that are due."""
        return sample_minibatches(buffer, self.budget, phase, at(self.config, phase["step"]))

    def update(self, batch: Batch, *, phase: Phase) -> Metrics:
        """One step of value, policy and critics per minibatch; then the target critics move."""
        now, device = at(self.config, phase["step"]), self.context.device
        sizes = step_sizes(now.learning_rate, now.max_grad_norm, device)
        policy_rate = now.learning_rate * decay(now.actor_schedule, phase)
        policy_sizes = {**sizes, "learning_rate": torch.tensor(policy_rate, device=device)}
        gamma, reward_scale = scalar(now.gamma, device), scalar(now.reward_scale, device)
        expectile, beta = scalar(now.expectile, device), scalar(now.beta, device)
        max_weight = scalar(now.max_weight, device)
        used = {name: batch[name] for name in USED if name in batch}
        used |= {name: self.normalizer(batch[name]) for name in (OBS, NEXT_OBS)}
        steps, errors = [], []
        learners = {"value": self.value, "critic": self.critic, "policy": self.policy}
        with all_or_nothing("IQL update", **learners, budget=self.budget):
            for rows in minibatches(used, self.budget, phase, now.replay_ratio):
                obs, action = rows[OBS], rows[ACTION]
                step = self.value.step(obs, action, self.critic.target, expectile, **sizes)
                metrics, advantage = step_metrics("value", step), step.aux[ADVANTAGE]
                step = self.policy.step(obs, action, advantage, beta, max_weight, **policy_sizes)
                metrics |= step_metrics("policy", step)
                step = self.critic.step(rows, self.value.module, gamma, reward_scale, **sizes)
                metrics |= step_metrics("critic", step)
                errors.append(step.aux[ERROR])
                self.critic.follow(now.target_rate)
                steps.append(metrics)
        update_priorities(self.context, batch, errors, phase)
        rates = {"policy_learning_rate": policy_rate, "gradient_steps": self.budget.steps}
        return {**averages(steps), **rates}


def decay(schedule: str, phase: Phase) -> float:
    """Factor of the policy's step size: half a cosine over an offline phase, 1 online."""
    if schedule == "constant" or phase["type"] != "offline":
        return 1.0
    return 0.5 * (1.0 + math.cos(math.pi * float(phase["progress"])))
