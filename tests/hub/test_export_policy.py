"""Exported policies decide as the policy does: over 100 steps, memory and normalizer included."""

import io
import json
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch

import rl_lab
import space_envs  # noqa: F401  (registers its worlds)
from rl_lab.cli.main import main
from rl_lab.core.errors import UserError
from rl_lab.hub import policy_files
from rl_lab.hub.policy_files import export_policy
from rl_lab.hub.traced_policy import flat
from tiny_runs import tiny_run

OFF_POLICY = ["algorithm.learning_starts=64", "training.total_timesteps=128"]
DEMONSTRATED = ["training.phases.1.duration_updates=20", "training.total_timesteps=4000"]
CASES = {
    "discrete": ("CartPole-v1:ppo_none", ["environment.normalize_obs=true"]),
    "gru": ("CartPole-v1:ppo_gru", ["environment.normalize_obs=true"]),
    "lstm": ("CartPole-v1:ppo_lstm", ["network.shared_torso=true"]),
    "box": ("Pendulum-v1:ppo_none", ["environment.normalize_obs=true"]),
    "reinforce": ("CartPole-v1:reinforce", []),
    "dqn": ("CartPole-v1:dqn", [*OFF_POLICY, "algorithm.dueling=true"]),
    "sac": ("Pendulum-v1:sac", [*OFF_POLICY, "environment.normalize_obs=true"]),
    "td3": ("Pendulum-v1:td3", OFF_POLICY),
    "bc": ("TwoArcs-v0:bc", DEMONSTRATED),
    "diffusion_policy": (
        "TwoArcs-v0:diffusion_policy",
        [*DEMONSTRATED, "algorithm.denoiser.hidden_dim=16", "algorithm.execution_horizon=3"],
    ),
    "flow_policy": (
        "TwoArcs-v0:flow_policy",
        [*DEMONSTRATED, "algorithm.denoiser.hidden_dim=16", "algorithm.execution_horizon=5"],
    ),
}


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    """`policies(name)`: a fresh `Policy` of the run of that case, trained once."""
    runs = {}

    def load(name):
        if name not in runs:
            spec, words = CASES[name]
            runs[name] = tiny_run(tmp_path_factory.mktemp(name), spec, *words).run.path
        return rl_lab.load_policy(runs[name])

    return load


def decisions(policy, call, inputs, outputs, steps=100):
    """The largest difference between a policy and `call(feeds) -> outputs` along episodes."""
    env = gym.make(policy.loaded.config.environment.id)
    obs, _ = env.reset(seed=3)
    fresh = dict(flat(policy.loaded.workflow.initial_state(1)))
    memory = [each.numpy() for each in fresh.values()]
    largest = 0.0
    for _ in range(steps):
        found = call(dict(zip(inputs, [np.asarray(obs)[None], *memory], strict=True)))
        named = dict(zip(outputs, found, strict=True))
        action = policy.act(obs)
        pairs = [(named["action"][0], action)]
        after = [each for name, each in named.items() if name.startswith("next_memory")]
        pairs += list(zip(after, [each for _, each in flat(policy.memory)], strict=True))
        for theirs, ours in pairs:
            gap = np.abs(np.asarray(theirs, np.float64) - np.asarray(ours, np.float64))
            largest = max(largest, float(gap.max()))
        memory = [np.asarray(each) for each in after]
        obs, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            obs, _ = env.reset()
            policy.reset()
            memory = [each.numpy() for each in fresh.values()]
    return largest


@pytest.mark.needs("onnx", "onnxruntime", "onnxscript")
@pytest.mark.parametrize("name", CASES)
def test_onnx_decides_as_the_policy(policies, tmp_path, name):
    import onnxruntime

    file = tmp_path / "policy.onnx"
    made = export_policy(policies(name).loaded, file, "onnx")
    assert made.largest_difference <= 1e-5 and made.steps == 100
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    known = {each.name for each in session.get_inputs()}
    names = [each.name for each in session.get_outputs()]
    assert names == made.outputs and known <= set(made.inputs)

    def call(feeds):
        return session.run(None, {key: each for key, each in feeds.items() if key in known})

    assert decisions(policies(name), call, list(made.inputs), names) <= 1e-5
    facts = json.loads(session.get_modelmeta().custom_metadata_map["policy"])
    assert facts["environment"] == CASES[name][0].partition(":")[0]


@pytest.mark.parametrize("name", CASES)
def test_torchscript_decides_as_the_policy(policies, tmp_path, name):
    file = tmp_path / "policy.pt"
    made = export_policy(policies(name).loaded, file, "torchscript")
    with warnings.catch_warnings(action="ignore"):
        loaded = torch.jit.load(file)

    def call(feeds):
        found = loaded(*(torch.as_tensor(each) for each in feeds.values()))
        return [each.numpy() for each in found]

    assert decisions(policies(name), call, list(made.inputs), made.outputs) <= 1e-5


@pytest.mark.parametrize("name", ["gru", "sac"])
def test_torch_export_decides_as_the_policy(policies, tmp_path, name):
    file = tmp_path / "policy.pt2"
    made = export_policy(policies(name).loaded, file, "torch-export")
    loaded = torch.export.load(io.BytesIO(file.read_bytes())).module()

    def call(feeds):
        return [each.numpy() for each in loaded(*map(torch.as_tensor, feeds.values()))]

    assert decisions(policies(name), call, list(made.inputs), made.outputs) <= 1e-5


def test_a_memory_is_inputs_and_outputs(policies, tmp_path):
    made = export_policy(policies("gru").loaded, tmp_path / "p.pt", "torchscript")
    assert list(made.inputs) == ["obs", "memory_actor_hidden", "memory_critic_hidden"]
    assert made.outputs == ["action", "next_memory_actor_hidden", "next_memory_critic_hidden"]


def test_actions_are_in_the_units_of_the_environment(policies, tmp_path):
    # Pendulum's torque is in [-2, 2], and a squashed policy acts in [-1, 1]: 2 tanh(mean).
    sac = policies("sac").loaded.workflow
    export_policy(policies("sac").loaded, tmp_path / "p.pt", "torchscript")
    with warnings.catch_warnings(action="ignore"):
        loaded = torch.jit.load(tmp_path / "p.pt")
    obs = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
    (action,) = loaded(obs)
    with torch.no_grad():
        assert torch.allclose(action, 2 * sac.policy(sac.normalizer(obs)).mean.tanh(), atol=1e-6)
    assert action.abs().max() <= 2


def test_rows_and_probabilities(policies, tmp_path):
    made = export_policy(
        policies("discrete").loaded, tmp_path / "p.pt", "torchscript", probabilities=True
    )
    assert made.inputs == {"obs": ["N", 4]} and made.outputs == ["action", "probabilities"]
    with warnings.catch_warnings(action="ignore"):
        loaded = torch.jit.load(tmp_path / "p.pt")
    obs = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    action, probabilities = loaded(obs)
    assert torch.equal(probabilities.argmax(-1), action)
    assert torch.allclose(probabilities.sum(-1), torch.ones(7))


@pytest.mark.parametrize("id", ["Whole-v0", "Rooms-v0", "Switches-v0"])
def test_other_spaces(tmp_path, id):
    # whole numbers in a Box; parts: an image, bits, an index that begins at 1; several bits
    run = tiny_run(tmp_path / "runs", f"{id}:ppo_none", "training.total_timesteps=128").run
    policy = rl_lab.load_policy(run.path)
    made = export_policy(policy.loaded, tmp_path / "p.pt", "torchscript")
    assert made.largest_difference == 0


# ------------------------------------------------------------------------------------- errors


def told(words, capsys):
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_mistakes_are_one_line(policies, tmp_path, capsys):
    run = str(policies("dqn").loaded.run.path)
    assert "name a file" in told(["export-policy", run], capsys)
    words = ["export-policy", run, "--torchscript", str(tmp_path / "p.pt"), "--probabilities"]
    assert "dqn has none" in told(words, capsys)
    assert not (tmp_path / "p.pt").exists()


@pytest.mark.parametrize("spec", ["Taxi-v4:q_learning", "CartPole-v1:random"])
def test_what_does_not_act_by_tensors_is_refused(tmp_path, capsys, spec):
    run = tiny_run(tmp_path / "runs", spec).run
    line = told(["export-policy", str(run.path), "--torchscript", str(tmp_path / "p.pt")], capsys)
    assert "cannot be exported" in line and not (tmp_path / "p.pt").exists()


def test_a_file_that_decides_otherwise_is_not_written(policies, tmp_path, monkeypatch):
    make = policy_files._MAKERS["torchscript"]

    def off(policy, facts):
        data, call = make(policy, facts)
        return data, lambda inputs: [each + 1e-4 for each in call(inputs)]

    monkeypatch.setitem(policy_files._MAKERS, "torchscript", off)
    with pytest.raises(UserError, match=r"not written: over 100 steps .* up to 0\.0001"):
        export_policy(policies("box").loaded, tmp_path / "p.pt", "torchscript")
    assert not (tmp_path / "p.pt").exists()
