"""The base of every algorithm: `act`, named update hooks, and defaults for the rest.

A minimal algorithm is a class with `act` and `update`. It knows how, never when: no loop over
training time, no disk, no logging.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from functools import partial, reduce
from types import ModuleType
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from rl_lab.core.batch import Action, Batch, CollectResult, Metrics, Obs
from rl_lab.core.compiled import Compiled
from rl_lab.core.errors import UserError
from rl_lab.core.picture import Picture
from rl_lab.core.protocols import Act, AlgorithmContext, Buffer, MakePolicy, Phase, Policy
from rl_lab.core.state import Stateful, Tree

LearnsFrom = Literal["rollouts", "transitions", "sequences", "chunks"]
Roles = Mapping[str, tuple[str, ...]] | None  # parts by name, and what is called of each
Optimized = tuple[str, ...] | None  # names of what is trained
VALUES = "values"  # where plain attributes live in an algorithm's saved state


class Algorithm(ABC):
    """One algorithm."""

    Config: ClassVar[type | None] = None  # the dataclass of the `algorithm` block
    phases: ClassVar[list[dict[str, Any]]] = []  # default phases; [] = collect, then every update
    requires: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # component role -> methods called
    # Parts that `components:` may replace, and what `optimizers:` may train; None: not declared, so
    # whatever is written there is made and handed over.
    roles: ClassVar[Roles] = None
    optimized: ClassVar[Optimized] = None
    uses_network: ClassVar[bool] = True  # `network:` decides anything
    compiles: ClassVar[bool] = True  # its updates can be compiled
    defaults: ClassVar[Mapping[str, Any]] = {}  # of other blocks: used unless the user sets it
    learns_from: ClassVar[LearnsFrom] = "rollouts"  # the kind of buffer that updates need
    actions: ClassVar[str] = "both"  # that it can take: discrete, continuous or both
    learned: ClassVar[tuple[str, ...]] = ()  # arrays and parts that a warm start takes, too
    # Today's names of saved state -> those of older checkpoints, both as dotted paths.
    old_names: ClassVar[Mapping[str, str]] = {}
    unit_actions: ClassVar[bool] = False  # Box actions are in [-1, 1]; environments stretch them
    acts_on_arrays: bool = False  # `act` also takes numpy observations, which avoids a conversion
    collect_steps: int = 1  # vector steps per collect call, unless collect_step is overridden

    def __init__(self, config: Any) -> None:
        self.config = config

    def initialize(self, context: AlgorithmContext) -> None:
        """Bind what the algorithm needs. Called once, before anything else."""
        self.context = context

    @abstractmethod
    def act(self, obs: Obs, state: Any, *, deterministic: bool) -> Action:
        """Decide for N environments: obs is a tensor [N, …]."""

    def greedy(self, obs: Obs, state: Any) -> Action:
        """The deterministic action by operations on tensors alone, which an export can trace.

        Default: `act`, which is right where that uses neither numpy nor Python numbers.
        """
        return self.act(obs, state, deterministic=True)

    def describe(self, obs: Obs, state: Any) -> Mapping[str, Tensor]:
        """What the policy thinks of N observations, to be shown: nothing is drawn or changed.

        `obs` and `state` are as `act` gets them. Any of `value` [N], `q_values` [N, A],
        `probabilities` [N, A] of discrete actions, and `mean` and `std` [N, A] of a Box.
        """
        return {}

    def initial_state(self, batch: int) -> Any:
        """What a memory starts an episode with; None without memory."""
        return None

    def collect_step(self, step: int, *, phase: Phase) -> CollectResult:
        """Interact. Default: `collect_steps` vector steps with `act`."""
        return self.collect(self.act, phase, policy=self.pure_policy)

    def collect(self, act: Act, phase: Phase, policy: MakePolicy | None = None) -> CollectResult:
        """`collect_steps` vector steps with any policy; `policy` is `act` as a pure function."""
        state = self.initial_state(self.context.train_environment.num_envs)
        steps = self.collect_length(phase)
        return self.context.collector.collect(
            act, steps=steps, state=state, policy=policy, arrays=self.acts_on_arrays
        )

    def collect_length(self, phase: Phase) -> int:
        """Vector steps of a collect call: `collect_steps`, fewer where the run's budget ends."""
        if (left := phase.get("steps_left")) is None:
            return self.collect_steps
        steps = max(-(-left // self.context.train_environment.num_envs), 1)
        return self.shortened(steps) if steps < self.collect_steps else self.collect_steps

    def shortened(self, steps: int) -> int:
        """The shortest collect call of at least `steps` vector steps, which end the run.

        A compiled rollout has a fixed length: another one would be compiled for this call alone.
        """
        compiled = self.context.config.compute.compile == "on"
        is_pure = type(self).pure_policy is not Algorithm.pure_policy
        return self.collect_steps if compiled and is_pure else steps

    def pure_policy(self) -> Policy | None:
        """`act` as a pure function, if rollouts may be compiled whole with it."""
        return None

    def track_statistics(self, trajectory: Batch) -> None:
        """Count new rows in the observation statistics. Called whichever policy acted."""
        return

    def sample(self, buffer: Buffer, *, hook: str, phase: Phase) -> Batch | None:
        """The batch passed to `hook`. None skips the update; a skipped update is not counted."""
        return buffer.sample() if buffer.ready() else None

    def update(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Learn from a batch (model-free algorithms)."""
        raise UserError(f"{type(self).__name__} has no update hook")

    def warnings(self, row: Mapping[str, float]) -> list[str]:
        """Warnings about a row of metrics. Each is printed once."""
        return []

    def imagine(self, *, horizon: int, **options: Any) -> Batch:
        """Latent rollouts (world models)."""
        raise UserError(f"{type(self).__name__} does not imagine")

    def pictures(self, paths: Sequence[Any]) -> Mapping[str, Picture]:
        """What to show after an evaluation; `paths` are its episodes' observations [L, …]."""
        return {}

    @property
    def draws(self) -> bool:
        """True if this class has pictures to show."""
        return type(self).pictures is not Algorithm.pictures

    @property
    def hooks(self) -> list[str]:
        """The update hooks this class offers: `update` if overridden, and every `update_*`."""
        own = [
            name
            for name, _ in inspect.getmembers(type(self), inspect.isfunction)
            if name.startswith("update_")
        ]
        return (["update"] if type(self).update is not Algorithm.update else []) + own

    def parts(self) -> Mapping[str, Stateful]:
        """Everything that learns or drifts. Default: every attribute with a `state_dict`."""
        bound = self._bound()
        return {
            name: value
            for name, value in vars(self).items()
            if isinstance(value, Stateful) and id(value) not in bound
        }

    def get_state(self) -> dict[str, Tree]:
        """The parts' states, and every plain attribute: numbers, text, arrays, tensors."""
        if lost := self.unsaved():  # also what came in since the run was built
            raise UserError(
                f"{type(self).__name__}.{lost[0]} would be lost on resume: give its class "
                "state_dict and load_state_dict, list it in parts(), or take random generators "
                "from context.rng"
            )
        return {
            **{name: part.state_dict() for name, part in self.parts().items()},
            VALUES: {name: vars(self)[name] for name in self._plain_attributes()},
        }

    def set_state(self, state: Mapping[str, Tree]) -> None:
        """The inverse of `get_state`, strictly."""
        parts, state = self.parts(), self.with_new_names(state)
        if set(state) != {*parts, VALUES}:
            raise UserError(
                f"the saved state is of another {type(self).__name__}: "
                f"it has {sorted(state)}, this one {sorted([*parts, VALUES])}"
            )
        for name, part in parts.items():
            part.load_state_dict(state[name])
        for name, value in state[VALUES].items():
            current = vars(self).get(name)
            if isinstance(current, torch.Tensor) and current.shape == value.shape:
                current.data.copy_(value)  # an optimizer may hold this very tensor
            else:
                setattr(self, name, value)

    def with_new_names(self, state: Mapping[str, Tree]) -> Mapping[str, Tree]:
        """A state that an older version has saved, under today's names (`old_names`)."""
        if not self.old_names or set(self.parts()) <= set(state):
            return state
        renamed, moved = _copied_dicts(state), {}
        for name, old in self.old_names.items():
            *above, last = old.split(".")
            holder = reduce(lambda tree, key: tree.get(key, {}), above, renamed)
            if last in holder:
                moved[name] = holder.pop(last)
                if above and above[0] != VALUES and not renamed[above[0]]:
                    del renamed[above[0]]
        for name, value in moved.items():
            *above, last = name.split(".")
            reduce(lambda tree, key: tree.setdefault(key, {}), above, renamed)[last] = value
        return renamed

    def unsaved(self) -> list[str]:
        """Attributes that would be lost on resume: checked once, loudly, when a run is built."""
        covered = {*self.parts(), *self._plain_attributes()}
        covered_ids = {id(part) for part in self.parts().values()} | self._bound()
        return [
            name
            for name, value in vars(self).items()
            if name not in covered and id(value) not in covered_ids and not self._is_fixed(value)
        ]

    def _plain_attributes(self) -> list[str]:
        bound = self._bound()
        return [
            name
            for name, value in vars(self).items()
            if id(value) not in bound and _is_plain(value)
        ]

    def _is_fixed(self, value: object) -> bool:
        """Things that do not drift: code, frozen configuration, devices, streams of the run."""
        if isinstance(value, (np.random.Generator, torch.Generator)):
            context = vars(self).get("context")
            return context is not None and context.rng.owns(value)
        frozen = is_dataclass(value) and vars(type(value))["__dataclass_params__"].frozen
        code = (type, partial, Compiled, torch.device, torch.dtype, ModuleType)
        return frozen or inspect.isroutine(value) or isinstance(value, code)

    def _bound(self) -> set[int]:
        """What the run owns and saves itself: the context and everything in it."""
        context = vars(self).get("context")
        if context is None:
            return {id(self.config)}
        owned = [context, self.config, *vars(context).values()]
        owned += [*context.buffers.values(), *context.components.values()]
        # Of numbers and None there is only one object: a counter at 0 is not the context's step.
        return {id(each) for each in owned if not isinstance(each, (int, float, type(None)))}


Workflow = Algorithm  # the name in earlier versions


class Version:
    """An algorithm under another name, with other values and the same equations.

    It stands for the class wherever a class is looked up by a registered name: called with a
    config, it makes the algorithm, and what it does not declare is that of the algorithm.
    """

    def __init__(
        self,
        algorithm: type[Algorithm],
        doc: str,
        *,
        config: type,
        phases: Sequence[Mapping[str, Any]],
        defaults: Mapping[str, Any],
    ) -> None:
        self.algorithm = algorithm
        self.__doc__ = doc
        self.Config = config
        self.phases = phases
        self.defaults = defaults

    def __call__(self, config: object) -> Algorithm:
        """The algorithm with a config of this version."""
        return self.algorithm(config)

    def __getattr__(self, name: str) -> Any:
        """Class attributes of the algorithm."""
        if name == "algorithm":  # of a copy that is still empty
            raise AttributeError(name)
        return getattr(self.algorithm, name)


def _copied_dicts(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dicts as new dicts, with the same leaves."""
    return {
        key: _copied_dicts(each) if isinstance(each, Mapping) else each
        for key, each in tree.items()
    }


def _is_plain(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, (str, int)) and _is_plain(each) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return all(_is_plain(each) for each in value)
    if isinstance(value, np.ndarray):
        return value.dtype != object
    kinds = (torch.Tensor, np.generic, str, bool, int, float, type(None))
    return isinstance(value, kinds)
