"""Repositories that somebody prepared: each is refused in one line, and nothing of it is run.

Every case changes the files of a good policy; unless it says otherwise, the list `rl-lab.json` is
made to fit again, as whoever prepared it would. The canary is a file that any of the code writes.
"""

import hashlib
import json
import pickle
import struct
import sys
from pathlib import Path

import pytest
import yaml

from doctored import CODE
from hub_server import files_of
from rl_lab.cli.main import main
from rl_lab.hub.contents import LIST
from rl_lab.records.commit import encode_manifest, entry_of

pytestmark = pytest.mark.needs("huggingface_hub")

STEP = "checkpoints/step_000000001024"
TENSORS, STATE, MANIFEST = (
    f"{STEP}/{n}" for n in ("state.safetensors", "state.json", "manifest.json")
)


class Bomb:
    """Touches the canary when it is unpickled."""

    def __init__(self, canary):
        self.canary = str(canary)

    def __reduce__(self):
        return (Path.touch, (Path(self.canary),))


def relisted(files):
    """The list that fits these files."""
    found = json.loads(files[LIST])
    found["files"] = {
        name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
        if name not in (LIST, "README.md")
    }
    files[LIST] = json.dumps(found).encode()


def remanifested(files):
    """The checkpoint's own manifest, made to fit its files."""
    fields = json.loads(files[MANIFEST])
    fields.pop("sha256")
    for name in fields["files"]:
        fields["files"][name] = entry_of(files[f"{STEP}/{name}"])
    files[MANIFEST] = encode_manifest(fields)


def text_of(change):
    """A change of config.yaml's text."""

    def apply(files, canary):
        files["config.yaml"] = change(files["config.yaml"].decode(), canary).encode()
        relisted(files)

    return apply


def tree_of(change):
    """A change of the configuration."""

    def apply(files, canary):
        tree = yaml.safe_load(files["config.yaml"])
        tree = change(tree) or tree
        text = yaml.safe_dump(tree, sort_keys=False)
        text = text.replace("FILE", str(canary.parent / "hostile.py")).replace(
            "CANARY", str(canary)
        )
        files["config.yaml"] = text.encode()
        relisted(files)

    return apply


def added(name, data=b"x", *, listed=True):
    """One more file."""

    def apply(files, canary):
        files[name] = pickle.dumps(Bomb(canary)) if data == "bomb" else data
        if listed:
            relisted(files)

    return apply


def listed_only(name):
    """A name in the list that the repository has not."""

    def apply(files, canary):
        found = json.loads(files[LIST])
        found["files"][name] = {"size": 1, "sha256": "0" * 64}
        files[LIST] = json.dumps(found).encode()

    return apply


def list_is(data):
    def apply(files, canary):
        files[LIST] = data

    return apply


def list_has(change):
    def apply(files, canary):
        found = json.loads(files[LIST])
        change(found)
        files[LIST] = json.dumps(found).encode()

    return apply


def replaced(name, data, *, manifest=True):
    """Another content of one file, with every checksum made to fit."""

    def apply(files, canary):
        files[name] = data(files[name], canary)
        if manifest:
            remanifested(files)
        relisted(files)

    return apply


def unlisted_change(name, data):
    """Another content, and checksums of before."""

    def apply(files, canary):
        files[name] = data(files[name])

    return apply


def without(name, *, listed=False):
    def apply(files, canary):
        del files[name]
        if not listed:
            relisted(files)

    return apply


def pickled(data, canary):
    return pickle.dumps(Bomb(canary))


def header(size):
    """A safetensors file that announces a header of this size."""
    return lambda data, canary: struct.pack("<Q", size) + data[8:]


def tensors(**entries):
    """A safetensors file with this header."""
    text = json.dumps(entries).encode()
    return lambda data, canary: struct.pack("<Q", len(text)) + text + bytes(64)


ALIASES = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 10)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
REPOSITORIES = {
    # -- files that could run code when they are opened
    "a pickle beside it": added("policy.pkl", "bomb", listed=False),
    "a pickle in the list": added("policy.pkl", "bomb"),
    "a torch file in the checkpoint": added(f"{STEP}/optimizer.pt", "bomb"),
    "a zip of Stable Baselines": added("ppo-CartPole-v1.zip", "bomb", listed=False),
    "a Python module": added("rl_lab.py", b"raise SystemExit", listed=False),
    "a sitecustomize in a folder": added("a/sitecustomize.py", b"1/0", listed=False),
    "a library": added("libpolicy.so", b"\x7fELF", listed=False),
    "a numpy file": added("weights.npz", "bomb"),
    "a pickle named safetensors": replaced(TENSORS, pickled),
    "a pickle named json": replaced(STATE, pickled),
    # -- names that leave the folder
    "a name that goes up": listed_only("../../evil.yaml"),
    "a name that goes up below checkpoints": listed_only("checkpoints/../../../evil"),
    "an absolute name": listed_only("/etc/cron.d/evil"),
    "a name with a backslash": listed_only("..\\evil.yaml"),
    "a name with a NUL": listed_only("config.yaml\0.pkl"),
    "a hidden file": listed_only(".git/hooks/post-checkout"),
    "a mark": listed_only("mark.json"),
    "a second checkpoint": listed_only("checkpoints/step_000000002048/state.json"),
    "a name in the checkpoint's manifest": replaced(
        MANIFEST,
        lambda data, canary: encode_manifest(
            {k: v for k, v in json.loads(data).items() if k != "sha256"}
            | {"files": {"../../config.yaml": {"size": 1, "crc32": 1}}}
        ),
        manifest=False,
    ),
    # -- damage, and checksums that do not fit
    "a cut tensor file": unlisted_change(TENSORS, lambda data: data[:-100]),
    "one changed byte": unlisted_change(TENSORS, lambda data: data[:-1] + bytes([data[-1] ^ 1])),
    "a changed configuration": unlisted_change(
        "config.yaml", lambda data: data.replace(b"CartPole-v1", b"Acrobot-v1a")
    ),
    "a checkpoint that does not fit its manifest": replaced(
        STATE, lambda data, canary: data + b" ", manifest=False
    ),
    "a list of another file's sum": list_has(
        lambda found: found["files"]["config.yaml"].update(sha256="0" * 64)
    ),
    "a list that lies about a size": list_has(
        lambda found: found["files"]["config.yaml"].update(size=10**15)
    ),
    "a size below 0": list_has(lambda found: found["files"]["config.yaml"].update(size=-1)),
    "a size without end": list_is(b'{"format": 1, "files": {"config.yaml": {"size": 1e999}}}'),
    "a missing file": without(STATE),
    "a missing file that is listed": without(STATE, listed=True),
    "no list": without(LIST, listed=True),
    "an empty list": list_is(b""),
    "a list that is a list": list_is(b"[]"),
    "a list of numbers": list_is(b'{"format": 1, "files": [1, 2]}'),
    "a list that nests": list_is(b"[" * 50_000),
    "a list of a megabyte": list_is(b" " * 1_000_000 + b"{}"),
    "a list of the future": list_has(lambda found: found.update(format=99)),
    # -- tensors
    "a giant header": replaced(TENSORS, header(2**62)),
    "a header beyond the file": replaced(TENSORS, header(10_000_000)),
    "a tensor beyond the file": replaced(
        TENSORS, tensors(a={"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]})
    ),
    "a tensor whose shape overflows": replaced(
        TENSORS, tensors(a={"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 64]})
    ),
    "a tensor of another run": replaced(
        TENSORS, tensors(a={"dtype": "F32", "shape": [16], "data_offsets": [0, 64]})
    ),
    "a state that nests": replaced(STATE, lambda data, canary: b"[" * 200_000),
    # -- configurations
    "an alias bomb": text_of(lambda text, canary: text + ALIASES),
    "a Python tag": text_of(
        lambda text, canary: text + f"x: !!python/object/apply:os.system ['touch {canary}']\n"
    ),
    "an interpolation": text_of(lambda text, canary: text + "x: ${oc.env:HOME}\n"),
    "a config of Hydra": text_of(lambda text, canary: "defaults: [evil]\n" + text),
    "a merge key": text_of(lambda text, canary: text + "x: {<<: {a: 1}}\n"),
    "a number of a million digits": text_of(lambda text, canary: text + f"x: {'9' * 900_000}\n"),
    "a config of two megabytes": text_of(lambda text, canary: text + "#" * 2_000_000),
    "a config of the future": tree_of(lambda tree: {**tree, "version": 99}),
    "a config without an algorithm": tree_of(
        lambda tree: {key: each for key, each in tree.items() if key != "algorithm"}
    ),
    "an unknown algorithm": tree_of(lambda tree: {**tree, "algorithm": {"name": "evil"}}),
    "an unknown environment": tree_of(lambda tree: {**tree, "environment": {"id": "Evil-v0"}}),
    "another network": tree_of(
        lambda tree: tree["network"]["encoder"].update(hidden_dims=[8, 8])
    ),
    **{f"code: {name}": tree_of(change) for name, change in CODE.items()},
}  # fmt: skip


@pytest.fixture
def canary(tmp_path, monkeypatch):
    """A file that the hostile code writes, and modules of that code within reach of an import."""
    place = tmp_path / "canary"
    code = f"from pathlib import Path\nPath({str(place)!r}).touch()\nThing = None\n"
    for name in ("hostile.py", "hostile_module.py"):
        (tmp_path / name).write_text(code)
    package = tmp_path / "hostile_package"
    package.mkdir()
    (package / "__init__.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    yield place
    for name in ("hostile", "hostile_module", "hostile_package"):
        assert sys.modules.pop(name, None) is None, f"{name} was imported"


@pytest.mark.parametrize("name", REPOSITORIES)
def test_a_hostile_repository_is_refused(hub, bundle, canary, capsys, tmp_path, name):
    files = files_of(bundle.folder)
    REPOSITORIES[name](files, canary)
    hub.put("evil/policy", files)
    before = {path for path in tmp_path.rglob("*") if "cache" not in path.parts}
    assert main(["evaluate", "hf:evil/policy", "--episodes", "1"]) == 2
    told = capsys.readouterr().err
    lines = [line for line in told.splitlines() if "warning" not in line.lower()]
    assert len(lines) == 1 and lines[0].startswith("error: ") and len(lines[0]) < 700, told
    assert lines[0].isprintable()
    assert not canary.exists()
    assert {path for path in tmp_path.rglob("*") if "cache" not in path.parts} == before


def test_there_are_enough_of_them_and_the_canary_works(bundle, hub, canary, tmp_path):
    assert len(REPOSITORIES) >= 90
    pickle.loads(pickle.dumps(Bomb(canary)))
    assert canary.exists()
    hub.put("good/policy", files_of(bundle.folder))
    assert main(["evaluate", "hf:good/policy", "--episodes", "1"]) == 0


def test_a_server_that_sends_other_bytes_than_it_announced(hub, bundle, capsys):
    hub.put("evil/policy", files_of(bundle.folder))
    hub.served["config.yaml"] = b"plugins: [/tmp/evil.py]\n"
    assert main(["evaluate", "hf:evil/policy"]) == 2
    assert "config.yaml" in capsys.readouterr().err


@pytest.mark.parametrize("sha", ["../../../evil", "main", "", "0" * 39, "Z" * 40])
def test_a_server_that_names_no_commit(hub, bundle, capsys, tmp_path, sha):
    hub.put("evil/policy", files_of(bundle.folder))
    hub.commit_name = sha
    assert main(["evaluate", "hf:evil/policy"]) == 2 or sha == ""
    assert not (tmp_path / "evil").exists()


def test_links_in_a_folder_are_refused(bundle, tmp_path, capsys):
    import shutil

    folder = tmp_path / "policy"
    shutil.copytree(bundle.folder, folder)
    (folder / "summary.json").unlink()
    (folder / "summary.json").symlink_to("/etc/passwd")
    assert main(["evaluate", str(folder), "--episodes", "1"]) == 2
    assert "is a link that leaves the run" in capsys.readouterr().err
