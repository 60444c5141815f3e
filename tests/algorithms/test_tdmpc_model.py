"""The networks of TD-MPC2: weights of bins by hand, SimNorm, Mish, values, pictures, sizes."""

import math

import numpy as np
import pytest
import torch

from rl_lab.algorithms.tdmpc.config import TDMPC2Config
from rl_lab.algorithms.tdmpc.world_model import (
    LatentModel,
    Policy,
    SimNorm,
    mish,
    shifted_images,
    value_of,
)
from rl_lab.core.batch import OBS
from rl_lab.core.spec import EnvSpec
from rl_lab.core.symlog import symlog_bins, symlog_two_hot_loss, symlog_two_hot_mean, two_hot
from tiny_tdmpc import box, networks, play, stream, tiny_tdmpc

# -- rewards and values as weights of bins ---------------------------------------------------------


def test_two_hot_in_symlog_units_by_hand():
    # 101 bins from -10 to 10, .2 apart: symlog(100) = 4.615121, which lies at 73.0756.
    bins = symlog_bins(101, 10.0)
    lower, share = two_hot(torch.log1p(torch.tensor(100.0)), bins)
    assert lower.item() == 73
    assert share.item() == pytest.approx(0.0756, abs=1e-4)
    log_probs = torch.randn(101, generator=stream()).log_softmax(-1)
    expected = -(1 - share) * log_probs[73] - share * log_probs[74]
    loss = symlog_two_hot_loss(log_probs, torch.tensor(100.0), bins)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("number", [0.0, 1.0, -0.37, 16.27, -1600.0, 21_000.0])
def test_two_hot_round_trip(number):
    bins = symlog_bins(101, 10.0)
    x = torch.tensor(number)
    lower, share = two_hot(x.sign() * x.abs().log1p(), bins)
    weight = torch.zeros(101)
    weight[lower], weight[lower + 1] = 1 - share, share
    back = symlog_two_hot_mean(weight.clamp(min=1e-30).log(), bins)
    assert back.item() == pytest.approx(number, rel=2e-4, abs=1e-5)


def test_equal_bins_say_nothing_and_the_range_saturates():
    bins = symlog_bins(101, 10.0)
    assert symlog_two_hot_mean(torch.zeros(5, 101), bins).tolist() == [0.0] * 5
    for sign in (1, -1):  # the last index must not wrap around to the first
        lower, share = two_hot(torch.tensor(sign * 99.0), bins)
        assert (lower + share).item() == pytest.approx(100 if sign > 0 else 0)


def test_rewards_and_values_begin_as_zero():
    model, _ = networks()
    z, action = torch.randn(7, 8).softmax(-1), torch.rand(7, 2)
    assert model.step(z, action)[1].abs().max() == 0
    assert value_of(model, model.values, z, action, None).abs().max() == 0


# -- parts of the model ----------------------------------------------------------------------------


def test_simnorm_by_hand():
    # Two groups of two, the members two apart: (0, ln 3) and (0, 0).
    x = torch.tensor([0.0, 0.0, math.log(3), 0.0])
    assert SimNorm(2)(x).tolist() == pytest.approx([0.25, 0.5, 0.75, 0.5])


def test_latents_are_groups_that_sum_to_one():
    model, _ = networks()
    z = model.encoder(torch.randn(5, 3))
    after = model.step(z, torch.rand(5, 2))[0]
    for latent in (z, after):
        assert torch.allclose(latent.view(5, 4, 2).sum(1), torch.ones(5, 2))


def test_mish_and_its_derivative_are_those_of_torch():
    x = torch.linspace(-90, 90, 5001, dtype=torch.float64, requires_grad=True)
    ours, theirs = mish(x), torch.nn.functional.mish(x)
    assert torch.allclose(ours, theirs, atol=1e-8)
    slopes = [torch.autograd.grad(each.sum(), x)[0] for each in (ours, theirs)]
    assert torch.allclose(*slopes, atol=1e-7)


def test_a_few_values_are_those_of_all():
    model, _ = networks(critics=5)
    with torch.no_grad():
        model.values.weights[-1].normal_(generator=stream())
    pairs = torch.randn(4, 6, 10)
    every = model.values(pairs)
    assert every.shape == (5, 4, 6, 11)
    two = model.values(pairs, torch.tensor([3, 1]))
    assert torch.allclose(two, every[[3, 1]], atol=1e-6)


def test_dropout_is_in_the_first_layer_of_the_values():
    model, _ = networks()
    with torch.no_grad():
        model.values.weights[-1].normal_(generator=stream())
    pairs = torch.randn(6, 10)
    none = model.values(pairs, None, torch.ones(3, 6, 8))
    assert torch.allclose(none, model.values(pairs), atol=1e-6)
    mask = torch.ones(3, 6, 8)
    mask[1, :, :4] = 0
    some = model.values(pairs, None, mask)
    assert torch.allclose(some[[0, 2]], none[[0, 2]]) and not torch.allclose(some[1], none[1])


def test_images_are_moved_and_edges_repeated():
    image = torch.arange(9.0).view(1, 1, 3, 3)
    moved = shifted_images(image, torch.tensor([[1, -1]]))  # one row down, one column to the left
    assert moved[0, 0].tolist() == [[3, 3, 4], [6, 6, 7], [6, 6, 7]]
    two = shifted_images(image.expand(2, 1, 3, 3), torch.tensor([[0, 0], [0, 2]]))
    assert torch.equal(two[0], image[0])
    assert two[1, 0, 0].tolist() == [2, 2, 2]


def test_pictures_become_latents():
    spec = EnvSpec("picture", box(3, 64, 64, kind=np.uint8, low=0, high=255), box(2))
    config = TDMPC2Config(size="5m")
    model = LatentModel(spec, config, ends=False)
    images = torch.randint(0, 256, (2, 3, 3, 64, 64), dtype=torch.uint8)
    assert model.encoder.pixels["obs"].out_dim == 512  # the paper's: nothing before the SimNorm
    assert isinstance(model.encoder.layers, SimNorm)
    z = model.encoder(images)
    assert z.shape == (2, 3, 512)
    shifts = model.encoder.shifts((2, 3), 3, stream())
    assert shifts[OBS].min() == -3 and shifts[OBS].max() == 3
    assert not torch.allclose(model.encoder(images, shifts), z)


def test_pictures_are_learned_from(tiny):
    run = tiny_tdmpc(tiny, "tdmpc2", "PixelTrack-v0")
    before = run.workflow.model.encoder.pixels["obs"].layers[0].weight.clone()
    while run.workflow.budget.steps < 4:
        play(run, 1)
    assert not torch.equal(run.workflow.model.encoder.pixels["obs"].layers[0].weight, before)


# -- sizes -----------------------------------------------------------------------------------------

WALKER = EnvSpec("walker", box(17), box(6))
MULTITASK = 96  # numbers that say which task it is, in the paper's sizes of 19m and more


def parameters(size: str, spec: EnvSpec) -> int:
    with torch.device("meta"):
        config = TDMPC2Config(size=size)
        parts = LatentModel(spec, config, ends=False), Policy(spec.action, config)
    return sum(each.numel() for part in parts for each in part.parameters())


@pytest.mark.parametrize(("size", "count"), [("1m", 1.21e6), ("5m", 4.96e6)])
def test_sizes_have_the_parameters_of_the_authors_code(size, count):
    assert parameters(size, WALKER) == pytest.approx(count, rel=0.02)


@pytest.mark.parametrize(("size", "count"), [("19m", 19e6), ("48m", 48e6), ("317m", 317e6)])
def test_large_sizes_have_those_of_the_paper(size, count):
    """The paper's are for many tasks: every first layer also reads 96 numbers of the task."""
    sizes = TDMPC2Config(size=size).dimensions()
    first_layers = sizes.encoder_width + (3 + sizes.critics) * sizes.units
    dimensions = EnvSpec("many tasks", box(39), box(6))
    assert parameters(size, dimensions) + MULTITASK * first_layers == pytest.approx(count, rel=0.02)
