"""PPO: clipped policy gradient with GAE (Schulman et al. 2017, arXiv:1707.06347).

Reads top to bottom: config, losses, algorithm. Departures from the paper: advantages may be
normalized; the value loss may be clipped; old log-probs and values are computed by the learner in
one pass over the rollout, so the first ratio is 1 whatever forward collected the data; with a
memory, minibatches are sequences that start from the state which that pass had there.
"""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, cast

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
    STATE,
    TERMINATED,
    TRUNCATED,
    Action,
    Batch,
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
from rl_lab.core.sequences import as_rows, as_sequences, concatenate, evenly, longest_fit, take
from rl_lab.networks.acting import ActingPolicy
from rl_lab.networks.actor_critic import ActorCritic
from rl_lab.networks.normalizer import normalize_mode

OLD_VALUE, ADVANTAGE, RETURN = "old_value", "advantage", "return"


@dataclass(frozen=True, kw_only=True)
class PPOConfig(AlgorithmConfig):
    """Hyperparameters of PPO. Any float may be a schedule."""

    rollout_steps: int = option(128, "vector steps per rollout (T)", low=1)
    epochs: int = option(4, "passes over each rollout", low=1)
    minibatches: int | None = option(
        None, "minibatches per epoch (4 if batch_size is not given)", low=1
    )
    batch_size: int | float | None = option(
        None,
        "rows per minibatch; (0, 1] is a share of the rollout; instead of minibatches",
        above=0,
    )
    sequence_length: int | None = option(
        None, "with a memory: steps that gradients flow through (default: the whole rollout)", low=1
    )
    learning_rate: float = option(3e-4, "step size of the optimizer", above=0)
    learning_rates: dict[str, float] = option(
        {}, "other step sizes by parameter name pattern, e.g. {'critic*': 1e-3}", low=0
    )
    gamma: float = option(0.99, "discount factor", low=0, high=1)
    gae_lambda: float = option(
        0.95, "GAE's bias-variance trade-off; 1 is Monte Carlo", low=0, high=1
    )
    clip_range: float = option(0.2, "how far the probability ratio may move", above=0)
    value_clip: float | None = option(
        None, "how far a value may move per update (off if null)", above=0
    )
    value_coefficient: float = option(0.5, "weight of the value loss")
    entropy_coefficient: float = option(0.0, "weight of the entropy bonus")
    reconstruction_coefficient: float = option(
        0.0, "with a memory: weight of the loss of reconstructing the observation from it", low=0
    )
    max_grad_norm: float = option(0.5, "largest norm of a gradient", above=0)
    target_kl: float | None = option(
        None, "stop a rollout's updates beyond this KL (off if null)", above=0
    )
    normalize_advantages: Literal["batch", "rollout", "off"] = option(
        "batch", "center and scale advantages per minibatch, per rollout, or not"
    )
    optimizer: OptimizerConfig = section(OptimizerConfig, "the optimizer's own settings")

    def __post_init__(self) -> None:
        """Refuse values that cannot work, before anything is built."""
        super().__post_init__()
        if self.minibatches is not None and self.batch_size is not None:
            raise ValueError("give minibatches or batch_size, not both")

    def check(self, run: RunConfig) -> list[str]:
        """Problems that only show together with the rest of the configuration."""
        rows = self.rollout_steps * run.environment.num_envs
        length = self.sequence_steps(run.network.memory.type != "none", run.environment.num_envs)
        if self.reconstruction_coefficient != 0 and run.network.memory.type == "none":
            return ["reconstruction_coefficient needs a memory, such as network.memory.type=trxl"]
        if self.rollout_steps % length:
            return [f"sequence_length {length} does not divide rollout_steps {self.rollout_steps}"]
        if self.batch_size is not None and not 0 < self.batch_size <= rows:
            return [f"batch_size {self.batch_size} is not within the rollout's {rows} rows"]
        count = self.minibatch_count(rows)
        if rows % count or (rows // length) % count:
            rollout = f"{self.rollout_steps} steps x {run.environment.num_envs} environments"
            parts = (
                f"{rows} rows" if length == 1 else f"{rows // length} sequences of {length} rows"
            )
            return [f"a rollout of {rollout} has {parts}: not divisible into {count} minibatches"]
        if self.batch_size is not None and rows != count * self.batch_rows(rows):
            return [f"batch_size {self.batch_size} does not divide the rollout's {rows} rows"]
        return []

    def gradient_steps(self, run: RunConfig) -> float:
        """Gradient steps of a whole run: what compiling them would have to repay."""
        rows = self.rollout_steps * run.environment.num_envs
        return run.training.total_timesteps / rows * self.epochs * self.minibatch_count(rows)

    def rows_per_step(self, run: RunConfig) -> int:
        """Rows of one minibatch."""
        rows = self.rollout_steps * run.environment.num_envs
        return rows // self.minibatch_count(rows)

    def with_fewer_minibatches(self) -> Iterator["PPOConfig"]:
        """One minibatch less at a time, down to one."""
        for count in range(self.minibatches or 4, 0, -1):
            yield replace(self, minibatches=count, batch_size=None)

    def choices(self, run: RunConfig) -> dict[str, Any]:
        """Options that the algorithm chooses where the user sets none."""
        length = self.sequence_steps(run.network.memory.type != "none", run.environment.num_envs)
        said = length in (1, self.rollout_steps, self.sequence_length)
        return {} if said else {"sequence_length": length}

    def sequence_steps(self, has_memory: bool, num_envs: int) -> int:
        """Length of the sequences in a minibatch; single rows without a memory."""
        if not has_memory or self.sequence_length is not None:
            return (self.sequence_length or 1) if has_memory else 1
        count = self.minibatch_count(self.rollout_steps * num_envs)
        return longest_fit(self.rollout_steps, num_envs, count)

    def last_rollout(self, steps: int, has_memory: bool, num_envs: int) -> int:
        """Its vector steps, at least `steps`. With a memory: equal sequences, a minibatch or more.

        Minibatches that are a share of the rollout shrink with it.
        """
        if not has_memory:
            return steps
        if self.batch_size is None or self.batch_size > 1:
            count = self.minibatch_count(self.rollout_steps * num_envs)
            steps = max(steps, -(-self.rollout_steps // count))
        length = evenly(steps, self.sequence_steps(has_memory, num_envs))
        return min(-(-steps // length) * length, self.rollout_steps)

    def equal_minibatches(self, rows: int, pieces: int, usual: int) -> int:
        """How many; in a last rollout of fewer rows than `usual`, none smaller than before."""
        most = max(rows * self.minibatch_count(usual) // usual, 1)
        return next(count for count in range(most, 0, -1) if pieces % count == 0)

    def batch_rows(self, rows: int) -> int:
        """Rows per minibatch when `batch_size` is given."""
        assert self.batch_size is not None
        return max(int(rows * self.batch_size), 1) if self.batch_size <= 1 else int(self.batch_size)

    def minibatch_count(self, rows: int) -> int:
        """Minibatches per epoch."""
        given = self.batch_size is not None
        return max(rows // self.batch_rows(rows), 1) if given else self.minibatches or 4


def clipped_surrogate(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip_range: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """The pessimistic policy loss (eq. 7), and how far the policy has moved."""
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    # min(r A, clip(r) A) is min(r A, what A is worth at the edge of the range on its side).
    edge = advantage * (1 + clip_range * advantage.sign())
    loss = -torch.minimum(ratio * advantage, edge).mean()
    with torch.no_grad():
        change = ratio - 1
        distance = change.abs()
        return loss, {
            "approx_kl": (change - log_ratio).mean(),
            "clip_fraction": (distance > clip_range).float().mean(),
            "ratio_error": distance.amax(),
        }


def value_loss(
    value: Tensor, old_value: Tensor | None, target: Tensor, value_clip: Tensor | None
) -> Tensor:
    """Half the squared error; with a clip, the worse of the free and the limited prediction."""
    error = (value - target).square()
    if value_clip is not None and old_value is not None:
        limited = old_value + (value - old_value).clamp(-value_clip, value_clip)
        error = torch.maximum(error, (limited - target).square())
    return 0.5 * error.mean()


def normalize(advantage: Tensor) -> Tensor:
    """Zero mean and unit deviation; all zeros when there is nothing to tell apart."""
    centered = advantage - advantage.mean()
    return centered / (centered.square().mean().sqrt() + 1e-8)


def ppo_loss(
    model: ActorCritic,
    index: Tensor,
    rollout: Batch,
    hyper: dict[str, Tensor],
    *,
    normalize_batch: bool,
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """The objective of one minibatch (eq. 9): the rows, or with a memory the sequences, `index`."""
    rows = take(rollout, index, axis=int(model.has_memory))
    policy, value, reconstruction = model(rows[OBS], rows[STATE], rows.get(RESET))
    advantage = normalize(rows[ADVANTAGE]) if normalize_batch else rows[ADVANTAGE]
    policy_loss, metrics = clipped_surrogate(
        policy.log_prob(rows[ACTION]), rows[LOG_PROB], advantage, hyper["clip_range"]
    )
    critic_loss = value_loss(value, rows.get(OLD_VALUE), rows[RETURN], hyper.get("value_clip"))
    loss = policy_loss + hyper["value_coefficient"] * critic_loss
    bonus = hyper.get("entropy_coefficient")
    with torch.no_grad() if bonus is None else nullcontext():
        entropy = policy.entropy().mean()
    if bonus is not None:
        loss = loss - bonus * entropy
    parts = {"policy_loss": policy_loss, "value_loss": critic_loss, "entropy": entropy}
    if reconstruction is not None:
        loss = loss + hyper["reconstruction_coefficient"] * reconstruction
        parts["reconstruction_loss"] = reconstruction
    return loss, parts | metrics, {}


class PPO(Algorithm):
    """Proximal policy optimization: on-policy actor-critic with a clipped objective and GAE."""

    Config: ClassVar[type | None] = PPOConfig
    roles: ClassVar[Roles] = {}
    optimized: ClassVar[Optimized] = ()
    old_names: ClassVar[Mapping[str, str]] = {
        "learner.module": "model",
        "learner.optimizer": "optimizer",
    }
    config: PPOConfig

    def initialize(self, context: AlgorithmContext) -> None:
        """Build the network with its optimizer, and bind the streams of random numbers."""
        super().initialize(context)
        run, config = context.config, self.config
        mode = normalize_mode(run.environment.normalize_obs)
        reconstructs = config.reconstruction_coefficient != 0
        model = ActorCritic(run.network, context.spec, mode, reconstructs=reconstructs)
        self.learner = Learner(
            model.to(context.device),
            partial(ppo_loss, normalize_batch=config.normalize_advantages == "batch"),
            config.optimizer,
            compile=run.compute.compile == "on",
            rate_patterns=config.learning_rates,
        )
        self.policy = ActingPolicy.of(model, context.rng, context.device)
        self.acts_on_arrays = self.policy.numpy is not None
        self.collect_steps = config.rollout_steps
        self.reward_scale = (
            RewardNormalizer(context.train_environment.num_envs)
            if run.environment.normalize_reward
            else None
        )
        self.order_rng = context.rng.torch("minibatches")

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
        """The distribution over actions, and the value."""
        policy, value = self.model.policy_and_value(obs, state)
        return {**described(policy), "value": value}

    def initial_state(self, batch: int) -> Any:
        """What the memories start an episode with; None without one."""
        return self.model.initial_state(batch) if self.model.has_memory else None

    def pure_policy(self) -> Policy | None:
        """`act` as a pure function, unless a subclass acts in another way."""
        if type(self).act is not PPO.act:
            return None
        return self.policy.pure(self.context.train_environment.num_envs)

    def shortened(self, steps: int) -> int:
        """The last rollout of a run."""
        envs = self.context.train_environment.num_envs
        return super().shortened(self.config.last_rollout(steps, self.model.has_memory, envs))

    def update(self, batch: Batch, *, phase: Phase) -> Metrics:
        """All epochs on one rollout [T, N]. On a bad number everything is as it was before."""
        if LOG_PROB not in batch:
            raise UserError(f"phase '{phase['name']}': PPO learns from its own actions only")
        now = at(self.config, phase["step"])
        normalizer = self.model.normalizer
        is_first = normalizer.is_empty  # raw frames may be of any size: normalize the first ones
        with all_or_nothing(
            "PPO update",
            policy=self.learner,
            order=self.order_rng,
            statistics=normalizer if is_first else None,
            reward_scale=self.reward_scale,
        ):
            if is_first:
                normalizer.update_statistics(batch[OBS])
            rows, metrics = self._credit(batch, now)
            metrics |= self._learn(rows, now)
        if is_first:  # the actor saw raw frames
            del metrics["policy_drift"]
        else:
            normalizer.update_statistics(batch[OBS])
        return {**metrics, **self.policy.log_std()}

    @torch.no_grad()
    def _credit(self, batch: Batch, now: PPOConfig) -> tuple[Batch, Metrics]:
        """One learner pass over the rollout: old log-probs, values, advantages; as sequences."""
        ended = batch[TERMINATED] | batch[TRUNCATED]
        has_memory, length = self.model.has_memory, 1
        if has_memory:
            length = evenly(len(ended), now.sequence_steps(has_memory, ended.shape[1]))
        seen = self.model.unroll(
            batch[OBS], batch[ACTION], batch[NEXT_OBS], batch[STATE], batch[RESET], ended, length
        )
        reward = batch[REWARD]
        if self.reward_scale is not None:
            reset = batch[RESET].cpu().numpy()
            scaled = self.reward_scale(reward.cpu().numpy(), reset, now.gamma)
            reward = torch.from_numpy(scaled).to(reward.device)
        advantage = gae(
            reward,
            seen.value,
            seen.next_value,
            batch[TERMINATED],
            batch[TRUNCATED],
            gamma=now.gamma,
            gae_lambda=now.gae_lambda,
        )
        target = advantage + seen.value
        metrics = {
            "explained_variance": explained_variance(seen.value, target),
            "policy_drift": (seen.log_prob - batch[LOG_PROB]).abs().amax(),
            "learning_rate": now.learning_rate,
            "clip_range": now.clip_range,
        }
        if now.normalize_advantages == "rollout":
            advantage = normalize(advantage)
        rows = {
            OBS: batch[OBS],
            ACTION: batch[ACTION],
            LOG_PROB: seen.log_prob,
            ADVANTAGE: advantage,
            RETURN: target,
        }
        if now.value_clip is not None:
            rows[OLD_VALUE] = seen.value
        if not has_memory:
            return {**as_rows(rows), STATE: {}}, metrics
        rows[RESET] = batch[RESET]
        return {**as_sequences(rows, length), STATE: concatenate(seen.states)}, metrics

    def _learn(self, rows: Batch, now: PPOConfig) -> Metrics:
        """Epochs of shuffled minibatches, stopped early by `target_kl`."""
        device = rows[ADVANTAGE].device
        hyper = {
            name: torch.tensor(value, device=device)
            for name in ("clip_range", "value_clip", "value_coefficient", "entropy_coefficient")
            if (value := getattr(now, name)) is not None
        }
        if self.model.decoders:
            weight = torch.tensor(now.reconstruction_coefficient, device=device)
            hyper["reconstruction_coefficient"] = weight
        if self.config.entropy_coefficient == 0:
            del hyper["entropy_coefficient"]  # no bonus, no gradient of it
        rate = self.learner.rates(now.learning_rate, now.learning_rates)
        limit = torch.tensor(now.max_grad_norm, device=device)
        step_on = self.learner.steps(rows, hyper, learning_rate=rate, max_grad_norm=limit)
        steps: list[Metrics] = []
        pieces = rows[ADVANTAGE].shape[-1]  # single rows, or sequences
        usual = now.rollout_steps * self.context.train_environment.num_envs
        count = now.equal_minibatches(rows[ADVANTAGE].numel(), pieces, usual)
        for _ in range(now.epochs):
            order = torch.randperm(pieces, generator=self.order_rng).to(device)
            for index in order.chunk(count):
                step = step_on(index)
                steps.append({**step.metrics, "loss": step.loss, "grad_norm": step.grad_norm})
                if now.target_kl is not None and step.metrics["approx_kl"] > now.target_kl:
                    break
            else:
                continue
            break
        averages = {name: torch.stack([s[name] for s in steps]).mean() for name in steps[0]}
        return {
            **averages,
            **self.learner.gradient_norms(step.gradient),
            "ratio_error": steps[0]["ratio_error"],  # of the first minibatch: must be 0
            "gradient_steps": len(steps),
        }
