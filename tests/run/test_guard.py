"""`compute.on_nonfinite`: raise, skip, rollback; and what a good checkpoint is."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rl_lab.collect.evaluate import Evaluation
from rl_lab.core.errors import NonFiniteError
from rl_lab.core.state import differences, fingerprint
from rl_lab.records import faults
from rl_lab.records.checkpoint import CheckpointStore
from rl_lab.records.metrics import read_metrics
from rl_lab.records.run_directory import list_runs
from rl_lab.run import guard
from rl_lab.run.final_test import final_test
from rl_lab.run.session import resume
from tiny_runs import final_state, run_hash, tiny_run

BAD = "bad_number_envs:test/GoesBad-v0:ppo_defaults"
PPO = "CartPole-v1:ppo_defaults"
SKIP, ROLLBACK = "compute.on_nonfinite=skip", "compute.on_nonfinite=rollback"


def poison(orchestrator, *, updates):
    """NaN rewards in a copy of the batch, at these calls of the update hook (from 0)."""
    update, calls = orchestrator.hooks["update"], iter(range(10**6))

    def poisoned(batch, *, phase):
        if next(calls) in updates:
            batch = {**batch, "reward": torch.full_like(batch["reward"], float("nan"))}
        return update(batch, phase=phase)

    orchestrator.hooks["update"] = poisoned


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run that went back once, and was never interrupted."""
    outcome = tiny_run(tmp_path_factory.mktemp("straight"), BAD, ROLLBACK)
    assert len(outcome.summary["rollbacks"]) == 1
    return outcome


# -- skip -----------------------------------------------------------------------------------------


def test_a_skipped_update_never_was(tiny):
    orchestrator = tiny(PPO, SKIP, "environment.normalize_obs=true")
    orchestrator.execute("collect")
    poison(orchestrator, updates={0})
    before = fingerprint(orchestrator.workflow.get_state())
    streams = orchestrator.streams.state_dict()
    orchestrator.execute("update")
    assert fingerprint(orchestrator.workflow.get_state()) == before
    assert differences(orchestrator.streams.state_dict(), streams) == []
    assert orchestrator.counters.updates == orchestrator.scheduler.updates == 0
    assert orchestrator.guard.skipped == {"update": 1}


def test_skipped_updates_are_counted_and_said(tiny):
    orchestrator = tiny(PPO, SKIP)
    poison(orchestrator, updates={3, 4, 9})
    said = []
    orchestrator.sinks.say = said.append
    assert orchestrator.run()
    assert orchestrator.counters.updates == 16 - 3
    rows = read_metrics(orchestrator.metrics.path)
    assert [row.get("train/skipped_updates") for row in rows[2:6]] == [None, 1, 2, 2]
    assert rows[-1]["train/skipped_updates"] == 3
    assert len([line for line in said if "skipped at step" in line]) == 2  # the 1st and the 2nd
    assert len(list((orchestrator.folder / "crash").iterdir())) == 1  # one example
    assert not any(np.isnan(value) for row in rows for value in row.values())


def test_ten_skips_in_a_row_are_too_many(tiny):
    words = (PPO, SKIP, "training.total_timesteps=2048")
    fine = tiny(*words)
    poison(fine, updates={*range(2, 12), *range(13, 23)})  # ten, one good, ten
    assert fine.run()
    hopeless = tiny(*words)
    poison(hopeless, updates=range(2, 13))
    with pytest.raises(NonFiniteError) as caught:
        hopeless.run()
    assert "10 times in a row" in caught.value.__notes__[-1]
    dumps = sorted((hopeless.folder / "crash").iterdir())  # the first, and the one that ended it
    assert len(dumps) == 2 and str(dumps[-1]) in " ".join(caught.value.__notes__)


def test_a_bad_rollout_is_dropped_and_new_episodes_begin(tmp_path):
    outcome = tiny_run(tmp_path, BAD, SKIP)
    assert outcome.summary["skipped"] == {"collect": 1}
    assert outcome.summary["env_steps"] == 1024  # the dropped steps are not counted
    assert outcome.summary["updates"] == 1024 // 64
    rows = read_metrics(outcome.run.metrics_file)
    assert rows[-1]["collect/skipped_rollouts"] == 1
    assert all(np.isfinite(row.get("collect/return_mean", 0.0)) for row in rows)


def test_what_is_damaged_cannot_be_skipped(tiny):
    orchestrator = tiny(PPO, SKIP)
    orchestrator.execute("collect")
    orchestrator.workflow.learner.state.flat[3] = float("nan")
    with pytest.raises(NonFiniteError) as caught:
        orchestrator.execute("update")
    assert "cannot be skipped: workflow/learner/module" in caught.value.__notes__[-1]


def test_an_algorithm_that_does_not_look_itself_is_looked_at(tiny):
    orchestrator = tiny(PPO, SKIP)
    orchestrator.execute("collect")
    orchestrator.hooks["update"] = lambda batch, *, phase: {"value_loss": torch.tensor(np.inf)}
    with pytest.raises(NonFiniteError, match="train/value_loss = inf") as caught:
        orchestrator.execute("update")
    assert "cannot be skipped: the update" in caught.value.__notes__[-1]


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_a_bad_evaluation_is_never_the_best(tiny, policy):
    orchestrator = tiny(PPO, f"compute.on_nonfinite={policy}")
    real, calls = orchestrator.evaluate, iter(range(99))

    def evaluate(purpose, episodes):
        result = real(purpose, episodes)
        if next(calls) == 0:
            result.returns[0] = float("nan")
        return result

    orchestrator.evaluate = evaluate
    if policy == "raise":
        with pytest.raises(NonFiniteError, match="evaluation"):
            orchestrator.run()
    else:
        assert orchestrator.run()
        assert orchestrator.progress.best_step == 512
        assert read_metrics(orchestrator.metrics.path)[-1]["eval/skipped_evaluations"] == 1


# -- rollback -------------------------------------------------------------------------------------


def test_a_rollback_takes_another_future(straight):
    outcome = straight
    (entry,) = outcome.summary["rollbacks"]
    assert (entry["step"], entry["to"], entry["epoch"]) == (384, 256, 1)
    assert "reward that is not finite" in entry["reason"]
    assert outcome.summary["status"] == "finished"
    assert outcome.summary["env_steps"] == 1024
    rows = read_metrics(outcome.run.metrics_file)
    assert [row["step"] for row in rows] == list(range(64, 1025, 64))
    assert [row.get("train/rollbacks") for row in rows] == [None] * 4 + [1] * 12
    assert final_state(outcome.run)["parts"]["streams"]["epoch"] == 1
    assert "back from step 384 to 256" in outcome.run.log_file.read_text()


def test_the_checkpoint_it_went_back_to_keeps_its_score(tiny):
    orchestrator = tiny(PPO, ROLLBACK, "training.total_timesteps=448")
    poison(orchestrator, updates={5})
    assert orchestrator.run()
    assert orchestrator.guard.rollbacks[0]["to"] == 256
    assert orchestrator.progress.best_step == 256
    assert orchestrator.store.best() == 256
    state = orchestrator.store.load(256)[0]
    assert state["parts"]["streams"]["epoch"] == 1


def test_at_most_three_rollbacks(tmp_path):
    words = [BAD, ROLLBACK, "environment.kwargs={times: 9}", "training.total_timesteps=2048"]
    with pytest.raises(NonFiniteError) as caught:
        tiny_run(tmp_path, *words)
    assert "went back 3 times already" in caught.value.__notes__[-2]  # the last says how to go on
    (run,) = list_runs(tmp_path)
    assert len(run.read_summary()["rollbacks"]) == 3
    with pytest.raises(NonFiniteError):  # and a resume does not begin to count again
        resume("@last", root=tmp_path)
    assert len(run.read_summary()["rollbacks"]) == 3


def test_without_a_checkpoint_there_is_nowhere_to_go_back_to(tmp_path):
    words = [BAD, ROLLBACK, "environment.kwargs={at: 1}"]
    with pytest.raises(NonFiniteError) as caught:
        tiny_run(tmp_path, *words)
    assert "no checkpoint yet" in caught.value.__notes__[-2]  # the last says how to go on


def test_three_rollbacks_are_three_futures(tiny):
    orchestrator = tiny(PPO, ROLLBACK)
    poison(orchestrator, updates={5, 7, 9})
    futures = []
    real = orchestrator.save

    def save(score=None):
        futures.append((orchestrator.streams.epoch, orchestrator.collector.obs.tobytes()))
        return real(score)

    orchestrator.save = save
    assert orchestrator.run()
    assert [epoch for epoch, _ in futures[1:4]] == [1, 2, 3]
    assert len({frames for _, frames in futures[:4]}) == 4


# The tenth comes after the checkpoint at 256 and before the failure at 384; the others come soon
# after the rollback, and after the next checkpoint.
@pytest.mark.parametrize("hook", [10, 14, 16, 19, 25])
def test_a_killed_run_with_a_rollback_is_the_same_run(tmp_path, monkeypatch, straight, hook):
    faults.reset()
    monkeypatch.setenv("RL_LAB_FAULT", f"hook.after:error@{hook}")
    with pytest.raises(OSError, match="No space"):
        tiny_run(tmp_path, BAD, ROLLBACK)
    monkeypatch.delenv("RL_LAB_FAULT")
    resumed = resume("@last", root=tmp_path)
    assert run_hash(resumed.run) == run_hash(straight.run)
    assert resumed.summary["rollbacks"] == straight.summary["rollbacks"]


def test_a_rollback_survives_a_sigkill(tmp_path, straight):
    child = Path(__file__).parents[1] / "resume" / "run_child.py"
    environment = {**os.environ, "PYTHONPATH": str(child.parents[1] / "support")}
    environment |= {"RL_LAB_FAULT": "hook.after:kill@15", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(child), str(tmp_path), "train", BAD, ROLLBACK]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == -9, done.stderr
    (killed,) = list_runs(tmp_path)
    state = CheckpointStore(killed.checkpoints).load()[0]
    assert state["parts"]["streams"]["epoch"] == 1  # saved as soon as it was back
    assert run_hash(resume("@last", root=tmp_path).run) == run_hash(straight.run)


def test_tensorboard_forgets_the_lost_future(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tiny_run(tmp_path, BAD, ROLLBACK, "logging.tensorboard=true").run
    events = EventAccumulator(str(run.path / "tensorboard" / "seed_0"))
    events.Reload()
    steps = [event.step for event in events.Scalars("train/loss")]
    assert steps == list(range(64, 1025, 64))


# -- good checkpoints -----------------------------------------------------------------------------


def inside(orchestrator):
    """Places that a checkpoint must not carry a bad number in."""
    workflow = orchestrator.workflow
    return {
        "weight": workflow.learner.state.flat,
        "moment": workflow.learner.state.second,
        "statistic": torch.from_numpy(workflow.model.normalizer.moments.mean),
        "open return": torch.from_numpy(orchestrator.collector.episodes.open_returns),
    }


@pytest.mark.parametrize("place", ["weight", "moment", "statistic", "open return"])
def test_a_checkpoint_that_is_not_finite_is_never_good(tiny, place):
    orchestrator = tiny("Pendulum-v1:ppo_defaults", "environment.normalize_obs=true")
    for action in ("collect", "update"):
        orchestrator.execute(action)
    assert orchestrator.save()
    orchestrator.execute("collect")
    inside(orchestrator)[place].reshape(-1)[0] = float("inf")
    with pytest.raises(NonFiniteError, match="no checkpoint was written"):
        orchestrator.save()
    assert orchestrator.store.steps() == [64]
    assert guard.nonfinite_paths(orchestrator.store.load()[0]["workflow"]) == set()
    assert [each.name for each in (orchestrator.folder / "crash").iterdir()] == [f"step_{128:012d}"]


def test_a_damaged_moment_is_found_by_the_update(tiny):
    orchestrator = tiny(PPO, "algorithm.epochs=1", "algorithm.minibatches=1")
    orchestrator.execute("collect")
    orchestrator.workflow.learner.state.first[0] = float("nan")
    with pytest.raises(NonFiniteError, match="a weight is not finite"):
        orchestrator.execute("update")
    assert torch.isfinite(orchestrator.workflow.learner.state.flat).all()


def test_what_was_infinite_from_the_start_is_meant_to_be(tiny):
    orchestrator = tiny()
    orchestrator.workflow.mask = torch.tensor([0.0, float("-inf")])
    with pytest.raises(NonFiniteError, match="workflow/values/mask"):
        orchestrator.save()
    orchestrator.__post_init__()
    assert orchestrator.save()


def test_a_last_checkpoint_that_fails_is_a_failed_run(tmp_path, monkeypatch, capsys):
    from rl_lab.cli.main import main
    from tiny_runs import SMALL, SMALL_PPO

    faults.reset()
    monkeypatch.setenv("RL_LAB_FAULT", "ckpt.after_mkdir:error@2")
    words = [PPO, *SMALL, *SMALL_PPO, "training.total_timesteps=512", "evaluation.every_steps=0"]
    words += ["checkpoint.every_steps=400"]  # one at 448, and the last
    assert main(["train", *words, "-q", "--runs-dir", str(tmp_path)]) == 1
    assert "the last checkpoint could not be written" in capsys.readouterr().err
    (run,) = list_runs(tmp_path)
    assert run.read_summary()["status"] == "failed"
    monkeypatch.delenv("RL_LAB_FAULT")
    assert resume("@last", root=tmp_path).summary["status"] == "finished"


def test_a_sink_that_draws_random_numbers_changes_nothing(tiny):
    from rl_lab.display.sinks import Sink

    class Gambler(Sink):
        def write(self, step, row):
            np.random.random(), torch.rand(3)

    states = []
    for sinks in ([], [Gambler()]):  # one after the other: the global generators are shared
        orchestrator = tiny(PPO, "training.total_timesteps=128")
        orchestrator.sinks.attach(None, sinks)
        assert orchestrator.run()
        states.append(orchestrator.state())
    assert differences(*states) == []


def test_a_bad_final_test_does_not_undo_a_finished_run(tiny, monkeypatch):
    run = tiny(PPO)
    assert run.run()
    bad = Evaluation([float("nan")], [1])
    monkeypatch.setattr(run, "evaluate", lambda purpose, episodes: bad)
    said = []
    monkeypatch.setattr(run.sinks, "say", said.append)
    assert final_test(run) == {}
    assert said == ["WARNING: no test result: an evaluation returned nan; it was not used"]
