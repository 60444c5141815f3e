"""Writes requirements.txt: the dependencies of pyproject.toml at the versions of constraints.txt.

python docs/requirements.py            write the file
python docs/requirements.py --check    exit 1 if the file is not what would be written
"""

import argparse
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADER = """\
# Written by `make requirements` from pyproject.toml and constraints.txt: edit those instead.
# `pip install -r requirements.txt` installs RL Lab with the core it was tested with; the extras
# (box2d, mujoco, …) are installed with `pip install -c constraints.txt -e '.[mujoco]'`.
-c constraints.txt
"""


def requirements(project: str, constraints: str) -> str:
    """The text of requirements.txt."""
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", constraints, re.MULTILINE))
    versions = {_plain(name): version for name, version in pins.items()}
    lines = []
    for wanted in tomllib.loads(project)["project"]["dependencies"]:
        match = re.match(r"([\w.-]+)(\[[\w,-]+\])?", wanted)
        assert match is not None, wanted
        name, extras = match[1], match[2] or ""
        if _plain(name) not in versions:
            raise SystemExit(f"constraints.txt has no version of {name}")
        lines.append(f"{name}{extras}=={versions[_plain(name)]}\n")
    return HEADER + "".join(lines) + "-e .\n"


def _plain(name: str) -> str:
    """Names of packages are compared without case, and `-`, `_`, `.` are the same."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> int:
    """Write the file, or compare it with what is there."""
    parser = argparse.ArgumentParser(description="write requirements.txt")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if it is stale")
    options = parser.parse_args()
    sources = (ROOT / name for name in ("pyproject.toml", "constraints.txt"))
    text = requirements(*(each.read_text(encoding="utf-8") for each in sources))
    file = ROOT / "requirements.txt"
    if not options.check:
        file.write_text(text, encoding="utf-8")
        return 0
    if file.is_file() and file.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write("requirements.txt is out of date: run `make requirements`\n")
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
