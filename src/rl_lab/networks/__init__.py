"""Layer 1: encoders, memories and heads."""
