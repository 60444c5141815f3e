"""Pictures: recorded episodes, drawn layers, files of a run, and what must not be disturbed."""

import builtins
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from rl_lab.collect.evaluate import evaluate
from rl_lab.core.batch import Action
from rl_lab.core.errors import UserError
from rl_lab.core.picture import Bars, Contour, Lines, Picture, Points
from rl_lab.core.schema import EnvironmentConfig
from rl_lab.display.pictures import PictureSink, render
from rl_lab.envs.make import make_vector
from tiny_runs import run_hash, tiny_run

AXIS = np.linspace(-1, 1, 5)
SQL = [
    "training.total_timesteps=64",
    "evaluation.every_steps=32",
    "checkpoint.every_steps=32",
    "algorithm.learning_starts=16",
    "algorithm.batch_size=8",
    "network.encoder.hidden_dims=[]",
    "network.actor.hidden_dims=[8]",
    "network.critic.hidden_dims=[8]",
]


@pytest.fixture
def no_matplotlib(monkeypatch):
    """As if it were not installed."""
    plain = builtins.__import__

    def refuse(name, *rest, **more):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return plain(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)


def pixels(png: bytes) -> np.ndarray:
    """[height, width, 3]"""
    return np.asarray(Image.open(BytesIO(png)).convert("RGB"))


def coloured(image: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    return np.argwhere((image == colour).all(-1))  # [M, (row, column)]


@pytest.mark.needs("matplotlib")
def test_layers_are_drawn_where_they_belong():
    blue, red = (31, 119, 180), (214, 39, 40)
    square = {"x_limits": (-1.0, 1.0), "y_limits": (-1.0, 1.0)}
    corner = Points(np.array([[0.8, 0.8]]))
    diagonal = Lines([np.array([[-0.8, 0.0], [0.0, -0.8]])])
    image = pixels(render(Picture("both", [diagonal, corner], **square)))
    height, width = image.shape[:2]
    there = coloured(image, red)
    assert len(there) and (there[:, 0] < height / 2).all() and (there[:, 1] > width / 2).all()
    path = coloured(image, blue)
    assert len(path) and (path[:, 0] > height / 3).all() and (path[:, 1] < width * 2 / 3).all()
    bars = coloured(pixels(render(Picture("bars", [Bars(["a", "b"], [1.0, 3.0])]))), blue)
    left, right = bars[bars[:, 1] < width / 2], bars[bars[:, 1] > width / 2]
    assert len(right) > 2 * len(left) > 0
    heights = Contour(AXIS, AXIS, AXIS[:, None] + 0 * AXIS)  # rises with y: level lines lie flat
    lines = pixels(render(Picture("hill", [heights], **square)))[height // 4 : height * 3 // 4]
    inner = lines[:, width // 3 : width * 2 // 3]
    assert (inner == inner[:, :1]).all() and len(np.unique(inner.reshape(-1, 3), axis=0)) > 2


@pytest.mark.needs("matplotlib")
def test_the_same_picture_is_the_same_bytes():
    picture = Picture("a", [Points(np.zeros((1, 2)))], x_label="x", y_label="y")
    assert render(picture) == render(picture) and b"Software" not in render(picture)
    assert render(picture) != render(Picture("b", picture.layers, x_label="x", y_label="y"))


@pytest.mark.needs("matplotlib")
def test_a_sink_writes_one_file_for_each(tmp_path):
    picture = Picture("a", [Bars(["x"], [1.0])])
    PictureSink(tmp_path / "pictures").draw(1500, {"one": picture, "two": picture})
    names = sorted(each.name for each in (tmp_path / "pictures").iterdir())
    assert names == ["one-000000001500.png", "two-000000001500.png"]
    assert (tmp_path / "pictures" / names[0]).read_bytes() == render(picture)


def test_matplotlib_is_asked_for_in_one_line(no_matplotlib):
    with pytest.raises(UserError, match=r"pip install 'rl-lab\[plots\]'"):
        render(Picture("a", []))


# ------------------------------------------------------------------------- recorded episodes


def recorded(id: str, lengths: dict, *, episodes: int, envs: int, record: bool = True):
    vector = make_vector(EnvironmentConfig(id=id, kwargs=lengths), list(range(envs)))

    def act(obs, state, *, deterministic):
        return Action(np.zeros(envs, np.int64))

    return evaluate(
        act,
        vector,
        seeds=list(range(envs)),
        episodes=episodes,
        deterministic=True,
        record=record,
    )


def test_an_evaluation_keeps_whole_episodes_when_it_is_asked_to():
    # The counter shows [episode, t]; episodes of 2 and 3 steps have 3 and 4 frames.
    seen = recorded("rl_lab/Counter-v0", {"lengths": [2, 3]}, episodes=3, envs=2)
    expected = [
        [[0, 0], [0, 1], [0, 2]],
        [[1, 0], [1, 1], [1, 2], [1, 3]],
        [[0, 0], [0, 1], [0, 2]],
    ]
    assert [path.tolist() for path in seen.paths] == expected
    assert seen.lengths == [len(path) - 1 for path in seen.paths]


def test_otherwise_it_keeps_nothing_and_says_nothing_of_it():
    plain = recorded("rl_lab/Counter-v0", {"lengths": [2]}, episodes=2, envs=1, record=False)
    assert plain.paths == []
    shown = recorded("rl_lab/Counter-v0", {"lengths": [2]}, episodes=2, envs=1)
    assert plain.to_tree() == shown.to_tree()


# ------------------------------------------------------------------------------------ a run


def files(run) -> list[str]:
    folder = run.path / "pictures"
    return sorted(each.name for each in folder.iterdir()) if folder.exists() else []


@pytest.mark.needs("matplotlib")
def test_a_run_with_something_to_show_shows_it_after_evaluations(tmp_path):
    states = "algorithm.picture_states=[[0.0, 0.0]]"
    outcome = tiny_run(tmp_path, "MultiGoal-v0:sql", *SQL, states)
    names = [f"{kind}-{step:012d}.png" for kind in ("actions_0", "paths") for step in (32, 64)]
    assert files(outcome.run) == names


@pytest.mark.needs("matplotlib")
def test_pictures_do_not_change_the_run(tmp_path):
    on, off = (
        tiny_run(tmp_path / each, "MultiGoal-v0:sql", *SQL, f"logging.pictures={each}")
        for each in ("true", "false")
    )
    assert files(on.run) and not files(off.run)
    assert run_hash(on.run) == run_hash(off.run)


def test_without_matplotlib_one_line_is_said_and_training_goes_on(tmp_path, no_matplotlib):
    outcome = tiny_run(tmp_path, "MultiGoal-v0:sql", *SQL)
    assert outcome.summary["status"] == "finished" and not files(outcome.run)
    log = outcome.run.log_file.read_text()
    assert log.count("no pictures without matplotlib") == 1


def test_an_algorithm_without_pictures_needs_no_matplotlib(tmp_path, no_matplotlib):
    outcome = tiny_run(tmp_path, "CartPole-v1:ppo_defaults", "training.total_timesteps=256")
    assert not (outcome.run.path / "pictures").exists()
    log = outcome.run.log_file
    assert not log.exists() or "matplotlib" not in log.read_text()
