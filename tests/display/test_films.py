"""Moving pictures: an MP4 where its writer is there, else a GIF."""

import subprocess
import sys
from io import BytesIO

import numpy as np
import pytest

from rl_lab.core.picture import Film, Picture
from rl_lab.display.pictures import PictureSink, film_frames, render_film


def film(frames: int = 4, size: int = 9) -> Film:
    """A bright square that moves over a dark one, beside its negative."""
    strip = np.zeros((frames, 3, size, size))
    for index in range(frames):
        strip[index, :, index : index + 3, index : index + 3] = 1.0
    return Film(["truth", "model"], [strip, 1 - strip])


def test_frames_are_strips_on_top_of_each_other():
    frames = film_frames(film())
    assert frames.shape == (4, 18, 9, 3) and frames.dtype == np.uint8
    assert frames[1, 1, 1, 0] == 255 and frames[1, 10, 1, 0] == 0


def test_an_mp4_shows_what_was_filmed(tmp_path):
    """Odd sizes included; every frame is there, and the same film is the same bytes."""
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    suffix, made = render_film(film())
    assert suffix == ".mp4" and made == render_film(film())[1]
    file = tmp_path / "film.mp4"
    file.write_bytes(made)
    words = [ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(file)]
    words += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run(words, capture_output=True, check=True).stdout
    shown = np.frombuffer(raw, np.uint8).reshape(4, 378, 190, 3)  # 21 times as large, and even
    middle = 21 * 2 + 10  # of the third pixel of the third row
    assert shown[2][middle, middle].min() > 200 > 55 > shown[0][middle + 21, middle + 21].max()


@pytest.mark.needs("matplotlib")
def test_without_the_writer_it_is_a_gif(tmp_path, monkeypatch):
    from PIL import Image

    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    suffix, made = render_film(film())
    assert suffix == ".gif"
    with Image.open(BytesIO(made)) as moving:
        assert moving.n_frames == 4 and moving.size == (189, 378)
    PictureSink(tmp_path).draw(7, {"it": Picture("it", [film()])})
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["it-000000000007.gif", "it-000000000007.png"]
