"""Linear controllers, many at once, and their returns in imagined rollouts of an MDN-RNN."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from rl_lab.algorithms.world_models.mdn_rnn import MDNRNN, mixture_draw
from rl_lab.core.errors import UserError
from rl_lab.core.spec import Discrete, Space
from rl_lab.networks.memory.recurrent import State
from rl_lab.networks.mlp import as_vector, vector_size

LATENT, HIDDEN = "latent", "hidden"  # of a state: z, and the part of the memory that C acts on
Squash = Literal["tanh", "sigmoid", "clipped_tanh"]

# From raw numbers to [−1, 1], where −1 is an action's lower bound and 1 its upper one. What zero
# means: the middle of the bounds, the middle, the lower bound.
SQUASHINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "sigmoid": lambda raw: 2 * raw.sigmoid() - 1,
    "clipped_tanh": lambda raw: 2 * raw.tanh().clamp(min=0.0) - 1,
}


def controls(parameters: Tensor, features: Tensor, outputs: int) -> Tensor:
    """P linear controllers [P, n] on their own features [P, M, F]: raw actions [P, M, outputs]."""
    weight = parameters[:, :-outputs].reshape(len(parameters), outputs, -1)
    return features @ weight.transpose(1, 2) + parameters[:, None, -outputs:]


def decided(space: Space, raw: Tensor, squash: Sequence[str]) -> Tensor:
    """Raw actions [..., outputs] as actions: the index of the largest, or numbers in [−1, 1].

    `squash` names one of `SQUASHINGS` for each number.
    """
    if isinstance(space, Discrete):
        return raw.argmax(-1)
    numbers = zip(squash, raw.unbind(-1), strict=True)
    action = torch.stack([SQUASHINGS[name](each) for name, each in numbers], -1)
    return action.reshape(*raw.shape[:-1], *space.shape)


def require_squashings(names: Sequence[str], space: Space, id: str) -> list[str]:
    """One for each number of an action, or a `UserError`; Discrete actions have none."""
    count = 0 if isinstance(space, Discrete) else vector_size(space)
    if names and len(names) != count:
        raise UserError(
            f"algorithm.squash names {len(names)} functions, and '{id}' has {count} actions to "
            "squash: write one name for each, or [] for tanh"
        )
    return list(names) or ["tanh"] * count


def imagine_step(
    model: MDNRNN, state: State, action: Tensor, noise: Tensor, temperature: float
) -> tuple[State, Tensor, Tensor]:
    """After action vectors [N, A]: the states, rewards [N], and continue probabilities [N]."""
    output, memory = model.step(state[LATENT], action, state)
    expected = model.predict(output)
    latent = mixture_draw(expected, noise, temperature)
    return {LATENT: latent, **memory}, expected.reward, 1 - expected.ends.sigmoid()


def imagined_returns(
    model: MDNRNN,
    parameters: Tensor,
    start: State,
    start_continues: Tensor,
    noise: Tensor,
    uniform: Tensor,
    *,
    space: Space,
    squash: Sequence[str],
    memory: bool,
    temperature: float,
    gamma: float,
) -> Tensor:
    """The mean return [P] of P controllers in R rollouts with common random numbers.

    Rollouts begin in states [R, …]; `start_continues` [R] is False where the episode is over. Their
    latents are sampled by `noise` [H, R, …], their ends by numbers in [0, 1), `uniform` [H, R].
    """
    count, rollouts = len(parameters), len(start_continues)
    outputs = vector_size(space)
    state = {name: each.repeat(count, 1) for name, each in start.items()}  # [P · R, …]
    running = start_continues.float().repeat(count)
    total = torch.zeros_like(running)
    for t, (draws, chance) in enumerate(zip(noise, uniform, strict=True)):
        features = controller_features(state[LATENT], state, memory)
        raw = controls(parameters, features.reshape(count, rollouts, -1), outputs)
        action = as_vector(space, decided(space, raw, squash)).flatten(0, 1)
        draws = draws.repeat(count, 1, 1)
        state, reward, continues = imagine_step(model, state, action, draws, temperature)
        total = total + gamma**t * running * reward
        running = running * (chance.repeat(count) < continues)
    return total.reshape(count, rollouts).mean(1)


def controller_features(latent: Tensor, memory: State, uses_memory: bool) -> Tensor:
    """The input of C: z, and M's memory from before it."""
    return torch.cat([latent, memory[HIDDEN]], -1) if uses_memory else latent
