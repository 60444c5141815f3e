import json
import platform
import subprocess
import time

import pytest

from rl_lab.records.provenance import numerics_fingerprint, provenance
from rl_lab.records.redaction import HIDDEN, redact, redact_arguments

CANARY = "c4n4ry-v4lue-31337"


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_it_is_json_and_names_code_packages_and_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notes = json.loads(json.dumps(provenance(["rl-lab", "train", "CartPole-v1:ppo"])))
    assert notes["command"] == ["rl-lab", "train", "CartPole-v1:ppo"]
    assert notes["git"] is None
    assert all(notes["packages"][name] for name in ("rl-lab", "torch", "numpy", "gymnasium"))
    assert notes["cpu_count"] >= 1 and notes["torch_threads"] >= 1 and notes["cpu"]
    assert notes["time"].endswith("+00:00")
    assert platform.node() not in json.dumps(notes) or not platform.node()


def test_git_commit_and_changes_are_recorded(tmp_path, monkeypatch):
    git(tmp_path, "init", "-q")
    (tmp_path / "a.py").write_text("x = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    monkeypatch.chdir(tmp_path)
    clean = provenance([])["git"]
    assert len(clean["sha"]) == 40 and not clean["dirty"] and clean["diff"] == ""
    (tmp_path / "a.py").write_text(f'x = 2\napi_key = "{CANARY}"\n')
    (tmp_path / "b.py").write_text("")
    changed = provenance([])["git"]
    assert changed["dirty"] and changed["untracked"] == ["b.py"] and changed["diff_complete"]
    assert "+x = 2" in changed["diff"] and CANARY not in changed["diff"]


def test_without_git_there_is_no_git(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance([])["git"] is None


@pytest.mark.parametrize(
    "arguments",
    [
        ["--token", CANARY],
        [f"--token={CANARY}"],
        ["--api-key", CANARY],
        [f"logging.wandb.api_key={CANARY}"],
        [f"+logging.wandb.api_key={CANARY} with spaces"],
        [f"logging.wandb={{api_key:{CANARY},project:p}}"],
        [f"HF_TOKEN={CANARY}"],
        [f"db.password={CANARY}"],
        [f"key={CANARY}"],
        [f"https://me:{CANARY}@example.org/x"],
    ],
)
def test_secrets_on_the_command_line_are_hidden(arguments):
    notes = json.dumps(provenance(["rl-lab", "train", *arguments, "seed=1"]))
    assert CANARY not in notes and HIDDEN in notes and "seed=1" in notes


def test_secret_variables_are_hidden_wherever_their_value_appears(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", CANARY)
    monkeypatch.setenv("RL_LAB_TOKEN", "another-secret-value")
    monkeypatch.setenv("RL_LAB_RUNS", f"/data/{CANARY}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notes = provenance(["rl-lab", f"name={CANARY}"])
    assert CANARY not in json.dumps(notes) and "another-secret-value" not in json.dumps(notes)
    assert notes["environment"]["OMP_NUM_THREADS"] == "1"
    assert notes["environment"]["RL_LAB_TOKEN"] == HIDDEN


@pytest.mark.parametrize(
    "text",
    [
        "ghp_" + "a1" * 18,
        "hf_" + "Ab" * 17,
        "AKIA" + "A1" * 8,
        '"api_key": "short1"',
        "password: hunter2hunter2hunter2",
        "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----",
        "    webhook: https://hooks.slack.com/services/T0/B0/abc",
        "eyJhbGciOiJI." + "eyJzdWIiOiIx." + "SflKxwRJSMeK",
    ],
)
def test_known_shapes_of_secrets_are_hidden_in_text(text):
    hidden = redact(f"before {text} after", {})
    assert HIDDEN in hidden and hidden.startswith("before ") and hidden.endswith(" after")
    assert text not in hidden


@pytest.mark.parametrize(
    "argument",
    [
        "CartPole-v1:ppo",
        "algorithm.num_tokens=64",
        "network.key_dim=32",
        "environment.id=MiniGrid-DoorKey-5x5-v0",
        "monkey=3",
        "--seed",
        "runs/a/checkpoints/step_000000000100",
    ],
)
def test_ordinary_arguments_stay(argument):
    assert redact_arguments([argument, "1"], {}) == [argument, "1"]


def test_ordinary_code_stays_in_a_diff():
    code = "+    token = tokenizer.next(key)\n+    key = jax.random.key(0)\n+    keys: list[str]\n"
    assert redact(code, {}) == code


@pytest.mark.parametrize(
    "unit", ["a-", "token", "key=", 'key="', "password: ", "://a:", "-eyJ", "KEY-----x"]
)
def test_no_text_takes_long(unit):
    text = unit * (300_000 // len(unit))
    started = time.perf_counter()
    redact(text, {})
    assert time.perf_counter() - started < 3.0


def test_the_numerics_fingerprint_is_stable_json():
    first = numerics_fingerprint()
    assert json.loads(json.dumps(first)) == numerics_fingerprint()
    assert {"torch", "cpu_capability", "num_threads", "mkl"} <= set(first)
