"""Measured and simulated speed, always reported separately."""
