"""A link in a run folder never makes us overwrite, empty or delete what is elsewhere."""

import os
import shutil
from pathlib import Path

import pytest

from rl_lab.analysis.cleanup import execute, plan
from rl_lab.analysis.report import write_report
from rl_lab.cli.main import main
from rl_lab.core.errors import UserError
from rl_lab.display.sinks import Sinks
from rl_lab.records.files import check_folder, own_file
from rl_lab.records.labels import add_tags
from rl_lab.records.metrics import MetricLog
from rl_lab.records.run_directory import RunDirectory
from tiny_runs import tiny_run

FILES = ("run.lock", "metrics.jsonl", "timing.jsonl", "summary.json", "logs/run.log")
FOLDERS = (
    "checkpoints",
    "checkpoints/chunks",
    "logs",
    "tensorboard",
    "videos",
    "pictures",
    "crash",
)
PRECIOUS = b"of somebody else\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run that was interrupted: it can be resumed."""
    return tiny_run(tmp_path_factory.mktemp("runs")).run.path


@pytest.fixture
def run(trained, tmp_path) -> RunDirectory:
    return RunDirectory(
        Path(shutil.copytree(trained, tmp_path / "runs" / trained.name, symlinks=True))
    )


@pytest.fixture
def elsewhere(tmp_path) -> Path:
    """Files that are not ours, in a folder that looks like one of ours."""
    folder = tmp_path / "elsewhere"
    (folder / "step_000000000001").mkdir(parents=True)
    for name in (
        "file",
        ".tmp-mine",
        "run.log",
        "a.safetensors",
        "step_000000000001/manifest.json",
    ):
        (folder / name).write_bytes(PRECIOUS)
    return folder


def put_link(run: RunDirectory, name: str, target: Path) -> None:
    place = run.path / name
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(target)


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("name", [*FILES, *FOLDERS])
def test_no_command_writes_or_deletes_through_a_link(run, elsewhere, capsys, name):
    before = contents(elsewhere)
    put_link(run, name, elsewhere / "file" if name in FILES else elsewhere)
    root = str(run.path.parent)
    for words in (
        ["train", "--resume", run.id, "-q"],
        ["evaluate", run.id, "--episodes", "1"],
        ["play", run.id, "--video", str(run.videos / "x.gif"), "--max-steps", "2"],
        ["report", run.id],
        ["cleanup", "--keep-best", "0", "--keep-recent", "0", "--yes"],
        ["tag", run.id, "paper"],
        ["train", "--fork", run.id, "-q"],
    ):
        code = main([*words, "--runs-dir", root])
        said = capsys.readouterr().err
        assert contents(elsewhere) == before, words
        if words[0] in ("train", "evaluate"):
            assert code == 2, words
            assert said.count("\n") == 1, said
            assert f"{name} is a link that leaves the run: remove it" in said


def test_our_own_links_and_a_link_to_the_run_are_fine(run, tmp_path):
    assert (run.checkpoints / "latest").is_symlink()
    link = tmp_path / "alias"
    link.symlink_to(run.path)
    (run.path / "wandb").mkdir()
    (run.path / "wandb" / "latest-run").symlink_to("../checkpoints/latest")
    check_folder(link)
    with RunDirectory(link).lock():
        pass


@pytest.mark.parametrize("target", ["..", "../..", "/", "/dev/null", "../other", "missing/../../x"])
def test_every_way_out_is_refused(run, target):
    (run.path / "more").mkdir()
    (run.path / "more" / "link").symlink_to(target if target.startswith("/") else f"../{target}")
    with pytest.raises(UserError, match="more/link is a link that leaves the run"):
        check_folder(run.path)


def test_a_run_with_the_same_beginning_of_its_name_is_another_run(run):
    other = run.path.with_name(f"{run.path.name}-other")
    other.mkdir()
    (run.path / "link").symlink_to(f"../{other.name}")
    with pytest.raises(UserError, match="leaves the run"):
        check_folder(run.path)


def test_cleanup_leaves_a_linked_run_alone(run, tmp_path):
    root = tmp_path / "linked"
    root.mkdir()
    (root / run.path.name).symlink_to(run.path)
    before = contents(run.path)
    assert plan(root, keep_best=0, keep_recent=0) == []
    assert contents(run.path) == before


def test_cleanup_of_a_run_with_a_link_is_refused(run, elsewhere):
    put_link(run, "videos", elsewhere)
    before = contents(elsewhere), contents(run.path)
    with pytest.raises(UserError, match="videos is a link that leaves the run"):
        execute({"path": run.path.name}, run.path.parent)
    assert (contents(elsewhere), contents(run.path)) == before


@pytest.mark.parametrize("name", ["report.md", "report.html", "labels.json", "summary.json"])
def test_whole_files_replace_a_link_and_not_its_target(run, elsewhere, name):
    """A link that appears while nobody looks: the file that it leads to stays as it is."""
    (run.path / name).unlink(missing_ok=True)
    (run.path / name).symlink_to(elsewhere / "file")
    if name.startswith("report"):
        with pytest.raises(UserError, match="leaves the run"):
            write_report(run)
    elif name == "labels.json":
        with pytest.raises(UserError, match="not valid JSON"):
            add_tags(run, ["paper"])
    else:
        run.write_summary({"status": "finished"})
        assert not (run.path / name).is_symlink()
    assert (elsewhere / "file").read_bytes() == PRECIOUS


def test_files_that_grow_are_never_opened_through_a_link(tmp_path, elsewhere):
    """Also when the link appears after the folder was looked at."""
    link = tmp_path / "metrics.jsonl"
    link.symlink_to(elsewhere / "file")
    with pytest.raises(OSError, match="it is a link"):
        MetricLog(link)
    sinks = Sinks([], link)
    sinks.say("hello")
    assert sinks.log_file is None  # off from here
    assert (elsewhere / "file").read_bytes() == PRECIOUS


def test_a_pipe_a_device_or_a_folder_in_the_place_of_a_file(tmp_path):
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    for place, said in ((pipe, "pipe or a device"), (folder, "[Ii]s a (folder|directory)")):
        with pytest.raises(OSError, match=said):
            own_file(str(place), os.O_WRONLY | os.O_APPEND)
