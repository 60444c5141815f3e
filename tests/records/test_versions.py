"""Files of earlier versions stay readable; those of newer ones are refused with one line."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from rl_lab import api
from rl_lab.cli.main import main
from rl_lab.config.tree import to_tree
from rl_lab.core.errors import UserError
from rl_lab.core.schema import VERSION
from rl_lab.records.checkpoint import CheckpointStore
from rl_lab.records.commit import FORMAT, MANIFEST, encode_manifest
from rl_lab.records.run_directory import find_run
from rl_lab.run.session import resume

FIXTURES = Path(__file__).parents[1] / "fixtures"
STEP = 64  # of the only checkpoint of the fixture, a run that was interrupted there


@pytest.fixture
def runs(tmp_path):
    """A folder with the run of checkpoint format 1: DQN, with the chunks of a replay buffer."""
    run = tmp_path / "runs" / "old-20261116-113051-33c6cb"
    shutil.copytree(FIXTURES / "run-format-1", run)
    return run.parent


def written(tmp_path, text):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    return file


def test_a_config_of_version_0_means_what_it_meant():
    config, composed = api.configure(config_file=FIXTURES / "config-version-0.yaml")
    tree = to_tree(config)
    assert tree["version"] == VERSION and tree["experiment"]["seed"] == 7
    assert (tree["environment"]["id"], tree["environment"]["num_envs"]) == ("CartPole-v1", 4)
    algorithm = tree["algorithm"]
    assert (algorithm["learning_rate"], algorithm["epochs"]) == (3e-4, 3)
    assert algorithm["rollout_steps"] == 512 // 4
    assert tree["network"]["encoder"]["hidden_dims"] == [32, 32]
    assert tree["training"]["total_timesteps"] == 5_000
    assert (tree["evaluation"]["every_steps"], tree["evaluation"]["episodes"]) == (1_000, 5)
    assert len(composed.notes) == 1 and "version 0, read as version 1" in composed.notes[0]


def test_a_config_of_version_1_means_what_it_meant():
    config, composed = api.configure(config_file=FIXTURES / "config-version-1.yaml")
    tree = to_tree(config)
    assert composed.notes == [] and tree["experiment"]["tags"] == ["kept"]
    assert tree["environment"]["normalize_obs"] in (True, "running")
    rate = tree["algorithm"]["learning_rate"]
    assert (rate["start"], rate["end"], rate["shape"]) == (1e-3, 0.0, "linear")
    assert tree["buffers"]["replay"]["type"] == "prioritized"
    assert tree["evaluation"]["test_episodes"] == 1


def test_a_version_0_may_say_so(tmp_path):
    text = (FIXTURES / "config-version-0.yaml").read_text()
    said = api.configure(config_file=written(tmp_path, f"version: 0\n{text}"))[0]
    assert said == api.configure(config_file=FIXTURES / "config-version-0.yaml")[0]


def test_a_newer_config_is_refused_before_its_keys_are_looked_at(tmp_path):
    text = "version: 2\nenvironment: {id: CartPole-v1, quantum: 3}\nunheard: of\n"
    with pytest.raises(UserError) as refusal:
        api.configure(config_file=written(tmp_path, text))
    assert str(refusal.value).endswith(
        "version 2 is of a newer rl-lab (this one reads up to 1): upgrade rl-lab to use it"
    )


def test_a_run_of_checkpoint_format_1_goes_on(runs):
    state, manifest, _ = CheckpointStore(find_run("old", runs)[0].checkpoints).load()
    assert (manifest["format"], manifest["step"]) == (FORMAT, STEP)
    assert len(state["parts"]["buffer.replay"]["log"].read()["reward"]) > 0
    rows = find_run("old", runs)[0].metrics_file.read_bytes()
    policy = api.load_policy("old", runs_dir=runs)
    assert policy.act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    outcome = resume("old", root=runs)
    assert (outcome.exit_code, outcome.summary["env_steps"]) == (0, 128)
    assert outcome.run.metrics_file.read_bytes().startswith(rows)
    assert outcome.summary["resumes"] == 1 and outcome.summary["test"]["last"]["episodes"] == 2


def test_a_newer_checkpoint_is_refused_and_kept(runs, capsys):
    run, _ = find_run("old", runs)
    path = run.checkpoints / f"step_{STEP:012d}"
    fields = json.loads((path / MANIFEST).read_bytes())
    del fields["sha256"]
    (path / MANIFEST).write_bytes(encode_manifest({**fields, "format": FORMAT + 1}))
    with pytest.raises(UserError, match=r"newer rl-lab \(checkpoint format 2, this one reads up"):
        CheckpointStore(run.checkpoints).load("last")
    where = ["--runs-dir", str(runs)]
    for words in (["train", "--resume", "old"], ["train", "--fork", "old"], ["evaluate", "old"]):
        assert main([*words, *where]) == 2
        shown = capsys.readouterr().err
        assert "upgrade rl-lab to load it" in shown and shown.count("\n") == 1
    assert path.exists()  # not taken for a damaged one
    assert main(["show", "old", *where]) == 0


def test_migrate_prints_the_keys_of_today(tmp_path, capsys):
    old = FIXTURES / "config-version-0.yaml"
    assert main(["config", "migrate", str(old)]) == 0
    printed = capsys.readouterr()
    assert "version 0, read as version 1" in printed.err
    tree = yaml.safe_load(printed.out)
    assert tree["version"] == 1 and tree["algorithm"]["clip_range"] == 0.2
    new = written(tmp_path, printed.out)
    assert api.configure(config_file=new)[0] == api.configure(config_file=old)[0]


def test_migrate_writes_and_keeps_what_was_there(tmp_path, capsys):
    text = (FIXTURES / "config-version-0.yaml").read_text()
    file = written(tmp_path, text)
    before = api.configure(config_file=file)[0]
    assert main(["config", "migrate", str(file), "--write"]) == 0
    assert (tmp_path / "mine.yaml.old").read_text() == text
    assert yaml.safe_load(file.read_text())["version"] == 1
    assert api.configure(config_file=file)[0] == before
    assert main(["config", "migrate", str(file), "--write"]) == 2  # would lose the older one
    assert "mine.yaml.old is in the way" in capsys.readouterr().err
    assert main(["config", "migrate", str(file)]) == 0
    assert "nothing to rename" in capsys.readouterr().err


def test_migrate_refuses_what_cannot_be_used(tmp_path, capsys):
    file = written(tmp_path, "environment: {name: CartPole-v1}\nalgorithm: {name: ppo, gama: 1}\n")
    assert main(["config", "migrate", str(file), "--write"]) == 2
    assert "did you mean 'gamma'" in capsys.readouterr().err
    assert file.read_text().startswith("environment: {name:")
    assert main(["config", "migrate"]) == 2 and main(["config", "migrate", "a", "b"]) == 2
