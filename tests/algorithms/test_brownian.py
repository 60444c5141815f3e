"""The random walk of actions: where it begins, how far it goes, and that it stays within bounds."""

import pytest

BROWNIAN = ["PixelTrack-v0:random", "algorithm.name=brownian", "algorithm.collect_steps=30"]


@pytest.fixture
def rows(tiny):
    run = tiny(*BROWNIAN, "environment.max_episode_steps=6", "environment.num_envs=40")
    return run.workflow.collect_step(0, phase=run.scheduler.view()).trajectory


def test_it_walks_and_stays_within_bounds(rows):
    action, reset = rows["action"].squeeze(-1), rows["reset"]
    assert action.abs().max() <= 1
    step = (action[1:] - action[:-1])[~reset[1:]]
    assert 0.12 < step.std() < 0.16  # a stride of 0.15, cut at the bounds


def test_every_episode_begins_anywhere_in_the_range(rows):
    """Uniform numbers in [−1, 1]: mean 0, deviation 0.577, and all of them different."""
    first = rows["action"].squeeze(-1)[rows["reset"]]
    assert len(first) == len(first.unique()) >= 200
    assert abs(first.mean()) < 0.15
    assert first.std().item() == pytest.approx(0.577, abs=0.06)


def test_bounds_of_all_kinds(tiny):
    """Pendulum's torque is in [−2, 2]: the walk and its beginning are in these units."""
    words = [*BROWNIAN[1:], "environment.max_episode_steps=1", "environment.num_envs=8"]
    run = tiny("Pendulum-v1:random", *words)
    first = run.workflow.collect_step(0, phase=run.scheduler.view()).trajectory["action"]
    assert 1 < first.abs().max() <= 2
