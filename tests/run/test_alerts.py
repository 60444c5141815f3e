"""Monitors in real runs: planted faults, exactness, resume, stopping, and who hears of it."""

import json
import time
from types import SimpleNamespace

import pytest

from rl_lab.cli.main import main
from rl_lab.core.errors import RunError
from rl_lab.core.state import fingerprint
from rl_lab.display.sinks import Sink
from rl_lab.monitoring.catalog import built_in
from rl_lab.records import faults
from rl_lab.records.alerts import Alert, read_alerts, write_alerts
from rl_lab.records.columns import read_columns
from rl_lab.run import efficiency
from rl_lab.run.session import resume, train
from tiny_dreamers import SIZES
from tiny_runs import final_state, tiny_config, tiny_run

PPO, DQN, SAC = "CartPole-v1:ppo_defaults", "CartPole-v1:dqn", "Pendulum-v1:sac"
BROKEN = (PPO, "algorithm.learning_rate=10")


def fired(run):
    return {each.monitor for each in read_alerts(run.alerts_file)}


class Heard(Sink):
    def __init__(self):
        self.said, self.alerts = [], []

    def say(self, message):
        self.said.append(message)

    def alert(self, alert):
        self.alerts.append(alert)


# -- planted faults -------------------------------------------------------------------------------

LEARNING = ("algorithm.learning_starts=64", "algorithm.batch_size=16")
STILL = ("MountainCar-v0:ppo_defaults", "algorithm.learning_rate=1e-12")
SPOILT_MODEL = "training.callbacks={x: {type: spoil, factor: 20}}"
SPOILT = "training.callbacks={x: {type: spoil}}"
DREAMER = (
    "CartPole-v1:dreamer_v3",
    *(f"algorithm.{key}={value}" for key, value in SIZES.items()),
)
FAULTS = {
    "kl_high": BROKEN,
    "clip_high": (PPO, "algorithm.learning_rate=0.01", "algorithm.clip_range=1e-4"),
    "entropy_collapse": BROKEN,
    "critic_useless": (PPO, SPOILT, "training.total_timesteps=4096"),
    "gradient_jump": (PPO, SPOILT),
    "loss_jump": (PPO, SPOILT),
    "return_collapse": (
        PPO, "algorithm.learning_rate=0.01", "training.total_timesteps=7168",
        "training.callbacks={x: {type: spoil, update: 60, factor: 0, always: true}}",
    ),
    "kl_low": STILL,
    "no_progress": (*STILL, "training.total_timesteps=4096"),
    "value_explosion": (DQN, *LEARNING, SPOILT),
    "td_error_jump": (DQN, *LEARNING, SPOILT),
    "temperature_high": (SAC, *LEARNING, "algorithm.initial_temperature=50"),
    "temperature_low": (SAC, *LEARNING, "algorithm.temperature=1e-7"),
    "model_kl_high": (*DREAMER, SPOILT_MODEL),
    "model_kl_vanished": (
        *DREAMER, "algorithm.free_nats=0", "algorithm.dynamics_scale=1e5",
        "algorithm.posterior_scale=1e5", "algorithm.replay_ratio=0.5",
        "training.total_timesteps=512",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def spoiling(names_restored):
    from rl_lab import Callback, register

    @register("callback", "spoil")
    class Spoil(Callback):
        """Late in the run, every weight is made 300 times as large, or whatever is asked for."""

        def __init__(self, config):
            self.updates, self.when = 0, config.get("update", 13)
            self.factor, self.always = config.get("factor", 300), config.get("always", False)

        def after_update(self, run, hook):
            self.updates += 1
            algorithm = run.algorithm
            learner = getattr(algorithm, "world_learner", None) or algorithm.learner
            if self.updates == self.when or (self.always and self.updates > self.when):
                for weight in learner.module.parameters():
                    weight.data.mul_(self.factor)

    @register("callback", "brake")
    class Brake(Callback):
        """Late in the run, every collect takes a while longer."""

        def __init__(self, config):
            self.updates = 0

        def after_update(self, run, hook):
            self.updates += 1
            if self.updates == 24:
                collect = run.algorithm.collect_step

                def slow(*args, **kwargs):
                    time.sleep(0.4)
                    return collect(*args, **kwargs)

                run.algorithm.collect_step = slow


@pytest.mark.parametrize("monitor", FAULTS)
def test_each_fires_on_a_planted_fault(monitor, tmp_path):
    assert monitor in fired(tiny_run(tmp_path, *FAULTS[monitor]).run)


def test_no_monitor_is_without_a_planted_fault():
    elsewhere = {
        *("memory_high", "disk_low", "late", "slower", "open_loop_error"),  # below
        "dead_units",  # test_debug.py
    }
    assert set(built_in()) == {*FAULTS, *elsewhere}


def machine(run):
    return {each.monitor for each in read_alerts(run.timing_alerts_file)}


def test_a_run_that_becomes_slow_is_noticed(tmp_path):
    words = ("training.total_timesteps=2560", "compute.compile=off", "evaluation.every_steps=0")
    run = tiny_run(tmp_path, PPO, *words, "training.callbacks={x: {type: brake}}").run
    assert "slower" in machine(run)


def test_a_warm_up_without_updates_is_no_fast_run(tmp_path):
    """Half of it plays at random, some hundred times as fast as what follows."""
    words = ("algorithm.learning_starts=512", "algorithm.batch_size=64", "compute.compile=off")
    run = tiny_run(tmp_path, DQN, *words, "algorithm.train_every=4").run
    assert "slower" not in machine(run)
    _, speeds = read_columns(run.timing_file).of("time/sps")
    assert max(speeds[:10]) > 4 * max(speeds[-10:])  # what it would have been said about


def test_a_model_that_predicts_badly_is_noticed(tmp_path):
    words = (*DREAMER, "evaluation.every_steps=48", "training.total_timesteps=512")
    assert "open_loop_error" not in machine(tiny_run(tmp_path / "well", *words).run)
    run = tiny_run(tmp_path / "ill", *words, SPOILT_MODEL).run
    assert "open_loop_error" in machine(run)
    _, errors = read_columns(run.timing_file).of("open_loop/obs_error")
    assert max(errors) > 10


@pytest.mark.parametrize("spec", [PPO, DQN, SAC])
def test_none_fires_in_a_run_that_is_well(spec, tmp_path):
    words = ("algorithm.learning_rate=0.01",) if spec == PPO else LEARNING
    # A thousand steps are too few to gain anything; that this is said is right.
    assert fired(tiny_run(tmp_path, spec, *words).run) <= {"no_progress"}


def test_memory_disk_and_time_have_a_file_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(efficiency, "memory_bytes", lambda: efficiency.resident_bytes())
    monkeypatch.setattr(efficiency.shutil, "disk_usage", lambda _: SimpleNamespace(free=0.5e9))
    words = ("algorithm.learning_rate=0.01", "logging.alerts.max_hours=1e-9")
    run = tiny_run(tmp_path, PPO, *words).run
    assert not run.alerts_file.exists()
    found = {each.monitor: each for each in read_alerts(run.timing_alerts_file)}
    assert set(found) == {"memory_high", "disk_low", "late"}
    assert found["disk_low"].value == 0.5
    assert run.read_summary()["alerts"] == list(found)


# -- exactness ------------------------------------------------------------------------------------


def learned(run):
    state = final_state(run)
    state["parts"].pop("alerts")
    return fingerprint(state), run.metrics_file.read_bytes()


@pytest.mark.parametrize("words", [BROKEN, (DQN, *LEARNING)])
def test_training_with_and_without_monitors_is_the_same(words, tmp_path):
    on = tiny_run(tmp_path / "on", *words).run
    off = tiny_run(tmp_path / "off", *words, "logging.alerts.policy=ignore").run
    assert learned(on) == learned(off)
    assert not off.alerts_file.exists()


def test_a_killed_run_has_the_same_alerts(tmp_path, monkeypatch):
    straight = tiny_run(tmp_path / "a", *BROKEN, "checkpoint.every_steps=192").run
    faults.reset()
    monkeypatch.setenv("RL_LAB_FAULT", "hook.after:error@19")
    with pytest.raises(OSError, match="injected at hook"):
        tiny_run(tmp_path / "b", *BROKEN, "checkpoint.every_steps=192")
    monkeypatch.delenv("RL_LAB_FAULT")
    (killed,) = (tmp_path / "b").glob("*/alerts.jsonl")
    later = Alert(960, "kl_high", "train/approx_kl", 1.0, "of a future that was lost", "")
    write_alerts(killed, [*read_alerts(killed), later])
    resumed = resume("@last", root=tmp_path / "b").run
    assert resumed.alerts_file.read_bytes() == straight.alerts_file.read_bytes()
    assert len(straight.alerts_file.read_bytes().splitlines()) >= 2
    assert final_state(resumed)["parts"]["alerts"] == final_state(straight)["parts"]["alerts"]


def test_a_checkpoint_from_before_there_were_monitors_goes_on(tmp_path, tiny):
    run = tiny(*BROKEN)
    state = run.state()
    del state["parts"]["alerts"]
    run.load(state)
    assert run.run() and run.alerts.names()


# -- what becomes of an alert ---------------------------------------------------------------------


def test_stop_saves_and_ends_the_run_and_a_resume_goes_on(tmp_path):
    with pytest.raises(RunError, match=r"stopped by a monitor: .*at step \d+.*try: "):
        tiny_run(tmp_path, *BROKEN, "logging.alerts.policy=stop")
    (folder,) = tmp_path.glob("CartPole*")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "failed" and summary["saved_step"] == summary["env_steps"] < 1024
    assert "stopped by a monitor" in summary["error"]
    while True:  # each alert stops it once
        try:
            assert resume("@last", root=tmp_path).summary["status"] == "finished"
            break
        except RunError as error:
            assert "stopped by a monitor" in str(error)


def test_one_monitor_may_stop_what_others_only_warn_of(tmp_path):
    own = "{metric: eval/return_mean, below: 1e9, rows: 1, policy: stop}"
    short = f"logging.alerts.monitors={{short: {own}}}"
    with pytest.raises(RunError, match="stopped by a monitor: short at step 256"):
        tiny_run(tmp_path, *BROKEN, short)


def test_the_run_its_log_its_report_and_the_lists_tell_of_it(tmp_path, capsys):
    heard = Heard()
    config = tiny_config(*BROKEN, "logging.report=true")
    run = train(config, root=tmp_path, view=lambda *_: [heard]).run
    lines = [each for each in heard.said if each.startswith("ALERT kl_high at step ")]
    assert len(lines) == 1 and "(try: " in lines[0]
    assert lines[0] in run.log_file.read_text()
    assert heard.alerts == read_alerts(run.alerts_file)
    assert main(["report", run.id, "--runs-dir", str(tmp_path)]) == 0
    for page in ("report.md", "report.html"):
        assert heard.alerts[0].message in (run.path / page).read_text()
    capsys.readouterr()
    assert main(["show", run.id, "--runs-dir", str(tmp_path)]) == 0
    assert heard.alerts[0].message in capsys.readouterr().out
    assert main(["list", "--runs-dir", str(tmp_path)]) == 0
    assert "kl_high" in capsys.readouterr().out
    assert (
        main(["list", "--filter", "alerts=*kl_high*", "--json", "--runs-dir", str(tmp_path)]) == 0
    )
    assert json.loads(capsys.readouterr().out)[0]["alerts"][0] in {e.monitor for e in heard.alerts}


def test_a_full_disk_costs_a_warning(tmp_path, monkeypatch):
    heard = Heard()

    def full(file, alerts):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rl_lab.run.alerts.write_alerts", full)
    outcome = train(tiny_config(*BROKEN), root=tmp_path, view=lambda *_: [heard])
    assert outcome.exit_code == 0
    assert "WARNING: alerts.jsonl could not be written: No space left on device" in heard.said


def test_damaged_lines_hide_no_other(tmp_path):
    good = Alert(1, "a", "m", 2.0, "x", "y")
    file = tmp_path / "alerts.jsonl"
    write_alerts(file, [good])
    file.write_text(file.read_text() + '{"step": 1}\n3\nnonsense\n' + file.read_text())
    assert read_alerts(file) == [good, good]
    assert read_alerts(tmp_path / "none.jsonl") == []
