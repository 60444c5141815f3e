import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from rl_lab.algorithms.ppo import (
    ADVANTAGE,
    PPO,
    RETURN,
    PPOConfig,
    clipped_surrogate,
    normalize,
    ppo_loss,
    value_loss,
)
from rl_lab.core import registry
from rl_lab.core.batch import (
    ACTION,
    LOG_PROB,
    NEXT_OBS,
    OBS,
    RESET,
    REWARD,
    STATE,
    TERMINATED,
    TRUNCATED,
)
from rl_lab.core.errors import ConfigError, NonFiniteError, UserError
from rl_lab.core.schedule import Schedule
from rl_lab.core.sequences import as_rows, as_sequences, concatenate, take
from rl_lab.core.state import fingerprint
from tiny_runs import tiny_config

PHASE = {"name": "train", "type": "online", "step": 0, "progress": 0.0}


def test_clipped_surrogate_by_hand():
    # ratios 1.5, 0.5, 1.5, 0.5 with clip .2 and advantages +1, +1, -1, -1:
    #   min(1.5, 1.2) = 1.2; min(.5, .8) = .5; min(-1.5, -1.2) = -1.5; min(-.5, -.8) = -.8
    ratio = torch.tensor([1.5, 0.5, 1.5, 0.5])
    advantage = torch.tensor([1.0, 1.0, -1.0, -1.0])
    loss, metrics = clipped_surrogate(ratio.log(), torch.zeros(4), advantage, torch.tensor(0.2))
    assert loss.item() == pytest.approx(-(1.2 + 0.5 - 1.5 - 0.8) / 4)
    assert metrics["clip_fraction"].item() == 1.0
    # mean of (r - 1 - log r): (.5 - .405465 - .5 + .693147) / 2
    assert metrics["approx_kl"].item() == pytest.approx(0.143841, abs=1e-5)
    assert metrics["ratio_error"].item() == pytest.approx(0.5)


def test_the_clipped_side_has_no_gradient():
    log_prob = torch.tensor([1.5, 0.5, 1.5, 0.5]).log().requires_grad_()
    advantage = torch.tensor([1.0, 1.0, -1.0, -1.0])
    loss, _ = clipped_surrogate(log_prob, torch.zeros(4), advantage, torch.tensor(0.2))
    (gradient,) = torch.autograd.grad(loss, log_prob)
    # the pessimistic bound is flat where the ratio has already gone far enough
    assert gradient.tolist() == pytest.approx([0.0, -0.5 / 4, 1.5 / 4, 0.0])


def test_value_loss_by_hand():
    value, old, target = torch.tensor([2.0]), torch.tensor([1.0]), torch.tensor([2.0])
    assert value_loss(value, old, target, None).item() == 0.0
    # limited to 1.2: (1.2 - 2)^2 = .64 is the worse one; half of it
    assert value_loss(value, old, target, torch.tensor(0.2)).item() == pytest.approx(0.32)


@pytest.mark.parametrize("advantage", [torch.tensor([[3.0]]), torch.full((1, 8), 7.0)])
def test_advantages_that_tell_nothing_apart_become_zero(advantage):
    assert torch.equal(normalize(advantage), torch.zeros_like(advantage))


def test_normalised_advantages():
    values = normalize(torch.tensor([1.0, 2.0, 3.0, 6.0]))
    assert values.mean().item() == pytest.approx(0, abs=1e-6)
    assert values.square().mean().item() == pytest.approx(1, abs=1e-5)


def test_sequences_keep_time_order_and_find_their_state():
    time, envs = 4, 3
    rows = torch.arange(time * envs).reshape(time, envs)  # value = 3 t + n
    pieces = as_sequences(rows, 2)
    assert pieces.tolist() == [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]]
    states = [{"m": {"h": torch.arange(3.0) + 10 * k}} for k in range(2)]
    state = concatenate(states)
    assert state["m"]["h"].tolist() == [0, 1, 2, 10, 11, 12]
    chosen = take({"x": pieces, STATE: state}, torch.tensor([4, 0]), axis=1)
    assert chosen["x"].tolist() == [[7, 0], [10, 3]]
    assert chosen[STATE]["m"]["h"].tolist() == [11, 0]
    single = take({"x": as_rows({"y": rows})["y"]}, torch.tensor([7, 1]), axis=0)
    assert single["x"].tolist() == [7, 1]


def rollout(orchestrator):
    result = orchestrator.workflow.collect_step(0, phase=PHASE)
    return result.trajectory


@pytest.mark.parametrize("memory", registry.names("memory"))
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
@pytest.mark.parametrize("forward", ["fast", "torch"])
def test_the_first_ratio_is_one(tiny, memory, env, forward):
    overrides = [f"network.memory.type={memory}", "algorithm.minibatches=2"]
    if env == "Pendulum-v1":
        overrides.append("environment.normalize_obs=true")
    orchestrator = tiny(f"{env}:ppo_defaults", *overrides)
    workflow = orchestrator.workflow
    if forward == "torch":
        workflow.policy = replace(workflow.policy, numpy=None)
        workflow.acts_on_arrays = False
    for update in range(3):
        metrics = workflow.update(rollout(orchestrator), phase=PHASE)
        assert metrics["ratio_error"].item() < 1e-5
        if env != "Pendulum-v1" or update:  # the first normalised rollout was seen raw
            assert metrics["policy_drift"].item() < 1e-4


def test_credit_by_hand(tiny):
    """Advantages and targets, from the model's own values of where each step really ended."""
    overrides = ["environment.max_episode_steps=5", "algorithm.normalize_advantages=off"]
    orchestrator = tiny("CartPole-v1:ppo_defaults", *overrides)
    workflow, batch = orchestrator.workflow, rollout(orchestrator)
    assert batch[TRUNCATED].any()
    rows, _ = workflow._credit(batch, workflow.config)
    with torch.no_grad():
        _, value, _ = workflow.model(batch[OBS], batch[STATE], batch[RESET])
        _, following, _ = workflow.model(batch[NEXT_OBS], batch[STATE], batch[RESET])
    advantage, running = torch.zeros_like(value), torch.zeros(4)
    for t in reversed(range(16)):
        future = torch.where(batch[TERMINATED][t], 0.0, following[t])
        ended = batch[TERMINATED][t] | batch[TRUNCATED][t]
        delta = batch[REWARD][t] + 0.99 * future - value[t]
        running = delta + torch.where(ended, 0.0, 0.99 * 0.95 * running)
        advantage[t] = running
    for name, expected in ((ADVANTAGE, advantage), (RETURN, advantage + value)):
        torch.testing.assert_close(rows[name], expected.flatten(), atol=1e-5, rtol=1e-5)


def test_the_objective_is_the_sum_of_its_parts(tiny):
    orchestrator = tiny()
    workflow = orchestrator.workflow
    rows, _ = workflow._credit(rollout(orchestrator), workflow.config)
    hyper = {
        "clip_range": torch.tensor(0.2),
        "value_coefficient": torch.tensor(0.5),
        "entropy_coefficient": torch.tensor(0.1),
    }
    with torch.no_grad():
        loss, parts, _ = ppo_loss(
            workflow.model, torch.arange(len(rows[OBS])), rows, hyper, normalize_batch=True
        )
        policy, *_ = workflow.model(rows[OBS], rows[STATE], None)
    expected = parts["policy_loss"] + 0.5 * parts["value_loss"] - 0.1 * parts["entropy"]
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(parts["entropy"], policy.entropy().mean())
    assert parts["entropy"] > 0.5  # nearly uniform over two actions: log 2 = .69


def test_loss_does_not_depend_on_the_order_of_rows(tiny):
    orchestrator = tiny()
    workflow = orchestrator.workflow
    rows, _ = workflow._credit(rollout(orchestrator), workflow.config)
    hyper = {
        "clip_range": torch.tensor(0.2),
        "value_coefficient": torch.tensor(0.5),
        "entropy_coefficient": torch.tensor(0.1),
    }
    order = torch.randperm(len(rows[OBS]), generator=torch.Generator().manual_seed(0))
    loss = partial(ppo_loss, workflow.model, rollout=rows, hyper=hyper, normalize_batch=True)
    with torch.no_grad():
        straight, metrics, _ = loss(torch.arange(len(rows[OBS])))
        shuffled, *_ = loss(order)
    torch.testing.assert_close(straight, shuffled)
    assert all(value.shape == () for value in metrics.values())


def test_sampled_actions_are_stored_and_clipped_ones_are_played(tiny):
    # Pendulum takes [-2, 2]; with a standard deviation of e^2 most samples are outside
    orchestrator = tiny("Pendulum-v1:ppo_defaults", "network.log_std_init=2.0")
    batch = rollout(orchestrator)
    assert batch[ACTION].abs().max() > 2.0
    policy, *_ = orchestrator.workflow.model(batch[OBS], batch[STATE], batch[RESET])
    torch.testing.assert_close(policy.log_prob(batch[ACTION]), batch[LOG_PROB], atol=1e-4, rtol=0)


def test_normaliser_counts_every_frame_once_and_after_the_update(tiny):
    orchestrator = tiny("CartPole-v1:ppo_defaults", "environment.normalize_obs=true")
    workflow, normalizer = orchestrator.workflow, orchestrator.workflow.model.normalizer
    first = rollout(orchestrator)
    workflow.update(first, phase=PHASE)
    assert normalizer.moments.count == 16 * 4
    mean = first[OBS].double().mean((0, 1)).numpy()
    np.testing.assert_allclose(normalizer.moments.mean, mean, rtol=1e-6)
    shift = normalizer.shift.clone()
    metrics = workflow.update(rollout(orchestrator), phase=PHASE)
    assert normalizer.moments.count == 2 * 16 * 4
    assert not torch.equal(normalizer.shift, shift)
    assert metrics["policy_drift"] < 1e-4  # actor and learner saw it through the same numbers


def test_the_first_rollout_is_normalised_before_it_is_used(tiny, monkeypatch):
    orchestrator = tiny("CartPole-v1:ppo_defaults", "environment.normalize_obs=true")
    workflow = orchestrator.workflow
    batch = rollout(orchestrator)
    batch[OBS] = batch[OBS] * 1000 + 500  # frames of any size
    seen = []
    unroll = workflow.model.unroll
    monkeypatch.setattr(
        workflow.model,
        "unroll",
        lambda obs, *rest: seen.append(workflow.model.normalizer(obs)) or unroll(obs, *rest),
    )
    metrics = workflow.update(batch, phase=PHASE)
    assert seen[0].mean((0, 1)).abs().max() < 1e-3 and 0.9 < seen[0].std() < 1.1
    assert metrics["ratio_error"] < 1e-5
    assert "policy_drift" not in metrics  # the actor saw raw frames


def test_a_bad_first_update_leaves_no_statistics(tiny):
    orchestrator = tiny("CartPole-v1:ppo_defaults", "environment.normalize_obs=true")
    workflow, normalizer = orchestrator.workflow, orchestrator.workflow.model.normalizer
    batch = rollout(orchestrator)
    batch[REWARD] = batch[REWARD] * float("nan")
    with pytest.raises(NonFiniteError):
        workflow.update(batch, phase=PHASE)
    assert normalizer.is_empty and normalizer.shift.abs().sum() == 0
    assert torch.equal(normalizer.scale, torch.ones(4))


def test_reward_normalisation_is_for_the_learner_only(tiny):
    orchestrator = tiny("Pendulum-v1:ppo_defaults", "environment.normalize_reward=true")
    batch = rollout(orchestrator)
    raw = batch[REWARD].clone()
    orchestrator.workflow.update(batch, phase=PHASE)
    assert torch.equal(batch[REWARD], raw)
    assert orchestrator.workflow.reward_scale.moments.count == 16 * 4


# One bad row late in the rollout spoils only those before it: some minibatches are still good,
# and the weights they moved must come back.
@pytest.mark.parametrize("row", [0, 5])
@pytest.mark.parametrize("field", [REWARD, OBS])
@pytest.mark.parametrize("scaled", ["false", "true"])
def test_a_bad_batch_leaves_everything_as_it_was(tiny, field, row, scaled):
    overrides = ["environment.normalize_obs=true", f"environment.normalize_reward={scaled}"]
    orchestrator = tiny("CartPole-v1:ppo_defaults", "algorithm.minibatches=16", *overrides)
    workflow = orchestrator.workflow
    workflow.update(rollout(orchestrator), phase=PHASE)
    batch = rollout(orchestrator)
    batch[field][row, 2] = float("nan")
    before = fingerprint(workflow.get_state()), fingerprint(orchestrator.streams.state_dict())
    with pytest.raises(NonFiniteError):
        workflow.update(batch, phase=PHASE)
    after = fingerprint(workflow.get_state()), fingerprint(orchestrator.streams.state_dict())
    assert before == after


def test_kl_stop_ends_the_updates_of_a_rollout(tiny):
    overrides = ["algorithm.target_kl=1e-9", "algorithm.learning_rate=1e-2", "algorithm.epochs=5"]
    orchestrator = tiny("CartPole-v1:ppo_defaults", *overrides)
    metrics = orchestrator.workflow.update(rollout(orchestrator), phase=PHASE)
    # the first minibatch has a ratio of 1 and a KL of 0; the second one exceeds the target
    assert metrics["gradient_steps"] == 2


def test_value_clip_and_entropy_and_rollout_normalisation_run(tiny):
    overrides = [
        "algorithm.value_clip=0.2",
        "algorithm.entropy_coefficient=0.01",
        "algorithm.normalize_advantages=rollout",
    ]
    orchestrator = tiny("CartPole-v1:ppo_defaults", *overrides)
    metrics = orchestrator.workflow.update(rollout(orchestrator), phase=PHASE)
    assert all(math.isfinite(float(value)) for value in metrics.values())


def test_a_run_of_one_rollout_learns_at_the_first_rate_and_the_last_is_not_zero(tiny):
    words = ["algorithm.learning_rate=lin_1e-3", "evaluation.every_steps=0"]
    orchestrator = tiny("CartPole-v1:ppo_defaults", *words, "training.total_timesteps=128")
    rates = []
    update = orchestrator.workflow.update

    def noted(batch, *, phase):
        rates.append(update(batch, phase=phase)["learning_rate"])
        return {}

    orchestrator.hooks["update"] = noted
    orchestrator.run()
    assert rates == pytest.approx([1e-3, 5e-4])  # where each of the two rollouts began


def test_scheduled_hyperparameters_reach_the_update(tiny):
    overrides = ["algorithm.learning_rate=lin_1e-3", "algorithm.clip_range=lin_0.4"]
    orchestrator = tiny("CartPole-v1:ppo_defaults", *overrides)
    batch = rollout(orchestrator)
    metrics = orchestrator.workflow.update(batch, phase={**PHASE, "step": 512})
    assert metrics["learning_rate"] == pytest.approx(5e-4)  # half of 1,024 steps
    assert metrics["clip_range"] == pytest.approx(0.2)
    before = orchestrator.workflow.learner.state.flat.clone()
    orchestrator.workflow.update(batch, phase={**PHASE, "step": 1024})  # the rate is 0 now
    assert torch.equal(before, orchestrator.workflow.learner.state.flat)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": 1.5}, "gamma must be in"),
        ({"gamma": Schedule(start=0.9, end=2.0)}, "gamma must be in"),
        ({"learning_rate": -1e-3}, "learning_rate must be positive"),
        ({"rollout_steps": 0}, "rollout_steps must be at least 1"),
        ({"minibatches": 4, "batch_size": 64}, "not both"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        PPOConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "count"),
    [({}, 4), ({"minibatches": 8}, 8), ({"batch_size": 64}, 16), ({"batch_size": 0.25}, 4)],
)
def test_minibatches(settings, count):
    config = PPOConfig(**settings)
    assert config.minibatch_count(1024) == count


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["algorithm.minibatches=7"], "not divisible into 7 minibatches"),
        (["algorithm.batch_size=1000"], "not within the rollout's 64 rows"),
        (["algorithm.batch_size=48"], "48 does not divide the rollout"),
        (
            [
                "network.memory.type=gru",
                "algorithm.minibatches=8",
                "algorithm.sequence_length=16",
            ],
            "4 sequences of 16",
        ),
        (["network.memory.type=gru", "algorithm.sequence_length=5"], "does not divide"),
    ],
)
def test_impossible_combinations_are_refused_before_anything_is_built(overrides, problem):
    with pytest.raises(ConfigError, match=problem):
        tiny_config("CartPole-v1:ppo_defaults", *overrides)


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_compiled_and_eager_updates_agree(memory, tiny):
    overrides = [f"network.memory.type={memory}", "algorithm.minibatches=2"]
    overrides.append("environment.vectorization=sync")  # the same rollout for both
    states = {}
    for mode in ("off", "on"):
        orchestrator = tiny("CartPole-v1:ppo_defaults", f"compute.compile={mode}", *overrides)
        workflow = orchestrator.workflow
        workflow.update(rollout(orchestrator), phase=PHASE)
        states[mode] = workflow.learner.state.flat.clone()
    assert (states["on"] - states["off"]).abs().max() < 1e-5
    assert (states["on"] != 0).any()


@pytest.mark.parametrize("memory", [each for each in registry.names("memory") if each != "none"])
def test_traced_and_eager_updates_agree(memory, tiny, interpreted):
    overrides = [f"network.memory.type={memory}", "algorithm.minibatches=2"]
    overrides += ["environment.vectorization=sync", "algorithm.epochs=1"]
    overrides += ["algorithm.rollout_steps=8"]
    states = []
    for mode in ("off", "on"):
        orchestrator = tiny("CartPole-v1:ppo_defaults", f"compute.compile={mode}", *overrides)
        workflow = orchestrator.workflow
        start = workflow.learner.state.flat.clone()
        workflow.update(rollout(orchestrator), phase=PHASE)
        states.append(workflow.learner.state.flat.clone())
        assert (states[-1] != start).any()
    assert interpreted
    torch.testing.assert_close(*states, atol=1e-5, rtol=0)


def test_the_update_moves_weights_towards_what_paid(tiny):
    """A bandit in disguise: action 1 always pays. Its probability must rise."""
    orchestrator = tiny(
        "CartPole-v1:ppo_defaults", "algorithm.learning_rate=1e-2", "algorithm.epochs=4"
    )
    workflow = orchestrator.workflow
    for _ in range(5):
        batch = rollout(orchestrator)
        batch[REWARD] = batch[ACTION].float()
        batch[TERMINATED] = torch.ones_like(batch[TERMINATED])
        workflow.update(batch, phase=PHASE)
    batch = rollout(orchestrator)
    assert batch[ACTION].float().mean() > 0.9


def test_a_gaussian_policy_reports_its_deviation(tiny):
    orchestrator = tiny("Pendulum-v1:ppo_defaults", "network.log_std_init=-1", "algorithm.epochs=1")
    workflow = orchestrator.workflow
    metrics = workflow.update(rollout(orchestrator), phase=PHASE)
    after = workflow.model.actor.log_std
    assert metrics["log_std"].item() == after.item() != -1  # of the policy that acts from now on
    after.data = torch.tensor([-3.0, 1.0, 0.5])  # of an action of three dimensions
    told = {name: value.item() for name, value in workflow.policy.log_std().items()}
    assert told == {"log_std": -0.5, "log_std_min": -3.0, "log_std_max": 1.0}
    assert not any(value.requires_grad for value in workflow.policy.log_std().values())
    discrete = tiny("CartPole-v1:ppo_defaults")
    assert "log_std" not in discrete.workflow.update(rollout(discrete), phase=PHASE)


def test_learning_from_another_policy_is_refused(tiny):
    phases = "training.phases=[{name: mixed, policy: random, hooks: [collect, update]}]"
    with pytest.raises(UserError, match="phase 'mixed': PPO learns from its own actions only"):
        tiny("CartPole-v1:ppo_defaults", phases).run()


def test_a_subclass_that_acts_otherwise_does_so_in_rollouts_too(tiny):
    workflow = tiny().workflow
    assert workflow.pure_policy() is not None

    class Own(PPO):
        def act(self, obs, state, *, deterministic):
            return super().act(obs, state, deterministic=True)

    workflow.__class__ = Own
    assert workflow.pure_policy() is None
