"""Datasets on disk: recorded, described, merged, split, and brought into other formats."""
