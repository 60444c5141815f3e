"""Rows 15 and 33 of the fault matrix: names that lead outside, links that two writers move."""

import multiprocessing
from pathlib import Path

import pytest

from rl_lab.records.commit import CorruptCheckpoint, encode_manifest, point_link, read_manifest

NAMES = [
    *("..", ".", "", "/", "/etc/passwd", "../x", "../../x", "a/b", "a/../b", "./a", "a/", "//a"),
    *("..//x", "a/..", "a/../..", "/a", "~/x/y", "step/../../x", "x/.", "../.", "./..", "a//b"),
]


@pytest.mark.parametrize("field", ["files", "chunks"])
@pytest.mark.parametrize("name", NAMES)
def test_a_manifest_names_no_file_outside_of_its_folder(tmp_path, field, name):
    fields = {"format": 1, "files": {}, field: {name: {"size": 1, "crc32": 1}}}
    (tmp_path / "manifest.json").write_bytes(encode_manifest(fields))
    with pytest.raises(CorruptCheckpoint, match="outside its folder"):
        read_manifest(tmp_path)


def _point(link: Path, target: str, errors) -> None:
    for _ in range(200):
        try:
            point_link(link, target)
        except OSError as error:
            errors.put(str(error))
            return
    errors.put("")


def test_two_writers_of_a_link_never_meet_an_error_nor_follow_it(tmp_path):
    (tmp_path / "elsewhere").write_text("of somebody else")
    link = tmp_path / "latest"
    link.symlink_to("elsewhere")
    context = multiprocessing.get_context("fork")
    errors = context.SimpleQueue()
    writers = [context.Process(target=_point, args=(link, each, errors)) for each in "ab"]
    for writer in writers:
        writer.start()
    assert [errors.get() for _ in writers] == ["", ""]
    for writer in writers:
        writer.join()
    assert link.readlink().name in "ab"
    assert (tmp_path / "elsewhere").read_text() == "of somebody else"
    assert {path.name for path in tmp_path.iterdir()} == {"elsewhere", "latest"}
