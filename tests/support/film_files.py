"""Reading films back."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def read_mp4(file: Path, height: int, width: int) -> np.ndarray:
    """[T, height, width, 3]"""
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    words = [ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(file)]
    words += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run(words, capture_output=True, check=True).stdout
    return np.frombuffer(raw, np.uint8).reshape(-1, height, width, 3)


def read_gif(file: Path) -> tuple[list[np.ndarray], list[int]]:
    """Frames, and how long each is shown in milliseconds."""
    with Image.open(file) as film:
        frames, shown = [], []
        for index in range(film.n_frames):
            film.seek(index)
            frames.append(np.asarray(film.convert("RGB")))
            shown.append(film.info["duration"])
        return frames, shown
