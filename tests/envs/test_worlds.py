"""Worlds that need a memory: rewards by hand, optima, and one world for one copy and for many."""

import json
from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest

from rl_lab.analysis.report import write_report
from rl_lab.cli.main import main
from rl_lab.core.errors import UserError
from rl_lab.core.schema import EnvironmentConfig
from rl_lab.core.spec import Box
from rl_lab.core.state import fingerprint, join, split
from rl_lab.envs.check import check_env
from rl_lab.envs.make import make_vector, resolve_vectorization, single_spaces
from rl_lab.envs.vector import SyncVector
from rl_lab.envs.worlds import WORLDS
from rl_lab.envs.worlds.cards import CountRecall, RepeatFirst, RepeatPrevious
from rl_lab.envs.worlds.poc_memory import PocMemory
from rl_lab.envs.worlds.pomdp import optimal_return
from rl_lab.envs.worlds.pomdp_models import hallway, river_swim, tiger
from rl_lab.envs.worlds.t_maze import TMaze
from rl_lab.envs.worlds.world import WorldVector
from rl_lab.records.run_directory import RunDirectory
from tiny_runs import tiny_run

every_world = pytest.mark.parametrize("id", WORLDS)
every_discrete_world = pytest.mark.parametrize("id", [id for id in WORLDS if id != "TwoArcs-v0"])
FIELDS = ("obs", "reward", "terminated", "truncated", "next_obs")


def vector(id, count=3, kind="auto", seeds=None, **settings):
    seeds = list(range(count)) if seeds is None else seeds
    config = EnvironmentConfig(id=id, num_envs=len(seeds), vectorization=kind, **settings)
    return make_vector(config, seeds)


def drawn(many, count, seed=0):
    """Random actions [count, 3] of a vector; those of a Box [count, 3, A]."""
    random, space = np.random.default_rng(seed), many.spec.action
    if isinstance(space, Box):
        return random.uniform(space.low, space.high, (count, 3, *space.shape)).astype(np.float32)
    return random.integers(0, space.n, (count, 3))


def single(id, **kwargs):
    return gym.make(id, disable_env_checker=True, **kwargs)


def play(world, state, *actions):
    """Observations, rewards and ends of one copy."""
    state = {name: np.asarray(value)[None] for name, value in state.items()}
    seen, rewards, ends = [world.observe(state)[0].tolist()], [], []
    for action in actions:
        state, reward, ended = world.move(state, np.array([action]), np.empty((1, 0)))
        seen.append(world.observe(state)[0].tolist())
        rewards.append(float(reward[0]))
        ends.append(bool(ended[0]))
    return seen, rewards, ends


# ---------------------------------------------------------------------- all of them


@every_world
def test_many_copies_are_the_single_ones_bit_for_bit(id):
    many, each = vector(id), vector(id, kind="sync")
    assert isinstance(many, WorldVector) and isinstance(each, SyncVector)
    for name in ("observation", "action", "max_episode_steps", "optimum"):
        left, right = getattr(many.spec, name), getattr(each.spec, name)
        assert left == right or (left.shape, left.dtype) == (right.shape, right.dtype)
    ends = 0
    for _ in range(2):  # a second reset goes on with the same generators
        assert np.array_equal(many.reset(), each.reset())
        for action in drawn(many, 120):
            left, right = many.step(action), each.step(action)
            for field in FIELDS:
                one, other = getattr(left, field), getattr(right, field)
                assert one.dtype == other.dtype and np.array_equal(one, other), field
            ends += int((left.terminated | left.truncated).sum())
    assert ends > 0 or "50" in id or "100" in id
    assert np.array_equal(many.reset([7, 8, 9]), each.reset([7, 8, 9]))


@every_world
@pytest.mark.parametrize("kind", ["native", "sync"])
def test_it_goes_on_exactly_from_a_saved_state(id, kind):
    one, other = vector(id, kind=kind), vector(id, kind=kind, seeds=[5, 6, 7])
    other.reset()
    one.reset()
    actions = drawn(one, 90, seed=1)
    for action in actions[:30]:
        one.step(action)
    tensors, rest = split(one.state_dict())
    other.load_state_dict(join(tensors, rest))
    for action in actions[30:]:
        left, right = one.step(action), other.step(action)
        assert all(np.array_equal(getattr(left, f), getattr(right, f)) for f in FIELDS)
    assert fingerprint(one.state_dict()) == fingerprint(other.state_dict())
    assert one.snapshot_level == "E0"


@pytest.mark.parametrize("id", ["PocMemory-v0", "TMaze-v0", "RepeatPrevious-v0", "Tiger-v0"])
def test_the_check_of_environments_proves_the_level(id):
    report = check_env(id, steps=20)
    assert (report.level, report.reason) == ("E0", None)


@every_world
def test_what_a_step_returned_is_never_written_again(id):
    many = vector(id)
    kept = [many.reset()]
    copies = [kept[0].copy()]
    for action in drawn(many, 60):
        step = many.step(action)
        kept += [step.obs, step.next_obs]
        copies += [step.obs.copy(), step.next_obs.copy()]
    assert all(np.array_equal(a, b) for a, b in zip(kept, copies, strict=True))


def test_a_time_limit_truncates_and_both_vectors_agree():
    for kind in ("native", "sync"):
        made = vector("TMaze-v0", kind=kind, max_episode_steps=4)
        made.reset()
        steps = [made.step(np.zeros(3, np.int64)) for _ in range(4)]
        assert [each.truncated.all() for each in steps] == [False, False, False, True]
        assert not steps[-1].terminated.any() and made.spec.max_episode_steps == 4
    assert vector("RepeatFirst-v0").spec.max_episode_steps == 51


def test_auto_takes_the_vector_of_a_world_and_sync_inside_of_wrappers():
    config = EnvironmentConfig(id="TMaze-v0", num_envs=2, kwargs={"length": 7})
    assert resolve_vectorization(config) == "native"
    stacked = EnvironmentConfig(id="TMaze-v0", wrappers=[{"id": "FrameStack"}])
    assert resolve_vectorization(stacked) == "sync"
    observation, action = single_spaces(EnvironmentConfig(id="TMaze-v0", vectorization="native"))
    assert observation.shape == (2,) and action.n == 2


@pytest.mark.parametrize(
    ("id", "kwargs", "said"),
    [
        ("TMaze-v0", {"length": 1}, "length must be a whole number from 2 on, got 1"),
        ("RepeatPrevious-v0", {"k": 52}, "k must be a whole number from 1 to 51, got 52"),
        ("RepeatFirst-v0", {"decks": 0}, "decks must be a whole number from 1 on, got 0"),
        ("CountRecall-v0", {"kinds": 5}, "5 kinds of cards do not divide a deck"),
        ("Tiger-v0", {"horizon": 0}, "horizon must be a whole number from 1 on, got 0"),
        ("PocMemory-v0", {"size": 3}, "'PocMemory-v0' cannot be made: .*argument 'size'"),
    ],
)
@pytest.mark.parametrize("kind", ["native", "sync"])
def test_wrong_arguments_are_one_line(id, kwargs, said, kind):
    with pytest.raises(UserError, match=said) as caught:
        vector(id, kind=kind, kwargs=kwargs)
    assert "\n" not in str(caught.value)


@every_discrete_world
def test_actions_that_do_not_exist_are_refused(id):
    many = vector(id)
    many.reset()
    with pytest.raises(ValueError, match="actions of"):
        many.step(np.array([0, many.spec.action.n, 0]))
    env = single(id)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="actions are"):
        env.step(-1)


# ------------------------------------------------------------------ rewards by hand


def test_poc_memory_by_hand():
    world, start = PocMemory(), {"position": 2, "good": -1, "time": 0}
    seen, rewards, ends = play(world, start, 1, 1, 1, 1, 1)
    # The left end is good: (1, 0.4, -1) is shown twice, and the first two actions move nothing.
    assert np.allclose(seen[:2], [[1, 0.4, -1]] * 2) and np.allclose(seen[2], [0, 0.4, 0])
    assert np.allclose(seen[3], [0, 0.6, 0]) and ends == [False] * 4 + [True]
    assert rewards == pytest.approx([0, 0, -0.1, -0.1, -1.6])
    rewards = play(world, start, 0, 0, *[0] * 7)[1]
    assert rewards == pytest.approx([0, 0, *[-0.1] * 6, 1.6])
    env = single("PocMemory-v0")
    first = np.array([env.reset(seed=seed)[0] for seed in range(200)])
    assert np.unique(first[:, 1]) == pytest.approx([-0.4, -0.2, 0, 0.2, 0.4])
    assert 70 < (first[:, 0] == 1).sum() < 130 and (first[:, 0] == -first[:, 2]).all()


def poc_return(choose):
    """Mean return of a policy of the first frame and the current one, over all episodes."""
    total = []
    for position in range(-2, 3):
        for good in (-1, 1):
            state = {"position": position, "good": good, "time": 0}
            action = choose(position, good)
            _, rewards, ends = play(PocMemory(), state, *[action] * 9)
            total.append(sum(rewards[: ends.index(True) + 1]))
    return np.mean(total)


def test_poc_memory_is_worth_what_is_said_with_and_without_a_memory():
    assert poc_return(lambda position, good: (good + 1) // 2) == pytest.approx(1.2)
    assert PocMemory.optimum == pytest.approx(1.2)
    assert poc_return(lambda position, good: int(position >= 0)) == pytest.approx(-0.28)


def test_a_passive_maze_by_hand():
    world = TMaze(length=3)
    seen, rewards, ends = play(world, {"position": 0, "sign": -1}, 0, 1, 0, 1)
    assert seen[:4] == [[-1, 0], [0, 0], [0, 0], [0, 1]]
    assert rewards == [0, 0, 0, 1] and ends == [False, False, False, True]
    assert play(world, {"position": 0, "sign": -1}, 0, 0, 0, 0)[1] == [0, 0, 0, -1]
    assert play(world, {"position": 0, "sign": 1}, 0, 0, 0, 0)[1] == [0, 0, 0, 1]
    assert (world.optimum, world.max_steps, world.action_space.n) == (1.0, 4, 2)


def test_an_active_maze_by_hand():
    north, south, east, west = range(4)
    world = TMaze(length=4, active=True)
    actions = [west, east, north, east, east, east, east, south]
    seen, rewards, ends = play(world, {"position": 1, "sign": -1}, *actions)
    places = [[0, 0], [-1, 0], [0, 0], [0, 0], [0, 0], [0, 0], [0, 1], [0, 1], [0, 1]]
    assert seen == places
    # West, north in the corridor and east at the junction cost a quarter.
    assert rewards == [-0.25, 0, -0.25, 0, 0, 0, -0.25, 1]
    assert ends == [False] * 7 + [True]
    assert (world.optimum, world.max_steps, world.action_space.n) == (0.75, 12, 4)
    env = single("TMazeActive-10-v0")
    env.reset(seed=0)
    last = [env.step(west)[2:4] for _ in range(30)][-1]
    assert last == (False, True)  # truncated


def test_ids_with_a_number_are_mazes_of_that_length():
    for length in (10, 20, 50, 100):
        assert single(f"TMaze-{length}-v0").unwrapped.world.length == length
        active = single(f"TMazeActive-{length}-v0").unwrapped.world
        assert active.active and active.optimum == 1 - 1 / length


def test_repeat_previous_counts_the_shown_card_as_popgym_does():
    world = RepeatPrevious()
    pack = np.arange(52) % 4
    # k = 4: with four cards dealt (0, 1, 2, 3) the answer is the first one, three steps back.
    _, rewards, ends = play(world, {"pack": pack, "dealt": 1}, 0, 0, 0, 0, 0)
    assert rewards == pytest.approx([0, 0, 0, 1 / 48, -1 / 48])
    right = [0, 0, 0, *[(i - 3) % 4 for i in range(3, 51)]]
    seen, rewards, ends = play(world, {"pack": pack, "dealt": 1}, *right)
    assert sum(rewards) == pytest.approx(1.0) and len(rewards) == 51
    assert ends == [False] * 50 + [True] and seen[-1] == 3
    short = RepeatPrevious(decks=2, k=32, suits=2)
    assert (short.cards, short.max_steps, short.action_space.n) == (104, 103, 2)


def test_repeat_first_by_hand():
    pack = np.array([2, 1, 2, 3] * 13)
    _, rewards, ends = play(RepeatFirst(), {"pack": pack, "dealt": 1}, *[2] * 51)
    assert rewards == pytest.approx([1 / 51] * 51) and ends.index(True) == 50
    _, rewards, _ = play(RepeatFirst(), {"pack": pack, "dealt": 1}, 2, 1)
    assert rewards == pytest.approx([1 / 51, -1 / 51])


def test_count_recall_by_hand():
    pack, asked = np.array([0, 1, 1, 0] * 13), np.array([0, 0, 1, 1] * 13)
    state = {"pack": pack, "asked": asked, "dealt": 1}
    # Dealt 0: one 0. Then 0, 1: one 0. 0, 1, 1: two 1. 0, 1, 1, 0: two 1.
    seen, rewards, _ = play(CountRecall(), state, 1, 1, 2, 2, 0)
    assert seen[:4] == [[0, 0], [1, 0], [1, 1], [0, 1]]
    assert rewards == pytest.approx([1 / 51] * 4 + [-1 / 51])
    assert CountRecall().action_space.n == 27 and CountRecall(kinds=13).action_space.n == 5
    assert CountRecall(decks=2, kinds=4).max_steps == 103


@pytest.mark.parametrize("id", ["RepeatPrevious-v0", "RepeatFirst-v0", "CountRecall-v0"])
def test_packs_are_whole_and_shuffled(id):
    world = single(id).unwrapped.world
    packs = [world.begin(np.random.default_rng(seed))["pack"] for seed in range(5)]
    counts = [np.bincount(pack).tolist() for pack in packs]
    assert all(each == counts[0] and len(set(each)) == 1 and sum(each) == 52 for each in counts)
    assert all((one != other).any() for one, other in pairwise(packs))


# --------------------------------------------------------------------- finite POMDPs


def test_the_value_of_the_tiger_by_hand_and_of_the_literature():
    # One step: listen. Two: an open door is worth 0.85 * 10 - 0.15 * 100 = -6.5, so listen twice.
    # Three: after two hearings that agree (0.745) the door is right with 0.7225 / 0.745, worth
    # 6.677; otherwise listen again: -2 + 0.745 * 6.677 - 0.255 = 2.72.
    assert optimal_return(tiger(), 1) == -1
    assert optimal_return(tiger(), 2) == -2
    assert optimal_return(tiger(), 3) == pytest.approx(2.72)
    # The value at the uniform belief with a discount of 0.95, as solvers report it: 19.37.
    assert optimal_return(tiger(), 400, discount=0.95) == pytest.approx(19.37, abs=0.005)


def test_the_value_of_the_river_by_hand_and_of_the_literature():
    # One step from the left end: going left pays 0.005. The average reward per step of an endless
    # episode is 3601.5 / 8402.5 = 0.4286 (the stationary distribution of always going right).
    assert optimal_return(river_swim(), 1) == pytest.approx(0.005)
    longer = optimal_return(river_swim(), 1001) - optimal_return(river_swim(), 1000)
    assert longer == pytest.approx(3601.5 / 8402.5)


def test_the_value_of_the_hallway_by_hand():
    # From the west end two moves and the door: 0.9. From the east end four: 0.8. From cells 1 to 4
    # to the west end and two back: 3, 4, 5, 6 moves; from 5 four to the west without meeting the
    # end, which tells where one is, and one back: 0.85, 0.8, 0.75, 0.7, 0.75.
    by_hand = (0.9 + 0.8 + 0.85 + 0.8 + 0.75 + 0.7 + 0.75) / 7
    assert optimal_return(hallway(), 20) == pytest.approx(by_hand)


@pytest.mark.parametrize("make", [tiger, river_swim, hallway])
def test_tables_are_probabilities(make):
    model = make()
    for table in (model.start, model.first_view, model.transition, model.view):
        assert (table >= 0).all() and np.allclose(table.sum(-1), 1)


@pytest.mark.parametrize("id", ["Tiger-v0", "RiverSwim-v0", "Hallway-v0"])
def test_episodes_follow_the_tables(id):
    many = vector(id, 2000)
    world, obs = many.world, many.reset()
    model = world.model
    seen = np.bincount(obs, minlength=model.view.shape[-1]) / 2000
    assert seen == pytest.approx(model.start @ model.first_view, abs=0.05)
    for action in range(len(model.reward)):
        many.reset()
        step = many.step(np.full(2000, action))
        after = model.start @ model.transition[action] @ model.view[action]
        shown = np.bincount(step.next_obs, minlength=len(after)) / 2000
        assert shown == pytest.approx(after, abs=0.05)
        assert step.reward.mean() == pytest.approx(model.start @ model.reward[action], abs=3.0)
        assert step.terminated.mean() == pytest.approx(model.start @ model.ends[action], abs=0.05)


def test_a_policy_with_a_memory_gets_the_optimum_of_the_hallway():
    env = single("Hallway-v0").unwrapped
    returns = []
    for cell in range(7):
        env.reset(seed=0)
        env.state = {"state": np.array([cell]), "seen": np.array([0]), "time": np.array([0])}
        place = {0: 0, 6: 6}.get(cell)
        total, moves, over = 0.0, 0, False
        while not over:
            action = 0 if place is None else 2 if place == 2 else int(place < 2)
            seen, reward, over, *_ = env.step(action)
            total, moves = total + reward, moves + 1
            if place is not None:
                place += {0: -1, 1: 1, 2: 0}[action]
            elif seen == 0 or moves == 4:
                place = 0 if seen == 0 else 1
        returns.append(total)
    assert np.mean(returns) == pytest.approx(env.optimum)


def test_horizons_end_episodes():
    env = single("Tiger-v0", horizon=3)
    env.reset(seed=0)
    assert [env.step(0)[2:4] for _ in range(3)] == [(False, False)] * 2 + [(True, False)]
    assert env.unwrapped.optimum == pytest.approx(2.72)


def test_the_optimum_is_in_the_summary_the_report_and_the_list(tmp_path, capsys):
    best = single("Hallway-v0").unwrapped.optimum
    for spec, optimum in (("Hallway-v0:ppo", best), ("CartPole-v1:ppo_none", None)):
        outcome = tiny_run(tmp_path, spec, "training.total_timesteps=64")
        assert outcome.summary["optimum"] == optimum
        files = write_report(RunDirectory(outcome.run.path))
        text = next(file for file in files if file.suffix == ".md").read_text()
        assert ("| optimum | 0.793 |" in text) == (optimum is not None)
    assert main(["envs", "hallway", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["optimum"] == best
    assert main(["envs", "hallway"]) == 0
    assert "0.793" in capsys.readouterr().out
    assert main(["envs", "pendulum"]) == 0
    assert "optimum" not in capsys.readouterr().out
