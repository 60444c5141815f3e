"""Layer 2: one file per algorithm."""
