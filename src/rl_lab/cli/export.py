"""`rl-lab export`: a comparison as a table for a paper, a page or a program."""

from pathlib import Path

from rl_lab.cli.compare import Request
from rl_lab.cli.printing import say, warn


def run(request: Request, *, format: str, output: Path | None) -> int:
    """Print the table, or write it to a file."""
    from rl_lab.analysis.export import checked_format, export, save
    from rl_lab.display.metric_style import load_display

    checked_format(format)  # before a thousand runs are read
    display = load_display()
    found = request.comparison(display)
    text = export(found, format, display)
    if output is None:
        say(text.removesuffix("\n"))
    else:
        save(text, output)
    for line in found.warnings:
        warn(f"warning: {line}")
    return 0
