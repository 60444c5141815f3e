"""Dreamer v1, v2 and v3: the algorithm and the networks that only world models use."""
