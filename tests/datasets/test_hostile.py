"""Datasets of strangers: damaged ones are named in one line, and nothing in them is ever run."""

import io
import json
import zipfile

import numpy as np
import pytest
from test_change import SPECS, write

from rl_lab.buffers.offline import OfflineConfig, OfflineReplay
from rl_lab.cli.main import main
from rl_lab.core.errors import UserError
from rl_lab.core.protocols import BufferSetup
from rl_lab.datasets.folder import Folder
from rl_lab.datasets.sources import open_source

SPEC = SPECS["vectors"]


def offline(path):
    return OfflineReplay(
        OfflineConfig(path=str(path)), BufferSetup(SPEC, 1, np.random.default_rng(0))
    )


class Bomb:
    """Runs when it is unpickled."""

    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return open, (str(self.canary), "w")


def plain(path, **changes):
    arrays = {
        "obs": np.zeros((4, 3)),
        "action": np.zeros((3, 2), np.float32),
        "reward": np.zeros(3),
        "terminated": np.array([False, False, True]),
    } | changes
    np.savez(path, **arrays)


def members(path, change):
    """A zip file whose members went through `change(name, bytes)`, None: left out."""
    with zipfile.ZipFile(path) as archive:
        there = {each: archive.read(each) for each in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in there.items():
            for new_name, new in change(name, data):
                archive.writestr(new_name, new)


def test_pickles_are_refused(tmp_path):
    canary = tmp_path / "canary"
    plain(tmp_path / "a.npz", action=np.array([Bomb(canary)] * 3, object))
    for read in (offline, lambda path: list(open_source(str(path)).episodes())):
        with pytest.raises(UserError, match=r"'action': it holds Python objects, which are never"):
            read(tmp_path / "a.npz")
    folder = write("ours", SPEC, [3, 4])
    file = next(folder.path.glob("*.npz"))
    with zipfile.ZipFile(file) as archive:
        steps = int(np.lib.format.read_array(archive.open("reward.npy")).shape[0])
    pickled = io.BytesIO()
    np.lib.format.write_array(pickled, np.array([Bomb(canary)] * steps, object)[:, None])
    members(file, lambda name, data: [(name, pickled.getvalue() if name == "obs.npy" else data)])
    with pytest.raises(UserError, match=r"is damaged: obs.npy is not an array of so many numbers"):
        offline(folder.path).last(2)
    assert not canary.exists()


def test_zip_bombs_are_refused_before_they_are_unpacked(tmp_path, monkeypatch):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"shape": (10**15,), "fortran_order": False, "descr": "<f8"}
    )
    plain(tmp_path / "a.npz")
    members(
        tmp_path / "a.npz",
        lambda name, data: [(name, header.getvalue() if name == "reward.npy" else data)],
    )
    with pytest.raises(UserError, match=r"'reward': its header does not fit its size"):
        offline(tmp_path / "a.npz")
    plain(tmp_path / "b.npz", obs=np.zeros((300_001, 3)))
    with np.load(tmp_path / "b.npz") as there:
        np.savez_compressed(tmp_path / "b.npz", **there)
    assert (tmp_path / "b.npz").stat().st_size < 100_000
    monkeypatch.setattr("rl_lab.buffers.ram.free_bytes", lambda: 5_000_000)
    with pytest.raises(UserError, match=r"b.npz: the numbers of 'obs' need 0.0 GiB"):
        offline(tmp_path / "b.npz")


def test_a_compressed_file_in_a_folder_of_ours_is_refused(tmp_path):
    folder = write("ours", SPEC, [3, 4])
    file = next(folder.path.glob("*.npz"))
    with np.load(file) as there:
        np.savez_compressed(file, **there)
    with pytest.raises(UserError, match="is damaged: a disk buffer writes no compressed files"):
        offline(folder.path).last(2)


@pytest.mark.parametrize("name", ["../../evil.npy", "/evil.npy", "obs/../../evil.npy"])
def test_names_in_files_are_no_places(tmp_path, name):
    """Nothing is written: arrays of other names are ignored, or what is missing is named."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    file = tmp_path / "a" / "b" / "x.npz"
    plain(file)
    members(
        file, lambda own, data: [(own, data), (name, data)] if own == "obs.npy" else [(own, data)]
    )
    assert len(offline(file)) == 3
    assert sorted(each.name for each in tmp_path.rglob("*evil*")) == []


def test_a_file_list_with_other_places_is_refused():
    folder = write("ours", SPEC, [3, 4])
    text = json.loads((folder.path / "dataset.json").read_text())
    text["files"]["../../../etc/passwd"] = {"size": 1, "crc32": 1}
    (folder.path / "dataset.json").write_text(json.dumps(text))
    with pytest.raises(UserError, match=r"is damaged: the file \.\./.*etc/passwd is missing"):
        Folder.open("ours").verify()


def test_every_flipped_byte_of_a_file_is_found(capsys):
    folder = write("ours", SPEC, [3, 4])
    file = next(folder.path.glob("*.npz"))
    whole = file.read_bytes()
    for place in range(40, len(whole), len(whole) // 25):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert main(["dataset", "info", "ours"]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and file.name in error, place
    file.write_bytes(whole[:-50])
    assert main(["dataset", "info", "ours"]) == 2
    capsys.readouterr()
    file.write_bytes(whole)
    assert main(["dataset", "info", "ours"]) == 0
    file.unlink()
    assert main(["dataset", "info", "ours"]) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"num_envs": "many"},
        {"num_envs": -1},
        {"columns": []},
        {"columns": {"obs": {"shape": [3], "dtype": "object"}}},
        {"columns": {"obs": {"shape": [10**12], "dtype": "float64"}}},
        {"columns": {"obs": {"shape": [-3], "dtype": "float64"}}},
        {"columns": {"action": {"shape": [], "dtype": "int64"}}},
        {"environment": None},
        {"actions": {"kind": "box", "low": ["x"], "high": [1]}},
        {"actions": 5},
        {"files": {}},
    ],
)
def test_descriptions_that_lie_are_one_line(capsys, change):
    folder = write("ours", SPEC, [3, 4])
    text = json.loads((folder.path / "dataset.json").read_text())
    (folder.path / "dataset.json").write_text(json.dumps(text | change))
    assert main(["dataset", "convert", "ours", "--to", "npz", "-o", "x"]) == 2 or "files" in change
    assert main(["dataset", "info", "ours"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")


def test_a_description_that_is_no_json(capsys):
    folder = write("ours", SPEC, [3, 4])
    for text in (b"", b"{", b"[" * 100_000, b"null", b"\xff\xfe"):
        (folder.path / "dataset.json").write_bytes(text)
        assert main(["dataset", "info", "ours"]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "dataset.json" in error


def test_files_of_another_shape_than_described(tmp_path):
    """A file with a valid checksum and other columns is never read beyond its end."""
    folder = write("ours", SPEC, [3, 4])
    other = write("other", SPECS["discrete"], [3, 4])
    for file in folder.path.glob("*.npz"):
        file.unlink()
    for file in other.path.glob("*.npz"):
        (folder.path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(UserError, match=r"'obs' is not what dataset.json says"):
        offline(folder.path).last(2)


def test_a_dataset_of_another_environment(tmp_path):
    write("ours", SPECS["discrete"], [3, 4])
    with pytest.raises(UserError, match=r"ours: '.*' is .* Made-Up-v0 needs"):
        offline("ours")
    write("parts", SPECS["parts"], [3])
    with pytest.raises(UserError, match="does not fit Made-Up-v0: only"):
        offline("parts")
