"""Diffusion and flow policies: targets, average of weights, datasets, memory, export, mistakes."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from test_bc import data, rows, words  # noqa: F401  (a fixture)

from rl_lab import api
from rl_lab.algorithms.diffusion.diffusion_policy import (
    Diffusion,
    DiffusionConfig,
    Flow,
    FlowConfig,
    chunk_loss,
)
from rl_lab.algorithms.diffusion.schedule import cosine_alpha_bar
from rl_lab.config.compose import compose
from rl_lab.config.validate import validate
from rl_lab.core.batch import ACTION, MASK, OBS
from rl_lab.core.errors import ConfigError, UserError
from tiny_runs import tiny_run

KINDS = ("diffusion_policy", "flow_policy")
SMALL = ["algorithm.denoiser.hidden_dim=16", "algorithm.denoiser.blocks=1"]
SMALL += ["algorithm.inference_steps=3", "algorithm.batch_size=16", "~network.actor.hidden_dims"]
SHORT = ["algorithm.prediction_horizon=6", "algorithm.execution_horizon=3"]
every_kind = pytest.mark.parametrize("name", KINDS)


def test_noisy_chunks_and_their_target_by_hand():
    alpha_bar = torch.tensor([0.64, 0.36], dtype=torch.float64)
    process = Diffusion(alpha_bar, "epsilon", 2, 0.0)
    rng = torch.Generator().manual_seed(0)
    clean, noise = torch.full((64, 1, 1), 2.0), torch.full((64, 1, 1), -1.0)
    noisy, level, target = process.training(clean, noise, rng)
    # √.64 · 2 − √.36 = 1, √.36 · 2 − √.64 = .4: both levels are drawn
    expected = torch.where(level == 0, 1.0, 0.4)
    torch.testing.assert_close(noisy.flatten(), expected)
    assert {0.0, 1.0} == set(level.tolist())
    assert torch.equal(target, noise)


def test_a_flow_is_told_its_time_and_learns_the_way_from_noise_to_sample():
    rng = torch.Generator().manual_seed(0)
    clean, noise = torch.full((64, 1, 1), 3.0), torch.full((64, 1, 1), -1.0)
    noisy, level, target = Flow(5).training(clean, noise, rng)
    time = level / 1000
    assert ((time >= 0) & (time < 1)).all() and time.std() > 0.2
    torch.testing.assert_close(noisy.flatten(), -1.0 + 4.0 * time)
    assert (target == 4.0).all()


def test_a_flow_asks_for_the_same_levels_when_it_acts():
    asked = []

    def predict(noisy, level):
        asked.append(level[0].item())
        return torch.zeros_like(noisy)

    Flow(4).sample(predict, torch.zeros(1, 1, 1), None)
    assert asked == [0.0, 250.0, 500.0, 750.0]


def test_noise_is_drawn_only_where_a_sampler_needs_it():
    def noises(**options):
        return DiffusionConfig(inference_steps=10, **options).process("cpu").noises

    assert noises() == 0
    assert noises(eta=0.3) == 9
    assert noises(sampler="ddpm") == 9
    assert FlowConfig().process("cpu").noises == 0


class Answer(torch.nn.Module):
    """Always the same prediction."""

    def forward(self, noisy, level, frames):
        return torch.tensor([[[1.0, 1.0], [0.0, 3.0]]])


def test_the_loss_by_hand_with_and_without_padding():
    # errors (1² + 1²)/2 = 1 and (0² + 3²)/2 = 4.5
    def loss(*mask):
        target = torch.zeros(1, 2, 2)
        return chunk_loss(Answer(), None, target, None, target, torch.tensor([mask]))[0].item()

    assert loss(1.0, 1.0) == 2.75
    assert loss(1.0, 0.0) == 1.0


def chunk(orchestrator):
    phase = orchestrator.scheduler.view()
    found = orchestrator.algorithm.sample(orchestrator.buffers["data"], hook="update", phase=phase)
    return found, phase


def test_the_average_of_weights_after_three_steps(tiny, data):  # noqa: F811
    algorithm = (orchestrator := tiny(*words(data, KINDS[0], 5, *SMALL, *SHORT))).algorithm
    weights = []
    for _ in range(3):
        batch, phase = chunk(orchestrator)
        algorithm.update(batch, phase=phase)
        weights.append(algorithm.network.state.flat.clone())
    # decays 0, 1 − 2^−¾ and 1 − 3^−¾
    second, third = 1 - 2**-0.75, 1 - 3**-0.75
    average = second * weights[0] + (1 - second) * weights[1]
    average = third * average + (1 - third) * weights[2]
    torch.testing.assert_close(algorithm.network.target_flat, average)
    assert not torch.equal(weights[1], weights[2])


@every_kind
def test_windows_are_those_that_the_paper_trains_on(tiny, data, name):  # noqa: F811
    more = ["algorithm.observation_horizon=3", "algorithm.prediction_horizon=6"]
    orchestrator = tiny(*words(data, name, 5, *SMALL, *more, "algorithm.execution_horizon=4"))
    batch, _ = chunk(orchestrator)
    assert batch[OBS].shape == (1, 16, 3, 3)
    assert batch[ACTION].shape == (1, 16, 6, 1)
    # where nothing is repeated, action i belongs to frame i: it is half of the frame's first number
    whole = batch[MASK][0].all(1)
    assert whole.any()
    frames, actions = batch[OBS][0][whole], batch[ACTION][0][whole]
    torch.testing.assert_close(actions[:, :3, 0], (0.5 * frames[..., 0]).clamp(-1, 1))


@every_kind
def test_it_learns_the_rule_of_a_dataset(tiny, data, name):  # noqa: F811
    """Noise from step to step, so a chunk's first action can be known and the others cannot."""
    more = [*SMALL, "algorithm.prediction_horizon=2", "algorithm.execution_horizon=1"]
    more += ["algorithm.warm_up_updates=20", "algorithm.batch_size=64"]
    orchestrator = tiny(*words(data, name, 400, *more))
    orchestrator.run()
    algorithm = orchestrator.algorithm
    seen = torch.from_numpy(rows(50, 9)["obs"])
    action = algorithm.act(seen, algorithm.initial_state(51), deterministic=True).action
    error = (action - (0.5 * seen[:, :1]).clamp(-1.0, 1.0)).abs().mean()
    assert error < 0.25  # the best constant has .36


@pytest.mark.parametrize("options", [["sampler=ddpm"], ["eta=0.5"], ["prediction=v"]], ids=str)
def test_every_sampler_acts(tiny, data, options):  # noqa: F811
    more = [f"algorithm.{each}" for each in options]
    orchestrator = tiny(*words(data, KINDS[0], 3, *SMALL, *SHORT, *more))
    orchestrator.run()
    algorithm, obs = orchestrator.algorithm, torch.zeros(4, 3)
    first, second = (
        algorithm.act(obs, algorithm.initial_state(4), deterministic=False).action for _ in "ab"
    )
    assert not torch.equal(first, second)
    fixed, again = (
        algorithm.act(obs, algorithm.initial_state(4), deterministic=True).action for _ in "ab"
    )
    assert torch.equal(fixed, again)
    assert (fixed == fixed[0]).all()


@pytest.mark.parametrize("kind", ["mlp", "unet"])
@pytest.mark.parametrize("name", KINDS)
def test_traced_updates_are_the_eager_ones(tiny, data, interpreted, name, kind):  # noqa: F811
    found = {}
    for compile in ("on", "off"):
        more = [f"compute.compile={compile}", f"algorithm.denoiser.type={kind}"]
        more += ["algorithm.denoiser.channels=[8, 16]"] if kind == "unet" else []
        orchestrator = tiny(*words(data, name, 4, *SMALL, *SHORT, *more))
        orchestrator.run()
        found[compile] = orchestrator.algorithm.network.target_flat
    torch.testing.assert_close(found["on"], found["off"], atol=1e-5, rtol=1e-4)


def test_images_of_several_frames(tmp_path, names_restored):
    """What matters is that bytes, their history and an encoder fit together."""

    class Reach(gym.Env):
        observation_space = gym.spaces.Dict(
            {
                "eye": gym.spaces.Box(0, 255, (32, 32, 3), np.uint8),
                "arm": gym.spaces.Box(-1, 1, (2,), np.float32),
            }
        )
        action_space = gym.spaces.Box(-2, 2, (2,), np.float32)

        def seen(self):
            return {
                "eye": np.full((32, 32, 3), self.time, np.uint8),
                "arm": np.zeros(2, np.float32),
            }

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.time = 0
            return self.seen(), {}

        def step(self, action):
            self.time += 1
            return self.seen(), 0.0, self.time == 9, False, {}

    gym.register("ReachWithPictures-v0", entry_point=Reach)
    phases = "[{name: a, policy: random, duration_steps: 64, hooks: [collect]}, "
    phases += "{name: b, type: offline, duration_updates: 2, hooks: [update]}]"
    outcome = tiny_run(
        tmp_path,
        "ReachWithPictures-v0:random",
        "algorithm.name=diffusion_policy",
        "algorithm.collect_steps=16",
        *(each for each in SMALL if not each.startswith("~")),
        *SHORT,
        "buffers.data={type: uniform, capacity: 256}",
        f"training.phases={phases}",
    )
    assert outcome.summary["updates"] == 2


# ------------------------------------------------------------------------- runs and policies


@every_kind
def test_a_loaded_policy_acts_in_chunks_and_begins_again_on_request(tmp_path, data, name):  # noqa: F811
    outcome = tiny_run(tmp_path / "runs", *words(data, name, 3, *SMALL, *SHORT))
    policy = api.load_policy(outcome.run.id, runs_dir=tmp_path / "runs")
    obs = np.array([0.3, -0.2, 3.0], np.float32)
    first = [policy.act(obs).tolist() for _ in range(4)]
    policy.reset()
    second = [policy.act(obs).tolist() for _ in range(4)]
    assert first == second
    assert policy.memory["age"].tolist() == [4]  # steps of this episode: one into the second chunk
    assert api.evaluate(outcome.run.id, runs_dir=tmp_path / "runs", episodes=2).episodes == 2


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "algorithm.execution_horizon=16",
            "prediction_horizon: must be at least observation_horizon",
        ),
        ("algorithm.inference_steps=101", "inference_steps: must be at most noise_levels 100"),
        ("algorithm.prediction=noise", "prediction"),
        ("network.memory.type=lstm", "network.memory has no use here"),
    ],
)
def test_what_cannot_work_is_refused(data, word, message):  # noqa: F811
    composed = compose(words(data)[0], [*words(data, KINDS[0], 5, *SMALL)[1:], word])
    with pytest.raises(ConfigError, match=message):
        validate(composed.tree, composed.origins)


def test_discrete_actions_are_refused_in_one_line(tiny):
    more = ["algorithm.name=flow_policy", "buffers.data={type: uniform, capacity: 99}"]
    with pytest.raises(UserError, match="flow_policy"):
        tiny("CartPole-v1:random", *more)


def test_the_schedule_of_the_paper_is_the_default():
    process = DiffusionConfig().process("cpu")
    assert torch.equal(process.alpha_bar, cosine_alpha_bar(100))
