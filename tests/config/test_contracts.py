"""What chosen blocks promise, whether or not their dataclass derives from the contract."""

from dataclasses import dataclass, fields
from importlib import import_module

import pytest

import rl_lab
from rl_lab import plugin
from rl_lab.config.catalog import BUILT_INS
from rl_lab.config.validate import validate
from rl_lab.core import registry
from rl_lab.core.errors import ConfigError
from rl_lab.core.options import option
from rl_lab.core.schema import AlgorithmConfig, BufferConfig
from rl_lab.run.orchestrator import Orchestrator
from rl_lab.run.policy import LoadedPolicy

ASKED = {
    "check": [],
    "warnings": [],
    "choices": {},
    "gradient_steps": 0.0,
    "rows_per_step": 0,
}


@dataclass(frozen=True)
class Bare:
    """A config that derives from nothing, with a rule of its own."""

    gamma: float = option(0.9, "discount factor", low=0, high=1)
    seen: int = 1

    def __post_init__(self) -> None:
        if self.seen == 3:
            raise ValueError("seen must not be 3")

    def warnings(self, run) -> list[str]:
        return [f"{self.seen} seen in {run.environment.id}"]


@dataclass(frozen=True)
class BareBuffer:
    """A buffer's config that derives from nothing."""

    rows: int = option(4, "rows", low=1)


class WithConfig:
    """Another's algorithm."""

    Config = Bare


class WithoutConfig:
    """Another's algorithm that declares no options."""


class Store:
    """Another's buffer."""

    Config = BareBuffer


@pytest.fixture
def named(monkeypatch):
    def name(kind, item):
        monkeypatch.setitem(registry._entries[kind], "mine", item)

    return name


def run_of(algorithm, **more):
    return validate({"environment": {"id": "CartPole-v1"}, "algorithm": algorithm, **more}, {})


@pytest.mark.parametrize("item", [WithConfig, WithoutConfig])
def test_a_config_that_derives_from_nothing_keeps_the_contract(named, item) -> None:
    named("workflow", item)
    run = run_of({"name": "mine", "seen": 2})
    algorithm = run.algorithm
    assert isinstance(algorithm, AlgorithmConfig)
    assert algorithm.name == "mine"
    answers = {name: getattr(algorithm, name)(run) for name in ASKED}
    own = {"warnings": ["2 seen in CartPole-v1"]} if item is WithConfig else {}
    assert answers == {**ASKED, **own}
    assert algorithm.small(run, call=1, before=0) == []
    assert list(algorithm.with_fewer_minibatches()) == []
    assert algorithm.latent_size == 0
    expected = {"gamma", "seen", "name"} if item is WithConfig else {"seen", "name"}
    assert {each.name for each in fields(algorithm)} == expected


def test_its_ranges_and_its_own_rules_both_count(named) -> None:
    named("workflow", WithConfig)
    with pytest.raises(ConfigError) as caught:
        run_of({"name": "mine", "gamma": 2, "seen": 3})
    assert [each.partition(" — ")[0] for each in caught.value.problems] == [
        "algorithm.seen: must not be 3",
        "algorithm.gamma: must be in [0, 1], got 2",
    ]


def test_a_buffer_that_derives_from_nothing_keeps_the_contract(named) -> None:
    named("buffer", Store)
    buffer = run_of("random", buffers={"mine": {"type": "mine"}}).buffers["mine"]
    assert isinstance(buffer, BufferConfig)
    assert (buffer.type, buffer.capacity, buffer.burn_in, buffer.only) == ("mine", None, 0, ())


@pytest.mark.parametrize("kind", ["workflow", "buffer"])
def test_every_built_in_derives_from_its_contract(kind) -> None:
    base = {"workflow": AlgorithmConfig, "buffer": BufferConfig}[kind]
    for name in BUILT_INS[kind]:
        assert issubclass(registry.get(kind, name).Config, base), name


@pytest.mark.parametrize("kind", BUILT_INS)
def test_every_name_of_the_catalog_leads_to_what_it_names(kind) -> None:
    for name, target in BUILT_INS[kind].items():
        module, _, attribute = target.partition(":")
        found = registry.get(kind, name)
        assert found is getattr(import_module(module), attribute), name
        assert callable(found), name


def test_older_names_are_other_names_of_the_same_classes() -> None:
    assert plugin.Workflow is plugin.Algorithm is rl_lab.Workflow
    assert plugin.WorkflowContext is plugin.AlgorithmContext
    for kind in (Orchestrator, LoadedPolicy):
        holder = object.__new__(kind)
        vars(holder)["algorithm"] = "the algorithm"
        assert holder.workflow == "the algorithm"
