"""Layer 3: config, phases, wiring and the loop."""
