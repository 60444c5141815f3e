"""A policy's forward pass in numpy, on the same memory as the torch weights.

For a handful of environments and a small network, numpy's call overhead is a fifth of torch's.
The learner recomputes log-probs with the torch network, so nothing but the sampled actions
depends on this file; the drift between the two is a metric.
"""

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rl_lab.core.batch import Array
from rl_lab.core.distributions import HALF_LOG_TWO_PI
from rl_lab.core.spec import Box, Discrete
from rl_lab.networks.actor_critic import ActorCritic, PolicyHead
from rl_lab.networks.mlp import MLPEncoder, Tanh
from rl_lab.networks.normalizer import CLIP, ObservationNormalizer
from rl_lab.networks.q_network import QNetwork
from rl_lab.networks.sac_policies import LOG_STD_RANGE, SoftActor, SquashedHead

Forward = Callable[[Array], Array]
# Weight and bias of a linear layer, and the activation behind it, which writes into its result.
Layer = tuple[Array, Array, Callable[..., Array] | None]
# (obs [N, …], generator or None for the mode) -> (action [N, …], log_prob [N])
FastPolicy = Callable[[Array, np.random.Generator | None], tuple[Array, Array]]
FastActor = Callable[[Array, np.random.Generator | None], Array]  # the same without log_prob

WIDEST = 256  # beyond this the matmul dominates and torch is as fast


def fast_policy(model: ActorCritic) -> FastPolicy | None:
    """The numpy version of `model`'s policy, or None when it has parts that only torch can run."""
    encoder, head = model.torsos[model.actor_torso].encoder, model.actor
    raw = _network(encoder, model.normalizer, [*head.hidden, head.output])
    if model.has_memory or raw is None:
        return None
    if isinstance(head.action, Discrete):
        return partial(_categorical, raw)
    if isinstance(head.action, Box):
        return partial(_gaussian, raw, head.log_std.detach().numpy())
    return None


def fast_values(model: QNetwork) -> Forward | None:
    """The numpy version of `model`, [N, *obs] to [N, A], or None."""
    if model.value is None:
        outputs = _network(model.encoder, model.normalizer, model.advantage)
        return None if outputs is None else _expected(model, outputs)
    features = _network(model.encoder, model.normalizer, [])
    value, advantage = _layers(model.value), _layers(model.advantage)
    if features is None or value is None or advantage is None:
        return None
    return _expected(model, lambda obs: _dueling(features(obs), value, advantage))


def fast_actor(actor: SoftActor, normalizer: nn.Module) -> FastActor | None:
    """The numpy version of a soft actor's decisions, or None."""
    head = actor.head
    if not isinstance(head, SquashedHead | PolicyHead):
        return None
    raw = _network(actor.encoder, normalizer, [*head.hidden, head.output])
    if raw is None:
        return None
    if isinstance(head, SquashedHead):
        return partial(_squashed, raw)
    return lambda obs, generator: _categorical(raw, obs, generator)[0]


def _dueling(features: Array, value: list[Layer], advantage: list[Layer]) -> Array:
    """[N, A * K] from values [N, K] of all actions together, and advantages [N, A * K]."""
    worth = _apply(value, features)
    gains = _apply(advantage, features).reshape(len(worth), -1, worth.shape[-1])
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
        probabilities = np.exp(logits - logits.max(-1, keepdims=True))
        values: Array = probabilities @ atoms / probabilities.sum(-1)
        return values

    return mean


def _network(encoder: object, normalizer: nn.Module, head: Iterable[nn.Module]) -> Forward | None:
    """Normalizer, MLP encoder and head, or None if one of them is for torch only."""
    # A subclass with a forward of its own would not be what acts.
    if not isinstance(encoder, MLPEncoder) or type(encoder).forward is not MLPEncoder.forward:
        return None
    layers = _layers([*encoder.layers, *head])
    if layers is None or not isinstance(encoder.space, Box):
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
        return _apply(layers, x)

    return forward


def _layers(modules: Iterable[nn.Module]) -> list[Layer] | None:
    """Linear layers with their activations, or None if one of them is for torch only."""
    layers: list[Layer] = []
    for module in modules:
        if isinstance(module, nn.Linear):
            is_wide = max(module.weight.shape) > WIDEST
            if is_wide or module.weight.is_cuda or module.weight.dtype != torch.float32:
                return None
            layers.append((module.weight.detach().numpy().T, module.bias.detach().numpy(), None))
        elif type(module) in _ACTIVATIONS and layers and layers[-1][2] is None:
            layers[-1] = (*layers[-1][:2], _ACTIVATIONS[type(module)])
        else:
            return None
    return layers


def _apply(layers: list[Layer], x: Array) -> Array:
    for weight, bias, activation in layers:
        x = x @ weight
        x += bias
        if activation is not None:
            activation(x, out=x)
    return x


def _relu(x: Array, out: Array) -> Array:
    rectified: Array = np.maximum(x, 0, out=out)
    return rectified


_ACTIVATIONS: dict[type[nn.Module], Callable[..., Array]] = {Tanh: np.tanh, nn.ReLU: _relu}


def _categorical(
    network: Forward, obs: Array, generator: np.random.Generator | None
) -> tuple[Array, Array]:
    logits = network(obs)
    scores = logits if generator is None else logits + generator.gumbel(size=logits.shape)
    action = scores.argmax(axis=-1)
    shifted = logits - np.maximum.reduce(logits, axis=-1, keepdims=True)
    chosen = shifted[np.arange(len(action)), action]
    return action, chosen - np.log(np.add.reduce(np.exp(shifted), axis=-1))


def _gaussian(
    network: Forward,
    log_std: NDArray[np.float32],
    obs: Array,
    generator: np.random.Generator | None,
) -> tuple[Array, Array]:
    mean = network(obs)
    if generator is None:
        noise = np.zeros_like(mean)
    else:
        noise = generator.standard_normal(mean.shape, dtype=np.float32)
    action = mean + np.exp(log_std) * noise
    return action, (-0.5 * np.square(noise) - log_std - HALF_LOG_TWO_PI).sum(axis=-1)


def _squashed(network: Forward, obs: Array, generator: np.random.Generator | None) -> Array:
    mean, log_std = np.split(network(obs), 2, axis=-1)
    if generator is not None:
        noise = generator.standard_normal(mean.shape, dtype=np.float32)
        mean = mean + np.exp(log_std.clip(*LOG_STD_RANGE)) * noise
    action: Array = np.tanh(mean)
    return action
