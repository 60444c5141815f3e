"""Out of memory, in one line: what to make smaller, with the values it has now."""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rl_lab.config.tree import leaves, to_tree
from rl_lab.core.errors import OutOfMemoryError
from rl_lab.core.schema import RunConfig

# What takes memory, the largest first; a minibatch shrinks when there are more of them.
LARGE = [
    (r"buffers\..*\.capacity", "smaller"),
    (r"environment\.num_envs", "smaller"),
    (r"environment\.workers", "smaller"),
    (r"algorithm\.rollout_steps", "smaller"),
    (r"algorithm\.minibatches", "larger"),
    (r"algorithm\.batch_size", "smaller"),
    (r"network\..*(hidden_dims|channels|width|dim|size|layers)", "smaller"),
]
MESSAGES = ("can't allocate memory", "not enough memory", "std::bad_alloc", "out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """RAM or GPU, whoever noticed it first: Python, numpy, torch or the kernel."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(each in str(error) for each in MESSAGES)


@contextmanager
def explaining_memory(config: RunConfig) -> Iterator[None]:
    """Turn an out-of-memory error of any library into one that says what to do."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise OutOfMemoryError(advice(config, error)) from error
        raise


def advice(config: RunConfig, error: BaseException) -> str:
    """One line: what happened, what to change and from which value, and that nothing is lost."""
    tree = to_tree(config)
    options: list[str] = []
    for pattern, direction in LARGE:
        for path, value in leaves(tree):
            if re.fullmatch(pattern, path) and _takes_memory(value):
                options.append(f"a {direction} {path} (now {_plain(value)})")
    asked = re.search(r"tried to allocate ([\d.]+ ?\w+)", str(error), re.IGNORECASE)
    amount = f", {_readable(asked[1])} more were needed" if asked else ""
    place = "GPU" if isinstance(error, torch.OutOfMemoryError) else "machine"
    return (
        f"out of memory on this {place}{amount}: try {', '.join(options)}; "
        "checkpoints that were written are kept"
    )


def _takes_memory(value: object) -> bool:
    return bool(value) and not isinstance(value, bool | str)


def _plain(value: object) -> str:
    return f"{value:_}" if isinstance(value, int) else str(value)


def _readable(amount: str) -> str:
    """`123456789 bytes` as a human writes it; GPU errors are readable already."""
    number = re.fullmatch(r"(\d+) ?bytes?", amount)
    return f"{int(number[1]) / 2**30:.1f} GiB" if number else amount
