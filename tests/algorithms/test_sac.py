"""SAC: every equation by hand, who gets a gradient from what, and small worlds it must solve."""

import math

import numpy as np
import pytest
import torch

from rl_lab.algorithms.replay import ERROR
from rl_lab.algorithms.sac import (
    SACConfig,
    Temperature,
    actor_loss,
    critic_loss,
    entropy_goal,
    reduced,
    soft_target,
    soft_value,
    temperature_loss,
)
from rl_lab.core.batch import (
    ACTION,
    ACTION_MASK,
    NEXT_OBS,
    OBS,
    REWARD,
    STEPS,
    TERMINATED,
    TRUNCATED,
    WEIGHT,
)
from rl_lab.core.distributions import Categorical, SquashedGaussian
from rl_lab.core.learner import Learner
from rl_lab.core.optim import OptimizerConfig
from rl_lab.core.schedule import at
from rl_lab.core.spec import Box, Discrete
from rl_lab.core.tree import map_leaves

CONTINUOUS, DISCRETE = "Pendulum-v1:sac_defaults", "CartPole-v1:sac_defaults"
SMALL = [
    "algorithm.learning_starts=8",
    "algorithm.batch_size=16",
    "network.encoder.hidden_dims=[]",
    "network.actor.hidden_dims=[32]",
    "network.critic.hidden_dims=[32]",
    "buffers.replay.capacity=1000",
]


@pytest.fixture
def sac(tiny):
    """`sac(spec, …)`: the workflow of a small run that has not started."""
    return lambda spec=CONTINUOUS, *words: tiny(spec, *SMALL, *words).workflow


def batch_of(workflow, count: int = 16, *, terminated: bool = False, reward: float = 1.0) -> dict:
    """Rows of one kind, with random frames and actions."""
    spec, draw = workflow.context.spec, torch.Generator().manual_seed(0)
    frames = torch.randn(2, count, *spec.observation.shape, generator=draw)
    if isinstance(spec.action, Box):
        action = torch.rand(count, spec.action.size, generator=draw) * 2 - 1
    else:
        action = torch.randint(spec.action.n, (count,), generator=draw)
    flags = torch.full((count,), terminated)
    return {
        OBS: frames[0], ACTION: action, REWARD: torch.full((count,), reward), NEXT_OBS: frames[1],
        TERMINATED: flags, TRUNCATED: ~flags,
    }  # fmt: skip


def constant_targets(workflow, *values: float) -> None:
    """Target critics that return these numbers whatever the input."""
    workflow.critic.target_flat.zero_()
    workflow.critic.target.values.biases[-1].data[:, 0, :] = torch.tensor(values)[:, None]


def learn(workflow, rows: dict, steps: int) -> dict:
    """Gradient steps on the same rows, each as an update of its own."""
    phase = {"step": 0, "type": "offline", "buffer": None}
    batch = map_leaves(lambda leaf: leaf.unsqueeze(0), rows)
    for _ in range(steps):
        metrics = workflow.update(batch, phase=phase)
    return metrics


def target_of(workflow, rows: dict, alpha: float, **options) -> torch.Tensor:
    """The target of the critics, as `update` asks for it."""
    values = {"subset": None, "masks": (), "gamma": 0.99, "reward_scale": 1.0} | options
    rest = (torch.tensor(values["gamma"]), torch.tensor(values["reward_scale"]))
    noise = workflow.noise(len(rows[REWARD]), workflow.noise_rng)
    return workflow.soft_target(
        rows,
        workflow.actor.module,
        workflow.critic.target,
        torch.tensor(alpha),
        noise,
        values["subset"],
        values["masks"],
        *rest,
    )


class Constant(torch.nn.Module):
    """Critics that say the same numbers everywhere."""

    of_pairs = True

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.values = torch.nn.Parameter(torch.tensor(values))

    def forward(self, obs, action, *, frozen=False, masks=()):
        return self.values.unsqueeze(1).expand(-1, len(obs))


# -- the equations --------------------------------------------------------------------------------


class Fixed(SquashedGaussian):
    """A policy whose samples are the noise, with log π = -1."""

    def draw(self, noise):
        return noise, torch.full((len(noise),), -1.0)


def by_hand(rows: dict, alpha: float, gamma: float, scale: float = 1.0) -> list[float]:
    """Targets of two critics that say 3 and 2, and of a policy whose log π is -1."""
    count = len(rows[REWARD])
    rows = {NEXT_OBS: torch.zeros(count, 1), **rows}
    policy = Fixed(torch.zeros(count, 1), torch.zeros(count, 1))
    numbers = (torch.tensor(gamma), torch.tensor(scale))
    noise = torch.zeros(count, 1)
    found = soft_target(
        rows, lambda obs: policy, Constant(3.0, 2.0), torch.tensor(alpha), noise, None, (), *numbers
    )
    return found.tolist()


def test_the_target_by_hand():
    # Q1 = 3, Q2 = 2, log π = -1, α = 0.5, r = 1, γ = 0.9: 1 + 0.9 (min(3, 2) + 0.5) = 3.25
    rows = {REWARD: torch.ones(2), TERMINATED: torch.tensor([False, True])}
    assert by_hand(rows, 0.5, 0.9) == pytest.approx([3.25, 1.0])  # nothing follows a termination
    assert by_hand(rows, 0.5, 0.9, scale=10.0) == pytest.approx([12.25, 10.0])


def test_the_reductions_of_the_critics():
    q = torch.tensor([[3.0], [2.0], [7.0]])
    assert reduced(q, "min").tolist() == [2.0]
    assert reduced(q, "mean").tolist() == [4.0]
    assert reduced(q, "min", torch.tensor([0, 2])).tolist() == [3.0]


def test_a_discrete_value_is_an_expectation():
    # π = (1/4, 3/4), Q = (8, 4): 2 + 3 = 5; Σ π log π = 0.25 log 0.25 + 0.75 log 0.75 = -0.562335
    policy = Categorical(torch.tensor([[1.0, 3.0]]).log())
    q, log_prob = soft_value(policy, lambda action: torch.tensor([[8.0, 4.0]]), None)
    assert q.item() == pytest.approx(5.0)
    assert log_prob.item() == pytest.approx(-0.562335, abs=1e-6)


def test_a_continuous_value_is_that_of_the_sample():
    policy = SquashedGaussian(torch.zeros(1, 1), torch.zeros(1, 1))
    q, log_prob = soft_value(policy, lambda action: 10 * action[:, 0], torch.tensor([[1.0]]))
    assert q.item() == pytest.approx(10 * math.tanh(1.0))
    assert log_prob.item() == pytest.approx(-0.551377, abs=2e-6)


@pytest.mark.parametrize(("flag", "expected"), [(False, 3.111916), (True, 1.0)])
def test_the_target_uses_the_target_critics(sac, flag, expected):
    # A uniform policy over two actions: Σ π log π = -log 2. 1 + 0.9 (2 + 0.5 log 2) = 3.111916
    workflow = sac(DISCRETE, "algorithm.gamma=0.9")
    constant_targets(workflow, 3.0, 2.0)
    workflow.policy.head.output.weight.data.zero_()
    rows = batch_of(workflow, 2, terminated=flag)  # not terminated is truncated here
    target = target_of(workflow, rows, 0.5, gamma=0.9)
    assert target.tolist() == pytest.approx([expected] * 2)
    assert not target.requires_grad


def test_an_update_learns_towards_the_target_critics_with_its_own_settings(sac):
    # The same numbers through `update`: r scaled by 10 adds 9.
    words = ["algorithm.gamma=0.9", "algorithm.reward_scale=10", "algorithm.temperature=0.5"]
    workflow = sac(DISCRETE, *words)
    constant_targets(workflow, 3.0, 2.0)
    workflow.policy.head.output.weight.data.zero_()
    metrics = learn(workflow, batch_of(workflow, 2), 1)
    assert metrics["target"].item() == pytest.approx(3.111916 + 9)


def test_the_target_reads_the_frame_in_which_the_step_ended_and_no_other(sac):
    workflow = sac(DISCRETE)
    rows = batch_of(workflow)
    target = target_of(workflow, rows, 0.5)
    before = {**rows, OBS: rows[OBS] + 1}
    assert torch.equal(target_of(workflow, before, 0.5), target)
    after = {**rows, NEXT_OBS: rows[NEXT_OBS] + 1}
    assert (target_of(workflow, after, 0.5) != target).all()


def test_windows_of_several_steps():
    # r = 1, 2 (a window of 3 that ended after 2), γ = 0.5, Q = 2, α = 0: 1 + 1 + 0.25 · 2 = 2.5
    rows = {REWARD: torch.tensor([[1.0, 2.0, 0.0]]), STEPS: torch.tensor([2])}
    assert by_hand({**rows, TERMINATED: torch.tensor([False])}, 0.0, 0.5) == [2.5]


def test_the_critic_loss_by_hand():
    # Errors 3 - (1, 5) = (2, -2) and 2 - (1, 5) = (1, -3), weights (1, 0.5):
    # ½ (4 + 2) / 2 + ½ (1 + 4.5) / 2 = 1.5 + 1.375 = 2.875;  |δ| = (1.5, 2.5);  without: 4.5
    rows = torch.zeros(2, 1), torch.zeros(2, 1), torch.tensor([1.0, 5.0])
    loss, metrics, aux = critic_loss(Constant(3.0, 2.0), *rows, torch.tensor([1.0, 0.5]))
    assert loss.item() == 2.875
    assert aux[ERROR].tolist() == [1.5, 2.5]
    assert metrics["q_mean"] == 2.5
    assert metrics["q_spread"] == 1.0
    assert critic_loss(Constant(3.0, 2.0), *rows, None)[0].item() == 4.5


def test_the_critic_loss_looks_at_the_action_taken(sac):
    workflow = sac(DISCRETE)
    rows = batch_of(workflow)
    critic = workflow.critic.module
    q = critic(rows[OBS])  # [2, B, actions]
    taken = torch.stack([q[:, row, action] for row, action in enumerate(rows[ACTION])], 1)
    loss, _, _ = critic_loss(critic, rows[OBS], rows[ACTION], rows[REWARD], None)
    torch.testing.assert_close(loss, 0.5 * (taken - 1).square().mean(1).sum())


@pytest.mark.parametrize(("how", "expected"), [("min", -2.5), ("mean", -3.0)])
def test_the_actor_loss_by_hand(how, expected):
    # log π = -1 everywhere, α = 0.5: 0.5 · (-1) - min(3, 2) = -2.5, or with their mean -3
    policy = Fixed(torch.zeros(4, 1), torch.zeros(4, 1))
    noise, alpha = torch.zeros(4, 1), torch.tensor(0.5)
    loss, metrics, aux = actor_loss(
        lambda obs: policy, noise, Constant(3, 2.0), noise, alpha, how=how
    )
    assert loss.item() == expected
    assert metrics["entropy"] == 1.0
    assert aux["log_prob"].tolist() == [-1.0] * 4


def test_the_temperature_rises_when_entropy_is_missing_and_falls_when_there_is_enough():
    # Two dimensions: the goal is -2. log π = 5 is too sure (entropy -5), log π = -5 too random.
    assert entropy_goal(SACConfig(), unit_box(2)) == -2.0
    for log_prob, sign in ((5.0, 1), (-5.0, -1), (2.0, 0)):
        temperature = Temperature(1.0)
        learner = Learner(temperature, None, OptimizerConfig())
        loss, gradient = temperature_loss(temperature.log_alpha, torch.full((4,), log_prob), -2.0)
        (by_autograd,) = torch.autograd.grad(loss, [temperature.log_alpha])
        assert gradient.item() == by_autograd.item() == pytest.approx(2 - log_prob)
        step = {"learning_rate": torch.tensor(0.1), "max_grad_norm": torch.tensor(10.0)}
        learner.descend(gradient.reshape(1), loss.detach(), **step)
        assert np.sign(round(temperature.log_alpha.item(), 6)) == sign


def test_what_auto_means_for_the_entropy():
    assert entropy_goal(SACConfig(), Discrete(4)) == pytest.approx(0.89 * math.log(4))
    assert entropy_goal(SACConfig(target_entropy=-0.5), unit_box(3)) == -0.5


def test_the_entropy_to_keep_is_a_share_of_what_masks_allow():
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 1, 0]], dtype=torch.int8)
    found = entropy_goal(SACConfig(), Discrete(4), {ACTION_MASK: mask})
    expected = 0.89 * torch.tensor([math.log(4), math.log(2), 0.0])
    torch.testing.assert_close(found, expected)
    # Of a row with a single action, whose log π is 0, nothing is missing.
    loss, gradient = temperature_loss(torch.tensor(1.0), torch.zeros(1), found[2:])
    assert loss.item() == gradient.item() == 0.0
    assert entropy_goal(SACConfig(target_entropy=0.3), Discrete(4), {ACTION_MASK: mask}) == 0.3


def unit_box(size: int) -> Box:
    ones = np.ones(size, np.float32)
    return Box((size,), np.dtype(np.float32), -ones, ones)


# -- who gets a gradient from what ----------------------------------------------------------------


def loss_of_actor(workflow, obs, noise, alpha):
    critic = workflow.critic.module
    return actor_loss(workflow.actor.module, obs, critic, noise, alpha, how="min")


def untouched(loss: torch.Tensor, module: torch.nn.Module) -> bool:
    found = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)
    return all(each is None for each in found)


@pytest.mark.parametrize("spec", [CONTINUOUS, DISCRETE])
def test_losses_reach_their_own_network_only(sac, spec):
    workflow = sac(spec)
    actor, critic = workflow.actor.module, workflow.critic.module
    rows, alpha = batch_of(workflow), workflow.alpha(workflow.config)
    assert not alpha.requires_grad
    assert not any(each.requires_grad for each in workflow.critic.target.parameters())
    target = target_of(workflow, rows, alpha.item())
    loss, _, _ = critic_loss(critic, rows[OBS], rows[ACTION], target, None)
    assert torch.autograd.grad(loss, list(critic.parameters()), retain_graph=True)
    assert untouched(loss, actor)
    noise = workflow.noise(16, workflow.noise_rng)
    loss, _, _ = loss_of_actor(workflow, rows[OBS], noise, alpha)
    graph = torch.autograd.grad(loss, list(actor.parameters()), retain_graph=True)
    assert all(each.abs().sum() > 0 for each in graph)
    for other in (critic, workflow.temperature.module):
        found = torch.autograd.grad(
            loss, list(other.parameters()), allow_unused=True, retain_graph=True
        )
        assert all(each is None for each in found)


@pytest.mark.parametrize("spec", [CONTINUOUS, DISCRETE])
def test_the_order_of_rows_means_nothing(sac, spec):
    workflow = sac(spec)
    rows, noise = batch_of(workflow), workflow.noise(16, workflow.noise_rng)
    target, order = torch.randn(16), torch.randperm(16)
    shuffled = {name: value[order] for name, value in rows.items()}
    own, other = (
        critic_loss(workflow.critic.module, each[OBS], each[ACTION], goal, None)[0]
        for each, goal in ((rows, target), (shuffled, target[order]))
    )
    torch.testing.assert_close(own, other)
    alpha = torch.tensor(0.3)
    losses = [
        loss_of_actor(workflow, each[OBS], drawn, alpha)[0]
        for each, drawn in ((rows, noise), (shuffled, None if noise is None else noise[order]))
    ]
    torch.testing.assert_close(*losses)


def test_weights_of_importance_scale_the_rows(sac):
    workflow = sac()
    rows = batch_of(workflow)
    before = workflow.critic.state.flat.clone()
    learn(workflow, {**rows, WEIGHT: torch.zeros(16)}, 1)
    assert torch.equal(workflow.critic.state.flat, before)
    learn(workflow, {**rows, WEIGHT: torch.ones(16)}, 1)
    assert not torch.equal(workflow.critic.state.flat, before)


# -- one gradient step ----------------------------------------------------------------------------


def test_the_target_follows_at_its_own_pace(sac):
    workflow = sac(CONTINUOUS, "algorithm.target_every=3", "algorithm.target_rate=0.25")
    rows, before = batch_of(workflow), workflow.critic.target_flat.clone()
    learn(workflow, rows, 2)
    assert torch.equal(workflow.critic.target_flat, before)
    learn(workflow, rows, 1)
    expected = before + 0.25 * (workflow.critic.state.flat - before)
    torch.testing.assert_close(workflow.critic.target_flat, expected)


def test_the_actor_moves_every_few_steps_and_its_metrics_are_averaged_over_those(sac):
    workflow = sac(CONTINUOUS, "algorithm.actor_every=2")
    rows, before = batch_of(workflow), workflow.actor.state.flat.clone()
    assert "actor_loss" not in learn(workflow, rows, 1)
    assert torch.equal(workflow.actor.state.flat, before)
    assert "actor_loss" in learn(workflow, rows, 1)
    assert not torch.equal(workflow.actor.state.flat, before)
    three = {name: torch.stack([value] * 3) for name, value in rows.items()}
    phase = {"step": 100, "type": "offline", "buffer": None}
    metrics = workflow.update(three, phase=phase)
    assert metrics["gradient_steps"] == 5
    assert torch.isfinite(metrics["actor_loss"])
    assert float(workflow.actor.state.updates) == 2  # the 2nd and the 4th


def test_rates_of_their_own(sac):
    words = ["learning_rate=0.5", "actor_learning_rate=0.001", "temperature_learning_rate=0.01"]
    workflow = sac(CONTINUOUS, *(f"algorithm.{word}" for word in words))
    before = {name: each.state.flat.clone() for name, each in workflow.learners().items()}
    learn(workflow, batch_of(workflow), 1)
    moved = {
        name: (each.state.flat - before[name]).abs().max().item()
        for name, each in workflow.learners().items()
    }
    # The first step of Adam is the learning rate wherever there is a gradient.
    expected = {"critic": 0.5, "actor": 0.001, "temperature": 0.01}
    assert moved == pytest.approx(expected, rel=0.02)


def test_a_learned_temperature_starts_where_it_was_told(sac):
    workflow = sac(CONTINUOUS, "algorithm.initial_temperature=0.2")
    assert workflow.alpha(workflow.config).item() == pytest.approx(0.2)
    assert learn(workflow, batch_of(workflow), 1)["alpha"].item() == pytest.approx(0.2)


def test_a_fixed_temperature_stays(sac):
    workflow = sac(CONTINUOUS, "algorithm.temperature=0.2")
    metrics = learn(workflow, batch_of(workflow), 3)
    assert metrics["alpha"].item() == pytest.approx(0.2)
    assert "temperature_loss" not in metrics
    assert "temperature" not in workflow.learners()


def test_a_temperature_may_follow_a_schedule(sac):
    workflow = sac(CONTINUOUS, "algorithm.temperature={start: 0.4, end: 0.2, from: 0, to: 100}")
    alphas = [workflow.alpha(at(workflow.config, step)).item() for step in (0, 50, 100)]
    assert alphas == pytest.approx([0.4, 0.3, 0.2])
    assert "temperature" not in workflow.learners()


def test_nothing_pulls_the_temperature_to_one_but_its_own_loss(sac):
    """Weight decay is for weights: log α = 0 is nowhere to go back to."""
    decay = "algorithm.optimizer.weight_decay=0.1"
    workflow = sac(CONTINUOUS, "algorithm.initial_temperature=0.2", decay)
    assert workflow.critic.config.weight_decay == 0.1
    learner = workflow.temperature
    before = learner.state.flat.clone()
    sizes = {"learning_rate": torch.tensor(0.1), "max_grad_norm": torch.tensor(1.0)}
    learner.descend(torch.zeros(1), torch.tensor(0.0), **sizes)
    assert torch.equal(learner.state.flat, before)


def test_a_random_subset_of_the_critics_makes_the_target(sac):
    words = ["algorithm.critics=4", "algorithm.subset=1", "algorithm.temperature=0"]
    workflow = sac(CONTINUOUS, *words)
    constant_targets(workflow, 1.0, 2.0, 3.0, 4.0)
    start = workflow.critic.snapshot()
    seen = set()
    for _ in range(60):
        seen.add(round(learn(workflow, batch_of(workflow, 1, reward=0.0), 1)["target"].item(), 4))
        workflow.critic.restore(start)
    assert seen == {0.99, 1.98, 2.97, 3.96}


@pytest.mark.parametrize("in_numpy", [True, False])
def test_a_deterministic_action_is_the_squashed_mean(sac, in_numpy):
    workflow = sac(CONTINUOUS, "environment.normalize_obs=static")
    obs = torch.randn(5, 3)
    assert workflow.numpy_actor is not None
    workflow.numpy_actor = workflow.numpy_actor if in_numpy else None
    wanted = workflow.policy(workflow.normalizer(obs))
    greedy = torch.as_tensor(workflow.act(obs, None, deterministic=True).action)
    torch.testing.assert_close(greedy, wanted.mean.tanh())
    many = obs[:1].expand(20_000, 3)
    sampled = torch.as_tensor(workflow.act(many, None, deterministic=False).action)
    assert sampled.shape == (20_000, 1)
    assert sampled.abs().max() <= 1
    free = sampled.atanh()  # normal again: the mean and the spread that were asked for
    assert free.mean().item() == pytest.approx(wanted.mean[0].item(), abs=0.03)
    assert free.std().item() == pytest.approx(wanted.log_std[0].exp().item(), rel=0.03)


@pytest.mark.parametrize("in_numpy", [True, False])
def test_discrete_actions_follow_their_chances(sac, in_numpy):
    workflow = sac(DISCRETE)
    workflow.numpy_actor = workflow.numpy_actor if in_numpy else None
    workflow.policy.head.output.bias.data.copy_(torch.tensor([0.0, math.log(3)]))
    obs = torch.zeros(20_000, 4)  # nothing to see: the bias alone decides, 1 : 3
    sampled = torch.as_tensor(workflow.act(obs, None, deterministic=False).action)
    assert sampled.float().mean().item() == pytest.approx(0.75, abs=0.01)
    greedy = torch.as_tensor(workflow.act(obs, None, deterministic=True).action)
    assert greedy.float().mean().item() == 1.0


def test_diagnostics_of_every_step(sac):
    wanted = {"alpha", "q_mean", "q_spread", "target", "critic_loss", "actor_loss", "entropy"}
    wanted |= {"temperature_loss", "gradient_steps"}
    wanted |= {f"grad_norm/{name}" for name in ("critic", "actor", "temperature")}
    continuous, discrete = sac(CONTINUOUS), sac(DISCRETE)
    assert set(learn(discrete, batch_of(discrete), 1)) == wanted
    spread = {"log_std", "log_std_min", "log_std_max"}
    assert set(learn(continuous, batch_of(continuous), 1)) == wanted | spread
