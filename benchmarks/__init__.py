"""Measurements that need a source checkout: nothing here is part of the wheel."""
