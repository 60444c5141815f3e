"""World Models: V sees, M foresees, C acts (Ha and Schmidhuber 2018, arXiv:1803.10122).

Reads top to bottom: config, workflow. A convolutional VAE (V) makes a few numbers z of a frame; an
LSTM with mixture heads (M) foresees the next z, and its memory h is what single frames do not show;
a linear controller (C) acts on [z, h]. V and M learn from what was collected at random, C by
CMA-ES, from returns in the environment or in M's dreams.

Departures from the paper (docs/algorithms/world_models.md has the whole list, with numbers): V's
convolutions are padded and its decoder mirrors its encoder; M also predicts rewards, and ends in
every task; windows of frames begin anywhere and may lead from one episode into the next, with the
memory cleared; gradients are clipped by their norm; a dream begins after a few real frames, and
ends by chance; trials and deterministic evaluations see the mean of z, not a sample; all candidates
of a generation play the same episodes; evaluations take the mean of the search, not its best one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from rl_lab.algorithms.base import LearnsFrom, Optimized, Roles
from rl_lab.algorithms.dreamer.imagination import CONTINUES
from rl_lab.algorithms.dreamer.world_learning import FRAME_PARTS, open_loop, wanted_dream
from rl_lab.algorithms.earning import EarningWorkflow
from rl_lab.algorithms.replay import ReplayConfig, averages, require_positive, window_problems
from rl_lab.algorithms.world_models.candidates import (
    LATENT,
    Squash,
    controller_features,
    controls,
    decided,
    dream_step,
    dreamed_returns,
    require_squashings,
)
from rl_lab.algorithms.world_models.mdn_rnn import MDNRNN, dynamics_loss
from rl_lab.algorithms.world_models.vae import ConvVAE, draw, require_image, vae_loss
from rl_lab.core.actions import as_vector, vector_size
from rl_lab.core.batch import (
    ACTION,
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
)
from rl_lab.core.clock import Earned
from rl_lab.core.errors import UserError
from rl_lab.core.optim import FlatOptimizer, scalar
from rl_lab.core.options import option
from rl_lab.core.picture import Picture
from rl_lab.core.protocols import Phase, WorkflowContext
from rl_lab.core.schedule import at, extremes
from rl_lab.core.spec import MultiDiscrete
from rl_lab.core.tree import picked
from rl_lab.networks.memory.recurrent import State
from rl_lab.planning.cma_es import CMAES
from rl_lab.planning.trials import Trials

DEFAULTS = {"representation": ConvVAE, "dynamics": MDNRNN}  # where `components:` says nothing
FITNESS = "fitness"  # of the candidates of a generation, [population]
FORESEEN = 16  # frames of a picture's open-loop prediction, at most
FEWEST = 4  # candidates of a generation
SMALL_TRIAL = 20  # steps of an episode in a run that is small on purpose, at most
_PIECE = 1024  # frames that are encoded at once: a long window of large images would fill memory


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
    mixtures: int = option(5, "Gaussians for each number that M foresees")
    dynamics_rate: float = option(1e-3, "step size for M")
    reward_scale: float = option(1.0, "weight of M's loss of rewards")
    end_scale: float = option(1.0, "weight of M's loss of ends")
    memory: bool = option(True, "C acts on z and M's memory; if not, on z alone")
    squash: list[Squash] = option(
        [], "how C's raw outputs become actions, one name for each number; []: tanh for all"
    )
    fitness: Literal["env", "dream"] = option("env", "where candidates for C are tried out")
    population: int = option(16, "candidates of a generation")
    episodes: int = option(4, "episodes, or dreams, of each candidate; the same ones for all")
    sigma: float = option(0.1, "deviation of the first candidates", fixed=True)
    context: int = option(8, "real frames that lead into a dream")
    horizon: int = option(200, "steps of a dream at most")
    temperature: float = option(1.0, "of dreams: above 1, the unlikely is likelier than M thinks")

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
        for name in ("kl_tolerance", "reward_scale", "end_scale"):
            if (low := extremes(getattr(self, name))[0]) < 0:
                raise ValueError(f"{name} must be 0 or more, got {low:g}")
        if self.optimizer.accumulate > 1:
            raise ValueError("optimizer.accumulate must be 1: a sequence cannot be cut into pieces")

    def memory_problem(self) -> str:
        """Why `network.memory` would do nothing."""
        return "M is the memory"

    def rows_needed(self) -> tuple[str, int]:
        """Frames of the shortest window: where a transition begins, and where it ends."""
        return "batch_length", 2

    def check(self, run: Any) -> list[str]:
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

    def small(self, run: Any, *, call: int, before: int) -> list[dict[str, Any]]:
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


class WorldModels(EarningWorkflow):
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
    config: WorldModelsConfig

    def initialize(self, context: WorkflowContext) -> None:
        """Build V, M and the search for C, and what is known of the generation in play."""
        super().initialize(context)
        config, spec, self.space = self.config, context.spec, context.spec.action
        if isinstance(spec.action, MultiDiscrete):
            raise UserError(f"world_models has one choice per step, '{spec.id}' has more: use ppo")
        self.image = require_image(spec.observation, len(config.channels), spec.id)
        self.squash = require_squashings(config.squash, spec.action, spec.id)
        device, size = context.device, vector_size(spec.action)
        see, foresee = (context.components.get(*each) for each in DEFAULTS.items())
        self.vae = see(self.image, config.latent, config.channels).to(device)
        self.dynamics = foresee(config.latent, size, config.hidden, config.mixtures).to(device)
        self.vae_optimizer = self.make_optimizer("vae", self.vae, vae_loss)
        self.dynamics_optimizer = self.make_optimizer("dynamics", self.dynamics, dynamics_loss)
        self.dynamics_earned = Earned(seen=config.learning_starts)
        features = config.latent + config.hidden * config.memory
        self.search = CMAES(
            np.zeros(size * (features + 1)),
            config.sigma,
            config.population,
            context.rng.numpy("candidates"),
        )
        envs, seeds = context.train_environment.num_envs, context.rng.numpy("trials")
        self.trials = Trials(config.population, config.episodes, envs, seeds)
        self.next_step = 0  # of the run, if nobody plays between two calls of collect
        self.temperature = at(config, 0).temperature  # of dreams that are not of an update
        self.model_rng = context.rng.torch("world_model")
        self.dream_rng = context.rng.torch("dream")
        self.action_rng = context.rng.torch("action")

    def optimizers(self) -> dict[str, FlatOptimizer]:
        """Of V and M; C has no gradient."""
        return {"the VAE": self.vae_optimizer, "the dynamics": self.dynamics_optimizer}

    # ------------------------------------------------------------ acting

    def initial_state(self, batch: int) -> State:
        """M's memory before an episode."""
        return self.dynamics.initial_state(batch)

    def act(self, obs: Any, state: State, *, deterministic: bool) -> Action:
        """By the middle of the search; z is a sample, or its mean if that is wanted."""
        return self._decide(obs, state, self.search.mean[None], deterministic=deterministic)

    def try_out(self, obs: Any, state: State, *, deterministic: bool) -> Action:
        """Every environment by its own candidate."""
        candidates = self.search.ask()[self.trials.candidates]
        return self._decide(obs, state, candidates, deterministic=True)

    @torch.no_grad()
    def _decide(self, obs: Any, state: State, rows: Any, *, deterministic: bool) -> Action:
        """By one controller for all [1, n], or by one for each of N environments [N, n]."""
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
        """Go on with this generation's trials; where there are none, just act."""
        now = at(self.config, step)
        self.temperature = now.temperature
        collector, disturbed = self.context.collector, step != self.next_step
        dreams = self.config.fitness == "dream"
        if step < self.config.learning_starts or dreams or self.trials.complete:
            if disturbed:  # another policy has played, which has another memory
                collector.restart()
            result = super().collect_step(step, phase=phase)
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

    # ------------------------------------------------------------ learning

    def sample(self, buffer: Any, *, hook: str, phase: Phase) -> Batch | None:
        """Frames for V, windows for M; for C the returns of a generation, or starts of dreams."""
        now = at(self.config, phase["step"])
        self.temperature = now.temperature
        if hook == "update_controller":
            return self._returns() if now.fitness == "env" else self._starts(buffer, now)
        length = 1
        if hook != "update_vae":  # one frame more than transitions, as long as episodes allow
            length = max(buffer.window_length(now.batch_length + 1), 2)
        account = self.dynamics_earned if hook == "update_dynamics" else self.earned
        due = self.due(phase, now.replay_ratio, account, ready=buffer.ready(length))
        if due == 0:
            return None
        size = now.batch_size if hook == "update_vae" else now.sequences
        windows: Batch = buffer.sequences(size, length, due)
        return windows

    def _returns(self) -> Batch | None:
        """Of every candidate, once all have played."""
        return {FITNESS: torch.from_numpy(self.trials.returns())} if self.trials.complete else None

    def _starts(self, buffer: Any, now: WorldModelsConfig) -> Batch | None:
        """Windows that lead into dreams."""
        if not buffer.ready(now.context):
            return None
        return picked(buffer.sequences(now.episodes, now.context), 0)

    def update_vae(self, batch: Batch, *, phase: Phase) -> Metrics:
        """V alone: one gradient step per batch of frames [count, 1, B, …]."""
        return self._learn(batch, phase, ("vae",), self.earned)

    def update_dynamics(self, batch: Batch, *, phase: Phase) -> Metrics:
        """M alone: one gradient step per batch of windows [count, T + 1, B, …]."""
        return self._learn(batch, phase, ("dynamics",), self.dynamics_earned)

    def update_world_model(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Both on the same windows: V on as many of their frames as it takes at once."""
        return self._learn(batch, phase, ("vae", "dynamics"), self.earned)

    def _learn(
        self, batch: Batch, phase: Phase, parts: tuple[str, ...], account: Earned
    ) -> Metrics:
        now, count = at(self.config, phase["step"]), len(batch[RESET])

        def step(index: int) -> Metrics:
            rows = picked(batch, index)
            metrics: Metrics = {}
            if "vae" in parts:
                metrics |= self._learn_vae(rows[OBS].flatten(0, 1)[: now.batch_size], now)
            if "dynamics" in parts:
                metrics |= self._learn_dynamics(rows, now)
            return metrics

        steps = self.take_steps(count, step)
        self.spend(count, phase, now.replay_ratio, account)
        return {**averages(steps), "gradient_steps": self.gradient_steps}

    def _learn_vae(self, frames: Tensor, now: WorldModelsConfig) -> Metrics:
        noise = self._normal((len(frames), now.latent))
        tolerance = scalar(now.kl_tolerance, self.context.device)
        rates = self.rates(now.vae_rate, now)
        return _named(self.vae_optimizer.step(frames, noise, tolerance, **rates), "vae")

    def _learn_dynamics(self, rows: Batch, now: WorldModelsConfig) -> Metrics:
        """z is drawn anew every time: M must not learn one sample by heart."""
        mean, log_var = self._encode(rows[OBS])
        scales = (scalar(each, self.context.device) for each in (now.reward_scale, now.end_scale))
        metrics = self.dynamics_optimizer.step(
            draw(mean, log_var, self._normal(mean.shape)),
            as_vector(self.space, rows[PREVIOUS_ACTION]),
            rows[RESET],
            rows[REWARD],
            rows[TERMINATED],
            *scales,
            **self.rates(now.dynamics_rate, now),
        )
        return _named(metrics, "dynamics")

    @torch.no_grad()
    def _encode(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of frames [T, B, …], some rows at a time."""
        rows = max(_PIECE // frames.shape[1], 1)
        pieces = [self.vae.encode(each) for each in frames.split(rows)]
        return torch.cat([each[0] for each in pieces]), torch.cat([each[1] for each in pieces])

    def _normal(self, size: Any) -> Tensor:
        noise = torch.randn(size, generator=self.model_rng, device=self.model_rng.device)
        return noise.to(self.context.device)

    def update_controller(self, batch: Batch, *, phase: Phase) -> Metrics:
        """One generation: the returns of its candidates, played or dreamt, move the search."""
        now = at(self.config, phase["step"])
        fitness = batch[FITNESS] if FITNESS in batch else self._dreamt(batch, now)
        returns = fitness.double().cpu().numpy()
        self.search.tell(returns)
        self.trials.begin_generation()
        return {
            "fitness_mean": float(returns.mean()),
            "fitness_best": float(returns.max()),
            "sigma": self.search.sigma,
            "generation": self.search.generation,
        }

    # ------------------------------------------------------------ dreaming

    def begin_dream(self, seen: Batch, generator: torch.Generator | None = None) -> State:
        """Where M stands at the last of real frames [T, B, …]: its z, and the memory before it.

        Nothing is drawn: z is the mean of what V sees.
        """
        with torch.no_grad():
            latent, _ = self._encode(seen[OBS])
            action = as_vector(self.space, seen[PREVIOUS_ACTION])
            state = self.initial_state(latent.shape[1])
            if len(latent) > 1:
                _, state = self.dynamics.sequence(latent[:-1], action[1:], seen[RESET][:-1], state)
            going_on = (~seen[RESET][-1]).float().unsqueeze(-1)
            memory = {name: each * going_on for name, each in state.items()}
        return {LATENT: latent[-1], **memory}

    @torch.no_grad()
    def dream_step(
        self, state: State, action: Any, generator: torch.Generator
    ) -> tuple[State, Tensor, Tensor]:
        """One step of a dream: the state after actions [N, …], rewards, and chances to go on."""
        device = state[LATENT].device
        vector = as_vector(self.space, torch.as_tensor(action, device=device))
        noise = self.dynamics.noise((len(vector),), generator).to(device)
        return dream_step(self.dynamics, state, vector, noise, self.temperature)

    @torch.no_grad()
    def look(self, state: State) -> Tensor:
        """What a dream's states look like: images [N, C, H, W] in [0, 1]."""
        return self.vae.decode(state[LATENT])

    @torch.no_grad()
    def imagine(self, *, horizon: int, **options: Any) -> Batch:
        """What is expected after sequences `seen` [T, B, …], if `actions` [H, B, …] follow.

        Without `seen`, after the newest frames of the buffer; without `actions`, the controller
        acts. Frames, actions, rewards and chances to go on, [H, B, …].
        """
        seen, given = wanted_dream(self.context.buffers, horizon, options)
        state = self.begin_dream(seen)
        rng = torch.Generator().manual_seed(int(options.get("seed", 0)))
        mean = torch.as_tensor(self.search.mean[None], dtype=torch.float32)
        found: dict[str, list[Tensor]] = {}
        for now in range(horizon):
            features = controller_features(state[LATENT], state, self.config.memory)
            raw = controls(mean.to(features.device), features[None], vector_size(self.space))[0]
            action = decided(self.space, raw, self.squash) if given is None else given[now]
            state, reward, continues = self.dream_step(state, action, rng)
            row = {OBS: self.look(state), ACTION: action, REWARD: reward, CONTINUES: continues}
            for name, each in {**row, LATENT: state[LATENT]}.items():
                found.setdefault(name, []).append(each)
        return {name: torch.stack(each) for name, each in found.items()}

    def pictures(self, paths: Sequence[Any]) -> Mapping[str, Picture]:
        """Something that was played, and what M foresaw of it."""
        return open_loop(self, {OBS: self.image}, FORESEEN)

    @torch.no_grad()
    def _dreamt(self, seen: Batch, now: WorldModelsConfig) -> Tensor:
        """The fitness of the candidates in dreams from windows [T, R, …]."""
        candidates = torch.as_tensor(
            self.search.ask(), dtype=torch.float32, device=self.context.device
        )
        lead = (now.horizon, seen[RESET].shape[1])
        return dreamed_returns(
            self.dynamics,
            candidates,
            self.begin_dream(seen),
            ~seen[TERMINATED][-1],
            self.dynamics.noise(lead, self.dream_rng).to(candidates.device),
            torch.rand(lead, generator=self.dream_rng).to(candidates.device),
            space=self.space,
            squash=self.squash,
            memory=now.memory,
            temperature=now.temperature,
            gamma=now.gamma,
        )


def _named(metrics: Metrics, part: str) -> Metrics:
    """By the part they belong to; the gradient itself is not for logs."""
    return {f"{part}_{name}": each for name, each in metrics.items() if name != "gradient"}
