"""Make datasets of datasets: merge, split, convert. Episodes stay whole, and nothing is held."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from rl_lab.buffers.about import actions_of
from rl_lab.buffers.segments import write_durably
from rl_lab.buffers.storage import layout
from rl_lab.buffers.walk import Episode
from rl_lab.core.batch import ACTION, REWARD, TERMINATED, TRUNCATED
from rl_lab.core.chunks import Columns
from rl_lab.core.errors import UserError
from rl_lab.datasets.folder import Folder, Tell, Writer, fitted, silent
from rl_lab.datasets.sources import Source, open_source

Format = Literal["rl-lab", "npz", "minari", "lerobot"]
FORMATS: tuple[Format, ...] = ("rl-lab", "npz", "minari", "lerobot")


def merge(names: Sequence[str], path: Path, *, name: str = "", tell: Tell = silent) -> Folder:
    """One dataset of several, in their order; references are kept where all agree."""
    sources = [open_source(each) for each in names]
    first = sources[0]
    for other in sources[1:]:
        require_alike(first, other)
    known = [source.facts.get("references") for source in sources]
    facts: dict[str, Any] = {
        "name": name or path.name,
        "behavior": " + ".join(str(source.facts.get("behavior", "?")) for source in sources),
        "provenance": {"merged": list(names)},
    }
    if (options := first.facts.get("environment_options")) is not None:
        facts["environment_options"] = options

    def episodes() -> Iterator[Episode]:
        done = 0
        for source in sources:
            for episode in source.episodes():
                done += 1
                tell(done, 0)
                yield fitted(episode, first.spec, source.where)

    writer = Writer.begin(path, first.spec, first.actions, facts)
    writer.add_all(episodes())
    agreed = known[0] is not None and all(each == known[0] for each in known)
    return writer.finish({"references": known[0]} if agreed else {})


def require_alike(one: Source, other: Source) -> None:
    """Refuse to mix tasks, columns or units of actions."""
    if layout(one.spec) != layout(other.spec):
        raise UserError(f"{one.where} and {other.where} have different columns")
    if actions_of(one.actions) != actions_of(other.actions):
        raise UserError(f"{one.where} and {other.where} have actions in different units")
    if one.spec.id != other.spec.id:
        raise UserError(f"{one.where} is of {one.spec.id}, {other.where} of {other.spec.id}")


def split(
    name: str,
    paths: Sequence[Path],
    *,
    fraction: float | None = None,
    episodes: int | None = None,
    best: float | None = None,
    seed: int = 0,
    tell: Tell = silent,
) -> tuple[Folder, Folder]:
    """Two datasets of one: a `fraction` at random, the first `episodes`, or the `best` share.

    Equal seeds choose equal episodes; both parts keep the order.
    """
    source = open_source(name)
    totals = np.array([episode.total for episode in source.episodes()])
    count = len(totals)
    if episodes is not None:
        chosen, how = np.arange(count) < episodes, f"the first {episodes} episodes"
    elif best is not None:
        size = _share(best, count)
        order = np.argsort(-totals, kind="stable")
        chosen, how = np.isin(np.arange(count), order[:size]), f"the best {best:.4g} of the returns"
    elif fraction is not None:
        order = np.random.default_rng(seed).permutation(count)
        chosen = np.isin(np.arange(count), order[: _share(fraction, count)])
        how = f"{fraction:.4g} of the episodes at random (seed {seed})"
    else:
        raise UserError("say how to split: --fraction 0.8, --episodes 100 or --best 0.1")
    if chosen.all() or not chosen.any():
        raise UserError(f"{name} has {count} episodes: one part would be empty")
    made = []
    for path, which, part in ((paths[0], chosen, how), (paths[1], ~chosen, f"all but {how}")):
        facts = {
            **source.facts,
            "name": path.name,
            "provenance": {
                **(source.facts.get("provenance") or {}),
                "split": f"{part} of {name}",
            },
        }
        writer = Writer.begin(path, source.spec, source.actions, facts)
        writer.add_all(_picked(source, which, tell))
        made.append(writer.finish({}))
    return made[0], made[1]


def _share(share: float, count: int) -> int:
    if not 0.0 < share < 1.0:
        raise UserError(f"a share must be between 0 and 1, got {share:g}")
    return min(max(round(share * count), 1), count)


def _picked(source: Source, which: Any, tell: Tell) -> Iterator[Episode]:
    for number, (episode, wanted) in enumerate(zip(source.episodes(), which, strict=True)):
        tell(number + 1, len(which))
        if wanted:
            yield episode


def convert(
    name: str, to: Format, out: str, place: Callable[[str], Path], tell: Tell = silent
) -> str:
    """The same episodes in another format; where they are now."""
    source = open_source(name)
    if to == "minari":
        from rl_lab.datasets.minari import write_minari

        return f"minari:{write_minari(source, out, tell)}"
    path = place(out)
    if to == "lerobot":
        from rl_lab.datasets.lerobot import write_lerobot

        write_lerobot(source, path, tell)
    elif to == "npz":
        _write_plain(source, path, tell)
    else:
        facts = {**source.facts, "name": out}
        writer = Writer.begin(path, source.spec, source.actions, facts)
        writer.add_all(_counted(source, tell))
        writer.finish({})
    return str(path)


def _counted(source: Source, tell: Tell) -> Iterator[Episode]:
    for number, episode in enumerate(source.episodes()):
        tell(number + 1, 0)
        yield fitted(episode, source.spec, source.where)


def _write_plain(source: Source, folder: Path, tell: Tell) -> None:
    """A file for every episode, with one frame more than steps."""
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} exists: choose another name, or delete it")
    folder.mkdir(parents=True, exist_ok=True)
    for number, episode in enumerate(_counted(source, tell)):
        terminated, truncated = episode.flags()
        rows = {**episode.frames, ACTION: episode.action, REWARD: episode.reward}
        rows |= {TERMINATED: terminated, TRUNCATED: truncated}
        file = folder / f"episode_{number:06d}.npz"
        write_durably(file, partial(_savez, rows))


def _savez(rows: Columns, sink: BinaryIO) -> None:
    np.savez(sink, allow_pickle=False, **rows)
