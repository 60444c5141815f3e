"""Hypothesis for property tests; without it, stand-ins that let those tests be skipped."""

from unittest.mock import MagicMock

import pytest

try:
    from hypothesis import given, settings
    from hypothesis import strategies as st
except ModuleNotFoundError:
    st = MagicMock()  # strategies are made when a file is imported, and never drawn from

    def given(*strategies, **named):
        return pytest.mark.needs("hypothesis")

    def settings(**options):
        return lambda test: test


__all__ = ["given", "settings", "st"]
