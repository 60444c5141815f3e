"""Imagination: what a policy would do in a world model, and what would come of it.

Action t is chosen in state t and leads to state t + 1, whose reward and continuation it earns.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_lab.algorithms.dreamer.actor import WorldActor
from rl_lab.algorithms.dreamer.images import is_picture
from rl_lab.algorithms.dreamer.rssm import State
from rl_lab.algorithms.dreamer.world_model import Scalar, WorldModel
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

Returns = Callable[..., Tensor]  # as `lambda_return`: what critics learn, and actors climb
CONTINUES = "continues"
SEEN = 5  # frames that open-loop predictions begin with
LOW, HIGH = 0.05, 0.95  # the percentiles between which the spread of returns lies
DRAWN = 6  # numbers of a vector that are drawn, at most


class Dream(NamedTuple):
    """H imagined steps from M states. Row t of `reward` and `continues` is where action t led."""

    features: Tensor  # [H + 1, M, F], the first of them real
    action: Tensor  # [H, M, A] action vectors
    reward: Tensor  # [H, M]
    continues: Tensor  # [H, M] chances that there is a future after it


def dream(
    world: WorldModel,
    actor: WorldActor,
    start: State,
    latent_noise: Tensor,
    action_noise: Tensor,
    *,
    ends: bool = True,
) -> Dream:
    """The dream that the noise [H, M, …] decides. Gradients can flow through all of it."""
    state, features, actions = start, [world.rssm.features(start)], []
    for latent, choice in zip(latent_noise.unbind(0), action_noise.unbind(0), strict=True):
        actions.append(actor.draw(features[-1], choice))
        state = world.rssm.imagine_step(state, actions[-1], latent)
        features.append(world.rssm.features(state))
    every = torch.stack(features)
    reward = world.reward.mean(every[1:])
    continues = world.going_on(every[1:]) if ends else torch.ones_like(reward)
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
    slow: Tensor | None  # what the slow critic says of them, if that is to matter


def lesson_of(
    dreamed: Dream,
    root: Tensor,
    values: Tensor,
    slow: Tensor | None,
    *,
    gamma: float | Tensor,
    lambda_: float | Tensor,
    returns: Returns = lambda_return,
) -> Lesson:
    """The returns of a dream's H decisions; `values` and `slow` are of its H + 1 states."""
    targets = returns(dreamed.reward, values[1:], dreamed.continues, gamma=gamma, lambda_=lambda_)
    weight = dream_weights(root, dreamed.continues, gamma)
    return Lesson(dreamed.features[:-1], targets, weight, None if slow is None else slow[:-1])


def followed(spread: Tensor, returns: Tensor, rate: Tensor) -> Tensor:
    """The low and the high percentile of returns [2], a little nearer to those of these returns."""
    percentiles = torch.tensor([LOW, HIGH], device=returns.device)
    return torch.lerp(spread, torch.quantile(returns.detach().flatten(), percentiles), rate)


class Dreamed(NamedTuple):
    """What dreams have to teach."""

    lesson: Lesson  # for the critic
    action: Tensor  # [H, M, A]
    values: Tensor  # [H, M] of where each was decided
    spread: Tensor  # [2] percentiles of returns


def learn_in_dreams(
    world: WorldModel,
    critic: Scalar,
    slow: Scalar,
    actor: WorldActor,
    start: State,
    root: Tensor,
    noises: tuple[Tensor, Tensor],
    spread: Tensor,
    scales: dict[str, Tensor],
    *,
    slow_target: bool,
    near_slow: bool,
    follow_spread: bool,
    ends: bool,
    returns: Returns = lambda_return,
) -> Dreamed:
    """Dream from states [M, …], and judge what was done. Gradients can flow through all of it.

    Returns are bootstrapped from the slow critic or from the quick one.
    """
    dreamed = dream(world, actor, start, *noises, ends=ends)
    values = (slow if slow_target else critic).mean(dreamed.features)
    pull = slow.mean(dreamed.features).detach() if near_slow else None
    gamma, lambda_ = scales["gamma"], scales["lambda"]
    lesson = lesson_of(dreamed, root, values, pull, gamma=gamma, lambda_=lambda_, returns=returns)
    if follow_spread:
        spread = followed(spread, lesson.returns, scales["normalizer"])
    return Dreamed(lesson, dreamed.action, values[:-1], spread)


def replayed_lesson(
    rows: Batch,
    dreams: Lesson,
    *,
    gamma: float | Tensor,
    lambda_: float | Tensor,
    returns: Returns = lambda_return,
) -> Lesson:
    """Values of what was really played [T, B, …], where dreams began from each row.

    A step leads from row t to row t + 1; there is none from the last frame of an episode.
    """
    shape = rows[RESET].shape
    features, dreamt = (each[0].unflatten(0, shape) for each in (dreams.features, dreams.returns))
    slow = None if dreams.slow is None else dreams.slow[0].unflatten(0, shape)[:-1]
    over = rows[TERMINATED] | rows[TRUNCATED]
    targets = returns(
        rows[REWARD][1:],
        dreamt[1:],
        (~rows[TERMINATED][1:]).float(),
        gamma=gamma,
        lambda_=lambda_,
        truncated=over[1:],
    )
    weight = (~rows[RESET][1:]).float()
    return Lesson(features[:-1], targets, weight, slow)


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
        if is_picture(space):
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
