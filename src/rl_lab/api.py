"""The Python interface: train, resume, fork, verify, evaluate, play, load, list, register."""

import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property, partial
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar, overload

from rl_lab.analysis.grid import play_side_by_side
from rl_lab.analysis.playing import Playback, check_show, play_policy
from rl_lab.analysis.recording import Recorded, record_policy
from rl_lab.analysis.verify import Verdict
from rl_lab.analysis.verify import verify as verify_run
from rl_lab.analysis.view import with_report
from rl_lab.collect.evaluate import Evaluation
from rl_lab.collect.play import Played
from rl_lab.config import catalog
from rl_lab.config.compose import Composed, compose
from rl_lab.config.local_names import named_parts, passed_again
from rl_lab.config.shrink import made_small
from rl_lab.config.validate import validate
from rl_lab.config.values import as_override
from rl_lab.core.errors import ConfigError, UserError
from rl_lab.core.registry import register
from rl_lab.core.schema import RunConfig
from rl_lab.core.values import BadValueError, whole
from rl_lab.display.sinks import Sink
from rl_lab.display.terminal import is_watched
from rl_lab.display.video import film_suffix
from rl_lab.envs.render import has_screen
from rl_lab.hub.download import fetch, is_published
from rl_lab.objects import LocalObject, for_run, read_arguments
from rl_lab.records.checkpoint import CheckpointStore
from rl_lab.records.columns import Columns, read_columns
from rl_lab.records.config_file import load_tree
from rl_lab.records.index import Index
from rl_lab.records.run_directory import RunDirectory, find_run
from rl_lab.run import policy, session
from rl_lab.run.build import seeds
from rl_lab.run.fork import fork as fork_run
from rl_lab.run.policy import EVALUATE, Policy
from rl_lab.run.session import Outcome, View
from rl_lab.run.view import terminal_view, warnings_view

T = TypeVar("T")
Folder = str | Path
EXIT_CODES = {"finished": 0, "interrupted": 130, "preempted": 143}  # by status; any other one: 1


# ------------------------------------------------------------------------- runs


@dataclass(frozen=True, repr=False)
class Run(Outcome):
    """A run on disk, as `train`, `resume`, `fork` and `load_run` return it.

    Attributes:
        run: Its folder, and the files in it.
        summary: What summary.json says: `status`, `env_steps`, `best`, `test` and more.
        exit_code: 0 if it finished; 130 after Ctrl-C, 143 after SIGTERM, 1 otherwise.
        objects: The Python objects it was made with that have no name in other processes.
        trust: Import code that the run names, although this user did not make the run.
    """

    objects: tuple[LocalObject, ...] = ()
    trust: bool = False

    @property
    def id(self) -> str:
        """Six hex digits, which name the run everywhere."""
        return self.run.id

    @property
    def path(self) -> Path:
        """The folder of the run."""
        return self.run.path

    @property
    def needs(self) -> str:
        """The arguments that `load_run` and `resume` need in another process, as text.

        `env=MyEnv`, for example; empty if the id of the run is enough.
        """
        return passed_again(named_parts(load_tree(self.run.config_file)))

    @cached_property
    def policy(self) -> Policy:
        """The policy of the best checkpoint, loaded at the first use."""
        return load_policy(self, trust=self.trust)

    def resume(self, *, progress: bool | None = None, view: View | None = None) -> "Run":
        """Continue the run from its newest checkpoint; see `resume`."""
        return resume(self, progress=progress, view=view, trust=self.trust)

    def evaluate(
        self, *, episodes: int = 100, sample: bool = False, seed: int | None = None
    ) -> Evaluation:
        """Measure the policy of the best checkpoint; see `evaluate`."""
        return evaluate(self, episodes=episodes, sample=sample, seed=seed, trust=self.trust)


@overload
def train(
    env: object = None,
    algorithm: object = None,
    *,
    encoder: object = None,
    seed: int | None = None,
    total_timesteps: float | None = None,
    runs_dir: Folder | None = None,
    config_file: Folder | None = None,
    plugins: Sequence[Folder] = (),
    overrides: Sequence[str] = (),
    progress: bool | None = None,
    view: View | None = None,
    small: bool = False,
    **settings: object,
) -> Run: ...
@overload
def train(
    env: Any = None, algorithm: Any = None, *, seed: Iterable[int], **arguments: Any
) -> list[Run]: ...
def train(
    env: object = None,
    algorithm: object = None,
    *,
    encoder: object = None,
    seed: int | Iterable[int] | None = None,
    total_timesteps: float | None = None,
    runs_dir: Folder | None = None,
    config_file: Folder | None = None,
    plugins: Sequence[Folder] = (),
    overrides: Sequence[str] = (),
    progress: bool | None = None,
    view: View | None = None,
    small: bool = False,
    **settings: object,
) -> Run | list[Run]:
    """Train a new run, as `rl-lab train` does.

    Args:
        env: What to train on: an experiment such as `"CartPole-v1:ppo"`, an environment id, a
            Gymnasium environment (copies are made by its spec; it is not stepped itself), an
            environment class, or a factory without arguments.
        algorithm: A name such as `"ppo"` or `"ppo_gru"`, a config object such as
            `PPOConfig(gamma=0.95)`, which is the whole `algorithm` block, or a class.
        encoder: A `torch.nn.Module` class, made as `Class(config, space)`, or a registered name.
        seed: The seed; several of them train one run after the other.
        total_timesteps: Environment steps of the whole run.
        runs_dir: Where runs live; `RL_LAB_RUNS` or `runs/` if not given.
        config_file: A YAML file instead of an experiment.
        plugins: Python files that register classes.
        overrides: `key=value` as on the command line.
        progress: Show progress; None does so in a terminal and in a notebook.
        view: Shows the run instead: called with (config, folder, first step), returns sinks.
        small: Scale everything down with `total_timesteps`; see `configure`.
        **settings: Any option by its full name: `**{"algorithm.gamma": 0.9}`.

    Returns:
        The run; a list of runs if `seed` is several seeds.

    Raises:
        UserError: An argument or an option is wrong. Nothing was started.
    """
    _check_types(runs_dir=runs_dir, config_file=config_file, plugins=plugins, overrides=overrides)
    _check_types(progress=progress, view=view, small=small)
    env = settings.pop("spec", env)  # the name that the first argument had before
    given = read_arguments(env, algorithm, encoder, has_file=config_file is not None)
    with _arguments("train", train, settings):
        prepared = [
            configure(
                given.spec,
                _words([*given.overrides, *overrides], each, total_timesteps, settings),
                config_file=config_file,
                plugins=plugins,
                small=small,
            )
            for each in _seeds(seed)
        ]  # all of them, before any runs
    view, root = _view(view, progress), runs_root(runs_dir)
    notes = [*prepared[0][1].notes, *given.notes]
    objects = tuple(given.objects)

    def trained(config: RunConfig) -> Run:
        return _as_run(session.train(config, root=root, view=view, notes=notes), objects)

    return _each(seed, [partial(trained, config) for config, _ in prepared])


def resume(
    reference: "str | Path | Run",
    *,
    env: object = None,
    algorithm: object = None,
    encoder: object = None,
    runs_dir: Folder | None = None,
    progress: bool | None = None,
    view: View | None = None,
    trust: bool = False,
) -> Run:
    """Continue a run, bit for bit, from its newest good checkpoint or from `RUN:STEP`.

    Args:
        reference: A run: its id, `@last`, `@best`, its path, or a `Run`.
        env: The environment object that the run was made with, if this process is another one.
        algorithm: The class of its algorithm, in the same case.
        encoder: The class of its encoder, in the same case.
        runs_dir: Where runs live.
        progress: Show progress; None does so in a terminal and in a notebook.
        view: Shows the run instead.
        trust: Import code that the run names, although this user did not make the run.

    Returns:
        The run as it is after it was continued.

    Raises:
        UserError: There is no such run, or it cannot be continued as asked.
    """
    _check_types(progress=progress, view=view, trust=trust)
    name, root, objects = _find(reference, runs_dir, env, algorithm, encoder)
    view = _view(view, progress)
    return _as_run(session.resume(name, root=root, view=view, trust=trust), objects, trust)


def load_run(
    reference: "str | Path | Run" = "@last",
    *,
    env: object = None,
    algorithm: object = None,
    encoder: object = None,
    runs_dir: Folder | None = None,
    trust: bool = False,
) -> Run:
    """Open an existing run, for its metrics, its policy, an evaluation or a resume.

    Args:
        reference: A run: its id, `@last`, `@best`, its path, or a `Run`.
        env: The environment object that the run was made with, if this process is another one.
        algorithm: The class of its algorithm, in the same case.
        encoder: The class of its encoder, in the same case.
        runs_dir: Where runs live.
        trust: Import code that the run names, although this user did not make the run.

    Returns:
        The run as it is on disk.

    Raises:
        UserError: There is no such run, or it was made with other objects.
    """
    name, root, objects = _find(reference, runs_dir, env, algorithm, encoder)
    directory, _ = find_run(name, root)
    summary = directory.read_summary()
    return Run(directory, summary, EXIT_CODES.get(summary.get("status", ""), 1), objects, trust)


@overload
def fork(
    reference: "str | Path | Run",
    *,
    seed: int | None = None,
    total_timesteps: float | None = None,
    runs_dir: Folder | None = None,
    overrides: Sequence[str] = (),
    progress: bool | None = None,
    view: View | None = None,
    schedules: str = "stretch",
    trust: bool = False,
    **settings: object,
) -> Run: ...
@overload
def fork(reference: "str | Path | Run", *, seed: Iterable[int], **arguments: Any) -> list[Run]: ...
def fork(
    reference: "str | Path | Run",
    *,
    seed: int | Iterable[int] | None = None,
    total_timesteps: float | None = None,
    runs_dir: Folder | None = None,
    overrides: Sequence[str] = (),
    progress: bool | None = None,
    view: View | None = None,
    schedules: str = "stretch",
    trust: bool = False,
    **settings: object,
) -> Run | list[Run]:
    """Train a new run that goes on from `RUN` or `RUN:STEP` with changed options.

    `fork("@last:50000", **{"algorithm.learning_rate": 1e-4})`. The forked run stays as it is.

    Args:
        reference: The run to go on from: its id, `@last`, `@best`, its path, or a `Run`.
        seed: Another seed; several of them make several runs.
        total_timesteps: Environment steps of the whole new run.
        runs_dir: Where runs live.
        overrides: Options to change, `key=value`.
        progress: Show progress; None does so in a terminal and in a notebook.
        view: Shows the run instead.
        schedules: With another length, `stretch` schedules to it, or `keep` the old ones, which
            then stay at their end.
        trust: Import code that the run names, although this user did not make the run.
        **settings: Options to change, by their full names.

    Returns:
        The new run; a list of runs if `seed` is several seeds.

    Raises:
        UserError: An option cannot be changed, or there is nothing to go on from.
    """
    _check_types(overrides=overrides, progress=progress, view=view, trust=trust)
    name, root, objects = _find(reference, runs_dir)
    view = _view(view, progress)
    run, which = find_run(name, root)  # by its path: the first fork becomes `@last`
    origin = str(run.path) if which is None else f"{run.path}:{which}"

    def forked(seed: int | None) -> Run:
        words = _words(overrides, seed, total_timesteps, settings)
        with _arguments("fork", fork, settings):
            made = fork_run(origin, words, root=root, view=view, schedules=schedules, trust=trust)
        return _as_run(made, objects, trust)

    return _each(seed, [partial(forked, each) for each in _seeds(seed)])


def metrics(reference: "str | Path | Run" = "@last", *, runs_dir: Folder | None = None) -> Columns:
    """Read the metrics of a run.

    Args:
        reference: A run: its id, `@last`, `@best`, its path, or a `Run`.
        runs_dir: Where runs live.

    Returns:
        Columns: numpy arrays by name; `.to_pandas()` makes a DataFrame if pandas is installed.
    """
    name, root, _ = _find(reference, runs_dir)
    return read_columns(find_run(name, root)[0].metrics_file)


def verify(
    reference: "str | Path | Run",
    *,
    steps: int | None = None,
    start: int | None = None,
    runs_dir: Folder | None = None,
    trust: bool = False,
) -> Verdict:
    """Train a run again in a temporary folder and compare every row and checkpoint.

    Args:
        reference: A run: its id, `@last`, `@best`, its path, or a `Run`.
        steps: Environment steps to repeat; all of them if not given.
        start: Begin with the checkpoint at this step instead of the first step.
        runs_dir: Where runs live.
        trust: Import code that the run names, although this user did not make the run.

    Returns:
        A verdict: `identical`, or the first `difference` and known `reasons` for it.
    """
    name, root, _ = _find(reference, runs_dir)
    return verify_run(name, root, steps=steps, start=start, trust=trust)


def python_warning(message: str) -> None:
    """Warn as Python does, at the line that called the lab."""
    warnings.warn(message, stacklevel=4)


def evaluate(
    reference: "str | Path | Run",
    *,
    episodes: int = 100,
    sample: bool = False,
    seed: int | None = None,
    runs_dir: Folder | None = None,
    trust: bool = False,
    warn: Callable[[str], None] = python_warning,
) -> Evaluation:
    """Measure a trained policy on seeds that training did not use.

    Args:
        reference: A run or checkpoint: `RUN`, `RUN:best`, `RUN:last`, `RUN:STEP`, or a `Run`;
            the best checkpoint if none is named. Or a policy on the Hugging Face hub:
            `hf:user/name`, `hf:user/name@revision`.
        episodes: Number of episodes.
        sample: Sample actions instead of taking the most likely ones.
        seed: Another seed than that of the run.
        runs_dir: Where runs live.
        trust: Import code that the run names, although this user did not make the run.
        warn: Called with a sentence about each damaged checkpoint that was skipped.

    Returns:
        `return_mean`, `return_std` (over episodes), `episodes`, the `returns` and `lengths` of
        each episode, and which policy it was: `run` and `step`.
    """
    _check_types(sample=sample, trust=trust)
    if not isinstance(episodes, int) or episodes < 1:
        raise UserError(f"episodes: must be a whole number of at least 1, got {episodes!r}")
    name, root = _find_policy(reference, runs_dir, trust)
    loaded = policy.load(name, root, seed=seed, deterministic=not sample, trust=trust, warn=warn)
    try:
        found = loaded.evaluate(EVALUATE, episodes)
        return replace(found, run=loaded.run.id, step=loaded.step)
    finally:
        loaded.context.train_environment.close()


def play(
    reference: "str | Path | Run",
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
    """Watch a trained policy in a window, or write a film of it.

    One environment is stepped, on the seeds of `evaluate`.

    Args:
        reference: A run or checkpoint, as for `evaluate`.
        episodes: Number of episodes.
        sample: Sample actions instead of taking the most likely ones.
        seed: Another seed than that of the run.
        max_steps: Cut episodes after this many steps.
        video: A film to write, .mp4 or .gif. Without a screen, the default is a film in the
            run's `videos/`.
        runs_dir: Where runs live.
        trust: Import code that the run names, although this user did not make the run.
        tell: Called with the number and the result of each episode when it is over.
        warn: Called with a sentence about each damaged checkpoint that was skipped.

    Returns:
        The returns, and the film if one was written.
    """
    if episodes < 1 or (max_steps is not None and max_steps < 1):
        raise UserError("play: episodes and max_steps must be at least 1")
    _check_types(video=video, sample=sample, trust=trust)
    file = None if video is None else Path(video)
    if file is None and is_published(reference) and not has_screen():
        file = Path(f"play{film_suffix()}")  # not in the cache of what was downloaded
    check_show(file)
    name, root = _find_policy(reference, runs_dir, trust)
    load = partial(
        policy.load, root=root, seed=seed, deterministic=not sample, trust=trust, warn=warn
    )
    loaded = load(name)

    def other(offset: int) -> Policy:
        """The policy `offset` checkpoints later; the first one follows the last one."""
        nonlocal loaded
        # A run in training may have deleted the one that plays.
        steps = sorted({loaded.step, *CheckpointStore(loaded.run.checkpoints).steps()})
        step = steps[(steps.index(loaded.step) + offset) % len(steps)]
        loaded.context.train_environment.close()
        loaded = load(f"{loaded.run.path}:{step}")
        return Policy.of(loaded)

    try:
        player = Policy.of(loaded)
        with loaded.context.rng.borrowed(f"{EVALUATE}/"):
            return play_policy(
                player,
                deterministic=not sample,
                other=other,
                seeds=seeds(loaded.config.experiment.seed, EVALUATE, episodes),
                max_steps=max_steps,
                video=file,
                tell=tell,
            )
    finally:
        loaded.context.train_environment.close()


def play_grid(
    references: "Sequence[str | Path | Run]",
    video: Folder,
    *,
    episodes: int = 1,
    sample: bool = False,
    seed: int = 0,
    max_steps: int | None = None,
    runs_dir: Folder | None = None,
    trust: bool = False,
    tell: Callable[[int, list[Played]], None] = lambda number, episodes: None,
    warn: Callable[[str], None] = python_warning,
) -> list[Playback]:
    """Film several runs or checkpoints side by side, on the same episodes.

    Args:
        references: Runs or checkpoints, as for `evaluate`.
        video: The film to write, .mp4 or .gif.
        episodes: Number of episodes.
        sample: Sample actions instead of taking the most likely ones.
        seed: The seed of the episodes, the same for all.
        max_steps: Cut episodes after this many steps.
        runs_dir: Where runs live.
        trust: Import code that runs name, although this user did not make them.
        tell: Called with the number and the results of each episode when it is over.
        warn: Called with a sentence about each damaged checkpoint that was skipped.

    Returns:
        What was played, for each of them.
    """
    if not references or episodes < 1 or (max_steps is not None and max_steps < 1):
        raise UserError("play: it takes a run, and episodes and max_steps of at least 1")
    check_show(Path(video))
    loaded: list[policy.LoadedPolicy] = []
    try:
        for reference in references:
            name, root = _find_policy(reference, runs_dir, trust)
            options: dict[str, Any] = {"deterministic": not sample, "trust": trust, "warn": warn}
            loaded.append(policy.load(name, root, seed=seed, **options))
        with ExitStack() as borrowed:
            for each in loaded:
                borrowed.enter_context(each.context.rng.borrowed(f"{EVALUATE}/"))
            return play_side_by_side(
                loaded,
                Path(video),
                seeds=seeds(seed, EVALUATE, episodes),
                deterministic=not sample,
                max_steps=max_steps,
                tell=tell,
            )
    finally:
        for each in loaded:
            each.context.train_environment.close()


def record(
    reference: "str | Path | Run",
    *,
    episodes: int = 3,
    seed: int = 0,
    sample: bool = False,
    max_steps: int | None = None,
    runs_dir: Folder | None = None,
    trust: bool = False,
    tell: Callable[[int, Played], None] = lambda number, episode: None,
    warn: Callable[[str], None] = python_warning,
) -> Recorded:
    """Record episodes of a trained policy step by step, for the inspector of `rl-lab ui`.

    Args:
        reference: A run or checkpoint, as for `evaluate`.
        episodes: Number of episodes.
        seed: Of the episodes: the same ones for every checkpoint and run.
        sample: Sample actions instead of taking the most likely ones.
        max_steps: Cut episodes after this many steps.
        runs_dir: Where runs live.
        trust: Import code that the run names, although this user did not make the run.
        tell: Called with the number and the result of each episode when it is over.
        warn: Called with a sentence about each damaged checkpoint that was skipped.

    Returns:
        The folder of the recording, and the returns.
    """
    if episodes < 1 or (max_steps is not None and max_steps < 1):
        raise UserError("record: episodes and max_steps must be at least 1")
    _check_types(sample=sample, trust=trust)
    name, root, _ = _find(reference, runs_dir)
    loaded = policy.load(name, root, seed=seed, deterministic=not sample, trust=trust, warn=warn)
    try:
        return record_policy(
            loaded,
            seed=seed,
            episodes=episodes,
            deterministic=not sample,
            max_steps=max_steps,
            tell=tell,
        )
    finally:
        loaded.context.train_environment.close()


def load_policy(
    reference: "str | Path | Run" = "@best",
    *,
    runs_dir: Folder | None = None,
    device: str | None = None,
    trust: bool = False,
    warn: Callable[[str], None] = python_warning,
) -> Policy:
    """Load a trained policy, ready to act.

    Args:
        reference: A run or checkpoint, as for `evaluate`.
        runs_dir: Where runs live.
        device: Where it computes, such as `cpu` or `cuda`; that of the run if not given.
        trust: Import code that the run names, although this user did not make the run.
        warn: Called with a sentence about each damaged checkpoint that was skipped.

    Returns:
        The policy: `act(obs)` gives actions.
    """
    name, root = _find_policy(reference, runs_dir, trust)
    return Policy.of(policy.load(name, root, device=device, trust=trust, warn=warn))


def runs(*, runs_dir: Folder | None = None, **filters: Any) -> list[dict[str, Any]]:
    """List runs: `runs(algorithm="ppo", seed=1)`.

    Args:
        runs_dir: Where runs live.
        **filters: Columns of the index, and the values that they must have.

    Returns:
        A dict for each run, oldest first.
    """
    _check_types(runs_dir=runs_dir)
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
    """Compose and check a configuration without running it.

    Args:
        spec: An experiment such as `"CartPole-v1:ppo"`.
        overrides: `key=value` as on the command line.
        config_file: A YAML file instead of an experiment.
        config_dirs: More folders to look for presets in.
        plugins: Python files that register classes.
        small: Fewer `training.total_timesteps` than the files have mean that much less of
            everything: the run still comes to every phase.

    Returns:
        The typed config, and the plain tree with the origin of each value.
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


def runs_root(runs_dir: Folder | None = None) -> Path:
    """Where runs live: as given, or `RL_LAB_RUNS`, or `runs/`."""
    return Path(runs_dir if runs_dir is not None else os.environ.get("RL_LAB_RUNS") or "runs")


# -------------------------------------------------------------------- arguments


def _find_policy(
    reference: "str | Path | Run", runs_dir: Folder | None, trust: bool
) -> tuple[str, Path]:
    """The name of a run, or the folder of a published policy; and the folder of runs."""
    if not is_published(reference):
        name, root, _ = _find(reference, runs_dir)
        return name, root
    if trust:
        raise UserError(f"{reference}: a published policy is never trusted with code of its own")
    return str(fetch(str(reference))), runs_root(runs_dir)


def _find(
    reference: "str | Path | Run",
    runs_dir: Folder | None,
    env: object = None,
    algorithm: object = None,
    encoder: object = None,
) -> tuple[str, Path, tuple[LocalObject, ...]]:
    """The name of a run, the folder of runs, and its local objects, which are provided."""
    _check_types(runs_dir=runs_dir)
    objects: tuple[LocalObject, ...] = ()
    if isinstance(reference, Run):
        objects = reference.objects
        runs_dir = reference.path.parent if runs_dir is None else runs_dir
        reference = reference.path
    if not isinstance(reference, str | Path):
        raise UserError(
            "reference: must name a run by its id, @last, @best or its path, or be a Run, got "
            f"{type(reference).__name__}"
        )
    name, root = str(reference), runs_root(runs_dir)
    if not (env is algorithm is encoder is None):
        again = for_run(find_run(name, root)[0], env, algorithm, encoder)
        kinds = {each.kind for each in again}
        objects = (*(each for each in objects if each.kind not in kinds), *again)
    for each in objects:
        each.provide()
    return name, root, objects


def _as_run(outcome: Outcome, objects: tuple[LocalObject, ...], trust: bool = False) -> Run:
    return Run(outcome.run, outcome.summary, outcome.exit_code, objects, trust)


_FOLDERS = (str | Path | None, "a path")
_WORDS = (Sequence, "a list of texts")
_TYPES: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(("runs_dir", "config_file", "video"), _FOLDERS),
    **dict.fromkeys(("plugins", "overrides"), _WORDS),
    **dict.fromkeys(("small", "trust", "sample"), (bool, "True or False")),
    "progress": (bool | None, "True, False or None"),
    "view": (Callable | None, "a function (config, folder, first step) that returns sinks"),
}


def _check_types(**arguments: object) -> None:
    """Raise a UserError that names an argument of a wrong type and what it may be."""
    for name, value in arguments.items():
        accepted, words = _TYPES[name]
        if not isinstance(value, accepted) or (accepted is Sequence and isinstance(value, str)):
            raise UserError(f"{name}: must be {words}, got {value!r:.60}")


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
    try:
        seeds: list[int | None] = [whole(each) for each in seed]
    except BadValueError as error:
        raise UserError(f"seed: each {error}") from error
    if not seeds or len(set(seeds)) < len(seeds):
        raise UserError(f"seed: give at least one, and none twice, got {seeds}")
    return seeds


def _each(seed: int | Iterable[int] | None, calls: Sequence[Callable[[], Run]]) -> Run | list[Run]:
    """One run, or a list of them where several seeds were asked for; a signal ends it."""
    found: list[Run] = []
    for call in calls:
        found.append(call())
        if found[-1].exit_code:
            break
    return found if isinstance(seed, Iterable) else found[0]


def _view(view: View | None, progress: bool | None) -> View:
    """What shows a run, and writes its report."""
    return with_report(_shown(view, progress))


def _shown(view: View | None, progress: bool | None) -> View:
    """As given, or the terminal view, or only its warnings."""
    if view is not None:
        return view
    if not (is_watched() if progress is None else progress):
        return warnings_view

    def shown(config: RunConfig, directory: RunDirectory, start: int) -> Sequence[Sink]:
        if progress is None and not config.logging.terminal:
            return warnings_view(config, directory, start)
        return terminal_view(config, directory, start)

    return shown


@contextmanager
def _arguments(
    name: str, function: Callable[..., Any], settings: Mapping[str, Any]
) -> Iterator[None]:
    """Errors of a config in the words of Python: there is no command line."""
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


# --------------------------------------------------------------------- register


def _registrar(kind: str, option: str) -> Callable[[str], Callable[[T], T]]:
    def registrar(name: str) -> Callable[[T], T]:
        return register(kind, name)

    registrar.__doc__ = f"""Class decorator: give a class a name that `{option}` can use.

    Args:
        name: The name. It must not be taken by another class.

    Returns:
        A decorator that registers a class and returns it unchanged.

    Raises:
        UserError: The name is taken.
    """
    return registrar


register_algorithm = _registrar("workflow", "algorithm.name")
register_network = _registrar("encoder", "network.encoder.type")
register_memory = _registrar("memory", "network.memory.type")
register_environment = _registrar("env", "environment.id")
register_buffer = _registrar("buffer", "buffers.NAME.type")
register_wrapper = _registrar("wrapper", "environment.wrappers")
