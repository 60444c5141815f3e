"""An evaluation whose episodes never end can be stopped, and what was learned is kept."""

import os
import signal

import numpy as np
import pytest

from rl_lab.collect.evaluate import Interrupted, evaluate
from rl_lab.core.batch import Action
from rl_lab.envs.counter import CounterEnv
from rl_lab.envs.vector import SyncVector
from rl_lab.run.session import train
from tiny_runs import tiny_config


def act(obs, state, *, deterministic):
    return Action(np.zeros(len(obs), np.int64))


def test_it_is_asked_before_every_step():
    asked = iter([False] * 5 + [True])
    with pytest.raises(Interrupted):
        evaluate(
            act,
            SyncVector([CounterEnv([10**9]), CounterEnv([10**9])], [0, 1], "counter"),
            seeds=[0, 1],
            episodes=2,
            deterministic=True,
            interrupted=lambda: next(asked),
        )


def test_a_signal_in_the_final_test_leaves_a_finished_run(tmp_path, monkeypatch):
    """The first step after the last checkpoint belongs to the test: the signal arrives there."""
    words = ["training.total_timesteps=64", "evaluation.every_steps=0"]
    config = tiny_config("rl_lab/Counter-v0:random", *words, "algorithm.collect_steps=16")
    step, sent = CounterEnv.step, []

    def step_and_stop(self, action):
        if not sent and list(tmp_path.glob("*/checkpoints/step_000000000064")):
            sent.append(signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, action)

    monkeypatch.setattr(CounterEnv, "step", step_and_stop)
    outcome = train(config, root=tmp_path)
    assert sent and outcome.exit_code == 143
    assert outcome.summary["status"] == "finished" and outcome.summary["test"] == {}
