"""Choosing actions by looking ahead: CEM, MPPI, CMA-ES."""
