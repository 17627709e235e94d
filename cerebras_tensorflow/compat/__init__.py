"""Compatibility imports: old scripts run unmodified, and the core does not know about them."""
