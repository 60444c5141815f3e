"""Pictures of a run in training: drawn by matplotlib without a screen, one file each."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from rl_lab.core.batch import Array
from rl_lab.core.errors import UserError
from rl_lab.core.picture import Bars, Contour, Film, Layer, Lines, Picture, Points
from rl_lab.display.sinks import Sink
from rl_lab.display.video import film_suffix, whole_film
from rl_lab.records.commit import write_atomically

INCHES = 5.0
AROUND = 0.7  # inches for a film's title and axis
LEVELS = 20  # lines of equal height
FRAMES_PER_SECOND = 10.0
LEAST_PIXELS = 192  # width of a moving picture


class PictureSink(Sink):
    """Writes `NAME-STEP.png` into a folder of the run, and a moving picture for a film.

    That is an `.mp4` where imageio-ffmpeg is installed, else a `.gif`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def draw(self, step: int, pictures: Mapping[str, Picture]) -> None:
        """One file for each picture; a resumed run writes the same ones again."""
        for name, picture in pictures.items():
            file = self.folder / f"{name}-{step:012d}.png"
            write_atomically(file, render(picture))
            for layer in picture.layers:
                if isinstance(layer, Film):
                    suffix, moving = render_film(layer)
                    write_atomically(file.with_suffix(suffix), moving)


def render(picture: Picture) -> bytes:
    """The bytes of a PNG file."""
    try:
        # Not pyplot: that keeps every figure alive, and may look for a screen.
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:  # it is optional, and slow to import
        raise UserError("no pictures without matplotlib: pip install 'rl-lab[plots]'") from error
    width = height = INCHES
    for layer in picture.layers:
        if isinstance(layer, Film):
            rows, columns, _ = contact_sheet(layer.strips).shape
            width = 3 * INCHES
            height = width * rows / columns + AROUND
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    for layer in picture.layers:
        _add(axes, layer)
    axes.set(title=picture.title, xlabel=picture.x_label, ylabel=picture.y_label)
    axes.set(xlim=picture.x_limits, ylim=picture.y_limits)
    file = BytesIO()
    # Without the version in it, the same picture is the same bytes.
    FigureCanvasAgg(figure).print_png(file, metadata={"Software": None})
    return file.getvalue()


def _add(axes: Any, layer: Layer) -> None:
    """One layer, on top of those before."""
    match layer:
        case Contour():
            axes.contour(layer.x, layer.y, layer.z, LEVELS, linewidths=0.7)
        case Lines():
            labels = layer.labels or [""] * len(layer.paths)
            for index, (path, label) in enumerate(zip(layer.paths, labels, strict=True)):
                color = f"C{index}" if layer.labels else "C0"
                axes.plot(path[:, 0], path[:, 1], color=color, linewidth=1.0, label=label)
            if layer.labels:
                axes.legend()
        case Points():
            axes.scatter(layer.places[:, 0], layer.places[:, 1], color="tab:red", s=12, zorder=3)
        case Bars():
            axes.bar(list(layer.labels), list(layer.heights))
        case Film():
            sheet = contact_sheet(layer.strips)
            axes.imshow(sheet, interpolation="nearest")
            height = sheet.shape[0] / len(layer.strips)
            axes.set_yticks([height * (index + 0.5) for index in range(len(layer.strips))])
            axes.set_yticklabels(layer.labels)
            axes.set_xticks([])


def contact_sheet(strips: Sequence[Array]) -> Array:
    """Strips [T, C, H, W] as one image [rows, columns, 3]: time runs to the right."""
    rows = []
    for strip in strips:
        colors = strip if strip.shape[1] == 3 else np.repeat(strip.mean(1, keepdims=True), 3, 1)
        rows.append(np.concatenate(list(colors.transpose(0, 2, 3, 1)), axis=1))
    return np.clip(np.concatenate(rows), 0.0, 1.0)


def film_frames(film: Film) -> Array:
    """The strips side by side, frame by frame: [T, H, width, 3] in whole numbers to 255."""
    count = len(film.strips[0])
    sheets = [contact_sheet([strip[t : t + 1] for strip in film.strips]) for t in range(count)]
    return (np.stack(sheets) * 255).astype(np.uint8)


def render_film(film: Film, suffix: str | None = None) -> tuple[str, bytes]:
    """A moving picture: the suffix of its kind (what can be written here), and the bytes."""
    frames = film_frames(film)
    times = max(LEAST_PIXELS // frames.shape[2], 1)  # so that small ones can be seen
    frames = frames.repeat(times, 1).repeat(times, 2)
    suffix = suffix or film_suffix()
    return suffix, whole_film(frames, suffix, FRAMES_PER_SECOND)
