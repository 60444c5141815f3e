"""Targets of sequences: λ-returns, Monte Carlo, n steps. Row t is a step and what it led to."""

import pytest
import torch

from properties import given, settings, st
from rl_lab.core.returns import gae, lambda_return, monte_carlo_return, multi_step_return


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


REWARD, CONTINUES, VALUE = numbers(1, 2, 3), numbers(1, 1, 0), numbers(4, 5, 6)


def test_lambda_return_by_hand():
    # R2 = 3 + .5 * 0 * 6                   = 3
    # R1 = 2 + .5 * 1 * (.5 * 5 + .5 * 3)   = 4
    # R0 = 1 + .5 * 1 * (.5 * 4 + .5 * 4)   = 3
    target = lambda_return(REWARD, VALUE, CONTINUES, gamma=0.5, lambda_=0.5)
    assert target.tolist() == [3.0, 4.0, 3.0]


def test_the_last_row_looks_at_its_value():
    # the same, but the last state goes on: R2 = 3 + .5 * 6 = 6, R1 = 2 + .5 * (2.5 + 3) = 4.75,
    # R0 = 1 + .5 * (2 + 2.375) = 3.1875
    target = lambda_return(REWARD, VALUE, torch.ones(3).double(), gamma=0.5, lambda_=0.5)
    assert target.tolist() == [3.1875, 4.75, 6.0]


def test_a_truncation_keeps_the_bootstrap_and_cuts_the_trace():
    # row 1 is cut off: R1 = 2 + .5 * 5 = 4.5, R0 = 1 + .5 * (.5 * 4 + .5 * 4.5) = 3.125
    cut = torch.tensor([False, True, False])
    target = lambda_return(REWARD, VALUE, CONTINUES, gamma=0.5, lambda_=0.5, truncated=cut)
    assert target.tolist() == [3.125, 4.5, 3.0]


def test_monte_carlo_by_hand():
    # 3; 2 + .5 * 3 = 3.5; 1 + .5 * 3.5 = 2.75; the sum ends at row 2, so the 8 is not counted
    last = torch.tensor(8.0, dtype=torch.float64)
    total = monte_carlo_return(REWARD, CONTINUES, gamma=0.5, last_value=last)
    assert total.tolist() == [2.75, 3.5, 3.0]
    # with a future: 3 + .5 * 8 = 7; 2 + 3.5 = 5.5; 1 + 2.75 = 3.75
    open_end = monte_carlo_return(REWARD, torch.ones(3), gamma=0.5, last_value=last)
    assert open_end.tolist() == [3.75, 5.5, 7.0]
    assert monte_carlo_return(REWARD, torch.ones(3), gamma=0.5).tolist() == [2.75, 3.5, 3.0]


def test_multi_step_by_hand():
    # two rewards, then a value: 1 + .5 * 2 + .25 * 5 = 3.25; 2 + .5 * 3 + 0 = 3.5; 3
    target = multi_step_return(REWARD, VALUE, CONTINUES, gamma=0.5, steps=2)
    assert target.tolist() == [3.25, 3.5, 3.0]
    # row 0 is cut off: it bootstraps after one reward, 1 + .5 * 4 = 3
    cut = torch.tensor([True, False, False])
    short = multi_step_return(REWARD, VALUE, CONTINUES, gamma=0.5, steps=2, truncated=cut)
    assert short.tolist() == [3.0, 3.5, 3.0]
    # one that goes on looks at the last value where its rows end: 3 + .5 * 6 = 6
    ongoing = multi_step_return(REWARD, VALUE, torch.ones(3), gamma=0.5, steps=2)
    assert ongoing.tolist() == [3.25, 2 + 1.5 + 1.5, 6.0]


seeds = st.integers(0, 10**6)


@settings(max_examples=40, deadline=None)
@given(seeds, st.floats(0, 1), st.integers(1, 12))
def test_exact_values_give_the_same_return_for_every_lambda(seed, lambda_, steps):
    # V of each arrival is what an exact model of these rewards says; so nothing depends on lambda
    generator = torch.Generator().manual_seed(seed)
    size, gamma = 9, 0.9
    reward = torch.randn(size, 3, generator=generator, dtype=torch.float64)
    continues = torch.rand(size, 3, generator=generator, dtype=torch.float64)
    beyond = torch.randn(3, generator=generator, dtype=torch.float64)
    exact = monte_carlo_return(reward, continues, gamma=gamma, last_value=beyond)
    next_value = torch.cat([exact[1:], beyond[None]])
    target = lambda_return(reward, next_value, continues, gamma=gamma, lambda_=lambda_)
    assert torch.allclose(target, exact)
    several = multi_step_return(reward, next_value, continues, gamma=gamma, steps=steps)
    assert torch.allclose(several, exact)


ends = st.lists(st.sampled_from(["go", "terminated", "truncated"]), min_size=2, max_size=10)


def sequence(pattern, seed):
    generator = torch.Generator().manual_seed(seed)
    reward, value = torch.randn(2, len(pattern), 2, generator=generator, dtype=torch.float64)
    terminated = torch.tensor([each == "terminated" for each in pattern])[:, None].expand(-1, 2)
    truncated = torch.tensor([each == "truncated" for each in pattern])[:, None].expand(-1, 2)
    return reward, value, terminated, truncated


@settings(max_examples=40, deadline=None)
@given(ends, seeds)
def test_another_episode_never_changes_a_target(pattern, seed):
    reward, value, terminated, truncated = sequence(pattern, seed)
    continues = (~terminated).double()
    ended = terminated | truncated

    def targets(reward, value):
        cut = {"gamma": 0.9, "truncated": truncated}
        return torch.stack(
            [
                lambda_return(reward, value, continues, lambda_=0.8, **cut),
                multi_step_return(reward, value, continues, steps=3, **cut),
                monte_carlo_return(reward, (~ended).double(), gamma=0.9),
            ]
        )

    before = targets(reward, value)
    for end in [t for t in range(len(pattern) - 1) if pattern[t] != "go"]:
        changed = [each.clone() for each in (reward, value)]
        for each in changed:
            each[end + 1 :] += 100.0
        assert torch.equal(before[:, : end + 1], targets(*changed)[:, : end + 1])


@settings(max_examples=40, deadline=None)
@given(ends, seeds, st.floats(0, 1))
def test_it_is_the_target_of_gae(pattern, seed, lambda_):
    reward, next_value, terminated, truncated = sequence(pattern, seed)
    value = torch.zeros_like(next_value)  # rows of one episode agree: V of arrival, V of departure
    value[1:] = torch.where((terminated | truncated)[:-1], 0.5, next_value[:-1])
    advantage = gae(reward, value, next_value, terminated, truncated, gamma=0.9, gae_lambda=lambda_)
    target = lambda_return(
        reward,
        next_value,
        (~terminated).double(),
        gamma=0.9,
        lambda_=lambda_,
        truncated=truncated,
    )
    assert torch.allclose(target, advantage + value)


def test_gradients_flow_through_rewards_values_and_continues():
    reward, value = REWARD.clone().requires_grad_(), VALUE.clone().requires_grad_()
    continues = numbers(1, 0.5, 0.25).requires_grad_()
    lambda_return(reward, value, continues, gamma=0.5, lambda_=0.5)[0].backward()
    # dR0/dr = [1, γ c0 λ, γ² c0 c1 λ²]; dR0/dV0 = γ c0 (1-λ); dV2 is the last one: no (1-λ)
    assert reward.grad.tolist() == pytest.approx([1, 0.25, 0.25 * 0.5 * 0.25])
    last = 0.5**3 * 0.5 * 0.25 * 0.5**2
    assert value.grad.tolist() == pytest.approx([0.25, 0.5 * 0.5 * 0.5 * 0.5 * 0.5, last])
    assert continues.grad.abs().min() > 0
