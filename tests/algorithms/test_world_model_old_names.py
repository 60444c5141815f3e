"""World-model checkpoints of earlier versions, with the names they had, are taken over exactly."""

import pytest

from rl_lab.core.state import fingerprint, join, split
from tiny_dreamers import SIZES
from tiny_world_models import ONE, WORDS

PLANNER = "{horizon: 2, candidates: 4, elites: 2, iterations: 1}"
DREAMER = ["algorithm.name=dreamer_v3", *(f"algorithm.{key}={SIZES[key]}" for key in SIZES)]
PLANET = [
    "algorithm.name=planet",
    *(f"algorithm.{key}={SIZES[key]}" for key in SIZES if key != "horizon"),
    f"algorithm.planner={PLANNER}",
]


def trained(tiny, *words):
    """An algorithm after a few updates, and a fresh one of the same kind."""
    first, second = tiny(*words, "experiment.seed=1"), tiny(*words, "experiment.seed=2")
    while first.counters.updates < 3:
        first.execute(first.scheduler.next_action())
    return first.workflow, second.workflow


def account(budget):
    return {"seen": budget["seen"], "parts": budget["parts"]}


def taken_over(other, old, expected):
    """What `other` has after loading a checkpoint with these names is what was saved."""
    assert fingerprint(other.get_state()) != fingerprint(expected)
    other.set_state(join(*split(old)))
    assert fingerprint(other.get_state()) == fingerprint(expected)


@pytest.mark.parametrize("phases", ["", "update_world_model"])
def test_dreamer(tiny, phases):
    """Also between two hooks, where states wait for the controller."""
    hooks = f"training.phases=[{{name: model, hooks: [collect, {phases}]}}]"
    words = ["CartPole-v1:random", *DREAMER, *([hooks] if phases else [])]
    workflow, other = trained(tiny, *words)
    state = workflow.get_state()
    world, actor, critic = (state[f"{name}_learner"] for name in ("world", "actor", "critic"))
    values = dict(state["values"])
    assert bool(values["starts"]) == bool(phases)
    old = {
        "world": world["module"],
        "world_optimizer": world["optimizer"],
        "actor": actor["module"],
        "actor_optimizer": actor["optimizer"],
        "critic": critic["module"],
        "slow_critic": critic["target"],
        "critic_optimizer": critic["optimizer"],
        "earned": account(state["budget"]),
        "controls_earned": account(state["controller_budget"]),
        "values": {
            **values,
            "spread": state["return_percentiles"]["value"],
            "gradient_steps": state["budget"]["steps"],
            "controller_steps": state["controller_budget"]["steps"],
        },
    }
    taken_over(other, old, state)


def test_planet(tiny):
    workflow, other = trained(tiny, "Pendulum-v1:random", *PLANET)
    state = workflow.get_state()
    old = {
        "world": state["learner"]["module"],
        "optimizer": state["learner"]["optimizer"],
        "earned": account(state["budget"]),
        "values": {**state["values"], "gradient_steps": state["budget"]["steps"]},
    }
    taken_over(other, old, state)


def test_world_models(tiny):
    """One number counted the steps of both parts."""
    workflow, other = trained(tiny, *WORDS, ONE)
    state = workflow.get_state()
    assert state["budget"]["steps"] > 0
    old = {
        "vae": state["vae_learner"]["module"],
        "vae_optimizer": state["vae_learner"]["optimizer"],
        "dynamics": state["dynamics_learner"]["module"],
        "dynamics_optimizer": state["dynamics_learner"]["optimizer"],
        "earned": account(state["budget"]),
        "dynamics_earned": account(state["dynamics_budget"]),
        "search": state["search"],
        "trials": state["trials"],
        "values": {**state["values"], "gradient_steps": workflow.gradient_steps},
    }
    taken_over(other, old, state)
