"""One training process for the kill tests: `run_child.py ROOT train|resume WORDS…`."""

import sys
from pathlib import Path

from rl_lab.run.session import resume, train
from tiny_runs import tiny_config

root, verb, *words = sys.argv[1:]
if verb == "train":
    outcome = train(tiny_config(*words), root=Path(root))
else:
    outcome = resume(words[0], root=Path(root))
sys.exit(outcome.exit_code)
