"""World models: every kind of space, what heads cost, sizes, and what is learned from what."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from rl_lab.algorithms.dreamer.actor import LatentActor
from rl_lab.algorithms.dreamer.images import (
    ChannelRMSNorm,
    ImageEncoder,
    PooledDecoder,
    StridedDecoder,
    is_picture,
)
from rl_lab.algorithms.dreamer.world_config import SIZES, WorldModelConfig
from rl_lab.algorithms.dreamer.world_model import Scalar, VectorDecoder, WorldModel, parts_of
from rl_lab.core.batch import OBS, PREVIOUS_ACTION, RESET, REWARD, TERMINATED
from rl_lab.core.spec import Box, Dict, Discrete, EnvSpec, MultiDiscrete
from rl_lab.core.symlog import symexp_bins

TINY = {"deter": 16, "hidden": 16, "stoch": 4, "classes": 4, "units": 16, "channels": 2}


def config(**more) -> WorldModelConfig:
    return WorldModelConfig(**{**TINY, **more})


def box(*shape: int, dtype=np.float32) -> Box:
    high = np.full(shape, 255 if dtype == np.uint8 else 1, dtype)
    return Box(shape, np.dtype(dtype), np.zeros_like(high), high)


IMAGE = box(3, 16, 16, dtype=np.uint8)
SPACES = {
    "vector": box(3),
    "matrix": box(2, 3),
    "index": Discrete(5),
    "indices": MultiDiscrete((2, 3)),
    "image": IMAGE,
    "odd image": box(1, 17, 22, dtype=np.uint8),
    "codes": box(3, 7, 7, dtype=np.uint8),
    "float image": box(1, 12, 12),
    "dict": Dict(
        {"camera": IMAGE, "inner/speed": box(2), "room.number": Discrete(3), "action_mask": box(2)}
    ),
}
ACTIONS = {"box": box(2), "index": Discrete(3), "indices": MultiDiscrete((2, 3))}


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def element(space, lead, rng):
    """Random elements [*lead, …] of a space, as a buffer gives them."""
    if isinstance(space, Dict):
        return {key: element(each, lead, rng) for key, each in space.parts.items()}
    if isinstance(space, Discrete):
        return torch.randint(space.n, lead, generator=rng)
    if isinstance(space, MultiDiscrete):
        parts = [torch.randint(n, lead, generator=rng) for n in space.nvec]
        return torch.stack(parts, -1)
    if space.dtype == np.uint8:
        drawn = torch.randint(256, (*lead, *space.shape), generator=rng)
        return drawn.to(torch.uint8)
    return torch.rand(*lead, *space.shape, generator=rng)


def make(observation, action=ACTIONS["box"], **more) -> WorldModel:
    torch.manual_seed(0)
    return WorldModel(config(**more), EnvSpec("small", observation, action))


def rows(world: WorldModel, spec: tuple, length: int, batch: int, seed: int = 1) -> dict:
    rng = stream(seed)
    reset = torch.zeros(length, batch, dtype=torch.bool)
    reset[0] = True
    return {
        OBS: element(spec[0], (length, batch), rng),
        PREVIOUS_ACTION: element(spec[1], (length, batch), rng),
        REWARD: torch.randn(length, batch, generator=rng),
        RESET: reset,
        TERMINATED: torch.rand(length, batch, generator=rng) < 0.3,
    }


# -- any observation, any action -------------------------------------------------------------------


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("seen", SPACES)
def test_every_space_can_be_seen_and_shown(seen, action):
    spec = SPACES[seen], ACTIONS[action]
    world = make(*spec)
    batch = rows(world, spec, 4, 2)
    found = world.prediction_losses(world.rssm.initial(2), batch, world.noise((4, 2), stream()))
    features = world.rssm.features(found.states)
    assert features.shape == (4, 2, world.feature_dim)
    names = [f"decode/{key}" for key in parts_of(SPACES[seen])]
    assert list(found.losses) == [*names, "reward", "continue"]
    for each in found.losses.values():
        assert each.shape == (4, 2)
        assert bool(each.isfinite().all())
    shown = world.decode(features)
    wanted = batch[OBS]
    if seen == "dict":
        assert set(shown) == {"camera", "inner/speed", "room.number"}  # no mask of actions
        wanted = {key: wanted[key] for key in shown}
    for key, each in (shown if seen == "dict" else {OBS: shown}).items():
        target = wanted[key] if seen == "dict" else wanted
        assert each.shape == target.shape, key
    loss = sum(each.mean() for each in found.losses.values())
    gradients = torch.autograd.grad(loss, list(world.parameters()), allow_unused=True)
    unused = {
        name
        for (name, _), each in zip(world.named_parameters(), gradients, strict=True)
        if each is None
    }
    assert all(name.startswith("rssm.prior") for name in unused)  # the KL teaches those


def test_a_grid_of_codes_is_no_picture():
    """MiniGrid's space says 0 … 255, and its numbers are names of things."""
    assert not is_picture(SPACES["codes"])
    assert is_picture(IMAGE) and is_picture(SPACES["float image"])
    world = make(SPACES["codes"])
    assert not any(isinstance(part, nn.Conv2d) for part in world.modules())


@pytest.mark.parametrize("height", range(5, 40, 3))
def test_images_of_any_size_come_back_in_their_own(height):
    space = box(1, height, 2 * height - 3, dtype=np.uint8)
    image = torch.zeros(2, 3, *space.shape, dtype=torch.uint8)
    pooled = config(convolutions="pooled", blocks=2)
    strided = config()
    decoders = StridedDecoder(6, space, strided), PooledDecoder(4, 2, space, pooled)
    for decoder, kind in zip(decoders, (strided, pooled), strict=True):
        encoder = ImageEncoder(space, kind)
        assert encoder(image).shape == (2, 3, encoder.out_dim)
        assert decoder(torch.zeros(2, 3, 6)).shape == image.shape


def test_a_picture_of_64_pixels_has_four_layers():
    expected = {"strided": [16, 32, 64, 128], "pooled": [32, 48, 64, 64]}
    for kind, channels in expected.items():
        settings = config(convolutions=kind, channels=16)
        encoder = ImageEncoder(box(3, 64, 64, dtype=np.uint8), settings)
        convolutions = [each for each in encoder.layers if isinstance(each, nn.Conv2d)]
        assert [each.out_channels for each in convolutions] == channels
        assert encoder.out_dim == channels[-1] * 4 * 4


def test_rms_norm_of_an_image_is_that_of_each_pixel():
    """Channels 3 and 4 at one pixel: over √(25/2). A pixel of zeros stays 0, whatever is beside."""
    image = torch.zeros(1, 2, 1, 2)
    image[0, :, 0, 0] = torch.tensor([3.0, 4.0])
    found = ChannelRMSNorm(2)(image)[0, :, 0]
    root = math.sqrt(12.5 + 1e-4)
    assert found[:, 0].tolist() == pytest.approx([3 / root, 4 / root])
    assert found[:, 1].tolist() == [0.0, 0.0]
    norms = {"rms": ChannelRMSNorm, "layer": nn.GroupNorm, "none": nn.Identity}
    for name, expected in norms.items():
        assert isinstance(ImageEncoder(IMAGE, config(norm=name)).layers[1], expected)


def test_pixels_are_bytes_for_the_encoder_and_for_the_loss():
    """Bytes are divided by 255; a float image is taken as it is."""
    encoder = ImageEncoder(box(1, 4, 4, dtype=np.uint8), config())  # no convolution is left
    picture = torch.full((1, 1, 4, 4), 255, dtype=torch.uint8)
    assert encoder(picture).unique().tolist() == pytest.approx([0.5])
    decoder = StridedDecoder(6, box(1, 4, 4, dtype=np.uint8), config())
    assert decoder.loss(torch.zeros(1, 1, 4, 4), picture).tolist() == pytest.approx([16.0])
    floats = StridedDecoder(6, box(1, 4, 4), config())
    assert floats.loss(torch.zeros(1, 1, 4, 4), torch.full((1, 1, 4, 4), 0.5)).tolist() == [4.0]


def test_vectors_are_seen_and_shown_through_symlog():
    world = make(box(1), layers=1)
    obs = torch.tensor([[0.0], [1e6]])
    plain = make(box(1), layers=1, symlog_inputs=False)
    inputs = []
    for each in (world, plain):
        each.encoders["vectors"].register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
        each.embed(obs)
    assert inputs[0].flatten().tolist() == pytest.approx([0.0, math.log1p(1e6)])
    assert torch.equal(inputs[1], obs)
    head = world.decoders["part_obs"]
    nn.init.zeros_(head.output.weight)
    nn.init.constant_(head.output.bias, 2.0)
    assert world.decode(torch.zeros(1, world.feature_dim)).item() == pytest.approx(math.expm1(2))


# -- what heads cost -------------------------------------------------------------------------------


def test_losses_of_decoders_by_hand():
    """½ Σ d² through symlog; cross-entropies of indices, which add up."""
    vector = VectorDecoder(2, box(2), config())
    target = torch.tensor([[math.e - 1, 0.0]])  # symlog: 1, 0
    assert vector.loss(torch.tensor([[3.0, 1.0]]), target).tolist() == pytest.approx([2.5])
    plain = VectorDecoder(2, box(2), config(symlog_inputs=False))
    assert plain.loss(torch.tensor([[3.0, 1.0]]), torch.ones(1, 2)).tolist() == [2.0]
    index = VectorDecoder(2, Discrete(2), config())
    logits = torch.tensor([[math.log(3), 0.0]])
    assert index.loss(logits, torch.tensor([1])).tolist() == pytest.approx([math.log(4)])
    both = VectorDecoder(2, MultiDiscrete((2, 3)), config())
    logits = torch.tensor([[math.log(3), 0.0, 0.0, 0.0, 0.0]])
    found = both.loss(logits, torch.tensor([[0, 2]]))
    assert found.tolist() == pytest.approx([math.log(4 / 3) + math.log(3)])


def test_indices_are_shown_as_the_likeliest():
    world = make(MultiDiscrete((2, 3)))
    head = world.decoders["part_obs"]
    nn.init.zeros_(head.output.weight)
    head.output.bias.data = torch.tensor([0.0, 1.0, 5.0, 6.0, 4.0])
    assert world.decode(torch.zeros(4, world.feature_dim)).tolist() == [[1, 1]] * 4


def test_scalars_begin_as_exactly_zero_and_are_learned_in_raw_units():
    head = Scalar(4, config())
    features = torch.randn(3, 4, generator=stream())
    assert head.mean(features).tolist() == [0.0] * 3
    assert head.loss(features, torch.tensor([0.0, 1.0, 1e5]))[0].tolist() == pytest.approx(
        [math.log(255)] * 3
    )
    optimizer = torch.optim.Adam(head.parameters(), 0.1)
    targets = torch.tensor([-3.0, 0.25, 2000.0])
    for _ in range(60):
        optimizer.zero_grad()
        head.loss(features, targets)[0].sum().backward()
        optimizer.step()
    assert head.mean(features).tolist() == pytest.approx(targets.tolist(), rel=0.05, abs=0.05)


def test_a_scalar_of_one_number_costs_half_the_square():
    head = Scalar(4, config(two_hot=False))
    features = torch.randn(2, 4, generator=stream())
    mean = head.mean(features)
    first, second = head.loss(features, mean + 3, mean - 1)
    assert first.tolist() == pytest.approx([4.5, 4.5], rel=1e-5)
    assert second.tolist() == pytest.approx([0.5, 0.5], rel=1e-5)


def test_a_scalar_through_symlog_by_hand():
    """It says ln 3: read as e^ln 3 − 1 = 2. Targets ±(e − 1) are ±1 to it: ½ (ln 3 ∓ 1)²."""
    head = Scalar(4, config(two_hot=False, symlog_scalars=True))
    nn.init.zeros_(head.output.weight)
    nn.init.constant_(head.output.bias, math.log(3))
    features = torch.randn(2, 4, generator=stream())
    assert head.mean(features).tolist() == pytest.approx([2.0, 2.0])
    target = torch.full((2,), math.e - 1)
    above, below = head.loss(features, target, -target)
    assert above.tolist() == pytest.approx([0.5 * (math.log(3) - 1) ** 2] * 2, rel=1e-4)
    assert below.tolist() == pytest.approx([0.5 * (math.log(3) + 1) ** 2] * 2, rel=1e-4)
    nn.init.constant_(head.output.bias, -math.log(3))
    assert head.mean(features).tolist() == pytest.approx([-2.0, -2.0])


def test_the_continuation_is_learned_from_terminated_alone():
    """Its logit of 0 costs ln 2 wherever; of −5, ln(1 + e⁵) where the episode goes on."""
    world = make(box(1))
    nn.init.zeros_(world.continues.output.weight)
    nn.init.constant_(world.continues.output.bias, -5.0)
    batch = rows(world, (box(1), ACTIONS["box"]), 2, 1)
    batch[TERMINATED] = torch.tensor([[False], [True]])
    found = world.prediction_losses(world.rssm.initial(1), batch, world.noise((2, 1), stream()))
    going_on, over = math.log1p(math.exp(5)), math.log1p(math.exp(-5))
    assert found.losses["continue"].flatten().tolist() == pytest.approx([going_on, over], rel=1e-4)
    chance = world.continue_probability(torch.zeros(1, world.feature_dim)).item()
    assert chance == pytest.approx(1 / (1 + math.exp(5)), rel=1e-4)


# -- sizes -----------------------------------------------------------------------------------------


def layer(inputs: int, outputs: int, norm: bool = True) -> int:
    """Weights, biases, and one scale for each output of an RMS norm."""
    return inputs * outputs + outputs * (2 if norm else 1)


def paper_parameters(size: str, pixels: bool, obs: int, actions: int) -> int:
    """Parameters of all that Dreamer v3 trains, from the architecture of the authors' code.

    With D deter, H hidden, S = 32 · classes, U units, c depth; "norm" is an RMS norm's scale:
    encoder   pixels: 4 convolutions of 5 × 5 to 2c, 3c, 4c, 4c channels, each with a norm;
              vectors: 3 layers of U
    memory    D, S and the action to H each; 8 blocks of (D/8 + 3H) × D/8, a norm over D; then 8
              blocks of D/8 × 3D/8 gates
    posterior D + embedding to H, to S; prior D to H, to H, to S
    decoder   pixels: 8 blocks of D/8 × P/8 with P = 4 · 4 · 4c, S to 2U, to P, a norm, and
              convolutions of 5 × 5 to 4c, 3c, 2c, 3 channels; vectors: 3 layers of U and an output
    heads     reward and continuation: 1 layer of U; policy (a Box has mean and deviation) and
              value: 3; 255 bins for reward and value
    """
    sizes = SIZES[size]
    d, h, u, c = sizes.deter, sizes.hidden, sizes.units, sizes.channels
    s, features = 32 * sizes.classes, sizes.deter + 32 * sizes.classes
    depths, smallest = [2 * c, 3 * c, 4 * c, 4 * c], 16 * 4 * c
    if pixels:
        encoder = sum(layer(25 * i, o) for i, o in zip([3, *depths], depths, strict=False))
        embed = smallest
        back = zip([4 * c, *depths[2::-1]], [*depths[2::-1]], strict=False)
        decoder = 8 * (d // 8) * (smallest // 8) + smallest + 4 * c
        decoder += layer(s, 2 * u) + layer(2 * u, smallest, norm=False)
        decoder += sum(layer(25 * i, o) for i, o in back) + layer(25 * 2 * c, 3, norm=False)
    else:
        encoder, embed = layer(obs, u) + 2 * layer(u, u), u
        decoder = layer(features, u) + 2 * layer(u, u) + layer(u, obs, norm=False)
    memory = layer(d, h) + layer(s, h) + layer(actions, h)
    memory += 8 * (d // 8 + 3 * h) * (d // 8) + 2 * d + 8 * (d // 8) * (3 * d // 8) + 3 * d
    posterior = layer(d + embed, h) + layer(h, s, norm=False)
    prior = layer(d, h) + layer(h, h) + layer(h, s, norm=False)
    short, long = layer(features, u), layer(features, u) + 2 * layer(u, u)
    heads = short + layer(u, 255, norm=False) + short + layer(u, 1, norm=False)
    heads += long + layer(u, 2 * actions, norm=False) + long + layer(u, 255, norm=False)
    return encoder + memory + posterior + prior + decoder + heads


def test_the_formula_gives_the_known_counts():
    assert paper_parameters("12m", True, 0, 6) / 1e6 == pytest.approx(10.49, abs=0.005)
    assert paper_parameters("12m", False, 24, 6) / 1e6 == pytest.approx(9.74, abs=0.005)


def test_a_size_of_the_paper_has_its_layers():
    """Encoder, decoder, policy, value: 3. Reward, continuation: 1. Prior: 2. Posterior: 1."""

    def count(layers):
        return sum(isinstance(each, nn.Linear) for each in layers)

    settings = WorldModelConfig(size="1m")
    world = WorldModel(settings, EnvSpec("paper", box(24), box(6)))
    actor = LatentActor(world.feature_dim, box(6), settings, unimix=0.01, squashed=False)
    critic = Scalar(world.feature_dim, settings)
    decoder = world.decoders["part_obs"]
    deep = world.encoders["vectors"], decoder.layers, actor.layers, critic.layers
    assert [count(each) for each in deep] == [3] * 4
    assert count(world.reward.layers) == count(world.continues.layers) == 1
    assert (count(world.rssm.prior_layers), count(world.rssm.posterior_layers)) == (2, 1)


@pytest.mark.parametrize("pixels", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_a_size_is_the_network_of_the_paper(size, pixels):
    space = box(3, 64, 64, dtype=np.uint8) if pixels else box(24)
    settings = WorldModelConfig(size=size)
    with torch.device("meta"):
        world = WorldModel(settings, EnvSpec("paper", space, box(6)))
        inputs = world.feature_dim
        actor = LatentActor(inputs, box(6), settings, unimix=0.01, squashed=False)
        trained = [world, actor, Scalar(inputs, settings)]
    found = sum(each.numel() for part in trained for each in part.parameters())
    assert found == pytest.approx(paper_parameters(size, pixels, 24, 6), rel=0.02)
    assert world.feature_dim == SIZES[size].deter + 32 * SIZES[size].classes


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"deter": 10, "blocks": 4}, "blocks 4 does not divide deter 10"),
        ({"convolutions": "pooled", "blocks": 16}, "blocks 16 does not divide 4 · channels 2"),
        ({"units": 0}, "units must be 1 or more, got 0"),
        ({"unimix": 1.0}, "unimix must be below 1, got 1"),
        ({"min_std": -0.1}, "min_std must be 0 or more, got -0.1"),
        ({"symlog_scalars": True}, "symlog_scalars needs two_hot false"),
    ],
)
def test_sizes_that_cannot_be_are_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        config(**wrong)


CHANGED = {"deter": 256, "hidden": 32, "stoch": 32, "classes": 16, "blocks": 8, "units": 32}
CHANGED |= {"layers": 3, "head_layers": 1, "prior_layers": 2, "convolutions": "pooled"}


@pytest.mark.parametrize(("name", "value"), [*CHANGED.items(), ("channels", 8)])
def test_numbers_that_a_size_would_replace_are_refused(name, value):
    default = getattr(WorldModelConfig(), name)
    said = f"^{name} is decided by size 12m: leave it at {default}, or set size own$"
    with pytest.raises(ValueError, match=said):
        WorldModelConfig(size="12m", **{name: value})
    assert WorldModelConfig(size="12m", **{name: default}).dimensions().deter == 2048
    assert getattr(WorldModelConfig(**{name: value}), name) == value


# -- what is learned from what ---------------------------------------------------------------------


def loss_of(world: WorldModel, batch: dict, noise: torch.Tensor) -> tuple:
    seen = world.prediction_losses(world.rssm.initial(batch[RESET].shape[1]), batch, noise)
    divergence = world.rssm.kl(seen.posterior.detach(), seen.prior).mean()
    return sum(each.mean() for each in seen.losses.values()) + divergence, seen


def fit(world: WorldModel, batches, steps: int, rate: float) -> None:
    optimizer, rng = torch.optim.Adam(world.parameters(), rate), stream(5)
    for index in range(steps):
        batch = batches(index)
        optimizer.zero_grad()
        loss_of(world, batch, world.noise(batch[RESET].shape, rng))[0].backward()
        optimizer.step()


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"classes": 0, "norm": "none", "two_hot": False},
        {"two_hot": False, "symlog_scalars": True},
    ],
)
def test_a_world_model_learns_one_batch_by_heart(kind):
    """Reconstruction 20 times better, rewards nearly free, every end of an episode known."""
    spec = (box(3), ACTIONS["index"])
    world = make(*spec, **kind, layers=1)
    batch = rows(world, spec, 4, 3)
    # Only what lies on a bin can cost nothing as weights of bins.
    batch[REWARD] = symexp_bins()[torch.randint(120, 136, (4, 3), generator=stream(2))]
    noise = world.noise((4, 3), stream())
    before = loss_of(world, batch, noise)[1].losses
    fit(world, lambda index: batch, 500, 1e-2)
    _, seen = loss_of(world, batch, noise)
    assert before[f"decode/{OBS}"].mean() > 20 * seen.losses[f"decode/{OBS}"].mean()
    assert seen.losses["reward"].mean() < 0.1
    probabilities = world.continue_probability(world.rssm.features(seen.states))
    assert torch.equal(probabilities > 0.5, ~batch[TERMINATED])


def echo_rows(index: int, shift: int = 0) -> dict:
    """A world that shows the last action: obs[t] = previous_action[t]. Fresh every time."""
    rng = stream(100 + index)
    action = torch.randint(4, (6, 16), generator=rng)
    reset = torch.zeros(5, 16, dtype=torch.bool)
    reset[0] = True
    return {
        OBS: action[1:],
        PREVIOUS_ACTION: action[1 - shift : 6 - shift],
        REWARD: torch.zeros(5, 16),
        RESET: reset,
        TERMINATED: torch.zeros(5, 16, dtype=torch.bool),
    }


def foreseen(world: WorldModel, batch: dict) -> float:
    """How often the frame is known before it is seen: what the prior's latent decodes to."""
    noise = world.noise(batch[RESET].shape, stream(7))
    states, _, prior = world.observe(world.rssm.initial(16), batch, noise)
    expected = {"deter": states["deter"], "stoch": world.rssm.mode(prior)}
    right = world.decode(world.rssm.features(expected)) == batch[OBS]
    return right[1:].float().mean().item()  # the first action is not known to the model


def test_the_frame_after_an_action_is_foreseen_from_that_action_and_no_other():
    """With the action before (an off-by-one), nothing can be foreseen: one in four is luck."""
    right, wrong = (make(Discrete(4), Discrete(4), layers=1) for _ in range(2))
    fit(right, lambda index: echo_rows(index), 80, 2e-2)
    assert foreseen(right, echo_rows(5000)) > 0.95
    assert foreseen(right, echo_rows(5000, shift=1)) < 0.5
    fit(wrong, lambda index: echo_rows(index, shift=1), 80, 2e-2)
    assert foreseen(wrong, echo_rows(5000, shift=1)) < 0.5


def test_pictures_are_weighed_as_each_version_does():
    """One pixel of three channels is wrong by ½: ¾ whole, ⅜ as a Gaussian's."""
    space = Box((3, 8, 8), np.dtype(np.float32), np.zeros((3, 8, 8)), np.ones((3, 8, 8)))
    image = torch.zeros(3, 8, 8)
    guess = image.clone()
    guess[:, 2, 2] = 0.5
    for symlog_inputs, expected in ((True, 0.75), (False, 0.375)):
        decoder = StridedDecoder(4, space, config(symlog_inputs=symlog_inputs))
        assert decoder.loss(guess, image).item() == expected


def test_an_image_too_small_for_convolutions_is_a_vector():
    space = Box((3, 3, 3), np.dtype(np.float32), np.zeros((3, 3, 3)), np.ones((3, 3, 3)))
    world = make(space, ACTIONS["index"])
    assert list(world.vectors) == [OBS]
    assert world.decode(torch.zeros(5, world.feature_dim)).shape == (5, 3, 3, 3)


def test_the_sizes_of_the_paper_are_of_categories():
    with pytest.raises(ValueError, match="size 1m has categorical latents"):
        WorldModelConfig(size="1m", classes=0)
