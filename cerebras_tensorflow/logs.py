"""The log of a run: the lines that users of the original know, under the name that they carry there.

A run shows its lines as `INFO:tensorflow:...`, unless the script has chosen a level itself, as by
`tf.compat.v1.logging.set_verbosity(ERROR)`. Details for developers go to `logging.getLogger(__name__)` of their module.
"""

import logging

run_log = logging.getLogger("tensorflow")


def show_run_lines() -> None:
    """Show the lines of a run, unless somebody has chosen a level for them or for all logs."""
    if run_log.level == logging.NOTSET and logging.getLogger().level == logging.WARNING:
        run_log.setLevel(logging.INFO)
