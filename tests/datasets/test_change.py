"""Merge, split, convert: every episode arrives, bit for bit, whatever the format between."""

import json

import numpy as np
import pytest

from properties import given, settings, st
from rl_lab.buffers.walk import Episode
from rl_lab.cli.main import main
from rl_lab.core.errors import UserError
from rl_lab.core.spec import Box, Dict, Discrete, EnvSpec
from rl_lab.datasets.change import convert, merge, split
from rl_lab.datasets.folder import Folder, Writer
from rl_lab.datasets.make import place
from rl_lab.datasets.sources import open_source, own_source, unbounded


def box(*shape, kind=np.float32):
    return unbounded(shape, np.dtype(kind))


BOUNDED = Box((2,), np.dtype(np.float32), np.full(2, -2, np.float32), np.full(2, 3, np.float32))
SPECS = {
    "vectors": EnvSpec("Made-Up-v0", box(3, kind=np.float64), BOUNDED),
    "discrete": EnvSpec("Made-Up-v0", box(2), Discrete(5)),
    "parts": EnvSpec(
        "Made-Up-v0", Dict({"camera": box(2, 2, kind=np.uint8), "arm": box(3)}), BOUNDED
    ),
}
REFERENCES = {"random": -1.5, "expert": 20.25}


def made(spec, lengths, seed=0):
    """Episodes with random numbers; every second one terminates."""
    rng = np.random.default_rng(seed)
    parts = spec.observation.parts.items() if isinstance(spec.observation, Dict) else [("", None)]
    for number, length in enumerate(lengths):
        frames = {}
        for name, part in parts:
            part = part or spec.observation
            rows = rng.normal(size=(length + 1, *part.shape)) * 50
            frames[f"obs/{name}" if name else "obs"] = np.abs(rows).astype(part.dtype)
        if isinstance(spec.action, Discrete):
            action = rng.integers(5, size=length)
        else:
            action = rng.uniform(-2, 3, (length, 2)).astype(np.float32)
        yield Episode(frames, action, rng.normal(size=length).astype(np.float32), number % 2 == 0)


def write(name, spec, lengths, seed=0, **facts):
    writer = Writer.begin(place(name), spec, spec.action, {"name": name, **facts})
    writer.add_all(made(spec, lengths, seed), size=400)
    return writer.finish({"references": REFERENCES})


def same(left, right):
    left, right = list(left), list(right)
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert one.terminated == other.terminated
        pairs = [(one.action, other.action), (one.reward, other.reward)]
        assert sorted(one.frames) == sorted(other.frames)  # Gymnasium sorts the parts of a Dict
        pairs += [(one.frames[name], other.frames[name]) for name in one.frames]
        for mine, theirs in pairs:
            assert mine.dtype == theirs.dtype and np.array_equal(mine, theirs)
    return True


@pytest.mark.parametrize("kind", SPECS)
def test_what_is_written_is_read(kind, datasets):
    spec = SPECS[kind]
    folder = write("a/b", spec, [3, 1, 7, 20, 2])
    assert same(folder.episodes(), made(spec, [3, 1, 7, 20, 2]))
    assert len(list((datasets / "a" / "b").glob("*.npz"))) > 1
    folder.verify()
    assert Folder.open("a/b").about == folder.about
    assert own_source(folder).actions == spec.action or not isinstance(spec.action, Discrete)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.sampled_from(sorted(SPECS)))
def test_any_dataset_is_read_as_it_was_written(tmp_path_factory, lengths, kind):
    path = tmp_path_factory.mktemp("data") / "x"
    folder = write(str(path), SPECS[kind], lengths)
    assert same(folder.episodes(), made(SPECS[kind], lengths))
    assert folder.about["transitions"] == sum(lengths)


FORMATS = [
    ("npz", "vectors"),
    ("npz", "discrete"),
    ("npz", "parts"),
    pytest.param("minari", "vectors", marks=pytest.mark.needs("minari")),
    pytest.param("minari", "discrete", marks=pytest.mark.needs("minari")),
    pytest.param("minari", "parts", marks=pytest.mark.needs("minari")),
    pytest.param("lerobot", "vectors", marks=pytest.mark.needs("pyarrow")),
    pytest.param("lerobot", "discrete", marks=pytest.mark.needs("pyarrow")),
]


@pytest.mark.parametrize(("to", "kind"), FORMATS)
def test_there_and_back_again(to, kind, tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    spec, lengths = SPECS[kind], [3, 1, 7, 20, 2]
    write("ours", spec, lengths)
    theirs = convert("ours", to, "theirs/made", place)
    assert convert(theirs, "rl-lab", "again", place) == str(place("again"))
    again = Folder.open("again")
    assert same(again.episodes(), made(spec, lengths))
    again.verify()
    if to != "npz":  # which has no place for them
        assert again.about["actions"] == Folder.open("ours").about["actions"]
        known = again.about["references"]
        assert {name: known[name] for name in REFERENCES} == REFERENCES
    with pytest.raises(UserError, match=r"exists|already"):
        convert("ours", to, "theirs/made", place)


@pytest.mark.needs("minari")
def test_minari_itself_reads_what_we_write(tmp_path, monkeypatch):
    import minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    spec = SPECS["vectors"]
    write("ours", spec, [3, 8])
    assert convert("ours", "minari", "made/up", place) == "minari:made/up-v0"
    dataset = minari.load_dataset("made/up-v0")
    assert (dataset.total_episodes, dataset.total_steps) == (2, 11)
    first = next(iter(dataset.iterate_episodes()))
    expected = next(iter(made(spec, [3, 8])))
    assert np.array_equal(first.observations, expected.frames["obs"])  # four: the last one too
    assert first.terminations.tolist() == [False, False, True] and not first.truncations.any()
    assert minari.get_normalized_score(dataset, np.array([20.25])).tolist() == [1.0]


@pytest.mark.needs("minari")
def test_the_offline_buffer_reads_minari(tmp_path, monkeypatch):
    from rl_lab.buffers.offline import OfflineConfig, OfflineReplay
    from rl_lab.core.protocols import BufferSetup

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    spec = SPECS["vectors"]
    write("ours", spec, [3, 8])
    convert("ours", "minari", "made/up", place)
    setup = BufferSetup(spec, 1, np.random.default_rng(0))
    ours = OfflineReplay(OfflineConfig(path="ours"), setup).last(11)
    theirs = OfflineReplay(OfflineConfig(path="minari:made/up-v0"), setup).last(11)
    for name in ours:
        assert np.allclose(ours[name], theirs[name], atol=1e-6), name
    assert np.array_equal(ours["next_obs"], theirs["next_obs"])


@pytest.mark.needs("pyarrow")
def test_lerobot_files_of_others_lose_the_last_step_of_each_episode(tmp_path):
    import pyarrow.parquet as parquet

    spec = SPECS["vectors"]
    write("ours", spec, [3, 8])
    folder = convert("ours", "lerobot", str(tmp_path / "theirs"), place)
    ours = ("next.observation.state", "next.terminated", "next.truncated")
    for file in sorted((tmp_path / "theirs" / "data").rglob("*.parquet")):
        table = parquet.read_table(file)
        parquet.write_table(table.drop_columns(list(ours)), file)
    info = json.loads((tmp_path / "theirs" / "meta" / "info.json").read_text())
    del info["rl_lab"]
    (tmp_path / "theirs" / "meta" / "info.json").write_text(json.dumps(info))
    source = open_source(folder)
    found, expected = list(source.episodes()), list(made(spec, [3, 8]))
    for one, other in zip(found, expected, strict=True):
        assert len(one) == len(other) - 1 and not one.terminated
        assert np.array_equal(one.frames["obs"], other.frames["obs"][:-1])
        assert np.array_equal(one.action, other.action[:-1])


@pytest.mark.needs("pyarrow")
def test_lerobot_needs_vectors_and_damage_is_one_line(tmp_path):
    write("parts", SPECS["parts"], [3])
    with pytest.raises(UserError, match="LeRobot's layout takes observations that are one vector"):
        convert("parts", "lerobot", "theirs", place)
    write("ours", SPECS["vectors"], [3, 4])
    folder = convert("ours", "lerobot", "whole", place)
    file = sorted(place("whole").rglob("*.parquet"))[1]
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(UserError, match=r"episode_000001.parquet is damaged") as error:
        convert(folder, "rl-lab", "again", place)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("to", "module"), [("minari", "minari"), ("lerobot", "pyarrow")])
def test_a_library_that_is_missing_is_named(to, module, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, module, None)
    write("ours", SPECS["vectors"], [3])
    with pytest.raises(UserError, match=rf"pip install 'rl-lab\[{to}\]'"):
        convert("ours", to, "theirs", place)


def test_merge_keeps_all_episodes_in_their_order():
    spec = SPECS["discrete"]
    write("a", spec, [3, 4], behavior="one")
    write("b", spec, [5], seed=1, behavior="two")
    folder = merge(["a", "b", "a"], place("all"), name="all")
    expected = [*made(spec, [3, 4]), *made(spec, [5], 1), *made(spec, [3, 4])]
    assert same(folder.episodes(), expected)
    assert folder.about["behavior"] == "one + two + one"
    assert folder.about["references"] == REFERENCES
    assert folder.about["provenance"] == {"merged": ["a", "b", "a"]}


def test_only_the_same_task_is_merged():
    write("a", SPECS["discrete"], [3])
    write("b", SPECS["vectors"], [3])
    with pytest.raises(UserError, match="have different columns"):
        merge(["a", "b"], place("all"))
    spec = SPECS["vectors"]
    units = EnvSpec(spec.id, spec.observation, box(2))
    writer = Writer.begin(place("c"), units, units.action, {})
    writer.add_all(made(spec, [3]))
    writer.finish({})
    with pytest.raises(UserError, match="have actions in different units"):
        merge(["b", "c"], place("all"))
    other = EnvSpec("Other-v0", spec.observation, spec.action)
    write("d", other, [3])
    with pytest.raises(UserError, match=r"is of Made-Up-v0, .* of Other-v0"):
        merge(["b", "d"], place("all"))
    with pytest.raises(UserError, match="a exists: choose another name"):
        merge(["a"], place("a"))


def test_split_by_returns_by_number_and_at_random():
    spec, lengths = SPECS["vectors"], list(range(1, 11))
    write("a", spec, lengths)
    episodes = list(made(spec, lengths))
    totals = [each.total for each in episodes]
    best, rest = split("a", [place("best"), place("rest")], best=0.3)
    wanted = sorted(totals)[-3:]
    assert sorted(each.total for each in best.episodes()) == wanted
    assert same(rest.episodes(), [each for each in episodes if each.total not in wanted])
    assert best.about["references"] == REFERENCES
    assert best.about["provenance"]["split"] == "the best 0.3 of the returns of a"
    first, others = split("a", [place("first"), place("others")], episodes=4)
    assert same(first.episodes(), episodes[:4]) and same(others.episodes(), episodes[4:])
    for seed in (0, 0, 1):
        parts = split("a", [place(f"p{seed}"), place(f"q{seed}")], fraction=0.8, seed=seed)
        counts = [each.about["episodes"] for each in parts]
        chosen = {each.total for each in parts[0].episodes()}
        assert counts == [8, 2] and len(chosen) == 8
        if seed == 0:
            again = chosen
            for name in ("p0", "q0"):
                for file in place(name).iterdir():
                    file.unlink()
    assert again != chosen
    with pytest.raises(UserError, match="one part would be empty"):
        split("a", [place("x"), place("y")], episodes=10)
    with pytest.raises(UserError, match="must be between 0 and 1"):
        split("a", [place("x"), place("y")], best=1.5)


def test_commands(capsys):
    write("a", SPECS["discrete"], [3, 4, 5])
    assert main(["dataset", "split", "a", "--best", "0.4", "-o", "b", "-o", "c", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["episodes"] for each in told] == [1, 2]
    assert main(["dataset", "merge", "b", "c", "-o", "d"]) == 0
    assert "episodes      3 (2 terminated)" in capsys.readouterr().out
    assert main(["dataset", "convert", "d", "--to", "npz", "-o", "plain", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "npz"
    assert main(["dataset", "convert", "plain", "--to", "rl-lab", "-o", "e"]) == 0
    assert same(Folder.open("e").episodes(), Folder.open("d").episodes())
    for words, said in (
        (["info", "z"], "z is missing: neither a file, nor a folder, nor a name in"),
        (["info", "plain"], "is not a dataset: it has no dataset.json"),
        (["split", "a", "--best", "0.4", "-o", "b"], "give two names"),
        (["split", "a", "-o", "x", "-o", "y"], "say how to split, once"),
        (["convert", "a", "--to", "lerobo", "-o", "x"], "did you mean 'lerobot'"),
    ):
        assert main(["dataset", *words]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and said in error
