"""Lines with labels: one colour for each, and a legend; the example that draws them runs."""

import importlib.util
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rl_lab.core.picture import Lines, Picture
from rl_lab.display.pictures import render

BLUE, ORANGE = (31, 119, 180), (255, 127, 14)
FLAT = [np.array([[0.0, height], [1.0, height]]) for height in (0.2, 0.4)]


def colours(png: bytes) -> set[tuple[int, ...]]:
    image = np.asarray(Image.open(BytesIO(png)).convert("RGB"))
    return {tuple(each) for each in np.unique(image.reshape(-1, 3), axis=0).tolist()}


@pytest.mark.needs("matplotlib")
def test_labelled_lines_differ_and_others_are_alike():
    plain = render(Picture("plain", [Lines(FLAT)]))
    named = render(Picture("plain", [Lines(FLAT, ["one", "two"])]))
    assert BLUE in colours(plain) and ORANGE not in colours(plain)
    assert {BLUE, ORANGE} <= colours(named)
    assert render(Picture("plain", [Lines(FLAT, ["one", "three"])])) != named  # they can be read


@pytest.mark.needs("matplotlib")
def test_the_example_draws_a_curve_for_every_agent(tmp_path, monkeypatch, capsys):
    file = Path(__file__).parents[2] / "examples/bandits/regret.py"
    spec = importlib.util.spec_from_file_location("regret", file)
    regret = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(regret)
    words = ["--pulls", "20", "--bandits", "10", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["regret.py", *words, "--runs-dir", str(tmp_path / "runs")])
    regret.main()
    assert (tmp_path / "out" / "regret.png").stat().st_size > 1000
    assert (tmp_path / "out" / "optimal.png").stat().st_size > 1000
    said = capsys.readouterr().out
    assert all(said.count(agent) == 2 for agent in regret.AGENTS)
