"""A webhook as a sink: alerts are posted as JSON by a thread that training never waits for."""

import json
import queue
import threading
import time
from collections.abc import Callable
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from rl_lab.display.sinks import Sink
from rl_lab.records.alerts import Alert

VARIABLE = "RL_LAB_WEBHOOK"
WAITING = 100  # alerts that may wait for a slow server; more are dropped and counted


class WebhookSink(Sink):
    """Posts alerts one after the other; each is tried again a few times, then given up.

    The URL is a secret (whoever has it can write into the channel): no message shows it.
    """

    patience = 5.0  # seconds for an answer, and for the last alerts at the end of a run
    pauses = (0.5, 2.0, 8.0)  # seconds before each further try

    def __init__(self, url: str, *, tell: Callable[[str], None] = lambda message: None) -> None:
        self.url, self.tell = url, tell
        self.lost = 0
        self.reason = ""  # of the latest failure
        self._queue: queue.Queue[Alert | None] = queue.Queue(WAITING)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._post_all, daemon=True)
        self._thread.start()

    def alert(self, alert: Alert) -> None:
        """Hand it to the thread, or count it as lost. Never waits."""
        try:
            self._queue.put_nowait(alert)
        except queue.Full:
            self.lost += 1
            self.reason = "too many at once"

    def close(self) -> None:
        """A moment for the last alerts; then training ends in any case."""
        if self._over.is_set():
            return
        end = time.monotonic() + self.patience
        while self._queue.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.01)
        self._over.set()
        left = self._queue.unfinished_tasks
        if self.lost or left:
            why = self.reason or f"no answer within {self.patience:g} s"
            self.tell(f"WARNING: webhook: {self.lost + left} alerts were not delivered: {why}")

    def _post_all(self) -> None:
        while not self._over.is_set():
            try:
                alert = self._queue.get(timeout=0.2)
            except queue.Empty:
                continue
            if alert is not None and not self._delivered(alert):
                self.lost += 1
            self._queue.task_done()

    def _delivered(self, alert: Alert) -> bool:
        body = json.dumps(payload(alert)).encode()
        for pause in (*self.pauses, None):
            try:
                post(self.url, body, self.patience)
                return True
            except HTTPError as error:
                self.reason = f"the server answered {error.code}"
                if error.code < 500 and error.code != 429:  # it will never like this one
                    return False
            except (URLError, HTTPException, OSError, ValueError) as error:
                cause = getattr(error, "reason", error)
                self.reason = type(cause).__name__  # its text may have the URL in it
            if pause is None or self._over.wait(pause):
                return False
        return False


class _NoRedirects(HTTPRedirectHandler):
    """Another address was not asked for."""

    def redirect_request(self, *arguments: object) -> None:
        """Do not follow."""


def post(url: str, body: bytes, timeout: float) -> None:
    """One request; an exception if it did not arrive."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError("not HTTP")
    headers = {"Content-Type": "application/json", "User-Agent": "rl-lab"}
    request = Request(url, data=body, headers=headers, method="POST")
    with build_opener(_NoRedirects()).open(request, timeout=timeout):
        pass


def payload(alert: Alert) -> dict[str, object]:
    """The alert, and its text under the names that Slack and Discord look for."""
    return {"text": alert.text, "content": alert.text, **alert.to_tree()}
