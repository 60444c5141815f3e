"""Everything at once: the page is read, monitors watch, videos are made, keys are pressed."""

import threading
from contextlib import contextmanager

import pytest

from rl_lab.core.state import fingerprint
from rl_lab.display.sinks import Sink
from rl_lab.run.keys import Keys
from rl_lab.run.session import train
from tiny_runs import final_state, tiny_config, tiny_run
from ui.conftest import HOST, TOKEN

pytestmark = pytest.mark.needs("starlette", "httpx", "PIL", "pygame")
WORDS = ("CartPole-v1:ppo_defaults", "algorithm.learning_rate=0.01")
PRESSED = {3: "e", 6: "v", 10: "ce?", 20: "pp"}


class Keyboard:
    def __init__(self):
        self.hooks, self.waiting = 0, []

    def key(self, seconds=0.0):
        if not self.waiting:
            self.hooks += 1
            self.waiting = [*PRESSED.get(self.hooks, ""), None]
        return self.waiting.pop(0)


class Heard(Sink):
    def __init__(self):
        self.films = []

    def film(self, step, file):
        self.films.append(file)


@contextmanager
def read_all_the_time(root):
    """A page that is open on every run of a folder; how often it was answered."""
    from starlette.testclient import TestClient

    from rl_lab.ui.app import make_app

    app = make_app(root, token=TOKEN, hosts=["127.0.0.1"])
    client = TestClient(app, HOST, headers={"Authorization": f"Bearer {TOKEN}"})
    over, answers = threading.Event(), []

    def read():
        while not over.wait(0.01):
            rows = client.get("/api/runs").json()["rows"]
            for folder in (each.name for each in root.glob("CartPole*")):
                paths = ("", "/pulse", "/series?names=train/loss,eval/return_mean", "/log")
                found = [client.get(f"/api/runs/{folder}{path}").status_code for path in paths]
                answers.append((len(rows), set(found)))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield answers
    finally:
        over.set()
        thread.join()


def learned(run):
    """All state but what monitors remember, and every byte of metrics.jsonl."""
    state = final_state(run)
    state["parts"].pop("alerts")
    return fingerprint(state), run.metrics_file.read_bytes()


def test_a_run_with_everything_on_is_the_run_with_nothing_on(tmp_path, monkeypatch):
    heard, root = Heard(), tmp_path / "on"
    root.mkdir()

    @contextmanager
    def listening(orchestrator):
        orchestrator.add_callback("session/keys", Keys(Keyboard()))
        yield

    monkeypatch.setattr("rl_lab.run.session.listening", listening)
    config = tiny_config(*WORDS, "logging.video_every=2", "logging.alerts.monitors={all: {metric: "
                         "train/loss, above: -1e9, rows: 1}}")  # fmt: skip
    with read_all_the_time(root) as answers:
        on = train(config, root=root, view=lambda *_: [heard])
    monkeypatch.undo()
    assert len(heard.films) == 3 and on.run.alerts_file.read_text().count('"all"') == 1
    assert (1, {200}) in answers
    off = tiny_run(tmp_path / "off", *WORDS, "logging.alerts.policy=ignore").run
    assert learned(on.run) == learned(off)
