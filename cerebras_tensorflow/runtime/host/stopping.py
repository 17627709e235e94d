"""Whether a signal asks this process to stop. It then waits only a short time for processes that do not answer."""

from __future__ import annotations

import threading

requested = threading.Event()
"""Set from the first Ctrl-C or SIGTERM of a training run until the end of that run."""

ANSWER_LIMIT_S = 8.0
"""How long another process may then stay silent before it counts as hanging [s]. `csctl cancel` kills after 25 s."""

POLL_S = 1.0
"""How often threads look whether a signal has arrived [s]."""
