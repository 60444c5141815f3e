"""Tabular methods: every update by hand, and the fixed points by value iteration."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rl_lab.algorithms.tabular import (
    QLearning,
    QLearningConfig,
    Sarsa,
    SarsaConfig,
    epsilon_greedy,
    expected_value,
    policy_entropy,
    state_count,
)
from rl_lab.core.batch import ACTION, NEXT_OBS, OBS, RESET, REWARD, TERMINATED, TRUNCATED
from rl_lab.core.errors import ConfigError, UserError
from rl_lab.core.protocols import WorkflowContext
from rl_lab.core.seeding import Streams
from rl_lab.core.spec import Discrete, EnvSpec, MultiDiscrete
from rl_lab.core.state import fingerprint, join, split
from tiny_runs import final_state, tiny_config, tiny_run

PHASE = {"name": "train", "step": 0}
ON, TERMINAL, CUT = "on", "terminal", "cut"


def learner(kind=QLearning, *, states=4, actions=2, num_envs=1, seed=0, **options):
    """A workflow with an empty table, bound to nothing but its sizes."""
    options = {"gamma": 0.5, "learning_rate": 0.5, "epsilon": 0.2} | options
    made = kind(kind.Config(**options))
    context = WorkflowContext(
        config=None,
        spec=EnvSpec("table", Discrete(states), Discrete(actions)),
        device="cpu",
        train_environment=SimpleNamespace(num_envs=num_envs),
        collector=None,
        components={},
        buffers={},
        optimizers={},
        rng=Streams(seed),
        initial_observation=None,
    )
    made.initialize(context)
    return made


def rollout(*rows, before=TERMINAL):
    """Rows (state, action, reward, next state, how it went on) of one environment, [T, 1]."""
    state, action, reward, after, how = zip(*rows, strict=True)
    column = lambda values, kind: torch.tensor(np.array(values, kind)).unsqueeze(1)  # noqa: E731
    ends = np.array(how)
    return {
        OBS: column(state, np.int64),
        ACTION: column(action, np.int64),
        REWARD: column(reward, np.float32),
        TERMINATED: column(ends == TERMINAL, np.bool_),
        TRUNCATED: column(ends == CUT, np.bool_),
        NEXT_OBS: column(after, np.int64),
        RESET: column([each != ON for each in [before, *how[:-1]]], np.bool_),
    }


def part(batch, rows):
    return {name: value[rows] for name, value in batch.items()}


def filled(workflow, table):
    workflow.table.tables[:] = np.array(table, np.float64)
    return workflow


TABLE = [[1, 2], [3, 5], [8, 4], [0, 0]]


# ---------------------------------------------------------------- updates by hand


def test_q_learning_by_hand():
    workflow = filled(learner(), TABLE)
    workflow.update(
        rollout((0, 0, 1, 1, ON), (1, 0, 2, 2, ON), (2, 1, 7, 3, TERMINAL)), phase=PHASE
    )
    # Q(0,0) = 1 + .5 (1 + .5 * 5 - 1)  = 2.25     the best of state 1 is 5
    # Q(1,0) = 3 + .5 (2 + .5 * 8 - 3)  = 4.5
    # Q(2,1) = 4 + .5 (7          - 4)  = 5.5      no future
    assert workflow.table.tables[0].tolist() == [[2.25, 2], [4.5, 5], [8, 5.5], [0, 0]]
    assert workflow.table.visits[0].tolist() == [[1, 0], [1, 0], [0, 1], [0, 0]]


def test_later_transitions_see_earlier_updates():
    workflow = filled(learner(), TABLE)
    workflow.update(rollout((1, 1, 9, 3, TERMINAL), (0, 0, 1, 1, ON)), phase=PHASE)
    # Q(1,1) = 5 + .5 (9 - 5) = 7, then Q(0,0) = 1 + .5 (1 + .5 * 7 - 1) = 2.75
    assert workflow.table.tables[0, 1, 1] == 7
    assert workflow.table.tables[0, 0, 0] == 2.75


@pytest.mark.parametrize(("how", "expected"), [(TERMINAL, 1.0), (CUT, 2.25)])
def test_a_cut_episode_has_a_future_and_a_finished_one_has_not(how, expected):
    workflow = filled(learner(), TABLE)
    workflow.update(rollout((0, 0, 1, 1, how)), phase=PHASE)
    assert workflow.table.tables[0, 0, 0] == expected  # 1 + .5 (1 - 1), or with .5 * 5 as above


def test_sarsa_by_hand():
    workflow = filled(learner(Sarsa), TABLE)
    workflow.update(
        rollout((0, 0, 1, 1, ON), (1, 0, 2, 2, ON), (2, 1, 7, 3, TERMINAL)), phase=PHASE
    )
    # Q(0,0) = 1 + .5 (1 + .5 * 3 - 1) = 1.75     action 0 was taken in state 1, not the best
    # Q(1,0) = 3 + .5 (2 + .5 * 4 - 3) = 3.5
    # Q(2,1) = 4 + .5 (7          - 4) = 5.5
    assert workflow.table.tables[0].tolist() == [[1.75, 2], [3.5, 5], [8, 5.5], [0, 0]]
    assert not workflow.waits.any()


def test_the_last_transition_of_a_rollout_waits_for_its_next_action():
    workflow = filled(learner(Sarsa), TABLE)
    workflow.update(rollout((0, 0, 1, 1, ON)), phase=PHASE)
    assert workflow.table.tables[0].tolist() == TABLE and workflow.waits.all()
    workflow.update(rollout((1, 1, 2, 2, ON), before=ON), phase=PHASE)
    # Q(0,0) = 1 + .5 (1 + .5 * 5 - 1): action 1 followed; the next one waits again
    assert workflow.table.tables[0].tolist() == [[2.25, 2], [3, 5], [8, 4], [0, 0]]
    assert workflow.waits.all()


@pytest.mark.parametrize("how", [CUT, "lost"])
def test_sarsa_takes_the_mean_where_there_is_no_next_action(how):
    """Where time ran out, and where an environment could not be put back after a resume."""
    workflow = filled(learner(Sarsa), TABLE)
    workflow.update(rollout((0, 0, 1, 1, ON if how == "lost" else how)), phase=PHASE)
    assert workflow.waits.tolist() == [how == "lost"]  # what ended is learnt at once
    workflow.update(rollout((1, 0, 2, 2, ON)), phase=PHASE)
    # state 1: .2 * (3 + 5) / 2 + .8 * 5 = 4.8; Q(0,0) = 1 + .5 (1 + .5 * 4.8 - 1) = 2.2
    assert workflow.table.tables[0, 0, 0] == pytest.approx(2.2)


def test_expected_sarsa_by_hand_waits_for_nothing():
    workflow = filled(learner(Sarsa, expected=True), TABLE)
    workflow.update(rollout((0, 0, 1, 1, ON)), phase=PHASE)
    assert workflow.table.tables[0, 0, 0] == pytest.approx(2.2)  # as above
    assert not workflow.waits.any()
    assert expected_value(np.array([3.0, 5.0]), 0.2) == pytest.approx(4.8)


def test_double_q_learning_by_hand():
    ours, theirs = [[0, 0], [9, 5], [0, 0], [0, 0]], [[0, 0], [2, 6], [0, 0], [0, 0]]
    # The first table likes action 0 in state 1, which the second one values at 2; the second one
    # likes action 1, which the first one values at 5. With reward 1:
    #   first:  0 + .5 (1 + .5 * 2) = 1        second: 0 + .5 (1 + .5 * 5) = 1.75
    seen = set()
    for seed in range(8):
        workflow = filled(learner(double=True, seed=seed), [ours, theirs])
        workflow.update(rollout((0, 0, 1, 1, ON)), phase=PHASE)
        seen.add(tuple(workflow.table.tables[:, 0, 0]))
    assert seen == {(1.0, 0.0), (0.0, 1.75)}


def test_double_q_learning_acts_by_both_tables():
    workflow = filled(learner(double=True), [[[0, 3]] * 4, [[4, 0]] * 4])
    assert workflow.act(torch.tensor([2]), None, deterministic=True).action.tolist() == [0]


def test_steps_that_fall_with_the_visits_average():
    workflow = learner(learning_rate=1.0, step_size="visits", initial_value=50.0)
    for reward in (1, 2, 6):
        workflow.update(rollout((0, 1, reward, 1, TERMINAL)), phase=PHASE)
    assert workflow.table.tables[0, 0].tolist() == [50, pytest.approx(3.0)]
    slower = learner(learning_rate=0.5, step_size="visits", step_power=0.5)
    for reward in (8, 8):
        slower.update(rollout((0, 1, reward, 1, TERMINAL)), phase=PHASE)
    # 0 + .5 * 8 = 4, then 4 + .5 / sqrt(2) * 4
    assert slower.table.tables[0, 0, 1] == pytest.approx(4 + 2 / np.sqrt(2))


def test_several_environments_are_learnt_from_in_time_order():
    first, second = (0, 0, 1, 1, ON), (1, 1, 9, 3, TERMINAL)
    columns = [rollout(first, second), rollout(second, first)]
    batch = {name: torch.cat([each[name] for each in columns], 1) for name in columns[0]}
    workflow, reference = filled(learner(num_envs=2), TABLE), filled(learner(), TABLE)
    workflow.update(batch, phase=PHASE)
    reference.update(rollout(first, second, second, first), phase=PHASE)
    assert workflow.table.tables.tolist() == reference.table.tables.tolist()


# -------------------------------------------------------------------- properties


def wander(random, states, length):
    """One episode within some states, of a random end."""
    path = random.choice(states, length + 1)
    how = [ON] * (length - 1) + [random.choice([TERMINAL, CUT])]
    return [
        (path[i], random.integers(2), random.normal(), path[i + 1], how[i]) for i in range(length)
    ]


KINDS = [
    (QLearning, {}),
    (QLearning, {"double": True}),
    (Sarsa, {}),
    (Sarsa, {"expected": True}),
]
every_kind = pytest.mark.parametrize(("kind", "options"), KINDS)


@every_kind
def test_another_episode_never_changes_an_episodes_updates(kind, options):
    random = np.random.default_rng(3)
    for _ in range(20):
        one = wander(random, [0, 1, 2], 4)
        tables = []
        for _ in range(2):  # two different episodes B, in other states
            workflow = learner(kind, states=6, **options)
            other = wander(random, [3, 4, 5], 5)
            workflow.update(rollout(*other, *one, *other), phase=PHASE)
            tables.append(workflow.table.tables)
        assert np.array_equal(tables[0][:, :3], tables[1][:, :3])
        assert not np.array_equal(tables[0][:, 3:], tables[1][:, 3:])


@every_kind
def test_where_rollouts_are_cut_does_not_matter_nor_does_a_save(kind, options):
    random = np.random.default_rng(4)
    rows = [row for _ in range(5) for row in wander(random, [0, 1, 2, 3], 6)]
    batch, count = rollout(*rows), len(rows)
    whole = learner(kind, **options)
    whole.update(batch, phase=PHASE)
    pieces = learner(kind, **options)
    for start in range(0, count, 4):
        saved = join(*split(pieces.get_state())), pieces.context.rng.state_dict()
        pieces = learner(kind, seed=9, **options)
        pieces.set_state(saved[0])
        pieces.context.rng.load_state_dict(saved[1])
        pieces.update(part(batch, slice(start, start + 4)), phase=PHASE)
    assert fingerprint(pieces.get_state()) == fingerprint(whole.get_state())


@pytest.mark.parametrize(
    ("kind", "options", "epsilon"),
    [
        (QLearning, {}, 0.0),
        (QLearning, {"double": True}, 0.0),
        (Sarsa, {}, 0.3),
        (Sarsa, {"expected": True}, 0.3),
    ],
)
def test_a_random_task_converges_to_its_fixed_point(kind, options, epsilon):
    """Five states: Q* by value iteration, or the same for the best epsilon-greedy policy."""
    random = np.random.default_rng(5)
    probabilities = random.dirichlet(np.ones(5) * 0.5, size=(5, 2))
    pays = random.normal(size=(5, 2))
    exact = np.zeros((5, 2))
    for _ in range(200):
        future = epsilon * exact.mean(axis=1) + (1 - epsilon) * exact.max(axis=1)
        exact = pays + 0.5 * probabilities @ future
    workflow = learner(
        kind,
        states=5,
        epsilon=epsilon or 1.0,  # Q-learning learns about the best policy from any other
        learning_rate=1.0,
        step_size="visits",
        step_power=0.7,
        **options,
    )
    state, rows = 0, []
    for _ in range(4000):
        action = int(workflow.act(torch.tensor([state]), None, deterministic=False).action[0])
        after = int(random.choice(5, p=probabilities[state, action]))
        rows.append((state, action, pays[state, action], after, ON))
        state = after
        if len(rows) == 4:
            workflow.update(rollout(*rows, before=ON), phase=PHASE)
            rows = []
    assert np.abs(workflow.table.tables.mean(axis=0) - exact).max() < 0.1
    assert np.array_equal(workflow.table.tables.mean(axis=0).argmax(1), exact.argmax(1))


# ------------------------------------------------------------------------ acting


def test_of_equal_actions_any_is_explored_and_the_first_is_the_deterministic_one():
    values = np.tile([1.0, 3.0, 3.0], (3000, 1))
    chosen = epsilon_greedy(values, 0.0, np.random.default_rng(0))
    assert np.bincount(chosen, minlength=3) == pytest.approx([0, 1500, 1500], abs=150)
    # with epsilon .3 a tenth of all for each, and half of the other seven tenths for the best
    chosen = epsilon_greedy(values, 0.3, np.random.default_rng(0))
    assert np.bincount(chosen, minlength=3) == pytest.approx([300, 1350, 1350], abs=150)
    workflow = filled(learner(actions=3), [[1, 3, 3]] * 4)
    assert workflow.act(torch.tensor([0, 3]), None, deterministic=True).action.tolist() == [1, 1]


def test_epsilon_follows_its_schedule(tmp_path):
    outcome = tiny_run(
        tmp_path,
        "FrozenLake-v1:q_learning",
        "training.total_timesteps=400",
        "algorithm.rollout_steps=1",
        "algorithm.epsilon={start: 1.0, end: 0.2, to: 1.0}",
    )
    rows = [json.loads(line) for line in outcome.run.metrics_file.read_text().splitlines()]
    at = {row["step"]: row["train/epsilon"] for row in rows if "train/epsilon" in row}
    # four environments: a cycle is four steps, and the schedule is read where it begins
    assert at[100] == pytest.approx(1 - 0.8 * 96 / 400)
    assert at[400] == pytest.approx(1 - 0.8 * 396 / 400)
    acted = final_state(outcome.run)["workflow"]["values"]["epsilon"]
    assert acted == pytest.approx(at[400])  # learned with what was acted with


def test_several_indices_are_one_state(tmp_path):
    """A joint cell and its indices one by one are the same run, bit for bit."""
    bounds = "bins: 4, low: [-2.4, -3, -0.2, -3], high: [2.4, 3, 0.2, 3]"
    tables = []
    for joint in ("true", "false"):
        wrappers = f"[{{id: DiscretizeObservation, {bounds}, joint: {joint}}}]"
        outcome = tiny_run(
            tmp_path / joint,
            "CartPole-v1:sarsa",
            f"environment.wrappers={wrappers}",
            "training.total_timesteps=400",
        )
        tables.append(final_state(outcome.run)["workflow"]["table"]["tables"])
    assert tables[0].shape == (1, 256, 2) and tables[0].any()
    assert np.array_equal(*tables)


@pytest.mark.parametrize("algorithm", ["q_learning", "sarsa"])
def test_a_lake_without_slips_is_crossed(tmp_path, algorithm):
    outcome = tiny_run(
        tmp_path,
        f"FrozenLake-v1:{algorithm}",
        "environment.kwargs={is_slippery: false}",
        "training.total_timesteps=4000",
        "evaluation.every_steps=0",
        "algorithm.rollout_steps=4",
        "algorithm.learning_rate=0.5",
        "algorithm.step_size=constant",
        "algorithm.epsilon=0.1",
        "algorithm.gamma=0.9",
        "algorithm.initial_value=0.5",
    )
    assert outcome.summary["test"]["last"]["return_mean"] == 1.0
    assert outcome.summary["test"]["last"]["length_mean"] == 6.0


# --------------------------------------------------------------------- refusals


def test_what_has_no_states_is_refused_with_the_wrapper_that_helps(tiny):
    with pytest.raises(UserError, match=r"Discrete observations.*DiscretizeObservation"):
        tiny("CartPole-v1:q_learning")
    with pytest.raises(UserError, match="Discrete actions"):
        state_count(Discrete(3), MultiDiscrete((2, 2)))
    with pytest.raises(UserError, match="too large"):
        state_count(MultiDiscrete((100_000,) * 5), Discrete(2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 1.5}, r"epsilon must be in \[0, 1\], got 1.5"),
        ({"learning_rate": -0.1}, r"learning_rate must be in \[0, 1\], got -0.1"),
        ({"rollout_steps": 0}, "rollout_steps must be at least 1, got 0"),
        ({"step_power": -1.0}, "step_power must be at least 0, got -1"),
    ],
)
@pytest.mark.parametrize("config", [QLearningConfig, SarsaConfig])
def test_bad_values_are_refused(config, options, message):
    with pytest.raises(ValueError, match=message):
        config(**options)


@pytest.mark.parametrize("name", ["normalize_obs", "normalize_reward"])
def test_what_a_table_would_ignore_is_refused(name):
    with pytest.raises(ConfigError, match=f"no use for environment.{name}"):
        tiny_config("FrozenLake-v1:sarsa", f"environment.{name}=true")


def test_the_entropy_of_an_epsilon_greedy_policy_by_hand():
    values = np.array([[0.0, 1.0], [2.0, 2.0]])
    # One best action: 0.9 and 0.1. Two: a half each, whatever epsilon is.
    lone = -0.9 * np.log(0.9) - 0.1 * np.log(0.1)
    assert policy_entropy(values, 0.2) == pytest.approx([lone, np.log(2)])
    assert policy_entropy(values, 0.0) == pytest.approx([0.0, np.log(2)])
