"""A door to `rl-lab sweep`: the same words, the same options."""

import sys

from rl_lab.cli.main import main

raise SystemExit(main(["sweep", *sys.argv[1:]]))
