"""Evaluation: whole episodes, an equal quota per environment, nothing of training touched."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rl_lab.collect.collector import action_of, to_tensor
from rl_lab.collect.episodes import known, outcomes_of
from rl_lab.core.batch import Obs
from rl_lab.core.protocols import Act, VectorEnv
from rl_lab.core.tree import map_leaves, picked, where_rows


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The counted episodes of an evaluation, environment by environment.

    Attributes:
        returns: Return of each episode.
        lengths: Steps of each episode.
        measures: Means by name: measures over their steps, outcomes over the episodes.
        paths: Observations [L, …] of each episode, if recorded.
        run: Id of the run whose policy it was; None if it was not a saved one.
        step: Step of the checkpoint; None as above.
    """

    returns: list[float]
    lengths: list[int]
    measures: dict[str, float] = field(default_factory=dict)
    paths: list[Obs] = field(default_factory=list)
    run: str | None = None
    step: int | None = None

    @property
    def episodes(self) -> int:
        """How many were played."""
        return len(self.returns)

    @property
    def return_mean(self) -> float:
        """Mean of the episodes' returns."""
        return float(np.mean(self.returns))

    @property
    def return_std(self) -> float:
        """Standard deviation of the returns over episodes."""
        return float(np.std(self.returns))

    def __repr__(self) -> str:
        """The numbers that matter, not every episode."""
        policy = "" if self.run is None else f", run={self.run!r}, step={self.step}"
        return (
            f"Evaluation(return_mean={self.return_mean:.4g}, return_std={self.return_std:.4g}, "
            f"episodes={self.episodes}{policy})"
        )

    def summary(self) -> dict[str, float]:
        """The numbers that get logged."""
        return {
            "return_mean": self.return_mean,
            "return_std": self.return_std,
            "return_min": float(np.min(self.returns)),
            "return_max": float(np.max(self.returns)),
            "length_mean": float(np.mean(self.lengths)),
            "episodes": self.episodes,
            **self.measures,
        }

    def to_tree(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        tree = {**self.summary(), "returns": self.returns, "lengths": self.lengths}
        return tree if self.run is None else {**tree, "run": self.run, "step": self.step}


def quotas(episodes: int, num_envs: int) -> list[int]:
    """Episodes per environment: equal but for the remainder, so short episodes gain no weight."""
    share, rest = divmod(episodes, num_envs)
    return [share + (index < rest) for index in range(num_envs)]


class Interrupted(Exception):  # noqa: N818  (nothing went wrong)
    """The run was asked to stop: an episode may last for ever."""


def evaluate(
    act: Act,
    env: VectorEnv,
    *,
    seeds: Sequence[int],
    episodes: int,
    deterministic: bool,
    initial_state: object = None,
    device: str = "cpu",
    interrupted: Callable[[], bool] = lambda: False,
    record: bool = False,
) -> Evaluation:
    """Play `episodes` episodes from freshly seeded environments.

    Each environment counts its own first episodes up to its quota and is ignored after that.
    `interrupted` is asked before every step; if it says so, `Interrupted` is raised. With `record`,
    the observations of every counted episode are kept, the last one included.
    """
    quota = np.array(quotas(episodes, env.num_envs))
    returns: list[list[float]] = [[] for _ in quota]
    lengths: list[list[int]] = [[] for _ in quota]
    total, length = np.zeros(env.num_envs), np.zeros(env.num_envs, dtype=np.int64)
    done = np.zeros(env.num_envs, dtype=np.int64)
    measured: dict[str, float] = {}
    outcomes: dict[str, list[float]] = {name: [] for name in outcomes_of(env)}
    frames: list[list[Obs]] = [[] for _ in quota]  # of the open episodes
    paths: list[list[Obs]] = [[] for _ in quota]
    obs, memory = env.reset(seeds), initial_state
    wanted = (env.num_envs, *env.spec.action.shape)
    with torch.no_grad():
        while (done < quota).any():
            if interrupted():
                raise Interrupted
            decision = act(to_tensor(obs, device), memory, deterministic=deterministic)
            step = env.step(action_of(decision, act, wanted))
            ended = step.terminated | step.truncated
            if step.valid is None:
                total += step.reward
                length += 1
            else:
                ended &= step.valid
                total[step.valid] += step.reward[step.valid]
                length[step.valid] += 1
            for name, values in step.measures.items():
                if name in outcomes:
                    outcomes[name] += known(values[done < quota])
                else:
                    measured[name] = measured.get(name, 0.0) + float(values[done < quota].sum())
            if record:
                for index in range(env.num_envs):
                    if step.valid is None or step.valid[index]:
                        frames[index].append(picked(obs, index))
            for index in np.flatnonzero(ended).tolist():
                if done[index] < quota[index]:
                    returns[index].append(float(total[index]))
                    lengths[index].append(int(length[index]))
                    if record:
                        paths[index].append(_path([*frames[index], picked(step.next_obs, index)]))
                frames[index] = []
                done[index] += 1
                total[index], length[index] = 0.0, 0
            fresh = ended if step.valid is None else ~step.valid
            obs, memory = step.obs, decision.state
            if memory is not None and fresh.any():
                memory = where_rows(torch.from_numpy(fresh).to(device), initial_state, memory)
    steps = sum(sum(column) for column in lengths)
    return Evaluation(
        [each for column in returns for each in column],
        [each for column in lengths for each in column],
        {name: total / steps for name, total in measured.items()}
        | {name: float(np.mean(values)) for name, values in outcomes.items() if values},
        [each for column in paths for each in column],
    )


def _path(frames: Sequence[Obs]) -> Obs:
    """Single observations as one [L, …]."""
    return map_leaves(lambda *leaves: np.stack(leaves), *frames)
