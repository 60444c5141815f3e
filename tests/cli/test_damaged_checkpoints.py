"""Damaged checkpoints: every command that loads one says what it skipped, or refuses."""

import json

import pytest

from rl_lab.cli.main import main
from rl_lab.records.checkpoint import CheckpointStore


def flip(path, file="state.safetensors"):
    data = bytearray((path / file).read_bytes())
    data[len(data) // 2] ^= 1
    (path / file).write_bytes(data)


def folders(run):
    return sorted(run.checkpoints.glob("step_*"))


@pytest.fixture
def call(run, capsys):
    """`call(word, …)`: exit code, stdout and stderr of a command on the run."""

    def go(*words):
        words = [str(run.path) + word[3:] if word.startswith("RUN") else word for word in words]
        code = main([*words, "--runs-dir", str(run.path.parent)])
        return code, *capsys.readouterr()

    return go


@pytest.mark.parametrize("also", ["resume", "evaluate"])
def test_a_run_whose_checkpoints_are_all_damaged_never_begins_again(run, call, also):
    rows = run.metrics_file.read_bytes()
    for path in folders(run):
        flip(path)
    if also == "evaluate":
        for _ in range(2):
            code, _, errors = call("evaluate", "RUN", "--episodes", "1")
            assert code == 2 and "all of them are damaged" in errors
    for attempt in range(3):
        code, _, errors = call("train", "--resume", "RUN", "-q")
        assert code == 2, attempt
        assert errors.count("error: ") == 1 and "damaged" in errors.splitlines()[-1]
    code, _, errors = call("evaluate", "RUN", "--episodes", "1")
    assert code == 2 and "all of them are damaged" in errors
    assert run.metrics_file.read_bytes() == rows


def test_a_finished_run_without_checkpoints_does_not_begin_again(run, call):
    for path in folders(run):
        path.rename(path.with_name(f"gone-{path.name}"))
    code, _, errors = call("train", "--resume", "RUN", "-q")
    assert code == 2 and "all of its checkpoints are gone" in errors
    assert "rl-lab train --config" in errors


def test_a_quiet_resume_says_which_step_it_uses_instead(run, call):
    *_, before, last = folders(run)
    flip(last)
    code, _, errors = call("train", "--resume", "RUN", "-q")
    (line,) = errors.splitlines()
    step = int(before.name.removeprefix("step_"))
    assert code == 0 and line.startswith("WARNING: skipped a damaged checkpoint")
    assert line.endswith(f"; step {step} is used instead")
    code, _, errors = call("train", "--resume", "RUN", "-q")
    assert (code, errors) == (0, "")  # the step was saved again


def test_without_its_best_checkpoint_evaluate_uses_another_and_warns_every_time(run, call):
    best = CheckpointStore(run.checkpoints).best()
    flip(run.checkpoints / f"step_{best:012d}")
    for _ in range(2):
        code, output, errors = call("evaluate", "RUN", "--episodes", "1", "--json")
        used = json.loads(output)["step"]
        assert code == 0 and used != best
        assert "skipped a damaged checkpoint" in errors
        assert errors.endswith(f"; step {used} is used instead\n")
    assert not list(run.checkpoints.glob(".bad-*"))


def test_a_fork_says_what_it_skipped(run, call):
    flip(folders(run)[-1])
    code, _, errors = call("train", "--fork", "RUN", "--total-timesteps", "1100", "-q")
    assert code == 0 and "WARNING: skipped a damaged checkpoint" in errors
    assert "is used instead" in errors
