"""Layer 1: where collected data waits for its updates."""
