import numpy as np
import pytest
import torch

from properties import given, settings, st
from rl_lab.core.returns import explained_variance, gae


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(-1)


def flags(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.bool).unsqueeze(-1)


@pytest.mark.parametrize(
    ("terminated", "truncated", "target"), [(1, 0, 1.0), (0, 1, 10.0), (1, 1, 1.0), (0, 0, 10.0)]
)
def test_only_termination_loses_the_bootstrap(terminated, truncated, target):
    # gamma .9, r = 1, V(next) = 10: target 1 + .9 * 10 = 10, or 1 if the task is over
    value = column(3.0)
    advantage = gae(
        column(1.0),
        value,
        column(10.0),
        flags(terminated),
        flags(truncated),
        gamma=0.9,
        gae_lambda=0.8,
    )
    assert (advantage + value).item() == pytest.approx(target)


# gamma .9, lambda .8, r = 1, V = [1, 2, 3, 4], an episode ends at t = 1 in a state of value 5,
# and the window ends in a state of value 6.
NEXT = column(2.0, 5.0, 4.0, 6.0)


@pytest.mark.parametrize(
    ("terminated", "expected"),
    [
        (False, [4.32, 3.5, 3.328, 2.4]),
        # d1 = 1 - 2 = -1; d0 = 1 + .9*2 - 1 = 1.8; A0 = 1.8 + .72 * -1 = 1.08
        (True, [1.08, -1.0, 3.328, 2.4]),
    ],
)
def test_gae_by_hand(terminated, expected):
    end, none = flags(0, 1, 0, 0), flags(0, 0, 0, 0)
    advantage = gae(
        torch.ones(4, 1, dtype=torch.float64),
        column(1.0, 2.0, 3.0, 4.0),
        NEXT,
        end if terminated else none,
        none if terminated else end,
        gamma=0.9,
        gae_lambda=0.8,
    )
    assert advantage.squeeze().tolist() == pytest.approx(expected)


episodes = st.lists(st.sampled_from(["go", "terminated", "truncated"]), min_size=2, max_size=12)


@settings(max_examples=50, deadline=None)
@given(episodes, st.integers(0, 10**6))
def test_lambda_one_is_the_discounted_return(pattern, seed):
    rng = np.random.default_rng(seed)
    size = len(pattern)
    reward, value, nxt = (torch.from_numpy(rng.normal(size=(size, 1))) for _ in range(3))
    for t in range(size - 1):  # inside an episode, the next value is the next row's value
        if pattern[t] == "go":
            nxt[t] = value[t + 1]
    terminated = flags(*[each == "terminated" for each in pattern])
    truncated = flags(*[each == "truncated" for each in pattern])
    advantage = gae(reward, value, nxt, terminated, truncated, gamma=0.97, gae_lambda=1.0)
    expected = torch.zeros(size, dtype=torch.float64)
    for t in range(size):
        total, discount = 0.0, 1.0
        for k in range(t, size):
            total += discount * reward[k].item()
            discount *= 0.97
            if pattern[k] != "go" or k == size - 1:
                total += 0.0 if pattern[k] == "terminated" else discount * nxt[k].item()
                break
        expected[t] = total - value[t].item()
    assert torch.allclose(advantage.squeeze(-1), expected)


@settings(max_examples=50, deadline=None)
@given(episodes, st.integers(0, 10**6))
def test_another_episode_never_changes_an_advantage(pattern, seed):
    rng = np.random.default_rng(seed)
    size = len(pattern)
    reward, value, nxt = (torch.from_numpy(rng.normal(size=(size, 1))) for _ in range(3))
    terminated = flags(*[each == "terminated" for each in pattern])
    truncated = flags(*[each == "truncated" for each in pattern])
    ends = [t for t in range(size - 1) if pattern[t] != "go"]
    before = gae(reward, value, nxt, terminated, truncated, gamma=0.9, gae_lambda=0.9)
    for end in ends:
        changed = [each.clone() for each in (reward, value, nxt)]
        for each in changed:
            each[end + 1 :] += 100.0
        after = gae(*changed, terminated, truncated, gamma=0.9, gae_lambda=0.9)
        assert torch.equal(before[: end + 1], after[: end + 1])


def test_low_precision_autocast_leaves_bookkeeping_alone():
    # in bf16 a gamma of .99 would be .988: the horizon would shrink from 100 to 85
    reward = torch.ones(400, 1)
    none = torch.zeros(400, 1, dtype=torch.bool)
    zeros = torch.zeros(400, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        advantage = gae(reward, zeros, zeros, none, none, gamma=0.99, gae_lambda=1.0)
    assert advantage.dtype == torch.float32
    assert advantage[0].item() == pytest.approx((1 - 0.99**400) / 0.01, rel=1e-4)


def test_explained_variance():
    target = torch.tensor([1.0, 2.0, 3.0])
    assert explained_variance(target, target).item() == 1.0
    assert explained_variance(torch.zeros(3), target).item() == pytest.approx(0.0)
    assert explained_variance(target, torch.ones(3)).item() == 0.0
