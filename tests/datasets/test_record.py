"""Recording: what is written is what was played, whatever happens meanwhile."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from rl_lab.buffers.offline import OfflineConfig, OfflineReplay
from rl_lab.cli.main import main
from rl_lab.core.errors import UserError
from rl_lab.core.protocols import BufferSetup
from rl_lab.core.spec import Box
from rl_lab.datasets.folder import Folder, Writer
from rl_lab.datasets.make import place
from rl_lab.datasets.make import record as record_dataset
from rl_lab.datasets.record import Recipe

QUICK = Recipe(episodes=5, batch=2, references=0)


def record(run, name, recipe=QUICK, **options):
    made = record_dataset(str(run.path), run.path.parent, name, recipe, **options)
    assert made.exit_code == 0
    return Folder.open(name)


def test_actions_are_those_that_the_environment_took(pendulum):
    """Frames and rewards follow from the recorded actions: -(angle² + .1 speed² + .001 torque²)."""
    folder = record(pendulum, "swing", Recipe(episodes=5, batch=2, references=0, noise=0.5))
    assert folder.about["environment"] == "Pendulum-v1" and folder.complete
    assert folder.about["actions"] == {"kind": "box", "low": [-2.0], "high": [2.0]}
    episodes = list(folder.episodes())
    assert [len(each) for each in episodes] == [20] * 5
    seen = np.concatenate([each.action for each in episodes])
    assert np.abs(seen).max() <= 2.0 and np.abs(seen).max() > 0.9
    for each in episodes:
        cos, sin, speed = each.frames["obs"].astype(np.float64).T
        torque = each.action[:, 0].astype(np.float64)
        angle = np.arctan2(sin, cos)
        cost = angle[:-1] ** 2 + 0.1 * speed[:-1] ** 2 + 0.001 * torque**2
        assert each.reward == pytest.approx(-cost, abs=1e-4)
        moved = np.clip(speed[:-1] + (15 * sin[:-1] + 3 * torque) * 0.05, -8, 8)
        assert speed[1:] == pytest.approx(moved, abs=1e-4)  # the true final frame included
        assert not each.terminated


def test_each_algorithm_reads_actions_in_its_own_units(pendulum):
    folder = record(pendulum, "swing", Recipe(episodes=4, batch=2, references=0, random=True))
    stored = np.concatenate([each.action for each in folder.episodes()])
    own = folder.spec
    unit = Box((1,), np.dtype(np.float32), -np.ones(1, np.float32), np.ones(1, np.float32))
    for space, scale in ((folder.spec.action, 1.0), (unit, 2.0)):
        spec = replace(own, action=space)
        setup = BufferSetup(spec, 1, np.random.default_rng(0))
        buffer = OfflineReplay(OfflineConfig(path="swing"), setup)
        assert buffer.last(80)["action"].numpy() * scale == pytest.approx(stored, abs=1e-6)
        assert buffer.action_range()[1].item() * scale == pytest.approx(stored.max(), abs=1e-6)
        assert buffer.chunks(4, 2, 3)["action"].abs().max() * scale <= 2.0


def test_memory_and_discrete_actions(cartpole):
    """A recurrent policy; where an episode ended by falling, it says so."""
    folder = record(cartpole, "balance", Recipe(episodes=7, batch=3, references=2, noise=0.5))
    assert folder.about["actions"] == {"kind": "discrete", "n": 2}
    episodes = list(folder.episodes())
    assert len(episodes) == 7 and {each.action.dtype for each in episodes} == {np.dtype(np.int64)}
    for each in episodes:
        fell = abs(each.frames["obs"][-1, 0]) > 2.4 or abs(each.frames["obs"][-1, 2]) > 0.2095
        assert each.terminated == fell
        assert each.total == len(each)
    known = folder.about["references"]
    assert known["episodes"] == 2 and 8 <= known["random"] <= 40 and known["expert"] > 8


def test_the_same_command_gives_the_same_files_and_another_seed_others(pendulum):
    first, again = record(pendulum, "a"), record(pendulum, "b")
    assert files(first) == files(again)
    other = record(pendulum, "c", replace(QUICK, seed=1))
    assert files(first) != files(other)
    assert files(record(pendulum, "d", replace(QUICK, sample=True))) != files(first)


def files(folder):
    return {each.name: each.read_bytes() for each in sorted(folder.path.glob("*.npz"))}


def test_a_batch_that_is_interrupted_is_gone_on_with(pendulum, monkeypatch):
    whole = record(pendulum, "whole")
    add = Writer.add

    def once(self, episodes):
        if self.stop:
            raise OSError("injected")
        return add(self, episodes)

    monkeypatch.setattr(Writer, "add", once)
    with pytest.raises(OSError, match="injected"):
        record(pendulum, "broken")
    monkeypatch.setattr(Writer, "add", add)
    left = Folder.open("broken")
    assert not left.complete and len(list(left.episodes())) == 2
    with pytest.raises(UserError, match="broken is another dataset: choose another name"):
        record(pendulum, "broken", replace(QUICK, noise=0.1))
    assert files(record(pendulum, "broken")) == files(whole)
    with pytest.raises(UserError, match="broken is complete"):
        record(pendulum, "broken")


def test_a_killed_recorder_leaves_a_dataset_that_can_be_gone_on_with(pendulum, datasets):
    """SIGKILL, no matter when: whole episodes only; the same command ends with the same files."""
    command = [sys.executable, "-m", "rl_lab", "dataset", "record", str(pendulum.path)]
    command += ["--episodes", "60", "--batch", "2", "--references", "0", "--seed", "3", "-o"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*command, "killed"], env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(list((datasets / "killed").glob("*.npz"))) < 3:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (datasets / "killed" / "000000099999-1.draft").write_bytes(b"half a fi")  # as a kill may leave
    left = Folder.open("killed")
    count = len(list(left.episodes()))
    assert not left.complete and 6 <= count < 60 and count % 2 == 0
    assert all(len(each) == 20 for each in left.episodes())
    assert main(["dataset", "info", "killed"]) == 0
    setup = BufferSetup(left.spec, 1, np.random.default_rng(0))
    assert len(OfflineReplay(OfflineConfig(path="killed"), setup)) == 20 * count
    assert subprocess.run([*command, "killed"], env=environment, check=False).returncode == 0
    recipe = Recipe(episodes=60, batch=2, references=0, seed=3)
    assert files(Folder.open("killed")) == files(record(pendulum, "straight", recipe))


def test_ctrl_c_ends_with_whole_episodes(pendulum, datasets):
    command = [sys.executable, "-m", "rl_lab", "dataset", "record", str(pendulum.path), "-o", "x"]
    command += ["--episodes", "5000", "--batch", "2", "--references", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list((datasets / "x").glob("*.npz")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and said == "interrupted: the same command goes on with it\n"
    assert not Folder.open("x").complete


def test_the_replay_of_a_run(pendulum):
    """150 steps of two environments, 20 to an episode: the open ones at the end are left out."""
    folder = record(pendulum, "replay", replay=True)
    assert folder.about["episodes"] == 6 and folder.about["transitions"] == 120
    for each in folder.episodes():
        assert np.abs(each.action).max() <= 2.0 and np.abs(each.action).max() > 1.0
        speed, sin = each.frames["obs"][:, 2], each.frames["obs"][:, 1]
        moved = np.clip(speed[:-1] + (15 * sin[:-1] + 3 * each.action[:, 0]) * 0.05, -8, 8)
        assert speed[1:] == pytest.approx(moved, abs=1e-4)
    early = record(pendulum, "early", replay=True, checkpoint="100")
    assert early.about["episodes"] == 4
    assert early.about["provenance"]["checkpoint"] == 100
    first = [each.reward.tolist() for each in early.episodes()]
    assert first == [each.reward.tolist() for each in folder.episodes()][:4]


def test_a_run_without_such_a_buffer(cartpole, pendulum):
    with pytest.raises(UserError, match=r"no such buffer to record \(.*transitions: none\)"):
        record(cartpole, "replay", replay=True)
    with pytest.raises(UserError, match=r"no such buffer to record \(.*transitions: replay\)"):
        record(pendulum, "replay", replay=True, buffer="demos")


def test_what_a_dataset_says_of_itself(pendulum, capsys, datasets):
    words = ["dataset", "record", str(pendulum.path), "--checkpoint", "100", "--episodes", "3"]
    assert main([*words, "--references", "2", "--json", "-o", "swing/medium"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["name"] == "swing/medium" and told["status"] == "complete"
    assert (told["episodes"], told["transitions"], told["terminated_episodes"]) == (3, 60, 0)
    assert told["provenance"]["run"] == pendulum.id and told["provenance"]["checkpoint"] == 100
    assert set(told["provenance"]["versions"]) == {"rl-lab", "torch", "numpy", "gymnasium"}
    returns = [each.total for each in Folder.open("swing/medium").episodes()]
    assert told["returns"]["mean"] == pytest.approx(np.mean(returns))
    assert told["returns"]["quantiles"]["50"] == pytest.approx(np.median(returns))
    frames = np.concatenate([each.frames["obs"] for each in Folder.open("swing/medium").episodes()])
    assert told["statistics"]["obs"]["mean"] == pytest.approx(frames.mean(0, dtype=np.float64))
    assert main(["dataset", "info", "swing/medium"]) == 0
    said = capsys.readouterr().out
    for line in ("environment   Pendulum-v1", "episodes      3 (0 terminated)", "random play   -"):
        assert line in said
    card = (datasets / "swing" / "medium" / "README.md").read_text()
    assert card.startswith("# swing/medium") and f"* run: {pendulum.id}" in card
    assert "path: swing/medium}" in card


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--episodes", "0"], "must be a whole number, 1 or more"),
        (["-o", "../out"], None),
        (["-o", "a/../../out"], "is not a name of a dataset"),
        (["-o", "a b"], "is not a name of a dataset"),
        (["--noise", "11"], "noise must be between 0 and 10"),
        (["--checkpoint", "77"], "has no checkpoint at step 77"),
        (["--expert", "nobody"], "there are no runs in runs"),
    ],
)
def test_bad_input_is_one_line(pendulum, capsys, tmp_path, monkeypatch, words, said):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    quick = ["--episodes", "1", "--references", "1", "--batch", "1", "-o", "one"]
    code = main(["dataset", "record", str(pendulum.path), *quick, *words])
    if said is None:  # a path, and said so
        assert code == 0 and (tmp_path / "out" / "dataset.json").exists()
        return
    error = capsys.readouterr().err
    assert code == 2 and error.count("\n") == 1 and said in error
    assert not (tmp_path / "datasets" / "one" / "dataset.json").exists()


def test_names_and_places(tmp_path, datasets):
    assert place("hopper/expert") == datasets / "hopper" / "expert"
    assert place(str(tmp_path / "x")) == tmp_path / "x"
    for bad in ("", "a//b", "a/", "-o", ".hidden", "a\nb"):
        with pytest.raises(UserError, match="is not a name of a dataset"):
            place(bad)
