"""Recorded episodes: what is in them by hand, the same again, for every kind of algorithm."""

import json

import numpy as np
import pytest

import rl_lab
from rl_lab import api
from rl_lab.analysis.recording import value_errors
from rl_lab.cli.main import main
from rl_lab.core.errors import UserError
from rl_lab.display.png import decode_png, encode_png
from rl_lab.records.recordings import (
    list_recordings,
    read_arrays,
    read_frame,
    read_frames,
    read_row,
)
from rl_lab.run.policy import Policy
from tiny_dreamers import SIZES
from tiny_runs import tiny_run

FAST = ["training.total_timesteps=128", "evaluation.every_steps=0", "evaluation.test_episodes=0"]
DREAMER = ["algorithm.name=dreamer_v3", *(f"algorithm.{key}={SIZES[key]}" for key in SIZES)]
WANTED = {
    "CartPole-v1:ppo_none": {"probabilities": (2,), "value": ()},
    "CartPole-v1:ppo_gru": {"probabilities": (2,), "value": (), "memory_norm": ()},
    "Pendulum-v1:ppo_none": {"mean": (1,), "std": (1,), "value": ()},
    "CartPole-v1:reinforce": {"probabilities": (2,)},
    "CartPole-v1:dqn": {"q_values": (2,), "value": ()},
    "CartPole-v1:r2d2": {"q_values": (2,), "value": (), "memory_norm": ()},
    "Pendulum-v1:sac": {"mean": (1,), "std": (1,), "value": ()},
    "CartPole-v1:sac": {"probabilities": (2,), "q_values": (2,), "value": ()},
    "Pendulum-v1:td3": {"mean": (1,), "value": ()},
    "FrozenLake-v1:q_learning": {"q_values": (4,), "value": ()},
}


def recorded(root, spec, *words, **options):
    run = tiny_run(root, spec, *FAST, *words).run
    found = api.record(run.id, runs_dir=root, **{"episodes": 1, "max_steps": 12, **options})
    return run, found, read_arrays(run, found.folder.name, 0)


@pytest.mark.parametrize("spec", WANTED)
def test_what_a_policy_thinks_is_there_for_every_frame(tmp_path, spec):
    _, found, arrays = recorded(tmp_path, spec)
    length = found.played[0].length
    assert len(arrays["action"]) == len(arrays["reward"]) == length
    assert len(arrays["obs"]) == length + 1
    assert arrays["reward"].sum() == pytest.approx(found.played[0].total)
    for name, shape in WANTED[spec].items():
        assert arrays[name].shape == (length + 1, *shape), name
        assert np.isfinite(arrays[name]).all()
    if "probabilities" in arrays:
        assert np.allclose(arrays["probabilities"].sum(1), 1, atol=1e-5)
        assert (arrays["probabilities"][:-1].argmax(1) == arrays["action"]).all()
    if "q_values" in WANTED[spec] and "probabilities" not in WANTED[spec]:
        assert (arrays["q_values"][:-1].argmax(1) == arrays["action"]).all()
        assert np.allclose(arrays["q_values"].max(1), arrays["value"])
    if "value" in WANTED[spec]:
        assert np.allclose(arrays["value"][:-1] - arrays["return_to_go"], arrays["value_error"])


def test_the_same_seed_is_the_same_recording(tmp_path):
    run, found, first = recorded(tmp_path, "CartPole-v1:ppo_gru", seed=5)
    pictures = read_frames(run, found.folder.name, 0)
    again = api.record(run.id, runs_dir=tmp_path, episodes=1, max_steps=12, seed=5)
    assert again.folder == found.folder and len(list_recordings(run)) == 1
    second = read_arrays(run, again.folder.name, 0)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert read_frames(run, again.folder.name, 0) == pictures
    other = api.record(run.id, runs_dir=tmp_path, episodes=1, max_steps=12, seed=6)
    assert not np.array_equal(read_arrays(run, other.folder.name, 0)["obs"][0], first["obs"][0])
    sampled = rl_lab.record(run.id, runs_dir=tmp_path, episodes=1, max_steps=12, sample=True)
    assert sampled.folder.name.endswith("-sampled")


def test_frames_and_rows_one_by_one(tmp_path):
    run, found, arrays = recorded(tmp_path, "CartPole-v1:ppo_none")
    name, length = found.folder.name, found.played[0].length
    assert len(read_frames(run, name, 0)) == length + 1
    assert read_frame(run, name, 0, 3) == read_frames(run, name, 0)[3]
    assert decode_png(read_frame(run, name, 0, 0)).shape == (400, 600, 3)
    assert np.array_equal(read_row(run, name, 0, "obs", 2), arrays["obs"][2])
    for key, row in (("obs", length + 1), ("obs", -1), ("nothing", 0)):
        with pytest.raises(UserError):
            read_row(run, name, 0, key, row)


def test_a_world_model_predicts_beside_the_truth(tmp_path):
    _, found, arrays = recorded(tmp_path, "CartPole-v1:random", *DREAMER, max_steps=30)
    length = found.played[0].length
    assert arrays["predicted"].shape == arrays["obs"].shape
    # Five frames are seen, then fifteen are predicted without a look, then again from the truth.
    since = [0] * 5 + [each % 15 + 1 for each in range(length - 4)]
    assert arrays["steps_ahead"].tolist() == since
    assert np.isnan(arrays["predicted_reward"][:4]).all()
    assert np.isfinite(arrays["predicted_reward"][4:]).all()


def test_value_errors_by_hand():
    # gamma = 0.5; rewards 1, 2, 4. Ended: to go 1 + 0.5 (2 + 0.5 · 4) = 3, then 4, then 4.
    reward, value = np.array([1.0, 2.0, 4.0]), np.array([3.0, 5.0, 4.0, 8.0])
    ended = value_errors(reward, value, True, 0.5)
    assert ended["return_to_go"].tolist() == [3, 4, 4]
    assert ended["value_error"].tolist() == [0, 1, 0]
    assert ended["td_error"].tolist() == [1 + 2.5 - 3, 2 + 2 - 5, 4 - 4]
    # Cut: the last value, 8, stands for the rest: 4 + 0.5 · 8 = 8, 2 + 4 = 6, 1 + 3 = 4.
    cut = value_errors(reward, value, False, 0.5)
    assert cut["return_to_go"].tolist() == [4, 6, 8]
    assert cut["td_error"].tolist()[-1] == 4 + 4 - 4


@pytest.mark.parametrize("spec", ["CartPole-v1:ppo_gru", "Pendulum-v1:sac", "CartPole-v1:r2d2"])
def test_describing_changes_nothing(tmp_path, monkeypatch, spec):
    run, _, first = recorded(tmp_path, spec, sample=True)
    monkeypatch.setattr(Policy, "describe", lambda self, obs: {})
    again = api.record(run.id, runs_dir=tmp_path, episodes=1, max_steps=12, sample=True)
    second = read_arrays(run, again.folder.name, 0)
    assert "value" in first and "value" not in second
    assert all(np.array_equal(first[name], second[name]) for name in second)


def test_the_command(tmp_path, capsys):
    run = tiny_run(tmp_path, "CartPole-v1:ppo_none", *FAST).run
    words = ["record", run.id, "--runs-dir", str(tmp_path), "--episodes", "2", "--max-steps", "9"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "episode 2: return 9" in said and f"rl-lab ui {run.id}" in said
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["lengths"] == [9, 9] and found["name"] == "step_000000000128-seed_0"
    assert main(["record", "nothing", "--runs-dir", str(tmp_path)]) == 2


@pytest.mark.parametrize("channels", [1, 3])
def test_png_there_and_back(channels):
    picture = np.random.default_rng(0).integers(0, 256, (7, 5, channels), dtype=np.uint8)
    assert np.array_equal(decode_png(encode_png(picture)), picture)
    for damaged in (b"", b"GIF89a", encode_png(picture)[:50], b"x" * 100):
        with pytest.raises(UserError):
            decode_png(damaged)
