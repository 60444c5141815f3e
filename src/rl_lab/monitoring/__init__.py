"""Monitors: conditions on metrics that tell a researcher early that something is wrong."""
