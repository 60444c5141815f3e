"""TD3: target and losses by hand, what is delayed, who gets a gradient, a world with an answer."""

import pytest
import torch

from rl_lab.algorithms.td3 import TD3Config, actor_loss, smoothed_target, twin_loss
from rl_lab.core import compiled
from rl_lab.core.batch import (
    ACTION,
    INDEX,
    NEXT_OBS,
    OBS,
    REWARD,
    STEPS,
    TERMINATED,
    TRUNCATED,
    WEIGHT,
)
from rl_lab.core.errors import NonFiniteError, UserError
from rl_lab.core.optim import bias_corrections
from rl_lab.core.state import fingerprint

PHASE = {"name": "train", "type": "offline", "step": 0, "buffer": None}
SMALL = [
    "algorithm.learning_starts=8",
    "algorithm.batch_size=16",
    "network.encoder.hidden_dims=[]",
    "network.actor.hidden_dims=[16]",
    "network.critic.hidden_dims=[16]",
    "buffers.replay.capacity=1000",
]


@pytest.fixture
def td3(tiny):
    """`td3(*overrides)`: a small TD3 on Pendulum that has not started."""
    return lambda *words: tiny("Pendulum-v1:td3_defaults", *SMALL, *words).workflow


def rows_of(count: int = 16, *, terminated: bool = False) -> dict:
    draw = torch.Generator().manual_seed(0)
    ended = torch.full((count,), terminated)
    return {
        OBS: torch.randn(count, 3, generator=draw),
        ACTION: torch.rand(count, 1, generator=draw) * 2 - 1,
        REWARD: torch.randn(count, generator=draw),
        NEXT_OBS: torch.randn(count, 3, generator=draw),
        TERMINATED: ended,
        TRUNCATED: ~ended,
    }


def learn(algorithm, rows: dict, steps: int = 1) -> dict:
    for _ in range(steps):
        metrics = algorithm.update(
            {name: each.unsqueeze(0) for name, each in rows.items()}, phase=PHASE
        )
    return metrics


class Echo(torch.nn.Module):
    """Two critics: 10 times the action, and 4."""

    of_pairs = True

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(10.0))

    def forward(self, obs, action, *, frozen=False, masks=()):
        factor = self.factor.detach() if frozen else self.factor
        return torch.stack([factor * action[:, 0], torch.full((len(action),), 4.0)])


def always(value: float):
    return lambda obs: torch.full((len(obs), 1), value)


def target_of(noise: list[float], *, action: float, **changes) -> list[float]:
    rows = {
        NEXT_OBS: torch.zeros(len(noise), 1),
        REWARD: torch.ones(len(noise)),
        TERMINATED: torch.zeros(len(noise), dtype=torch.bool),
        **changes,
    }
    drawn, clip, gamma = torch.tensor(noise)[:, None], torch.tensor(0.5), torch.tensor(0.9)
    return smoothed_target(rows, always(action), Echo(), drawn, clip, gamma).tolist()


# -- by hand --------------------------------------------------------------------------------------


def test_the_target_takes_the_smaller_critic_of_a_smoothed_action():
    # π' = 0.1. Noise 0.2: a = 0.3, Q = (3, 4), 1 + 0.9 · 3 = 3.7. Noise 2 is clipped to 0.5:
    # a = 0.6, Q = (6, 4), 1 + 0.9 · 4 = 4.6. Noise -3 to -0.5: a = -0.4, 1 - 0.9 · 4 = -2.6
    assert target_of([0.2, 2.0, -3.0], action=0.1) == pytest.approx([3.7, 4.6, -2.6])


def test_a_smoothed_action_stays_within_its_bounds():
    # π' = -0.9, noise -0.5: -1.4 is clipped to -1: 1 - 0.9 · 10 = -8
    assert target_of([-0.5], action=-0.9) == pytest.approx([-8.0])


def test_nothing_follows_a_termination():
    ended = torch.tensor([True, False])
    assert target_of([0.2, 0.2], action=0.1, **{TERMINATED: ended}) == pytest.approx([1.0, 3.7])


def test_windows_of_several_steps():
    # r = 1, 2 in a window that ended after 2 steps: 1 + 0.9 · 2 + 0.81 · 3 = 5.23
    window = {REWARD: torch.tensor([[1.0, 2.0, 0.0]]), STEPS: torch.tensor([2])}
    assert target_of([0.2], action=0.1, **window) == pytest.approx([5.23])


def test_the_loss_of_the_critics_by_hand():
    # Target 3.7. Q(a = 0.5) = (5, 4): ½ (1.3² + 0.3²) = 0.89; |δ| = (1.3 + 0.3) / 2 = 0.8
    rows = {
        OBS: torch.zeros(1, 1),
        ACTION: torch.tensor([[0.5]]),
        NEXT_OBS: torch.zeros(1, 1),
        REWARD: torch.ones(1),
        TERMINATED: torch.tensor([False]),
    }
    rest = always(0.1), Echo(), torch.tensor([[0.2]]), torch.tensor(0.5), torch.tensor(0.9)
    loss, metrics, aux = twin_loss(Echo(), rows, *rest)
    assert loss.item() == pytest.approx(0.89)
    assert aux["error"].tolist() == pytest.approx([0.8])
    assert metrics["target"].item() == pytest.approx(3.7)
    weighted, _, _ = twin_loss(Echo(), {**rows, WEIGHT: torch.tensor([0.5])}, *rest)
    assert weighted.item() == pytest.approx(0.445)


def test_the_actor_climbs_the_first_critic_alone():
    class Constant(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.action = torch.nn.Parameter(torch.tensor([[0.3]]))

        def forward(self, obs):
            return self.action.expand(len(obs), 1)

    actor, critic = Constant(), Echo()
    loss, _, _ = actor_loss(actor, torch.zeros(4, 1), critic)
    assert loss.item() == pytest.approx(-3.0)
    own, others = torch.autograd.grad(loss, [actor.action, critic.factor], allow_unused=True)
    assert own.item() == pytest.approx(-10.0)
    assert others is None


# -- an update ------------------------------------------------------------------------------------


def test_actor_and_targets_wait_for_the_critics(td3):
    algorithm = td3("algorithm.actor_every=3", "algorithm.target_rate=0.25")
    critic, actor = algorithm.critic, algorithm.actor
    flats = (critic.state.flat, critic.target_flat, actor.state.flat, actor.target_flat)
    start = [each.clone() for each in flats]
    metrics = learn(algorithm, rows_of(), 2)
    assert "actor_loss" not in metrics
    assert [torch.equal(*pair) for pair in zip(start, flats, strict=True)] == [False] + [True] * 3
    assert "actor_loss" in learn(algorithm, rows_of(), 1)
    for learner, before in ((critic, start[1]), (actor, start[3])):
        expected = before + 0.25 * (learner.state.flat - before)
        torch.testing.assert_close(learner.target_flat, expected)
    assert not torch.equal(actor.state.flat, start[2])


def test_the_target_networks_make_the_target_with_noise_of_the_configured_size(td3):
    quiet = td3("algorithm.target_noise=0", "algorithm.gamma=0.9")
    rows = rows_of()
    gamma, clip = torch.tensor(0.9), torch.tensor(0.5)
    targets = quiet.actor.target, quiet.critic.target
    expected = smoothed_target(rows, *targets, torch.zeros(16, 1), clip, gamma)
    quiet.critic.module.values.biases[-1].data += 7  # the networks themselves are not asked
    quiet.actor.module.output.bias.data += 7
    assert learn(quiet, rows)["target"].item() == pytest.approx(expected.mean().item(), abs=1e-5)
    drawn = td3()._noise(20_000, 0.2, torch.Generator().manual_seed(0))
    assert drawn.std().item() == pytest.approx(0.2, rel=0.02)


def test_it_explores_by_noise_and_evaluates_without(td3):
    algorithm = td3("algorithm.exploration_noise={start: 0.3, end: 0.1, from: 0, to: 100}")
    obs = torch.ones(20_000, 3)
    greedy = algorithm.act(obs, None, deterministic=True).action
    assert torch.equal(greedy, algorithm.actor.module(obs))
    tried = algorithm.act(obs, None, deterministic=False).action
    assert (tried - greedy).std().item() == pytest.approx(0.3, rel=0.02)
    algorithm.collect_step(50, phase={**PHASE, "type": "online"})
    tried = algorithm.act(obs, None, deterministic=False).action
    assert (tried - greedy).std().item() == pytest.approx(0.2, rel=0.02)
    assert tried.abs().max() <= 1
    algorithm.exploration_noise = 5.0
    assert algorithm.act(obs, None, deterministic=False).action.abs().max() == 1


def test_a_bad_number_leaves_everything_as_it_was(td3):
    algorithm = td3()
    learn(algorithm, rows_of(), 3)
    before = fingerprint(algorithm.get_state())
    batch = {name: torch.stack([each] * 3) for name, each in rows_of().items()}
    batch[REWARD][2, 0] = float("nan")
    with pytest.raises(NonFiniteError, match="TD3 update of critic"):
        algorithm.update(batch, phase=PHASE)
    assert fingerprint(algorithm.get_state()) == before


def test_errors_become_priorities(td3, monkeypatch):
    algorithm = td3("buffers.replay.type=prioritized")
    given = []
    buffer = algorithm.context.buffers["replay"]
    monkeypatch.setattr(buffer, "reprioritize", lambda *pair: given.append(pair))
    learn(algorithm, {**rows_of(), INDEX: torch.arange(16)})
    ((index, error),) = given
    assert index.tolist() == [list(range(16))] and error.shape == (1, 16)


def test_it_finds_the_best_action_of_one_decision(td3):
    # r = -4 (a - 0.5)² and the episode ends: the actor goes to 0.5.
    algorithm = td3("algorithm.learning_rate=1e-2", "network.critic.hidden_dims=[32, 32]")
    draw = torch.Generator().manual_seed(0)
    for _ in range(400):
        rows = rows_of(64, terminated=True)
        rows[ACTION] = torch.rand(64, 1, generator=draw) * 2 - 1
        rows[OBS] = rows[NEXT_OBS] = torch.ones(64, 3)
        rows[REWARD] = -4 * (rows[ACTION][:, 0] - 0.5).square()
        learn(algorithm, rows)
    best = algorithm.act(torch.ones(1, 3), None, deterministic=True).action
    assert best.item() == pytest.approx(0.5, abs=0.1)


def test_both_steps_can_be_compiled(td3):
    """Traced, not built: what they read from outside would be refused here."""
    algorithm = td3()
    critic, actor, rows = algorithm.critic, algorithm.actor, rows_of()
    numbers = torch.randn(16, 1), torch.tensor(0.5), torch.tensor(0.9)
    sizes = {"learning_rate": torch.tensor(1e-2), "max_grad_norm": torch.tensor(10.0)}
    for learner, arguments in (
        (critic, (rows, actor.target, critic.target, *numbers)),
        (actor, (rows[OBS], critic.module)),
    ):
        state = learner.snapshot()[0]
        corrections = bias_corrections(state.updates, learner.config)
        inputs: list[torch.Tensor] = []
        given = (state, corrections, arguments, *sizes.values(), (), {})
        shape = compiled._flatten(given, inputs)
        graph, _ = compiled._trace(learner._pure_step, inputs, shape, "the step")
        flat = graph(*inputs)[0]
        learner.step(*arguments, **sizes)
        torch.testing.assert_close(flat, learner.state.flat, atol=1e-6, rtol=0)


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"actor_every": 0},
        {"exploration_noise": -0.1},
        {"target_noise": -0.1},
        {"target_noise_clip": -1.0},
        {"target_rate": 0.0},
        {"target_rate": 1.5},
    ],
)
def test_values_that_cannot_work_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        TD3Config(**options)


def test_what_it_cannot_do_is_reported_before_the_run(tiny):
    with pytest.raises(UserError, match="td3 needs a flat Box of actions"):
        tiny("CartPole-v1:td3", *SMALL)
    with pytest.raises(UserError, match=r"network\.shared_torso"):
        tiny("Pendulum-v1:td3", *SMALL, "network.shared_torso=true")
