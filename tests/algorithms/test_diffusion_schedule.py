"""Noise schedule, predictions and samplers of diffusion and flows, against numbers by hand."""

import math

import pytest
import torch

from rl_lab.algorithms.diffusion.schedule import (
    Estimate,
    add_noise,
    cosine_alpha_bar,
    ddim_step,
    denoise,
    ema_decay,
    estimate,
    euler,
    interpolate,
    posterior,
    prediction_target,
    spaced_levels,
)

KINDS = ("epsilon", "v", "sample")
number = torch.tensor


def close(found, expected, tolerance=1e-6):
    assert float(found) == pytest.approx(expected, abs=tolerance)


def test_the_cosine_schedule_by_hand():
    # f(s) = cos²((s + .008)/1.008 · π/2); two levels: ᾱ₀ = f(1/2)/f(0), and the second β would be
    # 1 − f(1)/f(1/2) = 1, which is limited to .999: ᾱ₁ = ᾱ₀ · .001
    def signal(share):
        return math.cos((share + 0.008) / 1.008 * math.pi / 2) ** 2

    first = signal(0.5) / signal(0.0)
    assert cosine_alpha_bar(2).tolist() == pytest.approx([first, 0.001 * first], rel=1e-12)
    assert first == pytest.approx(0.4938, abs=1e-4)


def test_the_cosine_schedule_falls_from_nearly_1_to_nearly_0():
    alpha_bar = cosine_alpha_bar(100)
    assert (alpha_bar.diff() < 0).all()
    assert alpha_bar[0] > 0.999
    assert alpha_bar[-1] < 1e-3
    # every β is at most .999, and ᾱ is their product
    betas = 1 - alpha_bar[1:] / alpha_bar[:-1]
    assert betas.max() == pytest.approx(0.999)
    assert betas.min() > 0


def test_noise_keeps_the_variance():
    # √.36 · 2 + √.64 · (−1) = 1.2 − .8
    close(add_noise(number(2.0), number(-1.0), number(0.36)), 0.4)


def test_targets_by_hand():
    clean, noise, alpha_bar = number(2.0), number(-1.0), number(0.36)
    close(prediction_target("epsilon", clean, noise, alpha_bar), -1.0)
    close(prediction_target("sample", clean, noise, alpha_bar), 2.0)
    close(prediction_target("v", clean, noise, alpha_bar), 0.6 * -1.0 - 0.8 * 2.0)


@pytest.mark.parametrize("kind", KINDS)
def test_every_prediction_means_the_same_sample_and_the_same_noise(kind):
    clean, noise = torch.randn(5, 3), torch.randn(5, 3)
    alpha_bar = torch.rand(5, 1) * 0.9 + 0.05
    noisy = add_noise(clean, noise, alpha_bar)
    target = prediction_target(kind, clean, noise, alpha_bar)
    found = estimate(kind, target, noisy, alpha_bar)
    torch.testing.assert_close(found.clean, clean, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.noise, noise, atol=1e-5, rtol=1e-4)


def test_a_clipped_sample_comes_with_the_noise_that_fits_to_it():
    # x = .6 · 2 + .8 · (−1) = .4; x₀ = 2 is clipped to 1, so ε = (.4 − .6 · 1) / .8 = −.25
    found = estimate("epsilon", number(-1.0), number(0.4), number(0.36), clip=1.0)
    close(found.clean, 1.0)
    close(found.noise, -0.25)


def test_the_posterior_by_hand():
    # ᾱ .3, before .6: α = .5, β = .5
    #   mean = √.6 · .5/.7 · x₀ + √.5 · .4/.7 · x, variance = .5 · .4/.7
    mean, variance = posterior(number(2.0), number(-1.0), number(0.3), number(0.6))
    close(mean, math.sqrt(0.6) * 0.5 / 0.7 * 2.0 + math.sqrt(0.5) * 0.4 / 0.7 * -1.0)
    close(variance, 0.5 * 0.4 / 0.7)


def test_the_posterior_is_bayes_rule():
    """q(x₁ | x₂, x₀) from the densities themselves, integrated on a grid."""
    clean, noisy, alpha_bar, before = 0.7, -0.4, 0.3, 0.6
    alpha = alpha_bar / before
    grid = torch.linspace(-8, 8, 20_001, dtype=torch.float64)
    log_density = -0.5 * (grid - math.sqrt(before) * clean) ** 2 / (1 - before)
    log_density += -0.5 * (noisy - math.sqrt(alpha) * grid) ** 2 / (1 - alpha)
    weight = log_density.softmax(0)
    mean = (weight * grid).sum()
    variance = (weight * (grid - mean) ** 2).sum()
    found = posterior(number(clean), number(noisy), number(alpha_bar), number(before))
    close(found[0], float(mean), 1e-5)
    close(found[1], float(variance), 1e-5)


def test_the_last_step_is_the_clean_sample():
    one = number(1.0)
    mean, variance = posterior(number(0.3), number(5.0), number(0.8), one)
    close(mean, 0.3)
    close(variance, 0.0)
    mean, variance = ddim_step(Estimate(number(0.3), number(5.0)), number(0.8), one, 1.0)
    close(mean, 0.3)
    close(variance, 0.0)


def test_a_ddim_step_by_hand():
    # ᾱ .3, before .6, η 0: √.6 · x₀ + √.4 · ε
    guess = Estimate(number(2.0), number(-1.0))
    mean, variance = ddim_step(guess, number(0.3), number(0.6), 0.0)
    close(mean, math.sqrt(0.6) * 2.0 - math.sqrt(0.4))
    close(variance, 0.0)
    # η 1: variance (1 − .6)/(1 − .3) · (1 − .3/.6), and the rest of .4 is the direction
    mean, variance = ddim_step(guess, number(0.3), number(0.6), 1.0)
    close(variance, 0.4 / 0.7 * 0.5)
    close(mean, math.sqrt(0.6) * 2.0 - math.sqrt(0.4 - 0.2 / 0.7))


def test_ddim_with_eta_1_is_ddpm():
    """Where both must be the same: mean and variance of a step, for every level."""
    alpha_bar = cosine_alpha_bar(20)
    clean, noise = torch.randn(4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    for level in range(1, 20):
        here, before = alpha_bar[level], alpha_bar[level - 1]
        noisy = add_noise(clean, noise, here)
        ddpm = posterior(clean, noisy, here, before)
        ddim = ddim_step(Estimate(clean, noise), here, before, 1.0)
        torch.testing.assert_close(ddpm[0], ddim[0], atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(ddpm[1], ddim[1], atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize(
    ("levels", "steps", "expected"),
    [
        (100, 10, [99, 89, 79, 69, 59, 49, 39, 29, 19, 9]),
        (4, 4, [3, 2, 1, 0]),
        (10, 3, [9, 6, 2]),
        (5, 1, [4]),
    ],
)
def test_inference_steps_are_evenly_spaced_and_begin_with_the_most_noise(levels, steps, expected):
    assert spaced_levels(levels, steps) == expected


def perfect(clean, kind, alpha_bar):
    """A denoiser that knows the only sample there is."""

    def predict(noisy, level):
        here = alpha_bar[level].to(noisy.dtype).view(-1, 1, 1)
        noise = (noisy - here.sqrt() * clean) / (1 - here).sqrt()
        return prediction_target(kind, clean, noise, here)

    return predict


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eta", [None, 0.0, 0.5, 1.0])
def test_a_perfect_denoiser_leads_to_the_sample(kind, eta):
    alpha_bar = cosine_alpha_bar(50)
    clean = torch.rand(3, 4, 2) * 2 - 1
    start, noises = torch.randn(3, 4, 2), torch.randn(9, 3, 4, 2)
    predict = perfect(clean, kind, alpha_bar)
    found = denoise(predict, start, noises, alpha_bar, kind=kind, steps=10, eta=eta)
    torch.testing.assert_close(found, clean, atol=2e-4, rtol=1e-3)


def two_points(noisy, level):
    """The exact ε of data that is −1 or 1 with equal chances: E[x₀ | x] = tanh(√ᾱ x / (1 − ᾱ))."""
    here = ALPHA_BAR[level].to(noisy.dtype).view(-1, 1)
    clean = (here.sqrt() * noisy / (1 - here)).tanh()
    return (noisy - here.sqrt() * clean) / (1 - here).sqrt()


ALPHA_BAR = cosine_alpha_bar(100)


@pytest.mark.parametrize(
    ("steps", "eta"), [(100, None), (16, 0.0)], ids=["ddpm 100 steps", "ddim 16 steps"]
)
def test_two_points_are_both_reached_equally_often(steps, eta):
    generator = torch.Generator().manual_seed(3)
    start = torch.randn(4000, 1, generator=generator)
    noises = torch.randn(steps - 1, 4000, 1, generator=generator)
    found = denoise(two_points, start, noises, ALPHA_BAR, kind="epsilon", steps=steps, eta=eta)
    assert (found.abs() > 0.9).float().mean() >= 0.95
    assert (found > 0).float().mean() == pytest.approx(0.5, abs=0.05)


def test_ddim_without_noise_is_a_function_of_its_start():
    start = torch.randn(50, 1)
    options = {"kind": "epsilon", "steps": 10, "eta": 0.0}
    first = denoise(two_points, start, torch.randn(9, 50, 1), ALPHA_BAR, **options)
    again = denoise(two_points, start, None, ALPHA_BAR, **options)
    assert torch.equal(first, again)
    drawn = {**options, "eta": 1.0}
    noisy = denoise(two_points, start, torch.randn(9, 50, 1), ALPHA_BAR, **drawn)
    assert not torch.equal(first, noisy)


def test_samples_are_clipped_at_every_step():
    def wild(noisy, level):
        return torch.full_like(noisy, -50.0)  # says that x₀ is far beyond the data

    options = {"kind": "epsilon", "steps": 5, "eta": 0.0}
    assert denoise(wild, torch.randn(8, 1), None, ALPHA_BAR, **options).tolist() == [[1.0]] * 8


def test_a_straight_path_and_its_velocity():
    # (1 − .25) · (−1) + .25 · 3 = 0, and the velocity is 3 − (−1)
    point, velocity = interpolate(number(-1.0), number(3.0), number(0.25))
    assert (float(point), float(velocity)) == (0.0, 4.0)


def test_euler_follows_a_constant_velocity_exactly_whatever_the_steps():
    start = torch.randn(6, 2)
    for steps in (1, 3, 10):
        found = euler(lambda x, time: torch.full_like(x, 4.0), start, steps)
        torch.testing.assert_close(found, start + 4.0)


def test_euler_asks_at_the_beginning_of_each_step():
    asked = []

    def velocity(x, time):
        asked.append(float(time[0]))
        return x

    # x ← x + x/4, four times: (5/4)⁴
    found = euler(velocity, torch.ones(1, 1), 4)
    assert asked == [0.0, 0.25, 0.5, 0.75]
    close(found, 1.25**4)


def test_the_decay_of_the_average_warms_up():
    # 1 − (1 + n)^−¾ for n = 0, 1, 2; at most .5 here
    decays = [ema_decay(n, power=0.75, most=0.9999) for n in range(3)]
    assert decays == pytest.approx([0.0, 1 - 2**-0.75, 1 - 3**-0.75])
    assert ema_decay(10**9, power=0.75, most=0.9999) == 0.9999
    assert ema_decay(5, power=0.75, most=0.0) == 0.0
