"""Where episodes begin inside a sequence."""

import torch
from torch import Tensor


def episode_steps(resets: Tensor, before: Tensor) -> Tensor:
    """Steps [T, N] since each step's episode began, 0 where `resets` [T, N] is True.

    `before` [N]: steps of the episode that were seen before the sequence.
    """
    step = torch.arange(len(resets), device=resets.device).unsqueeze(-1)
    begin = torch.where(resets, step, -1).cummax(0).values
    return torch.where(begin < 0, step + before, (step - begin).to(before.dtype))
