"""What algorithms with a recurrent state-space model share: windows, dreams, pictures of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from rl_lab.algorithms.base import LearnsFrom, Roles
from rl_lab.algorithms.dreamer.imagination import CONTINUES, SEEN, foresight_pictures
from rl_lab.algorithms.dreamer.rssm import State
from rl_lab.algorithms.dreamer.world_config import WorldModelConfig
from rl_lab.algorithms.dreamer.world_model import WorldModel
from rl_lab.algorithms.earning import EarningWorkflow
from rl_lab.algorithms.replay import LONGEST, ReplayConfig, window_problems
from rl_lab.core.actions import as_vector
from rl_lab.core.batch import ACTION, INDEX, LATENT, OBS, PREVIOUS_ACTION, RESET, REWARD, Batch
from rl_lab.core.errors import UserError
from rl_lab.core.options import option
from rl_lab.core.picture import Picture
from rl_lab.core.protocols import Phase
from rl_lab.core.schedule import extremes
from rl_lab.core.spec import Space
from rl_lab.core.tree import map_leaves, picked

WORLD_PARTS = {  # what may be replaced, and what is called
    "representation": ("out_dim",),
    "dynamics": (
        *("feature_dim", "initial", "noise", "observe", "observe_sequence"),
        *("imagine_step", "features", "prior", "kl"),
    ),
    "decoder": ("loss", "decode"),
}
DREAMER_PARTS = {
    **WORLD_PARTS,
    "actor": ("draw", "mode", "judge", "to_action", "noise", "is_box", "squashed"),
    "critic": ("mean", "loss"),
    "returns": (),
}
FRAME_PARTS = {
    "representation": ("encode", "decode", "pixels"),
    "dynamics": ("initial_state", "step", "sequence", "predict", "noise"),
}
BELIEF = ("deter", "stoch")  # of a state: where the model thinks it is


@dataclass(frozen=True, kw_only=True)
class WorldConfig(WorldModelConfig, ReplayConfig):
    """A world model, and when it learns. Any float may be a schedule."""

    batch_size: int = option(8, "sequences of one gradient step")
    batch_length: int = option(32, "frames of each sequence")
    continue_scale: float = option(
        1.0, "weight of the loss of continuations; 0: no end of an episode is foreseen"
    )

    def __post_init__(self) -> None:
        """Refuse values that cannot work, before anything is built."""
        WorldModelConfig.__post_init__(self)
        ReplayConfig.__post_init__(self)
        if self.batch_length < 2:
            raise ValueError(f"batch_length must be at least 2, got {self.batch_length}")
        if self.optimizer.accumulate > 1:
            raise ValueError("optimizer.accumulate must be 1: a sequence cannot be cut into pieces")

    def gradient_steps(self, run: Any) -> float:
        """What compiling has to repay: a few minutes, but each step then takes half as long.

        The memory is unrolled, so with long sequences it would be many minutes.
        """
        return 6 * super().gradient_steps(run) if self.batch_length <= LONGEST else 0.0

    def check(self, run: Any) -> list[str]:
        """Problems that only show together with the rest of the configuration."""
        problems = super().check(run)
        if run.environment.normalize_obs:
            problems.append("a world model sees frames as they are: set normalize_obs to false")
        return problems + window_problems(run, *self.rows_needed())

    @property
    def foresees_ends(self) -> bool:
        """Whether imagined episodes may end: if not, nobody has taught the model when."""
        return extremes(self.continue_scale)[1] > 0

    def memory_problem(self) -> str:
        """Why `network.memory` would do nothing."""
        return "the world model is the memory"

    def rows_needed(self) -> tuple[str, int]:
        """Frames of one window."""
        return "batch_length", self.batch_length


class WorldWorkflow(EarningWorkflow):
    """A subclass makes `world` in `initialize`, and learns it from sequences."""

    uses_network: ClassVar[bool] = False
    roles: ClassVar[Roles] = WORLD_PARTS
    learns_from: ClassVar[LearnsFrom] = "sequences"
    unit_actions: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = {"buffers": {"replay": {"type": "sequence"}}}
    shown_steps: ClassVar[int] = 15  # of open-loop predictions
    world: WorldModel

    def begin_windows(self, windows: Batch) -> State:
        """The states [K, B, …] before windows: as they were left in the buffer, else nothing."""
        count, _, size = windows[RESET].shape
        start = self.world.rssm.initial(count * size, self.context.device)
        if LATENT in windows:
            parts = windows[LATENT].split([start[key].shape[-1] for key in BELIEF], -1)
            return dict(zip(BELIEF, parts, strict=True))
        return {key: each.unflatten(0, (count, size)) for key, each in start.items()}

    def keep_states(self, windows: Batch, states: Batch, phase: Phase) -> None:
        """Leave the states [K, T, B, …] of windows in their buffer, if it has a place for them."""
        if INDEX in windows:
            name = phase["buffer"] or next(iter(self.context.buffers))
            buffer: Any = self.context.buffers[name]
            buffer.store_latents(windows[INDEX], torch.cat([states[key] for key in BELIEF], -1))

    def found_states(self, states: State) -> dict[str, Tensor]:
        """Where acting stood after each frame, for a buffer with a place for it."""
        buffers = self.context.config.buffers.values()
        if not any(getattr(each, "latents", False) for each in buffers):
            return {}
        return {LATENT: torch.cat([states[key] for key in BELIEF], -1)}

    @torch.no_grad()
    def begin_dream(self, seen: Batch, generator: torch.Generator) -> State:
        """Where the model stands at the last of real frames [T, B, …]; latents are drawn."""
        rssm = self.world.rssm
        noise = self.world.noise(seen[RESET].shape, generator).to(self.context.device)
        state = rssm.initial(seen[RESET].shape[1], self.context.device)
        embeds = self.world.embed(seen[OBS])
        actions = as_vector(self.world.action, seen[PREVIOUS_ACTION])
        for action, embed, reset, draw in zip(actions, embeds, seen[RESET], noise, strict=True):
            state, _ = rssm.observe(state, action, embed, reset, draw)
        return state

    @torch.no_grad()
    def dream_step(
        self, state: State, action: Any, generator: torch.Generator
    ) -> tuple[State, Tensor, Tensor]:
        """One step of a dream: the state after actions [N, …], rewards, and chances to go on."""
        vector = as_vector(self.world.action, torch.as_tensor(action, device=self.context.device))
        noise = self.world.noise((len(vector),), generator).to(vector.device)
        state = self.world.rssm.imagine_step(state, vector, noise)
        features = self.world.rssm.features(state)
        reward = self.world.reward.mean(features)
        ends = self.config.foresees_ends
        return state, reward, self.world.going_on(features) if ends else torch.ones_like(reward)

    @torch.no_grad()
    def look(self, state: State) -> Any:
        """What a dream's states look like: images in [0, 1], vectors in their own units."""
        return self.world.decode(self.world.rssm.features(state))

    def dream_policy(self) -> Callable[[State], Tensor]:
        """What acts in one dream: from its states [N, …] to actions [N, …] of policy space."""
        raise UserError(f"{type(self).__name__} does not act in its dreams: pass `actions`")

    @torch.no_grad()
    def imagine(self, *, horizon: int, **options: Any) -> Batch:
        """What is expected after sequences `seen` [T, B, …], if `actions` [H, B, …] follow.

        Without `seen`, after the newest frames of the buffer; without `actions`, the policy acts.
        Frames, actions, rewards and chances to go on, [H, B, …]. The `seed` decides what is drawn.
        """
        seen, given = wanted_dream(self.context.buffers, horizon, options)
        rng = torch.Generator(self.context.device).manual_seed(int(options.get("seed", 0)))
        state = self.begin_dream(seen, rng)
        policy = self.dream_policy() if given is None else None
        found: dict[str, list[Any]] = {}
        for now in range(horizon):
            action = given[now] if policy is None else policy(state)
            state, reward, continues = self.dream_step(state, action, rng)
            row = {OBS: self.look(state), ACTION: torch.as_tensor(action)}
            for name, each in {**row, REWARD: reward, CONTINUES: continues}.items():
                found.setdefault(name, []).append(each)
        return {name: map_leaves(_stacked, *each) for name, each in found.items()}

    def pictures(self, paths: Sequence[Any]) -> Mapping[str, Picture]:
        """Something that was played, and what the model foresaw of it."""
        return open_loop(self, self.world.spaces, self.shown_steps)


def open_loop(workflow: Any, spaces: Mapping[str, Space], steps: int) -> Mapping[str, Picture]:
    """Pictures of the newest frames of one episode and, after the first few, what was foreseen.

    So many `steps`, or as many as the longest episode has; nothing is drawn after a reset.
    """
    buffer: Any = next(iter(workflow.context.buffers.values()))
    if (window := buffer.newest(SEEN + steps)) is None or len(window[RESET]) <= SEEN:
        return {}
    seen, rest = picked(window, slice(0, SEEN)), picked(window, slice(SEEN, None))
    actions = rest[PREVIOUS_ACTION]
    foreseen = workflow.imagine(horizon=len(actions), seen=seen, actions=actions)
    return foresight_pictures(spaces, rest[OBS], foreseen[OBS])


def wanted_dream(
    buffers: Mapping[str, Any], horizon: int, options: Mapping[str, Any]
) -> tuple[Batch, Any]:
    """What `imagine` is asked for: frames to begin after, and actions or None for the policy's."""
    seen, given = options.get("seen"), options.get("actions")
    if given is not None and len(given) < horizon:
        raise UserError(
            f"imagine needs as many `actions` as its horizon, {horizon}, and got {len(given)}: "
            "pass more, or none for those of the policy"
        )
    return newest_frames(buffers) if seen is None else seen, given


def newest_frames(buffers: Mapping[str, Any]) -> Batch:
    """The last frames [T, 1, …] of an episode in the first buffer, for a dream to begin after."""
    buffer = next(iter(buffers.values()), None)
    window: Batch | None = buffer.newest(SEEN) if buffer is not None and buffer.ready() else None
    if window is None:
        raise UserError("imagine has no frames to begin after: pass `seen`, sequences of a buffer")
    return window


def require_not_negative(config: Any, *names: str) -> None:
    """Refuse options, or schedules of them, that are ever below zero."""
    for name in names:
        if (low := extremes(getattr(config, name))[0]) < 0:
            raise ValueError(f"{name} must be 0 or more, got {low:g}")


def _stacked(*rows: Tensor) -> Tensor:
    return torch.stack(rows)
