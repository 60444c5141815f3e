import json
import multiprocessing

import pytest

from rl_lab.core.errors import UserError
from rl_lab.records.index import Index, row_of
from rl_lab.records.labels import Labels, add_tags, read_labels, remove_tags, set_notes
from rl_lab.records.run_directory import RunDirectory


@pytest.fixture
def run(tmp_path):
    made = RunDirectory.create(tmp_path, "x")
    experiment = "experiment: {name: x, seed: 1, tags: [first]}"
    made.config_file.write_text(f"{experiment}\nalgorithm: {{}}\nenvironment: {{}}\n")
    return made


def test_tags_of_the_config_come_first_and_files_stay(run):
    assert read_labels(run) == Labels(("first",))
    assert not (run.path / "labels.json").exists()
    assert add_tags(run, ["paper", "first", "paper"]).tags == ("first", "paper")
    set_notes(run, "größer\nthan life")
    assert remove_tags(run, ["first", "never there"]) == Labels(("paper",), "größer\nthan life")
    assert read_labels(run) == Labels(("paper",), "größer\nthan life")
    assert json.loads((run.path / "labels.json").read_text())["tags"] == ["paper"]
    assert remove_tags(run, ["paper"]).tags == ()
    assert read_labels(run).tags == ()  # those of the config do not come back


def test_deleting_the_index_loses_no_label(run, tmp_path):
    add_tags(run, ["paper"])
    set_notes(run, "good")
    for _ in range(2):
        (row,) = Index(tmp_path).rows()
        assert row["tags"] == ["first", "paper"] and row["notes"] == "good"
        Index(tmp_path).path.unlink()


@pytest.mark.parametrize("name", ["", "two words", "a,b", "+a", "-a", "x" * 65, "a\n"])
def test_what_is_not_a_tag(run, name):
    with pytest.raises(UserError, match="is not a tag"):
        add_tags(run, ["good", name])
    assert read_labels(run).tags == ("first",)


def test_a_broken_file_is_said_and_does_not_hide_the_run(run, tmp_path):
    for text in ("{", "[]", '{"tags": "a", "notes": ""}'):
        (run.path / "labels.json").write_text(text)
        with pytest.raises(UserError, match=r"labels\.json"):
            add_tags(run, ["a"])
        assert row_of(run, tmp_path)["tags"] == []
    with pytest.raises(UserError, match="cannot label run"):
        add_tags(RunDirectory(tmp_path / "gone"), ["a"])


def _add(run, worker):
    for number in range(10):
        add_tags(run, [f"{worker}-{number}"])


def test_two_writers_lose_nothing(run):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_add, args=(run, worker)) for worker in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    wanted = {"first"} | {f"{worker}-{number}" for worker in range(4) for number in range(10)}
    assert set(read_labels(run).tags) == wanted
