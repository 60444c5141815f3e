"""Record a dataset: episodes that a policy plays, or those that a run's own buffer holds.

Episodes are played in batches, one in each of some environments, and a batch becomes a file. Seeds
and random numbers of a batch follow from the seed and the batch's number alone. So a recorder that
was killed goes on where its last file ends, and the files are those of one that was not.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rl_lab.buffers.offline import OfflineReplay
from rl_lab.buffers.replay_buffer import UniformReplay
from rl_lab.buffers.storage import layout
from rl_lab.buffers.walk import Episode, episodes_of
from rl_lab.collect.whole_episodes import Played, whole_episodes
from rl_lab.config.resolve import resolve
from rl_lab.core.batch import ACTION, REWARD, Array, Obs
from rl_lab.core.errors import UserError
from rl_lab.core.protocols import Act, VectorEnv
from rl_lab.core.spec import Box, Space
from rl_lab.datasets.folder import Folder, Tell, Writer, silent
from rl_lab.envs.unit_actions import UnitActions
from rl_lab.records.checkpoint import CheckpointStore
from rl_lab.records.provenance import provenance
from rl_lab.records.run_directory import find_run
from rl_lab.run.build import (
    MOST_EVALUATED,
    is_endless,
    make_context,
    make_environment,
    make_policy,
    seeds,
)
from rl_lab.run.policy import LoadedPolicy
from rl_lab.run.session import fitting, load_config
from rl_lab.run.signals import StopRequest, stop_on_signals

PURPOSE = "dataset"  # its own seeds: episodes that no training and no evaluation has seen
VERSIONS = ("rl-lab", "torch", "numpy", "gymnasium")
Convert = Callable[[Array], Array]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to play."""

    episodes: int = 100
    batch: int = 8  # episodes that are played side by side, and written as one file
    seed: int = 0
    sample: bool = False  # actions are drawn from the policy, not its mode
    noise: float = 0.0  # deviation of noise on actions, as a share of half their range; or a rate
    random: bool = False  # uniformly random actions instead of the policy's
    references: int = 20  # episodes for each reference return; 0: none

    def __post_init__(self) -> None:
        """Refuse what cannot be played."""
        if min(self.episodes, self.batch) < 1 or self.references < 0:
            raise UserError("a dataset needs at least one episode, and a batch of one")
        if not 0.0 <= self.noise <= 10.0:
            raise UserError(f"noise must be between 0 and 10, got {self.noise:g}")


@dataclass(frozen=True)
class Recorded:
    """What a recorder leaves, and 130 or 143 if a signal ended it before the last episode."""

    folder: Folder
    exit_code: int = 0


def record_policy(
    loaded: LoadedPolicy,
    path: Path,
    recipe: Recipe,
    *,
    name: str = "",
    references: Mapping[str, Any] | None = None,
    tell: Tell = silent,
) -> Recorded:
    """Play, and write; a folder with the beginning of the same recording is gone on with."""
    stop = StopRequest()
    player = _Player(loaded, recipe, lambda: stop.requested)
    identity = {**asdict(recipe), "run": loaded.run.id, "checkpoint": loaded.step}
    del identity["references"]
    facts = {
        "name": name or path.name,
        "behavior": _behavior(loaded, recipe),
        "recording": identity,
        "environment_options": _environment(loaded),
        "provenance": _provenance(loaded, recipe.seed),
    }
    with stop_on_signals(stop), closing(player.env):
        writer, done = _writer(path, player, facts)
        tell(done, recipe.episodes)
        while done < recipe.episodes:
            count = min(recipe.batch, recipe.episodes - done)
            played = player.batch(f"{PURPOSE}/{done // recipe.batch}/", count)
            if not played:
                return Recorded(Folder(path, writer.description), stop.exit_code)
            writer.add([player.episode(each) for each in played])
            done += count
            tell(done, recipe.episodes)
        return Recorded(writer.finish({"references": dict(references)} if references else {}))


def _writer(path: Path, player: "_Player", facts: dict[str, Any]) -> tuple[Writer, int]:
    """A new dataset, or what is there of this one; and how many episodes it has."""
    if not (path / "dataset.json").exists():
        return Writer.begin(path, player.env.spec, player.actions, facts), 0
    there = Folder.open(str(path))
    if there.about.get("recording") != facts["recording"]:
        raise UserError(f"{path} is another dataset: choose another name, or delete it")
    refuse_complete(path)
    done = sum(1 for _ in there.episodes())
    if done % player.recipe.batch and done < player.recipe.episodes:
        raise UserError(f"{path} does not end with a whole batch: delete it and begin again")
    return Writer.go_on(there, facts), done


def refuse_complete(path: Path) -> None:
    """A dataset that is there and complete is not written again."""
    if (path / "dataset.json").exists() and Folder.open(str(path)).complete:
        raise UserError(f"{path} is complete: choose another name, or delete it")


class _Player:
    """Environments, a policy, and what is done to its actions."""

    def __init__(
        self, loaded: LoadedPolicy, recipe: Recipe, interrupted: Callable[[], bool]
    ) -> None:
        self.loaded, self.recipe, self.interrupted = loaded, recipe, interrupted
        config = loaded.config
        if is_endless(config, loaded.context.spec):
            limited = replace(config.environment, max_episode_steps=MOST_EVALUATED)
            config = replace(config, environment=limited)
        self.env = make_environment(config, PURPOSE, recipe.batch)
        self.actions, self.to_environment = own_units(self.env)
        self.noise = loaded.context.rng.numpy("dataset_noise")
        self.random = make_policy("random", loaded.algorithm, loaded.context)
        self.wanted = layout(self.env.spec)

    def batch(self, purpose: str, count: int) -> list[Played]:
        """Episodes whose random numbers follow from the purpose."""
        act = self.random.act if self.recipe.random else self.loaded.algorithm.act
        return self._play(act, purpose, count, not self.recipe.sample, self._noisy)

    def reference(self, purpose: str, episodes: int, *, random: bool) -> float:
        """The mean return of random play, or of the policy as it is."""
        act = self.random.act if random else self.loaded.algorithm.act
        returns: list[float] = []
        while len(returns) < episodes and not self.interrupted():
            count = min(self.recipe.batch, episodes - len(returns))
            number = len(returns) // self.recipe.batch
            played = self._play(
                act, f"{purpose}/{number}/", count, True, lambda obs, action: action
            )
            returns += [sum(each.rewards) for each in played]
        return float(np.mean(returns)) if returns else float("nan")

    def _play(
        self,
        act: Act,
        purpose: str,
        count: int,
        deterministic: bool,
        change: Callable[[Obs, Array], Array],
    ) -> list[Played]:
        own = seeds(self.recipe.seed, purpose, self.recipe.batch)
        with self.loaded.context.rng.borrowed(purpose):
            found = whole_episodes(
                act,
                self.env,
                seeds=own,
                deterministic=deterministic,
                initial_state=self.loaded.algorithm.initial_state(self.recipe.batch),
                device=self.loaded.config.experiment.device,
                change=change,
                interrupted=self.interrupted,
            )
        return found[:count]

    def _noisy(self, obs: Obs, action: Array) -> Array:
        """Normal noise within the bounds of a Box; of discrete actions, some are random ones."""
        if not self.recipe.noise:
            return action
        space, scale = self.env.spec.action, self.recipe.noise
        if isinstance(space, Box):
            half = (space.high - space.low) / 2 if space.bounded else np.ones(space.shape)
            noise = self.noise.normal(size=action.shape)
            return np.clip(action + scale * half * noise, space.low, space.high).astype(
                action.dtype
            )
        wild = self.noise.random(len(action)) < scale
        other = self.random.act(obs, None, deterministic=False).action
        return np.where(wild.reshape(-1, *[1] * (action.ndim - 1)), np.asarray(other), action)

    def episode(self, played: Played) -> Episode:
        """What was played, in the types of the columns and the units of the environment."""
        action = self.to_environment(np.stack(played.actions))
        return Episode(
            {
                name: np.ascontiguousarray(rows, self.wanted[name][1])
                for name, rows in played.columns().items()
            },
            np.ascontiguousarray(action, self.wanted[ACTION][1]),
            np.array(played.rewards, self.wanted[REWARD][1]),
            played.terminated,
        )


def own_units(env: VectorEnv) -> tuple[Space, Convert]:
    """The environment's own actions, and how those of a policy become them."""
    if isinstance(env, UnitActions):
        return env.env.spec.action, env.stretch
    space = env.spec.action
    if isinstance(space, Box) and space.bounded:
        low, high = space.low, space.high
        return space, lambda action: np.clip(action, low, high)
    return space, lambda action: action


def _behavior(loaded: LoadedPolicy, recipe: Recipe) -> str:
    if recipe.random:
        return "uniformly random actions"
    how = "sampled actions" if recipe.sample else "its most likely actions"
    noise = f", with noise of {recipe.noise:g}" if recipe.noise else ""
    return f"{loaded.config.algorithm.name} after {loaded.step:,} steps, {how}{noise}"


def _environment(loaded: LoadedPolicy) -> dict[str, Any]:
    block = loaded.config.environment
    return {
        "id": block.id,
        "kwargs": block.kwargs,
        "wrappers": block.wrappers,
        "max_episode_steps": loaded.context.spec.max_episode_steps,
    }


def _provenance(loaded: LoadedPolicy, seed: int | None) -> dict[str, Any]:
    return _origin(loaded.run.id, loaded.config.algorithm.name, loaded.step) | {"seed": seed}


def _origin(run: str, algorithm: str, step: int) -> dict[str, Any]:
    made = provenance([])
    packages = made["packages"]
    return {
        "run": run,
        "algorithm": algorithm,
        "checkpoint": step,
        "commit": (made["git"] or {}).get("sha"),
        "time": made["time"],
        "versions": {name: packages[name] for name in VERSIONS},
    }


def measure_references(
    loaded: LoadedPolicy, episodes: int, *, seed: int = 0, expert: float | None = None
) -> dict[str, Any]:
    """What counts as 0 and as 100: random play, and that of this policy or an `expert` return.

    Equal seeds give equal numbers, whatever is recorded.
    """
    player = _Player(loaded, Recipe(seed=seed, references=episodes), lambda: False)
    with closing(player.env):
        low = player.reference("reference/random", episodes, random=True)
        if expert is None:
            expert = player.reference("reference/policy", episodes, random=False)
    return {"random": low, "expert": expert, "episodes": episodes}


# -- the buffer of a run -------------------------------------------------------------------------


def record_replay(
    reference: str,
    root: Path,
    path: Path,
    *,
    name: str = "",
    buffer: str | None = None,
    references: Mapping[str, Any] | None = None,
    trust: bool = False,
    tell: Tell = silent,
    warn: Callable[[str], None] = lambda line: None,
) -> Recorded:
    """What a run's buffer held at a checkpoint, the last one unless the reference names another."""
    directory, which = find_run(reference, root)
    directory.check_complete()
    config = load_config(directory, trust=trust)
    config = resolve(replace(config, compute=replace(config.compute, compile="off")))
    store = CheckpointStore(
        directory.checkpoints, on_skip=lambda message: warn(f"run {directory.id}: {message}")
    )
    if not store.steps():
        raise UserError(f"run {directory.id} has no checkpoint yet")
    state, manifest, _ = store.load(which or "last")
    context = make_context(config)
    with closing(context.train_environment) as env:
        found = context.buffers.items()
        kept = {each: it for each, it in found if isinstance(it, UniformReplay)}
        kept = {each: it for each, it in kept.items() if not isinstance(it, OfflineReplay)}
        if not kept or (buffer is not None and buffer not in kept):
            there = f"buffers that keep transitions: {', '.join(kept) or 'none'}"
            raise UserError(f"run {directory.id} has no such buffer to record ({there})")
        chosen = buffer or next(iter(kept))
        replay, step = kept[chosen], int(manifest["step"])
        assert isinstance(replay, UniformReplay)
        with fitting(manifest):
            replay.load_state_dict(state["parts"][f"buffer.{chosen}"])
        actions, convert = own_units(env)
        options = config.environment
        facts = {
            "name": name or path.name,
            "behavior": f"what {config.algorithm.name} played in training, up to step {step:,}",
            "environment_options": {
                "id": options.id,
                "kwargs": options.kwargs,
                "wrappers": options.wrappers,
                "max_episode_steps": context.spec.max_episode_steps,
            },
            "provenance": _origin(directory.id, config.algorithm.name, step)
            | {"seed": config.experiment.seed, "buffer": chosen},
        }
        writer = Writer.begin(path, env.spec, actions, facts)
        writer.add_all(_converted(replay, convert, tell))
    return Recorded(writer.finish({"references": dict(references)} if references else {}))


def _converted(replay: UniformReplay, convert: Convert, tell: Tell) -> Iterator[Episode]:
    done = 0
    for episode in episodes_of(replay.ring):
        done += len(episode)
        tell(done, len(replay))
        action = convert(episode.action)
        yield replace(episode, action=action.astype(episode.action.dtype))
