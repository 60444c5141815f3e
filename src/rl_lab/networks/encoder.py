"""From an observation to features: an encoder for its space; parts of a dict are joined."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from rl_lab.core import registry
from rl_lab.core.batch import ACTION_MASK
from rl_lab.core.checker import check_variant
from rl_lab.core.errors import UserError, did_you_mean
from rl_lab.core.options import option
from rl_lab.core.spec import Dict, Observation, Space
from rl_lab.networks.cnn import is_grid_of_codes, is_image
from rl_lab.networks.mlp import Flatten, MLPEncoder, MLPEncoderConfig, mlp

PARTS = "network.encoder.parts"


@dataclass(frozen=True, kw_only=True)
class AutoEncoderConfig(MLPEncoderConfig):
    """Chosen by what there is to see: `image` for images, grid for codes, mlp for the rest."""

    type: str = option("auto", "mlp for vectors and indices, a CNN for images and grids of codes")
    image: str = option("nature", "encoder of images: nature, impala, or a registered one")
    parts: dict[str, Any] = option(
        {}, "encoders of single parts of a dict observation, e.g. {camera: {type: impala}}"
    )


class AutoEncoder:
    """The name `auto` in the registry. `make_encoder` decides; there is no module of this kind."""

    Config = AutoEncoderConfig


class DictEncoder(nn.Module):
    """Parts of a dict observation side by side, then one MLP on the whole, where they can interact.

    Without the MLP, a linear head would only see a sum of one function per part.
    """

    def __init__(
        self,
        encoders: Mapping[str, nn.Module],
        hidden_dims: Sequence[int] = (),
        activation: str = "tanh",
    ) -> None:
        super().__init__()
        # The number keeps names apart that torch allows in no module, or allows only once.
        self.names = {key: f"{index}_{key.replace('.', '_')}" for index, key in enumerate(encoders)}
        self.parts = nn.ModuleDict({self.names[key]: each for key, each in encoders.items()})
        widths: list[Any] = [each.out_dim for each in encoders.values()]
        self.layers = mlp(sum(widths), hidden_dims, activation)
        self.out_dim: int = [sum(widths), *hidden_dims][-1]

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Parts [..., *part] to [..., out_dim]."""
        features = [self.parts[name](obs[key]) for key, name in self.names.items()]
        joined: Tensor = self.layers(torch.cat(features, dim=-1))
        return joined


def make_encoder(config: Any, space: Observation) -> nn.Module:
    """The encoder that a validated `network.encoder` block means for this observation.

    Of a dict observation, vectors and indices are flattened, images and parts with an encoder of
    their own are encoded, and an MLP of `hidden_dims` reads all of it.
    """
    own = dict(getattr(config, "parts", {}) or {})
    if not isinstance(space, Dict):
        if own:
            raise UserError(f"{PARTS}: this observation has no parts")
        return _for_one(config, space)
    seen = {name: part for name, part in space.parts.items() if name != ACTION_MASK}
    for name in own:
        if name not in seen:
            raise UserError(f"{PARTS}.{name}: unknown part{did_you_mean(name, seen)}")
    configs = {name: check_variant("encoder", own[name], f"{PARTS}.{name}") for name in own}
    kind = registry.of("encoder", config)
    is_mlp = isinstance(kind, type) and issubclass(kind, MLPEncoder)
    joins = kind is AutoEncoder or (is_mlp and kind.forward is MLPEncoder.forward)
    if not joins or len(seen) == 1:  # an encoder that reads one space only, or nothing to join
        each = {
            name: check_variant("encoder", own[name], f"{PARTS}.{name}") if name in own else config
            for name in seen
        }
        return DictEncoder({name: _for_one(each[name], part) for name, part in seen.items()})
    encoders: dict[str, nn.Module] = {}
    for name, part in seen.items():
        if name in configs:
            encoders[name] = _for_one(configs[name], part)
        elif kind is AutoEncoder and is_image(part):
            encoders[name] = _for_one(config, part)
        else:
            encoders[name] = Flatten(part)
    return DictEncoder(encoders, config.hidden_dims, config.activation)


def chosen_grids(config: Any, space: Observation) -> list[str]:
    """The parts ("" if there are none) that `auto` reads as grids of codes, not as pictures."""
    if registry.of("encoder", config) is not AutoEncoder:
        return []
    parts = space.parts if isinstance(space, Dict) else {"": space}
    open_parts = {name: each for name, each in parts.items() if name not in config.parts}
    return [name for name, each in open_parts.items() if is_grid_of_codes(each)]


def _for_one(config: Any, space: Space) -> nn.Module:
    kind = registry.of("encoder", config)
    if kind is AutoEncoder:
        if is_image(space):
            kind = registry.get("encoder", "grid" if is_grid_of_codes(space) else config.image)
            config = kind.Config()
        else:
            kind = registry.get("encoder", "mlp")
    encoder: nn.Module = kind(config, space)
    if not hasattr(encoder, "out_dim"):  # a module that was not written for this lab
        with torch.no_grad():
            example = torch.from_numpy(np.zeros((1, *space.shape), space.dtype))
            encoder.out_dim = encoder(example).shape[-1]
    return encoder


def width_of(encoder: nn.Module) -> int:
    """How many features an encoder returns."""
    return cast(int, encoder.out_dim)
