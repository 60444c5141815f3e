"""DQN: targets, losses, exploration and accounting, by hand."""

import numpy as np
import pytest
import torch

import space_envs  # noqa: F401  (registers its worlds)
from rl_lab.algorithms.dqn import (
    DQNConfig,
    chosen_value,
    dqn_loss,
    epsilon_entropy,
    policy_entropy,
    td_loss,
    td_target,
)
from rl_lab.core import compiled
from rl_lab.core.batch import (
    ACTION,
    ACTION_MASK,
    INDEX,
    NEXT_OBS,
    OBS,
    REWARD,
    STEPS,
    TERMINATED,
    TRUNCATED,
    WEIGHT,
)
from rl_lab.core.errors import ConfigError, NonFiniteError, UserError
from rl_lab.core.schema import HeadConfig, NetworkConfig
from rl_lab.core.spec import Box, Dict, Discrete, EnvSpec
from rl_lab.core.state import fingerprint, join, split
from rl_lab.networks.encoder import AutoEncoderConfig
from rl_lab.networks.numpy_policy import fast_values
from rl_lab.networks.q_network import QNetwork
from tiny_runs import tiny_config

PHASE = {"name": "train", "type": "online", "step": 0, "progress": 0.0, "buffer": None}
GAMMA = torch.tensor(0.5)
SMALL = ["algorithm.learning_starts=64", "algorithm.batch_size=16"]


def box(size: int) -> Box:
    low = np.full(size, -np.inf, np.float32)
    return Box((size,), np.dtype(np.float32), low, -low)


def network(*hidden: int, head: tuple[int, ...] = ()) -> NetworkConfig:
    encoder = AutoEncoderConfig(hidden_dims=list(hidden), activation="relu")
    critic = HeadConfig(hidden_dims=list(head))
    return NetworkConfig(encoder=encoder, memory=None, critic=critic)


# -- targets -------------------------------------------------------------------------------------


def test_double_takes_the_choice_of_one_and_the_judgement_of_the_other():
    online, target = torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([[10.0, 20.0, 30.0]])
    assert chosen_value(online, target, None).tolist() == [20.0]  # action 1, as the target sees it
    assert chosen_value(target, target, None).tolist() == [30.0]  # plain: the target's own best


def test_the_bootstrap_never_takes_a_forbidden_action():
    online, target = torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([[-10.0, 20.0, -30.0]])
    mask = torch.tensor([[1, 0, 1]])
    assert chosen_value(online, target, mask).tolist() == [-30.0]
    assert chosen_value(target, target, mask).tolist() == [-10.0]


def test_a_mask_that_forbids_everything_does_not_poison_the_target():
    values = torch.tensor([[4.0, 5.0]])
    assert chosen_value(values, values, torch.zeros(1, 2)).tolist() == [4.0]


def test_one_step_targets_by_hand():
    reward, terminated = torch.tensor([1.0, 1.0]), torch.tensor([False, True])
    target = td_target(reward, None, terminated, torch.tensor([8.0, 8.0]), GAMMA)
    assert target.tolist() == [5.0, 1.0]  # 1 + .5 * 8; the end has no future


def test_n_step_targets_by_hand():
    # rewards 1, 2, 3, 4 and γ = .5: a whole window is 1 + 2/2 + 3/4 = 2.75, then .125 * Q.
    # From t = 2 it is cut at 3: 3 + 4/2 = 5, then .25 * Q if truncated, nothing if terminated.
    reward = torch.tensor([[1.0, 2.0, 3.0], [3.0, 4.0, 0.0], [3.0, 4.0, 0.0]])
    steps, terminated = torch.tensor([3, 2, 2]), torch.tensor([False, False, True])
    target = td_target(reward, steps, terminated, torch.full((3,), 16.0), GAMMA)
    assert target.tolist() == [2.75 + 2.0, 5.0 + 4.0, 5.0]


def test_losses_by_hand():
    value, target = torch.tensor([0.0, 0.0, 0.0]), torch.tensor([0.5, -3.0, 1.0])
    # huber: .5 * .25, |-3| - .5, .5; half the square: .125, 4.5, .5
    assert td_loss(value, target, None, huber=True).item() == pytest.approx((0.125 + 2.5 + 0.5) / 3)
    assert td_loss(value, target, None, huber=False).item() == pytest.approx(5.125 / 3)
    weight = torch.tensor([1.0, 0.5, 0.0])
    loss = td_loss(value, target, weight, huber=True)
    assert loss.item() == pytest.approx((0.125 + 1.25) / 3)


# -- the network ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("normalize", ["off", "running"])
def test_the_numpy_values_are_the_torch_values(dueling, normalize):
    torch.manual_seed(0)
    spec = EnvSpec("x", box(4), Discrete(3))
    model = QNetwork(network(16, 8, head=(8,)), spec, normalize, dueling=dueling)
    model.normalizer.update_statistics(np.random.default_rng(0).normal(3, 2, size=(50, 4)))
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape)
    obs, fast = torch.randn(32, 4), fast_values(model)
    np.testing.assert_allclose(fast(obs.numpy()), model(obs).detach().numpy(), atol=1e-4)
    model.advantage[-1].weight.data.zero_()  # same memory: the twin follows
    np.testing.assert_allclose(fast(obs.numpy()), model(obs).detach().numpy(), atol=1e-4)


def test_the_numpy_values_decline_what_they_cannot_do():
    for observation in (Discrete(5), Dict({"a": box(2)})):
        assert fast_values(QNetwork(network(8), EnvSpec("x", observation, Discrete(2)))) is None
    wide = QNetwork(network(8, head=(300,)), EnvSpec("x", box(2), Discrete(2)), dueling=True)
    assert fast_values(wide) is None


def test_dueling_advantages_have_no_mean():
    model = QNetwork(network(8), EnvSpec("x", box(4), Discrete(3)), dueling=True)
    obs = torch.randn(16, 4)
    values, state_value = model(obs), model.value(model.encoder(obs))
    torch.testing.assert_close((values - state_value).mean(-1), torch.zeros(16))
    model.advantage[-1].bias.data += 5  # a constant says nothing about actions: it is taken out
    torch.testing.assert_close(model(obs), values)
    model.value[-1].bias.data += 5
    torch.testing.assert_close(model(obs), values + 5)


# -- the loss of a minibatch ---------------------------------------------------------------------


def table(values: list[list[float]]) -> QNetwork:
    """A network that is a table: the row of a Discrete observation is its values."""
    rows = torch.tensor(values)
    model = QNetwork(network(), EnvSpec("x", Discrete(len(rows)), Discrete(rows.shape[1])))
    model.advantage[0].weight.data.copy_(rows.T)
    return model


ROWS = {
    OBS: torch.tensor([0, 1]),
    ACTION: torch.tensor([1, 0]),
    REWARD: torch.tensor([1.0, 2.0]),
    TERMINATED: torch.tensor([False, True]),
    NEXT_OBS: torch.tensor([1, 0]),
}


@pytest.mark.parametrize(("double", "bootstrap"), [(True, 4.0), (False, 6.0)])
def test_a_minibatch_by_hand(double, bootstrap):
    online = table([[0.0, 2.0], [3.0, 1.0]])
    target = table([[9.0, 9.0], [4.0, 6.0]])  # in state 1 the two disagree about the best action
    options = {"double": double, "huber": False}
    loss, metrics, aux = dqn_loss(online, ROWS, target, GAMMA, **options)
    errors = [1 + 0.5 * bootstrap - 2, 2.0 - 3.0]
    assert aux["error"].tolist() == [abs(each) for each in errors]
    assert loss.item() == pytest.approx(sum(each**2 for each in errors) / 4)
    assert metrics["q_mean"].item() == 2.5  # of the actions that were taken: 2 and 3
    assert metrics["q_max"].item() == 2.5
    assert metrics["q_spread"].item() == 2.0
    assert metrics["target"].item() == pytest.approx((1 + 0.5 * bootstrap + 2) / 2)
    weighted = {**ROWS, WEIGHT: torch.tensor([1.0, 0.5])}
    loss, _, aux = dqn_loss(online, weighted, target, GAMMA, **options)
    assert loss.item() == pytest.approx((errors[0] ** 2 + 0.5 * errors[1] ** 2) / 4)
    assert aux["error"].tolist() == [abs(each) for each in errors]  # priorities: no weights


def test_no_gradient_reaches_the_target_network():
    online, target = table([[0.0, 2.0], [3.0, 1.0]]), table([[9.0, 9.0], [4.0, 6.0]])
    loss, _, _ = dqn_loss(online, ROWS, target, GAMMA, double=True, huber=True)
    loss.backward()
    assert all(each.grad is None for each in target.parameters())
    gradient = online.advantage[0].weight.grad
    # errors 1 and -1 are beyond nothing: dloss/dQ = -δ/2 at (action 1, state 0), (0, 1); else 0
    assert gradient.tolist() == [[0.0, 0.5], [-0.5, 0.0]]


def test_masks_of_the_next_observation_reach_the_target():
    spec = EnvSpec("x", Dict({"room": Discrete(2), ACTION_MASK: box(2)}), Discrete(2))
    model = QNetwork(network(), spec)
    model.advantage[0].weight.data.copy_(torch.tensor([[0.0, 4.0], [2.0, 6.0]]))  # [action, room]
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    rows = {
        OBS: {"room": torch.tensor([0, 0]), ACTION_MASK: torch.ones(2, 2)},
        ACTION: torch.tensor([0, 0]),
        REWARD: torch.zeros(2),
        TERMINATED: torch.zeros(2, dtype=torch.bool),
        NEXT_OBS: {"room": torch.tensor([1, 1]), ACTION_MASK: mask},
    }
    _, _, aux = dqn_loss(model, rows, model, GAMMA, double=True, huber=True)
    assert aux["error"].tolist() == [3.0, 2.0]  # half of 6; half of 4 where 1 is forbidden


# -- the workflow --------------------------------------------------------------------------------


def minibatches(count: int, rows: int = 8, seed: int = 0) -> dict:
    generator = torch.Generator().manual_seed(seed)
    shape = (count, rows)
    return {
        OBS: torch.randn(*shape, 4, generator=generator),
        ACTION: torch.randint(2, shape, generator=generator),
        REWARD: torch.randn(shape, generator=generator),
        TERMINATED: torch.rand(shape, generator=generator) < 0.2,
        TRUNCATED: torch.zeros(shape, dtype=torch.bool),
        NEXT_OBS: torch.randn(*shape, 4, generator=generator),
    }


def dqn(tiny, *overrides):
    return tiny("CartPole-v1:dqn_defaults", *SMALL, *overrides).workflow


def play(orchestrator, hooks):
    for _ in range(hooks):
        orchestrator.execute(orchestrator.scheduler.next_action())


def test_the_target_follows_slowly(tiny):
    workflow = dqn(tiny, "algorithm.target_every=1", "algorithm.target_rate=0.1")
    before = workflow.learner.target_flat.clone()
    workflow.update(minibatches(1), phase=PHASE)
    online = workflow.learner.state.flat
    torch.testing.assert_close(workflow.learner.target_flat, before + 0.1 * (online - before))
    assert not torch.equal(online, before)
    workflow.learner.target_flat.zero_()
    workflow.learner.state.flat.fill_(1.0)
    workflow.learner.follow(0.1)
    torch.testing.assert_close(workflow.learner.target_flat, torch.full_like(online, 0.1))


def test_the_target_is_copied_every_seventh_gradient_step(tiny):
    workflow = dqn(tiny, "algorithm.target_every=7")
    before = workflow.learner.target_flat.clone()
    workflow.update(minibatches(4), phase=PHASE)
    workflow.update(minibatches(2, seed=1), phase=PHASE)
    assert torch.equal(workflow.learner.target_flat, before)  # after 6
    other = dqn(tiny, "algorithm.target_every=7", "experiment.seed=5")
    other.set_state(join(*split(workflow.get_state())))
    for each in (workflow, other):  # the count survives
        each.update(minibatches(1, seed=2), phase=PHASE)
        assert torch.equal(each.learner.target_flat, each.learner.state.flat)
    assert torch.equal(workflow.learner.target_flat, other.learner.target_flat)
    assert not torch.equal(workflow.learner.target_flat, before)
    # also in the middle of an update: the copy is of the 14th step, not of the 16th
    workflow.update(minibatches(9, seed=3), phase=PHASE)
    assert not torch.equal(workflow.learner.target_flat, workflow.learner.state.flat)
    other.update(minibatches(9, seed=3), phase=PHASE)
    assert torch.equal(workflow.learner.target_flat, other.learner.target_flat)


@pytest.mark.parametrize("num_envs", [1, 4, 7])
def test_gradient_steps_are_counted_exactly(tiny, num_envs):
    orchestrator = tiny(
        "CartPole-v1:dqn_defaults",
        *("algorithm.learning_starts=20", "algorithm.batch_size=4", "algorithm.train_every=1"),
        *("algorithm.replay_ratio=0.3", f"environment.num_envs={num_envs}"),
    )
    while orchestrator.counters.env_steps < 150:
        play(orchestrator, 2)
        steps = orchestrator.counters.env_steps
        assert orchestrator.workflow.budget.steps == max(steps - 20, 0) * 3 // 10


def test_epsilon_follows_environment_steps(tiny):
    orchestrator = tiny(
        "CartPole-v1:dqn_defaults",
        *SMALL,
        "algorithm.epsilon={start: 1, end: 0, from: 100, to: 300}",
    )
    workflow, seen = orchestrator.workflow, {}
    assert workflow.epsilon == 1.0
    while orchestrator.counters.env_steps < 400:
        seen[orchestrator.counters.env_steps] = None
        play(orchestrator, 1)  # collect
        seen[list(seen)[-1]] = workflow.epsilon
        play(orchestrator, 1)
    assert seen[0] == seen[96] == 1.0 and seen[304] == 0.0
    assert seen[208] == pytest.approx(1 - 108 / 200)


def test_every_environment_explores_by_itself(tiny):
    workflow = dqn(tiny)
    obs, count = torch.zeros(2000, 4), 2000
    best = workflow.act(obs, None, deterministic=True).action
    assert len(set(best.tolist())) == 1
    for epsilon in (0.0, 0.4, 1.0):
        workflow.epsilon = epsilon
        others = (workflow.act(obs, None, deterministic=False).action != best).sum()
        assert others == pytest.approx(
            epsilon / 2 * count, abs=70
        )  # half of the random ones differ
        assert (workflow.act(obs, None, deterministic=True).action == best).all()


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
def test_forbidden_actions_are_never_taken(tiny, epsilon):
    """Gates raises if one is: warming up, exploring, greedy; and in evaluations."""
    orchestrator = tiny(
        "space_envs:Gates-v0:dqn_defaults",
        *SMALL,
        *("environment.wrappers=[{id: ActionMask}]", f"algorithm.epsilon={epsilon}"),
    )
    play(orchestrator, 40)
    orchestrator.measure()
    assert orchestrator.workflow.budget.steps > 30
    assert (
        orchestrator.workflow.numpy_values is None and orchestrator.workflow.pure_policy() is None
    )


def test_the_entropy_of_the_policy_by_hand():
    # Of four actions one is the best: 0.4 + 0.6 / 4, and three times 0.15.
    expected = -0.55 * np.log(0.55) - 3 * 0.15 * np.log(0.15)
    assert policy_entropy(0.6, 4) == pytest.approx(expected)
    assert policy_entropy(0.0, 4) == 0 and policy_entropy(0.7, 1) == pytest.approx(0)
    assert policy_entropy(1.0, 4) == pytest.approx(np.log(4))


def test_an_update_tells_the_entropy_of_the_policy(tiny):
    workflow = dqn(tiny)
    workflow.epsilon = 0.6
    told = workflow.update(minibatches(3), phase=PHASE)
    assert told["entropy"] == pytest.approx(policy_entropy(0.6, 2))


def test_only_legal_actions_count_in_the_entropy():
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    expected = (policy_entropy(0.6, 4) + policy_entropy(0.6, 2)) / 2
    assert epsilon_entropy(0.6, 4, mask).item() == pytest.approx(expected)
    assert epsilon_entropy(0.6, 4, None) == policy_entropy(0.6, 4)


def test_pixels(tiny):
    wrappers = "[{id: Grayscale}, {id: Resize, size: 20}, {id: FrameStack, frames: 2}]"
    orchestrator = tiny(
        "picture_env:Picture-v0:dqn_defaults",
        *SMALL,
        *(f"environment.wrappers={wrappers}", "algorithm.dueling=true", "algorithm.n_step=3"),
        *("~network.encoder.hidden_dims", "network.encoder.type=nature"),
        "+network.encoder.features=8",
    )
    play(orchestrator, 20)
    phase = {**PHASE, "step": orchestrator.counters.env_steps + 8}
    batch = orchestrator.workflow.sample(orchestrator.buffers["replay"], hook="update", phase=phase)
    assert batch[OBS].dtype == torch.uint8 and batch[REWARD].shape == (*batch[STEPS].shape, 3)
    before = orchestrator.workflow.learner.state.flat.clone()
    orchestrator.workflow.update(batch, phase=phase)
    assert not torch.equal(before, orchestrator.workflow.learner.state.flat)


def test_observation_statistics_are_the_same_in_both_networks(tiny):
    orchestrator = tiny("CartPole-v1:dqn_defaults", *SMALL, "environment.normalize_obs=true")
    play(orchestrator, 6)
    workflow = orchestrator.workflow
    own, target = workflow.model.normalizer, workflow.learner.target.normalizer
    assert own.moments.count == orchestrator.counters.env_steps
    assert torch.equal(own.shift, target.shift) and torch.equal(own.scale, target.scale)
    assert (own.shift != 0).any()


@pytest.mark.parametrize("where", ["first", "last"])
def test_a_bad_number_leaves_everything_as_it_was(tiny, where):
    workflow = dqn(tiny, "algorithm.target_every=2")
    workflow.update(minibatches(3), phase=PHASE)
    before = fingerprint(workflow.get_state())
    batch = minibatches(3, seed=1)
    batch[REWARD][0 if where == "first" else -1, 2] = float("nan")
    with pytest.raises(NonFiniteError, match="DQN update of q_network"):
        workflow.update(batch, phase=PHASE)
    assert fingerprint(workflow.get_state()) == before


def test_errors_become_priorities(tiny, monkeypatch):
    orchestrator = tiny("CartPole-v1:dqn_defaults", *SMALL)
    workflow, given = orchestrator.workflow, []
    monkeypatch.setattr(
        orchestrator.buffers["replay"], "reprioritize", lambda *each: given.append(each)
    )
    batch = minibatches(2)
    batch |= {INDEX: torch.arange(16).view(2, 8), WEIGHT: torch.full((2, 8), 0.5)}
    rows = {name: each[0] for name, each in batch.items() if name != WEIGHT}
    gamma, options = torch.tensor(0.99), {"double": True, "huber": True}
    *_, expected = dqn_loss(workflow.model, rows, workflow.learner.target, gamma, **options)
    metrics = workflow.update(batch, phase=PHASE)
    ((index, error),) = given
    assert torch.equal(index, batch[INDEX]) and error.shape == (2, 8)
    torch.testing.assert_close(error[0], expected["error"])
    assert "error" not in metrics and "gradient" not in metrics


def test_weights_of_importance_reach_the_loss(tiny):
    workflow = dqn(tiny)
    before = workflow.learner.state.flat.clone()
    workflow.update({**minibatches(1), WEIGHT: torch.zeros(1, 8)}, phase=PHASE)
    assert torch.equal(workflow.learner.state.flat, before)
    workflow.update({**minibatches(1), WEIGHT: torch.ones(1, 8)}, phase=PHASE)
    assert not torch.equal(workflow.learner.state.flat, before)


# -- compiled ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dueling", ["true", "false"])
def test_the_update_can_be_compiled_whole(tiny, dueling):
    """Traced, not built: what it reads from outside would be refused here."""
    workflow = dqn(tiny, f"algorithm.dueling={dueling}", "environment.normalize_obs=true")
    learner, batch = workflow.learner, minibatches(1)
    used = (OBS, ACTION, REWARD, TERMINATED, NEXT_OBS)
    rows = {name: batch[name][0] for name in used}
    arguments = (
        *learner._moving((rows, learner.target, torch.tensor(0.9))),
        *(torch.tensor(1e-2), torch.tensor(10.0), ()),
        dict(workflow.model.named_buffers()),
    )
    inputs: list[torch.Tensor] = []
    shape = compiled._flatten(arguments, inputs)
    graph, _ = compiled._trace(learner._pure_step, inputs, shape, "the update")
    flat = graph(*inputs)[0]
    options = {"learning_rate": torch.tensor(1e-2), "max_grad_norm": torch.tensor(10.0)}
    learner.step(rows, learner.target, torch.tensor(0.9), **options)
    torch.testing.assert_close(flat, learner.state.flat, atol=1e-6, rtol=0)


def test_the_pure_policy_is_the_policy(tiny):
    workflow, obs = dqn(tiny), torch.randn(4, 4)
    best = workflow.act(obs, None, deterministic=True).action
    for epsilon in (0.0, 1.0):
        workflow.epsilon = epsilon
        policy = workflow.pure_policy()
        noise = policy.noise(500)
        assert noise.shape == (500, 4, 3)
        actions = torch.stack([policy.decide(policy.weights, obs, each)[0] for each in noise])
        if epsilon == 0:
            assert (actions == torch.from_numpy(best)).all()
        else:
            assert actions.float().mean().item() == pytest.approx(0.5, abs=0.05)


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"epsilon": 1.5}, "epsilon must be in"),
        ({"epsilon": -0.1}, "epsilon must be in"),
        ({"target_rate": 2.0}, "target_rate must be in"),
        ({"target_rate": 0.0}, r"target_rate must be in \(0, 1\]"),
        ({"target_every": 0}, "target_every must be at least 1"),
        ({"n_step": 0}, "n_step must be at least 1"),
    ],
)
def test_bad_values_are_refused(options, problem):
    with pytest.raises(ValueError, match=problem):
        DQNConfig(**options)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["network.memory.type=gru"], "network.memory has no use here"),
        (["environment.normalize_reward=true"], "normalize_reward would change rewards"),
        (["network.shared_torso=true"], "network.shared_torso means nothing here"),
    ],
)
def test_impossible_combinations_are_refused_before_anything_is_built(overrides, problem):
    with pytest.raises(ConfigError, match=problem):
        tiny_config("CartPole-v1:dqn_defaults", *overrides)


def test_other_actions_are_declined_with_advice(tiny):
    with pytest.raises(
        UserError, match="dqn needs Discrete actions, 'Pendulum-v1' has Box: use ppo, or sac"
    ):
        tiny("Pendulum-v1:dqn_defaults", *SMALL)


def test_how_many_gradient_steps_a_run_has():
    config = tiny_config("CartPole-v1:dqn_defaults", *SMALL, "algorithm.replay_ratio=0.5")
    assert config.algorithm.gradient_steps(config) == (1024 - 64) * 0.5


def test_a_state_of_an_earlier_version_is_loaded_under_todays_names(tiny):
    workflow, other = (dqn(tiny, f"experiment.seed={seed}") for seed in (1, 2))
    workflow.update(minibatches(3), phase=PHASE)
    state = workflow.get_state()
    learner, budget = state.pop("learner"), state.pop("budget")
    old = {
        "model": learner["module"],
        "target": learner["target"],
        "optimizer": learner["optimizer"],
        "earned": {"seen": budget["seen"], "parts": budget["parts"]},
        "values": {**state["values"], "gradient_steps": budget["steps"]},
    }
    other.set_state(old)
    assert other.budget.steps == 3
    for one, two in zip(workflow.learner.snapshot()[0], other.learner.snapshot()[0], strict=True):
        assert torch.equal(one, two)
    assert torch.equal(workflow.learner.target_flat, other.learner.target_flat)
