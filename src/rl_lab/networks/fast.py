"""The policy's forward pass in numpy, on the same memory as the torch weights.

For a handful of environments and a small network, numpy's call overhead is a fifth of torch's.
The learner recomputes log-probs with the torch network, so nothing but the sampled actions
depends on this file; the drift between the two is a metric.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rl_lab.core.batch import Array
from rl_lab.core.distributions import HALF_LOG_TWO_PI
from rl_lab.core.spec import Box, Discrete
from rl_lab.networks.mlp import MLPEncoder, Tanh
from rl_lab.networks.model import ActorCritic, Torso
from rl_lab.networks.normalizer import CLIP, ObservationNormalizer

Forward = Callable[[Array], Array]
# (obs [N, …], generator or None for the mode) -> (action [N, …], log_prob [N])
FastPolicy = Callable[[Array, np.random.Generator | None], tuple[Array, Array]]

# Activations may write into what they are given: the layer before has made it.
_FUNCTIONS: dict[type[nn.Module], Forward] = {
    Tanh: lambda x: np.tanh(x, out=x),
    nn.ReLU: lambda x: np.maximum(x, 0, out=x),
}
WIDEST = 256  # beyond this the matmul dominates and torch is as fast


def fast_policy(model: ActorCritic) -> FastPolicy | None:
    """The numpy twin of `model`'s policy, or None when it has parts that only torch can run."""
    torso = model.torsos[model.actor_torso]
    assert isinstance(torso, Torso)
    encoder, head = torso.encoder, model.actor
    # A subclass with a forward of its own would not be what acts.
    own_forward = type(encoder).forward is not MLPEncoder.forward
    space = encoder.flatten.space if isinstance(encoder, MLPEncoder) and not own_forward else None
    if model.has_memory or not isinstance(space, Box) or model.critic.weight.is_cuda:
        return None
    assert isinstance(encoder, MLPEncoder) and isinstance(model.normalizer, ObservationNormalizer)
    layers = [*encoder.layers, *head.hidden, head.output]
    functions = [_numpy_layer(layer) for layer in layers]
    if any(function is None for function in functions):
        return None
    chain = [function for function in functions if function is not None]
    shift, scale = (
        tensor.numpy().reshape(-1) for tensor in (model.normalizer.shift, model.normalizer.scale)
    )
    normalized = model.normalizer.mode != "off"

    def forward(obs: Array) -> Array:
        x = obs.reshape(len(obs), -1).astype(np.float32, copy=False)
        if normalized:
            x = np.clip((x - shift) * scale, -CLIP, CLIP)
        for function in chain:
            x = function(x)
        return x

    if isinstance(head.action, Discrete):
        return lambda obs, generator: _categorical(forward(obs), generator)
    if isinstance(head.action, Box):
        log_std = head.log_std.detach().numpy()
        return lambda obs, generator: _gaussian(forward(obs), log_std, generator)
    return None


def _numpy_layer(layer: nn.Module) -> Forward | None:
    if isinstance(layer, nn.Linear):
        if max(layer.weight.shape) > WIDEST or layer.weight.dtype != torch.float32:
            return None
        weight, bias = layer.weight.detach().numpy().T, layer.bias.detach().numpy()

        def apply(x: Array) -> Array:
            y: Array = x @ weight
            y += bias
            return y

        return apply
    return _FUNCTIONS.get(type(layer))


def _categorical(logits: Array, generator: np.random.Generator | None) -> tuple[Array, Array]:
    scores = logits if generator is None else logits + generator.gumbel(size=logits.shape)
    action = scores.argmax(axis=-1)
    shifted = logits - np.maximum.reduce(logits, axis=-1, keepdims=True)
    chosen = shifted[np.arange(len(action)), action]
    return action, chosen - np.log(np.add.reduce(np.exp(shifted), axis=-1))


def _gaussian(
    mean: Array, log_std: NDArray[np.float32], generator: np.random.Generator | None
) -> tuple[Array, Array]:
    if generator is None:
        noise = np.zeros_like(mean)
    else:
        noise = generator.standard_normal(mean.shape, dtype=np.float32)
    action = mean + np.exp(log_std) * noise
    return action, (-0.5 * np.square(noise) - log_std - HALF_LOG_TWO_PI).sum(axis=-1)
