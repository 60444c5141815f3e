"""DQN: Q-learning with a network, a replay buffer and a target network (Mnih et al. 2015).

Reads top to bottom: config, targets and loss, algorithm. Options: double (van Hasselt et al.
2016), dueling (Wang et al. 2016), n-step returns, prioritized replay (Schaul et al. 2016; a type of
buffer), distributions of returns (C51: Bellemare et al. 2017; QR-DQN: Dabney et al. 2018), noisy
layers for exploration (Fortunato et al. 2018). Departures from the paper: Adam;
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

from rl_lab.algorithms.base import Algorithm, LearnsFrom, Optimized, Roles
from rl_lab.algorithms.replay import (
    BUDGET_NAMES,
    ERROR,
    TransitionConfig,
    averages,
    minibatches,
    normalize_by_dataset,
    sample_minibatches,
    step_sizes,
    track_online,
    update_priorities,
)
from rl_lab.core.actions import RandomActions, random_action
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
    Obs,
)
from rl_lab.core.clock import UpdateBudget
from rl_lab.core.distributions import masked
from rl_lab.core.errors import UserError
from rl_lab.core.learner import Learner, all_or_nothing, scalar
from rl_lab.core.options import option
from rl_lab.core.protocols import AlgorithmContext, Buffer, Phase, Policy
from rl_lab.core.returns import td_target
from rl_lab.core.schedule import Schedule, at
from rl_lab.core.schema import RunConfig
from rl_lab.core.spec import Discrete
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

EPSILON = "epsilon"
DEFAULT_EPSILON = Schedule(start=1.0, end=0.05, finish=0.2)  # over the first fifth of a run
# How checkpoints of earlier versions name what `self.learner` holds.
LEARNER_NAMES = {
    "learner.module": "model",
    "learner.target": "target",
    "learner.optimizer": "optimizer",
}
USED = (OBS, ACTION, REWARD, TERMINATED, NEXT_OBS, STEPS, WEIGHT)  # of a minibatch
MAX_OUT_OF_RANGE = 0.05  # share of c51's target probability beyond its atoms; more is reported
NUM_NOISE_SAMPLES, ENTROPY_ROWS = 16, 32  # for the entropy of noisy layers


@dataclass(frozen=True, kw_only=True)
class DQNConfig(TransitionConfig):
    """Hyperparameters of DQN. Any float may be a schedule."""

    batch_size: int = option(128, "transitions of one gradient step")
    replay_ratio: float = option(0.25, "gradient steps per environment step; fractions are carried")
    train_every: int = option(4, "vector steps between updates")
    learning_rate: float = option(2.5e-4, "step size of the optimizer")
    epsilon: Literal["auto"] | float = option(
        "auto",
        "probability of a random action, 0 in evaluations; auto: from 1 to 0.05 in the first fifth "
        "of the run, or 0 if `noisy`",
        low=0,
        high=1,
    )
    double: bool = option(
        True,
        "double Q-learning: the network chooses the next action, the target network evaluates it",
    )
    dueling: bool = option(False, "state value and advantages as two heads")
    huber: bool = option(True, "errors beyond 1 count linearly; if not, half their square always")
    distribution: ValueDistribution = option(
        "none", "of returns: none (only their mean), c51 (fixed atoms) or quantile (QR-DQN)"
    )
    atoms: int = option(
        51, "c51: values that a return may have, equally far from each other", low=2
    )
    value_range: list[float] = option(
        [-10.0, 10.0], "c51: the first atom and the last one", fixed=True
    )
    quantiles: int = option(50, "quantile: how many; 200 in the paper, for Atari", low=1)
    noisy: bool = option(False, "layers of the heads have learned noise, which explores")
    conservative_weight: float | None = option(
        None,
        "CQL: weight of a term that lowers values of actions that are not in the data; null: none",
        low=0,
    )
    target_every: int = option(500, "gradient steps between two moves of the target network", low=1)
    target_rate: float = option(1.0, "EMA step of the target network: 1 copies", above=0, high=1)

    def __post_init__(self) -> None:
        """Refuse values that cannot work, before anything is built."""
        super().__post_init__()
        if self.epsilon == "auto":  # decided here, so that a saved configuration says it
            object.__setattr__(self, EPSILON, 0.0 if self.noisy else DEFAULT_EPSILON)
        ends = self.value_range
        if len(ends) != 2 or not -math.inf < ends[0] < ends[1] < math.inf:
            raise ValueError(f"value_range must be [low, high] with low < high, got {ends}")
        if self.distribution != "none" and not self.huber:
            raise ValueError("huber must be true with a distribution, which has a loss of its own")

    @property
    def count(self) -> int:
        """Numbers that the network says of each action."""
        return {"none": 1, "c51": self.atoms, "quantile": self.quantiles}[self.distribution]

    def check(self, run: RunConfig) -> list[str]:
        """Problems that only show together with the rest of the configuration."""
        problems = super().check(run)
        if run.network.shared_torso:
            problems.append("dqn has one network: network.shared_torso means nothing here")
        return problems

    def gradient_steps(self, run: RunConfig) -> float:
        """What compiling has to repay: a distribution gains three times as much by it."""
        return super().gradient_steps(run) * (1 if self.distribution == "none" else 3)


def td_loss(value: Tensor, target: Tensor, weight: Tensor | None, *, huber: bool) -> Tensor:
    """Mean over the rows of how far values are from their targets."""
    if huber:
        return weighted_mean(smooth_l1_loss(value, target, reduction="none"), weight)
    return weighted_mean(0.5 * (value - target).square(), weight)


def weighted_mean(loss: Tensor, weight: Tensor | None) -> Tensor:
    """Over the rows [B]; importance weights shrink those that are drawn too often."""
    return (loss if weight is None else loss * weight).mean()


def distribution_loss(
    model: QNetwork, taken: Tensor, future: Tensor, rows: Batch, gamma: Tensor
) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Loss, priority and mean target of each row [B], from raw outputs [B, K] now and after it.

    A target is the distribution of the next action, moved and shrunk as a single value would be.
    Priorities are what is minimized: the divergence from the target for c51 (Rainbow: the loss
    without the target's own entropy), the loss itself for quantiles.
    """
    window = rows[REWARD], rows.get(STEPS), rows[TERMINATED]
    if model.distribution == "quantile":
        goal = td_target(*window, future.T, gamma).T
        loss = quantile_huber(taken, goal)
        return loss, loss.detach(), goal.mean(-1), {}
    atoms, probabilities = model.atoms(taken), future.softmax(-1)
    places = td_target(*window, atoms.unsqueeze(-1), gamma).T
    goal = project(probabilities, places, atoms)
    loss, divergence = categorical_loss(taken, goal)
    outside = torch.where((places < atoms[0]) | (places > atoms[-1]), probabilities, 0.0).sum(-1)
    return loss, divergence, goal @ atoms, {"out_of_range": outside.mean()}


def dqn_loss(
    model: QNetwork,
    rows: Batch,
    target_network: QNetwork,
    gamma: Tensor,
    noise: Tensor | None = None,
    conservative_weight: Tensor | None = None,
    *,
    double: bool,
    huber: bool,
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """The loss of one minibatch; `aux` has |δ| of each row, or what a distribution has instead.

    `noise` [3, …] of noisy layers: for the values, the choice of the next action, the target.
    With a `conservative_weight` the loss has the term of CQL.
    """
    value_noise, choice_noise, target_noise = (None,) * 3 if noise is None else noise.unbind()
    outputs = model(rows[OBS], value_noise, raw=True)
    taken = of_action(outputs, rows[ACTION])
    with torch.no_grad():
        target_values = target_network(rows[NEXT_OBS], target_noise, raw=True)
        choice = model(rows[NEXT_OBS], choice_noise) if double else model.expected(target_values)
        future = chosen_value(choice, target_values, model.mask(rows[NEXT_OBS]))
    extra: dict[str, Tensor] = {}
    if model.distribution == "none":
        with torch.no_grad():
            target = td_target(rows[REWARD], rows.get(STEPS), rows[TERMINATED], future, gamma)
            error = (target - taken).abs()
        loss = td_loss(taken, target, rows.get(WEIGHT), huber=huber)
    else:
        each, error, target, extra = distribution_loss(model, taken, future, rows, gamma)
        loss = weighted_mean(each, rows.get(WEIGHT))
    if conservative_weight is not None:
        gap = conservative_gap(model.expected(outputs), rows[ACTION], model.mask(rows[OBS]))
        loss = loss + conservative_weight * gap.mean()
        extra["conservative_gap"] = gap.detach().mean()
    with torch.no_grad():
        values = model.expected(outputs)
        value = taken if values is outputs else of_action(values, rows[ACTION])
        low, high = torch.aminmax(values, dim=-1)
        distance = (target - value).abs()
        means = torch.stack([value, high, high - low, target, distance]).mean(-1).unbind()
        if (scale := model.noise_scale()) is not None:
            extra["noise_scale"] = scale
    names = ("q_mean", "q_max", "q_spread", "target", "td_error")
    return loss, {**dict(zip(names, means, strict=True)), **extra}, {ERROR: error}


def conservative_gap(values: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
    """log Σ exp Q(s, ·) − Q(s, a) [B] from values [B, A] and the actions of the data (CQL, eq. 4).

    It is never negative, and small where the action of the data has the largest value by far.
    """
    legal = values if mask is None else masked(values, mask)
    return legal.logsumexp(-1) - of_action(values, action)


def chosen_value(choice: Tensor, target_values: Tensor, mask: Tensor | None) -> Tensor:
    """`target_values` [B, A] or [B, A, K] of the best legal action by `choice` [B, A].

    Double Q-learning chooses by the network and evaluates by its target: an error that makes an
    action look good in the one is not in the other. Plain Q-learning passes the target as both.
    """
    best = (choice if mask is None else masked(choice, mask)).argmax(-1)
    return of_action(target_values, best)


def policy_entropy(epsilon: float, legal: int) -> float:
    """Entropy of an epsilon-greedy policy over `legal` actions, in nats."""
    other = epsilon / legal
    probabilities = [1.0 - epsilon + other] + [other] * (legal - 1)
    return sum(
        probability * math.log(1.0 / probability)
        for probability in probabilities
        if probability > 0
    )


def epsilon_entropy(epsilon: float, actions: int, mask: Tensor | None) -> float | Tensor:
    """Entropy of an epsilon-greedy policy, averaged over the rows of a mask [..., A] if given."""
    if mask is None:
        return policy_entropy(epsilon, actions)
    by_count = [policy_entropy(epsilon, max(legal, 1)) for legal in range(actions + 1)]
    return torch.tensor(by_count, device=mask.device)[(mask != 0).sum(-1)].mean()


def noisy_entropy(chosen: Tensor, epsilon: float, legal: Tensor) -> Tensor:
    """Entropy of a noisy network's policy, in nats, from the actions of several noise samples.

    `chosen` [V, B] are the best actions with V draws of the noise, `legal` [B, A] what is allowed.
    """
    share = one_hot(chosen, legal.shape[-1]).float().mean(0)
    uniform = legal / legal.sum(-1, keepdim=True).clamp(min=1)
    probabilities = (1 - epsilon) * share + epsilon * uniform
    return -torch.xlogy(probabilities, probabilities).sum(-1).mean()


class DQN(Algorithm):
    """Deep Q-network: off-policy, value-based; double, dueling, C51, QR and noisy variants."""

    Config: ClassVar[type | None] = DQNConfig
    actions: ClassVar[str] = "discrete"
    learns_from: ClassVar[LearnsFrom] = "transitions"
    roles: ClassVar[Roles] = {}
    optimized: ClassVar[Optimized] = ()
    defaults: ClassVar[Mapping[str, Any]] = {
        "buffers": {"replay": {"type": "uniform"}},
        "network": {
            "encoder": {"type": "auto", "hidden_dims": [120, 84], "activation": "relu"},
            "critic": {"activation": "relu"},
        },
    }
    old_names: ClassVar[Mapping[str, str]] = {**LEARNER_NAMES, **BUDGET_NAMES}
    config: DQNConfig

    def initialize(self, context: AlgorithmContext) -> None:
        """Build the network with its target, and bind the streams of random numbers."""
        super().initialize(context)
        run, config = context.config, self.config
        if not isinstance(context.spec.action, Discrete):
            kind = type(context.spec.action).__name__
            raise UserError(
                f"dqn needs Discrete actions, '{context.spec.id}' has {kind}: "
                "use ppo, or sac for a Box"
            )
        mode = normalize_mode(run.environment.normalize_obs)
        model = QNetwork(
            run.network,
            context.spec,
            mode,
            dueling=config.dueling,
            noisy=config.noisy,
            distribution=config.distribution,
            count=config.count,
            value_range=config.value_range,
        ).to(context.device)
        normalize_by_dataset(model.normalizer, context)
        self.learner = Learner(
            model,
            partial(dqn_loss, double=config.double, huber=config.huber),
            config.optimizer,
            compile=run.compute.compile == "on",
            target=True,
        )
        self.normalizes = mode == "running"
        self.budget = UpdateBudget(config.learning_starts)
        self.collect_steps = config.train_every
        self.random_actions = RandomActions(context.spec.action, context.rng.numpy("warm_up"))
        self.numpy_values = fast_values(model)
        self.acts_on_arrays = self.numpy_values is not None and not config.noisy
        self.epsilon = cast(float, at(config, 0).epsilon)
        self.explore_rng = context.rng.numpy("exploration")
        self.noise_rng = context.rng.torch("exploration")
        self.learning_noise_rng = context.rng.torch("learning_noise")

    @property
    def model(self) -> QNetwork:
        """The network that is trained and acts."""
        return cast(QNetwork, self.learner.module)

    # ------------------------------------------------------------------------------------- acting

    def collect_step(self, step: int, *, phase: Phase) -> CollectResult:
        """Random actions until `learning_starts`, then epsilon-greedy ones."""
        self.epsilon = cast(float, at(self.config, step).epsilon)
        if step < self.config.learning_starts:
            return self.collect(self.random_actions, phase)
        return self.collect(self.act, phase, policy=self.pure_policy)

    def act(self, obs: Obs, state: object, *, deterministic: bool) -> Action:
        """The best action, or with probability epsilon a random one, in each environment.

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

    def describe(self, obs: Obs, state: object) -> Mapping[str, Tensor]:
        """The value of each action, and of the best legal one."""
        values, mask = self.model(obs), self.model.mask(obs)
        legal = values if mask is None else masked(values, mask)
        return {"q_values": values, "value": legal.amax(-1)}

    def _greedy(self, obs: Obs, noise: Tensor | None = None) -> Array:
        """The best legal actions [N]."""
        if self.numpy_values is not None:
            best: Array = self.numpy_values(np.asarray(obs)).argmax(-1)
            return best
        with torch.no_grad():
            return self._best(obs, noise).numpy(force=True)

    def _best(self, obs: Obs, noise: Tensor | None = None) -> Tensor:
        values, mask = self.model(obs, noise), self.model.mask(obs)
        return (values if mask is None else masked(values, mask)).argmax(-1)

    def greedy(self, obs: Obs, state: object) -> Action:
        """The best action, by operations on tensors alone."""
        return Action(self._best(obs), state)

    def pure_policy(self) -> Policy | None:
        """`act` as a pure function, unless a subclass acts in another way."""
        if type(self).act is not DQN.act or self.model.is_masked:
            return None
        weights = {**self.learner.tensors, EPSILON: torch.tensor(self.epsilon)}
        return Policy(self.decide, weights, self.noise)

    def noise(self, steps: int) -> Tensor:
        """For each decision a number per action, one that says whether to explore, and noise."""
        size = (steps, self.context.train_environment.num_envs)
        drawn = torch.rand((*size, self.model.actions + 1), generator=self.noise_rng)
        noise = self.model.draw_noise(size, self.noise_rng)
        return drawn if noise is None else torch.cat([drawn, noise], -1)

    def decide(
        self, weights: dict[str, Tensor], obs: Obs, noise: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The action that the random numbers choose. Everything it reads is an argument."""
        weights, actions = dict(weights), self.model.actions
        explores = noise[..., actions] < weights.pop(EPSILON)
        inputs = (obs, noise[..., actions + 1 :]) if self.config.noisy else (obs,)
        best = functional_call(self.model, weights, inputs).argmax(-1)
        return torch.where(explores, noise[..., :actions].argmax(-1), best), {}

    # ----------------------------------------------------------------------------------- learning

    def track_statistics(self, trajectory: Batch) -> None:
        """Count each new frame in the observation statistics; the target network shares them."""
        if self.normalizes:
            track_online(self.model.normalizer, trajectory, self.context)
            self.learner.copy_buffers()

    def sample(self, buffer: Buffer, *, hook: str, phase: Phase) -> Batch | None:
        """Minibatches [K, B, …] for all gradient steps that are due."""
        return sample_minibatches(buffer, self.budget, phase, at(self.config, phase["step"]))

    def update(self, batch: Batch, *, phase: Phase) -> Metrics:
        """One gradient step per minibatch; the target network moves every `target_every` steps."""
        now, device = at(self.config, phase["step"]), self.context.device
        sizes = step_sizes(now.learning_rate, now.max_grad_norm, device)
        gamma = scalar(now.gamma, device)
        steps, errors = [], []
        with all_or_nothing("DQN update", q_network=self.learner, budget=self.budget):
            for rows in minibatches(batch, self.budget, phase, now.replay_ratio):
                used = {name: rows[name] for name in USED if name in rows}
                noise = self.model.draw_noise((3,), self.learning_noise_rng)
                last: tuple[Tensor | None, ...] = () if noise is None else (noise,)
                if now.conservative_weight is not None:
                    last = noise, scalar(now.conservative_weight, device)
                step = self.learner.step(used, self.learner.target, gamma, *last, **sizes)
                if self.budget.steps % now.target_every == 0:
                    self.learner.follow(now.target_rate)
                steps.append({**step.metrics, "loss": step.loss, "grad_norm": step.grad_norm})
                errors.append(step.aux[ERROR])
        update_priorities(self.context, batch, errors, phase)
        return {
            **averages(steps),
            EPSILON: self.epsilon,
            "learning_rate": now.learning_rate,
            "entropy": self._entropy(batch[OBS]),
            "gradient_steps": self.budget.steps,
        }

    def _entropy(self, obs: Obs) -> float | Tensor:
        """Entropy of the policy: of its noisy layers on a few rows, or of epsilon-greedy ones."""
        if not self.config.noisy:
            return epsilon_entropy(self.epsilon, self.model.actions, self.model.mask(obs))
        rows = map_leaves(lambda leaf: leaf[-1, :ENTROPY_ROWS], obs)
        size = (NUM_NOISE_SAMPLES, len(first_leaf(rows)))
        noise = self.model.draw_noise(size, self.learning_noise_rng)
        with torch.no_grad():
            values, mask = self.model(rows, noise), self.model.mask(rows)
        legal = torch.ones_like(values[0]) if mask is None else (mask != 0).float()
        return noisy_entropy(masked(values, legal).argmax(-1), self.epsilon, legal)

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
