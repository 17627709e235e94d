"""Where the results of a run are. If model_dir is in object storage, event files and other local files go there too."""

from __future__ import annotations

from cerebras_tensorflow.config.work_folder import work_folder
from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.estimator.event_writers import flush_below
from cerebras_tensorflow.locations import object_location
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.saver.model_dir import uploads

_told: set[str] = set()


def tell_where_results_are(model_dir: str) -> None:
    """Log where a run writes, and where its local files are if model_dir is in object storage."""
    run_log.info("Checkpoints and summaries will be saved in: %s", model_dir)
    if object_location(model_dir) is not None:
        run_log.info(
            "Event files and compiled programs are in %s. The event files and reports are uploaded after each "
            "checkpoint and at the end of the run.",
            work_folder(model_dir),
        )


def upload_files(model_dir: str) -> None:
    """Upload new and changed files of a run. If that fails, log one warning: the checkpoints do not need them."""
    if object_location(model_dir) is None:
        return
    folder = work_folder(model_dir)
    flush_below(folder)
    try:
        uploads.upload(model_dir)
    except (CheckpointError, OSError) as error:
        if folder not in _told:
            _told.add(folder)
            run_log.warning("Event files and reports stay in %s: they could not be uploaded (%s).", folder, error)
