"""Environments that are given as Python objects: an instance, a class or a factory gets an id."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec as Registered

from rl_lab.core import registry
from rl_lab.core.errors import UserError
from rl_lab.core.failure import located

ACCEPTED = (
    "a text such as 'CartPole-v1' or 'CartPole-v1:ppo', a Gymnasium environment, "
    "an environment class, or a factory without arguments"
)


@dataclass(frozen=True)
class GivenEnvironment:
    """An environment as a configuration names it.

    Attributes:
        name: Class of the environment, or its Gymnasium id.
        make: Makes one more environment of the same kind.
        id: `environment.id`. It begins with `registry.LOCAL` if only this process can make it.
        kwargs: `environment.kwargs`.
        max_episode_steps: `environment.max_episode_steps`.
    """

    name: str
    make: Callable[..., Any]
    id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None


def describe_object(env: object) -> GivenEnvironment:
    """The id under which a configuration can name an environment object.

    Copies are made of what is given: an instance by its Gymnasium spec, a class or a factory by a
    call. The instance itself is never stepped.

    Args:
        env: An instance, a class or a factory.

    Raises:
        UserError: No copy can be made, or it is none of these.
    """
    if isinstance(env, gym.vector.VectorEnv):
        raise UserError(
            "env: got a vector of environments: pass one environment, its class or a factory, and "
            "set environment.num_envs"
        )
    if isinstance(env, gym.Env):
        return _of_instance(env)
    if isinstance(env, type):
        if not issubclass(env, gym.Env):
            raise UserError(f"env: {env.__qualname__} is not a gymnasium.Env; give {ACCEPTED}")
        return _local(env.__name__, env, registry.import_path(env))
    if callable(env):
        return _of_factory(env)
    raise UserError(f"env: must be {ACCEPTED}, got {type(env).__name__}")


def provide(id: str, make: Callable[..., Any]) -> None:
    """Let `gym.make` find an environment of this process, in place of an earlier one."""
    registry.provide("env", id, make)
    gym.registry[id] = Registered(id, entry_point=make)


def _local(name: str, make: Callable[..., Any], path: str | None = None) -> GivenEnvironment:
    return GivenEnvironment(name, make, path or f"{registry.LOCAL}{name}")


def _of_instance(env: gym.Env[Any, Any]) -> GivenEnvironment:
    kind, spec = type(env.unwrapped).__name__, env.spec
    advice = f"pass a factory, such as lambda: {type(env).__name__}(…)"
    if spec is None:
        raise UserError(
            f"env: this {kind} was not made by gymnasium.make, so training and evaluation cannot "
            f"make copies of it: pass the class {kind}, or {advice.removeprefix('pass ')}"
        )
    for wrapper in spec.additional_wrappers:
        if wrapper.kwargs is None:
            raise UserError(
                f"env: its wrapper {wrapper.name} is not a gymnasium.utils.RecordConstructorArgs, "
                f"so no copies can be made: {advice}"
            )
    return _registered(spec) or _local(spec.id, partial(gym.make, spec))


def _registered(spec: Registered) -> GivenEnvironment | None:
    """The id, arguments and time limit that give this spec again; None if they cannot."""
    known = gym.registry.get(spec.id)
    if known is None or known.entry_point != spec.entry_point or spec.additional_wrappers:
        return None
    given = {key: each for key, each in spec.kwargs.items() if key != "render_mode"}
    if not _is_plain(given):
        return None
    kwargs = {key: each for key, each in given.items() if known.kwargs.get(key, ...) != each}
    limit = spec.max_episode_steps
    if limit == known.max_episode_steps:
        limit = None
    elif limit is None:  # a registered time limit that was taken away
        return None
    return GivenEnvironment(spec.id, partial(gym.make, spec), spec.id, kwargs, limit)


def _of_factory(factory: Callable[[], Any]) -> GivenEnvironment:
    try:
        made = factory()
    except Exception as error:  # the user's own code may fail in any way
        raise UserError(f"env: the factory failed: {located(error)}") from error
    if not isinstance(made, gym.Env):
        raise UserError(f"env: the factory must return a gymnasium.Env, got {type(made).__name__}")
    name = made.spec.id if made.spec is not None else type(made.unwrapped).__name__
    made.close()
    return _local(name, factory)


def _is_plain(value: object) -> bool:
    """Whether config.yaml can hold it."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or type(value) in (str, bool, int, float)
