"""R2D2: targets of windows, what is learned and what only warms up, stored states, by hand."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import space_envs  # noqa: F401  (registers its worlds)
from rl_lab.algorithms.r2d2 import learned_rows, r2d2_loss, rescaled, restored, window_targets
from rl_lab.core import registry
from rl_lab.core.batch import (
    ACTION_MASK,
    BURN_IN,
    INDEX,
    LATENT,
    OBS,
    PREVIOUS_ACTION,
    RESET,
    REWARD,
    TERMINATED,
    TRUNCATED,
)
from rl_lab.core.errors import ConfigError, NonFiniteError, UserError
from rl_lab.core.schema import HeadConfig, NetworkConfig
from rl_lab.core.spec import Box, Dict, Discrete, EnvSpec
from rl_lab.core.tree import picked, where_rows
from rl_lab.networks.encoder import AutoEncoderConfig
from rl_lab.networks.recurrent_q import RecurrentQNetwork, packed, unpacked
from space_envs import World
from tiny_runs import tiny_config

PHASE = {"name": "train", "type": "online", "step": 0, "progress": 0.0, "buffer": None}
SMALL = [
    *("algorithm.learning_starts=64", "algorithm.batch_size=4", "algorithm.batch_length=8"),
    *("buffers.replay.burn_in=3", "buffers.replay.capacity=400"),
    *("network.memory.hidden_dim=8", "algorithm.train_every=16", "algorithm.replay_ratio=0.05"),
]
LOSS = {"n_step": 2, "double": True, "rescale": True, "huber": False}


def model(memory: str = "gru", *, dueling: bool = True, masked: bool = False) -> RecurrentQNetwork:
    torch.manual_seed(3)
    low = np.full(2, -np.inf, np.float32)
    seen: Any = Box((2,), np.dtype(np.float32), low, -low)
    if masked:
        ones = np.ones(3, np.float32)
        legal = Box((3,), np.dtype(np.float32), 0 * ones, ones)
        seen = Dict({"place": seen, ACTION_MASK: legal})
    kind = registry.get("memory", memory)
    width = {"lstm": {"hidden_dim": 4}, "gru": {"hidden_dim": 4}, "none": {}}.get(
        memory, {"dim": 4}
    )
    config = NetworkConfig(
        encoder=AutoEncoderConfig(hidden_dims=[5]),
        memory=kind.Config(type=memory, **width),
        critic=HeadConfig(),
    )
    return RecurrentQNetwork(config, EnvSpec("test", seen, Discrete(3)), dueling=dueling)


def windows(length: int = 7, size: int = 3, *, masked: bool = False) -> dict[str, Any]:
    """Two ends in each column, where the next row begins an episode."""
    rng = torch.Generator().manual_seed(0)
    ends = torch.zeros(length, size, dtype=torch.bool)
    terminated, truncated = ends.clone(), ends.clone()
    terminated[2, 0] = truncated[3, 1] = terminated[length - 1, 2] = True
    resets = torch.cat([ends[:1], (terminated | truncated)[:-1]])
    obs: Any = torch.randn(length, size, 2, generator=rng)
    if masked:
        legal = (torch.rand(length, size, 3, generator=rng) < 0.5).float()
        legal[..., 0] = 1
        obs = {"place": obs, ACTION_MASK: legal}
    return {
        OBS: obs,
        PREVIOUS_ACTION: torch.randint(3, (length, size), generator=rng) * ~resets,
        REWARD: torch.randn(length, size, generator=rng) * ~resets,
        RESET: resets,
        TERMINATED: terminated,
        TRUNCATED: truncated,
        BURN_IN: (torch.arange(length) < 2)[:, None] & ends.new_ones(size),
    }


# -- values and targets --------------------------------------------------------------------------


def test_values_are_learned_on_a_scale_of_roots():
    found = rescaled(torch.tensor([0.0, 3.0, -8.0, 99.0]))
    torch.testing.assert_close(found, torch.tensor([0.0, 1.003, -2.008, 9.099]))
    values = torch.tensor([-500.0, -3.0, -0.01, 0.0, 0.01, 1.0, 70.0, 500.0])
    torch.testing.assert_close(restored(rescaled(values)), values, rtol=1e-5, atol=1e-6)


def test_two_rewards_and_a_bootstrap_unless_something_ends_before():
    def column(*values: Any) -> torch.Tensor:
        return torch.tensor(values)[:, None]

    rows = {
        REWARD: column(9.0, 1.0, 2.0, 4.0, 8.0),
        TERMINATED: column(False, False, False, False, False),
        TRUNCATED: column(False, False, False, False, False),
    }
    future, gamma = column(0.0, 16.0, 32.0, 64.0, 128.0), torch.tensor(0.5)

    def targets() -> list[float]:
        found = window_targets(rows, future, gamma, n_step=2, rescale=False)
        return found.flatten().tolist()

    # 1 + 2/2 + 32/4, 2 + 4/2 + 64/4, 4 + 8/2 + 128/4, and one step where the window ends
    assert targets() == [10.0, 20.0, 40.0, 72.0]
    rows[TRUNCATED] = column(False, False, True, False, False)
    assert targets()[:2] == [1 + 2 / 2 + 32 / 4, 2 + 32 / 2]  # the last frame of it, not beyond
    rows[TERMINATED], rows[TRUNCATED] = rows[TRUNCATED], rows[TERMINATED]
    assert targets()[:2] == [1 + 2 / 2, 2.0]


def test_targets_are_rescaled_after_the_sum():
    rows = {
        REWARD: torch.tensor([[0.0], [1.0]]),
        TERMINATED: torch.zeros(2, 1, dtype=torch.bool),
        TRUNCATED: torch.zeros(2, 1, dtype=torch.bool),
    }
    future = rescaled(torch.tensor([[0.0], [14.0]]))
    found = window_targets(rows, future, torch.tensor(0.5), n_step=1, rescale=True)
    torch.testing.assert_close(found, rescaled(torch.tensor([[8.0]])))


def test_nothing_is_learned_at_the_end_of_an_episode_nor_while_warming_up():
    rows = windows()
    expected = torch.ones(6, 3, dtype=torch.bool)
    expected[:2] = expected[2, 0] = expected[3, 1] = False
    assert torch.equal(learned_rows(rows), expected)
    del rows[BURN_IN]
    expected[:2] = True
    assert torch.equal(learned_rows(rows), expected)


# -- network -------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", registry.names("memory"))
@pytest.mark.parametrize("dueling", [True, False])
def test_a_sequence_is_repeated_steps_and_knows_nothing_of_other_episodes(memory, dueling):
    network, rows = model(memory, dueling=dueling), windows()
    state = network.initial_state(3)
    along, after = network(rows[OBS], rows[PREVIOUS_ACTION], state, rows[RESET])
    for t in range(7):
        begins = rows[RESET][t][:, None]
        state = where_rows(rows[RESET][t], network.initial_state(3), state)
        previous = torch.nn.functional.one_hot(rows[PREVIOUS_ACTION][t], 3) * ~begins
        values, state = network.step(rows[OBS][t], previous.float(), state)
        torch.testing.assert_close(values, along[t], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(after, state, atol=1e-6, rtol=1e-5)
    rows[OBS][:3, 0], rows[PREVIOUS_ACTION][:4, 0] = 100.0, 2  # row 3 begins an episode
    changed, _ = network(rows[OBS], rows[PREVIOUS_ACTION], network.initial_state(3), rows[RESET])
    assert torch.equal(changed[3:], along[3:]) and not torch.equal(changed[:3], along[:3])


def test_the_memory_sees_the_last_action():
    network, rows = model(), windows()
    first, _ = network(rows[OBS], rows[PREVIOUS_ACTION], network.initial_state(3), rows[RESET])
    rows[PREVIOUS_ACTION][1, 1] = (rows[PREVIOUS_ACTION][1, 1] + 1) % 3
    second, _ = network(rows[OBS], rows[PREVIOUS_ACTION], network.initial_state(3), rows[RESET])
    differs = (first != second).any(-1)
    assert differs[1:4, 1].all() and differs.sum() == 3  # its own row and the rest of the episode


def test_states_are_vectors_in_a_buffer():
    network = model("lstm")
    state = {name: torch.randn(3, 4) for name in network.initial_state(3)}
    vectors = packed(state)
    assert vectors.shape == (3, 8)
    back = unpacked(vectors, network.initial_state(3))
    assert list(back) == list(state) and all(torch.equal(back[name], state[name]) for name in back)


# -- loss ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("double", [True, False])
def test_the_loss_of_windows_row_by_row(double, masked):
    network, target, rows = model(masked=masked), model(masked=masked), windows(masked=masked)
    with torch.no_grad():
        for each in target.parameters():
            each.mul_(-0.7)
    start = {"hidden": torch.randn(3, 4, generator=torch.Generator().manual_seed(5))}
    loss, metrics, _ = r2d2_loss(
        network, rows, start, target, torch.tensor(0.9), **{**LOSS, "double": double}
    )
    seen = (rows[OBS], rows[PREVIOUS_ACTION], start, rows[RESET])
    ours, theirs = (each(*seen)[0].detach().double() for each in (network, target))
    errors, actions = [], []
    for t in range(2, 6):
        for column in range(3):
            if rows[TERMINATED][t, column] or rows[TRUNCATED][t, column]:
                continue
            total, discount = 0.0, 1.0
            for ahead in range(t + 1, min(t + 2, 6) + 1):
                total += discount * float(rows[REWARD][ahead, column])
                discount *= 0.9
                if rows[TERMINATED][ahead, column]:
                    discount = 0.0
                if rows[TERMINATED][ahead, column] or rows[TRUNCATED][ahead, column]:
                    break
            choice = (ours if double else theirs)[ahead, column].clone()
            if masked:
                choice[rows[OBS][ACTION_MASK][ahead, column] == 0] = -np.inf
            bootstrap = restored(theirs[ahead, column, choice.argmax()])
            action = int(rows[PREVIOUS_ACTION][t + 1, column])
            goal = rescaled(total + discount * bootstrap)
            errors.append(float(goal - ours[t, column, action]))
            actions.append(action)
    assert len(errors) == 10 and len(set(actions)) == 3
    assert loss.item() == pytest.approx(0.5 * np.mean(np.square(errors)), rel=1e-4)
    assert float(metrics["td_error"]) == pytest.approx(np.mean(np.abs(errors)), rel=1e-4)


def test_warming_up_moves_the_memory_and_is_not_learned():
    network, rows = model(), windows()
    del rows[TERMINATED], rows[TRUNCATED]
    rows |= {name: torch.zeros(7, 3, dtype=torch.bool) for name in (TERMINATED, TRUNCATED, RESET)}

    def loss() -> float:
        start, gamma = network.initial_state(3), torch.tensor(0.9)
        return r2d2_loss(network, rows, start, network, gamma, **LOSS)[0].item()

    before = loss()
    rows[REWARD][:3] += 5  # led to rows 0, 1 and 2: what was done at rows 0 and 1
    assert loss() == before
    rows[REWARD][3] += 5
    assert loss() != before
    rows[REWARD][3] -= 5
    rows[OBS][0] += 1
    assert loss() != before


def test_windows_in_which_nothing_is_learned_change_nothing():
    network, rows = model(), windows()
    rows[BURN_IN][:] = True
    loss, *_ = r2d2_loss(
        network, rows, network.initial_state(3), network, torch.tensor(0.9), **LOSS
    )
    loss.backward()
    assert loss.item() == 0 and all((each.grad == 0).all() for each in network.parameters())


# -- runs ----------------------------------------------------------------------------------------


def play(orchestrator: Any, steps: int) -> None:
    while orchestrator.counters.env_steps < steps:
        orchestrator.execute(orchestrator.scheduler.next_action())


@pytest.mark.parametrize("memory", [each for each in registry.names("memory") if each != "none"])
def test_a_window_goes_on_from_where_acting_stood(tiny, memory):
    """With no exploration and nothing learned, the replayed values choose what was done."""
    orchestrator = tiny(
        f"CartPole-v1:r2d2_{memory}_defaults",
        *(each for each in SMALL if memory in ("gru", "lstm") or "hidden_dim" not in each),
        *("algorithm.learning_starts=0", "algorithm.epsilon=0", "algorithm.replay_ratio=1e-9"),
        "buffers.replay.burn_in=0",
    )
    play(orchestrator, 256)
    workflow, buffer = orchestrator.workflow, orchestrator.buffers["replay"]
    with torch.no_grad():  # a policy that looks at its memory
        for each in workflow.model.parameters():
            each.mul_(3)
    play(orchestrator, 512)
    rows = picked(buffer.sequences(200, 8), 0)
    inside = rows[LATENT].abs().sum(-1) > 0  # the window begins in mid-episode
    assert inside.any() and not inside.all()
    start = unpacked(rows[LATENT], workflow.model.initial_state(200))
    new = torch.from_numpy(np.isin(rows[INDEX][0], np.arange(300, 512)))
    with torch.no_grad():
        values, _ = workflow.model(rows[OBS], rows[PREVIOUS_ACTION], start, rows[RESET])
    done = ~(rows[TERMINATED] | rows[TRUNCATED])[:-1] & (new & inside)
    best, taken = values[:-1].argmax(-1)[done], rows[PREVIOUS_ACTION][1:][done]
    assert len(set(taken.tolist())) == 2 and torch.equal(best, taken)
    forgotten, _ = workflow.model(
        rows[OBS], rows[PREVIOUS_ACTION], workflow.model.initial_state(200), rows[RESET]
    )
    assert not torch.equal(forgotten, values)


def test_the_batch_has_what_is_learned_from(tiny):
    orchestrator = tiny("CartPole-v1:r2d2_gru_defaults", *SMALL)
    play(orchestrator, 256)
    workflow, buffer = orchestrator.workflow, orchestrator.buffers["replay"]
    batch = workflow.sample(buffer, hook="update", phase={**PHASE, "step": 400})
    assert batch[OBS].shape[1:3] == (8, 4) and batch[LATENT].shape[1:] == (4, 8)
    begun = batch[RESET].cumsum(1) > 0
    assert torch.equal(batch[BURN_IN], ~begun & (torch.arange(8) < 3)[:, None])
    metrics = workflow.update(batch, phase={**PHASE, "step": 400})
    assert {"loss", "q_mean", "q_spread", "td_error", "entropy", "epsilon"} <= set(metrics)


def test_learning_begins_with_the_stored_state(tiny):
    orchestrator = tiny("CartPole-v1:r2d2_gru_defaults", *SMALL)
    play(orchestrator, 256)
    workflow = orchestrator.workflow
    batch = orchestrator.buffers["replay"].sequences(4, 8)
    saved, losses = workflow.learner.snapshot(), []
    for latent in (batch[LATENT], batch[LATENT] + 1, torch.zeros(1, 4, 8), None):
        own = {name: each for name, each in batch.items() if name not in (LATENT, INDEX)}
        own |= {} if latent is None else {LATENT: latent}
        losses.append(float(workflow.update(own, phase={**PHASE, "type": "offline"})["loss"]))
        workflow.learner.restore(saved)
    assert len(set(losses)) == 3 and losses[2] == losses[3]


def test_replayed_windows_leave_their_last_state_in_the_buffer(tiny):
    orchestrator = tiny("CartPole-v1:r2d2_lstm_defaults", *SMALL)
    play(orchestrator, 256)
    workflow, buffer = orchestrator.workflow, orchestrator.buffers["replay"]
    batch = buffer.sequences(4, 8, 2)
    before, rows = buffer.latents.values.copy(), picked(batch, 0)
    start = unpacked(rows[LATENT], workflow.model.initial_state(4))
    with torch.no_grad():
        _, after = workflow.model(rows[OBS], rows[PREVIOUS_ACTION], start, rows[RESET])
    workflow.update(batch, phase={**PHASE, "type": "offline"})
    changed = np.flatnonzero((before != buffer.latents.values).any(-1))
    last = batch[INDEX][:, -1]
    assert set(changed) == set((last[last >= 0] % buffer.ring.capacity).tolist())
    first = [at for at, number in enumerate(last[0].tolist()) if number >= 0]
    first = [at for at in first if last[0, at] not in last[1]]
    assert first  # states of the first gradient step, before its weights moved
    numbers = last[0, first].numpy() % buffer.ring.capacity
    found = torch.from_numpy(buffer.latents.values[numbers])
    torch.testing.assert_close(found, packed(after)[first], atol=1e-6, rtol=1e-5)


def test_the_target_is_copied_when_it_is_time(tiny):
    orchestrator = tiny("CartPole-v1:r2d2_gru_defaults", *SMALL, "algorithm.target_every=3")
    play(orchestrator, 256)
    workflow, buffer = orchestrator.workflow, orchestrator.buffers["replay"]
    moved = []
    for _ in range(6):
        before = workflow.learner.target_flat.clone()
        workflow.update(buffer.sequences(4, 8), phase={**PHASE, "type": "offline"})
        moved.append(not torch.equal(before, workflow.learner.target_flat))
        same = torch.equal(workflow.learner.target_flat, workflow.learner.state.flat)
        assert same == moved[-1] == (workflow.budget.steps % 3 == 0)
    assert sum(moved) == 2


def test_a_bad_number_undoes_the_whole_update(tiny):
    orchestrator = tiny("CartPole-v1:r2d2_gru_defaults", *SMALL, "algorithm.target_every=1")
    play(orchestrator, 256)
    workflow, buffer = orchestrator.workflow, orchestrator.buffers["replay"]
    batch = buffer.sequences(4, 8, 2)
    batch[REWARD][1] = torch.nan
    flat, slow, steps = (
        workflow.learner.state.flat.clone(),
        workflow.learner.target_flat.clone(),
        workflow.budget.steps,
    )
    with pytest.raises(NonFiniteError):
        workflow.update(batch, phase={**PHASE, "type": "offline"})
    assert torch.equal(workflow.learner.state.flat, flat)
    assert torch.equal(workflow.learner.target_flat, slow) and workflow.budget.steps == steps


def test_compiled_and_eager_learn_the_same(tiny, interpreted):
    learned = []
    for compiled in ("off", "on"):
        orchestrator = tiny("CartPole-v1:r2d2_lstm_defaults", *SMALL, f"compute.compile={compiled}")
        play(orchestrator, 512)
        assert orchestrator.workflow.budget.steps > 5
        learned.append(orchestrator.workflow.learner.state.flat)
    assert interpreted == ["the update"]
    torch.testing.assert_close(*learned, atol=1e-5, rtol=1e-4)


def test_observations_are_normalised_by_the_same_statistics(tiny):
    orchestrator = tiny("CartPole-v1:r2d2_gru_defaults", *SMALL, "environment.normalize_obs=true")
    play(orchestrator, 256)
    workflow = orchestrator.workflow
    pairs = zip(workflow.model.buffers(), workflow.learner.target.buffers(), strict=True)
    assert all(torch.equal(own, other) for own, other in pairs)
    assert not torch.equal(workflow.model.normalizer.scale, torch.ones(4))


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("algorithm.batch_length=4", "batch_length must be at least buffers.replay.burn_in + 2, 5"),
        ("algorithm.batch_length=1", "batch_length must be at least 2, got 1"),
        ("algorithm.n_step=0", "n_step must be at least 1, got 0"),
        ("algorithm.epsilon=1.5", "epsilon must be in [0, 1], got 1.5"),
        ("algorithm.target_rate=0", "target_rate must be in (0, 1], got 0"),
        ("buffers.replay.capacity=20", "capacity must be 36"),
        ("buffers.replay.burn_in=-1", "burn_in must be at least 0, got -1"),
        ("network.shared_torso=true", "r2d2 has one network"),
        ("algorithm.optimizer.accumulate=2", "cannot be cut into pieces"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_built(word, told):
    with pytest.raises(ConfigError) as error:
        tiny_config("CartPole-v1:r2d2_gru_defaults", *SMALL, word)
    assert told in str(error.value).replace(":", "")


def test_actions_must_be_discrete(tiny):
    with pytest.raises(UserError, match="r2d2 needs Discrete actions, 'Pendulum-v1' has Box"):
        tiny("Pendulum-v1:r2d2_gru_defaults", *SMALL)


# -- learning ------------------------------------------------------------------------------------

GAMMA, WAIT = 0.9, 2


class Recall(World):
    """A cue is shown once; after a few blank frames, doing as it said earns 1, the other −1."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def first(self) -> tuple[Any, dict[str, Any]]:
        self.cue, self.waited = int(self.np_random.integers(2)), 0
        return np.array([2.0 * self.cue - 1], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        blank, asked = np.zeros(1, np.float32), self.waited == WAIT
        self.waited += 1
        reward = (1.0 if int(action) == self.cue else -1.0) if asked else 0.0
        return blank, reward, asked, False, {}


if "Recall-v0" not in gym.registry:
    gym.register("Recall-v0", entry_point=Recall)

LEARNING = [
    *("environment.num_envs=4", "environment.max_episode_steps=10", "network.memory.hidden_dim=16"),
    *("training.total_timesteps=3000", "algorithm.learning_starts=200", "algorithm.batch_size=32"),
    *("algorithm.batch_length=10", "algorithm.replay_ratio=0.25", "algorithm.n_step=1"),
    *("buffers.replay.burn_in=3", "algorithm.learning_rate=lin_1e-2", "algorithm.target_every=20"),
    *(f"algorithm.gamma={GAMMA}", "algorithm.epsilon=1"),
]


def told_values(workflow: Any) -> np.ndarray:
    """What is thought of both actions after each cue and each frame, [cue, frame, action]."""
    obs = torch.zeros(WAIT + 1, 2, 1)
    obs[0] = torch.tensor([[-1.0], [1.0]])
    resets = torch.zeros(WAIT + 1, 2, dtype=torch.bool)
    resets[0] = True
    with torch.no_grad():
        start = workflow.model.initial_state(2)
        values, _ = workflow.model(obs, torch.zeros(WAIT + 1, 2, dtype=torch.long), start, resets)
    return restored(values).transpose(0, 1).numpy()


@pytest.mark.parametrize("memory", ["gru", "none"])
def test_with_a_memory_it_finds_the_exact_values_and_without_it_cannot(tiny, memory):
    orchestrator = tiny(
        f"test_r2d2:Recall-v0:r2d2_{memory}_defaults",
        *(each for each in LEARNING if memory == "gru" or "hidden_dim" not in each),
    )
    while (action := orchestrator.scheduler.next_action()) is not None:
        orchestrator.execute(action)
    found = told_values(orchestrator.workflow)
    exact = np.empty((2, WAIT + 1, 2))
    exact[:, :WAIT] = GAMMA ** np.arange(WAIT, 0, -1)[:, None]
    exact[:, WAIT] = [[1, -1], [-1, 1]]
    if memory == "gru":
        assert np.abs(found - exact).max() < 0.1
    else:
        assert np.abs(found[:, WAIT]).max() < 0.5  # one frame does not tell
