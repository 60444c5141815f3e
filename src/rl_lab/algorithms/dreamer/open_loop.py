"""Open-loop predictions of a world model: imagined rollouts on request, and pictures of them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_lab.algorithms.dreamer.images import is_picture
from rl_lab.algorithms.dreamer.rssm import LatentState
from rl_lab.algorithms.dreamer.world_model import WorldModel
from rl_lab.core.batch import (
    ACTION,
    LATENT,
    OBS,
    PREVIOUS_ACTION,
    RESET,
    REWARD,
    Array,
    Batch,
    Obs,
)
from rl_lab.core.errors import UserError
from rl_lab.core.picture import Film, Lines, Picture
from rl_lab.core.protocols import AlgorithmContext, Imagination
from rl_lab.core.spec import Space
from rl_lab.core.tree import map_leaves, picked
from rl_lab.networks.mlp import as_vector

CONTINUES = "continues"
SEEN = 5  # frames that open-loop predictions begin with
WORST_ERROR = 1e6
STILL = 1e-6  # deviation of what does not move
DRAWN = 6  # numbers of a vector that are drawn, at most
LatentPolicy = Callable[[Any], Tensor]  # from states [N, …] to actions [N, …] of policy space


@dataclass(frozen=True)
class LatentImagination:
    """The `Imagination` of a recurrent state-space model. Latents are sampled."""

    world: WorldModel
    ends: bool  # imagined episodes may end

    @torch.no_grad()
    def start(self, seen: Batch, generator: torch.Generator) -> LatentState:
        """The states after the last of real frames [T, N, …]."""
        rssm, device = self.world.rssm, seen[RESET].device
        noise = self.world.noise(seen[RESET].shape, generator).to(device)
        state: LatentState = rssm.initial(seen[RESET].shape[1], device)
        embeds = self.world.embed(seen[OBS])
        actions = as_vector(self.world.action, seen[PREVIOUS_ACTION])
        for action, embed, reset, draw in zip(actions, embeds, seen[RESET], noise, strict=True):
            state, _ = rssm.observe(state, action, embed, reset, draw)
        return state

    @torch.no_grad()
    def step(
        self, state: LatentState, action: object, generator: torch.Generator
    ) -> tuple[LatentState, Tensor, Tensor]:
        """After actions [N, …]: the states, rewards [N], and continue probabilities [N]."""
        device = state["deter"].device
        vector = as_vector(self.world.action, torch.as_tensor(action, device=device))
        noise = self.world.noise((len(vector),), generator).to(device)
        state = self.world.rssm.imagine_step(state, vector, noise)
        features = self.world.rssm.features(state)
        reward = self.world.reward.mean(features)
        if not self.ends:
            return state, reward, torch.ones_like(reward)
        return state, reward, self.world.continue_probability(features)

    @torch.no_grad()
    def decode(self, state: LatentState) -> Any:
        """The observations of states: images in [0, 1], vectors in their own units."""
        return self.world.decode(self.world.rssm.features(state))


@torch.no_grad()
def predict(
    imagination: Imagination,
    policy: LatentPolicy | None,
    context: AlgorithmContext,
    horizon: int,
    *,
    seen: Batch | None = None,
    actions: Tensor | None = None,
    seed: int = 0,
) -> Batch:
    """Predicted frames, actions, rewards and continue probabilities, all [H, B, …].

    Args:
        imagination: The world model.
        policy: Chooses the actions if none are given; None: `actions` are needed.
        context: Its first buffer has the newest frames.
        horizon: The number of steps, H.
        seen: Sequences [T, B, …] to begin after; None: the newest frames of the buffer.
        actions: [H, B, …] or more; None: those of the policy.
        seed: Decides which latents are sampled.
    """
    if actions is not None and len(actions) < horizon:
        raise UserError(
            f"imagine needs as many `actions` as its horizon, {horizon}, and got {len(actions)}: "
            "pass more, or none for those of the policy"
        )
    if actions is None and policy is None:
        raise UserError("there is no policy to imagine with: pass `actions`")
    generator = torch.Generator(context.device).manual_seed(int(seed))
    state = imagination.start(newest_frames(context) if seen is None else seen, generator)
    rows = []
    for index in range(horizon):
        if actions is not None:
            action = actions[index]
        else:
            assert policy is not None
            action = policy(state)
        state, reward, continues = imagination.step(state, action, generator)
        row = {OBS: imagination.decode(state), ACTION: torch.as_tensor(action), REWARD: reward}
        row |= {name: state[name] for name in (LATENT,) if name in state}
        rows.append({**row, CONTINUES: continues})
    stacked: Batch = map_leaves(lambda *leaves: torch.stack(leaves), *rows)
    return stacked


def newest_frames(context: AlgorithmContext) -> Batch:
    """The last frames [T, 1, …] of an episode in the first buffer."""
    buffer: Any = next(iter(context.buffers.values()), None)
    window: Batch | None = buffer.newest(SEEN) if buffer is not None and buffer.ready() else None
    if window is None:
        raise UserError("imagine has no frames to begin after: pass `seen`, sequences of a buffer")
    return window


def newest_episode_pictures(
    algorithm: Any, spaces: Mapping[str, Space], steps: int
) -> Mapping[str, Picture]:
    """The newest frames of one episode and, after the first few, their open-loop prediction.

    Of `steps` frames, or of as many as the longest episode has; it ends with the episode.
    """
    buffer: Any = next(iter(algorithm.context.buffers.values()))
    if (window := buffer.newest(SEEN + steps)) is None or len(window[RESET]) <= SEEN:
        return {}
    seen, rest = picked(window, slice(0, SEEN)), picked(window, slice(SEEN, None))
    actions = rest[PREVIOUS_ACTION]
    predicted = algorithm.imagine(horizon=len(actions), seen=seen, actions=actions)
    return open_loop_pictures(spaces, rest[OBS], predicted[OBS])


def open_loop_pictures(
    spaces: Mapping[str, Space], truth: object, predicted: object
) -> dict[str, Picture]:
    """True observations [T, 1, …] beside predicted ones, for each part of an observation.

    Images: truth, model and error as strips, which move as well. Vectors: a line for each number.
    """
    pictures = {}
    for key, space in spaces.items():
        true, guess = (_rows(_parts(each)[key]) for each in (truth, predicted))
        layer: Film | Lines
        if is_picture(space):
            true = true / 255.0 if str(space.dtype) == "uint8" else true
            layer = Film(["truth", "model", "error"], [true, guess, abs(true - guess)])
        else:
            layer = _curves(true.reshape(len(true), -1), guess.reshape(len(guess), -1))
        title = f"{key}, predicted after {SEEN} frames"
        part, error = key.replace("/", "_"), relative_error(true, guess)
        numbers = {} if error is None else {f"open_loop/{part}_error": error}
        name = f"open_loop_{part}"
        pictures[name] = Picture(title, [layer], x_label="step", numbers=numbers)
    return pictures


def relative_error(true: Array, guess: Array) -> float | None:
    """Root mean square error of a prediction [T, …], in deviations of the truth from its mean.

    1 is what predicting that mean would give; a model that explodes has `WORST_ERROR`. None if the
    truth stands still.
    """
    true, guess = true.astype(np.float64), guess.astype(np.float64)
    spread = float(np.sqrt(np.mean((true - true.mean(0)) ** 2)))
    if spread < STILL:
        return None
    error = float(np.sqrt(np.mean((true - guess) ** 2))) / spread
    return min(error, WORST_ERROR) if math.isfinite(error) else WORST_ERROR


def _parts(obs: Obs) -> Mapping[str, Tensor]:
    return obs if isinstance(obs, Mapping) else {OBS: obs}


def _rows(leaf: Tensor) -> Array:
    """The only sequence of a batch, [T, …]."""
    return leaf[:, 0].float().numpy(force=True)


def _curves(true: Array, guess: Array) -> Lines:
    paths, labels = [], []
    for index in range(min(true.shape[1], DRAWN)):
        for name, rows in (("truth", true), ("model", guess)):
            paths.append(np.stack([np.arange(len(rows)), rows[:, index]], -1))
            labels.append(f"{index} {name}")
    return Lines(paths, labels)
