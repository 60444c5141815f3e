"""Play episodes of one environment with one policy, and show each frame."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Played:
    """One whole episode: what it paid, how long it was, and whether the task ended it."""

    total: float
    length: int
    terminated: bool  # otherwise it was cut, by its time limit or by `max_steps`


def nothing() -> None:
    """Do nothing."""


def play(
    env: Any,
    act: Callable[[Any], Any],
    *,
    seeds: Sequence[int],
    max_steps: int | None = None,
    begin: Callable[[], None] = nothing,
    show: Callable[[], None] = nothing,
    stepped: Callable[[Any, float], None] = lambda obs, reward: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Iterator[Played]:
    """One episode for each seed, in a single environment of Gymnasium's kind.

    `begin` is called before every episode, `show` at every frame of it: the first one, and the one
    after each step; `stepped` after each step, with what it brought. `interrupted` is called before
    every step; it ends the iterator.
    """
    for seed in seeds:
        begin()
        obs, _ = env.reset(seed=seed)
        show()
        total, length, terminated, over = 0.0, 0, False, False
        while not over:
            if interrupted():
                return
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            total, length = total + float(reward), length + 1
            over = terminated or truncated or length == max_steps
            stepped(obs, float(reward))
            show()
        yield Played(total, length, bool(terminated))
