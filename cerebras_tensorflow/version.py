"""The release of this software; setup.py says the same."""

__version__ = "0.1.0"
