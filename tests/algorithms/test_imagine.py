"""Dreams on request: who acts in them, where they begin, and what is refused."""

import pytest
import torch

from rl_lab.algorithms.dreamer.open_loop import predict
from rl_lab.core.batch import ACTION, OBS, PREVIOUS_ACTION, RESET, REWARD
from rl_lab.core.errors import UserError
from rl_lab.core.tree import picked
from rl_lab.planning.plans import shifted

SIZES = {"deter": 8, "hidden": 8, "stoch": 3, "units": 8, "layers": 1, "channels": 2}
SIZES |= {"batch_length": 6, "train_every": 16, "learning_starts": 10_000}  # random actions
PLANNER = {"horizon": 3, "candidates": 12, "elites": 3, "iterations": 2}


@pytest.fixture
def dreams(tiny):
    """`dreams(algorithm, env, option=value, …)`: an orchestrator after 16 vector steps."""

    def make(name, env="Pendulum-v1", *, collects=1, **options):
        own = {**SIZES, **options}
        if name == "planet":
            own |= {f"planner.{key}": each for key, each in PLANNER.items()}
        words = [f"algorithm.{key}={value}" for key, value in own.items()]
        run = tiny(f"{env}:random", f"algorithm.name={name}", *words)
        for _ in range(collects):
            run.execute("collect")
        return run

    return make


def windows(run, count=3):
    return picked(run.buffers["replay"].sequences(count, 6), 0)


@pytest.mark.parametrize(
    ("name", "env"),
    [
        ("dreamer_v3", "CartPole-v1"),
        ("dreamer_v1", "Pendulum-v1"),
        ("planet", "CartPole-v1"),
        ("planet", "Pendulum-v1"),
    ],
)
def test_without_actions_the_policy_acts(dreams, name, env):
    """What it did leads to the same dream when it is told; doing something else does not."""
    run = dreams(name, env)
    workflow, seen = run.workflow, windows(run)
    found = workflow.imagine(horizon=4, seen=seen)
    assert found[ACTION].shape == (4, 3, *workflow.context.spec.action.shape)
    assert found[OBS].shape[:2] == found[REWARD].shape == found["continues"].shape == (4, 3)
    told = workflow.imagine(horizon=4, seen=seen, actions=found[ACTION])
    assert all(torch.equal(told[key], found[key]) for key in found)
    other = workflow.imagine(horizon=4, seen=seen, actions=1 - found[ACTION])
    assert not torch.equal(other[OBS], found[OBS])
    assert not found[OBS].requires_grad


def test_the_actor_is_asked_in_each_state_of_the_dream(dreams):
    run = dreams("dreamer_v1")
    workflow, seen = run.workflow, windows(run)
    found, rng = workflow.imagine(horizon=3, seen=seen, seed=7), torch.Generator().manual_seed(7)
    state = workflow.imagination.start(seen, rng)
    for action in found[ACTION]:
        expected = workflow.actor.mode(workflow.world.rssm.features(state))
        assert torch.equal(action, expected)
        state, _, _ = workflow.imagination.step(state, action, rng)
    assert len(found[ACTION].unique()) > 1
    again = workflow.imagine(horizon=3, seen=seen, seed=8)
    assert not torch.equal(again[ACTION][0], found[ACTION][0])  # of other latents
    assert not torch.equal(again[OBS], found[OBS])


@pytest.mark.parametrize("name", ["dreamer_v1", "dreamer_v3", "planet"])
def test_dreams_begin_with_drawn_latents(dreams, name):
    """As in learning: each frame's latent is a draw from the posterior, not its likeliest value."""
    run = dreams(name)
    workflow, seen = run.workflow, windows(run)
    rssm, world = workflow.world.rssm, workflow.world
    expected, drawn = rssm.initial(3), world.noise((6, 3), torch.Generator().manual_seed(4))
    embeds = world.embed(seen[OBS])
    with torch.no_grad():
        for at in range(6):
            action = seen[PREVIOUS_ACTION][at]
            expected, _ = rssm.observe(expected, action, embeds[at], seen[RESET][at], drawn[at])
    found = workflow.imagination.start(seen, torch.Generator().manual_seed(4))
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    other = workflow.imagination.start(seen, torch.Generator().manual_seed(5))
    assert not torch.equal(found["stoch"], other["stoch"])


@pytest.mark.parametrize("warm", [False, True])
def test_the_planner_plans_anew_in_each_state_of_the_dream(dreams, warm):
    run = dreams("planet", **{"planner.warm_start": warm})
    workflow, seen = run.workflow, windows(run)
    found, rng = workflow.imagine(horizon=3, seen=seen), torch.Generator().manual_seed(0)
    state, first = workflow.imagination.start(seen, rng), None
    for action in found[ACTION]:
        with torch.no_grad():
            fixed = torch.Generator().manual_seed(0)
            plan = workflow.plan(state, first, fixed, shared=True)
        assert torch.equal(action, plan.action)
        first = shifted(plan.mean) if warm else None
        state, _, _ = workflow.imagination.step(state, action, rng)


@pytest.mark.parametrize("name", ["dreamer_v3", "planet"])
def test_without_frames_it_goes_on_from_the_newest_ones(dreams, name):
    run = dreams(name)
    newest = run.buffers["replay"].newest(5)
    assert len(newest["reset"]) == 5
    found = run.workflow.imagine(horizon=2)
    expected = run.workflow.imagine(horizon=2, seen=newest)
    assert found[OBS].shape == (2, 1, 3)
    assert all(torch.equal(found[key], expected[key]) for key in found)


@pytest.mark.parametrize("name", ["dreamer_v3", "planet"])
def test_what_is_missing_is_said_in_one_line(dreams, name):
    run = dreams(name)
    actions = torch.zeros(3, 3, 1)
    with pytest.raises(UserError, match=r"as many `actions` as its horizon, 4, and got 3: [^\n]+$"):
        run.workflow.imagine(horizon=4, seen=windows(run), actions=actions)
    assert len(run.workflow.imagine(horizon=2, seen=windows(run), actions=actions)[REWARD]) == 2
    empty = dreams(name, collects=0)
    with pytest.raises(UserError, match=r"^imagine has no frames to begin after: pass `seen`"):
        empty.workflow.imagine(horizon=2)


def test_a_world_without_a_policy_must_be_told_what_to_do(dreams):
    run = dreams("dreamer_v3")
    imagination, context = run.workflow.imagination, run.workflow.context
    with pytest.raises(UserError, match=r"no policy to imagine with: pass `actions`"):
        predict(imagination, None, context, 2, seen=windows(run))
    actions = torch.zeros(2, 3, 1)
    found = predict(imagination, None, context, 2, seen=windows(run), actions=actions)
    assert torch.equal(found[ACTION], actions)
