"""Writes model_dir/report.html at the end of a run, and a report into the folder of a compiled program."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from cerebras_tensorflow.compiler.memory_plan import plan_memory
from cerebras_tensorflow.compiler.report import memory_plan_rows
from cerebras_tensorflow.config import env
from cerebras_tensorflow.estimator.execution.compile_model import Compiled
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.perf.html import page
from cerebras_tensorflow.perf.html.content import Content, RunRecord
from cerebras_tensorflow.perf.timeline import Timeline
from cerebras_tensorflow.system.wafer.scaling import scaling

logger = logging.getLogger(__name__)


def write_run_report(
    folder: str, compiled: Compiled, record: RunRecord | None = None, timelines: Sequence[Timeline] = ()
) -> Path | None:
    """Write `<folder>/report.html`.

    Args:
        folder: Made if it is missing.
        compiled: The compiled step.
        record: What the run measured. None: nothing has run.
        timelines: Recorded steps; the last one is shown.

    Returns:
        Its path. None if plotly is missing, CEREBRAS_REPORT is 0, or it could not be written: a report is not worth a
        run.
    """
    if not env.read().writes_report:
        return None
    if not page.is_available():
        logger.debug("no report: it needs plotly (pip install 'cerebras_tensorflow[report]')")
        return None
    path = Path(folder) / page.NAME
    content = Content(
        title=os.path.basename(os.path.abspath(folder)),
        simulation=compiled.estimate.simulation,
        network=compiled.estimate.network,
        measured=timelines[-1] if timelines else None,
        memory=memory_plan_rows(compiled.program, plan_memory(compiled.program)),
        record=record,
        scaling=scaling(compiled.estimate.network, compiled.estimate.workload),
    )
    try:
        page.write_report(path, content)
    except OSError as error:
        run_log.warning("%s could not be written (%s). The run and its checkpoints are not affected.", path, error)
        return None
    return path
