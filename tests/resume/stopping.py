"""Runs of this process that fail at a hook and are resumed, or would fail and have no such hook."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rl_lab.records import faults
from rl_lab.run.session import resume
from tiny_runs import run_hash, tiny_run


def hash_if_stopped(root: Path, monkeypatch: Any, fault: str, words: list[str]) -> Any:
    """What a run ends as that was stopped by a fault once."""
    faults.reset()
    monkeypatch.setenv("RL_LAB_FAULT", fault)
    with pytest.raises(OSError, match=r"No space"):
        tiny_run(root, *words)
    monkeypatch.delenv("RL_LAB_FAULT")
    torch.manual_seed(123)  # a new process would not share our random stream
    return run_hash(resume("@last", root=root).run)


def hash_if_not_stopped(root: Path, monkeypatch: Any, hooks: int, words: list[str]) -> Any:
    """What a run of so many hooks ends as: the fault after the next one is never met."""
    faults.reset()
    monkeypatch.setenv("RL_LAB_FAULT", f"hook.after:error@{hooks + 1}")
    return run_hash(tiny_run(root, *words).run)
