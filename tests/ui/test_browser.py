"""The pages in a real Chromium: every one of them, live, by keys, in both themes, on a phone."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rl_lab import api
from rl_lab.records.run_directory import RunDirectory
from rl_lab.tuning.driver import _remember
from rl_lab.tuning.sweep_file import parse_sweep
from rl_lab.tuning.tuner import Tuner
from ui.conftest import TOKEN

CHROMIUM = (
    os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
)
pytestmark = [
    pytest.mark.needs("starlette", "uvicorn", "playwright", "optuna"),
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]
WAIT = 60_000  # milliseconds: a machine may be busy
NASTY = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>{{7*7}}'
LIVE = "live-run"


def start(*words):
    command = [sys.executable, "-m", "rl_lab", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def end(process):
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


@pytest.fixture(scope="module")
def folder(made_runs, tmp_path_factory):
    """The runs, a sweep, and texts of a stranger wherever a run has texts."""
    root = Path(shutil.copytree(made_runs, tmp_path_factory.mktemp("browser") / "runs"))
    rows = {(row["algorithm"], row["seed"]): row["path"] for row in api.runs(runs_dir=root)}
    nasty = RunDirectory(root / rows["dqn", 0])
    text = nasty.config_file.read_text()
    name = re.search(r"^  name: .*$", text, re.MULTILINE)[0]
    nasty.config_file.write_text(text.replace(name, f"  name: {json.dumps(NASTY)}", 1))
    (nasty.path / "labels.json").write_text(json.dumps({"tags": [NASTY], "notes": NASTY}))
    alert = {"value": 1.0, **dict.fromkeys(("monitor", "metric", "message", "tip"), NASTY)}
    (nasty.path / "alerts.jsonl").write_text(json.dumps({**alert, "step": 5}) + "\n")
    nasty.log_file.parent.mkdir(exist_ok=True)
    nasty.log_file.write_text(NASTY)
    with nasty.metrics_file.open("a") as file:
        file.write(json.dumps({"step": 300, f"train/{NASTY}": 1.0}) + "\n")
    (nasty.path / "provenance.json").write_text(json.dumps({"command": ["rl-lab", NASTY]}))
    dimensions = {"algorithm.gamma": [0.9, 0.99], "algorithm.epochs": {"min": 1, "max": 9}}
    search = {"method": "random", "trials": 9, "sweep": dimensions}
    sweep = parse_sweep({"name": "tiny", "base_config": "CartPole-v1:ppo", **search})
    place = root / "sweeps" / "tiny"
    place.mkdir(parents=True)
    _remember(sweep, place)
    tuner = Tuner(sweep.space, method="random", name="tiny", journal=place / "journal.log")
    for value in range(9):
        tuner.tell(tuner.suggest(), float(value), [float(value)])
    return root


@pytest.fixture(scope="module")
def server(folder):
    """`rl-lab ui` on a free port; its address."""
    process = start("ui", folder, "--port", 0, "--no-browser", "--token", TOKEN)
    line = process.stdout.readline()
    yield re.search(r"http://\S+?(?=/\?token)", line)[0]
    end(process)


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=WAIT)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def visit(browser, server):
    """`visit("/", width=390)`: a page that must load nothing from elsewhere, and not complain."""
    opened, wrong = [], []

    def complained(text):
        if "status of 400" not in text:  # Chromium notes what the server explains
            wrong.append(text)

    def open_page(path, width=1280, height=800, scheme="light", token=TOKEN):
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme
        )
        context.set_default_timeout(WAIT)
        page = context.new_page()
        page.on("console", lambda each: each.type == "error" and complained(each.text))
        page.on("pageerror", lambda each: wrong.append(str(each)))
        page.on("dialog", lambda each: wrong.append(f"dialog: {each.message}"))
        page.on(
            "request", lambda each: each.url.startswith((server, "data:")) or wrong.append(each.url)
        )
        sign = "&" if "?" in path else "?"
        page.goto(f"{server}{path}{sign}token={token}")
        opened.append(context)
        return page

    yield open_page
    for context in opened:
        context.close()
    assert wrong == []


@pytest.fixture
def run(folder):
    """The folder of the recorded run."""
    rows = api.runs(runs_dir=folder)
    return next(row["path"] for row in rows if (row["algorithm"], row["seed"]) == ("ppo", 1))


def inked(page, selector="canvas.curve"):
    """How many pixels of a chart are drawn."""
    return page.locator(selector).first.evaluate(
        "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data"
        ".reduce((sum, value, at) => sum + (at % 4 === 3 && value > 200 ? 1 : 0), 0)"
    )


def test_the_table_and_its_keys(visit, server):
    from playwright.sync_api import expect

    page = visit("/")
    assert "token" not in page.url
    rows = page.locator("tbody tr:not(.gap)")
    expect(rows).to_have_count(3)
    expect(page.locator(".spark polyline")).to_have_count(2)  # one run has a single value
    page.keyboard.press("/")
    page.keyboard.type("algorithm=ppo")
    expect(rows).to_have_count(2)
    assert "filter=algorithm%3Dppo" in page.url
    page.keyboard.press("Escape")
    for key in ("j", "x", "j", "x", "k"):
        page.keyboard.press(key)
    expect(page.locator("tr.cursor")).to_have_count(1)
    expect(page.get_by_role("button", name="Compare 2")).to_be_enabled()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("?")
    page.get_by_role("button", name="seed").click()
    expect(page.locator("th[aria-sort=descending]")).to_have_count(1)
    page.keyboard.press("c")
    expect(page.get_by_role("heading", name="Settings that differ")).to_be_visible()
    assert inked(page) > 500
    page.keyboard.press("g")
    expect(rows).to_have_count(3)
    page.get_by_label("Filter").fill("name=nothing")
    expect(page.get_by_text("No run matches")).to_be_visible()
    page.get_by_label("Filter").fill("nokey=1")
    expect(page.get_by_text("no run has 'nokey'")).to_be_visible()


def test_curves_of_a_run(visit, run):
    from playwright.sync_api import expect

    page = visit(f"/run/{run}")
    chart = page.locator("figure.chart", has_text="eval/return_mean")
    expect(chart.locator("output")).not_to_have_text("")
    assert inked(page) > 300
    page.get_by_label("Smoothing").fill("0.9")
    page.get_by_label("log scale").check()
    box = chart.locator("canvas").bounding_box()
    page.mouse.move(box["x"] + 120, box["y"] + 80)
    expect(chart.locator("output")).to_contain_text("at ")
    page.mouse.down()
    page.mouse.move(box["x"] + 260, box["y"] + 80, steps=4)
    page.mouse.up()
    expect(page.get_by_role("button", name="Reset zoom")).to_be_visible()
    page.get_by_role("button", name="Reset zoom").click()
    page.get_by_label("Filter the metrics").fill("train/")
    for name in ("train/policy_loss", "train/value_loss"):
        page.get_by_label(f"draw {name} with others").click()
    expect(page.locator("figure.large .legend button")).to_have_count(2)
    page.locator("figure.large .legend button").first.click()
    expect(page.locator("figure.large .legend button.off")).to_have_count(1)


def test_the_other_tabs_and_labels(visit, run):
    from playwright.sync_api import expect

    page = visit(f"/run/{run}")
    page.get_by_label("Add a tag").fill("from-the-page")
    page.keyboard.press("Tab")
    expect(page.get_by_label("remove from-the-page")).to_be_visible()
    for key, text in (
        ("3", "algorithm.gamma"), ("4", "record episodes"), ("5", "videos/film.mp4"),
        ("6", "KL is 0.3, above 0.1"), ("7", "compute.compile=off"),
    ):  # fmt: skip
        page.keyboard.press("Escape")
        page.keyboard.press(key)
        expect(page.get_by_text(text).first).to_be_visible()


def test_a_run_in_training_moves_and_is_stopped(visit, folder):
    from playwright.sync_api import expect

    words = ["training.total_timesteps=100000000", f"experiment.name={LIVE}"]
    words += ["logging.every_steps=256", "compute.compile=off"]
    small = ["evaluation.every_steps=0", "environment.num_envs=2", "algorithm.rollout_steps=64"]
    trained = start("train", "CartPole-v1:ppo_none", *words, *small, "--runs-dir", folder, "-q")
    try:
        page = visit("/")
        row = page.locator("tbody tr", has_text=LIVE)
        expect(row.locator(".pill.running")).to_be_visible(timeout=WAIT)
        row.get_by_role("link").click()
        chart = page.locator("figure.chart", has_text="train/loss")
        expect(chart.locator("output")).not_to_have_text("", timeout=WAIT)
        before = chart.locator("canvas").get_attribute("aria-label")
        expect(chart.locator("canvas")).not_to_have_attribute("aria-label", before, timeout=WAIT)
        page.get_by_role("button", name="Save and stop").click()
        expect(page.locator(".pill.interrupted")).to_be_visible(timeout=WAIT)
        assert trained.wait(60) == 130
    finally:
        end(trained)


def test_the_inspector(visit, run):
    from playwright.sync_api import expect

    page = visit(f"/run/{run}/episodes")
    step = page.locator("output.step")
    expect(step).to_have_text(re.compile(r"^0 / \d+$"))
    frame = page.locator("img.frame")
    expect(frame).to_have_js_property("naturalWidth", 600)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(step).to_have_text(re.compile("^2 / "))
    assert frame.get_attribute("src").endswith("/frame/2")
    expect(page.get_by_text("action probabilities")).to_be_visible()
    expect(page.locator(".bars .chosen")).to_have_count(1)
    assert page.locator("dl.numbers dd").first.text_content() == "2"  # CartPole pays 1 a step
    page.keyboard.press("w")
    expect(page.locator("dl.numbers", has_text="value error")).to_be_visible()
    page.keyboard.press("End")
    expect(page.get_by_text(re.compile("the task ended here|cut here"))).to_be_visible()
    page.keyboard.press("Home")
    page.keyboard.press(" ")
    expect(step).not_to_have_text(re.compile("^0 / "))
    page.keyboard.press(" ")
    page.get_by_label("Side by side").select_option(index=1)
    expect(page.locator("img.frame")).to_have_count(2)
    expect(page.locator("section.side")).to_have_count(2)
    assert inked(page) > 200
    with page.expect_download() as download:
        page.get_by_role("link", name="JSON").first.click()
    assert json.loads(Path(download.value.path()).read_text())["environment"] == "CartPole-v1"


def test_recording_from_the_page(visit, folder):
    from playwright.sync_api import expect

    rows = api.runs(runs_dir=folder)
    run = next(row["path"] for row in rows if (row["algorithm"], row["seed"]) == ("ppo", 2))
    page = visit(f"/run/{run}/episodes")
    expect(page.get_by_text("No recorded episodes yet")).to_be_visible()
    page.locator("input[name=episodes]").fill("1")
    page.get_by_role("button", name="Record").click()
    expect(page.get_by_role("button", name="Recording …")).to_be_disabled()
    expect(page.locator("img.frame")).to_be_visible(timeout=2 * WAIT)


def test_a_sweep(visit):
    from playwright.sync_api import expect

    page = visit("/sweep/")
    page.get_by_role("link", name="tiny").click()
    expect(page.locator("svg.parallel polyline")).to_have_count(9)
    expect(page.locator("tr[data-trial]")).to_have_count(9)
    page.locator("tr[data-trial]").first.hover()
    expect(page.locator("polyline.lit")).to_have_count(1)
    expect(page.locator(".importance > i")).to_have_count(2)


def test_both_themes(visit, run):
    seen = set()
    for scheme in ("light", "dark"):
        page = visit(f"/run/{run}", scheme=scheme)
        page.locator("canvas.curve").first.wait_for()
        seen.add(page.locator("body").evaluate("body => getComputedStyle(body).backgroundColor"))
        assert page.locator("html").get_attribute("data-theme") == scheme
    assert len(seen) == 2
    page.keyboard.press("t")  # light, whatever the system says
    assert page.locator("html").get_attribute("data-theme") == "light"
    page.reload()
    assert page.locator("html").get_attribute("data-theme") == "light"


def test_a_phone(visit, run):
    tabs = [f"/run/{run}/{tab}" for tab in ("curves", "episodes", "config")]
    for path in ("/", *tabs, f"/compare?runs={run}", "/sweep/tiny"):
        page = visit(path, width=390, height=780)
        page.locator("canvas, tbody tr, svg.parallel").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path


def test_texts_of_a_stranger_are_texts(visit, folder):
    rows = api.runs(runs_dir=folder)
    run = next(row["path"] for row in rows if row["algorithm"] == "dqn")
    tabs = ("curves", "episodes", "config", "checkpoints", "media", "alerts", "log")
    for path in ("/", *(f"/run/{run}/{tab}" for tab in tabs), f"/compare?runs={run}"):
        page = visit(path)
        if not path.startswith("/compare"):
            page.get_by_text(NASTY).first.wait_for()
        else:
            page.get_by_role("heading", name="Results").wait_for()
        assert page.evaluate("window.hacked") is None
        assert page.locator("main script, main img[src=x]").count() == 0


def test_without_the_token_there_is_a_hint(browser, server):
    page = browser.new_page()
    answer = page.goto(f"{server}/")
    assert answer.status == 401 and "rl-lab ui" in page.text_content("body")
    page.close()
