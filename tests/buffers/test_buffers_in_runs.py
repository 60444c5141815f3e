"""Whole runs with each kind of replay buffer: interrupted equals uninterrupted."""

import pytest
import torch

from rl_lab.records import faults
from rl_lab.run.session import resume
from tiny_runs import run_hash, tiny_run

SHORT = [
    "training.total_timesteps=320",
    "checkpoint.every_steps=96",
    "evaluation.every_steps=0",
    "evaluation.test_episodes=0",
    "algorithm.learning_starts=32",
    "algorithm.batch_size=16",
    "algorithm.replay_ratio=0.25",
    "algorithm.train_every=1",
]
MIXED = (
    "{plain: {type: uniform, capacity: 100}, ranked: {type: prioritized, capacity: 100}, "
    "mixed: {type: union, of: {plain: 0.75, ranked: 0.25}}}"
)
PHASES = (
    "[{name: fill, buffer: ranked, duration_steps: 64, hooks: [collect]}, "
    "{name: learn, buffer: mixed, hooks: [collect, update]}]"
)
RUNS = {  # every ring wraps: it holds a third of the run
    "prioritized": [
        "CartPole-v1:dqn",
        "buffers={replay: {type: prioritized, capacity: 100}}",
        "algorithm.n_step=3",
    ],
    "her": ["PointGoalDiscrete-v0:dqn", "buffers={replay: {type: her, capacity: 100}}"],
    "union": ["CartPole-v1:dqn", f"buffers={MIXED}", f"training.phases={PHASES}"],
}


@pytest.mark.parametrize("kind", RUNS)
def test_interrupted_equals_uninterrupted(tmp_path, monkeypatch, kind):
    words = [RUNS[kind][0], *SHORT, *RUNS[kind][1:]]
    expected = run_hash(tiny_run(tmp_path / "straight", *words).run)
    faults.reset()
    monkeypatch.setenv("RL_LAB_FAULT", "hook.after:error@101")
    with pytest.raises(OSError, match="injected at hook"):
        tiny_run(tmp_path / "broken", *words)
    monkeypatch.delenv("RL_LAB_FAULT")
    torch.manual_seed(123)  # a new process would not share our random stream
    outcome = resume("@last", root=tmp_path / "broken")
    assert outcome.summary["resumes"] == 1
    assert run_hash(outcome.run) == expected
