"""The recurrent state-space model (RSSM): a deterministic memory and a stochastic latent.

`deter` is the state of a GRU (in v3 one of several blocks), `stoch` is sampled: from the posterior,
which sees the frame, or from the prior, which does not. Gaussian latents are those of PlaNet and
Dreamer v1, categorical ones with straight-through gradients those of v2 and v3 (Hafner et al. 2019,
2020, 2021, 2023).

Everything random is an argument: `noise` is normal for Gaussian latents, exponential for
categorical ones. A frame with `reset` begins an episode: nothing before it influences what follows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import softplus

from rl_lab.networks.mlp import ACTIVATIONS, linear, mlp, normalization, one_hot

LatentState = dict[str, Tensor]  # deter [..., D], stoch [..., S] (categories: S * K, one-hot)
DETER_STOCH = ("deter", "stoch")  # the parts of a latent state


@dataclass(frozen=True, kw_only=True)
class RSSMShape:
    """The sizes and the kind of a state-space model."""

    deter: int
    hidden: int
    stoch: int
    classes: int  # 0: Gaussian latents
    blocks: int  # 1: a GRU; more: the memory of Dreamer v3
    layers: int  # of the prior
    unimix: float
    min_std: float
    activation: str
    norm: str


class BlockLinear(nn.Module):
    """A linear layer whose matrix is block-diagonal: `blocks` independent ones, side by side."""

    def __init__(self, in_dim: int, out_dim: int, blocks: int) -> None:
        super().__init__()
        self.blocks = blocks
        parts = [linear(in_dim // blocks, out_dim // blocks, 1.0) for _ in range(blocks)]
        self.weight = nn.Parameter(torch.stack([each.weight.detach().T for each in parts]))
        self.bias = nn.Parameter(torch.zeros(out_dim))

    def forward(self, x: Tensor) -> Tensor:
        """[B, in] to [B, out]."""
        split = x.reshape(len(x), self.blocks, -1).transpose(0, 1)
        return (split @ self.weight).transpose(0, 1).reshape(len(x), -1) + self.bias


class GRU(nn.Module):
    """The memory of PlaNet and Dreamer v1 and v2: a layer, then a GRU with normalized gates."""

    def __init__(self, shape: RSSMShape, stoch_dim: int, action_dim: int) -> None:
        super().__init__()
        width, deter = shape.hidden, shape.deter
        self.enter = mlp(stoch_dim + action_dim, [width], shape.activation, shape.norm)
        self.gates = linear(deter + width, 3 * deter, 1.0)
        self.norm = normalization(shape.norm, 3 * deter)

    def forward(self, deter: Tensor, stoch: Tensor, action: Tensor) -> Tensor:
        """deter [B, D], stoch [B, S], action [B, A] to the next deter [B, D]."""
        x = self.enter(torch.cat([stoch, action], -1))
        return gated(deter, *self.norm(self.gates(torch.cat([deter, x], -1))).chunk(3, -1))


class BlockGRU(nn.Module):
    """The memory of Dreamer v3: `blocks` GRUs side by side.

    Memory, latent and action are embedded by a layer each. The hidden layer of a block reads all
    three embeddings, and of the memory itself only the block's own part.
    """

    def __init__(self, shape: RSSMShape, stoch_dim: int, action_dim: int) -> None:
        super().__init__()
        assert shape.deter % shape.blocks == 0, (shape.deter, shape.blocks)
        self.blocks = shape.blocks
        width, deter, kind, norm = shape.hidden, shape.deter, shape.activation, shape.norm
        self.enter_deter = mlp(deter, [width], kind, norm)
        self.enter_stoch = mlp(stoch_dim, [width], kind, norm)
        self.enter_action = mlp(action_dim, [width], kind, norm)
        self.own = BlockLinear(deter, deter, self.blocks)
        # One matrix for what every block reads: the same as a copy of it for each block.
        self.shared = linear(3 * width, deter, 1.0, bias=False)
        self.norm = normalization(norm, deter)
        self.activation = ACTIVATIONS[kind]()
        self.gates = BlockLinear(deter, 3 * deter, self.blocks)

    def forward(self, deter: Tensor, stoch: Tensor, action: Tensor) -> Tensor:
        """deter [B, D], stoch [B, S], action [B, A] to the next deter [B, D]."""
        parts = self.enter_deter(deter), self.enter_stoch(stoch), self.enter_action(action)
        hidden = self.own(deter) + self.shared(torch.cat(parts, -1))
        gates = self.gates(self.activation(self.norm(hidden)))
        sides = gates.unflatten(-1, (self.blocks, 3, -1)).unbind(-2)
        return gated(deter, *(each.flatten(-2) for each in sides))


def gated(deter: Tensor, reset: Tensor, candidate: Tensor, update: Tensor) -> Tensor:
    """The step of a GRU, [B, D] each; it starts out remembering: the update gate begins at 27 %."""
    candidate = (reset.sigmoid() * candidate).tanh()
    return torch.lerp(deter, candidate, (update - 1).sigmoid())


class RSSM(nn.Module):
    """Memory, prior and posterior. Vectors in, vectors out: encoders and heads are others'."""

    def __init__(self, shape: RSSMShape, action_dim: int, embed_dim: int) -> None:
        super().__init__()
        self.shape = shape
        self.stoch_dim = shape.stoch * max(shape.classes, 1)
        self.feature_dim = shape.deter + self.stoch_dim
        stats = shape.stoch * (shape.classes or 2)
        width, kind, norm = shape.hidden, shape.activation, shape.norm
        memory = BlockGRU if shape.blocks > 1 else GRU
        self.memory: nn.Module = memory(shape, self.stoch_dim, action_dim)
        self.prior_layers = mlp(shape.deter, [width] * shape.layers, kind, norm)
        self.prior_output = linear(width, stats, 1.0)
        self.posterior_layers = mlp(shape.deter + embed_dim, [width], kind, norm)
        self.posterior_output = linear(width, stats, 1.0)

    def initial(self, batch: int, device: torch.device | str = "cpu") -> LatentState:
        """Zeros: what every episode begins with."""
        return {
            "deter": torch.zeros(batch, self.shape.deter, device=device),
            "stoch": torch.zeros(batch, self.stoch_dim, device=device),
        }

    def noise(self, lead: Sequence[int], generator: Generator) -> Tensor:
        """The random numbers of `lead` draws, [*lead, S] or [*lead, S, K]."""
        shape = self.shape
        if shape.classes:
            drawn = torch.empty(*lead, shape.stoch, shape.classes, device=generator.device)
            return drawn.uniform_(generator=generator).log_().neg_()  # faster than exponential_
        drawn = torch.empty(*lead, shape.stoch, device=generator.device)
        return drawn.normal_(generator=generator)

    def observe(
        self,
        state: LatentState,
        previous_action: Tensor,
        embed: Tensor,
        reset: Tensor,
        noise: Tensor | None,
    ) -> tuple[LatentState, Tensor]:
        """The state after one frame [B, …], and the posterior it was sampled from.

        Without noise the latent is the posterior's mode.
        """
        kept = (~reset).to(embed.dtype).unsqueeze(-1)
        state = {key: value * kept for key, value in state.items()}
        deter = self._remember(state, previous_action * kept)
        hidden = self.posterior_layers(torch.cat([deter, embed], -1))
        posterior = self._stats(self.posterior_output(hidden))
        stoch = self.mode(posterior) if noise is None else self.draw(posterior, noise)
        return {"deter": deter, "stoch": stoch}, posterior

    def observe_sequence(
        self,
        state: LatentState,
        previous_action: Tensor,
        embed: Tensor,
        reset: Tensor,
        noise: Tensor,
    ) -> tuple[LatentState, Tensor, Tensor]:
        """Frames [T, B, …] in order. States, posteriors and priors, all [T, B, …].

        The prior of a frame has seen the frames before it and the action that led to it.
        """
        states, posteriors = [], []
        steps = (each.unbind(0) for each in (previous_action, embed, reset, noise))
        for action, seen, first, draw in zip(*steps, strict=True):
            state, posterior = self.observe(state, action, seen, first, draw)
            states.append(state)
            posteriors.append(posterior)
        every = {key: torch.stack([each[key] for each in states]) for key in state}
        return every, torch.stack(posteriors), self.prior(every["deter"])

    def imagine_step(self, state: LatentState, action: Tensor, noise: Tensor) -> LatentState:
        """The next state after actions [B, A], sampled from the prior."""
        deter = self._remember(state, action)
        return {"deter": deter, "stoch": self.draw(self.prior(deter), noise)}

    def features(self, state: LatentState) -> Tensor:
        """The input of heads and policies, [..., F]."""
        return torch.cat([state["deter"], state["stoch"]], -1)

    def prior(self, deter: Tensor) -> Tensor:
        """Statistics of the latent before the frame is seen: see `draw`."""
        return self._stats(self.prior_output(self.prior_layers(deter)))

    def draw(self, stats: Tensor, noise: Tensor) -> Tensor:
        """A latent [..., S] or, as one-hot categories, [..., S * K]; gradients go to `stats`.

        Statistics are log-probabilities [..., S, K], or mean and deviation [..., 2, S].
        """
        if not self.shape.classes:
            mean, std = stats.unbind(-2)
            return mean + std * noise
        chosen = one_hot((stats - noise.log()).argmax(-1), self.shape.classes)
        probs = stats.exp()
        return (chosen + (probs - probs.detach())).flatten(-2)

    def mode(self, stats: Tensor) -> Tensor:
        """The most probable latent."""
        if not self.shape.classes:
            return stats.unbind(-2)[0]
        return one_hot(stats.argmax(-1), self.shape.classes).flatten(-2)

    def kl(self, left: Tensor, right: Tensor) -> Tensor:
        """KL(left ‖ right) of statistics, summed over the latents: [...]."""
        if self.shape.classes:
            return (left.exp() * (left - right)).sum((-2, -1))
        (mean, std), (other_mean, other_std) = left.unbind(-2), right.unbind(-2)
        ratio, distance = std / other_std, (mean - other_mean) / other_std
        return (0.5 * (ratio.square() + distance.square() - 1) - ratio.log()).sum(-1)

    def _remember(self, state: LatentState, action: Tensor) -> Tensor:
        """The next memory. Actions are clipped to [-1, 1] first, as environments do."""
        clipped = action / action.detach().abs().clamp(min=1.0)
        return self.memory(state["deter"], state["stoch"], clipped)

    def _stats(self, raw: Tensor) -> Tensor:
        if not self.shape.classes:
            mean, std = raw.unflatten(-1, (2, -1)).unbind(-2)
            return torch.stack([mean, softplus(std) + self.shape.min_std], -2)
        return mixed(raw.unflatten(-1, (self.shape.stoch, -1)), self.shape.unimix)


def mixed(logits: Tensor, unimix: float) -> Tensor:
    """Log-probabilities of a softmax [..., K] with a share of the uniform distribution in it."""
    if not unimix:
        return logits.log_softmax(-1)
    return ((1 - unimix) * logits.softmax(-1) + unimix / logits.shape[-1]).log()
