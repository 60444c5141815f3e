"""Pictures of a run in training: drawn by matplotlib without a screen, one file each."""

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from rl_lab.core.errors import UserError
from rl_lab.core.picture import Bars, Contour, Layer, Lines, Picture, Points
from rl_lab.records.commit import write_atomically
from rl_lab.records.sinks import Sink

INCHES = 5.0
LEVELS = 20  # lines of equal height


class PictureSink(Sink):
    """Writes `NAME-STEP.png` into a folder of the run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def draw(self, step: int, pictures: Mapping[str, Picture]) -> None:
        """One file for each picture; a resumed run writes the same ones again."""
        for name, picture in pictures.items():
            write_atomically(self.folder / f"{name}-{step:012d}.png", render(picture))


def render(picture: Picture) -> bytes:
    """The bytes of a PNG file."""
    try:
        # Not pyplot: that keeps every figure alive, and may look for a screen.
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:  # it is optional, and slow to import
        raise UserError("no pictures without matplotlib: pip install 'rl-lab[plots]'") from error
    figure = Figure(figsize=(INCHES, INCHES), layout="constrained")
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
                colour = f"C{index}" if layer.labels else "C0"
                axes.plot(path[:, 0], path[:, 1], color=colour, linewidth=1.0, label=label)
            if layer.labels:
                axes.legend()
        case Points():
            axes.scatter(layer.places[:, 0], layer.places[:, 1], color="tab:red", s=12, zorder=3)
        case Bars():
            axes.bar(list(layer.labels), list(layer.heights))
