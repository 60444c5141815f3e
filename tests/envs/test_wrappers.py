"""Wrappers named in a configuration."""

from typing import Any

import numpy as np
import pytest

from rl_lab.core.errors import UserError
from rl_lab.envs.make import EnvironmentConfig, make_vector


def make(*wrappers: dict[str, Any], id: str = "CartPole-v1") -> Any:
    return make_vector(EnvironmentConfig(id=id, wrappers=list(wrappers)), [0, 1])


def test_masked_components_are_zero_and_the_rest_is_untouched() -> None:
    masked = make({"id": "MaskObservation", "indices": [1, 3]})
    plain = make_vector(EnvironmentConfig(id="CartPole-v1", vectorization="sync"), [0, 1])
    assert masked.spec.observation.shape == (4,)
    assert masked.reset()[:, [0, 2]].tolist() == plain.reset()[:, [0, 2]].tolist()
    for _ in range(60):  # long enough for episodes to end
        left, right = (vector.step(np.ones(2, np.int64)) for vector in (masked, plain))
        for frames, originals in ((left.obs, right.obs), (left.next_obs, right.next_obs)):
            assert not frames[:, [1, 3]].any()
            assert np.array_equal(frames[:, [0, 2]], originals[:, [0, 2]])


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ({"id": "MaskObservation", "indices": [4]}, "0 … 3"),
        ({"id": "MaskObservation", "indices": [-1]}, "0 … 3"),
        ({"id": "MaskObservations", "indices": [0]}, "did you mean 'MaskObservation'"),
        ({"id": "MaskObservation", "index": [0]}, "it takes: indices"),
        ({"id": "MaskObservation"}, "it takes: indices"),
        ({"indices": [0]}, "needs an id"),
    ],
)
def test_mistakes_are_explained(block: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        make(block)


def test_a_mask_needs_a_vector() -> None:
    with pytest.raises(UserError, match="vector observation"):
        make({"id": "MaskObservation", "indices": [0]}, id="FrozenLake-v1")
