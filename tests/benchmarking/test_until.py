"""`--until` of benchmarks.peers: real trainings to returns that are reached at once, or never."""

import json
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest
import torch
from benchmarks.peers import plain_ppo, until
from benchmarks.peers.contestants import CONTESTANTS, our_command
from benchmarks.peers.settings import Job, Timed
from benchmarks.peers.speed import Measured

from rl_lab import api
from rl_lab.cli.main import main
from rl_lab.core.errors import RunError

ROOT = Path(__file__).parents[2]
# A policy of the beginning lasts for 8 steps or more, so 5 is reached by the first evaluations.
EASY = ["peers", "--until", "5", "--every", "256", "--steps", "2048", "--repeats", "1"]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RL_LAB_RUNS", str(tmp_path / "runs"))
    return tmp_path


def bench(capsys, *words):
    assert main(["bench", *words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    return report, {row["name"]: row for row in report["rows"]}


def test_the_training_ends_with_the_second_evaluation_in_a_row(capsys, place):
    report, rows = bench(capsys, *EASY, "--peer", "plain")
    assert report["benchmark"] == "until-zoo"
    assert list(rows) == ["rl-lab", "plain"]
    for row in rows.values():
        assert row["steps"] == 512 and (row["reached"], row["rounds"]) == (1, 1)
        assert row["value"]["median"] > 0.5  # an interpreter, torch and all
    mine, other = (rows[name]["samples"][0] for name in ("plain", "rl-lab"))
    assert rows["plain"]["ratio"]["median"] == pytest.approx(mine / other)
    assert list(place.iterdir()) == []  # our runs were temporary


def test_a_return_that_is_never_reached_has_no_time(capsys, monkeypatch):
    # No episode is longer than 500 steps.
    words = ["peers", "--until", "501", "--steps", "512", "--every", "256", "--repeats", "1"]
    _, rows = bench(capsys, *words, "--peer", "plain")
    for row in rows.values():
        assert row["detail"] == "never arrived within 512 steps (0 of 1)"


def found(seconds, steps, reached):
    timed = Timed(
        steps_per_second=1, first_return=1, first_spread=1, last_return=1, steps=steps,
        reached=reached,
    )  # fmt: skip
    return Measured(timed, seconds)


def test_only_rounds_that_arrived_are_compared(capsys, monkeypatch):
    # Round by round, with the seeds 0, 1, 2; `plain` fails to arrive once, rl-lab once.
    results = {
        ("rl-lab", 0): found(2.0, 1000, True),
        ("rl-lab", 1): found(9.0, 2048, False),
        ("rl-lab", 2): found(4.0, 1000, True),
        ("plain", 0): found(6.0, 1500, True),
        ("plain", 1): found(8.0, 1200, True),
        ("plain", 2): found(9.0, 2048, False),
    }
    asked = []

    def sought(name, job):
        asked.append(name)
        if name == until.COMPILED:
            raise RunError("no compiler")
        return results[name, job.seed]

    monkeypatch.setattr(until, "sought", sought)
    words = ["peers", "--until", "475", "--steps", "2048", "--repeats", "3", "--peer", "plain"]
    _, rows = bench(capsys, *words, "--compile", "on")
    assert rows["rl-lab"]["samples"] == [2.0, 4.0] and rows["rl-lab"]["reached"] == 2
    assert rows["plain"]["samples"] == [6.0, 8.0] and rows["plain"]["rounds"] == 3
    assert rows["plain"]["ratio"]["median"] == 3.0  # 6 / 2: both arrived in the first round only
    assert rows["plain"]["steps"] == 1350
    assert rows["rl-lab, compiled"]["detail"] == "failed: no compiler"
    # As a table, too.
    assert main(["bench", *words]) == 0
    shown = capsys.readouterr().out
    assert "2 of 3" in shown and "arrived" in shown and "1,350" in shown


def test_without_a_common_round_there_is_no_ratio(capsys, monkeypatch):
    results = {"rl-lab": found(2.0, 1000, False), "plain": found(6.0, 1500, True)}
    monkeypatch.setattr(until, "sought", lambda name, job: results[name])
    words = ["peers", "--until", "475", "--steps", "2048", "--repeats", "2", "--peer", "plain"]
    _, rows = bench(capsys, *words)
    assert "ratio" not in rows["plain"] and rows["plain"]["value"]["median"] == 6.0
    assert "0 of 2" in rows["rl-lab"]["detail"]
    assert main(["bench", *words]) == 0


def test_our_command_is_the_same_training():
    job = Job(env="CartPole-v1", settings="zoo", rollouts=4, seed=7, until=475.0, every=300)
    word, *overrides = our_command(job)
    config, _ = api.configure(overrides=overrides)
    assert word == "train" and config.experiment.seed == 7
    assert config.evaluation.stop_at == 475 and config.evaluation.patience == 2
    assert config.evaluation.every_steps == 300 and config.evaluation.episodes == 20
    other = Job(env="LunarLander-v3", settings="zoo", rollouts=4, until=0.0, every=300)
    config, _ = api.configure(overrides=our_command(other)[1:])
    assert config.environment.vectorization == "sync"  # settled: no worker processes


def test_the_plain_loop_is_evaluated_for_one_episode_each():
    job = Job(env="CartPole-v1", settings="zoo", rollouts=2, seed=3)
    envs = plain_ppo.SyncVectorEnv([lambda: gym.make(job.env)])
    agent = plain_ppo.Agent(envs, 8)
    with torch.no_grad():
        for parameter in agent.actor.parameters():
            parameter.zero_()
        agent.actor[-1].bias[1] = 9.0  # always to the right
    lengths = []
    env = gym.make(job.env)
    for seed in range(4, 24):  # the seeds after that of the training
        env.reset(seed=seed)
        lengths.append(1)
        while not env.step(1)[2]:
            lengths[-1] += 1
    assert len(set(lengths)) > 1
    assert plain_ppo.evaluate(agent, job) == pytest.approx(sum(lengths) / 20)


def test_the_plain_loop_keeps_to_the_bounds():
    envs = plain_ppo.SyncVectorEnv([lambda: gym.make("Pendulum-v1")] * 2)
    assert plain_ppo.legal(envs, torch.tensor([[9.0], [-0.5]])).tolist() == [[2.0], [-0.5]]


def test_nobody_pays_for_the_imports_of_others():
    code = "import sys, benchmarks.peers.worker; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not {"torch", "numpy", "gymnasium", "jax"} & set(done.stdout.split())


@pytest.mark.parametrize("peer", ["sb3", "sbx", "jax"])
def test_other_libraries_stop_there_too(capsys, peer):
    pytest.importorskip(CONTESTANTS[peer].module)
    _, rows = bench(capsys, *EASY, "--peer", peer)
    assert rows[peer]["steps"] == 512 and rows[peer]["reached"] == 1
