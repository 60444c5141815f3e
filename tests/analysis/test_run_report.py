import json
import os
import re
import signal
import sys

import pytest

from made_runs import made_run
from pages import scripts
from rl_lab.analysis import report
from rl_lab.analysis.groups import load_run
from rl_lab.analysis.report import write_group_report, write_report
from rl_lab.analysis.view import with_report
from rl_lab.cli.main import main
from rl_lab.display.sinks import Sink
from rl_lab.records.run_directory import list_runs
from rl_lab.run.session import no_view, resume, train
from tiny_runs import tiny_config

NAMES = ["report.md", "report.html", "report.svg"]


@pytest.fixture
def run(tmp_path):
    """A run made by hand, with everything that can be told of one."""
    test = {"return_mean": 90.0, "return_std": 20.0, "episodes": 101}
    summary = {"best": 95.0, "test": {"last": test}, "skipped": {"update": 2}, "env_steps": 300}
    return made_run(tmp_path, [10.0, 95.0, 80.0], seed=4, gamma=0.9, summary=summary)


def text_of(run, name="report.md"):
    write_report(run.directory)
    return (run.directory.path / name).read_text()


def section(text, title):
    return text.split(f"## {title}\n")[1].split("\n## ")[0].strip()


def test_what_was_run_and_what_it_reached(run):
    text = text_of(run)
    assert text.startswith(f"# CartPole-v1 ppo, seed 4 ({run.id})\n")
    assert "| environment steps | 300 of 300 |" in section(text, "What was run")
    results = section(text, "Results")
    # 1.96 * 20 / sqrt(101 - 1) = 3.92
    assert (
        "| test return of the last policy | 90.0 [86.1, 93.9] | 95 % interval over 101 unseen"
        in results
    )
    assert "| eval/return_mean, last | 80.0 | best 95.0, ▁█▇ |" in results
    assert "| algorithm.gamma | 0.99 | 0.9 |" in section(text, "Settings that are not the defaults")
    assert "* update: 2 calls skipped for a bad number" in section(text, "Alerts")
    assert section(text, "Best checkpoint") == "There is no checkpoint."


def test_warnings_of_the_log_are_alerts(run):
    run.directory.log_file.parent.mkdir()
    lines = ["2026-01-01T00:00:00 all is well", "2026-01-01T00:00:01 WARNING: lost | a worker"]
    run.directory.log_file.write_text("\n".join([*lines, *(["2026 WARNING: more"] * 60)]) + "\n")
    alerts = section(text_of(run), "Alerts").splitlines()
    assert alerts[0] == f"* {lines[1]}" and alerts[-1] == "* … and 12 more"
    assert "all is well" not in text_of(run)


def test_the_command_that_reproduces_it(run):
    again = section(text_of(run), "Run it again")  # nothing else is known of it
    assert again == f"```\nrl-lab train --config {run.directory.config_file}\n```"
    command = ["/somewhere/bin/rl-lab", "train", "CartPole-v1:ppo", "a b", "--json"]
    facts = {"command": [*command, "--progress-lines"], "gpus": []}  # as `--jobs` starts a seed
    run.directory.provenance_file.write_text(
        json.dumps(facts | {"git": {"sha": "abc", "dirty": True}})
    )
    again = section(text_of(run), "Run it again")
    assert "```\nrl-lab train CartPole-v1:ppo 'a b'\n```" in again
    assert "commit abc with uncommitted changes" in again


def test_the_page_holds_everything(run):
    (run.directory.path / "videos").mkdir()
    (run.directory.path / "videos" / "step_100.mp4").write_bytes(b"film")
    page = text_of(run, "report.html")
    assert "<svg " in page and 'src="data:video/mp4;base64,ZmlsbQ=="' in page
    assert not re.search(r'(src|href)="(?!data:)', page)
    markdown = text_of(run)
    assert "![curves](report.svg)" in markdown
    assert "[step_100](videos/step_100.mp4)" in markdown


def test_a_film_that_is_too_large_is_only_linked_to(run, monkeypatch):
    monkeypatch.setattr(report, "EMBEDDED_BYTES", 3)
    (run.directory.path / "videos").mkdir()
    (run.directory.path / "videos" / "a long one.mp4").write_bytes(b"film")
    (run.directory.path / "videos" / "small.gif").write_bytes(b"gif")
    page = text_of(run, "report.html")
    assert '<a href="videos/a%20long%20one.mp4">a long one</a>' in page and "<video" not in page
    assert '<img alt="small" src="data:image/gif;base64,Z2lm">' in page
    assert "[a long one](videos/a%20long%20one.mp4)\n\n![small](videos/small.gif)" in text_of(run)


def test_of_many_films_the_last_ones_are_in_the_page(run, monkeypatch):
    monkeypatch.setattr(report, "EMBEDDED_TOTAL", 9)
    (run.directory.path / "videos").mkdir()
    for step in (1, 2, 3):
        (run.directory.path / "videos" / f"step_{step}.mp4").write_bytes(b"film")
    page = text_of(run, "report.html")
    assert page.count("<video") == 2 and '<a href="videos/step_1.mp4">' in page
    assert page.index("step_1") < page.index("step_2") < page.index("step_3")


def test_a_fork_says_whose_child_it_is(run):
    run.directory.write_summary({**run.summary, "parent": {"id": "abcdef", "step": 1200}})
    assert "| fork of | abcdef at step 1,200 |" in section(text_of(run), "What was run")


def test_nothing_of_a_run_is_taken_as_markup(run):
    run.directory.write_summary({**run.summary, "error": "<script>alert(1)</script>"})
    page = text_of(run, "report.html")
    assert "alert(1)" not in "".join(scripts(page)) and "&lt;script&gt;" in page


def test_curves_need_nothing_that_is_not_installed(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    files = write_report(run.directory)
    assert [file.name for file in files] == NAMES
    picture = files[2].read_text()
    assert "CartPole-v1 ppo, seed 4" in picture and picture.count("<circle") == 3
    assert picture in files[1].read_text()


def test_a_run_without_a_curve_has_no_picture(run):
    run.directory.metrics_file.write_text("")
    assert [file.name for file in write_report(run.directory)] == NAMES[:2]
    assert "Curves" not in text_of(run)


def test_an_svg_among_the_films_is_not_part_of_the_page(run):
    (run.directory.path / "videos").mkdir()
    (run.directory.path / "videos" / "x.svg").write_text("<svg><script>1</script></svg>")
    page = text_of(run, "report.html")
    assert len(scripts(page)) == 2 and "<svg><script>" not in page


def test_a_run_that_has_only_just_begun_has_a_report(run):
    run.directory.metrics_file.unlink()
    run.directory.summary_file.unlink()
    assert "The run has no results yet." in text_of(run)


def test_an_algorithm_that_is_not_here_does_not_stop_the_report(tmp_path):
    text = text_of(made_run(tmp_path, [1.0], algorithm="of_a_plugin"))
    settings = section(text, "Settings that are not the defaults")
    assert settings.startswith("Not known: ") and "of_a_plugin" in settings


# ------------------------------------------------------------------------------ real runs


def test_a_run_writes_its_own_report_when_it_ends(tmp_path):
    # Everything that the run knew is in it: the sink is called after the last row was written.
    words = ["CartPole-v1:ppo_defaults", "training.total_timesteps=256", "logging.report=true"]
    command = ["rl-lab", "train", "CartPole-v1:ppo"]
    outcome = train(tiny_config(*words), root=tmp_path, command=command, view=with_report(no_view))
    text = (outcome.run.path / "report.md").read_text()
    assert "| status | finished |" in text and "rl-lab train CartPole-v1:ppo\n" in text
    test = outcome.summary["test"]["last"]["return_mean"]
    assert f"test return of the last policy | {test:,.1f} [" in text
    assert f"rl-lab evaluate {outcome.run.id}:best --episodes 100" in text
    assert "eval/return_mean, last" in text and "train/loss, last" in text
    assert "| resumed | 0 times," in text
    resume("@last", root=tmp_path, view=with_report(no_view))
    assert "| resumed | 1 times," in (outcome.run.path / "report.md").read_text()


def test_a_run_that_was_interrupted_has_a_report_too(tmp_path):
    class CtrlC(Sink):
        def write(self, step, row):
            os.kill(os.getpid(), signal.SIGINT)

    config = tiny_config("CartPole-v1:ppo_defaults", "logging.report=true")
    outcome = train(config, root=tmp_path, view=with_report(lambda *_: [CtrlC()]))
    assert outcome.exit_code == 130
    text = (outcome.run.path / "report.md").read_text()
    assert "| status | interrupted |" in text and "| environment steps | 64 of 1,024 |" in text


def test_a_report_that_fails_never_fails_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "to_markdown", lambda title, blocks: 1 / 0)
    words = ["CartPole-v1:random", "training.total_timesteps=64", "logging.report=true"]
    outcome = train(tiny_config(*words), root=tmp_path, view=with_report(no_view))
    assert outcome.summary["status"] == "finished" and outcome.exit_code == 0
    assert "ReportSink is off from here: " in outcome.run.log_file.read_text()


def test_the_defaults_of_a_real_run(lab):
    run = load_run(list_runs(lab)[0])
    settings = section(text_of(run), "Settings that are not the defaults")
    assert "| algorithm.rollout_steps | 128 | 16 |" in settings
    assert "| algorithm.epochs | 4 | 2 |" in settings
    assert "gamma" not in settings and "compute.threads" in settings.split("Chosen by auto:")[1]


def test_the_command_writes_into_the_run_or_beside(lab, capsys):
    last = list_runs(lab)[-1]
    assert main(["report", "--runs-dir", str(lab)]) == 0  # of the last run
    assert capsys.readouterr().out.splitlines() == [str(last.path / name) for name in NAMES]
    assert main(["report", "CartPole-v1-ppo-*", "--runs-dir", str(lab), "--json"]) == 0
    files = json.loads(capsys.readouterr().out)
    assert files[0] == str(lab / "reports" / "CartPole-v1-ppo" / "report.md")
    assert main(["report", "@last", "--output", "x", "--runs-dir", str(lab)]) == 2


def test_the_report_of_a_group(lab, tmp_path):
    runs = [load_run(directory) for directory in list_runs(lab)]
    files = write_group_report(runs, tmp_path / "group")
    text = files[0].read_text()
    assert [file.name for file in files] == NAMES
    assert re.match(r"# eval/return_mean of .* on CartPole-v1 \(6 runs\)\n", text)
    assert text.count("| CartPole-v1 | ppo |") == 3 and "## Pairs" in text
    assert "<svg " in files[1].read_text()
