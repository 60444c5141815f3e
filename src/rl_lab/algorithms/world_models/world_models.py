"""World Models: V encodes, M predicts, C acts (Ha and Schmidhuber 2018, arXiv:1803.10122).

Reads top to bottom: config, the algorithm. A convolutional VAE (V) encodes a frame as a few numbers
z; an LSTM with mixture heads (M) predicts the next z, and its memory h has what single frames do
not show; a linear controller (C) acts on [z, h]. V and M learn from data of a random policy, C by
CMA-ES, from returns in the environment or in rollouts imagined by M.

Departures from the paper (docs/algorithms/world_models.md has the whole list, with numbers): V's
convolutions are padded and its decoder mirrors its encoder; M also predicts rewards, and ends in
every task; windows of frames begin anywhere and may lead from one episode into the next, with the
memory cleared; gradients are clipped by their norm; an imagined rollout begins after a few real
frames, and its end is sampled; trials and deterministic evaluations see the mean of z, not a
sample; all candidates of a generation play the same episodes; evaluations take the mean of the
search, not its best one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor

from rl_lab.algorithms.base import Algorithm, LearnsFrom, Optimized, Roles
from rl_lab.algorithms.dreamer.open_loop import newest_episode_pictures, predict
from rl_lab.algorithms.replay import (
    BUDGET_NAMES,
    ReplayConfig,
    averages,
    minibatches,
    require_not_negative,
    require_positive,
    sample_windows,
    step_sizes,
    window_problems,
)
from rl_lab.algorithms.world_models.candidates import (
    LATENT,
    Squash,
    controller_features,
    controls,
    decided,
    imagined_returns,
    require_squashings,
)
from rl_lab.algorithms.world_models.imagination import FrameImagination, encode
from rl_lab.algorithms.world_models.mdn_rnn import MDNRNN, dynamics_loss
from rl_lab.algorithms.world_models.vae import ConvVAE, draw, require_image, vae_loss
from rl_lab.core.actions import RandomActions
from rl_lab.core.batch import (
    OBS,
    PREVIOUS_ACTION,
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
from rl_lab.core.clock import UpdateBudget
from rl_lab.core.errors import UserError
from rl_lab.core.learner import Learner, Update, all_or_nothing, scalar
from rl_lab.core.options import option
from rl_lab.core.picture import Picture
from rl_lab.core.protocols import AlgorithmContext, Buffer, Phase, Sequences
from rl_lab.core.schedule import at, extremes
from rl_lab.core.schema import RunConfig
from rl_lab.core.spec import MultiDiscrete
from rl_lab.core.state import Tree
from rl_lab.core.tree import picked
from rl_lab.networks.memory.recurrent import State
from rl_lab.networks.mlp import as_vector, vector_size
from rl_lab.planning.cma_es import CMAES
from rl_lab.planning.trials import Trials

FRAME_PARTS = {  # roles of `components:`, and what is called of each
    "representation": ("encode", "decode", "pixels"),
    "dynamics": ("initial_state", "step", "sequence", "predict", "noise"),
}
DEFAULTS = {"representation": ConvVAE, "dynamics": MDNRNN}  # unless `components:` names another
# Today's names of saved state, and those in checkpoints of earlier versions.
OLD_NAMES = {
    "vae_learner.module": "vae",
    "vae_learner.optimizer": "vae_optimizer",
    "dynamics_learner.module": "dynamics",
    "dynamics_learner.optimizer": "dynamics_optimizer",
    **BUDGET_NAMES,
    "dynamics_budget.seen": "dynamics_earned.seen",
    "dynamics_budget.parts": "dynamics_earned.parts",
}
FITNESS = "fitness"  # of the candidates of a generation, [population]
OPEN_LOOP_STEPS = 16  # frames of a picture's open-loop prediction, at most
FEWEST = 4  # candidates of a generation
SMALL_TRIAL = 20  # steps of an episode in a run that is small on purpose, at most


@dataclass(frozen=True, kw_only=True)
class WorldModelsConfig(ReplayConfig):
    """Hyperparameters of World Models. Any float may be a schedule.

    Networks, rates and V's batches have the paper's sizes. The windows of M, the population and the
    episodes are smaller: `CarRacing-v3:world_models_paper` has those of the paper.
    """

    batch_size: int = option(100, "frames of one gradient step of V")
    sequences: int = option(16, "windows of one gradient step of M")
    batch_length: int = option(
        32, "transitions of each window at most: as many as the longest episode in the buffer has"
    )
    replay_ratio: float = option(
        0.0,
        "gradient steps per environment step, fractions are carried; 0: one per call of the hook",
    )
    learning_starts: int = option(
        0, "environment steps of random actions at first, where no phase has `policy: random`"
    )
    train_every: int = option(50, "vector steps of one collect call")
    gamma: float = option(1.0, "discount factor of the rewards in a candidate's fitness")
    latent: int = option(32, "numbers that V makes of a frame")
    channels: list[int] = option(
        [32, 64, 128, 256], "channels of V's layers; each halves the image"
    )
    kl_tolerance: float = option(0.5, "nats per number of z that cost V nothing")
    vae_rate: float = option(1e-4, "step size for V")
    hidden: int = option(256, "width of M's memory")
    mixtures: int = option(5, "Gaussians for each number that M predicts")
    dynamics_rate: float = option(1e-3, "step size for M")
    reward_scale: float = option(1.0, "weight of M's loss of rewards")
    end_scale: float = option(1.0, "weight of M's loss of ends")
    memory: bool = option(True, "C acts on z and M's memory; if not, on z alone")
    squash: list[Squash] = option(
        [], "how C's raw outputs become actions, one name for each number; []: tanh for all"
    )
    fitness: Literal["env", "dream"] = option("env", "where candidates for C are tried out")
    population: int = option(16, "candidates of a generation")
    episodes: int = option(
        4, "episodes, or imagined rollouts, of each candidate; the same ones for all"
    )
    sigma: float = option(0.1, "deviation of the first candidates", fixed=True)
    context: int = option(8, "real frames before an imagined rollout")
    horizon: int = option(200, "steps of an imagined rollout at most")
    temperature: float = option(1.0, "of M in imagined rollouts: above 1 makes them less certain")

    def __post_init__(self) -> None:
        """Refuse values that cannot work, before anything is built."""
        super().__post_init__()
        least = dict.fromkeys(("sequences", "latent", "hidden", "mixtures", "episodes"), 1)
        least |= {"batch_length": 1, "population": FEWEST, "context": 1, "horizon": 1}
        for name, count in least.items():
            if getattr(self, name) < count:
                raise ValueError(f"{name} must be at least {count}, got {getattr(self, name)}")
        if not self.channels or min(self.channels) < 1:
            raise ValueError(f"channels must be positive numbers, got {self.channels}")
        require_positive(self, "vae_rate", "dynamics_rate", "sigma", "temperature")
        if extremes(self.temperature)[0] == 0:
            raise ValueError("temperature must never be 0: it is divided by")
        require_not_negative(self, "kl_tolerance", "reward_scale", "end_scale")
        if self.optimizer.accumulate > 1:
            raise ValueError("optimizer.accumulate must be 1: a sequence cannot be cut into pieces")

    def memory_problem(self) -> str:
        """Why `network.memory` would do nothing."""
        return "M is the memory"

    def rows_needed(self) -> tuple[str, int]:
        """Frames of the shortest window: where a transition begins, and where it ends."""
        return "batch_length", 2

    def check(self, run: RunConfig) -> list[str]:
        """Problems that only show together with the rest of the configuration."""
        problems = super().check(run)
        problems += window_problems(run, *self.rows_needed())
        if self.fitness == "dream":
            problems += window_problems(run, "context", self.context)
        trials, envs = self.population * self.episodes, run.environment.num_envs
        if self.fitness == "env" and trials % envs:
            problems.append(
                "population × episodes must fill the environments, which try out one candidate "
                f"each: {trials} trials are no multiple of environment.num_envs, {envs}"
            )
        vector = run.environment.vectorization
        if self.fitness == "env" and vector in ("native", "envpool"):  # one seed for all of them
            problems.append(
                f"environment.vectorization={vector} cannot begin the same episode for several "
                "candidates: use sync or process, or algorithm.fitness=dream"
            )
        return problems

    def small(self, run: RunConfig, *, call: int, before: int) -> list[dict[str, Any]]:
        """Short calls, short windows, and where C learns from episodes, few and short ones."""
        changes = super().small(run, call=call, before=before)
        envs = run.environment.num_envs
        reach = max(call // envs, 1)
        if self.fitness == "env":
            fewest = envs * math.ceil(FEWEST / envs)  # candidates that fill the environments
            reach = max(call // fewest, 1)
            limit = run.environment.max_episode_steps or SMALL_TRIAL
            changes.append({"algorithm.population": fewest, "algorithm.episodes": 1})
            changes.append({"environment.max_episode_steps": min(reach, SMALL_TRIAL, limit)})
        every = min(reach, self.train_every)
        frames = max(before // envs, every)  # of each environment, before the first window
        changes.append({"algorithm.train_every": every})
        changes.append({"algorithm.batch_length": min(self.batch_length, frames)})
        changes.append({"algorithm.context": min(self.context, frames)})
        return changes


class WorldModels(Algorithm):
    """World Models: model-based; VAE and MDN-RNN, with a controller searched by CMA-ES."""

    Config: ClassVar[type | None] = WorldModelsConfig
    uses_network: ClassVar[bool] = False
    compiles: ClassVar[bool] = False
    roles: ClassVar[Roles] = FRAME_PARTS
    optimized: ClassVar[Optimized] = ("vae", "dynamics")
    learns_from: ClassVar[LearnsFrom] = "sequences"
    unit_actions: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = {"buffers": {"replay": {"type": "sequence"}}}
    phases: ClassVar[list[dict[str, Any]]] = [
        {"name": "explore", "policy": "random", "duration_steps": 10_000, "hooks": ["collect"]},
        {"name": "see", "type": "offline", "duration_updates": 2_000, "hooks": ["update_vae"]},
        {
            "name": "foresee",
            "type": "offline",
            "duration_updates": 2_000,
            "hooks": ["update_dynamics"],
        },
        {"name": "control", "hooks": ["collect", "update_controller"]},
    ]
    old_names: ClassVar[Mapping[str, str]] = OLD_NAMES
    config: WorldModelsConfig

    def initialize(self, context: AlgorithmContext) -> None:
        """Build the learners of V and M, the search for C, budgets and random streams."""
        super().initialize(context)
        config, spec, self.space = self.config, context.spec, context.spec.action
        if isinstance(spec.action, MultiDiscrete):
            raise UserError(f"world_models has one choice per step, '{spec.id}' has more: use ppo")
        self.image = require_image(spec.observation, len(config.channels), spec.id)
        self.squash = require_squashings(config.squash, spec.action, spec.id)
        device, size = context.device, vector_size(spec.action)
        make_vae, make_rnn = (context.components.get(*each) for each in DEFAULTS.items())
        vae = make_vae(self.image, config.latent, config.channels).to(device)
        dynamics = make_rnn(config.latent, size, config.hidden, config.mixtures).to(device)
        rules = context.optimizers
        self.vae_learner = Learner(vae, vae_loss, config.optimizer, optimizer=rules.get("vae"))
        self.dynamics_learner = Learner(
            dynamics, dynamics_loss, config.optimizer, optimizer=rules.get("dynamics")
        )
        self.budget = UpdateBudget(config.learning_starts)  # of V, or of V and M together
        self.dynamics_budget = UpdateBudget(config.learning_starts)  # of M alone
        self.collect_steps = config.train_every
        self.random_actions = RandomActions(spec.action, context.rng.numpy("warm_up"))
        features = config.latent + config.hidden * config.memory
        self.search = CMAES(
            np.zeros(size * (features + 1)),
            config.sigma,
            config.population,
            context.rng.numpy("candidates"),
        )
        envs, seeds = context.train_environment.num_envs, context.rng.numpy("trials")
        self.trials = Trials(config.population, config.episodes, envs, seeds)
        self.next_step = 0  # of the run, if no other policy collects between two calls
        self.temperature = at(config, 0).temperature  # of `imagination`
        self.model_rng = context.rng.torch("world_model")
        self.imagination_rng = context.rng.torch("dream")
        self.action_rng = context.rng.torch("action")

    @property
    def vae(self) -> ConvVAE:
        """V."""
        return cast(ConvVAE, self.vae_learner.module)

    @property
    def dynamics(self) -> MDNRNN:
        """M."""
        return cast(MDNRNN, self.dynamics_learner.module)

    @property
    def gradient_steps(self) -> int:
        """Taken by all hooks together."""
        return self.budget.steps + self.dynamics_budget.steps

    def with_new_names(self, state: Mapping[str, Tree]) -> Mapping[str, Tree]:
        """As `old_names` say; earlier versions counted the steps of all hooks in one number."""
        renamed = super().with_new_names(state)
        if "steps" in renamed.get("dynamics_budget", {"steps": 0}):
            return renamed
        return {**renamed, "dynamics_budget": {**renamed["dynamics_budget"], "steps": 0}}

    # ------------------------------------------------------------------------------------- acting

    def initial_state(self, batch: int) -> State:
        """M's memory before an episode."""
        return self.dynamics.initial_state(batch)

    def act(self, obs: Obs, state: State, *, deterministic: bool) -> Action:
        """The actions of the search's mean; z is sampled, or its mean if deterministic."""
        return self._decide(obs, state, self.search.mean[None], deterministic=deterministic)

    def try_out(self, obs: Obs, state: State, *, deterministic: bool) -> Action:
        """Each environment with the actions of its own candidate."""
        candidates = self.search.ask()[self.trials.candidates]
        return self._decide(obs, state, candidates, deterministic=True)

    @torch.no_grad()
    def _decide(self, obs: Obs, state: State, rows: Array, *, deterministic: bool) -> Action:
        """The actions of one controller for all [1, n], or of one for each environment [N, n]."""
        latent, log_var = self.vae.encode(obs)
        if not deterministic:
            noise = torch.randn(latent.shape, generator=self.action_rng)
            latent = draw(latent, log_var, noise.to(latent.device))
        parameters = torch.as_tensor(rows, dtype=latent.dtype, device=latent.device)
        features = controller_features(latent, state, self.config.memory)
        groups = features.reshape(len(parameters), -1, features.shape[-1])
        raw = controls(parameters, groups, vector_size(self.space)).flatten(0, 1)
        action = decided(self.space, raw, self.squash)
        if self.config.memory:
            _, state = self.dynamics.step(latent, as_vector(self.space, action), state)
        return Action(action, state)

    def collect_step(self, step: int, *, phase: Phase) -> CollectResult:
        """Continue the trials of this generation; without trials, collect with `act`."""
        now = at(self.config, step)
        self.temperature = now.temperature
        collector, disturbed = self.context.collector, step != self.next_step
        warm_up = step < self.config.learning_starts
        if warm_up or self.config.fitness == "dream" or self.trials.complete:
            if disturbed:  # another policy has collected, which has another memory
                collector.restart()
            result = self.collect(self.random_actions if warm_up else self.act, phase)
        else:
            begun = self.trials.in_round and self.trials.elapsed > 0
            if disturbed or not begun:
                collector.restart(self.trials.begin_round())
            result = self._try_on(now.gamma, self.collect_length(phase))
        self.next_step = step + result.steps
        return result

    def _try_on(self, gamma: float, steps: int) -> CollectResult:
        state = self.initial_state(self.trials.num_envs)
        result = self.context.collector.collect(self.try_out, steps=steps, state=state)
        rows = result.trajectory
        assert rows is not None
        first = rows[RESET][0].cpu().numpy()
        if self.trials.elapsed > 0 and (first & self.trials.playing).any():
            self.trials.forget_round()  # the run has begun new episodes in the middle of the trials
            return result
        ended = (rows[TERMINATED] | rows[TRUNCATED]).cpu().numpy()
        self.trials.count(rows[REWARD].cpu().numpy(), ended, gamma)
        return result

    # ----------------------------------------------------------------------------------- learning

    def sample(self, buffer: Buffer, *, hook: str, phase: Phase) -> Batch | None:
        """Frames for V, windows for M; for C the returns of a generation, or starts of rollouts."""
        now, frames = at(self.config, phase["step"]), cast(Sequences, buffer)
        self.temperature = now.temperature
        if hook == "update_controller":
            return self._returns() if now.fitness == "env" else self._starts(frames, now)
        length = 1
        if hook != "update_vae":  # one frame more than transitions, as long as episodes allow
            length = max(frames.window_length(now.batch_length + 1), 2)
        budget = self.dynamics_budget if hook == "update_dynamics" else self.budget
        size = now.batch_size if hook == "update_vae" else now.sequences
        return sample_windows(
            buffer, budget, phase, now.replay_ratio, batch_size=size, batch_length=length
        )

    def _returns(self) -> Batch | None:
        """Of every candidate, once all trials are complete."""
        return {FITNESS: torch.from_numpy(self.trials.returns())} if self.trials.complete else None

    def _starts(self, buffer: Sequences, now: WorldModelsConfig) -> Batch | None:
        """Windows after which imagined rollouts begin."""
        if not buffer.ready(now.context):
            return None
        return picked(buffer.sequences(now.episodes, now.context), 0)

    def update_vae(self, batch: Batch, *, phase: Phase) -> Metrics:
        """One gradient step of V per batch of frames [K, 1, B, …]."""
        now = at(self.config, phase["step"])
        with all_or_nothing("World Models update", vae=self.vae_learner, budget=self.budget):
            rows = minibatches(batch, self.budget, phase, now.replay_ratio)
            steps = [_named(self._vae_step(each, now), "vae") for each in rows]
        return {**averages(steps), "gradient_steps": self.gradient_steps}

    def update_dynamics(self, batch: Batch, *, phase: Phase) -> Metrics:
        """One gradient step of M per batch of windows [K, T + 1, B, …]."""
        now, budget = at(self.config, phase["step"]), self.dynamics_budget
        with all_or_nothing("World Models update", dynamics=self.dynamics_learner, budget=budget):
            rows = minibatches(batch, budget, phase, now.replay_ratio)
            steps = [_named(self._dynamics_step(each, now), "dynamics") for each in rows]
        return {**averages(steps), "gradient_steps": self.gradient_steps}

    def update_world_model(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Both on the same windows: V on the first `batch_size` of their frames."""
        now, steps = at(self.config, phase["step"]), []
        learners = {"vae": self.vae_learner, "dynamics": self.dynamics_learner}
        with all_or_nothing("World Models update", **learners, budget=self.budget):
            for rows in minibatches(batch, self.budget, phase, now.replay_ratio):
                vae, dynamics = self._vae_step(rows, now), self._dynamics_step(rows, now)
                steps.append({**_named(vae, "vae"), **_named(dynamics, "dynamics")})
        return {**averages(steps), "gradient_steps": self.gradient_steps}

    def _vae_step(self, rows: Batch, now: WorldModelsConfig) -> Update:
        frames = rows[OBS].flatten(0, 1)[: now.batch_size]
        noise = self._normal((len(frames), now.latent))
        tolerance = scalar(now.kl_tolerance, self.context.device)
        sizes = step_sizes(now.vae_rate, now.max_grad_norm, self.context.device)
        return self.vae_learner.step(frames, noise, tolerance, **sizes)

    def _dynamics_step(self, rows: Batch, now: WorldModelsConfig) -> Update:
        """z is sampled again in every step, so that M does not overfit to one sample."""
        mean, log_var = encode(self.vae, rows[OBS])
        device = self.context.device
        return self.dynamics_learner.step(
            draw(mean, log_var, self._normal(mean.shape)),
            as_vector(self.space, rows[PREVIOUS_ACTION]),
            rows[RESET],
            rows[REWARD],
            rows[TERMINATED],
            scalar(now.reward_scale, device),
            scalar(now.end_scale, device),
            **step_sizes(now.dynamics_rate, now.max_grad_norm, device),
        )

    def _normal(self, size: Sequence[int]) -> Tensor:
        noise = torch.randn(size, generator=self.model_rng, device=self.model_rng.device)
        return noise.to(self.context.device)

    def update_controller(self, batch: Batch, *, phase: Phase) -> Metrics:
        """One generation of CMA-ES, by the real or imagined returns of its candidates."""
        now = at(self.config, phase["step"])
        fitness = batch[FITNESS] if FITNESS in batch else self._imagined_fitness(batch, now)
        returns = fitness.double().cpu().numpy()
        self.search.tell(returns)
        self.trials.begin_generation()
        return {
            "fitness_mean": float(returns.mean()),
            "fitness_best": float(returns.max()),
            "sigma": self.search.sigma,
            "generation": self.search.generation,
        }

    @torch.no_grad()
    def _imagined_fitness(self, seen: Batch, now: WorldModelsConfig) -> Tensor:
        """The mean returns of the candidates in rollouts imagined after windows [T, R, …]."""
        candidates = torch.as_tensor(
            self.search.ask(), dtype=torch.float32, device=self.context.device
        )
        lead, rng = (now.horizon, seen[RESET].shape[1]), self.imagination_rng
        return imagined_returns(
            self.dynamics,
            candidates,
            self.imagination.start(seen),
            ~seen[TERMINATED][-1],
            self.dynamics.noise(lead, rng).to(candidates.device),
            torch.rand(lead, generator=rng).to(candidates.device),
            space=self.space,
            squash=self.squash,
            memory=now.memory,
            temperature=now.temperature,
            gamma=now.gamma,
        )

    # -------------------------------------------------------------------------------- imagination

    @property
    def imagination(self) -> FrameImagination:
        """How to roll M out, at the temperature of now."""
        return FrameImagination(self.vae, self.dynamics, self.space, self.temperature)

    def imagine(self, *, horizon: int, **options: Any) -> Batch:
        """Predict `horizon` steps with the search's mean as C; see `open_loop.predict`."""
        return predict(self.imagination, self._imagined_action, self.context, horizon, **options)

    def _imagined_action(self, state: State) -> Tensor:
        features = controller_features(state[LATENT], state, self.config.memory)
        mean = torch.as_tensor(self.search.mean[None], dtype=torch.float32, device=features.device)
        raw = controls(mean, features[None], vector_size(self.space))[0]
        return decided(self.space, raw, self.squash)

    def pictures(self, paths: Sequence[Any]) -> Mapping[str, Picture]:
        """The newest episode, and an open-loop prediction of it."""
        return newest_episode_pictures(self, {OBS: self.image}, OPEN_LOOP_STEPS)


def _named(step: Update, part: str) -> Metrics:
    """The metrics of a gradient step with the name of the part."""
    metrics = {**step.metrics, "loss": step.loss, "grad_norm": step.grad_norm}
    return {f"{part}_{name}": each for name, each in metrics.items()}
