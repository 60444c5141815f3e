"""The terminal: a live table with sparklines for a human, plain lines for a pipe."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rl_lab.display.metric_style import Display, load_display
from rl_lab.display.sinks import LOUD, Sink
from rl_lab.records.formatting import format_duration, format_number, sparkline, visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

RETURN, SCORE = "collect/return_mean", "eval/return_mean"
HISTORY = 512  # values kept per metric: the default of 500 rows a run fits
SPARK_WIDTH = 24
FULL_WIDTH, NARROW_WIDTH = 78, 60  # never wider; narrower than this drops the sparklines
TICK_SECONDS = 1.0  # between two refreshes; one takes some milliseconds of the training's time
PLAIN_SHARE, PLAIN_SECONDS = 0.05, 15.0  # a plain line after this much progress, or wall time


def is_watched() -> bool:
    """True in a terminal and in a notebook: output is watched."""
    from rich.console import Console

    console = Console()
    return console.is_terminal or console.is_jupyter


class TerminalView(Sink):
    """Progress and the metrics that matter. Live on a terminal, otherwise a line now and then."""

    def __init__(
        self,
        total_steps: int,
        *,
        title: str,
        console: "Console | None" = None,
        on_stderr: bool = False,
        start_step: int = 0,
        display: Display | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        if console is None:
            from rich.console import Console

            # In a notebook, too: plain lines, no widgets.
            console = Console(stderr=on_stderr, force_jupyter=False)
        self.console = console
        self.total = total_steps
        self.title = title
        self.display = load_display() if display is None else display
        self.now = now
        self.live_display = (
            console.is_terminal
            and not console.is_dumb_terminal
            and console.encoding.startswith("utf")  # bars and sparklines need it
        )
        self.history: dict[str, deque[float]] = {}
        self.best: tuple[float, int] | None = None  # the score, and its step
        self._lock = threading.Lock()  # between `write` and the thread that refreshes
        self._live: Live | None = None
        self._refresher: threading.Thread | None = None
        self._over = threading.Event()
        self._failure: Exception | None = None
        self._shown = False
        self._stretches = 0
        self._started = now()
        self._origin = self._latest = self._printed = (start_step, self._started)

    @property
    def watched(self) -> bool:  # type: ignore[override]
        """Whether this is a live terminal."""
        return self.live_display

    def show(self) -> None:
        """Show the progress bar, or the title line. The first row does it by itself."""
        if self._shown or self._over.is_set():
            return
        self._shown = True
        if self.live_display:
            self._go_live()
        else:
            self._print(self.title)

    def remember(self, step: int, row: Mapping[str, float]) -> None:
        """Take a row into history and best without showing it, as a resumed run needs it."""
        with self._lock:
            for name, value in row.items():
                if self.display[name].show:
                    self.history.setdefault(name, deque(maxlen=HISTORY)).append(float(value))
            score = row.get(SCORE, math.nan)
            if score > (self.best[0] if self.best else -math.inf):
                self.best = (score, step)

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Show the row: in the next refresh of the table, or as a line if it is time for one."""
        if self._failure is not None:
            raise self._failure
        self.remember(step, row)
        with self._lock:
            self._move_to(step)
        self.show()
        if not self.live_display and self._line_is_due(row):
            self._print(self.line(row))
            self._printed = (self.step, self.now())

    def say(self, message: str) -> None:
        """Print above the live table, or as it is."""
        self._print(message, style="yellow" if message.startswith(LOUD) else "")

    def close(self) -> None:
        """Leave the last state on the screen and give the terminal back."""
        if self._over.is_set():
            return
        self._over.set()
        if self._refresher is not None:
            self._refresher.join()
        if self._live is not None:
            self._live.stop()
        elif self._printed[0] != self.step:
            self._print(self.line({}))

    # Progress ------------------------------------------------------------------------------------

    @property
    def rate(self) -> float:
        """Environment steps per second of this process; nan until there are two moments."""
        (first, since), (last, until) = self._origin, self._latest
        return (last - first) / (until - since) if last > first and until > since else math.nan

    @property
    def elapsed(self) -> float:
        """Seconds since the loop started in this process."""
        return self.now() - self._started

    @property
    def eta(self) -> float:
        """Seconds until the total is reached at the present rate; nan if unknown."""
        return max(self.total - self.step, 0) / self.rate

    @property
    def share(self) -> float:
        """Progress in [0, 1]."""
        return min(self.step / self.total, 1.0) if self.total > 0 else 1.0

    @property
    def step(self) -> int:
        """The step of the latest row."""
        return self._latest[0]

    def _move_to(self, step: int) -> None:
        if step <= self.step:
            return
        # The first stretch holds warm-up and compilation: it serves until there is a second one.
        if self._stretches == 1:
            self._origin = self._latest
        self._stretches += 1
        self._latest = (step, self.now())

    # Plain lines ---------------------------------------------------------------------------------

    def line(self, row: Mapping[str, float]) -> str:
        """The row in one line, for logs and pipes."""
        parts = [f"{self.step:{len(f'{self.total:,}')},}/{self.total:,}", f"{self._percent():>4}"]
        if RETURN in self.history:
            parts.append(f"return {self.display[RETURN].text(self.history[RETURN][-1])}")
        if SCORE in row:
            parts.append(f"eval {self.display[SCORE].text(row[SCORE])}")
        return "  ".join(["", *parts, *self._pace()])

    def _line_is_due(self, row: Mapping[str, float]) -> bool:
        step, moment = self._printed
        return (
            self.step >= self.total
            or self.step - step >= PLAIN_SHARE * self.total
            or self.now() - moment >= PLAIN_SECONDS
            or any(name.startswith("eval/") for name in row)
        )

    def _percent(self) -> str:
        return f"{100 if self.share == 1 else min(round(self.share * 100), 99)}%"

    def _pace(self) -> list[str]:
        pace = [] if math.isnan(self.rate) else [f"{format_number(self.rate, 0)} steps/s"]
        spent, complete = format_duration(self.elapsed), self.share == 1
        if self._over.is_set():
            return [*pace, f"done in {spent}" if complete else f"stopped after {spent}"]
        return [*pace, f"elapsed {spent}" if complete else f"ETA {format_duration(self.eta)}"]

    def _print(self, message: str, style: str = "") -> None:
        encoding = self.console.encoding  # what it cannot show becomes "?", not an error
        message = message.encode(encoding, "replace").decode(encoding)
        self.console.print(
            visible(message), style=style, markup=False, highlight=False, soft_wrap=True
        )

    # Live table ----------------------------------------------------------------------------------

    def render(self) -> "RenderableType":
        """The live area as it is now: title, progress bar, pace, table."""
        from rich.console import Group
        from rich.padding import Padding
        from rich.text import Text

        width = min(self.console.width - 2, FULL_WIDTH)  # a margin; the last column would wrap
        title = Text(self.title, style="bold", no_wrap=True, overflow="ellipsis")
        with self._lock:
            parts: list[RenderableType] = [title, self._bar(width), self._status()]
            if self.history:
                parts.append(self._table(width))
        return Padding(Group(*parts), (1, 0, 0, 1))

    def _bar(self, width: int) -> "Table":
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        grid = Table.grid(padding=(0, 1), expand=True)
        grid.width = width
        grid.add_column(ratio=1)
        grid.add_column(no_wrap=True, justify="right")
        bar = ProgressBar(
            total=1.0, completed=self.share, complete_style="cyan", finished_style="green"
        )
        grid.add_row(bar, f"{self.step:,}/{self.total:,} {self._percent():>4}")
        return grid

    def _status(self) -> "Text":
        from rich.text import Text

        pace = self._pace()
        if self.share < 1 and not self._over.is_set():
            pace.insert(0, f"elapsed {format_duration(self.elapsed)}")
        status = Text("  ".join(pace), style="dim", no_wrap=True, overflow="ellipsis")
        if self.best:
            score, step = self.best
            best = f"  best eval {self.display[SCORE].text(score)} at {step:,}"
            status.append(best, style="not dim green")
        return status

    def _table(self, width: int) -> "Table":
        from rich import box
        from rich.table import Table
        from rich.text import Text

        sparklines = width >= NARROW_WIDTH
        table = Table(
            box=box.SIMPLE_HEAD,
            padding=(0, 1),
            pad_edge=False,
            header_style="dim",
            border_style="dim",
        )
        table.add_column("metric", no_wrap=True, min_width=24 if sparklines else None)
        table.add_column("last", no_wrap=True, justify="right", min_width=10)
        if sparklines:
            table.add_column("history", no_wrap=True, min_width=SPARK_WIDTH)
        names = self.display.ordered(self.history)
        for name in names[: max(self.console.height - 9, 1)]:  # what a low terminal has room for
            values, style = self.history[name], self.display[name]
            group, slash, metric = name.rpartition("/")
            cells = [
                Text.assemble(
                    (group + slash, "dim"),
                    (metric, "bold" if style.highlight else ""),
                    (f" {style.unit}" if style.unit and sparklines else "", "dim"),
                ),
                Text(style.text(values[-1]), style=self._style(name)),
            ]
            if sparklines:
                cells.append(Text(sparkline(list(values), SPARK_WIDTH), style="cyan"))
            table.add_row(*cells)
        return table

    def _style(self, name: str) -> str:
        """Red for what is not finite; green for a highlighted metric at its best so far."""
        value, style = self.history[name][-1], self.display[name]
        if not math.isfinite(value):
            return "bold red"
        best = style.best(self.history[name])
        if name == SCORE and self.best and style.better == "higher":
            best = self.best[0]  # also of rows that the history has forgotten
        if style.highlight:
            return "bold green" if value == best else "bold"
        return ""

    def _go_live(self) -> None:
        """Start the live area, and the thread that refreshes it between rows."""
        from rich.live import Live

        self._live = Live(console=self.console, get_renderable=self.render, auto_refresh=False)
        self._live.start(refresh=True)
        self.console.show_cursor(True)  # a killed process cannot bring it back
        self._refresher = threading.Thread(target=self._refresh, daemon=True)
        self._refresher.start()

    def _refresh(self) -> None:
        assert self._live is not None
        while not self._over.wait(TICK_SECONDS):
            try:
                self._live.refresh()
            except Exception as error:  # noqa: BLE001 - raised by the next `write`, in the main thread
                self._failure = error
                return
