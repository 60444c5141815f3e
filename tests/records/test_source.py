"""A run whose code has changed since says so."""

import json

import pytest

from rl_lab.cli.main import main
from rl_lab.records import source
from rl_lab.records.run_directory import RunDirectory
from tiny_runs import tiny_run


@pytest.fixture
def run(tmp_path):
    """A folder whose provenance has the code of today, and of a plug-in beside it."""
    plugin = tmp_path / "mine.py"
    plugin.write_text("x = 1\n")
    directory = RunDirectory(tmp_path)
    notes = {"source": source.source_hashes([str(plugin)]), "git": None}
    directory.provenance_file.write_text(json.dumps(notes))
    return directory


def test_the_same_code_is_no_news(run):
    assert source.code_change(run) is None
    run.provenance_file.write_text('{"source": null}')  # a run of an earlier version
    assert source.code_change(run) is None
    run.provenance_file.write_text("{")
    assert source.code_change(run) is None
    run.provenance_file.unlink()
    assert source.code_change(run) is None


def test_a_changed_plugin_is_named(run):
    plugin = run.path / "mine.py"
    plugin.write_text("x = 2\n")
    assert source.code_change(run) == f"the code of {plugin} has changed since this run was made"
    plugin.unlink()
    assert str(plugin) in source.code_change(run)


def test_a_changed_package_is_told_with_its_commit(run):
    git = {"sha": "0123456789abcdef", "dirty": True}
    run.provenance_file.write_text(json.dumps({"source": {"rl_lab": "other"}, "git": git}))
    assert source.code_change(run) == (
        "the code of rl_lab has changed since this run was made "
        "(at git 0123456789 with uncommitted changes)"
    )


def test_names_and_contents_count_and_nothing_else(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.py").write_text("a")
    (tmp_path / "b.py").write_text("b")
    first = source.package_hash(tmp_path)
    (tmp_path / "note.txt").write_text("not code")
    assert source.package_hash(tmp_path) == first
    (tmp_path / "b.py").write_text("c")
    changed = source.package_hash(tmp_path)
    (tmp_path / "b.py").rename(tmp_path / "c.py")
    assert len({first, changed, source.package_hash(tmp_path)}) == 3


def test_show_and_resume_say_so(tmp_path, capsys):
    run = tiny_run(tmp_path, "CartPole-v1:random", "training.total_timesteps=256").run
    notes = json.loads(run.provenance_file.read_text())
    where = ["--runs-dir", str(tmp_path)]
    assert main(["show", "@last", *where]) == 0
    assert "has changed since" not in capsys.readouterr().out
    notes["source"]["rl_lab"] = "other"
    run.provenance_file.write_text(json.dumps(notes))
    assert main(["show", "@last", *where]) == 0
    assert "the code of rl_lab has changed since" in capsys.readouterr().out
    assert main(["show", "@last", "--json", *where]) == 0
    assert "rl_lab" in json.loads(capsys.readouterr().out)["code_change"]
    assert main(["train", "--resume", "@last", "-q", *where]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "has changed since" in line]
    assert len(said) == 1 and said[0].startswith("WARNING: ") and "bit for bit" in said[0]
