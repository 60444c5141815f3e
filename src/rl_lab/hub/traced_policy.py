"""A trained policy as one torch module of tensors only: what an export to another runtime traces.

Inputs are what the environment shows, a batch of it, and the memory's state; outputs the action as
the environment takes it, the next state, and probabilities on request. The normalizer is inside.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rl_lab.algorithms.base import Algorithm
from rl_lab.core.batch import PROBABILITIES, Obs
from rl_lab.core.errors import UserError
from rl_lab.core.learner import Learner
from rl_lab.envs.make import single_spaces
from rl_lab.envs.spaces import Frames, Part
from rl_lab.run.policy import LoadedPolicy

OBS, ACTION, MEMORY, NEXT = "obs", "action", "memory", "next_memory"
Path = tuple[str, ...]  # of one tensor in a memory's state


class TracedPolicy(nn.Module):
    """`forward(*observation, *memory)` gives `(action, *next_memory[, probabilities])`, N rows."""

    def __init__(self, loaded: LoadedPolicy, *, probabilities: bool = False) -> None:
        super().__init__()
        self.algorithm = loaded.algorithm
        observation, self.space = single_spaces(loaded.config.environment)
        self.frames = Frames(observation)
        self.stretch = getattr(loaded.context.train_environment, "stretch", None)
        self.probabilities = probabilities
        self.networks = nn.ModuleList(_modules(self.algorithm))
        for parameter in self.networks.parameters():
            # A tensor of its own: a view of a learner's flat vector would be exported as a whole.
            parameter.data = parameter.detach().clone()
            parameter.requires_grad_(False)
        self.memory = dict(flat(self.algorithm.initial_state(1)))

    @property
    def inputs(self) -> list[str]:
        """The names of the inputs, in order."""
        return [*(_joined(OBS, name) for name in self.frames.parts), *self._named(MEMORY)]

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs, in order."""
        more = [PROBABILITIES] if self.probabilities else []
        return [ACTION, *self._named(NEXT), *more]

    def example(self, rows: int) -> tuple[Tensor, ...]:
        """Inputs of the right shapes: zeros, and the memory as an episode begins."""
        frames = [
            torch.zeros(rows, *part.shape, dtype=_dtype(part))
            for part in self.frames.parts.values()
        ]
        fresh = dict(flat(self.algorithm.initial_state(rows)))
        return (*frames, *fresh.values())

    def single(self, obs: Obs) -> tuple[Tensor, ...]:
        """One observation as inputs, without the memory."""
        found = [np.asarray(part.of(obs), part.dtype)[None] for part in self.frames.parts.values()]
        return tuple(torch.from_numpy(np.ascontiguousarray(each)) for each in found)

    def fresh_memory(self) -> tuple[Tensor, ...]:
        """The memory's inputs where an episode begins, of one row."""
        return tuple(self.memory.values())

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """One decision for N environments."""
        count = len(self.frames.parts)
        parts = dict(zip(self.frames.parts, inputs[:count], strict=True))
        seen: dict[str, Tensor] = {
            name: _converted(part, parts[name]) for name, part in self.frames.parts.items()
        }
        obs = seen[""] if self.frames.plain else seen
        state = _nested(dict(zip(self.memory, inputs[count:], strict=True)))
        decided = self.algorithm.greedy(obs, state if self.memory else None)
        after = dict(flat(decided.state)) if self.memory else {}
        more = [decided.extras[PROBABILITIES]] if self.probabilities else []
        outputs = [decided.action, *(after[path] for path in self.memory), *more]
        if not all(isinstance(each, Tensor) for each in outputs):
            raise TypeError("they do not act by tensors alone")
        action, *others = cast(list[Tensor], outputs)
        return (self._own_units(action), *others)

    def _named(self, prefix: str) -> list[str]:
        return ["_".join((prefix, *path)) for path in self.memory]

    def _own_units(self, action: Tensor) -> Tensor:
        """As the environment takes it: within its bounds, its first index added."""
        space = self.space
        if not isinstance(space, gym.spaces.Box):
            start = torch.as_tensor(np.asarray(getattr(space, "start", 0)), dtype=action.dtype)
            return action.reshape(-1, *(space.shape or ())) + start
        rows = action.reshape(-1, *space.shape)
        low, high = torch.from_numpy(space.low.copy()), torch.from_numpy(space.high.copy())
        if self.stretch is not None:
            rows = low + (rows.clamp(-1.0, 1.0) + 1.0) * ((high - low) / 2)
        rows = torch.minimum(torch.maximum(rows, low), high)
        return rows.round() if space.dtype.kind in "iu" else rows


def check_tensors(policy: TracedPolicy, algorithm: str) -> None:
    """One decision, to say in one line what cannot be exported."""
    try:
        with torch.no_grad():
            policy(*policy.example(2))
    except KeyError as error:
        if error.args != (PROBABILITIES,):
            raise
        raise UserError(f"--probabilities: {algorithm} has none to export here") from error
    except (AttributeError, TypeError, RuntimeError, NotImplementedError) as error:
        raise UserError(
            f"{algorithm} policies cannot be exported: {str(error).splitlines()[0]}"
        ) from error


def _modules(algorithm: Algorithm) -> list[nn.Module]:
    """The networks that an algorithm holds, by themselves or in learners."""
    parts = list(algorithm.parts().values())
    found = [part.module if isinstance(part, Learner) else part for part in parts]
    return [each for each in found if isinstance(each, nn.Module)]


def _converted(part: Part, rows: Tensor) -> Tensor:
    """What `Part.convert` does to arrays, on tensors."""
    if part.convert is None:
        return rows
    wanted = part.space.shape
    if len(part.shape) == 3 and len(wanted) == 3:
        return rows.permute(0, 3, 1, 2)
    if len(wanted) == 3:
        return rows.unsqueeze(1)
    first = part.convert(np.zeros((1, *part.shape), part.dtype))  # minus the first indices
    return rows.reshape(-1, *wanted) + torch.from_numpy(np.ascontiguousarray(first))


def _dtype(part: Part) -> torch.dtype:
    return torch.from_numpy(np.zeros(0, part.dtype)).dtype


def flat(state: object, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    """The tensors of a memory's state; nothing of None or an empty dict."""
    if isinstance(state, Mapping):
        for key, each in state.items():
            yield from flat(each, (*path, str(key)))
    elif isinstance(state, list | tuple):
        raise UserError("this memory's state is a list: it cannot be exported")
    elif isinstance(state, Tensor):
        yield path, state


def _nested(flat: Mapping[Path, Tensor]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, each in flat.items():
        here = tree
        for key in path[:-1]:
            here = here.setdefault(key, {})
        here[path[-1]] = each
    return tree


def _joined(*words: str) -> str:
    return "_".join(word.replace("/", "_") for word in words if word)


def difference(ours: Sequence[Tensor], theirs: Sequence[Any]) -> float:
    """The largest difference between two lists of outputs."""
    pairs = zip(ours, theirs, strict=True)
    return max(
        float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max(initial=0.0))
        for a, b in pairs
    )
