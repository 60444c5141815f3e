"""A door to `rl-lab train`: the same words, the same options."""

import sys

from rl_lab.cli.main import main

raise SystemExit(main(["train", *sys.argv[1:]]))
