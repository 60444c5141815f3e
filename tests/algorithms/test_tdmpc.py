"""TD-MPC2: targets, losses and values by hand, ends of episodes, sizes, accounts, plans."""

import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rl_lab.algorithms.tdmpc import tdmpc
from rl_lab.algorithms.tdmpc.config import (
    TDMPC1Config,
    TDMPC2Config,
    discount,
    expects_ends,
)
from rl_lab.algorithms.tdmpc.plans import plan_returns
from rl_lab.algorithms.tdmpc.tdmpc import (
    PLAN,
    model_loss,
    policy_loss,
    policy_weights,
    step_weights,
    td_targets,
    value_range,
)
from rl_lab.algorithms.tdmpc.world_model import (
    LatentModel,
    Policy,
    SimNorm,
    mish,
    shifted_images,
    value_of,
)
from rl_lab.core.batch import ACTION_MASK, OBS, PREVIOUS_ACTION, RESET, REWARD, TERMINATED
from rl_lab.core.errors import ConfigError
from rl_lab.core.learner import Learner
from rl_lab.core.spec import Box, Dict, Discrete, EnvSpec
from rl_lab.core.symlog import symlog_bins, symlog_two_hot_loss, symlog_two_hot_mean, two_hot
from tiny_runs import tiny_config
from tiny_tdmpc import PLANNER, SIZES, play, tiny_tdmpc, weights

NUMBERS = {"bins": 0}  # outputs are the numbers themselves, for arithmetic


def box(*shape: int, kind: type = np.float32, low: float = -1, high: float = 1) -> Box:
    bounds = (np.full(shape, each, kind) for each in (low, high))
    return Box(shape, np.dtype(kind), *bounds)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small(**own) -> TDMPC2Config:
    return TDMPC2Config(**{**SIZES, **own})


SPEC = EnvSpec("small", box(3), box(2))


def networks(*, ends: bool = False, spec: EnvSpec = SPEC, **own) -> tuple[LatentModel, Policy]:
    torch.manual_seed(0)
    config = small(**own)
    return LatentModel(spec, config, ends=ends), Policy(spec.action, config)


def with_values(model: LatentModel, *numbers: float) -> LatentModel:
    """Every Q says its number, whatever it is asked."""
    with torch.no_grad():
        model.values.weights[-1].zero_()
        model.values.biases[-1].copy_(torch.tensor(numbers).view(-1, 1, 1))
    return model


def column(*values) -> torch.Tensor:
    return torch.tensor(values).unsqueeze(1)  # [T, B = 1]


def rows(length: int, batch: int, actions: int = 2) -> dict:
    reset = torch.zeros(length, batch, dtype=torch.bool)
    return {
        OBS: torch.randn(length, batch, 3, generator=stream(1)),
        PREVIOUS_ACTION: torch.rand(length, batch, actions, generator=stream(2)) * 2 - 1,
        REWARD: torch.randn(length, batch, generator=stream(3)),
        RESET: reset,
        TERMINATED: torch.zeros_like(reset),
    }


# -- rewards and values as weights of bins ---------------------------------------------------------


def test_two_hot_in_symlog_units_by_hand():
    # 101 bins from -10 to 10, .2 apart: symlog(100) = 4.615121, which lies at 73.0756.
    bins = symlog_bins(101, 10.0)
    lower, share = two_hot(torch.log1p(torch.tensor(100.0)), bins)
    assert lower.item() == 73
    assert share.item() == pytest.approx(0.0756, abs=1e-4)
    log_probs = torch.randn(101, generator=stream()).log_softmax(-1)
    expected = -(1 - share) * log_probs[73] - share * log_probs[74]
    loss = symlog_two_hot_loss(log_probs, torch.tensor(100.0), bins)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("number", [0.0, 1.0, -0.37, 16.27, -1600.0, 21_000.0])
def test_two_hot_round_trip(number):
    bins = symlog_bins(101, 10.0)
    x = torch.tensor(number)
    lower, share = two_hot(x.sign() * x.abs().log1p(), bins)
    weight = torch.zeros(101)
    weight[lower], weight[lower + 1] = 1 - share, share
    back = symlog_two_hot_mean(weight.clamp(min=1e-30).log(), bins)
    assert back.item() == pytest.approx(number, rel=2e-4, abs=1e-5)


def test_equal_bins_say_nothing_and_the_range_saturates():
    bins = symlog_bins(101, 10.0)
    assert symlog_two_hot_mean(torch.zeros(5, 101), bins).tolist() == [0.0] * 5
    for sign in (1, -1):  # the last index must not wrap around to the first
        lower, share = two_hot(torch.tensor(sign * 99.0), bins)
        assert (lower + share).item() == pytest.approx(100 if sign > 0 else 0)


def test_rewards_and_values_begin_as_zero():
    model, _ = networks()
    z, action = torch.randn(7, 8).softmax(-1), torch.rand(7, 2)
    assert model.step(z, action)[1].abs().max() == 0
    assert value_of(model, model.values, z, action, None).abs().max() == 0


# -- parts of the model ----------------------------------------------------------------------------


def test_simnorm_by_hand():
    # Two groups of two, the members two apart: (0, ln 3) and (0, 0).
    x = torch.tensor([0.0, 0.0, math.log(3), 0.0])
    assert SimNorm(2)(x).tolist() == pytest.approx([0.25, 0.5, 0.75, 0.5])


def test_latents_are_groups_that_sum_to_one():
    model, _ = networks()
    z = model.encoder(torch.randn(5, 3))
    after = model.step(z, torch.rand(5, 2))[0]
    for latent in (z, after):
        assert torch.allclose(latent.view(5, 4, 2).sum(1), torch.ones(5, 2))


def test_mish_and_its_derivative_are_those_of_torch():
    x = torch.linspace(-90, 90, 5001, dtype=torch.float64, requires_grad=True)
    ours, theirs = mish(x), torch.nn.functional.mish(x)
    assert torch.allclose(ours, theirs, atol=1e-8)
    slopes = [torch.autograd.grad(each.sum(), x)[0] for each in (ours, theirs)]
    assert torch.allclose(*slopes, atol=1e-7)


def test_a_few_values_are_those_of_all():
    model, _ = networks(critics=5)
    with torch.no_grad():
        model.values.weights[-1].normal_(generator=stream())
    pairs = torch.randn(4, 6, 10)
    every = model.values(pairs)
    assert every.shape == (5, 4, 6, 11)
    two = model.values(pairs, torch.tensor([3, 1]))
    assert torch.allclose(two, every[[3, 1]], atol=1e-6)


def test_dropout_is_in_the_first_layer_of_the_values():
    model, _ = networks()
    with torch.no_grad():
        model.values.weights[-1].normal_(generator=stream())
    pairs = torch.randn(6, 10)
    none = model.values(pairs, None, torch.ones(3, 6, 8))
    assert torch.allclose(none, model.values(pairs), atol=1e-6)
    mask = torch.ones(3, 6, 8)
    mask[1, :, :4] = 0
    some = model.values(pairs, None, mask)
    assert torch.allclose(some[[0, 2]], none[[0, 2]]) and not torch.allclose(some[1], none[1])


def test_images_are_moved_and_edges_repeated():
    image = torch.arange(9.0).view(1, 1, 3, 3)
    moved = shifted_images(image, torch.tensor([[1, -1]]))  # one row down, one column to the left
    assert moved[0, 0].tolist() == [[3, 3, 4], [6, 6, 7], [6, 6, 7]]
    two = shifted_images(image.expand(2, 1, 3, 3), torch.tensor([[0, 0], [0, 2]]))
    assert torch.equal(two[0], image[0])
    assert two[1, 0, 0].tolist() == [2, 2, 2]


def test_pictures_become_latents():
    spec = EnvSpec("picture", box(3, 64, 64, kind=np.uint8, low=0, high=255), box(2))
    config = TDMPC2Config(size="5m")
    model = LatentModel(spec, config, ends=False)
    images = torch.randint(0, 256, (2, 3, 3, 64, 64), dtype=torch.uint8)
    assert model.encoder.pixels["obs"].out_dim == 512  # the paper's: nothing before the SimNorm
    assert isinstance(model.encoder.layers, SimNorm)
    z = model.encoder(images)
    assert z.shape == (2, 3, 512)
    shifts = model.encoder.shifts((2, 3), 3, stream())
    assert shifts[OBS].min() == -3 and shifts[OBS].max() == 3
    assert not torch.allclose(model.encoder(images, shifts), z)


def test_pictures_are_learned_from(tiny):
    run = tiny_tdmpc(tiny, "tdmpc2", "PixelTrack-v0")
    before = run.workflow.model.encoder.pixels["obs"].layers[0].weight.clone()
    while run.workflow.budget.steps < 4:
        play(run, 1)
    assert not torch.equal(run.workflow.model.encoder.pixels["obs"].layers[0].weight, before)


# -- sizes -----------------------------------------------------------------------------------------

WALKER = EnvSpec("walker", box(17), box(6))
MULTITASK = 96  # numbers that say which task it is, in the paper's sizes of 19m and more


def parameters(size: str, spec: EnvSpec) -> int:
    with torch.device("meta"):
        config = TDMPC2Config(size=size)
        parts = LatentModel(spec, config, ends=False), Policy(spec.action, config)
    return sum(each.numel() for part in parts for each in part.parameters())


@pytest.mark.parametrize(("size", "count"), [("1m", 1.21e6), ("5m", 4.96e6)])
def test_sizes_have_the_parameters_of_the_authors_code(size, count):
    assert parameters(size, WALKER) == pytest.approx(count, rel=0.02)


@pytest.mark.parametrize(("size", "count"), [("19m", 19e6), ("48m", 48e6), ("317m", 317e6)])
def test_large_sizes_have_those_of_the_paper(size, count):
    """The paper's are for many tasks: every first layer also reads 96 numbers of the task."""
    sizes = TDMPC2Config(size=size).dimensions()
    first_layers = sizes.encoder_width + (3 + sizes.critics) * sizes.units
    dimensions = EnvSpec("many tasks", box(39), box(6))
    assert parameters(size, dimensions) + MULTITASK * first_layers == pytest.approx(count, rel=0.02)


# -- discount, weights of steps, targets -----------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "largest", "gamma"),
    [(500, 0.995, 0.99), (200, 0.995, 0.975), (1000, 0.995, 0.995), (5000, 0.995, 0.995),
     (1000, 0.99, 0.99), (25, 0.995, 0.95), (1, 0.995, 0.95), (None, 0.995, 0.995)],
)  # fmt: skip
def test_the_discount_follows_the_length_of_episodes(length, largest, gamma):
    assert discount(length, largest) == pytest.approx(gamma)


def test_repeated_actions_make_episodes_shorter(tiny):
    run = tiny_tdmpc(tiny, "tdmpc2", "Pendulum-v1", "environment.max_episode_steps=200")
    assert run.workflow.gamma == pytest.approx(0.975)
    repeats = "environment.wrappers=[{id: ActionRepeat, times: 4}]"
    run = tiny_tdmpc(tiny, "tdmpc2", "Pendulum-v1", "environment.max_episode_steps=400", repeats)
    assert run.workflow.gamma == pytest.approx(0.95)  # T is 100: 19/20
    run = tiny_tdmpc(tiny, "tdmpc2", "Pendulum-v1", gamma=0.9)
    assert run.workflow.gamma == 0.9


def test_steps_count_less_and_less_and_not_at_all_behind_an_end():
    reset = torch.tensor([[True, False], [False, False], [False, True], [False, False]])
    weight = step_weights(reset, torch.tensor(0.5))
    assert weight.T.tolist() == [[1, 0.5, 0.25], [1, 0, 0]]
    batch = {RESET: reset, TERMINATED: torch.zeros(4, 2, dtype=torch.bool)}
    batch[TERMINATED][1, 1] = True
    # The policy learns in every latent before the end: not in the one that terminated.
    latents = policy_weights(batch, torch.tensor(0.5))
    assert latents.T.tolist() == [[1, 0.5, 0.25, 0.125], [1, 0, 0, 0]]


def test_every_step_that_terminated_has_no_future():
    """A window of three steps, the second of which terminated: boot, no boot, masked."""
    model, policy = networks(**NUMBERS)
    with_values(model, 30.0, 10.0, 20.0)
    terminated = column(False, True, False)
    z, noise = torch.randn(3, 1, 8).softmax(-1), torch.randn(3, 1, 2)
    target = partial(td_targets, column(1.0, 2.0, 3.0), terminated, z, model, policy, noise)
    gamma = torch.tensor(0.5)
    # The least of the Qs 0 and 2 is 20: 1 + .5 · 20 = 11, 2, and 3 + .5 · 20 of the next episode.
    assert target(torch.tensor([0, 2]), gamma).flatten().tolist() == [11.0, 2.0, 13.0]
    assert target(torch.tensor([1, 2]), gamma).flatten().tolist() == [6.0, 2.0, 8.0]
    reset = column(False, False, False, True)  # the third step leads into that episode
    weight = step_weights(reset, torch.tensor(0.5))
    assert weight.flatten().tolist() == [1, 0.5, 0]


def test_a_step_that_was_only_truncated_keeps_its_future():
    """The flags of a buffer: `terminated` is False where only the clock ended."""
    model, policy = networks(**NUMBERS)
    with_values(model, 10.0, 10.0, 10.0)
    z, noise = torch.randn(2, 1, 8).softmax(-1), torch.randn(2, 1, 2)
    target = td_targets(
        column(1.0, 2.0), column(False, False), z, model, policy, noise, None, torch.tensor(0.5)
    )
    assert target.flatten().tolist() == [6.0, 7.0]


# -- losses ----------------------------------------------------------------------------------------

SCALE_ONES = {
    name: torch.tensor(each)
    for name, each in {
        "consistency": 20.0, "reward": 0.1, "value": 0.2, "termination": 3.0, "rho": 0.5
    }.items()
}  # fmt: skip


def loss_of(model, policy, batch, target=None, **own):
    length, count = batch[RESET].shape
    draws = {
        "shifts": {},
        "policy": policy.noise((length - 1, count), stream(5)),
        "pair": None,
        "dropout": None,
    }
    target = model if target is None else target
    return model_loss(
        model, batch, target, policy, draws, SCALE_ONES, torch.tensor(0.9),
        **{"target_encoder": False, **own},
    )  # fmt: skip


def test_the_joint_loss_is_the_weighted_sum_of_its_parts():
    model, policy = networks(ends=True)
    batch = rows(4, 2)
    loss, parts, aux = loss_of(model, policy, batch)
    expected = sum(
        SCALE_ONES[name] * parts[name] for name in ("consistency", "reward", "value", "termination")
    )
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    # The same by hand: roll the model out, and weigh each step by 1, .5 and .25.
    z = model.encoder(batch[OBS][0])
    consistency = reward = 0.0
    for t in range(3):
        raw = model.reward(torch.cat([z, batch[PREVIOUS_ACTION][t + 1]], -1))
        reward += 0.5**t * model.error(raw, batch[REWARD][t + 1]).mean() / 3
        z = model.step(z, batch[PREVIOUS_ACTION][t + 1])[0]
        seen = model.encoder(batch[OBS][t + 1])
        consistency += 0.5**t * (z - seen).square().mean() / 3
        assert torch.allclose(aux["latents"][t + 1], z)
    assert parts["consistency"].item() == pytest.approx(consistency.item(), rel=1e-5)
    assert parts["reward"].item() == pytest.approx(reward.item(), rel=1e-5)
    # All outputs begin as zeros: the cross-entropy of 11 equal bins is ln 11.
    assert parts["value"].item() == pytest.approx(math.log(11) * (1 + 0.5 + 0.25) / 3, rel=1e-5)


def test_the_latents_to_predict_have_no_gradient():
    model, policy = networks()
    batch = rows(2, 3)
    loss, _, _ = loss_of(model, policy, batch)
    (ours,) = torch.autograd.grad(loss, model.encoder.layers[0].linear.weight)
    z = model.encoder(batch[OBS][0])
    with torch.no_grad():
        wanted = model.encoder(batch[OBS][1])
    by_hand = 20 * (model.step(z, batch[PREVIOUS_ACTION][1])[0] - wanted).square().mean()
    (expected,) = torch.autograd.grad(by_hand, model.encoder.layers[0].linear.weight)
    assert torch.allclose(ours, expected, atol=1e-7)  # reward and value begin without a gradient


def test_the_first_version_predicts_latents_of_the_target_network():
    model, policy = networks()
    other, _ = networks()
    with torch.no_grad():
        for each in other.encoder.parameters():
            each.add_(0.3)
    plain, averaged = (
        loss_of(model, policy, rows(3, 2), other, target_encoder=each)[1] for each in (False, True)
    )
    assert plain["consistency"] != averaged["consistency"]


def test_nothing_behind_an_end_changes_what_is_learned():
    model, policy = networks(ends=True)
    with torch.no_grad():
        model.reward[-1].weight.normal_(generator=stream())
        model.values.weights[-1].normal_(generator=stream())
    batch = rows(5, 2)
    batch[TERMINATED][2, 0] = True
    batch[RESET][3, 0] = True
    batch[RESET][2, 1] = True  # row 1 was truncated
    changed = {name: each.clone() for name, each in batch.items()}
    changed[OBS][3:, 0], changed[OBS][2:, 1] = 9.0, 9.0
    changed[REWARD][3:, 0], changed[REWARD][2:, 1] = 9.0, 9.0
    changed[PREVIOUS_ACTION][3:, 0], changed[PREVIOUS_ACTION][2:, 1] = 0.9, 0.9
    changed[TERMINATED][4] = True
    found = []
    for each in (batch, changed):
        loss, parts, aux = loss_of(model, policy, each)
        gradient = torch.autograd.grad(loss, list(model.parameters()))
        found.append((loss, gradient, parts))
    assert torch.allclose(found[0][0], found[1][0], atol=1e-6)
    assert all(map(partial(torch.allclose, atol=1e-6), found[0][1], found[1][1]))
    assert torch.allclose(found[0][2]["target_value"], found[1][2]["target_value"])
    del aux


# -- the policy ------------------------------------------------------------------------------------


def test_scaled_entropy_by_hand():
    # Without weights the mean is 0 and log std -10 + .5 · 12 · (tanh(0) + 1) = -4. The noise 1, -1
    # has the log-density 2 · (-.5 · (1 + ln 2π) + 4) = 5.162123; times -2 actions: -10.324246.
    _, policy = networks()
    with torch.no_grad():
        for each in policy.parameters():
            each.zero_()
    action, entropy = policy.explain(torch.zeros(1, 8), torch.tensor([[1.0, -1.0]]))
    assert entropy.item() == pytest.approx(-10.324246, rel=1e-6)
    assert action.tolist()[0] == pytest.approx([math.tanh(math.exp(-4)), -math.tanh(math.exp(-4))])


def test_the_range_of_values_by_hand():
    values = torch.arange(101.0)  # percentiles 5 and 95
    assert value_range(values).item() == pytest.approx(90)
    assert value_range(torch.full((7,), 3.0)).item() == 1.0


def run_policy_loss(model, policy, z, *, scale=1.0, entropy=0.0, rate=0.1, **own):
    return policy_loss(
        policy, z, torch.ones(z.shape[:2]), model, policy.noise(z.shape[:2], stream(4)), None,
        torch.tensor(scale), torch.tensor(entropy), torch.tensor(rate),
        **{"pessimistic": False, "normalize": True, **own},
    )  # fmt: skip


def test_the_policy_s_loss_by_hand():
    model, policy = networks(critics=2, **NUMBERS)
    with_values(model, 30.0, 10.0)
    z = torch.randn(3, 4, 8).softmax(-1)
    # All values are equal: their range is 1, the scale moves from 2 to 1.9, and -20 / 1.9.
    loss, metrics, aux = run_policy_loss(model, policy, z, scale=2.0)
    assert aux["scale"].item() == pytest.approx(1.9)
    assert loss.item() == pytest.approx(-20 / 1.9, rel=1e-5)
    assert run_policy_loss(model, policy, z, scale=2.0, normalize=False)[0].item() == -20
    assert run_policy_loss(model, policy, z, normalize=False, pessimistic=True)[0].item() == -10
    bonus = run_policy_loss(model, policy, z, entropy=0.5, normalize=False)[0]
    assert bonus.item() == pytest.approx(-20 - 0.5 * metrics["scaled_entropy"].item(), rel=1e-5)


def test_the_policy_climbs_the_values_and_changes_nothing_else():
    model, policy = networks(critics=2, **NUMBERS)
    with torch.no_grad():
        for each in (*model.values.weights, *policy.parameters()):
            each.add_(torch.randn(each.shape, generator=stream()), alpha=0.2)
    before = weights(model)
    learner = Learner(
        policy, partial(policy_loss, pessimistic=False, normalize=True), small().policy_optimizer
    )
    z, noise = torch.randn(3, 64, 8).softmax(-1), policy.noise((3, 64), stream(4))
    values = []
    for _ in range(30):
        step = learner.step(
            z, torch.ones(3, 64), model, noise, None, torch.ones(()), torch.zeros(()),
            torch.tensor(0.01), learning_rate=torch.tensor(1e-2), max_grad_norm=torch.tensor(20.0),
        )  # fmt: skip
        values.append(step.metrics["policy_value"].item())
    assert values[-1] > values[0] + 0.05
    assert torch.equal(weights(model), before)


def test_of_discrete_actions_the_policy_learns_from_the_expectation():
    spec = EnvSpec("discrete", box(3), Discrete(2))
    model, policy = networks(spec=spec, critics=2, **NUMBERS)
    asked = []

    def values(pairs, which=None, mask=None):
        asked.append(pairs[..., -2:])
        return (1 + 2 * pairs[..., -1:]).expand(2, *pairs.shape[:-1], 1)  # 1 and 3

    model.values.forward = values
    with torch.no_grad():
        for each in policy.parameters():
            each.zero_()
        policy.layers[-1].bias.copy_(torch.tensor([0.0, math.log(3)]))  # 1/4 and 3/4
    loss, metrics, _ = run_policy_loss(model, policy, torch.zeros(2, 3, 8), normalize=False)
    assert loss.item() == pytest.approx(-(0.25 * 1 + 0.75 * 3))
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert metrics["scaled_entropy"].item() == pytest.approx(entropy, rel=1e-5)


def test_the_noise_of_the_first_version_is_cut_off_and_lets_gradients_pass():
    _, policy = networks(policy_std=0.5)
    z = torch.randn(4, 8)
    mean = policy.mode(z)
    near = policy.sample(z, torch.full((4, 2), 9.0))
    assert torch.allclose(near, (mean + 0.3).clamp(-1, 1))
    with torch.no_grad():
        policy.layers[-1].bias.fill_(2.0)  # tanh 2 = .96: above 1 with noise
    action = policy.sample(z, torch.full((4, 2), 9.0))
    assert (action == 1).all()
    (slope,) = torch.autograd.grad(action.sum(), policy.layers[-1].bias)
    assert (slope > 0).all()


# -- plans -----------------------------------------------------------------------------------------


def returns_of(model, policy, plans, gamma=0.5, pair=None):
    z = torch.randn(plans.shape[0], 8, generator=stream()).softmax(-1)
    noise = torch.zeros(1, plans.shape[1], 2)
    return plan_returns(model, policy, z, plans, noise, pair, torch.tensor(gamma))


def test_the_return_of_a_plan_by_hand():
    model, policy = networks(ends=True, **NUMBERS)
    with_values(model, 30.0, 10.0, 50.0)
    with torch.no_grad():
        for name, number in (("reward", 1.0), ("termination", -1.0)):
            getattr(model, name)[-1].weight.zero_()
            getattr(model, name)[-1].bias.fill_(number)
    plans = torch.rand(2, 5, 3, 2)
    # 1 + .5 + .25, and behind it .125 times the mean of the Qs 0 and 1
    found = returns_of(model, policy, plans, pair=torch.tensor([0, 1]))
    assert found.shape == (2, 5)
    assert torch.allclose(found, torch.tensor(1.75 + 0.125 * 20))
    with torch.no_grad():
        model.termination[-1].bias.fill_(1.0)  # the first step ends it
    assert torch.allclose(returns_of(model, policy, plans), torch.tensor(1.0))


def test_a_plan_calls_the_model_as_often_for_many_candidates_as_for_few(tiny):
    counts = []
    for environments, candidates in ((1, 8), (3, 64)):
        algorithm = tiny_tdmpc(
            tiny, "tdmpc2", "Pendulum-v1", **{**PLANNER, "planner.candidates": candidates}
        ).workflow
        calls, rows_seen = [], []
        honest = algorithm.model.dynamics.forward
        algorithm.model.dynamics.forward = lambda x, calls=calls, rows=rows_seen, f=honest: (
            calls.append(1) or rows.append(len(x)) or f(x)
        )
        algorithm.act(
            torch.zeros(environments, 3), algorithm.initial_state(environments), deterministic=True
        )
        counts.append(len(calls))
        assert max(rows_seen) == environments * (candidates - 2)
    # 2 steps of the policy's plans (of 3 actions), 3 for their returns, 3 in each of 2 iterations
    assert counts == [2 + 3 + 2 * 3] * 2


def test_environments_of_a_plan_do_not_know_of_each_other(tiny):
    algorithm = tiny_tdmpc(tiny, "tdmpc2", "Pendulum-v1").workflow
    obs = torch.randn(4, 3, generator=stream())
    together = algorithm.act(obs, algorithm.initial_state(4), deterministic=True)
    for index in range(4):
        alone = algorithm.act(
            obs[index : index + 1], algorithm.initial_state(1), deterministic=True
        )
        assert torch.allclose(alone.action[0], together.action[index], atol=1e-6)
        assert torch.allclose(alone.state[PLAN][0], together.state[PLAN][index], atol=1e-6)


def spied(algorithm, monkeypatch) -> list:
    """The first guess and the mean of every plan that is made while collecting."""
    seen, honest = [], algorithm.plan_collecting

    def plan(model, policy, obs, first, *rest):
        found = honest(model, policy, obs, first, *rest)
        seen.append((first.clone(), found.mean.clone()))
        return found

    monkeypatch.setattr(algorithm, "plan_collecting", plan)
    return seen


def test_a_plan_begins_with_the_last_one_a_step_later_and_an_episode_with_none(tiny, monkeypatch):
    run = tiny_tdmpc(
        tiny, "tdmpc2", "Pendulum-v1", "environment.num_envs=1", "environment.max_episode_steps=5",
        learning_starts=4,
    )  # fmt: skip
    seen = spied(run.workflow, monkeypatch)
    play(run, 6)
    assert len(seen) >= 12
    for index in range(1, len(seen)):
        first, before = seen[index][0], seen[index - 1][1]
        if (4 + index) % 5 == 0:  # four steps were random; episodes have five
            assert not first.any()
        else:
            assert torch.equal(first[:, :-1], before[:, 1:])
            assert not first[:, -1].any()


def test_without_warm_start_every_plan_begins_with_zeros(tiny, monkeypatch):
    run = tiny_tdmpc(tiny, "tdmpc2", "Pendulum-v1", **{"planner.warm_start": False})
    seen = spied(run.workflow, monkeypatch)
    play(run, 8)
    assert seen and not any(first.any() for first, _ in seen)


def test_an_evaluation_changes_nothing_of_the_training(tiny):
    first, second = (tiny_tdmpc(tiny, "tdmpc2", "Pendulum-v1") for _ in range(2))
    play(first, 12)
    play(second, 12)
    before = second.collector.memory[PLAN].clone()
    second.evaluate("eval", 2)
    assert torch.equal(second.collector.memory[PLAN], before)
    play(first, 4)
    play(second, 4)
    assert torch.equal(weights(first.workflow.model), weights(second.workflow.model))
    assert torch.equal(first.collector.memory[PLAN], second.collector.memory[PLAN])


def test_plans_obey_an_action_mask(tiny):
    algorithm = tiny_tdmpc(tiny, "tdmpc2", "CartPole-v1").workflow
    action = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    found = SimpleNamespace(action=action, mean=torch.full((3, 3, 2), 0.5))
    mask = torch.tensor([[1, 1], [0, 1], [1, 0]])
    taken = algorithm._taken(found, {OBS: torch.zeros(3, 4), ACTION_MASK: mask})
    assert taken.tolist() == [0, 1, 0]
    spec = EnvSpec("masked", Dict({OBS: box(3), ACTION_MASK: box(2)}), Discrete(2))
    assert list(networks(spec=spec)[0].encoder.spaces) == [OBS]


# -- accounts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("burst", [True, False])
def test_random_steps_are_learned_from_when_learning_starts(tiny, monkeypatch, burst):
    monkeypatch.setattr(tdmpc, "MOST_STEPS", 7)
    run = tiny_tdmpc(
        tiny, "tdmpc2", "Pendulum-v1", "environment.num_envs=1", "evaluation.every_steps=0",
        learning_starts=32, replay_ratio=1, train_every=4, burst=burst,
    )  # fmt: skip
    steps = []
    for _ in range(24):
        play(run, 1)
        steps.append((run.counters.env_steps, run.workflow.budget.steps))
    assert [taken for seen, taken in steps if seen < 32] == [0] * 7
    expected, allowed = [], 0
    for seen, _ in steps[7:]:
        allowed = min(allowed + 7, seen if burst else seen - 32)
        expected.append(allowed)
    assert [taken for _, taken in steps[7:]] == expected
    assert (expected[-1] == steps[-1][0]) is (burst is True)


@pytest.mark.parametrize(
    ("episodic", "environment", "expected"),
    [
        ("auto", "Pendulum-v1", False),
        ("auto", "dm_control/walker-walk", False),
        ("auto", "dm_control/lqr-lqr_2_1", True),
        ("auto", "HalfCheetah-v5", False),
        ("auto", "Hopper-v5", True),
        ("auto", "CartPole-v1", True),
        (False, "Hopper-v5", False),
        (True, "Pendulum-v1", True),
    ],
)
def test_terminations_are_learned_where_there_may_be_any(episodic, environment, expected):
    assert expects_ends(episodic, environment) is expected


def test_the_first_version_is_a_set_of_values():
    first = TDMPC1Config()
    assert (first.latent, first.units, first.planner.horizon, first.planner.candidates) == (
        *(50, 512, 5),
        512 + 25,
    )
    assert (first.simnorm, first.bins, first.norm, first.target_encoder) == (0, 0, False, True)
    config = tiny_config("Pendulum-v1:random", "algorithm.name=tdmpc")
    assert isinstance(config.algorithm, TDMPC1Config)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algorithm.size=5m", "algorithm.units=64"], "algorithm.units: is decided by size 5m"),
        (
            ["algorithm.size=own", "algorithm.latent=20"],
            "algorithm.simnorm: must divide the 20 numbers",
        ),
        (["algorithm.bins=100"], "algorithm.bins: must be odd"),
        (["algorithm.gamma=1.5"], "algorithm.gamma: must be"),
        (["algorithm.optimizer.accumulate=2"], "accumulate must be 1"),
        (["environment.normalize_obs=true"], "normalize_obs to false"),
        (["buffers.replay.capacity=8"], "planner.horizon"),
    ],
)
def test_what_cannot_work_is_refused(words, said):
    with pytest.raises(ConfigError, match=said):
        tiny_config("Pendulum-v1:random", "algorithm.name=tdmpc2", *words)
