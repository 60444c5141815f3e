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
    bellman_target,
    critic_loss,
    entropy_goal,
    reduced,
    soft_value,
    temperature_loss,
)
from rl_lab.core import compiled
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
from rl_lab.core.errors import ConfigError
from rl_lab.core.optim import FlatOptimizer, OptimizerConfig
from rl_lab.core.returns import n_step_return
from rl_lab.core.schedule import at
from rl_lab.core.spec import Box, Discrete

CONTINUOUS, DISCRETE = "Pendulum-v1:sac_none", "CartPole-v1:sac_none"
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
    """Target critics that say these numbers whatever they see."""
    workflow.target.flat.zero_()
    workflow.target.module.values.biases[-1].data[:, 0, :] = torch.tensor(values)[:, None]


def learn(workflow, rows: dict, steps: int, **changes) -> dict:
    """Gradient steps on the same rows."""
    now = at(workflow.config, 0)
    for name, value in changes.items():
        object.__setattr__(now, name, value)
    for _ in range(steps):
        workflow.gradient_steps += 1
        metrics = workflow.learn(rows, now)
    return metrics


# -- the equations --------------------------------------------------------------------------------


def test_the_target_by_hand():
    # Q1 = 3, Q2 = 2, log π = -1, α = 0.5, r = 1, γ = 0.9: 1 + 0.9 (min(3, 2) + 0.5) = 3.25
    q = reduced(torch.tensor([[3.0, 3.0], [2.0, 2.0]]), "min")
    one, alpha = torch.ones(2), torch.tensor(0.5)
    target = bellman_target(one, 0.9, torch.tensor([False, True]), q, -one, alpha)
    assert target.tolist() == pytest.approx([3.25, 1.0])  # nothing follows a termination


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
def test_the_bootstrap_uses_the_target_critics(sac, flag, expected):
    # A uniform policy over two actions: Σ π log π = -log 2. 1 + 0.9 (2 + 0.5 log 2) = 3.111916
    workflow = sac(DISCRETE, "algorithm.gamma=0.9")
    constant_targets(workflow, 3.0, 2.0)
    workflow.actor.head.output.weight.data.zero_()
    rows = batch_of(workflow, 2, terminated=flag)  # not terminated is truncated here
    target = workflow.bootstrap(rows, torch.tensor(0.5), workflow.config)
    assert target.tolist() == pytest.approx([expected] * 2)
    assert not target.requires_grad
    scaled = at(workflow.config, 0)
    object.__setattr__(scaled, "reward_scale", 10.0)
    assert workflow.bootstrap(rows, torch.tensor(0.5), scaled)[0].item() == pytest.approx(
        expected + 9
    )


def test_the_bootstrap_looks_at_where_the_step_ended_and_nowhere_else(sac):
    workflow = sac(DISCRETE)
    rows, alpha = batch_of(workflow), torch.tensor(0.5)
    target = workflow.bootstrap(rows, alpha, workflow.config)
    before = {**rows, OBS: rows[OBS] + 1}
    assert torch.equal(workflow.bootstrap(before, alpha, workflow.config), target)
    after = {**rows, NEXT_OBS: rows[NEXT_OBS] + 1}
    assert (workflow.bootstrap(after, alpha, workflow.config) != target).all()


def test_windows_of_several_steps():
    # r = 1, 2 (a window of 3 that ended after 2), γ = 0.5, Q = 4, α = 0: 1 + 1 + 0.25 · 4 = 3
    rows = {REWARD: torch.tensor([[1.0, 2.0, 0.0]]), STEPS: torch.tensor([2])}
    reward, discount = n_step_return(rows[REWARD], rows[STEPS], 0.5)
    nothing = torch.zeros(1)
    target = bellman_target(
        reward, discount, torch.tensor([False]), torch.tensor([4.0]), nothing, torch.tensor(0.0)
    )
    assert target.item() == 3.0


class Constant(torch.nn.Module):
    """Critics that say the same numbers everywhere."""

    of_pairs = True

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.values = torch.nn.Parameter(torch.tensor(values))

    def forward(self, obs, action, *, frozen=False, masks=()):
        return self.values.unsqueeze(1).expand(-1, len(obs))


def test_the_critic_loss_by_hand():
    # Errors 3 - (1, 5) = (2, -2) and 2 - (1, 5) = (1, -3), weights (1, 0.5):
    # ½ (4 + 2) / 2 + ½ (1 + 4.5) / 2 = 1.5 + 1.375 = 2.875;  |δ| = (1.5, 2.5);  without: 4.5
    rows = torch.zeros(2, 1), torch.zeros(2, 1), torch.tensor([1.0, 5.0])
    loss, metrics = critic_loss(Constant(3.0, 2.0), *rows, torch.tensor([1.0, 0.5]))
    assert loss.item() == 2.875
    assert metrics[ERROR].tolist() == [1.5, 2.5]
    assert metrics["q_mean"] == 2.5
    assert metrics["q_spread"] == 1.0
    assert critic_loss(Constant(3.0, 2.0), *rows, None)[0].item() == 4.5


def test_the_critic_loss_looks_at_the_action_taken(sac):
    workflow = sac(DISCRETE)
    rows = batch_of(workflow)
    q = workflow.critic(rows[OBS])  # [2, B, actions]
    taken = torch.stack([q[:, row, action] for row, action in enumerate(rows[ACTION])], 1)
    loss, _ = critic_loss(workflow.critic, rows[OBS], rows[ACTION], rows[REWARD], None)
    torch.testing.assert_close(loss, 0.5 * (taken - 1).square().mean(1).sum())


@pytest.mark.parametrize(("how", "expected"), [("min", -2.5), ("mean", -3.0)])
def test_the_actor_loss_by_hand(how, expected):
    # log π = -1 everywhere, α = 0.5: 0.5 · (-1) - min(3, 2) = -2.5, or with their mean -3
    class Fixed(SquashedGaussian):
        def draw(self, noise):
            return noise, torch.full((len(noise),), -1.0)

    policy = Fixed(torch.zeros(4, 1), torch.zeros(4, 1))
    noise, alpha = torch.zeros(4, 1), torch.tensor(0.5)
    judge = Constant(3, 2.0)
    loss, metrics = actor_loss(lambda obs: policy, noise, judge, noise, alpha, how=how, twin=judge)
    assert loss.item() == expected
    assert metrics["entropy"] == 1.0


def test_the_temperature_rises_when_entropy_is_missing_and_falls_when_there_is_enough():
    # Two dimensions: the goal is -2. log π = 5 is too sure (entropy -5), log π = -5 too random.
    assert entropy_goal(SACConfig(), unit_box(2)) == -2.0
    for log_prob, sign in ((5.0, 1), (-5.0, -1), (2.0, 0)):
        temperature = Temperature(1.0)
        optimizer = FlatOptimizer(temperature, None, OptimizerConfig())
        loss, gradient = temperature_loss(temperature.log_alpha, torch.full((4,), log_prob), -2.0)
        (by_autograd,) = torch.autograd.grad(loss, [temperature.log_alpha])
        assert gradient.item() == by_autograd.item() == pytest.approx(2 - log_prob)
        step = {"learning_rate": torch.tensor(0.1), "max_grad_norm": torch.tensor(10.0)}
        optimizer.descend(gradient.reshape(1), loss.detach(), **step)
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
    critic = workflow.critic
    return actor_loss(workflow.actor, obs, critic, noise, alpha, how="min", twin=critic)


def untouched(loss: torch.Tensor, module: torch.nn.Module) -> bool:
    found = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)
    return all(each is None for each in found)


@pytest.mark.parametrize("spec", [CONTINUOUS, DISCRETE])
def test_losses_reach_their_own_network_only(sac, spec):
    workflow = sac(spec)
    rows, alpha = batch_of(workflow), workflow.alpha(workflow.config)
    assert not alpha.requires_grad
    assert not any(each.requires_grad for each in workflow.target.module.parameters())
    target = workflow.bootstrap(rows, alpha, workflow.config)
    loss, _ = critic_loss(workflow.critic, rows[OBS], rows[ACTION], target, None)
    assert torch.autograd.grad(loss, list(workflow.critic.parameters()), retain_graph=True)
    assert untouched(loss, workflow.actor)
    noise = workflow.noise(rows[OBS])
    loss, _ = loss_of_actor(workflow, rows[OBS], noise, alpha)
    graph = torch.autograd.grad(loss, list(workflow.actor.parameters()), retain_graph=True)
    assert all(each.abs().sum() > 0 for each in graph)
    for other in (workflow.critic, workflow.temperature):
        found = torch.autograd.grad(
            loss, list(other.parameters()), allow_unused=True, retain_graph=True
        )
        assert all(each is None for each in found)


@pytest.mark.parametrize("spec", [CONTINUOUS, DISCRETE])
def test_the_order_of_rows_means_nothing(sac, spec):
    workflow = sac(spec)
    rows, noise = batch_of(workflow), workflow.noise(batch_of(workflow)[OBS])
    target, order = torch.randn(16), torch.randperm(16)
    shuffled = {name: value[order] for name, value in rows.items()}
    own, other = (
        critic_loss(workflow.critic, each[OBS], each[ACTION], goal, None)[0]
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
    before = workflow.critic_optimizer.state.flat.clone()
    learn(workflow, {**rows, WEIGHT: torch.zeros(16)}, 1)
    assert torch.equal(workflow.critic_optimizer.state.flat, before)
    learn(workflow, {**rows, WEIGHT: torch.ones(16)}, 1)
    assert not torch.equal(workflow.critic_optimizer.state.flat, before)


# -- one gradient step ----------------------------------------------------------------------------


def test_the_target_follows_at_its_own_pace(sac):
    workflow = sac(CONTINUOUS, "algorithm.target_every=3", "algorithm.target_rate=0.25")
    rows, before = batch_of(workflow), workflow.target.flat.clone()
    learn(workflow, rows, 2)
    assert torch.equal(workflow.target.flat, before)
    learn(workflow, rows, 1)
    expected = before + 0.25 * (workflow.critic_optimizer.state.flat - before)
    torch.testing.assert_close(workflow.target.flat, expected)


def test_the_actor_moves_every_few_steps_and_its_metrics_are_averaged_over_those(sac):
    workflow = sac(CONTINUOUS, "algorithm.actor_every=2")
    rows, before = batch_of(workflow), workflow.actor_optimizer.state.flat.clone()
    assert "actor_loss" not in learn(workflow, rows, 1)
    assert torch.equal(workflow.actor_optimizer.state.flat, before)
    assert "actor_loss" in learn(workflow, rows, 1)
    assert not torch.equal(workflow.actor_optimizer.state.flat, before)
    three = {name: torch.stack([value] * 3) for name, value in rows.items()}
    phase = {"step": 100, "type": "offline", "buffer": None}
    metrics = workflow.update(three, phase=phase)
    assert metrics["gradient_steps"] == 5
    assert torch.isfinite(metrics["actor_loss"])
    assert float(workflow.actor_optimizer.state.updates) == 2  # the 2nd and the 4th


def test_rates_of_their_own(sac):
    words = ["learning_rate=0.5", "actor_learning_rate=0.001", "temperature_learning_rate=0.01"]
    workflow = sac(CONTINUOUS, *(f"algorithm.{word}" for word in words))
    before = {name: each.state.flat.clone() for name, each in workflow.optimizers().items()}
    learn(workflow, batch_of(workflow), 1)
    moved = {
        name: (each.state.flat - before[name]).abs().max().item()
        for name, each in workflow.optimizers().items()
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
    assert "temperature" not in workflow.optimizers()


def test_a_temperature_may_follow_a_schedule(sac):
    workflow = sac(CONTINUOUS, "algorithm.temperature={start: 0.4, end: 0.2, from: 0, to: 100}")
    alphas = [workflow.alpha(at(workflow.config, step)).item() for step in (0, 50, 100)]
    assert alphas == pytest.approx([0.4, 0.3, 0.2])
    assert "temperature" not in workflow.optimizers()


def test_nothing_pulls_the_temperature_to_one_but_its_own_loss(sac):
    """Weight decay is for weights: log α = 0 is nowhere to go back to."""
    decay = "algorithm.optimizer.weight_decay=0.1"
    workflow = sac(CONTINUOUS, "algorithm.initial_temperature=0.2", decay)
    assert workflow.critic_optimizer.config.weight_decay == 0.1
    optimizer = workflow.temperature_optimizer
    before = optimizer.state.flat.clone()
    pace = {"learning_rate": torch.tensor(0.1), "max_grad_norm": torch.tensor(1.0)}
    optimizer.descend(torch.zeros(1), torch.tensor(0.0), **pace)
    assert torch.equal(optimizer.state.flat, before)


def test_a_random_subset_of_the_critics_makes_the_target(sac):
    words = ["algorithm.critics=4", "algorithm.subset=1", "algorithm.temperature=0"]
    workflow = sac(CONTINUOUS, *words)
    constant_targets(workflow, 1.0, 2.0, 3.0, 4.0)
    rows = batch_of(workflow, 1, reward=0.0)
    now, alpha = workflow.config, torch.tensor(0.0)
    seen = {round(workflow.bootstrap(rows, alpha, now).item(), 4) for _ in range(100)}
    assert seen == {0.99, 1.98, 2.97, 3.96}


@pytest.mark.parametrize("in_numpy", [True, False])
def test_a_deterministic_action_is_the_squashed_mean(sac, in_numpy):
    workflow = sac(CONTINUOUS, "environment.normalize_obs=static")
    obs = torch.randn(5, 3)
    assert workflow.fast is not None
    workflow.fast = workflow.fast if in_numpy else None
    wanted = workflow.actor(workflow.normalizer(obs))
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
    workflow.fast = workflow.fast if in_numpy else None
    workflow.actor.head.output.bias.data.copy_(torch.tensor([0.0, math.log(3)]))
    obs = torch.zeros(20_000, 4)  # nothing to see: the bias alone decides, 1 : 3
    sampled = torch.as_tensor(workflow.act(obs, None, deterministic=False).action)
    assert sampled.float().mean().item() == pytest.approx(0.75, abs=0.01)
    greedy = torch.as_tensor(workflow.act(obs, None, deterministic=True).action)
    assert greedy.float().mean().item() == 1.0


def test_diagnostics_of_every_step(sac):
    wanted = {"alpha", "q_mean", "q_spread", "target", "critic_loss", "actor_loss", "entropy"}
    wanted |= {"temperature_loss", ERROR}
    wanted |= {f"grad_norm/{name}" for name in ("critic", "actor", "temperature")}
    continuous, discrete = sac(CONTINUOUS), sac(DISCRETE)
    assert set(learn(discrete, batch_of(discrete), 1)) == wanted
    spread = {"log_std", "log_std_min", "log_std_max"}
    assert set(learn(continuous, batch_of(continuous), 1)) == wanted | spread


# -- compiled ------------------------------------------------------------------------------------


def traced(function, *arguments):
    """Traced, not built: what it reads from outside would be refused here."""
    inputs: list[torch.Tensor] = []
    shape = compiled._flatten(arguments, inputs)
    graph, out_shape = compiled._trace(function, inputs, shape, "it")
    return compiled._unflatten(iter(graph(*inputs)), out_shape)


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        (CONTINUOUS, "algorithm.policy=gaussian"),
        (DISCRETE, "algorithm.policy=gaussian"),
        (CONTINUOUS, "algorithm.policy=flow"),
        (CONTINUOUS, "algorithm.policy=gsde"),
        (CONTINUOUS, "algorithm.critic_norm=true"),
    ],
)
def test_target_and_updates_can_be_compiled(sac, spec, word):
    workflow = sac(spec, "algorithm.critics=3", "algorithm.subset=2", word)
    rows, alpha = batch_of(workflow), torch.tensor(0.3)
    noise, one = workflow.noise(rows[OBS]), torch.tensor(1.0)
    used = {name: rows[name] for name in (REWARD, TERMINATED, NEXT_OBS)}
    critic, actor = workflow.critic_optimizer, workflow.actor_optimizer
    masks = workflow.critic.values.masks(16, 0.3, torch.Generator().manual_seed(0))
    rest = (alpha, noise, torch.tensor([0, 2]), torch.tensor(0.9), one, masks)
    expected = workflow.soft_target(used, workflow.actor, workflow.target.module, *rest)
    target = traced(workflow.soft_target, used, actor.state.flat, workflow.target.flat, *rest)
    torch.testing.assert_close(target, expected)

    pace = {"learning_rate": torch.tensor(1e-2), "max_grad_norm": torch.tensor(10.0)}
    for optimizer, eager, by_weights in (
        (critic, *[(rows[OBS], rows[ACTION], target, None, masks)] * 2),
        (
            actor,
            (rows[OBS], workflow.critic, noise, alpha, masks),
            (rows[OBS], critic.state.flat, noise, alpha, masks),
        ),
    ):
        state = optimizer.snapshot()
        new, metrics = traced(
            optimizer._functional_update,
            *(state, optimizer._full(), by_weights, *pace.values(), (), {}),
        )
        by_hand = optimizer.step(*eager, **pace)
        torch.testing.assert_close(new.flat, optimizer.state.flat, atol=1e-6, rtol=0)
        assert set(metrics) == set(by_hand)


def test_a_shared_torso_is_not_compiled(sac):
    with pytest.raises(ConfigError, match=r"network\.shared_torso cannot be compiled"):
        sac(CONTINUOUS, "network.shared_torso=true", "compute.compile=on")
