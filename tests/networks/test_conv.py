"""The encoder `conv`: normalised convolutions, each of which halves the image."""

import numpy as np
import pytest
import torch
from torch import nn

from rl_lab.core.errors import UserError
from rl_lab.core.spec import Box
from rl_lab.networks.cnn import ConvConfig, ConvEncoder


def image(*shape: int) -> Box:
    return Box(shape, np.dtype(np.uint8), np.zeros(shape, np.uint8), np.full(shape, 255, np.uint8))


def test_three_layers_of_64_channels_halve_the_image():
    encoder = ConvEncoder(ConvConfig(), image(3, 84, 84))
    convolutions = [each for each in encoder.layers if isinstance(each, nn.Conv2d)]
    sizes = [(each.out_channels, each.kernel_size[0], each.stride[0]) for each in convolutions]
    assert sizes == [(64, 3, 2)] * 3
    assert encoder.layers(torch.zeros(2, 3, 84, 84)).shape == (2, 64, 11, 11)  # 84, 42, 21, 11
    assert encoder(torch.zeros(5, 2, 3, 84, 84, dtype=torch.uint8)).shape == (5, 2, 256)


def test_an_image_s_features_do_not_depend_on_its_neighbours_nor_on_contrast():
    encoder = ConvEncoder(ConvConfig(channels=[8], features=4), image(1, 6, 8))
    pictures = torch.randint(0, 120, (3, 1, 6, 8), dtype=torch.uint8)
    torch.testing.assert_close(encoder(pictures)[1:2], encoder(pictures[1:2]))
    # Normalised: twice the light is the same picture (bias of the first layer is 0).
    torch.testing.assert_close(encoder(pictures * 2), encoder(pictures), rtol=1e-3, atol=1e-3)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="kernel must be an odd number, got 4"):
        ConvConfig(kernel=4)
    with pytest.raises(ValueError, match="channels must not be empty"):
        ConvConfig(channels=[])
    with pytest.raises(UserError, match="conv needs an image"):
        ConvEncoder(ConvConfig(), Box((3,), np.dtype(np.float32), -np.ones(3), np.ones(3)))
