"""Every command does what it says, for people and with --json."""

import json
import shlex

import numpy as np
import pytest
import yaml

import rl_lab
from rl_lab.cli.main import main
from rl_lab.cli.printing import program
from rl_lab.config.presets import PACKAGE_CONFIGS
from tiny_runs import SMALL, SMALL_PPO

TINY = [*SMALL, *SMALL_PPO]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def run(root):
    """One trained run, which the commands look at."""
    assert main(["train", "CartPole-v1:ppo_defaults", *TINY, "-q", "--runs-dir", str(root)]) == 0
    (path,) = root.glob("CartPole-v1-ppo-*")
    return path


@pytest.fixture
def call(root, run, capsys):
    """`call("show", …)` → what it printed; with `--json`, the data."""

    def call(*words, code=0):
        capsys.readouterr()
        where = ["--runs-dir", str(root)] if words[0] in ("evaluate", "list", "show") else []
        assert main([*words, *where]) == code
        output = capsys.readouterr().out
        return json.loads(output) if "--json" in words else output

    return call


def test_train_prints_the_result_the_run_and_three_commands_that_work(tmp_path, capsys):
    where = ["--runs-dir", str(tmp_path / "my runs")]
    assert main(["train", "CartPole-v1:ppo_defaults", *TINY, *where]) == 0
    output = capsys.readouterr().out
    (path,) = (tmp_path / "my runs").glob("CartPole-v1-ppo-*")
    assert "ppo with its defaults on CartPole-v1" in output  # it says what it composed
    assert "test return: last " in output and ", best " in output
    assert f"run: {path}" in output
    commands = [shlex.split(line) for line in output.partition("Try next:")[2].splitlines() if line]
    assert [words[:2] for words in commands] == [
        ["rl-lab", "evaluate"],
        ["rl-lab", "show"],
        ["rl-lab", "train"],
    ]
    assert commands[2][commands[2].index("--seed") + 1] == "1"
    for words in commands:
        assert main(words[1:]) == 0


def test_commands_are_printed_as_they_can_be_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(tmp_path / "venv" / "bin" / "rl-lab"), "train"])
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert program() == "venv/bin/rl-lab"
    monkeypatch.setattr("shutil.which", lambda name: "/somewhere/rl-lab")
    assert program() == "rl-lab"


def test_quiet_prints_the_result_and_nothing_else(tmp_path, capsys):
    assert main(["train", "CartPole-v1:random", *SMALL, "-q", "--runs-dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("test return: last ") and lines[1].startswith("run: ")


def test_the_report_is_named_beside_the_run(tmp_path, capsys):
    words = [*SMALL, "logging.report=true", "-q", "--runs-dir", str(tmp_path)]
    assert main(["train", "CartPole-v1:random", *words]) == 0
    _, run, report = capsys.readouterr().out.splitlines()
    page = run.removeprefix("run: ") + "/report.html"
    assert report == f"report: {page}"
    assert "| status | finished |" in (tmp_path / page).with_suffix(".md").read_text()


def test_several_seeds_are_several_runs_and_one_table(tmp_path, capsys):
    words = ["CartPole-v1:random", *SMALL, "--seed", "3,4", "--runs-dir", str(tmp_path)]
    assert main(["train", *words, "-q"]) == 0
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["seed", "run", "status"]
    assert [first.split()[0], second.split()[0]] == ["3", "4"]
    assert len(list(tmp_path.glob("CartPole-v1-random-*"))) == 2
    assert main(["train", *words, "--json"]) == 0
    assert [each["seed"] for each in json.loads(capsys.readouterr().out)] == [3, 4]


def test_debug_is_a_small_run_unless_told_otherwise(capsys):
    from rl_lab.cli.request import Request

    words = ["CartPole-v1:ppo"]
    config, _ = Request(words=words, debug=True).configure(None)
    assert config.training.total_timesteps == 2_000 and config.compute.compile == "off"
    config, _ = Request(words=words, debug=True, total_timesteps="5e3").configure(None)
    assert config.training.total_timesteps == 5_000
    given = [*words, "training.total_timesteps=200_000"]
    config, _ = Request(words=given, debug=True).configure(None)
    assert config.training.total_timesteps == 200_000
    config, _ = Request(words=[*words, "compute.compile=on"], debug=True).configure(None)
    assert config.compute.compile == "on"


@pytest.mark.needs("wandb")
def test_track_sends_the_run_to_wandb_too(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    words = ["CartPole-v1:random", *SMALL, "--track", "-q", "--runs-dir", str(tmp_path)]
    assert main(["train", *words]) == 0
    assert list(tmp_path.glob("CartPole*/wandb/offline-run-*/*.wandb"))


def test_evaluate_plays_its_own_episodes(call, run):
    found = call("evaluate", "@last", "--episodes", "7", "--json")
    assert found["episodes"] == len(found["returns"]) == 7
    assert found["return_mean"] == pytest.approx(np.mean(found["returns"]))
    assert {"return_std", "length_mean", "run", "step"} <= set(found)
    best = json.loads((run / "summary.json").read_text())["best_step"]
    assert found["step"] == best != 1024  # the best checkpoint, unless another one is named
    again = call("evaluate", run.name[-6:], "--episodes", "7", "--json")
    assert again == found  # the same seeds every time
    other = call("evaluate", "@last", "--episodes", "7", "--seed", "9", "--json")
    assert other["returns"] != found["returns"]
    assert call("evaluate", "@last:last", "--episodes", "2", "--json")["step"] == 1024
    line = call("evaluate", "@last", "--episodes", "2", "--sample")
    assert line.startswith("return ") and " ± " in line and "(2 episodes" in line


def test_a_damaged_checkpoint_is_not_passed_over_silently(tmp_path, capsys):
    words = ["CartPole-v1:ppo_defaults", *TINY, "checkpoint.keep_last=9", "-q"]
    assert main(["train", *words, "--runs-dir", str(tmp_path)]) == 0
    (run,) = tmp_path.glob("CartPole-v1-ppo-*")

    def damage():
        newest = sorted((run / "checkpoints").glob("step_*"))[-1]
        state = newest / "state.safetensors"
        data = bytearray(state.read_bytes())
        data[len(data) // 2] ^= 1
        state.write_bytes(data)
        return int(newest.name.removeprefix("step_"))

    step = damage()
    capsys.readouterr()
    assert main(["evaluate", f"@last:{step}", "--runs-dir", str(tmp_path)]) == 2
    assert f"checkpoint {step} is damaged" in capsys.readouterr().err
    where = ["@last:last", "--episodes", "2", "--runs-dir", str(tmp_path)]
    assert main(["evaluate", *where, "--json"]) == 0
    output, errors = capsys.readouterr()
    used = json.loads(output)["step"]
    assert used < step and "skipped a damaged checkpoint" in errors
    assert errors.count("\n") == 1 and f"; step {used} is used instead" in errors
    with pytest.warns(UserWarning, match="skipped a damaged checkpoint"):
        rl_lab.load_policy("@last:last", runs_dir=tmp_path)


def test_evaluate_is_neither_the_evaluation_nor_the_test(call, run):
    """Three seed streams: the policy is always measured on episodes of their own."""
    from rl_lab.api import EVALUATE
    from rl_lab.run.build import seeds

    streams = [set(seeds(0, purpose, 8)) for purpose in ("train", "eval", "test", EVALUATE)]
    assert len(set.union(*streams)) == 32


def test_evaluate_leaves_the_run_as_it_was(call, run):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    call("evaluate", "@last", "--episodes", "2")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_list_shows_the_newest_runs(call, run):
    (row,) = call("list", "--json")
    assert row["id"] == run.name[-6:] and row["status"] == "finished" and row["env_steps"] == 1024
    header, line = call("list").splitlines()
    assert header.split() == [
        "id", "name", "status", "env_steps", "best", "algorithm", "environment", "seed",
    ]  # fmt: skip
    assert line.split()[0] == run.name[-6:]


def test_list_of_nothing(tmp_path, capsys):
    assert main(["list", "--runs-dir", str(tmp_path / "none")]) == 0
    assert "no runs in" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()


def test_a_run_whose_process_is_gone_is_not_running(call, run):
    summary = run / "summary.json"
    text = summary.read_text()
    try:
        summary.write_text(text.replace('"finished"', '"running"'))
        (run / "run.lock").write_text("999999999\n")
        assert call("show", "@last", "--json")["status"] == "killed"
    finally:
        summary.write_text(text)


def test_show_tells_a_run(call, run):
    facts = call("show", "@last", "--json")
    assert facts["id"] == run.name[-6:] and facts["path"] == str(run)
    assert facts["status"] == "finished" and facts["env_steps"] == 1024
    assert facts["checkpoints"][-1]["step"] == 1024
    assert facts["best"] in [each["score"] for each in facts["checkpoints"]]
    assert facts["config"]["algorithm"]["name"] == "ppo"
    assert facts["metrics"]["step"] == 1024
    text = call("show")
    assert (
        "bit for bit (environment: state saved)" in text
        and "test (best)" in text
        and "train/policy_loss" in text
    )


def test_envs_name_their_presets(call):
    found = {row["id"]: row["presets"] for row in call("envs", "cartpole", "--json")}
    assert "ppo" in found["CartPole-v1"] and "Pendulum-v1" not in found
    assert "CartPole-v1" in call("envs")
    assert call("train", "--list-envs", "cartpole", "--json") == call("envs", "cartpole", "--json")


def test_algorithms_and_their_options(call):
    assert {"ppo", "random"} <= {row["name"] for row in call("algorithms", "--json")}
    rows = {row["path"]: row for row in call("algorithms", "ppo", "--json")}
    assert rows["algorithm.gamma"]["default"] == 0.99
    assert all(row["help"] for row in rows.values())
    assert "Proximal policy optimization" in call("algorithms")


def test_check_env(call):
    assert call("check", "env", "FrozenLake-v1", "--json")["level"] == "E0"
    assert "(its state is captured)" in call("check", "env", "FrozenLake-v1")


def test_check_algorithm(call):
    assert call("check", "algorithm", "ppo", "--json") == {
        "algorithm": "ppo",
        "environment": "CartPole-v1",
        "exact": True,
        "differences": [],
    }


def test_check_algorithm_finds_what_is_forgotten(tmp_path, monkeypatch, capsys):
    """An algorithm whose memory lives outside of its saved state is caught."""
    (tmp_path / "forgetful.py").write_text(
        "from rl_lab import Action, Workflow, register_algorithm\n"
        "CALLS = []\n"
        "@register_algorithm('forgetful')\n"
        "class Forgetful(Workflow):\n"
        "    def act(self, obs, state, *, deterministic):\n"
        "        CALLS.append(1)\n"
        "        return Action(obs[:, 0].new_zeros(len(obs)).long() + len(CALLS) % 2)\n"
        "    def update(self, batch, *, phase):\n"
        "        return {'calls': len(CALLS)}\n"
    )
    plugin = ["--plugin", str(tmp_path / "forgetful.py")]
    assert main(["check", "algorithm", "forgetful", *plugin]) == 1
    assert "metrics.jsonl" in capsys.readouterr().out


def test_check_install(call, tmp_path, capsys):
    facts = call("check", "install", "--json", "--runs-dir", str(tmp_path))
    assert facts["ok"] and facts["torch"] and "python" in facts
    (tmp_path / "file").write_text("")
    assert main(["check", "install", "--runs-dir", str(tmp_path / "file")]) == 1


def test_index_rebuild(call, root, run):
    (root / "index.sqlite").unlink()
    assert call("index", "rebuild", "--json", "--runs-dir", str(root))["runs"] == 1
    assert call("list", "--json")[0]["id"] == run.name[-6:]


def test_config_reads_back_and_names_origins(call, tmp_path):
    words = ["CartPole-v1:ppo_gru_masked", "algorithm.gamma=0.9", "experiment.tags=[a,b]"]
    text = call("config", *words)
    tree = call("config", *words, "--json")
    assert yaml.safe_load(text) == tree
    lines = {line.split(":")[0].strip(): line for line in text.splitlines()}
    assert lines["gamma"].endswith("# command line")
    preset = (PACKAGE_CONFIGS / "experiment" / "CartPole-v1" / "ppo_masked.yaml").read_text()
    number = next(i for i, line in enumerate(preset.splitlines(), 1) if "clip_range" in line)
    assert lines["start"].split(" # ")[1].endswith(f"CartPole-v1/ppo_masked.yaml:{number}")
    assert lines["max_grad_norm"].endswith("# default")
    file = tmp_path / "again.yaml"
    file.write_text(text)
    assert call("config", "--config", str(file), "--json") == tree


def test_config_with_phases_reads_back(call):
    phases = "training.phases=[{name: a, hooks: [collect], duration_steps: 100}, {name: b, hooks: [collect, {update: 2}]}]"  # noqa: E501
    words = ["CartPole-v1:ppo", phases]
    assert yaml.safe_load(call("config", *words)) == call("config", *words, "--json")


def test_config_differences_to_a_run(call, root):
    where = ["--runs-dir", str(root), "--diff", "@last", "--json"]
    same = ["CartPole-v1:ppo_defaults", *TINY]
    assert call("config", *same, *where) == []
    found = call("config", *same, "algorithm.gamma=0.5", *where)
    assert found == [{"path": "algorithm.gamma", "run": 0.99, "here": 0.5}]
    text = call("config", *same, "algorithm.gamma=0.5", *where[:-1])
    assert "algorithm.gamma" in text and "0.5" in text


def test_config_options_cover_what_was_chosen(call):
    rows = {
        row["path"]: row
        for row in call("config", "CartPole-v1:ppo_gru_defaults", "--options", "--json")
    }
    assert {"experiment.seed", "algorithm.clip_range", "network.memory.hidden_dim"} <= set(rows)
    assert all(row["help"] for row in rows.values())
    assert "the seed from which" in call("config", "CartPole-v1:ppo", "--describe")


def test_train_cfg_job_is_config(call):
    words = ["CartPole-v1:ppo", "experiment.seed=5"]
    assert call("train", *words, "--cfg", "job") == call("config", *words)
