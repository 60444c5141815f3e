"""Datasets from files: every transition and every final frame, or one line about what is wrong."""

import os
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from rl_lab.buffers import offline as offline_module
from rl_lab.buffers.disk import DiskConfig, DiskReplay
from rl_lab.buffers.offline import OfflineConfig, OfflineReplay
from rl_lab.buffers.sequence import SequenceConfig, SequenceReplay
from rl_lab.core.errors import UserError
from rl_lab.core.spec import EnvSpec
from rl_lab.core.state import join, split
from transition_stream import PARTS, SPEC, Stream, box, setup

KEYS = ("obs", "action", "reward", "terminated", "truncated", "next_obs")


def offline(path, spec=SPEC, **options):
    return OfflineReplay(OfflineConfig(path=str(path), **options), setup(spec, num_envs=4))


def episode(steps, start, *, terminated=True):
    """Frames start, start + 1, …; action and reward of a step are its frame + 10."""
    t = np.arange(start, start + steps)
    ends = np.arange(steps) == steps - 1
    return {
        "obs": np.stack([t * 0, t * 0, t], -1).astype(np.float32),
        "action": t + 10,
        "reward": t + 10.0,  # float64, as most have it
        "terminated": ends & terminated,
        "truncated": ends & (not terminated),
        "next_obs": np.stack([t * 0, t * 0, t + 1], -1).astype(np.float32),
    }


def frames(buffer):
    """Every frame, once: number, previous action, reward, reset, terminated, truncated."""
    count = int(buffer.streams.next[0] - buffer.streams.usable()[0])
    batch = buffer.read_windows(np.array([0]), buffer.streams.usable()[:1], count)
    columns = [batch["obs"][..., 2], *(batch[key] for key in ("previous_action", "reward"))]
    columns += [batch[flag] for flag in ("reset", "terminated", "truncated")]
    return torch.stack([column.double() for column in columns], -1)[0, :, 0].tolist()


def test_files_by_hand(tmp_path):
    np.savez(tmp_path / "a.npz", **episode(2, 0))
    np.savez_compressed(tmp_path / "b.npz", **episode(1, 50, terminated=False))
    buffer = offline(tmp_path)
    assert len(buffer) == 3
    assert frames(buffer) == [
        [0, 0, 0, 1, 0, 0],
        [1, 10, 10, 0, 0, 0],
        [2, 11, 11, 0, 1, 0],
        [50, 0, 0, 1, 0, 0],
        [51, 60, 60, 0, 0, 1],  # the last frame of all is here too
    ]
    rows = buffer.last(3)
    assert rows["next_obs"][:, 2].tolist() == [1, 2, 51]
    assert buffer.sequences(4, 5)["obs"].shape == (1, 5, 4, 3)
    assert buffer.windows(3) == 3
    assert offline(tmp_path, within_episodes=True).windows(3) == 1
    assert frames(offline(tmp_path / "b.npz")) == [[50, 0, 0, 1, 0, 0], [51, 60, 60, 0, 0, 1]]
    assert len(offline(tmp_path, capacity=2)) == 2  # the last ones


def test_one_episode_with_its_final_frame_and_without_truncated(tmp_path):
    made = episode(3, 0)
    made["obs"] = np.concatenate([made["obs"], made.pop("next_obs")[-1:]])
    del made["truncated"]
    np.savez(tmp_path / "a.npz", **made)
    assert [row[0] for row in frames(offline(tmp_path))] == [0, 1, 2, 3]
    assert [row[4] for row in frames(offline(tmp_path))] == [0, 0, 0, 1]


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_several_episodes_need_their_final_frames(tmp_path, flag):
    """With one frame more than steps, the first frame of an episode would end the one before."""
    made = episode(4, 0)
    made["obs"] = np.concatenate([made["obs"], made.pop("next_obs")[-1:]])
    made[flag] = np.array([False, True, False, False])
    np.savez(tmp_path / "a.npz", **made)
    with pytest.raises(UserError, match=r"a.npz has several episodes and no 'next_obs'"):
        offline(tmp_path)


def test_a_gap_in_a_file_is_a_cut(tmp_path):
    made = {key: np.delete(each, 2, 0) for key, each in episode(5, 0).items()}
    np.savez(tmp_path / "a.npz", **made)
    told = frames(offline(tmp_path))
    assert [row[0] for row in told] == [0, 1, 2, 3, 4, 5]  # 2 is where the second step led to
    assert [row[3] for row in told] == [1, 0, 0, 1, 0, 0]
    assert [row[5] for row in told] == [0, 0, 1, 0, 0, 0]


def test_what_a_disk_buffer_wrote(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: None)
    stream = Stream(2, seed=1, spec=PARTS)
    config = DiskConfig(folder=str(tmp_path), capacity=1000, segment=1000)
    written = DiskReplay(config, setup(PARTS))
    there = SequenceReplay(SequenceConfig(capacity=1000), setup(PARTS))
    trajectory = stream.trajectory(60)
    written.add(trajectory)
    there.add(sliced(trajectory, 59))
    written.state_dict()
    there.end()
    buffer = offline(tmp_path, PARTS)  # with another number of environments
    assert len(buffer) == 59 * 2 and buffer.windows(5) == there.windows(5)
    left, right = buffer.sequences(8, 5, 3), there.sequences(8, 5, 3)
    assert torch.equal(left["obs"]["camera"], right["obs"]["camera"])
    assert all(torch.equal(left[key], right[key]) for key in left if key != "obs")
    state = join(*split(buffer.state_dict()))
    again = offline(tmp_path, PARTS)
    again.load_state_dict(state)
    again.setup.rng.bit_generator.state = buffer.setup.rng.bit_generator.state
    assert torch.equal(again.sequences(8, 5)["reward"], buffer.sequences(8, 5)["reward"])


def sliced(tree, steps):
    kept = {key: each for key, each in tree.items() if key in (*KEYS, "reset")}
    return {
        key: {name: part[:steps] for name, part in each.items()}
        if isinstance(each, dict)
        else each[:steps]
        for key, each in kept.items()
    }


def test_a_checkpoint_has_no_data_and_knows_its_dataset(tmp_path):
    np.savez(tmp_path / "a.npz", **episode(20, 0))
    buffer = offline(tmp_path, latents=True)
    batch = buffer.sequences(3, 4)
    buffer.store_latents(batch["index"], torch.ones(1, 4, 3, 2))
    state = join(*split(buffer.state_dict()))
    assert set(state) == {"fresh", "latents", "transitions", "checksum"}
    again = offline(tmp_path, latents=True)
    again.load_state_dict(state)
    again.setup.rng.bit_generator.state = buffer.setup.rng.bit_generator.state
    left, right = buffer.sequences(3, 4), again.sequences(3, 4)
    assert torch.equal(left["obs"], right["obs"]) and torch.equal(left["latent"], right["latent"])
    np.savez(tmp_path / "a.npz", **episode(20, 1))
    with pytest.raises(UserError, match="has changed since the checkpoint was made"):
        offline(tmp_path, latents=True).load_state_dict(state)


@pytest.mark.parametrize("row", [0, 9, 19])
@pytest.mark.parametrize(
    "column", ["obs", "action", "reward", "terminated", "truncated", "next_obs"]
)
@pytest.mark.parametrize("piece", [1, 150, offline_module.PIECE])
def test_whatever_changes_in_a_dataset_is_noticed(tmp_path, monkeypatch, column, row, piece):
    monkeypatch.setattr(offline_module, "PIECE", piece)
    made = episode(20, 0)
    np.savez(tmp_path / "a.npz", **made)
    state = offline(tmp_path).state_dict()
    offline(tmp_path).load_state_dict(state)
    flat = made[column][row : row + 1].reshape(-1)
    flat[-1] = not flat[-1] if flat.dtype == bool else flat[-1] + 1
    np.savez(tmp_path / "a.npz", **made)
    with pytest.raises(UserError, match="has changed since the checkpoint was made"):
        offline(tmp_path).load_state_dict(state)


def test_what_is_not_used_of_a_dataset_may_change(tmp_path):
    np.savez(tmp_path / "a.npz", **episode(20, 0))
    whole, part = offline(tmp_path).checksum, offline(tmp_path, capacity=7).checksum
    made = episode(20, 0)
    made["obs"][0] += 1  # long before the last seven
    np.savez(tmp_path / "a.npz", **made)
    assert offline(tmp_path).checksum != whole
    assert offline(tmp_path, capacity=7).checksum == part


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rewards": "reward"}, r"a.npz has no 'reward' \(did you mean 'rewards'"),
        ({"observation": "obs"}, r"a.npz has no 'obs'"),
        ({"next_obs": None}, r"a.npz has no 'next_obs'"),
        ({"obs": np.zeros((3, 4))}, r"'obs' is float64 \[3, 4\], Made-Up needs float32 \[3, 3\]"),
        ({"action": np.zeros(3)}, r"'action' is float64 \[3\], Made-Up needs int64 \[3\]"),
    ],
)
def test_files_that_do_not_fit(tmp_path, change, said):
    made = episode(3, 0)
    for name, value in change.items():
        if value is None:
            del made[name]
        else:
            made[name] = made.pop(value) if isinstance(value, str) else value
    np.savez(tmp_path / "a.npz", **made)
    with pytest.raises(UserError, match=said):
        offline(tmp_path)


def test_paths_that_lead_nowhere(tmp_path):
    with pytest.raises(UserError, match=r"nothing.npz is missing"):
        offline(tmp_path / "nothing.npz")
    with pytest.raises(UserError, match=r"has no .npz files"):
        offline(tmp_path)
    (tmp_path / "a.npz").write_bytes(b"text")
    with pytest.raises(UserError, match=r"a.npz is not an .npz file"):
        offline(tmp_path)
    with pytest.raises(ValueError, match="path must not be empty"):
        OfflineConfig()
    np.savez(tmp_path / "a.npz", **episode(3, 0))
    with pytest.raises(UserError, match="is only read: collect into another buffer"):
        offline(tmp_path).add({})


BOXED = EnvSpec("Boxed", box((3,)), box((1,)))  # actions from 0 to 1


def test_actions_in_other_units_are_refused(tmp_path):
    made = episode(3, 0) | {"action": np.array([[0.0], [0.5], [2.0]])}
    np.savez(tmp_path / "a.npz", **made)
    with pytest.raises(UserError, match="actions go from 0 to 2, the algorithm's from 0 to 1"):
        offline(tmp_path, BOXED)


def test_minari(monkeypatch):
    """A stand-in with the attributes of Minari's own classes: it is not among our packages."""
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(UserError, match=r"minari:x/y-v0 needs Minari: pip install"):
        offline("minari:x/y-v0", BOXED)
    made = episode(3, 0, terminated=False)
    played = SimpleNamespace(
        id=0,
        observations=np.concatenate([made["obs"], made["next_obs"][-1:]]),
        actions=np.array([[-2.0], [0.0], [2.0]], np.float32),
        rewards=made["reward"],
        terminations=made["terminated"],
        truncations=made["truncated"],
    )
    dataset = SimpleNamespace(
        total_steps=3,
        action_space=SimpleNamespace(low=np.array([-2.0]), high=np.array([2.0])),
        iterate_episodes=lambda: iter([played]),
    )
    library = ModuleType("minari")
    library.load_dataset = {"x/y-v0": dataset}.get
    monkeypatch.setitem(sys.modules, "minari", library)
    buffer = offline("minari:x/y-v0", BOXED)
    assert buffer.last(3)["action"].flatten().tolist() == [0.0, 0.5, 1.0]
    batch = buffer.read_windows(np.array([0]), np.array([0]), 4)
    assert batch["obs"][0, :, 0, 2].tolist() == [0, 1, 2, 3]
    assert batch["truncated"].flatten().tolist() == [False, False, False, True]
