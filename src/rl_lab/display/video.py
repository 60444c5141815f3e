"""Films: frames become an MP4 or a GIF while they arrive, and the file appears when it is whole."""

import importlib.util
import math
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol
from uuid import uuid4

import numpy as np

from rl_lab.core.batch import Array
from rl_lab.core.errors import UserError
from rl_lab.records.commit import TEMPORARY, make_directory

SUFFIXES = (".mp4", ".gif")
USUAL_FPS = 30.0  # of an environment that does not say how fast it is shown
GIF_BYTES = 64 * 2**20  # of frames that a long GIF keeps in memory
GIF_PIXELS = 400  # width and height of a long GIF, at most
CAPTION = 18  # rows of pixels of a line of text
MOVING_FPS = 15  # of a GIF that is made of a film
GIF_FPS = 50  # a faster GIF is shown by many viewers at 10 frames per second


class Encoder(Protocol):
    """What turns frames [H, W, 3], bytes in color and all of one size, into a file."""

    def add(self, frame: Array) -> None:
        """The next frame."""

    def close(self) -> None:
        """There are no more: the file is whole after this."""

    def abandon(self) -> None:
        """Write no more, whatever there is."""


def film_suffix() -> str:
    """The kind of film that can be written here: `.mp4` where there is a choice."""
    for suffix in SUFFIXES:
        if _is_installed(suffix):
            return suffix
    raise UserError("no videos without Pillow: pip install 'rl-lab[plots]'")


def check_film(file: Path) -> None:
    """Refuse a film that could not be written, before anything is made for it."""
    suffix = file.suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(f"'{file}' is not a video: its name must end in .mp4 or .gif")
    if file.is_dir():
        raise UserError(f"'{file}' is a folder: name a file for the video")
    if not _is_installed(suffix):
        needed = {
            ".mp4": "imageio-ffmpeg: pip install 'rl-lab[video]', or write a .gif",
            ".gif": "Pillow: pip install 'rl-lab[plots]'",
        }
        raise UserError(f"'{file}' needs {needed[suffix]}")


@contextmanager
def filming(file: Path, fps: float = USUAL_FPS) -> Iterator[Callable[[Array], None]]:
    """A function that takes the frames of a film [H, W, 3], one after the other.

    An MP4 is encoded while it is filmed; no frame is kept. A GIF needs all its frames at the end:
    they are shrunk to 400 pixels, of more than 50 frames per second some are left out, and when 64
    MB are full, every second frame goes and the others are shown twice as long.

    It is written beside its place and moved there when it is whole. After an error, or without a
    frame, nothing is left behind, and a film that was there before stays.
    """
    check_film(file)
    draft = file.parent / f"{TEMPORARY}{uuid4().hex}{file.suffix.lower()}"
    encoder: Encoder | None = None
    first: tuple[int, ...] = ()

    def add(frame: Array) -> None:
        nonlocal encoder, first
        with _write_errors_explained(file):
            if encoder is None:
                make_directory(file.parent)
                encoder, first = _encoder(draft, fps), frame.shape
            if frame.shape != first:
                raise UserError(f"a video has frames of one size, not {first} and {frame.shape}")
            encoder.add(frame)

    try:
        yield add
        if encoder is not None:
            with _write_errors_explained(file):
                encoder.close()
                draft.replace(file)
    finally:
        if encoder is not None:
            encoder.abandon()
            draft.unlink(missing_ok=True)  # there is one only if something went wrong


def whole_film(frames: Iterable[Array], suffix: str, fps: float) -> bytes:
    """Every frame [H, W, 3] as it is: the bytes of a film. The same frames are the same bytes."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / f"film{suffix}"
        encoder = _encoder(file, fps, bounded=False)
        for frame in frames:
            encoder.add(frame)
        encoder.close()
        return file.read_bytes()


def captioned(picture: Array, text: str) -> Array:
    """A picture [H, W, 3] with a line of text above it."""
    from PIL import Image, ImageDraw

    strip = Image.new("RGB", (picture.shape[1], CAPTION))
    ImageDraw.Draw(strip).text((4, 3), text.replace("·", "|"), fill=(255, 255, 255))
    return np.concatenate([np.asarray(strip), picture])


def as_gif(file: Path) -> tuple[bytes, int, int]:
    """A film as the bytes of a GIF of at most 400 pixels, its width and its height."""
    from PIL import Image

    if file.suffix == ".gif":
        data = file.read_bytes()
        with Image.open(file) as image:
            return data, *image.size
    import imageio_ffmpeg

    with TemporaryDirectory() as folder:
        gif = Path(folder) / "film.gif"
        small = f"scale='min({GIF_PIXELS},iw)':'min({GIF_PIXELS},ih)'"
        shape = f"fps={MOVING_FPS},{small}:force_original_aspect_ratio=decrease"
        command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(file)]
        command += ["-vf", shape, "-threads", "1", str(gif)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)  # keys are not for ffmpeg
        return as_gif(gif)


def picture_of(rendered: object, id: str) -> Array:
    """What `render` returned as [H, W, 3] bytes; gray becomes color, transparency goes."""
    picture = np.asarray(rendered)
    if picture.dtype != np.uint8 or picture.ndim not in (2, 3):
        raise UserError(f"'{id}' cannot be recorded: its render() gives {_described(rendered)}")
    if picture.ndim == 2:
        picture = picture[..., None]
    return np.repeat(picture, 3, 2) if picture.shape[2] == 1 else picture[..., :3]


def _described(rendered: object) -> str:
    if isinstance(rendered, np.ndarray):
        return f"{rendered.dtype} of the shape {rendered.shape}, no picture"
    return f"a {type(rendered).__name__}, no picture"


def _is_installed(suffix: str) -> bool:
    return importlib.util.find_spec("imageio_ffmpeg" if suffix == ".mp4" else "PIL") is not None


@contextmanager
def _write_errors_explained(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error).partition("\n")[0]
        raise UserError(f"cannot write {file}: {reason}") from error


def _encoder(file: Path, fps: float, *, bounded: bool = True) -> Encoder:
    return _Mp4(file, fps) if file.suffix == ".mp4" else _Gif(file, fps, bounded=bounded)


class _Mp4:
    """H.264, by a program of its own to which every frame goes at once."""

    def __init__(self, file: Path, fps: float) -> None:
        self.file, self.fps = file, fps
        self.writer: Any = None

    def add(self, frame: Array) -> None:
        height, width = (size % 2 for size in frame.shape[:2])  # H.264 wants even sizes
        frame = np.pad(frame, ((0, height), (0, width), (0, 0)))
        if self.writer is None:
            self.writer = self._start(frame)
        self.writer.send(np.ascontiguousarray(frame))

    def close(self) -> None:
        self.writer.close()
        if not self.file.exists() or not self.file.stat().st_size:
            raise OSError("the encoder failed")

    def abandon(self) -> None:
        if self.writer is not None:
            self.writer.close()  # waits until its program has ended

    def _start(self, frame: Array) -> Any:
        import imageio_ffmpeg  # brings a program of its own: optional

        writer = imageio_ffmpeg.write_frames(
            str(self.file),
            frame.shape[1::-1],
            fps=self.fps,
            macro_block_size=2,
            output_params=["-threads", "1", "-bitexact"],  # the same film is the same bytes
        )
        writer.send(None)
        return writer


class _Gif:
    """Frames in memory until the end; `bounded` as `filming` says."""

    def __init__(self, file: Path, fps: float, *, bounded: bool) -> None:
        self.file, self.fps, self.bounded = file, fps, bounded
        self.every = math.ceil(fps / GIF_FPS) if bounded else 1  # this many frames, one is kept
        self.seen = 0
        self.kept: list[Any] = []

    def add(self, frame: Array) -> None:
        from PIL import Image  # comes with matplotlib

        if self.seen % self.every == 0:
            image = Image.fromarray(frame)
            times = math.ceil(max(image.size) / GIF_PIXELS)
            self.kept.append(image.reduce(times) if self.bounded and times > 1 else image)
            width, height = self.kept[0].size
            if self.bounded and len(self.kept) * width * height * 3 > GIF_BYTES:
                del self.kept[1::2]
                self.every *= 2
        self.seen += 1

    def close(self) -> None:
        first, *rest = self.kept
        shown = 10 * round(100 * self.every / self.fps)  # milliseconds; a GIF counts hundredths
        first.save(self.file, "GIF", save_all=True, append_images=rest, duration=shown, loop=0)

    def abandon(self) -> None:
        self.kept = []
