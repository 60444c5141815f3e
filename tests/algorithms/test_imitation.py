"""What imitation algorithms share: the rate, the scale of a dataset, phases that are counted."""

import numpy as np
import pytest
import torch

from rl_lab.algorithms.imitation import (
    ActionScale,
    DatasetScale,
    learning_rate_share,
    planned_updates,
)
from rl_lab.core.running_stats import RunningMoments
from rl_lab.core.spec import Box, Discrete


def box(size):
    bound = np.ones(size, np.float32)
    return Box((size,), np.dtype(np.float32), -bound, bound)


class Data:
    """The numbers of a dataset, without its rows."""

    def __init__(self, frames, low, high):
        self.frames, self.range = np.asarray(frames, np.float64), (low, high)

    def observation_statistics(self):
        moments = RunningMoments(self.frames.shape[1:])
        moments.update_statistics(self.frames)
        return moments

    def observation_range(self):
        return self.frames.min(0), self.frames.max(0)

    def action_range(self):
        return np.asarray(self.range[0]), np.asarray(self.range[1])

    def unused(self, *args, **kwargs):
        raise AssertionError("only numbers are asked for")

    episode_returns = sample = reprioritize = state_dict = load_state_dict = __len__ = unused


def test_the_rate_rises_and_then_falls_as_half_a_cosine():
    def share(n):
        return learning_rate_share(n, warm_up=4, total=12)

    # a quarter more with every step, then ½ (1 + cos(π (n − 4) / 8)), and nothing is left at 12
    assert [share(n) for n in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert share(4) == 1.0
    assert share(8) == pytest.approx(0.5)
    assert share(12) == share(99) == pytest.approx(0.0)
    assert learning_rate_share(7, warm_up=4, total=0) == 1.0


def test_updates_that_phases_ask_for():
    one = {"name": "a", "type": "offline", "hooks": ["update"], "duration_updates": "1e3"}
    evaluate = {"name": "b", "type": "eval_only", "hooks": ["evaluate"]}
    assert planned_updates([one, evaluate, {"repeat": 3, "phases": [one, evaluate]}]) == 4000
    assert planned_updates([evaluate]) == 0


def test_actions_go_to_their_range_and_back():
    scale = ActionScale(2)
    scale.set_range([-1.0, 3.0], [0.0, 3.0])  # the second one never changes
    assert scale(torch.tensor([[-1.0, 3.0], [0.0, 3.5]])).tolist() == [[-1.0, 0.0], [1.0, 0.5]]
    assert scale.inverse(torch.tensor([[0.5, 0.0]])).tolist() == [[-0.25, 3.0]]


def test_a_scale_takes_the_range_of_a_dataset():
    scale = DatasetScale("range", box(2), box(1))
    scale.fit(Data([[0.0, 5.0], [4.0, 5.0]], [0.0], [1.0]))
    # 0 … 4 becomes −1 … 1, and what never changes becomes 0
    assert scale.observation(torch.tensor([[1.0, 5.0]])).tolist() == [[-0.5, 0.0]]
    assert scale.to_unit(torch.tensor([[0.25]])).tolist() == [[-0.5]]
    assert scale.from_unit(torch.tensor([[7.0]])).tolist() == [[1.0]]  # never beyond the data


def test_a_scale_takes_mean_and_deviation_of_a_dataset():
    scale = DatasetScale("moments", box(1), box(1))
    scale.fit(Data([[1.0], [5.0]], [-1.0], [1.0]))
    assert scale.observation(torch.tensor([[5.0]])).item() == pytest.approx(1.0)


def test_only_the_first_dataset_counts_and_it_is_saved():
    scale = DatasetScale("range", box(1), box(1))
    scale.fit(Data([[0.0], [4.0]], [0.0], [1.0]))
    scale.fit(Data([[0.0], [100.0]], [-1.0], [1.0]))
    copy = DatasetScale("range", box(1), box(1))
    copy.load_state_dict(scale.state_dict())
    for each in (scale, copy):
        assert each.observation(torch.tensor([[4.0]])).tolist() == [[1.0]]
        assert each.from_unit(torch.tensor([[1.0]])).tolist() == [[1.0]]
        assert each.from_unit(torch.tensor([[-1.0]])).tolist() == [[0.0]]


def test_without_a_dataset_and_with_discrete_actions_nothing_changes():
    scale = DatasetScale("moments", box(1), Discrete(3))
    scale.fit(object())
    assert not scale.fitted
    assert scale.observation(torch.tensor([[7.0]])).tolist() == [[7.0]]
    assert scale.from_unit(torch.tensor([2])).tolist() == [2]
