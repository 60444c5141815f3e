"""Diffusion policy: chunks of actions by denoising (Chi et al. 2023, arXiv:2303.04137).

Reads top to bottom: configs, processes, loss, algorithm. A network learns to tell the noise from
noisy chunks of demonstrated actions, given the last frames; acting starts from noise and denoises
it in a few steps, executes a part of the chunk, and decides again (receding horizon).
`flow_policy` is the same policy with straight paths from noise to actions (conditional flow
matching, Lipman et al. 2023, arXiv:2210.02747), which a few Euler steps follow. Departures from the
paper: few inference steps with DDIM by default, and the MLP denoiser is the default one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from rl_lab.algorithms.base import Algorithm, LearnsFrom, Optimized, Roles, Version
from rl_lab.algorithms.diffusion.chunks import (
    Decide,
    Memory,
    empty_memory,
    executed_slice,
    next_action,
    next_action_traced,
)
from rl_lab.algorithms.diffusion.denoisers import ChunkNetwork, DenoiserConfig
from rl_lab.algorithms.diffusion.schedule import (
    Denoise,
    Prediction,
    add_noise,
    cosine_alpha_bar,
    denoise,
    ema_decay,
    euler,
    interpolate,
    prediction_target,
)
from rl_lab.algorithms.imitation import (
    DatasetScale,
    ImitationConfig,
    decay_length,
    fit_scale,
    learning_rate_share,
    offline_phases,
    sample_chunks,
    scaled,
)
from rl_lab.algorithms.replay import averages, minibatches, step_metrics, step_sizes
from rl_lab.core.batch import Action, Batch, Metrics, Obs
from rl_lab.core.clock import UpdateBudget
from rl_lab.core.errors import UserError
from rl_lab.core.learner import Learner, all_or_nothing
from rl_lab.core.optim import OptimizerConfig
from rl_lab.core.options import option, section, with_defaults
from rl_lab.core.protocols import AlgorithmContext, Buffer, Phase
from rl_lab.core.schedule import at
from rl_lab.core.spec import Box
from rl_lab.networks.encoder import make_encoder

TIME_UNITS = 1000.0  # of a flow's time in [0, 1], so that its embedding varies as a level's does
AdamWConfig = with_defaults(
    OptimizerConfig,
    "AdamWConfig",
    "AdamW as in the paper.",
    name="adamw",
    beta1=0.95,
    weight_decay=1e-6,
    eps=1e-8,
)


@dataclass(frozen=True, kw_only=True)
class ChunkConfig(ImitationConfig):
    """What diffusion and flow policies share. Any float may be a schedule of environment steps."""

    learning_rate: float = option(1e-3, "step size of the optimizer; 1e-4 for large networks")
    warm_up_updates: int = option(
        500, "gradient steps in which the learning rate rises to its value"
    )
    normalize: Literal["moments", "range", "off"] = option(
        "range",
        "observations of a dataset: mean 0 and deviation 1, or its range to [-1, 1], or as they "
        "are; actions always by their range",
    )
    optimizer: OptimizerConfig = section(AdamWConfig, "the optimizer's own settings")
    observation_horizon: int = option(2, "frames that are seen (To)", low=1)
    prediction_horizon: int = option(
        16,
        "actions that are predicted (Tp): the To − 1 that led to the newest frame come first",
        low=1,
    )
    execution_horizon: int = option(
        8, "actions of them that are taken before the next decision (Ta)", low=1
    )
    inference_steps: int = option(10, "denoising steps of a decision", low=1)
    mask_padding: bool = option(
        False, "learn nothing from actions after the end of an episode, which repeat the last one"
    )
    ema_power: float = option(
        0.75, "the average of weights that acts decays by 1 − (1 + n)^−power after n steps", above=0
    )
    ema_most: float = option(0.9999, "its largest decay; 0: the newest weights act", low=0, below=1)
    denoiser: DenoiserConfig = section(DenoiserConfig, "the network that is asked at each step")

    def __post_init__(self) -> None:
        """The executed part lies within the predicted one."""
        super().__post_init__()
        needed = self.observation_horizon - 1 + self.execution_horizon
        if needed > self.prediction_horizon:
            raise ValueError(
                "prediction_horizon must be at least observation_horizon − 1 + execution_horizon, "
                f"{needed}, got {self.prediction_horizon}"
            )


@dataclass(frozen=True, kw_only=True)
class DiffusionConfig(ChunkConfig):
    """Hyperparameters of diffusion policy. Any float may be a schedule of environment steps."""

    noise_levels: int = option(100, "noise levels of training (DDPM steps)", low=2)
    prediction: Prediction = option(
        "epsilon", "what the network says: the noise, v (Salimans & Ho 2022), or the clean sample"
    )
    sampler: Literal["ddim", "ddpm"] = option(
        "ddim", "ddpm draws noise at every step; ddim does by eta, and is good with few steps"
    )
    eta: float = option(0.0, "ddim: noise of a step, 1 is about ddpm", low=0, high=1, fixed=True)

    def __post_init__(self) -> None:
        """A step of inference is one noise level at least."""
        super().__post_init__()
        if self.inference_steps > self.noise_levels:
            raise ValueError(
                f"inference_steps must be at most noise_levels {self.noise_levels}, "
                f"got {self.inference_steps}"
            )

    def process(self, device: str) -> "Process":
        """What turns noise into chunks."""
        eta = self.eta if self.sampler == "ddim" else None
        alpha_bar = cosine_alpha_bar(self.noise_levels).to(device)
        return Diffusion(alpha_bar, self.prediction, self.inference_steps, eta)


@dataclass(frozen=True, kw_only=True)
class FlowConfig(ChunkConfig):
    """Hyperparameters of flow policy. Any float may be a schedule of environment steps."""

    def process(self, device: str) -> "Process":
        """What turns noise into chunks."""
        return Flow(self.inference_steps)


# ------------------------------------------------------------------------------------- processes


class Process(Protocol):
    """How noise and chunks belong together, in training and in acting."""

    @property
    def noises(self) -> int:
        """Random chunks that one sample needs beyond the first one."""

    def training(
        self, clean: Tensor, noise: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Noisy chunks, their noise levels [B], and the values that the network predicts."""

    def sample(self, predict: Denoise, start: Tensor, noises: Tensor | None) -> Tensor:
        """Chunks from noise [B, Tp, A]; without `noises` [noises, B, Tp, A] nothing is drawn."""


@dataclass(frozen=True)
class Diffusion:
    """A cosine schedule of noise levels, left again by DDPM or DDIM."""

    alpha_bar: Tensor
    prediction: Prediction
    steps: int
    eta: float | None  # of DDIM; None: DDPM

    @property
    def noises(self) -> int:
        """After all steps but the last one, unless nothing is drawn."""
        return 0 if self.eta == 0.0 else self.steps - 1

    def training(
        self, clean: Tensor, noise: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A random level for each chunk."""
        shape, device = (len(clean),), clean.device
        level = torch.randint(len(self.alpha_bar), shape, generator=rng, device=device)
        alpha_bar = self.alpha_bar[level].to(clean.dtype).view(-1, 1, 1)
        target = prediction_target(self.prediction, clean, noise, alpha_bar)
        return add_noise(clean, noise, alpha_bar), level.float(), target

    def sample(self, predict: Denoise, start: Tensor, noises: Tensor | None) -> Tensor:
        """From the noisiest level to none."""
        return denoise(
            predict,
            start,
            noises,
            self.alpha_bar,
            kind=self.prediction,
            steps=self.steps,
            eta=self.eta,
        )


@dataclass(frozen=True)
class Flow:
    """Straight paths from noise at time 0 to chunks at time 1, followed by Euler steps."""

    steps: int
    noises: ClassVar[int] = 0

    def training(
        self, clean: Tensor, noise: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A uniform time for each chunk."""
        time = torch.rand(len(clean), generator=rng, device=clean.device)
        noisy, velocity = interpolate(noise, clean, time.view(-1, 1, 1))
        return noisy, TIME_UNITS * time, velocity

    def sample(self, predict: Denoise, start: Tensor, noises: Tensor | None) -> Tensor:
        """Along the learned velocities."""
        return euler(lambda x, time: predict(x, TIME_UNITS * time), start, self.steps)


def chunk_loss(
    network: nn.Module, frames: Obs, noisy: Tensor, level: Tensor, target: Tensor, mask: Tensor
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Mean squared error of the prediction over the actions where `mask` [B, Tp] is 1."""
    error = (network(noisy, level, frames) - target).square().mean(-1)
    return (error * mask).sum() / mask.sum().clamp(min=1.0), {}, {}


# ------------------------------------------------------------------------------------- algorithm


class DiffusionPolicy(Algorithm):
    """Chunks of actions that a process makes from noise: diffusion, or a flow."""

    Config: ClassVar[type | None] = DiffusionConfig
    actions: ClassVar[str] = "continuous"
    learns_from: ClassVar[LearnsFrom] = "chunks"
    unit_actions: ClassVar[bool] = True
    roles: ClassVar[Roles] = {}
    optimized: ClassVar[Optimized] = ()
    phases: ClassVar[list[dict[str, Any]]] = offline_phases()
    defaults: ClassVar[Mapping[str, Any]] = {
        "buffers": {"data": {"type": "offline"}},
        "network": {"encoder": {"type": "auto", "hidden_dims": []}},
        "evaluation": {"deterministic": False},
    }
    config: DiffusionConfig

    def initialize(self, context: AlgorithmContext) -> None:
        """Build the network with its average, and bind the streams of random numbers."""
        super().initialize(context)
        run, spec, config, device = context.config, context.spec, self.config, context.device
        if not isinstance(spec.action, Box) or len(spec.action.shape) != 1:
            raise UserError(f"{config.name} needs a flat Box of actions, '{spec.id}' has none")
        self.scale = DatasetScale(config.normalize, spec.observation, spec.action).to(device)
        self.process: Process = config.process(device)
        encoder = make_encoder(run.network.encoder, spec.observation)
        shape = (config.prediction_horizon, spec.action.size)
        network = ChunkNetwork(encoder, config.denoiser, shape, config.observation_horizon)
        self.network = Learner(
            network.to(device),
            chunk_loss,
            config.optimizer,
            compile=run.compute.compile == "on",
            target=True,
        )
        self.shape = shape
        self.budget = UpdateBudget()
        self.collect_steps = config.collect_steps
        self.decay_updates = decay_length(config, run)
        self.action_rng = context.rng.torch("actions", device)
        self.noise_rng = context.rng.torch("updates", device)
        # What a deterministic policy starts from: some noise, always the same.
        fixed = torch.Generator().manual_seed(0)
        self.fixed_noise = torch.randn(shape, generator=fixed).to(device)

    def initial_state(self, batch: int) -> Memory:
        """No frames and no actions."""
        config = self.config
        return empty_memory(
            self.context.spec.observation,
            batch,
            history=config.observation_horizon,
            executed=config.execution_horizon,
            size=self.shape[1],
            device=self.context.device,
        )

    @torch.no_grad()
    def act(self, obs: Obs, state: Any, *, deterministic: bool) -> Action:
        """The next action of each queue; a new chunk where one is empty."""
        start = noises = None
        if not deterministic and bool((state["age"] % self.config.execution_horizon == 0).any()):
            count = len(state["age"])  # for all rows: whose turn it is changes no other's numbers
            start = self._draw((count, *self.shape), self.action_rng)
            if self.process.noises:
                noises = self._draw((self.process.noises, count, *self.shape), self.action_rng)
        action, state = next_action(state, obs, self._decide(start, noises))
        return Action(action, state)

    def greedy(self, obs: Any, state: Any) -> Action:
        """The same from fixed noise, for all rows at each step."""
        action, state = next_action_traced(state, obs, self._decide(None, None))
        return Action(action, state)

    def _decide(self, start: Tensor | None, noises: Tensor | None) -> Decide:
        """How rows with an empty queue get a chunk: from this noise [N, …], or the fixed one."""
        config, network = self.config, self.network.target
        assert isinstance(network, ChunkNetwork)

        def decide(frames: Obs, rows: Tensor) -> Tensor:
            condition = network.condition(self.scale.observation(frames))
            fixed = self.fixed_noise.expand(rows.shape[0], *self.shape)
            chunk = self.process.sample(
                lambda noisy, level: network.denoiser(noisy, level, condition),
                fixed if start is None else start[rows],
                None if noises is None else noises[:, rows],
            )
            chosen = executed_slice(chunk, config.observation_horizon, config.execution_horizon)
            return self.scale.from_unit(chosen)

        return decide

    def sample(self, buffer: Buffer, *, hook: str, phase: Phase) -> Batch | None:
        """One minibatch of frames and the actions around them."""
        past, future = self.config.observation_horizon, self.config.prediction_horizon
        size = self.config.batch_size
        return sample_chunks(
            buffer, self.budget, phase, size, past=past, future=future - (past - 1)
        )

    def update(self, batch: Batch, *, phase: Phase) -> Metrics:
        """One gradient step, and one of the average."""
        fit_scale(self.context, self.scale, phase)
        now, device = at(self.config, phase["step"]), self.context.device
        steps = []
        with all_or_nothing("update of the policy", network=self.network, budget=self.budget):
            share = learning_rate_share(
                self.budget.steps, warm_up=now.warm_up_updates, total=self.decay_updates
            )
            rate = share * now.learning_rate
            sizes = step_sizes(rate, now.max_grad_norm, device)
            decay = ema_decay(self.budget.steps, power=now.ema_power, most=now.ema_most)
            for rows in minibatches(batch, self.budget, phase, 0.0):
                frames, clean, mask = scaled(rows, self.scale)
                noise = self._draw(clean.shape, self.noise_rng)
                noisy, level, target = self.process.training(clean, noise, self.noise_rng)
                counted = mask.float() if now.mask_padding else torch.ones_like(clean[..., 0])
                step = self.network.step(frames, noisy, level, target, counted, **sizes)
                self.network.follow(1.0 - decay)
                steps.append(step_metrics("policy", step))
        numbers = {"learning_rate": rate, "ema_decay": decay, "gradient_steps": self.budget.steps}
        return {**averages(steps), **numbers}

    def _draw(self, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
        """Standard normal."""
        return torch.randn(shape, generator=rng, device=rng.device)


FlowPolicy = Version(
    DiffusionPolicy,
    "Chunks of actions by conditional flow matching: straight paths, a few Euler steps.",
    config=FlowConfig,
    phases=DiffusionPolicy.phases,
    defaults=DiffusionPolicy.defaults,
)
