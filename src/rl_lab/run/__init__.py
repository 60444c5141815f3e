"""Layer 3: phases, wiring and the loop."""
