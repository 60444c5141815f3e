"""One damaged run never hides the others, whatever somebody has put in the place of its files."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch

from made_runs import made_run
from rl_lab import api
from rl_lab.analysis.groups import select_runs
from rl_lab.cli.main import main
from rl_lab.core.errors import UserError
from rl_lab.records.checkpoint import CheckpointStore
from rl_lab.records.index import Index

DIGITS = "9" * 6000
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [*{before}, *{before}, *{before}, *{before}, *{before}, *{before}]\n"
    for before, name in zip("abcdefghijkl", "bcdefghijklm", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name}\n  <<: [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefghijkl", "bcdefghijklm", strict=True)
)

SUMMARIES = {
    "empty": "",
    "null": "null",
    "a list": "[1, 2]",
    "a number": "7",
    "cut": '{"status": "fin',
    "no text": "\udcff\x00",
    "nested": "[" * 100_000,
    "nested objects": '{"a":' * 100_000,
    "a long seed": f'{{"seed": {DIGITS}}}',
    "a text for a number": '{"best": "very good"}',
    "a list for the test": '{"status": "finished", "test": [1]}',
    "a number for the time": '{"cleaned": {"time": 5}}',
    "huge": '{"status": "' + "x" * 17_000_000 + '"}',
}
CONFIGS = {
    "empty": "",
    "null": "null",
    "a list": "[1, 2]",
    "cut": "algorithm: {name: ppo",
    "cut and still YAML": "version: 1\nexperiment:\n  seed: 9\nenvironment:\n  id: CartPole-v1\n",
    "without an environment": "version: 1\nalgorithm:\n  name: ppo\n",
    "no text": "\udcff\x00",
    "nested": "[" * 400_000,
    "nested lists": "- " * 400_000,
    "aliases": BOMB,
    "merges": MERGES,
    "itself": "a: &a [*a]\n",
    "a long seed": f"experiment: {{seed: {DIGITS}}}",
    "a tag": "!!python/object/apply:os.system [true]",
    "no date": "a: 2020-99-99",
    "huge": "# " + "x" * 1_100_000,
}
OTHER_FILES = {"labels.json", "provenance.json", "metrics.jsonl", "run.lock"}


@pytest.fixture
def root(tmp_path) -> Path:
    made_run(tmp_path, [1.0, 2.0], seed=1)
    made_run(tmp_path, [2.0, 3.0], seed=2)
    return tmp_path


def damaged_run(root: Path, name: str, text: str) -> str:
    run = made_run(root, [5.0], seed=9)
    place = run.directory.path / name
    place.write_bytes(text.encode(errors="surrogateescape"))
    return run.id


def special(root: Path, name: str, kind: str) -> str:
    """A run with something that is no file in the place of one."""
    run = made_run(root, [5.0], seed=9)
    place = run.directory.path / name
    place.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "device":
        place.symlink_to("/dev/zero")
    else:
        place.mkdir()
    return run.id


def listed(root: Path, capsys) -> dict[str, str]:
    assert main(["list", "--json", "--runs-dir", str(root)]) == 0
    return {row["id"]: row["status"] for row in json.loads(capsys.readouterr().out)}


def check(root: Path, bad: str, capsys, *, damaged: bool = True) -> None:
    """Every command that looks at several runs goes on, and one that is asked for it says why."""
    for _ in range(2):  # from the folders, then from the index
        status = listed(root, capsys)
        assert len(status) == 3
        assert status.pop(bad) == ("damaged" if damaged else "finished")
        assert set(status.values()) == {"finished"}
    assert Index(root).rebuild() == 3
    assert {row["id"] for row in api.runs(runs_dir=root)} >= {bad}
    for words in (["list"], ["list", "--filter", "best>=0"], ["index", "rebuild"]):
        assert main([*words, "--runs-dir", str(root)]) == 0
    capsys.readouterr()
    for words in (
        ["compare", "--group", "algorithm"],
        ["compare", "*"],
        ["export", "--group", "algorithm"],
        ["report", "--group", "algorithm"],
    ):
        assert main([*words, "--runs-dir", str(root)]) == 0, words
        said = capsys.readouterr().err
        assert (f"run {bad} is left out, it is damaged" in said) or not damaged
    for words in (["show"], ["report"], ["compare"], ["evaluate"], ["train", "--resume"]):
        code = main([*words, bad, "--runs-dir", str(root)])
        said = capsys.readouterr().err
        assert "--debug" not in said, said
        if damaged:
            assert code == 2, (words, said)
            assert len(said) < 500
            if words[0] in ("show", "report", "compare"):
                assert said.count("\n") == 1, said


@pytest.mark.parametrize("how", SUMMARIES)
def test_a_damaged_summary(root, capsys, how):
    check(root, damaged_run(root, "summary.json", SUMMARIES[how]), capsys)


@pytest.mark.parametrize("how", CONFIGS)
def test_a_damaged_configuration(root, capsys, how):
    check(root, damaged_run(root, "config.yaml", CONFIGS[how]), capsys)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("name", ["summary.json", "config.yaml"])
def test_no_file_in_the_place_of_a_file(root, capsys, name, kind):
    check(root, special(root, name, kind), capsys)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("name", sorted(OTHER_FILES))
def test_no_file_in_the_place_of_another_file(root, capsys, name, kind):
    bad = special(root, name, kind)
    status = listed(root, capsys)
    assert status[bad] == "finished"
    assert main(["compare", "--group", "algorithm", "--runs-dir", str(root)]) == 0
    said = capsys.readouterr().err
    assert ("is left out, it is damaged" in said) == (name == "metrics.jsonl")
    assert main(["show", bad, "--runs-dir", str(root)]) == (2 if name == "metrics.jsonl" else 0)
    assert "--debug" not in capsys.readouterr().err


@pytest.fixture
def at_most_20_seconds():
    """Opening a pipe that nobody writes to would wait for ever."""

    def stop(number, frame):
        raise AssertionError("it waits for a pipe")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("at_most_20_seconds")
@pytest.mark.parametrize("name", ["manifest.json", "state.json", "state.safetensors"])
def test_a_pipe_in_a_checkpoint_is_a_damage(tmp_path, capsys, name):
    run = made_run(tmp_path, [5.0])
    store = CheckpointStore(run.directory.checkpoints)
    for step in (100, 200):
        path = store.save(step, {"a": torch.zeros(2)}, score=1.0)
    (path / name).unlink()
    os.mkfifo(path / name)
    assert store.load("last")[1]["step"] == 100
    assert main(["show", run.id, "--runs-dir", str(tmp_path)]) == 0
    capsys.readouterr()
    for words in (["verify"], ["evaluate"], ["train", "--resume"]):
        assert main([*words, run.id, "--runs-dir", str(tmp_path)]) == 2
        assert f"{name} is a pipe or a device: remove it" in capsys.readouterr().err


@pytest.mark.usefixtures("at_most_20_seconds")
@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "provenance.json"])
def test_verify_of_a_run_with_no_file_in_the_place_of_a_file(root, capsys, name, kind):
    bad = special(root, name, kind)
    assert main(["verify", bad, "--runs-dir", str(root)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert name in line and ("pipe" in line or "a link that leaves the run" in line)


@pytest.mark.usefixtures("at_most_20_seconds")
def test_a_pipe_as_a_config_file(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.yaml")
    assert main(["train", "--config", "pipe.yaml"]) == 2
    expected = "error: pipe.yaml: cannot be read: it is a pipe or a device, not a file\n"
    assert capsys.readouterr().err == expected


ROWS = {
    "nested": "[" * 100_000 + "\n",
    "a list": "[]\n",
    "no step": '{"eval/return_mean": 1}\n',
    "a text": '{"step": 1, "eval/return_mean": "good"}\n',
    "a long number": f'{{"step": {DIGITS}}}\n',
    "a step that is no number": '{"step": "nan"}\n',
    "endless": "x" * 5_000_000,
}


@pytest.mark.parametrize("how", ROWS)
def test_damaged_metrics(root, capsys, how):
    bad = damaged_run(root, "metrics.jsonl", ROWS[how])
    assert set(listed(root, capsys).values()) == {"finished"}
    assert main(["list", "--sort", "reward", "--runs-dir", str(root)]) == 0
    assert main(["compare", "--group", "algorithm", "--runs-dir", str(root)]) == 0
    assert f"run {bad} is left out, it is damaged" in capsys.readouterr().err
    for words in (["show", bad], ["report", bad]):
        assert main([*words, "--runs-dir", str(root)]) == 2
        assert "is not a row of metrics" in capsys.readouterr().err


def test_values_of_the_wrong_kind_in_a_configuration(root, capsys):
    text = "experiment: {seed: [1], name: {a: 1}, tags: 7}\nalgorithm: 5\ntraining: {x: 3}\n"
    bad = damaged_run(root, "config.yaml", text + "environment: {id: null}\n")
    check(root, bad, capsys, damaged=False)


def test_a_broken_lock_file_is_no_process(root):
    run = made_run(root, [5.0], summary={"status": "running"})
    for text in ("", "no number", DIGITS, "9" * 30, "-", "\x00"):
        run.directory.lock_file.write_text(text)
        assert {row["id"]: row["status"] for row in api.runs(runs_dir=root)}[run.id] == "killed"


def test_when_all_runs_are_damaged_it_says_so(tmp_path):
    for _ in range(2):
        damaged_run(tmp_path, "config.yaml", "")
    with pytest.raises(UserError, match="all of the 2 runs are damaged"):
        select_runs([], tmp_path)
