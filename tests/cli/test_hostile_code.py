"""A run of somebody else names code, in every block that may carry it: none of it is imported.

Every case is a copy of one trained run (`conftest.py`). The canary is a file that any of the code
would write. Every command refuses with one line that shows what it would import.
"""

import json
import shutil
import warnings
from contextlib import suppress

import pytest

import rl_lab
from doctored import CODE, DOORS, EVALUATE, LOOK, RESUME, no_canary, opened, prepare
from rl_lab.core.errors import UserError


@pytest.mark.parametrize("name", CODE)
def test_code_that_a_run_names_is_not_imported(run, capsys, name):
    prepare(run, name)
    for words in (EVALUATE, RESUME):
        code, told = opened(run, words, capsys)
        assert code == 2 and "--trust" in told and "has no mark of yours" in told
        assert told.rstrip("\n").isprintable()
    for words in LOOK:  # as data: whatever they print, they import nothing
        opened(run, words, capsys)
    assert no_canary(run)


@pytest.mark.parametrize("words", DOORS, ids=lambda words: " ".join(words[:2]))
def test_every_command_asks_before_it_imports(run, capsys, words):
    prepare(run, "component by module")
    code, told = opened(run, words, capsys)
    assert code == 2 and no_canary(run)
    assert "would import 'hostile_module.Thing' (components.a._target_)" in told
    assert "add --trust (in Python: trust=True)" in told


PYTHON = {
    "load_policy": lambda run, **more: rl_lab.load_policy(str(run.path), **more),
    "evaluate": lambda run, **more: rl_lab.evaluate(str(run.path), episodes=1, **more),
    "play": lambda run, **more: rl_lab.play(str(run.path), max_steps=2, video="film.gif", **more),
    "resume": lambda run, **more: rl_lab.resume(str(run.path), **more),
    "fork": lambda run, **more: rl_lab.fork(f"{run.path}:256", **more),
    "verify": lambda run, **more: rl_lab.verify(str(run.path), steps=64, **more),
}


@pytest.mark.parametrize("door", PYTHON)
def test_the_python_interface_asks_too(run, door):
    prepare(run, "component by module")
    with pytest.raises(UserError, match="trust=True") as caught:
        PYTHON[door](run)
    assert len(str(caught.value).splitlines()) == 1 and no_canary(run)
    # The configuration was changed: a policy warns of that, a resume and a fork refuse.
    with warnings.catch_warnings(action="ignore"), suppress(UserError):
        PYTHON[door](run, trust=True)
    assert not no_canary(run)  # the canary works, and `trust` lets it


def test_trust_on_the_command_line(run, capsys):
    prepare(run, "a plug-in")
    assert opened(run, EVALUATE, capsys)[0] == 2 and no_canary(run)
    code, told = opened(run, [*EVALUATE, "--trust"], capsys)
    assert code == 0 and "config.yaml was changed after the checkpoint" in told
    assert not no_canary(run)
    assert opened(run, ["train", "CartPole-v1:ppo", "--trust"], capsys)[0] == 2


# ------------------------------------------------------------------------- marks


def mark_again(run, trained):
    shutil.copy(trained.mark_file, run.mark_file)


MARKS = {
    "of another config": lambda run, trained: mark_again(run, trained),
    "empty": lambda run, trained: run.mark_file.write_bytes(b""),
    "a list": lambda run, trained: run.mark_file.write_bytes(b"[]"),
    "numbers": lambda run, trained: run.mark_file.write_text('{"key": 1, "mark": 2}'),
    "not ASCII": lambda run, trained: run.mark_file.write_text('{"key": "é", "mark": "é"}'),
    "nested": lambda run, trained: run.mark_file.write_text("[" * 100_000),
    "too large": lambda run, trained: run.mark_file.write_bytes(b" " * 2_000_000),
    "a folder": lambda run, trained: run.mark_file.mkdir(),
    "of another key": lambda run, trained: run.mark_file.write_text(
        json.dumps(json.loads(trained.mark_file.read_text()) | {"key": "0" * 16})
    ),
    "with the config's hash": lambda run, trained: run.mark_file.write_text(
        json.dumps(json.loads(trained.mark_file.read_text()) | {"mark": "0" * 64})
    ),
}


@pytest.mark.parametrize("name", MARKS)
def test_a_mark_that_does_not_fit_is_none(run, trained, capsys, name):
    prepare(run, "component by module")
    MARKS[name](run, trained)
    code, told = opened(run, EVALUATE, capsys)
    assert code == 2 and "--trust" in told and no_canary(run)
