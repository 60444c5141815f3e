"""How much memory a buffer may take: asked before it is made, and again before it grows."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rl_lab.core.errors import UserError

GIB = 2**30
ROOT = Path("/")


def require_room(
    needed: Callable[[int], int], rows: int, num_envs: int, others: Mapping[str, Any]
) -> None:
    """Refuse a buffer that does not fit beside the `others`, with the capacity that would.

    `needed` returns the bytes that a number of vector steps takes.
    """
    free = free_bytes()
    if free is None:
        return
    # The others have their memory promised, but hardly a page of it is taken yet.
    free = max(free - sum(getattr(each, "bytes_needed", 0) for each in others.values()), 0)
    if needed(rows) > free:
        fitting = bisect_right(range(rows + 1), free, key=needed) - 1
        raise UserError(
            f"capacity {rows * num_envs:_} needs {needed(rows) / GIB:.1f} GiB, "
            f"{free / GIB:.1f} GiB are free: at most {rounded_down(fitting * num_envs):_} fit"
        )


def require_more(needed: int, what: str) -> None:
    """Refuse to grow beyond what was asked for at first, where there is no room any more."""
    free = free_bytes()
    if free is not None and needed > free:
        raise UserError(
            f"{what} need {needed / GIB:.1f} GiB, "
            f"{free / GIB:.1f} GiB are free: set a smaller capacity"
        )


def free_bytes(root: Path = ROOT) -> int | None:
    """What this process may still take: the machine's memory or its container's, whichever is less.

    None where the system does not say.
    """
    found = [each for each in (_of_machine(root), *_of_groups(root)) if each is not None]
    return max(min(found), 0) if found else None


def rounded_down(number: int) -> int:
    """Two digits that count: 387_421 is 380_000."""
    unit = 10 ** max(len(str(number)) - 2, 0)
    return number // unit * unit


def _of_machine(root: Path) -> int | None:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _of_groups(root: Path) -> Iterator[int | None]:
    """The limits of the control groups (versions 2 and 1) that this process is in, and above."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder, names = root / "sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            folder = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        own = folder / path.strip("/")
        for group in (own, *own.parents):
            yield _left(group, *names)
            if group == folder:
                break


def _left(group: Path, limit: str, usage: str) -> int | None:
    """What a group may still take; file pages that the kernel can drop count as free."""
    most, used = ("".join(_lines(group / name)) for name in (limit, usage))
    if not most.isdigit() or not used.isdigit():
        return None
    pages = dict(line.split() for line in _lines(group / "memory.stat"))
    return int(most) - int(used) + int(pages.get("inactive_file", 0))


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
