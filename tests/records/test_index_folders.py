"""The index is what the folders are: moved, deleted, copied and changed ones are noticed."""

import json
import shutil
import sqlite3

import pytest

from rl_lab.records import index as index_module
from rl_lab.records.config_file import experiment_of
from rl_lab.records.index import TAIL_BYTES, Index, last_metrics, row_of
from rl_lab.records.run_directory import RunDirectory

CONFIG = "experiment: {name: n, seed: 1}\nalgorithm: {name: ppo}\nenvironment: {id: E}\n"


def make_run(root, **summary):
    run = RunDirectory.create(root, "x")
    run.config_file.write_text(CONFIG)
    run.write_summary(summary)
    return run


@pytest.fixture
def three(tmp_path):
    """Three runs in an up-to-date index."""
    runs = [make_run(tmp_path, status="finished", best=float(number)) for number in range(3)]
    Index(tmp_path).rebuild()
    return runs


@pytest.fixture
def read(monkeypatch):
    """The runs whose folders were read."""
    names = []

    def counted(run, root):
        names.append(run.path.name)
        return row_of(run, root)

    monkeypatch.setattr(index_module, "row_of", counted)
    return names


def listed(root):
    return {row["path"]: row["best"] for row in Index(root).rows()}


def test_nothing_is_read_again_when_nothing_changed(tmp_path, three, read):
    assert listed(tmp_path) == {run.path.name: float(n) for n, run in enumerate(three)}
    assert read == []


def test_a_deleted_run_is_not_listed(tmp_path, three, read):
    shutil.rmtree(three[1].path)
    assert set(listed(tmp_path)) == {three[0].path.name, three[2].path.name}
    (three[2].path / "config.yaml").unlink()  # no run any more
    assert set(listed(tmp_path)) == {three[0].path.name}
    assert Index(tmp_path).rebuild() == 1


@pytest.mark.parametrize("name", ["renamed", "y-20200101-000000-{id}"])
def test_a_renamed_run_has_its_new_path(tmp_path, three, read, name):
    new = three[1].path.with_name(name.format(id=three[1].id))
    three[1].path.rename(new)
    for _ in range(2):
        paths = listed(tmp_path)
        assert set(paths) == {three[0].path.name, new.name, three[2].path.name}
        assert paths[new.name] == 1.0
    assert read == [new.name]  # once


def test_a_run_from_elsewhere_appears(tmp_path, three, read):
    (tmp_path / "not-a-run").mkdir()
    (tmp_path / ".hidden").mkdir()
    moved = tmp_path / "brought-20990101-000000-abcdef"
    shutil.copytree(three[0].path, moved)
    for _ in range(2):
        assert list(listed(tmp_path))[-1] == moved.name  # by its time
    assert read == [moved.name]


def test_of_two_folders_with_one_id_both_are_listed(tmp_path, three):
    twin = tmp_path / f"twin-20200101-000000-{three[0].id}"
    shutil.copytree(three[0].path, twin)
    for _ in range(3):
        assert set(listed(tmp_path)) == {twin.name, *(run.path.name for run in three)}
        with sqlite3.connect(Index(tmp_path).path) as db:  # it does not change its mind
            stored = db.execute("SELECT path FROM runs WHERE id = ?", [three[0].id]).fetchall()
        db.close()
        assert stored == [(three[0].path.name,)]


def test_what_another_program_wrote_is_read_again(tmp_path, three, read):
    three[2].write_summary({"status": "finished", "best": 99.0})  # as rsync would: no upsert
    for _ in range(2):
        assert listed(tmp_path)[three[2].path.name] == 99.0
    assert read == [three[2].path.name]
    assert [row["best"] for row in Index(tmp_path).rows(best=99.0)] == [99.0]


def test_a_run_outside_of_the_root_is_kept_while_it_is_there(tmp_path, three, read):
    outside = make_run(tmp_path / "elsewhere", best=7.0)
    root = tmp_path / "root"
    Index(root).upsert(row_of(outside, root))
    assert listed(root) == {f"../elsewhere/{outside.path.name}": 7.0} and read == []
    shutil.rmtree(outside.path)
    assert listed(root) == {}


def test_a_run_without_its_process_is_killed(tmp_path):
    dead, alive = make_run(tmp_path, status="running"), make_run(tmp_path, status="running")
    dead.lock_file.write_text("999999999\n")
    with alive.lock():
        rows = {row["id"]: row["status"] for row in Index(tmp_path).rows()}
        assert rows == {dead.id: "killed", alive.id: "running"}
        assert [row["id"] for row in Index(tmp_path).rows(status="killed")] == [dead.id]


def test_the_last_value_of_each_metric(tmp_path):
    run = make_run(tmp_path)
    assert last_metrics(run.metrics_file) == {}
    rows = [
        {"step": 1, "eval/return_mean": 5.0, "train/loss": 3.0},
        {"step": 2, "train/loss": "nan"},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    run.metrics_file.write_text(text + '{"step": 3, "train/lo')  # torn
    assert last_metrics(run.metrics_file) == {"eval/return_mean": 5.0, "train/loss": "nan"}
    assert row_of(run, tmp_path)["metrics"] == {"eval/return_mean": 5.0, "train/loss": "nan"}
    # Only the end of a long file is looked at, and no half line of it.
    long = "".join(json.dumps({"step": n, "a": n, "text": "x" * 100}) + "\n" for n in range(1000))
    run.metrics_file.write_text(json.dumps({"step": 0, "early": 1}) + "\n" + long)
    assert run.metrics_file.stat().st_size > 2 * TAIL_BYTES
    assert last_metrics(run.metrics_file) == {"a": 999}  # a text is no metric


def test_a_quick_list_has_everything_but_metrics(tmp_path):
    run = make_run(tmp_path, best=1.0)
    run.metrics_file.write_text('{"step": 1, "train/loss": 3.0}\n')
    Index(tmp_path).rebuild()
    (slow,), (quick,) = Index(tmp_path).rows(), Index(tmp_path).rows(quick=True)
    assert slow["metrics"] == {"train/loss": 3.0} and quick == {**slow, "metrics": None}


def test_an_experiment_is_its_seeds():
    def of(**changes):
        tree = {
            "experiment": {"name": "a", "seed": 1, "tags": []},
            "environment": {"id": "E", "vectorization": "sync"},
            "algorithm": {"gamma": 0.9},
            "logging": {"terminal": True},
            "compute": {"threads": 1},
        }
        for path, value in changes.items():
            block, key = path.split("_", 1)
            tree[block][key] = value
        return experiment_of(tree)

    same = [of(experiment_seed=2), of(experiment_name="b"), of(experiment_tags=["x"])]
    same += [of(logging_terminal=False), of(compute_threads=2), of(environment_vectorization="x")]
    assert set(same) == {of()} and len(of()) == 12
    assert of(algorithm_gamma=0.8) != of() != of(environment_id="F")
    assert experiment_of(None) is None and experiment_of("text") is None


def test_group_and_parent_come_from_the_summary(tmp_path):
    run = make_run(tmp_path, group="sweep-1", parent={"id": "abc123", "step": 512})
    (row,) = Index(tmp_path).rows(group="sweep-1")
    assert row["id"] == run.id and row["parent"] == "abc123:512"


def test_a_seed_too_large_for_sqlite_does_not_hide_a_run(tmp_path):
    run = make_run(tmp_path, best=1.0)
    run.config_file.write_text(CONFIG.replace("seed: 1", f"seed: {2**64}"))
    Index(tmp_path).upsert(row_of(run, tmp_path))
    assert [row["best"] for row in Index(tmp_path).rows()] == [1.0]
