"""From `environment:` in a configuration to a vector of environments."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.envs.registration import EnvSpec as Registered
from gymnasium.envs.registration import parse_env_id
from gymnasium.spaces import Space

from rl_lab.core import registry
from rl_lab.core.errors import UserError
from rl_lab.core.failure import located
from rl_lab.core.protocols import VectorEnv
from rl_lab.core.schema import EnvironmentConfig
from rl_lab.envs import atari, bandit, dmc, envpool, minigrid, mujoco, worlds
from rl_lab.envs.action_replay import Replayed, ResetOnResume
from rl_lab.envs.classic import TASKS, ClassicVector
from rl_lab.envs.contract import check_signature
from rl_lab.envs.process import ProcessVector, usable_cores
from rl_lab.envs.spaces import describe
from rl_lab.envs.vector import GymnasiumVector, NativeCartPole, SyncVector
from rl_lab.envs.worker import Make
from rl_lab.envs.worlds.world import WorldVector
from rl_lab.envs.wrappers import check_wrappers, wrap

COUNTER_ID = "rl_lab/Counter-v0"
FEW = 4  # environments: fewer are stepped faster one by one than as arrays
# Native vectors that we reset and save ourselves.
OWN_RESET_IDS = ("CartPole-v0", "CartPole-v1", bandit.ID, *worlds.WORLDS)

# It pins an old Gymnasium, and works with this one.
_MEMORY_GYM = ("memory_gym", "--no-deps memory-gym==1.0.2")

# Where ids come from that Gymnasium does not know until a package is imported: how an id begins
# -> the module, and what installs it.
_PACKAGES = {
    "ALE": ("ale_py", "'rl-lab[atari]'"),
    "BabyAI": ("minigrid", "'rl-lab[minigrid]'"),
    "MiniGrid": ("minigrid", "'rl-lab[minigrid]'"),
    "Endless": _MEMORY_GYM,
    "MortarMayhem": _MEMORY_GYM,
    "MortarMayhemB": _MEMORY_GYM,
    "MysteryPath": _MEMORY_GYM,
    "SearingSpotlights": _MEMORY_GYM,
    "Vizdoom": ("vizdoom", "vizdoom"),
    "popgym": ("popgym", "'rl-lab[popgym]'"),
}

# Where an environment's code lives -> the extra of ours that installs what it needs.
_EXTRAS = {
    "gymnasium.envs.box2d": "box2d",
    "gymnasium.envs.mujoco": "mujoco",
    "rl_lab.envs.dmc": "dmc",
    "ale_py": "atari",
    "minigrid": "minigrid",
    "popgym": "popgym",
}
_OWN = "; for one of your own: --plugin FILE.py, or module:Id"
_REPLAYED = "gymnasium.envs.box2d"  # deterministic, and its memory cannot be read

if COUNTER_ID not in gym.registry:
    gym.register(COUNTER_ID, entry_point="rl_lab.envs.counter:CounterEnv")
    gym.register("MultiGoal-v0", "rl_lab.envs.multi_goal:MultiGoalEnv", max_episode_steps=30)
    for id, discrete in (("PointGoal-v0", False), ("PointGoalDiscrete-v0", True)):
        point_goal = "rl_lab.envs.point_goal:PointGoalEnv"
        gym.register(id, point_goal, max_episode_steps=50, kwargs={"discrete": discrete})
    gym.register("PixelTrack-v0", "rl_lab.envs.track:PixelTrackEnv", max_episode_steps=100)
    gym.register(bandit.ID, "rl_lab.envs.bandit:Bandit")
    worlds.register()
    dmc.register()


def make_vector(
    config: EnvironmentConfig, seeds: Sequence[int], *, training: bool = True
) -> VectorEnv:
    """A vector of `len(seeds)` environments, or a `UserError` that says what to change.

    Without `training`, the wrappers that are for training only are left out.
    """
    check_wrappers(config.wrappers)
    choice = resolve_vectorization(config)
    if choice == "sync":
        make = maker(config, training=training)
        return SyncVector([make() for _ in seeds], seeds, config.id)
    if choice == "process":
        return ProcessVector(
            maker(config, training=training),
            seeds,
            config.id,
            workers=config.workers,
            step_timeout=config.step_timeout,
            restarts=config.restarts,
        )
    _require_plain(config, choice)
    if choice == "torch":
        if config.id.rpartition(":")[2] in TASKS and not _is_gymnasiums(config.id):
            raise UserError(f"'{config.id}' is not Gymnasium's: use environment.vectorization=sync")
        find(config.id)
        return ClassicVector(config.id, seeds, config.max_episode_steps)
    if choice == "envpool":
        threads, limit = config.workers or usable_cores(), config.max_episode_steps
        return envpool.make_pool(config.id, seeds, threads=threads, max_episode_steps=limit)
    registered = find(config.id)
    if config.id == bandit.ID:
        return bandit.BanditVector(seeds, config.max_episode_steps, **config.kwargs)
    if _is_world(registered):
        one = _make(config, registered)
        return WorldVector(one, seeds, config.id, config.max_episode_steps)
    if registered.vector_entry_point is None:
        raise UserError(
            f"'{config.id}' has no native vector: use environment.vectorization=sync (or auto)"
        )
    env = _make_native(config, registered, len(seeds), training)
    if isinstance(env, CartPoleVectorEnv):
        return NativeCartPole(env, seeds, config.id)
    return GymnasiumVector(env, seeds, config.id)


def maker(config: EnvironmentConfig, *, training: bool = True) -> Make:
    """What makes one environment with its wrappers, here or in another process."""
    wrappers = {block["id"]: registry.get("wrapper", block["id"]) for block in config.wrappers}
    return partial(_make_wrapped, config, find(config.id), wrappers, training)


def resolve_vectorization(config: EnvironmentConfig, *, compiled: bool = False) -> str:
    """What is asked for; `auto` is `torch` or `native` by a fixed table, or `sync`.

    Arrays pay from a few environments on, or where rollouts are `compiled` with them. A measurement
    may turn that `sync` into `process`, which gives the same transitions for the same seeds.
    Nothing else is chosen by speed: a seed means the same run on every machine that can compile.
    """
    if config.vectorization != "auto":
        return config.vectorization
    plain = not config.wrappers and config.snapshot == "auto"
    if plain and (config.id == bandit.ID or _is_world(find(config.id))):
        return "native"
    plain = plain and not config.kwargs
    plain = plain and (compiled or config.num_envs >= FEW)
    return "torch" if plain and config.id in TASKS and _is_gymnasiums(config.id) else "sync"


def _is_gymnasiums(id: str) -> bool:
    """False if another package has registered a task under the name of a classic one."""
    registered = find(id)
    return defined_in(registered).startswith("gymnasium.envs.classic_control") and not (
        registered.kwargs
    )


def _is_world(registered: Registered) -> bool:
    """Whether an environment is one of `envs/worlds`, which have a vector of their own."""
    return defined_in(registered).startswith(worlds.__name__)


def single_spaces(config: EnvironmentConfig) -> tuple[Space[Any], Space[Any]]:
    """Observation and action space of one environment, as the configured vector shows them."""
    own = config.id in OWN_RESET_IDS  # the same as of a single one
    if config.vectorization in ("native", "envpool") and not own:
        vector = make_vector(replace(config, num_envs=1), [0])
        assert isinstance(vector, GymnasiumVector)
        vector.close()
        return vector.env.single_observation_space, vector.env.single_action_space
    env = maker(config)()
    env.close()
    return env.observation_space, env.action_space


def list_environments(text: str = "") -> list[str]:
    """Registered ids that contain the text, whatever its case and punctuation, or nearly do.

    A search loads every installed family; without a text, those with hundreds of ids stay out.
    """
    _announce_plugins()
    for start in _PACKAGES if text else ():
        _import_package(start)
    ids = sorted(id for id, each in gym.registry.items() if not _is_retired(each))
    wanted = _letters(text)
    found = [id for id in ids if wanted in _letters(id)]
    if found or not wanted:
        return found
    stems = {_letters(_stem(id)): _stem(id) for id in ids}
    close = {stems[each] for each in get_close_matches(wanted, stems, n=3, cutoff=0.75)}
    return [id for id in ids if _stem(id) in close]


def families() -> list[tuple[str, str, bool]]:
    """Ids that only a search lists: how they begin, what installs them, and if that is done."""
    starts: dict[tuple[str, str], list[str]] = {}
    for start, package in _PACKAGES.items():
        starts.setdefault(package, []).append(start)
    return [
        (", ".join(each), package.strip("'"), importlib.util.find_spec(module) is not None)
        for (module, package), each in starts.items()
    ]


def needed_extra(id: str) -> str | None:
    """The extra of ours that an environment needs, such as `mujoco`; None if it needs none."""
    registered = gym.registry.get(id)
    origin = defined_in(registered) if registered else ""
    return next((_EXTRAS[each] for each in _EXTRAS if origin.startswith(each)), None)


def optimum(id: str) -> float | None:
    """Expected return of the best policy in an environment, if it is one of which that is known."""
    registered = gym.registry.get(id)
    if registered is None or not _is_world(registered):
        return None
    return describe(_make(EnvironmentConfig(id=id), registered), id).optimum


def _letters(text: str) -> str:
    return "".join(each for each in text.lower() if each.isalnum())


def _stem(id: str) -> str:
    """`Pong` of ALE/Pong-v5."""
    return id.rpartition("/")[2].rpartition("-v")[0] or id


def find(id: str) -> Registered:
    """Gymnasium's entry for an id, or a `UserError` with the nearest ones."""
    module, _, name = id.rpartition(":")
    if module:
        _import_module(module, id)
        if name not in gym.registry and _is_environment(getattr(sys.modules[module], name, None)):
            return Registered(id, entry_point=id)
    _announce_plugins()
    if name not in gym.registry:
        _import_package(_beginning(name))
    if name in gym.registry and not _is_retired(gym.registry[name]):
        if any(each.name == name for each in registry.plugins("env")):
            registry.get("env", name)  # one that does not load says so here, in one line
        return gym.registry[name]
    if module and name not in gym.registry:
        raise UserError(_not_in_module(module, name))
    raise UserError(f"unknown environment '{id}'{_advice(name)}")


def _not_in_module(module: str, name: str) -> str:
    """An environment that a module neither registers nor defines, and those that it does define."""
    there = [each for each, item in vars(sys.modules[module]).items() if _is_environment(item)]
    line = f"{module}.py was imported and has no environment '{name}'"
    if there:
        return f"{line}: it has {', '.join(there)}"
    return f"{line}: register it there, or define a class of this name that is a gymnasium.Env"


def _is_environment(item: object) -> bool:
    return isinstance(item, type) and issubclass(item, gym.Env)


def _import_module(module: str, id: str) -> None:
    """Import what registers an environment; a module of the current folder is found, too."""
    here = str(Path.cwd())
    if here not in sys.path and _is_below(Path.cwd(), module.partition(".")[0]):
        sys.path.append(here)  # last: it hides nothing that is installed
        registry.local_folders.add(here)  # worker processes look there as well
    try:
        importlib.import_module(module)
    except (UserError, KeyboardInterrupt):
        raise
    except Exception as error:  # the user's own file may fail in any way
        why = located(error)
        if isinstance(error, ModuleNotFoundError) and error.name == module:
            why = f"start in the folder of {module}.py, or write --plugin FILE.py"
        raise UserError(f"cannot import '{module}' of environment '{id}': {why}") from error


def _is_below(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name).is_dir()


def _announce_plugins() -> None:
    """Tell Gymnasium the environments of plug-ins, which it imports when one is made."""
    for id in registry.names("env"):
        if id not in gym.registry:
            gym.register(id, entry_point=registry.target("env", id))


def _beginning(name: str) -> str:
    """What tells the package of an id: `ALE` of ALE/Pong-v5, `MiniGrid` of MiniGrid-Empty-v0."""
    return name.partition("/")[0] if "/" in name else name.partition("-")[0]


def _import_package(beginning: str) -> None:
    """Import what registers ids that begin so, if it is installed."""
    module = _PACKAGES.get(beginning, ("", ""))[0]
    if module and importlib.util.find_spec(module) is not None:
        importlib.import_module(module)


def _is_retired(entry: Registered) -> bool:
    """True for an id that Gymnasium keeps only to say that it is gone."""
    return getattr(entry.entry_point, "__name__", "").startswith("_raise")


def _advice(name: str) -> str:
    """What may have been meant: another version, a package to install, a similar id."""
    try:
        namespace, stem, _ = parse_env_id(name)
    except gym.error.Error:
        namespace, stem = None, name
    versions = sorted(
        entry.id
        for entry in gym.registry.values()
        if (entry.namespace, entry.name.lower()) == (namespace, stem.lower())
        and not _is_retired(entry)
    )
    if versions:
        return f": {', '.join(versions)} {'exists' if len(versions) == 1 else 'exist'}"
    module, package = _PACKAGES.get(_beginning(name), ("", ""))
    if module and importlib.util.find_spec(module) is None:
        return f": install it with `pip install {package}`"
    close = get_close_matches(name, gym.registry, n=3, cutoff=0.6)
    if close:
        return f" (did you mean {' or '.join(repr(each) for each in close)}?){_OWN}"
    return f": `rl-lab envs` lists what is installed{_OWN}"


def _make_wrapped(
    config: EnvironmentConfig, registered: Registered, wrappers: Mapping[str, Any], training: bool
) -> gym.Env[Any, Any]:
    """One environment, in this process or in a worker, which does not know the user's wrappers."""
    registry.declare("wrapper", wrappers)
    choice = config.snapshot
    if choice == "auto" and defined_in(registered).startswith(_REPLAYED):
        choice = "replay"
    if choice == "replay":
        return wrap(
            Replayed(partial(_make, config, registered)), config.wrappers, training=training
        )
    env = _make(config, registered)
    if choice == "reset":
        env = ResetOnResume(env)
    return wrap(env, config.wrappers, training=training)


def _make(config: EnvironmentConfig, registered: Registered) -> gym.Env[Any, Any]:
    arguments = dict(config.kwargs)
    if config.max_episode_steps is not None:
        arguments["max_episode_steps"] = config.max_episode_steps
    try:
        if defined_in(registered).startswith("gymnasium.envs.mujoco"):
            mujoco.route_messages()  # some models are complained about while they are made
        # Gymnasium's own checker costs time at every step; ours is `rl-lab check env`.
        mission_words = arguments.pop("mission_words", None) if _has_words(registered) else None
        env = gym.make(registered, disable_env_checker=True, **arguments)
        if minigrid.has_mission(env):
            env = minigrid.MissionTokens(env, mission_words)
    except (gym.error.Error, ImportError, TypeError) as error:
        raise _explained(config, registered, error) from error
    check_signature(env.unwrapped, config.id)
    if mujoco.is_data(getattr(env.unwrapped, "data", None)):
        mujoco.route_messages()
        env = mujoco.NoSilentReset(env, config.id)
    return env


def _has_words(registered: Registered) -> bool:
    return defined_in(registered).startswith("minigrid.")


def _make_native(
    config: EnvironmentConfig, registered: Registered, count: int, training: bool
) -> gym.vector.VectorEnv[Any, Any, Any]:
    arguments, limit = dict(config.kwargs), config.max_episode_steps
    if str(registered.vector_entry_point).startswith(atari.VECTOR):
        arguments = atari.arguments(arguments, limit, training=training)
    elif limit is not None:
        arguments["max_episode_steps"] = limit
    try:
        with _own_metadata():
            env = gym.make_vec(registered, count, "vector_entry_point", **arguments)
            env.metadata = dict(env.metadata)
            return env
    except (gym.error.Error, ImportError, TypeError) as error:
        raise _explained(config, registered, error) from error


@contextmanager
def _own_metadata() -> Iterator[None]:
    """A vector that writes into the metadata of all vectors (ale_py's) must not speak for them."""
    shared = gym.vector.VectorEnv.metadata
    before = dict(shared)
    try:
        yield
    finally:
        shared.clear()
        shared.update(before)


def _require_plain(config: EnvironmentConfig, choice: str) -> None:
    """Refuse what only single environments can have."""
    given = {"wrappers": config.wrappers, "snapshot": config.snapshot != "auto"}
    if choice in ("envpool", "torch"):
        given["kwargs"] = config.kwargs
    for name in (name for name, value in given.items() if value):
        needs = "needs" if name == "snapshot" else "need"
        raise UserError(
            f"environment.{name} {needs} environment.vectorization=sync or process (or auto)"
        )


def defined_in(registered: Registered) -> str:
    """The module that makes an environment."""
    entry = registered.entry_point
    return entry if isinstance(entry, str) else str(getattr(entry, "__module__", ""))


def _explained(config: EnvironmentConfig, registered: Registered, error: Exception) -> Exception:
    """A `UserError` for what a user can change; any other error as it is."""
    if isinstance(error, gym.error.DependencyNotInstalled | ImportError):
        extra = needed_extra(registered.id)
        if extra is not None:
            advice = f"pip install 'rl-lab[{extra}]'"
            return UserError(f"environment '{config.id}' needs a package: run `{advice}`")
        return UserError(f"environment '{config.id}' needs a package: {error}")
    if isinstance(error, TypeError) and "argument" not in str(error):
        return error
    return UserError(f"environment '{config.id}' cannot be made: {error}")
