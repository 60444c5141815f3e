"""Hindsight experience replay (Andrychowicz et al. 2017, arXiv:1707.01495), for tasks with goals.

A transition that missed its goal has reached something. Most rows of a sample get a goal that was
really achieved, and the reward that the environment would have paid for it. What is stored stays
as it was: goals are drawn again for every sample.

Observations are dicts with `observation`, `achieved_goal` and `desired_goal`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rl_lab.buffers.episodes import Episodes
from rl_lab.buffers.replay_buffer import UniformConfig, UniformReplay
from rl_lab.core.batch import NEXT_OBS, OBS, REWARD, TERMINATED, TRUNCATED, Array, Batch
from rl_lab.core.errors import UserError
from rl_lab.core.options import option
from rl_lab.core.protocols import BufferSetup
from rl_lab.core.spec import Dict

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"


@dataclass(frozen=True, kw_only=True)
class HindsightConfig(UniformConfig):
    """Which goals are put in, and how often."""

    type: str = option("her", "goals are replaced by what was achieved")
    strategy: Literal["future", "final", "episode", "random"] = option(
        "future", "a goal achieved later in the episode, at its end, anywhere in it, or anywhere"
    )
    ratio: float = option(4.0, "rows with a new goal for each row with its own", low=0)
    success_reward: float | None = option(
        None, "for tasks that terminate at the goal: a new reward of at least this terminates"
    )


class HindsightReplay(UniformReplay):
    """Uniform draws; a share of ratio / (ratio + 1) of every minibatch gets other goals.

    Without `success_reward`, `terminated` stays that of the environment: most tasks with goals
    never terminate. An episode that is still played offers the goals it has achieved so far.
    """

    Config = HindsightConfig
    config: HindsightConfig

    def __init__(self, config: HindsightConfig, setup: BufferSetup) -> None:
        space, pay = setup.spec.observation, setup.goal_reward
        if not isinstance(space, Dict) or not {ACHIEVED, DESIRED} <= set(space.parts):
            raise UserError(
                f"her needs observations with {ACHIEVED} and {DESIRED}, {setup.spec.id} has none"
            )
        if pay is None:
            raise UserError(
                f"her needs an environment with compute_reward, and no wrapper that changes "
                f"rewards: {setup.spec.id} has none, or has one"
            )
        super().__init__(config, setup)
        self.pay = pay
        self.episodes = Episodes(self.ring)

    def needed_bytes(self, rows: int) -> int:
        """The rows, and two numbers for each about its episode."""
        return super().needed_bytes(rows) + 16 * rows * self.setup.num_envs

    def add(self, trajectory: Batch) -> None:
        """Take a copy, and note where episodes begin and end."""
        before = self.ring.total
        super().add(trajectory)
        self.episodes.update(before)

    def sample(
        self,
        batch_size: int,
        count: int = 1,
        *,
        n_step: int = 1,
        beta: float = 1.0,
        only: Sequence[str] = (),
    ) -> Batch:
        """`count` minibatches at once, [count, batch_size, …], new goals in the first rows."""
        if n_step != 1:
            raise UserError(f"her works with n_step 1, got {n_step}")
        number = self.draw(batch_size * count)
        batch = self.transitions(number, 1)
        share = self.config.ratio / (self.config.ratio + 1.0)
        relabeled = np.arange(batch_size) < round(share * batch_size)
        self.relabel(batch, number, np.flatnonzero(np.tile(relabeled, count)))
        shown = {key: batch[key] for key in self.wanted(only)}
        return self.as_tensors(shown, (count, batch_size))

    def relabel(self, batch: Batch, number: Array, rows: Array) -> None:
        """Give these rows of a batch goals that were achieved, and what they are worth then."""
        chosen = self.choose(number[rows])
        goal = self.ring.next_frame(f"{OBS}/{ACHIEVED}", chosen)
        batch[OBS][DESIRED][rows] = goal
        batch[NEXT_OBS][DESIRED][rows] = goal
        reward = self.pay(batch[NEXT_OBS][ACHIEVED][rows], goal)
        batch[REWARD][rows] = reward
        if self.config.success_reward is not None:
            reached = np.asarray(reward) >= self.config.success_reward
            batch[TERMINATED][rows] = reached
            batch[TRUNCATED][rows] &= ~reached  # both flags: it is a termination

    def choose(self, number: Array) -> Array:
        """Transitions whose outcome becomes the goal; `future` may be the transition's own."""
        if self.config.strategy == "random":
            return self.draw(len(number))
        last = self.episodes.last(number)
        if self.config.strategy == "final":
            return last
        first = number if self.config.strategy == "future" else self.episodes.first(number)
        steps = (last - first) // self.ring.num_envs + 1
        return first + self.ring.num_envs * self.setup.rng.integers(steps)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The same rows; where their episodes begin and end follows from them."""
        super().load_state_dict(state)
        self.episodes = Episodes(self.ring)
        if self.ring.total:
            self.episodes.update(0)
