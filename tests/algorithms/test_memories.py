"""What every memory keeps in the networks of an algorithm, by the registry."""

import numpy as np
import pytest
import torch

from rl_lab.algorithms.ppo import PPOConfig
from rl_lab.core import registry
from rl_lab.core.batch import ACTION_MASK
from rl_lab.core.errors import ConfigError
from rl_lab.core.learner import Learner, undecayed
from rl_lab.core.optim import OptimizerConfig
from rl_lab.core.schema import NetworkConfig
from rl_lab.core.spec import Box, Dict, Discrete, EnvSpec
from rl_lab.networks.actor_critic import ActorCritic, as_picture
from rl_lab.networks.encoder import AutoEncoderConfig
from tiny_runs import tiny_config

MEMORIES = [name for name in registry.names("memory") if name != "none"]
PHASE = {"name": "train", "type": "online", "step": 0, "progress": 0.0}
STEPS, ENVS = 8, 3


def box(*shape, dtype=np.float32, high=np.inf):
    low = np.zeros(shape) if dtype == np.uint8 else -np.full(shape, high)
    return Box(shape, np.dtype(dtype), low, np.full(shape, high))


SPACES = {
    "vector": box(3),
    "image": box(1, 12, 12, dtype=np.uint8, high=255),
    "dict": Dict(
        {
            "camera": box(1, 12, 12, dtype=np.uint8, high=255),
            "speed": box(2),
            ACTION_MASK: box(3, dtype=np.uint8, high=1),
        }
    ),
}


def frames(space, *lead):
    if isinstance(space, Dict):
        found = {name: frames(part, *lead) for name, part in space.parts.items()}
        found[ACTION_MASK][..., 0] = 0  # never legal
        found[ACTION_MASK][..., 1:] = 1
        return found
    if space.dtype == np.uint8:
        return torch.randint(0, 256, (*lead, *space.shape), dtype=torch.uint8)
    return torch.randn(*lead, *space.shape)


def model_of(memory, space, **options):
    torch.manual_seed(0)
    kind = registry.get("memory", memory)
    encoder = AutoEncoderConfig(hidden_dims=[8], image="nature")
    config = NetworkConfig(encoder=encoder, memory=kind.Config(type=memory), **options)
    return ActorCritic(config, EnvSpec("x", space, Discrete(3)), reconstructs=True)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("memory", MEMORIES)
def test_images_dicts_and_masks_are_remembered_as_vectors_are(memory, kind, shared):
    """A rollout seen at once has the log-probs that were acted on; masks are obeyed."""
    space = SPACES[kind]
    model = model_of(memory, space, shared_torso=shared)
    obs = frames(space, STEPS, ENVS)
    resets = torch.zeros(STEPS, ENVS, dtype=torch.bool)
    start = state = model.initial_state(ENVS)
    actions, log_probs = [], []
    with torch.no_grad():
        for t in range(STEPS):
            now = {key: each[t] for key, each in obs.items()} if kind == "dict" else obs[t]
            policy, state = model.policy_step(now, state)
            actions.append(policy.sample(torch.Generator().manual_seed(t)))
            log_probs.append(policy.log_prob(actions[-1]))
        action = torch.stack(actions)
        ended = torch.zeros_like(resets)
        seen = model.unroll(obs, action, obs, start, resets, ended, chunk=4)
    torch.testing.assert_close(seen.log_prob, torch.stack(log_probs), atol=1e-5, rtol=0)
    if kind == "dict":
        assert (action != 0).all()
    policy, value, error = model(obs, start, resets)
    (value.sum() + policy.entropy().sum() + error).backward()
    assert all(each.grad is not None for each in model.parameters())


def test_a_picture_is_all_that_is_shown_but_the_mask():
    obs = frames(SPACES["dict"], 2)
    found = as_picture(SPACES["dict"], obs)
    assert found.shape == (2, 144 + 2) and found[:, :144].max() <= 1
    assert torch.equal(found[:, :144], obs["camera"].flatten(1) / 255)
    assert torch.equal(found[:, 144:], obs["speed"])


@pytest.mark.parametrize("memory", ["trxl", "gru"])
def test_what_a_memory_holds_can_be_trained_to_reconstruct_the_observation(tiny, memory):
    words = ["algorithm.reconstruction_coefficient=1.0", "algorithm.learning_rate=3e-3"]
    orchestrator = tiny(f"CartPole-v1:ppo_{memory}_defaults", *words, "algorithm.minibatches=2")
    workflow = orchestrator.workflow
    losses = []
    for _ in range(8):
        batch = workflow.collect_step(0, phase=PHASE).trajectory
        metrics = workflow.update(batch, phase=PHASE)
        losses.append(float(metrics["reconstruction_loss"]))
        assert metrics["ratio_error"] < 1e-5
    assert losses[-1] < 0.5 * losses[0]
    plain = tiny(f"CartPole-v1:ppo_{memory}_defaults").workflow
    assert not plain.model.decoders
    assert "reconstruction_loss" not in plain.update(
        plain.collect_step(0, phase=PHASE).trajectory, phase=PHASE
    )


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_memory_learns_from_what_it_fails_to_reconstruct(memory):
    model = model_of(memory, SPACES["vector"])
    resets = torch.zeros(STEPS, ENVS, dtype=torch.bool)
    _, _, error = model(frames(SPACES["vector"], STEPS, ENVS), model.initial_state(ENVS), resets)
    error.backward()
    for torso in model.torsos.values():
        assert all(each.grad is not None for each in torso.memory.parameters())


def test_reconstruction_needs_a_memory():
    assert PPOConfig().reconstruction_coefficient == 0
    with pytest.raises(ConfigError, match="reconstruction_coefficient: needs a memory"):
        tiny_config("CartPole-v1:ppo_none", "algorithm.reconstruction_coefficient=0.1")


@pytest.mark.parametrize("memory", ["mamba", "mamba2"])
def test_step_sizes_of_mamba_are_as_drawn_in_a_policy_and_are_not_decayed(memory):
    model = model_of(memory, SPACES["vector"])
    names = undecayed(model)
    kinds = {name.rpartition("mixer.")[2] for name in names}
    assert kinds == {"log_decay", "skip", "dt.bias" if memory == "mamba" else "dt_bias"}
    parameters = dict(model.named_parameters())
    for name in names:
        if name.endswith("bias"):
            size = torch.nn.functional.softplus(parameters[name])
            assert size.min() >= 1e-3 - 1e-6 and size.max() <= 0.1 + 1e-6
    before = {name: each.detach().clone() for name, each in parameters.items()}
    config = OptimizerConfig(name="adamw", weight_decay=0.5)
    learner = Learner(model, lambda model: (0 * model.critic.weight.sum(), {}, {}), config)
    nothing = torch.zeros_like(learner.state.flat)
    rate, limit = torch.tensor(0.1), torch.tensor(1.0)
    learner.descend(nothing, torch.zeros(()), learning_rate=rate, max_grad_norm=limit)
    for name, each in learner.module.named_parameters():
        expected = before[name] * (1.0 if name in names else 0.95)
        torch.testing.assert_close(each.detach(), expected)
