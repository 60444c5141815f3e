"""What `--help` and `--version` print."""

import re
from importlib.metadata import version

from rl_lab.cli.main import GROUPS, main


def test_every_command_is_in_one_group_with_its_whole_sentence(capsys):
    from typer.main import get_command

    from rl_lab.cli.main import app

    assert main(["--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    commands = get_command(app).commands
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(commands)
    for name, command in commands.items():
        sentence = " ".join((command.help or "").partition("\n\n")[0].split())
        assert sentence and sentence.removesuffix(".") in shown, name
    assert "..." not in shown.replace("[ARGS]...", "")


def test_the_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"rl-lab {version('rl-lab')}\n"


def test_no_line_is_wider_than_a_hundred_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for words in ([], ["train"], ["compare"], ["play"], ["sweep"]):
        assert main([*words, "--help"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    assert not re.search(r"\bfilm|workflow|\bE0\b", text)
