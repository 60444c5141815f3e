"""A policy's forward pass in numpy, on the same memory as the torch weights.

For a handful of environments and a small network, numpy's call overhead is a fifth of torch's.
The learner recomputes log-probs with the torch network, so nothing but the sampled actions
depends on this file; the drift between the two is a metric.
"""

from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rl_lab.core.batch import Array
from rl_lab.core.distributions import HALF_LOG_TWO_PI
from rl_lab.core.spec import Box, Discrete
from rl_lab.networks.actor_critic import ActorCritic, PolicyHead, Torso
from rl_lab.networks.mlp import MLPEncoder, Tanh
from rl_lab.networks.normalizer import CLIP, ObservationNormalizer
from rl_lab.networks.q_network import QNetwork
from rl_lab.networks.sac_policies import LOG_STD_RANGE, SoftActor, SquashedHead

Forward = Callable[[Array], Array]
# (obs [N, …], generator or None for the mode) -> (action [N, …], log_prob [N])
FastPolicy = Callable[[Array, np.random.Generator | None], tuple[Array, Array]]
FastActor = Callable[[Array, np.random.Generator | None], Array]  # the same without log_prob

# Activations may write into what they are given: the layer before has made it.
_FUNCTIONS: dict[type[nn.Module], Forward] = {
    Tanh: lambda x: np.tanh(x, out=x),
    nn.ReLU: lambda x: np.maximum(x, 0, out=x),
}
WIDEST = 256  # beyond this the matmul dominates and torch is as fast


def fast_policy(model: ActorCritic) -> FastPolicy | None:
    """The numpy twin of `model`'s policy, or None when it has parts that only torch can run."""
    torso, head = model.torsos[model.actor_torso], model.actor
    assert isinstance(torso, Torso)
    features = None if model.has_memory else _features(torso.encoder, model.normalizer)
    raw = _chain([*head.hidden, head.output])
    if features is None or raw is None:
        return None
    if isinstance(head.action, Discrete):
        return lambda obs, generator: _categorical(raw(features(obs)), generator)
    if isinstance(head.action, Box):
        log_std = head.log_std.detach().numpy()
        return lambda obs, generator: _gaussian(raw(features(obs)), log_std, generator)
    return None


def fast_values(model: QNetwork) -> Forward | None:
    """The numpy twin of `model`, [N, *obs] to [N, A], or None."""
    features, advantage = _features(model.encoder, model.normalizer), _chain(model.advantage)
    if features is None or advantage is None:
        return None
    if model.value is None:
        return _expected(model, lambda obs: advantage(features(obs)))
    value = _chain(model.value)
    if value is None:
        return None
    return _expected(model, lambda obs: _dueling(features(obs), value, advantage))


def fast_actor(actor: SoftActor, normalizer: nn.Module) -> FastActor | None:
    """The numpy twin of a soft actor's decisions, or None."""
    head = actor.head
    if not isinstance(head, SquashedHead | PolicyHead):
        return None
    features = _features(actor.encoder, normalizer)
    raw = _chain([*head.hidden, head.output])
    if features is None or raw is None:
        return None
    if isinstance(head, SquashedHead):
        return lambda obs, generator: _squashed(raw(features(obs)), generator)
    return lambda obs, generator: _categorical(raw(features(obs)), generator)[0]


def _dueling(features: Array, value: Forward, advantage: Forward) -> Array:
    """[N, A * K] from values [N, K] of all actions together, and advantages [N, A * K]."""
    worth = value(features)
    gains = advantage(features).reshape(len(worth), -1, worth.shape[-1])
    both: Array = worth[:, None] + gains - gains.mean(1, keepdims=True)
    return both.reshape(len(worth), -1)


def _expected(model: QNetwork, outputs: Forward) -> Forward:
    """Values [N, A] from the outputs [N, A * K] of the heads, as `QNetwork.expected` takes them."""
    if model.distribution == "none":
        return outputs
    shape = (-1, model.actions, model.count)
    if model.distribution == "quantile":
        return lambda obs: outputs(obs).reshape(shape).mean(-1)
    atoms = model.atoms(torch.empty(0)).numpy()

    def mean(obs: Array) -> Array:
        logits = outputs(obs).reshape(shape)
        chances = np.exp(logits - logits.max(-1, keepdims=True))
        values: Array = chances @ atoms / chances.sum(-1)
        return values

    return mean


def _features(encoder: object, normalizer: nn.Module) -> Forward | None:
    """Normaliser and encoder, for arrays that an MLP sees."""
    # A subclass with a forward of its own would not be what acts.
    if not isinstance(encoder, MLPEncoder) or type(encoder).forward is not MLPEncoder.forward:
        return None
    layers = _chain(encoder.layers)
    if layers is None or not isinstance(encoder.flatten.space, Box):
        return None
    assert isinstance(normalizer, ObservationNormalizer)
    if normalizer.shift.is_cuda:
        return None
    shift, scale = (each.numpy().reshape(-1) for each in (normalizer.shift, normalizer.scale))
    normalized = normalizer.mode != "off"

    def forward(obs: Array) -> Array:
        x = obs.reshape(len(obs), -1).astype(np.float32, copy=False)
        if normalized:
            x = np.clip((x - shift) * scale, -CLIP, CLIP)
        return layers(x)

    return forward


def _chain(layers: Iterable[nn.Module]) -> Forward | None:
    """Layers one after the other, or None if one of them is for torch only."""
    functions = [_numpy_layer(layer) for layer in layers]
    chain = [function for function in functions if function is not None]
    if len(chain) < len(functions):
        return None

    def forward(x: Array) -> Array:
        for function in chain:
            x = function(x)
        return x

    return forward


def _numpy_layer(layer: nn.Module) -> Forward | None:
    if isinstance(layer, nn.Linear):
        is_wide = max(layer.weight.shape) > WIDEST
        if is_wide or layer.weight.is_cuda or layer.weight.dtype != torch.float32:
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


def _squashed(raw: Array, generator: np.random.Generator | None) -> Array:
    mean, log_std = np.split(raw, 2, axis=-1)
    if generator is not None:
        noise = generator.standard_normal(mean.shape, dtype=np.float32)
        mean = mean + np.exp(log_std.clip(*LOG_STD_RANGE)) * noise
    action: Array = np.tanh(mean)
    return action
