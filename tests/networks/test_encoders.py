"""Encoders of images and of dict observations, masks in the policy, modules of one's own."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from rl_lab.core.batch import ACTION_MASK
from rl_lab.core.distributions import Categorical, MultiCategorical, masked
from rl_lab.core.errors import UserError
from rl_lab.core.schema import NetworkConfig
from rl_lab.core.spec import Box, Dict, Discrete, EnvSpec, MultiDiscrete
from rl_lab.networks.actor_critic import ActorCritic
from rl_lab.networks.cnn import (
    GridCNN,
    GridConfig,
    ImpalaCNN,
    ImpalaConfig,
    NatureCNN,
    NatureConfig,
)
from rl_lab.networks.encoder import AutoEncoderConfig, DictEncoder, make_encoder
from rl_lab.networks.memory.recurrent import NoMemoryConfig
from rl_lab.networks.mlp import MLPEncoder, MLPEncoderConfig
from rl_lab.networks.normalizer import make_normalizer
from rl_lab.networks.numpy_policy import fast_policy


def image(*shape, dtype=np.uint8):
    return Box(shape, np.dtype(dtype), np.zeros(shape), np.full(shape, 255))


def vector(size):
    bounds = np.full(size, np.inf)
    return Box((size,), np.dtype(np.float32), -bounds, bounds)


PARTS = Dict({"camera": image(3, 20, 24), "speed": vector(2), "room": Discrete(3)})


def rows(space, *lead):
    if isinstance(space, Dict):
        return {name: rows(part, *lead) for name, part in space.parts.items()}
    if isinstance(space, Discrete):
        return torch.randint(space.n, lead)
    if space.dtype == np.uint8:
        return torch.randint(0, 256, (*lead, *space.shape), dtype=torch.uint8)
    return torch.randn(*lead, *space.shape)


def test_nature_is_the_network_of_the_paper_at_84_pixels():
    encoder = NatureCNN(NatureConfig(), image(4, 84, 84))
    kernels = [(c.out_channels, *c.kernel_size) for c in encoder.layers if hasattr(c, "stride")]
    assert kernels == [(32, 8, 8), (64, 4, 4), (64, 3, 3)]
    assert encoder.output.in_features == 64 * 7 * 7  # 84 -> 20 -> 9 -> 7
    weights = 4 * 32 * 64 + 32 * 64 * 16 + 64 * 64 * 9 + 3136 * 512
    assert sum(p.numel() for p in encoder.parameters()) == weights + 32 + 64 + 64 + 512


@pytest.mark.parametrize("kind", [NatureCNN, ImpalaCNN])
@pytest.mark.parametrize("size", [(1, 1), (7, 7), (35, 36), (36, 36), (64, 48), (120, 160)])
def test_images_of_any_size(kind, size):
    space = image(3, *size)
    encoder = kind(kind.Config(features=5), space)
    assert encoder(rows(space, 2)).shape == (2, 5)
    assert encoder(rows(space, 4, 2)).shape == (4, 2, 5)  # any leading shape


def test_bytes_are_scaled_and_floats_are_not():
    torch.manual_seed(0)
    space = image(1, 8, 8)
    encoder = NatureCNN(NatureConfig(features=4), space)
    same = NatureCNN(NatureConfig(features=4), image(1, 8, 8, dtype=np.float32))
    same.load_state_dict(encoder.state_dict())
    pixels = rows(space, 2)
    torch.testing.assert_close(encoder(pixels), same(pixels.float() / 255))


def test_a_residual_block_adds_to_what_it_gets():
    encoder = ImpalaCNN(ImpalaConfig(channels=[4], features=2), image(2, 8, 8))
    block = encoder.layers[0]
    for part in block.residuals:
        nn.init.zeros_(part.second.weight)
    x = torch.randn(1, 2, 8, 8)
    expected = torch.nn.functional.max_pool2d(block.enter(x), 3, 2, 1)
    assert torch.equal(block(x), expected)  # residual branches are silent


def test_auto_looks_at_the_space():
    auto = AutoEncoderConfig(hidden_dims=[7])
    assert isinstance(make_encoder(auto, vector(3)), MLPEncoder)
    assert isinstance(make_encoder(auto, Discrete(3)), MLPEncoder)
    assert isinstance(make_encoder(auto, image(3, 64, 64)), NatureCNN)
    impala = AutoEncoderConfig(image="impala")
    assert isinstance(make_encoder(impala, image(3, 64, 64)), ImpalaCNN)
    assert make_encoder(auto, vector(3)).out_dim == 7


def test_codes_on_a_grid_are_not_brightness():
    auto = AutoEncoderConfig()
    minigrid = image(3, 7, 7)  # its space says 0 … 255, its numbers are names of things
    assert isinstance(make_encoder(auto, minigrid), GridCNN)
    few = Box((1, 40, 40), np.dtype(np.uint8), np.zeros((1, 40, 40)), np.full((1, 40, 40), 10))
    assert isinstance(make_encoder(auto, few), GridCNN)
    assert isinstance(make_encoder(auto, image(3, 16, 16)), NatureCNN)
    assert isinstance(make_encoder(auto, image(3, 7, 7, dtype=np.float32)), NatureCNN)
    encoder = GridCNN(GridConfig(features=5), minigrid)
    assert encoder(rows(minigrid, 4, 2)).shape == (4, 2, 5)
    codes = torch.zeros(1, 3, 7, 7, dtype=torch.uint8)
    codes[0, 0, 3, 3] = 9
    planes = torch.nn.functional.one_hot(codes.long(), encoder.codes).float()
    planes = planes.movedim(-1, 2).flatten(1, 2)  # [1, 3 * codes, 7, 7], a plane for each code
    expected = encoder.output(encoder.layers(planes).flatten(1)).relu()
    torch.testing.assert_close(encoder(codes), expected)


def test_a_code_that_is_not_below_codes_is_warned_about_once(caplog):
    encoder = GridCNN(GridConfig(codes=5), image(1, 7, 7))
    codes = torch.zeros(1, 1, 7, 7, dtype=torch.uint8)
    with torch.no_grad():
        encoder(codes + 4)
        assert not caplog.records
        encoder(codes + 9)
        encoder(codes + 9)
    assert [each.getMessage() for each in caplog.records] == [
        "the observation has the code 9, and the encoder `grid` only tells those below 5 apart: "
        "set network.encoder.type=grid network.encoder.codes=10 or more, or a type for pictures"
    ]


def test_parts_of_a_dict_are_joined_before_one_mlp():
    config = AutoEncoderConfig(
        hidden_dims=[7], parts={"camera": {"type": "impala", "features": 5}, "room": "mlp_tiny"}
    )
    encoder = make_encoder(config, PARTS)
    assert isinstance(encoder, DictEncoder) and encoder.out_dim == 7
    assert encoder.layers[0].in_features == 5 + 2 + 64  # impala, the vector as it is, mlp_tiny
    assert encoder(rows(PARTS, 4)).shape == (4, 7)


def test_parts_of_a_dict_interact():
    """A head that is linear in features must not be a sum of one function per part."""
    space = Dict({"left": Discrete(2), "right": Discrete(2)})
    encoder = make_encoder(AutoEncoderConfig(hidden_dims=[8]), space)
    pairs = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    features = encoder({"left": pairs[:, 0], "right": pairs[:, 1]})
    mixed = features[0] - features[1] - features[2] + features[3]
    assert mixed.abs().max() > 1e-3


def test_one_part_alone_is_encoded_as_without_a_dict():
    space = Dict({"camera": image(3, 20, 24), ACTION_MASK: vector(3)})
    assert make_encoder(AutoEncoderConfig(hidden_dims=[7]), space).out_dim == 512


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"kamera": "nature"}, "did you mean 'camera'"),
        ({"speed": "nature"}, "needs an image"),
        ({"speed": {"type": "mlp", "hidden_dim": [4]}}, "did you mean 'hidden_dims'"),
        ({"speed": {"hidden_dims": [4]}}, "needs a type"),
        ({"speed": "transformer"}, "unknown encoder"),
        ({"speed": {"type": "mlp", "hidden_dims": [0]}}, "must be at least 1"),
    ],
)
def test_wrong_parts_are_named(parts, message):
    with pytest.raises(UserError, match=message):
        make_encoder(AutoEncoderConfig(parts=parts), PARTS)


def test_parts_of_an_observation_without_parts_are_refused():
    with pytest.raises(UserError, match="has no parts"):
        make_encoder(AutoEncoderConfig(parts={"a": "mlp"}), vector(2))
    with pytest.raises(UserError, match=r"nature needs an image.*\(2,\)"):
        make_encoder(NatureConfig(), vector(2))


def test_every_part_is_normalized_by_itself():
    space = Dict({"a": vector(2), "camera": image(1, 4, 4)})
    normalizer = make_normalizer("running", space)
    data = {"a": np.array([[1.0, 10.0], [3.0, 30.0]]), "camera": np.ones((2, 1, 4, 4), np.uint8)}
    normalizer.update_statistics(data)
    seen = normalizer({"a": torch.tensor([[2.0, 20.0]]), "camera": torch.ones(1, 1, 4, 4)})
    torch.testing.assert_close(seen["a"], torch.zeros(1, 2))  # the mean becomes 0
    assert torch.equal(seen["camera"], torch.ones(1, 1, 4, 4))  # bytes are left alone


# ------------------------------------------------------------------------ masks


def test_a_forbidden_action_has_no_probability_and_no_entropy():
    # logits 0, ln 3, 5 with the last forbidden: 1/4 and 3/4
    logits = torch.tensor([0.0, math.log(3), 5.0])
    policy = Categorical(masked(logits, torch.tensor([1, 1, 0])))
    torch.testing.assert_close(policy.log_prob(torch.tensor(1)), torch.tensor(math.log(0.75)))
    expected = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    torch.testing.assert_close(policy.entropy(), torch.tensor(expected))
    generator = torch.Generator().manual_seed(0)
    many = Categorical(masked(logits.expand(2000, 3), torch.tensor([1, 1, 0])))
    assert set(many.sample(generator).tolist()) == {0, 1}
    assert policy.mode().item() == 1


def test_no_gradient_reaches_a_forbidden_logit():
    logits = torch.zeros(3, requires_grad=True)
    policy = Categorical(masked(logits, torch.tensor([1, 1, 0])))
    (policy.log_prob(torch.tensor(0)) + policy.entropy()).backward()
    assert logits.grad is not None and torch.isfinite(logits.grad).all()
    assert logits.grad[2] == 0 and logits.grad[0] != 0


def test_masks_of_several_components():
    mask = torch.tensor([[1, 0, 0, 0, 1]])
    policy = MultiCategorical(masked(torch.zeros(1, 5), mask), (2, 3))
    assert policy.mode().tolist() == [[0, 2]]
    torch.testing.assert_close(policy.entropy(), torch.zeros(1))


def small(**options):
    encoder = AutoEncoderConfig(hidden_dims=[8], image="nature")
    return NetworkConfig(encoder=encoder, memory=NoMemoryConfig(), **options)


def test_the_model_obeys_the_mask_and_does_not_look_at_it():
    count = Box((3,), np.dtype(np.int8), np.zeros(3), np.ones(3))
    spec = EnvSpec("x", Dict({"observation": vector(2), ACTION_MASK: count}), Discrete(3))
    model = ActorCritic(small(), spec)
    obs = {"observation": torch.randn(64, 2), ACTION_MASK: torch.tensor([[0, 1, 1]] * 64)}
    policy, _ = model.policy_step(obs, model.initial_state(64))
    assert 0 not in policy.sample().tolist()
    other = {**obs, ACTION_MASK: torch.tensor([[1, 1, 0]] * 64)}
    state, nowhere = model.initial_state(64), torch.tensor(False)
    assert torch.equal(model(obs, state, nowhere)[1], model(other, state, nowhere)[1])


def test_a_mask_of_the_wrong_length_is_refused():
    count = Box((4,), np.dtype(np.int8), np.zeros(4), np.ones(4))
    for action in (Discrete(3), MultiDiscrete((2, 3)), vector(4)):
        spec = EnvSpec("x", Dict({"observation": vector(2), ACTION_MASK: count}), action)
        with pytest.raises(UserError, match="action_mask of shape"):
            ActorCritic(small(), spec)


def test_images_are_judged_in_pieces_with_the_same_numbers(monkeypatch):
    spec = EnvSpec("x", PARTS, Discrete(3))
    model = ActorCritic(small(), spec)
    obs, following = rows(PARTS, 10, 3), rows(PARTS, 10, 3)
    action, flags = torch.randint(3, (10, 3)), torch.zeros(10, 3, dtype=torch.bool)
    arguments = (obs, action, following, model.initial_state(3), flags, flags, 1)
    with torch.no_grad():
        whole = model.unroll(*arguments)
        monkeypatch.setattr("rl_lab.networks.actor_critic._IMAGES_AT_ONCE", 12)  # 4 + 4 + 2 steps
        pieces = model.unroll(*arguments)
    for name in ("log_prob", "value", "next_value"):
        torch.testing.assert_close(getattr(whole, name), getattr(pieces, name))
        assert getattr(pieces, name).shape == (10, 3)


def test_plain_mlp_configs_still_mean_what_they_say():
    assert isinstance(make_encoder(MLPEncoderConfig(), image(1, 4, 4)), MLPEncoder)


def test_parts_may_have_any_names():
    names = ["keys", "values", "type", "", "a.b", "a_b", "training"]
    space = Dict({name: vector(2) for name in names})
    encoder = make_encoder(AutoEncoderConfig(hidden_dims=[3]), space)
    assert len(encoder.parts) == len(names) and encoder.layers[0].in_features == 2 * len(names)
    assert encoder(rows(space, 4)).shape == (4, 3)


def test_an_encoder_with_a_forward_of_its_own_is_what_acts():
    class Turned(MLPEncoder):
        def forward(self, obs):
            return 5 * super().forward(-obs) + 1

    spec = EnvSpec("x", vector(2), Discrete(3))
    model = ActorCritic(small(), spec)
    assert fast_policy(model) is not None
    model.torsos["actor"].encoder = Turned(MLPEncoderConfig(hidden_dims=[8]), vector(2))
    assert fast_policy(model) is None
