"""MDN-RNN: an LSTM that predicts a mixture of Gaussians for each number of the next latent.

Row t takes the latent z_t and the action a_t; it predicts z_{t+1}, and the reward and the end that
come with it. A controller acts at t on the memory before row t.
"""

import math
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn

from rl_lab.networks.memory.recurrent import GRU, LSTM, RecurrentConfig, State

SMALLEST, LARGEST = -7.0, 4.0  # logarithms of the deviations: beyond them the likelihood runs away


class Prediction(NamedTuple):
    """What comes next. K Gaussians for each of Z numbers."""

    log_weight: Tensor  # [..., Z, K], normalized
    mean: Tensor  # [..., Z, K]
    log_std: Tensor  # [..., Z, K]
    reward: Tensor  # [...]
    ends: Tensor  # [...], the log-odds that the next frame is terminal


class MDNRNN(nn.Module):
    """Memory and heads (Ha and Schmidhuber 2018), with the end of their Doom task and a reward."""

    def __init__(self, latent: int, action: int, hidden: int, mixtures: int) -> None:
        super().__init__()
        self.latent, self.mixtures = latent, mixtures
        self.memory: LSTM | GRU = LSTM(
            RecurrentConfig(type="lstm", hidden_dim=hidden), latent + action
        )
        self.next = nn.Linear(hidden, latent * mixtures * 3)
        self.outcome = nn.Linear(hidden, 2)

    def initial_state(self, batch: int) -> State:
        """Nothing is remembered."""
        return self.memory.initial_state(batch)

    def step(self, latent: Tensor, action: Tensor, state: State) -> tuple[Tensor, State]:
        """Take in z_t [N, Z] and a_t [N, A]: what `predict` reads, and the memory after it."""
        return self.memory.step(torch.cat([latent, action], -1), state)

    def sequence(
        self, latent: Tensor, action: Tensor, resets: Tensor, state: State
    ) -> tuple[Tensor, State]:
        """The same for [T, B, …]; where `resets` [T, B] is True, all before is forgotten first."""
        return self.memory.sequence(torch.cat([latent, action], -1), state, resets)

    def predict(self, output: Tensor) -> Prediction:
        """What comes after, from outputs [..., hidden]."""
        raw = self.next(output).reshape(*output.shape[:-1], self.latent, self.mixtures, 3)
        weight, mean, log_std = raw.unbind(-1)
        reward, ends = self.outcome(output).unbind(-1)
        log_std = log_std.clamp(SMALLEST, LARGEST)
        return Prediction(weight.log_softmax(-1), mean, log_std, reward, ends)

    def noise(self, lead: tuple[int, ...], generator: Generator) -> Tensor:
        """The random numbers of that many draws, [*lead, 2, Z]: uniform, and normal."""
        size, device = (*lead, self.latent), generator.device
        uniform = torch.rand(size, generator=generator, device=device)
        normal = torch.randn(size, generator=generator, device=device)
        return torch.stack([uniform, normal], -2)


def mixture_nll(prediction: Prediction, target: Tensor) -> Tensor:
    """−log p of targets [..., Z], for each number by itself: [..., Z]."""
    distance = (target.unsqueeze(-1) - prediction.mean) * (-prediction.log_std).exp()
    log_prob = -0.5 * distance.square() - prediction.log_std - 0.5 * math.log(2 * math.pi)
    return -torch.logsumexp(prediction.log_weight + log_prob, -1)


def mixture_draw(prediction: Prediction, noise: Tensor, temperature: Tensor | float) -> Tensor:
    """A next latent [..., Z]. Above 1, the temperature makes the unlikely likelier."""
    uniform, normal = noise.unbind(-2)
    weight = (prediction.log_weight / temperature).softmax(-1)
    passed = (weight.cumsum(-1) < uniform.unsqueeze(-1)).sum(-1, keepdim=True)
    chosen = passed.clamp(max=weight.shape[-1] - 1)  # a sum may stay a little below 1
    mean = prediction.mean.gather(-1, chosen).squeeze(-1)
    std = prediction.log_std.gather(-1, chosen).squeeze(-1).exp()
    return mean + std * temperature**0.5 * normal


def dynamics_loss(
    model: MDNRNN,
    latent: Tensor,
    action: Tensor,
    resets: Tensor,
    reward: Tensor,
    terminated: Tensor,
    reward_scale: Tensor,
    end_scale: Tensor,
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Prediction loss of windows of frames, all [T + 1, B, …] in arrival form.

    `action` led to its row's frame. The first frame of an episode is not predicted, and the memory
    is reset before it.
    """
    start = model.initial_state(latent.shape[1])
    output, _ = model.sequence(latent[:-1], action[1:], resets[:-1], start)
    prediction = model.predict(output)
    counts = (~resets[1:]).float()
    share = counts / counts.sum().clamp(min=1.0)
    nll = (mixture_nll(prediction, latent[1:]).mean(-1) * share).sum()
    reward_error = ((prediction.reward - reward[1:]).square() * share).sum()
    end_error = (end_nll(prediction.ends, terminated[1:]) * share).sum()
    loss = nll + reward_scale * reward_error + end_scale * end_error
    return loss, {"nll": nll, "reward_error": reward_error, "end_error": end_error}, {}


def end_nll(log_odds: Tensor, terminated: Tensor) -> Tensor:
    """−log p of an end, or of none."""
    return nn.functional.softplus(torch.where(terminated, -log_odds, log_odds))
