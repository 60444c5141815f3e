"""Behavioral cloning: supervised learning of what demonstrators do (Pomerleau 1989).

Reads top to bottom: config, network, losses, algorithm. Three losses for continuous actions: mean
squared error, log-likelihood of a Gaussian, and of a mixture of Gaussians (Mandlekar et al. 2021,
arXiv:2108.03298), which can keep several ways of doing a thing apart. For discrete
actions the log-likelihood is the cross-entropy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from rl_lab.algorithms.base import Algorithm, LearnsFrom, Optimized, Roles
from rl_lab.algorithms.imitation import (
    DatasetScale,
    ImitationConfig,
    decay_length,
    fit_scale,
    learning_rate_share,
    offline_phases,
    sample_chunks,
    scaled,
)
from rl_lab.algorithms.replay import averages, minibatches, step_metrics, step_sizes
from rl_lab.core.batch import ACTION_MASK, Action, Batch, Metrics, Obs
from rl_lab.core.clock import UpdateBudget
from rl_lab.core.distributions import (
    Categorical,
    DiagonalGaussian,
    MultiCategorical,
    masked,
)
from rl_lab.core.errors import UserError
from rl_lab.core.learner import Learner, all_or_nothing
from rl_lab.core.options import option
from rl_lab.core.protocols import AlgorithmContext, Buffer, Phase
from rl_lab.core.schedule import at
from rl_lab.core.schema import NetworkConfig
from rl_lab.core.spec import Box, Discrete, EnvSpec
from rl_lab.core.tree import map_leaves
from rl_lab.networks.actor_critic import check_mask
from rl_lab.networks.encoder import make_encoder
from rl_lab.networks.mlp import linear, mlp

LOG_STD_RANGE = (-5.0, 2.0)  # demonstrations without noise would narrow a Gaussian without end
LossKind = Literal["mse", "log_likelihood", "gmm"]


@dataclass(frozen=True, kw_only=True)
class BCConfig(ImitationConfig):
    """Hyperparameters of behavioral cloning. Any float may be a schedule of environment steps."""

    loss: LossKind = option(
        "log_likelihood",
        "mse: squared error of one action; log_likelihood: of a Gaussian, cross-entropy of "
        "discrete actions; gmm: of a mixture of Gaussians",
    )
    modes: int = option(5, "gmm: Gaussians in the mixture", low=1)


class Mixture:
    """A mixture of Gaussians over actions: logits [..., K], means and log_std [..., K, A]."""

    def __init__(self, logits: Tensor, mean: Tensor, log_std: Tensor) -> None:
        self.weights = Categorical(logits)
        self.parts = DiagonalGaussian(mean, log_std)

    def log_prob(self, action: Tensor) -> Tensor:
        """[...]"""
        each = self.parts.log_prob(action.unsqueeze(-2))
        return (self.weights.log_probs + each).logsumexp(-1)

    def mode(self) -> Tensor:
        """The mean of the heaviest Gaussian."""
        return _chosen(self.parts.mean, self.weights.mode())

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One Gaussian by weight, then an action of it."""
        chosen = self.weights.sample(generator)
        spread = _chosen(self.parts.log_std, chosen)
        return DiagonalGaussian(_chosen(self.parts.mean, chosen), spread).sample(generator)


def _chosen(values: Tensor, index: Tensor) -> Tensor:
    """values [..., K, A] at indices [...]."""
    wanted = index[..., None, None].expand(*index.shape, 1, values.shape[-1])
    return values.gather(-2, wanted).squeeze(-2)


class Point:
    """One action and no spread: what a squared error teaches."""

    def __init__(self, mean: Tensor) -> None:
        self.mean = mean

    def mode(self) -> Tensor:
        """The action."""
        return self.mean

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """The action: there is nothing to draw."""
        return self.mean


Policy = Point | DiagonalGaussian | Mixture | Categorical | MultiCategorical


class CloneNetwork(nn.Module):
    """Observation to a policy."""

    def __init__(self, config: NetworkConfig, spec: EnvSpec, loss: LossKind, modes: int) -> None:
        super().__init__()
        self.encoder = make_encoder(config.encoder, spec.observation)
        width: Any = self.encoder.out_dim
        self.loss, self.modes, self.action = loss, modes, spec.action
        self.is_masked = check_mask(spec)
        hidden_dims = config.actor.hidden_dims
        self.hidden = mlp(width, hidden_dims, config.actor.activation)
        self.output = linear([width, *hidden_dims][-1], self._outputs(), gain=0.01)
        if loss == "gmm" and isinstance(
            spec.action, Box
        ):  # means that all begin in the same place would stay together
            span = slice(modes, modes + modes * spec.action.size)
            nn.init.uniform_(self.output.bias[span], -1.0, 1.0)

    def _outputs(self) -> int:
        if isinstance(self.action, Discrete):
            return self.action.n
        if not isinstance(self.action, Box):
            return sum(self.action.nvec)
        size = self.action.size
        return {"mse": size, "log_likelihood": 2 * size, "gmm": self.modes * (1 + 2 * size)}[
            self.loss
        ]

    def forward(self, obs: Obs) -> Policy:
        """[B, …] to a policy with batch shape [B]; a Box in the units of `DatasetScale`."""
        raw = self.output(self.hidden(self.encoder(obs)))
        if not isinstance(self.action, Box):
            raw = masked(raw, obs[ACTION_MASK]) if self.is_masked else raw
            if isinstance(self.action, Discrete):
                return Categorical(raw)
            return MultiCategorical(raw, self.action.nvec)
        if self.loss == "mse":
            return Point(raw)
        if self.loss == "log_likelihood":
            mean, log_std = raw.chunk(2, -1)
            return DiagonalGaussian(mean, log_std.clamp(*LOG_STD_RANGE))
        logits, rest = raw.split([self.modes, raw.shape[-1] - self.modes], -1)
        mean, log_std = rest.unflatten(-1, (2 * self.modes, -1)).chunk(2, -2)
        return Mixture(logits, mean, log_std.clamp(*LOG_STD_RANGE))


Loss = tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]


def squared_error(network: nn.Module, obs: Obs, action: Tensor) -> Loss:
    """Mean squared error of the action; the best answer to two ways of doing it is in between."""
    loss = (network(obs).mean - action).square().mean()
    return loss, {}, {}


def negative_log_likelihood(network: nn.Module, obs: Obs, action: Tensor) -> Loss:
    """−log π(a | o): of a Gaussian, a mixture, or (the cross-entropy) of discrete actions."""
    policy = network(obs)
    right = {} if action.is_floating_point() else {"accuracy": _accuracy(policy, action)}
    return -policy.log_prob(action).mean(), right, {}


def _accuracy(policy: Categorical | MultiCategorical, action: Tensor) -> Tensor:
    return (policy.mode() == action).float().mean()


class BC(Algorithm):
    """Behavioral cloning: imitates the actions of a dataset or of a demonstrator."""

    Config: ClassVar[type | None] = BCConfig
    learns_from: ClassVar[LearnsFrom] = "chunks"
    unit_actions: ClassVar[bool] = True
    roles: ClassVar[Roles] = {}
    optimized: ClassVar[Optimized] = ()
    phases: ClassVar[list[dict[str, Any]]] = offline_phases()
    defaults: ClassVar[Mapping[str, Any]] = {
        "buffers": {"data": {"type": "offline"}},
        "network": {
            "encoder": {"type": "auto", "hidden_dims": []},
            "actor": {"hidden_dims": [256, 256], "activation": "relu"},
        },
    }
    config: BCConfig

    def initialize(self, context: AlgorithmContext) -> None:
        """Build the network, and bind the streams of random numbers."""
        super().initialize(context)
        run, spec, config, device = context.config, context.spec, self.config, context.device
        is_box = isinstance(spec.action, Box)
        if is_box and len(spec.action.shape) != 1:
            raise UserError(f"actions of '{spec.id}' have shape {spec.action.shape}: flatten them")
        if not is_box and config.loss != "log_likelihood":
            raise UserError(
                f"algorithm.loss={config.loss} is for continuous actions; those of '{spec.id}' are "
                "discrete: use log_likelihood, which is the cross-entropy there"
            )
        self.scale = DatasetScale(config.normalize, spec.observation, spec.action).to(device)
        network = CloneNetwork(run.network, spec, config.loss, config.modes).to(device)
        loss = squared_error if config.loss == "mse" else negative_log_likelihood
        compiled = run.compute.compile == "on"
        self.network = Learner(network, loss, config.optimizer, compile=compiled)
        self.budget = UpdateBudget()
        self.collect_steps = config.collect_steps
        self.decay_updates = decay_length(config, run)
        self.action_rng = context.rng.torch("actions", device)

    @torch.no_grad()
    def act(self, obs: Obs, state: object, *, deterministic: bool) -> Action:
        """The most likely action, or a random one."""
        policy = self.network.module(self.scale.observation(obs))
        action = policy.mode() if deterministic else policy.sample(self.action_rng)
        return Action(self.scale.from_unit(action), state)

    def describe(self, obs: Any, state: Any) -> Mapping[str, Tensor]:
        """Probabilities of discrete actions; of continuous ones the mean, and a Gaussian's std."""
        policy = self.network.module(self.scale.observation(obs))
        if isinstance(policy, Categorical | MultiCategorical):
            return {"probabilities": policy.probabilities()}
        shown = {"mean": self.scale.from_unit(policy.mode())}
        if isinstance(policy, DiagonalGaussian) and self.scale.action is not None:
            shown["std"] = policy.log_std.exp() * self.scale.action.half_width
        return shown

    def sample(self, buffer: Buffer, *, hook: str, phase: Phase) -> Batch | None:
        """One minibatch of demonstrated steps."""
        size = self.config.batch_size
        return sample_chunks(buffer, self.budget, phase, size, past=1, future=1)

    def update(self, batch: Batch, *, phase: Phase) -> Metrics:
        """One gradient step."""
        fit_scale(self.context, self.scale, phase)
        now, device = at(self.config, phase["step"]), self.context.device
        steps = []
        with all_or_nothing("BC update", network=self.network, budget=self.budget):
            share = learning_rate_share(
                self.budget.steps, warm_up=now.warm_up_updates, total=self.decay_updates
            )
            rate = share * now.learning_rate
            sizes = step_sizes(rate, now.max_grad_norm, device)
            for rows in minibatches(batch, self.budget, phase, 0.0):
                obs, action, _ = scaled(rows, self.scale)
                obs = map_leaves(lambda leaf: leaf[:, 0], obs)
                steps.append(step_metrics("policy", self.network.step(obs, action[:, 0], **sizes)))
        return {**averages(steps), "learning_rate": rate, "gradient_steps": self.budget.steps}
