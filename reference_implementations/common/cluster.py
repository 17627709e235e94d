"""Cluster options of a run: check the folders, label the job, log the options that have no effect here."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from cerebras_tensorflow.config import env
from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.system import jobs
from cerebras_tensorflow.text import is_number
from reference_implementations.common.sections import RunSettings

logger = logging.getLogger(__name__)


def prepare(settings: RunSettings) -> None:
    """Apply the cluster settings of `runconfig` to this process and to its job.

    Raises:
        SettingsError: If a folder is missing. Without the check the run would fail later, on another task.
    """
    for name in ("mount_dirs", "python_paths"):
        for path in getattr(settings, name):
            if not Path(path).is_dir():
                raise SettingsError(f"{name}: there is no folder {path!r} here; every task has to see it")
    sys.path.extend(path for path in settings.python_paths if path not in sys.path)
    if settings.job_labels:
        label_job(dict(label.split("=", 1) for label in settings.job_labels))
    log_ignored(settings)


def label_job(labels: dict[str, str]) -> None:
    """Label the launch that this process belongs to, as `csctl label job` does."""
    environment = env.read()
    if environment.job_id is None or not is_number(environment.job_id):
        logger.info("job_labels are ignored: no launcher started this run; start it with csrun_wse")
        return
    job = jobs.record(environment.home, int(environment.job_id))
    jobs.set_labels(environment.home, job.id, labels)


def log_ignored(settings: RunSettings) -> None:
    """Log the cluster sizes that have no effect here, because the launcher sets them."""
    given = {name: getattr(settings, name) for name in ("num_wgt_servers", "num_act_servers", "num_workers_per_csx")}
    stated = ", ".join(f"{name}={value}" for name, value in given.items() if value)
    if stated:
        logger.info("%s: no change here; options of csrun_wse set the tasks of a run", stated)
