import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rl_lab.core.errors import UserError
from rl_lab.records import run_directory
from rl_lab.records.run_directory import RunDirectory, find_run, folder_name, list_runs

HOLD = """
import os, sys, time
from pathlib import Path
from rl_lab.records.run_directory import RunDirectory
with RunDirectory(Path(sys.argv[1])).lock():
    child = os.fork() if sys.argv[2] == "fork" else 1
    if child == 0:
        time.sleep(60)  # a worker that outlives its parent
        os._exit(0)
    print("held", child, flush=True)
    time.sleep(60)
"""


def make_run(root: Path, folder: str, **summary) -> RunDirectory:
    run = RunDirectory(root / folder)
    run.path.mkdir(parents=True)
    run.config_file.write_text("version: 1\n")
    if summary:
        run.write_summary(summary)
    return run


def hold(path: Path, how: str = "plain"):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), how], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    word, child = process.stdout.readline().split()
    assert word == "held"
    return process, int(child)


def end(process) -> None:
    process.kill()
    process.wait()
    process.stdout.close()


def _create(root, ready, queue):
    ready.wait()
    queue.put(RunDirectory.create(root, "same").path.name)


def test_sixteen_processes_get_sixteen_folders(tmp_path):
    context = multiprocessing.get_context("fork")
    ready, queue = context.Event(), context.SimpleQueue()
    root = tmp_path / "deep" / "runs"
    workers = [context.Process(target=_create, args=(root, ready, queue)) for _ in range(16)]
    for worker in workers:
        worker.start()
    ready.set()
    names = [queue.get() for _ in workers]
    for worker in workers:
        worker.join()
    assert len(set(names)) == len({name[-6:] for name in names}) == 16
    assert sorted(names) == sorted(path.name for path in root.iterdir())
    assert all(re.fullmatch(r"same-\d{8}-\d{6}-[0-9a-f]{6}", name) for name in names)


def test_a_taken_id_is_never_given_twice(tmp_path, monkeypatch):
    tokens = iter(["aaaaaa", "aaaaaa", "bbbbbb"])
    monkeypatch.setattr(run_directory, "token_hex", lambda size: next(tokens))
    assert RunDirectory.create(tmp_path, "x").id == "aaaaaa"
    assert RunDirectory.create(tmp_path, "y").id == "bbbbbb"


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("CartPole-v1:ppo", "CartPole-v1-ppo"),
        ("../../etc/passwd", "etc-passwd"),
        ("", "run"),
        ("..", "run"),
        ("-rf", "rf"),
        ("a\0b\nc", "a-b-c"),
        ("grün 🎉 name", "gr-n-name"),
        ("x" * 300, "x" * 64),
        ("%2e%2e/x", "2e-2e-x"),
    ],
)
def test_names_become_safe(tmp_path, name, safe):
    assert folder_name(name) == safe
    run = RunDirectory.create(tmp_path, name)
    assert run.path.parent == tmp_path and run.path.name.startswith(f"{safe}-")


def test_a_folder_with_spaces_umlauts_and_emoji_works(tmp_path):
    run = RunDirectory.create(tmp_path / "ein Ördner 🎉", "x")
    with run.lock():
        run.write_summary({"status": "done"})
    assert run.read_summary() == {"status": "done"}


def test_a_root_that_cannot_be_written_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot create a run in .*file.*--runs-dir"):
        RunDirectory.create(tmp_path / "file", "x")


def test_what_is_where(tmp_path):
    run = RunDirectory.create(tmp_path, "x")
    assert list(run.path.iterdir()) == []  # subfolders are made by whoever writes into them
    named = {
        "config.yaml": run.config_file,
        "provenance.json": run.provenance_file,
        "metrics.jsonl": run.metrics_file,
        "timing.jsonl": run.timing_file,
        "summary.json": run.summary_file,
        "checkpoints": run.checkpoints,
        "logs/run.log": run.log_file,
        "run.lock": run.lock_file,
    }
    for name, path in named.items():
        assert path == run.path / name
    assert run.path.name.endswith(run.id) and run.created in run.path.name
    renamed = RunDirectory(tmp_path / "my favourite")
    assert (renamed.id, renamed.created) == ("my favourite", "")


def test_summary_is_valid_json_whatever_the_numbers(tmp_path):
    run = RunDirectory.create(tmp_path, "x")
    assert run.read_summary() == {}
    run.write_summary({"score": math.nan, "list": [math.inf, 1.5], "nested": {"a": -math.inf}})
    assert run.read_summary() == {"score": "nan", "list": ["inf", 1.5], "nested": {"a": "-inf"}}
    run.summary_file.write_text("{")
    with pytest.raises(UserError, match=r"summary\.json is not valid JSON"):
        run.read_summary()
    (run.path / ".tmp-summary.json-1").write_text("")
    run.clean()
    assert [path.name for path in run.path.iterdir()] == ["summary.json"]


def test_a_second_process_is_refused_and_a_kill_frees_the_lock(tmp_path):
    run = RunDirectory.create(tmp_path, "x")
    process, _ = hold(run.path)
    try:
        expected = rf"run {run.path.name} is in use by process {process.pid}"
        with pytest.raises(UserError, match=expected), run.lock():
            pytest.fail("two writers")
    finally:
        end(process)
    with run.lock():
        assert run.lock_file.read_text() == f"{os.getpid()}\n"
        with pytest.raises(UserError, match="in use"), run.lock():
            pytest.fail("two writers in one process")
    with run.lock():
        pass


def test_a_forked_worker_does_not_keep_the_lock_of_its_dead_parent(tmp_path):
    run = RunDirectory.create(tmp_path, "x")
    process, child = hold(run.path, "fork")
    try:
        with pytest.raises(UserError, match="in use"), run.lock():
            pass
        end(process)
        os.kill(child, 0)  # still alive
        time.sleep(0.05)
        with run.lock():
            pass
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_lock_in_a_missing_folder_is_a_clear_error(tmp_path):
    with pytest.raises(UserError, match="cannot write to run"), RunDirectory(tmp_path / "x").lock():
        pass


def test_every_way_to_name_a_run(tmp_path, monkeypatch):
    root = tmp_path / "runs"
    old = make_run(root, "ppo-20260101-000000-abc123", best=50.0)
    good = make_run(root, "ppo-20260102-000000-abd456", best=90.0)
    new = make_run(root, "dqn-20260103-000000-123456", best="nan")
    make_run(root, ".hidden-20260104-000000-999999")
    (root / "not-a-run").mkdir()
    assert [run.id for run in list_runs(root)] == ["abc123", "abd456", "123456"]

    def found(reference):
        run, which = find_run(reference, root)
        return run.path.name, which

    assert found("@last") == (new.path.name, None)
    assert found("@best") == (good.path.name, None)
    assert found("@best:best") == (good.path.name, "best")
    assert found("abc123:last") == (old.path.name, "last")
    assert found("abc:12345") == (old.path.name, 12345)
    assert found("ABD") == (good.path.name, None)
    assert found("123456") == (new.path.name, None)
    assert found("dqn") == (new.path.name, None)
    assert found(old.path.name) == (old.path.name, None)
    assert found(str(old.path)) == (old.path.name, None)
    assert found(f"{old.path}:best") == (old.path.name, "best")
    monkeypatch.chdir(root)
    assert found(f"./{old.path.name}") == (old.path.name, None)
    assert found("../runs/" + old.path.name) == (old.path.name, None)


def test_the_best_run_is_one_of_the_environment_last_trained(tmp_path):
    pole = make_run(tmp_path, "a-20260101-000000-abc123", best=500.0, environment="CartPole-v1")
    make_run(tmp_path, "b-20260102-000000-abd123", best=-900.0, environment="Pendulum-v1")
    good = make_run(tmp_path, "c-20260103-000000-abe123", best=-150.0, environment="Pendulum-v1")
    make_run(tmp_path, "d-20260104-000000-abf123", environment="Pendulum-v1")
    assert find_run("@best", tmp_path) == (good, None)
    assert find_run("@best:CartPole-v1", tmp_path) == (pole, None)
    assert find_run("@best:CartPole-v1:best", tmp_path) == (pole, "best")
    assert find_run("@best:CartPole-v1:300", tmp_path) == (pole, 300)
    assert find_run("@best:last", tmp_path) == (good, "last")
    with pytest.raises(UserError, match=r"of Foo-v1 .*@best:CartPole-v1, @best:Pendulum-v1"):
        find_run("@best:Foo-v1", tmp_path)
    new = make_run(tmp_path, "e-20260105-000000-abf124")  # of an earlier version, without a score
    new.config_file.write_text(
        "experiment:\n  id: no\nenvironment:\n  num_envs: 8\n  id: 'ALE/Pong-v5'\n"
    )
    with pytest.raises(UserError, match="of ALE/Pong-v5"):
        find_run("@best", tmp_path)


def test_the_path_of_a_checkpoint_is_a_run_and_a_step(tmp_path):
    run = make_run(tmp_path, "a-20260101-000000-abc123")
    folder = run.checkpoints / "step_000000001024"
    folder.mkdir(parents=True)
    for path in (folder, f"{folder}/"):
        assert find_run(str(path), tmp_path) == (RunDirectory(Path(path).parent.parent), 1024)
    with pytest.raises(UserError, match="there is no such checkpoint"):
        find_run(str(run.checkpoints / "step_000000000007"), tmp_path)
    with pytest.raises(UserError):
        find_run("elsewhere/checkpoints/step_000000001024", tmp_path)


def test_runs_of_one_second_are_ordered_by_when_they_began(tmp_path):
    first = make_run(tmp_path, "b-20260101-000000-ffffff")
    second = make_run(tmp_path, "a-20260101-000000-000000")
    os.utime(first.config_file, ns=(1, 1))
    os.utime(second.config_file, ns=(2, 2))
    assert find_run("@last", tmp_path)[0] == second


def test_what_names_no_run_says_so(tmp_path):
    root = tmp_path / "runs"
    for reference in ("@last", "@best", "abc"):
        with pytest.raises(UserError, match=r"no runs? in|no run in|there are no runs"):
            find_run(reference, root)
    make_run(root, "cartpole-20260101-000000-abc123")
    make_run(root, "cartpole-20260102-000000-abd456")
    (root / "not-a-run").mkdir()
    cases = {
        "ab": r"could be 2 runs.*abc123, .*abd456",
        "cartpole": "could be 2 runs",
        "cartpool": "did you mean 'cartpole'",
        "abc124": "did you mean 'abc123'",
        "@lst": "did you mean '@last'",
        "@best": "no run in .* has a best score",
        "abc123:bets": "did you mean 'best'",
        "": "no run ''",
        ":best": "no run ''",
        str(root / "not-a-run"): r"is not a run: it has no config\.yaml",
    }
    for reference, message in cases.items():
        with pytest.raises(UserError, match=message):
            find_run(reference, root)


@pytest.mark.parametrize(
    "reference", ["../x", "..", ".", "../x:best", "/", "x\0y", "-x", "%2e%2e/x", "a" * 5000, "*"]
)
def test_a_reference_never_reaches_outside_by_way_of_the_root(tmp_path, reference):
    make_run(tmp_path, "x")  # beside the root, not in it
    make_run(tmp_path / "runs", "ppo-20260101-000000-abc123")
    with pytest.raises(UserError):
        find_run(reference, tmp_path / "runs")


def test_one_broken_summary_does_not_hide_the_best(tmp_path):
    good = make_run(tmp_path, "a-20260101-000000-abc123", best=1.0)
    bad = make_run(tmp_path, "a-20260101-000000-abd123")
    bad.summary_file.write_text("{")
    assert find_run("@best", tmp_path)[0] == good
