"""ale_py's own vector behind `vectorization: native`, and ALE ids without a prefix."""

import importlib.util
import subprocess
import sys
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_lab.core.errors import UserError
from rl_lab.core.schema import EnvironmentConfig
from rl_lab.envs import atari
from rl_lab.envs.make import make_vector, single_spaces
from rl_lab.envs.vector import GymnasiumVector

ID = "ALE/Breakout-v5"
SHORT = {"max_num_frames_per_episode": 80, "noop_max": 10}


def native(training: bool = True, **kwargs: Any) -> GymnasiumVector:
    pytest.importorskip("ale_py")
    config = EnvironmentConfig(id=ID, num_envs=3, vectorization="native", kwargs=kwargs)
    vector = make_vector(config, [1, 2, 3], training=training)
    assert isinstance(vector, GymnasiumVector)
    return vector


def columns(vector: GymnasiumVector, rows: int) -> list[list[tuple[Any, ...]]]:
    """The real transitions of each environment. The action depends on its row, not on the time."""
    found: list[list[tuple[Any, ...]]] = [[] for _ in range(3)]
    obs = vector.reset()
    while min(len(each) for each in found) < rows:
        action = np.array([len(each) % 4 for each in found])
        step = vector.step(action)
        for i, each in enumerate(found):
            if step.valid is None or step.valid[i]:
                flags = (bool(step.terminated[i]), bool(step.truncated[i]))
                frames = (obs[i].tobytes(), step.next_obs[i].tobytes())
                each.append((float(step.reward[i]), *flags, *frames))
        obs = step.obs
    return [each[:rows] for each in found]


def test_it_shows_four_grey_frames_where_a_single_one_shows_colour() -> None:
    vector = native()
    assert vector.spec.observation.shape == (4, 84, 84) and vector.reset().dtype == np.uint8
    assert vector.snapshot_level == "E3"
    config = EnvironmentConfig(id=ID, vectorization="native")
    assert single_spaces(config)[0].shape == (4, 84, 84)
    assert single_spaces(EnvironmentConfig(id=ID))[0].shape == (210, 160, 3)


def test_both_of_its_reset_modes_tell_the_same_real_transitions() -> None:
    late = columns(native(**SHORT), 70)
    same_step = columns(native(**SHORT, autoreset_mode="SameStep"), 70)
    assert late == same_step
    ends = [row for column in late for row in column if row[1] or row[2]]
    assert len(ends) > 6 and all(row[2] and not row[1] for row in ends)  # only the clock ended them
    for column in late:
        for row, following in pairwise(column):
            # Within an episode the next row begins where this one ended; after an end it does not.
            assert (row[4] == following[3]) != (row[1] or row[2])


def test_rewards_are_the_games_own_and_lives_end_no_episode_in_evaluation() -> None:
    given = {"reward_clipping": True, "episodic_life": True, "noop_max": 3}
    assert atari.arguments(given, None, training=True) == given
    assert atari.arguments(given, None, training=False) == {
        "reward_clipping": False,
        "episodic_life": False,
        "noop_max": 3,
    }
    assert atari.arguments({}, None, training=True) == {"reward_clipping": False}


@pytest.mark.parametrize("training", [True, False])
def test_a_life_is_an_episode_only_in_training(training: bool) -> None:
    vector = native(training, episodic_life=True)
    vector.reset()
    ends = 0
    for _ in range(90):  # a ball is lost after some twenty steps
        ends += int(vector.step(np.ones(3, np.int64)).terminated.sum())
    assert (ends > 3) == training


def test_what_would_break_a_transition_is_refused() -> None:
    for name in ("batch_size", "life_loss_info"):
        with pytest.raises(UserError, match=f"environment.kwargs.{name} cannot be used here"):
            atari.arguments({name: 2}, None, training=True)
    with pytest.raises(UserError, match="max_num_frames_per_episode"):
        atari.arguments({}, 100, training=True)


def test_it_does_not_speak_for_other_vectors() -> None:
    native()
    assert gym.vector.VectorEnv.metadata == {}


def test_ids_are_found_without_a_prefix() -> None:
    if importlib.util.find_spec("ale_py") is None:
        with pytest.raises(UserError, match=r"ALE/Pong-v5.*pip install 'rl-lab\[atari\]'`$"):
            make_vector(EnvironmentConfig(id="ALE/Pong-v5"), [0])
        return
    for question in ("find('ALE/Pong-v5').id", "list_environments('ale/pong-v5')[0]"):
        # In a new process: here another test may have imported the package.
        script = f"from rl_lab.envs.make import find, list_environments; print({question})"
        answer = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
        assert answer.stdout == b"ALE/Pong-v5\n"
    with pytest.raises(UserError, match="did you mean 'ALE/Pong-v5'"):
        make_vector(EnvironmentConfig(id="ALE/Pogn-v5"), [0])
