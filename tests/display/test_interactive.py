"""Interactive charts: safe data in the page, our script alone, and what Chromium makes of them."""

import base64
import hashlib
import json
import re

import numpy as np
import pytest

from pages import ATTACKS, chromium, read, rendered, scripts
from rl_lab.analysis.document import Drawing, Heading, More, Paragraph, to_html, to_markdown
from rl_lab.display.chart import Chart, Line, Panel
from rl_lab.display.interactive import data_block, script, to_data

needs_chromium = pytest.mark.skipif(chromium() is None, reason="needs chromium (apt)")
X = np.array([0.0, 100.0, 200.0])


def chart(name="method", y=(1.0, 2.0, 4.0), **more):
    line = Line(name, X, np.array(y), **more)
    return Chart(f"title {name}", [Panel(f"panel {name}", "steps", f"unit {name}", [line])], name)


def test_the_data_of_a_line():
    band = (np.array([0.5, 1.5, 3.5]), np.array([1.5, 2.5, np.inf]))
    data = to_data(chart(y=(1.0, np.nan, 1 / 3), band=band, color=9, thin=True))
    (line,) = data["panels"][0]["lines"]
    # color 9 is the second of eight, for the second time: dashed; six digits are enough
    assert (line["color"], line["dash"], line["thin"]) == (1, "6 3", True)
    assert line["x"] == [0, 100, 200] and line["y"] == [1, None, 0.333333]
    assert line["low"] == [0.5, 1.5, 3.5] and line["high"] == [1.5, 2.5, None]


def test_the_page_allows_our_script_and_nothing_else():
    page = to_html("page", [Drawing("curves", "curves.svg", chart())])
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    assert f"script-src &#x27;sha256-{digest}&#x27;" in policy and "default-src" in policy
    data, code = scripts(page)
    assert code == script() and json.loads(data)["title"] == "title method"
    assert not read(page).addresses  # no file, no server
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)


def test_a_page_without_charts_has_no_script():
    assert scripts(to_html("page", [Heading("a"), Paragraph("b")])) == []


def test_markdown_names_the_still_picture_and_leaves_the_rest_out():
    blocks = [Drawing("curves", "curves.svg", chart()), More("2 more", chart()), Heading("end")]
    assert to_markdown("t", blocks) == "# t\n\n![curves](curves.svg)\n\n## end\n"


@pytest.mark.parametrize("name", ATTACKS)
def test_no_name_ends_its_element(name):
    page = to_html(name, [Drawing(name, "curves.svg", chart(name)), More(name, chart(name))])
    reader = read(page)
    *data, code = reader.scripts
    assert code == script() and len(data) == 2
    assert all(json.loads(each)["panels"] for each in data)
    assert not {"iframe", "img", "object", "base"} & set(reader.tags) and not reader.addresses


def test_json_in_a_page_is_the_same_json():
    data = {"a": "</script><!-- & \u2028 é", "b": [1, None, 2.5]}
    (text,) = scripts(data_block(data))
    assert json.loads(text) == data and not set("<>&\u2028") & set(text)
    with pytest.raises(ValueError, match="JSON"):
        data_block({"a": float("nan")})


@needs_chromium
def test_chromium_draws_it_and_runs_nothing_else(tmp_path):
    blocks = [Drawing(name, "curves.svg", chart(name)) for name in ATTACKS]
    page = tmp_path / "page.html"
    page.write_text(to_html("the title", [*blocks, More("more", chart())]))
    dom = rendered(page, tmp_path / "profile")
    assert "<title>the title</title>" in dom  # no attack has changed it
    count = len(ATTACKS) + 1
    assert dom.count('class="interactive"') == count and 'class="still"' not in dom
    assert len(re.findall(r'<path fill="none" stroke="var\(--c0\)"', dom)) == count
    assert dom.count('type="range"') == count and dom.count('aria-pressed="true"') == count
    # y from 1 to 4 with 5 % room, 220 high: 1 lies at 230 - 220 * 0.15 / 3.3 = 220
    assert "M62.0,220.0" in dom


@needs_chromium
def test_without_scripts_the_still_picture_stays(tmp_path):
    page = tmp_path / "page.html"
    text = to_html("t", [Drawing("curves", "curves.svg", chart())])
    page.write_text(text.replace('"use strict";', '"use strict"; '))  # another hash: not allowed
    dom = rendered(page, tmp_path / "profile")
    assert 'class="still"' in dom and 'class="interactive"' not in dom


@needs_chromium
@pytest.mark.needs("playwright")
def test_a_reader_hovers_zooms_hides_and_smooths(tmp_path):
    from playwright.sync_api import expect, sync_playwright

    steps = np.arange(0.0, 1001.0)
    rising = Line("rising", steps, steps / 10)
    jumping = Line("jumping", steps, 50 + 40 * (-1.0) ** steps, 1)
    panel = Panel("return", "environment steps", "eval/return_mean", [rising, jumping])
    page_file = tmp_path / "page.html"
    blocks = [Drawing("curves", "curves.svg", Chart("title", [panel]))]
    page_file.write_text(to_html("title", blocks))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 900, "height": 700})
        requests, problems = [], []
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(page_file.as_uri())
        box = page.locator(".panel svg").bounding_box()

        def at(share):  # of the plot, which has 62 units of 470 to its left and 14 to its right
            x = box["x"] + box["width"] * (62 + share * 394) / 470
            return x, box["y"] + box["height"] / 2

        page.mouse.move(*at(0.5))
        readout = page.locator(".readout")
        expect(readout).to_contain_text("environment steps 500")
        expect(readout).to_contain_text("rising: 50")
        expect(readout).to_contain_text("jumping: 90")  # step 500 is even
        page.mouse.down()
        page.mouse.move(*at(0.75), steps=4)
        page.mouse.up()
        labels = page.locator(".panel svg text")
        expect(labels.filter(has_text="600")).to_have_count(1)  # from 500 to 750 now
        expect(labels.filter(has_text="200")).to_have_count(0)
        page.locator("input[type=range]").evaluate(
            "input => { input.value = 0.9; input.dispatchEvent(new Event('input')); }"
        )
        page.mouse.move(*at(0.98))
        value = float(readout.locator("span").nth(1).inner_text().split(": ")[1])
        assert abs(value - 50) < 3  # 90 and 10 in turns, averaged
        page.get_by_role("button", name="jumping").click()
        page.mouse.move(*at(0.5))
        expect(readout).not_to_contain_text("jumping")
        page.get_by_role("button", name="whole range").click()
        expect(labels.filter(has_text="200")).to_have_count(1)
        assert requests == [page_file.as_uri()] and problems == []
        browser.close()
