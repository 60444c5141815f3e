"""Dreamer's updates as a compiler sees them: pure functions, and the same numbers as eagerly."""

import pytest
import torch

SIZES = {
    "deter": 8,
    "hidden": 8,
    "stoch": 3,
    "units": 8,
    "layers": 1,
    "batch_length": 3,
    "batch_size": 2,
    "horizon": 2,
    "learning_starts": 16,
    "train_every": 4,
    "replay_ratio": 0.125,
}


@pytest.mark.parametrize(
    ("env", "version", "functions"),
    [
        ("CartPole-v1", "dreamer_v3", 4),
        ("FrozenLake-v1", "dreamer_v2", 4),
        ("Pendulum-v1", "dreamer_v2", 3),  # imagination is part of the actor's loss
        ("Pendulum-v1", "dreamer_v1", 3),
    ],
)
def test_compiled_and_eager_learn_the_same(tiny, interpreted, env, version, functions):
    own = [f"algorithm.{key}={value}" for key, value in SIZES.items()]
    learned = []
    for mode in ("off", "on"):
        made = tiny(f"{env}:random", f"algorithm.name={version}", *own, f"compute.compile={mode}")
        while made.workflow.controller_budget.steps < 3:
            made.execute(made.scheduler.next_action())
        workflow = made.workflow
        learners = (workflow.world_learner, workflow.actor_learner, workflow.critic_learner)
        others = [workflow.critic_learner.target_flat, workflow.return_percentiles.value]
        learned.append([each.state.flat.clone() for each in learners] + others)
    for eager, compiled in zip(*learned, strict=True):
        torch.testing.assert_close(compiled, eager, atol=1e-5, rtol=1e-3)
    assert len(interpreted) == functions  # each once: shapes and types stay as they are
