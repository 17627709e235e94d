"""A run whose model_dir is in object storage: its event files and other local files go there too."""

from __future__ import annotations

from cerebras_tensorflow.config.work_folder import work_folder
from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.estimator.event_writers import flush_below
from cerebras_tensorflow.locations import object_location
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.saver.model_dir import uploads

_told: set[str] = set()


def tell_of_work_folder(model_dir: str) -> None:
    """Log where the local files of a run are, if its model_dir is in object storage."""
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
