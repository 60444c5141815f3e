"""requirements.txt is what pyproject.toml and constraints.txt say, and pip agrees with it."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "docs" / "requirements.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("requirements_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_file_is_current():
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_versions_come_from_the_constraints(script):
    project = '[project]\ndependencies = ["a-b[x,y]>=1", "c<3"]\n'
    text = script.requirements(project, "A_b==1.5\nc==2.0\nd==4\n")
    assert text.splitlines()[-4:] == ["-c constraints.txt", "a-b[x,y]==1.5", "c==2.0", "-e ."]
    with pytest.raises(SystemExit, match="no version of c"):
        script.requirements(project, "a.b==1\n")


def test_pip_finds_nothing_left_to_install(tmp_path):
    """Every line is a version that exists: it is the one that the tests run with."""
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    wanted = [line for line in lines if not line.startswith(("#", "-"))]
    assert len(wanted) >= 10
    (tmp_path / "wanted.txt").write_text("\n".join(wanted))
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--no-deps"]
    command += ["--disable-pip-version-check", "-r", str(tmp_path / "wanted.txt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("already satisfied") == len(wanted)


def test_the_image_copies_what_exists_and_runs_as_nobody_special():
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY")]
    assert copied and all((ROOT / each).exists() for files in copied for each in files)
    assert any(line.startswith("USER ") and "root" not in line for line in lines)
    assert lines[-1].startswith("CMD") and any(line.startswith("ENTRYPOINT") for line in lines)
