"""DQN with distributions of returns and with noisy layers: by hand, and with everything else."""

import numpy as np
import pytest
import torch

import space_envs  # noqa: F401  (registers its worlds)
from algorithms.test_dqn import GAMMA, PHASE, SMALL, box, network
from rl_lab.algorithms.dqn import DQNConfig, dqn_loss, noisy_entropy, policy_entropy
from rl_lab.config.tree import to_tree
from rl_lab.config.validate import validate
from rl_lab.core.batch import (
    ACTION,
    ACTION_MASK,
    INDEX,
    NEXT_OBS,
    OBS,
    REWARD,
    STEPS,
    TERMINATED,
    WEIGHT,
)
from rl_lab.core.compiled import _flatten, _trace
from rl_lab.core.errors import ConfigError
from rl_lab.core.schedule import Schedule
from rl_lab.core.spec import Dict, Discrete, EnvSpec
from rl_lab.networks.numpy_policy import fast_values
from rl_lab.networks.q_network import QNetwork
from tiny_runs import tiny_config, tiny_run

C51 = ["algorithm.distribution=c51", "algorithm.atoms=11", "algorithm.value_range=[-5, 5]"]
QUANTILE = ["algorithm.distribution=quantile", "algorithm.quantiles=7"]
NOISY = ["algorithm.noisy=true", "network.critic.hidden_dims=[8]"]
DUELING = "algorithm.dueling=true"
SWITCHES = {
    "c51": C51,
    "quantile": QUANTILE,
    "noisy": NOISY,
    "c51 dueling noisy": [*C51, *NOISY, DUELING],
    "quantile dueling noisy plain": [*QUANTILE, *NOISY, DUELING, "algorithm.double=false"],
}
every_switch = pytest.mark.parametrize("words", SWITCHES.values(), ids=SWITCHES)


def table(outputs: list, **options: object) -> QNetwork:
    """A network that is a table: [state, action] or [state, action, K] are its raw outputs."""
    rows = torch.tensor(outputs)
    spec = EnvSpec("x", Discrete(len(rows)), Discrete(rows.shape[1]))
    model = QNetwork(network(), spec, count=rows[0, 0].numel(), **options)
    model.advantage[0].weight.data.copy_(rows.flatten(1).T)
    model.advantage[0].bias.data.zero_()
    return model


def rows(**changed: torch.Tensor) -> dict:
    own = {
        OBS: torch.tensor([0, 1]),
        ACTION: torch.tensor([1, 0]),
        REWARD: torch.tensor([1.0, 3.0]),
        TERMINATED: torch.tensor([False, True]),
        NEXT_OBS: torch.tensor([1, 0]),
    }
    return own | changed


def loss_of(online, target, batch, *, double=True, noise=None):
    found = dqn_loss(online, batch, target, GAMMA, noise, double=double, huber=True)
    return found[0], found[1] | found[2]


# -- c51 -----------------------------------------------------------------------------------------

EVEN = [1 / 3, 1 / 3, 1 / 3]
FIRST, SECOND = [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]  # means 1.5 and 2.5 on the atoms 0, 2, 4


def probabilities(values: list) -> QNetwork:
    logits = torch.tensor(values).log().tolist()
    return table(logits, distribution="c51", value_range=(0.0, 4.0))


ONLINE = probabilities([[EVEN, [0.2, 0.3, 0.5]], [[0.1, 0.2, 0.7], [0.7, 0.2, 0.1]]])
TARGET = probabilities(
    [[EVEN, EVEN], [FIRST, SECOND]]
)  # in state 1 the two disagree about the best


def test_values_are_the_means_of_their_atoms():
    expected = torch.tensor([[2.0, 2.6], [3.2, 0.8]])  # .3 * 2 + .5 * 4 and so on
    torch.testing.assert_close(ONLINE(torch.arange(2)), expected)


@pytest.mark.parametrize(
    ("double", "goal"),
    [
        # 1 + .5 z is at 1, 2, 3: half to 0 and half to 2; all to 2; half to 2 and half to 4
        (True, [0.25, 0.25 + 0.25 + 0.125, 0.125]),  # FIRST, which the network prefers
        (False, [0.125, 0.125 + 0.25 + 0.25, 0.25]),  # SECOND, which the target prefers
    ],
)
def test_a_minibatch_of_c51_by_hand(double, goal):
    loss, metrics = loss_of(ONLINE, TARGET, rows(), double=double)
    goals = torch.tensor([goal, [0.0, 0.5, 0.5]])  # the end: all of it at 3
    said = torch.tensor([[0.2, 0.3, 0.5], [0.1, 0.2, 0.7]])
    each = -(goals * said.log()).sum(-1)
    torch.testing.assert_close(loss, each.mean())
    divergence = each + torch.xlogy(goals, goals).sum(-1)
    torch.testing.assert_close(metrics["error"], divergence)
    means = goals @ torch.tensor([0.0, 2.0, 4.0])
    torch.testing.assert_close(metrics["target"], means.mean())
    assert metrics["q_mean"].item() == pytest.approx((2.6 + 3.2) / 2)
    assert metrics["q_max"].item() == pytest.approx((2.6 + 3.2) / 2)
    assert metrics["q_spread"].item() == pytest.approx((0.6 + 2.4) / 2)
    error = (means - torch.tensor([2.6, 3.2])).abs().mean()
    torch.testing.assert_close(metrics["td_error"], error)
    assert metrics["out_of_range"].item() == 0
    weighted, same = loss_of(
        ONLINE, TARGET, rows(**{WEIGHT: torch.tensor([0.5, 0.0])}), double=double
    )
    torch.testing.assert_close(weighted, each[0] / 4)
    torch.testing.assert_close(same["error"], divergence)  # priorities: no weights


def test_windows_of_c51_by_hand():
    # γ = .5; two rewards of 1, cut: 1.5, then z / 4; three: 1 + .5 + .25 and z / 8
    batch = rows(
        **{
            REWARD: torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]),
            STEPS: torch.tensor([2, 3]),
            TERMINATED: torch.tensor([False, False]),
            NEXT_OBS: torch.tensor([1, 1]),
        }
    )
    _, metrics = loss_of(ONLINE, TARGET, batch)
    targets = [1.5 + 1.5 / 4, 1.75 + 1.5 / 8]  # the mean of FIRST is 1.5: no place is clipped
    assert metrics["target"].item() == pytest.approx(sum(targets) / 2)


def test_mass_beyond_the_range_is_told():
    batch = rows(**{REWARD: torch.tensor([3.5, 9.0])})  # 3.5 + .5 z: 3.5, and beyond 4.5, 5.5
    _, metrics = loss_of(ONLINE, TARGET, batch)
    assert metrics["out_of_range"].item() == pytest.approx((0.5 + 1.0) / 2)


def test_a_range_that_is_too_narrow_is_reported_once(tmp_path):
    narrow = ["algorithm.distribution=c51", "algorithm.value_range=[0, 1]"]
    words = [*narrow, "algorithm.learning_starts=64", "algorithm.batch_size=16"]
    for each, count in (("[0, 1]", 1), ("[-1000, 1000]", 0)):
        words[1] = f"algorithm.value_range={each}"
        run = tiny_run(tmp_path / each, "CartPole-v1:dqn_defaults", *words).run
        assert (
            run.log_file.read_text().count("c51's targets lie outside of algorithm.value_range")
            == count
        )


def test_the_gradient_of_c51_is_the_difference_of_chances():
    online = probabilities([[EVEN, [0.2, 0.3, 0.5]], [[0.1, 0.2, 0.7], [0.7, 0.2, 0.1]]])
    loss_of(online, TARGET, rows())[0].backward()
    gradient = online.advantage[0].weight.grad.T.view(2, 2, 3)  # [state, action, atom]
    expected = torch.zeros(2, 2, 3)
    expected[0, 1] = torch.tensor([0.2 - 0.25, 0.3 - 0.625, 0.5 - 0.125]) / 2
    expected[1, 0] = torch.tensor([0.1, 0.2 - 0.5, 0.7 - 0.5]) / 2
    torch.testing.assert_close(gradient, expected)
    assert all(each.grad is None for each in TARGET.parameters())


# -- quantiles -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("double", "future"), [(True, [2.0, 4.0]), (False, [0.0, 10.0])])
def test_a_minibatch_of_quantiles_by_hand(double, future):
    online = table(
        [[[0.0, 0.0], [1.0, 2.0]], [[3.0, 3.0], [0.0, 1.0]]],
        distribution="quantile",
    )
    target = table([[[6.0, 7.0]] * 2, [[2.0, 4.0], [0.0, 10.0]]], distribution="quantile")
    loss, metrics = loss_of(online, target, rows(), double=double)
    goals = [[1 + future[0] / 2, 1 + future[1] / 2], [3.0, 3.0]]
    expected = []
    for said, goal in zip([[1.0, 2.0], [3.0, 3.0]], goals, strict=True):
        total = 0.0
        for level, quantile in zip([0.25, 0.75], said, strict=True):
            for sample in goal:
                error = sample - quantile
                huber = error**2 / 2 if abs(error) <= 1 else abs(error) - 0.5
                total += (level if error >= 0 else 1 - level) * huber / 2
        expected.append(total)
    assert metrics["error"].tolist() == pytest.approx(expected)
    assert loss.item() == pytest.approx(sum(expected) / 2)
    assert metrics["q_mean"].item() == pytest.approx((1.5 + 3.0) / 2)
    assert metrics["target"].item() == pytest.approx((1 + sum(future) / 4 + 3) / 2)


def test_masks_of_the_next_observation_reach_the_target_of_a_distribution():
    spec = EnvSpec("x", Dict({"room": Discrete(2), ACTION_MASK: box(2)}), Discrete(2))
    model = QNetwork(network(), spec, distribution="quantile", count=2)
    model.advantage[0].weight.data.copy_(torch.tensor([[0.0, 4], [0, 4], [0, 5], [0, 7]]))
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    batch = rows(
        **{
            OBS: {"room": torch.tensor([0, 0]), ACTION_MASK: torch.ones(2, 2)},
            REWARD: torch.zeros(2),
            TERMINATED: torch.zeros(2, dtype=torch.bool),
            NEXT_OBS: {"room": torch.tensor([1, 1]), ACTION_MASK: mask},
        }
    )
    _, metrics = loss_of(model, model, batch)
    assert metrics["target"].item() == pytest.approx((6 / 2 + 4 / 2) / 2)


# -- the network ---------------------------------------------------------------------------------


@pytest.mark.parametrize("distribution", ["c51", "quantile"])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("normalize", ["off", "running"])
def test_the_numpy_values_are_the_torch_values(distribution, dueling, normalize):
    torch.manual_seed(0)
    options = {"distribution": distribution, "count": 7, "value_range": (-3, 5)}
    spec = EnvSpec("x", box(4), Discrete(3))
    model = QNetwork(network(16, head=(8,)), spec, normalize, dueling=dueling, **options)
    model.normalizer.update_statistics(np.random.default_rng(0).normal(3, 2, size=(50, 4)))
    obs, fast = torch.randn(32, 4), fast_values(model)
    np.testing.assert_allclose(fast(obs.numpy()), model(obs).detach().numpy(), atol=1e-4)
    model.advantage[-1].weight.data.mul_(200)  # same memory, and logits that would overflow
    np.testing.assert_allclose(fast(obs.numpy()), model(obs).detach().numpy(), atol=1e-3)


def test_every_atom_duels_by_itself():
    spec = EnvSpec("x", box(4), Discrete(3))
    options = {"dueling": True, "distribution": "c51", "count": 5}
    model, obs = QNetwork(network(8), spec, **options), torch.randn(16, 4)
    outputs, state = model(obs, raw=True), model.value(model.encoder(obs))
    assert outputs.shape == (16, 3, 5) and state.shape == (16, 5)
    torch.testing.assert_close(outputs.mean(1), state)  # over actions, not over atoms
    model.advantage[-1].bias.data.view(3, 5)[:, 2] += 5  # the same for all actions: taken out
    torch.testing.assert_close(model(obs, raw=True), outputs)
    model.value[-1].bias.data[2] += 5
    changed = model(obs, raw=True) - outputs
    torch.testing.assert_close(changed, 5.0 * torch.eye(5)[2].expand(16, 3, 5))


# -- noise ---------------------------------------------------------------------------------------


def shifted(values: list) -> QNetwork:
    """A table to whose values the noise of the outputs is added, and nothing else."""
    model = table(values, noisy=True)
    model.advantage[0].weight_scale.data.zero_()
    model.advantage[0].bias_scale.data.fill_(1)
    return model


def test_network_choice_and_target_have_noise_of_their_own():
    online, target = shifted([[0.0, 2.0], [3.0, 1.0]]), shifted([[9.0, 9.0], [4.0, 6.0]])
    zero = [0.0, 0.0]  # of the inputs
    noise = torch.tensor([[*zero, 0.0, 0.5], [*zero, 0.0, 9.0], [*zero, 70.0, 10.0]])
    # Q = 2 + .5 and 3; the choice in state 1 turns to action 1, which its target gives 6 + 10
    _, metrics = loss_of(online, target, rows(), noise=noise)
    assert metrics["error"].tolist() == [abs(1 + 16 / 2 - 2.5), abs(3.0 - 3.0)]
    _, metrics = loss_of(online, target, rows(), noise=noise, double=False)
    assert metrics["error"].tolist() == [abs(1 + 74 / 2 - 2.5), 0.0]
    _, quiet = loss_of(online, target, rows())
    assert quiet["error"].tolist() == [1 + 4 / 2 - 2, 0.0]


def test_every_environment_has_its_own_noise_and_evaluations_have_none(tiny):
    workflow = tiny("CartPole-v1:dqn_defaults", *SMALL, "algorithm.noisy=true").workflow
    layer = workflow.model.advantage[-1]
    for each in (layer.weight, layer.weight_scale, layer.bias):
        each.data.zero_()
    layer.bias.data[0] = 1e-3  # the mean prefers action 0, noise is far larger
    layer.bias_scale.data.fill_(1)
    obs = torch.zeros(2000, 4)
    assert workflow.epsilon == 0.0
    for deterministic, share in ((True, 0.0), (False, 0.5)):
        taken = [workflow.act(obs, None, deterministic=deterministic).action for _ in range(2)]
        assert taken[0].mean() == pytest.approx(share, abs=0.05)
        assert (taken[0] == taken[1]).all() == deterministic  # fresh at every step
    policy = workflow.pure_policy()
    noise = policy.noise(500)
    decided = torch.stack([policy.decide(policy.weights, obs[:4], each)[0] for each in noise])
    assert decided.float().mean(0).tolist() == pytest.approx([0.5] * 4, abs=0.1)
    assert decided.float().mean(1).std() > 0.1  # not all environments at once
    workflow.epsilon = 1.0
    quiet = noise * torch.cat([torch.ones(3), torch.zeros(noise.shape[-1] - 3)])
    decided = torch.stack([policy.decide(workflow.pure_policy().weights, obs[:4], each)[0]
                           for each in quiet])  # fmt: skip
    assert decided.float().mean().item() == pytest.approx(0.5, abs=0.05)


def test_noise_of_gradient_steps_comes_from_a_stream_of_the_run(tiny):
    words = ["CartPole-v1:dqn_defaults", *SMALL, *NOISY]
    first, second = tiny(*words), tiny(*words)
    batch = minibatches(4)
    torch.manual_seed(1)
    first.workflow.update(batch, phase=PHASE)
    torch.manual_seed(2)
    second.workflow.update(batch, phase=PHASE)
    assert torch.equal(first.workflow.learner.state.flat, second.workflow.learner.state.flat)
    flats = []
    for orchestrator in (first, second):  # the same weights, another place in the stream
        workflow = orchestrator.workflow
        if orchestrator is second:
            workflow.learning_noise_rng.manual_seed(5)
        workflow.update(minibatches(1, seed=1), phase=PHASE)
        flats.append(workflow.learner.state.flat)
    assert not torch.equal(*flats)


def test_the_entropy_of_voters_by_hand():
    votes = torch.tensor([[0, 1], [0, 2], [0, 1], [1, 1]])  # 4 voters, 2 rows
    legal = torch.ones(2, 3)
    both = torch.tensor([0.75, 0.25])
    entropy = -(both * both.log()).sum()
    torch.testing.assert_close(noisy_entropy(votes, 0.0, legal), entropy)
    legal[0, 2] = 0
    mixed = [0.5 * 0.75 + 0.25, 0.5 * 0.25 + 0.25], [1 / 6, 0.5 * 0.75 + 1 / 6, 1 / 8 + 1 / 6]
    expected = sum(-sum(p * np.log(p) for p in each) for each in mixed) / 2
    assert noisy_entropy(votes, 0.5, legal).item() == pytest.approx(expected)
    alone = torch.zeros(5, 2, dtype=torch.long)  # all agree: the entropy of epsilon
    found = noisy_entropy(alone, 0.6, torch.ones(2, 4)).item()
    assert found == pytest.approx(policy_entropy(0.6, 4))


# -- with everything else ------------------------------------------------------------------------


def minibatches(count: int, size: int = 8, seed: int = 0) -> dict:
    generator = torch.Generator().manual_seed(seed)
    shape = (count, size)
    return {
        OBS: torch.randn(*shape, 4, generator=generator),
        ACTION: torch.randint(2, shape, generator=generator),
        REWARD: torch.randn(*shape, 3, generator=generator),
        STEPS: torch.randint(1, 4, shape, generator=generator),
        TERMINATED: torch.rand(shape, generator=generator) < 0.2,
        NEXT_OBS: torch.randn(*shape, 4, generator=generator),
        WEIGHT: torch.rand(shape, generator=generator),
    }


@every_switch
def test_compiled_and_eager_learn_the_same(tiny, interpreted, words):
    learned = []
    for mode in ("off", "on"):
        own = [*SMALL, "environment.normalize_obs=true", "algorithm.target_every=2"]
        made = tiny("CartPole-v1:dqn_defaults", *own, *words, f"compute.compile={mode}").workflow
        metrics = made.update(minibatches(5), phase=PHASE)
        learned.append([made.learner.state.flat, made.learner.target_flat, metrics])
    assert interpreted == ["the update"]
    for eager, compiled in zip(*(each[:2] for each in learned), strict=True):
        torch.testing.assert_close(compiled, eager, atol=1e-5, rtol=1e-4)
    eager, compiled = (each[2] for each in learned)
    assert eager.keys() == compiled.keys() >= {"q_mean", "q_spread", "entropy", "td_error"}
    assert {k: float(v) for k, v in eager.items()} == pytest.approx(
        {k: float(v) for k, v in compiled.items()}, rel=1e-3, abs=1e-4
    )


@every_switch
def test_the_pure_policy_is_pure_and_takes_the_best_action(tiny, words):
    workflow = tiny("CartPole-v1:dqn_defaults", *SMALL, *words, "algorithm.epsilon=0").workflow
    obs, policy = torch.randn(4, 4), workflow.pure_policy()
    noise = policy.noise(1)[0]
    leaves: list[torch.Tensor] = []
    shape = _flatten((policy.weights, obs, noise), leaves)
    graph, _ = _trace(policy.decide, [each.detach().clone() for each in leaves], shape, "a policy")
    layers = noise[:, 3:] if workflow.config.noisy else None
    best = workflow.model(obs, layers).argmax(-1)
    assert torch.equal(graph(*leaves)[0], best)
    if layers is None:
        assert (workflow.act(obs, None, deterministic=True).action == best.numpy()).all()


def play(orchestrator, hooks):
    for _ in range(hooks):
        orchestrator.execute(orchestrator.scheduler.next_action())


@every_switch
def test_forbidden_actions_are_never_taken(tiny, words):
    """Gates raises if one is."""
    orchestrator = tiny(
        "space_envs:Gates-v0:dqn_defaults",
        *SMALL,
        *("environment.wrappers=[{id: ActionMask}]", "algorithm.n_step=3", *words),
    )
    play(orchestrator, 40)
    orchestrator.measure()
    assert orchestrator.workflow.budget.steps > 30


def test_pixels_with_every_switch(tiny):
    wrappers = "[{id: Grayscale}, {id: Resize, size: 20}, {id: FrameStack, frames: 2}]"
    orchestrator = tiny(
        "picture_env:Picture-v0:dqn_defaults",
        *SMALL,
        *(f"environment.wrappers={wrappers}", "algorithm.n_step=3", *C51, *NOISY, DUELING),
        *("~network.encoder.hidden_dims", "network.encoder.type=nature"),
        *("+network.encoder.features=8", "buffers.replay.type=prioritized"),
    )
    play(orchestrator, 20)
    before = orchestrator.workflow.learner.state.flat.clone()
    play(orchestrator, 4)
    assert not torch.equal(before, orchestrator.workflow.learner.state.flat)


@pytest.mark.parametrize("words", [C51, QUANTILE], ids=["c51", "quantile"])
def test_losses_of_rows_become_priorities(tiny, monkeypatch, words):
    orchestrator = tiny("CartPole-v1:dqn_defaults", *SMALL, *words)
    workflow, given = orchestrator.workflow, []
    monkeypatch.setattr(
        orchestrator.buffers["replay"], "reprioritize", lambda *each: given.append(each)
    )
    batch = minibatches(2) | {INDEX: torch.arange(16).view(2, 8)}
    first = {name: each[0] for name, each in batch.items() if name != WEIGHT}
    options = {"double": True, "huber": True}
    gamma, frozen = torch.tensor(0.99), workflow.learner.target
    *_, expected = dqn_loss(workflow.model, first, frozen, gamma, **options)
    workflow.update(batch, phase=PHASE)
    torch.testing.assert_close(given[0][1][0], expected["error"])
    assert (given[0][1] > 0).all()


# -- configuration -------------------------------------------------------------------------------


def test_noise_explores_alone_unless_epsilon_is_written():
    assert DQNConfig().epsilon == Schedule(start=1.0, end=0.05, finish=0.2)
    assert DQNConfig(noisy=True).epsilon == 0.0
    assert DQNConfig(noisy=True, epsilon=0.1).epsilon == 0.1
    assert DQNConfig(epsilon=0.3).epsilon == 0.3
    for word, expected in ((["algorithm.epsilon=auto"], 0.0), ([], 0.0)):
        config = tiny_config("CartPole-v1:dqn_defaults", "algorithm.noisy=true", *word)
        assert config.algorithm.epsilon == expected
        assert validate(to_tree(config), {}).algorithm == config.algorithm  # as it is saved


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"value_range": [1.0, 1.0]}, r"value_range must be \[low, high\] with low < high"),
        ({"value_range": [1.0]}, "value_range must be"),
        ({"value_range": [0.0, float("inf")]}, "value_range must be"),
        ({"value_range": [float("nan"), 1.0]}, "value_range must be"),
        ({"atoms": 1}, "atoms must be at least 2"),
        ({"quantiles": 0}, "quantiles must be at least 1"),
        ({"distribution": "c51", "huber": False}, "huber must be true with a distribution"),
    ],
)
def test_bad_values_are_refused(options, problem):
    with pytest.raises(ValueError, match=problem):
        DQNConfig(**options)


def test_an_unknown_distribution_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match=r"algorithm\.distribution: must be 'none', 'c51' or"):
        tiny_config("CartPole-v1:dqn_defaults", "algorithm.distribution=c52")


def test_compiling_a_distribution_repays_sooner():
    plain, c51 = (tiny_config("CartPole-v1:dqn_defaults", *SMALL, *each) for each in ([], C51))
    assert c51.algorithm.gradient_steps(c51) == 3 * plain.algorithm.gradient_steps(plain)
