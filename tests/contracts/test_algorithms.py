"""What every registered algorithm must keep. New ones are found here by themselves."""

from dataclasses import fields, is_dataclass
from functools import cache
from itertools import starmap
from typing import get_type_hints

import numpy as np
import pytest
import torch

from extras import installed_case
from rl_lab.algorithms.base import VALUES, Workflow
from rl_lab.config import catalog
from rl_lab.core import registry
from rl_lab.core.batch import Action
from rl_lab.core.checker import config_class
from rl_lab.core.errors import ConfigError, UserError
from rl_lab.core.schedule import extremes
from rl_lab.core.spec import Discrete
from rl_lab.core.state import fingerprint, join, split
from rl_lab.records import faults
from rl_lab.run.session import resume
from tiny_runs import run_hash, tiny_run
from tiny_tdmpc import tdmpc_words
from tiny_world_models import ONE, WORLD_MODELS

WORKFLOWS = registry.names("workflow")
ENVIRONMENTS = ("CartPole-v1", "Pendulum-v1")
HOMES = {  # where an algorithm is at home, if it is not at CartPole or, continuous, at Pendulum
    **dict.fromkeys(("q_learning", "sarsa"), "FrozenLake-v1"),
    **dict.fromkeys(("epsilon_greedy", "ucb", "gradient_bandit", "thompson"), "Bandit-v0"),
    "brownian": "Pendulum-v1",
    "scripted": "TwoArcs-v0",
    "world_models": "PixelTrack-v0",
}
# A new algorithm needs an entry only if its defaults do not fit 64 steps of 4 environments; one
# that learns from transitions has the options in REPLAY.
REPLAY = ["learning_starts=32", "batch_size=16", "train_every=16", "replay_ratio=0.1"]
ONLINE = "training.phases=[{name: all, hooks: [collect, update]}]"
DREAMERS = ("dreamer_v1", "dreamer_v2", "dreamer_v3")
SIZES = ["deter=8", "hidden=8", "stoch=3", "units=8", "layers=1", "batch_length=6"]
WORLD = ["learning_starts=32", "batch_size=3", "train_every=16", "replay_ratio=0.03", *SIZES]
PLANNER = [f"planner.{each}" for each in ("horizon=3", "candidates=8", "elites=2", "iterations=2")]
CHUNKS = ["collect_steps=16", "batch_size=16", "prediction_horizon=6", "execution_horizon=4"]
DENOISER = [f"denoiser.{each}" for each in ("hidden_dim=8", "blocks=1", "step_dim=4")]
DENOISER += ["inference_steps=3"]
SMALL = {
    "random": ["collect_steps=16"],
    "ppo": ["rollout_steps=16", "epochs=2"],
    "reinforce": ["rollout_steps=16", "batch_steps=32"],
    "sql": [*REPLAY, "value_particles=4", "kernel_particles=4"],
    **{name: [*WORLD, "horizon=3"] for name in DREAMERS},
    "planet": [*WORLD, *PLANNER],
    "cql": [*REPLAY, "sampled_actions=2"],
    **{
        name: [
            word.removeprefix("algorithm.")
            for word in tdmpc_words(name, learning_starts=32, train_every=16, replay_ratio=0.03)[1:]
        ]
        for name in ("tdmpc", "tdmpc2")
    },
    "r2d2": ["learning_starts=32", "batch_size=3", "batch_length=14", "train_every=16"],
    **{name: ["rollout_steps=16"] for name in HOMES},
    "brownian": ["collect_steps=16"],
    "scripted": ["collect_steps=16"],
    "bc": ["collect_steps=16", "batch_size=16"],
    **{name: [*CHUNKS, *DENOISER] for name in ("diffusion_policy", "flow_policy")},
    "world_models": [f"{name}={value}" for name, value in WORLD_MODELS.items()],
}


def home(name: str) -> str:
    continuous = catalog.algorithm_class(name).actions == "continuous"
    return HOMES.get(name, ENVIRONMENTS[1 if continuous else 0])


def places() -> list[tuple[str, str]]:
    """Every algorithm where it is at home; those that may be at home anywhere in both places."""
    return [
        (name, env)
        for name in WORKFLOWS
        for env in ((HOMES[name],) if name in HOMES else ENVIRONMENTS)
    ]


def words(name: str, env: str, *overrides: str) -> list[str]:
    # No preset: nothing fights the overrides.
    spec = [f"{env}:random", f"algorithm.name={name}"] if name != "random" else [f"{env}:random"]
    learns_from = catalog.algorithm_class(name).learns_from
    options = SMALL.get(name, REPLAY if learns_from == "transitions" else [])
    room = [] if learns_from == "rollouts" else ["buffers.replay.capacity=256"]
    phases = [ONE] if name == "world_models" else []  # its own are long
    if any(each.get("type") == "offline" for each in catalog.algorithm_class(name).phases):
        phases = phases or [ONLINE]  # there is no dataset
    if learns_from == "chunks":  # of datasets; here of what is collected
        room.append("buffers.replay.type=uniform")
        phases = ["training.phases=[{name: all, hooks: [collect, update]}]"]
    return [*spec, *(f"algorithm.{each}" for each in options), *room, *phases, *overrides]


@pytest.fixture
def built(tiny):
    """`built(name, env, …)`: an orchestrator; a test is skipped where the algorithm declines."""

    def make(name, env, *overrides):
        try:
            return tiny(*words(name, env, *overrides))
        except UserError as declined:
            if env == home(name):
                raise
            return pytest.skip(f"{name} declines {env}: {declined}")

    return make


def play(orchestrator, hooks: int) -> None:
    for _ in range(hooks):
        orchestrator.execute(orchestrator.scheduler.next_action())


def decide(orchestrator, *, deterministic: bool) -> tuple:
    """The next decision on fixed frames, from an empty memory."""
    workflow, space = orchestrator.workflow, orchestrator.environment.spec.observation
    drawn = np.random.default_rng(0).normal(size=(64, *space.shape))
    if isinstance(space, Discrete):
        drawn = np.random.default_rng(0).integers(space.n, size=64)
    frames = drawn.astype(space.dtype)
    state = workflow.initial_state(64)
    decision = workflow.act(torch.from_numpy(frames), state, deterministic=deterministic)
    return np.asarray(decision.action).tobytes(), fingerprint(decision.state)


every_workflow = pytest.mark.parametrize("name", [*map(installed_case, WORKFLOWS)])
everywhere = pytest.mark.parametrize(("name", "env"), [*starmap(installed_case, places())])


@everywhere
def test_nothing_is_lost_when_it_is_built_nor_when_it_has_learnt(built, name, env):
    orchestrator = built(name, env)
    assert orchestrator.workflow.unsaved() == []
    play(orchestrator, 4)
    assert orchestrator.workflow.unsaved() == []


@everywhere
def test_its_state_makes_another_one_the_same(built, name, env):
    first, second = built(name, env), built(name, env, "experiment.seed=7")
    play(first, 4)
    saved = join(*split(first.workflow.get_state()))  # as it would come back from a disk
    second.workflow.set_state(saved)
    second.streams.load_state_dict(first.streams.state_dict())
    assert fingerprint(second.workflow.get_state()) == fingerprint(first.workflow.get_state())
    for deterministic in (True, False):
        ours, theirs = (decide(each, deterministic=deterministic) for each in (first, second))
        assert ours == theirs
    state = {**saved, "something_else": {}}
    with pytest.raises(UserError, match="of another"):
        second.workflow.set_state(state)


@everywhere
def test_a_deterministic_action_is_a_function_of_what_is_seen(built, name, env):
    orchestrator = built(name, env)
    if not orchestrator.workflow.hooks:
        pytest.skip("it learns nothing, so no action is its best")
    before = fingerprint(orchestrator.streams.state_dict())
    first, second = (decide(orchestrator, deterministic=True) for _ in range(2))
    assert first == second
    assert fingerprint(orchestrator.streams.state_dict()) == before
    assert decide(orchestrator, deterministic=False) != first  # nor does it only pretend to sample


FROM_REPLAY = [
    name for name in WORKFLOWS if catalog.algorithm_class(name).learns_from == "transitions"
]


@pytest.mark.parametrize("name", FROM_REPLAY)
def test_random_actions_until_learning_starts(built, monkeypatch, name):
    algorithm, decided = built(name, home(name)).workflow, []
    act = algorithm.act
    monkeypatch.setattr(
        algorithm, "act", lambda *inputs, **options: decided.append(1) or act(*inputs, **options)
    )
    phase = {"name": "train", "type": "online", "step": 0, "buffer": None}
    algorithm.collect_step(algorithm.config.learning_starts - 1, phase=phase)
    assert not decided
    algorithm.collect_step(algorithm.config.learning_starts, phase=phase)
    assert len(decided) == algorithm.collect_steps


# One cycle is collect, evaluate, every update. The first evaluation is the best so far, so there
# is a checkpoint in mid-cycle; the others lie between two evaluations and between two rows.
RESUMED = [
    "checkpoint.every_steps=192",
    "logging.every_steps=128",
    "training.total_timesteps=768",
]


@cache
def hooks_of(name: str) -> list[str]:
    found = catalog.algorithm_class(name)
    bare = object.__new__(getattr(found, "algorithm", found))  # of a `Version` its class
    return ["collect", "evaluate", *bare.hooks]


def resumed_words(name: str) -> list[str]:
    phases = f"training.phases=[{{name: all, hooks: [{', '.join(hooks_of(name))}]}}]"
    return words(name, home(name), phases, *RESUMED)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """`straight(name)`: what the run is without any interruption."""

    @cache
    def run(name):
        return run_hash(tiny_run(tmp_path_factory.mktemp("straight"), *resumed_words(name)).run)

    return run


@every_workflow
@pytest.mark.parametrize("moment", ["in the first cycle", "half-way"])
def test_interrupted_equals_uninterrupted(tmp_path, monkeypatch, straight, name, moment):
    expected, cycle = straight(name), len(hooks_of(name))
    number = cycle if moment == "in the first cycle" else 6 * cycle + 1
    faults.reset()
    monkeypatch.setenv("RL_LAB_FAULT", f"hook.after:error@{number}")
    with pytest.raises(OSError, match="injected at hook"):
        tiny_run(tmp_path, *resumed_words(name))
    monkeypatch.delenv("RL_LAB_FAULT")
    torch.manual_seed(123)  # a new process would not share our random stream
    outcome = resume("@last", root=tmp_path)
    assert outcome.summary["resumes"] == 1
    assert run_hash(outcome.run) == expected


def floats() -> list[tuple[str, str, float]]:
    """Every number of every algorithm's own config, with a value that it may start from."""
    found = []
    for name in WORKFLOWS:
        config = config_class(catalog.algorithm_class(name))
        hints = get_type_hints(config) if config else {}
        found += [
            (name, each.name, extremes(each.default)[1] if each.default else 0.1)
            for each in (fields(config) if config else ())
            if hints[each.name] in (float, float | None) and not each.metadata.get("fixed")
        ]
    return found


@pytest.mark.parametrize(("name", "key", "start"), starmap(installed_case, floats()))
def test_every_number_may_follow_a_schedule(tmp_path, name, key, start):
    schedule = f"algorithm.{key}={{start: {start}, end: {start / 2}}}"
    short = ["training.total_timesteps=128", "evaluation.every_steps=0"]
    short += ["evaluation.test_episodes=0", schedule]
    if (name, key) == ("dreamer_v1", "entropy"):
        short.append("algorithm.squashed=false")  # with it, the entropy is not known
    if key == "reconstruction_coefficient":
        short.append("network.memory.type=gru")  # whose features are decoded
    outcome = tiny_run(tmp_path, *words(name, home(name), *short))
    assert outcome.summary["status"] == "finished"
    assert outcome.summary["env_steps"] == 128


def fixed_floats() -> list[tuple[str, str]]:
    """Numbers that are read once: those marked so, and all in blocks such as the optimiser's."""
    found = []
    for name in WORKFLOWS:
        config = config_class(catalog.algorithm_class(name))
        hints = get_type_hints(config) if config else {}
        own = fields(config) if config else ()
        found += [(name, each.name) for each in own if each.metadata.get("fixed")]
        for block, inner in hints.items():
            if is_dataclass(inner):
                kinds = get_type_hints(inner)
                found += [(name, f"{block}.{key}") for key in kinds if kinds[key] is float]
    return found


@pytest.mark.parametrize(("name", "key"), starmap(installed_case, fixed_floats()))
def test_a_number_that_cannot_follow_a_schedule_says_so_before_the_run(tmp_path, name, key):
    schedule = f"algorithm.{key}={{start: 0.5, end: 0.25}}"
    short = ["training.total_timesteps=128", "evaluation.test_episodes=0", schedule]
    try:
        tiny_run(tmp_path, *words(name, home(name), *short))
    except ConfigError as error:
        kind = "list" if key == "value_range" else "number"
        assert str(error).startswith(f"algorithm.{key}: must be a {kind}, got")
        assert list(tmp_path.iterdir()) == []


# -- what an author gets without asking, and what is refused -------------------------------------


class Hidden:
    """Drifts, and has no way to say so."""

    def __init__(self) -> None:
        self.mean = 0.0


class Saved(Hidden):
    """The same with PyTorch's pair of methods."""

    def state_dict(self):
        return {"mean": self.mean}

    def load_state_dict(self, state):
        self.mean = state["mean"]


class Idle(Workflow):
    """The smallest algorithm: `act` and `update`."""

    made_of = Saved

    def initialize(self, context):
        super().initialize(context)
        self.average = self.made_of()
        self.count = 0
        self.totals = np.zeros(3)
        self.weights = torch.zeros(2)
        self.notes = {"seen": [1, 2.5, None, "text"]}

    def act(self, obs, state, *, deterministic):
        return Action(np.zeros(len(obs), dtype=np.int64))

    def update(self, batch, *, phase):
        self.average.mean += 1.0
        self.count += 1
        self.totals += 1.5
        self.weights += 2
        self.notes["seen"].append(self.count)
        return {"count": self.count}


class Forgetful(Idle):
    made_of = Hidden


@pytest.fixture
def local(monkeypatch):
    """Registered for one test only."""
    for name, found in (("idle", Idle), ("forgetful", Forgetful)):
        monkeypatch.setitem(registry._entries["workflow"], name, found)


def test_state_that_would_be_lost_is_refused_before_the_run(local, tiny, tmp_path):
    with pytest.raises(UserError, match=r"Forgetful\.average would be lost on resume"):
        tiny("CartPole-v1:forgetful")
    assert list(tmp_path.iterdir()) == []


def test_plain_attributes_are_saved_without_being_asked_for(local, tiny):
    first, second = tiny("CartPole-v1:idle"), tiny("CartPole-v1:idle")
    play(first, 6)
    state = join(*split(first.workflow.get_state()))
    assert set(state) == {"average", VALUES}
    second.workflow.set_state(state)
    assert second.workflow.average.mean == 3.0
    assert second.workflow.count == 3
    assert second.workflow.totals.tolist() == [4.5] * 3
    assert second.workflow.weights.tolist() == [6.0] * 2
    assert second.workflow.notes == {"seen": [1, 2.5, None, "text", 1, 2, 3]}


def test_a_counter_that_is_back_at_0_and_a_note_that_is_gone_are_saved_too(local, tiny):
    first, second = tiny("CartPole-v1:idle"), tiny("CartPole-v1:idle")
    for workflow, count, note in ((first.workflow, 0, None), (second.workflow, 3, "old")):
        workflow.count, workflow.note = count, note
    second.workflow.set_state(join(*split(first.workflow.get_state())))
    assert (second.workflow.count, second.workflow.note) == (0, None)


class Noise:
    """Can be called like a function, and drifts."""

    def __call__(self):
        return 0.0


@pytest.mark.parametrize(
    "thing", [Noise(), np.random.default_rng(1), torch.Generator()], ids=lambda thing: type(thing)
)
def test_what_drifts_in_secret_is_refused_when_it_is_saved(local, tiny, thing):
    """Also when it comes in after the run was built."""
    workflow = tiny("CartPole-v1:idle").workflow
    workflow.secret = thing
    with pytest.raises(UserError, match=r"Idle\.secret would be lost on resume"):
        workflow.get_state()


def test_streams_of_the_run_and_tables_with_integer_keys_are_fine(local, tiny):
    first, second = tiny("CartPole-v1:idle"), tiny("CartPole-v1:idle")
    first.workflow.rng = first.streams.numpy("idle")
    first.workflow.visits = {3: 1.5, 7: 2.0}
    second.workflow.set_state(join(*split(first.workflow.get_state())))
    assert second.workflow.visits == {3: 1.5, 7: 2.0}


def test_a_parameter_stays_the_one_its_optimiser_holds(local, tiny):
    first, second = tiny("CartPole-v1:idle"), tiny("CartPole-v1:idle")
    for orchestrator, value in ((first, 5.0), (second, 0.0)):
        orchestrator.workflow.alpha = torch.nn.Parameter(torch.tensor(value))
    held = second.workflow.alpha
    second.workflow.set_state(join(*split(first.workflow.get_state())))
    assert second.workflow.alpha is held
    assert held.requires_grad and held.item() == 5.0
