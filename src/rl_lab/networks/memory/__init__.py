"""Memories: `initial_state`, `step`, `sequence`, and sequence == repeated step."""
