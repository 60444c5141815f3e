"""`python -m benchmarks.peers`: real trainings, as small as they can be. No speed is judged."""

import importlib.util
import json
import re
import shlex
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from benchmarks.peers import plain_dqn, plain_ppo, speed
from benchmarks.peers.command import app
from benchmarks.peers.contestants import CONTESTANTS, Contestant, equal_settings, our_settings
from benchmarks.peers.settings import SETTINGS, Clock, Job, Timed

from rl_lab import api
from rl_lab.cli.main import main
from rl_lab.core.errors import RunError

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RL_LAB_RUNS", str(tmp_path / "runs"))
    return tmp_path


def bench(capsys, *words):
    """The result as a program sees it."""
    assert main(["bench", "peers", *words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in report["rows"]}
    for row in rows.values():
        if "detail" not in row:
            assert len(row["samples"]) == report["settings"]["repeats"]
            assert row["value"]["low"] <= row["value"]["median"] <= row["value"]["high"]
            assert row["ratio"]["low"] <= row["ratio"]["median"] <= row["ratio"]["high"]
    return report, rows


def test_peers_trains_us_and_the_plain_loop(capsys, place):
    words = ["--steps", "1024", "--settings", "zoo", "--repeats", "1", "--peer", "plain"]
    report, rows = bench(capsys, *words, "--output", "out/peers.json")
    assert list(rows) == ["rl-lab", "plain"]
    for row in rows.values():
        assert row["total_seconds"] > 1024 / row["value"]["median"] / 2
        assert 5 < row["first_return"] < 60 and row["last_return"] > 5  # CartPole's beginning
        assert row["runs"] == 1
    speeds = [rows[name]["samples"][0] for name in ("rl-lab", "plain")]
    assert rows["plain"]["ratio"]["median"] == pytest.approx(speeds[0] / speeds[1])
    assert json.loads((place / "out" / "peers.json").read_text())["rows"] == report["rows"]
    picture = (place / "out" / "peers.png").exists()
    assert picture is (importlib.util.find_spec("matplotlib") is not None)


CLEANRL = """
import sys, time
given = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=False))
envs, steps = int(given["--num-envs"]), int(given["--num-steps"])
assert given["--ent-coef"] == "0.01" and given["--num-minibatches"] == "4", given
for iteration in range(int(given["--total-timesteps"]) // (envs * steps)):
    time.sleep(0.01)
    print(f"global_step={iteration}, episodic_return=[{20.0 + iteration}]")
    print("SPS:", 1)
"""


def test_the_default_run_and_a_script_of_cleanrls_take_part(capsys, place):
    (place / "ppo.py").write_text(CLEANRL)
    words = ["--steps", "4096", "--repeats", "1", "--peer", "rl-lab-default", "--peer", "cleanrl"]
    _, rows = bench(capsys, *words, "--cleanrl", "ppo.py")
    assert list(rows) == ["rl-lab", "rl-lab-default", "cleanrl"]
    assert rows["cleanrl"]["last_return"] == 21.5 and rows["cleanrl"]["runs"] == 1  # 20, 21, 22, 23
    assert rows["rl-lab-default"]["last_return"] == rows["rl-lab"]["last_return"]  # the same run


def test_a_script_of_cleanrls_that_fails_says_why(capsys, place):
    (place / "ppo.py").write_text("raise ValueError('on purpose')")
    words = ["--steps", "4096", "--repeats", "1", "--peer", "cleanrl"]
    _, rows = bench(capsys, *words, "--cleanrl", "ppo.py")
    assert rows["cleanrl"]["detail"].endswith("exit code 1: ValueError: on purpose")
    _, rows = bench(capsys, *words)
    assert rows["cleanrl"]["detail"] == "give its own script: --cleanrl PATH/TO/ppo.py"


def test_the_default_run_evaluates_and_logs():
    job = Job(env="CartPole-v1", settings="matched", rollouts=4)
    quiet, default = our_settings(job), equal_settings(job)
    assert default["algorithm.entropy_coefficient"] == 0.01
    assert {*quiet} - {*default} == {
        "evaluation.every_steps",
        "checkpoint.every_steps",
        "logging.every_steps",
    }


def test_a_peer_that_is_absent_or_fails_has_a_row_of_its_own(capsys, monkeypatch):
    def trained(name, job):
        asked.append((name, job.seed))
        if name == "plain":
            raise RunError("plain: ValueError: on purpose")
        return real(name, job)

    asked, real = [], speed.trained
    monkeypatch.setattr(speed, "trained", trained)
    absent = Contestant("not here", "a_module_that_nobody_has", lambda job: None)
    monkeypatch.setitem(CONTESTANTS, "sbx", absent)
    words = ["--steps", "512", "--settings", "zoo", "--repeats", "2"]
    _, rows = bench(capsys, *words, "--peer", "plain", "--peer", "sbx")
    assert rows["sbx"]["detail"] == "not installed: pip install 'rl-lab[peers]'"
    assert rows["plain"]["detail"] == "failed: plain: ValueError: on purpose"
    # every round has another seed, and who failed once is not tried again
    assert asked == [("rl-lab", 0), ("plain", 0), ("rl-lab", 1)]


def test_who_cannot_play_says_so(capsys, monkeypatch):
    asked = []
    timed = Timed(steps_per_second=9, first_return=1, first_spread=1, last_return=3)
    monkeypatch.setattr(
        speed, "trained", lambda name, job: asked.append((name, job)) or speed.Measured(timed, 1.0)
    )
    words = ["--settings", "halfcheetah", "--peer", "jax", "--repeats", "1"]
    _, rows = bench(capsys, *words)
    assert rows["jax"]["detail"] == "plays CartPole-v1 only"
    assert [(name, job.env) for name, job in asked] == [("rl-lab", "HalfCheetah-v5")]
    assert asked[0][1].rollouts == 49  # of 2,048 steps: the first that is past 100,000
    _, rows = bench(capsys, *words, "--env", "Pendulum-v1")
    assert asked[1][1].env == "Pendulum-v1"


def test_seconds_of_cpu_do_not_count_waiting(capsys, monkeypatch):
    job = Job(env="CartPole-v1", settings="lstm", rollouts=3, cpu=True)
    waiting, busy = Clock(job), Clock(replace(job, cpu=False))
    for _ in range(3):
        for clock in (waiting, busy):
            clock.rollout_done([])
        time.sleep(0.05)
    assert waiting.times[-1] - waiting.times[0] < 0.05 < busy.times[-1] - busy.times[0]
    found = Timed(steps_per_second=9, first_return=1, first_spread=1, last_return=3)
    monkeypatch.setattr(speed, "trained", lambda name, job: speed.Measured(found, float(job.cpu)))
    report, rows = bench(capsys, "--cpu", "--peer", "cleanrl", "--repeats", "1")
    assert report["unit"] == "environment steps/s of CPU" and rows["rl-lab"]["total_seconds"] == 1
    assert "--cpu does not see it" in rows["cleanrl"]["detail"]


def test_a_gru_of_ours_plays_against_the_lstm_of_the_peer():
    """Equal settings otherwise; nobody without a memory takes part."""
    ours = equal_settings(Job(env="CartPole-v1", settings="gru", rollouts=3))
    theirs = equal_settings(Job(env="CartPole-v1", settings="lstm", rollouts=3))
    differing = {name for name in ours if ours[name] != theirs[name]}
    assert differing == {"network.memory.type"}
    job = Job(env="CartPole-v1", settings="gru", rollouts=3)
    takes_part = [name for name, each in CONTESTANTS.items() if each.obstacle(job) is None]
    assert takes_part == ["rl-lab", "sb3-contrib"]


def configured(job):
    words = [api.as_override(path, value) for path, value in our_settings(job).items()]
    return api.configure(overrides=words)[0]


@pytest.mark.parametrize("settings", [key for key in SETTINGS if key.startswith(("dqn", "sac"))])
def test_our_replay_settings_are_those_of_the_others(settings):
    values = SETTINGS[settings]
    job = Job(env=values.env, settings=settings, rollouts=20_000 // values.train_every)
    config = configured(job)
    algorithm = config.algorithm
    names = ("batch_size", "learning_starts", "gamma", "learning_rate", "train_every")
    for name in (*names, "target_every", "target_rate"):
        assert getattr(algorithm, name) == getattr(values, name)
    assert algorithm.replay_ratio * values.train_every == values.gradient_steps
    assert config.buffers["replay"].capacity == values.capacity
    if values.algorithm == "dqn":
        assert algorithm.epsilon(0) == 1.0
        assert algorithm.epsilon(job.steps) == pytest.approx(values.epsilon)
        assert algorithm.epsilon.finish == values.explored
        assert tuple(config.network.encoder.hidden_dims) == values.hidden
    else:
        assert tuple(config.network.critic.hidden_dims) == values.hidden


def test_the_plain_dqn_learns():
    timed = plain_dqn.train(Job(env="CartPole-v1", settings="dqn_zoo", rollouts=40))
    assert timed.steps == 40 * 256
    assert timed.last_return > 1.5 * timed.first_return


@pytest.mark.parametrize("settings", [key for key in SETTINGS if SETTINGS[key].algorithm == "ppo"])
def test_our_settings_are_those_of_the_others(settings):
    job = Job(env="CartPole-v1", settings=settings, rollouts=7)
    config = configured(job)
    values, algorithm = job.values, config.algorithm
    assert config.training.total_timesteps == job.steps == 7 * values.rows
    assert algorithm.minibatch_count(values.rows) * values.batch_size == values.rows
    for name in ("rollout_steps", "epochs", "gamma", "gae_lambda", "max_grad_norm"):
        assert getattr(algorithm, name) == getattr(values, name)
    start = algorithm.learning_rate
    if values.decay:
        start = start(0)
        assert algorithm.clip_range(job.steps) == algorithm.learning_rate(job.steps) == 0
    assert start == values.learning_rate


def test_the_plain_loop_takes_the_advantages_of_gae():
    # gamma = 0.98, lambda = 0.8, together 0.784. The second of three steps ends its episode:
    #   t2: delta = 1 + 0.98 * 9 - 3 = 6.82     (9 is the value after the rollout)
    #   t1: delta = 1 - 2            = -1       nothing is carried over the end
    #   t0: delta = 1 + 0.98 * 2 - 1 = 1.96,    advantage = 1.96 + 0.784 * -1 = 1.176
    column = lambda *values: torch.tensor(values).unsqueeze(1)  # noqa: E731
    rows = {
        "reward": column(1.0, 1.0, 1.0),
        "value": column(1.0, 2.0, 3.0),
        "done": column(0.0, 1.0, 0.0),
    }
    found = plain_ppo.advantages(rows, torch.tensor([9.0]), SETTINGS["zoo"])
    assert found.squeeze(1).numpy() == pytest.approx(np.array([1.176, -1.0, 6.82]), abs=1e-5)


def test_the_plain_loop_plays_with_continuous_actions_and_truncation():
    # Pendulum only ever truncates, after 200 steps: the seventh rollout of 32 is the first that
    # finishes episodes, one of each environment, and they are still the last ones at the end.
    timed = plain_ppo.train(Job(env="Pendulum-v1", settings="zoo", rollouts=8))
    assert -2000 < timed.last_return == timed.first_return < -500
    assert timed.first_spread > 0 and not timed.learned


def test_it_runs_by_its_module_and_shows_its_own_help():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers", "--help"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "--until RETURN" in done.stdout and "--settings" in done.stdout


def test_without_a_source_checkout_it_says_what_to_do(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "benchmarks.peers", None)  # as in an installed wheel
    monkeypatch.delitem(sys.modules, "benchmarks.peers.command")
    for words in ([], ["--steps", "1024"], ["--help"]):
        assert main(["bench", "peers", *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "in a source checkout, run `python -m benchmarks.peers`" in line


def test_the_documented_commands_exist():
    page = (ROOT / "docs" / "performance.md").read_text()
    shown = re.findall(r"python -m benchmarks\.peers(.*?)(?:`|$)", page, re.MULTILINE)
    assert len(shown) > 5
    command = typer.main.get_command(app)
    for words in shown:
        command.make_context("peers", shlex.split(words.replace("RETURN", "475")))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--settings mached", "did you mean 'matched'?"),
        ("--peer plane", "did you mean 'plain'?"),
        ("--steps 2000", "give at least 2048"),
        ("--env CartPol-v1", "did you mean 'CartPole-v1'"),
        ("--compile maybe", "write on or off"),
        ("--cleanrl nowhere.py", "there is no such file"),
        ("--every 100", "--every is for --until"),
        ("--until 475 --settings zo", "did you mean 'zoo'?"),
        ("--until 475 --cpu", "--cpu is not for --until"),
        ("--until 475 --steps 1024 --every 513", "2 evaluations do not fit"),
    ],
)
def test_mistakes_are_one_line(capsys, place, words, said):
    assert main(["bench", "peers", *words.split()]) == 2
    told = capsys.readouterr()
    errors = [line for line in told.err.splitlines() if line.startswith("error:")]
    assert len(errors) == 1 and said in errors[0]
    assert list(place.iterdir()) == []
