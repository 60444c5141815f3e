"""`rl-lab replay-crash`: the failure comes back in a process that knows only the dump."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rl_lab.cli.main import main
from rl_lab.records.commit import read_tree
from rl_lab.records.run_directory import find_run
from tiny_runs import SMALL, SMALL_PPO

TESTS = Path(__file__).parents[1] / "support"
BAD_ENV = "bad_number_envs:test/GoesBad-v0:ppo_defaults"
# A step so large that the next minibatch's loss is infinite.
BAD_UPDATE = ["CartPole-v1:ppo_defaults", "algorithm.learning_rate=1e30"]


def crash(root, *words):
    """Train until it fails; the dump."""
    assert main(["train", *words, *SMALL, *SMALL_PPO, "-q", "--runs-dir", str(root)]) == 1
    (dump,) = (find_run("@last", root)[0].path / "crash").iterdir()
    return dump


def in_a_new_process(*words):
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "rl_lab", "replay-crash", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def failed_update(tmp_path_factory):
    root = tmp_path_factory.mktemp("update")
    return crash(root, *BAD_UPDATE)


def test_a_failed_update_fails_again_in_a_new_process(failed_update, tmp_path):
    moved = shutil.copytree(failed_update, tmp_path / "elsewhere")  # without its run
    done = in_a_new_process(moved)
    assert done.returncode == 1, done.stderr
    assert done.stdout == "reproduced: update at step 64 failed again\n"
    assert done.stderr.splitlines()[0] == f"error: {read_tree(moved)[1]['message']}"
    assert "Traceback" not in done.stderr


# The environment fails at step 384: from the checkpoint of step 256, or from the very beginning.
@pytest.mark.parametrize("every", [256, 0])
def test_a_failed_rollout_is_collected_again(tmp_path, every):
    words = [BAD_ENV, "evaluation.every_steps=0", f"checkpoint.every_steps={every}"]
    dump = crash(tmp_path, *words, "checkpoint.keep_last=1")
    run = find_run("@last", tmp_path)[0]
    shutil.rmtree(run.checkpoints, ignore_errors=True)  # the dump has all it needs
    before = sorted(each.name for each in run.path.rglob("*"))
    done = in_a_new_process(dump, "--debug")
    assert done.returncode == 1
    assert "reproduced: collect at step 384" in done.stdout
    assert "Traceback" in done.stderr and "_check_finite" in done.stderr
    assert sorted(each.name for each in run.path.rglob("*")) == before  # nothing was touched


def test_a_run_stands_for_its_newest_dump(failed_update, capsys):
    run = failed_update.parents[1]
    words = ["replay-crash", run.name, "--runs-dir", str(run.parent), "--json"]
    assert main(words) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["reproduced"] and told["error"] == told["expected"]
    assert (told["hook"], told["step"]) == ("update", 64)


def test_what_goes_well_this_time_is_said(failed_update, tmp_path, capsys, monkeypatch):
    from rl_lab.algorithms.ppo import PPO

    monkeypatch.setattr(PPO, "update", lambda self, batch, *, phase: {})  # as if it were repaired
    assert main(["replay-crash", str(failed_update)]) == 0
    assert "did not reproduce: update at step 64 went well" in capsys.readouterr().out


def test_another_failure_is_not_called_the_same(failed_update, capsys, monkeypatch):
    from rl_lab.algorithms.ppo import PPO
    from rl_lab.core.errors import NonFiniteError

    def fail(self, batch, *, phase):
        raise NonFiniteError("something else")

    monkeypatch.setattr(PPO, "update", fail)
    assert main(["replay-crash", str(failed_update)]) == 1
    told = capsys.readouterr()
    assert "failed in another way" in told.out and "error: something else" in told.err


@pytest.mark.parametrize("file", ["state.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("how", ["cut", "changed", "gone"])
def test_a_damaged_dump_is_refused(failed_update, tmp_path, capsys, file, how):
    dump = shutil.copytree(failed_update, tmp_path / "crash" / "step_1")
    data = bytearray((dump / file).read_bytes())
    data[len(data) // 2] ^= 1
    if how == "gone":
        (dump / file).unlink()
    else:
        (dump / file).write_bytes(data[:-9] if how == "cut" else data)
    assert main(["replay-crash", str(dump)]) == 2
    told = capsys.readouterr()
    assert "damaged" in told.err and told.out == ""


def test_a_checkpoint_is_not_a_dump_and_a_good_run_has_none(tmp_path, capsys):
    words = ["CartPole-v1:ppo_defaults", *SMALL, *SMALL_PPO, "training.total_timesteps=64"]
    assert main(["train", *words, "-q", "--runs-dir", str(tmp_path)]) == 0
    run = find_run("@last", tmp_path)[0]
    assert main(["replay-crash", "@last", "--runs-dir", str(tmp_path)]) == 2
    assert "has no crash dump" in capsys.readouterr().err
    assert main(["replay-crash", str(run.checkpoints / "latest")]) == 2
    assert "not a crash dump" in capsys.readouterr().err


def test_a_dump_of_a_debug_run_comes_back_too(tmp_path, capsys):
    dump = crash(tmp_path, *BAD_UPDATE, "--debug")
    assert "gradient of" in read_tree(dump)[1]["message"]
    capsys.readouterr()
    assert main(["replay-crash", str(dump)]) == 1
    shown = capsys.readouterr()
    assert shown.out.startswith("reproduced: ")
    assert "state and batch are in" not in shown.err  # of the replay: that folder is gone


def test_a_dump_that_names_code_needs_its_run_or_trust(tmp_path, monkeypatch, capsys):
    dump = crash(tmp_path, BAD_ENV, "evaluation.every_steps=0", "checkpoint.every_steps=0")
    monkeypatch.chdir(tmp_path)
    moved = shutil.copytree(dump, tmp_path / "elsewhere")
    assert main(["replay-crash", str(moved)]) == 2
    told = capsys.readouterr().err.splitlines()
    assert "would import 'bad_number_envs' (environment.id)" in told[-1] and "--trust" in told[-1]
    assert main(["replay-crash", str(moved), "--trust"]) == 1  # it fails again, as it did
    assert main(["replay-crash", str(dump)]) == 1  # within the run of this user
