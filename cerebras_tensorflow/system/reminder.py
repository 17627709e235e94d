"""Tells a user what a job waits for, without filling the log."""

from __future__ import annotations

import time
from collections.abc import Callable

REMIND_S = 600.0


class Reminder:
    """Tells what a job waits for: when that changes, and again every ten minutes.

    Args:
        tell: Called with one line of text. None: no output.
    """

    def __init__(self, tell: Callable[[str], None] | None) -> None:
        self._tell = tell
        self._reason = ""
        self._begun_s = self._told_s = 0.0

    def note(self, reason: str) -> None:
        """Note what the job waits for now."""
        now_s = time.monotonic()
        is_new = reason != self._reason
        if self._tell is None or (not is_new and now_s - self._told_s < REMIND_S):
            return
        if is_new:
            self._reason, self._begun_s = reason, now_s
        self._told_s = now_s
        self._tell(reason if is_new else f"{reason} (still, after {(now_s - self._begun_s) / 60:.0f} minutes)")
