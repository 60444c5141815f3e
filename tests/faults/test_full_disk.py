"""A disk that is full or read-only: the best policy is not lost, and the error is one line."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from made_runs import made_run
from rl_lab.core.errors import RunError
from rl_lab.core.state import fingerprint
from rl_lab.display.sinks import Sink
from rl_lab.records import faults
from rl_lab.records.checkpoint import CheckpointStore
from rl_lab.records.run_directory import RunDirectory
from rl_lab.run.session import resume, train
from tiny_runs import SMALL, SMALL_PPO, run_hash, tiny_config, tiny_run

SAVES = "ckpt.before_mkdir"


class Ears(Sink):
    def __init__(self):
        self.messages = []

    def say(self, message):
        self.messages.append(message)


@pytest.fixture(scope="module")
def roomy(tmp_path_factory) -> RunDirectory:
    """The same run on a disk with room."""
    return tiny_run(tmp_path_factory.mktemp("roomy")).run


def best_of(run: RunDirectory) -> tuple[int | None, str]:
    store = CheckpointStore(run.checkpoints)
    return store.best(), fingerprint(store.load("best")[0])


def fail(monkeypatch, *counts: int) -> None:
    monkeypatch.setenv(faults.VARIABLE, ",".join(f"{SAVES}:error@{each}" for each in counts))
    faults.reset()


@pytest.mark.parametrize("lost", [1, 2])
def test_the_best_policy_is_saved_when_there_is_room_again(tmp_path, monkeypatch, roomy, lost):
    first = roomy.read_summary()["best_step"] // 256  # a save at every 256 steps
    fail(monkeypatch, *range(first, first + lost))
    ears = Ears()
    outcome = train(tiny_config(), root=tmp_path, view=lambda *_: [ears])
    assert outcome.exit_code == 0
    assert sum("failed: [Errno 28]" in each for each in ears.messages) == lost
    assert "the best policy waits in memory for the next checkpoint" in ears.messages
    step = roomy.read_summary()["best_step"]
    assert f"the best policy, of step {step}, is saved now" in ears.messages
    assert best_of(outcome.run) == best_of(roomy)
    assert run_hash(outcome.run) == run_hash(roomy)
    assert outcome.summary["test"] == roomy.read_summary()["test"]


def test_a_last_state_that_is_missing_is_an_error_and_a_resume_makes_up_for_it(
    tmp_path, monkeypatch, roomy
):
    fail(monkeypatch, *range(2, 20))
    with pytest.raises(RunError, match="last checkpoint could not be written: free some space"):
        train(tiny_config(), root=tmp_path)
    monkeypatch.delenv(faults.VARIABLE)
    (path,) = tmp_path.glob("CartPole*")
    assert CheckpointStore(path / "checkpoints").steps() == [256]
    resumed = resume(str(path), root=tmp_path)
    assert best_of(resumed.run)[0] == best_of(roomy)[0]
    assert run_hash(resumed.run) == run_hash(roomy)


def test_a_summary_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv(
        faults.VARIABLE, "file.after_write:error@4"
    )  # after mark, config, provenance
    faults.reset()
    with pytest.raises(RunError, match=r"cannot write .*summary\.json: No space left on device"):
        train(tiny_config(), root=tmp_path)


def on_a_small_disk(folder: Path, size: str, *words: str, then: str = "true") -> tuple[int, str]:
    """Run the command line in a namespace of its own, where `folder` is a disk of this size."""
    if not shutil.which("unshare"):
        pytest.skip("needs unshare")
    source = folder.with_name("source")
    source.mkdir(exist_ok=True)
    script = (
        f"mount -t tmpfs -o size={size} none {folder} && cp -r {source}/. {folder} && {then} || "
        'exit 99; exec "$@"'
    )
    command = [sys.executable, "-m", "rl_lab", *words, "--runs-dir", str(folder)]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", *command],
        capture_output=True, text=True, env=os.environ, timeout=120,
    )  # fmt: skip
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip("needs a namespace of its own")
    return done.returncode, done.stderr


def test_a_full_disk_ends_train_with_one_line(tmp_path):
    (tmp_path / "runs").mkdir()
    words = ["train", "CartPole-v1:ppo_defaults", *SMALL, *SMALL_PPO, "-q"]
    code, said = on_a_small_disk(tmp_path / "runs", "16k", *words)
    errors = [line for line in said.splitlines() if line.startswith("error:")]
    assert code in (1, 2)
    assert len(errors) == 1 and "No space left on device" in errors[0]
    assert "Traceback" not in said and "--debug" not in said


def test_where_no_file_may_grow_the_error_says_how_to_go_on(tmp_path):
    """`ulimit -f`: no checkpoint was ever written, and nothing says that there is one."""
    words = ["train", "CartPole-v1:ppo_defaults", *SMALL, *SMALL_PPO, "-q", "--runs-dir", "runs"]
    words += ["logging.every_steps=64", "network.encoder.hidden_dims=[64]"]
    limit = "import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (3072, 3072)); "
    command = [sys.executable, "-c", f"{limit}runpy.run_module('rl_lab', run_name='__main__')"]
    done = subprocess.run([*command, *words], cwd=tmp_path, capture_output=True, text=True)
    (run,) = tmp_path.glob("runs/CartPole*")
    assert done.returncode == 1 and not list(run.glob("checkpoints/step_*"))
    *warned, error, note = done.stderr.splitlines()
    assert any("File too large" in line for line in warned)
    assert all(line.startswith("WARNING") for line in warned)
    assert error.startswith("error: the last checkpoint could not be written: free some space")
    assert re.search(r"to go on from the first step .*: rl-lab train --resume runs/CartPole", note)


@pytest.mark.parametrize(("size", "then"), [("1m", "mount -o remount,ro {}"), ("24k", "true")])
def test_an_index_that_cannot_be_written_is_one_line(tmp_path, size, then):
    (tmp_path / "runs").mkdir()
    made_run(tmp_path / "source", [1.0])
    folder = tmp_path / "runs"
    code, said = on_a_small_disk(folder, size, "index", "rebuild", then=then.format(folder))
    assert code == 2
    assert said.startswith("error: cannot write ") and "index.sqlite" in said
    assert said.count("\n") == 1
