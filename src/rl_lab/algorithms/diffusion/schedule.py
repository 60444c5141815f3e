"""Noise schedule, predictions and samplers of diffusion (Ho et al. 2020, Song et al. 2021).

Pure functions of tensors. `alpha_bar` [K] is the share of the signal's variance that is left after
each of K noise levels; index 0 has the least noise. x₀ is a clean sample, ε is noise,
v = √ᾱ ε − √(1 − ᾱ) x₀ (Salimans & Ho 2022).
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Prediction = Literal["epsilon", "v", "sample"]
LARGEST_BETA = 0.999  # of the cosine schedule, whose last level would be all noise
OFFSET = 0.008  # of the cosine schedule: β is not vanishingly small at the first levels


def cosine_alpha_bar(levels: int) -> Tensor:
    """ᾱ [levels] of the squared-cosine schedule, in float64 (Nichol & Dhariwal 2021, eq. 17)."""

    def signal(share: float) -> float:
        return math.cos((share + OFFSET) / (1 + OFFSET) * math.pi / 2) ** 2

    betas = [
        min(1 - signal((level + 1) / levels) / signal(level / levels), LARGEST_BETA)
        for level in range(levels)
    ]
    return (1 - torch.tensor(betas, dtype=torch.float64)).cumprod(0)


def add_noise(clean: Tensor, noise: Tensor, alpha_bar: Tensor) -> Tensor:
    """x of a noise level: √ᾱ x₀ + √(1 − ᾱ) ε. `alpha_bar` broadcasts."""
    return alpha_bar.sqrt() * clean + (1 - alpha_bar).sqrt() * noise


def prediction_target(kind: str, clean: Tensor, noise: Tensor, alpha_bar: Tensor) -> Tensor:
    """What the denoiser should say about `add_noise(clean, noise, alpha_bar)`."""
    if kind == "epsilon":
        return noise
    if kind == "sample":
        return clean
    return alpha_bar.sqrt() * noise - (1 - alpha_bar).sqrt() * clean


class Estimate(NamedTuple):
    """The clean sample and the noise that a prediction means."""

    clean: Tensor
    noise: Tensor


def estimate(
    kind: str, predicted: Tensor, noisy: Tensor, alpha_bar: Tensor, clip: float | None = None
) -> Estimate:
    """x₀ and ε of a prediction. With `clip`, x₀ lies in [−clip, clip] and ε is what fits to it."""
    signal, spread = alpha_bar.sqrt(), (1 - alpha_bar).sqrt()
    if kind == "epsilon":
        clean = (noisy - spread * predicted) / signal
    elif kind == "sample":
        clean = predicted
    else:
        clean = signal * noisy - spread * predicted
    if clip is not None:
        clean = clean.clamp(-clip, clip)
    return Estimate(clean, (noisy - signal * clean) / spread)


def posterior(
    clean: Tensor, noisy: Tensor, alpha_bar: Tensor, before: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and variance of q(x at `before` | x, x₀): one DDPM step (Ho et al. 2020, eq. 7).

    `before` is ᾱ of the next level with less noise, 1 for none. Levels in between may be left out.
    """
    alpha = alpha_bar / before
    beta = 1 - alpha
    share = before.sqrt() * beta / (1 - alpha_bar)
    mean = share * clean + alpha.sqrt() * (1 - before) / (1 - alpha_bar) * noisy
    return mean, beta * (1 - before) / (1 - alpha_bar)


def ddim_step(
    guess: Estimate, alpha_bar: Tensor, before: Tensor, eta: float
) -> tuple[Tensor, Tensor]:
    """Mean and variance of a DDIM step (Song et al. 2021, eq. 12); η = 0: no noise is added."""
    variance = eta**2 * (1 - before) / (1 - alpha_bar) * (1 - alpha_bar / before)
    direction = (1 - before - variance).clamp(min=0.0).sqrt()
    return before.sqrt() * guess.clean + direction * guess.noise, variance


def spaced_levels(levels: int, steps: int) -> list[int]:
    """`steps` of `levels` noise levels, evenly spaced, the noisiest first and always among them."""
    return [round((index + 1) * levels / steps) - 1 for index in reversed(range(steps))]


Denoise = Callable[[Tensor, Tensor], Tensor]  # (noisy [B, …], level [B]): a prediction [B, …]


def denoise(
    predict: Denoise,
    start: Tensor,
    noises: Tensor | None,
    alpha_bar: Tensor,
    *,
    kind: str,
    steps: int,
    eta: float | None,
    clip: float | None = 1.0,
) -> Tensor:
    """From noise `start` [B, …] to a sample, in `steps` calls of `predict`.

    Args:
        predict: The denoiser.
        start: Standard normal.
        noises: Standard normal [steps − 1, B, …], added after all steps but the last one. None:
            every step takes its mean.
        alpha_bar: The schedule [K] that the denoiser was trained with.
        kind: What the denoiser predicts.
        steps: At most K.
        eta: None: DDPM (posterior mean and variance), else DDIM with this η.
        clip: Largest size of a clean sample.
    """
    x, levels = start, spaced_levels(len(alpha_bar), steps)
    one = torch.ones((), dtype=alpha_bar.dtype, device=alpha_bar.device)
    for index, level in enumerate(levels):
        here = alpha_bar[level].to(x.dtype)
        last = index + 1 == steps
        before = (one if last else alpha_bar[levels[index + 1]]).to(x.dtype)
        rows = torch.full(x.shape[:1], level, device=x.device)
        guess = estimate(kind, predict(x, rows), x, here, clip)
        if eta is None:
            x, variance = posterior(guess.clean, x, here, before)
        else:
            x, variance = ddim_step(guess, here, before, eta)
        if not last and noises is not None:
            x = x + variance.sqrt() * noises[index]
    return x


def interpolate(noise: Tensor, clean: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """A point on the straight path from noise (0) to a sample (1), and the velocity along it.

    Conditional flow matching (Lipman et al. 2023) without a smallest spread: xₜ = (1 − t) ε + t x₁,
    and the target is x₁ − ε.
    """
    return (1 - time) * noise + time * clean, clean - noise


def euler(velocity: Denoise, start: Tensor, steps: int) -> Tensor:
    """Follow a velocity field from time 0 to 1 in equal steps; its second argument is time [B]."""
    x = start
    for index in range(steps):
        time = torch.full(x.shape[:1], index / steps, dtype=x.dtype, device=x.device)
        x = x + velocity(x, time) / steps
    return x


def ema_decay(updates: int, *, power: float, most: float) -> float:
    """Decay of the average of weights after n updates: 1 − (1 + n)^−power, at most `most`.

    It begins at 0 (a copy), so early weights are soon forgotten.
    """
    return min(1 - (1 + updates) ** -power, most)
