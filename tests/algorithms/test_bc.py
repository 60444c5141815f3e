"""Behavioral cloning: losses by hand, policies, images and dicts, discrete actions, datasets."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from rl_lab.algorithms.bc import BC, Mixture, Point, negative_log_likelihood, squared_error
from rl_lab.core.distributions import Categorical, DiagonalGaussian
from rl_lab.core.errors import ConfigError, UserError
from tiny_runs import tiny_run

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class Constant(nn.Module):
    """A network that always answers the same."""

    def __init__(self, policy):
        super().__init__()
        self.policy = policy

    def forward(self, obs):
        return self.policy


def test_squared_error_by_hand():
    # ((0 − 1)² + (2 − 0)²) / 2
    network = Constant(Point(torch.tensor([[0.0, 2.0]])))
    loss, _, _ = squared_error(network, None, torch.tensor([[1.0, 0.0]]))
    assert loss.item() == 2.5


def test_two_opposite_demonstrations_teach_a_squared_error_their_mean():
    mean = nn.Parameter(torch.tensor([[0.7], [0.7]]))
    loss, _, _ = squared_error(Constant(Point(mean)), None, torch.tensor([[-1.0], [1.0]]))
    (gradient,) = torch.autograd.grad(loss, mean)
    assert gradient.sum() > 0  # towards 0, which nobody has demonstrated


def test_the_likelihood_of_a_gaussian_by_hand():
    # σ = e: −log p = ½ ((3 − 1)/e)² + 1 + ½ log 2π
    policy = DiagonalGaussian(torch.tensor([[1.0]]), torch.tensor([[1.0]]))
    loss, _, _ = negative_log_likelihood(Constant(policy), None, torch.tensor([[3.0]]))
    assert loss.item() == pytest.approx(0.5 * 4 / math.e**2 + 1 + HALF_LOG_TWO_PI)


def mixture(first=0.0):
    """−1 with weight 1/4 and 2 with weight 3/4, both with deviation 1."""
    logits = torch.tensor([[math.log(0.25), math.log(0.75)]])
    return Mixture(logits, torch.tensor([[[-1.0], [2.0]]]), torch.full((1, 2, 1), first))


def test_the_likelihood_of_a_mixture_by_hand():
    # p(0) = ¼ φ(1) + ¾ φ(2)
    density = [math.exp(-0.5 * x * x - HALF_LOG_TWO_PI) for x in (1.0, 2.0)]
    expected = -math.log(0.25 * density[0] + 0.75 * density[1])
    loss, _, _ = negative_log_likelihood(Constant(mixture()), None, torch.tensor([[0.0]]))
    assert loss.item() == pytest.approx(expected)


def test_a_mixture_samples_by_weight_and_its_mode_is_the_heaviest_mean():
    policy = mixture(first=-5.0)
    rng = torch.Generator().manual_seed(1)
    drawn = torch.cat([policy.sample(rng) for _ in range(800)])
    assert ((drawn - 2.0).abs() < 0.1).float().mean() == pytest.approx(0.75, abs=0.05)
    assert (((drawn - 2.0).abs() < 0.1) | ((drawn + 1.0).abs() < 0.1)).all()
    assert policy.mode().tolist() == [[2.0]]


def test_discrete_actions_are_learned_by_cross_entropy():
    # −log softmax([0, log 3])[1] = −log ¾, and both modes are right
    policy = Categorical(torch.tensor([[0.0, math.log(3.0)]] * 2))
    loss, metrics, _ = negative_log_likelihood(Constant(policy), None, torch.tensor([1, 1]))
    assert loss.item() == pytest.approx(-math.log(0.75))
    assert metrics["accuracy"] == 1.0


# -------------------------------------------------------------------------------- real runs


def rows(count, seed=0):
    """Pendulum-like frames, and the action −0.5 · velocity, limited to [−1, 1]."""
    random = np.random.default_rng(seed)
    obs = random.normal(size=(count + 1, 3)).astype(np.float32)
    obs[:, 2] = 3.0 + 0.5 * obs[:, 2]  # a number with a scale of its own
    action = np.clip(0.5 * obs[:-1, :1], -1.0, 1.0)
    return {
        "obs": obs,
        "action": action,
        "reward": np.zeros(count, np.float32),
        "terminated": np.zeros(count, np.bool_),
        "truncated": np.arange(count) == count - 1,
    }


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for index in range(4):
        np.savez(folder / f"{index}.npz", **rows(50, index))
    return folder


def words(data, name="bc", updates=300, *more):
    return [
        "Pendulum-v1:random",
        f"algorithm.name={name}",
        f"buffers.data={{type: offline, path: '{data}'}}",
        f"training.phases=[{{type: offline, hooks: [update], duration_updates: {updates}}}]",
        "network.actor.hidden_dims=[32]",
        "algorithm.learning_rate=1e-2",
        *more,
    ]


@pytest.mark.parametrize("loss", ["mse", "log_likelihood", "gmm"])
def test_every_loss_finds_the_rule_of_a_dataset(tiny, data, loss):
    more = [f"algorithm.loss={loss}", "algorithm.modes=2"]
    orchestrator = tiny(*words(data, "bc", 300, *more))
    orchestrator.run()
    algorithm = orchestrator.algorithm
    assert bool(algorithm.scale.fitted)
    seen = torch.from_numpy(rows(50, 9)["obs"])
    action = algorithm.act(seen, None, deterministic=True).action
    expected = (0.5 * seen[:, :1]).clamp(-1.0, 1.0)
    assert (action - expected).abs().mean() < 0.1


def test_the_rate_falls_to_nothing_over_the_phases(tiny, data):
    orchestrator = tiny(*words(data, "bc", 10))
    assert orchestrator.algorithm.decay_updates == 10
    phase, seen = orchestrator.scheduler.view(), []
    for _ in range(10):
        batch = orchestrator.algorithm.sample(
            orchestrator.buffers["data"], hook="update", phase=phase
        )
        seen.append(orchestrator.algorithm.update(batch, phase=phase)["learning_rate"])
    assert seen == sorted(seen, reverse=True)
    assert seen[0] == pytest.approx(1e-2)
    assert seen[-1] < 3e-4


def test_a_policy_says_what_it_thinks(tiny, data):
    algorithm = tiny(*words(data)).algorithm
    shown = algorithm.describe(torch.zeros(2, 3), None)
    assert set(shown) == {"mean", "std"}
    assert shown["mean"].shape == shown["std"].shape == (2, 1)


@pytest.mark.parametrize("loss", ["mse", "gmm"])
def test_discrete_actions_have_one_loss(tiny, loss):
    with pytest.raises(UserError, match="use log_likelihood, which is the cross-entropy there"):
        tiny(
            "CartPole-v1:random",
            "algorithm.name=bc",
            f"algorithm.loss={loss}",
            "buffers.data={type: uniform, capacity: 99}",
        )


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("network.memory.type=gru", "network.memory has no use here"),
        ("environment.normalize_obs=true", "algorithm.normalize scales observations"),
        ("buffers.data.path=''", "buffers.data.path: must not be empty"),
        ("algorithm.loss=huber", "loss"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_built(tiny, data, word, message):
    with pytest.raises(ConfigError, match=message):
        tiny(*words(data), word)


MASKED = ["environment.wrappers=[{id: ActionMask}]", "environment.kwargs={several: true}"]


@pytest.mark.parametrize(
    ("id", "more"),
    [("picture_env:Picture-v0", []), ("space_envs:Rooms-v0", []), ("space_envs:Gates-v0", MASKED)],
)
def test_images_dicts_and_masks(tmp_path, id, more):
    """Demonstrations of random actions, collected first: what counts is that all of it fits."""
    phases = "[{name: a, policy: random, duration_steps: 128, hooks: [collect]}, "
    phases += "{name: b, type: offline, duration_updates: 3, hooks: [update]}]"
    outcome = tiny_run(
        tmp_path,
        f"{id}:random",
        "algorithm.name=bc",
        "algorithm.collect_steps=16",
        "algorithm.batch_size=16",
        "buffers.data={type: uniform, capacity: 256}",
        f"training.phases={phases}",
        *more,
    )
    assert outcome.summary["updates"] == 3


def test_compiled_updates_are_the_eager_ones(tiny, data, interpreted):
    found = {}
    for compile in ("on", "off"):
        orchestrator = tiny(*words(data, "bc", 6, f"compute.compile={compile}"))
        orchestrator.run()
        found[compile] = orchestrator.algorithm.network.state.flat
    torch.testing.assert_close(found["on"], found["off"], atol=1e-5, rtol=1e-4)


def test_it_is_a_behavioral_cloner():
    assert BC.hooks.fget(object.__new__(BC)) == ["update"]
