"""An evaluation whose episodes never end can be stopped, and what was learned is kept."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from rl_lab.collect.evaluate import Interrupted, evaluate
from rl_lab.core.batch import Action
from rl_lab.envs.counter import CounterEnv
from rl_lab.envs.vector import SyncVector
from rl_lab.orchestration.session import train
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


def test_a_signal_in_the_final_test_leaves_a_finished_run(tmp_path):
    """Episodes of this world never end: without the signal the test would last for ever."""
    words = ["environment.kwargs={lengths: [1000000000]}", "environment.max_episode_steps=null"]
    words += ["training.total_timesteps=64", "evaluation.every_steps=0"]
    config = tiny_config("rl_lab/Counter-v0:random", *words, "algorithm.collect_steps=16")

    def stop_when_saved() -> None:
        while not list(tmp_path.glob("*/checkpoints/step_000000000064")):
            time.sleep(0.05)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop_when_saved, daemon=True)
    thread.start()
    outcome = train(config, root=tmp_path)
    thread.join()
    assert outcome.exit_code == 143
    assert outcome.summary["status"] == "finished" and outcome.summary["test"] == {}
