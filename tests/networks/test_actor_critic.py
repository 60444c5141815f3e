import numpy as np
import pytest
import torch
from torch import nn

from rl_lab.core import registry
from rl_lab.core.errors import UserError
from rl_lab.core.schema import HeadConfig, NetworkConfig
from rl_lab.core.spec import Box, Discrete, EnvSpec, MultiDiscrete
from rl_lab.networks.actor_critic import ActorCritic
from rl_lab.networks.mlp import Flatten, MLPEncoderConfig
from rl_lab.networks.normalizer import ObservationNormalizer, is_normalizable
from rl_lab.networks.numpy_policy import fast_policy


def box(size, low=-np.inf, high=np.inf):
    bounds = [np.full((size,), bound, dtype=np.float32) for bound in (low, high)]
    return Box((size,), np.dtype(np.float32), *bounds)


OBSERVATIONS = {"box": box(4), "discrete": Discrete(6), "multi": MultiDiscrete((3, 2))}
ACTIONS = {"discrete": Discrete(3), "multi": MultiDiscrete((2, 4)), "box": box(2, -1.0, 1.0)}
MEMORIES = registry.names("memory")


def network(memory="none", **options):
    kind = registry.get("memory", memory)
    encoder = MLPEncoderConfig(hidden_dims=[16])
    return NetworkConfig(encoder=encoder, memory=kind.Config(type=memory), **options)


def observations(space, *lead):
    generator = torch.Generator().manual_seed(0)
    if isinstance(space, Discrete):
        return torch.randint(space.n, lead, generator=generator)
    if isinstance(space, MultiDiscrete):
        columns = [torch.randint(n, lead, generator=generator) for n in space.nvec]
        return torch.stack(columns, -1)
    return torch.randn(*lead, *space.shape, generator=generator)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("shared", [False, True])
def test_every_space_and_memory_unrolls_as_it_acts(memory, observation, action, shared):
    torch.manual_seed(0)
    spec = EnvSpec("x", OBSERVATIONS[observation], ACTIONS[action])
    model = ActorCritic(network(memory, shared_torso=shared), spec)
    steps, envs = 6, 3
    obs = observations(spec.observation, steps, envs)
    resets = torch.zeros(steps, envs, dtype=torch.bool)
    resets[0], resets[3, 1] = True, True
    start = state = model.initial_state(envs)
    actions, log_probs = [], []
    with torch.no_grad():
        for t in range(steps):
            if t == 3:
                fresh = model.initial_state(envs)
                for role, memory_state in state.items():
                    for key, value in memory_state.items():
                        value[1] = fresh[role][key][1]
            policy, state = model.policy_step(obs[t], state)
            sampled = policy.sample(torch.Generator().manual_seed(t))
            actions.append(sampled)
            log_probs.append(policy.log_prob(sampled))
        action_rows = torch.stack(actions)
        ended = torch.zeros_like(resets)
        seen = model.unroll(obs, action_rows, obs, start, resets, ended, chunk=3)
        policy, value, _ = model(obs, start, resets)
    assert policy.log_prob(action_rows).shape == value.shape == (steps, envs)
    torch.testing.assert_close(seen.log_prob, torch.stack(log_probs), atol=1e-5, rtol=0)
    torch.testing.assert_close(policy.log_prob(action_rows), seen.log_prob, atol=1e-5, rtol=0)
    torch.testing.assert_close(value, seen.value, atol=1e-5, rtol=0)


class ValueIsObservation(nn.Module):
    """A critic that answers with what it sees, so that a bootstrap shows where it came from."""

    def forward(self, features):
        return features[..., :1]


@pytest.mark.parametrize("memory", MEMORIES)
def test_bootstraps_look_at_where_the_step_really_ended(memory):
    spec = EnvSpec("x", box(1), Discrete(2))
    model = ActorCritic(network(memory), spec)
    torso = model.torsos["critic"]
    torso.encoder = nn.Identity()
    if memory == "none":
        model.critic_hidden, model.critic = nn.Identity(), ValueIsObservation()
    else:  # a memory that sums what it sees: the bootstrap must include the episode's past

        class Sum(nn.Module):
            def initial_state(self, batch):
                return {"sum": torch.zeros(batch, 1)}

            def sequence(self, x, state, resets):
                totals, total = [], state["sum"]
                for each, begins in zip(x, resets, strict=True):
                    total = total.masked_fill(begins.unsqueeze(-1), 0) + each
                    totals.append(total)
                return torch.stack(totals), {"sum": total}

        torso.memory = Sum()
        model.critic_hidden, model.critic = nn.Identity(), ValueIsObservation()
    # one env: frames 1, 2 | 10, 11; the first episode is cut after frame 2 in a frame 3
    obs = torch.tensor([1.0, 2.0, 10.0, 11.0]).reshape(4, 1, 1)
    nxt = torch.tensor([2.0, 3.0, 11.0, 12.0]).reshape(4, 1, 1)
    ended = torch.tensor([0, 1, 0, 0], dtype=torch.bool).reshape(4, 1)
    resets = torch.tensor([1, 0, 1, 0], dtype=torch.bool).reshape(4, 1)
    action = torch.zeros(4, 1, dtype=torch.long)
    with torch.no_grad():
        seen = model.unroll(obs, action, nxt, model.initial_state(1), resets, ended, chunk=2)
    if memory == "none":
        assert seen.next_value.squeeze().tolist() == [2, 3, 11, 12]
    else:
        assert seen.value.squeeze().tolist() == [1, 3, 10, 21]
        assert seen.next_value.squeeze().tolist() == [3, 6, 21, 33]


def test_flatten_is_one_hot_for_indices():
    assert Flatten(Discrete(3))(torch.tensor([2])).tolist() == [[0, 0, 1]]
    assert Flatten(MultiDiscrete((2, 3)))(torch.tensor([[1, 0]])).tolist() == [[0, 1, 1, 0, 0]]


def test_orthogonal_initialisation_and_a_nearly_uniform_first_policy():
    model = ActorCritic(network(), EnvSpec("x", box(4), Discrete(3)))
    weight = model.torsos["actor"].encoder.layers[0].weight
    torch.testing.assert_close(weight.T @ weight, 2 * torch.eye(4), atol=1e-5, rtol=1e-5)
    policy, _ = model.policy_step(torch.randn(32, 4), model.initial_state(32))
    assert (policy.log_probs.exp() - 1 / 3).abs().max() < 0.02


def test_head_layers_and_shared_torso():
    options = {"shared_torso": True, "actor": HeadConfig(hidden_dims=[7])}
    model = ActorCritic(network(**options), EnvSpec("x", box(4), Discrete(3)))
    assert list(model.torsos) == ["shared"]
    assert model.actor.output.in_features == 7


@pytest.mark.parametrize("action", ["discrete", "box"])
@pytest.mark.parametrize("normalize", ["off", "running"])
def test_the_numpy_policy_is_the_torch_policy(action, normalize):
    torch.manual_seed(0)
    model = ActorCritic(network(), EnvSpec("x", box(4), ACTIONS[action]), normalize)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape)
    obs = torch.randn(64, 4)
    model.normalizer.update_statistics(np.random.default_rng(0).normal(3, 2, size=(50, 4)))
    fast = fast_policy(model)
    sampled, log_prob = fast(obs.numpy(), np.random.default_rng(0))
    policy, _ = model.policy_step(obs, model.initial_state(64))
    expected = policy.log_prob(torch.from_numpy(sampled)).detach().numpy()
    assert np.abs(expected - log_prob).max() < 1e-4
    mode, _ = fast(obs.numpy(), None)
    np.testing.assert_allclose(mode, policy.mode().detach().numpy(), atol=1e-5)
    model.actor.output.weight.data.zero_()  # same memory: the twin follows
    assert np.ptp(fast(obs.numpy(), None)[1]) < 1e-6 or action == "box"


def test_the_numpy_policy_declines_what_it_cannot_do():
    for memory, observation in (("gru", box(4)), ("none", Discrete(5))):
        spec = EnvSpec("x", observation, Discrete(2))
        assert fast_policy(ActorCritic(network(memory), spec)) is None


def test_running_normaliser_moves_only_when_told_and_travels_with_the_weights():
    space = box(2)
    normalizer = ObservationNormalizer("running", space)
    frames = np.random.default_rng(0).normal([5.0, -3.0], [2.0, 0.5], size=(1000, 2))
    normalizer(torch.from_numpy(frames).float())
    assert normalizer.moments.count == 0
    normalizer.update_statistics(frames)
    assert normalizer.moments.count == 1000
    seen = normalizer(torch.from_numpy(frames).float())
    torch.testing.assert_close(seen.mean(0), torch.zeros(2), atol=1e-3, rtol=0)
    torch.testing.assert_close(seen.std(0), torch.ones(2), atol=1e-2, rtol=0)
    other = ObservationNormalizer("running", space)
    other.load_state_dict(normalizer.state_dict())
    assert torch.equal(other(torch.ones(2)), normalizer(torch.ones(2)))
    assert other.moments.count == 1000
    assert normalizer(torch.full((2,), 1e9)).tolist() == [10.0, 10.0]


def test_integer_vectors_are_normalised_and_indices_and_images_are_not():
    bounds = np.zeros(3), np.full(3, 100)
    vector = Box((3,), np.dtype(np.int64), *bounds)
    normalizer = ObservationNormalizer("running", vector)
    frames = np.random.default_rng(0).integers(0, 100, size=(1000, 3))
    normalizer.update_statistics(frames)
    seen = normalizer(torch.from_numpy(frames))
    torch.testing.assert_close(seen.mean(0), torch.zeros(3), atol=1e-3, rtol=0)
    torch.testing.assert_close(seen.std(0), torch.ones(3), atol=1e-2, rtol=0)
    image = Box((1, 4, 4), np.dtype(np.uint8), np.zeros((1, 4, 4)), np.full((1, 4, 4), 255))
    assert [is_normalizable(each) for each in (vector, image, Discrete(3))] == [True, False, False]


def test_static_normaliser_uses_finite_bounds_only():
    low, high = np.array([0.0, -np.inf], np.float32), np.array([4.0, np.inf], np.float32)
    space = Box((2,), np.dtype(np.float32), low, high)
    normalizer = ObservationNormalizer("static", space)
    assert normalizer(torch.tensor([4.0, 7.0])).tolist() == [1.0, 7.0]
    assert normalizer(torch.tensor([0.0, -7.0])).tolist() == [-1.0, -7.0]


def test_actions_that_are_no_vector_are_refused():
    bounds = np.ones((2, 2), dtype=np.float32)
    square = Box((2, 2), np.dtype(np.float32), -bounds, bounds)
    with pytest.raises(UserError, match=r"actions of shape \(2, 2\) are not supported"):
        ActorCritic(network(), EnvSpec("x", box(4), square))
