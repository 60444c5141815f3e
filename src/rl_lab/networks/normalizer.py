"""Observation normalization as the policy's first layer: saved with it, frozen in evaluation."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from rl_lab.core.batch import ACTION_MASK, Array
from rl_lab.core.running_stats import RunningMoments
from rl_lab.core.spec import Box, Dict, Observation, Space

NormalizeObs = Literal["off", "running", "static"]
CLIP = 10.0


def normalize_mode(setting: bool | str) -> NormalizeObs:
    """`environment.normalize_obs` as written (false, true, running, static) to a mode."""
    if setting is False:
        return "off"
    return "static" if setting == "static" else "running"


def make_normalizer(mode: NormalizeObs, space: Observation) -> "Normalizer":
    """One for the observation, or one for each of its parts."""
    if isinstance(space, Dict):
        return DictNormalizer(mode, space)
    return ObservationNormalizer(mode, space)


def is_normalizable(space: Space) -> bool:
    """True for floats of any shape and integer vectors; not for indices and integer images."""
    if not isinstance(space, Box):
        return False
    return bool(np.issubdtype(space.dtype, np.floating)) or len(space.shape) < 3


class ObservationNormalizer(nn.Module):
    """(obs − shift) · scale, clipped. `running` learns both from data, `static` from the bounds.

    The statistics change only when `update_statistics` is called. On-policy learners call it after
    an update, so that actor and learner normalize a rollout by the same numbers; while there are no
    statistics (`is_empty`), they call it before.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, mode: NormalizeObs, space: Space) -> None:
        super().__init__()
        self.mode = mode if is_normalizable(space) else "off"
        shape = space.shape if self.mode != "off" else ()
        self.moments = RunningMoments(shape)
        self.register_buffer("shift", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))
        if self.mode == "static":
            assert isinstance(space, Box)
            bounded = np.isfinite(space.low) & np.isfinite(space.high) & (space.high > space.low)
            low, high = np.where(bounded, space.low, -1.0), np.where(bounded, space.high, 1.0)
            self._set((low + high) / 2, 2 / (high - low))

    def forward(self, obs: Tensor) -> Tensor:
        """[..., *obs], unchanged when off."""
        if self.mode == "off":
            return obs
        return ((obs - self.shift) * self.scale).clamp(-CLIP, CLIP)

    @property
    def is_empty(self) -> bool:
        """True if running statistics are wanted and no frame is in them yet."""
        return self.mode == "running" and self.moments.count == 0

    def update_statistics(self, obs: Tensor | Array) -> None:
        """Take fresh frames [..., *obs] into the running statistics."""
        if self.mode == "running":
            frames = obs.numpy(force=True) if isinstance(obs, Tensor) else obs
            self.moments.update_statistics(frames)
            self._set(self.moments.mean, 1 / np.sqrt(self.moments.variance + 1e-8))

    def set_statistics(self, moments: RunningMoments) -> None:
        """Take these instead of all that was seen: those of a dataset."""
        if self.mode == "running":
            self.moments.load_state_dict(moments.state_dict())
            self._set(self.moments.mean, 1 / np.sqrt(self.moments.variance + 1e-8))

    def clear(self) -> None:
        """No running statistics any more: frames pass unchanged."""
        if self.mode == "running":
            self.moments = RunningMoments(self.moments.mean.shape)
            self._set(self.moments.mean, np.ones_like(self.moments.mean))

    def get_extra_state(self) -> dict[str, Any]:
        """The float64 truth behind the float32 buffers."""
        return self.moments.state_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Continue the running statistics."""
        self.moments.load_state_dict(state)

    def _set(self, shift: Array, scale: Array) -> None:
        self.shift.copy_(torch.as_tensor(shift, dtype=torch.float32))
        self.scale.copy_(torch.as_tensor(scale, dtype=torch.float32))


class DictNormalizer(nn.Module):
    """Each part of a dict observation by itself."""

    def __init__(self, mode: NormalizeObs, space: Dict) -> None:
        super().__init__()
        self.keys = list(space.parts)
        self.parts = nn.ModuleList(
            ObservationNormalizer("off" if key == ACTION_MASK else mode, part)
            for key, part in space.parts.items()
        )

    def forward(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Parts [..., *part]."""
        pairs = zip(self.keys, self.parts, strict=True)
        return {key: normalizer(obs[key]) for key, normalizer in pairs}

    @property
    def mode(self) -> NormalizeObs:
        """`off` if no part is normalized."""
        return next((each.mode for each in self._each() if each.mode != "off"), "off")

    @property
    def is_empty(self) -> bool:
        """True if running statistics are wanted and no frame is in them yet."""
        return any(each.is_empty for each in self._each())

    def update_statistics(self, obs: Mapping[str, Tensor | Array]) -> None:
        """Take fresh frames into the running statistics."""
        for key, normalizer in zip(self.keys, self._each(), strict=True):
            normalizer.update_statistics(obs[key])

    def set_statistics(self, moments: Mapping[str, RunningMoments]) -> None:
        """Take these instead of all that was seen: those of a dataset."""
        for key, normalizer in zip(self.keys, self._each(), strict=True):
            normalizer.set_statistics(moments[key])

    def clear(self) -> None:
        """No running statistics any more: frames pass unchanged."""
        for normalizer in self._each():
            normalizer.clear()

    def _each(self) -> list[ObservationNormalizer]:
        return [each for each in self.parts if isinstance(each, ObservationNormalizer)]


Normalizer = ObservationNormalizer | DictNormalizer
