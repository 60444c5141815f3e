import json
import logging
import shutil

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_lab.core.errors import ConfigError, NonFiniteError, UserError
from rl_lab.core.state import differences, fingerprint
from rl_lab.envs.counter import CounterEnv
from rl_lab.records import faults
from rl_lab.records.checkpoint import CheckpointStore
from rl_lab.records.commit import read_tree
from rl_lab.records.metrics import read_metrics
from rl_lab.records.run_directory import list_runs
from rl_lab.run import build, session
from rl_lab.run.build import seeds
from rl_lab.run.session import resume
from rl_lab.run.session_callbacks import RecordSummary
from tiny_runs import final_state, run_hash, tiny_run


def evaluations(run):
    return [row for row in read_metrics(run.metrics_file) if "eval/return_mean" in row]


def test_a_run_leaves_what_design_promises(tmp_path):
    outcome = tiny_run(tmp_path)
    run = outcome.run
    for file in (run.config_file, run.provenance_file, run.metrics_file, run.timing_file):
        assert file.stat().st_size > 0, file
    summary = json.loads(run.summary_file.read_text())
    assert summary["status"] == "finished"
    assert summary["env_steps"] == 1024
    assert summary["snapshot_level"] == "E0"
    assert set(summary["test"]) == {"last", "best"}
    rows = read_metrics(run.metrics_file)
    assert [row["step"] for row in rows] == list(range(64, 1025, 64))
    assert not any(name.startswith(("time/", "sys/")) for row in rows for name in row)
    assert any(name.startswith("time/") for name in read_metrics(run.timing_file)[0])


def test_the_same_seed_is_the_same_run_and_another_seed_is_not(tmp_path):
    first, second = tiny_run(tmp_path / "a"), tiny_run(tmp_path / "b")
    assert run_hash(first.run) == run_hash(second.run)
    other = tiny_run(tmp_path / "c", "CartPole-v1:ppo_defaults", "experiment.seed=1")
    assert run_hash(other.run) != run_hash(first.run)


@pytest.mark.parametrize("deterministic", ["true", "false"])
def test_evaluation_leaves_training_bit_for_bit(tmp_path, deterministic):
    words = [
        "CartPole-v1:ppo_gru_defaults",
        "environment.normalize_obs=true",
        "algorithm.minibatches=2",
    ]
    often = tiny_run(
        tmp_path / "a",
        *words,
        "evaluation.every_steps=64",
        f"evaluation.deterministic={deterministic}",
    )
    never = tiny_run(tmp_path / "b", *words, "evaluation.every_steps=0")
    with_eval, without = final_state(often.run), final_state(never.run)
    for part in ("progress", "clock.evaluate", "clock.log"):
        with_eval["parts"].pop(part), without["parts"].pop(part)
    with_eval.pop("metrics_offset"), without.pop("metrics_offset")
    assert differences(with_eval, without) == []
    train_rows = [
        [
            {name: value for name, value in row.items() if not name.startswith("eval/")}
            for row in read_metrics(run.metrics_file)
        ]
        for run in (often.run, never.run)
    ]
    assert train_rows[0] == train_rows[1]


def test_evaluations_repeat_exactly_and_use_other_seeds_than_the_test(tiny):
    orchestrator = tiny("CartPole-v1:ppo_defaults", "evaluation.deterministic=false")
    first = orchestrator.evaluate("eval", 4)
    assert orchestrator.evaluate("eval", 4) == first
    assert orchestrator.evaluate("test", 4) != first


def test_no_two_environments_share_a_seed(tiny):
    purposes = ("train", "eval", "test")
    found = [each for purpose in purposes for each in seeds(0, purpose, 8)]
    assert len(set(found)) == 24
    assert found == [each for purpose in purposes for each in seeds(0, purpose, 8)]
    assert not set(found) & {each for purpose in purposes for each in seeds(1, purpose, 8)}
    first = tiny("Pendulum-v1:ppo_defaults", "environment.num_envs=8").collector.obs
    assert len(np.unique(first, axis=0)) == 8


def test_an_update_without_data_counts_nothing(tiny):
    phases = "training.phases=[{name: a, hooks: [update, collect]}]"
    orchestrator = tiny("CartPole-v1:ppo_defaults", phases)
    before = fingerprint(orchestrator.workflow.get_state())
    orchestrator.execute("update")
    assert orchestrator.counters.updates == orchestrator.scheduler.updates == 0
    assert fingerprint(orchestrator.workflow.get_state()) == before


def test_evaluation_cadence_and_warm_up(tmp_path):
    run = tiny_run(
        tmp_path,
        "CartPole-v1:ppo_defaults",
        "evaluation.every_steps=150",
        "evaluation.warmup_steps=500",
    ).run
    # crossings of 150, 300, 450 fall into the warm-up; then 600, 750, 900 at multiples of 64, and
    # the end
    assert [row["step"] for row in evaluations(run)] == [640, 768, 960, 1024]


def test_early_stop_waits_for_patience(tmp_path):
    words = ["CartPole-v1:ppo_defaults", "evaluation.stop_at=1", "evaluation.patience=2"]
    outcome = tiny_run(tmp_path, *words)
    assert [row["step"] for row in evaluations(outcome.run)] == [256, 512]
    assert outcome.summary["env_steps"] == 512
    assert outcome.summary["status"] == "finished"


def test_resuming_a_run_that_stopped_early_trains_no_further(tmp_path):
    outcome = tiny_run(tmp_path, "CartPole-v1:ppo_defaults", "evaluation.stop_at=1")
    before = run_hash(outcome.run)
    assert resume("@last", root=tmp_path).summary["env_steps"] == 256
    assert run_hash(outcome.run) == before


def test_the_best_of_an_evaluate_hook_is_saved_there(tmp_path):
    phases = "training.phases=[{name: a, hooks: [collect, evaluate, update]}]"
    run = tiny_run(tmp_path, "CartPole-v1:ppo_defaults", phases, "evaluation.every_steps=0").run
    best = CheckpointStore(run.checkpoints).load("best")
    assert best[0]["parts"]["scheduler"]["hook"] == 2  # between evaluate and update
    assert best[1]["score"] == run.read_summary()["best"]


class Unsaveable(CounterEnv):
    """An environment with something inside that no snapshot can hold."""

    def __init__(self, **options):
        super().__init__(**options)
        self.secret = iter([1, 2, 3])


def test_an_environment_that_cannot_be_saved_makes_resume_inexact_and_says_so(tmp_path):
    gym.register("test/Unsaveable-v0", entry_point=Unsaveable)
    words = ["test/Unsaveable-v0:ppo_defaults", "checkpoint.keep_last=9"]
    outcome = tiny_run(tmp_path, *words)
    assert outcome.summary["snapshot_level"] == "E3"
    assert outcome.summary["resume_exact"]
    again = resume("@last:512", root=tmp_path)
    assert not again.summary["resume_exact"]
    assert again.summary["status"] == "finished"
    assert "episodes start again" in again.run.log_file.read_text()


def test_checkpoints_kept_are_the_last_and_the_best(tmp_path):
    run = tiny_run(tmp_path, "CartPole-v1:ppo_defaults", "evaluation.every_steps=64").run
    store = CheckpointStore(run.checkpoints)
    scores = {row["step"]: row["eval/return_mean"] for row in evaluations(run)}
    best = max(scores, key=lambda step: (scores[step], -step))
    assert store.best() == best
    assert len(store.steps()) <= 3
    assert store.steps()[-1] == 1024


def test_resume_of_a_finished_run_changes_nothing(tmp_path):
    run = tiny_run(tmp_path).run
    before = run_hash(run)
    assert resume("@last", root=tmp_path).summary["status"] == "finished"
    assert run_hash(run) == before


def test_resume_from_a_chosen_step(tmp_path):
    words = ["CartPole-v1:ppo_defaults", "checkpoint.keep_last=9"]
    run = tiny_run(tmp_path, *words).run
    before = run_hash(run)
    resume("@last:512", root=tmp_path)
    assert run_hash(run) == before


def test_a_corrupt_newest_checkpoint_is_skipped_loudly(tmp_path):
    run = tiny_run(tmp_path).run
    expected = run_hash(run)
    newest = run.checkpoints / f"step_{1024:012d}" / "state.safetensors"
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(bytes(data))
    resume("@last", root=tmp_path)
    assert run_hash(run) == expected
    assert "1024" in run.log_file.read_text()


def test_a_run_without_a_checkpoint_starts_again(tmp_path):
    run = tiny_run(tmp_path).run
    expected = run_hash(run)
    shutil.rmtree(run.checkpoints)
    run.write_summary({"status": "running", "env_steps": 0, "saved_step": None})
    resume("@last", root=tmp_path)
    assert run_hash(run) == expected


def test_a_changed_config_is_not_resumed(tmp_path):
    run = tiny_run(tmp_path).run
    text = run.config_file.read_text()
    run.config_file.write_text(text.replace("gamma: 0.99", "gamma: 0.5"))
    with pytest.raises(UserError, match=r"config.yaml was changed after .* step 1024"):
        resume("@last", root=tmp_path)
    run.config_file.write_text(text.replace("terminal: true", "terminal: false"))  # only a display
    assert resume("@last", root=tmp_path).exit_code == 0


def test_other_numerics_end_the_promise_loudly(tmp_path, monkeypatch):
    run = tiny_run(tmp_path).run
    real = build.numerics_fingerprint
    monkeypatch.setattr(
        build, "numerics_fingerprint", lambda **given: {**real(**given), "torch": "9.9"}
    )
    resume("@last", root=tmp_path)
    assert "not bit for bit from here: torch changed" in run.log_file.read_text()


def test_a_second_process_is_refused(tmp_path):
    run = tiny_run(tmp_path).run
    with run.lock(), pytest.raises(UserError, match="in use by process"):
        resume("@last", root=tmp_path)


def test_warm_start_takes_weights_only(tmp_path):
    first = tiny_run(tmp_path)
    config_words = ["CartPole-v1:ppo_defaults", "training.warm_start=@last:last"]
    # a rate of almost nothing: after one rollout the weights must still be the old ones
    config_words += ["algorithm.learning_rate=1e-12", "training.total_timesteps=64"]
    second = tiny_run(tmp_path, *config_words)
    old, new = (final_state(each.run)["workflow"]["learner"] for each in (first, second))
    for name, weight in old["module"].items():
        if isinstance(weight, torch.Tensor):
            torch.testing.assert_close(new["module"][name], weight, atol=1e-6, rtol=0)
    assert second.summary["env_steps"] == 64
    assert new["optimizer"]["updates"] < old["optimizer"]["updates"]


@pytest.mark.parametrize(
    "change", ["network.encoder.hidden_dims=[9]", "environment.normalize_obs=true"]
)
def test_warm_start_from_another_network_is_refused(tmp_path, change):
    tiny_run(tmp_path)
    with pytest.raises(UserError, match="does not fit"):
        tiny_run(tmp_path, "CartPole-v1:ppo_defaults", "training.warm_start=@last", change)
    assert len(list_runs(tmp_path)) == 1  # nothing left behind


def test_a_bad_number_stops_the_run_with_a_dump(tmp_path, tiny, monkeypatch):
    orchestrator = tiny()
    update = orchestrator.hooks["update"]

    def poisoned(batch, *, phase):
        if orchestrator.counters.updates == 3:
            batch["reward"][0, 0] = float("nan")
        return update(batch, phase=phase)

    orchestrator.hooks["update"] = poisoned
    with pytest.raises(NonFiniteError, match="no weight changed") as caught:
        orchestrator.run()
    (dump,) = (orchestrator.folder / "crash").iterdir()
    tree, manifest = read_tree(dump)
    assert manifest["hook"] == "update"
    assert str(dump) in caught.value.__notes__[0]
    assert torch.isnan(tree["batch"]["reward"]).sum() == 1
    # the state in the dump is from before the update: the same hook fails again from it
    assert fingerprint(tree["state"]["workflow"]) == fingerprint(orchestrator.workflow.get_state())


def test_failed_runs_say_so(tmp_path, monkeypatch):
    monkeypatch.setenv("RL_LAB_FAULT", "hook.before:error@3")
    faults.reset()
    with pytest.raises(OSError, match="No space"):
        tiny_run(tmp_path)
    (run,) = list_runs(tmp_path)
    assert run.read_summary()["status"] == "failed"
    assert "No space" in run.read_summary()["error"]


def test_a_full_disk_while_saving_is_an_alarm_not_the_end(tmp_path, monkeypatch):
    expected = run_hash(tiny_run(tmp_path / "a").run)
    faults.reset()
    monkeypatch.setenv("RL_LAB_FAULT", "ckpt.after_mkdir:error@1")
    outcome = tiny_run(tmp_path / "b")
    assert run_hash(outcome.run) == expected
    assert "checkpoint at" in outcome.run.log_file.read_text()


@pytest.mark.parametrize(
    ("phases", "problem"),
    [
        ("[{name: a, hooks: [colect]}]", "hook 'colect' .did you mean 'collect'"),
        ("[{name: a, hooks: [collect], buffer: replay}]", "buffer 'replay'"),
        ("[{name: a, hooks: [collect], policy: rando}]", "policy 'rando' .did you mean 'random'"),
        ("[{name: a, hooks: [collect, update_world_model]}]", "update_world_model"),
    ],
)
def test_phases_that_ask_for_what_is_not_there(tmp_path, phases, problem):
    with pytest.raises(ConfigError, match=problem):
        tiny_run(tmp_path, "CartPole-v1:ppo_defaults", f"training.phases={phases}")
    assert list_runs(tmp_path) == []


def test_random_workflow_runs_everywhere(tmp_path):
    for env in ("CartPole-v1", "Pendulum-v1", "FrozenLake-v1"):
        outcome = tiny_run(tmp_path, f"{env}:random", "algorithm.collect_steps=16")
        assert outcome.summary["updates"] == 0
        assert outcome.summary["episodes"] > 0


def test_a_warm_started_run_begins_again_from_the_same_weights(tmp_path, monkeypatch):
    tiny_run(tmp_path / "old")
    (old,) = list_runs(tmp_path / "old")
    words = ["CartPole-v1:ppo_defaults", f"training.warm_start={old.path}"]
    straight = tiny_run(tmp_path / "a", *words)
    faults.reset()
    monkeypatch.setenv("RL_LAB_FAULT", "hook.after:error@3")  # before the first checkpoint
    with pytest.raises(OSError, match="No space"):
        tiny_run(tmp_path / "b", *words)
    monkeypatch.delenv("RL_LAB_FAULT")
    resumed = resume("@last", root=tmp_path / "b")
    assert run_hash(resumed.run) == run_hash(straight.run)


def test_a_best_saved_by_a_hook_survives_the_checkpoint_of_the_same_step(tmp_path):
    phases = "training.phases=[{name: a, hooks: [collect, evaluate, update]}]"
    words = ["CartPole-v1:ppo_defaults", phases, "evaluation.every_steps=0"]
    run = tiny_run(tmp_path, *words, "checkpoint.every_steps=64").run
    assert CheckpointStore(run.checkpoints).best() == run.read_summary()["best_step"]


class Counting(CounterEnv):
    """Keeps something over resets, as a curriculum does: each episode pays more."""

    def reset(self, **options):
        self.episodes = vars(self).get("episodes", 0) + 1
        return super().reset(**options)

    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, reward * self.episodes, *rest


def test_an_evaluation_does_not_depend_on_earlier_ones(tmp_path, monkeypatch):
    gym.register("test/Counting-v0", entry_point=Counting)
    straight = tiny_run(tmp_path / "a", "test/Counting-v0:ppo_defaults")
    faults.reset()
    monkeypatch.setenv("RL_LAB_FAULT", "hook.after:error@20")
    with pytest.raises(OSError, match="No space"):
        tiny_run(tmp_path / "b", "test/Counting-v0:ppo_defaults")
    monkeypatch.delenv("RL_LAB_FAULT")
    resumed = resume("@last", root=tmp_path / "b")
    assert run_hash(resumed.run) == run_hash(straight.run)


def test_step_zero_is_a_step_and_not_the_last(tmp_path):
    tiny_run(tmp_path)
    with pytest.raises(UserError, match="0"):
        resume("@last:0", root=tmp_path)


def test_a_summary_that_cannot_be_written_does_not_end_the_run(tmp_path, monkeypatch):
    faults.reset()
    monkeypatch.setenv("RL_LAB_FAULT", "file.after_write:error@5")
    outcome = tiny_run(tmp_path)
    assert outcome.summary["status"] == "finished"
    assert "failed" in outcome.run.log_file.read_text()


def test_what_deeper_layers_log_reaches_the_run(tiny, tmp_path, monkeypatch):
    original = session.describe

    def noisy(*arguments):
        logging.getLogger("rl_lab.envs.process").warning("a worker was lost")
        return original(*arguments)

    monkeypatch.setattr(session, "describe", noisy)
    run = tiny_run(tmp_path).run
    assert "a worker was lost" in run.log_file.read_text()


def test_offline_phases_are_logged_and_saved_by_their_updates(tiny):
    phases = (
        "[{name: fill, duration_steps: 64, hooks: [collect]},"
        "{name: study, type: offline, duration_updates: 25, hooks: [update]},"
        "{hooks: [collect]}]"
    )
    run = tiny(
        "CartPole-v1:dqn",
        f"training.phases={phases}",
        "training.total_timesteps=128",
        "algorithm.learning_starts=8",
        "logging.every_updates=10",
        "checkpoint.every_updates=10",
        "checkpoint.every_steps=0",
        "evaluation.every_steps=0",
    )
    saved = []
    run.add_callback("saved", RecordSummary(lambda: saved.append(run.counters.updates)))
    run.loop()
    written = read_metrics(run.folder / "metrics.jsonl")
    rows = [row["updates"] for row in written if "train/loss" in row]
    assert [each for each in rows if each < 25] == [10, 20]
    assert saved == [10, 20, 25]  # and the last one, at the end of the run


def test_minutes_save_too_and_change_nothing(tmp_path, monkeypatch):
    words = (
        "CartPole-v1:ppo_defaults",
        "training.total_timesteps=1024",
        "evaluation.every_steps=0",
    )
    words += ("checkpoint.every_steps=0", "checkpoint.keep_last=9", "algorithm.rollout_steps=64")
    straight = tiny_run(tmp_path / "straight", *words).run
    now = iter(range(10**6))
    monkeypatch.setattr("rl_lab.run.orchestrator.time.monotonic", lambda: 60.0 * next(now))
    often = tiny_run(tmp_path / "often", *words, "checkpoint.every_minutes=1").run
    never = tiny_run(tmp_path / "never", *words, "checkpoint.every_minutes=0").run
    steps = [CheckpointStore(each.checkpoints).steps() for each in (straight, never, often)]
    assert steps[0] == steps[1] == [1024] and len(steps[2]) > 1
    assert run_hash(straight) == run_hash(often) == run_hash(never)


def test_a_condition_that_nothing_measures_is_told(tmp_path):
    phases = (
        "training.phases=[{name: first, until: 'eval/return_mean >= 1e9', max_steps: 64,"
        " hooks: [collect, update, evaluate]},"
        " {name: second, until: 'eval/retrun >= 5', max_steps: 64, hooks: [collect, update]}]"
    )
    said = tiny_run(tmp_path, "CartPole-v1:ppo_defaults", phases).run.log_file.read_text()
    assert "WARNING: phase 'second' waited for 'eval/retrun': never measured" in said
    assert "phase 'first'" not in said


def test_episodes_without_a_limit_get_one_in_evaluations(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "MOST_EVALUATED", 7)
    endless = ("environment.max_episode_steps=null", "evaluation.every_steps=512")
    outcome = tiny_run(tmp_path, "CliffWalking-v1:random", *endless)
    assert {row["eval/length_mean"] for row in evaluations(outcome.run)} == {7.0}
    said = outcome.run.log_file.read_text()
    told = (
        "WARNING: an evaluated episode of CliffWalking-v1 did not end and was stopped after 7 steps"
    )
    assert said.count(told) == 1
    limited = tiny_run(tmp_path, "CliffWalking-v1:random", "environment.max_episode_steps=9")
    assert "did not end" not in limited.run.log_file.read_text()
    assert evaluations(limited.run)[-1]["eval/length_mean"] == 9.0


def test_a_normaliser_that_can_do_nothing_is_reported(tmp_path):
    words = ["environment.normalize_obs=true", "training.total_timesteps=64"]
    said = tiny_run(tmp_path / "a", "FrozenLake-v1:ppo_defaults", *words).run.log_file.read_text()
    assert "WARNING: environment.normalize_obs changes nothing" in said
    run = tiny_run(tmp_path / "b", "CartPole-v1:ppo_defaults", *words).run
    assert "changes nothing" not in run.log_file.read_text()


def test_a_run_says_that_auto_reads_integers_as_codes(tmp_path):
    def said(name, *words):
        words = ("environment.vectorization=sync", "training.total_timesteps=64", *words)
        return tiny_run(
            tmp_path / name, "picture_env:Picture-v0:ppo_defaults", *words
        ).run.log_file.read_text()

    chosen = "auto: network.encoder.type=grid, because these integers look like codes"
    codes = said("codes", "environment.kwargs.shape=[7,7,3]")
    assert codes.count(chosen) == 1 and codes.count("WARNING: the observation has the code") == 1
    assert chosen not in said("picture", "environment.kwargs.shape=[40,40,3]")
    asked = ("environment.kwargs.shape=[7,7,3]", "network.encoder.type=mlp")
    assert chosen not in said("asked", *asked)


def test_a_phase_that_never_began_waited_for_nothing(tmp_path):
    phases = (
        "training.phases=[{name: first, max_steps: 5_000, hooks: [collect, update]},"
        " {name: second, until: 'eval/never >= 5', hooks: [collect, update]}]"
    )
    said = tiny_run(tmp_path, "CartPole-v1:ppo_defaults", phases).run.log_file.read_text()
    assert "waited" not in said


def test_a_run_that_learned_nothing_is_told(tmp_path):
    """Windows lie within episodes here, and no episode is as long as one window."""
    options = ("buffers.replay={type: episodes, capacity: 1000}", "algorithm.batch_length=100")
    short = ("environment.max_episode_steps=10", "algorithm.learning_starts=8")
    said = tiny_run(tmp_path, "CartPole-v1:dreamer_v3", *options, *short)
    assert "WARNING: nothing was learned" in said.run.log_file.read_text()
