"""Films: what is written can be read back, while it is written nothing piles up or lies around."""

import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from film_files import read_gif, read_mp4
from rl_lab.core.errors import UserError
from rl_lab.display import video
from rl_lab.display.video import check_film, film_suffix, filming, whole_film


def frame(index: int, height: int = 48, width: int = 64) -> np.ndarray:
    """Grey that grows with the index, and a white column that moves to the right."""
    picture = np.full((height, width, 3), 2 * (index % 100), np.uint8)
    picture[:, index % width] = 255
    return picture


def film(file: Path, count: int, fps: float = 25.0, **size: int) -> Path:
    with filming(file, fps) as add:
        for index in range(count):
            add(frame(index, **size))
    return file


@pytest.mark.needs("imageio_ffmpeg")
def test_an_mp4_has_every_frame_and_even_sizes(tmp_path):
    shown = read_mp4(film(tmp_path / "a.MP4", 12, height=47, width=63), 48, 64)
    assert len(shown) == 12
    means = shown[:, :47, :63].mean((1, 2, 3))
    assert (np.diff(means) > 0.5).all()  # in their order
    assert shown[:, 47].max() < 40  # what was added is black


@pytest.mark.needs("imageio_ffmpeg")
def test_an_mp4_is_encoded_while_it_is_filmed(tmp_path):
    film(tmp_path / "before.mp4", 1)  # what is imported is not counted
    tracemalloc.start()
    film(tmp_path / "a.mp4", 200, height=240, width=240)  # 35 MB of frames
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * 2**20


def test_a_gif_has_every_frame_at_its_pace(tmp_path):
    frames, shown = read_gif(film(tmp_path / "a.gif", 12, fps=30))
    assert len(frames) == 12 and frames[0].shape == (48, 64, 3)
    assert set(shown) == {30}  # hundredths: the nearest to 33 milliseconds
    assert [int(each[0, 60, 0]) for each in frames] == [2 * index for index in range(12)]


def test_a_fast_gif_leaves_frames_out_instead_of_becoming_slow(tmp_path):
    # 100 frames per second would be 10 ms each: every second one is shown for 20.
    frames, shown = read_gif(film(tmp_path / "a.gif", 9, fps=100))
    assert [int(each[0, 60, 0]) for each in frames] == [0, 4, 8, 12, 16] and set(shown) == {20}


def test_a_long_gif_stays_small_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(video, "GIF_BYTES", 8 * 48 * 64 * 3)  # eight frames
    frames, shown = read_gif(film(tmp_path / "a.gif", 40, fps=25))
    # After the 9th kept frame every second one goes: one of 2 from frame 8 on, one of 4 from 16 on,
    # one of 8 from 32 on.
    assert [int(each[0, 60, 0]) for each in frames] == [0, 16, 32, 48, 64]
    assert set(shown) == {8 * 40}  # it lasts as long


def test_a_large_gif_is_shrunk(tmp_path, monkeypatch):
    monkeypatch.setattr(video, "GIF_PIXELS", 30)
    frames, _ = read_gif(film(tmp_path / "a.gif", 3))
    assert frames[0].shape == (16, 22, 3)  # a third: 64 / 3 is less than 30
    whole = tmp_path / "whole.gif"
    whole.write_bytes(whole_film([frame(index) for index in range(3)], ".gif", 10.0))
    assert read_gif(whole)[0][0].shape == (48, 64, 3)


@pytest.mark.parametrize(
    "suffix", [pytest.param(".mp4", marks=pytest.mark.needs("imageio_ffmpeg")), ".gif"]
)
def test_it_appears_whole_or_not_at_all(tmp_path, suffix):
    file = tmp_path / "new" / "folder" / f"film{suffix}"
    with filming(file) as add:
        add(frame(0))
        assert not file.exists()
    before = file.read_bytes()
    with pytest.raises(RuntimeError, match="on purpose"), filming(file) as add:
        add(frame(1))
        raise RuntimeError("on purpose")
    with filming(file):
        pass  # no frame
    assert file.read_bytes() == before and list(file.parent.iterdir()) == [file]
    with pytest.raises(UserError, match="frames of one size"), filming(file) as add:
        add(frame(0))
        add(frame(1, height=50))
    assert list(file.parent.iterdir()) == [file]


def test_an_error_of_others_is_not_taken_for_one_of_the_film(tmp_path):
    with pytest.raises(FileNotFoundError), filming(tmp_path / "a.gif") as add:
        add(frame(0))
        (tmp_path / "nothing").read_bytes()


def test_what_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.gif").mkdir()
    with pytest.raises(UserError, match=r"cannot write .*file/a.gif: (Not a dir|File ex)"):
        film(tmp_path / "file" / "a.gif", 1)
    for name, said in (
        ("a.avi", "must end in .mp4 or .gif"),
        ("a", "must end in"),
        ("folder.gif", "is a folder"),
    ):
        with pytest.raises(UserError, match=said):
            check_film(tmp_path / name)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(UserError, match=r"needs imageio-ffmpeg: pip install 'rl-lab\[video\]'"):
        check_film(tmp_path / "a.mp4")
    assert film_suffix() == ".gif"
    monkeypatch.setitem(sys.modules, "PIL", None)
    for call in (film_suffix, lambda: check_film(tmp_path / "a.gif")):
        with pytest.raises(UserError, match=r"pip install 'rl-lab\[plots\]'"):
            call()
