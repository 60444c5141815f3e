"""Charts as SVG: valid XML, escaped, with ticks, bands, markers and a legend that fits."""

import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from rl_lab.display import svg
from rl_lab.display.chart import FEW, Chart, Line, Panel, to_svg

NAMESPACE = "{http://www.w3.org/2000/svg}"


def line(*values, label="a", start=0.0, **more):
    x = start + np.arange(len(values), dtype=float)
    return Line(label, x, np.array(values, dtype=float), **more)


def drawn(*lines, **more):
    return ElementTree.fromstring(to_svg(Chart("title", [Panel("p", "x", "y", lines, **more)])))


def found(tree, name):
    return list(tree.iter(f"{NAMESPACE}{name}"))


def coordinates(shape):
    return [tuple(map(float, pair.split(","))) for pair in shape.get("points").split()]


def texts(tree):
    return [each.text for each in found(tree, "text")]


def test_a_line_goes_through_its_points():
    (curve,) = found(drawn(line(0.0, 1.0, 0.5), y_range=(0.0, 1.0)), "polyline")
    (x0, y0), (x1, y1), (x2, y2) = coordinates(curve)
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)  # equal steps
    assert y1 < y2 < y0 and y2 == pytest.approx((y0 + y1) / 2, abs=0.2)  # up is less in SVG


def test_short_curves_have_markers_and_long_ones_have_none():
    circles = found(drawn(line(*range(FEW))), "circle")
    assert len(circles) == FEW and found(circles[3], "title")[0].text == "3: 3"
    assert not found(drawn(line(*range(FEW + 1))), "circle")
    assert len(found(drawn(line(7.0)), "circle")) == 1  # one value is a point


def test_a_band_is_an_area_around_the_line():
    values = np.array([1.0, 2.0, 3.0])
    tree = drawn(line(*values, band=(values - 1, values + 1)))
    ((low0, _, low2, high2, _, high0), (y0, _, y2)) = (
        [y for _, y in coordinates(shape)]
        for shape in (found(tree, "polygon")[0], found(tree, "polyline")[0])
    )
    assert high0 < y0 < low0 and high2 < y2 < low2


def test_no_text_is_markup():
    evil = '<script>alert("1")</script> & \x1b[31m \u202e \uffff ]]>'
    chart = Chart(evil, [Panel(evil, evil, evil, [line(1.0, 2.0, label=evil)])], note=evil)
    picture = to_svg(chart)
    tree = ElementTree.fromstring(picture)
    assert not found(tree, "script") and "\x1b" not in picture and "\u202e" not in picture
    assert "<script>" in " ".join(texts(tree))  # shown as it is


def test_a_legend_stays_within_its_picture():
    lines = [line(1.0, 2.0, label=f"{index} {'long ' * 30}", color=index) for index in range(12)]
    tree = drawn(*lines)
    width, height = float(tree.get("width")), float(tree.get("height"))
    for each in found(tree, "text"):
        size = svg.width_of(each.text or "", float(each.get("font-size")))
        left = (
            float(each.get("x"))
            - {"start": 0, "middle": size / 2, "end": size}[each.get("text-anchor")]
        )
        assert left >= 0 and left + size <= width and float(each.get("y")) <= height
    dashes = [each.get("stroke-dasharray") for each in found(tree, "polyline")]
    assert dashes[:8] == [None] * 8 and dashes[8] is not None  # the colors begin again


def test_a_single_line_that_the_axis_names_needs_no_legend():
    assert texts(drawn(line(1.0, 2.0, label="y"))).count("y") == 1
    assert "other" in texts(drawn(line(1.0, 2.0, label="other")))


@pytest.mark.parametrize(
    "values", [[5.0, 5.0], [0.0, 0.0], [1e300, -1e308], [1.7e308, 0], [1e-9, 3e-9], [-3e7, 2e7]]
)
def test_any_numbers_can_be_drawn(values):
    tree = drawn(line(*values))
    for shape in found(tree, "polyline"):
        assert all(math.isfinite(each) for pair in coordinates(shape) for each in pair)
    assert "nan" not in ElementTree.tostring(tree, encoding="unicode")


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0, 500, ["0", "100", "200", "300", "400", "500"]),
        (-0.02, 0.37, ["0", "0.1", "0.2", "0.3"]),
        (0, 60_416, ["0", "10k", "20k", "30k", "40k", "50k", "60k"]),
        (0, 2e6, ["0", "0.5M", "1.0M", "1.5M", "2.0M"]),
        (100, 3000, ["500", "1,000", "1,500", "2,000", "2,500", "3,000"]),
        (1e-9, 3e-9, ["1e-09", "1.5e-09", "2e-09", "2.5e-09", "3e-09"]),
    ],
)
def test_ticks_are_round_numbers(low, high, labels):
    assert svg.tick_labels(svg.ticks(low, high), short=True) == labels


def test_colors_are_blended():
    assert svg.blend(0.5, "#000000", "#ff8040") == "#804020"
    assert svg.blend(2.0, "#000000", "#ff8040") == "#ff8040"
