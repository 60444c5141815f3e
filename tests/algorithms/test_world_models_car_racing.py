"""World Models in CarRacing: what a controller of zeros does, and the sizes of the presets."""

import numpy as np
import pytest
import torch

from rl_lab.api import configure
from rl_lab.run.build import make_environment
from tiny_world_models import TINY_PARTS

pytestmark = pytest.mark.needs("Box2D", "cma")
CAR = "CarRacing-v3:world_models_small"
WORDS = [*TINY_PARTS, "environment.num_envs=1", "environment.vectorization=sync"]
WORDS += ["algorithm.population=4", "environment.max_episode_steps=200", "evaluation.num_envs=1"]
WORDS += ["buffers.replay.capacity=1_000", "evaluation.episodes=1", "evaluation.test_episodes=0"]


@pytest.fixture
def run(tiny):
    built = tiny(CAR, *WORDS)
    yield built
    built.environment.close()


def test_a_controller_of_zeros_drives(run):
    """Gas 0.5 and no brake: 48.8 after 60 steps. With a brake of 0.5 it is 4.9."""
    workflow, vector = run.workflow, run.environment
    obs, state = torch.from_numpy(vector.reset([1])), workflow.initial_state(1)
    for _ in range(60):
        decision = workflow.act(obs, state, deterministic=True)
        state = decision.state
        obs = torch.from_numpy(vector.step(decision.action.numpy()).obs)
    car = vector.env.envs[0].unwrapped.car
    assert np.allclose(vector.stretch(decision.action.numpy()), [[0.0, 0.5, 0.0]])
    assert np.hypot(*car.hull.linearVelocity) > 40


@pytest.mark.parametrize(
    "spec", ["world_models", "world_models_small", "world_models_paper", "og_wm_carracing"]
)
def test_every_preset_squashes_as_the_paper_does(spec):
    named = spec == "og_wm_carracing"
    config, _ = configure(
        None if named else f"CarRacing-v3:{spec}", [f"+experiment={spec}"] * named
    )
    assert config.algorithm.squash == ["tanh", "sigmoid", "clipped_tanh"]


def sizes(config):
    own, env = config.algorithm, config.environment
    lengths = [
        phase.get("duration_steps") or phase.get("duration_updates")
        for phase in config.training.phases
    ]
    return env.num_envs, lengths, own.latent, own.hidden, own.mixtures, own.population, own.episodes


def test_the_papers_sizes():
    """10,000 rollouts of 1,000 steps; V 1 epoch in batches of 100, M 20 epochs of 100 episodes."""
    config, _ = configure("CarRacing-v3:world_models_paper")
    steps, own = 10_000 * 1_000, config.algorithm
    lengths = [steps, steps // own.batch_size, 20 * 10_000 // own.sequences, None]
    assert sizes(config) == (64, lengths, 32, 256, 5, 64, 16)
    assert own.batch_size == own.sequences == 100 and own.batch_length == 999
    assert own.channels == [32, 64, 128, 256] and own.kl_tolerance == 0.5 and own.sigma == 0.1
    assert own.vae_rate == 1e-4 and own.dynamics_rate == 1e-3
    assert config.training.total_timesteps == steps + 1_800 * 64 * 16 * 1_000
    assert config.buffers["replay"].capacity == steps
    assert config.training.phases[-1]["buffer"] == "trials"  # 22 TB of frames would fill a disk
    disk = ["buffers.replay.type=disk", "buffers.replay.folder=frames"]
    assert configure("CarRacing-v3:world_models_paper", disk)[0].buffers["replay"].type == "disk"
    assert [each["id"] for each in config.environment.wrappers] == ["Crop", "Resize"]


def test_a_labs_own_sizes():
    config, _ = configure(None, ["+experiment=og_wm_carracing"])
    assert sizes(config) == (6, [3_000, 5_000, 50_000, None], 32, 256, 5, 24, 4)
    assert config.experiment.name == "og_wm_carracing"


def test_its_frames_are_grey():
    words = ["+experiment=og_wm_carracing", "environment.vectorization=sync"]
    vector = make_environment(configure(None, words)[0], "train", 1)
    assert vector.spec.observation.shape == (1, 64, 64)
    vector.close()
