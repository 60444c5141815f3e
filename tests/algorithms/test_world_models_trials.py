"""World Models: candidates are compared on the same episodes, whatever happens to the collector."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rl_lab.algorithms.world_models.candidates import LATENT
from rl_lab.core.errors import ConfigError
from rl_lab.core.state import join, split
from rl_lab.run.fork import _take_another_future
from tiny_runs import tiny_config
from tiny_world_models import ONE, WORDS

SHORT = "algorithm.train_every=3"  # nobody leaves the track that soon


def collect(run):
    run.execute("collect")
    run.scheduler.hook = 0


def fitness(run):
    while not run.workflow.trials.complete:
        collect(run)
    return run.workflow.trials.returns()


@pytest.fixture
def expected(tiny):
    """What the first generation earns if nothing happens to it."""
    return fitness(tiny(*WORDS, ONE, SHORT))


def restarted(run):
    run.collector.restart()


def resumed_without_its_episodes(run):
    run.environment.snapshot_level = "E3"
    run.load(join(*split(run.state())))


EVENTS = [restarted, resumed_without_its_episodes, _take_another_future]


@pytest.mark.needs("cma")
@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("before", [1, 2])
def test_a_round_whose_episodes_were_begun_anew_is_played_again(tiny, expected, event, before):
    run = tiny(*WORDS, ONE, SHORT)
    for _ in range(before):
        collect(run)
    event(run)
    collect(run)  # on new episodes, which are nobody's
    assert not run.workflow.trials.in_round
    assert np.array_equal(fitness(run), expected)


@pytest.mark.needs("cma")
@pytest.mark.parametrize("bad", [1, 4])  # of the first collect, which begins the round; of the next
def test_a_skipped_rollout_does_not_spoil_its_round(tiny, expected, bad):
    run = tiny(*WORDS, ONE, SHORT, "compute.on_nonfinite=skip")
    step, calls = run.environment.step, []

    def poisoned(action):
        calls.append(action)
        found = step(action)
        return replace(found, reward=found.reward * np.nan) if len(calls) == bad else found

    run.environment.step = poisoned
    found = fitness(run)
    assert run.guard.skipped == {"collect": 1}
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("vector", ["envpool", "native"])
def test_vectors_with_one_seed_for_all_cannot_compare_candidates(vector):
    words = [*WORDS, ONE, f"environment.vectorization={vector}"]
    with pytest.raises(ConfigError, match=f"vectorization={vector} cannot begin the same episode"):
        tiny_config(*words)
    tiny_config(*words, "algorithm.fitness=dream")


@pytest.mark.needs("cma")
def test_dreams_of_now_have_the_temperature_of_now(tiny):
    """From 1 to 3 within 1024 steps: 1 at first, 2 in the middle of the run."""
    words = ["algorithm.temperature={start: 1.0, end: 3.0}", "algorithm.fitness=dream"]
    run = tiny(*WORDS, ONE, *words)
    workflow = run.workflow
    state = {LATENT: torch.zeros(500, 2), **workflow.initial_state(500)}

    def spread():
        rng = torch.Generator().manual_seed(0)
        return workflow.imagination.step(state, torch.zeros(500, 1), rng)[0][LATENT].std().item()

    cold, phase = spread(), {**run.scheduler.view(), "step": 512}
    workflow.sample(run.buffers["replay"], hook="update_controller", phase=phase)
    assert workflow.temperature == 2.0 and spread() > 1.2 * cold
    workflow.collect_step(1024, phase=phase)
    assert workflow.temperature == 3.0


@pytest.mark.parametrize("words", ["lin_1.1", "{start: 1.0, end: 2.0, warmup: 0.1}"])
def test_no_dream_is_without_any_chance(words):
    with pytest.raises(ConfigError, match="temperature: must never be 0: it is divided by"):
        tiny_config(*WORDS, ONE, f"algorithm.temperature={words}")
