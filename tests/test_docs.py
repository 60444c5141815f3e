"""The documentation is true where a machine can tell: options, commands, YAML, links."""

import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

from first_hour import INDEX, TYPED, section, table_commands
from rl_lab import api
from rl_lab.benchmarking.networks.cells import plan
from rl_lab.benchmarking.networks.task_set import read_set
from rl_lab.cli.main import app
from rl_lab.config.compose import compose
from rl_lab.config.tree import to_tree
from rl_lab.config.validate import validate
from rl_lab.tuning.driver import check
from rl_lab.tuning.sweep_file import read_sweep

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "examples/README.md",
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def fences(page: Path, *languages: str) -> list[str]:
    return [text for name, text in FENCE.findall(page.read_text()) if name in languages]


def commands(page: Path) -> list[str]:
    lines = [line for text in fences(page, "", "bash") for line in text.splitlines()]
    return [
        match[1] for line in lines if (match := re.match(r"(?:\$ )?(?:\w+=\S+ )*rl-lab (.*)", line))
    ]


def parse(command: str) -> None:
    """Walk to the subcommand and let it read its options; nothing is run."""
    found, words = typer.main.get_command(app), shlex.split(command, comments=True)
    while hasattr(found, "commands"):
        found = found.commands[words.pop(0)]
    found.make_context("rl-lab", words)


def generate(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_options_page_is_up_to_date(tmp_path):
    done = generate("--check")
    assert done.returncode == 0, done.stderr
    stale = tmp_path / "options.md"
    stale.write_text((ROOT / "docs" / "options.md").read_text() + "more\n")
    done = generate("--check", "--page", str(stale))
    assert done.returncode == 1 and "make docs" in done.stderr


SHOWN = [(page, each) for page in PAGES for each in commands(page)]


@pytest.mark.parametrize(("page", "command"), SHOWN, ids=[f"{p.name}: {c}" for p, c in SHOWN])
def test_commands_that_are_shown_exist(page, command):
    parse(command)


def test_there_are_commands_and_wrong_ones_are_found():
    assert len(SHOWN) > 20
    for wrong in ("trian CartPole-v1:ppo", "train --sed 1", "check environment CartPole-v1"):
        with pytest.raises((KeyError, typer.TyperException)):
            parse(wrong)


YAML = [(page, text) for page in PAGES for text in fences(page, "yaml")]


@pytest.mark.parametrize(("page", "text"), YAML, ids=[page.name for page, _ in YAML])
def test_yaml_that_is_shown_is_valid(tmp_path, page, text):
    file = tmp_path / "shown.yaml"
    file.write_text(text)
    tree = yaml.safe_load(text)
    if "base_config" in tree:
        check(read_sweep(file))
    elif "tasks" in tree:
        assert plan(read_set(file), ["none", "mamba"], "parameters", print).cells
    else:
        api.configure(config_file=file)


def test_the_first_hour_types_every_command_of_the_index():
    """`tests/learning/test_first_hour.py` runs them; it is slow, so it is compared here."""
    assert table_commands(section("Commands", INDEX)) == list(TYPED)


def test_the_algorithm_in_the_readme_is_the_example():
    example = (ROOT / "examples" / "my_algorithm.py").read_text()
    shown = next(
        text for text in fences(ROOT / "README.md", "python") if "class MyAlgorithm" in text
    )
    assert shown in example


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = FENCE.sub("", page.read_text())
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)", text):
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(file), f"{page.name}: {target}#{anchor}"


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_make_targets_that_are_shown_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = {name for page in PAGES for name in re.findall(r"`make ([a-z]+)", page.read_text())}
    assert shown and shown <= targets, shown - targets


@pytest.mark.usefixtures("names_restored")
def test_the_python_page_runs(tmp_path, monkeypatch):
    """Block after block in one session, as a reader types them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RL_LAB_RUNS", raising=False)
    blocks = fences(ROOT / "docs" / "python.md", "python")
    session: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), session)
    assert len(blocks) >= 9 and len(list((tmp_path / "runs").glob("CartPole-v1-ppo-*"))) == 5
    assert session["own"].needs == "env=Balance, encoder=Wide"
    assert session["message"] == "train() has no argument 'sed' (did you mean 'seed'?)"
    assert session["verdict"].identical and session["result"].episodes == 20
    assert len(session["steps"]) == len(session["returns"]) > 0
    assert {row["status"] for row in session["rows"]} == {"finished"}


def table(text: str, title: str) -> list[list[str]]:
    """The cells of the first table after a title, without its head."""
    after = text[text.index(f"{title}\n") :]
    rows = re.findall(r"^\|(.*)\|$", after[: after.index("\n\n", after.index("\n|"))], re.MULTILINE)
    return [[cell.strip() for cell in row.split("|")] for row in rows[2:]]


def numbers(cell: str) -> list[float]:
    """The returns at the beginning of a cell, before anything that is said about them."""
    return [float(each) for each in re.split(r"[;(]", cell.replace("−", "-"))[0].split(",")]


def test_what_is_held_against_published_numbers_are_the_means_of_our_rows():
    text = (ROOT / "docs" / "results.md").read_text()
    rows = [row for row in table(text, "# Results") if row[1].split()[0] == "ppo"]
    compared = table(text, "## Against published numbers")
    assert len(compared) >= 8
    for env, ours, *_ in compared:
        (row,) = [row for row in rows if row[0].partition("-v")[0] == env.partition("-v")[0]]
        mean = statistics.mean(numbers(row[4]))
        shown = ours.replace("−", "-").replace(",", " ").split()
        assert int(shown[0]) == round(mean) and shown[2] == row[2], (env, ours, mean, row[2])


def test_a_dreamer_of_a_named_size_is_what_is_written_out(tmp_path):
    page = ROOT / "docs" / "algorithms" / "dreamer.md"
    file = tmp_path / "written.yaml"
    (text,) = [each for each in fences(page, "yaml") if "size: 12m" in each]
    file.write_text(text)
    (command,) = [each for each in commands(page) if "from_pixels" in each]
    _, spec, *overrides = shlex.split(command)
    named, written = compose(spec, overrides), compose(config_file=file)
    trees = [to_tree(validate(each.tree, each.origins)) for each in (named, written)]
    assert trees[0] == trees[1]
    assert trees[0]["algorithm"]["replay_ratio"] == 0.25
