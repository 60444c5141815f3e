"""Linear controllers, many at once, and what they would earn in the dreams of an MDN-RNN."""

import torch
from torch import Tensor

from rl_lab.core.actions import as_vector, vector_size
from rl_lab.core.spec import Discrete, Space
from rl_lab.networks.mdn_rnn import MDNRNN, mixture_draw
from rl_lab.networks.memory.recurrent import State

LATENT, HIDDEN = "latent", "hidden"  # of a dream: z, and the part of the memory that is acted on


def controls(parameters: Tensor, features: Tensor, outputs: int) -> Tensor:
    """P linear controllers [P, n] on their own features [P, M, F]: raw actions [P, M, outputs]."""
    weight = parameters[:, :-outputs].reshape(len(parameters), outputs, -1)
    return features @ weight.transpose(1, 2) + parameters[:, None, -outputs:]


def decided(space: Space, raw: Tensor) -> Tensor:
    """Raw actions [..., outputs] as actions: in [−1, 1], or the index of the largest."""
    if isinstance(space, Discrete):
        return raw.argmax(-1)
    return raw.tanh().reshape(*raw.shape[:-1], *space.shape)


def dream_step(
    model: MDNRNN, state: State, action: Tensor, noise: Tensor, temperature: float
) -> tuple[State, Tensor, Tensor]:
    """What M makes of action vectors [N, A]: where it leads, the reward, the chance to go on."""
    output, memory = model.step(state[LATENT], action, state)
    expected = model.predict(output)
    latent = mixture_draw(expected, noise, temperature)
    return {LATENT: latent, **memory}, expected.reward, 1 - expected.ends.sigmoid()


def dreamed_returns(
    model: MDNRNN,
    parameters: Tensor,
    start: State,
    alive: Tensor,
    noise: Tensor,
    chances: Tensor,
    *,
    space: Space,
    memory: bool,
    temperature: float,
    gamma: float,
) -> Tensor:
    """The mean return [P] of P controllers in R dreams, which are the same for all of them.

    Dreams begin in states [R, …], `alive` [R] says which of those are no ends. The random numbers
    `noise` [H, R, …] and `chances` [H, R] decide what happens in them.
    """
    count, dreams = len(parameters), len(alive)
    outputs = vector_size(space)
    state = {name: each.repeat(count, 1) for name, each in start.items()}  # [P · R, …]
    alive = alive.float().repeat(count)
    total = torch.zeros_like(alive)
    for now, (draws, chance) in enumerate(zip(noise, chances, strict=True)):
        features = controller_features(state[LATENT], state, memory)
        raw = controls(parameters, features.reshape(count, dreams, -1), outputs)
        action = as_vector(space, decided(space, raw)).flatten(0, 1)
        draws = draws.repeat(count, 1, 1)
        state, reward, continues = dream_step(model, state, action, draws, temperature)
        total = total + gamma**now * alive * reward
        alive = alive * (chance.repeat(count) < continues)
    return total.reshape(count, dreams).mean(1)


def controller_features(latent: Tensor, memory: State, uses_memory: bool) -> Tensor:
    """What C sees: z, and what M remembers from before it."""
    return torch.cat([latent, memory[HIDDEN]], -1) if uses_memory else latent
