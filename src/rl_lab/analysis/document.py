"""A small document as data, and the same as Markdown or as one self-contained HTML page."""

import html
import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from rl_lab.display import interactive
from rl_lab.display.chart import Chart
from rl_lab.records.formatting import visible

STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --shade: #f2f5f8 }
@media (prefers-color-scheme: dark) { :root { --ink: #d5dde5; --shade: #1d242c } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem;
       color: var(--ink); background: var(--ground) }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2rem }
table { border-collapse: collapse; font-size: 0.9rem; margin: 0.5rem 0; display: block;
        overflow-x: auto }
th, td { border-bottom: 1px solid var(--rule); padding: 0.25rem 0.75rem; text-align: left }
pre { background: var(--shade); padding: 0.75rem; overflow-x: auto }
summary { cursor: pointer; margin: 1rem 0 }
figure { margin: 0.5rem 0 }
img, video { max-width: 100%; height: auto }
"""


@dataclass(frozen=True)
class Strong:
    """Text that stands out: the best of its kind."""

    text: str


Text = str | Strong


@dataclass(frozen=True)
class Heading:
    """The title of a section."""

    text: str


@dataclass(frozen=True)
class Paragraph:
    """Plain text."""

    text: str


@dataclass(frozen=True)
class Items:
    """A list of lines."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Grid:
    """A table."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Text]]


@dataclass(frozen=True)
class Code:
    """Lines to be typed or read as they are."""

    text: str


@dataclass(frozen=True)
class Media:
    """A picture or a film: its bytes go into the HTML, the Markdown names the file."""

    title: str
    file: str  # relative to the document
    data: bytes | None  # None: too large, the page names the file too


@dataclass(frozen=True)
class Drawing:
    """A chart: interactive in the HTML, a still picture without scripts; Markdown names a file."""

    title: str
    file: str  # relative to the document
    chart: Chart


@dataclass(frozen=True)
class More:
    """Further charts, which open on a click. Markdown leaves them out."""

    title: str
    chart: Chart


Block = More | Heading | Paragraph | Items | Grid | Code | Media | Drawing
KINDS = {
    ".png": "image/png",
    ".gif": "image/gif",
    ".svg": "image/svg+xml",
    ".mp4": "video/mp4",
    ".webm": "video/webm",
}


def to_markdown(title: str, blocks: Sequence[Block]) -> str:
    """For a reader of text, and for GitHub: no text in it is markup of HTML."""
    return visible(
        "\n\n".join(filter(None, [f"# {_plain(title)}", *map(_markdown, blocks)])) + "\n"
    )


def to_html(title: str, blocks: Sequence[Block]) -> str:
    """One page with everything in it: it can be sent by mail."""
    body = visible("\n".join(_html(block) for block in blocks))
    name = visible(html.escape(title))
    moves = any(isinstance(block, Drawing | More) for block in blocks)
    script = f"<script>{interactive.script()}</script>\n" if moves else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{interactive.policy()}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name}</title>\n<style>{interactive.STYLE}{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{name}</h1>\n{body}\n{script}</body>\n</html>\n"
    )


def _markdown(block: Block) -> str:
    match block:
        case Heading():
            return f"## {_plain(block.text)}"
        case Paragraph():
            return _plain(block.text)
        case Items():
            return "\n".join(f"* {_plain(line)}" for line in block.lines)
        case Grid():
            return markdown_table(block)
        case Code():
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
            return f"{fence}\n{block.text}\n{fence}"
        case Media():
            title = _plain(block.title)
            return f"{'!' if _is_picture(block) else ''}[{title}]({quote(block.file)})"
        case Drawing():
            return f"![{_plain(block.title)}]({quote(block.file)})"
        case More():
            return ""


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, where it would read HTML."""
    return html.escape(text, quote=False)


def markdown_table(grid: Grid) -> str:
    """The table alone."""
    rows = [grid.columns, ["---"] * len(grid.columns), *grid.rows]
    return "\n".join("| " + " | ".join(map(_markdown_cell, row)) + " |" for row in rows)


def _markdown_cell(cell: Text) -> str:
    text = cell.text if isinstance(cell, Strong) else cell
    text = _plain(" ".join(text.split())).replace("|", "\\|")
    return f"**{text}**" if isinstance(cell, Strong) else text


def _html(block: Block) -> str:
    match block:
        case Heading():
            return f"<h2>{html.escape(block.text)}</h2>"
        case Paragraph():
            return f"<p>{html.escape(block.text)}</p>"
        case Items():
            return (
                "<ul>" + "".join(f"<li>{html.escape(each)}</li>" for each in block.lines) + "</ul>"
            )
        case Grid():
            return html_table(block)
        case Code():
            return f"<pre>{html.escape(block.text)}</pre>"
        case Media():
            return _html_media(block)
        case Drawing():
            return interactive.figure(block.chart)
        case More():
            figure = interactive.figure(block.chart)
            title = html.escape(block.title)
            return f"<details>\n<summary>{title}</summary>\n{figure}\n</details>"


def html_table(grid: Grid) -> str:
    """The table alone."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in grid.columns)
    rows = ["".join(f"<td>{_html_cell(cell)}</td>" for cell in row) for row in grid.rows]
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table>\n<tr>{head}</tr>\n{body}\n</table>"


def _html_cell(cell: Text) -> str:
    if isinstance(cell, Strong):
        return f"<strong>{html.escape(cell.text)}</strong>"
    return html.escape(cell)


def _html_media(block: Media) -> str:
    title = html.escape(block.title)
    if block.data is None:
        return f'<p><a href="{html.escape(quote(block.file))}">{title}</a></p>'
    kind = KINDS[Path(block.file).suffix]
    source = f"data:{kind};base64,{b64encode(block.data).decode()}"
    if _is_picture(block):
        return f'<p><img alt="{title}" src="{source}"></p>'
    return f'<p>{title}<br><video controls src="{source}"></video></p>'


def _is_picture(block: Media) -> bool:
    suffix = Path(block.file).suffix
    return suffix == ".svg" or KINDS.get(suffix, "").startswith("image/")
