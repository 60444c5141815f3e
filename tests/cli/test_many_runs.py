"""Two hundred real runs made by two processes while ten others list them; then every command."""

import json
import logging
import multiprocessing
import os
import time

import pytest

from rl_lab.cli.main import main
from rl_lab.records.index import Index
from rl_lab.records.run_directory import list_runs
from tiny_runs import tiny_run

pytestmark = pytest.mark.slow
WRITERS, EACH, READERS = 2, 100, 10
SPECS = ("CartPole-v1:random", "CartPole-v1:ppo_defaults", "FrozenLake-v1:q_learning")
FAST = ["training.total_timesteps=64", "evaluation.every_steps=64", "evaluation.test_episodes=0"]
FORK = multiprocessing.get_context("fork")


class Strict(logging.Handler):
    """An index that could not be read or written is only a warning: here it ends the process."""

    def emit(self, record):
        os.write(2, f"{record.getMessage()}\n".encode())
        os._exit(3)


def _train(root, writer):
    logging.getLogger("rl_lab.records.index").addHandler(Strict())
    for number in range(EACH):
        seed = f"experiment.seed={writer * EACH + number}"
        tiny_run(root, SPECS[number % len(SPECS)], *FAST, seed)


def _read(root, done):
    """List until the writers are done: no run is ever seen to vanish, or to step back."""
    logging.getLogger("rl_lab.records.index").addHandler(Strict())
    steps: dict[str, int] = {}
    while not done.exists():
        rows = {row["id"]: row["env_steps"] or 0 for row in Index(root).rows()}
        assert set(rows) >= set(steps) and all(rows[id] >= steps[id] for id in steps)
        steps = rows
        time.sleep(0.2)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many")
    root, done = folder / "runs", folder / "done"
    writers = [FORK.Process(target=_train, args=(root, writer)) for writer in range(WRITERS)]
    readers = [FORK.Process(target=_read, args=(root, done)) for _ in range(READERS)]
    for process in [*writers, *readers]:
        process.start()
    for process in writers:
        process.join()
    done.touch()
    for process in readers:
        process.join()
    assert [process.exitcode for process in [*writers, *readers]] == [0] * (WRITERS + READERS)
    return root


@pytest.fixture
def call(root, capsys):
    """A command on these runs that must work: its JSON."""

    def run(*words):
        assert main([*words, "--runs-dir", str(root), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_every_command_knows_all_of_them(root, call):
    total = WRITERS * EACH
    runs = list_runs(root)
    rows = call("list", "--limit", "0")
    assert len(runs) == total and {row["id"] for row in rows} == {run.id for run in runs}
    assert {row["status"] for row in rows} == {"finished"}
    assert sorted(row["seed"] for row in rows) == list(range(total))
    ppo = call("list", "--limit", "0", "--filter", "algorithm=ppo", "--sort", "reward")
    assert 0 < len(ppo) < total
    returns = [row["last_return"] for row in ppo]
    assert returns == sorted(returns, reverse=True)
    groups = call("list", "--group", "--limit", "0")
    assert len(groups) == len(SPECS) and sum(each["seeds"] for each in groups) == total

    before = {row["id"]: row for row in Index(root).rows()}  # two of one second have no order
    Index(root).path.unlink()
    assert {row["id"]: row for row in Index(root).rows()} == before  # deleting it loses nothing
    assert call("index", "rebuild")["runs"] == total

    call("tag", runs[0].id, runs[1].id, "+paper")
    words = ["--keep-best", "3", "--keep-recent", "0"]
    plan = call("cleanup", *words, "--dry-run")
    assert plan["kept"] == {"tagged": 2, "best": sum(plan["kept"].values()) - 2}
    assert 4 <= plan["kept"]["best"] <= 6  # two environments; the tagged may be among the best
    done = call("cleanup", *words, "--yes")
    assert done["freed"] == done["size"] > 0
    left = {run.id for run in runs if (run.path / "checkpoints").exists()}
    assert len(left) == total - len(done["cleaned"]) == sum(plan["kept"].values())
    assert call("show", runs[0].id)["tags"] == ["paper"]
