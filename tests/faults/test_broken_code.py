# ruff: noqa: E501  (tables: one case a line)
"""Broken environments and plug-ins: one sentence that names the method or file and line.

Nothing is lost: the whole traceback is in run.log, and where a run had begun it resumes, bit for
bit as if it had never failed.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from rl_lab.cli.main import main
from rl_lab.records.run_directory import find_run, list_runs
from tiny_runs import SMALL, SMALL_PPO, run_hash

ENVIRONMENT = """
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

import rl_lab

FIXED = Path({folder!r}) / "fixed"  # while it exists, nothing that is late goes wrong
TWO = np.zeros(2, np.float32)


@rl_lab.register_environment({id!r})
class Broken(gym.Env):
    metadata = {{"render_modes": ["rgb_array"]}}
    observation_space = {space}
    action_space = Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode, self.total, self.t = render_mode, 0, 0
        {init}

    def late(self):
        return self.total == 100 and not FIXED.exists()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, obs, info = 0, {obs}, {{}}
        {reset}
        return obs, info

    def step(self, action):
        self.t, self.total = self.t + 1, self.total + 1
        obs, reward, terminated, truncated, info = {obs}, 1.0, False, self.t >= 10, {{}}
        {step}
        return obs, reward, terminated, truncated, info
"""
TWO, SPACE = "np.zeros(2, np.float32)", "Box(-1, 1, (2,), np.float32)"
PARTS = "Dict(near=Box(-1, 1, (2,), np.float32), far=Dict(kind=Discrete(3)))"
PART_OBS = "{'near': np.zeros(2, np.float32), 'far': {'kind': 1}}"
AT = r"'X': (reset|step)\(\) of environment 0 returned "

# name -> (what is wrong, what is said)
REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "reset_shape": ({"reset": "obs = np.zeros(3, np.float32)"}, AT + r"an observation of shape \(3,\); expected \(2,\)"),
    "reset_repeated": ({"reset": "obs = np.zeros(1, np.float32)"}, AT + r"an observation of shape \(1,\); expected \(2,\)"),
    "reset_number": ({"reset": "obs = 0.5"}, AT + r"an observation of shape \(\); expected \(2,\)"),
    "reset_none": ({"reset": "obs = None"}, AT + "an observation that is None; expected numbers"),
    "reset_text": ({"reset": "obs = 'start'"}, AT + "an observation that is text"),
    "reset_one_value": ({"reset": "return obs"}, AT + r"one value, an array of shape \(2,\) .*; expected 2 values"),
    "reset_nothing": ({"reset": "return"}, AT + "one value, None; expected 2 values"),
    "reset_info": ({"reset": "info = None"}, AT + "an info that is None; expected a dict"),
    "step_shape": ({"step": "obs = np.zeros((2, 1), np.float32)"}, AT + r"an observation of shape \(2, 1\) at step 1; expected \(2,\)"),
    "step_ragged": ({"step": "obs = [[1.0], [1.0, 2.0]]"}, AT + "an observation that is a list at step 1"),
    "step_four_values": ({"step": "return obs, reward, terminated, info"}, AT + r"4 values at step 1; expected 5 values \(observation, reward, terminated, truncated, info\)"),
    "step_none": ({"step": "return None"}, AT + "one value, None at step 1; expected 5 values"),
    "step_info": ({"step": "info = []"}, AT + "an info that is a list at step 1; expected a dict"),
    "reward_array": ({"step": "reward = np.ones(1)"}, AT + r"a reward that is an array of shape \(1,\) \(float64\) at step 1; expected one number"),
    "reward_text": ({"step": "reward = 'high'"}, AT + r"a reward that is text \('high'\) at step 1; expected one number"),
    "reward_none": ({"step": "reward = None"}, AT + "a reward that is None at step 1; expected one number"),
    "terminated_text": ({"step": "terminated = 'no'"}, AT + r"a value for terminated that is text \('no'\) at step 1; expected True or False"),
    "truncated_array": ({"step": "truncated = np.zeros(2, bool)"}, AT + r"a value for truncated that is an array of shape \(2,\)"),
    "terminated_none": ({"step": "terminated = None"}, AT + "a value for terminated that is None"),
    "fractions_as_bytes": ({"space": "Box(0, 255, (2,), np.uint8)", "obs": "np.full(2, 0.5)"}, AT + "an observation of float64 such as .*; expected uint8"),
    "index_too_large": ({"space": "Discrete(3)", "obs": "3"}, AT + "an observation of 3; expected an index from 0 to 2"),
    "indices_too_large": ({"space": "MultiDiscrete([2, 2])", "obs": "np.array([0, 2])"}, AT + r"an observation of \[0, 2\]; expected an index"),
    "index_fraction": ({"space": "Discrete(3)", "obs": "0.5"}, AT + "an observation of 0.5; expected whole numbers"),
    "missing_key": ({"space": PARTS, "obs": "{'near': TWO}"}, AT + "an observation with the keys near; expected the keys far, near"),
    "extra_key": ({"space": PARTS, "obs": "{'near': TWO, 'far': {'kind': 1, 'x': 1}}"}, AT + "an observation part 'far' with the keys kind, x; expected the keys kind"),
    "nested_shape": ({"space": PARTS, "obs": PART_OBS, "step": "obs = {'near': np.zeros(3), 'far': {'kind': 1}}"}, AT + r"an observation part 'near' of shape \(3,\) at step 1; expected \(2,\)"),
    "no_dict": ({"space": PARTS, "obs": "TWO"}, AT + "an observation that is an array .*; expected a dict with the keys far, near"),
    "tuple_length": ({"space": "Tuple([Discrete(2), Discrete(2)])", "obs": "(1,)"}, AT + "an observation that is 1 value; expected 2 values"),
    "unknown_space": ({"space": "gym.spaces.Text(5)"}, "the observation space of 'X' has a Text, which is not supported"),
    "init_raises": ({"init": "1 / 0"}, r"FILE:\d+ in __init__: ZeroDivisionError"),
    "reset_raises": ({"reset": "1 / 0"}, r"FILE:\d+ in reset: ZeroDivisionError: division by zero"),
    "step_raises": ({"step": "info['late']"}, r"FILE:\d+ in step: KeyError: 'late'"),
    "step_exits": ({"step": "raise SystemExit(3)"}, r"FILE:\d+ in step: SystemExit: 3"),
    "nan": ({"step": "obs = TWO * np.nan"}, "environment 0 gave (next_)?obs that is not finite"),
    "reward_nan": ({"step": "reward = float('nan')"}, "environment 0 gave reward that is not finite"),
}  # fmt: skip

# What goes wrong late, after a checkpoint.
LATE = {
    "raises": ("{}['late']", r"FILE:\d+ in step: KeyError: 'late'"),
    "shape": ("obs = np.zeros(1, np.float32)", AT + r"an observation of shape \(1,\) at step 100; expected \(2,\)"),
    "values": ("return obs, reward, terminated, info", AT + "4 values at step 100; expected 5 values"),
    "reward": ("reward = np.ones(2)", AT + r"a reward that is an array of shape \(2,\)"),
    "terminated": ("terminated = 'no'", AT + r"a value for terminated that is text \('no'\)"),
    "nan": ("obs = TWO * np.nan", "environment 0 gave (next_)?obs that is not finite"),
}  # fmt: skip

ALGORITHM = """
from pathlib import Path

import torch

from rl_lab import Action, Workflow, register_algorithm

FIXED = Path({folder!r}) / "fixed"


@register_algorithm({id!r})
class Broken(Workflow):
    collect_steps, calls = 16, 0

    def act(self, obs, state, *, deterministic):
        return {act}

    def update(self, batch, *, phase):
        self.calls += 1
        {update}
        return {metrics}
"""
ACT, METRICS = "Action(torch.zeros(len(obs), dtype=torch.int64))", "{'loss': 0.0}"
ALGORITHMS: dict[str, tuple[dict[str, str], str]] = {
    "act_shape": ({"act": "Action(torch.zeros(1, dtype=torch.int64))"}, r"FILE:\d+ Broken.act returned actions of shape \(1,\); expected \(4,\) for 4 environments"),
    "act_tensor": ({"act": "torch.zeros(len(obs))"}, r"FILE:\d+ Broken.act returned a Tensor; expected an Action"),
    "act_in_evaluation": ({"act": ACT + " if not deterministic else obs.nothing"}, r"FILE:\d+ in act: AttributeError"),
    "act_raises": ({"act": "obs.nothing"}, r"FILE:\d+ in act: AttributeError: 'Tensor' object has no attribute 'nothing'"),
    "update_raises": ({"update": "1 / 0"}, r"FILE:\d+ in update: ZeroDivisionError: division by zero"),
    "update_returns_nothing": ({"metrics": "None"}, "update returned a NoneType; expected a dict of metrics"),
    "update_returns_text": ({"metrics": "{'loss': 'low'}"}, "update returned a dict with a value that is no number"),
}  # fmt: skip
FILES = {
    "syntax": ("class Broken(:\n", r"cannot import 'FILE': FILE:1: SyntaxError: invalid syntax"),
    "import": ("\nimport no_such_module\n", r"cannot import 'FILE': FILE:2 in <module>: ModuleNotFoundError"),
    "name": ("x = 1\ny = z\n", r"cannot import 'FILE': FILE:2 in <module>: NameError: name 'z'"),
    "no_class": ("x = 1\n", "no preset and no algorithm 'X'"),
    "no_act": ("from rl_lab import Workflow, register_algorithm\n@register_algorithm('X')\nclass Broken(Workflow):\n    def update(self, batch, *, phase): return {}\n", "Broken.*act"),
    "act_signature": ("from rl_lab import Workflow, register_algorithm\n@register_algorithm('X')\nclass Broken(Workflow):\n    def act(self, obs): ...\n    def update(self, batch, *, phase): return {}\n", r"FILE:4 Broken.act: it is called as act\(obs, state, deterministic=…\)"),
    "update_signature": ("from rl_lab import Workflow, register_algorithm\n@register_algorithm('X')\nclass Broken(Workflow):\n    def act(self, obs, state, *, deterministic): ...\n    def update(self): return {}\n", r"FILE:5 Broken.update: it is called as update\(batch, phase=…\)"),
}  # fmt: skip
WRAPPER = """
import gymnasium as gym
import rl_lab


@rl_lab.register_wrapper({id!r})
class Broken(gym.Wrapper):
    def step(self, action):
        {step}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RL_LAB_RUNS", raising=False)
    return tmp_path


def write(case: str, text: str) -> str:
    file = f"broken_{case}.py"  # a module of its own: this process imports it once
    Path(file).write_text(text)
    return file


def environment(case: str, **wrong: str) -> tuple[str, str]:
    """The file of a broken environment, and its id."""
    words = {"space": SPACE, "obs": TWO, "init": "", "reset": "", "step": ""} | wrong
    id = f"Broken_{case}-v0"
    return write(case, ENVIRONMENT.format(id=id, folder=str(Path.cwd()), **words)), id


def train(spec: str, file: str, *words: str) -> int:
    settings = [*SMALL, *(SMALL_PPO if ":ppo" in spec else []), "checkpoint.every_steps=64"]
    settings = [each for each in settings if not each.startswith("environment.max_episode")]
    command = ["train", spec, "--plugin", file, *settings, "evaluation.test_episodes=0"]
    return main([*command, "evaluation.every_steps=0", *words, "-q"])


def check_told(error: str, said: str, file: str, id: str) -> None:
    """One sentence; the line after it says how to go on, if there is a run."""
    beside = ("WARNING", "ALERT")  # what a run has to say of itself
    first, *rest = [line for line in error.splitlines() if not line.startswith(beside)]
    assert re.search(said.replace("FILE", re.escape(file)).replace("X", re.escape(id)), first)
    assert "Traceback" not in error
    assert all("rl-lab" in line for line in rest), rest
    for run in list_runs(Path("runs")):
        assert "Traceback" in run.log_file.read_text()
        assert run.read_summary()["status"] == "failed"
        assert "rl-lab train --resume" in rest[-1]


@pytest.mark.parametrize("case", REFUSED)
def test_a_broken_environment_is_told_in_one_sentence(case: str, place: Path, capsys: Any) -> None:
    wrong, said = REFUSED[case]
    file, id = environment(case, **wrong)
    assert train(f"{id}:random", file) in (1, 2)
    check_told(capsys.readouterr().err, said, file, id)


def test_a_reset_of_the_old_kind_is_told_how_to_write_it(place: Path, capsys: Any) -> None:
    Path("old.py").write_text(
        "import gymnasium\n"
        "class Old(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Box(-1, 1, (2,))\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n"
        "    def reset(self):\n"
        "        return self.observation_space.sample()\n"
    )
    assert main(["train", "old:Old:random", *SMALL, "-q"]) == 2
    assert capsys.readouterr().err == (
        "error: 'old:Old': old.py:5 Old.reset() cannot be called with a seed and options: write "
        "def reset(self, *, seed=None, options=None)\n"
    )


@pytest.mark.parametrize("case", LATE)
def test_what_fails_late_resumes_bit_for_bit(case: str, place: Path, capsys: Any) -> None:
    code, said = LATE[case]
    file, id = environment(f"late_{case}", step=f"if self.late(): {code}")
    words = (f"{id}:ppo_defaults", file)
    assert train(*words) in (1, 2)
    error = capsys.readouterr().err
    check_told(error, said, file, id)
    assert "to go on from the checkpoint at step 384: rl-lab train --resume runs" in error
    failed = find_run("@last", Path("runs"))[0]
    Path("fixed").touch()
    assert train(*words) == 0
    straight = find_run("@last", Path("runs"))[0]
    assert main(["train", "--resume", str(failed.path), "-q"]) == 0
    assert failed.read_summary()["status"] == "finished"
    assert run_hash(failed) == run_hash(straight)


@pytest.mark.parametrize(
    ("case", "words", "begin"),
    [
        (
            "first",
            ["checkpoint.every_steps=0"],
            "the first step (the 384 steps since are played again)",
        ),
        (
            "worker",
            ["environment.vectorization=process", "environment.restarts=0"],
            "the checkpoint at step 384",
        ),
    ],
)
def test_it_resumes_without_a_checkpoint_and_in_workers(
    case: str, words: list[str], begin: str, place: Path, capsys: Any
) -> None:
    file, id = environment(f"again_{case}", step="if self.late(): info['late']")
    assert train(f"{id}:ppo_defaults", file, *words) in (1, 2)
    error = capsys.readouterr().err
    assert re.search(rf"{file}:\d+ in step: KeyError: 'late'\n", error)
    assert f"to go on from {begin}: rl-lab train --resume" in error
    failed = find_run("@last", Path("runs"))[0]
    Path("fixed").touch()
    assert train(f"{id}:ppo_defaults", file, *words) == 0
    straight = find_run("@last", Path("runs"))[0]
    assert main(["train", "--resume", str(failed.path), "-q"]) == 0
    assert run_hash(failed) == run_hash(straight)


@pytest.mark.parametrize("case", ["step_shape", "reward_text", "step_four_values", "missing_key"])
def test_workers_say_the_same(case: str, place: Path, capsys: Any) -> None:
    wrong, said = REFUSED[case]
    file, id = environment(f"worker_{case}", **wrong)
    told = []
    for vector in ("sync", "process"):
        words = [f"environment.vectorization={vector}", "environment.num_envs=2"]
        assert train(f"{id}:random", file, *words, "environment.workers=2") == 2
        told.append(capsys.readouterr().err.splitlines()[0])
    assert told[0] == told[1]
    assert re.search(said.replace("X", re.escape(id)), told[0])


def test_an_environment_that_raises_in_a_worker_is_named(place: Path, capsys: Any) -> None:
    file, id = environment("worker_raises", step="if self.late(): FIXED.touch(); info['late']")
    words = ["environment.vectorization=process", "environment.num_envs=1"]
    assert train(f"{id}:random", file, *words, "environment.restarts=1") == 0
    (line,) = capsys.readouterr().err.splitlines()  # said, and the run went on
    assert re.search(rf"new episodes in a new worker: {file}:\d+ in step: KeyError: 'late'$", line)
    log = find_run("@last", Path("runs"))[0].log_file.read_text()
    assert "Traceback" in log and "info['late']" in log
    Path("fixed").unlink()
    assert train(f"{id}:random", file, *words, "environment.restarts=0") == 2
    check_line = capsys.readouterr().err.splitlines()[0]
    assert re.search(rf"{file}:\d+ in step: KeyError: 'late'$", check_line)


DOUBTS = {
    "dtype": ({"obs": "np.zeros(2)"}, "an observation of float64; expected float32: it is converted"),
    "bounds": ({"step": "obs = TWO + 7"}, r"an observation of 7 at index 0 \(and 1 more numbers outside\) at step 1; expected -1 to 1"),
    "flag": ({"step": "terminated = 0"}, "a value for terminated that is an int at step 1"),
    "list": ({"obs": "[0.0, 0.0]"}, "an observation of numbers without a dtype; expected float32"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("case", "vector"), [*((case, "sync") for case in DOUBTS), ("dtype", "process")]
)
def test_a_doubt_is_told_once(case: str, vector: str, place: Path, capsys: Any) -> None:
    wrong, said = DOUBTS[case]
    file, id = environment(f"doubt_{case}_{vector}", **wrong)
    words = [f"environment.vectorization={vector}", "evaluation.every_steps=256"]
    assert train(f"{id}:random", file, *words) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"WARNING: '{id}': .* returned {said}", line)


@pytest.mark.parametrize("case", ALGORITHMS)
def test_a_broken_algorithm_is_told_in_one_sentence(case: str, place: Path, capsys: Any) -> None:
    wrong, said = ALGORITHMS[case]
    words = {"act": ACT, "update": "", "metrics": METRICS, "folder": str(place)} | wrong
    file = write(case, ALGORITHM.format(id=f"broken_{case}", **words))
    assert train(f"CartPole-v1:broken_{case}", file, "evaluation.every_steps=256") in (1, 2)
    check_told(capsys.readouterr().err, said, file, f"broken_{case}")


def test_an_update_that_fails_late_resumes_bit_for_bit(place: Path, capsys: Any) -> None:
    wrong = "if self.calls == 10 and not FIXED.exists(): raise ValueError('late')"
    words = {"act": ACT, "update": wrong, "metrics": METRICS, "folder": str(place)}
    file = write("late_update", ALGORITHM.format(id="broken_late_update", **words))
    spec = "CartPole-v1:broken_late_update"
    assert train(spec, file) == 1
    said = r"FILE:\d+ in update: ValueError: late"
    check_told(capsys.readouterr().err, said, file, "broken_late_update")
    failed = find_run("@last", Path("runs"))[0]
    Path("fixed").touch()
    assert train(spec, file) == 0
    straight = find_run("@last", Path("runs"))[0]
    assert main(["train", "--resume", str(failed.path), "-q"]) == 0
    assert run_hash(failed) == run_hash(straight)


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_is_no_plug_in_is_told_in_one_sentence(
    case: str, place: Path, capsys: Any
) -> None:
    text, said = FILES[case]
    name = f"broken_file_{case}"
    file = write(f"file_{case}", text.replace("'X'", f"'{name}'"))
    assert train(f"CartPole-v1:{name}", file) in (1, 2)
    error = capsys.readouterr().err
    said = said.replace("FILE", re.escape(file)).replace("X", name)
    assert re.search(said, error), error
    assert "Traceback" not in error and not list_runs(Path("runs"))


@pytest.mark.parametrize(
    ("case", "step", "said"),
    [
        ("raises", "raise RuntimeError('no motor')", r"FILE:\d+ in step: RuntimeError: no motor"),
        ("four", "return self.env.step(action)[:4]", "4 values at step 1; expected 5 values"),
    ],
)
def test_a_broken_wrapper_is_told_in_one_sentence(
    case: str, step: str, said: str, place: Path, capsys: Any
) -> None:
    file = write(f"wrapper_{case}", WRAPPER.format(id=f"Broken_{case}", step=step))
    words = f"environment.wrappers=[{{id: Broken_{case}}}]"
    assert train("CartPole-v1:random", file, words) in (1, 2)
    check_told(capsys.readouterr().err, said, file, "CartPole-v1")


RENDERS = {
    "missing": ("", r"'X' cannot be shown: it has no render\(\); `rl-lab evaluate` plays it"),
    "raises": ("def render(self): return {}['screen']", r"FILE:\d+ in render: KeyError: 'screen'"),
    "none": (
        "def render(self): return None",
        r"'X' cannot be recorded: its render\(\) gives a None",
    ),
}


@pytest.mark.parametrize("case", RENDERS)
def test_play_of_what_cannot_be_drawn(case: str, place: Path, capsys: Any) -> None:
    code, said = RENDERS[case]
    file, id = environment(f"render_{case}", step="")
    Path(file).write_text(f"{Path(file).read_text()}\n    {code}\n")
    assert train(f"{id}:random", file, "training.total_timesteps=64") == 0
    capsys.readouterr()
    assert main(["play", "@last", "--video", "film.gif"]) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(said.replace("FILE", file).replace("X", id), line)
    assert main(["evaluate", "@last", "--episodes", "2"]) == 0


@pytest.mark.parametrize(
    ("case", "wrong", "result"),
    [
        ("good", {}, None),
        ("bounds", {"step": "obs = TWO + 7"}, "warn  numbers and kinds"),
        ("chance", {"step": "obs = np.random.default_rng().random(2, np.float32)"}, "warn  same seed"),
        ("endless", {"step": "truncated = False"}, "warn  end of an episode"),
        ("shape", {"step": "obs = np.zeros(3)"}, "FAIL  200 random steps"),
        ("options", {"reset": "options['start']"}, "FAIL  reset "),
        ("nan", {"step": "obs = TWO * np.nan"}, "FAIL  200 random steps"),
        ("made", {"init": "1 / 0"}, r"FAIL  make .*FILE:\d+ in __init__: ZeroDivisionError"),
    ],
)  # fmt: skip
def test_check_env_finds_it(
    case: str, wrong: dict[str, str], result: str | None, place: Path, capsys: Any
) -> None:
    from rl_lab.config import catalog
    from rl_lab.envs.behavior import FAIL, OK, RENDERING, check_behavior

    file, id = environment(f"check_{case}", **wrong)
    if result is not None and result.startswith("FAIL"):
        assert main(["check", "env", id, "--plugin", file]) == 1
        shown = capsys.readouterr().out
        assert re.search(result.replace("FILE", file), shown) and f"FAILED: {id}" in shown
        return
    catalog.load_plugin(file)
    found = {each.name: each.result for each in check_behavior(id)}
    assert found.pop(RENDERING) == FAIL  # it says that it can draw
    doubts = [f"warn  {name}" for name, each in found.items() if each != OK]
    assert len(doubts) == (result is not None)
    assert result is None or doubts[0].startswith(result)
