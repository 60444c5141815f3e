import shutil
import sys

import pytest

from rl_lab.records.run_directory import RunDirectory
from tiny_runs import tiny_run

CANARY_CODE = """
from pathlib import Path
Path({canary!r}).write_text("executed")
class Thing:
    def __init__(self, *arguments, **options):
        pass
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    words = ["CartPole-v1:ppo_defaults", "network.memory=gru", "checkpoint.keep_last=9"]
    return tiny_run(tmp_path_factory.mktemp("runs"), *words).run


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    """A copy of the run as somebody else would hand it over, and a module that tells on itself."""
    copy = RunDirectory(tmp_path / "runs" / trained.path.name)
    shutil.copytree(trained.path, copy.path, symlinks=True)
    copy.mark_file.unlink()
    code = CANARY_CODE.format(canary=str(tmp_path / "canary"))
    (tmp_path / "hostile.py").write_text(code)
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "hostile_module.py").write_text(code)
    (tmp_path / "library" / "hostile_package").mkdir()
    (tmp_path / "library" / "hostile_package" / "__init__.py").write_text(code)
    (copy.path / "beside_the_run.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path / "library")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("SECRET_OF_THE_USER", "hunter2")
    yield copy
    for name in [name for name in sys.modules if name.startswith(("hostile", "beside_the"))]:
        del sys.modules[name]
