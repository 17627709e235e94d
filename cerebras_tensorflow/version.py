"""The release of this software; pyproject.toml reads it from here."""

__version__ = "0.1.0"
