"""The Python interface: train, resume, fork, verify, evaluate, play, load, list, register."""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from rl_lab.analysis.verify import Verdict
from rl_lab.analysis.verify import verify as verify_run
from rl_lab.collect.collector import to_array, to_tensor
from rl_lab.collect.evaluate import Evaluation
from rl_lab.collect.play import Played
from rl_lab.core.batch import Array
from rl_lab.core.errors import UserError
from rl_lab.core.registry import register
from rl_lab.core.state import Tree, where_rows
from rl_lab.core.tree import first_leaf, map_leaves
from rl_lab.envs.make import single_spaces
from rl_lab.envs.spaces import Frames, action_converter
from rl_lab.monitoring.playing import Playback, check_show, play_policy
from rl_lab.orchestration import catalog, policy, session
from rl_lab.orchestration.build import seeds
from rl_lab.orchestration.compose import Composed, compose
from rl_lab.orchestration.config import RunConfig
from rl_lab.orchestration.fork import fork as fork_run
from rl_lab.orchestration.session import Outcome, View, no_view
from rl_lab.orchestration.small import made_small
from rl_lab.orchestration.validation import validate
from rl_lab.orchestration.values import as_override
from rl_lab.records.index import Index

T = TypeVar("T")
Folder = str | Path
EVALUATE = "evaluate"  # the seed stream of `evaluate`: neither train nor eval nor test


# ------------------------------------------------------------------------- runs


def train(
    spec: str | None = None,
    *,
    seed: int | None = None,
    total_timesteps: float | None = None,
    runs_dir: Folder | None = None,
    config_file: Folder | None = None,
    plugins: Sequence[Folder] = (),
    overrides: Sequence[str] = (),
    view: View = no_view,
    small: bool = False,
    **settings: Any,
) -> Outcome:
    """A new run, as `rl-lab train` makes it; `small` is explained at `configure`.

    Settings are overrides too: `train("CartPole-v1:ppo", **{"algorithm.gamma": 0.9})`.
    """
    words = _words(overrides, seed, total_timesteps, settings)
    config, _ = configure(spec, words, config_file=config_file, plugins=plugins, small=small)
    return session.train(config, root=runs_root(runs_dir), view=view)


def resume(reference: str, *, runs_dir: Folder | None = None, view: View = no_view) -> Outcome:
    """Continue a run, bit for bit, from its newest good checkpoint or from `RUN:STEP`."""
    return session.resume(reference, root=runs_root(runs_dir), view=view)


def fork(
    reference: str,
    *,
    seed: int | None = None,
    total_timesteps: float | None = None,
    runs_dir: Folder | None = None,
    overrides: Sequence[str] = (),
    view: View = no_view,
    schedules: str = "stretch",
    **settings: Any,
) -> Outcome:
    """A new run that goes on from `RUN` or `RUN:STEP` with changed options, as `train --fork`.

    `fork("@last:50000", **{"algorithm.learning_rate": 1e-4})`. That run itself stays as it is.
    With another length, `schedules="keep"` goes on with the old ones, which stay at their end.
    """
    words = _words(overrides, seed, total_timesteps, settings)
    root = runs_root(runs_dir)
    return fork_run(reference, words, root=root, view=view, schedules=schedules)


def verify(
    reference: str,
    *,
    steps: int | None = None,
    start: int | None = None,
    runs_dir: Folder | None = None,
) -> Verdict:
    """Run it again beside and compare every row and checkpoint, as `rl-lab verify`.

    From the first step, or from the checkpoint at `start`; `steps` of it, if not all. The result is
    `identical`, or has the first `difference` and known `reasons`.
    """
    return verify_run(reference, runs_root(runs_dir), steps=steps, start=start)


def python_warning(message: str) -> None:
    """As Python warns, at the line that called the lab."""
    warnings.warn(message, stacklevel=4)


def evaluate(
    reference: str,
    *,
    episodes: int = 100,
    sample: bool = False,
    seed: int | None = None,
    runs_dir: Folder | None = None,
    warn: Callable[[str], None] = python_warning,
) -> tuple[Evaluation, policy.LoadedPolicy]:
    """Play a trained policy on seeds of its own, and say which one it was."""
    loaded = policy.load(
        reference, runs_root(runs_dir), seed=seed, deterministic=not sample, warn=warn
    )
    try:
        return loaded.evaluate(EVALUATE, episodes), loaded
    finally:
        loaded.context.train_environment.close()


def play(
    reference: str,
    *,
    episodes: int = 1,
    sample: bool = False,
    seed: int | None = None,
    max_steps: int | None = None,
    video: Folder | None = None,
    runs_dir: Folder | None = None,
    tell: Callable[[int, Played], None] = lambda number, episode: None,
    warn: Callable[[str], None] = python_warning,
) -> Playback:
    """Watch a trained policy, as `rl-lab play`: in a window, or as a film `video` (.mp4, .gif).

    Without a screen and without `video`, the film goes into the run's `videos/`. Episodes are cut
    after `max_steps`; `tell` hears of each when it is over. One environment is stepped, on the
    seeds of `evaluate`.
    """
    if episodes < 1 or (max_steps is not None and max_steps < 1):
        raise UserError("play: episodes and max_steps must be at least 1")
    file = None if video is None else Path(video)
    check_show(file)
    loaded = policy.load(
        reference, runs_root(runs_dir), seed=seed, deterministic=not sample, warn=warn
    )
    try:
        player = Policy.of(loaded)
        with loaded.context.rng.borrowed(f"{EVALUATE}/"):
            return play_policy(
                loaded,
                partial(player.act, deterministic=not sample),
                player.reset,
                seeds=seeds(loaded.config.experiment.seed, EVALUATE, episodes),
                max_steps=max_steps,
                video=file,
                tell=tell,
            )
    finally:
        loaded.context.train_environment.close()


def runs(*, runs_dir: Folder | None = None, **filters: Any) -> list[dict[str, Any]]:
    """The runs whose columns equal the filters, oldest first: `runs(algorithm="ppo", seed=1)`."""
    return Index(runs_root(runs_dir)).rows(**filters)


def configure(
    spec: str | None = None,
    overrides: Sequence[str] = (),
    *,
    config_file: Folder | None = None,
    config_dirs: Sequence[Folder] = (),
    plugins: Sequence[Folder] = (),
    small: bool = False,
) -> tuple[RunConfig, Composed]:
    """The typed config that these words mean, and where each of its values came from.

    With `small`, fewer `training.total_timesteps` than the files have mean that much less of
    everything: the run still comes to every phase.
    """
    loaded = [catalog.load_plugin(str(each)) for each in plugins]
    composed = compose(
        spec,
        overrides,
        config_file=Path(config_file) if config_file is not None else None,
        config_dirs=[Path(each) for each in config_dirs],
    )
    if loaded:
        composed.tree["plugins"] = [*composed.tree.get("plugins", []), *loaded]
    if small:
        composed = made_small(composed)
    return validate(composed.tree, composed.origins), composed


def _words(
    overrides: Sequence[str],
    seed: int | None,
    total_timesteps: float | None,
    settings: Mapping[str, Any],
) -> list[str]:
    """Everything that was asked for, as it would be typed; what stands last wins."""
    named = {"experiment.seed": seed, "training.total_timesteps": total_timesteps}
    given = {**settings, **{path: each for path, each in named.items() if each is not None}}
    return [*overrides, *(as_override(path, value) for path, value in given.items())]


def runs_root(runs_dir: Folder | None = None) -> Path:
    """Where runs live: as given, or `RL_LAB_RUNS`, or `runs/`."""
    return Path(runs_dir if runs_dir is not None else os.environ.get("RL_LAB_RUNS") or "runs")


# ----------------------------------------------------------------------- policy


def load_policy(
    reference: str = "@best", *, runs_dir: Folder | None = None, device: str | None = None
) -> "Policy":
    """The policy of `RUN`, `RUN:best`, `RUN:last` or `RUN:STEP`, ready to act."""
    return Policy.of(
        policy.load(reference, runs_root(runs_dir), device=device, warn=python_warning)
    )


@dataclass
class Policy:
    """A trained policy for whoever steps an environment: numpy in, numpy out.

    It remembers for recurrent policies; call `reset` where an episode begins.
    """

    loaded: policy.LoadedPolicy
    to_action: Callable[[Array], Array]
    frames: Frames
    memory: Tree = None
    rows: int = 0  # how many observations the memory belongs to

    @classmethod
    def of(cls, loaded: policy.LoadedPolicy) -> "Policy":
        """A policy that speaks the spaces of its environment, inside the configured wrappers."""
        observation, action = single_spaces(loaded.config.environment)
        convert = action_converter(action)
        stretch = getattr(loaded.context.train_environment, "stretch", None)
        own_units = convert if stretch is None else lambda unit: convert(stretch(unit))
        return cls(loaded, to_action=own_units, frames=Frames(observation))

    def act(self, obs: Any, *, deterministic: bool = True) -> Any:
        """The action for one observation, or for a batch of them, as the environment takes it.

        An observation is what the environment gives: an array, a number, a dict or a tuple.
        """
        batch, single = self.frames.given(obs)
        count = len(first_leaf(batch))
        workflow, device = self.loaded.workflow, self.loaded.config.experiment.device
        if self.rows != count:
            self.memory, self.rows = workflow.initial_state(count), count
        with torch.no_grad():
            tensors = to_tensor(map_leaves(np.ascontiguousarray, batch), device)
            decision = workflow.act(tensors, self.memory, deterministic=deterministic)
        self.memory = decision.state
        action = self.to_action(to_array(decision.action))
        return action[0] if single else action

    def reset(self, rows: NDArray[np.bool_] | None = None) -> None:
        """Forget what was seen: everywhere, or in the rows of a batch where an episode began."""
        if rows is None or self.memory is None:
            self.rows = 0
            return
        fresh = self.loaded.workflow.initial_state(self.rows)
        device = self.loaded.config.experiment.device
        mask = torch.from_numpy(np.asarray(rows, dtype=np.bool_)).to(device)
        self.memory = where_rows(mask, fresh, self.memory)


# --------------------------------------------------------------------- register


def _registrar(kind: str) -> Callable[[str], Callable[[T], T]]:
    return partial(register, kind)


register_algorithm = _registrar("workflow")
register_network = _registrar("encoder")
register_memory = _registrar("memory")
register_environment = _registrar("env")
register_buffer = _registrar("buffer")
register_wrapper = _registrar("wrapper")
