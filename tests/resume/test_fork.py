"""A fork goes on from a checkpoint as a new run: exactly like the old one, but for what changed."""

import json
import shutil

import pytest
import torch
import yaml

from rl_lab.analysis.verify import verify
from rl_lab.cli.main import main
from rl_lab.core.errors import RunError, UserError
from rl_lab.core.state import differences
from rl_lab.records import faults
from rl_lab.records.checkpoint import CheckpointStore
from rl_lab.records.metrics import read_metrics
from rl_lab.records.run_directory import find_run, list_runs
from rl_lab.run.fork import fork
from rl_lab.run.session import resume
from tiny_runs import final_state, run_hash, tiny_run

DQN = ("CartPole-v1:dqn", "algorithm.learning_starts=200", "buffers.replay.capacity=400")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Runs of 1,024 steps (PPO) and of 512 (DQN), both with a checkpoint at step 256."""
    root = tmp_path_factory.mktemp("recorded")
    tiny_run(root, "CartPole-v1:ppo_defaults", "experiment.name=ppo")
    tiny_run(root, *DQN, "experiment.name=dqn", "training.total_timesteps=512")
    return root


@pytest.fixture
def runs(recorded, tmp_path):
    return shutil.copytree(recorded, tmp_path / "runs", symlinks=True)


def rows_after(run, step):
    return [row for row in read_metrics(run.metrics_file) if row["step"] > step]


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_without_changes_it_does_what_the_run_did(runs, name):
    parent, _ = find_run(name, runs)
    before = {path: path.read_bytes() for path in parent.path.rglob("*") if path.is_file()}
    torch.manual_seed(123)  # a new process would not share our random stream
    child = fork(f"{name}:256", root=runs).run
    assert child.metrics_file.read_bytes() == parent.metrics_file.read_bytes()
    assert rows_after(child, 256)
    changed = {"best_score", "best_step"}  # those of the parent are in its own folder
    found = differences(final_state(parent), final_state(child))
    assert set(found) <= {f"/parts/progress/{each}" for each in changed}
    assert child.read_summary()["parent"] == {"id": parent.id, "step": 256}
    assert json.loads(child.provenance_file.read_text())["parent"]["step"] == 256
    assert before == {p: p.read_bytes() for p in parent.path.rglob("*") if p.is_file()}


def test_it_needs_its_parent_no_more(runs):
    parent, _ = find_run("dqn", runs)
    straight = run_hash(fork("dqn:256", root=runs).run)
    child = interrupted_fork(runs, f"{parent.id}:256", at=3)
    shutil.rmtree(parent.path)
    assert run_hash(resume(child.id, root=runs).run) == straight


def interrupted_fork(runs, reference, at):
    known = {run.id for run in list_runs(runs)}
    faults.reset()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setenv("RL_LAB_FAULT", f"hook.after:error@{at}")
        fork(reference, root=runs)
    (child,) = (run for run in list_runs(runs) if run.id not in known)
    return child


def test_a_changed_learning_rate_is_used_from_there_on(runs):
    parent, _ = find_run("ppo", runs)
    child = fork("ppo:256", ["algorithm.learning_rate=1e-3"], root=runs).run
    assert yaml.safe_load(child.config_file.read_text())["algorithm"]["learning_rate"] == 1e-3
    old, new = read_metrics(parent.metrics_file), read_metrics(child.metrics_file)
    same = [row for row in old if row["step"] <= 256]
    assert new[: len(same)] == same
    first = new[len(same)]
    assert first["train/learning_rate"] == 1e-3 != old[len(same)]["train/learning_rate"]
    assert first["collect/return_mean"] == old[len(same)]["collect/return_mean"]  # the old policy
    assert new[len(same) + 1 :] != old[len(same) + 1 :]


def test_an_option_that_the_saved_state_remembers_changes_too(runs):
    """`rollout_steps` becomes an attribute of the workflow, which is saved: the old one is not."""
    child = fork("ppo:256", ["algorithm.rollout_steps=32"], root=runs).run
    steps = [row["step"] for row in rows_after(child, 256)]
    assert steps[:3] == [384, 512, 640]  # 4 environments × 32 steps


def test_a_finished_run_goes_on(runs):
    child = fork("ppo", ["training.total_timesteps=1280"], root=runs).run
    assert child.read_summary()["env_steps"] == 1280
    assert child.read_summary()["parent"]["step"] == 1024
    assert [row["step"] for row in rows_after(child, 1024)] == [1088, 1152, 1216, 1280]


def test_another_seed_is_another_future(runs):
    parent, _ = find_run("ppo", runs)
    words = [[f"experiment.seed={seed}"] for seed in (0, 5, 6)]
    children = [fork(f"{parent.id}:256", word, root=runs).run for word in words]
    after = [rows_after(run, 256) for run in children]
    assert after[0] == rows_after(parent, 256)  # 0 is its own seed
    assert after[0] != after[1] != after[2]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("environment.num_envs=8", "environment.num_envs cannot be changed in a fork"),
        ("network.encoder.hidden_dims=[16]", "network.encoder.hidden_dims cannot be changed"),
        ("training.phases=[{hooks: [collect]}]", "training.phases cannot be changed"),
        ("buffers.replay.capacity=800", "buffers.replay.capacity: a saved buffer does not fit"),
        ("algorithm.dueling=true", "dqn:256 cannot go on with another algorithm.dueling: "),
        ("training.total_timesteps=200", "nothing is left to do there: raise training.total_"),
    ],
)
def test_what_the_state_does_not_fit_is_refused(runs, word, message):
    before = sorted(runs.iterdir())
    with pytest.raises(UserError) as refusal:
        fork("dqn:256", [word], root=runs)
    assert message in str(refusal.value) and "\n" not in str(refusal.value)
    assert sorted(runs.iterdir()) == before


def test_an_edited_parent_is_refused(runs):
    parent, _ = find_run("ppo", runs)
    text = parent.config_file.read_text()
    parent.config_file.write_text(text.replace("gamma: 0.99", "gamma: 0.9"))
    with pytest.raises(UserError, match=r"was changed after the checkpoint at step 256"):
        fork("ppo:256", root=runs)


def test_one_that_never_began_is_not_resumed_from_the_first_step(runs, monkeypatch):
    faults.reset()
    monkeypatch.setenv("RL_LAB_FAULT", "ckpt.before_mkdir:error@1")
    with pytest.raises(RunError, match="first checkpoint could not be written"):
        fork("ppo:256", root=runs)
    monkeypatch.delenv("RL_LAB_FAULT")
    with pytest.raises(UserError, match="stopped before it began: fork it again"):
        resume("@last", root=runs)


def test_a_fork_is_verified_from_its_own_checkpoint_or_from_its_parents(runs):
    parent, _ = find_run("ppo", runs)
    words = ["algorithm.rollout_steps=32", "experiment.seed=4"]
    child = fork("ppo:256", words, root=runs).run
    store = CheckpointStore(child.checkpoints)
    assert 256 not in store.steps()  # retention has let go of it
    verdict = verify(child.id, runs)
    assert verdict.identical and verdict.start == 256 and verdict.checkpoints == store.steps()
    kept = fork(f"{parent.id}:256", ["checkpoint.keep_last=9"], root=runs).run
    shutil.rmtree(parent.path)
    assert verify(kept.id, runs).identical
    with pytest.raises(UserError, match=r"that checkpoint is gone .* --from STEP"):
        verify(child.id, runs)


def test_the_command_line(runs, capsys):
    where, (parent, _) = ["--runs-dir", str(runs)], find_run("@last", runs)
    words = ["train", "--fork", "@last:256", "--seed", "1,2", "--total-timesteps", "320", "--json"]
    assert main([*words, *where]) == 0
    made = json.loads(capsys.readouterr().out)
    assert [each["seed"] for each in made] == [1, 2] and made[0]["env_steps"] == 320
    assert main(["show", made[0]["id"], *where]) == 0
    assert [each["parent"]["id"] for each in made] == [parent.id] * 2  # not the first of them
    assert f"{parent.id} at step 256" in capsys.readouterr().out
    assert main(["train", "--fork", "@last", "--total-timesteps", "384", *where]) == 0
    next_command = capsys.readouterr().out.splitlines()[-1]
    assert f"--fork {made[1]['id']}:320" in next_command  # `@last` is another run by now
    assert main(["train", "CartPole-v1:ppo", "--fork", made[0]["id"], *where]) == 2
    assert "brings its own experiment" in capsys.readouterr().err
    assert main(["train", "--resume", "@last", "--fork", made[0]["id"], *where]) == 2


@pytest.fixture(scope="module")
def annealed(tmp_path_factory):
    """A run of 256 steps whose learning rate comes down from 4e-4 to 0."""
    root = tmp_path_factory.mktemp("annealed")
    words = ("training.total_timesteps=256", "algorithm.learning_rate=lin_4e-4")
    return tiny_run(root, "CartPole-v1:ppo_defaults", *words, "checkpoint.every_steps=128").run.path


def rates(outcome, step):
    return [row["train/learning_rate"] for row in rows_after(outcome.run, step)]


def test_a_longer_fork_says_that_a_finished_schedule_rises_again(annealed):
    outcome = fork(f"{annealed}:256", ["training.total_timesteps=512"], root=annealed.parent)
    assert rates(outcome, 256) == pytest.approx([2e-4, 1.5e-4, 1e-4, 0.5e-4])
    said = outcome.run.log_file.read_text()
    assert "WARNING: algorithm.learning_rate jumps from 0 to 0.0002 at step 256" in said
    assert "--schedules keep" in said


def test_a_longer_fork_can_keep_a_schedule_at_its_end(annealed, capsys):
    words = ["train", "--fork", f"{annealed}:128", "--total-timesteps", "384"]
    assert main([*words, "--schedules", "keep", "--runs-dir", str(annealed.parent)]) == 0
    run = find_run("@last", annealed.parent)[0]
    kept = [row["train/learning_rate"] for row in rows_after(run, 128)]
    assert kept == pytest.approx([2e-4, 1e-4, 0.0, 0.0])
    assert "algorithm.learning_rate goes on as it was" in run.log_file.read_text()
    assert yaml.safe_load(run.config_file.read_text())["algorithm"]["learning_rate"]["to"] == 256
    capsys.readouterr()


def test_schedules_are_kept_in_forks_only(tmp_path, capsys):
    words = ["train", "CartPole-v1:ppo", "--schedules", "keep", "--runs-dir", str(tmp_path)]
    assert main(words) == 2 and "--schedules is for --fork" in capsys.readouterr().err
