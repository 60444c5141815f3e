"""CQL: conservative Q-learning (Kumar et al. 2020, arXiv:2006.04779).

Reads top to bottom: config, the conservative term, losses, algorithm. Offline. Critics are pushed
down on all actions, by log ∫ exp Q(s, a) da, and up on those of the data, so that an action that is
not in the data does not look good by mistake. `cql` is SAC with that term, for a Box: the integral
is estimated by importance sampling. `cql_discrete` is DQN with that term, which is exact there.

Departures from the paper: the weight is fixed (no Lagrangian); targets have no entropy, as in the
authors' later code; gradients are clipped, at a norm that only outliers reach.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor

from rl_lab.algorithms.base import Algorithm, LearnsFrom, Optimized, Roles, Version
from rl_lab.algorithms.dqn import DQN, DQNConfig
from rl_lab.algorithms.offline import PHASES, OfflineConfig, offline_defaults, taken_q
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
from rl_lab.algorithms.sac import (
    LOG_PROB,
    USED,
    Temperature,
    actor_loss,
    critic_loss,
    soft_target,
    temperature_loss,
)
from rl_lab.core.actions import RandomActions
from rl_lab.core.batch import (
    ACTION,
    NEXT_OBS,
    OBS,
    REWARD,
    WEIGHT,
    Action,
    Batch,
    CollectResult,
    Metrics,
    Obs,
)
from rl_lab.core.clock import UpdateBudget
from rl_lab.core.distributions import described
from rl_lab.core.errors import UserError
from rl_lab.core.learner import Learner, all_or_nothing, scalar
from rl_lab.core.options import option
from rl_lab.core.protocols import AlgorithmContext, Buffer, Phase
from rl_lab.core.schedule import at
from rl_lab.core.schema import RunConfig
from rl_lab.core.spec import Box
from rl_lab.core.tree import first_leaf, map_leaves
from rl_lab.networks.ensemble import QEnsemble
from rl_lab.networks.normalizer import make_normalizer, normalize_mode
from rl_lab.networks.sac_policies import SoftActor

CRITICS = 2


@dataclass(frozen=True, kw_only=True)
class CQLConfig(OfflineConfig):
    """Hyperparameters of CQL. Any float may be a schedule."""

    conservative_weight: float = option(
        10.0, "weight of the conservative term (alpha): 5 to 10 for locomotion; 0: SAC", low=0
    )
    sampled_actions: int = option(
        10, "actions for each estimate: of the policy here, of it afterwards, and random", low=1
    )
    actor_learning_rate: float = option(
        1e-4, "step size of policy and temperature: slower than that of the critics", above=0
    )
    initial_temperature: float = option(
        1.0, "where the temperature of the policy starts", fixed=True, above=0
    )

    def check(self, run: RunConfig) -> list[str]:
        """Problems that only show together with the rest of the configuration."""
        problems = super().check(run)
        if run.network.shared_torso:
            problems.append("cql shares nothing: network.shared_torso means nothing here")
        return problems

    def gradient_steps(self, run: RunConfig) -> float:
        """What compiling has to repay: steps of critics and policy."""
        return 3 * super().gradient_steps(run)


@dataclass(frozen=True, kw_only=True)
class DiscreteCQLConfig(DQNConfig):
    """Hyperparameters of discrete CQL. Any float may be a schedule."""

    default_phases: ClassVar[Sequence[Mapping[str, Any]]] = PHASES
    learning_starts: int = option(0, "environment steps of random actions before learning online")
    learning_rate: float = option(3e-4, "step size of the optimizer")
    epsilon: Literal["auto"] | float = option(
        0.05, "online: probability of a random action, 0 in evaluations", low=0, high=1
    )
    conservative_weight: float | None = option(1.0, "weight of the conservative term (alpha)")


def proposals(
    actor: SoftActor, obs: Obs, next_obs: Obs, uniform: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """Actions [3 K, B, A] and their log densities [3 K, B]: uniform, of π(s), and of π(s').

    `uniform` [K, B, A] are in [-1, 1], `noise` [2, K, B, A] are normal numbers.
    """
    count, rows, size = uniform.shape
    here, here_density = actor(obs).draw(noise[0])
    after, after_density = actor(next_obs).draw(noise[1])
    even = torch.full((count, rows), -size * math.log(2.0), device=uniform.device)
    return torch.cat([uniform, here, after]), torch.cat([even, here_density, after_density])


def log_integral(critic: QEnsemble, obs: Obs, action: Tensor, log_density: Tensor) -> Tensor:
    """log ∫ exp Q(s, a) da [N, B], estimated from actions [K, B, A] that were drawn like this."""
    count, rows = log_density.shape
    repeated = map_leaves(lambda leaf: leaf.repeat(count, *[1] * (leaf.dim() - 1)), obs)
    q = critic(repeated, action.reshape(count * rows, -1)).view(-1, count, rows)
    return (q - log_density).logsumexp(1) - math.log(count)


def conservative_loss(
    critic: QEnsemble,
    rows: Batch,
    actor: SoftActor,
    target_critic: QEnsemble,
    noise: Tensor,
    uniform: Tensor,
    sampled: Tensor,
    gamma: Tensor,
    reward_scale: Tensor,
    weight: Tensor,
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """The critics' squared errors, and weight · (log ∫ exp Q − Q(s, a)) (eq. 4); summed over them.

    `noise` [B, A] is for the target's action, `uniform` [K, B, A] and `sampled` [2, K, B, A] are
    for the integral.
    """
    obs, action = rows[OBS], rows[ACTION]
    with torch.no_grad():
        none = torch.zeros((), device=noise.device)  # weight of the entropy
        target = soft_target(rows, actor, target_critic, none, noise, None, (), gamma, reward_scale)
        drawn, log_density = proposals(actor, obs, rows[NEXT_OBS], uniform, sampled)
    loss, metrics, aux = critic_loss(critic, obs, action, target, rows.get(WEIGHT))
    gap = log_integral(critic, obs, drawn, log_density) - taken_q(critic, obs, action)  # [N, B]
    metrics |= {"target": target.mean(), "conservative_gap": gap.detach().mean()}
    return loss + weight * gap.mean(-1).sum(), metrics, aux


class CQL(Algorithm):
    """Conservative Q-learning: SAC from a dataset, with low values for actions outside of it."""

    Config: ClassVar[type | None] = CQLConfig
    actions: ClassVar[str] = "continuous"
    learns_from: ClassVar[LearnsFrom] = "transitions"
    unit_actions: ClassVar[bool] = True
    roles: ClassVar[Roles] = {}
    optimized: ClassVar[Optimized] = ()
    phases: ClassVar[list[dict[str, Any]]] = PHASES
    defaults: ClassVar[Mapping[str, Any]] = offline_defaults()
    config: CQLConfig

    def initialize(self, context: AlgorithmContext) -> None:
        """Build policy and critics, and bind the streams of random numbers."""
        super().initialize(context)
        run, spec, config, device = context.config, context.spec, self.config, context.device
        if not isinstance(spec.action, Box) or len(spec.action.shape) != 1:
            raise UserError(
                f"cql needs a flat Box of actions, '{spec.id}' has none: use cql_discrete"
            )
        self.action_dim = spec.action.size
        mode = normalize_mode(run.environment.normalize_obs)
        self.normalizer = make_normalizer(mode, spec.observation).to(device)
        normalize_by_dataset(self.normalizer, context)
        critic = QEnsemble(run.network, spec, CRITICS).to(device)
        actor = SoftActor(run.network, spec).to(device)
        temperature = Temperature(config.initial_temperature).to(device)
        rule, compiled = config.optimizer, run.compute.compile == "on"
        self.critic = Learner(critic, conservative_loss, rule, compile=compiled, target=True)
        self.actor = Learner(actor, partial(actor_loss, how="min"), rule, compile=compiled)
        plain = replace(rule, weight_decay=0, agc=0)  # log α = 0 is nothing to decay to
        self.temperature = Learner(temperature, None, plain, compile=compiled)
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
        """Sample, or take the action of the mean."""
        policy = self.actor.module(self.normalizer(obs))
        if deterministic:
            return Action(policy.mode(), state)
        noise = self._normal(len(first_leaf(obs)), rng=self.action_rng)
        return Action(policy.draw(noise)[0], state)

    def greedy(self, obs: Any, state: Any) -> Action:
        """The action of the mean, by operations on tensors alone."""
        return Action(self.actor.module(self.normalizer(obs)).mode(), state)

    def describe(self, obs: Any, state: Any) -> Mapping[str, Tensor]:
        """The distribution over actions, and by the smaller critic the value of its mode."""
        obs = self.normalizer(obs)
        policy = self.actor.module(obs)
        value = self.critic.module(obs, policy.mode()).amin(0)
        return {**described(policy), "value": value}

    def track_statistics(self, trajectory: Batch) -> None:
        """Count new frames in the observation statistics, unless they are those of a dataset."""
        track_online(self.normalizer, trajectory, self.context)

    def sample(self, buffer: Buffer, *, hook: str, phase: Phase) -> Batch | None:
        """Minibatches [K, B, …] for all gradient steps that are due."""
        return sample_minibatches(buffer, self.budget, phase, at(self.config, phase["step"]))

    def update(self, batch: Batch, *, phase: Phase) -> Metrics:
        """One step of critics, policy and temperature per minibatch; then the targets move."""
        now, device = at(self.config, phase["step"]), self.context.device
        sizes = step_sizes(now.learning_rate, now.max_grad_norm, device)
        actor_sizes = step_sizes(now.actor_learning_rate, now.max_grad_norm, device)
        gamma, reward_scale = scalar(now.gamma, device), scalar(now.reward_scale, device)
        weight, count = scalar(now.conservative_weight, device), now.sampled_actions
        critic, target_critic, actor = self.critic.module, self.critic.target, self.actor.module
        used = {name: batch[name] for name in USED if name in batch}
        used |= {name: self.normalizer(batch[name]) for name in (OBS, NEXT_OBS)}
        size = batch[REWARD].shape[1]
        steps, errors = [], []
        learners = {"critic": self.critic, "actor": self.actor, "temperature": self.temperature}
        with all_or_nothing("CQL update", **learners, budget=self.budget):
            for rows in minibatches(used, self.budget, phase, now.replay_ratio):
                noise, sampled = self._normal(size), self._normal(2, count, size)
                uniform = self._uniform(count, size)
                step = self.critic.step(
                    *(rows, actor, target_critic, noise, uniform, sampled),
                    *(gamma, reward_scale, weight),
                    **sizes,
                )
                metrics = step_metrics("critic", step)
                errors.append(step.aux[ERROR])
                log_alpha = cast(Temperature, self.temperature.module).log_alpha.detach()
                alpha, noise = log_alpha.exp(), self._normal(size)
                step = self.actor.step(rows[OBS], critic, noise, alpha, **actor_sizes)
                metrics |= {**step_metrics("actor", step), "alpha": alpha}
                goal = -float(self.action_dim)
                loss, slope = temperature_loss(log_alpha, step.aux[LOG_PROB], goal)
                step = self.temperature.descend(slope.view(1), loss, **actor_sizes)
                metrics |= step_metrics("temperature", step)
                self.critic.follow(now.target_rate)
                steps.append(metrics)
        update_priorities(self.context, batch, errors, phase)
        return {**averages(steps), "gradient_steps": self.budget.steps}

    def _normal(self, *lead: int, rng: torch.Generator | None = None) -> Tensor:
        """Normal numbers [*lead, A]."""
        rng = rng or self.noise_rng
        return torch.randn(*lead, self.action_dim, generator=rng, device=rng.device)

    def _uniform(self, *lead: int) -> Tensor:
        """Uniform actions [*lead, A]."""
        rng = self.noise_rng
        return 2 * torch.rand(*lead, self.action_dim, generator=rng, device=rng.device) - 1


DiscreteCQL = Version(
    DQN,
    "Discrete CQL: DQN from a dataset, with low values for actions outside of it.",
    config=DiscreteCQLConfig,
    phases=PHASES,
    defaults=offline_defaults(DQN.defaults),
)
