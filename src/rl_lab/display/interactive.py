"""A chart in a page: its still SVG, and data for the script of ours that makes it interactive.

The script (`interactive.js`) stands in the page itself, which requests nothing from anywhere: its
content security policy allows this script by its hash, and no other.
"""

import html
import json
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from rl_lab.display import svg
from rl_lab.display.chart import DASHES, Array, Chart, Line, to_svg

DIGITS = 6  # of a number in the page
COLORS = " ".join(f"--c{place}: {color};" for place, color in enumerate(svg.COLORS))
DARK = ("#6ea8fe", "#ff922b", "#69db7c", "#cc5de8", "#f06595", "#3bc9db", "#ffd43b", "#ced4da")
DARK_COLORS = " ".join(f"--c{place}: {color};" for place, color in enumerate(DARK))
STYLE = f"""
:root {{ {COLORS} --rule: {svg.RULE}; --grey: {svg.GREY}; --ground: #fff; }}
@media (prefers-color-scheme: dark) {{
  :root {{ {DARK_COLORS} --rule: #30363d; --grey: #9aa7b4; --ground: #14191f; }}
}}
.still svg {{ max-width: 100%; height: auto }}
.bar {{ display: flex; flex-wrap: wrap; gap: 0.4rem 1.2rem; align-items: center;
       font-size: 0.85rem; color: var(--grey); margin: 0.5rem 0 }}
.bar input {{ vertical-align: middle }}
.panels {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr));
          gap: 1.2rem 1.5rem }}
.panel {{ position: relative; min-width: 0 }}
.panel:only-child {{ max-width: 44rem }}
.panel h3 {{ font-size: 0.95rem; margin: 0 }}
.panel .unit {{ font-size: 0.75rem; color: var(--grey); margin: 0 }}
.panel .unit.x {{ text-align: center }}
.panel svg {{ display: block; width: 100%; height: auto; touch-action: pan-y; cursor: crosshair }}
.panel svg text {{ font-size: 11px; fill: var(--grey) }}
.panel .rule {{ stroke: var(--rule) }}
.panel .axis {{ stroke: var(--grey) }}
.panel .cross {{ stroke: var(--grey); stroke-dasharray: 3 3; display: none }}
.panel .window {{ fill: var(--grey); opacity: 0.2; display: none }}
.legend {{ display: flex; flex-wrap: wrap; gap: 0.2rem 0.8rem }}
.legend button, .bar button {{ font: inherit; font-size: 0.8rem; color: inherit; background: none;
                              border: 0; padding: 0.1rem 0; cursor: pointer }}
.bar button {{ border: 1px solid var(--rule); border-radius: 4px; padding: 0.1rem 0.6rem }}
.bar button:disabled {{ opacity: 0.4; cursor: default }}
.legend button::before, .readout span::before {{ content: ""; display: inline-block; width: 1.1em;
  height: 0.25em; margin-right: 0.4em; vertical-align: middle; background: var(--line) }}
.legend button[aria-pressed="false"] {{ opacity: 0.4; text-decoration: line-through }}
.readout {{ position: absolute; top: 2.6rem; right: 1rem; font-size: 0.75rem; pointer-events: none;
           display: flex; flex-direction: column; background: var(--ground); opacity: 0.94;
           border-radius: 4px; box-shadow: 0 0 0 1px var(--rule); padding: 0.25rem 0.5rem }}
.readout:empty {{ display: none }}
"""


def figure(chart: Chart) -> str:
    """The element of a page: the still picture, and the data beside it."""
    still = f'<div class="still">{to_svg(chart)}</div>'
    return f'<figure class="plot">{still}{data_block(to_data(chart))}</figure>'


def data_block(data: Mapping[str, Any]) -> str:
    """JSON in a page: no text in it can end its element or be read as markup."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return f'<script type="application/json">{text}</script>'


def to_data(chart: Chart) -> dict[str, Any]:
    """The chart as JSON; what is not finite is null."""
    return {
        "title": svg.plain(chart.title),
        "note": svg.plain(chart.note),
        "panels": [
            {
                "title": svg.plain(panel.title),
                "xLabel": svg.plain(panel.x_label),
                "yLabel": svg.plain(panel.y_label),
                "yRange": panel.y_range,
                "lines": [_line(line) for line in panel.lines if len(line.x)],
            }
            for panel in chart.panels
        ],
    }


@cache
def script() -> str:
    """The text of the script."""
    return Path(__file__).with_suffix(".js").read_text(encoding="utf-8")


def policy() -> str:
    """What the page may do: our script, styles, and pictures that are in the page itself."""
    digest = b64encode(sha256(script().encode()).digest()).decode()
    return html.escape(
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data: 'self'; "
        f"media-src data: 'self'; script-src 'sha256-{digest}'"
    )


def _line(line: Line) -> dict[str, Any]:
    low, high = line.band or (None, None)
    place = line.color // len(svg.COLORS) % len(DASHES)
    return {
        "label": svg.plain(line.label),
        "color": line.color % len(svg.COLORS),
        "dash": DASHES[place],
        "thin": line.thin,
        "x": _numbers(line.x),
        "y": _numbers(line.y),
        **({} if low is None or high is None else {"low": _numbers(low), "high": _numbers(high)}),
    }


def _numbers(values: Array) -> list[float | int | None]:
    """Short numbers: a page of a hundred curves can still be sent by mail."""
    rounded = [float(f"{value:.{DIGITS}g}") for value in np.asarray(values, float)]
    return [
        None if not np.isfinite(value) else int(value) if value.is_integer() else value
        for value in rounded
    ]
