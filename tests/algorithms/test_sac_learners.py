"""SAC's learners: what can be compiled, and what was saved under the names of earlier versions."""

import pytest
import torch

from algorithms.test_sac import CONTINUOUS, DISCRETE, SMALL, batch_of, learn
from rl_lab.algorithms.sac import Temperature, soft_target
from rl_lab.core import compiled
from rl_lab.core.batch import ACTION, OBS
from rl_lab.core.errors import ConfigError
from rl_lab.core.optim import bias_corrections
from rl_lab.core.state import fingerprint


@pytest.fixture
def sac(tiny):
    """`sac(spec, …)`: the algorithm of a small run that has not started."""
    return lambda spec=CONTINUOUS, *words: tiny(spec, *SMALL, *words).workflow


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
    noise, one = workflow.noise(16, workflow.noise_rng), torch.tensor(1.0)
    critic, actor = workflow.critic, workflow.actor
    masks = critic.module.values.masks(16, 0.3, torch.Generator().manual_seed(0))
    inputs = (rows, actor.module, critic.target, alpha, noise, torch.tensor([0, 2]), masks)
    rest = (torch.tensor(0.9), one)
    expected = soft_target(*inputs, *rest)
    target = traced(soft_target, *inputs, *rest)
    torch.testing.assert_close(target, expected)

    sizes = {"learning_rate": torch.tensor(1e-2), "max_grad_norm": torch.tensor(10.0)}
    for learner, arguments in (
        (critic, (rows[OBS], rows[ACTION], target, None, masks)),
        (actor, (rows[OBS], critic.module, noise, alpha, masks)),
    ):
        before = learner.snapshot()[0]
        corrections = bias_corrections(before.updates, learner.config)
        new, update = traced(
            learner._pure_step, before, corrections, arguments, *sizes.values(), (), {}
        )
        by_autograd = learner.step(*arguments, **sizes)
        torch.testing.assert_close(new.flat, learner.state.flat, atol=1e-6, rtol=0)
        assert set(update.metrics) == set(by_autograd.metrics)
        assert set(update.aux) == set(by_autograd.aux)


def test_a_shared_torso_is_not_compiled(sac):
    with pytest.raises(ConfigError, match=r"network\.shared_torso cannot be compiled"):
        sac(CONTINUOUS, "network.shared_torso=true", "compute.compile=on")


# -- saved state ---------------------------------------------------------------------------------


def with_old_names(workflow) -> dict:
    """The state as versions before `Learner` and `UpdateBudget` saved it."""
    state = dict(workflow.get_state())
    critic, actor, budget = (state.pop(name) for name in ("critic", "actor", "budget"))
    state |= {"critic": critic["module"], "target": critic["target"], "actor": actor["module"]}
    state |= {"critic_optimizer": critic["optimizer"], "actor_optimizer": actor["optimizer"]}
    if (temperature := state.pop("temperature", None)) is not None:
        state["temperature"] = temperature["module"]
        state["temperature_optimizer"] = temperature["optimizer"]
    else:  # it was saved even where it was fixed
        state["temperature"] = Temperature(1.0).state_dict()
    values = dict(state["values"])
    values.pop("temperature", None)
    values["gradient_steps"] = budget.pop("steps")
    return {**state, "earned": budget, "values": values}


@pytest.mark.parametrize("word", ["algorithm.temperature=auto", "algorithm.temperature=0.2"])
def test_a_state_of_an_earlier_version_is_loaded(sac, word):
    first, second = sac(CONTINUOUS, word), sac(CONTINUOUS, word, "experiment.seed=7")
    learn(first, batch_of(first), 3)
    first.budget.seen, first.budget.parts = 29, 500_000
    second.set_state(with_old_names(first))
    assert fingerprint(second.get_state()) == fingerprint(first.get_state())
    assert second.budget.steps == 3
