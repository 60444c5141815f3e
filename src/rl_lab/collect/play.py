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


@dataclass(frozen=True)
class Moment:
    """An episode that is being played: what is seen, what it paid, and whether it is over."""

    obs: Any = None
    reward: float = 0.0  # of the last step
    total: float = 0.0
    length: int = 0
    terminated: bool = False
    over: bool = False


def episode(
    env: Any, act: Callable[[Any], Any], seed: int, *, max_steps: int | None = None
) -> Iterator[Moment]:
    """An episode of a single environment of Gymnasium's kind: its begin, and every step of it."""
    obs, _ = env.reset(seed=seed)
    now = Moment(obs)
    yield now
    while not now.over:
        obs, reward, terminated, truncated, _ = env.step(act(obs))
        length = now.length + 1
        over = bool(terminated or truncated or length == max_steps)
        paid = float(reward)
        now = Moment(obs, paid, now.total + paid, length, bool(terminated), over)
        yield now


def play(
    env: Any,
    act: Callable[[Any], Any],
    *,
    seeds: Sequence[int],
    max_steps: int | None = None,
    begin: Callable[[], None] = nothing,
    show: Callable[[], None] = nothing,
    interrupted: Callable[[], bool] = lambda: False,
) -> Iterator[Played]:
    """One episode for each seed, in a single environment of Gymnasium's kind.

    `begin` is called before every episode, `show` at every frame of it: the first one, and the one
    after each step. `interrupted` is called before every step; it ends the iterator.
    """
    for seed in seeds:
        begin()
        now = Moment()
        for now in episode(env, act, seed, max_steps=max_steps):
            show()
            if not now.over and interrupted():
                return
        yield Played(now.total, now.length, now.terminated)
