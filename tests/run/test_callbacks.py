"""`training.callbacks`: when they are called, and that their state is resumed exactly."""

from dataclasses import dataclass

import pytest

from rl_lab import Callback, register
from rl_lab.core import registry
from rl_lab.core.errors import ConfigError
from rl_lab.core.options import option
from rl_lab.records import faults
from rl_lab.run.session import resume
from tiny_runs import final_state, run_hash, tiny_config, tiny_run

WORDS = ["CartPole-v1:ppo_defaults", "training.callbacks={mine: {type: recorder, every: 2}}"]


@dataclass(frozen=True, kw_only=True)
class Config:
    every: int = option(1, "updates between two notes")

    def check(self, config):
        short = config.training.total_timesteps < self.every
        return [f"every must be less than the run, got {self.every}"] if short else []


class Recorder(Callback):
    Config = Config

    def __init__(self, config):
        self.config, self.updates, self.events = config, 0, []

    def initialize(self, run):
        self.events.append(("initialize", run.counters.env_steps))

    def on_metrics(self, run, metrics):
        self.events.append(("metrics", min(metrics).partition("/")[0]))

    def after_update(self, run, hook):
        self.updates += 1
        if self.updates % self.config.every == 0:
            run.progress.note({"train/noted": self.updates}, mean=False)
        self.events.append(("update", hook))

    def after_evaluation(self, run, evaluation):
        self.events.append(("evaluation", len(evaluation.returns)))

    def after_checkpoint(self, run):
        self.events.append(("checkpoint", run.counters.env_steps))

    def after_rollback(self, run, step):
        self.events.append(("rollback", step))

    def state_dict(self):
        return {"updates": self.updates}

    def load_state_dict(self, state):
        self.updates = state["updates"]


@pytest.fixture(autouse=True)
def known(monkeypatch):
    monkeypatch.setitem(registry._entries, "callback", {})
    register("callback", "recorder")(Recorder)


def test_it_is_called_in_order(tiny):
    run = tiny(*WORDS, "training.total_timesteps=128", "evaluation.every_steps=128")
    assert run.run()
    cycle = [("metrics", "collect"), ("update", "update"), ("metrics", "train")]
    assert run.callbacks["mine"].events == [
        ("initialize", 0),
        *cycle,
        *cycle,
        ("evaluation", run.config.evaluation.episodes),
        ("metrics", "eval"),
        ("checkpoint", 128),
        ("checkpoint", 128),
    ]


def test_it_hears_of_a_rollback(tiny):
    run = tiny(
        "bad_number_envs:test/GoesBad-v0:ppo_defaults", WORDS[1], "compute.on_nonfinite=rollback"
    )
    assert run.run()
    assert ("rollback", 256) in run.callbacks["mine"].events


def test_its_state_is_resumed_exactly(tmp_path, monkeypatch):
    straight = tiny_run(tmp_path / "a", *WORDS, "checkpoint.every_steps=192")
    assert final_state(straight.run)["parts"]["callback.mine"] == {"updates": 16}
    faults.reset()
    monkeypatch.setenv("RL_LAB_FAULT", "hook.after:error@9")
    with pytest.raises(OSError, match="injected at hook"):
        tiny_run(tmp_path / "b", *WORDS, "checkpoint.every_steps=192")
    monkeypatch.delenv("RL_LAB_FAULT")
    assert run_hash(resume("@last", root=tmp_path / "b").run) == run_hash(straight.run)


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("{type: recorde}", "training.callbacks.mine.type: unknown callback 'recorde' (did you"),
        ("{type: recorder, evry: 1}", "training.callbacks.mine.evry: unknown key (did you mean"),
        ("{type: recorder, every: x}", "training.callbacks.mine.every: must be a whole number"),
        ("{type: recorder, every: 1e9}", "training.callbacks.mine.every: must be less than the"),
    ],
)
def test_a_mistake_is_named_with_its_place(block, expected):
    with pytest.raises(ConfigError) as caught:
        tiny_config(WORDS[0], f"training.callbacks={{mine: {block}}}")
    assert expected in str(caught.value)
