"""Imagination: what a policy would do in a world model, and what would come of it.

Action t is chosen in state t and leads to state t + 1, whose reward and continuation it earns.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_lab.core.batch import (
    OBS,
    RESET,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Array,
    Batch,
)
from rl_lab.core.picture import Film, Lines, Picture
from rl_lab.core.returns import lambda_return
from rl_lab.core.spec import Space
from rl_lab.networks.cnn import is_image
from rl_lab.networks.rssm import State
from rl_lab.networks.world_actor import WorldActor
from rl_lab.networks.worlds import WorldModel

CONTINUES = "continues"
SEEN = 5  # frames that open-loop predictions begin with
DRAWN = 6  # numbers of a vector that are drawn, at most


class Dream(NamedTuple):
    """H imagined steps from M states. Row t of `reward` and `continues` is where action t led."""

    features: Tensor  # [H + 1, M, F], the first of them real
    action: Tensor  # [H, M, A] action vectors
    reward: Tensor  # [H, M]
    continues: Tensor  # [H, M] chances that there is a future after it


def dream(
    world: WorldModel, actor: WorldActor, start: State, latent_noise: Tensor, action_noise: Tensor
) -> Dream:
    """The dream that the noise [H, M, …] decides. Gradients can flow through all of it."""
    state, features, actions = start, [world.rssm.features(start)], []
    for latent, choice in zip(latent_noise.unbind(0), action_noise.unbind(0), strict=True):
        actions.append(actor.draw(features[-1], choice))
        state = world.rssm.imagine_step(state, actions[-1], latent)
        features.append(world.rssm.features(state))
    every = torch.stack(features)
    reward, continues = world.reward.mean(every[1:]), world.going_on(every[1:])
    return Dream(every, torch.stack(actions), reward, continues)


def dream_weights(root: Tensor, continues: Tensor, gamma: Tensor | float) -> Tensor:
    """How much each dreamed decision counts, [H, M]: the chance to get there, discounted.

    `root` [M] is 0 where the dream begins after an episode's end. A decision's own outcome is not
    in its weight.
    """
    steps = torch.cat([root.unsqueeze(0), gamma * continues[:-1]])
    return steps.cumprod(0).detach()


class Lesson(NamedTuple):
    """What a critic learns from: rows [R, …], and how much each counts."""

    features: Tensor
    returns: Tensor
    weight: Tensor


def replayed_lesson(
    rows: Batch, features: Tensor, returns: Tensor, *, gamma: float, lambda_: float
) -> Lesson:
    """Values of what was really played [T, B, …]; `returns` are those of dreams from each row.

    A step leads from row t to row t + 1; there is none from the last frame of an episode.
    """
    over = rows[TERMINATED] | rows[TRUNCATED]
    targets = lambda_return(
        rows[REWARD][1:],
        returns[1:],
        (~rows[TERMINATED][1:]).float(),
        gamma=gamma,
        lambda_=lambda_,
        truncated=over[1:],
    )
    return Lesson(features[:-1], targets, (~rows[RESET][1:]).float())


def foresight_pictures(
    spaces: Mapping[str, Space], truth: Any, foreseen: Any
) -> dict[str, Picture]:
    """What happened [T, 1, …] beside what a model foresaw of it, for each part that is seen.

    Images: truth, model and error as strips, which move as well. Vectors: a line for each number.
    """
    pictures = {}
    for key, space in spaces.items():
        true, guess = (_rows(_parts(each)[key]) for each in (truth, foreseen))
        layer: Film | Lines
        if is_image(space):
            true = true / 255.0 if str(space.dtype) == "uint8" else true
            layer = Film(["truth", "model", "error"], [true, guess, abs(true - guess)])
        else:
            layer = _curves(true.reshape(len(true), -1), guess.reshape(len(guess), -1))
        title = f"{key}, foreseen after {SEEN} frames"
        pictures[f"open_loop_{key.replace('/', '_')}"] = Picture(title, [layer], x_label="step")
    return pictures


def _parts(obs: Any) -> Mapping[str, Tensor]:
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
