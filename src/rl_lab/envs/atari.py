"""ale_py's own vector of Atari games: emulation and preprocessing in C++, `vectorization: native`.

It shows gray frames of 84 x 84, the last four of them, where a single `ALE/…` environment shows
one frame in color: the two are different tasks, and no choice of `auto` goes from one to the
other.
"""

from collections.abc import Mapping
from typing import Any

from rl_lab.core.errors import UserError

VECTOR = "ale_py.vector_env"  # the module of the vector's class
STACKED = 4  # frames that it shows, unless `stack_num` says otherwise

# Its own defaults clip rewards, in evaluation too: a return would not be the game's any more.
_OWN_DEFAULTS = {"reward_clipping": False}
_TRAINING_ONLY = {"reward_clipping": False, "episodic_life": False}  # and what evaluation takes
_REFUSED = {
    "batch_size": "every step must return all environments",
    "life_loss_info": "it marks ends that are none; episodic_life does it with a reset",
}


def arguments(
    kwargs: Mapping[str, Any], max_episode_steps: int | None, *, training: bool
) -> dict[str, Any]:
    """What the vector is made with: the user's `kwargs`, without what must not reach evaluation."""
    for name, reason in _REFUSED.items():
        if name in kwargs:
            raise UserError(f"environment.kwargs.{name} cannot be used here: {reason}")
    if max_episode_steps is not None:
        raise UserError(
            "environment.max_episode_steps needs environment.vectorization=sync or process: the "
            "native vector of Atari counts frames (kwargs: {max_num_frames_per_episode: 108000})"
        )
    given = {**_OWN_DEFAULTS, **kwargs}
    return given if training else {**given, **_TRAINING_ONLY}
