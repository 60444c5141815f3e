"""What people see: the field's words, the step of a resume, the seed of a curve, who to blame."""

import json

import pytest

from rl_lab.cli.main import main
from rl_lab.config.catalog import BUILT_INS
from rl_lab.core import registry
from rl_lab.envs.make import list_environments
from rl_lab.records.run_directory import list_runs

TINY = [
    "environment.num_envs=2",
    "evaluation.every_steps=0",
    "evaluation.test_episodes=1",
    "logging.report=false",
    "checkpoint.every_steps=64",
]


def test_algorithms_say_what_they_are_for(capsys):
    assert main(["algorithms", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    kinds = {"dqn": "discrete", "sql": "continuous", "ppo": "both", "ucb": "discrete"}
    assert {name: rows[name]["actions"] for name in kinds} == kinds
    assert rows["ppo"]["description"].startswith("Proximal policy optimization")
    assert all(":" in rows[name]["description"] for name in BUILT_INS["workflow"])


def test_environments_say_which_extra_they_need(capsys):
    assert main(["envs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    cells = {line.split()[0]: line.split()[1] for line in lines if line}
    assert cells["HalfCheetah-v5"] == "rl-lab[mujoco]" and cells["CartPole-v1"] == "-"
    assert cells["LunarLander-v3"] == "rl-lab[box2d]"
    assert any("ALE environments" in line for line in lines)


def test_a_search_finds_what_is_nearly_written_so():
    for text in ("lunar lander", "LunarLandr", "lunarlander-V3"):
        assert "LunarLander-v3" in list_environments(text)
    assert list_environments("zzzqqq") == []


@pytest.mark.needs("ale_py")
def test_a_search_loads_the_families_that_are_installed():
    assert "ALE/Pong-v5" in list_environments("Pong")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("algorithm.batch_size=100", "100 does not divide the rollout's 256 rows — command line"),
        ("algorithm.name=sac", "— command line (algorithm.name) and "),
        ("algorithm.name=pppo", "unknown algorithm 'pppo' (did you mean 'ppo'?) — command line"),
    ],
)
def test_an_error_of_the_command_line_names_it(words, said, capsys):
    assert main(["config", "CartPole-v1:ppo", words]) == 2
    error = capsys.readouterr().err
    assert said in error and "sequences of 1" not in error


def test_a_resume_says_its_step_and_a_curve_its_seed(tmp_path, capsys):
    words = ["CartPole-v1:random", *TINY, "training.total_timesteps=256", "--seed", "7"]
    assert main(["train", *words, "--runs-dir", str(tmp_path)]) == 0
    (run,) = list_runs(tmp_path)
    assert list(run.path.glob("tensorboard/seed_7/events.out.*"))
    step = min(int(path.name[5:]) for path in run.checkpoints.glob("step_*"))
    path = run.checkpoints / f"step_{step:012d}"
    capsys.readouterr()
    assert main(["evaluate", str(path), "--episodes", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == step
    assert main(["train", "--resume", str(path), "--runs-dir", str(tmp_path)]) == 0
    assert f"resumed from step {step:,} of 256" in capsys.readouterr().out
    assert main(["show", "@last", "--runs-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "bit for bit (environment: state saved), resumed 1 times" in shown and "E0" not in shown


@pytest.mark.parametrize("name", ["RL_LAB_QUIET", "VIBES_QUIET", "VIBES_DISABLE_CHECKPOINT_LOGS"])
def test_the_quiet_variables(tmp_path, monkeypatch, capsys, name):
    monkeypatch.setenv(name, "1")
    words = ["CartPole-v1:random", *TINY, "training.total_timesteps=64"]
    assert main(["train", *words, "logging.tensorboard=false", "--runs-dir", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert output.startswith("test return") and "Try next" not in output and "%" not in output


def test_every_algorithm_names_its_kind_of_actions():
    for name in registry.names("workflow"):
        kind = getattr(registry.get("workflow", name), "actions", "both")
        assert kind in ("discrete", "continuous", "both")
