"""TD-MPC2: plan in a latent model that ends in a learned value (Hansen et al. 2024, 2310.16828).

Reads top to bottom: targets and losses, the algorithm. Options are in `config.py`, a decision in
`plans.py`. TD-MPC (Hansen et al. 2022, arXiv:2203.04955) is the same with other values. Time runs
in arrival form: row t is a frame, with the action that led to it and the reward that it brought.

Departures from the papers are listed in docs/algorithms/tdmpc2.md. The largest: sequences may lead
from one episode into the next, and nothing is learned from what lies behind an end; every step that
terminated counts as such; Discrete actions; one policy's noise for all iterations of a plan.
"""

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from rl_lab.algorithms.base import Algorithm, LearnsFrom, Optimized, Roles, Version
from rl_lab.algorithms.replay import averages, minibatches, torch_optimizer
from rl_lab.algorithms.tdmpc.config import (
    SCALES,
    TDMPC1Config,
    TDMPC2Config,
    decisions_per_episode,
    discount,
    expects_ends,
)
from rl_lab.algorithms.tdmpc.plans import PlanNoise, plan
from rl_lab.algorithms.tdmpc.world_model import LatentModel, Policy, Values, value_of
from rl_lab.core.actions import RandomActions
from rl_lab.core.batch import (
    ACTION_MASK,
    OBS,
    PREVIOUS_ACTION,
    RESET,
    REWARD,
    TERMINATED,
    Action,
    Batch,
    CollectResult,
    Metrics,
    Obs,
)
from rl_lab.core.clock import UpdateBudget
from rl_lab.core.compiled import Compiled
from rl_lab.core.errors import UserError
from rl_lab.core.learner import Learner, all_or_nothing, scalar
from rl_lab.core.protocols import AlgorithmContext, Buffer, Phase, Sequences
from rl_lab.core.schedule import at
from rl_lab.core.spec import Discrete, MultiDiscrete
from rl_lab.core.tree import map_leaves
from rl_lab.networks.mlp import as_vector, vector_size
from rl_lab.planning.guided import GuidedPlan, guided_noise
from rl_lab.planning.plans import shifted, shifted_probabilities

USED = (OBS, PREVIOUS_ACTION, REWARD, RESET, TERMINATED)  # of a batch of sequences
PLAN = "plan"  # of the acting state: the first guess of the next plan
MOST_STEPS = 100  # gradient steps of one call: a burst is spread over a few environment steps
PERCENTILES = (0.05, 0.95)  # whose distance is the scale of values
_FIXED_SEED = 0  # of the random numbers of deterministic plans


# ------------------------------------------------------------------------------ targets and losses


def step_weights(reset: Tensor, rho: Tensor) -> Tensor:
    """How much each step of windows counts [H, B]: rho^t, and 0 from the end of an episode on.

    `reset` [H + 1, B]: step t leads from row t to row t + 1, unless that one is a first frame.
    """
    inside = (~reset[1:]).to(torch.float32).cumprod(0)
    powers = rho ** torch.arange(len(inside), device=reset.device)
    return powers[:, None] * inside


@torch.no_grad()
def td_targets(
    reward: Tensor,
    terminated: Tensor,
    z: Tensor,
    target: LatentModel,
    policy: Policy,
    noise: Tensor,
    pair: Tensor | None,
    gamma: Tensor,
) -> Tensor:
    """Reward and, where a step did not terminate, the least of two target values at its end.

    All [H, B, …]: each step has its own reward and flag; z are the latents of real frames.
    """
    following = value_of(target, target.values, z, policy.sample(z, noise), pair).amin(0)
    return reward + gamma * (~terminated).to(reward.dtype) * following


def model_loss(
    model: LatentModel,
    batch: Batch,
    target: LatentModel,
    policy: Policy,
    draws: Mapping[str, Any],
    scales: Mapping[str, Tensor],
    gamma: Tensor,
    *,
    target_encoder: bool,
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """The joint loss of a window [H + 1, B, …]: latents, rewards, values and terminations.

    From the first frame the model is rolled out with the actions that were taken; `aux` has the
    latents of that rollout, from which the policy learns.
    """
    obs, action, reward = batch[OBS], batch[PREVIOUS_ACTION][1:], batch[REWARD][1:]
    terminated, shifts = batch[TERMINATED][1:], draws["shifts"]
    weight = step_weights(batch[RESET], scales["rho"])
    first, rest = (map_leaves(lambda leaf, s=s: leaf[s], obs) for s in (0, slice(1, None)))
    moved = [map_leaves(lambda leaf, s=s: leaf[s], shifts) or None for s in (0, slice(1, None))]
    with torch.no_grad():
        seen = model.encoder(rest, moved[1])
        wanted = target.encoder(rest, moved[1]) if target_encoder else seen
    goal = td_targets(
        reward, terminated, seen, target, policy, draws["policy"], draws["pair"], gamma
    )
    latents = [model.encoder(first, moved[0])]
    for each in action:
        latents.append(model.dynamics(torch.cat([latents[-1], each], -1)))
    z = torch.stack(latents)
    pairs = torch.cat([z[:-1], action], -1)
    errors = {
        "consistency": (z[1:] - wanted).square().mean(-1),
        "reward": model.error(model.reward(pairs), reward),
        "value": model.error(model.values(pairs, None, draws["dropout"]), goal).mean(0),
    }
    parts = {name: (weight * each).mean() for name, each in errors.items()}
    inside = (weight > 0).to(torch.float32)
    if model.termination is not None:
        each = binary_cross_entropy_with_logits(
            model.ended(z[1:]), terminated.to(torch.float32), reduction="none"
        )
        parts["termination"] = (inside * each).mean()
    loss = torch.zeros((), device=z.device)
    for name, part in parts.items():
        loss = loss + scales[name] * part
    latest = inside[-1].sum().clamp(min=1)
    metrics = {
        **parts,
        "target_value": (inside * goal).sum() / inside.sum().clamp(min=1),
        "open_loop_error": (inside[-1] * errors["consistency"][-1]).sum() / latest,
    }
    return loss, metrics, {"latents": z}


def policy_weights(batch: Batch, rho: Tensor) -> Tensor:
    """How much the latents of a window count [H + 1, B]: rho^t before the end of the episode."""
    steps = step_weights(batch[RESET], torch.ones_like(rho))
    inside = torch.cat([torch.ones_like(steps[:1]), steps]) * (~batch[TERMINATED])
    return rho ** torch.arange(len(inside), device=inside.device)[:, None] * inside


def policy_loss(
    policy: Policy,
    z: Tensor,
    weight: Tensor,
    model: LatentModel,
    noise: Tensor,
    pair: Tensor | None,
    scale: Tensor,
    entropy_scale: Tensor,
    rate: Tensor,
    *,
    pessimistic: bool,
    normalize: bool,
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Values that the policy gives up, in units of their range, and the entropy bonus.

    z [H + 1, B, L] have no gradient, and only the policy learns. `aux` has the updated range.
    """
    action, entropy = policy.explain(z, noise)
    if policy.discrete:  # the expectation: no gradient would pass through a draw
        every = torch.eye(policy.size, device=z.device).expand(*z.shape[:-1], -1, -1)
        rows = z.unsqueeze(-2).expand(*z.shape[:-1], policy.size, -1)
        each = _joined(value_of(model, model.values, rows, every, pair), pessimistic)
        value = (policy.probabilities(z) * each).sum(-1)
    else:
        value = _joined(value_of(model, model.values, z, action, pair), pessimistic)
    new = torch.lerp(scale, value_range(value[0].detach()), rate)
    gain = value / new if normalize else value
    loss = -(weight * (gain + entropy_scale * entropy)).mean()
    metrics = {
        "policy_value": value.detach().mean(),
        "scaled_entropy": entropy.detach().mean(),
        "value_range": new,
    }
    return loss, metrics, {"scale": new}


def _joined(values: Tensor, pessimistic: bool) -> Tensor:
    """Two values [2, …] as one [...]."""
    return values.amin(0) if pessimistic else values.mean(0)


def value_range(values: Tensor) -> Tensor:
    """The distance of the 5th and 95th percentile, at least 1."""
    at_share = torch.tensor(PERCENTILES, device=values.device)
    low, high = torch.quantile(values.flatten(), at_share).unbind()
    return (high - low).clamp(min=1.0)


# --------------------------------------------------------------------------------------- algorithm


class RunningScale:
    """EMA of the range of values, 5th to 95th percentile, at least 1."""

    def __init__(self, device: str) -> None:
        self.value = torch.ones((), device=device)

    def state_dict(self) -> dict[str, Tensor]:
        """The range."""
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """The range, strictly."""
        self.value.copy_(state["value"])


class TDMPC2(Algorithm):
    """TD-MPC2: model-based; plans in a latent model that ends in a learned value."""

    Config: ClassVar[type | None] = TDMPC2Config
    uses_network: ClassVar[bool] = False
    roles: ClassVar[Roles] = {}
    optimized: ClassVar[Optimized] = ("world_model", "policy")
    learns_from: ClassVar[LearnsFrom] = "sequences"
    unit_actions: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = {
        "buffers": {"replay": {"type": "sequence"}},
        "environment": {"num_envs": 1},
    }
    config: TDMPC2Config

    def initialize(self, context: AlgorithmContext) -> None:
        """Build the learners of model and policy, the update budget, and the random streams."""
        super().initialize(context)
        config, spec, device = self.config, context.spec, context.device
        self.space = spec.action
        if isinstance(self.space, MultiDiscrete):
            raise UserError(f"tdmpc2 plans Box and Discrete actions, '{spec.id}' has MultiDiscrete")
        self.discrete = isinstance(self.space, Discrete)
        model = LatentModel(spec, config, ends=expects_ends(config.episodic, spec.id)).to(device)
        policy = Policy(self.space, config).to(device)
        compiled = context.config.compute.compile == "on"
        self.model_learner = Learner(
            model,
            partial(model_loss, target_encoder=config.target_encoder),
            config.optimizer,
            compile=compiled,
            target=True,
            optimizer=torch_optimizer(context, "world_model"),
            rate_patterns={} if config.encoder_rate == 1 else {"encoder.*": 0.0},
        )
        self.policy_learner = Learner(
            policy,
            partial(
                policy_loss,
                pessimistic=config.pessimistic_policy,
                normalize=config.normalize_values,
            ),
            config.policy_optimizer,
            compile=compiled,
            optimizer=torch_optimizer(context, "policy"),
        )
        self.running_scale = RunningScale(device)
        self.budget = UpdateBudget(0 if config.burst else config.learning_starts)
        self.collect_steps = config.train_every
        self.step = 0
        decide = [partial(plan, config=config.planner, explore=each) for each in (False, True)]
        self.plan_collecting = Compiled(decide[1], "the plan") if compiled else decide[1]
        self.plan_deterministic = Compiled(decide[0], "the plan") if compiled else decide[0]
        self.model_rates = lru_cache(maxsize=1)(self._model_rates)
        self.random_actions = RandomActions(self.space, context.rng.numpy("warm_up"))
        self.plan_rng = context.rng.torch("planner", device)
        self.learn_rng = context.rng.torch("learning", device)
        self.not_finite = torch.zeros((), device=device)  # returns of plans since the last update
        self.decisions = 0

    @property
    def model(self) -> LatentModel:
        """The world model with its values."""
        return cast(LatentModel, self.model_learner.module)

    @property
    def target(self) -> LatentModel:
        """The target network."""
        return cast(LatentModel, self.model_learner.target)

    @property
    def policy(self) -> Policy:
        """The policy prior."""
        return cast(Policy, self.policy_learner.module)

    @property
    def gamma(self) -> float:
        """The discount factor now."""
        now = at(self.config, self.step)
        if now.gamma != "auto":
            return now.gamma
        return discount(decisions_per_episode(self.context), now.gamma_max)

    # ------------------------------------------------------------------------------------- acting

    def initial_state(self, batch: int) -> dict[str, Tensor]:
        """No plan: an episode begins without a warm start."""
        size = (batch, self.config.planner.horizon, vector_size(self.space))
        return {PLAN: torch.full(size, self._unknown_action(), device=self.context.device)}

    def collect_step(self, step: int, *, phase: Phase) -> CollectResult:
        """Random actions until `learning_starts`, then planned ones."""
        self.step = step
        if step < self.config.learning_starts:
            return self.collect(self.random_actions, phase)
        return self.collect(self.act, phase)

    @torch.no_grad()
    def act(self, obs: Obs, state: dict[str, Tensor], *, deterministic: bool) -> Action:
        """Plan from the frame. Collected actions have noise of the plan's own spread."""
        config, full = self.config.planner, state[PLAN]
        horizon = config.horizon_at(self.step)
        rng = self._fixed_rng() if deterministic else self.plan_rng
        noise = self.plan_noise(1 if deterministic else len(full), horizon, rng)
        planned = self.plan_deterministic if deterministic else self.plan_collecting
        found = planned(
            self.model,
            self.policy,
            self._unmasked(obs),
            full[:, :horizon],
            noise,
            self._pair(rng),
            scalar(self.gamma, self.context.device),
            scalar(config.min_std_at(self.step), self.context.device),
        )
        if not deterministic:
            self.not_finite += found.bad
            self.decisions += 1
        mean = full.clone()
        mean[:, :horizon] = found.mean
        if not config.warm_start:
            mean.fill_(self._unknown_action())
        after = (shifted_probabilities if self.discrete else shifted)(mean)
        return Action(self._taken(found, obs), {PLAN: after})

    def plan_noise(self, count: int, horizon: int, rng: torch.Generator) -> PlanNoise:
        """The random numbers of plans for `count` environments."""
        config, size = self.config.planner, vector_size(self.space)
        guides = (horizon, count, config.policy_candidates)
        return PlanNoise(
            guided_noise(config, count, horizon, size, rng, discrete=self.discrete),
            self.policy.noise(guides, rng),
            self.policy.noise((count, config.candidates), rng),
        )

    def _taken(self, found: GuidedPlan, obs: Obs) -> Tensor:
        """The action in policy space [N, …]; of discrete ones a legal one."""
        if not self.discrete:
            return found.action.reshape(-1, *self.space.shape)
        if isinstance(obs, Mapping) and ACTION_MASK in obs:
            legal = obs[ACTION_MASK] != 0
            likely = torch.where(legal, found.mean[:, 0] + found.action, -1.0)
            return likely.argmax(-1)
        return found.action.argmax(-1)

    def describe(self, obs: Any, state: Any) -> Mapping[str, Tensor]:
        """The policy prior, without a plan: its action, or the probability of each."""
        mode = self.policy.mode(self.model.encoder(self._unmasked(obs)))
        return {"probabilities": mode} if self.discrete else {"mean": mode}

    def _unmasked(self, obs: Obs) -> Obs:
        """What the encoder reads."""
        if not isinstance(obs, Mapping):
            return obs
        return {name: each for name, each in obs.items() if name != ACTION_MASK}

    def _fixed_rng(self) -> torch.Generator:
        return torch.Generator(self.context.device).manual_seed(_FIXED_SEED)

    def _pair(self, rng: torch.Generator) -> Tensor | None:
        """Two different Qs; None where there are only two."""
        count = self.config.dimensions().critics
        if count == 2:
            return None
        return torch.randperm(count, generator=rng, device=rng.device)[:2]

    def _unknown_action(self) -> float:
        return 1 / self.space.n if isinstance(self.space, Discrete) else 0.0

    # ----------------------------------------------------------------------------------- learning

    def sample(self, buffer: Buffer, *, hook: str, phase: Phase) -> Batch | None:
        """Windows [K, H + 1, B, …] for the gradient steps that are due, a part of many."""
        now, frames = at(self.config, phase["step"]), cast(Sequences, buffer)
        played = phase.get("env_steps", phase["step"])
        if phase["type"] != "offline" and played < now.learning_starts:
            return None  # and then the random steps have allowed gradient steps, too: the burst
        length = now.planner.horizon + 1
        due = self.budget.due(phase, now.replay_ratio, ready=frames.ready(length))
        if due == 0:
            return None
        most = MOST_STEPS // 10 if self.model.encoder.pixels else MOST_STEPS
        found = frames.sequences(now.batch_size, length, min(due, most))
        return {name: found[name] for name in USED}

    def update(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Per batch of windows one step of the model, one of the policy, and of the targets."""
        now, steps = at(self.config, phase["step"]), []
        self.step = phase["step"]
        used = {**batch, OBS: self._unmasked(batch[OBS])}
        used[PREVIOUS_ACTION] = as_vector(self.space, batch[PREVIOUS_ACTION])
        with all_or_nothing(
            "TD-MPC2 update",
            world_model=self.model_learner,
            policy=self.policy_learner,
            running_scale=self.running_scale,
            budget=self.budget,
        ):
            for rows in minibatches(used, self.budget, phase, now.replay_ratio):
                steps.append(self._step(rows, now))
                if self.budget.steps % now.target_every == 0:
                    self.model_learner.follow(now.target_rate)
        metrics = {**averages(steps), "gradient_steps": self.budget.steps}
        if self.decisions:
            metrics["plans_not_finite"] = self.not_finite / self.decisions
            self.not_finite, self.decisions = torch.zeros_like(self.not_finite), 0
        return metrics

    def _step(self, rows: Batch, now: TDMPC2Config) -> Metrics:
        """One gradient step of the model and one of the policy, on windows [H + 1, B, …]."""
        device, rng = self.context.device, self.learn_rng
        length, count = rows[RESET].shape
        gamma, norm = scalar(self.gamma, device), scalar(now.max_grad_norm, device)
        scales = {name: scalar(getattr(now, key), device) for name, key in SCALES.items()}
        draws = {
            "shifts": self.model.encoder.shifts((length, count), now.random_shift, rng),
            "policy": self.policy.noise((length - 1, count), rng),
            "pair": self._pair(rng),
            "dropout": self._dropout((length - 1) * count, now.dropout, rng),
        }
        model = self.model_learner.step(
            rows, self.target, self.policy, draws, scales, gamma,
            learning_rate=self.model_rates(now.learning_rate), max_grad_norm=norm,
        )  # fmt: skip
        policy = self.policy_learner.step(
            model.aux["latents"],
            policy_weights(rows, scales["rho"]),
            self.model,
            self.policy.noise((length, count), rng),
            self._pair(rng),
            self.running_scale.value,
            scalar(now.entropy, device),
            scalar(now.normalizer_rate, device),
            learning_rate=scalar(now.learning_rate, device),
            max_grad_norm=norm,
        )
        self.running_scale.value.copy_(policy.aux["scale"])
        return {
            **model.metrics,
            **policy.metrics,
            "model_loss": model.loss,
            "model_grad_norm": model.grad_norm,
            "policy_loss": policy.loss,
            "policy_grad_norm": policy.grad_norm,
        }

    def _dropout(self, rows: int, share: float, rng: torch.Generator) -> Tensor | None:
        """What the first hidden layer of each Q is multiplied by [Q, rows, units]."""
        if share == 0:
            return None
        values: Values = self.model.values
        empty = torch.empty(values.count, rows, values.units, device=rng.device)
        return empty.bernoulli_(1 - share, generator=rng) / (1 - share)

    def _model_rates(self, learning_rate: float) -> Tensor:
        """The learning rate of each parameter: the encoder's is a share of the others'."""
        special = {"encoder.*": self.config.encoder_rate * learning_rate}
        return self.model_learner.rates(learning_rate, special)


TDMPC = Version(
    TDMPC2,
    "TD-MPC: model-based; plans in a latent model that ends in a learned value; the first version.",
    config=TDMPC1Config,
    phases=[{"name": "train", "hooks": ["collect", "update"]}],
    defaults=TDMPC2.defaults,
)
