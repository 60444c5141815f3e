"""One timed training in an interpreter of its own: `python -m benchmarks.peers.worker FILE`.

FILE holds the job as JSON; the result is written beside it, because a library may print. Nothing
heavy is imported here: everyone pays for its own imports only.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.peers.contestants import CONTESTANTS
from benchmarks.peers.settings import Job
from rl_lab.records.commit import write_atomically

RESULT = "result.json"


def main(file: Path) -> None:
    """Read, train, write."""
    asked = json.loads(file.read_text())
    result = CONTESTANTS[asked["contestant"]].train(Job(**asked["job"]))
    write_atomically(file.with_name(RESULT), json.dumps(asdict(result)).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
