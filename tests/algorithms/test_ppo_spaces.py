"""PPO on every kind of space, in real runs."""

import textwrap

import pytest

from rl_lab.core import registry
from rl_lab.run.session import resume
from tiny_runs import run_hash, tiny_run

ROOMS, SWITCHES, GATES = (f"space_envs:{name}-v0" for name in ("Rooms", "Switches", "Gates"))
MASK = "environment.wrappers=[{id: ActionMask}]"
PIXELS = [
    "picture_env:Picture-v0:ppo_defaults",
    "environment.wrappers=[{id: Grayscale}, {id: Resize, size: 20}, {id: FrameStack, frames: 2}]",
    *(
        "~network.encoder.hidden_dims",
        "+network.encoder.type=nature",
        "+network.encoder.features=8",
    ),
]
CAMERA = "+network.encoder.parts={camera: {type: impala, channels: [4], features: 8}}"
SHORT = ["training.total_timesteps=256", "evaluation.every_steps=0"]
CASES = {
    "dict": [f"{ROOMS}:ppo_defaults", "environment.normalize_obs=true", CAMERA],
    "tuple": [f"{ROOMS}:ppo_defaults", "environment.kwargs={shape: tuple}"],
    "switches": [f"{SWITCHES}:ppo_defaults"],
    "mask": [f"{GATES}:ppo_defaults", MASK],
    "masks": [f"{GATES}:ppo_defaults", MASK, "environment.kwargs={several: true}"],
    "random_mask": [f"{GATES}:random", MASK, "algorithm.collect_steps=16"],
    "random_masks": [f"{GATES}:random", MASK, "environment.kwargs={several: true}"],
    "pixels": PIXELS,
    "blackjack": ["Blackjack-v1:ppo_defaults"],
}
MEMORIES = [each for each in registry.names("memory") if each != "none"]
WITH_MEMORY = {
    f"{kind}_{memory}": [
        f"{env}:ppo_{memory}_defaults",
        "algorithm.minibatches=2",
        f"network.shared_torso={str(kind == 'mask').lower()}",
        *more,
    ]
    for memory in MEMORIES
    for kind, env, more in (("dict", ROOMS, [CAMERA]), ("mask", GATES, [MASK]))
}
CASES |= WITH_MEMORY


@pytest.mark.parametrize("name", CASES)
def test_it_trains_and_the_first_ratio_is_one(tmp_path, name):
    outcome = tiny_run(tmp_path, *CASES[name], *SHORT)
    assert outcome.exit_code == 0
    for line in outcome.run.metrics_file.read_text().splitlines():
        if "train/ratio_error" in line:
            assert float(line.split('"train/ratio_error": ')[1].split(",")[0]) < 1e-5


@pytest.mark.parametrize(
    "words",
    [
        [
            "space_envs:Xor-v0:ppo_defaults",
            "algorithm.learning_rate=1e-2",
            "training.total_timesteps=4096",
        ],
        [
            *("space_envs:Xor-v0:dqn_defaults", "algorithm.learning_rate=1e-2"),
            *("algorithm.learning_starts=200", "algorithm.batch_size=64"),
            "training.total_timesteps=1500",
        ],
    ],
    ids=["ppo", "dqn"],
)
def test_parts_that_only_say_something_together_are_learned_from(tmp_path, words):
    outcome = tiny_run(tmp_path, *words, "evaluation.every_steps=0", "evaluation.test_episodes=200")
    assert (
        outcome.summary["test"]["last"]["return_mean"] >= 0.95
    )  # one function per part reaches 0.75


def test_without_the_mask_the_forbidden_is_done(tmp_path):
    with pytest.raises(RuntimeError, match="forbidden"):  # so the runs above prove something
        tiny_run(tmp_path, f"{GATES}:ppo_defaults", *SHORT)


@pytest.mark.parametrize("vectorization", ["sync", "process"])
@pytest.mark.parametrize("name", ["dict", "pixels", "mask"])
def test_interrupted_is_uninterrupted(tmp_path, monkeypatch, name, vectorization):
    from rl_lab.records import faults

    words = [*CASES[name], f"environment.vectorization={vectorization}", "environment.workers=2"]
    words += ["training.total_timesteps=512", "checkpoint.every_steps=128"]
    straight = run_hash(tiny_run(tmp_path / "straight", *words).run)
    faults.reset()
    monkeypatch.setenv("RL_LAB_FAULT", "hook.after:error@9")
    with pytest.raises(OSError, match="No space"):
        tiny_run(tmp_path / "cut", *words)
    monkeypatch.delenv("RL_LAB_FAULT")
    assert run_hash(resume("@last", root=tmp_path / "cut").run) == straight


@pytest.mark.parametrize("name", [each for each in WITH_MEMORY if each.startswith("mask")])
def test_interrupted_in_mid_episode_is_uninterrupted_with_every_memory(tmp_path, monkeypatch, name):
    from rl_lab.records import faults

    words = [*CASES[name], "training.total_timesteps=512", "checkpoint.every_steps=128"]
    straight = run_hash(tiny_run(tmp_path / "straight", *words).run)
    faults.reset()
    monkeypatch.setenv("RL_LAB_FAULT", "hook.after:error@9")
    with pytest.raises(OSError, match="No space"):
        tiny_run(tmp_path / "cut", *words)
    monkeypatch.delenv("RL_LAB_FAULT")
    assert run_hash(resume("@last", root=tmp_path / "cut").run) == straight


@pytest.mark.parametrize(("env", "least"), [(ROOMS, 0.8), (SWITCHES, 0.8)])
def test_it_learns_to_read_parts_and_to_set_switches(tmp_path, env, least):
    words = [f"{env}:ppo_defaults", "algorithm.learning_rate=3e-3", "algorithm.gamma=0"]
    words += ["environment.num_envs=8", "algorithm.rollout_steps=64", "algorithm.epochs=4"]
    parts = ["+network.encoder.parts={camera: {type: mlp, hidden_dims: [4]}}"]
    words += parts if env == ROOMS else []
    words += ["training.total_timesteps=12288", "evaluation.every_steps=0"]
    words += ["network.encoder.hidden_dims=[32]", "evaluation.test_episodes=20"]
    test = tiny_run(tmp_path, *words).run.read_summary()["test"]["last"]
    share = test["return_mean"] / test["length_mean"]
    assert share > least  # by chance: 1/3 of the rooms, half of the switches


def test_an_encoder_of_ones_own_by_target(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        textwrap.dedent(
            """
            from torch import nn

            class Squares(nn.Module):
                def __init__(self, config, space):
                    super().__init__()
                    self.layer = nn.Linear(space.shape[0], config.width)

                def forward(self, obs):
                    return self.layer(obs).square()
            """
        )
    )
    own = "network.encoder={_target_: mine.Squares, width: 5}"
    words = ["CartPole-v1:ppo_defaults", own]
    words += ["training.total_timesteps=512", "evaluation.every_steps=0"]
    from rl_lab.api import resume as again
    from rl_lab.api import train

    small = ["environment.num_envs=2", "algorithm.rollout_steps=16", "evaluation.test_episodes=1"]
    outcome = train(words[0], overrides=[*words[1:], *small], runs_dir=tmp_path / "runs")
    assert outcome.exit_code == 0
    assert "layer.weight" in str(list(_parameters(outcome.run))), "the module was not used"
    assert again("@last", runs_dir=tmp_path / "runs").exit_code == 0
    again_in_this_process = train(words[0], overrides=[*words[1:], *small], runs_dir="other")
    for run in (outcome.run, again_in_this_process.run):  # found again from any folder
        assert f"_target_: {tmp_path / 'mine.py'}:Squares" in run.config_file.read_text()


def _parameters(run):
    from tiny_runs import final_state

    return final_state(run)["workflow"]["learner"]["module"]
