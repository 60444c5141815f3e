import logging
import multiprocessing
import sqlite3

import pytest

from rl_lab.records import index as index_module
from rl_lab.records.index import COLUMNS, Index
from rl_lab.records.run_directory import RunDirectory

CONFIG = """
version: 1
experiment: {{name: {name}, seed: {seed}}}
environment: {{id: CartPole-v1}}
algorithm: {{name: ppo, learning_rate: 3e-4}}
"""


def make_run(root, name, seed=0, **summary):
    run = RunDirectory.create(root, name)
    run.config_file.write_text(CONFIG.format(name=name, seed=seed))
    if summary:
        run.write_summary(summary)
    return run


def _write(root, worker):
    for number in range(20):
        Index(root).upsert({"id": f"{worker}-{number}", "seed": worker})
        Index(root).upsert({"id": f"{worker}-{number}", "env_steps": number})


def test_eight_writers_lose_nothing(tmp_path):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_write, args=(tmp_path, worker)) for worker in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    rows = Index(tmp_path).rows()
    expected = {(f"{worker}-{n}", worker, n) for worker in range(8) for n in range(20)}
    assert {(row["id"], row["seed"], row["env_steps"]) for row in rows} == expected
    with sqlite3.connect(tmp_path / "index.sqlite") as db:
        assert db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    db.close()


def test_rows_can_be_changed_and_filtered(tmp_path):
    index = Index(tmp_path)
    index.upsert({"id": "a", "algorithm": "ppo", "status": "running", "created": "2"})
    index.upsert({"id": "b", "algorithm": "dqn", "status": "running", "created": "1"})
    index.upsert({"id": "a", "status": "done", "best": 3.5})
    index.upsert({"id": "a"})
    assert [row["id"] for row in index.rows()] == ["b", "a"]
    (row,) = index.rows(algorithm="ppo", status="done")
    assert row["best"] == 3.5 and set(row) == set(COLUMNS) - {"stamp"}
    assert [row["id"] for row in index.rows(best=None)] == ["b"]
    assert index.rows(algorithm="sac") == []
    with pytest.raises(ValueError, match="did you mean 'algorithm'"):
        index.rows(algoritm="ppo")
    with pytest.raises(ValueError, match="needs an 'id'"):
        index.upsert({"status": "done"})


def test_rebuild_makes_the_same_rows_from_the_folders(tmp_path):
    done = make_run(
        tmp_path, "first", seed=7, status="done", best=475.5, env_steps=1000, last_return=400.0,
        wall_time=12.5, created="2026-01-01", updated="2026-01-02",
    )  # fmt: skip
    bare = make_run(tmp_path, "second")
    broken = make_run(tmp_path, "third", best="nan")
    broken.config_file.write_text("{: [")
    (tmp_path / "not-a-run").mkdir()
    index = Index(tmp_path)
    index.upsert({"id": "ghost"})
    assert index.rebuild() == 3
    rows = {row["id"]: row for row in index.rows()}
    assert set(rows) == {done.id, bare.id, broken.id}
    assert rows[done.id] == {
        "id": done.id, "name": "first", "path": done.path.name, "algorithm": "ppo",
        "environment": "CartPole-v1", "seed": 7, "status": "done", "env_steps": 1000,
        "best": 475.5, "last_return": 400.0, "created": "2026-01-01", "updated": "2026-01-02",
        "wall_time": 12.5, "experiment": rows[bare.id]["experiment"], "group": None,
        "parent": None, "tags": [], "notes": None, "metrics": {}, "alerts": None,
    }  # fmt: skip
    assert rows[bare.id]["created"] == bare.created and rows[bare.id]["status"] is None
    assert rows[broken.id]["algorithm"] is None and rows[broken.id]["best"] is None


def test_a_missing_index_comes_back_by_itself(tmp_path):
    old = make_run(tmp_path, "old")
    assert [row["id"] for row in Index(tmp_path).rows()] == [old.id]
    (tmp_path / "index.sqlite").unlink()
    Index(tmp_path).upsert({"id": "new"})
    assert {row["id"] for row in Index(tmp_path).rows()} == {old.id, "new"}
    assert Index(tmp_path / "absent").rows() == []
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("method", ["upsert", "rows", "rebuild"])
@pytest.mark.parametrize("damage", ["noise", "header", "columns", "no table"])
def test_a_corrupt_index_is_rebuilt(tmp_path, caplog, method, damage):
    run = make_run(tmp_path, "x")
    index = Index(tmp_path)
    index.rebuild()
    if damage == "noise":
        index.path.write_bytes(b"not a database at all" * 500)
    elif damage == "header":
        data = bytearray(index.path.read_bytes())
        data[100:4000] = bytes(3900)
        index.path.write_bytes(data)
    else:
        with sqlite3.connect(index.path) as db:
            db.execute("DROP TABLE runs")
            if damage == "columns":
                db.execute("CREATE TABLE runs (id TEXT PRIMARY KEY, other TEXT)")
        db.close()
    if method == "upsert":
        index.upsert({"id": run.id, "status": "done"})
        assert index.rows(status="done")[0]["id"] == run.id
    elif method == "rebuild":
        index.rebuild()
    assert [row["id"] for row in index.rows()] == [run.id]


def test_a_value_that_is_no_json_is_damage_too(tmp_path, caplog):
    run = make_run(tmp_path, "x")
    index = Index(tmp_path)
    index.rebuild()
    with sqlite3.connect(index.path) as db:
        db.execute("UPDATE runs SET tags = '['")
    db.close()
    assert [(row["id"], row["tags"]) for row in index.rows()] == [(run.id, [])]
    assert "(a value is not JSON" in caplog.text


def test_an_index_that_cannot_be_used_never_fails_a_run(tmp_path, caplog, monkeypatch):
    run = make_run(tmp_path, "x", status="done")

    def refuse(*arguments, **options):
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr(index_module.sqlite3, "connect", refuse)
    index = Index(tmp_path)
    with caplog.at_level(logging.WARNING):
        index.upsert({"id": run.id, "status": "running"})
        assert "was not updated" in caplog.text
        # Lists are then read from the folders themselves.
        assert [row["id"] for row in index.rows(status="done")] == [run.id]
        assert index.rows(status="running") == []
    with pytest.raises(sqlite3.OperationalError):
        index.rebuild()


def test_a_value_that_cannot_be_stored_is_a_warning_and_no_reason_to_rebuild(tmp_path, caplog):
    index = Index(tmp_path)
    index.upsert({"id": "only here"})
    index.upsert({"id": "b", "best": {"not": "a number"}})
    assert "was not updated" in caplog.text
    assert [row["id"] for row in index.rows()] == ["only here"]


def test_the_removal_of_a_corrupt_file_waits_for_its_users(tmp_path, monkeypatch):
    monkeypatch.setattr(index_module, "BUSY_SECONDS", 0.05)
    index = Index(tmp_path)
    index.upsert({"id": "a"})
    with index._transaction(write=False), pytest.raises(sqlite3.OperationalError, match="in use"):
        index._discard()
    index._discard()  # a good file is not removed
    assert index.rows()[0]["id"] == "a"
