"""Layer 1: environments behind one transition contract."""
