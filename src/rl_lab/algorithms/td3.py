"""TD3: twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv:1802.09477).

Reads top to bottom: config, network, target and losses, algorithm. Against the overestimation of
deterministic policy gradients (DDPG): the smaller of two critics makes the target, the target's
actions are smoothed by clipped noise, and actor and target networks move once in several steps of
the critics. Departures from the paper: gradients are clipped, at a norm that only outliers reach;
n-step returns and prioritized buffers are options. With `alpha` the actor imitates the actions of
the data, too: TD3+BC (`td3_bc.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rl_lab.algorithms.base import Algorithm, LearnsFrom, Optimized, Roles
from rl_lab.algorithms.replay import (
    ERROR,
    TransitionConfig,
    averages,
    minibatches,
    normalize_by_dataset,
    require_positive,
    require_probabilities,
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
from rl_lab.core.errors import UserError
from rl_lab.core.learner import Learner, all_or_nothing, scalar
from rl_lab.core.options import option
from rl_lab.core.protocols import AlgorithmContext, Buffer, Phase
from rl_lab.core.returns import td_target
from rl_lab.core.schedule import at, extremes
from rl_lab.core.schema import NetworkConfig, RunConfig
from rl_lab.core.spec import Box, EnvSpec
from rl_lab.networks.encoder import make_encoder, width_of
from rl_lab.networks.ensemble import QEnsemble, in_place
from rl_lab.networks.mlp import linear, mlp
from rl_lab.networks.normalizer import make_normalizer, normalize_mode

CRITICS = 2
SMALLEST_Q = 1e-6  # of mean |Q|, by which TD3+BC divides


@dataclass(frozen=True, kw_only=True)
class TD3Config(TransitionConfig):
    """Hyperparameters of TD3. Any float may be a schedule."""

    exploration_noise: float = option(0.1, "standard deviation of the noise on collected actions")
    target_noise: float = option(0.2, "standard deviation of the noise on the target's actions")
    target_noise_clip: float = option(0.5, "largest size of that noise")
    actor_every: int = option(
        2, "gradient steps of the critics per step of actor and target networks (policy delay)"
    )
    target_rate: float = option(5e-3, "how far target networks move then (tau)")
    max_grad_norm: float = option(1000.0, "largest norm of a gradient, for outliers")
    alpha: float | None = option(
        None,
        "TD3+BC: weight of the value against imitating the actions of the data; null: no imitation",
        low=0,
    )

    def __post_init__(self) -> None:
        """Refuse values that cannot work, before anything is built."""
        super().__post_init__()
        if self.actor_every < 1:
            raise ValueError(f"actor_every must be at least 1, got {self.actor_every}")
        for name in ("exploration_noise", "target_noise", "target_noise_clip"):
            if (low := extremes(getattr(self, name))[0]) < 0:
                raise ValueError(f"{name} must be 0 or more, got {low:g}")
        require_positive(self, "target_rate")
        require_probabilities(self, "target_rate")

    def check(self, run: RunConfig) -> list[str]:
        """Problems that only show together with the rest of the configuration."""
        problems = super().check(run)
        if run.network.shared_torso:
            problems.append("td3 shares nothing: network.shared_torso means nothing here")
        return problems

    def gradient_steps(self, run: RunConfig) -> float:
        """What compiling has to repay: the steps of the critics, and those of the actor."""
        return (1 + 1 / self.actor_every) * super().gradient_steps(run)


class DeterministicActor(nn.Module):
    """Observation to an action in [-1, 1]."""

    def __init__(self, config: NetworkConfig, spec: EnvSpec, size: int) -> None:
        super().__init__()
        self.encoder = make_encoder(config.encoder, spec.observation)
        width = width_of(self.encoder)
        hidden_dims = config.actor.hidden_dims
        self.hidden = in_place(mlp(width, hidden_dims, config.actor.activation))
        self.output = linear([width, *hidden_dims][-1], size, gain=0.01)

    def forward(self, obs: Obs) -> Tensor:
        """[B, …] to [B, A]."""
        action: Tensor = self.output(self.hidden(self.encoder(obs))).tanh()
        return action


@torch.no_grad()
def smoothed_target(
    rows: Batch,
    target_actor: nn.Module,
    target_critic: nn.Module,
    noise: Tensor,
    noise_clip: Tensor,
    gamma: Tensor,
) -> Tensor:
    """The target of both critics [B]: the smaller Q of the target actor's noisy action (alg. 1)."""
    smoothing = noise.clamp(-noise_clip, noise_clip)
    action = (target_actor(rows[NEXT_OBS]) + smoothing).clamp(-1.0, 1.0)
    next_value = target_critic(rows[NEXT_OBS], action).amin(0)
    return td_target(rows[REWARD], rows.get(STEPS), rows[TERMINATED], next_value, gamma)


def twin_loss(
    critic: QEnsemble,
    rows: Batch,
    target_actor: nn.Module,
    target_critic: nn.Module,
    noise: Tensor,
    noise_clip: Tensor,
    gamma: Tensor,
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Half the squared error of both critics from one target; `aux` has |δ| of each row."""
    target = smoothed_target(rows, target_actor, target_critic, noise, noise_clip, gamma)
    weight = rows.get(WEIGHT)
    loss, metrics, aux = critic_loss(critic, rows[OBS], rows[ACTION], target, weight)
    return loss, {**metrics, "target": target.mean()}, aux


def actor_loss(
    actor: nn.Module,
    obs: Obs,
    critic: QEnsemble,
    taken: Tensor | None = None,
    alpha: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """−Q of the actor's action by the first critic; gradients flow through the action only.

    With `alpha`: −λ Q + (π(s) − a)², where a is the action `taken` in the data and λ = α / mean |Q|
    makes the weights independent of the scale of rewards (TD3+BC, eq. 3 and 5).
    """
    action = actor(obs)
    metrics = {"action_size": action.detach().abs().mean()}
    q = critic(obs, action, frozen=True)[0]
    if taken is None or alpha is None:
        return -q.mean(), metrics, {}
    scale = alpha / q.detach().abs().mean().clamp(min=SMALLEST_Q)
    imitation = (action - taken).square().mean()
    metrics |= {"imitation_loss": imitation.detach(), "q_weight": scale}
    return imitation - scale * q.mean(), metrics, {}


class TD3(Algorithm):
    """Twin delayed DDPG: off-policy, deterministic policy, continuous actions."""

    Config: ClassVar[type | None] = TD3Config
    actions: ClassVar[str] = "continuous"
    learns_from: ClassVar[LearnsFrom] = "transitions"
    unit_actions: ClassVar[bool] = True
    roles: ClassVar[Roles] = {}
    optimized: ClassVar[Optimized] = ()
    defaults: ClassVar[Mapping[str, Any]] = {
        "buffers": {"replay": {"type": "uniform"}},
        "environment": {"num_envs": 1},
        "network": {
            "encoder": {"type": "auto", "hidden_dims": [], "image": "conv"},
            "actor": {"hidden_dims": [256, 256], "activation": "relu"},
            "critic": {"hidden_dims": [256, 256], "activation": "relu"},
        },
    }
    config: TD3Config

    def initialize(self, context: AlgorithmContext) -> None:
        """Build actor and critics with their targets, and bind the streams of random numbers."""
        super().initialize(context)
        run, spec, config, device = context.config, context.spec, self.config, context.device
        if not isinstance(spec.action, Box) or len(spec.action.shape) != 1:
            raise UserError(f"td3 needs a flat Box of actions, '{spec.id}' has none")
        self.action_dim = spec.action.size
        mode = normalize_mode(run.environment.normalize_obs)
        self.normalizer = make_normalizer(mode, spec.observation).to(device)
        critic = QEnsemble(run.network, spec, CRITICS).to(device)
        actor = DeterministicActor(run.network, spec, self.action_dim).to(device)
        normalize_by_dataset(self.normalizer, context)
        rule, compiled = config.optimizer, run.compute.compile == "on"
        self.critic = Learner(critic, twin_loss, rule, compile=compiled, target=True)
        self.actor = Learner(actor, actor_loss, rule, compile=compiled, target=True)
        self.budget = UpdateBudget(config.learning_starts)
        self.collect_steps = config.train_every
        self.exploration_noise = at(config, 0).exploration_noise
        self.random_actions = RandomActions(spec.action, context.rng.numpy("warm_up"))
        self.action_rng = context.rng.torch("actions", device)
        self.noise_rng = context.rng.torch("updates", device)

    def collect_step(self, step: int, *, phase: Phase) -> CollectResult:
        """Random actions until `learning_starts`, then the actor's with exploration noise."""
        self.exploration_noise = at(self.config, step).exploration_noise
        warming_up = step < self.config.learning_starts
        return self.collect(self.random_actions if warming_up else self.act, phase)

    @torch.no_grad()
    def act(self, obs: Obs, state: object, *, deterministic: bool) -> Action:
        """The actor's action, with noise unless this is deterministic."""
        action = self.actor.module(self.normalizer(obs))
        if not deterministic:
            noise = self._noise(len(action), self.exploration_noise, self.action_rng)
            action = (action + noise).clamp(-1.0, 1.0)
        return Action(action, state)

    def describe(self, obs: Obs, state: object) -> Mapping[str, Tensor]:
        """The action without noise, and the smallest value that a critic gives it."""
        obs = self.normalizer(obs)
        action = self.actor.module(obs)
        return {"mean": action, "value": self.critic.module(obs, action).amin(0)}

    def track_statistics(self, trajectory: Batch) -> None:
        """Count new frames in the observation statistics, unless they are those of a dataset."""
        track_online(self.normalizer, trajectory, self.context)

    def sample(self, buffer: Buffer, *, hook: str, phase: Phase) -> Batch | None:
        """Minibatches [K, B, …] for all gradient steps that are due."""
        return sample_minibatches(buffer, self.budget, phase, at(self.config, phase["step"]))

    def update(self, batch: Batch, *, phase: Phase) -> Metrics:
        """One step of the critics per minibatch; actor and targets every `actor_every` steps."""
        now, device = at(self.config, phase["step"]), self.context.device
        sizes = step_sizes(now.learning_rate, now.max_grad_norm, device)
        gamma, noise_clip = scalar(now.gamma, device), scalar(now.target_noise_clip, device)
        targets = self.actor.target, self.critic.target
        used = {name: batch[name] for name in USED if name in batch}
        used |= {name: self.normalizer(batch[name]) for name in (OBS, NEXT_OBS)}
        steps, errors = [], []
        learners = {"critic": self.critic, "actor": self.actor}
        with all_or_nothing("TD3 update", **learners, budget=self.budget):
            for rows in minibatches(used, self.budget, phase, now.replay_ratio):
                noise = self._noise(len(rows[REWARD]), now.target_noise, self.noise_rng)
                step = self.critic.step(rows, *targets, noise, noise_clip, gamma, **sizes)
                metrics = step_metrics("critic", step)
                errors.append(step.aux[ERROR])
                if self.budget.steps % now.actor_every == 0:
                    imitated = (
                        (rows[ACTION], scalar(now.alpha, device)) if now.alpha is not None else ()
                    )
                    step = self.actor.step(rows[OBS], self.critic.module, *imitated, **sizes)
                    metrics |= step_metrics("actor", step)
                    self.critic.follow(now.target_rate)
                    self.actor.follow(now.target_rate)
                steps.append(metrics)
        update_priorities(self.context, batch, errors, phase)
        return {**averages(steps), "gradient_steps": self.budget.steps}

    def _noise(self, count: int, scale: float, rng: torch.Generator) -> Tensor:
        """Normal noise [count, A] with this standard deviation."""
        return scale * torch.randn(count, self.action_dim, generator=rng, device=rng.device)
