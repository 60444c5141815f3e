"""Denoisers and the queue of actions: shapes, influence, and whose turn it is."""

import pytest
import torch
from test_imitation import box

from rl_lab.algorithms.diffusion.chunks import (
    ACTIONS,
    AGE,
    SEEN,
    empty_memory,
    executed_slice,
    next_action,
    next_action_traced,
    remembered,
)
from rl_lab.algorithms.diffusion.denoisers import (
    ChunkNetwork,
    DenoiserConfig,
    MLPDenoiser,
    UNet,
    sinusoids,
)
from rl_lab.core.spec import Box, Dict
from rl_lab.core.tree import where_rows

MLP = DenoiserConfig(hidden_dim=16, blocks=2, step_dim=8)
UNET = DenoiserConfig(type="unet", channels=[8, 16], groups=4, step_dim=8)
each_denoiser = pytest.mark.parametrize(("kind", "config"), [(MLPDenoiser, MLP), (UNet, UNET)])


def test_a_level_as_waves_by_hand():
    # rates 1 and 1/10000 (two of them): sin and cos of 3 and of .0003
    expected = torch.tensor([[3.0, 0.0003]])
    found = sinusoids(torch.tensor([3.0]), 4)
    torch.testing.assert_close(found, torch.cat([expected.sin(), expected.cos()], -1))


@each_denoiser
@pytest.mark.parametrize("length", [1, 5, 8])
def test_a_prediction_has_the_shape_of_the_chunk_whatever_its_length(kind, config, length):
    network = kind(config, length, 3, 7)
    noisy = torch.randn(4, length, 3)
    found = network(noisy, torch.tensor([0.0, 5.0, 50.0, 99.0]), torch.randn(4, 7))
    assert found.shape == noisy.shape


@each_denoiser
def test_everything_that_is_given_has_an_influence_and_every_weight_learns(kind, config):
    network = kind(config, 6, 2, 3)
    noisy, level = torch.randn(2, 6, 2), torch.tensor([3.0, 40.0])
    seen = torch.randn(2, 3)
    found = network(noisy, level, seen)
    for changed in ((noisy + 1, level, seen), (noisy, level + 9, seen), (noisy, level, seen + 1)):
        assert not torch.allclose(network(*changed), found, atol=1e-4)
    found.square().sum().backward()
    assert all(each.grad is not None and each.grad.abs().sum() > 0 for each in network.parameters())


@each_denoiser
def test_rows_are_independent(kind, config):
    network = kind(config, 6, 2, 3)
    noisy, level, seen = torch.randn(3, 6, 2), torch.rand(3) * 99, torch.randn(3, 3)
    together = network(noisy, level, seen)
    alone = torch.cat(
        [network(noisy[i : i + 1], level[i : i + 1], seen[i : i + 1]) for i in (0, 1, 2)]
    )
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)


def test_a_prediction_can_depend_on_distant_times():
    for kind, config in ((MLPDenoiser, MLP), (UNet, UNET)):
        network = kind(config, 8, 1, 3)
        noisy = torch.zeros(1, 8, 1, requires_grad=True)
        network(noisy, torch.zeros(1), torch.zeros(1, 3))[0, 0, 0].backward()
        assert noisy.grad[0, 7, 0] != 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step_dim": 7}, "step_dim must be even"),
        ({"type": "unet", "channels": [12]}, "channels must be multiples of groups 8, got 12"),
        ({"channels": [0]}, r"channels\[0\] must be at least 1"),
    ],
)
def test_widths_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DenoiserConfig(**options)


class Twice(torch.nn.Module):
    """Features that show which frame they come from."""

    out_dim = 2

    def forward(self, obs):
        return torch.cat([obs, 2 * obs], -1)


def test_all_frames_condition_a_chunk_in_their_order():
    network = ChunkNetwork(Twice(), MLP, (4, 1), history=2)
    frames = torch.tensor([[[1.0], [3.0]]])  # [B, To, 1]
    assert network.condition(frames).tolist() == [[1.0, 2.0, 3.0, 6.0]]


# ------------------------------------------------------------------------------ the queue


def counted(executed=2):
    """A decision that says which it was: 10, 11, … then 20, 21, …, and what it has seen."""
    made = []

    def decide(frames, rows):
        made.append((frames.squeeze(-1).tolist(), rows.tolist()))
        first = 10.0 * len(made)
        chunk = first + torch.arange(float(executed)).view(1, -1, 1)
        return chunk.expand(len(rows), -1, -1) + 0.5 * rows.view(-1, 1, 1)

    return decide, made


def memory_of(batch, history=2, executed=2):
    return empty_memory(box(1), batch, history=history, executed=executed, size=1, device="cpu")


def frame(*values):
    return torch.tensor(values).unsqueeze(-1)


def test_a_chunk_is_executed_before_the_next_one_is_decided():
    decide, made = counted()
    memory, actions = memory_of(1), []
    for value in (1.0, 2.0, 3.0, 4.0, 5.0):
        action, memory = next_action(memory, frame(value), decide)
        actions.append(action.item())
    assert actions == [10.0, 11.0, 20.0, 21.0, 30.0]
    # the first frame of an episode stands for those before it
    assert [frames for frames, _ in made] == [[[1.0, 1.0]], [[2.0, 3.0]], [[4.0, 5.0]]]


def test_every_environment_has_its_own_queue_and_a_new_episode_an_empty_one():
    decide, made = counted()
    memory = memory_of(2)
    _, memory = next_action(memory, frame(1.0, 5.0), decide)
    # the second environment begins again: its memory is as at first
    memory = where_rows(torch.tensor([False, True]), memory_of(2), memory)
    action, memory = next_action(memory, frame(2.0, 7.0), decide)
    # row 0 goes on with the first decision, row 1 has a new one that saw nothing of before
    assert action.squeeze(-1).tolist() == [11.0, 20.5]
    assert made[1] == ([[7.0, 7.0]], [1])
    action, memory = next_action(memory, frame(3.0, 8.0), decide)
    assert action.squeeze(-1).tolist() == [30.0, 21.5]
    assert made[2] == ([[2.0, 3.0]], [0])
    assert memory[AGE].tolist() == [3, 2]


def test_the_traced_form_does_the_same():
    plain, traced = memory_of(2), memory_of(2)

    def decide(frames, rows):
        return frames.sum(1, keepdim=True) + torch.arange(2.0).view(1, -1, 1)

    for time in range(5):
        if time == 3:
            begins = torch.tensor([True, False])
            plain, traced = (where_rows(begins, memory_of(2), each) for each in (plain, traced))
        obs = torch.randn(2, 1)
        one, plain = next_action(plain, obs, decide)
        other, traced = next_action_traced(traced, obs, decide)
        assert torch.equal(one, other)
        assert all(torch.equal(plain[name], traced[name]) for name in (SEEN, ACTIONS, AGE))


def test_frames_of_a_dict_and_of_bytes_are_remembered_as_they_are():
    zeros = 0 * torch.ones(2, 3, 3).numpy()
    image = Box((2, 3, 3), torch.zeros(0, dtype=torch.uint8).numpy().dtype, zeros, zeros + 255)
    memory = empty_memory(
        Dict({"eye": image, "arm": box(2)}), 1, history=3, executed=1, size=1, device="cpu"
    )
    obs = {"eye": torch.full((1, 2, 3, 3), 9, dtype=torch.uint8), "arm": torch.ones(1, 2)}
    seen = remembered(memory, obs)
    assert seen["eye"].dtype == torch.uint8
    assert seen["eye"].shape == (1, 3, 2, 3, 3)
    assert (seen["eye"] == 9).all() and (seen["arm"] == 1).all()


def test_the_executed_slice_begins_with_the_newest_frame():
    # To 3, Ta 2 of Tp 6: actions 0 and 1 led to the newest frame
    chunk = torch.arange(6.0).view(1, 6, 1)
    assert executed_slice(chunk, history=3, executed=2).flatten().tolist() == [2.0, 3.0]
