"""A door to `rl-lab evaluate`: the same words, the same options."""

import sys

from rl_lab.cli.main import main

raise SystemExit(main(["evaluate", *sys.argv[1:]]))
