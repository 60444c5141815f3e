"""The learner's first pass over a rollout: the same numbers as acting step by step."""

import numpy as np
import pytest
import torch

from rl_lab.core import registry
from rl_lab.core.schema import NetworkConfig
from rl_lab.core.spec import Box, Discrete, EnvSpec
from rl_lab.core.tree import map_leaves, where_rows
from rl_lab.networks.actor_critic import ActorCritic
from rl_lab.networks.memory.episodes import with_last_frames
from rl_lab.networks.mlp import MLPEncoderConfig

MEMORIES = registry.names("memory")
STEPS, ENVS = 12, 4


def rollout(seed=0):
    """Episodes that end at different steps, twice in one column, once in others, and at a cut."""
    generator = torch.Generator().manual_seed(seed)
    obs, following = torch.randn(2, STEPS, ENVS, 3, generator=generator)
    action = torch.randint(2, (STEPS, ENVS), generator=generator)
    ended = torch.zeros(STEPS, ENVS, dtype=torch.bool)
    for t, n in ((1, 0), (2, 0), (1, 3), (5, 1), (7, 2), (11, 2)):
        ended[t, n] = True
    resets = torch.cat([torch.tensor([[True, True, False, False]]), ended[:-1]])
    return obs, action, following, resets, ended


def model_of(memory, *, shared=False):
    torch.manual_seed(0)
    config = NetworkConfig(
        encoder=MLPEncoderConfig(hidden_dims=[16]),
        memory=registry.get("memory", memory).Config(type=memory),
        shared_torso=shared,
    )
    bounds = np.full(3, -np.inf, np.float32), np.full(3, np.inf, np.float32)
    model = ActorCritic(config, EnvSpec("x", Box((3,), np.dtype(np.float32), *bounds), Discrete(2)))
    for parameter in model.actor.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape)
    state = model.initial_state(ENVS)
    for _ in range(3):
        state = model.policy_step(torch.randn(ENVS, 3), state)[1]
    return model, map_leaves(torch.Tensor.detach, state)


def step_by_step(model, obs, action, following, start, resets, ended):
    """Log-probs, values and bootstraps by `step`: the memory looks ahead and forgets that."""

    def look(frame, state):
        steps = {role: torso.step(frame, state[role]) for role, torso in model.torsos.items()}
        policy = model.actor(steps[model.actor_torso][0])
        value = model.critic(model.critic_hidden(steps[model.critic_torso][0])).squeeze(-1)
        return policy, value, {role: moved for role, (_, moved) in steps.items()}

    found, state, fresh = [], start, model.initial_state(ENVS)
    for t in range(STEPS):
        state = where_rows(resets[t], fresh, state)
        policy, value, state = look(obs[t], state)
        found.append([policy.log_prob(action[t]), value, look(following[t], state)[1]])
    log_prob, value, ahead = (torch.stack(each) for each in zip(*found, strict=True))
    left = ended.clone()
    left[-1] = True
    return log_prob, value, torch.where(left, ahead, torch.cat([value[1:], value[-1:]]))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("chunk", [3, 4, 12])
@pytest.mark.parametrize("memory", [name for name in MEMORIES if name != "none"])
@torch.no_grad()
def test_the_first_pass_has_the_numbers_of_single_steps(memory, chunk, shared):
    model, start = model_of(memory, shared=shared)
    obs, action, following, resets, ended = rollout()
    expected = step_by_step(model, obs, action, following, start, resets, ended)
    seen = model.unroll(obs, action, following, start, resets, ended, chunk)
    torch.testing.assert_close(tuple(seen[:3]), expected, atol=1e-5, rtol=0)
    # Minibatches start from these states: each piece alone has the same values.
    assert len(seen.states) == STEPS // chunk
    for index, state in enumerate(seen.states):
        span = slice(index * chunk, (index + 1) * chunk)
        _, value, _ = model(obs[span], state, resets[span])
        torch.testing.assert_close(value, seen.value[span], atol=1e-5, rtol=0)


@pytest.mark.parametrize("memory", MEMORIES)
@torch.no_grad()
def test_an_episode_knows_nothing_of_another_one(memory):
    """Other frames in episodes of the same column, before and after it, and in other columns."""
    model, start = model_of(memory)
    obs, action, following, resets, ended = rollout()
    seen = model.unroll(obs, action, following, start, resets, ended, 4)
    changed, changed_following = obs + 3, following + 3
    other_start = map_leaves(lambda each: each + 3, start)
    mine = torch.zeros(STEPS, ENVS, dtype=torch.bool)
    mine[2, 0] = True  # an episode of one step, between two others
    mine[6:, 1] = True  # begins inside of a chunk, and is cut by the rollout's end
    changed[mine], changed_following[mine] = obs[mine], following[mine]
    other = model.unroll(changed, action, changed_following, other_start, resets, ended, 4)
    for name in ("log_prob", "value", "next_value"):
        before, after = getattr(seen, name), getattr(other, name)
        torch.testing.assert_close(after[mine], before[mine], atol=1e-6, rtol=0)
        assert (after[~mine] - before[~mine]).abs().max() > 1e-3


@torch.no_grad()
def test_last_frames_are_put_where_nothing_after_them_sees_them():
    """By hand: a memory that adds up what it sees, in three columns of one, no and two ends."""

    class Sum:
        def sequence(self, x, state, resets):
            totals, total = [], state["sum"]
            for each, begins in zip(x, resets, strict=True):
                total = total.masked_fill(begins.unsqueeze(-1), 0) + each
                totals.append(total)
            return torch.stack(totals), {"sum": total}

    x = torch.tensor([[1.0, 10, 100], [2, 20, 200], [3, 30, 300]]).unsqueeze(-1)
    left = torch.tensor([[0, 0, 1], [1, 0, 1], [0, 0, 0]], dtype=torch.bool)
    resets = torch.tensor([[0, 0, 0], [0, 0, 1], [1, 0, 1]], dtype=torch.bool)
    last = torch.tensor([[0.5], [0.25], [0.125]])  # of (0, 2), (1, 0), (1, 2)
    start = {"sum": torch.tensor([[1000.0], [2000.0], [3000.0]])}
    outputs, ends, after = with_last_frames(Sum(), x, last, start, resets, left)
    assert outputs.squeeze(-1).tolist() == [[1001, 2010, 3100], [1003, 2030, 200], [3, 2060, 300]]
    assert ends.flatten().tolist() == [3100.5, 1003.25, 200.125]
    assert after["sum"].flatten().tolist() == [3, 2060, 300]
