"""What `Compiled` cannot do is told in one line; nothing here needs a compiler."""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_lab.core import compiled
from rl_lab.core.compiled import Compiled
from rl_lab.core.errors import UserError
from rl_lab.core.spec import Discrete, MultiDiscrete
from rl_lab.networks.mlp import Flatten


@pytest.mark.parametrize("space", [Discrete(5), MultiDiscrete((3, 4))])
def test_indices_can_be_traced(space: Any) -> None:
    """`one_hot` of torch asks for a number on the host, which no compiler can do."""
    flatten = Flatten(space)
    rows = torch.tensor([[2, 3], [0, 1]]) if space.shape else torch.tensor([4, 0])
    shape = compiled._flatten((rows,), [])
    graph, _ = compiled._trace(flatten, [rows], shape, "it")
    assert torch.equal(graph(rows)[0], flatten(rows))
    assert flatten(rows).sum() == rows.numel()


def test_a_function_that_looks_at_a_number_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match=r"curious cannot be compiled: .*compute\.compile=off"):
        Compiled(lambda x: x * float(x.sum()), "curious")(torch.ones(2))


def test_a_cache_that_cannot_be_written_is_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RL_LAB_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    assert compiled.cache_folder() == tmp_path / "new" / "rl-lab"
    monkeypatch.setattr(compiled.os, "access", lambda *words: False)
    assert compiled.cache_folder() == Path(tempfile.gettempdir()) / f"rl-lab-{os.getuid()}"


def test_a_build_that_fails_says_why_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*words: Any) -> None:
        raise RuntimeError("C++ compile error\n\nCommand:\ng++ x\n\nx.h: error: no such file")

    monkeypatch.setenv("RL_LAB_CACHE", str(tmp_path))
    monkeypatch.setattr(compiled, "compiler", lambda: "g++")
    monkeypatch.setattr(compiled, "_build", build)
    with pytest.raises(UserError, match=r"it could not be compiled: x\.h: error: no such file"):
        Compiled(lambda x: x + 1, "it")(torch.ones(2))
