"""The host's memory and disk."""
