"""Dreamer: learn a world model from replayed sequences, and a policy inside it.

Reads top to bottom: configs of v3, v2 and v1 (Hafner et al. 2023, 2021, 2020), the loss of the
world model, the losses of actor and critic, workflow. Time runs in arrival form: row t is a frame,
with the action that led to it and the reward that came with it.

Departures from the papers are listed in docs/algorithms/dreamer.md. The largest: free nats are per
step in all versions; v1 and v2 also differentiate through what the policy sees; v2's policy over a
Box is a normal with a bounded mean; features are cut off from v3's value loss on replayed rows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from rl_lab.algorithms.base import Optimized, Roles
from rl_lab.algorithms.dreamer.actor import WorldActor
from rl_lab.algorithms.dreamer.imagination import (
    Dreamed,
    Lesson,
    Returns,
    learn_in_dreams,
    replayed_lesson,
)
from rl_lab.algorithms.dreamer.rssm import State
from rl_lab.algorithms.dreamer.world_learning import (
    BELIEF,
    DREAMER_PARTS,
    WorldConfig,
    WorldWorkflow,
)
from rl_lab.algorithms.dreamer.world_learning import require_not_negative as not_negative
from rl_lab.algorithms.dreamer.world_model import Scalar, WorldModel
from rl_lab.algorithms.replay import averages, require_positive
from rl_lab.core.actions import as_vector, vector_size
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
)
from rl_lab.core.clock import Earned
from rl_lab.core.compiled import Compiled
from rl_lab.core.optim import FlatOptimizer, LaPropConfig, Loss, OptimizerConfig, scalar
from rl_lab.core.options import option, section, with_defaults
from rl_lab.core.protocols import Phase, WorkflowContext
from rl_lab.core.returns import lambda_return
from rl_lab.core.schedule import at, extremes
from rl_lab.core.spec import Box
from rl_lab.core.target import Target, lending
from rl_lab.core.tree import picked, rows_at

SCALES = {
    "dynamics": "dynamics_scale",
    "posterior": "posterior_scale",
    "free_nats": "free_nats",
    "reward": "reward_scale",
    "continue": "continue_scale",
}
JUDGING = {
    "gamma": "gamma",
    "lambda": "return_lambda",
    "normalizer": "normalizer_rate",
    "replay": "replay_value_scale",
    "slow": "slow_regularizer",
}
FRAME = "frame"  # of a policy's memory: how many it has seen of the episode
FIXED = 1024  # frames of an episode whose latents are drawn by numbers of their own
FROM_REPLAY = (REWARD, TERMINATED, TRUNCATED, RESET)  # what the controller wants of a window


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
    optimizer: LaPropConfig = section(LaPropConfig, "the optimiser's own settings")
    dynamics_scale: float = option(1.0, "weight of the KL that teaches the prior")
    posterior_scale: float = option(0.1, "weight of the KL that keeps the posterior predictable")
    free_nats: float = option(
        1.0, "KL per step, summed over latents, below which nothing is learnt"
    )
    reward_scale: float = option(1.0, "weight of the loss of rewards")
    gamma: float = option(0.997, "discount factor")
    horizon: int = option(15, "steps of a dream")
    return_lambda: float = option(0.95, "how far returns trust dreams rather than values")
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
        0.0, "deviation of noise on collected actions; discrete: chance of a random one"
    )
    normalize_returns: bool = option(True, "returns are scaled by their spread, if that is above 1")
    normalizer_rate: float = option(0.01, "how fast that spread follows")
    slow_every: int = option(1, "gradient steps between two moves of the slow critic")
    slow_rate: float = option(0.02, "how far it moves then: 1 copies")
    slow_target: bool = option(False, "returns are bootstrapped from the slow critic")
    slow_regularizer: float = option(1.0, "weight of the pull of the values towards the slow ones")
    replay_value_scale: float = option(0.3, "weight of the value loss on replayed rows")

    def __post_init__(self) -> None:
        """Refuse values that cannot work, before anything is built."""
        super().__post_init__()
        require_positive(self, "model_rate", "actor_rate", "critic_rate")
        weights = ("entropy", "exploration_noise", "slow_regularizer", "replay_value_scale")
        not_negative(self, *SCALES.values(), *weights)
        for name, least in {"horizon": 1, "slow_every": 1}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("return_lambda", "actor_unimix", "normalizer_rate", "slow_rate"):
            low, high = extremes(getattr(self, name))
            if not 0.0 <= low <= high <= 1.0:
                raise ValueError(f"{name} must be in [0, 1], got {low if low < 0 else high:g}")
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
    """The KL [T, B] that moves the prior towards the posterior, and the one that does the reverse.

    Latents are summed first; what is below the free nats then counts as them, and moves nothing.
    """
    to_prior = world.rssm.kl(posterior.detach(), prior)
    to_posterior = world.rssm.kl(posterior, prior.detach())
    return torch.maximum(to_prior, free_nats), torch.maximum(to_posterior, free_nats)


def world_loss(
    world: WorldModel, batch: Batch, start: State, noise: Tensor, scales: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """What the model did not foresee of sequences [T, B, …]. The states [T, B, …] come too."""
    seen = world.learn_from(start, batch, noise)
    kl = balanced_kl(world, seen.posterior, seen.prior, scales["free_nats"])
    means = {name: each.mean() for name, each in seen.losses.items()}
    loss = scales["dynamics"] * kl[0].mean() + scales["posterior"] * kl[1].mean()
    for name, mean in means.items():
        loss = loss + (scales[name] * mean if name in scales else mean)
    plain = world.rssm.kl(seen.posterior, seen.prior).mean()
    return loss, {**means, "kl": plain, **seen.states}


def reinforce_loss(
    actor: WorldActor,
    features: Tensor,
    action: Tensor,
    advantage: Tensor,
    weight: Tensor,
    entropy_scale: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Score-function gradients: what turned out better than expected becomes likelier."""
    log_prob, entropy = actor.judge(features, action)
    loss = -(weight * (log_prob * advantage + entropy_scale * entropy)).mean()
    return loss, {"entropy": entropy.mean()}


def critic_loss(
    critic: Scalar,
    dreams: Lesson,
    rows: Batch | None,
    scales: dict[str, Tensor],
    returns: Returns = lambda_return,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Values that foresee returns, of dreams and of real rows; near the slow critic's, if any."""
    lessons: list[tuple[Lesson, float | Tensor]] = [(dreams, 1.0)]
    if rows is not None:
        gamma, lambda_ = scales["gamma"], scales["lambda"]
        replayed = replayed_lesson(rows, dreams, gamma=gamma, lambda_=lambda_, returns=returns)
        lessons.append((replayed, scales["replay"]))
    loss = torch.zeros((), device=dreams.returns.device)
    for lesson, scale in lessons:
        if lesson.slow is None:
            wrong = critic.loss(lesson.features, lesson.returns)[0]
        else:
            wrong, astray = critic.loss(lesson.features, lesson.returns, lesson.slow)
            wrong = wrong + scales["slow"] * astray
        loss = loss + scale * (lesson.weight * wrong).mean()
    return loss, {}


def scaled(gain: Tensor, spread: Tensor, config: DreamerV3Config) -> Tensor:
    """Gains by the spread of returns, unless that is below 1."""
    return gain / (spread[1] - spread[0]).clamp(min=1.0) if config.normalize_returns else gain


def dynamics_loss(
    actor: WorldActor,
    weights: Any,
    entropy_scale: Tensor,
    *dreaming: Any,
    learn: Callable[..., Dreamed],
    config: DreamerV3Config,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Gradients through the model: actions move where dreams go, and what they bring."""
    found = learn(weights, actor, *dreaming)
    lesson = found.lesson
    gain = scaled(lesson.returns, found.spread, config)
    metrics = {name: each for name, each in lesson._asdict().items() if each is not None}
    metrics["spread"] = found.spread
    if not actor.squashed:  # a squashed one has no entropy in closed form
        entropy = actor.judge(lesson.features.detach(), found.action.detach())[1]
        gain = gain + entropy_scale * entropy
        metrics["entropy"] = entropy.mean()
    return -(lesson.weight * gain).mean(), metrics


class Dreamer(WorldWorkflow):
    """Dreamer v3: model-based actor-critic that learns in imagination; discrete latents, symlog."""

    Config: ClassVar[type | None] = DreamerV3Config
    roles: ClassVar[Roles] = DREAMER_PARTS
    optimized: ClassVar[Optimized] = ("world_model", "actor", "critic")
    phases: ClassVar[list[dict[str, Any]]] = [{"name": "train", "hooks": ["collect", "update"]}]
    defaults: ClassVar[Mapping[str, Any]] = {
        "buffers": {"replay": {"type": "sequence", "online": True, "latents": True}}
    }
    config: DreamerV3Config

    def initialize(self, context: WorkflowContext) -> None:
        """Build the world model, the actor and both critics, and their optimisers."""
        super().initialize(context)
        config, space, parts = self.config, context.spec.action, context.components
        self.world = WorldModel(config, context.spec, parts).to(context.device)
        inputs, is_box = self.world.feature_dim, isinstance(space, Box)
        self.dynamics_gradient = config.actor_gradient == "dynamics" or (
            config.actor_gradient == "auto" and is_box
        )
        more = {"unimix": config.actor_unimix, "squashed": config.squashed and is_box}
        actor = parts.get("actor", WorldActor)(inputs, space, config, **more)
        self.actor = actor.to(context.device)
        self.critic = parts.get("critic", Scalar)(inputs, config).to(context.device)
        self.slow_critic = Target(self.critic)
        compiled = context.config.compute.compile == "on"
        self.world_optimizer = self.make_optimizer("world_model", self.world, world_loss)
        returns = parts.get("returns", lambda_return)
        learn = partial(
            learn_in_dreams,
            returns=returns,
            slow_target=config.slow_target,
            near_slow=bool(config.slow_regularizer),
            follow_spread=config.normalize_returns,
            ends=config.foresees_ends,
        )
        judges = (self.world, self.critic, self.slow_critic.module)
        loss: Loss = reinforce_loss
        if self.dynamics_gradient:
            loss = partial(dynamics_loss, learn=lending(learn, *judges), config=config)
        else:
            pure = lending(learn, *judges, self.actor)
            self.learn_in_dreams = Compiled(pure, "dreams") if compiled else pure
        self.actor_optimizer = self.make_optimizer("actor", self.actor, loss)
        values_loss = partial(critic_loss, returns=returns)
        self.critic_optimizer = self.make_optimizer("critic", self.critic, values_loss)
        self.spread = torch.zeros(2, device=context.device)  # low and high percentile of returns
        self.exploration_noise = at(config, 0).exploration_noise
        self.controls_earned = Earned(seen=config.learning_starts)
        self.controller_steps = 0
        self.starts: Batch = {}  # states of the last windows, for dreams to begin in
        self.model_rng = context.rng.torch("world_model", context.device)
        self.dream_rng = context.rng.torch("dream", context.device)
        self.action_rng = context.rng.torch("action", context.device)
        constant = torch.Generator(context.device).manual_seed(0)
        self.fixed_noise = partial(rows_at, self.world.noise((FIXED,), constant))

    def optimizers(self) -> dict[str, FlatOptimizer]:
        """Three."""
        return {
            "world model": self.world_optimizer,
            "actor": self.actor_optimizer,
            "critic": self.critic_optimizer,
        }

    def slow(self) -> list[Tensor]:
        """The slow critic, and what returns are scaled by."""
        return [self.slow_critic.flat, self.spread]

    # ------------------------------------------------------------ acting

    def initial_state(self, batch: int) -> State:
        """No memory, and nothing done yet."""
        device = self.context.device
        action = torch.zeros(batch, vector_size(self.context.spec.action), device=device)
        frame = torch.zeros(batch, dtype=torch.int64, device=device)
        return {**self.world.rssm.initial(batch, device), "action": action, FRAME: frame}

    def collect_step(self, step: int, *, phase: Phase) -> CollectResult:
        """Interact with the noise of this step."""
        self.exploration_noise = at(self.config, step).exploration_noise
        return super().collect_step(step, phase=phase)

    @torch.no_grad()
    def act(self, obs: Any, state: State, *, deterministic: bool) -> Action:
        """Look, remember, decide. Greedily: the likeliest action.

        Latents are drawn even then, by numbers that depend on the frame's place in the episode: the
        likeliest categories of all latents together may be a state that the policy never saw.
        """
        embed = self.world.embed(obs)
        count = len(embed)
        going_on = torch.zeros(count, dtype=torch.bool, device=embed.device)
        if deterministic:
            noise = self.fixed_noise(state[FRAME])
        else:
            noise = self.world.noise((count,), self.action_rng)
        latent, _ = self.world.rssm.observe(state, state["action"], embed, going_on, noise)
        features = self.world.rssm.features(latent)
        mask = obs.get(ACTION_MASK) if isinstance(obs, Mapping) else None
        if deterministic:
            vector = self.actor.mode(features, mask)
        else:
            vector = self.actor.draw(features, self.actor.noise((count,), self.action_rng), mask)
            vector = self._explored(vector, obs)
        after = {**latent, "action": vector, FRAME: state[FRAME] + 1}
        return Action(self.actor.to_action(vector), after, self.found_states(latent))

    def dream_policy(self) -> Callable[[State], Tensor]:
        """The likeliest action in each state."""
        return lambda state: self.actor.to_action(self.actor.mode(self.world.rssm.features(state)))

    def _explored(self, vector: Tensor, obs: Any) -> Tensor:
        if not self.exploration_noise:
            return vector
        if self.actor.is_box:
            noise = torch.empty_like(vector).normal_(generator=self.action_rng)
            return (vector + self.exploration_noise * noise).clamp(-1, 1)
        anything = torch.as_tensor(self.warm_up(obs, None, deterministic=False).action)
        drawn = torch.rand(len(vector), 1, generator=self.action_rng, device=vector.device)
        other = as_vector(self.context.spec.action, anything.to(vector.device))
        return torch.where(drawn < self.exploration_noise, other, vector)

    # ------------------------------------------------------------ learning

    def sample(self, buffer: Any, *, hook: str, phase: Phase) -> Batch | None:
        """Windows for the world model; for the controller alone, the states that it left."""
        now = at(self.config, phase["step"])
        controls = hook == "update_controller"
        account = self.controls_earned if controls else self.earned
        due = self.due(phase, now.replay_ratio, account, ready=buffer.ready(now.batch_length))
        if controls and self.starts:
            return self.starts
        if due == 0:
            return None
        windows = buffer.sequences(now.batch_size, now.batch_length, due)
        return self._observed(windows) if controls else windows

    def update(self, batch: Batch, *, phase: Phase) -> Metrics:
        """For each batch of windows, a step of the world model and one of actor and critic."""
        return self._learn_windows(batch, phase, control=True)

    def update_world_model(self, batch: Batch, *, phase: Phase) -> Metrics:
        """One step per batch of windows; their states are kept for `update_controller`."""
        return self._learn_windows(batch, phase, control=False)

    def update_controller(self, batch: Batch, *, phase: Phase) -> Metrics:
        """One step of actor and critic for each set of states, in dreams that begin there."""
        now = at(self.config, phase["step"])
        steps = self.take_steps(
            len(batch[RESET]),
            lambda index: self._control(picked(batch, index), now),
            counters=("controller_steps",),
        )
        self.starts = {}
        self.spend(len(steps), phase, now.replay_ratio, self.controls_earned)
        return averages(steps)

    def _learn_windows(self, batch: Batch, phase: Phase, *, control: bool) -> Metrics:
        """Learn the world model from windows [K, T, B, …]; `control`: and act better, in turn."""
        now, device = at(self.config, phase["step"]), self.context.device
        noise = self.world.noise(batch[RESET].shape, self.model_rng)
        starts = self.begin_windows(batch)
        rows = {key: each for key, each in batch.items() if key not in (INDEX, LATENT)}
        scales = {name: scalar(getattr(now, option), device) for name, option in SCALES.items()}
        states: list[State] = []

        def step(index: int) -> Metrics:
            windows = picked(rows, index)
            pace = self.rates(now.model_rate, now)
            metrics = self.world_optimizer.step(
                windows, picked(starts, index), noise[index], scales, **pace
            )
            states.append({key: metrics.pop(key) for key in BELIEF})
            controlled = self._control({**windows, **states[-1]}, now) if control else {}
            return _renamed(metrics, "model") | controlled

        counters = ("gradient_steps", "controller_steps")[: 2 if control else 1]
        steps = self.take_steps(len(noise), step, counters)
        found = {key: torch.stack([each[key] for each in states]) for key in BELIEF}
        self.starts = {} if control else {key: batch[key] for key in FROM_REPLAY} | found
        self.keep_states(batch, found, phase)
        self.spend(len(noise), phase, now.replay_ratio)
        return {**averages(steps), "gradient_steps": self.gradient_steps}

    @torch.no_grad()
    def _observed(self, windows: Batch) -> Batch:
        """The states of windows, without learning from them."""
        shape, starts = windows[RESET].shape, self.begin_windows(windows)
        noise = self.world.noise(shape, self.dream_rng)
        each = [
            self.world.observe(picked(starts, i), picked(windows, i), noise[i])[0]
            for i in range(shape[0])
        ]
        states = {key: torch.stack([state[key] for state in each]) for key in BELIEF}
        return {**{key: windows[key] for key in FROM_REPLAY}, **states}

    def _control(self, rows: Batch, now: DreamerV3Config) -> Metrics:
        """Dream from every state of rows [T, B, …], judge what was done, and learn from it."""
        start = {key: rows[key].flatten(0, 1) for key in BELIEF}
        root = (~rows[TERMINATED]).flatten().float()
        lead, device = (now.horizon, len(root)), self.context.device
        noises = (self.world.noise(lead, self.dream_rng), self.actor.noise(lead, self.dream_rng))
        entropy, pace = scalar(now.entropy, device), self.rates(now.actor_rate, now)
        scales = {name: scalar(getattr(now, option), device) for name, option in JUDGING.items()}
        judges = (self.world_optimizer, self.critic_optimizer, self.slow_critic)
        weights = tuple(each.tensors for each in judges)
        dreaming = (start, root, noises, self.spread, scales)
        if self.dynamics_gradient:
            metrics = self.actor_optimizer.step(weights, entropy, *dreaming, **pace)
            self.spread.copy_(metrics.pop("spread"))
            lesson = Lesson(*(metrics.pop(name, None) for name in Lesson._fields))
        else:
            with torch.no_grad():
                found = self.learn_in_dreams((*weights, self.actor_optimizer.tensors), *dreaming)
            lesson = found.lesson
            self.spread.copy_(found.spread)
            advantage = scaled(lesson.returns - found.values, self.spread, now)
            metrics = self.actor_optimizer.step(
                lesson.features, found.action, advantage, lesson.weight, entropy, **pace
            )
        replayed = (
            {key: rows[key] for key in FROM_REPLAY} if self.config.replay_value_scale else None
        )
        judged = self.critic_optimizer.step(
            lesson, replayed, scales, **self.rates(now.critic_rate, now)
        )
        if self.controller_steps % now.slow_every == 0:
            self.slow_critic.follow(self.critic_optimizer.state.flat, now.slow_rate)
        return {
            **_renamed(metrics, "actor"),
            **_renamed(judged, "critic"),
            "return": lesson.returns.mean(),
            "return_spread": self.spread[1] - self.spread[0],
        }


class DreamerV2(Dreamer):
    """Dreamer v2: model-based actor-critic that learns in imagination; discrete latents."""

    Config: ClassVar[type | None] = DreamerV2Config
    phases: ClassVar[list[dict[str, Any]]] = [
        {"name": "train", "hooks": ["collect", "update_world_model", "update_controller"]}
    ]
    defaults: ClassVar[Mapping[str, Any]] = WorldWorkflow.defaults


class DreamerV1(DreamerV2):
    """Dreamer v1: model-based actor-critic that learns in imagination; Gaussian latents."""

    Config: ClassVar[type | None] = DreamerV1Config


def _renamed(metrics: Metrics, part: str) -> Metrics:
    """Loss and gradient by the part they belong to; the gradient itself is not for logs."""
    del metrics["gradient"]
    return {
        f"{part}_{key}" if key in ("loss", "grad_norm") else key: v for key, v in metrics.items()
    }
