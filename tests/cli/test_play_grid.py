"""`rl-lab play RUN RUN:STEP … --grid`: the same episodes, side by side in one video."""

import json

import numpy as np
import pytest

import rl_lab
from film_files import read_gif
from rl_lab.analysis.grid import tiled
from rl_lab.cli.main import main
from tiny_runs import tiny_run

pytestmark = [pytest.mark.needs("PIL"), pytest.mark.needs("pygame")]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    tiny_run(
        root, "CartPole-v1:ppo_gru_defaults", "experiment.name=a", "training.total_timesteps=512"
    )
    tiny_run(root, "CartPole-v1:ppo_defaults", "experiment.name=b", "training.total_timesteps=256")
    return root


def test_tiles_of_any_size():
    dark, light = np.zeros((2, 3, 3), np.uint8), np.full((1, 2, 3), 9, np.uint8)
    sheet = tiled([dark, light, light])
    assert sheet.shape == (4, 6, 3)  # two columns, two rows, each as large as the largest
    assert sheet[0, 3:5].all() and sheet[2, 0:2].all() and not sheet[0, :3].any()
    assert tiled([light]).shape == (1, 2, 3)


def test_runs_and_checkpoints_side_by_side(root, tmp_path, capsys):
    file = tmp_path / "grid.gif"
    names = ["a:256", "a:512", "b"]
    words = ["--grid", "--video", str(file), "--episodes", "2", "--json"]
    assert main(["play", *names, *words, "--runs-dir", str(root)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["step"] for each in found] == [256, 512, 256]
    assert all(len(each["returns"]) == 2 for each in found)
    # Each plays what it plays alone: same seeds, same policy.
    for name, each in zip(names, found, strict=True):
        alone = rl_lab.play(name, episodes=2, seed=0, video=tmp_path / "one.gif", runs_dir=root)
        assert alone.returns == each["returns"]
    frames, _ = read_gif(file)
    longest = max(each["lengths"][0] for each in found)
    assert len(frames) >= longest


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a", "b"], "several runs are played side by side with --grid"),
        (["a", "b", "--grid"], "--grid needs --video FILE"),
        (["a", "nobody", "--grid", "--video", "x.gif"], "nobody"),
    ],
)
def test_mistakes_are_one_line(root, tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    assert main(["play", *words, "--runs-dir", str(root)]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
