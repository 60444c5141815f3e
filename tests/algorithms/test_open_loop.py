"""Pictures of what was foreseen show one episode, and nothing behind its end."""

import numpy as np
import pytest

from extras import installed_case
from tiny_world_models import ONE, WORDS

SIZES = {"deter": 8, "hidden": 8, "stoch": 3, "units": 8, "layers": 1, "channels": 2}
SIZES |= {"train_every": 16, "learning_starts": 10_000}  # plans take their time
LIMIT = "environment.max_episode_steps="


def made(tiny, name, limit, collects):
    if name == "world_models":
        run = tiny(*WORDS, ONE, f"{LIMIT}{limit}")
    else:
        own = [f"algorithm.{key}={value}" for key, value in SIZES.items()]
        run = tiny("CartPole-v1:random", f"algorithm.name={name}", *own, f"{LIMIT}{limit}")
    for _ in range(collects):
        run.execute("collect")
        run.scheduler.hook = 0
    return run


@pytest.mark.parametrize("name", [installed_case("world_models"), "dreamer_v3", "planet"])
def test_a_picture_ends_with_the_episode(tiny, name):
    """Episodes of 9 steps have 10 frames: 5 are seen, 5 are foreseen."""
    run = made(tiny, name, 9, 4)
    window = run.buffers["replay"].newest(20)
    assert len(window["reset"]) == 10 and not window["reset"][1:].any()
    (picture,) = run.workflow.pictures([]).values()
    assert picture.title == "obs, predicted after 5 frames"
    (layer,) = picture.layers
    truth = window["obs"][5:, 0].numpy()
    if name == "world_models":
        assert [len(strip) for strip in layer.strips] == [5, 5, 5]
        np.testing.assert_allclose(layer.strips[0], truth / 255, atol=1e-6)
    else:
        np.testing.assert_allclose(layer.paths[0][:, 1], truth[:, 0], atol=1e-6)


@pytest.mark.needs("cma")
def test_an_episode_that_ends_before_anything_can_be_foreseen_is_not_drawn(tiny):
    assert made(tiny, "world_models", 4, 4).workflow.pictures([]) == {}
    assert made(tiny, "world_models", 5, 4).workflow.pictures([])
