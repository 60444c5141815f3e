"""A dataset as transitions, as chunks, and in numbers: against files read in plain Python."""

import os

import numpy as np
import pytest
import torch

from properties import given, settings, st
from rl_lab.buffers import facts
from rl_lab.buffers.disk import DiskConfig, DiskReplay
from rl_lab.buffers.offline import OfflineConfig, OfflineReplay
from rl_lab.buffers.replay_buffer import UniformConfig, UniformReplay
from rl_lab.buffers.union import UnionConfig, UnionReplay
from rl_lab.core.errors import UserError
from rl_lab.core.protocols import Chunks, Dataset, Replay
from rl_lab.core.state import join, split
from rl_lab.core.tree import named_leaves
from rl_lab.networks.normalizer import make_normalizer
from rl_lab.run.session import resume
from tiny_runs import run_hash, tiny_run
from transition_stream import PARTS, SPEC, Stream, setup, told

EPISODE = st.tuples(st.integers(1, 6), st.sampled_from(["terminated", "truncated", "cut"]))
FILES = st.lists(st.lists(EPISODE, min_size=1, max_size=4), min_size=1, max_size=4)


def write(folder, files):
    """One file for each list of episodes; the rows of each episode, as plain lists."""
    episodes, frame = [], 0
    for number, inside in enumerate(files):
        rows = []
        for length, end in inside:
            flags = [(step == length - 1 and end) for step in range(length)]
            made = [
                {
                    "obs": [number, 0, frame + step],
                    "action": (frame + step) % 1000,
                    "reward": float(frame + step) / 4,
                    "terminated": flag == "terminated",
                    "truncated": flag == "truncated",
                    "next_obs": [number, 0, frame + step + 1],
                }
                for step, flag in enumerate(flags)
            ]
            frame += length + 10  # no frame is in two episodes
            episodes.append(made)
            rows += made
        arrays = {key: np.array([row[key] for row in rows]) for key in rows[0]}
        np.savez(folder / f"{number:03d}.npz", **arrays)
    return episodes


def offline(path, spec=SPEC, **options):
    return OfflineReplay(OfflineConfig(path=str(path), **options), setup(spec, num_envs=3))


def windows(episodes, n_step):
    """Every window of n steps, as `told` has them."""
    found = []
    for episode in episodes:
        for first in range(len(episode)):
            rows = episode[first : first + n_step]
            rewards = [row["reward"] for row in rows] + [0.0] * (n_step - len(rows))
            begin, last = rows[0], rows[-1]
            flags = [float(last["terminated"]), float(last["truncated"])]
            found.append(
                (
                    *[float(each) for each in begin["obs"]],
                    float(begin["action"]),
                    *rewards,
                    *flags,
                    *[float(each) for each in last["next_obs"]],
                    float(len(rows)),
                )
            )
    return sorted(found)


@settings(max_examples=25, deadline=None)
@given(FILES, st.integers(1, 4))
def test_transitions_are_those_of_the_files(tmp_path_factory, files, n_step):
    folder = tmp_path_factory.mktemp("data")
    episodes = write(folder, files)
    buffer = offline(folder)
    every = np.arange(len(buffer))
    batch = buffer.as_tensors(buffer.transitions(every, n_step), (len(every),))
    assert told(batch, n_step) == windows(episodes, n_step)
    assert isinstance(buffer, Replay) and isinstance(buffer, Chunks) and isinstance(buffer, Dataset)
    drawn = buffer.sample(64, 8, n_step=n_step)
    assert drawn["obs"].shape == (8, 64, 3)
    flat = {key: rows.flatten(0, 1) for key, rows in drawn.items()}
    assert set(told(flat, n_step)) <= set(windows(episodes, n_step))


@settings(max_examples=25, deadline=None)
@given(FILES, st.integers(1, 4), st.integers(1, 5), st.integers(0, 3))
def test_chunks_repeat_what_is_at_the_edges_of_episodes(
    tmp_path_factory, files, past, future, before
):
    folder = tmp_path_factory.mktemp("data")
    episodes = write(folder, files)
    buffer = offline(folder)
    expected = {}
    for rows in episodes:
        for step, row in enumerate(rows):
            frames = [rows[max(at, 0)]["obs"] for at in range(step - past + 1, step + 1)]
            places = range(step - before, step + future)
            actions = [rows[min(max(at, 0), len(rows) - 1)]["action"] for at in places]
            real = [0 <= at < len(rows) for at in places]
            expected[tuple(row["obs"])] = (frames, actions, real)
    found = buffer.read_chunks(np.arange(len(buffer)), past, future, before=before)
    assert len(found["obs"]) == sum(map(len, episodes))
    drawn = buffer.chunks(16, past, future, 3, before=before)
    assert drawn["obs"].shape == (3, 16, past, 3)
    assert drawn["action"].shape == drawn["mask"].shape == (3, 16, before + future)
    for batch in (found, {key: rows.flatten(0, 1).numpy() for key, rows in drawn.items()}):
        for obs, action, mask in zip(batch["obs"], batch["action"], batch["mask"], strict=True):
            told_of = (obs.tolist(), action.tolist(), mask.tolist())
            assert told_of == expected[tuple(obs[-1].tolist())]


@settings(max_examples=25, deadline=None)
@given(FILES, st.sampled_from([1, 100, facts.PIECE]))
def test_numbers_of_a_dataset(tmp_path_factory, files, piece):
    folder = tmp_path_factory.mktemp("data")
    episodes = write(folder, files)
    buffer = offline(folder)
    patched = pytest.MonkeyPatch()
    with patched.context() as patch:
        patch.setattr(facts, "PIECE", piece)
        moments, (low, high) = buffer.observation_statistics(), buffer.action_range()
        returns = buffer.episode_returns()
    frames = np.array([frame for rows in episodes for frame in seen(rows)], np.float64)
    assert moments.count == len(frames)
    assert moments.mean == pytest.approx(frames.mean(0))
    assert moments.std == pytest.approx(frames.std(0))
    actions = [row["action"] for rows in episodes for row in rows]
    assert (low, high) == (min(actions), max(actions))
    whole = [rows for rows in episodes if rows[-1]["terminated"] or rows[-1]["truncated"]]
    assert returns.tolist() == [sum(row["reward"] for row in rows) for rows in whole]


def seen(rows):
    return [row["obs"] for row in rows] + [rows[-1]["next_obs"]]


def test_numbers_of_what_a_disk_buffer_wrote(tmp_path, monkeypatch):
    """Two environments, dict observations, and an oldest episode of which a part is gone."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    stream = Stream(2, seed=3, spec=PARTS)
    written = DiskReplay(
        DiskConfig(folder=str(tmp_path), capacity=1000, segment=1000), setup(PARTS)
    )
    written.add(stream.trajectory(61))
    written.state_dict()  # the newest step stays in the checkpoint
    for capacity in (10**12, 60):  # all, or the last 30 of 60 vector steps
        buffer = offline(tmp_path, PARTS, capacity=capacity)
        assert len(buffer) == min(capacity, 120)
        expected, frames = {}, []
        for env, rows in enumerate(stream.rows):
            rows = rows[:60]
            held = rows[-(len(buffer) // 2) :]
            for number in range(len(rows) - len(held), len(rows)):
                frames.append(rows[number]["obs"])
                last = number == 59 or rows[number]["fragment"] != rows[number + 1]["fragment"]
                if last:
                    frames.append(rows[number]["next_obs"])
            episodes = {}
            for number, row in enumerate(rows):
                episodes.setdefault(row["fragment"], []).append((number, row))
            for inside in episodes.values():
                begins, ends = inside[0][0] >= 60 - len(held), inside[-1][1]
                begins = begins and (inside[0][0] > 60 - len(held) or len(held) == 60)
                if begins and (ends["terminated"] or ends["truncated"]):
                    total = sum(row["reward"] for _, row in inside)
                    expected[inside[-1][0], env] = total
        assert buffer.episode_returns().tolist() == [expected[key] for key in sorted(expected)]
        moments = buffer.observation_statistics()
        assert moments["camera"].count == len(frames)
        assert moments["arm/speed"].mean == pytest.approx(np.mean(frames, 0))
        low, high = buffer.action_range()
        held = [row["action"] for rows in stream.rows for row in rows[:60][-(len(buffer) // 2) :]]
        assert (low[0], high[0], low[1], high[1]) == (
            *(min(held), max(held)),
            *(-max(held), -min(held)),
        )


def test_a_policy_carries_the_statistics_of_its_dataset(tmp_path):
    write(tmp_path, [[(5, "terminated"), (3, "cut")]])
    moments = offline(tmp_path).observation_statistics()
    normalizer = make_normalizer("running", SPEC.observation)
    normalizer.set_statistics(moments)
    frame = torch.tensor(moments.mean + 2 * np.array([1, 1, moments.std[2]]), dtype=torch.float32)
    assert normalizer(frame)[2].item() == pytest.approx(2, rel=1e-4)
    loaded = make_normalizer("running", SPEC.observation)
    loaded.load_state_dict(normalizer.state_dict())
    assert torch.equal(loaded(frame), normalizer(frame))
    normalizer.update_statistics(torch.full((9, 3), 1e3))  # the dataset keeps its own
    assert moments.count == 10 and loaded.moments.count == 10
    unchanged = make_normalizer("off", SPEC.observation)
    unchanged.set_statistics(moments)
    assert torch.equal(unchanged(frame), frame)


def test_chunks_of_a_ring_that_is_full(tmp_path):
    """What was overwritten is before the oldest frame: that one is repeated."""
    stream = Stream(1, seed=0, ends=0.0)
    buffer = UniformReplay(UniformConfig(capacity=10), setup(num_envs=1))
    buffer.add(stream.trajectory(25))
    found = buffer.read_chunks(np.array([15, 16, 24]), 3, 2, before=1)
    assert found["obs"][..., 2].tolist() == [[15, 15, 15], [15, 15, 16], [22, 23, 24]]
    assert found["action"].tolist() == [[15, 15, 16], [15, 16, 17], [23, 24, 24]]
    assert found["mask"].tolist() == [[False, True, True], [True] * 3, [True, True, False]]


def test_a_union_of_data_and_replay(tmp_path):
    write(tmp_path, [[(20, "terminated")]])
    data, replay = offline(tmp_path), UniformReplay(UniformConfig(capacity=64), setup())
    others = {"data": data, "replay": replay}
    mixed = UnionReplay(UnionConfig(of={"data": 0.5, "replay": 0.5}), setup(others=others))
    made = Stream(2, seed=0).trajectory(10)
    assert not mixed.ready()
    mixed.add({**made, "reward": made["reward"] + 1000})
    assert (len(data), len(replay)) == (20, 20)  # it went past what is only read
    reward = mixed.sample(8, 5)["reward"]
    assert (reward[:, :4] < 1000).all() and (reward[:, 4:] >= 1000).all()
    assert mixed.chunks(8, 2, 3, 5)["action"].shape == (5, 8, 3)
    alone = UnionReplay(UnionConfig(of={"data": 1.0}), setup(others=others))
    with pytest.raises(UserError, match="union of data: all of them are only read"):
        alone.add(made)
    mixed.parts["data"] = object()  # of somebody else
    with pytest.raises(UserError, match="union: 'data' has no chunks of actions"):
        mixed.chunks(8, 2, 3)


def test_all_of_a_large_dataset_is_used_unless_told_otherwise(tmp_path):
    write(tmp_path, [[(20, "terminated")], [(20, "truncated")]])
    assert len(offline(tmp_path)) == 40 and len(offline(tmp_path, capacity=10)) == 10
    assert OfflineConfig(path="x").capacity > 10**9


def test_a_folder_that_grew_is_what_it_was_for_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: None)
    config = DiskConfig(folder=str(tmp_path), capacity=1000, segment=500)
    stream = Stream(2, seed=1)
    written = DiskReplay(config, setup())
    written.add(stream.trajectory(30))
    written.state_dict()
    buffer = offline(tmp_path)
    state = join(*split(buffer.state_dict()))
    before = buffer.last(10)
    written.add(stream.trajectory(30))
    written.state_dict()
    assert len(offline(tmp_path)) == 2 * len(buffer) + 2
    again = offline(tmp_path)
    again.load_state_dict(state)
    assert len(again) == len(buffer)
    assert torch.equal(again.last(10)["next_obs"], before["next_obs"])


@pytest.mark.parametrize("spec", [SPEC, PARTS], ids=["frames", "parts"])
@pytest.mark.parametrize("piece", [1, 300, facts.PIECE])
def test_in_memory_or_on_disk_it_is_the_same(tmp_path, monkeypatch, spec, piece):
    monkeypatch.setattr(os, "fsync", lambda file: None)
    monkeypatch.setattr("rl_lab.buffers.offline.PIECE", piece)
    stream = Stream(3, seed=5, spec=spec)
    config = DiskConfig(folder=str(tmp_path), capacity=1000, segment=700)
    written = DiskReplay(config, setup(spec, num_envs=3))
    for steps in (20, 1, 30):
        written.add(stream.trajectory(steps))
        stream.restart()  # cuts without a flag
    written.state_dict()
    near, far = offline(tmp_path, spec), offline(tmp_path, spec, ram=1)
    assert near.ring is not near.files and far.ring is far.files
    every = np.arange(len(near))
    for n_step in (1, 4):
        left, right = (
            list(named_leaves(each.as_tensors(each.transitions(every, n_step), (len(every),))))
            for each in (near, far)
        )
        pairs = zip(left, right, strict=True)
        assert all(torch.equal(one, other) for (_, one), (_, other) in pairs)
    for draw in (lambda each: each.sequences(7, 5, 2), lambda each: each.chunks(9, 3, 4)):
        left, right = draw(near), draw(far)
        pairs = zip(named_leaves(left), named_leaves(right), strict=True)
        assert all(torch.equal(one, other) for (_, one), (_, other) in pairs)
    state = join(*split(near.state_dict()))
    far.load_state_dict(state)  # more memory or less: the same run
    far.setup.rng.bit_generator.state = near.setup.rng.bit_generator.state
    assert torch.equal(far.sample(20)["reward"], near.sample(20)["reward"])


# ---------------------------------------------------------------- in runs


def pendulum(folder, episodes=4, length=50):
    """Made-up episodes in the units of policies that act in [-1, 1]."""
    rng = np.random.default_rng(0)
    for number in range(episodes):
        obs = rng.normal(size=(length + 1, 3)).astype(np.float32)
        np.savez(
            folder / f"{number}.npz",
            obs=obs,
            action=rng.uniform(-1, 1, (length, 1)).astype(np.float32),
            reward=-rng.random(length).astype(np.float32),
            terminated=np.zeros(length, np.bool_),
            truncated=np.arange(length) == length - 1,
        )


SMALL = [
    "network.actor.hidden_dims=[16]",
    "network.critic.hidden_dims=[16]",
    "algorithm.batch_size=8",
    "evaluation.every_steps=0",
    "evaluation.test_episodes=1",
    "checkpoint.every_updates=10",
]
LEARN = "{name: learn, type: offline, buffer: data, duration_updates: 30, hooks: [update]}"
ONLINE = "{name: play, buffer: mixed, duration_steps: 40, hooks: [collect, update]}"


@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_an_offline_phase_of_any_replay_algorithm(tmp_path, algorithm):
    data = tmp_path / "data"
    data.mkdir()
    pendulum(data)
    outcome = tiny_run(
        tmp_path / "runs",
        f"Pendulum-v1:{algorithm}",
        *SMALL,
        f"buffers={{data: {{type: offline, path: {data}}}}}",
        f"training.phases=[{LEARN}]",
    )
    assert (outcome.summary["updates"], outcome.summary["env_steps"]) == (30, 0)
    assert outcome.summary["status"] == "finished"


def test_offline_then_online_resumes_exactly(tmp_path, monkeypatch):
    data = tmp_path / "data"
    data.mkdir()
    pendulum(data)
    words = [
        "Pendulum-v1:sac",
        *SMALL,
        "algorithm.learning_starts=0",
        "checkpoint.every_steps=10",
        "training.total_timesteps=40",
        f"buffers={{data: {{type: offline, path: {data}}}, replay: {{type: uniform, capacity: 64}},"
        " mixed: {type: union, of: {data: 0.5, replay: 0.5}}}",
        f"training.phases=[{LEARN}, {ONLINE}]",
    ]
    outcome = tiny_run(tmp_path / "straight", *words)
    straight = run_hash(outcome.run)
    assert (outcome.summary["updates"], outcome.summary["env_steps"]) == (40, 40)
    for fault in (21, 60):  # in either phase
        monkeypatch.setenv("RL_LAB_FAULT", f"hook.after:error@{fault}")
        with pytest.raises(OSError, match="injected at hook"):
            tiny_run(tmp_path / f"broken{fault}", *words)
        monkeypatch.delenv("RL_LAB_FAULT")
        torch.manual_seed(123)
        outcome = resume("@last", root=tmp_path / f"broken{fault}")
        assert outcome.summary["resumes"] == 1
        assert run_hash(outcome.run) == straight


def test_collecting_into_a_dataset_is_refused_before_the_run(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    pendulum(data)
    words = [
        "Pendulum-v1:sac",
        *SMALL,
        f"buffers={{data: {{type: offline, path: {data}}}}}",
        "training.phases=[{name: play, buffer: data, hooks: [collect, update]}]",
    ]
    with pytest.raises(UserError, match=r"buffers\.data is only read: the phase 'play' cannot"):
        tiny_run(tmp_path / "runs", *words)
    assert not list((tmp_path / "runs").glob("*/config.yaml"))
