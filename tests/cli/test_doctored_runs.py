"""Run folders that are damaged or doctored: nothing is executed, nothing passes unsaid.

Every case is a copy of one trained run (`conftest.py`), opened by the commands that would meet it.
Each of them either refuses with one line, or says in a warning what is wrong.
"""

import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from doctored import EVALUATE, FORK, LOOK, RESUME, at, no_canary, opened, prepare, rewrite
from rl_lab.cli.main import main
from rl_lab.records.commit import encode_manifest, entry_of, read_manifest

# ----------------------------------------------------------------- files that are no config


def bomb(levels=9):
    lines = ["version: 1", "a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for level in range(1, levels + 1):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]")
    return "\n".join(lines).encode()


def merge_bomb(levels=9):
    lines = ["version: 1", "a0: &a0 {x: 1}"]
    for level in range(1, levels + 1):
        lines.append(f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 9)}]}}")
    return "\n".join(lines).encode()


def appended(text):
    return lambda data: data + text


def replaced(old, new):
    def change(data):
        assert old in data
        return data.replace(old, new, 1)

    return change


BROKEN = {
    "empty": lambda data: b"",
    "only a comment": lambda data: b"# nothing\n",
    "null": lambda data: b"null\n",
    "a list": lambda data: b"- a\n- b\n",
    "a word": lambda data: b"hello\n",
    "a number": lambda data: b"42\n",
    "cut in a key": lambda data: data[: data.index(b"num_envs") + 4],
    "cut after a colon": lambda data: data[: data.index(b"environment:") + 12],
    "cut before the environment": lambda data: data[: data.index(b"environment:")],
    "cut in quotes": lambda data: data[: data.index(b"'off'") + 3],
    "zeros": lambda data: bytes(len(data)),
    "a zero byte": lambda data: data[:100] + b"\0" + data[100:],
    "not UTF-8": replaced(b"CartPole", b"Cart\xff\xfePole"),
    "two documents": appended(b"---\nversion: 1\n"),
    "a key twice": appended(b"version: 1\n"),
    "a tag that calls": appended(b"x: !!python/object/apply:os.system ['touch CANARY']\n"),
    "a tag that names": appended(b"x: !!python/name:os.system ''\n"),
    "a tag that imports": appended(b"x: !!python/module:hostile_module ''\n"),
    "a tag of its own": appended(b"x: !mine {a: 1}\n"),
    "binary": appended(b"x: !!binary aGVsbG8=\n"),
    "an alias bomb": lambda data: bomb(),
    "a merge bomb": lambda data: merge_bomb(),
    "an alias of itself": appended(b"components: &a {b: *a}\n"),
    "deep in brackets": appended(b"x: " + b"[" * 300_000 + b"]" * 300_000 + b"\n"),
    "deep in dashes": appended(b"x:\n  " + b"- " * 20_000 + b"1\n"),
    "deep in a fast file": appended(b"x: " + b"[" * 5_000 + b"]" * 5_000 + b"\n"),
    "6,000 digits": replaced(b"seed: 0", b"seed: " + b"9" * 6_000),
    "a long hexadecimal": replaced(b"seed: 0", b"seed: 0x" + b"f" * 6_000),
    "a long clock": replaced(b"seed: 0", b"seed: 1" + b":59" * 5_000),
    "more than a megabyte": appended(b"# " + b"x" * 1_100_000 + b"\n"),
    "a date as a key": appended(b"2020-01-01: 1\n"),
    "a date that is none": appended(b"x: 2020-99-99\n"),
    "a mapping as a key": appended(b"? {a: 1}\n: 2\n"),
    "defaults": appended(b"defaults: [evil]\n"),
    "defaults elsewhere": appended(b"defaults: [/../../etc/passwd, _self_]\n"),
    "hydra's search path": appended(b"hydra: {searchpath: ['pkg://hostile_package']}\n"),
    "a variable of the user": replaced(b"name: ''", b"name: ${oc.env:SECRET_OF_THE_USER}"),
    "an interpolation of code": appended(b"x: ${hydra:runtime.cwd}\n"),
    "a newer version": replaced(b"version: 1", b"version: 99"),
    "an unknown key": appended(b"surprise: 1\n"),
    "many unknown keys": appended(b"one: 1\ntwo: 2\nthree: 3\n"),
    "text for a number": replaced(b"num_envs: 4", b"num_envs: four"),
    "an unknown environment": replaced(b"id: CartPole-v1", b"id: CartPol-v1"),
    "an unknown algorithm": replaced(b"name: ppo", b"name: os.system"),
    "an escape in a name": replaced(b"id: CartPole-v1", b'id: "\\e[2JCartPole-v1"'),
    "a bit of the policy": replaced(b"gamma: 0.99", b"gamma: 0.98"),
    "a bit of the seed": replaced(b"seed: 0", b"seed: 1"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_config_is_one_line(run, capsys, name):
    text = BROKEN[name](run.config_file.read_bytes())
    run.config_file.write_bytes(
        text.replace(b"CANARY", str(run.path.parent.parent / "canary").encode())
    )
    for words in (EVALUATE, RESUME, FORK):
        code, told = opened(run, words, capsys)
        if code == 0:  # the policy is as good as before
            assert words is EVALUATE and "config.yaml was changed" in told
        else:
            assert code == 2
    for words in [*LOOK, ["list"]]:
        assert opened(run, words, capsys)[0] in (0, 2)
    assert no_canary(run)


# ------------------------------------------------------------------------- checkpoints


def newest(run):
    return run.checkpoints / "step_000000001024"


def give(run, file, data):
    """Another file in every checkpoint, with a manifest that agrees with it."""
    for folder in run.checkpoints.glob("step_*"):
        fields = read_manifest(folder)
        (folder / file).write_bytes(data(folder / file))
        fields["files"][file] = entry_of((folder / file).read_bytes())
        (folder / "manifest.json").write_bytes(encode_manifest(fields))


def with_state(change):
    def data(file):
        tree = json.loads(file.read_bytes())
        change(tree)
        return json.dumps(tree).encode()

    return lambda run: give(run, "state.json", data)


def header(length, text=b""):
    return lambda run: give(
        run, "state.safetensors", lambda file: struct.pack("<Q", length) + text + b"\0" * 64
    )


def flip(name, share):
    def change(run):
        file = newest(run) / name
        data = bytearray(file.read_bytes())
        data[int(len(data) * share)] ^= 4
        file.write_bytes(data)

    return change


def cut(name, share):
    def change(run):
        file = newest(run) / name
        os.truncate(file, int(file.stat().st_size * share))

    return change


def names_outside(run):
    fields = read_manifest(newest(run))
    fields["files"] = {"../../../../etc/passwd": entry_of(b""), **fields["files"]}
    (newest(run) / "manifest.json").write_bytes(encode_manifest(fields))


HUGE = b'{"a":{"dtype":"F32","shape":[1099511627776,1099511627776],"data_offsets":[0,64]}}'
PARTS = ("state.safetensors", "state.json", "manifest.json")
CHECKPOINTS = {
    **{f"a flip in {name} at {share}": flip(name, share)
       for name in PARTS for share in (0.01, 0.5, 0.99)},
    **{f"{name} cut at {share}": cut(name, share) for name in PARTS for share in (0, 0.5)},
    "a manifest that names a file outside": names_outside,
    "a header of 8 exabytes": header(2**63 - 1),
    "a header of 4 gigabytes": header(2**32),
    "a tensor larger than the file": header(len(HUGE), HUGE),
    "a header of brackets": header(50_000, b"[" * 50_000),
    "a skeleton of brackets": lambda run: give(run, "state.json", lambda file: b"[" * 100_000),
    "a skeleton that is a list": lambda run: give(run, "state.json", lambda file: b"[]"),
    "a skeleton that names another tensor": with_state(
        lambda tree: tree.update(workflow={"__tensor__": "/nothing"})),
    "no workflow": with_state(lambda tree: tree.pop("workflow")),
    "another workflow": with_state(lambda tree: tree.update(workflow={"values": {}})),
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_doctored_checkpoint_is_told(run, capsys, name):
    CHECKPOINTS[name](run)
    code, told = opened(run, ["evaluate", "RUN:last", "--episodes", "1"], capsys)
    assert (code == 0 and "skipped a damaged checkpoint" in told) or code == 2, told
    assert no_canary(run)


class Bomb:
    """Unpickling it writes the canary."""

    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return Path.write_text, (self.canary, "executed")


def _zipped(**files):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "/"), content)
    return data.getvalue()


def _array(bomb, save):
    data = io.BytesIO()
    save(data, np.array([bomb], dtype=object))
    return data.getvalue()


def _torch(bomb):
    data = io.BytesIO()
    torch.save({"weight": bomb}, data)
    return data.getvalue()


HOSTILE = {
    **{f"pickle {number}": lambda bomb, number=number: pickle.dumps(bomb, number)
       for number in range(6)},
    ".pt": _torch,
    ".npy": lambda bomb: _array(bomb, np.save),
    ".npz": lambda bomb: _array(bomb, np.savez),
    "zip": lambda bomb: _zipped(archive__data_pkl=pickle.dumps(bomb)),
    "zip in zip": lambda bomb: _zipped(inner_zip=_zipped(data_pkl=pickle.dumps(bomb))),
    "tar": lambda bomb: b"state".ljust(257, b"\0") + b"ustar" + pickle.dumps(bomb),
    "yaml": lambda bomb: f"!!python/object/apply:os.mkdir ['{bomb.canary}']".encode(),
    "python": lambda bomb: f"open({str(bomb.canary)!r}, 'w')".encode(),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("part", ["state.safetensors", "state.json", "manifest.json"])
def test_a_hostile_file_in_the_place_of_a_state_is_not_executed(run, capsys, part, name):
    """Fault matrix, row 13: with the size and the checksum that the manifest then says."""
    canary = run.path.parent.parent / "canary"
    data = HOSTILE[name](Bomb(canary))
    if "pickle" in name:
        pickle.loads(data)
        assert canary.exists()  # it would
        canary.unlink()
    if part == "manifest.json":
        (newest(run) / part).write_bytes(data)
    else:
        give(run, part, lambda file: data)
    for words in (["evaluate", "RUN:last", "--episodes", "1"], RESUME):
        code, told = opened(run, words, capsys)
        assert code == 2 or "skipped a damaged checkpoint" in told, told
    assert no_canary(run)


def test_a_saved_environment_calls_no_constructor(run, capsys):
    import hostile_module

    canary = run.path.parent.parent / "canary"
    canary.unlink()  # the import was ours
    made = []
    hostile_module.Thing.__init__ = lambda self, *arguments: made.append(arguments)
    from rl_lab.envs.counter import CounterEnv
    from rl_lab.envs.snapshot import SnapshotError, capture, restore

    env = CounterEnv()
    env.reset(seed=0)
    tree = capture(env)
    for kind in ("tuple", "enum"):
        for name in ("rl_lab.records.metrics:MetricLog", "rl_lab.envs.counter:CounterEnv"):
            bad = {**tree, "object": {**tree["object"], "x": {kind: ["/tmp/y"], "class": name}}}
            with pytest.raises(SnapshotError, match="which does not exist"):
                restore(env, bad)
    assert made == []


# ------------------------------------------------------------------------- rows


ROWS = {"resume": RESUME, "fork": FORK, "verify": ["verify", "RUN", "--from", "256"]}


@pytest.mark.parametrize("door", ROWS)
@pytest.mark.parametrize("place", [0, 60, 200])
def test_a_flipped_bit_in_the_metrics_is_found(run, capsys, door, place):
    data = bytearray(run.metrics_file.read_bytes())
    data[place] ^= 1
    run.metrics_file.write_bytes(data)
    code, told = opened(run, ROWS[door], capsys)
    assert code == 2 and "metrics.jsonl is damaged: its rows up to the checkpoint" in told
    assert [each for each in run.path.parent.iterdir() if each.is_dir()] == [run.path]


def test_rows_after_the_checkpoint_may_be_anything(run, capsys):
    whole = run.metrics_file.read_bytes()
    run.metrics_file.write_bytes(whole[:-9] + b"#########")
    assert main(["train", "--fork", f"{run.path}:512", "-q", "--runs-dir", "."]) == 0


def test_rows_that_are_missing_are_told(run, capsys):
    os.truncate(run.metrics_file, 100)
    code, told = opened(run, RESUME, capsys)
    assert code == 2 and "rows are missing" in told


# ------------------------------------------------------------------------- where it came from

PROVENANCE = {
    "null": "null",
    "a list": "[]",
    "brackets": "[" * 100_000,
    "git": '{"source": {"rl_lab": "x"}, "git": {"sha": 5}}',
    "source": '{"source": {"/dev/zero": "x", "/etc/passwd": 1, "../x": null}}',
    "command": '{"command": 5}',
    "words": '{"command": ["rl-lab", 1, null]}',
    "packages": '{"packages": 3, "gpus": 4}',
    "parent": '{"parent": 5}',
    "parent's id": '{"parent": {"id": 5, "step": "x"}}',
    "a parent elsewhere": '{"parent": {"id": "../../../etc", "step": 3}}',
}


@pytest.mark.parametrize("name", PROVENANCE)
def test_a_doctored_origin_is_no_bug(run, capsys, name):
    run.provenance_file.write_text(PROVENANCE[name])
    for words in (["show", "RUN"], ["report", "RUN"], RESUME, ["verify", "RUN", "--steps", "64"]):
        assert opened(run, words, capsys)[0] in (0, 2)


# ------------------------------------------------------------------------- names and paths


@pytest.mark.parametrize(
    "reference",
    ["../../../etc", "/etc/passwd", "..", "RUN/../..", "http://x/y.zip"],
)
def test_a_reference_that_is_no_run_is_one_line(run, capsys, reference):
    for words in (["evaluate", reference], ["train", "--resume", reference, "-q"]):
        assert opened(run, words, capsys)[0] == 2


@pytest.mark.parametrize("reference", ["../../../etc", "/etc", "~/x", "RUN/../nothing", "@best:x"])
def test_a_warm_start_elsewhere_only_reads_weights(run, capsys, reference):
    rewrite(run, at("training.warm_start", reference))
    shutil.rmtree(run.checkpoints)
    assert opened(run, RESUME, capsys)[0] == 2 and no_canary(run)


def test_a_warm_start_of_somebody_elses_run_reads_tensors_only(run, capsys):
    prepare(run, "component by module")
    words = [
        "train",
        "CartPole-v1:ppo_defaults",
        "network.memory=gru",
        "network.encoder.hidden_dims=[8]",
    ]
    words += ["--init-from-run", str(run.path), "environment.num_envs=4", "--total-timesteps", "64"]
    words += ["algorithm.rollout_steps=16", "logging.tensorboard=false", "logging.report=false"]
    words += ["evaluation.test_episodes=0", "-q", "--runs-dir", "mine"]
    assert main(words) == 0 and no_canary(run)


@pytest.mark.parametrize(
    "name", ["http://example.org/a.yaml", "https://example.org/a.yaml", "a.zip"]
)
def test_a_config_is_a_file_of_this_disk(capsys, name):
    assert main(["train", "--config", name]) == 2
    told = capsys.readouterr().err
    assert len(told.splitlines()) == 1
    assert "only files of this disk are read" in told or "must end in .yaml" in told
