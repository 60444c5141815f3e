"""REINFORCE: the Monte-Carlo policy gradient (Williams 1992), with or without a learned baseline.

Reads top to bottom: config, whole episodes, losses, algorithm. A batch is made of whole episodes.
Those that are still open wait for their end: dropping them would prefer short episodes, cutting
them would be another algorithm. So their first steps may have been acted by the policy of before.

Departures from the paper: one step of Adam per batch instead of one per episode; targets may be
normalized over the batch; step t has no factor γ^t in front of it, as in practically all code; a
truncated episode is continued by the baseline if there is one that predicts the reward to go, else
it counts as it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor

from rl_lab.algorithms.base import Algorithm, Optimized, Roles
from rl_lab.core.batch import (
    ACTION,
    LOG_PROB,
    NEXT_OBS,
    OBS,
    RESET,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Action,
    Array,
    Batch,
    CollectResult,
    Metrics,
    Obs,
)
from rl_lab.core.distributions import described
from rl_lab.core.errors import UserError
from rl_lab.core.learner import Learner, all_or_nothing
from rl_lab.core.optim import OptimizerConfig
from rl_lab.core.options import option, section
from rl_lab.core.protocols import AlgorithmContext, Phase, Policy
from rl_lab.core.returns import explained_variance, gae
from rl_lab.core.running_stats import RewardNormalizer
from rl_lab.core.schedule import at
from rl_lab.core.schema import AlgorithmConfig, RunConfig
from rl_lab.core.tree import map_leaves
from rl_lab.networks.acting import ActingPolicy
from rl_lab.networks.actor_critic import ActorCritic
from rl_lab.networks.normalizer import normalize_mode

TARGET, RETURN = "target", "return"  # what weighs log π, and what the baseline learns
KEPT = (OBS, ACTION, REWARD, TERMINATED, TRUNCATED, NEXT_OBS, RESET, LOG_PROB)


@dataclass(frozen=True, kw_only=True)
class ReinforceConfig(AlgorithmConfig):
    """Hyperparameters of REINFORCE. Any float may be a schedule."""

    policy_targets: Literal["returns", "advantages"] = option(
        "returns", "what an action is weighed by: its return, or what a baseline did not expect"
    )
    returns_type: Literal["mc:rtg", "mc:episode"] = option(
        "mc:rtg", "the reward from this step on, or the whole episode's return at every step"
    )
    batch_steps: int = option(
        4000, "learn once ended episodes have at least this many steps", low=1
    )
    rollout_steps: int = option(32, "vector steps between checks for ended episodes", low=1)
    learning_rate: float = option(1e-2, "step size of the policy's optimizer", above=0)
    gamma: float = option(0.99, "discount factor", low=0, high=1)
    entropy_coefficient: float = option(0.0, "weight of the entropy bonus")
    normalize_targets: Literal["batch", "off"] = option(
        "batch", "center and scale the targets of a batch (never of one episode), or not"
    )
    baseline_learning_rate: float = option(
        1e-2, "step size of the baseline's own optimizer", above=0
    )
    baseline_steps: int = option(20, "gradient steps of the baseline per batch", low=1)
    value_coefficient: float = option(
        0.5, "with a shared torso: weight of the baseline in the policy's single step"
    )
    max_grad_norm: float = option(1.0, "largest norm of a gradient", above=0)
    optimizer: OptimizerConfig = section(OptimizerConfig, "the optimizer's own settings")

    def small(self, run: RunConfig, *, call: int, before: int) -> list[dict[str, Any]]:
        """Batches that a run of few steps fills several times."""
        return [{"algorithm.batch_steps": min(self.batch_steps, max(call // 8, 1))}]

    def check(self, run: RunConfig) -> list[str]:
        """Problems that only show together with the rest of the configuration."""
        if self.optimizer.accumulate > 1 and run.network.memory.type != "none":
            return ["optimizer.accumulate must be 1 with a memory: a batch is one sequence"]
        return []

    def gradient_steps(self, run: RunConfig) -> float:
        """None worth compiling: every batch has another size, and compiled code has one."""
        return 0.0


def whole_episodes(reset: Array, ended: Array) -> tuple[Array, Array]:
    """Which rows [T, N] belong to episodes that begin and end here, and which are still open.

    Rows before the first `reset` of a column belong to an episode whose beginning was not seen. An
    episode that another one follows without having ended was given up. Both are neither.
    """
    begun, closed, followed = (np.zeros_like(reset) for _ in range(3))
    now = np.zeros_like(reset[0])
    for t in range(len(reset)):
        now = begun[t] = now | reset[t]
    now, later = np.zeros_like(reset[0]), np.zeros_like(reset[0])
    for t in range(len(reset) - 1, -1, -1):
        now, followed[t] = now | ended[t], later
        closed[t] = now
        now, later = now & ~reset[t], later | reset[t]
    return begun & closed, begun & ~closed & ~followed


def reward_to_go(
    reward: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, gamma: float
) -> Tensor:
    """Discounted reward from each row to its episode's end, [T, N]; `next_value` continues a cut.

    It is GAE with λ = 1 and a value of 0 everywhere but behind the truncated rows.
    """
    cut = truncated.to(reward.dtype)
    nothing = torch.zeros_like(reward)
    flags = {"terminated": terminated, "truncated": truncated}
    return gae(reward, nothing, next_value * cut, **flags, gamma=gamma, gae_lambda=1.0)


def episode_return(to_go: Tensor, reset: Tensor) -> Tensor:
    """The first reward to go of every episode, at each of its rows. [M, 1], episode by episode."""
    first = reset.flatten().nonzero().flatten()  # where the episodes begin
    number = reset.flatten().cumsum(0) - 1  # which episode a row belongs to
    return to_go.flatten()[first][number].view_as(to_go)


def normalize(target: Tensor) -> Tensor:
    """Zero mean and unit deviation; all zeros when there is nothing to tell apart."""
    centered = target - target.mean()
    return centered / (centered.square().mean().sqrt() + 1e-8)


def policy_gradient(log_prob: Tensor, target: Tensor) -> Tensor:
    """Its gradient is −E[∇ log π(a|s) · target]; the target is a number, not a function of θ."""
    return -(log_prob * target.detach()).mean()


def policy_loss(
    model: ActorCritic, rows: Batch, hyper: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """The loss of the policy; with a `value_coefficient`, the baseline's loss as well."""
    policy, value, _ = model(rows[OBS], model.initial_state(1), rows[RESET])
    log_prob, entropy = policy.log_prob(rows[ACTION]), policy.entropy().mean()
    gain = policy_gradient(log_prob, rows[TARGET])
    loss = gain - hyper["entropy_coefficient"] * entropy
    metrics = {"policy_loss": gain, "entropy": entropy}
    metrics["staleness"] = (log_prob - rows[LOG_PROB]).abs().mean()  # of what waited for its end
    if "value_coefficient" in hyper:
        metrics["value_loss"] = 0.5 * (value - rows[RETURN]).square().mean()
        loss = loss + hyper["value_coefficient"] * metrics["value_loss"]
    return loss, metrics, {}


def baseline_loss(
    model: ActorCritic, rows: Batch
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Half the squared error of the value."""
    _, value, _ = model(rows[OBS], model.initial_state(1), rows[RESET])
    loss = 0.5 * (value - rows[RETURN]).square().mean()
    return loss, {"value_loss": loss}, {}


class Reinforce(Algorithm):
    """REINFORCE: on-policy Monte Carlo policy gradient, with or without a baseline."""

    Config: ClassVar[type | None] = ReinforceConfig
    compiles: ClassVar[bool] = False
    roles: ClassVar[Roles] = {}
    optimized: ClassVar[Optimized] = ()
    old_names: ClassVar[Mapping[str, str]] = {
        "learner.module": "model",
        "learner.optimizer": "optimizer",
        "baseline.optimizer": "baseline",
    }
    config: ReinforceConfig

    def initialize(self, context: AlgorithmContext) -> None:
        """Build the network with its optimizers, and bind the streams of random numbers."""
        super().initialize(context)
        run, config = context.config, self.config
        mode = normalize_mode(run.environment.normalize_obs)
        model = ActorCritic(run.network, context.spec, mode).to(context.device)
        self.has_baseline = config.policy_targets == "advantages"
        self.is_joint = self.has_baseline and run.network.shared_torso
        actor = [f"torsos.{model.actor_torso}.*", "actor.*"]
        critic = [f"torsos.{model.critic_torso}.*", "critic_hidden.*", "critic.*"]
        only = actor + critic if self.is_joint else actor
        self.learner = Learner(model, policy_loss, config.optimizer, only=only)
        self.baseline = (
            Learner(model, baseline_loss, config.optimizer, only=critic)
            if self.has_baseline and not self.is_joint
            else None
        )
        self.policy = ActingPolicy.of(model, context.rng, context.device)
        self.acts_on_arrays = self.policy.numpy is not None
        self.collect_steps = config.rollout_steps
        self.reward_scale = RewardNormalizer(1) if run.environment.normalize_reward else None
        self.waiting: list[Batch] = []  # rollouts [T, N] with rows that were not learned from
        self.next_step = 0  # the environment step up to which they reach

    @property
    def model(self) -> ActorCritic:
        """The network that is trained and acts."""
        return cast(ActorCritic, self.learner.module)

    def act(self, obs: Obs, state: object, *, deterministic: bool) -> Action:
        """Sample, or take the mode."""
        return self.policy.act(obs, state, deterministic=deterministic)

    def greedy(self, obs: Obs, state: Any) -> Action:
        """The mode, by operations on tensors alone."""
        return self.policy.greedy(obs, state)

    def describe(self, obs: Obs, state: Any) -> Mapping[str, Tensor]:
        """The distribution over actions, and the value of the baseline if there is one."""
        policy, value = self.model.policy_and_value(obs, state)
        return {**described(policy), **({"value": value} if self.has_baseline else {})}

    def initial_state(self, batch: int) -> Any:
        """What the memories start an episode with."""
        return self.model.initial_state(batch)

    def pure_policy(self) -> Policy | None:
        """`act` as a pure function, unless a subclass acts in another way."""
        if type(self).act is not Reinforce.act:
            return None
        return self.policy.pure(self.context.train_environment.num_envs)

    def collect_step(self, step: int, *, phase: Phase) -> CollectResult:
        """A few vector steps. There is something to learn from once enough episodes have ended."""
        result = super().collect_step(step, phase=phase)
        if step != self.next_step:
            self.waiting = []  # another policy has played on: what waits will not be continued
        self.next_step = step + result.steps
        result.trajectory = self._gather(result.trajectory or {})
        return result

    def _gather(self, rollout: Batch) -> Batch | None:
        """Whole episodes, one after another as [M, 1, …], once there are enough; open ones wait."""
        self.waiting.append({name: rollout[name] for name in KEPT})
        resets = [each[RESET] for each in self.waiting]
        ends = [each[TERMINATED] | each[TRUNCATED] for each in self.waiting]
        whole, is_open = whole_episodes(
            torch.cat(resets).numpy(force=True), torch.cat(ends).numpy(force=True)
        )
        if whole.sum() < self.config.batch_steps:
            return None
        rows: Batch = map_leaves(lambda *leaves: torch.cat(leaves), *self.waiting)
        chosen = torch.from_numpy(whole.T.copy()).to(rows[REWARD].device)
        batch = map_leaves(lambda leaf: leaf.transpose(0, 1)[chosen].unsqueeze(1), rows)
        begin = int(is_open.any(axis=1).argmax()) if is_open.any() else len(whole)
        left = map_leaves(lambda leaf: leaf[begin:].clone(), rows)
        # Without its first frame an episode is none: what was learned from is not met again.
        left[RESET] &= ~chosen.T[begin:]
        self.waiting = [left] if begin < len(whole) else []
        return batch

    def update(self, batch: Batch, *, phase: Phase) -> Metrics:
        """One policy step on whole episodes. On a bad number everything is as it was before."""
        if LOG_PROB not in batch:
            raise UserError(f"phase '{phase['name']}': REINFORCE learns from its own actions only")
        now = at(self.config, phase["step"])
        normalizer = self.model.normalizer
        is_first = normalizer.is_empty  # raw frames may be of any size: normalize the first ones
        with all_or_nothing(
            "REINFORCE update",
            policy=self.learner,
            baseline=self.baseline,
            statistics=normalizer if is_first else None,
            reward_scale=self.reward_scale,
        ):
            if is_first:
                normalizer.update_statistics(batch[OBS])
            rows, metrics = self._credit(batch, now)
            metrics |= self._learn(rows, now)
        if not is_first:
            normalizer.update_statistics(batch[OBS])
        return {**metrics, **self.policy.log_std()}

    @torch.no_grad()
    def _credit(self, batch: Batch, now: ReinforceConfig) -> tuple[Batch, Metrics]:
        """Targets of the policy and of the baseline, which has not seen these episodes yet."""
        terminated, truncated, reward = batch[TERMINATED], batch[TRUNCATED], batch[REWARD]
        if self.reward_scale is not None:
            reset = batch[RESET].cpu().numpy()
            scaled = self.reward_scale(reward.cpu().numpy(), reset, now.gamma)
            reward = torch.from_numpy(scaled).to(reward.device)
        value = next_value = torch.zeros_like(reward)
        if self.has_baseline:
            seen = self.model.unroll(
                batch[OBS],
                batch[ACTION],
                batch[NEXT_OBS],
                self.initial_state(1),
                batch[RESET],
                terminated | truncated,
                len(reward),
            )
            value = seen.value
            # A baseline of whole returns does not say what is still to come: it continues nothing.
            next_value = seen.next_value if now.returns_type == "mc:rtg" else next_value
        target = reward_to_go(reward, next_value, terminated, truncated, now.gamma)
        if now.returns_type == "mc:episode":
            target = episode_return(target, batch[RESET])
        metrics = {
            "episodes": batch[RESET].sum(),
            "batch_steps": len(reward),
            "target_mean": target.mean(),
            "learning_rate": now.learning_rate,
        }
        if self.has_baseline:
            metrics["explained_variance"] = explained_variance(value, target)
        gain = target - value
        rows = {name: batch[name] for name in (OBS, ACTION, RESET, LOG_PROB)}
        rows[RETURN] = target
        rows[TARGET] = normalize(gain) if now.normalize_targets == "batch" else gain
        return rows, metrics

    def _learn(self, rows: Batch, now: ReinforceConfig) -> Metrics:
        """The policy's step, then the baseline's: it must not know these returns before."""
        device = rows[TARGET].device
        names = ["entropy_coefficient", *(["value_coefficient"] if self.is_joint else [])]
        hyper = {name: torch.tensor(getattr(now, name), device=device) for name in names}
        limit = torch.tensor(now.max_grad_norm, device=device)
        rate = self.learner.rates(now.learning_rate, {})
        step = self.learner.step(rows, hyper, learning_rate=rate, max_grad_norm=limit)
        metrics: Metrics = {**step.metrics, "loss": step.loss, "grad_norm": step.grad_norm}
        metrics |= self.learner.gradient_norms(step.gradient)
        if self.baseline is not None:
            rate = self.baseline.rates(now.baseline_learning_rate, {})
            fit = self.baseline.steps(learning_rate=rate, max_grad_norm=limit)
            losses = [fit(rows).loss for _ in range(now.baseline_steps)]
            metrics["value_loss"] = losses[-1]
        return metrics
