"""`python -m rl_lab` is `rl-lab`."""

from rl_lab.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
