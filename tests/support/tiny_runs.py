"""Small real runs for tests: a few hundred steps, two evaluation episodes, no sinks."""

from pathlib import Path
from typing import Any

from rl_lab.config.compose import compose
from rl_lab.config.resolve import resolve
from rl_lab.config.validate import validate
from rl_lab.core.errors import ConfigError
from rl_lab.core.schema import RunConfig
from rl_lab.core.state import Tree, fingerprint
from rl_lab.display.sinks import Sinks
from rl_lab.records.checkpoint import CheckpointStore
from rl_lab.records.run_directory import RunDirectory
from rl_lab.run.build import build_run
from rl_lab.run.orchestrator import Orchestrator
from rl_lab.run.session import Outcome, train

SMALL = [
    "training.total_timesteps=1024",
    "environment.num_envs=4",
    "evaluation.every_steps=256",
    "evaluation.episodes=2",
    "evaluation.num_envs=2",
    "evaluation.test_episodes=2",
    "environment.max_episode_steps=40",
    "checkpoint.every_steps=256",
    "logging.tensorboard=false",
    "logging.report=false",
    "logging.every_steps=1",
]
SMALL_NETWORK = "network.encoder.hidden_dims=[8]"
SMALL_PPO = ["algorithm.rollout_steps=16", "algorithm.epochs=2"]


def tiny_config(spec: str = "CartPole-v1:ppo_defaults", *overrides: str) -> RunConfig:
    """A complete config of a small run. No preset: nothing fights the overrides."""
    own = SMALL_PPO if ":ppo" in spec else []
    words = [*SMALL, *own, *overrides]
    try:
        composed = compose(spec, [SMALL_NETWORK, *words])
        return validate(composed.tree, composed.origins)
    except ConfigError as error:
        if "has no effect" not in str(error):  # an algorithm without such a network
            raise
        composed = compose(spec, words)
        return validate(composed.tree, composed.origins)


def tiny_run(root: Path, spec: str = "CartPole-v1:ppo_defaults", *overrides: str) -> Outcome:
    """Train it to the end."""
    return train(tiny_config(spec, *overrides), root=root)


def tiny_orchestrator(
    root: Path, spec: str = "CartPole-v1:ppo_defaults", *overrides: str
) -> Orchestrator:
    """Built and not started."""
    config = resolve(tiny_config(spec, *overrides))
    return build_run(config, lambda: RunDirectory.create(root, "tiny"), Sinks([], None))[0]


def final_state(run: RunDirectory) -> Tree:
    """Everything that the last checkpoint holds."""
    return CheckpointStore(run.checkpoints).load("last")[0]


def run_hash(run: RunDirectory) -> tuple[str, bytes]:
    """sha256 over all state, and the bytes of metrics.jsonl: equal runs, equal hashes."""
    state: Any = final_state(run)
    state["parts"]["progress"].pop("resumes")  # the only thing a resume may change
    return fingerprint(state), run.metrics_file.read_bytes()
