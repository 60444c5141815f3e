"""SAC: soft actor-critic with a learned temperature (Haarnoja et al. 2018, arXiv:1812.05905).

Reads top to bottom: config, soft values, losses, algorithm. The policy maximizes its entropy as
well as the reward; α weighs the two and is adjusted until the entropy reaches its target. With
discrete actions the same equations are expectations over all actions, and nothing is sampled
(Christodoulou 2019, arXiv:1910.07207).

Departures from the paper: gradients are clipped, at a norm that only outliers reach; an n-step
return leaves out the entropies on its way; there may be more than two critics, and the target may
use a random subset of them (REDQ, Chen et al. 2021, arXiv:2101.05982); critics may have layer
normalization and dropout (DroQ, Hiraoka et al. 2022, arXiv:2110.02034); exploration may be
state-dependent (gSDE), and the policy a normalizing flow.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from rl_lab.algorithms.base import Algorithm, LearnsFrom, Optimized, Roles
from rl_lab.algorithms.replay import (
    BUDGET_NAMES,
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
from rl_lab.core.actions import RandomActions
from rl_lab.core.batch import (
    ACTION,
    ACTION_MASK,
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
from rl_lab.core.compiled import Compiled
from rl_lab.core.distributions import Categorical, SquashedGaussian, described
from rl_lab.core.learner import Learner, all_or_nothing, scalar
from rl_lab.core.options import option
from rl_lab.core.protocols import AlgorithmContext, Buffer, Phase
from rl_lab.core.returns import td_target
from rl_lab.core.schedule import at, extremes
from rl_lab.core.schema import RunConfig
from rl_lab.core.spec import Box, Space
from rl_lab.core.tree import first_leaf
from rl_lab.networks.ensemble import QEnsemble
from rl_lab.networks.normalizer import make_normalizer, normalize_mode
from rl_lab.networks.numpy_policy import fast_actor
from rl_lab.networks.sac_policies import ExploringHead, PolicyKind, SoftActor, SoftPolicy

Reduce = Literal["min", "mean"]
Masks = tuple[Tensor, ...]  # dropout of the critics' hidden layers: see `Ensemble.masks`
USED = (OBS, ACTION, REWARD, TERMINATED, NEXT_OBS, STEPS, WEIGHT)  # of a minibatch
LOG_PROB = "log_prob"
# How checkpoints of earlier versions name what the learners hold.
LEARNER_NAMES = {
    "critic.module": "critic",
    "critic.target": "target",
    "critic.optimizer": "critic_optimizer",
    "actor.module": "actor",
    "actor.optimizer": "actor_optimizer",
    "temperature.module": "temperature",
    "temperature.optimizer": "temperature_optimizer",
}


@dataclass(frozen=True, kw_only=True)
class SACConfig(TransitionConfig):
    """Hyperparameters of SAC. Any float may be a schedule."""

    policy: PolicyKind = option(
        "gaussian",
        "continuous actions: gaussian; gsde, whose noise depends on the state and is kept for a "
        "while; or flow, which may have several hills",
    )
    noise_every: int = option(32, "policy gsde: steps until other noise; 0: for whole episodes")
    couplings: int = option(2, "policy flow: how often the noise is bent (RealNVP)")
    critics: int = option(2, "Q-functions that are trained side by side")
    subset: int | None = option(
        None, "critics drawn at random for each target, which takes their minimum (all if null)"
    )
    critic_dropout: float = option(0.0, "share of the critics' hidden units left out at random")
    critic_norm: bool = option(False, "hidden layers of the critics are layer-normalized")
    actor_value: Reduce = option("min", "what the actor makes of the critics: min, or mean")
    temperature: Literal["auto"] | float = option(
        "auto", "weight of the entropy (alpha): auto is learned, a number is fixed"
    )
    initial_temperature: float = option(1.0, "where a learned temperature starts", fixed=True)
    target_entropy: Literal["auto"] | float = option(
        "auto", "entropy to keep: auto is minus the action dimensions, or a share of the largest"
    )
    target_entropy_scale: float = option(
        0.89, "discrete actions: that share of log(number of legal actions)"
    )
    target_rate: float = option(5e-3, "how far target critics move towards the critics (tau)")
    target_every: int = option(1, "gradient steps between two moves of the target critics")
    actor_every: int = option(1, "gradient steps of the critics per step of actor and temperature")
    actor_learning_rate: float | None = option(None, "learning_rate of the actor, if another")
    critic_learning_rate: float | None = option(None, "learning_rate of the critics, if another")
    temperature_learning_rate: float | None = option(
        None, "learning_rate of the temperature, if another"
    )
    reward_scale: float = option(1.0, "factor of every reward that is learned from")
    max_grad_norm: float = option(1000.0, "largest norm of a gradient: a brake for accidents")

    def __post_init__(self) -> None:
        """Refuse values that cannot work, before anything is built."""
        super().__post_init__()
        for name in ("couplings", "critics", "target_every", "actor_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.subset is not None and not 1 <= self.subset <= self.critics:
            raise ValueError(f"subset must be in 1 … critics ({self.critics}), got {self.subset}")
        if self.noise_every < 0:
            raise ValueError(f"noise_every must be 0 or more, got {self.noise_every}")
        rates = [f"{part}_learning_rate" for part in ("actor", "critic", "temperature")]
        own = [name for name in rates if getattr(self, name) is not None]
        require_positive(self, "target_rate", "initial_temperature", "reward_scale", *own)
        require_probabilities(self, "target_rate", "critic_dropout")
        if extremes(self.critic_dropout)[1] == 1:
            raise ValueError("critic_dropout must be below 1, got 1")
        if self.temperature != "auto" and (low := extremes(self.temperature)[0]) < 0:
            raise ValueError(f"temperature must be auto, or 0 or more, got {low:g}")

    def check(self, run: RunConfig) -> list[str]:
        """Problems that only show together with the rest of the configuration."""
        problems = super().check(run)
        if run.compute.compile == "on" and run.network.shared_torso:
            problems.append("network.shared_torso cannot be compiled: set compute.compile=off")
        return problems

    def gradient_steps(self, run: RunConfig) -> float:
        """What compiling has to repay: a step of the critics, one of the actor, and the target."""
        return 0.0 if run.network.shared_torso else 3 * super().gradient_steps(run)


def soft_value(
    policy: SoftPolicy, critic: Callable[[Tensor | None], Tensor], noise: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Q [B] of the policy's action, and its log π [B]: of one sample, or expected over all."""
    if isinstance(policy, Categorical):
        probabilities = policy.log_probs.exp()
        return (probabilities * critic(None)).sum(-1), (probabilities * policy.log_probs).sum(-1)
    assert noise is not None
    action, log_prob = policy.draw(noise)
    return critic(action), log_prob


@torch.no_grad()
def soft_target(
    rows: Batch,
    actor: SoftActor,
    target_critic: QEnsemble,
    alpha: Tensor,
    noise: Tensor | None,
    subset: Tensor | None,
    masks: Masks,
    gamma: Tensor,
    reward_scale: Tensor,
) -> Tensor:
    """r + γ (Q − α log π) [B], eq. 2 and 3; Q is of all target critics, or of a `subset` of them.

    Nothing follows a termination; a truncation only hides what does.
    """
    next_obs = rows[NEXT_OBS]
    q, log_prob = soft_value(
        actor(next_obs),
        lambda action: reduced(target_critic(next_obs, action, masks=masks), "min", subset),
        noise,
    )
    value = q - alpha * log_prob
    reward = reward_scale * rows[REWARD]
    return td_target(reward, rows.get(STEPS), rows[TERMINATED], value, gamma)


def reduced(q: Tensor, how: Reduce, subset: Tensor | None = None) -> Tensor:
    """[N, …] to […]: the minimum or the mean of the critics, or of a subset of them."""
    q = q if subset is None else q[subset]
    return q.amin(0) if how == "min" else q.mean(0)


def critic_loss(
    critic: QEnsemble,
    obs: Obs,
    action: Tensor,
    target: Tensor,
    weight: Tensor | None,
    masks: Masks = (),
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Half the squared Bellman error of every critic (eq. 5), rows [B] weighted, summed."""
    q = critic(obs, action, masks=masks)  # [N, B], or [N, B, actions]
    if not critic.of_pairs:
        q = q.gather(-1, action.expand(len(q), -1).unsqueeze(-1)).squeeze(-1)
    error = q - target
    square = error.square() if weight is None else weight * error.square()
    fixed = q.detach()
    metrics = {"q_mean": fixed.mean(), "q_spread": fixed.amax(0).sub_(fixed.amin(0)).mean()}
    return 0.5 * square.mean(-1).sum(), metrics, {ERROR: error.detach().abs().mean(0)}


def actor_loss(
    actor: SoftActor,
    obs: Obs,
    critic: QEnsemble,
    noise: Tensor | None,
    alpha: Tensor,
    masks: Masks = (),
    *,
    how: Reduce,
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """α log π − Q (eq. 7); gradients flow through the action, not into the critics."""
    policy = actor(obs)
    q, log_prob = soft_value(
        policy, lambda action: reduced(critic(obs, action, frozen=True, masks=masks), how), noise
    )
    metrics = {"entropy": -log_prob.detach().mean()}
    if isinstance(policy, SquashedGaussian):
        log_std = policy.log_std.detach()
        metrics |= {"log_std": log_std.mean(), "log_std_min": log_std.amin()}
        metrics |= {"log_std_max": log_std.amax()}
    return (alpha * log_prob - q).mean(), metrics, {LOG_PROB: log_prob}


class Temperature(nn.Module):
    """α > 0, by its logarithm."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(initial)))


def temperature_loss(
    log_alpha: Tensor, log_prob: Tensor, target_entropy: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Raises log α while the entropy −log π is below the target, and lowers it above (eq. 17).

    The target is one number, or one for each row [B]. The loss is −log α · missing, so its slope
    is known: both are returned.
    """
    missing = (log_prob + target_entropy).mean()
    return -log_alpha * missing, -missing


def entropy_goal(config: SACConfig, action: Space, obs: Obs = None) -> float | Tensor:
    """The target entropy: for `auto`, minus the dimensions of a Box, or a share of the largest.

    Where `obs` has action masks, that is the largest entropy of the legal actions of each row [B]:
    log(1) = 0 where there is no choice.
    """
    if config.target_entropy != "auto":
        return config.target_entropy
    if isinstance(action, Box):
        return -float(action.size)
    if isinstance(obs, Mapping) and ACTION_MASK in obs:
        legal = (obs[ACTION_MASK] != 0).sum(-1)
        return config.target_entropy_scale * legal.float().log()
    return config.target_entropy_scale * math.log(getattr(action, "n", 1))


class SAC(Algorithm):
    """Soft actor-critic: off-policy, maximum entropy; with REDQ and DroQ variants."""

    Config: ClassVar[type | None] = SACConfig
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
    old_names: ClassVar[Mapping[str, str]] = {**LEARNER_NAMES, **BUDGET_NAMES}
    config: SACConfig

    def initialize(self, context: AlgorithmContext) -> None:
        """Build the networks, their learners, and bind the streams of random numbers."""
        super().initialize(context)
        run, spec, config, device = context.config, context.spec, self.config, context.device
        mode = normalize_mode(run.environment.normalize_obs)
        self.normalizer = make_normalizer(mode, spec.observation).to(device)
        normalize_by_dataset(self.normalizer, context)
        critic = QEnsemble(run.network, spec, config.critics, norm=config.critic_norm).to(device)
        torso = critic.encoder if run.network.shared_torso else None
        actor = SoftActor(
            run.network, spec, torso, kind=config.policy, couplings=config.couplings
        ).to(device)
        rule, compiled = config.optimizer, run.compute.compile == "on"
        self.critic = Learner(critic, critic_loss, rule, compile=compiled, target=True)
        loss = partial(actor_loss, how=config.actor_value)
        self.actor = Learner(actor, loss, rule, compile=compiled)
        self.temperature = None
        if config.temperature == "auto":
            temperature = Temperature(config.initial_temperature).to(device)
            plain = replace(rule, weight_decay=0, agc=0)  # log α = 0 is nothing to decay to
            self.temperature = Learner(temperature, None, plain, compile=compiled)
        target: Callable[..., Tensor] = soft_target
        self.soft_target = Compiled(target, "the target") if compiled else target
        self.budget = UpdateBudget(config.learning_starts)
        self.collect_steps = config.train_every
        self.random_actions = RandomActions(spec.action, context.rng.numpy("warm_up"))
        self.numpy_actor = fast_actor(actor, self.normalizer)
        self.numpy_rng = context.rng.numpy("actions")
        self.action_rng = context.rng.torch("actions", device)
        self.noise_rng = context.rng.torch("updates", device)

    def with_new_names(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Today's names for an older state, which has a temperature even where it is fixed."""
        renamed = dict(super().with_new_names(state))
        if self.temperature is None:
            renamed.pop("temperature", None)
        return renamed

    @property
    def policy(self) -> SoftActor:
        """The network that acts."""
        return cast(SoftActor, self.actor.module)

    # ------------------------------------------------------------------------------------- acting

    def collect_step(self, step: int, *, phase: Phase) -> CollectResult:
        """Random actions until `learning_starts`, then samples of the policy."""
        warming_up = step < self.config.learning_starts
        return self.collect(self.random_actions if warming_up else self.act, phase)

    def act(self, obs: Obs, state: Any, *, deterministic: bool) -> Action:
        """Sample, or take the action of the mean."""
        if self.numpy_actor is not None:
            rng = None if deterministic else self.numpy_rng
            return Action(self.numpy_actor(obs.numpy(), rng), state)
        with torch.no_grad():
            obs = self.normalizer(obs)
            head = self.policy.head
            if isinstance(head, ExploringHead) and not deterministic:
                features, every = self.policy.encoder(obs), self.config.noise_every
                return Action(*head.explore(features, state, every, self.action_rng))
            policy = self.policy(obs)
            if deterministic:
                return Action(policy.mode(), state)
            if isinstance(policy, Categorical):
                return Action(policy.sample(self.action_rng), state)
            noise = self.noise(len(first_leaf(obs)), self.action_rng)
            assert noise is not None
            return Action(policy.draw(noise)[0], state)

    def greedy(self, obs: Obs, state: object) -> Action:
        """The action of the mean, by operations on tensors alone."""
        return Action(self.policy(self.normalizer(obs)).mode(), state)

    def describe(self, obs: Obs, state: object) -> Mapping[str, Tensor]:
        """The distribution over actions, and by the smallest critic the value of its mode.

        Of discrete actions: the values of all, and their mean under the policy.
        """
        obs = self.normalizer(obs)
        policy = self.policy(obs)
        if isinstance(policy, Categorical):
            values = self.critic.module(obs).amin(0)
            shown = described(policy)
            return {**shown, "q_values": values, "value": (shown["probabilities"] * values).sum(-1)}
        value = self.critic.module(obs, policy.mode()).amin(0)
        return {**described(policy), "value": value}

    def initial_state(self, batch: int) -> Any:
        """With gSDE, a noise matrix for each environment; else None."""
        head = self.policy.head
        return head.initial_state(batch) if isinstance(head, ExploringHead) else None

    # ----------------------------------------------------------------------------------- learning

    def track_statistics(self, trajectory: Batch) -> None:
        """Count new frames in the observation statistics, unless they are those of a dataset."""
        track_online(self.normalizer, trajectory, self.context)

    def sample(self, buffer: Buffer, *, hook: str, phase: Phase) -> Batch | None:
        """Minibatches [K, B, …] for all gradient steps that are due."""
        return sample_minibatches(buffer, self.budget, phase, at(self.config, phase["step"]))

    def update(self, batch: Batch, *, phase: Phase) -> Metrics:
        """One gradient step of the critics per minibatch; actor and targets move when due."""
        now, device = at(self.config, phase["step"]), self.context.device
        gamma, reward_scale = scalar(now.gamma, device), scalar(now.reward_scale, device)
        critic_sizes = self._step_sizes(now.critic_learning_rate, now)
        actor_sizes = self._step_sizes(now.actor_learning_rate, now)
        temperature_sizes = self._step_sizes(now.temperature_learning_rate, now)
        critic, target_critic, actor = self.critic.module, self.critic.target, self.actor.module
        used = {name: batch[name] for name in USED if name in batch}
        used |= {name: self.normalizer(batch[name]) for name in (OBS, NEXT_OBS)}
        size = batch[REWARD].shape[1]
        steps, errors = [], []
        with all_or_nothing("SAC update", **self.learners(), budget=self.budget):
            for rows in minibatches(used, self.budget, phase, now.replay_ratio):
                obs, alpha = rows[OBS], self.alpha(now)
                subset, noise = self._subset(now), self.noise(size, self.noise_rng)
                masks = self._dropout_masks(size, now)
                target = self.soft_target(
                    rows, actor, target_critic, alpha, noise, subset, masks, gamma, reward_scale
                )
                masks = self._dropout_masks(size, now)
                step = self.critic.step(
                    obs, rows[ACTION], target, rows.get(WEIGHT), masks, **critic_sizes
                )
                errors.append(step.aux[ERROR])
                metrics = {**step_metrics("critic", step), "target": target.mean(), "alpha": alpha}
                if self.budget.steps % now.actor_every == 0:
                    noise = self.noise(size, self.noise_rng)
                    masks = self._dropout_masks(size, now)
                    step = self.actor.step(obs, critic, noise, alpha, masks, **actor_sizes)
                    metrics |= step_metrics("actor", step)
                    if self.temperature is not None:
                        goal = entropy_goal(now, self.context.spec.action, obs)
                        loss, slope = temperature_loss(self.log_alpha, step.aux[LOG_PROB], goal)
                        step = self.temperature.descend(slope.view(1), loss, **temperature_sizes)
                        metrics |= step_metrics("temperature", step)
                if self.budget.steps % now.target_every == 0:
                    self.critic.follow(now.target_rate)
                steps.append(metrics)
        update_priorities(self.context, batch, errors, phase)
        return {**averages(steps), "gradient_steps": self.budget.steps}

    def learners(self) -> dict[str, Learner]:
        """Critics, actor, and a temperature that is learned."""
        found = {"critic": self.critic, "actor": self.actor, "temperature": self.temperature}
        return {name: learner for name, learner in found.items() if learner is not None}

    def alpha(self, now: SACConfig) -> Tensor:
        """The temperature α []."""
        if self.temperature is None:
            return scalar(cast(float, now.temperature), self.context.device)
        return self.log_alpha.exp()

    @property
    def log_alpha(self) -> Tensor:
        """log α [] of a learned temperature, without a gradient."""
        assert self.temperature is not None, "the temperature is fixed"
        return cast(Temperature, self.temperature.module).log_alpha.detach()

    def noise(self, count: int, generator: torch.Generator) -> Tensor | None:
        """Standard normal numbers [count, A] to sample by; None if actions are discrete."""
        action = self.context.spec.action
        if not isinstance(action, Box):
            return None
        return torch.randn(count, action.size, generator=generator, device=generator.device)

    def _subset(self, now: SACConfig) -> Tensor | None:
        """The critics that make the next target, drawn at random (REDQ); None: all of them."""
        if now.subset is None:
            return None
        rng = self.noise_rng
        return torch.randperm(now.critics, generator=rng, device=rng.device)[: now.subset]

    def _dropout_masks(self, count: int, now: SACConfig) -> Masks:
        """Fresh dropout masks of the critics' hidden units (DroQ); () without dropout."""
        critic = cast(QEnsemble, self.critic.module)
        return critic.values.masks(count, now.critic_dropout, self.noise_rng)

    def _step_sizes(self, own: float | None, now: SACConfig) -> dict[str, Tensor]:
        """Step sizes with a learning rate of a part's own, or with the common one."""
        rate = now.learning_rate if own is None else own
        return step_sizes(rate, now.max_grad_norm, self.context.device)
