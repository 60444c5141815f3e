"""The three-phase block of the earlier lab runs as it is printed; only its lengths are cut."""

from pathlib import Path

import pytest

from rl_lab.cli.main import main
from rl_lab.core import registry
from rl_lab.records.run_directory import find_run
from seed_files import THREE_PHASES
from tiny_runs import final_state

PARTS = '''\
from dataclasses import dataclass
from rl_lab import Action, Workflow, register_algorithm, register_buffer

@dataclass(frozen=True, kw_only=True)
class KeeperConfig:
    type: str = "seed_keeper"

@register_buffer("seed_keeper")
class Keeper:
    """Keeps the newest rows for any number of updates, as a replay buffer does."""
    Config = KeeperConfig

    def __init__(self, config, setup):
        self.rows = None

    def add(self, trajectory):
        self.rows = trajectory

    def ready(self):
        return self.rows is not None

    def sample(self):
        return self.rows

    def done(self):
        pass

    def state_dict(self):
        return {"rows": self.rows}

    def load_state_dict(self, state):
        self.rows = state["rows"]

@register_algorithm("seed_hooks")
class Hooks(Workflow):
    """Both hooks of the block, which count in which phase they were called."""
    collect_steps = 2

    def initialize(self, context):
        super().initialize(context)
        self.rng = context.rng.numpy("seed")
        self.calls = {}

    def act(self, obs, state, *, deterministic):
        return Action(self.rng.integers(2, size=len(obs)))

    def count(self, hook, phase):
        name = f"{phase['name']}.{hook}"
        self.calls[name] = self.calls.get(name, 0) + 1
        return {name: self.calls[name]}

    def update_world_model(self, batch, *, phase):
        return self.count("world_model", phase)

    def update_controller(self, batch, *, phase):
        return self.count("controller", phase)
'''
WORDS = ["--config", "block.yaml", "environment.id=CartPole-v1", "environment.num_envs=4"]
WORDS += ["evaluation.every_steps=0", "evaluation.test_episodes=0", "logging.tensorboard=false"]
SHORTER = ["training.phases.0.duration_steps=16", "training.phases.1.duration_updates=5"]
SHORTER += ["training.phases.2.duration_steps=24", "logging.every_steps=1"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RL_LAB_RUNS", raising=False)
    Path("block.yaml").write_text(THREE_PHASES)
    Path("seed_parts.py").write_text(PARTS)
    yield
    registry._entries["workflow"].pop("seed_hooks", None)
    registry._entries["buffer"].pop("seed_keeper", None)


def test_the_three_phases_run(folder, capsys):
    parts = ["--plugin", "seed_parts.py", "algorithm.name=seed_hooks"]
    parts += ["buffers.replay.type=seed_keeper"]
    assert main(["train", *WORDS, *SHORTER, *parts, "-q"]) == 0, capsys.readouterr().err
    run = find_run("@last", Path("runs"))[0]
    assert run.read_summary()["env_steps"] == 16 + 24
    calls = final_state(run)["workflow"]["values"]["calls"]
    # the last phase: 24 steps are 3 cycles of 2 vector steps of 4 environments
    assert calls == {
        "train_world_model.world_model": 5,
        "joint_training.world_model": 3,
        "joint_training.controller": 3,
    }


def test_an_algorithm_without_these_hooks_says_which_ones_it_lacks(folder, capsys):
    assert main(["train", *WORDS, "buffers.replay.type=rollout"]) == 2
    error = capsys.readouterr().err
    assert "'train_world_model' asks for hook 'update_world_model'" in error
    assert "'joint_training' asks for hook 'update_controller'" in error
