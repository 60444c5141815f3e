"""The Python interface: train, resume, fork, verify, evaluate, play, load, list, register."""

import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray

from rl_lab.analysis.playing import Playback, check_show, play_policy
from rl_lab.analysis.verify import Verdict
from rl_lab.analysis.verify import verify as verify_run
from rl_lab.analysis.view import with_report
from rl_lab.collect.collector import to_array, to_tensor
from rl_lab.collect.evaluate import Evaluation
from rl_lab.collect.play import Played
from rl_lab.config import catalog
from rl_lab.config.compose import Composed, compose
from rl_lab.config.schema import RunConfig
from rl_lab.config.shrink import made_small
from rl_lab.config.validate import validate
from rl_lab.config.values import as_override
from rl_lab.core.batch import Array
from rl_lab.core.errors import ConfigError, UserError
from rl_lab.core.registry import register
from rl_lab.core.state import Tree, where_rows
from rl_lab.core.tree import first_leaf, map_leaves
from rl_lab.display.sinks import Sink
from rl_lab.display.terminal import is_watched
from rl_lab.envs.make import single_spaces
from rl_lab.envs.spaces import Frames, action_converter
from rl_lab.records.columns import Columns, read_columns
from rl_lab.records.index import Index
from rl_lab.records.run_directory import RunDirectory, find_run
from rl_lab.run import policy, session
from rl_lab.run.build import seeds
from rl_lab.run.fork import fork as fork_run
from rl_lab.run.session import Outcome, View
from rl_lab.run.view import terminal_view, warnings_view

T = TypeVar("T")
Folder = str | Path
EVALUATE = "evaluate"  # the seed stream of `evaluate`: neither train nor eval nor test


# ------------------------------------------------------------------------- runs


@overload
def train(
    spec: str | None = None,
    *,
    seed: int | None = None,
    total_timesteps: float | None = None,
    runs_dir: Folder | None = None,
    config_file: Folder | None = None,
    plugins: Sequence[Folder] = (),
    overrides: Sequence[str] = (),
    progress: bool | None = None,
    view: View | None = None,
    small: bool = False,
    **settings: Any,
) -> Outcome: ...
@overload
def train(spec: str | None = None, *, seed: Iterable[int], **arguments: Any) -> list[Outcome]: ...
def train(
    spec: str | None = None,
    *,
    seed: int | Iterable[int] | None = None,
    total_timesteps: float | None = None,
    runs_dir: Folder | None = None,
    config_file: Folder | None = None,
    plugins: Sequence[Folder] = (),
    overrides: Sequence[str] = (),
    progress: bool | None = None,
    view: View | None = None,
    small: bool = False,
    **settings: Any,
) -> Outcome | list[Outcome]:
    """A new run, as `rl-lab train` makes it: an `Outcome`; a list of them for `seed=[1, 2]`.

    Settings are overrides too: `train("CartPole-v1:ppo", **{"algorithm.gamma": 0.9})`. `progress`
    shows it in training: None does so in a terminal and in a notebook. `view` replaces what shows
    it. `small` is explained at `configure`.
    """
    with _arguments("train", train, settings):
        prepared = [
            configure(
                spec,
                _words(overrides, each, total_timesteps, settings),
                config_file=config_file,
                plugins=plugins,
                small=small,
            )
            for each in _seeds(seed)
        ]  # all of them, before any runs
    view, root = _view(view, progress, prepared[0][1].notes), runs_root(runs_dir)
    return _each(
        seed, [partial(session.train, config, root=root, view=view) for config, _ in prepared]
    )


def resume(
    reference: str,
    *,
    runs_dir: Folder | None = None,
    progress: bool | None = None,
    view: View | None = None,
    trust: bool = False,
) -> Outcome:
    """Continue a run, bit for bit, from its newest good checkpoint or from `RUN:STEP`.

    Here and below: with `trust`, code that a run of somebody else names is imported.
    """
    root = runs_root(runs_dir)
    return session.resume(reference, root=root, view=_view(view, progress), trust=trust)


@overload
def fork(
    reference: str,
    *,
    seed: int | None = None,
    total_timesteps: float | None = None,
    runs_dir: Folder | None = None,
    overrides: Sequence[str] = (),
    progress: bool | None = None,
    view: View | None = None,
    schedules: str = "stretch",
    trust: bool = False,
    **settings: Any,
) -> Outcome: ...
@overload
def fork(reference: str, *, seed: Iterable[int], **arguments: Any) -> list[Outcome]: ...
def fork(
    reference: str,
    *,
    seed: int | Iterable[int] | None = None,
    total_timesteps: float | None = None,
    runs_dir: Folder | None = None,
    overrides: Sequence[str] = (),
    progress: bool | None = None,
    view: View | None = None,
    schedules: str = "stretch",
    trust: bool = False,
    **settings: Any,
) -> Outcome | list[Outcome]:
    """A new run that goes on from `RUN` or `RUN:STEP` with changed options, as `train --fork`.

    `fork("@last:50000", **{"algorithm.learning_rate": 1e-4})`. That run itself stays as it is.
    With another length, `schedules="keep"` goes on with the old ones, which stay at their end.
    Seeds, progress and what is returned are as for `train`.
    """
    root, view = runs_root(runs_dir), _view(view, progress)
    run, which = find_run(reference, root)  # by its path: the first fork becomes `@last`
    origin = str(run.path) if which is None else f"{run.path}:{which}"

    def forked(seed: int | None) -> Outcome:
        words = _words(overrides, seed, total_timesteps, settings)
        with _arguments("fork", fork, settings):
            return fork_run(origin, words, root=root, view=view, schedules=schedules, trust=trust)

    return _each(seed, [partial(forked, each) for each in _seeds(seed)])


def metrics(reference: str = "@last", *, runs_dir: Folder | None = None) -> Columns:
    """The metrics of a run as columns, numpy arrays by name; `.to_pandas()` makes a DataFrame."""
    return read_columns(find_run(reference, runs_root(runs_dir))[0].metrics_file)


def verify(
    reference: str,
    *,
    steps: int | None = None,
    start: int | None = None,
    runs_dir: Folder | None = None,
    trust: bool = False,
) -> Verdict:
    """Run it again beside and compare every row and checkpoint, as `rl-lab verify`.

    From the first step, or from the checkpoint at `start`; `steps` of it, if not all. The result is
    `identical`, or has the first `difference` and known `reasons`.
    """
    return verify_run(reference, runs_root(runs_dir), steps=steps, start=start, trust=trust)


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
    trust: bool = False,
    warn: Callable[[str], None] = python_warning,
) -> Evaluation:
    """Play a trained policy on seeds of its own, as `rl-lab evaluate`.

    The result has `return_mean`, `return_std` (over episodes), `episodes`, every episode's
    `returns` and `lengths`, and which policy it was: the `run` and the `step` of its checkpoint.
    """
    root, fixed = runs_root(runs_dir), not sample
    loaded = policy.load(reference, root, seed=seed, deterministic=fixed, trust=trust, warn=warn)
    try:
        found = loaded.evaluate(EVALUATE, episodes)
        return replace(found, run=loaded.run.id, step=loaded.step)
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
    trust: bool = False,
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
    root, fixed = runs_root(runs_dir), not sample
    loaded = policy.load(reference, root, seed=seed, deterministic=fixed, trust=trust, warn=warn)
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


def _seeds(seed: int | Iterable[int] | None) -> list[int | None]:
    """Each of them; None stands for the configured one."""
    if not isinstance(seed, Iterable) or isinstance(seed, str):
        return [seed]
    seeds: list[int | None] = [int(each) for each in seed]
    if not seeds or len(set(seeds)) < len(seeds):
        raise UserError(f"seed: give at least one, and none twice, got {seeds}")
    return seeds


def _each(
    seed: int | Iterable[int] | None, calls: Sequence[Callable[[], Outcome]]
) -> Outcome | list[Outcome]:
    """One outcome, or a list of them where several seeds were asked for; a signal ends it."""
    outcomes: list[Outcome] = []
    for call in calls:
        outcomes.append(call())
        if outcomes[-1].exit_code:
            break
    return outcomes if isinstance(seed, Iterable) else outcomes[0]


def _view(view: View | None, progress: bool | None, notes: Sequence[str] = ()) -> View:
    """What shows a run, and writes its report."""
    return with_report(_shown(view, progress, notes))


def _shown(view: View | None, progress: bool | None, notes: Sequence[str]) -> View:
    """As given, or the terminal view, or only its warnings."""
    if view is not None:
        return view
    if not (is_watched() if progress is None else progress):
        return warnings_view

    def shown(config: RunConfig, directory: RunDirectory, start: int) -> Sequence[Sink]:
        if progress is None and not config.logging.terminal:
            return warnings_view(config, directory, start)
        sinks = terminal_view(config, directory, start)
        for note in notes:
            sinks[0].say(note)
        return sinks

    return shown


@contextmanager
def _arguments(
    name: str, function: Callable[..., Any], settings: Mapping[str, Any]
) -> Iterator[None]:
    """Errors of a config in the words of Python: nobody has typed a command line."""
    try:
        yield
    except ConfigError as error:
        own = [each for each in signature(function).parameters if each != "settings"]
        lines = [_as_argument(line, name, own, settings) for line in error.problems]
        raise ConfigError(lines) from None


def _as_argument(
    problem: str, function: str, own: Sequence[str], settings: Mapping[str, Any]
) -> str:
    problem = problem.removesuffix(" — command line")
    key, _, rest = problem.partition(": ")
    if key not in settings or "." in key or not rest.startswith("unknown key"):
        return problem
    if close := get_close_matches(key, own, n=1):
        return f"{function}() has no argument '{key}' (did you mean '{close[0]}'?)"
    hint = rest.removeprefix("unknown key")
    if setting := re.search("'(.+)'", hint):
        hint = f' (did you mean **{{"{setting[1]}": …}}?)'
    return f"{function}() has no argument '{key}'{hint}"


def runs_root(runs_dir: Folder | None = None) -> Path:
    """Where runs live: as given, or `RL_LAB_RUNS`, or `runs/`."""
    return Path(runs_dir if runs_dir is not None else os.environ.get("RL_LAB_RUNS") or "runs")


# ----------------------------------------------------------------------- policy


def load_policy(
    reference: str = "@best",
    *,
    runs_dir: Folder | None = None,
    device: str | None = None,
    trust: bool = False,
) -> "Policy":
    """The policy of `RUN`, `RUN:best`, `RUN:last` or `RUN:STEP`, ready to act."""
    root = runs_root(runs_dir)
    return Policy.of(policy.load(reference, root, device=device, trust=trust, warn=python_warning))


@dataclass(repr=False)
class Policy:
    """A trained policy for whoever steps an environment: numpy in, numpy out.

    It remembers for recurrent policies; call `reset` where an episode begins.
    """

    loaded: policy.LoadedPolicy
    to_action: Callable[[Array], Array]
    frames: Frames
    memory: Tree = None
    rows: int = 0  # how many observations the memory belongs to

    def __repr__(self) -> str:
        """Which policy it is."""
        config = self.loaded.config
        return (
            f"Policy({config.environment.id} {config.algorithm.name}, "
            f"run={self.loaded.run.id!r}, step={self.loaded.step})"
        )

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
