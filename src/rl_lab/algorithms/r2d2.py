"""R2D2: Q-learning with a memory, from sequences of a replay buffer (Kapturowski et al. 2019).

Reads top to bottom: config, scale of values, loss, algorithm. A window of frames is replayed from
the state that was stored when its frames were seen last; that state is old, so the first frames of
the window (the buffer's `burn_in`) only warm the memory up, and nothing is learned from them.

Departures from the paper: one learner that also acts; windows are equally likely, whatever their
errors; one may lead from an episode into the next, where the memory starts again; the memory sees
the last action, not the last reward; gradients also flow through the frames that warm up; the state
after a replayed window takes the place of the one that was stored there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from rl_lab.algorithms.base import Algorithm, LearnsFrom, Optimized, Roles
from rl_lab.algorithms.dqn import (
    DEFAULT_EPSILON,
    EPSILON,
    LEARNER_NAMES,
    chosen_value,
    epsilon_entropy,
)
from rl_lab.algorithms.replay import (
    BUDGET_NAMES,
    LONGEST,
    ReplayConfig,
    averages,
    minibatches,
    sample_windows,
    step_sizes,
    window_problems,
)
from rl_lab.core.actions import RandomActions, random_action
from rl_lab.core.batch import (
    BURN_IN,
    INDEX,
    LATENT,
    OBS,
    PREVIOUS_ACTION,
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
from rl_lab.core.distributions import masked
from rl_lab.core.errors import UserError
from rl_lab.core.learner import Learner, all_or_nothing, scalar
from rl_lab.core.options import option
from rl_lab.core.protocols import AlgorithmContext, Buffer, Phase
from rl_lab.core.returns import multi_step_return
from rl_lab.core.schedule import at
from rl_lab.core.schema import RunConfig
from rl_lab.core.spec import Discrete
from rl_lab.core.value_distributions import of_action
from rl_lab.networks.mlp import as_vector
from rl_lab.networks.normalizer import normalize_mode
from rl_lab.networks.recurrent_q import RecurrentQNetwork, State, packed, unpacked

SEEN = (OBS, PREVIOUS_ACTION, REWARD, RESET, TERMINATED, TRUNCATED, BURN_IN)  # of a window
MEMORY, PREVIOUS = "memory", "previous"  # what acting carries along
SQUASH = 1e-3  # the paper's epsilon: how much of a value stays linear


@dataclass(frozen=True, kw_only=True)
class R2D2Config(ReplayConfig):
    """Hyperparameters of R2D2. Any float may be a schedule."""

    keeps_states: ClassVar[bool] = True
    warms_up: ClassVar[bool] = True
    batch_size: int = option(32, "sequences of one gradient step")
    batch_length: int = option(
        32, "frames of each sequence, with those that warm the memory up", low=2
    )
    replay_ratio: float = option(0.25, "gradient steps per environment step; fractions are carried")
    train_every: int = option(4, "vector steps between updates")
    learning_rate: float = option(3e-4, "step size of the optimizer", above=0)
    n_step: int = option(5, "rewards in a row before the bootstrap", low=1)
    epsilon: float = option(
        DEFAULT_EPSILON, "probability of a random action, 0 in evaluations", low=0, high=1
    )
    double: bool = option(
        True,
        "double Q-learning: the network chooses the next action, the target network evaluates it",
    )
    dueling: bool = option(True, "state value and advantages as two heads")
    rescale: bool = option(True, "learn roots of values: large returns do not drown small ones")
    huber: bool = option(False, "errors beyond 1 count linearly; if not, half their square always")
    target_every: int = option(500, "gradient steps between two moves of the target network", low=1)
    target_rate: float = option(1.0, "EMA step of the target network: 1 copies", above=0, high=1)

    def __post_init__(self) -> None:
        """Refuse values that cannot work, before anything is built."""
        super().__post_init__()
        if self.optimizer.accumulate > 1:
            raise ValueError("optimizer.accumulate must be 1: a sequence cannot be cut into pieces")

    def check(self, run: RunConfig) -> list[str]:
        """Problems that only show together with the rest of the configuration."""
        problems = super().check(run)
        if run.network.shared_torso:
            problems.append("r2d2 has one network: network.shared_torso means nothing here")
        for name, buffer in run.buffers.items():
            if (burn_in := getattr(buffer, "burn_in", 0)) > self.batch_length - 2:
                problems.append(
                    f"batch_length must be at least buffers.{name}.burn_in + 2, {burn_in + 2}: "
                    "else nothing is learned"
                )
        return problems + window_problems(run, *self.rows_needed())

    def memory_problem(self) -> str:
        """None: memories are what this algorithm is for."""
        return ""

    def rows_needed(self) -> tuple[str, int]:
        """Frames of one window."""
        return "batch_length", self.batch_length

    def gradient_steps(self, run: RunConfig) -> float:
        """What compiling has to repay; the memory is unrolled: long sequences take many minutes."""
        return super().gradient_steps(run) if self.batch_length <= LONGEST else 0.0


def rescaled(value: Tensor) -> Tensor:
    """The paper's h: close to a signed root, and invertible (Pohlen et al. 2018)."""
    return value.sign() * ((value.abs() + 1).sqrt() - 1) + SQUASH * value


def restored(value: Tensor) -> Tensor:
    """The inverse of `rescaled`, without the paper's difference of two numbers close to 1."""
    shifted = value.abs() + 1 + SQUASH
    root = (1 + 4 * SQUASH * shifted).sqrt()
    return value.sign() * ((2 * shifted / (root + 1)).square() - 1)


def window_targets(
    rows: Batch, future: Tensor, gamma: Tensor, *, n_step: int, rescale: bool
) -> Tensor:
    """What the actions taken at the frames [T - 1, B] of windows should be worth.

    `future` [T, B] is what each frame is worth. Rewards and ends belong to the frame that they led
    to: the next row. Where fewer than n rewards are left, the last frame there is bootstrapped.
    """
    target = multi_step_return(
        rows[REWARD][1:],
        (restored(future) if rescale else future)[1:],
        (~rows[TERMINATED][1:]).float(),
        gamma=gamma,
        steps=n_step,
        truncated=rows[TRUNCATED][1:],
    )
    return rescaled(target) if rescale else target


def learned_rows(rows: Batch) -> Tensor:
    """Frames [T - 1, B] at which something was done, and that do not only warm a memory up."""
    final = rows[TERMINATED] | rows[TRUNCATED]
    skipped = final | rows[BURN_IN] if BURN_IN in rows else final
    return ~skipped[:-1]


def r2d2_loss(
    model: RecurrentQNetwork,
    rows: Batch,
    start: State,
    target_network: RecurrentQNetwork,
    gamma: Tensor,
    *,
    n_step: int,
    double: bool,
    rescale: bool,
    huber: bool,
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """The loss of windows [T, B, …] whose memories begin in `start` [B, …].

    `aux` has the states in which they end.
    """
    seen = (rows[OBS], rows[PREVIOUS_ACTION], start, rows[RESET])
    values, after = model(*seen)
    taken = of_action(values[:-1].flatten(0, 1), rows[PREVIOUS_ACTION][1:].flatten())
    with torch.no_grad():
        target_values, _ = target_network(*seen)
        mask = model.mask(rows[OBS])
        choice = (values if double else target_values).flatten(0, 1)
        legal = None if mask is None else mask.flatten(0, 1)
        future = chosen_value(choice, target_values.flatten(0, 1), legal).view(rows[RESET].shape)
        target = window_targets(rows, future, gamma, n_step=n_step, rescale=rescale).flatten()
        weight = learned_rows(rows).flatten().float()
        weight = weight / weight.sum().clamp_min(1)
    loss = smooth_l1_loss(taken, target, reduction="none") if huber else 0.5 * (taken - target) ** 2
    with torch.no_grad():
        low, high = torch.aminmax(values[:-1].flatten(0, 1), dim=-1)
        values_of = torch.stack([taken, high, low, target])
        values_of = restored(values_of) if rescale else values_of
        values_of[2] = values_of[1] - values_of[2]
        means = (torch.cat([values_of, (target - taken).abs()[None]]) * weight).sum(-1).unbind()
    names = ("q_mean", "q_max", "q_spread", "target", "td_error")
    states = {LATENT: packed(after).detach()} if after else {}
    return (loss * weight).sum(), dict(zip(names, means, strict=True)), states


class R2D2(Algorithm):
    """R2D2: recurrent DQN; off-policy, replay of sequences with burn-in."""

    actions: ClassVar[str] = "discrete"

    Config: ClassVar[type | None] = R2D2Config
    learns_from: ClassVar[LearnsFrom] = "sequences"
    roles: ClassVar[Roles] = {}
    optimized: ClassVar[Optimized] = ()
    old_names: ClassVar[Mapping[str, str]] = {**LEARNER_NAMES, **BUDGET_NAMES}
    defaults: ClassVar[Mapping[str, Any]] = {
        "buffers": {"replay": {"type": "sequence", "latents": True, "burn_in": 10}},
        "network": {
            "encoder": {"type": "auto", "hidden_dims": [128], "activation": "relu"},
            "memory": {"type": "lstm", "hidden_dim": 128},
            "critic": {"activation": "relu"},
        },
    }
    config: R2D2Config

    def initialize(self, context: AlgorithmContext) -> None:
        """Build the network with its target, and bind the stream of random numbers."""
        super().initialize(context)
        run, config, self.space = context.config, self.config, context.spec.action
        if not isinstance(self.space, Discrete):
            kind = type(self.space).__name__
            raise UserError(
                f"r2d2 needs Discrete actions, '{context.spec.id}' has {kind}: use ppo_lstm"
            )
        mode = normalize_mode(run.environment.normalize_obs)
        model = RecurrentQNetwork(run.network, context.spec, mode, dueling=config.dueling)
        loss = partial(
            r2d2_loss,
            n_step=config.n_step,
            double=config.double,
            rescale=config.rescale,
            huber=config.huber,
        )
        self.learner = Learner(
            model.to(context.device),
            loss,
            config.optimizer,
            compile=run.compute.compile == "on",
            target=True,
        )
        self.normalizes = mode == "running"
        self.budget = UpdateBudget(config.learning_starts)
        self.collect_steps = config.train_every
        self.random_actions = RandomActions(self.space, context.rng.numpy("warm_up"))
        self.epsilon = at(config, 0).epsilon
        wanted = any(getattr(each, "latents", False) for each in run.buffers.values())
        self.keeps = wanted and bool(self.model.initial_state(1))
        self.explore_rng = context.rng.numpy("exploration")

    @property
    def model(self) -> RecurrentQNetwork:
        """The network that is trained and acts."""
        return cast(RecurrentQNetwork, self.learner.module)

    # ------------------------------------------------------------------------------------- acting

    def initial_state(self, batch: int) -> dict[str, Any]:
        """An empty memory, and nothing done yet."""
        previous = torch.zeros(batch, self.model.actions, device=self.context.device)
        return {MEMORY: self.model.initial_state(batch), PREVIOUS: previous}

    def collect_step(self, step: int, *, phase: Phase) -> CollectResult:
        """Random actions until `learning_starts`, then epsilon-greedy ones."""
        self.epsilon = at(self.config, step).epsilon
        random = step < self.config.learning_starts
        return self.collect(self.random_actions if random else self.act, phase)

    def track_statistics(self, trajectory: Batch) -> None:
        """Count each new frame in the observation statistics; the target network shares them."""
        if self.normalizes:
            self.model.normalizer.update_statistics(trajectory[OBS])
            self.learner.copy_buffers()

    @torch.no_grad()
    def act(self, obs: Obs, state: dict[str, Any], *, deterministic: bool) -> Action:
        """The best action by all that was seen; or with probability epsilon a random one."""
        values, memory = self.model.step(obs, state[PREVIOUS], state[MEMORY])
        mask = self.model.mask(obs)
        action = (values if mask is None else masked(values, mask)).argmax(-1)
        if not deterministic:
            explores = self.explore_rng.random(len(action)) < self.epsilon
            if explores.any():
                anything = random_action(self.space, obs, self.explore_rng)
                chosen = np.where(explores, anything, action.numpy(force=True))
                action = torch.from_numpy(chosen).to(values.device)
        after = {MEMORY: memory, PREVIOUS: as_vector(self.space, action)}
        return Action(action, after, {LATENT: packed(memory)} if self.keeps else {})

    def describe(self, obs: Obs, state: Any) -> Mapping[str, Tensor]:
        """The value of each action, and of the best legal one."""
        values, _ = self.model.step(obs, state[PREVIOUS], state[MEMORY])
        mask = self.model.mask(obs)
        legal = values if mask is None else masked(values, mask)
        return {"q_values": values, "value": legal.amax(-1)}

    # ----------------------------------------------------------------------------------- learning

    def sample(self, buffer: Buffer, *, hook: str, phase: Phase) -> Batch | None:
        """Sequences [K, T, B, …] for all gradient steps that are due."""
        now = at(self.config, phase["step"])
        sizes = {"batch_size": now.batch_size, "batch_length": now.batch_length}
        found = sample_windows(buffer, self.budget, phase, now.replay_ratio, **sizes)
        if found is None:
            return None
        return {name: found[name] for name in (*SEEN, LATENT, INDEX) if name in found}

    def update(self, batch: Batch, *, phase: Phase) -> Metrics:
        """One gradient step per batch of sequences; the target moves every `target_every` steps."""
        now, device = at(self.config, phase["step"]), self.context.device
        sizes = step_sizes(now.learning_rate, now.max_grad_norm, device)
        gamma = scalar(now.gamma, device)
        steps, states = [], []
        with all_or_nothing("R2D2 update", q_network=self.learner, budget=self.budget):
            for rows in minibatches(batch, self.budget, phase, now.replay_ratio):
                seen = {name: rows[name] for name in SEEN if name in rows}
                start = self.model.initial_state(rows[RESET].shape[1])
                if LATENT in rows:
                    start = unpacked(rows[LATENT], start)
                step = self.learner.step(seen, start, self.learner.target, gamma, **sizes)
                if self.budget.steps % now.target_every == 0:
                    self.learner.follow(now.target_rate)
                steps.append({**step.metrics, "loss": step.loss, "grad_norm": step.grad_norm})
                states += [step.aux[LATENT]] if LATENT in step.aux else []
        if INDEX in batch and states:  # later windows begin in fresher states
            buffer: Any = self.context.buffer(phase)
            buffer.store_latents(batch[INDEX][:, -1], torch.stack(states))
        return {
            **averages(steps),
            EPSILON: self.epsilon,
            "learning_rate": now.learning_rate,
            "entropy": epsilon_entropy(
                self.epsilon, self.model.actions, self.model.mask(batch[OBS])
            ),
            "gradient_steps": self.budget.steps,
        }
