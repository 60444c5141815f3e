"""AWAC: advantage-weighted actor-critic (Nair et al. 2020, arXiv:2006.09359).

Reads top to bottom: config, losses, algorithm. Offline and then online, with Box or Discrete
actions. Critics learn the values of the policy, which imitates the actions of the data by how much
better than its own they are. Departures from the paper: weights are cut off instead of normalized
over the batch, as in most later code; gradients are clipped, at a norm that only outliers reach.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from rl_lab.algorithms.base import Algorithm, LearnsFrom, Optimized, Roles
from rl_lab.algorithms.offline import (
    PHASES,
    OfflineConfig,
    OfflinePolicy,
    Policy,
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
from rl_lab.core.distributions import Categorical, action_noise, described
from rl_lab.core.learner import Learner, all_or_nothing, scalar
from rl_lab.core.options import option
from rl_lab.core.protocols import AlgorithmContext, Buffer, Phase
from rl_lab.core.returns import td_target
from rl_lab.core.schedule import at
from rl_lab.core.schema import RunConfig
from rl_lab.core.tree import first_leaf
from rl_lab.networks.ensemble import QEnsemble
from rl_lab.networks.normalizer import make_normalizer, normalize_mode

CRITICS = 2


@dataclass(frozen=True, kw_only=True)
class AWACConfig(OfflineConfig):
    """Hyperparameters of AWAC. Any float may be a schedule."""

    temperature: float = option(
        1 / 3, "advantages are divided by it (lambda): small ones imitate the best alone", above=0
    )
    max_weight: float = option(100.0, "largest weight of an action", above=0)

    def check(self, run: RunConfig) -> list[str]:
        """Problems that only show together with the rest of the configuration."""
        problems = super().check(run)
        if run.network.shared_torso:
            problems.append("awac shares nothing: network.shared_torso means nothing here")
        return problems

    def gradient_steps(self, run: RunConfig) -> float:
        """What compiling has to repay: steps of critics and policy."""
        return 2 * super().gradient_steps(run)


def policy_value(policy: Policy, critic: QEnsemble, obs: Obs, noise: Tensor) -> Tensor:
    """The smaller Q [B] of an action of the policy; expected over all of them if discrete."""
    if isinstance(policy, Categorical):
        expected: Tensor = (policy.probabilities() * critic(obs).amin(0)).sum(-1)
        return expected
    value: Tensor = critic(obs, bounded_sample(policy, noise)).amin(0)
    return value


def q_loss(
    critic: QEnsemble,
    rows: Batch,
    policy: OfflinePolicy,
    target_critic: QEnsemble,
    noise: Tensor,
    gamma: Tensor,
    reward_scale: Tensor,
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Half the squared error of both critics from r + γ Q'(s', π(s')); `aux` has |δ| [B].

    Nothing follows a termination; a truncation only hides what does.
    """
    with torch.no_grad():
        next_obs, reward = rows[NEXT_OBS], reward_scale * rows[REWARD]
        next_value = policy_value(policy(next_obs), target_critic, next_obs, noise)
        target = td_target(reward, rows.get(STEPS), rows[TERMINATED], next_value, gamma)
    loss, metrics, aux = critic_loss(critic, rows[OBS], rows[ACTION], target, rows.get(WEIGHT))
    return loss, {**metrics, "target": target.mean()}, aux


def policy_loss(
    actor: OfflinePolicy,
    obs: Obs,
    action: Tensor,
    critic: QEnsemble,
    noise: Tensor,
    beta: Tensor,
    max_weight: Tensor,
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Regression weighted by the advantage Q(s, a) − Q(s, π(s)) (eq. 13); β = 1/λ."""
    policy = actor(obs)
    with torch.no_grad():
        advantage = taken_q(critic, obs, action).amin(0) - policy_value(policy, critic, obs, noise)
    loss, metrics = weighted_regression(policy, action, advantage, beta, max_weight)
    return loss, metrics, {}


class AWAC(Algorithm):
    """Advantage-weighted actor-critic: offline, and online from there."""

    Config: ClassVar[type | None] = AWACConfig
    learns_from: ClassVar[LearnsFrom] = "transitions"
    unit_actions: ClassVar[bool] = True
    roles: ClassVar[Roles] = {}
    optimized: ClassVar[Optimized] = ()
    phases: ClassVar[list[dict[str, Any]]] = PHASES
    defaults: ClassVar[Mapping[str, Any]] = offline_defaults()
    config: AWACConfig

    def initialize(self, context: AlgorithmContext) -> None:
        """Build policy and critics, and bind the streams of random numbers."""
        super().initialize(context)
        run, spec, config, device = context.config, context.spec, self.config, context.device
        mode = normalize_mode(run.environment.normalize_obs)
        self.normalizer = make_normalizer(mode, spec.observation).to(device)
        normalize_by_dataset(self.normalizer, context)
        policy = OfflinePolicy(run.network, spec, "awac").to(device)
        critic = QEnsemble(run.network, spec, CRITICS).to(device)
        rule, compiled = config.optimizer, run.compute.compile == "on"
        self.critic = Learner(critic, q_loss, rule, compile=compiled, target=True)
        self.policy = Learner(policy, policy_loss, rule, compile=compiled)
        self.budget = UpdateBudget(config.learning_starts)
        self.collect_steps = config.train_every
        self.random_actions = RandomActions(spec.action, context.rng.numpy("warm_up"))
        self.action_rng = context.rng.torch("actions", device)
        self.noise_rng = context.rng.torch("updates", device)

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
        """The distribution over actions, and the smaller Q of its most likely one."""
        obs = self.normalizer(obs)
        policy = self.policy.module(obs)
        value = taken_q(cast(QEnsemble, self.critic.module), obs, policy.mode()).amin(0)
        return {**described(policy), "value": value}

    def track_statistics(self, trajectory: Batch) -> None:
        """Count new frames in the observation statistics, unless they are those of a dataset."""
        track_online(self.normalizer, trajectory, self.context)

    def sample(self, buffer: Buffer, *, hook: str, phase: Phase) -> Batch | None:
        """Minibatches [K, B, …] for all gradient steps that are due."""
        return sample_minibatches(buffer, self.budget, phase, at(self.config, phase["step"]))

    def update(self, batch: Batch, *, phase: Phase) -> Metrics:
        """One step of critics and policy per minibatch; then the target critics move."""
        now, device = at(self.config, phase["step"]), self.context.device
        sizes = step_sizes(now.learning_rate, now.max_grad_norm, device)
        gamma, reward_scale = scalar(now.gamma, device), scalar(now.reward_scale, device)
        beta, max_weight = scalar(1 / now.temperature, device), scalar(now.max_weight, device)
        policy, critic, target_critic = (
            self.policy.module,
            self.critic.module,
            self.critic.target,
        )
        used = {name: batch[name] for name in USED if name in batch}
        used |= {name: self.normalizer(batch[name]) for name in (OBS, NEXT_OBS)}
        steps, errors = [], []
        learners = {"critic": self.critic, "policy": self.policy}
        with all_or_nothing("AWAC update", **learners, budget=self.budget):
            for rows in minibatches(used, self.budget, phase, now.replay_ratio):
                noise = self._noise(rows)
                step = self.critic.step(
                    rows, policy, target_critic, noise, gamma, reward_scale, **sizes
                )
                metrics = step_metrics("critic", step)
                errors.append(step.aux[ERROR])
                obs, action, noise = rows[OBS], rows[ACTION], self._noise(rows)
                step = self.policy.step(obs, action, critic, noise, beta, max_weight, **sizes)
                metrics |= step_metrics("policy", step)
                self.critic.follow(now.target_rate)
                steps.append(metrics)
        update_priorities(self.context, batch, errors, phase)
        return {**averages(steps), "gradient_steps": self.budget.steps}

    def _noise(self, rows: Batch) -> Tensor:
        """Random numbers for one action in each row."""
        return action_noise(self.context.spec.action, [len(rows[REWARD])], self.noise_rng)
