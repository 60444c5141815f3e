from datetime import UTC, datetime, timedelta

import pytest

from rl_lab.analysis import cleanup
from rl_lab.analysis.cleanup import STAMP, execute, judge, plan, size_of
from rl_lab.core.errors import UserError
from rl_lab.records.index import Index
from rl_lab.records.labels import add_tags
from rl_lab.records.run_directory import RunDirectory

NOW = datetime(2026, 7, 1, tzinfo=UTC)


def ago(days):
    return (NOW - timedelta(days=days)).strftime(STAMP)


def row(id, days=100, *, best=None, environment="E", status="finished", tags=()):
    return {"id": id, "best": best, "environment": environment, "status": status,
            "tags": list(tags), "updated": ago(days), "created": ago(days + 1)}  # fmt: skip


def kept(*rows, best=0, recent=0):
    return {
        each.row["id"]: each.kept
        for each in judge(rows, keep_best=best, keep_recent=recent, now=NOW)
    }


def test_running_tagged_and_recent_runs_are_kept():
    rows = [row("a", status="running"), row("b", tags=["paper"]), row("c", 29.9), row("d", 30.1)]
    verdict = kept(*rows, recent=30)
    assert verdict == {"a": "running", "b": "tagged", "c": "recent", "d": None}
    assert kept(row("c", 0.001), recent=0) == {"c": None}  # nothing is recent enough
    # How old it is cannot be told: better kept.
    unknown = {**row("e"), "updated": None, "created": ""}
    assert kept(unknown, {**row("f"), "updated": "soon"}) == {"e": "recent", "f": "recent"}


def test_the_best_of_each_environment_are_kept():
    rows = [
        row("a", best=1.0), row("b", best=3.0), row("c", best=2.0), row("d", best=None),
        row("e", best=-900.0, environment="F"), row("f", best=-100.0, environment="F"),
    ]  # fmt: skip
    assert [id for id, reason in kept(*rows, best=1).items() if reason == "best"] == ["b", "f"]
    assert [id for id, reason in kept(*rows, best=2).items() if reason] == ["b", "c", "e", "f"]
    assert not any(kept(*rows).values())


def make_run(root, *, tags="[]", **summary):
    run = RunDirectory.create(root, "x")
    run.config_file.write_text(
        f"experiment: {{seed: 1, tags: {tags}}}\nenvironment: {{id: E}}\nalgorithm: {{name: ppo}}\n"
    )
    run.write_summary({"status": "finished", "updated": "20200101-000000", **summary})
    for name in ("checkpoints/step_000000000100", "videos", "tensorboard", "logs", "pictures"):
        (run.path / name).mkdir(parents=True)
        (run.path / name / "data").write_bytes(bytes(8192))
    for name in ("metrics.jsonl", "report.md", "labels.json")[: 2 if tags == "[]" else 3]:
        (run.path / name).write_text('{"tags": ["a"], "notes": ""}\n')
    return run


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path)


def test_only_the_large_parts_go(run, tmp_path):
    (verdict,) = plan(tmp_path, keep_best=0, keep_recent=30)
    assert verdict.kept is None and verdict.size == size_of(run.path) >= 3 * 8192
    assert execute(verdict.row, tmp_path) == verdict.size
    left = {str(path.relative_to(run.path)) for path in run.path.rglob("*") if path.is_file()}
    assert left == {"config.yaml", "summary.json", "metrics.jsonl", "report.md", "run.lock",
                    "logs/data", "pictures/data"}  # fmt: skip
    assert run.read_summary()["cleaned"]["freed"] == verdict.size
    assert run.read_summary()["status"] == "finished"  # and nothing else of it has changed
    with pytest.raises(UserError, match="was cleaned up on 2"):
        run.check_complete()
    (again,) = plan(tmp_path, keep_best=0, keep_recent=30)
    assert again.size == 0 and Index(tmp_path).rows()[0]["status"] == "finished"


def test_a_run_that_trains_or_got_a_tag_meanwhile_is_left_alone(run, tmp_path):
    (verdict,) = plan(tmp_path, keep_best=0, keep_recent=0)
    with run.lock(), pytest.raises(UserError, match="in use"):
        execute(verdict.row, tmp_path)
    add_tags(run, ["paper"])
    with pytest.raises(UserError, match="has got a tag"):
        execute(verdict.row, tmp_path)
    (run.path / "labels.json").write_text("{")  # nobody knows whether it is tagged
    with pytest.raises(UserError, match=r"labels\.json"):
        execute(verdict.row, tmp_path)
    run.check_complete()
    assert (run.path / "checkpoints/step_000000000100/data").exists()


def test_tags_of_the_config_protect_too(tmp_path):
    make_run(tmp_path, tags="[paper]")
    assert [each.kept for each in plan(tmp_path, keep_best=0, keep_recent=0)] == ["tagged"]


def test_a_cleanup_that_was_killed_is_finished_by_the_next(run, tmp_path, monkeypatch):
    (verdict,) = plan(tmp_path, keep_best=0, keep_recent=0)
    with monkeypatch.context() as patch:
        patch.setattr(cleanup, "remove", lambda folder: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            execute(verdict.row, tmp_path)
    with pytest.raises(UserError, match="cleaned up"):  # it may have lost something already
        run.check_complete()
    (run.path / "videos").rename(run.path / ".del-videos-1")  # and a half-deleted folder
    (again,) = plan(tmp_path, keep_best=0, keep_recent=0)
    assert again.size == verdict.size
    execute(again.row, tmp_path)
    assert size_of(run.path) == 0 and not (run.path / ".del-videos-1").exists()


def test_links_are_not_followed(run, tmp_path):
    outside = tmp_path / ".outside"
    (run.path / "checkpoints").rename(outside)
    whole = size_of(run.path)
    (run.path / "checkpoints").symlink_to(outside)
    (verdict,) = plan(tmp_path, keep_best=0, keep_recent=0)
    assert verdict.size == whole  # nothing of what the link leads to
    with pytest.raises(UserError, match="checkpoints is a link that leaves the run"):
        execute(verdict.row, tmp_path)
    assert (outside / "step_000000000100/data").exists()


def test_a_run_outside_of_the_folder_is_not_ours(run, tmp_path):
    root = tmp_path / "root"
    from rl_lab.records.index import row_of

    Index(root).upsert(row_of(run, root))
    assert len(Index(root).rows()) == 1
    assert plan(root, keep_best=0, keep_recent=0) == []
