"""The mark that tells a user's own runs from those of others, and the key behind it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rl_lab.core.errors import UserError
from rl_lab.records import mark
from rl_lab.records.run_directory import RunDirectory
from rl_lab.run.session import load_config, resume
from tiny_runs import tiny_run

CODE = """
from rl_lab.algorithms.random import RandomPolicy
class Own(RandomPolicy):
    pass
"""
OWN = ["CartPole-v1:random", "~algorithm.name", "algorithm._target_=own_code.py:Own"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("RL_LAB_HOME", str(tmp_path / "home"))
    (tmp_path / "own_code.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "home"
    for name in [name for name in sys.modules if name.startswith("own_code")]:
        del sys.modules[name]


def marked(root, text="version: 1\n"):
    run = RunDirectory.create(root, "x")
    assert mark.write_mark(run, text.encode()) is None
    run.config_file.write_text(text)
    return run


def test_only_the_user_can_read_the_key(home, tmp_path):
    run = marked(tmp_path / "runs")
    key = home / "key"
    assert key.stat().st_mode & 0o777 == 0o600 and len(key.read_bytes()) == mark.KEY_BYTES
    assert home.stat().st_mode & 0o777 == 0o700
    assert [each.name for each in home.iterdir()] == ["key"]
    assert key.read_bytes().hex() not in run.mark_file.read_text()
    assert mark.doubt(run) is None
    first = key.read_bytes()
    marked(tmp_path / "runs")
    assert key.read_bytes() == first


def test_a_copy_is_still_ones_own_and_a_changed_config_is_not(home, tmp_path):
    run = marked(tmp_path / "runs")
    copy = RunDirectory(Path(shutil.copytree(run.path, tmp_path / "another name")))
    assert mark.doubt(copy) is None
    copy.config_file.write_text("version: 1\n# a word\n")
    assert "was changed" in str(mark.doubt(copy)) and mark.doubt(run) is None
    copy.mark_file.unlink()
    assert mark.doubt(copy) == "has no mark of yours"


def test_another_user_has_another_key(home, tmp_path, monkeypatch):
    run = marked(tmp_path / "runs")
    monkeypatch.setenv("RL_LAB_HOME", str(tmp_path / "other"))
    assert "cannot be read" in str(mark.doubt(run))  # that user has never made a run
    marked(tmp_path / "runs")
    assert mark.doubt(run) == "has the mark of another user or machine"


@pytest.mark.parametrize("damage", ["open", "short", "folder"])
def test_a_key_that_is_not_secret_or_not_whole_counts_for_nothing(home, tmp_path, damage):
    run = marked(tmp_path / "runs")
    key = home / "key"
    if damage == "open":
        key.chmod(0o644)
    elif damage == "short":
        key.write_bytes(b"x")
    else:
        key.unlink()
        key.mkdir()
    assert "your key cannot be read" in str(mark.doubt(run))
    assert mark.write_mark(run, b"") is not None


def test_many_processes_make_one_key(home, tmp_path):
    code = "import sys; from rl_lab.records.mark import _made_key; print(_made_key().hex())"
    command = [sys.executable, "-c", code]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    keys = {child.communicate()[0] for child in children}
    assert len(keys) == 1 and (home / "key").read_bytes().hex() in keys.pop()
    assert [each.name for each in home.iterdir()] == ["key"]


def test_the_key_is_in_the_configuration_folder(monkeypatch):
    monkeypatch.delenv("RL_LAB_HOME")
    monkeypatch.setenv("HOME", "/somewhere")
    monkeypatch.setenv("XDG_CONFIG_HOME", "not/absolute")
    assert mark.home() == Path("/somewhere/.config/rl-lab")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/config")
    assert mark.home() == Path("/config/rl-lab")
    monkeypatch.setenv("RL_LAB_HOME", "~/lab")
    assert mark.home() == Path("/somewhere/lab")


def test_without_a_home_a_run_trains_resumes_and_says_what_it_cannot(home, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RL_LAB_HOME", str(tmp_path / "file" / "home"))
    plain = tiny_run(tmp_path / "runs").run
    assert not plain.mark_file.exists()
    assert "marked" not in plain.log_file.read_text()
    resume(str(plain.path), root=tmp_path)
    own = tiny_run(tmp_path / "runs", *OWN).run
    assert "cannot be marked as yours (Not a directory)" in own.log_file.read_text()
    with pytest.raises(UserError, match="--trust"):
        load_config(own)
    load_config(own, trust=True)


def test_ones_own_code_needs_no_word(home, tmp_path, monkeypatch):
    run = tiny_run(tmp_path / "runs", *OWN).run
    assert mark.doubt(run) is None
    assert load_config(run).algorithm.name == "Own"
    monkeypatch.chdir("/")  # from anywhere: the file was saved with its whole path
    assert load_config(run).algorithm.name == "Own"


def test_code_beside_a_run_is_not_looked_for(home, tmp_path, monkeypatch):
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "code.py").write_text(CODE)
    words = [*OWN[:2], "algorithm._target_=own_package.code.Own"]
    run = tiny_run(tmp_path / "runs", *words).run
    for name in [name for name in sys.modules if name.startswith("own_package")]:
        del sys.modules[name]
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(tmp_path)])
    shutil.move(tmp_path / "own_package", run.path / "own_package")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="own_package"):  # the mark is good, the folder is not
        load_config(run)
