"""Stored recurrent states: they belong to their frames, through wraps and checkpoints."""

import os

import numpy as np
import pytest
import torch

from rl_lab.buffers.disk import DiskConfig, DiskReplay
from rl_lab.buffers.offline import OfflineConfig, OfflineReplay
from rl_lab.buffers.sequence import SequenceConfig, SequenceReplay
from rl_lab.core.errors import UserError
from rl_lab.core.state import join, split
from transition_stream import KEYS, Stream, setup


def made(capacity=40, num_envs=2, latents=True):
    config = SequenceConfig(capacity=capacity, latents=latents)
    return SequenceReplay(config, setup(num_envs=num_envs))


def marks(batch):
    """A state that says which frame it belongs to: the frame itself, and one more number."""
    return torch.cat([batch["obs"], batch["obs"][..., :1] + 5], -1)


def before(frames):
    """The marks of the frames before these: one step earlier in the same episode."""
    earlier = frames - torch.tensor([0.0, 0.0, 1.0])
    return marks({"obs": earlier})


def test_a_window_comes_with_the_state_before_it():
    buffer, stream = made(), Stream(2, seed=1, ends=0.2)
    known = 0
    for _ in range(40):
        buffer.add(stream.trajectory(3))
        batch = buffer.sequences(4, 3, 2)
        assert batch["index"].shape == (2, 3, 4)
        if "latent" in batch:
            latent = batch["latent"]
            assert latent.shape == (2, 4, 4)
            stored = (latent != 0).any(-1)
            assert torch.equal(latent[stored], before(batch["obs"][:, 0])[stored])
            assert not stored[batch["reset"][:, 0]].any()  # another episode was before it
            known += int(stored.sum())
        buffer.store_latents(batch["index"], marks(batch))
    assert buffer.ring.oldest > 0 and known > 50


def test_the_memory_of_states_is_counted_before_it_is_taken():
    config = SequenceConfig(capacity=40, latents=True)
    buffer = SequenceReplay(config, setup(num_envs=2, latent_size=4))
    without = SequenceReplay(SequenceConfig(capacity=40), setup(num_envs=2, latent_size=4))
    buffer.add(Stream(2, seed=1).trajectory(3))
    batch = buffer.sequences(4, 3)
    buffer.store_latents(batch["index"], marks(batch))
    assert buffer.bytes_needed - without.bytes_needed == buffer.latents.values.nbytes


@pytest.mark.parametrize("kind", ["append", "read", "folder", "file"])
def test_the_memory_of_states_is_counted_for_frames_in_files_too(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(os, "fsync", lambda file: None)
    trajectory = Stream(1, seed=1).trajectory(20)
    if kind == "file":
        arrays = {key: each[:, 0].numpy() for key, each in trajectory.items() if key in KEYS}
        np.savez(tmp_path / "a.npz", **arrays)
    else:
        written = DiskReplay(DiskConfig(folder=str(tmp_path), capacity=20), setup(num_envs=1))
        written.add(trajectory)
        written.state_dict()

    def opened(latents):
        options = {"capacity": 10, "latents": latents}
        made = setup(num_envs=1, latent_size=4)
        if kind in ("folder", "file"):
            return OfflineReplay(OfflineConfig(path=str(tmp_path), **options), made)
        return DiskReplay(DiskConfig(folder=str(tmp_path), mode=kind, **options), made)

    buffer, without = opened(True), opened(False)
    batch = buffer.sequences(4, 3)
    buffer.store_latents(batch["index"], marks(batch))
    assert buffer.bytes_needed - without.bytes_needed == buffer.latents.values.nbytes > 0


def test_before_the_first_frame_of_all_there_is_none():
    """The ring is full: at the place before its oldest frame lies the newest."""
    buffer, stream = made(capacity=10, num_envs=1), Stream(1, seed=1, ends=0.0)
    trajectory = stream.trajectory(10)
    buffer.add({**trajectory, "latent": marks(trajectory)})
    batch = buffer.sequences(50, 9)
    first = batch["obs"][0, 0, :, 2] == 0
    assert first.any() and not batch["latent"][0, first].any()


def test_every_row_but_final_ones_has_a_place_of_its_own():
    buffer, stream = made(), Stream(2, seed=1, ends=0.3)
    buffer.add(stream.trajectory(30))
    batch = buffer.sequences(200, 2)
    final = batch["terminated"] | batch["truncated"]
    assert torch.equal(batch["index"] == -1, final) and final.any()
    frames = {}
    rows = zip(batch["index"][~final].tolist(), batch["obs"][~final].tolist(), strict=True)
    for index, frame in rows:
        assert frames.setdefault(index, frame) == frame
    assert len(set(map(tuple, frames.values()))) == len(frames)


def test_states_of_the_collector_are_kept_and_new_rows_begin_without():
    buffer, stream = made(capacity=10, num_envs=1), Stream(1, seed=1, ends=0.0)
    trajectory = stream.trajectory(25)  # longer than the ring
    buffer.add({**trajectory, "latent": marks(trajectory)})
    batch = buffer.sequences(50, 1)
    assert torch.equal(batch["latent"][0], before(batch["obs"])[0, 0])
    buffer.add(stream.trajectory(4))  # nobody said anything about these
    batch = buffer.sequences(50, 1)
    late = batch["obs"][0, 0, :, 2] >= 26
    assert late.any() and not batch["latent"][0, late].any()
    assert torch.equal(batch["latent"][0, ~late], before(batch["obs"])[0, 0, ~late])


def test_states_of_rows_that_are_gone_are_not_written():
    buffer, stream = made(capacity=10, num_envs=1), Stream(1, seed=1, ends=0.0)
    buffer.add(stream.trajectory(6))
    index = buffer.sequences(8, 4)["index"]
    buffer.add(stream.trajectory(10))
    buffer.store_latents(index, torch.ones(*index.shape, 4))
    assert not buffer.sequences(50, 1)["latent"].any()


def test_saved_and_loaded_equals_never_saved():
    kept, moved, stream = made(), made(), Stream(2, seed=4, ends=0.2)
    for turn in range(30):
        trajectory = stream.trajectory(3)
        left, right = kept, moved
        for buffer in (left, right):
            buffer.add(trajectory)
        if turn % 4 == 0:
            state = join(*split(moved.state_dict()))
            rng = moved.setup.rng.bit_generator.state
            moved = made()
            moved.setup.rng.bit_generator.state = rng
            moved.load_state_dict(state)
        batches = [buffer.sequences(4, 3) for buffer in (kept, moved)]
        assert set(batches[0]) == set(batches[1])
        assert all(torch.equal(batches[0][key], batches[1][key]) for key in batches[0])
        for buffer, batch in zip((kept, moved), batches, strict=True):
            buffer.store_latents(batch["index"], marks(batch))
    saved = [buffer.state_dict()["latents"]["values"] for buffer in (kept, moved)]
    assert np.array_equal(*saved) and saved[0].any()


def test_a_buffer_without_states_says_so():
    buffer = made(latents=False)
    buffer.add(Stream(2, seed=1).trajectory(4))
    assert "index" not in buffer.sequences(2, 2)
    with pytest.raises(UserError, match="give it latents: true"):
        buffer.store_latents(torch.zeros(1), torch.zeros(1, 2))
