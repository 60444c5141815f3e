import shutil
from pathlib import Path

import pytest
import torch

from rl_lab.core.errors import UserError
from rl_lab.core.schema import CheckpointConfig
from rl_lab.records import checkpoint, faults
from rl_lab.records.checkpoint import CheckpointStore
from rl_lab.records.commit import MANIFEST, TENSORS, encode_manifest, read_manifest


@pytest.fixture(autouse=True)
def fresh_faults():
    faults.reset()
    yield
    faults.reset()


def state(number):
    return {"weight": torch.full((8,), float(number)), "step": number}


def make(tmp_path, **options):
    said: list[str] = []
    config = CheckpointConfig(**options)
    store = CheckpointStore(tmp_path, config, quarantine=True, on_skip=said.append)
    return store, said


def damage(path, file=TENSORS):
    data = bytearray((path / file).read_bytes())
    data[len(data) // 2] ^= 1
    (path / file).write_bytes(data)


def test_the_newest_the_best_and_any_step_can_be_loaded(tmp_path):
    store, said = make(tmp_path, keep_last=5)
    for step, score in [(100, 1.0), (200, 9.0), (300, None)]:
        path = store.save(step, state(step), score=score, manifest={"offset": step * 2})
        assert path.name == f"step_{step:012d}"
    tree, manifest, path = store.load()
    assert (tree["step"], manifest["step"], manifest["offset"]) == (300, 300, 600)
    assert torch.equal(tree["weight"], state(300)["weight"])
    assert path == tmp_path / "step_000000000300"
    assert store.load("best")[1]["score"] == 9.0
    assert store.load(100)[0]["step"] == store.load("100")[0]["step"] == 100
    assert (store.steps(), store.best(), said) == ([100, 200, 300], 200, [])
    assert (tmp_path / "latest").readlink() == Path("step_000000000300")
    assert (tmp_path / "best").readlink() == Path("step_000000000200")


def test_a_damaged_newest_is_quarantined_and_the_older_one_loads(tmp_path):
    store, said = make(tmp_path, keep_last=5)
    for step in (100, 200, 300):
        store.save(step, state(step))
    damage(tmp_path / "step_000000000300")
    damage(tmp_path / "step_000000000200", MANIFEST)
    assert store.load()[0]["step"] == 100
    assert len(said) == 2
    assert TENSORS in said[0] and "000300" in said[0]
    assert MANIFEST in said[1] and "000200" in said[1]
    assert len(list(tmp_path.glob(".bad-step_*"))) == 2
    assert store.steps() == [100]
    store.save(200, state(200))
    assert store.load()[0]["step"] == 200


def test_a_damaged_best_gives_way_to_the_next_best(tmp_path):
    store, said = make(tmp_path, keep_last=5)
    for step, score in [(100, 3.0), (200, 9.0), (300, 1.0)]:
        store.save(step, state(step), score=score)
    damage(tmp_path / "step_000000000200")
    assert store.load("best")[0]["step"] == 100
    assert "000200" in said[0]


def test_a_best_with_a_damaged_manifest_is_not_passed_over_silently(tmp_path):
    store, said = make(tmp_path, keep_last=5)
    for step, score in [(100, 3.0), (200, 9.0), (300, 1.0)]:
        store.save(step, state(step), score=score)
    damage(tmp_path / "step_000000000200", MANIFEST)
    assert store.load("best")[0]["step"] == 100
    assert len(said) == 1 and "000200" in said[0] and said[0].endswith("; step 100 is used instead")


def test_without_a_name_the_best_is_loaded_and_the_newest_if_none_is_intact(tmp_path):
    store, said = make(tmp_path, keep_last=5)
    store.save(100, state(100))
    assert store.load(None)[0]["step"] == 100
    store.save(200, state(200), score=5.0)
    store.save(300, state(300))
    assert store.load(None)[0]["step"] == 200 and said == []
    damage(tmp_path / "step_000000000200")
    assert store.load(None)[0]["step"] == 300
    assert len(said) == 1 and said[0].endswith("; step 300 is used instead")


def test_a_reader_moves_nothing_and_warns_every_time(tmp_path):
    make(tmp_path)[0].save(100, state(100), score=1.0)
    make(tmp_path)[0].save(200, state(200), score=2.0)
    damage(tmp_path / "step_000000000200")
    for which in ("last", "best", None):
        said: list[str] = []
        reader = CheckpointStore(tmp_path, on_skip=said.append)
        assert reader.load(which)[0]["step"] == 100
        assert len(said) == 1 and "step_000000000200" in said[0]
    assert not list(tmp_path.glob(".bad-*"))


def test_what_is_in_quarantine_is_named_until_something_newer_or_better_is_saved(tmp_path):
    store, said = make(tmp_path, keep_last=5, keep_best=5)
    for step, score in [(100, 1.0), (200, 9.0), (300, 2.0)]:
        store.save(step, state(step), score=score)
    damage(tmp_path / "step_000000000200")
    damage(tmp_path / "step_000000000300")
    assert store.load("last")[0]["step"] == 100
    assert len(said) == 2

    def warnings(which):
        said.clear()
        CheckpointStore(tmp_path, on_skip=said.append).load(which)
        assert all("skipped a damaged checkpoint (.bad-step_" in line for line in said)
        return sorted(int(line.split("step_")[1][:12]) for line in said)

    assert warnings("last") == warnings("best") == [200, 300]
    with pytest.raises(UserError, match=r"300 is damaged \(\.bad-step_000000000300-"):
        store.load(300)
    store.save(350, state(350), score=3.0)
    assert warnings("last") == [] and warnings("best") == [200]
    store.save(200, state(200), score=9.0)
    assert warnings("best") == []


def test_a_read_only_folder_still_falls_back(tmp_path, monkeypatch):
    store, said = make(tmp_path)
    store.save(100, state(100))
    store.save(200, state(200))
    damage(tmp_path / "step_000000000200")

    def refuse(source, target):
        raise PermissionError(13, "read-only")

    monkeypatch.setattr(checkpoint, "move", refuse)
    assert store.load()[0]["step"] == 100
    assert len(said) == 1


def test_errors_say_what_there_is(tmp_path):
    store, _ = make(tmp_path / "none")
    with pytest.raises(UserError, match="no checkpoint"):
        store.load()
    with pytest.raises(UserError, match="it has none"):
        store.load(3)
    store, said = make(tmp_path)
    store.save(100, state(100))
    with pytest.raises(UserError, match="with a score: use 'last'"):
        store.load("best")
    with pytest.raises(UserError, match=r"no checkpoint at step 7 .*100"):
        store.load(7)
    with pytest.raises(UserError, match="did you mean 'last'"):
        store.load("lats")
    damage(tmp_path / "step_000000000100")
    with pytest.raises(UserError, match=r"100 is damaged: .*state\.safetensors"):
        store.load(100)
    assert store.steps() == [100]  # asking for one by name moves nothing
    with pytest.raises(UserError, match="all of them are damaged"):
        store.load()
    assert len(said) == 1


def test_a_newer_format_is_not_quarantined(tmp_path):
    store, said = make(tmp_path)
    store.save(100, state(100))
    path = store.save(200, state(200))
    (path / MANIFEST).write_bytes(encode_manifest({**read_manifest(path), "format": 99}))
    with pytest.raises(UserError, match="newer rl-lab"):
        store.load()
    store.save(300, state(300))
    store.save(400, state(400))
    assert path.exists() and said == []


def test_retention_keeps_last_best_and_permanent(tmp_path):
    store, _ = make(tmp_path, keep_last=2, keep_best=2, keep_every=4)
    scores = [5, 9, 1, 0, 7, 2, 3, 4, 0, 0]  # step 100, 200, …
    for index, score in enumerate(scores, start=1):
        store.save(100 * index, state(index), score=score)
    # best two: 200 (9) and 500 (7); every 4th: 400, 800; last two: 900, 1000
    assert store.steps() == [200, 400, 500, 800, 900, 1000]
    assert store.best() == 200
    assert not list(tmp_path.glob(".*"))


def test_of_equal_scores_the_first_is_best_and_nan_is_no_score(tmp_path):
    store, _ = make(tmp_path, keep_last=1)
    store.save(100, state(1), score=5.0)
    store.save(200, state(2), score=5.0)
    store.save(300, state(3), score=float("nan"))
    store.save(400, state(4), score=float("inf"))
    assert store.best() == 100
    assert store.steps() == [100, 400]


def test_the_best_survives_a_new_process_and_damage_to_others(tmp_path):
    make(tmp_path, keep_last=1)[0].save(100, state(1), score=5.0)
    for step in (200, 300, 400):
        make(tmp_path, keep_last=1)[0].save(step, state(step), score=1.0)
    assert make(tmp_path)[0].steps() == [100, 400]
    damage(tmp_path / "step_000000000400", MANIFEST)
    store, _ = make(tmp_path, keep_last=1)
    store.save(500, state(500))
    # What cannot be read is not counted among the last, and it is not ours to delete.
    assert store.steps() == [100, 400, 500]


def test_saving_a_step_again_replaces_it(tmp_path):
    store, _ = make(tmp_path, keep_last=3, keep_every=2)
    store.save(100, state(1))
    store.save(200, state(2))
    path = store.save(200, state(3), score=4.0)
    assert path.name == "step_000000000200"
    tree, manifest, _ = store.load()
    assert (tree["step"], manifest["score"], manifest["number"]) == (3, 4.0, 2)
    assert manifest["permanent"]
    assert store.steps() == [100, 200]
    assert sorted(p.name for p in tmp_path.glob("step_*")) == [
        "step_000000000100",
        "step_000000000200",
    ]


def test_a_replacement_keeps_the_score_only_of_the_same_tensors(tmp_path):
    store, _ = make(tmp_path)
    store.save(100, state(1), score=4.0)
    store.save(100, {**state(1), "extra": "json may differ"})
    assert store.best() == 100
    store.save(100, state(2))
    assert store.best() is None


@pytest.mark.parametrize("then", ["clean", "save"])
def test_a_replacement_that_was_killed_half_way_is_the_newer_one(tmp_path, then):
    store, _ = make(tmp_path)
    store.save(100, state(1), score=1.0)
    shutil.copytree(tmp_path / "step_000000000100", tmp_path / "kept")
    store.save(100, state(2), score=2.0)
    (tmp_path / "step_000000000100").rename(tmp_path / "step_000000000100.new")
    (tmp_path / "kept").rename(tmp_path / "step_000000000100")
    assert store.load()[0]["step"] == store.load("best")[0]["step"] == 2
    assert store.load(100)[0]["step"] == 2
    if then == "clean":
        store.clean()
    else:
        store.save(100, state(2))
    assert not list(tmp_path.glob("*.new"))
    assert store.load()[0]["step"] == 2
    assert store.best() == 100


def test_a_damaged_replacement_gives_way_to_what_it_replaced(tmp_path):
    store, said = make(tmp_path)
    path = store.save(100, state(1))
    shutil.copytree(path, tmp_path / f"{path.name}.new")
    damage(tmp_path / f"{path.name}.new")
    assert store.load()[2] == path
    assert len(said) == 1


def test_a_reader_is_not_fooled_by_a_writer(tmp_path, monkeypatch):
    """Retention removes, or a second save replaces, the folder that is just being read."""
    store, said = make(tmp_path, keep_last=3)
    store.save(100, state(1))
    store.save(200, state(2))
    read_tree = checkpoint.read_tree
    interference = [
        lambda: shutil.rmtree(tmp_path / "step_000000000200"),
        lambda: make(tmp_path)[0].save(100, state(3)),
    ]

    def interrupted(path):
        if interference:
            interference.pop(0)()
            raise checkpoint.CorruptCheckpoint(f"{path}: half of it was gone")
        return read_tree(path)

    monkeypatch.setattr(checkpoint, "read_tree", interrupted)
    assert store.load()[0]["step"] == 3
    assert said == [] and not list(tmp_path.glob(".bad*"))


def test_rewind_forgets_the_future(tmp_path):
    store, _ = make(tmp_path, keep_last=5)
    for step in (100, 200, 300):
        store.save(step, state(step), score=step)
    store.rewind(100)
    assert (store.steps(), store.best()) == ([100], 100)
    assert (tmp_path / "best").readlink() == Path("step_000000000100")


def test_links_are_never_load_bearing(tmp_path):
    store, _ = make(tmp_path)
    (tmp_path / "latest").mkdir(parents=True)
    (tmp_path / "latest" / "something").write_bytes(b"")
    (tmp_path / "best").symlink_to("/nonexistent")
    store.save(100, state(1))
    assert store.load()[0]["step"] == 1
    assert not (tmp_path / "best").is_symlink()


def test_a_full_disk_keeps_what_was_there(tmp_path, monkeypatch):
    store, _ = make(tmp_path)
    store.save(100, state(1), score=1.0)
    monkeypatch.setenv(faults.VARIABLE, "ckpt.after_write:error@2")
    with pytest.raises(OSError, match="No space left"):
        store.save(200, state(2))
    assert store.steps() == [100] and not list(tmp_path.glob(".tmp-*"))
    store.save(200, state(2))
    assert store.load()[0]["step"] == 2


@pytest.mark.parametrize(
    "bad", [{"keep_last": 0}, {"keep_best": -1}, {"every_steps": -1}, {"keep_every": -2}]
)
def test_impossible_retention_is_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        CheckpointConfig(**bad)
