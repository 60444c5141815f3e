"""The flat keys of the solver, and its files with one block per variant."""

from pathlib import Path

import pytest

from rl_lab.config.compose import compose
from rl_lab.config.presets import list_presets
from rl_lab.config.validate import validate
from rl_lab.core.errors import ConfigError, UserError
from seed_files import SOLVER_ENVIRONMENT

FLAT = "env_id: CartPole-v1\nn_envs: 4\nn_steps: 32\n"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def load(text, *overrides):
    Path("old.yaml").write_text(FLAT + text)
    composed = compose(None, overrides, config_file=Path("old.yaml"))
    return validate(composed.tree, composed.origins)


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        (
            "algo_id: reinforce\npolicy_targets: advantages",
            "algorithm.policy_targets",
            "advantages",
        ),
        ("algo_id: reinforce\nreturns_type: mc:episode", "algorithm.returns_type", "mc:episode"),
        ("clip_range_vf: 0.3", "algorithm.value_clip", 0.3),
        ("optimizer: AdamW", "algorithm.optimizer.name", "adamw"),
        ("normalize_advantages: false", "algorithm.normalize_advantages", "off"),
        ("policy: MlpPolicy", "network.encoder.type", "mlp"),
        ("policy: cnn", "network.encoder.type", "nature"),
        ("hidden_dims: [8, 8]", "network.encoder.hidden_dims", [8, 8]),
        ("policy_kwargs: {net_arch: [8], activation: relu}", "network.encoder.hidden_dims", [8]),
        ("policy_kwargs: {}", "network.encoder.hidden_dims", [64, 64]),
        ("subproc: true", "environment.vectorization", "process"),
        ("subproc: false", "environment.vectorization", "sync"),
        ("obs_type: ram", "environment.kwargs", {"obs_type": "ram"}),
        ("project_id: mine", "logging.wandb.project", "mine"),
        ("eval_episodes: 3", "evaluation.episodes", 3),
        # An epoch is a rollout: 4 environments x 32 steps.
        ("eval_freq_epochs: 15", "evaluation.every_steps", 15 * 128),
        ("eval_freq_epochs: null", "evaluation.every_steps", 0),
        # "epochs up to and including warmup are skipped"
        ("eval_warmup_epochs: 50", "evaluation.warmup_steps", 50 * 128 + 1),
        ("eval_warmup_epochs: 0", "evaluation.warmup_steps", 0),
    ],
)
def test_a_flat_key_is_read(text, path, value):
    found = load(text)
    for key in path.split("."):
        found = getattr(found, key)
    assert found == value


def test_images_become_wrappers_in_their_order():
    text = "env_wrappers: [{id: Crop, bottom: 12}]\ngrayscale_obs: true\nresize_obs: true\n"
    wrappers = load(f"{text}frame_stack: 4").environment.wrappers
    assert [each["id"] for each in wrappers] == ["Crop", "Grayscale", "Resize", "FrameStack"]
    assert wrappers[2]["size"] == 84 and wrappers[3]["frames"] == 4
    off = "grayscale_obs: false\nresize_obs: null\nframe_stack: 1"
    assert load(off).environment.wrappers == []
    assert load("resize_obs: [64, 48]").environment.wrappers == [{"id": "Resize", "size": [64, 48]}]


def test_the_five_keys_of_a_schedule_are_one_value():
    text = "max_timesteps: 10000\npolicy_lr: 0.001\npolicy_lr_schedule: linear\n"
    plain = load(text).algorithm.learning_rate
    assert (plain.start, plain.end, plain.begin, plain.finish) == (0.001, 0.0, 0.0, 1.0)
    more = "policy_lr_schedule_start_value: 0.002\npolicy_lr_schedule_end_value: 1e-5\n"
    more += "policy_lr_schedule_start: 0.1\npolicy_lr_schedule_end: 2000\n"
    full = load(text + more).algorithm.learning_rate
    # 2000 vector steps of 4 environments each are 8000 environment steps.
    assert (full.start, full.end, full.begin, full.finish) == (0.002, 1e-5, 0.1, 8000)
    assert load("policy_lr: 0.001\npolicy_lr_schedule: null").algorithm.learning_rate == 0.001


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("obs_type: objects", "OCAtari"),
        ("policy: transformer", "policy: 'transformer' is not there: mlp or cnn"),
        ("policy_kwargs: {ortho_init: true}", "policy_kwargs.ortho_init: not there yet"),
        ("wing_schedule: linear", "there is no 'wing'"),
        ("frobnicate: 1", "frobnicate: unknown key"),
    ],
)
def test_what_has_no_equivalent_is_refused_with_its_line(text, said):
    with pytest.raises(ConfigError, match=said) as error:
        load(text)
    assert "old.yaml:4" in str(error.value) or "wing" in text
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("folder", ["config", "configs", "mine"])
def test_one_file_with_a_block_for_each_variant(folder):
    file = Path(folder, "environments/CartPole-v1.yaml")
    file.parent.mkdir(parents=True)
    file.write_text(SOLVER_ENVIRONMENT)
    dirs = [Path(folder)] if folder == "mine" else []
    ppo = compose("CartPole-v1:ppo", config_dirs=dirs)
    config = validate(ppo.tree, ppo.origins)
    assert config.environment.num_envs == 4 and config.algorithm.name == "ppo"
    assert config.algorithm.learning_rate.start == 0.001
    assert str(ppo.origins["algorithm.learning_rate"]) == f"{file}:12"
    assert str(ppo.origins["environment.num_envs"]) == f"{file}:3"  # of the anchor
    fast = compose("CartPole-v1:fast", ["algorithm.gamma=0.9"], config_dirs=dirs)
    config = validate(fast.tree, fast.origins)
    assert config.algorithm.name == "reinforce" and config.algorithm.gamma == 0.9
    assert config.training.total_timesteps == 256
    if folder != "config":
        assert "CartPole-v1:fast" in list_presets(dirs)


def test_a_block_must_name_an_algorithm_and_a_preset_of_yours_goes_first():
    file = Path("configs/environments/CartPole-v1.yaml")
    file.parent.mkdir(parents=True)
    file.write_text("odd: {n_envs: 2}\nppo: {n_envs: 2}\n")
    with pytest.raises(UserError, match="block 'odd' names no algorithm"):
        compose("CartPole-v1:odd")
    assert compose("CartPole-v1:ppo").tree["environment"] == {"num_envs": 2, "id": "CartPole-v1"}
    preset = Path("configs/experiment/CartPole-v1/ppo.yaml")
    preset.parent.mkdir(parents=True)
    preset.write_text("version: 1\nenvironment: {id: CartPole-v1, num_envs: 3}\n")
    assert compose("CartPole-v1:ppo").tree["environment"]["num_envs"] == 3
