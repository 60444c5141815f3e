"""`rl-lab play`: the episodes are the policy's own, the film has all of them, mistakes are told."""

import json
import signal
import sys

import gymnasium as gym
import numpy as np
import pytest

import rl_lab
from film_files import read_gif, read_mp4
from rl_lab import api
from rl_lab.analysis import playing
from rl_lab.cli.main import main
from rl_lab.core.errors import UserError
from rl_lab.run.build import seeds
from tiny_runs import tiny_run

make_shown, picture_of = playing.make_shown, playing.picture_of


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A policy with a memory on CartPole, one with small pictures, and one that cannot be seen."""
    root = tmp_path_factory.mktemp("runs")
    short = ["training.total_timesteps=256", "environment.vectorization=sync"]
    memory = "CartPole-v1:ppo_gru_defaults"
    tiny_run(root, memory, "experiment.seed=3", "checkpoint.every_steps=128", *short)
    for spec in ("PointGoal-v0:random", "rl_lab/Counter-v0:random"):
        tiny_run(root, spec, "training.total_timesteps=512")
    return root


@pytest.fixture
def call(root, tmp_path, capsys, monkeypatch):
    """`call("CartPole", …)` → what it printed; with `--json`, the data. There is no screen."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def call(*words, code=0):
        capsys.readouterr()
        assert main(["play", *words, "--runs-dir", str(root)]) == code
        said = capsys.readouterr()
        if code == 2:
            assert said.err.startswith("error: ") and len(said.err.splitlines()) == 1
            return said.err
        return json.loads(said.out) if "--json" in words else said.out

    return call


def by_hand(root, count, seed=3, limit=40):
    """Returns of greedy episodes, stepped by whoever has loaded the policy."""
    policy = rl_lab.load_policy("CartPole", runs_dir=root)
    returns = []
    for each in seeds(seed, api.EVALUATE, count):
        env = gym.make("CartPole-v1", max_episode_steps=limit)
        obs, _ = env.reset(seed=each)
        policy.reset()
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(policy.act(obs))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return returns


def test_it_plays_what_the_policy_does(call, root, tmp_path):
    found = call("CartPole", "--episodes", "3", "--video", "films/a.gif", "--json")
    assert found["returns"] == by_hand(root, 3) and len(set(found["returns"])) > 1
    assert found["lengths"] == found["returns"]  # CartPole pays 1 for a step
    assert found["return_mean"] == pytest.approx(np.mean(found["returns"]))
    run = next(root.glob("CartPole*"))
    assert found["episodes"] == 3 and found["run"] == run.name[-6:] and found["step"] == 256
    assert found["video"] == "films/a.gif"
    frames, _ = read_gif(tmp_path / "films" / "a.gif")
    assert frames[0].shape == (200, 300, 3)  # half of 400 × 600
    other = call("CartPole", "--episodes", "3", "--seed", "8", "--video", "b.gif", "--json")
    assert other["returns"] == by_hand(root, 3, seed=8) != found["returns"]


@pytest.mark.needs("imageio_ffmpeg")
def test_every_frame_of_every_episode_is_in_the_film(call, root, tmp_path):
    words = ["--episodes", "2", "--max-steps", "7", "--video", "a.mp4", "--json"]
    found = call("CartPole", *words)
    assert found["lengths"] == [7, 7] and found["returns"] == [7, 7]
    shown = read_mp4(tmp_path / "a.mp4", 400, 600)
    assert len(shown) == 8 + 8
    env = gym.make("CartPole-v1", render_mode="rgb_array")
    for start, each in zip((0, 8), seeds(3, api.EVALUATE, 2), strict=True):
        env.reset(seed=each)
        difference = np.abs(shown[start].astype(int) - env.render())
        assert difference.mean() < 2 and (shown[start] != shown[start + 4]).any()


@pytest.mark.needs("imageio_ffmpeg")
def test_without_a_screen_it_is_filmed_into_the_run(call, root):
    text = call("PointGoal", "--episodes", "2", "--max-steps", "3")
    first, second, mean, film = text.splitlines()
    assert first == "episode 1: return -3, 3 steps, truncated" and second.startswith("episode 2: ")
    assert mean.startswith("return -3 (2 episodes) · run ") and mean.endswith(" at step 512")
    run = next(root.glob("PointGoal*"))
    file = run / "videos" / f"play-{512:012d}.mp4"
    assert film == f"video: {file}" and len(read_mp4(file, 256, 256)) == 8
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_without_the_encoder_it_is_a_gif(call, root, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    found = call("PointGoal", "--max-steps", "3", "--json")
    assert found["video"].endswith("/videos/play-000000000512.gif")
    assert "pip install 'rl-lab[video]'" in call("PointGoal", "--video", "a.mp4", code=2)
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "pip install 'rl-lab[plots]'" in call("PointGoal", code=2)


def test_with_a_screen_a_window_opens(call, root, tmp_path, monkeypatch):
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    made = []
    monkeypatch.setattr(
        playing,
        "make_shown",
        lambda config, *, window: made.append(window) or make_shown(config, window=window),
    )
    found = call("CartPole", "--max-steps", "2", "--json")
    assert found["video"] is None and found["lengths"] == [2]
    assert call("CartPole", "--max-steps", "2").count("film") == 0
    assert call("PointGoal", "--max-steps", "2", "--video", "a.gif", "--json")["video"] == "a.gif"
    assert made == [False, False, False]  # pictures, in a window of ours


def test_an_environment_that_only_draws_windows_opens_its_own(call, monkeypatch):
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setattr(playing, "can_open", lambda: False)  # as without pygame
    assert call("CartPole", "--max-steps", "2", "--json")["lengths"] == [2]


# -- keys in the window ---------------------------------------------------------------------------


@pytest.fixture
def press(call, monkeypatch):
    """`press({frame: "keys"}, *words)`: real events of pygame, posted while a frame is shown."""
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    titles = []

    def run(keys, *words):
        import pygame

        waiting, frames = {at: list(each) for at, each in keys.items()}, [0]
        show, given = playing.Window.show, playing.Window.keys

        def shown(window, picture, title):
            titles.append(title)
            frames[0] += "paused" not in title or len(titles) < 2 or title != titles[-2]
            show(window, picture, title)

        def pressed(window):
            due = [at for at in waiting if at <= frames[0] and waiting[at]]
            if due:
                key = waiting[due[0]].pop(0)
                pygame.event.post(pygame.event.Event(pygame.KEYDOWN, unicode=key, key=0))
            return given(window)

        monkeypatch.setattr(playing.Window, "show", shown)
        monkeypatch.setattr(playing.Window, "keys", pressed)
        return call("CartPole", *words, "--json"), titles

    return run


@pytest.mark.needs("pygame")
def test_keys_pause_step_and_change_the_speed(press):
    found, titles = press({3: " nn ", 6: "++-"}, "--max-steps", "8", "--seed", "3")
    assert found["lengths"] == [8]
    assert any("paused · 1x" in title for title in titles)
    assert any(" · 4x · " in title for title in titles) and " · 2x · " in titles[-1]


@pytest.mark.needs("pygame")
def test_keys_begin_again_go_to_another_checkpoint_and_leave(press):
    found, titles = press({3: "r", 6: "c", 9: "q"}, "--max-steps", "8")
    assert found["lengths"] == []
    steps = list(dict.fromkeys(title.split(" · ")[0] for title in titles))
    assert len(steps) == 2  # the run has a checkpoint at each of two steps


def test_samples_are_those_of_evaluate(call, root):
    words = ["--episodes", "2", "--sample", "--json", "--video"]
    first, again = (call("CartPole", *words, name) for name in ("a.gif", "b.gif"))
    assert first["returns"] == again["returns"]
    greedy = call("CartPole", "--episodes", "2", "--json", "--video", "c.gif")
    assert greedy["returns"] != first["returns"]
    # One environment in the same process: the same seeds, the same random numbers.
    measured = rl_lab.evaluate("CartPole", episodes=1, sample=True, runs_dir=root)
    assert measured.returns == first["returns"][:1]


@pytest.mark.needs("imageio_ffmpeg")
def test_ctrl_c_keeps_the_film_so_far(call, tmp_path, monkeypatch):
    shown = []

    def impatient(rendered, id):
        shown.append(1)
        if len(shown) == 5:
            signal.raise_signal(signal.SIGINT)
        return picture_of(rendered, id)

    monkeypatch.setattr(playing, "picture_of", impatient)
    before = signal.getsignal(signal.SIGINT)
    words = ["--episodes", "9", "--max-steps", "3", "--video", "a.mp4", "--json"]
    found = call("PointGoal", *words, code=130)
    assert found["lengths"] == [3] and len(read_mp4(tmp_path / "a.mp4", 256, 256)) == 5
    assert [each.name for each in tmp_path.iterdir()] == ["a.mp4"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_film_that_fails_leaves_nothing(call, root, tmp_path, monkeypatch):
    monkeypatch.setattr("rl_lab.envs.point_goal.PointGoalEnv.render", lambda self: None)
    said = call("PointGoal", "--video", "new/a.gif", code=2)
    assert "cannot be recorded: its render() gives a NoneType" in said
    assert list(tmp_path.rglob("*")) == []


def test_grey_and_transparent_pictures_become_colours():
    grey = np.full((4, 6), 7, np.uint8)
    assert picture_of(grey, "x").shape == (4, 6, 3) and picture_of(grey, "x").min() == 7
    assert picture_of(np.zeros((4, 6, 4), np.uint8), "x").shape == (4, 6, 3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("CartPole --video a.avi", "must end in .mp4 or .gif"),
        ("nope --video a.avi", "must end in .mp4 or .gif"),  # before anything is looked for
        ("nope", "no run 'nope' in"),
        ("CartPole:77", "no checkpoint"),
        ("rl_lab-Counter", "'rl_lab/Counter-v0' cannot be shown"),
        ("CartPole --episodes 0", "--episodes"),
        ("CartPole --max-steps 0", "--max-steps"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(call, root, tmp_path, words, said):
    before = sorted(root.rglob("*"))
    assert said in call(*words.replace("rl_lab-Counter", "rl_lab-Counter").split(), code=2)
    assert sorted(root.rglob("*")) == before and not list(tmp_path.iterdir())


def test_from_python(root, tmp_path, monkeypatch):
    heard, forgotten = [], []
    monkeypatch.setattr(api.Policy, "reset", lambda self: forgotten.append(len(heard)))
    result = rl_lab.play(
        "PointGoal",
        episodes=2,
        max_steps=2,
        video=tmp_path / "a.gif",
        runs_dir=root,
        tell=lambda number, episode: heard.append((number, episode.length)),
    )
    assert forgotten == [0, 1]  # a memory does not reach into the next episode
    assert heard == [(1, 2), (2, 2)] and result.lengths == [2, 2] and result.exit_code == 0
    assert result.video.is_file() and not result.played[0].terminated
    with pytest.raises(UserError, match="at least 1"):
        rl_lab.play("PointGoal", episodes=0, runs_dir=root)
