"""`list`, `tag` and `cleanup` on real runs, through the command line."""

import csv
import io
import json
import shutil

import pytest

from rl_lab.cli.main import main
from rl_lab.core.errors import UserError
from rl_lab.records.index import Index
from rl_lab.records.run_directory import list_runs
from rl_lab.run.session import resume
from tiny_runs import tiny_run

RECENT = ["--keep-recent", "0"]  # days
FAST = ["training.total_timesteps=256", "environment.max_episode_steps=20"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """PPO with two seeds, and a random agent."""
    root = tmp_path_factory.mktemp("runs")
    for seed in (1, 2):
        tiny_run(root, "CartPole-v1:ppo_defaults", *FAST, f"experiment.seed={seed}")
    tiny_run(root, "CartPole-v1:random", *FAST, "experiment.tags=[baseline]")
    return root


@pytest.fixture
def root(made, tmp_path):
    return shutil.copytree(made, tmp_path / "runs", symlinks=True)


@pytest.fixture
def call(root, capsys):
    """A command on these runs: its exit code, output and errors."""

    def run(*words):
        code = main([*words, "--runs-dir", str(root)])
        return (code, *capsys.readouterr())

    return run


def ids(output):
    return [row["id"] for row in json.loads(output)]


def test_filters_sorting_and_limits(call, root):
    one, two, random = (run.id for run in list_runs(root))
    assert ids(call("list", "--json")[1]) == [random, two, one]
    assert ids(call("list", "--json", "--filter", "algorithm=ppo")[1]) == [two, one]
    words = ["--filter", "algorithm=ppo", "--filter", "seed!=2", "--filter", "eval/return_mean>0"]
    assert ids(call("list", "--json", *words)[1]) == [one]
    assert ids(call("list", "--json", "--filter", "tag=baseline")[1]) == [random]
    rows = {row["id"]: row for row in Index(root).rows()}
    best_first = sorted(rows, key=lambda id: -rows[id]["metrics"]["eval/return_mean"])
    values = {row["last_return"] for row in rows.values()}
    assert len(values) == 3 and ids(call("list", "--json", "--sort", "reward")[1]) == best_first
    found = ids(call("list", "--json", "--sort", "reward", "--ascending", "--limit", "2")[1])
    assert found == best_first[:0:-1]
    # Of a loss the smallest is the best; the random agent has none.
    losses = {id: rows[id]["metrics"]["train/loss"] for id in (one, two)}
    wanted = [*sorted(losses, key=losses.get), random]
    assert ids(call("list", "--json", "--sort", "loss")[1]) == wanted
    assert ids(call("list", "--json", "--sort", "loss", "--descending")[1])[0] == wanted[1]


def test_what_people_see(call, root):
    words = ["--filter", "eval/return_mean>0", "--sort", "reward", "--limit", "1"]
    header, _, more = call("list", *words)[1].splitlines()
    assert header.split()[8:10] == ["eval/return_mean", "reward"]
    assert more == "… and 2 more (--limit 0 shows all)"
    assert call("list")[1].splitlines()[0].split()[-1] == "tags"
    assert "none of the 3 runs" in call("list", "--filter", "algorithm=sac")[1]
    code, _, error = call("list", "--filter", "algoritm=ppo")
    assert code == 2 and error == ("error: no run has 'algoritm' (did you mean 'algorithm'?)\n")
    assert call("list", "--filter", "ppo")[0] == call("list", "--json", "--csv")[0] == 2
    assert call("list", "--sort", "rewrd")[0] == 2


def test_csv_has_the_metrics(call, root):
    rows = list(csv.DictReader(io.StringIO(call("list", "--csv", "--limit", "0")[1])))
    stored = Index(root).rows()[::-1]
    assert [row["id"] for row in rows] == [row["id"] for row in stored]
    assert [float(row["eval/return_mean"]) for row in rows] == [
        row["metrics"]["eval/return_mean"] for row in stored
    ]
    assert rows[0]["tags"] == "baseline" and rows[0]["train/loss"] == "" and "stamp" not in rows[0]


def test_seeds_of_one_experiment_are_one_line(call, root):
    random, ppo = json.loads(call("list", "--group", "--json")[1])
    rows = Index(root).rows(algorithm="ppo")
    assert (ppo["seeds"], ppo["runs"], ppo["finished"], random["seeds"]) == (2, 2, 2, 1)
    assert ppo["best"] == pytest.approx(sum(row["best"] for row in rows) / 2)
    # Of two numbers the deviation is their distance over the root of two.
    distance = abs(rows[0]["best"] - rows[1]["best"])
    assert ppo["best_std"] == pytest.approx(distance / 2**0.5)
    lines = call("list", "--group", "--sort", "best")[1].splitlines()
    assert lines[0].split()[:3] == ["name", "seeds", "finished"] and len(lines) == 3
    assert sum(" ± " in line for line in lines) == 1
    assert call("list", "--group", "--csv")[0] == 0


def test_tags_and_notes(call, root):
    one, two, random = (run.id for run in list_runs(root))
    code, output, _ = call("tag", one, random, "+paper", "--remove", "baseline", "--note", "fig 2")
    assert code == 0 and output == f"{one}  paper  fig 2\n{random}  paper  fig 2\n"
    assert ids(call("list", "--json", "--filter", "tag=paper")[1]) == [random, one]
    assert ids(call("list", "--json", "--filter", "notes=fig*")[1]) == [random, one]
    facts = json.loads(call("show", one, "--json")[1])
    assert facts["tags"] == ["paper"] and facts["notes"] == "fig 2"
    assert "paper" in call("show", one)[1]
    assert call("tag", two)[1] == f"{two}  no tags\n"
    (root / "index.sqlite").unlink()
    assert ids(call("list", "--json", "--filter", "tag=paper")[1]) == [random, one]
    code, _, error = call("tag", one, "paper")
    assert code == 2 and "to add a tag write +paper" in error
    assert call("tag", "+paper")[0] == 2
    # One bad word, and nothing is changed.
    assert call("tag", two, "+good", "+b,d")[0] == call("tag", two, "nobody", "+good")[0] == 2
    assert call("tag", two)[1] == f"{two}  no tags\n"


def test_cleanup_shows_asks_and_removes(call, root):
    one, two, random = list_runs(root)
    output = call("cleanup")[1]
    assert "of 0 runs" in output and "kept whole: 1 tagged, 2 recent" in output
    everything = ["--keep-best", "0", *RECENT]
    code, output, _ = call("cleanup", *everything, "--dry-run")
    assert code == 0 and one.id in output and "of 2 runs" in output and "1 tagged" in output
    code, _, error = call("cleanup", *everything)
    assert code == 2 and "needs --yes" in error
    assert (one.path / "checkpoints").exists()

    best = max(Index(root).rows(), key=lambda row: row["best"])["id"]
    plan = json.loads(call("cleanup", "--keep-best", "1", *RECENT, "--dry-run", "--json")[1])
    assert {each["id"] for each in plan["runs"]} == {one.id, two.id} - {best}
    assert plan["cleaned"] == [] and plan["freed"] == 0

    done = json.loads(call("cleanup", *everything, "--yes", "--json")[1])
    assert set(done["cleaned"]) == {one.id, two.id} and done["freed"] == done["size"] > 0
    assert not (one.path / "checkpoints").exists() and one.metrics_file.exists()
    assert (random.path / "checkpoints").exists()
    assert "cleaned up" in call("show", one.id)[1]
    assert json.loads(call("show", one.id, "--json")[1])["checkpoints"] == []

    before = one.metrics_file.read_bytes()
    with pytest.raises(UserError, match=f"run {one.id} was cleaned up on .* rl-lab train --config"):
        resume(one.id, root=root)
    assert one.metrics_file.read_bytes() == before
    code, _, error = call("evaluate", one.id)
    assert code == 2 and "was cleaned up" in error
    assert "of 0 runs" in call("cleanup", *everything, "--yes")[1]


def test_cleanup_in_a_terminal(call, root, monkeypatch):
    from rl_lab.cli import cleanup

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    answers = iter([False, True])
    monkeypatch.setattr(cleanup.typer, "confirm", lambda question: next(answers))
    everything = ["--keep-best", "0", *RECENT]
    one, _, _ = list_runs(root)
    assert "nothing was removed" in call("cleanup", *everything)[1]
    assert (one.path / "checkpoints").exists()
    assert "freed" in call("cleanup", *everything)[1]
    assert not (one.path / "checkpoints").exists()
