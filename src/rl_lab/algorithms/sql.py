"""SQL: soft Q-learning with a learned sampler (Haarnoja et al. 2017, arXiv:1702.08165).

The policy is exp Q(s, ·) up to a constant, whatever its shape: where several actions are equally
good it keeps them all. A network that turns noise into actions is trained by Stein variational
gradient descent (SVGD) to sample from it. Reads top to bottom: config, values, SVGD, networks,
algorithm. Settings and the correction for squashed actions are those of the authors' code.
Departures: each row has separate uniform actions for its value estimate, gradients are clipped, and
a deterministic action is the best of a fixed set of samples.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rl_lab.algorithms.base import VALUES, Algorithm, LearnsFrom, Optimized, Roles
from rl_lab.algorithms.replay import (
    BUDGET_NAMES,
    ERROR,
    TransitionConfig,
    averages,
    minibatches,
    require_positive,
    require_probabilities,
    sample_minibatches,
    step_sizes,
    update_priorities,
)
from rl_lab.core.actions import RandomActions
from rl_lab.core.batch import (
    ACTION,
    NEXT_OBS,
    OBS,
    REWARD,
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
from rl_lab.core.learner import Learner, all_or_nothing
from rl_lab.core.options import option
from rl_lab.core.picture import Contour, Lines, Picture, Points
from rl_lab.core.protocols import AlgorithmContext, Buffer, Phase
from rl_lab.core.schedule import at, extremes
from rl_lab.core.schema import HeadConfig, NetworkConfig, RunConfig
from rl_lab.core.spec import Box, EnvSpec
from rl_lab.core.tree import first_leaf
from rl_lab.networks.encoder import make_encoder, width_of
from rl_lab.networks.mlp import linear, mlp

SMALLEST_BANDWIDTH = 1e-3
SQUASH_EPSILON = 1e-6
DRAWN = 40  # points of a picture's grid, on both axes
SAMPLES = 100  # actions in a picture of one state
# How checkpoints of earlier versions name what the learners hold.
LEARNER_NAMES = {
    "critic.module": "critic",
    "critic.target": "target",
    "critic.optimizer": "critic_optimizer",
    "sampler.module": "sampler",
    "sampler.optimizer": "sampler_optimizer",
}


@dataclass(frozen=True, kw_only=True)
class SQLConfig(TransitionConfig):
    """Hyperparameters of soft Q-learning. Any float may be a schedule."""

    batch_size: int = option(128, "transitions of one gradient step")
    reward_scale: float = option(
        1.0, "factor of the reward, the inverse of a temperature: small is more random"
    )
    value_particles: int = option(16, "uniform actions that estimate the value of a state")
    kernel_particles: int = option(16, "sampled actions per state in an update of the sampler")
    kernel_update_ratio: float = option(0.5, "share of them that is moved; the others say where to")
    target_every: int = option(1000, "gradient steps between two moves of the target network")
    target_rate: float = option(1.0, "how far it moves towards the network; 1: a copy")
    picture_states: list[list[float]] = option(
        [], "observations at which to draw Q and samples over the actions, if there are two"
    )

    def __post_init__(self) -> None:
        """Refuse values that cannot work, before anything is built."""
        super().__post_init__()
        for name, least in {"value_particles": 1, "kernel_particles": 3, "target_every": 1}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        require_positive(self, "reward_scale", "target_rate", "kernel_update_ratio")
        require_probabilities(self, "target_rate", "kernel_update_ratio")
        if extremes(self.kernel_update_ratio)[1] == 1:
            raise ValueError("kernel_update_ratio must be below 1, got 1")
        if self.n_step != 1:
            raise ValueError(f"n_step must be 1 in soft Q-learning, got {self.n_step}")

    def check(self, run: RunConfig) -> list[str]:
        """Problems that only show together with the rest of the configuration."""
        problems = super().check(run)
        if run.network.shared_torso:
            problems.append("sql shares nothing: network.shared_torso means nothing here")
        if run.environment.normalize_obs:
            problems.append("sql does not normalize: environment.normalize_obs must be false")
        return problems

    def moved_particles(self) -> int:
        """How many of the kernel's particles are moved: one at least, and two stay."""
        share = int(self.kernel_particles * self.kernel_update_ratio)
        return min(max(share, 1), self.kernel_particles - 2)


def soft_value(q: Tensor, action_dim: int) -> Tensor:
    """V = log ∫ exp Q(a) da over [-1, 1]^dim, from Q [..., K] of K uniform actions (eq. 10)."""
    return q.logsumexp(-1) - math.log(q.shape[-1]) + action_dim * math.log(2)


def described(q: Tensor, action_dim: int) -> dict[str, Tensor]:
    """Metrics of the policy exp(Q − V) over the same actions: entropy E[V − Q], range of Q."""
    expected = (q.softmax(-1) * q).sum(-1)
    return {
        "entropy": (soft_value(q, action_dim) - expected).mean(),
        "q_spread": (q.amax(-1) - q.amin(-1)).mean(),
    }


def soft_target(
    reward: Tensor, terminated: Tensor, next_value: Tensor, *, reward_scale: float, gamma: float
) -> Tensor:
    """The target of Q (eq. 11). Nothing follows a termination; a truncation only hides it."""
    return reward_scale * reward + gamma * torch.where(terminated, 0.0, next_value)


def critic_loss(
    critic: nn.Module, obs: Obs, action: Tensor, target: Tensor, weight: Tensor
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Half the squared soft Bellman error, rows [B] weighted."""
    q = critic(obs, action).squeeze(-1)
    error = target - q
    loss = 0.5 * (weight * error.square()).mean()
    return loss, {"q_mean": q.mean()}, {ERROR: error.abs()}


def gaussian_kernel(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """κ = exp(−|x_j − y_i|² / h) [..., J, I] and its gradient by x_j [..., J, I, A].

    The bandwidth h is the median of all squared distances over log J: each particle then feels
    about as much of its neighbors as of itself. It is not differentiated.
    """
    difference = x.unsqueeze(-2) - y.unsqueeze(-3)  # [..., J, I, A]
    square = difference.square().sum(-1)
    bandwidth = square.flatten(-2).median(-1).values / math.log(x.shape[-2])
    bandwidth = bandwidth.clamp(min=SMALLEST_BANDWIDTH)[..., None, None]
    kernel = (-square / bandwidth).exp()
    gradient = -2 * difference / bandwidth.unsqueeze(-1) * kernel.unsqueeze(-1)
    return kernel, gradient


def stein_direction(fixed: Tensor, score: Tensor, moved: Tensor) -> Tensor:
    """Where SVGD moves particles (eq. 13): `moved` [..., I, A], by `score` ∇log p of `fixed` [J].

    The first term draws them to where p is large, the second one pushes them apart.
    """
    kernel, repulsion = gaussian_kernel(fixed, moved)
    return (kernel.unsqueeze(-1) * score.unsqueeze(-2) + repulsion).mean(-3)


def score_of(critic: nn.Module, obs: Obs, action: Tensor) -> Tensor:
    """∇ log p at actions [B, K, A]: of Q, and of the density that squashing by tanh takes away."""
    with torch.enable_grad():
        action = action.detach().requires_grad_()
        squashed = (1 - action.square() + SQUASH_EPSILON).log().sum(-1)
        log_density = critic(obs, action).squeeze(-1) + squashed
        return torch.autograd.grad(log_density.sum(), action)[0]


def sampler_loss(
    sampler: nn.Module, obs: Obs, noise: Tensor, direction: Tensor
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """A loss whose gradient moves the sampled actions [B, I, A] in `direction` (eq. 14)."""
    action = sampler(obs, noise).tanh()
    spread = action.std(-2, correction=0).mean()  # 0 of a single particle
    return -(direction * action).sum(-1).mean(), {"action_spread": spread}, {}


class Joint(nn.Module):
    """A function of an observation and of a vector beside it: Q of an action, action of noise."""

    def __init__(
        self, network: NetworkConfig, head: HeadConfig, spec: EnvSpec, beside: int, out_dim: int
    ) -> None:
        super().__init__()
        self.encoder = make_encoder(network.encoder, spec.observation)
        features = width_of(self.encoder)
        self.layers = mlp(features + beside, head.hidden_dims, head.activation)
        self.out = linear([features + beside, *head.hidden_dims][-1], out_dim, gain=1.0)

    def forward(self, obs: Obs, beside: Tensor) -> Tensor:
        """obs [B, …] with [B, A], or with K vectors each [B, K, A]; it is encoded once."""
        features = self.encoder(obs)
        if beside.dim() > features.dim():
            features = features.unsqueeze(-2).expand(*beside.shape[:-1], -1)
        out: Tensor = self.out(self.layers(torch.cat([features, beside], -1)))
        return out


class SQL(Algorithm):
    """Soft Q-learning: off-policy, maximum entropy, with a learned sampler (SVGD)."""

    Config: ClassVar[type | None] = SQLConfig
    actions: ClassVar[str] = "continuous"
    learns_from: ClassVar[LearnsFrom] = "transitions"
    unit_actions: ClassVar[bool] = True
    roles: ClassVar[Roles] = {}
    optimized: ClassVar[Optimized] = ()
    defaults: ClassVar[Mapping[str, Any]] = {
        "buffers": {"replay": {"type": "uniform"}},
        "network": {
            "encoder": {"type": "auto", "hidden_dims": []},
            "actor": {"hidden_dims": [128, 128], "activation": "relu"},
            "critic": {"hidden_dims": [128, 128], "activation": "relu"},
        },
    }
    old_names: ClassVar[Mapping[str, str]] = {**LEARNER_NAMES, **BUDGET_NAMES}
    config: SQLConfig

    def initialize(self, context: AlgorithmContext) -> None:
        """Build Q with its target and the sampler, and bind the streams of random numbers."""
        super().initialize(context)
        run, action, config = context.config, context.spec.action, self.config
        if not isinstance(action, Box) or len(action.shape) != 1:
            raise UserError(f"sql needs a flat Box of actions, '{context.spec.id}' has none")
        shape = getattr(context.spec.observation, "shape", None)
        if any((len(state),) != shape for state in config.picture_states):
            raise UserError(f"algorithm.picture_states must be observations of shape {shape}")
        self.action_dim = size = action.size
        network, device = run.network, context.device
        critic = Joint(network, network.critic, context.spec, size, 1).to(device)
        sampler = Joint(network, network.actor, context.spec, size, size).to(device)
        rule, compiled = config.optimizer, run.compute.compile == "on"
        self.critic = Learner(critic, critic_loss, rule, compile=compiled, target=True)
        self.sampler = Learner(sampler, sampler_loss, rule, compile=compiled)
        self.budget = UpdateBudget(config.learning_starts)
        self.collect_steps = config.train_every
        self.random_actions = RandomActions(action, context.rng.numpy("warm_up"))
        self.rng = context.rng.torch("particles", device)
        self.action_rng = context.rng.torch("actions", device)
        count = config.kernel_particles
        self.greedy_noise = torch.randn(count, size, generator=self.rng, device=device)

    def with_new_names(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Today's names for an older state, which counted the target's age beside the steps."""
        renamed = dict(super().with_new_names(state))
        values = renamed.get(VALUES, {})
        return {**renamed, VALUES: {key: values[key] for key in values if key != "target_age"}}

    # ------------------------------------------------------------------------------------- acting

    def collect_step(self, step: int, *, phase: Phase) -> CollectResult:
        """Random actions until `learning_starts`, then samples of the policy."""
        warming_up = step < self.config.learning_starts
        return self.collect(self.random_actions if warming_up else self.act, phase)

    @torch.no_grad()
    def act(self, obs: Obs, state: object, *, deterministic: bool) -> Action:
        """One sample, or the best of a fixed set of samples by Q."""
        count = len(first_leaf(obs))
        if not deterministic:
            return Action(self._samples(obs, self._noise(self.action_rng, count)), state)
        action = self._samples(obs, self.greedy_noise.expand(count, -1, -1))
        best = self.critic.module(obs, action).squeeze(-1).argmax(-1)
        return Action(action[torch.arange(count), best], state)

    # ----------------------------------------------------------------------------------- learning

    def sample(self, buffer: Buffer, *, hook: str, phase: Phase) -> Batch | None:
        """Minibatches [K, B, …] for all gradient steps that are due."""
        return sample_minibatches(buffer, self.budget, phase, at(self.config, phase["step"]))

    def update(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Per minibatch one step of Q towards its target, and one of the sampler towards exp Q."""
        now = at(self.config, phase["step"])
        sizes = step_sizes(now.learning_rate, now.max_grad_norm, self.context.device)
        learners = {"critic": self.critic, "sampler": self.sampler}
        steps, errors = [], []
        with all_or_nothing("SQL update", **learners, budget=self.budget):
            for rows in minibatches(batch, self.budget, phase, now.replay_ratio):
                obs, next_q = rows[OBS], self._next_values(rows, now)
                target = self._target(rows, next_q, now)
                weight = rows[WEIGHT] if WEIGHT in rows else torch.ones_like(target)
                critic = self.critic.step(obs, rows[ACTION], target, weight, **sizes)
                noise, direction = self._direction(obs, len(target), now)
                sampler = self.sampler.step(obs, noise, direction, **sizes)
                if self.budget.steps % now.target_every == 0:
                    self.critic.follow(now.target_rate)
                errors.append(critic.aux[ERROR])
                steps.append(
                    {
                        "critic_loss": critic.loss,
                        "critic_grad_norm": critic.grad_norm,
                        **critic.metrics,
                        **described(next_q, self.action_dim),
                        "target_mean": target.mean(),
                        "stein_norm": direction.norm(dim=-1).mean(),
                        **sampler.metrics,
                        "sampler_grad_norm": sampler.grad_norm,
                    }
                )
        update_priorities(self.context, batch, errors, phase)
        return {**averages(steps), "gradient_steps": self.budget.steps}

    @torch.no_grad()
    def _next_values(self, rows: Batch, now: SQLConfig) -> Tensor:
        """The target's Q [B, K] of where the rows ended, each with separate uniform actions."""
        shape = (len(rows[REWARD]), now.value_particles, self.action_dim)
        uniform = torch.rand(shape, generator=self.rng, device=rows[REWARD].device) * 2 - 1
        assert self.critic.target is not None
        q: Tensor = self.critic.target(rows[NEXT_OBS], uniform).squeeze(-1)
        return q

    def _target(self, rows: Batch, next_q: Tensor, now: SQLConfig) -> Tensor:
        """The soft Bellman target [B]."""
        return soft_target(
            rows[REWARD],
            rows[TERMINATED],
            soft_value(next_q, self.action_dim),
            reward_scale=now.reward_scale,
            gamma=now.gamma,
        )

    @torch.no_grad()
    def _direction(self, obs: Obs, count: int, now: SQLConfig) -> tuple[Tensor, Tensor]:
        """Noise of the particles that move, and where they go, both [B, I, A]."""
        moved = now.moved_particles()
        noise = self._noise(self.rng, count, now.kernel_particles)
        action = self._samples(obs, noise)
        fixed, moving = action[:, moved:], action[:, :moved]
        direction = stein_direction(fixed, score_of(self.critic.module, obs, fixed), moving)
        return noise[:, :moved], direction

    def _samples(self, obs: Obs, noise: Tensor) -> Tensor:
        sampled: Tensor = self.sampler.module(obs, noise).tanh()
        return sampled

    def _noise(self, generator: torch.Generator, *lead: int) -> Tensor:
        shape = (*lead, self.action_dim)
        return torch.randn(shape, generator=generator, device=generator.device)

    # ----------------------------------------------------------------------------------- pictures

    @torch.no_grad()
    def pictures(self, paths: Sequence[Any]) -> Mapping[str, Picture]:
        """Where two numbers are an action: Q and samples over it; the value of a flat world."""
        if self.action_dim != 2:
            return {}
        states = self.config.picture_states
        drawn = {f"actions_{i}": self._landscape(state) for i, state in enumerate(states)}
        space = self.context.spec.observation
        if isinstance(space, Box) and space.shape == (2,) and space.bounded:
            drawn["paths"] = self._map(space, paths)
        return drawn

    def _landscape(self, state: Sequence[float]) -> Picture:
        """Q over all actions in one state, and what the sampler makes of it."""
        obs = torch.tensor([state], device=self.context.device)
        axes, grid = _plane((-1.0, 1.0), (-1.0, 1.0))
        q = self.critic.module(obs, grid.to(obs.device).unsqueeze(0)).view(DRAWN, DRAWN)
        samples = self._samples(obs, self._noise(self.action_rng, 1, SAMPLES))[0]
        return Picture(
            f"Q and {SAMPLES} samples at {list(state)}",
            [Contour(axes[0], axes[1], q.cpu().numpy()), Points(samples.cpu().numpy())],
            x_label="first action",
            y_label="second action",
            x_limits=(-1.0, 1.0),
            y_limits=(-1.0, 1.0),
        )

    def _map(self, space: Box, paths: Sequence[Any]) -> Picture:
        """The soft value of every place, and where the policy went."""
        limits = [(float(space.low[i]), float(space.high[i])) for i in range(2)]
        axes, places = _plane(*limits)
        places = places.to(self.context.device)
        shape = (len(places), SAMPLES, self.action_dim)
        uniform = torch.rand(shape, generator=self.action_rng, device=places.device) * 2 - 1
        value = soft_value(self.critic.module(places, uniform).squeeze(-1), self.action_dim)
        return Picture(
            f"value of a place, and {len(paths)} paths",
            [Contour(axes[0], axes[1], value.view(DRAWN, DRAWN).cpu().numpy()), Lines(paths)],
            x_label="first observation",
            y_label="second observation",
            x_limits=limits[0],
            y_limits=limits[1],
        )


def _plane(x: tuple[float, float], y: tuple[float, float]) -> tuple[list[Any], Tensor]:
    """Both axes of a grid, and its points [DRAWN², 2] row by row."""
    axes = [torch.linspace(*limits, DRAWN) for limits in (x, y)]
    rows, columns = torch.meshgrid(axes[1], axes[0], indexing="ij")
    return [axis.numpy() for axis in axes], torch.stack([columns, rows], -1).view(-1, 2)
