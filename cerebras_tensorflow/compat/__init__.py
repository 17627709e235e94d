"""Compatibility imports: old scripts run unmodified. The other packages do not import this one."""
