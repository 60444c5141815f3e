"""Vector steps in files: only the newest ones, and a few numbers for each row, are in memory.

New rows wait in a small ring. Full ones become a segment, and so does what is there when a
checkpoint is made: so files and checkpoint together have everything. Files are only ever added.

A run that is resumed goes back to its checkpoint: files that were written after it are ignored at
once, and deleted before anything else is written. Until then nothing in the folder is touched.
"""

import json
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rl_lab.buffers.segments import (
    FINAL,
    FOLLOWS,
    HEAD,
    SUFFIX,
    Mapped,
    Places,
    Segment,
    find_arrays,
    find_segments,
    read_array,
    write_durably,
    write_segment,
)
from rl_lab.buffers.storage import CUT, Ring, Steps, layout, row_bytes
from rl_lab.core.batch import (
    ACTION,
    NEXT_OBS,
    OBS,
    RESET,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Array,
    Batch,
)
from rl_lab.core.chunks import Log
from rl_lab.core.errors import UserError
from rl_lab.core.spec import EnvSpec
from rl_lab.core.tree import picked

ABOUT = "dataset.json"
FORMAT = 1
MOST_TEXT = 2**24  # bytes of a description
TRAJECTORY = (OBS, ACTION, REWARD, TERMINATED, TRUNCATED, NEXT_OBS, RESET)


class DiskRing(Steps):
    """The newest `rows` vector steps of what is in a folder, and of what is added to it."""

    def __init__(
        self, spec: EnvSpec, rows: int, num_envs: int, folder: Path, *, segment: int, ram: int
    ) -> None:
        super().__init__(spec, rows, num_envs)
        self.spec, self.folder, self.layout = spec, folder, layout(spec)
        step_bytes = row_bytes(self.layout) * num_envs
        self.length = max(segment // step_bytes, 1)  # vector steps of a full segment
        self.most_mapped = max(ram // max(segment, step_bytes), 1)
        self.mapped: OrderedDict[int, Mapped] = OrderedDict()  # by first step, last used last
        self.places: dict[int, Places] = {}  # of the arrays in the files that were verified
        self.cut = np.zeros(self.capacity, np.bool_)  # of sealed rows
        self.leftover: list[Segment] = []  # written after the checkpoint that this run came from
        check_about(folder, spec, num_envs)
        segments = find_segments(folder)
        self._open(segments, base=segments[-1].stop if segments else 0)

    @property
    def sealed(self) -> int:
        """How many vector steps are in files."""
        return self.segments[-1].stop if self.segments else 0

    def _open(self, segments: list[Segment], base: int, tail: dict[str, Any] | None = None) -> None:
        """Stand where these segments end, and the rows that wait for the next one.

        Steps before `base` are of others: ours do not follow them.
        """
        self.segments, self.base = segments, base
        self.starts = np.array([each.first for each in segments], np.int64)
        self.tail = Ring(self.spec, 2 * self.length, self.num_envs)
        if tail is not None:
            self.tail.load_state_dict(tail)
        self.total = base + self.tail.total
        self.mapped.clear()
        self.places.clear()
        follows = True
        for each in reversed(segments):
            if each.stop <= self.oldest:
                break
            cut = read_array(each.path, CUT)
            cut[-1] |= not follows
            follows = bool(read_array(each.path, FOLLOWS))
            self._note_cuts(each.first, cut)
        self._end_others()
        self.head = self.tail.head
        if segments and not self.tail.total:
            last = self._map(segments[-1])
            self.head = {name: last.columns[f"{HEAD}/{name}"] for name in self.frame_names}

    def _note_cuts(self, first: int, cut: Array) -> None:
        """Where rows from the vector step `first` on are cut, [T, N]."""
        skipped = max(self.oldest - first, 0)
        number = np.arange((first + skipped) * self.num_envs, (first + len(cut)) * self.num_envs)
        self.cut[number % self.capacity] = cut[skipped:].reshape(-1)

    # ------------------------------------------------------------ writing

    def add(self, trajectory: Batch) -> None:
        """Take a trajectory [T, N, …], and seal what is full."""
        kept = {key: trajectory[key] for key in TRAJECTORY}
        for first in range(0, len(kept[RESET]), self.length):
            self.tail.add(picked(kept, slice(first, first + self.length)))
            self.total = self.base + self.tail.total
            self.head = self.tail.head
            self._end_others()
            while self.total - 1 - self.sealed >= self.length:
                self._seal(self.sealed + self.length)

    def end(self) -> None:
        """Nothing will be added any more: what the newest row led to is final."""
        assert self.tail.total == 0, "it is only read"
        if self.total:
            self._note_cuts(self.total - 1, np.ones((1, self.num_envs), np.bool_))

    def _end_others(self) -> None:
        """What others wrote is cut off where our own rows begin."""
        if self.tail.total and self.base > self.oldest:
            self._note_cuts(self.base - 1, np.ones((1, self.num_envs), np.bool_))

    def _seal(self, stop: int) -> None:
        """Write the rows before the vector step `stop`; all of them have followers."""
        first, own = self.sealed, self.base * self.num_envs
        number = np.arange(first * self.num_envs, stop * self.num_envs) - own
        lead = (stop - first, self.num_envs)
        cut = self.tail.is_cut(number)
        columns = {name: self.tail.take(name, number) for name in self.layout}
        columns = {name: rows.reshape(*lead, *rows.shape[1:]) for name, rows in columns.items()}
        columns |= {CUT: cut.reshape(lead), FOLLOWS: np.array(first > self.base)}
        for name in self.frame_names:
            columns[f"{FINAL}/{name}"] = self.tail.final_frame(name, number[cut])
            columns[f"{HEAD}/{name}"] = self.tail.next_frame(name, number[-self.num_envs :])
        self._clear_the_way()
        self.segments.append(write_segment(self.folder, first, columns))
        self.starts = np.append(self.starts, first)
        self.places.pop(first, None)
        self._note_cuts(first, columns[CUT])

    def _clear_the_way(self) -> None:
        """Delete what a resumed run has left behind; no other process may write here."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.check_leftover()
        for each in reversed(self.leftover):  # never a gap, whenever this is interrupted
            each.path.unlink(missing_ok=True)
        self.leftover = []
        known = {each.path.name for each in self.segments}
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            if path.name not in known:
                raise UserError(f"{path} is of another run: give each its own folder")
        if not (self.folder / ABOUT).exists():
            text = json.dumps(about(self.spec, self.num_envs), indent=2).encode()
            write_durably(self.folder / ABOUT, lambda file: file.write(text))

    def check_leftover(self) -> None:
        """Refuse to go on where that would delete what another run has added in the meantime.

        A run's first file does not follow what was there. Ours begins at `base`; any other that
        does not follow is the first one of another writer.
        """
        for each in self.leftover:
            if each.first != self.base and not read_array(each.path, FOLLOWS):
                raise UserError(
                    f"{each.path} was added by another run after the checkpoint, and going on "
                    "would delete it: every run needs its own folder"
                )

    # ------------------------------------------------------------ reading

    def take(self, name: str, number: Array) -> Array:
        """A column at these transitions, from files or from memory."""
        shape, kind = self.layout[name]
        flat = number.reshape(-1)
        found = np.empty((len(flat), *shape), kind)
        for rows, home, at in self._homes(flat):
            found[rows] = home.take(name, at)
        return found.reshape(*number.shape, *shape)

    def final_frame(self, name: str, number: Array) -> Array:
        """The frames that transitions with a cut after them ended in."""
        shape, kind = self.layout[name]
        found = np.empty((len(number), *shape), kind)
        for rows, home, at in self._homes(number):
            found[rows] = home.final_frame(name, at)
        return found

    def is_cut(self, number: Array) -> Array:
        """True where a transition has a final frame of its own; not known yet for the newest."""
        cut: Array = self.cut.take(number % self.capacity)
        waiting = number >= self.sealed * self.num_envs
        cut[waiting] = self.tail.is_cut(number[waiting] - self.base * self.num_envs)
        return cut

    def _homes(self, number: Array) -> Iterator[tuple[Array, Ring | Mapped, Array]]:
        """Which of these transitions lie where, and their numbers there."""
        step = number // self.num_envs
        which = np.where(step < self.sealed, np.searchsorted(self.starts, step, "right") - 1, -1)
        order = np.argsort(which, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(which[order])) + 1):
            if not len(rows):
                continue
            if which[rows[0]] < 0:
                yield rows, self.tail, number[rows] - self.base * self.num_envs
            else:
                segment = self.segments[which[rows[0]]]
                yield rows, self._map(segment), number[rows] - segment.first * self.num_envs

    def _map(self, segment: Segment) -> Mapped:
        """A segment in memory; the one that was not used for the longest time makes room."""
        if segment.first in self.mapped:
            self.mapped.move_to_end(segment.first)
        else:
            if segment.first not in self.places:
                self.places[segment.first] = self._checked(segment)
            places = self.places[segment.first]
            self.mapped[segment.first] = Mapped(segment, self.num_envs, places)
            if len(self.mapped) > self.most_mapped:
                self.mapped.popitem(last=False)
        return self.mapped[segment.first]

    def _checked(self, segment: Segment) -> Places:
        """Where the arrays of a file lie; they must be what its folder says, as it may be foreign.

        Nothing is read beyond its end, whatever its headers say.
        """
        places, lead = find_arrays(segment.path), (segment.count, self.num_envs)
        wanted = {name: ((*lead, *shape), kind) for name, (shape, kind) in self.layout.items()}
        wanted[CUT] = (lead, np.bool_)
        for name in self.frame_names:
            shape, kind = self.layout[name]
            final = places.get(f"{FINAL}/{name}", (0, (0,), np.dtype(kind)))[1]
            wanted[f"{FINAL}/{name}"] = ((*final[:1], *shape), kind)
            wanted[f"{HEAD}/{name}"] = ((self.num_envs, *shape), kind)
        for name, (shape, kind) in wanted.items():
            if name not in places or places[name][1:] != (shape, np.dtype(kind)):
                raise UserError(
                    f"{segment.path} is damaged: '{name}' is not what dataset.json says"
                )
        return places

    # ------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Which files, and the newest row, which is not closed yet; all else is sealed now."""
        if self.total - 1 > self.sealed and self.tail.total:
            self._seal(self.total - 1)
        tail = self.tail.state_dict()
        tail |= {"log": Log([], max(self.tail.total - 1, 0)), "finals": Log([], 1)}
        return {
            "rows": self.rows,
            "num_envs": self.num_envs,
            "base": self.base,
            "segments": [each.path.name for each in self.segments],
            "checksums": np.array([each.checksum for each in self.segments], np.int64),
            "tail": tail,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The same files, however many there are now, and the same newest row."""
        for name, here in (("rows", self.rows), ("num_envs", self.num_envs)):
            if state[name] != here:
                raise UserError(
                    f"a saved buffer does not fit: it has {name} = {state[name]}, here it is {here}"
                )
        found = find_segments(self.folder)
        kept = len(state["segments"])
        for each, name, checksum in zip(found, state["segments"], state["checksums"], strict=False):
            if each.path.name != name or each.checksum != checksum:
                raise UserError(f"{each.path} is not what the checkpoint knows as {name}")
        if len(found) < kept:
            missing = state["segments"][len(found)]
            raise UserError(f"{self.folder / missing} is missing: the checkpoint needs it")
        self.leftover = found[kept:]
        self._open(found[:kept], base=int(state["base"]), tail=state["tail"])


def about(spec: EnvSpec, num_envs: int) -> dict[str, Any]:
    """What all files of a folder have in common."""
    columns = {
        name: {"shape": list(shape), "dtype": np.dtype(kind).name}
        for name, (shape, kind) in layout(spec).items()
    }
    return {"format": FORMAT, "environment": spec.id, "num_envs": num_envs, "columns": columns}


def read_about(folder: Path) -> dict[str, Any] | None:
    """What a folder says of its files; None where a disk buffer has never written."""
    file = folder / ABOUT
    if not file.exists():
        return None
    if not file.is_file() or file.stat().st_size > MOST_TEXT:
        raise UserError(f"{file} is not a description of a dataset")
    try:
        found = json.loads(file.read_text())
        version, several = found["format"], int(found["num_envs"]) > 0
        listed = isinstance(found["columns"], dict) and isinstance(found["environment"], str)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{file} is damaged: {error!r}") from error
    if version != FORMAT:
        raise UserError(f"{file} has the format {version}, known is {FORMAT}")
    if not (several and listed):
        raise UserError(f"{file} is damaged: it does not say what is in its folder")
    return dict(found)


def written(folder: Path) -> dict[str, Any]:
    """What a folder says of its files; there must be some."""
    found = read_about(folder)
    if found is None:
        raise UserError(f"{folder} has no {ABOUT}: no disk buffer has written there")
    return found


def check_about(folder: Path, spec: EnvSpec, num_envs: int) -> None:
    """Rows of another shape cannot stand beside these."""
    found, here = read_about(folder), about(spec, num_envs)
    for key in ("num_envs", "columns"):
        if found is not None and found[key] != here[key]:
            raise UserError(f"{folder} has {key} = {found[key]}, here it is {here[key]}")
