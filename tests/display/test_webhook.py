"""Webhooks against a real server: delivered, tried again, given up, never in the way."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rl_lab.cli.main import main
from rl_lab.core.errors import ConfigError
from rl_lab.display.sinks import Sink
from rl_lab.display.webhook import WebhookSink
from rl_lab.records.alerts import Alert
from rl_lab.records.redaction import HIDDEN
from rl_lab.run.session import load_config, resume, train
from tiny_runs import run_hash, tiny_config, tiny_run

ALERT = Alert(512, "kl_high", "train/approx_kl", 0.2, "train/approx_kl is 0.2: above 0.05", "less")
BROKEN = ("CartPole-v1:ppo_defaults", "algorithm.learning_rate=10")


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv("RL_LAB_WEBHOOK", raising=False)
    monkeypatch.setattr(WebhookSink, "pauses", (0.01, 0.02))


@pytest.fixture
def server():
    """`server(500, 200)`: answers in this order, the last one for ever; `None` answers nothing."""
    made = []

    def make(*codes):
        waiting, bodies, closing = list(codes), [], threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                code = waiting.pop(0) if len(waiting) > 1 else waiting[0]
                if code is None:
                    closing.wait(20)
                    return
                self.send_response(code)
                if code == 302:
                    self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, *arguments):
                pass

        http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        made.append((http, thread, closing))
        http.bodies = bodies
        http.url = f"http://127.0.0.1:{http.server_port}/services/s3cr3t"
        return http

    yield make
    for http, thread, closing in made:
        closing.set()
        http.shutdown()
        http.server_close()
        thread.join()


def sent(url, *alerts):
    """Post alerts with a sink of its own; what it said when it was closed."""
    said = []
    sink = WebhookSink(url, tell=said.append)
    for alert in alerts:
        sink.alert(alert)
    sink.close()
    return said


def test_an_alert_arrives_with_its_text_for_slack_and_discord(server):
    http = server(200)
    assert sent(http.url, ALERT) == []
    (body,) = http.bodies
    assert body["text"] == body["content"] == ALERT.text
    assert {key: body[key] for key in ("step", "monitor", "value")} == {
        "step": 512,
        "monitor": "kl_high",
        "value": 0.2,
    }


def test_a_failing_server_is_tried_again(server):
    http = server(500, 429, 200)
    assert sent(http.url, ALERT) == []
    assert len(http.bodies) == 3


@pytest.mark.parametrize(("code", "tries"), [(404, 1), (302, 1), (503, 3)])
def test_what_cannot_be_delivered_is_counted_and_the_url_is_not_shown(server, code, tries):
    http = server(code)
    (line,) = sent(http.url, ALERT)
    assert line == f"WARNING: webhook: 1 alerts were not delivered: the server answered {code}"
    assert len(http.bodies) == tries
    (line,) = sent("http://127.0.0.1:9/s3cr3t", ALERT)
    assert line.startswith("WARNING: webhook: 1 alerts were not delivered: ") and "9" not in line


def test_an_address_that_http_cannot_take_ends_no_thread(capsys):
    (line,) = sent("http://127.0.0.1:9/s3cr3t x", ALERT)
    assert line == "WARNING: webhook: 1 alerts were not delivered: InvalidURL"
    assert "s3cr3t" not in capsys.readouterr().err


def test_a_silent_server_costs_the_training_nothing_and_its_end_a_moment(server, monkeypatch):
    monkeypatch.setattr(WebhookSink, "patience", 0.3)
    http, said = server(None), []
    sink = WebhookSink(http.url, tell=said.append)
    started = time.monotonic()
    for _ in range(500):
        sink.alert(ALERT)
    assert time.monotonic() - started < 0.2
    sink.close()
    sink.close()
    assert time.monotonic() - started < 3
    (line,) = said
    assert line.startswith("WARNING: webhook: 500 alerts were not delivered: ")


def test_a_run_posts_and_its_folder_does_not_know_where_to(server, tmp_path, capsys):
    http = server(200)
    word = f"logging.alerts.webhook={http.url}"
    words = ["training.total_timesteps=8192", "algorithm.learning_rate=10", word]
    assert (
        main(["train", "CartPole-v1:ppo_defaults", *words, "--runs-dir", str(tmp_path), "-q"]) == 0
    )
    assert any(body["monitor"] == "kl_high" for body in http.bodies)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) > 5
    assert not [file for file in files if b"s3cr3t" in file.read_bytes()]
    (config,) = tmp_path.glob("*/config.yaml")
    assert f"webhook: {HIDDEN}" in config.read_text()


def test_a_resumed_run_takes_the_url_from_the_environment(server, tmp_path, monkeypatch):
    class Heard(Sink):
        said: list[str] = []  # noqa: RUF012

        def say(self, message):
            self.said.append(message)

    outcome = tiny_run(tmp_path, *BROKEN[:1], "logging.alerts.webhook=http://127.0.0.1:9/x")
    resume(outcome.run.id, root=tmp_path, view=lambda *_: [Heard()])
    (line,) = [each for each in Heard.said if "webhook" in each]
    assert line == "WARNING: alerts are not posted: the webhook was not saved; set RL_LAB_WEBHOOK"
    http = server(200)
    monkeypatch.setenv("RL_LAB_WEBHOOK", http.url)
    train(tiny_config(*BROKEN), root=tmp_path / "b")
    assert http.bodies
    assert load_config(outcome.run).logging.alerts.webhook == HIDDEN


def test_a_dead_webhook_changes_no_bit(server, tmp_path):
    words = (*BROKEN, "training.total_timesteps=512")
    without = tiny_run(tmp_path / "a", *words).run
    dead = tiny_run(tmp_path / "b", *words, "logging.alerts.webhook=http://127.0.0.1:9/").run
    assert run_hash(without) == run_hash(dead)


def test_a_webhook_is_an_http_address():
    with pytest.raises(ConfigError, match="webhook: must begin with https"):
        tiny_config(BROKEN[0], "logging.alerts.webhook=ftp://x")
