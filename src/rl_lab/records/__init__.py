"""Layer 1: everything that touches the disk."""
