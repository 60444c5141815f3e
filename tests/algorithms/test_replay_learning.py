"""What all replay algorithms share, with the smallest learner there is."""

from collections import Counter
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from rl_lab.algorithms.base import Algorithm
from rl_lab.algorithms.replay import (
    ERROR,
    TransitionConfig,
    averages,
    minibatches,
    sample_minibatches,
    step_sizes,
    update_priorities,
)
from rl_lab.core import registry
from rl_lab.core.actions import RandomActions
from rl_lab.core.batch import INDEX, OBS, REWARD, STEPS, WEIGHT, Action
from rl_lab.core.clock import UpdateBudget
from rl_lab.core.errors import ConfigError, NonFiniteError
from rl_lab.core.learner import Learner, all_or_nothing
from rl_lab.core.schedule import at
from rl_lab.core.state import fingerprint, join, split
from tiny_runs import tiny_config

SPEC = "CartPole-v1:little"
ROWS = 8
SMALL = [f"algorithm.batch_size={ROWS}", "algorithm.learning_starts=20"]
TWO_BUFFERS = "buffers={replay: {type: prioritized, capacity: 64}, more: {type: prioritized}}"


def square_error(model: nn.Linear, rows: dict) -> tuple[torch.Tensor, dict, dict]:
    error = model(rows[OBS]).squeeze(-1) - rows[REWARD].view(len(rows[OBS]), -1)[:, 0]
    weight = rows.get(WEIGHT, torch.ones_like(error))
    return (weight * error.square()).mean(), {}, {ERROR: error.abs()}


class Little(Algorithm):
    """Predicts the reward; every second gradient step its target network moves half-way."""

    Config: ClassVar[type | None] = TransitionConfig
    learns_from = "transitions"
    defaults: ClassVar[dict] = {"buffers": {"replay": {"type": "uniform"}}}

    def initialize(self, context: Any) -> None:
        super().initialize(context)
        self.learner = Learner(nn.Linear(4, 1), square_error, self.config.optimizer, target=True)
        self.budget = UpdateBudget(self.config.learning_starts)
        self.collect_steps = self.config.train_every
        self.random_actions = RandomActions(context.spec.action, context.rng.numpy("warm_up"))

    def collect_step(self, step: int, *, phase: Any) -> Any:
        warming_up = step < self.config.learning_starts
        return self.collect(self.random_actions if warming_up else self.act, phase)

    def act(self, obs: Any, state: Any, *, deterministic: bool) -> Action:
        return Action(np.zeros(len(obs), np.int64), state)  # which random actions are not for long

    def sample(self, buffer: Any, *, hook: str, phase: Any) -> Any:
        return sample_minibatches(buffer, self.budget, phase, at(self.config, phase["step"]))

    def update(self, batch: dict, *, phase: Any) -> dict:
        now, steps, errors = at(self.config, phase["step"]), [], []
        sizes = step_sizes(now.learning_rate, now.max_grad_norm, "cpu")
        with all_or_nothing("Little update", model=self.learner, budget=self.budget):
            for rows in minibatches(batch, self.budget, phase, now.replay_ratio):
                step = self.learner.step(rows, **sizes)
                metrics = {"loss": step.loss}
                if self.budget.steps % 2 == 0:
                    self.learner.follow(0.5)
                    metrics["moved"] = self.budget.steps
                steps.append(metrics)
                errors.append(step.aux[ERROR])
        update_priorities(self.context, batch, errors, phase)
        return {**averages(steps), "gradient_steps": self.budget.steps}


@pytest.fixture(autouse=True)
def local(monkeypatch):
    monkeypatch.setitem(registry._entries["workflow"], "little", Little)


def play(orchestrator, hooks: int = 1) -> None:
    for _ in range(hooks):
        orchestrator.execute(orchestrator.scheduler.next_action())


def phase(step: int = 0, kind: str = "online", buffer: str | None = None) -> dict[str, Any]:
    return {"name": "train", "type": kind, "step": step, "progress": 0.0, "buffer": buffer}


def random_batch(count: int, seed: int = 0) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {
        OBS: torch.randn(count, ROWS, 4, generator=draw),
        REWARD: torch.randn(count, ROWS, generator=draw),
    }


# -- when to learn -------------------------------------------------------------------------------


def test_random_actions_until_learning_starts_then_the_policys(tiny):
    orchestrator = tiny(SPEC, *SMALL, "algorithm.learning_starts=60", "algorithm.train_every=5")
    play(orchestrator, 2 * 3)  # 4 environments, 5 steps a call: random until 60
    assert orchestrator.counters.env_steps == 60
    actions = orchestrator.buffers["replay"].last(60)["action"]
    counts = Counter(actions.tolist())
    assert set(counts) == {0, 1} and min(counts.values()) >= 15
    assert orchestrator.workflow.budget.steps == 0
    play(orchestrator, 2)
    assert orchestrator.buffers["replay"].last(20)["action"].tolist() == [0] * 20
    assert orchestrator.workflow.budget.steps == 20


@pytest.mark.parametrize("num_envs", [1, 4, 7])
def test_the_budget_is_exact_at_every_point_and_through_a_save(tiny, num_envs):
    words = [f"environment.num_envs={num_envs}", "algorithm.replay_ratio=0.3"]
    orchestrator = tiny(SPEC, *SMALL, *words)
    while orchestrator.counters.env_steps < 20 + 100:
        play(orchestrator)
        if orchestrator.scheduler.at_cycle_start:
            after = max(orchestrator.counters.env_steps - 20, 0)
            assert orchestrator.workflow.budget.steps == 3 * after // 10
        else:  # what was collected has not been looked at: a good place to be interrupted
            state = join(*split(orchestrator.workflow.get_state()))
            orchestrator.workflow.budget.load_state_dict({"steps": 0, "seen": 0, "parts": 0})
            orchestrator.workflow.set_state(state)


def test_several_gradient_steps_are_as_many_minibatches_of_their_own(tiny):
    workflow = tiny(SPEC, *SMALL, "algorithm.replay_ratio=1.5").workflow
    buffer = workflow.context.buffers["replay"]
    assert workflow.sample(buffer, hook="update", phase=phase(20)) is None  # nothing in it yet
    buffer.add(workflow.collect_step(0, phase=phase()).trajectory)
    batch = workflow.sample(buffer, hook="update", phase=phase(40))
    assert batch[OBS].shape == (30, ROWS, 4)  # 1.5 · 20 steps after the first 20, asked for twice
    assert not torch.equal(batch[OBS][0], batch[OBS][1])
    metrics = workflow.update(batch, phase=phase(40))
    assert metrics["gradient_steps"] == workflow.budget.steps == 30
    assert workflow.sample(buffer, hook="update", phase=phase(40)) is None
    # A number that only every second step has is averaged over those: 2, 4, …, 30.
    assert metrics["moved"] == 16
    assert set(metrics) == {"loss", "moved", "gradient_steps"}


def test_an_offline_phase_takes_one_gradient_step_per_call_and_leaves_the_budget(tiny):
    phases = (
        "training.phases=[{name: play, duration_steps: 40, hooks: [collect]}, "
        "{name: study, type: offline, duration_updates: 5, hooks: [update]}, "
        "{name: both, hooks: [collect, update]}]"
    )
    orchestrator = tiny(SPEC, *SMALL, phases)
    workflow, taken = orchestrator.workflow, []
    while orchestrator.scheduler.view()["name"] != "both":
        play(orchestrator)
        taken.append(workflow.budget.steps)
    assert orchestrator.counters.env_steps == 40
    assert taken == [0] * 10 + [1, 2, 3, 4, 5]
    play(orchestrator, 2)  # what was only collected allows nothing; these 4 steps do
    assert workflow.budget.steps == 5 + 4
    assert (workflow.budget.seen, workflow.budget.parts) == (44, 0)


# -- a bad number --------------------------------------------------------------------------------


def test_a_bad_minibatch_leaves_everything_as_it_was(tiny):
    workflow, twin = (tiny(SPEC, *SMALL).workflow for _ in range(2))
    twin.set_state(join(*split(workflow.get_state())))
    for each in (workflow, twin):
        each.budget.due(phase(29), 1.0, ready=True)
        each.update(random_batch(3), phase=phase(29))
    before = fingerprint(workflow.get_state())
    weights, slow = workflow.learner.state.flat.clone(), workflow.learner.target_flat.clone()
    bad = random_batch(3, seed=1)  # the first is good, and the second would move the target
    bad[REWARD][1, 2] = float("nan")
    with pytest.raises(NonFiniteError, match="Little update of model"):
        workflow.update(bad, phase=phase(29))
    assert fingerprint(workflow.get_state()) == before
    assert torch.equal(workflow.learner.state.flat, weights)
    assert torch.equal(workflow.learner.target_flat, slow)
    assert workflow.budget.steps == 3 and float(workflow.learner.state.updates) == 3
    assert (
        workflow.budget.due(phase(29), 1.0, ready=True) == 6
    )  # 9 were allowed, 3 taken: the bad ones stay due
    for each in (workflow, twin):  # and the next one is as if there had been no bad one
        each.update(random_batch(3, seed=2), phase=phase(29))
    assert fingerprint(workflow.get_state()) == fingerprint(twin.get_state())
    assert not torch.equal(workflow.learner.state.flat, weights)
    assert not torch.equal(workflow.learner.target_flat, slow)


# -- what the buffer gets ------------------------------------------------------------------------


@pytest.mark.parametrize(("named", "moved"), [(None, "replay"), ("more", "more")])
def test_errors_become_priorities_in_the_buffer_of_the_phase(tiny, named, moved):
    workflow = tiny(SPEC, *SMALL, TWO_BUFFERS).workflow
    buffers = workflow.context.buffers
    rows = [workflow.collect_step(0, phase=phase()).trajectory for _ in range(4)]
    for buffer in buffers.values():
        for each in rows:
            buffer.add(each)
    batch = workflow.sample(buffers[moved], hook="update", phase=phase(21))
    with torch.no_grad():
        error = workflow.learner.module(batch[OBS]).squeeze(-1).sub(batch[REWARD]).abs()
    workflow.update(batch, phase=phase(21, buffer=named))
    for name, buffer in buffers.items():
        told = buffer.tree.get(batch[INDEX].numpy().ravel())
        expected = (error.numpy().ravel().astype(np.float64) + 1e-6) ** 0.6
        expected = expected if name == moved else np.ones_like(expected)
        np.testing.assert_allclose(told, expected, rtol=1e-5)


def test_windows_and_the_correction_of_the_bias_are_asked_for(tiny):
    words = ["algorithm.n_step=3", "algorithm.importance_beta={start: 0.5, end: 1.0, to: 100}"]
    workflow = tiny(SPEC, *SMALL, TWO_BUFFERS, *words).workflow
    buffer = workflow.context.buffers["replay"]
    for _ in range(4):
        buffer.add(workflow.collect_step(0, phase=phase()).trajectory)
    priorities = torch.arange(1.0, 17.0)
    buffer.reprioritize(torch.arange(16), priorities)
    for step, beta in ((50, 0.75), (100, 1.0)):
        batch = workflow.sample(buffer, hook="update", phase=phase(step))
        assert batch[REWARD].shape == (*batch[STEPS].shape, 3)
        # the smallest priority of a minibatch has weight 1: (1 / p) ** (α β), with α = 0.6
        drawn = priorities[batch[INDEX]]
        expected = (drawn.amin(1, keepdim=True) / drawn) ** (0.6 * beta)
        torch.testing.assert_close(batch[WEIGHT], expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("algorithm", ["dqn", "sac", "sql"])
def test_the_correction_of_the_bias_grows_over_the_run_by_default(tiny, algorithm):
    config = tiny(f"CartPole-v1:{algorithm}" if algorithm != "sql" else "Pendulum-v1:sql").config
    total = config.training.total_timesteps
    found = [at(config.algorithm, step).importance_beta for step in (0, total // 2, total)]
    assert found == pytest.approx([0.4, 0.7, 1.0])


# -- what cannot work ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["buffers.replay.capacity=7"],
            "algorithm.batch_size: 8 is larger than buffers.replay.capacity, 7",
        ),
        (
            ["buffers.replay.type=her", "algorithm.n_step=2"],
            "algorithm.n_step: must be 1 with buffers.replay of type her",
        ),
    ],
)
def test_what_does_not_fit_the_rest_is_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        tiny_config(SPEC, *SMALL, *words)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"train_every": 0}, "train_every must be at least 1, got 0"),
        ({"n_step": 0}, "n_step must be at least 1, got 0"),
        ({"learning_starts": -1}, "learning_starts must be at least 0, got -1"),
        ({"gamma": 1.5}, r"gamma must be in \[0, 1\], got 1.5"),
        ({"importance_beta": -0.5}, r"importance_beta must be in \[0, 1\], got -0.5"),
        ({"replay_ratio": -0.5}, "replay_ratio must be at least 0, got -0.5"),
        ({"max_grad_norm": -1.0}, "max_grad_norm must be positive, got -1"),
    ],
)
def test_bad_values_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        TransitionConfig(**options)


def test_steps_of_a_phase_that_only_collects_allow_nothing(tiny):
    phases = "[{name: explore, duration_steps: 512, hooks: [collect]}, {hooks: [collect, update]}]"
    orchestrator = tiny(SPEC, *SMALL, f"training.phases={phases}", "algorithm.replay_ratio=1")
    workflow = orchestrator.workflow
    while orchestrator.counters.env_steps < 512:
        orchestrator.execute(orchestrator.scheduler.next_action())
    before = orchestrator.counters.env_steps
    orchestrator.execute("collect")
    orchestrator.execute("update")
    assert workflow.budget.steps == orchestrator.counters.env_steps - before


def test_other_policies_feed_the_statistics_too(tiny):
    phases = "[{name: explore, duration_steps: 64, policy: random, hooks: [collect]},"
    phases += " {hooks: [collect, update]}]"
    words = ["environment.normalize_obs=true", f"training.phases={phases}"]
    orchestrator = tiny(
        "CartPole-v1:random", "algorithm.name=dqn", "algorithm.train_every=16", *words
    )
    orchestrator.execute("collect")
    assert orchestrator.workflow.model.normalizer.moments.count == 64


def test_a_run_that_ends_before_it_learns_is_warned_of():
    config = tiny_config(SPEC, *SMALL, "algorithm.learning_starts=1024")
    assert "nothing is learned in 1024 steps" in config.algorithm.warnings(config)[0]
    config = tiny_config(SPEC, *SMALL)
    assert config.algorithm.warnings(config) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([SPEC, "buffers.replay.type=rollout"], "Little learns from transitions"),
        ([SPEC, "buffers=null"], "Little learns from transitions"),
        (
            ["CartPole-v1:ppo_defaults", "buffers.replay.type=uniform"],
            "learns from the latest rollout",
        ),
        (
            [
                SPEC,
                "buffers={replay: {type: uniform}, d: {type: uniform},"
                " u: {type: union, of: {replay: 0.5, d: 0.5}}}",
                "training.phases=[{buffer: u, hooks: [collect, update]}]",
            ],
            "nothing is ever collected into its part 'd'",
        ),
    ],
)
def test_a_buffer_that_cannot_be_learned_from_is_refused(tiny, tmp_path, words, message):
    with pytest.raises(ConfigError, match=message):
        tiny(*words)
    assert list(tmp_path.iterdir()) == []
