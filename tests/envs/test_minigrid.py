"""MiniGrid, BabyAI and POPGym: missions as numbers, views of the grid, exact resume."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_lab.core.errors import UserError
from rl_lab.core.schema import EnvironmentConfig
from rl_lab.core.spec import Box, Dict, Discrete, MultiDiscrete
from rl_lab.core.state import fingerprint
from rl_lab.envs import make as making
from rl_lab.envs.check import check_env
from rl_lab.envs.make import families, list_environments, make_vector, needed_extra
from rl_lab.envs.minigrid import KINDS, MOST_WORDS, VOCABULARY, WORDS, token, words
from tiny_runs import tiny_run

needs_minigrid = pytest.mark.needs("minigrid")
needs_popgym = pytest.mark.needs("popgym")
MEMORY = "MiniGrid-MemoryS7-v0"


def vector(id: str, *wrappers: str, count: int = 2, **settings: Any) -> Any:
    blocks = [{"id": name} for name in wrappers]
    config = EnvironmentConfig(id=id, num_envs=count, wrappers=blocks, **settings)
    return make_vector(config, list(range(count)))


def actions(space: Any, count: int) -> Any:
    random = np.random.default_rng(0)
    if isinstance(space, Discrete):
        return random.integers(0, space.n, (count, 2))
    if isinstance(space, MultiDiscrete):
        return random.integers(0, space.nvec, (count, 2, len(space.nvec)))
    return random.uniform(-1, 1, (count, 2, *space.shape)).astype(np.float32)


def test_words_have_fixed_numbers_and_unknown_ones_go_behind_them() -> None:
    assert words("Go to the Red ball, then open a door.") == [
        "go",
        "to",
        "the",
        "red",
        "ball",
        "then",
        "open",
        "a",
        "door",
    ]
    assert (token("a"), token("your")) == (1, len(WORDS)) and len(set(WORDS)) == len(WORDS)
    assert len(WORDS) < token("zebra") < VOCABULARY and token("zebra") == token("zebra")


@needs_minigrid
def test_a_mission_is_a_row_of_numbers() -> None:
    made = vector(MEMORY)
    obs = made.reset()
    said = "go to the matching object at the end of the hallway"
    assert obs["mission"].tolist() == [[token(word) for word in said.split()]] * 2
    assert isinstance(made.spec.observation, Dict)
    parts = made.spec.observation.parts
    assert parts["mission"] == MultiDiscrete((VOCABULARY,) * 11)
    assert parts["direction"] == Discrete(4) and parts["image"].shape == (3, 7, 7)


@needs_minigrid
def test_missions_of_different_lengths_are_filled_up() -> None:
    made = vector("MiniGrid-Fetch-5x5-N2-v0", count=8)
    missions = made.reset()["mission"]
    texts = [env.unwrapped.mission for env in made.envs]
    longest = "you must fetch a yellow ball"
    assert missions.shape == (8, len(longest.split())) and len(set(texts)) > 2
    for row, text in zip(missions, texts, strict=True):
        found = [token(word) for word in text.split()]
        assert row.tolist() == found + [0] * (6 - len(found))


@needs_minigrid
def test_babyai_has_room_for_many_words_and_says_when_there_are_more(capsys: Any) -> None:
    assert vector("BabyAI-GoToRedBall-v0").reset()["mission"].shape == (2, MOST_WORDS)
    short = {"kwargs": {"mission_words": 3}}
    with pytest.raises(UserError, match=r"a mission of 5 words .*kwargs.mission_words=5 or more"):
        vector("BabyAI-GoToRedBall-v0", **short).reset()
    with pytest.raises(UserError, match="mission_words must be a whole number from 1 on, got 0"):
        vector("BabyAI-GoToRedBall-v0", kwargs={"mission_words": 0})
    made = vector("BabyAI-UnblockPickup-v0", count=1)
    for _ in range(5):
        made.reset()
    assert capsys.readouterr().out == ""  # BabyAI prints how it looked for a level
    with pytest.raises(UserError, match="mission_words"):
        vector("CartPole-v1", vectorization="sync", **short)


@needs_minigrid
def test_views_of_the_grid_by_hand() -> None:
    three = {"kwargs": {"agent_view_size": 3}}
    codes = vector(MEMORY, "ImgObs", **three)
    image = codes.reset()
    inside = codes.envs[0].unwrapped.gen_obs()
    assert image.shape == (2, 3, 3, 3) and image.dtype == np.uint8
    assert np.array_equal(image[0], inside["image"].transpose(2, 0, 1))
    flat = vector(MEMORY, "FlatGrid", **three)
    row = flat.reset()[0]
    assert row.shape == (9 * sum(KINDS) + 4,) and row.sum() == 9 * 3 + 1
    cell = inside["image"][1, 2]  # the fifth of nine, if 0 is the first: 1 * 3 + 2
    part = row[5 * sum(KINDS) : 6 * sum(KINDS)]
    assert np.flatnonzero(part).tolist() == [cell[0], 11 + cell[1], 17 + cell[2]]
    assert np.flatnonzero(row[-4:]).tolist() == [inside["direction"]]
    colours = vector(MEMORY, "RGBImgPartialObs", "ImgObs", **three)
    pixels = colours.reset()
    assert pixels.shape == (2, 3, 24, 24)
    frame = colours.envs[0].unwrapped.get_frame(tile_size=8, agent_pov=True)
    assert np.array_equal(pixels[0], frame.transpose(2, 0, 1))
    with pytest.raises(UserError, match="wrapper ImgObs: needs an observation with an image"):
        vector("CartPole-v1", "ImgObs")


@needs_minigrid
def test_an_episode_ends_as_the_environment_or_the_limit_says() -> None:
    own = vector(MEMORY, "ImgObs", kwargs={"max_steps": 5})
    limited = vector(MEMORY, "ImgObs", max_episode_steps=5)
    for made in (own, limited):
        made.reset()
        ends = [made.step(np.zeros(2, np.int64)) for _ in range(5)]
        assert [each.truncated.all() for each in ends] == [False] * 4 + [True]
        assert not any(each.terminated.any() for each in ends)
    assert limited.spec.max_episode_steps == 5
    # Ten steps to the matching object: 1 - 0.9 * steps / max_steps, the environment's own rule.
    found = vector(MEMORY, "ImgObs", count=1)
    found.reset()
    env = found.envs[0].unwrapped
    column, row = env.success_pos  # one step from the middle of the hallway, row 3
    env.agent_pos, env.agent_dir, env.step_count = (column, 3), 3 if row < 3 else 1, 9
    step = found.step(np.array([2]))
    assert step.terminated.all() and step.reward[0] == pytest.approx(1 - 0.9 * 10 / (5 * 49))


@needs_minigrid
@pytest.mark.parametrize("id", [MEMORY, "MiniGrid-DoorKey-5x5-v0", "BabyAI-GoToLocal-v0"])
def test_minigrid_goes_on_exactly(id: str) -> None:
    one, other = vector(id), vector(id)
    one.reset()
    other.reset([8, 9])
    given = actions(one.spec.action, 60)
    for action in given[:20]:
        one.step(action)
    other.load_state_dict(one.state_dict())
    for action in given[20:]:
        left, right = one.step(action), other.step(action)
        assert np.array_equal(left.reward, right.reward)
        assert all(np.array_equal(left.obs[key], right.obs[key]) for key in left.obs)
    assert fingerprint(one.state_dict()) == fingerprint(other.state_dict())


@needs_minigrid
def test_the_check_of_environments_proves_minigrid() -> None:
    report = check_env(MEMORY, steps=20)
    assert (report.level, report.reason) == ("E0", None)


@needs_minigrid
@pytest.mark.parametrize(
    "words_typed",
    [
        ("MiniGrid-MemoryS7-v0:ppo_gru",),
        ("MiniGrid-DoorKey-5x5-v0:ppo", "environment.wrappers=[]"),  # the picture and the mission
    ],
)
def test_a_run_learns_from_it(tmp_path: Any, words_typed: tuple[str, ...]) -> None:
    assert tiny_run(tmp_path, *words_typed, "training.total_timesteps=64").exit_code == 0


@needs_popgym
@pytest.mark.parametrize(
    ("id", "observation", "action"),
    [
        ("popgym-RepeatPreviousEasy-v0", Discrete(4), Discrete(4)),
        ("popgym-CountRecallEasy-v0", MultiDiscrete((2, 2)), Discrete(27)),
        ("popgym-AutoencodeEasy-v0", Dict, Discrete(4)),
        ("popgym-PositionOnlyPendulumEasy-v0", Box, Box),
        ("popgym-BattleshipEasy-v0", None, MultiDiscrete((8, 8))),
    ],
)
def test_popgym_runs_and_goes_on_exactly(id: str, observation: Any, action: Any) -> None:
    one, other = vector(id), vector(id)
    for wanted, seen in ((observation, one.spec.observation), (action, one.spec.action)):
        assert (
            wanted is None
            or seen == wanted
            or (isinstance(wanted, type) and isinstance(seen, wanted))
        )
    one.reset()
    given = actions(one.spec.action, 40)
    for each in given[:10]:
        one.step(each)
    other.load_state_dict(one.state_dict())
    for each in given[10:]:
        left, right = one.step(each), other.step(each)
        assert np.array_equal(left.reward, right.reward)
    assert fingerprint(one.state_dict()) == fingerprint(other.state_dict())
    assert one.snapshot_level == "E0"


@needs_popgym
def test_a_run_learns_from_popgym(tmp_path: Any) -> None:
    words_typed = ("popgym-AutoencodeEasy-v0:ppo_gru", "training.total_timesteps=64")
    assert tiny_run(tmp_path, *words_typed).exit_code == 0


@needs_popgym
def test_our_repeat_previous_has_popgyms_rules() -> None:
    making.find("popgym-RepeatPreviousEasy-v0")  # imports it
    theirs = gym.make("popgym-RepeatPreviousEasy-v0", disable_env_checker=True).unwrapped
    ours = gym.make("RepeatPrevious-v0", disable_env_checker=True).unwrapped
    seen = [int(theirs.reset(seed=3)[0])]
    ours.reset(seed=0)
    answers = np.random.default_rng(1).integers(0, 4, 51)
    rewards, over = [], []
    for answer in answers:
        obs, reward, ended, *_ = theirs.step(int(answer))
        seen.append(int(obs))
        rewards.append(reward)
        over.append(ended)
    ours.state = {"pack": np.array([seen]), "dealt": np.array([1])}
    again = [ours.step(int(answer)) for answer in answers]
    assert [each[0] for each in again] == seen[1:]
    assert [each[1] for each in again] == pytest.approx(rewards)
    assert [each[2] for each in again] == over


def test_families_and_what_they_need_are_listed() -> None:
    found = {start: (package, there) for start, package, there in families()}
    assert found["BabyAI, MiniGrid"][0] == "rl-lab[minigrid]"
    assert found["popgym"][0] == "rl-lab[popgym]"
    assert any("MysteryPath" in start and "--no-deps" in each[0] for start, each in found.items())


@needs_minigrid
def test_ids_say_the_extra_they_need() -> None:
    assert len(list_environments("babyai")) > 90
    assert needed_extra(MEMORY) == "minigrid"


def test_a_family_that_is_not_installed_is_one_line(monkeypatch: Any) -> None:
    monkeypatch.setattr(making.importlib.util, "find_spec", lambda name: None)
    advice = {
        "MysteryPath-Grid-v9": "pip install --no-deps memory-gym==1.0.2",
        "MiniGrid-Nothing-v9": "pip install 'rl-lab[minigrid]'",
        "popgym-Nothing-v9": "pip install 'rl-lab[popgym]'",
    }
    for id, command in advice.items():
        with pytest.raises(UserError) as caught:
            making.find(id)
        assert f"install it with `{command}`" in str(caught.value)
