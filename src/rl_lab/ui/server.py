"""Serves the page: a socket, a token, uvicorn, and a browser if there is one."""

import asyncio
import ipaddress
import os
import secrets
import signal
import socket
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from urllib.parse import quote

import uvicorn

from rl_lab.core.errors import UserError
from rl_lab.ui.app import make_app
from rl_lab.ui.library import Library

LEAST_TOKEN = 16  # characters
LOOPBACK = ["127.0.0.1", "localhost", "::1"]


@dataclass(frozen=True)
class Served:
    """Where the page is."""

    url: str  # with the token
    socket: socket.socket
    server: uvicorn.Server
    stop_recorders: Callable[[], None]

    def run(self) -> None:
        """Answer until Ctrl-C or SIGTERM."""
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGTERM, _leave)  # uvicorn sends it again when it has ended
        try:
            asyncio.run(self.server.serve(sockets=[self.socket]))
        except KeyboardInterrupt:  # uvicorn has ended what was open
            pass
        finally:
            self.stop_recorders()


def prepare(
    root: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 7860,
    token: str | None = None,
    names: list[str] | None = None,
    page: str = "/",
) -> Served:
    """Open the socket and make the application. `names` are further host names of this machine."""
    if token is not None and len(token) < LEAST_TOKEN:
        raise UserError(f"--token: use {LEAST_TOKEN} characters or more, or none for a random one")
    token = token or secrets.token_urlsafe(24)
    listening = _listen(host, port)
    actual = listening.getsockname()[1]
    hosts = [*LOOPBACK, *_own_names(host), *(names or [])]
    app = make_app(root, token=token, hosts=hosts, cookie=f"rl_lab_ui_{actual}")
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        limit_concurrency=200,
    )
    shown = host if not _is_any(host) else socket.gethostname()
    shown = f"[{shown}]" if ":" in shown else shown
    url = f"http://{shown}:{actual}{page}?token={token}"
    return Served(url, listening, uvicorn.Server(config), app.state.recorders.stop)


def folder_and_page(where: str | None, runs_dir: Path) -> tuple[Path, str]:
    """The folder that a run, a folder or nothing means, and the page to begin with."""
    from rl_lab.records.run_directory import find_run

    if where is None:
        return runs_dir, "/"
    folder = Path(where)
    if folder.is_dir() and not (folder / "config.yaml").exists():
        return folder, "/"
    run, _ = find_run(where, runs_dir)
    root = run.path.resolve().parent
    return root, f"/run/{quote(Library(root).run(run.path.resolve().name).path.name)}"


def open_browser(url: str) -> None:
    """Open the page, where there is a screen."""
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(url)


def _leave(number: int, frame: FrameType | None) -> None:
    """End with the recorders stopped: the default would leave them behind."""
    raise SystemExit(128 + number)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen()  # before the address is printed: a browser that is quicker waits
    except OSError as error:
        listening.close()
        raise UserError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another port with --port "
            "(0: any that is free)"
        ) from error
    return listening


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _own_names(host: str) -> list[str]:
    """The names by which a page on this address may be asked for."""
    if not _is_any(host):
        return [host]
    name = socket.gethostname()
    try:
        addresses = [str(each[4][0]) for each in socket.getaddrinfo(name, None)]
    except OSError:
        addresses = []
    return [name, socket.getfqdn(), *addresses]
