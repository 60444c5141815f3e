"""A trained policy taken out of a run, to be measured or played: nothing of the run is touched."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_lab.algorithms.base import Algorithm
from rl_lab.collect.collector import to_array, to_tensor
from rl_lab.collect.evaluate import Evaluation
from rl_lab.config.resolve import resolve
from rl_lab.config.tree import config_hash
from rl_lab.core.batch import Array, Obs
from rl_lab.core.errors import UserError
from rl_lab.core.protocols import AlgorithmContext
from rl_lab.core.schema import RunConfig
from rl_lab.core.state import Stateful, Tree
from rl_lab.core.tree import first_leaf, map_leaves, where_rows
from rl_lab.envs.make import single_spaces
from rl_lab.envs.spaces import Frames, action_converter
from rl_lab.records.checkpoint import CheckpointStore
from rl_lab.records.run_directory import RunDirectory, find_run
from rl_lab.run.build import make_algorithm, make_context, make_evaluator
from rl_lab.run.normalized import normalized, references_of
from rl_lab.run.session import file_hash, fitting, load_config

EVALUATE = "evaluate"  # the seed stream of measurements: neither train nor eval nor test


@dataclass(frozen=True)
class LoadedPolicy:
    """An algorithm as it was at one checkpoint."""

    run: RunDirectory
    step: int
    config: RunConfig
    context: AlgorithmContext
    algorithm: Algorithm
    evaluate: Callable[[str, int], Evaluation]  # (purpose, episodes)

    @property
    def workflow(self) -> Algorithm:
        """The algorithm, by its name in earlier versions."""
        return self.algorithm


def load(
    reference: str,
    root: Path,
    *,
    seed: int | None = None,
    deterministic: bool = True,
    device: str | None = None,
    trust: bool = False,
    warn: Callable[[str], None],
) -> LoadedPolicy:
    """The policy of `RUN`, `RUN:best`, `RUN:last` or `RUN:STEP`; the best one by default.

    `seed` replaces the run's own for whatever is random from here on. `warn` is called about each
    damaged checkpoint that was skipped, with the step that is used instead.
    """
    directory, which = find_run(reference, root)
    directory.check_complete()
    config = load_config(directory, trust=trust)
    known = (config_hash(config), file_hash(directory))
    references = references_of(config)
    experiment = replace(
        config.experiment,
        seed=config.experiment.seed if seed is None else seed,
        device=device or config.experiment.device,
    )
    config = resolve(
        replace(
            config,
            experiment=experiment,
            evaluation=replace(config.evaluation, deterministic=deterministic),
            compute=replace(config.compute, compile="off"),  # nothing will be learned
            buffers={},  # nor remembered
        )
    )
    store = CheckpointStore(
        directory.checkpoints, on_skip=lambda message: warn(f"run {directory.id}: {message}")
    )
    if not store.steps() and not store.quarantined():
        raise UserError(f"run {directory.id} has no checkpoint yet")
    state, manifest, _ = store.load(which, rows=False)
    if manifest["config_hash"] not in known:
        step = manifest["step"]
        warn(f"run {directory.id}: config.yaml was changed after the checkpoint at step {step}")
    context = make_context(config)
    algorithm = make_algorithm(config, context)
    with fitting(manifest):
        algorithm.set_state(state["workflow"])
        for role, part in context.components.items():
            if isinstance(part, Stateful):
                part.load_state_dict(state["parts"][f"component.{role}"])
    evaluate = normalized(make_evaluator(config, algorithm, context.rng), references)
    return LoadedPolicy(directory, int(manifest["step"]), config, context, algorithm, evaluate)


@dataclass(repr=False)
class Policy:
    """A trained policy that maps observations to actions: numpy in, numpy out.

    A recurrent policy keeps its memory between calls: call `reset` where an episode begins.

    Attributes:
        loaded: The algorithm at one checkpoint, its run, its step and its configuration.
        to_action: Turns an action of the policy into one that the environment takes.
        frames: The observation space, which tells one observation from a batch.
        memory: The state of a recurrent policy; None without one.
        rows: Number of observations that the memory belongs to.
    """

    loaded: LoadedPolicy
    to_action: Callable[[Array], Array]
    frames: Frames
    memory: Tree = None
    rows: int = 0

    def __repr__(self) -> str:
        """Which policy it is."""
        config = self.loaded.config
        return (
            f"Policy({config.environment.id} {config.algorithm.name}, "
            f"run={self.loaded.run.id!r}, step={self.loaded.step})"
        )

    @classmethod
    def of(cls, loaded: LoadedPolicy) -> "Policy":
        """A policy that speaks the spaces of its environment, inside the configured wrappers."""
        observation, action = single_spaces(loaded.config.environment)
        convert = action_converter(action)
        stretch = getattr(loaded.context.train_environment, "stretch", None)
        own_units = convert if stretch is None else lambda unit: convert(stretch(unit))
        return cls(loaded, to_action=own_units, frames=Frames(observation))

    def act(self, obs: Obs, *, deterministic: bool = True) -> Any:
        """Choose the action for one observation, or for each of a batch.

        Args:
            obs: What the environment gives: an array, a number, a dict or a tuple; or a batch,
                with one more dimension in front.
            deterministic: Take the most likely action; False samples.

        Returns:
            The action as `env.step` takes it, or a batch of actions.

        Raises:
            ValueError: The observation does not fit the observation space.
        """
        batch, single = self.frames.given(obs)
        action = self.to_action(self.decide(self.tensors(batch), deterministic=deterministic))
        return action[0] if single else action

    def tensors(self, batch: Obs) -> Obs:
        """Rows of observations as the algorithm takes them, with as many rows of memory."""
        count = len(first_leaf(batch))
        algorithm, device = self.loaded.algorithm, self.loaded.config.experiment.device
        if self.rows != count:
            self.memory, self.rows = algorithm.initial_state(count), count
        return to_tensor(map_leaves(np.ascontiguousarray, batch), device)

    def decide(self, obs: Obs, *, deterministic: bool = True) -> Array:
        """Actions in policy space for `tensors`; a memory moves one step on."""
        with torch.no_grad():
            decision = self.loaded.algorithm.act(obs, self.memory, deterministic=deterministic)
        self.memory = decision.state
        return to_array(decision.action)

    def describe(self, obs: Obs) -> dict[str, Array]:
        """What the policy thinks of `tensors` before it acts; see `Algorithm.describe`."""
        with torch.no_grad():
            found = self.loaded.algorithm.describe(obs, self.memory)
        return {name: to_array(each) for name, each in found.items()}

    def reset(self, rows: NDArray[np.bool_] | None = None) -> None:
        """Clear the memory of a recurrent policy, where an episode begins.

        Args:
            rows: True for the rows of a batch in which an episode begins; None clears all of it.
        """
        if rows is None or self.memory is None:
            self.rows = 0
            return
        fresh = self.loaded.algorithm.initial_state(self.rows)
        device = self.loaded.config.experiment.device
        mask = torch.from_numpy(np.asarray(rows, dtype=np.bool_)).to(device)
        self.memory = where_rows(mask, fresh, self.memory)
