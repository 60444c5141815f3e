"""Windows of Dreamer: the order of the steps that learn from them, and states kept with them."""

from functools import partial

import numpy as np
import pytest
import torch

from rl_lab.algorithms.dreamer.dreamer import window_starts
from rl_lab.core.batch import RESET
from tiny_dreamers import play, tiny_dreamer, weights


@pytest.fixture
def dreamer(tiny):
    """`dreamer(version, env, more words, option=value, …)`: an orchestrator."""
    return partial(tiny_dreamer, tiny)


# -- the order of steps ----------------------------------------------------------------------------


def recorded(workflow, monkeypatch):
    """The order of gradient steps."""
    order = []
    for name in ("world", "actor", "critic"):
        learner = getattr(workflow, f"{name}_learner")
        step = learner.step
        monkeypatch.setattr(
            learner, "step", lambda *a, s=step, n=name, **k: order.append(n) or s(*a, **k)
        )
    return order


def test_steps_of_model_and_controller_alternate(dreamer, monkeypatch):
    """16 environment steps of a cycle earn 4 steps of each kind; every dream is of a new model."""
    orchestrator = dreamer("dreamer_v3", replay_ratio=0.25)
    play(orchestrator, 2)
    order = recorded(orchestrator.workflow, monkeypatch)
    play(orchestrator, 1)
    assert order == ["world", "actor", "critic"] * 4
    assert orchestrator.workflow.starts == {}  # nothing waits for another hook


def test_one_hook_learns_what_two_do(dreamer):
    """With one step due, alternating or not is the same, bit for bit."""
    both = "training.phases=[{name: t, hooks: [collect, update_world_model, update_controller]}]"
    made = [
        dreamer("dreamer_v3", "CartPole-v1", *words, replay_ratio=0.0625) for words in ((), (both,))
    ]
    for orchestrator in made:
        play(orchestrator, 5)
        assert orchestrator.workflow.budget.steps == 4
        assert orchestrator.workflow.controller_budget.steps == 4
    for name in ("world", "actor", "critic"):
        first, second = (weights(getattr(each.workflow, name)) for each in made)
        assert torch.equal(first, second)


# -- states that are kept with the frames ----------------------------------------------------------


def test_windows_go_on_from_where_the_model_was(dreamer):
    """Learning leaves a state with every frame it has seen; the next window begins with it."""
    orchestrator = dreamer("dreamer_v3")  # it has a place for states by default
    play(orchestrator, 12)
    workflow, buffer = orchestrator.workflow, next(iter(orchestrator.buffers.values()))
    windows = buffer.sequences(60, 6)
    begun = window_starts(workflow.world.rssm, windows)
    known = begun["stoch"].any(-1)
    assert known.any() and begun["deter"].shape == (1, 60, 8)
    assert windows["latent"].shape[-1] == buffer.setup.latent_size  # room was asked for that much
    assert not known[windows[RESET][:, 0]].any()  # an episode begins with nothing
    assert (begun["stoch"][known].sum(-1) == 3).all()  # one class of each of three latents
    nothing = {key: each for key, each in windows.items() if key != "latent"}
    assert not window_starts(workflow.world.rssm, nothing)["deter"].any()
    found = [workflow._observed(each)["deter"][0, 0] for each in (windows, nothing)]
    differ = (found[0] != found[1]).any(-1)
    assert torch.equal(differ, known[0])  # the first frames are seen in another light


@pytest.mark.parametrize(
    ("version", "expected"), [("dreamer_v3", True), ("dreamer_v2", False), ("dreamer_v1", False)]
)
def test_v3_keeps_states_and_gives_new_frames_first(dreamer, version, expected):
    config = dreamer(version).buffers["replay"].config
    assert (config.latents, config.online) == (expected, expected)


def test_acting_leaves_its_states_with_the_frames(dreamer):
    """Nothing was learned yet, so what is there is where the policy stood."""
    phases = "training.phases=[{name: play, hooks: [collect]}]"
    words = ("buffers.replay.latents=true", phases, "algorithm.learning_starts=0")
    orchestrator = dreamer("dreamer_v3", "CartPole-v1", *words)
    play(orchestrator, 3)
    buffer, memory = orchestrator.buffers["replay"], orchestrator.collector.memory
    newest = (buffer.ring.total - 1) * buffer.ring.num_envs + np.arange(buffer.ring.num_envs)
    kept = buffer.latents.read(newest, np.zeros(len(newest), bool))
    going_on = memory["deter"].any(-1).numpy()  # who has not just begun anew
    assert going_on.any()
    stood = torch.cat([memory["deter"], memory["stoch"]], -1).numpy()
    np.testing.assert_array_equal(kept[going_on], stood[going_on])


def test_without_a_place_for_states_windows_begin_from_nothing(dreamer):
    orchestrator = dreamer("dreamer_v3", "CartPole-v1", "buffers.replay.latents=false")
    play(orchestrator, 6)
    windows = next(iter(orchestrator.buffers.values())).sequences(2, 6, 3)
    begun = window_starts(orchestrator.workflow.world.rssm, windows)
    assert begun["deter"].shape == (3, 2, 8) and not begun["deter"].any()
