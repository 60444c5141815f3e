"""The benchmark of memories: every memory on every task, with equal numbers of parameters."""
