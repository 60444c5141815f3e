"""A table on a terminal that is drawn again and again in the same place."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl_lab.records.formatting import visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

OTHER_LINES = 7  # of the screen beside the rows: head, foot, the shell's prompt
WIDEST = 24  # characters of one cell


@dataclass(frozen=True)
class Picture:
    """What is drawn: rows of text below their names, the last cell of each in a style, a foot."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    styles: Sequence[str]  # of the last cell of each row
    foot: str


class LiveTable:
    """Draws pictures one over the other. A context: the last one goes when it ends."""

    def __init__(self, console: "Console | None" = None) -> None:
        if console is None:
            from rich.console import Console

            console = Console()
        self.console = console
        self._live: Live | None = None

    @property
    def can_draw(self) -> bool:
        """Whether stderr is a terminal that can show it."""
        console = self.console
        usable = console.is_terminal and not console.is_dumb_terminal
        return usable and console.encoding.startswith("utf")

    def __enter__(self) -> "LiveTable":
        return self

    def __exit__(self, *failure: object) -> None:
        """What is printed afterwards says how it ended, so the table goes."""
        if self._live is not None:
            self._live.stop()

    def say(self, line: str) -> None:
        """Print above the table."""
        style = "yellow" if line.startswith("WARNING") else ""
        self.console.print(
            visible(line), style=style, markup=False, highlight=False, soft_wrap=True
        )

    def draw(self, picture: Picture) -> None:
        """Show this instead of the last one."""
        shown = self.render(picture)
        if self._live is None:
            from rich.live import Live

            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()
            self.console.show_cursor(True)  # a killed process cannot bring it back
        self._live.update(shown, refresh=True)

    def render(self, picture: Picture) -> "RenderableType":
        """As many rows as the terminal has room for, and the foot."""
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, header_style="dim")
        for name in picture.columns[:-1]:
            table.add_column(name, justify="right", no_wrap=True, max_width=WIDEST)
        table.add_column(picture.columns[-1], no_wrap=True)
        room = max(self.console.height - OTHER_LINES, 1)
        for row, style in list(zip(picture.rows, picture.styles, strict=True))[:room]:
            table.add_row(*map(Text, row[:-1]), Text(row[-1], style=style))
        parts: list[RenderableType] = [table]
        if len(picture.rows) > room:
            parts.append(Text(f"… and {len(picture.rows) - room} more", style="dim"))
        return Group(*parts, Text(picture.foot))
