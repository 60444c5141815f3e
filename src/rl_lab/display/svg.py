"""SVG as text: escaped elements, axes ticks and short numbers. Pure functions, no dependency."""

import html
import math
from collections.abc import Iterable, Sequence

from rl_lab.records.formatting import visible

# Eight colors that stay apart for most color-blind readers.
COLORS = ("#1f6feb", "#d9480f", "#2b8a3e", "#862e9c", "#c2255c", "#0b7285", "#e67700", "#495057")
INK, GREY, RULE = "#1c2733", "#5b6875", "#e3e8ee"
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
CHARACTER, BOLD = 0.56, 0.68  # width of an average character, of the font size
UNITS = ((1e9, "B", 1e9), (1e6, "M", 1e6), (1e4, "k", 1e3))  # from where on, sign, size


def plain(text: str) -> str:
    """Text in one line, without what XML forbids or what steers a line."""
    return " ".join(visible(text.replace("\ufffe", "?").replace("\uffff", "?")).split())


def escaped(text: str) -> str:
    """Text that is no markup, and nothing that XML forbids."""
    return html.escape(plain(text))


def element(name: str, content: str = "", **attributes: object) -> str:
    """One element; `_` in a name stands for `-`. `content` is markup already."""
    words = "".join(
        f' {key.replace("_", "-")}="{_value(value)}"' for key, value in attributes.items()
    )
    return f"<{name}{words}>{content}</{name}>" if content else f"<{name}{words}/>"


def text(
    x: float,
    y: float,
    words: str,
    *,
    size: float = 12,
    anchor: str = "start",
    fill: str = INK,
    bold: bool = False,
) -> str:
    """Words with their baseline at a point."""
    weight = {"font_weight": 600} if bold else {}
    return element(
        "text", escaped(words), x=x, y=y, font_size=size, text_anchor=anchor, fill=fill, **weight
    )


def label(x: float, y: float, words: str, *, size: float = 12) -> str:
    """Words on a white ground: readable where lines cross them."""
    ground = element(
        "rect",
        x=x - 2,
        y=y - size + 1,
        width=width_of(words, size) + 6,
        height=size + 3,
        fill="#fff",
        opacity=0.8,
    )
    return ground + text(x, y, words, size=size)


def width_of(words: str, size: float = 12, *, bold: bool = False) -> float:
    """About how wide words are; rather more than less."""
    return (BOLD if bold else CHARACTER) * size * len(words)


def points(xs: Iterable[float], ys: Iterable[float]) -> str:
    """Coordinates of a polyline or a polygon."""
    return " ".join(f"{_value(x)},{_value(y)}" for x, y in zip(xs, ys, strict=True))


def document(width: float, height: float, title: str, content: Sequence[str]) -> str:
    """A whole picture on white; it may stand in a page or in a file of its own."""
    ground = element("rect", width=width, height=height, fill="#fff")
    parts = [element("title", escaped(title)), ground]
    return element(
        "svg",
        "\n".join(["", *parts, *content, ""]),
        xmlns="http://www.w3.org/2000/svg",
        width=width,
        height=height,
        viewBox=f"0 0 {_value(width)} {_value(height)}",
        font_family=FONT,
        role="img",
    )


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers from `low` to `high`."""
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return [low]
    rough = span / count
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * each for each in (1, 2, 2.5, 5, 10) if size * each >= 0.7 * rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [each * step for each in range(first, last + 1)]


def tick_labels(values: Sequence[float], *, short: bool = False) -> list[str]:
    """Tick values as text, all with the same decimals; `short` writes 20k for 20,000."""
    largest = max((abs(value) for value in values), default=0.0)
    if largest and not 1e-4 <= largest < 1e12:
        return [f"{value:.3g}" for value in values]
    unit, sign = next(
        ((size, sign) for start, sign, size in UNITS if short and largest >= start), (1.0, "")
    )
    scaled = [value / unit for value in values]
    decimals = next((d for d in range(7) if _exact(scaled, d)), 7)
    return [f"{value:,.{decimals}f}{sign}" if value else "0" for value in scaled]


def blend(share: float, first: str, last: str) -> str:
    """A color between two others."""
    pairs = zip(*(bytes.fromhex(each[1:]) for each in (first, last)), strict=True)
    share = min(max(share, 0.0), 1.0)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def _exact(values: Sequence[float], decimals: int) -> bool:
    return all(abs(value - round(value, decimals)) <= 1e-6 * abs(value or 1) for value in values)


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return html.escape(str(value))
