"""The `cs>` shell, in which an administrator changes the state of a system."""
