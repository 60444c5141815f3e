"""PlaNet: learn a latent model of the world, and plan in it (Hafner et al. 2019, arXiv:1811.04551).

Reads top to bottom: config, loss of the model, planning, the algorithm. There is no policy and no
value: at every step the cross-entropy method (or MPPI) searches for the actions with the largest
sum of imagined rewards, and the first of them is taken.

Departures from the paper are listed in docs/algorithms/planet.md. The largest: any observation, not
only images; Discrete actions, by CEM over categories; tasks may end (`continue_scale`); decisions
of evaluations are planned from the posterior's mode, with fixed random numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from rl_lab.algorithms.base import Algorithm, LearnsFrom, Optimized, Roles
from rl_lab.algorithms.dreamer.open_loop import (
    LatentImagination,
    newest_episode_pictures,
    predict,
)
from rl_lab.algorithms.dreamer.rssm import DETER_STOCH, RSSM, LatentState
from rl_lab.algorithms.dreamer.world_config import WorldConfig
from rl_lab.algorithms.dreamer.world_model import WORLD_PARTS, Observed, WorldModel
from rl_lab.algorithms.replay import (
    BUDGET_NAMES,
    averages,
    minibatches,
    require_not_negative,
    require_positive,
    sample_windows,
    step_sizes,
    torch_optimizer,
)
from rl_lab.core.actions import RandomActions, random_action
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
from rl_lab.core.errors import UserError
from rl_lab.core.learner import Learner, all_or_nothing, scalar
from rl_lab.core.optim import OptimizerConfig
from rl_lab.core.options import option, section
from rl_lab.core.picture import Picture
from rl_lab.core.protocols import AlgorithmContext, Buffer, Phase
from rl_lab.core.schedule import at
from rl_lab.core.schema import Activation
from rl_lab.core.spec import Discrete, MultiDiscrete
from rl_lab.core.tree import first_leaf
from rl_lab.networks.mlp import Norm, as_vector, vector_size
from rl_lab.planning.cem import planner_noise
from rl_lab.planning.planner import PlannerConfig, plan_actions
from rl_lab.planning.plans import Plan, imagined_return, shifted, shifted_probabilities

USED = (OBS, PREVIOUS_ACTION, REWARD, RESET, TERMINATED)  # of a batch of sequences
PREVIOUS, PLAN, WEIGHT = "action", "plan", "weight"
SCALES = {
    "kl": "kl_scale",
    "reward": "reward_scale",
    "continue": "continue_scale",
    "overshooting": "overshooting_scale",
    "free_nats": "free_nats",
}
# Today's names of saved state, and those in checkpoints of earlier versions.
OLD_NAMES = {"learner.module": "world", "learner.optimizer": "optimizer", **BUDGET_NAMES}
OPEN_LOOP_STEPS = 15  # frames of a picture's open-loop prediction, at most
_FIXED_SEED = 0  # of the random numbers of deterministic plans


@dataclass(frozen=True, kw_only=True)
class PlaNetOptimizerConfig(OptimizerConfig):
    """Adam and its relatives; the learning rate belongs to the algorithm."""

    eps: float = option(1e-4, "added to the root of the second moment; not in sgd")


@dataclass(frozen=True, kw_only=True)
class PlaNetConfig(WorldConfig):
    """Hyperparameters of PlaNet, and the sizes of its world model. Any float may be a schedule."""

    batch_size: int = option(50, "sequences of one gradient step")
    batch_length: int = option(50, "frames of each sequence")
    replay_ratio: float = option(
        0.4,
        "gradient steps per environment step, fractions are carried; 0: one per call of the hook",
    )
    learning_starts: int = option(1000, "environment steps of random actions before learning")
    train_every: int = option(50, "vector steps between updates; an episode in the paper")
    gamma: float = option(1.0, "discount factor of imagined rewards")
    learning_rate: float = option(1e-3, "step size of the optimizer")
    max_grad_norm: float = option(1000.0, "largest norm of a gradient")
    optimizer: PlaNetOptimizerConfig = section(PlaNetOptimizerConfig, "the optimizer's settings")
    free_nats: float = option(
        3.0, "KL per step, summed over latents, below which it has no gradient"
    )
    kl_scale: float = option(1.0, "weight of the KL beyond that")
    reward_scale: float = option(10.0, "weight of the loss of rewards")
    overshooting: int = option(
        0, "latent overshooting: train priors of up to this many steps ahead, too; 0: off"
    )
    overshooting_scale: float = option(1.0, "weight of latent overshooting")
    exploration_noise: float = option(
        0.3, "deviation of noise on collected actions; discrete: probability of a random one"
    )
    planner: PlannerConfig = section(PlannerConfig, "the planner that chooses actions")
    deter: int = option(200, "width of the memory")
    hidden: int = option(200, "width of the layers around the memory")
    stoch: int = option(30, "latents")
    classes: int = option(0, "classes of each latent; 0: Gaussian latents")
    units: int = option(300, "width of the layers of encoder, decoder and heads")
    layers: int = option(3, "layers of the encoder, the decoder and the heads of vectors")
    channels: int = option(32, "channels of the first convolution; each layer doubles them")
    activation: Activation = option("relu", "tanh, relu, elu, gelu or silu")
    norm: Norm = option("none", "normalization of layers: none, layer or rms")
    symlog_inputs: bool = option(False, "vectors are seen, and predicted, through symlog")
    two_hot: bool = option(False, "rewards as weights of bins; if not, as one number")

    def __post_init__(self) -> None:
        """Refuse values that cannot work, before anything is built."""
        super().__post_init__()
        require_positive(self, "learning_rate")
        if self.overshooting != 0 and not 2 <= self.overshooting < self.batch_length:
            raise ValueError(
                f"overshooting must be 0, or from 2 to batch_length - 1, got {self.overshooting}"
            )
        require_not_negative(self, *SCALES.values(), "exploration_noise")


# ------------------------------------------------------------------------------ the model's loss


def overshooting_loss(
    rssm: RSSM, seen: Observed, action: Tensor, reset: Tensor, noise: Tensor, free_nats: Tensor
) -> Tensor:
    """Latent overshooting: KL from posteriors to priors of 2 … D steps ahead; noise [D, T, B, …].

    From every frame [T, B] the model is rolled out with the actions that were taken. Only the
    priors have a gradient; rollouts into another episode are left out.
    """
    states, inside = seen.states, torch.ones_like(reset)
    total = torch.zeros((), device=reset.device)
    for ahead in range(1, len(noise) + 1):
        inside = inside[:-1] & ~reset[ahead:]
        lead = inside.shape
        rows = {key: value[: lead[0]].flatten(0, 1) for key, value in states.items()}
        drawn = noise[ahead - 1][: lead[0]].flatten(0, 1)
        moved = rssm.imagine_step(rows, action[ahead:].flatten(0, 1), drawn)
        states = {key: value.unflatten(0, lead) for key, value in moved.items()}
        if ahead > 1:
            there = seen.posterior[ahead:].detach()
            divergence = torch.maximum(rssm.kl(there, rssm.prior(states["deter"])), free_nats)
            total = total + (divergence * inside).sum() / inside.sum().clamp_min(1)
    return total / (len(noise) - 1)


def planet_loss(
    world: WorldModel,
    batch: Batch,
    noise: Tensor,
    far_noise: Tensor | None,
    scales: Mapping[str, Tensor],
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Prediction loss and KL of sequences [T, B, …]: the negative of the paper's bound.

    `far_noise` [D, T, B, …] is that of latent overshooting, if it is on.
    """
    start = world.rssm.initial(batch[RESET].shape[1], batch[RESET].device)
    seen = world.prediction_losses(start, batch, noise)
    divergence = world.rssm.kl(seen.posterior, seen.prior)
    metrics = {name: each.mean() for name, each in seen.losses.items()}
    loss = scales["kl"] * torch.maximum(divergence, scales["free_nats"]).mean()
    for name, mean in metrics.items():
        loss = loss + (scales[name] * mean if name in scales else mean)
    metrics["kl"] = divergence.mean()
    if far_noise is not None:
        action = as_vector(world.action, batch[PREVIOUS_ACTION])
        metrics["overshooting"] = overshooting_loss(
            world.rssm, seen, action, batch[RESET], far_noise, scales["free_nats"]
        )
        loss = loss + scales["overshooting"] * metrics["overshooting"]
    return loss, metrics, {}


# ---------------------------------------------------------------------------------------- planning


def reward_sums(
    world: WorldModel,
    belief: LatentState,
    latents: Tensor,
    candidates: Tensor,
    *,
    gamma: float,
    ends: bool,
) -> Tensor:
    """The sums of imagined rewards [B, K] of candidates [B, K, H, A] from beliefs [B, …].

    `latents` [H, K, …] are the random numbers of their latents. With `ends`, a reward is weighted
    by the probability that the episode has not ended before it.
    """

    def step(rows: LatentState, action: Tensor, t: int) -> tuple[LatentState, Tensor]:
        drawn = torch.cat([latents[t]] * len(candidates))  # rows lie environment by environment
        moved = world.rssm.imagine_step({key: rows[key] for key in DETER_STOCH}, action, drawn)
        features = world.rssm.features(moved)
        reward = rows[WEIGHT] * world.reward.mean(features)
        future = gamma * world.continue_probability(features) if ends else gamma
        return {**moved, WEIGHT: rows[WEIGHT] * future}, reward

    state = {**belief, WEIGHT: torch.ones(len(candidates), device=candidates.device)}
    return imagined_return(step, state, candidates)


class PlaNet(Algorithm):
    """PlaNet: model-based; plans with CEM in a learned latent dynamics model (RSSM)."""

    Config: ClassVar[type | None] = PlaNetConfig
    uses_network: ClassVar[bool] = False
    roles: ClassVar[Roles] = WORLD_PARTS
    optimized: ClassVar[Optimized] = ("world_model",)
    learns_from: ClassVar[LearnsFrom] = "sequences"
    unit_actions: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = {"buffers": {"replay": {"type": "sequence"}}}
    old_names: ClassVar[Mapping[str, str]] = OLD_NAMES
    config: PlaNetConfig

    def initialize(self, context: AlgorithmContext) -> None:
        """Build the learner of the world model, the update budget, and the random streams."""
        super().initialize(context)
        config, self.space = self.config, context.spec.action
        if isinstance(self.space, MultiDiscrete):
            raise UserError(
                f"planet plans Box and Discrete actions, '{context.spec.id}' has MultiDiscrete"
            )
        if isinstance(self.space, Discrete) and config.planner.type == "mppi":
            raise UserError(
                f"algorithm.planner.type mppi plans Box actions, '{context.spec.id}' has Discrete: "
                "use cem"
            )
        self.learner = Learner(
            WorldModel(config, context.spec, context.components).to(context.device),
            planet_loss,
            config.optimizer,
            compile=context.config.compute.compile == "on",
            optimizer=torch_optimizer(context, "world_model"),
        )
        self.budget = UpdateBudget(config.learning_starts)
        self.collect_steps = config.train_every
        self.random_actions = RandomActions(self.space, context.rng.numpy("warm_up"))
        now = at(config, 0)
        self.exploration_noise, self.gamma = now.exploration_noise, now.gamma
        self.latent_rng = context.rng.torch("latents", context.device)
        self.plan_rng = context.rng.torch("planner", context.device)
        self.explore_rng = context.rng.numpy("exploration")

    @property
    def world(self) -> WorldModel:
        """The world model."""
        return cast(WorldModel, self.learner.module)

    # ------------------------------------------------------------------------------------- acting

    def initial_state(self, batch: int) -> LatentState:
        """An empty belief, a previous action of zeros, and no plan."""
        device, size = self.context.device, vector_size(self.space)
        state: LatentState = self.world.rssm.initial(batch, device)
        state[PREVIOUS] = torch.zeros(batch, size, device=device)
        if self.config.planner.warm_start:
            state[PLAN] = self._no_plan(batch)
        return state

    def collect_step(self, step: int, *, phase: Phase) -> CollectResult:
        """Random actions until `learning_starts`, then planned ones with exploration noise."""
        now = at(self.config, step)
        self.exploration_noise, self.gamma = now.exploration_noise, now.gamma
        if step < self.config.learning_starts:
            return self.collect(self.random_actions, phase)
        return self.collect(self.act, phase)

    @torch.no_grad()
    def act(self, obs: Obs, state: LatentState, *, deterministic: bool) -> Action:
        """Update the belief with the last action and the frame, then plan from it."""
        rng = self._fixed_rng() if deterministic else self.plan_rng
        belief = self.believe(obs, state, rng, deterministic=deterministic)
        found = self.plan(belief, state.get(PLAN), rng, shared=deterministic)
        action = self._first_action(found, obs)
        action = action if deterministic else self._explored(action, obs)
        after = {**belief, PREVIOUS: as_vector(self.space, action)}
        if PLAN in state:
            after[PLAN] = self._shifted(found)
        return Action(action, after)

    def believe(
        self, obs: Obs, state: LatentState, rng: torch.Generator, *, deterministic: bool
    ) -> LatentState:
        """The latent state after this frame: a sample of the posterior, or its mode."""
        rssm, count = self.world.rssm, len(first_leaf(obs))
        no_reset = torch.zeros(count, dtype=torch.bool, device=self.context.device)
        noise = None if deterministic else rssm.noise((count,), rng)
        before = {key: state[key] for key in DETER_STOCH}
        after: LatentState
        after, _ = rssm.observe(before, state[PREVIOUS], self.world.embed(obs), no_reset, noise)
        return after

    def plan(
        self, belief: LatentState, first: Tensor | None, rng: torch.Generator, *, shared: bool
    ) -> Plan:
        """Plan from beliefs [N, …]; with `shared` noise the plan of one does not depend on N."""
        config, count = self.config.planner, len(first_leaf(belief))
        noise = planner_noise(
            config,
            1 if shared else count,
            vector_size(self.space),
            rng,
            discrete=isinstance(self.space, Discrete),
        )
        latents = self.world.noise((config.horizon, config.candidates), rng)
        evaluate = partial(
            reward_sums,
            self.world,
            belief,
            latents,
            gamma=self.gamma,
            ends=self.config.predicts_ends,
        )
        first = self._no_plan(count) if first is None else first
        return plan_actions(
            evaluate, first, noise, config, discrete=isinstance(self.space, Discrete)
        )

    def _fixed_rng(self) -> torch.Generator:
        return torch.Generator(self.context.device).manual_seed(_FIXED_SEED)

    def _shifted(self, found: Plan) -> Tensor:
        """The plan one step later: the first guess of the next one."""
        return (shifted_probabilities if isinstance(self.space, Discrete) else shifted)(found.mean)

    def _no_plan(self, batch: int) -> Tensor:
        size = (batch, self.config.planner.horizon, vector_size(self.space))
        return torch.full(size, self._unknown_action(), device=self.context.device)

    def _unknown_action(self) -> float:
        return 1 / self.space.n if isinstance(self.space, Discrete) else 0.0

    def _first_action(self, found: Plan, obs: Obs) -> Tensor:
        """The first action of a plan, in policy space [N, …]."""
        if not isinstance(self.space, Discrete):
            return found.action.reshape(-1, *self.space.shape)
        probs = found.action
        if isinstance(obs, Mapping) and ACTION_MASK in obs:
            probs = torch.where(obs[ACTION_MASK] != 0, probs, -1.0)
        return probs.argmax(-1)

    def _explored(self, action: Tensor, obs: Obs) -> Tensor:
        """Actions with exploration noise; the belief is updated with the noisy ones."""
        if not isinstance(self.space, Discrete):
            noise = torch.empty_like(action).normal_(generator=self.plan_rng)
            return (action + self.exploration_noise * noise).clamp(-1.0, 1.0)
        anything = torch.from_numpy(random_action(self.space, obs, self.explore_rng))
        explores = torch.from_numpy(self.explore_rng.random(len(action)) < self.exploration_noise)
        return torch.where(explores.to(action.device), anything.to(action.device), action)

    # ----------------------------------------------------------------------------------- learning

    def sample(self, buffer: Buffer, *, hook: str, phase: Phase) -> Batch | None:
        """Sequences for all gradient steps that are due, [K, T, B, …]."""
        now = at(self.config, phase["step"])
        sizes = {"batch_size": now.batch_size, "batch_length": now.batch_length}
        found = sample_windows(buffer, self.budget, phase, now.replay_ratio, **sizes)
        return None if found is None else {name: found[name] for name in USED}

    def update_world_model(self, batch: Batch, *, phase: Phase) -> Metrics:
        """One gradient step per batch of sequences."""
        now = at(self.config, phase["step"])
        with all_or_nothing("PlaNet update", world_model=self.learner, budget=self.budget):
            rows = minibatches(batch, self.budget, phase, now.replay_ratio)
            steps = [self._step(each, now) for each in rows]
        return {**averages(steps), "gradient_steps": self.budget.steps}

    def _step(self, rows: Batch, now: PlaNetConfig) -> Metrics:
        """One gradient step on sequences [T, B, …]."""
        lead, device = tuple(rows[RESET].shape), self.context.device
        noise, far = self.world.noise(lead, self.latent_rng), None
        if now.overshooting:
            far = self.world.noise((now.overshooting, *lead), self.latent_rng)
        scales = {name: scalar(getattr(now, key), device) for name, key in SCALES.items()}
        sizes = step_sizes(now.learning_rate, now.max_grad_norm, device)
        step = self.learner.step(rows, noise, far, scales, **sizes)
        return {**step.metrics, "model_loss": step.loss, "grad_norm": step.grad_norm}

    # -------------------------------------------------------------------------------- imagination

    @property
    def imagination(self) -> LatentImagination:
        """How to roll the world model out."""
        return LatentImagination(self.world, self.config.predicts_ends)

    def imagine(self, *, horizon: int, **options: Any) -> Batch:
        """Predict `horizon` steps with planned actions; see `open_loop.predict`."""
        policy = self._imagined_policy()
        return predict(self.imagination, policy, self.context, horizon, **options)

    def _imagined_policy(self) -> Callable[[LatentState], Tensor]:
        """The policy of one rollout: it plans at each step, as deterministic decisions do."""
        plan: Tensor | None = None

        def decide(belief: LatentState) -> Tensor:
            nonlocal plan
            found = self.plan(belief, plan, self._fixed_rng(), shared=True)
            plan = self._shifted(found) if self.config.planner.warm_start else None
            return self._first_action(found, None)

        return decide

    def pictures(self, paths: Sequence[Any]) -> Mapping[str, Picture]:
        """The newest episode, and an open-loop prediction of it."""
        return newest_episode_pictures(self, self.world.spaces, OPEN_LOOP_STEPS)
