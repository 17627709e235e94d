"""The command `cs`."""

from __future__ import annotations

import sys


def main() -> int:
    """Say that the shell is not there yet."""
    print("cs: the admin shell is not yet available in this release", file=sys.stderr)
    return 2
