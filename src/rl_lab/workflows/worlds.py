"""What algorithms with a recurrent state-space model share: windows, dreams, pictures of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from rl_lab.core.actions import as_vector
from rl_lab.core.batch import OBS, PREVIOUS_ACTION, RESET, REWARD, Batch
from rl_lab.core.optim import scalar
from rl_lab.core.options import option
from rl_lab.core.picture import Picture
from rl_lab.core.tree import map_leaves, picked
from rl_lab.networks.dreaming import CONTINUES, SEEN, foresight_pictures
from rl_lab.networks.rssm import State
from rl_lab.networks.worlds import WorldModel, WorldModelConfig
from rl_lab.workflows.base import LearnsFrom
from rl_lab.workflows.earning import EarningConfig, EarningWorkflow

BELIEF = ("deter", "stoch")  # of a state: where the model thinks it is


@dataclass(frozen=True, kw_only=True)
class WorldConfig(WorldModelConfig, EarningConfig):
    """A world model, and when it learns. Any float may be a schedule."""

    batch_size: int = option(8, "sequences of one gradient step")
    batch_length: int = option(32, "frames of each sequence")

    def __post_init__(self) -> None:
        """Refuse values that cannot work, before anything is built."""
        WorldModelConfig.__post_init__(self)
        EarningConfig.__post_init__(self)
        if self.batch_length < 2:
            raise ValueError(f"batch_length must be at least 2, got {self.batch_length}")
        if self.optimizer.accumulate > 1:
            raise ValueError("optimizer.accumulate must be 1: a sequence cannot be cut into pieces")

    def gradient_steps(self, run: Any) -> float:
        """None that compiling would repay: a memory is unrolled, which takes minutes to compile."""
        return 0.0

    def memory_problem(self) -> str:
        """Why `network.memory` would do nothing."""
        return "the world model is the memory"

    def rows_needed(self) -> tuple[str, int]:
        """Frames of one window."""
        return "batch_length", self.batch_length


class WorldWorkflow(EarningWorkflow):
    """A subclass makes `world` in `initialize`, and learns it from sequences."""

    learns_from: ClassVar[LearnsFrom] = "sequences"
    unit_actions: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = {"buffers": {"replay": {"type": "sequence"}}}
    shown_steps: ClassVar[int] = 15  # of open-loop predictions
    world: WorldModel

    def rates(self, learning_rate: float, now: Any) -> dict[str, Tensor]:
        """What an optimiser's step is told, as tensors."""
        device = self.context.device
        norm = scalar(now.max_grad_norm, device)
        return {"learning_rate": scalar(learning_rate, device), "max_grad_norm": norm}

    @torch.no_grad()
    def begin_dream(self, seen: Batch) -> State:
        """Where the model stands at the last of real frames [T, B, …], by the likeliest latents."""
        rssm = self.world.rssm
        state = rssm.initial(seen[RESET].shape[1], self.context.device)
        embeds = self.world.embed(seen[OBS])
        actions = as_vector(self.world.action, seen[PREVIOUS_ACTION])
        for action, embed, reset in zip(actions, embeds, seen[RESET], strict=True):
            state, _ = rssm.observe(state, action, embed, reset, None)
        return state

    @torch.no_grad()
    def dream_step(
        self, state: State, action: Any, generator: torch.Generator
    ) -> tuple[State, Tensor, Tensor]:
        """One step of a dream: the state after actions [N, …], rewards, and chances to go on."""
        vector = as_vector(self.world.action, torch.as_tensor(action, device=self.context.device))
        noise = self.world.noise((len(vector),), generator)
        state = self.world.rssm.imagine_step(state, vector, noise)
        features = self.world.rssm.features(state)
        return state, self.world.reward.mean(features), self.world.going_on(features)

    @torch.no_grad()
    def look(self, state: State) -> Any:
        """What a dream's states look like: images in [0, 1], vectors in their own units."""
        return self.world.decode(self.world.rssm.features(state))

    def imagine(self, *, horizon: int, **options: Any) -> Batch:
        """What is expected after sequences `seen` [T, B, …], if `actions` [H, B, …] follow.

        Frames, rewards and chances to go on, [H, B, …]. The seed decides what is drawn.
        """
        state = self.begin_dream(options["seen"])
        rng = torch.Generator(self.context.device).manual_seed(int(options.get("seed", 0)))
        found: dict[str, list[Any]] = {OBS: [], REWARD: [], CONTINUES: []}
        for action in options["actions"][:horizon]:
            state, reward, continues = self.dream_step(state, action, rng)
            for name, each in ((OBS, self.look(state)), (REWARD, reward), (CONTINUES, continues)):
                found[name].append(each)
        return {name: map_leaves(_stacked, *each) for name, each in found.items()}

    def pictures(self, paths: Sequence[Any]) -> Mapping[str, Picture]:
        """Something that was played, and what the model foresaw of it."""
        buffer: Any = next(iter(self.context.buffers.values()))
        if (window := buffer.newest(SEEN + self.shown_steps)) is None:
            return {}
        seen, rest = picked(window, slice(0, SEEN)), picked(window, slice(SEEN, None))
        foreseen = self.imagine(horizon=self.shown_steps, seen=seen, actions=rest[PREVIOUS_ACTION])
        return foresight_pictures(self.world.spaces, rest[OBS], foreseen[OBS])


def _stacked(*rows: Tensor) -> Tensor:
    return torch.stack(rows)
