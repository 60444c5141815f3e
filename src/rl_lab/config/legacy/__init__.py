"""Spellings of earlier projects: their keys, and their files with one block per variant."""
