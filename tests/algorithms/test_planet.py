"""PlaNet: its loss by hand, plans against models that are known, belief, noise and accounts."""

import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rl_lab.algorithms.dreamer.world_model import Observed, WorldModel
from rl_lab.algorithms.planet import PlaNetConfig, overshooting_loss, planet_loss, reward_sums
from rl_lab.core.batch import OBS, PREVIOUS_ACTION, RESET, REWARD, TERMINATED
from rl_lab.core.errors import ConfigError, UserError
from rl_lab.core.learner import Learner
from rl_lab.core.spec import Box, Discrete, EnvSpec
from rl_lab.planning.cem import CEMConfig, categorical_cem, cem, planner_noise
from tiny_runs import tiny_config

MODEL = {"deter": 8, "hidden": 8, "stoch": 4, "units": 8, "layers": 1}
PLANNER = {"horizon": 3, "candidates": 12, "elites": 3, "iterations": 2}
SIZES = [f"algorithm.{key}={value}" for key, value in MODEL.items()]
PLANET = [
    "algorithm.name=planet",
    *SIZES,
    *(f"algorithm.planner.{key}={value}" for key, value in PLANNER.items()),
    "algorithm.batch_size=4",
    "algorithm.batch_length=8",
    "algorithm.learning_starts=32",
    "algorithm.train_every=16",
    "algorithm.replay_ratio=0.1",
]


def box(size: int) -> Box:
    bound = np.ones(size, np.float32)
    return Box((size,), np.dtype(np.float32), -bound, bound)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small_world(**more) -> WorldModel:
    torch.manual_seed(0)
    return WorldModel(PlaNetConfig(**{**MODEL, **more}), EnvSpec("small", box(3), box(2)))


def rows(length: int, batch: int) -> dict:
    reset = torch.zeros(length, batch, dtype=torch.bool)
    reset[0] = True
    return {
        OBS: torch.randn(length, batch, 3, generator=stream(1)),
        PREVIOUS_ACTION: torch.randn(length, batch, 2, generator=stream(2)),
        REWARD: torch.randn(length, batch, generator=stream(3)),
        RESET: reset,
        TERMINATED: torch.zeros(length, batch, dtype=torch.bool),
    }


def scales(**own: float) -> dict:
    plain = {"kl": 1.0, "reward": 1.0, "continue": 1.0, "overshooting": 1.0, "free_nats": 0.0}
    return {name: torch.tensor(value) for name, value in (plain | own).items()}


# -- the loss --------------------------------------------------------------------------------------


def test_the_loss_is_the_weighted_sum_of_its_parts():
    world, batch = small_world(), rows(5, 2)
    noise = world.noise((5, 2), stream())
    loss, parts, _ = planet_loss(
        world, batch, noise, None, scales(**{"kl": 2.0, "reward": 10.0, "continue": 3.0})
    )
    expected = 2 * parts["kl"] + 10 * parts["reward"] + 3 * parts["continue"] + parts["decode/obs"]
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    seen = world.prediction_losses(world.rssm.initial(2), batch, noise)
    assert parts["reward"].item() == pytest.approx(seen.losses["reward"].mean().item(), rel=1e-5)
    assert parts["kl"].item() == pytest.approx(
        world.rssm.kl(seen.posterior, seen.prior).mean().item(), rel=1e-5
    )


def test_free_nats_are_per_frame_and_move_nothing():
    world, batch = small_world(), rows(5, 2)
    noise = world.noise((5, 2), stream())
    seen = world.prediction_losses(world.rssm.initial(2), batch, noise)
    divergence = world.rssm.kl(seen.posterior, seen.prior)
    between = divergence.median()  # some frames are below it, some above
    with_some, _, _ = planet_loss(world, batch, noise, None, scales(free_nats=between.item()))
    without, _, _ = planet_loss(world, batch, noise, None, scales(kl=0.0))
    counted = torch.where(divergence > between, divergence, between).mean()
    assert (with_some - without).item() == pytest.approx(counted.item(), rel=1e-4)
    plenty, _, _ = planet_loss(world, batch, noise, None, scales(free_nats=1e4))
    wanted = torch.autograd.grad(without, list(world.parameters()), allow_unused=True)
    found = torch.autograd.grad(plenty, list(world.parameters()), allow_unused=True)
    for one, other in zip(wanted, found, strict=True):
        zero = torch.zeros(1)
        assert torch.allclose(zero if one is None else one, zero if other is None else other)


def far_parts(length=6, batch=2, distance=3):
    world, data = small_world(), rows(length, batch)
    data[RESET][3, 1] = True  # a new episode in the second column
    seen = world.prediction_losses(
        world.rssm.initial(batch), data, world.noise((length, batch), stream())
    )
    noise = world.noise((distance, length, batch), stream(7))
    return world, data, seen, noise


def test_overshooting_is_a_loop_over_frames():
    world, data, seen, noise = far_parts()
    action, reset = data[PREVIOUS_ACTION], data[RESET]
    none = torch.tensor(0.0)
    found = overshooting_loss(world.rssm, seen, action, reset, noise, none)
    expected = []
    for ahead in (2, 3):
        values = []
        for t in range(6 - ahead):
            for b in range(2):
                if reset[t + 1 : t + ahead + 1, b].any():
                    continue
                state = {key: value[t, b : b + 1] for key, value in seen.states.items()}
                for step in range(ahead):
                    state = world.rssm.imagine_step(
                        state, action[t + step + 1, b : b + 1], noise[step, t, b : b + 1]
                    )
                prior = world.rssm.prior(state["deter"])
                values.append(world.rssm.kl(seen.posterior[t + ahead, b : b + 1], prior))
        expected.append(torch.cat(values).mean())
    assert found.item() == pytest.approx(torch.stack(expected).mean().item(), rel=1e-5)


def test_overshooting_moves_priors_towards_posteriors_and_not_the_reverse():
    world, data, seen, noise = far_parts()
    posterior = seen.posterior.detach().requires_grad_()
    states = {key: value.detach() for key, value in seen.states.items()}
    still = Observed(states, posterior, seen.prior, {})
    loss = overshooting_loss(
        world.rssm, still, data[PREVIOUS_ACTION], data[RESET], noise, torch.tensor(0.0)
    )
    loss.backward()
    assert posterior.grad is None
    assert world.rssm.prior_output.weight.grad.abs().max() > 0
    assert world.rssm.posterior_output.weight.grad is None


def test_overshooting_adds_to_the_loss():
    world, batch = small_world(), rows(6, 2)
    noise, far = world.noise((6, 2), stream()), world.noise((3, 6, 2), stream(1))
    plain, _, _ = planet_loss(world, batch, noise, None, scales())
    more, parts, _ = planet_loss(world, batch, noise, far, scales(overshooting=0.5))
    assert (more - plain).item() == pytest.approx(0.5 * parts["overshooting"].item(), rel=1e-4)


# -- plans in worlds that are known ----------------------------------------------------------------


class Known:
    """A world of one number, which an action moves; what it pays for arriving is given."""

    def __init__(self, pays, ends=None, space=None):
        self.rssm, self.reward, self.action = self, SimpleNamespace(mean=pays), space or box(1)
        self.ends = ends

    def imagine_step(self, state, action, noise):
        moved = action.argmax(-1).float() if isinstance(self.action, Discrete) else action[:, 0]
        return {"deter": state["deter"] + moved[:, None], "stoch": noise}

    def features(self, state):
        return state["deter"][:, 0]

    def continue_probability(self, features):
        return torch.where(features >= self.ends, 0.0, 1.0)


def planned(world, starts, *, ends=False, gamma=1.0, horizon=3, actions=1):
    config = CEMConfig(horizon=horizon, candidates=200, elites=20, iterations=8)
    discrete = isinstance(world.action, Discrete)
    belief = {"deter": torch.tensor(starts)[:, None], "stoch": torch.zeros(len(starts), 1)}
    evaluate = partial(
        reward_sums, world, belief, torch.zeros(horizon, 200, 1), gamma=gamma, ends=ends
    )
    first = torch.full((len(starts), horizon, actions), 1 / actions if discrete else 0.0)
    noise = planner_noise(config, len(starts), actions, stream(), discrete=discrete)
    return (categorical_cem if discrete else cem)(evaluate, first, noise, config)


def test_a_plan_is_paid_for_where_its_actions_lead():
    # from .5 and from -.25, to 0 at once and stay: the first action is -.5 (.25), the others 0.
    # If rewards were those of the state before the action, the last action would not matter, and
    # the first reward would not depend on anything.
    found = planned(Known(lambda place: -place.square()), [0.5, -0.25])
    expected = torch.tensor([[-0.5, 0.0, 0.0], [0.25, 0.0, 0.0]])
    assert (found.mean[..., 0] - expected).abs().max() < 0.02


def test_rewards_behind_an_end_do_not_count():
    # every step pays 1; the last one may end it all and pay 10 for that: at a place of 2 or more.
    # From 1 the end is one step of +1 away. With ends: 10 at once, or 1 + 1 + 10 by waiting.
    def pays(place):
        return torch.where(place >= 2, 10.0, 1.0)

    two_ways = Discrete(2)  # stay, or go on by 1
    waiting = planned(Known(pays, ends=2, space=two_ways), [1.0], ends=True, actions=2)
    assert waiting.mean[0].argmax(-1).tolist() == [0, 0, 1]
    # if ends are not foreseen, being there pays for ever: go at once
    blind = planned(Known(pays, ends=2, space=two_ways), [1.0], ends=False, actions=2)
    assert blind.mean[0].argmax(-1)[0] == 1
    # one who hardly looks ahead takes the 10
    hasty = planned(Known(pays, ends=2, space=two_ways), [1.0], ends=True, actions=2, gamma=0.1)
    assert hasty.mean[0].argmax(-1)[0] == 1


def test_rewards_by_hand():
    # from 1 by +1, +1: arrives at 2 and 3, paid 2 and 3. gamma .5: 2 + .5 * 3 = 3.5. If there is an
    # end at 2, 2 alone. From 0: 1 + .5 * 2 = 2, with no end on the way.
    world = Known(lambda place: place, ends=2)
    belief = {"deter": torch.tensor([[1.0], [0.0]]), "stoch": torch.zeros(2, 1)}
    both = torch.ones(2, 1, 2, 1)
    latents = torch.zeros(2, 1, 1)
    free = reward_sums(world, belief, latents, both, gamma=0.5, ends=False)
    ending = reward_sums(world, belief, latents, both, gamma=0.5, ends=True)
    assert free.tolist() == [[3.5], [2.0]] and ending.tolist() == [[2.0], [2.0]]


def test_a_candidate_keeps_its_random_numbers_in_every_environment():
    world = Known(None)
    world.features = lambda state: state["stoch"][:, 0]
    world.reward.mean = lambda features: features
    belief = {"deter": torch.zeros(2, 1), "stoch": torch.zeros(2, 1)}
    latents = torch.tensor([[[1.0], [2.0], [3.0]]])  # one step, three candidates
    found = reward_sums(world, belief, latents, torch.zeros(2, 3, 1, 1), gamma=1.0, ends=False)
    assert found.tolist() == [[1.0, 2.0, 3.0]] * 2


# -- acting ----------------------------------------------------------------------------------------


@pytest.fixture
def pendulum(tiny):
    """`pendulum(*overrides)`: PlaNet in it, built and not trained."""
    return lambda *more: tiny("Pendulum-v1:random", *PLANET, *more).workflow


def frames(count: int) -> torch.Tensor:
    return torch.randn(count, 3, generator=stream(5))


def test_all_environments_at_once_are_each_of_them_alone(pendulum):
    workflow, obs = pendulum("algorithm.planner.warm_start=true"), frames(3)
    state = workflow.initial_state(3)
    state = workflow.act(obs, state, deterministic=True).state  # not an empty one
    together = workflow.act(obs, state, deterministic=True)
    for index in range(3):
        own = slice(index, index + 1)
        alone = workflow.act(
            obs[own], {key: each[own] for key, each in state.items()}, deterministic=True
        )
        assert torch.allclose(together.action[own], alone.action, atol=1e-4)
        for key, each in alone.state.items():
            assert torch.allclose(together.state[key][own], each, atol=1e-4), key


def test_mppi_weighs_plans_by_how_good_they_are(pendulum):
    """The same numbers are drawn: a high temperature is CEM, a low one is the best plan alone."""
    obs = frames(3)

    def first_action(*words):
        workflow = pendulum("algorithm.planner.iterations=1", *words)
        torch.nn.init.normal_(workflow.world.reward.output.weight, generator=stream(3))
        return workflow.act(obs, workflow.initial_state(3), deterministic=True).action

    def mppi(temperature):
        return first_action(
            "algorithm.planner.type=mppi", f"algorithm.planner.temperature={temperature}"
        )

    assert torch.allclose(mppi(1e6), first_action(), atol=1e-4)
    best = first_action("algorithm.planner.elites=1")
    assert torch.allclose(mppi(1e-6), best, atol=1e-4)
    assert not torch.allclose(best, first_action(), atol=1e-2)


def test_a_run_with_mppi(tiny):
    run = tiny("Pendulum-v1:random", *PLANET, "algorithm.planner.type=mppi")
    for _ in range(6):
        run.execute(run.scheduler.next_action())
    assert run.counters.env_steps == 192 and run.workflow.budget.steps > 0
    with pytest.raises(UserError, match="mppi plans Box actions, 'CartPole-v1' has Discrete"):
        tiny("CartPole-v1:random", *PLANET, "algorithm.planner.type=mppi")


def test_a_belief_knows_what_was_done(pendulum):
    workflow, obs = pendulum(), frames(1)
    first = workflow.act(obs, workflow.initial_state(1), deterministic=False)
    assert torch.equal(first.state["action"], first.action)  # noise included
    beliefs = [
        workflow.act(obs, {**first.state, "action": torch.full((1, 1), done)}, deterministic=True)
        for done in (-1.0, 1.0)
    ]
    assert not torch.equal(beliefs[0].state["deter"], beliefs[1].state["deter"])
    # and it is the belief of the model's own sequence: [reset frame, next frame]
    world, nothing = workflow.world, torch.zeros(2, 1, 4)
    action = torch.stack([torch.zeros(1, 1), first.action])
    reset = torch.tensor([[True], [False]])
    states, _, _ = world.rssm.observe_sequence(
        world.rssm.initial(1), action, world.embed(torch.stack([obs, obs])), reset, nothing
    )
    calm = workflow.act(obs, workflow.initial_state(1), deterministic=True).state
    after = workflow.act(obs, {**calm, "action": first.action}, deterministic=True).state
    assert torch.allclose(after["deter"], states["deter"][1], atol=1e-6)
    assert torch.allclose(after["stoch"], states["stoch"][1], atol=1e-6)


def test_noise_is_for_collecting_only(pendulum):
    workflow, obs = pendulum("algorithm.exploration_noise=5"), frames(64)
    state = workflow.initial_state(64)
    noisy = workflow.act(obs, state, deterministic=False).action
    assert noisy.abs().max() <= 1.0 and (noisy.abs() == 1.0).float().mean() > 0.6
    calm = [workflow.act(obs, state, deterministic=True).action for _ in range(2)]
    assert torch.equal(*calm) and (calm[0].abs() < 1.0).all()


def test_a_warm_start_is_the_last_plan_one_step_later(pendulum):
    workflow, obs = pendulum("algorithm.planner.warm_start=true"), frames(2)
    state = workflow.initial_state(2)
    assert state["plan"].shape == (2, 3, 1) and not state["plan"].any()
    decided = workflow.act(obs, state, deterministic=True)
    assert not decided.state["plan"][:, -1].any() and decided.state["plan"][:, 0].any()
    again = workflow.act(obs, {**state, "plan": torch.full((2, 3, 1), 0.9)}, deterministic=True)
    assert not torch.equal(again.action, decided.action)
    assert "plan" not in pendulum().initial_state(2)


def test_a_warm_start_of_discrete_actions_leaves_room_for_others(tiny):
    words = ["algorithm.planner.warm_start=true", "algorithm.planner.elites=1"]
    run = tiny("CartPole-v1:random", *PLANET, *words)
    decided = run.workflow.act(torch.zeros(2, 4), run.workflow.initial_state(2), deterministic=True)
    plan = decided.state["plan"]
    assert torch.allclose(plan.sum(-1), torch.ones(2, 3)) and (plan[:, -1] == 0.5).all()
    assert 0.25 <= plan.min() < 0.26  # half of an even chance at least, however sure it was


def test_masked_actions_are_never_taken(tiny):
    masked = ["environment.id='space_envs:Gates-v0'", "environment.wrappers=[{id: ActionMask}]"]
    run = tiny("CartPole-v1:random", *PLANET, *masked)
    for _ in range(8):  # it raises where a forbidden action is taken
        run.execute(run.scheduler.next_action())
    assert run.counters.env_steps == 256 and run.workflow.budget.steps > 0
    space = run.environment.spec.observation.parts
    obs = {name: torch.zeros(6, *part.shape) for name, part in space.items()}
    obs["action_mask"][:, 3] = 1
    decided = run.workflow.act(obs, run.workflow.initial_state(6), deterministic=True)
    assert decided.action.tolist() == [3] * 6


# -- learning --------------------------------------------------------------------------------------


def test_gradient_steps_are_those_that_were_earned(tiny):
    run = tiny("Pendulum-v1:random", *PLANET)
    for _ in range(12):
        run.execute(run.scheduler.next_action())
    # 6 x 64 steps, 32 of them random: 0.1 x 352 = 35.2
    assert run.counters.env_steps == 384
    assert run.workflow.budget.steps == 35


@pytest.fixture(scope="module")
def echo():
    """An environment that shows the action before, and pays for it: obs = a, reward = a²."""
    generator = stream(11)

    def window(length, batch):
        action = 2 * torch.rand(length, batch, 1, generator=generator) - 1
        reset = torch.zeros(length, batch, dtype=torch.bool)
        reset[0] = True
        action[0] = 0
        return {
            OBS: action.clone(),
            PREVIOUS_ACTION: action,
            REWARD: action[..., 0].square(),
            RESET: reset,
            TERMINATED: torch.zeros(length, batch, dtype=torch.bool),
        }

    return window


def test_the_model_learns_what_an_action_does_and_not_what_the_last_one_did(tiny, echo):
    sizes = [*(each.replace("=8", "=32") for each in PLANET), "algorithm.free_nats=0"]
    run = tiny("MountainCarContinuous-v0:random", *sizes)
    workflow = run.workflow
    world = WorldModel(workflow.config, EnvSpec("echo", box(1), run.environment.spec.action))
    workflow.learner = Learner(world, planet_loss, workflow.config.optimizer)
    for _ in range(250):
        metrics = workflow._step(echo(6, 32), workflow.config)
    assert metrics["reward"] < 0.01
    seen, future = echo(3, 64), echo(6, 64)
    actions = future[PREVIOUS_ACTION][1:]
    found = workflow.imagine(horizon=5, seen=seen, actions=actions)
    assert found[OBS].shape == (5, 64, 1) and found[REWARD].shape == (5, 64)

    def explained(predicted, truth):
        return (1 - (predicted - truth).square().mean() / truth.var()).item()

    assert explained(found[OBS], actions) > 0.9
    assert explained(found[REWARD], actions[..., 0].square()) > 0.8
    late = workflow.imagine(horizon=4, seen=seen, actions=actions[1:])
    assert explained(late[OBS], actions[:-1]) < 0.1  # told one action too late, it is wrong
    assert math.isfinite(found["continues"].sum()) and (found["continues"] > 0.5).all()


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch_length": 1}, "batch_length must be at least 2, got 1"),
        ({"overshooting": 1}, "overshooting must be 0, or from 2 to batch_length - 1, got 1"),
        ({"overshooting": 50}, "overshooting must be 0, or from 2 to batch_length - 1, got 50"),
        ({"free_nats": -1.0}, "free_nats must be 0 or more, got -1"),
        ({"learning_rate": 0.0}, "learning_rate must be positive, got 0"),
        ({"deter": 0}, "deter must be 1 or more, got 0"),
    ],
)
def test_what_cannot_work_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        PlaNetConfig(**wrong)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("environment.normalize_obs=true", "sees frames as they are"),
        ("network.memory.type=gru", "the world model is the memory"),
        ("buffers={replay: {type: episodes, burn_in: 2}}", "burn_in must be 0: planet learns"),
        ("buffers.replay.latents=true", "latents must be false: planet keeps no states"),
        ("algorithm.optimizer.accumulate=2", "cannot be cut into pieces"),
        ("algorithm.planner.elites=2000", "must be at most candidates"),
        ("algorithm.planner.type=sem", "must be 'cem' or 'mppi', got 'sem'"),
        ("algorithm.planner.temperature=1", "planner.temperature: has no use with type cem"),
        ("algorithm.overshooting_scale=-1", "overshooting_scale: must be 0 or more, got -1"),
    ],
)
def test_combinations_that_cannot_work_are_refused(word, message):
    with pytest.raises(ConfigError, match=message):
        tiny_config("Pendulum-v1:random", "algorithm.name=planet", word)


def test_other_actions_are_declined(tiny):
    with pytest.raises(UserError, match="planet plans Box and Discrete actions"):
        tiny("CartPole-v1:random", *PLANET, "environment.id='space_envs:Switches-v0'")
