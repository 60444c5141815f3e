"""Offline algorithms in runs: statistics of the dataset, phases, compiled updates, bad numbers."""

import shutil

import numpy as np
import pytest
import torch

from offline_data import cartpole_mixed, pendulum_expert
from rl_lab import api
from rl_lab.algorithms.iql import IQLConfig, decay
from rl_lab.algorithms.replay import collects, offline_updates
from rl_lab.core.batch import OBS, REWARD
from rl_lab.core.errors import ConfigError, NonFiniteError, UserError
from rl_lab.core.state import fingerprint
from rl_lab.run import policy
from tiny_runs import tiny_run

CONTINUOUS, DISCRETE = ("td3_bc", "iql", "cql", "awac"), ("iql", "awac", "cql_discrete")
CASES = [("Pendulum-v1", name) for name in CONTINUOUS] + [("CartPole-v1", n) for n in DISCRETE]
SMALL = ["algorithm.batch_size=16", "environment.num_envs=1"]
HEADS = ["network.actor.hidden_dims=[8]", "network.critic.hidden_dims=[8]"]
OFFLINE = "{name: offline, type: offline, buffer: data, duration_updates: 20, hooks: [update]}"
ONLINE = "{name: online, buffer: mixed, duration_steps: 40, hooks: [collect, update]}"
BOTH = [
    "buffers.replay.capacity=1000",
    "buffers.mixed={type: union, of: {replay: 0.5, data: 0.5}}",
    f"training.phases=[{OFFLINE}, {ONLINE}]",
    "training.total_timesteps=40",
]
every_case = pytest.mark.parametrize(("env", "name"), CASES)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """By environment: a file with a few episodes."""
    folder = tmp_path_factory.mktemp("datasets")
    return {
        "Pendulum-v1": pendulum_expert(folder / "pendulum.npz", 3),
        "CartPole-v1": cartpole_mixed(folder / "cartpole.npz", 1),
    }


@pytest.fixture
def built(tiny, datasets):
    """`built(env, name, …)`: an orchestrator of a run that begins offline."""

    def make(env, name, *words):
        data = f"buffers.data.path={datasets[env]}"
        heads = [] if name == "cql_discrete" else HEADS
        cql = ["algorithm.sampled_actions=2"] if name == "cql" else []
        return tiny(f"{env}:{name}_defaults", data, *SMALL, *heads, *cql, *words)

    return make


def play(orchestrator, hooks: int) -> None:
    for _ in range(hooks):
        orchestrator.execute(orchestrator.scheduler.next_action())


def normalizer_of(algorithm):
    return algorithm.model.normalizer if hasattr(algorithm, "model") else algorithm.normalizer


@every_case
def test_it_learns_from_a_dataset_and_no_environment_step_is_taken(built, env, name):
    orchestrator = built(env, name, f"training.phases=[{OFFLINE}]")
    before = fingerprint(orchestrator.algorithm.get_state())
    play(orchestrator, 3)
    assert fingerprint(orchestrator.algorithm.get_state()) != before
    counters = orchestrator.counters
    assert (counters.updates, counters.env_steps) == (3, 0)
    assert orchestrator.algorithm.budget.steps == 3


@every_case
def test_frames_are_normalized_by_the_whole_dataset_offline_and_online(built, datasets, env, name):
    orchestrator = built(env, name, *BOTH)
    with np.load(datasets[env]) as arrays:
        last = arrays["terminated"] | arrays["truncated"]
        frames = np.concatenate([arrays["obs"], arrays["next_obs"][last]]).astype(np.float64)
    normalizer = normalizer_of(orchestrator.algorithm)

    def is_of_the_data():
        np.testing.assert_allclose(normalizer.shift.numpy(), frames.mean(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(normalizer.scale.numpy(), 1 / frames.std(0), rtol=1e-4)

    is_of_the_data()
    play(orchestrator, 20 + 2 * 10)
    assert orchestrator.counters.env_steps >= 10
    is_of_the_data()


def test_statistics_travel_with_the_policy_and_the_dataset_does_not(tmp_path, datasets):
    data = shutil.copy(datasets["Pendulum-v1"], tmp_path / "data.npz")
    words = [f"buffers.data.path={data}", *SMALL, *HEADS, f"training.phases=[{OFFLINE}]"]
    run = tiny_run(tmp_path / "runs", "Pendulum-v1:iql_defaults", *words).run
    obs = torch.randn(5, 3)
    data.unlink()
    loaded = policy.load(f"{run.path}:last", tmp_path / "runs", warn=lambda text: None)
    normalizer = loaded.algorithm.normalizer
    assert normalizer.moments.count == 603  # 3 episodes of 200 steps, and their final frames
    again = loaded.algorithm.act(obs, None, deterministic=True).action
    without = loaded.algorithm.policy.module(obs).mode()
    assert not torch.allclose(again, without)
    torch.testing.assert_close(again, loaded.algorithm.policy.module(normalizer(obs)).mode())


@every_case
def test_offline_then_online_is_phases_alone(built, env, name):
    orchestrator = built(env, name, *BOTH)
    play(orchestrator, 20)
    assert orchestrator.scheduler.current_phase().name == "online"
    replay = orchestrator.buffers["replay"]
    assert len(replay) == 0
    drawn = []
    sample = orchestrator.algorithm.sample

    def seen(buffer, **options):
        drawn.append(sample(buffer, **options))
        return drawn[-1]

    orchestrator.algorithm.sample = seen
    play(orchestrator, 2 * 6)
    assert len(replay) >= 6
    batch = next(each for each in drawn if each is not None)
    assert batch[REWARD].shape[1] == 16
    recent = set(map(tuple, replay.last(len(replay))[OBS].flatten(0, -2).tolist()))
    half = [tuple(row) in recent for row in batch[OBS][0].tolist()]
    assert half == [True] * 8 + [False] * 8  # first the rows of the replay, then those of the data


def test_the_step_size_of_the_policy_falls_in_an_offline_phase_alone(built):
    # ½ (1 + cos(π · 0, ½, 1)) = 1, ½, 0
    phases = [{"type": "offline", "progress": share} for share in (0, 0.5, 1)]
    assert [decay("cosine", phase) for phase in phases] == pytest.approx([1, 0.5, 0])
    assert decay("constant", phases[1]) == decay("cosine", {"type": "online", "progress": 0.9}) == 1
    orchestrator = built("Pendulum-v1", "iql", *BOTH)
    rates = []
    update = orchestrator.algorithm.update

    def noted(batch, *, phase):
        metrics = update(batch, phase=phase)
        rates.append(metrics["policy_learning_rate"])
        return metrics

    orchestrator.hooks["update"] = noted
    play(orchestrator, 20 + 4)
    assert rates[:20] == sorted(rates[:20], reverse=True) and rates[10] == pytest.approx(1.5e-4)
    assert rates[-1] == pytest.approx(3e-4)


@every_case
def test_compiled_updates_are_the_eager_ones(built, interpreted, env, name):
    """Traced, not built: what they read from outside would be refused here."""
    learned = []
    for switch in ("off", "on"):
        words = [f"compute.compile={switch}", f"training.phases=[{OFFLINE}]"]
        orchestrator = built(env, name, *words)
        play(orchestrator, 4)
        algorithm = orchestrator.algorithm
        names = ("critic", "actor", "policy", "value", "learner", "temperature")
        parts = [getattr(algorithm, each, None) for each in names]
        learned.append([each.state.flat.clone() for each in parts if hasattr(each, "state")])
    assert interpreted
    for eager, compiled in zip(*learned, strict=True):
        torch.testing.assert_close(eager, compiled, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["iql", "cql", "awac"])
def test_a_bad_number_leaves_everything_as_it_was(built, name):
    orchestrator = built("Pendulum-v1", name, f"training.phases=[{OFFLINE}]")
    play(orchestrator, 3)
    algorithm, phase = orchestrator.algorithm, orchestrator.scheduler.view()
    batch = algorithm.sample(orchestrator.buffers["data"], hook="update", phase=phase)
    batch[REWARD][0, 3] = float("nan")
    before = fingerprint(algorithm.get_state())
    with pytest.raises(NonFiniteError, match=f"{name.upper()} update of critic"):
        algorithm.update(batch, phase=phase)
    assert fingerprint(algorithm.get_state()) == before


def test_rlpd_is_a_union_and_normalized_critics(built, datasets, tiny):
    words = [f"buffers.data.path={datasets['Pendulum-v1']}", "training.total_timesteps=40"]
    words += ["algorithm.learning_starts=10", *SMALL, *HEADS]
    orchestrator = tiny("Pendulum-v1:sac_rlpd", *words)
    critic = orchestrator.algorithm.critic.module.values
    assert (critic.count, len(critic.scales)) == (4, 1)
    play(orchestrator, 2 * 16)
    assert orchestrator.algorithm.budget.steps > 0
    assert len(orchestrator.buffers["replay"]) == 16


def test_without_a_dataset_one_line_says_what_to_give():
    with pytest.raises(ConfigError, match=r"^buffers\.data\.path: "):
        api.configure("Pendulum-v1:iql_defaults", [])


def test_what_it_cannot_do_is_reported_before_the_run(built, tiny):
    with pytest.raises(UserError, match=r"cql needs a flat Box of actions.*use cql_discrete"):
        built("CartPole-v1", "cql")
    with pytest.raises(UserError, match=r"network\.shared_torso"):
        built("CartPole-v1", "iql", "network.shared_torso=true")


@pytest.mark.parametrize(
    "options", [{"expectile": 1.0}, {"expectile": 0.0}, {"beta": -1.0}, {"max_weight": 0.0}]
)
def test_values_that_cannot_work_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        IQLConfig(**options)


@pytest.mark.parametrize("preset", ["Pendulum-v1:iql_finetune", "Pendulum-v1:sac_rlpd"])
def test_a_preset_with_a_union_can_be_made_small(preset):
    config, _ = api.configure(preset, ["training.total_timesteps=300"], small=True)
    assert config.buffers["replay"].capacity < 20_000
    assert config.buffers["mixed"].capacity is None


def test_updates_of_offline_phases_are_counted():
    phases = [
        {"name": "a", "type": "offline", "duration_updates": "5_000", "hooks": ["update"]},
        {"repeat": 3, "phases": [{"name": "b", "type": "offline", "duration_updates": 10}]},
    ]
    assert offline_updates(phases) == 5030
    assert not collects(phases)
    assert collects([*phases, {"name": "c", "hooks": ["collect", "update"]}]) and collects([])
