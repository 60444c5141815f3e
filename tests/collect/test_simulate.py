"""Rollouts of a policy and a simulator in one program are what stepping them would have given.

All but the last test put a plain call in the place of the compiler: what is compiled is this very
function, tests/core/test_compiled.py shows that compiling changes no number, and it takes half a
minute.
"""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Normal

from rl_lab.collect import simulate
from rl_lab.collect.collector import RolloutCollector
from rl_lab.collect.episodes import WINDOW, EpisodeTracker
from rl_lab.collect.simulate import Simulation
from rl_lab.core import compiled
from rl_lab.core.batch import (
    ACTION,
    LOG_PROB,
    NEXT_OBS,
    OBS,
    RESET,
    STATE,
    TERMINATED,
    TRUNCATED,
    Action,
    Batch,
)
from rl_lab.core.errors import NonFiniteError
from rl_lab.core.protocols import Policy, Simulator
from rl_lab.core.state import fingerprint, join, split
from rl_lab.envs.classic import BLOCK, ClassicVector
from rl_lab.records import faults
from rl_lab.run.session import resume
from tiny_runs import run_hash, tiny_run

COUNT, LIMIT = 4, 9  # environments, and the length of their episodes
both_tasks = pytest.mark.parametrize("id", ["CartPole-v1", "Pendulum-v1"])


class Called:
    """`Compiled` without a compiler. Machine code has no gradients either."""

    made: list["Called"]

    def __init__(self, function: Callable[..., Any], name: str, shorten: Any) -> None:
        self.function = function
        self.lengths: list[int] = []
        self.made.append(self)

    def given(self, *last: Any) -> Callable[..., Any]:
        return lambda *first: self(*first, *last)

    def __call__(self, *arguments: Any) -> Any:
        self.lengths.append(len(arguments[-2]))
        with torch.no_grad():
            return self.function(*arguments)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[Called]:
    Called.made = []
    monkeypatch.setattr(simulate, "Compiled", Called)
    return Called.made


class World:
    """PPO with lively weights, and a collector on a vector of its own."""

    def __init__(self, tiny: Any, id: str, seed: int = 3) -> None:
        self.ppo = tiny(f"{id}:ppo_defaults", f"environment.num_envs={COUNT}").workflow
        generator = torch.Generator().manual_seed(0)
        self.ppo.learner.state.flat.normal_(generator=generator).mul_(0.7)
        self.vector = ClassicVector(id, range(seed, seed + COUNT), max_steps=LIMIT)
        self.collector = RolloutCollector(self.vector, simulation=Simulation(self.vector))

    @property
    def policy(self) -> Policy:
        policy = self.ppo.pure_policy()
        assert policy is not None
        return policy

    def collect(self, steps: int, policy: Policy | None = None) -> Any:
        def unused(obs: Any, state: Any, *, deterministic: bool) -> Action:
            raise AssertionError("a pure policy was given")

        state = self.ppo.initial_state(COUNT)
        return self.collector.collect(
            unused, steps=steps, state=state, policy=lambda: policy or self.policy
        )

    def state(self) -> dict[str, Any]:
        return {
            "vector": self.vector.state_dict(),
            "collector": self.collector.state_dict(),
            "noise": self.ppo.policy.rng.get_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.vector.load_state_dict(state["vector"])
        self.collector.load_state_dict(state["collector"])
        self.ppo.policy.rng.set_state(state["noise"])


def ended(rows: Batch) -> torch.Tensor:
    return rows[TERMINATED] | rows[TRUNCATED]


# ------------------------------------------------------------------------- episodes


@pytest.mark.parametrize("chance", [0.0, 0.05, 0.6, 1.0])
def test_a_rollout_of_episodes_counts_like_its_steps(chance: float) -> None:
    random = np.random.default_rng(0)
    stepped, at_once = EpisodeTracker(3), EpisodeTracker(3)
    for steps in (1, 7, 64, 1, 16):
        reward = random.normal(size=(steps, 3)).astype(np.float32)
        ends = random.random((steps, 3)) < chance
        count = sum(stepped.add(*row) for row in zip(reward, ends, strict=True))
        assert at_once.add_rollout(reward, ends) == count == ends.sum()
        one, two = stepped.state_dict(), at_once.state_dict()
        assert np.array_equal(one["lengths"], two["lengths"])
        assert np.array_equal(one["open_lengths"], two["open_lengths"])
        for key in ("returns", "open_returns"):  # sums in another order
            np.testing.assert_allclose(one[key], two[key], rtol=0, atol=1e-9)
        assert at_once.best == pytest.approx(stepped.best, abs=1e-9)
    assert len(at_once.returns) == (WINDOW if chance == 1.0 else len(stepped.returns))


# ------------------------------------------------------------------------- rollouts


@both_tasks
def test_rows_chain_within_and_across_rollouts(tiny: Any, programs: Any, id: str) -> None:
    world = World(tiny, id)
    first = world.collector.obs.copy()
    before = torch.ones(COUNT, dtype=torch.bool)
    frames = torch.from_numpy(first)
    resets = 0
    for steps in (24, 7, 16):
        rows = world.collect(steps).trajectory
        assert rows[OBS].shape[:2] == (steps, COUNT)
        reset = torch.cat([before[None], ended(rows)[:-1]])
        assert torch.equal(rows[RESET], reset)
        assert torch.equal(rows[OBS][0], frames)
        goes_on = ~ended(rows)[:-1]
        assert torch.equal(rows[NEXT_OBS][:-1][goes_on], rows[OBS][1:][goes_on])
        assert not torch.isclose(rows[NEXT_OBS][:-1], rows[OBS][1:]).all(-1)[~goes_on].any()
        before, frames = ended(rows)[-1], torch.from_numpy(world.collector.obs.copy())
        assert np.array_equal(world.collector.is_first, before)
        assert torch.equal(frames[~before], rows[NEXT_OBS][-1][~before])
        resets += int(ended(rows).sum())
    assert resets >= COUNT * (47 // LIMIT)


@both_tasks
def test_it_is_what_stepping_with_these_actions_gives(tiny: Any, programs: Any, id: str) -> None:
    world, twin = World(tiny, id), ClassicVector(id, range(3, 3 + COUNT), max_steps=LIMIT)
    plain = RolloutCollector(twin)
    for steps in (24, 8, BLOCK):
        ours = world.collect(steps)
        given = iter(zip(ours.trajectory[ACTION], ours.trajectory[LOG_PROB], strict=True))

        def again(obs: Any, state: Any, *, deterministic: bool, given: Any = given) -> Action:
            action, log_prob = next(given)
            return Action(action, state, {LOG_PROB: log_prob})

        theirs = plain.collect(again, steps=steps, state=world.ppo.initial_state(COUNT))
        assert (ours.steps, ours.episodes) == (theirs.steps, theirs.episodes)
        assert ours.metrics == pytest.approx(theirs.metrics, abs=1e-4)
        assert set(ours.trajectory) == set(theirs.trajectory)
        assert ours.trajectory.pop(STATE) == theirs.trajectory.pop(STATE)
        for name, values in theirs.trajectory.items():
            # A last bit of a sine in torch is another one in numpy.
            torch.testing.assert_close(ours.trajectory[name], values, rtol=0, atol=1e-5)
    np.testing.assert_allclose(world.vector.state, twin.state, rtol=0, atol=1e-9)
    assert np.array_equal(world.vector.elapsed, twin.elapsed)
    assert np.array_equal(world.vector.uniforms(1), twin.uniforms(1))


@both_tasks
def test_actions_and_log_probs_are_the_policys(tiny: Any, programs: Any, id: str) -> None:
    world = World(tiny, id)
    for scale in (1.0, 0.3):  # weights that have moved are used by the same program
        with torch.no_grad():
            world.ppo.learner.state.flat.mul_(scale)
        noise_before = world.ppo.policy.rng.get_state()
        rows = world.collect(24).trajectory
        with torch.no_grad():
            policy, _ = world.ppo.model.policy_step(rows[OBS], world.ppo.initial_state(1))
        noise = torch.Generator()
        noise.set_state(noise_before)
        if id == "CartPole-v1":
            exact: Any = Categorical(logits=policy.log_probs)
            drawn = torch.empty(24, COUNT, 2).exponential_(generator=noise)
            assert torch.equal(rows[ACTION], (policy.log_probs.exp() / drawn).argmax(-1))
            log_prob = exact.log_prob(rows[ACTION])
            assert 0 < rows[ACTION].sum() < rows[ACTION].numel()
        else:
            exact = Normal(policy.mean, policy.log_std.exp())
            drawn = torch.empty(24, COUNT, 1).normal_(generator=noise)
            torch.testing.assert_close(rows[ACTION], exact.mean + exact.stddev * drawn)
            log_prob = exact.log_prob(rows[ACTION]).sum(-1)
            assert rows[ACTION].std() > 0.1
        torch.testing.assert_close(rows[LOG_PROB], log_prob, rtol=0, atol=1e-5)
    assert len(programs) == 1


def test_a_policy_reads_the_weights_it_was_given(tiny: Any, programs: Any) -> None:
    world = World(tiny, "CartPole-v1")
    weights = {name: torch.zeros_like(each) for name, each in world.policy.weights.items()}
    rows = world.collect(8, world.policy._replace(weights=weights)).trajectory
    torch.testing.assert_close(rows[LOG_PROB], torch.full((8, COUNT), 0.5).log())


@both_tasks
def test_a_rollout_can_be_traced_whole(tiny: Any, id: str) -> None:
    # Whatever it read from elsewhere would be refused here; branches on a value are errors.
    world = World(tiny, id)
    play = partial(simulate._play, world.policy.decide, world.vector.advance)
    arrays = world.vector.state, world.vector.elapsed, world.collector.obs
    here = [torch.from_numpy(each) for each in arrays]
    uniforms = torch.from_numpy(world.vector.uniforms(3))
    arguments = *here, world.policy.noise(3), uniforms, world.policy.weights
    inputs: list[torch.Tensor] = []
    shape = compiled._flatten(arguments, inputs)
    graph, _ = compiled._trace(play, inputs, shape, "rollouts")
    expected: list[torch.Tensor] = []
    compiled._flatten(play(*arguments), expected)
    for one, two in zip(graph(*inputs), expected, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("steps", "length"), [(24, 12), (16, 16), (128, 16), (17, 1), (7, 7)])
def test_how_a_rollout_is_cut_changes_nothing(
    tiny: Any, programs: Any, monkeypatch: pytest.MonkeyPatch, steps: int, length: int
) -> None:
    rows = World(tiny, "Pendulum-v1").collect(steps).trajectory
    assert programs[0].lengths == [length] * (steps // length)
    monkeypatch.setattr(simulate, "MOST_STEPS", 1)
    other = World(tiny, "Pendulum-v1").collect(steps).trajectory
    assert programs[1].lengths == [1] * steps
    assert fingerprint(rows) == fingerprint(other)


@both_tasks
def test_saved_and_restored_it_goes_on_bit_for_bit(tiny: Any, programs: Any, id: str) -> None:
    straight = World(tiny, id)
    straight.collect(3 * LIMIT)  # where the episodes of Pendulum end
    tensors, skeleton = split(straight.state())
    saved = join(tensors, json.loads(json.dumps(skeleton)))
    expected = [straight.collect(steps) for steps in (8, 24)]
    resumed = World(tiny, id, seed=50)
    resumed.collect(16)
    resumed.load(saved)
    for result in expected:
        ours = resumed.collect(len(result.trajectory[OBS]))
        assert fingerprint(ours.trajectory) == fingerprint(result.trajectory)
        assert ours.metrics == result.metrics and ours.episodes == result.episodes
    assert fingerprint(resumed.state()) == fingerprint(straight.state())


def test_what_a_rollout_gave_is_not_read_or_written_again(tiny: Any, programs: Any) -> None:
    careful, careless = World(tiny, "Pendulum-v1"), World(tiny, "Pendulum-v1")
    kept = []
    for _ in range(4):
        rows = careful.collect(5).trajectory
        kept.append((rows, fingerprint(rows)))
        rows = careless.collect(5).trajectory
        assert fingerprint(rows) == kept[-1][1]
        for name in set(rows) - {STATE}:
            rows[name].zero_()
    assert all(fingerprint(rows) == before for rows, before in kept)


# ---------------------------------------------------------------------- limits of it


def test_a_bad_number_stops_before_it_is_counted(tiny: Any, programs: Any) -> None:
    world = World(tiny, "Pendulum-v1")
    world.collect(8)
    before = fingerprint(world.collector.episodes.state_dict())
    weights = {name: each * torch.nan for name, each in world.policy.weights.items()}
    with pytest.raises(NonFiniteError, match="environment 0 gave"):
        world.collect(8, world.policy._replace(weights=weights))
    assert fingerprint(world.collector.episodes.state_dict()) == before


def test_without_a_pure_policy_it_is_stepped(tiny: Any, programs: Any) -> None:
    world = World(tiny, "CartPole-v1")
    assert isinstance(world.vector, Simulator)
    assert tiny("CartPole-v1:ppo_gru_defaults").workflow.pure_policy() is None
    asked = []

    def idle(obs: Any, state: Any, *, deterministic: bool) -> Action:
        asked.append(obs)
        return Action(np.zeros(COUNT, np.int64), state)

    world.collector.collect(idle, steps=5)
    assert len(asked) == 5 and not programs


# ----------------------------------------------------------------------- for real


@pytest.mark.slow
@pytest.mark.skipif(compiled.compiler() is None, reason="compiling needs a C++ compiler")
@both_tasks
def test_a_compiled_run_resumes_bit_for_bit(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, id: str
) -> None:
    monkeypatch.setenv("RL_LAB_CACHE", str(tmp_path / "cache"))
    words = [
        f"{id}:ppo_defaults",
        "environment.vectorization=torch",
        "environment.normalize_obs=true",
        "compute.compile=on",
        "training.total_timesteps=512",
        "checkpoint.every_steps=128",
    ]
    rollout, simulated = Simulation.rollout, []

    def watched(self: Simulation, policy: Policy, obs: Any, steps: int) -> Any:
        simulated.append(steps)
        return rollout(self, policy, obs, steps)

    monkeypatch.setattr(Simulation, "rollout", watched)
    straight = run_hash(tiny_run(tmp_path / "straight", *words).run)
    assert simulated == [16] * 8
    files = {each.name for each in (tmp_path / "cache" / "compiled").iterdir()}
    assert len(files) == 2  # the rollouts and the update
    faults.reset()
    monkeypatch.setenv("RL_LAB_FAULT", "hook.after:error@9")
    with pytest.raises(OSError, match="No space"):
        tiny_run(tmp_path / "stopped", *words)
    monkeypatch.delenv("RL_LAB_FAULT")
    torch.manual_seed(123)  # a new process would not share our random stream
    outcome = resume("@last", root=tmp_path / "stopped")
    assert run_hash(outcome.run) == straight
    assert {each.name for each in (tmp_path / "cache" / "compiled").iterdir()} == files
