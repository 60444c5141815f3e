"""Soft Q-learning: values and SVGD by hand, what each update may change, what is refused."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from rl_lab.algorithms import sql
from rl_lab.algorithms.sql import SQLConfig, described, gaussian_kernel, soft_target, soft_value
from rl_lab.api import configure
from rl_lab.core.batch import ACTION, NEXT_OBS, OBS, REWARD, TERMINATED, TRUNCATED, WEIGHT
from rl_lab.core.errors import NonFiniteError, UserError
from rl_lab.core.picture import Contour, Lines, Points
from rl_lab.core.schedule import at
from rl_lab.core.state import fingerprint

NETWORK = [f"network.{head}.hidden_dims=[16]" for head in ("actor", "critic")]
SMALL = [*NETWORK, "network.encoder.hidden_dims=[]", "algorithm.learning_starts=0"]


@pytest.fixture
def workflow(tiny):
    """`workflow(*overrides)`: a small soft Q-learning on the point with four goals."""
    return lambda *words: tiny("MultiGoal-v0:sql", *SMALL, *words).workflow


def rows(count: int = 8, **more) -> dict:
    random = torch.Generator().manual_seed(0)
    return {
        OBS: torch.randn(count, 2, generator=random),
        ACTION: torch.rand(count, 2, generator=random) * 2 - 1,
        REWARD: torch.randn(count, generator=random),
        TERMINATED: torch.zeros(count, dtype=torch.bool),
        TRUNCATED: torch.zeros(count, dtype=torch.bool),
        NEXT_OBS: torch.randn(count, 2, generator=random),
        **more,
    }


PHASE = {"name": "train", "type": "online", "step": 0, "buffer": None}


def learn(made, batch: dict) -> dict:
    """One gradient step on these rows."""
    return made.update({name: each.unsqueeze(0) for name, each in batch.items()}, phase=PHASE)


def target_of(made, batch: dict) -> torch.Tensor:
    now = at(made.config, 0)
    return made._target(batch, made._next_values(batch, now), now)


# ------------------------------------------------------------------------------- values


@pytest.mark.parametrize("dim", [1, 2, 6])
def test_the_value_of_a_constant_q_is_it_plus_the_entropy_of_uniform_actions(dim):
    assert soft_value(torch.full((3, 16), 2.5), dim).tolist() == pytest.approx(
        [2.5 + dim * math.log(2)] * 3
    )


@pytest.mark.parametrize("width", [0.1, 0.3, 1.0])
def test_the_value_is_the_log_of_an_integral(width):
    # ∫ exp(-a² / 2w²) da over [-1, 1] = w √(2π) erf(1 / w√2); in two dimensions its square.
    closed = math.log(width * math.sqrt(2 * math.pi) * math.erf(1 / (width * math.sqrt(2))))
    line = (torch.arange(200, dtype=torch.float64) + 0.5) / 100 - 1  # midpoints: no luck needed
    q = -line.square() / (2 * width**2)
    assert soft_value(q, 1).item() == pytest.approx(closed, abs=1e-4)
    plane = (q[:, None] + q[None, :]).flatten()
    assert soft_value(plane, 2).item() == pytest.approx(2 * closed, abs=2e-4)
    lucky = torch.rand(100_000, generator=torch.Generator().manual_seed(0)) * 2 - 1
    assert soft_value(-lucky.square() / (2 * width**2), 1).item() == pytest.approx(closed, abs=0.02)


def test_the_policy_behind_q_is_described():
    # Equal values: uniform on a square of side 2, entropy log 4, no spread.
    even = described(torch.full((3, 16), 2.5), 2)
    assert even["entropy"].item() == pytest.approx(math.log(4))
    assert even["q_spread"].item() == 0
    # Q = ±x on the two halves of a line: shares p = 1 / (1 + e^-2x) and 1 - p, each on length 1,
    # so the entropy is that of a coin.
    share = 1 / (1 + math.exp(-2.0))
    coin = -share * math.log(share) - (1 - share) * math.log(1 - share)
    uneven = described(torch.tensor([[1.0, -1.0]]), 1)
    assert uneven["entropy"].item() == pytest.approx(coin)
    assert uneven["q_spread"].item() == 2


def test_nothing_comes_after_a_termination():
    # 0.1 · 10 = 1; with a future of 4 at gamma 0.5: 1 + 2. A bad number there must not leak.
    target = soft_target(
        torch.tensor([10.0, 10.0, 10.0]),
        torch.tensor([False, True, True]),
        torch.tensor([4.0, 4.0, math.nan]),
        reward_scale=0.1,
        gamma=0.5,
    )
    assert target.tolist() == [3.0, 1.0, 1.0]


def test_a_target_sees_terminations_and_no_truncations(workflow):
    made = workflow("algorithm.reward_scale=2")
    ends = torch.tensor([True] + [False] * 7)
    cut = rows(**{TRUNCATED: torch.tensor([False, True] + [False] * 6)})
    ended = target_of(made, rows(**{TERMINATED: ends}))
    assert ended[0].item() == pytest.approx(2 * rows()[REWARD][0].item())
    assert target_of(made, cut)[1].item() != pytest.approx(2 * rows()[REWARD][1].item())


def test_a_target_looks_at_where_the_step_ended(workflow):
    made = workflow()
    start = made.rng.get_state()

    def target(**more):
        made.rng.set_state(start)
        return target_of(made, rows(**more))

    assert torch.equal(target(**{OBS: torch.zeros(8, 2)}), target())
    assert (target(**{NEXT_OBS: torch.zeros(8, 2)}) != target()).all()
    before = target()
    made.critic.state.flat.add_(1.0)  # Q itself is not asked, its target is
    assert torch.equal(target(), before)
    made.critic.target_flat.add_(1.0)
    assert (target() != before).all()


def test_the_value_is_of_actions_all_over_the_space_and_of_others_in_each_row(workflow):
    made, seen = workflow("algorithm.value_particles=50"), []
    made.critic.target = lambda obs, action: seen.append(action) or action[..., :1]
    target_of(made, rows())
    (uniform,) = seen
    assert uniform.shape == (8, 50, 2) and len(uniform.flatten().unique()) > 790
    assert -1 <= uniform.min() < -0.97 and 0.97 < uniform.max() <= 1
    assert abs(uniform.mean().item()) < 0.1  # a deviation of 0.58 / sqrt(800) = 0.02


def test_the_bellman_error_is_halved_squared_and_weighted():
    class Fixed(nn.Module):
        def forward(self, obs, action):
            return action

    q, target = torch.tensor([[1.0], [2.0]]), torch.tensor([3.0, 1.0])
    loss, _, aux = sql.critic_loss(Fixed(), None, q, target, torch.tensor([1.0, 0.5]))
    # Errors 2 and -1: ½ · mean(4, 0.5) = 1.125
    assert loss.item() == 1.125
    assert aux["error"].tolist() == [2.0, 1.0]


# --------------------------------------------------------------------------------- SVGD


def test_the_kernel_and_its_bandwidth_by_hand():
    # x = 0, 2; y = 0, 1. Squared distances, row by row: 0, 1; 4, 1. Their median is 1, and
    # h = 1 / log 2. κ = exp(-d² log 2) = 2^(-d²); ∇_x κ = -2 (x - y) log 2 · κ.
    x, y = torch.tensor([[0.0], [2.0]]), torch.tensor([[0.0], [1.0]])
    kernel, gradient = gaussian_kernel(x, y)
    assert kernel.flatten().tolist() == pytest.approx([1, 0.5, 2**-4, 0.5])
    log2 = math.log(2)
    expected = [0, 2 * log2 * 0.5, -4 * log2 * 2**-4, -2 * log2 * 0.5]
    assert gradient.flatten().tolist() == pytest.approx(expected)


def test_the_median_is_each_states_own_and_has_a_floor():
    # Four distances: the lower one of the two in the middle, as in the authors' code.
    x = torch.tensor([[[0.0], [3.0]], [[0.0], [0.0]]])
    y = torch.tensor([[[1.0], [2.0]], [[0.0], [0.0]]])  # squares: 1 4 4 1, and all 0
    kernel, gradient = gaussian_kernel(x, y)
    assert kernel[0, 0, 0].item() == pytest.approx(math.exp(-math.log(2)))  # h = 1 / log 2
    assert kernel[1].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert torch.isfinite(gradient).all()
    near = gaussian_kernel(torch.tensor([[0.0], [0.0]]), torch.tensor([[0.001]]))[0]
    assert near[0, 0].item() == pytest.approx(math.exp(-1e-6 / 1e-3))


def test_the_kernels_gradient_is_the_derivative_by_the_fixed_particle():
    random = torch.Generator().manual_seed(0)
    x = torch.randn(5, 2, generator=random, dtype=torch.float64)
    y = torch.randn(3, 2, generator=random, dtype=torch.float64)
    bandwidth = (x[:, None] - y[None]).square().sum(-1).median() / math.log(5)
    x.requires_grad_()
    plain = (-(x[:, None] - y[None]).square().sum(-1) / bandwidth).exp()
    for i in range(3):
        expected = torch.autograd.grad(plain[:, i].sum(), x, retain_graph=True)[0]
        assert torch.allclose(gaussian_kernel(x.detach(), y)[1][:, i], expected)


def test_the_stein_direction_of_two_particles_by_hand():
    # Fixed 0 and 2 with scores 1 and -3, moved 1: squares 1 and 1, h = 1 / log 2, κ = ½ both.
    # Pull: ½ · 1 and ½ · (-3), mean -½. Push: ∇_x κ = ∓2(x - y) log 2 · ½ = +log 2 and -log 2.
    fixed, score = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [-3.0]])
    middle = sql.stein_direction(fixed, score, torch.tensor([[1.0]]))
    assert middle.item() == pytest.approx(-0.5)
    # Moved 0.5: squares ¼ and 9/4, the lower median ¼, h = ¼ / log 2, κ = 2^-1 and 2^-9.
    # Push: -2 (0 - ½) 4 log 2 · ½ = 2 log 2, and -2 · (3/2) · 4 log 2 · 2^-9 = -12 log 2 · 2^-9.
    left = sql.stein_direction(fixed, score, torch.tensor([[0.5]]))
    pull = (0.5 * 1 + 2**-9 * -3) / 2
    push = (2 * math.log(2) - 12 * math.log(2) * 2**-9) / 2
    assert left.item() == pytest.approx(pull + push)


def test_near_particles_separate_where_nothing_pulls():
    fixed = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    moved = torch.tensor([[0.01, 0.0]])
    direction = sql.stein_direction(fixed, torch.zeros(2, 2), moved)
    assert direction[0, 0] > 0 and direction[0, 1] == 0


def test_particles_find_both_hills_of_a_mixture_with_their_spread():
    # ½ N(-2, ½²) + ½ N(2, ½²): mean 0, variance 4 + ¼.
    def score(x):
        logs = torch.cat([-((x - centre) ** 2) / 0.5 for centre in (-2.0, 2.0)], -1)
        pulls = torch.cat([-(x - centre) / 0.25 for centre in (-2.0, 2.0)], -1)
        return (logs.softmax(-1) * pulls).sum(-1, keepdim=True)

    # Evenly spread: SVGD itself hardly carries particles over the valley between the hills.
    particles = torch.linspace(-4, 4, 100).unsqueeze(-1)
    for _ in range(1000):
        particles = particles + 0.1 * sql.stein_direction(particles, score(particles), particles)
    assert particles.mean().item() == pytest.approx(0.0, abs=0.3)
    assert particles.var().item() == pytest.approx(4.25, abs=0.6)
    for side in (particles[particles < 0], particles[particles > 0]):
        assert side.abs().mean().item() == pytest.approx(2.0, abs=0.1)
        assert side.std().item() == pytest.approx(0.5, abs=0.12)


def test_the_score_is_of_q_and_of_the_squashed_density():
    class Slope(nn.Module):
        def forward(self, obs, action):
            return (action * torch.tensor([3.0, -1.0])).sum(-1, keepdim=True)

    action = torch.tensor([[[0.5, 0.0], [-0.5, 0.8]]])
    # d/da log(1 - a² + 1e-6) = -2a / (1 - a² + 1e-6): -4/3, 0, 4/3, -1.6 / 0.36
    score = sql.score_of(Slope(), None, action)
    expected = [[3 - 4 / 3, -1], [3 + 4 / 3, -1 - 1.6 / 0.36]]
    assert score[0].tolist() == [pytest.approx(each, rel=1e-4) for each in expected]


def test_the_samplers_gradient_is_the_direction_through_its_own_derivative(workflow):
    made = workflow()
    obs, noise = rows(4)[OBS], torch.randn(4, 3, 2)
    direction = torch.randn(4, 3, 2)
    sampler = made.sampler.module
    parameters = list(sampler.parameters())
    loss, _, _ = sql.sampler_loss(sampler, obs, noise, direction)
    ours = torch.autograd.grad(loss, parameters)
    action = sampler(obs, noise).tanh()
    pushed = torch.autograd.grad(action, parameters, grad_outputs=direction)
    for mine, theirs in zip(ours, pushed, strict=True):
        assert torch.allclose(mine, -theirs / 12, atol=1e-6)  # the mean over 4 · 3 particles


# ----------------------------------------------------------------------- what changes what


def flat(module) -> torch.Tensor:
    return torch.cat([each.detach().reshape(-1) for each in module.parameters()]).clone()


def test_the_samplers_step_leaves_q_alone_and_qs_step_the_sampler(workflow):
    made = workflow()
    now, batch = at(made.config, 0), rows()
    limits = {"learning_rate": torch.tensor(0.1), "max_grad_norm": torch.tensor(10.0)}
    critic, sampler = flat(made.critic.module), flat(made.sampler.module)
    noise, direction = made._direction(batch[OBS], 8, now)
    assert not direction.requires_grad
    made.sampler.step(batch[OBS], noise, direction, **limits)
    assert torch.equal(flat(made.critic.module), critic)
    assert all(each.grad is None for each in made.critic.module.parameters())
    moved = flat(made.sampler.module)
    assert not torch.equal(moved, sampler)
    target = target_of(made, batch)
    assert not target.requires_grad
    made.critic.step(batch[OBS], batch[ACTION], target, torch.ones(8), **limits)
    assert torch.equal(flat(made.sampler.module), moved)
    assert not torch.equal(flat(made.critic.module), critic)


def test_particles_are_shared_out_between_those_that_move_and_those_that_pull(workflow):
    made = workflow("algorithm.kernel_particles=10", "algorithm.kernel_update_ratio=0.3")
    obs, start = rows()[OBS], made.rng.get_state()
    noise, direction = made._direction(obs, 8, at(made.config, 0))
    assert noise.shape == direction.shape == (8, 3, 2)
    made.rng.set_state(start)
    action = made.sampler.module(obs, torch.randn(8, 10, 2, generator=made.rng)).tanh()
    assert torch.equal(
        made.sampler.module(obs, noise).tanh(), action[:, :3]
    )  # what moves, by its noise
    score = sql.score_of(made.critic.module, obs, action[:, 3:])
    torch.testing.assert_close(direction, sql.stein_direction(action[:, 3:], score, action[:, :3]))
    few = SQLConfig(kernel_particles=3, kernel_update_ratio=0.9)
    assert few.moved_particles() == 1  # a bandwidth needs two that stay
    assert SQLConfig(kernel_particles=9, kernel_update_ratio=0.05).moved_particles() == 1


def test_the_target_is_copied_when_it_is_old_enough(workflow):
    made = workflow("algorithm.target_every=3")
    start = flat(made.critic.target)
    assert torch.equal(start, flat(made.critic.module))
    for _ in range(2):
        learn(made, rows())
    assert torch.equal(flat(made.critic.target), start)
    learn(made, rows())
    assert torch.equal(flat(made.critic.target), flat(made.critic.module))
    copied = flat(made.critic.module)
    assert not torch.equal(copied, start)
    learn(made, rows())
    assert torch.equal(flat(made.critic.target), copied)  # its age began anew


def test_a_target_that_follows_moves_by_its_rate(workflow):
    made = workflow("algorithm.target_every=1", "algorithm.target_rate=0.25")
    start = flat(made.critic.module)
    learn(made, rows())
    expected = start + 0.25 * (flat(made.critic.module) - start)
    assert torch.allclose(flat(made.critic.target), expected)


def test_a_bad_number_leaves_everything_as_it_was(workflow):
    made = workflow("algorithm.target_every=5")
    batch = {name: torch.stack([each] * 3) for name, each in rows().items()}
    made.update(batch, phase=PHASE)
    before = fingerprint(made.get_state())
    batch[REWARD][2, 0] = math.nan  # the second of these would have moved the target
    with pytest.raises(NonFiniteError, match="SQL update of critic"):
        made.update(batch, phase=PHASE)
    assert fingerprint(made.get_state()) == before
    assert made.budget.steps == 3


def test_weights_of_a_prioritized_buffer_count(workflow):
    one, other = workflow(), workflow()
    metrics = learn(one, rows())
    none = learn(other, rows(**{WEIGHT: torch.zeros(8)}))
    assert none["critic_loss"].item() == 0 < metrics["critic_loss"].item()


def test_a_state_of_an_earlier_version_is_loaded(workflow):
    first, second = workflow(), workflow("experiment.seed=7")
    for _ in range(3):
        learn(first, rows())
    first.budget.seen, first.budget.parts = 29, 500_000
    state = dict(first.get_state())
    critic, sampler, budget = (state.pop(name) for name in ("critic", "sampler", "budget"))
    values = {**state["values"], "gradient_steps": budget.pop("steps")}
    second.set_state(
        {
            "critic": critic["module"],
            "target": critic["target"],
            "critic_optimizer": critic["optimizer"],
            "sampler": sampler["module"],
            "sampler_optimizer": sampler["optimizer"],
            "earned": budget,
            "values": {**values, "target_age": torch.tensor(3)},
        }
    )
    assert fingerprint(second.get_state()) == fingerprint(first.get_state())
    assert second.budget.steps == 3


def test_it_acts_by_samples_or_by_the_best_of_a_fixed_set(workflow):
    made = workflow("algorithm.kernel_particles=5")
    obs = rows(6)[OBS]
    action = made.act(obs, None, deterministic=True).action
    assert torch.equal(action, made.act(obs, None, deterministic=True).action)
    choices = made.sampler.module(obs, made.greedy_noise.expand(6, -1, -1)).tanh()
    best = made.critic.module(obs, choices).squeeze(-1).max(-1).values
    assert torch.allclose(made.critic.module(obs, action).squeeze(-1), best)
    first, second = (made.act(obs, None, deterministic=False).action for _ in range(2))
    assert first.shape == (6, 2) and not torch.equal(first, second)
    assert (first.abs() <= 1).all()


# ------------------------------------------------------------------- pictures and refusals


def test_pictures_show_q_with_samples_and_values_with_paths(workflow):
    made = workflow("algorithm.picture_states=[[0.0, 0.0], [2.5, 2.5]]")
    paths = [np.zeros((4, 2), np.float32), np.ones((31, 2), np.float32)]
    drawn = made.pictures(paths)
    assert set(drawn) == {"actions_0", "actions_1", "paths"}
    contour, points = drawn["actions_1"].layers
    assert isinstance(contour, Contour) and isinstance(points, Points)
    assert points.places.shape == (100, 2) and np.abs(points.places).max() <= 1
    # z [Y, X]: row by row along x.
    place = torch.tensor([[contour.x[7], contour.y[3]]])
    q = made.critic.module(torch.tensor([[2.5, 2.5]]), place).item()
    assert contour.z[3, 7] == pytest.approx(q, rel=1e-4)
    value, lines = drawn["paths"].layers
    assert isinstance(lines, Lines) and list(lines.paths) == paths
    assert value.x.min() == -7 and value.y.max() == 7
    assert drawn["paths"].x_limits == (-7.0, 7.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"value_particles": 0}, "value_particles must be at least 1, got 0"),
        ({"kernel_particles": 2}, "kernel_particles must be at least 3, got 2"),
        ({"target_every": 0}, "target_every must be at least 1, got 0"),
        ({"reward_scale": 0.0}, "reward_scale must be positive, got 0"),
        ({"kernel_update_ratio": 1.0}, "kernel_update_ratio must be below 1, got 1"),
        ({"target_rate": 1.5}, r"target_rate must be in \[0, 1\], got 1.5"),
        ({"n_step": 3}, "n_step must be 1 in soft Q-learning, got 3"),
    ],
)
def test_values_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        SQLConfig(**settings)


SCALES = {"Swimmer": 30, "Hopper": 30, "HalfCheetah": 30, "Walker2d": 10, "Ant": 300}
SCALES["Humanoid"] = 100


@pytest.mark.parametrize("task", SCALES)
def test_the_settings_of_softlearning(task):
    config = configure(f"{task}-v5:sql_softlearning", [])[0]
    own = config.algorithm
    assert (own.reward_scale, own.batch_size) == (SCALES[task], 256)
    assert (own.target_every, own.target_rate, own.learning_starts) == (1, 0.005, 10_000)
    assert config.network.actor.hidden_dims == config.network.critic.hidden_dims == [256, 256]
    like = configure(f"{task}-v5:sac_softlearning", [])[0]
    assert config.training == like.training and config.evaluation == like.evaluation
    assert config.environment == like.environment


def test_what_it_cannot_do_is_said_before_the_run(tiny):
    with pytest.raises(UserError, match="sql needs a flat Box of actions, 'CartPole-v1' has none"):
        tiny("CartPole-v1:sql", *SMALL)
    with pytest.raises(UserError, match=r"environment\.normalize_obs must be false"):
        tiny("MultiGoal-v0:sql", *SMALL, "environment.normalize_obs=true")
    with pytest.raises(UserError, match=r"picture_states must be observations of shape \(2,\)"):
        tiny("MultiGoal-v0:sql", *SMALL, "algorithm.picture_states=[[1.0]]")
