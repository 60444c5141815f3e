"""Rollouts imagined by M, from frames that V encodes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rl_lab.algorithms.world_models.candidates import LATENT, imagine_step
from rl_lab.algorithms.world_models.mdn_rnn import MDNRNN
from rl_lab.algorithms.world_models.vae import ConvVAE
from rl_lab.core.batch import OBS, PREVIOUS_ACTION, RESET, Batch
from rl_lab.core.spec import Space
from rl_lab.networks.memory.recurrent import State
from rl_lab.networks.mlp import as_vector

_PIECE = 1024  # frames that are encoded at once, to bound memory


@dataclass(frozen=True)
class FrameImagination:
    """The `Imagination` (core/protocols.py) of V and M. States: z, and the memory before it."""

    vae: ConvVAE
    dynamics: MDNRNN
    space: Space  # of actions
    temperature: float

    @torch.no_grad()
    def start(self, seen: Batch, generator: torch.Generator | None = None) -> State:
        """The states at the last of real frames [T, N, …]. Nothing is sampled: z is the mean."""
        latent, _ = encode(self.vae, seen[OBS])
        action = as_vector(self.space, seen[PREVIOUS_ACTION])
        state = self.dynamics.initial_state(latent.shape[1])
        if len(latent) > 1:
            _, state = self.dynamics.sequence(latent[:-1], action[1:], seen[RESET][:-1], state)
        kept = (~seen[RESET][-1]).float().unsqueeze(-1)
        return {LATENT: latent[-1], **{name: each * kept for name, each in state.items()}}

    @torch.no_grad()
    def step(
        self, state: State, action: object, generator: torch.Generator
    ) -> tuple[State, Tensor, Tensor]:
        """After actions [N, …]: the states, rewards [N], and continue probabilities [N]."""
        device = state[LATENT].device
        vector = as_vector(self.space, torch.as_tensor(action, device=device))
        noise = self.dynamics.noise((len(vector),), generator).to(device)
        return imagine_step(self.dynamics, state, vector, noise, self.temperature)

    @torch.no_grad()
    def decode(self, state: State) -> Tensor:
        """Images [N, C, H, W] in [0, 1]."""
        return self.vae.decode(state[LATENT])


@torch.no_grad()
def encode(vae: ConvVAE, frames: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log-variance of frames [T, B, …], some rows at a time."""
    rows = max(_PIECE // frames.shape[1], 1)
    pieces = [vae.encode(each) for each in frames.split(rows)]
    return torch.cat([each[0] for each in pieces]), torch.cat([each[1] for each in pieces])
