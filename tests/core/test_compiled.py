"""A compiled function is the function itself: the same numbers, nothing frozen, nothing stale.

Compiling takes many seconds, so the fast tests share one program. What only decides whether and
under which name a program is made runs with a build that stops there.
"""

from collections.abc import Callable, Iterator
from contextvars import copy_context
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from rl_lab.core import compiled
from rl_lab.core.compiled import Compiled
from rl_lab.core.errors import UserError
from rl_lab.networks.mlp import Tanh, compiled_tanh

needs_compiler = pytest.mark.skipif(
    compiled.compiler() is None, reason="compiling needs a C++ compiler"
)


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


def mixed(weights: dict[str, Tensor], pair: Pair, rest: tuple[Tensor, dict[str, Tensor]]) -> Any:
    """A bit of everything: trees both ways, integers, a constant, and a gradient inside."""
    scale = torch.tensor([1.0, 2.0, 3.0])

    def loss(weight: Tensor) -> Tensor:
        return ((pair.left * weight * scale).tanh() + weights["shift"]).square().sum()

    gradient = torch.func.grad(loss)(weights["weight"])
    found = {"gradient": gradient, "nothing": {}, "counted": rest[0] + 1}
    return found, Pair(pair.left @ pair.right, pair.left[rest[0]])


def inputs(rows: int = 4, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.randn(rows, 3, generator=generator) for _ in range(2))
    weights = {"weight": torch.randn(3, generator=generator), "shift": torch.tensor(0.5)}
    return weights, Pair(left, right.t().contiguous()), (torch.tensor([2, 0, 1]), {})


def leaves(tree: Any) -> list[Tensor]:
    found: list[Tensor] = []
    compiled._flatten(tree, found)
    return found


def assert_same(one: Any, two: Any, error: float = 1e-6) -> None:
    assert compiled._flatten(one, []) == compiled._flatten(two, [])
    for a, b in zip(leaves(one), leaves(two), strict=True):
        torch.testing.assert_close(a, b, rtol=error, atol=error)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("RL_LAB_CACHE", str(folder))
        yield folder / "compiled"


@pytest.fixture(scope="module")
def program(cache: Path) -> Compiled:
    made = Compiled(mixed, "a mixture")
    made(*inputs())
    return made


class NotCachedError(Exception):
    """Raised instead of compiling, with the file that would have been made."""


@pytest.fixture
def no_build(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(graph: Any, leaves: Any, file: Path) -> None:
        raise NotCachedError(file)

    monkeypatch.setattr(compiled, "_build", build)


def file_of(function: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(NotCachedError) as caught:
        Compiled(function, "it")(*arguments)
    return str(caught.value)


# ------------------------------------------------------------------------- trees


def test_a_tree_is_put_together_again() -> None:
    a, b, c = torch.ones(1), torch.zeros(2), torch.arange(3)
    tree = ({"x": Pair(a, b), "none": {}, "deep": {"y": (c,), "z": ()}}, a)
    found: list[Tensor] = []
    shape = compiled._flatten(tree, found)
    assert [id(each) for each in found] == [id(each) for each in (a, b, c, a)]
    again = compiled._unflatten(iter(found), shape)
    assert list(again[0]) == ["x", "none", "deep"] and type(again[0]["x"]) is Pair
    assert again[0]["none"] == {} and again[0]["deep"]["z"] == ()
    assert again[0]["x"].right is b and again[0]["deep"]["y"][0] is c and again[1] is a
    assert hash(shape) == hash(compiled._flatten(again, []))
    assert shape != compiled._flatten(({**tree[0], "x": (a, b)}, a), [])


# --------------------------------------------------------------------- the numbers


@needs_compiler
def test_the_result_is_the_functions_own(program: Compiled) -> None:
    for seed in range(3):
        arguments = inputs(seed=seed)
        assert_same(program(*arguments), mixed(*arguments))
    assert len(program._variants) == 1


@needs_compiler
def test_arguments_in_any_memory_layout(program: Compiled) -> None:
    _, pair, rest = inputs()
    strided = Pair(pair.left.t().contiguous().t(), torch.randn(6, 8)[::2, ::2])
    assert not strided.left.is_contiguous() and not strided.right.is_contiguous()
    shifted = {"weight": torch.randn(9)[5:8], "shift": torch.randn(4)[3]}
    assert_same(program(shifted, strided, rest), mixed(shifted, strided, rest))
    assert len(program._variants) == 1


@needs_compiler
def test_nothing_that_was_passed_in_is_frozen_or_written(program: Compiled) -> None:
    arguments = inputs()
    before = program(*arguments)
    kept = [each.clone() for each in leaves(before)]
    arguments[0]["shift"].fill_(-2.0)  # as a buffer moves between two updates
    copies = [each.clone() for each in leaves(arguments)]
    after = program(*arguments)
    assert_same(after, mixed(*arguments))
    assert not torch.allclose(after[0]["gradient"], before[0]["gradient"])
    assert all(map(torch.equal, leaves(before), kept))
    assert all(map(torch.equal, leaves(arguments), copies))


@needs_compiler
@pytest.mark.slow
def test_what_comes_back_is_fresh_memory(cache: Path) -> None:
    x = torch.randn(4, 3)
    copies = Compiled(lambda x: (x, x, x[:1], x.t(), x + 1, torch.tensor([1.0, 2.0])), "copies")
    out = copies(x)
    owners = [each.untyped_storage().data_ptr() for each in (x, *out)]
    assert len(set(owners)) == len(owners)
    out[-1].zero_()
    assert copies(x)[-1].tolist() == [1.0, 2.0]


@needs_compiler
def test_one_tensor_passed_twice_is_two_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Any] = []
    monkeypatch.setenv("RL_LAB_CACHE", str(tmp_path))
    monkeypatch.setattr(compiled, "_build", lambda *given: built.extend(given))
    monkeypatch.setattr(compiled, "_load", lambda file, device: built[0])
    monkeypatch.setattr(torch.fx.GraphModule, "run", lambda self, x: self(*x), raising=False)
    x, y = torch.randn(3), torch.randn(3)
    minus = Compiled(lambda a, b: a - 2 * b, "it")
    minus(x, x)
    torch.testing.assert_close(minus(x, y), x - 2 * y)
    assert built[1][0] is not built[1][1]  # exporting would see one input, too


@needs_compiler
@pytest.mark.slow
def test_another_shape_is_another_program(program: Compiled) -> None:
    for rows in (7, 4, 7):
        assert_same(program(*inputs(rows, seed=rows)), mixed(*inputs(rows, seed=rows)))
    assert len(program._variants) == 2


@needs_compiler
def test_machine_code_never_sees_another_shape_or_type(program: Compiled, no_build: None) -> None:
    weights, pair, rest = inputs()
    doubles = {name: each.double() for name, each in weights.items()}
    turned = dict(reversed(weights.items()))  # values would reach each other's names
    for other in ((doubles, pair, rest), (turned, pair, rest), inputs(rows=5)):
        with pytest.raises(NotCachedError):
            program(*other)


# ----------------------------------------------------------------------- the cache


@needs_compiler
def test_a_second_process_would_find_the_file(program: Compiled, no_build: None) -> None:
    arguments = inputs(seed=5)
    assert_same(Compiled(mixed, "another name")(*arguments), mixed(*arguments))


@needs_compiler
@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_a_file_that_was_cut_off_is_made_again(
    program: Compiled,
    cache: Path,
    no_build: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    share: float,
) -> None:
    monkeypatch.setenv("RL_LAB_CACHE", str(tmp_path))
    cut = Path(file_of(mixed, *inputs()))
    content = (cache / cut.name).read_bytes()
    cut.parent.mkdir()
    cut.write_bytes(content[: int(len(content) * share)])
    made = []

    def build(graph: Any, leaves: Any, file: Path) -> None:
        made.append(file)
        file.write_bytes(content)

    monkeypatch.setattr(compiled, "_build", build)
    assert_same(Compiled(mixed, "it")(*inputs()), mixed(*inputs()))
    assert made == [cut]


@needs_compiler
def test_the_file_is_named_after_everything_that_decides_the_numbers(
    no_build: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL_LAB_CACHE", str(tmp_path))

    def times(factor: float) -> Callable[[Tensor], Tensor]:
        return lambda x: x * factor

    def plus(*numbers: float) -> Callable[[Tensor], Tensor]:
        return lambda x: x + torch.tensor(numbers)

    x = torch.ones(2)
    name = file_of(times(2.0), x)
    assert Path(name).parent == tmp_path / "compiled"
    assert file_of(lambda x: x * 2.0, x + 1) == name  # neither the values nor the spelling
    others = [
        file_of(times(2.0000000000000004), x),
        file_of(times(2.0), torch.ones(3)),
        file_of(times(2.0), x.double()),
        file_of(plus(1.0, 2.0), x),
        file_of(plus(1.0, 2.5), x),
    ]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    others.append(file_of(times(2.0), x))
    monkeypatch.setattr(torch, "__version__", "99.0")
    others.append(file_of(times(2.0), x))
    assert len({name, *others}) == 1 + len(others)


def test_where_files_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RL_LAB_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert compiled.cache_folder() == tmp_path / ".cache" / "rl-lab"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert compiled.cache_folder() == tmp_path / "xdg" / "rl-lab"
    monkeypatch.setenv("RL_LAB_CACHE", str(tmp_path / "own"))
    assert compiled.cache_folder() == tmp_path / "own"


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("outside", [torch.ones(2), torch.tensor(3.0), nn.Parameter(torch.ones(2))])
@pytest.mark.parametrize("use", [torch.mul, lambda x, outside: (x + 1, outside)])
def test_a_tensor_from_outside_is_refused(outside: Tensor, use: Any) -> None:
    size = r"\(2,\)" if outside.dim() else r"\(\)"
    with pytest.raises(UserError, match=rf"^it cannot .* of shape {size} .*compute.compile=off$"):
        Compiled(lambda x: use(x, outside), "it")(torch.ones(2))
    assert not compiled.tracing.get()


def test_no_compiler_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_LAB_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert compiled.compiler() is None
    with pytest.raises(UserError, match=r"^compiling it needs a C\+\+ compiler: .*compile=off\)$"):
        Compiled(lambda x: x * 3.25, "it")(torch.ones(2))


def test_the_compiler_is_the_one_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("g++", "mine"):
        (tmp_path / name).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert compiled.compiler() == str(tmp_path / "g++")
    monkeypatch.setenv("CXX", "mine")
    assert compiled.compiler() == str(tmp_path / "mine")


@needs_compiler
def test_who_waits_is_told_why(
    no_build: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL_LAB_CACHE", str(tmp_path))
    told: list[str] = []

    def listening() -> None:
        compiled.tell_with(told.append)
        file_of(lambda x: x * 4.5, torch.ones(2))

    copy_context().run(listening)
    assert [line.split(" (")[0] for line in told] == ["Compiling it"]
    file_of(lambda x: x * 4.5, torch.ones(2))  # outside of that context nobody listens
    assert len(told) == 1


# ---------------------------------------------------------------------- the update


def test_the_compiled_tanh_is_tanh() -> None:
    x = torch.linspace(-12, 12, 200_001)
    exact = x.double().tanh()
    assert (compiled_tanh(x) - x.tanh()).abs().max() < 5e-7
    assert (compiled_tanh(x) - exact).abs().max() < 5e-7
    gradient = torch.func.grad(lambda x: compiled_tanh(x).sum())(x)
    assert (gradient - (1 - exact.square())).abs().max() < 1e-6
    assert (gradient >= 0).all()


def test_tanh_is_respelled_only_for_the_compiler() -> None:
    x, seen = torch.linspace(-3, 3, 7), []

    def watched(x: Tensor) -> Tensor:
        seen.append(compiled.tracing.get())
        return Tanh()(x)

    graph, _ = compiled._trace(watched, [x], (tuple, (), (None,)), "it")
    assert "tanh" not in graph.code and "div" in graph.code
    assert torch.equal(watched(x), x.tanh())
    assert seen == [True, False]
