"""Layer 4: one file per command: parse, call, print."""
