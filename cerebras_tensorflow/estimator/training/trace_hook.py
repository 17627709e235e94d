"""A hook that records one training step: its loads, ops, updates and stores over time, and the memory in use."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.estimator.training.recording import Recording, StepRecorder
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.perf.chrome_trace import write_chrome_trace
from cerebras_tensorflow.perf.picture import write_picture
from cerebras_tensorflow.perf.timeline import LOAD, STORE, WIRE, Timeline


class TraceHook(tf.compat.v1.train.SessionRunHook):
    """Records one step and writes `<folder>/step_<N>.json` (Chrome trace) and, with matplotlib, `step_<N>.png`.

    If a file cannot be written, the hook logs one warning and the run goes on.

    Args:
        step: Global step to record, from 1.
        folder: Made if it is missing.
        recording: Of the process.
        keep: Called with the timeline.
    """

    def __init__(self, step: int, folder: str | Path, recording: Recording, keep: Callable[[Timeline], None]) -> None:
        self._step = step
        self._folder = Path(folder)
        self._recording = recording
        self._keep = keep
        self._is_recorded = False
        self._recorder: StepRecorder | None = None

    def end(self, session: Any) -> None:
        """Tell if the run had no such step."""
        if not self._is_recorded:
            run_log.warning(
                "CEREBRAS_TRACE_STEP is %d, but this run took no such step and ended after step %d: no trace.",
                *(self._step, session.global_step),
            )

    def before_run(self, run_context: Any) -> None:
        """Begin to record if this is the step."""
        session = run_context.session
        if session.global_step + 1 == self._step:
            self._recording.begin()
            self._recorder = StepRecorder(session, self._recording)

    def close(self) -> None:
        """Stop recording, if the recorded step raised an error."""
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None
            self._recording.end()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Write the recorded timeline."""
        recorder = self._recorder
        if recorder is None:
            return
        recorder.stop()
        self.close()
        timeline = recorder.timeline(f"step {self._step}")
        self._is_recorded = True
        self._keep(timeline)
        path = self._folder / f"step_{self._step}.json"
        try:
            write_chrome_trace(path, timeline)
            # The picture is optional and needs matplotlib; the trace holds all data.
            with contextlib.suppress(SettingsError):
                write_picture(path.with_suffix(".png"), timeline)
        except OSError as error:  # such as a full disk: a trace is not worth a run
            run_log.warning(
                "The trace of step %d in %s is incomplete or missing (%s). The run and its checkpoints are fine.",
                *(self._step, self._folder, error),
            )
        else:
            run_log.info("Trace of step %d: %s (open it in ui.perfetto.dev)", self._step, path)
        wire_s = timeline.busy_s((WIRE,))
        if wire_s:
            run_log.info(
                "Transfers between CSX took %.3f of its %.3f seconds; %.0f%% of that overlapped computation.",
                wire_s,
                timeline.end_s,
                100 * timeline.overlap((WIRE,)),
            )
        moves_s = timeline.busy_s((LOAD, STORE))
        if moves_s:
            run_log.info(
                "Loads and stores took %.3f of its %.3f seconds; %.0f%% of that overlapped computation.",
                moves_s,
                timeline.end_s,
                100 * timeline.overlap(),
            )
