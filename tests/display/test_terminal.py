import math
import re
import sys
import threading
from io import StringIO

import pytest
from rich.console import Console

from rl_lab.display.sinks import Sink, Sinks
from rl_lab.display.terminal import HISTORY, TerminalView
from rl_lab.records.formatting import format_duration, format_number, sparkline

TITLE = "CartPole-v1:ppo  seed 1"


class Clock:
    def __init__(self):
        self.time = 1000.0

    def __call__(self):
        return self.time


def make_view(*, total=100_000, terminal=False, width=80, height=40, **options):
    clock, file = Clock(), StringIO()
    console = Console(
        file=file,
        force_terminal=terminal,
        force_interactive=terminal,
        width=width,
        height=height,
        color_system=None,
        legacy_windows=False,
        _environ={"TERM": "xterm"},
    )
    view = TerminalView(total, title=TITLE, console=console, now=clock, **options)
    return view, clock, file


def painted(**options):
    """A terminal with colours, whatever the environment of the tests says."""
    return Console(
        file=StringIO(), force_terminal=True, color_system="standard", _environ={}, **options
    )


def frame(view):
    """The live area as text, without writing it to the view's own console."""
    width, height = view.console.size
    console = painted(width=width, height=height, record=True)
    console.print(view.render())
    return [line.rstrip() for line in console.export_text().splitlines()]


# Formatting --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (123.44, 1, "123.4"),
        (1234567.0, 0, "1,234,567"),
        (-1234.5678, 2, "-1,234.57"),
        (0, 3, "0.000"),
        (-0.0, 2, "0.00"),
        (0.0003, 2, "3.00e-04"),
        (-0.0003, 2, "-3.00e-04"),
        (0.01, 2, "0.01"),
        (0.4, 0, "4.00e-01"),
        (999_999_999, 0, "999,999,999"),
        (2.5e9, 1, "2.50e+09"),
        (math.nan, 1, "nan"),
        (math.inf, 1, "inf"),
        (-math.inf, 1, "-inf"),
    ],
)
def test_format_number(value, digits, text):
    assert format_number(value, digits) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00"),
        (23.6, "0:24"),
        (59.7, "1:00"),
        (3599, "59:59"),
        (3723, "1:02:03"),
        (2 * 86400 + 3 * 3600 + 245, "2d 3:04:05"),
        (-5, "0:00"),
        (math.nan, "-:--"),
        (math.inf, "-:--"),
    ],
)
def test_format_duration(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("values", "width", "text"),
    [
        ([], 8, ""),
        ([1.0, 2.0], 0, ""),
        ([1.0, 2.0], -3, ""),
        ([5.0], 8, "▄"),
        ([2.0] * 5, 8, "▄▄▄▄▄"),
        (list(range(8)), 8, "▁▂▃▄▅▆▇█"),
        (list(range(8)), 24, "▁▂▃▄▅▆▇█"),
        (list(range(16)), 8, "▁▂▃▄▅▆▇█"),  # each block is the mean of two
        ([0.0, 10.0, 4.0, 6.0], 2, "▄▄"),  # equal means
        ([3.0, 2.0, 1.0], 8, "█▅▁"),
        ([0.0, math.nan, 1.0, math.inf, -math.inf], 8, "▁·█··"),
        ([0.0, math.nan, 7.0, math.nan], 2, "▁█"),  # a share ignores what is not finite
        ([math.nan, math.inf], 8, "··"),
        ([-1e308, 1e308, 1e308, 1e308], 4, "▁███"),
        ([1e308, 1e308, 0.0, 0.0], 2, "█▁"),
    ],
)
def test_sparkline(values, width, text):
    assert sparkline(values, width) == text


# Plain lines -------------------------------------------------------------------------------------


def test_plain_lines_exactly():
    view, clock, file = make_view()
    view.say("[run] cartpole")  # no markup in messages
    for step in range(1_600, 30_001, 1_600):
        clock.time += 0.5  # 3,200 steps/s
        row = {"collect/return_mean": step / 200, "train/entropy": 0.5}
        view.write(step, row | ({"eval/return_mean": 210.46} if step == 25_600 else {}))
    view.close()
    assert file.getvalue().splitlines() == [
        "[run] cartpole",
        "CartPole-v1:ppo  seed 1",
        "    6,400/100,000    6%  return 32.0  3,200 steps/s  ETA 0:29",
        "   12,800/100,000   13%  return 64.0  3,200 steps/s  ETA 0:27",
        "   19,200/100,000   19%  return 96.0  3,200 steps/s  ETA 0:25",
        "   25,600/100,000   26%  return 128.0  eval 210.5  3,200 steps/s  ETA 0:23",
        "   28,800/100,000   29%  return 144.0  3,200 steps/s  stopped after 0:09",
    ]


def test_a_complete_run_ends_with_its_last_row_once():
    view, clock, file = make_view(total=1_000)
    for step in (500, 999, 1_024):
        clock.time += 1
        view.write(step, {})
    view.close()
    view.close()
    assert file.getvalue().splitlines()[1:] == [
        "    500/1,000   50%  500 steps/s  ETA 0:01",
        "    999/1,000   99%  499 steps/s  ETA 0:00",  # 100 % is said when it is true
        "  1,024/1,000  100%  262 steps/s  elapsed 0:03",
    ]


def test_a_slow_run_says_something_every_fifteen_seconds():
    view, clock, file = make_view(total=10_000_000)
    for step in range(1, 41):
        clock.time += 1
        view.write(step, {})
    assert len(file.getvalue().splitlines()) == 1 + 2


def test_long_lines_are_not_wrapped_and_nothing_is_coloured():
    view, _, file = make_view(width=40)
    view.say("WARNING: " + "x" * 200)
    assert file.getvalue() == "WARNING: " + "x" * 200 + "\n"


def test_after_a_resume_only_the_steps_of_this_process_count():
    view, clock, file = make_view(start_step=50_000)
    clock.time += 10
    view.write(60_000, {})  # 10,000 steps in 10 s, 40,000 to go
    assert view.rate == 1_000 and view.eta == 40
    assert file.getvalue().splitlines()[1:] == ["   60,000/100,000   60%  1,000 steps/s  ETA 0:40"]


def test_the_first_stretch_with_its_compilation_is_not_held_against_the_rest():
    view, clock, _ = make_view()
    for seconds, step in [(60, 1_000), (1, 2_000), (1, 3_000)]:
        clock.time += seconds
        view.write(step, {})
    assert view.rate == 1_000 and view.elapsed == 62
    clock.time += 5
    view.write(3_000, {"eval/return_mean": 1.0})  # the same step again: no new stretch
    assert view.rate == 1_000


def test_a_pace_that_is_not_known_is_not_invented():
    view, _, file = make_view()
    view.write(0, {"eval/return_mean": -1.0})
    assert file.getvalue().splitlines()[1:] == ["        0/100,000    0%  eval -1.0  ETA -:--"]
    empty, _, _ = make_view(total=0)
    assert empty.share == 1


# Live table --------------------------------------------------------------------------------------

ROW = {
    "collect/return_mean": 123.44,
    "train/policy_loss": -0.01234,
    "train/learning_rate": 3e-4,
    "time/sps": 3251.7,
    "train/unknown": 7.0,
}


def fill(view, clock):
    for index, score in enumerate([10.0, 90.5, 50.0], start=1):
        clock.time += 5
        scale = {name: value * 2**index / 2 for name, value in ROW.items()}
        view.remember(index * 10_000, scale | {"eval/return_mean": score})
        view._move_to(index * 10_000)
    clock.time += 1


def test_the_live_table_exactly():
    view, clock, _ = make_view(terminal=True)
    fill(view, clock)
    assert frame(view) == [
        "",
        " CartPole-v1:ppo  seed 1",
        " ━━━━━━━━━━━━━━━━━╺━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 30,000/100,000  30%",
        " elapsed 0:16  2,000 steps/s  ETA 0:35  best eval 90.5 at 20,000",
        "",
        "  metric                           last   history",
        "  ────────────────────────────────────────────────────────────────",
        "  eval/return_mean                 50.0   ▁█▄",
        "  collect/return_mean             493.8   ▁▃█",
        "  train/policy_loss             -0.0494   █▆▁",
        "  train/learning_rate          1.20e-03   ▁▃█",
        "  time/sps steps/s               13,007   ▁▃█",
        "",
    ]


def test_a_narrow_terminal_drops_the_sparklines_and_nothing_wraps():
    view, clock, _ = make_view(terminal=True, width=48)
    fill(view, clock)
    lines = frame(view)
    assert lines[2:9] == [
        " ━━━━━━━╸━━━━━━━━━━━━━━━━━━ 30,000/100,000  30%",
        " elapsed 0:16  2,000 steps/s  ETA 0:35  best ev…",
        "",
        "  metric                      last",
        "  ────────────────────────────────",
        "  eval/return_mean            50.0",
        "  collect/return_mean        493.8",
    ]
    assert max(map(len, lines)) <= 48


@pytest.mark.parametrize("width", [20, 40, 60, 62, 79, 80, 200])
@pytest.mark.parametrize("height", [5, 12, 40])
def test_the_live_area_fits_any_terminal(width, height):
    view, clock, _ = make_view(terminal=True, width=width, height=height)
    fill(view, clock)
    lines = frame(view)
    assert max(map(len, lines)) <= min(width, 80)
    assert len(lines) <= max(height - 1, 9)  # 9: one metric is always shown


def test_best_is_green_and_what_is_not_finite_is_red():
    view, clock, _ = make_view(terminal=True)
    fill(view, clock)
    assert view._style("eval/return_mean") == "bold"  # it matters, and it was better before
    assert view._style("train/policy_loss") == ""
    view.remember(40_000, {"eval/return_mean": math.nan})
    assert view.best == (90.5, 20_000)
    view.remember(50_000, {"eval/return_mean": 95.0, "train/value_loss": math.nan})
    assert view.best == (95.0, 50_000)
    assert view._style("eval/return_mean") == "bold green"
    console = painted(width=80)
    console.print(view.render())
    text = console.file.getvalue()
    assert re.search(r"\x1b\[1;32m *95\.0", text) and re.search(r"\x1b\[1;31m *nan", text)


def test_history_is_bounded():
    view, _, _ = make_view()
    for step in range(HISTORY + 100):
        view.remember(step, {"time/sps": float(step)})
    assert len(view.history["time/sps"]) == HISTORY and view.history["time/sps"][0] == 100


def test_the_live_view_starts_once_prints_above_itself_and_gives_the_terminal_back():
    view, clock, file = make_view(terminal=True)
    stdout, threads = sys.stdout, threading.active_count()
    view.show()
    assert TITLE in file.getvalue() and "100,000   0%" in file.getvalue()
    clock.time += 10
    view.write(10_000, ROW)
    assert threading.active_count() == threads + 1
    view.say("WARNING: [bold]no markup[/bold]")
    clock.time += 1
    view.close()
    view.close()
    assert sys.stdout is stdout and threading.active_count() == threads
    view.say("afterwards")
    view.write(20_000, ROW)  # a late row is no reason to start again
    text = file.getvalue()
    message, last = text.index("[bold]no markup[/bold]"), text.rindex(TITLE)
    assert message < last < text.index("afterwards")
    assert "1,000 steps/s  stopped after 0:11" in text[last:]
    assert text.endswith("afterwards\n")
    assert text.count("\x1b[?25h") >= text.count("\x1b[?25l") == 1  # the cursor is back


def test_the_refresh_thread_moves_the_clock_between_rows(monkeypatch):
    monkeypatch.setattr("rl_lab.display.terminal.TICK_SECONDS", 0.001)
    view, clock, file = make_view(terminal=True)
    view.show()
    clock.time += 77
    for _ in range(2_000):
        if "elapsed 1:17" in file.getvalue():
            break
        threading.Event().wait(0.005)
    view.close()
    assert "elapsed 1:17" in file.getvalue()


def test_a_terminal_that_goes_away_is_dropped_and_training_goes_on(monkeypatch):
    monkeypatch.setattr("rl_lab.display.terminal.TICK_SECONDS", 0.001)
    view, _, file = make_view(terminal=True)
    stdout, told = sys.stdout, []

    class Log(Sink):
        def say(self, message):
            told.append(message)

    sinks = Sinks([view, Log()])
    sinks.write(1, ROW)

    def gone(text):
        raise OSError(5, "Input/output error")

    file.write = gone
    view._refresher.join(10)
    sinks.write(2, ROW)
    sinks.write(3, ROW)
    assert told == ["WARNING: TerminalView is off from here: [Errno 5] Input/output error"]
    assert sys.stdout is stdout


def test_rows_may_arrive_while_the_table_is_drawn(monkeypatch):
    monkeypatch.setattr("rl_lab.display.terminal.TICK_SECONDS", 0.0)
    view, _, _ = make_view(terminal=True)
    for step in range(1, 1_000):
        view.write(step, ROW)  # raises what the other thread met
    view.close()
    assert view._failure is None


@pytest.mark.parametrize("call", ["render", "remember"])
def test_a_frame_never_shows_half_a_row(call):
    view, _, _ = make_view(terminal=True)
    arguments = () if call == "render" else (1, ROW)
    other = threading.Thread(target=getattr(view, call), args=arguments)
    with view._lock:
        other.start()
        other.join(0.05)
        assert other.is_alive() and not view.history
    other.join(10)
    assert not other.is_alive()


def test_a_view_that_was_closed_does_not_start():
    view, _, file = make_view(terminal=True)
    view.close()
    view.write(1, ROW)
    assert view._refresher is None and file.getvalue() == ""


@pytest.mark.parametrize(("term", "encoding"), [("dumb", "utf-8"), ("xterm", "ascii")])
def test_a_terminal_that_cannot_draw_gets_plain_lines(term, encoding):
    class File(StringIO):
        pass

    File.encoding = encoding
    console = Console(file=File(), force_terminal=True, _environ={"TERM": term})
    view = TerminalView(100, title="ppo · seed 1", console=console, now=Clock())
    view.write(50, {"collect/return_mean": 1.0})
    assert view._refresher is None
    title, line = console.file.getvalue().splitlines()
    assert title == ("ppo · seed 1" if encoding == "utf-8" else "ppo ? seed 1")
    assert line == "   50/100   50%  return 1.0  ETA -:--"
