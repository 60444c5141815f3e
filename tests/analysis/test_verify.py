"""`rl-lab verify` finds nothing where there is nothing, and one bit where one was changed."""

import json
import shutil
import signal

import numpy as np
import pytest
import torch

from rl_lab.algorithms import ppo
from rl_lab.analysis.differences import first_difference, row_difference
from rl_lab.analysis.verify import verify
from rl_lab.cli.main import main
from rl_lab.core.chunks import Chunk, Log
from rl_lab.core.errors import UserError
from rl_lab.records.checkpoint import CheckpointStore
from rl_lab.records.commit import RESERVED, commit_tree, remove
from rl_lab.records.run_directory import find_run, list_runs
from rl_lab.run.session import resume
from tiny_runs import tiny_run

TINY = {
    "CartPole-v1:ppo_gru_defaults": [
        "environment.normalize_obs=true",
        "training.total_timesteps=512",
    ],
    "CartPole-v1:dqn": ["training.total_timesteps=512", "algorithm.learning_starts=200"],
    "Pendulum-v1:sac": [
        "training.total_timesteps=320",
        "algorithm.learning_starts=250",
        "network.actor.hidden_dims=[8]",
        "network.critic.hidden_dims=[8]",
    ],
    "FrozenLake-v1:q_learning": [],
}


def settings(spec):
    small_buffer = ["buffers.replay.capacity=400"] if spec.endswith(("dqn", "sac")) else []
    return [spec, *TINY[spec], *small_buffer]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A PPO run of 1,024 steps with checkpoints at 256, 768 and 1,024, and one of DQN."""
    root = tmp_path_factory.mktemp("recorded")
    tiny_run(root, "CartPole-v1:ppo_defaults", "experiment.name=ppo")
    tiny_run(root, *settings("CartPole-v1:dqn"), "experiment.name=dqn")
    return root


@pytest.fixture
def runs(recorded, tmp_path):
    """A copy of them that a test may change."""
    return shutil.copytree(recorded, tmp_path / "runs", symlinks=True)


@pytest.mark.parametrize("spec", TINY)
def test_a_run_is_identical_to_itself(tmp_path, spec):
    run = tiny_run(tmp_path, *settings(spec)).run
    steps = CheckpointStore(run.checkpoints).steps()
    rows = len(run.metrics_file.read_text().splitlines())
    verdict = verify("@last", tmp_path)
    assert verdict.difference is None and verdict.reasons == []
    assert verdict.checkpoints == steps and len(steps) >= 2 and verdict.rows == rows > 5
    assert list_runs(tmp_path) == [run]  # the second one was elsewhere


def test_one_bit_of_a_metric_is_found(runs):
    run, _ = find_run("ppo", runs)
    lines = run.metrics_file.read_bytes().splitlines(keepends=True)
    row = json.loads(lines[4])
    before = json.dumps(row["train/entropy"])
    after = before[:-1] + chr(ord(before[-1]) ^ 1)  # 0 and 1, 2 and 3 … differ in one bit
    assert lines[4].count(before.encode()) == 1
    lines[4] = lines[4].replace(before.encode(), after.encode())
    run.metrics_file.write_bytes(b"".join(lines))
    verdict = verify("ppo", runs)
    found = verdict.difference
    assert (found.step, found.kind, found.name) == (row["step"], "metric", "train/entropy")
    assert (found.recorded, found.again, found.others) == (float(after), float(before), 0)
    assert verdict.rows == 4


def test_one_bit_of_a_weight_is_found(runs):
    run, _ = find_run("ppo", runs)
    tree, manifest, path = CheckpointStore(run.checkpoints).load(768)
    name, weight = next(
        (name, part)
        for name, part in tree["workflow"]["learner"]["module"].items()
        if isinstance(part, torch.Tensor) and part.dim() == 2
    )
    before = weight[1, 2].item()
    weight.view(torch.int32)[1, 2] ^= 1
    remove(path)
    commit_tree(path, tree, manifest={k: v for k, v in manifest.items() if k not in RESERVED})
    verdict = verify("ppo", runs)
    found = verdict.difference
    assert (found.step, found.kind) == (768, "tensor")
    assert found.name == f"workflow/learner/module/{name}[1, 2]"
    assert (found.recorded, found.again) == (weight[1, 2].item(), before) and found.others == 0
    assert found.recorded != found.again and verdict.checkpoints == [256]
    assert verify("ppo", runs, steps=600).identical  # as far as that, nothing is wrong


def test_one_bit_of_a_transition_is_found(runs):
    run, _ = find_run("dqn", runs)
    store = CheckpointStore(run.checkpoints)
    tree, manifest, path = store.load(256)
    log = tree["parts"]["buffer.replay"]["log"]
    chunk = log.chunks[-1]
    columns = {name: column.copy() for name, column in chunk.read().items()}
    columns["reward"].view(np.uint32)[-1, 2] ^= 1
    chunk.columns, chunk.load = columns, None
    remove(path)
    store.save(256, tree, manifest={k: manifest[k] for k in ("config_hash", "numerics")})
    found = verify("dqn", runs).difference
    last = chunk.first + chunk.count - 1
    assert (found.step, found.kind) == (256, "transition")
    assert found.name == f"parts/buffer.replay/log/reward[{last}, 2]"
    assert found.again == 1.0 and 0 < abs(found.recorded - 1.0) < 1e-6


def test_changed_code_is_found(runs, monkeypatch):
    genuine = ppo.clipped_surrogate

    def changed(*arguments):
        loss, metrics = genuine(*arguments)
        return loss * (1 + 2**-20), metrics

    monkeypatch.setattr(ppo, "clipped_surrogate", changed)
    found = verify("ppo", runs).difference
    first = json.loads(find_run("ppo", runs)[0].metrics_file.read_text().splitlines()[0])
    assert found.step == first["step"] and found.name.startswith("train/")


def test_from_a_checkpoint_on(runs):
    verdict = verify("ppo", runs, start=256)
    assert verdict.identical and (verdict.start, verdict.checkpoints) == (256, [768, 1024])
    assert verify("ppo:256", runs, steps=300).checkpoints == []
    assert verify("dqn:256", runs).checkpoints == [512]
    with pytest.raises(UserError, match="nothing is recorded after step 1024"):
        verify("ppo:last", runs)
    with pytest.raises(UserError, match="no checkpoint at step 300"):
        verify("ppo", runs, start=300)


def test_rows_that_are_missing_or_too_many_are_found(runs):
    run, _ = find_run("ppo", runs)
    lines = run.metrics_file.read_bytes().splitlines(keepends=True)
    run.metrics_file.write_bytes(b"".join(lines[:-1]))
    found = verify("ppo", runs).difference
    assert (found.kind, found.recorded, found.step) == ("row", "(absent)", 1024)
    run.metrics_file.write_bytes(b"".join([*lines, lines[-1]]))
    assert verify("ppo", runs).difference.again == "(absent)"
    run.metrics_file.write_bytes(lines[0][:-2] + b"!\n" + b"".join(lines[1:]))
    assert verify("ppo", runs).difference.name == "not a row of metrics"


def test_an_interrupted_run_is_compared_where_it_was_saved(tmp_path, monkeypatch):
    phases = "training.phases=[{name: a, hooks: [collect, update, evaluate, update]}]"
    words = [phases, "evaluation.every_steps=0", "training.total_timesteps=256"]
    genuine, calls = ppo.PPO.update, []

    def interrupted(self, batch, *, phase):
        calls.append(phase["step"])
        if len(calls) == 3:  # the first update of the second cycle, in the middle of it
            signal.raise_signal(signal.SIGTERM)
        return genuine(self, batch, phase=phase)

    with monkeypatch.context() as patch:
        patch.setattr(ppo.PPO, "update", interrupted)
        outcome = tiny_run(tmp_path, "CartPole-v1:ppo_defaults", *words)
    assert outcome.exit_code == 143
    store = CheckpointStore(outcome.run.checkpoints)
    assert store.load("last")[0]["parts"]["scheduler"]["hook"] == 2
    verdict = verify("@last", tmp_path)
    assert verdict.identical and verdict.checkpoints == store.steps() == [64, 128]
    resume("@last", root=tmp_path)
    assert verify("@last", tmp_path).identical


def test_known_reasons_are_told(runs):
    run, _ = find_run("ppo", runs)
    notes = json.loads(run.provenance_file.read_text())
    notes["source"]["rl_lab"] = "0" * 64
    run.provenance_file.write_text(json.dumps(notes))
    store = CheckpointStore(run.checkpoints)
    tree, manifest, path = store.load(256)
    manifest["numerics"]["torch"] = "1.0"
    remove(path)
    commit_tree(path, tree, manifest={k: v for k, v in manifest.items() if k not in RESERVED})
    verdict = verify("ppo", runs, steps=64)
    assert verdict.identical
    assert verdict.reasons[0].startswith("the code of rl_lab has changed since this run was made")
    assert verdict.reasons[1:] == ["another machine or other versions: torch"]


def test_what_cannot_be_checked_is_said(runs):
    run, _ = find_run("ppo", runs)
    summary = run.read_summary()
    run.write_summary({**summary, "snapshot_level": "E3"})
    with pytest.raises(UserError, match=r"cannot be saved"):
        verify("ppo:256", runs)
    run.write_summary({**summary, "rollbacks": [{"step": 9, "to": 0}]})
    with pytest.raises(UserError, match="went back after a bad number"):
        verify("ppo", runs)


def test_what_an_unsaved_environment_cannot_promise_is_said(tmp_path, capsys):
    forgets = ["environment.vectorization=sync", "environment.snapshot=reset"]
    words = ["training.total_timesteps=512", "checkpoint.keep_last=9", *forgets]
    run = tiny_run(tmp_path, "CartPole-v1:ppo_defaults", *words).run
    assert run.read_summary()["snapshot_level"] == "E3"
    assert main(["verify", "@last", "--runs-dir", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "IDENTICAL" in output and "256, 512 equal bit for bit" in output
    assert "note: its environment cannot be saved: what is inside of it was not" in output
    resume("@last:256", root=tmp_path)
    verdict = verify("@last", tmp_path)
    assert verdict.difference.step > 256 and verdict.checkpoints == [256]
    assert "cannot be saved, and it was resumed" in verdict.reasons[-1]


def test_exit_codes_and_json(runs, capsys):
    where = ["--runs-dir", str(runs)]
    assert main(["verify", "ppo", "--steps", "256", *where]) == 0
    assert "IDENTICAL" in capsys.readouterr().out
    run, _ = find_run("ppo", runs)
    text = run.metrics_file.read_text()
    run.metrics_file.write_text(text.replace('"episodes": ', '"episodes": 1', 1))
    assert main(["verify", "ppo", "--steps", "256", "--json", *where]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["identical"] is False and found["difference"]["name"] == "episodes"
    assert main(["verify", "ppo", *where]) == 1
    assert "DIFFERS at step 64: metric episodes" in capsys.readouterr().out
    assert main(["verify", "nothing", *where]) == 2


def test_the_first_difference_of_two_states():
    one = {"a": {"x": torch.zeros(2, 3)}, "b": [1.0, 2], "log": Log([], 0)}
    assert first_difference(one, {**one, "b": (1.0, 2)}, 5) is None
    found = first_difference(one, {**one, "b": [-0.0, 3]}, 5)
    assert (found.step, found.kind, found.name, found.others) == (5, "value", "b/0", 1)
    found = first_difference({"z": torch.tensor(0.0)}, {"z": torch.tensor(-0.0)}, 5)
    assert (found.kind, found.name, str(found.again)) == ("tensor", "z", "-0.0")
    found = first_difference(one, {**one, "a": {"x": torch.zeros(3, 2)}}, 5)
    assert (found.recorded, found.again) == ("float32 [2, 3]", "float32 [3, 2]")
    found = first_difference({"a": 1}, {"a": 1, "new": True}, 5)
    assert (found.name, found.recorded, found.again) == ("new", "(absent)", True)
    rows = {"reward": np.array([[1.0], [2.0]])}
    moved = [Log([Chunk(first, 2, rows)], first) for first in (7, 8)]
    found = first_difference({"log": moved[0]}, {"log": moved[1]}, 5)
    assert found.recorded == "float64 [2, 1] from row 7"


def test_the_same_numbers_in_other_bytes_are_a_difference():
    found = row_difference(b'{"step": 1, "a": 0.5}\n', b'{"step": 1, "a": 5e-1}\n')
    assert (found.step, found.name) == (1, "the bytes of a row")
