"""Datasets of the Minari library, in and out. The library itself reads and writes them."""

import json
from collections.abc import Iterator, Mapping
from typing import Any
from warnings import catch_warnings, simplefilter

import gymnasium as gym
import numpy as np

from rl_lab.buffers.datasets import MINARI
from rl_lab.buffers.storage import layout
from rl_lab.buffers.walk import Episode
from rl_lab.core.batch import ACTION, OBS, REWARD, Array
from rl_lab.core.errors import UserError
from rl_lab.core.spec import Box, Dict, Discrete, EnvSpec, MultiDiscrete, Observation, Space
from rl_lab.core.tree import named_leaves
from rl_lab.datasets.folder import Tell, silent
from rl_lab.datasets.sources import INHERITED, Source, unbounded

SUFFIX = "-v0"
SCORES = {"random": "min", "expert": "max"}  # our names of references, and theirs
OWN = "rl_lab"  # the field of the metadata that is ours


def library() -> Any:
    """Minari, or how to get it."""
    try:
        import minari

        return minari
    except ImportError:
        raise UserError("this needs Minari: pip install 'rl-lab[minari]'") from None


def dataset_id(name: str) -> str:
    """The id of a dataset in Minari's manner: it ends with a version."""
    head, dash, version = name.rpartition("-v")
    return name if dash and head and version.isdecimal() else f"{name}{SUFFIX}"


def read_minari(name: str) -> Source:
    """A dataset on this machine; nothing is downloaded."""
    minari = library()
    own = name.removeprefix(MINARI)
    try:
        dataset = minari.load_dataset(own)
    except (FileNotFoundError, ValueError) as error:
        raise UserError(
            f"{own} is not on this machine: minari download {own} ({_line(error)})"
        ) from None
    first = next(iter(dataset.iterate_episodes([0])), None)
    if first is None:
        raise UserError(f"{name} has no episodes")
    actions = _space(dataset.action_space, name)
    columns = dict(named_leaves({OBS: first.observations}))
    parts: dict[str, Space] = {
        column.removeprefix(f"{OBS}/"): unbounded(rows.shape[1:], rows.dtype)
        for column, rows in columns.items()
    }
    observation: Observation = parts[OBS] if OBS in columns else Dict(parts)
    known = dataset.storage.metadata
    told = _told(known.get(OWN))
    environment = getattr(getattr(dataset.spec, "env_spec", None), "id", None)
    spec = EnvSpec(str(told.get("environment") or environment or own), observation, actions)
    start = int(getattr(dataset.action_space, "start", 0))

    def episodes() -> Iterator[Episode]:
        kinds = layout(spec)
        for each in dataset.iterate_episodes():
            frames = dict(named_leaves({OBS: each.observations}))
            yield Episode(
                {column: np.asarray(rows, kinds[column][1]) for column, rows in frames.items()},
                np.asarray(each.actions - start if start else each.actions, kinds[ACTION][1]),
                np.asarray(each.rewards, kinds[REWARD][1]),
                bool(each.terminations[-1]),  # whatever was cut without a flag is truncated
            )

    facts: dict[str, Any] = {
        "behavior": str(known.get("algorithm_name", "not known")),
        "provenance": {"minari": own, "versions": {"minari": minari.__version__}},
        **_own_facts(told),
    }
    scores = {key: known.get(f"ref_{end}_score") for key, end in SCORES.items()}
    if any(each is not None for each in scores.values()):
        facts["references"] = {
            key: None if each is None else float(each) for key, each in scores.items()
        }
    return Source(name, spec, actions, episodes, facts)


def _told(text: object) -> dict[str, Any]:
    """What we wrote into the metadata of a dataset; nothing if it is not ours."""
    try:
        found = json.loads(text) if isinstance(text, str) else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _own_facts(told: Mapping[str, Any]) -> dict[str, Any]:
    facts = told.get("facts")
    if not isinstance(facts, dict):
        return {}
    return {name: each for name, each in facts.items() if name in INHERITED}


def write_minari(source: Source, name: str, tell: Tell = silent) -> str:
    """A new dataset of Minari's, whose id is returned."""
    minari = library()
    from minari.data_collector import EpisodeBuffer

    own = dataset_id(name.removeprefix(MINARI))
    buffers = []
    for number, episode in enumerate(source.episodes()):
        terminated, truncated = episode.flags()
        buffers.append(
            EpisodeBuffer(
                id=number,
                observations=_nested(episode.frames),
                actions=episode.action,
                rewards=episode.reward,
                terminations=terminated,
                truncations=truncated,
            )
        )
        tell(number + 1, 0)
    scores = source.facts.get("references") or {}
    made = source.facts.get("provenance") or {}
    try:
        with catch_warnings():  # an author, a link: nothing that a user of ours could set
            simplefilter("ignore")
            dataset = minari.create_dataset_from_buffers(
                dataset_id=own,
                buffer=buffers,
                env=_environment(source),
                observation_space=_observations(source.spec.observation),
                action_space=_gym(source.actions),
                algorithm_name=str(source.facts.get("behavior", "not known")),
                description=f"Recorded with RL Lab. {made}",
            )
    except ValueError as error:
        raise UserError(f"minari:{own} cannot be written: {_line(error)}") from error
    # Minari itself keeps scores only of environments that it can make.
    known = {f"ref_{end}_score": scores.get(name) for name, end in SCORES.items()}
    more = {key: float(each) for key, each in known.items() if each is not None}
    told = {"environment": source.spec.id, "facts": source.facts}
    dataset.storage.update_metadata({**more, OWN: json.dumps(told)})
    return own


def _environment(source: Source) -> Any:
    """The id of the environment, if Gymnasium can make it again as it was."""
    options = source.facts.get("environment_options") or {}
    known = source.spec.id in gym.registry and not (
        options.get("wrappers") or options.get("kwargs")
    )
    return source.spec.id if known else None


def _nested(frames: Mapping[str, Array]) -> Any:
    """`obs`, or a dict of parts; a slash in the name of a part is a level."""
    if OBS in frames:
        return frames[OBS]
    tree: dict[str, Any] = {}
    for name, rows in frames.items():
        *levels, last = name.removeprefix(f"{OBS}/").split("/")
        inner = tree
        for level in levels:
            inner = inner.setdefault(level, {})
        inner[last] = rows
    return tree


def _observations(space: Observation) -> gym.Space[Any]:
    if not isinstance(space, Dict):
        return _gym(space)
    tree = _nested({f"{OBS}/{name}": part for name, part in space.parts.items()})  # type: ignore[misc]

    def made(each: Any) -> gym.Space[Any]:
        if isinstance(each, dict):
            return gym.spaces.Dict({name: made(inner) for name, inner in each.items()})
        return _gym(each)

    return made(tree)


def _gym(space: Space) -> gym.Space[Any]:
    """The space of Gymnasium."""
    if isinstance(space, Discrete):
        return gym.spaces.Discrete(int(space.n))
    if isinstance(space, MultiDiscrete):
        return gym.spaces.MultiDiscrete(np.array(space.nvec))
    return gym.spaces.Box(space.low, space.high, space.shape, space.dtype.type)


def _space(space: Any, where: str) -> Space:
    if isinstance(space, gym.spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, gym.spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return MultiDiscrete(tuple(int(each) for each in space.nvec))
    if isinstance(space, gym.spaces.Box):
        low, high = space.low.astype(np.float32), space.high.astype(np.float32)
        return Box(space.shape, np.dtype(np.float32), low, high)
    raise UserError(f"{where} has actions of {space}, which no policy here can take")


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0]
