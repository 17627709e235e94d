"""The log of a run: the lines that users of the original know, from the same logger, `tensorflow`.

A run shows its lines as `INFO:tensorflow:...`, unless the script sets a level, for example with
`tf.compat.v1.logging.set_verbosity(ERROR)`. Details for developers go to `logging.getLogger(__name__)` of each module.
"""

import logging
from collections.abc import Callable

from cerebras_tensorflow.progress import Progress

run_log = logging.getLogger("tensorflow")


def show_run_lines() -> None:
    """Show the lines of a run, unless a level is set for them or for all logs."""
    if run_log.level == logging.NOTSET and logging.getLogger().level == logging.WARNING:
        run_log.setLevel(logging.INFO)


def run_progress(
    title: str, total: int | None = None, unit: str = "B", done: Callable[[], int] | None = None
) -> Progress:
    """Return a Progress for one part of a run, shown if INFO lines are. See Progress for the arguments."""
    return Progress(title, total, unit, is_shown=run_log.isEnabledFor(logging.INFO), done=done)
