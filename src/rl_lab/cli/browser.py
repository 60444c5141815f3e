"""Opens a page of ours in a browser, or says where it is."""

import webbrowser
from pathlib import Path

from rl_lab.cli.printing import warn


def open_page(page: Path) -> None:
    """Show a file in the user's browser; without one, print its address."""
    address = page.resolve().as_uri()
    try:
        opened = webbrowser.open(address)
    except (webbrowser.Error, OSError):
        opened = False
    if not opened:
        warn(f"no browser was found here: open {address}")
