"""The whole state of an environment as a tree of arrays and JSON, and back into a fresh one.

One recursion walks the wrappers and the base environment alike: they are Python objects with
attributes. What only draws or describes (spaces, specs, functions, windows) is not state and stays
as it is. Everything else is captured or refused: nothing is dropped in silence. Nothing is pickled;
only classes of the environment's own packages, already imported, are built again. Two kinds of
part bring their own way: a MuJoCo simulation, and an episode that is played again (level E1; all
else is E0). The proof that it works is made in a second process, by `rl_lab.envs.check`.
"""

import hashlib
import logging
import random
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import PurePath
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray
from torch import Tensor

from rl_lab.core.errors import UserError
from rl_lab.core.state import Tree
from rl_lab.envs import mujoco
from rl_lab.envs.action_replay import Replayed, ResetOnResume

SAVED = ("E0", "E1")  # levels at which a checkpoint holds what puts an environment back

Tables = Mapping[str, str]  # path of a big constant container -> digest of its content

# A node that is not plain JSON is a dict with one of these keys, and perhaps details beside it.
KEPT, TABLE, SAME = "kept", "table", "same"
ARRAY, TRANSPOSED, BYTES, SCALAR, TENSOR = "array", "transposed", "bytes", "scalar", "tensor"
LIST, TUPLE, SET, FROZENSET, DEQUE, MAPPING = "list", "tuple", "set", "frozenset", "deque", "dict"
GENERATOR, RANDOM_STATE, PYTHON_RANDOM = "generator", "random_state", "python_random"
ENUM, OBJECT = "enum", "object"
REPLAY, MUJOCO, PHYSICS = "replay", "mujoco", "physics"

_SEQUENCES = {LIST: list, TUPLE: tuple, SET: set, FROZENSET: frozenset}
_MAPPINGS: tuple[type, ...] = (dict, OrderedDict, Counter)
_BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
_NOT_STATE = (
    gym.Space,
    EnvSpec,
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    partial,
    np.dtype,
    PurePath,
    logging.Logger,
)
_DRAWING = ("pygame", "gymnasium.envs.mujoco.mujoco_rendering")  # modules whose objects only draw
SCRIPT = "__main__"  # the module of what a script defines itself
_TABLE_CHARACTERS = 4096  # a container whose text is shorter is saved like anything else
_PLAIN_SIZE = object.__basicsize__ + 16  # of an instance: a header, `__dict__` and weak references


class SnapshotError(UserError):
    """A part of an environment's state cannot be saved, or does not fit where it should go."""


def capture(env: gym.Env[Any, Any], tables: Tables | None = None) -> Tree:
    """The state of an environment and its wrappers, or a `SnapshotError` that names the part."""
    return _Writer(tables or {}).node(env, "env")


def restore(env: gym.Env[Any, Any], tree: Tree) -> None:
    """Put a captured state into an environment that was made in the same way."""
    _Reader(env).node(tree, env, "env")


def obstacle(env: gym.Env[Any, Any]) -> str | None:
    """Why this environment cannot be captured, or None if it can."""
    try:
        capture(env)
    except SnapshotError as error:
        return str(error)
    return None


def level(env: gym.Env[Any, Any]) -> str:
    """How an environment is put back: E0 its state, E1 its actions, E3 not at all."""
    if obstacle(env) is not None:
        return "E3"
    return "E1" if any(isinstance(layer, Replayed) for layer in _layers(env)) else "E0"


def static_tables(envs: Sequence[gym.Env[Any, Any]]) -> dict[str, str]:
    """Big constant containers on which equal environments agree: a digest of them is enough.

    A table made by chance at construction differs between environments and is saved in full. So is
    every table of a single environment: there is nothing to compare it with.
    """
    if len(envs) < 2:
        return {}
    found = [
        {
            f"env.{name}": _digest(value)
            for name, value in vars(env.unwrapped).items()
            if isinstance(value, dict | list | tuple) and _is_table(value)
        }
        for env in envs
    ]
    first, *others = found
    return {path: key for path, key in first.items() if all(o.get(path) == key for o in others)}


def generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """The state of a numpy generator: its name and integers."""
    return dict(generator.bit_generator.state)


class _Writer:
    """Objects to nodes. Remembers what it has written, so that one object stays one object."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.written: dict[int, str] = {}
        self.kept: list[Any] = []  # an id is only an identity while its object lives

    def node(self, value: object, path: str) -> Tree:
        if value is None or type(value) in (bool, int, float, str):
            return value
        if _is_not_state(value):
            return {KEPT: type(value).__name__}
        if isinstance(value, np.generic):
            return {SCALAR: self._array(np.asarray(value), path)}
        if id(value) in self.written:
            return {SAME: self.written[id(value)]}
        self.written[id(value)] = path
        self.kept.append(value)
        return self._container(value, path)

    def _container(self, value: Any, path: str) -> Tree:
        kind = type(value)
        if kind is np.ndarray:
            return self._array(value, path)
        if isinstance(value, Replayed):
            return {REPLAY: self.node(value.record(), f"{path}.record")}
        if isinstance(value, ResetOnResume):
            raise SnapshotError("environment.snapshot=reset asks for new episodes")
        if mujoco.is_data(value):
            return {MUJOCO: mujoco.capture_data(value)}
        if _is_physics(value):
            return {PHYSICS: self.node(value.data.ptr, f"{path}.data")}
        if isinstance(value, Tensor):
            return {TENSOR: value.detach().cpu().clone()}
        if kind in (list, tuple, dict) and self._is_unchanged_table(value, path):
            return {TABLE: self.tables[_base(path)]}
        if kind in _SEQUENCES.values():
            return {kind.__name__: self._items(value, path)}
        if kind is deque:
            return {DEQUE: self._items(value, path), "maxlen": value.maxlen}
        if kind in (*_MAPPINGS, defaultdict):
            pairs = [
                [self.node(key, f"{path}[key {i}]"), self.node(item, f"{path}[{i}]")]
                for i, (key, item) in enumerate(value.items())
            ]
            return {MAPPING: pairs, "class": _name(kind)}
        if kind is np.random.Generator:
            return {GENERATOR: generator_state(value)}
        if kind is np.random.RandomState:
            return {RANDOM_STATE: value.get_state(legacy=False)}
        if kind is random.Random:
            return {PYTHON_RANDOM: self._items(value.getstate(), path)}
        if isinstance(value, Enum):
            return {ENUM: value.name, "class": _name(kind)}
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return {TUPLE: self._items(value, path), "class": _name(kind)}
        if hasattr(value, "__dict__") and kind.__basicsize__ <= _PLAIN_SIZE:
            # By name, the one order that survives JSON: SAME must come after what it points to.
            fields = sorted(vars(value).items())
            nodes = {name: self.node(field, f"{path}.{name}") for name, field in fields}
            return {OBJECT: nodes, "class": _name(kind)}
        raise SnapshotError(f"{path} is a {_name(kind)}, whose state cannot be captured")

    def _items(self, values: Iterable[object], path: str) -> list[Tree]:
        return [self.node(value, f"{path}[{index}]") for index, value in enumerate(values)]

    def _array(self, value: NDArray[Any], path: str) -> Tree:
        if value.dtype.hasobject:
            raise SnapshotError(f"{path} is an array of Python objects and cannot be captured")
        if value.dtype.kind in "biuf" and value.dtype.isnative and value.dtype.itemsize <= 8:
            # The memory layout is kept, because sums over it may round differently.
            transposed = value.ndim > 1 and value.flags.f_contiguous
            return {TRANSPOSED: value.T.copy()} if transposed else {ARRAY: value.copy()}
        content = np.frombuffer(value.tobytes(), np.uint8).copy()
        return {BYTES: content, "dtype": value.dtype.str, "shape": list(value.shape)}

    def _is_unchanged_table(self, value: object, path: str) -> bool:
        digest = self.tables.get(_base(path))
        return digest is not None and _digest(value) == digest


class _Reader:
    """Nodes to objects, into the objects that the environment already has."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self.made: dict[str, Any] = {}
        self.packages = {type(layer).__module__.partition(".")[0] for layer in _layers(env)}
        self.module = _module(type(getattr(env, "unwrapped", env)))

    def node(self, node: Tree, current: object, path: str) -> Any:
        if not isinstance(node, dict):
            return node
        if KEPT in node:
            return current
        if SAME in node:
            if node[SAME] not in self.made:
                raise SnapshotError(f"{path} is inside {node[SAME]}, a container of itself")
            return self.made[node[SAME]]
        if SCALAR in node:
            return self._array(node[SCALAR])[()]
        value = self.made[path] = self._container(node, current, path)
        return value

    def _container(self, node: dict[str, Any], current: object, path: str) -> Any:
        if ARRAY in node or TRANSPOSED in node or BYTES in node:
            return self._array(node)
        if TENSOR in node:
            return node[TENSOR].clone()
        if TABLE in node:
            if _digest(current) != node[TABLE]:
                raise SnapshotError(f"{path} is not the table that the saved environment had")
            return current
        if TUPLE in node and "class" in node:
            kind = self._class(node, current, path, tuple)
            return tuple.__new__(kind, self._items(node[TUPLE], path))
        for kind, build in _SEQUENCES.items():
            if kind in node:
                return self._sequence(node[kind], build, current, path)
        if DEQUE in node:
            return deque(self._items(node[DEQUE], path), node["maxlen"])
        if MAPPING in node:
            return self._mapping(node, current, path)
        if ENUM in node:
            return self._class(node, current, path, Enum)[node[ENUM]]
        if OBJECT in node:
            return self._object(node, current, path)
        if REPLAY in node or MUJOCO in node or PHYSICS in node:
            return self._simulator(node, current, path)
        return self._random(node, path)

    def _simulator(self, node: dict[str, Any], current: Any, path: str) -> Any:
        """Parts that the environment must already have: they are filled in place."""
        if REPLAY in node and isinstance(current, Replayed):
            current.replay(self.node(node[REPLAY], None, f"{path}.record"))
        elif MUJOCO in node and mujoco.is_data(current):
            mujoco.restore_data(current, node[MUJOCO])
        elif PHYSICS in node and _is_physics(current):
            self.node(node[PHYSICS], current.data.ptr, f"{path}.data")
        else:
            raise SnapshotError(f"{path} is a {_name(type(current))}, the saved one was another")
        return current

    def _sequence(self, nodes: list[Tree], build: type, current: object, path: str) -> Any:
        """Objects in a list are filled in place where the environment already has as many."""
        known = list(current) if isinstance(current, list | tuple) else []
        if len(known) != len(nodes):
            known = [None] * len(nodes)
        pairs = enumerate(zip(nodes, known, strict=True))
        values = [self.node(node, old, f"{path}[{i}]") for i, (node, old) in pairs]
        return build(values)

    def _items(self, nodes: list[Tree], path: str) -> list[Any]:
        return [self.node(node, None, f"{path}[{index}]") for index, node in enumerate(nodes)]

    def _mapping(self, node: dict[str, Any], current: Any, path: str) -> Any:
        target = next((kind() for kind in _MAPPINGS if _name(kind) == node["class"]), current)
        if _name(type(target)) != node["class"]:
            raise SnapshotError(f"{path} must be a {node['class']}, it is a {type(current)}")
        known = dict(current) if isinstance(current, dict) else {}
        target.clear()
        for i, (key_node, value_node) in enumerate(node[MAPPING]):
            key = self.node(key_node, None, f"{path}[key {i}]")
            target[key] = self.node(value_node, known.get(key), f"{path}[{i}]")
        return target

    def _object(self, node: dict[str, Any], current: object, path: str) -> Any:
        fields = {name: node[OBJECT][name] for name in sorted(node[OBJECT])}
        kept = {name for name, field in fields.items() if isinstance(field, dict) and KEPT in field}
        if not _is_named(type(current), node["class"]):
            if kept or isinstance(current, gym.Env):
                raise SnapshotError(
                    f"{path} is a {_name(type(current))}, the saved one was a {node['class']}"
                )
            current = object.__new__(self._class(node, current, path, object))
        self.made[path] = current  # before its fields: they may point back
        known = vars(current)
        kept |= {name for name, value in known.items() if _is_not_state(value)}
        for name in known.keys() - fields.keys() - kept:
            del known[name]
        for name in [name for name in fields if name not in kept]:
            known[name] = self.node(fields[name], known.get(name), f"{path}.{name}")
        return current

    def _random(self, node: dict[str, Any], path: str) -> Any:
        if GENERATOR in node:
            state = node[GENERATOR]
            if state["bit_generator"] not in _BIT_GENERATORS:
                raise SnapshotError(f"{path}: unknown generator {state['bit_generator']}")
            generator = np.random.Generator(getattr(np.random, state["bit_generator"])())
            generator.bit_generator.state = state
            return generator
        if RANDOM_STATE in node:
            legacy = np.random.RandomState()
            legacy.set_state(node[RANDOM_STATE])
            return legacy
        if PYTHON_RANDOM in node:
            python = random.Random()
            python.setstate(cast(Any, tuple(self._items(node[PYTHON_RANDOM], path))))
            return python
        raise SnapshotError(f"{path}: {sorted(node)} is not a part of a snapshot")

    def _array(self, node: dict[str, Any]) -> Any:
        if BYTES in node:
            flat = np.frombuffer(node[BYTES].tobytes(), np.dtype(node["dtype"]))
            return flat.reshape(node["shape"]).copy()
        return node[TRANSPOSED].copy().T if TRANSPOSED in node else node[ARRAY].copy()

    def _class(self, node: dict[str, Any], current: object, path: str, kind: type) -> Any:
        """The class named in a node: the current object's, or one of the environment's packages.

        It is never called: a saved state may be another user's, and a constructor can do anything.
        """
        if _is_named(type(current), node["class"]):
            return type(current)
        module, _, qualified = node["class"].partition(":")
        if module == SCRIPT and SCRIPT not in self.packages:
            module = self.module
        found: Any = sys.modules.get(module)
        if module.partition(".")[0] not in self.packages or found is None:
            raise SnapshotError(f"{path} needs the class {node['class']}, which is not at hand")
        for part in qualified.split("."):
            found = getattr(found, part, None)
        known = isinstance(found, type) and _is_named(found, node["class"])
        if not known or not issubclass(found, kind):
            raise SnapshotError(f"{path} needs the class {node['class']}, which does not exist")
        return found


def _layers(env: gym.Env[Any, Any]) -> Iterator[gym.Env[Any, Any]]:
    """The wrappers, outermost first, and the base environment."""
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env
    yield env


def _is_not_state(value: object) -> bool:
    if isinstance(value, _NOT_STATE) or mujoco.is_model(value):
        return True
    return _module(type(value)).startswith(_DRAWING)


def _is_physics(value: object) -> bool:
    """dm_control's view of a simulation: beside its `MjData` it holds nothing but indices of it."""
    return any(_name(kind) == "dm_control.mujoco.engine:Physics" for kind in type(value).__mro__)


def _is_table(value: object) -> bool:
    """True for a big container of nothing but numbers and text, which `repr` shows in full."""
    return _is_plain(value) and len(repr(value)) > _TABLE_CHARACTERS


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str | np.generic)


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def _base(path: str) -> str:
    """`env.env.env.P` is the base environment's `env.P`: tables do not depend on the wrappers."""
    return "env." + path.rpartition(".")[2]


def _name(kind: type) -> str:
    return f"{_module(kind)}:{kind.__qualname__}"


def _is_named(kind: type, saved: str) -> bool:
    """Whether a class is the saved one, which may be of a script that is now imported."""
    module, _, qualified = saved.partition(":")
    return kind.__qualname__ == qualified and (
        _module(kind) == module or SCRIPT in (module, _module(kind))
    )


def _module(kind: type) -> str:
    """Where a class lives; some compiled ones (Box2D's) do not know."""
    return str(getattr(kind, "__module__", ""))
