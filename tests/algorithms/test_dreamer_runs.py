"""Dreamer in small runs: what it learns from, who is taught by whom, and what is counted."""

import math
from functools import partial

import numpy as np
import pytest
import torch

import space_envs  # noqa: F401  (registers Gates-v0 and Rooms-v0)
from rl_lab.core.batch import OBS, RESET, REWARD, TERMINATED
from rl_lab.core.errors import NonFiniteError
from rl_lab.core.schedule import at
from rl_lab.core.state import fingerprint, join, split
from rl_lab.networks.mlp import as_vector, vector_size
from tiny_dreamers import play, tiny_dreamer, weights

VERSIONS = ["dreamer_v1", "dreamer_v2", "dreamer_v3"]
NO_ENTROPY = {"entropy": 0.0, "optimizer.agc": 0.0, "max_grad_norm": 1e9}


@pytest.fixture
def dreamer(tiny):
    """`dreamer(version, env, more words, option=value, …)`: an orchestrator."""
    return partial(tiny_dreamer, tiny)


def phase_of(orchestrator):
    step = orchestrator.counters.env_steps
    return {"name": "train", "type": "online", "buffer": None, "step": step}


def controlled(orchestrator, **rows):
    """One step of actor and critic in dreams from states of the buffer."""
    workflow = orchestrator.workflow
    buffer = next(iter(orchestrator.buffers.values()))
    windows = buffer.sequences(3, 6)
    states = workflow._observed(windows)
    batch = {key: each[0] for key, each in states.items()} | rows
    return workflow._actor_critic_step(batch, at(workflow.config, 0))


# -- acting ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "env"), [("dreamer_v3", "CartPole-v1"), ("dreamer_v1", "Pendulum-v1")]
)
def test_acting_follows_the_model_through_an_episode(dreamer, version, env):
    """What it remembers is what the model makes of all frames and actions so far."""
    workflow = dreamer(version, env).workflow
    rssm, space = workflow.world.rssm, workflow.context.spec.action
    size = workflow.context.spec.observation.shape[0]
    frames = torch.randn(4, 2, size, generator=torch.Generator().manual_seed(1))
    state, belief = workflow.initial_state(2), rssm.initial(2)
    previous = torch.zeros(2, vector_size(space))
    none = torch.zeros(2, dtype=torch.bool)
    for index, frame in enumerate(frames):
        decision = workflow.act(frame, state, deterministic=True)
        noise = workflow.fixed_noise(torch.tensor([index, index]))
        with torch.no_grad():
            belief, _ = rssm.observe(belief, previous, workflow.world.embed(frame), none, noise)
        state, previous = decision.state, as_vector(space, torch.as_tensor(decision.action))
        assert torch.equal(state["deter"], belief["deter"])
        assert torch.equal(state["action"], previous)


def test_greedy_actions_are_no_accident(dreamer):
    """The same frames and memory give the same action, in another process, too; frames differ."""
    first, second = (dreamer("dreamer_v3").workflow for _ in range(2))
    frame, state = torch.ones(2, 4), first.initial_state(2)
    found = [each.act(frame, state, deterministic=True) for each in (first, first, second)]
    assert all(torch.equal(each.state["stoch"], found[0].state["stoch"]) for each in found)
    draws = {tuple(first.fixed_noise(torch.tensor([index])).flatten().tolist()) for index in (0, 1)}
    assert len(draws) == 2
    again = first.fixed_noise(torch.tensor([1024]))  # longer episodes begin anew
    assert tuple(again.flatten().tolist()) in draws


@pytest.mark.parametrize("several", [False, True])
def test_forbidden_actions_are_never_taken(dreamer, several):
    """The environment raises at the first one; evaluations act greedily."""
    words = [
        "environment.wrappers=[{id: ActionMask}]",
        f"environment.kwargs={{several: {several}}}",
    ]
    hooks = "collect, update_world_model, update_controller, evaluate"
    phases = f"training.phases=[{{name: all, hooks: [{hooks}]}}]"
    orchestrator = dreamer("dreamer_v3", "Gates-v0", phases, *words, exploration_noise=0.5)
    play(orchestrator, 3)
    assert orchestrator.workflow.budget.steps > 0


def test_any_observation(dreamer):
    orchestrator = dreamer("dreamer_v3", "Rooms-v0", "environment.vectorization=sync")
    play(orchestrator, 3)
    assert orchestrator.workflow.controller_budget.steps > 0
    assert isinstance(orchestrator.workflow.world.spaces, dict)


def test_noise_on_collected_actions_follows_its_schedule(dreamer):
    """{.8 → 0 over 1024 steps}; the second call of collect begins at step 16, the third at 32."""
    orchestrator = dreamer("dreamer_v1", "Pendulum-v1", exploration_noise="lin_0.8")
    workflow = orchestrator.workflow
    assert workflow.exploration_noise == 0.8
    play(orchestrator, 3)
    assert workflow.exploration_noise == pytest.approx(0.8 * (1 - 32 / 1024))
    frame = torch.zeros(64, 3)
    greedy = workflow.act(frame, workflow.initial_state(64), deterministic=True)
    assert np.unique(np.asarray(greedy.action)).size == 1


def test_of_indices_some_are_random_while_collecting(dreamer):
    """A policy that only knows 0; half of the actions are any of the two: ¼ are 1."""
    workflow = dreamer("dreamer_v1", "CartPole-v1", exploration_noise=0.5).workflow
    torch.nn.init.zeros_(workflow.actor.output.weight.data)
    workflow.actor.output.bias.data = torch.tensor([50.0, -50.0])
    frame, state = torch.zeros(4000, 4), workflow.initial_state(4000)
    found = workflow.act(frame, state, deterministic=False)
    assert found.action.float().mean().item() == pytest.approx(0.25, abs=0.03)  # 4 errors
    assert torch.equal(found.state["action"].argmax(-1), found.action)  # it knows what was done
    assert not workflow.act(frame, state, deterministic=True).action.any()
    workflow.exploration_noise = 0.0
    assert not workflow.act(frame, state, deterministic=False).action.any()


def test_rewards_and_values_may_be_learnt_through_symlog(dreamer):
    orchestrator = dreamer("dreamer_v3", two_hot=False, symlog_scalars=True)
    play(orchestrator, 3)
    assert orchestrator.workflow.controller_budget.steps > 0
    assert orchestrator.workflow.critic.symlog and orchestrator.workflow.world.reward.symlog


# -- who is taught by whom -------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_the_world_model_learns_nothing_from_the_policy_and_the_reverse(dreamer, version):
    orchestrator = dreamer(version, "Pendulum-v1")
    workflow = orchestrator.workflow
    play(orchestrator, 2)
    names = ("world", "actor", "critic")
    before = {name: weights(getattr(workflow, name)) for name in names}
    controlled(orchestrator)
    after = {name: weights(getattr(workflow, name)) for name in names}
    assert torch.equal(before["world"], after["world"])
    assert not torch.equal(before["actor"], after["actor"])
    assert not torch.equal(before["critic"], after["critic"])
    buffer = next(iter(orchestrator.buffers.values()))
    workflow.update_world_model(buffer.sequences(3, 6), phase=phase_of(orchestrator))
    assert not torch.equal(weights(workflow.world), after["world"])
    assert torch.equal(weights(workflow.actor), after["actor"])
    assert torch.equal(weights(workflow.critic), after["critic"])


@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
def test_dynamics_gradients_reach_the_policy_through_the_model(dreamer, env):
    """Without entropy there is no other way; a reward that is the same everywhere has none."""
    orchestrator = dreamer("dreamer_v2", env, actor_gradient="dynamics", **NO_ENTROPY)
    workflow = orchestrator.workflow
    play(orchestrator, 2)
    assert controlled(orchestrator)["actor_grad_norm"] > 0
    for head in (workflow.world.reward, workflow.target_critic, workflow.world.continues):
        torch.nn.init.zeros_(head.output.weight.data)
    assert controlled(orchestrator)["actor_grad_norm"] == 0


def make_bandit(world) -> None:
    """Every decision is the last: action 1 pays 1, the others nothing. An exact model of that."""

    def imagine_step(state, action, noise):
        stoch = torch.nn.functional.pad(action, (0, world.rssm.stoch_dim - action.shape[-1]))
        return {"deter": torch.zeros_like(state["deter"]), "stoch": stoch}

    world.rssm.imagine_step = imagine_step
    world.reward.mean = lambda features: features[..., world.rssm.shape.deter + 1]
    world.continue_probability = lambda features: torch.zeros(features.shape[:-1])


@pytest.mark.parametrize("gradient", ["reinforce", "dynamics"])
def test_the_better_arm_of_a_bandit_is_found(dreamer, gradient):
    more = {"actor_gradient": gradient, "actor_rate": 0.03, "normalize_returns": False}
    workflow = dreamer("dreamer_v3", **NO_ENTROPY, **more).workflow
    make_bandit(workflow.world)
    none = torch.zeros(6, 3, dtype=torch.bool)
    states = {key: each.expand(6, 3, -1) for key, each in workflow.world.rssm.initial(1).items()}
    rows = {**states, RESET: none, TERMINATED: none, "truncated": none, REWARD: torch.zeros(6, 3)}
    now = at(workflow.config, 0)

    def chance() -> float:
        features = workflow.world.rssm.features({key: each[0] for key, each in states.items()})
        return (
            workflow.actor.evaluate_actions(features, torch.tensor([0.0, 1.0]))[0]
            .exp()
            .mean()
            .item()
        )

    assert chance() == pytest.approx(0.5, abs=0.02)
    for _ in range(40):
        workflow._actor_critic_step(rows, now)
    assert chance() > 0.8


# -- the scale of returns --------------------------------------------------------------------------


@pytest.mark.parametrize("gradient", ["reinforce", "dynamics"])
def test_the_policys_gradient_does_not_know_the_unit_of_rewards(dreamer, gradient):
    """Rewards and values a thousand times as large: the same gradient, once they are spread."""
    found = {}
    for normalized in (True, False):
        for factor in (1e2, 1e5):
            orchestrator = dreamer(
                "dreamer_v2",
                "Pendulum-v1",
                actor_gradient=gradient,
                normalize_returns=normalized,
                normalizer_rate=1.0,
                **NO_ENTROPY,
            )
            play(orchestrator, 2)
            workflow = orchestrator.workflow
            for head in (workflow.world.reward, workflow.critic, workflow.target_critic):
                head.output.weight.data.mul_(factor)
                head.output.bias.data.mul_(factor)
            workflow.actor_learner.inspected = True
            controlled(orchestrator)
            found[normalized, factor] = workflow.actor_learner.last_gradient
            assert workflow.return_percentiles.distance > (1.0 if normalized else -1.0)
    size = found[True, 1e2].abs().max().item()
    torch.testing.assert_close(found[True, 1e2], found[True, 1e5], rtol=1e-2, atol=1e-3 * size)
    size = found[False, 1e5].abs().max().item()
    torch.testing.assert_close(
        1000 * found[False, 1e2], found[False, 1e5], rtol=1e-2, atol=1e-3 * size
    )


# -- the slow critic -------------------------------------------------------------------------------


def test_the_target_network_is_copied_every_so_often(dreamer):
    orchestrator = dreamer("dreamer_v2", slow_every=3)
    workflow = orchestrator.workflow
    play(orchestrator, 2)
    first = weights(workflow.target_critic).clone()
    for number in range(1, 8):
        workflow.controller_budget.steps = number
        controlled(orchestrator)
        slow = weights(workflow.target_critic)
        if number % 3 == 0:
            assert torch.equal(slow, weights(workflow.critic))
            first = slow.clone()
        else:
            assert torch.equal(slow, first)


def test_the_target_network_follows_by_its_rate(dreamer):
    orchestrator = dreamer("dreamer_v3", slow_rate=0.25)
    workflow = orchestrator.workflow
    play(orchestrator, 2)
    before = weights(workflow.target_critic).clone()
    controlled(orchestrator)
    expected = 0.75 * before + 0.25 * weights(workflow.critic)
    torch.testing.assert_close(weights(workflow.target_critic), expected)


# -- what is counted -------------------------------------------------------------------------------


@pytest.mark.parametrize("num_envs", [1, 4, 7])
def test_gradient_steps_are_earned_by_environment_steps(dreamer, num_envs):
    """floor(.3 (steps − first)) of both kinds, at every point; nothing is owed for the first."""
    orchestrator = dreamer(
        "dreamer_v3", "CartPole-v1", f"environment.num_envs={num_envs}", replay_ratio=0.3
    )
    workflow, first = orchestrator.workflow, 16
    for cycle in range(8):
        play(orchestrator, 1)
        steps = orchestrator.counters.env_steps
        if cycle == 0:  # four frames of each environment, and windows have six
            first = max(first, steps)
        expected = math.floor(round(0.3 * max(steps - first, 0), 6))
        assert workflow.budget.steps == workflow.controller_budget.steps == expected
    assert workflow.budget.steps > 0


def test_a_resumed_run_has_nothing_to_catch_up_with(dreamer):
    """Its accounts come back: between the two hooks, too, with the states that wait."""
    first, second = (dreamer("dreamer_v2", replay_ratio=0.3) for _ in range(2))
    play(first, 3)
    for _ in range(2):  # collect and update_world_model
        first.execute(first.scheduler.next_action())
    workflow, other = first.workflow, second.workflow
    assert set(workflow.starts) >= {"deter", "stoch", RESET, REWARD, TERMINATED}
    other.set_state(join(*split(workflow.get_state())))
    phase = phase_of(first)
    for each, orchestrator in ((workflow, first), (other, second)):
        buffer = next(iter(orchestrator.buffers.values()))
        assert each.sample(buffer, hook="update_world_model", phase=phase) is None
        waiting = each.sample(buffer, hook="update_controller", phase=phase)
        assert torch.equal(waiting["deter"], workflow.starts["deter"])
    other.update_controller(waiting, phase=phase)
    assert other.starts == {}
    assert other.controller_budget.steps == other.budget.steps == workflow.budget.steps
    assert other.sample(buffer, hook="update_controller", phase=phase) is None


PHASES = (
    "training.phases=[{{name: model, duration_cycles: 6, hooks: [collect, update_world_model]}},{}]"
)


def test_a_phase_that_only_collects_earns_nothing(dreamer):
    words = (
        "training.phases=[{name: explore, duration_steps: 64, hooks: [collect]},"
        "{name: learn, hooks: [collect, update_world_model, update_controller]}]"
    )
    orchestrator = dreamer("dreamer_v3", "CartPole-v1", words, replay_ratio=0.5)
    play(orchestrator, 4)
    assert orchestrator.workflow.budget.steps == 0
    play(orchestrator, 1)
    assert orchestrator.workflow.budget.steps == orchestrator.workflow.controller_budget.steps == 8


@pytest.mark.parametrize("kind", ["offline", "online"])
def test_a_phase_may_teach_the_controller_alone(dreamer, kind):
    """Offline: a step for each call. Online: as many as its environment steps earn, 16 / 8 = 2."""
    second = {
        "offline": "{name: dream, type: offline, duration_updates: 5, hooks: [update_controller]}",
        "online": "{name: dream, duration_cycles: 5, hooks: [collect, update_controller]}",
    }[kind]
    orchestrator = dreamer("dreamer_v3", "CartPole-v1", PHASES.format(second))
    workflow = orchestrator.workflow
    play(orchestrator, 6)
    # 96 steps, 80 of them after the warm-up; the states of the last 2 gradient steps wait
    assert (workflow.budget.steps, workflow.controller_budget.steps) == (10, 0)
    world, actor = weights(workflow.world).clone(), weights(workflow.actor).clone()
    counted = []
    for _ in range(5):
        play(orchestrator, 1)
        counted.append(workflow.controller_budget.steps)
    assert counted == ([2, 3, 4, 5, 6] if kind == "offline" else [2, 4, 6, 8, 10])
    assert torch.equal(weights(workflow.world), world)
    assert not torch.equal(weights(workflow.actor), actor)


def test_a_bad_number_changes_nothing(dreamer):
    orchestrator = dreamer("dreamer_v3")
    workflow = orchestrator.workflow
    play(orchestrator, 3)
    before = fingerprint(workflow.get_state())
    buffer = next(iter(orchestrator.buffers.values()))
    windows = buffer.sequences(3, 6, 2)
    windows[REWARD][1, 2] = math.nan
    with pytest.raises(NonFiniteError, match="of world_model"):
        workflow.update_world_model(windows, phase=phase_of(orchestrator))
    assert fingerprint(workflow.get_state()) == before
    with pytest.raises(NonFiniteError, match="of world_model"):
        workflow.update(windows, phase=phase_of(orchestrator))
    assert fingerprint(workflow.get_state()) == before
    rows = workflow._observed(buffer.sequences(3, 6, 2))
    rows["deter"][1, 0] = math.nan
    with pytest.raises(NonFiniteError):
        workflow.update_controller(rows, phase=phase_of(orchestrator))
    assert fingerprint(workflow.get_state()) == before


def test_ends_of_episodes_are_no_place_to_dream_from(dreamer):
    """Only rows that are not terminal teach the policy: with none, there is no gradient."""
    orchestrator = dreamer("dreamer_v3", **NO_ENTROPY)
    play(orchestrator, 2)
    over = torch.ones(6, 3, dtype=torch.bool)
    assert controlled(orchestrator, **{TERMINATED: over})["actor_grad_norm"] == 0
    assert controlled(orchestrator, **{TERMINATED: ~over})["actor_grad_norm"] > 0


def test_what_it_imagines_depends_on_no_later_action(dreamer):
    """An open-loop prediction: the same seed, another action in the last step but one."""
    orchestrator = dreamer("dreamer_v3")
    play(orchestrator, 2)
    buffer = next(iter(orchestrator.buffers.values()))
    seen = {key: each[0] for key, each in buffer.sequences(3, 6).items()}
    actions = torch.zeros(9, 3, dtype=torch.long)
    found = orchestrator.workflow.imagine(horizon=4, seen=seen, actions=actions)
    assert found[OBS].shape == (4, 3, 4)
    assert found[REWARD].shape == (4, 3)
    actions[2, 0] = 1
    other = orchestrator.workflow.imagine(horizon=4, seen=seen, actions=actions)
    changed = found[OBS] != other[OBS]
    assert not changed[:2].any()
    assert changed[2:, 0].any()
    assert not changed[:, 1:].any()


def test_where_ends_are_not_learned_dreams_go_on(dreamer):
    """The head of continuations is as it was made: it would halve every future."""
    orchestrator = dreamer("dreamer_v1", "Pendulum-v1", gamma=1.0, continue_scale=0.0)
    play(orchestrator, 2)
    workflow = orchestrator.workflow
    for head, value in ((workflow.world.reward, 1.0), (workflow.critic, 10.0)):
        torch.nn.init.zeros_(head.output.weight.data)
        torch.nn.init.constant_(head.output.bias.data, value)
    # 3 rewards of 1, and λ = .95 of them: 10 + 1 + .95 + .9025 after the first, 11 in the last step
    firsts = 10 + 1 + 0.95 + 0.95**2, 10 + 1 + 0.95, 11
    assert controlled(orchestrator)["return"].item() == pytest.approx(sum(firsts) / 3, rel=1e-5)
