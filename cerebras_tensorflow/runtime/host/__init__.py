"""The host's memory, disk and network."""
