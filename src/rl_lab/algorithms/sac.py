"""SAC: soft actor-critic with a learned temperature (Haarnoja et al. 2018, arXiv:1812.05905).

Reads top to bottom: config, soft values, losses, workflow. A policy is paid for its entropy as well
as for its reward; α weighs the two and is moved until the entropy is what was asked for. With
discrete actions the same equations are expectations over all of them, and nothing is sampled
(Christodoulou 2019, arXiv:1910.07207).

Departures from the paper: gradients are clipped, at a norm that only accidents reach; a return of
several steps leaves out the entropies on its way; critics may be more than two, and the target may
look at a random few of them (REDQ, Chen et al. 2021, arXiv:2101.05982); critics may be normalised
and lose units at random (DroQ, Hiraoka et al. 2022, arXiv:2110.02034); the policy may explore by a
function of the state (gSDE), or be a flow.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from rl_lab.algorithms.earning import ReplayWorkflow
from rl_lab.algorithms.replay import ERROR, TransitionConfig
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
    Metrics,
)
from rl_lab.core.compiled import Compiled
from rl_lab.core.distributions import Categorical, SquashedGaussian
from rl_lab.core.optim import FlatOptimizer, scalar
from rl_lab.core.options import option
from rl_lab.core.protocols import WorkflowContext
from rl_lab.core.returns import n_step_return
from rl_lab.core.schedule import extremes
from rl_lab.core.spec import Box, Space
from rl_lab.core.target import Frozen, Target, network
from rl_lab.core.tree import as_arrays, first_leaf
from rl_lab.networks.ensemble import QEnsemble
from rl_lab.networks.normalizer import make_normalizer, normalize_mode
from rl_lab.networks.numpy_policy import fast_actor
from rl_lab.networks.sac_policies import ExploringHead, PolicyKind, SoftActor, SoftPolicy

Reduce = Literal["min", "mean"]
MATRIX, AGE = "matrix", "age"  # of gSDE's noise, for each environment
Masks = tuple[Tensor, ...]  # of the critics' hidden layers: see `Ensemble.masks`


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
    critic_norm: bool = option(False, "hidden layers of the critics are layer-normalised")
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
        rates = [f"{part}_learning_rate" for part in ("actor", "critic", "temperature")]
        for name in ("target_rate", "initial_temperature", "reward_scale", *rates):
            value = getattr(self, name)
            if value is not None and (extremes(value)[0] < 0 or extremes(value)[1] <= 0):
                raise ValueError(f"{name} must be positive, got {extremes(value)[0]:g}")
        if self.noise_every < 0:
            raise ValueError(f"noise_every must be 0 or more, got {self.noise_every}")
        low, high = extremes(self.critic_dropout)
        if not 0.0 <= low <= high < 1.0:
            raise ValueError(f"critic_dropout must be in [0, 1), got {low if low < 0 else high:g}")
        if extremes(self.target_rate)[1] > 1:
            raise ValueError(f"target_rate must be at most 1, got {extremes(self.target_rate)[1]}")
        if self.temperature != "auto" and (low := extremes(self.temperature)[0]) < 0:
            raise ValueError(f"temperature must be auto, or 0 or more, got {low:g}")

    def check(self, run: Any) -> list[str]:
        """Problems that only show together with the rest of the configuration."""
        problems = super().check(run)
        if run.compute.compile == "on" and run.network.shared_torso:
            problems.append("network.shared_torso cannot be compiled: set compute.compile=off")
        return problems

    def gradient_steps(self, run: Any) -> float:
        """What compiling has to repay: a step of the critics, one of the actor, and the target."""
        return 0.0 if run.network.shared_torso else 3 * super().gradient_steps(run)


def soft_value(policy: SoftPolicy, critic: Any, noise: Tensor | None) -> tuple[Tensor, Tensor]:
    """Q [B] of what the policy does, and its log π [B]: of one sample, or expected over all."""
    if isinstance(policy, Categorical):
        chances = policy.log_probs.exp()
        return (chances * critic(None)).sum(-1), (chances * policy.log_probs).sum(-1)
    assert noise is not None
    action, log_prob = policy.draw(noise)
    return critic(action), log_prob


def bellman_target(
    reward: Tensor,
    discount: Tensor | float,
    terminated: Tensor,
    next_q: Tensor,
    next_log_prob: Tensor,
    alpha: Tensor,
) -> Tensor:
    """r + γ (Q − α log π), eq. 2 and 3. Nothing follows a termination; a truncation hides it."""
    return reward + discount * torch.where(terminated, 0.0, next_q - alpha * next_log_prob)


def soft_target(
    rows: Batch,
    actor: Frozen,
    critic: Frozen,
    alpha: Tensor,
    noise: Tensor | None,
    chosen: Tensor | None,
    gamma: Tensor,
    reward_scale: Tensor,
    masks: Masks = (),
    *,
    twins: tuple[nn.Module, nn.Module],
) -> Tensor:
    """What the critics should say of these rows [B], by the slow copies of them."""
    next_obs = rows[NEXT_OBS]
    judge = network(critic, twins[1])
    q, log_prob = soft_value(
        network(actor, twins[0])(next_obs),
        lambda action: reduced(judge(next_obs, action, masks=masks), "min", chosen),
        noise,
    )
    reward, discount = n_step_return(rows[REWARD], rows.get(STEPS), gamma)
    reward = reward_scale * reward
    return bellman_target(reward, discount, rows[TERMINATED], q, log_prob, alpha)


def reduced(q: Tensor, how: Reduce, chosen: Tensor | None = None) -> Tensor:
    """[N, …] to […]: the smallest of the critics (or of the `chosen`), or their mean."""
    q = q if chosen is None else q[chosen]
    return q.amin(0) if how == "min" else q.mean(0)


def critic_loss(
    critic: QEnsemble,
    obs: Any,
    action: Tensor,
    target: Tensor,
    weight: Tensor | None,
    masks: Masks = (),
) -> tuple[Tensor, dict[str, Tensor]]:
    """Half the squared Bellman error of every critic (eq. 5), rows [B] weighted, summed."""
    q = critic(obs, action, masks=masks)  # [N, B], or [N, B, actions]
    if not critic.of_pairs:
        q = q.gather(-1, action.expand(len(q), -1).unsqueeze(-1)).squeeze(-1)
    error = q - target
    square = error.square() if weight is None else weight * error.square()
    loss = 0.5 * square.mean(-1).sum()
    fixed = q.detach()
    return loss, {
        "q_mean": fixed.mean(),
        "q_spread": fixed.amax(0).sub_(fixed.amin(0)).mean(),
        ERROR: error.detach().abs().mean(0),
    }


def actor_loss(
    actor: SoftActor,
    obs: Any,
    critic: Frozen,
    noise: Tensor | None,
    alpha: Tensor,
    masks: Masks = (),
    *,
    how: Reduce,
    twin: QEnsemble,
) -> tuple[Tensor, dict[str, Tensor]]:
    """α log π − Q (eq. 7); gradients flow through the action, not into the critics."""
    policy, judge = actor(obs), network(critic, twin)
    q, log_prob = soft_value(
        policy, lambda action: reduced(judge(obs, action, frozen=True, masks=masks), how), noise
    )
    metrics = {"log_prob": log_prob, "entropy": -log_prob.detach().mean()}
    if isinstance(policy, SquashedGaussian):
        log_std = policy.log_std.detach()
        metrics |= {"log_std": log_std.mean(), "log_std_min": log_std.amin()}
        metrics |= {"log_std_max": log_std.amax()}
    return (alpha * log_prob - q).mean(), metrics


class Temperature(nn.Module):
    """α > 0, by its logarithm."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(initial)))


def temperature_loss(
    log_alpha: Tensor, log_prob: Tensor, target_entropy: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Raises log α while the entropy −log π is below the target, and lowers it above (eq. 17).

    The target is one number, or one for each row [B]. The loss is −log α · missing, so its gradient
    is known: both are returned.
    """
    missing = (log_prob + target_entropy).mean()
    return -log_alpha * missing, -missing


def entropy_goal(config: SACConfig, action: Space, obs: Any = None) -> float | Tensor:
    """What `auto` means: minus the dimensions of a Box, or a share of the largest entropy.

    Where `obs` has masks, that is the largest entropy of the legal actions of each row [B]: of
    log(1) = 0 where nothing can be chosen.
    """
    if config.target_entropy != "auto":
        return config.target_entropy
    if isinstance(action, Box):
        return -float(action.size)
    if isinstance(obs, Mapping) and ACTION_MASK in obs:
        legal = (obs[ACTION_MASK] != 0).sum(-1)
        return config.target_entropy_scale * legal.float().log()
    return config.target_entropy_scale * math.log(getattr(action, "n", 1))


class SAC(ReplayWorkflow):
    """Soft actor-critic: off-policy, maximum entropy; with REDQ and DroQ variants."""

    Config: ClassVar[type | None] = SACConfig
    unit_actions: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = {
        **ReplayWorkflow.defaults,
        "environment": {"num_envs": 1},
        "network": {
            "encoder": {"type": "auto", "hidden_dims": [], "image": "conv"},
            "actor": {"hidden_dims": [256, 256], "activation": "relu"},
            "critic": {"hidden_dims": [256, 256], "activation": "relu"},
        },
    }
    config: SACConfig

    def initialize(self, context: WorkflowContext) -> None:
        """Networks, their slow copies, optimisers, and the streams of random numbers."""
        super().initialize(context)
        run, spec, config = context.config, context.spec, self.config
        mode = normalize_mode(run.environment.normalize_obs)
        self.normalizer = make_normalizer(mode, spec.observation).to(context.device)
        critic = QEnsemble(run.network, spec, config.critics, norm=config.critic_norm)
        critic.to(context.device)
        lent = critic.encoder if run.network.shared_torso else None
        self.actor = SoftActor(
            run.network, spec, lent, kind=config.policy, couplings=config.couplings
        ).to(context.device)
        self.critic, self.target = critic, Target(critic)
        self.temperature = Temperature(config.initial_temperature).to(context.device)
        compiled = run.compute.compile == "on"
        self.critic_optimizer = FlatOptimizer(
            critic, critic_loss, config.optimizer, compile=compiled
        )
        loss = partial(actor_loss, how=config.actor_value, twin=critic)
        self.actor_optimizer = FlatOptimizer(self.actor, loss, config.optimizer, compile=compiled)
        target = partial(soft_target, twins=(self.actor, self.target.module))
        self.soft_target = Compiled(target, "the target") if compiled else target
        self.temperature_optimizer = None
        if config.temperature == "auto":
            plain = replace(config.optimizer, weight_decay=0, agc=0)
            self.temperature_optimizer = FlatOptimizer(
                self.temperature, None, plain, compile=compiled
            )
        self.fast = fast_actor(self.actor, self.normalizer)
        self.fast_rng = context.rng.numpy("actions")
        self.action_rng = context.rng.torch("actions", context.device)
        self.noise_rng = context.rng.torch("updates", context.device)

    def act(self, obs: Any, state: Any, *, deterministic: bool) -> Action:
        """Sample, or take the action of the mean."""
        if self.fast is not None:
            return Action(self.fast(obs.numpy(), None if deterministic else self.fast_rng), state)
        with torch.no_grad():
            seen = self.normalizer(obs)
            if state is not None and not deterministic:
                return self._explore(seen, state)
            policy = self.actor(seen)
            if deterministic:
                return Action(policy.mode(), state)
            if isinstance(policy, Categorical):
                return Action(policy.sample(self.action_rng), state)
            noise = self.noise(obs, self.action_rng)
            assert noise is not None
            return Action(policy.draw(noise)[0], state)

    def initial_state(self, batch: int) -> Any:
        """With gSDE, a matrix of noise for each environment, to be drawn at its first step."""
        if not isinstance(head := self.actor.head, ExploringHead):
            return None
        device, size = self.context.device, head.log_std.shape
        age = torch.zeros(batch, dtype=torch.int64, device=device)
        return {MATRIX: torch.zeros(batch, *size, device=device), AGE: age}

    def _explore(self, seen: Any, state: Any) -> Action:
        """Actions of gSDE; a matrix that is old enough makes way for another."""
        age, every = state[AGE], self.config.noise_every
        due = age % every == 0 if every else age == 0
        fresh = torch.empty_like(state[MATRIX]).normal_(generator=self.action_rng)
        matrix = torch.where(due[:, None, None], fresh, state[MATRIX])
        head = self.actor.head
        assert isinstance(head, ExploringHead)
        action = head.explore(self.actor.encoder(seen), matrix)
        return Action(action, {MATRIX: matrix, AGE: age + 1})

    def track_statistics(self, trajectory: Batch) -> None:
        """Observation statistics take each fresh frame once."""
        self.normalizer.update_statistics(as_arrays(trajectory[OBS]))

    def learn(self, rows: Batch, now: SACConfig) -> Metrics:
        """One step of the critics; one of actor and temperature, and of the targets, if due."""
        obs = self.normalizer(rows[OBS])
        alpha = self.alpha(now)
        target = self.bootstrap(rows, alpha, now)
        masks = self.masks(rows, now)
        metrics = self._step("critic", now, obs, rows[ACTION], target, rows.get(WEIGHT), masks)
        metrics |= {"target": target.mean(), "alpha": alpha}
        if self.gradient_steps % now.actor_every == 0:
            critic = self.critic_optimizer.frozen()
            inputs = self.noise(obs), alpha, self.masks(rows, now)
            metrics |= self._step("actor", now, obs, critic, *inputs)
            log_prob = metrics.pop("log_prob")
            if self.temperature_optimizer is not None:
                goal = entropy_goal(now, self.context.spec.action, obs)
                metrics |= self._cool(self.temperature_optimizer, log_prob, goal, now)
        if self.gradient_steps % now.target_every == 0:
            self.target.follow(self.critic_optimizer.state.flat, now.target_rate)
        return metrics

    @torch.no_grad()
    def bootstrap(self, rows: Batch, alpha: Tensor, now: SACConfig) -> Tensor:
        """The target of the critics [B]. With REDQ it looks at a random few of their copies."""
        used = {name: rows[name] for name in (REWARD, TERMINATED, STEPS) if name in rows}
        used[NEXT_OBS] = self.normalizer(rows[NEXT_OBS])
        actor = self.actor_optimizer.frozen()
        critic: Frozen = self.target.module if actor is self.actor else self.target.flat
        chosen = None
        if now.subset is not None:
            order = torch.randperm(now.critics, generator=self.noise_rng, device=alpha.device)
            chosen = order[: now.subset]
        noise, device = self.noise(used[NEXT_OBS]), self.context.device
        rest = scalar(now.gamma, device), scalar(now.reward_scale, device), self.masks(rows, now)
        target: Tensor = self.soft_target(used, actor, critic, alpha, noise, chosen, *rest)
        return target

    def alpha(self, now: SACConfig) -> Tensor:
        """The temperature as a number without a gradient."""
        log_alpha = self.temperature.log_alpha.detach()
        if now.temperature == "auto":
            return log_alpha.exp()
        return torch.full_like(log_alpha, now.temperature)

    def noise(self, obs: Any, generator: torch.Generator | None = None) -> Tensor | None:
        """Normal numbers for one action per row; discrete actions are not sampled."""
        action, leaf = self.context.spec.action, first_leaf(obs)
        if not isinstance(action, Box):
            return None
        empty = torch.empty(len(leaf), action.size, device=leaf.device)
        return empty.normal_(generator=generator or self.noise_rng)

    def masks(self, rows: Batch, now: SACConfig) -> Masks:
        """Which hidden units of the critics are left out; none if nothing is."""
        return self.critic.values.masks(len(rows[REWARD]), now.critic_dropout, self.noise_rng)

    def optimizers(self) -> dict[str, FlatOptimizer]:
        """Critics, actor, and a temperature that is learned."""
        found = {"critic": self.critic_optimizer, "actor": self.actor_optimizer}
        if self.temperature_optimizer is not None:
            found["temperature"] = self.temperature_optimizer
        return found

    def slow(self) -> list[Tensor]:
        """The target critics."""
        return [self.target.flat]

    def _step(self, name: str, now: SACConfig, *inputs: Any) -> Metrics:
        """One step of Adam down the loss of critics or actor."""
        return _named(name, self.optimizers()[name].step(*inputs, **self._pace(name, now)))

    def _cool(
        self, optimizer: FlatOptimizer, log_prob: Tensor, goal: float | Tensor, now: SACConfig
    ) -> Metrics:
        """One step of the temperature."""
        loss, gradient = temperature_loss(self.temperature.log_alpha.detach(), log_prob, goal)
        pace = self._pace("temperature", now)
        return _named("temperature", optimizer.descend(gradient.reshape(1), loss, **pace))

    def _pace(self, name: str, now: SACConfig) -> dict[str, Tensor]:
        """The learning rate of one part, and where its gradient is clipped."""
        own = getattr(now, f"{name}_learning_rate")
        rate = now.learning_rate if own is None else own
        device = self.context.device
        return {
            "learning_rate": scalar(rate, device),
            "max_grad_norm": scalar(now.max_grad_norm, device),
        }


def _named(part: str, metrics: Metrics) -> Metrics:
    """Loss and gradient norm under the name of what was trained."""
    del metrics["gradient"]
    metrics[f"{part}_loss"] = metrics.pop("loss")
    metrics[f"grad_norm/{part}"] = metrics.pop("grad_norm")
    return metrics
