"""Arguments of a class or function, checked like the options of a config."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import pytest

from rl_lab.core.checker import arguments_class, check
from rl_lab.core.errors import ConfigError
from rl_lab.core.options import limits

FIRST = np.zeros(2)


class Annotations:
    """What a wrapper of ours looks like."""

    def __init__(
        self,
        env: Any,
        frames: Annotated[int, limits(low=1)],
        bins: Annotated[int | Sequence[int], limits(low=1, not_empty=True)] = 10,
        fast: bool = False,
    ) -> None: ...


class Inherited(Annotations):
    """Takes what its base takes."""


class Foreign:
    """No annotations, one that nobody can check, and a default that is no plain value."""

    def __init__(self, env, size, shape: np.ndarray = FIRST, note: Annotated[int, "free"] = 1): ...


@pytest.mark.parametrize("factory", [Annotations, Inherited])
def test_types_and_ranges_of_arguments(factory) -> None:
    made = check(arguments_class(factory), {"frames": "4", "bins": [2, 3.0]})
    assert (made.frames, made.bins, made.fast) == (4, [2, 3], False)
    with pytest.raises(ConfigError) as caught:
        check(arguments_class(factory), {"frames": 0, "bins": [2, 0], "fast": 1, "slow": 1})
    assert caught.value.problems == [
        "slow: unknown key (known: bins, fast, frames)",
        "fast: must be true or false, got 1",
        "frames: must be at least 1, got 0",
        "bins[1]: must be at least 1, got 0",
    ]
    with pytest.raises(ConfigError, match="frames: is required"):
        check(arguments_class(factory), {})
    with pytest.raises(ConfigError, match="bins: must be at least 1, got 0"):
        check(arguments_class(factory), {"frames": 1, "bins": 0})


def test_what_has_no_annotation_may_be_anything() -> None:
    made = check(arguments_class(Foreign), {"size": {"any": 1}})
    assert made.size == {"any": 1} and made.shape is FIRST and made.note == 1
    with pytest.raises(ConfigError, match="size: is required"):
        check(arguments_class(Foreign), {"shape": 3})
