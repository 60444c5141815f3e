"""World Models: the controller and its dreams by hand, who sees what and when, what is refused."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from rl_lab.algorithms.world_models.candidates import (
    LATENT,
    controller_features,
    controls,
    decided,
    imagine_step,
    imagined_returns,
)
from rl_lab.algorithms.world_models.mdn_rnn import MDNRNN, Prediction
from rl_lab.algorithms.world_models.vae import draw
from rl_lab.algorithms.world_models.world_models import WorldModelsConfig
from rl_lab.core.batch import OBS, PREVIOUS_ACTION, RESET, TERMINATED
from rl_lab.core.errors import ConfigError, UserError
from rl_lab.core.spec import Box, Discrete
from tiny_runs import tiny_config
from tiny_world_models import ONE, WORDS

UNIT = Box((1,), np.dtype(np.float32), -np.ones(1, np.float32), np.ones(1, np.float32))


def test_controllers_by_hand():
    # Two controllers, two features, one output: weights and then the bias.
    parameters = torch.tensor([[1.0, 2.0, 0.5], [0.0, -1.0, 0.0]])
    features = torch.tensor([[[1.0, 1.0], [2.0, 0.0]], [[5.0, 3.0], [0.0, 0.0]]])
    raw = controls(parameters, features, 1)
    assert raw.squeeze(-1).tolist() == [[3.5, 2.5], [-3.0, 0.0]]
    # Two outputs: rows of weights one after the other, then both biases.
    two = controls(torch.tensor([[1.0, 2.0, 3.0, 4.0, 10.0, 20.0]]), torch.ones(1, 1, 2), 2)
    assert two.tolist() == [[[13.0, 27.0]]]


def test_decisions_are_bounded_or_the_largest():
    assert decided(UNIT, torch.tensor([[0.0], [1e3]]), ["tanh"]).tolist() == [[0.0], [1.0]]
    assert decided(Discrete(3), torch.tensor([[0.1, 3.0, -1.0]]), []).tolist() == [1]


def test_each_action_dimension_has_its_own_squashing():
    """−1 is the lower bound of the environment, 1 the upper one."""
    ones = np.ones(3, np.float32)
    space = Box((3,), np.dtype(np.float32), -ones, ones)
    raw = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [-1.0, -1.0, -1.0], [9e9, 9e9, 9e9]])
    steer, gas, brake = decided(space, raw, ["tanh", "sigmoid", "clipped_tanh"]).unbind(-1)
    up, half = math.tanh(1.0), math.tanh(0.5)  # 2 · sigmoid(1) − 1 = tanh(1/2)
    assert steer.tolist() == pytest.approx([0.0, up, -up, 1.0])
    assert gas.tolist() == pytest.approx([0.0, half, -half, 1.0])
    assert brake.tolist() == pytest.approx([-1.0, 2 * up - 1, -1.0, 1.0])


@pytest.mark.needs("cma")
@pytest.mark.parametrize("names", ["[tanh,sigmoid]", "[tanh,tanh,tanh]"])
def test_a_squashing_for_another_number_of_actions_is_refused(tiny, names):
    found = f"algorithm.squash names {names.count(',') + 1} functions, and 'PixelTrack-v0' has 1"
    with pytest.raises(UserError, match=found):
        tiny(*WORDS, ONE, f"algorithm.squash={names}")
    assert tiny(*WORDS, ONE, "algorithm.squash=[sigmoid]").workflow.squash == ["sigmoid"]
    assert tiny(*WORDS, ONE).workflow.squash == ["tanh"]


def test_an_unknown_squashing_is_refused():
    with pytest.raises(ConfigError, match=r"squash.*'tanh', 'sigmoid' or 'clipped_tanh'"):
        tiny_config(*WORDS, ONE, "algorithm.squash=[tan]")


class Ladder(nn.Module):
    """A known world: z is the sum of the actions, the reward is z after it, it ends above 1.5."""

    def step(self, latent, action, state):
        output = latent + action
        return output, {"hidden": output, "cell": output}

    def predict(self, output):
        rows = output.unsqueeze(-1)
        ends = torch.where(output[..., 0] > 1.5, 50.0, -50.0)
        return Prediction(torch.zeros_like(rows), rows, rows * 0 - 30, output[..., 0], ends)


def ladder_returns(parameters, alive, *, steps, gamma=1.0, memory=False):
    dreams = len(alive)
    start = {LATENT: torch.zeros(dreams, 1), "hidden": torch.full((dreams, 1), 7.0)}
    return imagined_returns(
        Ladder(),
        torch.tensor(parameters),
        start,
        torch.tensor(alive),
        torch.zeros(steps, dreams, 2, 1),
        torch.full((steps, dreams), 0.5),
        space=UNIT,
        squash=["tanh"],
        memory=memory,
        temperature=1.0,
        gamma=gamma,
    )


def test_dreamed_returns_by_hand():
    # Weight 0 and a large bias: the action is always 1, or always −1.
    #   z = 1, 2 and then the end: 1 + 2 = 3 (a terminal step is still paid)
    #   z = −1, −2, −3, −4: −10
    up, down = [0.0, 100.0], [0.0, -100.0]
    assert ladder_returns([up, down], [True], steps=4).tolist() == pytest.approx([3.0, -10.0])
    # Discounted by a half: 1 + 0.5 · 2 = 2; −1 − 1 − 0.75 − 0.5 = −3.25
    assert ladder_returns([up, down], [True], steps=4, gamma=0.5).tolist() == [2.0, -3.25]
    # The mean over two dreams, one of which begins where it is over.
    assert ladder_returns([up], [True, False], steps=4).tolist() == [1.5]
    # With memory: the hidden 7 is before the action, −100 · 7 gives −1, then h = −1 gives +1, and
    # so on: z = −1, 0, then h = 0 gives 0: −1 in all.
    assert ladder_returns([[0.0, -100.0, 0.0]], [True], steps=3, memory=True).tolist() == [-1.0]


def dreamt(parameters, start, noise, chances, **options):
    torch.manual_seed(0)
    model = MDNRNN(2, 1, 4, 2)
    settings = {"space": UNIT, "squash": ["tanh"], "memory": True, "temperature": 1.0}
    settings |= {"gamma": 1.0, **options}
    alive = torch.ones(len(start[LATENT]), dtype=torch.bool)
    with torch.no_grad():
        return imagined_returns(model, parameters, start, alive, noise, chances, **settings)


def test_a_population_dreams_as_each_of_it_would_alone():
    model, rng = MDNRNN(2, 1, 4, 2), torch.Generator().manual_seed(0)
    start = {LATENT: torch.randn(3, 2), "hidden": torch.randn(3, 4), "cell": torch.randn(3, 4)}
    noise, chances = model.noise((5, 3), rng), torch.rand(5, 3, generator=rng)
    parameters = torch.randn(6, 7)
    together = dreamt(parameters, start, noise, chances)
    alone = [dreamt(each[None], start, noise, chances) for each in parameters]
    assert torch.allclose(together, torch.cat(alone), atol=1e-6)
    assert together.std() > 0
    same = dreamt(parameters[:1].repeat(4, 1), start, noise, chances)
    assert torch.equal(same, same[:1].expand(4))  # the same luck for all


def test_temperature_widens_dreams():
    torch.manual_seed(0)
    model = MDNRNN(2, 1, 4, 1)
    state = {LATENT: torch.zeros(2000, 2), **model.initial_state(2000)}
    noise = model.noise((2000,), torch.Generator().manual_seed(0))
    with torch.no_grad():
        spread = [
            imagine_step(model, state, torch.zeros(2000, 1), noise, temperature)[0][LATENT].std(0)
            for temperature in (1.0, 4.0)
        ]
    assert torch.allclose(spread[1], 2 * spread[0], rtol=1e-4)


# -- acting ------------------------------------------------------------------------------------


@pytest.fixture
def run(tiny):
    return tiny(*WORDS, ONE)


def frames(count, seed=0):
    drawn = np.random.default_rng(seed).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    return torch.from_numpy(drawn)


@pytest.mark.needs("cma")
def test_the_action_sees_the_memory_from_before_and_the_memory_takes_it_in_after(run):
    workflow = run.workflow
    workflow.search.strategy.mean = np.random.default_rng(0).normal(size=7)
    obs, state = frames(3), {name: torch.randn(3, 4) for name in ("hidden", "cell")}
    decision = workflow.act(obs, state, deterministic=True)
    with torch.no_grad():
        latent, _ = workflow.vae.encode(obs)
        mean = torch.tensor(workflow.search.mean, dtype=torch.float32)
        raw = torch.cat([latent, state["hidden"]], -1) @ mean[:-1] + mean[-1]
        action = raw.tanh().unsqueeze(-1)
        _, after = workflow.dynamics.step(latent, action, state)
    assert torch.allclose(decision.action, action, atol=1e-6)
    for name, each in after.items():
        assert torch.allclose(decision.state[name], each, atol=1e-6)


@pytest.mark.needs("cma")
def test_without_memory_only_the_frame_counts(tiny):
    workflow = tiny(*WORDS, ONE, "algorithm.memory=false").workflow
    assert workflow.search.mean.shape == (3,)  # two latents and a bias
    workflow.search.strategy.mean = np.ones(3)
    obs = frames(3)
    states = [{name: torch.full((3, 4), value) for name in ("hidden", "cell")} for value in (0, 5)]
    first, second = (workflow.act(obs, state, deterministic=True).action for state in states)
    assert torch.equal(first, second)


@pytest.mark.needs("cma")
def test_trials_see_what_an_evaluation_would_see(run):
    workflow = run.workflow
    workflow.trials.begin_round()
    obs, state = frames(4), workflow.initial_state(4)
    tried = workflow.try_out(obs, state, deterministic=False)
    for row, candidate in enumerate(workflow.search.ask()):
        workflow.search.strategy.mean = candidate
        alone = workflow.act(obs[row : row + 1], workflow.initial_state(1), deterministic=True)
        assert torch.allclose(tried.action[row], alone.action[0], atol=1e-6)


# -- dreaming ----------------------------------------------------------------------------------


def window(length=4, batch=2):
    return {
        OBS: frames(length * batch).reshape(length, batch, 3, 32, 32),
        PREVIOUS_ACTION: torch.randn(length, batch, 1),
        RESET: torch.zeros(length, batch, dtype=torch.bool),
        TERMINATED: torch.zeros(length, batch, dtype=torch.bool),
    }


@pytest.mark.needs("cma")
def test_a_dream_begins_where_acting_would_be(run):
    """The memory before the last frame, by the actions that were really taken."""
    workflow, seen = run.workflow, window()
    begun = workflow.imagination.start(seen)
    state = workflow.initial_state(2)
    with torch.no_grad():
        for now in range(3):
            latent, _ = workflow.vae.encode(seen[OBS][now])
            _, state = workflow.dynamics.step(latent, seen[PREVIOUS_ACTION][now + 1], state)
        last, _ = workflow.vae.encode(seen[OBS][3])
    assert torch.allclose(begun[LATENT], last, atol=1e-6)
    assert torch.allclose(begun["hidden"], state["hidden"], atol=1e-6)
    seen[RESET][3, 0] = True  # the last frame is the first of an episode
    begun = workflow.imagination.start(seen)
    assert not begun["hidden"][0].any() and begun["hidden"][1].any()
    alone = workflow.imagination.start({name: each[3:] for name, each in seen.items()})
    assert not alone["cell"].any()


@pytest.mark.needs("cma")
def test_imagine_gives_frames_rewards_and_chances(run):
    workflow, seen = run.workflow, window()
    found = workflow.imagine(horizon=5, seen=seen)
    assert found[OBS].shape == (5, 2, 3, 32, 32)
    assert found[OBS].min() >= 0 and found[OBS].max() <= 1
    assert found["reward"].shape == found["continues"].shape == (5, 2)
    assert ((found["continues"] > 0) & (found["continues"] < 1)).all()
    with pytest.raises(UserError, match="as many `actions` as its horizon, 6, and got 5"):
        workflow.imagine(horizon=6, seen=seen, actions=found["action"])
    with pytest.raises(UserError, match="no frames to begin after"):  # nothing was played yet
        workflow.imagine(horizon=3)
    again = workflow.imagine(horizon=5, seen=seen, actions=found["action"])
    assert torch.equal(again[LATENT], found[LATENT])  # the controller's own actions
    other = workflow.imagine(horizon=5, seen=seen, actions=found["action"] - 1.0)
    assert not torch.equal(other[LATENT], found[LATENT])


def test_features_are_z_and_then_h():
    memory = {"hidden": torch.ones(1, 2), "cell": torch.zeros(1, 2)}
    assert controller_features(torch.zeros(1, 3), memory, True).tolist() == [[0, 0, 0, 1, 1]]
    assert draw(torch.ones(1), torch.zeros(1), torch.ones(1)).item() == 2.0


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("latent", 0, "latent must be at least 1"),
        ("population", 3, "population must be at least 4"),
        ("channels", [], "channels must be positive numbers"),
        ("temperature", 0.0, "temperature must be positive"),
        ("kl_tolerance", -1.0, "kl_tolerance must be 0 or more"),
        ("sigma", 0.0, "sigma must be positive"),
    ],
)
def test_values_that_cannot_work(name, value, message):
    with pytest.raises(ValueError, match=message):
        WorldModelsConfig(**{name: value})


def test_trials_that_do_not_fill_the_environments():
    with pytest.raises(ConfigError, match=r"5 trials are no multiple of environment.num_envs, 4"):
        tiny_config(*WORDS, ONE, "algorithm.population=5")
    tiny_config(*WORDS, ONE, "algorithm.population=5", "algorithm.fitness=dream")


def test_a_buffer_must_have_room_for_a_transition_of_each_environment():
    """2 frames need 3 rows of each of the 4 environments; longer windows are cut, not refused."""
    with pytest.raises(ConfigError, match=r"has room for 2 of each: capacity must be 12"):
        tiny_config(*WORDS, ONE, "buffers.replay.capacity=11")
    tiny_config(*WORDS, ONE, "buffers.replay.capacity=12", "algorithm.batch_length=99")
    tiny_config(*WORDS, ONE, "buffers.replay.capacity=20", "algorithm.context=9")
    with pytest.raises(ConfigError, match=r"a window of context has 9 frames"):
        tiny_config(
            *(*WORDS, ONE, "buffers.replay.capacity=20"),
            *("algorithm.context=9", "algorithm.fitness=dream"),
        )


def test_vectors_are_refused(tiny):
    with pytest.raises(UserError, match="world_models looks at images, and 'Pendulum-v1'"):
        tiny("Pendulum-v1:random", *WORDS[1:], ONE)


def test_odd_sizes_are_refused(tiny):
    with pytest.raises(UserError, match="34 × 34 pixels, which 2 layers cannot halve"):
        tiny(*WORDS, ONE, "environment.kwargs.size=34")
