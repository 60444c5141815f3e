"""SAC's switches: critics that lose units (DroQ), noise of the state (gSDE), a flow as policy."""

import pytest
import torch

from algorithms.test_sac import CONTINUOUS, DISCRETE, SMALL, batch_of, learn
from rl_lab.algorithms.replay import ERROR
from rl_lab.core.batch import NEXT_OBS, OBS
from rl_lab.core.errors import ConfigError, UserError
from rl_lab.core.schedule import at
from rl_lab.networks.flow import FlowHead
from tiny_runs import tiny_config

DROPS, GSDE = "algorithm.critic_dropout=0.5", "algorithm.policy=gsde"


@pytest.fixture
def sac(tiny):
    """`sac(spec, …)`: the workflow of a small run that has not started."""
    return lambda spec=CONTINUOUS, *words: tiny(spec, *SMALL, *words).workflow


def test_the_target_the_critics_and_the_actor_lose_units(sac):
    """Each has masks of its own: with the same noise again, only masks can make a difference."""
    workflow = sac(CONTINUOUS, DROPS)
    rows, now, alpha = batch_of(workflow), at(workflow.config, 0), torch.tensor(0.1)
    drawn = []
    honest = workflow.masks
    workflow.masks = lambda *inputs: drawn.append(honest(*inputs)) or drawn[-1]
    learn(workflow, rows, 1)
    assert len(drawn) == 3
    assert not torch.equal(drawn[0][0], drawn[1][0]) and not torch.equal(drawn[1][0], drawn[2][0])
    found = []
    for masks in (drawn[0], drawn[0], drawn[1]):
        workflow.masks = lambda *inputs, masks=masks: masks
        workflow.noise_rng.manual_seed(0)
        found.append(workflow.bootstrap(rows, alpha, now))
    assert torch.equal(found[0], found[1]) and not torch.allclose(found[0], found[2])


@pytest.mark.parametrize("part", ["critic", "actor"])
def test_masks_reach_the_losses(sac, part):
    workflow = sac(CONTINUOUS, DROPS)
    rows = batch_of(workflow)
    noise, alpha, target = workflow.noise(rows[OBS]), torch.tensor(0.1), torch.zeros(16)
    losses = []
    for seed in (0, 0, 1):
        masks = workflow.critic.values.masks(16, 0.5, torch.Generator().manual_seed(seed))
        optimizer = workflow.optimizers()[part]
        inputs = {
            "critic": (rows[OBS], rows["action"], target, None, masks),
            "actor": (rows[OBS], workflow.critic, noise, alpha, masks),
        }[part]
        losses.append(optimizer._loss_module(*inputs)[0].item())
    assert losses[0] == losses[1] != losses[2]


def test_without_dropout_no_random_number_is_drawn_for_it(sac):
    workflow = sac()
    before = workflow.noise_rng.get_state()
    assert workflow.masks(batch_of(workflow), at(workflow.config, 0)) == ()
    assert torch.equal(workflow.noise_rng.get_state(), before)


def test_a_flow_learns_and_acts_within_bounds(sac):
    workflow = sac(CONTINUOUS, "algorithm.policy=flow", "algorithm.couplings=3")
    assert isinstance(workflow.actor.head, FlowHead) and len(workflow.actor.head.couplings) == 3
    assert workflow.fast is None
    before = [each.clone() for each in workflow.actor.parameters()]
    metrics = learn(workflow, batch_of(workflow), 3)
    assert {"entropy", "actor_loss", ERROR} <= set(metrics)
    pairs = zip(before, workflow.actor.parameters(), strict=True)
    assert all(not torch.equal(old, new) for old, new in pairs)
    obs = batch_of(workflow)[NEXT_OBS]
    sampled = [workflow.act(obs, None, deterministic=False).action for _ in range(2)]
    assert sampled[0].shape == (16, 1) and not torch.equal(*sampled)
    greedy = [workflow.act(obs, None, deterministic=True).action for _ in range(2)]
    assert torch.equal(*greedy) and max(each.abs().max() for each in sampled) < 1


@pytest.mark.parametrize("kind", ["flow", "gsde"])
def test_indices_have_neither(sac, kind):
    with pytest.raises(UserError, match=f"policy={kind} needs a flat Box"):
        sac(DISCRETE, f"algorithm.policy={kind}")


def test_noise_of_the_state_is_the_gaussian_over_all_matrices(sac):
    """Mean and spread of what is explored in one state, against what the learner believes."""
    workflow = sac(CONTINUOUS, GSDE)
    torch.manual_seed(0)
    workflow.actor.head.log_std.data += 0.3 * torch.randn_like(workflow.actor.head.log_std)
    obs = torch.tensor([[0.6, -0.8, 2.0]]).expand(40_000, -1)
    tried = workflow.act(obs, workflow.initial_state(40_000), deterministic=False).action
    believed = workflow.actor(obs[:1])
    u = tried.double().clamp(-1 + 1e-9, 1 - 1e-9).atanh()
    assert u.mean().item() == pytest.approx(believed.mean.item(), abs=0.02)
    assert u.std().log().item() == pytest.approx(believed.log_std.item(), abs=0.02)


def test_the_same_state_gets_the_same_action_until_the_noise_changes(sac):
    workflow = sac(CONTINUOUS, GSDE, "algorithm.noise_every=3")
    obs, state, tried = torch.ones(2, 3), workflow.initial_state(2), []
    for _ in range(7):
        decision = workflow.act(obs, state, deterministic=False)
        state = decision.state
        tried.append(decision.action)
    for first in (0, 3):
        assert torch.equal(tried[first], tried[first + 1])
        assert torch.equal(tried[first], tried[first + 2])
        assert not torch.isclose(tried[first], tried[first + 3]).any()
    assert not torch.equal(tried[0][0], tried[0][1])  # every environment has its own


def test_the_mean_of_gsde_is_bounded(sac):
    """A mean that runs away would leave tanh without a gradient and noise without an effect."""
    workflow = sac(CONTINUOUS, GSDE)
    head = workflow.actor.head
    torch.nn.init.constant_(head.mean.bias, 50.0)
    obs = torch.ones(4, 3)
    assert workflow.actor(obs).mean.tolist() == [[2.0]] * 4
    quiet = head.explore(workflow.actor.encoder(obs), torch.zeros(4, *head.log_std.shape))
    torch.testing.assert_close(quiet, torch.full((4, 1), 2.0).tanh())


def test_noise_of_gsde_does_not_last_for_whole_episodes_by_default(sac):
    every = sac(CONTINUOUS, GSDE).config.noise_every
    assert 0 < every < 200


def test_noise_may_last_for_an_episode(sac):
    workflow = sac(CONTINUOUS, GSDE, "algorithm.noise_every=0")
    obs, state = torch.ones(2, 3), workflow.initial_state(2)
    first = workflow.act(obs, state, deterministic=False)
    later = workflow.act(obs, first.state, deterministic=False)
    assert torch.equal(first.action, later.action)
    state = {name: each.clone() for name, each in later.state.items()}
    fresh = workflow.initial_state(2)
    for name in state:  # the first environment begins another episode
        state[name][0] = fresh[name][0]
    again = workflow.act(obs, state, deterministic=False).action
    assert not torch.equal(again[0], later.action[0]) and torch.equal(again[1], later.action[1])


def test_evaluations_leave_the_noise_alone(sac):
    workflow = sac(CONTINUOUS, GSDE)
    state = workflow.initial_state(2)
    decision = workflow.act(torch.ones(2, 3), state, deterministic=True)
    assert decision.state is state
    torch.testing.assert_close(decision.action, workflow.actor(torch.ones(2, 3)).mode())


def test_the_spread_of_noise_learns_and_does_not_teach_the_layers(sac):
    head = sac(CONTINUOUS, GSDE).actor.head
    head(torch.ones(2, 3)).log_std.sum().backward()
    assert head.log_std.grad.abs().sum() > 0
    assert all(each.grad is None for each in head.hidden.parameters())


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("algorithm.critic_dropout=1.0", "critic_dropout: must be in"),
        ("algorithm.critic_dropout=-0.1", "critic_dropout: must be in"),
        ("algorithm.couplings=0", "couplings: must be at least 1"),
        ("algorithm.policy=flows", "policy"),
    ],
)
def test_what_cannot_work_is_refused(word, message):
    with pytest.raises(ConfigError, match=message):
        tiny_config(CONTINUOUS, *SMALL, word)
