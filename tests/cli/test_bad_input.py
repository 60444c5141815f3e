"""Mistakes: exit code 2, one clear message, no traceback, and nothing left behind."""

import re

import pytest

from rl_lab.cli.main import main

PPO = "CartPole-v1:ppo_defaults"  # without the preset
HOOK = "training.phases=[{name: a, hooks: [collect, updat]}]"
ENDLESS = "training.phases=[{name: a, hooks: [collect]}, {name: b, hooks: [update]}]"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a few broken files, and no runs in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RL_LAB_RUNS", raising=False)
    (tmp_path / "broken.yaml").write_text("version: 1\nenvironment: {id: CartPole-v1\n")
    (tmp_path / "typo.yaml").write_text("version: 1\nenvironment:\n  id: CartPole-v1\n  nun: 2\n")
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "simple.py").write_text("import gymnasium\n")
    (tmp_path / "raises.py").write_text("raise RuntimeError('on purpose')\n")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train", "nothing to run"),
        ("train CartPol-v1:ppo", "unknown environment 'CartPol-v1' (did you mean 'CartPole-v1'"),
        ("train CartPole-v1:poo", "did you mean 'ppo'?"),
        ("train +experiment=CartPole-v1/pp0", "did you mean 'CartPole-v1/ppo'?"),
        ("train CartPole-v1:ppo Acrobot-v1:ppo", "give one experiment"),
        (f"train {PPO} algorithm.gama=0.9", "algorithm.gama: unknown key (did you mean 'gamma'?)"),
        (f"train {PPO} training.total_timesteps=many", "must be a whole number, got 'many'"),
        (f"train {PPO} --total-timesteps many", "must be a whole number, got 'many'"),
        (f"train {PPO} algorithm.gamma=[", "override 'algorithm.gamma=['"),
        (f"train {PPO} algorithm.minibatches=7", "not divisible into 7 minibatches"),
        (f"train {PPO} algorithm.minibatches=4 algorithm.batch_size=64", "not both"),
        (f"train {PPO} network.memory=grru", "did you mean 'gru'?"),
        (f"train {PPO} experiment.device=cuda", "no usable GPU"),
        (f"train {PPO} experiment.device=tpu", "write auto, cpu, cuda or cuda:N"),
        (f"train {PPO} algorithm.gamma", "'algorithm.gamma' has no value: write algorithm.gamma="),
        (f"train {PPO} algorithm.learning_rate=lin_x", "write a number after lin_, as in lin_3e-4"),
        ("train :ppo", "':ppo' names no environment: write ENV:ALGORITHM, as in CartPole-v1:ppo"),
        ("train CartPole-v1:", "'CartPole-v1:' names no algorithm: write ENV:ALGORITHM"),
        ("train simple:Nope:random", "simple.py was imported and has no environment 'Nope'"),
        (f"train {PPO} --seed abc", "--seed: write 1, 1,2,3 or 1-3, got 'abc'"),
        (f"train {PPO} --seed 1,1", "names a seed twice"),
        (f"train {PPO} --runs-dir file", "cannot create a run in file"),
        (f"train {PPO} --runs-dir file/below", "cannot create a run in file/below"),
        ("train --config nothing.yaml", "nothing.yaml: no such file"),
        ("train --config broken.yaml", "broken.yaml:3: bad YAML"),
        ("train --config typo.yaml", "environment.nun: unknown key"),
        ("train --config typo.yaml", "typo.yaml:4"),
        (f"train {PPO} --config-dir nowhere", "--config-dir nowhere: no such folder"),
        (f"train {PPO} --plugin nothing.py", "cannot find the file 'nothing.py'"),
        (f"train {PPO} --plugin raises.py", "RuntimeError: on purpose"),
        (f"train {PPO} plugins=[raises.py]", "RuntimeError: on purpose"),
        ("train --resume nope", "there are no runs in runs"),
        ("train --resume @last algorithm.gamma=0.9", "'algorithm.gamma=0.9' cannot be changed"),
        ("train CartPole-v1:ppo --resume @last", "'CartPole-v1:ppo' cannot be changed"),
        ("train --resume @last --seed 2", "'--seed' cannot be changed"),
        ("train CartPole-v1:ppo training.warm_start=nope", "there are no runs in runs"),
        ("evaluate nope", "there are no runs in runs"),
        ("evaluate", "Missing argument"),
        ("evaluate nope --episodes 0", "--episodes"),
        ("evaluate nope --episodes many", "--episodes"),
        ("play nope", "there are no runs in runs"),
        ("play nope --video film.avi", "'film.avi' is not a video"),
        ("show nope", "there are no runs in runs"),
        ("config CartPole-v1:ppo --diff nope", "there are no runs in runs"),
        ("algorithms pppo", "did you mean 'ppo'?"),
        ("envs nothing-like-it", "no environment has 'nothing-like-it'"),
        ("check env CartPol-v1", "did you mean 'CartPole-v1'"),
        ("check algorithm pp", "did you mean 'ppo'?"),
        ("index rebuild --runs-dir nowhere", "there is no folder nowhere"),
        ("trian CartPole-v1:ppo", "Did you mean 'train'?"),
        ("list --limt 3", "No such option: --limt"),
    ],
)
def test_one_clear_message_and_nothing_left_behind(place, capsys, words, said):
    before = sorted(place.rglob("*"))
    assert main(words.split()) == 2
    output = capsys.readouterr()
    assert said in output.err
    assert output.err.startswith("error: ") and "Traceback" not in output.err
    assert len(output.err.splitlines()) == 1
    assert sorted(path for path in place.rglob("*") if "__pycache__" not in str(path)) == before


@pytest.mark.parametrize(
    ("phases", "said"),
    [
        (HOOK, "asks for hook 'updat' (did you mean 'update'?)"),
        (ENDLESS, "phase 'b' is unreachable: 'a' has no duration"),
    ],
)
def test_impossible_phases(place, capsys, phases, said):
    assert main(["train", PPO, phases]) == 2
    assert said in capsys.readouterr().err
    assert not (place / "runs").exists()


def test_families_that_could_not_be_searched_are_named(place, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # none is installed
    assert main(["envs", "nothing-like-it"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "`rl-lab envs` lists all; not installed, so not searched: ALE, BabyAI" in line


def test_all_problems_in_one_answer(place, capsys):
    bad = ["algorithm.gama=1", "algorithm.epochs=0", "environment.num_envs=x", "experiment.sed=1"]
    assert main(["train", PPO, *bad]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4 and all("command line" in line for line in lines)


def test_a_traceback_only_with_debug(place, capsys):
    assert main(["train", "CartPol-v1:ppo", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err
    assert main(["evaluate", "nope", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_bug_is_told_in_one_line_too(place, capsys, monkeypatch):
    from rl_lab.run import session

    def bug(*arguments, **more):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(session, "train", bug)
    assert main(["train", PPO]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"error: test_bad_input.py:\d+ in bug: ZeroDivisionError: oops "
        r"\(--debug shows the traceback\)",
        line,
    )
    assert main(["train", PPO, "--debug"]) == 1
    assert "Traceback" in (told := capsys.readouterr().err) and "--debug" not in told


def test_a_bad_number_stops_the_run_and_says_where_the_dump_is(place, capsys):
    (place / "nan.py").write_text(
        "from rl_lab import Action, Workflow, register_algorithm\n"
        "from rl_lab.core.errors import NonFiniteError\n"
        "@register_algorithm('nan')\n"
        "class Nan(Workflow):\n"
        "    def act(self, obs, state, *, deterministic):\n"
        "        return Action(obs[:, 0].new_zeros(len(obs)).long())\n"
        "    def update(self, batch, *, phase):\n"
        "        raise NonFiniteError('the loss is nan', {'hook': 'update'})\n"
    )
    words = ["CartPole-v1:nan", "--plugin", "nan.py", "logging.tensorboard=false", "-q"]
    assert main(["train", *words]) == 1
    message, note, resume = capsys.readouterr().err.splitlines()
    assert re.search(
        r"from the first step \(the [\d,]+ steps since are played again\): rl-lab", resume
    )
    assert message == "error: the loss is nan"
    dump = note.rpartition(" ")[2]
    assert "crash/step_" in dump and (place / dump).is_dir()
    assert main(["show", "@last"]) == 0
    assert "failed" in capsys.readouterr().out


def test_help_without_words(capsys):
    for words in ([], ["check"], ["index"], ["--help"], ["train", "-h"]):
        assert main(words) == 0
        assert "Usage: rl-lab" in capsys.readouterr().out
