"""The MDN-RNN: likelihoods against closed forms, resets, alignment with actions, temperature."""

import math

import numpy as np
import pytest
import torch

from rl_lab.algorithms.world_models.mdn_rnn import (
    LARGEST,
    MDNRNN,
    SMALLEST,
    Prediction,
    dynamics_loss,
    end_nll,
    mixture_draw,
    mixture_nll,
)
from rl_lab.core.learner import Learner, scalar
from rl_lab.core.optim import OptimizerConfig

LOG_ROOT = 0.5 * math.log(2 * math.pi)


def prediction(weight, mean, std) -> Prediction:
    """For one number each: lists [K]."""
    rows = [torch.tensor(each, dtype=torch.float64)[None] for each in (weight, mean, std)]
    zero = torch.zeros(())
    return Prediction(rows[0].log(), rows[1], rows[2].log(), zero, zero)


def stream(seed=0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model(**sizes) -> MDNRNN:
    torch.manual_seed(0)
    return MDNRNN(**{"latent": 3, "action": 2, "hidden": 8, "mixtures": 5, **sizes})


def windows(time=6, batch=4):
    """Latents, actions and resets [T, B, …]."""
    latent, action = torch.randn(time, batch, 3), torch.randn(time, batch, 2)
    return latent, action, torch.zeros(time, batch, dtype=torch.bool)


def test_one_gaussian_by_hand():
    # −log N(2; 1, 0.5) = (1 / 0.5)² / 2 + log 0.5 + log √2π
    nll = mixture_nll(prediction([1.0], [1.0], [0.5]), torch.tensor([2.0], dtype=torch.float64))
    assert nll.tolist() == pytest.approx([2 + math.log(0.5) + LOG_ROOT])


def test_a_mixture_by_hand():
    # 0.25 · N(1; 0, 1) + 0.75 · N(1; 3, 2)
    density = 0.25 * math.exp(-0.5) + 0.75 * math.exp(-0.5) / 2
    expected = -math.log(density / math.sqrt(2 * math.pi))
    mixture = prediction([0.25, 0.75], [0.0, 3.0], [1.0, 2.0])
    assert mixture_nll(mixture, torch.ones(1)).item() == pytest.approx(expected)


def test_the_density_sums_to_one():
    grid = torch.linspace(-20, 20, 20001, dtype=torch.float64)[:, None]
    mixture = prediction([0.2, 0.5, 0.3], [-2.0, 0.0, 4.0], [0.1, 1.0, 2.0])
    assert (-mixture_nll(mixture, grid)).exp().sum().item() * 0.002 == pytest.approx(1, abs=1e-6)


def test_far_away_it_is_still_a_number():
    # A sum of exponentials would be log 0 here.
    nll = mixture_nll(prediction([0.5, 0.5], [0.0, 1.0], [0.01, 0.01]), torch.tensor([1e3]))
    assert nll.item() == pytest.approx(0.5 * (999 / 0.01) ** 2, rel=1e-3)


def test_deviations_stay_between_their_bounds():
    net = model()
    with torch.no_grad():
        net.next.weight.mul_(1e4)
    log_std = net.predict(torch.randn(50, 8)).log_std
    assert log_std.min() == SMALLEST and log_std.max() == LARGEST


def test_an_end_by_hand():
    # p = sigmoid(log 3) = 0.75
    odds = torch.tensor([math.log(3.0)] * 2)
    nll = end_nll(odds, torch.tensor([True, False]))
    assert nll.tolist() == pytest.approx([-math.log(0.75), -math.log(0.25)])


def test_draws_follow_the_mixture():
    mixture = prediction([0.25, 0.75], [-5.0, 5.0], [0.5, 1.0])
    count = 20_000
    mixture = Prediction(*(each.expand(count, *each.shape) for each in mixture[:3]), *mixture[3:])
    drawn = mixture_draw(mixture, model(latent=1).noise((count,), stream()), 1.0).squeeze(-1)
    left = drawn[drawn < 0]
    assert len(left) / count == pytest.approx(0.25, abs=0.01)
    assert left.mean().item() == pytest.approx(-5, abs=0.03)
    assert left.std().item() == pytest.approx(0.5, rel=0.03)
    assert drawn[drawn > 0].std().item() == pytest.approx(1.0, rel=0.03)


@pytest.mark.parametrize("temperature", [0.25, 4.0])
def test_temperature_by_hand(temperature):
    # Weights ∝ w^(1/τ): 0.1 and 0.9 become at τ = 0.25 0.0001 and 0.6561, at τ = 4 0.562 and 0.974.
    # Deviations are multiplied by √τ.
    mixture, count = prediction([0.1, 0.9], [-100.0, 100.0], [1.0, 3.0]), 20_000
    mixture = Prediction(*(each.expand(count, *each.shape) for each in mixture[:3]), *mixture[3:])
    noise = model(latent=1).noise((count,), stream())
    drawn = mixture_draw(mixture, noise, temperature).squeeze(-1)
    share = 0.1 ** (1 / temperature)
    share /= share + 0.9 ** (1 / temperature)
    assert (drawn < 0).double().mean().item() == pytest.approx(share, abs=0.01)
    assert drawn[drawn > 0].std().item() == pytest.approx(3 * temperature**0.5, rel=0.03)


def test_a_uniform_number_above_the_sum_of_the_weights_chooses_the_last():
    """Which rounding may bring about."""
    noise = torch.tensor([[1.0 + 1e-7], [0.0]], dtype=torch.float64)  # uniform, normal
    assert mixture_draw(prediction([0.3, 0.7], [1.0, 2.0], [1.0, 1.0]), noise, 1.0).item() == 2.0


def test_a_sequence_is_many_steps_and_a_reset_forgets_all_before():
    net = model()
    latent, action, resets = windows()
    resets[3, 1] = resets[0, 2] = True
    state = {name: torch.randn(4, 8) for name in ("hidden", "cell")}
    outputs, last = net.sequence(latent, action, resets, state)
    alone, _ = net.sequence(
        latent[3:, 1:2], action[3:, 1:2], resets[4:, 1:2].new_zeros(3, 1), net.initial_state(1)
    )
    assert torch.allclose(outputs[3:, 1:2], alone, atol=1e-6)
    walked, here = [], state
    for now in range(6):
        here = {name: each * ~resets[now, :, None] for name, each in here.items()}
        output, here = net.step(latent[now], action[now], here)
        walked.append(output)
    assert torch.allclose(outputs, torch.stack(walked), atol=1e-6)
    assert torch.allclose(last["cell"], here["cell"], atol=1e-6)


def test_no_gradient_passes_a_reset():
    net = model()
    latent, action, resets = windows()
    resets[3] = True
    latent.requires_grad_()
    output, _ = net.sequence(latent, action, resets, net.initial_state(4))
    before = torch.autograd.grad(output[3:].sum(), latent)[0][:3]
    assert before.abs().sum() == 0


def losses(net, latent, action, resets, reward=None, terminated=None):
    reward = torch.zeros(latent.shape[:2]) if reward is None else reward
    terminated = torch.zeros_like(resets) if terminated is None else terminated
    one = torch.ones(())
    return dynamics_loss(net, latent, action, resets, reward, terminated, one, one)


def test_the_loss_is_the_mean_over_what_could_be_foreseen():
    net = model()
    latent, action, resets = windows()
    resets[0] = resets[3, 1] = True
    reward, ends = torch.randn(6, 4), torch.rand(6, 4) < 0.3
    loss, metrics, _ = losses(net, latent, action, resets, reward, ends)
    nll, square, end = [], [], []
    for column in range(4):
        state = net.initial_state(1)
        for now in range(5):
            if resets[now, column]:
                state = net.initial_state(1)
            seen, done = latent[now, column][None], action[now + 1, column][None]
            output, state = net.step(seen, done, state)
            if resets[now + 1, column]:  # the next frame is of another episode
                continue
            expected = net.predict(output)
            nll.append(mixture_nll(expected, latent[now + 1, column][None]).mean())
            square.append((expected.reward - reward[now + 1, column]) ** 2)
            end.append(end_nll(expected.ends, ends[now + 1, column]))
    assert len(nll) == 19
    parts = [torch.stack(each).mean().item() for each in (nll, square, end)]
    names = ("nll", "reward_error", "end_error")
    assert [metrics[name].item() for name in names] == pytest.approx(parts, rel=1e-5)
    assert loss.item() == pytest.approx(sum(parts), rel=1e-5)


def test_another_episode_changes_nothing_of_the_loss_of_this_one():
    net = model()
    latent, action, resets = windows(batch=1)
    resets[3] = True

    def gradient(latent):
        latent = latent.clone().requires_grad_()
        start = net.initial_state(1)
        output, _ = net.sequence(latent[:-1], action[1:], resets[:-1], start)
        nll = mixture_nll(net.predict(output), latent[1:]).mean(-1)
        return torch.autograd.grad(nll[3:].sum(), latent)[0]

    other = latent.clone()
    other[:3] += 5.0
    assert torch.equal(gradient(latent)[3:], gradient(other)[3:])
    assert gradient(latent)[:3].abs().sum() == 0


def test_it_learns_from_the_action_of_the_step_and_not_of_the_step_before():
    """A world in which z_{t+1} = a_t: only the right action tells the next latent."""
    torch.manual_seed(0)
    net = MDNRNN(latent=1, action=1, hidden=16, mixtures=2)
    learner = Learner(net, dynamics_loss, OptimizerConfig())
    rates = {"learning_rate": scalar(1e-2, "cpu"), "max_grad_norm": scalar(10.0, "cpu")}
    one = scalar(1.0, "cpu")
    rng = np.random.default_rng(0)

    def batch():
        led = torch.from_numpy(rng.choice([-1.0, 1.0], (9, 32, 1))).float()
        return led.clone(), led, torch.zeros(9, 32, dtype=torch.bool)

    for _ in range(150):
        rows = batch()
        learner.step(*rows, torch.zeros(9, 32), rows[2], one, one, **rates)
    latent, led, resets = batch()
    right = losses(net, latent, led, resets)[1]["nll"].item()
    wrong = losses(net, latent, led.roll(1, 0), resets)[1]["nll"].item()
    assert right < -1 and wrong > right + 2
