"""`python -m benchmarks.peers`: the same command as `rl-lab bench peers`."""

import sys

from rl_lab.cli.main import main

raise SystemExit(main(["bench", "peers", *sys.argv[1:]]))
