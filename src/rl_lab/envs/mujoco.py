"""Everything that knows MuJoCo: its data as arrays and back, and its silent resets made loud.

The documented state (`mjSTATE_INTEGRATION`) is what forward dynamics starts from, but rewards and
observations also read results of the last step, such as `xipos` or `cfrc_ext`. So every array of
an `MjData` that stays in its place is saved as well, and with it the model: some tasks move a
target or change a gain in it at every reset.
"""

import hashlib
import logging
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import gymnasium as gym
import numpy as np

from rl_lab.core.batch import Array
from rl_lab.core.errors import NonFiniteError, UserError

# Shapes and pictures: big, and nothing writes them while a simulation runs.
_ASSETS = ("tex_", "mesh_", "skin_", "bvh_", "oct_")
_POINTERS = ("plugin_data",)  # addresses, worth nothing in another process
_INVALID = {
    "mjWARN_BADQPOS": "position",
    "mjWARN_BADQVEL": "velocity",
    "mjWARN_BADQACC": "acceleration",
    "mjWARN_BADCTRL": "control",
}
log = logging.getLogger(__name__)
_fixed: WeakKeyDictionary[Any, list[str]] = WeakKeyDictionary()


def is_data(value: object) -> bool:
    """True for an `MjData`, without importing MuJoCo."""
    return _is(type(value), "MjData")


def is_model(value: object) -> bool:
    """True for an `MjModel`; it is saved together with its `MjData`."""
    return _is(type(value), "MjModel")


def capture_data(data: Any) -> dict[str, Any]:
    """The whole state of a simulation: arrays as bytes in the order of their names, and numbers."""
    import mujoco

    model, signature = data.model, mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(model, signature))
    mujoco.mj_getState(model, data, state, signature)
    results, constants = _results(data), _constants(model)
    return {
        "layout": _layout(results, constants),
        "state": state,
        "results": _packed(results),
        "constants": _packed(constants),
        "options": _numbers(model.opt),
        "statistics": _numbers(model.stat),
        "flags": _flags(data),
    }


def restore_data(data: Any, tree: dict[str, Any]) -> None:
    """Put a captured state into the simulation of an equal model."""
    import mujoco

    model = data.model
    results, constants = _results(data), _constants(model)
    if tree["layout"] != _layout(results, constants):
        raise UserError("the saved simulation is of another MuJoCo model or version")
    _unpack(tree["constants"], constants)
    _set_numbers(model.opt, tree["options"])
    _set_numbers(model.stat, tree["statistics"])
    mujoco.mj_setState(model, data, tree["state"], mujoco.mjtState.mjSTATE_INTEGRATION)
    # Contacts and constraints have no fixed size; they are a function of the state. dm_control
    # starts its next step from them. What this call writes elsewhere is overwritten below.
    mujoco.mj_step1(model, data)
    _unpack(tree["results"], results)
    for name, flag in tree["flags"].items():
        setattr(data, name, flag)


def route_messages() -> None:
    """MuJoCo's own messages go to the log: by itself it writes a file into the current folder."""
    import mujoco

    mujoco.set_mju_user_warning(log.info)


class NoSilentReset(gym.Wrapper[Any, Any, Any, Any]):
    """Raises where MuJoCo met an invalid state, reset its data and only counted a warning."""

    def __init__(self, env: gym.Env[Any, Any], id: str) -> None:
        super().__init__(env)
        self.id = id
        self.steps = 0

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """A new episode."""
        self.steps = 0
        return self.env.reset(**arguments)

    def step(self, action: object) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step, or a `NonFiniteError` with the action that led there."""
        result = self.env.step(action)
        self.steps += 1
        base: Any = self.env.unwrapped
        if base.data.warning.number.any():
            self._judge(base.data, action)
        return result

    def _judge(self, data: Any, action: object) -> None:
        import mujoco

        for name, what in _INVALID.items():
            if data.warning[getattr(mujoco.mjtWarning, name)].number:
                raise invalid_state(self.id, self.steps, f"a bad {what}", action)


def invalid_state(id: str, steps: int, what: str, action: object) -> NonFiniteError:
    """The error for a simulation that broke down."""
    values = np.asarray(action).tolist()
    return NonFiniteError(
        f"the simulation of {id} broke down {steps} steps into an episode ({what}); "
        f"nothing was stored or learned from it",
        {"environment": id, "step": steps, "reason": what, "action": values},
    )


def _is(kind: type, name: str) -> bool:
    return kind.__name__ == name and str(getattr(kind, "__module__", "")) == "mujoco._structs"


def _results(data: Any) -> dict[str, Array]:
    """The arrays of an `MjData` that always stay in their place.

    The others (contacts, constraints, islands) move within a scratch area. In fresh data they have
    no place yet: they are empty, or show memory that is nobody's.
    """
    names = _fixed.get(data.model)
    if names is None:
        fresh = type(data)(data.model)
        names = _fixed[data.model] = [
            name
            for name, array in _arrays(fresh)
            if array.size and not array.flags.owndata and name not in _POINTERS
        ]
    return {name: getattr(data, name) for name in names}


def _constants(model: object) -> dict[str, Array]:
    return {name: array for name, array in _arrays(model) if not name.startswith(_ASSETS)}


def _arrays(owner: object) -> Iterator[tuple[str, Array]]:
    for name in sorted(dir(owner)):
        if not name.startswith("_"):
            value = getattr(owner, name)
            if isinstance(value, np.ndarray):
                yield name, value


def _layout(*groups: dict[str, Array]) -> str:
    """A digest of all names, types and shapes: bytes fit only where they are equal."""
    lines = [
        f"{name} {array.dtype.str} {array.shape}\n"
        for group in groups
        for name, array in group.items()
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _packed(arrays: dict[str, Array]) -> Array:
    content = b"".join(array.tobytes() for array in arrays.values())
    return np.frombuffer(content, np.uint8).copy()


def _unpack(content: Array, arrays: dict[str, Array]) -> None:
    """Fill the arrays in place: they are views of the simulator's own memory."""
    start = 0
    for array in arrays.values():
        part = content[start : start + array.nbytes]
        array[...] = np.frombuffer(part.tobytes(), array.dtype).reshape(array.shape)
        start += array.nbytes


def _numbers(owner: object) -> dict[str, Any]:
    """The numbers of a small struct, arrays as lists; JSON keeps every bit of a float."""
    values = {name: getattr(owner, name) for name in sorted(dir(owner)) if name[0] != "_"}
    found = {
        name: value.tolist() for name, value in values.items() if isinstance(value, np.ndarray)
    }
    return found | {name: value for name, value in values.items() if type(value) in (int, float)}


def _set_numbers(owner: object, numbers: dict[str, Any]) -> None:
    for name, value in numbers.items():
        if isinstance(value, list):
            getattr(owner, name)[...] = value
        else:
            setattr(owner, name, value)


def _flags(data: object) -> dict[str, bool]:
    """Which lazy results are up to date."""
    return {name: bool(getattr(data, name)) for name in dir(data) if name.startswith("flg_")}
