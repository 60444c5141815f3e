"""One whole episode of every environment of a vector, with a seed for each, for datasets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rl_lab.collect.collector import action_of, to_tensor
from rl_lab.core.batch import OBS, Array, Obs
from rl_lab.core.protocols import Act, VectorEnv
from rl_lab.core.tree import copied, named_leaves, picked


@dataclass
class Played:
    """L steps and L + 1 frames of one episode; actions are those of the policy."""

    frames: list[Obs] = field(default_factory=list)
    actions: list[Array] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminated: bool = False
    over: bool = False

    def columns(self) -> dict[str, Array]:
        """The frames as arrays [L + 1, …]: `obs`, or `obs/camera`, …"""
        found: dict[str, list[Array]] = {}
        for frame in self.frames:
            for name, leaf in named_leaves({OBS: frame}):
                found.setdefault(name, []).append(leaf)
        return {name: np.stack(leaves) for name, leaves in found.items()}


def whole_episodes(
    act: Act,
    env: VectorEnv,
    *,
    seeds: Sequence[int],
    deterministic: bool,
    initial_state: Any = None,
    device: str = "cpu",
    change: Callable[[Obs, Array], Array] = lambda obs, action: action,
    interrupted: Callable[[], bool] = lambda: False,
) -> list[Played]:
    """An episode for each seed; `change` of frames and actions [N, …] is what is really done.

    Environments whose episode is over play on until the last one is; nothing of that is kept.
    An empty list: `interrupted`, which is asked before every step, said so.
    """
    played = [Played() for _ in seeds]
    obs, memory = env.reset(seeds), initial_state
    wanted = (env.num_envs, *env.spec.action.shape)
    with torch.no_grad():
        while not all(each.over for each in played):
            if interrupted():
                return []
            decision = act(to_tensor(obs, device), memory, deterministic=deterministic)
            action = change(obs, np.array(action_of(decision, act, wanted)))
            before, step = copied(obs), env.step(action)
            for index, each in enumerate(played):
                if each.over or (step.valid is not None and not step.valid[index]):
                    continue
                each.frames.append(picked(before, index))
                each.actions.append(action[index])
                each.rewards.append(float(step.reward[index]))
                if step.terminated[index] or step.truncated[index]:
                    each.frames.append(copied(picked(step.next_obs, index)))
                    each.terminated, each.over = bool(step.terminated[index]), True
            obs, memory = step.obs, decision.state
    return played
