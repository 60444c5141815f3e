"""TD-MPC2's plans and updates as a compiler sees them: the same numbers as eagerly."""

import pytest
import torch

from tiny_tdmpc import play, tiny_tdmpc


@pytest.mark.parametrize(
    ("env", "version", "options"),
    [
        ("Pendulum-v1", "tdmpc2", {"episodic": True}),
        ("CartPole-v1", "tdmpc2", {}),
        ("Pendulum-v1", "tdmpc", {}),
    ],
)
def test_compiled_and_eager_plan_and_learn_the_same(tiny, interpreted, env, version, options):
    learned = []
    for mode in ("off", "on"):
        made = tiny_tdmpc(tiny, version, env, f"compute.compile={mode}", **options)
        while made.workflow.budget.steps < 8:
            play(made, 1)
        workflow = made.workflow
        plan = workflow.act(
            torch.ones(2, *made.environment.spec.observation.shape) / 10,
            workflow.initial_state(2),
            deterministic=True,
        )
        learners = (workflow.model_learner, workflow.policy_learner)
        learned.append([each.state.flat.clone() for each in learners])
        learned[-1] += [workflow.model_learner.target_flat.clone(), plan.state["plan"]]
        learned[-1] += [workflow.running_scale.value.clone(), made.collector.memory["plan"]]
    for eager, compiled in zip(*learned, strict=True):
        torch.testing.assert_close(compiled, eager, atol=1e-4, rtol=1e-3)
    # Both updates, the plan while collecting, and the deterministic one.
    assert len(interpreted) == 4
