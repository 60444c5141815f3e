"""Dreamer: learn a world model from replayed sequences, and a policy inside it.

Reads top to bottom: configs of v3, v2 and v1 (Hafner et al. 2023, 2021, 2020), the loss of the
world model, the losses of actor and critic, the algorithm. Time runs in arrival form: row t is a
frame, with the action that led to it and the reward that came with it.

Departures from the papers are listed in docs/algorithms/dreamer.md. The largest: free nats are per
step in all versions; v1 and v2 also differentiate through what the policy sees; v2's policy over a
Box is a normal with a bounded mean; features are cut off from v3's value loss on replayed rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor

from rl_lab.algorithms.base import Algorithm, LearnsFrom, Optimized, Roles, Version
from rl_lab.algorithms.dreamer.actor import LatentActor
from rl_lab.algorithms.dreamer.imagination import (
    ActorCriticBatch,
    CriticTargets,
    ReturnPercentiles,
    Returns,
    actor_critic_batch,
    replayed_targets,
)
from rl_lab.algorithms.dreamer.open_loop import (
    LatentImagination,
    newest_episode_pictures,
    predict,
)
from rl_lab.algorithms.dreamer.rssm import DETER_STOCH, RSSM, LatentState
from rl_lab.algorithms.dreamer.world_config import WorldConfig
from rl_lab.algorithms.dreamer.world_model import WORLD_PARTS, Scalar, WorldModel
from rl_lab.algorithms.replay import (
    BUDGET_NAMES,
    averages,
    require_not_negative,
    require_positive,
    require_probabilities,
    sample_windows,
    step_sizes,
    torch_optimizer,
)
from rl_lab.core.actions import RandomActions
from rl_lab.core.batch import (
    ACTION_MASK,
    INDEX,
    LATENT,
    RESET,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Action,
    Batch,
    CollectResult,
    Metrics,
    Obs,
)
from rl_lab.core.clock import UpdateBudget
from rl_lab.core.compiled import Compiled
from rl_lab.core.learner import Learner, Loss, Update, all_or_nothing, scalar
from rl_lab.core.optim import LaPropConfig, OptimizerConfig
from rl_lab.core.options import option, section, with_defaults
from rl_lab.core.picture import Picture
from rl_lab.core.protocols import AlgorithmContext, Buffer, Phase, Sequences
from rl_lab.core.returns import lambda_return
from rl_lab.core.schedule import at, extremes
from rl_lab.core.spec import Box
from rl_lab.core.tree import picked, rows_at
from rl_lab.networks.mlp import as_vector, vector_size

DREAMER_PARTS = {  # roles of `components:`, and what is called of each
    **WORLD_PARTS,
    "actor": ("draw", "mode", "evaluate_actions", "to_action", "noise", "is_box", "squashed"),
    "critic": ("mean", "loss"),
    "returns": (),
}
MODEL_SCALES = {
    "dynamics": "dynamics_scale",
    "posterior": "posterior_scale",
    "free_nats": "free_nats",
    "reward": "reward_scale",
    "continue": "continue_scale",
}
RETURN_SCALES = {
    "gamma": "gamma",
    "lambda": "return_lambda",
    "normalizer": "normalizer_rate",
    "replay": "replay_value_scale",
    "slow": "slow_regularizer",
}
# Today's names of saved state, and those in checkpoints of earlier versions.
OLD_NAMES = {
    "world_learner.module": "world",
    "world_learner.optimizer": "world_optimizer",
    "actor_learner.module": "actor",
    "actor_learner.optimizer": "actor_optimizer",
    "critic_learner.module": "critic",
    "critic_learner.target": "slow_critic",
    "critic_learner.optimizer": "critic_optimizer",
    "return_percentiles.value": "values.spread",
    **BUDGET_NAMES,
    "controller_budget.steps": "values.controller_steps",
    "controller_budget.seen": "controls_earned.seen",
    "controller_budget.parts": "controls_earned.parts",
}
FRAME = "frame"  # of a policy's memory: the number of frames since the episode began
FIXED = 1024  # frames of an episode with their own fixed noise in deterministic decisions
FROM_REPLAY = (REWARD, TERMINATED, TRUNCATED, RESET)  # what actor and critic use of a window
OPEN_LOOP_STEPS = 15  # frames of a picture's open-loop prediction, at most


@dataclass(frozen=True, kw_only=True)
class DreamerV3Config(WorldConfig):
    """Dreamer v3, small enough for a CPU. Any float may be a schedule."""

    keeps_states: ClassVar[bool] = True
    replay_ratio: float = option(
        0.5,
        "gradient steps per environment step, fractions are carried; 0: one per call of the hook",
    )
    learning_starts: int = option(500, "environment steps of random actions before learning")
    model_rate: float = option(1e-3, "step size for the world model")
    actor_rate: float = option(3e-4, "step size for the policy")
    critic_rate: float = option(3e-4, "step size for the values")
    max_grad_norm: float = option(1000.0, "largest norm of a gradient")
    optimizer: LaPropConfig = section(LaPropConfig, "the optimizer's own settings")
    dynamics_scale: float = option(1.0, "weight of the KL that trains the prior")
    posterior_scale: float = option(0.1, "weight of the KL that keeps the posterior predictable")
    free_nats: float = option(
        1.0, "KL per step, summed over latents, below which it has no gradient"
    )
    reward_scale: float = option(1.0, "weight of the loss of rewards")
    gamma: float = option(0.997, "discount factor")
    horizon: int = option(15, "steps of an imagined rollout")
    return_lambda: float = option(0.95, "λ of the returns of imagined rollouts")
    actor_gradient: Literal["auto", "reinforce", "dynamics"] = option(
        "reinforce", "how the policy learns; auto: dynamics for a Box, reinforce for indices"
    )
    squashed: bool = option(
        False, "a Box policy is squashed by tanh; needs actor_gradient dynamics"
    )
    entropy: float = option(3e-4, "weight of the policy's entropy")
    actor_unimix: float = option(
        0.01, "share of the uniform distribution in policies of indices", fixed=True
    )
    exploration_noise: float = option(
        0.0, "deviation of noise on collected actions; discrete: probability of a random one"
    )
    normalize_returns: bool = option(
        True, "divide returns by the distance of their 5th and 95th percentile, if above 1"
    )
    normalizer_rate: float = option(0.01, "EMA step of these percentiles")
    slow_every: int = option(1, "gradient steps between updates of the critic's target network")
    slow_rate: float = option(0.02, "EMA step of that target network: 1 copies")
    slow_target: bool = option(False, "bootstrap returns from the target network")
    slow_regularizer: float = option(
        1.0, "weight of the distance between values and those of the target network"
    )
    replay_value_scale: float = option(0.3, "weight of the value loss on replayed rows")

    def __post_init__(self) -> None:
        """Refuse values that cannot work, before anything is built."""
        super().__post_init__()
        require_positive(self, "model_rate", "actor_rate", "critic_rate")
        weights = ("entropy", "exploration_noise", "slow_regularizer", "replay_value_scale")
        require_not_negative(self, *MODEL_SCALES.values(), *weights)
        for name, least in {"horizon": 1, "slow_every": 1}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        require_probabilities(self, "return_lambda", "actor_unimix", "normalizer_rate", "slow_rate")
        if self.squashed and self.actor_gradient == "reinforce":
            raise ValueError("squashed needs actor_gradient dynamics: it has no exact density")
        if self.squashed and extremes(self.entropy)[1] > 0:
            raise ValueError("entropy has no use with squashed: it is not known in closed form")


DreamerV2Config = with_defaults(
    DreamerV3Config, "DreamerV2Config", "Dreamer v2. Any float may be a schedule.",
    activation="elu", norm="layer", unimix=0.0, symlog_inputs=False, two_hot=False,
    optimizer=OptimizerConfig, max_grad_norm=100.0, dynamics_scale=0.8, posterior_scale=0.2,
    gamma=0.99, actor_gradient="auto", entropy=2e-3, actor_unimix=0.0, normalize_returns=False,
    slow_every=100, slow_rate=1.0, slow_target=True, slow_regularizer=0.0, replay_value_scale=0.0,
)  # fmt: skip
DreamerV1Config = with_defaults(
    DreamerV2Config, "DreamerV1Config", "Dreamer v1. Any float may be a schedule.",
    stoch=30, classes=0, norm="none", dynamics_scale=1.0, posterior_scale=1.0, free_nats=3.0,
    actor_gradient="dynamics", squashed=True, entropy=0.0, exploration_noise=0.3,
    slow_target=False,
)  # fmt: skip


def balanced_kl(
    world: WorldModel, posterior: Tensor, prior: Tensor, free_nats: Tensor
) -> tuple[Tensor, Tensor]:
    """KL [T, B] with a gradient for the prior only, and with one for the posterior only.

    Latents are summed first; a sum below the free nats is replaced by them and has no gradient.
    """
    to_prior = world.rssm.kl(posterior.detach(), prior)
    to_posterior = world.rssm.kl(posterior, prior.detach())
    return torch.maximum(to_prior, free_nats), torch.maximum(to_posterior, free_nats)


def world_model_loss(
    world: WorldModel, batch: Batch, start: LatentState, noise: Tensor, scales: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Prediction losses and KL of sequences [T, B, …]; `aux` has the latent states [T, B, …]."""
    seen = world.prediction_losses(start, batch, noise)
    kl = balanced_kl(world, seen.posterior, seen.prior, scales["free_nats"])
    means = {name: each.mean() for name, each in seen.losses.items()}
    loss = scales["dynamics"] * kl[0].mean() + scales["posterior"] * kl[1].mean()
    for name, mean in means.items():
        loss = loss + (scales[name] * mean if name in scales else mean)
    plain = world.rssm.kl(seen.posterior, seen.prior).mean()
    return loss, {**means, "kl": plain}, seen.states


def reinforce_loss(
    actor: LatentActor,
    features: Tensor,
    action: Tensor,
    advantage: Tensor,
    weight: Tensor,
    entropy_scale: Tensor,
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Policy gradient by the score function: log π(a) · advantage, and the entropy bonus."""
    log_prob, entropy = actor.evaluate_actions(features, action)
    loss = -(weight * (log_prob * advantage + entropy_scale * entropy)).mean()
    return loss, {"entropy": entropy.mean()}, {}


def dynamics_loss(
    actor: LatentActor,
    entropy_scale: Tensor,
    *imagination: object,
    imagine: Callable[..., ActorCriticBatch],
    normalize_returns: bool,
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Policy gradient through the world model: the returns of an imagined rollout.

    `aux` has the critic's targets and the updated percentiles of returns.
    """
    batch = imagine(actor, *imagination)
    targets = batch.critic
    gain = targets.returns
    if normalize_returns:
        gain = normalized(gain, batch.percentiles)
    metrics = {}
    if not actor.squashed:  # a squashed one has no entropy in closed form
        entropy = actor.evaluate_actions(targets.features.detach(), batch.action.detach())[1]
        gain = gain + entropy_scale * entropy
        metrics["entropy"] = entropy.mean()
    aux = {name: each for name, each in targets._asdict().items() if each is not None}
    return -(targets.weight * gain).mean(), metrics, {**aux, "percentiles": batch.percentiles}


def critic_loss(
    critic: Scalar,
    imagined: CriticTargets,
    rows: Batch | None,
    scales: dict[str, Tensor],
    returns: Returns = lambda_return,
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Regression on returns of imagined and of replayed rows, regularized to the target network."""
    parts: list[tuple[CriticTargets, float | Tensor]] = [(imagined, 1.0)]
    if rows is not None:
        gamma, lambda_ = scales["gamma"], scales["lambda"]
        replayed = replayed_targets(rows, imagined, gamma=gamma, lambda_=lambda_, returns=returns)
        parts.append((replayed, scales["replay"]))
    loss = torch.zeros((), device=imagined.returns.device)
    for targets, scale in parts:
        if targets.target_values is None:
            error = critic.loss(targets.features, targets.returns)[0]
        else:
            error, distance = critic.loss(targets.features, targets.returns, targets.target_values)
            error = error + scales["slow"] * distance
        loss = loss + scale * (targets.weight * error).mean()
    return loss, {}, {}


def normalized(gain: Tensor, percentiles: Tensor) -> Tensor:
    """Returns or advantages divided by the distance of the percentiles, if that is above 1."""
    return gain / (percentiles[1] - percentiles[0]).clamp(min=1.0)


class Dreamer(Algorithm):
    """Dreamer v3: model-based actor-critic that learns in imagination; discrete latents, symlog."""

    Config: ClassVar[type | None] = DreamerV3Config
    uses_network: ClassVar[bool] = False
    roles: ClassVar[Roles] = DREAMER_PARTS
    optimized: ClassVar[Optimized] = ("world_model", "actor", "critic")
    learns_from: ClassVar[LearnsFrom] = "sequences"
    unit_actions: ClassVar[bool] = True
    phases: ClassVar[list[dict[str, Any]]] = [{"name": "train", "hooks": ["collect", "update"]}]
    defaults: ClassVar[Mapping[str, Any]] = {
        "buffers": {"replay": {"type": "sequence", "online": True, "latents": True}}
    }
    old_names: ClassVar[Mapping[str, str]] = OLD_NAMES
    config: DreamerV3Config

    def initialize(self, context: AlgorithmContext) -> None:
        """Build the learners of world model, actor and critic, the budgets and random streams."""
        super().initialize(context)
        config, space, parts = self.config, context.spec.action, context.components
        is_box, returns = isinstance(space, Box), parts.get("returns", lambda_return)
        world = WorldModel(config, context.spec, parts).to(context.device)
        actor = parts.get("actor", LatentActor)(
            world.feature_dim,
            space,
            config,
            unimix=config.actor_unimix,
            squashed=config.squashed and is_box,
        ).to(context.device)
        critic = parts.get("critic", Scalar)(world.feature_dim, config).to(context.device)
        imagine = partial(
            actor_critic_batch,
            returns=returns,
            slow_target=config.slow_target,
            slow_regularizer=bool(config.slow_regularizer),
            normalize_returns=config.normalize_returns,
            ends=config.predicts_ends,
        )
        compiled = context.config.compute.compile == "on"
        self.dynamics_gradient = config.actor_gradient == "dynamics" or (
            config.actor_gradient == "auto" and is_box
        )
        actor_loss: Loss = reinforce_loss
        if self.dynamics_gradient:
            normalize = config.normalize_returns
            actor_loss = partial(dynamics_loss, imagine=imagine, normalize_returns=normalize)
        else:
            self.imagine_batch = Compiled(imagine, "imagination") if compiled else imagine

        def learner(name: str, module: torch.nn.Module, loss: Loss, target: bool) -> Learner:
            factory = torch_optimizer(context, name)
            return Learner(
                module, loss, config.optimizer, compile=compiled, target=target, optimizer=factory
            )

        self.world_learner = learner("world_model", world, world_model_loss, target=False)
        self.actor_learner = learner("actor", actor, actor_loss, target=False)
        regression = partial(critic_loss, returns=returns)
        self.critic_learner = learner("critic", critic, regression, target=True)
        self.return_percentiles = ReturnPercentiles(context.device)
        self.budget = UpdateBudget(config.learning_starts)  # of the world model, and of `update`
        self.controller_budget = UpdateBudget(config.learning_starts)
        self.starts: Batch = {}  # states of the last windows, in which imagination starts
        self.collect_steps = config.train_every
        self.exploration_noise = at(config, 0).exploration_noise
        self.random_actions = RandomActions(space, context.rng.numpy("warm_up"))
        self.model_rng = context.rng.torch("world_model", context.device)
        self.imagination_rng = context.rng.torch("dream", context.device)
        self.action_rng = context.rng.torch("action", context.device)
        constant = torch.Generator(context.device).manual_seed(0)
        self.fixed_noise = partial(rows_at, world.noise((FIXED,), constant))

    @property
    def world(self) -> WorldModel:
        """The world model."""
        return cast(WorldModel, self.world_learner.module)

    @property
    def actor(self) -> LatentActor:
        """The policy."""
        return cast(LatentActor, self.actor_learner.module)

    @property
    def critic(self) -> Scalar:
        """The values."""
        return cast(Scalar, self.critic_learner.module)

    @property
    def target_critic(self) -> Scalar:
        """The target network of the critic."""
        return cast(Scalar, self.critic_learner.target)

    # ------------------------------------------------------------------------------------- acting

    def initial_state(self, batch: int) -> LatentState:
        """An empty memory, a previous action of zeros, and frame number 0."""
        device = self.context.device
        action = torch.zeros(batch, vector_size(self.context.spec.action), device=device)
        frame = torch.zeros(batch, dtype=torch.int64, device=device)
        return {**self.world.rssm.initial(batch, device), "action": action, FRAME: frame}

    def collect_step(self, step: int, *, phase: Phase) -> CollectResult:
        """Random actions until `learning_starts`, then the policy's with exploration noise."""
        self.exploration_noise = at(self.config, step).exploration_noise
        if step < self.config.learning_starts:
            return self.collect(self.random_actions, phase)
        return self.collect(self.act, phase)

    @torch.no_grad()
    def act(self, obs: Obs, state: LatentState, *, deterministic: bool) -> Action:
        """Update the latent state with the frame, then sample an action or take its mode.

        Deterministic decisions sample latents too, by noise that depends on the frame's number in
        the episode: the modes of all latents together may be a state that the policy never saw.
        """
        embed = self.world.embed(obs)
        count = len(embed)
        no_reset = torch.zeros(count, dtype=torch.bool, device=embed.device)
        if deterministic:
            noise = self.fixed_noise(state[FRAME])
        else:
            noise = self.world.noise((count,), self.action_rng)
        latent, _ = self.world.rssm.observe(state, state["action"], embed, no_reset, noise)
        features = self.world.rssm.features(latent)
        mask = obs.get(ACTION_MASK) if isinstance(obs, Mapping) else None
        if deterministic:
            vector = self.actor.mode(features, mask)
        else:
            vector = self.actor.draw(features, self.actor.noise((count,), self.action_rng), mask)
            vector = self._explored(vector, obs)
        after = {**latent, "action": vector, FRAME: state[FRAME] + 1}
        return Action(self.actor.to_action(vector), after, self._stored_latents(latent))

    def _explored(self, vector: Tensor, obs: Obs) -> Tensor:
        """Action vectors with exploration noise, or some of them replaced by random actions."""
        if not self.exploration_noise:
            return vector
        if self.actor.is_box:
            noise = torch.empty_like(vector).normal_(generator=self.action_rng)
            return (vector + self.exploration_noise * noise).clamp(-1, 1)
        random = torch.as_tensor(self.random_actions(obs, None, deterministic=False).action)
        drawn = torch.rand(len(vector), 1, generator=self.action_rng, device=vector.device)
        other = as_vector(self.context.spec.action, random.to(vector.device))
        return torch.where(drawn < self.exploration_noise, other, vector)

    def _stored_latents(self, latent: LatentState) -> dict[str, Tensor]:
        """The latent states after each frame, for a buffer that stores them."""
        buffers = self.context.config.buffers.values()
        if not any(getattr(each, "latents", False) for each in buffers):
            return {}
        return {LATENT: torch.cat([latent[key] for key in DETER_STOCH], -1)}

    # ----------------------------------------------------------------------------------- learning

    def sample(self, buffer: Buffer, *, hook: str, phase: Phase) -> Batch | None:
        """Windows [K, T, B, …]; for `update_controller` the latent states of windows."""
        now = at(self.config, phase["step"])
        controls = hook == "update_controller"
        budget = self.controller_budget if controls else self.budget
        if controls and self.starts:  # as many as the world model has just learned from
            ready = cast(Sequences, buffer).ready(now.batch_length)
            budget.due(phase, now.replay_ratio, ready=ready)
            return self.starts
        sizes = {"batch_size": now.batch_size, "batch_length": now.batch_length}
        windows = sample_windows(buffer, budget, phase, now.replay_ratio, **sizes)
        return self._observed(windows) if controls and windows is not None else windows

    def update(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Per batch of windows one step of the world model, then one of actor and critic."""
        now = at(self.config, phase["step"])
        steps, states = [], []
        with all_or_nothing("Dreamer update", **self._trained()):
            for windows, start, noise in self._windows(batch, phase, now):
                model = self._world_model_step(windows, start, noise, now)
                self.controller_budget.steps += 1
                behavior = self._actor_critic_step({**windows, **model.aux}, now)
                steps.append({**_named(model, "model"), **behavior})
                states.append(model.aux)
        self._store_states(batch, states, phase)
        self.starts = {}
        return {**averages(steps), "gradient_steps": self.budget.steps}

    def update_world_model(self, batch: Batch, *, phase: Phase) -> Metrics:
        """One step per batch of windows; their states are kept for `update_controller`."""
        now = at(self.config, phase["step"])
        steps, states = [], []
        with all_or_nothing("Dreamer update", **self._trained()):
            for windows, start, noise in self._windows(batch, phase, now):
                model = self._world_model_step(windows, start, noise, now)
                steps.append(_named(model, "model"))
                states.append(model.aux)
        found = self._store_states(batch, states, phase)
        self.starts = {key: batch[key] for key in FROM_REPLAY} | found
        return {**averages(steps), "gradient_steps": self.budget.steps}

    def update_controller(self, batch: Batch, *, phase: Phase) -> Metrics:
        """One step of actor and critic per set of states, in imagination that starts there."""
        now = at(self.config, phase["step"])
        count, steps = len(batch[RESET]), []
        with all_or_nothing("Dreamer update", **self._trained()):
            for index in self.controller_budget.take(count, phase, now.replay_ratio):
                steps.append(self._actor_critic_step(picked(batch, index), now))
        self.starts = {}
        return averages(steps)

    def _world_model_step(
        self, windows: Batch, start: LatentState, noise: Tensor, now: DreamerV3Config
    ) -> Update:
        """A gradient step on windows [T, B, …]; `aux` has their latent states."""
        device = self.context.device
        return self.world_learner.step(
            windows,
            start,
            noise,
            {name: scalar(getattr(now, key), device) for name, key in MODEL_SCALES.items()},
            **step_sizes(now.model_rate, now.max_grad_norm, device),
        )

    def _actor_critic_step(self, rows: Batch, now: DreamerV3Config) -> Metrics:
        """Imagine from every state of rows [T, B, …]; one step of the actor, one of the critic."""
        device = self.context.device
        start = {key: rows[key].flatten(0, 1) for key in DETER_STOCH}
        start_continues = (~rows[TERMINATED]).flatten().float()
        lead = (now.horizon, len(start_continues))
        rng = self.imagination_rng
        noises = (self.world.noise(lead, rng), self.actor.noise(lead, rng))
        scales = {name: scalar(getattr(now, key), device) for name, key in RETURN_SCALES.items()}
        entropy = scalar(now.entropy, device)
        models = (self.world, self.critic, self.target_critic)
        percentiles = self.return_percentiles.value
        imagination = (*models, start, start_continues, noises, percentiles, scales)
        sizes = step_sizes(now.actor_rate, now.max_grad_norm, device)
        if self.dynamics_gradient:
            actor = self.actor_learner.step(entropy, *imagination, **sizes)
            aux = actor.aux
            percentiles.copy_(aux["percentiles"])
            targets = CriticTargets(
                aux["features"], aux["returns"], aux["weight"], aux.get("target_values")
            )
        else:
            with torch.no_grad():
                batch = self.imagine_batch(self.actor, *imagination)
            percentiles.copy_(batch.percentiles)
            targets = batch.critic
            advantage = targets.returns - batch.values
            if now.normalize_returns:
                advantage = normalized(advantage, percentiles)
            actor = self.actor_learner.step(
                targets.features, batch.action, advantage, targets.weight, entropy, **sizes
            )
        uses_replay = bool(self.config.replay_value_scale)
        replayed = {key: rows[key] for key in FROM_REPLAY} if uses_replay else None
        sizes = step_sizes(now.critic_rate, now.max_grad_norm, device)
        critic = self.critic_learner.step(targets, replayed, scales, **sizes)
        if self.controller_budget.steps % now.slow_every == 0:
            self.critic_learner.follow(now.slow_rate)
        return {
            **_named(actor, "actor"),
            **_named(critic, "critic"),
            "return": targets.returns.mean(),
            "return_spread": self.return_percentiles.distance,
        }

    def _trained(self) -> dict[str, Any]:
        """What an update changes, by name."""
        return {
            "world_model": self.world_learner,
            "actor": self.actor_learner,
            "critic": self.critic_learner,
            "return_percentiles": self.return_percentiles,
            "budget": self.budget,
            "controller_budget": self.controller_budget,
        }

    def _windows(
        self, batch: Batch, phase: Phase, now: DreamerV3Config
    ) -> Iterator[tuple[Batch, LatentState, Tensor]]:
        """Each of K windows [T, B, …] with the state before it and noise, counted as a step."""
        noise = self.world.noise(batch[RESET].shape, self.model_rng)
        starts = window_starts(self.world.rssm, batch)
        rows = {key: each for key, each in batch.items() if key not in (INDEX, LATENT)}
        for index in self.budget.take(len(noise), phase, now.replay_ratio):
            yield picked(rows, index), picked(starts, index), noise[index]

    @torch.no_grad()
    def _observed(self, windows: Batch) -> Batch:
        """The latent states of windows [K, T, B, …], without a gradient step."""
        shape, starts = windows[RESET].shape, window_starts(self.world.rssm, windows)
        noise = self.world.noise(shape, self.imagination_rng)
        states = [
            self.world.observe(picked(starts, i), picked(windows, i), noise[i])[0]
            for i in range(shape[0])
        ]
        return {key: windows[key] for key in FROM_REPLAY} | _stacked(states)

    def _store_states(self, windows: Batch, states: Sequence[LatentState], phase: Phase) -> Batch:
        """Stack the states of K windows, and write them to a buffer that stores latents."""
        found = _stacked(states)
        if INDEX in windows:
            buffer: Any = self.context.buffer(phase)
            buffer.store_latents(windows[INDEX], torch.cat([found[k] for k in DETER_STOCH], -1))
        return found

    # -------------------------------------------------------------------------------- imagination

    @property
    def imagination(self) -> LatentImagination:
        """How to roll the world model out."""
        return LatentImagination(self.world, self.config.predicts_ends)

    def imagine(self, *, horizon: int, **options: Any) -> Batch:
        """Predict `horizon` steps with the mode of the policy; see `open_loop.predict`."""
        return predict(self.imagination, self._imagined_action, self.context, horizon, **options)

    def _imagined_action(self, state: LatentState) -> Tensor:
        return self.actor.to_action(self.actor.mode(self.world.rssm.features(state)))

    def pictures(self, paths: Sequence[Any]) -> Mapping[str, Picture]:
        """The newest episode, and an open-loop prediction of it."""
        return newest_episode_pictures(self, self.world.spaces, OPEN_LOOP_STEPS)


def _earlier(doc: str, config: type) -> Version:
    """An earlier version: other values, both halves of an update as hooks, no stored latents."""
    hooks = ["collect", "update_world_model", "update_controller"]
    phases = [{"name": "train", "hooks": hooks}]
    buffers = {"replay": {"type": "sequence"}}
    return Version(Dreamer, doc, config=config, phases=phases, defaults={"buffers": buffers})


DreamerV2 = _earlier(
    "Dreamer v2: model-based actor-critic that learns in imagination; discrete latents.",
    DreamerV2Config,
)
DreamerV1 = _earlier(
    "Dreamer v1: model-based actor-critic that learns in imagination; Gaussian latents.",
    DreamerV1Config,
)


def window_starts(rssm: RSSM, windows: Batch) -> LatentState:
    """The states [K, B, …] before windows: as stored in the buffer, else empty."""
    count, _, size = windows[RESET].shape
    start = rssm.initial(count * size, windows[RESET].device)
    if LATENT in windows:
        parts = windows[LATENT].split([start[key].shape[-1] for key in DETER_STOCH], -1)
        return dict(zip(DETER_STOCH, parts, strict=True))
    return {key: each.unflatten(0, (count, size)) for key, each in start.items()}


def _stacked(states: Sequence[LatentState]) -> LatentState:
    return {key: torch.stack([each[key] for each in states]) for key in DETER_STOCH}


def _named(step: Update, part: str) -> Metrics:
    """The metrics of a gradient step; loss and gradient norm with the name of the part."""
    return {**step.metrics, f"{part}_loss": step.loss, f"{part}_grad_norm": step.grad_norm}
