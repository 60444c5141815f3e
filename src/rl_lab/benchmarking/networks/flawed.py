"""Memories with a published flaw, for an ablation of the benchmark only.

Acting and the learner's first pass are right. In the update, where gradients flow, a sequence
starts from nothing instead of the state that the episode had there, and runs on over the beginning
of new episodes. This is what BenchNetRL's Mamba does (arXiv:2505.15040): neither its scan takes an
initial state, nor are there resets inside of a sequence.
"""

import torch
from torch import Tensor, nn

from rl_lab.networks.memory.recurrent import GRU, RecurrentConfig, State
from rl_lab.networks.memory.ssm import Mamba, Mamba2, Mamba2Config, MambaConfig


class _Flawed(nn.Module):
    """A memory whose update sees neither the initial state nor the resets."""

    def __init__(self, memory: GRU | Mamba | Mamba2) -> None:
        super().__init__()
        self.memory = memory
        self.out_dim = memory.out_dim

    def initial_state(self, batch: int) -> State:
        """That of the memory."""
        return self.memory.initial_state(batch)

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """That of the memory: acting is right."""
        return self.memory.step(x, state)

    def sequence(self, x: Tensor, state: State, resets: Tensor) -> tuple[Tensor, State]:
        """Right without gradients; in the update from an empty state, as if nothing began."""
        if torch.is_grad_enabled():
            state, resets = self.initial_state(x.shape[1]), torch.zeros_like(resets)
        return self.memory.sequence(x, state, resets)


class FlawedGRU(_Flawed):
    """A GRU with the flaw."""

    Config = RecurrentConfig

    def __init__(self, config: RecurrentConfig, in_dim: int) -> None:
        super().__init__(GRU(config, in_dim))


class FlawedMamba(_Flawed):
    """Mamba with the flaw."""

    Config = MambaConfig

    def __init__(self, config: MambaConfig, in_dim: int) -> None:
        super().__init__(Mamba(config, in_dim))


class FlawedMamba2(_Flawed):
    """Mamba-2 with the flaw."""

    Config = Mamba2Config

    def __init__(self, config: Mamba2Config, in_dim: int) -> None:
        super().__init__(Mamba2(config, in_dim))
