"""Pure functions of tensors, compiled ahead of time into a file that is kept and used again.

The first call traces the function into a graph and looks for it in the cache. If it is new, the
graph becomes C++ (torch's AOTInductor), which takes half a minute once; afterwards a process needs
a second or two to trace and load, and a call costs no guards and no Python. Shapes are fixed:
another shape is another file. The key is the graph itself with what decides its numbers, so an old
file never answers for new code, and a resumed run executes the very same machine code.
"""

import hashlib
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rl_lab.core.errors import UserError

CACHE_VARIABLE = "RL_LAB_CACHE"
COMPILERS = ("g++", "clang++", "c++")
_VERSION = 1  # of this file's way of compiling: part of every key

# True while a function is being compiled: its operations may be spelled for the compiler.
tracing: ContextVar[bool] = ContextVar("tracing", default=False)
_told: ContextVar[Callable[[str], object]] = ContextVar("told", default=lambda line: None)


def compiler() -> str | None:
    """The C++ compiler that would be used, or None."""
    asked = os.environ.get("CXX")
    return next(filter(None, map(shutil.which, (*([asked] if asked else []), *COMPILERS))), None)


def cache_folder() -> Path:
    """Where compiled functions are kept: RL_LAB_CACHE, or the user's cache folder."""
    if own := os.environ.get(CACHE_VARIABLE):
        return Path(own).expanduser()
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    if home.startswith("~") or not os.access(_existing(Path(home)), os.W_OK):  # no home
        shared = Path(tempfile.gettempdir()) / f"rl-lab-{os.getuid()}"
        if shared.exists() and shared.stat().st_uid != os.getuid():  # its machine code is not run
            raise UserError(f"{shared} belongs to another user: set {CACHE_VARIABLE} to a folder")
        return shared
    return Path(home) / "rl-lab"


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(each for each in (folder, *folder.parents) if each.exists())


@cache
def cpu_model() -> str:
    """What the processor calls itself: code that is compiled for one may not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()


def tell_with(say: Callable[[str], object]) -> None:
    """Call `say` in this context before something slow happens."""
    _told.set(say)


# A tree without its leaves: None for a tensor, else the type, the keys of a dict, the branches.
# What is None in the tree is a branch without anything on it.
# A module among the arguments is passed as its tensors, and has them for the call.
Shape = tuple[type, tuple[Any, ...], tuple[Any, ...]] | None


def _flatten(tree: Any, leaves: list[Tensor]) -> Shape:
    """Append the tensors of dicts, tuples and modules in order; what is left is their shape."""
    if isinstance(tree, Tensor):
        leaves.append(tree)
        return None
    if isinstance(tree, nn.Module):
        leaves.extend(_tensors(tree).values())
        return nn.Module, (tree,), ()
    if isinstance(tree, dict):
        return dict, tuple(tree), tuple([_flatten(each, leaves) for each in tree.values()])
    if tree is None:
        return type(None), (), ()
    return type(tree), (), tuple([_flatten(each, leaves) for each in tree])


_known_tensors: WeakKeyDictionary[nn.Module, dict[str, Tensor]] = WeakKeyDictionary()


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name: the same objects as long as the module lives."""
    if (known := _known_tensors.get(module)) is None:
        known = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        _known_tensors[module] = known
    return known


Swaps = dict[nn.Module, dict[str, Tensor]]  # the tensors that a module has during a call


def _unflatten(leaves: Iterator[Tensor], shape: Shape, swaps: Swaps | None = None) -> Any:
    """The tree again. For each module in it, `swaps` gets the tensors that stand for its own."""
    if shape is None:
        return next(leaves)
    kind, keys, branches = shape
    if kind is type(None):
        return None
    if kind is nn.Module:
        (module,) = keys
        tensors = {name: next(leaves) for name in _tensors(module)}
        if swaps is not None:
            swaps[module] = tensors
        return module
    values = [_unflatten(leaves, branch, swaps) for branch in branches]
    if kind is dict:
        return dict(zip(keys, values, strict=True))
    return kind(*values) if hasattr(kind, "_fields") else kind(values)


def _inputs(arguments: tuple[Any, ...]) -> tuple[list[Tensor], Any]:
    """Tensors as the machine code wants them, and all that it takes for granted about them."""
    leaves: list[Tensor] = []
    shape = _flatten(arguments, leaves)
    leaves = [leaf.contiguous() for leaf in leaves]
    return leaves, (shape, [leaf.shape for leaf in leaves], [leaf.dtype for leaf in leaves])


class Compiled:
    """A pure function of trees of tensors and modules. Whatever it reads must be an argument."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        shorten: Callable[..., tuple[Any, ...]] | None = None,
    ) -> None:
        """`shorten`: the arguments of one turn of a loop, which stands for all turns in the key."""
        self.function = function
        self.name = name
        self.shorten = shorten
        self._variants: list[tuple[Any, Any, Shape]] = []  # signature, machine code, what comes out

    def __call__(self, *arguments: object) -> Any:
        """What the function returns, as fresh tensors."""
        return self.given()(*arguments)

    def given(self, *last: object) -> Callable[..., Any]:
        """The function of its first arguments. The last ones are read once, here."""
        fixed, fixed_signature = _inputs(last)

        def call(*first: object) -> Any:
            moving, signature = _inputs(first)
            inputs = moving + fixed
            for known, runner, out_shape in self._variants:
                if known == (signature, fixed_signature):
                    return _unflatten(iter(runner.run(inputs)), out_shape)
            _, _, branches = _flatten((*first, *last), []) or (tuple, (), ())
            found = self._make(inputs, (tuple, (), branches))
            self._variants.append(((signature, fixed_signature), *found))
            return call(*first)

        return call

    def _make(self, leaves: Sequence[Tensor], shape: Shape) -> tuple[Any, Shape]:
        # Copies: a tensor that is passed twice today must not be taken for one argument for ever.
        leaves = [leaf.detach().clone() for leaf in leaves]
        traced, traced_shape = leaves, shape
        if self.shorten is not None:
            traced = []
            traced_shape = _flatten(self.shorten(*_unflatten(iter(leaves), shape)), traced)
        graph, out_shape = _trace(self.function, traced, traced_shape, self.name)
        file = cache_folder() / "compiled" / f"{_key(graph, leaves)}.pt2"
        device = leaves[0].device
        if not _is_whole(file):
            if compiler() is None:
                raise UserError(
                    f"compiling {self.name} needs a C++ compiler: install g++ (a new run can do "
                    "without it by compute.compile=off)"
                )
            _told.get()(f"Compiling {self.name} (a minute or a few; kept for next time) ...")
            try:
                with _undisturbed():
                    if self.shorten is not None:
                        graph, _ = _trace(self.function, leaves, shape, self.name)
                    _build(graph, leaves, file)
            except (RuntimeError, OSError) as error:
                raise UserError(
                    f"{self.name} could not be compiled: {_reason(error)} (the cache is in "
                    f"{file.parent}; a new run can do without it by compute.compile=off)"
                ) from error
        return _load(file, device), out_shape


class _Caller(nn.Module):
    """A function that calls modules, as a module with them: so `functional_call` can swap."""

    def __init__(self, function: Callable[..., Any], modules: Iterable[nn.Module]) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(modules)

    def forward(self, *arguments: object) -> Any:
        return self.function(*arguments)


def _swapped(function: Callable[..., Any], arguments: tuple[Any, ...], swaps: Swaps) -> Any:
    """Call the function while modules have other tensors in place of their own."""
    if not swaps:
        return function(*arguments)
    named = {
        f"parts.{index}.{name}": each
        for index, tensors in enumerate(swaps.values())
        for name, each in tensors.items()
    }
    return functional_call(_Caller(function, swaps), named, arguments)


def _trace(
    function: Callable[..., Any], leaves: Sequence[Tensor], shape: Shape, name: str
) -> tuple[torch.fx.GraphModule, Shape]:
    """The function as a graph of a list of tensors, gradients included."""
    from torch.fx.experimental.proxy_tensor import make_fx

    out_shape: list[Shape] = []

    def flat(*inputs: Tensor) -> list[Tensor]:
        outputs: list[Tensor] = []
        swaps: Swaps = {}
        result = _swapped(function, _unflatten(iter(inputs), shape, swaps), swaps)
        out_shape[:] = [_flatten(result, outputs)]
        return [each.clone() for each in outputs]  # never the memory of an input

    token = tracing.set(True)
    try:
        graph = make_fx(flat)(*leaves)
    except RuntimeError as error:  # it looks at a number to decide what to do
        raise UserError(
            f"{name} cannot be compiled: {_reason(error)}; set compute.compile=off"
        ) from error
    finally:
        tracing.reset(token)
    for node in graph.graph.find_nodes(op="get_attr"):
        # A constant made inside the function is copied by `lift_fresh_copy`; anything else is a
        # tensor from outside, whose value of today would be frozen into the machine code.
        if any("lift_fresh" not in str(user.target) for user in node.users):
            size = tuple(getattr(graph, node.target).shape)
            raise UserError(
                f"{name} cannot be compiled: it reads a tensor of shape {size} that is not one of "
                "its arguments; pass it in, or set compute.compile=off"
            )
    return graph, out_shape[0]


def _key(graph: torch.fx.GraphModule, leaves: Sequence[Tensor]) -> str:
    """A name for the machine code: graph, constants, shapes, and what compiles and runs it."""
    parts = [
        str(_VERSION),
        graph.code,
        *[f"{tuple(leaf.shape)} {leaf.dtype} {leaf.device}" for leaf in leaves],
        torch.__version__,
        cpu_model(),
        torch.backends.cpu.get_cpu_capability(),
        *[torch.cuda.get_device_name(leaf.device) for leaf in leaves[:1] if leaf.is_cuda],
        str(torch.get_num_threads()),
        str(torch.are_deterministic_algorithms_enabled()),
    ]  # not the compiler: a file that is there goes on to be used when g++ is upgraded or gone
    digest = hashlib.sha256("\0".join(parts).encode())
    for node in graph.graph.find_nodes(op="get_attr"):
        digest.update(getattr(graph, node.target).numpy(force=True).tobytes())
    return digest.hexdigest()[:32]


@cache
def compiler_version() -> str:
    """What the C++ compiler says of itself: another one makes other machine code."""
    found = compiler()
    if found is None:
        return "none"
    return subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout


def _build(graph: torch.fx.GraphModule, leaves: Sequence[Tensor], file: Path) -> None:
    """Compile into a file of this name; two runs may do so at once."""
    from torch._inductor import aoti_compile_and_package

    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix="building-") as folder:
        made = Path(folder) / file.name
        exported = torch.export.export(graph, tuple(leaves))
        configs = {"cpp.cxx": (None, compiler())}
        aoti_compile_and_package(exported, package_path=str(made), inductor_configs=configs)
        made.replace(file)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No warnings of the compiler's own code; and Ctrl-C waits, or g++ would be ended by it too."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _reason(error: Exception) -> str:
    """The line of an error that tells something: compilers write many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "error:" in line]
    return (telling or lines or [type(error).__name__])[0][:300]


def _is_whole(file: Path) -> bool:
    """False if it is not there, cut off or damaged: then it is made again."""
    try:
        with zipfile.ZipFile(file) as package:
            return package.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False


def _load(file: Path, device: torch.device) -> Any:
    """The C++ loader itself: torch's Python one would import the whole compiler."""
    index = -1 if device.index is None else device.index
    return torch._C._aoti.AOTIModelPackageLoader(str(file), "model", False, 1, index)
