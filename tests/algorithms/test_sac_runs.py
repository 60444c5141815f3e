"""SAC in small worlds with a known answer, and in real small runs."""

import math

import pytest
import torch

from algorithms.test_sac import learn
from rl_lab.core.batch import (
    ACTION,
    ACTION_MASK,
    NEXT_OBS,
    OBS,
    REWARD,
    TERMINATED,
    TRUNCATED,
)
from rl_lab.core.errors import ConfigError, UserError
from tiny_runs import tiny_config, tiny_run

CONTINUOUS, DISCRETE = "Pendulum-v1:sac_defaults", "CartPole-v1:sac_defaults"
SMALL = [
    "algorithm.learning_starts=8",
    "algorithm.batch_size=16",
    "algorithm.learning_rate=1e-2",
    "network.encoder.hidden_dims=[]",
    "network.actor.hidden_dims=[16]",
    "network.critic.hidden_dims=[16]",
    "buffers.replay.capacity=1000",
]
ROOMS, GATES, SWITCHES = (
    f"space_envs:{name}-v0:sac_defaults" for name in ("Rooms", "Gates", "Switches")
)
MASK = "environment.wrappers=[{id: ActionMask}]"


def rows_of(action: torch.Tensor, reward: torch.Tensor, size: int, *, terminated: bool) -> dict:
    """One state, in which each action has its reward and leads back to it, or ends."""
    frames = torch.ones(len(action), size)
    ended = torch.full((len(action),), terminated)
    return {
        OBS: frames, ACTION: action, REWARD: reward, NEXT_OBS: frames,
        TERMINATED: ended, TRUNCATED: ~ended,
    }  # fmt: skip


# -- known answers --------------------------------------------------------------------------------


def test_the_soft_optimal_policy_of_one_decision(tiny):
    # Rewards 0 and 1 and α = 0.5: π ∝ exp(r / α), so the better action has 1 / (1 + e⁻²) = 0.8808
    workflow = tiny(DISCRETE, *SMALL, "algorithm.temperature=0.5").workflow
    action = torch.arange(16) % 2
    learn(workflow, rows_of(action, action.float(), 4, terminated=True), 300)
    probabilities = workflow.policy(torch.ones(1, 4)).log_probs.exp()
    assert probabilities[0, 1].item() == pytest.approx(1 / (1 + math.exp(-2)), abs=0.01)
    q = workflow.critic.module(torch.ones(1, 4))[:, 0]
    torch.testing.assert_close(q, torch.tensor([[0.0, 1.0]] * 2), atol=0.02, rtol=0)


def test_the_temperature_falls_where_masks_leave_little_to_choose(tiny):
    """All legal actions are worth the same, so the policy is as random as it can be."""
    workflow = tiny(GATES, MASK, *SMALL, "algorithm.initial_temperature=0.1").workflow
    mask = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [1, 1, 1, 0, 0], [0, 1, 0, 1, 0]])
    rows = rows_of(torch.tensor([0, 2, 2, 1]), torch.zeros(4), 3, terminated=True)
    parts = workflow.context.spec.observation.parts
    (name,) = set(parts) - {ACTION_MASK}
    rows[OBS] = rows[NEXT_OBS] = {name: rows[OBS], ACTION_MASK: mask.to(torch.int8)}
    learn(workflow, rows, 150)
    assert workflow.alpha(workflow.config).item() < 0.1


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("terminated", [False, True])
def test_a_truncated_loop_is_worth_its_future_and_its_entropy(tiny, alpha, terminated):
    # r = 1 for ever, γ = 0.5, two equal actions: Q = 1 + 0.5 (Q + α log 2) = 2 + α log 2.
    # Terminated there is no future: Q = 1.
    words = [f"algorithm.temperature={alpha}", "algorithm.gamma=0.5", "algorithm.target_rate=0.1"]
    workflow = tiny(DISCRETE, *SMALL, *words).workflow
    action = torch.arange(16) % 2
    learn(workflow, rows_of(action, torch.ones(16), 4, terminated=terminated), 300)
    expected = 1.0 if terminated else 2 + alpha * math.log(2)
    q = workflow.critic.module(torch.ones(1, 4))
    torch.testing.assert_close(q, torch.full_like(q, expected), atol=0.04, rtol=0)


@pytest.mark.parametrize("policy", ["gaussian", "gsde", "flow"])
def test_a_continuous_decision_finds_the_best_action_and_the_wanted_entropy(tiny, policy):
    # r = -4 (a - 0.5)², one decision: the mode goes to 0.5, the entropy to its goal of -1.
    words = ["algorithm.initial_temperature=0.1", "network.critic.hidden_dims=[32, 32]"]
    words += [f"algorithm.policy={policy}"]
    workflow = tiny(CONTINUOUS, *SMALL, *words).workflow
    draw = torch.Generator().manual_seed(0)
    for _ in range(600):
        action = torch.rand(64, 1, generator=draw) * 2 - 1
        reward = -4 * (action[:, 0] - 0.5).square()
        learn(workflow, rows_of(action, reward, 3, terminated=True), 1)
    policy = workflow.policy(torch.ones(4000, 3))
    assert policy.mode()[0].item() == pytest.approx(0.5, abs=0.1)
    entropy = -policy.draw(torch.randn(4000, 1, generator=draw))[1].mean()
    assert entropy.item() == pytest.approx(-1.0, abs=0.3)


# -- real runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_envs", [1, 4, 7])
def test_gradient_steps_are_earned_exactly(tiny, num_envs):
    words = [f"environment.num_envs={num_envs}", "algorithm.replay_ratio=0.3"]
    orchestrator = tiny(DISCRETE, *SMALL, *words, "algorithm.learning_starts=14")
    seen = set()
    while orchestrator.counters.env_steps < 14 + 100:
        orchestrator.execute(orchestrator.scheduler.next_action())
        if orchestrator.scheduler.at_cycle_start:
            after = max(orchestrator.counters.env_steps - 14, 0)
            assert orchestrator.workflow.budget.steps == 3 * after // 10
            seen.add(after)
    assert max(seen) >= 98


def test_actions_are_kept_in_the_policy_s_units(tiny):
    """Pendulum's torque goes to ±2; random and sampled actions both stay within ±1."""
    orchestrator = tiny(CONTINUOUS, *SMALL, "environment.num_envs=8")
    for _ in range(8):
        orchestrator.execute(orchestrator.scheduler.next_action())
    kept = orchestrator.buffers["replay"].sample(256)[ACTION]
    assert kept.abs().max() <= 1
    assert kept.abs().max() > 0.8
    assert orchestrator.environment.env.spec.action.high.tolist() == [2.0]


SPACES = {
    "pixels": ["picture_env:Picture-v0:sac_defaults"],
    "pixels_shared": ["picture_env:Picture-v0:sac_defaults", "network.shared_torso=true"],
    "dict": [ROOMS, "environment.normalize_obs=true", "network.shared_torso=true"],
    "tuple": [ROOMS, "environment.kwargs={shape: tuple}"],
    "mask": [GATES, MASK],
    "n_step": [CONTINUOUS, "algorithm.n_step=3"],
    "redq": [CONTINUOUS, "algorithm.critics=4", "algorithm.subset=2", "algorithm.replay_ratio=2"],
}


@pytest.mark.parametrize("name", SPACES)
def test_it_trains_on(tmp_path, name):
    words = [*SPACES[name], *SMALL, "training.total_timesteps=64", "evaluation.every_steps=0"]
    outcome = tiny_run(tmp_path, *words)
    assert outcome.exit_code == 0
    assert "train/actor_loss" in outcome.run.metrics_file.read_text()


def test_a_shared_encoder_is_trained_by_the_critics_alone(tiny):
    words = ["picture_env:Picture-v0:sac_defaults", *SMALL, "network.shared_torso=true"]
    orchestrator = tiny(*words)
    workflow = orchestrator.workflow
    for _ in range(8):
        orchestrator.execute(orchestrator.scheduler.next_action())
    names = workflow.actor.names
    assert names and not any("encoder" in name for name in names)
    assert any("encoder" in name for name in workflow.critic.names)


def test_statistics_take_every_fresh_frame_once(tiny):
    orchestrator = tiny(CONTINUOUS, *SMALL, "environment.normalize_obs=true")
    for _ in range(12):
        orchestrator.execute(orchestrator.scheduler.next_action())
    moments = orchestrator.workflow.normalizer.moments
    assert moments.count == orchestrator.counters.env_steps == 24
    orchestrator.measure()
    assert moments.count == 24


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("environment.normalize_reward=true", "normalize_reward would change rewards"),
        ("+network.memory.type=gru", "network.memory has no use here"),
        ("algorithm.subset=3", r"subset: must be in 1 … critics \(2\), got 3"),
        ("algorithm.target_rate=1.5", r"target_rate: must be in \[0, 1\], got 1.5"),
        ("algorithm.temperature=-1", "temperature: must be auto, or 0 or more, got -1"),
        ("algorithm.critics=0", "critics: must be at least 1, got 0"),
        ("algorithm.actor_learning_rate=-1", "actor_learning_rate: must be positive, got -1"),
    ],
)
def test_what_cannot_work_is_refused(word, message):
    with pytest.raises(ConfigError, match=message):
        tiny_config(CONTINUOUS, *SMALL, word)


def test_several_indices_are_refused(tiny):
    with pytest.raises(UserError, match="a flat Box or Discrete; use ppo"):
        tiny(SWITCHES, *SMALL)
