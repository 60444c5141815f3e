"""MiniGrid and BabyAI: missions as tokens, and what an agent may see of the grid.

The observation of a MiniGrid environment has a text, the mission. Here it is a row of word numbers
of fixed length, so that every id can be used as it is; the wrappers choose parts or other views.
"""

import io
import zlib
from contextlib import redirect_stdout
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_lab.core import registry
from rl_lab.core.batch import Array
from rl_lab.core.errors import UserError
from rl_lab.core.options import limits

_TEXT = (  # what the missions of MiniGrid and BabyAI are made of
    "a after and at avoid ball behind blue box door end fetch find from front get go goal",
    "green grey hallway in key lava left matching must near next object of on open opening",
    "pick purple put reach red right room rooms square the then to traverse unlock up use",
    "yellow you your",
)
WORDS = " ".join(_TEXT).split()
OTHERS = 16  # numbers for words that are not in the list, by a checksum
VOCABULARY = 1 + len(WORDS) + OTHERS  # 0: there is no word here
MOST_WORDS = 32  # of a mission whose space gives no longest one: those of BabyAI
KINDS = (11, 6, 4)  # codes of a cell: object, color, state
_NUMBERS = {word: 1 + index for index, word in enumerate(WORDS)}


def token(word: str) -> int:
    """The number of a word, which is the same in every run."""
    return _NUMBERS.get(word, 1 + len(WORDS) + zlib.crc32(word.encode()) % OTHERS)


def words(mission: str) -> list[str]:
    """The words of a mission, without punctuation."""
    return mission.lower().replace(",", " ").replace(".", " ").split()


def is_text(space: gym.Space[Any]) -> bool:
    """Whether this is MiniGrid's space of missions."""
    return type(space).__name__.endswith("MissionSpace")


def has_mission(env: gym.Env[Any, Any]) -> bool:
    """Whether the observation has a mission in words."""
    space = env.observation_space
    return isinstance(space, spaces.Dict) and is_text(space.spaces.get("mission", space))


class MissionTokens(gym.ObservationWrapper[Any, Any, Any]):
    """Missions as `length` word numbers, filled up with 0; by default the longest that can occur.

    A longer mission is an error: what was cut off could be what matters.
    """

    def __init__(self, env: gym.Env[Any, Any], length: int | None = None) -> None:
        super().__init__(env)
        if length is not None and (not isinstance(length, int) or length < 1):
            raise UserError(f"mission_words must be a whole number from 1 on, got {length!r}")
        space: Any = env.observation_space
        self.length = length or _longest(space["mission"])
        tokens = spaces.MultiDiscrete([VOCABULARY] * self.length)
        self.observation_space = spaces.Dict({**space.spaces, "mission": tokens})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """A new episode; what BabyAI prints of its attempts is dropped."""
        with redirect_stdout(io.StringIO()):
            return super().reset(seed=seed, options=options)

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """The same with numbers for words."""
        found = [token(word) for word in words(observation["mission"])]
        if len(found) > self.length:
            raise UserError(
                f"a mission of {len(found)} words ('{observation['mission']}') does not fit: "
                f"environment.kwargs.mission_words={len(found)} or more (now {self.length})"
            )
        row = np.zeros(self.length, np.int64)
        row[: len(found)] = found
        return {**observation, "mission": row}


@registry.register("wrapper", "ImgObs")
class ImgObs(gym.ObservationWrapper[Any, Any, Any]):
    """Only the picture: without the mission and the direction."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = _picture(env)

    def observation(self, observation: dict[str, Any]) -> Array:
        """The picture."""
        image: Array = observation["image"]
        return image


@registry.register("wrapper", "RGBImgPartialObs")
class RGBImgPartialObs(gym.ObservationWrapper[Any, Any, Any]):
    """What the agent sees as colors, `tile_size` pixels for each cell, instead of codes."""

    def __init__(
        self, env: gym.Env[Any, Any], tile_size: Annotated[int, limits(low=1)] = 8
    ) -> None:
        super().__init__(env)
        self.tile_size = tile_size
        rows, columns, channels = _picture(env).shape
        pixels = spaces.Box(0, 255, (rows * tile_size, columns * tile_size, channels), np.uint8)
        known: Any = env.observation_space
        self.observation_space = spaces.Dict({**known.spaces, "image": pixels})

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """The same with pixels."""
        inside: Any = self.unwrapped
        return {**observation, "image": inside.get_frame(tile_size=self.tile_size, agent_pov=True)}


@registry.register("wrapper", "FlatGrid")
class FlatGrid(gym.ObservationWrapper[Any, Any, Any]):
    """One vector of zeros and ones: object, color and state of every cell, and the direction.

    It goes through an MLP, which is much faster on a CPU than convolutions. The mission is left
    out: it is for tasks whose mission never changes.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        cells = int(np.prod(_picture(env).shape[:2]))
        self.observation_space = spaces.Box(0.0, 1.0, (cells * sum(KINDS) + 4,), np.float32)

    def observation(self, observation: dict[str, Any]) -> Array:
        """Cell by cell."""
        codes = observation["image"].reshape(-1, len(KINDS))
        columns = [np.eye(n, dtype=np.float32)[codes[:, i]] for i, n in enumerate(KINDS)]
        direction = np.eye(4, dtype=np.float32)[observation["direction"]]
        return np.concatenate([np.concatenate(columns, 1).ravel(), direction])


def _picture(env: gym.Env[Any, Any]) -> spaces.Box:
    space = env.observation_space
    image = space.spaces.get("image") if isinstance(space, spaces.Dict) else None
    if not isinstance(image, spaces.Box):
        raise UserError("needs an observation with an image, such as MiniGrid's")
    return image


def _longest(space: Any) -> int:
    """Words of the longest mission, as far as the space says it."""
    if type(space).__name__ != "MissionSpace":
        return MOST_WORDS
    options = space.ordered_placeholders or []
    longest = [max(each, key=lambda option: len(words(option))) for each in options]
    return len(words(space.mission_func(*longest)))
