"""Every route of the server, asked by a client that has the token."""

import json
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import replace

import pytest

from rl_lab.display.png import decode_png
from rl_lab.records.labels import read_labels
from rl_lab.records.run_directory import RunDirectory
from rl_lab.ui.episodes import Recorders
from rl_lab.ui.library import WHOLE_BYTES, _glimpse
from ui.conftest import ALERT

pytestmark = pytest.mark.needs("starlette", "uvicorn", "httpx")


def get(client, path, **parameters):
    answer = client.get(path, params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_page_and_its_parts(client):
    for path in ("/", "/run/any/curves", "/compare?runs=a,b", "/sweep/"):
        answer = client.get(path)
        assert answer.status_code == 200 and "/assets/app.js" in answer.text
    for name in ("app.js", "chart.js", "style.css", "icon.svg"):
        assert client.get(f"/assets/{name}").status_code == 200
    assert client.get("/assets/index.py").status_code == 404


def test_the_table_is_filtered_as_the_command_filters(client):
    found = get(client, "/api/runs")
    assert found["total"] == found["fulfilling"] == 3
    rows = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
    assert {row["algorithm"] for row in rows} == {"ppo", "dqn"}
    assert get(client, "/api/runs", filter="algorithm=ppo seed=2")["fulfilling"] == 1
    assert get(client, "/api/runs", filter="eval/return_mean>0")["fulfilling"] == 3
    assert get(client, "/api/runs", filter="draft")["fulfilling"] == 1  # a word: the tag
    assert get(client, "/api/runs", filter="nothing-like-it")["fulfilling"] == 0
    wrong = client.get("/api/runs", params={"filter": "algorythm=ppo"})
    assert wrong.status_code == 400 and "no run has 'algorythm'" in wrong.json()["error"]


def test_an_empty_folder_is_no_mistake(tmp_path):
    from starlette.testclient import TestClient

    from rl_lab.ui.app import make_app

    app = make_app(tmp_path / "none", token="x" * 16, hosts=["127.0.0.1"])
    own = TestClient(app, "http://127.0.0.1", headers={"Authorization": f"Bearer {'x' * 16}"})
    assert own.get("/api/runs").json()["total"] == 0
    assert own.get("/api/sweeps").json() == {"sweeps": []}


def test_a_sparkline_of_a_long_file_has_a_course(tmp_path):
    """Evaluations are in few rows: those that are sampled may all be of the end."""
    file = tmp_path / "metrics.jsonl"
    rows = [{"step": step, "collect/return_mean": float(step)} for step in range(40_000)]
    rows[-1]["eval/return_mean"] = 500.0
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert file.stat().st_size > WHOLE_BYTES
    values = _glimpse(file, "reward")
    assert len(values) > 10 and values == sorted(values) and values[0] < values[-1] / 2
    few = tmp_path / "few.jsonl"
    few.write_text("".join(json.dumps(row) + "\n" for row in rows[-400:]))
    assert _glimpse(few, "reward") == [500.0]  # all of it is known


def test_sparklines(client, named):
    run = named("ppo", 1)
    found = get(client, "/api/sparks", runs=f"{run.path.name},nothing")
    assert list(found) == [run.path.name] and len(found[run.path.name]) == 4  # evaluations


def test_a_run(client, named):
    run = named("ppo", 1)
    found = get(client, f"/api/runs/{run.path.name}")
    assert found["row"]["id"] == run.id and found["summary"]["status"] == "finished"
    assert {each["name"] for each in found["metrics"]} >= {"train/loss", "eval/return_mean"}
    assert [each["step"] for each in found["checkpoints"]][-1] == 1024
    assert found["alerts"] == [ALERT]
    assert found["media"][0] == {"file": "videos/film.mp4", "kind": "video", "bytes": 2048}
    assert found["command"] is None and found["report"]  # it was trained from Python
    assert get(client, f"/api/runs/{run.id}")["row"] == found["row"]  # by its id
    assert client.get("/api/runs/nothing").status_code == 404
    before = get(client, f"/api/runs/{run.id}/pulse")
    assert before == get(client, f"/api/runs/{run.id}/pulse") and not before["recording"]
    with run.metrics_file.open("ab") as file:
        file.write(b'{"step": 2000, "train/loss": 1.0}\n')
    assert get(client, f"/api/runs/{run.id}/pulse") != before


def test_curves(client, named):
    run = named("ppo", 1)
    found = get(client, f"/api/runs/{run.id}/series", names="train/loss,time/total,nothing")
    rows = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    expected = [row["step"] for row in rows if "train/loss" in row]
    assert found["known"] == 1 and found["curves"]["train/loss"]["steps"] == expected
    part = get(client, f"/api/runs/{run.id}/series", names="train/loss", low=300, high=600)
    assert part["curves"]["train/loss"]["steps"] == [s for s in expected if 300 <= s <= 600]
    for odd in ("-1", "1e9", "x", "9" * 40):
        get(client, f"/api/runs/{run.id}/series", names="train/loss", low=odd, points=odd)


def test_settings_say_where_they_come_from(client, named):
    rows = get(client, f"/api/runs/{named('ppo', 1).id}/config")["settings"]
    by_path = {row["path"]: row for row in rows}
    assert by_path["checkpoint.keep_best"]["origin"] == "default"
    changed = by_path["algorithm.rollout_steps"]
    assert changed["value"] == 16 != changed["default"]
    assert changed["origin"] == "preset or file"
    assert by_path["environment.vectorization"]["origin"] == "auto"


def test_log_and_report(client, named):
    run = named("ppo", 1)
    run.log_file.parent.mkdir(exist_ok=True)
    run.log_file.write_text("one\x1b[31m\ntwo\n")
    assert get(client, f"/api/runs/{run.id}/log")["text"] == "one\\u001b[31m\ntwo\n"
    answer = client.get(f"/api/runs/{run.id}/report")
    policy = answer.headers["content-security-policy"]
    assert answer.status_code == 200 and "sandbox" in policy and "script" not in policy


def test_films_in_pieces(client, named):
    path = f"/api/runs/{named('ppo', 1).id}/files/videos/film.mp4"
    whole = client.get(path)
    assert whole.content == bytes(range(256)) * 8 and whole.headers["content-type"] == "video/mp4"
    part = client.get(path, headers={"Range": "bytes=256-259"})
    assert (part.status_code, part.content) == (206, bytes([0, 1, 2, 3]))
    assert part.headers["content-range"] == "bytes 256-259/2048"
    assert client.get(path, headers={"Range": "bytes=-2"}).content == bytes([254, 255])
    for bad in ("bytes=4096-", "bytes=9-3", "bytes=0-1,5-9", "x", "bytes=-", "bytes=-0"):
        assert client.get(path, headers={"Range": bad}).status_code == 416


def test_recorded_episodes(client, named):
    run = named("ppo", 1)
    base = f"/api/runs/{run.id}/recordings"
    names = [each["name"] for each in get(client, base)["recordings"]]
    assert names == ["step_000000000512-seed_0", "step_000000001024-seed_0"]
    about = get(client, base)["recordings"][0]
    length = about["episodes"][1]["length"]
    found = get(client, f"{base}/{names[0]}/1")
    numbers = found["numbers"]
    assert len(numbers["reward"]) == length and len(numbers["obs"]) == length + 1
    assert len(numbers["probabilities"][0]) == 2 and found["frames"] == length + 1
    frame = client.get(f"{base}/{names[0]}/1/frame/{length}")
    assert frame.headers["content-type"] == "image/png"
    assert decode_png(frame.content).shape == (400, 600, 3)
    assert client.get(f"{base}/{names[0]}/1/frame/{length + 1}").status_code == 400
    assert client.get(f"{base}/{names[0]}/7").status_code == 400
    assert client.get(f"{base}/nothing/0").status_code == 400
    assert client.get(f"{base}/{names[0]}/1/picture/0", params={"key": "obs"}).status_code == 400
    saved = client.get(f"{base}/{names[0]}/1", params={"download": 1})
    assert "attachment" in saved.headers["content-disposition"]
    assert saved.json()["environment"] == "CartPole-v1"


@pytest.mark.needs("PIL")
def test_an_episode_as_a_film(client, named):
    path = f"/api/runs/{named('ppo', 1).id}/recordings/step_000000000512-seed_0/0/film"
    answer = client.get(path)
    assert answer.status_code == 200 and len(answer.content) > 1000


def test_recording_from_the_page(client, named):
    run = named("dqn", 0)
    base = f"/api/runs/{run.id}/recordings"
    asked = {"step": 256, "episodes": 1, "seed": 3, "max_steps": 5}
    assert client.post(base, json=asked).json() == {"recording": True}
    again = client.post(base, json=asked)
    assert again.status_code == 400 and "already" in again.json()["error"]
    deadline = time.monotonic() + 120
    while get(client, base)["recording"] and time.monotonic() < deadline:
        time.sleep(0.2)
    found = get(client, base)
    assert found["error"] is None
    assert [each["name"] for each in found["recordings"]] == ["step_000000000256-seed_3"]
    numbers = get(client, f"{base}/step_000000000256-seed_3/0")["numbers"]
    assert len(numbers["q_values"][0]) == 2


def test_a_run_whose_process_is_gone_is_not_shown_as_running(client, named):
    run = named("ppo", 2)
    run.write_summary({**run.read_summary(), "status": "running"})
    run.lock_file.write_text(str(os.getpid()))
    alive = get(client, f"/api/runs/{run.id}/pulse")
    assert get(client, f"/api/runs/{run.id}")["row"]["status"] == "running"
    run.lock_file.write_text(str(2**40))
    assert get(client, f"/api/runs/{run.id}")["row"]["status"] == "killed"
    assert get(client, f"/api/runs/{run.id}/pulse")["facts"] != alive["facts"]


def test_a_recorder_may_print_more_than_a_pipe_holds(tmp_path, monkeypatch):
    code = "import sys; sys.stderr.write('x\\n' * 100_000); sys.exit('error: no luck')"
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c \"{code}\"\n")
    program.chmod(0o755)
    run, recorders = RunDirectory(tmp_path / "a-run"), Recorders(tmp_path)
    monkeypatch.setattr(sys, "executable", str(program))
    recorders.start(run, {})
    recorders.running["a-run"].process.wait(60)
    assert recorders.state(run) == {"recording": False, "error": "no luck"}


def test_sigterm_ends_the_server_and_stops_its_recorders(tmp_path):
    from rl_lab.ui.server import prepare

    before, stopped = signal.getsignal(signal.SIGTERM), []
    served = replace(prepare(tmp_path, port=0), stop_recorders=lambda: stopped.append(True))
    wait = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))
    wait.start()
    try:
        with pytest.raises(SystemExit, match="143"):
            served.run()
    finally:
        wait.join()
        signal.signal(signal.SIGTERM, before)
    assert stopped == [True]


def test_a_browser_that_is_quicker_than_the_server_waits(tmp_path):
    """The address is printed, and opened in a browser, before the server answers."""
    from rl_lab.ui.server import prepare

    served = prepare(tmp_path, port=0)
    with served.socket, socket.create_connection(served.socket.getsockname(), timeout=5):
        pass  # refused, were it only bound


def test_labels(client, named):
    run = named("ppo", 2)
    path = f"/api/runs/{run.id}/labels"
    assert client.post(path, json={"add": ["good", "new"], "notes": "a <b>"}).status_code == 200
    assert client.post(path, json={"remove": ["new"]}).json()["tags"] == ["good"]
    assert read_labels(run).notes == "a <b>"


def test_only_a_run_in_training_is_stopped(client, named):
    answer = client.post(f"/api/runs/{named('ppo', 1).id}/stop", json={})
    assert answer.status_code == 400 and "not in training" in answer.json()["error"]


def test_compare(client, named):
    one, other, third = named("ppo", 1), named("ppo", 2), named("dqn", 0)
    runs = ",".join(run.path.name for run in (one, other, third))
    found = get(client, "/api/compare", runs=runs)
    assert [each["method"] for each in found["groups"]] == ["ppo", "dqn"]
    curve = found["groups"][0]["curve"]
    assert len(curve["steps"]) == len(curve["low"]) == 4
    assert found["groups"][1]["curve"]["low"] is None  # one run has no band
    assert len(found["curves"]) == 3 and len(found["pairs"]) == 1
    assert "algorithm.name" in [each["path"] for each in found["differences"]]
    assert client.get("/api/compare", params={"runs": ""}).status_code == 400
    assert client.get("/api/compare", params={"runs": "a,b"}).status_code == 404
