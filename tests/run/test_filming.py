"""Videos of the policy in training: written when they are due, and no bit changes."""

import json
import os
import signal
import sys
import textwrap

import numpy as np
import pytest

from film_files import read_gif
from rl_lab.analysis.view import with_report
from rl_lab.display.sinks import Sink, TensorBoardSink
from rl_lab.display.video import as_gif, filming
from rl_lab.display.wandb import WandbSink
from rl_lab.run.session import no_view, resume, train
from tiny_runs import run_hash, tiny_config, tiny_run

PPO = "CartPole-v1:ppo_defaults"
EVERY_2 = "logging.video_every=2"
pytestmark = [pytest.mark.needs("PIL"), pytest.mark.needs("pygame")]


class Heard(Sink):
    def __init__(self):
        self.said, self.films = [], []

    def say(self, message):
        self.said.append(message)

    def film(self, step, file):
        self.films.append((step, file))


def videos(run):
    return sorted(file.stem for file in run.videos.iterdir())


@pytest.fixture
def gif(monkeypatch):
    """Without ffmpeg, as where the extra is not installed."""
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    monkeypatch.setattr("rl_lab.display.video._is_installed", lambda suffix: suffix == ".gif")


def test_every_second_evaluation_is_filmed_and_no_bit_changes(tmp_path, gif):
    heard = Heard()
    config = tiny_config(PPO, EVERY_2)  # evaluations at 256, 512, 768, 1024
    run = train(config, root=tmp_path / "a", view=lambda *_: [heard]).run
    assert videos(run) == ["eval-000000000512", "eval-000000001024"]
    assert heard.films == [(step, run.videos / f"eval-{step:012d}.gif") for step in (512, 1024)]
    frames, _ = read_gif(heard.films[0][1])
    assert len(frames) > 4 and any((frame != frames[0]).any() for frame in frames)
    assert run_hash(run) == run_hash(tiny_run(tmp_path / "b", PPO).run)


def test_a_resumed_run_goes_on_counting(tmp_path, gif):
    run = tiny_run(tmp_path, PPO, EVERY_2).run
    for file in run.videos.iterdir():
        file.unlink()
    resume(f"{run.id}:256", root=tmp_path)
    assert videos(run) == ["eval-000000000512", "eval-000000001024"]


@pytest.mark.needs("imageio_ffmpeg")
def test_an_mp4_where_there_is_a_choice_and_a_gif_of_it(tmp_path):
    run = tiny_run(tmp_path, PPO, "logging.video_every=4").run
    (file,) = run.videos.iterdir()
    assert file.suffix == ".mp4"
    data, width, height = as_gif(file)
    assert data.startswith(b"GIF8") and max(width, height) <= 400
    assert (run.path / "report.html").exists() is False  # reports are off in tiny runs


def test_a_world_that_cannot_be_drawn_costs_one_line(tmp_path):
    heard = Heard()
    config = tiny_config("rl_lab/Counter-v0:random", "logging.video_every=1")
    run = train(config, root=tmp_path, view=lambda *_: [heard]).run
    (line,) = [each for each in heard.said if "no video" in each]
    assert line.startswith("WARNING: no video: 'rl_lab/Counter-v0' cannot be shown: ")
    assert not run.videos.exists()


@pytest.mark.needs("tensorboard")
def test_tensorboard_shows_it_as_a_moving_picture(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    film = tmp_path / "eval-000000000512.gif"
    with filming(film) as add:
        for index in range(3):
            add(np.full((8, 10, 3), 50 * index, np.uint8))
    sink = TensorBoardSink(tmp_path / "events")
    sink.write(512, {"eval/return_mean": 1.0})
    sink.film(512, film)
    sink.close()
    events = EventAccumulator(str(tmp_path / "events")).Reload()
    (image,) = events.Images("eval")
    assert (image.step, image.width, image.height) == (512, 10, 8)
    assert image.encoded_image_string == film.read_bytes()


@pytest.mark.needs("tensorboard")
def test_a_video_that_cannot_be_shown_leaves_tensorboard_its_scalars(tmp_path, caplog):
    sink = TensorBoardSink(tmp_path / "events")
    for name in ("eval-1.gif", "eval-1.mp4"):
        (tmp_path / name).write_bytes(b"no film")
        sink.film(1, tmp_path / name)
    sink.write(1, {"eval/return_mean": 1.0})
    sink.close()
    assert len(caplog.records) == 2 and "TensorBoard shows no video: " in caplog.text


def test_wandb_gets_videos_and_alerts(tmp_path, monkeypatch):
    """What reaches the library, recorded in its place; nothing leaves this machine."""
    folder = tmp_path / "fake"
    folder.mkdir()
    (folder / "wandb.py").write_text(
        textwrap.dedent(f"""
        def note(**what):
            import json
            open({str(tmp_path / "calls")!r}, "a").write(json.dumps(what, default=str) + "\\n")
        class Settings:
            def __init__(self, **options): pass
        def Video(file, format): return f"video {{file}} {{format}}"
        class Run:
            url, summary = None, {{}}
            def define_metric(self, *args, **options): pass
            def log(self, row): note(log=row)
            def alert(self, **options): note(alert=options)
            def finish(self, exit_code): pass
        def init(**options): return Run()
        """)
    )
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(WandbSink, "close_seconds", 60.0)
    words = ["logging.wandb.enabled=true", "logging.wandb.mode=offline", "logging.video_every=4"]
    run = tiny_run(tmp_path / "runs", PPO, "algorithm.learning_rate=10", *words).run
    calls = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    alerts = [each["alert"] for each in calls if "alert" in each]
    assert "kl_high" in {each["title"] for each in alerts}
    assert all(each["level"] == "WARN" and "(try: " in each["text"] for each in alerts)
    (file,) = run.videos.iterdir()
    (shown,) = [each["log"] for each in calls if "videos/eval" in each.get("log", {})]
    assert shown == {"env_steps": 1024, "videos/eval": f"video {file} {file.suffix[1:]}"}


# -- the video of a report ------------------------------------------------------------------------

REPORTED = ("logging.report=true", "training.total_timesteps=256")


def reported(tmp_path, *words, spec=PPO):
    """A tiny run with its report."""
    return train(tiny_config(spec, *REPORTED, *words), root=tmp_path, view=with_report(no_view)).run


def test_the_first_report_has_a_video_and_no_bit_changes(tmp_path, gif):
    run = reported(tmp_path / "a")
    assert videos(run) == ["final-000000000256"]
    page = (run.path / "report.html").read_text()
    assert "data:image/gif;base64," in page and "final-000000000256" in page
    without = reported(tmp_path / "b", "logging.final_video=false")
    assert not without.videos.exists() and "Videos" not in (without.path / "report.md").read_text()
    assert run_hash(run) == run_hash(without)


def test_a_video_of_the_last_evaluation_is_enough(tmp_path, gif):
    run = reported(tmp_path, "logging.video_every=1")
    assert videos(run) == ["eval-000000000256"]


def test_where_nothing_can_be_drawn_only_the_log_says_so(tmp_path, gif, capfd):
    run = reported(tmp_path, spec="rl_lab/Counter-v0:random")
    assert not run.videos.exists() and (run.path / "report.html").exists()
    text = run.log_file.read_text()
    assert "no video of the last policy: 'rl_lab/Counter-v0' cannot be shown" in text
    assert "no video" not in "".join(capfd.readouterr())


def test_a_signal_ends_the_video_of_a_run_that_has_finished(tmp_path, gif, monkeypatch):
    """Its report is written all the same, and it is still finished."""
    from rl_lab.run import filming as module

    drawn = []

    def drawing(frame, name):
        drawn.append(frame)
        if len(drawn) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return frame

    monkeypatch.setattr(module, "picture_of", drawing)
    config = tiny_config(PPO, *REPORTED)
    outcome = train(config, root=tmp_path, view=with_report(no_view))
    assert outcome.exit_code == 130 and outcome.summary["status"] == "finished"
    assert len(drawn) == 3 and (outcome.run.path / "report.html").exists()
