"""Names that are not ours, so that old scripts run unmodified and the core never knows about them."""
