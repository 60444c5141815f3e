"""Requests and run folders that want more than a page may show: nothing is given or run."""

import json
import os
import subprocess
import sys

import pytest

from rl_lab.records.labels import set_notes
from rl_lab.records.recordings import FOLDER, read_arrays
from rl_lab.ui.episodes import command
from ui.conftest import HOST, TOKEN

pytestmark = pytest.mark.needs("starlette", "uvicorn", "httpx")
SECRET = "nobody may read this"
RECORDING = "step_000000000512-seed_0"


@pytest.fixture
def stranger(client):
    """The same server, asked without the token."""
    client.headers.pop("authorization")
    return client


@pytest.fixture
def secret(root):
    """A file beside the runs, as a link or a path could reach it."""
    file = root.parent / "secret.png"
    file.write_text(SECRET)
    return file


# ------------------------------------------------------------------------------ who is asking

WRONG_TOKENS = ["", "x", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), TOKEN + "\0", "ü", "%00", "*"]


@pytest.mark.parametrize("token", WRONG_TOKENS)
def test_no_token_no_data(stranger, token):
    for path in ("/", "/api/runs", "/assets/app.js", "/run/x", "/nothing"):
        answer = stranger.get(path, params={"token": token})
        assert answer.status_code == 401 and "CartPole" not in answer.text
    value = token.encode()
    assert (
        stranger.get("/api/runs", headers={"authorization": b"Bearer " + value}).status_code == 401
    )
    assert stranger.get("/api/runs", headers={"cookie": b"rl_lab_ui=" + value}).status_code == 401
    assert stranger.post("/api/runs/x/stop", json={}).status_code == 401


def test_the_token_of_the_address_becomes_a_cookie(stranger):
    answer = stranger.get("/api/runs", params={"token": TOKEN, "filter": "a=b c"})
    assert answer.status_code == 303 and answer.headers["location"] == "/api/runs?filter=a%3Db+c"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "path=/" in cookie
    assert stranger.get("/api/runs").status_code == 200  # the client keeps cookies
    # An address with a token loses it even if there is a cookie already; a wrong one is refused.
    assert stranger.get("/", params={"token": TOKEN}).status_code == 303
    assert stranger.get("/", params={"token": "wrong"}).status_code == 401


@pytest.mark.parametrize("path", ["//evil.example/x", "/\\evil.example", "///evil.example"])
def test_a_first_visit_leads_to_no_other_host(stranger, path):
    answer = stranger.get(f"{HOST}{path}?token={TOKEN}")
    location = answer.headers["location"]
    assert answer.status_code == 303 and location.startswith("/")
    assert not location.startswith(("//", "/\\"))


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:7860", "127.0.0.1.evil.example", "127.0.0.1@evil.example",
        "127.0.0.1/x?", "localhost.evil.example", "0.0.0.0", "[::ffff:127.0.0.2]", "", "a b",
        "127.0.0.1:7860:80", "169.254.169.254",
    ],
)  # fmt: skip
def test_another_host_is_refused_whatever_it_brings(client, host):
    answer = client.get("/api/runs", headers={"host": host})
    assert answer.status_code == 400 and "CartPole" not in answer.text


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example", "null", "https://127.0.0.1:7860", "http://127.0.0.1",
        "http://127.0.0.1:7861", "http://localhost:7860", "http://127.0.0.1:7860.evil.example", "",
    ],
)  # fmt: skip
def test_another_origin_may_neither_read_nor_change(client, named, origin):
    run = named("ppo", 1)
    path = f"/api/runs/{run.id}/labels"
    assert client.get("/api/runs", headers={"origin": origin}).status_code == 403
    assert client.post(path, json={"add": ["x"]}, headers={"origin": origin}).status_code == 403
    assert not (run.path / "labels.json").exists()


def test_a_cookie_alone_changes_nothing_without_an_origin(stranger, named):
    stranger.get("/", params={"token": TOKEN})
    path = f"/api/runs/{named('ppo', 1).id}/labels"
    assert stranger.post(path, json={"add": ["x"]}).status_code == 403
    assert stranger.post(path, json={"add": ["x"]}, headers={"origin": HOST}).status_code == 200
    cross = {"origin": HOST, "sec-fetch-site": "cross-site"}
    assert stranger.post(path, json={"add": ["y"]}, headers=cross).status_code == 403


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (415, {"data": {"add": "x"}}),  # what a form of another page could send
        (415, {"content": b'{"add": ["x"]}', "headers": {"content-type": "text/plain"}}),
        (413, {"json": {"notes": "x" * 70_000}}),
        (413, {"json": {}, "headers": {"Transfer-Encoding": "chunked", "Content-Length": "2"}}),
        (400, {"json": [1]}),
        (400, {"json": {"add": "x"}}),
        (400, {"json": {"add": [1]}}),
        (400, {"json": {"add": ["<img src=x>"]}}),
        (400, {"json": {"add": ["a b"]}}),
        (400, {"json": {"notes": 5}}),
        (400, {"content": b"[" * 60_000, "headers": {"content-type": "application/json"}}),
        (400, {"content": b"{not json", "headers": {"content-type": "application/json"}}),
        (400, {"content": b"\xff\xfe", "headers": {"content-type": "application/json"}}),
    ],
)
def test_bad_bodies(client, named, code, arguments):
    answer = client.post(f"/api/runs/{named('ppo', 1).id}/labels", **arguments)
    assert answer.status_code == code and "error" in answer.json()


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "POST"])
def test_there_is_nothing_else_to_do(client, method):
    assert client.request(method, "/api/runs", json={}).status_code == 405


# --------------------------------------------------------------------------- what is asked for

PATHS = [
    "../../secret.png", "..%2f..%2fsecret.png", "%2e%2e/%2e%2e/secret.png", "..\\..\\secret.png",
    "videos/../../../secret.png", "videos/..%2f..%2f..%2fsecret.png", "/etc/passwd", "//etc/passwd",
    "videos//film.mp4", "videos/./film.mp4", "videos/.hidden.png", "videos/%00.png",
    "videos/film.mp4%00.png", "videos/link.png", "videos/folder/secret.png", "config.yaml",
    "labels.json", "mark.json", "provenance.json", "checkpoints/latest/state.safetensors",
    "videos/film.html", "videos/film.svg", "videos", f"videos/{'x' * 5000}.png",
]  # fmt: skip


@pytest.mark.parametrize("file", PATHS)
def test_files_outside_of_films_and_pictures(client, named, secret, file):
    run = named("ppo", 1)
    (run.path / "videos" / ".hidden.png").write_text(SECRET)
    (run.path / "videos" / "film.html").write_text(f"<script>{SECRET}</script>")
    (run.path / "videos" / "film.svg").write_text(f"<svg>{SECRET}</svg>")
    (run.path / "videos" / "link.png").symlink_to(secret)
    (run.path / "videos" / "folder").symlink_to(secret.parent)
    answer = client.get(f"{HOST}/api/runs/{run.id}/files/{file}")
    assert answer.status_code in (400, 404) and SECRET not in answer.text


NAMES = ["..", "%2e%2e", "..%2f..", "%2fetc", ".hidden", "index.sqlite", "x%00", "-rf", "*"]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_are_no_run(client, root, name):
    (root / ".hidden").mkdir()
    (root / ".hidden" / "config.yaml").write_text("{}")
    for path in ("", "/series", "/report", "/files/videos/film.mp4", "/recordings"):
        assert client.get(f"{HOST}/api/runs/{name}{path}").status_code == 404
    assert client.get(f"{HOST}/api/sweeps/{name}").status_code == 404


@pytest.mark.parametrize("what", ["run", "file", "folder", "pipe"])
def test_links_that_leave_the_folder(client, root, named, secret, what):
    run = named("ppo", 1)
    if what == "run":  # a whole run elsewhere, linked into the folder
        elsewhere = root.parent / "elsewhere-20261118-000000-abcdef"
        run.path.rename(elsewhere)
        (root / elsewhere.name).symlink_to(elsewhere)
        name = elsewhere.name
        assert name not in client.get("/api/runs").text
    elif what == "file":
        run.metrics_file.unlink()
        run.metrics_file.symlink_to(secret)
        name = run.id
    elif what == "folder":
        (run.path / "pictures").symlink_to(secret.parent)
        name = run.id
    else:
        os.mkfifo(run.path / "alerts.jsonl.pipe")
        name = run.id
    for path in ("", "/series?names=train/loss", "/log", "/report", "/recordings"):
        answer = client.get(f"/api/runs/{name}{path}")
        assert answer.status_code in (400, 404) and SECRET not in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/0/frame/99999999999999999999", "/99999/frame/0", "/0/picture/0?key=../../secret",
        "/0/picture/0?key=frame_offset", "/0/picture/99999?key=obs", "/0/picture/0", "/-1", "/x",
    ],
)  # fmt: skip
def test_odd_places_of_a_recording(client, named, path):
    answer = client.get(f"/api/runs/{named('ppo', 1).id}/recordings/{RECORDING}{path}")
    assert answer.status_code in (400, 404)


@pytest.mark.parametrize(
    "name", ["..", "%2e%2e%2fcheckpoints", "latest", "step_1-seed_0", "x" * 300]
)
def test_names_that_are_no_recording(client, named, name):
    answer = client.get(f"{HOST}/api/runs/{named('ppo', 1).id}/recordings/{name}/0")
    assert answer.status_code in (400, 404)


def _edit(run, name, change):
    """Change a file of a recording, and make its manifest fit."""
    file = run.path / FOLDER / RECORDING / name
    file.write_bytes(change(file.read_bytes()))


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("episode_000.safetensors", lambda data: b"\xff" * 8 + data),  # a header of 2^64 bytes
        ("episode_000.safetensors", lambda data: data[:40]),
        ("episode_000.safetensors", lambda data: b"cos\nsystem\n(S'id'\ntR."),  # a pickle
        ("episode_000.safetensors", lambda data: b""),
        ("episode_000.frames", lambda data: data[:10]),
        ("manifest.json", lambda data: data.replace(b'"episodes"', b'"episode"')),
        ("manifest.json", lambda data: b"[" * 100_000),
        ("manifest.json", lambda data: b"{}"),
    ],
)
def test_damaged_recordings_are_one_line(client, named, file, change):
    run = named("ppo", 1)
    _edit(run, file, change)
    base = f"/api/runs/{run.id}/recordings"
    assert client.get(base).status_code == 200
    codes = [client.get(f"{base}/{RECORDING}/0{each}").status_code for each in ("", "/frame/40")]
    assert 400 in codes and 500 not in codes


@pytest.mark.parametrize(
    "asked",
    [
        {"step": "512; rm -rf /"}, {"step": -1}, {"step": True}, {"episodes": 0}, {"seed": 2.5},
        {"episodes": 1000}, {"trust": True}, {"runs_dir": "/"}, {"max_steps": 10**9},
        {"--trust": 1}, {"plugins": ["x.py"]},
    ],
)  # fmt: skip
def test_recording_takes_numbers_only(client, named, asked):
    run = named("ppo", 1)
    answer = client.post(f"/api/runs/{run.id}/recordings", json=asked)
    assert answer.status_code == 400
    assert "--trust" not in command(run, {"step": 5, "sample": True})


def test_a_foreign_run_that_names_code_is_not_recorded(root, named):
    run = named("ppo", 1)
    text = run.config_file.read_text()
    assert text.count("plugins: []") == 1
    marker = root.parent / "executed"
    plugin = root.parent / "plugin.py"
    plugin.write_text(f"open({str(marker)!r}, 'w')")
    run.config_file.write_text(text.replace("plugins: []", f"plugins: ['{plugin}']"))
    words = command(run, {"episodes": 1})
    done = subprocess.run(
        [sys.executable, "-m", "rl_lab", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "--trust" in done.stderr and not marker.exists()


def test_a_stolen_process_number_is_not_signalled(client, named):
    run = named("ppo", 1)
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        for said in (str(victim.pid), "1", "0", "-1", "x", str(os.getpid())):
            run.lock_file.write_text(said)
            assert client.post(f"/api/runs/{run.id}/stop", json={}).status_code == 400
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


# ------------------------------------------------------------------------------- what comes back

NASTY = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", '"><svg onload=alert(1)>',
    "javascript:alert(1)", "{{7*7}}", "${7*7}", "</title><script>alert(1)</script>", "&lt;b&gt;",
    "\u202egnp.exe", "\x1b[2J",
]  # fmt: skip


@pytest.mark.parametrize("text", NASTY)
def test_texts_of_runs_come_as_json_that_no_browser_reads_as_a_page(client, named, text):
    run = named("ppo", 1)
    set_notes(run, text)
    answer = client.get(f"/api/runs/{run.id}")
    assert answer.json()["row"]["notes"] == text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_every_answer_forbids_scripts_from_elsewhere(client, stranger):
    for path in ("/", "/api/runs", "/nothing", "/assets/app.js", "/api/runs/x"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and "http" not in policy
        assert headers["referrer-policy"] == "no-referrer" and headers["x-frame-options"] == "DENY"
        assert "access-control-allow-origin" not in headers and "server" not in headers


HTML_FROM_TEXT = (
    *("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "srcdoc", "<script>"),
    *("eval(", "new Function", " style=", "@import"),
)


def test_the_scripts_never_parse_html():
    from rl_lab.ui.app import ASSETS

    for file in ASSETS.iterdir():
        text = file.read_text()
        assert not [word for word in HTML_FROM_TEXT if word in text], file.name
        rest = text.replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in rest and "https:" not in rest, file.name


def test_numbers_that_are_none_become_null(client, named):
    run = named("ppo", 1)
    answer = client.get(f"/api/runs/{run.id}/recordings/{RECORDING}/0")
    json.loads(answer.text, parse_constant=lambda word: pytest.fail(word))
    assert "reward" in read_arrays(run, RECORDING, 0)
