"""Sweeps: many runs of one experiment with other settings, and the search for good ones."""
